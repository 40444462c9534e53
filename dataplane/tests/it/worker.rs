//! A worker whose control plane does not keep up: the worker's reports wait in bounded places, and
//! orders to the worker wait with their sender.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use heddle_base::Seed;
use heddle_dataplane::*;
use heddle_hub::memory::RegionTable;
use heddle_mr::MrTable;
use heddle_rnic::{Order, Report, RnicConfig};
use heddle_tcp::StackConfig;

use crate::common::*;

#[test]
fn test_orders_wait_while_worker_reports_are_not_taken() {
    let eal = eal();
    let pool = pool(255);
    let config = PortConfig::new(pool);
    let (mut port, _far) = Port::ring_pair(&eal, "worker", 64, &config, &config).unwrap();
    let (rx, tx) = port.take_queues().pop().unwrap();
    let seed = Seed::from_u64(1);
    let stack = StackConfig::new(port.mac(), "10.0.0.1/24".parse().unwrap(), seed.clone());
    let (mut worker, mut commands, mut reports) = Worker::new(WorkerConfig {
        index: 0,
        engine: RnicConfig::new(stack, 64, 1 << 22),
        rx: rx.into(),
        tx: tx.into(),
        pool,
        regions: Arc::new(RegionTable::new(1, None)),
        external: ExternalMemory::new(16),
        mrs: Arc::new(MrTable::new(&seed, 16)),
        clock: Clock::manual().0,
        fault: None,
        rx_burst: 32,
        waker: None,
    });
    // Both rings fill up, and then the sender keeps the order. There is no route, so that the
    // worker answers each order at once.
    let remote = "192.0.2.1:1".parse().unwrap();
    let mut sent = 0;
    while commands.send(Command::Order(Order::connect(sent, remote))).is_ok() {
        sent += 1;
        worker.poll();
    }
    assert_eq!(sent, 2 * 4096);
    assert!(worker.poll(), "there is something to do, for the control plane");
    assert!(worker.snapshot().worker.reports_full > 0);
    // As the test takes the answers, the worker carries out the orders, each once and in turn.
    let mut seen = 0;
    while seen < sent {
        while let Ok(report) = reports.recv() {
            let WorkerReport::Engine(Report::Connecting { token, result: Err(_) }) = report else {
                panic!("{report:?}")
            };
            assert_eq!(token, seen);
            seen += 1;
        }
        worker.poll();
    }
    assert_eq!(reports.recv().err(), Some(NoReport::Yet));
    assert!(!worker.poll());
}
