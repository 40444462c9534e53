//! rping, sink and the transfer of files over a pair of rings.

use heddle_hub::DeviceConfig;
use heddle_perf::transfer::{CHUNK, Mover, TransferError, hash};
use heddle_services::bench::{Op, pattern};
use heddle_services::rping::{Info, RpingClient, RpingConfig, RpingError, RpingServer};
use heddle_services::{Limits, SERVICES, ServiceSpec, Services, Sink, Step};
use heddle_types::mpa::{CrcPolicy, Revision, Rtr, RtrSet};
use heddle_verbs::{
    CmEvent, ConnectParams, Data, DeviceLimits, DisconnectReason, EventQueue, ListenParams,
    MpaOptions, Protocol, RecvWr, SendOp, SendWr, Stag,
};
use std::time::{Duration, Instant};

use crate::common::{Net, Raw, SERVER, eal, server};

fn config(count: u64, size: u32) -> RpingConfig {
    RpingConfig { remote: server(7174), count, size, validate: true, mpa: MpaOptions::new() }
}

#[test]
fn test_rping_of_several_sizes_in_both_revisions_and_without_crc() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let params = ListenParams {
        protocol: Protocol::Mpa(MpaOptions { crc: CrcPolicy::Off, ..MpaOptions::default() }),
        ..ListenParams::default()
    };
    let mut service =
        RpingServer::new(net.server.device(), server(7174), params, None, true).unwrap();
    let mut served = 0;
    for revision in [Revision::V1, Revision::V2] {
        for crc in [CrcPolicy::Required, CrcPolicy::Off] {
            for size in [26, 64, 1460, 65_535] {
                let config = RpingConfig {
                    mpa: MpaOptions::new().crc(crc).revision(revision),
                    ..config(10, size)
                };
                let device = net.client.device().clone();
                let mut client = RpingClient::new(&device, config, true).unwrap();
                let mut lines = Vec::new();
                net.until("the end of rping", || {
                    service.step();
                    let done = client.step().unwrap() == Step::Done;
                    lines.extend(client.take_line());
                    done
                });
                assert_eq!((client.done(), lines.len()), (10, 10), "{size}");
                assert_eq!(client.agreed().map(|a| a.crc), Some(crc == CrcPolicy::Required));
                served += 1;
                net.until("the end at the server", || {
                    service.step();
                    service.closed() == served
                });
                assert_eq!(service.failure(), None);
                assert_eq!(service.take_lines(), lines, "both ends show the same");
            }
        }
    }
}

#[test]
fn test_rping_server_ends_a_connection_that_breaks_the_rules_and_serves_the_next() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.server.device().clone();
    let mut service =
        RpingServer::new(&device, server(7174), ListenParams::default(), None, false).unwrap();
    let info = |len: u32| Info { to: 0, stag: Stag(1), len }.encode();
    for (what, messages) in [
        ("a short message", vec![info(64)[..15].to_vec()]),
        ("a source that is too long", vec![info(65_536).to_vec()]),
        ("a source that is not there", vec![info(64).to_vec()]),
        ("two messages at a time", vec![info(64).to_vec(), info(64).to_vec()]),
    ] {
        let raw = Raw::new(&net.client, 64);
        for _ in 0..4 {
            raw.qp.post_recv(&RecvWr { wr_id: 0, sges: &[raw.mr.sge(32, 16)] }).unwrap();
        }
        raw.connect(&net.client, server(7174), b"");
        let event = raw.event(&mut net, || {
            service.step();
        });
        assert!(matches!(event, CmEvent::Established { .. }), "{what}: {event:?}");
        for m in &messages {
            raw.mr.write(0, m);
            let op = SendOp::Send { solicited: false, invalidate: None };
            let sges = &[raw.mr.sge(0, m.len())];
            raw.qp
                .post_send(&SendWr {
                    wr_id: 1,
                    op,
                    data: Data::Sges(sges),
                    signaled: true,
                    fence: false,
                })
                .unwrap();
        }
        let event = raw.event(&mut net, || {
            service.step();
        });
        assert!(matches!(event, CmEvent::Disconnected { .. }), "{what}: {event:?}");
    }
    assert!(service.failure().is_some());
    let mut client = RpingClient::new(net.client.device(), config(3, 64), false).unwrap();
    net.until("the end of rping", || {
        service.step();
        client.step().unwrap() == Step::Done
    });
    assert_eq!(client.done(), 3);
}

#[test]
fn test_rping_client_sees_a_server_that_writes_nothing() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let raw = Raw::new(&net.server, 64);
    for _ in 0..4 {
        raw.qp.post_recv(&RecvWr { wr_id: 0, sges: &[raw.mr.sge(32, 16)] }).unwrap();
    }
    net.server.device().listen(server(7174), ListenParams::default(), &raw.events).unwrap();
    let mut client = RpingClient::new(net.client.device(), config(3, 64), false).unwrap();
    let device = net.server.device().clone();
    let mut failure = None;
    net.until("a failure", || {
        if let Some(CmEvent::ConnectRequest { id, .. }) = raw.events.poll() {
            device.accept(id, heddle_verbs::AcceptParams::new(raw.qp.clone())).unwrap();
        }
        while let Some(cqe) = raw.cq.poll() {
            if cqe.wr_id == 0 && cqe.status.is_success() {
                // "Go ahead", though the server has neither read nor written.
                let op = SendOp::Send { solicited: false, invalidate: None };
                let sges = &[raw.mr.sge(0, 16)];
                raw.qp
                    .post_send(&SendWr {
                        wr_id: 1,
                        op,
                        data: Data::Sges(sges),
                        signaled: true,
                        fence: false,
                    })
                    .unwrap();
            }
        }
        failure = client.step().err();
        failure.is_some()
    });
    let e = failure.expect("it was waited for");
    assert!(matches!(e, RpingError::Differs(1, 0)), "{e}");
    // The client does not leave the server waiting.
    let event = raw.event(&mut net, || {
        assert!(matches!(client.step(), Ok(Step::Done)));
    });
    let event = if matches!(event, CmEvent::Established { .. }) {
        raw.event(&mut net, || {})
    } else {
        event
    };
    assert!(matches!(event, CmEvent::Disconnected { .. }), "{event:?}");
}

/// The reason comes in an event after the flushed work requests, and the client reports this reason
/// to its user.
#[test]
fn test_rping_client_says_why_its_connection_ended() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let raw = Raw::new(&net.server, 64);
    raw.qp.post_recv(&RecvWr { wr_id: 0, sges: &[raw.mr.sge(32, 8)] }).unwrap();
    net.server.device().listen(server(7174), ListenParams::default(), &raw.events).unwrap();
    let mut client = RpingClient::new(net.client.device(), config(3, 64), false).unwrap();
    let device = net.server.device().clone();
    let mut failure = None;
    net.until("a failure", || {
        if let Some(CmEvent::ConnectRequest { id, .. }) = raw.events.poll() {
            device.accept(id, heddle_verbs::AcceptParams::new(raw.qp.clone())).unwrap();
        }
        failure = client.step().err();
        failure.is_some()
    });
    // The client's message of 16 bytes is too long for the buffer of 8.
    let e = failure.expect("it was waited for");
    assert!(matches!(e, RpingError::Disconnected(0, _)), "{e}");
    assert!(e.to_string().contains("terminated by the peer"), "{e}");
}

/// A single address gets a quarter of the places, and the service drops clients that stay silent
/// too long.
#[test]
fn test_silent_clients_of_one_address_are_limited_in_number_and_time() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.server.device().clone();
    let limits = Limits {
        peer_share: 128,
        first_message: Some(Duration::from_millis(300)),
        ..Limits::default()
    };
    let listen = ListenParams::default();
    let mut service =
        RpingServer::with_limits(&device, server(7174), listen, limits, None, false).unwrap();
    let connect = |net: &mut Net, service: &mut RpingServer| {
        let raw = Raw::new(&net.client, 64);
        raw.connect(&net.client, server(7174), b"");
        let event = raw.event(net, || {
            service.step();
        });
        (raw, event)
    };
    // The share is 256 / 128 connections.
    let up: Vec<_> = (0..2).map(|_| connect(&mut net, &mut service)).collect();
    assert!(up.iter().all(|(_, e)| matches!(e, CmEvent::Established { .. })));
    let (_, event) = connect(&mut net, &mut service);
    let CmEvent::Rejected { private_data, .. } = event else { panic!("{event:?}") };
    assert!(String::from_utf8_lossy(&private_data).contains("of this address"));
    for (raw, _) in &up {
        let event = raw.event(&mut net, || {
            service.step();
        });
        assert!(matches!(event, CmEvent::Disconnected { .. }), "{event:?}");
    }
    net.until("both ends", || {
        service.step();
        service.closed() == 2
    });
    // There is room again, and a client that sends messages may stay.
    let mut client = RpingClient::new(net.client.device(), config(0, 64), false).unwrap();
    let start = Instant::now();
    net.until("a second of rping", || {
        service.step();
        client.step().expect("it is served");
        start.elapsed() > Duration::from_secs(1)
    });
    assert!(client.done() > 1);
}

/// The server immediately refuses a client that takes no Reads, or whose region cannot exist.
#[test]
fn test_rping_server_refuses_what_it_cannot_carry_out() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.server.device().clone();
    let mut service =
        RpingServer::new(&device, server(7174), ListenParams::default(), None, false).unwrap();
    let raw = Raw::new(&net.client, 64);
    let mut params = ConnectParams::new(raw.qp.clone());
    params.ird = 0;
    net.client.device().connect(server(7174), params, &raw.events).unwrap();
    let event = raw.event(&mut net, || {
        service.step();
    });
    let CmEvent::Rejected { private_data, .. } = event else { panic!("{event:?}") };
    assert!(String::from_utf8_lossy(&private_data).contains("RDMA Reads"));
    let raw = Raw::new(&net.client, 64);
    raw.connect(&net.client, server(7174), b"");
    let event = raw.event(&mut net, || {
        service.step();
    });
    assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
    raw.mr.write(0, &Info { to: u64::MAX - 10, stag: Stag(1), len: 64 }.encode());
    let op = SendOp::Send { solicited: false, invalidate: None };
    let sges = &[raw.mr.sge(0, Info::LEN)];
    raw.qp
        .post_send(&SendWr { wr_id: 1, op, data: Data::Sges(sges), signaled: true, fence: false })
        .unwrap();
    let event = raw.event(&mut net, || {
        service.step();
    });
    assert!(matches!(event, CmEvent::Disconnected { .. }), "{event:?}");
    net.until("the end", || {
        service.step();
        service.closed() == 1
    });
}

/// A stopped service takes no more connections, and its address is free for another service.
#[test]
fn test_services_can_be_stopped() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.server.device().clone();
    let specs: Vec<ServiceSpec> = ["10.0.0.2:1=sink", "10.0.0.2:2=rping", "10.0.0.2:3=perf"]
        .map(|s| s.parse().unwrap())
        .to_vec();
    for stop_by_drop in [false, true] {
        let params = ListenParams::default();
        let mut services = Services::start(&device, &specs, &params, None).unwrap();
        let raw = Raw::new(&net.client, 64);
        raw.connect(&net.client, server(1), b"");
        let event = raw.event(&mut net, || {
            services.step();
        });
        assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
        if !stop_by_drop {
            services.stop_listening();
        }
        let kept = (!stop_by_drop).then_some(services);
        let refused = Raw::new(&net.client, 64);
        refused.connect(&net.client, server(1), b"");
        let event = refused.event(&mut net, || {});
        assert!(matches!(event, CmEvent::ConnectError { .. }), "{event:?}");
        drop(kept);
    }
    Services::start(&device, &specs, &ListenParams::default(), None).unwrap();
}

#[test]
fn test_sink_counts_and_grants_a_region() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let device = net.server.device().clone();
    let mut sink = Sink::new(&device, server(9), ListenParams::default(), None).unwrap();
    let raw = Raw::new(&net.client, 70_000);
    let id = raw.connect(&net.client, server(9), b"anything");
    let CmEvent::Established { private_data: p, .. } = raw.event(&mut net, || {
        sink.step();
    }) else {
        panic!("not accepted")
    };
    assert_eq!((&p[..4], p.len()), (&b"HSNK"[..], 24));
    let stag = Stag(u32::from_be_bytes([p[4], p[5], p[6], p[7]]));
    let to = u64::from_be_bytes(p[8..16].try_into().unwrap());
    let mut bytes = vec![0; 70_000];
    pattern::fill(&mut bytes, 1, 1);
    raw.mr.write(0, &bytes);
    let post = |wr_id, op, len| {
        let sges = &[raw.mr.sge(0, len)];
        raw.qp
            .post_send(&SendWr { wr_id, op, data: Data::Sges(sges), signaled: true, fence: false })
            .unwrap();
    };
    let send = SendOp::Send { solicited: false, invalidate: None };
    post(1, SendOp::Write { stag, to }, 70_000);
    for len in [0, 1, 1460, 65_536] {
        post(2, send, len);
    }
    net.until("four messages", || {
        sink.step();
        sink.counters().messages == 4
    });
    assert_eq!(sink.counters().bytes, 66_997);
    // Read the written bytes back over zeros to check that they arrived.
    raw.mr.write(0, &vec![0; 70_000]);
    post(3, SendOp::Read { stag, to }, 70_000);
    net.until("the Read", || {
        sink.step();
        raw.cq.poll().is_some_and(|c| c.wr_id == 3 && c.status.is_success())
    });
    let mut back = vec![0; 70_000];
    raw.mr.read(0, &mut back);
    assert!(back == bytes);
    // A message longer than the buffers ends the connection; the sink serves the next one.
    post(4, send, 65_537);
    let event = raw.event(&mut net, || {
        sink.step();
    });
    assert!(matches!(event, CmEvent::Disconnected { id: i, .. } if i == id), "{event:?}");
    let again = Raw::new(&net.client, 64);
    again.connect(&net.client, server(9), b"");
    let event = again.event(&mut net, || {
        sink.step();
    });
    assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
    assert_eq!(sink.counters().connections, 2);
}

#[test]
fn test_services_side_by_side_answer_on_their_own_ports() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let specs: Vec<ServiceSpec> =
        ["10.0.0.2:7174=rping", "10.0.0.2:9=sink"].iter().map(|s| s.parse().unwrap()).collect();
    let device = net.server.device().clone();
    let mut services = Services::start(&device, &specs, &ListenParams::default(), None).unwrap();
    let mut client = RpingClient::new(net.client.device(), config(2, 100), false).unwrap();
    net.until("the end of rping", || {
        services.step();
        client.step().unwrap() == Step::Done
    });
    let raw = Raw::new(&net.client, 64);
    raw.connect(&net.client, server(9), b"");
    let event = raw.event(&mut net, || {
        services.step();
    });
    let CmEvent::Established { private_data, .. } = event else { panic!("{event:?}") };
    assert_eq!(&private_data[..4], b"HSNK");
}

#[test]
fn test_transfer_copies_lengths_around_chunk_boundaries() {
    let (eal, _turn) = eal();
    for len in [1, CHUNK - 1, CHUNK, CHUNK + 1, 40 * CHUNK + 7] {
        let net = Net::new(&eal);
        let mut bytes = vec![0; len];
        pattern::fill(&mut bytes, 5, len as u64);
        let addr = std::net::SocketAddr::new(SERVER.into(), 7471);
        let mut mover = Mover::new(net.client, net.server, addr, bytes.clone()).unwrap();
        assert_eq!(mover.hash(), hash(&bytes));
        let ops = len.div_ceil(CHUNK) as u64;
        for op in Op::ALL.into_iter().filter(|&op| op != Op::SendImm) {
            let moved = mover.run(op, Duration::ZERO).unwrap();
            assert_eq!((moved.passes, moved.wrong), (1, 0), "{op} {len}");
            let bytes = if op.is_atomic() { 8 * ops } else { len as u64 };
            assert_eq!((moved.bytes, moved.ops, moved.latency.count), (bytes, ops, ops), "{op}");
        }
        assert!(matches!(mover.run(Op::SendImm, Duration::ZERO), Err(TransferError::Nothing)));
    }
}

/// For the peer a connection is established when the peer has the Reply, which may be before the
/// service has noticed that.
#[test]
fn test_stopping_service_closes_accepted_and_rejects_waiting_connections() {
    let (eal, _turn) = eal();
    // `perf` is left out, since its clients have to greet it.
    let names = SERVICES.split(", ").filter(|&s| s != "perf");
    for (name, accepts) in names.flat_map(|name| [(name, true), (name, false)]) {
        let mut net = Net::new(&eal);
        let spec: ServiceSpec = format!("10.0.0.2:7174={name}").parse().unwrap();
        let device = net.server.hub().open(&DeviceConfig::default()).unwrap();
        let mut services =
            Services::start(&device, &[spec], &ListenParams::default(), None).unwrap();
        net.until("a listener", || {
            services.step();
            services.is_listening().unwrap()
        });
        let raw = Raw::new(&net.client, 4096);
        // Some services send first, which only the peer-to-peer model allows.
        for wr_id in 0..16 {
            raw.qp.post_recv(&RecvWr { wr_id, sges: &[raw.mr.sge(0, 4096)] }).unwrap();
        }
        let mpa = MpaOptions::new().peer_to_peer(RtrSet::of(Rtr::Write));
        let params = ConnectParams::new(raw.qp.clone()).mpa(mpa);
        net.client.device().connect(server(7174), params, &raw.events).unwrap();
        net.until("its request", || services.has_work());
        if accepts {
            services.step();
            assert_eq!(services.conns(), 1, "{name}");
        }
        services.end();
        let mut event = || {
            raw.event(&mut net, || {
                services.step();
            })
        };
        if accepts {
            let ends = [event(), event()];
            let [CmEvent::Established { .. }, CmEvent::Disconnected { reason, .. }] = ends else {
                panic!("{name}: {ends:?}")
            };
            assert_eq!(reason, DisconnectReason::Orderly, "{name}");
        } else {
            let event = event();
            assert!(matches!(event, CmEvent::Rejected { .. }), "{name}: {event:?}");
        }
        net.until("its end", || {
            services.step();
            services.conns() == 0
        });
    }
}

/// A service that kept the protection domains of departed clients could serve only a limited number
/// of clients in its life.
#[test]
fn test_services_release_protection_domains_of_departed_clients() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let limits = DeviceLimits { max_pds: 2, ..DeviceLimits::default() };
    let config = DeviceConfig { limits, ..DeviceConfig::default() };
    let device = net.server.hub().open(&config).unwrap();
    for name in SERVICES.split(", ") {
        // `perf` is left out, since its clients have to greet it; tests/bench.rs has the same test
        // for it.
        if name == "perf" {
            continue;
        }
        let spec: ServiceSpec = format!("10.0.0.2:7174={name}").parse().unwrap();
        let mut services =
            Services::start(&device, &[spec], &ListenParams::default(), None).unwrap();
        net.until("a listener", || {
            services.step();
            services.is_listening().unwrap()
        });
        for n in 0..6 {
            let raw = Raw::new(&net.client, 64);
            // Some services send first, which only the peer-to-peer model allows.
            let mpa = MpaOptions::new().peer_to_peer(RtrSet::of(Rtr::Write));
            let params = ConnectParams::new(raw.qp.clone()).mpa(mpa);
            let id = net.client.device().connect(server(7174), params, &raw.events).unwrap();
            let event = raw.event(&mut net, || {
                services.step();
            });
            assert!(matches!(event, CmEvent::Established { .. }), "{name}, client {n}: {event:?}");
            // A service may end the connection first, if the client sends nothing; so an error is
            // ignored.
            let _ = net.client.device().disconnect(id);
            net.until("its end", || {
                services.step();
                services.conns() == 0
            });
        }
    }
}

/// A listener without queues would never answer a client.
#[test]
fn test_service_without_room_for_its_queues_does_not_listen() {
    let (eal, _turn) = eal();
    let mut net = Net::new(&eal);
    let small = DeviceConfig { queues: 1 << 10, ..DeviceConfig::default() };
    let device = net.server.hub().open(&small).unwrap();
    // `cmtime` needs room for only one completion, and `rpc` makes queues for each connection.
    for service in SERVICES.split(", ").filter(|s| !["cmtime", "rpc"].contains(s)) {
        let spec: ServiceSpec = format!("10.0.0.2:7174={service}").parse().unwrap();
        let started = Services::start(&device, &[spec], &ListenParams::default(), None);
        assert!(started.is_err(), "{service} has room");
        let events = EventQueue::new(None);
        let other = net.server.device();
        let id = other.listen(server(7174), ListenParams::default(), &events).unwrap();
        let mut event = None;
        net.until("a listener", || {
            event = events.poll();
            event.is_some()
        });
        assert!(matches!(event, Some(CmEvent::Listening { .. })), "{service}: {event:?}");
        net.server.device().unlisten(id).unwrap();
    }
}
