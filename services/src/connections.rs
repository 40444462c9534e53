//! The connections of a service.
//!
//! Each connection has a *place*: a number that its work requests carry in the upper half of their
//! mark, so that a service finds the connection of a completion without a search. A place goes to
//! another connection only after this connection has ended and the service has taken its
//! completions.

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

/// Connections with a `T` each. Dropping this value disconnects the remaining connections and ends
/// the listener.
pub(crate) struct Connections<T> {
    device: Device,
    listener: Option<ListenerId>,
    /// The outcome of the listen, after the control plane has reported it.
    listens: Option<Result<(), ListenFailure>>,
    places: Vec<Option<Connection<T>>>,
    most: usize,
    /// The number of connections from each address.
    peers: HashMap<IpAddr, usize>,
    limits: Limits,
    /// Connections whose peers have not sent anything yet, each with the deadline for the first
    /// message.
    silent: VecDeque<(Instant, CmId)>,
    ending: bool,
    throttle: Throttle,
}

/// A connection, and the service's state for it.
pub(crate) struct Connection<T> {
    id: CmId,
    qp: Qp,
    /// True until the first message arrives from the peer.
    silent: bool,
    /// True once the connection is ending and its reason needs no further log line.
    failed: bool,
    /// The address of the peer.
    pub(crate) remote: SocketAddr,
    /// The service's state for this connection.
    pub(crate) state: T,
}

/// Why there is no place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    /// The service has its highest number of connections.
    #[error("the service has too many connections")]
    Service,
    /// The peer has its highest number of connections.
    #[error("too many connections of this address ({0} is the most: limits.peer-share)")]
    Peer(usize),
}

/// Returns the mark of a work request.
pub fn wr_id(place: usize, low: u32) -> u64 {
    (place as u64) << 32 | u64::from(low)
}

/// Returns place and lower half of a mark.
pub fn place_and_low(wr_id: u64) -> (usize, u32) {
    let half = |h: u64| u32::try_from(h & 0xffff_ffff).unwrap_or(0);
    (half(wr_id >> 32) as usize, half(wr_id))
}

/// The reason for ending a connection whose peer stays silent.
#[derive(Debug, thiserror::Error)]
#[error("nothing came within {} s", .0.as_secs())]
struct Silent(Duration);

/// The reason for ending a connection whose work request failed while the connection was up.
#[derive(Debug, thiserror::Error)]
#[error("a request could not be carried out: {0}")]
struct NotCarriedOut(CqeStatus);

impl<T> Connections<T> {
    /// Makes an empty set for at most `most` connections of `listener`.
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

    /// Records the outcome of the listen.
    pub(crate) fn listens(&mut self, outcome: Result<(), ListenFailure>) {
        self.listens = Some(outcome);
    }

    /// Returns true if the listener listens, and false while the outcome is not known.
    pub(crate) fn is_listening(&self) -> Result<bool, ListenFailure> {
        self.listens.transpose().map(|l| l.is_some())
    }

    /// Ends the listener; connections go on.
    pub(crate) fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            // The control plane may be gone already, so an error is ignored.
            let _ = self.device.unlisten(listener);
        }
    }

    /// Ends the listener, and ends all connections in order. The caller keeps the connections'
    /// registrations until they have ended: data that a peer has in flight still has to arrive.
    pub(crate) fn end(&mut self) {
        self.stop_listening();
        self.ending = true;
        for conn in self.places.iter_mut().flatten() {
            // The caller knows the reason, so no log line reports these ends.
            if !core::mem::replace(&mut conn.failed, true) {
                let _ = self.device.disconnect(conn.id);
            }
        }
    }

    /// Returns true if all connections are ending, and no new ones will come.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending
    }

    /// Returns the number of connections.
    pub(crate) fn len(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// Returns a free place, for [`insert`](Self::insert) of a connection from `peer`.
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

    /// Adds a connection that has been accepted.
    pub(crate) fn insert(&mut self, place: usize, id: CmId, remote: SocketAddr, qp: Qp, state: T) {
        *self.peers.entry(remote.ip()).or_default() += 1;
        self.places[place] =
            Some(Connection { id, qp, silent: false, failed: false, remote, state });
    }

    /// Starts the deadline for the first message: the connection `id` is up.
    pub(crate) fn expect_word(&mut self, id: CmId) {
        let Some(patience) = self.limits.first_message else { return };
        let Some((place, _)) = self.find(id) else { return };
        if let Some(conn) = self.get_mut(place) {
            conn.silent = true;
            self.silent.push_back((Instant::now() + patience, id));
        }
    }

    /// Ends connections whose peers have not sent anything in time. This function reads the clock
    /// only while such connections exist.
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

    /// Logs that the service rejected a request of `peer` because of `error`.
    pub(crate) fn rejected(&mut self, peer: SocketAddr, error: &dyn fmt::Display) {
        if let Some(more) = self.throttle.pass() {
            warn!(%peer, %error, more, "rejected");
        }
    }

    /// Returns the connection at `place`.
    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut Connection<T>> {
        self.places.get_mut(place)?.as_mut()
    }

    /// Returns the connection of a completion, and its place. Returns `None` for a flushed request,
    /// since the end of the connection follows. A request that failed for another reason ends its
    /// connection.
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

    /// Returns the connection `id` and its place.
    pub(crate) fn find(&self, id: CmId) -> Option<(usize, &Connection<T>)> {
        let mut conns = self.places.iter().enumerate().filter_map(|(n, c)| Some((n, c.as_ref()?)));
        conns.find(|(_, c)| c.id == id)
    }

    /// Logs `error`, and ends the connection at `place` because of it.
    pub(crate) fn fail(&mut self, place: usize, error: &dyn fmt::Display) {
        let Some(Some(conn)) = self.places.get_mut(place) else { return };
        if core::mem::replace(&mut conn.failed, true) {
            return;
        }
        if let Some(more) = self.throttle.pass() {
            warn!(peer = %conn.remote, %error, more, "disconnecting");
        }
        // The connection may be gone already, so an error is ignored.
        let _ = self.device.disconnect(conn.id);
    }

    /// Ends the connection at `place` after its exchange is complete.
    pub(crate) fn close(&mut self, place: usize) {
        if let Some(conn) = self.get_mut(place) {
            let id = conn.id;
            // The connection may be gone already, so an error is ignored.
            let _ = self.device.disconnect(id);
        }
    }

    /// Removes the connection `id`, which was accepted and was not established, and returns it.
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

    /// Removes the connection `id`, which has ended, and returns it with its place. Logs the end
    /// once: as a warning if the end was neither orderly nor already reported.
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

    /// Removes the connection `id` from this set, and returns it.
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
            // The control plane may be gone already, so an error is ignored.
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
