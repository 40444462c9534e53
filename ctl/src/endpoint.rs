//! A worker and its control plane in one, driven by one thread.

use std::sync::{Arc, Weak};

use core::net::IpAddr;
use heddle_base::{Instant, Seed};
use heddle_cm::{IbConfig, IbPort, WorkerId};
use heddle_dataplane::{
    Clock, DpdkRegions, Eal, ExternalMemory, FaultConfig, FaultInjector, Mempool, MempoolConfig,
    MempoolError, Port, PortConfig, PortError, PortSource, PortStats, Worker, WorkerConfig,
    WorkerSnapshot,
};
use heddle_iwarp::MrTable;
use heddle_iwarp::mr::Pins;
use heddle_rnic::RnicConfig;
use heddle_tcp::{AddrError, Cidr, ConnConfig, StackConfig, check_addrs};
use heddle_verbs::memory::{References, RegionTable, Registry};
use heddle_verbs::{Device, DeviceConfig, DeviceError, Hub};

use crate::CtlCounters;
use crate::control_plane::{Control, Requests, WorkerLink};

/// How an RNIC is set up.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Our addresses with their prefixes.
    pub addrs: Vec<Cidr>,
    /// Where peers outside the prefixes are reached.
    pub gateway: Option<IpAddr>,
    /// Largest IP packet, in octets: 576..=9000.
    pub mtu: u16,
    /// Connections at a time.
    pub max_conns: usize,
    /// Memory regions at a time.
    pub max_mrs: usize,
    /// Octets of memory the RNIC's own device can register without bringing its own.
    pub memory: usize,
    /// Octets of the RNIC's own device for queues.
    pub queues: usize,
    /// Regions of memory at a time: one for each device, and those that applications bring.
    pub max_regions: usize,
    /// Frames in the port's pool.
    pub frames: u32,
    /// From where everything a peer must not guess is derived.
    pub seed: Seed,
    /// Faults to make on sent frames.
    pub fault: FaultConfig,
    /// Time; the cycle counter when absent.
    pub clock: Option<Clock>,
    /// Frames taken from the port at a time, 1..=[`BURST`](heddle_dataplane::BURST).
    pub rx_burst: usize,
    /// TCP's numbers; the MSS is set from the MTU.
    pub tcp: ConnConfig,
    /// Whether InfiniBand's connection management is spoken on RoCEv2's UDP port, 4791, of all
    /// addresses: the RDMA IP CM service. Applications ask for its connections one by one, and they
    /// carry no data; see [`Transport`](heddle_cm::Transport).
    pub infiniband: bool,
}

impl EndpointConfig {
    /// MTU 1500, 1,024 connections, 64 MiB of registered memory, no faults, and a seed that nobody
    /// can guess.
    pub fn new(addrs: Vec<Cidr>) -> EndpointConfig {
        EndpointConfig::with_seed(addrs, crate::random_seed())
    }

    /// The same with a seed of the caller's: runs can be repeated, and peers that know it can forge
    /// what they like. For tests and simulations.
    pub fn with_seed(addrs: Vec<Cidr>, seed: Seed) -> EndpointConfig {
        EndpointConfig {
            addrs,
            gateway: None,
            mtu: 1500,
            max_conns: 1024,
            max_mrs: 4096,
            memory: 64 << 20,
            queues: DeviceConfig::default().queues,
            max_regions: 256,
            frames: 16 * 1024,
            seed,
            fault: FaultConfig::default(),
            clock: None,
            rx_burst: heddle_dataplane::BURST,
            tcp: ConnConfig::default(),
            infiniband: false,
        }
    }

    /// Whether an RNIC can be set up like this, as far as that can be known without a device.
    ///
    /// # Errors
    /// [`OpenError`], as opening would have it.
    pub fn check(&self) -> Result<(), OpenError> {
        if self.addrs.is_empty() {
            return Err(OpenError::NoAddress);
        }
        check_addrs(&self.addrs, self.gateway)?;
        if !(576..=9000).contains(&self.mtu) {
            return Err(OpenError::Mtu(self.mtu));
        }
        Ok(())
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
    /// Nothing to be reached at.
    #[error("an RNIC needs at least one IP address")]
    NoAddress,
    /// The port's queues are somebody else's.
    #[error("the queues of the port are taken already")]
    NoQueues,
    /// The addresses or the gateway are of no use.
    #[error(transparent)]
    Addr(#[from] AddrError),
    /// The control plane could not start.
    #[error("cannot start the control thread: {0}")]
    Thread(std::io::Error),
    /// The worker could not start.
    #[error(transparent)]
    Lcore(#[from] heddle_dataplane::LcoreError),
    /// The device could not be opened: no memory, as a rule.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Everything an RNIC has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// The worker.
    pub worker: WorkerSnapshot,
    /// The control plane.
    pub ctl: CtlCounters,
    /// The port.
    pub port: PortStats,
}

/// An RNIC that runs on the thread that polls it. See the crate's documentation.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) worker: Worker,
    pub(crate) control: Control,
    pub(crate) requests: Requests,
    pub(crate) port: Port,
    pub(crate) clock: Clock,
    polls: u32,
    /// Last: its memory goes after the port that may read it.
    pub(crate) device: Device,
}

/// The control plane has its turn when it is called, and every so many polls besides.
const CONTROL_EVERY: u32 = 32;

impl Endpoint {
    /// An RNIC on a DPDK device.
    pub fn open(
        eal: &Eal,
        source: &PortSource,
        config: &EndpointConfig,
    ) -> Result<Endpoint, OpenError> {
        let pool = pool(eal, config)?;
        let port = Port::open(eal, source, &port_config(config, pool))?;
        Endpoint::on_port(eal, port, pool, config)
    }

    /// Two RNICs whose ports are joined by rings: frames pass as mbufs, without a copy.
    pub fn ring_pair(
        eal: &Eal,
        name: &str,
        a: &EndpointConfig,
        b: &EndpointConfig,
    ) -> Result<(Endpoint, Endpoint), OpenError> {
        let pools = (pool(eal, a)?, pool(eal, b)?);
        let (configs, capacity) = ((port_config(a, pools.0), port_config(b, pools.1)), 1024);
        let (pa, pb) = Port::ring_pair(eal, name, capacity, &configs.0, &configs.1)?;
        Ok((Endpoint::on_port(eal, pa, pools.0, a)?, Endpoint::on_port(eal, pb, pools.1, b)?))
    }

    /// An RNIC on a port that is open already, at the MTU of `config` and with queues that nobody
    /// has taken; `pool` is where the frames it sends come from.
    pub fn on_port(
        eal: &Eal,
        mut port: Port,
        pool: Mempool,
        config: &EndpointConfig,
    ) -> Result<Endpoint, OpenError> {
        config.check()?;
        let Some(&addr) = config.addrs.first() else { return Err(OpenError::NoAddress) };
        let mrs = Arc::new(MrTable::new(&config.seed.derive(LABEL_STAGS), config.max_mrs));
        let dpdk = Box::new(DpdkRegions::new(port.dma()));
        let regions = Arc::new(RegionTable::new(config.max_regions, Some(dpdk)));
        let registry = Arc::new(Registry::new(mrs.clone(), regions.clone()));
        let clock = config.clock.clone().unwrap_or_else(|| Clock::new(eal));
        let caps = port.caps();
        let stack = StackConfig {
            addrs: config.addrs.clone(),
            gateway: config.gateway,
            mtu: config.mtu,
            max_conns: config.max_conns,
            conn: config.tcp,
            tx_tcp_csum: caps.tx_tcp_checksum,
            tx_ip_csum: caps.tx_ip_checksum,
            ..StackConfig::new(port.mac(), addr, config.seed.derive(LABEL_STACK))
        };
        let port_mac = port.mac();
        let Some((rx, tx)) = port.take_queues().into_iter().next() else {
            return Err(OpenError::NoQueues);
        };
        let fault = (!config.fault.is_none())
            .then(|| FaultInjector::new(config.fault, &config.seed.derive(LABEL_FAULT), pool));
        let held = usize::try_from(config.frames / 4).unwrap_or(usize::MAX);
        let external = ExternalMemory::new(mrs.capacity());
        let (requests, requests_out, sleeper) = Requests::new();
        let (worker, commands, reports) = Worker::new(WorkerConfig {
            index: 0,
            rnic: RnicConfig {
                stack,
                max_held_frames: held,
                max_snapshot_bytes: held * usize::from(config.mtu),
            },
            rx,
            tx,
            pool,
            regions,
            external: external.clone(),
            mrs,
            clock: clock.clone(),
            fault,
            rx_burst: config.rx_burst,
            waker: Some(requests.waker().clone()),
        });
        let pins = Arc::downgrade(&worker.pins());
        registry.add_references(Arc::new(WorkerReferences { pins, external }));
        let seed = config.seed.derive(LABEL_TO);
        let hub = Hub::new(registry.clone(), Box::new(requests.clone()), 1, &seed);
        let device = hub.open(&DeviceConfig {
            memory: config.memory,
            queues: config.queues,
            ..DeviceConfig::default()
        })?;
        let link = WorkerLink::new(commands, reports);
        let asked = (requests_out, sleeper);
        let mut control = Control::new(asked, vec![link], registry, config.max_conns);
        if config.infiniband {
            let port = |c: &Cidr| IbPort { addr: c.addr(), worker: WorkerId(0) };
            let ports = config.addrs.iter().map(port).collect();
            let seed = config.seed.derive(LABEL_IB);
            control.enable_infiniband(IbConfig::new(seed, ca_guid(port_mac), ports));
        }
        Ok(Endpoint { worker, control, requests, port, clock, polls: 0, device })
    }

    /// What applications of their own are opened with.
    pub fn hub(&self) -> &Arc<Hub> {
        self.device.hub()
    }

    /// The application's handle.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The time the RNIC goes by.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Does what there is to do; true when there was something. The thread that calls it is the
    /// RNIC's only one.
    #[inline]
    pub fn poll(&mut self) -> bool {
        let busy = self.worker.poll();
        self.polls = self.polls.wrapping_add(1);
        if self.control.is_called() || self.polls.is_multiple_of(CONTROL_EVERY) {
            return self.control.poll(self.clock.now()) || busy;
        }
        busy
    }

    /// Everything counted so far.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            worker: self.worker.snapshot(),
            ctl: self.control.counters(),
            port: self.port.stats(),
        }
    }
}

/// What the parts' seeds are derived by.
const LABEL_STAGS: u64 = 1;
const LABEL_STACK: u64 = 2;
const LABEL_FAULT: u64 = 3;
const LABEL_TO: u64 = 4;
const LABEL_IB: u64 = 5;

/// The EUI-64 of a station address, as other RoCE ports are called: the bit that says who gave the
/// address turned over, and `ff:fe` in the middle.
fn ca_guid([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn pool(eal: &Eal, config: &EndpointConfig) -> Result<Mempool, OpenError> {
    config.check()?;
    Ok(Mempool::new(eal, &MempoolConfig::for_mtu(config.frames, config.mtu))?)
}

fn port_config(config: &EndpointConfig, pool: Mempool) -> PortConfig {
    PortConfig { mtu: config.mtu, ..PortConfig::new(pool) }
}

/// Who refers to registered memory on behalf of a worker: FPDUs that are not acknowledged, and
/// frames that point into it.
#[derive(Debug)]
struct WorkerReferences {
    /// Gone with the worker, whose FPDUs they count.
    pins: Weak<Pins>,
    external: ExternalMemory,
}

impl References for WorkerReferences {
    fn is_referred(&self, mr: u32) -> bool {
        // FPDUs first: while there is one, frames may yet be made of it.
        self.pins.upgrade().is_some_and(|pins| pins.count(mr) > 0) || self.external.is_referred(mr)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use heddle_iwarp::{Access, Pd, Qpn};

    use super::*;

    /// What Linux calls the port with that address.
    #[test]
    fn test_a_port_is_named_by_its_station_address() {
        assert_eq!(ca_guid([0x52, 0x54, 0, 0x58, 0, 2]), 0x5054_00ff_fe58_0002);
    }

    /// A worker that has panicked in the middle of something never counts its FPDUs down.
    #[test]
    fn test_fpdus_of_a_worker_that_is_gone_refer_to_nothing() {
        let mrs = MrTable::new(&Seed::from_u64(1), 4);
        let mr = mrs.register(Pd(1), 0, 0, 64, Access::NONE).unwrap();
        let range = mrs.check(Pd(1), Qpn(1), mr.stag, 0, 64, Access::NONE).unwrap();
        let pins = Arc::new(Pins::new(mrs.capacity()));
        let external = ExternalMemory::new(mrs.capacity());
        let references = WorkerReferences { pins: Arc::downgrade(&pins), external };
        pins.pin(range);
        assert!(references.is_referred(mrs.index(mr.stag)));
        drop(pins);
        assert!(!references.is_referred(mrs.index(mr.stag)));
    }
}
