//! From a configuration to an RNIC: the one place that knows what it is made of.

use std::fs::File;

use heddle_ctl::{Endpoint, EndpointConfig, Node};
use heddle_dataplane::{Eal, EalConfig, EalError};
use heddle_perf::pin;
use heddle_tcp::ConnConfig;

use crate::config::Config;

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

/// Starts DPDK with memory for `ports` ports set up as `config` says.
///
/// # Errors
/// [`StartError`]; an address of a PCI device that is none is [`StartError::Usage`].
pub fn start_eal(
    config: &EndpointConfig,
    ports: u32,
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
    let frame = u32::from(config.mtu).max(2048) + 512;
    let pools = u64::from(ports) * u64::from(config.frames) * u64::from(frame);
    let needed = 64 + u32::try_from(pools >> 20).unwrap_or(u32::MAX);
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
    let (port, limits) = (&config.port, &config.limits);
    let endpoint = EndpointConfig::new(port.addresses.clone());
    let endpoint = EndpointConfig {
        gateway: port.gateway,
        mtu: port.mtu,
        max_conns: limits.connections,
        max_mrs: limits.registrations,
        frames: limits.frames,
        memory: (config.memory.registered as usize) << 20,
        queues: (config.memory.queues as usize) << 20,
        tcp: ConnConfig { keepalive: config.keepalive, ..endpoint.tcp },
        ..endpoint
    };
    let pci = match &port.source {
        heddle_dataplane::PortSource::Device(pci) => vec![pci.clone()],
        heddle_dataplane::PortSource::Vdev(_) => Vec::new(),
    };
    let hugepages = config.dpdk.hugepages;
    let eal = EalConfig { hugepages, pci, ..EalConfig::default() };
    let eal = start_eal(&endpoint, 1, eal, config.dpdk.memory)?;
    let made = Endpoint::open(&eal, &port.source, &endpoint).map_err(StartError::failed)?;
    Ok((eal, made))
}

/// Makes the RNIC and lets it run. The processors of its workers come with it.
///
/// # Errors
/// [`StartError`].
pub fn start(config: &Config) -> Result<(Node, Vec<usize>), StartError> {
    let (eal, endpoint) = open(config)?;
    let core = match config.workers.lcores.first() {
        Some(core) => *core,
        None => pin::first::<1>().map_err(StartError::failed)?[0],
    };
    Ok((Node::start(&eal, endpoint, &[core]).map_err(StartError::failed)?, vec![core]))
}
