//! Progress: how long a peer may answer and still take nothing.
//!
//! The timer of retransmission ends a connection whose peer is silent. The two rules here end one
//! whose peer answers and does not let it get on:
//!
//! - **A window kept shut.** The peer must take a segment's worth of what waits for its window
//!   within [`ConnConfig::zero_window`](crate::ConnConfig::zero_window) of the first probe. RFC 9293
//!   section 3.8.6.1 has the connection stay open while probes are answered, and leaves it to the
//!   host (RFC 6429) to take back what such a connection holds. An opening that is too small to send
//!   into counts as shut; so does one that shuts again before the peer has acknowledged anything.
//! - **An orderly close.** After [`Connection::bound_close`] the connection ends when no byte has
//!   moved, either way, for [`ConnConfig::close_stall`](crate::ConnConfig::close_stall).
//!
//! A peer that takes little by little satisfies both. The owner bounds how long a close takes as a
//! whole.

use super::timers::UNRESPONSIVE_AFTER;
use super::{ConnEvent, Connection, NEVER, Pending};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// A close looks for progress so many times within the time it may stand still.
const LOOKS: u32 = 4;

/// What keeps a connection from getting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// The peer has left several retransmissions in a row unanswered.
    Silent,
    /// The peer answers, and keeps its window shut.
    WindowShut,
}

/// What the rules remember while one of them applies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    shut: Option<Shut>,
    close: Option<Close>,
}

/// The peer's window is shut, and something waits for it.
#[derive(Clone, Copy, Debug)]
struct Shut {
    /// When it was probed first.
    since: Instant,
    /// Over when everything before is acknowledged.
    until: StreamPos,
    /// [`ConnEvent::Stalled`] was raised.
    told: bool,
}

/// An orderly close is bounded.
#[derive(Clone, Copy, Debug)]
struct Close {
    /// `snd_una` and `rcv_nxt` at the last look.
    seen: (StreamPos, StreamPos),
    /// When they were last seen to have moved.
    moved_at: Instant,
}

impl Connection {
    /// The owner has begun to end the connection in order: from now on it ends with
    /// [`ConnEvent::TimedOut`] and a reset when nothing moves for
    /// [`ConnConfig::close_stall`](crate::ConnConfig::close_stall). What is queued still goes, then
    /// FIN, once [`close`](Connection::close) is called. A keepalive has no use beside this rule and
    /// stops.
    pub fn bound_close(&mut self, now: Instant) {
        use super::State::{Closed, TimeWait};
        if self.is_bounded() || matches!(self.hot.state, TimeWait | Closed) {
            return;
        }
        let seen = (self.hot.snd_una, self.hot.rcv_nxt);
        let close = Some(Close { seen, moved_at: now });
        self.cold.progress.get_or_insert_default().close = close;
        self.cold.wait_at = self.next_look(now, now);
    }

    /// Returns true if the close is bounded: then `wait_at` is that of the next look.
    pub(super) fn is_bounded(&self) -> bool {
        self.cold.progress.as_ref().is_some_and(|p| p.close.is_some())
    }

    /// The owner has moved bytes of this connection to its other end without TCP: a bounded close gets on.
    pub fn note_progress(&mut self, now: Instant) {
        if let Some(close) = self.cold.progress.as_mut().and_then(|p| p.close.as_mut()) {
            close.moved_at = now;
        }
    }

    /// Looks whether a bounded close gets on.
    #[cold]
    pub(super) fn look_at_close(&mut self, now: Instant) {
        let limit = self.cold.set.close_stall();
        let seen = (self.hot.snd_una, self.hot.rcv_nxt);
        let Some(close) = self.cold.progress.as_mut().and_then(|p| p.close.as_mut()) else {
            return;
        };
        let moved_at = if close.seen == seen { close.moved_at } else { now };
        *close = Close { seen, moved_at };
        if now - moved_at >= limit {
            self.cold.counters.close_stalls += 1;
            return self.give_up();
        }
        self.cold.wait_at = self.next_look(now, moved_at);
    }

    /// When to look again at a bounded close of which something moved at `moved_at`.
    fn next_look(&self, now: Instant, moved_at: Instant) -> Instant {
        let limit = self.cold.set.close_stall();
        let next = now + (limit / LOOKS).max(Duration::from_millis(1));
        next.min(moved_at + limit)
    }

    /// A probe of the window goes out; the queue ends at `end`.
    pub(super) fn note_probe(&mut self, now: Instant, end: StreamPos) {
        let una = self.hot.snd_una;
        let shut = &mut self.cold.progress.get_or_insert_default().shut;
        if shut.is_none_or(|s| una >= s.until) {
            let segment = una + u64::from(self.hot.emss);
            *shut = Some(Shut { since: now, until: segment.min(end).max(una + 1), told: false });
        }
    }

    /// The timer of the window probe has expired. Returns true if the peer has kept its window shut
    /// for too long; then the connection is over.
    pub(super) fn is_kept_shut(&mut self, now: Instant) -> bool {
        let (limit, una) = (self.cold.set.zero_window(), self.hot.snd_una);
        let Some(shut) = self.cold.progress.as_mut().and_then(|p| p.shut.as_mut()) else {
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
            self.cold.events.push(ConnEvent::Stalled);
        }
        false
    }

    /// What keeps the connection from getting on, from the notice of it on
    /// ([`ConnEvent::Unresponsive`], [`ConnEvent::Stalled`]) until it does get on: if it never does, the
    /// connection ends.
    pub fn hindrance(&self) -> Option<Hindrance> {
        let shut = self.cold.progress.as_ref().and_then(|p| p.shut);
        if shut.is_some_and(|s| s.told && self.hot.snd_una < s.until) {
            return Some(Hindrance::WindowShut);
        }
        (self.cold.timeouts >= UNRESPONSIVE_AFTER).then_some(Hindrance::Silent)
    }

    /// When a window that stays shut ends the connection; [`NEVER`] while nothing waits for one.
    pub(super) fn shut_until(&self) -> Instant {
        let shut = self.cold.progress.as_ref().and_then(|p| p.shut);
        match shut.filter(|s| self.hot.snd_una < s.until) {
            Some(shut) => shut.since + self.cold.set.zero_window(),
            None => NEVER,
        }
    }

    /// Returns true if the peer's window has room for a segment, or for half of the most it ever
    /// offered (RFC 9293 section 3.8.6.2.1): a smaller one is as good as shut.
    pub(super) fn window_is_open(&self) -> bool {
        let hot = &self.hot;
        hot.snd_wnd >= hot.emss.min(hot.max_wnd / 2).max(1)
    }
}
