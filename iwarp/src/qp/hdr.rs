//! DDP and RDMAP headers at fixed offsets, for the path every FPDU takes.
//!
//! ```text
//!            0             1              2..6     6..10   10..14  14..18
//! untagged   T L rsvd DV | RV rsvd op   | rsvdULP | QN    | MSN   | MO       RFC 5041 figure 5
//! tagged     T L rsvd DV | RV rsvd op   | STag    | TO (8)                   RFC 5041 figure 4
//! ```

use super::fpdu::Head;
use crate::{Msn, Stag};

/// Length of a tagged DDP header with the RDMAP control byte.
pub(super) const TAGGED_LEN: usize = 14;
/// Length of an untagged one.
pub(super) const UNTAGGED_LEN: usize = 18;
/// The same, as payload lengths are counted.
pub(super) const TAGGED_BYTES: u32 = 14;
/// The same, as payload lengths are counted.
pub(super) const UNTAGGED_BYTES: u32 = 18;
/// Length of an RDMA Read Request header (RFC 5040 section 4.4).
pub(super) const READ_REQUEST_LEN: usize = 28;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const DDP_VERSION: u8 = 0x01;
const DDP_VERSION_MASK: u8 = 0x03;
const RDMAP_VERSION: u8 = 0x40;
const RDMAP_VERSION_MASK: u8 = 0xc0;
const OPCODE_MASK: u8 = 0x0f;

/// RDMAP opcodes (RFC 5040 figure 4).
pub(super) mod op {
    pub(in crate::qp) const WRITE: u8 = 0;
    pub(in crate::qp) const READ_REQUEST: u8 = 1;
    pub(in crate::qp) const READ_RESPONSE: u8 = 2;
    pub(in crate::qp) const SEND: u8 = 3;
    pub(in crate::qp) const SEND_INV: u8 = 4;
    pub(in crate::qp) const SEND_SE: u8 = 5;
    pub(in crate::qp) const SEND_SE_INV: u8 = 6;
    pub(in crate::qp) const TERMINATE: u8 = 7;
}

/// DDP queue numbers.
pub(super) mod qn {
    pub(in crate::qp) const SEND: u32 = 0;
    pub(in crate::qp) const READ: u32 = 1;
    pub(in crate::qp) const TERMINATE: u32 = 2;
}

/// The longest header of a segment, as it was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header(pub(super) [u8; UNTAGGED_LEN]);

impl Header {
    pub(super) const fn tagged(&self) -> bool {
        self.0[0] & TAGGED != 0
    }

    pub(super) const fn last(&self) -> bool {
        self.0[0] & LAST != 0
    }

    pub(super) const fn ddp_version_ok(&self) -> bool {
        self.0[0] & DDP_VERSION_MASK == DDP_VERSION
    }

    pub(super) const fn rdmap_version_ok(&self) -> bool {
        self.0[1] & RDMAP_VERSION_MASK == RDMAP_VERSION
    }

    pub(super) const fn opcode(&self) -> u8 {
        self.0[1] & OPCODE_MASK
    }

    /// Bytes of the header.
    pub(super) const fn len(&self) -> usize {
        if self.tagged() { TAGGED_LEN } else { UNTAGGED_LEN }
    }

    pub(super) fn stag(&self) -> Stag {
        Stag(be32(&self.0, 2))
    }

    pub(super) fn to(&self) -> u64 {
        be64(&self.0, 6)
    }

    /// The STag to invalidate, of a Send with Invalidate.
    pub(super) fn invalidate(&self) -> Stag {
        Stag(be32(&self.0, 2))
    }

    pub(super) fn qn(&self) -> u32 {
        be32(&self.0, 6)
    }

    pub(super) fn msn(&self) -> Msn {
        Msn(be32(&self.0, 10))
    }

    pub(super) fn mo(&self) -> u32 {
        be32(&self.0, 14)
    }
}

/// The big-endian word at `at`; the callers' offsets are constants inside of `b`.
pub(super) fn be32(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|s| s.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// As [`be32`], for 64 bits.
pub(super) fn be64(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).and_then(|s| s.try_into().ok()).map_or(0, u64::from_be_bytes)
}

/// Writes a tagged header.
#[inline]
pub(super) fn put_tagged(h: &mut Head, last: bool, opcode: u8, stag: Stag, to: u64) {
    let b = h.room(TAGGED_LEN);
    b[0] = TAGGED | if last { LAST } else { 0 } | DDP_VERSION;
    b[1] = RDMAP_VERSION | opcode;
    b[2..6].copy_from_slice(&stag.0.to_be_bytes());
    b[6..14].copy_from_slice(&to.to_be_bytes());
}

/// What an untagged header says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Untagged {
    pub(super) last: bool,
    pub(super) opcode: u8,
    pub(super) invalidate: Stag,
    pub(super) qn: u32,
    pub(super) msn: Msn,
    pub(super) mo: u32,
}

impl Untagged {
    #[inline]
    pub(super) fn emit(&self) -> [u8; UNTAGGED_LEN] {
        let mut b = [0; UNTAGGED_LEN];
        b[0] = if self.last { LAST } else { 0 } | DDP_VERSION;
        b[1] = RDMAP_VERSION | self.opcode;
        b[2..6].copy_from_slice(&self.invalidate.0.to_be_bytes());
        b[6..10].copy_from_slice(&self.qn.to_be_bytes());
        b[10..14].copy_from_slice(&self.msn.0.to_be_bytes());
        b[14..18].copy_from_slice(&self.mo.to_be_bytes());
        b
    }
}

/// An RDMA Read Request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadRequest {
    pub(super) sink: Stag,
    pub(super) sink_to: u64,
    pub(super) size: u32,
    pub(super) src: Stag,
    pub(super) src_to: u64,
}

impl ReadRequest {
    pub(super) fn parse(b: &[u8; READ_REQUEST_LEN]) -> ReadRequest {
        ReadRequest {
            sink: Stag(be32(b, 0)),
            sink_to: be64(b, 4),
            size: be32(b, 12),
            src: Stag(be32(b, 16)),
            src_to: be64(b, 20),
        }
    }

    pub(super) fn emit(&self) -> [u8; READ_REQUEST_LEN] {
        let mut b = [0; READ_REQUEST_LEN];
        b[..4].copy_from_slice(&self.sink.0.to_be_bytes());
        b[4..12].copy_from_slice(&self.sink_to.to_be_bytes());
        b[12..16].copy_from_slice(&self.size.to_be_bytes());
        b[16..20].copy_from_slice(&self.src.0.to_be_bytes());
        b[20..28].copy_from_slice(&self.src_to.to_be_bytes());
        b
    }
}
