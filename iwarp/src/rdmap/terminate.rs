use super::read_request::{READ_REQUEST_LEN, ReadRequest};
use super::{Control, Opcode};
use crate::Msn;
use crate::ddp::{self, DdpError, DdpHeader, Qn, UNTAGGED_LEN};
use arrayvec::ArrayVec;
use core::fmt;

use heddle_types::{TermCode, TerminatePayload};

/// Bytes of the longest Terminate: control, segment length, untagged header, Read Request header.
pub const TERMINATE_MAX_LEN: usize = CONTROL_LEN + 2 + ddp::MAX_LEN + READ_REQUEST_LEN;
/// Bytes of the longest DDP segment that carries a Terminate.
pub const TERMINATE_SEGMENT_MAX_LEN: usize = UNTAGGED_LEN + TERMINATE_MAX_LEN;

const CONTROL_LEN: usize = 4;
/// Header control bits, in the third byte of the control field.
const SEGMENT_LENGTH: u8 = 0x80;
const DDP_HEADER: u8 = 0x40;
const RDMAP_HEADER: u8 = 0x20;

/// The payload of a Terminate (section 4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// The error that ended the stream.
    pub code: TermCode,
    /// ULPDU length of the segment that caused the error (the M bit).
    pub segment_len: Option<u16>,
    /// DDP header of that segment (the D bit).
    pub ddp: Option<CopiedHeader>,
    /// RDMAP header of that segment, if it was a Read Request (the R bit).
    pub read_request: Option<ReadRequest>,
    /// The sender wrote it the way Linux siw does on a little-endian machine: the nibbles of the
    /// first byte swapped and M, D, R in the lowest bits of the third. Heddle never sends such a
    /// Terminate.
    pub swapped: bool,
}

/// The DDP header of a refused segment, byte for byte, because the header itself may be wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CopiedHeader {
    bytes: [u8; ddp::MAX_LEN],
    len: u8,
}

/// The reasons for which bytes are not a Terminate.
///
/// The stream ends either way, and no end answers a Terminate with another. So these errors have no
/// code on the wire: the receiver closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TerminateError {
    /// The payload is too short for the control field.
    #[error("Terminate of {have} bytes has no control field")]
    Short {
        /// Bytes of the payload.
        have: usize,
    },
    /// The payload ends inside a header that it says it repeats. Terminates of Linux siw do so when
    /// they are about a Send with Invalidate.
    #[error("Terminate of {have} bytes ({}) ends inside a header it repeats", read.code)]
    Truncated {
        /// The part before the cut: the error code, which is complete, and the complete headers.
        read: Terminate,
        /// Bytes of the payload.
        have: usize,
    },
}

impl Terminate {
    /// Makes a Terminate that repeats no header.
    pub const fn new(code: TermCode) -> Terminate {
        Terminate { code, segment_len: None, ddp: None, read_request: None, swapped: false }
    }

    /// Reads the payload of a Terminate, in the RFC's layout or in siw's.
    ///
    /// Receivers ignore the RFC's reserved bits, so this function assumes siw's layout only when
    /// the sender cannot have meant the RFC's: when none of the RFC's header bits is set and one of
    /// siw's is, or when no bit is set and only the swapped reading is a defined code. Use the
    /// result to report, not to decide.
    ///
    /// # Errors
    /// Fails when the payload is too short for the headers that it announces. Ignores bytes after
    /// them.
    pub fn parse(payload: &[u8]) -> Result<Terminate, TerminateError> {
        let have = payload.len();
        let Some((control, mut rest)) = payload.split_first_chunk::<CONTROL_LEN>() else {
            return Err(TerminateError::Short { have });
        };
        let (code, flags, swapped) = read_control(*control);
        let mut t = Terminate { swapped, ..Terminate::new(code) };
        let truncated = |read| TerminateError::Truncated { read, have };
        if flags & (SEGMENT_LENGTH | DDP_HEADER) != 0 {
            let (len, r) = rest.split_first_chunk::<2>().ok_or(truncated(t))?;
            if flags & SEGMENT_LENGTH != 0 {
                t.segment_len = Some(u16::from_be_bytes(*len));
            }
            rest = r;
        }
        if flags & DDP_HEADER != 0 {
            let header = CopiedHeader::of_segment(rest).ok_or(truncated(t))?;
            rest = &rest[header.as_bytes().len()..];
            t.ddp = Some(header);
        }
        if flags & RDMAP_HEADER != 0 {
            let b = rest.get(..READ_REQUEST_LEN).ok_or(truncated(t))?;
            t.read_request = ReadRequest::parse(b).ok();
        }
        Ok(t)
    }

    /// Writes the payload to the start of `out` and returns its length. The layout is always the
    /// RFC's, whatever [`swapped`](Self::swapped) says.
    pub fn emit(&self, out: &mut [u8; TERMINATE_MAX_LEN]) -> usize {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        out[0] = self.code.layer << 4 | self.code.etype & 0x0f;
        out[1] = self.code.code;
        out[2] = flag(self.segment_len.is_some(), SEGMENT_LENGTH)
            | flag(self.ddp.is_some(), DDP_HEADER)
            | flag(self.read_request.is_some(), RDMAP_HEADER);
        out[3] = 0;
        let mut n = CONTROL_LEN;
        let mut put = |bytes: &[u8]| {
            out[n..n + bytes.len()].copy_from_slice(bytes);
            n += bytes.len();
        };
        if self.segment_len.is_some() || self.ddp.is_some() {
            put(&self.segment_len.unwrap_or(0).to_be_bytes());
        }
        if let Some(h) = &self.ddp {
            put(h.as_bytes());
        }
        if let Some(r) = &self.read_request {
            put(&r.emit());
        }
        n
    }

    /// Returns the DDP segment that carries the Terminate, the first and only message of its queue
    /// (section 5.4).
    pub fn segment(&self) -> ArrayVec<u8, TERMINATE_SEGMENT_MAX_LEN> {
        let header = DdpHeader::Untagged {
            last: true,
            rsvd_ulp: Control::new(Opcode::TERMINATE).to_byte(),
            rsvd_ulp32: 0,
            qn: Qn::TERMINATE,
            msn: Msn(1),
            mo: 0,
        };
        let mut head = [0; UNTAGGED_LEN];
        header.emit(&mut head);
        let mut body = [0; TERMINATE_MAX_LEN];
        let len = self.emit(&mut body);
        head.into_iter().chain(body.into_iter().take(len)).collect()
    }
}

impl From<&Terminate> for TerminatePayload {
    fn from(t: &Terminate) -> TerminatePayload {
        let mut out = [0; TERMINATE_MAX_LEN];
        let len = t.emit(&mut out);
        TerminatePayload::new(out.get(..len).unwrap_or_default(), t.swapped)
    }
}

impl From<&TerminatePayload> for Terminate {
    /// Reads the payload, or as much of it as there is where it ends too early.
    fn from(payload: &TerminatePayload) -> Terminate {
        let read = match Terminate::parse(payload.as_bytes()) {
            Ok(t) | Err(TerminateError::Truncated { read: t, .. }) => t,
            Err(TerminateError::Short { .. }) => Terminate::new(TermCode::new(0, 0, 0)),
        };
        Terminate { swapped: payload.swapped(), ..read }
    }
}

/// Returns code, header bits (at the RFC's places) and true if the layout is siw's.
fn read_control(b: [u8; CONTROL_LEN]) -> (TermCode, u8, bool) {
    let rfc = TermCode::new(b[0] >> 4, b[0] & 0x0f, b[1]);
    let siw = TermCode::new(b[0] & 0x0f, b[0] >> 4, b[1]);
    let (rfc_flags, siw_flags) = (b[2] & 0xe0, (b[2] & 0x07).reverse_bits());
    let swapped =
        rfc_flags == 0 && (siw_flags != 0 || (rfc.name().is_none() && siw.name().is_some()));
    if swapped { (siw, siw_flags, true) } else { (rfc, rfc_flags, false) }
}

impl CopiedHeader {
    /// Copies the header at the start of a DDP segment, of whatever version. Returns `None` if the
    /// segment is too short for the header that its T bit announces.
    pub fn of_segment(segment: &[u8]) -> Option<CopiedHeader> {
        let len = if segment.first()? & 0x80 != 0 { ddp::TAGGED_LEN } else { ddp::UNTAGGED_LEN };
        let header = segment.get(..len)?;
        let mut bytes = [0; ddp::MAX_LEN];
        bytes[..len].copy_from_slice(header);
        Some(CopiedHeader { bytes, len: u8::try_from(len).ok()? })
    }

    /// Returns the header's bytes as they came.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Parses the header.
    ///
    /// # Errors
    /// Fails when the version is not Heddle's.
    pub fn header(&self) -> Result<DdpHeader, DdpError> {
        DdpHeader::parse(self.as_bytes()).map(|(h, _)| h)
    }
}

impl fmt::Debug for CopiedHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.header() {
            Ok(h) => h.fmt(f),
            Err(_) => write!(f, "{:02x?}", self.as_bytes()),
        }
    }
}
