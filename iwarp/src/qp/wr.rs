//! Work requests: what an application asks a QP to do.

use crate::Stag;
use arrayvec::ArrayVec;

/// Most SGEs one work request can have.
pub const MAX_SGES: usize = 4;

/// Longest message, in bytes. DDP allows any length below 2^32 (RFC 5041 section 5.2).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// A piece of local registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The region.
    pub stag: Stag,
    /// Bytes.
    pub len: u32,
    /// Tagged offset of the first byte in the region.
    pub to: u64,
}

/// The pieces of local memory of one work request, in order; possibly none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SgList {
    sges: [Sge; MAX_SGES],
    count: u8,
}

impl SgList {
    /// No memory at all: a message without bytes.
    pub const EMPTY: SgList =
        SgList { sges: [Sge { stag: Stag(0), len: 0, to: 0 }; MAX_SGES], count: 0 };

    /// A single piece.
    pub const fn one(sge: Sge) -> SgList {
        let mut list = SgList::EMPTY;
        list.sges[0] = sge;
        list.count = 1;
        list
    }

    /// Several pieces; `None` when they are more than [`MAX_SGES`].
    pub fn new(sges: &[Sge]) -> Option<SgList> {
        let mut list = SgList::EMPTY;
        list.sges.get_mut(..sges.len())?.copy_from_slice(sges);
        list.count = u8::try_from(sges.len()).ok()?;
        Some(list)
    }

    /// The pieces.
    pub fn as_slice(&self) -> &[Sge] {
        &self.sges[..usize::from(self.count)]
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.as_slice().iter().map(|s| u64::from(s.len)).sum()
    }

    /// Calls `f` with the parts of the pieces that make up bytes `[off, off + len)` of the
    /// message, in order and none of them empty, until it fails.
    pub(crate) fn try_for_each<E>(
        &self,
        off: u32,
        len: u32,
        mut f: impl FnMut(Sge) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut skip, mut left) = (off, len);
        for s in self.as_slice() {
            if left == 0 {
                break;
            }
            if skip >= s.len {
                skip -= s.len;
                continue;
            }
            let n = (s.len - skip).min(left);
            // Saturation only: a wrapped offset is refused by the STag table.
            f(Sge { stag: s.stag, len: n, to: s.to.saturating_add(u64::from(skip)) })?;
            left -= n;
            skip = 0;
        }
        Ok(())
    }

    /// The part of one piece where byte `off` of the message lies, at most `max` long.
    #[inline]
    pub(crate) fn piece(&self, off: u32, max: u32) -> Option<Sge> {
        // Most lists have one entry, and most segments begin in the first one.
        if let Some(s) = self.as_slice().first()
            && off < s.len
        {
            let to = s.to.saturating_add(u64::from(off));
            return Some(Sge { stag: s.stag, len: (s.len - off).min(max), to });
        }
        let mut out = ArrayVec::<Sge, 1>::new();
        let _ = self.try_for_each(off, max, |s| out.try_push(s));
        out.pop()
    }
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
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// The application's own mark, given back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local memory: source of a Send or Write, destination of a Read.
    pub sges: SgList,
    /// Whether its success makes a completion of its own; failure always does.
    pub signaled: bool,
    /// Do not start before all earlier Reads are done.
    pub fence: bool,
}

/// A buffer for one incoming Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// The application's own mark, given back in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: SgList,
}

/// Why a work request was not taken: misuse of the interface, nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue holds as many requests as it can; poll completions first.
    #[error("queue full")]
    Full,
    /// The message or buffer is longer than [`MAX_MESSAGE`].
    #[error("message too long")]
    TooLong,
    /// A Read with more than one SGE: one Read Response has one tagged buffer.
    #[error("a Read takes one SGE")]
    ReadSges,
    /// A Read on a QP whose ORD is 0.
    #[error("no outbound Reads were negotiated")]
    NoReads,
    /// [`close`](super::Qp::close) was called: nothing more can be sent.
    #[error("queue pair is closing")]
    Closing,
    /// The peer's tagged offset plus the length passes 2^64.
    #[error("remote tagged offset wraps")]
    ToWrap,
}
