//! Fields of the frames that a link looks at or changes. Other frames pass unseen.

use heddle_base::Sum;

/// Bytes of an Ethernet header without VLAN tag.
pub(crate) const ETHERNET: usize = 14;
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
/// Bytes of an IPv4 header without options.
pub(crate) const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header.
pub(crate) const IPV6_LEN: usize = 40;

/// The ECN field: not ECT, and congestion experienced (RFC 3168 section 5).
const NOT_ECT: u8 = 0;
const CE: u8 = 3;

/// Returns the EtherType, if the frame is long enough for the IP header that it announces; 0
/// otherwise.
pub(crate) fn kind(frame: &[u8]) -> u16 {
    let Some(&[a, b]) = frame.get(12..ETHERNET) else { return 0 };
    let kind = u16::from_be_bytes([a, b]);
    let len = match kind {
        IPV4 => IPV4_LEN,
        IPV6 => IPV6_LEN,
        _ => return kind,
    };
    if frame.len() < ETHERNET + len { 0 } else { kind }
}

/// Returns the bytes of the IP packet by its own header; `None` for another frame.
pub(crate) fn packet_len(frame: &[u8]) -> Option<u32> {
    let word = |at: usize| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    match kind(frame) {
        IPV4 => Some(word(ETHERNET + 2)),
        IPV6 => Some(word(ETHERNET + 4) + 40),
        _ => None,
    }
}

/// Sets the congestion mark of a frame whose sender understands it. Returns true if the frame has
/// the mark now and had not before.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    match kind(frame) {
        IPV4 => {
            let tos = frame[ETHERNET + 1];
            if matches!(tos & CE, NOT_ECT | CE) {
                return false;
            }
            let old = u16::from_be_bytes([frame[ETHERNET], tos]);
            let new = old | u16::from(CE);
            frame[ETHERNET + 1] = tos | CE;
            // RFC 1624, equation 3: the sum without the old word, and with the new one.
            let sum = u16::from_be_bytes([frame[ETHERNET + 10], frame[ETHERNET + 11]]);
            let changed = Sum::from_folded(!sum).add_u16(!old).add_u16(new).complement();
            frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&changed.to_be_bytes());
            true
        }
        IPV6 => {
            // The traffic class lies across the first two bytes; its last two bits are ECN.
            let ecn = frame[ETHERNET + 1] >> 4 & CE;
            if matches!(ecn, NOT_ECT | CE) {
                return false;
            }
            frame[ETHERNET + 1] |= CE << 4;
            true
        }
        _ => false,
    }
}

/// Returns a valid frame with an IPv4 packet of `len` bytes, for tests.
#[cfg(test)]
pub(crate) fn ipv4(len: u16, tos: u8) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    f.extend([0x45, tos]);
    f.extend(len.to_be_bytes());
    f.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = Sum::of(&f[ETHERNET..]).complement();
    f[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
    f.resize(ETHERNET + usize::from(len), 0x5a);
    f
}

/// Returns a frame with an IPv6 packet of `len` bytes, for tests.
#[cfg(test)]
pub(crate) fn ipv6(len: u16, class: u8) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    f.extend([0x60 | class >> 4, class << 4, 0, 0]);
    f.extend((len - 40).to_be_bytes());
    f.extend([6, 64]);
    f.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    f.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    f.resize(ETHERNET + usize::from(len), 0x5a);
    f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_mark_changes_ect_alone_and_keeps_the_checksum_valid() {
        for tos in 0..=255u8 {
            let mut frame = ipv4(100, tos);
            let before = frame.clone();
            let marked = mark(&mut frame);
            assert_eq!(marked, matches!(tos & 3, 1 | 2), "{tos}");
            assert!(Sum::of(&frame[ETHERNET..ETHERNET + IPV4_LEN]).is_valid(), "{tos}");
            if marked {
                assert_eq!(frame[ETHERNET + 1], tos | 3);
                assert_eq!(frame[ETHERNET + 12..], before[ETHERNET + 12..]);
            } else {
                assert_eq!(frame, before);
            }
        }
    }

    #[test]
    fn test_mark_of_ipv6_keeps_class_and_flow_label() {
        for class in 0..=255u8 {
            let mut frame = ipv6(100, class);
            frame[ETHERNET + 1] |= 0x0f;
            let marked = mark(&mut frame);
            assert_eq!(marked, matches!(class & 3, 1 | 2));
            let now = if marked { class | 3 } else { class };
            assert_eq!(frame[ETHERNET..ETHERNET + 2], [0x60 | now >> 4, now << 4 | 0x0f]);
        }
    }

    #[test]
    fn test_short_and_other_frames_pass_unseen() {
        let frame = ipv4(100, 2);
        for len in 0..ETHERNET + IPV4_LEN {
            let mut short = frame[..len].to_vec();
            assert!(!mark(&mut short));
            assert_eq!(packet_len(&short), None);
        }
        let mut arp = frame.clone();
        arp[13] = 6;
        assert!(!mark(&mut arp));
        assert_eq!(packet_len(&arp), None);
        assert_eq!(packet_len(&frame), Some(100));
        assert_eq!(packet_len(&ipv6(1280, 0)), Some(1280));
    }
}
