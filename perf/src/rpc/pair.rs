//! Both ends in one process: two RNICs that rings connect, as [`embedded`](crate::embedded) has
//! them for raw operations.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Clock, Eal, LcoreWorker};
use heddle_rpc::{Server, ServerConfig, TransportConfig};
use heddle_services::Step;
use heddle_services::rpc::program::{BINDING, Bench, PROGRAM, VERSION};
use heddle_tcp::{Cidr, ConnConfig};
use heddle_types::mpa::CrcPolicy;
use heddle_verbs::{ListenParams, MpaOptions, Protocol};

use super::load::{Load, LoadOutcome};
use super::{MAX_DEPTH, RpcError, RpcRun, memory_for};
use crate::embedded::{BenchError, fault_config};
use crate::progress::{Progress, Rhythm};
use crate::sizing::{frames_for, queues_for};
use crate::spec::BenchSpec;

/// The server's address.
pub(super) const SERVER: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 20049);

/// How long the server may take to listen, and to notice that connections have ended.
const SETTLE: Duration = Duration::from_secs(2);

/// Bytes of queue memory of a connection: its send queue also takes registrations.
const QUEUES: usize = 1 << 20;

struct ServerSide {
    endpoint: Endpoint,
    server: Server,
}

/// Two RNICs that rings connect, with a server of the program on one.
pub struct RpcPair {
    sides: Option<(Endpoint, ServerSide)>,
    eal: Eal,
    clock: Clock,
    /// The counter in which runs report how far they are.
    pub progress: Progress,
}

impl RpcPair {
    /// Sets up everything that the runs of `spec` need.
    ///
    /// # Errors
    /// The RNICs or the server cannot start.
    pub fn open(eal: &Eal, spec: &BenchSpec) -> Result<RpcPair, RpcError> {
        RpcPair::begin(eal, spec, Clock::new(eal), None, || {})
    }

    /// Sets up the same with the time of `clock`, which `advance` moves forward.
    pub fn in_time_of(
        eal: &Eal,
        spec: &BenchSpec,
        clock: &Clock,
        advance: impl FnMut(),
    ) -> Result<RpcPair, RpcError> {
        RpcPair::begin(eal, spec, clock.clone(), Some(clock.clone()), advance)
    }

    /// Sets up the pair. `time` is the RNICs' clock if that is not the system's.
    fn begin(
        eal: &Eal,
        spec: &BenchSpec,
        clock: Clock,
        time: Option<Clock>,
        mut advance: impl FnMut(),
    ) -> Result<RpcPair, RpcError> {
        let seed = Seed::from_u64(spec.faults.seed);
        let config = |n: u8| EndpointConfig {
            mtu: spec.mtu,
            memory: memory_for(spec),
            queues: queues_for(spec) + 4 * spec.qps as usize * QUEUES,
            frames: frames_for(spec),
            max_conns: 2 * spec.qps as usize + 16,
            fault: fault_config(&spec.faults),
            clock: time.clone(),
            tcp: ConnConfig { time_wait: Duration::from_millis(10), ..ConnConfig::default() },
            ..EndpointConfig::with_seed(
                Cidr::new(Ipv4Addr::new(10, 0, 0, n).into(), 24).into_iter().collect(),
                seed.derive(n.into()),
            )
        };
        // Names of devices are unique in the process.
        static PAIRS: AtomicU64 = AtomicU64::new(0);
        let name = format!("rpcbench{}", PAIRS.fetch_add(1, Ordering::Relaxed));
        let (a, mut b) =
            Endpoint::ring_pair(eal, &name, &config(1), &config(2)).map_err(BenchError::from)?;
        let mut server = Server::new(b.device(), SERVER, server_config(spec))?;
        let program = Bench::new(server.memory().clone());
        server.register(PROGRAM, VERSION..=VERSION, BINDING, program)?;
        let until = b.now() + SETTLE;
        while !server.listening()? && b.now() < until {
            advance();
            b.poll();
            server.step();
        }
        let sides = Some((a, ServerSide { endpoint: b, server }));
        Ok(RpcPair { sides, eal: *eal, clock, progress: Progress::default() })
    }

    /// Runs a round: without processors on the calling thread, otherwise with the client on the
    /// first processor and the server on the second.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn run(&mut self, what: RpcRun, cores: &[usize]) -> Result<LoadOutcome, RpcError> {
        let (a, b) = self.sides.take().ok_or(RpcError::Lost)?;
        self.progress.set(0);
        let (a, b, outcome) = match *cores {
            [] => run_inline(a, b, &self.clock, what, &self.progress),
            [ours, theirs] => {
                run_on(&self.eal, [ours, theirs], (a, b), &self.clock, what, &self.progress)?
            }
            _ => {
                self.sides = Some((a, b));
                return Err(BenchError::Processors { given: cores.len(), wanted: 2 }.into());
            }
        };
        self.sides = Some((a, b));
        outcome
    }

    /// Makes a client of the server, which the caller drives.
    pub fn load(&self, what: RpcRun) -> Result<Load, RpcError> {
        let (a, _) = self.sides.as_ref().ok_or(RpcError::Lost)?;
        Load::new(a.device(), &self.clock, SERVER, what)
    }

    /// Gives each RNIC, the server and `load` a turn.
    pub fn turn(&mut self, load: &mut Load) -> Result<Step, RpcError> {
        let (a, b) = self.sides.as_mut().ok_or(RpcError::Lost)?;
        a.poll();
        b.turn();
        load.step()
    }
}

impl ServerSide {
    fn turn(&mut self) {
        self.endpoint.poll();
        self.server.step();
    }
}

/// Returns the configuration of a server for any run of `spec`, for all versions.
fn server_config(spec: &BenchSpec) -> ServerConfig {
    let usual = TransportConfig::default();
    let qps = spec.qps as usize;
    let calls = spec.sizes.iter().map(|size| spec.depth_for(size)).max().unwrap_or(1);
    let calls = u16::try_from(calls.min(MAX_DEPTH)).unwrap_or(u16::MAX).max(usual.calls);
    let memory = memory_for(spec) / 2;
    // The server leaves the CRC to the client, since connections use a CRC when either side asks
    // for it.
    let protocol = Protocol::Mpa(MpaOptions {
        crc: CrcPolicy::Off,
        markers: spec.mpa.markers,
        rtr: spec.mpa.rtr,
        ..MpaOptions::default()
    });
    ServerConfig {
        transport: TransportConfig { calls, ..usual },
        listen: ListenParams { protocol, backlog: qps + 16, ..ListenParams::default() },
        memory,
        connection_memory: memory,
        connections: 2 * qps,
        peer_connections: 2 * qps,
        ..ServerConfig::default()
    }
}

type Both = (Endpoint, ServerSide, Result<LoadOutcome, RpcError>);

fn run_inline(
    mut a: Endpoint,
    mut b: ServerSide,
    clock: &Clock,
    what: RpcRun,
    progress: &Progress,
) -> Both {
    let load = Load::new(a.device(), clock, SERVER, what);
    let outcome = load.and_then(|mut load| {
        let outcome = drive(&mut load, progress, || {
            a.poll();
            b.turn();
        });
        // Poll on until the server has noticed the end, and memory has come back.
        load.close();
        let until = a.now() + SETTLE;
        while a.now() < until && b.server.connections() > 0 {
            a.poll();
            b.turn();
            let _ = load.step();
        }
        outcome
    });
    (a, b, outcome)
}

/// Steps a load to its end, and calls `poll` in between so that the RNICs progress.
pub(super) fn drive(
    load: &mut Load,
    progress: &Progress,
    mut poll: impl FnMut(),
) -> Result<LoadOutcome, RpcError> {
    let mut rhythm = Rhythm::new();
    loop {
        poll();
        load.step()?;
        if let Some(outcome) = load.outcome() {
            return Ok(outcome);
        }
        if rhythm.is_due() {
            progress.set(load.ops());
        }
    }
}

fn run_on(
    eal: &Eal,
    [ours, theirs]: [usize; 2],
    (mut a, mut b): (Endpoint, ServerSide),
    clock: &Clock,
    what: RpcRun,
    progress: &Progress,
) -> Result<Both, RpcError> {
    let server = LcoreWorker::spawn(eal, theirs, "heddle-server", move |stop| {
        while !stop.is_set() {
            b.turn();
        }
        b
    });
    let server = server.map_err(BenchError::from)?;
    let (clock, progress) = (clock.clone(), progress.clone());
    let client = LcoreWorker::spawn(eal, ours, "heddle-client", move |_| {
        let outcome = run_client(&mut a, &clock, SERVER, what, &progress);
        (a, outcome)
    });
    let client = client.map_err(BenchError::from)?;
    while !client.is_finished() && !server.is_finished() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (a, outcome) = client.join().map_err(BenchError::from)?;
    let b = server.join().map_err(BenchError::from)?;
    Ok((a, b, outcome))
}

/// How long peers of closed connections may still exchange their last packets.
const LINGER: Duration = Duration::from_millis(20);

/// Runs a client on the calling thread, against a server elsewhere.
pub(super) fn run_client(
    a: &mut Endpoint,
    clock: &Clock,
    server: SocketAddr,
    what: RpcRun,
    progress: &Progress,
) -> Result<LoadOutcome, RpcError> {
    let mut load = Load::new(a.device(), clock, server, what)?;
    let outcome = drive(&mut load, progress, || {
        a.poll();
    });
    load.close();
    let until = a.now() + LINGER;
    while a.now() < until {
        a.poll();
        let _ = load.step();
    }
    outcome
}
