//! Opening connections, and all the ways in which that fails.

use core::time::Duration;

use heddle_types::{ConnectError, ListenError};

use super::*;

const LONG: Duration = Duration::from_secs(1000);

/// Returns a stack A, which knows B's address if `known`.
fn a(known: bool) -> Stack<ByteQueue> {
    let mut a = Stack::new(config_a());
    if known {
        let ask = arp_frame(wire_arp::Operation::Request, B, MAC_B, A, [0; 6]);
        a.handle_frame(Instant::ZERO, &ask[..]);
        frames(&mut a, Instant::ZERO);
    }
    a
}

#[test]
fn test_connect_refuses_what_is_no_peer() {
    let mut a = a(true);
    let mut try_one = |s: &str| a.connect(Instant::ZERO, s.parse().unwrap(), None);
    for bad in [
        "10.0.0.1:1",
        "10.0.0.255:1",
        "224.0.0.1:1",
        "255.255.255.255:1",
        "0.0.0.0:1",
        "127.0.0.1:1",
        "10.0.0.2:0",
    ] {
        assert_eq!(try_one(bad), Err(ConnectError::InvalidRemote), "{bad}");
    }
    assert_eq!(try_one("192.0.2.1:1"), Err(ConnectError::NoRoute));
    assert_eq!(try_one("[2001:db8::1]:1"), Err(ConnectError::NoRoute));
    assert_eq!(try_one("[::ffff:10.0.0.2]:1"), Err(ConnectError::InvalidRemote));
    let from = a.connect_from(ms(0), Some(A.into()), "[2001:db8::1]:1".parse().unwrap(), None);
    assert_eq!(from, Err(ConnectError::NoRoute));
    assert_eq!(a.connections(), 0);
}

#[test]
fn test_connect_uses_our_address_of_the_link() {
    let mut cfg = config_a();
    let addrs = ["192.168.7.1/24", "10.0.0.1/24"].map(|a| a.parse().unwrap()).to_vec();
    let route = Route::default_via("192.168.7.254".parse().unwrap());
    cfg.net = Addressing::new(addrs, vec![route]).unwrap();
    let mut a: Stack<ByteQueue> = Stack::new(cfg);
    let near = a.connect(Instant::ZERO, b_addr(), None).unwrap();
    let far = a.connect(Instant::ZERO, "192.0.2.1:1".parse().unwrap(), None).unwrap();
    assert_eq!(a.local_addr(near).unwrap().ip(), A);
    assert_eq!(a.local_addr(far).unwrap().ip().to_string(), "192.168.7.1");
    // For the far host the stack asks for the gateway.
    let asked: Vec<Vec<u8>> = frames(&mut a, Instant::ZERO);
    assert_eq!(asked.len(), 2);
    let far = wire_arp::Arp::parse(&asked[1][14..]).unwrap();
    assert_eq!(far.target_ip.to_string(), "192.168.7.254");
    assert_eq!(far.sender_ip.to_string(), "192.168.7.1");
}

#[test]
fn test_connect_same_ports_twice_is_refused() {
    let mut a = a(true);
    a.connect(Instant::ZERO, b_addr(), Some(7)).unwrap();
    assert_eq!(a.connect(Instant::ZERO, b_addr(), Some(7)), Err(ConnectError::PortInUse));
    assert!(a.connect(Instant::ZERO, b_addr(), Some(8)).is_ok());
    assert!(a.connect(Instant::ZERO, (B, PORT + 1).into(), Some(7)).is_ok());
}

#[test]
fn test_connections_are_bounded() {
    let mut a = a(true);
    let ids: Vec<ConnId> =
        (0..64).map(|_| a.connect(Instant::ZERO, b_addr(), None).unwrap()).collect();
    let full = a.connect(Instant::ZERO, b_addr(), None);
    assert_eq!(full, Err(ConnectError::TooManyConnections));
    assert_eq!(frames(&mut a, Instant::ZERO).len(), 64);
    a.release(ids[5]);
    frames(&mut a, Instant::ZERO);
    let again = a.connect(Instant::ZERO, b_addr(), None).unwrap();
    assert_eq!(again.index(), ids[5].index());
    assert_ne!(again, ids[5]);
    assert!(a.conn(ids[5]).is_none() && a.user_mut(ids[5]).is_none());
}

#[test]
fn test_connect_waits_for_arp_and_sends_its_syn_then() {
    let mut a = a(false);
    let id = a.connect(Instant::ZERO, b_addr(), None).unwrap();
    let out = frames(&mut a, Instant::ZERO);
    assert_eq!(out.len(), 1);
    assert_eq!(&out[0][12..14], b"\x08\x06");
    let reply = arp_frame(wire_arp::Operation::Reply, B, MAC_B, A, MAC_A);
    a.handle_frame(ms(1), &reply[..]);
    let out = frames(&mut a, ms(1));
    assert_eq!(out.len(), 1);
    let (h, seg) = read_tcp(&out[0]);
    assert_eq!((&out[0][..6], h.dst_port, seg.flags), (&MAC_B[..], PORT, Flags::SYN));
    assert_eq!(a.conn(id).unwrap().state(), State::SynSent);
    assert_eq!(seg.mss, Some(1460));
}

#[test]
fn test_connect_to_silence_is_unreachable_after_three_questions() {
    let mut a = a(false);
    let id = a.connect(Instant::ZERO, b_addr(), None).unwrap();
    let mut asked = frames(&mut a, Instant::ZERO).len();
    for t in 1..=2 {
        a.handle_timeouts(ms(t * 1000));
        asked += frames(&mut a, ms(t * 1000)).len();
        assert_eq!(events(&mut a), []);
    }
    a.handle_timeouts(ms(3000));
    assert_eq!(events(&mut a), [(id, StackEvent::Unreachable)]);
    assert_eq!((asked, frames(&mut a, ms(3000)).len()), (3, 0));
    assert_eq!(a.conn(id).unwrap().state(), State::Closed);
    a.release(id);
    assert_eq!((a.connections(), a.counters().neighbor_failed), (0, 1));
}

#[test]
fn test_connect_to_a_closed_port_is_refused() {
    let mut n = Net::new(Host::new(config_a()), Host::new(config_b()), 1);
    let id = n.a.stack.connect(n.now, b_addr(), None).unwrap();
    n.run("refusal", LONG, |n| n.a.says(id, ConnEvent::Refused));
    assert_eq!(n.b.stack.counters().tx_resets, 1);
    assert_eq!(n.b.stack.connections(), 0);
}

#[test]
fn test_connect_to_a_host_that_only_answers_arp_times_out() {
    let mut a = a(true);
    let id = a.connect(Instant::ZERO, b_addr(), None).unwrap();
    let mut syns = frames(&mut a, Instant::ZERO).len();
    let mut gone = None;
    while gone.is_none() {
        let now = a.poll_timeout().unwrap();
        assert!(now < ms(400_000));
        a.handle_timeouts(now);
        syns += frames(&mut a, now).iter().filter(|f| f[12..14] == *b"\x08\x00").count();
        gone = events(&mut a)
            .iter()
            .find(|e| e.1 == StackEvent::Conn(ConnEvent::TimedOut))
            .map(|_| now);
    }
    assert!(gone.unwrap() >= ms(180_000), "three minutes at least: {gone:?}");
    assert_eq!(syns, 8);
    a.release(id);
    assert_eq!(a.connections(), 0);
}

#[test]
fn test_close_before_the_answer_ends_the_connection() {
    let mut a = a(false);
    let id = a.connect(Instant::ZERO, b_addr(), None).unwrap();
    a.close(id);
    assert_eq!(events(&mut a), [(id, StackEvent::Conn(ConnEvent::Aborted))]);
    a.release(id);
    assert_eq!(a.connections(), 0);
    // The stack does not repeat the question for its neighbor.
    frames(&mut a, Instant::ZERO);
    a.handle_timeouts(ms(1000));
    assert_eq!((frames(&mut a, ms(1000)).len(), a.poll_timeout()), (0, None));
}

#[test]
fn test_listen_errors() {
    let mut a = a(true);
    assert_eq!(a.listen(Some(B.into()), 1, 1), Err(ListenError::NotOurs));
    assert_eq!(a.listen(Some(A.into()), 1, 1), Ok(()));
    assert_eq!(a.listen(Some(A.into()), 1, 1), Err(ListenError::InUse));
    assert_eq!(a.listen(None, 1, 1), Ok(()));
}

#[test]
fn test_listening_on_a_port_with_a_connecting_socket() {
    let mut a = a(true);
    let id = a.connect(Instant::ZERO, b_addr(), Some(9)).unwrap();
    assert_eq!(a.listen(None, 9, 4), Ok(()));
    assert_eq!(a.conn(id).unwrap().state(), State::SynSent);
}
