//! Pools, mbufs, registered memory and fault injection.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use heddle_base::{Chunks, Instant, Seed, Sum};
use heddle_dataplane::*;
use heddle_hub::memory::{RegionMemory, RegionTable};
use heddle_mr::{Memory as _, MrTable};
use heddle_shm::{Region, RegionError};
use heddle_types::{Access, Pd, Qpn};

use crate::common::*;

#[test]
fn test_exhausted_pool_returns_none_and_is_counted() {
    let pool = pool(63);
    let mut all = arrayvec::ArrayVec::<Mbuf, 128>::new();
    assert_eq!(pool.alloc_bulk(&mut all, 60), 60);
    assert_eq!(pool.alloc_bulk(&mut all, 60), 0, "all or none");
    assert_eq!(all.len(), 60);
    while let Some(m) = pool.alloc() {
        all.push(m);
    }
    assert_eq!((all.len(), pool.available(), pool.alloc_failures()), (63, 0, 2));
    let memory = Memory::new(4096);
    assert_eq!(memory.external(pool, 0, 10).unwrap_err(), ExternalError::PoolEmpty);
    assert_eq!((memory.references(), pool.alloc_failures()), (0, 3));
    Mbuf::free_bulk(&mut all);
    assert_eq!((pool.available(), pool.in_use()), (63, 0));
}

#[test]
fn test_mbuf_grows_and_shrinks_at_both_ends() {
    let pool = pool(63);
    let mut m = pool.alloc().unwrap();
    assert_eq!((m.pkt_len(), m.segments(), m.headroom()), (0, 1, 128));
    let tail = m.tailroom();
    assert_eq!(tail, usize::from(pool.data_room()) - 128);
    assert!(m.append(tail + 1).is_none());
    m.append(10).unwrap().copy_from_slice(b"0123456789");
    m.prepend(4).unwrap().copy_from_slice(b"head");
    assert_eq!(m.data(), b"head0123456789");
    assert!(m.prepend(125).is_none());
    assert!(m.advance(6));
    assert!(!m.advance(9));
    m.data_mut().unwrap()[0] = b'X';
    assert_eq!(m.data(), b"X3456789");
    m.chain(frame(pool, b"tail")).unwrap();
    m.append(2).unwrap().copy_from_slice(b"!!");
    assert_eq!(content(&m), b"X3456789tail!!");
    assert_eq!((m.segments(), m.pkt_len(), m.data_len(), m.check()), (2, 14, 8, None));
    let copy = m.copy(&pool).unwrap();
    assert!(m.linearize());
    assert_eq!((m.segments(), m.data()), (1, &b"X3456789tail!!"[..]));
    assert_eq!(content(&copy), content(&m));
    drop((m, copy));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn test_external_mbuf_refuses_changes_and_bad_ranges() {
    let pool = pool(63);
    let memory = Memory::new(5000);
    let mut m = memory.external(pool, 0, 5000).unwrap();
    assert!(m.data_mut().is_none() && m.append(1).is_none() && m.prepend(1).is_none());
    assert_eq!((m.headroom(), m.tailroom(), m.has_external(), m.check()), (0, 0, true, None));
    for (off, len) in [(0, 0), (1, 5000), (5000, 1), (usize::MAX, 2)] {
        let e = memory.external(pool, off, len).unwrap_err();
        assert_eq!(e, ExternalError::OutOfRange, "{off} {len}");
    }
    assert_eq!(memory.references(), 1);
    drop(m);
    assert_eq!((memory.references(), pool.in_use()), (0, 0));
}

#[test]
fn test_external_references_are_limited_and_returned() {
    let pool = Mempool::new(
        &eal(),
        &MempoolConfig { count: 65_535, cache: 256, data_room: 192, socket: None },
    )
    .unwrap();
    let memory = Memory::new(4096);
    let mut all = Vec::new();
    let e = loop {
        match memory.external(pool, 0, 1) {
            Ok(m) => all.push(m),
            Err(e) => break e,
        }
    };
    assert_eq!(e, ExternalError::TooManyReferences);
    assert_eq!(all.len(), memory.references());
    assert!(all.len() >= 59_990);
    drop(all);
    assert_eq!((memory.references(), pool.in_use()), (0, 0));
}

#[test]
fn test_region_is_zeroed_aligned_and_bounded() {
    for len in [1, 4096, 100_000, 3 << 20] {
        let region = Region::anonymous(len).unwrap();
        let mapped = region.mapped_len().unwrap();
        assert_eq!(region.len(), len);
        assert!(mapped >= len && mapped.is_multiple_of(region.page_size()));
        assert_eq!(region.base().as_ptr() as usize % region.page_size(), 0);
        let mut all = vec![1; len];
        region.gather(0, &mut all).unwrap();
        assert!(all.iter().all(|&b| b == 0));
        let data = bytes(len as u8, len);
        region.place(0, &data).unwrap();
        region.gather(0, &mut all).unwrap();
        assert_eq!(all, data);
        assert_eq!(region.digest(0, len, 0).unwrap(), (crc32c::crc32c(&data), Sum::of(&data)));
        // A worker copies and digests at once, and continues the digest of the bytes before.
        let region = Arc::new(region);
        let regions = Arc::new(RegionTable::new(1, None));
        let (id, mrs) = (regions.insert(&region).unwrap(), MrTable::new(&Seed::from_u64(1), 1));
        let mr = mrs.register(Pd(1), id.addr(0), 0, len as u64, Access::REMOTE_READ).unwrap();
        let check = |to, n| mrs.check(Pd(1), Qpn(1), mr.stag, to, n, Access::REMOTE_READ);
        let mut copy = vec![0; len];
        let range = check(0, len as u32).unwrap();
        let worker = RegionMemory::new(regions);
        let got = worker.copy_digest(range, crc32c::crc32c(b"head"), &mut copy);
        let crc = crc32c::crc32c_append(crc32c::crc32c(b"head"), &data);
        assert_eq!((copy, got), (data.clone(), (crc, Sum::of(&data))));
        assert!(check(1, len as u32).is_err());
        for (off, n) in [(0, len + 1), (len, 1), (len + 1, 0), (usize::MAX, 1)] {
            assert!(region.digest(off, n, 0).is_err(), "{off} {n}");
        }
        assert!(region.place(len, &[1]).is_err() && region.gather(len, &mut [0]).is_err());
        assert!(region.place(len, &[]).is_ok());
    }
    assert!(matches!(Region::anonymous(0), Err(RegionError::Size(0))));
    let e = Region::anonymous(1 << 46).unwrap_err();
    assert!(matches!(e, RegionError::NoMemory { .. }), "{e}");
}

fn faults(config: FaultConfig, seed: u64, pool: Mempool, n: u32) -> (Vec<u32>, FaultInjector) {
    let mut f = FaultInjector::new(config, &Seed::from_u64(seed), pool);
    let (mut burst, mut out) = (Burst::new(), Burst::new());
    let mut seen = Vec::new();
    for i in 0..n {
        let now = Instant::from_nanos(u64::from(i) * 100);
        burst.push(frame(pool, &i.to_be_bytes()));
        f.handle(now, &mut burst);
        assert!(burst.is_empty());
        f.poll(now, &mut out);
        for m in out.drain(..) {
            seen.push(u32::from_be_bytes(m.data().try_into().unwrap()));
        }
    }
    (seen, f)
}

#[test]
fn test_faults_match_their_counters_and_repeat_with_the_seed() {
    let pool = pool(1023);
    let config = FaultConfig { drop: 0.1, duplicate: 0.05, reorder: 0.1, ..Default::default() };
    let (seen, f) = faults(config, 42, pool, 5000);
    let c = *f.counters();
    assert_eq!(c.fault_frames, 5000);
    assert!((400..600).contains(&c.fault_dropped), "{c:?}");
    assert!((180..320).contains(&c.fault_duplicated), "{c:?}");
    assert!((350..550).contains(&c.fault_reordered), "{c:?}");
    let held = pool.in_use() as u64;
    assert_eq!(seen.len() as u64 + held, 5000 - c.fault_dropped + c.fault_duplicated);
    let late = seen.windows(2).filter(|w| w[1] < w[0]).count();
    assert!(late > 200, "{late}");
    // A frame that is held back comes out a few frames late, not more.
    for (at, &v) in seen.iter().enumerate() {
        let newest = seen[..at].iter().copied().max().unwrap_or(0);
        assert!(newest < v + 10, "seed 42: {v} came out after {newest}");
    }
    drop(f);
    assert_eq!(pool.in_use(), 0);
    assert_eq!(faults(config, 42, pool, 5000).0, seen);
    assert_ne!(faults(config, 43, pool, 5000).0, seen);
}

#[test]
fn test_held_frame_comes_out_when_traffic_stops() {
    let pool = pool(63);
    let config = FaultConfig { reorder: 1.0, ..Default::default() };
    let mut f = FaultInjector::new(config, &Seed::from_u64(1), pool);
    let mut burst = Burst::new();
    burst.push(frame(pool, b"x"));
    let start = Instant::from_millis(5);
    f.handle(start, &mut burst);
    assert_eq!(f.poll(start, &mut burst), 0);
    let due = f.poll_timeout().unwrap();
    assert_eq!(due, start + Duration::from_millis(1));
    assert_eq!(f.poll(Instant::from_nanos(due.as_nanos() - 1), &mut burst), 0);
    assert_eq!(f.poll(due, &mut burst), 1);
    assert_eq!(f.poll_timeout(), None);
}

#[test]
fn test_empty_fault_config_changes_nothing() {
    let pool = pool(255);
    assert!(FaultConfig::default().is_none());
    let (seen, f) = faults(FaultConfig::default(), 1, pool, 100);
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    assert_eq!((f.counters().fault_dropped, pool.in_use()), (0, 0));
}

#[test]
fn test_workers_report_results_panics_and_missing_cores() {
    let w = LcoreWorker::spawn(&eal(), 0, "w0", |stop: &Stop| {
        while !stop.is_set() {
            std::thread::yield_now();
        }
        17
    })
    .unwrap();
    assert_eq!((w.name(), w.core(), w.is_finished()), ("w0", 0, false));
    assert_eq!(w.join().unwrap(), 17);
    let w = LcoreWorker::spawn(&eal(), 0, "w1", |_: &Stop| -> u8 { panic!("on purpose") }).unwrap();
    let e = w.join().unwrap_err();
    assert!(matches!(e, LcoreError::Panicked { .. }), "{e}");
    assert!(e.to_string().contains("w1") && e.to_string().contains("on purpose"), "{e}");
    let e = LcoreWorker::spawn(&eal(), 1000, "w2", |_: &Stop| ()).unwrap_err();
    assert!(matches!(e, LcoreError::NoSuchCore { core: 1000, .. }), "{e}");
    // DPDK's numbers are given back: start more workers in turn than DPDK has numbers for.
    for i in 0..200 {
        assert_eq!(LcoreWorker::spawn(&eal(), 0, "turn", move |_: &Stop| i).unwrap().join(), Ok(i));
    }
}

#[test]
fn test_a_thread_registers_once_and_gets_a_cache() {
    let pool = pool(1023);
    std::thread::spawn(move || {
        let outer = Registration::new(&eal()).unwrap();
        drop(Registration::new(&eal()).unwrap());
        drop(pool.alloc().unwrap());
        drop(outer);
        drop(Registration::new(&eal()).unwrap());
    })
    .join()
    .unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn test_clock_agrees_with_the_system() {
    let clock = Clock::new(&eal());
    let (a, t) = (clock.now(), std::time::Instant::now());
    std::thread::sleep(Duration::from_millis(50));
    let (by_clock, by_system) = (clock.now() - a, t.elapsed());
    let off = by_clock.abs_diff(by_system);
    assert!(off < Duration::from_millis(5), "{} {by_clock:?} {by_system:?}", clock.name());
    let mut last = clock.now();
    for _ in 0..1000 {
        let now = clock.now();
        assert!(now >= last);
        last = now;
    }
}

#[test]
fn test_chunks_of_a_chain_walk_all_segments() {
    let pool = pool(63);
    let mut m = frame(pool, b"ab");
    for part in [&b"c"[..], b"", b"defg"] {
        m.chain(frame(pool, part)).unwrap();
    }
    assert_eq!(m.segments(), 4);
    let mut parts = Vec::new();
    m.for_each_chunk(1, 5, |p| parts.push(p.to_vec()));
    assert_eq!(parts, [b"b".to_vec(), b"c".to_vec(), b"def".to_vec()]);
}
