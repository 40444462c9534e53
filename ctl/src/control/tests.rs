use super::*;

use core::net::SocketAddr;

use heddle_base::Seed;
use heddle_dataplane::{
    Eal, EalConfig, ExternalMemory, Hugepages, Mempool, MempoolConfig, Port, PortConfig, Worker,
    WorkerConfig,
};
use heddle_iwarp::MrTable;
use heddle_rnic::RnicConfig;
use heddle_tcp::StackConfig;
use heddle_verbs::memory::Regions;
use heddle_verbs::{DeviceConfig, Hub, ListenParams};

/// The worker takes no orders: they fill its ring, then the requests theirs, and nothing grows behind
/// the two.
#[test]
fn test_requests_wait_while_the_worker_is_behind() {
    let config = EalConfig { hugepages: Hugepages::Never, ..EalConfig::default() };
    let eal = Eal::init(&config).unwrap();
    let pool = Mempool::new(&eal, &MempoolConfig::for_mtu(255, 1500)).unwrap();
    let ports = PortConfig::new(pool);
    let (mut port, _far) = Port::ring_pair(&eal, "control", 64, &ports, &ports).unwrap();
    let (rx, tx) = port.take_queues().pop().unwrap();
    let seed = Seed::from_u64(1);
    let mrs = Arc::new(MrTable::new(&seed, 16));
    let regions = Arc::new(Regions::new(1, None));
    let addr = "10.0.0.1/24".parse().unwrap();
    let stack = StackConfig::new(port.mac(), addr, seed.clone());
    let (clock, hand) = Clock::manual();
    let (mut worker, commands, reports) = Worker::new(WorkerConfig {
        index: 0,
        rnic: RnicConfig { stack, max_held_frames: 64, max_snapshot_bytes: 1 << 16 },
        rx,
        tx,
        pool,
        regions: regions.clone(),
        external: ExternalMemory::new(mrs.capacity()),
        mrs: mrs.clone(),
        clock,
        fault: None,
        rx_burst: 32,
    });
    let registry = Arc::new(Registry::new(mrs, regions));
    let (requests, requests_out) = crossbeam_channel::bounded(REQUESTS);
    let hub = Hub::new(registry.clone(), Box::new(Requests(requests)), 1, &seed);
    let memory = DeviceConfig { memory: 0, queues: 1 << 16, shared: false };
    let device = hub.open(&memory).unwrap();
    let link = WorkerLink::new(commands, reports);
    let mut control = Control::new(requests_out, vec![link], registry, 16);
    // The worker is told of the application.
    control.poll(hand.now());

    let events = EventQueue::new(None);
    let mut asked = Vec::new();
    for _ in 0..3 {
        let at = |n: usize| SocketAddr::from(([10, 0, 0, 1], 1000 + n as u16));
        while let Ok(id) = device.listen(at(asked.len()), ListenParams::default(), &events) {
            asked.push(id);
        }
        control.poll(hand.now());
        assert!(control.links[0].backlog.len() <= 1);
    }
    // What the worker's ring holds beside that, one that did not fit, and the ring of requests.
    assert_eq!(asked.len(), 4095 + 1 + REQUESTS);
    assert!(control.counters().control.command_backlog > 0);
    // The worker listens at so many ports and no more, and each is answered; in turn, none lost.
    let (mut answered, mut listening) = (Vec::new(), 0);
    while answered.len() < asked.len() {
        worker.poll();
        control.poll(hand.now());
        while let Some(event) = events.poll() {
            answered.push(match event {
                Event::Listening { id } => {
                    listening += 1;
                    id
                }
                Event::ListenFailed { id, .. } => id,
                other => panic!("{other:?}"),
            });
        }
    }
    assert_eq!((answered == asked, listening), (true, 1024));
}
