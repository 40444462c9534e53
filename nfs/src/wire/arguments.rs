//! Arguments of the procedures (RFC 1813 section 3.3).

use heddle_rpcrdma::xdr::{self, Fault, Reader};

use super::{Data, Handle, Name, Path, Sattr, Time, Verifier, Xdr, structs};

structs! {
    /// A handle as the only argument: GETATTR, READLINK, FSSTAT, FSINFO, PATHCONF.
    pub struct OfHandle {
        /// The object that the call asks about.
        pub object: Handle,
    }

    /// A name in a directory (`diropargs3`).
    pub struct DirEntryName<'a> {
        /// The directory that contains the name.
        pub dir: Handle,
        /// The name, without slashes.
        pub name: Name<'a>,
    }

    /// Arguments of SETATTR.
    pub struct Setattr {
        /// The object to change.
        pub object: Handle,
        /// The attributes to set.
        pub attributes: Sattr,
        /// If given, the server changes the object only if its ctime equals this time.
        pub guard: Option<Time>,
    }

    /// Arguments of ACCESS.
    pub struct Access {
        /// The object that the caller wants to access.
        pub object: Handle,
        /// The kinds of access that the caller asks about, as bits of RFC 1813 section 3.3.4.
        pub access: u32,
    }

    /// Arguments of READ.
    pub struct Read {
        /// The file to read.
        pub file: Handle,
        /// The offset in the file of the first byte to read.
        pub offset: u64,
        /// The highest number of bytes to read.
        pub count: u32,
    }

    /// Arguments of WRITE.
    pub struct Write<'a> {
        /// The file to write.
        pub file: Handle,
        /// The offset in the file of the first byte to write.
        pub offset: u64,
        /// The number of bytes to write, which has to be the length of `data`.
        pub count: u32,
        /// How durable the data has to be at the reply.
        pub stable: Stable,
        /// The bytes to write.
        pub data: Data<'a>,
    }

    /// Arguments of WRITE whose data lies apart from the other arguments.
    pub struct WriteApart {
        /// The file to write.
        pub file: Handle,
        /// The offset in the file of the first byte to write.
        pub offset: u64,
        /// The number of bytes to write, which has to equal `length`.
        pub count: u32,
        /// How durable the data has to be at the reply.
        pub stable: Stable,
        /// The length in bytes of the data that lies apart.
        pub length: u32,
    }

    /// Arguments of CREATE.
    pub struct Create<'a> {
        /// The directory, and the name of the new file.
        pub at: DirEntryName<'a>,
        /// The way in which the server treats an existing name.
        pub how: How,
    }

    /// Arguments of MKDIR.
    pub struct Mkdir<'a> {
        /// The directory, and the name of the new directory in it.
        pub at: DirEntryName<'a>,
        /// The attributes of the new directory.
        pub attributes: Sattr,
    }

    /// Arguments of SYMLINK.
    pub struct Symlink<'a> {
        /// The directory, and the name of the new link.
        pub at: DirEntryName<'a>,
        /// The attributes of the new link.
        pub attributes: Sattr,
        /// The path to which the link leads.
        pub path: Path<'a>,
    }

    /// Arguments of MKNOD.
    pub struct Mknod<'a> {
        /// The directory, and the name of the new object.
        pub at: DirEntryName<'a>,
        /// The type of the new object, with its attributes.
        pub kind: MknodKind,
    }

    /// Arguments of RENAME.
    pub struct Rename<'a> {
        /// The directory and name before the call.
        pub from: DirEntryName<'a>,
        /// The directory and name after the call.
        pub to: DirEntryName<'a>,
    }

    /// Arguments of LINK.
    pub struct Link<'a> {
        /// The object that gets another name.
        pub file: Handle,
        /// The directory, and the new name.
        pub at: DirEntryName<'a>,
    }

    /// Arguments of READDIR.
    pub struct Readdir {
        /// The directory to list.
        pub dir: Handle,
        /// The cookie of the entry after which the listing goes on; 0 to list from the start.
        pub cookie: u64,
        /// The verifier in the reply from which the cookie is.
        pub verifier: Verifier,
        /// The limit for the results, in bytes.
        pub count: u32,
    }

    /// Arguments of READDIRPLUS.
    pub struct Readdirplus {
        /// The directory to list.
        pub dir: Handle,
        /// The cookie of the entry after which the listing goes on; 0 to list from the start.
        pub cookie: u64,
        /// The verifier in the reply from which the cookie is.
        pub verifier: Verifier,
        /// The limit for names, numbers and cookies, in bytes.
        pub dircount: u32,
        /// The limit for the results, in bytes.
        pub maxcount: u32,
    }

    /// Arguments of COMMIT.
    pub struct Commit {
        /// The file to commit.
        pub file: Handle,
        /// The offset in the file of the first byte to commit.
        pub offset: u64,
        /// The number of bytes to commit; 0 for the rest of the file.
        pub count: u32,
    }
}

/// Arguments of LOOKUP.
pub type Lookup<'a> = DirEntryName<'a>;

/// Arguments of REMOVE and RMDIR.
pub type Remove<'a> = DirEntryName<'a>;

/// How durable written data has to be (`stable_how`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stable {
    /// The data may be lost until a COMMIT follows.
    Unstable = 0,
    /// The data is on the disk, with the attributes needed to find it.
    DataSync = 1,
    /// The data and all attributes are on the disk.
    FileSync = 2,
}

impl Xdr<'_> for Stable {
    fn get(r: &mut Reader<'_>) -> Result<Stable, xdr::Error> {
        let at = r.at();
        Ok(match r.u32()? {
            0 => Stable::Unstable,
            1 => Stable::DataSync,
            2 => Stable::FileSync,
            value => return Err(xdr::Error { at, fault: Fault::Enum { value } }),
        })
    }

    fn put(&self, out: &mut Vec<u8>) {
        (*self as u32).put(out);
    }
}

/// How CREATE treats a name that exists (`createhow3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// CREATE takes the existing file.
    Unchecked(Sattr),
    /// CREATE refuses.
    Guarded(Sattr),
    /// CREATE refuses, unless a call with the same verifier made the file.
    Exclusive(Verifier),
}

impl Xdr<'_> for How {
    fn get(r: &mut Reader<'_>) -> Result<How, xdr::Error> {
        let at = r.at();
        Ok(match r.u32()? {
            0 => How::Unchecked(Sattr::get(r)?),
            1 => How::Guarded(Sattr::get(r)?),
            2 => How::Exclusive(Verifier::get(r)?),
            value => return Err(xdr::Error { at, fault: Fault::Enum { value } }),
        })
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            How::Unchecked(attributes) => {
                0u32.put(out);
                attributes.put(out);
            }
            How::Guarded(attributes) => {
                1u32.put(out);
                attributes.put(out);
            }
            How::Exclusive(verifier) => {
                2u32.put(out);
                verifier.put(out);
            }
        }
    }
}

/// The kind of object that MKNOD makes (`mknoddata3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MknodKind {
    /// A character device.
    Character(Sattr, super::Device),
    /// A block device.
    Block(Sattr, super::Device),
    /// A Unix domain socket.
    Socket(Sattr),
    /// A named pipe.
    Fifo(Sattr),
    /// A type that other procedures make; MKNOD fails with NFS3ERR_BADTYPE.
    Other(super::FileType),
}

impl Xdr<'_> for MknodKind {
    fn get(r: &mut Reader<'_>) -> Result<MknodKind, xdr::Error> {
        use super::FileType;
        Ok(match FileType::get(r)? {
            FileType::Character => MknodKind::Character(Xdr::get(r)?, Xdr::get(r)?),
            FileType::Block => MknodKind::Block(Xdr::get(r)?, Xdr::get(r)?),
            FileType::Socket => MknodKind::Socket(Xdr::get(r)?),
            FileType::Fifo => MknodKind::Fifo(Xdr::get(r)?),
            other => MknodKind::Other(other),
        })
    }

    fn put(&self, out: &mut Vec<u8>) {
        use super::FileType;
        match self {
            MknodKind::Character(attributes, device) => {
                FileType::Character.put(out);
                attributes.put(out);
                device.put(out);
            }
            MknodKind::Block(attributes, device) => {
                FileType::Block.put(out);
                attributes.put(out);
                device.put(out);
            }
            MknodKind::Socket(attributes) => {
                FileType::Socket.put(out);
                attributes.put(out);
            }
            MknodKind::Fifo(attributes) => {
                FileType::Fifo.put(out);
                attributes.put(out);
            }
            MknodKind::Other(kind) => kind.put(out),
        }
    }
}
