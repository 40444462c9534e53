//! Two RNICs joined by rings, and traffic over them that makes no allocations of its own, so that
//! all counted calls are the RNICs'.
#![allow(unreachable_pub, dead_code, reason = "each test that has this module uses a part")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

pub mod alloc;
pub mod traffic;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Clock, Eal, EalConfig, FaultConfig, ManualClock};
use heddle_tcp::{Cidr, ConnConfig};
use heddle_types::mpa::CrcPolicy;
use heddle_verbs::{
    AcceptParams, Access, CmEvent, CmId, ConnectParams, Cq, Device, EventQueue, ListenParams,
    MpaOptions, Mr, Protocol, Qp, QpInit,
};

/// Number of work requests of each queue.
pub const DEPTH: usize = 64;

/// Length of the largest message, in bytes.
pub const LARGEST: usize = 64 << 10;

/// Returns DPDK, started once in this process, and the right to use the processors.
pub fn eal() -> (Eal, MutexGuard<'static, ()>) {
    static EAL: OnceLock<Eal> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = EalConfig { memory_mb: 1024, ..EalConfig::default() };
    (*EAL.get_or_init(|| Eal::init(&config).unwrap()), turn)
}

fn server_addr() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), 7471))
}

/// Settings of the two RNICs and of their connections.
#[derive(Clone, Debug)]
pub struct Setup {
    pub conns: usize,
    pub crc: bool,
    /// Markers in both directions.
    pub markers: bool,
    pub fault: FaultConfig,
    pub seed: u64,
    /// A clock that the test moves, so that each run is the same.
    pub clock: Option<Clock>,
}

impl Default for Setup {
    fn default() -> Setup {
        let fault = FaultConfig::default();
        Setup { conns: 1, crc: true, markers: false, fault, seed: 1, clock: None }
    }
}

impl Setup {
    /// Returns a least retransmission time-out above the time for which an ACK may be held back.
    /// The time-out is short where the test moves the clock; otherwise it is longer, because a
    /// thread may be off its processor.
    fn rto_min(&self) -> Duration {
        Duration::from_millis(if self.clock.is_some() { 20 } else { 200 })
    }

    /// Returns the options that both ends ask for in the start-up.
    fn options(&self) -> MpaOptions {
        let crc = if self.crc { CrcPolicy::Required } else { CrcPolicy::Off };
        MpaOptions::new().crc(crc).markers(self.markers)
    }

    /// Opens client and server.
    pub fn open(&self, eal: &Eal) -> (Endpoint, Endpoint) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("count{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let config = |n: u8| EndpointConfig {
            memory: self.conns * 2 * End::MEMORY + (1 << 20),
            frames: 8191,
            max_conns: 64,
            fault: self.fault,
            clock: self.clock.clone(),
            tcp: ConnConfig {
                rto_min: self.rto_min(),
                // Each row of a table has connections of its own, so old ones must not linger.
                time_wait: Duration::from_millis(10),
                ..ConnConfig::default()
            },
            ..EndpointConfig::with_seed(
                vec![Cidr::new(Ipv4Addr::new(10, 0, 0, n).into(), 24).unwrap()],
                Seed::from_u64(self.seed).derive(n.into()),
            )
        };
        Endpoint::ring_pair(eal, &name, &config(1), &config(2)).unwrap()
    }
}

/// An end of a connection: a queue pair, its completions, and a region with a part for each message
/// under way.
pub struct End {
    pub qp: Qp,
    pub cq: Cq,
    pub mr: Mr,
}

impl End {
    /// A part to send from, a part for the peer to write or read, and a part for receive buffers.
    pub const MEMORY: usize = 3 * DEPTH * LARGEST;

    fn new(device: &Device) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(2 * DEPTH as u32, None).unwrap();
        let depth = DEPTH as u32;
        let init = QpInit::new(cq.clone()).depths(depth, depth);
        let all = Access::LOCAL_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_WRITE);
        let all = all.with(Access::REMOTE_ATOMIC);
        End {
            qp: device.create_qp(pd, init).unwrap(),
            cq,
            mr: device.alloc_mr(pd, End::MEMORY, all).unwrap(),
        }
    }
}

/// Both ends of a connection.
pub struct Conn {
    pub id: CmId,
    pub client: End,
    pub server: End,
}

/// Connects `n` queue pairs; `poll` drives the RNICs when they have no threads of their own.
pub fn connect(
    client: &Device,
    server: &Device,
    n: usize,
    options: MpaOptions,
    mut poll: impl FnMut(),
) -> Vec<Conn> {
    let events = [EventQueue::new(None), EventQueue::new(None)];
    let protocol = Protocol::Mpa(options);
    let markers = (options.markers, options.markers);
    let listener = server
        .listen(server_addr(), ListenParams { protocol, ..ListenParams::default() }, &events[1])
        .unwrap();
    let mut conns = Vec::new();
    let mut listening = false;
    let start = std::time::Instant::now();
    while !listening {
        poll();
        listening = matches!(events[1].poll(), Some(CmEvent::Listening { id }) if id == listener);
        assert!(start.elapsed() < Duration::from_secs(20), "no listener");
    }
    for _ in 0..n {
        let (near, far) = (End::new(client), End::new(server));
        let params = ConnectParams { protocol, ..ConnectParams::new(near.qp.clone()) };
        let id = client.connect(server_addr(), params, &events[0]).unwrap();
        let (mut up, start) = (0, std::time::Instant::now());
        while up < 2 {
            poll();
            for event in events.iter().filter_map(EventQueue::poll) {
                match event {
                    CmEvent::ConnectRequest { id, .. } => {
                        server.accept(id, AcceptParams::new(far.qp.clone())).unwrap();
                    }
                    CmEvent::Established { agreed, .. } => {
                        assert_eq!((agreed.send_markers, agreed.recv_markers), markers);
                        up += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no connection");
        }
        conns.push(Conn { id, client: near, server: far });
    }
    server.unlisten(listener).unwrap();
    conns
}

/// Two RNICs on the test's own thread, in virtual time: each run is the same.
pub struct Net {
    pub a: Endpoint,
    pub b: Endpoint,
    hand: ManualClock,
    setup: Setup,
    _turn: MutexGuard<'static, ()>,
}

impl Net {
    pub fn new(setup: Setup) -> Net {
        let (eal, turn) = eal();
        let (clock, hand) = Clock::manual();
        hand.advance(Duration::from_secs(1));
        let setup = Setup { clock: Some(clock), ..setup };
        let (a, b) = setup.open(&eal);
        Net { a, b, hand, setup, _turn: turn }
    }

    pub fn poll(&mut self) {
        self.a.poll();
        self.b.poll();
        self.hand.advance(Duration::from_micros(5));
    }

    /// Makes connections, and calls `f` with them.
    pub fn connected<R>(&mut self, f: impl FnOnce(&mut Net, &[Conn]) -> R) -> R {
        let (client, server) = (self.a.device().clone(), self.b.device().clone());
        let (n, options) = (self.setup.conns, self.setup.options());
        let conns = connect(&client, &server, n, options, || self.poll());
        let result = f(self, &conns);
        for conn in &conns {
            client.disconnect(conn.id).unwrap();
        }
        drop(conns);
        // Polls until the memory has come back.
        for _ in 0..10_000 {
            self.poll();
        }
        result
    }
}
