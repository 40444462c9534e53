//! The events that a connection reports to the upper layer.

use super::config::CHUNKS_MAX;
use super::memory::BufferId;
use super::work::{CallId, ServedId};
use crate::binding::ITEMS_MAX;
use crate::chunk::ReturnedError;
use crate::credit;
use crate::header::{Refusal, Xid};
use crate::property::{Properties, ThresholdError};
use crate::reduce::Item;

/// An event of a connection. Each call of this end ends by exactly one of `Reply`, `Sent` and
/// `Failed`. Each call of the peer that came up in `Call` ends by exactly one `Served`, once the
/// call was answered or the connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Both ends speak this version. The connection now sends calls that wait.
    Established {
        /// Number of the version: 1 or 2.
        version: u32,
    },
    /// The peer has sent its properties (version 2).
    Properties(Properties),
    /// The peer has made a call, which the upper layer serves.
    Call(IncomingCall),
    /// The peer has the whole reply to a served call; the memory of the reply is free.
    Served {
        /// The call that was served.
        id: ServedId,
        /// Ok if the peer got the reply of the upper layer.
        result: Result<(), ServeError>,
    },
    /// A call has its reply; all its memory is free, and out of the peer's reach.
    Reply {
        /// The call that has ended.
        call: CallId,
        /// The reply of the peer.
        reply: IncomingReply,
    },
    /// A call that expects no reply was sent; its memory is free.
    Sent {
        /// The call that has ended.
        call: CallId,
    },
    /// A call has failed; all its memory is free, and out of the peer's reach.
    Failed {
        /// The call that has ended.
        call: CallId,
        /// The reason of the failure.
        error: CallError,
    },
    /// The driver must close the connection, which posts and takes nothing more. Calls end when the
    /// driver calls [`handle_disconnected`](super::Connection::handle_disconnected).
    Close(CloseReason),
}

/// A call of the peer. The first word of its stream is the XID again, and the upper layer compares
/// the two: the connection has not seen the stream of a call that came by RDMA Read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingCall {
    /// Names the call until [`Event::Served`].
    pub id: ServedId,
    /// The XID of the transport header.
    pub xid: Xid,
    /// The buffer that holds the whole, unreduced Payload stream from its beginning on. The upper
    /// layer owns the buffer and frees it at any time.
    pub buffer: BufferId,
    /// Length of the stream in bytes.
    pub length: u32,
    /// Items that came in Read chunks. The upper layer refuses the call when its program does not
    /// allow an item to be placed.
    pub reads: ItemSet,
    /// Number of Write chunks that the peer has provided.
    pub write_chunks: u16,
}

/// A set of items in stream order; at most [`ITEMS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemSet {
    items: [Item; ITEMS_MAX],
    len: usize,
}

impl ItemSet {
    /// Returns the items in stream order.
    pub fn as_slice(&self) -> &[Item] {
        self.items.get(..self.len).unwrap_or(&self.items)
    }

    /// Collects the first [`ITEMS_MAX`] items.
    pub(crate) fn of(all: impl Iterator<Item = Item>) -> ItemSet {
        let mut set = ItemSet::default();
        for (to, item) in set.items.iter_mut().zip(all) {
            *to = item;
            set.len += 1;
        }
        set
    }
}

/// The peer's reply to a call of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingReply {
    /// The Payload stream, without results that are in Write chunks.
    pub stream: ReplyStream,
    /// Number of bytes that the responder filled in each room for a result.
    pub filled: Filled,
}

/// The place of a reply's Payload stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStream {
    /// The stream is in a buffer that was allocated for the reply. The upper layer now owns the
    /// buffer.
    Buffer {
        /// The buffer, which holds the stream from its beginning on.
        buffer: BufferId,
        /// Length of the stream in bytes.
        length: u32,
    },
    /// The stream is at the beginning of the room that the call provided for the whole reply.
    Chunk {
        /// Length of the stream in bytes.
        length: u32,
    },
}

/// The number of bytes that the responder filled in each room for a result. Empty when the call was
/// sent without Write chunks because its whole reply fits into a Send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    bytes: [u32; CHUNKS_MAX],
    len: usize,
}

impl Filled {
    /// Returns the numbers of bytes, in the order of the rooms.
    pub fn as_slice(&self) -> &[u32] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }

    pub(crate) fn of(all: impl Iterator<Item = u32>) -> Filled {
        let mut filled = Filled::default();
        for (to, bytes) in filled.bytes.iter_mut().zip(all) {
            *to = bytes;
            filled.len += 1;
        }
        filled
    }
}

/// The reason why a call of this end failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer refused the call. [`v2::Refusal::recovery`](crate::v2::Refusal::recovery) returns
    /// what the caller may do.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The connection did not understand the reply.
    #[error("bad reply: {0}")]
    BadReply(BadReply),
    /// The connection cannot convey the call: it is too long without chunks, or has too many
    /// segments.
    #[error("call cannot be conveyed in {threshold} bytes")]
    TooLong {
        /// Length of the longest Send in bytes.
        threshold: u32,
    },
    /// The peer does not take calls of the reverse direction.
    #[error("peer takes no reverse-direction calls")]
    NoReverse,
    /// Version 1 has no calls without a reply.
    #[error("call without reply in version 1")]
    CallOnly,
    /// The driver could not register the memory.
    #[error("memory could not be registered")]
    Registration,
    /// There is no memory for the reply.
    #[error("no memory for the reply")]
    NoMemory,
    /// The upper layer cancelled the call.
    #[error("cancelled")]
    Cancelled,
    /// The deadline of the call has passed.
    #[error("timed out")]
    TimedOut,
    /// The connection is lost, and the peer may or may not have executed the call. The caller may
    /// repeat the call on another connection with the same XID. The upper layer of the peer has to
    /// recognise the repetition; its connection cannot.
    #[error("connection lost")]
    Lost,
}

/// The fault in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// The header, or the order of the parts, is wrong.
    #[error("not understood")]
    Header,
    /// A Write chunk came back otherwise than it was provided.
    #[error("Write chunk: {0}")]
    Write(ReturnedError),
    /// The Reply chunk came back otherwise than it was provided.
    #[error("Reply chunk: {0}")]
    Chunk(ReturnedError),
    /// The reply is in a Reply chunk, and the call provided none.
    #[error("in a Reply chunk that was not provided")]
    NoChunk,
    /// The reply is shorter than any RPC reply.
    #[error("{bytes} bytes")]
    Short {
        /// Length of the reply in bytes.
        bytes: u32,
    },
}

/// The reason why the peer did not get the reply to a served call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// The connection could not convey the reply, or the upper layer refused the call; the peer got
    /// this error instead.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The connection is lost, and the peer may or may not have the reply.
    #[error("connection lost")]
    Lost,
}

/// The reason why a connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer violated the flow control of version 1.
    #[error("flow control: {0}")]
    CreditsV1(credit::v1::Violation),
    /// The peer violated the flow control of version 2.
    #[error("flow control: {0}")]
    CreditsV2(credit::v2::Violation),
    /// The peer speaks no version that this end speaks. [`next_speaks`] returns the versions that
    /// are left to try.
    ///
    /// [`next_speaks`]: super::Connection::next_speaks
    #[error("no common version")]
    NoVersion,
    /// The peer did not answer the first message in time, or a server's client did not send a
    /// message that the server understands in time. [`next_speaks`] returns the versions that are
    /// left to try.
    ///
    /// [`next_speaks`]: super::Connection::next_speaks
    #[error("no answer to the first message")]
    NegotiationTimeout,
    /// A transfer that keeps memory of this end took longer than
    /// [`Config::transfer_timeout`](super::Config::transfer_timeout): the parts of a message, the
    /// Reads of a call, or the Writes and Sends of a reply.
    #[error("a transfer took too long")]
    TransferTimeout,
    /// The peer's inline threshold is unusable.
    #[error(transparent)]
    Threshold(#[from] ThresholdError),
    /// The peer invalidated memory that does not belong to the call it replied to.
    #[error("invalidation of what was not offered")]
    WrongInvalidate,
    /// The peer causes errors and does not take the error messages.
    #[error("too many errors to be told")]
    Errors,
    /// A work request failed.
    #[error("work request failed")]
    Completion,
    /// The driver broke its contract: a defect in the driver.
    #[error("driver: {0}")]
    Driver(&'static str),
}
