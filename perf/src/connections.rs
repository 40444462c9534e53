//! The connections of a service.
//!
//! Each has a *place*: a number that its work requests carry in the upper half of their mark, so
//! that a completion finds its connection without a search. A place goes to another connection only
//! when this one has ended and what it completed has been taken.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use heddle_verbs::{
    CmId, ConnectFailure, Cqe, CqeStatus, Device, DisconnectReason, ListenFailure, ListenerId, Qp,
};
use tracing::{info, warn};

use crate::service::Limits;
use crate::throttle::Throttle;

/// Connections with a `T` each. Those that are left are disconnected when it is dropped, and nobody
/// listens for more.
pub(crate) struct Connections<T> {
    device: Device,
    listener: Option<ListenerId>,
    /// What became of it, once that is known.
    listens: Option<Result<(), ListenFailure>>,
    places: Vec<Option<Connection<T>>>,
    most: usize,
    /// How many of them each address has.
    peers: HashMap<IpAddr, usize>,
    limits: Limits,
    /// Connections that have not said anything yet, and until when they may not.
    silent: VecDeque<(Instant, CmId)>,
    ending: bool,
    throttle: Throttle,
}

/// A connection, and what the service keeps for it.
pub(crate) struct Connection<T> {
    id: CmId,
    qp: Qp,
    /// Nothing has come from the peer yet.
    silent: bool,
    /// It is ending, and why was said.
    failed: bool,
    /// The peer.
    pub(crate) remote: SocketAddr,
    /// The service's.
    pub(crate) state: T,
}

/// There is no place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    /// The service has as many as it takes.
    #[error("too many connections")]
    Service,
    /// So has the peer.
    #[error("too many connections of this address ({0} is the most)")]
    Peer(usize),
}

/// The mark of a work request.
pub(crate) fn wr_id(place: usize, low: u32) -> u64 {
    (place as u64) << 32 | u64::from(low)
}

/// Place and lower half of a mark.
pub(crate) fn place_and_low(wr_id: u64) -> (usize, u32) {
    let half = |h: u64| u32::try_from(h & 0xffff_ffff).unwrap_or(0);
    (half(wr_id >> 32) as usize, half(wr_id))
}

/// Why a connection is ended that says nothing.
#[derive(Debug, thiserror::Error)]
#[error("nothing came within {} s", .0.as_secs())]
struct Silent(Duration);

/// Why a connection is ended whose work request failed by itself.
#[derive(Debug, thiserror::Error)]
#[error("a request could not be carried out: {0:?}")]
struct NotCarriedOut(CqeStatus);

impl<T> Connections<T> {
    /// None so far, and never more than `most`, those of `listener`.
    pub(crate) fn new(
        device: &Device,
        listener: ListenerId,
        most: usize,
        limits: Limits,
    ) -> Connections<T> {
        Connections {
            device: device.clone(),
            listener: Some(listener),
            listens: None,
            places: Vec::new(),
            most,
            peers: HashMap::new(),
            limits,
            silent: VecDeque::new(),
            ending: false,
            throttle: Throttle::default(),
        }
    }

    /// The listener is there, or is not.
    pub(crate) fn listens(&mut self, outcome: Result<(), ListenFailure>) {
        self.listens = Some(outcome);
    }

    /// Whether the listener is there: false while that is not known.
    pub(crate) fn is_listening(&self) -> Result<bool, ListenFailure> {
        self.listens.transpose().map(|l| l.is_some())
    }

    /// Listens no more; connections go on.
    pub(crate) fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            // The control plane may be gone already.
            let _ = self.device.unlisten(listener);
        }
    }

    /// Listens no more and ends all connections in order. What was registered for them is needed until
    /// they have ended: what a peer has on its way is to arrive.
    pub(crate) fn end(&mut self) {
        self.stop_listening();
        self.ending = true;
        for conn in self.places.iter_mut().flatten() {
            // Why is known to whoever ends it.
            if !core::mem::replace(&mut conn.failed, true) {
                let _ = self.device.disconnect(conn.id);
            }
        }
    }

    /// Whether all of them are being ended, and there will be no others.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// What the service keeps for each.
    pub(crate) fn states(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten().map(|c| &c.state)
    }

    /// A place that is free, for [`insert`](Self::insert) of a connection from `peer`.
    pub(crate) fn free_place(&mut self, peer: IpAddr) -> Result<usize, Full> {
        let most = self.limits.share_of_peer(self.most);
        if self.peers.get(&peer).is_some_and(|&n| n >= most) {
            return Err(Full::Peer(most));
        }
        match self.places.iter().position(Option::is_none) {
            Some(place) => Ok(place),
            None if self.places.len() < self.most => {
                self.places.push(None);
                Ok(self.places.len() - 1)
            }
            None => Err(Full::Service),
        }
    }

    /// A connection that has been accepted.
    pub(crate) fn insert(&mut self, place: usize, id: CmId, remote: SocketAddr, qp: Qp, state: T) {
        *self.peers.entry(remote.ip()).or_default() += 1;
        self.places[place] =
            Some(Connection { id, qp, silent: false, failed: false, remote, state });
    }

    /// The connection `id` is up, and has to say something before long.
    pub(crate) fn expect_word(&mut self, id: CmId) {
        let Some(patience) = self.limits.first_message else { return };
        let Some((place, _)) = self.find(id) else { return };
        if let Some(conn) = self.get_mut(place) {
            conn.silent = true;
            self.silent.push_back((Instant::now() + patience, id));
        }
    }

    /// Ends connections that have not said anything in time. Costs a look at the clock while there
    /// are any that have not yet.
    pub(crate) fn end_silent(&mut self) {
        while let Some(&(until, id)) = self.silent.front() {
            let waits = self.find(id).filter(|(_, c)| c.silent).map(|(place, _)| place);
            if waits.is_some() && Instant::now() < until {
                return;
            }
            self.silent.pop_front();
            if let Some(place) = waits {
                let patience = self.limits.first_message.unwrap_or_default();
                self.fail(place, &Silent(patience));
            }
        }
    }

    /// A request of `peer` was rejected because of `error`.
    pub(crate) fn rejected(&mut self, peer: SocketAddr, error: &dyn fmt::Display) {
        if let Some(more) = self.throttle.pass() {
            warn!(%peer, %error, more, "rejected");
        }
    }

    /// The connection at `place`.
    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut Connection<T>> {
        self.places.get_mut(place)?.as_mut()
    }

    /// The connection a completion is of, and its place. What was flushed is nobody's: the end of
    /// the connection follows it. What failed for another reason ends the connection.
    #[inline]
    pub(crate) fn of(&mut self, cqe: &Cqe) -> Option<(usize, &mut Connection<T>)> {
        let (place, _) = place_and_low(cqe.wr_id);
        if !cqe.status.is_success() {
            self.of_failed(place, cqe);
            return None;
        }
        let conn = self.get_mut(place).filter(|c| c.qp.qpn() == cqe.qpn)?;
        conn.silent = false;
        Some((place, conn))
    }

    #[cold]
    fn of_failed(&mut self, place: usize, cqe: &Cqe) {
        let ours = self.get_mut(place).is_some_and(|c| c.qp.qpn() == cqe.qpn);
        if ours && cqe.status != CqeStatus::Flushed {
            self.fail(place, &NotCarriedOut(cqe.status));
        }
    }

    /// The connection `id` and its place.
    pub(crate) fn find(&self, id: CmId) -> Option<(usize, &Connection<T>)> {
        let mut conns = self.places.iter().enumerate().filter_map(|(n, c)| Some((n, c.as_ref()?)));
        conns.find(|(_, c)| c.id == id)
    }

    /// Ends the connection at `place` because of `error`.
    pub(crate) fn fail(&mut self, place: usize, error: &dyn fmt::Display) {
        let Some(Some(conn)) = self.places.get_mut(place) else { return };
        if core::mem::replace(&mut conn.failed, true) {
            return;
        }
        if let Some(more) = self.throttle.pass() {
            warn!(peer = %conn.remote, %error, more, "disconnecting");
        }
        // It may be gone already.
        let _ = self.device.disconnect(conn.id);
    }

    /// Ends the connection at `place`: all that was to be said has been.
    pub(crate) fn close(&mut self, place: usize) {
        if let Some(conn) = self.get_mut(place) {
            let id = conn.id;
            // It may be gone already.
            let _ = self.device.disconnect(id);
        }
    }

    /// The connection `id` was accepted and did not come about, or was never asked about.
    pub(crate) fn not_established(
        &mut self,
        id: CmId,
        error: &ConnectFailure,
    ) -> Option<(usize, Connection<T>)> {
        let (place, conn) = self.take(id)?;
        if let Some(more) = self.throttle.pass() {
            warn!(peer = %conn.remote, %error, more, "no connection");
        }
        Some((place, conn))
    }

    /// The connection `id` has ended; what it was, and at what place. Says so once, and how loud
    /// depends on whether there is something to warn of that was not said already.
    pub(crate) fn ended(
        &mut self,
        id: CmId,
        reason: DisconnectReason,
    ) -> Option<(usize, Connection<T>)> {
        let (place, conn) = self.take(id)?;
        if reason == DisconnectReason::Orderly || conn.failed {
            info!(peer = %conn.remote, %reason, "closed");
        } else if let Some(more) = self.throttle.pass() {
            warn!(peer = %conn.remote, %reason, more, "the connection has ended");
        }
        Some((place, conn))
    }

    /// The connection `id`, no longer one of these.
    pub(crate) fn take(&mut self, id: CmId) -> Option<(usize, Connection<T>)> {
        let (place, _) = self.find(id)?;
        let conn = self.places[place].take()?;
        let peer = conn.remote.ip();
        if let Some(n) = self.peers.get_mut(&peer) {
            *n -= 1;
            if *n == 0 {
                self.peers.remove(&peer);
            }
        }
        Some((place, conn))
    }
}

impl<T> Drop for Connections<T> {
    fn drop(&mut self) {
        self.stop_listening();
        for conn in self.places.iter().flatten() {
            // The control plane may be gone already.
            let _ = self.device.disconnect(conn.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_mark_goes_round() {
        for (place, low) in [(0, 0), (1, u32::MAX), (u32::MAX as usize, 7)] {
            assert_eq!(place_and_low(wr_id(place, low)), (place, low));
        }
    }
}
