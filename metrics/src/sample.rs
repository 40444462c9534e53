//! What is exposed, as plain values.

use core::time::Duration;

use heddle_ctl::CtlCounters;
use heddle_dataplane::{PortStats, WorkerSnapshot};

/// An RNIC at one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Version of the program.
    pub version: String,
    /// Version of DPDK it runs with.
    pub dpdk: String,
    /// Since it was started.
    pub uptime: Duration,
    /// Each worker, by its number.
    pub workers: Vec<WorkerSample>,
    /// Each port.
    pub ports: Vec<PortSample>,
    /// The control plane.
    pub control: CtlCounters,
    /// Registered memory.
    pub memory: Memory,
    /// Those who use the control socket.
    pub clients: Clients,
}

/// One worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerSample {
    /// Name of the port whose frames it handles.
    pub port: String,
    /// What it has counted; none when it has ended or did not answer.
    pub snapshot: Option<Box<WorkerSnapshot>>,
}

/// One port.
#[derive(Clone, Debug, Default)]
pub struct PortSample {
    /// Its name.
    pub name: String,
    /// Its driver, in DPDK's words (`net_ice`).
    pub driver: String,
    /// Whether its link is up.
    pub up: bool,
    /// Speed of the link in Mbit/s; none where there is no such thing.
    pub mbps: Option<u32>,
    /// What it has counted.
    pub stats: PortStats,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// STags there are.
    pub registrations: usize,
    /// STags there can be.
    pub registrations_max: usize,
    /// Octets that applications have registered.
    pub registered_bytes: u64,
    /// Octets there are to be registered.
    pub bytes: u64,
    /// Regions that are deregistered and still referred to.
    pub draining: usize,
}

/// Those who use the control socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clients {
    /// Connected now.
    pub connected: usize,
    /// Requests carried out.
    pub requests: u64,
    /// Requests refused.
    pub refused: u64,
    /// Clients that found no place.
    pub turned_away: u64,
    /// Clients dropped because they did not take their answers.
    pub slow: u64,
    /// Clients dropped because what they sent made no sense.
    pub broken: u64,
}

/// Where samples come from.
pub trait Source {
    /// A sample of now; why there is none, in one line. It may take its time: whoever asks has a
    /// deadline, and drops the future then.
    fn sample(&self) -> impl Future<Output = Result<Sample, String>>;
}
