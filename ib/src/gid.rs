//! Addresses of ports.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address of a port, 128 bits. Over RoCEv2 a GID is an IP address: an IPv6 address as it is,
/// an IPv4 address in its IPv6-mapped form (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl From<IpAddr> for Gid {
    fn from(addr: IpAddr) -> Gid {
        match addr {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(addr: Ipv4Addr) -> Gid {
        IpAddr::V4(addr).into()
    }
}

impl Gid {
    /// Returns the IP address; an IPv4 address when the GID is a mapped one.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_gid_converts_back_to_address_of_either_ip_version() {
        let v4: IpAddr = "10.1.2.3".parse().unwrap();
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3];
        assert_eq!(Gid::from(v4), Gid(mapped));
        for text in ["10.1.2.3", "fe80::1", "::1", "::10.1.2.3"] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(Gid::from(addr).ip(), addr, "{text}");
        }
    }
}
