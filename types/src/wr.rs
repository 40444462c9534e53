//! Work requests, which an application posts to a QP, and the static rules for them.

use crate::access::Access;
use crate::atomic::AtomicOp;
use crate::mr::Bind;
use crate::number::Stag;

/// Most SGEs of one work request.
pub const MAX_SGES: usize = 16;

/// Most bytes of inline data of one work request.
pub const MAX_INLINE: usize = 512;

/// Longest message, in bytes. DDP allows any length below 2^32 (RFC 5041 section 5.2).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// A piece of local registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// STag of the local region.
    pub stag: Stag,
    /// Length in bytes.
    pub len: u32,
    /// Tagged offset of the first byte in the region.
    pub to: u64,
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// A message into the peer's next receive buffer.
    Send {
        /// The peer raises an event for the message.
        solicited: bool,
        /// STag of a region of the peer, which the peer invalidates after delivering the message.
        invalidate: Option<Stag>,
    },
    /// Writes the peer's memory.
    Write {
        /// STag of the peer's region.
        stag: Stag,
        /// Tagged offset in that region.
        to: u64,
    },
    /// Reads the peer's memory into the work request's only SGE.
    Read {
        /// STag of the peer's region.
        stag: Stag,
        /// Tagged offset in that region.
        to: u64,
    },
    /// Sends Immediate Data (RFC 7306 section 6), which completes the peer's next receive buffer
    /// and writes nothing into it. The completion contains the 8 bytes. The request has no other
    /// data.
    Immediate {
        /// The 8 bytes, big-endian on the wire.
        data: u64,
        /// The peer raises an event for the message.
        solicited: bool,
    },
    /// Sends a Write and Immediate Data after it, as one request. A Write of no bytes is left out.
    WriteImmediate {
        /// STag of the peer's region.
        stag: Stag,
        /// Tagged offset in that region.
        to: u64,
        /// The Immediate Data, big-endian on the wire.
        data: u64,
        /// The peer raises an event for the message.
        solicited: bool,
    },
    /// Changes 64 bits of the peer's memory (RFC 7306 section 5). The QP stores their old value
    /// into the work request's only SGE of 8 bytes, in the byte order of this machine. An atomic
    /// operation counts as a Read for the ORD and for fences.
    Atomic {
        /// STag of the peer's region.
        stag: Stag,
        /// Tagged offset in that region; the address that it stands for is a multiple of 8.
        to: u64,
        /// The operation to carry out on the 64 bits.
        op: AtomicOp,
    },
    /// Makes an STag that was allocated (`heddle_mr::MrTable::allocate`) valid for the memory of the
    /// SGEs. This memory is of one region with [`Access::BIND`], and is one range or a list of
    /// [pages](crate::mr::PAGE) in up to [`MAX_SGES`] pieces: where two pieces are not adjacent,
    /// the first ends and the second begins at the border of a page. The request sends nothing. The
    /// QP carries it out in its turn, before it begins any later request of this queue.
    FastRegister(Bind),
    /// Binds a window of type 2, as a fast registration does; the memory is one range.
    BindWindow(Bind),
    /// Makes a fast registration or window of type 2 invalid. The request sends nothing. The QP
    /// carries it out in its turn, and not before all earlier Reads and atomic operations are done.
    /// The request completes after all earlier requests, when TCP will retransmit no byte of
    /// theirs.
    LocalInvalidate {
        /// The STag, with its present key.
        stag: Stag,
    },
}

impl SendOp {
    /// Returns true if the request is only about STags of this side, and sends nothing.
    pub const fn is_local(&self) -> bool {
        matches!(
            self,
            SendOp::FastRegister(_) | SendOp::BindWindow(_) | SendOp::LocalInvalidate { .. }
        )
    }
}

/// The local data of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Pieces of registered memory, in order, possibly none; at most [`MAX_SGES`]. The memory
    /// belongs to the QP until the request has completed.
    Sges(&'a [Sge]),
    /// The bytes themselves, at most [`MAX_INLINE`]; only for a Send or Write. Posting copies them,
    /// so the application may reuse their memory at once, and need not register it.
    Inline(&'a [u8]),
}

/// A request for the send queue, which borrows its payload description; posting copies what it
/// needs.
///
/// The constructors make a signaled request without fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr<'a> {
    /// The application's own mark, which the completion repeats.
    pub wr_id: u64,
    /// The operation to carry out.
    pub op: SendOp,
    /// The local memory: source of a Send or Write, sink of a Read or of the old value of an atomic
    /// operation.
    pub data: Data<'a>,
    /// True if the request's success produces a completion of its own; a failure always does.
    pub signaled: bool,
    /// The QP does not start the request before all earlier Reads and atomic operations are done.
    pub fence: bool,
}

impl<'a> SendWr<'a> {
    const fn new(wr_id: u64, op: SendOp, data: Data<'a>) -> SendWr<'a> {
        SendWr { wr_id, op, data, signaled: true, fence: false }
    }

    /// Makes a Send of the bytes in `sges`.
    pub const fn send(wr_id: u64, sges: &'a [Sge]) -> SendWr<'a> {
        let op = SendOp::Send { solicited: false, invalidate: None };
        SendWr::new(wr_id, op, Data::Sges(sges))
    }

    /// Makes a Send of `bytes`, which posting copies.
    pub const fn send_inline(wr_id: u64, bytes: &'a [u8]) -> SendWr<'a> {
        let op = SendOp::Send { solicited: false, invalidate: None };
        SendWr::new(wr_id, op, Data::Inline(bytes))
    }

    /// Makes a Write of the bytes in `sges` to tagged offset `to` of the peer's region `stag`.
    pub const fn write(wr_id: u64, sges: &'a [Sge], stag: Stag, to: u64) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::Write { stag, to }, Data::Sges(sges))
    }

    /// Makes a Write of `bytes`, which posting copies, to tagged offset `to` of the peer's region
    /// `stag`.
    pub const fn write_inline(wr_id: u64, bytes: &'a [u8], stag: Stag, to: u64) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::Write { stag, to }, Data::Inline(bytes))
    }

    /// Makes a Read from tagged offset `to` of the peer's region `stag` into `sink`: one SGE, or
    /// none for a Read of no bytes.
    pub const fn read(wr_id: u64, sink: &'a [Sge], stag: Stag, to: u64) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::Read { stag, to }, Data::Sges(sink))
    }

    /// Makes a request to send Immediate Data (RFC 7306 section 6): `data`, big-endian on the wire,
    /// comes in the completion of the peer's next receive, without a message. If the peer has
    /// posted no receive, the stream ends.
    ///
    /// Posting refuses the request with [`PostError::ImmediateData`] if the caller adds bytes to
    /// it.
    pub const fn immediate(wr_id: u64, data: u64) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::Immediate { data, solicited: false }, Data::Sges(&[]))
    }

    /// Makes a [`write`](SendWr::write) that is followed by Immediate Data: the peer's next receive
    /// completes with `data` when the Write is in place. The two have one completion at this end.
    ///
    /// Posting refuses the request for the same reasons as a Write: [`PostError::TooManySges`],
    /// [`PostError::TooLong`], [`PostError::ToWrap`].
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

    /// Makes an atomic operation at tagged offset `to` of the peer's region `stag`. `sink`, one SGE
    /// of 8 bytes, receives the old value, in the byte order of this machine.
    ///
    /// Posting refuses another sink with [`PostError::AtomicSink`], and an offset that wraps with
    /// [`PostError::ToWrap`]. On a stream with ORD 0 the request completes as
    /// [`LocalQpOperation`](crate::CqeStatus::LocalQpOperation) of [`PostError::NoReads`]. If the
    /// peer's region has no [`REMOTE_ATOMIC`](crate::Access::REMOTE_ATOMIC), or the address is no
    /// multiple of 8 (RFC 7306 section 5), the request completes as a remote error, and the stream
    /// ends.
    pub const fn atomic(
        wr_id: u64,
        sink: &'a [Sge],
        stag: Stag,
        to: u64,
        op: AtomicOp,
    ) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::Atomic { stag, to, op }, Data::Sges(sink))
    }

    /// Makes an [`atomic`](SendWr::atomic) that adds `add`, modulo 2^64. The errors are those of
    /// `atomic`.
    pub const fn fetch_add(
        wr_id: u64,
        sink: &'a [Sge],
        stag: Stag,
        to: u64,
        add: u64,
    ) -> SendWr<'a> {
        SendWr::atomic(wr_id, sink, stag, to, AtomicOp::FetchAdd { add, mask: 0 })
    }

    /// Makes an [`atomic`](SendWr::atomic) that stores `swap` if memory holds `compare`. Another
    /// old value is no error: the application finds it in the sink. The errors are those of
    /// `atomic`.
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

    /// Makes a request that makes `stag` valid for the memory of `sges`; the lower 8 bits of `stag`
    /// are its new key. Peers address the first byte of the memory as `to`.
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

    /// Makes a request that binds a window of type 2, as [`fast_register`](SendWr::fast_register)
    /// does.
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

    /// Makes a request that invalidates a fast registration or window of type 2.
    pub const fn local_invalidate(wr_id: u64, stag: Stag) -> SendWr<'a> {
        SendWr::new(wr_id, SendOp::LocalInvalidate { stag }, Data::Sges(&[]))
    }

    /// Returns the same request, without a completion of its own when it succeeds.
    #[must_use]
    pub const fn unsignaled(mut self) -> SendWr<'a> {
        self.signaled = false;
        self
    }

    /// Returns the same request, held until all earlier Reads are done.
    #[must_use]
    pub const fn fenced(mut self) -> SendWr<'a> {
        self.fence = true;
        self
    }

    /// Returns the same Send or Immediate Data with Solicited Event; other operations stay as they
    /// are.
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

    /// Returns the same Send with Invalidate of the peer's region `stag`; other operations stay as
    /// they are.
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
    /// The application's own mark, which the completion repeats.
    pub wr_id: u64,
    /// The memory for the message: pieces of registered memory, in order, at most [`MAX_SGES`].
    pub sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// Makes a buffer of `sges`.
    pub const fn new(wr_id: u64, sges: &'a [Sge]) -> RecvWr<'a> {
        RecvWr { wr_id, sges }
    }
}

/// The faults of a work request. [`Full`](PostError::Full) depends on the moment; the others are
/// static: posting would refuse the same request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PostError {
    /// The queue holds as many requests as it can; poll completions first.
    #[error("queue full")]
    Full,
    /// More SGEs than [`Limits::sges`].
    #[error("too many SGEs")]
    TooManySges,
    /// More inline bytes than [`Limits::inline`].
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
    /// An atomic operation with anything but one SGE of 8 bytes for the old value.
    #[error("an atomic operation takes one SGE of 8 bytes")]
    AtomicSink,
    /// Immediate Data alone, to which the caller added other data.
    #[error("Immediate Data alone takes no data")]
    ImmediateData,
    /// A fast registration or bind without SGEs or of no bytes, or an invalidation with some.
    #[error("a registration takes SGEs, an invalidation none")]
    BindData,
    /// The QP is closing: it still sends the requests posted before, and takes no more.
    #[error("queue pair is closing")]
    Closing,
    /// The QP takes its receive buffers from a shared queue: the application posts there.
    #[error("the queue pair has a shared receive queue")]
    SharedReceives,
    /// The connection is over: no worker takes requests of this QP any more.
    #[error("the connection of the queue pair is over")]
    Ended,
}

/// The limits of a QP for its requests, besides the rules that always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// SGEs of one request; at most [`MAX_SGES`].
    pub sges: usize,
    /// Inline bytes of one request; at most [`MAX_INLINE`].
    pub inline: usize,
    /// Outbound Reads and atomic operations that both ends negotiated; at 0 posting refuses them.
    pub ord: u16,
}

impl Default for Limits {
    /// Returns the largest limits, for a QP whose ORD is not negotiated yet.
    fn default() -> Limits {
        Limits { sges: MAX_SGES, inline: MAX_INLINE, ord: u16::MAX }
    }
}

/// Checks the static rules for a send request, which need neither the state of the QP nor the STag
/// table.
///
/// An application's library calls this function at posting. The QP relies on the same rules and no
/// others: a request that breaks them nevertheless completes as
/// [`LocalQpOperation`](crate::CqeStatus::LocalQpOperation).
#[inline(always)]
pub fn check_send(wr: &SendWr<'_>, limits: &Limits) -> Result<(), PostError> {
    send_len(wr, limits).map(|_| ())
}

/// Checks the static rules for a receive request, as [`check_send`] does for a send request.
#[inline]
pub fn check_recv(wr: &RecvWr<'_>, limits: &Limits) -> Result<(), PostError> {
    recv_len(wr, limits).map(|_| ())
}

/// Returns the number of bytes of a request's message, when the request keeps the rules.
#[inline(always)]
pub fn send_len(wr: &SendWr<'_>, limits: &Limits) -> Result<u32, PostError> {
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

/// Returns the number of bytes that a buffer holds, when it keeps the rules.
#[inline]
pub fn recv_len(wr: &RecvWr<'_>, limits: &Limits) -> Result<u32, PostError> {
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
