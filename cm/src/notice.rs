//! Refusals for a log, at a rate that peers cannot drive.

use std::collections::VecDeque;

use core::net::SocketAddr;
use core::time::Duration;

use heddle_base::Instant;
use heddle_types::{DialogueError, ListenerId};

/// The reason why a peer was refused without an event to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no listener (any more) at the address that the connection came to.
    #[error("no application listens there")]
    NotListening,
    /// The listener has all the start-ups it may have, and each of them waits for the application's
    /// answer.
    #[error("the listener has no place left")]
    Backlog,
    /// The worker has all the start-ups it may have.
    #[error("the worker has no place left")]
    Startups,
    /// The peer has too many start-ups at this listener.
    #[error("the peer has too many start-ups at this listener")]
    PeerStartups,
    /// The peer has too many connections to this listener.
    #[error("the peer has too many connections to this listener")]
    PeerConns,
    /// The application does not take its events.
    #[error("the application does not take its events")]
    Events,
    /// The RNIC drains: it takes no new connections until an administrator says otherwise.
    #[error("the RNIC drains")]
    Draining,
    /// The connection had kept us waiting longest, and another needed the place.
    #[error("made room for another")]
    Evicted,
    /// The peer's request did not come in time.
    #[error("the MPA Request did not come in time")]
    TimedOut,
    /// The peer broke the rules of the start-up.
    #[error("MPA start-up failed: {0}")]
    Startup(DialogueError),
}

/// A refused connection, for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The listener that the connection came to; absent when there is none.
    pub listener: Option<ListenerId>,
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub peer: SocketAddr,
    /// The cause of the refusal.
    pub reason: Refusal,
    /// Notices left out since the last one.
    pub suppressed: u64,
}

/// A bucket of tokens: it starts full, and gains one token a second.
#[derive(Debug)]
pub(crate) struct Notices {
    queue: VecDeque<Notice>,
    burst: u32,
    tokens: u32,
    /// The time at which the last token was gained.
    since: Instant,
    suppressed: u64,
}

/// Time for one token.
const REFILL: Duration = Duration::from_secs(1);

impl Notices {
    pub(crate) fn new(burst: u32) -> Notices {
        let since = Instant::ZERO;
        Notices { queue: VecDeque::new(), burst, tokens: burst, since, suppressed: 0 }
    }

    /// Keeps a notice and returns true, or counts the notice and returns false if there were too
    /// many.
    pub(crate) fn push(&mut self, now: Instant, notice: Notice) -> bool {
        let gained = now.since(self.since).as_secs();
        if gained > 0 {
            let whole = u32::try_from(gained).unwrap_or(u32::MAX);
            self.tokens = self.tokens.saturating_add(whole).min(self.burst);
            // The rest of a second counts for the next token.
            let rest = now.since(self.since).saturating_sub(REFILL.saturating_mul(whole));
            let rest = u64::try_from(rest.as_nanos()).unwrap_or(0);
            self.since = Instant::from_nanos(now.as_nanos().saturating_sub(rest));
        }
        // The queue, too, is at most as long as a burst, whether the shell takes notices or not.
        let room = self.queue.len() < usize::try_from(self.burst).unwrap_or(usize::MAX);
        if self.tokens == 0 || !room {
            self.suppressed += 1;
            return false;
        }
        self.tokens -= 1;
        let suppressed = core::mem::take(&mut self.suppressed);
        self.queue.push_back(Notice { suppressed, ..notice });
        true
    }

    pub(crate) fn poll(&mut self) -> Option<Notice> {
        self.queue.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::Refusal;

    #[test]
    fn test_notice_queue_limits_bursts_and_counts_suppressed_notices() {
        let any = "10.0.0.1:1".parse().unwrap();
        let reason = Refusal::Backlog;
        let notice = Notice { listener: None, local: any, peer: any, reason, suppressed: 0 };
        let mut n = Notices::new(3);
        let t = Instant::from_millis(100_000);
        let kept = (0..1000).filter(|_| n.push(t, notice)).count();
        assert_eq!(kept, 3);
        let told = |n: &mut Notices| -> Vec<u64> {
            std::iter::from_fn(|| n.poll()).map(|n| n.suppressed).collect()
        };
        assert_eq!(told(&mut n), [0, 0, 0]);
        assert!(!n.push(t + Duration::from_millis(999), notice));
        assert!(n.push(t + Duration::from_millis(1000), notice));
        assert_eq!(told(&mut n), [998]);
        // A rate just below one a second passes whole; a rate above does not.
        let mut at = t + Duration::from_secs(10);
        assert_eq!((0..3).filter(|_| n.push(at, notice)).count(), 3);
        told(&mut n);
        let kept = (0..100).filter(|_| {
            at = at + Duration::from_millis(500);
            let kept = n.push(at, notice);
            told(&mut n);
            kept
        });
        assert_eq!(kept.count(), 50);
        // The shell takes no notices.
        let late = at + Duration::from_secs(1000);
        assert_eq!((0..10).filter(|_| n.push(late, notice)).count(), 3);
        assert!(!n.push(late + Duration::from_secs(1000), notice));
    }
}
