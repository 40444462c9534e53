//! A stack whose addresses and routes change while it runs.

use core::time::Duration;

use heddle_types::{ConnectError, ListenError};

use super::*;

const LONG: Duration = Duration::from_secs(1000);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 8);
const OTHER_ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const MAC_R: [u8; 6] = [2, 0, 0, 0, 0, 0x21];
const MAC_OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// A second address of B.
const B2: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);

fn net(addrs: &[Ipv4Addr], routes: &[(&str, Ipv4Addr)]) -> Addressing {
    let route = |r: &(&str, Ipv4Addr)| Route { dest: r.0.parse().unwrap(), via: r.1.into() };
    let addrs = addrs.iter().map(|&a| Cidr::new(a.into(), 24).unwrap()).collect();
    Addressing::new(addrs, routes.iter().map(route).collect()).unwrap()
}

/// Returns a stack B with these addresses and routes that listens everywhere, and knows A.
fn b(net: Addressing) -> Stack<ByteQueue> {
    let mut b = Stack::new(StackConfig { net, ..config_b() });
    b.listen(None, PORT, 64).unwrap();
    introduce_a(&mut b, Instant::ZERO);
    b
}

/// Completes the handshake of a connection from `peer` to `ours`. Returns its key.
fn accepted(b: &mut Stack<ByteQueue>, peer: (Ipv4Addr, u16), ours: (Ipv4Addr, u16)) -> ConnId {
    b.handle_frame(Instant::ZERO, &tcp_frame(peer, ours, &syn(100), b"")[..]);
    let answer = frames(b, Instant::ZERO);
    let (_, seg) = read_tcp(answer.last().unwrap());
    let ack = segment(101, seg.seq.0.wrapping_add(1), Flags::ACK);
    b.handle_frame(Instant::ZERO, &tcp_frame(peer, ours, &ack, b"")[..]);
    let [(id, StackEvent::Accepted { .. })] = events(b)[..] else { panic!("accepted") };
    id
}

fn learns(b: &mut Stack<ByteQueue>, ip: Ipv4Addr, mac: [u8; 6]) -> Vec<Vec<u8>> {
    let reply = arp_frame(wire_arp::Operation::Reply, ip, mac, B, MAC_B);
    b.handle_frame(ms(1), &reply[..]);
    frames(b, ms(1))
}

/// Sends a byte. Returns the frames that go out.
fn say(b: &mut Stack<ByteQueue>, id: ConnId) -> Vec<Vec<u8>> {
    b.user_mut(id).unwrap().push(b"x");
    b.notify_send(id);
    frames(b, ms(2))
}

#[test]
fn test_connections_of_removed_address_are_reset_and_reported() {
    let mut b = b(net(&[B, B2], &[]));
    let (stays, goes) = (accepted(&mut b, (A, 1), (B, PORT)), accepted(&mut b, (A, 1), (B2, PORT)));
    let active = b.connect_from(ms(1), Some(B2.into()), (A, 7).into(), None).unwrap();
    assert_eq!(frames(&mut b, ms(1)).len(), 1);
    b.set_addressing(ms(2), net(&[B], &[]));
    assert_eq!(events(&mut b), [(goes, StackEvent::Withdrawn), (active, StackEvent::Withdrawn)]);
    // The reset comes from the old address; the half-open connection has no owner to notify.
    let said = frames(&mut b, ms(2));
    let [reset] = &said[..] else { panic!("one reset: {}", said.len()) };
    let (_, seg) = read_tcp(reset);
    assert_eq!((seg.flags, &reset[26..30]), (Flags::RST.with(Flags::ACK), &B2.octets()[..]));
    assert_eq!(b.local_addr(goes).unwrap().ip(), B2, "until it is released");
    b.release(goes);
    b.release(active);
    assert_eq!((b.connections(), events(&mut b)), (1, vec![]));
    assert_eq!(say(&mut b, stays).len(), 1);
    // The stack sends nothing more from there, whatever comes.
    b.handle_frame(ms(3), &tcp_frame((A, 1), (B2, PORT), &segment(101, 1, Flags::ACK), b"y")[..]);
    assert_eq!((frames(&mut b, ms(3)).len(), b.counters().rx_other_host), (0, 1));
}

/// The reset goes out even when the owner releases the connection at once.
#[test]
fn test_a_withdrawn_connection_that_is_released_still_resets_its_peer() {
    let mut b = b(net(&[B, B2], &[]));
    let goes = accepted(&mut b, (A, 1), (B2, PORT));
    b.set_addressing(ms(2), net(&[B], &[]));
    assert_eq!(events(&mut b), [(goes, StackEvent::Withdrawn)]);
    b.release(goes);
    assert_eq!(read_tcp(&frames(&mut b, ms(2))[0]).1.flags, Flags::RST.with(Flags::ACK));
    assert_eq!(b.connections(), 0);
}

#[test]
fn test_listeners_of_a_removed_address_end_and_others_go_on() {
    let mut b = b(net(&[B, B2], &[]));
    b.listen(Some(B2.into()), PORT, 8).unwrap();
    b.listen(Some(B.into()), PORT, 8).unwrap();
    b.handle_frame(Instant::ZERO, &tcp_frame((A, 1), (B2, PORT), &syn(1), b"")[..]);
    b.handle_frame(Instant::ZERO, &tcp_frame((A, 1), (B, PORT), &syn(1), b"")[..]);
    b.handle_frame(Instant::ZERO, &tcp_frame((A, 2), (B, PORT + 1), &syn(1), b"")[..]);
    frames(&mut b, Instant::ZERO);
    assert_eq!(b.connections(), 2);
    b.set_addressing(ms(1), net(&[B], &[]));
    // The half-open connection is reset, and no owner has heard of it.
    let said = frames(&mut b, ms(1));
    assert_eq!((said.len(), read_tcp(&said[0]).1.flags), (1, Flags::RST.with(Flags::ACK)));
    assert_eq!((b.connections(), events(&mut b)), (1, vec![]));
    assert_eq!(b.listen(Some(B2.into()), PORT, 8), Err(ListenError::NotOurs));
    // The address is back, but its listener is not.
    b.set_addressing(ms(2), net(&[B, B2], &[]));
    assert!(b.listen(Some(B2.into()), PORT, 8).is_ok());
    assert_eq!(b.listen(Some(B.into()), PORT, 8), Err(ListenError::InUse));
    assert_eq!(b.listen(None, PORT, 8), Err(ListenError::InUse));
}

#[test]
fn test_a_new_address_answers_at_once() {
    let mut b = b(net(&[B], &[]));
    let ask = arp_frame(wire_arp::Operation::Request, A, MAC_A, B2, [0; 6]);
    b.handle_frame(ms(1), &ask[..]);
    assert!(frames(&mut b, ms(1)).is_empty());
    b.set_addressing(ms(1), net(&[B, B2], &[]));
    assert!(frames(&mut b, ms(1)).is_empty(), "nobody is told unasked");
    b.handle_frame(ms(1), &ask[..]);
    assert_eq!(frames(&mut b, ms(1)).len(), 1);
    let id = accepted(&mut b, (A, 1), (B2, PORT));
    assert_eq!(b.local_addr(id).unwrap().ip(), B2);
    // After the address is removed again, it falls silent.
    b.set_addressing(ms(2), net(&[B], &[]));
    frames(&mut b, ms(2));
    b.handle_frame(ms(2), &ask[..]);
    assert!(frames(&mut b, ms(2)).is_empty());
}

#[test]
fn test_connections_follow_a_route_that_changes() {
    let mut b = b(net(&[B], &[("0.0.0.0/0", ROUTER)]));
    b.handle_frame(Instant::ZERO, &tcp_frame((FAR, 5), (B, PORT), &syn(100), b"")[..]);
    frames(&mut b, Instant::ZERO);
    let out = learns(&mut b, ROUTER, MAC_R);
    let ack = segment(101, read_tcp(&out[0]).1.seq.0.wrapping_add(1), Flags::ACK);
    b.handle_frame(ms(1), &tcp_frame((FAR, 5), (B, PORT), &ack, b"")[..]);
    let [(far, StackEvent::Accepted { .. })] = events(&mut b)[..] else { panic!("accepted") };
    let near = accepted(&mut b, (A, 1), (B, PORT));
    assert_eq!(say(&mut b, far)[0][..6], MAC_R);

    b.set_addressing(ms(2), net(&[B], &[("0.0.0.0/0", ROUTER), ("192.0.2.0/24", OTHER_ROUTER)]));
    let asked = frames(&mut b, ms(2));
    assert_eq!(asked.len(), 1);
    assert_eq!(wire_arp::Arp::parse(&asked[0][14..]).unwrap().target_ip, OTHER_ROUTER);
    assert!(say(&mut b, far).is_empty(), "it waits for the answer");
    assert_eq!(say(&mut b, near)[0][..6], MAC_A);
    let sent = learns(&mut b, OTHER_ROUTER, MAC_OTHER);
    assert_eq!((sent.len(), &sent[0][..6]), (1, &MAC_OTHER[..]));

    // The stack still knows the first router and has to ask no host.
    b.set_addressing(ms(2), net(&[B], &[("0.0.0.0/0", ROUTER)]));
    assert_eq!(say(&mut b, far)[0][..6], MAC_R);

    // No route is left.
    b.set_addressing(ms(3), net(&[B], &[]));
    assert_eq!(events(&mut b), [(far, StackEvent::Withdrawn)]);
    let reset = frames(&mut b, ms(3));
    assert_eq!((reset.len(), &reset[0][..6]), (1, &MAC_R[..]), "by the way that was");
    assert_eq!(b.conn(near).unwrap().state(), State::Established);
}

#[test]
fn test_a_new_gateway_that_does_not_answer_ends_the_connection() {
    let mut b = b(net(&[B], &[]));
    let id = accepted(&mut b, (A, 1), (B, PORT));
    b.set_addressing(ms(1), net(&[B], &[("10.0.0.1/32", ROUTER)]));
    for s in 0..4 {
        b.handle_timeouts(ms(s * 1000 + 1));
        frames(&mut b, ms(s * 1000 + 1));
    }
    assert_eq!(events(&mut b), [(id, StackEvent::Unreachable)]);
    b.release(id);
    assert_eq!(b.connections(), 0);
}

#[test]
fn test_time_wait_of_removed_address_ends_silently() {
    let (mut ca, mut cb) = (config_a(), config_b());
    ca.net = net(&[A], &[]);
    cb.net = net(&[B, B2], &[]);
    let mut n = Net::new(Host::new(ca), Host::new(cb), 3);
    n.a.stack.listen(None, PORT, 8).unwrap();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let id = n.b.stack.connect_from(n.now, Some(B2.into()), (A, PORT).into(), None).unwrap();
        ids.push(id);
        n.run("connected", LONG, |n| {
            n.b.says(id, ConnEvent::Connected) && n.a.accepted().is_some()
        });
        let a = n.a.accepted().unwrap();
        n.a.events.clear();
        n.b.stack.close(id);
        n.a.stack.close(a);
        n.run("closed", LONG, |n| n.b.says(id, ConnEvent::Closed));
        n.a.stack.release(a);
    }
    // The owner has released one of the two connections; both are over.
    n.b.stack.release(ids[0]);
    n.b.events.clear();
    let before = n.b.stack.connections();
    assert!(before >= 1);
    n.b.stack.set_addressing(n.now, net(&[B], &[]));
    assert_eq!((frames(&mut n.b.stack, n.now).len(), events(&mut n.b.stack)), (0, vec![]));
    n.b.stack.release(ids[1]);
    assert_eq!(n.b.stack.connections(), 0);
}

/// A connection that is over, whose end the stack has not reported yet, ends once.
#[test]
fn test_connection_that_has_already_ended_is_reported_only_once() {
    let mut b = b(net(&[B, B2], &[]));
    let id = accepted(&mut b, (A, 1), (B2, PORT));
    b.handle_frame(ms(1), &tcp_frame((A, 1), (B2, PORT), &segment(101, 0, Flags::RST), b"")[..]);
    b.set_addressing(ms(1), net(&[B], &[]));
    assert_eq!(events(&mut b), [(id, StackEvent::Conn(ConnEvent::Reset))]);
    assert!(frames(&mut b, ms(1)).is_empty());
}

/// The same configuration again touches nothing, nor does an unused route.
#[test]
fn test_unchanged_addressing_leaves_connections_untouched() {
    let mut b = b(net(&[B, B2], &[]));
    let ids = [accepted(&mut b, (A, 1), (B, PORT)), accepted(&mut b, (A, 1), (B2, PORT))];
    b.set_addressing(ms(1), net(&[B, B2], &[]));
    b.set_addressing(ms(1), net(&[B2, B], &[("192.0.2.0/24", ROUTER)]));
    assert_eq!((frames(&mut b, ms(1)).len(), events(&mut b)), (0, vec![]));
    for id in ids {
        assert_eq!(say(&mut b, id).len(), 1);
    }
}

#[test]
fn test_connect_uses_the_requested_local_address() {
    let mut b = b(net(&[B, B2], &[("0.0.0.0/0", ROUTER)]));
    for (local, remote) in [(B, A), (B2, A), (B2, FAR)] {
        let id = b.connect_from(ms(1), Some(local.into()), (remote, 9).into(), None).unwrap();
        assert_eq!(b.local_addr(id).unwrap().ip(), local);
    }
    // The stack asks for the next hop from its address on the link.
    let asked = frames(&mut b, ms(1));
    let arp = asked.iter().find(|f| f[12..14] == *b"\x08\x06").unwrap();
    assert_eq!(wire_arp::Arp::parse(&arp[14..]).unwrap().sender_ip, B);
    for bad in [IpAddr::V4(FAR), IpAddr::V4(A), "::1".parse().unwrap()] {
        let got = b.connect_from(ms(1), Some(bad), (A, 10).into(), None);
        assert_eq!(got, Err(ConnectError::NotOurs), "{bad}");
    }
}

/// RFC 9293 MUST-43: a listener bound to an address takes connections to this address, and to no
/// other of ours; a listener beside it takes the rest.
#[test]
fn test_listener_bound_to_address_accepts_connections_to_it_only() {
    let mut b: Stack<ByteQueue> = Stack::new(StackConfig { net: net(&[B, B2], &[]), ..config_b() });
    introduce_a(&mut b, Instant::ZERO);
    b.listen(Some(B2.into()), PORT, 4).unwrap();
    let answer = |b: &mut Stack<ByteQueue>, port, local| {
        b.handle_frame(ms(1), &tcp_frame((A, port), (local, PORT), &syn(1), b"")[..]);
        read_tcp(&frames(b, ms(1))[0]).1.flags
    };
    assert!(answer(&mut b, 1, B).has(Flags::RST));
    assert_eq!(answer(&mut b, 1, B2), Flags::SYN.with(Flags::ACK));
    b.listen(Some(B.into()), PORT, 4).unwrap();
    assert_eq!(answer(&mut b, 2, B), Flags::SYN.with(Flags::ACK));
    b.unlisten(ms(1), Some(B2.into()), PORT);
    assert!(answer(&mut b, 3, B2).has(Flags::RST));
    assert_eq!(answer(&mut b, 3, B), Flags::SYN.with(Flags::ACK));
}

/// RFC 9293 MUST-45: data, retransmissions, the FIN and a reset come from the address that the
/// handshake was for, whichever address of ours that is and whatever the routes are now.
#[test]
fn test_segments_keep_the_local_address_of_their_connection() {
    for local in [B, B2] {
        let mut b = b(net(&[B, B2], &[]));
        let id = accepted(&mut b, (A, 1), (local, PORT));
        let mut sent = say(&mut b, id);
        b.set_addressing(ms(2), net(&[B2, B], &[("10.0.0.1/32", ROUTER)]));
        sent.extend(learns(&mut b, ROUTER, MAC_R));
        let again = b.poll_timeout().unwrap() + LONG / 100;
        b.handle_timeouts(again);
        sent.extend(frames(&mut b, again));
        b.close(id);
        sent.extend(frames(&mut b, again));
        b.release(id);
        sent.extend(frames(&mut b, again));
        let ours: Vec<_> = sent.iter().filter(|f| f[12..14] == *b"\x08\x00").collect();
        let flags: Vec<_> = ours.iter().map(|f| read_tcp(f).1.flags).collect();
        assert!(flags.iter().any(|f| f.has(Flags::FIN)), "{flags:?}");
        assert!(flags.iter().any(|f| f.has(Flags::RST)), "{flags:?}");
        assert!(flags.len() >= 4, "data, data again, a FIN and a reset: {flags:?}");
        for frame in ours {
            let ip = Ipv4Header::parse(&frame[14..], frame.len() - 14).unwrap();
            assert_eq!((ip.src, ip.dst), (local, A));
        }
    }
}
