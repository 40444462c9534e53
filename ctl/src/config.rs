//! The settings of an RNIC, and of each of its ports.

use core::net::IpAddr;
use core::time::Duration;

use heddle_base::Seed;
use heddle_cm::{Own, PortsError};
use heddle_dataplane::{Clock, FaultConfig, LcoreError, MempoolError, Offloads, PortError};
use heddle_hub::DeviceConfig;
use heddle_rnic::RnicConfig;
use heddle_tcp::autoconf::RouterAdverts;
use heddle_tcp::{
    AddrError, Addressing, Cidr, ConnConfig, PeerLimit, Route, SpreadError, SynCookies, Vid, Vlan,
};
use heddle_verbs::{DeviceError, PageSize};

/// Largest number of workers of an RNIC.
pub const MAX_WORKERS: usize = 64;

/// Largest number of workers of an inner port, whose queues are rings.
pub const MAX_INNER: usize = 16;

/// Settings that all workers and ports of an RNIC share.
#[derive(Clone, Debug)]
pub struct RnicSetup {
    /// Largest number of simultaneous connections of a worker.
    pub max_conns: usize,
    /// Largest number of simultaneous memory regions.
    pub max_mrs: usize,
    /// Bytes of memory that the RNIC's own device can register without bringing its own.
    pub memory: usize,
    /// Page size of that memory. The memory lies at the processor socket of most workers' ports.
    pub pages: PageSize,
    /// Bytes of the RNIC's own device for queues. A completion queue takes room for each worker.
    pub queues: usize,
    /// Largest number of simultaneous areas of memory: one for each device, and those that
    /// applications bring.
    pub max_regions: usize,
    /// Secret from which all numbers are derived that a peer must not guess, the same for all
    /// workers.
    pub seed: Seed,
    /// The source of time; the cycle counter when absent.
    pub clock: Option<Clock>,
    /// Largest number of frames taken from a queue at a time,
    /// 1..=[`BURST`](heddle_dataplane::BURST).
    pub rx_burst: usize,
    /// Settings of TCP; the MSS follows from the MTU.
    pub tcp: ConnConfig,
    /// Bytes by which the receive windows of a worker's connections may grow; see
    /// [`StackConfig::recv_window_budget`](heddle_tcp::StackConfig::recv_window_budget).
    pub window_budget: u64,
    /// Connections that one peer address may have open at a worker at a time.
    pub peer_conns: PeerLimit,
    /// When a worker answers a SYN with a cookie.
    pub syn_cookies: SynCookies,
    /// Total time for the orderly close of an established connection; see
    /// [`CmConfig::close_limit`](heddle_cm::CmConfig::close_limit).
    pub close_limit: Duration,
    /// Bytes that unfinished FPDUs of a worker's connections may take; see
    /// [`RnicConfig::max_unfinished_bytes`](heddle_rnic::RnicConfig::max_unfinished_bytes).
    pub fpdu_memory: usize,
    /// Time for which a peer may leave an FPDU unfinished; see
    /// [`RnicConfig::fpdu_stall`](heddle_rnic::RnicConfig::fpdu_stall).
    pub fpdu_stall: Duration,
    /// Time for which a peer's message waits for a receive before it ends the stream; see
    /// [`RnicConfig::rnr_wait`](heddle_rnic::RnicConfig::rnr_wait).
    pub rnr_wait: Duration,
    /// Whether all addresses answer InfiniBand's connection management, the RDMA IP CM service, on
    /// RoCEv2's UDP port, 4791. Applications ask for its connections one by one, and the
    /// connections carry no data; see [`Transport`](heddle_types::Transport).
    pub infiniband: bool,
    /// Silence after which the RNIC probes the peer that made an InfiniBand connection, a minute by
    /// default; absent for no probes. See [`IbConfig::keepalive`](heddle_cm::IbConfig::keepalive).
    pub ib_keepalive: Option<Duration>,
    /// The inner port, by which the RNIC connects to itself. Without an inner port, the RNIC
    /// refuses connections to its own addresses. An RNIC with an inner port needs no other port.
    pub inner: Option<InnerSetup>,
}

impl RnicSetup {
    /// Returns defaults: 1,024 connections for each worker, 64 MiB of registered memory, and a seed
    /// that no peer can guess.
    pub fn new() -> RnicSetup {
        RnicSetup::with_seed(crate::random_seed())
    }

    /// Returns the same defaults with the caller's seed; see [`EndpointConfig::with_seed`].
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
            window_budget: heddle_tcp::RECV_WINDOW_BUDGET,
            peer_conns: PeerLimit::Share,
            syn_cookies: SynCookies::Auto,
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

/// Settings of an RNIC's inner port. The port has the addresses of all ports, and every frame that
/// a worker sends there comes back to the same worker. See ADR 19.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerSetup {
    /// Number of workers, at least 1. Both ends of a connection are at one of them.
    pub workers: usize,
    /// Largest IP packet, in bytes: 576..=65,000.
    pub mtu: u16,
    /// Frames in the port's pool, for each worker.
    pub frames: u32,
    /// Addresses that the RNIC has besides those of its ports.
    pub own: Own,
}

impl Default for InnerSetup {
    /// Returns defaults: one worker, an MTU of 32 KiB, 1,024 frames, and only the addresses of
    /// ports.
    fn default() -> InnerSetup {
        InnerSetup { workers: 1, mtu: 32 << 10, frames: 1024, own: Own::default() }
    }
}

impl InnerSetup {
    /// Returns the defaults, with all of 127.0.0.0/8.
    pub fn loopback() -> InnerSetup {
        InnerSetup { own: Own { loopback: true, ..Own::default() }, ..InnerSetup::default() }
    }

    /// Returns the settings that all kinds of ports have.
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

/// Settings of a port: its addresses, and the workers that share it.
#[derive(Clone, Debug)]
pub struct PortSetup {
    /// Our addresses at this port with their prefixes.
    pub addrs: Vec<Cidr>,
    /// Routes to peers outside the prefixes; the longest prefix wins.
    pub routes: Vec<Route>,
    /// Which advertisements of routers count at the port, besides `addrs` and `routes`.
    pub router_adverts: RouterAdverts,
    /// VLANs of the port, each with addresses and routes of its own.
    pub vlans: Vec<Vlan>,
    /// Largest IP packet, in bytes: 576..=9000. A VLAN's tag does not count.
    pub mtu: u16,
    /// Number of workers that share the port, at least 1.
    pub workers: usize,
    /// Number of pairs of queues, at most one for each worker. When absent, as many as there are
    /// workers, or all pairs of the device if those are fewer.
    pub queue_pairs: Option<usize>,
    /// Frames in the port's pool, for each worker.
    pub frames: u32,
    /// Whether queues interrupt, for threads that sleep
    /// ([`IdlePolicy`](heddle_dataplane::IdlePolicy)). A device without interrupts is opened
    /// without them.
    pub rx_interrupt: bool,
    /// The work that the device may do by itself.
    pub offloads: Offloads,
    /// Faults to inject into sent frames.
    pub fault: FaultConfig,
}

impl PortSetup {
    /// Returns defaults: no routes, MTU 1500, one worker, no faults.
    pub fn new(addrs: Vec<Cidr>) -> PortSetup {
        PortSetup {
            addrs,
            routes: Vec::new(),
            router_adverts: RouterAdverts::Ignore,
            vlans: Vec::new(),
            mtu: 1500,
            workers: 1,
            queue_pairs: None,
            frames: 16 * 1024,
            rx_interrupt: false,
            offloads: Offloads::default(),
            fault: FaultConfig::default(),
        }
    }

    /// Checks the settings as far as is possible without a device.
    ///
    /// # Errors
    /// The [`OpenError`] that opening would return.
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

    /// Returns the addresses and routes.
    pub(crate) fn addressing(&self) -> Result<Addressing, OpenError> {
        let none =
            |addrs: &[Cidr], adverts| addrs.is_empty() && adverts != RouterAdverts::Addresses;
        if none(&self.addrs, self.router_adverts) && self.vlans.is_empty() {
            return Err(OpenError::NoAddress);
        }
        if let Some(v) = self.vlans.iter().find(|v| none(v.net.addrs(), v.router_adverts)) {
            return Err(OpenError::NoVlanAddress(v.vid));
        }
        let net = Addressing::new(self.addrs.clone(), self.routes.clone())?;
        Ok(net.with_vlans(self.vlans.clone())?)
    }

    /// Returns the addresses of the port and of its VLANs.
    pub(crate) fn all_addrs(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let vlans = self.vlans.iter().flat_map(|v| v.net.addrs());
        self.addrs.iter().chain(vlans).map(|c| c.addr())
    }
}

/// Time limits for peers that hold their connections up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time limits of TCP.
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
    /// Returns the time limits for peers.
    pub const fn patience(&self) -> Patience {
        Patience {
            tcp: self.tcp.patience(),
            close_limit: self.close_limit,
            fpdu_stall: self.fpdu_stall,
        }
    }

    /// Returns the settings with other time limits for peers.
    #[must_use]
    pub fn with_patience(self, p: Patience) -> RnicSetup {
        let Patience { tcp, close_limit, fpdu_stall } = p;
        RnicSetup { tcp: self.tcp.with_patience(tcp), close_limit, fpdu_stall, ..self }
    }
}

/// Settings of an RNIC with one port: [`RnicSetup`] and [`PortSetup`] in one.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Our addresses with their prefixes.
    pub addrs: Vec<Cidr>,
    /// The router to peers outside the prefixes.
    pub gateway: Option<IpAddr>,
    /// Which advertisements of routers count; see [`PortSetup::router_adverts`].
    pub router_adverts: RouterAdverts,
    /// VLANs of the port; see [`PortSetup::vlans`].
    pub vlans: Vec<Vlan>,
    /// Largest IP packet, in bytes: 576..=9000.
    pub mtu: u16,
    /// Number of workers that share the port.
    pub workers: usize,
    /// Number of pairs of queues of the port; see [`PortSetup::queue_pairs`].
    pub queue_pairs: Option<usize>,
    /// Largest number of simultaneous connections of a worker.
    pub max_conns: usize,
    /// Largest number of simultaneous memory regions.
    pub max_mrs: usize,
    /// Bytes of memory that the RNIC's own device can register without bringing its own.
    pub memory: usize,
    /// Page size of that memory.
    pub pages: PageSize,
    /// Bytes of the RNIC's own device for queues.
    pub queues: usize,
    /// Largest number of simultaneous areas of memory: one for each device, and those that
    /// applications bring.
    pub max_regions: usize,
    /// Frames in the port's pool, for each worker.
    pub frames: u32,
    /// The work that the device may do by itself.
    pub offloads: Offloads,
    /// Secret from which all numbers are derived that a peer must not guess.
    pub seed: Seed,
    /// Faults to inject into sent frames.
    pub fault: FaultConfig,
    /// The source of time; the cycle counter when absent.
    pub clock: Option<Clock>,
    /// Largest number of frames taken from a queue at a time,
    /// 1..=[`BURST`](heddle_dataplane::BURST).
    pub rx_burst: usize,
    /// Settings of TCP; the MSS follows from the MTU.
    pub tcp: ConnConfig,
    /// Bytes by which the receive windows of a worker's connections may grow; see
    /// [`StackConfig::recv_window_budget`](heddle_tcp::StackConfig::recv_window_budget).
    pub window_budget: u64,
    /// Connections that one peer address may have open at a worker at a time.
    pub peer_conns: PeerLimit,
    /// When a worker answers a SYN with a cookie.
    pub syn_cookies: SynCookies,
    /// Total time for the orderly close of an established connection; see
    /// [`CmConfig::close_limit`](heddle_cm::CmConfig::close_limit).
    pub close_limit: Duration,
    /// Bytes that unfinished FPDUs of a worker's connections may take; see
    /// [`RnicConfig::max_unfinished_bytes`](heddle_rnic::RnicConfig::max_unfinished_bytes).
    pub fpdu_memory: usize,
    /// Time for which a peer may leave an FPDU unfinished; see
    /// [`RnicConfig::fpdu_stall`](heddle_rnic::RnicConfig::fpdu_stall).
    pub fpdu_stall: Duration,
    /// Time for which a peer's message waits for a receive before it ends the stream; see
    /// [`RnicConfig::rnr_wait`](heddle_rnic::RnicConfig::rnr_wait).
    pub rnr_wait: Duration,
    /// Whether all addresses answer InfiniBand's connection management, the RDMA IP CM service, on
    /// RoCEv2's UDP port, 4791. Applications ask for its connections one by one, and the
    /// connections carry no data; see [`Transport`](heddle_types::Transport).
    pub infiniband: bool,
    /// Silence after which the RNIC probes the peer that made an InfiniBand connection, a minute by
    /// default; absent for no probes. See [`IbConfig::keepalive`](heddle_cm::IbConfig::keepalive).
    pub ib_keepalive: Option<Duration>,
    /// The inner port; see [`RnicSetup::inner`].
    pub inner: Option<InnerSetup>,
}

impl EndpointConfig {
    /// Returns defaults: one worker, MTU 1500, 1,024 connections, 64 MiB of registered memory, no
    /// faults, and a seed that no peer can guess.
    pub fn new(addrs: Vec<Cidr>) -> EndpointConfig {
        EndpointConfig::with_seed(addrs, crate::random_seed())
    }

    /// Returns the same defaults with the caller's seed, for tests and simulations: runs can be
    /// repeated, and a peer that knows the seed can forge anything.
    pub fn with_seed(addrs: Vec<Cidr>, seed: Seed) -> EndpointConfig {
        EndpointConfig::of(RnicSetup::with_seed(seed), PortSetup::new(addrs))
    }

    fn of(rnic: RnicSetup, port: PortSetup) -> EndpointConfig {
        EndpointConfig {
            addrs: port.addrs,
            gateway: None,
            router_adverts: port.router_adverts,
            vlans: port.vlans,
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
            offloads: Offloads::default(),
            seed: rnic.seed,
            fault: port.fault,
            clock: rnic.clock,
            rx_burst: rnic.rx_burst,
            tcp: rnic.tcp,
            window_budget: rnic.window_budget,
            peer_conns: rnic.peer_conns,
            syn_cookies: rnic.syn_cookies,
            close_limit: rnic.close_limit,
            fpdu_memory: rnic.fpdu_memory,
            fpdu_stall: rnic.fpdu_stall,
            rnr_wait: rnic.rnr_wait,
            infiniband: rnic.infiniband,
            ib_keepalive: rnic.ib_keepalive,
            inner: rnic.inner,
        }
    }

    /// Returns the settings of the RNIC.
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
            window_budget: self.window_budget,
            peer_conns: self.peer_conns,
            syn_cookies: self.syn_cookies,
            close_limit: self.close_limit,
            fpdu_memory: self.fpdu_memory,
            fpdu_stall: self.fpdu_stall,
            rnr_wait: self.rnr_wait,
            infiniband: self.infiniband,
            ib_keepalive: self.ib_keepalive,
            inner: self.inner.clone(),
        }
    }

    /// Returns the settings of the port.
    pub fn port(&self) -> PortSetup {
        PortSetup {
            addrs: self.addrs.clone(),
            routes: self.gateway.map(Route::default_via).into_iter().collect(),
            router_adverts: self.router_adverts,
            vlans: self.vlans.clone(),
            mtu: self.mtu,
            workers: self.workers,
            queue_pairs: self.queue_pairs,
            frames: self.frames,
            rx_interrupt: false,
            offloads: self.offloads,
            fault: self.fault,
        }
    }

    /// Checks the settings as far as is possible without a device.
    ///
    /// # Errors
    /// The [`OpenError`] that opening would return.
    pub fn check(&self) -> Result<(), OpenError> {
        self.port().check()
    }
}

/// The reason why an RNIC could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The port failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The pool for frames could not be made.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// The MTU is out of range.
    #[error("an MTU of {0} is not between 576 and 9000")]
    Mtu(u16),
    /// The MTU of the inner port is out of range.
    #[error("an MTU of {0} is not between 576 and 65000, as that of an inner port is")]
    InnerMtu(u16),
    /// The inner port has too few workers or too many.
    #[error("{0} workers of an inner port are not between 1 and {MAX_INNER}")]
    InnerWorkers(usize),
    /// A port has no address at which peers could reach it.
    #[error("an RNIC needs at least one IP address at each port")]
    NoAddress,
    /// A VLAN has no address at which peers could reach it.
    #[error("VLAN {0} has no IP address")]
    NoVlanAddress(Vid),
    /// The RNIC has no port.
    #[error("an RNIC needs at least one port")]
    NoPort,
    /// The RNIC has too few workers or too many.
    #[error("{0} workers are not between 1 and {MAX_WORKERS}")]
    Workers(usize),
    /// There are more pairs of queues than workers to poll them, or none.
    #[error(
        "a port with {workers} workers has between 1 and {workers} pairs of queues, not {queues}"
    )]
    QueuePairs {
        /// Number of pairs of queues that was asked for, or that the port has.
        queues: usize,
        /// Number of workers that share the port.
        workers: usize,
    },
    /// The ports contradict each other, such as by an address that two of them have.
    #[error(transparent)]
    Ports(#[from] PortsError),
    /// The port's queues have another owner already.
    #[error("the queues of the port are taken already")]
    NoQueues,
    /// The addresses or the gateway cannot be used.
    #[error(transparent)]
    Addr(#[from] AddrError),
    /// The port's flows cannot be spread in this way.
    #[error(transparent)]
    Spread(#[from] SpreadError),
    /// The control plane could not start.
    #[error("cannot start the control thread: {0}")]
    Thread(std::io::Error),
    /// The system has no means to wake threads that sleep.
    #[error("cannot make what wakes workers: {0}")]
    Wakers(std::io::Error),
    /// There are fewer workers than processors, or no processor.
    #[error(
        "{workers} workers cannot be spread over {lcores} processors: one needs a worker at least"
    )]
    Lcores {
        /// Number of processors that were named.
        lcores: usize,
        /// Number of workers of the RNIC.
        workers: usize,
    },
    /// A worker's thread could not start.
    #[error(transparent)]
    Lcore(#[from] LcoreError),
    /// The device could not be opened, usually for want of memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
