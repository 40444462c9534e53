//! Limits on peers that hold connections up: a test shows each setting by its effect on the wire,
//! just before its time and just after.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::Duration;

use crate::common::*;
use heddle_ctl::{EndpointConfig, Patience, Question, Reply};
use heddle_tcp::{ConnEvent, PeerLimit, SynCookies};
use heddle_types::CloseReason;
use heddle_verbs::{CmEvent, DisconnectReason, EventQueue};

const LIMIT: Duration = Duration::from_secs(8);

/// Makes a connection over which a message has gone each way, of an RNIC with this configuration.
fn running(
    eal: &heddle_dataplane::Eal,
    change: impl FnOnce(&mut EndpointConfig),
) -> (Net, EventQueue, Honest) {
    let mut net = Net::with(eal, change);
    let events = listen(&mut net, PORT, |_| {});
    let mut honest = Honest::new(&mut net, PORT, &events);
    honest.exchange(&mut net);
    (net, events, honest)
}

/// Asserts that the connection ends for this reason between `least` and `most` from now.
fn ends(net: &mut Net, events: &EventQueue, (least, most): (Duration, Duration), why: CloseReason) {
    net.pass(least);
    assert_eq!(events.poll(), None, "not before {least:?}");
    net.pass(most - least);
    let told = events.poll();
    let want = DisconnectReason::Tcp(why);
    assert!(
        matches!(&told, Some(CmEvent::Disconnected { reason, .. }) if *reason == want),
        "within {most:?}: {told:?}"
    );
    net.settle();
    assert_eq!(net.ctl().gauges.conns, 0);
}

/// Fills the peer's window, which the peer then keeps shut.
fn fill_window(net: &mut Net, honest: &Honest) {
    net.peer.stack.get_mut(honest.conn).unwrap().0.set_recv_window(0);
    let mut sent = 0;
    loop {
        honest.end.post_send(sent, 0, REGION);
        net.pass(5 * MS);
        if honest.end.completions().is_empty() {
            return;
        }
        sent += 1;
        assert!(sent < 1000, "the window never shuts");
    }
}

fn near(limit: Duration) -> (Duration, Duration) {
    (limit * 7 / 8, limit * 9 / 8 + Duration::from_secs(2))
}

#[test]
fn test_user_timeout_ends_a_connection_whose_peer_acknowledges_nothing() {
    let (eal, _turn) = eal();
    let (mut net, events, honest) = running(&eal, |c| c.tcp.user_timeout = LIMIT);
    net.peer.deaf = true;
    honest.end.post_send(1, 0, 100);
    // The connection ends when a timer expires after the limit; the time between two timers has
    // doubled up to then.
    ends(&mut net, &events, (LIMIT * 7 / 8, LIMIT * 2), CloseReason::TimedOut);
}

#[test]
fn test_zero_window_ends_a_connection_whose_peer_answers_and_takes_nothing() {
    let (eal, _turn) = eal();
    let rto_max = Duration::from_secs(1);
    let set = |c: &mut EndpointConfig| (c.tcp.zero_window, c.tcp.rto_max) = (LIMIT, rto_max);
    let (mut net, events, honest) = running(&eal, set);
    fill_window(&mut net, &honest);
    ends(&mut net, &events, near(LIMIT), CloseReason::WindowShut);
    assert!(net.peer.says(honest.conn, ConnEvent::Reset));
}

#[test]
fn test_close_stall_ends_a_close_in_which_nothing_moves() {
    let (eal, _turn) = eal();
    let (mut net, events, honest) = running(&eal, |c| c.tcp.close_stall = LIMIT);
    net.us.device().disconnect(honest.id).unwrap();
    ends(&mut net, &events, near(LIMIT), CloseReason::TimedOut);
}

/// The peer does not close its half of the connection, in which a message comes each second.
#[test]
fn test_close_limit_ends_a_close_in_which_something_moves() {
    let (eal, _turn) = eal();
    let set = |c: &mut EndpointConfig| (c.tcp.close_stall, c.close_limit) = (LIMIT / 2, LIMIT);
    let (mut net, events, honest) = running(&eal, set);
    net.us.device().disconnect(honest.id).unwrap();
    for n in 2..9 {
        honest.end.post_recv(n, 0, 256);
        net.peer.send(honest.conn, &fpdu(send_header(n as u32), b"goes on"));
        net.pass(Duration::from_secs(1));
        assert_eq!((honest.end.completions().len(), events.poll()), (1, None), "message {n}");
    }
    let second = Duration::from_secs(1);
    ends(&mut net, &events, (second / 2, second * 2), CloseReason::Aborted);
}

#[test]
fn test_peer_conns_limits_connections_of_one_address() {
    let (eal, _turn) = eal();
    for (limit, gets) in
        [(PeerLimit::Share, 8), (PeerLimit::AtMost(3), 3), (PeerLimit::AtMost(15), 15)]
    {
        let mut net = Net::with(&eal, |c| (c.max_conns, c.peer_conns) = (16, limit));
        let events = listen(&mut net, PORT, |_| {});
        let all: Vec<_> = (0..gets).map(|_| Honest::new(&mut net, PORT, &events)).collect();
        let now = net.now();
        let beyond = net.peer.stack.connect(now, us(PORT), None).unwrap();
        net.pass(5 * MS);
        assert_eq!(net.peer.end_of(beyond), Some(ConnEvent::Refused), "{limit:?}");
        drop(all);
    }
}

/// A cookie leaves no half-open connection.
#[test]
fn test_syn_cookies_answer_as_the_setup_says() {
    let (eal, _turn) = eal();
    for (cookies, sent) in [(SynCookies::Auto, 0), (SynCookies::Off, 0), (SynCookies::Always, 1)] {
        let mut net = Net::with(&eal, |c| c.syn_cookies = cookies);
        let events = listen(&mut net, PORT, |_| {});
        let honest = Honest::new(&mut net, PORT, &events);
        let stack = net.worker().engine.stack;
        assert_eq!(
            (stack.syn_cookies_sent, stack.syn_cookies_accepted),
            (sent, sent),
            "{cookies:?}"
        );
        assert_eq!(stack.half_opened, 1 - sent);
        assert!(net.peer.stack.conn(honest.conn).is_some());
    }
}

/// Returns the first bytes of the longest FPDU.
fn begun() -> Vec<u8> {
    let mut bytes = vec![0; 1000];
    bytes[..2].copy_from_slice(&64_768_u16.to_be_bytes());
    bytes
}

#[test]
fn test_fpdu_stall_ends_a_connection_whose_peer_leaves_an_fpdu_unfinished() {
    let (eal, _turn) = eal();
    let (mut net, events, honest) = running(&eal, |c| c.fpdu_stall = LIMIT);
    net.peer.send(honest.conn, &begun());
    ends(&mut net, &events, (LIMIT, LIMIT + Duration::from_secs(3)), CloseReason::Unfinished);
    assert!(net.peer.says(honest.conn, ConnEvent::Reset));
    assert_eq!(net.worker().engine.rnic.unfinished_timeouts, 1);
}

/// A single address gets half of the memory: eight of the longest FPDUs of a MiB.
#[test]
fn test_fpdu_memory_limits_fpdus_that_peers_leave_unfinished() {
    let (eal, _turn) = eal();
    for (fpdu_memory, gets) in [(1 << 20, 8), (2 << 20, 10)] {
        let mut net = Net::with(&eal, |c| c.fpdu_memory = fpdu_memory);
        let events = listen(&mut net, PORT, |_| {});
        let all: Vec<_> = (0..10).map(|_| Honest::new(&mut net, PORT, &events)).collect();
        for h in &all {
            net.peer.send(h.conn, &begun());
        }
        net.pass(100 * MS);
        let is_taken = |h: &&Honest| {
            let tcp = net.peer.stack.conn(h.conn).unwrap();
            tcp.snd_una() == tcp.snd_max()
        };
        assert_eq!(all.iter().filter(is_taken).count(), gets, "{fpdu_memory}");
        assert_eq!(net.worker().engine.rnic.rx_unfinished_refused > 0, gets < 10);
    }
}

/// An operator's change also holds for existing connections.
#[test]
fn test_changed_patience_applies_to_established_connections() {
    let (eal, _turn) = eal();
    for case in ["user", "window", "stall", "fpdu", "close"] {
        let (mut net, events, honest) = running(&eal, |c| c.tcp.rto_max = Duration::from_secs(1));
        let usual = Patience::default();
        let mut patience = usual;
        let why = match case {
            "user" => {
                patience.tcp.user_timeout = LIMIT;
                CloseReason::TimedOut
            }
            "window" => {
                patience.tcp.zero_window = LIMIT;
                CloseReason::WindowShut
            }
            "stall" => {
                patience.tcp.close_stall = LIMIT;
                CloseReason::TimedOut
            }
            "fpdu" => {
                patience.fpdu_stall = LIMIT;
                CloseReason::Unfinished
            }
            _ => {
                patience.tcp.close_stall = LIMIT * 2;
                patience.close_limit = LIMIT;
                CloseReason::Aborted
            }
        };
        let reply = Reply::new(|()| {});
        net.us.asker().ask(Question::SetPatience { patience, reply }).unwrap();
        net.settle();
        match case {
            "user" => {
                net.peer.deaf = true;
                honest.end.post_send(1, 0, 100);
            }
            "window" => fill_window(&mut net, &honest),
            "fpdu" => net.peer.send(honest.conn, &begun()),
            _ => net.us.device().disconnect(honest.id).unwrap(),
        }
        ends(&mut net, &events, near(LIMIT), why);
    }
}
