//! The services, on a thread of their own; each NFS export has its own thread.
//!
//! The thread steps the services while they have work, and sleeps otherwise. The thread answers a
//! request by a call, so the asking thread does not wait.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use heddle_services::{Limits, Services};
use heddle_verbs::{Device, ListenFailure, ListenParams, Sleeper, Waker};

use crate::nfs::{Export, Opened, Quota};
use crate::service::{ServiceKind, ServiceSpec};
pub(crate) use exports::Exports;
use registrar::Registrar;

mod exports;
mod registrar;

/// Longest sleep of the services, and thus the longest delay of their timed work.
const NAP: Duration = Duration::from_millis(50);

/// The receiver of an order's result, or of the reason for its failure.
pub(crate) type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Results to pass to their receivers.
type Answers = Vec<(Done, Result<(), String>)>;

/// The terms for starting a service.
pub(crate) struct Terms {
    pub(crate) params: ListenParams,
    /// Limits of the services of [`heddle_services`].
    pub(crate) limits: Limits,
    /// Quota of an NFS export.
    pub(crate) quota: Quota,
    /// Resources of an NFS export, if they have been taken already.
    pub(crate) opened: Option<Opened>,
}

enum Order {
    Start { spec: ServiceSpec, terms: Box<Terms>, done: Done },
    Set { spec: ServiceSpec, opened: Option<Opened>, done: Done },
    Stop { addr: SocketAddr, done: Done },
    End,
    Quit,
}

/// The stage of a service's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The RNIC has not answered yet.
    Starting,
    /// The service takes connections.
    Listening,
    /// The RNIC has ended the service's listener; its connections go on. The service stays until it
    /// is stopped.
    Failed(ListenFailure),
    /// The service takes no more connections; its connections go on.
    Ending,
}

impl Stage {
    /// Returns the stage that follows when the listener is in this state.
    fn after(self, listening: Result<bool, ListenFailure>) -> Stage {
        match (self, listening) {
            (Stage::Starting, Ok(true)) => Stage::Listening,
            (Stage::Starting | Stage::Listening, Err(why)) => Stage::Failed(why),
            (stage, _) => stage,
        }
    }

    /// Returns a text for people, with the reason if there is one.
    pub(crate) fn describe(self) -> String {
        match self {
            Stage::Failed(why) => format!("{}: {why}", self.name()),
            _ => self.name().into(),
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Listening => "listening",
            Stage::Failed(_) => "failed",
            Stage::Ending => "ending",
        }
    }
}

/// The handle of the thread. When the handle is dropped, the thread ends, and so do all services,
/// whatever connections they have.
pub(crate) struct ServiceThread {
    orders: Sender<Order>,
    waker: Waker,
    shown: Arc<Mutex<Shown>>,
    thread: Option<JoinHandle<()>>,
}

/// A copy of the services' state.
#[derive(Debug, Default)]
struct Shown {
    list: Vec<(ServiceSpec, Stage)>,
    exports: Exports,
}

/// A service that runs.
enum Service {
    Program(Services),
    Nfs(Export),
}

impl Service {
    fn start(
        device: &Device,
        spec: &ServiceSpec,
        terms: Terms,
        waker: &Waker,
    ) -> Result<Service, String> {
        let Terms { params, limits, quota, opened } = terms;
        let &ServiceSpec { addr, ref kind, infiniband, tcp } = spec;
        let params = ListenParams { tcp, ..params };
        match *kind {
            ServiceKind::Program(kind) => {
                let spec = heddle_services::ServiceSpec { addr, kind, infiniband };
                let started = Services::start_with(device, &[spec], &params, &limits, Some(waker));
                started.map(Service::Program).map_err(|e| e.to_string())
            }
            ServiceKind::Nfs(_) => {
                let opened = opened.ok_or("its directory is not open")?;
                let export = Export::start(device, addr, opened, params, quota, waker.clone());
                export.map(Service::Nfs)
            }
        }
    }

    fn step(&mut self) -> bool {
        match self {
            Service::Program(services) => services.step(),
            // An export has a thread that steps it.
            Service::Nfs(_) => false,
        }
    }

    fn has_work(&self) -> bool {
        match self {
            Service::Program(services) => services.has_work(),
            Service::Nfs(_) => false,
        }
    }

    fn stop_listening(&mut self) {
        match self {
            Service::Program(services) => services.stop_listening(),
            Service::Nfs(export) => export.stop_listening(),
        }
    }

    fn end(&mut self) {
        match self {
            Service::Program(services) => services.end(),
            Service::Nfs(export) => export.end(),
        }
    }

    fn conns(&self) -> usize {
        match self {
            Service::Program(services) => services.conns(),
            Service::Nfs(export) => export.conns(),
        }
    }

    /// Returns true if the service takes no more connections, after the order to stop.
    fn has_stopped(&self) -> bool {
        match self {
            Service::Program(_) => true,
            Service::Nfs(export) => export.has_stopped(),
        }
    }

    fn is_listening(&self) -> Result<bool, ListenFailure> {
        match self {
            Service::Program(services) => services.is_listening(),
            Service::Nfs(export) => export.is_listening(),
        }
    }
}

struct Running {
    spec: ServiceSpec,
    service: Service,
    stage: Stage,
    /// The caller that waits until the service listens, or until a stopping service takes no more
    /// connections.
    done: Option<Done>,
}

impl ServiceThread {
    pub(crate) fn start(device: Device) -> std::io::Result<ServiceThread> {
        let (orders, taken) = crossbeam_channel::unbounded();
        let sleeper = Sleeper::new();
        let waker = sleeper.waker();
        let shown = Arc::new(Mutex::default());
        let show = Arc::clone(&shown);
        let run = move || run(&device, &taken, &sleeper, &show);
        let thread = std::thread::Builder::new().name("heddle-services".into()).spawn(run)?;
        Ok(ServiceThread { orders, waker, shown, thread: Some(thread) })
    }

    /// Starts a service. `done` is called when the service listens.
    pub(crate) fn add(&self, spec: ServiceSpec, terms: Terms, done: Done) {
        self.order(Order::Start { spec, terms: Box::new(terms), done });
    }

    /// Turns a listener of NFS into another, also for connected clients ([`ServiceSpec::becomes`]).
    /// `opened` has the new directories.
    pub(crate) fn set(&self, spec: ServiceSpec, opened: Option<Opened>, done: Done) {
        self.order(Order::Set { spec, opened, done });
    }

    /// Stops the service at `addr` from taking connections. The service ends with its last
    /// connection.
    pub(crate) fn stop(&self, addr: SocketAddr, done: Done) {
        self.order(Order::Stop { addr, done });
    }

    /// Returns the services with their stages.
    pub(crate) fn list(&self) -> Vec<(ServiceSpec, Stage)> {
        lock(&self.shown).list.clone()
    }

    /// Returns all exports, including those that are ending.
    pub(crate) fn exports(&self) -> Exports {
        lock(&self.shown).exports.clone()
    }

    /// Returns true if the thread runs; it ends early only by a defect.
    pub(crate) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Ends all services: they take no more connections, and close their connections in order. The
    /// services go on until all connections have ended.
    pub(crate) fn end(&self) {
        self.order(Order::End);
    }

    /// Sends an order. If the thread has ended, the order is dropped with its caller's answer.
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        self.waker.wake();
    }
}

impl Drop for ServiceThread {
    fn drop(&mut self) {
        self.order(Order::Quit);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(device: &Device, orders: &Receiver<Order>, sleeper: &Sleeper, shown: &Mutex<Shown>) {
    let waker = sleeper.waker();
    let mut all: Vec<Running> = Vec::new();
    let mut answers: Answers = Vec::new();
    let mut registrar = Registrar::default();
    loop {
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Start { spec, terms, done } => {
                    start(device, &mut all, spec, *terms, &waker, done);
                }
                Order::Set { spec, opened, done } => {
                    answers.push((done, set(&mut all, spec, opened)));
                }
                Order::Stop { addr, done } => stop(&mut all, addr, done, &mut answers),
                Order::End => all.iter_mut().for_each(Running::end),
                Order::Quit => return,
            }
        }
        let busy = all.iter_mut().fold(false, |busy, r| busy | r.service.step());
        let before = all.len();
        all.retain_mut(|r| r.settle(&mut answers));
        let listening = all.iter().filter(|r| r.stage == Stage::Listening);
        registrar.list(listening.filter_map(|r| Some((r.spec.addr, r.spec.kind.nfs()?))));
        show(&all, all.len() != before, &mut lock(shown));
        // The answers come after the new list, so that a caller that gets its answer and then asks
        // for the list finds the change there.
        for (done, answer) in answers.drain(..) {
            done(answer);
        }
        if !busy {
            // The loop asks every service and does not stop at the first, because asking also arms
            // the service.
            let has_work = || all.iter().fold(false, |work, r| work | r.service.has_work());
            sleeper.sleep(NAP, || has_work() || !orders.is_empty());
        }
    }
}

/// Publishes the services' state if it has changed.
fn show(all: &[Running], fewer: bool, shown: &mut Shown) {
    let now = all.iter().map(|r| (&r.spec, r.stage));
    if fewer || !now.clone().eq(shown.list.iter().map(|(spec, stage)| (spec, *stage))) {
        shown.list = now.map(|(spec, stage)| (spec.clone(), stage)).collect();
        let exports = all.iter().filter_map(|r| match &r.service {
            Service::Program(_) => None,
            Service::Nfs(export) => Some((r.spec.clone(), Arc::clone(export.watch()))),
        });
        shown.exports = Exports(exports.collect());
    }
}

fn start(
    device: &Device,
    all: &mut Vec<Running>,
    spec: ServiceSpec,
    terms: Terms,
    waker: &Waker,
    done: Done,
) {
    if all.iter().any(|r| r.spec.addr == spec.addr && r.stage != Stage::Ending) {
        return done(Err(format!("a service listens on {} already", spec.addr)));
    }
    match Service::start(device, &spec, terms, waker) {
        Ok(service) => {
            // This service takes the place of an export, whose clients come back to the new
            // service.
            let replaced = |r: &&mut Running| r.spec.addr == spec.addr && r.spec.kind != spec.kind;
            for r in all.iter_mut().filter(replaced) {
                if let Service::Nfs(export) = &r.service {
                    export.end();
                }
            }
            all.push(Running { spec, service, stage: Stage::Starting, done: Some(done) });
        }
        Err(e) => done(Err(e)),
    }
}

fn set(all: &mut [Running], spec: ServiceSpec, opened: Option<Opened>) -> Result<(), String> {
    let runs = |r: &&mut Running| r.spec.becomes(&spec) && r.stage != Stage::Ending;
    let r = all.iter_mut().find(runs);
    let r = r.ok_or_else(|| format!("no such export listens on {}", spec.addr))?;
    if let (Service::Nfs(export), Some(nfs)) = (&r.service, spec.kind.nfs()) {
        export.set(nfs, opened)?;
    }
    r.spec = spec;
    Ok(())
}

fn stop(all: &mut [Running], addr: SocketAddr, done: Done, answers: &mut Answers) {
    let found = all.iter_mut().find(|r| r.spec.addr == addr && r.stage != Stage::Ending);
    let Some(r) = found else {
        return answers.push((done, Err(format!("no service listens on {addr}"))));
    };
    r.service.stop_listening();
    r.stage = Stage::Ending;
    if let Some(done) = r.done.replace(done) {
        answers.push((done, Err("it was stopped before it listened".into())));
    }
}

impl Running {
    /// Has the service and its connections end.
    fn end(&mut self) {
        self.service.end();
        if self.stage != Stage::Ending {
            // A caller that waits for the service to listen waits in vain.
            (self.stage, self.done) = (Stage::Ending, None);
        }
    }

    /// Answers the caller that waits; returns false if the service is over.
    fn settle(&mut self, answers: &mut Answers) -> bool {
        let before = self.stage;
        self.stage = before.after(self.service.is_listening());
        match (self.stage, self.done.take()) {
            (Stage::Ending, done) if self.service.has_stopped() => {
                answers.extend(done.map(|done| (done, Ok(()))));
                return self.service.conns() > 0;
            }
            (Stage::Ending, done) => self.done = done,
            (Stage::Starting, done) => self.done = done,
            (Stage::Listening, Some(done)) => answers.push((done, Ok(()))),
            // The service never listened, so it goes.
            (Stage::Failed(why), Some(done)) => {
                answers.push((done, Err(why.to_string())));
                return false;
            }
            (Stage::Failed(why), None) if before != self.stage => {
                tracing::error!("{} on {}: {why}", self.spec.kind, self.spec.addr);
            }
            (Stage::Listening | Stage::Failed(_), None) => {}
        }
        true
    }
}

#[cfg(test)]
mod tests;
