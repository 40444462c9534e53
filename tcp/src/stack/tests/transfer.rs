//! Whole connections between two stacks.

use core::time::Duration;

use super::net::Faults;
use super::*;

const MINUTES: Duration = Duration::from_secs(600);

/// Returns bytes that differ by place, so that a misplaced byte shows.
pub(super) fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ salt).collect()
}

type Pair = Net<Host, Host>;

pub(super) fn pair(seed: u64, faults: Faults) -> Pair {
    let mut n = Net::new(Host::new(config_a()), Host::new(config_b()), seed);
    n.faults = faults;
    n.b.stack.listen(None, PORT, 8).unwrap();
    n
}

pub(super) fn connect(n: &mut Pair) -> (ConnId, ConnId) {
    let a = n.a.stack.connect(n.now, b_addr(), None).unwrap();
    n.run("connect", MINUTES, |n| n.a.says(a, ConnEvent::Connected) && n.b.accepted().is_some());
    let b = n.b.accepted().unwrap();
    assert_eq!(n.a.stack.local_addr(a), n.b.stack.remote_addr(b));
    assert_eq!(n.a.stack.remote_addr(a), n.b.stack.local_addr(b));
    (a, b)
}

/// Closes both ends, and checks that nothing is left in the end.
fn close(n: &mut Pair, a: ConnId, b: ConnId) {
    n.a.stack.close(a);
    n.run("first FIN", MINUTES, |n| n.b.says(b, ConnEvent::PeerClosed));
    n.b.stack.close(b);
    n.run("both FINs", MINUTES, |n| {
        n.a.says(a, ConnEvent::Closed) && n.b.says(b, ConnEvent::Closed)
    });
    n.a.stack.release(a);
    n.b.stack.release(b);
    assert!(n.a.stack.conn(a).is_none() && n.b.stack.conn(b).is_none());
    n.run("TIME-WAIT", MINUTES, |n| n.a.stack.connections() == 0 && n.b.stack.connections() == 0);
    assert_eq!(n.a.stack.timers.len() + n.b.stack.timers.len(), 0);
}

fn transfer(seed: u64, len: usize, faults: Faults) -> Pair {
    let mut n = pair(seed, faults);
    let (a, b) = connect(&mut n);
    let (to_b, to_a) = (pattern(len, 1), pattern(len, 2));
    n.a.send(a, &to_b);
    n.b.send(b, &to_a);
    n.run("transfer", MINUTES, |n| n.b.got(b).len() == len && n.a.got(a).len() == len);
    assert!(n.b.got(b) == to_b && n.a.got(a) == to_a, "seed {seed}: wrong bytes");
    close(&mut n, a, b);
    n
}

#[test]
fn test_transfer_in_both_directions_completes_without_faults() {
    let n = transfer(1, 1 << 20, Faults::default());
    // TIME-WAIT took its time: nothing else in this run took as long.
    assert!(n.now >= ms(60_000), "{:?}", n.now);
    assert_eq!(n.a.retransmitted + n.b.retransmitted, 0);
    n.a.stack.counters().for_each(|name, _, v| {
        assert!(v == 0 || !name.starts_with("rx_bad"), "{name} {v}");
    });
}

#[test]
fn test_transfer_in_both_directions_completes_with_faults() {
    for seed in 1..=6 {
        let faults = Faults { loss: 0.02, reorder: 0.1, duplicate: 0.02 };
        let n = transfer(seed, 200_000, faults);
        assert!(n.a.retransmitted + n.b.retransmitted > 0, "seed {seed}");
    }
}

#[test]
fn test_transfer_in_both_directions_completes_with_heavy_loss() {
    let n = transfer(7, 20_000, Faults { loss: 0.2, ..Faults::default() });
    assert!(n.a.retransmitted + n.b.retransmitted > 0);
}

#[test]
fn test_same_seed_sends_the_same_frames() {
    let faults = Faults { loss: 0.05, reorder: 0.2, duplicate: 0.05 };
    let run = |seed| {
        let n = transfer(seed, 50_000, faults);
        (n.sent, n.now, *n.a.stack.counters())
    };
    assert_eq!(run(3), run(3));
}

#[test]
fn test_many_connections_get_their_turns() {
    let mut n = pair(1, Faults::default());
    let ids: Vec<ConnId> =
        (0..20).map(|_| n.a.stack.connect(n.now, b_addr(), None).unwrap()).collect();
    n.run("connect", MINUTES, |n| n.b.events.len() == 8 || n.b.stack.counters().accepted == 20);
    n.run("connect all", MINUTES, |n| n.b.stack.counters().accepted == 20);
    // A first transfer opens the congestion windows beyond a turn.
    let data = pattern(200_000, 3);
    for &id in &ids {
        n.a.send(id, &data);
    }
    n.run("transfer", MINUTES, |n| {
        n.b.received.len() == 20 && n.b.received.keys().all(|&id| n.b.got(id).len() == 200_000)
    });
    assert!(n.b.received.values().all(|v| *v == data));
    n.run("acknowledged", MINUTES, |n| {
        ids.iter().all(|&id| n.a.stack.conn(id).unwrap().snd_una() == StreamPos(200_000))
    });
    for &id in &ids {
        n.a.send(id, &data);
    }
    // No connection sends more than a turn before the next, and each has more than a turn to send.
    let mut order = Vec::new();
    while let Some(f) = n.a.stack.poll_transmit(n.now) {
        if let TxBody::Stream { conn, .. } = f.body {
            order.push(conn);
        }
    }
    let first_round: Vec<usize> =
        order.chunk_by(|x, y| x == y).take(20).map(<[ConnId]>::len).collect();
    assert_eq!(first_round, [16; 20]);
    assert!(order.len() > 20 * 16);
    assert!(ids.iter().all(|id| order[..20 * 16].contains(id)));
}

#[test]
fn test_abort_resets_the_peer_and_frees_the_slot() {
    let mut n = pair(1, Faults::default());
    let (a, b) = connect(&mut n);
    n.a.stack.abort(a);
    n.run("reset", MINUTES, |n| n.b.says(b, ConnEvent::Reset));
    assert!(n.a.says(a, ConnEvent::Aborted));
    n.a.stack.release(a);
    n.b.stack.release(b);
    assert_eq!((n.a.stack.connections(), n.b.stack.connections()), (0, 0));
}

#[test]
fn test_release_of_a_live_connection_aborts_it() {
    let mut n = pair(1, Faults::default());
    let (a, b) = connect(&mut n);
    n.a.send(a, &pattern(100_000, 1));
    n.a.stack.release(a);
    assert!(n.a.stack.user(a).is_none());
    n.run("reset", MINUTES, |n| n.b.says(b, ConnEvent::Reset));
    assert_eq!(n.a.stack.connections(), 0);
}

#[test]
fn test_time_wait_is_replaced_by_a_new_connection_of_the_same_peer() {
    let mut n = pair(1, Faults::default());
    let a = n.a.stack.connect(n.now, b_addr(), Some(1234)).unwrap();
    n.run("connect", MINUTES, |n| n.b.accepted().is_some() && n.a.says(a, ConnEvent::Connected));
    let b = n.b.accepted().unwrap();
    // B closes first, so that TIME-WAIT is B's.
    n.b.stack.close(b);
    n.run("FIN of B", MINUTES, |n| n.a.says(a, ConnEvent::PeerClosed));
    n.a.stack.close(a);
    n.run("closed", MINUTES, |n| n.b.says(b, ConnEvent::Closed) && n.a.says(a, ConnEvent::Closed));
    n.a.stack.release(a);
    assert_eq!(n.a.stack.connections(), 0);
    assert_eq!(n.b.stack.conn(b).unwrap().state(), State::TimeWait);
    n.now = n.now + Duration::from_millis(10);
    let again = n.a.stack.connect(n.now, b_addr(), Some(1234)).unwrap();
    n.run("again", MINUTES, |n| n.a.says(again, ConnEvent::Connected));
    n.run("accepted", MINUTES, |n| n.b.accepted() != Some(b));
    assert_eq!(n.b.stack.counters().time_wait_reused, 1);
    // The owner still has the old connection, until it releases it.
    assert!(n.b.stack.conn(b).is_some());
    n.b.stack.release(b);
    assert_eq!(n.b.stack.connections(), 1);
}
