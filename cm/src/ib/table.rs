//! The indexes of the connections by their names, and the accounts of the room that peers take.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use core::net::{IpAddr, SocketAddr};
use core::ops::Bound;
use core::time::Duration;

use heddle_base::{Instant, Random};
use heddle_ib::cm::{Mad, Message};
use heddle_ib::roce::UdRepr;
use heddle_ib::{CommId, Qpn as IbQpn};
use heddle_types::{CmId, ListenerId, TenantId, WorkerId};

use super::counters::IbCounters;
use super::filter::CommIds;
use super::link::{IbConn, IbLink};
use super::message::qpn;
use super::state::{Effects, IbState, Place};
use super::{IbConfig, IbDatagram, MAX_OUT};
use crate::conn::Place as Startup;
use crate::shares::{Room, Shares};

/// The connections of InfiniBand, by their names.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) config: IbConfig,
    random: Random,
    conns: BTreeMap<CmId, Box<IbConn>>,
    by_comm: BTreeMap<CommId, CmId>,
    /// The ids of `by_comm`, in the form for workers.
    comm_ids: Arc<CommIds>,
    /// By the peer's address and its communication id, the only name in a REQ.
    by_peer: BTreeMap<(IpAddr, CommId), CmId>,
    /// By the peer's adapter and queue pair, at its address.
    by_qp: BTreeMap<(IpAddr, u64, IbQpn), CmId>,
    our_qpns: BTreeSet<IbQpn>,
    timers: BTreeSet<(Instant, CmId)>,
    /// Connections that have ended, by the time at which they are forgotten.
    over: BTreeSet<(Instant, CmId)>,
    /// Accepted connections whose peers do not answer, in order of their beginning: listed among
    /// all, by listener, and by peer at a listener.
    unanswered: BTreeSet<(Option<ListenerId>, Option<IpAddr>, CmId)>,
    /// Accepted connections whose peers have sent nothing since the REQ, in the order of their
    /// beginning.
    half_open: BTreeSet<CmId>,
    /// Requests that no application has answered.
    asked: Shares,
    usage: BTreeMap<(ListenerId, Option<IpAddr>), Usage>,
    out: VecDeque<(WorkerId, IbDatagram)>,
    pub(crate) fx: Effects,
}

/// The way of a message to its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub(crate) worker: WorkerId,
    /// Our address and the peer's.
    pub(crate) addresses: [IpAddr; 2],
    pub(crate) src_port: u16,
    /// Whether nothing proves yet that the peer exists.
    pub(crate) is_stranger: bool,
}

impl To {
    /// Returns the way to the peer of a connection.
    pub(crate) fn peer(link: &IbLink) -> To {
        To {
            worker: link.worker,
            addresses: [link.local.ip(), link.remote.ip()],
            src_port: link.src_port,
            is_stranger: link.is_stranger,
        }
    }
}

/// Number of connections of a listener, or of a peer at a listener.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) asked: usize,
    pub(crate) taken: usize,
    /// Connections among `taken` whose peers do not answer.
    pub(crate) unanswered: usize,
}

impl Table {
    pub(crate) fn new(config: IbConfig) -> Table {
        Table {
            random: Random::new(&config.seed),
            asked: Shares::new(
                config.max_startups,
                (config.max_startups - config.max_startups / 4).max(1),
            ),
            comm_ids: Arc::new(CommIds::new(config.max_conns)),
            config,
            conns: BTreeMap::new(),
            by_comm: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            by_qp: BTreeMap::new(),
            our_qpns: BTreeSet::new(),
            timers: BTreeSet::new(),
            over: BTreeSet::new(),
            unanswered: BTreeSet::new(),
            half_open: BTreeSet::new(),
            usage: BTreeMap::new(),
            out: VecDeque::new(),
            fx: Effects::default(),
        }
    }

    /// Returns the names of all connections, in the form for workers.
    pub(crate) fn comm_ids(&self) -> &Arc<CommIds> {
        &self.comm_ids
    }

    pub(crate) fn counters(&self) -> &IbCounters {
        &self.fx.ib
    }

    /// Returns the number of connections whose end has not been reported.
    pub(crate) fn len(&self) -> usize {
        self.conns.len() - self.over.len()
    }

    /// Returns the connections after `after`, in the order of their names, whose end has not been
    /// reported.
    pub(crate) fn behind(&self, after: Bound<CmId>) -> impl Iterator<Item = &IbConn> {
        let conns = self.conns.range((after, Bound::Unbounded)).map(|(_, c)| c.as_ref());
        conns.filter(|c| !c.state.is_over())
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    pub(crate) fn get(&self, id: CmId) -> Option<&IbConn> {
        self.conns.get(&id).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, id: CmId) -> Option<(&mut IbConn, &mut Effects)> {
        Some((self.conns.get_mut(&id)?, &mut self.fx))
    }

    /// Returns all connections except those that `stay`.
    pub(crate) fn all_but(&self, stay: impl Fn(&IbLink) -> bool) -> Vec<CmId> {
        let go = self.conns.iter().filter(|(_, c)| !stay(&c.link));
        go.map(|(id, _)| *id).collect()
    }

    pub(crate) fn by_comm(&self, name: CommId) -> Option<CmId> {
        self.by_comm.get(&name).copied()
    }

    pub(crate) fn by_peer(&self, peer: IpAddr, name: CommId) -> Option<CmId> {
        self.by_peer.get(&(peer, name)).copied()
    }

    /// Returns the connection that has the peer's queue pair. An ended connection has it no more:
    /// its peer may use the number again at once, because no transport delivers late packets.
    pub(crate) fn by_qp(&self, peer: IpAddr, guid: u64, qpn: IbQpn) -> Option<CmId> {
        self.by_qp.get(&(peer, guid, qpn)).copied()
    }

    pub(crate) fn usage(&self, listener: ListenerId, peer: Option<IpAddr>) -> Usage {
        self.usage.get(&(listener, peer)).copied().unwrap_or_default()
    }

    /// Returns where a request to a listener of `tenant` finds a place.
    pub(crate) fn room(&self, tenant: TenantId) -> Room {
        self.asked.room(tenant)
    }

    /// Returns the accepted connection that has waited longest for its peer's first message.
    pub(crate) fn half_open(&self) -> Option<CmId> {
        self.half_open.first().copied()
    }

    /// Gives a new connection a name, a queue pair and random numbers.
    pub(crate) fn name(&mut self, link: &mut IbLink) {
        link.local_comm = loop {
            let name = CommId(self.random.next_u32());
            let is_free = name != CommId(0) && !self.by_comm.contains_key(&name);
            if is_free && self.comm_ids.has_room(name) {
                break name;
            }
        };
        link.local_qpn = loop {
            let n = qpn(self.random.next_u32());
            if !self.our_qpns.contains(&n) {
                break n;
            }
        };
        link.local_psn = self.random.next_u32();
        link.dreq_tid = self.random.next_u64();
        // RoCEv2 uses the upper range of ports to spread flows; the low bits are the connection's.
        let low = u16::try_from(link.local_comm.0 & 0x3fff).unwrap_or(0);
        link.src_port = 0xc000 | low;
        if link.listener.is_none() {
            link.tid = self.random.next_u64();
        }
    }

    /// Picks a random port for the asking end of a connection. The port is only reported to the
    /// peer's application; no frame carries it, so nothing reserves it.
    pub(crate) fn ephemeral(&mut self) -> u16 {
        u16::try_from(49152 + self.random.below(16384)).unwrap_or(49152)
    }

    /// Returns true if there is room for another connection, or an ended connection can make room.
    pub(crate) fn has_room(&self) -> bool {
        self.conns.len() < self.config.max_conns || !self.over.is_empty()
    }

    /// Returns the oldest connection whose peer does not answer, among all connections, those of a
    /// listener, or those of a peer at a listener.
    pub(crate) fn unanswered(
        &self,
        listener: Option<ListenerId>,
        peer: Option<IpAddr>,
    ) -> Option<CmId> {
        let its = (listener, peer, CmId(0))..=(listener, peer, CmId(u64::MAX));
        self.unanswered.range(its).next().map(|(.., id)| *id)
    }

    /// Enters or removes a connection from `half_open`: the peer has, or no longer has, sent
    /// nothing since our REP.
    pub(crate) fn change_half_open(&mut self, link: &IbLink, is: bool) {
        if is {
            self.half_open.insert(link.id);
        } else {
            self.half_open.remove(&link.id);
        }
    }

    /// Updates the list and the counts when the peer has stopped answering, or answers again.
    pub(crate) fn change_unanswered(&mut self, link: &IbLink, was: bool, is: bool) {
        let Some(listener) = link.listener.filter(|_| was != is) else { return };
        let peer = Some(link.remote.ip());
        for (listener, peer) in [(None, None), (Some(listener), None), (Some(listener), peer)] {
            let entry = (listener, peer, link.id);
            if is {
                self.unanswered.insert(entry);
            } else {
                self.unanswered.remove(&entry);
            }
        }
        for peer in [None, peer] {
            if let Some(usage) = self.usage.get_mut(&(listener, peer)) {
                usage.unanswered = match is {
                    true => usage.unanswered + 1,
                    false => usage.unanswered - 1,
                };
            }
        }
    }

    /// Makes room for another connection by removing the connections that ended first. Returns true
    /// if there is room then.
    pub(crate) fn make_room(&mut self) -> bool {
        while self.conns.len() >= self.config.max_conns {
            let Some((_, id)) = self.over.first().copied() else { return false };
            self.fx.ib.time_wait_evicted += 1;
            self.remove(id);
        }
        true
    }

    pub(crate) fn insert(&mut self, conn: IbConn) {
        let link = &conn.link;
        let id = link.id;
        self.by_comm.insert(link.local_comm, id);
        self.comm_ids.insert(link.local_comm, link.remote.ip());
        self.our_qpns.insert(link.local_qpn);
        self.index_peer(&conn.link.clone());
        self.change_place(&conn.link.clone(), Place::None, conn.state.place());
        self.conns.insert(id, Box::new(conn));
        self.renew_deadline(id);
    }

    /// Enters the peer's names once they are known.
    pub(crate) fn index_peer(&mut self, link: &IbLink) {
        if let Some(name) = link.remote_comm {
            self.by_peer.entry((link.remote.ip(), name)).or_insert(link.id);
            let qp = (link.remote.ip(), link.remote_guid, link.remote_qpn);
            self.by_qp.entry(qp).or_insert(link.id);
        }
    }

    /// Frees the peer's queue pair when a connection has ended. The connection's name stays,
    /// because copies of the peer's messages still carry that name.
    pub(crate) fn free_qp(&mut self, link: &IbLink) {
        let qp = (link.remote.ip(), link.remote_guid, link.remote_qpn);
        if self.by_qp.get(&qp) == Some(&link.id) {
            self.by_qp.remove(&qp);
        }
    }

    /// Updates the deadline after a change of the state.
    pub(crate) fn renew_deadline(&mut self, id: CmId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (old, new) = (conn.deadline, conn.state.deadline());
        let over = conn.state.is_over();
        conn.deadline = new;
        if let Some(old) = old {
            self.timers.remove(&(old, id));
            self.over.remove(&(old, id));
        }
        if let Some(new) = new {
            self.timers.insert((new, id));
            if over {
                self.over.insert((new, id));
            }
        }
    }

    /// Changes the allowed silence of peers, including peers of existing connections.
    pub(crate) fn set_keepalive(&mut self, now: Instant, idle: Option<Duration>) {
        self.config.keepalive = idle;
        let passive = self.conns.iter_mut().filter(|(_, c)| c.link.listener.is_some());
        let changed: Vec<_> = passive
            .map(|(id, conn)| {
                conn.link.keepalive = idle;
                if let IbState::Established { keepalive: Some(k), .. } = &mut conn.state {
                    k.heard(idle, now);
                }
                *id
            })
            .collect();
        for id in changed {
            self.renew_deadline(id);
        }
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(t, _)| *t)
    }

    /// Returns a connection whose deadline has passed.
    pub(crate) fn due(&self, now: Instant) -> Option<CmId> {
        self.timers.first().filter(|(t, _)| *t <= now).map(|(_, id)| *id)
    }

    /// Moves a passive connection from one place to another.
    pub(crate) fn change_place(&mut self, link: &IbLink, from: Place, to: Place) {
        let Some(listener) = link.listener else { return };
        for peer in [None, Some(link.remote.ip())] {
            let usage = self.usage.entry((listener, peer)).or_default();
            match from {
                Place::None => {}
                Place::Asked => usage.asked -= 1,
                Place::Taken => usage.taken -= 1,
            }
            match to {
                Place::None => {}
                Place::Asked => usage.asked += 1,
                Place::Taken => usage.taken += 1,
            }
            if usage.asked + usage.taken == 0 {
                self.usage.remove(&(listener, peer));
            }
        }
        let place = |p| if p == Place::Asked { Startup::Asked } else { Startup::None };
        self.asked.change(link.tenant, link.id, place(from), place(to));
    }

    /// Forgets a connection and all its names.
    pub(crate) fn remove(&mut self, id: CmId) -> Option<IbLink> {
        let conn = self.conns.remove(&id)?;
        let link = conn.link;
        if let Some(old) = conn.deadline {
            self.timers.remove(&(old, id));
            self.over.remove(&(old, id));
        }
        self.change_unanswered(&link, conn.state.is_unanswered(), false);
        self.half_open.remove(&id);
        self.change_place(&link, conn.state.place(), Place::None);
        self.by_comm.remove(&link.local_comm);
        self.comm_ids.remove(link.local_comm, link.remote.ip());
        self.our_qpns.remove(&link.local_qpn);
        let peer = link.remote.ip();
        if let Some(name) = link.remote_comm
            && self.by_peer.get(&(peer, name)) == Some(&id)
        {
            self.by_peer.remove(&(peer, name));
        }
        self.free_qp(&link);
        Some(link)
    }

    /// Sends a message, unless the queue to the worker is full.
    pub(crate) fn send(&mut self, to: To, tid: u64, message: Message) {
        self.send_mad(to, &Mad::new(tid, message).emit());
    }

    pub(crate) fn send_mad(&mut self, to: To, mad: &[u8]) {
        let To { worker, addresses: [from, to], src_port, is_stranger: to_stranger } = to;
        let most = if to_stranger { MAX_OUT / 2 } else { MAX_OUT };
        if self.out.len() >= most {
            self.fx.ib.tx_full += 1;
            return;
        }
        // Both addresses are of one IP version: `to` either is the source of a packet that came to
        // `from`, or was chosen for it.
        let Some(packet) = UdRepr::gsi(from, to, src_port).emit(mad) else { return };
        let Some(payload) = packet.get(headers(from)..) else { return };
        self.fx.ib.tx_datagrams += 1;
        let local = SocketAddr::new(from, src_port);
        let remote = SocketAddr::new(to, heddle_ib::roce::UDP_PORT);
        let payload = payload.to_vec();
        self.out.push_back((worker, IbDatagram { local, remote, payload, to_stranger }));
    }

    pub(crate) fn poll_datagram(&mut self) -> Option<(WorkerId, IbDatagram)> {
        self.out.pop_front()
    }

    /// Drops the datagrams for a worker that has ended.
    pub(crate) fn forget_datagrams(&mut self, worker: WorkerId) {
        self.out.retain(|(w, _)| *w != worker);
    }
}

/// Returns the bytes of IP and UDP headers.
const fn headers(addr: IpAddr) -> usize {
    if addr.is_ipv4() { 28 } else { 48 }
}
