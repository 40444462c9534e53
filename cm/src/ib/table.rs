//! What is known by which name, and what peers take of the room there is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use core::net::{IpAddr, SocketAddr};
use core::ops::Bound;
use core::time::Duration;

use heddle_base::{Instant, Random};
use heddle_ib::cm::{Mad, Message};
use heddle_ib::roce::UdRepr;
use heddle_ib::{CommId, Qpn as IbQpn};

use super::counters::IbCounters;
use super::filter::CommIds;
use super::link::{IbConn, IbLink};
use super::message::qpn;
use super::state::{Effects, IbState, Place};
use super::{IbConfig, IbDatagram, MAX_OUT};
use crate::conn::Place as Startup;
use crate::id::{CmId, ListenerId, TenantId, WorkerId};
use crate::shares::{Room, Shares};

/// The connections of InfiniBand, by their names.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) config: IbConfig,
    random: Random,
    conns: BTreeMap<CmId, Box<IbConn>>,
    by_comm: BTreeMap<CommId, CmId>,
    /// The names among these, for workers.
    comm_ids: Arc<CommIds>,
    /// By the peer's address and its name: a REQ has no other.
    by_peer: BTreeMap<(IpAddr, CommId), CmId>,
    /// By the peer's adapter and queue pair, at its address.
    by_qp: BTreeMap<(IpAddr, u64, IbQpn), CmId>,
    our_qpns: BTreeSet<IbQpn>,
    timers: BTreeSet<(Instant, CmId)>,
    /// Those that have ended, by when they are forgotten.
    over: BTreeSet<(Instant, CmId)>,
    /// Accepted connections whose peers do not answer: all, those of a listener, and those of a peer at
    /// a listener, each in the order in which they were begun.
    unanswered: BTreeSet<(Option<ListenerId>, Option<IpAddr>, CmId)>,
    /// Accepted connections of whose peers nothing has been heard since the REQ, in the order in which
    /// they were begun.
    half_open: BTreeSet<CmId>,
    /// Requests no application has answered.
    asked: Shares,
    usage: BTreeMap<(ListenerId, Option<IpAddr>), Usage>,
    out: VecDeque<(WorkerId, IbDatagram)>,
    pub(crate) fx: Effects,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub(crate) worker: WorkerId,
    /// Ours and the peer's.
    pub(crate) addresses: [IpAddr; 2],
    pub(crate) src_port: u16,
    /// Whether nothing proves that the peer is there.
    pub(crate) is_stranger: bool,
}

impl To {
    /// To the peer of a connection.
    pub(crate) fn peer(link: &IbLink) -> To {
        To {
            worker: link.worker,
            addresses: [link.local.ip(), link.remote.ip()],
            src_port: link.src_port,
            is_stranger: link.is_stranger,
        }
    }
}

/// What a listener has, or a peer at a listener.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) asked: usize,
    pub(crate) taken: usize,
    /// Of those that are taken, those whose peers do not answer.
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

    /// The names of all connections, as workers see them.
    pub(crate) fn comm_ids(&self) -> &Arc<CommIds> {
        &self.comm_ids
    }

    pub(crate) fn counters(&self) -> &IbCounters {
        &self.fx.ib
    }

    /// Connections whose end has not been told.
    pub(crate) fn len(&self) -> usize {
        self.conns.len() - self.over.len()
    }

    /// Those behind `after`, in the order of their names, whose end has not been told.
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

    /// All but those that `stay`.
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

    /// The connection that has the peer's queue pair. One that has ended has it no more: its peer may
    /// use the number again at once, and there is no transport whose late packets could meet it.
    pub(crate) fn by_qp(&self, peer: IpAddr, guid: u64, qpn: IbQpn) -> Option<CmId> {
        self.by_qp.get(&(peer, guid, qpn)).copied()
    }

    pub(crate) fn usage(&self, listener: ListenerId, peer: Option<IpAddr>) -> Usage {
        self.usage.get(&(listener, peer)).copied().unwrap_or_default()
    }

    /// Where a request to a listener of `tenant` finds a place.
    pub(crate) fn room(&self, tenant: TenantId) -> Room {
        self.asked.room(tenant)
    }

    /// The accepted connection that has waited for its peer's first word for longest.
    pub(crate) fn half_open(&self) -> Option<CmId> {
        self.half_open.first().copied()
    }

    /// A name, a queue pair and random numbers for a new connection.
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
        // The upper range, as RoCEv2 has it, spreads flows; the low bits are the connection's.
        let low = u16::try_from(link.local_comm.0 & 0x3fff).unwrap_or(0);
        link.src_port = 0xc000 | low;
        if link.listener.is_none() {
            link.tid = self.random.next_u64();
        }
    }

    /// A port for the asking end of a connection. It is free as nobody listens there: it is the peer's
    /// application that sees it, and no frame has it.
    pub(crate) fn ephemeral(&mut self) -> u16 {
        u16::try_from(49152 + self.random.below(16384)).unwrap_or(49152)
    }

    /// Whether there is room for one more, if whoever has ended makes it.
    pub(crate) fn has_room(&self) -> bool {
        self.conns.len() < self.config.max_conns || !self.over.is_empty()
    }

    /// Of the connections whose peers do not answer, all or those of a listener, or of a peer at a
    /// listener, the one that was begun first.
    pub(crate) fn unanswered(
        &self,
        listener: Option<ListenerId>,
        peer: Option<IpAddr>,
    ) -> Option<CmId> {
        let its = (listener, peer, CmId(0))..=(listener, peer, CmId(u64::MAX));
        self.unanswered.range(its).next().map(|(.., id)| *id)
    }

    /// A connection of a peer has, or has no more, an accepted connection's REP as its last word.
    pub(crate) fn change_half_open(&mut self, link: &IbLink, is: bool) {
        if is {
            self.half_open.insert(link.id);
        } else {
            self.half_open.remove(&link.id);
        }
    }

    /// A peer does not answer, or does after all.
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

    /// Whether there is room for one more; whoever has ended first makes it.
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

    /// The peer's names are known.
    pub(crate) fn index_peer(&mut self, link: &IbLink) {
        if let Some(name) = link.remote_comm {
            self.by_peer.entry((link.remote.ip(), name)).or_insert(link.id);
            let qp = (link.remote.ip(), link.remote_guid, link.remote_qpn);
            self.by_qp.entry(qp).or_insert(link.id);
        }
    }

    /// A connection has ended: its peer's queue pair is free, and its name is not, as copies of its
    /// messages still name it.
    pub(crate) fn free_qp(&mut self, link: &IbLink) {
        let qp = (link.remote.ip(), link.remote_guid, link.remote_qpn);
        if self.by_qp.get(&qp) == Some(&link.id) {
            self.by_qp.remove(&qp);
        }
    }

    /// The state has changed.
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

    /// Other patience with silent peers, those of connections that stand included.
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

    /// One whose time has come.
    pub(crate) fn due(&self, now: Instant) -> Option<CmId> {
        self.timers.first().filter(|(t, _)| *t <= now).map(|(_, id)| *id)
    }

    /// A passive connection goes from one place to another.
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

    /// Forgets a connection, and every name of it.
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

    /// Sends a message, if the worker has taken the others.
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
        // Both are of one version: `to` is where a packet came from, or was chosen so.
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

    /// What waits for a worker that is no more goes nowhere.
    pub(crate) fn forget_datagrams(&mut self, worker: WorkerId) {
        self.out.retain(|(w, _)| *w != worker);
    }
}

/// Octets of IP and UDP headers.
const fn headers(addr: IpAddr) -> usize {
    if addr.is_ipv4() { 28 } else { 48 }
}
