//! Socket addresses as the commands carry them, and their translation to addresses of the RNIC.
//!
//! The RNIC has only IPv4. A program written for IPv6 sockets still works where its address means
//! an IPv4 address: the wildcard, the loopback address and IPv4-mapped addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

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

/// Returns the RNIC's form of a program's address; `None` for an address that exists only in IPv6.
pub fn on_wire(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Some(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Some(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) => ip.to_ipv4_mapped(),
    }
}

/// Returns an address of the RNIC in the family of `like`.
pub fn in_family(ip: Ipv4Addr, like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => ip.into(),
        SocketAddr::V6(_) => ip.to_ipv6_mapped().into(),
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
    fn test_ipv6_address_maps_to_ipv4_when_possible() {
        let wire = |text: &str| on_wire(text.parse().unwrap());
        assert_eq!(wire("::"), Some(Ipv4Addr::UNSPECIFIED));
        assert_eq!(wire("::1"), Some(Ipv4Addr::LOCALHOST));
        assert_eq!(wire("::ffff:10.1.2.3"), Some(Ipv4Addr::new(10, 1, 2, 3)));
        assert_eq!(wire("2001:db8::1"), None);
    }
}
