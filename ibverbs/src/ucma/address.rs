//! Socket addresses as the commands carry them, and their translation to addresses of the RNIC.
//!
//! An IPv4-mapped address means IPv4, as it does for sockets. Linux's rdma_cm refuses such an
//! address; programs of rsockets that were written for IPv6 sockets use it, and get it as the
//! address of an IPv4 peer.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::errno::Errno;

/// Address families, as numbers of the C ABI.
pub mod family {
    /// `AF_INET`.
    pub const INET: u16 = 2;
    /// `AF_INET6`.
    pub const INET6: u16 = 10;
    /// `AF_IB`.
    pub const IB: u16 = 27;
}

/// Bytes of `struct sockaddr_in6`; the older commands use a field of this size for either family.
pub const IN6_LEN: usize = 28;
/// Bytes of `struct sockaddr_storage`.
pub const STORAGE_LEN: usize = 128;
const IN_LEN: usize = 16;
const IB_LEN: usize = 48;

/// An address that a command carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// No address: the family is 0.
    None,
    /// IPv4 or IPv6.
    Ip(SocketAddr),
    /// `AF_IB`: InfiniBand's own, which an iWARP device does not have.
    Ib,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes.get(at + i).copied().unwrap_or(0))
}

impl Address {
    /// Reads an address from a field of [`IN6_LEN`] or [`STORAGE_LEN`] bytes.
    ///
    /// # Errors
    /// Returns [`Errno::INVAL`] for a family that is unknown or does not fit the field.
    pub fn read(field: &[u8]) -> Result<Address, Errno> {
        let port = u16::from_be_bytes(array(field, 2));
        match u16::from_ne_bytes(array(field, 0)) {
            0 => Ok(Address::None),
            family::INET => Ok(Address::Ip((array::<4>(field, 4), port).into())),
            family::INET6 => {
                let ip = Ipv6Addr::from(array::<16>(field, 8));
                let (flow, scope) = (array(field, 4), array(field, 24));
                let (flow, scope) = (u32::from_be_bytes(flow), u32::from_ne_bytes(scope));
                Ok(Address::Ip(SocketAddrV6::new(ip, port, flow, scope).into()))
            }
            family::IB if field.len() >= IB_LEN => Ok(Address::Ib),
            _ => Err(Errno::INVAL),
        }
    }

    /// Reads an address whose size the command states beside it.
    ///
    /// # Errors
    /// Returns [`Errno::INVAL`] as [`read`](Self::read) does, and for a size that is not the
    /// family's.
    pub fn read_sized(field: &[u8], size: u16) -> Result<Address, Errno> {
        let address = Address::read(field)?;
        if usize::from(size) == address.len() { Ok(address) } else { Err(Errno::INVAL) }
    }

    fn len(self) -> usize {
        match self {
            Address::None => 0,
            Address::Ip(SocketAddr::V4(_)) => IN_LEN,
            Address::Ip(SocketAddr::V6(_)) => IN6_LEN,
            Address::Ib => IB_LEN,
        }
    }
}

/// Writes an address into a zeroed field of [`IN6_LEN`] bytes or more, and returns its size.
pub fn write(field: &mut [u8], addr: SocketAddr) -> u16 {
    let mut put = |at: usize, bytes: &[u8]| field[at..at + bytes.len()].copy_from_slice(bytes);
    put(2, &addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(v4) => {
            put(0, &family::INET.to_ne_bytes());
            put(4, &v4.ip().octets());
            16
        }
        SocketAddr::V6(v6) => {
            put(0, &family::INET6.to_ne_bytes());
            put(4, &v6.flowinfo().to_be_bytes());
            put(8, &v6.ip().octets());
            put(24, &v6.scope_id().to_ne_bytes());
            28
        }
    }
}

/// Returns the GID by which an iWARP program knows an address: its IPv4-mapped form.
pub fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Returns true if the address means a host only together with a link, which its scope names.
pub fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns the RNIC's form of a program's address: IPv4 for an IPv4-mapped address. The scope stays
/// with a link-local address and means nothing elsewhere, and the RNIC chooses flow labels itself.
pub fn on_wire(addr: SocketAddr) -> SocketAddr {
    let scope = match addr {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    };
    in_scope(SocketAddr::new(addr.ip().to_canonical(), addr.port()), scope)
}

/// Returns the scope of an address, 0 if it has none.
pub fn scope(addr: SocketAddr) -> u32 {
    if let SocketAddr::V6(v6) = addr { v6.scope_id() } else { 0 }
}

/// Returns the same address with this scope, if it is an IPv6 address.
pub fn in_scope(mut addr: SocketAddr, scope: u32) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut addr {
        v6.set_scope_id(scope);
    }
    addr
}

/// Returns an address of the RNIC in the family of `like`.
pub fn in_family(addr: SocketAddr, like: SocketAddr) -> SocketAddr {
    match (addr, like) {
        (SocketAddr::V4(v4), SocketAddr::V6(_)) => {
            SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port())
        }
        _ => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_address_survives_writing_and_reading() {
        for addr in ["10.0.0.1:7174", "0.0.0.0:0", "[::1]:80", "[fe80::1%3]:65535"] {
            let addr: SocketAddr = addr.parse().unwrap();
            let mut field = [0; STORAGE_LEN];
            let size = write(&mut field, addr);
            assert_eq!(Address::read(&field), Ok(Address::Ip(addr)));
            assert_eq!(Address::read(&field[..IN6_LEN]), Ok(Address::Ip(addr)));
            assert_eq!(Address::read_sized(&field, size), Ok(Address::Ip(addr)));
            assert_eq!(Address::read_sized(&field, size + 1), Err(Errno::INVAL));
        }
    }

    #[test]
    fn test_infiniband_address_fits_only_the_long_field() {
        let mut field = [0; STORAGE_LEN];
        field[..2].copy_from_slice(&family::IB.to_ne_bytes());
        assert_eq!(Address::read_sized(&field, 48), Ok(Address::Ib));
        assert_eq!(Address::read(&field[..IN6_LEN]), Err(Errno::INVAL));
        field[0] = 99;
        assert_eq!(Address::read(&field), Err(Errno::INVAL));
        assert_eq!(Address::read(&[0; IN6_LEN]), Ok(Address::None));
    }

    #[test]
    fn test_mapped_address_means_ipv4_and_scope_stays_with_a_link() {
        let wire = |text: &str| on_wire(text.parse().unwrap()).to_string();
        for (addr, on_wire) in [
            ("10.1.2.3:5", "10.1.2.3:5"),
            ("[::ffff:10.1.2.3]:5", "10.1.2.3:5"),
            ("[::ffff:10.1.2.3%3]:5", "10.1.2.3:5"),
            ("[::ffff:0.0.0.0]:5", "0.0.0.0:5"),
            ("[::10.1.2.3]:5", "[::a01:203]:5"),
            ("[::]:5", "[::]:5"),
            ("[::1]:5", "[::1]:5"),
            ("[fd00::1%4]:5", "[fd00::1]:5"),
            ("[fe80::1%4]:5", "[fe80::1%4]:5"),
        ] {
            assert_eq!(wire(addr), on_wire, "{addr}");
        }
        let flow = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 0xfffff, 0).into();
        assert_eq!(on_wire(flow), "[::1]:5".parse().unwrap());
    }

    #[test]
    fn test_address_takes_the_family_of_its_id() {
        let family = |addr: &str, like: &str| {
            in_family(addr.parse().unwrap(), like.parse().unwrap()).to_string()
        };
        assert_eq!(family("10.0.0.1:5", "10.0.0.2:6"), "10.0.0.1:5");
        assert_eq!(family("10.0.0.1:5", "[::]:6"), "[::ffff:10.0.0.1]:5");
        assert_eq!(family("[fd00::1]:5", "[::]:6"), "[fd00::1]:5");
    }
}
