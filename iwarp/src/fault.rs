//! The faults of a stream, and the answer that the peer receives to each.
//!
//! This table gives for each fault the code of the Terminate, the headers that go along, and the
//! counter. Code that finds a fault names its row; no other code in the crate uses the numbers.
//! [`TermCode`] gives the numbers their names (RFC 5040 figure 9, RFC 5041 section 7.2, RFC 5044
//! section 8, RFC 6581 section 8); RFC 5040 figure 10 and section 7.1 say which headers go along.
//!
//! Where no RFC has a code of its own for a fault, the row says which of their codes stands in.

use crate::counters::QpCounters;
use crate::ddp::DdpError;
use crate::mpa::markers::MarkerError;
use crate::rdmap::ControlError;
use heddle_types::{MrFault, TermCode};

/// The answer that the peer receives to a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No Terminate: the stream just ends.
    Nothing,
    /// A Terminate that repeats no header: no bit is set.
    Code,
    /// A Terminate that repeats length and DDP header of the segment at fault, as far as there is
    /// such a segment: M and D.
    Ddp,
    /// A Terminate that also repeats the header of the Read Request: M, D and R.
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
        /// A reason for which a stream or its start-up ends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Fault {
            /// Every fault of the table.
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

    /// TCP ended although this end had not closed it. No peer is left to answer.
    ConnectionLost: MPA_CLOSED, Nothing, -;
    /// An FPDU has a wrong CRC.
    Crc: MPA_CRC, Code, err_crc;
    /// A marker points elsewhere than to the beginning of its FPDU.
    Marker: MPA_MARKER, Code, err_marker;
    /// The peer sent something other than an MPA Request or Reply: TCP is closed at once.
    StartupFrame: MPA_INVALID_FRAME, Nothing, -;

    // MPA start-up: RFC 6581 section 8.

    /// The start-up failed at this end.
    StartupLocal: MPA_LOCAL_CATASTROPHIC, Code, -;
    /// The peer wants more Reads than this end can serve.
    InsufficientIrd: MPA_INSUFFICIENT_IRD, Code, -;
    /// The two ends have no first message, or no connection model, in common.
    NoMatchingRtr: MPA_NO_MATCHING_RTR, Code, -;

    // DDP, tagged segments: RFC 5041 section 7.

    /// A tagged segment has another DDP version.
    TaggedVersion: DDP_TAGGED_VERSION, Ddp, err_ddp_version;
    /// No region has the STag.
    TaggedStag: DDP_INVALID_STAG, Ddp, err_stag;
    /// The region does not allow the access. DDP has no code for a missing right: such an STag has
    /// no buffer that allows placement (section 7.1).
    TaggedAccess: DDP_INVALID_STAG, Ddp, err_access;
    /// The region belongs to another protection domain or stream.
    TaggedAssociation: DDP_STAG_NOT_ASSOCIATED, Ddp, err_association;
    /// Not all of the payload lies inside the region.
    TaggedBounds: DDP_BOUNDS, Ddp, err_bounds;
    /// Tagged offset and length wrap past 2^64.
    TaggedWrap: DDP_TO_WRAP, Ddp, err_wrap;
    /// A Read Response names another STag than the Read did: that STag is not valid for the
    /// response.
    ResponseStag: DDP_INVALID_STAG, Ddp, err_response;
    /// A Read Response lies outside the range that the Read named.
    ResponseRange: DDP_BOUNDS, Ddp, err_response;

    // DDP, untagged segments.

    /// An untagged segment has another DDP version.
    UntaggedVersion: DDP_UNTAGGED_VERSION, Ddp, err_ddp_version;
    /// The stream has no such queue.
    Queue: DDP_INVALID_QN, Ddp, err_queue;
    /// The message is not the next of its queue.
    Msn: DDP_MSN_RANGE, Ddp, err_msn;
    /// The request is the next of its queue, but the queue has no room for it.
    NoBuffer: DDP_NO_BUFFER, Ddp, err_no_buffer;
    /// The next Send or Immediate Data has come, but no receive is posted for it.
    NoReceive: DDP_NO_BUFFER, Ddp, err_no_buffer;
    /// The offset is not the next of its message.
    Offset: DDP_INVALID_MO, Ddp, err_offset;
    /// The message is longer than its buffer.
    TooLong: DDP_TOO_LONG, Ddp, err_too_long;

    // RDMAP: RFC 5040 sections 4.8 and 7.

    /// The ULPDU ends inside its DDP header. No RFC has a code for this fault: the stream is
    /// broken.
    Short: RDMAP_STREAM_CATASTROPHIC, Ddp, err_short;
    /// A segment has another RDMAP version.
    RdmapVersion: RDMAP_VERSION, Ddp, err_rdmap_version;
    /// An opcode that is not assigned, or is in the wrong kind of segment, on the wrong queue, or
    /// not expected now.
    Opcode: RDMAP_OPCODE, Ddp, err_opcode;
    /// The payload does not have the form that its opcode requires. No RFC has a code for this
    /// fault: the stream is broken.
    Malformed: RDMAP_STREAM_CATASTROPHIC, Ddp, err_malformed;
    /// A Read Response that ends before the last byte of the Read. No RFC has a code for this
    /// fault.
    ResponseShort: RDMAP_STREAM_CATASTROPHIC, Ddp, err_response;
    /// A Read Request for an STag that no region has.
    ReadStag: RDMAP_INVALID_STAG, DdpAndRdmap, err_stag;
    /// A Read Request for a region of another protection domain or stream.
    ReadAssociation: RDMAP_STAG_NOT_ASSOCIATED, DdpAndRdmap, err_association;
    /// A Read Request for a region that the peer may not read.
    ReadAccess: RDMAP_ACCESS, DdpAndRdmap, err_access;
    /// A Read Request for bytes of which some lie outside the region.
    ReadBounds: RDMAP_BOUNDS, DdpAndRdmap, err_bounds;
    /// A Read Request whose tagged offset and length wrap past 2^64.
    ReadWrap: RDMAP_TO_WRAP, DdpAndRdmap, err_wrap;
    /// A Send with Invalidate of an STag that this stream may not invalidate, whatever the reason
    /// (section 5.3): the STag is unknown, of another protection domain or stream, shared, or lacks
    /// the right.
    Invalidate: RDMAP_CANNOT_INVALIDATE, Ddp, err_invalidate;
    /// A local SGE is bad: a mistake of the application, not of the peer.
    Local: RDMAP_LOCAL_CATASTROPHIC, Code, err_local;

    // No end answers a Terminate with another: section 7.1 does not list it among the messages.

    /// A Terminate that is not the first message of its queue.
    TerminateMsn: DDP_MSN_RANGE, Nothing, err_msn;
    /// A Terminate that does not begin at offset 0.
    TerminateOffset: DDP_INVALID_MO, Nothing, err_offset;
    /// A Terminate of more than one segment, or without its control field.
    TerminateMalformed: RDMAP_STREAM_CATASTROPHIC, Nothing, err_malformed;

    // Atomics and Immediate Data: RFC 7306 section 8 adds checks but no codes, and no Terminate
    // repeats an RDMAP header of these messages. The rows above have the faults that these messages
    // share with others: version, opcode, queue, MSN, buffer, length.

    /// An Atomic Request for an STag that no region has.
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
    /// An Atomic Request for an operation that Heddle does not have (section 5.2.1, rule 4). No RFC
    /// has a code for this fault; an unexpected opcode comes nearest.
    AtomicOperation: RDMAP_OPCODE, Ddp, err_opcode;
    /// An Atomic Response that answers another request than the oldest outstanding one. No RFC has
    /// a code for this fault.
    AtomicResponse: RDMAP_STREAM_CATASTROPHIC, Ddp, err_response;
}

impl Fault {
    /// Returns the layer, type and code by which this end reports the fault, to the peer or the
    /// application.
    pub const fn code(self) -> TermCode {
        self.row().code
    }

    /// Returns the answer that the peer receives.
    pub const fn answer(self) -> Answer {
        self.row().answer
    }

    pub(crate) fn count(self, counters: &mut QpCounters) {
        if let Some(counter) = self.row().counter {
            *counter(counters) += 1;
        }
    }

    /// Returns the fault for the STag of a tagged segment.
    pub(crate) const fn tagged(fault: MrFault) -> Fault {
        match fault {
            MrFault::InvalidStag => Fault::TaggedStag,
            MrFault::NotAssociated => Fault::TaggedAssociation,
            MrFault::Access => Fault::TaggedAccess,
            MrFault::ToWrap => Fault::TaggedWrap,
            MrFault::Bounds => Fault::TaggedBounds,
        }
    }

    /// Returns the fault for the source STag of a Read Request.
    pub(crate) const fn read_source(fault: MrFault) -> Fault {
        match fault {
            MrFault::InvalidStag => Fault::ReadStag,
            MrFault::NotAssociated => Fault::ReadAssociation,
            MrFault::Access => Fault::ReadAccess,
            MrFault::ToWrap => Fault::ReadWrap,
            MrFault::Bounds => Fault::ReadBounds,
        }
    }

    /// Returns the fault for the STag of an Atomic Request.
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
