//! Results of the procedures (RFC 1813 section 3.3): each is a `Result`, whose error has the status
//! and the fields that a failure reports.

use heddle_rpcrdma::xdr::{self, Reader};

use super::{Data, Fattr, Handle, Name, Path, Stable, Time, Verifier, WccData, Xdr, structs};

structs! {
    /// Attributes that are always present: results of GETATTR.
    pub struct Attributes {
        /// The attributes of the object.
        pub attributes: Fattr,
    }

    /// Results of LOOKUP.
    pub struct LookupOk {
        /// The handle of the object with the name.
        pub object: Handle,
        /// The object's attributes.
        pub attributes: Option<Fattr>,
        /// The directory's attributes.
        pub dir: Option<Fattr>,
    }

    /// Results of ACCESS.
    pub struct AccessOk {
        /// Attributes of the object.
        pub attributes: Option<Fattr>,
        /// The kinds of access that the caller has, among the bits of the call.
        pub access: u32,
    }

    /// Results of READLINK.
    pub struct ReadlinkOk<'a> {
        /// Attributes of the link.
        pub attributes: Option<Fattr>,
        /// The path to which the link leads.
        pub path: Path<'a>,
    }

    /// Results of READ.
    pub struct ReadOk<'a> {
        /// Attributes of the file.
        pub attributes: Option<Fattr>,
        /// The number of bytes read.
        pub count: u32,
        /// True if the file ends after these bytes.
        pub eof: bool,
        /// The bytes read.
        pub data: Data<'a>,
    }

    /// Results of WRITE.
    pub struct WriteOk {
        /// Attributes of the file.
        pub wcc: WccData,
        /// The number of bytes written.
        pub count: u32,
        /// How durable the written bytes are.
        pub committed: Stable,
        /// A number that differs after every start of the server.
        pub verifier: Verifier,
    }

    /// Results of CREATE, MKDIR, SYMLINK, MKNOD.
    pub struct Created {
        /// The handle of the new object.
        pub object: Option<Handle>,
        /// The attributes of the new object.
        pub attributes: Option<Fattr>,
        /// The directory's attributes.
        pub dir: WccData,
    }

    /// Results of RENAME, on success and on failure.
    pub struct RenameDone {
        /// Attributes of the directory that had the name.
        pub from: WccData,
        /// Attributes of the directory that has the name now.
        pub to: WccData,
    }

    /// Results of LINK, on success and on failure.
    pub struct LinkDone {
        /// Attributes of the object that got a name.
        pub attributes: Option<Fattr>,
        /// The directory's attributes.
        pub dir: WccData,
    }

    /// Results of FSSTAT.
    pub struct Fsstat {
        /// Attributes of the object.
        pub attributes: Option<Fattr>,
        /// The size of the file system in bytes.
        pub total_bytes: u64,
        /// The number of free bytes.
        pub free_bytes: u64,
        /// The number of free bytes that the caller can use.
        pub available_bytes: u64,
        /// The number of objects that fit into the file system.
        pub total_files: u64,
        /// The number of objects that can still be made.
        pub free_files: u64,
        /// The number of objects that the caller can still make.
        pub available_files: u64,
        /// Seconds for which these figures stay valid; 0 when the server does not know.
        pub invariant: u32,
    }

    /// Results of FSINFO.
    pub struct Fsinfo {
        /// Attributes of the object.
        pub attributes: Option<Fattr>,
        /// The longest READ, in bytes.
        pub rtmax: u32,
        /// The preferred length of a READ, in bytes.
        pub rtpref: u32,
        /// The number of which the length of a READ should be a multiple.
        pub rtmult: u32,
        /// The longest WRITE, in bytes.
        pub wtmax: u32,
        /// The preferred length of a WRITE, in bytes.
        pub wtpref: u32,
        /// The number of which the length of a WRITE should be a multiple.
        pub wtmult: u32,
        /// The preferred `count` of a READDIR, in bytes.
        pub dtpref: u32,
        /// The size of the largest possible file, in bytes.
        pub maxfilesize: u64,
        /// The resolution of times.
        pub time_delta: Time,
        /// The properties of the file system, as bits of RFC 1813 section 3.3.19.
        pub properties: u32,
    }

    /// Results of PATHCONF.
    pub struct Pathconf {
        /// Attributes of the object.
        pub attributes: Option<Fattr>,
        /// The highest number of names of an object.
        pub linkmax: u32,
        /// The length of the longest name, in bytes.
        pub name_max: u32,
        /// True if the server refuses a longer name and does not cut it.
        pub no_trunc: bool,
        /// True if only a privileged user can give an object to another owner.
        pub chown_restricted: bool,
        /// True if names that differ only in case are equal.
        pub case_insensitive: bool,
        /// True if the server keeps the case in which names were given.
        pub case_preserving: bool,
    }

    /// Results of COMMIT.
    pub struct CommitOk {
        /// Attributes of the file.
        pub wcc: WccData,
        /// A number that differs after every start of the server.
        pub verifier: Verifier,
    }

    /// An entry of READDIRPLUS.
    pub struct DirPlusEntry<'a> {
        /// The object's number in its file system.
        pub fileid: u64,
        /// The entry's name.
        pub name: Name<'a>,
        /// The cookie with which the next call goes on after this entry.
        pub cookie: u64,
        /// The object's attributes.
        pub attributes: Option<Fattr>,
        /// The object's handle.
        pub handle: Option<Handle>,
    }
}

/// Results of READDIRPLUS. On the wire the entries form a list, in which they follow one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirPlus<'a> {
    /// Attributes of the directory.
    pub dir: Option<Fattr>,
    /// The verifier to which the cookies belong.
    pub verifier: Verifier,
    /// The entries of this part, in the directory's order.
    pub entries: Vec<DirPlusEntry<'a>>,
    /// True if there are no more entries.
    pub eof: bool,
}

impl<'a> Xdr<'a> for DirPlus<'a> {
    fn get(r: &mut Reader<'a>) -> Result<DirPlus<'a>, xdr::Error> {
        let (dir, verifier) = (Xdr::get(r)?, Xdr::get(r)?);
        let mut entries = Vec::new();
        // Each entry takes bytes of the message, so the message bounds their number.
        while let Some(entry) = Xdr::get(r)? {
            entries.push(entry);
        }
        Ok(DirPlus { dir, verifier, entries, eof: Xdr::get(r)? })
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.dir.put(out);
        self.verifier.put(out);
        for &entry in &self.entries {
            Some(entry).put(out);
        }
        false.put(out);
        self.eof.put(out);
    }
}
