//! A stack that speaks with itself: it owns both ends of a connection.

use heddle_types::{ConnectError, ListenError};

use super::net::{Host, Station};
use super::*;

fn own(addrs: &[&str], loopback: bool) -> Addressing {
    Addressing::inside(addrs.iter().map(|a| a.parse().unwrap()), loopback)
}

fn host(net: Addressing) -> Host {
    Host::new(StackConfig { net, min_backlog: 8, ..config_a() })
}

/// Passes every frame back until there is none. Returns the number of frames.
fn settle(host: &mut Host, now: Instant) -> usize {
    let mut frames = 0;
    while let Some(frame) = host.transmit(now) {
        host.handle(now, &frame);
        frames += 1;
        assert!(frames < 10_000, "the two ends never fall silent");
    }
    frames
}

#[test]
fn test_both_ends_of_a_connection_are_of_one_stack_and_carry_bytes_each_way() {
    for (addr, net) in [("10.0.0.1", own(&["10.0.0.1"], false)), ("127.3.2.1", own(&[], true))] {
        let mut h = host(net);
        h.stack.listen(Some(addr.parse().unwrap()), PORT, 8).unwrap();
        let remote: SocketAddr = format!("{addr}:{PORT}").parse().unwrap();
        let active = h.stack.connect(ms(1), remote, None).unwrap();
        settle(&mut h, ms(1));
        let passive = h.accepted().expect("the listener has accepted it");
        assert_ne!(active, passive);
        assert_eq!(h.stack.remote_addr(active).unwrap(), h.stack.local_addr(passive).unwrap());
        assert_eq!(h.stack.local_addr(active).unwrap(), h.stack.remote_addr(passive).unwrap());
        let (there, back) = ([7; 5000], [9; 3000]);
        h.send(active, &there);
        h.send(passive, &back);
        settle(&mut h, ms(2));
        assert_eq!((h.got(passive), h.got(active)), (&there[..], &back[..]), "{addr}");
        h.stack.close(active);
        settle(&mut h, ms(3));
        h.stack.close(passive);
        settle(&mut h, ms(3));
        assert!(h.says(passive, ConnEvent::Closed), "{:?}", h.events);
        let c = h.stack.counters();
        assert_eq!((c.tx_arp_requests, c.rx_bad_source, c.rx_no_connection), (0, 0, 0), "{addr}");
    }
}

/// Linux does the same: each address of ours is its own source, except for 127.0.0.0/8.
#[test]
fn test_source_is_the_peers_address_or_localhost_unless_another_of_ours_is_asked_for() {
    let net = own(&["10.0.0.1", "10.1.0.1"], true);
    for (remote, local) in
        [("10.0.0.1", "10.0.0.1"), ("10.1.0.1", "10.1.0.1"), ("127.9.9.9", "127.0.0.1")]
    {
        let hop = net.route(remote.parse().unwrap()).unwrap();
        assert_eq!((hop.local.to_string(), hop.prefix), (local.to_owned(), 32), "{remote}");
    }
    let mut h = host(net);
    h.stack.listen(None, PORT, 8).unwrap();
    let other = "10.1.0.1".parse().unwrap();
    let remote = (A, PORT).into();
    let conn = h.stack.connect_from(ms(1), Some(other), remote, None).unwrap();
    settle(&mut h, ms(1));
    assert_eq!(h.stack.local_addr(conn).unwrap().ip(), other);
    assert!(h.says(conn, ConnEvent::Connected));
}

#[test]
fn test_stack_inside_a_host_connects_only_to_its_own_addresses() {
    let mut h = host(own(&["10.0.0.1"], true));
    let mut try_one = |to: &str| h.stack.connect(ms(1), to.parse().unwrap(), None);
    for bad in ["10.0.0.2:1", "127.0.0.0:1", "127.255.255.255:1", "0.0.0.0:1", "10.0.0.1:0"] {
        assert_eq!(try_one(bad), Err(ConnectError::InvalidRemote), "{bad}");
    }
    assert!(try_one("127.0.0.1:1").is_ok());
    let mut h = host(own(&["10.0.0.1"], false));
    let localhost = "127.0.0.1:1".parse().unwrap();
    assert_eq!(h.stack.connect(ms(1), localhost, None), Err(ConnectError::InvalidRemote));
    assert_eq!(h.stack.listen(Some(localhost.ip()), 1, 1), Err(ListenError::NotOurs));
}

#[test]
fn test_port_without_listener_refuses_and_never_connects_to_itself() {
    let mut h = host(own(&["10.0.0.1"], false));
    let conn = h.stack.connect(ms(1), (A, PORT).into(), None).unwrap();
    settle(&mut h, ms(1));
    assert!(h.says(conn, ConnEvent::Refused), "{:?}", h.events);
    let own_port = h.stack.connect(ms(2), (A, PORT).into(), Some(PORT));
    assert_eq!(own_port, Err(ConnectError::InvalidRemote));
    // The port that the stack chooses is never the port of the other end.
    for port in 49152..=65535 {
        let conn = h.stack.connect(ms(3), (A, port).into(), None).unwrap();
        assert_ne!(h.stack.local_addr(conn), h.stack.remote_addr(conn));
        h.stack.release(conn);
        settle(&mut h, ms(3));
    }
}

#[test]
fn test_stack_inside_a_host_announces_nothing_and_drops_removed_address() {
    let mut h = host(own(&["10.0.0.1", "10.1.0.1"], false));
    h.stack.announce();
    assert_eq!(h.stack.poll_timeout(), None, "there is no host that could want to know");
    h.stack.listen(None, PORT, 8).unwrap();
    let goes = h.stack.connect(ms(1), "10.1.0.1:4420".parse().unwrap(), None).unwrap();
    let stays = h.stack.connect(ms(1), (A, PORT).into(), None).unwrap();
    settle(&mut h, ms(1));
    h.stack.set_addressing(ms(2), own(&["10.0.0.1", "10.2.0.1"], false));
    while let Some(e) = h.stack.poll_event() {
        h.events.push(e);
    }
    assert!(h.has(goes, StackEvent::Withdrawn), "{:?}", h.events);
    assert!(!h.has(stays, StackEvent::Withdrawn));
    let new = h.stack.connect(ms(3), "10.2.0.1:4420".parse().unwrap(), None).unwrap();
    settle(&mut h, ms(3));
    assert!(h.says(new, ConnEvent::Connected));
}

/// More than any address outside gets at once.
#[test]
fn test_thousands_of_connections_inside_begin_in_one_turn() {
    const CONNS: u16 = 4500;
    let cfg = StackConfig { net: own(&["10.0.0.1"], false), max_conns: 1 << 14, ..config_a() };
    let mut h = Host::new(StackConfig { min_backlog: 2048, syn_cookies: SynCookies::Auto, ..cfg });
    h.stack.listen(None, PORT, 8).unwrap();
    for port in 10_000..10_000 + CONNS {
        h.stack.connect(ms(1), ([10, 0, 0, 1], PORT).into(), Some(port)).unwrap();
    }
    let syns: Vec<_> = core::iter::from_fn(|| h.transmit(ms(1))).collect();
    assert_eq!(syns.len(), usize::from(CONNS));
    let mut answers = Vec::new();
    for syn in &syns {
        h.handle(ms(1), syn);
        answers.extend(core::iter::from_fn(|| h.transmit(ms(1))));
    }
    for answer in &answers {
        h.handle(ms(1), answer);
    }
    settle(&mut h, ms(1));
    let c = h.stack.counters();
    assert_eq!((c.accepted, c.syn_acks_limited), (CONNS.into(), 0));
}
