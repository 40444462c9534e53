//! How many connections each peer has, and how many it may have.
//!
//! A peer here is an address. Half-open connections are counted for each listener, whose backlog
//! they fill; all connections together, since what they fill is the stack. Forged addresses are not
//! bounded by this, but do not get past the handshake either: half-open connections make room for
//! newer ones.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use core::hash::Hash;
use core::net::Ipv4Addr;

use super::config::PeerLimit;
use super::neighbor::Keyed;

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
    /// Half-open ones of a peer at a listener, by [`at`].
    half_opens: HashMap<u64, usize, Keyed>,
    /// All of a peer at all listeners, by its address: half-open ones included, those the owner
    /// released not.
    conns: HashMap<u32, usize, Keyed>,
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
        let room = max_conns.min(1 << 20);
        Peers {
            half_opens: HashMap::with_capacity_and_hasher(room, Keyed(key)),
            conns: HashMap::with_capacity_and_hasher(room, Keyed(key)),
            half_open,
            all,
        }
    }

    /// Whether `peer` may open one more connection at `listener`, which may have `backlog`
    /// half-open ones, while `free` connections are free for the asking.
    pub(super) fn check(
        &self,
        listener: u32,
        backlog: usize,
        peer: Ipv4Addr,
        free: usize,
    ) -> Result<(), Excess> {
        let half_open = match self.half_open {
            PeerLimit::Unlimited => usize::MAX,
            PeerLimit::Share => backlog.div_ceil(2),
            PeerLimit::AtMost(n) => n,
        };
        let all = match self.all {
            PeerLimit::Unlimited => usize::MAX,
            // Alone, a peer gets half of them; two that want all get a third each. Something is left
            // for the next, however many there are.
            PeerLimit::Share => free.max(1),
            PeerLimit::AtMost(n) => n,
        };
        if self.conns.get(&peer.to_bits()).is_some_and(|&has| has >= all) {
            Err(Excess::Conns)
        } else if self.half_opens.get(&at(listener, peer)).is_some_and(|&has| has >= half_open) {
            Err(Excess::HalfOpen)
        } else {
            Ok(())
        }
    }

    /// `peer` has one more half-open connection at `listener`.
    pub(super) fn opened(&mut self, listener: u32, peer: Ipv4Addr) {
        *self.half_opens.entry(at(listener, peer)).or_default() += 1;
        *self.conns.entry(peer.to_bits()).or_default() += 1;
    }

    /// A half-open connection was established.
    pub(super) fn established(&mut self, listener: u32, peer: Ipv4Addr) {
        take_one(&mut self.half_opens, at(listener, peer));
    }

    /// A connection is no more, or of no interest any more.
    pub(super) fn gone(&mut self, listener: u32, peer: Ipv4Addr, half_open: bool) {
        if half_open {
            self.established(listener, peer);
        }
        take_one(&mut self.conns, peer.to_bits());
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.conns.len()
    }
}

/// A peer at a listener, as one word to hash.
fn at(listener: u32, peer: Ipv4Addr) -> u64 {
    u64::from(listener) << 32 | u64::from(peer.to_bits())
}

/// One less; none is no entry. The key is hashed once.
fn take_one<K: Eq + Hash>(counts: &mut HashMap<K, usize, Keyed>, key: K) {
    if let Entry::Occupied(mut n) = counts.entry(key) {
        *n.get_mut() -= 1;
        if *n.get() == 0 {
            n.remove();
        }
    }
}
