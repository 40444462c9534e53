//! ECN (RFC 3168) and DCTCP's echoes (RFC 8257): negotiation, marks, echoes, and peers that use the
//! bits as they like.

use super::rack::RTT;
use super::*;

const NONE: Flags = Flags(0);
const ECE: Flags = Flags::ECE;
const CWR: Flags = Flags::CWR;
const BOTH: Flags = Flags::ECE.with(Flags::CWR);

fn with_ecn(ecn: Ecn) -> ConnConfig {
    ConnConfig { ecn, ..plain() }
}

fn dctcp() -> ConnConfig {
    ConnConfig { congestion: Congestion::Dctcp, sack: true, ..plain() }
}

/// Returns a bench whose SYN asked for ECN and whose peer agreed.
pub(super) fn agreed(cfg: &ConnConfig) -> Bench {
    let mut b = Bench::connecting(cfg);
    assert_eq!(b.sent(), ["SEW -1"]);
    b.now = b.now + RTT;
    let syn_ack = Segment { mss: Some(cfg.mss), sack_permitted: cfg.sack, ..b.seg(-1, 0) };
    b.recv(&syn_ack.with(SYN_ACK.with(ECE)));
    assert_eq!(b.sent(), [". 0 ack 0"]);
    b.events();
    b
}

impl Bench {
    /// Receives a segment of `len` bytes with these flags, as `ce` or not.
    fn marked(&mut self, seq: i32, len: u32, flags: Flags, ce: bool) {
        let ack = i32::try_from(self.c.snd_una().0).unwrap();
        let ecn = if ce { Codepoint::CE } else { Codepoint::NOT_ECT };
        let s = Segment { len, ecn, ..self.seg(seq, ack).with(ACK.with(flags)) };
        if let Some(p) = self.recv(&s).payload {
            self.c.accept_payload(self.now, p.pos, p.len);
        }
    }

    /// Receives an ACK that echoes a mark.
    fn echo(&mut self, ack: i32) {
        let s = self.seg(i32::try_from(self.c.rcv_nxt().0).unwrap(), ack).with(ACK.with(ECE));
        self.recv(&s);
    }

    fn cwnd(&self) -> u32 {
        self.c.stats().cwnd
    }

    /// Returns true if new data go out as capable of ECN.
    fn uses_ecn(&mut self) -> bool {
        self.queue(100);
        let sent = self.sent();
        assert_eq!(sent.len(), 1);
        sent[0].contains(" ect")
    }
}

/// RFC 3168 section 6.1.1, the SYN's side. Some stacks reflect the bits of a SYN: both bits in a
/// SYN-ACK are no agreement.
#[test]
fn test_active_open_uses_ecn_if_it_asked_and_syn_ack_agrees() {
    for ecn in [Ecn::Off, Ecn::Accept, Ecn::Request] {
        for bits in [NONE, ECE, CWR, BOTH] {
            let mut b = Bench::connecting(&with_ecn(ecn));
            let asks = ecn == Ecn::Request;
            assert_eq!(b.sent(), [if asks { "SEW -1" } else { "S -1" }]);
            b.recv(&b.seg(-1, 0).with(SYN_ACK.with(bits)));
            b.sent();
            assert_eq!(b.uses_ecn(), asks && bits == ECE, "{ecn:?} {bits:?}");
        }
    }
}

/// RFC 3168 section 6.1.1, the SYN-ACK's side.
#[test]
fn test_passive_open_uses_ecn_if_syn_asks() {
    for ecn in [Ecn::Off, Ecn::Accept, Ecn::Request] {
        for bits in [NONE, ECE, CWR, BOTH] {
            let now = Instant::from_millis(1_000_000);
            let syn = raw(IRS, SeqNumber(0), SYN.with(bits));
            let mut b = Bench::new(Connection::accept(&with_ecn(ecn), now, ISS, 0, &syn), now);
            let agrees = ecn != Ecn::Off && bits != NONE;
            // A single bit of the two asks for accurate ECN by now (RFC 9768 section 3.1.3).
            let answer = match bits {
                BOTH => "S.E -1 ack 0",
                _ => "S.W -1 ack 0 counts0 1,0,1",
            };
            assert_eq!(b.sent(), [if agrees { answer } else { "S. -1 ack 0" }]);
            let accurate = if bits == BOTH { NONE } else { CWR };
            b.recv(&b.seg(0, 0).with(ACK.with(accurate)));
            assert_eq!(b.uses_ecn(), agrees, "{ecn:?} {bits:?}");
        }
    }
}

/// RFC 3168 sections 6.1.1 and 6.1.1.1: a SYN that is sent again asks for nothing, and then nothing
/// is agreed on, whatever the SYN-ACK says.
#[test]
fn test_syn_sent_again_asks_for_no_ecn() {
    let mut b = Bench::connecting(&with_ecn(Ecn::Request));
    assert_eq!(b.sent(), ["SEW -1"]);
    assert_eq!(b.fire(), ["S -1 again"]);
    b.recv(&b.seg(-1, 0).with(SYN_ACK.with(ECE)));
    b.sent();
    assert!(!b.uses_ecn());
}

/// RFC 3168 section 6.1.1: a peer that repeats its SYN without the bits uses no ECN.
#[test]
fn test_repeated_syn_without_bits_takes_agreement_back() {
    let now = Instant::from_millis(1_000_000);
    let syn = raw(IRS, SeqNumber(0), SYN.with(BOTH));
    let mut b = Bench::new(Connection::accept(&plain(), now, ISS, 0, &syn), now);
    assert_eq!(b.sent(), ["S.E -1 ack 0"]);
    b.recv(&syn);
    assert_eq!(b.sent(), ["S.E -1 ack 0 again"]);
    b.recv(&syn.with(SYN));
    assert_eq!(b.sent(), ["S. -1 ack 0 again"]);
    b.ack(0);
    assert!(!b.uses_ecn());
}

#[test]
fn test_crossed_syns_agree_if_both_ask() {
    for (ecn, bits) in [(Ecn::Request, BOTH), (Ecn::Request, NONE), (Ecn::Accept, BOTH)] {
        let mut b = Bench::connecting(&with_ecn(ecn));
        b.sent();
        b.recv(&b.seg(-1, 0).with(SYN.with(bits)));
        let agreed = ecn == Ecn::Request && bits == BOTH;
        assert_eq!(b.sent(), [if agreed { "S.E -1 ack 0 again" } else { "S. -1 ack 0 again" }]);
        b.ack(0);
        assert_eq!(b.uses_ecn(), agreed, "{ecn:?} {bits:?}");
    }
}

/// RFC 3168 sections 5.2, 6.1.4 and 6.1.5: ACKs, retransmissions, lone FINs, window probes and
/// keepalives are not capable of ECN.
#[test]
fn test_only_new_data_are_capable_of_ecn() {
    let mut b = agreed(&ConnConfig { sack: true, ..with_ecn(Ecn::Request) });
    b.queue(10_000);
    let sent = b.sent();
    assert!(sent.len() == 10 && sent.iter().all(|s| s.ends_with(" ect")), "{sent:?}");
    b.sack(0, &[(1000, 5000)]);
    assert_eq!(b.sent(), [". 0+1000 ack 0 again"]);
    b.sack(10_000, &[]);
    b.data(0, 100);
    b.c.set_recv_window(9000);
    b.marked(100, 2000, NONE, false);
    assert_eq!(b.sent(), [". 10000 ack 2100"], "a bare ACK");
    b.c.close();
    assert_eq!(b.sent(), ["F. 10000 ack 2100"], "a lone FIN");

    let mut b = agreed(&with_ecn(Ecn::Request));
    b.window = 0;
    b.ack(0);
    b.queue(10);
    assert_eq!(b.sent(), [""; 0]);
    assert_eq!(b.fire(), [". 0+1 ack 0"], "a window probe");
}

/// RFC 3168 section 6.1.5: no ECT on what a smaller path MTU or a timeout makes go again.
#[test]
fn test_data_sent_again_after_timeout_or_path_mtu_change_are_not_capable_of_ecn() {
    let mut b = agreed(&with_ecn(Ecn::Request));
    b.queue(3000);
    assert_eq!(b.sent().len(), 3);
    b.c.limit_emss(b.now, 600);
    let sent = b.sent();
    assert_eq!(sent.len(), 5);
    assert!(sent.iter().all(|s| s.ends_with(" again")), "{sent:?}");
    let again = b.fire();
    assert!(again.iter().all(|s| s.ends_with(" again")), "{again:?}");
    b.ack(3000);
    assert!(b.uses_ecn(), "new data again");
}

/// RFC 3168 section 6.1.3: the receiver echoes a mark in every ACK until CWR arrives. CWR counts
/// before the mark of the same segment.
#[test]
fn test_receiver_echoes_mark_until_cwr() {
    let mut b = agreed(&with_ecn(Ecn::Request));
    b.marked(0, 100, NONE, true);
    assert_eq!(b.sent(), [".E 0 ack 100"], "at once");
    b.marked(100, 1000, NONE, false);
    b.marked(1100, 1000, NONE, false);
    assert_eq!(b.sent(), [".E 0 ack 2100"]);
    b.queue(10);
    assert_eq!(b.sent(), ["P.E 0+10 ack 2100 ect"], "data too");
    b.marked(2100, 1000, CWR, true);
    b.marked(3100, 1000, NONE, false);
    assert_eq!(b.sent(), [".E 10 ack 4100"], "a new mark");
    b.marked(4100, 1000, CWR, false);
    b.marked(5100, 1000, NONE, false);
    assert_eq!(b.sent(), [". 10 ack 6100"]);
    assert_eq!(b.count().ce_segments, 2);
}

/// RFC 3168 section 6.1.5: marks on segments outside the window do not count, nor on bare ACKs.
#[test]
fn test_mark_outside_window_or_on_bare_ack_is_ignored() {
    let mut b = agreed(&with_ecn(Ecn::Request));
    b.data(0, 1000);
    b.marked(-500, 400, NONE, true);
    b.marked(50_000, 400, NONE, true);
    b.marked(1000, 0, NONE, true);
    assert_eq!(b.sent(), [". 0 ack 1000"]);
    assert_eq!(b.count().ce_segments, 0);
}

/// RFC 3168 section 6.1.2: once in a window of data, with CWR on the first new segment alone, and
/// without growth by the echoes.
#[test]
fn test_sender_reduces_window_once_for_a_window_of_data_and_reports_it() {
    let mut b = agreed(&ConnConfig { sack: true, ..with_ecn(Ecn::Request) });
    b.queue(30_000);
    assert_eq!(b.sent().len(), 10);
    b.echo(1000);
    assert_eq!((b.cwnd(), b.c.stats().ssthresh), (5000, 5000));
    for ack in 2..=6 {
        b.echo(1000 * ack);
        assert_eq!(b.cwnd(), 5000, "once");
    }
    assert_eq!(b.sent(), [".W 10000+1000 ack 0 ect"]);
    b.echo(7000);
    assert_eq!(b.sent(), [". 11000+1000 ack 0 ect"], "said once");
    b.echo(10_000);
    assert_eq!(b.cwnd(), 5000, "the last byte of that window");
    b.echo(11_000);
    assert_eq!((b.cwnd(), b.count().ecn_reductions), (2000, 2), "half of what was outstanding");
    assert_eq!(b.count().ece_acks, 9);
}

/// RFC 9438 section 4.6: marks reduce CUBIC's window to 0.7.
#[test]
fn test_mark_reduces_window_of_cubic_to_seven_tenths() {
    let mut b = agreed(&ConnConfig { congestion: Congestion::Cubic, ..with_ecn(Ecn::Request) });
    b.queue(30_000);
    b.sent();
    b.echo(1000);
    assert_eq!((b.cwnd(), b.c.stats().ssthresh), (7000, 7000));
}

/// RFC 3168 sections 5 and 6.1.2: marks and losses of one window of data reduce the window once.
#[test]
fn test_echo_within_recovery_or_after_timeout_reduces_nothing_more() {
    for timeout in [false, true] {
        let mut b = agreed(&ConnConfig { sack: true, ..with_ecn(Ecn::Request) });
        b.queue(30_000);
        b.sent();
        if timeout {
            b.wait(300 * MS);
        } else {
            b.sack(0, &[(1000, 6000)]);
            b.sent();
        }
        let ssthresh = b.c.stats().ssthresh;
        b.echo(6000);
        b.echo(i32::try_from(b.c.snd_max().0).unwrap());
        assert_eq!((b.c.stats().ssthresh, b.count().ecn_reductions), (ssthresh, 0));
        let sent = b.sent();
        let new = sent.iter().find(|s| s.ends_with(" ect")).unwrap();
        assert!(new.starts_with(".W "), "CWR for the loss: {sent:?}");
    }
}

/// A recovery that turns out to be needless is undone, but not the answer to a mark that was echoed
/// within it: the loss has stood for the mark (RFC 3168 section 6.1.2).
#[test]
fn test_echo_within_a_needless_recovery_keeps_the_window_reduced() {
    for (echoes, ssthresh) in [(false, u32::MAX), (true, 5000)] {
        let mut b = agreed(&ConnConfig { sack: true, ..with_ecn(Ecn::Request) });
        b.queue(10_000);
        b.sent();
        b.now = b.now + RTT;
        b.sack(0, &[(1000, 4000)]);
        assert_eq!(b.sent(), [". 0+1000 ack 0 again"]);
        b.now = b.now + RTT / 2;
        if echoes {
            b.echo(10_000);
        } else {
            b.ack(10_000);
        }
        b.sack(10_000, &[(0, 1000)]);
        assert_eq!(b.count().recoveries_undone, 1);
        assert_eq!(b.c.stats().ssthresh, ssthresh);
        assert_eq!(b.cwnd() > 5000, !echoes, "{}", b.cwnd());
    }
}

/// The acknowledgment that shows a timeout to have been premature echoes a mark: the window is half of
/// the outstanding bytes, as after any mark, and not one segment as after a loss.
#[test]
fn test_echo_with_the_answer_to_a_premature_timeout_halves_the_window() {
    let cfg = with_ecn(Ecn::Request);
    let cfg = ConnConfig { sack: true, timestamps: true, rto_min: 5 * MS, ..cfg };
    let mut b = Bench::connecting(&cfg);
    b.sent();
    b.now = b.now + RTT;
    b.ts = Some(Timestamps { val: 1, ecr: 0 });
    let syn_ack = Segment { mss: Some(1000), sack_permitted: true, ..b.seg(-1, 0) };
    b.recv(&syn_ack.with(SYN_ACK.with(ECE)));
    b.sent();
    b.queue(9880);
    assert_eq!(b.sent().len(), 10);
    let before = b.stamp();
    while b.count().timeouts == 0 {
        b.fire();
    }
    assert_eq!(b.cwnd(), 988);
    b.ts = Some(Timestamps { val: 1, ecr: before });
    b.echo(988 * 8);
    assert_eq!((b.count().spurious_timeouts, b.count().recoveries_undone), (1, 1));
    assert_eq!((b.cwnd(), b.c.stats().ssthresh), (4940, 4940));
}

/// The window that was reduced by mistake is restored, and so is the right of the next mark to reduce
/// it.
#[test]
fn test_echo_after_an_undone_recovery_reduces_the_window_at_once() {
    let mut b = agreed(&ConnConfig { sack: true, ..with_ecn(Ecn::Request) });
    b.queue(10_000);
    b.sent();
    b.now = b.now + RTT;
    b.sack(0, &[(1000, 4000)]);
    b.sent();
    b.now = b.now + RTT / 2;
    b.sack(4000, &[(0, 1000)]);
    assert_eq!((b.count().recoveries_undone, b.c.stats().ssthresh), (1, u32::MAX));
    b.echo(5000);
    assert_eq!((b.count().ecn_reductions, b.c.stats().ssthresh), (1, 3000));
}

/// The last acknowledgment of a connection echoes a mark at the least window: no segment is left to
/// hold back, and no timer.
#[test]
fn test_echo_that_ends_the_connection_starts_no_timer() {
    let mut b = agreed(&ConnConfig { pacing: Pacing::Off, ..with_ecn(Ecn::Request) });
    let mut acked = 0;
    for len in [10_000, 5000, 2000, 2000] {
        b.queue(len);
        b.sent();
        b.now = b.now + RTT;
        acked += i32::try_from(len).unwrap();
        b.echo(acked);
    }
    assert_eq!(b.cwnd(), 1000);
    b.wait(b.c.stats().rto);
    let before = b.count().ecn_reductions;
    b.recv(&b.seg(0, acked).with(FIN));
    b.queue(500);
    b.c.close();
    assert_eq!(b.sent(), ["FP.W 19000+500 ack 1 ect"]);
    b.recv(&b.seg(1, acked + 501).with(ACK.with(ECE)));
    assert_eq!((b.c.state(), b.c.poll_timeout()), (State::Closed, None));
    assert_eq!(b.count().ecn_reductions, before + 1);
}

/// A peer that echoes marks for ever slows the connection down to a segment in flight, and stops
/// neither it nor the other direction.
#[test]
fn test_endless_echoes_leave_a_segment_in_flight() {
    for congestion in [Congestion::NewReno, Congestion::Cubic, Congestion::Dctcp] {
        let cfg = ConnConfig { congestion, sack: true, ..with_ecn(Ecn::Request) };
        let mut b = agreed(&cfg);
        let mut acked = 0;
        for _ in 0..200 {
            b.now = b.now + RTT;
            b.queue(20_000);
            if b.sent().is_empty() {
                // At the least window the next segment waits for a timeout.
                b.wait(b.c.stats().rto);
            }
            let max = i32::try_from(b.c.snd_max().0).unwrap();
            assert!(max > acked, "{congestion:?}: stuck at {max}");
            acked = max;
            b.echo(acked);
            b.sent();
        }
        let least = if congestion == Congestion::Dctcp { 2000 } else { 1000 };
        assert_eq!(b.cwnd(), least, "{congestion:?}");
        b.marked(0, 1000, NONE, false);
        assert_eq!(b.c.rcv_nxt(), StreamPos(1000));
    }
}

/// Bits that were not agreed on mean nothing, nor does the reserved bit of the old nonce.
#[test]
fn test_bits_without_agreement_change_nothing() {
    for ecn in [Ecn::Off, Ecn::Accept] {
        let mut b = Bench::established_with(&with_ecn(ecn));
        b.queue(20_000);
        assert_eq!(b.sent().len(), 10);
        b.marked(0, 1000, BOTH, true);
        b.marked(1000, 1000, NONE, true);
        assert_eq!(b.sent(), [". 10000 ack 2000"]);
        b.echo(1000);
        assert_eq!(b.cwnd(), 11_000, "grows as by any ACK");
        let c = b.count();
        assert_eq!((c.ce_segments, c.ece_acks, c.ecn_reductions), (0, 0, 0));
    }
}

/// RFC 8257 section 3.2: with DCTCP an ACK says whether the bytes before it were marked, also where
/// one burst has both kinds.
#[test]
fn test_dctcp_receiver_acknowledges_marked_and_other_bytes_apart() {
    let mut b = agreed(&dctcp());
    b.marked(0, 100, NONE, true);
    assert_eq!(b.sent(), [".E 0 ack 100"], "a change, at once");
    b.marked(100, 1000, NONE, true);
    b.marked(1100, 1000, NONE, true);
    assert_eq!(b.sent(), [".E 0 ack 2100"]);
    b.marked(2100, 100, NONE, false);
    assert_eq!(b.sent(), [". 0 ack 2200"], "a change, at once");
    // All in one burst.
    for (n, ce) in (0..).zip([false, false, true, true, false, true]) {
        b.marked(2200 + 100 * n, 100, NONE, ce);
    }
    let expect = [". 0 ack 2400", ".E 0 ack 2600", ". 0 ack 2700", ".E 0 ack 2800"];
    assert_eq!(b.sent(), expect);
    // More changes than the connection owes ACKs for.
    for n in 0..100 {
        b.marked(2800 + 50 * n, 50, NONE, n % 2 == 0);
    }
    let sent = b.sent();
    assert_eq!(sent.len(), 17);
    assert_eq!(sent[16], ". 0 ack 7800");
}

/// The window that an owed ACK offers ends where that of the last ACK does.
#[test]
fn test_owed_ack_offers_the_same_right_edge() {
    let mut b = agreed(&dctcp());
    b.marked(0, 1000, NONE, false);
    b.marked(1000, 1000, NONE, true);
    b.marked(2000, 1000, NONE, true);
    let (first, second) = (b.tx().unwrap(), b.tx().unwrap());
    let edge = |t: &TxSegment| t.ack.advance(t.window.into()).distance(IRS);
    assert_eq!((first.flags, second.flags), (ACK, ACK.with(ECE)));
    assert_eq!(edge(&first), edge(&second));
    assert_eq!(b.tx(), None);
}

/// RFC 8257 section 3.3: the window shrinks by half of the marked part.
#[test]
fn test_dctcp_sender_reduces_window_in_proportion_to_marks() {
    let mut b = agreed(&dctcp());
    b.queue(10_000);
    b.sent();
    // The average begins at 1; unmarked windows make it smaller.
    let mut acked = 10_000;
    b.ack(acked);
    for _ in 0..20 {
        b.queue(10_000);
        b.now = b.now + RTT;
        b.sent();
        acked += 10_000;
        b.ack(acked);
    }
    let before = b.cwnd();
    b.queue(10_000);
    b.sent();
    b.echo(acked + 1000);
    let left = f64::from(b.cwnd()) / f64::from(before);
    // 15/16 to the power of 20 is 0.275; then this ACK, all of whose bytes were marked.
    assert!((0.80..0.87).contains(&left), "{left}");
    assert_eq!(b.count().ecn_reductions, 1);
}

/// RFC 8257 section 3.5: a loss halves the window.
#[test]
fn test_dctcp_sender_halves_window_at_a_loss() {
    let mut b = agreed(&dctcp());
    b.queue(10_000);
    b.sent();
    b.sack(0, &[(1000, 6000)]);
    assert_eq!(b.c.stats().ssthresh, 5000);
}

/// A quiet connection keeps what it agreed on, and what it owes.
#[test]
fn test_ecn_outlives_idle_time() {
    let mut b = agreed(&with_ecn(Ecn::Request));
    b.marked(0, 100, NONE, true);
    b.sent();
    b.wait(60_000 * MS);
    b.marked(100, 1000, NONE, false);
    b.marked(1100, 1000, NONE, false);
    assert_eq!(b.sent(), [".E 0 ack 2100"]);
    assert!(b.uses_ecn());
}

/// RFC 3168 section 6.1.2 and RFC 9438 section 4.6: a window of one segment cannot shrink, so the
/// next segment waits for as long as the retransmission timer would.
#[test]
fn test_echo_at_the_least_window_holds_the_next_segment_back() {
    let mut b = agreed(&with_ecn(Ecn::Request));
    for round in 0.. {
        b.queue(20_000);
        if b.sent().is_empty() {
            break;
        }
        assert!(round < 10);
        b.now = b.now + RTT;
        b.echo(i32::try_from(b.c.snd_max().0).unwrap());
    }
    assert_eq!(b.cwnd(), 1000);
    let rto = b.c.stats().rto;
    let waited = b.wait(rto);
    assert_eq!(waited.len(), 1, "{waited:?}");
    assert_eq!(waited[0].0, rto.as_millis());
}

/// RFC 3168 section 6.1.5: a window probe that comes with a mark is answered by its echo.
#[test]
fn test_mark_of_a_window_probe_is_echoed() {
    let mut b = agreed(&with_ecn(Ecn::Request));
    b.c.set_recv_window(0);
    b.marked(0, 10_000, NONE, false);
    assert_eq!(b.sent(), [". 0 ack 10000"]);
    b.marked(10_000, 1, NONE, true);
    assert_eq!(b.sent(), [".E 0 ack 10000"]);
}
