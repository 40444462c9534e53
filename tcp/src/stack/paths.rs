//! The paths that connections have found out about, for the connections that follow: the largest
//! segment of the path to a host.
//!
//! The table has a fixed number of places, in groups of [`WAYS`] that share a value of a keyed hash.
//! A host that makes a connection of ours learn something about the path to itself takes a place of its
//! group at most, and no peer can choose the group. The oldest entry of a group makes room. Only a report
//! about a segment in flight, or an acknowledgment, makes an entry.

use core::hash::BuildHasher;

use heddle_base::Instant;

use super::neighbor::{Keyed, LinkAddr};
use crate::conn::RAISE_AFTER;

const SETS: usize = 256;
const WAYS: usize = 4;

/// The knowledge about the path to a host.
#[derive(Clone, Copy, Debug)]
struct Path {
    host: LinkAddr,
    /// The largest segment, options included.
    mss: u32,
    /// When a connection may look for a larger size.
    probe_at: Instant,
    learned: Instant,
}

/// The paths to hosts that carry less than our MTU.
pub(super) struct Paths {
    key: Keyed,
    /// Made with the first entry: most hosts never have one.
    sets: Option<Box<[[Option<Path>; WAYS]; SETS]>>,
}

impl Paths {
    pub(super) fn new(key: [u8; 16]) -> Paths {
        Paths { key: Keyed(key), sets: None }
    }

    fn set_of(&self, host: LinkAddr) -> usize {
        // The remainder is below `SETS`.
        usize::try_from(self.key.hash_one(host) % SETS as u64).unwrap_or(0)
    }

    /// Returns the largest segment of the path to a host, and when to look for a larger one, unless
    /// the path is unknown or may have changed since.
    pub(super) fn get(&self, now: Instant, host: LinkAddr) -> Option<(u32, Instant)> {
        let set = self.sets.as_ref()?.get(self.set_of(host))?;
        let path = set.iter().flatten().find(|p| p.host == host)?;
        (now - path.learned < RAISE_AFTER).then_some((path.mss, path.probe_at))
    }

    /// Notes the largest segment of the path to a host.
    pub(super) fn learn(&mut self, now: Instant, host: LinkAddr, mss: u32, probe_at: Instant) {
        let at = self.set_of(host);
        let sets = self.sets.get_or_insert_with(|| Box::new([[None; WAYS]; SETS]));
        let Some(set) = sets.get_mut(at) else { return };
        let same = set.iter().position(|p| p.is_some_and(|p| p.host == host));
        let oldest = || (0..WAYS).min_by_key(|&n| set.get(n).copied().flatten().map(|p| p.learned));
        if let Some(place) = same.or_else(oldest).and_then(|n| set.get_mut(n)) {
            *place = Some(Path { host, mss, probe_at, learned: now });
        }
    }

    /// Forgets the path to a host: it carries whatever we send.
    pub(super) fn forget(&mut self, host: LinkAddr) {
        let at = self.set_of(host);
        if let Some(set) = self.sets.as_mut().and_then(|s| s.get_mut(at)) {
            for place in set.iter_mut().filter(|p| p.is_some_and(|p| p.host == host)) {
                *place = None;
            }
        }
    }

    /// Returns the number of entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sets.iter().flat_map(|s| s.iter().flatten()).flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Vid;
    use core::net::Ipv4Addr;

    fn host(n: u32) -> LinkAddr {
        LinkAddr::new(Vid::NONE, Ipv4Addr::from_bits(0x0a00_0000 + n).into())
    }

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    #[test]
    fn test_path_is_known_until_it_may_have_changed() {
        let mut p = Paths::new([1; 16]);
        assert_eq!(p.get(ms(0), host(1)), None);
        p.learn(ms(5), host(1), 1400, ms(99));
        p.learn(ms(6), host(2), 1000, ms(98));
        assert_eq!(p.get(ms(600_004), host(1)), Some((1400, ms(99))));
        assert_eq!(p.get(ms(600_005), host(1)), None);
        p.learn(ms(600_005), host(1), 1300, ms(7));
        assert_eq!((p.get(ms(600_005), host(1)), p.len()), (Some((1300, ms(7))), 2));
        p.forget(host(1));
        assert_eq!((p.get(ms(600_005), host(1)), p.len()), (None, 1));
    }

    #[test]
    fn test_table_is_bounded_and_the_oldest_of_a_group_makes_room() {
        let mut p = Paths::new([1; 16]);
        for n in 0..100_000 {
            p.learn(ms(n.into()), host(n), 1000, ms(0));
            assert!(p.get(ms(n.into()), host(n)).is_some(), "{n}");
        }
        assert_eq!(p.len(), SETS * WAYS);
        let kept = (98_000..100_000).filter(|&n| p.get(ms(100_000), host(n)).is_some()).count();
        assert!(kept > 900, "{kept} of the newest");
    }
}
