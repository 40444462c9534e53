//! From a configuration to an RNIC: the only module that knows the RNIC's parts.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_ctl::{Endpoint, Lcores, Node, OpenPort, PortSetup, RnicSetup, WorkerPlace};
use heddle_dataplane::{
    Eal, EalConfig, EalError, IdlePolicy, IovaMode, Place, Port as DpdkPort, PortSource, Topology,
    lcore,
};
use heddle_tcp::{ConnConfig, PeerLimit};

use crate::config::{Config, Port};

/// The reason why there is no RNIC.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The request makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The start failed.
    #[error("{0}")]
    Failed(String),
}

impl StartError {
    pub(crate) fn failed(e: impl std::fmt::Display) -> StartError {
        StartError::Failed(e.to_string())
    }
}

/// The present step of a start, for threads that wait for it.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Mutex<Step>>);

#[derive(Debug)]
struct Step {
    since: Instant,
    what: String,
    /// The device may be one that does not use the addresses it is given.
    by_bus: bool,
}

impl Default for Progress {
    fn default() -> Progress {
        let what = "starting DPDK".to_owned();
        Progress(Arc::new(Mutex::new(Step { since: Instant::now(), what, by_bus: false })))
    }
}

impl Progress {
    /// Sets the step: the device of a port is being set up. `by_bus` is true for a device on a bus
    /// that uses the process's addresses.
    pub(crate) fn opening(&self, port: &str, device: &str, by_bus: bool) {
        self.at(format!("setting up {port}, the device {device}"), by_bus);
    }

    fn at(&self, what: String, by_bus: bool) {
        *self.step() = Step { since: Instant::now(), what, by_bus };
    }

    /// Returns the beginning of the present step.
    pub(crate) fn since(&self) -> Instant {
        self.step().since
    }

    /// Returns the message that the step has not ended in so long, with a possible reason.
    pub(crate) fn stuck(&self, after: Duration) -> String {
        let step = self.step();
        let hint = if step.by_bus {
            "; a virtio device that does not go through its IOMMU never answers: start with physical \
             addresses ([dpdk] iova = \"pa\", --iova pa)"
        } else {
            ""
        };
        format!("{} has not come to an end in {after:?}{hint}", step.what)
    }

    fn step(&self) -> MutexGuard<'_, Step> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of file descriptors that DPDK opens as it starts, with some for its devices.
const DESCRIPTORS: usize = 12;

/// Starts DPDK with memory for pools; `pools` has the MTU and the number of frames of each.
/// `memory`, in MiB, replaces the sum of their needs.
///
/// # Errors
/// [`StartError`]; a malformed address of a PCI device is [`StartError::Usage`].
pub fn start_eal(
    pools: impl IntoIterator<Item = (u16, u64)>,
    eal: EalConfig,
    memory: Option<u32>,
) -> Result<Eal, StartError> {
    // Without this check DPDK would report the lack by itself, in a line beside ours.
    let spare: Result<Vec<_>, _> = (0..DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    spare.map_err(|e| {
        let what = format!("DPDK needs {DESCRIPTORS} file descriptors (ulimit -n): {e}");
        StartError::Failed(what)
    })?;
    let memory_mb = memory.unwrap_or_else(|| needed_mb(pools));
    heddle_dataplane::eal::steady_heap();
    Eal::init(&EalConfig { memory_mb, ..eal }).map_err(|e| match e {
        EalError::BadPci(_) => StartError::Usage(e.to_string()),
        e => StartError::failed(e),
    })
}

/// Returns the MiB that DPDK needs for pools.
fn needed_mb(pools: impl IntoIterator<Item = (u16, u64)>) -> u32 {
    // Headers of buffer and pool, headroom, VLAN tags: 512 bytes cover them.
    let frame = |mtu: u16| u64::from(mtu.max(2048)) + 512;
    let needed: u64 = pools.into_iter().map(|(mtu, frames)| frames * frame(mtu)).sum();
    64u32.saturating_add(u32::try_from(needed >> 20).unwrap_or(u32::MAX))
}

/// Returns the MTU and the number of frames of each pool.
fn pools(config: &Config) -> impl Iterator<Item = (u16, u64)> {
    let frames = u64::from(config.limits.frames);
    let pools = config.ports.iter().map(move |p| (p.mtu, p.workers as u64 * frames));
    let inner = &config.inner;
    pools.chain([(inner.mtu, inner.workers as u64 * u64::from(inner.frames))])
}

/// Returns the settings with which DPDK starts, and its memory.
pub(crate) fn eal_config(config: &Config) -> EalConfig {
    let pci = config.ports.iter().flat_map(|p| p.source.on_bus().map(str::to_owned));
    EalConfig {
        memory_mb: config.dpdk.memory.unwrap_or_else(|| needed_mb(pools(config))),
        hugepages: config.dpdk.hugepages,
        pci: pci.collect(),
        iova: config.dpdk.iova,
        ..EalConfig::default()
    }
}

/// Starts DPDK and makes the RNIC, which no thread runs yet.
///
/// # Errors
/// [`StartError`].
pub fn open(config: &Config, progress: &Progress) -> Result<(Eal, Endpoint), StartError> {
    let limits = &config.limits;
    let eal = start_eal(pools(config), eal_config(config), config.dpdk.memory)?;
    let open = |p: &Port| {
        let device = match &p.source {
            PortSource::Vdev(vdev) => vdev.name().to_owned(),
            other => other.to_string(),
        };
        let on_bus = p.source.on_bus().next().is_some();
        progress.opening(&p.name, &device, on_bus && eal.iova_mode() == IovaMode::Va);
        let setup = PortSetup {
            routes: p.routes.clone(),
            router_adverts: p.router_adverts,
            vlans: p.vlans.clone(),
            mtu: p.mtu,
            workers: p.workers,
            queue_pairs: p.queues,
            frames: limits.frames,
            rx_interrupt: matches!(config.workers.idle, IdlePolicy::Interrupt(_)),
            offloads: p.offloads,
            ..PortSetup::new(p.addresses.clone())
        };
        // With one port the message need not name it.
        let which = if config.ports.len() > 1 { format!("{}: ", p.name) } else { String::new() };
        OpenPort::open(&eal, &p.source, &setup)
            .map_err(|e| StartError::Failed(format!("{which}{e}")))
    };
    let ports = config.ports.iter().map(open).collect::<Result<_, _>>()?;
    progress.at("starting workers".into(), false);
    let endpoint = Endpoint::assemble(&eal, ports, &setup(config)).map_err(StartError::failed)?;
    Ok((eal, endpoint))
}

/// Returns the settings that all workers and ports of the RNIC share.
fn setup(config: &Config) -> RnicSetup {
    let limits = &config.limits;
    let setup = RnicSetup::new();
    let setup = RnicSetup {
        max_conns: limits.connections,
        max_mrs: limits.registrations,
        peer_conns: limits.peer_connections.map_or(PeerLimit::Share, PeerLimit::AtMost),
        syn_cookies: config.syn_cookies,
        fpdu_memory: (limits.fpdu_memory as usize) << 20,
        rnr_wait: limits.rnr_wait,
        memory: (config.memory.registered as usize) << 20,
        pages: config.memory.pages,
        queues: (config.memory.queues as usize) << 20,
        infiniband: config.infiniband,
        ib_keepalive: config.ib_keepalive,
        inner: Some(config.inner.clone()),
        max_regions: config.regions(),
        tcp: config.sharing.of_conn(ConnConfig { keepalive: config.keepalive, ..setup.tcp }),
        window_budget: config.sharing.window_budget,
        ..setup
    };
    setup.with_patience(config.patience)
}

/// Makes the RNIC and lets it run.
///
/// # Errors
/// [`StartError`].
pub fn start(config: &Config, progress: &Progress) -> Result<Node, StartError> {
    let (eal, endpoint) = open(config, progress)?;
    let cores = match &config.workers.lcores[..] {
        [] => vec![first_core(&Topology::read(), &lcore::available(), &endpoint)?],
        cores => cores.to_vec(),
    };
    let among_programs = config.private.is_some();
    let lcores = Lcores { idle: config.workers.idle, among_programs, ..Lcores::new(cores) };
    let node = Node::start_with(&eal, endpoint, &lcores).map_err(StartError::failed)?;
    let places: Vec<_> = node.places().collect();
    for (worker, place) in places.iter().enumerate() {
        if let Some(what) = elsewhere(place) {
            tracing::warn!(worker, "{what}");
        }
    }
    if let Some(memory) = node.device().memory() {
        tracing::info!("registered memory lies in pages of {} KiB", memory.page_size() >> 10);
    }
    Ok(node)
}

/// Returns the processor of the only thread, if none was named.
fn first_core(
    topology: &Topology,
    free: &[usize],
    endpoint: &Endpoint,
) -> Result<usize, StartError> {
    let sockets: Vec<_> = endpoint.worker_ports().map(DpdkPort::socket).collect();
    let none = || StartError::Failed("the process may use no processor".into());
    topology.first(free, &sockets).ok_or_else(none)
}

/// Returns a warning about a worker's place, if one is due.
fn elsewhere(place: &WorkerPlace) -> Option<String> {
    let (cpu, port) = (place.lcore, place.wanted?);
    let place = Place { cpu, socket: place.socket, wanted: Some(port) };
    Some(place.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::Accounts;
    use heddle_ctl::Patience;
    use heddle_tcp::{Congestion, Ecn, Pacing, PathMtu, SynCookies, UserTimeoutOption};

    /// `ctl/tests/it/patience.rs` tests the workers' use of these settings on the wire.
    #[test]
    fn test_peer_limits_of_file_reach_worker_setup() {
        let text = "[[port]]\nvdev = \"net_null0\"\naddresses = [\"10.0.0.1/24\"]\n\
                    [limits]\npeer-connections = 9\nfpdu-memory = 3\nrnr-wait = \"7s\"\n\
                    [mpa]\nfpdu-stall = \"6s\"\n[tcp]\nuser-timeout = \"2s\"\n\
                    zero-window = \"3s\"\nclose-stall = \"4s\"\nclose-limit = \"5s\"\n\
                    congestion = \"dctcp\"\necn = \"request\"\npacing = \"off\"\n\
                    path-mtu-probing = \"off\"\nreceive-window = 2048\nreceive-window-budget = 5\n\
                    user-timeout-option = \"adapt\"\nuser-timeout-limit = \"900s\"\n\
                    syn-cookies = \"always\"\n";
        let setup = |text| setup(&Config::parse(text, &Accounts::default()).unwrap());
        let s = setup(text);
        let seconds = |d: Duration| d.as_secs();
        let tcp = [s.tcp.user_timeout, s.tcp.zero_window, s.tcp.close_stall].map(seconds);
        assert_eq!(
            (tcp, s.close_limit, s.peer_conns),
            ([2, 3, 4], Duration::from_secs(5), PeerLimit::AtMost(9))
        );
        assert_eq!((s.fpdu_memory, s.fpdu_stall), (3 << 20, Duration::from_secs(6)));
        assert_eq!(s.rnr_wait, Duration::from_secs(7));
        assert_eq!(s.syn_cookies, SynCookies::Always);
        let sharing = (s.tcp.congestion, s.tcp.ecn, s.tcp.pacing);
        assert_eq!(sharing, (Congestion::Dctcp, Ecn::Request, Pacing::Off));
        assert_eq!((s.tcp.recv_window, s.tcp.recv_window_max), (2 << 20, 0));
        assert_eq!((s.window_budget, s.tcp.path_mtu), (5 << 20, PathMtu::Off));
        assert_eq!(
            (s.tcp.user_timeout_option, s.tcp.user_timeout_limit),
            (UserTimeoutOption::Adapt, Duration::from_secs(900))
        );
        assert!(s.tcp.keepalive.is_some(), "the rest stays");
        let usual = setup(text.split("[limits]").next().unwrap());
        assert_eq!(usual.patience(), Patience::default());
        let sharing = (usual.tcp.congestion, usual.tcp.ecn, usual.tcp.pacing);
        assert_eq!(sharing, (Congestion::Cubic, Ecn::Accept, Pacing::Auto));
        let windows = (usual.tcp.recv_window, usual.tcp.recv_window_max);
        assert_eq!((windows, usual.window_budget), ((1 << 20, 0xffff << 9), 64 << 20));
        assert_eq!(usual.tcp.path_mtu, PathMtu::BlackHole);
        assert_eq!(usual.tcp.user_timeout_option, UserTimeoutOption::Off);
        assert_eq!((usual.peer_conns, usual.fpdu_memory), (PeerLimit::Share, 64 << 20));
        assert_eq!((usual.rnr_wait, usual.syn_cookies), (Duration::ZERO, SynCookies::Auto));
    }

    #[test]
    fn test_warning_about_worker_far_from_its_port_names_both_sockets() {
        let place =
            |socket, wanted| WorkerPlace { port: 0, lcore: 5, socket, wanted, running: true };
        let text = elsewhere(&place(Some(1), Some(0))).unwrap_or_default();
        assert!(text.contains("processor 5 is at socket 1, and its port at socket 0"), "{text}");
        assert_eq!(elsewhere(&place(Some(1), None)), None);
        assert_eq!(elsewhere(&place(None, None)), None);
    }
}
