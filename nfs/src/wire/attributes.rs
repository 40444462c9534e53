//! Attributes (RFC 1813 section 2.3).

use heddle_rpcrdma::xdr::{self, Fault, Reader};

use super::{Xdr, structs};

/// What an object is (`ftype3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum FileType {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A block device.
    Block = 3,
    /// A character device.
    Character = 4,
    /// A symbolic link.
    Symlink = 5,
    /// A socket.
    Socket = 6,
    /// A named pipe.
    Fifo = 7,
}

impl Xdr<'_> for FileType {
    fn get(r: &mut Reader<'_>) -> Result<FileType, xdr::Error> {
        let at = r.at();
        Ok(match r.u32()? {
            1 => FileType::Regular,
            2 => FileType::Directory,
            3 => FileType::Block,
            4 => FileType::Character,
            5 => FileType::Symlink,
            6 => FileType::Socket,
            7 => FileType::Fifo,
            value => return Err(xdr::Error { at, fault: Fault::Enum { value } }),
        })
    }

    fn put(&self, out: &mut Vec<u8>) {
        (*self as u32).put(out);
    }
}

structs! {
    /// A time (`nfstime3`): since 1970 in UTC, until 2106.
    #[derive(Default, PartialOrd, Ord)]
    pub struct Time {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds of the second.
        pub nanoseconds: u32,
    }

    /// Numbers of a device (`specdata3`).
    #[derive(Default)]
    pub struct Device {
        /// Major number.
        pub major: u32,
        /// Minor number.
        pub minor: u32,
    }

    /// Attributes of an object (`fattr3`).
    pub struct Fattr {
        /// What it is.
        pub kind: FileType,
        /// Permissions, with the bits for set-user-ID, set-group-ID and sticky.
        pub mode: u32,
        /// Names it has.
        pub nlink: u32,
        /// Its owner.
        pub uid: u32,
        /// Its group.
        pub gid: u32,
        /// Octets of it.
        pub size: u64,
        /// Octets it takes.
        pub used: u64,
        /// Which device it is, if it is one.
        pub rdev: Device,
        /// Its file system.
        pub fsid: u64,
        /// Its number there.
        pub fileid: u64,
        /// When it was last read.
        pub atime: Time,
        /// When its contents were last changed.
        pub mtime: Time,
        /// When its attributes were last changed.
        pub ctime: Time,
    }

    /// Those by which a client knows whether an object was changed (`wcc_attr`).
    pub struct WccAttr {
        /// Octets of it.
        pub size: u64,
        /// When its contents were last changed.
        pub mtime: Time,
        /// When its attributes were last changed.
        pub ctime: Time,
    }

    /// Attributes of an object before and after an operation (`wcc_data`).
    #[derive(Default)]
    pub struct WccData {
        /// Before, if nothing else can have changed it in between.
        pub before: Option<WccAttr>,
        /// After.
        pub after: Option<Fattr>,
    }

    /// Attributes to be set (`sattr3`).
    #[derive(Default)]
    pub struct Sattr {
        /// Permissions.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Octets.
        pub size: Option<u64>,
        /// When it was last read.
        pub atime: SetTime,
        /// When its contents were last changed.
        pub mtime: SetTime,
    }
}

impl Fattr {
    /// What tells of changes.
    pub const fn wcc(&self) -> WccAttr {
        WccAttr { size: self.size, mtime: self.mtime, ctime: self.ctime }
    }
}

/// What becomes of a time (`set_atime`, `set_mtime`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// It stays.
    #[default]
    Keep,
    /// It is that of the server's clock.
    Server,
    /// It is this.
    Client(Time),
}

impl Xdr<'_> for SetTime {
    fn get(r: &mut Reader<'_>) -> Result<SetTime, xdr::Error> {
        let at = r.at();
        Ok(match r.u32()? {
            0 => SetTime::Keep,
            1 => SetTime::Server,
            2 => SetTime::Client(Time::get(r)?),
            value => return Err(xdr::Error { at, fault: Fault::Enum { value } }),
        })
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            SetTime::Keep => 0u32.put(out),
            SetTime::Server => 1u32.put(out),
            SetTime::Client(time) => {
                2u32.put(out);
                time.put(out);
            }
        }
    }
}
