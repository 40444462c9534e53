//! All connections of one port: from frames to connections and back.
//!
//! ```text
//! frame -> input -> flow table -> Connection -> FrameOutcome
//!            |          | no such flow
//!            |          +-> open: RST
//!            |          +-> accept: listener -> half-open connection, or cookie -> Connection
//!            +-> arp, discovery            +-> icmp, icmpv6 -> soft error, echo reply
//!            |     -> neighbors            |
//!                                          +-> udp -> RxDatagram
//! ready queue -> output: Connection -> header template -> TxFrame
//! ```
//!
//! The configuration bounds everything: connections, half-open connections per listener, neighbors,
//! control frames waiting to be sent, answers per second to strangers, and UDP datagrams per second
//! and waiting. Every drop has a counter.
//!
//! The work is bounded too: a frame costs a few steps however many connections, neighbors and
//! listeners there are (timers and listeners: the logarithm). The stack finds connections by hash.
//! Lists thread together the entries that the stack finds by age, or by the neighbor that they wait
//! for. Tables are made with room for all their entries, or in pages, so that no table is ever
//! copied to grow. A neighbor's answer or a listener's end makes the stack visit at once each
//! connection concerned, and no other. Only [`Stack::conn_counters`] visits all connections, for
//! reports; [`Stack::poll_conn_counters`] makes the same sum in pieces.
//!
//! A port is a link, and each of its VLANs is another one, with addresses, routes and neighbors of its
//! own: an address of ours counts only on its link ([`Addressing`]).
//!
//! The stack has no reassembly of fragments and no IPv6 extension headers. The stack obeys ICMP
//! errors about the MTU of a path if they concern segments in flight (see `icmp`), and its connections
//! probe for what routers do not report. New connections begin with what earlier ones have found out
//! about their path (`paths`).
//! Connections of a host with itself live in a stack of their own ([`Addressing::inside`]).

mod accept;
mod addressing;
mod admit;
mod ahead;
mod announce;
mod arp;
mod config;
mod control;
mod cookie;
mod counters;
mod discovery;
mod event;
mod flow;
mod frame;
mod half_open;
mod icmp;
mod icmpv6;
mod ids;
mod input;
mod inside;
mod keepalive;
mod limit;
mod link;
mod list;
mod listen;
mod mld;
mod neighbor;
mod open;
mod output;
mod paths;
mod peers;
mod plain;
mod questions;
mod readdress;
mod ready;
mod share;
mod slab;
mod tally;
mod template;
mod timers;
mod udp;
mod update;
mod windows;

use core::net::SocketAddr;
use heddle_base::{Histogram, Instant, StreamPos};

pub use addressing::{
    AddrError, Addressing, Cidr, CidrError, Hop, MAX_ADDRS, MAX_ROUTES, MAX_VLANS, Route,
    SCOPE_PORT_BITS, Vlan, check_addrs,
};
pub use admit::{DatagramClass, DatagramFault, DatagramFilter};
pub use config::{PeerLimit, RECV_WINDOW_BUDGET, StackConfig, SynCookies};
pub use counters::StackCounters;
pub use event::{IcmpError, StackEvent};
pub use frame::{
    FrameOutcome, FramePayload, MAX_HEADER_LEN, Run, RxChecksum, RxFrame, TcpChecksum, Train,
    TxBody, TxFrame,
};
pub use link::LinkNews;
pub use udp::{MAX_DATAGRAM, RxDatagram, TxDatagram};

use heddle_types::ConnId;

use crate::wire::Vid;
use crate::{ConnCounters, Connection, SendQueue, State};
use ahead::Ahead;
use announce::Announcer;
use control::ControlQueue;
use cookie::Cookies;
use counters::DropReason;
use event::PendingEvents;
use flow::{FlowKey, FlowTable, Hashed};
use half_open::HalfOpens;
use ids::Ids;
use limit::{Answers, Sources};
use list::List;
use listen::Listeners;
use neighbor::Neighbors;
use paths::Paths;
use peers::Peers;
use questions::Questions;
use ready::IndexQueue;
use share::{Kind, Share};
use slab::{AGE, Owner, Slab};
use tally::Tally;
use template::Offloads;
use timers::Timers;
use udp::Udp;
use windows::Windows;

/// The index that names no connection.
const NONE: u32 = u32::MAX;
/// The most RSTs per second for segments of no connection, and for those of one source: ten hostile
/// sources together take others theirs, and no fewer.
const RESETS_PER_SECOND: u32 = 2000;
const RESETS_OF_A_SOURCE: u32 = 200;
/// The most echo replies per second.
const ECHOES_PER_SECOND: u32 = 200;
/// The most ICMP errors per second that the stack reads in full, among those that quote a segment
/// in flight.
const ICMP_ERRORS_PER_SECOND: u32 = 1000;
/// The most SYN-ACKs per second that the stack sends again because a timer expired.
const REPEATED_SYN_ACKS_PER_SECOND: u32 = 1000;
/// The most first SYN-ACKs per second to one source that does not answer them: more than a host
/// opens connections in the time in which it answers, and little for a host that sent no SYN.
const FIRST_SYN_ACKS_PER_SECOND: u32 = 4096;
/// The most answers of each kind in a turn.
const ANSWERS_A_TURN: u32 = 32;
/// The work of timers in a turn, about the work of a burst of frames, however many timers fall due
/// at once. An expiry counts [`EXPIRY`], and a timer that is only postponed counts 1.
const TIMERS_A_TURN: u32 = 256;
const EXPIRY: u32 = 4;

/// Bytes that tables of indices need for each possible connection: the flow table, which is at
/// least a quarter full with `max_conns` connections, the timers, and the two queues. The table of
/// peers at listeners is not included, because its places belong to peers and not to connections.
const TABLES: usize = 4 * flow::SLOT + Timers::ENTRY + 2 * IndexQueue::ENTRY;

/// A TCP/IP host on one port.
///
/// `S` is the data that the owner keeps per connection; TCP uses it as the queue of bytes to send.
///
/// The [crate documentation](crate) gives the order of calls. A connection begins with
/// [`Stack::connect`], or with a [`StackEvent::Accepted`] for a port listened on (a
/// [`FrameOutcome::Conn`] may name the connection before the owner takes the event). A connection
/// ends with one last event ([`ConnEvent::Closed`](crate::ConnEvent::Closed), `Reset`, `TimedOut`,
/// `WindowShut`, `Refused`, `Aborted`, [`StackEvent::Unreachable`] or [`StackEvent::Withdrawn`]).
/// After this event the owner can still read the connection until [`Stack::release`]. TIME-WAIT
/// continues without the owner.
pub struct Stack<S> {
    cfg: StackConfig,
    /// Our station address, in the form in which the stack compares frames with it.
    station: u64,
    offloads: Offloads,
    ids: Ids,
    flows: FlowTable,
    conns: Slab<S>,
    timers: Timers,
    /// The connection whose update is deferred; see [`Stack::update`].
    deferred: u32,
    /// The connection of the last segment.
    last_flow: u32,
    ahead: Box<Ahead>,
    /// Connections that may have segments to send.
    ready: IndexQueue,
    /// Segments that the first connection of `ready` has sent in this turn.
    turn: u32,
    /// Frames of handshakes sent since a connection last had its turn.
    answered: u32,
    /// Connections with events.
    eventful: IndexQueue,
    /// Half-open connections of all listeners.
    half_opens: HalfOpens,
    cookies: Cookies,
    /// Connections in TIME-WAIT without an owner, the oldest first.
    time_wait: List<AGE>,
    neighbors: Neighbors,
    listeners: Listeners,
    peers: Peers,
    control: ControlQueue,
    resets: Answers,
    echoes: Answers,
    icmp_errors: Answers,
    /// Budget for SYN-ACKs sent again to hosts that have not proved that they exist.
    syn_acks: Answers,
    /// Budget for first SYN-ACKs to such hosts.
    first_answers: Sources,
    /// Budgets for answers to questions for our addresses.
    questions: Questions,
    /// Budgets for frames of no connection.
    share: Share,
    announcer: Announcer,
    /// The paths that carry less than our MTU.
    paths: Box<Paths>,
    /// The budget for receive windows. In a box, because a window changes rarely.
    windows: Box<Windows>,
    /// The UDP port and its queues. In a box, because TCP's path does not use them.
    udp: Box<Udp>,
    counters: StackCounters,
    round_trips: Histogram,
    /// The sum of the counters of removed connections.
    retired: ConnCounters,
    /// The partial sum of [`Stack::poll_conn_counters`].
    tally: Option<Tally>,
}

impl<S> Stack<S> {
    /// Bytes that a connection takes, including the owner's data and its places in all tables,
    /// while the connection is idle and has seen no loss.
    pub const CONN_BYTES: usize = Slab::<S>::SLOT + TABLES;
}

impl<S: SendQueue + Default> Stack<S> {
    /// Returns a host that knows no neighbor yet.
    pub fn new(mut cfg: StackConfig) -> Stack<S> {
        cfg.conn.mss = cfg.conn.mss.min(cfg.mtu.saturating_sub(40)).max(1);
        cfg.net = cfg.net.with_station(cfg.mac);
        // Indices are `u32`, and the flow table is twice as large.
        cfg.max_conns = cfg.max_conns.clamp(1, 1 << 24);
        cfg.dscp &= 0x3f;
        let ids = Ids::new(&cfg.seed);
        let half_opens = HalfOpens::new(cfg.max_conns, &cfg.conn);
        Stack {
            station: plain::station(cfg.mac),
            offloads: Offloads { tcp: cfg.tx_tcp_csum, ip: cfg.tx_ip_csum },
            flows: FlowTable::new(cfg.max_conns),
            conns: Slab::new(cfg.max_conns),
            timers: Timers::with_capacity(cfg.max_conns),
            deferred: NONE,
            last_flow: NONE,
            ahead: Box::default(),
            ready: IndexQueue::with_capacity(cfg.max_conns),
            turn: 0,
            answered: 0,
            eventful: IndexQueue::with_capacity(cfg.max_conns),
            cookies: Cookies::new(ids.cookie),
            time_wait: List::default(),
            neighbors: Neighbors::new(cfg.max_neighbors, ids.neighbor),
            peers: Peers::new(
                cfg.max_conns,
                half_opens.max(),
                (cfg.peer_half_open, cfg.peer_conns),
                ids.peer,
            ),
            half_opens,
            listeners: Listeners::default(),
            control: ControlQueue::default(),
            resets: Answers::of(RESETS_PER_SECOND, RESETS_OF_A_SOURCE, ANSWERS_A_TURN, ids.peer),
            echoes: Answers::per_second(ECHOES_PER_SECOND, ANSWERS_A_TURN, ids.peer),
            icmp_errors: Answers::per_second(ICMP_ERRORS_PER_SECOND, ANSWERS_A_TURN, ids.peer),
            syn_acks: Answers::per_second(REPEATED_SYN_ACKS_PER_SECOND, ANSWERS_A_TURN, ids.peer),
            first_answers: Sources::per_second(FIRST_SYN_ACKS_PER_SECOND, ids.peer),
            questions: Questions::new(ids.peer),
            share: Share::default(),
            announcer: Announcer::default(),
            paths: Box::new(Paths::new(ids.peer)),
            windows: Box::new(Windows::new(cfg.recv_window_budget)),
            udp: Box::default(),
            counters: StackCounters::default(),
            round_trips: Histogram::ZERO,
            retired: ConnCounters::default(),
            tally: None,
            ids,
            cfg,
        }
    }

    /// Records that the owner has taken bytes `[pos, pos + len)` of the peer's stream, as reported
    /// by [`Stack::handle_frame`].
    pub fn accept_payload(&mut self, now: Instant, id: ConnId, pos: StreamPos, len: u32) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.accept_payload(now, pos, len);
            if e.conn.has_events() {
                return self.update(id.slot());
            }
            self.defer_update(id.slot());
        }
    }

    /// Returns when the owner must next call [`Stack::handle_timeouts`]. The instant may be earlier
    /// than the first timer that is really due.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deferred = self.conns.get(self.deferred).and_then(|e| e.conn.poll_timeout());
        let announce = self.announcer.next_timeout();
        let half_open = self.half_opens.next_timeout();
        let all =
            [self.timers.next(), self.neighbors.next_timeout(), deferred, announce, half_open];
        all.into_iter().flatten().min()
    }

    /// Returns true if [`Stack::handle_timeouts`] has work to do. The check costs a few loads, so
    /// that a worker can make it in every turn.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.timers.is_due(now)
            || self.neighbors.is_due(now)
            || self.announcer.is_due(now)
            || self.half_opens.is_due(now)
            || self.deferred != NONE && self.is_deferred_due(now)
    }

    /// Returns true if a timer of the connection whose update is deferred is due.
    fn is_deferred_due(&self, now: Instant) -> bool {
        self.conns.get(self.deferred).is_some_and(|e| e.conn.is_due(now))
    }

    /// Returns true if the stack has nothing to do until a frame comes, the owner queues bytes or
    /// time passes: no timer is due, no frame waits to be sent, and no event waits to be taken.
    #[inline]
    pub fn is_idle(&self, now: Instant) -> bool {
        self.deferred == NONE
            && self.ready.is_empty()
            && !self.has_answers()
            && self.eventful.is_empty()
            && !self.is_due(now)
    }

    /// Notes that the owner has looked for work of any kind and found none, so that no connection waits
    /// for frames of strangers: the stack then handles more of them. The owner calls this function
    /// before it hands over frames, if its turn before them was such a turn.
    #[inline]
    pub fn rest(&mut self) {
        self.share.rested = true;
    }

    /// Charges a frame of no connection to the strangers' share of the worker's time.
    #[inline]
    fn charge(&mut self, now: Instant, vid: Vid, kind: Kind) -> Result<(), DropReason> {
        // Inside the host no stranger sends anything.
        if self.cfg.net.is_inside() {
            return Ok(());
        }
        self.share.charge(now, (vid, self.cfg.net.vlans().len() + 1), kind)
    }

    /// Returns true if [`Stack::poll_transmit_into`] may have a frame.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.deferred != NONE || !self.ready.is_empty() || self.has_answers()
    }

    /// Runs timers that are due: a turn's worth, the timers longest due first. [`Stack::is_due`]
    /// returns true if more wait, for the next turn.
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
                // The connection postponed its deadline since the timer was armed, as traffic does:
                // nothing has changed.
                Some(at) if at > now => {
                    e.armed = at;
                    self.timers.put_off(at);
                    left -= 1;
                }
                _ => {
                    e.armed = timers::NEVER;
                    self.timers.cancel(index);
                    // The macro evaluates its fields only where the level is on.
                    tracing::trace!(index, state = ?e.conn.state(), "timer expired");
                    e.conn.handle_timeout(now);
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
        if self.half_opens.is_due(now) {
            self.handle_half_open_timeouts(now);
        }
    }

    /// Closes our direction: the owner will queue no more bytes, and a FIN follows the queued
    /// bytes. The stack still receives the peer's bytes.
    pub fn close(&mut self, id: ConnId) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.close();
            self.update(id.slot());
        }
    }

    /// Bounds an orderly end that the owner has begun, even if it has not yet closed the
    /// connection: from now on the connection must make progress. See [`Connection::bound_close`].
    pub fn bound_close(&mut self, now: Instant, id: ConnId) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.bound_close(now);
            // Only the deadline of the connection has changed.
            e.arm(&mut self.timers, id.slot());
        }
    }

    /// Ends the connection at once with RST.
    pub fn abort(&mut self, id: ConnId) {
        if let Some(e) = self.conns.held_mut(id) {
            e.conn.abort();
            self.update(id.slot());
        }
    }

    /// Releases a connection that the owner no longer needs: drops its `S`, and `id` names nothing
    /// from now on. Aborts a connection that is not over yet.
    pub fn release(&mut self, id: ConnId) {
        let Some(e) = self.conns.held_mut(id) else { return };
        if !matches!(e.conn.state(), State::TimeWait | State::Closed) {
            e.conn.abort();
        }
        e.owner = Owner::Released { end: e.user.end() };
        e.user = S::default();
        e.events = PendingEvents::default();
        let (listener, vid, peer) = (e.listener.take(), e.flow().vid(), e.flow().remote());
        if e.conn.state() == State::TimeWait {
            self.time_wait.push(&mut self.conns, id.slot());
        }
        if let Some(listener) = listener {
            self.peers.gone(listener.get(), self.cfg.net.site_on(vid, peer.ip()), false);
        }
        self.update(id.slot());
    }

    /// Informs the stack that the owner, through [`Stack::get_mut`] or [`Stack::user_mut`], made a
    /// change to `id` that may give it something to send: it queued bytes, accepted bytes, or moved
    /// the window. The owner must make this call before any other call to the stack. Several
    /// changes need one call.
    #[inline(always)]
    pub fn notify_send(&mut self, id: ConnId) {
        if self.conns.held(id).is_some_and(|e| e.conn.has_events()) {
            return self.update_now(id.slot());
        }
        self.defer_update(id.slot());
    }

    /// Updates a connection with an event (the peer's FIN after the bytes that the owner accepted),
    /// which must be visible to the next call, not only after the next transmission.
    #[cold]
    #[inline(never)]
    fn update_now(&mut self, index: u32) {
        self.update(index);
    }

    /// Returns the connection, if `id` names one that the owner has not released.
    pub fn conn(&self, id: ConnId) -> Option<&Connection> {
        self.conns.held(id).map(|e| &e.conn)
    }

    /// Returns the connection and the owner's data for it. Call [`Stack::notify_send`] after a
    /// change that gives the connection something to do.
    #[inline]
    pub fn get_mut(&mut self, id: ConnId) -> Option<(&mut Connection, &mut S)> {
        self.conns.held_mut(id).map(|e| (&mut e.conn, &mut e.user))
    }

    /// Returns the owner's data for the connection.
    pub fn user(&self, id: ConnId) -> Option<&S> {
        self.conns.held(id).map(|e| &e.user)
    }

    /// Returns the owner's data for the connection. Call [`Stack::notify_send`] after queueing.
    pub fn user_mut(&mut self, id: ConnId) -> Option<&mut S> {
        self.conns.held_mut(id).map(|e| &mut e.user)
    }

    /// Returns our end of the connection.
    pub fn local_addr(&self, id: ConnId) -> Option<SocketAddr> {
        self.conns.held(id).map(|e| e.flow().local())
    }

    /// Returns the peer's end of the connection.
    pub fn remote_addr(&self, id: ConnId) -> Option<SocketAddr> {
        self.conns.held(id).map(|e| e.flow().remote())
    }

    /// Returns the last ICMP error about the connection.
    pub fn soft_error(&self, id: ConnId) -> Option<IcmpError> {
        self.conns.held(id).and_then(|e| e.soft_error)
    }

    /// Changes the DSCP (0..=63) of the connection's segments from now on, and their priority where
    /// the VLAN takes it from the DSCP.
    pub fn set_dscp(&mut self, id: ConnId, dscp: u8) {
        if let Some(e) = self.conns.held_mut(id) {
            let dscp = dscp & 0x3f;
            e.template.set_dscp(dscp);
            e.template.set_tag(self.cfg.net.tag(e.flow().vid(), dscp));
        }
    }

    /// Returns the number of connections, of any state, including TIME-WAIT and half-open
    /// connections.
    pub fn connections(&self) -> usize {
        self.conns.len() + self.half_opens.len()
    }

    /// Returns the counters of the stack: frames handled and dropped, and other events.
    pub fn counters(&self) -> &StackCounters {
        &self.counters
    }

    /// Returns the round trips of all connections, as measured for the retransmission timeout (RFC
    /// 6298). The histogram has, for each connection, the round trip of its handshake and one in 8
    /// of the others; a connection takes about one sample per window. Round trips above 4 s count
    /// as 4 s.
    pub fn round_trips(&self) -> &Histogram {
        &self.round_trips
    }

    /// Returns the bytes by which the receive windows of all connections have grown, of the
    /// [budget](StackConfig::recv_window_budget) for all of them.
    pub fn recv_windows_grown(&self) -> u64 {
        self.windows.used()
    }

    /// Returns the configuration from construction, with the current addresses and routes.
    pub fn config(&self) -> &StackConfig {
        &self.cfg
    }

    /// Returns the index of the connection of these addresses and ports, or the hash of a flow that
    /// has no connection.
    #[inline(always)]
    fn find_or_hash(&mut self, flow: &FlowKey) -> Result<u32, u64> {
        let last = self.ahead.hint().unwrap_or(self.last_flow);
        if self.conns.get(last).is_some_and(|e| e.attached && e.template.is_of(flow)) {
            return Ok(last);
        }
        self.find_other(flow)
    }

    /// Does the same for a flow other than the one before.
    #[inline(never)]
    fn find_other(&mut self, flow: &FlowKey) -> Result<u32, u64> {
        let flow = self.ids.hashed(flow);
        let found = self.look_up(flow);
        // A stranger's frame does not make the stack forget the connection of the frame before it.
        self.last_flow = found.unwrap_or(self.last_flow);
        found.ok_or(flow.hash)
    }

    fn look_up(&self, Hashed { key, hash }: Hashed<'_>) -> Option<u32> {
        self.flows.find(hash, |index| self.conns.get(index).is_some_and(|e| e.template.is_of(key)))
    }
}

#[cfg(test)]
mod tests;
