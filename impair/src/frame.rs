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

/// TCP's number as the protocol of an IP packet, and the least bytes of its header.
const TCP: u8 = 6;
const TCP_LEN: usize = 20;
/// The flags of a TCP header, its bytes 12 and 13: the three of ECN are AE, CWR and ECE.
const FLAGS_OF_ECN: u16 = 0x01c0;
const SYN: u16 = 0x0002;
const ACK: u16 = 0x0010;

/// The ECN field of an IP packet (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codepoint {
    /// The sender does not understand marks.
    NotEct = 0,
    /// The sender understands marks, ECT(1).
    Ect1 = 1,
    /// The sender understands marks, ECT(0).
    Ect0 = 2,
    /// Congestion experienced: the mark.
    Ce = 3,
}

impl Codepoint {
    const BITS: u8 = 3;
    const ALL: [Codepoint; 4] =
        [Codepoint::NotEct, Codepoint::Ect1, Codepoint::Ect0, Codepoint::Ce];

    fn of(bits: u8) -> Codepoint {
        Codepoint::ALL[usize::from(bits & Codepoint::BITS)]
    }
}

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

/// Returns the ECN field of an IP packet; `None` for another frame.
pub(crate) fn codepoint(frame: &[u8]) -> Option<Codepoint> {
    match kind(frame) {
        IPV4 => Some(Codepoint::of(frame[ETHERNET + 1])),
        // The traffic class lies across the first two bytes; its last two bits are ECN.
        IPV6 => Some(Codepoint::of(frame[ETHERNET + 1] >> 4)),
        _ => None,
    }
}

/// Sets the ECN field of an IP packet. Returns true if the field was another.
pub(crate) fn set_codepoint(frame: &mut [u8], to: Codepoint) -> bool {
    if codepoint(frame).is_none_or(|old| old == to) {
        return false;
    }
    if kind(frame) == IPV6 {
        frame[ETHERNET + 1] = frame[ETHERNET + 1] & !(Codepoint::BITS << 4) | (to as u8) << 4;
        return true;
    }
    let word = u16::from_be_bytes([frame[ETHERNET], frame[ETHERNET + 1]]);
    let new = word & !u16::from(Codepoint::BITS) | to as u16;
    replace(frame, ETHERNET, new, ETHERNET + 10);
    true
}

/// Sets the congestion mark of a frame whose sender understands it. Returns true if the frame has
/// the mark now and had not before.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    matches!(codepoint(frame), Some(Codepoint::Ect0 | Codepoint::Ect1))
        && set_codepoint(frame, Codepoint::Ce)
}

/// Returns true if the frame is a SYN or SYN-ACK.
pub(crate) fn is_syn(frame: &[u8]) -> bool {
    flags(frame).is_some_and(|(_, flags)| flags & SYN != 0)
}

/// Returns true if the frame is a SYN that asks for any feedback about marks.
pub(crate) fn asks_for_ecn(frame: &[u8]) -> bool {
    flags(frame).is_some_and(|(_, f)| f & (SYN | ACK) == SYN && f & FLAGS_OF_ECN != 0)
}

/// Clears the flags of ECN in a segment that is no SYN. Returns true if there were any.
pub(crate) fn clear_flags_of_ecn(frame: &mut [u8]) -> bool {
    let Some((tcp, word)) = flags(frame) else { return false };
    if word & SYN != 0 || word & FLAGS_OF_ECN == 0 {
        return false;
    }
    replace(frame, tcp + 12, word & !FLAGS_OF_ECN, tcp + 16);
    true
}

/// Returns the place of the TCP header of a frame, and the word that has its flags. Packets with
/// extension headers, and fragments but the first, pass unseen.
fn flags(frame: &[u8]) -> Option<(usize, u16)> {
    let ip = frame.get(ETHERNET..)?;
    let (protocol, len) = match kind(frame) {
        IPV4 if u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff == 0 => {
            (ip[9], usize::from(ip[0] & 0x0f) * 4)
        }
        IPV6 => (ip[6], IPV6_LEN),
        _ => return None,
    };
    let header = ip.get(len..len + TCP_LEN).filter(|_| protocol == TCP && len >= IPV4_LEN)?;
    Some((ETHERNET + len, u16::from_be_bytes([header[12], header[13]])))
}

/// Replaces a word of a frame, and corrects the checksum over it.
fn replace(frame: &mut [u8], at: usize, new: u16, checksum: usize) {
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    // RFC 1624, equation 3: the sum without the old word, and with the new one.
    let sum = Sum::from_folded(!word(checksum)).add_u16(!word(at)).add_u16(new).complement();
    frame[at..at + 2].copy_from_slice(&new.to_be_bytes());
    frame[checksum..checksum + 2].copy_from_slice(&sum.to_be_bytes());
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

/// Returns a valid frame with a TCP segment with these flags, over IPv4 or IPv6, for tests.
#[cfg(test)]
pub(crate) fn segment(v6: bool, flags: u16) -> Vec<u8> {
    let (mut f, at) =
        if v6 { (ipv6(60, 0), ETHERNET + IPV6_LEN) } else { (ipv4(40, 0), ETHERNET + IPV4_LEN) };
    f[at..].fill(0);
    f[at + 12..at + 14].copy_from_slice(&(0x5000 | flags).to_be_bytes());
    let sum = tcp_sum(&f, at).complement();
    f[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    f
}

/// Returns the sum over the segment at `at` and its pseudo-header.
#[cfg(test)]
fn tcp_sum(f: &[u8], at: usize) -> Sum {
    let addresses = if kind(f) == IPV6 { ETHERNET + 8..at } else { ETHERNET + 12..at };
    let len = u16::try_from(f.len() - at).unwrap();
    Sum::of(&f[addresses]).plus(Sum::of(&f[at..])).add_u16(len).add_u16(TCP.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_set_codepoint_changes_the_field_alone() {
        for from in Codepoint::ALL {
            for to in Codepoint::ALL {
                let mut frame = ipv4(100, 0xb8 | from as u8);
                assert_eq!(set_codepoint(&mut frame, to), from != to);
                assert_eq!(codepoint(&frame), Some(to));
                assert_eq!(frame[ETHERNET + 1], 0xb8 | to as u8);
                assert!(Sum::of(&frame[ETHERNET..ETHERNET + IPV4_LEN]).is_valid());
                let mut frame = ipv6(100, 0xb8 | from as u8);
                assert_eq!(set_codepoint(&mut frame, to), from != to);
                assert_eq!(codepoint(&frame), Some(to));
                assert_eq!(frame, ipv6(100, 0xb8 | to as u8));
            }
        }
        assert!(!set_codepoint(&mut [0; 60], Codepoint::Ce));
    }

    #[test]
    fn test_flags_of_ecn_go_from_segments_that_are_no_syns() {
        for v6 in [false, true] {
            let at = ETHERNET + if v6 { IPV6_LEN } else { IPV4_LEN };
            for flags in 0..0x200 {
                let mut frame = segment(v6, flags);
                let cleared = clear_flags_of_ecn(&mut frame);
                assert_eq!(cleared, flags & SYN == 0 && flags & FLAGS_OF_ECN != 0, "{flags:x}");
                let left = if cleared { flags & !FLAGS_OF_ECN } else { flags };
                assert_eq!(super::flags(&frame), Some((at, 0x5000 | left)));
                assert!(tcp_sum(&frame, at).is_valid(), "{flags:x}");
                assert_eq!(is_syn(&frame), flags & SYN != 0);
                let asks = flags & SYN != 0 && flags & ACK == 0 && flags & FLAGS_OF_ECN != 0;
                assert_eq!(asks_for_ecn(&frame), asks);
            }
        }
    }

    #[test]
    fn test_flags_are_those_of_a_whole_tcp_header() {
        let syn = segment(false, SYN);
        for len in 0..syn.len() {
            assert!(!is_syn(&syn[..len]), "{len}");
        }
        let changed = |at: usize, to: u8| {
            let mut frame = syn.clone();
            frame[ETHERNET + at] = to;
            frame
        };
        assert!(is_syn(&syn));
        assert!(!is_syn(&changed(9, 17)), "UDP");
        assert!(!is_syn(&changed(7, 1)), "a fragment");
        assert!(!is_syn(&changed(0, 0x41)), "a header of four bytes");
        assert!(!is_syn(&changed(0, 0x4f)), "a header longer than the frame");
    }

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
