//! The receive window grows to the size that the path needs.
//!
//! The connection begins with [`ConnConfig::recv_window`] and looks again each time when the peer has
//! sent a part of a window ([`LOOKS`]), at the ACK that moves the right edge. A look compares the
//! window with the bytes that have come in a round trip, as far as the owner has accepted them. A
//! window with less than [`ENOUGH`] times these bytes might hold the peer back, so the connection asks
//! for twice as much, or for as much as four round trips bring. A window that is far too large shrinks:
//! the right edge stays where it is, and moves on more slowly.
//!
//! The round trip is the least that the connection has measured, in the handshake or with data of its
//! own. A smoothed round trip would include the time that bytes wait in a queue, and a larger window
//! makes a queue longer: on a link that loses nothing the window would grow without end.
//!
//! A window is a promise and no memory: payload goes to its place, and only bytes ahead of a gap and
//! unfinished FPDUs wait, within budgets of their own. But a window of which the receiver drops a part
//! behind each gap is a promise that it does not keep. So the stack has a budget for the bytes by which
//! windows have grown, and shares it among the hosts that send (`stack::windows`). The connection asks
//! by a note among its events ([`Connection::take_note`]), and the stack answers with
//! [`Connection::grant_window`].
//!
//! [`ConnConfig::recv_window`]: crate::ConnConfig::recv_window

use super::{Connection, NEVER, NO_LOOK};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// The number of looks in a window, unless the window comes in less than half of a round trip.
const LOOKS: u32 = 8;
/// A window is large enough when it has the bytes of so many round trips: the rate of a peer in slow
/// start doubles in the round trip that passes before it learns of a larger window.
const ENOUGH: u64 = 3;
/// A window that has the bytes of so many round trips shrinks.
const TOO_MUCH: u64 = 16;

/// The growth of a receive window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// The window without its growth.
    base: u32,
    /// Bytes by which the stack has let the window grow.
    held: u32,
    /// Bytes by which the connection would have it grow.
    wanted: u32,
    /// When the last look took place, or [`NEVER`], and `rcv_nxt` at that time.
    since: Instant,
    from: StreamPos,
}

impl Growth {
    fn new(base: u32) -> Growth {
        Growth { base, held: 0, wanted: 0, since: NEVER, from: StreamPos::START }
    }
}

impl Connection {
    /// Sets the first look, unless the window does not grow, or already is as large as the window
    /// field can express.
    pub(super) fn start_looks(&mut self) {
        let grows = self.hot.look_at != NO_LOOK && self.hot.recv_window < self.max_recv_window();
        self.hot.look_at = if grows { self.next_window_look() } else { NO_LOOK };
    }

    fn next_window_look(&self) -> StreamPos {
        self.hot.rcv_nxt + u64::from((self.hot.recv_window / LOOKS).max(1))
    }

    /// Looks whether the receive window is large enough.
    #[cold]
    #[inline(never)]
    pub(super) fn look_at_window(&mut self, now: Instant) {
        self.hot.look_at = self.next_window_look();
        let (window, next) = (self.hot.recv_window, self.hot.rcv_nxt);
        let (most, round) = (self.max_recv_window(), self.rto.min_rtt());
        let growth = self.rare().growth.get_or_insert_with(|| Growth::new(window));
        let (took, came) = (now - growth.since, next.since(growth.from));
        let first = growth.since == NEVER;
        // The bytes of one burst say nothing about a round trip.
        if !first && (took < round / 2 || took.is_zero()) {
            return;
        }
        (growth.since, growth.from) = (now, next);
        if first {
            return;
        }
        let a_round = in_round(came, took, round);
        let wide = u64::from(window);
        let want = if a_round.saturating_mul(ENOUGH) > wide {
            let want = wide.saturating_mul(2).max(a_round.saturating_mul(4));
            u32::try_from(want).unwrap_or(u32::MAX).min(most)
        } else if growth.held > 0 && a_round.saturating_mul(TOO_MUCH) < wide {
            (window / 2).max(growth.base)
        } else {
            return;
        };
        if want != window {
            growth.wanted = want - growth.base.min(want);
            self.hot.events.note();
        }
    }

    /// Returns the bytes that the connection lets its peer send ahead, as far as the right edge may
    /// move on.
    pub fn receive_window(&self) -> u32 {
        self.hot.recv_window
    }

    /// Lets the window of a quiet connection shrink to its first size.
    pub(super) fn rest_window(&mut self) {
        let Some(rare) = &mut self.cold.rare else { return };
        let Some(growth) = &mut rare.growth else { return };
        growth.since = NEVER;
        if growth.held > 0 {
            growth.wanted = 0;
            self.hot.events.note();
            return;
        }
        rare.growth = None;
        self.free_rare();
    }

    /// Returns true if the connection has made a note: it asks for another window, or has something
    /// to tell about the path. Clears the note.
    pub(crate) fn take_note(&mut self) -> bool {
        self.hot.events.take_note()
    }

    /// Returns the bytes by which the window has grown, and the bytes by which the connection would
    /// have it grow.
    pub(crate) fn window_growth(&self) -> (u32, u32) {
        let growth = self.cold.rare.as_ref().and_then(|r| r.growth);
        growth.map_or((0, 0), |g| (g.held, if self.hot.state.receives() { g.wanted } else { 0 }))
    }

    /// Sets the bytes by which the window has grown.
    pub(crate) fn grant_window(&mut self, bytes: u32) {
        let Some(growth) = self.cold.rare.as_mut().and_then(|r| r.growth.as_mut()) else { return };
        (growth.held, growth.wanted) = (bytes, bytes);
        if self.hot.look_at != NO_LOOK {
            let window = growth.base.saturating_add(bytes);
            self.hot.recv_window = self.limit_window(window);
        }
    }
}

/// Returns the bytes of a round trip, if `bytes` come in the time `took`.
fn in_round(bytes: u64, took: Duration, round: Duration) -> u64 {
    let all = u128::from(bytes).saturating_mul(round.as_nanos());
    u64::try_from(all / took.as_nanos().max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteQueue, ConnConfig, Flags, Segment, SeqNumber};

    const ROUND: Duration = Duration::from_millis(10);
    const KIB: u32 = 1024;

    /// Returns an established connection whose handshake took a [`ROUND`], with a window of 64 KiB.
    fn established() -> (Connection, Instant) {
        let cfg = ConnConfig {
            recv_window: 64 * KIB,
            recv_window_max: 1024 * KIB,
            timestamps: false,
            ..ConnConfig::default()
        };
        let start = Instant::from_millis(1000);
        let syn = Segment {
            seq: SeqNumber(0),
            flags: Flags::SYN,
            window: 1000,
            mss: Some(1460),
            window_scale: Some(7),
            ..Segment::default()
        };
        let mut c = Connection::accept(&cfg, start, SeqNumber(0), 0, &syn);
        assert!(c.poll_transmit(start, &ByteQueue::default()).is_some());
        let ack = Segment { seq: SeqNumber(1), ack: SeqNumber(1), flags: Flags::ACK, ..syn };
        let ack = Segment { mss: None, window_scale: None, ..ack };
        c.handle_segment(start + ROUND, &ack);
        assert_eq!(c.rto.min_rtt(), ROUND);
        (c, start + ROUND)
    }

    /// Receives `len` bytes, and acknowledges them.
    fn take(c: &mut Connection, now: Instant, len: u32) {
        let mut left = len;
        while left > 0 {
            let n = left.min(1024);
            let [a, b, d, e, ..] = c.rcv_nxt().0.to_le_bytes();
            let seq = SeqNumber(1).advance(u32::from_le_bytes([a, b, d, e]));
            let seg = Segment {
                seq,
                ack: SeqNumber(1),
                flags: Flags::ACK,
                window: 1000,
                len: n,
                ..Segment::default()
            };
            let p = c.handle_segment(now, &seg).payload.unwrap();
            c.accept_payload(now, p.pos, p.len);
            left -= n;
            while c.poll_transmit(now, &ByteQueue::default()).is_some() {}
        }
    }

    #[test]
    fn test_window_doubles_when_a_third_of_it_comes_in_a_round_trip() {
        // As much again, or the bytes of four round trips.
        for (bytes, wanted) in [(20, 0..=0), (23, 64..=64), (60, 160..=192)] {
            let (mut c, mut now) = established();
            for _ in 0..4 {
                now = now + ROUND;
                take(&mut c, now, bytes * KIB);
            }
            let (held, wants) = c.window_growth();
            assert_eq!((held, c.take_note()), (0, *wanted.start() > 0), "{bytes}");
            assert!(wanted.contains(&(wants / KIB)), "{bytes}: {wants}");
        }
    }

    #[test]
    fn test_burst_says_nothing_about_the_rate() {
        let (mut c, mut now) = established();
        for _ in 0..10 {
            // 48 KiB within three milliseconds, which several looks see, and a pause of nine round trips.
            for _ in 0..12 {
                now = now + ROUND / 40;
                take(&mut c, now, 4 * KIB);
            }
            now = now + 9 * ROUND;
        }
        assert!(!c.take_note(), "{:?}", c.window_growth());
    }

    #[test]
    fn test_window_that_is_far_too_large_shrinks_by_half_and_not_below_its_first_size() {
        let (mut c, mut now) = established();
        for _ in 0..4 {
            now = now + ROUND;
            take(&mut c, now, 60 * KIB);
        }
        assert!(c.take_note());
        c.grant_window(448 * KIB);
        let edge = c.hot.rcv_adv;
        let mut sizes = Vec::new();
        for _ in 0..600 {
            now = now + ROUND;
            take(&mut c, now, 2 * KIB);
            if c.take_note() {
                let (held, wanted) = c.window_growth();
                assert!(wanted < held);
                c.grant_window(wanted);
                sizes.push(c.hot.recv_window / KIB);
            }
            assert!(c.hot.rcv_adv >= edge, "the right edge went back");
        }
        assert_eq!(sizes, [256, 128, 64]);
        assert_eq!(c.window_growth(), (0, 0));
    }

    #[test]
    fn test_window_grows_no_more_once_the_owner_sets_it() {
        let (mut c, mut now) = established();
        c.set_recv_window(64 * KIB);
        for _ in 0..20 {
            now = now + ROUND;
            take(&mut c, now, 60 * KIB);
        }
        assert!(!c.take_note());
    }
}
