//! ICMP errors for packets that are longer than the link's MTU.
//!
//! A real router has an address of its own. The link has none, so the error comes from the address
//! to which the packet went: hosts check the packet that the error quotes, and not its source.

use heddle_base::Sum;

use crate::frame::{ETHERNET, IPV4, IPV4_LEN, IPV6, IPV6_LEN, kind};

/// Bytes of the packet that an error for IPv4 quotes: its header without options and 8 more suffice
/// (RFC 792), and 548 are the most that fit the smallest IPv4 packet a host takes (RFC 1812 section
/// 4.3.2.3).
const QUOTED_V4: usize = 548;
/// Bytes that an error for IPv6 quotes: as many as fit the minimum MTU (RFC 4443 section 2.4 c).
const QUOTED_V6: usize = 1280 - IPV6_LEN - 8;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const ICMPV6: u8 = 58;

/// Returns the frame that reports `mtu` to the sender of `frame`; `None` if the packet may not be
/// answered: broadcasts, fragments, and ICMP itself.
pub(crate) fn too_big(frame: &[u8], mtu: u32) -> Option<Vec<u8>> {
    // The lowest bit of the first byte marks a group of stations.
    if frame.first()? & 1 != 0 {
        return None;
    }
    match kind(frame) {
        IPV4 => fragmentation_needed(frame, mtu),
        IPV6 => packet_too_big(frame, mtu),
        _ => None,
    }
}

fn ethernet(frame: &[u8]) -> Vec<u8> {
    [&frame[6..12], &frame[..6], &frame[12..ETHERNET]].concat()
}

/// RFC 792, type 3, code 4, with the MTU of RFC 1191.
fn fragmentation_needed(frame: &[u8], mtu: u32) -> Option<Vec<u8>> {
    let ip = &frame[ETHERNET..];
    let offset = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff;
    let may_fragment = ip[6] & 0x40 == 0;
    // The link fragments nothing, and an error would not be true of a packet that may be in pieces.
    if may_fragment || offset != 0 || ip[9] == ICMP {
        return None;
    }
    let quoted = &ip[..ip.len().min(QUOTED_V4)];
    let mut icmp = vec![3, 4, 0, 0, 0, 0];
    icmp.extend(u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes());
    icmp.extend(quoted);
    let sum = Sum::of(&icmp).complement();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());

    let len = u16::try_from(IPV4_LEN + icmp.len()).ok()?;
    let mut header = vec![0x45, 0];
    header.extend(len.to_be_bytes());
    header.extend([0, 0, 0, 0, 64, ICMP, 0, 0]);
    header.extend(&ip[16..20]);
    header.extend(&ip[12..16]);
    let sum = Sum::of(&header).complement();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    Some([ethernet(frame), header, icmp].concat())
}

/// RFC 4443 section 3.2.
fn packet_too_big(frame: &[u8], mtu: u32) -> Option<Vec<u8>> {
    let ip = &frame[ETHERNET..];
    // Other next headers than TCP may hide an ICMPv6 error, which no error may answer.
    if ip[6] != TCP {
        return None;
    }
    let quoted = &ip[..ip.len().min(QUOTED_V6)];
    let mut icmp = vec![2, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(quoted);

    let len = u16::try_from(icmp.len()).ok()?;
    let mut header = vec![0x60, 0, 0, 0];
    header.extend(len.to_be_bytes());
    header.extend([ICMPV6, 64]);
    header.extend(&ip[24..40]);
    header.extend(&ip[8..24]);
    let pseudo = [&header[8..40], &u32::from(len).to_be_bytes(), &[0, 0, 0, ICMPV6]].concat();
    let sum = Sum::of(&pseudo).plus(Sum::of(&icmp)).complement();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    Some([ethernet(frame), header, icmp].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{ipv4, ipv6};

    #[test]
    fn test_answer_to_ipv4_reports_the_mtu_and_quotes_the_packet() {
        let frame = ipv4(1500, 0);
        let answer = too_big(&frame, 1400).unwrap();
        assert_eq!(answer[..6], frame[6..12]);
        assert_eq!(answer[6..12], frame[..6]);
        let ip = &answer[ETHERNET..];
        assert!(Sum::of(&ip[..IPV4_LEN]).is_valid());
        assert_eq!(ip[9], ICMP);
        assert_eq!((&ip[12..16], &ip[16..20]), (&[10, 0, 0, 2][..], &[10, 0, 0, 1][..]));
        let icmp = &ip[IPV4_LEN..];
        assert!(Sum::of(icmp).is_valid());
        assert_eq!(icmp[..2], [3, 4]);
        assert_eq!(icmp[6..8], 1400u16.to_be_bytes());
        assert_eq!(icmp[8..], frame[ETHERNET..ETHERNET + QUOTED_V4]);
    }

    #[test]
    fn test_answer_to_ipv6_reports_the_mtu_within_the_minimum_mtu() {
        let frame = ipv6(1500, 0);
        let answer = too_big(&frame, 1400).unwrap();
        let ip = &answer[ETHERNET..];
        assert_eq!(ip.len(), 1280);
        assert_eq!(ip[8..24], frame[ETHERNET + 24..ETHERNET + 40]);
        assert_eq!(ip[24..40], frame[ETHERNET + 8..ETHERNET + 24]);
        let icmp = &ip[IPV6_LEN..];
        let len = u32::try_from(icmp.len()).unwrap().to_be_bytes();
        let pseudo = [&ip[8..40], &len, &[0, 0, 0, ICMPV6], icmp].concat();
        assert!(Sum::of(&pseudo).is_valid());
        assert_eq!(icmp[0], 2);
        assert_eq!(icmp[4..8], 1400u32.to_be_bytes());
        assert_eq!(icmp[8..], frame[ETHERNET..ETHERNET + QUOTED_V6]);
    }

    #[test]
    fn test_no_answer_goes_to_broadcasts_fragments_and_icmp() {
        let mut broadcast = ipv4(1500, 0);
        broadcast[..6].fill(0xff);
        let mut fragment = ipv4(1500, 0);
        fragment[ETHERNET + 7] = 1;
        let mut may_fragment = ipv4(1500, 0);
        may_fragment[ETHERNET + 6] = 0;
        let mut icmp = ipv4(1500, 0);
        icmp[ETHERNET + 9] = ICMP;
        let mut icmpv6 = ipv6(1500, 0);
        icmpv6[ETHERNET + 6] = ICMPV6;
        for frame in [broadcast, fragment, may_fragment, icmp, icmpv6, vec![], vec![2; 14]] {
            assert_eq!(too_big(&frame, 1400), None);
        }
    }
}
