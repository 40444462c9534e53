//! The pace of a window: how many bytes may leave at once, and when the next.

use core::time::Duration;

use crate::conn::config::nanos;
use heddle_base::Instant;

/// The time for whose bytes a burst stands: timers and trains of a few segments can keep it.
const QUANTUM_NS: u64 = 1_000_000;

/// A pace: `tenths` / 10 of `cwnd` bytes in a round trip of `srtt`, in segments of `mss`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) cwnd: u32,
    pub(super) mss: u32,
    pub(super) tenths: u32,
    pub(super) srtt: Duration,
}

impl Pace {
    /// Returns the bytes of a burst: those of a quantum, and two segments at least.
    fn quantum(&self) -> u64 {
        let rate = u128::from(self.cwnd) * u128::from(self.tenths) * u128::from(QUANTUM_NS) / 10;
        let bytes = rate / u128::from(nanos(self.srtt).max(1));
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        bytes.max(2 * u64::from(self.mss))
    }

    /// Returns the time that `bytes` take.
    fn time(&self, bytes: u64) -> Duration {
        let ns = u128::from(bytes) * u128::from(nanos(self.srtt)) * 10;
        let ns = ns / (u128::from(self.cwnd.max(1)) * u128::from(self.tenths.max(1)));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// The burst that is going out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pacer {
    since: Instant,
    sent: u64,
    quantum: u64,
    /// True once the initial window has gone, which is not paced: the first burst.
    begun: bool,
}

impl Pacer {
    /// Counts `len` bytes as sent if they may go now, the first `initial` bytes in any case.
    ///
    /// # Errors
    /// Returns the time at which they may go.
    pub(super) fn send(
        &mut self,
        now: Instant,
        len: u32,
        initial: u32,
        pace: Pace,
    ) -> Result<(), Instant> {
        if !self.begun {
            if self.sent < u64::from(initial) {
                (self.since, self.quantum) = (now, initial.into());
                self.count(len);
                return Ok(());
            }
            (self.begun, self.sent) = (true, 0);
        }
        let due = self.since + pace.time(self.sent);
        if now >= due {
            (self.since, self.sent) = (now, 0);
        } else if self.sent >= self.quantum {
            return Err(due);
        }
        self.quantum = pace.quantum();
        self.count(len);
        Ok(())
    }

    /// Returns how many more bytes the burst may have.
    pub(super) fn room(&self) -> u64 {
        self.quantum.saturating_sub(self.sent)
    }

    pub(super) fn count(&mut self, len: u32) {
        self.sent = self.sent.saturating_add(len.into());
    }
}
