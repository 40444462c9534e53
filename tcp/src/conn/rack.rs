//! Loss detection by time: RACK (RFC 8985) over the [scoreboard](super::scoreboard), and the steps
//! that undo a wrong detection.
//!
//! A connection uses RACK when both sides permitted SACK. Without SACK, duplicate ACKs and NewReno
//! detect loss (see `ack` and `congestion`). The work is spread over four files: this file has the
//! state and judges loss, `recovery` handles acknowledgments and sends lost bytes again, `tlp` has
//! the tail loss probe and the single timer, and `scoreboard` holds the knowledge of each byte.
//!
//! | phase | entered when | sends | left when |
//! |---|---|---|---|
//! | `Open` | | new data up to cwnd | |
//! | `Recovery` | RACK finds a loss | lost bytes, then new data, by PRR | `until` is acknowledged |
//! | `Loss` | the retransmission timer expires | bytes not SACKed, in slow start | likewise |
//!
//! PRR is proportional rate reduction; `until` is the end of the bytes that were outstanding when
//! the phase began.
//!
//! The connection detects a spurious timeout by the echoed timestamp and undoes it (RFC 3522). The
//! connection also undoes a recovery all of whose retransmissions turn out to have been needless.
//!
//! # Invariants between calls
//!
//! The connection knows the positions in its stream, the scoreboard knows the state of each byte,
//! and each relies on the other:
//!
//! ```text
//!             |<------------------------- outstanding -------------------------->|
//!           snd_una            repaired            lost_below                 snd_next
//!   ----------|---RRRR---####----|----LLLL---######----|----....---####---......|------
//!              retransmitted       lost, to be sent         sent once, in the
//!              or, lost once         again                  network
//!              more, in
//!              lost_retransmissions
//!   #### SACKed
//! ```
//!
//! 1. `snd_una <= snd_next <= snd_max`. The scoreboard describes `[snd_una, snd_next)`. While
//!    `snd_next < snd_max` the connection sends everything anew (`rewind`), and the scoreboard has
//!    forgotten the bytes beyond `snd_next`.
//! 2. SACKed ranges lie inside `(snd_una, snd_next)`. `snd_una` itself is never SACKed: a block
//!    that claims this byte contradicts the acknowledgment beside it. The connection therefore
//!    always has bytes to send again when the timer expires.
//! 3. Each byte of `[snd_una, repaired)` is SACKed, or in exactly one of `retransmitted` and
//!    `lost_retransmissions`. Both lists lie below `repaired`, and no byte in them is SACKed.
//! 4. Bytes of `[repaired, lost_below)` are SACKed or lost; bytes above both marks are SACKed or in
//!    the network. `lost_below` falls below `repaired` only when the connection undoes a recovery:
//!    then bytes are in the network twice.
//! 5. `out_of_pipe` is `snd_next - snd_una` less the scoreboard's `pipe`. The connection keeps this
//!    value so that sending new data costs nothing.
//! 6. `disorder` is set while any of these holds: the phase is not `Open`, a tail loss probe is
//!    outstanding, or a byte is SACKed, lost or sent again. While `disorder` is not set, header
//!    prediction handles acknowledgments and the connection does not report them to the scoreboard.
//! 7. While bytes are outstanding that may be sent, a timer runs or a retransmission is pending: no
//!    peer, whatever it reports, makes the connection wait in silence.
//!
//! `Connection::check_invariants` (tests only) checks a connection against this list after every
//! step of the property tests and of the runs of two connections.

use super::Connection;
use super::NEVER;
use super::ranges::Range;
use super::tlp::TailProbe;
use crate::Segment;
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// Recoveries without D-SACK after which the reordering window shrinks again (RFC 8985 section 6.2,
/// step 4).
const REORDERING_PERSISTS: u8 = 16;

/// The phase of loss recovery (see the table of the module).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Recovery,
    Loss,
}

/// The purpose of the timer at `rtx_at`: one timer serves all purposes (RFC 8985 section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The connection sends a retransmission, or a window probe.
    Retransmit,
    /// The scoreboard may find a hole lost.
    Reordering,
    /// The connection sends a tail loss probe.
    Tail,
}

/// The evidence by which a reduction of the congestion window may turn out to be a mistake.
#[derive(Clone, Copy, Debug)]
pub(super) struct Episode {
    /// Bytes sent again in this episode.
    retransmitted: u32,
    /// Retransmitted bytes that the peer reported as duplicates.
    needless: u32,
    /// The end of the last of the bytes sent again.
    again_end: StreamPos,
    /// Timestamp clock at the timeout, until the first acknowledgment after it.
    timeout_ts: Option<u32>,
}

impl Episode {
    /// Records that the connection sends `range` again.
    pub(super) fn note_retransmission(&mut self, range: Range) {
        self.retransmitted = self.retransmitted.saturating_add(bytes(range));
        self.again_end = self.again_end.max(range.end);
    }

    /// Returns true if the peer may have `range` twice because the connection sent it again. Beyond
    /// the bytes sent again, the network has made the copy, which says nothing about the episode.
    fn sent_again(&self, range: Range) -> bool {
        self.retransmitted > 0 && range.end <= self.again_end
    }
}

/// Returns the length of a range of bytes in flight, which are fewer than 4 GiB.
fn bytes(range: Range) -> u32 {
    u32::try_from(range.len()).unwrap_or(u32::MAX)
}

/// State of RACK-TLP apart from the scoreboard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    pub(super) phase: Phase,
    /// The position that the peer must acknowledge before the phase ends.
    pub(super) until: StreamPos,
    /// When the retransmission timer expires, whatever purpose the timer at `rtx_at` has now.
    pub(super) rto_at: Instant,
    pub(super) tail: Option<TailProbe>,
    pub(super) episode: Option<Episode>,
    reordering_seen: bool,
    /// RACK.reo_wnd_mult.
    reordering_mult: u8,
    /// RACK.reo_wnd_persist.
    reordering_persists: u8,
    /// The multiplier grows once per round trip: not before the peer acknowledges this position.
    reordering_round: StreamPos,
}

impl Rack {
    pub(super) fn new() -> Rack {
        Rack {
            phase: Phase::Open,
            until: StreamPos::START,
            rto_at: NEVER,
            tail: None,
            episode: None,
            reordering_seen: false,
            reordering_mult: 1,
            reordering_persists: REORDERING_PERSISTS,
            reordering_round: StreamPos::START,
        }
    }

    /// Records whether bytes sent once arrived after bytes that were sent later.
    pub(super) fn note_order(&mut self, reordered: bool) {
        self.reordering_seen |= reordered;
    }

    /// Ends a recovery. After some recoveries the reordering window may shrink again.
    pub(super) fn end_phase(&mut self) {
        self.phase = Phase::Open;
        self.reordering_persists = self.reordering_persists.saturating_sub(1);
        if self.reordering_persists == 0 {
            self.reordering_mult = 1;
        }
    }
}

impl Connection {
    /// Returns the reordering window (RFC 8985 section 6.2, step 4).
    pub(super) fn reordering_window(&self) -> Duration {
        let rack = &self.cold.rack;
        let certain =
            rack.phase != Phase::Open || self.cold.board.past_dup_threshold(self.hot.emss);
        if !rack.reordering_seen && certain {
            return Duration::ZERO;
        }
        let window = self.rto.min_rtt() / 4 * u32::from(rack.reordering_mult);
        self.rto.srtt().map_or(window, |srtt| window.min(srtt))
    }

    /// Saves the congestion window before a reduction, caused by a timeout at `timeout_ts` or else
    /// by a recovery.
    pub(super) fn start_episode(&mut self, timeout_ts: Option<u32>) {
        // Undoing a timeout in the middle of a recovery undoes the recovery too.
        let before = self.cold.rack.episode.filter(|_| self.cold.rack.phase != Phase::Open);
        self.hot.cc.save(before.is_some());
        self.cold.rack.episode = Some(Episode {
            retransmitted: before.map_or(0, |e| e.retransmitted),
            again_end: before.map_or(StreamPos::START, |e| e.again_end),
            needless: before.map_or(0, |e| e.needless),
            timeout_ts,
        });
    }

    /// Returns true if `seg`, the first acknowledgment after a timeout, answers a segment sent before
    /// the timeout, which was a mistake then (RFC 3522).
    pub(super) fn answers_before_timeout(&self, seg: &Segment) -> bool {
        let at = self.cold.rack.episode.and_then(|e| e.timeout_ts);
        match (at, seg.timestamps) {
            (Some(at), Some(ts)) => {
                self.hot.ts_ok
                    && self.cold.rack.phase == Phase::Loss
                    && ts.ecr.wrapping_sub(at).cast_signed() < 0
            }
            _ => false,
        }
    }

    /// Records that the first acknowledgment after a timeout does not show that it was a mistake: no
    /// later one can.
    pub(super) fn keep_timeout(&mut self) {
        if let Some(e) = &mut self.cold.rack.episode {
            e.timeout_ts = None;
        }
    }

    /// Handles a D-SACK that reports `range`.
    pub(super) fn on_duplicate(&mut self, now: Instant, range: Range) {
        self.cold.counters.spurious_retransmits += 1;
        let una = self.hot.snd_una;
        let rack = &mut self.cold.rack;
        if rack.tail.is_none() && una >= rack.reordering_round {
            rack.reordering_mult = rack.reordering_mult.saturating_add(1);
            rack.reordering_round = self.hot.snd_max;
        }
        rack.reordering_persists = REORDERING_PERSISTS;
        if let Some(e) = &mut rack.episode
            && e.sent_again(range)
        {
            e.needless = e.needless.saturating_add(bytes(range));
            if e.needless >= e.retransmitted {
                self.undo(now);
            }
        }
    }

    /// Undoes a reduction of the congestion window that was a mistake.
    pub(super) fn undo(&mut self, now: Instant) {
        if self.cold.rack.episode.take().is_none() {
            return;
        }
        self.cold.counters.recoveries_undone += 1;
        self.hot.cc.undo();
        if self.cold.rack.phase != Phase::Open {
            self.cold.rack.phase = Phase::Open;
            self.cold.board.lose_nothing(self.hot.snd_una, now);
        }
    }
}
