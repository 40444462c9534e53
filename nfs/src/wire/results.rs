//! Results of the procedures (RFC 1813 section 3.3): each is a `Result` of what there is on success, or
//! of a status with what there is otherwise.

use heddle_rpcrdma::xdr::{self, Reader};

use super::{Data, Fattr, Handle, Name, Path, Stable, Time, Verifier, WccData, Xdr, structs};

structs! {
    /// Attributes that there always are: GETATTR.
    pub struct Attributes {
        /// They.
        pub attributes: Fattr,
    }

    /// LOOKUP.
    pub struct LookupOk {
        /// What has the name.
        pub object: Handle,
        /// Its attributes.
        pub attributes: Option<Fattr>,
        /// Those of the directory.
        pub dir: Option<Fattr>,
    }

    /// ACCESS.
    pub struct AccessOk {
        /// Attributes of the object.
        pub attributes: Option<Fattr>,
        /// The bits asked for that there are.
        pub access: u32,
    }

    /// READLINK.
    pub struct ReadlinkOk<'a> {
        /// Attributes of the link.
        pub attributes: Option<Fattr>,
        /// Where it leads.
        pub path: Path<'a>,
    }

    /// READ.
    pub struct ReadOk<'a> {
        /// Attributes of the file.
        pub attributes: Option<Fattr>,
        /// Octets read.
        pub count: u32,
        /// Whether nothing is behind them.
        pub eof: bool,
        /// The octets.
        pub data: Data<'a>,
    }

    /// WRITE.
    pub struct WriteOk {
        /// Attributes of the file.
        pub wcc: WccData,
        /// Octets written.
        pub count: u32,
        /// How far they have come.
        pub committed: Stable,
        /// Another one at every start of the server.
        pub verifier: Verifier,
    }

    /// CREATE, MKDIR, SYMLINK, MKNOD.
    pub struct Created {
        /// What was made.
        pub object: Option<Handle>,
        /// Its attributes.
        pub attributes: Option<Fattr>,
        /// Those of the directory.
        pub dir: WccData,
    }

    /// RENAME, in either case.
    pub struct RenameDone {
        /// Attributes of the directory that had the name.
        pub from: WccData,
        /// Attributes of the one that has it.
        pub to: WccData,
    }

    /// LINK, in either case.
    pub struct LinkDone {
        /// Attributes of what got a name.
        pub attributes: Option<Fattr>,
        /// Those of the directory.
        pub dir: WccData,
    }

    /// FSSTAT.
    pub struct Fsstat {
        /// Attributes of the object.
        pub attributes: Option<Fattr>,
        /// Octets of the file system.
        pub total_bytes: u64,
        /// Free ones.
        pub free_bytes: u64,
        /// Those that the caller can have.
        pub available_bytes: u64,
        /// Objects of the file system.
        pub total_files: u64,
        /// Free ones.
        pub free_files: u64,
        /// Those that the caller can have.
        pub available_files: u64,
        /// Seconds for which these figures stay; 0 when that is not known.
        pub invariant: u32,
    }

    /// FSINFO.
    pub struct Fsinfo {
        /// Attributes of the object.
        pub attributes: Option<Fattr>,
        /// Octets of the longest READ.
        pub rtmax: u32,
        /// Octets it should have.
        pub rtpref: u32,
        /// What they should be a multiple of.
        pub rtmult: u32,
        /// Octets of the longest WRITE.
        pub wtmax: u32,
        /// Octets it should have.
        pub wtpref: u32,
        /// What they should be a multiple of.
        pub wtmult: u32,
        /// Octets that READDIR should ask for.
        pub dtpref: u32,
        /// Octets of the longest file.
        pub maxfilesize: u64,
        /// How fine times are.
        pub time_delta: Time,
        /// What there is: the RFC's bits.
        pub properties: u32,
    }

    /// PATHCONF.
    pub struct Pathconf {
        /// Attributes of the object.
        pub attributes: Option<Fattr>,
        /// Most names of an object.
        pub linkmax: u32,
        /// Octets of the longest name.
        pub name_max: u32,
        /// Whether a longer one is refused, not cut.
        pub no_trunc: bool,
        /// Whether only a privileged user can give an object away.
        pub chown_restricted: bool,
        /// Whether names are equal but for case.
        pub case_insensitive: bool,
        /// Whether names stay as they were given.
        pub case_preserving: bool,
    }

    /// COMMIT.
    pub struct CommitOk {
        /// Attributes of the file.
        pub wcc: WccData,
        /// Another one at every start of the server.
        pub verifier: Verifier,
    }

    /// An entry of READDIRPLUS.
    pub struct DirPlusEntry<'a> {
        /// Its number.
        pub fileid: u64,
        /// Its name.
        pub name: Name<'a>,
        /// What to ask for to go on behind it.
        pub cookie: u64,
        /// Its attributes.
        pub attributes: Option<Fattr>,
        /// Its handle.
        pub handle: Option<Handle>,
    }
}

/// READDIRPLUS. A list, so that entries follow one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirPlus<'a> {
    /// Attributes of the directory.
    pub dir: Option<Fattr>,
    /// Whose the cookies are.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<DirPlusEntry<'a>>,
    /// Whether there are no more.
    pub eof: bool,
}

impl<'a> Xdr<'a> for DirPlus<'a> {
    fn get(r: &mut Reader<'a>) -> Result<DirPlus<'a>, xdr::Error> {
        let (dir, verifier) = (Xdr::get(r)?, Xdr::get(r)?);
        let mut entries = Vec::new();
        // Each takes octets of the message, so there cannot be many more than it has room for.
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
