//! Memory, as a connection knows it: by names and lengths. It never sees an octet of a payload but
//! those of received Sends, which it has the driver put where they belong.

use crate::reduce::Piece;

/// A name of the driver's for a contiguous piece of memory that work requests can be posted of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u64);

/// A part of a buffer: what a work request gathers from or scatters to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The buffer.
    pub buffer: BufferId,
    /// Offset of the first octet in it.
    pub offset: u64,
    /// Octets.
    pub length: u32,
}

/// What a buffer is allocated for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// A call that is received. RDMA Reads place parts of it: it must be a sink for them.
    #[default]
    Call,
    /// A call that has come in one Send, without anything to read: no longer than that, and no sink.
    Inline,
    /// The same of a call that comes in several Sends (version 2), which cannot wait: there is nowhere to
    /// keep them.
    Parts,
    /// A reply that is received in Sends.
    Reply,
}

/// Where received RPC messages are put together. The driver has it.
///
/// A buffer is the connection's from [`allocate`](Memory::allocate) until it is given back by
/// [`free`](Memory::free), or goes up in an event.
pub trait Memory {
    /// A buffer of at least `octets`, never 0, all of which can be named from offset 0 on. Whoever
    /// implements this bounds what peers can take.
    ///
    /// Without one ([`None`]) a [`Purpose::Call`] or [`Purpose::Inline`] waits: it is asked for again after
    /// [`memory_returned`](super::Connection::memory_returned). Others are refused: the call, or ours that
    /// it is the reply of, ends with an error.
    fn allocate(&mut self, purpose: Purpose, octets: u32) -> Option<BufferId>;

    /// Octets of the longest call that there can ever be a buffer for. A longer one is refused at once.
    fn call_max(&self) -> u32;

    /// Puts `octets` of a received Send at `offset`; within what was allocated.
    fn write(&mut self, buffer: BufferId, offset: u32, octets: &[u8]);

    /// Copies `from` one buffer `to` the offset of another; both within what was allocated.
    fn copy(&mut self, from: (BufferId, Piece), to: (BufferId, u32));

    /// Takes a buffer back: its message will never be whole.
    fn free(&mut self, buffer: BufferId);
}

/// The octets of `stream` from `offset` on, `length` of them: at most as many as there are.
pub(crate) fn range(
    stream: &[Sge],
    offset: u32,
    length: u32,
) -> impl Iterator<Item = Sge> + use<'_> {
    let (mut skip, mut left) = (offset, length);
    stream.iter().filter_map(move |sge| {
        let skipped = skip.min(sge.length);
        skip -= skipped;
        let length = (sge.length - skipped).min(left);
        left -= length;
        let offset = sge.offset + u64::from(skipped);
        (length > 0).then_some(Sge { offset, length, ..*sge })
    })
}

/// Octets of all; `None` beyond 2^32 - 1.
pub(crate) fn total(stream: &[Sge]) -> Option<u32> {
    stream.iter().try_fold(0u32, |sum, sge| sum.checked_add(sge.length))
}
