//! The invariants of a scoreboard by itself (see [`rack`](super::super::rack)).

use super::*;

impl Scoreboard {
    /// Panics where the lists contradict each other; `[una, next)` is outstanding.
    pub(in crate::conn) fn check(&self, una: StreamPos, next: StreamPos) {
        assert!(
            self.sent.len() <= MAX_BURSTS && self.again.retransmitted.len() <= MAX_RETRANSMITTED
        );
        let sent: Vec<_> = self.sent.iter().collect();
        for s in &sent {
            assert!(s.first == NEVER || s.first <= s.last, "{s:?}");
        }
        for w in sent.windows(2) {
            assert!(w[0].start < w[1].start && w[0].last <= w[1].last, "{self:?}");
        }
        if una < next {
            assert!(
                sent.first().is_some_and(|s| s.start <= una),
                "when was {una:?} sent? {self:?}"
            );
        }
        if let Some(end) = self.sacked.end() {
            assert!(end <= next && self.sacked.containing(una).is_none(), "{una:?} {self:?}");
            assert_eq!(self.sacked.bytes_from(una), self.sacked.bytes_from(StreamPos::START));
        }
        assert!(self.lost_below <= next.max(una) && self.repaired <= next.max(una), "{self:?}");
        let again = self.again.retransmitted.iter().map(|r| r.range);
        let mut again: Vec<_> =
            again.chain(self.again.lost_retransmissions.iter().copied()).collect();
        again.sort_by_key(|r| r.start);
        for r in &again {
            assert!(r.len() > 0 && r.start >= una && r.end <= self.repaired, "{r:?} {self:?}");
            let free = self.sacked.first_gap(r.start, r.end);
            assert_eq!(free, Some((r.start, r.end)), "SACKed: {self:?}");
        }
        assert!(again.windows(2).all(|w| w[0].end <= w[1].start), "twice: {self:?}");
        // The lists must account for every byte below `repaired`.
        let known: u64 = again.iter().map(|r| r.len()).sum();
        let below = self.repaired.max(una);
        let sacked = self.sacked.bytes_from(una) - self.sacked.bytes_from(below);
        assert_eq!(known + sacked, below - una, "forgotten: {una:?} {self:?}");
        for (a, b) in self.again.retransmitted.iter().zip(self.again.retransmitted.iter().skip(1)) {
            assert!(a.at <= b.at, "{self:?}");
        }
    }
}
