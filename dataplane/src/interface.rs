//! Network interfaces of the host, as the kernel has them in the network namespace of the calling
//! thread. `/sys` shows the interfaces of the namespace in which it was mounted, so this module asks
//! the kernel by ioctl.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// An interface at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// Whether the interface is up, by an administrator's word.
    pub up: bool,
    /// Whether the interface has a carrier: a cable, or a peer that is up.
    pub running: bool,
}

impl Interface {
    /// Asks the kernel about an interface; returns `None` if the namespace has no such interface.
    ///
    /// # Errors
    /// The system's error.
    pub fn named(name: &str) -> io::Result<Option<Interface>> {
        // A name that is too long, or has a NUL, is the name of no interface.
        let Ok(name) = CString::new(name) else { return Ok(None) };
        if name.as_bytes_with_nul().len() > libc::IF_NAMESIZE {
            return Ok(None);
        }
        match Interface::read(&name) {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Asks the kernel about the interface of a number; returns `None` for 0, which is no interface,
    /// and when the kernel does not answer.
    pub(crate) fn numbered(if_index: u32) -> Option<Interface> {
        if if_index == 0 {
            return None;
        }
        let mut name = [0; libc::IF_NAMESIZE];
        // SAFETY: `name` has room for IF_NAMESIZE characters, NUL included.
        let p = unsafe { libc::if_indextoname(if_index, name.as_mut_ptr()) };
        // SAFETY: the callee has written a NUL-terminated name into `name`, which still lives.
        let name = (!p.is_null()).then(|| unsafe { CStr::from_ptr(name.as_ptr()) }.to_owned())?;
        Interface::read(&name).ok()
    }

    /// Returns true if the namespace has no interface of that number. The kernel says so itself: a
    /// process without a descriptor left to ask with knows nothing of the interface.
    pub(crate) fn is_gone(if_index: u32) -> bool {
        let mut name = [0; libc::IF_NAMESIZE];
        // SAFETY: `name` has room for IF_NAMESIZE characters, NUL included.
        let p = unsafe { libc::if_indextoname(if_index, name.as_mut_ptr()) };
        let missing = [Some(libc::ENXIO), Some(libc::ENODEV)];
        p.is_null() && missing.contains(&io::Error::last_os_error().raw_os_error())
    }

    fn read(name: &CStr) -> io::Result<Interface> {
        // SAFETY: no memory is passed; the result is checked.
        let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, which has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: a structure of integers and of a union of them, for which all zeros are values.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes_with_nul()) {
            *to = libc::c_char::from_ne_bytes([*from]);
        }
        let mut ask = |what| {
            // SAFETY: an open socket and a structure of the type that both requests are for; the
            // name in it is NUL-terminated, because callers pass names of IF_NAMESIZE bytes at most.
            match unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut request) } {
                0 => Ok(request),
                _ => Err(io::Error::last_os_error()),
            }
        };
        let flags = ask(libc::SIOCGIFFLAGS)?;
        let mtu = ask(libc::SIOCGIFMTU)?;
        // SAFETY: the callee has filled the flags.
        let flags = libc::c_int::from(unsafe { flags.ifr_ifru.ifru_flags });
        // SAFETY: the callee has filled the MTU.
        let mtu = unsafe { mtu.ifr_ifru.ifru_mtu };
        Ok(Interface {
            mtu: u32::try_from(mtu).unwrap_or(0),
            up: flags & libc::IFF_UP != 0,
            running: flags & libc::IFF_RUNNING != 0,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_interface_reports_mtu_and_absence() {
        let lo = Interface::named("lo").unwrap().expect("every namespace has lo");
        assert!(lo.mtu >= 1500, "{lo:?}");
        for absent in ["nosuchiface0", "", "a name longer than any interface has", "l\0o"] {
            assert_eq!(Interface::named(absent).unwrap(), None, "{absent:?}");
        }
        assert_eq!(Interface::numbered(0), None);
        assert_eq!(Interface::numbered(u32::MAX), None);
    }
}
