//! Both ends of a connection in one stack, as its owner finds them.

use heddle_base::Seed;

use super::net::{Host, Station};
use super::*;

fn host(seed: u64) -> Host {
    let net = Addressing::inside([A.into()], false);
    Host::new(StackConfig { net, min_backlog: 8, seed: Seed::from_u64(seed), ..config_a() })
}

/// Passes the frames of each host to the other, or to itself, until there are none.
fn settle(hosts: &mut [Host], now: Instant) {
    let last = hosts.len() - 1;
    while let Some((at, frame)) = (0..=last).find_map(|i| Some((i, hosts[i].transmit(now)?))) {
        hosts[last - at].handle(now, &frame);
    }
}

#[test]
fn test_each_end_of_a_connection_of_a_stack_with_itself_is_found_from_the_other() {
    let mut hosts = [host(1)];
    hosts[0].stack.listen(None, PORT, 8).unwrap();
    let ids = [1, 2].map(|at| {
        let active = hosts[0].stack.connect(ms(at), (A, PORT).into(), None).unwrap();
        assert_eq!(hosts[0].stack.other_end(active), None, "there is one end so far");
        settle(&mut hosts, ms(at));
        (active, hosts[0].accepted().unwrap())
    });
    for (active, passive) in ids {
        assert_eq!(hosts[0].stack.other_end(active), Some(passive));
        assert_eq!(hosts[0].stack.other_end(passive), Some(active));
    }
    let (active, passive) = ids[0];
    hosts[0].stack.abort(passive);
    hosts[0].stack.release(passive);
    assert_eq!(hosts[0].stack.other_end(active), None);
    assert_eq!(hosts[0].stack.other_end(passive), None);
}

/// Two stacks have the same address, and each is connected with the other, from the port that the
/// other's connection has.
#[test]
fn test_connections_with_others_from_the_same_ports_are_not_taken_for_two_ends() {
    let mut hosts = [host(1), host(2)];
    for h in &mut hosts {
        h.stack.listen(None, PORT, 8).unwrap();
        h.stack.connect(ms(1), (A, PORT).into(), Some(40_000)).unwrap();
    }
    settle(&mut hosts, ms(1));
    for h in &mut hosts {
        let (active, _) = *h.events.iter().find(|e| e.1 == CONNECTED).unwrap();
        let passive = h.accepted().unwrap();
        let addrs = [active, passive].map(|id| h.stack.local_addr(id).zip(h.stack.remote_addr(id)));
        assert_eq!(addrs[0], addrs[1].map(|(local, remote)| (remote, local)));
        assert_eq!(h.stack.other_end(active), None);
        assert_eq!(h.stack.other_end(passive), None);
    }
}

const CONNECTED: StackEvent = StackEvent::Conn(ConnEvent::Connected);

#[test]
fn test_two_connections_are_had_at_once_if_they_are_two_and_held() {
    let mut h = host(1);
    // Some of these connections share a page of the table, others do not.
    let ids: Vec<_> =
        (0..40).map(|i| h.stack.connect(ms(1), (A, 100 + i).into(), None).unwrap()).collect();
    for (i, a) in ids.iter().enumerate() {
        for (j, b) in ids.iter().enumerate() {
            let both = h.stack.get_both_mut([*a, *b]);
            assert_eq!(both.is_some(), i != j, "{a:?} {b:?}");
            if let Some([(_, first), (_, second)]) = both {
                first.push(&[0; 3]);
                second.push(&[0; 5]);
            }
        }
    }
    for id in &ids {
        assert_eq!(h.stack.user(*id).unwrap().end().0, 39 * 8);
    }
    h.stack.release(ids[3]);
    settle(std::slice::from_mut(&mut h), ms(2));
    assert!(h.stack.get_both_mut([ids[3], ids[4]]).is_none());
    assert!(h.stack.get_both_mut([ids[4], ids[3]]).is_none());
    assert!(h.stack.get_both_mut([ids[4], ids[20]]).is_some());
}
