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
use heddle_verbs::{Device, ListenFailure, ListenParams, Sleeper, Waker};

/// How long the services sleep at most: what they do by the clock is not later than that.
const NAP: Duration = Duration::from_millis(50);

/// Who hears whether it was done, or why not.
pub(crate) type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// What those who wait are to hear.
type Answers = Vec<(Done, Result<(), String>)>;

enum Order {
    Start { spec: ServiceSpec, params: Box<ListenParams>, limits: Limits, done: Done },
    Stop { addr: SocketAddr, done: Done },
    End,
    Quit,
}

/// Where a service is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The RNIC has not answered yet.
    Starting,
    /// It takes connections.
    Listening,
    /// The RNIC has taken its listener from it; connections it has go on. It stays until it is stopped.
    Failed(ListenFailure),
    /// It takes no more; those it has go on.
    Ending,
}

impl Stage {
    /// What comes after it when its listener is like this.
    fn after(self, listening: Result<bool, ListenFailure>) -> Stage {
        match (self, listening) {
            (Stage::Starting, Ok(true)) => Stage::Listening,
            (Stage::Starting | Stage::Listening, Err(why)) => Stage::Failed(why),
            (stage, _) => stage,
        }
    }

    /// For people, with the reason where there is one.
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

/// The thread; it ends, and so do all services, when dropped, whatever they have.
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

    /// Ends all services: they take no more connections, and close those they have in order. They go on
    /// until these have ended.
    pub(crate) fn end(&self) {
        self.order(Order::End);
    }

    /// One that a thread which is gone does not take drops whoever waits for it.
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

fn run(
    device: &Device,
    orders: &Receiver<Order>,
    sleeper: &Sleeper,
    list: &Mutex<Vec<(ServiceSpec, Stage)>>,
) {
    let waker = sleeper.waker();
    let mut all: Vec<Running> = Vec::new();
    let mut answers: Answers = Vec::new();
    loop {
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Start { spec, params, limits, done } => {
                    start(device, &mut all, (spec, &params, limits), &waker, done);
                }
                Order::Stop { addr, done } => {
                    let stopped = stop(&mut all, addr, &mut answers);
                    answers.push((done, stopped));
                }
                Order::End => {
                    for r in &mut all {
                        r.services.end();
                        r.stage = Stage::Ending;
                    }
                }
                Order::Quit => return,
            }
        }
        let busy = all.iter_mut().fold(false, |busy, r| busy | r.services.step());
        let before = all.len();
        all.retain_mut(|r| r.settle(&mut answers));
        let shown = all.iter().map(|r| (r.spec, r.stage));
        let mut list = lock(list);
        if all.len() != before || !shown.clone().eq(list.iter().copied()) {
            *list = shown.collect();
        }
        drop(list);
        // Only now: who hears that it was done and then asks for the list finds it there.
        for (done, answer) in answers.drain(..) {
            done(answer);
        }
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

fn stop(all: &mut [Running], addr: SocketAddr, answers: &mut Answers) -> Result<(), String> {
    let found = all.iter_mut().find(|r| r.spec.addr == addr && r.stage != Stage::Ending);
    let r = found.ok_or_else(|| format!("no service listens on {addr}"))?;
    r.services.stop_listening();
    r.stage = Stage::Ending;
    if let Some(done) = r.done.take() {
        answers.push((done, Err("it was stopped before it listened".into())));
    }
    Ok(())
}

impl Running {
    /// Has an answer for whoever waits; false when it is over.
    fn settle(&mut self, answers: &mut Answers) -> bool {
        let before = self.stage;
        self.stage = before.after(self.services.is_listening());
        match (self.stage, self.done.take()) {
            (Stage::Ending, _) => return self.services.conns() > 0,
            (Stage::Starting, done) => self.done = done,
            (Stage::Listening, Some(done)) => answers.push((done, Ok(()))),
            // It never listened, so there is none.
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
mod tests {
    use heddle_base::Seed;
    use heddle_ctl::{Endpoint, EndpointConfig};
    use heddle_dataplane::{Eal, EalConfig, Hugepages};

    use super::*;

    #[test]
    fn test_who_hears_that_it_was_done_finds_it_in_the_list() {
        let memory = EalConfig { hugepages: Hugepages::Never, ..EalConfig::default() };
        let eal = Eal::init(&memory).expect("DPDK starts");
        let config = EndpointConfig::with_seed(
            vec!["10.0.0.1/24".parse().expect("a network")],
            Seed::from_u64(1),
        );
        let (mut rnic, _peer) =
            Endpoint::ring_pair(&eal, "listed", &config, &config).expect("two RNICs");
        let services = ServiceThread::start(rnic.device().clone()).expect("a thread");
        let spec: ServiceSpec = "10.0.0.1:9=sink".parse().expect("a service");
        let mut told = |order: &dyn Fn(Done)| {
            let (hears, heard) = crossbeam_channel::bounded(1);
            let list = Arc::clone(&services.list);
            // On the thread that answers, which therefore does nothing else meanwhile.
            order(Box::new(move |answer| {
                let shown = lock(&list).iter().map(|(_, stage)| *stage).collect::<Vec<_>>();
                let _ = hears.send((answer, shown));
            }));
            loop {
                rnic.poll();
                match heard.try_recv() {
                    Ok(heard) => break heard,
                    Err(e) => assert!(!e.is_disconnected(), "nobody was told"),
                }
            }
        };
        let params = ListenParams::default();
        let start = |done| services.add(spec, params.clone(), Limits::default(), done);
        assert_eq!(told(&start), (Ok(()), vec![Stage::Listening]));
        // It has no connections that it would have to wait for.
        assert_eq!(told(&|done| services.stop(spec.addr, done)), (Ok(()), vec![]));
    }

    #[test]
    fn test_a_listener_that_fails_while_it_runs_is_seen_to_have_failed() {
        let gone = ListenFailure::AddressRemoved;
        let failed = Stage::Failed(gone);
        assert_eq!(Stage::Starting.after(Ok(false)), Stage::Starting);
        assert_eq!(Stage::Starting.after(Ok(true)), Stage::Listening);
        assert_eq!(Stage::Starting.after(Err(gone)), failed);
        assert_eq!(Stage::Listening.after(Ok(true)), Stage::Listening);
        assert_eq!(Stage::Listening.after(Err(gone)), failed);
        // For good, and what ends is nobody's failure.
        assert_eq!(failed.after(Err(ListenFailure::Withdrawn)), failed);
        assert_eq!(Stage::Ending.after(Err(gone)), Stage::Ending);
        assert_eq!(failed.describe(), "failed: the address was removed");
        assert_eq!(Stage::Ending.describe(), "ending");
    }
}
