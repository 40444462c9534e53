//! Orderly ends, from every side, and aborts.

use super::*;

#[test]
fn test_active_close_runs_through_time_wait() {
    let mut b = Bench::established();
    b.queue(10);
    b.c.close();
    assert_eq!(b.c.state(), State::FinWait1);
    assert_eq!(b.sent(), ["FP. 0+10 ack 0"]);
    assert_eq!(b.ack(11).acked, Some(StreamPos(10)));
    assert_eq!(b.c.state(), State::FinWait2);
    b.recv(&b.seg(0, 11).with(FIN));
    assert_eq!(b.c.state(), State::TimeWait);
    assert_eq!(b.sent(), [". 11 ack 1"]);
    assert_eq!(b.events(), [ConnEvent::PeerClosed, ConnEvent::Closed]);
    b.wait(999 * MS);
    assert_eq!(b.c.state(), State::TimeWait);
    b.wait(MS);
    assert_eq!(b.c.state(), State::Closed);
    assert_eq!((b.events(), b.c.poll_timeout()), (vec![], None));
}

#[test]
fn test_passive_close_ends_without_time_wait() {
    let mut b = Bench::established();
    b.recv(&b.seg(0, 0).with(FIN));
    assert_eq!(b.sent(), [". 0 ack 1"]);
    // The connection is half open: we still send.
    b.queue(100);
    assert_eq!(b.sent(), ["P. 0+100 ack 1"]);
    b.c.close();
    assert_eq!(b.sent(), ["F. 100 ack 1"]);
    b.recv(&b.seg(1, 101));
    assert_eq!(b.c.state(), State::Closed);
    assert_eq!(b.events(), [ConnEvent::PeerClosed, ConnEvent::Closed]);
    assert_eq!(b.c.poll_timeout(), None);
}

#[test]
fn test_half_closed_connection_still_receives() {
    let mut b = Bench::in_state(State::FinWait2);
    for i in 0..20 {
        let s = Segment { len: 1000, ..b.seg(i * 1000, 1) };
        let p = b.recv(&s).payload.unwrap();
        b.c.accept_payload(b.now, p.pos, p.len);
        b.sent();
    }
    assert_eq!(b.c.rcv_nxt(), StreamPos(20_000));
    assert_eq!(b.c.state(), State::FinWait2);
}

#[test]
fn test_fin_wait_2_times_out_when_peer_sends_nothing() {
    let mut b = Bench::in_state(State::FinWait2);
    b.wait(149_999 * MS);
    let s = Segment { len: 1000, ..b.seg(0, 1) };
    let p = b.recv(&s).payload.unwrap();
    b.c.accept_payload(b.now, p.pos, p.len);
    b.sent();
    // New bytes restart the wait; an ACK or bytes that came before do not.
    b.wait(100_000 * MS);
    b.recv(&s);
    b.recv(&b.seg(1000, 1));
    b.sent();
    b.wait(49_999 * MS);
    assert_eq!((b.c.state(), b.events()), (State::FinWait2, vec![]));
    b.now = b.now + MS;
    b.c.handle_timeout(b.now);
    assert_eq!((b.c.state(), b.events()), (State::Closed, vec![ConnEvent::TimedOut]));
    assert_eq!((b.sent(), b.c.poll_timeout()), (strings(&["R. 1 ack 1000"]), None));
}

#[test]
fn test_fin_wait_2_timer_does_not_apply_in_time_wait() {
    let mut b = Bench::in_state(State::FinWait2);
    b.wait(149_500 * MS);
    b.recv(&b.seg(0, 1).with(FIN));
    b.wait(999 * MS);
    assert_eq!(b.c.state(), State::TimeWait);
    b.wait(MS);
    assert_eq!(b.c.state(), State::Closed);
}

#[test]
fn test_simultaneous_close_passes_through_closing_to_time_wait() {
    let mut b = Bench::established();
    b.c.close();
    assert_eq!(b.sent(), ["F. 0 ack 0"]);
    b.recv(&b.seg(0, 0).with(FIN));
    assert_eq!((b.c.state(), b.sent()), (State::Closing, strings(&[". 1 ack 1"])));
    b.recv(&b.seg(1, 1));
    assert_eq!(b.c.state(), State::TimeWait);
    assert_eq!(b.events(), [ConnEvent::PeerClosed, ConnEvent::Closed]);
}

#[test]
fn test_fin_wait_1_goes_to_time_wait_when_fin_acknowledges_ours() {
    let mut b = Bench::in_state(State::FinWait1);
    b.recv(&b.seg(0, 1).with(FIN));
    assert_eq!(b.c.state(), State::TimeWait);
}

#[test]
fn test_fin_wait_1_goes_to_closing_when_fin_arrives_before_ours_is_sent() {
    let mut b = Bench::established();
    b.window = 0;
    b.ack(0);
    b.queue(10);
    b.c.close();
    b.sent();
    b.recv(&b.seg(0, 0).with(FIN));
    assert_eq!(b.c.state(), State::Closing);
    b.window = 1000;
    b.recv(&b.seg(1, 0));
    assert_eq!(b.sent(), ["FP. 0+10 ack 1"]);
    b.recv(&b.seg(1, 11));
    assert_eq!(b.c.state(), State::TimeWait);
}

#[test]
fn test_fin_is_sent_after_all_queued_data() {
    let mut b = Bench::established();
    b.queue(35_000);
    b.c.close();
    assert_eq!(b.sent().len(), 10);
    b.ack(10_000);
    assert_eq!(b.sent().len(), 20);
    b.ack(30_000);
    assert_eq!(b.sent().last().unwrap(), "FP. 34000+1000 ack 0");
    // The connection never sends bytes queued after the FIN was sent.
    b.queue(500);
    assert_eq!(b.sent(), strings(&[]));
    b.ack(35_001);
    assert_eq!((b.c.snd_una(), b.c.snd_max()), (StreamPos(35_000), StreamPos(35_000)));
}

#[test]
fn test_fin_needs_room_in_the_window() {
    let mut b = Bench::established();
    b.window = 1000;
    b.ack(0);
    b.queue(1000);
    b.c.close();
    assert_eq!(b.sent(), ["P. 0+1000 ack 0"]);
    b.ack(1000);
    assert_eq!(b.sent(), ["F. 1000 ack 0"]);
    let mut b = Bench::established();
    b.window = 1001;
    b.ack(0);
    b.queue(1000);
    b.c.close();
    assert_eq!(b.sent(), ["FP. 0+1000 ack 0"]);
}

#[test]
fn test_second_close_has_no_effect() {
    let mut b = Bench::in_state(State::FinWait1);
    b.c.close();
    assert_eq!((b.c.state(), b.sent()), (State::FinWait1, vec![]));
}

#[test]
fn test_time_wait_acknowledges_repeated_fin_and_restarts_its_timer() {
    let mut b = Bench::in_state(State::TimeWait);
    b.wait(900 * MS);
    b.recv(&b.seg(0, 1).with(FIN));
    assert_eq!(b.sent(), [". 1 ack 1"]);
    b.wait(999 * MS);
    assert_eq!(b.c.state(), State::TimeWait);
    b.wait(MS);
    assert_eq!(b.c.state(), State::Closed);
}

/// RFC 9293 MAY-2, SHLD-4: a SYN that is newer than all segments before may replace TIME-WAIT.
#[test]
fn test_time_wait_may_be_replaced_by_a_newer_syn() {
    let b = Bench::in_state(State::TimeWait);
    let syn = |seq| b.seg(seq, 0).with(SYN);
    assert!(b.c.may_be_replaced_by(&syn(2)));
    assert!(!b.c.may_be_replaced_by(&syn(1)));
    assert!(!b.c.may_be_replaced_by(&syn(2).with(SYN_ACK)));
    assert!(!b.c.may_be_replaced_by(&syn(2).with(Flags::SYN.with(RST))));
    assert!(!b.c.may_be_replaced_by(&syn(2).with(ACK)));
    let other = Bench::in_state(State::LastAck);
    assert!(!other.c.may_be_replaced_by(&syn(2)));
}

#[test]
fn test_last_ack_retransmits_its_fin() {
    let mut b = Bench::in_state(State::LastAck);
    assert_eq!(b.wait(200 * MS), [(200, "F. 0 ack 1 again".to_string())]);
}

/// RFC 9293 section 3.10.5.
#[test]
fn test_abort_sends_reset_in_states_where_peer_needs_one() {
    for s in State::ALL {
        let mut b = Bench::in_state(s);
        b.c.abort();
        assert_eq!(b.c.state(), State::Closed);
        let reset = match s {
            State::SynReceived | State::Established => strings(&["R. 0 ack 0"]),
            State::FinWait1 | State::FinWait2 => strings(&["R. 1 ack 0"]),
            State::CloseWait => strings(&["R. 0 ack 1"]),
            _ => vec![],
        };
        assert_eq!(b.sent(), reset, "{s:?}");
        let told = !matches!(s, State::Closed | State::TimeWait);
        assert_eq!(b.events(), vec![ConnEvent::Aborted; usize::from(told)], "{s:?}");
        assert_eq!(b.c.poll_timeout(), None);
    }
    // If a connection did not send its FIN, its peer would wait for the FIN.
    for (s, reset) in [(State::CloseWait, "R. 0 ack 1"), (State::Established, "R. 0 ack 0")] {
        let mut b = Bench::in_state(s);
        b.c.close();
        b.c.abort();
        assert_eq!((b.c.state(), b.sent()), (State::Closed, strings(&[reset])), "{s:?}");
    }
}
