//! What can go wrong on a stream, and what the peer is told of it.
//!
//! One table: fault → code of the Terminate, headers that go along, counter. Whoever finds a fault
//! names it by its row; nobody else in the crate knows a number. [`TermCode`] gives the numbers
//! their names (RFC 5040 figure 9, RFC 5041 section 7.2, RFC 5044 section 8, RFC 6581 section 8);
//! the headers are those of RFC 5040 figure 10 and section 7.1.
//!
//! Where no RFC has a code of its own for a fault the row says which of theirs stands in.

use crate::counters::QpCounters;
use crate::ddp::DdpError;
use crate::mpa::markers::MarkerError;
use crate::mr::MrFault;
use crate::rdmap::{ControlError, TermCode};

/// What goes out for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No Terminate: the stream just ends.
    Nothing,
    /// A Terminate that repeats no header: no bit is set.
    Code,
    /// One that repeats length and DDP header of the segment at fault, as far as there is one:
    /// M and D.
    Ddp,
    /// One that repeats the header of the Read Request too: M, D and R.
    DdpAndRdmap,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    code: TermCode,
    answer: Answer,
    counter: Option<fn(&mut QpCounters) -> &mut u64>,
}

macro_rules! counter {
    (-) => {
        None
    };
    ($name:ident) => {
        Some(|c| &mut c.$name)
    };
}

macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $name:ident: $code:ident, $answer:ident, $counter:tt;)+) => {
        /// What is wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Fault {
            /// Every fault there is.
            pub const ALL: &[Fault] = &[$(Fault::$name,)+];

            const fn row(self) -> Row {
                match self {
                    $(Fault::$name => Row {
                        code: TermCode::$code,
                        answer: Answer::$answer,
                        counter: counter!($counter),
                    },)+
                }
            }
        }
    };
}

faults! {
    // MPA: RFC 5044 section 8.

    /// TCP ended without having been asked to. There is nobody left to tell.
    ConnectionLost: MPA_CLOSED, Nothing, -;
    /// The CRC of an FPDU.
    Crc: MPA_CRC, Code, err_crc;
    /// A marker that points elsewhere than its FPDU begins.
    Marker: MPA_MARKER, Code, err_marker;
    /// An MPA Request or Reply that is not one: TCP is closed at once.
    StartupFrame: MPA_INVALID_FRAME, Nothing, -;

    // MPA start-up: RFC 6581 section 8.

    /// The start-up failed at this end.
    StartupLocal: MPA_LOCAL_CATASTROPHIC, Code, -;
    /// More Reads wanted than can be served.
    InsufficientIrd: MPA_INSUFFICIENT_IRD, Code, -;
    /// No first message, or no connection model, in common.
    NoMatchingRtr: MPA_NO_MATCHING_RTR, Code, -;

    // DDP, tagged segments: RFC 5041 section 7.

    /// The version of a tagged segment.
    TaggedVersion: DDP_TAGGED_VERSION, Ddp, err_ddp_version;
    /// No region has the STag.
    TaggedStag: DDP_INVALID_STAG, Ddp, err_stag;
    /// The region does not allow it. DDP has no code for a right: such an STag has no buffer that
    /// allows placement (section 7.1).
    TaggedAccess: DDP_INVALID_STAG, Ddp, err_access;
    /// The region belongs to another protection domain or stream.
    TaggedAssociation: DDP_STAG_NOT_ASSOCIATED, Ddp, err_association;
    /// Not all of the payload lies inside the region.
    TaggedBounds: DDP_BOUNDS, Ddp, err_bounds;
    /// Tagged offset and length wrap past 2^64.
    TaggedWrap: DDP_TO_WRAP, Ddp, err_wrap;
    /// A Read Response for another STag than the Read named: that STag is not valid for it.
    ResponseStag: DDP_INVALID_STAG, Ddp, err_response;
    /// A Read Response beside the range the Read named.
    ResponseRange: DDP_BOUNDS, Ddp, err_response;

    // DDP, untagged segments.

    /// The version of an untagged segment.
    UntaggedVersion: DDP_UNTAGGED_VERSION, Ddp, err_ddp_version;
    /// No such queue.
    Queue: DDP_INVALID_QN, Ddp, err_queue;
    /// Another message than the next of its queue.
    Msn: DDP_MSN_RANGE, Ddp, err_msn;
    /// The next request of its queue, and no place for it.
    NoBuffer: DDP_NO_BUFFER, Ddp, err_no_buffer;
    /// The next Send or Immediate Data, and no receive for it.
    NoReceive: DDP_NO_BUFFER, Ddp, err_no_buffer;
    /// Another offset than the next of its message.
    Offset: DDP_INVALID_MO, Ddp, err_offset;
    /// More than its buffer takes.
    TooLong: DDP_TOO_LONG, Ddp, err_too_long;

    // RDMAP: RFC 5040 sections 4.8 and 7.

    /// The ULPDU ends inside its DDP header. No code of its own: the stream is broken.
    Short: RDMAP_STREAM_CATASTROPHIC, Ddp, err_short;
    /// The RDMAP version.
    RdmapVersion: RDMAP_VERSION, Ddp, err_rdmap_version;
    /// An opcode nobody has assigned, in the wrong kind of segment, on the wrong queue, or not
    /// expected now.
    Opcode: RDMAP_OPCODE, Ddp, err_opcode;
    /// A payload that is not what the opcode says it is. No code of its own: the stream is broken.
    Malformed: RDMAP_STREAM_CATASTROPHIC, Ddp, err_malformed;
    /// A Read Response that ends before the last byte asked for. No code of its own.
    ResponseShort: RDMAP_STREAM_CATASTROPHIC, Ddp, err_response;
    /// A Read Request for an STag no region has.
    ReadStag: RDMAP_INVALID_STAG, DdpAndRdmap, err_stag;
    /// A Read Request for a region of another protection domain or stream.
    ReadAssociation: RDMAP_STAG_NOT_ASSOCIATED, DdpAndRdmap, err_association;
    /// A Read Request for a region that may not be read.
    ReadAccess: RDMAP_ACCESS, DdpAndRdmap, err_access;
    /// A Read Request for more than lies inside the region.
    ReadBounds: RDMAP_BOUNDS, DdpAndRdmap, err_bounds;
    /// A Read Request whose tagged offset and length wrap past 2^64.
    ReadWrap: RDMAP_TO_WRAP, DdpAndRdmap, err_wrap;
    /// A Send with Invalidate of an STag that this stream may not invalidate, whatever the reason
    /// (section 5.3): unknown, of another protection domain or stream, shared, or without the
    /// right.
    Invalidate: RDMAP_CANNOT_INVALIDATE, Ddp, err_invalidate;
    /// A local SGE: the application's mistake, not the peer's.
    Local: RDMAP_LOCAL_CATASTROPHIC, Code, err_local;

    // A Terminate is never answered with another: it is not among the messages of section 7.1.

    /// A Terminate that is not the first message of its queue.
    TerminateMsn: DDP_MSN_RANGE, Nothing, err_msn;
    /// A Terminate that does not begin at offset 0.
    TerminateOffset: DDP_INVALID_MO, Nothing, err_offset;
    /// A Terminate of more than one segment, or without its control field.
    TerminateMalformed: RDMAP_STREAM_CATASTROPHIC, Nothing, err_malformed;

    // Atomics and Immediate Data: RFC 7306 section 8. It adds checks but no codes, and has no
    // RDMAP header repeated. What these messages share with others is above: version, opcode,
    // queue, MSN, buffer, length.

    /// An Atomic Request for an STag no region has.
    AtomicStag: RDMAP_INVALID_STAG, Ddp, err_stag;
    /// An Atomic Request for a region of another protection domain or stream.
    AtomicAssociation: RDMAP_STAG_NOT_ASSOCIATED, Ddp, err_association;
    /// An Atomic Request for a region that lacks the right.
    AtomicAccess: RDMAP_ACCESS, Ddp, err_access;
    /// An Atomic Request for eight bytes of which some lie outside the region.
    AtomicBounds: RDMAP_BOUNDS, Ddp, err_bounds;
    /// An Atomic Request for eight bytes that wrap past 2^64.
    AtomicWrap: RDMAP_TO_WRAP, Ddp, err_wrap;
    /// An Atomic Request whose target is not aligned to 64 bits (section 8.2).
    AtomicAlignment: RDMAP_STREAM_CATASTROPHIC, Ddp, err_misaligned;
    /// An Atomic Request for an operation we do not have (section 5.2.1, rule 4). No code of its
    /// own: an opcode that was not expected is what comes nearest.
    AtomicOperation: RDMAP_OPCODE, Ddp, err_opcode;
    /// An Atomic Response that answers another request than the oldest outstanding one. No code of
    /// its own.
    AtomicResponse: RDMAP_STREAM_CATASTROPHIC, Ddp, err_response;
}

impl Fault {
    /// Layer, type and code by which it is reported, to the peer or the application.
    pub const fn code(self) -> TermCode {
        self.row().code
    }

    /// What the peer is told.
    pub const fn answer(self) -> Answer {
        self.row().answer
    }

    pub(crate) fn count(self, counters: &mut QpCounters) {
        if let Some(counter) = self.row().counter {
            *counter(counters) += 1;
        }
    }

    /// For the STag of a tagged segment.
    pub(crate) const fn tagged(fault: MrFault) -> Fault {
        match fault {
            MrFault::InvalidStag => Fault::TaggedStag,
            MrFault::NotAssociated => Fault::TaggedAssociation,
            MrFault::Access => Fault::TaggedAccess,
            MrFault::ToWrap => Fault::TaggedWrap,
            MrFault::Bounds => Fault::TaggedBounds,
        }
    }

    /// For the source STag of a Read Request.
    pub(crate) const fn read_source(fault: MrFault) -> Fault {
        match fault {
            MrFault::InvalidStag => Fault::ReadStag,
            MrFault::NotAssociated => Fault::ReadAssociation,
            MrFault::Access => Fault::ReadAccess,
            MrFault::ToWrap => Fault::ReadWrap,
            MrFault::Bounds => Fault::ReadBounds,
        }
    }

    /// For the STag of an Atomic Request.
    pub(crate) const fn atomic(fault: MrFault) -> Fault {
        match fault {
            MrFault::InvalidStag => Fault::AtomicStag,
            MrFault::NotAssociated => Fault::AtomicAssociation,
            MrFault::Access => Fault::AtomicAccess,
            MrFault::ToWrap => Fault::AtomicWrap,
            MrFault::Bounds => Fault::AtomicBounds,
        }
    }
}

impl From<DdpError> for Fault {
    fn from(e: DdpError) -> Fault {
        match e {
            DdpError::Short { .. } => Fault::Short,
            DdpError::Version { tagged: true, .. } => Fault::TaggedVersion,
            DdpError::Version { tagged: false, .. } => Fault::UntaggedVersion,
        }
    }
}

impl From<ControlError> for Fault {
    fn from(e: ControlError) -> Fault {
        match e {
            ControlError::Queue(_) => Fault::Queue,
            ControlError::Version(_) => Fault::RdmapVersion,
            ControlError::UnknownOpcode(_) | ControlError::Misplaced { .. } => Fault::Opcode,
        }
    }
}

impl From<MarkerError> for Fault {
    fn from(_: MarkerError) -> Fault {
        Fault::Marker
    }
}

#[cfg(test)]
mod tests;
