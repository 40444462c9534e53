//! What is said of peers whose start-up fails before an application hears of them.

use core::net::SocketAddr;
use core::time::Duration;

use heddle_base::Instant;

use crate::ConnectFailure;

/// Lines said at once.
const BURST: u32 = 16;

/// A burst is spent anew after this time.
const AGAIN: Duration = Duration::from_secs(4);

/// A line for each of them, but few when there are many: nobody fills a log from outside.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    since: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl Refusals {
    /// `peer` was refused at `now` because of `error`.
    pub(crate) fn log(&mut self, now: Instant, peer: SocketAddr, error: &ConnectFailure) {
        if let Some(more) = self.pass(now) {
            tracing::warn!(%peer, %error, more, "connection refused");
        }
    }

    /// Whether there is a line left; if so, how many refusals went without one before.
    fn pass(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|t| now.since(t) >= AGAIN) {
            (self.since, self.said) = (Some(now), 0);
        }
        if self.said == BURST {
            self.unsaid += 1;
            return None;
        }
        self.said += 1;
        Some(core::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_flood_of_refusals_leaves_few_lines() {
        let mut r = Refusals::default();
        let now = Instant::ZERO;
        assert_eq!((0..1000).filter(|_| r.pass(now).is_some()).count(), 16);
        assert_eq!(r.pass(now + AGAIN), Some(984));
        assert_eq!(r.pass(now + AGAIN), Some(0));
    }
}
