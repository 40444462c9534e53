//! Listeners: each over several workers, with the places that it gives to peers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::net::{IpAddr, SocketAddr};

use heddle_types::{AppId, CmId, ListenAt, ListenError, ListenParams, ListenerId, WorkerId};

use crate::conn::Place;
use crate::notice::Refusal;

/// Passive connections that are not established, sorted by the kind of their place, which decides
/// which connection makes room. Ids grow with time, so the least id came first.
#[derive(Debug, Default)]
pub(crate) struct Places {
    waiting: Ids,
    leaving: Ids,
    asked: Ids,
}

/// Names in ascending order. A new name is usually the greatest and a removed name the least, so a
/// queue that keeps its memory is cheaper than a tree. A name in the middle moves the names of the
/// shorter side: at most half of the backlog, or of a worker's start-ups.
#[derive(Debug, Default)]
struct Ids(VecDeque<CmId>);

impl Ids {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn first(&self) -> Option<CmId> {
        self.0.front().copied()
    }

    fn insert(&mut self, id: CmId) {
        if self.0.back().is_none_or(|last| *last < id) {
            self.0.push_back(id);
        } else if let Err(at) = self.0.binary_search(&id) {
            self.0.insert(at, id);
        }
    }

    fn remove(&mut self, id: CmId) {
        if self.0.front() == Some(&id) {
            self.0.pop_front();
        } else if let Ok(at) = self.0.binary_search(&id) {
            self.0.remove(at);
        }
    }
}

impl Places {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.leaving.len() + self.asked.len()
    }

    /// Moves a connection from one place to another.
    pub(crate) fn change(&mut self, id: CmId, from: Place, to: Place) {
        match from {
            Place::Waiting => self.waiting.remove(id),
            Place::Leaving => self.leaving.remove(id),
            Place::Asked => self.asked.remove(id),
            Place::None | Place::Established => {}
        }
        match to {
            Place::Waiting => self.waiting.insert(id),
            Place::Leaving => self.leaving.insert(id),
            Place::Asked => self.asked.insert(id),
            Place::None | Place::Established => {}
        }
    }

    /// Returns the connection that has to make room for a newcomer. Connections that have our last
    /// message go first; then the connection that has kept us waiting for its request longest,
    /// because an honest peer sends its request at once. A connection that the application knows of
    /// is left alone.
    pub(crate) fn to_evict(&self) -> Option<CmId> {
        self.leaving.first().or_else(|| self.waiting.first())
    }

    /// Returns the connection that makes room for another tenant: as [`to_evict`](Self::to_evict),
    /// and if the application knows of all connections, the connection that the application has
    /// kept waiting longest.
    pub(crate) fn to_displace(&self) -> Option<CmId> {
        self.to_evict().or_else(|| self.asked.first())
    }

    /// Returns the connections that no application knows of.
    pub(crate) fn waiting(&self) -> Vec<CmId> {
        self.waiting.0.iter().copied().collect()
    }
}

/// Connections of one peer address at one listener.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    startups: usize,
    established: usize,
}

#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) app: AppId,
    pub(crate) addr: SocketAddr,
    pub(crate) params: ListenParams,
    pub(crate) places: Places,
    peers: BTreeMap<IpAddr, Peer>,
    /// The workers that were ordered to listen.
    workers: Vec<WorkerId>,
    /// Absent once all workers listen.
    pending: Option<Pending>,
}

/// The workers' answers so far.
#[derive(Debug)]
struct Pending {
    waiting: BTreeSet<WorkerId>,
    listening: BTreeSet<WorkerId>,
    refused: Option<ListenError>,
}

/// The consequences of a worker's answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Workers that are to stop listening.
    pub(crate) withdraw: Vec<WorkerId>,
    /// The outcome, once all workers have answered.
    pub(crate) outcome: Option<Result<(), ListenError>>,
}

impl Listener {
    pub(crate) fn new(
        app: AppId,
        addr: SocketAddr,
        params: ListenParams,
        workers: Vec<WorkerId>,
    ) -> Listener {
        let waiting = workers.iter().copied().collect();
        let pending = Some(Pending { waiting, listening: BTreeSet::new(), refused: None });
        let (places, peers) = (Places::default(), BTreeMap::new());
        Listener { app, addr, params, places, peers, workers, pending }
    }

    /// Returns the addresses at which it listens.
    pub(crate) fn at(&self) -> ListenAt {
        ListenAt::new(self.addr.ip(), self.params.v6_only)
    }

    /// Returns true if the listener takes connections: every worker listens.
    pub(crate) fn is_listening(&self) -> bool {
        self.pending.is_none()
    }

    /// Takes a worker's answer. When a worker refuses, the others are to stop, each as soon as it
    /// has answered.
    pub(crate) fn answered(
        &mut self,
        worker: WorkerId,
        result: Result<(), ListenError>,
    ) -> Answered {
        let mut out = Answered::default();
        let Some(p) = &mut self.pending else { return out };
        if !p.waiting.remove(&worker) {
            return out;
        }
        match result {
            Ok(()) => drop(p.listening.insert(worker)),
            Err(e) => drop(p.refused.get_or_insert(e)),
        }
        if p.refused.is_some() {
            out.withdraw.extend(core::mem::take(&mut p.listening));
        }
        out.outcome = self.outcome();
        out
    }

    /// Stops waiting for the answer of a worker that has ended, and that is not the listener's
    /// last.
    pub(crate) fn worker_lost(&mut self, worker: WorkerId) -> Option<Result<(), ListenError>> {
        let p = self.pending.as_mut()?;
        p.listening.remove(&worker);
        p.waiting.remove(&worker);
        self.outcome()
    }

    /// Returns the workers that were ordered to listen, including those that have ended.
    pub(crate) fn workers(&self) -> &[WorkerId] {
        &self.workers
    }

    /// Returns the outcome, if all workers have answered.
    fn outcome(&mut self) -> Option<Result<(), ListenError>> {
        let p = self.pending.take_if(|p| p.waiting.is_empty())?;
        Some(p.refused.map_or(Ok(()), Err))
    }

    /// Returns the workers to notify when the application takes the listener back: those that
    /// listen, and those that may have begun to listen when the order reaches them.
    pub(crate) fn listening_at(&self) -> Vec<WorkerId> {
        match &self.pending {
            None => self.workers.clone(),
            Some(p) => p.waiting.union(&p.listening).copied().collect(),
        }
    }

    /// Returns `Ok` if the peer's limits let another connection of the peer in.
    pub(crate) fn admit(&self, peer: IpAddr) -> Result<(), Refusal> {
        let p = self.peers.get(&peer).copied().unwrap_or_default();
        if self.params.max_conns_per_peer.is_some_and(|most| p.startups + p.established >= most) {
            return Err(Refusal::PeerConns);
        }
        if self.params.max_startups_per_peer.is_some_and(|most| p.startups >= most) {
            return Err(Refusal::PeerStartups);
        }
        Ok(())
    }

    /// Moves a connection of `peer` from one place to another.
    pub(crate) fn change(&mut self, id: CmId, peer: IpAddr, from: Place, to: Place) {
        self.places.change(id, from, to);
        let p = self.peers.entry(peer).or_default();
        match from {
            Place::None => {}
            Place::Established => p.established -= 1,
            Place::Waiting | Place::Asked | Place::Leaving => p.startups -= 1,
        }
        match to {
            Place::None => {}
            Place::Established => p.established += 1,
            Place::Waiting | Place::Asked | Place::Leaving => p.startups += 1,
        }
        if p.startups + p.established == 0 {
            self.peers.remove(&peer);
        }
    }
}

/// The listeners of a manager, by name and by address.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    by_id: BTreeMap<ListenerId, Listener>,
    /// Sorted by port, so that the listeners of a port stand together.
    by_place: BTreeMap<(u16, ListenAt), ListenerId>,
}

impl Listeners {
    pub(crate) fn ids(&self) -> Vec<ListenerId> {
        self.by_id.keys().copied().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ListenerId, &Listener)> {
        self.by_id.iter().map(|(id, l)| (*id, l))
    }

    pub(crate) fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.by_id.get_mut(&id)
    }

    /// Returns `Ok` if a listener may be added, by the rules of the workers' stacks, which are the
    /// same for all workers. Because the manager checks here, the answer comes at once, and not
    /// from N workers of which some have begun to listen by then.
    pub(crate) fn check(&self, at: ListenAt, port: u16) -> Result<(), ListenError> {
        // The table holds no two listeners that exclude each other, so a port has few wildcards.
        let taken = match at.one() {
            Some(_) => self.by_place.contains_key(&(port, at)),
            None => WILDCARDS
                .iter()
                .any(|&other| at.excludes(other) && self.by_place.contains_key(&(port, other))),
        };
        ListenError::check(port, self.by_id.len(), taken)
    }

    pub(crate) fn insert(&mut self, id: ListenerId, listener: Listener) {
        self.by_place.insert((listener.addr.port(), listener.at()), id);
        self.by_id.insert(id, listener);
    }

    pub(crate) fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.by_id.remove(&id)?;
        self.by_place.remove(&(listener.addr.port(), listener.at()));
        Some(listener)
    }

    /// Returns the listener for a connection that came to `local`: a listener at that very address
    /// takes precedence over a listener at all addresses of its family, and that over a listener at
    /// all our addresses. Each worker has already matched the
    /// SYN in the same way, but among its own names, and it may have accepted before all workers
    /// listen. This function decides which application gets the connection.
    pub(crate) fn at(&self, local: SocketAddr) -> Option<ListenerId> {
        ListenAt::places(local.ip()).into_iter().find_map(|place| {
            let id = *self.by_place.get(&(local.port(), place))?;
            self.by_id.get(&id)?.is_listening().then_some(id)
        })
    }
}

const WILDCARDS: [ListenAt; 3] = [ListenAt::Ipv4, ListenAt::Ipv6, ListenAt::All];

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(workers: usize) -> Listener {
        let addr = "10.0.0.1:7174".parse().unwrap();
        let workers: Vec<_> = (0..workers).map(WorkerId).collect();
        Listener::new(AppId(1), addr, ListenParams::default(), workers)
    }

    #[test]
    fn test_id_set_stays_sorted_and_unique_under_inserts_and_removals() {
        // The numbers repeat, both before and after the test removes them.
        let names = |by: u64| (0..500).map(move |n: u64| CmId((n * n + by * n) % 67));
        let (mut ids, mut model) = (Ids::default(), BTreeSet::new());
        for (n, (comes, goes)) in names(3).zip(names(11)).enumerate() {
            ids.insert(comes);
            model.insert(comes);
            if n % 4 > 0 {
                ids.remove(goes);
                model.remove(&goes);
            }
            assert!(ids.0.iter().eq(&model), "{n}");
            assert_eq!((ids.first(), ids.len()), (model.first().copied(), model.len()));
        }
        while let Some(id) = ids.first() {
            ids.remove(id);
            assert_eq!(Some(id), model.pop_first());
        }
        assert!(model.is_empty());
    }

    #[test]
    fn test_listener_is_up_only_once_every_worker_has_answered() {
        let mut l = listener(3);
        assert_eq!(l.answered(WorkerId(2), Ok(())), Answered::default());
        assert_eq!(l.answered(WorkerId(2), Ok(())), Answered::default(), "once each");
        assert_eq!(l.answered(WorkerId(7), Ok(())), Answered::default(), "not one of them");
        assert_eq!(l.answered(WorkerId(0), Ok(())), Answered::default());
        assert!(!l.is_listening());
        assert_eq!(l.listening_at(), [WorkerId(0), WorkerId(1), WorkerId(2)]);
        let last = l.answered(WorkerId(1), Ok(()));
        assert_eq!(last, Answered { withdraw: vec![], outcome: Some(Ok(())) });
        assert!(l.is_listening());
    }

    /// Every order of three answers, one of which is a refusal.
    #[test]
    fn test_listener_is_withdrawn_from_other_workers_when_any_refuses() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut l = listener(3);
            let mut withdrawn = Vec::new();
            for (n, w) in order.into_iter().enumerate() {
                let result = if w == 1 { Err(ListenError::NotOurs) } else { Ok(()) };
                let a = l.answered(WorkerId(w), result);
                withdrawn.extend(a.withdraw);
                assert_eq!(a.outcome, (n == 2).then_some(Err(ListenError::NotOurs)), "{order:?}");
            }
            withdrawn.sort();
            assert_eq!(withdrawn, [WorkerId(0), WorkerId(2)], "{order:?}");
        }
    }

    #[test]
    fn test_connection_goes_to_the_most_specific_listener_of_its_family() {
        let mut all = Listeners::default();
        let mut add = |n, addr: &str, v6_only| {
            let addr: SocketAddr = addr.parse().unwrap();
            let params = ListenParams { v6_only, ..ListenParams::default() };
            let mut l = Listener::new(AppId(1), addr, params, vec![WorkerId(0)]);
            all.check(l.at(), addr.port())?;
            l.answered(WorkerId(0), Ok(()));
            all.insert(ListenerId(n), l);
            Ok(())
        };
        add(1, "0.0.0.0:80", false).unwrap();
        assert_eq!(add(2, "[::]:80", false), Err(ListenError::InUse));
        add(3, "[::]:80", true).unwrap();
        add(4, "[fd00::1]:80", false).unwrap();
        add(5, "[::]:81", false).unwrap();
        assert_eq!(add(6, "0.0.0.0:81", false), Err(ListenError::InUse));
        add(7, "10.0.0.1:81", false).unwrap();
        for (to, id) in [
            ("10.0.0.1:80", 1),
            ("[fd00::2]:80", 3),
            ("[fd00::1]:80", 4),
            ("10.0.0.2:81", 5),
            ("[fd00::1]:81", 5),
            ("10.0.0.1:81", 7),
        ] {
            assert_eq!(all.at(to.parse().unwrap()), Some(ListenerId(id)), "{to}");
        }
        all.remove(ListenerId(3));
        assert_eq!(all.at("[fd00::2]:80".parse().unwrap()), None, "0.0.0.0 takes no IPv6");
    }

    #[test]
    fn test_places_evict_leaving_then_waiting_and_never_asked_connections() {
        let mut p = Places::default();
        for (n, place) in [(1, Place::Asked), (2, Place::Waiting), (3, Place::Waiting)] {
            p.change(CmId(n), Place::None, place);
        }
        assert_eq!((p.len(), p.to_evict()), (3, Some(CmId(2))));
        p.change(CmId(3), Place::Waiting, Place::Leaving);
        assert_eq!(p.to_evict(), Some(CmId(3)));
        p.change(CmId(3), Place::Leaving, Place::None);
        p.change(CmId(2), Place::Waiting, Place::Asked);
        assert_eq!((p.len(), p.to_evict()), (2, None));
    }
}
