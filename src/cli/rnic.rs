//! The RNIC of a command: its own, or the RNIC of a running `heddle serve`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use heddle::remote::OpenParams;
use heddle::{Device, Eal, Endpoint, EndpointConfig};

use super::Failure;
use super::net::{NetArgs, TcpArgs};

/// The options that select an own device with addresses, or the RNIC of another process.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RnicArgs {
    #[command(flatten)]
    pub(crate) net: NetArgs,
    /// Use the RNIC of a running `heddle serve` through its control socket, instead of an own RNIC
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with_all = ["vdev", "pci", "bond", "members", "ips", "vlans", "gateway", "mtu"]
    )]
    pub(crate) socket: Option<PathBuf>,
}

/// An RNIC to work on.
pub(crate) enum Rnic {
    /// An RNIC of this process, on the thread that polls it.
    Own { eal: Eal, endpoint: Box<Endpoint> },
    /// An RNIC of another process.
    Served(Device),
}

/// Time for which the end of an RNIC may follow after the end of what it did for a command.
const END: Duration = Duration::from_millis(500);

/// Names the end of another process's RNIC as the reason of a failure that follows from it. The
/// command itself sees only flushed requests and connections that are over.
pub(crate) fn explain(device: Option<&Device>, failure: Failure) -> Failure {
    let (Some(device), Failure::Failed(what)) = (device, &failure) else { return failure };
    let until = Instant::now() + END;
    loop {
        match device.ended() {
            Some(ended) if what.contains(&ended.to_string()) => return failure,
            Some(ended) => return Failure::failed(format!("{ended} ({what})")),
            None if Instant::now() >= until => return failure,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

impl RnicArgs {
    /// Checks that the options suffice to open an RNIC.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &self.socket {
            Some(_) => Ok(()),
            None => self.net.source().map(|_| ()),
        }
    }

    /// Opens the RNIC with `memory` bytes to register and `queues` bytes for queues.
    pub(crate) fn open(&self, mtu: u16, memory: usize, queues: usize) -> Result<Rnic, Failure> {
        self.open_with(mtu, memory, queues, 1, TcpArgs::default())
    }

    /// Does the same with `workers` workers and these settings of TCP, if the RNIC is this process's
    /// own.
    pub(crate) fn open_with(
        &self,
        mtu: u16,
        memory: usize,
        queues: usize,
        workers: usize,
        tcp: TcpArgs,
    ) -> Result<Rnic, Failure> {
        match &self.socket {
            Some(_) if tcp != TcpArgs::default() => Err(Failure::usage(
                "--congestion, --ecn, --pacing, --receive-window, --path-mtu-probing, \
                 --user-timeout and --user-timeout-option: TCP is the appliance's, whose file has \
                 these settings",
            )),
            Some(path) => {
                let params = OpenParams { memory, queues, ..OpenParams::default() };
                Ok(Rnic::Served(Device::open_with(path, &params)?))
            }
            None => {
                let tcp = tcp.settings();
                let open = |c| EndpointConfig { mtu, memory, queues, workers, tcp, ..c };
                let (eal, endpoint) = self.net.open_with(open)?;
                Ok(Rnic::Own { eal, endpoint: Box::new(endpoint) })
            }
        }
    }
}

impl Rnic {
    pub(crate) fn device(&self) -> &Device {
        match self {
            Rnic::Own { endpoint, .. } => endpoint.device(),
            Rnic::Served(device) => device,
        }
    }

    /// Returns the device, if the RNIC belongs to another process.
    pub(crate) fn served(&self) -> Option<Device> {
        match self {
            Rnic::Own { .. } => None,
            Rnic::Served(device) => Some(device.clone()),
        }
    }

    /// Lets the RNIC exchange the last packets of closed connections for `time`. An RNIC of another
    /// process needs no help.
    pub(crate) fn linger(&mut self, time: Duration) {
        if let Rnic::Own { endpoint, .. } = self {
            let until = endpoint.now() + time;
            while endpoint.now() < until {
                endpoint.poll();
            }
        }
    }

    /// Lets the RNIC make progress: polls an own RNIC, or yields the processor if another process
    /// runs the RNIC.
    pub(crate) fn poll(&mut self) {
        match self {
            Rnic::Own { endpoint, .. } => {
                endpoint.poll();
            }
            Rnic::Served(_) => std::thread::yield_now(),
        }
    }
}
