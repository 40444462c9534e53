//! A connection of RPC over RDMA, of either version: both ends of it, calls in both directions, without
//! IO, clock, thread or memory of its own.
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
//! 1. keeps [`Config::receives`] Receives of [`Config::receive_size`] octets posted. What has come goes to
//!    [`handle_receive`](Connection::handle_receive), which is done with the octets when it returns, so the
//!    Receive is posted again *before* the next call of `poll_work`;
//! 2. gives completions of the send queue to [`handle_completion`](Connection::handle_completion);
//! 3. calls [`handle_timeout`](Connection::handle_timeout) when
//!    [`poll_timeout`](Connection::poll_timeout) has come, and
//!    [`memory_returned`](Connection::memory_returned) when there are buffers again for calls that wait;
//! 4. after any of these, and after each method of the layer above, posts what
//!    [`poll_work`](Connection::poll_work) gives, for as long as the send queue has room, in this order;
//! 5. hands on what [`poll_event`](Connection::poll_event) gives;
//! 6. when the queue pair has ended, all its work requests have been completed or flushed, and nothing
//!    that was registered on it can be reached: [`handle_disconnected`](Connection::handle_disconnected).
//!
//! Memory of a call (its stream, its items, room for its reply) is lent to the connection from
//! [`call`](Connection::call) to the event that ends the call, and memory of a reply from
//! [`reply`](Connection::reply) to [`Event::Served`]. That event comes when the peer can reach nothing of it
//! any more: every registration was invalidated, here or by the peer, and every work request that reads it
//! has completed. Why it is built so: `docs/adr/0015-rpc-over-rdma-connection.md`.

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

/// A call to make.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its XID, which its stream begins with. No other call under way on this connection has it.
    pub xid: Xid,
    /// The whole RPC message, not reduced: a multiple of four octets, at least 8.
    pub stream: &'a [Sge],
    /// Items of it that may be placed, in order; at most [`CHUNKS_MAX`]. Those of no octets are passed
    /// over.
    pub items: &'a [Item],
    /// Room for its reply; `None` for a call that has none (draft section 4.7).
    pub reply: Option<ReplyRoom<'a>>,
    /// When it fails, if it has not ended before.
    pub deadline: Option<Instant>,
}

/// Room for a reply. It is used as far as the reply may not fit into a Send.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyRoom<'a> {
    /// The longest reply, from its RPC header on, without what goes into `items`; `None` when that is
    /// not known, and may be anything.
    pub stream_max: Option<u32>,
    /// Room for each result that may be placed, in order; at most [`CHUNKS_MAX`]. One of no pieces says
    /// that the result is to come in the stream.
    pub items: &'a [&'a [Sge]],
    /// Room for the whole reply without `items`. Version 1 cannot convey a longer one without it;
    /// version 2 then uses several Sends.
    pub whole: &'a [Sge],
}

/// A call cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallRefused {
    /// As many calls are under way as [`Config::calls`] has.
    #[error("all slots are used")]
    Busy,
    /// The connection is being closed, or is lost.
    #[error("connection closed")]
    Closed,
    /// A call under way has its XID.
    #[error("XID is used")]
    Xid,
    /// The stream is none: not a multiple of four octets, too short or too long.
    #[error("not an RPC message")]
    Stream,
    /// An item cannot be taken out of the stream.
    #[error(transparent)]
    Item(#[from] crate::reduce::ItemError),
    /// More than [`CHUNKS_MAX`] items, of the call or of the reply, or room of 2^32 octets or more.
    #[error("too many items")]
    Items,
}

/// A reply cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyRefused {
    /// It was answered already, or the connection is lost.
    #[error("no such call")]
    NoCall,
    /// The stream is none: not a multiple of four octets, too short or too long.
    #[error("not an RPC message")]
    Stream,
    /// An item cannot be taken out of the stream.
    #[error(transparent)]
    Item(#[from] crate::reduce::ItemError),
    /// More than [`CHUNKS_MAX`] items.
    #[error("too many items")]
    Items,
    /// Version 1 has no calls without a reply.
    #[error("call without reply in version 1")]
    CallOnly,
}

/// Whether memory can be registered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRegistered {
    /// Something has to be given back first. Asked again after
    /// [`memory_available`](Connection::memory_available), and after an invalidation of this connection's.
    Later,
    /// Never: the call fails.
    Never,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The version is not known.
    Opening,
    /// Calls are sent and served.
    Open,
    /// The driver has been told to close it.
    Closing,
    /// The queue pair has ended.
    Gone,
}

/// An error that is to be sent.
#[derive(Clone, Copy, Debug)]
struct Unsent {
    answer: header::Answer,
    flow: AnswerFlow,
}

/// What an error is to flow control.
#[derive(Clone, Copy, Debug)]
enum AnswerFlow {
    /// The end of a call of version 1, which asked for so many credits.
    Reply { requested: u32 },
    /// A message of version 2.
    Message,
    /// Nothing: of a version that is not spoken.
    None,
}

/// A connection. See [the module](self).
#[derive(Debug)]
pub struct Connection {
    config: Config,
    stage: Stage,
    version: Option<u32>,
    /// Until when the version may be open, and of version 2 what the peer takes.
    opening_ends: Option<Instant>,
    versions_refused: u32,
    peer_lacks_v2: bool,
    flow: Flow,
    hello: Hello,
    thresholds: Thresholds,
    peers: Properties,
    /// Properties of a set that is not whole.
    pending: Properties,
    /// Whether the peer has told its properties.
    has_peers: bool,
    peers_host_auth: Vec<u8>,
    calls: Slots<OutCall>,
    /// Calls to send, in order.
    queue: VecDeque<u16>,
    /// Calls whose handles are to be invalidated.
    ending: VecDeque<u16>,
    /// The call whose registration the driver has been asked for.
    registering: Option<u16>,
    waits_for_memory: bool,
    /// No call's deadline is before it.
    deadline: Option<Instant>,
    /// Calls of ours that were sent and have no reply.
    outstanding: u32,
    served: Slots<InCall>,
    /// When transfers are looked at next.
    transfers_at: Option<Instant>,
    /// Calls of the peer's whose reply was not posted.
    unanswered: u32,
    /// Calls that wait for memory, in order.
    waiting: VecDeque<u16>,
    /// Calls with chunks to read, in order.
    reading: VecDeque<u16>,
    reads_posted: u32,
    read_octets_posted: u32,
    /// Calls with a reply to send, in order.
    replies: VecDeque<u16>,
    /// Header types of calls that the peer does not take: a bit for each.
    untaken: u16,
    /// The message that is being sent in parts.
    sending: Option<Sequel>,
    /// The message that is coming in parts.
    incoming: Option<Incoming>,
    unsent: VecDeque<Unsent>,
    events: VecDeque<Event>,
    gather: Vec<Sge>,
    lists: Lists,
    counters: Counters,
    /// Something has happened since there was nothing to post: there may be again.
    stirred: bool,
}

impl Connection {
    /// Of a queue pair that is connected.
    ///
    /// # Errors
    /// A value of `config` that none can be made with.
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
            read_octets_posted: 0,
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

    /// Takes a call, to be sent when there are credits for it.
    ///
    /// # Errors
    /// When it cannot be taken; nothing of it is kept.
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

    /// Gives a call up: it fails with [`CallError::Cancelled`], unless its reply is there before. That
    /// may take as long as the reply: memory that the peer may use cannot be taken from it without
    /// losing the connection.
    pub fn cancel(&mut self, call: CallId) {
        self.stirred = true;
        if self.calls.is(call.slot, call.generation) {
            self.abandon(call.slot, CallError::Cancelled);
        }
    }

    /// Replies to a call: `stream` is the whole RPC message, not reduced, a multiple of four octets;
    /// `items` all results that may be placed, in order. Those with a Write chunk go there. A reply that
    /// cannot be conveyed is replaced by an error, which [`Event::Served`] tells.
    ///
    /// # Errors
    /// When there is no such call, or this is no reply. The call is then still to be answered.
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
        // One of no octets holds the place of its Write chunk.
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

    /// Refuses a call by an error of the transport: `refusal` in version 2, ERR_CHUNK in version 1.
    ///
    /// # Errors
    /// When there is no such call.
    pub fn refuse(&mut self, call: ServedId, refusal: v2::Refusal) -> Result<(), ReplyRefused> {
        self.check_served(call)?;
        self.stirred = true;
        self.refuse_served(call.slot, refusal);
        Ok(())
    }

    /// Ends a call that expects no reply (draft section 4.7).
    ///
    /// # Errors
    /// When there is no such call; in version 1, where every call has a reply.
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

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether there is something that [`poll_event`](Connection::poll_event) will tell.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The version that is spoken, once it is known.
    pub fn version(&self) -> Option<u32> {
        self.version
    }

    /// Octets of the longest Sends, each way.
    pub fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    /// The host authentication message of the peer (version 2), once its properties have come.
    pub fn peers_host_auth(&self) -> Option<&[u8]> {
        (self.has_peers && !self.peers_host_auth.is_empty()).then_some(&self.peers_host_auth)
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Opening | Stage::Open)
    }

    /// The connection is of no use any more.
    fn close(&mut self, reason: CloseReason) {
        if self.is_running() {
            self.stage = Stage::Closing;
            self.events.push_back(Event::Close(reason));
        }
    }
}
