//! A decoder of captures that shares nothing with the crates under test: written from RFC 5044
//! (MPA), 5041 (DDP), 5040 (RDMAP), 6581 and 7306. The decoder fails at the first byte that differs
//! from them.
//!
//! tshark cannot check all of this: see `witness`.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use pcap_file::pcap::{PcapPacket, PcapReader};

/// Returns the packets of a file.
pub(crate) fn packets(file: &Path) -> Vec<PcapPacket<'static>> {
    let mut reader = PcapReader::new(File::open(file).expect("it is there")).expect("a capture");
    let mut all = Vec::new();
    while let Some(p) = reader.next_packet() {
        all.push(p.expect("a whole packet").into_owned());
    }
    all
}

/// The bytes that one side of a TCP connection has sent.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) bytes: Vec<u8>,
    /// The end of each segment, and the number of its frame, from 1.
    segments: Vec<(usize, usize)>,
    next: u32,
}

impl Stream {
    /// Returns the number of the frame that holds the byte at `at`.
    fn frame(&self, at: usize) -> usize {
        let i = self.segments.partition_point(|(end, _)| *end <= at);
        self.segments[i].1
    }
}

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(b[at..at + 2].try_into().expect("2 bytes"))
}

pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(b[at..at + 4].try_into().expect("4 bytes"))
}

fn be64(b: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(b[at..at + 8].try_into().expect("8 bytes"))
}

/// Returns both streams of each TCP connection in a file, the initiator's first. This wire loses
/// nothing, so no byte may come twice or out of order.
pub(crate) fn connections(file: &Path) -> Vec<[Stream; 2]> {
    let mut all: Vec<[Stream; 2]> = Vec::new();
    let mut known: HashMap<(u16, u16), (usize, usize)> = HashMap::new();
    for (i, p) in packets(file).iter().enumerate() {
        let frame = i + 1;
        let ip = &p.data[14..];
        if p.data[12..14] != [8, 0] || ip[9] != 6 {
            continue;
        }
        let len = usize::from(be16(ip, 2));
        let tcp = &ip[usize::from(ip[0] & 15) * 4..len];
        let (ports, seq, flags) = ((be16(tcp, 0), be16(tcp, 2)), be32(tcp, 4), tcp[13]);
        let (syn, ack) = (flags & 2 != 0, flags & 16 != 0);
        assert_eq!(flags & 4, 0, "frame {frame}: a reset");
        if syn && !ack {
            known.insert(ports, (all.len(), 0));
            known.insert((ports.1, ports.0), (all.len(), 1));
            all.push(Default::default());
        }
        let (conn, side) = known[&ports];
        let stream = &mut all[conn][side];
        let data = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if syn {
            stream.next = seq.wrapping_add(1);
        } else if !data.is_empty() {
            assert_eq!(seq, stream.next, "frame {frame}: sent twice, or out of order");
            stream.next = seq.wrapping_add(u32::try_from(data.len()).expect("a segment"));
            stream.bytes.extend(data);
            stream.segments.push((stream.bytes.len(), frame));
        }
    }
    all
}

/// An MPA Request or Reply (RFC 5044 section 7.1.1).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Startup {
    pub(crate) markers: bool,
    pub(crate) crc: bool,
    pub(crate) reject: bool,
    pub(crate) revision: u8,
    /// The two words of RFC 6581 section 9, if the S bit says that they are present.
    pub(crate) words: Option<Words>,
    pub(crate) private_data: Vec<u8>,
}

/// IRD and ORD, and the bits beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    /// A: the peer-to-peer model. B, C, D: beginning with a Send, a Write, a Read of no bytes.
    pub(crate) flags: [bool; 4],
}

/// Parses the start-up frame at the beginning of a stream. Returns the frame and its length.
pub(crate) fn startup(stream: &Stream, key: &[u8; 16]) -> (Startup, usize) {
    let b = &stream.bytes[..];
    assert_eq!(&b[..16], key);
    let (flags, revision, len) = (b[16], b[17], usize::from(be16(b, 18)));
    assert!(len <= 512);
    let (mut data, enhanced) = (&b[20..20 + len], flags & 0x10 != 0);
    assert_eq!(flags & 0x0f, 0, "reserved bits");
    let mut words = None;
    if enhanced {
        assert_eq!(revision, 2, "S is a reserved bit of revision 1");
        let (i, o) = (be16(data, 0), be16(data, 2));
        let flags = [i & 0x8000, i & 0x4000, o & 0x8000, o & 0x4000].map(|bit| bit != 0);
        words = Some(Words { ird: i & 0x3fff, ord: o & 0x3fff, flags });
        data = &data[4..];
    }
    let [markers, crc, reject] = [0x80, 0x40, 0x20].map(|bit| flags & bit != 0);
    (Startup { markers, crc, reject, revision, words, private_data: data.to_vec() }, 20 + len)
}

/// An FPDU with its markers removed.
pub(crate) struct Fpdu {
    /// The frames that hold its first and its last byte.
    pub(crate) frames: (usize, usize),
    pub(crate) ulpdu: Vec<u8>,
    pub(crate) markers: usize,
}

/// Splits a stream into FPDUs from `from` on, where FPDU mode begins. Checks lengths, padding,
/// markers (sections 4.1 to 4.3) and CRC-32C, which covers everything up to the CRC field, markers
/// included (4.4).
pub(crate) fn fpdus(stream: &Stream, from: usize, crc: bool, markers: bool) -> Vec<Fpdu> {
    let b = &stream.bytes[from..];
    let mut all = Vec::new();
    let mut at = 0;
    while at < b.len() {
        let start = at;
        let mut found = 0;
        let mut header = None;
        // Skips a marker, if one is due here. A marker points back to the length field; before that
        // field its pointer is 0.
        let mut step_over = |at: &mut usize, header: Option<usize>| {
            if markers && at.is_multiple_of(512) {
                let back = header.map_or(0, |h| *at - h);
                assert_eq!(be32(b, *at) as usize, back, "marker at {at}");
                *at += 4;
                found += 1;
            }
        };
        let mut byte = |at: &mut usize| {
            step_over(at, header);
            header.get_or_insert(*at);
            *at += 1;
            b[*at - 1]
        };
        let len = u16::from_be_bytes([byte(&mut at), byte(&mut at)]);
        let ulpdu: Vec<u8> = (0..len).map(|_| byte(&mut at)).collect();
        for _ in 0..(4 - (2 + usize::from(len)) % 4) % 4 {
            assert_eq!(byte(&mut at), 0, "padding");
        }
        step_over(&mut at, header);
        let field = u32::from_le_bytes(b[at..at + 4].try_into().expect("4 bytes"));
        let want = if crc { crc32c::crc32c(&b[start..at]) } else { 0 };
        assert_eq!(field, want, "CRC of the FPDU at {start}");
        at += 4;
        let frames = (stream.frame(from + start), stream.frame(from + at - 1));
        all.push(Fpdu { frames, ulpdu, markers: found });
    }
    all
}

/// The header of a DDP segment including RDMAP's (RFC 5041 section 4, RFC 5040 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) opcode: u8,
    pub(crate) last: bool,
    pub(crate) place: Place,
}

/// The destination of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tagged { stag: u32, to: u64 },
    Untagged { invalidate: u32, qn: u32, msn: u32, mo: u32 },
}

/// Splits a ULPDU into header and payload.
pub(crate) fn segment(ulpdu: &[u8]) -> (Header, &[u8]) {
    let (ddp, rdmap) = (ulpdu[0], ulpdu[1]);
    assert_eq!(ddp & 0x3f, 1, "reserved bits and version of DDP");
    assert_eq!(rdmap & 0xf0, 0x40, "version and reserved bits of RDMAP");
    let (last, opcode) = (ddp & 0x40 != 0, rdmap & 15);
    let (place, len) = if ddp & 0x80 != 0 {
        (Place::Tagged { stag: be32(ulpdu, 2), to: be64(ulpdu, 6) }, 14)
    } else {
        let [invalidate, qn, msn, mo] = [2, 6, 10, 14].map(|at| be32(ulpdu, at));
        (Place::Untagged { invalidate, qn, msn, mo }, 18)
    };
    (Header { opcode, last, place }, &ulpdu[len..])
}

/// A message, reassembled from its segments; its place is that of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) opcode: u8,
    pub(crate) place: Place,
    pub(crate) payload: Vec<u8>,
}

/// Returns the messages in the FPDUs of one direction. Checks that each queue counts its messages
/// from 1, that offsets continue where the last segment ended, and that only the last segment has
/// the last flag.
pub(crate) fn messages(fpdus: &[Fpdu]) -> Vec<Message> {
    let mut open: HashMap<(bool, u32), Message> = HashMap::new();
    let mut next_msn: HashMap<u32, u32> = HashMap::new();
    let mut all = Vec::new();
    for fpdu in fpdus {
        let (h, payload) = segment(&fpdu.ulpdu);
        let key = match h.place {
            Place::Tagged { .. } => (true, h.opcode.into()),
            Place::Untagged { qn, .. } => (false, qn),
        };
        let mut m = open.remove(&key).unwrap_or_else(|| {
            if let Place::Untagged { qn, msn, mo, .. } = h.place {
                let next = next_msn.entry(qn).or_insert(1);
                assert_eq!((msn, mo), (*next, 0), "a message of queue {qn} begins");
                *next += 1;
            }
            Message { opcode: h.opcode, place: h.place, payload: Vec::new() }
        });
        let done = m.payload.len();
        let place = match m.place {
            Place::Tagged { stag, to } => Place::Tagged { stag, to: to + done as u64 },
            Place::Untagged { invalidate, qn, msn, mo } => {
                let done = u32::try_from(done).expect("a message");
                Place::Untagged { invalidate, qn, msn, mo: mo + done }
            }
        };
        assert_eq!((h.opcode, h.place), (m.opcode, place), "a segment that goes on");
        m.payload.extend(payload);
        if h.last {
            all.push(m);
        } else {
            assert!(!payload.is_empty());
            open.insert(key, m);
        }
    }
    assert!(open.is_empty(), "messages without an end");
    all
}
