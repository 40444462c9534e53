//! A default router that does not answer, and the routers that could take its place (RFC 4861 section
//! 6.3.6).

use crate::wire::Vid;

use super::*;

const SILENT: Ipv6Addr = router(1);
const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 1);

const fn router(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n)
}

/// Returns B, whose default router has two spare ones, with a connection that is being opened through
/// the router.
fn routed() -> Stack<ByteQueue> {
    let mut cfg = config6(MAC_B, B6);
    cfg.net = cfg.net.with_spare_routers(vec![router(3), router(4)]);
    let mut b = Stack::new(cfg);
    b.connect(ms(0), (FAR, PORT).into(), None).unwrap();
    frames(&mut b, ms(0));
    answers(&mut b, ms(0), SILENT);
    b
}

/// Gives B the answer of a router.
fn answers(b: &mut Stack<ByteQueue>, now: Instant, router: Ipv6Addr) {
    let local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(MAC_B[5]));
    let told = icmpv6::neighbor_advert(router, local, router, MacAddr(MAC_A), true);
    b.handle_frame(now, &frame6(router, local, ipv6::ICMP, 255, &told)[..]);
}

/// Returns the routers that B asks for from one time to another, with the times in seconds.
fn asked(b: &mut Stack<ByteQueue>, from: u64, to: u64) -> Vec<(u64, u16)> {
    let mut asked = Vec::new();
    for second in from..to {
        b.handle_timeouts(ms(1000 * second));
        for f in frames(b, ms(1000 * second)).iter().filter(|f| f[20] == ipv6::ICMP) {
            if let Message::NeighborSolicit { target, .. } = icmp_of(f).1 {
                asked.push((second, target.segments()[7]));
            }
        }
    }
    asked
}

fn news(router: Ipv6Addr) -> LinkNews {
    LinkNews::RouterAnswers { vid: Vid::NONE, silent: SILENT, router }
}

#[test]
fn test_spare_routers_are_asked_for_when_the_default_router_is_silent() {
    let mut b = routed();
    // The router is asked for again after a minute, first at its station and then everywhere.
    let six: Vec<_> = (60..66).map(|s| (s, 1)).collect();
    assert_eq!(asked(&mut b, 1, 66), six);
    assert_eq!((asked(&mut b, 66, 67), b.poll_news()), (vec![(66, 3), (66, 4)], None));
    answers(&mut b, ms(66_500), router(4));
    assert_eq!((b.poll_news(), b.poll_news()), (Some(news(router(4))), None));
    // The other one does not answer: the owner hears nothing of it, and it leaves the table.
    assert_eq!(asked(&mut b, 67, 70), [(67, 3), (68, 3)]);
    assert_eq!((b.poll_news(), b.neighbors.len()), (None, 2));
    // The silent router is asked for again, and then the one that has answered is known.
    assert_eq!(asked(&mut b, 70, 132).len(), 6);
    assert_eq!(b.poll_news(), None, "it has expired");
    assert_eq!(asked(&mut b, 132, 133), [(132, 3), (132, 4)]);
}

#[test]
fn test_forged_advertisements_do_not_hide_the_router_that_answers() {
    let mut cfg = StackConfig { hears_routers: true, ..config6(MAC_B, B6) };
    cfg.net = cfg.net.with_spare_routers(vec![router(4)]);
    let mut b = Stack::new(cfg);
    b.connect(ms(0), (FAR, PORT).into(), None).unwrap();
    frames(&mut b, ms(0));
    answers(&mut b, ms(0), SILENT);
    asked(&mut b, 1, 67);
    for n in 0..1000 {
        b.handle_frame(ms(66_000), &link::tells(router(100 + n), ipv6::ALL_NODES, 255)[..]);
    }
    answers(&mut b, ms(66_000), router(4));
    let all: Vec<_> = core::iter::from_fn(|| b.poll_news()).collect();
    assert_eq!((all.len(), all.last()), (17, Some(&news(router(4)))));
}

#[test]
fn test_known_spare_router_is_told_at_once() {
    let mut b = routed();
    // Its own question makes it known.
    let question = icmpv6::neighbor_solicit(router(4), B6, B6, MacAddr(MAC_A));
    b.handle_frame(ms(50_000), &frame6(router(4), B6, ipv6::ICMP, 255, &question)[..]);
    assert_eq!(asked(&mut b, 51, 66).len(), 6);
    assert_eq!(asked(&mut b, 66, 67), [(66, 3)]);
    assert_eq!((b.poll_news(), b.poll_news()), (Some(news(router(4))), None));
}

#[test]
fn test_spare_routers_that_become_known_later_are_asked_for() {
    let mut b = routed();
    let spares = vec![router(5)];
    let net = config6(MAC_B, B6).net.with_spare_routers(spares);
    b.set_addressing(ms(1), net);
    asked(&mut b, 2, 66);
    assert_eq!(asked(&mut b, 66, 67), [(66, 5)]);
}

/// Two stations have claimed the address of the spare router: the search ends with that question.
#[test]
fn test_search_ends_when_it_is_settled_which_station_the_spare_router_has() {
    for defends in [false, true] {
        let mut b = routed();
        let near = router(4);
        b.connect(ms(0), (near, PORT).into(), None).unwrap();
        frames(&mut b, ms(0));
        answers(&mut b, ms(0), near);
        for s in 1..65 {
            b.handle_timeouts(ms(1000 * s));
            frames(&mut b, ms(1000 * s));
            if s == 61 {
                answers(&mut b, ms(61_000), near);
            }
        }
        // The default router's silence is noticed while the claim is tested.
        b.handle_timeouts(ms(65_000));
        let question = icmpv6::neighbor_solicit(near, B6, B6, MacAddr([2, 7, 7, 7, 7, 7]));
        let mut claim = frame6(near, B6, ipv6::ICMP, 255, &question);
        claim[6..12].copy_from_slice(&[2, 7, 7, 7, 7, 7]);
        b.handle_frame(ms(65_990), &claim[..]);
        b.handle_timeouts(ms(66_000));
        frames(&mut b, ms(66_000));
        assert_eq!(b.poll_news(), None);
        if defends {
            answers(&mut b, ms(66_010), near);
        } else {
            for n in 66_010..66_400 {
                b.handle_timeouts(ms(n));
            }
        }
        assert_eq!((b.poll_news(), b.udp.sought.len()), (Some(news(near)), 1), "{defends}");
    }
}

#[test]
fn test_hosts_that_are_silent_and_no_default_router_have_no_spare_routers() {
    let mut b = routed();
    answers(&mut b, ms(59_000), SILENT);
    let near = router(0x77);
    b.connect(ms(1), (near, PORT).into(), None).unwrap();
    let all = asked(&mut b, 1, 60);
    assert!(!all.is_empty() && all.iter().all(|(_, n)| *n == 0x77), "{all:?}");
    assert_eq!(b.poll_news(), None);
    // Nor has a router without spare ones.
    let mut b = Stack::new(config6(MAC_B, B6));
    b.connect(ms(0), (FAR, PORT).into(), None).unwrap();
    frames(&mut b, ms(0));
    answers(&mut b, ms(0), SILENT);
    assert!(asked(&mut b, 1, 100).iter().all(|(_, n)| *n == 1));
    assert_eq!(b.poll_news(), None);
}

/// A connection that hears nothing for a while has its next hop asked for, long before the minute is over.
#[test]
fn test_next_hop_of_an_unanswered_connection_is_asked_for_at_once() {
    let mut b = host_b();
    let (id, ..) = established6(&mut b, ms(0));
    b.get_mut(id).unwrap().1.push(b"unanswered");
    b.notify_send(id);
    let mut asked = Vec::new();
    for now in 0..12_000 {
        b.handle_timeouts(ms(now));
        for f in frames(&mut b, ms(now)).iter().filter(|f| f[20] == ipv6::ICMP) {
            if let Message::NeighborSolicit { target, .. } = icmp_of(f).1 {
                assert_eq!(target, A6);
                asked.push((now / 1000, f[..6] == MAC_A));
            }
        }
    }
    let [(first, _), ..] = asked[..] else { panic!("nothing was asked") };
    assert!(first < 3, "{asked:?}");
    // At its station and then everywhere, once.
    let times: Vec<_> = (0..6).map(|n| (first + n, n < 3)).collect();
    assert_eq!(asked, times);
    assert!(b.conn(id).is_some());
}
