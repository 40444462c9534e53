//! Workers and their control plane in one, driven by one thread.

use std::sync::Arc;

use heddle_base::Instant;
use heddle_dataplane::{Clock, Eal, Mempool, Port, PortSource, Worker};
use heddle_verbs::{Device, Hub};

use crate::ask::Asker;
use crate::assembly::OpenPort;
use crate::config::{EndpointConfig, OpenError};
use crate::control_plane::{Control, Requests};
use crate::snapshot::{PortStatus, Snapshot, WorkerStatus};

/// A worker, and the number of its port.
#[derive(Debug)]
pub(crate) struct WorkerPlace {
    pub(crate) worker: Worker,
    pub(crate) port: usize,
}

/// A worker that is polled on a thread of its own, apart from its endpoint.
#[derive(Debug)]
pub struct Detached {
    number: usize,
    place: WorkerPlace,
}

impl Detached {
    /// Its number among the RNIC's workers.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Does what there is to do; true when there was something.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.place.worker.poll()
    }
}

/// An RNIC that runs on the thread that polls it. See the crate's documentation.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) workers: Vec<WorkerPlace>,
    pub(crate) control: Control,
    pub(crate) requests: Requests,
    /// At least one.
    pub(crate) ports: Vec<Port>,
    pub(crate) clock: Clock,
    polls: u32,
    pub(crate) hub: Arc<Hub>,
    /// Last: its memory goes after the ports that may read it.
    pub(crate) device: Device,
}

/// The control plane has its turn when it is called, and every so many polls besides.
const CONTROL_EVERY: u32 = 32;

impl Endpoint {
    pub(crate) fn new(
        workers: Vec<WorkerPlace>,
        control: Control,
        requests: Requests,
        ports: Vec<Port>,
        clock: Clock,
        (hub, device): (Arc<Hub>, Device),
    ) -> Endpoint {
        Endpoint { workers, control, requests, ports, clock, polls: 0, hub, device }
    }

    /// An RNIC of one port, on a DPDK device. [`assemble`](Endpoint::assemble) makes one of several.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        eal: &Eal,
        source: &PortSource,
        config: &EndpointConfig,
    ) -> Result<Endpoint, OpenError> {
        let port = OpenPort::open(eal, source, &config.port())?;
        Endpoint::assemble(eal, vec![port], &config.rnic())
    }

    /// Two RNICs whose ports are joined by rings: frames pass as mbufs, without a copy. With as many
    /// workers on both sides each is joined to its counterpart; see [`OpenPort::ring_pair`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn ring_pair(
        eal: &Eal,
        name: &str,
        a: &EndpointConfig,
        b: &EndpointConfig,
    ) -> Result<(Endpoint, Endpoint), OpenError> {
        let (pa, pb) = OpenPort::ring_pair(eal, name, &a.port(), &b.port())?;
        let a = Endpoint::assemble(eal, vec![pa], &a.rnic())?;
        Ok((a, Endpoint::assemble(eal, vec![pb], &b.rnic())?))
    }

    /// An RNIC on a port that is open already, at the MTU of `config` and with queues that nobody
    /// has taken; `pool` is where the frames it sends come from.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn on_port(
        eal: &Eal,
        port: Port,
        pool: Mempool,
        config: &EndpointConfig,
    ) -> Result<Endpoint, OpenError> {
        let port = OpenPort::from_parts(port, pool, &config.port());
        Endpoint::assemble(eal, vec![port], &config.rnic())
    }

    /// What applications of their own are opened with.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// The application's handle.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The first port.
    pub fn port(&self) -> &Port {
        &self.ports[0]
    }

    /// All ports.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// The port of each worker.
    pub fn worker_ports(&self) -> impl Iterator<Item = &Port> {
        self.workers.iter().filter_map(|w| self.ports.get(w.port))
    }

    /// How many workers it has.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The time the RNIC goes by.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The way to ask about it, answered when it is polled.
    pub fn asker(&self) -> Asker {
        Asker::new(self.requests.clone())
    }

    /// Does what there is to do, worker by worker; true when there was something. The thread that
    /// calls it is the RNIC's only one.
    #[inline]
    pub fn poll(&mut self) -> bool {
        let mut busy = false;
        for place in &mut self.workers {
            busy |= place.worker.poll();
        }
        self.polls = self.polls.wrapping_add(1);
        if self.control.is_called() || self.polls.is_multiple_of(CONTROL_EVERY) {
            return self.control.poll(self.clock.now()) || busy;
        }
        busy
    }

    /// Takes all workers but the first away, for threads of the caller's own to poll. Whoever polls the
    /// endpoint polls the first, and the control plane of all.
    pub fn detach(&mut self) -> Vec<Detached> {
        let others = self.workers.drain(1..).enumerate();
        others.map(|(n, place)| Detached { number: n + 1, place }).collect()
    }

    /// Takes back those that [`detach`](Endpoint::detach) gave.
    pub fn attach(&mut self, mut workers: Vec<Detached>) {
        workers.sort_by_key(|w| w.number);
        self.workers.extend(workers.into_iter().map(|w| w.place));
    }

    /// Everything counted so far, by workers that are not detached.
    pub fn snapshot(&self) -> Snapshot {
        let status = |w: &WorkerPlace| WorkerStatus {
            port: w.port,
            lcore: None,
            counters: Some(Box::new(w.worker.snapshot())),
        };
        let workers = self.workers.iter().map(status).collect();
        Snapshot::of(workers, port_status(&self.ports), Vec::new(), self.control.counters())
    }
}

/// What each port has counted.
pub(crate) fn port_status(ports: &[Port]) -> Vec<PortStatus> {
    let status = |p: &Port| PortStatus { name: p.name().to_owned(), stats: p.stats() };
    ports.iter().map(status).collect()
}
