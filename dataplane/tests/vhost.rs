//! Two ports that a vhost-user socket joins, in ordinary pages. A process of their own: no other test
//! may have registered memory when a front end starts.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "it/common.rs"]
mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::*;
use heddle_base::Sum;
use heddle_dataplane::{
    Mbuf, Offloads, Port, PortConfig, QueueSpread, RxQueue, TxOffload, TxQueue, VHOST_BUFFERS,
};
use heddle_tcp::{RxChecksum, RxFrame};

/// Returns the right to have sockets.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const PAYLOAD: usize = 1000;

/// Returns a frame of `segments` TCP segments that leaves its checksum, and the cutting, to the port.
fn train(pool: heddle_dataplane::Mempool, segments: usize) -> Mbuf {
    let total = 40 + PAYLOAD * segments;
    let mut h = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    h.extend((total as u16).to_be_bytes());
    h.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 99, 0, 1, 10, 99, 0, 2]);
    h.extend([0x1b, 0x58, 0x1c, 0x06, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let ip_sum = Sum::of(&h[14..34]).complement();
    h[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    let mut m = frame(pool, &h);
    for i in 0..segments {
        m.chain(frame(pool, &bytes(i as u8, PAYLOAD))).unwrap();
    }
    m.set_tx_offload(TxOffload {
        l2_len: 14,
        l3_len: 20,
        l4_len: 20,
        tcp_checksum: true,
        segment: PAYLOAD as u16,
        ..TxOffload::default()
    });
    m
}

fn exchange(tx: &mut TxQueue, rx: &mut RxQueue, m: Mbuf) -> Mbuf {
    let (mut burst, mut got) = (Burst::new(), Burst::new());
    burst.push(m);
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        tx.burst(&mut burst);
        rx.burst(&mut got);
        if let Some(m) = got.pop() {
            return m;
        }
        assert!(Instant::now() < end, "nothing arrives: {:?}", tx.counters());
    }
}

/// Returns the names of sockets' directories that this process has left.
fn left() -> usize {
    let prefix = format!("heddle-vhost-{}-", std::process::id());
    let all = std::fs::read_dir(std::env::temp_dir()).unwrap();
    all.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with(&prefix)).count()
}

/// Both ways, until buffers of either pool have been through every descriptor.
#[test]
fn test_trains_pass_vhost_pair_whole_and_ports_close_in_any_order() {
    let _turn = turn();
    for (name, front_first) in [("vhost-a", true), ("vhost-b", false)] {
        let pools = [pool(4095), pool(4095)];
        let [a, b] = pools.map(PortConfig::new);
        let (mut back, mut front) = Port::vhost_pair(&eal(), name, &a, &b).unwrap();
        assert_eq!(left(), 0, "the ports are connected and need the socket's file no more");
        for port in [&back, &front] {
            assert!(port.link().up);
            assert!(port.caps().tso && port.caps().lro && port.caps().rx_tcp_checksum, "{port}");
            assert_eq!((port.plan().cuts, port.spread()), (32, &QueueSpread::Single));
        }
        assert!(!back.plan().reads_own_memory && front.plan().reads_own_memory);
        let (mut back_rx, mut back_tx) = back.take_queues().remove(0);
        let (mut front_rx, mut front_tx) = front.take_queues().remove(0);
        for n in 0..200 {
            let segments = 1 + n % 32;
            let sent = train(pools[0], segments);
            let want = content(&sent);
            let got = exchange(&mut back_tx, &mut front_rx, sent);
            assert!(content(&got)[54..] == want[54..], "{segments} segments to the front end");
            assert_eq!(got.checksum(), RxChecksum::Good);
            assert!(usize::from(got.segments()) <= 1 + segments, "{} buffers", got.segments());
            let got = exchange(&mut front_tx, &mut back_rx, train(pools[1], segments));
            assert!(content(&got)[54..] == want[54..], "{segments} segments to the back end");
            assert_eq!(got.checksum(), RxChecksum::Good);
        }
        let queues = (back_rx, back_tx, front_rx, front_tx);
        if front_first {
            drop((queues.2, queues.3, front));
            drop((queues.0, queues.1, back));
        } else {
            drop((queues.0, queues.1, back));
            drop((queues.2, queues.3, front));
        }
        for (n, pool) in pools.iter().enumerate() {
            assert_eq!(pool.in_use(), 0, "the ports gave every buffer of pool {n} back");
        }
    }
}

#[test]
fn test_vhost_pair_carries_no_train_that_an_end_does_not_allow() {
    let _turn = turn();
    let off = Offloads::NONE;
    for (n, a, b) in [(0, off, Offloads::default()), (1, Offloads::default(), off)] {
        let config = |offloads| PortConfig { offloads, ..PortConfig::new(pool(2047)) };
        let name = format!("vhost-off{n}");
        let (back, front) = Port::vhost_pair(&eal(), &name, &config(a), &config(b)).unwrap();
        // Each end cuts if it may leave frames whole and the other one takes them.
        assert!(!back.caps().tso && !front.caps().tso, "{a:?} {b:?}");
        assert_eq!((back.caps().lro, front.caps().lro), (n == 1, n == 0));
    }
}

#[test]
fn test_vhost_pair_refuses_unequal_queues_and_pools_that_its_descriptors_empty() {
    let _turn = turn();
    let opened = |a: &PortConfig, b: &PortConfig| {
        Port::vhost_pair(&eal(), "vhost-no", a, b).unwrap_err().to_string()
    };
    let (large, small) = (pool(2047), pool(VHOST_BUFFERS));
    let one = PortConfig::new(large);
    let two = PortConfig { pools: vec![large; 2], ..one.clone() };
    assert!(opened(&one, &two).contains("as many queues"));
    let e = opened(&one, &PortConfig::new(small));
    assert!(e.contains("packet buffers") && e.contains("at least"), "{e}");
    assert_eq!(left(), 0);
}
