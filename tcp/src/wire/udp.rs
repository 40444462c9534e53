//! UDP headers (RFC 768).

use core::net::IpAddr;

use heddle_base::Sum;

use super::{Malformed, be16, ipv4, ipv6};

mod field {
    use core::ops::Range;
    pub(super) const SRC_PORT: Range<usize> = 0..2;
    pub(super) const DST_PORT: Range<usize> = 2..4;
    pub(super) const LEN: Range<usize> = 4..6;
    pub(super) const CHECKSUM: Range<usize> = 6..8;
}

/// Bytes of a header.
pub const HEADER_LEN: usize = 8;

/// A checked UDP header. [`checksum_valid`] verifies its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// Source port; 0 when the sender wants no answer.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub len: usize,
}

impl UdpHeader {
    /// Reads the header that `head` starts with. `available` is the number of bytes that the IP
    /// datagram has from there on, in all pieces of its frame. Bytes of the datagram beyond the
    /// header's own length do not belong to UDP.
    ///
    /// # Errors
    /// Fails when the datagram is shorter than a header or than the header says, or when the header
    /// lies in more than one piece of the frame.
    pub fn parse(head: &[u8], available: usize) -> Result<UdpHeader, Malformed> {
        let Some(h) = head.first_chunk::<HEADER_LEN>() else {
            return Err(ipv4::missing(HEADER_LEN, available));
        };
        let len = usize::from(be16(h, field::LEN.start));
        if len < HEADER_LEN {
            return Err(Malformed::Header);
        }
        if len > available {
            return Err(Malformed::Truncated);
        }
        let (src_port, dst_port) = (be16(h, field::SRC_PORT.start), be16(h, field::DST_PORT.start));
        Ok(UdpHeader { src_port, dst_port, len })
    }

    /// Writes the header with checksum 0, which means that there is no checksum.
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        out[field::SRC_PORT].copy_from_slice(&self.src_port.to_be_bytes());
        out[field::DST_PORT].copy_from_slice(&self.dst_port.to_be_bytes());
        let len = u16::try_from(self.len).unwrap_or(u16::MAX);
        out[field::LEN].copy_from_slice(&len.to_be_bytes());
        out[field::CHECKSUM].fill(0);
    }
}

/// Returns true if `datagram`, header and payload and nothing else, has a right checksum or none.
///
/// A datagram over IPv6 without a checksum is right, too: RoCEv2 sends such datagrams, whose
/// invariant CRC covers both ports (RFC 6935 section 5, RFC 6936 section 5).
pub fn checksum_valid(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> bool {
    let Ok(len) = u16::try_from(datagram.len()) else { return false };
    if datagram.get(field::CHECKSUM).is_none_or(|c| c == [0, 0]) {
        return datagram.len() >= HEADER_LEN;
    }
    let pseudo = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            ipv4::pseudo_header_of(ipv4::PROTO_UDP, src, dst, len)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            ipv6::pseudo_header(ipv6::UDP, src, dst, u32::from(len))
        }
        _ => return false,
    };
    pseudo.plus(Sum::of(datagram)).is_valid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(152, 1, 51, 27));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(152, 14, 94, 75));
    const A6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
    const B6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2));

    /// The sum by hand: 0x9801 + 0x331b + 0x980e + 0x5e4b + 17 + 10 of the pseudo-header, 0xa08f +
    /// 0x2694 + 10 + 0x6262 of the datagram, is 0x2eb3c; folded and complemented, 0x14c1.
    #[test]
    fn test_checksum_of_a_datagram_by_hand() {
        let mut d = *b"\xa0\x8f\x26\x94\x00\x0a\x00\x00bb";
        let words = [0x9801, 0x331b, 0x980e, 0x5e4b, 17, 10, 0xa08f, 0x2694, 10, 0x6262];
        let mut sum: u32 = words.iter().sum();
        sum = (sum & 0xffff) + (sum >> 16);
        let due = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        assert!(checksum_valid(A, B, &d), "none at all");
        d[6..8].copy_from_slice(&due.to_be_bytes());
        assert!(checksum_valid(A, B, &d));
        assert!(!checksum_valid(A, Ipv4Addr::new(152, 14, 94, 76).into(), &d));
        d[9] ^= 1;
        assert!(!checksum_valid(A, B, &d));
    }

    /// The sum by hand: 2 * 0xfe80 + 1 + 2 + 17 + 10 of the pseudo-header, and the datagram's as
    /// above, is 0x326ad; folded and complemented, 0xd94f.
    #[test]
    fn test_checksum_over_ipv6_by_hand() {
        let mut d = *b"\xa0\x8f\x26\x94\x00\x0a\x00\x00bb";
        assert!(checksum_valid(A6, B6, &d), "none at all");
        d[6..8].copy_from_slice(&0xd94f_u16.to_be_bytes());
        assert!(checksum_valid(A6, B6, &d));
        assert!(!checksum_valid(A6, A6, &d) && !checksum_valid(A, B6, &d));
    }

    #[test]
    fn test_lengths_at_their_bounds() {
        let header = |len: u16| {
            let mut h = [0; HEADER_LEN];
            UdpHeader { src_port: 1, dst_port: 2, len: usize::from(len) }.emit(&mut h);
            h
        };
        assert_eq!(UdpHeader::parse(&header(7), 8), Err(Malformed::Header));
        assert!(UdpHeader::parse(&header(8), 8).is_ok());
        assert_eq!(UdpHeader::parse(&header(9), 8), Err(Malformed::Truncated));
        assert!(UdpHeader::parse(&header(9), 9).is_ok());
        assert_eq!(UdpHeader::parse(&header(8)[..7], 7), Err(Malformed::Truncated));
        assert_eq!(UdpHeader::parse(&header(8)[..7], 8), Err(Malformed::Split));
    }

    proptest! {
        #[test]
        fn test_any_bytes_are_a_header_or_an_error(bytes: Vec<u8>) {
            if let Ok(h) = UdpHeader::parse(&bytes, bytes.len()) {
                let mut out = [0; HEADER_LEN];
                h.emit(&mut out);
                prop_assert_eq!(&out[..6], &bytes[..6]);
                prop_assert!(h.len <= bytes.len());
                let _ = checksum_valid(A, B, &bytes[..h.len]);
                let _ = checksum_valid(A6, B6, &bytes[..h.len]);
            }
        }
    }
}
