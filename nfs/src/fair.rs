//! A queue that serves peers in turn, however many entries and connections each peer has.
//!
//! ```text
//!   address ─┬─ connection ── entries, in order
//!            └─ connection ── …            one entry of each address, then of the next address;
//!   address ─── connection ── …            the connections of an address take turns within it
//! ```

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// The queue that the module describes.
#[derive(Debug)]
pub(crate) struct Fair<T> {
    /// Addresses that have entries, the next one first. There are at most as many addresses as
    /// connections.
    addresses: VecDeque<(IpAddr, Connections<T>)>,
    len: usize,
}

#[derive(Debug)]
struct Connections<T>(VecDeque<(SocketAddr, VecDeque<T>)>);

impl<T> Default for Fair<T> {
    fn default() -> Fair<T> {
        Fair { addresses: VecDeque::new(), len: 0 }
    }
}

impl<T> Fair<T> {
    /// Returns the number of entries of all addresses together.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Adds an entry of the connection from `peer`.
    pub(crate) fn push(&mut self, peer: SocketAddr, entry: T) {
        self.len += 1;
        let ip = peer.ip();
        let of_ip = self.addresses.iter_mut().find(|(of, _)| *of == ip);
        let connections = match of_ip {
            Some((_, connections)) => connections,
            None => {
                self.addresses.push_back((ip, Connections(VecDeque::new())));
                let Some((_, new)) = self.addresses.back_mut() else { return };
                new
            }
        };
        match connections.0.iter_mut().find(|(of, _)| *of == peer) {
            Some((_, entries)) => entries.push_back(entry),
            None => connections.0.push_back((peer, VecDeque::from([entry]))),
        }
    }

    /// Takes the next entry of the first address in turn for which `may` returns true.
    pub(crate) fn take(&mut self, may: impl Fn(IpAddr) -> bool) -> Option<(IpAddr, T)> {
        let at = self.addresses.iter().position(|(ip, _)| may(*ip))?;
        let (ip, mut connections) = self.addresses.remove(at)?;
        let (peer, mut entries) = connections.0.pop_front()?;
        let entry = entries.pop_front();
        self.len -= 1;
        if !entries.is_empty() {
            connections.0.push_back((peer, entries));
        }
        if !connections.0.is_empty() {
            self.addresses.push_back((ip, connections));
        }
        Some((ip, entry?))
    }
}

/// Counts the threads that serve each address, so that no address gets more than its share.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    all: usize,
    of: HashMap<IpAddr, usize>,
}

impl Busy {
    /// Returns the number of busy threads.
    pub(crate) const fn all(&self) -> usize {
        self.all
    }

    /// Returns the number of threads that are busy for this address.
    pub(crate) fn of(&self, ip: IpAddr) -> usize {
        self.of.get(&ip).copied().unwrap_or(0)
    }

    pub(crate) fn begin(&mut self, ip: IpAddr) {
        self.all += 1;
        *self.of.entry(ip).or_default() += 1;
    }

    pub(crate) fn end(&mut self, ip: IpAddr) {
        self.all = self.all.saturating_sub(1);
        if let Some(count) = self.of.get_mut(&ip) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&ip);
            }
        }
    }
}

/// Returns the number of threads out of `threads` that one address may occupy: all but one, so that
/// another address finds a thread.
pub(crate) const fn share(threads: usize) -> usize {
    if threads > 1 { threads - 1 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(host: u8, port: u16) -> SocketAddr {
        (IpAddr::from([10, 0, 0, host]), port).into()
    }

    fn all(fair: &mut Fair<u32>) -> Vec<u32> {
        std::iter::from_fn(|| fair.take(|_| true).map(|(_, entry)| entry)).collect()
    }

    #[test]
    fn test_addresses_take_turns_and_connections_of_one_take_turns_within_it() {
        let mut fair = Fair::default();
        (0..4).for_each(|n| fair.push(peer(1, 1), n));
        (10..12).for_each(|n| fair.push(peer(1, 2), n));
        (20..22).for_each(|n| fair.push(peer(2, 1), n));
        assert_eq!(fair.len(), 8);
        assert_eq!(all(&mut fair), [0, 20, 10, 21, 1, 11, 2, 3]);
        assert!(
            fair.addresses.is_empty() && fair.len() == 0,
            "nothing is kept of peers without entries"
        );
    }

    #[test]
    fn test_address_without_permission_is_skipped_and_keeps_its_turn() {
        let mut fair = Fair::default();
        fair.push(peer(1, 1), 1);
        fair.push(peer(2, 1), 2);
        let second = fair.take(|ip| ip != peer(1, 1).ip());
        assert_eq!(second, Some((peer(2, 1).ip(), 2)));
        assert_eq!(fair.take(|ip| ip != peer(1, 1).ip()), None);
        assert_eq!(all(&mut fair), [1]);
    }

    #[test]
    fn test_busy_threads_are_counted_for_each_address() {
        let (mut busy, a, b) = (Busy::default(), peer(1, 1).ip(), peer(2, 1).ip());
        busy.begin(a);
        busy.begin(a);
        busy.begin(b);
        assert_eq!((busy.all(), busy.of(a), busy.of(b)), (3, 2, 1));
        busy.end(a);
        busy.end(b);
        assert_eq!((busy.all(), busy.of(a), busy.of(b)), (1, 1, 0));
        assert!(!busy.of.contains_key(&b), "nothing is kept of an address without threads");
        assert_eq!([1, 2, 8].map(share), [1, 1, 7]);
    }
}
