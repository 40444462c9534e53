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
//! connection owes an ACK for the bytes before the change ([`Feedback`]). The receiver does so if it
//! runs DCTCP itself, because nothing on the wire tells which algorithm the sender runs.
//!
//! Where both ends agree on accurate feedback (RFC 9768), every segment counts the marks instead: see
//! `accurate`. This module has the agreement on either, and on none.

use arrayvec::ArrayVec;

use super::accurate::Accurate;
use super::config::{Congestion, Ecn};
use super::sequence::shifted;
use super::state::State;
use super::{Connection, Pending};
use crate::{ByteCounts, Codepoint, Flags, Segment, TxSegment};
use heddle_base::{Instant, StreamPos};

/// The count of marks in SYN-less segments after this many were sent and none was marked: r.cep and
/// s.cep of RFC 9768 section 3.2.1.
pub(super) const FIRST_CE: u32 = 5;
/// The AccECN option before any byte has arrived.
pub(super) const FIRST_COUNTS: ByteCounts =
    ByteCounts { reversed: false, fields: [1, 0, 1], len: 3 };
/// From this retransmission on, a SYN or SYN-ACK of a handshake with accurate ECN has no bits of ECN,
/// because something on the path may drop segments that have them (RFC 9768 sections 3.1.4.1 and
/// 3.2.3.2.2).
const BARE_FROM: u8 = 2;

/// The bits AE, CWR and ECE of a segment as a number: the field ACE (RFC 9768 section 3.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ace(pub(super) u8);

impl Ace {
    const SHIFT: u32 = Flags::ACE.0.trailing_zeros();
    const ECE: Ace = Ace(1);

    /// Returns the field of a segment with these bits.
    #[inline(always)]
    pub(super) fn of(flags: Flags) -> Ace {
        let [ace, _] = ((flags.0 & Flags::ACE.0) >> Ace::SHIFT).to_le_bytes();
        Ace(ace)
    }

    /// Returns the field that says `count`.
    pub(super) fn of_count(count: u32) -> Ace {
        let [low, ..] = count.to_le_bytes();
        Ace(low & 7)
    }

    /// Returns the field with which an end of a handshake reports the codepoint of a SYN or SYN-ACK
    /// (RFC 9768, tables 2 and 3).
    pub(super) fn of_handshake(arrived: Codepoint) -> Ace {
        Ace(match arrived {
            Codepoint::CE => 0b110,
            Codepoint::ECT_0 => 0b100,
            Codepoint::ECT_1 => 0b011,
            _ => 0b010,
        })
    }

    #[inline(always)]
    pub(super) fn flags(self) -> Flags {
        Flags(u16::from(self.0) << Ace::SHIFT)
    }
}

/// The feedback that a SYN asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    None,
    /// Echoes of marks (RFC 3168).
    Classic,
    /// Counts of marks (RFC 9768).
    Accurate,
}

impl Wish {
    /// Returns the wish of `syn`. Combinations of bits that mean nothing yet ask for accurate feedback
    /// (RFC 9768 section 3.1.3).
    pub(crate) fn of(syn: &Segment) -> Wish {
        match Ace::of(syn.flags).0 {
            0b000 => Wish::None,
            0b011 => Wish::Classic,
            _ => Wish::Accurate,
        }
    }

    /// Returns the part of the wish that a setting grants.
    pub(crate) fn granted(self, ecn: Ecn) -> Wish {
        if ecn == Ecn::Off { Wish::None } else { self }
    }

    /// Returns the bits of ECN in a SYN-ACK to a SYN that came with `arrived`, after the timer has
    /// expired so many times.
    pub(crate) fn answer(self, arrived: Codepoint, expired: u8) -> Flags {
        match self {
            Wish::Classic => Flags::ECE,
            Wish::Accurate if !Wish::is_bare(expired) => Ace::of_handshake(arrived).flags(),
            Wish::None | Wish::Accurate => Flags(0),
        }
    }

    /// Returns true if the SYN or SYN-ACK after so many expiries of the timer has no bits of ECN,
    /// although the handshake began with accurate ECN.
    pub(crate) fn is_bare(expired: u8) -> bool {
        expired >= BARE_FROM
    }

    /// Returns the bits of ECN in a segment after the SYN-ACK, from an end to which no mark has come.
    pub(crate) fn first_bits(self) -> Flags {
        match self {
            Wish::Accurate => Ace::of_count(FIRST_CE).flags(),
            Wish::None | Wish::Classic => Flags(0),
        }
    }
}

/// The agreement of the ends, and what the sender still has to say; a set of bits. The upper three are
/// the field ACE that a segment of the peer has if it reports no new mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EcnState(u8);

impl EcnState {
    /// Both ends use ECN.
    const ON: u8 = 1;
    /// The next new data carries CWR.
    const CWR: u8 = 2;
    /// Each ACK says whether the bytes before it were marked.
    const EXACT: u8 = 4;
    /// Both ends count marks.
    const ACCURATE: u8 = 8;
    /// No segment is capable of ECN any more.
    const SILENT: u8 = 16;
    /// The bits of ACE, and where they lie.
    const ACE: u8 = 0xe0;
    const ACE_SHIFT: u32 = EcnState::ACE.trailing_zeros();

    /// Returns the state of a connection with accurate ECN.
    pub(super) fn accurate() -> EcnState {
        let mut ecn = EcnState(EcnState::ON | EcnState::ACCURATE);
        ecn.expect(FIRST_CE);
        ecn
    }

    /// Returns true if both ends use ECN.
    #[inline]
    pub(super) fn is_on(self) -> bool {
        self.0 & EcnState::ON != 0
    }

    /// Returns true if both ends count marks.
    #[inline(always)]
    pub(super) fn is_accurate(self) -> bool {
        self.0 & EcnState::ACCURATE != 0
    }

    /// Records that the peer has counted so many marks.
    pub(super) fn expect(&mut self, count: u32) {
        self.0 = self.0 & !EcnState::ACE | Ace::of_count(count).0 << EcnState::ACE_SHIFT;
    }

    /// Returns the bits of ECN of a segment that reports nothing new.
    #[inline(always)]
    pub(super) fn expected(self) -> Flags {
        const { assert!(EcnState::ACE_SHIFT + 1 == Ace::SHIFT) }
        Flags(u16::from(self.0 & EcnState::ACE) << 1)
    }

    /// Makes the connection send without ECT from now on. Returns false if it did so before.
    pub(super) fn be_silent(&mut self) -> bool {
        let was = self.0 & EcnState::SILENT != 0;
        self.0 |= EcnState::SILENT;
        !was
    }

    fn is_exact(self) -> bool {
        self.0 & EcnState::EXACT != 0
    }

    /// Returns true if a segment without a mark changes the `echo` of our ACKs.
    #[inline(always)]
    pub(super) fn awaits_change(self, echo: Ace) -> bool {
        self.0 & EcnState::EXACT != 0 && echo.0 != 0
    }

    /// Records that the sender has reduced its congestion window, for whatever reason (RFC 3168
    /// section 6.1.2). With accurate ECN, CWR is a part of the count, and the peer needs no such report
    /// (RFC 9768 section 3.1.5).
    #[inline]
    pub(super) fn window_reduced(&mut self) {
        if self.is_on() && !self.is_accurate() {
            self.0 |= EcnState::CWR;
        }
    }

    /// Marks a segment as capable of ECN if it carries new data and nothing else, and lets it say
    /// that the window was reduced.
    #[inline]
    pub(super) fn mark(&mut self, tx: &mut TxSegment) {
        if tx.retransmit || tx.len == 0 || self.0 & EcnState::SILENT != 0 {
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

/// An acknowledgment that the connection owes: of all bytes before `upto`, with `echo`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    upto: StreamPos,
    echo: Ace,
}

/// The reports about marks of a connection with DCTCP or accurate ECN.
#[derive(Clone, Debug, Default)]
pub(super) struct Feedback {
    /// The acknowledgments that the connection owes, oldest first. Beyond this number, the changes of
    /// a burst are reported together with later ones.
    pub(super) owed: ArrayVec<Owed, 16>,
    pub(super) accurate: Accurate,
}

impl Connection {
    /// Returns the bits of ECN for a SYN or SYN-ACK that goes out now.
    ///
    /// Some middleboxes drop SYNs that ask for ECN. So only the first asks for the feedback of RFC 3168
    /// (section 6.1.1.1), and only the first two for accurate feedback (RFC 9768 section 3.1.4.1).
    pub(super) fn ecn_setup(&mut self) -> Flags {
        if self.hot.state == State::SynReceived {
            return match (self.hot.ecn.is_on(), self.hot.ecn.is_accurate()) {
                (false, _) => Flags(0),
                (true, false) => Flags::ECE,
                (true, true) => self.accurate_answer(),
            };
        }
        let expired = self.cold.syn_retries;
        match self.cold.set.ecn {
            Ecn::Accurate if !Wish::is_bare(expired) => Flags::ACE,
            Ecn::Request if !self.cold.syn_sent => SETUP,
            Ecn::Request => {
                self.cold.set.ecn = Ecn::Off;
                Flags(0)
            }
            Ecn::Off | Ecn::Accept | Ecn::Accurate => Flags(0),
        }
    }

    /// Decides by the peer's SYN or SYN-ACK which feedback the connection uses (RFC 3168 section
    /// 6.1.1, RFC 9768 section 3.1.2).
    pub(super) fn negotiate_ecn(&mut self, syn: &Segment) {
        let ecn = self.cold.set.ecn;
        let bits = Flags(syn.flags.0 & SETUP.0);
        let agreed = match (syn.flags.has(Flags::ACK), self.cold.active, ecn) {
            (true, _, Ecn::Accurate) => self.accurate_agreed(syn),
            (true, _, Ecn::Request) if bits == Flags::ECE => Wish::Classic,
            (true, ..) => Wish::None,
            // A SYN that crosses ours, which must have asked too.
            (false, true, Ecn::Request) if bits == SETUP => Wish::Classic,
            (false, true, Ecn::Off | Ecn::Accept | Ecn::Request) => Wish::None,
            (false, true, Ecn::Accurate) | (false, false, _) => Wish::of(syn).granted(ecn),
        };
        match agreed {
            Wish::None => return,
            Wish::Accurate => self.begin_accurate(syn),
            Wish::Classic => {
                let exact = self.hot.cc.algorithm() == Congestion::Dctcp;
                self.hot.ecn = EcnState(EcnState::ON | if exact { EcnState::EXACT } else { 0 });
            }
        }
        self.hot.cc.use_ecn(self.hot.snd_una);
    }

    /// Returns the feedback on which a SYN-ACK agrees if our SYN asked for accurate feedback (RFC 9768,
    /// table 2).
    fn accurate_agreed(&self, syn_ack: &Segment) -> Wish {
        match Ace::of(syn_ack.flags) {
            // No bits, or ours reflected.
            Ace(0b000 | 0b111) => Wish::None,
            // After a SYN without the bits, the peer may have taken its agreement back.
            Ace::ECE if Wish::is_bare(self.cold.syn_retries) => Wish::None,
            Ace::ECE => Wish::Classic,
            Ace(_) => Wish::Accurate,
        }
    }

    /// Looks at a repeated SYN. Returns false if the connection must end, because the SYN asks for
    /// another feedback than the first did (RFC 9768 section 3.1.5).
    pub(super) fn note_own_syn(&mut self, syn: &Segment) -> bool {
        let wish = Wish::of(syn);
        if self.hot.ecn.is_accurate() {
            return self.note_accurate_syn(syn, wish);
        }
        match wish {
            // A peer that no longer asks for ECN does not use it.
            Wish::None => self.hot.ecn = EcnState::default(),
            Wish::Accurate if self.hot.ecn.is_on() && !self.cold.active => return false,
            Wish::Accurate | Wish::Classic => {}
        }
        true
    }

    /// Takes the bits of ECN of an acceptable segment. `newer` is true if no segment that the peer sent
    /// later has come, and `opens` if the segment completes the handshake. Returns how many of the
    /// bytes that it acknowledges it reports as marked, if any.
    pub(super) fn take_ecn(
        &mut self,
        seg: &Segment,
        advance: i64,
        newer: bool,
        opens: bool,
    ) -> Option<u64> {
        if !self.hot.ecn.is_accurate() {
            self.take_marks(seg);
            return seg.flags.has(Flags::ECE).then_some(u64::MAX);
        }
        self.count_arrival(seg);
        let bare = seg.len == 0 && !seg.flags.has(Flags::FIN) && !self.reports();
        // The third segment of the handshake reports the codepoint of the SYN-ACK, if it is bare.
        if opens && bare {
            self.take_handshake_ack(seg);
            return None;
        }
        // So does an answer to a SYN-ACK that went again. No mark of ours has come before that.
        let none = advance == 0 && self.hot.snd_una == StreamPos::START;
        let again = bare && none && !self.cold.active;
        self.reported_marks(seg, advance, newer && !again)
    }

    /// Returns the reports about marks.
    pub(super) fn feedback(&mut self) -> &mut Feedback {
        self.cold.feedback.get_or_insert_default()
    }

    /// Takes the mark of an acceptable segment, and the peer's report that it has reduced its
    /// window. Bare ACKs do not count: no peer sends them with a mark.
    fn take_marks(&mut self, seg: &Segment) {
        if seg.len == 0 || !self.hot.state.receives() {
            return;
        }
        let ce = seg.ecn.is_ce();
        if ce {
            self.cold.counters.ce_segments += 1;
        }
        let old = self.hot.echo;
        if self.hot.ecn.is_exact() {
            let new = if ce { Ace::ECE } else { Ace::default() };
            if new != old {
                // The bytes since the last ACK came before the marks changed.
                self.owe_echo(old);
                self.hot.echo = new;
                self.hot.pending.set(Pending::ACK);
            }
            return;
        }
        // CWR first (RFC 3168 section 6.1.3, erratum 3639).
        if seg.flags.has(Flags::CWR) {
            self.hot.echo = Ace::default();
        }
        if ce {
            self.hot.echo = Ace::ECE;
            if old != Ace::ECE {
                self.hot.pending.set(Pending::ACK);
            }
        }
    }

    /// Makes the connection owe an ACK with `echo` of the bytes so far, if there are any since the last
    /// ACK.
    pub(super) fn owe_echo(&mut self, echo: Ace) {
        let (upto, last) = (self.hot.rcv_nxt, self.hot.last_ack);
        let owed = &mut self.feedback().owed;
        let last = owed.last().map_or(last, |o| o.upto);
        if upto > last && owed.try_push(Owed { upto, echo }).is_ok() {
            self.hot.pending.set(Pending::ECHO);
        }
    }

    /// Returns the next acknowledgment that the connection owes.
    #[cold]
    pub(super) fn owed_echo(&mut self, now: Instant) -> TxSegment {
        if self.hot.ecn.is_accurate() {
            return self.owed_count(now);
        }
        let owed = self.feedback().owed.pop_at(0);
        if self.feedback().owed.is_empty() {
            self.hot.pending.clear(Pending::ECHO);
        }
        match owed {
            Some(owed) => self.owed_ack(now, owed),
            None => self.bare_ack(now),
        }
    }

    /// Returns an acknowledgment that the connection owed, after which others follow.
    pub(super) fn owed_ack(&mut self, now: Instant, owed: Owed) -> TxSegment {
        let Owed { upto, echo } = owed;
        let pending = self.hot.pending;
        let mut tx = self.segment(now, self.ack_pos(), Flags::ACK);
        // The ACK of the bytes after the change follows.
        self.hot.pending = pending;
        self.hot.pending.set(Pending::ACK);
        tx.ack = self.rcv_seq_of(upto);
        tx.flags = Flags::ACK.with(echo.flags());
        let behind = u32::try_from(self.hot.rcv_nxt - upto).unwrap_or(u32::MAX);
        let more = u16::try_from(behind >> self.hot.rcv_shift).unwrap_or(u16::MAX);
        tx.window = tx.window.saturating_add(more);
        tx
    }

    /// Does the work of [`take_ack`](Connection::take_ack) for an acknowledgment that reports marks on
    /// `bytes`, or on all that it acknowledges if those are fewer.
    #[cold]
    pub(super) fn take_echo(
        &mut self,
        now: Instant,
        seg: &Segment,
        advance: i64,
        bytes: u64,
    ) -> Option<StreamPos> {
        self.cold.counters.ece_acks += 1;
        self.hot.cc.expect_echo(shifted(self.hot.snd_una, advance), bytes);
        let acked = self.take_ack(now, seg, advance);
        let least = self.hot.cc.cwnd() <= self.hot.emss;
        if self.hot.cc.end_echo() {
            self.cold.counters.ecn_reductions += 1;
            self.hot.ecn.window_reduced();
            if least && self.hot.state.sends() {
                // The window cannot shrink further, so the next segment waits for as long as the
                // retransmission timer would (RFC 3168 section 6.1.2).
                self.hot.pace_at = now + self.rto.get();
            }
        }
        acked
    }
}
