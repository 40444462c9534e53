//! Accurate ECN (AccECN, RFC 9768): either end counts the marks that it receives, and reports the counts.
//!
//! ```text
//!   sender                         router                          receiver
//!     SYN, AE CWR ECE ─────────────────────────────────────────────────▶
//!     ◀───────── SYN-ACK, whose three bits say how the SYN has arrived
//!     ACK, whose three bits say how the SYN-ACK has arrived ───────────▶
//!     new data, ECT(0) ─────────▶  queue  ── CE ───────────────────────▶  r.cep: 5, 6, 7 ...
//!     ◀──────────────────────────────────────── segments with ACE 6, 7, 0 ...
//! ```
//!
//! The three bits AE, CWR and ECE, the field ACE, have the low bits of the count of marked packets in
//! every segment but SYNs. An AccECN option on bare ACKs has the bytes that came with each codepoint,
//! modulo 2^24. So has a segment with data that is shorter than others, if there is news. A segment with
//! SACK blocks, or with as much data as the MSS allows, has no room for it.
//!
//! The receiver acknowledges at once when marks begin and at every second mark. Where a burst brings
//! several of these, the connection owes an ACK for each, sixteen at most, the later of which report
//! up to seven marks. The last ACK after a burst with marks goes bare, even if data could carry it, so
//! that it has the option.
//!
//! The sender keeps the peer's counts. ACE alone leaves multiples of eight open: options that come say
//! how many there were, and otherwise the sender assumes the most that an ACK of an unusual length
//! could hide. NewReno and CUBIC reduce their window once for a window of data, and DCTCP takes the
//! marked bytes in place of echoes.

use super::Connection;
use super::Pending;
use super::ecn::{Ace, EcnState, FIRST_CE, FIRST_COUNTS, Feedback, Wish};
use crate::{ByteCounts, Codepoint, Flags, Segment, TxSegment};
use heddle_base::{Instant, StreamPos};

/// The counters of bytes, in the order 0 of the option: ECT(0), CE, ECT(1).
const ECT_0: usize = 0;
const CE: usize = 1;
const ECT_1: usize = 2;
/// The bits of such a counter.
const BYTES: u32 = (1 << 24) - 1;
/// Marks between two ACKs while there are bytes to acknowledge, and without any (RFC 9768 section
/// 3.2.2.5.1).
const MARKS: u8 = 2;
const MARKS_WITHOUT_DATA: u8 = 3;
/// The most marks between two ACKs. With more, the field ACE could go round unnoticed.
const MARKS_MAX: u8 = 7;
/// From so many owed ACKs on, the further ones report [`MARKS_MAX`] marks: with those the connection
/// can report every mark of a burst of 64 frames.
const CROWDED: usize = 8;
/// Bytes of a codepoint after which the count goes in an option even if data carry all ACKs. A count
/// goes round at 2^24, and the RFC asks for one in 2^22 bytes.
const REPORT_AFTER: u32 = 1 << 20;
/// With so many packets in an acknowledgment, the field ACE may have gone round.
const ROUND: u32 = 8;
/// The mean number of packets in an acknowledgment, in sixteenths, up to which a longer
/// acknowledgment means that others were lost. Peers that always acknowledge many packets at once
/// would look as if they hid marks. The same number as in Linux.
const USUAL: u32 = 4 * 16;
/// Marks that bring the field ACE from its first value to 0.
const MARKS_TO_ZERO: u32 = ROUND - FIRST_CE;
/// Options in a row that contradict the field ACE before the connection sends without ECT.
const CONTRADICTIONS: u8 = 3;

/// The counts of either direction.
#[derive(Clone, Debug)]
pub(super) struct Accurate {
    /// r.cep: the marked packets that have come.
    ce: u32,
    /// r.e0b, r.ceb and r.e1b: the bytes that have come, by codepoint.
    bytes: [u32; 3],
    /// These counts in the last option that went.
    told: [u32; 3],
    /// True for the counts that have ever changed.
    changed: [bool; 3],
    /// True if the last packet was marked.
    was_ce: bool,
    /// Marks since an ACK was last sent or owed, and the position of [`Hot::last_ack`] then.
    ///
    /// [`Hot::last_ack`]: super::Hot
    marks: u8,
    acked_at: StreamPos,
    /// True if the bytes so far have to be acknowledged apart from those that follow.
    owes: bool,
    /// The codepoint of the last SYN of the peer.
    syn: Codepoint,
    /// The codepoint of a SYN-ACK of the peer, until the ACK that reports it goes.
    syn_ack: Option<Codepoint>,
    /// True if a SYN-ACK came marked: only one counts.
    syn_ack_ce: bool,
    peer: Peer,
    /// The option of the segment that the connection is handling.
    option: Option<ByteCounts>,
}

/// The sender's part: the counts of the peer.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// s.cep: our marked packets.
    ce: u32,
    /// s.ceb: the bytes of our marked packets.
    bytes: u32,
    /// s.cep at the last option.
    ce_at_option: u32,
    /// Marked bytes assumed since the last option.
    assumed: u32,
    /// Packets acknowledged since the last option.
    packets: u32,
    /// Marked bytes of which the congestion control has not heard.
    due: u32,
    /// The mean number of packets in an acknowledgment, in sixteenths.
    mean: u32,
    /// The timestamp of the last segment whose counts were taken.
    stamp: u32,
    /// The test of the first reports for a field that something clears.
    test: Test,
    /// True if options come that can be used.
    has_options: bool,
    /// True if the options are not to be believed.
    ignores_options: bool,
    /// True if no report is to be believed.
    is_deaf: bool,
    contradictions: u8,
}

/// The test for a field ACE that something on the path clears (RFC 9768 section 3.2.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    /// No report has come.
    First,
    /// The first report was 0, which marks may explain.
    Suspect,
    Over,
}

/// The content of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Report {
    /// Packets newly reported as marked.
    packets: u32,
    /// True if the report cannot be true, so that something changes the bits on their way.
    mangled: bool,
}

impl Default for Accurate {
    fn default() -> Accurate {
        let ByteCounts { fields, .. } = FIRST_COUNTS;
        Accurate {
            ce: FIRST_CE,
            bytes: fields,
            told: fields,
            changed: [false; 3],
            was_ce: false,
            marks: 0,
            acked_at: StreamPos::START,
            owes: false,
            syn: Codepoint::NOT_ECT,
            syn_ack: None,
            syn_ack_ce: false,
            peer: Peer::default(),
            option: None,
        }
    }
}

impl Default for Peer {
    fn default() -> Peer {
        Peer {
            ce: FIRST_CE,
            bytes: 0,
            ce_at_option: FIRST_CE,
            assumed: 0,
            packets: 0,
            due: 0,
            mean: 0,
            stamp: 0,
            test: Test::First,
            has_options: false,
            ignores_options: false,
            is_deaf: false,
            contradictions: 0,
        }
    }
}

impl Accurate {
    /// Returns the option with the counts that have ever changed, and those before them in its order
    /// (RFC 9768 section 3.2.3.3).
    fn tell(&mut self) -> ByteCounts {
        self.told = self.bytes;
        let reversed = self.changed[ECT_1] && !self.changed[ECT_0];
        let order = if reversed { [ECT_1, CE, ECT_0] } else { [ECT_0, CE, ECT_1] };
        let last = order.iter().rposition(|&n| self.changed[n]).unwrap_or(0);
        let fields = order.map(|n| self.bytes[n] & BYTES);
        ByteCounts { reversed, fields, len: u8::try_from(last + 1).unwrap_or(3) }
    }

    /// Returns true if marks have come since the last option, or bytes with a codepoint that no option
    /// has reported yet.
    fn has_news(&self) -> bool {
        let unheard = |n: usize| self.changed[n] && self.told[n] == FIRST_COUNTS.fields[n];
        self.bytes[CE] != self.told[CE] || unheard(ECT_0) || unheard(ECT_1)
    }

    /// Counts the payload of a segment. Returns true if an option has to go soon.
    fn count_bytes(&mut self, ecn: Codepoint, len: u32) -> bool {
        let which = match ecn {
            Codepoint::ECT_0 => ECT_0,
            Codepoint::CE => CE,
            Codepoint::ECT_1 => ECT_1,
            _ => return false,
        };
        if len == 0 {
            return false;
        }
        self.bytes[which] = self.bytes[which].wrapping_add(len);
        self.changed[which] = true;
        self.bytes[which].wrapping_sub(self.told[which]) >= REPORT_AFTER
    }
}

impl Peer {
    /// Takes the counts of a segment that acknowledges about so many `packets`, which had `mss` bytes
    /// as a rule and `most` bytes at most.
    fn take(
        &mut self,
        ace: Ace,
        option: Option<ByteCounts>,
        packets: u32,
        (mss, most): (u32, u32),
    ) -> Report {
        let mut report = Report::default();
        if packets > 0 {
            self.packets = self.packets.saturating_add(packets);
            self.mean = self.mean - self.mean / 8 + packets.min(1 << 16) * 16 / 8;
        }
        let mut more = u32::from(ace.0).wrapping_sub(self.ce) & (ROUND - 1);
        let ce_bytes = option.filter(|_| !self.ignores_options).and_then(|o| o.ce());
        self.has_options |= option.is_some() && !self.ignores_options;
        if let Some(bytes) = ce_bytes {
            let new = bytes.wrapping_sub(self.bytes) & BYTES;
            let since = self.ce.wrapping_add(more).wrapping_sub(self.ce_at_option);
            let least = new.div_ceil(most.max(1));
            if since == 0 && new > 0 && self.packets < ROUND {
                self.contradictions += 1;
                report.mangled |= self.contradictions == CONTRADICTIONS;
                self.contradictions %= CONTRADICTIONS;
            } else {
                // The field ACE has gone round unnoticed.
                more += least.saturating_sub(since).next_multiple_of(ROUND);
                if new > 0 {
                    self.contradictions = 0;
                }
            }
            self.due = self.due.saturating_add(new.saturating_sub(self.assumed));
            self.bytes = bytes;
            self.ce_at_option = self.ce.wrapping_add(more);
            (self.assumed, self.packets) = (0, 0);
        } else {
            if !self.has_options && packets >= ROUND && self.mean <= USUAL {
                // The most that the acknowledgment may hide.
                more = packets - ((packets - more) & (ROUND - 1));
            }
            let bytes = more.saturating_mul(mss);
            self.due = self.due.saturating_add(bytes);
            self.assumed = self.assumed.saturating_add(bytes);
        }
        self.ce = self.ce.wrapping_add(more);
        report.packets = more;
        if self.is_deaf {
            self.due = 0;
        }
        report
    }

    /// Tests a report for a field that something clears. The peer may have received `arrived` packets;
    /// `decides` is true for an acknowledgment with room for the option that would explain the 0. Returns
    /// true if the reports are not to be believed.
    fn is_cleared(
        &mut self,
        ace: Ace,
        option: Option<ByteCounts>,
        arrived: u32,
        decides: bool,
    ) -> bool {
        let explained = option.and_then(|o| o.ce()).is_some_and(|bytes| bytes > 0);
        if ace.0 != 0 || explained {
            self.test = Test::Over;
            return false;
        }
        let few = arrived < MARKS_TO_ZERO || self.test == Test::Suspect && decides;
        self.test = if few { Test::Over } else { Test::Suspect };
        self.is_deaf |= few;
        few
    }

    /// Looks at the option of a handshake: a counter of 0 means that something clears the fields (RFC
    /// 9768 section 3.2.3.2.4).
    fn take_first(&mut self, option: Option<ByteCounts>) {
        let Some(option) = option else { return };
        self.ignores_options = option.ect_0() == Some(0) || option.ect_1() == Some(0);
        self.has_options = !self.ignores_options;
        self.bytes = option.ce().unwrap_or(0);
    }
}

impl Connection {
    /// Begins accurate ECN with the peer's SYN or SYN-ACK.
    pub(super) fn begin_accurate(&mut self, syn: &Segment) {
        self.hot.ecn = EcnState::accurate();
        self.hot.echo = Ace::of_count(FIRST_CE);
        let stamp = self.hot.ts_recent;
        let a = &mut self.feedback().accurate;
        a.peer.stamp = stamp;
        a.syn = syn.ecn;
        if !syn.flags.has(Flags::ACK) {
            return;
        }
        let option = a.option.take();
        a.peer.take_first(option);
        self.take_syn_ack(syn);
        self.hot.pending.set(Pending::ECHO);
        match Ace::of(syn.flags) {
            // The SYN has arrived as it went, or the peer says nothing about it (section 3.1.3).
            Ace(0b010 | 0b101) => {}
            arrived => self.handshake_mangled(arrived),
        }
    }

    /// Takes the codepoint of a SYN-ACK, which the next ACK reports.
    fn take_syn_ack(&mut self, syn_ack: &Segment) {
        let a = &mut self.feedback().accurate;
        a.syn_ack = Some(syn_ack.ecn);
        if syn_ack.ecn.is_ce() && !core::mem::replace(&mut a.syn_ack_ce, true) {
            a.ce = a.ce.wrapping_add(1);
            self.hot.echo = Ace::of_count(a.ce);
            self.cold.counters.ce_segments += 1;
        }
    }

    /// Handles a SYN or SYN-ACK of ours, which went without ECT, of which the peer says that it came
    /// with another codepoint (section 3.2.2.3).
    fn handshake_mangled(&mut self, arrived: Ace) {
        self.stop_ect();
        if arrived == Ace::of_handshake(Codepoint::CE) {
            self.hot.cc.syn_lost();
        }
    }

    /// Sends without ECT from now on, because something changes the bits of ECN.
    fn stop_ect(&mut self) {
        if self.hot.ecn.be_silent() {
            self.cold.counters.ecn_mangled += 1;
        }
    }

    /// Takes a SYN-ACK that came again after our ACK. Returns true if another ACK should report its
    /// codepoint (section 3.2.2.1). A server that has sent data reads all ACKs as counts.
    pub(super) fn note_late_syn_ack(&mut self, seg: &Segment) -> bool {
        let again = self.hot.ecn.is_accurate()
            && self.cold.active
            && self.hot.rcv_nxt == StreamPos::START
            && seg.flags.has(Flags::ACK)
            && seg.seq.advance(1) == self.hot.rcv_base
            && seg.ack == self.hot.snd_base
            && !matches!(Ace::of(seg.flags).0, 0b000 | 0b001 | 0b111);
        if again {
            self.take_syn_ack(seg);
        }
        again
    }

    /// Gives up the report of a SYN-ACK.
    pub(super) fn forget_syn_ack(&mut self) {
        self.feedback().accurate.syn_ack = None;
    }

    /// Takes the third segment of the handshake, a bare ACK (table 4).
    pub(super) fn take_handshake_ack(&mut self, seg: &Segment) {
        let ace = Ace::of(seg.flags);
        let a = &mut self.feedback().accurate;
        let option = a.option.take();
        a.peer.take_first(option);
        match ace.0 {
            // The peer does not use ECN, or a middlebox clears the field.
            0b000 => {
                a.peer.is_deaf = true;
                self.stop_ect();
            }
            0b011 | 0b100 => self.handshake_mangled(ace),
            0b110 => {
                a.peer.ce += 1;
                a.peer.ce_at_option += 1;
                let ce = a.peer.ce;
                self.hot.ecn.expect(ce);
                self.cold.counters.ce_reported += 1;
                self.handshake_mangled(ace);
            }
            _ => {}
        }
    }

    /// Returns the bits of ECN of a SYN-ACK.
    pub(super) fn accurate_answer(&mut self) -> Flags {
        let expired = self.cold.syn_retries;
        let answer = Wish::Accurate.answer(self.feedback().accurate.syn, expired);
        if Wish::is_bare(expired) {
            // The peer may end up without ECN (section 3.1.5).
            self.hot.ecn.be_silent();
        }
        answer
    }

    /// Returns the option of a SYN-ACK: only the first has one (section 3.2.3.2.2).
    pub(super) fn first_counts(&self) -> Option<ByteCounts> {
        (self.hot.ecn.is_accurate() && !self.cold.syn_sent).then_some(FIRST_COUNTS)
    }

    /// Looks at a repeated SYN. Returns false if it asks for the feedback of RFC 3168.
    pub(super) fn note_accurate_syn(&mut self, syn: &Segment, wish: Wish) -> bool {
        self.feedback().accurate.syn = syn.ecn;
        if wish == Wish::None {
            self.hot.ecn.be_silent();
        }
        wish != Wish::Classic
    }

    /// Returns true if the peer has sent an option that can be used.
    #[cfg(test)]
    pub(super) fn gets_options(&self) -> bool {
        self.cold.feedback.as_ref().is_some_and(|f| f.accurate.peer.has_options)
    }

    /// Keeps the option of the segment that the connection handles next; `None` after it.
    pub(super) fn offer_counts(&mut self, option: Option<ByteCounts>) {
        let asks = self.cold.active && self.cold.set.ecn == super::Ecn::Accurate;
        if self.hot.ecn.is_accurate() || asks {
            self.feedback().accurate.option = option;
        }
    }

    /// Counts an acceptable segment (section 3.2), and schedules ACKs that report its mark.
    pub(super) fn count_arrival(&mut self, seg: &Segment) {
        let (rcv_nxt, last_ack) = (self.hot.rcv_nxt, self.hot.last_ack);
        let echo = self.hot.echo;
        let Feedback { owed, accurate: a } = self.feedback();
        if a.acked_at != last_ack {
            (a.acked_at, a.marks, a.owes) = (last_ack, 0, false);
        }
        let crowded = owed.len() >= CROWDED;
        let owes = core::mem::take(&mut a.owes);
        let mut report = a.count_bytes(seg.ecn, seg.len);
        let ce = seg.ecn.is_ce();
        if ce {
            a.ce = a.ce.wrapping_add(1);
            a.marks = a.marks.saturating_add(1);
            let most = match (crowded, seg.len > 0 || rcv_nxt > last_ack) {
                (true, _) => MARKS_MAX,
                (false, true) => MARKS,
                (false, false) => MARKS_WITHOUT_DATA,
            };
            let begins = seg.len > 0 && !a.was_ce && !crowded;
            if begins || a.marks >= most {
                (a.owes, a.marks) = (true, 0);
                report = true;
            }
        }
        a.was_ce = ce;
        let count = a.ce;
        if owes {
            self.owe_echo(echo);
        }
        if ce {
            self.hot.echo = Ace::of_count(count);
            self.cold.counters.ce_segments += 1;
        }
        if report {
            // A SACK is more urgent than an option, and has no room for it.
            self.hot.pending.set(if self.hot.gaps { Pending::ACK } else { Pending::ECHO });
        }
    }

    /// Returns the option of a bare ACK, if a count has changed since the last.
    #[inline(never)]
    pub(super) fn new_counts(&mut self) -> Option<ByteCounts> {
        let a = &mut self.feedback().accurate;
        (a.bytes != a.told).then(|| a.tell())
    }

    /// Returns the option of a segment with new data, which has room for it: of the first, so that it
    /// tests the path (section 3.2.3.2.1), and of one that has news.
    #[inline(never)]
    pub(super) fn counts_with_data(&mut self, tx: &TxSegment) -> Option<ByteCounts> {
        let a = &mut self.feedback().accurate;
        if tx.retransmit {
            // The path may have dropped the first for its option.
            None
        } else if a.has_news() {
            Some(a.tell())
        } else {
            (tx.pos == StreamPos::START).then(|| self.all_counts())
        }
    }

    /// Returns the next acknowledgment that the connection owes. After them all a bare ACK goes that
    /// has the option.
    pub(super) fn owed_count(&mut self, now: Instant) -> TxSegment {
        let first = self.hot.rcv_nxt == StreamPos::START;
        let f = self.feedback();
        if let Some(arrived) = f.accurate.syn_ack.take().filter(|_| first) {
            if f.owed.is_empty() {
                self.hot.pending.clear(Pending::ECHO);
            }
            let mut tx = self.segment(now, self.ack_pos(), Flags::ACK);
            tx.flags = Flags::ACK.with(Ace::of_handshake(arrived).flags());
            tx.counts = Some(self.all_counts());
            return tx;
        }
        if let Some(owed) = f.owed.pop_at(0) {
            return self.owed_ack(now, owed);
        }
        self.hot.pending.clear(Pending::ECHO);
        self.bare_ack(now)
    }

    /// Returns the option with all counts.
    fn all_counts(&mut self) -> ByteCounts {
        let a = &mut self.feedback().accurate;
        a.told = a.bytes;
        ByteCounts { reversed: false, fields: a.bytes.map(|n| n & BYTES), len: 3 }
    }

    /// Returns true if the peer sent `seg` after all segments whose counts the connection has taken. A
    /// segment that was overtaken has old counts, which would look as if the field ACE had gone round.
    pub(super) fn is_newer(&self, seg: &Segment, at: i64, advance: i64) -> bool {
        let hot = &self.hot;
        let next = at == 0 && seg.len > 0 && !hot.gaps;
        // TS.Recent may be older: it waits for our ACKs.
        let stamp = self.cold.feedback.as_ref().map_or(0, |f| f.accurate.peer.stamp);
        let later = hot.ts_ok
            && seg.timestamps.is_some_and(|ts| ts.val.wrapping_sub(stamp).cast_signed() > 0);
        // A bare ACK that has overtaken data lies beyond them.
        let behind = seg.seq.before(hot.snd_wl1);
        advance > 0 || advance == 0 && !behind && (next || later)
    }

    /// Takes the counts of a segment, which are `newer` than all before. Returns how many of the bytes
    /// that the segment acknowledges were marked, if any: marks of which a segment without news has
    /// reported count with the next that acknowledges bytes.
    pub(super) fn reported_marks(
        &mut self,
        seg: &Segment,
        advance: i64,
        newer: bool,
    ) -> Option<u64> {
        let (mss, most) = (self.hot.emss.max(1), self.largest());
        let (sent, reports) = (self.hot.snd_max.0, self.reports());
        let a = &mut self.cold.feedback.as_mut()?.accurate;
        let option = a.option.take();
        if !newer {
            return None;
        }
        if let Some(ts) = seg.timestamps {
            a.peer.stamp = ts.val;
        }
        let acked = u32::try_from(advance.max(0)).unwrap_or(u32::MAX);
        let (ace, packets) = (Ace::of(seg.flags), acked.div_ceil(mss));
        let mut cleared = false;
        if a.peer.test != Test::Over {
            // Only a bare ACK without blocks says that nothing has arrived beyond.
            let beyond = seg.len > 0 || reports;
            let arrived = if beyond { sent.div_ceil(mss.into()) } else { packets.into() };
            let arrived = u32::try_from(arrived).unwrap_or(u32::MAX);
            let room = !beyond || option.is_some() || !a.peer.has_options;
            cleared = a.peer.is_cleared(ace, option, arrived, packets > 0 && room);
        }
        let report = a.peer.take(ace, option, packets, (mss, most));
        let due = if acked > 0 { core::mem::take(&mut a.peer.due) } else { 0 };
        if report.packets > 0 {
            let ce = a.peer.ce;
            self.hot.ecn.expect(ce);
            self.cold.counters.ce_reported += u64::from(report.packets);
        }
        if report.mangled || cleared {
            self.stop_ect();
        }
        (due > 0).then(|| u64::from(due))
    }
}
