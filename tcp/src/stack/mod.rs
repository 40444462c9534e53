//! All connections of one port: from frames to connections and back.
//!
//! ```text
//! frame -> input -> flow table -> Connection -> FrameOutcome
//!            |          | no such flow
//!            |          +-> open: listener -> half-open connection, or RST
//!            +-> arp -> neighbors          +-> icmp -> soft error, echo reply
//! ready queue -> output: Connection -> header template -> TxFrame
//! ```
//!
//! Everything is bounded by the configuration: connections, half-open ones per listener,
//! neighbors, control frames waiting to be sent, what strangers can make us answer per second.
//! Whatever is dropped has a counter. Nothing scans all connections, save
//! [`Stack::unlisten`] and [`Stack::conn_counters`].
//!
//! What is not here: IPv6, reassembly of fragments, path MTU discovery, VLAN tags, loopback.

mod age;
mod arp;
mod config;
mod counters;
mod event;
mod flow;
mod frame;
mod icmp;
mod ids;
mod input;
mod limit;
mod listen;
mod neighbor;
mod open;
mod output;
mod ready;
mod slab;
mod template;
mod timers;

use std::collections::VecDeque;

use core::net::SocketAddr;
use heddle_base::{Instant, StreamPos};

pub use config::{AddrError, Cidr, CidrError, StackConfig, check_addrs};
pub use counters::StackCounters;
pub use event::{ConnectError, IcmpError, StackEvent};
pub use frame::{
    FrameOutcome, FramePayload, MAX_HEADER_LEN, RxChecksum, RxFrame, TcpChecksum, TxBody, TxFrame,
};
pub use listen::{ListenError, MAX_LISTENERS};
pub use slab::ConnId;

use crate::{ConnCounters, ConnEvent, Connection, SendQueue, State};
use age::AgeQueue;
use flow::{FlowKey, FlowTable};
use ids::Ids;
use limit::RateLimit;
use listen::Listeners;
use neighbor::Neighbors;
use ready::IndexQueue;
use slab::{Entry, Owner, Slab};
use template::Offloads;
use timers::Timers;

/// The index of no connection.
const NONE: u32 = u32::MAX;
/// RSTs a second for segments of no connection.
const RESETS_PER_SECOND: u32 = 200;
/// Echo replies a second.
const ECHOES_PER_SECOND: u32 = 200;
/// ARP replies a second.
const ARP_REPLIES_PER_SECOND: u32 = 500;

/// A TCP/IP host on one port.
///
/// `S` is what the owner keeps per connection; TCP knows it as the queue of what is to be sent.
///
/// The order of calls is told in the [crate documentation](crate). A connection's life: it begins
/// with [`Stack::connect`], or with a [`StackEvent::Accepted`] for a port listened on (a
/// [`FrameOutcome::Conn`] may name it before the event is taken); it ends with one last event
/// ([`ConnEvent::Closed`], `Reset`, `TimedOut`, `Refused`, `Aborted`, or
/// [`StackEvent::Unreachable`]), after which it can still be looked at until
/// [`Stack::release`]. TIME-WAIT goes on without the owner.
pub struct Stack<S> {
    cfg: StackConfig,
    offloads: Offloads,
    ids: Ids,
    flows: FlowTable,
    conns: Slab<S>,
    timers: Timers,
    /// A connection that received something it has not been settled for: the frames of a burst
    /// are mostly of one connection, which is settled once behind the last of them.
    touched: u32,
    /// The connection of the last segment.
    last_flow: u32,
    /// Connections that may have something to send.
    ready: IndexQueue,
    /// Segments the first of `ready` has sent in this turn.
    turn: u32,
    /// The last of them.
    last: output::Last,
    /// Connections with events.
    eventful: IndexQueue,
    /// Connections whose next hop is being asked for.
    waiting: IndexQueue,
    /// Connections in TIME-WAIT without an owner, by age.
    waiting_out: AgeQueue,
    neighbors: Neighbors,
    listeners: Listeners,
    control: VecDeque<TxFrame>,
    resets: RateLimit,
    echoes: RateLimit,
    arp_replies: RateLimit,
    counters: StackCounters,
    /// What connections that are gone have counted.
    retired: ConnCounters,
}

impl<S: SendQueue + Default> Stack<S> {
    /// A host that knows no one yet.
    pub fn new(mut cfg: StackConfig) -> Stack<S> {
        cfg.conn.mss = cfg.conn.mss.min(cfg.mtu.saturating_sub(40)).max(1);
        // Indices are `u32`, and the flow table is twice as large.
        cfg.max_conns = cfg.max_conns.clamp(1, 1 << 24);
        cfg.dscp &= 0x3f;
        let ids = Ids::new(&cfg.seed);
        Stack {
            offloads: Offloads { tcp: cfg.tx_tcp_csum, ip: cfg.tx_ip_csum },
            flows: FlowTable::new(cfg.max_conns),
            conns: Slab::new(cfg.max_conns),
            timers: Timers::default(),
            touched: NONE,
            last_flow: NONE,
            ready: IndexQueue::default(),
            turn: 0,
            last: output::Last::default(),
            eventful: IndexQueue::default(),
            waiting: IndexQueue::default(),
            waiting_out: AgeQueue::default(),
            neighbors: Neighbors::new(cfg.max_neighbors, ids.neighbor),
            ids,
            listeners: Listeners::default(),
            control: VecDeque::new(),
            resets: RateLimit::per_second(RESETS_PER_SECOND),
            echoes: RateLimit::per_second(ECHOES_PER_SECOND),
            arp_replies: RateLimit::per_second(ARP_REPLIES_PER_SECOND),
            counters: StackCounters::default(),
            retired: ConnCounters::default(),
            cfg,
        }
    }

    /// The owner has taken bytes `[pos, pos + len)` of the peer's stream, as told by
    /// [`Stack::handle_frame`].
    pub fn accept_payload(&mut self, now: Instant, id: ConnId, pos: StreamPos, len: u32) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.accept_payload(now, pos, len);
            if e.conn.has_events() {
                return self.settle(id.slot());
            }
            self.touch(id.slot());
        }
    }

    /// When [`Stack::handle_timeouts`] must be called next. It may be earlier than anything is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let touched = self.conns.get(self.touched).and_then(|e| e.conn.poll_timeout());
        let all = [self.timers.next(), self.neighbors.next_timeout(), touched];
        all.into_iter().flatten().min()
    }

    /// Runs the timers that are due.
    pub fn handle_timeouts(&mut self, now: Instant) {
        self.settle_touched();
        // Each timer at most once: one that comes up again at once waits for the next call.
        for _ in 0..self.timers.len() {
            let Some(index) = self.timers.pop_due(now) else { break };
            if let Some(e) = self.conns.get_mut(index) {
                if e.conn.poll_timeout().is_some_and(|at| at <= now) {
                    e.conn.handle_timeout(now);
                }
                self.settle(index);
            }
        }
        self.handle_neighbor_timeouts(now);
    }

    /// What happened; call until it gives `None`.
    #[inline]
    pub fn poll_event(&mut self) -> Option<(ConnId, StackEvent)> {
        self.eventful.front()?;
        self.next_event()
    }

    fn next_event(&mut self) -> Option<(ConnId, StackEvent)> {
        while let Some(index) = self.eventful.front() {
            let id = self.conns.id(index);
            let next = self.conns.get_mut(index).and_then(|e| e.events.pop_at(0));
            match next {
                Some(event) => return Some((id, event)),
                None => {
                    self.eventful.pop();
                }
            }
        }
        None
    }

    /// No more bytes will be queued: FIN follows those that are. What the peer still sends is
    /// received.
    pub fn close(&mut self, id: ConnId) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.close();
            self.settle(id.slot());
        }
    }

    /// Ends the connection at once with RST.
    pub fn abort(&mut self, id: ConnId) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.abort();
            self.settle(id.slot());
        }
    }

    /// The owner is done with a connection: its `S` is dropped and `id` names nothing from now on.
    /// One that is not over yet is aborted.
    pub fn release(&mut self, id: ConnId) {
        let Some(e) = self.conns.held_mut(id) else { return };
        if !matches!(e.conn.state(), State::TimeWait | State::Closed) {
            e.conn.abort();
        }
        e.owner = Owner::Released { end: e.user.end() };
        e.user = S::default();
        e.events.clear();
        let conns = &self.conns;
        if conns.is_waiting_out(id) {
            self.waiting_out.push(id, self.cfg.max_conns, |id| conns.is_waiting_out(id));
        }
        self.settle(id.slot());
    }

    /// There is more to send in the queue of `id`.
    pub fn notify_send(&mut self, id: ConnId) {
        if self.conns.held(id).is_some() {
            self.settle(id.slot());
        }
    }

    /// The connection.
    pub fn conn(&self, id: ConnId) -> Option<&Connection> {
        self.conns.held(id).map(|e| &e.conn)
    }

    /// Something was done to the connection [`Stack::get_mut`] gave: it is looked after before
    /// anything else is asked of the stack.
    #[inline]
    pub fn changed(&mut self, id: ConnId) {
        // An event is there for whoever asks next, not only after the next transmission.
        if self.conns.held(id).is_some_and(|e| e.conn.has_events()) {
            return self.settle(id.slot());
        }
        self.touch(id.slot());
    }

    /// The connection and what the owner keeps with it. Call [`Stack::changed`] after a change
    /// that gives the connection something to do.
    #[inline]
    pub fn get_mut(&mut self, id: ConnId) -> Option<(&mut Connection, &mut S)> {
        self.conns.held_mut(id).map(|e| (&mut e.conn, &mut e.user))
    }

    /// What the owner keeps with the connection.
    pub fn user(&self, id: ConnId) -> Option<&S> {
        self.conns.held(id).map(|e| &e.user)
    }

    /// What the owner keeps with the connection. Call [`Stack::notify_send`] after queueing.
    pub fn user_mut(&mut self, id: ConnId) -> Option<&mut S> {
        self.conns.held_mut(id).map(|e| &mut e.user)
    }

    /// Our end of the connection.
    pub fn local_addr(&self, id: ConnId) -> Option<SocketAddr> {
        self.conns.held(id).map(|e| e.flow.local())
    }

    /// The peer's end of the connection.
    pub fn remote_addr(&self, id: ConnId) -> Option<SocketAddr> {
        self.conns.held(id).map(|e| e.flow.remote())
    }

    /// The last ICMP error about the connection.
    pub fn soft_error(&self, id: ConnId) -> Option<IcmpError> {
        self.conns.held(id).and_then(|e| e.soft_error)
    }

    /// Changes the DSCP (0..=63) of the connection's segments from now on.
    pub fn set_dscp(&mut self, id: ConnId, dscp: u8) {
        if let Some(e) = self.conns.held_mut(id) {
            e.template.set_dscp(dscp & 0x3f);
        }
    }

    /// Connections there are, of any state, TIME-WAIT and half-open ones included.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// What was done and dropped.
    pub fn counters(&self) -> &StackCounters {
        &self.counters
    }

    /// What all connections there are and were have counted. It looks at every one of them: for
    /// reports, not for the data path.
    pub fn conn_counters(&self) -> ConnCounters {
        let mut sum = self.retired;
        for e in self.conns.iter() {
            sum.add(e.conn.counters());
        }
        sum
    }

    /// What the stack was told at construction.
    pub fn config(&self) -> &StackConfig {
        &self.cfg
    }

    /// Remembers that a connection has to be settled, before anything else is asked of the stack.
    /// Only for changes without events.
    #[inline]
    fn touch(&mut self, index: u32) {
        if self.touched != index {
            self.settle_touched();
            self.touched = index;
        }
    }

    #[inline]
    fn settle_touched(&mut self) {
        if self.touched != NONE {
            self.settle(self.touched);
            self.touched = NONE;
        }
    }

    /// Brings everything kept about a connection in line with its state, after anything that may
    /// have changed it.
    #[inline]
    fn settle(&mut self, index: u32) {
        if let Some(e) = self.conns.get(index)
            && !e.waits
            && e.conn.wants_transmit(e.end())
        {
            self.ready.push(index);
        }
        self.settle_quiet(index);
    }

    /// As [`Stack::settle`], without a look at what there is to send.
    fn settle_quiet(&mut self, index: u32) {
        let Some(e) = self.conns.get_mut(index) else { return };
        while let Some(event) = e.conn.poll_event() {
            let established = note(e, event);
            if let Some(listener) = established {
                self.listeners.half_open_done(listener, e.flow.local().port());
                self.counters.accepted += 1;
            }
        }
        if !e.events.is_empty() {
            self.eventful.push(index);
        }
        if let Some(at) = e.conn.poll_timeout() {
            self.timers.arm(index, at);
        }
        if e.conn.state() == State::Closed {
            self.retire(index);
        }
    }

    /// Takes a closed connection out of everything it is in; its slot is free once no one looks at
    /// it and its RST, if there is one, is sent.
    fn retire(&mut self, index: u32) {
        self.detach(index);
        let Some(e) = self.conns.get(index) else { return };
        let silent = e.waits || !e.conn.wants_transmit(e.end());
        if e.owner == Owner::Held || !silent {
            return;
        }
        if matches!(e.owner, Owner::HalfOpen { .. }) {
            self.counters.half_open_failed += 1;
        }
        self.forget(index);
    }

    /// Takes a connection out of everything it is in and frees its slot, without a word to its peer
    /// or its owner. The queues of indices may still have it; whoever takes it off looks.
    fn forget(&mut self, index: u32) {
        self.detach(index);
        let Some(e) = self.conns.remove(index) else { return };
        self.retired.add(e.conn.counters());
        self.timers.cancel(index);
        self.neighbors.release(e.neighbor);
        if let Owner::HalfOpen { listener } = e.owner {
            self.listeners.half_open_done(listener, e.flow.local().port());
        }
    }

    /// Segments do not find the connection any more.
    fn detach(&mut self, index: u32) {
        if let Some(e) = self.conns.get_mut(index)
            && e.attached
        {
            e.attached = false;
            self.flows.remove(e.flow.hash(&self.ids.flow), index);
        }
    }

    /// The connection of these addresses and ports.
    #[inline]
    fn find(&mut self, flow: &FlowKey) -> Option<u32> {
        let last = self.last_flow;
        if self.conns.get(last).is_some_and(|e| e.attached && e.flow == *flow) {
            return Some(last);
        }
        let found = self.look_up(flow);
        self.last_flow = found.unwrap_or(NONE);
        found
    }

    fn look_up(&self, flow: &FlowKey) -> Option<u32> {
        self.flows.find(flow.hash(&self.ids.flow), |index| {
            self.conns.get(index).is_some_and(|e| e.flow == *flow)
        })
    }
}

/// Passes on what the connection says; gives the listener whose half-open connection became
/// established.
fn note<S>(e: &mut Entry<S>, event: ConnEvent) -> Option<u32> {
    let (event, listener) = match e.owner {
        Owner::HalfOpen { listener } if event == ConnEvent::Connected => {
            e.owner = Owner::Held;
            let accepted = StackEvent::Accepted { local: e.flow.local(), remote: e.flow.remote() };
            (accepted, Some(listener))
        }
        Owner::Held if !e.muted => (StackEvent::Conn(event), None),
        _ => return None,
    };
    e.tell(event);
    listener
}

#[cfg(test)]
mod tests;
