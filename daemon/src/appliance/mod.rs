//! What runs, and what is done to it.
//!
//! All of this is called on the front thread, which nothing here makes wait: workers and services are
//! asked by messages, and their answers awaited for as long as [`ANSWER`] while others are served.

mod answers;
mod operations;

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Instant;

use heddle_ctl::{Asker, Kill, Node, Question, Reply, Snapshot};
use heddle_perf::service;
use heddle_socket::admin::{Application, LastReload};
use heddle_socket::{Fault, FaultKind};
use heddle_verbs::ListenParams;
use tokio::sync::{Mutex, oneshot};

use crate::config::Config;
use crate::log::Logging;
use crate::services::{Done, ServiceThread};

/// How long a worker may take to answer.
pub(crate) const ANSWER: Duration = Duration::from_secs(1);

/// How long a service may take to start or stop.
const SERVICE: Duration = Duration::from_secs(5);

/// The appliance.
pub(crate) struct Appliance {
    pub(crate) node: Node,
    pub(crate) asker: Asker,
    services: RefCell<ServiceThread>,
    /// What is in force.
    pub(crate) config: RefCell<Config>,
    /// Where it is read from, if it is.
    file: Option<PathBuf>,
    logging: Logging,
    started: Instant,
    last_reload: RefCell<Option<LastReload>>,
    /// One change at a time.
    changing: Mutex<()>,
    /// One question to the workers at a time, whoever asks and however often.
    asking: Mutex<()>,
    pub(crate) counters: SocketCounters,
    /// Those that have a device, by their numbers.
    pub(crate) applications: RefCell<BTreeMap<u64, Application>>,
    ending: Cell<bool>,
}

/// What the control socket counts.
#[derive(Debug, Default)]
pub(crate) struct SocketCounters {
    pub(crate) clients: Cell<usize>,
    pub(crate) requests: Cell<u64>,
    pub(crate) refused: Cell<u64>,
    pub(crate) turned_away: Cell<u64>,
    pub(crate) slow: Cell<u64>,
    pub(crate) broken: Cell<u64>,
}

/// One more.
pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get().wrapping_add(1));
}

impl Appliance {
    /// # Errors
    /// When the services' thread does not start.
    pub(crate) fn new(
        node: Node,
        config: Config,
        file: Option<PathBuf>,
        logging: Logging,
    ) -> std::io::Result<Appliance> {
        let services = ServiceThread::start(node.device().clone())?;
        Ok(Appliance {
            asker: node.asker(),
            node,
            services: RefCell::new(services),
            config: RefCell::new(config),
            file,
            logging,
            started: Instant::now(),
            last_reload: RefCell::default(),
            changing: Mutex::default(),
            asking: Mutex::default(),
            counters: SocketCounters::default(),
            applications: RefCell::default(),
            ending: Cell::new(false),
        })
    }

    /// Nanoseconds since the start.
    pub(crate) fn at_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether all that moves data or serves runs; what does not, otherwise. It is a defect.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !self.node.is_running() {
            return Err("all workers have ended by themselves, which is a defect".into());
        }
        if !self.services.borrow().is_running() {
            return Err("the services have ended by themselves, which is a defect".into());
        }
        Ok(())
    }

    /// Asks the RNIC; nothing when it does not answer in time.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(Reply<T>) -> Question,
    ) -> Option<T> {
        let (to, from) = oneshot::channel();
        let reply = Reply::new(move |answer| drop(to.send(answer)));
        self.asker.ask(question(reply)).ok()?;
        tokio::time::timeout(ANSWER, from).await.ok()?.ok()
    }

    /// Asks the services.
    async fn serve(&self, order: impl FnOnce(&ServiceThread, Done)) -> Result<(), String> {
        let (to, from) = oneshot::channel();
        order(&self.services.borrow(), Box::new(move |done| drop(to.send(done))));
        let answer: Result<_, _> = tokio::time::timeout(SERVICE, from).await;
        let answer = answer.map_err(|_| "the services do not answer".to_owned())?;
        answer.unwrap_or_else(|_| Err("the services have ended".into()))
    }

    pub(crate) fn start_service(
        &self,
        spec: service::ServiceSpec,
    ) -> impl Future<Output = Result<(), String>> {
        let config = self.config.borrow();
        let params = ListenParams::default().mpa(config.mpa);
        let limits = service::Limits {
            peer_share: config.limits.peer_share,
            first_message: config.limits.first_message,
            // Benchmarks of one address get half of the memory.
            peer_memory: u64::from(config.memory.registered) << 19,
        };
        drop(config);
        self.serve(move |services, done| services.add(spec, params, limits, done))
    }

    /// From here on nothing is changed.
    pub(crate) fn set_ending(&self) {
        self.ending.set(true);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// Ends all connections there are.
    pub(crate) async fn end_all(&self, how: Kill) {
        let mut after = None;
        while let Some(page) = self.ask(|reply| Question::Conns { after, reply }).await {
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

    /// Ends the RNIC; everything it has counted.
    pub(crate) fn stop(self) -> Snapshot {
        drop(self.services);
        self.node.stop()
    }

    /// Ends all services and waits until they have told their connections so.
    pub(crate) fn end_services(&self) {
        self.services.borrow_mut().end();
    }

    /// Connections there are; nothing when nobody answers.
    pub(crate) async fn connections(&self) -> Option<usize> {
        Some(self.ask(|reply| Question::Control { reply }).await?.gauges.conns)
    }
}

fn silent(what: &str) -> Fault {
    Fault::new(FaultKind::Busy, format!("{what} does not answer"))
}
