//! How an RNIC is set up: what is the RNIC's, and what is each port's.

use core::net::IpAddr;
use core::time::Duration;

use heddle_base::Seed;
use heddle_cm::{Own, PortsError};
use heddle_dataplane::{Clock, FaultConfig, LcoreError, MempoolError, PortError};
use heddle_rnic::RnicConfig;
use heddle_tcp::{AddrError, Addressing, Cidr, ConnConfig, PeerLimit, Route, SpreadError};
use heddle_verbs::{DeviceConfig, DeviceError, PageSize};

/// Workers an RNIC may have.
pub const MAX_WORKERS: usize = 64;

/// Workers that an inner port may have: queues of a port made of rings.
pub const MAX_INNER: usize = 16;

/// What all workers and ports of an RNIC share.
#[derive(Clone, Debug)]
pub struct RnicSetup {
    /// Connections of one worker at a time.
    pub max_conns: usize,
    /// Memory regions at a time.
    pub max_mrs: usize,
    /// Octets of memory the RNIC's own device can register without bringing its own.
    pub memory: usize,
    /// Pages of that memory. It lies at the processor socket where most workers' ports are.
    pub pages: PageSize,
    /// Octets of the RNIC's own device for queues. A completion queue takes room for each worker.
    pub queues: usize,
    /// Regions of memory at a time: one for each device, and those that applications bring.
    pub max_regions: usize,
    /// From where everything a peer must not guess is derived, the same for all workers.
    pub seed: Seed,
    /// Time; the cycle counter when absent.
    pub clock: Option<Clock>,
    /// Frames taken from a queue at a time, 1..=[`BURST`](heddle_dataplane::BURST).
    pub rx_burst: usize,
    /// TCP's numbers; the MSS is set from the MTU.
    pub tcp: ConnConfig,
    /// Connections that one peer address may have opened to a worker at a time.
    pub peer_conns: PeerLimit,
    /// How long the orderly close of an established connection may take in all; see
    /// [`CmConfig::close_limit`](heddle_cm::CmConfig::close_limit).
    pub close_limit: Duration,
    /// Octets that FPDUs of a worker's connections may take which have begun and are not whole; see
    /// [`RnicConfig::max_unfinished_bytes`](heddle_rnic::RnicConfig::max_unfinished_bytes).
    pub fpdu_memory: usize,
    /// How long a peer may leave an FPDU unfinished; see
    /// [`RnicConfig::fpdu_stall`](heddle_rnic::RnicConfig::fpdu_stall).
    pub fpdu_stall: Duration,
    /// How long a message of a peer's waits for a receive before it ends the stream; see
    /// [`RnicConfig::rnr_wait`](heddle_rnic::RnicConfig::rnr_wait).
    pub rnr_wait: Duration,
    /// Whether InfiniBand's connection management is spoken on RoCEv2's UDP port, 4791, of all
    /// addresses: the RDMA IP CM service. Applications ask for its connections one by one, and they
    /// carry no data; see [`Transport`](heddle_cm::Transport).
    pub infiniband: bool,
    /// Silence after which the peer of an InfiniBand connection that it made is asked whether it is there,
    /// a minute unless told otherwise; never when absent. See
    /// [`IbConfig::keepalive`](heddle_cm::IbConfig::keepalive).
    pub ib_keepalive: Option<Duration>,
    /// The inner port, by which the RNIC connects to itself; without one, connections to its own addresses
    /// are refused. An RNIC that has one needs no other port.
    pub inner: Option<InnerSetup>,
}

impl RnicSetup {
    /// 1,024 connections for each worker, 64 MiB of registered memory, and a seed that nobody can
    /// guess.
    pub fn new() -> RnicSetup {
        RnicSetup::with_seed(crate::random_seed())
    }

    /// The same with a seed of the caller's; see [`EndpointConfig::with_seed`].
    pub fn with_seed(seed: Seed) -> RnicSetup {
        RnicSetup {
            max_conns: 1024,
            max_mrs: 4096,
            memory: 64 << 20,
            pages: PageSize::Auto,
            queues: DeviceConfig::default().queues,
            max_regions: 256,
            seed,
            clock: None,
            rx_burst: heddle_dataplane::BURST,
            tcp: ConnConfig::default(),
            peer_conns: PeerLimit::Share,
            close_limit: Duration::from_secs(600),
            fpdu_memory: RnicConfig::FPDU_MEMORY,
            fpdu_stall: RnicConfig::FPDU_STALL,
            rnr_wait: Duration::ZERO,
            infiniband: false,
            ib_keepalive: Some(Duration::from_secs(60)),
            inner: None,
        }
    }
}

impl Default for RnicSetup {
    fn default() -> RnicSetup {
        RnicSetup::new()
    }
}

/// The inner port of an RNIC: it has the addresses of all ports, and whatever its workers send comes back
/// to the worker that sends it. See ADR 19.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerSetup {
    /// Workers, at least 1. Both ends of a connection are at one of them.
    pub workers: usize,
    /// Largest IP packet, in bytes: 576..=65,000.
    pub mtu: u16,
    /// Frames in its pool, for each worker.
    pub frames: u32,
    /// Addresses that the RNIC has besides those of its ports.
    pub own: Own,
}

impl Default for InnerSetup {
    /// One worker, an MTU of 32 KiB, 1,024 frames, and addresses of ports alone.
    fn default() -> InnerSetup {
        InnerSetup { workers: 1, mtu: 32 << 10, frames: 1024, own: Own::default() }
    }
}

impl InnerSetup {
    /// The usual one, with all of 127.0.0.0/8.
    pub fn loopback() -> InnerSetup {
        InnerSetup { own: Own { loopback: true, ..Own::default() }, ..InnerSetup::default() }
    }

    /// What is the same for all ports.
    pub(crate) fn port(&self) -> Result<PortSetup, OpenError> {
        let InnerSetup { workers, mtu, frames, own: _ } = *self;
        if !(576..=65_000).contains(&mtu) {
            return Err(OpenError::InnerMtu(mtu));
        }
        if !(1..=MAX_INNER).contains(&workers) {
            return Err(OpenError::InnerWorkers(workers));
        }
        Ok(PortSetup { workers, mtu, frames, ..PortSetup::new(Vec::new()) })
    }
}

/// One port of an RNIC: its addresses, and the workers that share it.
#[derive(Clone, Debug)]
pub struct PortSetup {
    /// Our addresses at this port with their prefixes.
    pub addrs: Vec<Cidr>,
    /// Where peers outside the prefixes are reached; the longest prefix counts.
    pub routes: Vec<Route>,
    /// Largest IP packet, in octets: 576..=9000.
    pub mtu: u16,
    /// Workers that share the port, at least 1.
    pub workers: usize,
    /// Pairs of queues, at most one for each worker. As many as there are workers when absent, or as
    /// the device has if those are fewer.
    pub queue_pairs: Option<usize>,
    /// Frames in the port's pool, for each worker.
    pub frames: u32,
    /// Let queues interrupt, for threads that sleep ([`IdlePolicy`](heddle_dataplane::IdlePolicy)). A
    /// device that cannot is opened without.
    pub rx_interrupt: bool,
    /// Faults to make on sent frames.
    pub fault: FaultConfig,
}

impl PortSetup {
    /// No routes, MTU 1500, one worker, no faults.
    pub fn new(addrs: Vec<Cidr>) -> PortSetup {
        PortSetup {
            addrs,
            routes: Vec::new(),
            mtu: 1500,
            workers: 1,
            queue_pairs: None,
            frames: 16 * 1024,
            rx_interrupt: false,
            fault: FaultConfig::default(),
        }
    }

    /// Whether a port can be set up like this, as far as that can be known without a device.
    ///
    /// # Errors
    /// [`OpenError`], as opening would have it.
    pub fn check(&self) -> Result<(), OpenError> {
        self.addressing()?;
        if !(576..=9000).contains(&self.mtu) {
            return Err(OpenError::Mtu(self.mtu));
        }
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return Err(OpenError::Workers(self.workers));
        }
        match self.queue_pairs {
            Some(queues) if !(1..=self.workers).contains(&queues) => {
                Err(OpenError::QueuePairs { queues, workers: self.workers })
            }
            _ => Ok(()),
        }
    }

    /// Addresses and routes.
    pub(crate) fn addressing(&self) -> Result<Addressing, OpenError> {
        if self.addrs.is_empty() {
            return Err(OpenError::NoAddress);
        }
        Ok(Addressing::new(self.addrs.clone(), self.routes.clone())?)
    }
}

/// How long an RNIC bears with peers that keep its connections from getting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// What TCP bears.
    pub tcp: heddle_tcp::Patience,
    /// See [`RnicSetup::close_limit`].
    pub close_limit: Duration,
    /// See [`RnicSetup::fpdu_stall`].
    pub fpdu_stall: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        RnicSetup::with_seed(Seed::from_u64(0)).patience()
    }
}

impl RnicSetup {
    /// How long it bears with peers.
    pub const fn patience(&self) -> Patience {
        Patience {
            tcp: self.tcp.patience(),
            close_limit: self.close_limit,
            fpdu_stall: self.fpdu_stall,
        }
    }

    /// The same with another patience.
    #[must_use]
    pub fn with_patience(self, p: Patience) -> RnicSetup {
        let Patience { tcp, close_limit, fpdu_stall } = p;
        RnicSetup { tcp: self.tcp.with_patience(tcp), close_limit, fpdu_stall, ..self }
    }
}

/// How an RNIC of one port is set up: [`RnicSetup`] and [`PortSetup`] in one.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Our addresses with their prefixes.
    pub addrs: Vec<Cidr>,
    /// Where peers outside the prefixes are reached.
    pub gateway: Option<IpAddr>,
    /// Largest IP packet, in octets: 576..=9000.
    pub mtu: u16,
    /// Workers that share the port.
    pub workers: usize,
    /// Pairs of queues of the port; see [`PortSetup::queue_pairs`].
    pub queue_pairs: Option<usize>,
    /// Connections of one worker at a time.
    pub max_conns: usize,
    /// Memory regions at a time.
    pub max_mrs: usize,
    /// Octets of memory the RNIC's own device can register without bringing its own.
    pub memory: usize,
    /// Pages of that memory.
    pub pages: PageSize,
    /// Octets of the RNIC's own device for queues.
    pub queues: usize,
    /// Regions of memory at a time: one for each device, and those that applications bring.
    pub max_regions: usize,
    /// Frames in the port's pool, for each worker.
    pub frames: u32,
    /// From where everything a peer must not guess is derived.
    pub seed: Seed,
    /// Faults to make on sent frames.
    pub fault: FaultConfig,
    /// Time; the cycle counter when absent.
    pub clock: Option<Clock>,
    /// Frames taken from a queue at a time, 1..=[`BURST`](heddle_dataplane::BURST).
    pub rx_burst: usize,
    /// TCP's numbers; the MSS is set from the MTU.
    pub tcp: ConnConfig,
    /// Connections that one peer address may have opened to a worker at a time.
    pub peer_conns: PeerLimit,
    /// How long the orderly close of an established connection may take in all; see
    /// [`CmConfig::close_limit`](heddle_cm::CmConfig::close_limit).
    pub close_limit: Duration,
    /// Octets that FPDUs of a worker's connections may take which have begun and are not whole; see
    /// [`RnicConfig::max_unfinished_bytes`](heddle_rnic::RnicConfig::max_unfinished_bytes).
    pub fpdu_memory: usize,
    /// How long a peer may leave an FPDU unfinished; see
    /// [`RnicConfig::fpdu_stall`](heddle_rnic::RnicConfig::fpdu_stall).
    pub fpdu_stall: Duration,
    /// How long a message of a peer's waits for a receive before it ends the stream; see
    /// [`RnicConfig::rnr_wait`](heddle_rnic::RnicConfig::rnr_wait).
    pub rnr_wait: Duration,
    /// Whether InfiniBand's connection management is spoken on RoCEv2's UDP port, 4791, of all
    /// addresses: the RDMA IP CM service. Applications ask for its connections one by one, and they
    /// carry no data; see [`Transport`](heddle_cm::Transport).
    pub infiniband: bool,
    /// Silence after which the peer of an InfiniBand connection that it made is asked whether it is there,
    /// a minute unless told otherwise; never when absent. See
    /// [`IbConfig::keepalive`](heddle_cm::IbConfig::keepalive).
    pub ib_keepalive: Option<Duration>,
    /// The inner port; see [`RnicSetup::inner`].
    pub inner: Option<InnerSetup>,
}

impl EndpointConfig {
    /// One worker, MTU 1500, 1,024 connections, 64 MiB of registered memory, no faults, and a seed
    /// that nobody can guess.
    pub fn new(addrs: Vec<Cidr>) -> EndpointConfig {
        EndpointConfig::with_seed(addrs, crate::random_seed())
    }

    /// The same with a seed of the caller's: runs can be repeated, and peers that know it can forge
    /// what they like. For tests and simulations.
    pub fn with_seed(addrs: Vec<Cidr>, seed: Seed) -> EndpointConfig {
        EndpointConfig::of(RnicSetup::with_seed(seed), PortSetup::new(addrs))
    }

    fn of(rnic: RnicSetup, port: PortSetup) -> EndpointConfig {
        EndpointConfig {
            addrs: port.addrs,
            gateway: None,
            mtu: port.mtu,
            workers: port.workers,
            queue_pairs: port.queue_pairs,
            max_conns: rnic.max_conns,
            max_mrs: rnic.max_mrs,
            memory: rnic.memory,
            pages: rnic.pages,
            queues: rnic.queues,
            max_regions: rnic.max_regions,
            frames: port.frames,
            seed: rnic.seed,
            fault: port.fault,
            clock: rnic.clock,
            rx_burst: rnic.rx_burst,
            tcp: rnic.tcp,
            peer_conns: rnic.peer_conns,
            close_limit: rnic.close_limit,
            fpdu_memory: rnic.fpdu_memory,
            fpdu_stall: rnic.fpdu_stall,
            rnr_wait: rnic.rnr_wait,
            infiniband: rnic.infiniband,
            ib_keepalive: rnic.ib_keepalive,
            inner: rnic.inner,
        }
    }

    /// What of it is the RNIC's.
    pub fn rnic(&self) -> RnicSetup {
        RnicSetup {
            max_conns: self.max_conns,
            max_mrs: self.max_mrs,
            memory: self.memory,
            pages: self.pages,
            queues: self.queues,
            max_regions: self.max_regions,
            seed: self.seed.clone(),
            clock: self.clock.clone(),
            rx_burst: self.rx_burst,
            tcp: self.tcp,
            peer_conns: self.peer_conns,
            close_limit: self.close_limit,
            fpdu_memory: self.fpdu_memory,
            fpdu_stall: self.fpdu_stall,
            rnr_wait: self.rnr_wait,
            infiniband: self.infiniband,
            ib_keepalive: self.ib_keepalive,
            inner: self.inner.clone(),
        }
    }

    /// What of it is the port's.
    pub fn port(&self) -> PortSetup {
        PortSetup {
            addrs: self.addrs.clone(),
            routes: self.gateway.map(Route::default_via).into_iter().collect(),
            mtu: self.mtu,
            workers: self.workers,
            queue_pairs: self.queue_pairs,
            frames: self.frames,
            rx_interrupt: false,
            fault: self.fault,
        }
    }

    /// Whether an RNIC can be set up like this, as far as that can be known without a device.
    ///
    /// # Errors
    /// [`OpenError`], as opening would have it.
    pub fn check(&self) -> Result<(), OpenError> {
        self.port().check()
    }
}

/// Why there is no RNIC.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The port failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// No pool for frames.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// The MTU is out of range.
    #[error("an MTU of {0} is not between 576 and 9000")]
    Mtu(u16),
    /// The MTU of the inner port is out of range.
    #[error("an MTU of {0} is not between 576 and 65000, as that of an inner port is")]
    InnerMtu(u16),
    /// Too few workers of the inner port or too many.
    #[error("{0} workers of an inner port are not between 1 and {MAX_INNER}")]
    InnerWorkers(usize),
    /// Nothing to be reached at.
    #[error("an RNIC needs at least one IP address at each port")]
    NoAddress,
    /// No port.
    #[error("an RNIC needs at least one port")]
    NoPort,
    /// Too few workers or too many.
    #[error("{0} workers are not between 1 and {MAX_WORKERS}")]
    Workers(usize),
    /// Queues that nobody would look at, or none.
    #[error(
        "a port with {workers} workers has between 1 and {workers} pairs of queues, not {queues}"
    )]
    QueuePairs {
        /// Pairs of queues asked for, or that the port has.
        queues: usize,
        /// Workers that share it.
        workers: usize,
    },
    /// The ports do not go together.
    #[error(transparent)]
    Ports(#[from] PortsError),
    /// The port's queues are somebody else's.
    #[error("the queues of the port are taken already")]
    NoQueues,
    /// The addresses or the gateway are of no use.
    #[error(transparent)]
    Addr(#[from] AddrError),
    /// The port's flows cannot be shared so.
    #[error(transparent)]
    Spread(#[from] SpreadError),
    /// The control plane could not start.
    #[error("cannot start the control thread: {0}")]
    Thread(std::io::Error),
    /// There is nothing to wake threads by that sleep.
    #[error("cannot make what wakes workers: {0}")]
    Wakers(std::io::Error),
    /// There are fewer workers than processors for them, or no processor.
    #[error(
        "{workers} workers cannot be spread over {lcores} processors: one needs a worker at least"
    )]
    Lcores {
        /// Processors that were named.
        lcores: usize,
        /// Workers of the RNIC.
        workers: usize,
    },
    /// A worker's thread could not start.
    #[error(transparent)]
    Lcore(#[from] LcoreError),
    /// The device could not be opened: no memory, as a rule.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
