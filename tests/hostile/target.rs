//! An RNIC of this process at the server's end of the wire, so that a test can inspect its memory
//! and its counters. Its application gives each connection the same few regions.
//!
//! ```text
//!   slot of a connection, 64 KiB of one arena; everything between is guard
//!   0      4096             24576       32768        40960      45056        64 Ki
//!   │guard│ window          │ read only │ write only │ receives │ sinks      │ guard
//!         └ write, read, atomics         └ write      └ 2 of 64  └ 200 and 8
//! ```
//!
//! The peer receives the STags as private data ([`Stags`]), together with STags of regions that it
//! must not use. The peer's private data tell the application what to post ([`plan`]).

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use heddle::connection::{
    AcceptParams, CmEvent, CmId, ConnectFailure, DisconnectReason, EventQueue, ListenParams,
    MpaOptions,
};
use heddle::counters::Snapshot;
use heddle::dpdk::{Hugepages, Mempool, MempoolConfig, Port, PortConfig, PortSource};
use heddle::hub::Hub;
use heddle::memory::{Pd, Region};
use heddle::queue::QpInit;
use heddle::tcp::ConnConfig;
use heddle::{
    Access, Cq, Device, Eal, EalConfig, Endpoint, EndpointConfig, Mr, Qp, RecvWr, Seed, SendWr,
    Stag,
};

use crate::net::{Lab, SERVER, SERVER_IFACE};
use crate::server::service;

/// The port where the target listens.
pub const PLAIN: u16 = 7474;
/// The port where the target also asks for markers.
pub const MARKED: u16 = 7475;
/// Number of connections that the target has room for, including TCP's.
pub const PLACES: usize = 48;
/// The longest time until the target has everything back that a peer had of it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The operations that the application is to post, as bits of the first byte of the Request's
/// private data.
pub mod plan {
    /// Post nothing but receives.
    pub const NOTHING: u8 = 0;
    /// Post a Read of 200 bytes.
    pub const READ: u8 = 1;
    /// Post a fetch-and-add.
    pub const ATOMIC: u8 = 2;
    /// Post the receives, and then unregister their region.
    pub const RECEIVES_GONE: u8 = 4;
    /// Post a Send of 32 bytes.
    pub const SEND: u8 = 8;
}

/// The tagged offset of the first byte of every region.
pub const TO: u64 = 0x10_0000;
/// Bytes of the window that peers may use.
pub const WINDOW: usize = 16 << 10;
const SMALL: usize = 4096;
/// Bytes of a receive buffer.
pub const RECV: usize = 64;
/// Bytes of the Read.
pub const READ_LEN: usize = 200;

const SLOT: usize = 64 << 10;
const WINDOW_AT: usize = 4096;
const READ_ONLY_AT: usize = 24_576;
const WRITE_ONLY_AT: usize = 32_768;
const RECV_AT: usize = 40_960;
const SINK_AT: usize = 45_056;
const ATOMIC_SINK: usize = 256;
const SINKS: usize = ATOMIC_SINK + 8;
/// The parts of a slot that a peer, or an operation of the application, may change.
const OPEN: [(usize, usize); 5] = [
    (WINDOW_AT, WINDOW),
    (WRITE_ONLY_AT, SMALL),
    (RECV_AT, 2 * RECV),
    (SINK_AT, READ_LEN),
    (SINK_AT + ATOMIC_SINK, 8),
];
const FILL: u8 = 0xee;
/// Frames that a worker keeps at hand after it has sent anything.
const SPARE_FRAMES: u32 = 32;

/// The STags that a peer receives.
#[derive(Clone, Copy, Debug)]
pub struct Stags {
    /// The STag of the window: Write, Read, atomics.
    pub all: u32,
    /// A region that peers may only read.
    pub read_only: u32,
    /// A region that peers may only write.
    pub write_only: u32,
    /// A region of another protection domain.
    pub other_pd: u32,
    /// A region of another stream of the same protection domain.
    pub other_stream: u32,
    /// An unregistered region.
    pub gone: u32,
    /// The region for the peer's answers.
    pub sink: u32,
}

impl Stags {
    fn emit(self) -> Vec<u8> {
        let Stags { all, read_only, write_only, other_pd, other_stream, gone, sink } = self;
        [all, read_only, write_only, other_pd, other_stream, gone, sink]
            .iter()
            .flat_map(|s| s.to_be_bytes())
            .collect()
    }

    /// Parses the STags from a Reply's private data.
    ///
    /// # Panics
    /// Panics if they are not all present.
    pub fn parse(b: &[u8]) -> Stags {
        assert_eq!(b.len(), 28, "{b:02x?}");
        let n = |i: usize| u32::from_be_bytes([b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]]);
        Stags {
            all: n(0),
            read_only: n(1),
            write_only: n(2),
            other_pd: n(3),
            other_stream: n(4),
            gone: n(5),
            sink: n(6),
        }
    }
}

/// The end of a connection that a peer had requested from the application.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The reason for the end.
    pub reason: Result<DisconnectReason, ConnectFailure>,
    /// True if any changeable part of its slot has changed.
    pub touched: bool,
}

#[derive(Default)]
struct Shared {
    ended: Mutex<HashMap<SocketAddr, Ended>>,
    /// Changes found in places that must not change.
    violations: Mutex<Vec<String>>,
    live: Mutex<usize>,
    /// Addresses of peers whose connection is established.
    established: Mutex<HashSet<SocketAddr>>,
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The RNIC. Dropping the value ends it.
pub struct Target {
    /// The device, for a test's own calls.
    pub device: Device,
    /// The RNIC itself.
    hub: Arc<Hub>,
    shared: Arc<Shared>,
    questions: Sender<Sender<Snapshot>>,
    stop: Arc<AtomicBool>,
    pump: Option<JoinHandle<()>>,
    pool: Mempool,
    /// Registrations and frames in use while there is no connection.
    idle: (usize, u32),
}

fn eal() -> Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    let config = EalConfig { hugepages: Hugepages::Never, memory_mb: 1024, ..EalConfig::default() };
    *EAL.get_or_init(|| Eal::init(&config).expect("DPDK starts"))
}

impl Target {
    /// Starts a target that listens at [`PLAIN`] and [`MARKED`].
    pub fn start(lab: &Lab) -> Target {
        let eal = eal();
        let config = EndpointConfig {
            memory: 1 << 20,
            frames: 8191,
            max_conns: PLACES,
            max_mrs: 8 * PLACES,
            max_regions: 8 * PLACES,
            infiniband: true,
            // A short TIME-WAIT frees a place as soon as its connection is over.
            tcp: ConnConfig { time_wait: Duration::from_millis(10), ..ConnConfig::default() },
            ..EndpointConfig::with_seed(
                vec![format!("{SERVER}/16").parse().expect("an address")],
                Seed::from_u64(7306),
            )
        };
        let vdev = format!("net_af_packet1,iface={SERVER_IFACE}").parse().expect("a device");
        let pool = Mempool::new(&eal, &MempoolConfig::for_mtu(config.frames, config.mtu));
        let pool = pool.expect("memory");
        let port = || Port::open(&eal, &PortSource::Vdev(vdev), &PortConfig::new(pool));
        // The driver's sockets belong to the namespace in which this makes the device.
        let port = lab.server.run(|| port().expect("the interface is there"));
        let endpoint = Endpoint::on_port(&eal, port, pool, &config).expect("an RNIC");
        let (device, hub) = (endpoint.device().clone(), endpoint.hub().clone());
        let shared = Arc::new(Shared::default());
        let (questions, asked) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let app = App::new(&device, shared.clone());
        let (listening, listens) = channel();
        let stopped = stop.clone();
        let pump = thread::spawn(move || pump(endpoint, app, &asked, &listening, &stopped));
        for _ in [PLAIN, MARKED] {
            listens.recv_timeout(PATIENCE).expect("it listens");
        }
        let mut target =
            Target { device, hub, shared, questions, stop, pump: Some(pump), pool, idle: (0, 0) };
        target.idle = (target.hub.registry().mrs().len(), target.pool.in_use());
        target
    }

    /// Returns the number of connections that the application has.
    pub fn live(&self) -> usize {
        *lock(&self.shared.live)
    }

    /// Returns true if the connection of the peer at `local` is established.
    pub fn is_established(&self, local: SocketAddr) -> bool {
        lock(&self.shared.established).contains(&local)
    }

    /// Returns all counters.
    pub fn snapshot(&self) -> Snapshot {
        let (reply, answer) = channel();
        self.questions.send(reply).expect("the RNIC runs");
        answer.recv_timeout(PATIENCE).expect("the RNIC answers")
    }

    /// Waits until the connection of the peer at `local` has ended, and returns how.
    pub fn ended(&self, local: SocketAddr) -> Ended {
        let start = Instant::now();
        loop {
            if let Some(ended) = lock(&self.shared.ended).remove(&local) {
                return ended;
            }
            assert!(start.elapsed() < PATIENCE, "the connection of {local} does not end");
            self.assert_running();
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn assert_running(&self) {
        assert!(self.pump.as_ref().is_some_and(|p| !p.is_finished()), "the RNIC has ended");
    }

    /// Checks that no byte has changed outside of what the application advertised or posted.
    pub fn assert_guards(&self) {
        self.assert_running();
        let violations = lock(&self.shared.violations);
        assert!(violations.is_empty(), "{violations:#?}");
    }

    /// Checks that every connection, registration and frame has been released.
    pub fn assert_all_is_back(&self) {
        let registry = self.hub.registry().clone();
        let start = Instant::now();
        loop {
            let (conns, draining) = (*lock(&self.shared.live), registry.draining());
            let left = (registry.mrs().len(), self.pool.in_use());
            let frames = self.idle.1..=self.idle.1 + SPARE_FRAMES;
            if (conns, draining) == (0, 0) && left.0 == self.idle.0 && frames.contains(&left.1) {
                return;
            }
            self.assert_running();
            assert!(
                start.elapsed() < PATIENCE,
                "{conns} connections; {draining} registrations on their way; registrations and \
                 frames in use {left:?}, at first {:?}",
                self.idle
            );
            registry.reclaim();
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.pump.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended
            && !thread::panicking()
        {
            panic!("the RNIC has panicked");
        }
    }
}

fn pump(
    mut endpoint: Endpoint,
    mut app: App,
    asked: &Receiver<Sender<Snapshot>>,
    listening: &Sender<()>,
    stop: &AtomicBool,
) {
    let mut idle = 0;
    while !stop.load(Ordering::Relaxed) {
        let busy = endpoint.poll() | app.step(listening);
        while let Ok(reply) = asked.try_recv() {
            let _ = reply.send(endpoint.snapshot());
        }
        idle = if busy { 0 } else { idle + 1 };
        // On a machine with few processors the peers need them as well.
        if idle > 128 {
            thread::sleep(Duration::from_micros(20));
        }
    }
}

/// The objects of one connection.
struct World {
    remote: SocketAddr,
    slot: usize,
    _qp: Qp,
    _neighbour: Qp,
    _mrs: Vec<Mr>,
    /// A region of another stream.
    other: Mr,
}

struct App {
    device: Device,
    shared: Arc<Shared>,
    events: EventQueue,
    cq: Cq,
    arena: Arc<Region>,
    free: Vec<usize>,
    worlds: HashMap<CmId, World>,
    other_pd: Mr,
}

impl App {
    fn new(device: &Device, shared: Arc<Shared>) -> App {
        let events = EventQueue::new(None);
        for (port, markers) in [(PLAIN, false), (MARKED, true)] {
            let mpa = MpaOptions::new().markers(markers);
            let params =
                ListenParams { infiniband: port == PLAIN, ..ListenParams::default().mpa(mpa) };
            device.listen(service(port), params, &events).expect("it can listen");
        }
        let all = rights().with(Access::REMOTE_ATOMIC);
        let other_pd =
            device.alloc_mr(device.alloc_pd().expect("a PD"), SMALL, all).expect("memory");
        other_pd.write(0, &[FILL; SMALL]);
        let arena = Region::anonymous(PLACES * SLOT).expect("memory");
        App {
            device: device.clone(),
            shared,
            events,
            cq: device.create_cq(1 << 12, None).expect("a completion queue"),
            arena: Arc::new(arena),
            free: (0..PLACES).rev().collect(),
            worlds: HashMap::new(),
            other_pd,
        }
    }

    fn step(&mut self, listening: &Sender<()>) -> bool {
        while self.cq.poll().is_some() {}
        let Some(event) = self.events.poll() else { return false };
        match event {
            CmEvent::Listening { .. } => drop(listening.send(())),
            CmEvent::ConnectRequest { id, remote, private_data, .. } => {
                self.accept(id, remote, private_data.first().copied().unwrap_or(0));
            }
            CmEvent::Established { id, .. } => {
                if let Some(world) = self.worlds.get(&id) {
                    lock(&self.shared.established).insert(world.remote);
                }
            }
            CmEvent::Disconnected { id, reason, .. } => self.over(id, Ok(reason)),
            CmEvent::ConnectError { id, error, .. } => self.over(id, Err(error)),
            other => panic!("{other:?}"),
        }
        true
    }

    fn accept(&mut self, id: CmId, remote: SocketAddr, plan: u8) {
        let slot = self.free.pop().expect("as many slots as connections");
        let base = slot * SLOT;
        self.arena.place(base, &[FILL; SLOT]).expect("it is inside");
        let pd = self.device.alloc_pd().expect("a PD");
        let region =
            |at: usize, len: usize, access: Access| self.region(pd, base + at, len, access);
        let window = region(WINDOW_AT, WINDOW, rights().with(Access::REMOTE_ATOMIC));
        let read_only = region(READ_ONLY_AT, SMALL, Access::REMOTE_READ);
        let write_only = region(WRITE_ONLY_AT, SMALL, Access::REMOTE_WRITE);
        let receives = region(RECV_AT, 2 * RECV, Access::LOCAL_WRITE);
        let sinks = region(SINK_AT, SINKS, Access::LOCAL_WRITE);
        let gone = region(WINDOW_AT, WINDOW, rights()).stag();
        let init = QpInit::new(self.cq.clone()).depths(8, 8);
        let qp = self.device.create_qp(pd, init.clone()).expect("a queue pair");
        let neighbour = self.device.create_qp(pd, init).expect("a queue pair");
        let other = self.device.alloc_mr_for(&neighbour, SMALL, rights()).expect("memory");
        other.write(0, &[FILL; SMALL]);
        for n in 0..2 {
            let sges = [receives.sge(n * RECV, RECV)];
            qp.post_recv(&RecvWr::new(10 + n as u64, &sges)).expect("there is room");
        }
        let there = Stag(77);
        let sges = [sinks.sge(0, READ_LEN)];
        if plan & plan::READ != 0 {
            qp.post_send(&SendWr::read(1, &sges, there, 0)).expect("there is room");
        }
        let sges = [sinks.sge(ATOMIC_SINK, 8)];
        if plan & plan::ATOMIC != 0 {
            qp.post_send(&SendWr::fetch_add(2, &sges, there, 0, 1)).expect("there is room");
        }
        if plan & plan::SEND != 0 {
            qp.post_send(&SendWr::send_inline(3, &[0x5a; 32])).expect("there is room");
        }
        let stags = Stags {
            all: window.stag().0,
            read_only: read_only.stag().0,
            write_only: write_only.stag().0,
            other_pd: self.other_pd.stag().0,
            other_stream: other.stag().0,
            gone: gone.0,
            sink: sinks.stag().0,
        };
        let mut mrs = vec![window, read_only, write_only, sinks];
        if plan & plan::RECEIVES_GONE == 0 {
            mrs.push(receives);
        }
        let private_data = stags.emit();
        let params = AcceptParams { private_data, ..AcceptParams::new(qp.clone()).reads(2, 2) };
        *lock(&self.shared.live) += 1;
        let accepted = self.device.accept(id, params);
        let world = World { remote, slot, _qp: qp, _neighbour: neighbour, _mrs: mrs, other };
        self.worlds.insert(id, world);
        accepted.expect("the request was told of");
    }

    fn region(&self, pd: Pd, at: usize, len: usize, access: Access) -> Mr {
        self.device.register_mr(pd, &self.arena, (at, len), TO, access).expect("a registration")
    }

    fn over(&mut self, id: CmId, reason: Result<DisconnectReason, ConnectFailure>) {
        // The connection may have ended before the application accepted it.
        let Some(world) = self.worlds.remove(&id) else { return };
        let mut bytes = vec![0; SLOT];
        self.arena.gather(world.slot * SLOT, &mut bytes).expect("it is inside");
        let mut touched = false;
        for (at, len) in OPEN {
            let open = &mut bytes[at..at + len];
            touched |= open.iter().any(|b| *b != FILL);
            open.fill(FILL);
        }
        let changed = |what: &str, bytes: &[u8]| {
            if let Some(at) = bytes.iter().position(|b| *b != FILL) {
                let found = format!("{}: {what} at {at}, {reason:?}", world.remote);
                lock(&self.shared.violations).push(found);
            }
        };
        changed("its slot", &bytes);
        for (what, mr) in [("another stream's", &world.other), ("another PD's", &self.other_pd)] {
            let mut bytes = vec![0; SMALL];
            mr.read(0, &mut bytes);
            changed(what, &bytes);
        }
        self.free.push(world.slot);
        let remote = world.remote;
        drop(world);
        *lock(&self.shared.live) -= 1;
        lock(&self.shared.established).remove(&remote);
        lock(&self.shared.ended).insert(remote, Ended { reason, touched });
    }
}

fn rights() -> Access {
    Access::LOCAL_WRITE.with(Access::REMOTE_READ).with(Access::REMOTE_WRITE)
}
