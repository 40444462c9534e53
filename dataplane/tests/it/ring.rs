//! Pairs of rings: external buffers cross without a copy and their counts come back.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::*;
use heddle_base::Chunks;
use heddle_dataplane::*;

/// Returns header, payload in registered memory, trailer: the shape of a sent FPDU.
fn fpdu(pool: Mempool, memory: &Memory, off: usize, len: u16) -> Mbuf {
    let mut m = frame(pool, &bytes(1, 66));
    m.chain(memory.external(pool, off, len).unwrap()).unwrap();
    m.chain(frame(pool, &[9; 4])).unwrap();
    m
}

fn pair(name: &str, pool: Mempool) -> ((RxQueue, TxQueue), (RxQueue, TxQueue)) {
    let config = PortConfig::new(pool);
    let (mut a, mut b) = Port::ring_pair(&eal(), name, 64, &config, &config).unwrap();
    (a.take_queues().pop().unwrap(), b.take_queues().pop().unwrap())
}

#[test]
fn test_external_frames_cross_as_sent_and_are_released() {
    let pool = pool(1023);
    let memory = Memory::new(1 << 20);
    let data = bytes(7, 1 << 20);
    memory.place(0, &data);
    {
        let ((_, mut tx), (mut rx, _)) = pair("ext", pool);
        assert!(tx.supports_multi_segs());
        let mut burst = Burst::new();
        for i in 0..20 {
            burst.push(fpdu(pool, &memory, i * 1442 + 3, 1442));
        }
        assert!(burst.iter().all(|m| m.check().is_none()), "{:?}", burst[0].check());
        assert_eq!(memory.references(), 20);
        assert_eq!(pool.in_use(), 60);
        assert_eq!(tx.burst(&mut burst), 20);
        assert!(burst.is_empty());

        let mut got = Burst::new();
        assert_eq!(rx.burst_as_sent(&mut got), 20);
        for (i, m) in got.iter().enumerate() {
            assert_eq!((m.pkt_len(), m.data_len(), m.segments()), (66 + 1442 + 4, 66, 3));
            let pieces: Vec<_> = m.pieces().collect();
            assert_eq!(pieces[1].0, memory.region.ptr(i * 1442 + 3, 1442).unwrap().cast_const());
            assert_eq!((pieces[0].2, pieces[1].2, pieces[2].2), (false, true, false));
            assert_eq!(m.chunk_at(0), bytes(1, 66));
            let mut payload = vec![0; 1442];
            assert_eq!(m.copy_at(66, &mut payload), 1442);
            assert_eq!(payload, &data[i * 1442 + 3..][..1442]);
            assert_eq!(m.copy_at(70, &mut payload), 1442);
            assert_eq!(payload[..1438], data[i * 1442 + 7..][..1438]);
            // No slice shows memory that others may write, and neither does a chunk beside it.
            assert_eq!((m.chunk_at(66), m.chunk_at(1000)), (&b""[..], &b""[..]));
            let mut shown = 0;
            m.for_each_chunk(0, m.pkt_len(), |piece| shown += piece.len());
            assert_eq!(shown, 66);
            assert_eq!(heddle_tcp::RxFrame::sum(m, 34, m.pkt_len() - 34), None);
            assert_eq!(m.chunk_at(66 + 1442), [9; 4]);
            assert_eq!(m.chunk_at(66 + 1442 + 4), b"");
        }
        assert_eq!(memory.references(), 20);
        got.pop();
        assert_eq!(memory.references(), 19);
        Mbuf::free_bulk(&mut got);
        assert_eq!((memory.references(), pool.in_use()), (0, 0));
    }
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn test_received_frames_belong_to_receiver() {
    let (near, far) = (pool(1023), pool(1023));
    let config = [near, far].map(PortConfig::new);
    let (mut a, mut b) = Port::ring_pair(&eal(), "own", 64, &config[0], &config[1]).unwrap();
    let ((_, mut tx), (mut rx, _)) = (a.take_queues().remove(0), b.take_queues().remove(0));
    let memory = Memory::new(1 << 20);
    let old = bytes(7, 1 << 20);
    memory.place(0, &old);
    let mut burst = Burst::new();
    let mut want = Vec::new();
    for i in 0..20 {
        // Use payloads of one and of several buffers, and frames without payload between them.
        let m = match i % 3 {
            0 => frame(near, &bytes(i as u8, 60)),
            1 => fpdu(near, &memory, i * 1442 + 3, 1442),
            _ => fpdu(near, &memory, i * 1442 + 3, 9001),
        };
        want.push(content(&m));
        burst.push(m);
    }
    assert_eq!(tx.burst(&mut burst), 20);
    let mut got = Burst::new();
    assert_eq!(rx.burst(&mut got), 20);
    // The sender has its memory back, and changes it.
    assert_eq!(memory.references(), 0);
    memory.place(0, &bytes(99, 1 << 20));
    for (m, want) in got.iter().zip(&want) {
        assert!(!m.has_external());
        assert_eq!(m.check(), None);
        let mut seen = Vec::new();
        m.for_each_chunk(0, m.len(), |piece| seen.extend_from_slice(piece));
        assert_eq!(&seen, want);
        assert_eq!(m.segments() > 1, want.len() > 2048);
    }
    let copied: usize = want.iter().map(Vec::len).filter(|&n| n != 60).sum();
    let c = *rx.counters();
    assert_eq!((c.rx_frames, c.rx_copied_frames, c.rx_copy_drops), (20, 13, 0));
    assert_eq!(c.rx_copied_frame_bytes, copied as u64);
    got.clear();
    drop((tx, rx, a, b));
    assert_eq!((near.in_use(), far.in_use()), (0, 0));
}

#[test]
fn test_a_frame_that_cannot_be_copied_is_dropped_and_counted() {
    let (near, far) = (pool(1023), pool(31));
    let config = [near, far].map(PortConfig::new);
    let (mut a, mut b) = Port::ring_pair(&eal(), "drop", 64, &config[0], &config[1]).unwrap();
    let ((_, mut tx), (mut rx, _)) = (a.take_queues().remove(0), b.take_queues().remove(0));
    let memory = Memory::new(8192);
    let mut taken = arrayvec::ArrayVec::<Mbuf, 32>::new();
    while let Some(m) = far.alloc() {
        taken.push(m);
    }
    let mut burst = Burst::new();
    burst.push(fpdu(near, &memory, 0, 1000));
    burst.push(frame(near, &[1; 60]));
    burst.push(fpdu(near, &memory, 0, 1000));
    assert_eq!(tx.burst(&mut burst), 3);
    assert_eq!(rx.burst(&mut burst), 1, "what needs no copy comes through");
    assert_eq!(burst[0].data(), [1; 60]);
    let c = rx.counters();
    assert_eq!((c.rx_frames, c.rx_copied_frames, c.rx_copy_drops), (3, 0, 2));
    assert_eq!((memory.references(), near.in_use()), (0, 1));
}

#[test]
fn test_full_ring_leaves_frames_with_the_caller_in_order() {
    let pool = pool(1023);
    let ((_, mut tx), (mut rx, _)) = pair("full", pool);
    let mut sent = 0u8;
    let mut burst = Burst::new();
    loop {
        while !burst.is_full() {
            burst.push(frame(pool, &[sent; 60]));
            sent += 1;
        }
        tx.burst(&mut burst);
        if !burst.is_empty() {
            break;
        }
    }
    let left = burst.len();
    let taken = usize::from(sent) - left;
    assert!(taken >= 64);
    assert_eq!(burst[0].data()[0] as usize, taken, "the first left is the first not taken");
    assert_eq!(tx.counters().tx_frames as usize, taken);
    assert_eq!(tx.counters().tx_refused as usize, left);
    let mut got = Burst::new();
    let mut expect = 0u8;
    while rx.burst(&mut got) > 0 {
        for m in got.drain(..) {
            assert_eq!(m.data()[0], expect);
            expect += 1;
        }
    }
    assert_eq!(usize::from(expect), taken);
    assert_eq!(rx.counters().rx_frames as usize, taken);
    assert_eq!(pool.in_use() as usize, left);
    drop(burst);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn test_frames_left_in_a_ring_are_freed_with_the_ports() {
    let pool = pool(1023);
    let memory = Memory::new(8192);
    let ((_, mut tx), far) = pair("left", pool);
    let mut burst = Burst::new();
    burst.push(fpdu(pool, &memory, 0, 1000));
    assert_eq!(tx.burst(&mut burst), 1);
    drop(tx);
    assert_eq!((memory.references(), pool.in_use()), (1, 3));
    drop(far);
    assert_eq!((memory.references(), pool.in_use()), (0, 0));
    // The name is free again.
    drop(pair("left", pool));
}

#[test]
fn test_linearize_copies_when_asked() {
    let pool = pool(1023);
    let memory = Memory::new(1 << 20);
    memory.place(0, &bytes(5, 4096));
    let ((_, mut tx), (mut rx, _)) = pair("lin", pool);
    tx.set_linearize(true);
    let mut burst = Burst::new();
    let mut want = Vec::new();
    for _ in 0..3 {
        burst.push(fpdu(pool, &memory, 10, 1400));
    }
    // There is no room after the first segment, so the queue takes a fresh buffer.
    let mut external_first = memory.external(pool, 0, 1000).unwrap();
    external_first.chain(frame(pool, &[1; 10])).unwrap();
    burst.push(external_first);
    // No single buffer can hold this frame: the queue drops and counts it.
    let mut big = memory.external(pool, 0, 40_000).unwrap();
    big.chain(frame(pool, &[1; 10])).unwrap();
    burst.push(big);
    burst.push(frame(pool, &[2; 64]));
    for (i, m) in burst.iter().enumerate() {
        if i != 4 {
            want.push(content(m));
        }
    }
    assert_eq!(tx.burst(&mut burst), 5);
    assert_eq!(memory.references(), 0);
    let c = tx.counters();
    assert_eq!((c.tx_linearized, c.tx_linearize_drops, c.tx_frames), (4, 1, 5));
    let mut got = Burst::new();
    assert_eq!(rx.burst(&mut got), 5);
    for (m, want) in got.iter().zip(&want) {
        assert_eq!((m.segments(), m.has_external()), (1, false));
        assert_eq!(m.data(), want);
    }
    drop(got);
    assert_eq!(pool.in_use(), 0);
}

/// Devices limit the segments of a frame; the queue copies only frames with more segments.
#[test]
fn test_only_frames_of_more_segments_than_allowed_are_copied() {
    let pool = pool(1023);
    let ((_, mut tx), (mut rx, _)) = pair("segs", pool);
    tx.set_max_segs(8);
    assert!(tx.supports_multi_segs());
    let chain = |n: usize| {
        let mut m = frame(pool, &[n as u8; 60]);
        for i in 1..n {
            m.chain(frame(pool, &[i as u8; 20])).unwrap();
        }
        m
    };
    let mut burst = Burst::new();
    for n in [1, 8, 9, 7, 20] {
        burst.push(chain(n));
    }
    let want: Vec<_> = burst.iter().map(content).collect();
    assert_eq!(tx.burst(&mut burst), 5);
    let c = *tx.counters();
    assert_eq!((c.tx_linearized, c.tx_linearize_drops), (2, 0));
    assert_eq!(c.tx_linearized_bytes as usize, want[2].len() + want[4].len());
    let mut got = Burst::new();
    assert_eq!(rx.burst_as_sent(&mut got), 5);
    assert_eq!(got.iter().map(Mbuf::segments).collect::<Vec<_>>(), [1, 8, 1, 7, 1]);
    assert_eq!(got.iter().map(content).collect::<Vec<_>>(), want);
}

#[test]
fn test_two_threads_share_one_region() {
    let (pool_a, pool_b) = (pool(1023), pool(1023));
    let memory = Memory::new(1 << 20);
    let (a, b) = pair("mt", pool_a);
    static DONE: AtomicUsize = AtomicUsize::new(0);
    let run = |(mut rx, mut tx): (RxQueue, TxQueue), pool: Mempool| {
        let memory = memory.clone();
        move |_: &Stop| {
            let (mut burst, mut got) = (Burst::new(), Burst::new());
            let (mut sent, mut seen) = (0, 0);
            while sent < 20_000 || seen < 20_000 {
                while sent + burst.len() < 20_000 && !burst.is_full() {
                    match memory.external(pool, sent % 1000, 1400) {
                        Ok(m) => burst.push(m),
                        Err(_) => break,
                    }
                }
                sent += tx.burst(&mut burst);
                seen += rx.burst(&mut got);
                got.clear();
                std::thread::yield_now();
            }
            DONE.fetch_add(1, Ordering::AcqRel);
        }
    };
    let one = LcoreWorker::spawn(&eal(), 0, "one", run(a, pool_a)).unwrap();
    let two = LcoreWorker::spawn(&eal(), 0, "two", run(b, pool_b)).unwrap();
    one.join().unwrap();
    two.join().unwrap();
    assert_eq!(DONE.load(Ordering::Acquire), 2);
    assert_eq!((memory.references(), pool_a.in_use(), pool_b.in_use()), (0, 0, 0));
}

#[test]
fn test_ring_pair_joins_queues_one_to_one() {
    let pools = vec![pool(255), pool(255)];
    let config = PortConfig { pools: pools.clone(), ..PortConfig::new(pools[0]) };
    let (mut a, mut b) = Port::ring_pair(&eal(), "mq", 64, &config, &config).unwrap();
    let (mut qa, mut qb) = (a.take_queues(), b.take_queues());
    assert_eq!((qa.len(), qb.len(), a.take_queues().len()), (2, 2, 0));
    let mut burst = Burst::new();
    burst.push(frame(pools[1], &[1; 64]));
    qb[1].1.burst(&mut burst);
    assert_eq!(qa[0].0.burst(&mut burst), 0);
    assert_eq!(qa[1].0.burst(&mut burst), 1);
    assert_ne!(a.mac(), b.mac());
    assert!(a.link().up && b.link().up);
}

#[test]
fn test_ring_pair_refuses_invalid_and_taken_names() {
    let config = PortConfig::new(pool(255));
    for name in ["", "a b", "seventeen_letters"] {
        let e = Port::ring_pair(&eal(), name, 64, &config, &config).unwrap_err();
        assert!(e.to_string().contains("name"), "{e}");
    }
    let _held = Port::ring_pair(&eal(), "twice", 64, &config, &config).unwrap();
    let e = Port::ring_pair(&eal(), "twice", 64, &config, &config).unwrap_err();
    assert!(e.to_string().contains("twice"), "{e}");
}
