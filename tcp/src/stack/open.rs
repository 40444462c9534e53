//! How connections begin: ours, the listeners of peers' (`accept`), and the refusal of segments that
//! belong to none.
//!
//! An active connection whose next hop is not known waits for ARP; its SYN goes out when the answer
//! comes. The same holds for the answer to a SYN from beyond the link, which goes to the gateway
//! whatever station the SYN came from. The stack answers a SYN from an unknown host of the link to
//! the station that the SYN came from, and learns nothing from the SYN: if the stack asked for each
//! such host, forged SYNs would fill the table of neighbors, and real hosts would get no answer.
//! Only a completed handshake, which proves that the host is reachable that way, makes the station
//! an entry of the table, if there is no entry. ARP packets count for more: the stack uses an entry
//! made by an ARP packet whatever station a SYN came from.

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU32;
use heddle_base::Instant;
use heddle_types::{ConnId, ConnectError, ListenAt, ListenError, TcpTerms};

use super::Stack;
use super::addressing::Hop;
use super::control::Control;
use super::counters::DropReason;
use super::event::{EventKind, PendingEvents};
use super::flow::{FlowKey, Hashed};
use super::frame::{FrameOutcome, TxBody};
use super::ids::{EPHEMERAL_PORTS, Marks};
use super::input::Arrival;
use super::list::Link;
use super::neighbor::LinkAddr;
use super::slab::{Entry, NextHop, Owner};
use super::timers::NEVER;
use crate::wire::{MacAddr, Vid};
use crate::{Connection, Flags, SackBlocks, Segment, SendQueue, SeqNumber, TxSegment};

/// The most ports of ours that the stack tries for a new connection. More would be a long stretch
/// of work on the data path when nearly all ports are taken. The next attempt continues with the
/// ports after these.
const PORT_ATTEMPTS: u16 = 256;

/// The most further ports that the stack tries after it found a port whose connection in TIME-WAIT
/// can be replaced.
const FREE_PORT_ATTEMPTS: u16 = 16;

/// The flow of a new connection, and how its segments go.
pub(super) struct Opening<'a> {
    pub(super) flow: Hashed<'a>,
    pub(super) marks: Marks,
    pub(super) next_hop: NextHop,
    pub(super) iss: SeqNumber,
    /// The listener of the peer's SYN; `None` if we connect.
    pub(super) listener: Option<u32>,
}

impl<S: SendQueue + Default> Stack<S> {
    /// Opens a connection to `remote`, from `local_port` or from a port chosen by RFC 6056.
    ///
    /// [`ConnEvent::Connected`](crate::ConnEvent::Connected) reports success. One of the events
    /// that end a connection reports failure.
    ///
    /// # Errors
    /// Fails when the stack can send no SYN. Then there is no connection.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local_port: Option<u16>,
    ) -> Result<ConnId, ConnectError> {
        self.connect_from(now, None, remote, local_port)
    }

    /// Opens a connection as [`Stack::connect`] does, from our address `local` and over its link.
    /// Without `local` the connection uses the link that leads to the peer, and our address there.
    /// The scope of a link-local peer names the link too ([`Addressing::way`](super::Addressing::way)).
    ///
    /// # Errors
    /// Fails when the stack can send no SYN. Then there is no connection.
    pub fn connect_from(
        &mut self,
        now: Instant,
        local: Option<IpAddr>,
        remote: SocketAddr,
        local_port: Option<u16>,
    ) -> Result<ConnId, ConnectError> {
        self.connect_with(now, (local, local_port), remote, TcpTerms::default())
    }

    /// Opens a connection as [`Stack::connect_from`] does, with the settings that `tcp` names.
    ///
    /// # Errors
    /// Fails when the stack can send no SYN. Then there is no connection.
    pub fn connect_with(
        &mut self,
        now: Instant,
        (local, local_port): (Option<IpAddr>, Option<u16>),
        remote: SocketAddr,
        tcp: TcpTerms,
    ) -> Result<ConnId, ConnectError> {
        let peer = remote.ip();
        let hop = self.cfg.net.way(local, remote);
        let vid = hop.map_or(Vid::NONE, |hop| hop.vid);
        if remote.port() == 0 || !self.cfg.net.on(vid).is_peer(peer) {
            return Err(ConnectError::InvalidRemote);
        }
        let hop = hop?;
        let local = local.unwrap_or(hop.local);
        let key = |port| Some(FlowKey::new((local, port), (peer, remote.port()))?.on(vid));
        let own_end = (peer == local).then_some(remote.port());
        let flow = match local_port.filter(|&p| p != 0) {
            // The two ends would be the same connection.
            Some(port) if own_end == Some(port) => return Err(ConnectError::InvalidRemote),
            Some(port) if self.cfg.spread.landing(local, remote).has(port) => {
                key(port).ok_or(ConnectError::Family)?
            }
            Some(_) => return Err(ConnectError::Elsewhere),
            None => self.choose_port(now, local, remote, key)?,
        };
        let flow = self.ids.hashed(&flow);
        // The flow may belong to a connection of ours that is over, or to one that is not.
        let beyond = match self.look_up(flow) {
            None if self.has_half_open(flow) => return Err(ConnectError::PortInUse),
            None => None,
            Some(old) => Some(self.reuse(now, old).ok_or(ConnectError::PortInUse)?),
        };
        if self.conns.is_full() && !self.make_room() {
            return Err(ConnectError::TooManyConnections);
        }
        let next_hop = self.next_hop(now, hop).ok_or(ConnectError::TooManyNeighbors)?;
        let iss = self.first_number(now, flow, beyond);
        let marks = self.ids.marks(flow);
        let cfg = self.cfg.settings(flow.key, tcp);
        let conn = Connection::connect(&cfg, now, iss, marks.ts_offset);
        let id = self.open(now, conn, Opening { flow, marks, next_hop, iss, listener: None });
        self.counters.opened += 1;
        id.ok_or(ConnectError::TooManyConnections)
    }

    /// Returns a local port that is free and by which the peer's answers reach this stack.
    ///
    /// The loop does not look up ports of other workers, and skipping a port costs a few loads. The
    /// loop visits every port if necessary, so that a worker finds a port however small its share
    /// is.
    fn choose_port(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: SocketAddr,
        key: impl Fn(u16) -> Option<FlowKey>,
    ) -> Result<FlowKey, ConnectError> {
        let ports = self.ids.ports(&key(0).ok_or(ConnectError::Family)?);
        let landing = self.cfg.spread.landing(local, remote);
        let (mut passed, mut looked_at) = (0, 0);
        let (mut most, mut reusable) = (PORT_ATTEMPTS, None);
        while passed < EPHEMERAL_PORTS && looked_at < most {
            let port = ports.get(passed);
            passed += 1;
            if !landing.has(port) {
                continue;
            }
            looked_at += 1;
            let flow = key(port).ok_or(ConnectError::Family)?;
            // A connection from a port to itself would be both of its ends.
            if self.listeners.has_port(port) || (local, port) == (remote.ip(), remote.port()) {
                continue;
            }
            let Some(old) = self.look_up(self.ids.hashed(&flow)) else {
                self.ids.ports_tried(ports, passed);
                return Ok(flow);
            };
            // The ports are tried in a fixed order, so the first reusable connection has been over
            // for longest.
            if reusable.is_none() && self.conns.get(old).is_some_and(|e| is_reusable(e, now)) {
                reusable = Some((flow, passed));
                most = most.min(looked_at + FREE_PORT_ATTEMPTS);
            }
        }
        if let Some((flow, passed)) = reusable {
            self.ids.ports_tried(ports, passed);
            return Ok(flow);
        }
        self.ids.ports_tried(ports, passed);
        Err(if looked_at == 0 { ConnectError::Elsewhere } else { ConnectError::PortInUse })
    }

    /// Removes the connection `index`, which is in TIME-WAIT, so that a new connection of ours can
    /// use the same addresses and ports. Returns the number beyond which the new connection begins.
    /// Returns `None`, and does nothing, when the connection may not be replaced.
    fn reuse(&mut self, now: Instant, index: u32) -> Option<SeqNumber> {
        let e = self.conns.get(index).filter(|e| is_reusable(e, now))?;
        let beyond = e.conn.reusable(now)?;
        self.counters.time_wait_reused += 1;
        self.end_time_wait(index);
        Some(beyond)
    }

    /// Ends a connection in TIME-WAIT because another connection takes its addresses and ports.
    pub(super) fn end_time_wait(&mut self, index: u32) {
        if let Some(e) = self.conns.get_mut(index) {
            e.conn.abort();
        }
        self.update(index);
        self.detach(index);
    }

    /// Adds a user of the neighbor of `hop`, and asks for the neighbor if it is not known. Returns
    /// `None` when the table has no room for the neighbor.
    pub(super) fn next_hop(&mut self, now: Instant, hop: Hop) -> Option<NextHop> {
        if self.cfg.net.is_inside() {
            return Some(NextHop::Station(MacAddr(self.cfg.mac)));
        }
        let next = LinkAddr::new(hop.vid, hop.next);
        let (neighbor, ask) = self.neighbors.acquire(now, next)?;
        if ask {
            self.ask(hop.local, next, MacAddr::BROADCAST);
        }
        Some(NextHop::Neighbor(neighbor))
    }

    /// Accepts connections to `port` at the addresses `at`. At most `backlog` of
    /// these connections are half-open (SYN received, handshake not done) at a time, or
    /// [`min_backlog`](super::StackConfig::min_backlog) if that is more. A further SYN is answered
    /// with a cookie, or replaces the oldest half-open connection
    /// ([`syn_cookies`](super::StackConfig::syn_cookies)). With a `backlog` of 0 the stack drops all
    /// SYNs.
    ///
    /// # Errors
    /// Fails when the stack cannot listen there; see [`ListenError`].
    pub fn listen(
        &mut self,
        at: impl Into<ListenAt>,
        port: u16,
        backlog: usize,
    ) -> Result<(), ListenError> {
        self.listen_with(at, port, backlog, TcpTerms::default())
    }

    /// Accepts connections as [`Stack::listen`] does, with the settings that `tcp` names.
    ///
    /// # Errors
    /// Fails when the stack cannot listen there; see [`ListenError`].
    pub fn listen_with(
        &mut self,
        at: impl Into<ListenAt>,
        port: u16,
        backlog: usize,
        tcp: TcpTerms,
    ) -> Result<(), ListenError> {
        let at = at.into();
        if at.one().is_some_and(|a| !self.cfg.net.has(a)) {
            return Err(ListenError::NotOurs);
        }
        let backlog = if backlog == 0 { 0 } else { backlog.max(self.cfg.min_backlog) };
        self.listeners.add(at, port, (backlog, tcp))
    }

    /// Ends the listener that [`Stack::listen`] began with the same `at` and `port`, and resets
    /// its half-open connections. The stack drops SYNs that come within
    /// [`relisten`](super::StackConfig::relisten) after this call.
    pub fn unlisten(&mut self, now: Instant, at: impl Into<ListenAt>, port: u16) {
        let Some(mut gone) = self.listeners.remove(now, at.into(), port) else { return };
        while let Some(index) = gone.half_open.pop(&mut self.half_opens.table) {
            self.end_half_open(index);
        }
    }

    /// Handles a segment that belongs to no connection (RFC 9293 section 3.10.7.1 and 3.10.7.2). If
    /// the segment opens a connection, our sequence numbers begin beyond `beyond`.
    ///
    /// Such segments include repeats after both sides have closed. The side that closed second
    /// keeps nothing of the connection when its FIN is acknowledged, so it answers a repeated ACK
    /// or FIN with RST, as the RFC demands. To stay silent it would have to remember finished
    /// connections, which is TIME-WAIT for the side that needs none, and a peer that believes
    /// itself connected would have to find out by a timeout. The RST ends no live connection: both
    /// owners have had their end, and the RST can only cut the peer's TIME-WAIT short.
    #[inline(never)]
    pub(super) fn take_stranger(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        beyond: Option<SeqNumber>,
        out: &mut FrameOutcome,
    ) -> Result<(), DropReason> {
        let (dst, seg) = (arrival.dst, &arrival.tcp.segment);
        let net = self.cfg.net.on(arrival.ethernet.vid);
        if !net.is_ours(dst) {
            let group = dst.is_multicast() || net.is_broadcast(dst);
            return Err(if group { DropReason::RxTcpGroup } else { DropReason::RxOtherHost });
        }
        if !net.is_peer(arrival.src) || !arrival.ethernet.src.is_station() {
            return Err(DropReason::RxBadSource);
        }
        if self.half_opens.len() > 0
            && let Some(index) = self.half_opens.find(arrival.hashed())
        {
            return self.take_half_open(now, index, arrival, out);
        }
        if seg.flags.has(Flags::RST) {
            return Err(DropReason::RxRstUnknown);
        }
        let port = arrival.tcp.dst_port;
        let listener = self.listeners.find(dst, port);
        if listener.is_none()
            && !seg.flags.has(Flags::ACK)
            && seg.flags.has(Flags::SYN)
            && self.awaits_listener(now, arrival)
        {
            return Err(DropReason::ListenerAwaited);
        }
        if let Some(found) = &listener
            && seg.flags.has(Flags::ACK)
            && !seg.flags.has(Flags::SYN)
            && let Some(taken) = self.take_cookie(now, arrival, found, out)
        {
            return taken;
        }
        let Some(found) = listener.filter(|_| !seg.flags.has(Flags::ACK)) else {
            // The stack answers an ACK at a listener like an ACK without a listener.
            self.refuse(now, arrival);
            return Err(DropReason::RxNoConnection);
        };
        if !seg.flags.has(Flags::SYN) || seg.flags.has(Flags::FIN) || arrival.tcp.src_port == 0 {
            return Err(DropReason::RxBadFlags);
        }
        self.answer_syn(now, arrival, &found, beyond)
    }

    /// Returns true if the stack must drop a SYN that finds no listener instead of refusing it.
    #[cold]
    fn awaits_listener(&mut self, now: Instant, arrival: &Arrival) -> bool {
        let ago = self.cfg.relisten;
        if ago.is_zero() {
            return false;
        }
        let (dst, port) = (arrival.dst, arrival.tcp.dst_port);
        self.listeners.ended_within(now, ago, dst, port)
            || self.cfg.net.is_inside() && {
                let from = SocketAddr::new(arrival.src, arrival.tcp.src_port);
                self.listeners.is_early(now, ago, from, port)
            }
    }

    /// Returns the address under which the stack counts what the peer of `flow` causes.
    pub(super) fn site_of(&self, flow: &FlowKey) -> LinkAddr {
        self.cfg.net.site_on(flow.vid(), flow.remote().ip())
    }

    /// Makes an accepted connection follow the table of neighbors. If the table has no station for
    /// the peer, it learns the station through which the handshake was completed.
    #[cold]
    pub(super) fn adopt_next_hop(&mut self, now: Instant, index: u32) {
        // Inside the host there is no neighbor to learn: the station is our own.
        if !self.cfg.net.is_inside()
            && let Some(e) = self.conns.get_mut(index)
            && e.owner == Owner::Held
            && let NextHop::Station(mac) = e.next_hop
            && let flow = e.flow()
            && let peer = LinkAddr::new(flow.vid(), flow.remote().ip())
            && let Some(n) = self.neighbors.acquire_proven(now, peer, mac)
        {
            e.next_hop = NextHop::Neighbor(n);
            self.counters.neighbor_evictions = self.neighbors.evictions;
        }
    }

    /// Makes room for one connection where all places are taken: evicts the oldest connection in
    /// TIME-WAIT. Returns false when there is none.
    pub(super) fn make_room(&mut self) -> bool {
        let oldest = self.time_wait.pop(&mut self.conns);
        oldest.is_some_and(|index| {
            self.counters.time_wait_evicted += 1;
            self.remove(index);
            true
        })
    }

    /// Returns our first sequence number of a new connection, beyond `beyond`.
    pub(super) fn first_number(
        &self,
        now: Instant,
        flow: Hashed<'_>,
        beyond: Option<SeqNumber>,
    ) -> SeqNumber {
        match (self.ids.isn(now, flow), beyond) {
            // The clock of initial numbers is slower than a fast connection.
            (clock, Some(last)) if !clock.after(last) => last.advance(1 + (clock.0 & 0xffff)),
            (clock, _) => clock,
        }
    }

    /// Adds a connection; the caller has checked that there is room. If there is no room all the
    /// same, returns `None` and releases the next hop.
    pub(super) fn open(
        &mut self,
        now: Instant,
        mut conn: Connection,
        opening: Opening<'_>,
    ) -> Option<ConnId> {
        let Opening { flow: Hashed { key: flow, hash }, marks, next_hop, iss, listener } = opening;
        if let Some((mss, probe_at)) = self.paths.get(now, peer_of(flow)) {
            conn.know_path(mss, probe_at);
        }
        let id = self.conns.insert(Entry {
            conn,
            user: S::default(),
            template: self.template_of(flow, marks),
            owner: Owner::Held,
            next_hop,
            links: [Link::OUT; 2],
            iss,
            listener: listener.and_then(NonZeroU32::new),
            events: PendingEvents::default(),
            soft_error: None,
            attached: true,
            muted: false,
            armed: NEVER,
        });
        let Some(id) = id.filter(|id| self.flows.insert(hash, id.slot())) else {
            // There must be room: both tables were made for `max_conns`.
            debug_assert!(false);
            if let NextHop::Neighbor(n) = next_hop {
                self.neighbors.release(n);
            }
            return None;
        };
        if let NextHop::Neighbor(n) = next_hop {
            self.neighbors.wait(n, &mut self.conns, id.slot());
        }
        self.update(id.slot());
        Some(id)
    }

    /// Sends the frames and resumes the connections that waited for neighbor `neighbor`, which is
    /// known now.
    pub(super) fn resolved(&mut self, neighbor: u32) {
        self.resume_half_opens(neighbor);
        while let Some(index) = self.neighbors.next_waiting(neighbor, &mut self.conns) {
            self.update(index);
        }
        self.send_waiting(neighbor);
    }

    /// Reports to the connections that waited for neighbor `neighbor` that it does not answer, and
    /// drops the datagrams that waited.
    pub(super) fn unreachable(&mut self, neighbor: u32) {
        self.counters.neighbor_failed += 1;
        self.drop_waiting(neighbor);
        self.fail_half_opens(neighbor);
        while let Some(index) = self.neighbors.next_waiting(neighbor, &mut self.conns) {
            if let Some(e) = self.conns.get_mut(index) {
                e.raise(EventKind::Unreachable);
                e.muted = true;
                e.conn.abort();
            }
            self.update(index);
        }
    }

    /// Answers a segment of no connection with RST, within the rate limit.
    pub(super) fn refuse(&mut self, now: Instant, arrival: &Arrival) {
        if !self.resets.allow(now, self.site_of(&arrival.flow)) {
            self.counters.tx_resets_limited += 1;
            return;
        }
        let reset = reset_for(&arrival.tcp.segment);
        let template = self.template_of(&arrival.flow, self.ids.marks(arrival.hashed()));
        let frame = template.frame(
            arrival.ethernet.src,
            &reset,
            &SackBlocks::default(),
            TxBody::None,
            self.offloads,
        );
        if self.push_control(Control::Reset, frame) {
            self.counters.tx_resets += 1;
        }
    }
}

/// Returns the peer's address and its link.
pub(super) fn peer_of(flow: &FlowKey) -> LinkAddr {
    LinkAddr::new(flow.vid(), flow.remote().ip())
}

/// Returns true if a new connection of ours may take the place of this connection. A connection
/// that its owner has not released yet, or that waits at a listener's port, is not ours alone.
fn is_reusable<S>(e: &Entry<S>, now: Instant) -> bool {
    matches!(e.owner, Owner::Released { .. }) && e.conn.reusable(now).is_some()
}

/// Returns the RST that answers `seg` so that its sender believes the RST (RFC 9293 section 3.5.2,
/// group 1).
fn reset_for(seg: &Segment) -> TxSegment {
    if seg.flags.has(Flags::ACK) {
        return TxSegment { seq: seg.ack, flags: Flags::RST, ..TxSegment::default() };
    }
    let controls =
        u32::from(seg.flags.has(Flags::SYN)).wrapping_add(u32::from(seg.flags.has(Flags::FIN)));
    TxSegment {
        seq: SeqNumber(0),
        ack: seg.seq.advance(seg.len.wrapping_add(controls)),
        flags: Flags::RST.with(Flags::ACK),
        ..TxSegment::default()
    }
}
