//! A port that shows frames as they are on the wire, and its own work: cutting trains into segments,
//! and checksums.

use heddle_base::Sum;
use heddle_engine::{Offload, TxSink};
use heddle_mr::{MemRange, Memory as _};

use super::memory::HostMemory;

/// A port that collects frames as bytes, as they are on the wire.
pub struct VecSink<'a> {
    pub mem: &'a HostMemory,
    pub frame: Vec<u8>,
    pub done: Vec<Vec<u8>>,
    /// Whether there is a buffer that takes a frame as a whole.
    pub has_buffer: bool,
    /// Frames that may begin at a time, and segments of a train that the port cuts.
    pub room: u32,
    pub cuts: u32,
}

impl<'a> VecSink<'a> {
    /// Returns a port that takes one segment at a time.
    pub fn new(mem: &'a HostMemory) -> VecSink<'a> {
        VecSink { mem, frame: Vec::new(), done: Vec::new(), has_buffer: true, room: 1, cuts: 1 }
    }
}

impl TxSink for VecSink<'_> {
    fn room(&mut self) -> u32 {
        self.room
    }

    fn cuts(&self) -> u32 {
        self.cuts
    }

    fn begin(&mut self, len: usize) {
        self.frame = Vec::with_capacity(len);
    }

    fn whole(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame.resize(if self.has_buffer { len } else { 0 }, 0xdd);
        self.has_buffer.then_some(self.frame.as_mut_slice())
    }

    fn piece(&mut self, len: usize) -> Option<&mut [u8]> {
        let at = self.frame.len();
        self.frame.resize(at + len, 0xdd);
        self.frame.get_mut(at..)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.frame.extend_from_slice(bytes);
    }

    fn memory(&mut self, range: MemRange) {
        let at = self.frame.len();
        self.frame.resize(at + range.len() as usize, 0);
        self.mem.gather(range, &mut self.frame[at..]);
    }

    fn end(&mut self, offload: Offload) {
        self.done.extend(send(std::mem::take(&mut self.frame), offload));
    }
}

/// Returns the frames that leave the port for `frame`.
fn send(frame: Vec<u8>, offload: Offload) -> Vec<Vec<u8>> {
    if !offload.tcp {
        assert_eq!((offload.segment, offload.ip), (0, false));
        return vec![frame];
    }
    let (ip, tcp) = (usize::from(offload.l2_len), usize::from(offload.l2_len + offload.l3_len));
    let (headers, text) = frame.split_at(tcp + usize::from(offload.l4_len));
    let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    // IPv6 does not count its header, and has no checksum.
    let v4 = frame[ip] >> 4 == 4;
    let (length, counted, addrs) =
        if v4 { (ip + 2, ip, ip + 12..ip + 20) } else { (ip + 4, tcp, ip + 8..ip + 40) };
    assert_eq!(usize::from(number(length)), frame.len() - counted, "length");
    assert_eq!(offload.ip, v4);
    assert!(!v4 || number(ip + 10) == 0, "header checksum");
    // The sum of the pseudo-header, without a length if the port is to cut the frame.
    let len = if offload.segment > 0 { 0 } else { frame.len() - tcp };
    let pseudo =
        |len: usize| Sum::of(&frame[addrs.clone()]).add_u16(6).add_u16(u16::try_from(len).unwrap());
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
        let total = u16::try_from(f.len() - counted).unwrap();
        f[length..length + 2].copy_from_slice(&total.to_be_bytes());
        if v4 {
            let sum = Sum::of(&f[ip..tcp]).complement();
            f[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        }
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
