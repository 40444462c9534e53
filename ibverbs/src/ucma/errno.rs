//! Error numbers, as the kernel's rdma_cm gives them.

use std::fmt;
use std::io;

/// An error number of the system: positive, as in `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The descriptor is in non-blocking mode and nothing is there, or the RNIC is busy.
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    /// An address of the program that cannot be read or written.
    pub const FAULT: Errno = Errno(libc::EFAULT);
    /// A field that makes no sense, or an id in a state that does not allow the command.
    pub const INVAL: Errno = Errno(libc::EINVAL);
    /// No such id.
    pub const NOENT: Errno = Errno(libc::ENOENT);
    /// No RNIC, or not its address.
    pub const NODEV: Errno = Errno(libc::ENODEV);
    /// No room for the answer.
    pub const NOSPC: Errno = Errno(libc::ENOSPC);
    /// No such command or option.
    pub const NOSYS: Errno = Errno(libc::ENOSYS);
    /// No memory, or as many objects as there may be.
    pub const NOMEM: Errno = Errno(libc::ENOMEM);
    /// Another id has this address and port.
    pub const ADDRINUSE: Errno = Errno(libc::EADDRINUSE);
    /// The address is not the RNIC's, or its port is taken for all addresses.
    pub const ADDRNOTAVAIL: Errno = Errno(libc::EADDRNOTAVAIL);
    /// No such address family here.
    pub const AFNOSUPPORT: Errno = Errno(libc::EAFNOSUPPORT);
    /// The peer refused the TCP connection.
    pub const CONNREFUSED: Errno = Errno(libc::ECONNREFUSED);
    /// The peer rejected or reset the connection.
    pub const CONNRESET: Errno = Errno(libc::ECONNRESET);
    /// This side gave the connection up.
    pub const CONNABORTED: Errno = Errno(libc::ECONNABORTED);
    /// Nothing came in time.
    pub const TIMEDOUT: Errno = Errno(libc::ETIMEDOUT);
    /// The next hop does not answer.
    pub const HOSTUNREACH: Errno = Errno(libc::EHOSTUNREACH);
    /// No route leads there.
    pub const NETUNREACH: Errno = Errno(libc::ENETUNREACH);
    /// The peer breaks the rules of the start-up.
    pub const PROTO: Errno = Errno(libc::EPROTO);

    /// The error of the last system call.
    pub fn last() -> Errno {
        Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {})", self.0, io::Error::from_raw_os_error(self.0))
    }
}
