//! The owners and the claims of connections and queue pairs.

use super::*;

#[test]
fn test_manager_refuses_queue_pair_in_use_and_its_connection_continues() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    let (conn, id) = b.established(7);
    b.orders();
    let busy = Err(RequestError::QpBusy(Qpn(7)));
    let (_, second) = b.asked(peer(2));
    assert_eq!((b.connect(1, 7), b.accept(second, 7)), (busy, busy));
    assert_eq!(b.ask(APP, Request::ForgetQp { qpn: Qpn(7) }), busy);
    assert_eq!((b.orders().len(), b.events().len()), (0, 0), "nothing happens to anyone");
    // The second request still waits for its answer.
    b.accept(second, 8).unwrap();
    b.ask(APP, Request::Disconnect { id }).unwrap();
    b.event(RnicEvent::Closed { conn, reason: CloseReason::Orderly });
    let reason = DisconnectReason::Orderly;
    assert_eq!(
        b.events(),
        [(APP, Event::Disconnected { id, qpn: Qpn(7), reason, terminate: None })]
    );
    // The queue pair has been in FPDU mode.
    assert_eq!(b.connect(1, 7), Err(RequestError::QpSpent(Qpn(7))));
    b.ask(APP, Request::ForgetQp { qpn: Qpn(7) }).unwrap();
    assert_eq!(b.connect(1, 7), Ok(()));
}

#[test]
fn test_a_queue_pair_is_free_again_after_a_failure_before_fpdu_mode() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    for id in 1..4 {
        b.connect(id, 7).unwrap();
        assert_eq!(b.connect(id + 100, 7), Err(RequestError::QpBusy(Qpn(7))));
        b.ask(APP, Request::Disconnect { id: CmId(id) }).unwrap();
        let error = ConnectFailure::Cancelled;
        let qp = QpFate::Free(Qpn(7));
        assert_eq!(b.events(), [(APP, Event::ConnectError { id: CmId(id), error, qp })]);
    }
    // The worker refuses to enter FPDU mode, so the connection is never established.
    let (conn, id) = b.asked(peer(1));
    b.accept(id, 7).unwrap();
    assert_eq!(b.events(), [], "not before the worker has answered");
    let refused = RnicError::NotStartup;
    b.report(Report::Entered { conn, result: Err(refused) });
    let error = ConnectFailure::Worker(refused);
    let qp = QpFate::Free(Qpn(7));
    assert_eq!(b.events(), [(APP, Event::ConnectError { id, error, qp })]);
    b.connect(9, 7).unwrap();
}

#[test]
fn test_connect_cancelled_while_worker_enters_fpdu_mode_spends_queue_pair() {
    for (entered, fate) in
        [(Ok(()), QpFate::Spent(Qpn(7))), (Err(RnicError::NotStartup), QpFate::Free(Qpn(7)))]
    {
        let mut b = Bench::new(config(1));
        let (conn, id) = (b.entering(1, 7), CmId(1));
        b.orders();
        b.ask(APP, Request::Disconnect { id }).unwrap();
        assert_eq!(b.events(), [], "whether it was touched is not known");
        b.report(Report::Entered { conn, result: entered });
        let error = ConnectFailure::Cancelled;
        assert_eq!(b.events(), [(APP, Event::ConnectError { id, error, qp: fate })]);
        b.closed(conn);
        assert_eq!((b.events().len(), b.is_known(conn)), (0, false));
        assert_eq!(b.orders(), ["0 Abort", "0 Release"]);
    }
}

#[test]
fn test_accepted_connection_is_reported_established_before_it_ends() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    let (conn, id) = b.asked(peer(1));
    b.accept(id, 7).unwrap();
    for _ in 0..2 {
        b.ask(APP, Request::Disconnect { id }).unwrap();
    }
    assert_eq!(b.events(), []);
    b.report(Report::Entered { conn, result: Ok(()) });
    let events = b.events();
    assert!(matches!(events[..], [(APP, Event::Established { .. })]), "{events:?}");
    b.event(RnicEvent::Closed { conn, reason: CloseReason::Orderly });
    let (reason, qpn) = (DisconnectReason::Orderly, Qpn(7));
    assert_eq!(b.events(), [(APP, Event::Disconnected { id, qpn, reason, terminate: None })]);
    assert_eq!(b.orders(), ["0 EnterFpduMode", "0 Disconnect", "0 Disconnect", "0 Release"]);
    assert!(!b.is_known(conn));
}

#[test]
fn test_application_cannot_reach_connections_of_another_application() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    let (_, waiting) = b.asked(peer(1));
    let (_, running) = b.established(7);
    b.orders();
    let none = Err(RequestError::NoConnection);
    for id in [waiting, running] {
        let params = AcceptTerms::new(qp(9));
        assert_eq!(b.ask(OTHER, Request::Accept { id, params }), none);
        assert_eq!(
            b.ask(OTHER, Request::Reject { id, private_data: vec![], needs_ord: None }),
            none
        );
        assert_eq!(b.ask(OTHER, Request::Disconnect { id }), none);
    }
    assert_eq!(b.ask(OTHER, Request::Unlisten { id: L }), Err(RequestError::NoListener));
    b.ask(OTHER, Request::ForgetQp { qpn: Qpn(7) }).unwrap();
    b.ask(OTHER, Request::AppGone).unwrap();
    assert_eq!((b.orders().len(), b.events().len()), (0, 0));
    assert_eq!(b.connect(1, 7), Err(RequestError::QpBusy(Qpn(7))));
    assert_eq!(b.cm.gauges().listeners, 1);
}

#[test]
fn test_manager_refuses_invalid_requests_at_once_and_changes_nothing() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    let (_, id) = b.asked(peer(1));
    b.connect(1, 1).unwrap();
    b.orders();
    let before = b.cm.gauges();
    let listen = |id, addr: &str| {
        let params = ListenParams::default();
        Request::Listen { id: ListenerId(id), addr: addr.parse().unwrap(), params }
    };
    let connect = |id, change: fn(&mut ConnectTerms)| {
        let mut params = ConnectTerms::new(qp(50));
        change(&mut params);
        Request::Connect { id, remote: peer(1), params }
    };
    let mut long = AcceptTerms::new(qp(50));
    long.private_data = vec![0; 513];
    let mut deep = AcceptTerms::new(qp(50));
    deep.ird = 0x3fff;
    let cases = [
        (listen(1, "10.0.0.1:1"), "in use or reserved"),
        (listen(2, "10.0.0.1:7174"), "already listening"),
        (listen(2, "10.0.0.1:0"), "port 0"),
        (Request::Unlisten { id: ListenerId(9) }, "no such listener"),
        (listen(2, "10.0.0.2:1"), "not an address of this stack"),
        (connect(CmId(1), |_| {}), "in use or reserved"),
        (connect(CmId::PASSIVE, |_| {}), "in use or reserved"),
        (connect(CmId(2), |p| p.local = Some(peer(2).ip())), "not ours"),
        (connect(CmId(2), |p| p.private_data = vec![0; 509]), "509"),
        (connect(CmId(2), |p| p.ord = 0x3fff), "16383"),
        (Request::Accept { id, params: long }, "513"),
        (Request::Accept { id, params: deep }, "16383"),
        (Request::Reject { id, private_data: vec![0; 513], needs_ord: None }, "513"),
        (Request::Accept { id: CmId(1), params: AcceptTerms::new(qp(50)) }, "does not wait"),
        (Request::Reject { id: CmId(1), private_data: vec![], needs_ord: None }, "does not wait"),
        (Request::Disconnect { id: CmId(99) }, "no such connection"),
    ];
    for (n, (request, why)) in cases.into_iter().enumerate() {
        let text = format!("{request:?}");
        let error = b.ask(APP, request).expect_err(&text).to_string();
        assert!(error.contains(why), "{text}: {error}");
        assert_eq!((b.orders().len(), b.events().len()), (0, 0), "{text}");
        assert_eq!(b.cm.gauges(), before, "{text}");
        assert_eq!(b.cm.counters().requests_refused, n as u64 + 1);
    }
    b.accept(id, 50).expect("the request still waits");
}

#[test]
fn test_manager_drops_all_state_of_gone_application_and_keeps_others() {
    let mut b = Bench::new(config(1));
    b.listen(ListenParams::default());
    let (done, _) = b.established(6);
    b.closed(done);
    b.events();
    let (running, _) = b.established(7);
    let (entering, id) = b.asked(peer(2));
    b.accept(id, 8).unwrap();
    let (asked, _) = b.asked(peer(3));
    let silent = b.accepted(peer(4));
    b.connect(1, 9).unwrap();
    let pending = "10.0.0.1:1".parse().unwrap();
    let params = ListenParams::default();
    b.ask(APP, Request::Listen { id: ListenerId(5), addr: pending, params }).unwrap();
    let elsewhere = "10.0.0.1:80".parse().unwrap();
    b.listen_as(OTHER, ListenerId(2), elsewhere, ListenParams::default());
    b.at = elsewhere;
    let foreign = b.accepted(peer(5));
    b.orders();
    b.ask(APP, Request::AppGone).unwrap();
    let orders = b.orders();
    let count = |what: &str| orders.iter().filter(|o| o.ends_with(what)).count();
    assert_eq!((count("Unlisten"), count("Abort"), orders.len()), (2, 4, 6), "{orders:?}");
    assert_eq!(b.connect(50, 50), Err(RequestError::Id));
    b.report(Report::Entered { conn: entering, result: Ok(()) });
    let opened = b.names.next().unwrap();
    b.report(Report::Connecting { token: 1, result: Ok(opened) });
    for conn in [running, entering, asked, silent, opened] {
        assert!(b.is_known(conn));
        b.closed(conn);
    }
    assert_eq!(b.events(), [], "nobody is there to be told");
    let left =
        CmGauges { conns: 1, startups: 1, listeners: 1, timers: 1, apps: 1, events: 1, claims: 0 };
    assert_eq!(b.cm.gauges(), left);
    assert!(b.is_known(foreign));
}
