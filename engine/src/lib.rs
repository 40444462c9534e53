//! The trait of an [`Engine`], which turns frames and work requests into completions, and the types
//! that its owner needs.
//!
//! A worker has an engine, the queues of a port and the rings of applications. It takes frames and
//! work requests, hands them to the engine, and delivers the engine's completions; it knows no
//! protocol. `heddle-rnic` has the engine for iWARP over TCP.
//!
//! An engine does no I/O: frames, memory and time come in as values and as type parameters, and
//! frames go out through a [`TxSink`]. So the same engine runs on mbufs in a worker and on byte
//! vectors in a simulation.
//!
//! # Calling order
//!
//! The owner calls [`handle_frames`](Engine::handle_frames), [`post_with`](Engine::post_with) and
//! [`handle_order`](Engine::handle_order) in any order, and [`hand_over`](Engine::hand_over) while
//! [`has_handed`](Engine::has_handed). The owner then takes all completions and all events
//! ([`take_completions`](Engine::take_completions), [`poll_event`](Engine::poll_event)), and calls
//! [`poll_transmit`](Engine::poll_transmit) until it returns 0. When
//! [`poll_timeout`](Engine::poll_timeout) has passed, the owner calls
//! [`handle_timeouts`](Engine::handle_timeouts).
//!
//! # Life of a connection
//!
//! An order to the engine, or a peer, makes a connection, which has a [`ConnId`]. The control plane
//! exchanges with the peer whatever the two need to agree on. Then [`enter`](Engine::enter) makes
//! the queue pair, the worker posts the receives that wait, and [`start`](Engine::start) lets the
//! queue pair handle what has come in the meantime. When the connection is over, the engine
//! completes every request that it has taken, and then says so by an event
//! ([`Change::Closed`]).
#![forbid(unsafe_code)]

use core::fmt::Debug;
use std::sync::Arc;

use heddle_base::{Fetch, Histogram, Instant};
use heddle_mr::{Memory, MrTable, Pins};
use heddle_types::{ConnId, ConnectedState, PostError, RecvWr, RnicError, SendWr};

mod ahead;
mod completions;
mod fair;
mod posted;
mod receives;
mod share;
mod shares;
mod sink;

pub use ahead::Step;
pub use completions::{Completions, Retired};
pub use fair::FairQueue;
pub use posted::{POST_TURN, Posted, take_turn};
pub use receives::{PostedReceives, SharedBroken, SharedReceives, Untaken};
pub use share::{OWN_SHARE, Share, ShareTerms, ShareUsage};
pub use shares::{Lane, Shares};
pub use sink::{Offload, TxSink};

/// A queue pair of an engine.
pub trait QueuePair: Debug {
    /// Posts to the send queue.
    ///
    /// # Errors
    /// Fails when the queue is full or over; the request is then not the queue pair's. A request
    /// that the queue pair cannot carry out completes with an error instead.
    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError>;

    /// Posts to the receive queue.
    ///
    /// # Errors
    /// As for [`post_send`](QueuePair::post_send).
    fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError>;

    /// Makes the queue pair take its receive buffers from `shared` from now on. The caller calls
    /// this function before the first message.
    fn share_receives(&mut self, shared: Box<dyn SharedReceives>);

    /// Returns the running counts of requests whose places in the queues are free again. A place is
    /// free when its request and all before it are complete and their completions are taken.
    fn retired(&self) -> Retired;

    /// Returns the state of the queue pair's state machine.
    fn state(&self) -> ConnectedState;
}

/// An order, as far as the queue pair of a connection is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The order does not end a queue pair.
    Other,
    /// The order ends the connection after all posted requests: the worker first posts those that
    /// wait in the application's rings.
    Disconnect(ConnId),
    /// The order frees a connection that is over: the worker first ends its queue pair.
    Release(ConnId),
}

/// An event, as far as the queue pair of a connection is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The event changes no queue pair.
    None,
    /// The state of a queue pair may have changed: the worker shows it to the application.
    State(ConnId),
    /// The connection is over and all its requests are complete: the worker ends its queue pair
    /// before it reports the event.
    Closed(ConnId),
}

/// Sums of counters of an engine.
pub trait Counters: Clone + Copy + Debug + Default + Send + 'static {
    /// Calls `f` with group, name, help text and value of every counter.
    fn for_each(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64));

    /// Adds every counter of `other` to this value.
    fn add(&mut self, other: &Self);
}

/// A protocol of queue pairs, from frames and work requests to completions.
///
/// An engine belongs to one thread. See the [crate](self) for the order of calls.
pub trait Engine: Debug + Sized {
    /// Limits and settings.
    type Config: Clone + Debug;
    /// A received frame, as the owner has it.
    type Frame;
    /// A queue pair.
    type Qp: QueuePair;
    /// The terms on which both ends of a connection have agreed, from which the engine makes a queue
    /// pair.
    type Mode: Debug + Send + 'static;
    /// An order of the control plane.
    type Order: Debug + Send + 'static;
    /// A report to the control plane.
    type Report: Debug + Send + 'static;
    /// A message of another protocol, for the control plane.
    type Datagram: Debug + Send + 'static;
    /// All counters of the engine and its connections.
    type Counters: Counters;
    /// The state of one connection, for people who look.
    type Facts: Debug + Send + 'static;

    /// Returns an engine without connections, over the regions of `mrs`. With `frames_only`, the
    /// engine sends frames between two of its own queue pairs as well.
    fn new(config: Self::Config, mrs: Arc<MrTable>, frames_only: bool) -> Self;

    /// Returns an engine that takes no connections and refuses those of peers, for the port of an
    /// engine that has failed.
    fn closed(config: &Self::Config) -> Self;

    /// Returns the most connections that an engine of this configuration takes; the
    /// [index](ConnId::index) of each is below.
    fn max_conns(config: &Self::Config) -> usize;

    /// Returns the counts of references that the engine keeps to each region.
    fn pins(&self) -> Arc<Pins>;

    /// Returns true if the engine has nothing to do until a frame, an order or a work request
    /// comes, or time passes.
    fn is_idle(&self, now: Instant) -> bool;

    /// Returns when the owner has to call [`handle_timeouts`](Engine::handle_timeouts) next.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Returns true if the time of [`poll_timeout`](Engine::poll_timeout) has come. Every turn of a
    /// worker asks.
    fn is_due(&self, now: Instant) -> bool;

    /// Acts on the timers that are due.
    fn handle_timeouts(&mut self, now: Instant);

    /// Returns true if a digest of the next frames' payload is likely to be used, so that a frame
    /// that reads its payload for a checksum may compute both in one pass.
    fn wants_digest(&self) -> bool;

    /// Returns true if the engine has so many connections that most are in no cache when their turn
    /// comes. The owner then does well to [look ahead](Engine::look_ahead); nothing depends on it,
    /// and an engine without the functions of a look ahead has none.
    fn is_wide(&self) -> bool {
        false
    }

    /// Looks at the frames of a burst, which the owner hands over next, in any number of pieces.
    fn look_ahead(&mut self, frames: &[Option<Self::Frame>], fetch: impl Fetch) {
        let _ = (frames, fetch);
    }

    /// Returns the [index](ConnId::index) of the connection that frame `at` of that burst seems to
    /// be for. The owner asks in the order of the frames, or again.
    fn seen_ahead(&mut self, at: usize) -> Option<usize> {
        let _ = at;
        None
    }

    /// Takes a step of the look ahead at the connection of this index.
    fn fetch(&self, index: usize, step: Step, fetch: impl Fetch) {
        let _ = (index, step, fetch);
    }

    /// Notes that the worker's last turn found no work of any kind, before the worker hands over frames.
    /// An engine that bounds the time that it spends on frames of strangers may then spend more.
    #[inline]
    fn rest(&mut self) {}

    /// Takes frames from the port, in the order of their arrival. The engine takes the frames that it
    /// keeps out of `frames`; the others stay there, so that the caller can free many at once.
    ///
    /// A message that finds its queue pair without a receive asks `posted` for the receives that
    /// the worker has not taken.
    fn handle_frames<M: Memory>(
        &mut self,
        now: Instant,
        mem: &M,
        posted: &Untaken<'_, Self::Qp>,
        frames: &mut [Option<Self::Frame>],
    );

    /// Returns true if [`hand_over`](Engine::hand_over) has something to do. Every turn of a worker
    /// asks.
    fn has_handed(&self) -> bool;

    /// Lets connections of the engine with itself make progress, without frames.
    fn hand_over<M: Memory>(&mut self, now: Instant, mem: &M, posted: &Untaken<'_, Self::Qp>);

    /// Builds the next frame to send, or several of one connection, as many as `sink` has room for.
    /// Returns the number of segments that they are on the wire: 0 if there is nothing to send, or
    /// if `sink` is full.
    fn poll_transmit<M: Memory, S: TxSink>(&mut self, now: Instant, mem: &M, sink: &mut S) -> u32;

    /// Returns true if [`poll_transmit`](Engine::poll_transmit) may have something to send. A worker
    /// asks before each call.
    #[inline]
    fn wants_transmit(&self) -> bool {
        true
    }

    /// Ends the calls of [`poll_transmit`](Engine::poll_transmit) of a turn. Afterwards the engine
    /// refers to no memory that it has not [pinned](Engine::pins).
    #[inline]
    fn end_transmit<M: Memory>(&mut self, mem: &M) {
        let _ = mem;
    }

    /// Calls `f` with the queue pair of a connection, so that `f` can post any number of requests.
    ///
    /// # Errors
    /// Fails when the connection has no queue pair, or is over.
    fn post_with<R>(
        &mut self,
        conn: ConnId,
        f: impl FnOnce(&mut Self::Qp) -> R,
    ) -> Result<R, RnicError>;

    /// Returns the queue pair of a connection.
    fn qp(&self, conn: ConnId) -> Option<&Self::Qp>;

    /// Returns true if [`take_completions`](Engine::take_completions) may have completions to pass
    /// on.
    fn has_completions(&self) -> bool;

    /// Returns the index of the connection whose completions come after `after` others, for a look
    /// ahead.
    fn completed_ahead(&self, after: usize) -> Option<usize> {
        let _ = after;
        None
    }

    /// Calls `f` with all completions of one queue pair, and their connection; returns `None` when
    /// no queue pair has any. `f` also gets the counts of [`QueuePair::retired`], unless the
    /// connection is over: an application that sees the completions may count on these places.
    fn take_completions<R>(
        &mut self,
        f: impl FnOnce(ConnId, &Completions, Option<Retired>) -> R,
    ) -> Option<(ConnId, R)>;

    /// Tells what the worker has to do for a queue pair around this order.
    fn subject(order: &Self::Order) -> Subject;

    /// Carries out an order, and returns a report if the order gets an answer at once.
    fn handle_order(&mut self, now: Instant, order: Self::Order) -> Option<Self::Report>;

    /// Makes the queue pair of a connection.
    ///
    /// # Errors
    /// Fails when the connection cannot have a queue pair now, and changes nothing then.
    fn enter(&mut self, conn: ConnId, mode: Self::Mode) -> Result<(), RnicError>;

    /// Makes a connection with a queue pair belong to a share, from its first turn on. An engine
    /// that has one turn for all may do nothing.
    fn assign(&mut self, conn: ConnId, share: &Arc<Share>) {
        let _ = (conn, share);
    }

    /// Lets a new queue pair handle what came before it, after the worker has posted its first
    /// receives.
    fn start<M: Memory>(&mut self, mem: &M, conn: ConnId);

    /// Ends a connection at once; its end follows as an event.
    fn abort(&mut self, conn: ConnId);

    /// Returns true if [`poll_event`](Engine::poll_event) may return an event.
    fn has_events(&self) -> bool;

    /// Returns the next event, and its report for the control plane. The number of waiting events
    /// is bounded, however long the owner leaves them.
    fn poll_event(&mut self) -> Option<(Change, Self::Report)>;

    /// Returns the report of the outcome of [`enter`](Engine::enter).
    fn entered(conn: ConnId, result: Result<(), RnicError>) -> Self::Report;

    /// Returns true if [`poll_datagram`](Engine::poll_datagram) would return a datagram.
    fn has_datagrams(&self) -> bool;

    /// Returns the next datagram for the control plane. The engine keeps few and drops the rest.
    fn poll_datagram(&mut self) -> Option<Self::Datagram>;

    /// Returns true if a datagram is about a connection that exists. Others leave half of the room
    /// to those.
    fn is_known(datagram: &Self::Datagram) -> bool;

    /// Returns the report that brings a datagram.
    fn brought(datagram: Self::Datagram) -> Self::Report;

    /// Returns the round-trip times that the engine has measured.
    fn round_trips(&self) -> &Histogram;

    /// Adds `most` more connections to a sum of all counters in progress; returns the sum when it
    /// is complete. The next call begins another.
    fn poll_counters(&mut self, most: usize) -> Option<Self::Counters>;

    /// Returns the sum of all counters. This call looks at every connection.
    fn counters(&self) -> Self::Counters;

    /// Returns the state of a connection.
    fn inspect(&self, conn: ConnId) -> Option<Self::Facts>;
}
