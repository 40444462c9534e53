//! Memory and workers with hugepages, if the system has some free; otherwise the test reports this
//! and passes.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "it/common.rs"]
mod common;

use common::*;
use heddle_dataplane::*;

#[test]
fn test_pools_ports_and_registered_memory_use_hugepages() {
    let config = EalConfig { hugepages: Hugepages::Require, memory_mb: 64, ..EalConfig::default() };
    let eal = match Eal::init(&config) {
        Ok(eal) => eal,
        Err(e) => {
            assert!(matches!(e, EalError::TooFewHugepages { .. }), "{e}");
            eprintln!("skipped: {e}");
            return;
        }
    };
    assert_eq!(eal.memory_mode(), MemoryMode::Hugepages);
    let pool = Mempool::new(&eal, &MempoolConfig::for_mtu(1023, 1500)).unwrap();
    let memory = Memory::new(3 << 20);
    assert_eq!((memory.region.page_size(), memory.region.mapped_len()), (2 << 20, Some(4 << 20)));
    memory.place(100, &bytes(1, 1000));
    let conf = PortConfig::new(pool);
    let (mut a, mut b) = Port::ring_pair(&eal, "huge", 64, &conf, &conf).unwrap();
    let (mut tx, mut rx) = (a.take_queues().remove(0).1, b.take_queues().remove(0).0);
    let mut burst = Burst::new();
    burst.push(memory.external(pool, 100, 1000).unwrap());
    assert_eq!(tx.burst(&mut burst), 1);
    assert_eq!(rx.burst(&mut burst), 1);
    assert_eq!(content(&burst[0]), bytes(1, 1000));
    burst.clear();
    assert_eq!((memory.references(), pool.in_use()), (0, 0));
    // Each page is a file of its own, of which a front end of vhost-user can name a few.
    let e = Port::vhost_pair(&eal, "huge-vhost", &conf, &conf).unwrap_err().to_string();
    assert!(e.contains("EalConfig::shares_memory"), "{e}");
    // Registration requires that no other process shares the memory.
    assert_eq!(LcoreWorker::spawn(&eal, 0, "w", |_: &Stop| 5).unwrap().join(), Ok(5));
}
