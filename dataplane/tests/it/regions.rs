//! Registered memory as a whole: these tests run apart from others, whose mappings and
//! registrations would interfere, and one at a time.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_base::Seed;
use heddle_dataplane::*;
use heddle_hub::memory::{RegionMemory, RegionTable};
use heddle_mr::MrTable;
use heddle_shm::Region;
use heddle_types::{Access, Pd, Qpn};

use crate::common::*;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

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

fn is_mapped(addr: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|l| {
        let (from, rest) = l.split_once('-').unwrap();
        let to = rest.split(' ').next().unwrap();
        let at = |s| usize::from_str_radix(s, 16).unwrap();
        (at(from)..at(to)).contains(&addr)
    })
}

#[test]
fn test_region_outlives_all_handles_while_a_frame_refers_to_it() {
    let _alone = alone();
    let pool = pool(255);
    let memory = Memory::new(3 << 20);
    let data = bytes(3, 5000);
    memory.place(0, &data);
    let ((_, mut tx), (mut rx, _)) = pair("outlive", pool);
    let mut burst = Burst::new();
    burst.push(fpdu(pool, &memory, 100, 1400));
    tx.burst(&mut burst);
    let base = memory.region.base().as_ptr() as usize;
    drop(memory);
    assert!(is_mapped(base), "a frame still refers to it");
    let mut got = Burst::new();
    rx.burst_as_sent(&mut got);
    assert_eq!(content(&got[0])[66..1466], data[100..1500]);
    drop(got);
    assert!(!is_mapped(base), "the last reference is gone");
    assert_eq!(pool.in_use(), 0);
}

/// While the RNIC lives, the test asks it, and the RNIC drops the mapping when it knows that
/// nothing refers to the mapping.
#[test]
fn test_region_is_unmapped_when_nothing_refers_to_it() {
    let _alone = alone();
    let pool = pool(255);
    let Memory { region, external } = Memory::new(3 << 20);
    let base = region.base().as_ptr() as usize;
    let m = Mbuf::external(&pool, &external, Memory::SLOT, &region, 0, 100).unwrap();
    drop(region);
    assert!(external.is_referred(Memory::SLOT) && !external.is_referred(Memory::SLOT + 1));
    assert!(is_mapped(base));
    drop(m);
    assert!(!external.is_referred(Memory::SLOT));
    assert!(!is_mapped(base));
    // The slot can have another region now.
    let next = Memory::new(4096);
    next.place(0, b"next");
    let m = Mbuf::external(&pool, &external, Memory::SLOT, &next.region, 0, 4).unwrap();
    assert_eq!(content(&m), b"next");
}

/// DPDK has room for a hundred and some regions. The RNIC copies memory of other regions into
/// frames, and registers these regions all the same.
#[test]
fn test_regions_beyond_dpdk_capacity_are_registered_but_not_for_devices() {
    let _alone = alone();
    const MANY: usize = 300;
    let config = PortConfig::new(pool(255));
    let (port, _far) = Port::ring_pair(&eal(), "many", 64, &config, &config).unwrap();
    let dpdk = Box::new(DpdkRegions::new(port.dma()));
    let regions = Arc::new(RegionTable::new(MANY + 1, Some(dpdk)));
    let worker = RegionMemory::new(regions.clone());
    let mrs = MrTable::new(&Seed::from_u64(1), 1024);
    let mut ids = Vec::new();
    // Returns whether a region lies where a worker expects it, and whether a device may read it
    // there.
    let insert = || {
        let region = Arc::new(Region::anonymous(4096).unwrap());
        let id = regions.insert(&region).unwrap();
        let all = Access::REMOTE_READ;
        let mr = mrs.register(Pd(1), id.addr(0), 0, 4096, all).unwrap();
        let range = mrs.check(Pd(1), Qpn(1), mr.stag, 8, 100, all).unwrap();
        assert_eq!(worker.ptr(range), region.ptr(8, 100));
        let dma = worker.dma_ptr(range);
        assert!(dma.is_none() || dma == worker.ptr(range));
        (id, dma.is_some())
    };
    let mut for_devices = Vec::new();
    for _ in 0..MANY {
        let (id, dma) = insert();
        ids.push(id);
        for_devices.push(dma);
    }
    let count = for_devices.iter().filter(|d| **d).count();
    assert!((51..MANY).contains(&count), "{count}");
    assert!(for_devices[..count].iter().all(|d| *d), "the first ones are known");
    for id in ids {
        regions.remove(id);
    }
    worker.quiescent();
    assert_eq!(regions.reap(), 0);
    assert!(insert().1, "they are registered no more");
}
