//! The packet formats: one file each.
//!
//! Ethernet, IP and TCP lie on the hot path: the parsers read them at fixed offsets from one
//! contiguous run of header bytes and convert them into a checked value once. ARP and ICMP are
//! rare, and smoltcp's `wire` types serve them. The parsers keep no state, and no input makes them
//! panic.

pub mod arp;
pub mod ethernet;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod mld;
pub mod tcp;
pub mod udp;
pub mod vlan;

pub use ethernet::{EtherType, EthernetHeader, MacAddr};
pub use ipv4::Ipv4Header;
pub use ipv6::Ipv6Header;
pub use tcp::TcpHeader;
pub use udp::UdpHeader;
pub use vlan::{Priority, Tag, Vid};

/// Why bytes are not the header that the parser expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The frame ends before the header, or before the length that the header gives.
    #[error("shorter than its headers say")]
    Truncated,
    /// The header continues beyond the first contiguous piece of the frame.
    #[error("header not contiguous")]
    Split,
    /// A version or length field has a value that no sender may use.
    #[error("impossible header field")]
    Header,
    /// An option has a length below two or continues beyond the header.
    #[error("impossible option length")]
    Options,
}

pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
