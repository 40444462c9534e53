//! The times at which an RNIC has to look at connections without a frame or an order.
//!
//! The RNIC does so for its [rounds](crate::rounds), for [messages that wait for a
//! receive](crate::rnr) and for [shares that wait for their rates](crate::turns). Every turn of a
//! worker asks whether one of these times has come, so [`Looks`] also stores the earliest: the
//! question costs one comparison.

use heddle_base::Instant;

const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The times of the next looks; [`Instant::ZERO`] means at once.
#[derive(Debug)]
pub(crate) struct Looks {
    /// The earliest of the others.
    next: Instant,
    rounds: Instant,
    rnr: Instant,
    shares: Instant,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks { next: NEVER, rounds: NEVER, rnr: NEVER, shares: NEVER }
    }
}

impl Looks {
    /// Begins a round because there is traffic, unless a round is in progress.
    #[inline]
    pub(crate) fn wake_rounds(&mut self) {
        if self.rounds == NEVER {
            self.set_rounds(Some(Instant::ZERO));
        }
    }

    /// Sets when the rounds go on; with `None`, the rounds stop until there is traffic.
    pub(crate) fn set_rounds(&mut self, at: Option<Instant>) {
        self.rounds = at.unwrap_or(NEVER);
        self.note();
    }

    /// Sets when to look at messages that wait; `None` if there is none.
    pub(crate) fn set_rnr(&mut self, at: Option<Instant>) {
        self.rnr = at.unwrap_or(NEVER);
        self.note();
    }

    /// Sets when to look at shares that wait for their rates; `None` if there is none.
    pub(crate) fn set_shares(&mut self, at: Option<Instant>) {
        self.shares = at.unwrap_or(NEVER);
        self.note();
    }

    #[inline]
    fn note(&mut self) {
        self.next = self.rounds.min(self.rnr).min(self.shares);
    }

    /// Returns the earlier of `other` and the next look.
    #[inline]
    pub(crate) fn poll_timeout(&self, other: Option<Instant>) -> Option<Instant> {
        let at = other.map_or(self.next, |t| t.min(self.next));
        (at != NEVER).then_some(at)
    }

    /// Returns true if the time of a look has come.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// Returns two flags: whether the time has come for the rounds to go on, and whether the rounds
    /// are to begin anew.
    pub(crate) fn rounds_due(&self, now: Instant) -> (bool, bool) {
        (self.rounds <= now, self.rounds == Instant::ZERO)
    }

    /// Returns true if the time has come to look at messages that wait.
    pub(crate) fn is_rnr_due(&self, now: Instant) -> bool {
        self.rnr <= now
    }

    /// Returns true if the time has come to look at shares that wait for their rates.
    pub(crate) fn are_shares_due(&self, now: Instant) -> bool {
        self.shares <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn test_poll_timeout_is_earliest_of_all_deadlines() {
        let at = |ms| Instant::from_nanos(0) + Duration::from_millis(ms);
        let mut looks = Looks::default();
        assert_eq!((looks.poll_timeout(None), looks.is_due(at(1000))), (None, false));
        assert_eq!(looks.poll_timeout(Some(at(7))), Some(at(7)));
        looks.set_rounds(Some(at(5)));
        looks.set_rnr(Some(at(3)));
        assert_eq!(looks.poll_timeout(Some(at(7))), Some(at(3)));
        assert!(!looks.is_due(at(2)) && looks.is_due(at(3)));
        assert!(looks.is_rnr_due(at(3)) && !looks.rounds_due(at(3)).0);
        looks.set_rnr(None);
        assert_eq!(looks.poll_timeout(None), Some(at(5)));
        looks.set_shares(Some(at(4)));
        assert_eq!(looks.poll_timeout(None), Some(at(4)));
        assert!(looks.are_shares_due(at(4)) && !looks.are_shares_due(at(3)));
        looks.set_shares(None);
        assert_eq!(looks.poll_timeout(None), Some(at(5)));
        // `wake_rounds` does not restart rounds that are in progress.
        looks.wake_rounds();
        assert_eq!(looks.rounds_due(at(5)), (true, false));
        looks.set_rounds(None);
        looks.wake_rounds();
        assert_eq!(looks.rounds_due(at(5)), (true, true));
        assert!(looks.is_due(Instant::ZERO));
    }
}
