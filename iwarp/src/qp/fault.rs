//! What a peer (or a local region) can do wrong on a QP, and what we say about it.
//!
//! One table: fault → Terminate code (RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044
//! section 8) and counter. Which headers go with a code is [`TermCode`]'s to say.

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
    /// The 64 bits of an Atomic Request do not start at a multiple of 8 octets.
    Misaligned,
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

impl Fault {
    pub(super) const fn code(self) -> TermCode {
        match self {
            Fault::Crc => TermCode::MPA_CRC,
            Fault::DdpVersion { tagged: true } => TermCode::DDP_TAGGED_VERSION,
            Fault::DdpVersion { tagged: false } => TermCode::DDP_UNTAGGED_VERSION,
            Fault::RdmapVersion => TermCode::RDMAP_VERSION,
            Fault::Opcode => TermCode::RDMAP_OPCODE,
            // RFC 7306 section 8.2 names this code for a misaligned address.
            Fault::Short
            | Fault::Malformed
            | Fault::Misaligned
            | Fault::Response(Mismatch::Short) => TermCode::RDMAP_STREAM_CATASTROPHIC,
            Fault::Queue => TermCode::DDP_INVALID_QN,
            Fault::NoBuffer => TermCode::DDP_NO_BUFFER,
            Fault::Msn => TermCode::DDP_MSN_RANGE,
            Fault::Offset => TermCode::DDP_INVALID_MO,
            Fault::TooLong => TermCode::DDP_TOO_LONG,
            // DDP has no code of its own for a missing right: the STag has no buffer that allows
            // placement.
            Fault::Tagged(MrFault::InvalidStag | MrFault::Access)
            | Fault::Response(Mismatch::Stag) => TermCode::DDP_INVALID_STAG,
            Fault::Tagged(MrFault::Bounds) | Fault::Response(Mismatch::Range) => {
                TermCode::DDP_BOUNDS
            }
            Fault::Tagged(MrFault::NotAssociated) => TermCode::DDP_STAG_NOT_ASSOCIATED,
            Fault::Tagged(MrFault::ToWrap) => TermCode::DDP_TO_WRAP,
            Fault::ReadSource(MrFault::InvalidStag) | Fault::Invalidate(MrFault::InvalidStag) => {
                TermCode::RDMAP_INVALID_STAG
            }
            Fault::ReadSource(MrFault::Bounds) => TermCode::RDMAP_BOUNDS,
            Fault::ReadSource(MrFault::Access) => TermCode::RDMAP_ACCESS,
            Fault::ReadSource(MrFault::NotAssociated)
            | Fault::Invalidate(MrFault::NotAssociated) => TermCode::RDMAP_STAG_NOT_ASSOCIATED,
            Fault::ReadSource(MrFault::ToWrap) => TermCode::RDMAP_TO_WRAP,
            Fault::Invalidate(_) => TermCode::RDMAP_CANNOT_INVALIDATE,
            Fault::Local => TermCode::RDMAP_LOCAL_CATASTROPHIC,
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
            Fault::Misaligned => &mut c.err_misaligned,
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
