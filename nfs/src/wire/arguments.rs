//! Arguments of the procedures (RFC 1813 section 3.3).

use heddle_rpcrdma::xdr::{self, Fault, Reader};

use super::{Data, Handle, Name, Path, Sattr, Time, Verifier, Xdr, structs};

structs! {
    /// A handle alone: GETATTR, READLINK, FSSTAT, FSINFO, PATHCONF.
    pub struct OfHandle {
        /// Of what.
        pub object: Handle,
    }

    /// A name in a directory (`diropargs3`).
    pub struct DirEntryName<'a> {
        /// The directory.
        pub dir: Handle,
        /// The name in it.
        pub name: Name<'a>,
    }

    /// SETATTR.
    pub struct Setattr {
        /// Of what.
        pub object: Handle,
        /// What is to be set.
        pub attributes: Sattr,
        /// Only when its attributes were last changed then.
        pub guard: Option<Time>,
    }

    /// ACCESS.
    pub struct Access {
        /// To what.
        pub object: Handle,
        /// Which access: the RFC's bits.
        pub access: u32,
    }

    /// READ.
    pub struct Read {
        /// Of what.
        pub file: Handle,
        /// From which octet.
        pub offset: u64,
        /// How many at most.
        pub count: u32,
    }

    /// WRITE.
    pub struct Write<'a> {
        /// To what.
        pub file: Handle,
        /// From which octet.
        pub offset: u64,
        /// How many: as many as there are.
        pub count: u32,
        /// How far it has to have come at the reply.
        pub stable: Stable,
        /// The octets.
        pub data: Data<'a>,
    }

    /// WRITE without its octets, which are not among the other arguments.
    pub struct WriteApart {
        /// To what.
        pub file: Handle,
        /// From which octet.
        pub offset: u64,
        /// How many: as many as there are.
        pub count: u32,
        /// How far it has to have come at the reply.
        pub stable: Stable,
        /// How many there are.
        pub length: u32,
    }

    /// CREATE.
    pub struct Create<'a> {
        /// Where, and the name.
        pub at: DirEntryName<'a>,
        /// What if it is there.
        pub how: How,
    }

    /// MKDIR.
    pub struct Mkdir<'a> {
        /// Where, and the name.
        pub at: DirEntryName<'a>,
        /// With which attributes.
        pub attributes: Sattr,
    }

    /// SYMLINK.
    pub struct Symlink<'a> {
        /// Where, and the name.
        pub at: DirEntryName<'a>,
        /// With which attributes.
        pub attributes: Sattr,
        /// Where it leads.
        pub path: Path<'a>,
    }

    /// MKNOD.
    pub struct Mknod<'a> {
        /// Where, and the name.
        pub at: DirEntryName<'a>,
        /// What.
        pub kind: MknodKind,
    }

    /// RENAME.
    pub struct Rename<'a> {
        /// What is there.
        pub from: DirEntryName<'a>,
        /// Where it will be.
        pub to: DirEntryName<'a>,
    }

    /// LINK.
    pub struct Link<'a> {
        /// What gets another name.
        pub file: Handle,
        /// The name.
        pub at: DirEntryName<'a>,
    }

    /// READDIR.
    pub struct Readdir {
        /// The directory.
        pub dir: Handle,
        /// Behind which entry; 0 for all.
        pub cookie: u64,
        /// That of the reply which the cookie is from.
        pub verifier: Verifier,
        /// Octets of the longest results.
        pub count: u32,
    }

    /// READDIRPLUS.
    pub struct Readdirplus {
        /// The directory.
        pub dir: Handle,
        /// Behind which entry; 0 for all.
        pub cookie: u64,
        /// That of the reply which the cookie is from.
        pub verifier: Verifier,
        /// Octets of names, numbers and cookies.
        pub dircount: u32,
        /// Octets of the longest results.
        pub maxcount: u32,
    }

    /// COMMIT.
    pub struct Commit {
        /// Of what.
        pub file: Handle,
        /// From which octet.
        pub offset: u64,
        /// How many; 0 for all.
        pub count: u32,
    }
}

/// LOOKUP.
pub type Lookup<'a> = DirEntryName<'a>;

/// REMOVE and RMDIR.
pub type Remove<'a> = DirEntryName<'a>;

/// How far data has to have come (`stable_how`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stable {
    /// A COMMIT follows.
    Unstable = 0,
    /// The data is on the disk, and what is needed to find it.
    DataSync = 1,
    /// So is all else.
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

/// What CREATE does with a name that is there (`createhow3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It takes the file.
    Unchecked(Sattr),
    /// It refuses.
    Guarded(Sattr),
    /// It refuses, unless the file was made by a call with the same verifier.
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

/// What MKNOD makes (`mknoddata3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MknodKind {
    /// A character device.
    Character(Sattr, super::Device),
    /// A block device.
    Block(Sattr, super::Device),
    /// A socket.
    Socket(Sattr),
    /// A named pipe.
    Fifo(Sattr),
    /// What other procedures make: NFS3ERR_BADTYPE.
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
