//! Two RNICs that rings connect, for tests of programs that run on them.
#![allow(unreachable_pub, reason = "each test that has this module takes what it needs")]
#![allow(dead_code, reason = "as above")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Eal, EalConfig, Hugepages};
use heddle_tcp::Cidr;
use heddle_verbs::{Access, CmEvent, CmId, ConnectParams, Cq, EventQueue, Mr, Qp, QpInit};

/// Starts DPDK once in this process, and returns it with the right to use the processors.
pub fn eal() -> (Eal, MutexGuard<'static, ()>) {
    static EAL: OnceLock<Eal> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // Two devices can share ordinary pages, which are one file.
    let config = EalConfig { memory_mb: 2048, hugepages: Hugepages::Never, ..EalConfig::default() };
    (*EAL.get_or_init(|| Eal::init(&config).expect("DPDK starts")), turn)
}

pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

pub fn server(port: u16) -> SocketAddr {
    SocketAddr::new(SERVER.into(), port)
}

/// Two RNICs with 8 MiB of registered memory each.
pub struct Net {
    pub client: Endpoint,
    pub server: Endpoint,
}

impl Net {
    pub fn new(eal: &Eal) -> Net {
        Net::with_memory(eal, 8 << 20)
    }

    pub fn with_memory(eal: &Eal, memory: usize) -> Net {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let config = |ip: Ipv4Addr| EndpointConfig {
            memory,
            frames: 2047,
            ..EndpointConfig::with_seed(
                vec![Cidr::new(ip.into(), 24).expect("24 bits are in range")],
                Seed::from_u64(ip.octets()[3].into()),
            )
        };
        let (client, server) = Endpoint::ring_pair(eal, &name, &config(CLIENT), &config(SERVER))
            .expect("a pair of rings");
        Net { client, server }
    }

    /// Polls both RNICs until `done` is true. Calls `done` in between, and fails after 20 s.
    pub fn until(&mut self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            self.client.poll();
            self.server.poll();
            assert!(start.elapsed() < Duration::from_secs(20), "{what} did not come");
        }
    }
}

/// A bare connection end: a queue pair, its completions and events, and a region.
pub struct Raw {
    pub events: EventQueue,
    pub cq: Cq,
    pub qp: Qp,
    pub mr: Mr,
}

impl Raw {
    pub fn new(endpoint: &Endpoint, len: usize) -> Raw {
        let device = endpoint.device();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(64, None).expect("a CQ");
        let init = QpInit::new(cq.clone()).depths(16, 16);
        let all = Access::LOCAL_WRITE
            .with(Access::REMOTE_READ)
            .with(Access::REMOTE_WRITE)
            .with(Access::REMOTE_ATOMIC);
        Raw {
            events: EventQueue::new(None),
            cq,
            qp: device.create_qp(pd, init).expect("a QP"),
            mr: device.alloc_mr(pd, len, all).expect("a region"),
        }
    }

    pub fn connect(&self, endpoint: &Endpoint, to: SocketAddr, private_data: &[u8]) -> CmId {
        let mut params = ConnectParams::new(self.qp.clone());
        params.private_data = private_data.to_vec();
        endpoint.device().connect(to, params, &self.events).expect("a request")
    }

    /// Polls until an event arrives, and returns it.
    pub fn event(&self, net: &mut Net, mut step: impl FnMut()) -> CmEvent {
        let mut event = None;
        net.until("an event", || {
            step();
            event = self.events.poll();
            event.is_some()
        });
        event.expect("it was waited for")
    }
}
