//! Clients that request forbidden things, or nonsense.

use super::raw::{Raw, ask_for_qp, qp};
use super::*;

#[test]
fn test_foreign_names_and_malformed_requests_are_refused_without_effect() {
    let (hub, _plane) = hub();
    let mut honest = Raw::opened(&hub);
    let (pd, _) = honest.ask("create-pd", "null");
    let pd = pd.ok.unwrap()["pd"].as_u64().unwrap();
    let (cq, number) = ask_for_qp(&mut honest, pd);
    let (mr, _) =
        honest.ask("alloc-mr", &format!(r#"{{"pd":{pd},"len":64,"access":6,"to":0,"qp":null}}"#));
    let mr = mr.ok.unwrap()["id"].as_u64().unwrap();

    let mut bad = Raw::new(&hub, Policy::default());
    assert_eq!(bad.refused("create-pd", "null"), FaultKind::Invalid);
    for (memory, queues) in [(u64::MAX, 1), (1, u64::MAX), (1 << 40, 1)] {
        let args = format!(r#"{{"memory":{memory},"queues":{queues},"name":""}}"#);
        bad.bring_files(4096, 4096);
        assert_eq!(bad.refused("device-open", &args), FaultKind::Quota);
    }
    // Too little for the doorbells; files of sizes other than stated; no files.
    for (queues, files) in [(64, 64), (65536, 4096), (65536, 131_072)] {
        let args = format!(r#"{{"memory":4096,"queues":{queues},"name":""}}"#);
        bad.bring_files(files, 4096);
        assert_eq!(bad.refused("device-open", &args), FaultKind::Invalid, "{queues} {files}");
    }
    let args = r#"{"memory":4096,"queues":65536,"name":""}"#;
    assert_eq!(bad.refused("device-open", args), FaultKind::Invalid);
    let mut bad = Raw::opened(&hub);
    let again = r#"{"memory":1048576,"queues":1048576,"name":"again"}"#;
    bad.bring_files(1 << 20, 1 << 20);
    assert_eq!(bad.refused("device-open", again), FaultKind::Invalid);
    use FaultKind::{Invalid, Malformed, NotFound, Quota};
    for (op, args, kind) in [
        ("create-qp", qp(pd, cq), NotFound),
        ("reset-qp", format!(r#"{{"qp":{number}}}"#), NotFound),
        ("destroy-qp", format!(r#"{{"qp":{number}}}"#), NotFound),
        ("destroy-cq", format!(r#"{{"off":{cq},"words":1}}"#), NotFound),
        ("destroy-srq", r#"{"off":0,"words":1}"#.into(), NotFound),
        ("destroy-mr", format!(r#"{{"id":{mr}}}"#), NotFound),
        ("deregister-mr", format!(r#"{{"id":{mr}}}"#), NotFound),
        ("destroy-region", r#"{"id":0}"#.into(), NotFound),
        ("destroy-reserved", r#"{"id":0}"#.into(), NotFound),
        ("destroy-stag", r#"{"id":18446744073709551615}"#.into(), NotFound),
        ("alloc-mr", format!(r#"{{"pd":{pd},"len":64,"access":0,"to":0,"qp":null}}"#), NotFound),
        ("alloc-window", format!(r#"{{"pd":{pd},"qp":null}}"#), NotFound),
        ("alloc-fast", format!(r#"{{"pd":{pd},"qp":null,"len":64}}"#), NotFound),
        ("usage", format!(r#"{{"pd":{pd}}}"#), NotFound),
        ("accept", accept(number, 1 << 63), NotFound),
        ("reject", r#"{"conn":1,"private_data":[],"needs_ord":null}"#.into(), NotFound),
        ("disconnect", r#"{"conn":1}"#.into(), NotFound),
        ("unlisten", r#"{"listener":1}"#.into(), NotFound),
        ("fail-qp", format!(r#"{{"qp":{number}}}"#), NotFound),
        ("destroy-reserved-addr", r#"{"id":1}"#.into(), NotFound),
        ("reserve-addr", r#"{"addr":"nowhere"}"#.into(), Malformed),
        ("reserve-addr", r#"{"addr":"10.0.0.1:1","more":1}"#.into(), Malformed),
        ("resize-cq", format!(r#"{{"cq":{cq},"depth":4}}"#), NotFound),
        ("create-cq", r#"{"depth":0,"waker":null}"#.into(), Invalid),
        ("create-cq", r#"{"depth":4294967295,"waker":null}"#.into(), Invalid),
        ("create-cq", r#"{"depth":65536,"waker":null}"#.into(), Quota),
        ("create-cq", r#"{"depth":8,"waker":true}"#.into(), Malformed),
        ("create-cq", r#"{"depth":8,"waker":-1}"#.into(), Malformed),
        ("reserve", r#"{"len":18446744073709551615}"#.into(), Invalid),
        ("reserve", r#"{"len":2000000}"#.into(), Quota),
        ("add-region", r#"{"len":4096}"#.into(), Invalid),
        ("dance", "null".into(), Malformed),
        ("create-cq", r#"{"depth":-1,"waker":null}"#.into(), Malformed),
        ("create-cq", r#"{"depth":8,"waker":null,"more":1}"#.into(), Malformed),
        ("create-cq", "[]".into(), Malformed),
        ("usage", r#"{"pd":4294967296}"#.into(), Malformed),
    ] {
        assert_eq!(bad.refused(op, &args), kind, "{op} {args}");
    }
    for line in [&b""[..], b"{", b"\xff", b"{\"v\":2,\"id\":1,\"op\":\"create-pd\"}", b"[[[[[[[["] {
        bad.session.handle(line, &mut bad.inbox);
        let out = bad.session.poll_transmit().unwrap();
        let answer: Answer = serde_json::from_slice(&out.bytes).unwrap();
        assert!(answer.error.is_some());
    }
    // Rights that do not exist, and a right that no region of several queue pairs may have.
    let (own, _) = bad.ask("create-pd", "null");
    let own = own.ok.unwrap()["pd"].as_u64().unwrap();
    for access in [64, 255, 8] {
        let args = format!(r#"{{"pd":{own},"len":64,"access":{access},"to":0,"qp":null}}"#);
        assert_eq!(bad.refused("alloc-mr", &args), Invalid, "{access}");
    }
    // The names belong to this session, and the protection domain to another.
    let (aside, _) = bad.ask("reserve", r#"{"len":64}"#);
    let aside = aside.ok.unwrap()["id"].as_u64().unwrap();
    let args = format!(r#"{{"id":{aside},"pd":{pd},"access":0}}"#);
    assert_eq!(bad.refused("register-reserved", &args), NotFound);
    assert_eq!(bad.refused("dealloc-pd", &format!(r#"{{"pd":{pd}}}"#)), NotFound);
    let (_, made) = ask_for_qp(&mut bad, own);
    for op in ["alloc-fast", "alloc-window"] {
        let len = if op == "alloc-fast" { r#","len":64"# } else { "" };
        let args = |pd: u64| format!(r#"{{"pd":{pd},"qp":{made}{len}}}"#);
        let (other, _) = bad.ask("create-pd", "null");
        let other = other.ok.unwrap()["pd"].as_u64().unwrap();
        assert_eq!(bad.refused(op, &args(other)), NotFound, "{op}: its queue pair has another");
        assert_eq!(bad.ask(op, &args(own)).0.error, None);
    }
    // A window is for one queue pair or for any.
    let both = format!(r#"{{"pd":{own},"qp":{made},"any_qp":true}}"#);
    assert_eq!(bad.refused("alloc-window", &both), FaultKind::Invalid);
    // A queue pair of its own does not entitle the session to answer the other's request.
    assert_eq!(bad.refused("accept", &accept(made, 1 << 63)), NotFound);
    // The other session notices nothing, and can free each of its objects once.
    assert_eq!(honest.ask("destroy-mr", &format!(r#"{{"id":{mr}}}"#)).0.error, None);
    assert_eq!(honest.refused("destroy-mr", &format!(r#"{{"id":{mr}}}"#)), NotFound);
    assert_eq!(honest.ask("destroy-qp", &format!(r#"{{"qp":{number}}}"#)).0.error, None);
    assert!(bad.session.counters().refused > 30);
    for raw in [&mut honest, &mut bad] {
        while !raw.session.close() {}
        assert_eq!(raw.refused("create-pd", "null"), Invalid, "closed");
    }
    until("everything comes back", || {
        hub.registry().reclaim();
        hub.registry().mrs().is_empty() && hub.registry().regions().reap() == 0
    });
}

fn accept(qp: u64, conn: u64) -> String {
    format!(r#"{{"conn":{conn},"qp":{qp},"ird":1,"ord":1,"private_data":[]}}"#)
}

#[test]
fn test_descriptors_of_wrong_kind_are_refused() {
    let (hub, _plane) = hub();
    let mut raw = Raw::opened(&hub);
    let (pipe, _end) = std::io::pipe().unwrap();
    raw.bring(&pipe);
    assert_eq!(raw.refused("add-region", r#"{"len":4096}"#), FaultKind::Invalid);
    let (plain, _other) = UnixStream::pair().unwrap();
    raw.bring(&plain);
    assert_eq!(raw.refused("add-region", r#"{"len":4096}"#), FaultKind::Invalid);
    let more = Region::shared(8192).unwrap();
    raw.bring(&more.fd().unwrap());
    let refused = raw.refused("add-region", r#"{"len":4096}"#);
    assert_eq!(refused, FaultKind::Invalid, "it has more than it counts for");
    let region = Region::shared(4096).unwrap();
    let fd = region.fd().unwrap();
    for len in ["4097", "0", "18446744073709551615"] {
        // The server has sealed nothing of the file, so the client can bring it again.
        raw.bring(&fd);
        let refused = raw.refused("add-region", &format!(r#"{{"len":{len}}}"#));
        assert!(matches!(refused, FaultKind::Invalid | FaultKind::Quota), "{len}");
    }
    // Each request took its own descriptor, also where it was refused.
    assert_eq!(raw.inbox.check_fds(), Ok(()));
    raw.bring(&fd);
    assert_eq!(raw.ask("add-region", r#"{"len":4096}"#).0.error, None);
    raw.bring(&fd);
    assert_eq!(raw.refused("add-region", r#"{"len":4096}"#), FaultKind::Invalid, "brought twice");
    // A descriptor that no request takes ends the connection.
    raw.bring(&pipe);
    assert_eq!(raw.ask("create-cq", r#"{"depth":8,"waker":1}"#).0.error, None);
    assert_eq!(raw.inbox.check_fds(), Err(heddle_socket::WireError::StrayFds));
    while !raw.session.close() {}
}

/// A refused request leaves no descriptor for the next one.
#[test]
fn test_descriptor_of_refused_request_is_not_used_by_the_next() {
    let (hub, _plane) = hub();
    let mut raw = Raw::new(&hub, Policy::default());
    let region = Region::shared(4096).unwrap();
    raw.bring(&region.fd().unwrap());
    let early = raw.refused("add-region", r#"{"len":4096}"#);
    assert_eq!(early, FaultKind::Invalid, "there is no device");
    raw.bring_files(1 << 16, 4096);
    let opened = raw.ask("device-open", r#"{"memory":4096,"queues":65536,"name":""}"#);
    assert_eq!(opened.0.error, None);
    let next = raw.refused("add-region", r#"{"len":4096}"#);
    assert_eq!(next, FaultKind::Invalid, "it brings nothing");
}

#[test]
fn test_queues_of_one_thread_share_a_waker_made_by_server() {
    let (hub, _plane) = hub();
    let mut raw = Raw::opened(&hub);
    let mut create = |waker: u64| {
        let (answer, fds) = raw.ask("create-cq", &format!(r#"{{"depth":8,"waker":{waker}}}"#));
        let off = answer.ok.unwrap()["off"].as_u64().unwrap();
        (off, fds, answer.fds)
    };
    let (first, mut fds, count) = create(7);
    assert_eq!((fds.len(), count), (1, 1));
    let (second, none, count) = create(7);
    assert_eq!((none.len(), count), (0, 0));
    assert_eq!(create(u64::MAX).1.len(), 1, "another thread");
    // The client can hide no descriptor in the server's end.
    let end = UnixStream::from(fds.pop().unwrap());
    let hidden = std::fs::File::open("/dev/null").unwrap();
    assert!(send(&end, b"x", &[hidden.as_fd()]).is_err());
    // When its queues are destroyed, so is the waker, and the number is free again.
    for off in [first, second] {
        assert_eq!(raw.ask("destroy-cq", &format!(r#"{{"off":{off},"words":1}}"#)).0.error, None);
    }
    end.set_nonblocking(false).unwrap();
    assert_eq!(std::io::Read::read(&mut &end, &mut [0]).unwrap(), 0);
    let (answer, fds) = raw.ask("create-cq", r#"{"depth":8,"waker":7}"#);
    assert_eq!((answer.error, fds.len()), (None, 1));
    while !raw.session.close() {}
}

/// RFC 5040 section 8.1.2: the right to memory is its descriptor, sent on the session that
/// registers it. The name that the memory has on another session registers nothing, and neither do
/// bytes beyond it.
#[test]
fn test_memory_is_registered_only_by_session_that_sent_its_descriptor() {
    let (hub, _plane) = hub();
    let mut honest = Raw::opened(&hub);
    let region = Region::shared(8192).unwrap();
    honest.bring(&region.fd().unwrap());
    let added = honest.ask("add-region", r#"{"len":8192}"#).0.ok.unwrap();
    let id = added.as_u64().or_else(|| added["id"].as_u64()).unwrap();
    let pd = |raw: &mut Raw| raw.ask("create-pd", "null").0.ok.unwrap()["pd"].as_u64().unwrap();
    let register = |pd: u64, region: u64, off: u64, len: u64| {
        format!(
            r#"{{"pd":{pd},"region":{region},"off":{off},"len":{len},"access":6,"to":0,"qp":null}}"#
        )
    };
    let mut bad = Raw::opened(&hub);
    let (theirs, mine) = (pd(&mut honest), pd(&mut bad));
    for region in [id, id + 1, id ^ 1, u64::MAX] {
        let refused = bad.refused("register-mr", &register(mine, region, 0, 4096));
        assert_eq!(refused, FaultKind::NotFound, "{region}");
    }
    assert!(hub.registry().mrs().is_empty());
    // The session that brought the memory may register all of it, and no more.
    for (off, len) in [(0, 8193), (8192, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let refused = honest.refused("register-mr", &register(theirs, id, off, len));
        assert_eq!(refused, FaultKind::Invalid, "{off} {len}");
    }
    let wrong = honest.refused("register-mr", &register(mine, id, 0, 4096));
    assert_eq!(wrong, FaultKind::NotFound, "another session's protection domain");
    assert!(hub.registry().mrs().is_empty());
    let (answer, _) = honest.ask("register-mr", &register(theirs, id, 0, 8192));
    assert_eq!(answer.error, None);
    while !bad.session.close() {}
    while !honest.session.close() {}
}

/// The control plane has no room for a while, and learns of the end all the same.
#[test]
fn test_session_end_is_reported_when_control_plane_has_room() {
    let (hub, plane) = hub();
    let mut raw = Raw::opened(&hub);
    plane.full.store(true, Relaxed);
    assert!(!raw.session.close() && !raw.session.close());
    plane.full.store(false, Relaxed);
    while !raw.session.close() {}
    assert_eq!(plane.gone.lock().unwrap().len(), 1);
    drop(raw);
    assert_eq!(plane.gone.lock().unwrap().len(), 1, "told twice");
}

/// Events that the client does not take stop new requests; taking them allows requests again.
#[test]
fn test_unfetched_events_are_bounded() {
    let (hub, plane) = hub();
    let mut raw = Raw::opened(&hub);
    let app = raw.session.app().unwrap();
    let taken = plane.events.lock().unwrap()[&app].clone();
    let events = raw.session.events.clone();
    for n in 0..MAX_UNTAKEN as u64 {
        let (id, error) = (CmId(n), ConnectFailure::PeerClosed);
        events.push(CmEvent::ConnectError { id, error, qp: QpFate::NoQp }, &taken);
        raw.session.poll_transmit().unwrap();
    }
    assert_eq!(taken.swap(), 0, "nobody has taken one");
    let listen = r#"{"addr":"10.0.0.1:1","params":PARAMS}"#;
    let params = serde_json::to_string(&ListenParams::default()).unwrap();
    let listen = listen.replace("PARAMS", &params);
    assert_eq!(raw.refused("listen", &listen), FaultKind::Busy);
    assert_eq!(raw.ask("taken", r#"{"count":10}"#).0.error, None);
    assert_eq!(taken.swap(), 10);
    assert_eq!(raw.ask("listen", &listen).0.error, None);
    assert_eq!(raw.ask("taken", r#"{"count":4294967295}"#).0.error, None);
    while !raw.session.close() {}
}

/// A reservation counts as a listener, belongs to its session alone, and ends with it.
#[test]
fn test_reservations_are_bounded_private_and_released() {
    let (hub, _plane) = hub();
    let policy = Policy { listeners: 3, listen: at_ports(60_000..=60_007), ..Policy::default() };
    let mut one = Raw::opened_with(&hub, policy.clone());
    let mut two = Raw::opened_with(&hub, policy);
    let reserve = |raw: &mut Raw, addr: &str| {
        let (answer, _) = raw.ask("reserve-addr", &format!(r#"{{"addr":"{addr}"}}"#));
        answer.ok.unwrap()
    };
    let first = reserve(&mut one, "10.0.0.1:0");
    let (id, addr) = (first["id"].as_u64().unwrap(), first["addr"].as_str().unwrap().to_owned());
    let port: u16 = addr.rsplit_once(':').unwrap().1.parse().unwrap();
    assert!((60_000..=60_007).contains(&port), "where it may listen: {addr}");
    assert_eq!(reserve(&mut two, &addr)["refused"], "InUse");
    let elsewhere = r#"{"addr":"10.0.0.1:59999"}"#;
    assert_eq!(one.refused("reserve-addr", elsewhere), FaultKind::Denied);
    let listen = |id: u64, addr: &str| {
        let params = serde_json::to_value(ListenParams::default()).unwrap();
        serde_json::json!({ "addr": addr, "params": params, "bound": id }).to_string()
    };
    // The other session cannot use the reservation by its name, nor can its owner use it for
    // another address.
    assert_eq!(two.refused("listen", &listen(id, &addr)), FaultKind::NotFound);
    let other = if port == 60_000 { "10.0.0.1:60001" } else { "10.0.0.1:60000" };
    assert_eq!(one.refused("listen", &listen(id, other)), FaultKind::NotFound);
    // Reservation and listener count as one of three, no matter which is freed first.
    let (answer, _) = one.ask("listen", &listen(id, &addr));
    let listener = answer.ok.unwrap()["listener"].as_u64().unwrap();
    for _ in 0..2 {
        assert!(reserve(&mut one, "0.0.0.0:0")["refused"].is_null());
    }
    assert_eq!(one.refused("reserve-addr", r#"{"addr":"0.0.0.0:0"}"#), FaultKind::Quota);
    let (answer, _) = one.ask("unlisten", &format!(r#"{{"listener":{listener}}}"#));
    assert_eq!(answer.error, None);
    assert_eq!(one.refused("reserve-addr", r#"{"addr":"0.0.0.0:0"}"#), FaultKind::Quota);
    one.ask("destroy-reserved-addr", &format!(r#"{{"id":{id}}}"#));
    assert!(reserve(&mut one, "0.0.0.0:0")["refused"].is_null());
    while !one.session.close() {}
    drop(one);
    assert!(reserve(&mut two, &addr)["refused"].is_null(), "it is free again");
}

fn at_ports(ports: core::ops::RangeInclusive<u16>) -> Vec<Addresses> {
    vec![Addresses { addr: "0.0.0.0".parse().unwrap(), prefix: 0, ports }]
}

/// A session has one queue and pays for it once, no matter how often it asks.
#[test]
fn test_repeated_watch_takes_descriptors_once_and_client_gets_events() {
    let (hub, _plane) = hub();
    let mut raw = Raw::opened(&hub);
    for _ in 0..5_000 {
        assert_eq!(raw.ask("watch", "null").0.error, None);
    }
    hub.board().end();
    let out = raw.session.poll_transmit().unwrap();
    assert_eq!(out.bytes, b"{\"v\":1,\"device\":\"device-fatal\"}\n");
    assert!(raw.session.poll_transmit().is_none());
}
