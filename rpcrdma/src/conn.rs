//! A connection of RPC over RDMA, of either version: both ends, and calls in both directions. The
//! connection has no IO, clock, thread or memory of its own.
//!
//! ```text
//!     call, cancel │ reply, refuse, dismiss          ▲ poll_event
//!   ┌──────────────▼─────────────────────────────────┴───────────┐
//!   │ requester: calls of ours    │ responder: calls of the peer's│
//!   │          one negotiation, one account of credits            │
//!   └──────▲──────────────▲───────────────┬────────────────▲──────┘
//!   handle_receive  handle_completion  poll_work     registered
//!       Receives       work requests   Send, Read, Write, registrations, invalidations
//! ```
//!
//! The *driver* owns the queue pair and all memory. It
//!
//! 1. keeps [`Config::receives`] Receives of [`Config::receive_size`] bytes posted, and passes each
//!    received message to [`handle_receive`](Connection::handle_receive). The connection no longer
//!    needs the bytes when that method returns, so the driver posts the Receive again *before* the
//!    next call of `poll_work`;
//! 2. passes completions of the send queue to [`handle_completion`](Connection::handle_completion);
//! 3. calls [`handle_timeout`](Connection::handle_timeout) when the time of
//!    [`poll_timeout`](Connection::poll_timeout) has come, and
//!    [`memory_returned`](Connection::memory_returned) when buffers are free again for calls that
//!    wait;
//! 4. after any of these calls, and after each method that the upper layer calls, posts the work
//!    that [`poll_work`](Connection::poll_work) returns, in this order and for as long as the send
//!    queue has room;
//! 5. passes on the events that [`poll_event`](Connection::poll_event) returns;
//! 6. calls [`handle_disconnected`](Connection::handle_disconnected) when the queue pair has ended,
//!    all its work requests have been completed or flushed, and the peer can no longer reach any
//!    memory that was registered on the queue pair.
//!
//! The upper layer lends the memory of a call (its stream, its items, room for its reply) to the
//! connection from [`call`](Connection::call) until the event that ends the call, and the memory of
//! a reply from [`reply`](Connection::reply) until [`Event::Served`]. The connection issues either
//! event only when the peer can no longer reach that memory: this end or the peer has invalidated
//! every registration, and every work request that reads the memory has completed.
//! `docs/adr/0015-rpc-over-rdma-connection.md` gives the reasons for this design.

mod calls;
mod config;
mod counters;
mod end;
mod event;
mod memory;
mod negotiate;
mod offer;
mod plan;
mod receive;
mod send;
mod served;
mod slots;
mod transfers;
mod waiting;
mod work;

pub use config::{
    CHUNKS_MAX, CREDITS_MAX, Config, ConfigError, SLOTS_MAX, Side, Speaks, TRANSFER_TIMEOUT_MIN,
};
pub use counters::Counters;
pub use event::{
    BadReply, CallError, CloseReason, Event, Filled, IncomingCall, IncomingReply, ItemSet,
    ReplyStream, ServeError,
};
pub use memory::{BufferId, Memory, Purpose, Sge};
pub use work::{Access, CallId, Region, ServedId, Work, WorkId};

use std::collections::VecDeque;

use heddle_base::Instant;

use calls::{Lists, OutCall};
use negotiate::{Flow, Hello};
use receive::Incoming;
use send::Sequel;
use served::InCall;
use slots::Slots;

use crate::header::{self, Xid};
use crate::property::{Properties, Thresholds};
use crate::reduce::{Item, Reduction};
use crate::{v1, v2};

/// A call that this end makes.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The XID, which is also the first word of the stream. No other call under way on this
    /// connection has the same XID.
    pub xid: Xid,
    /// The whole RPC message, not reduced: a multiple of four bytes, at least 8.
    pub stream: &'a [Sge],
    /// Items of the stream that may be placed, in order; at most [`CHUNKS_MAX`]. The connection
    /// skips items of length 0.
    pub items: &'a [Item],
    /// Room for the reply; `None` for a call that has none (draft section 4.7).
    pub reply: Option<ReplyRoom<'a>>,
    /// Time at which the call fails, if it has not ended before.
    pub deadline: Option<Instant>,
}

/// Room for a reply. The connection provides this room to the peer only where the reply may not fit
/// into a Send.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyRoom<'a> {
    /// Length in bytes of the longest reply, from its RPC header on and without the data that goes
    /// into `items`; `None` when the caller does not know a limit.
    pub stream_max: Option<u32>,
    /// Room for each result that may be placed, in order; at most [`CHUNKS_MAX`]. An entry without
    /// pieces keeps its result in the stream.
    pub items: &'a [&'a [Sge]],
    /// Room for the whole reply without `items`. Without this room version 1 cannot convey a reply
    /// longer than a Send; version 2 uses several Sends instead.
    pub whole: &'a [Sge],
}

/// The reason why the connection does not take a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallRefused {
    /// [`Config::calls`] calls are under way already.
    #[error("all slots are used")]
    Busy,
    /// The connection is closing or lost.
    #[error("connection closed")]
    Closed,
    /// A call under way has the same XID.
    #[error("XID is used")]
    Xid,
    /// The stream is not an RPC message: not a multiple of four bytes, too short or too long.
    #[error("not an RPC message")]
    Stream,
    /// An item cannot be taken out of the stream.
    #[error(transparent)]
    Item(#[from] crate::reduce::ItemError),
    /// The call or the reply has more than [`CHUNKS_MAX`] items, or a room has 2^32 bytes or more.
    #[error("too many items")]
    Items,
}

/// The reason why the connection does not take a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyRefused {
    /// The call was answered already, or the connection is lost.
    #[error("no such call")]
    NoCall,
    /// The stream is not an RPC message: not a multiple of four bytes, too short or too long.
    #[error("not an RPC message")]
    Stream,
    /// An item cannot be taken out of the stream.
    #[error(transparent)]
    Item(#[from] crate::reduce::ItemError),
    /// The reply has more than [`CHUNKS_MAX`] items.
    #[error("too many items")]
    Items,
    /// The caller dismissed a call of version 1, where every call has a reply.
    #[error("call without reply in version 1")]
    CallOnly,
}

/// The driver's answer to whether it can register the memory later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRegistered {
    /// Other memory has to be given back first. The connection asks again after
    /// [`memory_available`](Connection::memory_available), and after one of its own invalidations.
    Later,
    /// The driver can never register the memory: the call fails.
    Never,
}

/// The stage of a connection's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The version is not known yet.
    Opening,
    /// The connection sends and serves calls.
    Open,
    /// The connection has reported to the driver that it must be closed.
    Closing,
    /// The queue pair has ended.
    Gone,
}

/// An error message that waits to be sent.
#[derive(Clone, Copy, Debug)]
struct Unsent {
    answer: header::Answer,
    flow: AnswerFlow,
}

/// The effect of an error message on flow control.
#[derive(Clone, Copy, Debug)]
enum AnswerFlow {
    /// The error ends a call of version 1, which asked for this many credits.
    Reply { requested: u32 },
    /// The error counts as a message of version 2.
    Message,
    /// No effect: the error is in a version that the connection does not speak.
    None,
}

/// A connection. See [the module](self).
#[derive(Debug)]
pub struct Connection {
    config: Config,
    stage: Stage,
    version: Option<u32>,
    /// Time until which the version may stay open, and in version 2 the peer's properties may be
    /// missing.
    opening_ends: Option<Instant>,
    versions_refused: u32,
    peer_lacks_v2: bool,
    flow: Flow,
    hello: Hello,
    thresholds: Thresholds,
    peers: Properties,
    /// Properties from the messages of a set whose last message has not come.
    pending: Properties,
    /// True if the peer has sent all its properties.
    has_peers: bool,
    peers_host_auth: Vec<u8>,
    calls: Slots<OutCall>,
    /// Calls to send, in order.
    queue: VecDeque<u16>,
    /// Calls whose handles this end has yet to invalidate.
    ending: VecDeque<u16>,
    /// The call whose memory the driver was asked to register.
    registering: Option<u16>,
    waits_for_memory: bool,
    /// A lower bound of all calls' deadlines.
    deadline: Option<Instant>,
    /// Calls of this end that were sent and have no reply yet.
    outstanding: u32,
    served: Slots<InCall>,
    /// Time at which [`handle_timeout`](Connection::handle_timeout) next looks at the transfers.
    transfers_at: Option<Instant>,
    /// Calls of the peer whose reply was not posted yet.
    unanswered: u32,
    /// Calls that wait for memory, in order.
    waiting: VecDeque<u16>,
    /// Calls with chunks to read, in order.
    reading: VecDeque<u16>,
    reads_posted: u32,
    read_bytes_posted: u32,
    /// Calls with a reply to send, in order.
    replies: VecDeque<u16>,
    /// Header types of calls that the peer does not take: a bit for each.
    untaken: u16,
    /// The message that this end is sending in parts.
    sending: Option<Sequel>,
    /// The message that this end is receiving in parts.
    incoming: Option<Incoming>,
    unsent: VecDeque<Unsent>,
    events: VecDeque<Event>,
    gather: Vec<Sge>,
    lists: Lists,
    counters: Counters,
    /// True if something happened since `poll_work` last found nothing to post, so that there may
    /// be work again.
    stirred: bool,
}

impl Connection {
    /// Creates the connection of a queue pair that is connected.
    ///
    /// # Errors
    /// Returns the value of `config` that makes a connection impossible.
    pub fn new(config: Config, now: Instant) -> Result<Connection, ConfigError> {
        config.check()?;
        let mut connection = Connection {
            stage: Stage::Opening,
            version: None,
            opening_ends: None,
            versions_refused: 0,
            peer_lacks_v2: false,
            flow: Flow::None,
            hello: Hello::Done,
            thresholds: Thresholds::DEFAULT,
            peers: Properties::DEFAULT,
            pending: Properties::DEFAULT,
            has_peers: false,
            peers_host_auth: Vec::new(),
            calls: Slots::new(config.calls),
            queue: VecDeque::with_capacity(config.calls.into()),
            ending: VecDeque::with_capacity(config.calls.into()),
            registering: None,
            waits_for_memory: false,
            deadline: None,
            outstanding: 0,
            served: Slots::new(config.served_slots()),
            transfers_at: None,
            unanswered: 0,
            waiting: VecDeque::new(),
            reading: VecDeque::with_capacity(config.served_slots().into()),
            reads_posted: 0,
            read_bytes_posted: 0,
            replies: VecDeque::with_capacity(config.served_slots().into()),
            untaken: 0,
            sending: None,
            incoming: None,
            unsent: VecDeque::new(),
            events: VecDeque::new(),
            gather: Vec::new(),
            lists: Lists::default(),
            counters: Counters::default(),
            stirred: true,
            config,
        };
        connection.begin(now);
        Ok(connection)
    }

    /// Takes a call, and sends it when there are credits for it.
    ///
    /// # Errors
    /// Returns an error when the connection cannot take the call; it then keeps no part of the
    /// call.
    pub fn call(&mut self, call: &Call<'_>) -> Result<CallId, CallRefused> {
        if !self.is_running() {
            return Err(CallRefused::Closed);
        }
        let total = OutCall::check(call)?;
        self.stirred = true;
        if self.calls.find(call.xid).is_some() {
            return Err(CallRefused::Xid);
        }
        let (slot, generation) = self.calls.take(call.xid).ok_or(CallRefused::Busy)?;
        if let Some(row) = self.calls.at_mut(slot) {
            row.set(call, total);
        }
        self.deadline = self.deadline.into_iter().chain(call.deadline).min();
        self.queue.push_back(slot);
        Ok(CallId { slot, generation })
    }

    /// Gives a call up. The call fails with [`CallError::Cancelled`], unless its reply comes first.
    /// The failure may take as long as the reply: the connection cannot take memory from the peer
    /// while the peer may use it, without losing the connection.
    pub fn cancel(&mut self, call: CallId) {
        self.stirred = true;
        if self.calls.is(call.slot, call.generation) {
            self.abandon(call.slot, CallError::Cancelled);
        }
    }

    /// Replies to a call. `stream` is the whole RPC message, not reduced, a multiple of four bytes;
    /// `items` are all results that may be placed, in order. The connection writes an item that has
    /// a Write chunk to that chunk. It replaces a reply that it cannot convey by an error, which
    /// [`Event::Served`] reports.
    ///
    /// # Errors
    /// Returns an error when there is no such call, or the stream is not a reply. The caller must
    /// then still answer the call.
    pub fn reply(
        &mut self,
        call: ServedId,
        stream: &[Sge],
        items: &[Item],
    ) -> Result<(), ReplyRefused> {
        self.check_served(call)?;
        self.stirred = true;
        let total = calls::stream_len(stream).ok_or(ReplyRefused::Stream)?;
        if items.len() > CHUNKS_MAX {
            return Err(ReplyRefused::Items);
        }
        // An item of length 0 only holds the place of its Write chunk.
        let some = items.iter().copied().filter(|item| item.length > 0);
        Reduction::new(total, calls::MESSAGE_MIN, some)?;
        let bounds = self.reply_bounds();
        let Some(version) = self.version else { return Err(ReplyRefused::NoCall) };
        let Some(row) = self.served.at_mut(call.slot) else { return Err(ReplyRefused::NoCall) };
        row.stream.extend_from_slice(stream);
        row.total = total;
        match row.plan(items, version, &bounds) {
            Ok(()) => {
                row.begin_transfer(served::Phase::Replying);
                self.replies.push_back(call.slot);
            }
            Err(refusal) => self.refuse_served(call.slot, refusal),
        }
        Ok(())
    }

    /// Refuses a call by a transport error: `refusal` in version 2, ERR_CHUNK in version 1.
    ///
    /// # Errors
    /// Returns an error when there is no such call.
    pub fn refuse(&mut self, call: ServedId, refusal: v2::Refusal) -> Result<(), ReplyRefused> {
        self.check_served(call)?;
        self.stirred = true;
        self.refuse_served(call.slot, refusal);
        Ok(())
    }

    /// Ends a call that expects no reply (draft section 4.7).
    ///
    /// # Errors
    /// Returns an error when there is no such call, or in version 1, where every call has a reply.
    pub fn dismiss(&mut self, call: ServedId) -> Result<(), ReplyRefused> {
        self.check_served(call)?;
        self.stirred = true;
        if self.version == Some(v1::VERSION) {
            return Err(ReplyRefused::CallOnly);
        }
        self.end_served(call.slot, Ok(()));
        Ok(())
    }

    fn check_served(&self, call: ServedId) -> Result<(), ReplyRefused> {
        let row = self.served.at(call.slot).filter(|_| self.served.is(call.slot, call.generation));
        let serving = row.is_some_and(|row| row.phase == served::Phase::Serving);
        if serving && self.is_running() { Ok(()) } else { Err(ReplyRefused::NoCall) }
    }

    /// Returns the next event, if there is any.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns true if [`poll_event`](Connection::poll_event) has an event to return.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the version that the connection speaks, once known.
    pub fn version(&self) -> Option<u32> {
        self.version
    }

    /// Returns the lengths of the longest Sends each way, in bytes.
    pub fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    /// Returns the peer's host authentication message (version 2), once the peer's properties have
    /// come.
    pub fn peers_host_auth(&self) -> Option<&[u8]> {
        (self.has_peers && !self.peers_host_auth.is_empty()).then_some(&self.peers_host_auth)
    }

    /// Returns the counters of the connection.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the configuration of the connection.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Opening | Stage::Open)
    }

    /// Begins to close the connection, which is of no further use.
    fn close(&mut self, reason: CloseReason) {
        if self.is_running() {
            self.stage = Stage::Closing;
            self.events.push_back(Event::Close(reason));
        }
    }
}
