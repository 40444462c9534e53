//! The connections of a server.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use heddle_rpcrdma::conn::{CloseReason, Side};
use heddle_rpcrdma::private_data::PrivateData;
use heddle_verbs::{AcceptParams, Arm, CmEvent, CmId, Device, DeviceError, EventQueue, Pd, Waker};

use super::From;
use super::callers::{CallerGuard, Callers};
use super::{ServerConfig, ServerCounters};
use crate::memory::{Memory, Share};
use crate::transport::{Link, LinkEvent, Parts, SetupError};

/// The largest number of completions, and of events, that a link takes in one turn.
const BATCH: usize = 32;

/// The binding of a server that makes no calls, and so gets no results.
const NO_BINDING: heddle_rpcrdma::binding::Table<'static> = heddle_rpcrdma::binding::Table(&[]);

#[derive(Debug)]
enum Phase {
    /// The server has accepted the connection. The peer's private data was in the connection
    /// request.
    Accepting {
        parts: Box<Parts>,
        peers: Option<PrivateData>,
        /// Memory for calls of the server.
        memory: Option<Memory>,
    },
    Up {
        link: Box<Link>,
        guard: Option<CallerGuard>,
        closing: bool,
        /// True if the queue pair has ended. Messages that arrived before still get their turns.
        ended: bool,
    },
}

#[derive(Debug)]
struct Peer {
    addr: SocketAddr,
    share: Share,
    phase: Phase,
}

/// See [the module](self).
#[derive(Debug)]
pub(super) struct Links {
    device: Device,
    pd: Pd,
    memory: Memory,
    config: ServerConfig,
    waker: Waker,
    /// Peers by the numbers of their connections.
    peers: BTreeMap<u64, Peer>,
    /// The addresses' shares of the memory, which remain after their connections have ended.
    shares: HashMap<IpAddr, Share>,
    /// Links that have ended since the last call of `take_gone`.
    gone: Vec<(IpAddr, u64)>,
    /// The link that has its turn first.
    first: u64,
    /// Callers of a server that calls its clients.
    callers: Option<Callers>,
    /// True if links ignore new calls, and end when the calls that programs have are replied to.
    draining: bool,
}

/// The outcome of a link's turn.
enum Worked {
    Yes,
    No,
    /// The link has ended, and no work is left.
    Over,
}

/// A turn of all links.
struct Turn<'a> {
    now: Instant,
    counters: &'a mut ServerCounters,
    device: &'a Device,
    callers: &'a mut Option<Callers>,
    draining: bool,
}

impl Turn<'_> {
    /// Gives a link its turn, and passes its events of calls to `handle`.
    fn take(
        &mut self,
        number: u64,
        peer: &mut Peer,
        handle: &mut impl FnMut(From<'_>, &mut Link, u64, LinkEvent, &mut ServerCounters),
    ) -> Worked {
        let Peer { addr, share, phase } = peer;
        let Phase::Up { link, guard, closing, ended } = phase else { return Worked::No };
        let waited = link.counters().memory_waits;
        let mut busy = link.step(self.now, BATCH);
        self.counters.memory_waits += link.counters().memory_waits - waited;
        let mut end = false;
        for _ in 0..BATCH {
            let event = match (&mut *self.callers, guard.as_mut()) {
                (Some(callers), Some(guard)) => callers.poll(link, guard),
                _ => link.poll_event(&NO_BINDING),
            };
            match event {
                None => break,
                Some(LinkEvent::Close(reason)) => {
                    end = true;
                    let late = reason == CloseReason::TransferTimeout;
                    self.counters.transfer_timeouts += u64::from(late);
                }
                Some(LinkEvent::Call { .. }) if self.draining => link.leave_call(),
                Some(event) => {
                    let caller = guard.as_ref().map(|guard| &guard.caller);
                    let from = From { peer: *addr, share: Some(share), caller };
                    handle(from, link, number, event, self.counters);
                }
            }
            busy = true;
        }
        // Make calls once all events are taken: a call's slot in the connection is free before its
        // event is taken.
        if let Some(guard) = guard.as_ref().filter(|_| !*closing && link.has_told_all()) {
            busy |= guard.caller.feed(self.now, link);
        }
        busy |= link.post();
        if (end || link.is_broken()) && !*closing {
            *closing = true;
            link.leave();
            self.counters.connections_dropped += 1;
            let _ = self.device.disconnect(CmId(number));
        } else if self.draining && !*closing && link.has_replied() {
            *closing = true;
            link.leave();
            let _ = self.device.disconnect(CmId(number));
        }
        match (busy, *ended) {
            (true, _) => Worked::Yes,
            (false, true) => Worked::Over,
            (false, false) => Worked::No,
        }
    }
}

impl Links {
    pub(super) fn new(
        device: Device,
        pd: Pd,
        memory: Memory,
        config: ServerConfig,
        waker: Waker,
        callers: Option<Callers>,
    ) -> Links {
        Links {
            device,
            pd,
            memory,
            config,
            waker,
            peers: BTreeMap::new(),
            shares: HashMap::new(),
            gone: Vec::new(),
            first: 0,
            callers,
            draining: false,
        }
    }

    /// Returns the clients that the server may call, if the server makes calls.
    pub(super) fn callers(&mut self) -> Option<&mut Callers> {
        self.callers.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns the number of links that speak this version of RPC-over-RDMA.
    pub(super) fn speaking(&self, version: u32) -> usize {
        let links = self.peers.values().filter_map(|peer| match &peer.phase {
            Phase::Up { link, .. } => link.version(),
            Phase::Accepting { .. } => None,
        });
        links.filter(|spoken| *spoken == version).count()
    }

    /// Returns the link with this number, while there is one.
    pub(super) fn get(&mut self, number: u64) -> Option<&mut Link> {
        match &mut self.peers.get_mut(&number)?.phase {
            Phase::Up { link, .. } => Some(link),
            Phase::Accepting { .. } => None,
        }
    }

    /// Returns the addresses and numbers of links that have ended since the last call of this
    /// method.
    pub(super) fn take_gone(&mut self) -> Vec<(IpAddr, u64)> {
        std::mem::take(&mut self.gone)
    }

    /// Returns an address's share of the memory.
    pub(super) fn share(&mut self, ip: IpAddr) -> Share {
        if self.shares.len() > 2 * self.config.connections {
            self.shares.retain(|_, share| !share.is_unused());
        }
        self.shares.entry(ip).or_default().clone()
    }

    /// Gives each link a turn, and passes its events of calls to `handle`. Returns true if there
    /// was any work.
    pub(super) fn step(
        &mut self,
        now: Instant,
        counters: &mut ServerCounters,
        mut handle: impl FnMut(From<'_>, &mut Link, u64, LinkEvent, &mut ServerCounters),
    ) -> bool {
        let (mut any, mut gone) = (false, Vec::new());
        let Links { peers, first, device, callers, draining, .. } = self;
        let _step = callers.as_ref().map(Callers::step);
        let mut turn = Turn { now, counters, device, callers, draining: *draining };
        // The next turn begins after the last link that had any work.
        let (begin, mut next) = (*first, *first);
        let mut take = |number: u64, peer: &mut Peer| match turn.take(number, peer, &mut handle) {
            Worked::Yes => {
                any = true;
                next = number.saturating_add(1);
            }
            Worked::No => {}
            Worked::Over => gone.push(number),
        };
        peers.range_mut(begin..).for_each(|(&number, peer)| take(number, peer));
        peers.range_mut(..begin).for_each(|(&number, peer)| take(number, peer));
        *first = next;
        for number in gone {
            // Programs keep the arguments of calls under way until they are done with them. Their
            // replies may be kept for repeated calls, but are sent nowhere.
            let peer = peers.remove(&number);
            self.gone.extend(peer.as_ref().map(|peer| (peer.addr.ip(), number)));
            if let Some(Peer { phase: Phase::Up { mut link, guard: Some(guard), .. }, .. }) = peer
                && let Some(callers) = callers
            {
                callers.ended(now, guard, &mut link);
            }
        }
        any
    }

    /// Lets replies, and calls of connections in their turn, use memory that has come back. Returns
    /// true if any of them goes on.
    pub(super) fn memory_returned(&mut self) -> bool {
        let mut any = false;
        // If a connection moves out of the way of others here, the memory reports that, and all are
        // asked again.
        for number in self.memory.in_turn() {
            match self.peers.get_mut(&number).map(|peer| &mut peer.phase) {
                Some(Phase::Up { link, closing: false, .. }) => any |= link.memory_returned(),
                _ => self.memory.leave(number),
            }
        }
        // Ask the others, which do not wait in turn: replies, and connections that their own
        // budgets hold back.
        for peer in self.peers.values_mut() {
            if let Phase::Up { link, closing: false, .. } = &mut peer.phase
                && link.is_waiting()
            {
                any |= link.memory_returned();
            }
        }
        any
    }

    pub(super) fn handle_event(
        &mut self,
        now: Instant,
        event: CmEvent,
        events: &EventQueue,
        counters: &mut ServerCounters,
    ) {
        match event {
            CmEvent::ConnectRequest { id, remote, private_data, .. } => {
                self.asked(id, remote, &private_data, events, counters);
            }
            CmEvent::Established { id, agreed, .. } => {
                counters.connections += 1;
                self.establish(now, id, agreed.ord);
            }
            CmEvent::ConnectError { id, .. } | CmEvent::Disconnected { id, .. } => {
                match self.peers.get_mut(&id.0).map(|peer| &mut peer.phase) {
                    // Handle what has arrived: a client may have sent a call without a reply as its
                    // last message before it closed.
                    Some(Phase::Up { link, closing, ended, .. }) => {
                        (*closing, *ended) = (true, true);
                        link.leave();
                    }
                    _ => drop(self.peers.remove(&id.0)),
                }
            }
            _ => {}
        }
    }

    /// Handles a connection request of a peer.
    fn asked(
        &mut self,
        id: CmId,
        remote: SocketAddr,
        private_data: &[u8],
        events: &EventQueue,
        counters: &mut ServerCounters,
    ) {
        let full = self.draining || self.is_full(remote.ip());
        if full || self.accept(id, remote, private_data, events).is_err() {
            counters.connections_refused += 1;
            let _ = self.device.reject(id, Vec::new());
        }
    }

    fn is_full(&self, ip: IpAddr) -> bool {
        let there = |p: &&Peer| !matches!(p.phase, Phase::Up { ended: true, .. });
        let of_peer = self.peers.values().filter(there).filter(|p| p.addr.ip() == ip).count();
        self.peers.values().filter(there).count() >= self.config.connections
            || of_peer >= self.config.peer_connections
    }

    fn accept(
        &mut self,
        id: CmId,
        addr: SocketAddr,
        private_data: &[u8],
        events: &EventQueue,
    ) -> Result<(), SetupError> {
        let transport = &self.config.transport;
        let side = (Side::Server, transport);
        let registrations = self.callers.as_ref().map_or(0, |c| c.config().registrations);
        let parts = Parts::new(&self.device, self.pd, side, registrations, self.waker.clone())?;
        let callers = self.callers.as_ref();
        let memory = callers.map(|c| c.memory(&self.device, self.pd)).transpose()?;
        let params = AcceptParams {
            private_data: transport.private_data(),
            ..AcceptParams::new(parts.qp().clone()).reads(transport.reads, transport.reads)
        };
        self.device.accept_on(id, params, events)?;
        let peers = PrivateData::find(private_data);
        let phase = Phase::Accepting { parts: Box::new(parts), peers, memory };
        let share = self.share(addr.ip());
        self.peers.insert(id.0, Peer { addr, share, phase });
        Ok(())
    }

    fn establish(&mut self, now: Instant, id: CmId, ord: u16) {
        let Some(Peer { addr, share, phase: Phase::Accepting { parts, peers, memory } }) =
            self.peers.remove(&id.0)
        else {
            return;
        };
        let transport = &self.config.transport;
        let config = transport.connection(Side::Server, transport.speaks, peers, ord);
        let budget = self.config.connection_memory;
        let served = self.memory.clone();
        let own = memory.as_ref().unwrap_or(&served).clone();
        match Link::new(now, *parts, (own, served), config, (id.0, budget, Some(share.clone()))) {
            Ok(link) => {
                let guard = self.callers.as_ref().zip(memory);
                let guard = guard.map(|(callers, memory)| callers.guard(addr, memory));
                let phase = Phase::Up { link: Box::new(link), guard, closing: false, ended: false };
                self.peers.insert(id.0, Peer { addr, share, phase });
            }
            Err(_) => drop(self.end(id)),
        }
    }

    fn end(&self, id: CmId) -> Result<(), DeviceError> {
        self.device.disconnect(id)
    }

    /// Returns the time when a link must be stepped although nothing arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let up = self.peers.values().filter_map(|p| match &p.phase {
            Phase::Up { link, guard, .. } => {
                let calls = guard.as_ref().and_then(|guard| guard.caller.deadline());
                link.deadline().into_iter().chain(calls).min()
            }
            Phase::Accepting { .. } => None,
        });
        up.min()
    }

    /// Arms the completion queues. Returns true if all of them are empty.
    pub(super) fn arm(&self) -> bool {
        let mut empty = true;
        for peer in self.peers.values() {
            if let Phase::Up { link, .. } = &peer.phase {
                link.cq().arm(Arm::Next);
                empty &= link.cq().is_empty();
            }
        }
        empty
    }

    /// Ends each link when the calls that programs have from it are replied to.
    pub(super) fn drain(&mut self) {
        self.draining = true;
    }

    /// Ends the links in order; they are removed when that is done.
    pub(super) fn disconnect(&mut self) {
        for (number, peer) in &mut self.peers {
            match &mut peer.phase {
                // The connection may still be established for a moment before it ends.
                Phase::Accepting { .. } => {}
                Phase::Up { closing: true, .. } => continue,
                Phase::Up { link, closing, .. } => {
                    *closing = true;
                    link.leave();
                }
            }
            let _ = self.device.disconnect(CmId(*number));
        }
    }

    /// Ends the links in order, and forgets them.
    pub(super) fn close(&mut self) {
        for number in std::mem::take(&mut self.peers).into_keys() {
            let _ = self.end(CmId(number));
        }
    }
}
