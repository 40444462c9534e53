//! Accurate ECN (RFC 9768): negotiation, the counts of either end, and peers and paths that change
//! them.

use super::rack::RTT;
use super::*;

const NONE: Flags = Flags(0);
const CLASSIC: Flags = Flags::ECE.with(Flags::CWR);
pub(super) const ACCURATE: Flags = Flags::ACE;

pub(super) fn with_ecn(ecn: Ecn) -> ConnConfig {
    ConnConfig { ecn, sack: true, ..plain() }
}

/// Returns the bits of ECN that say `n`.
pub(super) fn ace(n: u16) -> Flags {
    Flags((n & 7) << 6)
}

/// Returns an option of order 0.
fn counts(e0b: u32, ceb: u32, e1b: u32) -> Option<ByteCounts> {
    Some(ByteCounts { reversed: false, fields: [e0b, ceb, e1b], len: 3 })
}

pub(super) fn codepoint(bits: u8) -> Codepoint {
    Codepoint::of(bits)
}

/// Returns a bench whose SYN asked for accurate ECN and whose peer agreed.
pub(super) fn agreed(cfg: &ConnConfig) -> Bench {
    let mut b = Bench::connecting(cfg);
    assert_eq!(b.sent(), ["SEWA -1"]);
    b.now = b.now + RTT;
    let syn_ack = Segment { mss: Some(cfg.mss), sack_permitted: cfg.sack, ..b.seg(-1, 0) };
    b.recv_counted(&syn_ack.with(SYN_ACK.with(ace(0b010))), counts(1, 0, 1));
    assert_eq!(b.sent(), [".W 0 ack 0 counts0 1,0,1"]);
    b.events();
    b
}

/// Returns such a bench whose ends have timestamps; those of the peer begin at 100.
fn stamped() -> Bench {
    let mut b = Bench::connecting(&ConnConfig { timestamps: true, ..with_ecn(Ecn::Accurate) });
    b.sent();
    b.ts = Some(Timestamps { val: 100, ecr: 0 });
    let syn_ack = Segment { mss: Some(1000), sack_permitted: true, ..b.seg(-1, 0) };
    b.recv_counted(&syn_ack.with(SYN_ACK.with(ace(0b010))), counts(1, 0, 1));
    b.sent();
    b
}

/// Returns a bench in SYN-RECEIVED that has answered a SYN for accurate ECN.
pub(super) fn accepting() -> Bench {
    let now = Instant::from_millis(1_000_000);
    let syn = Segment { mss: Some(1000), sack_permitted: true, ..raw(IRS, SeqNumber(0), SYN) };
    let cfg = with_ecn(Ecn::Accept);
    let c = Connection::accept(&cfg, now, ISS, 0, &syn.with(SYN.with(ACCURATE)));
    let mut b = Bench::new(c, now);
    assert_eq!(b.sent(), ["S.W -1 ack 0 counts0 1,0,1"]);
    b
}

impl Bench {
    /// Receives `len` bytes at `seq` with this codepoint, of a peer that reports nothing new.
    fn came(&mut self, seq: i32, len: u32, ecn: Codepoint) {
        self.reports(seq, len, ecn, 5);
    }

    /// Receives such bytes of a peer whose field ACE is `n`.
    fn reports(&mut self, seq: i32, len: u32, ecn: Codepoint, n: u16) {
        let ack = i32::try_from(self.c.snd_una().0).unwrap();
        let s = Segment { len, ecn, ..self.seg(seq, ack).with(ACK.with(ace(n))) };
        if let Some(p) = self.recv(&s).payload {
            self.c.accept_payload(self.now, p.pos, p.len);
        }
    }

    /// Receives an ACK whose field ACE is `n`.
    fn count_of(&mut self, ack: i32, n: u16, option: Option<ByteCounts>) {
        let next = i32::try_from(self.c.rcv_nxt().0).unwrap();
        let s = self.seg(next, ack).with(ACK.with(ace(n)));
        self.recv_counted(&s, option);
    }

    fn window(&self) -> u32 {
        self.c.stats().cwnd
    }

    /// Queues a segment, and returns its text without the option that the first has.
    fn next_sent(&mut self) -> String {
        self.queue(100);
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent[0].trim_end_matches(" counts0 1,0,1").to_owned()
    }
}

/// Section 3.1.2, table 2: the feedback follows from the three bits of the SYN-ACK. Each value is here
/// with its meaning.
#[test]
fn test_client_follows_each_combination_of_the_syn_ack() {
    let accurate = [0b010, 0b011, 0b100, 0b101, 0b110];
    for bits in 0..8 {
        let mut b = Bench::connecting(&with_ecn(Ecn::Accurate));
        assert_eq!(b.sent(), ["SEWA -1"]);
        b.recv(&b.seg(-1, 0).with(SYN_ACK.with(ace(bits))));
        let reply = b.sent();
        let is_accurate = accurate.contains(&bits);
        assert_eq!(
            reply[0].starts_with(".W 0 ack 0 counts0"),
            is_accurate,
            "{bits:03b}: {reply:?}"
        );
        let data = b.next_sent();
        // A codepoint on a SYN that went without shows a path that changes it (section 3.2.2.3).
        let sends_ect = matches!(bits, 0b010 | 0b101 | 0b001);
        assert_eq!(data.ends_with("ect"), sends_ect, "{bits:03b}: {data}");
        assert_eq!(data.starts_with("P.EA "), is_accurate, "{bits:03b}: {data}");
        let c = b.count().ecn_mangled;
        assert_eq!(c, u64::from(is_accurate && !sends_ect), "{bits:03b}");
    }
}

/// Section 3.1.2 and 3.1.3: combinations without a meaning ask for accurate ECN. The SYN-ACK says how
/// the SYN has arrived.
#[test]
fn test_server_answers_each_combination_of_the_syn() {
    for ecn in [Ecn::Off, Ecn::Accept, Ecn::Request, Ecn::Accurate] {
        for bits in 0..8 {
            for arrived in 0..4 {
                let now = Instant::from_millis(1_000_000);
                let syn = raw(IRS, SeqNumber(0), SYN.with(ace(bits)));
                let syn = Segment { ecn: codepoint(arrived), ..syn };
                let c = Connection::accept(&with_ecn(ecn), now, ISS, 0, &syn);
                let mut b = Bench::new(c, now);
                let answer = match (ecn, bits) {
                    (Ecn::Off, _) | (_, 0) => "S. -1 ack 0",
                    (_, 0b011) => "S.E -1 ack 0",
                    _ => match arrived {
                        0 => "S.W -1 ack 0 counts0 1,0,1",
                        1 => "S.EW -1 ack 0 counts0 1,0,1",
                        2 => "S.A -1 ack 0 counts0 1,0,1",
                        _ => "S.WA -1 ack 0 counts0 1,0,1",
                    },
                };
                assert_eq!(b.sent(), [answer], "{ecn:?} {bits:03b} {arrived}");
            }
        }
    }
}

/// Section 3.1.4.1: two SYNs ask, later ones have no bits, and the first SYN-ACK decides. RFC 3168
/// section 6.1.1: no classic ECN after a SYN without bits.
#[test]
fn test_third_syn_asks_for_nothing_and_the_answer_to_an_earlier_one_counts() {
    for (bits, reply, ect) in
        [(0b010, ".W 0 ack 0 counts0 1,0,1", true), (0b001, ". 0 ack 0", false)]
    {
        let mut b = Bench::connecting(&with_ecn(Ecn::Accurate));
        assert_eq!(b.sent(), ["SEWA -1"]);
        assert_eq!(b.fire(), ["SEWA -1 again"]);
        assert_eq!(b.fire(), ["S -1 again"]);
        b.recv(&b.seg(-1, 0).with(SYN_ACK.with(ace(bits))));
        assert_eq!(b.sent(), [reply]);
        assert_eq!(b.next_sent().ends_with("ect"), ect);
    }
}

/// Section 3.1.2, simultaneous open: the end answers the other's SYN as if it had been waiting for it.
/// An end that asked for classic ECN knows no other.
#[test]
fn test_crossed_syns_agree_as_the_syn_of_the_peer_asks() {
    for (ecn, bits, answer) in [
        (Ecn::Accurate, ACCURATE, "S.W -1 ack 0 again"),
        (Ecn::Accurate, CLASSIC, "S.E -1 ack 0 again"),
        (Ecn::Accurate, NONE, "S. -1 ack 0 again"),
        (Ecn::Request, ACCURATE, "S.E -1 ack 0 again"),
        (Ecn::Accept, ACCURATE, "S. -1 ack 0 again"),
    ] {
        let mut b = Bench::connecting(&with_ecn(ecn));
        b.sent();
        b.recv(&b.seg(-1, 0).with(SYN.with(bits)));
        assert_eq!(b.sent(), [answer], "{ecn:?} {bits:?}");
    }
}

/// Section 3.1.5: a SYN for another feedback within a handshake ends it. A SYN without bits leaves the
/// feedback, and forbids ECT.
#[test]
fn test_repeated_syn_changes_the_feedback_never() {
    let syn = |bits| raw(IRS, SeqNumber(0), SYN.with(bits));
    let mut b = accepting();
    b.recv(&syn(CLASSIC));
    assert_eq!(b.sent(), ["R.EA 0 ack 0"]);
    assert_eq!(b.c.state(), State::Closed);

    let mut b = accepting();
    b.recv(&Segment { ecn: Codepoint::CE, ..syn(NONE) });
    assert_eq!(b.sent(), ["S.WA -1 ack 0 again"], "the codepoint of the last SYN");
    b.reports(0, 0, Codepoint::NOT_ECT, 0b010);
    assert_eq!(b.next_sent(), "P.EA 0+100 ack 0", "without ECT");

    let now = Instant::from_millis(1_000_000);
    let c = Connection::accept(&with_ecn(Ecn::Accept), now, ISS, 0, &syn(CLASSIC));
    let mut b = Bench::new(c, now);
    assert_eq!(b.sent(), ["S.E -1 ack 0"]);
    b.recv(&syn(ACCURATE));
    assert_eq!(b.sent(), ["R. 0 ack 0"]);
}

/// Section 3.2.3.2.2: the second SYN-ACK has no option, and the third no bits of ECN. The server then
/// sends without ECT (section 3.1.5).
#[test]
fn test_repeated_syn_ack_goes_without_option_and_then_without_bits() {
    let mut b = accepting();
    assert_eq!(b.fire(), ["S.W -1 ack 0 again"]);
    b.reports(0, 0, Codepoint::NOT_ECT, 0b010);
    assert_eq!(b.next_sent(), "P.EA 0+100 ack 0 ect");

    let mut b = accepting();
    assert_eq!(b.fire(), ["S.W -1 ack 0 again"]);
    assert_eq!(b.fire(), ["S. -1 ack 0 again"]);
    b.reports(0, 0, Codepoint::NOT_ECT, 0b010);
    assert_eq!(b.next_sent(), "P.EA 0+100 ack 0");
    b.came(0, 1000, Codepoint::CE);
    assert_eq!(b.sent(), [".WA 100 ack 1000 counts0 1,1000"], "it reports marks all the same");
}

/// Section 3.2.2.1, table 4: the third segment reports the codepoint of the SYN-ACK if it is bare, and
/// counts if it is not.
#[test]
fn test_server_reads_the_third_segment_of_the_handshake() {
    for bits in 0..8 {
        let mut b = accepting();
        b.reports(0, 0, Codepoint::NOT_ECT, bits);
        let sends_ect = !matches!(bits, 0b000 | 0b011 | 0b100 | 0b110);
        assert_eq!(b.next_sent().ends_with("ect"), sends_ect, "{bits:03b}");
        let reported = u64::from(bits == 0b110);
        assert_eq!(b.count().ce_reported, reported, "{bits:03b}");
        // The next report counts from 5, or from 6.
        let next = 5 + u16::try_from(reported).unwrap();
        b.count_of(100, next + 1, None);
        assert_eq!(b.count().ce_reported, reported + 1, "{bits:03b}");
        assert_eq!(b.count().ece_acks, u64::from(bits != 0), "{bits:03b}: no answer if cleared");
    }
    let mut b = accepting();
    b.reports(0, 500, Codepoint::NOT_ECT, 6);
    assert_eq!(b.count().ce_reported, 1, "a segment with data counts");
    assert!(b.next_sent().ends_with("ect"));
}

/// Section 3.2.2.1: the answer to a SYN-ACK that came again reports its codepoint, and no count, also
/// after the handshake.
#[test]
fn test_second_report_of_the_syn_ack_is_no_count() {
    let now = Instant::from_millis(1_000_000);
    let stamp = |val| Some(Timestamps { val, ecr: 0 });
    let syn = Segment { mss: Some(1000), ..raw(IRS, SeqNumber(0), SYN.with(ACCURATE)) };
    let syn = Segment { sack_permitted: true, timestamps: stamp(100), ..syn };
    let cfg = ConnConfig { timestamps: true, ..with_ecn(Ecn::Accept) };
    let mut b = Bench::new(Connection::accept(&cfg, now, ISS, 0, &syn), now);
    b.sent();
    for val in 101..104 {
        b.ts = stamp(val);
        b.reports(0, 0, Codepoint::NOT_ECT, 0b010);
    }
    assert_eq!(b.next_sent(), "P.EA 0+100 ack 0 ect");
    b.ts = stamp(104);
    b.count_of(100, 6, None);
    assert_eq!((b.count().ce_reported, b.count().ecn_mangled), (1, 0));
}

/// Section 3.2.2.1, table 3: the client reports the codepoint of the SYN-ACK in a bare ACK before any
/// data, and again when the SYN-ACK comes again. Section 3.2.2.2: one marked SYN-ACK counts.
#[test]
fn test_client_reports_how_the_syn_ack_has_arrived() {
    for (arrived, first, later) in [
        (0, ".W 0 ack 0 counts0 1,0,1", "P.EA 0+100 ack 0 ect counts0 1,0,1"),
        (1, ".EW 0 ack 0 counts0 1,0,1", "P.EA 0+100 ack 0 ect counts0 1,0,1"),
        (2, ".A 0 ack 0 counts0 1,0,1", "P.EA 0+100 ack 0 ect counts0 1,0,1"),
        (3, ".WA 0 ack 0 counts0 1,0,1", "P.WA 0+100 ack 0 ect counts0 1,0,1"),
    ] {
        let mut b = Bench::connecting(&with_ecn(Ecn::Accurate));
        b.sent();
        let syn_ack = b.seg(-1, 0).with(SYN_ACK.with(ace(0b010)));
        let syn_ack = Segment { ecn: codepoint(arrived), ..syn_ack };
        b.recv(&syn_ack);
        b.queue(100);
        assert_eq!(b.sent(), [first, later]);
        b.recv(&syn_ack);
        let again = b.sent();
        assert_eq!(again, [first.replace(" 0 ack", " 100 ack")]);
        assert_eq!(&b.next_sent()[..4], &later[..4], "one marked SYN-ACK counts");
    }
}

/// A server that has sent data has left the handshake, and reads each ACK as a count: also one that
/// answers a SYN-ACK that came again, before or together with the data.
#[test]
fn test_client_reports_no_syn_ack_after_data() {
    for syn_ack_first in [false, true] {
        let mut b = agreed(&with_ecn(Ecn::Accurate));
        let syn_ack = b.seg(-1, 0).with(SYN_ACK.with(ace(0b010)));
        if syn_ack_first {
            b.recv(&syn_ack);
        }
        b.came(0, 100, Codepoint::NOT_ECT);
        if !syn_ack_first {
            b.recv(&syn_ack);
        }
        assert_eq!(b.sent(), [".EA 0 ack 100"]);
    }
}

/// Section 3.2: every acceptable packet with a mark counts, bare ACKs too; bytes count by their
/// codepoint. Section 3.2.2.5.1: at once when marks begin, at every second mark, and at every third
/// without data.
#[test]
fn test_receiver_counts_marks_and_bytes() {
    let mut b = agreed(&with_ecn(Ecn::Accurate));
    b.came(0, 1000, Codepoint::ECT_0);
    b.came(1000, 1000, Codepoint::ECT_0);
    assert_eq!(b.sent(), [".EA 0 ack 2000 counts0 2001"]);
    b.came(2000, 100, Codepoint::CE);
    assert_eq!(b.sent(), [".WA 0 ack 2100 counts0 2001,100"], "at once");
    b.came(2100, 100, Codepoint::CE);
    assert_eq!(b.sent(), [""; 0], "the marks go on");
    b.came(2200, 100, Codepoint::CE);
    assert_eq!(b.sent(), [". 0 ack 2300 counts0 2001,300"], "the second");
    b.came(2300, 100, Codepoint::ECT_1);
    b.came(2400, 2000, Codepoint::NOT_ECT);
    assert_eq!(b.sent(), [". 0 ack 4400 counts0 2001,300,101"]);
    for n in 1..=3 {
        b.came(4400, 0, Codepoint::CE);
        let due: &[&str] = if n == 3 { &[".EW 0 ack 4400"] } else { &[] };
        assert_eq!(b.sent(), due, "{n}");
    }
    assert_eq!(b.count().ce_segments, 6);
    // Out of the window, nothing counts.
    b.came(100_000, 100, Codepoint::CE);
    b.came(0, 100, Codepoint::CE);
    b.sent();
    assert_eq!(b.count().ce_segments, 6);
}

/// A peer that uses ECT(1) gets the order that puts it first.
#[test]
fn test_option_has_the_order_of_the_codepoint_that_comes() {
    let mut b = agreed(&with_ecn(Ecn::Accurate));
    b.came(0, 1000, Codepoint::ECT_1);
    b.came(1000, 1000, Codepoint::CE);
    assert_eq!(b.sent(), [".WA 0 ack 2000 counts1 1001,1000"]);
}

/// Section 3.2.2.5.1 with the segments of a burst: an ACK where marks begin, and one for every second
/// mark. A burst of 64 marks is reported without a round of the field ACE in one ACK.
#[test]
fn test_burst_has_an_ack_for_each_beginning_and_each_second_mark() {
    let mut b = agreed(&with_ecn(Ecn::Accurate));
    let burst = [false, true, false, true, true, true, false];
    for (n, ce) in (0..).zip(burst) {
        b.came(100 * n, 100, if ce { Codepoint::CE } else { Codepoint::ECT_0 });
    }
    let sent = b.sent();
    assert_eq!(
        sent,
        [".WA 0 ack 200", ".EWA 0 ack 400", ".E 0 ack 600", ".E 0 ack 700 counts0 301,400"]
    );
    for ce in [[true, true], [true, false]] {
        let mut b = agreed(&with_ecn(Ecn::Accurate));
        for n in 0..64 {
            let ce = ce[usize::try_from(n % 2).unwrap()];
            b.came(10 * n, 10, if ce { Codepoint::CE } else { Codepoint::ECT_0 });
        }
        let mut last = 5;
        let mut all = 0;
        while let Some(t) = b.tx() {
            let ace = t.flags.0 >> 6 & 7;
            let more = ace.wrapping_sub(last) & 7;
            assert!(t.counts.is_some() || more > 0);
            (last, all) = (ace, all + more);
        }
        assert_eq!(u64::from(all), b.count().ce_segments, "a round of the field is lost");
    }
}

/// Data carry the ACKs: a bare ACK goes all the same when marks have come, and after a mebibyte.
#[test]
fn test_option_goes_although_data_carry_the_acks() {
    let mut b = agreed(&ConnConfig { recv_window: 60_000, ..with_ecn(Ecn::Accurate) });
    b.came(0, 1000, Codepoint::CE);
    b.queue(100);
    let first = [".WA 0 ack 1000 counts0 1,1000", "P.WA 0+100 ack 1000 ect counts0 1,1000,1"];
    assert_eq!(b.sent(), first);
    let mut options = 0;
    for n in 0..1100 {
        b.came(1000 + 1000 * n, 1000, Codepoint::ECT_0);
        b.queue(10);
        let sent = b.sent();
        options += sent.iter().filter(|s| s.contains("counts")).count();
        let end = i32::try_from(b.c.snd_max().0).unwrap();
        b.count_of(end, 5, None);
        b.sent();
    }
    assert_eq!(options, 2, "the first bytes with ECT(0), and a mebibyte");
}

/// Sections 3.2.3.2.1 and 3.2.3.3: short segments with data have the option if they are the first, or if
/// there is news: marks, and the first bytes of a codepoint. Full segments have no room.
#[test]
fn test_first_data_and_news_take_the_option_along() {
    let mut b = agreed(&with_ecn(Ecn::Accurate));
    b.queue(100);
    assert_eq!(b.sent(), ["P.EA 0+100 ack 0 ect counts0 1,0,1"], "the first");
    b.came(0, 100, Codepoint::ECT_0);
    b.queue(1000);
    assert_eq!(b.sent(), ["P.EA 100+1000 ack 100 ect"], "a full segment");
    b.queue(989);
    assert_eq!(b.sent(), ["P.EA 1100+989 ack 100 ect"], "11 bytes of room");
    b.queue(988);
    assert_eq!(b.sent(), ["P.EA 2089+988 ack 100 ect counts0 101"], "12 bytes of room");
    b.count_of(3077, 5, None);
    b.came(100, 100, Codepoint::ECT_0);
    assert_eq!(b.next_sent(), "P.EA 3077+100 ack 200 ect", "no news");
    b.came(200, 100, Codepoint::ECT_1);
    assert_eq!(b.next_sent(), "P.EA 3177+100 ack 300 ect counts0 201,0,101");
    // Marks draw a bare ACK at once, which has told them before the data go.
    b.came(300, 100, Codepoint::CE);
    b.queue(100);
    let sent = b.sent();
    assert_eq!(sent, [".WA 3277 ack 400 counts0 201,100,101", "P.WA 3277+100 ack 400 ect"]);
}

/// Section 3.2.3.2.2: the path may have dropped a segment for its option, so it goes again without.
#[test]
fn test_repeated_data_go_without_option() {
    let mut b = agreed(&with_ecn(Ecn::Accurate));
    b.queue(100);
    assert_eq!(b.sent(), ["P.EA 0+100 ack 0 ect counts0 1,0,1"]);
    b.came(0, 100, Codepoint::ECT_0);
    b.sent();
    let sent = b.wait(Duration::from_secs(2));
    let again: Vec<_> = sent.iter().filter(|(_, s)| s.contains(" 0+100 ")).collect();
    assert!(again.len() > 1, "{sent:?}");
    assert!(again.iter().all(|(_, s)| !s.contains("counts")), "{sent:?}");
    // Without SACK, data after those go again as the window opens, whatever there is to report and
    // room for.
    let mut b = agreed(&ConnConfig { sack: false, ..with_ecn(Ecn::Accurate) });
    b.queue(1900);
    assert_eq!(b.sent().len(), 2);
    b.wait(Duration::from_secs(2));
    let ecn = Codepoint::ECT_1;
    let s = Segment { len: 100, ecn, ..b.seg(0, 1000).with(ACK.with(ace(5))) };
    let p = b.recv(&s).payload.unwrap();
    b.c.accept_payload(b.now, p.pos, p.len);
    assert_eq!(b.sent(), ["P.EA 1000+900 ack 100 again"]);
}

/// Section 3.2.2.5.2: what an option or the length of an acknowledgment shows about rounds of the
/// field ACE.
#[test]
fn test_sender_counts_marks_through_rounds_of_the_field() {
    let bytes = |n| counts(1, n, 1);
    // Marks, in packets, that (acknowledged packets, ACE, option) report.
    for (acked, n, option, marks) in [
        (1, 6, None, 1),
        (4, 6, bytes(1000), 1),
        (10, 5, bytes(0), 0),
        (10, 5, bytes(8000), 8),
        (10, 6, bytes(9000), 9),
        // Small segments: the field is right.
        (10, 7, bytes(20), 2),
        // No option after the handshake's: the next will say more.
        (10, 6, None, 1),
    ] {
        let mut b = agreed(&with_ecn(Ecn::Accurate));
        b.queue(30_000);
        assert_eq!(b.sent().len(), 10);
        b.count_of(1000 * acked, n, option);
        assert_eq!(b.count().ce_reported, marks, "{acked} {n} {option:?}");
    }
    // Without options the longest likely run counts: the examples of appendix A.2.1.
    for (acked, n, marks) in [(9, 7, 2), (10, 7, 10), (8, 5, 8), (7, 5, 0)] {
        let mut b = accepting();
        b.reports(0, 0, Codepoint::NOT_ECT, 0b010);
        b.queue(30_000);
        assert_eq!(b.sent().len(), 10);
        b.count_of(1000 * acked, n, None);
        assert_eq!(b.count().ce_reported, marks, "{acked} {n}");
    }
}

/// A peer that always acknowledges many packets at once hides no marks thereby (appendix A.2.1).
#[test]
fn test_sender_assumes_no_rounds_for_a_peer_with_long_acknowledgments() {
    let mut b = accepting();
    b.reports(0, 0, Codepoint::NOT_ECT, 0b010);
    b.window = 65_535;
    let mut acked = 0;
    for round in 0..20 {
        b.queue(10_000);
        b.sent();
        acked += 10_000;
        b.count_of(acked, 5, None);
        let mean_is_low = round < 8;
        assert!(mean_is_low || b.count().ce_reported < 80, "{round}");
    }
    let before = b.count().ce_reported;
    b.queue(10_000);
    b.sent();
    b.count_of(acked + 10_000, u16::try_from(5 + before).unwrap(), None);
    assert_eq!(b.count().ce_reported, before);
}

/// Reports reduce the window of NewReno once for a window of data, never with CWR, which is part of
/// the count.
#[test]
fn test_marks_reduce_window_once_for_a_window_of_data() {
    let mut b = agreed(&with_ecn(Ecn::Accurate));
    b.queue(30_000);
    assert_eq!(b.sent().len(), 10);
    b.count_of(1000, 6, None);
    assert_eq!((b.window(), b.c.stats().ssthresh), (5000, 5000));
    b.count_of(6000, 7, None);
    assert_eq!(b.window(), 5000, "once");
    assert_eq!(b.sent(), [".EA 10000+1000 ack 0 ect"], "no CWR");
    b.count_of(11_000, 0, None);
    assert_eq!((b.window(), b.count().ecn_reductions), (2500, 2));
    assert_eq!((b.count().ece_acks, b.count().ce_reported), (3, 3));
    // Without a new mark nothing happens, and the window grows again.
    for _ in 0..3 {
        b.queue(30_000);
        b.sent();
        let max = i32::try_from(b.c.snd_max().0).unwrap();
        b.count_of(max, 0, None);
    }
    assert!(b.window() > 2500);
}

/// DCTCP takes the bytes of the option, not all that the acknowledgment covers.
#[test]
fn test_dctcp_reduces_window_by_the_marked_bytes() {
    let window = |option| {
        let cfg = ConnConfig { congestion: Congestion::Dctcp, ..with_ecn(Ecn::Accurate) };
        let mut b = agreed(&cfg);
        let mut acked = 0;
        // The average begins at 1; unmarked windows make it smaller.
        for _ in 0..60 {
            b.queue(10_000);
            b.now = b.now + RTT;
            b.sent();
            acked = i32::try_from(b.c.snd_max().0).unwrap();
            b.count_of(acked, 5, counts(1, 0, 1));
        }
        let before = b.window();
        b.queue(10_000);
        b.sent();
        b.count_of(acked + 10_000, 6, option);
        f64::from(b.window()) / f64::from(before)
    };
    let (tenth, all) = (window(counts(1, 1000, 1)), window(counts(1, 10_000, 1)));
    // A sixteenth of the marked part, halved, beside what is left of the average.
    assert!(all < 0.97 && tenth > 0.98, "{tenth} {all}");
}

/// A segment that others have overtaken has old counts.
#[test]
fn test_overtaken_segment_reports_nothing() {
    let mut b = stamped();
    b.queue(5000);
    b.sent();
    b.ts = Some(Timestamps { val: 102, ecr: 0 });
    b.count_of(2000, 7, None);
    b.ts = Some(Timestamps { val: 101, ecr: 0 });
    b.count_of(1000, 6, None);
    b.count_of(2000, 6, None);
    assert_eq!(b.count().ce_reported, 2);
    // The same number again, but later.
    b.ts = Some(Timestamps { val: 103, ecr: 0 });
    b.count_of(2000, 0, None);
    assert_eq!(b.count().ce_reported, 3);
    // Its mark counts with the next that acknowledges bytes.
    assert_eq!(b.count().ece_acks, 1);
    b.count_of(3000, 0, None);
    assert_eq!(b.count().ece_acks, 2);
}

/// A bare ACK overtakes data that the peer sent before it, with an older count. The data are the next in
/// order and acknowledge as much, and their count still is old.
#[test]
fn test_data_that_a_later_acknowledgment_has_overtaken_report_nothing() {
    for stamped in [false, true] {
        let cfg = ConnConfig { timestamps: stamped, ..with_ecn(Ecn::Accurate) };
        let mut b = Bench::connecting(&cfg);
        b.sent();
        let stamp = |val| stamped.then_some(Timestamps { val, ecr: 0 });
        b.ts = stamp(100);
        let syn_ack = Segment { mss: Some(1000), sack_permitted: true, ..b.seg(-1, 0) };
        b.recv(&syn_ack.with(SYN_ACK.with(ace(0b010))));
        b.queue(5000);
        b.sent();
        b.ts = stamp(102);
        b.recv(&b.seg(1000, 2000).with(ACK.with(ace(6))));
        b.ts = stamp(101);
        let data = |b: &mut Bench, seq, n| {
            let s = Segment { len: 1000, ..b.seg(seq, 2000).with(ACK.with(ace(n))) };
            let p = b.recv(&s).payload.unwrap();
            b.c.accept_payload(b.now, p.pos, p.len);
        };
        data(&mut b, 0, 5);
        assert_eq!(b.count().ce_reported, 1, "{stamped}");
        // The twin: the next data are newer.
        b.ts = stamp(103);
        data(&mut b, 1000, 7);
        assert_eq!(b.count().ce_reported, 2, "{stamped}");
    }
}

/// TS.Recent stays while our ACK is delayed (RFC 7323 section 4.3), and does not tell which of two bare
/// ACKs is the later.
#[test]
fn test_acknowledgment_that_was_overtaken_within_a_delayed_ack_reports_nothing() {
    let mut b = stamped();
    b.queue(5000);
    b.sent();
    b.ts = Some(Timestamps { val: 101, ecr: 0 });
    b.came(0, 100, Codepoint::NOT_ECT);
    for (val, n, reported) in [(103, 6, 1), (102, 5, 1), (104, 7, 2)] {
        b.ts = Some(Timestamps { val, ecr: 0 });
        b.count_of(2000, n, None);
        assert_eq!(b.count().ce_reported, reported, "{val}");
    }
}

/// Section 3.2.2.4: three marked packets beyond a gap make the field 0 before anything is acknowledged.
/// The option explains it, once an ACK has room for one.
#[test]
fn test_marks_beyond_a_gap_are_no_cleared_field() {
    for (option, mangled) in [(counts(1, 2964, 1), 0), (None, 1)] {
        let mut b = stamped();
        b.queue(4940);
        assert_eq!(b.sent().len(), 5);
        let at = |n: u32| ISS.advance(1).advance(988 * n);
        for (val, end) in [(101, 4), (102, 5)] {
            b.ts = Some(Timestamps { val, ecr: 0 });
            let mut sack = SackBlocks::default();
            sack.push(SackBlock { start: at(1), end: at(end) });
            b.recv_selective(&b.seg(0, 0).with(ACK.with(ace(0))), &sack);
            assert_eq!((b.count().ecn_mangled, b.count().ce_reported), (0, 3));
        }
        // Data have no room for it.
        b.ts = Some(Timestamps { val: 103, ecr: 0 });
        let data = Segment { len: 100, ..b.seg(0, 988).with(ACK.with(ace(0))) };
        b.recv(&data);
        assert_eq!((b.count().ecn_mangled, b.count().ce_reported), (0, 3));
        b.ts = Some(Timestamps { val: 104, ecr: 0 });
        b.count_of(4940, 0, option);
        assert_eq!((b.count().ecn_mangled, b.count().ce_reported), (mangled, 3));
    }
}

/// Section 3.2.2.4: a first report of 0 comes from a path that clears the field. The sender believes
/// no report then, and sends without ECT.
#[test]
fn test_cleared_field_ends_ect_and_the_answer_to_marks() {
    let mut b = agreed(&with_ecn(Ecn::Accurate));
    b.queue(10_000);
    assert_eq!(b.sent().len(), 10);
    b.count_of(1000, 0, None);
    assert_eq!((b.count().ecn_mangled, b.count().ece_acks), (1, 0));
    b.count_of(10_000, 3, None);
    assert_eq!(b.count().ece_acks, 0);
    assert_eq!(b.next_sent(), "P.EA 10000+100 ack 0");
    // Three marks make the field 0, where the acknowledgment has room for them: the next report tells,
    // or the option.
    for (first, second, mangled) in [(None, 0, 1), (None, 1, 0), (counts(1, 3000, 1), 0, 0)] {
        let mut b = agreed(&with_ecn(Ecn::Accurate));
        b.queue(10_000);
        assert_eq!(b.sent().len(), 10);
        b.count_of(3000, 0, first);
        assert_eq!(b.count().ecn_mangled, 0);
        b.count_of(10_000, second, None);
        assert_eq!(b.count().ecn_mangled, mangled, "{first:?} {second}");
    }
    // Its own counts go on (section 3.1.5).
    b.reports(0, 1000, Codepoint::CE, 3);
    assert_eq!(b.sent(), [".WA 10100 ack 1000 counts0 1,1000"]);
}

/// Section 3.2.3.2.4: an option with a cleared counter is ignored, now and later.
#[test]
fn test_cleared_option_is_ignored() {
    for first in [counts(0, 0, 1), counts(1, 0, 0)] {
        let mut b = Bench::connecting(&with_ecn(Ecn::Accurate));
        b.sent();
        let syn_ack = Segment { mss: Some(1000), ..b.seg(-1, 0) };
        b.recv_counted(&syn_ack.with(SYN_ACK.with(ace(0b010))), first);
        b.queue(10_000);
        b.sent();
        b.count_of(10_000, 7, counts(1, 2000, 1));
        assert_eq!(b.count().ce_reported, 10, "as without options");
    }
}

/// Section 3.2.3.2.5: options that report marked bytes while the field ACE counts no packet.
#[test]
fn test_options_that_contradict_the_field_end_ect() {
    let mut b = agreed(&with_ecn(Ecn::Accurate));
    b.queue(4000);
    assert_eq!(b.sent().len(), 4);
    for n in 1..=3 {
        assert_eq!(b.count().ecn_mangled, 0, "{n}");
        b.count_of(1000 * n, 5, counts(1, 1000 * n.unsigned_abs(), 1));
    }
    assert_eq!((b.count().ecn_mangled, b.count().ce_reported), (1, 0));
    b.count_of(4000, 5, None);
    b.wait(b.c.stats().rto);
    assert_eq!(b.next_sent(), "P.EA 4000+100 ack 0");
}

/// A probe of the path MTU is longer than other segments: its mark is one, whatever its bytes.
#[test]
fn test_marked_probe_of_the_path_mtu_is_one_mark() {
    let cfg = ConnConfig { mss: 4000, path_mtu: PathMtu::On, ..with_ecn(Ecn::Accurate) };
    let mut b = agreed(&cfg);
    b.queue(20_000);
    assert_eq!(b.sent()[1], ".EA 1024+4000 ack 0 ect");
    b.count_of(1024, 5, None);
    b.count_of(5024, 6, counts(1025, 4000, 1));
    assert_eq!((b.count().ce_reported, b.count().mtu_raises), (1, 1));
}

/// A field has the low 24 bits of its counter, at either end.
#[test]
fn test_counters_go_round_at_24_bits() {
    let mut b = agreed(&ConnConfig { recv_window: 60_000, ..with_ecn(Ecn::Accurate) });
    let mut last = String::new();
    let mut seq = 0;
    while b.c.rcv_nxt().0 < (1 << 24) + 100_000 {
        b.came(seq, 50_000, Codepoint::ECT_0);
        seq += 50_000;
        last = b.sent().pop().unwrap_or(last);
    }
    let e0b = (1 + b.c.rcv_nxt().0) & 0x00ff_ffff;
    assert!(e0b < 200_000 && last.ends_with(&format!("counts0 {e0b}")), "{last}");

    let mut b = agreed(&with_ecn(Ecn::Accurate));
    b.queue(3000);
    b.sent();
    // The counter stands near its end, says the peer, and then beyond.
    b.count_of(1000, 6, counts(1, 0x00ff_ff00, 1));
    let before = b.count().ce_reported;
    b.count_of(2000, u16::try_from(5 + before + 1).unwrap() & 7, counts(1, 0x0000_02e8, 1));
    assert_eq!(b.count().ce_reported, before + 1, "1000 bytes more");
}

/// A count goes round at 2^24, and may be anything that a peer likes.
#[test]
fn test_hostile_counts_cost_a_window_and_nothing_else() {
    let mut b = agreed(&with_ecn(Ecn::Accurate));
    for n in 1..200 {
        b.queue(5000);
        b.now = b.now + RTT;
        if b.sent().is_empty() {
            b.wait(b.c.stats().rto);
        }
        let max = i32::try_from(b.c.snd_max().0).unwrap();
        let fields = [u32::MAX - n, n.wrapping_mul(0x00ff_ffff), 7 * n];
        let len = u8::try_from(n % 4).unwrap();
        let option = ByteCounts { reversed: n % 3 == 0, fields, len };
        b.count_of(max, u16::try_from(n).unwrap(), Some(option));
    }
    assert!(b.window() >= 1000 && b.c.state() == State::Established);
}
