use super::*;

fn qp_attr(p: &mut Process, id: u32, state: u32) -> Result<(u32, u32), Errno> {
    match p.try_do(Command::InitQpAttr { id, qp_state: state })? {
        Outcome::Done(Reply::QpAttr { state: got, mask, access }) => {
            assert_eq!(got, state);
            Ok((mask, access))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_client_connects_and_disconnects() {
    let mut p = Process::new();
    let (id, conn) = p.connecting();
    let dial = Dial {
        local: SocketAddr::new(OURS, 32768),
        remote: SocketAddr::new(PEER, 7174),
        param: param("hello"),
    };
    assert_eq!(p.rnic.take(), [Asked::Connect(dial)]);
    p.happen(established(conn));
    let event = p.event().unwrap();
    assert_eq!((event.uid, event.id, event.kind), (100, id, EventKind::Established));
    assert_eq!((event.param.responder_resources, event.param.initiator_depth), (1, 2));
    assert_eq!(p.ends(id).src, Some(addr("10.0.0.1:45678")), "the port that TCP has");
    p.run(Command::Disconnect { id }).unwrap();
    assert_eq!(p.rnic.take(), [Asked::Disconnect(conn)]);
    p.happen(Happening::Disconnected { conn });
    assert_eq!(p.kind(), Some((id, EventKind::Disconnected, 0)));
    p.run(Command::Disconnect { id }).unwrap();
    assert_eq!(p.destroy(id), 4);
    assert_eq!(p.rnic.take(), [], "nothing is left to end");
}

#[test]
fn test_failures_carry_kind_status_and_private_data() {
    for (kind, errno) in [
        (EventKind::Rejected, Errno::CONNRESET),
        (EventKind::Unreachable, Errno::TIMEDOUT),
        (EventKind::ConnectError, Errno::PROTO),
    ] {
        let mut p = Process::new();
        let (id, conn) = p.connecting();
        let said = param("no");
        p.happen(Happening::Failed { conn, kind, errno, param: said.clone() });
        let event = p.event().unwrap();
        assert_eq!((event.kind, event.status, &event.param), (kind, -errno.0, &said));
        assert_eq!(p.run(Command::Connect { id, param: param("") }), Err(Errno::INVAL));
        p.happen(established(conn));
        assert_eq!(p.event(), None, "the connection is over");
    }
}

#[test]
fn test_commands_out_of_order_are_refused() {
    let mut p = Process::new();
    let id = p.create(1);
    let connect = Command::Connect { id, param: param("") };
    let accept = Command::Accept { id, uid: 1, param: Some(param("")) };
    let reject = Command::Reject { id, reason: 0, private_data: Vec::new() };
    let refused = [connect.clone(), accept, reject, Command::Disconnect { id }];
    for bound in [false, true] {
        if bound {
            p.bind(id, "10.0.0.1:1").unwrap();
        }
        for command in &refused {
            assert_eq!(p.run(command.clone()), Err(Errno::INVAL), "{command:?}");
        }
    }
    p.listen(id, 1).unwrap();
    for command in refused {
        assert_eq!(p.run(command), Err(Errno::INVAL));
    }
    assert_eq!(p.resolve(id, "10.0.0.2:1"), Err(Errno::INVAL));
    assert_eq!(p.try_do(Command::Listen { id, backlog: 1 }), Err(Errno::INVAL));
    let unknown = Command::Disconnect { id: 77 };
    assert_eq!(p.run(unknown), Err(Errno::NOENT));
}

#[test]
fn test_connect_that_the_rnic_refuses_can_be_tried_again() {
    let mut p = Process::new();
    let id = p.create(1);
    p.resolve(id, "10.0.0.2:1").unwrap();
    p.run(Command::ResolveRoute { id }).unwrap();
    p.rnic.refuse = Some(Errno::NOMEM);
    assert_eq!(p.run(Command::Connect { id, param: param("") }), Err(Errno::NOMEM));
    p.rnic.refuse = None;
    assert_eq!(p.run(Command::Connect { id, param: param("") }), Ok(()));
}

#[test]
fn test_server_accepts() {
    let mut p = Process::new();
    let listening = p.create(1);
    p.bind(listening, "0.0.0.0:7174").unwrap();
    let listener = p.listen(listening, 0).unwrap();
    let any = place("0.0.0.0:7174", false);
    assert_eq!(p.rnic.take(), [Asked::Listen(any, 1024)], "0 asks for the default");
    p.happen(request(listener, 1000));
    let event = p.event().unwrap();
    assert_eq!((event.uid, event.kind), (1, EventKind::ConnectRequest));
    assert_eq!(event.param, param("may I?"));
    let new = event.id;
    assert_ne!(new, listening);
    let want = Ends {
        src: Some(addr("10.0.0.1:7174")),
        dst: Some(addr("10.0.0.2:40000")),
        device: Some(DEVICE),
    };
    assert_eq!(p.ends(new), want);
    assert_eq!(qp_attr(&mut p, new, 1), Ok((1 | 8 | 32, 6)));
    p.run(Command::Accept { id: new, uid: 2, param: Some(param("come")) }).unwrap();
    assert_eq!(p.rnic.take(), [Asked::Accept(CmId(1000), param("come"))]);
    p.happen(established(CmId(1000)));
    let event = p.event().unwrap();
    assert_eq!((event.uid, event.id, event.kind), (2, new, EventKind::Established));
    let again = Command::Accept { id: new, uid: 2, param: Some(param("")) };
    assert_eq!(p.run(again), Err(Errno::INVAL));
    assert_eq!((p.destroy(new), p.destroy(listening)), (1, 1));
    let left = p.rnic.take();
    assert_eq!(left, [Asked::Disconnect(CmId(1000)), Asked::Unlisten(listener)]);
}

#[test]
fn test_server_rejects_with_private_data() {
    let mut p = Process::new();
    let listening = p.create(1);
    let listener = p.listen(listening, 5).unwrap();
    let new = p.request(listener);
    p.rnic.take();
    let reject = |reason| Command::Reject { id: new, reason, private_data: b"no".to_vec() };
    assert_eq!(p.run(reject(99)), Err(Errno::INVAL));
    assert_eq!(p.run(reject(reject::CONSUMER)), Ok(()));
    assert_eq!(p.rnic.take(), [Asked::Reject(CmId(1000), b"no".to_vec())]);
    assert_eq!(p.run(reject(0)), Err(Errno::INVAL), "it is answered");
    p.destroy(new);
    assert_eq!(p.rnic.take(), []);
}

#[test]
fn test_request_that_cannot_be_accepted_is_rejected() {
    let mut p = Process::new();
    let listening = p.create(1);
    let listener = p.listen(listening, 5).unwrap();
    for param in [None, Some(param(""))] {
        let new = p.request(listener);
        p.rnic.take();
        p.rnic.refuse = param.is_some().then_some(Errno::NODEV);
        let want = if param.is_some() { Errno::NODEV } else { Errno::INVAL };
        assert_eq!(p.run(Command::Accept { id: new, uid: 1, param }), Err(want));
        assert_eq!(p.rnic.take(), [Asked::Reject(CmId(1000), Vec::new())]);
        p.rnic.refuse = None;
        p.destroy(new);
    }
}

#[test]
fn test_withdrawn_request_is_reported_when_program_answers_it() {
    let answers: [fn(u32) -> Command; 2] = [
        |id| Command::Accept { id, uid: 1, param: Some(param("")) },
        |id| Command::Reject { id, reason: 0, private_data: Vec::new() },
    ];
    for answer in answers {
        let mut p = Process::new();
        let listening = p.create(1);
        let listener = p.listen(listening, 5).unwrap();
        let id = p.request(listener);
        let (conn, kind, errno) = (CmId(1000), EventKind::Rejected, Errno::CONNRESET);
        p.happen(Happening::Failed { conn, kind, errno, param: param("") });
        assert_eq!(p.event(), None, "the program knows no name of it");
        assert_eq!(p.run(answer(id)), Err(Errno::CONNRESET));
        assert_eq!(p.run(answer(id)), Err(Errno::INVAL));
        p.destroy(id);
    }
}

#[test]
fn test_backlog_counts_requests_that_the_program_has_not_taken() {
    let mut p = Process::new();
    let listening = p.create(1);
    let listener = p.listen(listening, 2).unwrap();
    p.rnic.take();
    for conn in 1..=3 {
        p.happen(request(listener, conn));
    }
    assert_eq!(p.rnic.take(), [Asked::Reject(CmId(3), Vec::new())]);
    assert!(p.event().is_some());
    p.happen(request(listener, 4));
    assert_eq!(p.rnic.take(), []);
    assert_eq!(p.state.ids(), 4);
}

#[test]
fn test_listen_waits_for_the_rnic() {
    let mut p = Process::new();
    let id = p.create(1);
    p.bind(id, "10.0.0.1:7174").unwrap();
    let listen = Command::Listen { id, backlog: 1 };
    assert_eq!(p.try_do(listen.clone()), Ok(Outcome::Listening(id)));
    assert_eq!(p.try_do(listen.clone()), Ok(Outcome::Busy));
    assert_eq!(p.try_do(Command::DestroyId { id }), Ok(Outcome::Busy));
    let first = ListenerId(p.rnic.next);
    p.happen(Happening::ListenFailed { id: first, errno: Errno::ADDRINUSE });
    assert_eq!(p.state.listened(id), Some(Err(Errno::ADDRINUSE)));
    assert_eq!(p.try_do(listen), Ok(Outcome::Listening(id)), "it is bound as before");
    p.happen(Happening::Listening { id: ListenerId(p.rnic.next) });
    assert_eq!(p.state.listened(id), Some(Ok(())));
    p.destroy(id);
}

#[test]
fn test_listen_without_an_address_takes_a_wildcard_and_a_free_port() {
    let mut p = Process::new();
    let id = p.create(1);
    p.listen(id, 1).unwrap();
    assert_eq!(p.ends(id).src, Some(addr("0.0.0.0:32768")));
    p.rnic.absent = true;
    let other = p.create(1);
    assert_eq!(p.try_do(Command::Listen { id: other, backlog: 1 }), Err(Errno::NODEV));
}

#[test]
fn test_listener_of_ipv6_sees_mapped_addresses() {
    let mut p = Process::new();
    let id = p.create(1);
    p.bind(id, "[::]:7174").unwrap();
    let listener = p.listen(id, 1).unwrap();
    let new = p.request(listener);
    let want = (Some(addr("[::ffff:10.0.0.1]:7174")), Some(addr("[::ffff:10.0.0.2]:40000")));
    let ends = p.ends(new);
    assert_eq!((ends.src, ends.dst), want);
}

#[test]
fn test_connection_over_ipv6_keeps_its_addresses() {
    let mut p = Process::new();
    let listening = p.create(1);
    p.bind(listening, "[::]:7174").unwrap();
    let listener = p.listen(listening, 1).unwrap();
    assert_eq!(p.rnic.take(), [Asked::Listen(place("[::]:7174", false), 1)]);
    let (local, remote) = (addr("[fe80::1%3]:7174"), addr("[fe80::2%3]:40000"));
    let param = param("");
    p.happen(Happening::Request { conn: CmId(1000), listener, local, remote, param });
    let new = p.event().unwrap().id;
    let ends = p.ends(new);
    assert_eq!((ends.src, ends.dst), (Some(local), Some(remote)));
}

#[test]
fn test_client_connects_over_ipv6_in_the_scope_of_its_peer() {
    for (to, local, remote) in [
        ("[fd00::2%9]:7174", "[fd00::1]:32768", "[fd00::2]:7174"),
        ("[fe80::2%3]:7174", "[fe80::1%3]:32768", "[fe80::2%3]:7174"),
        ("[::1]:7174", "[::1]:32768", "[::1]:7174"),
        ("[::ffff:10.0.0.2]:7174", "10.0.0.1:32768", "10.0.0.2:7174"),
    ] {
        let mut p = Process::new();
        let id = p.create(1);
        p.resolve(id, to).unwrap();
        p.run(Command::ResolveRoute { id }).unwrap();
        p.run(Command::Connect { id, param: param("") }).unwrap();
        let dial = Dial { local: addr(local), remote: addr(remote), param: param("") };
        assert_eq!(p.rnic.take(), [Asked::Connect(dial)]);
        let conn = CmId(p.rnic.next);
        let at = address::in_scope(addr(local), 3);
        p.happen(Happening::Established { conn, local: at, param: param("") });
        assert_eq!(p.ends(id).src.map(address::on_wire), Some(addr(local)), "{to}");
    }
}

#[test]
fn test_queue_pair_attributes_are_those_of_iwarp() {
    let mut p = Process::new();
    let idle = p.create(1);
    assert_eq!(qp_attr(&mut p, idle, 1), Err(Errno::INVAL), "no device");
    let (id, conn) = p.connecting();
    assert_eq!(qp_attr(&mut p, id, 2), Ok((1 | 8 | 32, 6)));
    p.happen(established(conn));
    assert_eq!(qp_attr(&mut p, id, 3), Ok((32, 0)), "RTS is the RNIC's to reach");
    assert_eq!(qp_attr(&mut p, id, 6), Err(Errno::INVAL));
    assert_eq!(qp_attr(&mut p, id, 7), Err(Errno::INVAL));
}
