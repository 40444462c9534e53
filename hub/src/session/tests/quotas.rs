//! Limits: how much a client gets, and that it gets no more.

use heddle_types::{Congestion, Ecn, Pacing, Pd};

use super::raw::{Raw, ask_for_qp};
use crate::session::opening::SESSION;

use super::*;

#[test]
fn test_quota_errors_name_resource_and_limit() {
    let limits = DeviceLimitsOf::few();
    let policy = Policy {
        limits,
        listeners: 1,
        connections: 1,
        listen: vec![Addresses { addr: [10, 0, 0, 1].into(), prefix: 32, ports: 7000..=7001 }],
        connect: vec![Addresses { addr: [10, 0, 0, 0].into(), prefix: 8, ports: 1..=9 }],
        ..Policy::default()
    };
    let (device, server) = served(policy);
    let device = device.unwrap();
    let refused = |e: DeviceError, kind: FaultKind, text: &str| match e {
        DeviceError::Refused(f) => assert_eq!((f.kind, f.text.as_str()), (kind, text)),
        other => panic!("{other}"),
    };
    let pd = device.alloc_pd().unwrap();
    let e = device.alloc_pd().unwrap_err();
    refused(e, FaultKind::Quota, "no more than 1 protection domains");
    let cq = device.create_cq(8, None).unwrap();
    let e = device.create_cq(8, None).unwrap_err();
    refused(e, FaultKind::Quota, "no more than 1 completion queues");
    let qp = device.create_qp(pd, QpInit::new(cq.clone())).unwrap();
    let e = device.create_qp(pd, QpInit::new(cq.clone())).unwrap_err();
    refused(e, FaultKind::Quota, "no more than 1 queue pairs");
    let _mr = device.alloc_mr(pd, 64, Access::NONE).unwrap();
    let e = device.alloc_mr(pd, 64, Access::NONE).unwrap_err();
    refused(e, FaultKind::Quota, "no more than 1 of this sort are allowed");
    let events = EventQueue::new(None);
    let listen = |at: &str| device.listen(at.parse().unwrap(), ListenParams::default(), &events);
    let e = listen("10.0.0.2:7000").unwrap_err();
    refused(e, FaultKind::Denied, "may not listen at 10.0.0.2:7000");
    let e = listen("0.0.0.0:7000").unwrap_err();
    refused(e, FaultKind::Denied, "may not listen at 0.0.0.0:7000");
    let id = listen("10.0.0.1:7000").unwrap();
    refused(
        listen("10.0.0.1:7001").unwrap_err(),
        FaultKind::Quota,
        "no more than 1 listeners of all applications of one user",
    );
    device.unlisten(id).unwrap();
    listen("10.0.0.1:7001").unwrap();
    let connect =
        |at: &str| device.connect(at.parse().unwrap(), ConnectParams::new(qp.clone()), &events);
    let e = connect("10.0.0.1:10").unwrap_err();
    refused(e, FaultKind::Denied, "may not connect to 10.0.0.1:10");
    connect("10.0.0.1:9").unwrap();
    let mut seen = Vec::new();
    until("the events", || {
        seen.extend(std::iter::from_fn(|| events.poll()));
        seen.len() == 3
    });
    // The queue pair can be connected again: the first attempt has changed nothing.
    connect("10.0.0.1:9").unwrap();
    drop((device, qp, cq));
    drop(_mr);
    server.thread.join().unwrap();
}

#[test]
fn test_protection_domain_counts_until_nothing_is_in_it() {
    let limits = heddle_verbs::DeviceLimits { max_pds: 1, ..heddle_verbs::DeviceLimits::default() };
    let (device, server) = served(Policy { limits, ..Policy::default() });
    let device = device.unwrap();
    // If this makes a domain, the domain is freed at once.
    let full = |device: &Device| matches!(device.own_pd(), Err(DeviceError::Refused(_)));
    let cq = device.create_cq(8, None).unwrap();
    type Make = fn(&Device, &Cq, Pd) -> Box<dyn std::any::Any>;
    let makers: [(&str, Make); 5] = [
        ("nothing", |_, _, _| Box::new(())),
        ("a queue pair", |d, cq, pd| Box::new(d.create_qp(pd, QpInit::new(cq.clone())).unwrap())),
        ("a region", |d, _, pd| Box::new(d.alloc_mr(pd, 64, Access::NONE).unwrap())),
        ("a window", |d, _, pd| Box::new(d.alloc_window(pd).unwrap())),
        ("a shared receive queue", |d, _, pd| Box::new(d.create_srq(pd, 8, 1, None).unwrap())),
    ];
    let mut before = Pd(0);
    for (what, make) in makers {
        // Objects of the round before may be on their way back.
        let mut made = None;
        until("a free place", || {
            made = device.own_pd().ok();
            made.is_some()
        });
        let pd = made.unwrap();
        assert!(pd.id().0 > before.0, "no number is given twice");
        before = pd.id();
        assert!(full(&device));
        let held = make(&device, &cq, pd.id());
        let id = pd.id();
        drop(pd);
        // The domain's owner has dropped it, and its objects hold it.
        assert_eq!(device.alloc_mr(id, 64, Access::NONE).unwrap_err(), DeviceError::ForeignPd(id));
        assert_eq!(device.dealloc_pd(id), Err(DeviceError::ForeignPd(id)));
        assert_eq!(full(&device), what != "nothing", "{what}");
        let owner = server.hub.owner(id);
        assert_eq!(owner.is_some(), what != "nothing", "{what}");
        drop(held);
        until("its end", || server.hub.owner(id).is_none());
    }
    drop((device, cq));
    server.thread.join().unwrap();
}

/// Limits of one object of each kind.
struct DeviceLimitsOf;

impl DeviceLimitsOf {
    fn few() -> heddle_verbs::DeviceLimits {
        heddle_verbs::DeviceLimits {
            max_pds: 1,
            max_cqs: 1,
            max_qps: 1,
            max_mrs: 1,
            ..heddle_verbs::DeviceLimits::default()
        }
    }
}

fn number(answer: Answer, key: &str) -> u64 {
    answer.ok.unwrap_or_else(|| panic!("{:?}", answer.error))[key].as_u64().unwrap()
}

/// Connections count from the request on, until the event of their end has been sent.
#[test]
fn test_connections_count_until_they_have_ended() {
    let (hub, plane) = hub();
    let mut raw = Raw::opened_with(&hub, Policy { connections: 2, ..Policy::default() });
    let app = raw.session.app().unwrap();
    let pd = number(raw.ask("create-pd", "null").0, "pd");
    plane.silent.store(true, Relaxed);
    let connect = |raw: &mut Raw| {
        let (_, qp) = ask_for_qp(raw, pd);
        let protocol = serde_json::to_string(&heddle_types::Protocol::default()).unwrap();
        let args = format!(
            r#"{{"remote":"10.0.0.2:1","local":null,"qp":{qp},"protocol":{protocol},"ird":1,"ord":1,"#
        ) + r#""private_data":[],"timeout":{"secs":1,"nanos":0}}"#;
        raw.ask("connect", &args).0
    };
    let first = number(connect(&mut raw), "conn");
    number(connect(&mut raw), "conn");
    assert_eq!(connect(&mut raw).error.unwrap().kind, FaultKind::Quota);
    // A peer's request counts when it is accepted.
    let asked = CmEvent::ConnectRequest {
        id: CmId(77),
        listener: heddle_types::ListenerId(1),
        local: "10.0.0.1:1".parse().unwrap(),
        remote: "10.0.0.2:1".parse().unwrap(),
        private_data: Vec::new(),
        worker: heddle_types::WorkerId(0),
        peer: None,
        peer_to_peer: false,
        transport: heddle_types::Transport::Iwarp,
    };
    let taken = plane.events.lock().unwrap()[&app].clone();
    let events = raw.session.events.clone();
    events.push(asked, &taken);
    raw.session.poll_transmit().unwrap();
    let (_, qp) = ask_for_qp(&mut raw, pd);
    let accept = format!(r#"{{"conn":77,"qp":{qp},"ird":1,"ord":1,"private_data":[]}}"#);
    assert_eq!(raw.refused("accept", &accept), FaultKind::Quota);
    assert_eq!(raw.session.connections(), (2, 0));
    let ended = CmEvent::ConnectError {
        id: CmId(first),
        error: ConnectFailure::PeerClosed,
        qp: QpFate::NoQp,
    };
    events.push(ended, &taken);
    raw.session.poll_transmit().unwrap();
    assert_eq!(raw.session.connections(), (1, 0));
    assert_eq!(raw.ask("accept", &accept).0.error, None);
    assert_eq!(raw.session.connections(), (2, 0));
    assert_eq!(raw.refused("accept", &accept), FaultKind::NotFound, "it was answered");
    while !raw.session.close() {}
}

#[test]
fn test_listener_backlog_is_capped_and_listener_counts_until_it_fails() {
    let (hub, plane) = hub();
    let policy = Policy { listeners: 1, backlog: 9, ..Policy::default() };
    let mut raw = Raw::opened_with(&hub, policy);
    let listen = |backlog| {
        let params = ListenParams { backlog, ..ListenParams::default() };
        let params = serde_json::to_string(&params).unwrap();
        format!(r#"{{"addr":"10.0.0.1:1","params":{params}}}"#)
    };
    let id = number(raw.ask("listen", &listen(100)).0, "listener");
    assert_eq!(raw.refused("listen", &listen(3)), FaultKind::Quota);
    let taken = plane.events.lock().unwrap()[&raw.session.app().unwrap()].clone();
    let error = ListenFailure::AddressRemoved;
    let failed = CmEvent::ListenFailed { id: heddle_types::ListenerId(id), error };
    raw.session.events.clone().push(failed, &taken);
    while raw.session.poll_transmit().is_some() {}
    assert_eq!(raw.session.connections(), (0, 0));
    raw.ask("listen", &listen(3)).0.into_result::<serde_json::Value>().unwrap();
    assert_eq!(*plane.backlogs.lock().unwrap(), [9, 3]);
    while !raw.session.close() {}
}

fn terms(congestion: Option<Congestion>, ecn: Option<Ecn>) -> TcpTerms {
    TcpTerms { congestion, ecn, pacing: None }
}

#[test]
fn test_applications_have_the_congestion_control_of_their_rule_unless_they_choose() {
    let tcp = TcpTerms { pacing: Some(Pacing::Off), ..terms(Some(Congestion::Dctcp), None) };
    let (device, server) = served(Policy { tcp, ..Policy::default() });
    let (device, events) = (device.unwrap(), EventQueue::new(None));
    let own = terms(Some(Congestion::NewReno), Some(Ecn::Off));
    let own = TcpTerms { pacing: Some(Pacing::Auto), ..own };
    let part = terms(None, Some(Ecn::Request));
    for (port, tcp) in (1..).zip([TcpTerms::default(), own, part]) {
        let params = ListenParams { tcp, ..ListenParams::default() };
        device.listen(([10, 0, 0, 1], port).into(), params, &events).unwrap();
        let init = QpInit::new(device.create_cq(8, None).unwrap());
        let qp = device.create_qp(device.alloc_pd().unwrap(), init).unwrap();
        let params = ConnectParams { tcp, ..ConnectParams::new(qp) };
        device.connect(([10, 0, 0, 2], port).into(), params, &events).unwrap();
    }
    let both = TcpTerms { ecn: Some(Ecn::Request), ..tcp };
    assert_eq!(*server.plane.tcp.lock().unwrap(), [tcp, tcp, own, own, both, both]);
}

/// Memory that is being mapped counts as if it were mapped, and so does memory that is set aside.
#[test]
fn test_memory_counts_while_it_is_being_mapped_or_reserved() {
    let (hub, _plane) = hub();
    let policy = Policy { memory: (1 << 20) + 8192, regions: 3, ..Policy::default() };
    let mut raw = Raw::opened_with(&hub, policy);
    // Two files that are prepared at the same time, neither of which is done.
    for (id, len, fine) in [(100, 4096, true), (101, 8192, false), (102, 4096, true)] {
        let region = Region::shared(len).unwrap();
        raw.bring(&region.fd().unwrap());
        let line = format!(r#"{{"v":1,"id":{id},"op":"add-region","args":{{"len":{len}}}}}"#);
        raw.session.handle(line.as_bytes(), &mut raw.inbox);
        let refused = raw.session.poll_transmit().map(|out| {
            let answer: Answer = serde_json::from_slice(&out.bytes).unwrap();
            answer.error.unwrap().kind
        });
        assert_eq!(refused, (!fine).then_some(FaultKind::Quota), "{id}");
    }
    raw.work();
    while raw.session.poll_transmit().is_some() {}
    let counted = raw.session.counters();
    assert_eq!((counted.refused, counted.over_quota), (1, 1));
    while !raw.session.close() {}

    let policy = Policy { regions: 1, ..Policy::default() };
    let mut raw = Raw::opened_with(&hub, policy);
    for (id, fine) in [(100, true), (101, false)] {
        raw.bring(&Region::shared(4096).unwrap().fd().unwrap());
        let line = format!(r#"{{"v":1,"id":{id},"op":"add-region","args":{{"len":4096}}}}"#);
        raw.session.handle(line.as_bytes(), &mut raw.inbox);
        assert_eq!(raw.session.poll_transmit().is_none(), fine, "{id}");
    }
    while !raw.session.close() {}

    let mut raw = Raw::opened_with(&hub, Policy::default());
    for _ in 0..1024 {
        number(raw.ask("reserve", r#"{"len":64}"#).0, "id");
    }
    assert_eq!(raw.refused("reserve", r#"{"len":64}"#), FaultKind::Quota);
    while !raw.session.close() {}
}

/// A user that opens many devices gets no more than a user that opens one. Another session of the
/// same user may take what a session gives back, and another user has limits of its own.
#[test]
fn test_all_sessions_of_one_user_share_its_limits() {
    let (hub, _plane) = hub();
    let policy = Policy {
        sessions: 3,
        memory: 4 << 20,
        listeners: 2,
        connections: 2,
        descriptors: 3 * 64,
        limits: heddle_verbs::DeviceLimits {
            max_qps: 2,
            max_cqs: 3,
            max_srqs: 2,
            max_pds: 3,
            max_mrs: 4,
            max_mws: 4,
            ..heddle_verbs::DeviceLimits::default()
        },
        ..Policy::default()
    };
    let account = raw::account(&policy);
    let open = |raw: &mut Raw| {
        raw.bring_files(1 << 20, 1 << 20);
        raw.ask("device-open", r#"{"memory":1048576,"queues":1048576,"name":"x"}"#).0.error
    };
    let mut all: Vec<_> =
        (0..3).map(|_| Raw::sharing(&hub, policy.clone(), account.clone())).collect();
    for raw in &mut all {
        assert_eq!(open(raw), None);
    }
    let mut fourth = Raw::sharing(&hub, policy.clone(), account.clone());
    assert_eq!(open(&mut fourth).unwrap().kind, FaultKind::Quota);
    let pds: Vec<_> =
        all.iter_mut().map(|raw| number(raw.ask("create-pd", "null").0, "pd")).collect();
    assert_eq!(all[0].refused("create-pd", "null"), FaultKind::Quota);
    let params = serde_json::to_string(&ListenParams::default()).unwrap();
    // For each kind: the operation, the number of requests that succeed, of sessions in turn, and
    // the arguments.
    type Ask<'a> = (&'a str, usize, Box<dyn Fn(usize) -> String + 'a>);
    let table: [Ask<'_>; 6] = [
        ("create-cq", 3, Box::new(|_| r#"{"depth":8,"waker":null}"#.into())),
        (
            "create-srq",
            2,
            Box::new(|n| format!(r#"{{"pd":{},"depth":8,"max_sge":1,"waker":null}}"#, pds[n])),
        ),
        (
            "alloc-mr",
            2,
            Box::new(|n| format!(r#"{{"pd":{},"len":64,"access":0,"to":null,"qp":null}}"#, pds[n])),
        ),
        // Together with the regions.
        ("alloc-window", 1, Box::new(|n| format!(r#"{{"pd":{},"qp":null}}"#, pds[n]))),
        ("alloc-fast", 1, Box::new(|n| format!(r#"{{"pd":{},"qp":null,"len":64}}"#, pds[n]))),
        (
            "listen",
            2,
            Box::new(|n| format!(r#"{{"addr":"10.0.0.1:{}","params":{params}}}"#, n + 1)),
        ),
    ];
    for (op, most, args) in &table {
        let fine = (0..3)
            .cycle()
            .take(if op.starts_with("alloc") { *most } else { 9 })
            .filter(|n| all[*n].ask(op, &args(*n)).0.error.is_none())
            .count();
        assert_eq!(fine, *most, "{op}");
    }
    for op in ["alloc-mr", "alloc-window", "alloc-fast"] {
        let (_, _, args) = table.iter().find(|t| t.0 == op).unwrap();
        assert_eq!(all[2].refused(op, &args(2)), FaultKind::Quota, "{op}");
    }
    // Another user has the full limits.
    let mut other = Raw::opened_with(&hub, policy.clone());
    for (op, ..) in table.iter().filter(|t| t.0 == "create-cq") {
        for _ in 0..3 {
            assert_eq!(other.ask(op, r#"{"depth":8,"waker":null}"#).0.error, None);
        }
    }
    // A session ends, and the others get its share.
    let mut first = all.remove(0);
    while !first.session.close() {}
    drop(first);
    assert_eq!(open(&mut fourth), None);
    assert_eq!(fourth.ask("create-cq", r#"{"depth":8,"waker":null}"#).0.error, None);
    for mut raw in all.into_iter().chain([fourth]) {
        while !raw.session.close() {}
    }
    until("all is given back", || {
        hub.registry().reclaim();
        account.is_idle()
    });
    while !other.session.close() {}
}

/// The RNIC's process holds descriptors for a session that has asked for nothing yet.
#[test]
fn test_sessions_of_one_user_share_its_descriptors() {
    let (hub, _plane) = hub();
    let descriptors = u32::try_from(2 * SESSION - 1).unwrap();
    let policy = Policy { descriptors, ..Policy::default() };
    let account = raw::account(&policy);
    let mut all = [(); 2].map(|()| Raw::sharing(&hub, policy.clone(), account.clone()));
    let [first, second] = all.each_mut().map(|raw| {
        raw.bring_files(1 << 20, 1 << 20);
        raw.ask("device-open", r#"{"memory":1048576,"queues":1048576,"name":"x"}"#).0.error
    });
    assert_eq!(first, None);
    let refused = second.unwrap();
    assert_eq!(refused.kind, FaultKind::Quota);
    assert!(refused.text.contains("descriptors"), "{}", refused.text);
    for raw in &mut all {
        while !raw.session.close() {}
    }
}

/// A changed rule applies to existing sessions.
#[test]
fn test_listeners_end_when_new_policy_forbids_them() {
    let (hub, _plane) = hub();
    let mut raw = Raw::opened(&hub);
    let params = serde_json::to_string(&ListenParams::default()).unwrap();
    let listen = |port| format!(r#"{{"addr":"10.0.0.1:{port}","params":{params}}}"#);
    let [kept, lost] = [1, 2].map(|port| number(raw.ask("listen", &listen(port)).0, "listener"));
    while raw.session.poll_transmit().is_some() {}
    let reserved = vec!["0.0.0.0:2".parse().unwrap()];
    raw.session.set_policy(Policy { reserved, ..Policy::default() });
    let told: Vec<_> = std::iter::from_fn(|| raw.session.poll_transmit()).collect();
    let [told] = &told[..] else { panic!("{told:?}") };
    let text = String::from_utf8(told.bytes.clone()).unwrap();
    assert!(text.contains("ListenFailed") && text.contains(&format!("\"id\":{lost}")), "{text}");
    assert_eq!(raw.session.connections(), (0, 1));
    assert_eq!(raw.refused("listen", &listen(2)), FaultKind::Denied);
    let unlisten = |id| format!(r#"{{"listener":{id}}}"#);
    assert_eq!(raw.refused("unlisten", &unlisten(lost)), FaultKind::NotFound);
    assert_eq!(raw.ask("unlisten", &unlisten(kept)).0.error, None);
    while !raw.session.close() {}
}

/// The session frees the objects of a client that has ended a part at a time, and all in the end.
#[test]
fn test_session_frees_its_objects_in_parts() {
    let (hub, _plane) = hub();
    let mut raw = Raw::opened_with(&hub, Policy::default());
    let pd = number(raw.ask("create-pd", "null").0, "pd");
    for _ in 0..200 {
        ask_for_qp(&mut raw, pd);
    }
    let mut calls = 1;
    while !raw.session.close() {
        calls += 1;
    }
    assert!(calls > 400 / 100, "{calls} calls");
    // The session still exists, and no object is left in it.
    assert!(raw.session.objects.drop_some(usize::MAX));
    assert_eq!(raw.session.objects.count(), 0);
}

/// The name that an application calls itself by is shown to people, in one line.
#[test]
fn test_application_name_is_truncated_and_stripped_of_control_characters() {
    let (hub, _plane) = hub();
    let mut raw = Raw::new(&hub, Policy::default());
    let name = format!("a\\n\\u001b[2Jb{}", "c".repeat(100));
    let args = format!(r#"{{"memory":0,"queues":1048576,"name":"{name}"}}"#);
    raw.bring(&Region::shared(1 << 20).unwrap().fd().unwrap());
    raw.ask("device-open", &args).0.into_result::<serde_json::Value>().unwrap();
    assert_eq!(raw.session.name(), format!("a[2Jb{}", "c".repeat(59)));
    while !raw.session.close() {}
}

/// The server does not answer a request without a number: the client could not match the answer.
#[test]
fn test_request_without_id_is_not_answered() {
    let (hub, _plane) = hub();
    let mut raw = Raw::opened_with(&hub, Policy::default());
    for args in [r#"{"id":1}"#, r#"{"id":18446744073709551615}"#] {
        let line = format!(r#"{{"v":1,"id":0,"op":"destroy-mr","args":{args}}}"#);
        raw.session.handle(line.as_bytes(), &mut raw.inbox);
        assert!(raw.session.poll_transmit().is_none(), "{args}");
    }
    raw.session.handle(br#"{"v":1,"id":0,"op":"create-pd"}"#, &mut raw.inbox);
    assert!(raw.session.poll_transmit().is_none());
    while !raw.session.close() {}
}
