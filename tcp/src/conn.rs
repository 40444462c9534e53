//! A single TCP connection: from SYN to TIME-WAIT, without packets, clock or payload.
//!
//! Positions in both streams are 64-bit ([`StreamPos`]); sequence numbers exist only at the edge,
//! in segments. The SYN has no position, because the states stand for it. A FIN has the position
//! after the last byte:
//!
//! ```text
//!   sending   1         2          3          4          receiving   1          2          3
//!        -----|---------|----------|----------|-----            -----|----------|----------|-----
//!          snd_una   snd_next   snd_max   right edge              rcv_nxt   (ranges)    rcv_adv
//!
//!   1 oldest unacknowledged byte                           1 next byte expected in order
//!   2 next to send; below snd_max when sending again       2 accepted ahead of a gap
//!   3 highest sent, the SND.NXT of RFC 9293                3 right edge advertised; never moves
//!   4 snd_una + min(snd_wnd, congestion window)              left
//! ```
//!
//! This module does not implement urgent data (it ignores the pointer and delivers the bytes
//! like others) or Nagle's algorithm (it sends a record as soon as the windows allow).
#![deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)]

mod accurate;
mod ack;
mod challenge;
mod config;
mod congestion;
mod control;
mod ecn;
mod event;
mod growth;
mod handshake;
mod pacing;
mod path;
mod progress;
mod rack;
mod ranges;
mod receive;
mod recovery;
mod rto;
mod sack;
mod scoreboard;
mod send;
mod sequence;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod timers;
mod tlp;
mod user_timeout;

pub use config::{Congestion, ConnConfig, Ecn, Keepalive, Pacing, PathMtu, Patience};
pub(crate) use ecn::Wish;
pub use event::ConnEvent;
pub(crate) use handshake::{Answered, SynAcks, first_window, syn_ack};
pub(crate) use path::RAISE_AFTER;
pub use progress::Hindrance;
pub use state::State;
pub use stats::{ConnCounters, ConnStats};
pub use user_timeout::UserTimeoutOption;

use core::mem::offset_of;
use core::time::Duration;

use crate::{SackBlocks, SeqNumber};
use config::Settings;
use congestion::Window;
use ecn::{Ace, EcnState, Feedback};
use event::Events;
use growth::Growth;
use heddle_base::{Fetch, Instant, StreamPos};
use path::Search;
use progress::Progress;
use rack::{Rack, Timer};
use ranges::Ranges;
use rto::Rto;
use sack::Reports;
use scoreboard::Scoreboard;
use state::Input;
use stats::Tally;
use tlp::AckDelay;

/// The instant of a timer that is not running.
const NEVER: Instant = Instant::from_nanos(u64::MAX);
/// The position of the next look at a receive window that does not grow.
const NO_LOOK: StreamPos = StreamPos(u64::MAX);
/// The position of a FIN that is not known yet.
const NO_FIN: StreamPos = StreamPos(u64::MAX);

/// A TCP connection.
///
/// Calling order, all by the one thread that owns the connection:
///
/// 1. [`handle_segment`](Connection::handle_segment) for each segment received. When this call
///    reports payload, the owner calls [`accept_payload`](Connection::accept_payload) before the
///    next segment, or not at all; without that call the connection treats the bytes as lost on the
///    way.
/// 2. [`handle_timeout`](Connection::handle_timeout) when
///    [`poll_timeout`](Connection::poll_timeout) has passed.
/// 3. [`poll_event`](Connection::poll_event) until it returns `None`.
/// 4. [`poll_transmit`](Connection::poll_transmit) until it returns `None`, also after the owner
///    queued bytes, closed or aborted. To gather ACKs, handle all segments of a burst first.
///
/// The owner may drop the connection when its [`state`](Connection::state) is [`State::Closed`] and
/// `poll_transmit` returns `None` (an abort leaves a RST to send).
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Connection {
    hot: Hot,
    rto: Rto,
    /// The estimate of how long the peer holds back an ACK at most.
    ack_delay: AckDelay,
    cold: Cold,
}

/// The fields that every segment touches, in the order of their use: with many connections, each
/// line of memory that a segment needs comes from afar. A segment with data touches the first
/// fields, an acknowledgment those up to `cc` and the times after it, and a segment that is sent
/// nearly all.
#[derive(Clone, Debug)]
#[repr(C)]
struct Hot {
    state: State,
    /// True if both sides negotiated timestamps.
    ts_ok: bool,
    pending: Pending,
    /// True if accepted ranges, or a FIN, lie ahead of `rcv_nxt`.
    gaps: bool,
    /// With SACK: true if any outstanding byte is out of the ordinary. The connection then examines
    /// acknowledgments more closely.
    disorder: bool,
    /// True if both sides negotiated SACK.
    sack_ok: bool,
    /// True if ACKs carry a SACK option.
    sack_due: bool,
    snd_shift: u8,
    rcv_shift: u8,
    /// The number of ACKs of full segments that the connection still sends without delay, after a
    /// gap in the peer's stream.
    quick_acks: u8,
    /// The number of ACKs in a row that the connection has held back although no data went out in
    /// that time.
    vain_acks: u8,
    events: Events,
    /// The MSS of our own side.
    mss: u16,
    /// How long the connection holds an ACK back.
    delayed_ack_ns: u32,
    /// Sequence number of position 0 of the peer's stream.
    rcv_base: SeqNumber,
    recv_window: u32,
    /// Largest payload seen, at most our MSS: an estimate of the peer's full-sized segment.
    rcv_mss: u32,
    ts_recent: u32,
    /// Sequence number of position 0 of our stream.
    snd_base: SeqNumber,
    snd_wnd: u32,
    /// The largest window that the peer ever offered.
    max_wnd: u32,
    snd_wl1: SeqNumber,
    snd_wl2: SeqNumber,
    emss: u32,
    /// The purpose of the timer at `rtx_at`.
    timer: Timer,
    /// Without SACK: ACKs to send for segments that came ahead of a gap.
    dup_acks_owed: u8,
    /// The state of ECN.
    ecn: EcnState,
    /// The bits of ECN in all segments that we send: ECE while they echo a mark of congestion, or
    /// the count of marks if ECN is accurate.
    echo: Ace,

    rcv_nxt: StreamPos,
    rcv_adv: StreamPos,
    /// `rcv_nxt` of the last ACK sent: Last.ACK.sent of RFC 7323.
    last_ack: StreamPos,
    /// When the peer last sent an acceptable segment.
    last_rx: Instant,
    snd_una: StreamPos,
    snd_next: StreamPos,
    snd_max: StreamPos,
    snd_fin: StreamPos,
    /// Expiry of the retransmission or window probe timer.
    rtx_at: Instant,
    /// Expiry of the delayed ACK timer.
    ack_at: Instant,
    /// Expiry of FIN-WAIT-2 or TIME-WAIT. Before these states: the instant at which the connection
    /// next checks whether the peer is alive, or whether a bounded close makes progress.
    wait_at: Instant,
    cc: Window,

    ts_offset: u32,
    /// Expiries of the retransmission timer since the last progress.
    timeouts: u32,
    /// When `rcv_nxt` has reached this position, the connection looks whether the receive window is
    /// large enough; [`NO_LOOK`] where the window does not grow.
    look_at: StreamPos,
    /// When the peer last acknowledged new bytes, or else when bytes to acknowledge were first
    /// outstanding.
    progress_at: Instant,
    /// The segment timed for the round-trip estimate.
    timed: Timed,
    /// When data was last sent.
    last_tx: Instant,
    /// When the connection last reported a burst to the scoreboard.
    burst_at: Instant,
    /// Where the last segment of new data began.
    last_start: StreamPos,
    /// With SACK: bytes outstanding that are not in the pipe (RFC 6675 section 2). These are the
    /// SACKed or lost bytes, less the bytes sent again. 0 while there is no disorder.
    out_of_pipe: i64,
    /// Until when new data wait for their pace; [`NEVER`] while they do not wait.
    pace_at: Instant,
}

impl Hot {
    #[inline]
    fn delayed_ack(&self) -> Duration {
        Duration::from_nanos(self.delayed_ack_ns.into())
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

// The bytes that a segment of data touches, and those that all segments touch.
const _: () = assert!(offset_of!(Hot, cc) + Window::OPEN <= 5 * LINE / 2);
const _: () = assert!(Connection::HOT <= 13 * LINE / 2);

/// The fields that only openings, losses, timers and closings touch.
#[derive(Clone, Debug)]
struct Cold {
    set: Settings,
    active: bool,
    /// The owner called `close` before the connection was established.
    close_early: bool,
    /// The position of the peer's FIN, once it has arrived; [`NO_FIN`] before.
    rcv_fin: StreamPos,
    ranges: Ranges,
    reports: Reports,
    /// The SACK option of the segment that the connection is handling; empty for a segment without
    /// the option.
    sack_in: Option<Box<SackBlocks>>,
    board: Scoreboard,
    /// With DCTCP or accurate ECN: what to report about marks, and the counts.
    feedback: Option<Box<Feedback>>,
    rack: Rack,
    /// Timestamp clock at the last transmission of bytes that had been sent before.
    retransmit_ts: u32,
    /// True if both sides scale windows.
    scaling: bool,
    /// True if our SYN was sent at least once.
    syn_sent: bool,
    /// SYNs sent again because the timer expired.
    syn_retries: u8,
    /// Window probes since the window was last open, for their backoff.
    probes: u8,
    /// Keepalives sent since the peer last sent a segment.
    keepalives: u8,
    /// State that few connections have, or only for a while.
    rare: Option<Box<Rare>>,
    /// True if there is a search for the largest segment size that may send probes.
    searches: bool,
    /// A reset that answers an impossible ACK during the handshake: its sequence number and the
    /// timestamp to echo.
    reset_reply: (SeqNumber, Option<u32>),
    challenge_since: Instant,
    challenges: u16,
    counters: Tally,
}

/// The segment timed for the round-trip estimate: its end and when it was sent.
#[derive(Clone, Copy, Debug)]
struct Timed {
    end: StreamPos,
    /// [`NEVER`] while no segment is timed.
    at: Instant,
}

impl Timed {
    const NONE: Timed = Timed { end: StreamPos::START, at: NEVER };

    fn get(self) -> Option<(StreamPos, Instant)> {
        (self.at != NEVER).then_some((self.end, self.at))
    }
}

/// State that few connections have, or only for a while.
#[derive(Clone, Debug, Default)]
struct Rare {
    /// State of the progress rules: in use while the peer's window is shut, or the close is bounded.
    progress: Progress,
    /// The receive window's growth, once the peer has sent a part of a window.
    growth: Option<Growth>,
    /// The search for the largest segment size.
    search: Option<Search>,
}

impl Rare {
    fn is_unused(&self) -> bool {
        self.progress.is_over() && self.growth.is_none() && self.search.is_none()
    }
}

/// Segments to send regardless of new data; a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pending(u16);

impl Pending {
    const ACK: Pending = Pending(1);
    /// A retransmission of the segment at `snd_una`.
    const RETRANSMIT: Pending = Pending(2);
    /// A window probe.
    const PROBE: Pending = Pending(4);
    const SYN: Pending = Pending(8);
    const RESET: Pending = Pending(16);
    const RESET_REPLY: Pending = Pending(32);
    /// Retransmissions of the bytes that the scoreboard counts as lost.
    const REPAIR: Pending = Pending(64);
    /// A tail probe.
    const TAIL: Pending = Pending(128);
    /// A keepalive probe of a silent peer.
    const KEEPALIVE: Pending = Pending(256);
    /// Acknowledgments that report marks of congestion apart from others: see `ecn`.
    const ECHO: Pending = Pending(512);
    /// A probe of the path MTU.
    const MTU: Pending = Pending(1024);
    /// An ACK with the user timeout option.
    const USER_TIMEOUT: Pending = Pending(2048);
    /// The bits of segments that send data or a FIN.
    const DATA: Pending = Pending(2 | 4 | 64 | 128);
    /// The bits of segments that go before data.
    const CONTROL: Pending = Pending(8 | 16 | 32 | 256 | 512 | 2048);

    const fn any(self, of: Pending) -> bool {
        self.0 & of.0 != 0
    }

    fn set(&mut self, p: Pending) {
        self.0 |= p.0;
    }

    fn clear(&mut self, p: Pending) {
        self.0 &= !p.0;
    }

    /// Returns true if any bit of `p` was set, and clears the bits of `p`.
    fn take(&mut self, p: Pending) -> bool {
        let was = self.any(p);
        self.clear(p);
        was
    }
}

impl Connection {
    /// Bytes of a connection, from the first on, that segments touch.
    pub(crate) const HOT: usize = offset_of!(Connection, cold);

    /// Names the memory of a connection that segments touch, for a look ahead.
    #[inline]
    pub(crate) fn fetch(at: *const u8, fetch: impl Fetch) {
        fetch.bytes(at, Connection::HOT);
        // Each burst notes when it was sent.
        let board = offset_of!(Connection, cold) + offset_of!(Cold, board);
        fetch.bytes(at.wrapping_add(board), Scoreboard::BURST);
    }

    /// Returns true if an event waits, or a note for the stack.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.hot.events.is_empty()
    }

    /// Returns the next event, if one waits.
    pub fn poll_event(&mut self) -> Option<ConnEvent> {
        self.hot.events.pop()
    }

    /// Ends our direction: a FIN follows the bytes queued, and any bytes that the owner queues
    /// before the FIN is sent (the owner should queue none). The peer's direction continues until
    /// the peer's FIN.
    ///
    /// In SYN-SENT this call drops the connection ([`ConnEvent::Aborted`]). Closing twice does
    /// nothing.
    pub fn close(&mut self) {
        if self.hot.state == State::SynReceived {
            self.cold.close_early = true;
        }
        if self.enter(Input::Close) == Some(State::Closed) {
            self.finish(ConnEvent::Aborted);
        }
    }

    /// Ends the connection at once, with a RST where the peer may still send or wait for data, or
    /// for a FIN that was not sent (RFC 9293 section 3.10.5).
    pub fn abort(&mut self) {
        // On the wire, CLOSE-WAIT and FIN-WAIT-1 last until the FIN is sent.
        let owes_fin = self.hot.snd_max <= self.hot.snd_fin;
        let reset = owes_fin && matches!(self.hot.state, State::Closing | State::LastAck);
        let reset = reset
            || matches!(
                self.hot.state,
                State::SynReceived
                    | State::Established
                    | State::FinWait1
                    | State::FinWait2
                    | State::CloseWait
            );
        // The connection announced an orderly end when it entered TIME-WAIT.
        let told = self.hot.state == State::TimeWait;
        if self.enter(Input::Kill).is_none() {
            return;
        }
        self.stop();
        if !told {
            self.hot.events.push(ConnEvent::Aborted);
        }
        if reset {
            self.hot.pending.set(Pending::RESET);
        }
    }

    /// Changes the receive window offered from now on, for an owner that runs out of buffers or has
    /// buffers again; `0` closes the window. The right edge already advertised stays, so a smaller
    /// window takes effect as bytes arrive. The connection limits `bytes` to the most that the
    /// window scale can express, and does not let the window grow any more.
    pub fn set_recv_window(&mut self, bytes: u32) {
        self.hot.look_at = NO_LOOK;
        self.hot.recv_window = self.limit_window(bytes);
        // Report the new edge to the peer when it can move far enough to matter (RFC 9293 section
        // 3.8.6.2.2).
        let gain = self.window_gain();
        let shut = self.hot.rcv_adv == self.hot.rcv_nxt;
        let enough = if shut { self.window_step() } else { (self.hot.recv_window / 2).max(1) };
        if self.hot.state.receives() && gain >= u64::from(enough) {
            self.hot.pending.set(Pending::ACK);
        }
    }

    /// Probes the peer when it has been silent, or ([`None`]) never. This setting overrides
    /// [`ConnConfig::keepalive`] for this connection. The silence before this call counts.
    pub fn set_keepalive(&mut self, now: Instant, keepalive: Option<Keepalive>) {
        self.cold.set.set_keepalive(keepalive);
        self.cold.keepalives = 0;
        if matches!(self.hot.state, State::Established | State::CloseWait) {
            self.arm_keepalive(now);
        }
    }

    /// Sets from now on how long the connection tolerates a peer that makes no progress, whatever
    /// the [`ConnConfig`] said. The connection compares a limit that already runs with the new
    /// value at the next check: when it sends a probe or a segment again, or a quarter of the old
    /// [`ConnConfig::close_stall`] after the last check of a close. The connection tells the peer a new
    /// user timeout if [`ConnConfig::user_timeout_option`] says so.
    pub fn set_patience(&mut self, patience: Patience) {
        let before = self.own_advice();
        self.cold.set.set_patience(patience);
        if self.own_advice() != before {
            self.tell_user_timeout();
        }
    }

    /// Frees memory that past losses and bursts took and that the connection does not need now.
    /// Call this function on a connection that has been quiet for a while: a busy connection would
    /// soon allocate the memory again.
    pub fn trim(&mut self) {
        if self.hot.snd_una == self.hot.snd_max {
            self.cold.board.trim();
        }
        self.cold.ranges.trim();
        if self.cold.ranges.is_empty() && !self.hot.sack_due {
            self.cold.reports = Reports::default();
        }
        self.cold.sack_in = None;
        self.rest_window();
    }

    /// Frees the memory of [`Rare`], if nothing there is in use.
    fn free_rare(&mut self) {
        if self.cold.rare.as_ref().is_some_and(|r| r.is_unused()) {
            self.cold.rare = None;
        }
    }

    /// Returns the state that few connections have.
    fn rare(&mut self) -> &mut Rare {
        self.cold.rare.get_or_insert_default()
    }

    /// Returns the state of the connection (RFC 9293 section 3.3.2).
    pub fn state(&self) -> State {
        self.hot.state
    }

    /// Returns the effective send MSS: payload bytes of a full segment, without options. The value
    /// follows the path, from the start of the connection to its end.
    pub fn emss(&self) -> u32 {
        self.hot.emss
    }

    /// Returns the position of the oldest byte not acknowledged.
    pub fn snd_una(&self) -> StreamPos {
        self.hot.snd_una.min(self.hot.snd_fin)
    }

    /// Returns the position after the highest byte ever sent. RFC 9293 calls this position SND.NXT.
    /// The RFC has no name for the position from which transmission continues when bytes are sent
    /// again.
    pub fn snd_max(&self) -> StreamPos {
        self.hot.snd_max.min(self.hot.snd_fin)
    }

    /// Returns the position of the next byte expected from the peer. The owner has accepted all
    /// bytes before it.
    pub fn rcv_nxt(&self) -> StreamPos {
        self.hot.rcv_nxt.min(self.cold.rcv_fin)
    }

    /// Returns true if the owner has accepted bytes ahead of a gap, or the peer's FIN has come
    /// ahead of a gap.
    pub const fn has_gaps(&self) -> bool {
        self.hot.gaps
    }

    /// Returns how many bytes beyond `end`, the end of the queue, the connection could send now
    /// under the peer's window and the congestion window. The owner can use this value to make
    /// FPDUs just in time.
    pub fn send_room(&self, end: StreamPos) -> u64 {
        if matches!(self.hot.state, State::Established | State::CloseWait) {
            self.right_edge().since(end)
        } else {
            0
        }
    }

    /// Returns true if `other` is the peer's end of this connection: each end numbers its own
    /// stream as the other end learned from the SYN.
    pub(crate) fn is_other_end_of(&self, other: &Connection) -> bool {
        let (a, b) = (&self.hot, &other.hot);
        a.snd_base == b.rcv_base && b.snd_base == a.rcv_base
    }

    /// Returns a snapshot of the connection's measurements and counters.
    pub fn stats(&self) -> ConnStats {
        ConnStats {
            srtt: self.rto.srtt(),
            rttvar: self.rto.rttvar(),
            rto: self.rto.get(),
            cwnd: self.hot.cc.cwnd(),
            ssthresh: self.hot.cc.ssthresh(),
            in_flight: (self.hot.snd_next - self.hot.snd_una)
                .saturating_add_signed(self.hot.out_of_pipe.saturating_neg()),
            snd_wnd: self.hot.snd_wnd,
            counters: *self.cold.counters,
        }
    }

    /// Returns the counters of events so far.
    pub fn counters(&self) -> &ConnCounters {
        &self.cold.counters
    }

    /// Returns the last round trip that was handed on, in ns. Returns each measurement only once.
    #[inline(always)]
    pub(crate) fn take_round_trip(&mut self) -> Option<u32> {
        self.rto.take_fresh()
    }

    /// Applies the transition table. Returns the new state, or `None` when `input` means nothing in
    /// this state.
    fn enter(&mut self, input: Input) -> Option<State> {
        let next = state::transition(self.hot.state, input)?;
        self.hot.state = next;
        Some(next)
    }

    /// Ends the connection now and reports `event`.
    fn finish(&mut self, event: ConnEvent) {
        let _ = self.enter(Input::Kill);
        self.stop();
        self.hot.events.push(event);
    }

    /// Stops all timers and clears all segments waiting to be sent.
    fn stop(&mut self) {
        self.hot.pending = Pending::default();
        self.hot.sack_due = false;
        self.hot.rtx_at = NEVER;
        self.hot.ack_at = NEVER;
        self.hot.wait_at = NEVER;
        self.hot.pace_at = NEVER;
    }

    fn max_recv_window(&self) -> u32 {
        u32::from(u16::MAX) << self.hot.rcv_shift
    }

    /// Returns `bytes` limited and rounded to a value that the window field can express.
    fn limit_window(&self, bytes: u32) -> u32 {
        let unit = (1u32 << self.hot.rcv_shift) - 1;
        let aligned = if bytes > unit { bytes & !unit } else { bytes };
        aligned.min(self.max_recv_window())
    }
}
