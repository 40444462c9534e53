//! A driver of real NICs, `net_virtio`, against `net_vhost` in the same process.
//!
//! The two drivers share memory, so the test needs hugepages: otherwise it reports this and passes.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "it/common.rs"]
mod common;

use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use common::*;
use heddle_base::Sum;
use heddle_dataplane::*;
use heddle_dpdk_sys as sys;
use heddle_tcp::{RxChecksum, RxFrame};

fn open_with(eal: &Eal, vdev: &str, config: &PortConfig) -> (Port, Vec<(RxQueue, TxQueue)>) {
    let mut port = Port::open(eal, &PortSource::Vdev(vdev.parse().unwrap()), config).unwrap();
    let queues = port.take_queues();
    (port, queues)
}

fn pseudo_header(frame: &[u8], len: usize) -> Vec<u8> {
    let mut p = frame[26..34].to_vec();
    p.extend([0, 6]);
    p.extend((len as u16).to_be_bytes());
    p
}

/// Returns a segment of `pieces` mbufs that leaves its TCP checksum to the port.
fn segment(pool: Mempool, pieces: usize) -> Mbuf {
    let total = 20 + 20 + 100 * pieces;
    let mut h = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    h.extend((total as u16).to_be_bytes());
    h.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 99, 0, 1, 10, 99, 0, 2]);
    h.extend([0x1b, 0x58, 0x1c, 0x06, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let ip_sum = Sum::of(&h[14..34]).complement();
    h[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    let sum = !Sum::of(&pseudo_header(&h, total - 20)).complement();
    h[50..52].copy_from_slice(&sum.to_be_bytes());
    h.extend(bytes(1, 100));
    let mut m = frame(pool, &h);
    for i in 1..pieces {
        m.chain(frame(pool, &bytes(i as u8, 100))).unwrap();
    }
    m.set_tx_offload(TxOffload {
        l2_len: 14,
        l3_len: 20,
        l4_len: 20,
        tcp_checksum: true,
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

/// Acts as a driver that refuses frames whose payload ends in 0xee.
unsafe extern "C" fn picky(_: *mut c_void, frames: *mut *mut sys::rte_mbuf, n: u16) -> u16 {
    for i in 0..n {
        // SAFETY: called with `n` frames, which stay the caller's.
        let m = unsafe { Mbuf::from_raw(NonNull::new(*frames.add(usize::from(i))).unwrap()) };
        let last = content(&m).last().copied();
        let _ = m.into_raw();
        if last == Some(0xee) {
            return i;
        }
    }
    n
}

#[test]
fn test_virtio_computes_checksums_and_says_what_it_checked() {
    let config = EalConfig {
        hugepages: Hugepages::Require,
        memory_mb: 128,
        shares_memory: true,
        ..EalConfig::default()
    };
    let eal = match Eal::init(&config) {
        Ok(eal) => eal,
        Err(e) => {
            assert!(matches!(e, EalError::TooFewHugepages { .. }), "{e}");
            eprintln!("skipped: {e}");
            return;
        }
    };
    let pool = Mempool::new(&eal, &MempoolConfig::for_mtu(4095, 1500)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    let host = format!("net_vhost0,iface={},queues=1", path.display());
    let guest = format!("net_virtio_user0,path={},queues=1", path.display());
    let config = PortConfig { rx_desc: 256, tx_desc: 256, ..PortConfig::new(pool) };
    let (a, mut qa) = open_with(&eal, &host, &config);
    let (b, mut qb) = open_with(&eal, &guest, &config);
    assert!(b.wait_link(Duration::from_secs(5)).up && a.wait_link(Duration::from_secs(5)).up);
    // The host's end came up when the test opened the guest's.
    assert!(a.poll_link().is_some_and(|l| l.up));
    assert_eq!(a.poll_link(), None);
    assert!(b.caps().tx_tcp_checksum && b.caps().multi_segs);
    let ((mut host_rx, mut host_tx), (mut rx, mut tx)) = (qa.remove(0), qb.remove(0));

    // The frame comes from a machine on the same host: there is no checksum, and the frame is
    // whole.
    let m = exchange(&mut host_tx, &mut rx, segment(pool, 1));
    let f = content(&m);
    let mut tcp = pseudo_header(&f, f.len() - 34);
    tcp.extend(&f[34..]);
    assert!(!Sum::of(&tcp).is_valid(), "the field holds the sum of the pseudo-header");
    assert_eq!(m.checksum(), RxChecksum::Good);

    // Chains go the other way, past the driver's own check.
    let sent = segment(pool, 3);
    let want = content(&sent);
    let m = exchange(&mut tx, &mut host_rx, sent);
    assert_eq!(content(&m)[54..], want[54..]);
    assert_eq!((tx.counters().tx_linearized, tx.counters().tx_prepare_drops), (0, 0));

    // The queue drops and counts a frame that the driver refuses, and such a frame blocks nothing.
    // SAFETY: DPDK's table of this port, which no other thread uses.
    unsafe {
        let ops = (&raw mut sys::rte_eth_fp_ops).cast::<sys::rte_eth_fp_ops>();
        (*ops.add(usize::from(tx.port_id()))).tx_pkt_prepare = Some(picky);
    }
    let mut burst = Burst::new();
    for last in [1, 0xee, 2, 0xee, 0xee, 3, 0xee] {
        let mut m = segment(pool, 1);
        m.append(1).unwrap().fill(last);
        burst.push(m);
    }
    assert_eq!(tx.burst(&mut burst), 3);
    assert!(burst.is_empty());
    assert_eq!((tx.counters().tx_prepare_drops, tx.counters().tx_frames), (4, 4));
    let (mut got, end) = (Burst::new(), Instant::now() + Duration::from_secs(5));
    while got.len() < 3 {
        host_rx.burst(&mut got);
        assert!(Instant::now() < end, "{} came", got.len());
    }
    let last: Vec<_> = got.iter().map(|m| *content(m).last().unwrap()).collect();
    assert_eq!(last, [1, 2, 3]);
    drop((host_rx, host_tx, rx, tx, a, b));

    // All memory is there from the start: what does not fit is an error at once, and no new page
    // that the front end would have to announce.
    let config = PortConfig::new(pool);
    let (mut back, mut front) = Port::vhost_pair(&eal, "huge", &config, &config).unwrap();
    assert!(back.caps().tso && back.caps().lro && front.caps().tso && front.caps().lro);
    assert!(Mempool::new(&eal, &MempoolConfig::for_mtu(1 << 17, 1500)).is_err());
    let sent = segment(pool, 3);
    let want = content(&sent);
    let (mut tx, mut rx) = (back.take_queues().remove(0).1, front.take_queues().remove(0).0);
    assert_eq!(content(&exchange(&mut tx, &mut rx, sent))[54..], want[54..]);
}
