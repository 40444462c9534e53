//! From a configuration to an RNIC: the one place that knows what it is made of.

use std::fs::File;

use heddle_ctl::{Endpoint, Lcores, Node, OpenPort, PortSetup, RnicSetup};
use heddle_dataplane::{Eal, EalConfig, EalError, IdlePolicy, PortSource};
use heddle_perf::pin;
use heddle_tcp::ConnConfig;

use crate::config::{Config, Port};

/// Why there is no RNIC.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// It did not come about.
    #[error("{0}")]
    Failed(String),
}

impl StartError {
    pub(crate) fn failed(e: impl std::fmt::Display) -> StartError {
        StartError::Failed(e.to_string())
    }
}

/// File descriptors that DPDK opens as it starts, and some for its devices.
const DESCRIPTORS: usize = 12;

/// Starts DPDK with memory for pools: of each, the MTU of its frames and their number. `memory` in MiB
/// is instead of what they need.
///
/// # Errors
/// [`StartError`]; an address of a PCI device that is none is [`StartError::Usage`].
pub fn start_eal(
    pools: impl IntoIterator<Item = (u16, u64)>,
    eal: EalConfig,
    memory: Option<u32>,
) -> Result<Eal, StartError> {
    // DPDK would say so on its own, in a line beside ours.
    let spare: Result<Vec<_>, _> = (0..DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    spare.map_err(|e| {
        let what = format!("DPDK needs {DESCRIPTORS} file descriptors (ulimit -n): {e}");
        StartError::Failed(what)
    })?;
    // Headers of buffer and pool, headroom, VLAN tags: 512 octets cover them.
    let frame = |mtu: u16| u64::from(mtu.max(2048)) + 512;
    let needed: u64 = pools.into_iter().map(|(mtu, frames)| frames * frame(mtu)).sum();
    let needed = 64 + u32::try_from(needed >> 20).unwrap_or(u32::MAX);
    let memory_mb = memory.unwrap_or(needed);
    Eal::init(&EalConfig { memory_mb, ..eal }).map_err(|e| match e {
        EalError::BadPci(_) => StartError::Usage(e.to_string()),
        e => StartError::failed(e),
    })
}

/// Starts DPDK and makes the RNIC, which nobody runs yet.
///
/// # Errors
/// [`StartError`].
pub fn open(config: &Config) -> Result<(Eal, Endpoint), StartError> {
    let limits = &config.limits;
    let pci = config.ports.iter().filter_map(|p| match &p.source {
        PortSource::Device(pci) => Some(pci.clone()),
        PortSource::Vdev(_) => None,
    });
    let eal =
        EalConfig { hugepages: config.dpdk.hugepages, pci: pci.collect(), ..EalConfig::default() };
    let pools = config.ports.iter();
    let pools = pools.map(|p| (p.mtu, p.workers as u64 * u64::from(limits.frames)));
    let eal = start_eal(pools, eal, config.dpdk.memory)?;
    let open = |p: &Port| {
        let setup = PortSetup {
            routes: p.routes.clone(),
            mtu: p.mtu,
            workers: p.workers,
            queue_pairs: p.queues,
            frames: limits.frames,
            rx_interrupt: matches!(config.workers.idle, IdlePolicy::Interrupt(_)),
            ..PortSetup::new(p.addresses.clone())
        };
        // With one port nobody asks which.
        let which = if config.ports.len() > 1 { format!("{}: ", p.name) } else { String::new() };
        OpenPort::open(&eal, &p.source, &setup)
            .map_err(|e| StartError::Failed(format!("{which}{e}")))
    };
    let ports = config.ports.iter().map(open).collect::<Result<_, _>>()?;
    let setup = RnicSetup::new();
    let setup = RnicSetup {
        max_conns: limits.connections,
        max_mrs: limits.registrations,
        memory: (config.memory.registered as usize) << 20,
        queues: (config.memory.queues as usize) << 20,
        tcp: ConnConfig { keepalive: config.keepalive, ..setup.tcp },
        ..setup
    };
    let endpoint = Endpoint::assemble(&eal, ports, &setup).map_err(StartError::failed)?;
    Ok((eal, endpoint))
}

/// Makes the RNIC and lets it run.
///
/// # Errors
/// [`StartError`].
pub fn start(config: &Config) -> Result<Node, StartError> {
    let (eal, endpoint) = open(config)?;
    let cores = match &config.workers.lcores[..] {
        [] => pin::first::<1>().map_err(StartError::failed)?.to_vec(),
        cores => cores.to_vec(),
    };
    let lcores = Lcores { cores, idle: config.workers.idle };
    Node::start_with(&eal, endpoint, &lcores).map_err(StartError::failed)
}
