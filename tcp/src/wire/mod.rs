//! The packet formats: one file each.
//!
//! Ethernet, IPv4 and TCP lie on the hot path: they are read at fixed offsets from one contiguous
//! run of header bytes and turned into a checked value once. ARP and ICMP are rare, and smoltcp's
//! `wire` types serve them. Nothing here keeps state, and no input makes it panic.

pub mod arp;
pub mod ethernet;
pub mod icmpv4;
pub mod ipv4;
pub mod tcp;

pub use ethernet::{EtherType, EthernetHeader, MacAddr};
pub use ipv4::Ipv4Header;
pub use tcp::TcpHeader;

/// Why bytes are not the header they were taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The frame ends before the header, or before the length the header gives.
    #[error("shorter than its headers say")]
    Truncated,
    /// The header runs on beyond the first contiguous piece of the frame.
    #[error("header not contiguous")]
    Split,
    /// A version or length field no sender may put there.
    #[error("impossible header field")]
    Header,
    /// An option whose length is below two or runs beyond the header.
    #[error("impossible option length")]
    Options,
}

pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
