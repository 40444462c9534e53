//! Opening: active, passive and simultaneous, and the options that the SYNs negotiate.

use super::config::{MAX_DELAYED_ACK, MIN_MSS, Settings, nanos};
use super::congestion::Window;
use super::ecn::{self, Ace, EcnState, Wish};
use super::event::Events;
use super::rack::{Rack, Timer};
use super::ranges::Ranges;
use super::rto::Rto;
use super::sack::Reports;
use super::scoreboard::Scoreboard;
use super::state::{Input, State};
use super::tlp::AckDelay;
use super::user_timeout::advice_of;
use super::{Cold, ConnConfig, ConnEvent, Connection, Hot, NEVER, NO_FIN, NO_LOOK, Pending};
use super::{Tally, Timed};
use crate::{Flags, Segment, SeqNumber, Timestamps, TxSegment};
use core::time::Duration;
use heddle_base::{Instant, StreamPos};

/// The largest shift count (RFC 7323 section 2.3).
const MAX_SHIFT: u8 = 14;
/// The minimum of the retransmission timeout towards a peer without SACK. Towards such a peer the
/// connection has no tail probes and relies on timeouts, so this minimum is longer than common
/// peers delay an ACK.
const RTO_MIN_WITHOUT_SACK: Duration = Duration::from_millis(200);
/// How long a connection stays in TIME-WAIT before a new connection of ours takes its place: longer
/// than any tick of a peer's clock, and time to acknowledge the peer's FIN once more.
const REUSE_AFTER_NS: u64 = 1_000_000_000;
/// Bytes of the timestamps option with its padding.
const TIMESTAMPS_LEN: u16 = 12;

/// How the stack has answered a SYN before it made the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// When the last SYN-ACK went; `None` when the stack keeps no record of it.
    pub(crate) at: Option<Instant>,
    /// True if only one SYN-ACK went, so that the answer to it measures the round trip.
    pub(crate) once: bool,
    /// SYN-ACKs that went again because the timer expired.
    pub(crate) retries: u8,
    /// True if a SYN or SYN-ACK of this handshake had no bits of ECN after the first SYN had asked.
    pub(crate) bare: bool,
}

/// Which end sends the first SYN.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// This end.
    Active,
    /// The peer.
    Passive,
}

impl Connection {
    /// Active open: returns a connection whose first [`poll_transmit`](Connection::poll_transmit)
    /// returns a SYN numbered `iss`.
    ///
    /// `iss` must be unpredictable (RFC 6528). `ts_offset`, which the connection adds to the
    /// timestamp clock, should be unpredictable too (RFC 7323 section 7.1).
    pub fn connect(cfg: &ConnConfig, now: Instant, iss: SeqNumber, ts_offset: u32) -> Connection {
        Connection::new(cfg, now, iss, ts_offset, Opening::Active)
    }

    /// Passive open: returns a connection in SYN-RECEIVED that answers `syn`, a segment with SYN
    /// and neither ACK nor RST. The connection ignores payload or FIN of the SYN; the peer sends
    /// them again.
    pub fn accept(
        cfg: &ConnConfig,
        now: Instant,
        iss: SeqNumber,
        ts_offset: u32,
        syn: &Segment,
    ) -> Connection {
        let mut c = Connection::new(cfg, now, iss, ts_offset, Opening::Passive);
        c.hot.state = State::SynReceived;
        c.negotiate(now, syn);
        c
    }

    /// Does the work of [`accept`](Connection::accept) for a SYN that the stack has answered with
    /// [`syn_ack`] of the same values. The connection waits for the ACK and sends no SYN-ACK itself.
    pub(crate) fn accept_answered(
        cfg: &ConnConfig,
        now: Instant,
        iss: SeqNumber,
        ts_offset: u32,
        syn: &Segment,
        answered: Answered,
    ) -> Connection {
        let mut c = Connection::accept(cfg, now, iss, ts_offset, syn);
        c.hot.pending.clear(Pending::SYN);
        c.hot.rcv_adv = StreamPos(u64::from(first_window(cfg)));
        c.cold.syn_sent = true;
        c.cold.syn_retries = answered.retries;
        if answered.bare {
            c.hot.ecn.be_silent();
        }
        match answered.at {
            Some(at) if answered.once => c.hot.timed = Timed { end: StreamPos::START, at },
            Some(at) => c.cold.retransmit_ts = c.ts_clock(at),
            None => {}
        }
        c
    }

    fn new(
        cfg: &ConnConfig,
        now: Instant,
        iss: SeqNumber,
        ts_offset: u32,
        opening: Opening,
    ) -> Connection {
        let active = opening == Opening::Active;
        let set = Settings::new(cfg, active);
        let mss = cfg.mss.max(MIN_MSS);
        let grows = cfg.recv_window_max > cfg.recv_window;
        let rcv_shift = if cfg.window_scaling { scale_of(cfg) } else { 0 };
        let mut c = Connection {
            hot: Hot {
                state: State::SynSent,
                pending: Pending::SYN,
                ts_ok: false,
                gaps: false,
                sack_ok: false,
                sack_due: false,
                disorder: false,
                timer: Timer::Retransmit,
                snd_shift: 0,
                rcv_shift,
                quick_acks: 0,
                vain_acks: 0,
                events: Events::default(),
                mss,
                delayed_ack_ns: cfg.delayed_ack.min(MAX_DELAYED_ACK).subsec_nanos(),
                dup_acks_owed: 0,
                ecn: EcnState::default(),
                echo: Ace::default(),
                wait_at: NEVER,
                timeouts: 0,
                rcv_base: SeqNumber(0),
                rcv_nxt: StreamPos::START,
                rcv_adv: StreamPos::START,
                last_ack: StreamPos::START,
                recv_window: 0,
                rcv_mss: 1,
                ts_recent: 0,
                last_rx: now,
                ts_offset,
                snd_base: iss.advance(1),
                snd_una: StreamPos::START,
                snd_next: StreamPos::START,
                snd_max: StreamPos::START,
                snd_fin: NO_FIN,
                snd_wnd: 0,
                max_wnd: 0,
                snd_wl1: SeqNumber(0),
                snd_wl2: SeqNumber(0),
                emss: u32::from(mss.min(cfg.default_peer_mss.max(MIN_MSS))),
                cc: Window::new(u32::from(mss), cfg.congestion),
                out_of_pipe: 0,
                pace_at: NEVER,
                last_start: StreamPos::START,
                burst_at: NEVER,
                timed: Timed::NONE,
                look_at: if grows { StreamPos::START } else { NO_LOOK },
                rtx_at: NEVER,
                ack_at: NEVER,
                last_tx: now,
                progress_at: now,
            },
            rto: Rto::new(cfg.rto_initial, cfg.rto_min, cfg.rto_max),
            ack_delay: AckDelay::new(cfg.peer_ack_delay),
            cold: Cold {
                set,
                active,
                close_early: false,
                rcv_fin: NO_FIN,
                ranges: Ranges::default(),
                reports: Reports::default(),
                sack_in: None,
                board: Scoreboard::default(),
                feedback: None,
                rack: Rack::new(),
                retransmit_ts: 0,
                scaling: false,
                syn_sent: false,
                syn_retries: 0,
                probes: 0,
                keepalives: 0,
                rare: None,
                searches: false,
                reset_reply: (SeqNumber(0), None),
                challenge_since: now,
                challenges: 0,
                counters: Tally::default(),
            },
        };
        c.hot.recv_window = c.limit_window(cfg.recv_window);
        c
    }

    /// Takes the sequence number and the options of the peer's SYN.
    fn negotiate(&mut self, now: Instant, syn: &Segment) {
        let set = self.cold.set;
        let hot = &mut self.hot;
        hot.rcv_base = syn.seq.advance(1);
        hot.last_rx = now;
        if let (true, Some(ts)) = (set.timestamps, syn.timestamps) {
            hot.ts_ok = true;
            hot.ts_recent = ts.val;
        }
        match syn.window_scale {
            Some(shift) if set.window_scaling => {
                self.cold.scaling = true;
                hot.snd_shift = shift.min(MAX_SHIFT);
            }
            _ => hot.rcv_shift = 0,
        }
        hot.sack_ok = set.sack && syn.sack_permitted;
        if !hot.sack_ok {
            self.rto.raise_min(RTO_MIN_WITHOUT_SACK);
        }
        let mss = syn.mss.unwrap_or(set.default_peer_mss).max(MIN_MSS).min(hot.mss);
        let options = if hot.ts_ok { TIMESTAMPS_LEN } else { 0 };
        hot.emss = u32::from(mss - options);
        hot.cc = hot.cc.restarted(hot.emss);
        hot.snd_wnd = u32::from(syn.window);
        hot.max_wnd = hot.snd_wnd;
        hot.snd_wl1 = syn.seq;
        hot.snd_wl2 = if syn.flags.has(Flags::ACK) { syn.ack } else { hot.snd_base };
        self.hot.recv_window = self.limit_window(self.hot.recv_window);
        self.start_path();
        self.start_looks();
        self.negotiate_ecn(syn);
    }

    /// Returns the bytes of options in a segment with payload.
    pub(crate) fn options_len(&self) -> u16 {
        if self.hot.ts_ok { TIMESTAMPS_LEN } else { 0 }
    }

    /// Handles a segment in SYN-SENT (RFC 9293 section 3.10.7.3).
    pub(super) fn handle_syn_sent(&mut self, now: Instant, seg: &Segment) {
        let acked = seg.flags.has(Flags::ACK);
        if acked && seg.ack != self.hot.snd_base {
            self.cold.counters.bad_acks += 1;
            self.reply_reset(seg);
            return;
        }
        if seg.flags.has(Flags::RST) {
            // A reset answers our SYN only if it has an acceptable ACK.
            if acked {
                self.finish(ConnEvent::Refused);
            }
            return;
        }
        if !seg.flags.has(Flags::SYN) {
            return;
        }
        self.negotiate(now, seg);
        if acked {
            self.hot.pending.set(Pending::ACK);
            self.establish(now, seg, true);
        } else {
            // Simultaneous open: send our SYN again, now with an ACK.
            let _ = self.enter(Input::Syn);
            self.hot.pending.set(Pending::SYN);
            self.hot.timed = Timed::NONE;
        }
    }

    /// Establishes the connection: the peer acknowledged our SYN with `seg`. The window of `seg` is
    /// `unscaled` if `seg` was itself a SYN (RFC 7323 section 2.2).
    pub(super) fn establish(&mut self, now: Instant, seg: &Segment, unscaled: bool) {
        let _ = self.enter(Input::SynAcked);
        self.hot.events.push(ConnEvent::Connected);
        self.hot.pending.clear(Pending::SYN);
        self.hot.rtx_at = NEVER;
        self.hot.progress_at = now;
        self.hot.last_tx = now;
        if let Some((_, at)) = self.hot.timed.get() {
            self.rto.sample(now - at);
        }
        self.hot.timed = Timed::NONE;
        if self.cold.syn_retries > 0 {
            if let Some(rtt) = self.echoed_rtt(now, seg.timestamps) {
                self.rto.sample(rtt);
            }
            self.rto.after_lost_syn();
            self.hot.cc.syn_lost();
        }
        let shift = if unscaled { 0 } else { self.hot.snd_shift };
        self.hot.snd_wnd = u32::from(seg.window) << shift;
        self.hot.max_wnd = self.hot.snd_wnd;
        self.hot.snd_wl1 = seg.seq;
        self.hot.snd_wl2 = seg.ack;
        self.arm_keepalive(now);
        self.tell_user_timeout();
        if self.cold.close_early {
            let _ = self.enter(Input::Close);
        }
    }

    /// Answers a segment whose ACK is impossible during the handshake with a reset.
    pub(super) fn reply_reset(&mut self, seg: &Segment) {
        if seg.flags.has(Flags::RST) {
            return;
        }
        self.cold.reset_reply = (seg.ack, seg.timestamps.map(|t| t.val));
        self.hot.pending.set(Pending::RESET_REPLY);
    }

    /// Returns the sequence number beyond which a new connection of ours with the same addresses
    /// and ports begins, if it may take the place of this connection. Returns `None` unless this
    /// connection is in TIME-WAIT and has been for a second.
    ///
    /// The peer accepts the new SYN as new by RFC 6191: its timestamps run on from this connection,
    /// and its numbers lie beyond the last (RFC 9293 section 3.6.1). A peer that still waits for
    /// the last ACK answers the SYN with an ACK, which draws a reset, and accepts the SYN when it
    /// comes again.
    pub(crate) fn reusable(&self, now: Instant) -> Option<SeqNumber> {
        let over_since = self.hot.wait_at.as_nanos().checked_sub(nanos(self.cold.set.time_wait()));
        let reusable = self.hot.state == State::TimeWait
            && self.hot.ts_ok
            && over_since.is_some_and(|at| now.as_nanos() >= at.saturating_add(REUSE_AFTER_NS));
        reusable.then(|| self.snd_end())
    }

    /// Returns the sequence number after the last number sent, a FIN's included.
    pub(crate) fn snd_end(&self) -> SeqNumber {
        self.snd_seq(self.hot.snd_max)
    }

    /// Returns true if `syn`, received for the addresses of this connection, may start a new
    /// connection in its place: this connection is in TIME-WAIT, and `syn` is newer than everything
    /// that the peer sent before, by its timestamp or else by its sequence number (RFC 9293 section
    /// 3.6.1, RFC 6191). Where only the new connection has timestamps, they keep out segments of this
    /// connection, which have none, so that any number is new.
    pub fn may_be_replaced_by(&self, syn: &Segment) -> bool {
        let bare =
            syn.flags.has(Flags::SYN) && !syn.flags.has(Flags::ACK) && !syn.flags.has(Flags::RST);
        if self.hot.state != State::TimeWait || !bare {
            return false;
        }
        let newer_seq = syn.seq.after(self.rcv_seq());
        match syn.timestamps {
            Some(ts) if self.hot.ts_ok => {
                let age = ts.val.wrapping_sub(self.hot.ts_recent).cast_signed();
                age > 0 || (age == 0 && newer_seq)
            }
            Some(_) if self.cold.set.timestamps => true,
            _ => newer_seq,
        }
    }
}

/// Returns the SYN-ACK with which a connection that [`Connection::accept`] makes of the same values
/// answers `syn` after `before`, the answers so far. Its timestamp is `clock`, which has the
/// connection's offset.
pub(crate) fn syn_ack(
    cfg: &ConnConfig,
    syn: &Segment,
    iss: SeqNumber,
    clock: u32,
    before: SynAcks,
) -> TxSegment {
    let scaling = cfg.window_scaling && syn.window_scale.is_some();
    let wish = Wish::of(syn).granted(cfg.ecn);
    let ecn = wish.answer(syn.ecn, before.expired);
    let timestamps = syn.timestamps.filter(|_| cfg.timestamps);
    TxSegment {
        seq: iss,
        ack: syn.seq.advance(1),
        flags: Flags::SYN.with(Flags::ACK).with(ecn),
        window: first_window(cfg),
        mss: Some(cfg.mss.max(MIN_MSS)),
        window_scale: scaling.then(|| scale_of(cfg)),
        sack_permitted: cfg.sack && syn.sack_permitted,
        timestamps: timestamps.map(|ts| Timestamps { val: clock, ecr: ts.val }),
        counts: (wish == Wish::Accurate && before.is_none()).then_some(ecn::FIRST_COUNTS),
        user_timeout: advice_of(cfg.user_timeout_option, cfg.user_timeout)
            .filter(|_| before.is_none()),
        ..TxSegment::default()
    }
}

/// The SYN-ACKs that a half-open connection has sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SynAcks {
    /// SYN-ACKs that went because the timer expired.
    pub(crate) expired: u8,
    /// True if one went because the SYN came again.
    pub(crate) repeated: bool,
}

impl SynAcks {
    fn is_none(self) -> bool {
        self.expired == 0 && !self.repeated
    }
}

/// Returns the window of a SYN-ACK, which no end scales.
pub(crate) fn first_window(cfg: &ConnConfig) -> u16 {
    // The connection rounds its window to its unit, whether the peer scales or not.
    let unit = if cfg.window_scaling { (1u32 << scale_of(cfg)) - 1 } else { 0 };
    let window = if cfg.recv_window > unit { cfg.recv_window & !unit } else { cfg.recv_window };
    u16::try_from(window).unwrap_or(u16::MAX)
}

/// Returns the shift count of our window field: enough for the first window, and for the largest if
/// windows grow.
fn scale_of(cfg: &ConnConfig) -> u8 {
    shift_for(cfg.recv_window).max(shift_up_to(cfg.recv_window_max))
}

/// Returns the largest shift count with which the window field expresses no more than `window`.
fn shift_up_to(window: u32) -> u8 {
    let units = window / u32::from(u16::MAX);
    narrow(units.checked_ilog2().unwrap_or(0))
}

/// Returns the least shift count with which `window` fits the window field.
fn shift_for(window: u32) -> u8 {
    let bits = u32::BITS - window.leading_zeros();
    narrow(bits.saturating_sub(u16::BITS))
}

/// Returns a shift count as the option can say it.
fn narrow(shift: u32) -> u8 {
    u8::try_from(shift).unwrap_or(MAX_SHIFT).min(MAX_SHIFT)
}
