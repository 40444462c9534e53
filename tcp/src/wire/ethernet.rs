//! Ethernet II headers, without the [tag](super::vlan) of a VLAN.

use core::fmt;
use core::net::Ipv6Addr;

use super::{Malformed, be16};

mod field {
    use core::ops::Range;
    pub(super) const DST: Range<usize> = 0..6;
    pub(super) const SRC: Range<usize> = 6..12;
    pub(super) const TYPE: Range<usize> = 12..14;
}

/// Bytes of an Ethernet header.
pub const HEADER_LEN: usize = 14;

/// A 48-bit hardware address.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All stations of the link.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Returns the address of the stations that hear an IPv6 multicast group (RFC 2464 section 7).
    pub fn of_group(group: Ipv6Addr) -> MacAddr {
        let [.., a, b, c, d] = group.octets();
        MacAddr([0x33, 0x33, a, b, c, d])
    }

    /// Returns true if this address names a group (multicast or broadcast).
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns true if a single station can have this address.
    pub fn is_station(self) -> bool {
        !self.is_group() && self.0 != [0; 6]
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The type field of an Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (0x0800).
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP (0x0806).
    pub const ARP: EtherType = EtherType(0x0806);
    /// A VLAN's tag (0x8100): another type follows it.
    pub const VLAN: EtherType = EtherType(0x8100);
    /// The tag of a provider's bridge (0x88a8).
    pub const SERVICE: EtherType = EtherType(0x88a8);
    /// IPv6 (0x86dd).
    pub const IPV6: EtherType = EtherType(0x86dd);
}

/// The header of an Ethernet II frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Station address of the receiver.
    pub dst: MacAddr,
    /// Station address of the sender.
    pub src: MacAddr,
    /// Type of the packet after the header.
    pub ethertype: EtherType,
}

impl EthernetHeader {
    /// Reads the header that `bytes` starts with.
    ///
    /// # Errors
    /// Returns [`Malformed::Truncated`] when there are fewer than [`HEADER_LEN`] bytes.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<EthernetHeader, Malformed> {
        let h: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
        Ok(EthernetHeader {
            dst: MacAddr([h[0], h[1], h[2], h[3], h[4], h[5]]),
            src: MacAddr([h[6], h[7], h[8], h[9], h[10], h[11]]),
            ethertype: EtherType(be16(h, field::TYPE.start)),
        })
    }

    /// Writes the header to `out`.
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        out[field::DST].copy_from_slice(&self.dst.0);
        out[field::SRC].copy_from_slice(&self.src.0);
        out[field::TYPE].copy_from_slice(&self.ethertype.0.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::wire::EthernetFrame;

    proptest! {
        #[test]
        fn test_roundtrip_and_smoltcp_agrees(dst: [u8; 6], src: [u8; 6], ty: u16) {
            let h = EthernetHeader {
                dst: MacAddr(dst), src: MacAddr(src), ethertype: EtherType(ty),
            };
            let mut b = [0; HEADER_LEN];
            h.emit(&mut b);
            prop_assert_eq!(EthernetHeader::parse(&b), Ok(h));
            let f = EthernetFrame::new_checked(&b[..]).unwrap();
            prop_assert_eq!(f.dst_addr().0, dst);
            prop_assert_eq!(f.src_addr().0, src);
            prop_assert_eq!(u16::from(f.ethertype()), ty);
        }
    }

    #[test]
    fn test_ethernet_header_of_13_bytes_is_refused() {
        assert_eq!(EthernetHeader::parse(&[0; 13]), Err(Malformed::Truncated));
        assert!(EthernetHeader::parse(&[0; 14]).is_ok());
    }

    #[test]
    fn test_station_addresses() {
        assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_station());
        assert!(!MacAddr::BROADCAST.is_station());
        assert!(!MacAddr([0; 6]).is_station());
        assert_eq!(MacAddr([2, 0, 0, 0, 0, 0xab]).to_string(), "02:00:00:00:00:ab");
    }
}
