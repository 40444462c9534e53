//! Peers that vanish without a message, and peers that never existed.

use heddle_cm::*;
use heddle_ib::CommId;
use heddle_ib::cm::{Message, Req};
use heddle_types::{
    Awaited, CmId, ConnectFailure, DisconnectReason, Event, ListenParams, ListenerId, Request,
};

use crate::infiniband::refusals::req;
use crate::infiniband::world::*;

const IDLE: u64 = 60_000;

fn reps(net: &Net) -> usize {
    net.said(0).iter().filter(|m| *m == "Rep").count()
}

/// A peer that exists answers the probes, and no application gets an event, however long the
/// connection lasts.
#[test]
fn test_live_peer_keeps_its_idle_connection() {
    let mut net = Net::new(1);
    net.establish(7);
    net.run(ms(10 * IDLE + 1000));
    assert_eq!((net.counters(0).keepalives, net.counters(0).keepalive_timeouts), (10, 0));
    assert_eq!((net.counters(0).rx_duplicates, net.counters(0).rx_unexpected), (0, 0));
    assert_eq!(net.counters(1).keepalives, 0, "who has asked has no question");
    assert_eq!(reps(&net), 11);
    for node in [0, 1] {
        assert!(net.nodes[node].events.is_empty());
        assert_eq!(net.nodes[node].cm.gauges().conns, 1);
    }
}

#[test]
fn test_manager_drops_silent_peer_and_sends_it_one_dreq() {
    let mut net = Net::new(2);
    let id = net.establish(7);
    let begin = net.now;
    net.drop = Box::new(|from, _| from == 1);
    let Event::Disconnected { id: over, reason, .. } = net.event(0) else { panic!() };
    assert_eq!((over, reason), (id, DisconnectReason::PeerSilent));
    // Ten more attempts, half a second apart, and the wait after the last of them.
    let took = net.now.since(begin);
    assert!(took >= ms(IDLE + 11 * 500) && took < ms(IDLE + 11 * 600), "{took:?}");
    assert_eq!((net.counters(0).keepalives, net.counters(0).keepalive_timeouts), (11, 1));
    assert_eq!(net.said(0).iter().filter(|m| *m == "Dreq").count(), 1);
    // The peer existed, and only its messages were lost.
    let Event::Disconnected { reason, .. } = net.event(1) else { panic!() };
    assert_eq!(reason, DisconnectReason::Orderly);
    net.assert_nothing_left();
}

/// A node with no retransmissions of its own may lose two answers all the same.
#[test]
fn test_connection_survives_two_lost_keepalive_answers() {
    let mut net = Net::with(3, |n, c| c.max_retries = if n == 1 { 0 } else { 10 });
    net.establish(7);
    for lost in [1, 2] {
        let mut left = lost;
        net.drop = Box::new(move |from, m| {
            let drop = from == 1 && matches!(m, Message::Rtu(_)) && left > 0;
            left -= u32::from(drop);
            drop
        });
        net.run(ms(IDLE + 3000));
        assert!(net.nodes[0].events.is_empty(), "{lost}");
    }
    net.drop = Box::new(|from, _| from == 1);
    let Event::Disconnected { reason, .. } = net.event(0) else { panic!() };
    assert_eq!(reason, DisconnectReason::PeerSilent);
    assert_eq!(net.counters(0).keepalives, 2 + 3 + 3);
}

/// A peer that has forgotten the connection sends a REJ, which ends the connection.
#[test]
fn test_peer_that_forgot_connection_ends_it_on_keepalive() {
    let mut net = Net::new(4);
    net.establish(7);
    let mut cm = ConnectionManager::new(manager_config(1, 1));
    cm.enable_infiniband(config(1, 99));
    net.nodes[1].cm = cm;
    let begin = net.now;
    let Event::Disconnected { reason, .. } = net.event(0) else { panic!() };
    // Reason 6 is an invalid communication id.
    assert_eq!(reason, DisconnectReason::InfiniBand(6));
    assert!(net.now.since(begin) < ms(IDLE + 500));
    assert_eq!(net.counters(0).keepalive_timeouts, 0);
}

#[test]
fn test_changed_keepalive_applies_to_established_connections() {
    let mut net = Net::with(5, |_, c| c.keepalive = None);
    net.establish(7);
    net.drop = Box::new(|from, _| from == 1);
    net.run(ms(10 * IDLE));
    assert_eq!((net.counters(0).keepalives, net.nodes[0].cm.gauges().timers), (0, 0));
    // The change applies to an existing connection: silence counts from now.
    let now = net.now;
    net.nodes[0].cm.set_ib_keepalive(now, Some(ms(2000)));
    net.run(ms(1990));
    assert_eq!(net.counters(0).keepalives, 0);
    net.run(ms(20));
    assert_eq!(net.counters(0).keepalives, 1);
    // The change comes in the middle of a probe.
    let now = net.now;
    net.nodes[0].cm.set_ib_keepalive(now, None);
    net.run(ms(10 * IDLE));
    assert_eq!(net.counters(0).keepalives, 1);
    net.nodes[0].cm.set_ib_keepalive(now, Some(ms(0)));
    let Event::Disconnected { reason, .. } = net.event(0) else { panic!() };
    assert_eq!(reason, DisconnectReason::PeerSilent);
}

/// Accepts a REQ of a peer that never answers, under an address and names of its own.
fn half_open(net: &mut Net, n: u32, from: [u8; 4], tid: u64, good: &Req) -> CmId {
    let mut req = good.clone();
    req.local_comm_id = CommId(1000 + n);
    req.local_qpn = heddle_ib::Qpn::new(1000 + n);
    req.local_cm_response_timeout = heddle_ib::TimeCode::MAX;
    req.private_data[16..20].copy_from_slice(&from);
    net.deliver(0, &forged(from.into(), tid, Message::Req(Box::new(req))));
    let id = net.request();
    net.accept(id, 1000 + n);
    id
}

fn given_up(event: Event) -> CmId {
    let Event::ConnectError { id, error, .. } = event else { panic!("{event:?}") };
    assert_eq!(error, ConnectFailure::TimedOut(Awaited::ReadyToUse));
    id
}

/// Peers that never answer take all places.
#[test]
fn test_half_open_flood_shuts_no_new_peer_out() {
    let (_, tid, good) = req();
    let mut net = Net::with(6, |_, c| c.max_conns = 4);
    let live = net.establish(7);
    net.drop = Box::new(|from, _| from == 0);
    let ids: Vec<_> =
        (0..3).map(|n| half_open(&mut net, n, [10, 1, 0, n as u8], tid, &good)).collect();
    let late = |net: &mut Net, n| {
        let mut req = good.clone();
        (req.local_comm_id, req.local_qpn) = (CommId(n), heddle_ib::Qpn::new(n));
        net.deliver(0, &forged(addr(1), tid, Message::Req(req)));
    };
    // The oldest half-open connection makes room, and not the established one: before the second
    // REP, and after it.
    for (n, wait) in [(0, 0), (1, 10_500)] {
        net.run(ms(wait));
        late(&mut net, 50 + n);
        assert_eq!(net.counters(0).half_open_evicted, 1 + u64::from(n));
        assert_eq!(given_up(net.event(0)), ids[n as usize]);
        assert!(matches!(net.event(0), Event::ConnectRequest { .. }));
        assert_eq!(net.nodes[0].cm.gauges().conns, 4);
    }
    assert!(net.nodes[0].cm.conns(None).any(|c| c.id == live && c.state == "established"));
    assert_eq!(net.counters(0).req_no_room, 0);
}

/// Forged REQs take the places of one address, which its owner gets back.
#[test]
fn test_peer_reclaims_places_from_its_half_open_connections() {
    let (_, tid, good) = req();
    let mut net = Net::new(7);
    net.ask(0, Request::Unlisten { id: ListenerId(1) }).unwrap();
    let limit = ListenParams { max_conns_per_peer: Some(2), ..ListenParams::default() };
    net.listen(ListenParams { infiniband: true, ..limit });
    net.drop = Box::new(|from, m| from == 0 && matches!(m, Message::Rep(_)));
    let other = half_open(&mut net, 1, [10, 0, 0, 9], tid, &good);
    let first = half_open(&mut net, 2, [10, 0, 0, 2], tid, &good);
    half_open(&mut net, 3, [10, 0, 0, 2], tid, &good);
    net.run(ms(10_500));
    net.drop = Box::new(|_, _| false);
    net.connect(7, |_| {});
    assert_eq!(given_up(net.event(0)), first);
    let id = net.request();
    net.accept(id, 7);
    assert!(matches!(net.event(1), Event::Established { .. }));
    assert!(net.nodes[0].cm.conns(None).any(|c| c.id == other));
}

/// An application gives a queue pair for each accepted connection, so the limit for peers that do
/// not answer is the limit for requests.
#[test]
fn test_listener_bounds_its_half_open_connections() {
    let (_, tid, good) = req();
    let mut net = Net::new(8);
    net.ask(0, Request::Unlisten { id: ListenerId(1) }).unwrap();
    net.listen(ListenParams { infiniband: true, backlog: 3, ..ListenParams::default() });
    net.drop = Box::new(|from, _| from == 0);
    let ids: Vec<_> =
        (0..3).map(|n| half_open(&mut net, n, [10, 1, 0, n as u8], tid, &good)).collect();
    net.run(ms(10_500));
    half_open_evicts(&mut net, tid, &good, 10, ids[0]);
    // This peer has been sent only one REP.
    let ask = |net: &mut Net, n| half_open(net, n, [10, 1, 0, n as u8], tid, &good);
    ask(&mut net, 11);
    assert_eq!(net.nodes[0].cm.conns(None).count(), 4);
    net.run(ms(10_500));
    half_open_evicts(&mut net, tid, &good, 12, ids[1]);
    assert_eq!(net.counters(0).half_open_evicted, 2);
    assert_eq!(net.nodes[0].cm.conns(None).count(), 4);
}

fn half_open_evicts(net: &mut Net, tid: u64, good: &Req, n: u32, first: CmId) {
    let mut req = good.clone();
    req.local_comm_id = CommId(1000 + n);
    req.local_qpn = heddle_ib::Qpn::new(1000 + n);
    req.local_cm_response_timeout = heddle_ib::TimeCode::MAX;
    let from = [10, 1, 0, n as u8];
    req.private_data[16..20].copy_from_slice(&from);
    net.deliver(0, &forged(from.into(), tid, Message::Req(Box::new(req))));
    assert_eq!(given_up(net.event(0)), first);
    let id = net.request();
    net.accept(id, 1000 + n);
}
