//! Progress: limits on how long a peer may answer and still take nothing.
//!
//! The retransmission timer ends a connection whose peer is silent. The two rules of this module
//! end a connection whose peer answers but lets it make no progress:
//!
//! - **A window kept shut.** The peer must take a segment's worth of the bytes that wait for its
//!   window within [`ConnConfig::zero_window`](crate::ConnConfig::zero_window) of the first probe.
//!   RFC 9293 section 3.8.6.1 keeps the connection open while the peer answers probes, and leaves
//!   it to the host (RFC 6429) to take back the resources of such a connection. An opening too
//!   small to send a segment into counts as shut. An opening that shuts again before the peer has
//!   acknowledged anything counts as shut too.
//! - **An orderly close.** After [`Connection::bound_close`] the connection ends when no byte has
//!   moved, either way, for [`ConnConfig::close_stall`](crate::ConnConfig::close_stall).
//!
//! A peer that takes little by little satisfies both rules. The owner bounds how long a close takes
//! as a whole.

use super::timers::UNRESPONSIVE_AFTER;
use super::{ConnEvent, Connection, NEVER, Pending};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// The number of times that a close checks for progress within the allowed stall.
const LOOKS: u32 = 4;

/// The reason why a connection makes no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// The peer has left several retransmissions in a row unanswered.
    Silent,
    /// The peer answers, and keeps its window shut.
    WindowShut,
}

/// The state of the rules while at least one of them applies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    shut: Option<Shut>,
    close: Option<Close>,
}

impl Progress {
    /// Returns true if neither rule applies.
    pub(super) fn is_over(&self) -> bool {
        self.shut.is_none() && self.close.is_none()
    }
}

/// The peer's window is shut, and bytes wait for it.
#[derive(Clone, Copy, Debug)]
struct Shut {
    /// When the connection sent the first probe.
    since: Instant,
    /// The stall is over when the peer acknowledges everything before this position.
    until: StreamPos,
    /// True if the connection raised [`ConnEvent::Stalled`].
    told: bool,
}

/// The state of a bounded orderly close.
#[derive(Clone, Copy, Debug)]
struct Close {
    /// `snd_una` and `rcv_nxt` at the last check.
    seen: (StreamPos, StreamPos),
    /// When a check last found that `snd_una` or `rcv_nxt` had moved.
    moved_at: Instant,
}

impl Connection {
    /// Bounds an orderly close that the owner has begun. From now on the connection ends with
    /// [`ConnEvent::TimedOut`] and a reset when no byte moves for
    /// [`ConnConfig::close_stall`](crate::ConnConfig::close_stall). The queued bytes still go, then
    /// the FIN, once the owner calls [`close`](Connection::close). A keepalive has no use beside
    /// this rule and stops.
    pub fn bound_close(&mut self, now: Instant) {
        use super::State::{Closed, TimeWait};
        if self.is_bounded() || matches!(self.hot.state, TimeWait | Closed) {
            return;
        }
        let seen = (self.hot.snd_una, self.hot.rcv_nxt);
        let close = Some(Close { seen, moved_at: now });
        self.rare().progress.close = close;
        self.hot.wait_at = self.next_look(now, now);
    }

    /// Returns true if the close is bounded. `wait_at` is then the instant of the next check.
    pub(super) fn is_bounded(&self) -> bool {
        self.cold.rare.as_ref().is_some_and(|r| r.progress.close.is_some())
    }

    /// Records that the owner has moved bytes of this connection to its other end without TCP, so
    /// that a bounded close makes progress.
    pub fn note_progress(&mut self, now: Instant) {
        if let Some(close) = self.cold.rare.as_mut().and_then(|r| r.progress.close.as_mut()) {
            close.moved_at = now;
        }
    }

    /// Checks whether a bounded close makes progress.
    #[cold]
    pub(super) fn look_at_close(&mut self, now: Instant) {
        let limit = self.cold.set.close_stall();
        let seen = (self.hot.snd_una, self.hot.rcv_nxt);
        let Some(close) = self.cold.rare.as_mut().and_then(|r| r.progress.close.as_mut()) else {
            return;
        };
        let moved_at = if close.seen == seen { close.moved_at } else { now };
        *close = Close { seen, moved_at };
        if now - moved_at >= limit {
            self.cold.counters.close_stalls += 1;
            return self.give_up();
        }
        self.hot.wait_at = self.next_look(now, moved_at);
    }

    /// Returns when to check a bounded close again whose bytes last moved at `moved_at`.
    fn next_look(&self, now: Instant, moved_at: Instant) -> Instant {
        let limit = self.cold.set.close_stall();
        let next = now + (limit / LOOKS).max(Duration::from_millis(1));
        next.min(moved_at + limit)
    }

    /// Records that a window probe goes out; the queue ends at `end`.
    pub(super) fn note_probe(&mut self, now: Instant, end: StreamPos) {
        let una = self.hot.snd_una;
        let segment = una + u64::from(self.hot.emss);
        let shut = &mut self.rare().progress.shut;
        if shut.is_none_or(|s| una >= s.until) {
            *shut = Some(Shut { since: now, until: segment.min(end).max(una + 1), told: false });
        }
    }

    /// Handles expiry of the window probe timer. Returns true if the peer has kept its window shut
    /// for too long and the connection is over.
    pub(super) fn is_kept_shut(&mut self, now: Instant) -> bool {
        let (limit, una) = (self.cold.set.zero_window(), self.hot.snd_una);
        let Some(shut) = self.cold.rare.as_mut().and_then(|r| r.progress.shut.as_mut()) else {
            return false;
        };
        if una >= shut.until {
            return false;
        }
        let shut_for = now - shut.since;
        if shut_for >= limit {
            self.cold.counters.zero_window_timeouts += 1;
            self.finish(ConnEvent::WindowShut);
            self.hot.pending.set(Pending::RESET);
            return true;
        }
        if !shut.told && shut_for >= limit / 2 {
            shut.told = true;
            self.cold.counters.window_stalls += 1;
            self.hot.events.push(ConnEvent::Stalled);
        }
        false
    }

    /// Returns why the connection makes no progress, from the event ([`ConnEvent::Unresponsive`],
    /// [`ConnEvent::Stalled`]) until it makes progress again. If the connection never makes
    /// progress, it ends.
    pub fn hindrance(&self) -> Option<Hindrance> {
        let shut = self.cold.rare.as_ref().and_then(|r| r.progress.shut);
        if shut.is_some_and(|s| s.told && self.hot.snd_una < s.until) {
            return Some(Hindrance::WindowShut);
        }
        (self.hot.timeouts >= UNRESPONSIVE_AFTER).then_some(Hindrance::Silent)
    }

    /// Returns when a window that stays shut ends the connection; [`NEVER`] while no byte waits for
    /// the window.
    pub(super) fn shut_until(&self) -> Instant {
        let shut = self.cold.rare.as_ref().and_then(|r| r.progress.shut);
        match shut.filter(|s| self.hot.snd_una < s.until) {
            Some(shut) => shut.since + self.cold.set.zero_window(),
            None => NEVER,
        }
    }

    /// Returns true if the peer's window has room for a segment, or for half of the largest window
    /// that the peer ever offered (RFC 9293 section 3.8.6.2.1). A smaller window counts as shut.
    pub(super) fn window_is_open(&self) -> bool {
        let hot = &self.hot;
        hot.snd_wnd >= hot.emss.min(hot.max_wnd / 2).max(1)
    }
}
