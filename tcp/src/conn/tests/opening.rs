//! Handshakes and the options that they negotiate.

use super::*;

#[test]
fn test_syn_sent_syn_ack_establishes() {
    let mut b = Bench::connecting(&plain());
    let syn = b.tx().unwrap();
    assert_eq!((syn.seq, syn.flags, syn.mss), (ISS, SYN, Some(1000)));
    assert_eq!((syn.window_scale, syn.timestamps, syn.window), (None, None, 10_000));
    assert_eq!(b.tx(), None);
    b.recv(&b.seg(-1, 0).with(SYN_ACK));
    assert_eq!(b.c.state(), State::Established);
    assert_eq!(b.sent(), [". 0 ack 0"]);
    assert_eq!(b.events(), [ConnEvent::Connected]);
    assert_eq!(b.c.poll_timeout(), None);
}

#[test]
fn test_syn_received_ack_establishes() {
    let mut b = Bench::accepting(&plain());
    assert_eq!(b.sent(), ["S. -1 ack 0"]);
    b.ack(0);
    assert_eq!(b.c.state(), State::Established);
    assert_eq!(b.events(), [ConnEvent::Connected]);
    assert_eq!(b.sent(), strings(&[]));
}

#[test]
fn test_syn_received_accepts_ack_with_data_and_fin() {
    let mut b = Bench::accepting(&plain());
    b.sent();
    let s = Segment { len: 10, ..b.seg(0, 0).with(FIN) };
    let p = b.recv(&s).payload.unwrap();
    assert_eq!(b.c.state(), State::Established);
    b.c.accept_payload(b.now, p.pos, p.len);
    assert_eq!(b.c.state(), State::CloseWait);
    assert_eq!(b.sent(), [". 0 ack 11"]);
    assert_eq!(b.events(), [ConnEvent::Connected, ConnEvent::PeerClosed]);
}

#[test]
fn test_syn_sent_syn_is_a_simultaneous_open() {
    let mut b = Bench::connecting(&plain());
    b.sent();
    b.recv(&b.seg(-1, 0).with(SYN));
    assert_eq!(b.c.state(), State::SynReceived);
    assert_eq!(b.sent(), ["S. -1 ack 0 again"]);
    // The peer's own SYN-ACK completes the handshake; a bare ACK would too.
    b.recv(&b.seg(-1, 0).with(SYN_ACK));
    assert_eq!(b.c.state(), State::Established);
    assert_eq!(b.sent(), [". 0 ack 0"]);
    assert_eq!(b.events(), [ConnEvent::Connected]);
}

#[test]
fn test_two_simultaneous_active_opens_establish() {
    let cfg = ethernet();
    let (now, q) = (Instant::from_millis(5), ByteQueue::default());
    let mut a = Connection::connect(&cfg, now, ISS, 1);
    let mut z = Connection::connect(&cfg, now, IRS, 2);
    let mut from_a = vec![a.poll_transmit(now, &q).unwrap()];
    let mut from_z = vec![z.poll_transmit(now, &q).unwrap()];
    for _ in 0..4 {
        for t in core::mem::take(&mut from_z) {
            a.handle_segment(now, &arrived(&t));
        }
        for t in core::mem::take(&mut from_a) {
            z.handle_segment(now, &arrived(&t));
        }
        from_a.extend(core::iter::from_fn(|| a.poll_transmit(now, &q)));
        from_z.extend(core::iter::from_fn(|| z.poll_transmit(now, &q)));
    }
    assert_eq!((a.state(), z.state()), (State::Established, State::Established));
    assert!(from_a.is_empty() && from_z.is_empty());
    assert_eq!(a.emss(), 1448);
}

/// Returns a sent segment as its receiver sees it.
pub(super) fn arrived(t: &TxSegment) -> Segment {
    Segment {
        seq: t.seq,
        ack: t.ack,
        flags: t.flags,
        window: t.window,
        len: t.len,
        mss: t.mss,
        window_scale: t.window_scale,
        sack_permitted: t.sack_permitted,
        timestamps: t.timestamps,
        ecn: if t.ect { Codepoint::ECT_0 } else { Codepoint::NOT_ECT },
    }
}

#[test]
fn test_syn_sent_bad_ack_is_reset() {
    for ack in [-1, 1] {
        let mut b = Bench::connecting(&plain());
        b.sent();
        b.recv(&b.seg(-1, ack).with(SYN_ACK));
        assert_eq!(b.c.state(), State::SynSent);
        assert_eq!(b.sent(), [format!("R {ack}")]);
    }
}

#[test]
fn test_syn_sent_rst_refuses_only_with_a_good_ack() {
    let rst = Flags::RST.with(Flags::ACK);
    let mut b = Bench::connecting(&plain());
    b.sent();
    b.recv(&b.seg(-1, 0).with(RST));
    b.recv(&b.seg(-1, 1).with(rst));
    assert_eq!(b.c.state(), State::SynSent);
    assert_eq!(b.sent(), strings(&[]));
    b.recv(&b.seg(-1, 0).with(rst));
    assert_eq!(b.c.state(), State::Closed);
    assert_eq!(b.events(), [ConnEvent::Refused]);
    assert_eq!(b.c.poll_timeout(), None);
}

#[test]
fn test_syn_sent_plain_segment_is_dropped() {
    let mut b = Bench::connecting(&plain());
    b.sent();
    b.recv(&b.seg(0, 0));
    assert_eq!((b.c.state(), b.sent()), (State::SynSent, vec![]));
}

/// RFC 9293 MUST-23: retries of a SYN last at least three minutes.
#[test]
fn test_syn_sent_silence_retries_then_times_out() {
    let mut b = Bench::connecting(&plain());
    b.sent();
    let tries = b.wait(Duration::from_secs(400));
    let at: Vec<_> = tries.iter().map(|(t, _)| t / 1000).collect();
    assert_eq!(at, [1, 3, 7, 15, 31, 63, 123]);
    assert!(tries.iter().all(|(_, s)| s == "S -1 again"));
    assert_eq!(b.events(), [ConnEvent::TimedOut]);
    assert_eq!(b.c.state(), State::Closed);
    assert_eq!(b.c.stats().counters.timeouts, 8);
}

#[test]
fn test_syn_sent_gives_up_after_183_seconds_not_before() {
    let mut b = Bench::connecting(&plain());
    b.sent();
    b.wait(Duration::from_millis(182_999));
    assert_eq!(b.c.state(), State::SynSent);
    b.wait(MS);
    assert_eq!(b.c.state(), State::Closed);
}

/// RFC 5681 section 3.1: neither the SYN-ACK nor its acknowledgment grows the window, whether the
/// acknowledgment comes alone, late, or with data.
#[test]
fn test_acknowledgment_of_our_syn_ack_leaves_cwnd_at_the_initial_window() {
    for (len, lost) in [(0, false), (100, false), (0, true)] {
        for sack in [false, true] {
            let mut b = Bench::accepting(&ConnConfig { sack, ..plain() });
            b.sent();
            assert_eq!(b.c.stats().cwnd, 10_000);
            if lost {
                b.wait(1500 * MS);
            }
            let ack = Segment { len, ..b.seg(0, 0) };
            b.recv(&ack);
            assert_eq!(b.c.state(), State::Established);
            let initial = if lost { 1000 } else { 10_000 };
            assert_eq!(b.c.stats().cwnd, initial, "{len} bytes, lost {lost}, sack {sack}");
            // The same ACK comes once more.
            b.recv(&Segment { len: 0, ..ack });
            assert_eq!(b.c.stats().cwnd, initial);
        }
    }
}

#[test]
fn test_syn_received_silence_retries_then_times_out() {
    let cfg = ConnConfig { syn_ack_retries: 2, ..plain() };
    let mut b = Bench::accepting(&cfg);
    b.sent();
    let tries = b.wait(Duration::from_secs(60));
    assert_eq!(
        tries,
        [(1000, "S. -1 ack 0 again".to_string()), (3000, "S. -1 ack 0 again".to_string())]
    );
    assert_eq!(b.events(), [ConnEvent::TimedOut]);
}

#[test]
fn test_syn_received_duplicate_syn_sends_syn_ack_again() {
    let mut b = Bench::in_state(State::SynReceived);
    b.recv(&b.seg(-1, 0).with(SYN));
    assert_eq!(b.sent(), ["S. -1 ack 0 again"]);
    assert_eq!(b.c.state(), State::SynReceived);
}

/// A SYN that comes again and again does not keep the attempt alive, and does not get an answer
/// each time.
#[test]
fn test_syn_received_repeated_syns_are_counted_and_do_not_put_off_the_end() {
    let cfg = ConnConfig { syn_ack_retries: 2, ..plain() };
    let mut b = Bench::accepting(&cfg);
    b.sent();
    let (start, mut answers, mut timeouts) = (b.now, 0, Vec::new());
    while b.c.state() != State::Closed {
        for _ in 0..100 {
            b.recv(&b.seg(-1, 0).with(SYN));
            answers += b.sent().len();
        }
        timeouts.extend(b.wait(500 * MS));
        assert!(b.now - start <= 8000 * MS, "kept alive by repeated SYNs");
    }
    assert_eq!(b.events(), [ConnEvent::TimedOut]);
    assert_eq!((b.now - start, timeouts.len()), (7000 * MS, 2));
    let c = b.c.stats().counters;
    assert_eq!((answers, c.duplicate_segments), (70, 1400), "ten a second");
    assert_eq!(c.challenge_acks_suppressed, 1400 - 70);
}

#[test]
fn test_syn_received_bad_ack_is_reset() {
    for ack in [-1, 1] {
        let mut b = Bench::in_state(State::SynReceived);
        b.recv(&b.seg(0, ack));
        assert_eq!(b.sent(), [format!("R {ack}")]);
        assert_eq!(b.c.state(), State::SynReceived);
    }
}

/// RFC 9293 MUST-11: the meaning of a RST depends on the side that opened.
#[test]
fn test_syn_received_rst_depends_on_the_opener() {
    let mut b = Bench::in_state(State::SynReceived);
    b.recv(&b.seg(0, 0).with(RST));
    assert_eq!((b.c.state(), b.events()), (State::Closed, vec![ConnEvent::Reset]));

    let mut b = Bench::connecting(&plain());
    b.sent();
    b.recv(&b.seg(-1, 0).with(SYN));
    b.sent();
    b.recv(&b.seg(0, 0).with(RST));
    assert_eq!((b.c.state(), b.events()), (State::Closed, vec![ConnEvent::Refused]));
}

#[test]
fn test_syn_received_new_syn_in_window_forgets_the_attempt() {
    let mut b = Bench::in_state(State::SynReceived);
    b.recv(&b.seg(5, 0).with(SYN));
    assert_eq!(b.c.state(), State::Closed);
    // A SYN outside the window draws a challenge instead.
    let mut b = Bench::in_state(State::SynReceived);
    b.recv(&b.seg(10_000, 0).with(SYN));
    assert_eq!((b.c.state(), b.sent()), (State::SynReceived, strings(&[". 0 ack 0"])));
}

#[test]
fn test_syn_received_close_waits_for_the_handshake() {
    let mut b = Bench::in_state(State::SynReceived);
    b.queue(10);
    b.c.close();
    assert_eq!((b.c.state(), b.sent()), (State::SynReceived, vec![]));
    b.ack(0);
    assert_eq!(b.c.state(), State::FinWait1);
    assert_eq!(b.sent(), ["FP. 0+10 ack 0"]);
}

#[test]
fn test_syn_sent_is_dropped_by_close_and_abort() {
    for end in [Connection::close, Connection::abort] {
        let mut b = Bench::in_state(State::SynSent);
        end(&mut b.c);
        assert_eq!(b.c.state(), State::Closed);
        assert_eq!((b.events(), b.sent()), (vec![ConnEvent::Aborted], vec![]));
        assert_eq!(b.c.poll_timeout(), None);
    }
}

/// RFC 5681 section 3.1: one segment after a lost SYN; RFC 6298 5.7: three seconds.
#[test]
fn test_lost_syn_reduces_cwnd_to_one_segment() {
    let mut b = Bench::connecting(&plain());
    b.sent();
    b.wait(1000 * MS);
    b.recv(&b.seg(-1, 0).with(SYN_ACK));
    b.queue(5000);
    assert_eq!(b.sent().len(), 1, "one full segment carries the ACK");
    let s = b.c.stats();
    assert_eq!((s.srtt, s.rto, s.cwnd), (None, 3000 * MS, 536));
}

#[test]
fn test_handshake_measures_round_trip_and_leaves_cwnd_unchanged() {
    let mut b = Bench::connecting(&plain());
    b.sent();
    b.now = b.now + 30 * MS;
    b.recv(&Segment { mss: Some(1000), ..b.seg(-1, 0).with(SYN_ACK) });
    assert_eq!(b.c.stats().srtt, Some(30 * MS));
    assert_eq!(b.c.stats().cwnd, 10_000);
}

/// RFC 5681 section 3.1: neither the SYN-ACK nor the ACK of ours opens the window. This also holds
/// when the peer opens, with data on its ACK, or when both sides open at once.
#[test]
fn test_passive_and_simultaneous_handshakes_leave_cwnd_unchanged() {
    for len in [0, 100] {
        let mut b = Bench::accepting(&plain());
        b.queue(50_000);
        b.sent();
        assert_eq!(b.c.stats().cwnd, 10_000);
        b.recv(&Segment { len, ..b.seg(0, 0) });
        assert_eq!((b.c.state(), b.c.stats().cwnd), (State::Established, 10_000), "{len}");
        assert_eq!(b.sent().len(), 10, "{len}");
    }
    let mut b = Bench::connecting(&plain());
    b.sent();
    b.recv(&Segment { mss: Some(1000), ..b.seg(-1, 0).with(SYN) });
    b.sent();
    b.recv(&b.seg(-1, 0).with(SYN_ACK));
    assert_eq!((b.c.state(), b.c.stats().cwnd), (State::Established, 10_000));
}

#[test]
fn test_effective_mss_is_smaller_mss_less_options() {
    let mss = |cfg: &ConnConfig, peer: Option<u16>, ts: bool| {
        let timestamps = ts.then_some(Timestamps { val: 1, ecr: 0 });
        let syn = Segment { mss: peer, timestamps, ..raw(IRS, SeqNumber(0), SYN) };
        Connection::accept(cfg, Instant::ZERO, ISS, 0, &syn).emss()
    };
    let cfg = ConnConfig { mss: 1460, ..ethernet() };
    assert_eq!(mss(&cfg, Some(1460), true), 1448);
    assert_eq!(mss(&cfg, Some(1460), false), 1460);
    assert_eq!(mss(&cfg, Some(9000), false), 1460);
    assert_eq!(mss(&cfg, Some(700), false), 700);
    assert_eq!(mss(&cfg, None, false), 536);
    assert_eq!(mss(&ConnConfig { default_peer_mss: 1220, ..cfg }, None, false), 1220);
    // The connection does not accept an absurd MSS.
    assert_eq!(mss(&cfg, Some(64), true), 52);
    assert_eq!(mss(&cfg, Some(63), true), 52);
    assert_eq!(mss(&cfg, Some(0), true), 52);
}

#[test]
fn test_window_scale_is_offered_and_used_when_both_do() {
    let cfg = ConnConfig { recv_window: 1 << 20, ..ethernet() };
    let mut b = Bench::connecting(&cfg);
    let syn = b.tx().unwrap();
    assert_eq!((syn.window_scale, syn.window), (Some(5), 65_535));
    b.recv(&Segment { window_scale: Some(7), window: 1000, ..b.seg(-1, 0).with(SYN_ACK) });
    // The window of a SYN is not scaled; later windows are.
    assert_eq!(b.c.stats().snd_wnd, 1000);
    assert_eq!(b.tx().unwrap().window, 32_768);
    b.window = 1000;
    b.ack(0);
    assert_eq!(b.c.stats().snd_wnd, 128_000);
}

#[test]
fn test_window_scale_is_off_unless_both_offer_it() {
    let cfg = ConnConfig { recv_window: 1 << 20, timestamps: false, ..ethernet() };
    let syn = raw(IRS, SeqNumber(0), SYN);
    let mut b = Bench::new(Connection::accept(&cfg, Instant::ZERO, ISS, 0, &syn), Instant::ZERO);
    let tx = b.tx().unwrap();
    assert_eq!((tx.window_scale, tx.window), (None, 65_535));
    b.ack(0);
    b.data(0, 10);
    b.wait(50 * MS);
    b.data(10, 10);
    b.now = b.now + 50 * MS;
    b.c.handle_timeout(b.now);
    assert!(b.tx().unwrap().window > 65_000);
    assert_eq!(b.c.stats().snd_wnd, 65_535);
    // We do not scale when our own configuration forbids it.
    let cfg = ConnConfig { window_scaling: false, ..cfg };
    let syn = Segment { window_scale: Some(7), ..syn };
    let mut c = Connection::accept(&cfg, Instant::ZERO, ISS, 0, &syn);
    assert_eq!(c.poll_transmit(Instant::ZERO, &ByteQueue::default()).unwrap().window_scale, None);
}

#[test]
fn test_window_scale_of_zero_is_still_negotiated() {
    let cfg = ConnConfig { recv_window: 65_535, ..ethernet() };
    let syn = Segment { window_scale: Some(0), ..raw(IRS, SeqNumber(0), SYN) };
    let mut c = Connection::accept(&cfg, Instant::ZERO, ISS, 0, &syn);
    let tx = c.poll_transmit(Instant::ZERO, &ByteQueue::default()).unwrap();
    assert_eq!(tx.window_scale, Some(0));
}

#[test]
fn test_window_scale_beyond_14_counts_as_14() {
    for (offered, window) in [(14, 1 << 14), (15, 1 << 14), (255, 1 << 14), (13, 1 << 13)] {
        let cfg = ConnConfig { timestamps: false, ..ethernet() };
        let mut b = Bench::connecting(&cfg);
        b.sent();
        b.recv(&Segment { window_scale: Some(offered), ..b.seg(-1, 0).with(SYN_ACK) });
        b.window = 1;
        b.ack(0);
        assert_eq!(b.c.stats().snd_wnd, window);
    }
}

#[test]
fn test_syn_ack_has_only_options_that_syn_offered() {
    let cfg = ethernet();
    let q = ByteQueue::default();
    let bare = raw(IRS, SeqNumber(0), SYN);
    let mut c = Connection::accept(&cfg, Instant::ZERO, ISS, 0, &bare);
    let tx = c.poll_transmit(Instant::ZERO, &q).unwrap();
    assert_eq!((tx.timestamps, tx.window_scale, tx.mss), (None, None, Some(1460)));
    let rich =
        Segment { timestamps: Some(Timestamps { val: 77, ecr: 0 }), window_scale: Some(3), ..bare };
    let mut c = Connection::accept(&cfg, Instant::ZERO, ISS, 9, &rich);
    let tx = c.poll_transmit(Instant::ZERO, &q).unwrap();
    assert_eq!(tx.timestamps, Some(Timestamps { val: 9, ecr: 77 }));
    assert_eq!(tx.window_scale, Some(5));
}

#[test]
fn test_syn_payload_is_accepted_when_retransmitted() {
    let syn = Segment { len: 100, mss: Some(1000), ..raw(IRS, SeqNumber(0), SYN) };
    let mut b =
        Bench::new(Connection::accept(&plain(), Instant::ZERO, ISS, 0, &syn), Instant::ZERO);
    assert_eq!(b.sent(), ["S. -1 ack 0"]);
    b.ack(0);
    assert_eq!(b.data(0, 100).unwrap().len, 100);
}

/// RFC 3168 section 6.1.1: for a host without ECN a SYN that asks for ECN is a SYN like others. The
/// SYN-ACK says so by having neither bit, and no later segment has one.
#[test]
fn test_syn_that_requests_ecn_is_answered_without_ecn() {
    const ECE_CWR: Flags = Flags(0xc0);
    let cfg = ConnConfig { ecn: Ecn::Off, ..plain() };
    let now = Instant::from_millis(1_000_000);
    let syn = Segment { mss: Some(1000), ..raw(IRS, SeqNumber(0), SYN.with(ECE_CWR)) };
    let mut b = Bench::new(Connection::accept(&cfg, now, ISS, 0, &syn), now);
    assert_eq!(b.tx().unwrap().flags, SYN_ACK);
    b.recv(&b.seg(0, 0));
    b.queue(5000);
    // The connection accepts data with an echo of congestion, although a host that asked for ECN
    // must not send it here.
    let data = Segment { len: 100, ..b.seg(0, 0).with(ACK.with(ECE_CWR)) };
    assert!(b.recv(&data).payload.is_some());
    let cwnd = b.c.stats().cwnd;
    while let Some(tx) = b.tx() {
        assert_eq!(tx.flags.0 & ECE_CWR.0, 0);
    }
    assert_eq!(b.c.stats().cwnd, cwnd);
}
