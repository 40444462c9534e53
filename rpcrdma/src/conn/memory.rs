//! Memory as a connection knows it: by names and lengths. The connection sees no byte of a payload
//! except those of received Sends, which it passes to the driver to be stored in their place.

use crate::reduce::Piece;

/// The driver's name for a contiguous piece of memory that work requests can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u64);

/// A part of a buffer that a work request gathers from or scatters to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The buffer that contains the part.
    pub buffer: BufferId,
    /// Offset of the part's first byte in the buffer.
    pub offset: u64,
    /// Length of the part in bytes.
    pub length: u32,
}

/// The purpose of an allocated buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// A call that this end receives. RDMA Reads place parts of the call, so the buffer must be a
    /// sink for them.
    #[default]
    Call,
    /// A call that came in one Send, with nothing to read: it is no longer than a Send, and needs
    /// no sink.
    Inline,
    /// A call that comes in several Sends (version 2). Such a call cannot wait, because there is no
    /// place to keep its parts.
    Parts,
    /// A reply that this end receives in Sends.
    Reply,
}

/// The memory in which the connection assembles received RPC messages. The driver implements this
/// trait.
///
/// The connection owns a buffer from [`allocate`](Memory::allocate) until the connection returns
/// the buffer with [`free`](Memory::free) or passes it up in an event.
pub trait Memory {
    /// Allocates a buffer of at least `bytes` bytes, never 0, all of which work requests can name
    /// from offset 0 on. The implementation limits the memory that peers can take.
    ///
    /// If there is no buffer ([`None`]), a [`Purpose::Call`] or [`Purpose::Inline`] waits, and the
    /// connection asks again after [`memory_returned`](super::Connection::memory_returned). For
    /// other purposes the connection does not wait: the received call, or the call of this end
    /// whose reply needs the buffer, ends with an error.
    fn allocate(&mut self, purpose: Purpose, bytes: u32) -> Option<BufferId>;

    /// Returns the length in bytes of the longest call that can ever get a buffer. The connection
    /// refuses longer calls at once.
    fn call_max(&self) -> u32;

    /// Stores `bytes` of a received Send at `offset`, within the allocated length.
    fn write(&mut self, buffer: BufferId, offset: u32, bytes: &[u8]);

    /// Copies the piece `from` of a buffer `to` an offset in another buffer; both are within the
    /// allocated lengths.
    fn copy(&mut self, from: (BufferId, Piece), to: (BufferId, u32));

    /// Takes back a buffer whose message will never be complete.
    fn free(&mut self, buffer: BufferId);
}

/// Returns the `length` bytes of `stream` from `offset` on; fewer if the stream ends before.
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

/// Returns the length of all parts together, in bytes; `None` beyond 2^32 - 1.
pub(crate) fn total(stream: &[Sge]) -> Option<u32> {
    stream.iter().try_fold(0u32, |sum, sge| sum.checked_add(sge.length))
}
