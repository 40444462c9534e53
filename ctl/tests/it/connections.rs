//! Connections that are not established, listeners and their limits: the application's events, the
//! peer's view, the counters.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::*;
use heddle_ctl::Endpoint;
use heddle_dataplane::{Clock, ManualClock};
use heddle_iwarp::mpa::frame::{Frame, Kind};
use heddle_tcp::ConnEvent;
use heddle_types::{ConnId, ListenError, mpa::Revision};
use heddle_verbs::{
    AcceptParams, CmEvent, CmId, ConnectFailure, ConnectParams, CqeStatus, DeviceError, EventQueue,
    ListenFailure, ListenParams, MpaOptions, Protocol, QpFate,
};

fn of_revision(revision: Revision) -> Protocol {
    Protocol::Mpa(MpaOptions { revision, ..MpaOptions::default() })
}

/// Returns the failure of a connect with `end`'s queue pair. The queue pair has to be free again,
/// and its receive still posted.
fn connect_error(net: &mut Net, events: &EventQueue, id: CmId, end: &End) -> ConnectFailure {
    let CmEvent::ConnectError { id: failed, error, qp } = net.event(events) else {
        panic!("failure")
    };
    assert_eq!((failed, qp), (id, QpFate::Free(end.qp.qpn())));
    net.settle();
    assert_eq!(end.completions(), []);
    assert_eq!(events.poll(), None);
    error
}

fn new_end(net: &Net) -> End {
    let end = End::new(&net.us);
    end.post_recv(1, 0, 8);
    end
}

/// Makes a connection with the peer, whose hardware address is known from then on.
fn introduce(net: &mut Net, events: &EventQueue) -> Honest {
    Honest::new(net, PORT, events)
}

#[test]
fn test_failed_connect_reports_why_it_failed() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = EventQueue::new(None);
    let secs = Duration::from_secs;

    // No host answers ARP.
    net.peer.deaf = true;
    let (end, start) = (new_end(&net), net.now());
    let id = end.connect(&net.us, 99, &events);
    let error = connect_error(&mut net, &events, id, &end);
    assert!(error.to_string().contains("cannot be resolved"), "{error}");
    let waited = net.now().since(start);
    assert!(waited >= secs(3) && waited < secs(4), "{waited:?}");
    assert_eq!((net.ctl().cm.failed, net.worker().engine.stack.neighbor_failed), (1, 1));
    net.peer.deaf = false;

    // There is no listener.
    let end = new_end(&net);
    let id = end.connect(&net.us, 98, &events);
    let error = connect_error(&mut net, &events, id, &end);
    assert!(error.to_string().contains("refused"), "{error}");
    assert_eq!(net.ctl().cm.failed, 2);

    // The peer is known and does not answer.
    let queue = listen(&mut net, PORT, |_| {});
    let mut honest = introduce(&mut net, &queue);
    net.peer.deaf = true;
    let (end, start) = (new_end(&net), net.now());
    let id = end.connect(&net.us, 99, &events);
    let error = connect_error(&mut net, &events, id, &end);
    assert_eq!(error.to_string(), "the TCP connection did not come in time");
    let waited = net.now().since(start);
    assert!(waited >= secs(10) && waited < secs(11), "{waited:?}");
    assert_eq!((net.ctl().cm.failed, net.ctl().cm.startup_timeouts), (3, 1));
    net.peer.deaf = false;

    // These addresses belong to no peer.
    let end = new_end(&net);
    for (to, why) in [
        ("10.0.0.255:1", "not the address of a peer"),
        ("10.0.0.1:1", "not the address of a peer"),
        ("10.0.0.2:0", "not the address of a peer"),
        ("192.0.2.1:1", "no route"),
        ("[2001:db8::1]:1", "no route"),
    ] {
        let to: SocketAddr = to.parse().unwrap();
        let params = ConnectParams::new(end.qp.clone());
        let id = net.us.device().connect(to, params, &events).unwrap();
        let error = connect_error(&mut net, &events, id, &end);
        assert!(error.to_string().contains(why), "{to}: {error}");
    }
    // Without a route, or with an address of the other family, the request itself is refused.
    let cm = net.ctl().cm;
    assert_eq!((cm.failed, cm.requests_refused), (6, 2));
    honest.exchange(&mut net);
}

#[test]
fn test_connect_can_be_cancelled_at_any_time() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let queue = listen(&mut net, PORT, |_| {});
    net.peer.stack.listen(None, 99, 8).unwrap();
    let events = EventQueue::new(None);
    let mut cancelled = 0;
    let mut cancel = |net: &mut Net, id, end: &End| {
        net.us.device().disconnect(id).unwrap();
        let error = connect_error(net, &events, id, end);
        assert_eq!(error, ConnectFailure::Cancelled);
        cancelled += 1;
        assert_eq!((net.ctl().cm.cancelled, net.ctl().cm.failed), (cancelled, cancelled));
        // A second request changes nothing.
        net.us.device().disconnect(id).unwrap();
        net.settle();
        assert_eq!(net.ctl().cm.cancelled, cancelled);
    };
    // The four moments: before the worker has heard of the connection; during ARP; while the SYN
    // waits for its answer; while the MPA Reply is awaited.
    let end = new_end(&net);
    let id = end.connect(&net.us, 99, &events);
    cancel(&mut net, id, &end);
    net.peer.deaf = true;
    let end = new_end(&net);
    let id = end.connect(&net.us, 99, &events);
    net.settle();
    cancel(&mut net, id, &end);
    net.peer.deaf = false;
    let mut honest = introduce(&mut net, &queue);
    net.peer.deaf = true;
    let end = new_end(&net);
    let id = end.connect(&net.us, 99, &events);
    net.settle();
    cancel(&mut net, id, &end);
    net.peer.deaf = false;
    let end = new_end(&net);
    let known = net.peer.accepted().len();
    let id = end.connect(&net.us, 99, &events);
    let conn = net.until("our Request", |n| {
        let conn = n.peer.accepted().get(known).copied();
        conn.filter(|c| !n.peer.got(*c).is_empty())
    });
    cancel(&mut net, id, &end);
    assert!(net.peer.says(conn, ConnEvent::Reset));
    // The application can disconnect a peer's request as well.
    let conn = net.tcp(PORT);
    net.peer.send(conn, &request(b""));
    let CmEvent::ConnectRequest { id, .. } = net.event(&queue) else { panic!("a request") };
    net.us.device().disconnect(id).unwrap();
    let CmEvent::ConnectError { error, .. } = net.event(&queue) else { panic!("an error") };
    assert_eq!(error, ConnectFailure::Cancelled);
    net.settle();
    assert!(net.peer.says(conn, ConnEvent::Reset));
    assert_eq!(net.ctl().cm.startup_errors + net.ctl().cm.startup_timeouts, 0);
    honest.exchange(&mut net);
}

#[test]
fn test_listen_reports_errors_and_most_specific_listener_gets_requests() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.us.device().clone();
    let events = EventQueue::new(None);
    let ask = |addr: &str| {
        device.listen(addr.parse().unwrap(), ListenParams::default(), &events).unwrap()
    };
    let listen = |net: &mut Net, addr: &str| {
        let id = ask(addr);
        assert_eq!(net.event(&events), CmEvent::Listening { id });
        id
    };
    let fails = |net: &mut Net, addr: &str, why| {
        let id = ask(addr);
        let error = ListenFailure::Worker(why);
        assert_eq!(net.event(&events), CmEvent::ListenFailed { id, error }, "{addr}");
    };
    let first = listen(&mut net, "10.0.0.1:80");
    for (addr, why) in [
        ("10.0.0.1:80", ListenError::InUse),
        ("10.0.0.1:0", ListenError::PortZero),
        ("10.0.0.9:81", ListenError::NotOurs),
        ("[::1]:81", ListenError::NotOurs),
    ] {
        fails(&mut net, addr, why);
    }
    // The wildcard address is another place than a single address, and takes one listener too.
    let any = listen(&mut net, "0.0.0.0:80");
    fails(&mut net, "0.0.0.0:80", ListenError::InUse);
    // The application ends a listener and makes it again at once.
    device.unlisten(first).unwrap();
    let again = listen(&mut net, "10.0.0.1:80");
    // The application ends a listener before it is up, and hears that it is not.
    let never = ask("10.0.0.1:81");
    device.unlisten(never).unwrap();
    let error = ListenFailure::Withdrawn;
    assert_eq!(net.event(&events), CmEvent::ListenFailed { id: never, error });
    for (gone, want) in [(any, again), (again, again)] {
        let conn = net.tcp(80);
        net.peer.send(conn, &request(b""));
        let CmEvent::ConnectRequest { listener, id, .. } = net.event(&events) else { panic!() };
        assert_eq!(listener, want, "the one at the very address");
        device.reject(id, Vec::new()).unwrap();
        device.unlisten(gone).unwrap();
        net.settle();
    }
    // For two seconds after a listener's end the RNIC drops SYNs to it, so that a client tries
    // again.
    let ask = |net: &mut Net| net.peer.stack.connect(net.now(), us(80), None).unwrap();
    let asked = net.now();
    let conn = ask(&mut net);
    net.settle();
    let back = listen(&mut net, "0.0.0.0:80");
    net.until("the server's return", |n| n.peer.says(conn, ConnEvent::Connected).then_some(()));
    device.unlisten(back).unwrap();
    net.settle();
    let conn = ask(&mut net);
    net.until("a refusal", |n| n.peer.says(conn, ConnEvent::Refused).then_some(()));
    assert!(net.now() - asked >= Duration::from_millis(1900), "each SYN came once more");
    // The RNIC takes as many listeners as it has places for, and not one more.
    for port in 1000..2024 {
        listen(&mut net, &format!("10.0.0.1:{port}"));
    }
    fails(&mut net, "10.0.0.1:3000", ListenError::Full);
}

#[test]
fn test_backlog_limits_connections_during_startup() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |p| p.backlog = 2);
    let mut honest = Honest::new(&mut net, PORT, &events);
    // Two requests wait for the application; a third peer is refused.
    let ask = |net: &mut Net| {
        let conn = net.tcp(PORT);
        net.peer.send(conn, &request(b""));
        net.settle();
        conn
    };
    let first = [ask(&mut net), ask(&mut net)];
    let third = ask(&mut net);
    assert!(net.peer.says(third, ConnEvent::Reset));
    assert_eq!((net.ctl().cm.backlog_full, net.ctl().cm.backlog_evicted), (1, 0));
    honest.exchange(&mut net);
    for conn in first {
        let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
        net.us.device().reject(id, Vec::new()).unwrap();
        net.settle();
        assert!(net.peer.says(conn, ConnEvent::PeerClosed));
        net.peer.stack.close(conn);
        net.settle();
    }
    // Peers that connect and send nothing make room, the oldest first.
    let silent = [net.tcp(PORT), net.tcp(PORT), net.tcp(PORT)];
    net.settle();
    let reset = |net: &Net, c: &ConnId| net.peer.says(*c, ConnEvent::Reset);
    assert_eq!(silent.each_ref().map(|c| reset(&net, c)), [true, false, false]);
    assert_eq!((net.ctl().cm.backlog_full, net.ctl().cm.backlog_evicted), (1, 1));
    let late = ask(&mut net);
    assert_eq!(silent.each_ref().map(|c| reset(&net, c)), [true, true, false]);
    let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
    let end = End::new(&net.us);
    net.us.device().accept(id, AcceptParams::new(end.qp.clone())).unwrap();
    assert!(matches!(net.event(&events), CmEvent::Established { .. }));
    net.settle();
    assert_eq!(net.peer.got(late), reply(false, b""));
    honest.exchange(&mut net);
}

#[test]
fn test_event_queue_that_is_never_read_stays_bounded() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let good = listen(&mut net, 80, |_| {});
    let mut honest = Honest::new(&mut net, 80, &good);
    let mut rounds = 0;
    while net.ctl().cm.events_full < 10 {
        let conn = net.tcp(PORT);
        net.peer.send(conn, &request(b""));
        net.settle();
        net.peer.stack.abort(conn);
        net.settle();
        net.peer.stack.release(conn);
        net.peer.events.clear();
        rounds += 1;
        assert!(rounds < 5000);
    }
    assert_eq!(std::iter::from_fn(|| events.poll()).count(), 4096);
    honest.exchange(&mut net);
    // Now there is room again.
    Honest::new(&mut net, PORT, &events).exchange(&mut net);
}

/// Two endpoints in virtual time.
struct Two {
    a: Endpoint,
    b: Endpoint,
    hand: ManualClock,
}

impl Two {
    fn event(&mut self, events: &EventQueue) -> CmEvent {
        for _ in 0..100_000 {
            for _ in 0..33 {
                self.a.poll();
                self.b.poll();
            }
            if let Some(e) = events.poll() {
                return e;
            }
            self.hand.advance(MS);
        }
        panic!("no event");
    }
}

#[test]
fn test_private_data_goes_both_ways_with_accept_and_reject() {
    let (eal, _turn) = eal();
    let (clock, hand) = Clock::manual();
    let (ca, cb) = (config(PEER, &clock), config(US, &clock));
    let (a, b) = Endpoint::ring_pair(&eal, &name(), &ca, &cb).unwrap();
    let mut two = Two { a, b, hand };
    let (qa, qb) = (EventQueue::new(None), EventQueue::new(None));
    let id = two.b.device().listen(us(PORT), ListenParams::default(), &qb).unwrap();
    assert_eq!(two.event(&qb), CmEvent::Listening { id });
    for (revision, most) in [(Revision::V1, 512), (Revision::V2, 508)] {
        for accept in [true, false] {
            for len in [0, 1, most] {
                let (there, back) = (vec![len as u8; len], vec![!len as u8; len]);
                let (ea, eb) = (End::new(&two.a), End::new(&two.b));
                ea.post_recv(1, 0, 8);
                let mut params = ConnectParams::new(ea.qp.clone());
                (params.protocol, params.private_data) = (of_revision(revision), there.clone());
                let id = two.a.device().connect(us(PORT), params, &qa).unwrap();
                let request = two.event(&qb);
                let CmEvent::ConnectRequest { id: theirs, private_data, peer, .. } = request else {
                    panic!("{request:?}");
                };
                assert_eq!((private_data, peer.is_some()), (there, revision == Revision::V2));
                if accept {
                    let mut params = AcceptParams::new(eb.qp.clone());
                    params.private_data = back.clone();
                    two.b.device().accept(theirs, params).unwrap();
                    assert!(matches!(two.event(&qb), CmEvent::Established { .. }));
                    let CmEvent::Established { private_data, agreed, .. } = two.event(&qa) else {
                        panic!("established");
                    };
                    assert_eq!((private_data, agreed.revision), (back, revision.0));
                    two.a.device().disconnect(id).unwrap();
                    for q in [&qa, &qb] {
                        let end = two.event(q);
                        assert!(matches!(end, CmEvent::Disconnected { .. }), "{end:?}");
                    }
                } else {
                    two.b.device().reject(theirs, back.clone()).unwrap();
                    let qpn = ea.qp.qpn();
                    assert_eq!(
                        two.event(&qa),
                        CmEvent::Rejected { id, qpn, private_data: back, peer }
                    );
                }
                // Posted requests wait for another connection, if the queue pair can have one.
                let done = ea.completions();
                if accept {
                    assert!(matches!(done[..], [c] if c.status == CqeStatus::Flushed));
                } else {
                    assert!(done.is_empty() && !ea.qp.is_dead());
                }
            }
        }
    }
    assert_eq!((qa.poll(), qb.poll()), (None, None));
    let (a, b) = (two.a.snapshot().ctl.cm, two.b.snapshot().ctl.cm);
    assert_eq!((a.requests_sent, b.requests_received, b.accepts_sent), (12, 12, 6));
    assert_eq!((a.rejects_received, b.rejects_sent, a.failed, b.failed), (6, 6, 0, 0));
}

#[test]
fn test_reject_sends_reply_and_fin() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = listen(&mut net, PORT, |_| {});
    let conn = net.tcp(PORT);
    net.peer.send(conn, &request(b"let me in"));
    let CmEvent::ConnectRequest { id, .. } = net.event(&events) else { panic!("a request") };
    net.us.device().reject(id, b"no".to_vec()).unwrap();
    net.settle();
    let (frame, _) = Frame::parse(Kind::Reply, Revision::V1, net.peer.got(conn)).unwrap().unwrap();
    assert!(frame.reject && frame.private_data == b"no");
    assert!(net.peer.says(conn, ConnEvent::PeerClosed));
    // Now the peer rejects, and leaves the close to us.
    net.peer.stack.listen(None, 99, 8).unwrap();
    let end = new_end(&net);
    let id = end.connect_with(&net.us, 99, &events, |p| p.protocol = of_revision(Revision::V1));
    let conn = net.until("our Request", |n| {
        n.peer.accepted().first().copied().filter(|c| !n.peer.got(*c).is_empty())
    });
    net.peer.send(conn, &reply(true, b"full"));
    let (qpn, private_data) = (end.qp.qpn(), b"full".to_vec());
    assert_eq!(net.event(&events), CmEvent::Rejected { id, qpn, private_data, peer: None });
    net.settle();
    assert!(net.peer.says(conn, ConnEvent::PeerClosed));
    assert_eq!((end.completions(), end.qp.is_dead()), (vec![], false));
    assert_eq!((net.ctl().cm.rejects_sent, net.ctl().cm.rejects_received), (1, 1));
}

/// These are more requests than the ring between applications and control plane holds.
#[test]
fn test_full_request_ring_refuses_requests_and_loses_none() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let events = EventQueue::new(None);
    let listen = || {
        let addr = (US, 0).into();
        net.us.device().listen(addr, ListenParams::default(), &events)
    };
    let mut asked = Vec::new();
    let refused = loop {
        match listen() {
            Ok(id) => asked.push(id),
            Err(e) => break e,
        }
    };
    assert_eq!(refused, DeviceError::Overloaded);
    // The first request also introduces the device to the control plane, which takes one place.
    assert_eq!(asked.len(), 4095);
    let end = End::new(&net.us);
    let connect = ConnectParams::new(end.qp.clone());
    let refused = net.us.device().connect((PEER, 98).into(), connect, &events);
    assert_eq!(refused, Err(DeviceError::Overloaded));
    for asked in asked {
        let CmEvent::ListenFailed { id, error } = net.event(&events) else { panic!("a failure") };
        assert_eq!((id, error), (asked, ListenFailure::Worker(ListenError::PortZero)));
    }
    assert_eq!(events.poll(), None);
    // The queue pair of the refused connect is free.
    let id = end.connect(&net.us, 98, &events);
    let error = connect_error(&mut net, &events, id, &end);
    assert!(error.to_string().contains("refused"), "{error}");
}

/// The queue of the request already has the end of the connection; an application that waits on
/// another queue gets the failure there.
#[test]
fn test_accept_of_ended_connection_reports_error_to_its_own_event_queue() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let (requests, events) = (listen(&mut net, PORT, |_| {}), EventQueue::new(None));
    let conn = net.tcp(PORT);
    net.peer.send(conn, &request(b""));
    let CmEvent::ConnectRequest { id, .. } = net.event(&requests) else { panic!("a request") };
    net.peer.stack.abort(conn);
    let CmEvent::ConnectError { id: gone, .. } = net.event(&requests) else { panic!("its end") };
    assert_eq!(gone, id);
    let end = new_end(&net);
    // The queue pair stays free after each failure.
    for _ in 0..2 {
        let params = AcceptParams::new(end.qp.clone());
        net.us.device().accept_on(id, params, &events).unwrap();
        let error = connect_error(&mut net, &events, id, &end);
        assert_eq!(error.to_string(), "no such connection");
    }
    assert_eq!(requests.poll(), None);
}
