//! Two RNICs joined by rings, of several workers each, and an application on either side whose
//! connections share a protection domain, memory, completion queue and receive queue.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::common::eal;
use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig, Node, Snapshot};
use heddle_dataplane::eal::allowed_cpus;
use heddle_dataplane::{Clock, Eal, ManualClock, Port};
use heddle_hub::Hub;
use heddle_tcp::{Cidr, ConnConfig};
use heddle_verbs::{
    AcceptParams, Access, CmEvent, CmId, ConnectParams, Cq, Device, EventQueue, ListenParams, Mr,
    Pd, Qp, QpInit, Srq,
};

/// Longer than anything takes here.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn addr(n: u8) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, n), 7174).into()
}

fn name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("workers{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// An RNIC, with threads or without.
pub enum Rnic {
    Inline(Box<Endpoint>),
    Threads(Node),
}

impl Rnic {
    pub fn device(&self) -> &Device {
        match self {
            Rnic::Inline(e) => e.device(),
            Rnic::Threads(n) => n.device(),
        }
    }

    pub fn hub(&self) -> &Arc<Hub> {
        match self {
            Rnic::Inline(e) => e.hub(),
            Rnic::Threads(n) => n.hub(),
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        match self {
            Rnic::Inline(e) => e.snapshot(),
            Rnic::Threads(n) => n.snapshot(),
        }
    }

    fn poll(&mut self) -> bool {
        match self {
            Rnic::Inline(e) => e.poll(),
            Rnic::Threads(_) => false,
        }
    }
}

/// The number of workers of each side, and whether workers have threads.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub workers: [usize; 2],
    pub threads: bool,
}

/// The two RNICs. The first has address 1, the second address 2.
pub struct Rig {
    pub sides: [Rnic; 2],
    /// Without threads, the test moves the clock.
    hand: Option<ManualClock>,
    start: Instant,
    _turn: MutexGuard<'static, ()>,
}

impl Rig {
    pub fn new(shape: Shape) -> Rig {
        Rig::with(shape, |_| {})
    }

    pub fn with(shape: Shape, change: impl Fn(&mut EndpointConfig)) -> Rig {
        let (eal, turn) = eal();
        let (clock, hand) = Clock::manual();
        hand.advance(Duration::from_secs(1));
        let config = |n: u8| {
            let addrs = vec![Cidr::new(addr(n).ip(), 24).unwrap()];
            let tcp = ConnConfig {
                // A thread may be off its processor for longer than the usual time-out.
                rto_min: Duration::from_millis(if shape.threads { 200 } else { 20 }),
                time_wait: Duration::from_millis(10),
                ..ConnConfig::default()
            };
            let mut config = EndpointConfig {
                workers: shape.workers[usize::from(n) - 1],
                memory: 8 << 20,
                // Pools stay as long as the process, so they are small.
                frames: 2047,
                max_conns: 256,
                queues: 64 << 20,
                clock: (!shape.threads).then(|| clock.clone()),
                tcp,
                ..EndpointConfig::with_seed(addrs, Seed::from_u64(n.into()))
            };
            change(&mut config);
            config
        };
        let (a, b) = Endpoint::ring_pair(&eal, &name(), &config(1), &config(2)).unwrap();
        if shape.threads {
            return Rig::threads(&eal, a, b, turn);
        }
        Rig { hand: Some(hand), ..Rig::inline(a, b, turn) }
    }

    /// Starts two RNICs, each worker of which has a thread.
    pub fn threads(eal: &Eal, a: Endpoint, b: Endpoint, turn: MutexGuard<'static, ()>) -> Rig {
        let cpus = allowed_cpus();
        // On a machine with few processors the workers share them.
        let node = |e: Endpoint, first: usize| {
            let lcores: Vec<_> = (0..e.workers()).map(|w| cpus[(first + w) % cpus.len()]).collect();
            Rnic::Threads(Node::start(eal, e, &lcores).unwrap())
        };
        let first = a.workers();
        Rig { sides: [node(a, 0), node(b, first)], hand: None, start: Instant::now(), _turn: turn }
    }

    /// Makes two RNICs without threads, in real time.
    pub fn inline(a: Endpoint, b: Endpoint, turn: MutexGuard<'static, ()>) -> Rig {
        let sides = [a, b].map(|e| Rnic::Inline(Box::new(e)));
        Rig { sides, hand: None, start: Instant::now(), _turn: turn }
    }

    /// Returns the first port of each side.
    pub fn ports(&self) -> [&Port; 2] {
        self.sides.each_ref().map(|s| match s {
            Rnic::Inline(e) => e.port(),
            Rnic::Threads(n) => n.port(),
        })
    }

    pub fn poll(&mut self) {
        let [a, b] = &mut self.sides;
        let busy = a.poll() | b.poll();
        match &self.hand {
            _ if busy => {}
            None => std::thread::yield_now(),
            Some(hand) => {
                hand.advance(Duration::from_micros(50));
            }
        }
    }

    /// Polls one side alone, without threads, while time passes.
    pub fn poll_alone(&mut self, side: usize) {
        let busy = self.sides[side].poll();
        let hand = self.hand.as_ref().expect("it has threads");
        hand.advance(Duration::from_micros(if busy { 1 } else { 50 }));
    }

    /// Polls until `found` returns a value.
    pub fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Rig) -> Option<T>) -> T {
        self.start = Instant::now();
        loop {
            if let Some(t) = found(self) {
                return t;
            }
            self.poll();
            assert!(self.start.elapsed() < PATIENCE, "{what} did not come");
        }
    }

    /// Listens on side `n`.
    pub fn listen(&mut self, n: usize) -> EventQueue {
        self.listen_at(n, addr(u8::try_from(n + 1).unwrap()))
    }

    /// As [`listen`](Self::listen), at any address.
    pub fn listen_at(&mut self, n: usize, at: SocketAddr) -> EventQueue {
        let events = EventQueue::new(None);
        let params = ListenParams { max_startups_per_peer: None, ..ListenParams::default() };
        let id = self.sides[n].device().listen(at, params, &events).unwrap();
        let event = self.until("a listener", |_| events.poll());
        assert_eq!(event, CmEvent::Listening { id });
        events
    }

    /// Connects these queue pairs of side `from` with queue pairs of the other side, all at once.
    /// Returns the ids of each connection as client and server have them.
    pub fn connect(
        &mut self,
        from: usize,
        listener: &EventQueue,
        clients: &[Qp],
        servers: &[Qp],
    ) -> Vec<[CmId; 2]> {
        let device = self.sides[from].device().clone();
        self.connect_of(&device, 1 - from, listener, clients, servers)
    }

    /// As [`connect`](Self::connect), for any device of the side that is not `to`.
    pub fn connect_of(
        &mut self,
        device: &Device,
        to: usize,
        listener: &EventQueue,
        clients: &[Qp],
        servers: &[Qp],
    ) -> Vec<[CmId; 2]> {
        let remote = addr(u8::try_from(to + 1).unwrap());
        self.connect_at(device, (to, remote), listener, clients, servers)
    }

    /// As [`connect_of`](Self::connect_of), to any address of side `to`.
    pub fn connect_at(
        &mut self,
        device: &Device,
        (to, remote): (usize, SocketAddr),
        listener: &EventQueue,
        clients: &[Qp],
        servers: &[Qp],
    ) -> Vec<[CmId; 2]> {
        let events = EventQueue::new(None);
        let ids: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(n, qp)| {
                // The private data carry the index of the queue pair.
                let private_data = u32::try_from(n).unwrap().to_be_bytes().to_vec();
                let params = ConnectParams { private_data, ..ConnectParams::new(qp.clone()) };
                device.connect(remote, params, &events).unwrap()
            })
            .collect();
        let mut theirs = vec![None; ids.len()];
        let mut up = 0;
        while up < 2 * ids.len() {
            match self.until("a connection", |_| listener.poll().or_else(|| events.poll())) {
                CmEvent::ConnectRequest { id, private_data, .. } => {
                    let n = u32::from_be_bytes(private_data[..].try_into().unwrap()) as usize;
                    assert!(theirs[n].replace(id).is_none(), "asked for once");
                    let accept = AcceptParams::new(servers[n].clone());
                    self.sides[to].device().accept(id, accept).unwrap();
                }
                CmEvent::Established { .. } => up += 1,
                other => panic!("{other:?}"),
            }
        }
        ids.into_iter().zip(theirs).map(|(a, b)| [a, b.unwrap()]).collect()
    }

    /// Returns the number of connections that each worker of side `n` has opened and accepted.
    pub fn spread(&self, n: usize) -> Vec<u64> {
        let of = |w: &heddle_ctl::WorkerStatus| {
            let c = w.counters.as_ref().expect("it answers");
            c.engine.stack.opened + c.engine.stack.accepted
        };
        self.sides[n].snapshot().workers.iter().map(of).collect()
    }
}

/// The objects that the connections of an application share.
pub struct App {
    pub device: Device,
    pub pd: Pd,
    pub cq: Cq,
    pub srq: Srq,
    pub mr: Mr,
}

/// Bytes of a message.
pub const SLOT: usize = 256;
/// Messages that the memory has room for, in each of its two halves: to send from, and to receive
/// into.
pub const SLOTS: usize = 1024;

impl App {
    pub fn new(device: &Device) -> App {
        let pd = device.alloc_pd().unwrap();
        let all = Access::LOCAL_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_WRITE);
        App {
            device: device.clone(),
            pd,
            cq: device.create_cq(16_384, None).unwrap(),
            srq: device.create_srq(pd, SLOTS as u32, 2, None).unwrap(),
            mr: device.alloc_mr(pd, 2 * SLOTS * SLOT, all.with(Access::REMOTE_ATOMIC)).unwrap(),
        }
    }

    /// Makes queue pairs that share everything that queue pairs can share.
    pub fn qps(&self, n: usize) -> Vec<Qp> {
        let init = || QpInit::new(self.cq.clone()).depths(32, 32).shared(&self.srq);
        (0..n).map(|_| self.device.create_qp(self.pd, init()).unwrap()).collect()
    }
}

/// Returns true if a number of connections out of `all`, each at one of `workers` by even chance,
/// lies within six standard deviations of the binomial distribution. Chance stays within that in
/// all but one of a billion runs.
pub fn is_fair(all: u64, workers: u64, got: u64) -> bool {
    let (n, p) = (all as f64, 1.0 / workers as f64);
    (got as f64 - n * p).abs() <= 6.0 * (n * p * (1.0 - p)).sqrt()
}
