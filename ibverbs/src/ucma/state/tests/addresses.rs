use super::*;

#[test]
fn test_bind_refuses_addresses_that_rnic_does_not_have() {
    let mut p = Process::new();
    let id = p.create(1);
    assert_eq!(p.bind(id, "10.0.0.9:80"), Err(Errno::NODEV));
    assert_eq!(p.bind(id, "[2001:db8::1]:80"), Err(Errno::NODEV));
    assert_eq!(p.run(Command::Bind { id, addr: Address::Ib }), Err(Errno::AFNOSUPPORT));
    p.rnic.absent = true;
    assert_eq!(p.bind(id, "10.0.0.1:80"), Err(Errno::NODEV));
    p.rnic.absent = false;
    assert_eq!(p.bind(id, "10.0.0.1:80"), Ok(()));
    assert_eq!(p.bind(id, "10.0.0.1:80"), Err(Errno::INVAL), "it is bound");
}

#[test]
fn test_bind_gives_the_device_only_with_an_address() {
    let mut p = Process::new();
    let (any, ours, mapped) = (p.create(1), p.create(2), p.create(3));
    p.bind(any, "0.0.0.0:80").unwrap();
    assert_eq!(p.ends(any), Ends { src: Some(addr("0.0.0.0:80")), dst: None, device: None });
    assert_eq!(p.run(Command::Notify { id: any }), Err(Errno::INVAL));
    p.bind(ours, "10.0.0.1:81").unwrap();
    assert_eq!(p.ends(ours).device, Some(DEVICE));
    assert_eq!(p.run(Command::Notify { id: ours }), Ok(()));
    p.bind(mapped, "[::ffff:10.0.0.1]:82").unwrap();
    let src = Some(addr("[::ffff:10.0.0.1]:82"));
    assert_eq!(p.ends(mapped), Ends { src, dst: None, device: Some(DEVICE) });
}

#[test]
fn test_port_belongs_to_one_id_only() {
    let mut p = Process::new();
    let first = p.create(1);
    p.bind(first, "10.0.0.1:80").unwrap();
    for other in ["10.0.0.1:80", "0.0.0.0:80", "[::]:80", "[::ffff:10.0.0.1]:80"] {
        let id = p.create(2);
        assert_eq!(p.bind(id, other), Err(Errno::ADDRINUSE), "{other}");
        assert_eq!(p.bind(id, "127.0.0.1:80"), Ok(()), "another address has its own ports");
        p.destroy(id);
    }
    p.destroy(first);
    let id = p.create(3);
    assert_eq!(p.bind(id, "10.0.0.1:80"), Ok(()));
}

#[test]
fn test_bind_to_port_zero_gets_a_free_port() {
    let mut p = Process::new();
    let ids = [0; 3].map(|_| p.create(1));
    let ports = ids.map(|id| {
        p.bind(id, "0.0.0.0:0").unwrap();
        p.ends(id).src.unwrap().port()
    });
    assert_eq!(ports, [32768, 32769, 32770]);
    p.rnic.random = 61000 - 32768 - 1;
    let ids = [0; 2].map(|_| p.create(1));
    let ports = ids.map(|id| {
        p.bind(id, "10.0.0.1:0").unwrap();
        p.ends(id).src.unwrap().port()
    });
    assert_eq!(ports, [60999, 32771], "the search goes on at the lowest port");
}

/// The RNIC reserves the address when the program binds, and not only when it listens.
#[test]
fn test_bound_address_is_kept_by_the_rnic_for_the_listener() {
    let mut p = Process::new();
    (p.rnic.reserves, p.rnic.taken) = (Some(VecDeque::new()), vec![81]);
    let kept = p.rnic.kept.clone();
    let (id, other) = (p.create(1), p.create(2));
    p.bind(id, "10.0.0.1:80").unwrap();
    assert_eq!(kept.load(Relaxed), 1);
    assert_eq!(p.bind(other, "10.0.0.1:81"), Err(Errno::ADDRINUSE), "of another program");
    assert_eq!(p.bind(other, "10.0.0.1:80"), Err(Errno::ADDRINUSE), "of this one");
    assert_eq!(p.bind(other, "10.0.0.2:82"), Err(Errno::NODEV), "not ours");
    assert_eq!(kept.load(Relaxed), 1);
    p.listen(id, 1).unwrap();
    assert!(p.rnic.listened_at_kept);
    p.destroy(id);
    assert_eq!(kept.load(Relaxed), 0);
    // An id that only connects takes a port of the program's own, without the RNIC.
    p.resolve(other, "10.0.0.2:7").unwrap();
    assert_eq!(kept.load(Relaxed), 0);
}

#[test]
fn test_bind_to_port_zero_avoids_ports_of_rnic_and_program() {
    let mut p = Process::new();
    p.rnic.random = 40_000 - 32_768;
    let connects = p.create(1);
    p.resolve(connects, "10.0.0.2:7").unwrap();
    assert_eq!(p.ends(connects).src.unwrap().port(), 40_000);
    p.rnic.reserves = Some([40_000, 40_001].into());
    let id = p.create(2);
    p.bind(id, "0.0.0.0:0").unwrap();
    assert_eq!(p.ends(id).src.unwrap().port(), 40_001);
    assert_eq!(p.rnic.kept.load(Relaxed), 1, "the other is given back");
    let none = p.create(3);
    assert_eq!(p.bind(none, "0.0.0.0:0"), Err(Errno::ADDRNOTAVAIL));
    // Without an RNIC a program can bind to a wildcard.
    p.rnic.reserves = None;
    p.bind(none, "0.0.0.0:0").unwrap();
}

#[test]
fn test_ids_that_ask_for_reuse_share_a_port_until_one_listens() {
    let mut p = Process::new();
    let reuse = |id| Command::SetOption {
        id,
        level: option::LEVEL_ID,
        name: option::REUSEADDR,
        value: OptionValue::new(&1i32.to_ne_bytes()),
    };
    let (a, b, c) = (p.create(1), p.create(2), p.create(3));
    p.run(reuse(a)).unwrap();
    p.run(reuse(b)).unwrap();
    p.bind(a, "10.0.0.1:80").unwrap();
    p.bind(b, "10.0.0.1:80").unwrap();
    assert_eq!(p.bind(c, "10.0.0.1:80"), Err(Errno::ADDRINUSE));
    assert_eq!(p.listen(a, 1), Err(Errno::ADDRINUSE));
    p.destroy(b);
    p.listen(a, 1).unwrap();
    p.run(reuse(c)).unwrap();
    assert_eq!(p.bind(c, "10.0.0.1:80"), Err(Errno::ADDRINUSE), "one listens there");
    assert_eq!(p.run(reuse(a)), Err(Errno::INVAL));
}

fn only(id: u32) -> Command {
    Command::SetOption {
        id,
        level: option::LEVEL_ID,
        name: option::AFONLY,
        value: OptionValue::new(&1i32.to_ne_bytes()),
    }
}

/// tgtd does this.
#[test]
fn test_program_listens_at_the_wildcards_of_both_families() {
    for order in [["0.0.0.0:80", "[::]:80"], ["[::]:80", "0.0.0.0:80"]] {
        let mut p = Process::new();
        p.rnic.reserves = Some(VecDeque::new());
        for at in order {
            let id = p.create(1);
            p.run(only(id)).unwrap();
            p.bind(id, at).unwrap();
            p.listen(id, 4).unwrap();
            let wildcard = place(at, at.starts_with('['));
            assert_eq!(p.rnic.take(), [Asked::Listen(wildcard, 4)], "{order:?}");
            assert!(p.rnic.listened_at_kept);
        }
        assert_eq!(p.rnic.kept.load(Relaxed), 2);
    }
}

#[test]
fn test_ipv6_wildcard_leaves_ipv4_alone_only_when_told() {
    let mut p = Process::new();
    let (four, six) = (p.create(1), p.create(2));
    p.bind(four, "0.0.0.0:80").unwrap();
    assert_eq!(p.bind(six, "[::]:80"), Err(Errno::ADDRINUSE));
    p.run(only(six)).unwrap();
    assert_eq!(p.bind(six, "[::]:80"), Ok(()));
}

/// The families of a listener may change until it listens; its reservation was for the others.
#[test]
fn test_listener_whose_families_change_gives_its_reservation_back() {
    let mut p = Process::new();
    p.rnic.reserves = Some(VecDeque::new());
    let id = p.create(1);
    p.bind(id, "[::]:80").unwrap();
    assert_eq!(p.rnic.kept.load(Relaxed), 1);
    p.run(only(id)).unwrap();
    assert_eq!(p.rnic.kept.load(Relaxed), 0);
    p.listen(id, 4).unwrap();
    assert_eq!(p.rnic.take(), [Asked::Listen(place("[::]:80", true), 4)]);
    assert!(!p.rnic.listened_at_kept);
    assert_eq!(p.run(only(id)), Err(Errno::INVAL), "it listens");
}

#[test]
fn test_single_addresses_of_both_families_share_a_port() {
    let mut p = Process::new();
    let [four, six, link, any] = [0; 4].map(|_| p.create(1));
    p.bind(four, "10.0.0.1:80").unwrap();
    p.bind(six, "[fd00::1]:80").unwrap();
    p.bind(link, "[fe80::1%3]:80").unwrap();
    assert_eq!(p.bind(any, "[fd00::1%5]:80"), Err(Errno::ADDRINUSE), "the scope means nothing");
    assert_eq!(p.bind(any, "0.0.0.0:80"), Err(Errno::ADDRINUSE));
    assert_eq!(p.ends(six).device, Some(DEVICE));
    assert_eq!(p.ends(link).src, Some(addr("[fe80::1%3]:80")));
}

#[test]
fn test_link_local_address_needs_the_scope_of_its_port() {
    let mut p = Process::new();
    let id = p.create(1);
    assert_eq!(p.bind(id, "[fe80::1]:80"), Err(Errno::INVAL));
    assert_eq!(p.bind(id, "[fe80::1%4]:80"), Err(Errno::NODEV), "a scope of no port");
    assert_eq!(p.bind(id, "[fe80::9%3]:80"), Err(Errno::NODEV));
    p.resolve(id, "[fe80::2%4]:80").unwrap();
    assert_eq!(p.kind(), Some((id, EventKind::AddrError, -libc::ENETUNREACH)));
    p.resolve(id, "[fe80::2%3]:80").unwrap();
    assert_eq!(p.kind(), Some((id, EventKind::AddrResolved, 0)));
    assert_eq!(p.ends(id).src, Some(addr("[fe80::1%3]:32768")));
    // A peer without a scope is on the link of the bound address.
    let bound = p.create(2);
    p.bind(bound, "[fe80::1%3]:81").unwrap();
    p.resolve(bound, "[fe80::2%4]:80").unwrap();
    assert_eq!(p.kind(), Some((bound, EventKind::AddrError, -libc::ENETUNREACH)));
    p.resolve(bound, "[fe80::2]:80").unwrap();
    assert_eq!(p.kind(), Some((bound, EventKind::AddrResolved, 0)));
}

#[test]
fn test_mapped_address_is_ipv4_and_excludes_ipv6_alone() {
    let mut p = Process::new();
    let [mapped, four, six] = [0; 3].map(|_| p.create(1));
    p.bind(mapped, "[::ffff:10.0.0.1]:80").unwrap();
    assert_eq!(p.bind(four, "10.0.0.1:80"), Err(Errno::ADDRINUSE));
    p.resolve(mapped, "[fd00::2]:80").unwrap();
    assert_eq!(p.kind(), Some((mapped, EventKind::AddrError, -libc::ENETUNREACH)));
    p.run(only(six)).unwrap();
    assert_eq!(p.bind(six, "[::ffff:10.0.0.1]:81"), Err(Errno::INVAL));
    assert_eq!(p.bind(six, "[fd00::1]:81"), Ok(()));
    p.resolve(six, "[::ffff:10.0.0.2]:80").unwrap();
    assert_eq!(p.kind(), Some((six, EventKind::AddrError, -libc::ENETUNREACH)));
}

/// A flow label is for datagrams of the caller's own; the RNIC's TCP chooses one.
#[test]
fn test_flow_label_of_an_address_changes_nothing() {
    let mut p = Process::new();
    let id = p.create(1);
    let with_flow = |text: &str| match addr(text) {
        SocketAddr::V6(mut v6) => {
            v6.set_flowinfo(0xfff_ffff);
            SocketAddr::V6(v6)
        }
        other => other,
    };
    p.run(Command::Bind { id, addr: Address::Ip(with_flow("[fd00::1]:80")) }).unwrap();
    let dst = Address::Ip(with_flow("[fd00::2]:90"));
    p.run(Command::ResolveAddr { id, src: Address::None, dst }).unwrap();
    p.run(Command::ResolveRoute { id }).unwrap();
    p.run(Command::Connect { id, param: param("") }).unwrap();
    let (local, remote) = (addr("[fd00::1]:80"), addr("[fd00::2]:90"));
    assert_eq!(p.rnic.take(), [Asked::Connect(Dial { local, remote, param: param("") })]);
}

#[test]
fn test_resolving_gives_source_and_device() {
    let mut p = Process::new();
    let id = p.create(9);
    p.resolve(id, "10.0.0.2:7174").unwrap();
    let event = p.event().unwrap();
    assert_eq!((event.uid, event.id, event.kind), (9, id, EventKind::AddrResolved));
    let ends = p.ends(id);
    assert_eq!(ends.src, Some(addr("10.0.0.1:32768")));
    assert_eq!((ends.dst, ends.device), (Some(addr("10.0.0.2:7174")), Some(DEVICE)));
    assert_eq!(p.resolve(id, "10.0.0.2:7174"), Err(Errno::INVAL), "it is resolved");
    p.run(Command::ResolveRoute { id }).unwrap();
    assert_eq!(p.run(Command::ResolveRoute { id }), Err(Errno::INVAL));
    assert_eq!(p.kind(), Some((id, EventKind::RouteResolved, 0)));
    assert_eq!(p.kind(), None);
}

#[test]
fn test_resolving_fails_by_an_event_and_can_be_tried_again() {
    let mut p = Process::new();
    let id = p.create(9);
    for far in ["192.0.2.1:1", "192.0.2.2:2"] {
        p.resolve(id, far).unwrap();
        assert_eq!(p.kind(), Some((id, EventKind::AddrError, -libc::ENETUNREACH)));
    }
    p.rnic.absent = true;
    p.resolve(id, "10.0.0.2:1").unwrap();
    assert_eq!(p.kind(), Some((id, EventKind::AddrError, -libc::ENODEV)));
    assert_eq!(p.run(Command::ResolveRoute { id }), Err(Errno::INVAL));
    p.rnic.absent = false;
    p.resolve(id, "10.0.0.2:1").unwrap();
    assert_eq!(p.kind(), Some((id, EventKind::AddrResolved, 0)));
}

#[test]
fn test_resolving_keeps_the_family_and_the_bound_address() {
    let mut p = Process::new();
    let (id, other) = (p.create(1), p.create(2));
    p.bind(id, "127.0.0.1:5000").unwrap();
    assert_eq!(p.resolve(id, "[::1]:1"), Err(Errno::INVAL), "another family");
    p.resolve(id, "10.0.0.2:1").unwrap();
    assert_eq!(p.ends(id).src, Some(addr("127.0.0.1:5000")));
    let (src, dst) = (addr("[::ffff:10.0.0.1]:0"), addr("[::ffff:10.0.0.2]:9"));
    let (src, dst) = (Address::Ip(src), Address::Ip(dst));
    p.run(Command::ResolveAddr { id: other, src, dst }).unwrap();
    assert_eq!(p.ends(other).src, Some(addr("[::ffff:10.0.0.1]:32768")));
}

#[test]
fn test_wildcard_as_peer_means_this_host() {
    let mut p = Process::new();
    let id = p.create(1);
    p.resolve(id, "0.0.0.0:7174").unwrap();
    let ends = p.ends(id);
    assert_eq!(ends.dst, Some(addr("127.0.0.1:7174")));
    assert_eq!(ends.src, Some(addr("127.0.0.1:32768")));
    let six = p.create(1);
    p.resolve(six, "[::]:7174").unwrap();
    let ends = p.ends(six);
    assert_eq!((ends.src, ends.dst), (Some(addr("[::1]:32769")), Some(addr("[::1]:7174"))));
}

#[test]
fn test_options_accept_only_values_of_their_own_size() {
    let mut p = Process::new();
    let id = p.create(1);
    let mut set = |level, name, value: &[u8]| {
        p.run(Command::SetOption { id, level, name, value: OptionValue::new(value) })
    };
    let (of_id, of_ib) = (option::LEVEL_ID, option::LEVEL_IB);
    assert_eq!(set(of_id, option::TOS, &[1]), Ok(()));
    assert_eq!(set(of_id, option::TOS, &[1, 0]), Err(Errno::INVAL));
    assert_eq!(set(of_id, option::ACK_TIMEOUT, &[1]), Ok(()));
    assert_eq!(set(of_id, option::REUSEADDR, &[1]), Err(Errno::INVAL));
    assert_eq!(set(of_id, option::AFONLY, &[1; 8]), Err(Errno::INVAL));
    assert_eq!(set(of_id, 99, &[1]), Err(Errno::NOSYS));
    assert_eq!(set(of_ib, option::PATH, &[0; 64]), Err(Errno::INVAL));
    assert_eq!(set(2, 0, &[1]), Err(Errno::NOSYS));
}
