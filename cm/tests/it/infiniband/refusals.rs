//! Refused REQs, and the contents of the REJs.

use std::net::IpAddr;

use heddle_cm::*;
use heddle_ib::CommId;
use heddle_ib::cm::{Answered, Message, Rej, Req, Transport as IbTransport};
use heddle_ib::ip_cm::{Ari, Service};
use heddle_types::{
    CmId, ConnectFailure, Event, IbRefusal, QpFate, Qpn, Request,
    ib::{AriCode, RejReason},
};

use crate::infiniband::world::*;

/// Returns the REQ of a client, and the network of the server that it is for.
pub(crate) fn req() -> (Net, u64, Box<Req>) {
    let mut net = Net::new(1);
    net.connect(7, |p| p.private_data = b"hello".to_vec());
    let (tid, Message::Req(req)) = message(&net.log[0].1) else { panic!("a REQ") };
    (Net::new(1), tid, req)
}

/// Returns the REJ that a server sends at once.
pub(crate) fn rej(net: &Net) -> Box<Rej> {
    match &net.log[..] {
        [(0, packet)] => match message(packet).1 {
            Message::Rej(rej) => rej,
            other => panic!("{other:?}"),
        },
        other => panic!("{} packets", other.len()),
    }
}

/// Returns the REJ for a REQ that `change` has altered.
fn refused(change: impl FnOnce(&mut Req)) -> (Box<Rej>, IbCounters) {
    let (mut net, tid, mut req) = req();
    change(&mut req);
    let name = req.local_comm_id;
    net.deliver(0, &forged(addr(1), tid, Message::Req(req)));
    assert!(net.nodes[0].events.is_empty(), "no application is told");
    assert_eq!(net.nodes[0].cm.gauges().conns, 0, "nothing is kept");
    let rej = rej(&net);
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId(0), name));
    assert_eq!((rej.answered, message(&net.log[0].1).0), (Answered::REQ, tid));
    (rej, net.counters(0))
}

#[test]
fn test_unmodified_request_reaches_application() {
    let (mut net, tid, req) = req();
    net.deliver(0, &forged(addr(1), tid, Message::Req(req)));
    net.request();
}

/// Reason 8, if the Service ID is outside the range, names another protocol, or names a port
/// without a listener; the private data do not matter then.
#[test]
fn test_unknown_service_is_refused_with_reason_8() {
    let spoiled = |req: &mut Req| req.private_data = [0xff; 92];
    for service in [
        heddle_ib::ServiceId(0),
        heddle_ib::ServiceId(0x1000_0000_0106_1c06),
        Service { protocol: 17, port: PORT }.id(),
        Service { protocol: 132, port: PORT }.id(),
        Service::tcp(PORT + 1).id(),
    ] {
        for spoil in [false, true] {
            let (rej, counters) = refused(|req| {
                req.service_id = service;
                if spoil {
                    spoiled(req);
                }
            });
            assert_eq!((rej.reason, rej.ari_len), (RejReason::INVALID_SERVICE_ID, 0), "{service}");
            assert_eq!(counters.req_no_service, 1);
        }
    }
}

#[test]
fn test_transports_other_than_rc_are_refused_with_reason_9() {
    for transport in [IbTransport::UC, IbTransport::RD, IbTransport::EXTENDED] {
        let (rej, counters) = refused(|req| req.transport = transport);
        assert_eq!((rej.reason, counters.req_transport), (RejReason::INVALID_TRANSPORT, 1));
    }
}

/// Reason 12, with the GID by which this port is reached.
#[test]
fn test_path_to_another_port_is_refused_with_reason_12() {
    let ours = heddle_ib::Gid::from(addr(0)).0;
    for gid in [heddle_ib::Gid::from(addr(2)), heddle_ib::Gid([0; 16]), heddle_ib::Gid([0xff; 16])]
    {
        let (rej, counters) = refused(|req| req.primary.remote_gid = gid);
        assert_eq!((rej.reason, rej.ari()), (RejReason::INVALID_GID, &ours[..]));
        assert_eq!((counters.req_gid, counters.req_header), (1, 0));
    }
    let (rej, _) = refused(|req| {
        req.primary.remote_gid = heddle_ib::Gid::default();
        req.transport = IbTransport::UC;
    });
    assert_eq!(rej.reason, RejReason::INVALID_TRANSPORT, "the transport comes first");
}

/// Reason 28 with the bytes of table 4 and the codes of table 5.
#[test]
fn test_each_fault_in_private_data_is_refused_with_its_own_code() {
    type Change = fn(&mut [u8; 92]);
    let table: [(Change, &[u8]); 10] = [
        (|p| p[0] = 0x10, &[0, 1, 1, 0, 0]),
        (|p| p[0] = 0x01, &[0, 2, 1, 0, 0]),
        // The version comes before everything else, and the major version first.
        (|p| p[..36].fill(0xff), &[0, 1, 1, 0, 0]),
        (|p| (p[0], p[1]) = (0x0f, 0xf0), &[0, 2, 1, 0, 0]),
        (|p| p[1] = 0x50, &[0, 3, 1, 0, 4]),
        (|p| p[1] = 0x00, &[0, 3, 1, 0, 4]),
        (|p| p[4] = 1, &[0, 4, 0, 0]),
        (|p| p[20] = 1, &[0, 5, 0, 0]),
        (|p| p[35] = 9, &[0, 6, 4, 0, 10, 0, 0, 1]),
        // The source is not the address that the packet comes from: the annex has no code for that.
        (|p| p[19] = 9, &[0, 0, 0, 0]),
    ];
    for (change, ari) in table {
        let (rej, counters) = refused(|req| change(&mut req.private_data));
        assert_eq!((rej.reason, rej.ari()), (RejReason::CONSUMER, ari));
        assert_eq!((counters.req_header, rej.private_data), (1, [0; 148]));
    }
}

/// CA11-11: a REQ of another version gets that reason, even if it has other faults.
#[test]
fn test_version_is_checked_before_transport() {
    for (byte, ari) in [(0x10, &[0, 1, 1, 0, 0]), (0x01, &[0, 2, 1, 0, 0])] {
        let (rej, counters) = refused(|req| {
            req.private_data[0] = byte;
            req.transport = IbTransport::UC;
        });
        assert_eq!((rej.reason, rej.ari()), (RejReason::CONSUMER, &ari[..]));
        assert_eq!((counters.req_header, counters.req_transport), (1, 0));
    }
}

/// CA11-11 for a REQ that has the name, or the queue pair, of an existing connection.
#[test]
fn test_version_is_checked_before_stale_ids() {
    let (mut net, tid, req) = req();
    net.deliver(0, &forged(addr(1), tid, Message::Req(req.clone())));
    net.request();
    let mut same_name = req.clone();
    same_name.local_qpn = heddle_ib::Qpn::new(99);
    let mut same_qp = req.clone();
    same_qp.local_comm_id = CommId(99);
    for mut other in [req.clone(), same_name, same_qp] {
        net.log.clear();
        other.private_data[0] = 0x10;
        net.deliver(0, &forged(addr(1), tid + 1, Message::Req(other)));
        assert_eq!(rej(&net).ari(), [0, 1, 1, 0, 0]);
    }
    assert_eq!((net.counters(0).req_header, net.counters(0).req_stale), (3, 0));
    assert_eq!(net.nodes[0].cm.gauges().conns, 1, "the connection stays");
}

#[test]
fn test_reserved_bits_of_ip_cm_private_data_are_ignored() {
    let (mut net, tid, mut req) = req();
    req.private_data[1] |= 0x0f;
    net.deliver(0, &forged(addr(1), tid, Message::Req(req)));
    net.request();
}

/// The event of the client's application for each REJ.
#[test]
fn test_client_distinguishes_rejections_of_service_and_of_application() {
    let ari = |bytes: &[u8]| {
        let mut ari = [0; 72];
        ari[..bytes.len()].copy_from_slice(bytes);
        (ari, bytes.len() as u8)
    };
    let service = |code| Some(ConnectFailure::InfiniBand(IbRefusal::Service(code)));
    let reason = |reason| Some(ConnectFailure::InfiniBand(IbRefusal::Reason(reason)));
    let consumer = RejReason::CONSUMER;
    let mut table = vec![
        // A rejection as Linux's rdma_reject sends it; then as the annex defines it; then with an
        // unknown layer.
        (consumer, ari(&[]), None),
        (consumer, ari(&[1]), None),
        (consumer, ari(&[1, 2, 3]), None),
        (consumer, ari(&[7, 7]), None),
        (RejReason::INVALID_SERVICE_ID, ari(&[]), reason(8)),
        (RejReason::STALE_CONNECTION, ari(&[0, 6]), reason(10)),
        (RejReason(999), ari(&[]), reason(999)),
    ];
    table.extend((0..=6).map(|code| (consumer, ari(&[0, code, 0, 0]), service(code))));
    for (reason, (ari, ari_len), want) in table {
        let mut net = Net::new(2);
        net.drop = Box::new(|_, _| true);
        net.connect(7, |_| {});
        let (tid, Message::Req(req)) = message(&net.log[0].1) else { panic!() };
        let mut private_data = [0; 148];
        private_data[..3].copy_from_slice(b"why");
        let rej = Rej {
            local_comm_id: CommId(0),
            remote_comm_id: req.local_comm_id,
            answered: Answered::REQ,
            reason,
            ari_len,
            ari,
            private_data,
        };
        let mad = heddle_ib::cm::Mad::new(tid, Message::Rej(Box::new(rej))).emit();
        let packet = heddle_ib::roce::UdRepr::gsi(addr(0), addr(1), 1).emit(&mad).unwrap();
        net.deliver(1, &packet);
        match (net.nodes[1].events.pop_front().unwrap(), want) {
            (Event::Rejected { qpn, private_data, peer, .. }, None) => {
                assert_eq!((qpn, &private_data[..4], peer), (Qpn(7), &b"why\0"[..], None));
            }
            (Event::ConnectError { error, qp, .. }, Some(want)) => {
                assert_eq!((error, qp), (want, QpFate::Free(Qpn(7))));
            }
            (event, want) => panic!("{event:?}, not {want:?}"),
        }
        net.assert_nothing_left();
    }
}

/// The application's own refusal: layer 1, and the private data where Linux looks for them.
#[test]
fn test_application_rejects_with_its_private_data() {
    let mut net = Net::new(3);
    net.connect(7, |_| {});
    let id = net.request();
    net.ask(0, Request::Reject { id, private_data: b"not today".to_vec(), needs_ord: None })
        .unwrap();
    let rej = rej_of(&net);
    assert_eq!(
        (rej.reason, rej.ari(), rej.answered),
        (RejReason::CONSUMER, &[1][..], Answered::REQ)
    );
    assert_eq!(Ari::parse(rej.ari()), Ari::Ulp(&[]));
    assert_ne!(Ari::parse(rej.ari()), Ari::Service { code: AriCode::UNSPECIFIED, suggested: None });
    assert_eq!(&rej.private_data[..10], b"not today\0");
    let Event::Rejected { id, private_data, .. } = net.event(1) else { panic!() };
    assert_eq!((id, private_data.len()), (CmId(7), 148));
    assert_eq!(&private_data[..9], b"not today");
    assert!(net.nodes[0].events.is_empty(), "who rejects is told nothing");
    net.assert_nothing_left();
}

fn rej_of(net: &Net) -> Box<Rej> {
    let last = net.log.iter().rev().find(|(n, _)| *n == 0).unwrap();
    match message(&last.1).1 {
        Message::Rej(rej) => rej,
        other => panic!("{other:?}"),
    }
}

/// A lost REJ is sent again in answer to a copy of the REQ, and the application is not asked again.
#[test]
fn test_manager_resends_rejection_for_repeated_req() {
    let mut net = Net::new(4);
    let mut left = 2;
    net.drop = Box::new(move |n, _| {
        left -= u32::from(n == 0 && left > 0);
        n == 0 && left > 0
    });
    net.connect(7, |_| {});
    let id = net.request();
    net.ask(0, Request::Reject { id, private_data: b"no".to_vec(), needs_ord: None }).unwrap();
    assert!(matches!(net.event(1), Event::Rejected { .. }));
    assert_eq!(net.said(0), ["Rej", "Rej"]);
    net.assert_nothing_left();
}

/// The server would have more Reads outstanding than the client takes.
#[test]
fn test_client_refuses_rep_with_more_reads_than_its_ird() {
    let mut net = Net::new(5);
    net.connect(7, |p| p.ird = 3);
    let id = net.request();
    let from = net.log.len();
    net.drop = Box::new(|n, _| n == 0);
    net.accept(id, 8);
    let (tid, Message::Rep(mut rep)) = message(&net.log[from].1) else { panic!() };
    assert_eq!(rep.initiator_depth, 3);
    rep.initiator_depth = 4;
    net.drop = Box::new(|_, _| false);
    let mad = heddle_ib::cm::Mad::new(tid, Message::Rep(rep)).emit();
    let packet = heddle_ib::roce::UdRepr::gsi(addr(0), addr(1), 1).emit(&mad).unwrap();
    net.deliver(1, &packet);
    let Event::ConnectError { error, .. } = net.event(1) else { panic!() };
    assert_eq!(error, ConnectFailure::InfiniBand(IbRefusal::Ours(27)));
    let Event::ConnectError { error, .. } = net.event(0) else { panic!() };
    assert_eq!(error, ConnectFailure::InfiniBand(IbRefusal::Reason(27)));
    net.assert_nothing_left();
}

/// Another request in the name of a connection, or of its queue pair: the manager refuses it as
/// stale, and the connection stays.
#[test]
fn test_requests_with_stale_ids_are_refused_with_reason_10() {
    let (mut net, tid, req) = req();
    net.deliver(0, &forged(addr(1), tid, Message::Req(req.clone())));
    let id = net.request();
    let mut same_name = req.clone();
    same_name.local_qpn = heddle_ib::Qpn::new(99);
    let mut same_qp = req.clone();
    same_qp.local_comm_id = CommId(99);
    for (tid, other) in [(tid + 1, req.clone()), (tid, same_name), (tid, same_qp)] {
        net.log.clear();
        net.deliver(0, &forged(addr(1), tid, Message::Req(other)));
        assert_eq!(rej(&net).reason, RejReason::STALE_CONNECTION);
    }
    assert_eq!(net.counters(0).req_stale, 3);
    assert_eq!(net.nodes[0].cm.gauges().conns, 1);
    // The same names from another address belong to another peer.
    let from: IpAddr = [10, 0, 0, 77].into();
    let mut other = req.clone();
    other.private_data[19] = 77;
    net.deliver(0, &forged(from, tid, Message::Req(other)));
    assert_ne!(net.request(), id);
}

/// A client that ends a connection and starts again at once gets the queue pair number that its
/// kernel has just freed. The server still answers copies of the old REQ as copies.
#[test]
fn test_queue_pair_may_be_connected_again_as_soon_as_its_connection_has_ended() {
    let (mut net, tid, mut req) = req();
    // Linux asks with these values: 4.3 s, 15 times.
    req.remote_cm_response_timeout = heddle_ib::TimeCode::new(20);
    req.max_cm_retries = 15;
    net.deliver(0, &forged(addr(1), tid, Message::Req(req.clone())));
    let id = net.request();
    net.ask(0, Request::Reject { id, private_data: vec![], needs_ord: None }).unwrap();
    let first = rej(&net);
    net.log.clear();
    let mut again = req.clone();
    again.local_comm_id = CommId(req.local_comm_id.0 ^ 1);
    net.deliver(0, &forged(addr(1), tid + 1, Message::Req(again.clone())));
    let second = net.request();
    assert_ne!(second, id);
    assert_eq!(net.counters(0).req_stale, 0);
    // A copy of the first REQ gets the same answer as the first, and makes no third connection.
    net.log.clear();
    net.deliver(0, &forged(addr(1), tid, Message::Req(req)));
    assert_eq!(rej(&net), first);
    assert!(net.nodes[0].events.is_empty());
    // While the second connection lives, no other may use its queue pair.
    net.log.clear();
    again.local_comm_id = CommId(again.local_comm_id.0 ^ 2);
    net.deliver(0, &forged(addr(1), tid + 2, Message::Req(again)));
    assert_eq!(rej(&net).reason, RejReason::STALE_CONNECTION);
}
