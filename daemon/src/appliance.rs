//! The running appliance, and the requests that it serves.
//!
//! All of this runs on the front thread, and no code here makes that thread wait. The appliance
//! sends messages to workers and services, and awaits their answers for up to [`ANSWER`] while it
//! serves other clients.

mod answers;
mod applications;
pub(crate) mod bonds;
mod drain;
mod exports;
mod exposer;
mod links;
mod operations;
mod taken;
mod tenants;

use core::cell::{Cell, RefCell};
use core::net::SocketAddr;
use core::time::Duration;
use std::future::Future;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Instant;

use heddle_ctl::{Asker, Kill, Node, Question, Reply, Snapshot};
use heddle_dataplane::{Port, WorkerSnapshot};
use heddle_services as service;
use heddle_socket::admin::LastReload;
use heddle_socket::{Fault, FaultKind};
use heddle_types::WorkerId;
use heddle_verbs::ListenParams;
use tokio::sync::{Mutex, oneshot, watch};

use crate::config::{self, Config, Forward};
use crate::gateway::{self, GatewayThread, Shown};
use crate::log::Logging;
use crate::nfs::{Opened, Quota};
use crate::service::ServiceSpec;
use crate::services::{Done, ServiceThread, Terms};
use applications::Applications;
pub(crate) use applications::share;
use bonds::Bonds;
use exposer::Exposer;
use links::Links;
use tenants::Tenants;
pub(crate) use tenants::{Admitted, Tenant, Word, addresses};

/// Time that a worker has to answer, on a machine that has other work too.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// Time that workers have to answer for a list of all that they do, in two tries: a client of the
/// control socket waits for ten seconds.
const LISTED: Duration = Duration::from_secs(2);

/// Time that a service has to start or stop.
const SERVICE: Duration = Duration::from_secs(5);

/// Bytes of registered memory for an NFS export: a quarter of all, within these limits. With less,
/// few of the longest calls could be under way; more would not make the export faster.
const EXPORT_MIN: usize = 8 << 20;
const EXPORT_MAX: usize = 64 << 20;

/// The running appliance.
pub(crate) struct Appliance {
    pub(crate) node: Node,
    pub(crate) asker: Asker,
    services: RefCell<ServiceThread>,
    /// Absent where InfiniBand is not enabled.
    gateway: Option<GatewayThread>,
    /// The configuration in force.
    pub(crate) config: RefCell<Config>,
    /// The file of the configuration, if there is one.
    file: Option<PathBuf>,
    logging: Logging,
    pub(crate) exposer: Exposer,
    pub(crate) links: Links,
    pub(crate) bonds: Bonds,
    /// Each worker's last answer to a request for metrics.
    pub(crate) known: RefCell<Vec<WorkerSnapshot>>,
    /// A handle for the appliance's own tasks.
    me: Weak<Appliance>,
    started: Instant,
    last_reload: RefCell<Option<LastReload>>,
    /// Lets one change run at a time.
    changing: Mutex<()>,
    /// Lets one question to the workers run at a time, however many clients ask.
    asking: Mutex<()>,
    pub(crate) counters: SocketCounters,
    /// The applications that have a device, by their numbers.
    pub(crate) applications: RefCell<Applications>,
    /// The sessions of the same applications, with their policies.
    tenants: Tenants,
    ending: Cell<bool>,
    /// The time since which new connections and applications are refused.
    draining: Cell<Option<u64>>,
    /// Number of failures of applications' memory, which makes sessions check their own.
    pub(crate) lost: watch::Sender<usize>,
}

/// Counters of the control socket.
#[derive(Debug, Default)]
pub(crate) struct SocketCounters {
    pub(crate) clients: Cell<usize>,
    pub(crate) requests: Cell<u64>,
    pub(crate) refused: Cell<u64>,
    pub(crate) turned_away: Cell<u64>,
    pub(crate) slow: Cell<u64>,
    pub(crate) broken: Cell<u64>,
    pub(crate) evicted: Cell<u64>,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get().wrapping_add(1));
}

impl Appliance {
    /// Makes the appliance around a running node, and starts its threads.
    ///
    /// # Errors
    /// When a thread does not start.
    pub(crate) fn new(
        node: Node,
        config: Config,
        file: Option<PathBuf>,
        logging: Logging,
    ) -> std::io::Result<Rc<Appliance>> {
        let services = ServiceThread::start(node.device().clone())?;
        let links = Links::new(node.ports().iter().map(Port::link));
        let bonds = Bonds::new(node.ports().iter().map(Port::bond));
        let ours = gateway::addresses(config.ports.iter().flat_map(config::Port::all_addresses));
        let tenants = Tenants::new(&config);
        let weight = config.weight;
        let gateway = config.infiniband.then(|| GatewayThread::start(&node, ours)).transpose()?;
        let appliance = Rc::new_cyclic(|me| Appliance {
            gateway,
            asker: node.asker(),
            node,
            services: RefCell::new(services),
            config: RefCell::new(config),
            file,
            logging,
            exposer: Exposer::default(),
            known: RefCell::default(),
            links,
            bonds,
            me: Weak::clone(me),
            started: Instant::now(),
            last_reload: RefCell::default(),
            changing: Mutex::default(),
            asking: Mutex::default(),
            counters: SocketCounters::default(),
            applications: RefCell::default(),
            tenants,
            ending: Cell::new(false),
            draining: Cell::new(None),
            lost: watch::Sender::new(0),
        });
        appliance.set_weight(weight);
        Ok(appliance)
    }

    /// Returns the nanoseconds since the start.
    pub(crate) fn at_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns `Ok` if everything that moves data or serves runs, and the missing part otherwise. A
    /// missing part is a defect.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !self.node.is_running() {
            return Err("all workers have ended by themselves, which is a defect".into());
        }
        if !self.services.borrow().is_running() {
            return Err("the services have ended by themselves, which is a defect".into());
        }
        if self.gateway.as_ref().is_some_and(|g| !g.is_running()) {
            return Err("the gateway has ended by itself, which is a defect".into());
        }
        Ok(())
    }

    /// Asks ports about their links, and logs the changes; asks ports on a bus only with `all`. A
    /// link that has come up may lead to another network, so the port announces our addresses
    /// there.
    pub(crate) fn look_at_links(&self, all: bool) {
        let at_ns = self.at_ns();
        let config = self.config.borrow();
        for (n, port) in self.node.ports().iter().enumerate() {
            if !all && port.is_on_bus() {
                continue;
            }
            let name = config.ports.get(n).map_or_else(|| port.name(), |p| p.name.as_str());
            if all {
                port.release_lost();
            }
            let taken_over = port.poll_bond().is_some_and(|bond| self.bonds.changed(n, bond, name));
            let up = port.poll_link().is_some_and(|link| self.links.changed(n, link, at_ns, name));
            if up || taken_over {
                self.announce(n);
            }
        }
    }

    /// Announces the addresses of all ports whose link is up. The other ports announce theirs when
    /// their link comes up.
    pub(crate) fn announce_all(&self) {
        let ports = 0..self.node.ports().len();
        let up = |n: &usize| self.links.of(*n).is_some_and(|h| h.link.up);
        ports.filter(up).for_each(|n| self.announce(n));
    }

    /// Announces the addresses of a port. An RNIC that has ended announces nothing;
    /// [`check`](Self::check) reports that end.
    fn announce(&self, port: usize) {
        let _ = self.asker.ask(Question::Announce { port });
    }

    /// Asks the RNIC; returns `None` when the RNIC does not answer in time.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(Reply<T>) -> Question,
    ) -> Option<T> {
        tokio::time::timeout(ANSWER, self.put(question)).await.ok()?.ok()
    }

    /// Asks all workers at once for their counters; the place of a worker that does not answer
    /// within `time` is empty.
    async fn snapshots(&self, time: Duration) -> Vec<Option<Box<WorkerSnapshot>>> {
        let snapshot = |n| self.put(|reply| Question::Snapshot { worker: WorkerId(n), reply });
        let asked: Vec<_> = (0..self.node.workers()).map(snapshot).collect();
        let until = tokio::time::Instant::now() + time;
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            let answer = tokio::time::timeout_at(until, answer).await;
            answers.push(answer.ok().and_then(Result::ok));
        }
        answers
    }

    /// Sends an order to the services, and awaits the answer.
    async fn serve(&self, order: impl FnOnce(&ServiceThread, Done)) -> Result<(), String> {
        let (to, from) = oneshot::channel();
        order(&self.services.borrow(), Box::new(move |done| drop(to.send(done))));
        let answer: Result<_, _> = tokio::time::timeout(SERVICE, from).await;
        let answer = answer.map_err(|_| "the services do not answer".to_owned())?;
        answer.unwrap_or_else(|_| Err("the services have ended".into()))
    }

    /// Returns the gateway, if InfiniBand is enabled.
    pub(crate) fn gateway(&self) -> Option<&GatewayThread> {
        self.gateway.as_ref()
    }

    /// Returns the gateway's state; empty without a gateway.
    pub(crate) fn forwarded(&self) -> Shown {
        self.gateway.as_ref().map(GatewayThread::shown).unwrap_or_default()
    }

    /// Sends an order to the gateway, and awaits the answer.
    async fn ask_gateway(&self, order: impl FnOnce(&GatewayThread, Done)) -> Result<(), String> {
        let gateway = self.gateway.as_ref().ok_or(crate::config::forward::NOT_SPOKEN)?;
        let (to, from) = oneshot::channel();
        order(gateway, Box::new(move |done| drop(to.send(done))));
        let answer: Result<_, _> = tokio::time::timeout(SERVICE, from).await;
        let answer = answer.map_err(|_| "the gateway does not answer".to_owned())?;
        answer.unwrap_or_else(|_| Err("the gateway has ended".into()))
    }

    /// Forwards connections from now on.
    pub(crate) fn start_forwarding(
        &self,
        forward: Forward,
    ) -> impl Future<Output = Result<(), String>> {
        let rule = forward.rule(&self.config.borrow());
        self.ask_gateway(move |gateway, done| gateway.add(forward, rule, done))
    }

    /// Stops the service or the forwarding at `addr`; its connections go on.
    pub(crate) async fn stop_listening(&self, addr: SocketAddr) -> Result<(), String> {
        if self.config.borrow().forward_at(addr).is_some() {
            return self.ask_gateway(|gateway, done| gateway.stop(addr, done)).await;
        }
        self.serve(|services, done| services.stop(addr, done)).await
    }

    /// Starts a service; `opened` has the resources of an NFS export, if they have been taken
    /// already.
    ///
    /// # Errors
    /// The reason, in one line.
    pub(crate) async fn start_service(
        &self,
        spec: ServiceSpec,
        opened: Option<Opened>,
    ) -> Result<(), String> {
        let opened = match spec.kind.nfs() {
            Some(nfs) => Some(exports::ready(nfs, opened).await?),
            None => None,
        };
        let terms = self.terms(opened);
        self.serve(move |services, done| services.add(spec, terms, done)).await
    }

    /// Returns the terms for services that start now.
    fn terms(&self, opened: Option<Opened>) -> Terms {
        let config = self.config.borrow();
        let registered = u64::from(config.memory.registered) << 20;
        let peer_share = config.limits.peer_share;
        let limits = service::Limits {
            peer_share,
            first_message: config.limits.first_message,
            // Benchmarks of one address get half of the memory.
            peer_memory: registered / 2,
            ..service::Limits::default()
        };
        let memory = usize::try_from(registered / 4).unwrap_or(usize::MAX);
        let quota = Quota { memory: memory.clamp(EXPORT_MIN, EXPORT_MAX), peer_share };
        Terms { params: ListenParams::default().mpa(config.mpa), limits, quota, opened }
    }

    /// Refuses all changes from here on.
    pub(crate) fn set_ending(&self) {
        self.ending.set(true);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// Ends all connections.
    pub(crate) async fn end_all(&self, how: Kill) {
        let mut after = None;
        // The names are enough, so no worker is asked: a silent one would have to answer.
        let without: Vec<_> = (0..self.node.workers()).map(WorkerId).collect();
        let page = |after| {
            let without = without.clone();
            self.ask(move |reply| Question::Conns { after, without, reply })
        };
        while let Some(page) = page(after).await {
            for c in &page.conns {
                let id = c.view.id;
                self.ask(|reply| Question::Kill { id, how, reply }).await;
            }
            after = page.next;
            if after.is_none() {
                return;
            }
        }
    }

    /// Ends the RNIC, and returns all its counters.
    pub(crate) fn stop(self) -> Snapshot {
        drop(self.services);
        drop(self.gateway);
        self.node.stop()
    }

    /// Ends all services. Each connection ends in order, and the memory that it reads and writes
    /// stays registered until then. The gateway ends the forwarded connections, and goes on until
    /// none is left.
    pub(crate) fn end_services(&self) {
        if let Some(gateway) = &self.gateway {
            gateway.end();
        }
        self.services.borrow().end();
    }

    /// Returns the name of a part that does not answer in time: the control plane, or a worker
    /// whose thread has not ended.
    pub(crate) async fn silent(&self) -> Option<String> {
        let running: Vec<_> = self.node.places().map(|place| place.running).collect();
        let asked: Vec<_> = (0..running.len())
            .map(|n| self.put(|reply| Question::Snapshot { worker: WorkerId(n), reply }))
            .collect();
        if self.connections().await.is_none() {
            return Some("the control plane".into());
        }
        let until = tokio::time::Instant::now() + ANSWER;
        for (n, answer) in asked.into_iter().enumerate() {
            let answered = matches!(tokio::time::timeout_at(until, answer).await, Ok(Ok(_)));
            if running[n] && !answered {
                return Some(format!("worker {n}"));
            }
        }
        None
    }

    /// Returns the number of connections; `None` when the control plane does not answer.
    pub(crate) async fn connections(&self) -> Option<usize> {
        Some(self.ask(|reply| Question::Control { reply }).await?.gauges.conns)
    }
}

fn silent(what: &str) -> Fault {
    Fault::new(FaultKind::Busy, format!("{what} does not answer"))
}
