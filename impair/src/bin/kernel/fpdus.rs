//! MPA over a stream: its start-up (RFC 5044 section 7.1), and FPDUs in both directions.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;

use heddle_digest::crc32c_append;
use heddle_iwarp::ddp::{DdpHeader, MAX_LEN};
use heddle_iwarp::mpa::fpdu::{self, CRC_LEN, HEADER_LEN};
use heddle_iwarp::mpa::frame::{Frame, Kind};
use heddle_iwarp::rdmap::{Control, Opcode};
use heddle_types::Stag;
use heddle_types::mpa::Revision;

/// Bytes taken from the socket at a time.
const PIECE: usize = 256 << 10;
/// TCP's payload in a segment of an MTU of 1500, with timestamps.
const EMSS: u32 = 1448;

/// Returns the error of a peer that breaks a protocol.
pub(crate) fn wrong(why: impl ToString) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.to_string())
}

/// A memory region that an end grants to its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) stag: Stag,
    pub(crate) to: u64,
    pub(crate) len: usize,
}

impl Region {
    /// Returns the place of `len` bytes at `to` in the region's memory.
    ///
    /// # Errors
    /// Fails if they are not inside, or of another region.
    pub(crate) fn place(&self, stag: Stag, to: u64, len: usize) -> io::Result<Range<usize>> {
        let start = to.checked_sub(self.to).and_then(|at| usize::try_from(at).ok());
        let range = start.and_then(|at| Some(at..at.checked_add(len)?));
        range
            .filter(|r| stag == self.stag && r.end <= self.len)
            .ok_or_else(|| wrong(format!("{len} bytes at {to} of STag {:#x}", stag.0)))
    }
}

/// Returns the frame of a start-up of revision 1, with CRC and without markers.
pub(crate) fn startup(kind: Kind, private_data: &[u8]) -> io::Result<Vec<u8>> {
    let frame = Frame {
        kind,
        markers: false,
        crc: true,
        reject: false,
        revision: Revision::V1,
        enhanced: None,
        private_data,
    };
    frame.emit().map_err(wrong)
}

/// Appends a message to `out`, in FPDUs that fit a segment.
pub(crate) fn tagged(
    opcode: Opcode,
    stag: Stag,
    to: u64,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let most = usize::from(fpdu::mulpdu(EMSS, false)) - heddle_iwarp::ddp::TAGGED_LEN;
    let rsvd_ulp = Control::new(opcode).to_byte();
    let mut at = 0;
    loop {
        let end = payload.len().min(at + most);
        let last = end == payload.len();
        let header = DdpHeader::Tagged { last, rsvd_ulp, stag, to: to + at as u64 };
        append(&header, &payload[at..end], out)?;
        if last {
            return Ok(());
        }
        at = end;
    }
}

/// Appends a DDP segment to `out`, in an FPDU.
pub(crate) fn append(header: &DdpHeader, payload: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut ulpdu = vec![0; MAX_LEN];
    let len = header.emit(&mut ulpdu);
    ulpdu.truncate(len);
    ulpdu.extend_from_slice(payload);
    fpdu::append(&ulpdu, true, out).map_err(wrong)
}

/// The receiving half of a stream.
#[derive(Default)]
pub(crate) struct Incoming {
    buf: Vec<u8>,
    taken: usize,
}

impl Incoming {
    /// Receives a start-up frame without markers, and returns its private data.
    pub(crate) fn startup(&mut self, kind: Kind, from: &mut impl Read) -> io::Result<Vec<u8>> {
        loop {
            let parsed =
                Frame::parse(kind, Revision::V1, &self.buf[self.taken..]).map_err(wrong)?;
            if let Some((frame, len)) = parsed {
                if frame.markers || frame.reject {
                    return Err(wrong("the peer rejects the connection, or wants markers"));
                }
                let data = frame.private_data.to_vec();
                self.taken += len;
                return Ok(data);
            }
            if self.more(from)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Receives bytes, and returns their number: 0 at the end of the stream.
    pub(crate) fn more(&mut self, from: &mut impl Read) -> io::Result<usize> {
        self.buf.drain(..self.taken);
        self.taken = 0;
        let old = self.buf.len();
        self.buf.resize(old + PIECE, 0);
        let got = loop {
            match from.read(&mut self.buf[old..]) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                got => break got,
            }
        };
        self.buf.truncate(old + *got.as_ref().unwrap_or(&0));
        got
    }

    /// Returns the next whole DDP segment, after its CRC has been verified: the header and the
    /// payload.
    ///
    /// # Errors
    /// Fails if the CRC is wrong or the header is none.
    pub(crate) fn next(&mut self) -> io::Result<Option<(DdpHeader, &[u8])>> {
        let bytes = &self.buf[self.taken..];
        let Some(&[a, b]) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let ulpdu_len = u16::from_be_bytes([a, b]);
        let len = fpdu::fpdu_len(ulpdu_len);
        let Some(fpdu) = bytes.get(..len) else { return Ok(None) };
        let (covered, crc) = fpdu.split_at(len - CRC_LEN);
        let crc = crc.try_into().map(fpdu::crc_from_wire).map_err(wrong)?;
        if crc32c_append(0, covered) != crc {
            return Err(wrong(format!("wrong CRC of an FPDU of {len} bytes")));
        }
        self.taken += len;
        let segment = &covered[HEADER_LEN..HEADER_LEN + usize::from(ulpdu_len)];
        let (header, header_len) = DdpHeader::parse(segment).map_err(wrong)?;
        Ok(Some((header, &segment[header_len..])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Region = Region { stag: Stag(7), to: 1000, len: 5000 };

    fn message() -> (Vec<u8>, Vec<u8>) {
        let payload: Vec<u8> = (0..4000).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut out = Vec::new();
        tagged(Opcode::WRITE, Stag(7), 1000, &payload, &mut out).unwrap();
        (payload, out)
    }

    #[test]
    fn test_message_arrives_in_segments_however_the_stream_is_cut() {
        let (payload, wire) = message();
        for piece in [1, 7, 1000, 5000] {
            let (mut incoming, mut placed, mut segments) = (Incoming::default(), vec![0; 5000], 0);
            for mut bytes in wire.chunks(piece) {
                incoming.more(&mut bytes).unwrap();
                while let Some((header, payload)) = incoming.next().unwrap() {
                    let DdpHeader::Tagged { last, stag, to, .. } = header else { panic!() };
                    placed[REGION.place(stag, to, payload.len()).unwrap()].copy_from_slice(payload);
                    segments += 1;
                    assert_eq!(last, segments == 3);
                }
            }
            assert_eq!((&placed[..4000], segments), (&payload[..], 3));
        }
    }

    #[test]
    fn test_wrong_bit_is_found_by_the_crc() {
        let (_, mut wire) = message();
        wire[100] ^= 1;
        let mut incoming = Incoming::default();
        incoming.more(&mut &wire[..]).unwrap();
        assert!(incoming.next().unwrap_err().to_string().starts_with("wrong CRC"));
    }

    #[test]
    fn test_region_refuses_bytes_outside() {
        assert_eq!(REGION.place(Stag(7), 1000, 5000).unwrap(), 0..5000);
        for (stag, to, len) in [(8, 1000, 1), (7, 999, 1), (7, 1000, 5001), (7, u64::MAX, 1)] {
            assert!(REGION.place(Stag(stag), to, len).is_err());
        }
    }

    #[test]
    fn test_startup_frames_carry_private_data() {
        let wire = startup(Kind::Request, b"hello").unwrap();
        let mut incoming = Incoming::default();
        assert_eq!(incoming.startup(Kind::Request, &mut &wire[..]).unwrap(), b"hello");
        let short = incoming.startup(Kind::Request, &mut &wire[..9]).unwrap_err();
        assert_eq!(short.kind(), ErrorKind::UnexpectedEof);
        assert!(Incoming::default().startup(Kind::Reply, &mut &wire[..]).is_err());
    }
}
