//! Ports of several queues: the queue to which a frame comes, as far as it is known.
//!
//! Devices of the kernel need root; their tests are ignored, by name.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::time::{Duration, Instant};

use crate::common::*;
use heddle_dataplane::*;

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(n: usize, steered: bool) -> PortConfig {
    let pools: Vec<_> = (0..n).map(|_| pool(2047)).collect();
    PortConfig { steered, pools: pools.clone(), ..PortConfig::new(pools[0]) }
}

fn open_with(vdev: &str, config: &PortConfig) -> Result<Port, PortError> {
    Port::open(&eal(), &PortSource::Vdev(vdev.parse().unwrap()), config)
}

/// Sends `n` flows of a few frames each through the queues of `from`, a flow always through the
/// same queue, and returns at which queue of `to` each of them arrived.
fn flows(
    from: &mut [(RxQueue, TxQueue)],
    to: &mut [(RxQueue, TxQueue)],
    pool: Mempool,
    n: u16,
) -> Vec<Vec<usize>> {
    let mut seen = vec![Vec::new(); usize::from(n)];
    for round in 1..=3 {
        for flow in 0..n {
            let mut burst = Burst::new();
            burst.push(tcp(pool, [0xff; 6], 40_000 + flow));
            let end = Instant::now() + PATIENCE;
            while from[usize::from(flow) % from.len()].1.burst(&mut burst) == 0 {
                assert!(Instant::now() < end, "flow {flow} is not taken");
            }
        }
        // Wait for all sent frames, and then a while for frames that should not come.
        let (late, mut end) = (Instant::now() + PATIENCE, None);
        while Instant::now() < end.unwrap_or(late) {
            if end.is_none() && seen.iter().all(|at| at.len() >= round) {
                end = Some(Instant::now() + Duration::from_millis(100));
            }
            for (q, (rx, _)) in to.iter_mut().enumerate() {
                let mut got = Burst::new();
                rx.burst(&mut got);
                for f in got.iter().map(content) {
                    if f.len() >= 74 && f[26..34] == [10, 98, 0, 1, 10, 98, 0, 2] {
                        let flow = u16::from_be_bytes([f[34], f[35]]) - 40_000;
                        seen[usize::from(flow)].push(q);
                    }
                }
            }
        }
    }
    seen
}

#[test]
fn test_port_with_one_queue_has_single_spread() {
    let pool = pool(1023);
    let (port, ..) = open("net_null40", pool).unwrap();
    assert_eq!(*port.spread(), QueueSpread::Single);
    let one = config(1, false);
    let (a, b) = Port::ring_pair(&eal(), "spread1", 64, &one, &one).unwrap();
    assert_eq!((a.spread(), b.spread()), (&QueueSpread::Single, &QueueSpread::Single));
}

#[test]
fn test_rings_join_queue_to_queue() {
    let two = config(2, false);
    let (mut a, mut b) = Port::ring_pair(&eal(), "spread2", 256, &two, &two).unwrap();
    assert_eq!((a.spread(), b.spread()), (&QueueSpread::Joined, &QueueSpread::Joined));
    let (mut a, mut b) = (a.take_queues(), b.take_queues());
    for (flow, at) in flows(&mut a, &mut b, two.pools[0], 8).into_iter().enumerate() {
        assert_eq!(at, [flow % 2; 3]);
    }
}

/// `net_null` has RSS types, and no table (DPDK 22.11) or a table that means nothing (24.11): the port
/// reports more queues than the device can feed.
#[test]
fn test_queues_that_cannot_be_fed_by_flow_are_refused_or_steered() {
    let e = open_with("net_null41", &config(2, false)).unwrap_err();
    assert!(matches!(e, PortError::Spread { queues: 2, .. }), "{e}");
    assert!(
        e.to_string().contains("net_null41") && e.to_string().contains("hand frames on"),
        "{e}"
    );
    let port = open_with("net_null41", &config(2, true)).unwrap();
    assert_eq!(*port.spread(), QueueSpread::Unknown);
}

#[test]
fn test_memif_has_several_queues() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("m");
    let arg = |n: u8, role: &str| {
        let socket = socket.display();
        format!("net_memif{n},role={role},id=0,socket={socket},socket-abstract=no")
    };
    let two = config(2, true);
    let mut a = open_with(&arg(40, "server"), &two).unwrap();
    let mut b = open_with(&arg(41, "client"), &two).unwrap();
    assert_eq!((a.spread(), b.spread()), (&QueueSpread::Unknown, &QueueSpread::Unknown));
    let end = Instant::now() + PATIENCE;
    while !(a.link().up && b.link().up) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut qa, mut qb) = (a.take_queues(), b.take_queues());
    for (flow, at) in flows(&mut qb, &mut qa, two.pools[0], 8).into_iter().enumerate() {
        assert_eq!(at, [flow % 2; 3], "both ends are ours");
    }
    drop((qb, b));
    while a.link().up && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[ignore = "needs root: makes a veth pair"]
fn test_af_packet_has_several_queues() {
    let veth = Veth::new("hdlq", 1500);
    let mut a = open_with(&format!("net_af_packet40,iface={}", veth.0), &config(2, true)).unwrap();
    let two = config(2, true);
    let mut b = open_with(&format!("net_af_packet41,iface={}", veth.1), &two).unwrap();
    assert_eq!((a.spread(), b.spread()), (&QueueSpread::Unknown, &QueueSpread::Unknown));
    let (mut qa, mut qb) = (a.take_queues(), b.take_queues());
    let seen = flows(&mut qb, &mut qa, two.pools[0], 32);
    for at in &seen {
        assert_eq!(at.len(), 3, "{seen:?}");
    }
    let used: std::collections::BTreeSet<_> = seen.iter().flatten().collect();
    assert_eq!(used.len(), 2, "{seen:?}");
    let e = open_with(&format!("net_af_packet42,iface={}", veth.0), &config(2, false)).unwrap_err();
    assert!(matches!(e, PortError::Spread { queues: 2, .. }), "{e}");
    // Frames longer than the interface takes would be lost without a report.
    let pool = Mempool::new(&eal(), &MempoolConfig::for_mtu(255, 9000)).unwrap();
    let long = PortConfig { mtu: 9000, ..PortConfig::new(pool) };
    let e = open_with(&format!("net_af_packet43,iface={}", veth.0), &long).unwrap_err();
    assert!(matches!(e, PortError::Limit { wanted: 9000, max: 1500, .. }), "{e}");
}

#[test]
#[ignore = "needs root: makes a tap interface"]
fn test_tap_has_several_queues() {
    let two = config(2, true);
    let mut a = open_with("net_tap40,iface=hdlqt", &two).unwrap();
    up_and_quiet("hdlqt");
    assert_eq!(*a.spread(), QueueSpread::Unknown);
    let mut b = open_with("net_af_packet44,iface=hdlqt", &config(1, false)).unwrap();
    let (mut qa, mut qb) = (a.take_queues(), b.take_queues());
    let seen = flows(&mut qb, &mut qa, two.pools[0], 32);
    for at in &seen {
        assert_eq!(at.len(), 3, "{seen:?}");
    }
    let used: std::collections::BTreeSet<_> = seen.iter().flatten().collect();
    assert_eq!(used.len(), 2, "{seen:?}");
}
