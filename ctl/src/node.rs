//! An RNIC on threads of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use heddle_dataplane::eal::allowed_cpus;
use heddle_dataplane::{
    Eal, IdlePolicy, LcoreWorker, Place as CpuPlace, Port, RestShown, Stop, Topology, Worker,
    WorkerSnapshot,
};
use heddle_hub::Hub;
use heddle_rings::wakeup::{WorkerSleeper, WorkerWakers};
use heddle_types::WorkerId;
use heddle_verbs::Device;

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

/// An RNIC whose workers run on pinned lcores and whose control plane has a thread that sleeps when
/// there is nothing to do. Dropping the node stops all threads; applications hear that their
/// connections and listeners have ended.
///
/// If a worker panics, applications hear the same of its connections at once, and the connections
/// of the other workers go on. Without a worker, or without the control plane, nothing on this RNIC
/// works any more, and [`is_running`](Node::is_running) returns false. Peers are reset; until the
/// node is dropped its addresses stay reachable, and it answers segments of former connections with
/// RST.
#[derive(Debug)]
pub struct Node {
    // These fields drop in their order: `ending` stops the threads, also those that sleep, and the
    // control plane then reports the workers' ends.
    ending: Ending,
    lcores: Vec<LcoreWorker<()>>,
    /// Times of rest of each thread, by its processor.
    rests: Vec<(usize, Arc<RestShown>)>,
    control: ControlThread,
    requests: Requests,
    workers: Vec<Place>,
    hub: Arc<Hub>,
    device: Device,
    ports: Vec<Port>,
}

/// Stops the lcores when dropped, also those that sleep.
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

/// A worker's port and processor, and whether it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPlace {
    /// Number of its port.
    pub port: usize,
    /// The processor that the worker runs on.
    pub lcore: usize,
    /// The processor's socket, if the system reports it.
    pub socket: Option<u32>,
    /// The socket of the worker's port, if it is another: then every frame crosses between sockets.
    pub wanted: Option<u32>,
    /// Whether the worker runs.
    pub running: bool,
}

/// A worker's port and processor.
#[derive(Debug)]
struct Place {
    port: usize,
    at: CpuPlace,
    /// Set when the worker has ended by a defect.
    ended: Stop,
}

/// Returns the waker of a thread that may sleep.
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

/// Asks a worker for all its counters.
fn ask(requests: &Requests, worker: usize) -> Option<Receiver<Box<WorkerSnapshot>>> {
    let (reply, answer) = crossbeam_channel::bounded(1);
    requests.send(ThreadRequest::Snapshot { worker: WorkerId(worker), reply }).ok()?;
    Some(answer)
}

/// Asks the control plane for its counters.
fn ask_control(requests: &Requests) -> Option<Receiver<Box<CtlCounters>>> {
    let (reply, answer) = crossbeam_channel::bounded(1);
    requests.send(ThreadRequest::Counters { reply }).ok()?;
    Some(answer)
}

/// Time that the workers have to answer a question.
const ANSWER: Duration = Duration::from_secs(5);

impl Node {
    /// Moves `endpoint` to the processors `lcores`, with one thread each, which spin there from now
    /// on. Thread `i` modulo their number polls worker `i`, so that the workers of each port are
    /// spread as evenly as possible.
    ///
    /// # Errors
    /// [`OpenError::Lcores`] when there are more processors than workers, or none;
    /// [`OpenError::Lcore`] when this process may not use one of them, [`OpenError::Thread`].
    pub fn start(eal: &Eal, endpoint: Endpoint, lcores: &[usize]) -> Result<Node, OpenError> {
        Node::start_with(eal, endpoint, &Lcores::new(lcores))
    }

    /// As [`start`](Node::start), with all settings of the threads.
    ///
    /// # Errors
    /// As [`start`](Node::start).
    pub fn start_with(eal: &Eal, endpoint: Endpoint, lcores: &Lcores) -> Result<Node, OpenError> {
        Node::run(eal, endpoint, lcores, |_, worker| worker.poll())
    }

    /// As [`start_with`](Node::start_with), with `turn` as the work that each worker repeats;
    /// `turn` gets the worker's number.
    fn run(
        eal: &Eal,
        endpoint: Endpoint,
        Lcores { cores: lcores, idle, among_programs }: &Lcores,
        turn: impl FnMut(usize, &mut Worker) -> bool + Clone + Send + 'static,
    ) -> Result<Node, OpenError> {
        let Endpoint { workers, control, requests, hub, device, ports, clock, .. } = endpoint;
        heddle_shm::closer::prepare();
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
        // All sleepers exist before any thread runs: from then on every thread knows which workers
        // may sleep.
        let wakers = hub.wakers().cloned();
        let sleepers = crews.iter().map(|crew| sleeper(*idle, wakers.as_ref(), crew));
        let sleepers: Vec<_> = sleepers.collect::<Result<_, _>>()?;
        let orphaned = Stop::new();
        let (stop, theirs) = (orphaned.clone(), wakers.clone());
        let control = ControlThread::spawn(control, clock.clone(), stop, theirs);
        let control = control.map_err(OpenError::Thread)?;
        let mut ending = Ending { lcores: Vec::new(), wakers };
        let mut threads = Vec::with_capacity(lcores.len());
        let mut rests = Vec::with_capacity(lcores.len());
        for ((crew, sleeper), &core) in crews.into_iter().zip(sleepers).zip(lcores) {
            let (turn, orphaned) = (turn.clone(), orphaned.clone());
            let crew = Crew::new(crew, turn, orphaned, *idle, clock.clone(), sleeper);
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

    /// Starts two RNICs whose ports are joined by rings, as [`Endpoint::ring_pair`] makes them,
    /// each with all its workers on one of the first two processors that this process may use. If
    /// there is only one processor, both RNICs share it, and take turns by the scheduler.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn ring_pair(
        eal: &Eal,
        name: &str,
        a: &EndpointConfig,
        b: &EndpointConfig,
    ) -> Result<(Node, Node), OpenError> {
        Node::start_pair(eal, Endpoint::ring_pair(eal, name, a, b)?)
    }

    /// Opens and starts two RNICs joined by a vhost-user socket ([`Endpoint::vhost_pair`]), on
    /// processors as [`ring_pair`](Node::ring_pair).
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn vhost_pair(
        eal: &Eal,
        name: &str,
        a: &EndpointConfig,
        b: &EndpointConfig,
    ) -> Result<(Node, Node), OpenError> {
        Node::start_pair(eal, Endpoint::vhost_pair(eal, name, a, b)?)
    }

    fn start_pair(eal: &Eal, (a, b): (Endpoint, Endpoint)) -> Result<(Node, Node), OpenError> {
        let cpus = allowed_cpus();
        let first = cpus.first().copied().unwrap_or(0);
        let second = cpus.get(1).copied().unwrap_or(first);
        Ok((Node::start(eal, a, &[first])?, Node::start(eal, b, &[second])?))
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

    /// Returns a handle for questions while the RNIC runs, for any thread.
    pub fn asker(&self) -> Asker {
        Asker::new(self.requests.clone())
    }

    /// Returns all ports.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Returns the places of the workers, and whether they run.
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

    /// Returns the threads that poll workers, with their times of rest.
    pub fn lcores(&self) -> impl Iterator<Item = LcoreStatus> {
        self.rests.iter().map(|(lcore, rest)| LcoreStatus { lcore: *lcore, rest: rest.counters() })
    }

    /// Returns the number of workers, including those that have ended.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Returns all counters so far. Waits up to five seconds for the workers; workers that do not
    /// answer, or have ended, are missing.
    pub fn snapshot(&self) -> Snapshot {
        let asked = ask_control(&self.requests);
        let workers = self.ask_workers();
        let ctl = asked.and_then(|a| a.recv_timeout(ANSWER).ok()).unwrap_or_default();
        Snapshot::of(workers, port_status(&self.ports), self.lcores().collect(), *ctl)
    }

    /// Asks all workers before it waits, so that they answer side by side.
    fn ask_workers(&self) -> Vec<WorkerStatus> {
        let asked: Vec<_> = (0..self.workers.len()).map(|w| ask(&self.requests, w)).collect();
        let until = Instant::now() + ANSWER;
        let status = |(place, answer): (&Place, Option<Receiver<Box<WorkerSnapshot>>>)| {
            let counters = answer.and_then(|a| a.recv_deadline(until).ok());
            WorkerStatus { port: place.port, lcore: Some(place.at.cpu), counters }
        };
        self.workers.iter().zip(asked).map(status).collect()
    }

    /// Ends all threads, and returns all their counters.
    pub fn stop(self) -> Snapshot {
        let workers = self.ask_workers();
        let rests: Vec<_> = self.lcores().collect();
        let Node { ending, lcores, control, ports, .. } = self;
        drop(ending);
        drop(lcores);
        Snapshot::of(workers, port_status(&ports), rests, control.stop())
    }

    /// Returns true if the control plane and at least one worker run; they end early only by a
    /// defect.
    pub fn is_running(&self) -> bool {
        self.running_workers() > 0
    }

    /// Returns the number of workers that run. When a worker has ended the others go on.
    pub fn running_workers(&self) -> usize {
        if self.lcores.iter().any(LcoreWorker::is_finished) {
            // A thread that ends before its stop takes its workers with it.
            return 0;
        }
        self.workers.iter().filter(|p| !p.ended.is_set()).count()
    }
}
