//! Token buckets that limit our answers to strangers.

use core::hash::{BuildHasher, Hash};

use heddle_base::Instant;

use super::addressing::MAX_VLANS;
use super::neighbor::Keyed;
use crate::wire::Vid;

/// A rate and a burst that many budgets share. A budget is one number, the instant at which it was
/// empty, so that a table of budgets is small. Its initial value 0 means a full budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Nanoseconds of credit that one event costs.
    cost: u64,
    /// Nanoseconds of credit that a full budget has.
    burst: u64,
}

impl Rate {
    /// Returns a rate of `rate` events a second on average, `at_once` at once.
    pub(super) const fn per_second(rate: u32, at_once: u32) -> Rate {
        let cost = 1_000_000_000 / if rate == 0 { 1 } else { rate as u64 };
        Rate { cost, burst: cost * at_once as u64 }
    }

    /// Returns a rate of an event in `cost` nanoseconds, and of so many at once as `burst` nanoseconds
    /// have.
    pub(super) const fn of_nanos(cost: u64, burst: u64) -> Rate {
        Rate { cost, burst }
    }

    /// Returns true if one more event may happen at `now`, and charges it to the budget.
    #[inline]
    pub(super) fn allow(self, empty_at: &mut u64, now: Instant) -> bool {
        // Shift the origin of the clock by the burst so that a clock at 0 starts full.
        let now = now.as_nanos().saturating_add(self.burst);
        // Credit is the time since this instant, at most the burst.
        let from = (*empty_at).max(now - self.burst);
        let allowed = now.saturating_sub(from) >= self.cost;
        if allowed {
            *empty_at = from + self.cost;
        }
        allowed
    }

    /// Gives an event back to the budget.
    pub(super) fn give_back(self, empty_at: &mut u64) {
        self.add(empty_at, 1);
    }

    /// Gives the budget `n` events more, but no more than it can have.
    #[inline]
    pub(super) fn add(self, empty_at: &mut u64, n: u64) {
        *empty_at = empty_at.saturating_sub(n * self.cost);
    }
}

/// Allows `rate` events a second on average and as many at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateLimit {
    rate: Rate,
    empty_at: u64,
}

impl RateLimit {
    pub(super) fn per_second(rate: u32) -> RateLimit {
        RateLimit { rate: Rate { burst: 1_000_000_000, ..Rate::per_second(rate, 0) }, empty_at: 0 }
    }

    /// Returns true if one more event may happen at `now`, and charges it to the budget.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        self.rate.allow(&mut self.empty_at, now)
    }
}

/// A budget for each link, so that a flood on one VLAN takes nothing from the others.
#[derive(Debug)]
pub(super) struct ByLink {
    rate: u32,
    /// A budget for each link that has asked: [`MAX_VLANS`] and one more at most.
    links: Vec<(Vid, RateLimit)>,
}

impl ByLink {
    pub(super) fn per_second(rate: u32) -> ByLink {
        ByLink { rate, links: vec![(Vid::NONE, RateLimit::per_second(rate))] }
    }

    /// Returns true if one more event may happen on the link `vid` at `now`, and charges it. The
    /// port has this link.
    pub(super) fn allow(&mut self, now: Instant, vid: Vid) -> bool {
        let at = self.links.iter().position(|(link, _)| *link == vid);
        let at = at.unwrap_or_else(|| {
            if self.links.len() > MAX_VLANS {
                // The others may be VLANs that the port no longer has.
                self.links.truncate(1);
            }
            self.links.push((vid, RateLimit::per_second(self.rate)));
            self.links.len() - 1
        });
        self.links[at].1.allow(now)
    }
}

/// The number of buckets that source addresses share, by a keyed hash.
const SOURCES: usize = 1024;

/// A budget for each source, which it shares with the sources of the same hash.
pub(super) struct Sources {
    rate: Rate,
    budgets: Box<[u64; SOURCES]>,
    key: Keyed,
}

impl Sources {
    /// Returns budgets of `rate` events a second, and as many at once.
    pub(super) fn per_second(rate: u32, key: [u8; 16]) -> Sources {
        let rate = Rate { burst: 1_000_000_000, ..Rate::per_second(rate, 0) };
        Sources { rate, budgets: Box::new([0; SOURCES]), key: Keyed(key) }
    }

    /// Returns true if `source` may cause one more event at `now`, and charges it.
    pub(super) fn allow(&mut self, now: Instant, source: impl Hash) -> bool {
        let rate = self.rate;
        rate.allow(self.budget(source), now)
    }

    /// Gives an event back to `source`.
    pub(super) fn give_back(&mut self, source: impl Hash) {
        let rate = self.rate;
        rate.give_back(self.budget(source));
    }

    #[inline]
    fn budget(&mut self, source: impl Hash) -> &mut u64 {
        let hash = self.key.hash_one(source);
        // The remainder is below `SOURCES`.
        &mut self.budgets[usize::try_from(hash % SOURCES as u64).unwrap_or(0)]
    }
}

/// Budgets for one kind of answer: for all sources per second, for each source, and for each turn. A
/// flood thus costs neither another host its answer nor the connections a turn's time. The worker
/// reads its clock once a turn, so one instant is one turn.
pub(super) struct Answers {
    all: RateLimit,
    sources: Sources,
    a_turn: u32,
    turn: (Instant, u32),
}

impl Answers {
    /// Returns budgets of `rate` answers a second for all sources, of half of that for each, and of
    /// `a_turn` for each turn.
    pub(super) fn per_second(rate: u32, a_turn: u32, key: [u8; 16]) -> Answers {
        Answers::of(rate, rate / 2, a_turn, key)
    }

    /// Returns the same with a budget of `source` answers a second for each source.
    pub(super) fn of(rate: u32, source: u32, a_turn: u32, key: [u8; 16]) -> Answers {
        Answers {
            all: RateLimit::per_second(rate),
            sources: Sources::per_second(source, key),
            a_turn,
            turn: (Instant::ZERO, 0),
        }
    }

    /// Returns true if one more answer may go to `source` at `now`, and charges it. A source beyond
    /// its own budget takes nothing from the common budget.
    pub(super) fn allow(&mut self, now: Instant, source: impl Hash) -> bool {
        if self.turn.0 != now {
            self.turn = (now, 0);
        }
        if self.turn.1 >= self.a_turn {
            return false;
        }
        let allowed = self.sources.allow(now, source) && self.all.allow(now);
        self.turn.1 += u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr};

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn test_source_gets_half_of_the_budget_and_leaves_the_rest_to_others() {
        let mut l = Answers::per_second(100, 1000, [7; 16]);
        let count = |l: &mut Answers, ms, from| {
            (0..500).filter(|_| l.allow(Instant::from_millis(ms), from)).count()
        };
        assert_eq!(count(&mut l, 0, A), 50);
        assert_eq!(count(&mut l, 0, B), 50);
        assert_eq!(count(&mut l, 0, IpAddr::from([10, 0, 0, 3])), 0, "all of it is gone");
        assert_eq!(count(&mut l, 100, A), 5);
        assert_eq!(count(&mut l, 100, B), 5);
    }

    #[test]
    fn test_event_given_back_may_happen_again_and_fills_no_budget_beyond_its_burst() {
        let mut s = Sources::per_second(100, [7; 16]);
        let mut at = |ms| {
            let now = Instant::from_millis(ms);
            let all = (0..1000).filter(|_| s.allow(now, A)).count();
            s.give_back(A);
            (all, s.allow(now, A), s.allow(now, A))
        };
        assert_eq!(at(0), (100, true, false));
        assert_eq!(at(20), (2, true, false));
        assert_eq!(at(10_000), (100, true, false));
        for _ in 0..1000 {
            s.give_back(B);
        }
        let now = Instant::from_millis(10_000);
        assert_eq!((0..1000).filter(|_| s.allow(now, B)).count(), 100);
    }

    #[test]
    fn test_each_turn_has_its_own_answer_budget() {
        let mut l = Answers::per_second(100, 8, [7; 16]);
        let count = |l: &mut Answers, us: u64, from| {
            (0..500).filter(|_| l.allow(Instant::from_nanos(us * 1000), from)).count()
        };
        assert_eq!((count(&mut l, 1, A), count(&mut l, 1, B)), (8, 0));
        assert_eq!(count(&mut l, 2, B), 8);
    }

    #[test]
    fn test_rate_limit_allows_burst_and_then_its_rate() {
        let mut l = RateLimit::per_second(100);
        let count =
            |l: &mut RateLimit, ms| (0..500).filter(|_| l.allow(Instant::from_millis(ms))).count();
        assert_eq!(count(&mut l, 0), 100);
        assert_eq!(count(&mut l, 9), 0);
        assert_eq!(count(&mut l, 10), 1);
        assert_eq!(count(&mut l, 110), 10);
        assert_eq!(count(&mut l, 10_000), 100);
    }
}
