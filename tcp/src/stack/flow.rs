//! From addresses and ports to a connection.
//!
//! The table uses open addressing with linear probing and is at most half full. A slot is eight
//! bytes (part of the hash, and the connection's index), so a probe is nearly always one cache
//! line. The key itself lies with the connection, which the caller needs anyway. Deletion shifts
//! later entries back, so the table has no tombstones and never degrades. The hash is keyed
//! (SipHash-1-3): a peer cannot choose ports that collide.

use core::net::{Ipv4Addr, SocketAddrV4};

use heddle_base::Fetch;
use siphasher::sip::SipHasher13;

/// The addresses and ports of a connection over IPv4, ours first. (IPv6 needs a key, a header
/// template and input of its own. The stack has none of these, so it cannot confuse IPv4 with
/// IPv6.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Without four bytes of padding, which each connection would have.
#[repr(C, packed(4))]
pub(super) struct FlowKey {
    addrs: u64,
    ports: u32,
}

impl FlowKey {
    pub(super) fn v4(local: Ipv4Addr, lport: u16, remote: Ipv4Addr, rport: u16) -> FlowKey {
        FlowKey {
            addrs: u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits()),
            ports: u32::from(lport) << 16 | u32::from(rport),
        }
    }

    /// Returns the key of a received segment from the addresses and ports in its headers, the
    /// peer's first.
    #[inline(always)]
    pub(super) fn of_received(addrs: u64, ports: u32) -> FlowKey {
        FlowKey { addrs: addrs.rotate_left(32), ports: ports.rotate_left(16) }
    }

    /// Returns our end.
    pub(super) fn local(&self) -> SocketAddrV4 {
        let [a, b, c, d, ..] = self.addrs.to_be_bytes();
        let [hi, lo, ..] = self.ports.to_be_bytes();
        SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([hi, lo]))
    }

    /// Returns the peer's end.
    pub(super) fn remote(&self) -> SocketAddrV4 {
        let [.., a, b, c, d] = self.addrs.to_be_bytes();
        let [.., hi, lo] = self.ports.to_be_bytes();
        SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([hi, lo]))
    }

    /// Returns a hash that no host without `key` can compute.
    pub(super) fn hash(&self, key: &[u8; 16]) -> u64 {
        let mut b = [0; 12];
        b[..8].copy_from_slice(&self.addrs.to_le_bytes());
        b[8..].copy_from_slice(&self.ports.to_le_bytes());
        SipHasher13::new_with_key(key).hash(&b)
    }
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
            let (l, r) = (Ipv4Addr::from_bits(l), Ipv4Addr::from_bits(r));
            let k = FlowKey::v4(l, lp, r, rp);
            prop_assert_eq!((k.local(), k.remote()), (SocketAddrV4::new(l, lp), SocketAddrV4::new(r, rp)));
        }
    }

    #[test]
    fn test_flow_hash_depends_on_every_part_of_key() {
        let k = |l: u32, lp, r: u32, rp| {
            FlowKey::v4(Ipv4Addr::from_bits(l), lp, Ipv4Addr::from_bits(r), rp).hash(&[7; 16])
        };
        let base = k(1, 2, 3, 4);
        for other in [k(2, 2, 3, 4), k(1, 3, 3, 4), k(1, 2, 4, 4), k(1, 2, 3, 5)] {
            assert_ne!(base, other);
        }
        let key = FlowKey::v4(Ipv4Addr::from_bits(1), 2, Ipv4Addr::from_bits(3), 4);
        assert_ne!(base, key.hash(&[8; 16]));
    }
}
