//! The events of a connection at both ends, from beginning to end.

use heddle_cm::*;
use heddle_ib::CommId;
use heddle_ib::cm::{Message, Req};
use heddle_ib::ip_cm::{Header, Service};
use heddle_tcp::{Addressing, Route};
use heddle_types::{
    AcceptTerms, Awaited, CmId, ConnectFailure, ConnectTerms, DisconnectReason, Event, IbRefusal,
    ListenParams, ListenerId, ParamsError, PeerDepths, Protocol, QpFate, Qpn, Request,
    RequestError, Transport, mpa::Depth,
};

use crate::infiniband::world::*;

fn depths(ird: u16, ord: u16) -> Option<PeerDepths> {
    Some(PeerDepths { ird: Depth::new(ird).unwrap(), ord: Depth::new(ord).unwrap() })
}

fn first_req(net: &Net) -> (u64, Box<Req>) {
    match message(&net.log[0].1) {
        (tid, Message::Req(req)) => (tid, req),
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_client_and_server_exchange_addresses_private_data_and_depths() {
    let mut net = Net::new(1);
    net.connect(7, |p| (p.ird, p.ord, p.private_data) = (11, 22, b"from the client".to_vec()));
    let Event::ConnectRequest {
        id,
        listener,
        worker,
        transport,
        local,
        remote,
        private_data,
        peer,
        peer_to_peer,
    } = net.event(0)
    else {
        panic!("a request")
    };
    assert!(id.is_passive() && !peer_to_peer && !transport.carries_data());
    assert_eq!((listener, worker, transport), (ListenerId(1), W, Transport::InfiniBand));
    assert_eq!((local, remote.ip()), (server(), addr(1)));
    assert_eq!((private_data.len(), &private_data[..16]), (56, &b"from the client\0"[..]));
    // The IRD is the number of Reads that the client takes; the ORD is the number that it has
    // outstanding.
    assert_eq!(peer, depths(11, 22));

    // A depth above the number that the client takes is lowered to that number.
    let params = AcceptTerms {
        ird: 22,
        ord: 33,
        private_data: b"from the server".to_vec(),
        ..AcceptTerms::new(qp(8))
    };
    net.ask(0, Request::Accept { id, params }).unwrap();
    let Event::Established { qpn, private_data, agreed, local: ours, remote: theirs, .. } =
        net.event(1)
    else {
        panic!("established")
    };
    assert_eq!((ours, theirs, qpn), (remote, server(), Qpn(7)));
    assert_eq!((private_data.len(), &private_data[..16]), (196, &b"from the server\0"[..]));
    assert_eq!((agreed.transport, agreed.ird, agreed.ord), (Transport::InfiniBand, 11, 22));
    assert_eq!(agreed.peer, depths(22, 11));
    let Event::Established { qpn, private_data, agreed, .. } = net.event(0) else { panic!() };
    assert_eq!((qpn, private_data.len()), (Qpn(8), 0));
    assert_eq!((agreed.ird, agreed.ord, agreed.peer), (22, 11, depths(11, 22)));
    assert_eq!((net.said(1), net.said(0)), (vec!["Req".into(), "Rtu".into()], vec!["Rep".into()]));
}

#[test]
fn test_client_lowers_its_ord_to_ird_of_server() {
    let mut net = Net::new(2);
    net.connect(7, |p| p.ord = 22);
    let id = net.request();
    net.ask(0, Request::Accept { id, params: AcceptTerms { ird: 5, ..AcceptTerms::new(qp(8)) } })
        .unwrap();
    let Event::Established { agreed, .. } = net.event(1) else { panic!() };
    assert_eq!(agreed.ord, 5);
}

/// The REQ on the wire has the annex's Service ID and private data.
#[test]
fn test_req_has_service_id_and_header_of_the_annex() {
    let mut net = Net::new(3);
    net.connect(7, |p| p.private_data = b"x".to_vec());
    let (_, req) = first_req(&net);
    assert_eq!(req.service_id.0, 0x0000_0000_0106_1c06);
    assert_eq!(req.service_id, Service::tcp(PORT).id());
    let p = &req.private_data;
    assert_eq!(p[..2], [0x00, 0x40]);
    assert_eq!(
        (&p[4..20], &p[20..36]),
        (
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2][..],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1][..],
        )
    );
    assert_eq!((p[36], &p[37..]), (b'x', &[0; 55][..]));
    let Event::ConnectRequest { remote, .. } = net.event(0) else { panic!() };
    assert_eq!(remote.port().to_be_bytes(), p[2..4]);
    assert!(remote.port() >= 49152);
}

#[test]
fn test_connection_ends_in_order_when_either_side_disconnects() {
    for (ends, other) in [(0, 1), (1, 0)] {
        let mut net = Net::new(4);
        let ids = [net.establish(7), CmId(7)];
        net.ask(ends, Request::Disconnect { id: ids[ends] }).unwrap();
        for node in [other, ends] {
            let Event::Disconnected { id, qpn, reason, terminate } = net.event(node) else {
                panic!()
            };
            assert_eq!((id, reason, terminate), (ids[node], DisconnectReason::Orderly, None));
            assert_eq!(qpn, [Qpn(107), Qpn(7)][node]);
            // The queue pair is spent, as after iWARP, until the application forgets it.
            let gone = net.ask(node, Request::Disconnect { id });
            assert_eq!(gone, Err(RequestError::NoConnection));
            assert_eq!(net.nodes[node].cm.gauges().claims, 1);
            net.ask(node, Request::ForgetQp { qpn }).unwrap();
            assert_eq!(net.nodes[node].cm.gauges().claims, 0);
        }
        assert_eq!(net.said(ends).last().map(String::as_str), Some("Dreq"));
        assert_eq!(net.said(other).last().map(String::as_str), Some("Drep"));
        net.assert_nothing_left();
    }
}

#[test]
fn test_connection_ends_in_order_when_both_sides_disconnect_at_once() {
    let mut net = Net::new(5);
    let server = net.establish(7);
    net.ask(0, Request::Disconnect { id: server }).unwrap();
    net.ask(1, Request::Disconnect { id: CmId(7) }).unwrap();
    for node in [0, 1] {
        let orderly = DisconnectReason::Orderly;
        assert!(matches!(net.event(node), Event::Disconnected { reason, .. } if reason == orderly));
    }
    net.assert_nothing_left();
}

/// An application takes longer than the peer waits: the manager asks the peer for more time, and
/// the peer waits.
#[test]
fn test_manager_sends_one_mra_while_application_is_slow() {
    let mut net = Net::new(6);
    net.connect(7, |p| p.timeout = ms(60_000));
    let id = net.request();
    net.run(ms(20_000));
    assert_eq!(net.said(0), ["Mra"], "once");
    assert_eq!(net.said(1), ["Req"], "it is not asked again");
    assert_eq!((net.counters(0).mra_sent, net.counters(1).mra_received), (1, 1));
    net.accept(id, 8);
    assert!(matches!(net.event(1), Event::Established { .. }));
}

/// The time limit of the connect holds, however long the server delays its answer.
#[test]
fn test_client_gives_up_after_its_own_timeout_and_tells_server() {
    let mut net = Net::new(7);
    let begin = net.now;
    net.connect(7, |p| p.timeout = ms(8_000));
    let id = net.request();
    let Event::ConnectError { error, qp, .. } = net.event(1) else { panic!() };
    assert_eq!(error, ConnectFailure::TimedOut(Awaited::Answer));
    assert_eq!((qp, net.now.since(begin)), (QpFate::Free(Qpn(7)), ms(8_000)));
    // The client sends a REJ, so the server's application does not wait in vain.
    let Event::ConnectError { id: told, error, .. } = net.event(0) else { panic!() };
    assert_eq!((told, error), (id, ConnectFailure::InfiniBand(IbRefusal::Reason(4))));
    net.assert_nothing_left();
}

#[test]
fn test_manager_rejects_request_that_application_never_answers() {
    let mut net = Net::new(8);
    net.connect(7, |p| p.timeout = ms(60_000));
    let id = net.request();
    let begin = net.now;
    let Event::ConnectError { id: told, error, qp } = net.event(0) else { panic!() };
    assert_eq!((told, error), (id, ConnectFailure::TimedOut(Awaited::Application)));
    assert_eq!((qp, net.now.since(begin)), (QpFate::NoQp, ms(30_000)));
    let Event::ConnectError { error, .. } = net.event(1) else { panic!() };
    assert_eq!(error, ConnectFailure::InfiniBand(IbRefusal::Reason(4)));
    net.assert_nothing_left();
}

/// A message of each kind is lost: the end that waits for its answer sends it again.
#[test]
fn test_peers_recover_when_a_message_is_lost_twice() {
    for (kind, from) in [("Req", 1), ("Rep", 0), ("Rtu", 1), ("Dreq", 0), ("Drep", 1)] {
        let mut net = Net::new(9);
        let mut left = 2;
        net.drop = Box::new(move |n, m| {
            let lost = n == from && format!("{m:?}").starts_with(kind) && left > 0;
            left -= u32::from(lost);
            lost
        });
        let id = net.establish(7);
        net.ask(0, Request::Disconnect { id }).unwrap();
        for node in [0, 1] {
            let event = net.event(node);
            let orderly = DisconnectReason::Orderly;
            assert!(
                matches!(event, Event::Disconnected { reason, .. } if reason == orderly),
                "{kind}: {event:?}"
            );
        }
        assert!(net.said(from).iter().filter(|m| *m == kind).count() >= 3, "{kind}");
        net.assert_nothing_left();
    }
}

/// All messages of a kind are lost: both ends give up by themselves.
#[test]
fn test_both_sides_give_up_when_all_messages_of_a_kind_are_lost() {
    let lost = |kind: &'static str, from: usize| {
        let mut net = Net::new(10);
        net.drop = Box::new(move |n, m| n == from && format!("{m:?}").starts_with(kind));
        net.connect(7, |_| {});
        net
    };
    let mut net = lost("Req", 1);
    let Event::ConnectError { error, .. } = net.event(1) else { panic!() };
    assert_eq!(error, ConnectFailure::TimedOut(Awaited::Answer));
    assert_eq!(net.said(1).len(), 12, "the REQ, ten times again, and the REJ");
    net.assert_nothing_left();

    let mut net = lost("Rtu", 1);
    let id = net.request();
    net.accept(id, 8);
    assert!(matches!(net.event(1), Event::Established { .. }));
    let Event::ConnectError { error, qp, .. } = net.event(0) else { panic!() };
    assert_eq!(error, ConnectFailure::TimedOut(Awaited::ReadyToUse));
    assert_eq!(qp, QpFate::Free(Qpn(8)));
    // The other end's application hears of the failure, though the connection was established
    // there.
    let Event::Disconnected { reason, .. } = net.event(1) else { panic!() };
    assert_eq!(reason, DisconnectReason::InfiniBand(4));
    net.assert_nothing_left();

    let mut net = lost("Drep", 1);
    let id = net.request();
    net.accept(id, 8);
    assert!(matches!(net.event(0), Event::Established { .. }));
    net.ask(0, Request::Disconnect { id }).unwrap();
    let Event::Disconnected { reason, .. } = net.event(0) else { panic!() };
    assert_eq!(reason, DisconnectReason::Unanswered);
}

#[test]
fn test_peer_is_told_when_application_gives_up_at_any_stage() {
    // The client gives up before the server's answer.
    let mut net = Net::new(11);
    net.connect(7, |_| {});
    let server = net.request();
    net.ask(1, Request::Disconnect { id: CmId(7) }).unwrap();
    let Event::ConnectError { error, qp, .. } = net.event(1) else { panic!() };
    assert_eq!((error, qp), (ConnectFailure::Cancelled, QpFate::Free(Qpn(7))));
    let Event::ConnectError { id, .. } = net.event(0) else { panic!() };
    assert_eq!(id, server);
    net.assert_nothing_left();
    // The server gives up instead of answering.
    let mut net = Net::new(12);
    net.connect(7, |_| {});
    let server = net.request();
    net.ask(0, Request::Disconnect { id: server }).unwrap();
    assert!(matches!(net.event(0), Event::ConnectError { .. }));
    assert!(matches!(net.event(1), Event::Rejected { .. }));
    net.assert_nothing_left();
    // The server gives up after its answer, while the RTU is on its way: an established client gets
    // a message that it understands, though the REJ may be lost.
    for lost in [false, true] {
        let mut net = Net::new(13);
        net.drop = Box::new(move |n, m| lost && n == 0 && matches!(m, Message::Rej(_)));
        net.connect(7, |_| {});
        let server = net.request();
        net.accept(server, 8);
        net.ask(0, Request::Disconnect { id: server }).unwrap();
        assert!(matches!(net.event(1), Event::Established { .. }));
        let Event::ConnectError { qp, .. } = net.event(0) else { panic!() };
        assert_eq!(qp, QpFate::Free(Qpn(8)));
        assert!(matches!(net.event(1), Event::Disconnected { .. }));
        net.assert_nothing_left();
    }
}

#[test]
fn test_gone_application_leaves_no_infiniband_connection() {
    for established in [false, true] {
        for node in [0, 1] {
            let mut net = Net::new(14);
            if established {
                net.establish(7);
            } else {
                net.connect(7, |_| {});
                net.request();
            }
            net.ask(node, Request::AppGone).unwrap();
            let event = net.event(1 - node);
            match (established, node) {
                (true, _) => assert!(matches!(event, Event::Disconnected { .. })),
                (false, 0) => assert!(matches!(event, Event::Rejected { .. })),
                (false, _) => assert!(matches!(event, Event::ConnectError { .. })),
            }
            net.assert_nothing_left();
            assert_eq!(net.nodes[node].cm.gauges(), CmGauges::default());
        }
    }
}

#[test]
fn test_lost_worker_ends_its_infiniband_connections() {
    for established in [false, true] {
        let mut net = Net::new(15);
        if established {
            net.establish(7);
        } else {
            net.connect(7, |_| {});
        }
        net.nodes[1].cm.handle_worker_lost(net.now, W, &Default::default());
        net.collect();
        match net.nodes[1].events.pop_front() {
            Some(Event::Disconnected { reason, .. }) => {
                assert!(established);
                assert_eq!(reason, DisconnectReason::WorkerLost);
            }
            Some(Event::ConnectError { error, .. }) => {
                assert!(!established);
                assert_eq!(error, ConnectFailure::WorkerLost);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(net.nodes[1].cm.gauges().conns, 0);
    }
}

/// The RTU is lost, and the client ends the connection that it holds for established. As with
/// iWARP, and with Linux, which reports "disconnected", the connection was up, if only for a
/// moment, and was not refused.
#[test]
fn test_server_reports_connection_established_when_dreq_precedes_rtu() {
    let mut net = Net::new(16);
    net.drop = Box::new(|node, m| node == 1 && matches!(m, Message::Rtu(_)));
    net.connect(7, |_| {});
    let id = net.request();
    net.accept(id, 107);
    assert!(matches!(net.event(1), Event::Established { .. }));
    net.ask(1, Request::Disconnect { id: CmId(7) }).unwrap();
    let Event::Established { qpn, agreed, .. } = net.event(0) else { panic!("established") };
    assert_eq!((qpn, agreed.ird), (Qpn(107), 16));
    for node in [0, 1] {
        let Event::Disconnected { reason, .. } = net.event(node) else { panic!("disconnected") };
        assert_eq!(reason, DisconnectReason::Orderly);
    }
    assert_eq!(net.said(0).last().unwrap(), "Drep", "the client need not ask again");
    assert_eq!(net.nodes[0].cm.counters().failed, 0);
    net.assert_nothing_left();
}

/// Gives a node other addresses and routes in place of its own.
fn readdress(net: &mut Net, node: usize, addrs: &[&str], routes: &[(&str, &str)]) {
    let addrs = addrs.iter().map(|a| a.parse().unwrap()).collect();
    let route =
        |(to, via): &(&str, &str)| Route { dest: to.parse().unwrap(), via: via.parse().unwrap() };
    let net_ = Addressing::new(addrs, routes.iter().map(route).collect()).unwrap();
    net.nodes[node].cm.set_addressing(net.now, vec![net_]).unwrap();
    net.collect();
}

/// At every stage our application hears the reason, and the peer hears of the end as far as one
/// datagram can tell it.
#[test]
fn test_removed_address_ends_its_connections_and_both_ends_are_told() {
    let ours = |node: usize, e: Event| match e {
        Event::ConnectError { error: ConnectFailure::Withdrawn, qp, .. } => {
            format!("{node} {qp:?}")
        }
        Event::Disconnected { reason: DisconnectReason::Withdrawn, .. } => format!("{node} over"),
        other => panic!("node {node}: {other:?}"),
    };
    // The stages: the client has asked; the server was asked; the server has accepted, and its REP
    // is lost; the connection is established; the client has closed, and its DREQ is lost.
    for (stage, node, what) in [
        ("asked", 1, "1 Free(7)"),
        ("asked", 0, "0 NoQp"),
        ("accepted", 0, "0 Free(107)"),
        ("established", 0, "0 over"),
        ("established", 1, "1 over"),
        ("closed", 1, "1 over"),
    ] {
        let mut net = Net::new(17);
        net.drop = Box::new(move |_, m| {
            matches!((stage, m), ("accepted", Message::Rep(_)) | ("closed", Message::Dreq(_)))
        });
        if stage == "asked" || stage == "accepted" {
            net.connect(7, |_| {});
            let id = net.request();
            if stage == "accepted" {
                net.accept(id, 107);
            }
        } else {
            net.establish(7);
        }
        if stage == "closed" {
            net.ask(1, Request::Disconnect { id: CmId(7) }).unwrap();
        }
        readdress(&mut net, node, &["10.0.0.77/24"], &[]);
        let mut events: Vec<_> = net.nodes[node].events.drain(..).collect();
        events.retain(|e| !matches!(e, Event::ListenFailed { .. }));
        assert_eq!(events.len(), 1, "{stage}: {events:?}");
        assert_eq!(ours(node, events.remove(0)), what, "{stage}");
        assert_eq!(net.nodes[node].cm.gauges().conns, 0, "{stage}");
        // The other end hears of the end at once. If the message is lost, no node can send it
        // again.
        if stage == "closed" {
            continue;
        }
        let start = net.now;
        let other = net.event(1 - node);
        let over = matches!(other, Event::ConnectError { .. } | Event::Disconnected { .. });
        assert!(over, "{stage}: {other:?}");
        assert!(net.now.since(start) < ms(100), "{stage}: {other:?}");
    }
}

/// A connection whose address stays is not touched, nor is a connection whose peer can be reached
/// by another route.
#[test]
fn test_removed_route_ends_only_connections_that_need_it() {
    let mut net = Net::new(18);
    let id = net.establish(7);
    readdress(&mut net, 0, &["10.0.0.1/24", "10.7.0.1/16"], &[]);
    readdress(&mut net, 0, &["10.0.0.1/30"], &[]);
    readdress(&mut net, 0, &["10.0.0.1/32", "10.7.0.1/16"], &[("10.0.0.0/8", "10.7.0.9")]);
    assert!(net.nodes[0].events.is_empty());
    readdress(&mut net, 0, &["10.0.0.1/32", "10.7.0.1/16"], &[]);
    let Some(Event::Disconnected { id: ended, reason, .. }) = net.nodes[0].events.pop_front()
    else {
        panic!("the end")
    };
    assert_eq!((ended, reason), (id, DisconnectReason::Withdrawn));
}

#[test]
fn test_manager_lists_connections_until_their_end_is_reported() {
    let mut net = Net::new(19);
    let id = net.establish(7);
    let seen = |net: &Net, node: usize| -> Vec<_> {
        net.nodes[node].cm.conns(None).map(|c| (c.id, c.transport, c.state)).collect()
    };
    let ib = Transport::InfiniBand;
    assert_eq!(seen(&net, 0), [(id, ib, "established")]);
    assert_eq!(seen(&net, 1), [(CmId(7), ib, "established")]);
    net.connect(8, |_| {});
    assert_eq!(seen(&net, 1)[1..], [(CmId(8), ib, "req-sent")]);
    assert_eq!(net.nodes[1].cm.conns(Some(CmId(7))).count(), 1);
    net.request();
    net.ask(1, Request::Disconnect { id: CmId(7) }).unwrap();
    assert!(matches!(net.event(1), Event::Disconnected { .. }));
    assert_eq!(seen(&net, 1).len(), 1, "copies are still answered, and that is nobody's affair");
    assert_eq!(net.nodes[1].cm.gauges().conns, 1);
}

#[test]
fn test_manager_refuses_connect_with_queue_pair_in_use() {
    let mut net = Net::new(16);
    net.connect(7, |_| {});
    let mut params = ConnectTerms::new(qp(7));
    params.protocol = Protocol::InfiniBand;
    let again = |id| Request::Connect { id, remote: server(), params: params.clone() };
    assert_eq!(net.ask(1, again(CmId(8))), Err(RequestError::QpBusy(Qpn(7))));
    assert_eq!(net.ask(1, again(CmId(7))), Err(RequestError::Id));
    let id = net.request();
    net.ask(0, Request::Reject { id, private_data: vec![], needs_ord: None }).unwrap();
    assert!(matches!(net.event(1), Event::Rejected { .. }));
    assert_eq!(net.ask(1, again(CmId(8))), Ok(()), "it is free again");
}

/// The ids and numbers that a stranger would need to speak in a connection's name are random.
#[test]
fn test_communication_and_transaction_ids_are_unpredictable() {
    let mut net = Net::new(17);
    for id in 1..=20 {
        net.connect(id, |_| {});
    }
    let mut reqs: Vec<(u64, CommId, u32)> = Vec::new();
    for (_, packet) in &net.log {
        let (tid, Message::Req(req)) = message(packet) else { panic!() };
        reqs.push((tid, req.local_comm_id, req.local_qpn.get()));
        assert!(req.local_comm_id != CommId(0) && req.local_qpn.get() > 1);
    }
    for pair in reqs.windows(2) {
        assert!(pair[0].0.abs_diff(pair[1].0) > 1 << 32, "transaction ids");
        assert!(pair[0].1.0.abs_diff(pair[1].1.0) > 1 << 8, "communication ids");
    }
    let mut other = Net::new(18);
    other.connect(1, |_| {});
    assert_ne!(first_req(&other).0, reqs[0].0);
}

/// A listener that does not ask for InfiniBand gets no requests over it, and a listener that asks
/// only in InfiniBand's protocol is refused.
#[test]
fn test_listener_without_infiniband_gets_no_infiniband_requests() {
    assert!(!ListenParams::default().infiniband);
    let mut net = Net::new(19);
    net.ask(0, Request::Unlisten { id: ListenerId(1) }).unwrap();
    net.listen(ListenParams::default());
    net.connect(7, |_| {});
    let Event::ConnectError { error, .. } = net.event(1) else { panic!() };
    assert_eq!(error, ConnectFailure::InfiniBand(IbRefusal::Reason(8)));
    net.assert_nothing_left();

    let id = ListenerId(2);
    let params = ListenParams { protocol: Protocol::InfiniBand, ..ListenParams::default() };
    let alone = net.ask(0, Request::Listen { id, addr: ([10, 0, 0, 1], 9).into(), params });
    assert_eq!(alone, Err(RequestError::Params(ParamsError::NoInfiniBand)));
}

#[test]
fn test_manager_without_infiniband_refuses_connects_and_ignores_datagrams() {
    let mut cm = ConnectionManager::new(manager_config(1, 1));
    let mut params = ConnectTerms::new(qp(7));
    params.protocol = Protocol::InfiniBand;
    let ask = Request::Connect { id: CmId(1), remote: server(), params };
    let now = heddle_base::Instant::ZERO;
    let refused = Err(RequestError::Params(ParamsError::NoInfiniBand));
    assert_eq!(cm.handle_request(now, APP, ask), refused);
    let mut net = Net::new(20);
    net.connect(7, |_| {});
    let req = net.log[0].1.clone();
    cm.handle_datagram(now, W, &req);
    assert_eq!(cm.poll_datagram(), None);
    assert!(cm.ib_counters().is_none());
    assert_eq!(cm.gauges(), CmGauges::default());
}

#[test]
fn test_manager_refuses_private_data_over_infiniband_limits() {
    let mut net = Net::new(21);
    let too_long = Err(RequestError::Params(ParamsError::PrivateData));
    let mut params = ConnectTerms::new(qp(7));
    (params.protocol, params.private_data) = (Protocol::InfiniBand, vec![1; 57]);
    let connect = Request::Connect { id: CmId(1), remote: server(), params };
    assert_eq!(net.ask(1, connect), too_long);
    assert_eq!(net.nodes[1].cm.gauges().claims, 0);
    net.connect(7, |p| p.private_data = vec![1; 56]);
    let id = net.request();
    let accept = |n| Request::Accept {
        id,
        params: AcceptTerms { private_data: vec![1; n], ..AcceptTerms::new(qp(8)) },
    };
    let reject = |n| Request::Reject { id, private_data: vec![1; n], needs_ord: None };
    assert_eq!(net.ask(0, accept(197)), too_long);
    assert_eq!(net.ask(0, reject(149)), too_long);
    assert_eq!(net.nodes[0].cm.gauges().claims, 0, "the request still waits");
    assert_eq!(net.ask(0, accept(196)), Ok(()));
    assert_eq!(net.ask(0, accept(1)), Err(RequestError::QpBusy(Qpn(8))));
    assert_eq!(net.ask(0, reject(1)), Err(RequestError::NotAsked));
}

/// A port with IPv6 addresses.
#[test]
fn test_req_over_ipv6_carries_full_addresses() {
    let ours: std::net::IpAddr = "fe80::2".parse().unwrap();
    let mut net = Net::with(22, |_, c| c.ports.push(IbPort { addr: ours, worker: W }));
    let mut params = ConnectTerms::new(qp(7));
    params.protocol = Protocol::InfiniBand;
    let remote = "[fe80::1]:7174".parse().unwrap();
    let cm = &mut net.nodes[1].cm;
    let connect = Request::Connect { id: CmId(1), remote, params };
    cm.handle_request(net.now, APP, connect).unwrap();
    let (_, datagram) = cm.poll_datagram().unwrap();
    assert_eq!((datagram.local.ip(), datagram.remote.ip()), (ours, remote.ip()));
    let mad = heddle_ib::cm::Mad::parse(&datagram.payload[20..276]).unwrap();
    let Message::Req(req) = mad.message else { panic!() };
    let header = Header::parse(&req.private_data, heddle_ib::ip_cm::IpVersions::BOTH).unwrap();
    assert_eq!((header.src, header.dst), (ours, remote.ip()));
}
