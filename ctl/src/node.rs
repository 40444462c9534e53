//! An RNIC on threads of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use heddle_cm::WorkerId;
use heddle_dataplane::eal::allowed_cpus;
use heddle_dataplane::{
    Eal, IdlePolicy, LcoreWorker, Place as CpuPlace, Port, RestShown, Stop, Topology, Worker,
    WorkerSnapshot,
};
use heddle_verbs::wakeup::{WorkerSleeper, WorkerWakers};
use heddle_verbs::{Device, Hub};

use crate::ask::Asker;
use crate::config::{EndpointConfig, OpenError};
use crate::control_plane::{ControlThread, Requests, ThreadRequest};
use crate::counters::CtlCounters;
use crate::endpoint::{Endpoint, port_status};
use crate::lcore::{Crew, Hand, Lcores};
use crate::snapshot::{LcoreStatus, Snapshot, WorkerStatus};

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;

/// An RNIC whose workers run on pinned lcores and whose control plane has a thread that sleeps
/// when there is nothing to do. Dropping it stops all; applications are told that their
/// connections and listeners have ended.
///
/// Should a worker panic, applications are told the same of its connections at once, and those of the
/// other workers go on. Without a worker, or without the control plane, nothing on this RNIC works any
/// more: [`is_running`](Node::is_running) says so. Peers are reset; until the node is dropped its
/// addresses stay reachable, and what peers send to connections that were is answered with RST.
#[derive(Debug)]
pub struct Node {
    // In this order: threads that sleep are told, and the control plane tells of workers that have ended.
    ending: Ending,
    lcores: Vec<LcoreWorker<()>>,
    /// How the threads rest, by their processors.
    rests: Vec<(usize, Arc<RestShown>)>,
    control: ControlThread,
    requests: Requests,
    workers: Vec<Place>,
    hub: Arc<Hub>,
    device: Device,
    ports: Vec<Port>,
}

/// Tells the lcores to end, also those that sleep, when it is dropped.
#[derive(Debug)]
struct Ending {
    lcores: Vec<Stop>,
    wakers: Option<Arc<WorkerWakers>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.lcores.iter().for_each(Stop::set);
        if let Some(wakers) = &self.wakers {
            wakers.wake_all();
        }
    }
}

/// Where a worker is, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPlace {
    /// Its port, by number.
    pub port: usize,
    /// The processor it runs on.
    pub lcore: usize,
    /// The processor socket that is at, where the system says.
    pub socket: Option<u32>,
    /// Where its port is, if that is elsewhere: every frame crosses.
    pub wanted: Option<u32>,
    /// Whether it runs.
    pub running: bool,
}

/// Where a worker is.
#[derive(Debug)]
struct Place {
    port: usize,
    at: CpuPlace,
    /// It has, by a defect.
    ended: Stop,
}

/// What wakes a thread that may sleep.
fn sleeper(
    idle: IdlePolicy,
    wakers: Option<&Arc<WorkerWakers>>,
    crew: &[Hand],
) -> Result<Option<WorkerSleeper>, OpenError> {
    let workers: Vec<usize> = crew.iter().map(|h| h.number).collect();
    match (idle, wakers) {
        (IdlePolicy::Spin, _) | (_, None) => Ok(None),
        (_, Some(wakers)) => wakers.sleeper(&workers).map(Some).map_err(OpenError::Wakers),
    }
}

/// Asks a worker for all it has counted.
fn ask(requests: &Requests, worker: usize) -> Option<Receiver<Box<WorkerSnapshot>>> {
    let (reply, answer) = crossbeam_channel::bounded(1);
    requests.send(ThreadRequest::Snapshot { worker: WorkerId(worker), reply }).ok()?;
    Some(answer)
}

/// Asks the control plane.
fn ask_control(requests: &Requests) -> Option<Receiver<Box<CtlCounters>>> {
    let (reply, answer) = crossbeam_channel::bounded(1);
    requests.send(ThreadRequest::Counters { reply }).ok()?;
    Some(answer)
}

/// How long the workers may take to answer a question.
const ANSWER: Duration = Duration::from_secs(5);

impl Node {
    /// Moves `endpoint` to the processors `lcores`, one thread for each, which spin there from now
    /// on. Worker `i` is polled by thread `i` modulo their number, so that the workers of each port
    /// are spread as evenly as they can be.
    ///
    /// # Errors
    /// [`OpenError::Lcores`] when there are more processors than workers, or none;
    /// [`OpenError::Lcore`] when this process may not use one of them, [`OpenError::Thread`].
    pub fn start(eal: &Eal, endpoint: Endpoint, lcores: &[usize]) -> Result<Node, OpenError> {
        Node::start_with(eal, endpoint, &Lcores::new(lcores))
    }

    /// As [`start`](Node::start), with all that can be said of the threads.
    ///
    /// # Errors
    /// As [`start`](Node::start).
    pub fn start_with(eal: &Eal, endpoint: Endpoint, lcores: &Lcores) -> Result<Node, OpenError> {
        Node::run(eal, endpoint, lcores, |_, worker| worker.poll())
    }

    /// The same with `turn` for what a worker, of which it is given the number, does over and over.
    fn run(
        eal: &Eal,
        endpoint: Endpoint,
        Lcores { cores: lcores, idle, among_programs }: &Lcores,
        turn: impl FnMut(usize, &mut Worker) -> bool + Clone + Send + 'static,
    ) -> Result<Node, OpenError> {
        let Endpoint { workers, control, requests, hub, device, ports, clock, .. } = endpoint;
        heddle_verbs::closer::prepare();
        if lcores.is_empty() || lcores.len() > workers.len() {
            let (lcores, workers) = (lcores.len(), workers.len());
            return Err(OpenError::Lcores { lcores, workers });
        }
        hub.set_threaded();
        let topology = Topology::read();
        let mut crews: Vec<_> = lcores.iter().map(|_| Vec::new()).collect();
        let mut places = Vec::with_capacity(workers.len());
        for (number, w) in workers.into_iter().enumerate() {
            let (thread, ended) = (number % lcores.len(), Stop::new());
            let socket = ports.get(w.port).and_then(Port::socket);
            let at = topology.place_on(lcores[thread], socket);
            places.push(Place { port: w.port, at, ended: ended.clone() });
            crews[thread].push(Hand { number, worker: w.worker, ended });
        }
        // All of them before anybody runs: from then on it is known who may sleep.
        let wakers = hub.wakers().cloned();
        let sleepers = crews.iter().map(|crew| sleeper(*idle, wakers.as_ref(), crew));
        let sleepers: Vec<_> = sleepers.collect::<Result<_, _>>()?;
        let orphaned = Stop::new();
        let left = (orphaned.clone(), wakers.clone());
        let control = ControlThread::spawn(control, clock.clone(), left);
        let control = control.map_err(OpenError::Thread)?;
        let mut ending = Ending { lcores: Vec::new(), wakers };
        let mut threads = Vec::with_capacity(lcores.len());
        let mut rests = Vec::with_capacity(lcores.len());
        for ((crew, sleeper), &core) in crews.into_iter().zip(sleepers).zip(lcores) {
            let rest = (*idle, clock.clone());
            let crew = Crew::new(crew, turn.clone(), orphaned.clone(), rest, sleeper);
            rests.push((core, crew.rest()));
            let name = format!("heddle-w{core}");
            let run = move |stop: &Stop| crew.run(stop);
            let thread = if *among_programs {
                LcoreWorker::spawn_among_programs(eal, core, &name, run)?
            } else {
                LcoreWorker::spawn(eal, core, &name, run)?
            };
            ending.lcores.push(thread.stop_handle());
            threads.push(thread);
        }
        Ok(Node {
            ending,
            lcores: threads,
            rests,
            control,
            requests,
            workers: places,
            hub,
            device,
            ports,
        })
    }

    /// Two RNICs whose ports are joined by rings, as [`Endpoint::ring_pair`] makes them, each with
    /// all its workers on one of the first two processors this process may use. With one alone both
    /// share it, and take turns as the scheduler has it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn ring_pair(
        eal: &Eal,
        name: &str,
        a: &EndpointConfig,
        b: &EndpointConfig,
    ) -> Result<(Node, Node), OpenError> {
        let (a, b) = Endpoint::ring_pair(eal, name, a, b)?;
        let cpus = allowed_cpus();
        let first = cpus.first().copied().unwrap_or(0);
        let second = cpus.get(1).copied().unwrap_or(first);
        Ok((Node::start(eal, a, &[first])?, Node::start(eal, b, &[second])?))
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

    /// The way to ask about it while it runs, from any thread.
    pub fn asker(&self) -> Asker {
        Asker::new(self.requests.clone())
    }

    /// All ports.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Where its workers are, and whether they run.
    pub fn places(&self) -> impl Iterator<Item = WorkerPlace> {
        let place = |p: &Place| WorkerPlace {
            port: p.port,
            lcore: p.at.cpu,
            socket: p.at.socket,
            wanted: p.at.wanted,
            running: !p.ended.is_set() && !self.lcores.iter().any(LcoreWorker::is_finished),
        };
        self.workers.iter().map(place)
    }

    /// The threads that poll workers, and how they rested.
    pub fn lcores(&self) -> impl Iterator<Item = LcoreStatus> {
        self.rests.iter().map(|(lcore, rest)| LcoreStatus { lcore: *lcore, rest: rest.counters() })
    }

    /// How many workers it has, those included that have ended.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Everything counted so far. It waits for the workers, up to a second; those that do not answer,
    /// or have ended, are missing.
    pub fn snapshot(&self) -> Snapshot {
        let asked = ask_control(&self.requests);
        let workers = self.ask_workers();
        let ctl = asked.and_then(|a| a.recv_timeout(ANSWER).ok()).unwrap_or_default();
        Snapshot::of(workers, port_status(&self.ports), self.lcores().collect(), *ctl)
    }

    /// All at once, so that they answer side by side.
    fn ask_workers(&self) -> Vec<WorkerStatus> {
        let asked: Vec<_> = (0..self.workers.len()).map(|w| ask(&self.requests, w)).collect();
        let until = Instant::now() + ANSWER;
        let status = |(place, answer): (&Place, Option<Receiver<Box<WorkerSnapshot>>>)| {
            let counters = answer.and_then(|a| a.recv_deadline(until).ok());
            WorkerStatus { port: place.port, lcore: Some(place.at.cpu), counters }
        };
        self.workers.iter().zip(asked).map(status).collect()
    }

    /// Ends all threads; everything they have counted.
    pub fn stop(self) -> Snapshot {
        let workers = self.ask_workers();
        let rests: Vec<_> = self.lcores().collect();
        let Node { ending, lcores, control, ports, .. } = self;
        drop(ending);
        drop(lcores);
        Snapshot::of(workers, port_status(&ports), rests, control.stop())
    }

    /// Whether there is a worker and a control plane that run; they end early only by a defect.
    pub fn is_running(&self) -> bool {
        self.running_workers() > 0
    }

    /// Workers that run. When one has ended the others go on.
    pub fn running_workers(&self) -> usize {
        if self.lcores.iter().any(LcoreWorker::is_finished) {
            // A thread that ends before it is told to takes its workers with it.
            return 0;
        }
        self.workers.iter().filter(|p| !p.ended.is_set()).count()
    }
}
