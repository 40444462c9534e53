//! Workers and their control plane in one object, driven by one thread.

use std::sync::Arc;

use heddle_base::Instant;
use heddle_dataplane::{Clock, Eal, Mempool, Port, PortSource, Worker};
use heddle_hub::Hub;
use heddle_verbs::Device;

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
    /// Returns its number among the RNIC's workers.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Does the work that waits; returns true if there was any.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.place.worker.poll()
    }

    /// Returns the number of segments that the worker has retransmitted.
    pub fn retransmits(&self) -> u64 {
        retransmits(&self.place)
    }
}

fn retransmits(place: &WorkerPlace) -> u64 {
    place.worker.snapshot().engine.rnic.tx_retransmits
}

/// An RNIC that runs on the thread that polls it. See the crate's documentation.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) workers: Vec<WorkerPlace>,
    pub(crate) control: Control,
    pub(crate) requests: Requests,
    /// At least one port.
    pub(crate) ports: Vec<Port>,
    pub(crate) clock: Clock,
    polls: u32,
    pub(crate) hub: Arc<Hub>,
    /// The last field: fields drop in order, so the device's memory outlives the ports that may
    /// read it.
    pub(crate) device: Device,
}

/// Number of polls after which the control plane has its turn even without a call.
const CONTROL_EVERY: u32 = 32;

impl Endpoint {
    pub(crate) fn new(
        workers: Vec<WorkerPlace>,
        control: Control,
        requests: Requests,
        ports: Vec<Port>,
        clock: Clock,
        hub: Arc<Hub>,
        device: Device,
    ) -> Endpoint {
        Endpoint { workers, control, requests, ports, clock, polls: 0, hub, device }
    }

    /// Opens an RNIC of one port, on a DPDK device. [`assemble`](Endpoint::assemble) makes an RNIC
    /// of several ports.
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

    /// Opens two RNICs whose ports are joined by rings: frames pass as mbufs, without a copy. With
    /// equal numbers of workers on both sides each worker is joined to its counterpart; see
    /// [`OpenPort::ring_pair`].
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

    /// Opens two RNICs whose ports are joined by a vhost-user socket, as those of a host and its
    /// virtual machine: trains pass uncut, by one copy. See [`OpenPort::vhost_pair`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn vhost_pair(
        eal: &Eal,
        name: &str,
        a: &EndpointConfig,
        b: &EndpointConfig,
    ) -> Result<(Endpoint, Endpoint), OpenError> {
        let (pa, pb) = OpenPort::vhost_pair(eal, name, &a.port(), &b.port())?;
        let a = Endpoint::assemble(eal, vec![pa], &a.rnic())?;
        Ok((a, Endpoint::assemble(eal, vec![pb], &b.rnic())?))
    }

    /// Makes an RNIC on a port that is open already, at the MTU of `config` and with queues that
    /// are not taken; frames for sending come from `pool`.
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

    /// Returns the hub, with which applications open devices of their own.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Returns the device of the RNIC's own application.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the first port.
    pub fn port(&self) -> &Port {
        &self.ports[0]
    }

    /// Returns all ports.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Returns the port of each worker.
    pub fn worker_ports(&self) -> impl Iterator<Item = &Port> {
        self.workers.iter().filter_map(|w| self.ports.get(w.port))
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Returns the time of the RNIC's clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns a handle for questions, which are answered when the endpoint is polled.
    pub fn asker(&self) -> Asker {
        Asker::new(self.requests.clone())
    }

    /// Does the work that waits, worker by worker; returns true if there was any. The calling
    /// thread is the RNIC's only one.
    #[inline]
    pub fn poll(&mut self) -> bool {
        let mut busy = false;
        for n in 0..self.workers.len() {
            busy |= self.workers[n].worker.poll();
            if n > 0 {
                let now = self.workers[n].worker.turn_began();
                self.workers[n - 1].worker.settle(now);
            }
        }
        self.polls = self.polls.wrapping_add(1);
        if self.control.is_called() || self.polls.is_multiple_of(CONTROL_EVERY) {
            return self.control.poll(self.clock.now()) || busy;
        }
        busy
    }

    /// Takes all workers but the first out of the endpoint, for the caller's own threads to poll.
    /// The thread that polls the endpoint polls the first worker, and the control plane of all.
    pub fn detach(&mut self) -> Vec<Detached> {
        let others = self.workers.drain(1..).enumerate();
        others.map(|(n, place)| Detached { number: n + 1, place }).collect()
    }

    /// Takes back the workers that [`detach`](Endpoint::detach) gave out.
    pub fn attach(&mut self, mut workers: Vec<Detached>) {
        workers.sort_by_key(|w| w.number);
        self.workers.extend(workers.into_iter().map(|w| w.place));
    }

    /// Returns the number of segments that the workers which are not detached have retransmitted.
    pub fn retransmits(&self) -> u64 {
        self.workers.iter().map(retransmits).sum()
    }

    /// Returns all counters so far, of workers that are not detached.
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

/// Returns the counters of each port.
pub(crate) fn port_status(ports: &[Port]) -> Vec<PortStatus> {
    let status = |p: &Port| PortStatus { name: p.name().to_owned(), stats: p.stats() };
    ports.iter().map(status).collect()
}
