//! Attributes (RFC 1813 section 2.3).

use heddle_rpcrdma::xdr::{self, Fault, Reader};

use super::{Xdr, structs};

/// The type of an object (`ftype3`).
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
        /// Seconds since 1970 in UTC.
        pub seconds: u32,
        /// Nanoseconds within the second.
        pub nanoseconds: u32,
    }

    /// Numbers of a device (`specdata3`).
    #[derive(Default)]
    pub struct Device {
        /// The device's major number.
        pub major: u32,
        /// The device's minor number.
        pub minor: u32,
    }

    /// Attributes of an object (`fattr3`).
    pub struct Fattr {
        /// The type of the object.
        pub kind: FileType,
        /// Permissions, with the bits for set-user-ID, set-group-ID and sticky.
        pub mode: u32,
        /// The number of names that the object has.
        pub nlink: u32,
        /// The user ID of the owner.
        pub uid: u32,
        /// The group ID of the object.
        pub gid: u32,
        /// The size of the object in bytes.
        pub size: u64,
        /// The bytes of disk space that the object takes.
        pub used: u64,
        /// The numbers of the device, if the object is a device.
        pub rdev: Device,
        /// The number of the file system.
        pub fsid: u64,
        /// The number of the object in its file system.
        pub fileid: u64,
        /// The time at which the object was last read.
        pub atime: Time,
        /// The time at which the contents last changed.
        pub mtime: Time,
        /// The time at which the attributes last changed.
        pub ctime: Time,
    }

    /// The attributes by which a client notices a change of an object (`wcc_attr`).
    pub struct WccAttr {
        /// The size of the object in bytes.
        pub size: u64,
        /// The time at which the contents last changed.
        pub mtime: Time,
        /// The time at which the attributes last changed.
        pub ctime: Time,
    }

    /// Attributes of an object before and after an operation (`wcc_data`).
    #[derive(Default)]
    pub struct WccData {
        /// The attributes before the operation, if no other call can have changed the object in
        /// between.
        pub before: Option<WccAttr>,
        /// The attributes after the operation.
        pub after: Option<Fattr>,
    }

    /// Attributes to be set (`sattr3`).
    #[derive(Default)]
    pub struct Sattr {
        /// The new permissions.
        pub mode: Option<u32>,
        /// The user ID of the new owner.
        pub uid: Option<u32>,
        /// The ID of the new group.
        pub gid: Option<u32>,
        /// The new size in bytes.
        pub size: Option<u64>,
        /// The new time of the last read.
        pub atime: SetTime,
        /// The new time of the last change of the contents.
        pub mtime: SetTime,
    }
}

impl Fattr {
    /// Returns the attributes by which a client notices changes.
    pub const fn wcc(&self) -> WccAttr {
        WccAttr { size: self.size, mtime: self.mtime, ctime: self.ctime }
    }
}

/// The new value of a time (`set_atime`, `set_mtime`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// The time stays as it is.
    #[default]
    Keep,
    /// The server sets the time from its clock.
    Server,
    /// The server sets this time.
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
