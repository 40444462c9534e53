//! How connections begin: ours, peers', and the refusal of what belongs to none.
//!
//! A connection whose next hop is not known waits for ARP; its first segment goes out when the
//! answer comes. That holds for passive ones too: the station address a SYN came from is not taken
//! for its sender's, since the way back need not be the way here (a router of another link, two
//! routers on ours), and since a forged SYN would otherwise teach us a forged neighbor. It costs
//! one ARP exchange for the first connection of a host, and the half-open bound of the listener
//! bounds it. Answers that leave no state behind (RST, echo reply) do go back to the station the
//! frame came from.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use heddle_base::Instant;

use super::Stack;
use super::counters::Drop;
use super::event::{ConnectError, StackEvent};
use super::flow::FlowKey;
use super::frame::TxBody;
use super::ids::EPHEMERAL_PORTS;
use super::input::Arrival;
use super::listen::ListenError;
use super::slab::{ConnId, Entry, Owner};
use super::template::HeaderTemplate;
use crate::wire::MacAddr;
use crate::{Connection, Flags, SackBlocks, Segment, SendQueue, SeqNumber, TxSegment};

/// Why there is no connection, before the caller is told in its own words.
enum NoRoom {
    Connections,
    Neighbors,
}

impl<S: SendQueue + Default> Stack<S> {
    /// Opens a connection to `remote`, from `local_port` or from one chosen by RFC 6056.
    ///
    /// [`ConnEvent::Connected`](crate::ConnEvent::Connected) tells of success; failure is one of
    /// the events that end a connection.
    ///
    /// # Errors
    /// When no SYN can be sent; then there is no connection.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local_port: Option<u16>,
    ) -> Result<ConnId, ConnectError> {
        let IpAddr::V4(peer) = remote.ip() else { return Err(ConnectError::Family) };
        if remote.port() == 0 || !self.cfg.is_peer(peer) {
            return Err(ConnectError::InvalidRemote);
        }
        let (local, next_hop) = self.cfg.route(peer).ok_or(ConnectError::NoRoute)?;
        let flow = match local_port.filter(|&p| p != 0) {
            Some(port) => FlowKey::v4(local, port, peer, remote.port()),
            None => self.choose_port(local, peer, remote.port()).ok_or(ConnectError::PortInUse)?,
        };
        if self.find(&flow).is_some() {
            return Err(ConnectError::PortInUse);
        }
        let id =
            self.open(now, flow, (local, next_hop), Owner::Held, None).map_err(|e| match e {
                NoRoom::Connections => ConnectError::TooManyConnections,
                NoRoom::Neighbors => ConnectError::TooManyNeighbors,
            })?;
        self.counters.opened += 1;
        Ok(id)
    }

    fn choose_port(&mut self, local: Ipv4Addr, peer: Ipv4Addr, rport: u16) -> Option<FlowKey> {
        let base = FlowKey::v4(local, 0, peer, rport);
        for attempt in 0..EPHEMERAL_PORTS {
            let port = self.ids.port(&base, attempt);
            let flow = FlowKey::v4(local, port, peer, rport);
            if !self.listeners.has_port(port) && self.find(&flow).is_none() {
                self.ids.port_taken(&base, attempt);
                return Some(flow);
            }
        }
        None
    }

    /// Accepts connections to `port` at `addr`, or at any address of ours. At most `backlog` of
    /// them are half-open (SYN received, handshake not done) at a time; a SYN beyond takes the place
    /// of the oldest (RFC 4987 section 3.4).
    ///
    /// # Errors
    /// When that cannot be.
    pub fn listen(
        &mut self,
        addr: Option<IpAddr>,
        port: u16,
        backlog: usize,
    ) -> Result<(), ListenError> {
        if addr.is_some_and(|a| !self.cfg.is_ours(a)) {
            return Err(ListenError::NotOurs);
        }
        self.listeners.add(addr, port, backlog)
    }

    /// Ends what [`Stack::listen`] began with the same `addr` and `port`; half-open connections are
    /// reset. Looks at all connections.
    pub fn unlisten(&mut self, addr: Option<IpAddr>, port: u16) {
        let Some(gone) = self.listeners.remove(addr, port) else { return };
        let half_open: Vec<u32> = self
            .conns
            .indices()
            .filter(|&i| {
                self.conns.get(i).is_some_and(|e| e.owner == Owner::HalfOpen { listener: gone })
            })
            .collect();
        for index in half_open {
            if let Some(e) = self.conns.get_mut(index) {
                e.conn.abort();
            }
            self.settle(index);
        }
    }

    /// A segment that belongs to no connection (RFC 9293 section 3.10.7.1 and 3.10.7.2).
    #[inline(never)]
    pub(super) fn take_stranger(&mut self, now: Instant, arrival: &Arrival) -> Result<(), Drop> {
        let (ip, seg) = (&arrival.ip, &arrival.tcp.segment);
        let dst = IpAddr::V4(ip.dst);
        if !self.cfg.is_ours(dst) {
            let group = ip.dst.is_multicast()
                || ip.dst.is_broadcast()
                || self.cfg.addrs.iter().any(|c| c.is_broadcast(ip.dst));
            return Err(if group { |c| &mut c.rx_tcp_group } else { |c| &mut c.rx_other_host });
        }
        if !self.cfg.is_peer(ip.src) || !arrival.ethernet.src.is_station() {
            return Err(|c| &mut c.rx_bad_source);
        }
        if seg.flags.has(Flags::RST) {
            return Err(|c| &mut c.rx_rst_unknown);
        }
        let listener = self.listeners.find(dst, arrival.tcp.dst_port);
        let listener = match listener {
            Some(l) if !seg.flags.has(Flags::ACK) => l,
            // An ACK at a listener is answered as one at no listener.
            _ => {
                self.refuse(now, arrival);
                return Err(|c| &mut c.rx_no_connection);
            }
        };
        if !seg.flags.has(Flags::SYN) || seg.flags.has(Flags::FIN) || arrival.tcp.src_port == 0 {
            return Err(|c| &mut c.rx_bad_flags);
        }
        if listener.half_open >= listener.backlog {
            let conns = &self.conns;
            match listener.oldest.pop(|id| conns.is_half_open(id)) {
                Some(id) => self.evict_half_open(id),
                None => return Err(|c| &mut c.listen_overflow),
            }
        }
        let id = self.answer_syn(now, arrival)?;
        self.counters.half_opened += 1;
        let conns = &self.conns;
        if let Some(l) = self.listeners.find(dst, arrival.tcp.dst_port) {
            let most = l.backlog.min(self.cfg.max_conns);
            l.half_open += 1;
            l.oldest.push(id, most, |id| conns.is_half_open(id));
        }
        Ok(())
    }

    /// Makes the half-open connection.
    fn answer_syn(&mut self, now: Instant, arrival: &Arrival) -> Result<ConnId, Drop> {
        let ip = &arrival.ip;
        let (_, next_hop) = self.cfg.route(ip.src).ok_or::<Drop>(|c| &mut c.syn_no_neighbor)?;
        let syn = Some(&arrival.tcp.segment);
        let listener = self.listeners.find(IpAddr::V4(ip.dst), arrival.tcp.dst_port);
        let Some(listener) = listener.map(|l| l.id) else {
            return Err(|c| &mut c.rx_no_connection);
        };
        let owner = Owner::HalfOpen { listener };
        self.open(now, arrival.flow(), (ip.dst, next_hop), owner, syn).map_err(|e| -> Drop {
            match e {
                NoRoom::Connections => |c| &mut c.conns_full,
                NoRoom::Neighbors => |c| &mut c.syn_no_neighbor,
            }
        })
    }

    /// Makes room for one connection where all places are taken: the oldest in TIME-WAIT goes, or
    /// else the oldest half-open one of the listener that has most of them. False when there is
    /// neither.
    fn make_room(&mut self) -> bool {
        let conns = &self.conns;
        if let Some(id) = self.waiting_out.pop(|id| conns.is_waiting_out(id)) {
            self.counters.time_wait_evicted += 1;
            self.forget(id.slot());
            return true;
        }
        let oldest =
            self.listeners.busiest().and_then(|l| l.oldest.pop(|id| conns.is_half_open(id)));
        oldest.is_some_and(|id| {
            self.evict_half_open(id);
            true
        })
    }

    /// Forgets a half-open connection without a word: its peer was perhaps never there, and one
    /// that is there asks again when our SYN-ACK was lost.
    fn evict_half_open(&mut self, id: ConnId) {
        self.counters.half_open_evicted += 1;
        self.forget(id.slot());
    }

    /// Makes a connection: an active one, or the answer to a SYN.
    fn open(
        &mut self,
        now: Instant,
        flow: FlowKey,
        (local, next_hop): (Ipv4Addr, Ipv4Addr),
        owner: Owner,
        syn: Option<&Segment>,
    ) -> Result<ConnId, NoRoom> {
        if self.conns.is_full() && !self.make_room() {
            return Err(NoRoom::Connections);
        }
        let (neighbor, ask) = self.neighbors.acquire(now, next_hop).ok_or(NoRoom::Neighbors)?;
        if ask {
            self.ask(local, next_hop, MacAddr::BROADCAST);
        }
        let iss = self.ids.isn(now, &flow);
        let ts_offset = self.ids.ts_offset(&flow);
        let waits = !self.neighbors.is_settled(neighbor);
        let entry = Entry {
            flow,
            conn: match syn {
                None => Connection::connect(&self.cfg.conn, now, iss, ts_offset),
                Some(syn) => Connection::accept(&self.cfg.conn, now, iss, ts_offset, syn),
            },
            user: S::default(),
            template: HeaderTemplate::new(
                MacAddr(self.cfg.mac),
                &flow,
                self.cfg.ttl,
                self.cfg.dscp,
            ),
            neighbor,
            waits,
            attached: true,
            owner,
            iss,
            soft_error: None,
            events: Default::default(),
            muted: false,
        };
        let hash = flow.hash(&self.ids.flow);
        let id = self.conns.insert(entry);
        let Some(id) = id.filter(|id| self.flows.insert(hash, id.slot())) else {
            // There is room: both were made for `max_conns`.
            debug_assert!(false);
            self.neighbors.release(neighbor);
            return Err(NoRoom::Connections);
        };
        if waits {
            self.waiting.push(id.slot());
        }
        self.settle(id.slot());
        Ok(id)
    }

    /// Neighbor `neighbor` is known now: who waited for it may send.
    pub(super) fn resolved(&mut self, neighbor: u32) {
        self.each_waiting(neighbor, |stack, index| {
            if let Some(e) = stack.conns.get_mut(index) {
                e.waits = false;
            }
            stack.settle(index);
        });
    }

    /// Neighbor `neighbor` does not answer: who waited for it is told so.
    pub(super) fn unreachable(&mut self, neighbor: u32) {
        self.counters.neighbor_failed += 1;
        self.each_waiting(neighbor, |stack, index| {
            if let Some(e) = stack.conns.get_mut(index) {
                if e.owner == Owner::Held {
                    e.tell(StackEvent::Unreachable);
                }
                e.muted = true;
                e.conn.abort();
            }
            stack.settle(index);
        });
    }

    fn each_waiting(&mut self, neighbor: u32, mut f: impl FnMut(&mut Self, u32)) {
        for _ in 0..self.waiting.len() {
            let Some(index) = self.waiting.pop() else { break };
            match self.conns.get(index) {
                Some(e) if e.waits && e.neighbor == neighbor => f(self, index),
                Some(e) if e.waits => self.waiting.push(index),
                _ => {}
            }
        }
    }

    /// Answers a segment of no connection with RST, within the rate limit.
    fn refuse(&mut self, now: Instant, arrival: &Arrival) {
        if !self.resets.allow(now) {
            self.counters.tx_resets_limited += 1;
            return;
        }
        let reset = reset_for(&arrival.tcp.segment);
        let flow = arrival.flow();
        let template =
            HeaderTemplate::new(MacAddr(self.cfg.mac), &flow, self.cfg.ttl, self.cfg.dscp);
        let frame = template.frame(
            arrival.ethernet.src,
            &reset,
            &SackBlocks::default(),
            TxBody::None,
            self.offloads,
        );
        if self.push_control(frame) {
            self.counters.tx_resets += 1;
        }
    }
}

/// The RST that answers `seg` so that its sender believes it (RFC 9293 section 3.5.2, group 1).
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
