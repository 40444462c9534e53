//! The services, on a thread of their own.
//!
//! They are stepped while they have work and sleep otherwise; whoever asks for something is answered by
//! a call on this thread, and waits for nothing.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use heddle_perf::service::{Limits, ServiceSpec, Services};
use heddle_verbs::{Device, ListenParams, Sleeper, Waker};

/// How long the services sleep at most: what they do by the clock is not later than that.
const NAP: Duration = Duration::from_millis(50);

/// Who hears whether it was done, or why not.
pub(crate) type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

enum Order {
    Start { spec: ServiceSpec, params: Box<ListenParams>, limits: Limits, done: Done },
    Stop { addr: SocketAddr, done: Done },
    End,
}

/// Where a service is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The RNIC has not answered yet.
    Starting,
    /// It takes connections.
    Listening,
    /// It takes no more; those it has go on.
    Ending,
}

impl Stage {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Listening => "listening",
            Stage::Ending => "ending",
        }
    }
}

/// The thread; it ends, and so do all services, when dropped.
pub(crate) struct ServiceThread {
    orders: Sender<Order>,
    waker: Waker,
    list: Arc<Mutex<Vec<(ServiceSpec, Stage)>>>,
    thread: Option<JoinHandle<()>>,
}

struct Running {
    spec: ServiceSpec,
    services: Services,
    stage: Stage,
    /// Who waits for it to listen.
    done: Option<Done>,
}

impl ServiceThread {
    pub(crate) fn start(device: Device) -> std::io::Result<ServiceThread> {
        let (orders, taken) = crossbeam_channel::unbounded();
        let sleeper = Sleeper::new();
        let waker = sleeper.waker();
        let list = Arc::new(Mutex::default());
        let shown = Arc::clone(&list);
        let run = move || run(&device, &taken, &sleeper, &shown);
        let thread = std::thread::Builder::new().name("heddle-services".into()).spawn(run)?;
        Ok(ServiceThread { orders, waker, list, thread: Some(thread) })
    }

    /// Starts a service. `done` hears when it listens.
    pub(crate) fn add(&self, spec: ServiceSpec, params: ListenParams, limits: Limits, done: Done) {
        self.order(Order::Start { spec, params: Box::new(params), limits, done });
    }

    /// Stops the one at `addr` from taking connections. It is gone when those it has are.
    pub(crate) fn stop(&self, addr: SocketAddr, done: Done) {
        self.order(Order::Stop { addr, done });
    }

    /// Where they are.
    pub(crate) fn list(&self) -> Vec<(ServiceSpec, Stage)> {
        lock(&self.list).clone()
    }

    /// Whether the thread runs; it ends early only by a defect.
    pub(crate) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Ends all services: their connections are closed in order.
    pub(crate) fn end(&mut self) {
        self.order(Order::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// One that a thread which is gone does not take drops whoever waits for it.
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        self.waker.wake();
    }
}

impl Drop for ServiceThread {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(
    device: &Device,
    orders: &Receiver<Order>,
    sleeper: &Sleeper,
    list: &Mutex<Vec<(ServiceSpec, Stage)>>,
) {
    let waker = sleeper.waker();
    let mut all: Vec<Running> = Vec::new();
    loop {
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Start { spec, params, limits, done } => {
                    start(device, &mut all, (spec, &params, limits), &waker, done);
                }
                Order::Stop { addr, done } => done(stop(&mut all, addr)),
                Order::End => return,
            }
        }
        let busy = all.iter_mut().fold(false, |busy, r| busy | r.services.step());
        let before = all.len();
        all.retain_mut(|r| r.settle());
        let shown = all.iter().map(|r| (r.spec, r.stage));
        let mut list = lock(list);
        if all.len() != before || !shown.clone().eq(list.iter().copied()) {
            *list = shown.collect();
        }
        drop(list);
        if !busy {
            // Each is asked, so that each is armed.
            let has_work = || all.iter().fold(false, |work, r| work | r.services.has_work());
            sleeper.sleep(NAP, || has_work() || !orders.is_empty());
        }
    }
}

fn start(
    device: &Device,
    all: &mut Vec<Running>,
    (spec, params, limits): (ServiceSpec, &ListenParams, Limits),
    waker: &Waker,
    done: Done,
) {
    if all.iter().any(|r| r.spec.addr == spec.addr && r.stage != Stage::Ending) {
        return done(Err(format!("a service listens on {} already", spec.addr)));
    }
    match Services::start_with(device, &[spec], params, &limits, Some(waker)) {
        Ok(services) => {
            all.push(Running { spec, services, stage: Stage::Starting, done: Some(done) });
        }
        Err(e) => done(Err(e.to_string())),
    }
}

fn stop(all: &mut [Running], addr: SocketAddr) -> Result<(), String> {
    let found = all.iter_mut().find(|r| r.spec.addr == addr && r.stage != Stage::Ending);
    let r = found.ok_or_else(|| format!("no service listens on {addr}"))?;
    r.services.stop_listening();
    r.stage = Stage::Ending;
    if let Some(done) = r.done.take() {
        done(Err("it was stopped before it listened".into()));
    }
    Ok(())
}

impl Running {
    /// Tells whoever waits; false when it is over.
    fn settle(&mut self) -> bool {
        match self.stage {
            Stage::Ending => self.services.conns() > 0,
            Stage::Listening => true,
            Stage::Starting => {
                let outcome = self.services.is_listening();
                if outcome == Ok(false) {
                    return true;
                }
                self.stage = Stage::Listening;
                let failed = outcome.is_err();
                if let Some(done) = self.done.take() {
                    done(outcome.map(|_| ()).map_err(|e| e.to_string()));
                }
                !failed
            }
        }
    }
}
