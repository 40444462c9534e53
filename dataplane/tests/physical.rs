//! Devices that use physical addresses: packet buffers work, and the RNIC copies registered memory.
//!
//! The test needs hugepages and the right to see physical addresses: otherwise it reports this and
//! passes.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "it/common.rs"]
mod common;

use std::sync::Arc;

use common::*;
use heddle_dataplane::*;
use heddle_hub::memory::RegionHook;
use heddle_verbs::Region;

#[test]
fn test_device_never_gets_registered_memory_by_virtual_address() {
    let config = EalConfig {
        hugepages: Hugepages::Require,
        iova: Some(IovaMode::Pa),
        memory_mb: 64,
        ..EalConfig::default()
    };
    let eal = match Eal::init(&config) {
        Ok(eal) => eal,
        Err(e @ (EalError::TooFewHugepages { .. } | EalError::Iova(_))) => {
            eprintln!("skipped: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    assert_eq!(eal.iova_mode(), IovaMode::Pa);
    let pool = Mempool::new(&eal, &MempoolConfig::for_mtu(1023, 1500)).unwrap();
    let conf = PortConfig::new(pool);
    let (mut a, mut b) = Port::ring_pair(&eal, "phys", 64, &conf, &conf).unwrap();
    let (mut tx, mut rx) = (a.take_queues().remove(0).1, b.take_queues().remove(0).0);

    let memory = Memory::new(3 << 20);
    let e = memory.external(pool, 100, 1000).unwrap_err();
    assert_eq!(e, ExternalError::PhysicalAddresses);
    assert_eq!((memory.references(), pool.in_use()), (0, 0));
    let hook = DpdkRegions::new(a.dma().with(b.dma()));
    let region = Arc::new(Region::anonymous(2 << 20).unwrap());
    assert!(!hook.added(&region), "a frame would be made that points into it");
    hook.removed(&region);

    let mut burst = Burst::new();
    burst.push(frame(pool, &bytes(1, 1000)));
    assert_eq!(tx.burst(&mut burst), 1);
    assert_eq!(rx.burst(&mut burst), 1);
    assert_eq!(content(&burst[0]), bytes(1, 1000));
}
