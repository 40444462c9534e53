//! Both ends in one process: two RNICs joined by rings, as [`embedded`](crate::embedded) has for raw
//! operations.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_base::Seed;
use heddle_ctl::{Endpoint, EndpointConfig};
use heddle_dataplane::{Clock, Eal, LcoreWorker};
use heddle_iwarp::mpa::startup::CrcPolicy;
use heddle_rpc::{Server, ServerConfig, TransportConfig};
use heddle_tcp::{Cidr, ConnConfig};
use heddle_verbs::{ListenParams, MpaOptions, Protocol};

use super::load::{Load, LoadOutcome};
use super::program::{BINDING, Bench, PROGRAM, VERSION};
use super::{MAX_DEPTH, RpcError, RpcRun, memory_for};
use crate::embedded::{BenchError, fault_config, frames_for, queues_for};
use crate::progress::Progress;
use crate::spec::BenchSpec;
use crate::workload::Step;

/// The server.
pub(super) const SERVER: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 20049);

/// How long the server may take to listen, and to hear that connections have ended.
const SETTLE: Duration = Duration::from_secs(2);

/// Steps between updates of [`Progress`].
const UPDATE_EVERY: u32 = 1 << 12;

/// Memory for queues of a connection: its send queue is for registrations too.
const QUEUES: usize = 1 << 20;

struct ServerSide {
    endpoint: Endpoint,
    server: Server,
}

/// Two RNICs joined by rings, a server of the program on one.
pub struct RpcPair {
    sides: Option<(Endpoint, ServerSide)>,
    eal: Eal,
    clock: Clock,
    /// Where runs say how far they are.
    pub progress: Progress,
}

impl RpcPair {
    /// Sets up what all runs of `spec` need.
    ///
    /// # Errors
    /// The RNICs, or the server.
    pub fn open(eal: &Eal, spec: &BenchSpec) -> Result<RpcPair, RpcError> {
        RpcPair::begin(eal, spec, (Clock::new(eal), None), || {})
    }

    /// The same in the time of `clock`, which `advance` lets pass.
    pub fn in_time_of(
        eal: &Eal,
        spec: &BenchSpec,
        clock: &Clock,
        advance: impl FnMut(),
    ) -> Result<RpcPair, RpcError> {
        RpcPair::begin(eal, spec, (clock.clone(), Some(clock.clone())), advance)
    }

    /// `time` is that of the RNICs, where it is not the system's.
    fn begin(
        eal: &Eal,
        spec: &BenchSpec,
        (clock, time): (Clock, Option<Clock>),
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
        // Names of devices are the process's.
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

    /// One round: on the calling thread without processors, otherwise with the client on the first and
    /// the server on the second.
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

    /// A client of the server, for whoever drives it.
    pub fn load(&self, what: RpcRun) -> Result<Load, RpcError> {
        let (a, _) = self.sides.as_ref().ok_or(RpcError::Lost)?;
        Load::new(a.device(), &self.clock, SERVER, what)
    }

    /// Each RNIC, the server and `load` have their turn.
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

/// A server for any run of `spec`, whatever it speaks.
fn server_config(spec: &BenchSpec) -> ServerConfig {
    let usual = TransportConfig::default();
    let qps = spec.qps as usize;
    let calls = spec.sizes.iter().map(|size| spec.depth_for(size)).max().unwrap_or(1);
    let calls = u16::try_from(calls.min(MAX_DEPTH)).unwrap_or(u16::MAX).max(usual.calls);
    let memory = memory_for(spec) / 2;
    // Whether there is a CRC is the client's to say: it is used when either side asks.
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
        // The server hears of the end, and memory comes back.
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

/// Steps a load to its end, with `poll` for what it needs to get on in between.
pub(super) fn drive(
    load: &mut Load,
    progress: &Progress,
    mut poll: impl FnMut(),
) -> Result<LoadOutcome, RpcError> {
    let mut steps = 0u32;
    loop {
        poll();
        load.step()?;
        if let Some(outcome) = load.outcome() {
            return Ok(outcome);
        }
        steps = steps.wrapping_add(1);
        if steps.is_multiple_of(UPDATE_EVERY) {
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

/// How long the last packets of closed connections may still go to and fro.
const LINGER: Duration = Duration::from_millis(20);

/// Runs a client on the calling thread, against a server somewhere else.
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
