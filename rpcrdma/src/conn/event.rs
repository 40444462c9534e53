//! What a connection tells the layer above.

use super::config::CHUNKS_MAX;
use super::memory::BufferId;
use super::work::{CallId, ServedId};
use crate::binding::ITEMS_MAX;
use crate::chunk::ReturnedError;
use crate::credit;
use crate::header::{Refusal, Xid};
use crate::property::{Properties, ThresholdError};
use crate::reduce::Item;

/// What has happened. Each call of ours ends by exactly one of `Reply`, `Sent` and `Failed`; each of the
/// peer's that came up in `Call` by exactly one `Served`, once it was answered or the connection lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Both ends speak this version. Calls that wait are sent.
    Established {
        /// 1 or 2.
        version: u32,
    },
    /// The peer has told its properties (version 2).
    Properties(Properties),
    /// A call to serve.
    Call(IncomingCall),
    /// All that was sent of a served call is with the peer; memory of its reply is free.
    Served {
        /// The call.
        id: ServedId,
        /// Whether it has what it was to have.
        result: Result<(), ServeError>,
    },
    /// A call has its reply; all its memory is free, and out of the peer's reach.
    Reply {
        /// The call.
        call: CallId,
        /// What has come.
        reply: IncomingReply,
    },
    /// A call that expects no reply was sent; its memory is free.
    Sent {
        /// The call.
        call: CallId,
    },
    /// A call has failed; all its memory is free, and out of the peer's reach.
    Failed {
        /// The call.
        call: CallId,
        /// Why.
        error: CallError,
    },
    /// The driver must close the connection; nothing is posted or taken any more. Calls end when it
    /// reports [`handle_disconnected`](super::Connection::handle_disconnected).
    Close(CloseReason),
}

/// A call of the peer's. Its first word is its XID, which the layer above compares: of a call that
/// came by RDMA Read the connection has not seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingCall {
    /// Names it until [`Event::Served`].
    pub id: ServedId,
    /// The XID of the transport header.
    pub xid: Xid,
    /// The whole, unreduced Payload stream, from the beginning of the buffer on. It is the layer's
    /// above, to be freed when it likes.
    pub buffer: BufferId,
    /// Octets of the stream.
    pub length: u32,
    /// Items that came in Read chunks. The layer above refuses the call when one is not an item of its
    /// program that may be placed.
    pub reads: ItemSet,
    /// Write chunks that the peer has provided.
    pub write_chunks: u16,
}

/// Items in the order of a stream; at most [`ITEMS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemSet {
    items: [Item; ITEMS_MAX],
    len: usize,
}

impl ItemSet {
    /// The items.
    pub fn as_slice(&self) -> &[Item] {
        self.items.get(..self.len).unwrap_or(&self.items)
    }

    /// The first [`ITEMS_MAX`] of those.
    pub(crate) fn of(all: impl Iterator<Item = Item>) -> ItemSet {
        let mut set = ItemSet::default();
        for (to, item) in set.items.iter_mut().zip(all) {
            *to = item;
            set.len += 1;
        }
        set
    }
}

/// A reply to a call of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingReply {
    /// The Payload stream, without results that are in Write chunks.
    pub stream: ReplyStream,
    /// How many octets of room for results were filled.
    pub filled: Filled,
}

/// Where the Payload stream of a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStream {
    /// In a buffer that was allocated for it, which is now the layer's above.
    Buffer {
        /// From its beginning on.
        buffer: BufferId,
        /// Octets.
        length: u32,
    },
    /// In the room for the whole reply that the call came with, from its beginning on.
    Chunk {
        /// Octets.
        length: u32,
    },
}

/// How many octets of each room for results were filled. Nothing at all when the call was sent without
/// Write chunks, as all of its reply fits into a Send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    octets: [u32; CHUNKS_MAX],
    len: usize,
}

impl Filled {
    /// By the order of the room.
    pub fn as_slice(&self) -> &[u32] {
        self.octets.get(..self.len).unwrap_or(&self.octets)
    }

    pub(crate) fn of(all: impl Iterator<Item = u32>) -> Filled {
        let mut filled = Filled::default();
        for (to, octets) in filled.octets.iter_mut().zip(all) {
            *to = octets;
            filled.len += 1;
        }
        filled
    }
}

/// Why a call of ours has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer has refused it. [`v2::Refusal::recovery`](crate::v2::Refusal::recovery) says what may
    /// be done.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// Its reply was not understood.
    #[error("bad reply: {0}")]
    BadReply(BadReply),
    /// It cannot be conveyed: too long without chunks, or too many segments.
    #[error("call cannot be conveyed in {threshold} octets")]
    TooLong {
        /// Octets that a Send may have.
        threshold: u32,
    },
    /// The peer does not take calls of the reverse direction.
    #[error("peer takes no reverse-direction calls")]
    NoReverse,
    /// Version 1 has no calls without a reply.
    #[error("call without reply in version 1")]
    CallOnly,
    /// Memory could not be registered.
    #[error("memory could not be registered")]
    Registration,
    /// No memory for its reply.
    #[error("no memory for the reply")]
    NoMemory,
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// Its deadline has passed.
    #[error("timed out")]
    TimedOut,
    /// The connection is lost. Whether the peer has executed it is not known. It may be made again on
    /// another connection, by the same XID; that it is the same the peer's layer above has to
    /// recognise, its connection cannot.
    #[error("connection lost")]
    Lost,
}

/// What is wrong with a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// Its header, or the order of its parts.
    #[error("not understood")]
    Header,
    /// A Write chunk that came back otherwise than it was provided.
    #[error("Write chunk: {0}")]
    Write(ReturnedError),
    /// The Reply chunk, likewise.
    #[error("Reply chunk: {0}")]
    Chunk(ReturnedError),
    /// It is in a Reply chunk, and there was none.
    #[error("in a Reply chunk that was not provided")]
    NoChunk,
    /// It has less octets than any RPC reply.
    #[error("{octets} octets")]
    Short {
        /// Octets of it.
        octets: u32,
    },
}

/// Why a served call has not got its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// It could not be conveyed, or the layer above did not want to; this was sent instead.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// The connection is lost. Whether the peer has the reply is not known.
    #[error("connection lost")]
    Lost,
}

/// Why a connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer breaks flow control of version 1.
    #[error("flow control: {0}")]
    CreditsV1(credit::v1::Violation),
    /// The peer breaks flow control of version 2.
    #[error("flow control: {0}")]
    CreditsV2(credit::v2::Violation),
    /// The peer speaks no version that this end does. [`next_speaks`] has what is left.
    ///
    /// [`next_speaks`]: super::Connection::next_speaks
    #[error("no common version")]
    NoVersion,
    /// The first message was not answered, or a server's client has not said any that is understood, in
    /// time. [`next_speaks`] has what is left.
    ///
    /// [`next_speaks`]: super::Connection::next_speaks
    #[error("no answer to the first message")]
    NegotiationTimeout,
    /// A transfer that keeps memory of this end took longer than
    /// [`Config::transfer_timeout`](super::Config::transfer_timeout): the parts of a message, the Reads of a
    /// call, or the Writes and Sends of a reply.
    #[error("a transfer took too long")]
    TransferTimeout,
    /// The peer's inline threshold is none to work with.
    #[error(transparent)]
    Threshold(#[from] ThresholdError),
    /// The peer has invalidated memory that was not of the call it replied to.
    #[error("invalidation of what was not offered")]
    WrongInvalidate,
    /// The peer brings about errors and takes none.
    #[error("too many errors to be told")]
    Errors,
    /// A work request has failed.
    #[error("work request failed")]
    Completion,
    /// The driver has broken its part: a defect.
    #[error("driver: {0}")]
    Driver(&'static str),
}
