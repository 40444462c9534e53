//! What a peer (or a local region) can do wrong on a QP, and what we say about it.
//!
//! One table: fault → Terminate code (RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044
//! section 8) → headers that go with it (RFC 5040 figure 10) → counter.

use super::counters::QpCounters;
use crate::mr::MrFault;
use crate::rdmap::TermCode;

/// How a Read Response can differ from the Read it should answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mismatch {
    Stag,
    Range,
    /// The message ends before the last byte asked for.
    Short,
}

/// The reason for a Terminate of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Crc,
    /// The ULPDU does not hold its headers.
    Short,
    DdpVersion {
        tagged: bool,
    },
    RdmapVersion,
    Opcode,
    Queue,
    Msn,
    NoBuffer,
    Offset,
    TooLong,
    /// A Read Request or Terminate that is not what it says.
    Malformed,
    /// A tagged segment's STag.
    Tagged(MrFault),
    /// A Read Request's source STag.
    ReadSource(MrFault),
    Response(Mismatch),
    /// The STag of a Send with Invalidate.
    Invalidate(MrFault),
    /// A local SGE: the application's mistake, not the peer's.
    Local,
}

/// What a Terminate repeats of the message that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    Nothing,
    /// Segment length and DDP header.
    Ddp,
    /// And the RDMAP header, if it was a Read Request.
    DdpAndRdmap,
}

const TAGGED: u8 = 1;
const UNTAGGED: u8 = 2;
const PROTECTION: u8 = 1;
const OPERATION: u8 = 2;

impl Fault {
    pub(super) const fn code(self) -> TermCode {
        match self {
            Fault::Crc => mpa(2),
            Fault::DdpVersion { tagged: true } => ddp(TAGGED, 4),
            Fault::DdpVersion { tagged: false } => ddp(UNTAGGED, 6),
            Fault::RdmapVersion => rdmap(OPERATION, 5),
            Fault::Opcode => rdmap(OPERATION, 6),
            Fault::Short | Fault::Malformed | Fault::Response(Mismatch::Short) => {
                rdmap(OPERATION, 7)
            }
            Fault::Queue => ddp(UNTAGGED, 1),
            Fault::NoBuffer => ddp(UNTAGGED, 2),
            Fault::Msn => ddp(UNTAGGED, 3),
            Fault::Offset => ddp(UNTAGGED, 4),
            Fault::TooLong => ddp(UNTAGGED, 5),
            // DDP has no code of its own for a missing right: the STag has no buffer that allows
            // placement.
            Fault::Tagged(MrFault::InvalidStag | MrFault::Access)
            | Fault::Response(Mismatch::Stag) => ddp(TAGGED, 0),
            Fault::Tagged(MrFault::Bounds) | Fault::Response(Mismatch::Range) => ddp(TAGGED, 1),
            Fault::Tagged(MrFault::NotAssociated) => ddp(TAGGED, 2),
            Fault::Tagged(MrFault::ToWrap) => ddp(TAGGED, 3),
            Fault::ReadSource(MrFault::InvalidStag) | Fault::Invalidate(MrFault::InvalidStag) => {
                rdmap(PROTECTION, 0)
            }
            Fault::ReadSource(MrFault::Bounds) => rdmap(PROTECTION, 1),
            Fault::ReadSource(MrFault::Access) => rdmap(PROTECTION, 2),
            Fault::ReadSource(MrFault::NotAssociated)
            | Fault::Invalidate(MrFault::NotAssociated) => rdmap(PROTECTION, 3),
            Fault::ReadSource(MrFault::ToWrap) => rdmap(PROTECTION, 4),
            Fault::Invalidate(_) => rdmap(PROTECTION, 9),
            Fault::Local => rdmap(0, 0),
        }
    }

    pub(super) const fn copied(self) -> Copied {
        match self {
            Fault::Crc | Fault::Short | Fault::Local => Copied::Nothing,
            Fault::ReadSource(_) | Fault::Invalidate(_) => Copied::DdpAndRdmap,
            _ => Copied::Ddp,
        }
    }

    pub(super) fn count(self, c: &mut QpCounters) {
        let n = match self {
            Fault::Crc => &mut c.err_crc,
            Fault::Short => &mut c.err_short,
            Fault::DdpVersion { .. } => &mut c.err_ddp_version,
            Fault::RdmapVersion => &mut c.err_rdmap_version,
            Fault::Opcode => &mut c.err_opcode,
            Fault::Queue => &mut c.err_queue,
            Fault::Msn => &mut c.err_msn,
            Fault::NoBuffer => &mut c.err_no_buffer,
            Fault::Offset => &mut c.err_offset,
            Fault::TooLong => &mut c.err_too_long,
            Fault::Malformed => &mut c.err_malformed,
            Fault::Response(_) => &mut c.err_response,
            Fault::Invalidate(_) => &mut c.err_invalidate,
            Fault::Local => &mut c.err_local,
            Fault::Tagged(f) | Fault::ReadSource(f) => match f {
                MrFault::InvalidStag => &mut c.err_stag,
                MrFault::NotAssociated => &mut c.err_association,
                MrFault::Access => &mut c.err_access,
                MrFault::ToWrap => &mut c.err_wrap,
                MrFault::Bounds => &mut c.err_bounds,
            },
        };
        *n += 1;
    }
}

const fn rdmap(etype: u8, code: u8) -> TermCode {
    TermCode { layer: 0, etype, code }
}

const fn ddp(etype: u8, code: u8) -> TermCode {
    TermCode { layer: 1, etype, code }
}

const fn mpa(code: u8) -> TermCode {
    TermCode { layer: 2, etype: 0, code }
}
