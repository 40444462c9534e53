//! Builds and reads MPA, DDP and RDMAP by hand: the frames of the start-up, and FPDUs with their
//! CRC.

use std::io::{self, Read};

/// The flag that requests a CRC; every FPDU here carries one.
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
/// RFC 6581: IRD and ORD precede the private data.
const FLAG_ENHANCED: u8 = 0x10;

/// RDMAP opcode of an RDMA Write.
pub const WRITE: u8 = 0;
/// RDMAP opcode of a Read Request.
pub const READ_REQUEST: u8 = 1;
/// RDMAP opcode of a Read Response.
pub const READ_RESPONSE: u8 = 2;

const SEND_SOLICITED: u8 = 5;

/// Builds an MPA Request of revision 1, with CRC.
pub fn request(private_data: &[u8]) -> Vec<u8> {
    start(FLAG_CRC, 1, private_data)
}

/// Builds an MPA Request of revision 1 that does not ask for a CRC.
pub fn request_without_crc() -> Vec<u8> {
    start(0, 1, b"")
}

/// Builds an MPA Request of revision 2, with CRC.
pub fn enhanced_request(ird: u16, ord: u16, private_data: &[u8]) -> Vec<u8> {
    let data = [&ird.to_be_bytes()[..], &ord.to_be_bytes(), private_data].concat();
    start(FLAG_CRC | FLAG_ENHANCED, 2, &data)
}

/// Builds an MPA Reply of revision 1, with CRC.
pub fn reply(rejects: bool, private_data: &[u8]) -> Vec<u8> {
    let flags = FLAG_CRC | if rejects { FLAG_REJECT } else { 0 };
    frame(b"MPA ID Rep Frame", flags, 1, private_data)
}

fn start(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    frame(b"MPA ID Req Frame", flags, revision, private_data)
}

fn frame(key: &[u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(private_data.len()).expect("at most 512 bytes");
    [&key[..], &[flags, revision], &len.to_be_bytes(), private_data].concat()
}

/// The content of an MPA Reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// The responder wants a CRC.
    pub crc: bool,
    /// The responder rejects the connection.
    pub rejected: bool,
    /// The private data; in revision 2, IRD and ORD come first.
    pub private_data: Vec<u8>,
}

/// Reads a Reply with all its private data from a stream.
///
/// # Errors
/// Returns the error of the stream.
pub fn read_reply(stream: &mut impl Read) -> io::Result<Reply> {
    let mut bytes = vec![0; 20];
    stream.read_exact(&mut bytes)?;
    let len = usize::from(u16::from_be_bytes([bytes[18], bytes[19]]));
    bytes.resize(20 + len, 0);
    stream.read_exact(&mut bytes[20..])?;
    Ok(take_reply(&mut bytes).expect("it is whole"))
}

/// Removes a Reply from the front of `bytes`, once it is whole.
pub fn take_reply(bytes: &mut Vec<u8>) -> Option<Reply> {
    let len = 20 + usize::from(u16::from_be_bytes([*bytes.get(18)?, *bytes.get(19)?]));
    if bytes.len() < len {
        return None;
    }
    let frame: Vec<u8> = bytes.drain(..len).collect();
    assert_eq!(&frame[..16], b"MPA ID Rep Frame");
    let has = |flag| frame[16] & flag != 0;
    Some(Reply {
        crc: has(FLAG_CRC),
        rejected: has(FLAG_REJECT),
        private_data: frame[20..].to_vec(),
    })
}

/// The content of an FPDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// RDMAP opcode.
    pub opcode: u8,
    /// True if the segment is the last of its message.
    pub last: bool,
    /// STag and tagged offset of the destination, if the segment is tagged.
    pub tagged: Option<(u32, u64)>,
    /// The bytes after the headers.
    pub payload: Vec<u8>,
}

/// Wraps a ULPDU in an FPDU.
pub fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut f = u16::try_from(ulpdu.len()).expect("a ULPDU's length").to_be_bytes().to_vec();
    f.extend(ulpdu);
    f.resize(f.len().next_multiple_of(4), 0);
    f.extend(crc32c::crc32c(&f).to_le_bytes());
    f
}

fn tagged(opcode: u8, last: bool, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let control = [0x81 | if last { 0x40 } else { 0 }, 0x40 | opcode];
    fpdu(&[&control[..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat())
}

fn untagged(opcode: u8, queue: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    let (queue, msn) = (queue.to_be_bytes(), msn.to_be_bytes());
    fpdu(&[&[0x41, 0x40 | opcode][..], &[0; 4], &queue, &msn, &[0; 4], payload].concat())
}

/// Builds a Send with Solicited Event in one FPDU.
pub fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(SEND_SOLICITED, 0, msn, payload)
}

/// Builds one segment of an RDMA Write.
pub fn write(last: bool, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(WRITE, last, stag, to, payload)
}

/// Builds a Read Request for `len` bytes from `there` to `here`.
pub fn read_request(msn: u32, here: (u32, u64), len: u32, there: (u32, u64)) -> Vec<u8> {
    let ends = |(stag, to): (u32, u64)| [&stag.to_be_bytes()[..], &to.to_be_bytes()].concat();
    let body = [ends(here), len.to_be_bytes().to_vec(), ends(there)].concat();
    untagged(READ_REQUEST, 1, msn, &body)
}

/// Builds a Read Response in segments of at most `most` bytes.
pub fn read_response(stag: u32, to: u64, payload: &[u8], most: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < payload.len() || out.is_empty() {
        let n = most.min(payload.len() - at);
        let last = at + n == payload.len();
        out.extend(tagged(READ_RESPONSE, last, stag, to + at as u64, &payload[at..at + n]));
        at += n;
    }
    out
}

/// Builds a Terminate: untagged and last, DDP version 1; RDMAP version 1, opcode 7; queue 2, MSN 1,
/// offset 0; control field; length and headers of the segment that it reports.
pub fn terminate(control: [u8; 4], segment: &[u8], copied: usize) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    ulpdu.extend(control);
    if copied > 0 {
        ulpdu.extend(u16::try_from(segment.len()).expect("a length").to_be_bytes());
        ulpdu.extend(&segment[..copied]);
    }
    fpdu(&ulpdu)
}

/// Parses a Read Request into the destination of the response and the data to read: `(sink, len,
/// source)`.
pub fn parse_read_request(b: &[u8]) -> ((u32, u64), usize, (u32, u64)) {
    let number = |r: std::ops::Range<usize>| b[r].iter().fold(0u64, |v, &x| v << 8 | u64::from(x));
    let stag = |at: usize| u32::try_from(number(at..at + 4)).expect("four bytes");
    let len = usize::try_from(number(12..16)).expect("a length");
    ((stag(0), number(4..12)), len, (stag(16), number(20..28)))
}

/// Removes an FPDU from the front of `bytes`, once it is whole.
///
/// # Panics
/// Panics if the CRC of the FPDU is wrong.
pub fn take_fpdu(bytes: &mut Vec<u8>) -> Option<Message> {
    let len = usize::from(u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]));
    let padded = (2 + len).next_multiple_of(4);
    if bytes.len() < padded + 4 {
        return None;
    }
    let f: Vec<u8> = bytes.drain(..padded + 4).collect();
    let crc = u32::from_le_bytes([f[padded], f[padded + 1], f[padded + 2], f[padded + 3]]);
    assert_eq!(crc32c::crc32c(&f[..padded]), crc, "CRC of an FPDU");
    let u = &f[2..2 + len];
    let (last, opcode) = (u[0] & 0x40 != 0, u[1] & 0x0f);
    if u[0] & 0x80 == 0 {
        return Some(Message { opcode, last, tagged: None, payload: u[18..].to_vec() });
    }
    let stag = u32::from_be_bytes([u[2], u[3], u[4], u[5]]);
    let to = u[6..14].iter().fold(0, |v, &x| v << 8 | u64::from(x));
    Some(Message { opcode, last, tagged: Some((stag, to)), payload: u[14..].to_vec() })
}

/// Encodes rping's description of a region: tagged offset, STag, length.
pub fn rping_info(to: u64, stag: u32, len: u32) -> [u8; 16] {
    let mut b = [0; 16];
    b[..8].copy_from_slice(&to.to_be_bytes());
    b[8..12].copy_from_slice(&stag.to_be_bytes());
    b[12..].copy_from_slice(&len.to_be_bytes());
    b
}

/// Returns the region that a sink grants: STag and tagged offset.
pub fn sink_region(reply: &Reply) -> (u32, u64) {
    let b = reply.private_data.strip_prefix(b"HSNK").expect("a sink's private data");
    let number = |r: &[u8]| r.iter().fold(0u64, |v, &x| v << 8 | u64::from(x));
    (u32::try_from(number(&b[..4])).expect("four bytes"), number(&b[4..12]))
}
