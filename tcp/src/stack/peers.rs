//! The number of connections that each peer has, and the number that it may have.
//!
//! A peer here is the [site](super::Addressing::site) of an address. The stack counts half-open
//! connections for each listener, because they fill the listener's backlog, and all connections
//! together, because they fill the stack. The limits do not bound forged addresses, but a forged
//! address does not get past the handshake, and half-open connections take no room of others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use core::hash::Hash;

use super::config::PeerLimit;
use super::neighbor::{Keyed, LinkAddr};

/// The counts of the peers that have any connections.
pub(super) struct Peers {
    /// Half-open connections of a peer at a listener.
    half_opens: HashMap<(u32, LinkAddr), usize, Keyed>,
    /// All connections of a peer at all listeners. The count includes half-open
    /// connections, and excludes connections that the owner released.
    conns: HashMap<LinkAddr, usize, Keyed>,
    /// The connections of all peers together.
    total: usize,
    half_open: PeerLimit,
    all: PeerLimit,
}

impl Peers {
    /// Returns the counts for `max_conns` connections and `max_half_open` half-open connections,
    /// with the limits on half-open and on all connections.
    pub(super) fn new(
        max_conns: usize,
        max_half_open: usize,
        (half_open, all): (PeerLimit, PeerLimit),
        key: [u8; 16],
    ) -> Peers {
        let room = max_conns.min(1 << 20) + max_half_open;
        Peers {
            half_opens: HashMap::with_capacity_and_hasher(max_half_open, Keyed(key)),
            conns: HashMap::with_capacity_and_hasher(room, Keyed(key)),
            total: 0,
            half_open,
            all,
        }
    }

    /// Returns true if `peer` may have one more half-open connection at `listener`, which may have
    /// `backlog` of them.
    pub(super) fn may_open(&self, listener: u32, backlog: usize, peer: LinkAddr) -> bool {
        let half_open = match self.half_open {
            PeerLimit::Unlimited => return true,
            PeerLimit::Share => backlog.div_ceil(2),
            PeerLimit::AtMost(n) => n,
        };
        self.half_opens.get(&(listener, peer)).is_none_or(|&has| has < half_open)
    }

    /// Returns true if `peer` may have one more connection, while `free` more connections fit.
    pub(super) fn has_room(&self, peer: LinkAddr, free: usize) -> bool {
        let all = match self.all {
            PeerLimit::Unlimited => return true,
            // Alone, a peer gets half of all connections; two greedy peers get a third each.
            // However many peers there are, something is left for the next.
            PeerLimit::Share => free.max(1),
            PeerLimit::AtMost(n) => n,
        };
        // In a flood of SYNs, most peers have nothing, and all together have less than one may.
        self.total < all || self.conns.get(&peer).is_none_or(|&has| has < all)
    }

    /// Counts one more half-open connection of `peer` at `listener`.
    pub(super) fn opened(&mut self, listener: u32, peer: LinkAddr) {
        *self.half_opens.entry((listener, peer)).or_default() += 1;
        *self.conns.entry(peer).or_default() += 1;
        self.total += 1;
    }

    /// Counts a half-open connection as established.
    pub(super) fn established(&mut self, listener: u32, peer: LinkAddr) {
        take_one(&mut self.half_opens, (listener, peer));
    }

    /// Stops counting a connection that has ended, or that the owner released.
    pub(super) fn gone(&mut self, listener: u32, peer: LinkAddr, half_open: bool) {
        if half_open {
            self.established(listener, peer);
        }
        self.total -= usize::from(take_one(&mut self.conns, peer));
    }

    /// Forgets all counts, so that the caller can count every connection anew.
    pub(super) fn clear(&mut self) {
        self.half_opens.clear();
        self.conns.clear();
        self.total = 0;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.conns.len()
    }
}

/// Lowers a count by one, and removes an entry that reaches 0. Hashes the key once. Returns false if
/// there is no entry.
fn take_one<K: Eq + Hash>(counts: &mut HashMap<K, usize, Keyed>, key: K) -> bool {
    let Entry::Occupied(mut n) = counts.entry(key) else { return false };
    *n.get_mut() -= 1;
    if *n.get() == 0 {
        n.remove();
    }
    true
}
