//! The outcome of a procedure (RFC 1813 section 2.6, `nfsstat3`).

use std::fmt;

use heddle_rpcrdma::xdr::{self, Reader};
use rustix::io::Errno;

use super::Xdr;

/// A status. A value that the RFC does not define is kept as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

/// Defines statuses by names and numbers of the RFC, without `NFS3` and `NFS3ERR_`.
macro_rules! statuses {
    ($($(#[$meta:meta])* $name:ident = $value:expr, $text:expr;)*) => {
        impl Status {
            $($(#[$meta])* #[doc = concat!("The ", $text, ".")]
            pub const $name: Status = Status($value);)*

            /// All statuses that the RFC defines.
            pub const ALL: &'static [Status] = &[$(Status::$name,)*];

            /// Returns the status's name in the RFC, without the prefix; `None` for a number that
            /// the RFC does not define.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            const fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    OK = 0, "procedure did what it should";
    PERM = 1, "caller is not the owner";
    NOENT = 2, "name is not there";
    IO = 5, "file system had an error of input or output";
    NXIO = 6, "device is not there";
    ACCES = 13, "caller may not";
    EXIST = 17, "name is there already";
    XDEV = 18, "link would lead to another file system";
    NODEV = 19, "device is not there or cannot do it";
    NOTDIR = 20, "object is no directory";
    ISDIR = 21, "object is a directory";
    INVAL = 22, "argument is invalid";
    FBIG = 27, "file would be too long";
    NOSPC = 28, "file system is full";
    ROFS = 30, "export is read-only";
    MLINK = 31, "object has too many links";
    NAMETOOLONG = 63, "name is too long";
    NOTEMPTY = 66, "directory is not empty";
    DQUOT = 69, "quota is used up";
    STALE = 70, "object of the handle is not there any more";
    REMOTE = 71, "object is on another server";
    BADHANDLE = 10001, "handle is none of this server";
    NOT_SYNC = 10002, "object has been changed since";
    BAD_COOKIE = 10003, "cookie is stale";
    NOTSUPP = 10004, "operation is not supported";
    TOOSMALL = 10005, "buffer is too small";
    SERVERFAULT = 10006, "server failed";
    BADTYPE = 10007, "type cannot be made";
    JUKEBOX = 10008, "server needs more time; try again";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "the {text}"),
            None => write!(f, "status {}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Status({})", self.0),
        }
    }
}

impl Xdr<'_> for Status {
    fn get(r: &mut Reader<'_>) -> Result<Status, xdr::Error> {
        r.u32().map(Status)
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
}

impl From<Errno> for Status {
    /// Converts the error of a system call.
    fn from(errno: Errno) -> Status {
        match errno {
            Errno::PERM => Status::PERM,
            Errno::NOENT => Status::NOENT,
            Errno::NXIO => Status::NXIO,
            Errno::ACCESS => Status::ACCES,
            Errno::EXIST => Status::EXIST,
            Errno::XDEV => Status::XDEV,
            Errno::NODEV => Status::NODEV,
            Errno::NOTDIR => Status::NOTDIR,
            Errno::ISDIR => Status::ISDIR,
            // ELOOP comes from a symbolic link where none is followed.
            Errno::INVAL | Errno::LOOP => Status::INVAL,
            Errno::FBIG | Errno::OVERFLOW => Status::FBIG,
            Errno::NOSPC => Status::NOSPC,
            Errno::ROFS => Status::ROFS,
            Errno::MLINK => Status::MLINK,
            Errno::NAMETOOLONG => Status::NAMETOOLONG,
            Errno::NOTEMPTY => Status::NOTEMPTY,
            Errno::DQUOT => Status::DQUOT,
            Errno::STALE => Status::STALE,
            Errno::OPNOTSUPP | Errno::NOSYS => Status::NOTSUPP,
            // The system refuses writing a program that runs. The program can run for years, so
            // JUKEBOX, after which a client asks again and again, would hang its caller for as
            // long.
            Errno::TXTBSY => Status::ACCES,
            // The server is short of descriptors or memory, which is temporary.
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => Status::JUKEBOX,
            _ => Status::IO,
        }
    }
}
