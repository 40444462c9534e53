//! The connections of a service.
//!
//! Each has a *place*: a number that its work requests carry in the upper half of their mark, so
//! that a completion finds its connection without a search. A place goes to another connection only
//! when this one has ended and what it completed has been taken.

use core::fmt;
use core::net::SocketAddr;

use heddle_verbs::{CmId, ConnectFailure, Cqe, Device, DisconnectReason, Qp};
use tracing::warn;

/// Connections with a `T` each. Those that are left are disconnected when it is dropped.
pub(crate) struct Connections<T> {
    device: Device,
    places: Vec<Option<Connection<T>>>,
    most: usize,
}

/// A connection, and what the service keeps for it.
pub(crate) struct Connection<T> {
    id: CmId,
    qp: Qp,
    /// The peer.
    pub(crate) remote: SocketAddr,
    /// The service's.
    pub(crate) state: T,
}

/// There are as many connections as a service takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many connections")]
pub(crate) struct Full;

/// The mark of a work request.
pub(crate) fn wr_id(place: usize, low: u32) -> u64 {
    (place as u64) << 32 | u64::from(low)
}

/// Place and lower half of a mark.
pub(crate) fn place_and_low(wr_id: u64) -> (usize, u32) {
    let half = |h: u64| u32::try_from(h & 0xffff_ffff).unwrap_or(0);
    (half(wr_id >> 32) as usize, half(wr_id))
}

impl<T> Connections<T> {
    /// None so far, and never more than `most`.
    pub(crate) fn new(device: &Device, most: usize) -> Connections<T> {
        Connections { device: device.clone(), places: Vec::new(), most }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// A place that is free, for [`insert`](Self::insert).
    pub(crate) fn free_place(&mut self) -> Result<usize, Full> {
        match self.places.iter().position(Option::is_none) {
            Some(place) => Ok(place),
            None if self.places.len() < self.most => {
                self.places.push(None);
                Ok(self.places.len() - 1)
            }
            None => Err(Full),
        }
    }

    /// A connection that has been accepted.
    pub(crate) fn insert(&mut self, place: usize, id: CmId, remote: SocketAddr, qp: Qp, state: T) {
        self.places[place] = Some(Connection { id, qp, remote, state });
    }

    /// The connection at `place`.
    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut Connection<T>> {
        self.places.get_mut(place)?.as_mut()
    }

    /// The connection a completion is of, and its place. What was flushed is nobody's: the end of
    /// the connection follows it.
    #[inline]
    pub(crate) fn of(&mut self, cqe: &Cqe) -> Option<(usize, &mut Connection<T>)> {
        let (place, _) = place_and_low(cqe.wr_id);
        let conn = self.get_mut(place)?;
        (cqe.status.is_success() && conn.qp.qpn() == cqe.qpn).then_some((place, conn))
    }

    /// The connection `id` and its place.
    pub(crate) fn find(&self, id: CmId) -> Option<(usize, &Connection<T>)> {
        let mut conns = self.places.iter().enumerate().filter_map(|(n, c)| Some((n, c.as_ref()?)));
        conns.find(|(_, c)| c.id == id)
    }

    /// Ends the connection at `place` because of `error`.
    pub(crate) fn fail(&self, place: usize, error: &dyn fmt::Display) {
        if let Some(Some(conn)) = self.places.get(place) {
            warn!(peer = %conn.remote, %error, "disconnecting");
            // It may be gone already.
            let _ = self.device.disconnect(conn.id);
        }
    }

    /// The connection `id` was accepted and did not come about.
    pub(crate) fn not_established(&mut self, id: CmId, error: &ConnectFailure) {
        if let Some((_, conn)) = self.take(id) {
            warn!(peer = %conn.remote, %error, "no connection");
        }
    }

    /// The connection `id` has ended; what it was, and at what place.
    pub(crate) fn ended(
        &mut self,
        id: CmId,
        reason: DisconnectReason,
    ) -> Option<(usize, Connection<T>)> {
        let (place, conn) = self.take(id)?;
        if reason != DisconnectReason::Orderly {
            warn!(peer = %conn.remote, %reason, "the connection has ended");
        }
        Some((place, conn))
    }

    fn take(&mut self, id: CmId) -> Option<(usize, Connection<T>)> {
        let (place, _) = self.find(id)?;
        Some((place, self.places[place].take()?))
    }
}

impl<T> Drop for Connections<T> {
    fn drop(&mut self) {
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
