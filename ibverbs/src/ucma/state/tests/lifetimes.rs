use super::*;

#[test]
fn test_id_is_the_lowest_free_number_and_known_in_its_channel_alone() {
    let mut p = Process::new();
    assert_eq!([0; 3].map(|_| p.create(1)), [0, 1, 2]);
    p.destroy(1);
    assert_eq!([0; 2].map(|_| p.create(1)), [1, 3]);
    let other = p.state.open();
    let destroy = Command::DestroyId { id: 0 };
    let got = p.state.handle(other, destroy, &mut p.rnic);
    assert_eq!(got, Err(Errno::INVAL), "the id of another channel");
    assert_eq!(p.try_do(Command::DestroyId { id: 9 }), Err(Errno::NOENT));
}

#[test]
fn test_port_spaces_accept_only_matching_queue_pair_types() {
    let mut p = Process::new();
    let mut create = |port_space, qp_type| {
        p.try_do(Command::CreateId { uid: 1, port_space, qp_type }).map(|_| ())
    };
    for space in [port_space::TCP, port_space::UDP, port_space::IPOIB, port_space::IB] {
        assert_eq!(create(space, 2), Ok(()));
    }
    assert_eq!(create(0, 2), Err(Errno::INVAL));
}

#[test]
fn test_multicast_is_refused() {
    let mut p = Process::new();
    let id = p.create(1);
    p.bind(id, "10.0.0.1:1").unwrap();
    assert_eq!(p.run(Command::JoinMcast { id }), Err(Errno::INVAL));
    assert_eq!(p.run(Command::LeaveMcast), Err(Errno::NOENT));
}

#[test]
fn test_destroyed_id_takes_its_events_along() {
    let mut p = Process::new();
    let (id, other) = (p.create(1), p.create(2));
    p.resolve(id, "10.0.0.2:1").unwrap();
    p.resolve(other, "10.0.0.2:1").unwrap();
    p.run(Command::ResolveRoute { id }).unwrap();
    assert_eq!(p.kind(), Some((id, EventKind::AddrResolved, 0)));
    assert_eq!(p.destroy(id), 1, "the program has taken one");
    assert_eq!(p.state.waiting(p.channel), 1);
    assert_eq!(p.kind(), Some((other, EventKind::AddrResolved, 0)));
    assert_eq!(p.kind(), None);
}

#[test]
fn test_destroyed_listener_rejects_requests_that_wait() {
    let mut p = Process::new();
    let listening = p.create(1);
    let listener = p.listen(listening, 9).unwrap();
    let taken = p.request(listener);
    p.happen(request(listener, 1001));
    p.rnic.take();
    assert_eq!(p.destroy(listening), 1);
    let want = [Asked::Unlisten(listener), Asked::Reject(CmId(1001), Vec::new())];
    assert_eq!(p.rnic.take(), want);
    assert_eq!((p.state.ids(), p.state.waiting(p.channel)), (1, 0));
    p.happen(request(listener, 1002));
    assert_eq!(p.rnic.take(), [Asked::Reject(CmId(1002), Vec::new())], "nobody listens");
    p.run(Command::Accept { id: taken, uid: 5, param: Some(param("")) }).unwrap();
}

#[test]
fn test_destroying_an_id_gives_up_its_connection() {
    let mut p = Process::new();
    let (id, conn) = p.connecting();
    p.rnic.take();
    p.destroy(id);
    assert_eq!(p.rnic.take(), [Asked::Disconnect(conn)]);
    p.happen(established(conn));
    p.happen(Happening::Disconnected { conn });
    assert_eq!(p.event(), None);
}

#[test]
fn test_closed_channel_takes_its_ids_along() {
    let mut p = Process::new();
    let listening = p.create(1);
    let listener = p.listen(listening, 9).unwrap();
    let accepted = p.request(listener);
    p.happen(request(listener, 1001));
    let (_, conn) = p.connecting_beside();
    p.rnic.take();
    let _ = accepted;
    p.state.close(p.channel, &mut p.rnic);
    assert_eq!(p.state.ids(), 0);
    let asked = p.rnic.take();
    for want in [
        Asked::Unlisten(listener),
        Asked::Reject(CmId(1000), Vec::new()),
        Asked::Reject(CmId(1001), Vec::new()),
        Asked::Disconnect(conn),
    ] {
        assert_eq!(asked.iter().filter(|a| **a == want).count(), 1, "{want:?} in {asked:?}");
    }
    assert!(p.state.ports.is_empty() && p.state.by_conn.is_empty());
    assert!(p.state.by_listener.is_empty() && p.state.channels.is_empty());
}

impl Process {
    /// Works like `connecting`, while other events wait.
    fn connecting_beside(&mut self) -> (u32, CmId) {
        let id = self.create(100);
        self.resolve(id, "10.0.0.2:7174").unwrap();
        self.run(Command::ResolveRoute { id }).unwrap();
        self.run(Command::Connect { id, param: param("") }).unwrap();
        (id, CmId(self.rnic.next))
    }
}

#[test]
fn test_migrated_id_takes_its_events_to_the_other_channel() {
    let mut p = Process::new();
    let (listening, other) = (p.create(1), p.create(2));
    let listener = p.listen(listening, 9).unwrap();
    let taken = p.request(listener);
    p.happen(request(listener, 1001));
    p.resolve(other, "10.0.0.2:1").unwrap();
    let to = p.state.open();
    p.state.take_changed();
    let migrate = Command::MigrateId { id: listening, from: Descriptor(0) };
    let moved = p.state.handle(to, migrate, &mut p.rnic);
    assert_eq!(moved, Ok(Outcome::Done(Reply::EventsReported(1))));
    assert_eq!((p.state.waiting(p.channel), p.state.waiting(to)), (1, 1));
    let mut changed = p.state.take_changed();
    changed.sort();
    assert_eq!(changed, [p.channel, to]);
    let from = std::mem::replace(&mut p.channel, to);
    let new = p.event().unwrap().id;
    let accept = |id| Command::Accept { id, uid: 3, param: Some(param("")) };
    p.run(accept(new)).unwrap();
    assert_eq!(p.run(accept(taken)), Err(Errno::INVAL), "taken before, it stays");
    p.channel = from;
    p.run(accept(taken)).unwrap();
    for fd in [-1, 5] {
        let from = Descriptor(fd);
        let got = p.state.handle(to, Command::MigrateId { id: 0, from }, &mut p.rnic);
        assert_eq!(got, Err(if fd < 0 { Errno::NOENT } else { Errno::INVAL }));
    }
}

#[test]
fn test_event_stays_until_it_is_delivered() {
    let mut p = Process::new();
    let id = p.create(1);
    p.resolve(id, "10.0.0.2:1").unwrap();
    for _ in 0..2 {
        assert!(matches!(p.try_do(Command::GetEvent), Ok(Outcome::Done(Reply::Event(_)))));
    }
    assert!(p.event().is_some());
    assert_eq!(p.try_do(Command::GetEvent), Err(Errno::AGAIN));
    let reply = Reply::Id(p.create(2));
    p.state.undo(&reply, &mut p.rnic);
    assert_eq!(p.state.ids(), 1, "nobody knows the number");
}

#[test]
fn test_removed_device_is_reported_to_each_of_its_ids() {
    let mut p = Process::new();
    let idle = p.create(1);
    let (bound, listening) = (p.create(2), p.create(3));
    p.bind(bound, "10.0.0.1:1").unwrap();
    let listener = p.listen(listening, 9).unwrap();
    let request = p.request(listener);
    let (id, conn) = p.connecting();
    p.happen(established(conn));
    p.event().unwrap();
    let starting = p.create(4);
    p.try_do(Command::Listen { id: starting, backlog: 1 }).unwrap();
    p.rnic.absent = true;
    p.happen(Happening::DeviceGone);
    assert_eq!(p.state.listened(starting), Some(Err(Errno::NODEV)));
    let mut told = Vec::new();
    while let Some((id, kind, _)) = p.kind() {
        told.push((id, kind));
    }
    for want in [bound, listening, id, starting] {
        assert!(told.contains(&(want, EventKind::DeviceRemoval)), "{want} in {told:?}");
    }
    let ended = told.iter().position(|t| *t == (id, EventKind::Disconnected)).unwrap();
    let gone = told.iter().position(|t| *t == (id, EventKind::DeviceRemoval)).unwrap();
    assert!(ended < gone, "the connection ends first");
    assert!(told.iter().all(|(n, _)| *n != idle && *n != request));
    let accept = Command::Accept { id: request, uid: 1, param: Some(param("")) };
    assert_eq!(p.run(accept), Err(Errno::CONNRESET));
    p.rnic.take();
    for n in [idle, bound, listening, request, id, starting] {
        p.destroy(n);
    }
    assert_eq!(p.rnic.take(), [], "there is no RNIC to ask");
}

#[test]
fn test_route_reply_carries_guid_of_the_device() {
    let ends = Ends { src: Some(addr("10.0.0.1:1")), dst: None, device: Some(DEVICE) };
    assert_eq!(reply::Reply::Route(ends).encode()[..8], DEVICE.guid);
}

#[test]
fn test_child_of_a_fork_keeps_addresses_and_neither_listener_nor_connection() {
    let mut p = Process::new();
    let listening = p.create(1);
    p.bind(listening, "10.0.0.1:7174").unwrap();
    p.listen(listening, 9).unwrap();
    let (id, conn) = p.connecting();
    p.rnic.take();
    p.state.forget_device();
    p.happen(established(conn));
    assert_eq!(p.event(), None, "it is the parent's");
    p.listen(listening, 9).unwrap();
    p.destroy(id);
    assert!(matches!(p.rnic.take()[..], [Asked::Listen(..)]));
}
