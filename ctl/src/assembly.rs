//! Assembly of an RNIC: workers for the queues of its ports, and the objects that they share.

use heddle_base::{Instant, Random, Seed};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use heddle_cm::{IbConfig, Ports};
use heddle_dataplane::steer::{self, Ends, Sharing};
use heddle_dataplane::{
    Clock, DmaPorts, DpdkRegions, Eal, ExternalMemory, FaultInjector, Mempool, MempoolConfig, Port,
    PortConfig, PortError, PortSource, QueueSpread, Topology, Worker, WorkerConfig, home,
};
use heddle_hub::memory::{References, RegionTable, Registry};
use heddle_hub::{DeviceConfig, Hub};
use heddle_mr::{MrTable, Pins};
use heddle_rings::wakeup::{WorkerWaker, WorkerWakers};
use heddle_rnic::RnicConfig;
use heddle_tcp::autoconf::RouterAdverts;
use heddle_tcp::{Addressing, PeerLimit, Rss, SpreadError, StackConfig};
use heddle_verbs::DeviceLimits;

use crate::config::{InnerSetup, MAX_WORKERS, OpenError, PortSetup, RnicSetup};
use crate::control_plane::{Control, PortRouters, Requests, Routers, WorkerLink};
use crate::endpoint::{Endpoint, WorkerPlace};
use crate::port::{Probe, addressing};

/// An open port with its pool of frames, before it has workers.
#[derive(Debug)]
pub struct OpenPort {
    port: Port,
    pool: Mempool,
    setup: PortSetup,
}

/// Time after a listener's end during which the stack drops SYNs to its address, so that a client
/// tries again and finds the next listener. perftest's servers close their listener after a first
/// connection and listen anew for the next. Listening anew takes tens of milliseconds on a busy
/// machine, and `ib_write_bw` takes 1.2 s against a client on another host. qperf's server binds a
/// port, reports the port to its client and listens last; a client at the same RNIC may have
/// connected by then.
const RELISTEN: Duration = Duration::from_secs(2);

/// Capacity of a ring between two ports in each direction, in frames, for each pair of queues.
const RING_FRAMES: u32 = 1024;

impl OpenPort {
    /// Opens a DPDK device.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(eal: &Eal, source: &PortSource, setup: &PortSetup) -> Result<OpenPort, OpenError> {
        let pool = pool(eal, setup, source.socket(eal))?;
        let rss_key = secret(&crate::random_seed());
        let open = |queues| {
            let config = PortConfig { rss_key, ..port_config(setup, pool, queues) };
            Port::open(eal, source, &config)
        };
        let port = match open(setup.queue_pairs.unwrap_or(setup.workers)) {
            // The device has fewer queues, and the caller did not ask for a number: the workers
            // share the device's queues.
            Err(PortError::Limit { what: "a number of queues", max, .. })
                if setup.queue_pairs.is_none() && max > 0 =>
            {
                open(max as usize)?
            }
            port => port?,
        };
        if let Some(why) = port.no_interrupts() {
            let port = port.name();
            tracing::warn!(port, "receive queues do not interrupt, so workers nap: {why}");
        }
        Ok(OpenPort { port, pool, setup: setup.clone() })
    }

    /// Opens two ports joined by rings, whose frames never leave this process. With equal numbers
    /// of workers on both sides, each worker has a pair of queues, and its frames go to its
    /// counterpart; otherwise all workers share one pair.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn ring_pair(
        eal: &Eal,
        name: &str,
        a: &PortSetup,
        b: &PortSetup,
    ) -> Result<(OpenPort, OpenPort), OpenError> {
        OpenPort::pair(eal, a, b, |a, b| Port::ring_pair(eal, name, RING_FRAMES, a, b))
    }

    /// Opens two ports joined by a vhost-user socket ([`Port::vhost_pair`]), with queues as
    /// [`ring_pair`](OpenPort::ring_pair) has them.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn vhost_pair(
        eal: &Eal,
        name: &str,
        a: &PortSetup,
        b: &PortSetup,
    ) -> Result<(OpenPort, OpenPort), OpenError> {
        OpenPort::pair(eal, a, b, |a, b| Port::vhost_pair(eal, name, a, b))
    }

    /// Opens two ports of this process by `open`, each with a pool of its own.
    fn pair(
        eal: &Eal,
        a: &PortSetup,
        b: &PortSetup,
        open: impl FnOnce(&PortConfig, &PortConfig) -> Result<(Port, Port), PortError>,
    ) -> Result<(OpenPort, OpenPort), OpenError> {
        let pools = (pool(eal, a, None)?, pool(eal, b, None)?);
        let asked = [a, b].map(|s| s.queue_pairs.unwrap_or(s.workers));
        let queues = if a.workers == b.workers && asked == [a.workers; 2] { a.workers } else { 1 };
        let (pa, pb) = (port_config(a, pools.0, queues), port_config(b, pools.1, queues));
        let (pa, pb) = open(&pa, &pb)?;
        Ok((OpenPort::from_parts(pa, pools.0, a), OpenPort::from_parts(pb, pools.1, b)))
    }

    /// Opens the inner port of an RNIC.
    fn inner(eal: &Eal, inner: &InnerSetup) -> Result<OpenPort, OpenError> {
        /// The next number for the name of an inner port, so that names in one process differ.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let setup = inner.port()?;
        let pool = frames(eal, &setup, None)?;
        let config = port_config(&setup, pool, setup.workers);
        let name = format!("inner{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let port = Port::looped(eal, &name, RING_FRAMES, &config)?;
        Ok(OpenPort::from_parts(port, pool, &setup))
    }

    /// Takes a port that is open already, at the MTU of `setup` and with queues that are not taken;
    /// frames for sending come from `pool`.
    pub fn from_parts(port: Port, pool: Mempool, setup: &PortSetup) -> OpenPort {
        OpenPort { port, pool, setup: setup.clone() }
    }

    /// Returns the port.
    pub fn port(&self) -> &Port {
        &self.port
    }
}

/// Makes the pool of frames for a port, at the port's processor socket.
fn pool(eal: &Eal, setup: &PortSetup, socket: Option<u32>) -> Result<Mempool, OpenError> {
    setup.check()?;
    frames(eal, setup, socket)
}

fn frames(eal: &Eal, setup: &PortSetup, socket: Option<u32>) -> Result<Mempool, OpenError> {
    let workers = u32::try_from(setup.workers).unwrap_or(u32::MAX);
    let frames = setup.frames.saturating_mul(workers);
    let config = MempoolConfig { socket, ..MempoolConfig::for_mtu(frames, setup.mtu) };
    let pool = Mempool::new(eal, &config)?;
    if let Some(socket) = socket.filter(|s| pool.socket() != Some(*s)) {
        tracing::warn!("packet buffers lie elsewhere: no memory is left at socket {socket}");
    }
    Ok(pool)
}

fn port_config(setup: &PortSetup, pool: Mempool, queues: usize) -> PortConfig {
    PortConfig {
        mtu: setup.mtu,
        pools: vec![pool; queues],
        steered: setup.workers > 1,
        rx_interrupt: setup.rx_interrupt,
        offloads: setup.offloads,
        addrs: setup.all_addrs().collect(),
        vlans: setup.vlans.iter().map(|v| v.vid).collect(),
        ..PortConfig::new(pool)
    }
}

/// Labels from which the seeds of the RNIC's parts are derived.
const LABEL_STAGS: u64 = 1;
const LABEL_STACK: u64 = 2;
const LABEL_FAULT: u64 = 3;
const LABEL_TO: u64 = 4;
const LABEL_SPREAD: u64 = 5;
const LABEL_IB: u64 = 6;

/// Objects that the workers of an RNIC share.
struct Shared<'a> {
    setup: &'a RnicSetup,
    mrs: Arc<MrTable>,
    regions: Arc<RegionTable>,
    registry: Arc<Registry>,
    requests: Requests,
    wakers: Arc<WorkerWakers>,
    clock: Clock,
}

impl Endpoint {
    /// Makes an RNIC over these ports, and numbers their workers from 0, port by port.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn assemble(
        eal: &Eal,
        mut ports: Vec<OpenPort>,
        setup: &RnicSetup,
    ) -> Result<Endpoint, OpenError> {
        let (addressed, routers) = check(&ports, setup.inner.as_ref())?;
        if let Some(inner) = &setup.inner {
            ports.push(OpenPort::inner(eal, inner)?);
        }
        let total = addressed.workers();
        let dma = ports.iter().fold(DmaPorts::default(), |all, p| all.with(p.port.dma()));
        let mrs = Arc::new(MrTable::new(&setup.seed.derive(LABEL_STAGS), setup.max_mrs));
        let hook = Box::new(DpdkRegions::new(dma));
        let regions = Arc::new(RegionTable::new(setup.max_regions, Some(hook)));
        let registry = Arc::new(Registry::new(mrs.clone(), regions.clone()));
        let (requests, requests_out, sleeper) = Requests::new();
        let wakers = WorkerWakers::new(total).map_err(OpenError::Wakers)?;
        let clock = setup.clock.clone().unwrap_or_else(|| Clock::new(eal));
        let shared =
            Shared { setup, mrs, regions, registry, requests, wakers: wakers.clone(), clock };

        let (mut workers, mut links) = (Vec::with_capacity(total), Vec::with_capacity(total));
        let mut open = Vec::with_capacity(ports.len());
        let ca_guid = ca_guid(ports[0].port.mac());
        // The first worker of a port that leads to other hosts receives the port's UDP datagrams.
        let ib_ports = addressed.datagrams().collect();
        let homes = ports.iter().flat_map(|p| vec![p.port.socket(); p.setup.workers]);
        let home = home(&homes.collect::<Vec<_>>());
        for (number, mut port) in ports.into_iter().enumerate() {
            let net = addressed.net(number).cloned().unwrap_or_default();
            let queues = port.port.take_queues();
            let sharing = sharing(&port, queues.len(), &setup.seed)?;
            let count = u16::try_from(port.setup.workers).unwrap_or(u16::MAX);
            let waking = Some((&wakers, workers.len()));
            for ends in steer::share(queues, count, &sharing, port.pool, waking)? {
                let (worker, link) = shared.worker(workers.len(), &port, net.clone(), ends);
                workers.push(WorkerPlace { worker, port: number });
                links.push(link);
            }
            open.push(port.port);
        }
        let Shared { registry, requests, clock, .. } = shared;
        let seed = setup.seed.derive(LABEL_TO);
        let way = Box::new(requests.clone());
        let hub = Hub::with_wakers(registry.clone(), way, wakers, &seed);
        // Applications see the inner port only when there is no other port, because it has no
        // addresses of its own.
        let shown = open.iter().filter(|port| open.len() == 1 || !port.is_looped());
        for (number, port) in shown.enumerate() {
            let net = addressed.net(number).map(addressing).unwrap_or_default();
            hub.board().add_port((port.mac(), port.mtu()), net, Arc::new(Probe(port.probe())));
        }
        let config = DeviceConfig {
            memory: setup.memory,
            queues: setup.queues,
            pages: setup.pages,
            limits: DeviceLimits {
                max_qps: DeviceLimits::MOST.max_qps,
                max_pds: DeviceLimits::MOST.max_pds,
                ..DeviceLimits::default()
            },
            ..DeviceConfig::default()
        };
        // The kernel places memory at the processor socket of the thread that touches it first.
        let device = Topology::read().run_at(home, || hub.open(&config))?;
        let board = hub.board().clone();
        let mut control = Control::new(
            requests_out,
            sleeper,
            links,
            registry,
            board,
            (addressed, routers),
            setup,
        );
        if setup.infiniband {
            let seed = setup.seed.derive(LABEL_IB);
            let config = IbConfig::new(seed, ca_guid, ib_ports);
            control.enable_infiniband(IbConfig { keepalive: setup.ib_keepalive, ..config });
        }
        Ok(Endpoint::new(workers, control, requests, open, clock, hub, device))
    }
}

/// Returns the EUI-64 of a station address, by which other RoCE ports are named too: with the
/// universal/local bit inverted, and `ff:fe` in the middle.
fn ca_guid([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Checks that the ports go together, and returns them in the connection manager's form.
fn check(ports: &[OpenPort], inner: Option<&InnerSetup>) -> Result<(Ports, Routers), OpenError> {
    if ports.is_empty() && inner.is_none() {
        return Err(OpenError::NoPort);
    }
    let mut all = Vec::with_capacity(ports.len());
    let mut routers = Vec::with_capacity(ports.len());
    for OpenPort { setup, port, .. } in ports {
        setup.check()?;
        let mac = port.mac();
        let net = setup.addressing()?;
        let port = PortRouters::new(setup.router_adverts, mac, setup.mtu, net);
        all.push((setup.workers, port.addressing(Instant::ZERO).with_station(mac)));
        routers.push(port);
    }
    let mut ports = Ports::new(all)?;
    if let Some(inner) = inner {
        ports = ports.with_inner(inner.port()?.workers, inner.own.clone());
    }
    match ports.workers() {
        n if n > MAX_WORKERS => Err(OpenError::Workers(n)),
        _ => Ok((ports, Routers::new(routers))),
    }
}

/// Entries of the table by which workers themselves share the flows of a port: many for each
/// worker, so that the shares differ little.
const TABLE: usize = 4096;

/// Returns the way in which the frames of a port with `queues` pairs of queues come to its workers.
fn sharing(port: &OpenPort, queues: usize, seed: &Seed) -> Result<Sharing, OpenError> {
    let workers = port.setup.workers;
    match queues {
        0 => return Err(OpenError::NoQueues),
        n if n > workers => return Err(OpenError::QueuePairs { queues, workers }),
        1 if workers == 1 => return Ok(Sharing::Alone),
        _ => {}
    }
    let count = u16::try_from(workers).unwrap_or(u16::MAX);
    match port.port.spread() {
        QueueSpread::Joined if queues == workers => return Ok(Sharing::Pairs),
        QueueSpread::Rss { key, table } if queues == workers => {
            // If our table cannot have the size of the port's, the port's spread counts as unknown,
            // and the workers share by software.
            if let Ok(rss) = Rss::new(key, table, count) {
                return Ok(Sharing::ByPort(Arc::new(rss)));
            }
        }
        _ => {}
    }
    Ok(Sharing::BySoftware(Arc::new(shared_by_software(&seed.derive(LABEL_SPREAD), count)?)))
}

/// Returns the rule by which the workers themselves share the flows of a port.
///
/// The hash is linear in the bits of the ports. If the workers followed one another in the table, two
/// workers would share by one bit of the hash, and with one key in 32 this bit would not depend on
/// the last five bits of a port: consecutive ports of a client would all reach one worker. So the
/// table is shuffled.
fn shared_by_software(seed: &Seed, workers: u16) -> Result<Rss, SpreadError> {
    let mut table: Vec<u16> = (0..workers.max(1)).cycle().take(TABLE).collect();
    let mut random = Random::new(seed);
    for last in (1..table.len()).rev() {
        let other = usize::try_from(random.below(last as u64 + 1)).unwrap_or(last);
        table.swap(last, other);
    }
    Rss::new(&secret(&seed.derive(LABEL_SPREAD)), &table, workers)
}

/// Returns the configuration for the stack of an inner port. The stack has both ends of each
/// connection. The stack limits no peer address, because all peer addresses are ours; the limits of
/// accounts keep applications apart.
fn inside(stack: StackConfig) -> StackConfig {
    let all = PeerLimit::Unlimited;
    let max_conns = stack.max_conns.saturating_mul(2);
    StackConfig { max_conns, peer_conns: all, peer_half_open: all, ..stack }
}

/// Returns a secret key for spreading flows. A peer that knew the key could aim all its flows at
/// one worker.
fn secret(seed: &Seed) -> [u8; 52] {
    let mut random = Random::new(seed);
    std::array::from_fn(|_| random.next_u64().to_le_bytes()[0])
}

impl Shared<'_> {
    /// Makes the next worker of a port, and the control plane's ends of its rings.
    fn worker(
        &self,
        index: usize,
        OpenPort { port, pool, setup }: &OpenPort,
        net: Addressing,
        Ends { rx, tx, spread }: Ends,
    ) -> (Worker, WorkerLink) {
        let caps = port.caps();
        let stack = StackConfig {
            mtu: setup.mtu,
            hears_routers: setup.router_adverts != RouterAdverts::Ignore,
            max_conns: self.setup.max_conns,
            peer_conns: self.setup.peer_conns,
            syn_cookies: self.setup.syn_cookies,
            relisten: RELISTEN,
            conn: self.setup.tcp,
            recv_window_budget: self.setup.window_budget,
            spread,
            tx_tcp_csum: caps.tx_tcp_checksum,
            tx_ip_csum: caps.tx_ip_checksum,
            ..StackConfig::of(port.mac(), net, self.setup.seed.derive(LABEL_STACK))
        };
        let stack = if stack.net.is_inside() { inside(stack) } else { stack };
        let held = usize::try_from(setup.frames / 4).unwrap_or(usize::MAX);
        let external = ExternalMemory::new(self.mrs.capacity());
        let (worker, commands, reports) = Worker::new(WorkerConfig {
            index,
            engine: RnicConfig {
                stack,
                max_held_frames: held,
                max_snapshot_bytes: held * usize::from(setup.mtu),
                max_unfinished_bytes: self.setup.fpdu_memory,
                fpdu_stall: self.setup.fpdu_stall,
                rnr_wait: self.setup.rnr_wait,
                hand_over: true,
            },
            rx,
            tx,
            pool: *pool,
            regions: self.regions.clone(),
            external: external.clone(),
            mrs: self.mrs.clone(),
            clock: self.clock.clone(),
            fault: self.fault(index, *pool, setup),
            rx_burst: self.setup.rx_burst,
            waker: Some(self.requests.waker().clone()),
        });
        let pins = Arc::downgrade(&worker.pins());
        self.registry.add_references(Arc::new(WorkerReferences { pins, external }));
        let commands = commands.waking(WorkerWaker::new(&self.wakers, index));
        (worker, WorkerLink::new(commands, reports))
    }

    /// Returns the fault injector of a worker, whose seed is its own.
    fn fault(&self, index: usize, pool: Mempool, setup: &PortSetup) -> Option<FaultInjector> {
        let seed = || self.setup.seed.derive(LABEL_FAULT | (index as u64) << 32);
        (!setup.fault.is_none()).then(|| FaultInjector::new(setup.fault, &seed(), pool))
    }
}

/// A worker's references to registered memory: by FPDUs that are not acknowledged, and by frames
/// that point into it.
#[derive(Debug)]
struct WorkerReferences {
    /// Counts of references by FPDUs; the counts disappear with the worker.
    pins: Weak<Pins>,
    external: ExternalMemory,
}

impl References for WorkerReferences {
    fn is_referred(&self, mr: u32) -> bool {
        // FPDUs come first: while an FPDU exists, the worker may still make frames of it.
        self.pins.upgrade().is_some_and(|pins| pins.count(mr) > 0) || self.external.is_referred(mr)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use heddle_types::{Access, Pd, Qpn};

    use super::*;

    /// The expected value is Linux's name for the port with that address.
    #[test]
    fn test_ca_guid_is_derived_from_mac_address() {
        assert_eq!(ca_guid([0x52, 0x54, 0, 0x58, 0, 2]), 0x5054_00ff_fe58_0002);
    }

    #[test]
    fn test_consecutive_ports_of_a_client_reach_all_workers_with_any_key() {
        for seed in 0..200 {
            let rss = shared_by_software(&Seed::from_u64(seed), 2).unwrap();
            let of = |port| {
                let ends = [([10, 0, 0, 2], port), ([10, 0, 0, 1], 7174)];
                let [src, dst] = ends.map(|(ip, port)| (std::net::Ipv4Addr::from(ip), port).into());
                rss.worker(src, dst).unwrap()
            };
            let second = (40_000..40_032).filter(|port| of(*port) == 1).count();
            assert!((3..30).contains(&second), "seed {seed}: {second} of 32");
        }
    }

    /// A worker that has panicked never counts its FPDUs down.
    #[test]
    fn test_gone_worker_no_longer_pins_regions() {
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
