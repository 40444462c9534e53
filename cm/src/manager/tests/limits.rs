//! The limits on places and time that peers can take.

use super::*;

#[test]
fn test_backlog_evicts_leaving_connections_first_then_longest_waiting() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams { backlog: 3, ..ListenParams::default() });
    let (_, id) = b.asked(peer(1));
    let old = b.accepted(peer(2));
    let (leaving, rejected) = b.asked(peer(3));
    b.ask(APP, Request::Reject { id: rejected, private_data: vec![], needs_ord: None }).unwrap();
    b.orders();
    let order_of = |b: &mut Bench| {
        let aborted = std::iter::from_fn(|| b.cm.poll_order()).filter_map(|(_, o)| match o {
            Order::Abort { conn } => Some(conn),
            _ => None,
        });
        aborted.collect::<Vec<_>>()
    };
    let new = b.accepted(peer(4));
    assert_eq!(order_of(&mut b), [leaving]);
    let newer = b.accepted(peer(5));
    assert_eq!(order_of(&mut b), [old]);
    assert_eq!(b.notices(), [Refusal::Evicted], "one that was rejected has had its answer");
    assert_eq!((b.cm.counters().backlog_evicted, b.cm.gauges().startups), (2, 3));
    // All start-ups wait for the application's answer: the manager refuses a newcomer.
    for conn in [new, newer] {
        b.event(RnicEvent::StartupBytes { conn, bytes: request() });
    }
    b.events();
    let late = b.accepted(peer(6));
    assert_eq!((b.is_known(late), b.notices()), (false, vec![Refusal::Backlog]));
    assert_eq!(b.cm.counters().backlog_full, 1);
    // An answer makes room.
    b.accept(id, 7).unwrap();
    let late = b.accepted(peer(6));
    assert!(b.is_known(late));
}

#[test]
fn test_draining_manager_refuses_new_connections_and_keeps_those_begun() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    let begun = b.accepted(peer(1));
    b.cm.set_draining(true);
    let late = b.accepted(peer(2));
    assert_eq!((b.is_known(begun), b.is_known(late)), (true, false));
    assert_eq!((b.notices(), b.cm.counters().draining_refused), (vec![Refusal::Draining], 1));
    b.event(RnicEvent::StartupBytes { conn: begun, bytes: request() });
    assert!(!b.events().is_empty(), "the start-up goes on");
    b.cm.set_draining(false);
    let later = b.accepted(peer(2));
    assert!(b.is_known(later));
}

#[test]
fn test_manager_at_startup_limit_takes_no_place_from_other_application() {
    let mut b = Bench::new(CmConfig { max_startups: 4, ..config(1) });
    b.listen(ListenParams::default());
    let elsewhere = "10.0.0.1:80".parse().unwrap();
    b.listen_as(OTHER, ListenerId(2), elsewhere, ListenParams::default());
    let first = [b.accepted(peer(1)), b.accepted(peer(2))];
    b.at = elsewhere;
    let second = [b.accepted(peer(3)), b.accepted(peer(4))];
    for conn in second {
        b.event(RnicEvent::StartupBytes { conn, bytes: request() });
    }
    b.orders();
    // Both applications have equal shares, and neither takes a place of the other.
    let fifth = b.accepted(peer(5));
    assert_eq!((b.is_known(fifth), b.cm.counters().startups_full), (false, 1));
    b.orders();
    b.at = local();
    let sixth = b.accepted(peer(6));
    assert_eq!(b.orders(), ["0 Abort"], "the oldest that nobody knows of makes room");
    b.closed(first[0]);
    let known = [first[0], first[1], second[0], second[1], sixth].map(|c| b.is_known(c));
    assert_eq!(known, [false, true, true, true, true]);
}

/// An application that answers no request, with the longest patience there is, beside another
/// application: its peer comes in as often as it likes, and each request to the other application
/// finds a place.
#[test]
fn test_application_that_never_answers_takes_no_place_of_another() {
    for accounts in [false, true] {
        let mut b =
            Bench::new(CmConfig { max_startups: 8, max_startups_per_tenant: 6, ..config(1) });
        let patient = ListenParams {
            backlog: 1000,
            max_startups_per_peer: None,
            accept_timeout: Duration::from_secs(1 << 40),
            ..ListenParams::default()
        };
        // Either one application has six listeners, or six applications of one user have one each.
        let apps: Vec<_> = (0..6).map(|n| AppId(10 + if accounts { n } else { 0 })).collect();
        for (n, app) in (0u16..).zip(&apps) {
            if accounts {
                b.cm.set_tenant(*app, TenantId::Account(1));
            }
            let at = ([10, 0, 0, 1], 100 + n).into();
            b.listen_as(*app, ListenerId(10 + u64::from(n)), at, patient.clone());
        }
        b.listen(ListenParams::default());
        let flood = |b: &mut Bench| {
            for n in 0..60 {
                b.at = ([10, 0, 0, 1], 100 + n % 6).into();
                let conn = b.accepted(([10, 9, 9, 9], 1000 + n).into());
                if b.is_known(conn) {
                    b.event(RnicEvent::StartupBytes { conn, bytes: request() });
                }
                b.orders();
                b.events();
            }
            b.at = local();
        };
        flood(&mut b);
        assert_eq!(b.cm.gauges().startups, 6, "what one tenant gets");
        let first = b.accepted(peer(1));
        let second = b.accepted(peer(2));
        for conn in [first, second] {
            b.event(RnicEvent::StartupBytes { conn, bytes: request() });
        }
        assert_eq!(b.events().len(), 2);
        // All places are taken, and the other application has less than its half: the greedy
        // application's oldest request makes room.
        let third = b.accepted(peer(3));
        assert!(b.is_known(third), "{accounts}");
        assert_eq!(b.orders(), ["0 Abort"]);
        let events = b.events();
        let [(app, Event::ConnectError { error, qp, .. })] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!((error, qp), (&ConnectFailure::Displaced, &QpFate::NoQp));
        assert!(apps.contains(app));
        b.event(RnicEvent::StartupBytes { conn: third, bytes: request() });
        b.events();
        flood(&mut b);
        for conn in [first, second, third] {
            assert!(b.is_known(conn), "a flood takes nothing back");
        }
        // An application that ends gives all its places back, to the last.
        for app in &apps {
            b.ask(*app, Request::AppGone).unwrap();
        }
        b.orders();
        assert_eq!(b.cm.gauges().startups, 3);
    }
}

#[test]
fn test_peer_cannot_exceed_its_limits_of_startups_and_connections() {
    let mut b = Bench::new(config(1));
    let (startups, conns) = (Some(3), Some(5));
    b.listen(ListenParams {
        backlog: 4,
        max_startups_per_peer: startups,
        max_conns_per_peer: conns,
        ..ListenParams::default()
    });
    let port = |n| ([10, 0, 1, 1], n).into();
    for n in 0..1000 {
        b.accepted(port(n + 1));
    }
    assert_eq!((b.cm.gauges().startups, b.cm.counters().backlog_evicted), (3, 0));
    assert_eq!(b.cm.counters().peer_full, 997);
    // Other peers are served, and this peer gets no more than its share of established connections.
    let (_, id) = b.asked(peer(2));
    b.accept(id, 100).unwrap();
    b.pass(seconds(5));
    for n in 1..=5 {
        b.established(n);
    }
    b.notices();
    let sixth = b.accepted(peer(1));
    assert!(!b.is_known(sixth));
    assert_eq!(b.notices().last(), Some(&Refusal::PeerConns));
}

#[test]
fn test_manager_refuses_peers_and_requests_while_event_queue_is_full() {
    let mut b = Bench::new(CmConfig { max_events: 10, ..config(1) });
    b.listen(ListenParams::default());
    for n in 0..50 {
        let conn = b.accepted(peer(n));
        b.event(RnicEvent::StartupBytes { conn, bytes: request() });
        b.closed(conn);
        b.events();
    }
    // Two events for each connection, and the one of the listener.
    assert_eq!((b.cm.gauges().events, b.cm.counters().events_full), (11, 45));
    assert_eq!(b.connect(1, 1), Err(RequestError::EventsNotTaken));
    // Other applications are not affected.
    let elsewhere = "10.0.0.1:80".parse().unwrap();
    b.listen_as(OTHER, ListenerId(2), elsewhere, ListenParams::default());
    b.at = elsewhere;
    let conn = b.accepted(peer(1));
    assert!(b.is_known(conn));
    b.at = local();
    b.ask(APP, Request::EventsTaken { count: 2 }).unwrap();
    b.connect(1, 1).unwrap();
    b.asked(peer(1));
}

#[test]
fn test_manager_resets_accepted_peer_without_first_fpdu_in_time() {
    for (timeout, speaks, resets) in
        [(Some(seconds(60)), false, true), (Some(seconds(60)), true, false), (None, false, false)]
    {
        let mut b = Bench::new(config(1));
        b.listen(ListenParams { first_fpdu_timeout: timeout, ..ListenParams::default() });
        let (conn, id) = b.established(7);
        b.orders();
        b.pass(seconds(60) - Duration::from_nanos(1));
        assert_eq!(b.orders(), [""; 0]);
        if speaks {
            b.event(RnicEvent::Qp { conn, event: QpEvent::FirstFpdu });
        }
        b.pass(seconds(1000));
        assert_eq!(b.orders(), if resets { vec!["0 Abort"] } else { vec![] });
        assert_eq!(b.cm.counters().first_fpdu_timeouts, u64::from(resets));
        b.closed(conn);
        let reason = if resets {
            DisconnectReason::NoFirstFpdu
        } else {
            DisconnectReason::Tcp(CloseReason::Reset)
        };
        assert_eq!(
            b.events(),
            [(APP, Event::Disconnected { id, qpn: Qpn(7), reason, terminate: None })]
        );
    }
}

/// Everything that peers can do alone, without limit: the manager stays within its limits.
#[test]
fn test_manager_state_stays_within_limits_under_peer_floods() {
    let mut b = Bench::new(CmConfig { max_startups: 100, ..config(1) });
    b.listen(ListenParams { backlog: 80, ..ListenParams::default() });
    let peers = |n: u32| SocketAddr::from((n.to_be_bytes(), 1000));
    let mut most = CmGauges::default();
    for n in 0..20_000 {
        let conn = b.accepted(peers(n));
        match n % 4 {
            0 => {}
            1 => b.event(RnicEvent::StartupBytes { conn, bytes: vec![b'M'] }),
            2 => b.event(RnicEvent::StartupBytes { conn, bytes: vec![b'x'] }),
            _ => b.event(RnicEvent::PeerClosed { conn }),
        }
        let orders: Vec<_> = std::iter::from_fn(|| b.cm.poll_order()).collect();
        for (_, order) in orders {
            if let Order::Abort { conn } = order {
                b.closed(conn);
            }
        }
        b.orders();
        let g = b.cm.gauges();
        most.conns = most.conns.max(g.conns);
        most.timers = most.timers.max(g.timers);
    }
    assert!(most.conns <= 81 && most.timers <= 81, "{most:?}");
    assert!(b.notices().len() <= 16 && b.cm.counters().notices_suppressed > 9000);
    b.pass(seconds(100));
    b.cm.handle_timeout(b.now);
    let orders: Vec<_> = std::iter::from_fn(|| b.cm.poll_order()).collect();
    for (_, order) in orders {
        if let Order::Abort { conn } = order {
            b.closed(conn);
        }
    }
    assert_eq!((b.cm.gauges().conns, b.cm.gauges().timers), (0, 0));
    assert!(b.cm.listeners.get(L).is_some_and(|l| l.places.len() == 0));
}
