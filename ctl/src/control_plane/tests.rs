use super::requests::REQUESTS;
use super::*;

use core::net::SocketAddr;

use heddle_base::Seed;
use heddle_dataplane::{
    Clock, ExternalMemory, Mempool, MempoolConfig, Port, PortConfig, Worker, WorkerConfig,
};
use heddle_hub::memory::RegionTable;
use heddle_hub::{DeviceConfig, Hub};
use heddle_mr::MrTable;
use heddle_rnic::RnicConfig;
use heddle_tcp::StackConfig;
use heddle_types::ListenFailure;
use heddle_verbs::ListenParams;

/// The worker takes no orders: the orders fill its ring, then the requests fill theirs, and no
/// queue grows beyond the two.
#[test]
fn test_control_plane_leaves_requests_queued_while_worker_is_behind() {
    let (eal, _turn) = crate::testing::eal();
    let pool = Mempool::new(&eal, &MempoolConfig::for_mtu(255, 1500)).unwrap();
    let ports = PortConfig::new(pool);
    let (mut port, _far) = Port::ring_pair(&eal, "control", 64, &ports, &ports).unwrap();
    let (rx, tx) = port.take_queues().pop().unwrap();
    let seed = Seed::from_u64(1);
    let mrs = Arc::new(MrTable::new(&seed, 16));
    let regions = Arc::new(RegionTable::new(1, None));
    let addr = "10.0.0.1/24".parse().unwrap();
    let stack = StackConfig::new(port.mac(), addr, seed.clone());
    let ports = Ports::one(1, stack.net.clone());
    let (clock, hand) = Clock::manual();
    let (requests, requests_out, sleeper) = Requests::new();
    let (mut worker, commands, reports) = Worker::new(WorkerConfig {
        index: 0,
        engine: RnicConfig::new(stack, 64, 1 << 16),
        rx: rx.into(),
        tx: tx.into(),
        pool,
        regions: regions.clone(),
        external: ExternalMemory::new(mrs.capacity()),
        mrs: mrs.clone(),
        clock,
        fault: None,
        rx_burst: 32,
        waker: None,
    });
    let registry = Arc::new(Registry::new(mrs, regions));
    let hub = Hub::new(registry.clone(), Box::new(requests), 1, &seed);
    let memory =
        DeviceConfig { memory: 0, queues: 1 << 16, shared: false, ..DeviceConfig::default() };
    let device = hub.open(&memory).unwrap();
    let link = WorkerLink::new(commands, reports);
    let setup = RnicSetup { max_conns: 16, ..RnicSetup::with_seed(seed) };
    let board = hub.board().clone();
    let mut control = Control::new(
        requests_out,
        sleeper,
        vec![link],
        registry,
        board,
        (ports, Routers::default()),
        &setup,
    );
    // The control plane introduces the application to the worker.
    control.poll(hand.now());

    // Each listener makes two orders, because the second takes the listener back.
    let events = EventQueue::new(None);
    let mut asked = Vec::new();
    let listen = || {
        let addr = SocketAddr::from(([10, 0, 0, 1], 80));
        device.listen(addr, ListenParams::default(), &events)
    };
    for _ in 0..3 {
        while let Ok(id) = listen() {
            device.unlisten(id).unwrap();
            asked.push(id);
        }
        control.poll(hand.now());
        assert!(control.links[0].backlog_len() <= 1);
    }
    // The worker's ring holds all orders but the first; to them come an order that did not fit, and
    // the ring of requests.
    assert_eq!(2 * asked.len(), 4095 + 1 + REQUESTS);
    assert!(control.counters().control.command_backlog > 0);
    // As the worker carries the orders out, the others follow; each listener is answered in turn,
    // and none is lost.
    let mut answered = Vec::new();
    while answered.len() < asked.len() {
        while let Some(event) = events.poll() {
            let Event::ListenFailed { id, error } = event else { panic!("{event:?}") };
            assert_eq!(error, ListenFailure::Withdrawn);
            answered.push(id);
        }
        worker.poll();
        control.poll(hand.now());
    }
    assert!(answered == asked, "in the order in which they were asked");
    // The last listener comes after all of them, and no late order takes it back.
    let last = listen().unwrap();
    for _ in 0..10 {
        control.poll(hand.now());
        worker.poll();
    }
    assert_eq!(events.poll(), Some(Event::Listening { id: last }));
    assert_eq!((events.poll(), control.is_behind(), worker.poll()), (None, false, false));
}
