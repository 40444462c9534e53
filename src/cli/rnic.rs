//! The RNIC of a command: one of its own, or that of a running `heddle serve`.

use std::path::PathBuf;
use std::time::Duration;

use heddle::remote::OpenParams;
use heddle::{Clock, Device, Eal, Endpoint, EndpointConfig};

use super::Failure;
use super::net::NetArgs;

/// A device of its own with addresses, or somebody else's.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RnicArgs {
    #[command(flatten)]
    pub(crate) net: NetArgs,
    /// Use the RNIC of a running `heddle serve` through its control socket, instead of one of our own
    #[arg(long, value_name = "PATH", conflicts_with_all = ["vdev", "pci", "ips", "gateway", "mtu"])]
    pub(crate) socket: Option<PathBuf>,
}

/// An RNIC to work on.
pub(crate) enum Rnic {
    /// On the thread that polls it.
    Own { eal: Eal, endpoint: Box<Endpoint> },
    /// Of another process.
    Served(Device),
}

impl RnicArgs {
    /// Whether there is enough to open one.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &self.socket {
            Some(_) => Ok(()),
            None => self.net.source().map(|_| ()),
        }
    }

    /// Opens it, with so many octets of memory to register and for queues.
    pub(crate) fn open(&self, mtu: u16, memory: usize, queues: usize) -> Result<Rnic, Failure> {
        self.open_with(mtu, memory, queues, 1)
    }

    /// The same with so many workers, where it is one of our own.
    pub(crate) fn open_with(
        &self,
        mtu: u16,
        memory: usize,
        queues: usize,
        workers: usize,
    ) -> Result<Rnic, Failure> {
        match &self.socket {
            Some(path) => {
                let params = OpenParams { memory, queues, ..OpenParams::default() };
                Ok(Rnic::Served(Device::open_with(path, &params)?))
            }
            None => {
                let open = |c| EndpointConfig { mtu, memory, queues, workers, ..c };
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

    /// The best clock there is.
    pub(crate) fn clock(&self) -> Clock {
        match self {
            Rnic::Own { eal, .. } => Clock::new(eal),
            Rnic::Served(_) => Clock::system(),
        }
    }

    /// Lets the last packets of what was closed go to and fro, for so long. An RNIC that others run goes on
    /// by itself.
    pub(crate) fn linger(&mut self, time: Duration) {
        if let Rnic::Own { endpoint, .. } = self {
            let until = endpoint.now() + time;
            while endpoint.now() < until {
                endpoint.poll();
            }
        }
    }

    /// Lets it get on: the thread that has an RNIC runs it, another lets others have the processor.
    pub(crate) fn poll(&mut self) {
        match self {
            Rnic::Own { endpoint, .. } => {
                endpoint.poll();
            }
            Rnic::Served(_) => std::thread::yield_now(),
        }
    }
}
