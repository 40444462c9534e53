//! The work that a port does by itself: cutting trains into segments, and checksums.

use heddle_base::Sum;
use heddle_engine::Offload;

/// Returns the frames that leave the port for `frame`.
pub fn send(frame: Vec<u8>, offload: Offload) -> Vec<Vec<u8>> {
    if !offload.tcp {
        assert_eq!((offload.segment, offload.ip), (0, false));
        return vec![frame];
    }
    let (ip, tcp) = (usize::from(offload.l2_len), usize::from(offload.l2_len + offload.l3_len));
    let (headers, text) = frame.split_at(tcp + usize::from(offload.l4_len));
    let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    assert_eq!(usize::from(number(ip + 2)), frame.len() - ip, "total length");
    assert_eq!(number(ip + 10), 0, "header checksum");
    // The sum of the pseudo-header, without a length if the port is to cut the frame.
    let len = if offload.segment > 0 { 0 } else { frame.len() - tcp };
    let pseudo = |len: usize| {
        Sum::of(&frame[ip + 12..ip + 20]).add_u16(6).add_u16(u16::try_from(len).unwrap())
    };
    assert_eq!(number(tcp + 16), pseudo(len).folded(), "sum of the pseudo-header");
    let segment = if offload.segment > 0 { usize::from(offload.segment) } else { text.len() };
    if offload.segment > 0 {
        assert!(text.len() > segment, "a train has several segments");
    }
    let seq = u32::from_be_bytes(frame[tcp + 4..tcp + 8].try_into().unwrap());
    let texts: Vec<_> = if text.is_empty() { vec![text] } else { text.chunks(segment).collect() };
    let count = texts.len();
    let cut = |(i, text): (usize, &[u8])| {
        let mut f = [headers, text].concat();
        let total = u16::try_from(f.len() - ip).unwrap();
        f[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
        let sum = Sum::of(&f[ip..tcp]).complement();
        f[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        let seq = seq.wrapping_add(u32::try_from(i * segment).unwrap());
        f[tcp + 4..tcp + 8].copy_from_slice(&seq.to_be_bytes());
        if i + 1 < count {
            // PSH and FIN belong to the last segment.
            f[tcp + 13] &= !0x09;
        }
        f[tcp + 16..tcp + 18].fill(0);
        let sum = pseudo(f.len() - tcp).plus(Sum::of(&f[tcp..])).complement();
        f[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
        f
    };
    texts.into_iter().enumerate().map(cut).collect()
}
