//! Error numbers, as the kernel's rdma_cm gives them.

use std::fmt;
use std::io;

/// An error number of the system: positive, as in `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The descriptor is in non-blocking mode and has no event, or the RNIC is busy.
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    /// The program's address is not readable or writable.
    pub const FAULT: Errno = Errno(libc::EFAULT);
    /// A field makes no sense, or the state of the id does not allow the command.
    pub const INVAL: Errno = Errno(libc::EINVAL);
    /// The id does not exist.
    pub const NOENT: Errno = Errno(libc::ENOENT);
    /// There is no RNIC, or the address is not its own.
    pub const NODEV: Errno = Errno(libc::ENODEV);
    /// The program's room is too small for the answer.
    pub const NOSPC: Errno = Errno(libc::ENOSPC);
    /// The command or option does not exist.
    pub const NOSYS: Errno = Errno(libc::ENOSYS);
    /// Memory is out, or the limit on objects is reached.
    pub const NOMEM: Errno = Errno(libc::ENOMEM);
    /// Another id has this address and port.
    pub const ADDRINUSE: Errno = Errno(libc::EADDRINUSE);
    /// The address is not the RNIC's, or another socket has its port on all addresses.
    pub const ADDRNOTAVAIL: Errno = Errno(libc::EADDRNOTAVAIL);
    /// The address family is not supported.
    pub const AFNOSUPPORT: Errno = Errno(libc::EAFNOSUPPORT);
    /// The peer refused the TCP connection.
    pub const CONNREFUSED: Errno = Errno(libc::ECONNREFUSED);
    /// The peer rejected or reset the connection.
    pub const CONNRESET: Errno = Errno(libc::ECONNRESET);
    /// This side gave the connection up.
    pub const CONNABORTED: Errno = Errno(libc::ECONNABORTED);
    /// No answer arrived in time.
    pub const TIMEDOUT: Errno = Errno(libc::ETIMEDOUT);
    /// The next hop does not answer.
    pub const HOSTUNREACH: Errno = Errno(libc::EHOSTUNREACH);
    /// No route leads to the address.
    pub const NETUNREACH: Errno = Errno(libc::ENETUNREACH);
    /// The peer breaks the rules of the start-up.
    pub const PROTO: Errno = Errno(libc::EPROTO);

    /// Returns the error of the last system call.
    pub fn last() -> Errno {
        Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {})", self.0, io::Error::from_raw_os_error(self.0))
    }
}
