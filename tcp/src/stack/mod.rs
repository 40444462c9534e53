//! All connections of one port: from frames to connections and back.
//!
//! ```text
//! frame -> input -> flow table -> Connection -> FrameOutcome
//!            |          | no such flow
//!            |          +-> open: listener -> half-open connection, or RST
//!            +-> arp -> neighbors          +-> icmp -> soft error, echo reply
//!                                          +-> udp -> RxDatagram
//! ready queue -> output: Connection -> header template -> TxFrame
//! ```
//!
//! Everything is bounded by the configuration: connections, half-open ones per listener,
//! neighbors, control frames waiting to be sent, what strangers can make us answer per second, UDP
//! datagrams per second and waiting.
//! Whatever is dropped has a counter.
//!
//! So is the work: a frame costs a few steps however many connections, neighbors and listeners
//! there are (timers and listeners: the logarithm). Connections are found by hash; what is to be
//! found by age, or by the neighbor it waits for, is threaded into lists; tables are made with room
//! for all they may hold, or in pages, so that none is ever copied to grow. What a neighbor's
//! answer or a listener's end concerns is looked at once for each connection that it concerns.
//! [`Stack::conn_counters`] alone looks at all connections, for reports;
//! [`Stack::poll_conn_counters`] makes the same sum in pieces.
//!
//! What is not here: IPv6, reassembly of fragments, path MTU discovery, VLAN tags. Connections of a
//! host with itself are those of a stack of their own ([`Addressing::inside`]).

mod addressing;
mod admit;
mod announce;
mod arp;
mod config;
mod control;
mod counters;
mod event;
mod flow;
mod frame;
mod icmp;
mod ids;
mod input;
mod inside;
mod keepalive;
mod limit;
mod list;
mod listen;
mod neighbor;
mod open;
mod output;
mod peers;
mod plain;
mod readdress;
mod ready;
mod slab;
mod tally;
mod template;
mod timers;
mod udp;
mod update;

use core::net::SocketAddr;
use heddle_base::{Histogram, Instant, StreamPos};

pub use addressing::{
    AddrError, Addressing, Cidr, CidrError, Hop, MAX_ADDRS, MAX_ROUTES, Route, check_addrs,
};
pub use admit::{DatagramClass, DatagramFault, DatagramFilter};
pub use config::{PeerLimit, StackConfig};
pub use counters::StackCounters;
pub use event::{ConnectError, IcmpError, StackEvent};
pub use frame::{
    FrameOutcome, FramePayload, MAX_HEADER_LEN, RxChecksum, RxFrame, TcpChecksum, TxBody, TxFrame,
};
pub use listen::{ListenError, MAX_LISTENERS};
pub use slab::ConnId;
pub use udp::{MAX_DATAGRAM, RxDatagram, TxDatagram};

use crate::{ConnCounters, Connection, SendQueue, State};
use announce::Announcer;
use control::ControlQueue;
use event::PendingEvents;
use flow::{FlowKey, FlowTable};
use ids::Ids;
use limit::{Answers, RateLimit};
use list::List;
use listen::Listeners;
use neighbor::Neighbors;
use peers::Peers;
use ready::IndexQueue;
use slab::{AGE, HALF_OPEN, Owner, Slab};
use tally::Tally;
use template::Offloads;
use timers::Timers;
use udp::Udp;

/// The index of no connection.
const NONE: u32 = u32::MAX;
/// RSTs a second for segments of no connection.
const RESETS_PER_SECOND: u32 = 200;
/// Echo replies a second.
const ECHOES_PER_SECOND: u32 = 200;
/// ICMP errors a second that are read in full, of those that quote what a connection has in flight.
const ICMP_ERRORS_PER_SECOND: u32 = 1000;
/// SYN-ACKs a second that are sent again because of the timer.
const REPEATED_SYN_ACKS_PER_SECOND: u32 = 1000;
/// Answers of each kind in a turn.
const ANSWERS_A_TURN: u32 = 32;
/// The work of timers in a turn, where an expiry counts [`EXPIRY`] and a timer that is only put off 1:
/// that of a burst of frames, whatever falls due at once.
const TIMERS_A_TURN: u32 = 256;
const EXPIRY: u32 = 4;
/// ARP replies a second.
const ARP_REPLIES_PER_SECOND: u32 = 500;

/// Octets that tables of indices have for each connection there may be: the flow table, which is a
/// quarter full at least when there are so many, timers, and the two queues. The table of peers at
/// listeners, of which a peer takes a place and not a connection, is apart.
const TABLES: usize = 4 * flow::SLOT + Timers::ENTRY + 2 * IndexQueue::ENTRY;

/// A TCP/IP host on one port.
///
/// `S` is what the owner keeps per connection; TCP knows it as the queue of what is to be sent.
///
/// The order of calls is told in the [crate documentation](crate). A connection's life: it begins
/// with [`Stack::connect`], or with a [`StackEvent::Accepted`] for a port listened on (a
/// [`FrameOutcome::Conn`] may name it before the event is taken); it ends with one last event
/// ([`ConnEvent::Closed`](crate::ConnEvent::Closed), `Reset`, `TimedOut`, `WindowShut`, `Refused`, `Aborted`,
/// [`StackEvent::Unreachable`] or [`StackEvent::Withdrawn`]), after which it can still be looked at until
/// [`Stack::release`]. TIME-WAIT goes on without the owner.
pub struct Stack<S> {
    cfg: StackConfig,
    /// Our station address, as frames are compared with it.
    station: u64,
    offloads: Offloads,
    ids: Ids,
    flows: FlowTable,
    conns: Slab<S>,
    timers: Timers,
    /// A connection whose update is put off; see [`Stack::update`].
    deferred: u32,
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
    /// Half-open connections of all listeners, the oldest first.
    half_open: List<HALF_OPEN>,
    /// Connections in TIME-WAIT without an owner, the oldest first.
    time_wait: List<AGE>,
    neighbors: Neighbors,
    listeners: Listeners,
    peers: Peers,
    control: ControlQueue,
    resets: Answers,
    echoes: Answers,
    icmp_errors: Answers,
    /// SYN-ACKs sent again to hosts that have not shown that they are there.
    syn_acks: Answers,
    arp_replies: RateLimit,
    announcer: Announcer,
    /// The UDP port, and what goes through it. In a box: it is no part of TCP's way.
    udp: Box<Udp>,
    counters: StackCounters,
    round_trips: Histogram,
    /// What connections that are gone have counted.
    retired: ConnCounters,
    /// The sum [`Stack::poll_conn_counters`] is at.
    tally: Option<Tally>,
}

impl<S> Stack<S> {
    /// Octets that a connection takes, what the owner keeps and its places in all tables included,
    /// while it is idle and has seen no loss.
    pub const CONN_OCTETS: usize = Slab::<S>::SLOT + TABLES;
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
            station: plain::station(cfg.mac),
            offloads: Offloads { tcp: cfg.tx_tcp_csum, ip: cfg.tx_ip_csum },
            flows: FlowTable::new(cfg.max_conns),
            conns: Slab::new(cfg.max_conns),
            timers: Timers::with_capacity(cfg.max_conns),
            deferred: NONE,
            last_flow: NONE,
            ready: IndexQueue::with_capacity(cfg.max_conns),
            turn: 0,
            last: output::Last::default(),
            eventful: IndexQueue::with_capacity(cfg.max_conns),
            half_open: List::default(),
            time_wait: List::default(),
            neighbors: Neighbors::new(cfg.max_neighbors, ids.neighbor),
            peers: Peers::new(cfg.max_conns, cfg.peer_half_open, cfg.peer_conns, ids.peer),
            listeners: Listeners::default(),
            control: ControlQueue::default(),
            resets: Answers::per_second(RESETS_PER_SECOND, ANSWERS_A_TURN, ids.peer),
            echoes: Answers::per_second(ECHOES_PER_SECOND, ANSWERS_A_TURN, ids.peer),
            icmp_errors: Answers::per_second(ICMP_ERRORS_PER_SECOND, ANSWERS_A_TURN, ids.peer),
            syn_acks: Answers::per_second(REPEATED_SYN_ACKS_PER_SECOND, ANSWERS_A_TURN, ids.peer),
            arp_replies: RateLimit::per_second(ARP_REPLIES_PER_SECOND),
            announcer: Announcer::default(),
            udp: Box::default(),
            counters: StackCounters::default(),
            round_trips: Histogram::ZERO,
            retired: ConnCounters::default(),
            tally: None,
            ids,
            cfg,
        }
    }

    /// The owner has taken bytes `[pos, pos + len)` of the peer's stream, as told by
    /// [`Stack::handle_frame`].
    pub fn accept_payload(&mut self, now: Instant, id: ConnId, pos: StreamPos, len: u32) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.accept_payload(now, pos, len);
            if e.conn.has_events() {
                return self.update(id.slot());
            }
            self.defer_update(id.slot());
        }
    }

    /// When [`Stack::handle_timeouts`] must be called next. It may be earlier than anything is due.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deferred = self.conns.get(self.deferred).and_then(|e| e.conn.poll_timeout());
        let announce = self.announcer.next_timeout();
        let all = [self.timers.next(), self.neighbors.next_timeout(), deferred, announce];
        all.into_iter().flatten().min()
    }

    /// Whether [`Stack::handle_timeouts`] has something to do: a few loads, for every turn of a
    /// worker.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.timers.is_due(now)
            || self.neighbors.is_due(now)
            || self.announcer.is_due(now)
            || self.deferred != NONE && self.is_deferred_due(now)
    }

    /// Whether a timer is due of the connection whose update is put off.
    fn is_deferred_due(&self, now: Instant) -> bool {
        self.conns.get(self.deferred).is_some_and(|e| e.conn.is_due(now))
    }

    /// Whether there is nothing to do until a frame comes, something is queued or time passes: no
    /// timer is due, nothing waits to be sent, and no event to be taken.
    #[inline]
    pub fn is_idle(&self, now: Instant) -> bool {
        self.deferred == NONE
            && self.ready.is_empty()
            && self.control.is_empty()
            && self.eventful.is_empty()
            && !self.is_due(now)
    }

    /// Runs timers that are due: a turn's worth, the longest due first. [`Stack::is_due`] says
    /// whether more wait, for the next turn.
    pub fn handle_timeouts(&mut self, now: Instant) {
        self.update_deferred();
        let mut left = TIMERS_A_TURN;
        while left > 0 {
            let Some(index) = self.timers.due(now) else { break };
            let Some(e) = self.conns.get_mut(index) else {
                self.timers.cancel(index);
                left -= 1;
                continue;
            };
            match e.conn.poll_timeout() {
                // Put off since the timer was armed, as those of traffic are: nothing has changed.
                Some(at) if at > now => {
                    self.timers.put_off(at);
                    left -= 1;
                }
                _ => {
                    self.timers.cancel(index);
                    e.conn.handle_timeout(now);
                    if e.owner == Owner::HalfOpen && e.conn.wants_syn() {
                        self.limit_syn_ack(now, index);
                    }
                    self.update(index);
                    left = left.saturating_sub(EXPIRY);
                }
            }
        }
        if self.neighbors.is_due(now) {
            self.handle_neighbor_timeouts(now);
        }
        if self.announcer.is_due(now) {
            self.handle_announcements(now);
        }
    }

    /// No more bytes will be queued: FIN follows those that are. What the peer still sends is
    /// received.
    pub fn close(&mut self, id: ConnId) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.close();
            self.update(id.slot());
        }
    }

    /// The owner has begun to end the connection in order, though perhaps not closed it yet: nothing
    /// may stand still from now on; see [`Connection::bound_close`].
    pub fn bound_close(&mut self, now: Instant, id: ConnId) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.bound_close(now);
            // Nothing else of the connection has changed.
            if let Some(at) = e.conn.poll_timeout() {
                self.timers.arm(id.slot(), at);
            }
        }
    }

    /// Ends the connection at once with RST.
    pub fn abort(&mut self, id: ConnId) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.abort();
            self.update(id.slot());
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
        e.events = PendingEvents::default();
        let (listener, peer) = (e.listener.take(), e.flow.remote());
        if e.conn.state() == State::TimeWait {
            self.time_wait.push(&mut self.conns, id.slot());
        }
        if let Some(listener) = listener {
            self.peers.gone(listener, *peer.ip(), false);
        }
        self.update(id.slot());
    }

    /// The owner changed something of `id` by way of [`Stack::get_mut`] or [`Stack::user_mut`] that
    /// may give it something to send: it queued bytes, or accepted some, or moved the window. To be
    /// called before anything else is asked of the stack. Several changes need one call.
    #[inline]
    pub fn notify_send(&mut self, id: ConnId) {
        // An event (the peer's FIN behind the bytes that were accepted) is there for whoever asks
        // next, not only after the next transmission.
        if self.conns.held(id).is_some_and(|e| e.conn.has_events()) {
            return self.update(id.slot());
        }
        self.defer_update(id.slot());
    }

    /// The connection.
    pub fn conn(&self, id: ConnId) -> Option<&Connection> {
        self.conns.held(id).map(|e| &e.conn)
    }

    /// The connection and what the owner keeps with it. Call [`Stack::notify_send`] after a change
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
        self.conns.held(id).map(|e| e.flow.local().into())
    }

    /// The peer's end of the connection.
    pub fn remote_addr(&self, id: ConnId) -> Option<SocketAddr> {
        self.conns.held(id).map(|e| e.flow.remote().into())
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

    /// Round trips of all connections as they were measured for the retransmission timeout (RFC
    /// 6298): of each connection that of its handshake and one in 8 of the others, of which there is
    /// about one for each window. Those above 4 s count as that.
    pub fn round_trips(&self) -> &Histogram {
        &self.round_trips
    }

    /// What the stack was told at construction, with the addresses and routes it has now.
    pub fn config(&self) -> &StackConfig {
        &self.cfg
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

#[cfg(test)]
mod tests;
