//! The registered memory of each address.

use core::net::IpAddr;
use std::collections::HashMap;

use crate::service::Limits;

/// The bytes of each address, and the limit for an address.
#[derive(Debug)]
pub(crate) struct MemoryShares {
    taken: HashMap<IpAddr, u64>,
    most: u64,
}

impl MemoryShares {
    pub(crate) fn new(limits: &Limits) -> MemoryShares {
        MemoryShares { taken: HashMap::new(), most: limits.peer_memory }
    }

    /// Returns true if `peer` may have `len` bytes more.
    pub(crate) fn has_room(&self, peer: IpAddr, len: u64) -> bool {
        let has = self.taken.get(&peer).copied().unwrap_or(0);
        has.saturating_add(len) <= self.most
    }

    /// Counts `len` bytes more for `peer`.
    pub(crate) fn take(&mut self, peer: IpAddr, len: u64) {
        *self.taken.entry(peer).or_default() += len;
    }

    /// Counts `len` bytes less for `peer`.
    pub(crate) fn give_back(&mut self, peer: IpAddr, len: u64) {
        if let Some(has) = self.taken.get_mut(&peer) {
            *has = has.saturating_sub(len);
            if *has == 0 {
                self.taken.remove(&peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_each_address_has_its_memory_share_and_all_is_released() {
        let limits = Limits { peer_memory: 100, ..Limits::default() };
        let mut shares = MemoryShares::new(&limits);
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|s| s.parse().unwrap());
        shares.take(a, 60);
        assert!(shares.has_room(a, 40) && !shares.has_room(a, 41) && shares.has_room(b, 100));
        assert!(!shares.has_room(a, u64::MAX));
        shares.give_back(a, 60);
        shares.give_back(b, 1);
        assert!(shares.taken.is_empty());
    }
}
