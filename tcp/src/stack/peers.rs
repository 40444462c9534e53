//! How many connections each peer has at each listener, and how many it may have.
//!
//! A peer here is an address. Whoever can forge addresses is not bounded by this, but does not get
//! past the handshake either: half-open connections make room for newer ones.

use std::collections::HashMap;

use core::net::IpAddr;

use super::config::PeerLimit;
use super::neighbor::Keyed;

/// Connections of one peer at one listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    half_open: usize,
    /// Half-open ones included, those the owner released not.
    all: usize,
}

/// What a peer has as many of as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    /// Half-open connections.
    HalfOpen,
    /// Connections.
    Conns,
}

/// The counts, of those that have any.
pub(super) struct Peers {
    counts: HashMap<(u32, IpAddr), Counts, Keyed>,
    max_conns: usize,
    half_open: PeerLimit,
    all: PeerLimit,
}

impl Peers {
    /// For `max_conns` connections; the limits are those on half-open and on all connections.
    pub(super) fn new(
        max_conns: usize,
        half_open: PeerLimit,
        all: PeerLimit,
        key: [u8; 16],
    ) -> Peers {
        let counts = HashMap::with_capacity_and_hasher(max_conns.min(1 << 20), Keyed(key));
        Peers { counts, max_conns, half_open, all }
    }

    /// Whether `peer` may open one more connection at `listener`, which may have `backlog`
    /// half-open ones.
    pub(super) fn check(&self, listener: u32, backlog: usize, peer: IpAddr) -> Result<(), Excess> {
        let has = self.counts.get(&(listener, peer)).copied().unwrap_or_default();
        let half_open = match self.half_open {
            PeerLimit::Unlimited => usize::MAX,
            PeerLimit::Share => backlog.div_ceil(2),
            PeerLimit::AtMost(n) => n,
        };
        let all = match self.all {
            PeerLimit::Unlimited => usize::MAX,
            PeerLimit::Share => (self.max_conns - self.max_conns.div_ceil(64)).max(1),
            PeerLimit::AtMost(n) => n,
        };
        if has.all >= all {
            Err(Excess::Conns)
        } else if has.half_open >= half_open {
            Err(Excess::HalfOpen)
        } else {
            Ok(())
        }
    }

    /// `peer` has one more half-open connection at `listener`.
    pub(super) fn opened(&mut self, listener: u32, peer: IpAddr) {
        let c = self.counts.entry((listener, peer)).or_default();
        c.half_open += 1;
        c.all += 1;
    }

    /// A half-open connection was established.
    pub(super) fn established(&mut self, listener: u32, peer: IpAddr) {
        if let Some(c) = self.counts.get_mut(&(listener, peer)) {
            c.half_open = c.half_open.saturating_sub(1);
        }
    }

    /// A connection is no more, or of no interest any more.
    pub(super) fn gone(&mut self, listener: u32, peer: IpAddr, half_open: bool) {
        let Some(c) = self.counts.get_mut(&(listener, peer)) else { return };
        c.half_open = c.half_open.saturating_sub(usize::from(half_open));
        c.all = c.all.saturating_sub(1);
        if c.all == 0 {
            self.counts.remove(&(listener, peer));
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }
}
