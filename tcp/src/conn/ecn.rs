//! Explicit Congestion Notification (RFC 3168): the marks that routers set instead of dropping
//! packets, and their echoes.
//!
//! ```text
//!   sender                            router                           receiver
//!     new data, ECT(0)  ───────────▶   queue   ── CE ──────────────────────▶
//!     ◀──────────────────────────────────────────────────────── ACKs with ECE
//!     reduces its window
//!     next new data, with CWR  ────────────────────────────────────────────▶
//!     ◀─────────────────────────────────────────────────────── ACKs without ECE
//! ```
//!
//! Only the first transmission of data may be marked: not SYNs, bare ACKs, resets, retransmissions
//! nor probes, of which a loss would not show or a forged mark could not be told. A FIN goes unmarked
//! unless it goes with data.
//!
//! With DCTCP (RFC 8257 section 3.2) the receiver does not wait for CWR: each ACK says whether the
//! bytes before it were marked. Where marks change within a burst that one ACK would answer, the
//! connection owes an ACK for the bytes before the change ([`Echoes`]). The receiver does so if it
//! runs DCTCP itself, because nothing on the wire tells which algorithm the sender runs.

use arrayvec::ArrayVec;

use super::config::{Congestion, Ecn};
use super::state::State;
use super::{Connection, Pending};
use crate::{Flags, Segment, TxSegment};
use heddle_base::{Instant, StreamPos};

/// The agreement of the ends, and what the sender still has to say; a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EcnState(u8);

impl EcnState {
    /// Both ends use ECN.
    const ON: u8 = 1;
    /// The next new data carries CWR.
    const CWR: u8 = 2;
    /// Each ACK says whether the bytes before it were marked.
    const EXACT: u8 = 4;

    /// Returns true if both ends use ECN.
    #[inline]
    pub(super) fn is_on(self) -> bool {
        self.0 != 0
    }

    fn is_exact(self) -> bool {
        self.0 & EcnState::EXACT != 0
    }

    /// Returns true if a segment without a mark changes the `echo` of our ACKs.
    #[inline(always)]
    pub(super) fn awaits_change(self, echo: Flags) -> bool {
        self.0 >= EcnState::EXACT && echo.0 != 0
    }

    /// Records that the sender has reduced its congestion window, for whatever reason (RFC 3168
    /// section 6.1.2).
    #[inline]
    pub(super) fn window_reduced(&mut self) {
        if self.is_on() {
            self.0 |= EcnState::CWR;
        }
    }

    /// Marks a segment as capable of ECN if it carries new data and nothing else, and lets it say
    /// that the window was reduced.
    #[inline]
    pub(super) fn mark(&mut self, tx: &mut TxSegment) {
        if tx.retransmit || tx.len == 0 {
            return;
        }
        tx.ect = true;
        if self.0 & EcnState::CWR != 0 {
            self.0 &= !EcnState::CWR;
            tx.flags = tx.flags.with(Flags::CWR);
        }
    }
}

/// The bits of a SYN that ask for ECN.
const SETUP: Flags = Flags::ECE.with(Flags::CWR);

/// Returns true if `syn` asks for ECN.
pub(super) fn is_asked_for(syn: &Segment) -> bool {
    Flags(syn.flags.0 & SETUP.0) == SETUP
}

/// An acknowledgment that the connection owes: of all bytes before `upto`, with `echo`.
#[derive(Clone, Copy, Debug)]
struct Owed {
    upto: StreamPos,
    echo: Flags,
}

/// The acknowledgments that the connection owes, oldest first. Beyond this number, the changes of a
/// burst are reported together with later ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Echoes(ArrayVec<Owed, 16>);

impl Connection {
    /// Returns true if our SYN asks for ECN: only the first does (RFC 3168 section 6.1.1.1), because
    /// some middleboxes drop such SYNs.
    fn asks_for_ecn(&self) -> bool {
        self.cold.active && self.cold.set.ecn == Ecn::Request
    }

    /// Returns the bits of ECN for a SYN or SYN-ACK that goes out now.
    pub(super) fn ecn_setup(&mut self) -> Flags {
        if self.hot.state == State::SynReceived {
            return if self.hot.ecn.is_on() { Flags::ECE } else { Flags(0) };
        }
        if self.cold.syn_sent {
            self.cold.set.ecn = Ecn::Off;
        }
        if self.asks_for_ecn() { SETUP } else { Flags(0) }
    }

    /// Decides by the peer's SYN or SYN-ACK whether the connection uses ECN (RFC 3168 section
    /// 6.1.1).
    pub(super) fn negotiate_ecn(&mut self, syn: &Segment) {
        let bits = Flags(syn.flags.0 & SETUP.0);
        let agreed = match (syn.flags.has(Flags::ACK), self.cold.active) {
            (true, _) => bits == Flags::ECE && self.asks_for_ecn(),
            // A SYN that crosses ours, which must have asked too.
            (false, true) => bits == SETUP && self.asks_for_ecn(),
            (false, false) => bits == SETUP && self.cold.set.ecn != Ecn::Off,
        };
        if !agreed {
            return;
        }
        let exact = self.hot.cc.algorithm() == Congestion::Dctcp;
        self.hot.ecn = EcnState(EcnState::ON | if exact { EcnState::EXACT } else { 0 });
        self.hot.cc.use_ecn(self.hot.snd_una);
    }

    /// Looks at a repeated SYN: a peer that no longer asks for ECN does not use it.
    pub(super) fn note_own_syn(&mut self, syn: &Segment) {
        if !is_asked_for(syn) {
            self.hot.ecn = EcnState::default();
        }
    }

    /// Takes the mark of an acceptable segment, and the peer's report that it has reduced its
    /// window. Bare ACKs do not count: no peer sends them with a mark.
    pub(super) fn take_marks(&mut self, seg: &Segment) {
        if seg.len == 0 || !self.hot.state.receives() {
            return;
        }
        if seg.ce {
            self.cold.counters.ce_segments += 1;
        }
        let old = self.hot.echo;
        if self.hot.ecn.is_exact() {
            let new = if seg.ce { Flags::ECE } else { Flags(0) };
            if new != old {
                self.owe_echo(old);
                self.hot.echo = new;
                self.hot.pending.set(Pending::ACK);
            }
            return;
        }
        // CWR first (RFC 3168 section 6.1.3, erratum 3639).
        if seg.flags.has(Flags::CWR) {
            self.hot.echo = Flags(0);
        }
        if seg.ce {
            self.hot.echo = Flags::ECE;
            if old != Flags::ECE {
                self.hot.pending.set(Pending::ACK);
            }
        }
    }

    /// Records that the bytes since the last ACK came before the marks changed.
    fn owe_echo(&mut self, echo: Flags) {
        let upto = self.hot.rcv_nxt;
        let echoes = self.cold.echoes.get_or_insert_default();
        let last = echoes.0.last().map_or(self.hot.last_ack, |o| o.upto);
        if upto > last && echoes.0.try_push(Owed { upto, echo }).is_ok() {
            self.hot.pending.set(Pending::ECHO);
        }
    }

    /// Returns the next acknowledgment that the connection owes.
    #[cold]
    pub(super) fn owed_echo(&mut self, now: Instant) -> TxSegment {
        let owed = self.cold.echoes.as_mut().and_then(|e| e.0.pop_at(0));
        if self.cold.echoes.as_ref().is_none_or(|e| e.0.is_empty()) {
            self.hot.pending.clear(Pending::ECHO);
        }
        let pending = self.hot.pending;
        let mut tx = self.segment(now, self.ack_pos(), Flags::ACK);
        // The ACK of the bytes after the change follows.
        self.hot.pending = pending;
        self.hot.pending.set(Pending::ACK);
        if let Some(Owed { upto, echo }) = owed {
            tx.ack = self.rcv_seq_of(upto);
            tx.flags = Flags::ACK.with(echo);
            let behind = u32::try_from(self.hot.rcv_nxt - upto).unwrap_or(u32::MAX);
            let more = u16::try_from(behind >> self.hot.rcv_shift).unwrap_or(u16::MAX);
            tx.window = tx.window.saturating_add(more);
        }
        tx
    }

    /// Does the work of [`take_ack`](Connection::take_ack) for an acknowledgment that echoes a mark.
    #[cold]
    pub(super) fn take_echo(
        &mut self,
        now: Instant,
        seg: &Segment,
        advance: i64,
    ) -> Option<StreamPos> {
        self.cold.counters.ece_acks += 1;
        self.hot.cc.expect_echo();
        let acked = self.take_ack(now, seg, advance);
        let least = self.hot.cc.cwnd() <= self.hot.emss;
        if self.hot.cc.end_echo() {
            self.cold.counters.ecn_reductions += 1;
            self.hot.ecn.window_reduced();
            if least {
                // The window cannot shrink further, so the next segment waits for as long as the
                // retransmission timer would (RFC 3168 section 6.1.2).
                self.hot.pace_at = now + self.rto.get();
            }
        }
        acked
    }
}
