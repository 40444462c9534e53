//! Half-open connections: each segment that may come before the handshake is complete.

use core::time::Duration;

use heddle_types::ConnectError;

use super::handshakes::{C, accepted, ack_of, ask, end, full_syn, listening, open};
use super::*;
use crate::Timestamps;

/// The host of most of these tests.
const A1: handshakes::Source = (A, 1);

/// Returns a stack with a half-open connection of A:1, whose SYN is 100, and our initial number.
fn waiting() -> (Stack<ByteQueue>, u32) {
    let mut b = listening_b(4);
    let s = ask(&mut b, ms(1), A1, &syn(100));
    assert_eq!(b.connections(), 1);
    (b, s.seq.0)
}

fn put(b: &mut Stack<ByteQueue>, now: Instant, seg: &TxSegment, data: &[u8]) -> FrameOutcome {
    handshakes::put(b, now, A1, seg, data)
}

fn answer(b: &mut Stack<ByteQueue>, now: Instant, seg: &TxSegment, data: &[u8]) -> Option<Segment> {
    handshakes::answer(b, now, A1, seg, data)
}

/// Completes the handshake, which must still be possible.
fn completes(mut b: Stack<ByteQueue>, iss: u32) {
    put(&mut b, ms(900), &segment(101, iss.wrapping_add(1), Flags::ACK), b"");
    accepted(&mut b);
    assert_eq!((b.half_opens.len(), b.conns.len()), (0, 1));
}

#[test]
fn test_half_open_connection_agrees_to_every_option_and_keeps_them() {
    let mut b = listening(4, |c| c.conn.ecn = crate::Ecn::Accept);
    let s = ask(&mut b, ms(1), A1, &full_syn(100));
    assert_eq!(s.flags, Flags::SYN.with(Flags::ACK).with(Flags::ECE));
    assert_eq!((s.mss, s.sack_permitted, s.window_scale), (Some(1460), true, Some(9)));
    let ts = s.timestamps.unwrap();
    assert_eq!(ts.ecr, 5000);
    put(&mut b, ms(4), &TxSegment { window: 100, ..ack_of(&s) }, b"");
    let id = accepted(&mut b);
    // The window is scaled, each segment has a timestamp and ECT, and the handshake was measured.
    b.user_mut(id).unwrap().push(&[7; 20_000]);
    b.notify_send(id);
    let out = frames(&mut b, ms(4));
    let sent: u32 = out.iter().map(|f| read_tcp(f).1.len).sum();
    assert!(sent > 11_000, "{sent} bytes");
    let (_, first) = read_tcp(&out[0]);
    assert_eq!((first.len, first.timestamps.unwrap().ecr, out[0][15] & 3), (1448, 5001, 2));
    assert_eq!(b.conn(id).unwrap().stats().srtt, Some(Duration::from_millis(3)));
}

#[test]
fn test_data_and_fin_may_come_with_the_ack_of_the_handshake() {
    let (mut b, iss) = waiting();
    let fin = segment(101, iss.wrapping_add(1), Flags::ACK.with(Flags::FIN));
    let FrameOutcome::Conn { conn, payload: Some(p), .. } = put(&mut b, ms(2), &fin, b"hello")
    else {
        panic!("payload")
    };
    assert_eq!((p.len, p.in_order), (5, true));
    b.accept_payload(ms(2), conn, p.pos, p.len);
    let said: Vec<_> = events(&mut b).into_iter().map(|e| e.1).collect();
    assert!(matches!(
        said[..],
        [StackEvent::Accepted { .. }, StackEvent::Conn(ConnEvent::PeerClosed)]
    ));
    assert_eq!(read_tcp(&frames(&mut b, ms(2))[0]).1.ack.0, 107);
}

#[test]
fn test_data_after_a_lost_ack_and_a_lost_segment_complete_the_handshake() {
    let (mut b, iss) = waiting();
    let later = segment(111, iss.wrapping_add(1), Flags::ACK);
    let out = put(&mut b, ms(2), &later, b"world");
    assert!(matches!(out, FrameOutcome::Conn { payload: Some(p), .. } if !p.in_order));
    accepted(&mut b);
}

#[test]
fn test_only_the_exact_reset_ends_a_half_open_connection() {
    let (mut b, iss) = waiting();
    assert_eq!(answer(&mut b, ms(2), &segment(99, 0, Flags::RST), b""), None);
    let challenge = answer(&mut b, ms(2), &segment(102, 0, Flags::RST), b"").unwrap();
    assert_eq!((challenge.flags, challenge.ack.0), (Flags::ACK, 101));
    assert_eq!(challenge.seq.0, iss.wrapping_add(1));
    assert_eq!(answer(&mut b, ms(2), &segment(101 + 70_000, 0, Flags::RST), b""), None);
    assert_eq!((b.connections(), b.counters().rx_rst_unknown), (1, 2));
    assert_eq!(answer(&mut b, ms(2), &segment(101, 0, Flags::RST), b""), None);
    assert_eq!((b.connections(), b.counters().half_open_failed, b.peers.len()), (0, 1, 0));
    // Its ACK comes too late.
    let late = answer(&mut b, ms(3), &segment(101, iss.wrapping_add(1), Flags::ACK), b"").unwrap();
    assert_eq!(late.flags, Flags::RST);
}

#[test]
fn test_wrong_ack_is_refused_and_the_half_open_connection_stays() {
    let (mut b, iss) = waiting();
    let wrong = iss.wrapping_add(2);
    let reset = answer(&mut b, ms(2), &segment(101, wrong, Flags::ACK), b"").unwrap();
    assert_eq!((reset.flags, reset.seq.0), (Flags::RST, wrong));
    completes(b, iss);
}

#[test]
fn test_segment_outside_the_window_of_a_half_open_connection_is_challenged() {
    let (mut b, iss) = waiting();
    for seq in [100, 50, 101 + 70_000] {
        let ack = segment(seq, iss.wrapping_add(1), Flags::ACK);
        let challenge = answer(&mut b, ms(2), &ack, b"").unwrap();
        assert_eq!((challenge.flags, challenge.ack.0), (Flags::ACK, 101), "{seq}");
    }
    assert_eq!(answer(&mut b, ms(2), &segment(101, 0, Flags(0)), b"data"), None, "no ACK");
    completes(b, iss);
}

#[test]
fn test_segment_without_the_timestamp_or_with_an_older_one_completes_no_handshake() {
    let mut b = listening_b(4);
    let s = answer(&mut b, ms(1), &full_syn(100), b"").unwrap();
    let mut ack = segment(101, s.seq.0.wrapping_add(1), Flags::ACK);
    assert_eq!(answer(&mut b, ms(2), &ack, b""), None);
    ack.timestamps = Some(Timestamps { val: 4999, ecr: s.timestamps.unwrap().val });
    let challenge = answer(&mut b, ms(2), &ack, b"").unwrap();
    assert_eq!((challenge.flags, challenge.window), (Flags::ACK, 2048));
    assert!(challenge.timestamps.is_some());
    assert_eq!(events(&mut b), []);
    ack.timestamps = Some(Timestamps { val: 5000, ecr: s.timestamps.unwrap().val });
    put(&mut b, ms(2), &ack, b"");
    assert_eq!(events(&mut b).len(), 1);
}

#[test]
fn test_repeated_syn_is_answered_again_so_often_and_no_more() {
    let (mut b, iss) = waiting();
    let all = (0..50).filter_map(|_| answer(&mut b, ms(2), &syn(100), b""));
    let again: Vec<_> = all.collect();
    assert_eq!(again.len(), 10, "a second's worth");
    assert!(again.iter().all(|s| (s.seq.0, s.flags) == (iss, Flags::SYN.with(Flags::ACK))));
    // The timer goes on as if there had been none.
    assert_eq!(b.poll_timeout(), Some(ms(1001)));
    completes(b, iss);
}

#[test]
fn test_repeated_syn_without_ecn_takes_the_agreement_back() {
    let mut b = listening_b(4);
    assert!(answer(&mut b, ms(1), &full_syn(100), b"").unwrap().flags.has(Flags::ECE));
    let plain = TxSegment { flags: Flags::SYN, ..full_syn(100) };
    assert!(!answer(&mut b, ms(2), &plain, b"").unwrap().flags.has(Flags::ECE));
}

#[test]
fn test_another_syn_in_the_window_forgets_the_attempt_and_one_outside_is_challenged() {
    let (mut b, iss) = waiting();
    let challenge = answer(&mut b, ms(2), &syn(99), b"").unwrap();
    assert_eq!((challenge.flags, challenge.seq.0), (Flags::ACK, iss.wrapping_add(1)));
    assert_eq!(answer(&mut b, ms(2), &syn(102), b""), None);
    assert_eq!((b.connections(), b.counters().half_open_failed), (0, 1));
    assert_eq!(answer(&mut b, ms(3), &syn(102), b"").unwrap().ack.0, 103, "a new attempt");
}

#[test]
fn test_syn_with_the_ack_of_ours_completes_the_handshake() {
    let (mut b, iss) = waiting();
    let both = segment(100, iss.wrapping_add(1), Flags::SYN.with(Flags::ACK));
    let ack = answer(&mut b, ms(2), &both, b"").unwrap();
    assert_eq!((ack.flags, ack.ack.0), (Flags::ACK, 101));
    accepted(&mut b);
}

#[test]
fn test_own_connection_does_not_take_the_ports_of_a_half_open_connection() {
    let (mut b, iss) = waiting();
    assert_eq!(b.connect(ms(2), (A, 1).into(), Some(PORT)), Err(ConnectError::PortInUse));
    completes(b, iss);
}

/// The connection sends what the stack has sent before it existed.
#[test]
fn test_syn_ack_of_the_stack_is_that_of_the_connection() {
    let bools = || [false, true].into_iter();
    let settings = bools().flat_map(|t| bools().flat_map(move |w| bools().map(move |s| (t, w, s))));
    for (stamps, scaling, sack) in settings.clone() {
        for (ours_t, ours_w, ours_s) in settings.clone() {
            for recv_window in [1000, 65_535, 1 << 20, u32::MAX] {
                let cfg = crate::ConnConfig {
                    mss: 1460,
                    recv_window,
                    timestamps: ours_t,
                    window_scaling: ours_w,
                    sack: ours_s,
                    ..crate::ConnConfig::default()
                };
                let syn = Segment {
                    seq: crate::SeqNumber(77),
                    flags: if sack { full_syn(0).flags } else { Flags::SYN },
                    window: 500,
                    mss: Some(1400),
                    window_scale: scaling.then_some(3),
                    sack_permitted: sack,
                    timestamps: stamps.then_some(Timestamps { val: 9, ecr: 0 }),
                    ..Segment::default()
                };
                let iss = crate::SeqNumber(1234);
                let mut conn = crate::Connection::accept(&cfg, ms(7), iss, 50, &syn);
                let theirs = conn.poll_transmit(ms(7), &ByteQueue::default()).unwrap();
                assert_eq!(
                    crate::conn::syn_ack(&cfg, &syn, iss, 57, crate::conn::SynAcks::default()),
                    theirs,
                    "{cfg:?} {syn:?}"
                );
            }
        }
    }
}

/// A thousand handshakes complete while a thousand others do not, in the order in which they come.
#[test]
fn test_syn_acks_take_turns_with_a_connection_that_sends() {
    let mut b = listening(4096, |c| (c.max_conns, c.conn.recv_window) = (4096, 1 << 20));
    let (id, ..) = established(&mut b, ms(1));
    for port in 2000..3000 {
        handshakes::put(&mut b, ms(2), (A, port), &syn(1), b"");
    }
    b.user_mut(id).unwrap().push(&[1; 14_000]);
    b.notify_send(id);
    let out = frames(&mut b, ms(2));
    let data = out.iter().position(|f| read_tcp(f).1.len > 0).unwrap();
    assert!(data <= 16, "{data} SYN-ACKs before the connection");
    assert_eq!(out.iter().filter(|f| read_tcp(f).1.flags.has(Flags::SYN)).count(), 1000);
}

/// Others use the address of A, which has sent no SYN and is silent.
#[test]
fn test_address_that_answers_nothing_gets_so_many_syn_acks_and_no_more() {
    for cookies in [SynCookies::Off, SynCookies::Auto, SynCookies::Always] {
        let mut b = listening(16, |c| c.syn_cookies = cookies);
        let mut asks = |src| {
            b.rest();
            handshakes::answer(&mut b, ms(1), src, &syn(1), b"").is_some()
        };
        assert_eq!((1..=6000).filter(|&port| asks((A, port))).count(), 4096, "{cookies:?}");
        assert!(asks((C, 1)), "another host gets its own");
        assert_eq!(b.counters().syn_acks_limited, 6000 - 4096);
    }
}

#[test]
fn test_host_that_completes_its_handshakes_has_no_limit() {
    for cookies in [SynCookies::Off, SynCookies::Always] {
        let mut b = listening(16, |c| c.syn_cookies = cookies);
        for port in 1..=6000 {
            b.rest();
            let id = open(&mut b, ms(1), (A, port), PORT);
            end(&mut b, id.unwrap_or_else(|| panic!("{cookies:?} {port}")));
            frames(&mut b, ms(1));
        }
    }
}
