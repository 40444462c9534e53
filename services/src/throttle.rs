//! Limits how often the log reports events that a peer can cause.

use std::time::{Duration, Instant};

/// The number of lines that pass at once.
const BURST: u32 = 16;

/// The bucket lets one more line pass after each such interval.
const EVERY: Duration = Duration::from_millis(250);

/// A bucket of log lines: peers that fail by the thousand do not fill a log.
#[derive(Debug)]
pub(crate) struct Throttle {
    left: u32,
    filled: Option<Instant>,
    suppressed: u64,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle { left: BURST, filled: None, suppressed: 0 }
    }
}

impl Throttle {
    /// Returns `Some` if a line may be logged now, with the number of suppressed lines before it.
    pub(crate) fn pass(&mut self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&mut self, now: Instant) -> Option<u64> {
        let filled = *self.filled.get_or_insert(now);
        let more = now.saturating_duration_since(filled).as_millis() / EVERY.as_millis();
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(BURST);
            self.left = self.left.saturating_add(more).min(BURST);
            self.filled = Some(now);
        }
        if self.left == 0 {
            self.suppressed += 1;
            return None;
        }
        self.left -= 1;
        Some(core::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_throttle_passes_a_burst_and_then_one_at_a_time() {
        let (mut t, start) = (Throttle::default(), Instant::now());
        let passed = (0..100).filter(|_| t.pass_at(start).is_some()).count();
        assert_eq!(passed, 16);
        assert_eq!(t.pass_at(start + EVERY), Some(84));
        assert_eq!(t.pass_at(start + EVERY), None);
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..100).filter(|_| t.pass_at(later).is_some()).count(), 16);
    }
}
