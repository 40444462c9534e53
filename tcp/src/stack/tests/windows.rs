//! Receive windows that grow: the windows that A learns from B's segments.

use core::time::Duration;

use super::net::Faults;
use super::transfer::{connect, pattern};
use super::*;
use crate::ConnConfig;

const A2: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const MINUTE: Duration = Duration::from_secs(60);
const KIB: u32 = 1024;

/// Returns two hosts 10 ms from each other. B's windows begin with 64 KiB and grow to 4 MiB, within
/// a budget.
fn far(budget: u64) -> Net<Host, Host> {
    let conn =
        ConnConfig { recv_window: 64 * KIB, recv_window_max: 4096 * KIB, ..ConnConfig::default() };
    let net = Addressing::new(
        vec![Cidr::new(A.into(), 24).unwrap(), Cidr::new(A2.into(), 24).unwrap()],
        Vec::new(),
    );
    let a = StackConfig { net: net.unwrap(), ..config_a() };
    let b = StackConfig { conn, recv_window_budget: budget, min_backlog: 8, ..config_b() };
    let mut n = Net::new(Host::new(a), Host::new(b), 7);
    n.faults = Faults::default();
    n.latency = Duration::from_millis(10);
    n.b.stack.listen(None, PORT, 8).unwrap();
    n
}

/// Connects from an address of A. Returns both ends.
fn connect_from(n: &mut Net<Host, Host>, from: Ipv4Addr) -> (ConnId, ConnId) {
    let before = n.b.events.len();
    let a = n.a.stack.connect_from(n.now, Some(from.into()), b_addr(), None).unwrap();
    n.run("connect", MINUTE, |n| n.a.says(a, ConnEvent::Connected) && n.b.events.len() > before);
    (a, n.b.accepted().unwrap())
}

/// Sends `len` bytes from A.
fn transfer(n: &mut Net<Host, Host>, (a, b): (ConnId, ConnId), len: usize) {
    let before = n.b.got(b).len();
    n.a.send(a, &pattern(len, 1));
    n.run("transfer", MINUTE, |n| n.b.got(b).len() == before + len);
    // The last ACK comes.
    n.run("ACK", MINUTE, |n| n.a.stack.conn(a).unwrap().stats().in_flight == 0);
}

/// Returns the window that A may use.
fn window(n: &Net<Host, Host>, a: ConnId) -> u32 {
    n.a.stack.conn(a).unwrap().stats().snd_wnd
}

#[test]
fn test_window_grows_over_a_long_path_to_its_maximum() {
    let mut n = far(64 << 20);
    let ends = connect_from(&mut n, A);
    transfer(&mut n, ends, 40_000);
    assert!(window(&n, ends.0) <= 64 * KIB, "little was sent");
    let start = n.now;
    transfer(&mut n, ends, 8_000_000);
    let took = n.now - start;
    assert!((3500 * KIB..=4096 * KIB).contains(&window(&n, ends.0)), "{}", window(&n, ends.0));
    assert!(n.b.stack.counters().windows_grown <= 12, "each time it doubles at least");
    // A window of 64 KiB would take 2.5 s.
    assert!(took < Duration::from_millis(700), "{took:?}");
    assert!(n.b.stack.recv_windows_grown() > 3000 * 1024);
    n.a.stack.close(ends.0);
    n.run("FIN", MINUTE, |n| n.b.says(ends.1, ConnEvent::PeerClosed));
    assert_eq!(n.b.stack.recv_windows_grown(), 0, "no bytes will come");
}

#[test]
fn test_window_of_fixed_size_stays() {
    let mut n = far(64 << 20);
    n.b = {
        let conn = ConnConfig::default().with_fixed_window(64 * KIB);
        let mut b = Host::new(StackConfig { conn, ..config_b() });
        b.stack.listen(None, PORT, 8).unwrap();
        b
    };
    let ends = connect(&mut n);
    transfer(&mut n, ends, 2_000_000);
    assert_eq!((window(&n, ends.0), n.b.stack.counters().windows_grown), (64 * KIB, 0));
}

#[test]
fn test_hosts_share_the_budget_and_every_connection_has_its_first_window() {
    let mut n = far(512 * u64::from(KIB));
    let all: Vec<_> = (0..4).map(|_| connect_from(&mut n, A)).collect();
    for &ends in &all {
        transfer(&mut n, ends, 2_000_000);
    }
    assert_eq!(n.b.stack.recv_windows_grown(), 256 * u64::from(KIB), "half is for others");
    assert!(n.b.stack.counters().windows_limited > 0);
    for &(a, _) in &all {
        assert!((60 * KIB..=320 * KIB).contains(&window(&n, a)), "{}", window(&n, a));
    }
    let other = connect_from(&mut n, A2);
    transfer(&mut n, other, 2_000_000);
    let got = u64::from(window(&n, other.0));
    assert!(got > 180 * 1024, "another host gets half of what is left: {got}");
    // The window that a connection leaves behind is for others.
    for &(a, b) in &all {
        n.a.stack.abort(a);
        n.run("reset", MINUTE, |n| n.b.says(b, ConnEvent::Reset));
    }
    assert!(n.b.stack.recv_windows_grown() <= 128 * 1024);
    transfer(&mut n, other, 2_000_000);
    assert!(u64::from(window(&n, other.0)) > got + 64 * 1024, "{}", window(&n, other.0));
}

#[test]
fn test_window_without_budget_stays() {
    let mut n = far(0);
    let ends = connect_from(&mut n, A);
    transfer(&mut n, ends, 2_000_000);
    assert!(window(&n, ends.0) <= 64 * KIB && n.b.stack.counters().windows_limited > 0);
}

#[test]
fn test_quiet_connection_gives_its_window_back_and_may_have_it_again() {
    let mut n = far(64 << 20);
    let ends = connect_from(&mut n, A);
    transfer(&mut n, ends, 3_000_000);
    let before = n.b.stack.recv_windows_grown();
    let (conn, _) = n.b.stack.get_mut(ends.1).unwrap();
    conn.trim();
    n.b.stack.notify_send(ends.1);
    n.b.stack.handle_timeouts(n.now);
    assert!(before > 1 << 20 && n.b.stack.recv_windows_grown() == 0);
    // The right edge stays, and moves on when the peer has sent as much.
    let edge = window(&n, ends.0);
    transfer(&mut n, ends, 20_000);
    assert!(window(&n, ends.0) >= edge - 21_000, "the right edge went back");
    transfer(&mut n, ends, 8_000_000);
    assert!(n.b.stack.recv_windows_grown() > 1 << 20);
    n.b.stack.set_addressing(
        n.now,
        Addressing::new(vec![Cidr::new(B.into(), 16).unwrap()], vec![]).unwrap(),
    );
    let held = n.b.stack.recv_windows_grown();
    n.b.stack.abort(ends.1);
    assert!(held > 1 << 20 && n.b.stack.recv_windows_grown() == 0, "counted under its new name");
}

#[test]
fn test_window_does_not_grow_for_a_peer_that_sends_little() {
    let mut n = far(64 << 20);
    let ends = connect_from(&mut n, A);
    // 16 KiB in each round trip: a window of 64 KiB has four times as much.
    for _ in 0..100 {
        transfer(&mut n, ends, 16 << 10);
    }
    assert_eq!((window(&n, ends.0), n.b.stack.counters().windows_grown), (64 * KIB, 0));
}
