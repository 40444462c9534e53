//! Peers that keep no rule: each drop has its counter, and the manager's memory is bounded.

use std::net::IpAddr;

use heddle_cm::*;
use heddle_ib::CommId;
use heddle_ib::cm::*;
use heddle_ib::roce::UdRepr;
use heddle_types::{
    Awaited, CmId, ConnectFailure, ConnectTerms, Event, Protocol, Request, RequestError, WorkerId,
    ib::RejReason,
};

use crate::infiniband::refusals::{rej, req};
use crate::infiniband::world::*;

type Counter = fn(&IbCounters) -> u64;

#[test]
fn test_manager_drops_and_counts_malformed_datagrams() {
    let (mut net, tid, good) = req();
    let good = forged(addr(1), tid, Message::Req(good));
    let crc = |mut p: Vec<u8>, change: fn(&mut Vec<u8>)| {
        p.truncate(p.len() - 4);
        change(&mut p);
        let crc = heddle_ib::roce::icrc(&p).unwrap();
        p.extend(crc);
        p
    };
    let table: [(Vec<u8>, Counter); 12] = [
        (vec![], |c| c.rx_bad_packet),
        (good[..100].to_vec(), |c| c.rx_bad_packet),
        (crc(good.clone(), |p| p[28] = 0x04), |c| c.rx_bad_packet),
        (crc(good.clone(), |p| p[29] |= 1), |c| c.rx_bad_packet),
        ([&good[..good.len() - 1], &[good[good.len() - 1] ^ 1]].concat(), |c| c.rx_bad_icrc),
        (crc(good.clone(), |p| p[35] = 2), |c| c.rx_not_gsi),
        (crc(good.clone(), |p| p[41] ^= 1), |c| c.rx_not_gsi),
        (crc(good.clone(), |p| p[31] = 0), |c| c.rx_not_gsi),
        (crc(good.clone(), |p| p[19] = 9), |c| c.rx_not_ours),
        (crc(good.clone(), |p| p[12] = 224), |c| c.rx_not_ours),
        (crc(good.clone(), |p| p[49] = 3), |c| c.rx_bad_mad),
        (UdRepr::gsi(addr(1), addr(0), 1).emit(&[1; 255]).unwrap(), |c| c.rx_bad_mad),
    ];
    for (n, (packet, counter)) in table.into_iter().enumerate() {
        let before = net.counters(0);
        net.deliver(0, &packet);
        let after = net.counters(0);
        assert_eq!(counter(&after) - counter(&before), 1, "{n}");
        assert_eq!(after.rx_datagrams - before.rx_datagrams, 1, "{n}");
        assert_eq!((net.log.len(), net.nodes[0].cm.gauges().conns), (0, 0), "{n}");
    }
    // The datagram came by another worker than the address's own.
    let mut cm = ConnectionManager::new(manager_config(2, 0));
    cm.enable_infiniband(config(0, 1));
    cm.handle_datagram(net.now, WorkerId(1), &good);
    assert_eq!(cm.ib_counters().unwrap().rx_not_ours, 1);
}

#[test]
fn test_manager_answers_unknown_get_but_not_unknown_message() {
    let mut net = Net::new(1);
    let mut mad = Mad::new(5, Message::GetClassPortInfo).emit();
    let send = |net: &mut Net, mad: &[u8]| {
        net.log.clear();
        net.nodes[0].cm.handle_datagram(
            net.now,
            W,
            &UdRepr::gsi(addr(1), addr(0), 1).emit(mad).unwrap(),
        );
        net.nodes[0].cm.poll_datagram().map(|(_, d)| d.payload[20..276].to_vec())
    };
    let info = Mad::parse(&send(&mut net, &mad).unwrap()).unwrap();
    let Message::ClassPortInfo(c) = info.message else { panic!() };
    assert_eq!((info.tid, c.base_version, c.class_version), (5, 1, 2));
    assert_eq!(c.capability_mask, ClassPortInfo::RC_CAPABLE);
    mad[17] = 0x02;
    let answer = send(&mut net, &mad).unwrap();
    assert_eq!((answer[3], &answer[4..6]), (0x81, &[0, 12][..]));
    mad[3] = 3;
    assert_eq!(send(&mut net, &mad), None);
    mad[3] = 0x81;
    assert_eq!(send(&mut net, &mad), None);
    assert_eq!(net.counters(0).rx_bad_mad, 3);
}

/// Messages about connections that do not exist: a message whose sender waits for an answer gets
/// one.
#[test]
fn test_manager_answers_unknown_peers_only_when_they_expect_a_reply() {
    let ids = (CommId(5), CommId(6));
    let dreq = Dreq {
        local_comm_id: ids.0,
        remote_comm_id: ids.1,
        remote_qpn: heddle_ib::Qpn::new(7),
        private_data: [0; 220],
    };
    let lap = Lap { local_comm_id: ids.0, remote_comm_id: ids.1 };
    let sidr = SidrReq {
        request_id: 9,
        p_key: 0xffff,
        service_id: heddle_ib::ip_cm::Service { protocol: 17, port: PORT }.id(),
        private_data: [0; 216],
    };
    let answer = |message: Message| {
        let mut net = Net::new(1);
        net.deliver(0, &forged(addr(1), 77, message));
        assert_eq!(net.nodes[0].cm.gauges().conns, 0);
        let answers: Vec<_> = net.log.iter().map(|(_, p)| message_of(p)).collect();
        assert!(answers.len() <= 1);
        answers.into_iter().next()
    };
    let Some(Message::Drep(drep)) = answer(Message::Dreq(Box::new(dreq))) else { panic!() };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (ids.1, ids.0));
    let Some(Message::Apr(apr)) = answer(Message::Lap(lap)) else { panic!() };
    assert_eq!((apr.status, apr.remote_comm_id), (Apr::INVALID_COMM_ID, ids.0));
    let Some(Message::SidrRep(rep)) = answer(Message::SidrReq(Box::new(sidr))) else { panic!() };
    assert_eq!((rep.status, rep.request_id), (SidrStatus::UNSUPPORTED, 9));
    let rtu = Rtu { local_comm_id: ids.0, remote_comm_id: ids.1, private_data: [0; 224] };
    assert_eq!(answer(Message::Rtu(Box::new(rtu))), None);
    let drep = Drep { local_comm_id: ids.0, remote_comm_id: ids.1, private_data: [0; 224] };
    assert_eq!(answer(Message::Drep(Box::new(drep))), None);
}

fn message_of(packet: &[u8]) -> Message {
    message(packet).1
}

/// The peer asks for an alternate path of an existing connection.
#[test]
fn test_manager_refuses_alternate_path() {
    let mut net = Net::new(2);
    net.establish(7);
    let (_, Message::Req(req)) = message(&net.log[0].1) else { panic!() };
    let (_, Message::Rep(rep)) = message(&net.log[1].1) else { panic!() };
    assert_eq!(rep.failover, Failover::UNSUPPORTED);
    let lap = Lap { local_comm_id: req.local_comm_id, remote_comm_id: rep.local_comm_id };
    net.drop = Box::new(|_, _| true);
    net.deliver(0, &forged(addr(1), 1, Message::Lap(lap)));
    let Message::Apr(apr) = message_of(&net.log.last().unwrap().1) else { panic!() };
    assert_eq!(apr.status, Apr::UNSUPPORTED);
    assert_eq!(net.counters(0).lap_requests, 1);
}

/// Both ends repeat every message in any order, while the connection exists and after its end. No
/// application hears of it.
#[test]
fn test_replayed_messages_change_nothing() {
    for seed in 0..200 {
        let mut net = Net::new(seed);
        let id = net.establish(7);
        let replay = |net: &mut Net| {
            let mut all = net.log.clone();
            for _ in 0..2 {
                for at in (1..all.len()).rev() {
                    let other = net.random.below(at as u64 + 1) as usize;
                    all.swap(at, other);
                }
                for (from, packet) in &all {
                    net.deliver(1 - from, packet);
                }
            }
            net.run(ms(1000));
            assert!(net.nodes.iter().all(|n| n.events.is_empty()), "seed {seed}");
        };
        replay(&mut net);
        assert_eq!(net.nodes[0].cm.gauges().conns, 1);
        net.ask(0, Request::Disconnect { id }).unwrap();
        assert!(matches!(net.event(0), Event::Disconnected { .. }));
        assert!(matches!(net.event(1), Event::Disconnected { .. }));
        replay(&mut net);
        net.run(ms(60_000));
        assert_eq!(net.nodes[0].cm.gauges().conns, 0, "seed {seed}");
    }
}

/// Messages of a stranger that knows the names, and of the peer with wrong names.
#[test]
fn test_manager_ignores_messages_with_forged_sender_or_ids() {
    let mut net = Net::new(3);
    net.establish(7);
    let (_, Message::Req(req)) = message(&net.log[0].1) else { panic!() };
    let (_, Message::Rep(rep)) = message(&net.log[1].1) else { panic!() };
    let dreq = |local, remote, qpn| {
        let (local_comm_id, remote_comm_id) = (local, remote);
        let remote_qpn = qpn;
        let private_data = [0; 220];
        Message::Dreq(Box::new(Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data }))
    };
    let (a, b, qpn) = (req.local_comm_id, rep.local_comm_id, rep.local_qpn);
    let elsewhere: IpAddr = [10, 0, 0, 9].into();
    net.drop = Box::new(|_, _| true);
    let table: [(IpAddr, Message, Counter); 4] = [
        (elsewhere, dreq(a, b, qpn), |c| c.rx_foreign),
        (addr(1), dreq(CommId(a.0 ^ 1), b, qpn), |c| c.rx_foreign),
        (addr(1), dreq(a, CommId(b.0 ^ 1), qpn), |c| c.rx_unknown),
        (addr(1), dreq(a, b, heddle_ib::Qpn::new(qpn.get() ^ 1)), |c| c.rx_unexpected),
    ];
    for (from, message, counter) in table {
        net.deliver(0, &forged(from, 5, message));
        assert_eq!(counter(&net.counters(0)), 1 + u64::from(counter(&net.counters(0)) == 2));
        assert!(net.nodes[0].events.is_empty());
    }
    assert_eq!(net.nodes[0].cm.gauges().conns, 1);
    net.deliver(0, &forged(addr(1), 5, dreq(a, b, qpn)));
    assert!(matches!(net.nodes[0].events.pop_front(), Some(Event::Disconnected { .. })));
}

/// An answer to a REQ counts only with the REQ's transaction id, which no other host has seen.
#[test]
fn test_client_ignores_rep_with_wrong_transaction_id() {
    let mut net = Net::new(4);
    net.connect(7, |_| {});
    let id = net.request();
    net.drop = Box::new(|_, _| true);
    net.accept(id, 8);
    let (tid, rep) = message(&net.log.last().unwrap().1);
    let forged = |tid| {
        let mad = Mad::new(tid, rep.clone()).emit();
        UdRepr::gsi(addr(0), addr(1), 1).emit(&mad).unwrap()
    };
    net.deliver(1, &forged(tid ^ 1));
    assert!(net.nodes[1].events.is_empty());
    assert_eq!(net.counters(1).rx_foreign, 1);
    net.deliver(1, &forged(tid));
    assert!(matches!(net.nodes[1].events.pop_front(), Some(Event::Established { .. })));
}

/// Returns a REQ of another peer: each has its own address, names and queue pair.
fn other_req(n: u32, good: &Req) -> (IpAddr, Message) {
    let from = [10, 1, (n >> 8) as u8, n as u8];
    let mut req = good.clone();
    req.local_comm_id = CommId(1000 + n);
    req.local_qpn = heddle_ib::Qpn::new(1000 + n);
    req.private_data[16..20].copy_from_slice(&from);
    (from.into(), Message::Req(Box::new(req)))
}

#[test]
fn test_manager_bounds_request_flood_and_recovers_afterwards() {
    let (mut net, tid, good) = req();
    net.drop = Box::new(|_, _| true);
    for n in 0..10_000 {
        let (from, message) = other_req(n, &good);
        net.deliver(0, &forged(from, tid, message));
    }
    // The listener's backlog is the smallest of the limits here.
    let gauges = net.nodes[0].cm.gauges();
    assert_eq!((gauges.conns, net.nodes[0].events.len()), (128, 128));
    assert_eq!(net.counters(0).req_no_room, 10_000 - 128);
    assert_eq!(net.nodes[0].cm.counters().backlog_full, 10_000 - 128);
    assert_eq!(net.counters(0).tx_datagrams, 10_000 - 128, "one REJ for each refused");
    // The application answers no request; their time passes, and every peer is admitted again.
    net.run(ms(60_000));
    assert_eq!(net.nodes[0].cm.gauges().conns, 0);
    net.nodes[0].events.clear();
    net.drop = Box::new(|_, _| false);
    net.establish(7);
}

/// Twenty thousand REQs a second under forged addresses, each with the longest timers there are,
/// and an application that accepts at once: its own peers come in all the same.
#[test]
fn test_request_flood_from_many_addresses_shuts_no_peer_out() {
    let (_, tid, mut good) = req();
    let mut net = Net::with(1, |_, c| c.max_conns = 64);
    good.local_cm_response_timeout = heddle_ib::TimeCode::MAX;
    good.remote_cm_response_timeout = heddle_ib::TimeCode::MAX;
    good.max_cm_retries = 15;
    let mut qpn = 1000;
    let mut accept_all = |net: &mut Net, up: &mut usize| {
        for event in core::mem::take(&mut net.nodes[0].events) {
            match event {
                Event::ConnectRequest { id, .. } => {
                    qpn += 1;
                    net.accept(id, qpn);
                }
                Event::Established { remote, .. } if remote.ip() == addr(1) => *up += 1,
                _ => {}
            }
        }
    };
    // Answers to the forged addresses are lost.
    net.drop = Box::new(|from, message| {
        let forged = |name: CommId| (1000..21_000).contains(&name.0);
        from == 0
            && match message {
                Message::Rep(m) => forged(m.remote_comm_id),
                Message::Rej(m) => forged(m.remote_comm_id),
                Message::Mra(m) => forged(m.remote_comm_id),
                _ => false,
            }
    });
    let mut up = 0;
    for n in 0..20_000 {
        let (from, message) = other_req(n, &good);
        net.deliver(0, &forged(from, tid, message));
        accept_all(&mut net, &mut up);
        if n % 2000 == 1000 {
            net.connect(u64::from(n), |_| {});
            // A round trip takes two milliseconds.
            for _ in 0..8 {
                net.run(ms(1));
                accept_all(&mut net, &mut up);
            }
        } else if n % 20 == 0 {
            net.run(ms(1));
        }
    }
    assert_eq!(up, 10, "of ten honest ones");
    assert!(net.nodes[0].cm.gauges().conns <= 64);
    assert!(net.counters(0).half_open_evicted > 10_000, "{:?}", net.counters(0));
}

#[test]
fn test_manager_limits_requests_of_each_peer() {
    let (mut net, tid, good) = req();
    for n in 0..100 {
        let mut req = good.clone();
        req.local_comm_id = CommId(n + 1);
        req.local_qpn = heddle_ib::Qpn::new(n + 2);
        net.deliver(0, &forged(addr(1), tid, Message::Req(req)));
    }
    assert_eq!(net.nodes[0].cm.gauges().conns, 64);
    assert_eq!(net.nodes[0].cm.counters().peer_full, 36);
    let (from, message) = other_req(1, &good);
    net.deliver(0, &forged(from, tid, message));
    assert_eq!(net.nodes[0].cm.gauges().conns, 65, "another has room");
}

#[test]
fn test_manager_limits_startups_of_all_listeners_together() {
    let (_, tid, good) = req();
    let mut net = Net::with(1, |_, c| c.max_startups = 3);
    for n in 0..5 {
        let (from, message) = other_req(n, &good);
        net.deliver(0, &forged(from, tid, message));
    }
    assert_eq!(net.nodes[0].cm.gauges().conns, 3);
    assert_eq!(net.nodes[0].cm.counters().startups_full, 2);
    let rejs = net.log.iter().filter(|(n, _)| *n == 0);
    assert!(
        rejs.map(|(_, p)| message_of(p))
            .all(|m| matches!(m, Message::Rej(r) if r.reason == RejReason::NO_RESOURCES))
    );
}

/// Ended connections answer copies, and make room when another connection needs it.
#[test]
fn test_ended_connections_are_evicted_when_room_is_needed() {
    let mut net = Net::with(5, |_, c| c.max_conns = 4);
    for id in 1..=20 {
        let server = net.establish(id);
        net.ask(0, Request::Disconnect { id: server }).unwrap();
        assert!(matches!(net.event(0), Event::Disconnected { .. }));
        assert!(matches!(net.event(1), Event::Disconnected { .. }));
        assert!(net.nodes[0].cm.gauges().conns <= 4);
    }
    assert!(net.counters(0).time_wait_evicted >= 15);
    // Connections that have not ended make no room.
    let mut net = Net::with(6, |_, c| c.max_conns = 2);
    for id in 1..=2 {
        net.establish(id);
    }
    let mut params = ConnectTerms::new(qp(3));
    params.protocol = Protocol::InfiniBand;
    let connect = Request::Connect { id: CmId(3), remote: server(), params };
    assert_eq!(net.ask(1, connect), Err(RequestError::IbFull));
    assert_eq!(net.nodes[1].cm.gauges().claims, 2);
    let (_, tid, good) = req();
    net.log.clear();
    let (from, message) = other_req(1, &good);
    net.deliver(0, &forged(from, tid, message));
    assert_eq!(rej(&net).reason, RejReason::NO_RESOURCES);
}

/// A peer announces a timer of zero, or an endless one: the manager neither floods the peer nor
/// waits for ever.
#[test]
fn test_manager_clamps_timeouts_announced_by_peer() {
    for (code, least, most) in [(0, 50, 5_000), (31, 10_000, 30_000)] {
        let (mut net, tid, mut req) = req();
        req.local_cm_response_timeout = heddle_ib::TimeCode::new(code);
        req.max_cm_retries = 15;
        net.drop = Box::new(|_, _| true);
        net.deliver(0, &forged(addr(1), tid, Message::Req(req)));
        let id = net.request();
        net.accept(id, 8);
        let begin = net.now;
        let Event::ConnectError { error, .. } = net.event(0) else { panic!() };
        assert_eq!(error, ConnectFailure::TimedOut(Awaited::ReadyToUse));
        let took = net.now.since(begin);
        let sent = net.said(0).iter().filter(|m| *m == "Rep").count() as u32;
        assert!(took / sent >= ms(least) && took <= ms(most), "{code}: {sent} in {took:?}");
    }
}

/// A peer asks for more time again and again.
#[test]
fn test_server_gives_up_peer_that_keeps_sending_mras() {
    let (mut net, tid, req) = req();
    let name = req.local_comm_id;
    net.drop = Box::new(|_, _| true);
    net.deliver(0, &forged(addr(1), tid, Message::Req(req)));
    let id = net.request();
    net.accept(id, 8);
    let begin = net.now;
    let (_, Message::Rep(rep)) = message(&net.log[0].1) else { panic!() };
    for _ in 0..1000 {
        let mra = Mra {
            local_comm_id: name,
            remote_comm_id: rep.local_comm_id,
            answered: Answered::REP,
            service_timeout: heddle_ib::TimeCode::MAX,
            private_data: [0; 222],
        };
        net.deliver(0, &forged(addr(1), tid, Message::Mra(Box::new(mra))));
        net.run(ms(1000));
    }
    let Some(Event::ConnectError { error, .. }) = net.nodes[0].events.pop_front() else { panic!() };
    assert_eq!(error, ConnectFailure::TimedOut(Awaited::ReadyToUse));
    assert!(net.said(0).len() < 10);
    assert!(net.now.since(begin) >= ms(120_000));
    net.run(ms(60_000));
    assert_eq!(net.nodes[0].cm.gauges().conns, 0);
}

/// The shell does not poll the answers.
#[test]
fn test_manager_drops_answers_beyond_its_transmit_queue() {
    let (mut net, tid, good) = req();
    for n in 0..5000 {
        let (from, message) = other_req(n, &good);
        net.nodes[0].cm.handle_datagram(net.now, W, &forged(from, tid, message));
    }
    let mut sent = 0;
    while net.nodes[0].cm.poll_datagram().is_some() {
        sent += 1;
    }
    // The other half of the queue is for peers that have proven that they exist.
    assert_eq!((sent, net.counters(0).tx_datagrams), (512, 512));
    assert_eq!(net.counters(0).tx_full, 5000 - 128 - 512);
}
