//! The interfaces of the kernel: programs name a link by the number of its interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

use libc::c_int;

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// An IP address.
    Ip(IpAddr),
    /// The Ethernet address.
    Mac([u8; 6]),
}

/// Returns the addresses of all interfaces, each with the number of its interface. The list is empty
/// if the system does not give them.
pub(crate) fn all() -> Vec<(u32, At)> {
    let mut list: *mut libc::ifaddrs = null_mut();
    // SAFETY: the system writes a list, or fails and writes none.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: each entry is valid, and leads to the next, until the list is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: the pointer is null or leads to an address.
        let family = unsafe { entry.ifa_addr.as_ref() }.map(|to| c_int::from(to.sa_family));
        let at = match family {
            Some(libc::AF_INET) => {
                // SAFETY: an address of this family is such a structure.
                let it = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                At::Ip(Ipv4Addr::from(u32::from_be(it.sin_addr.s_addr)).into())
            }
            Some(libc::AF_INET6) => {
                // SAFETY: an address of this family is such a structure.
                let it = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                At::Ip(Ipv6Addr::from(it.sin6_addr.s6_addr).into())
            }
            Some(libc::AF_PACKET) => {
                // SAFETY: an address of this family is such a structure.
                let it = unsafe { entry.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned() };
                let [mac @ .., _, _] = it.sll_addr;
                if it.sll_halen != 6 {
                    continue;
                }
                At::Mac(mac)
            }
            _ => continue,
        };
        // SAFETY: the entry's name is a string.
        let index = unsafe { libc::if_nametoindex(entry.ifa_name) };
        if index != 0 {
            found.push((index, at));
        }
    }
    // SAFETY: the list comes from the system, and no reference to it is left.
    unsafe { libc::freeifaddrs(list) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_interfaces_contain_the_loopback_interface() {
        let localhost = At::Ip(Ipv4Addr::LOCALHOST.into());
        let lo = all().into_iter().find(|(_, at)| *at == localhost);
        assert_eq!(lo.map(|(index, _)| index), Some(1));
    }
}
