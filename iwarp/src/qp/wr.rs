//! Work requests: what an application asks a QP to do, and the static rules for them.

use crate::rdmap::AtomicOp;
use crate::{Access, Bind, Stag};

/// Most SGEs one work request can have.
pub const MAX_SGES: usize = 16;

/// Most octets of inline data one work request can have.
pub const MAX_INLINE: usize = 512;

/// Longest message, in octets. DDP allows any length below 2^32 (RFC 5041 section 5.2).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// A piece of local registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The region.
    pub stag: Stag,
    /// Octets.
    pub len: u32,
    /// Tagged offset of the first octet in the region.
    pub to: u64,
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// A message into the peer's next receive buffer.
    Send {
        /// Ask the peer to raise an event.
        solicited: bool,
        /// A region of the peer to invalidate once the message is delivered.
        invalidate: Option<Stag>,
    },
    /// Write the peer's memory.
    Write {
        /// The peer's region.
        stag: Stag,
        /// Where in it.
        to: u64,
    },
    /// Read the peer's memory into the work request's only SGE.
    Read {
        /// The peer's region.
        stag: Stag,
        /// Where in it.
        to: u64,
    },
    /// Immediate Data (RFC 7306 section 6): completes the peer's next receive buffer, into which
    /// nothing is written, and hands 8 octets over in the completion. The request has no data.
    Immediate {
        /// What is handed over, big-endian on the wire.
        data: u64,
        /// Ask the peer to raise an event.
        solicited: bool,
    },
    /// A Write and the Immediate Data behind it, as one request. A Write of no octets is left out.
    WriteImmediate {
        /// The peer's region.
        stag: Stag,
        /// Where in it.
        to: u64,
        /// What is handed over.
        data: u64,
        /// Ask the peer to raise an event.
        solicited: bool,
    },
    /// Change 64 bits of the peer's memory (RFC 7306 section 5); what stood there before comes into
    /// the work request's only SGE of 8 octets, in the order of this machine. It counts as a Read:
    /// towards the ORD, and for fences.
    Atomic {
        /// The peer's region.
        stag: Stag,
        /// Where in it; the address this stands for is a multiple of 8.
        to: u64,
        /// How.
        op: AtomicOp,
    },
    /// Make an STag that was [allocated](crate::MrTable::allocate) valid for the memory of the SGEs:
    /// of one region with [`Access::BIND`], one range or a list of [pages](crate::mr::PAGE) in up to
    /// [`MAX_SGES`] pieces: where they do not follow one another, one ends and the next begins at the
    /// border of a page. Nothing is sent. Done in its turn, before any later request of this queue
    /// is begun.
    FastRegister(Bind),
    /// As a fast registration, of a window of type 2; the memory is one range.
    BindWindow(Bind),
    /// Make a fast registration or window of type 2 invalid. Nothing is sent. Done in its turn, and not
    /// before all earlier Reads and atomic operations are done; it completes after all earlier
    /// requests, when TCP will send nothing of theirs again.
    LocalInvalidate {
        /// The STag, with the key it has.
        stag: Stag,
    },
}

impl SendOp {
    /// Whether it is about STags of this side alone, and nothing is sent.
    pub const fn is_local(&self) -> bool {
        matches!(
            self,
            SendOp::FastRegister(_) | SendOp::BindWindow(_) | SendOp::LocalInvalidate { .. }
        )
    }
}

/// The local end of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Pieces of registered memory, in order, possibly none; at most [`MAX_SGES`]. They belong to
    /// the QP until the request has completed.
    Sges(&'a [Sge]),
    /// The octets themselves, at most [`MAX_INLINE`]; of a Send or Write only. They are copied at
    /// posting, so their source is free at once and needs no registration.
    Inline(&'a [u8]),
}

/// A request for the send queue. It borrows its payload description; posting copies what it needs.
///
/// The constructors make a signaled request without fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr<'a> {
    /// The application's own mark, given back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local memory: source of a Send or Write, sink of a Read or of what an atomic operation
    /// found.
    pub data: Data<'a>,
    /// Whether its success makes a completion of its own; failure always does.
    pub signaled: bool,
    /// Do not start before all earlier Reads and atomic operations are done.
    pub fence: bool,
}

impl<'a> SendWr<'a> {
    const fn new(wr_id: u64, op: SendOp, data: Data<'a>) -> SendWr<'a> {
        SendWr { wr_id, op, data, signaled: true, fence: false }
    }

    /// A Send of the octets in `sges`.
    pub const fn send(wr_id: u64, sges: &'a [Sge]) -> SendWr<'a> {
        let op = SendOp::Send { solicited: false, invalidate: None };
        SendWr::new(wr_id, op, Data::Sges(sges))
    }

    /// A Send of `bytes`, which are copied.
    pub const fn send_inline(wr_id: u64, bytes: &'a [u8]) -> SendWr<'a> {
        let op = SendOp::Send { solicited: false, invalidate: None };
        SendWr::new(wr_id, op, Data::Inline(bytes))
    }

    /// A Write of the octets in `sges` to tagged offset `to` of the peer's region `stag`.
    pub const fn write(wr_id: u64, sges: &'a [Sge], stag: Stag, to: u64) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::Write { stag, to }, Data::Sges(sges))
    }

    /// A Write of `bytes`, which are copied, to tagged offset `to` of the peer's region `stag`.
    pub const fn write_inline(wr_id: u64, bytes: &'a [u8], stag: Stag, to: u64) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::Write { stag, to }, Data::Inline(bytes))
    }

    /// A Read from tagged offset `to` of the peer's region `stag` into `sink`: one SGE, or none
    /// for a Read of no octets.
    pub const fn read(wr_id: u64, sink: &'a [Sge], stag: Stag, to: u64) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::Read { stag, to }, Data::Sges(sink))
    }

    /// Immediate Data (RFC 7306 section 6): `data`, big-endian on the wire, in the completion of the
    /// peer's next receive, without a message. Where the peer has posted none the stream ends.
    ///
    /// Refused at posting: [`PostError::ImmediateData`] when octets were added to it.
    pub const fn immediate(wr_id: u64, data: u64) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::Immediate { data, solicited: false }, Data::Sges(&[]))
    }

    /// A [`write`](SendWr::write) that is followed by Immediate Data: the peer's next receive
    /// completes with `data` when the Write is in place. One completion here for both.
    ///
    /// Refused at posting: as a Write, [`PostError::TooManySges`], [`PostError::TooLong`],
    /// [`PostError::ToWrap`].
    pub const fn write_immediate(
        wr_id: u64,
        sges: &'a [Sge],
        stag: Stag,
        to: u64,
        data: u64,
    ) -> SendWr<'a> {
        let op = SendOp::WriteImmediate { stag, to, data, solicited: false };
        SendWr::new(wr_id, op, Data::Sges(sges))
    }

    /// An atomic operation at tagged offset `to` of the peer's region `stag`; `sink`, one SGE of 8
    /// octets, takes what stood there before, in the byte order of this machine.
    ///
    /// Refused at posting: [`PostError::AtomicSink`] for another sink, [`PostError::ToWrap`]. It
    /// completes as [`LocalQpOperation`](super::CqeStatus::LocalQpOperation) of
    /// [`PostError::NoReads`] on a stream with ORD 0, and as a remote error, with the stream at its
    /// end, where the peer's region has no [`REMOTE_ATOMIC`](crate::Access::REMOTE_ATOMIC) or the
    /// address is no multiple of 8 (RFC 7306 section 5).
    pub const fn atomic(
        wr_id: u64,
        sink: &'a [Sge],
        stag: Stag,
        to: u64,
        op: AtomicOp,
    ) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::Atomic { stag, to, op }, Data::Sges(sink))
    }

    /// An [`atomic`](SendWr::atomic) that adds `add`, modulo 2^64. Errors are the same.
    pub const fn fetch_add(
        wr_id: u64,
        sink: &'a [Sge],
        stag: Stag,
        to: u64,
        add: u64,
    ) -> SendWr<'a> {
        SendWr::atomic(wr_id, sink, stag, to, AtomicOp::FetchAdd { add, mask: 0 })
    }

    /// An [`atomic`](SendWr::atomic) that stores `swap` where it finds `compare`. That it has found
    /// something else is no error: the sink tells. Errors are the same.
    pub const fn compare_swap(
        wr_id: u64,
        sink: &'a [Sge],
        stag: Stag,
        to: u64,
        compare: u64,
        swap: u64,
    ) -> SendWr<'a> {
        let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
        let op = AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask };
        SendWr::atomic(wr_id, sink, stag, to, op)
    }

    /// Makes `stag` (its lower 8 bits are the key it gets) valid for the memory of `sges`, whose first
    /// octet peers call `to`.
    pub const fn fast_register(
        wr_id: u64,
        stag: Stag,
        sges: &'a [Sge],
        to: u64,
        access: Access,
    ) -> SendWr<'a> {
        let op = SendOp::FastRegister(Bind { stag, to, access });
        SendWr::new(wr_id, op, Data::Sges(sges))
    }

    /// As [`fast_register`](SendWr::fast_register), of a window of type 2.
    pub const fn bind_window(
        wr_id: u64,
        stag: Stag,
        sges: &'a [Sge],
        to: u64,
        access: Access,
    ) -> SendWr<'a> {
        let op = SendOp::BindWindow(Bind { stag, to, access });
        SendWr::new(wr_id, op, Data::Sges(sges))
    }

    /// Makes a fast registration or window of type 2 invalid.
    pub const fn local_invalidate(wr_id: u64, stag: Stag) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::LocalInvalidate { stag }, Data::Sges(&[]))
    }

    /// The same, without a completion of its own when it succeeds.
    #[must_use]
    pub const fn unsignaled(mut self) -> SendWr<'a> {
        self.signaled = false;
        self
    }

    /// The same, held until all earlier Reads are done.
    #[must_use]
    pub const fn fenced(mut self) -> SendWr<'a> {
        self.fence = true;
        self
    }

    /// The same Send or Immediate Data with Solicited Event; other operations stay as they are.
    #[must_use]
    pub const fn solicited(mut self) -> SendWr<'a> {
        match &mut self.op {
            SendOp::Send { solicited, .. }
            | SendOp::Immediate { solicited, .. }
            | SendOp::WriteImmediate { solicited, .. } => *solicited = true,
            _ => {}
        }
        self
    }

    /// The same Send with Invalidate of the peer's region `stag`; other operations stay as they
    /// are.
    #[must_use]
    pub const fn invalidating(mut self, stag: Stag) -> SendWr<'a> {
        if let SendOp::Send { solicited, .. } = self.op {
            self.op = SendOp::Send { solicited, invalidate: Some(stag) };
        }
        self
    }
}

/// A buffer for one incoming Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr<'a> {
    /// The application's own mark, given back in the completion.
    pub wr_id: u64,
    /// Where the message goes: pieces of registered memory, in order, at most [`MAX_SGES`].
    pub sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// A buffer made of `sges`.
    pub const fn new(wr_id: u64, sges: &'a [Sge]) -> RecvWr<'a> {
        RecvWr { wr_id, sges }
    }
}

/// What is wrong with a work request. [`Full`](PostError::Full) is about the moment; the others
/// are static: the same request will be refused again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PostError {
    /// The queue holds as many requests as it can; poll completions first.
    #[error("queue full")]
    Full,
    /// More SGEs than [`Limits::sges`].
    #[error("too many SGEs")]
    TooManySges,
    /// More inline octets than [`Limits::inline`].
    #[error("too much inline data")]
    InlineTooLong,
    /// The message or buffer is longer than [`MAX_MESSAGE`].
    #[error("message too long")]
    TooLong,
    /// The peer's tagged offset plus the length passes 2^64.
    #[error("remote tagged offset wraps")]
    ToWrap,
    /// A Read with more than one SGE: one Read Response has one tagged buffer.
    #[error("a Read takes one SGE")]
    ReadSges,
    /// A Read with inline data, which cannot be a sink.
    #[error("a Read cannot be inline")]
    ReadInline,
    /// A Read or atomic operation on a QP whose ORD is 0.
    #[error("no outbound Reads were negotiated")]
    NoReads,
    /// An atomic operation with anything but one SGE of 8 octets to put the old value in.
    #[error("an atomic operation takes one SGE of 8 octets")]
    AtomicSink,
    /// Immediate Data alone with data of another kind.
    #[error("Immediate Data alone takes no data")]
    ImmediateData,
    /// A fast registration or bind without SGEs or of no octets, or an invalidation with some.
    #[error("a registration takes SGEs, an invalidation none")]
    BindData,
    /// The QP is closing: what was posted before is still sent, nothing more is taken.
    #[error("queue pair is closing")]
    Closing,
    /// The QP takes its receive buffers from a shared queue: post there.
    #[error("the queue pair has a shared receive queue")]
    SharedReceives,
    /// The connection is over: no worker takes requests of this QP any more.
    #[error("the connection of the queue pair is over")]
    Ended,
}

/// What a QP takes, beside the rules that always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// SGEs of one request; at most [`MAX_SGES`].
    pub sges: usize,
    /// Inline octets of one request; at most [`MAX_INLINE`].
    pub inline: usize,
    /// Outbound Reads and atomic operations that were negotiated; at 0 they are refused.
    pub ord: u16,
}

impl Default for Limits {
    /// All that can be. Good for a QP whose ORD is not negotiated yet.
    fn default() -> Limits {
        Limits { sges: MAX_SGES, inline: MAX_INLINE, ord: u16::MAX }
    }
}

/// The static rules for a send request, which need neither the state of the QP nor the STag table.
///
/// An application's library calls it at posting. The QP relies on the same rules and nothing else:
/// what breaks them all the same completes as
/// [`LocalQpOperation`](super::CqeStatus::LocalQpOperation).
#[inline(always)]
pub fn check_send(wr: &SendWr<'_>, limits: &Limits) -> Result<(), PostError> {
    send_len(wr, limits).map(|_| ())
}

/// As [`check_send`], for a receive request.
#[inline]
pub fn check_recv(wr: &RecvWr<'_>, limits: &Limits) -> Result<(), PostError> {
    recv_len(wr, limits).map(|_| ())
}

/// Octets of a request's message, when it keeps the rules.
#[inline(always)]
pub(super) fn send_len(wr: &SendWr<'_>, limits: &Limits) -> Result<u32, PostError> {
    let len = match wr.data {
        Data::Sges(sges) => sges_len(sges, limits)?,
        Data::Inline(bytes) if bytes.len() <= limits.inline.min(MAX_INLINE) => {
            u32::try_from(bytes.len()).map_err(|_| PostError::InlineTooLong)?
        }
        Data::Inline(_) => return Err(PostError::InlineTooLong),
    };
    let to = match wr.op {
        SendOp::Send { .. } => return Ok(len),
        SendOp::Write { to, .. } | SendOp::WriteImmediate { to, .. } => to,
        SendOp::Immediate { .. } if len == 0 => return Ok(0),
        SendOp::Immediate { .. } => return Err(PostError::ImmediateData),
        SendOp::FastRegister(Bind { to, .. }) | SendOp::BindWindow(Bind { to, .. }) => {
            match wr.data {
                Data::Sges(_) if len > 0 => to,
                _ => return Err(PostError::BindData),
            }
        }
        SendOp::LocalInvalidate { .. } => match wr.data {
            Data::Sges([]) => return Ok(0),
            _ => return Err(PostError::BindData),
        },
        SendOp::Atomic { to, .. } => match wr.data {
            Data::Sges([Sge { len: 8, .. }]) if limits.ord == 0 => return Err(PostError::NoReads),
            Data::Sges([Sge { len: 8, .. }]) => to,
            _ => return Err(PostError::AtomicSink),
        },
        SendOp::Read { to, .. } => match wr.data {
            Data::Inline(_) => return Err(PostError::ReadInline),
            Data::Sges(sges) if sges.len() > 1 => return Err(PostError::ReadSges),
            Data::Sges(_) if limits.ord == 0 => return Err(PostError::NoReads),
            Data::Sges(_) => to,
        },
    };
    to.checked_add(u64::from(len)).map(|_| len).ok_or(PostError::ToWrap)
}

/// Octets a buffer holds, when it keeps the rules.
#[inline]
pub(super) fn recv_len(wr: &RecvWr<'_>, limits: &Limits) -> Result<u32, PostError> {
    sges_len(wr.sges, limits)
}

#[inline]
fn sges_len(sges: &[Sge], limits: &Limits) -> Result<u32, PostError> {
    if sges.len() > limits.sges.min(MAX_SGES) {
        return Err(PostError::TooManySges);
    }
    if let [sge] = sges
        && sge.len <= MAX_MESSAGE
    {
        return Ok(sge.len);
    }
    let total: u64 = sges.iter().map(|s| u64::from(s.len)).sum();
    u32::try_from(total).ok().filter(|n| *n <= MAX_MESSAGE).ok_or(PostError::TooLong)
}
