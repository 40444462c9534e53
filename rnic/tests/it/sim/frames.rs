//! Frames as the link sees them: IPv4 without options and IPv6 without extension headers, as the
//! stack makes them.

use std::ops::Range;

use heddle_base::Sum;

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;

/// Returns true for a frame of ARP, which has no checksum.
pub fn is_arp(frame: &[u8]) -> bool {
    frame[12..14] == [8, 6]
}

/// Returns the place of the addresses, the place of the TCP header and the place after the segment,
/// if the frame has a TCP segment.
fn places(frame: &[u8]) -> Option<(usize, usize, usize)> {
    let number = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let (addrs, tcp, upto, protocol) = match frame.get(12..14)? {
        [8, 0] if frame.len() >= 54 => (26, 34, ETHERNET + number(16), frame[23]),
        [0x86, 0xdd] if frame.len() >= 74 => (22, 54, 54 + number(18), frame[20]),
        _ => return None,
    };
    (protocol == 6).then_some((addrs, tcp, upto))
}

/// Returns the place of the TCP header.
pub fn tcp_at(frame: &[u8]) -> Option<usize> {
    places(frame).map(|(_, tcp, _)| tcp)
}

/// Returns true if a TCP segment goes to or comes from a port.
pub fn has_port(frame: &[u8], port: u16) -> bool {
    let port = port.to_be_bytes();
    tcp_at(frame).is_some_and(|at| frame[at..at + 2] == port || frame[at + 2..at + 4] == port)
}

/// Returns the range of the payload of a TCP segment, if there is payload.
pub fn tcp_payload(frame: &[u8]) -> Option<Range<usize>> {
    let (_, tcp, upto) = places(frame)?;
    let from = tcp + 4 * usize::from(frame[tcp + 12] >> 4);
    (from < upto).then_some(from..upto)
}

/// Computes the TCP checksum of a segment anew (RFC 9293 section 3.1).
pub fn mend_checksum(frame: &mut [u8]) {
    let Some((addrs, tcp, upto)) = places(frame) else { return };
    frame[tcp + 16..tcp + 18].fill(0);
    let words = frame[addrs..upto].chunks(2);
    let words = words.map(|w| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum::<u64>() + 6 + (upto as u64 - tcp as u64);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[tcp + 16..tcp + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Marks a packet as a switch with a long queue does (RFC 3168 section 5). Returns false if the
/// packet says that its transport would not notice.
pub fn mark(frame: &mut [u8]) -> bool {
    match frame[12..14] {
        [8, 0] if matches!(frame[15] & 3, 1 | 2) => {
            frame[15] |= 3;
            frame[24..26].fill(0);
            let sum = Sum::of(&frame[ETHERNET..34]).complement();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        // The traffic class begins in the middle of the first byte.
        [0x86, 0xdd] if matches!(frame[15] >> 4 & 3, 1 | 2) => frame[15] |= 0x30,
        _ => return false,
    }
    true
}
