//! From addresses and ports to a connection.
//!
//! The table uses open addressing with linear probing and is at most half full. A slot is eight
//! bytes (part of the hash, and the connection's index), so a probe is nearly always one cache
//! line. The key itself lies with the connection, which the caller needs anyway. Deletion shifts
//! later entries back, so the table has no tombstones and never degrades. The hash is keyed
//! (SipHash-1-3): a peer cannot choose ports that collide.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::Vid;
use heddle_base::Fetch;
use siphasher::sip::SipHasher13;

/// The addresses and ports of a connection, ours first, and its VLAN: two VLANs may have hosts of
/// the same link-local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowKey {
    V4 { addrs: u64, ports: u32, vid: Vid },
    V6 { local: [u64; 2], remote: [u64; 2], ports: u32, vid: Vid },
}

impl FlowKey {
    /// Returns the key of the connection between two ends, in no VLAN; `None` when their addresses
    /// are of different families.
    pub(super) fn new(local: (IpAddr, u16), remote: (IpAddr, u16)) -> Option<FlowKey> {
        match (local.0, remote.0) {
            (IpAddr::V4(l), IpAddr::V4(r)) => Some(FlowKey::v4(l, local.1, r, remote.1)),
            (IpAddr::V6(l), IpAddr::V6(r)) => {
                let ports = u32::from(local.1) << 16 | u32::from(remote.1);
                let (local, remote) = (halves(l), halves(r));
                Some(FlowKey::V6 { local, remote, ports, vid: Vid::NONE })
            }
            _ => None,
        }
    }

    /// Returns the key of a connection over IPv4.
    pub(super) fn v4(local: Ipv4Addr, lport: u16, remote: Ipv4Addr, rport: u16) -> FlowKey {
        FlowKey::V4 {
            addrs: u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits()),
            ports: u32::from(lport) << 16 | u32::from(rport),
            vid: Vid::NONE,
        }
    }

    /// Returns the key of a connection with the same ends in the VLAN `vid`.
    #[inline(always)]
    pub(super) fn on(self, vid: Vid) -> FlowKey {
        match self {
            FlowKey::V4 { addrs, ports, .. } => FlowKey::V4 { addrs, ports, vid },
            FlowKey::V6 { local, remote, ports, .. } => FlowKey::V6 { local, remote, ports, vid },
        }
    }

    /// Returns the VLAN of the connection.
    pub(super) fn vid(&self) -> Vid {
        match *self {
            FlowKey::V4 { vid, .. } | FlowKey::V6 { vid, .. } => vid,
        }
    }

    /// Returns the key of a received segment over IPv4 from the addresses and ports in its headers,
    /// the peer's first.
    #[inline(always)]
    pub(super) fn of_received(addrs: u64, ports: u32) -> FlowKey {
        let (addrs, ports) = (addrs.rotate_left(32), ports.rotate_left(16));
        FlowKey::V4 { addrs, ports, vid: Vid::NONE }
    }

    /// Returns the key of a received segment over IPv6 in the same way.
    #[inline(always)]
    pub(super) fn of_received6(src: [u64; 2], dst: [u64; 2], ports: u32) -> FlowKey {
        let ports = ports.rotate_left(16);
        FlowKey::V6 { local: dst, remote: src, ports, vid: Vid::NONE }
    }

    /// Returns true if the connection is over IPv6.
    pub(super) fn is_ipv6(&self) -> bool {
        matches!(self, FlowKey::V6 { .. })
    }

    /// Returns our end.
    pub(super) fn local(&self) -> SocketAddr {
        match *self {
            FlowKey::V4 { addrs, ports, .. } => SocketAddr::new(v4(addrs >> 32), high(ports)),
            FlowKey::V6 { local, ports, .. } => SocketAddr::new(v6(local), high(ports)),
        }
    }

    /// Returns the peer's end.
    pub(super) fn remote(&self) -> SocketAddr {
        match *self {
            FlowKey::V4 { addrs, ports, .. } => SocketAddr::new(v4(addrs), low(ports)),
            FlowKey::V6 { remote, ports, .. } => SocketAddr::new(v6(remote), low(ports)),
        }
    }

    /// Returns the key of the same connection as its other end has it.
    pub(super) fn reversed(&self) -> FlowKey {
        match *self {
            FlowKey::V4 { addrs, ports, vid } => FlowKey::of_received(addrs, ports).on(vid),
            FlowKey::V6 { local, remote, ports, vid } => {
                FlowKey::of_received6(local, remote, ports).on(vid)
            }
        }
    }

    /// Returns a hash that no host without `key` can compute. The VLAN is no part of it: few VLANs
    /// have connections between the same addresses and ports.
    #[inline]
    pub(super) fn hash(&self, key: &[u8; 16]) -> u64 {
        match *self {
            FlowKey::V4 { addrs, ports, .. } => {
                let mut b = [0; 12];
                b[..8].copy_from_slice(&addrs.to_le_bytes());
                b[8..].copy_from_slice(&ports.to_le_bytes());
                SipHasher13::new_with_key(key).hash(&b)
            }
            FlowKey::V6 { local, remote, ports, .. } => {
                let mut b = [0; 36];
                let words = [local[0], local[1], remote[0], remote[1]];
                for (b, word) in b.chunks_exact_mut(8).zip(words) {
                    b.copy_from_slice(&word.to_le_bytes());
                }
                b[32..].copy_from_slice(&ports.to_le_bytes());
                SipHasher13::new_with_key(key).hash(&b)
            }
        }
    }
}

/// A flow, and the keyed hash of its addresses and ports. The stack computes the hash once to look for
/// a connection; numbers that depend on the flow are computed from the hash, because a hash of the
/// flow costs as much as much else that a handshake needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashed<'a> {
    pub(super) key: &'a FlowKey,
    pub(super) hash: u64,
}

/// Returns a hash of `words` that no host without `key` can compute.
#[inline]
pub(super) fn keyed(key: &[u8; 16], words: [u64; 2]) -> u64 {
    let mut b = [0; 16];
    b[..8].copy_from_slice(&words[0].to_le_bytes());
    b[8..].copy_from_slice(&words[1].to_le_bytes());
    SipHasher13::new_with_key(key).hash(&b)
}

/// Returns an address as two numbers, the network's half first.
pub(super) fn halves(ip: Ipv6Addr) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = ip.octets();
    [u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from_be_bytes([i, j, k, l, m, n, o, p])]
}

fn v6([high, low]: [u64; 2]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)))
}

/// Returns the address in the low half of `word`.
fn v4(word: u64) -> IpAddr {
    let [.., a, b, c, d] = word.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

fn high(ports: u32) -> u16 {
    let [a, b, ..] = ports.to_be_bytes();
    u16::from_be_bytes([a, b])
}

fn low(ports: u32) -> u16 {
    let [.., a, b] = ports.to_be_bytes();
    u16::from_be_bytes([a, b])
}

#[derive(Clone, Copy)]
struct Slot {
    hash: u32,
    index: u32,
}

/// Bytes of a slot.
pub(super) const SLOT: usize = size_of::<Slot>();

const EMPTY: Slot = Slot { hash: 0, index: u32::MAX };

/// The table from hashes to indices.
pub(super) struct FlowTable {
    slots: Box<[Slot]>,
    used: usize,
}

impl FlowTable {
    /// Returns a table for `max` connections.
    pub(super) fn new(max: usize) -> FlowTable {
        let n = max.saturating_mul(2).clamp(8, 1 << 31).next_power_of_two();
        FlowTable { slots: vec![EMPTY; n].into_boxed_slice(), used: 0 }
    }

    /// Returns the index stored under `hash` for which `is_it` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let hash = part(hash);
        let mut at = self.home(hash);
        loop {
            let slot = self.slots[at];
            if slot.index == EMPTY.index {
                return None;
            }
            if slot.hash == hash && is_it(slot.index) {
                return Some(slot.index);
            }
            at = self.after(at);
        }
    }

    /// Fetches the slot where a look-up of `hash` begins; returns the part of the hash that
    /// [`guess`](Self::guess) takes.
    #[inline]
    pub(super) fn fetch(&self, hash: u64, fetch: impl Fetch) -> u32 {
        let hash = part(hash);
        fetch.value(&self.slots[self.home(hash)]);
        hash
    }

    /// Returns the first index stored under this part of a hash: nearly always the right one.
    pub(super) fn guess(&self, hash: u32) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            let slot = self.slots[at];
            if slot.index == EMPTY.index || slot.hash == hash {
                return (slot.index != EMPTY.index).then_some(slot.index);
            }
            at = self.after(at);
        }
    }

    /// Stores `index` under `hash`. Returns false when the table is full.
    pub(super) fn insert(&mut self, hash: u64, index: u32) -> bool {
        if self.used >= self.slots.len() / 2 {
            return false;
        }
        let hash = part(hash);
        let mut at = self.home(hash);
        while self.slots[at].index != EMPTY.index {
            at = self.after(at);
        }
        self.slots[at] = Slot { hash, index };
        self.used += 1;
        true
    }

    /// Removes `index`, stored under `hash`.
    pub(super) fn remove(&mut self, hash: u64, index: u32) {
        let mut hole = self.home(part(hash));
        while self.slots[hole].index != index {
            if self.slots[hole].index == EMPTY.index {
                return;
            }
            hole = self.after(hole);
        }
        self.used -= 1;
        // Entries that probing carried over the hole move into it, up to the next empty slot.
        let mut at = self.after(hole);
        while self.slots[at].index != EMPTY.index {
            let from_home = self.distance(self.home(self.slots[at].hash), at);
            if from_home >= self.distance(hole, at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.slots[hole] = EMPTY;
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }
}

fn part(hash: u64) -> u32 {
    let [a, b, c, d, ..] = hash.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Few distinct hashes make long probe runs that wrap around the end of the table.
        #[test]
        fn test_flow_table_behaves_as_a_map(
            ops in proptest::collection::vec((0u32..24, any::<bool>()), 0..300),
            spread in 1u64..9,
        ) {
            let hash = |i: u32| 14 + u64::from(i) % spread;
            let (mut t, mut model) = (FlowTable::new(16), BTreeMap::new());
            for (i, put) in ops {
                if put && !model.contains_key(&i) {
                    let fits = t.insert(hash(i), i);
                    prop_assert_eq!(fits, model.len() < 16);
                    if fits {
                        model.insert(i, ());
                    }
                } else if !put {
                    t.remove(hash(i), i);
                    model.remove(&i);
                }
                for i in 0..24 {
                    let found = t.find(hash(i), |x| x == i);
                    prop_assert_eq!(found, model.get(&i).map(|()| i));
                }
            }
        }

        #[test]
        fn test_key_keeps_both_ends(l: u32, r: u32, lp: u16, rp: u16) {
            let (l, r) = (Ipv4Addr::from_bits(l).into(), Ipv4Addr::from_bits(r).into());
            let k = FlowKey::new((l, lp), (r, rp)).unwrap();
            prop_assert_eq!((k.local(), k.remote()), (SocketAddr::new(l, lp), SocketAddr::new(r, rp)));
            prop_assert_eq!((k.reversed().local(), k.reversed().reversed()), (k.remote(), k));
            let tagged = k.on(Vid::new(7).unwrap());
            prop_assert!(tagged != k && tagged.reversed().reversed() == tagged);
            prop_assert_eq!((tagged.local(), tagged.vid().get()), (k.local(), 7));
        }

        #[test]
        fn test_ipv6_key_keeps_both_ends(l: u128, r: u128, lp: u16, rp: u16) {
            let (l, r) = (Ipv6Addr::from_bits(l).into(), Ipv6Addr::from_bits(r).into());
            let k = FlowKey::new((l, lp), (r, rp)).unwrap();
            prop_assert_eq!((k.local(), k.remote()), (SocketAddr::new(l, lp), SocketAddr::new(r, rp)));
            prop_assert_eq!((k.reversed().local(), k.reversed().reversed()), (k.remote(), k));
        }
    }

    #[test]
    fn test_flow_hash_depends_on_every_part_of_key() {
        let v4 = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(n));
        let v6 = |n: u32| IpAddr::V6(Ipv6Addr::from_bits(u128::from(n) << 64 | 1));
        for ip in [&v4 as &dyn Fn(u32) -> IpAddr, &v6] {
            let k = |l, lp, r, rp| FlowKey::new((ip(l), lp), (ip(r), rp)).unwrap();
            let base = k(1, 2, 3, 4).hash(&[7; 16]);
            for other in [k(2, 2, 3, 4), k(1, 3, 3, 4), k(1, 2, 4, 4), k(1, 2, 3, 5)] {
                assert_ne!(base, other.hash(&[7; 16]));
            }
            assert_ne!(base, k(1, 2, 3, 4).hash(&[8; 16]));
        }
        assert_eq!(FlowKey::new((v4(1), 2), (v6(3), 4)), None, "one family each");
    }
}
