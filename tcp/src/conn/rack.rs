//! Loss detection by time: RACK (RFC 8985) over the [scoreboard](super::scoreboard), and what is
//! undone when it was wrong.
//!
//! Used when both sides permitted SACK; without it, duplicate ACKs and NewReno do what they can
//! (see `ack` and `congestion`). The work is spread over four files: here stands the state and how
//! loss is judged, in `recovery` what an acknowledgment does and what is sent again, in `tlp` the
//! tail loss probe and the one timer, in `scoreboard` what is known of each byte.
//!
//! | phase | entered | sends | left |
//! |---|---|---|---|
//! | `Open` | | new data up to cwnd | |
//! | `Recovery` | RACK finds a loss | what is lost, then new data, by proportional rate reduction | all outstanding at its beginning is acknowledged |
//! | `Loss` | the retransmission timer expires | everything not SACKed, in slow start | likewise |
//!
//! A timeout that is spurious is found by the echoed timestamp and undone (RFC 3522); so is a
//! recovery all of whose retransmissions turn out to have been needless.
//!
//! # What holds between calls
//!
//! The connection knows where its stream stands, the scoreboard what became of the bytes, and each
//! relies on the other:
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
//! 1. `snd_una <= snd_next <= snd_max`. The scoreboard speaks of `[snd_una, snd_next)`; while
//!    `snd_next < snd_max` everything is being sent anew (`rewind`), and what lies beyond is
//!    forgotten.
//! 2. SACKed ranges lie inside `(snd_una, snd_next)`, `snd_una` itself never being SACKed: a block
//!    that claims it contradicts the acknowledgment beside it. So there is always something to
//!    send again when the timer expires.
//! 3. Each byte of `[snd_una, repaired)` is SACKed, or in exactly one of `retransmitted` and
//!    `lost_retransmissions`; both lie below `repaired`, and no byte in them is SACKed.
//! 4. Bytes of `[repaired, lost_below)` are SACKed or lost; those above both marks are SACKed or in
//!    the network. `lost_below` falls behind `repaired` only when a recovery is undone: then bytes
//!    are in the network twice.
//! 5. `out_of_pipe`, kept in the connection so that sending new data costs nothing, is
//!    `snd_next - snd_una` less the scoreboard's `pipe`.
//! 6. `disorder` is set while anything of the above is not plain: a phase other than `Open`, a
//!    tail loss probe outstanding, a byte SACKed, lost or sent again. While it is not set, acknowledgments go by
//!    header prediction and the scoreboard is not told of them.
//! 7. While something is outstanding that may be sent, a timer runs or a retransmission is pending:
//!    no peer, whatever it reports, makes the connection wait in silence.
//!
//! `Connection::check_invariants` (tests only) holds a connection against this list after every
//! step of the property tests and of the runs of two connections.

use super::Connection;
use super::NEVER;
use super::ranges::Range;
use super::tlp::{AckDelay, TailProbe};
use crate::Segment;
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// Recoveries without D-SACK after which the reordering window shrinks again (RFC 8985 section 6.2,
/// step 4).
const REORDERING_PERSISTS: u8 = 16;

/// What is being done about losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Recovery,
    Loss,
}

/// What the timer at `rtx_at` is for: one timer serves all (RFC 8985 section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// Retransmission, or a window probe.
    Retransmit,
    /// A hole may turn out lost.
    Reordering,
    /// A tail loss probe.
    Tail,
}

/// What to restore if a reduction of the congestion window was a mistake.
#[derive(Clone, Copy, Debug)]
pub(super) struct Episode {
    cwnd: u32,
    ssthresh: u32,
    /// Bytes sent again in it.
    pub(super) retransmitted: u64,
    /// Of those, bytes the peer reported as duplicates.
    needless: u64,
    /// Timestamp clock at the timeout, until the first acknowledgment after it.
    timeout_ts: Option<u32>,
}

/// State of RACK-TLP apart from the scoreboard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    pub(super) phase: Phase,
    /// What must be acknowledged before the phase ends.
    pub(super) until: StreamPos,
    /// When the retransmission timer expires, whatever the timer is set to now.
    pub(super) rto_at: Instant,
    pub(super) tail: Option<TailProbe>,
    pub(super) episode: Option<Episode>,
    /// How long the peer is believed to hold back an ACK at most.
    pub(super) ack_delay: AckDelay,
    reordering_seen: bool,
    /// RACK.reo_wnd_mult.
    reordering_mult: u8,
    /// RACK.reo_wnd_persist.
    reordering_persists: u8,
    /// The multiplier grows once per round trip: not before this is acknowledged.
    reordering_round: StreamPos,
}

impl Rack {
    pub(super) fn new(ack_delay: Duration) -> Rack {
        Rack {
            phase: Phase::Open,
            until: StreamPos::START,
            rto_at: NEVER,
            tail: None,
            episode: None,
            ack_delay: AckDelay::new(ack_delay),
            reordering_seen: false,
            reordering_mult: 1,
            reordering_persists: REORDERING_PERSISTS,
            reordering_round: StreamPos::START,
        }
    }

    /// Bytes sent once arrived behind bytes sent later, or did not.
    pub(super) fn note_order(&mut self, reordered: bool) {
        self.reordering_seen |= reordered;
    }

    /// A recovery is over: the reordering window may shrink again after some of them.
    pub(super) fn end_phase(&mut self) {
        self.phase = Phase::Open;
        self.reordering_persists = self.reordering_persists.saturating_sub(1);
        if self.reordering_persists == 0 {
            self.reordering_mult = 1;
        }
    }
}

impl Connection {
    /// RFC 8985 section 6.2, step 4.
    pub(super) fn reordering_window(&self) -> Duration {
        let rack = &self.cold.rack;
        let certain =
            rack.phase != Phase::Open || self.cold.board.past_dup_threshold(self.hot.emss);
        if !rack.reordering_seen && certain {
            return Duration::ZERO;
        }
        let window = self.cold.rto.min_rtt() / 4 * u32::from(rack.reordering_mult);
        self.cold.rto.srtt().map_or(window, |srtt| window.min(srtt))
    }

    /// The congestion window is about to be reduced, by a timeout at `timeout_ts` or else by a
    /// recovery.
    pub(super) fn start_episode(&mut self, timeout_ts: Option<u32>) {
        let (cwnd, ssthresh) = (self.hot.cc.cwnd(), self.hot.cc.ssthresh());
        // What a timeout in the middle of a recovery undoes is the recovery too.
        let before = self.cold.rack.episode.filter(|_| self.cold.rack.phase != Phase::Open);
        self.cold.rack.episode = Some(Episode {
            cwnd: before.map_or(cwnd, |e| e.cwnd),
            ssthresh: before.map_or(ssthresh, |e| e.ssthresh),
            retransmitted: before.map_or(0, |e| e.retransmitted),
            needless: before.map_or(0, |e| e.needless),
            timeout_ts,
        });
    }

    /// The first acknowledgment after a timeout: does it answer what was sent before (RFC 3522)?
    pub(super) fn check_timeout(&mut self, now: Instant, seg: &Segment) {
        let Some(e) = &mut self.cold.rack.episode else { return };
        if let (Some(at), Some(ts)) = (e.timeout_ts.take(), seg.timestamps)
            && self.hot.ts_ok
            && self.cold.rack.phase == Phase::Loss
            && ts.ecr.wrapping_sub(at).cast_signed() < 0
        {
            self.cold.counters.spurious_timeouts += 1;
            self.undo(now);
        }
    }

    /// A D-SACK reports `range`.
    pub(super) fn on_duplicate(&mut self, now: Instant, range: Range) {
        self.cold.counters.spurious_retransmits += 1;
        let una = self.hot.snd_una;
        let rack = &mut self.cold.rack;
        if rack.tail.is_none() && una >= rack.reordering_round {
            rack.reordering_mult = rack.reordering_mult.saturating_add(1);
            rack.reordering_round = self.hot.snd_max;
        }
        rack.reordering_persists = REORDERING_PERSISTS;
        if let Some(e) = &mut rack.episode {
            e.needless += range.len();
            if e.retransmitted > 0 && e.needless >= e.retransmitted {
                self.undo(now);
            }
        }
    }

    /// The congestion window was reduced by mistake.
    fn undo(&mut self, now: Instant) {
        let Some(e) = self.cold.rack.episode.take() else { return };
        self.cold.counters.recoveries_undone += 1;
        self.hot.cc.undo(e.cwnd, e.ssthresh);
        if self.cold.rack.phase != Phase::Open {
            self.cold.rack.phase = Phase::Open;
            self.cold.board.lose_nothing(self.hot.snd_una, now);
        }
    }
}
