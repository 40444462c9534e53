//! Segments that do not belong to a connection: RST, SYN and ACKs of strangers (RFC 5961).

use super::*;

const SYNCHRONISED: [State; 7] = [
    State::Established,
    State::FinWait1,
    State::FinWait2,
    State::CloseWait,
    State::Closing,
    State::LastAck,
    State::TimeWait,
];

fn next(b: &Bench) -> i32 {
    let peer_done =
        matches!(b.c.state(), State::CloseWait | State::Closing | State::LastAck | State::TimeWait);
    i32::try_from(b.c.rcv_nxt().0).unwrap() + i32::from(peer_done)
}

#[test]
fn test_every_state_rst_at_rcv_nxt_resets() {
    for s in SYNCHRONISED {
        let mut b = Bench::in_state(s);
        b.recv(&b.seg(next(&b), 0).with(RST));
        assert_eq!(b.c.state(), State::Closed, "{s:?}");
        let told = if s == State::TimeWait { vec![] } else { vec![ConnEvent::Reset] };
        assert_eq!((b.events(), b.sent()), (told, vec![]), "{s:?}");
        assert_eq!(b.c.poll_timeout(), None);
    }
}

/// RFC 9293 SHLD-2, MUST-66.
#[test]
fn test_rst_with_data_or_at_a_shut_window_resets() {
    let mut b = Bench::established();
    b.recv(&Segment { len: 77, ..b.seg(0, 0).with(RST) });
    assert_eq!(b.events(), [ConnEvent::Reset]);
    let mut b = Bench::established();
    b.c.set_recv_window(0);
    b.data(0, 10_000);
    b.recv(&b.seg(10_000, 0).with(RST));
    assert_eq!(b.events(), [ConnEvent::Reset]);
}

#[test]
fn test_every_state_rst_in_window_is_challenged() {
    for s in SYNCHRONISED {
        let mut b = Bench::in_state(s);
        let n = next(&b);
        b.recv(&b.seg(n + 1, 0).with(RST));
        assert_eq!(b.c.state(), s);
        assert_eq!(b.sent().len(), 1, "{s:?}");
        assert_eq!(b.c.stats().counters.challenge_acks, 1);
    }
}

#[test]
fn test_established_rst_at_the_edges_of_the_window() {
    for (at, answers) in [(-1, 0), (1, 1), (9999, 1), (10_000, 0)] {
        let mut b = Bench::established();
        b.recv(&b.seg(at, 0).with(RST));
        assert_eq!((b.c.state(), b.sent().len()), (State::Established, answers), "{at}");
    }
}

#[test]
fn test_every_state_syn_is_challenged_wherever_it_lies() {
    for s in SYNCHRONISED {
        for at in [-1, 0, 5, 100_000] {
            let mut b = Bench::in_state(s);
            b.recv(&b.seg(at, 0).with(SYN));
            assert_eq!(b.c.state(), s);
            assert_eq!(b.sent().len(), 1, "{s:?} {at}");
            assert_eq!(b.c.stats().counters.challenge_acks, 1);
        }
    }
}

/// Returns a bench with a window of 3000 bytes of which the peer has acknowledged `acked`, and 1000
/// more are outstanding.
fn acknowledged(acked: i32) -> Bench {
    let cfg = plain();
    let mut b = Bench::connecting(&cfg);
    b.sent();
    b.window = 3000;
    b.recv(&Segment { mss: Some(1000), ..b.seg(-1, 0).with(SYN_ACK) });
    b.queue(usize::try_from(acked).unwrap() + 1000);
    for upto in (1000..=acked).step_by(1000) {
        b.sent();
        b.ack(upto);
    }
    b.sent();
    b
}

/// Checks which of these acknowledgment numbers an established connection takes; it challenges the
/// others.
fn takes(acked: i32, acks: &[(i32, bool)]) {
    for &(ack, fine) in acks {
        let mut b = acknowledged(acked);
        let s = Segment { len: 10, ..b.seg(0, ack) };
        let out = b.recv(&s);
        assert_eq!(out.payload.is_some(), fine, "{ack}");
        assert_eq!(b.c.stats().counters.bad_acks, u64::from(!fine));
        assert_eq!(b.sent().len(), usize::from(!fine));
    }
}

/// RFC 5961 section 5.2: SND.UNA - MAX.SND.WND =< SEG.ACK =< SND.NXT.
#[test]
fn test_established_accepts_only_acks_within_the_rfc_5961_range() {
    takes(5000, &[(6000, true), (6001, false), (5000 - 3000, true), (5000 - 3001, false)]);
}

/// Before a window's worth is acknowledged, the range of RFC 5961 reaches below our SYN, where no
/// peer can have an acknowledgment from.
#[test]
fn test_established_accepts_no_ack_of_less_than_our_syn() {
    takes(1000, &[(2000, true), (2001, false), (0, true), (-1, false), (1000 - 3000, false)]);
}

#[test]
fn test_challenge_acks_are_limited_per_second() {
    let mut b = Bench::established();
    let attack = |b: &mut Bench| {
        (0..100)
            .map(|_| {
                b.recv(&b.seg(5, 0).with(RST));
                b.sent().len()
            })
            .sum::<usize>()
    };
    assert_eq!(attack(&mut b), 10);
    b.wait(999 * MS);
    assert_eq!(attack(&mut b), 0);
    b.wait(MS);
    assert_eq!(attack(&mut b), 10);
    assert_eq!(b.c.stats().counters.challenge_acks_suppressed, 90 + 100 + 90);
    let mut b = Bench::established_with(&ConnConfig { challenge_acks: 3, ..plain() });
    assert_eq!(attack(&mut b), 3);
}

/// Two connections that disagree about everything fall silent.
#[test]
fn test_two_desynchronised_connections_stop_exchanging_acks() {
    let (mut a, mut z) = (Bench::established(), Bench::established());
    // Each connection believes the other to be far ahead.
    let mut total = 0;
    a.recv(&a.seg(500_000, 0));
    for _ in 0..1000 {
        while let Some(t) = a.tx() {
            total += 1;
            z.recv(&Segment { seq: t.seq.advance(500_000), ..opening::arrived(&t) });
        }
        while let Some(t) = z.tx() {
            total += 1;
            a.recv(&Segment { seq: t.seq.advance(500_000), ..opening::arrived(&t) });
        }
    }
    assert!(total <= 20, "{total}");
}

#[test]
fn test_established_out_of_window_data_is_acked() {
    let mut b = Bench::established();
    b.data(20_000, 100);
    assert_eq!(b.sent(), [". 0 ack 0"]);
    assert_eq!(b.c.stats().counters.out_of_window, 1);
}

/// A peer that filled our window sends its ACKs from the right edge.
#[test]
fn test_established_ack_at_the_right_edge_counts() {
    let mut b = Bench::established();
    b.queue(100);
    b.sent();
    b.recv(&b.seg(10_000, 100));
    assert_eq!(b.c.snd_una(), StreamPos(100));
    b.queue(100);
    b.sent();
    b.recv(&b.seg(10_001, 200));
    assert_eq!(b.c.snd_una(), StreamPos(100));
}

#[test]
fn test_closed_ignores_everything() {
    let mut b = Bench::in_state(State::Closed);
    for f in [SYN, ACK, FIN, RST, SYN_ACK] {
        assert_eq!(b.recv(&b.seg(0, 0).with(f)), SegmentOutcome::default());
    }
    assert_eq!((b.sent(), b.events()), (vec![], vec![]));
}
