//! An RNIC on threads of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use heddle_verbs::{Device, Hub};

use heddle_cm::WorkerId;
use heddle_dataplane::eal::allowed_cpus;
use heddle_dataplane::{Eal, LcoreWorker, Port, Stop, Worker, WorkerSnapshot};

use crate::ask::Asker;
use crate::control_plane::{ControlThread, Requests, ThreadRequest};
use crate::endpoint::{Endpoint, EndpointConfig, OpenError, Snapshot};

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;

/// An RNIC whose worker runs on a pinned lcore and whose control plane has a thread that sleeps
/// when there is nothing to do. Dropping it stops both; applications are told that their
/// connections and listeners have ended.
///
/// Should the worker or the control plane panic, they are told the same at once, and nothing on this
/// RNIC works any more: [`is_running`](Node::is_running) says so. Peers are reset; until the node is
/// dropped its addresses stay reachable, and what peers send to connections that were is answered with
/// RST.
#[derive(Debug)]
pub struct Node {
    // In this order: the control plane tells of a worker that has ended.
    worker: LcoreWorker<()>,
    control: ControlThread,
    requests: Requests,
    device: Device,
    port: Port,
    /// The worker has, by a defect.
    ended: Stop,
}

fn ask(requests: &Requests) -> Option<WorkerSnapshot> {
    let (reply, answer) = crossbeam_channel::bounded(1);
    requests.send(ThreadRequest::Snapshot { worker: WorkerId(0), reply }).ok()?;
    answer.recv_timeout(ANSWER).ok().map(|s| *s)
}

/// How late a worker that has ended may answer a peer: a processor is not kept busy for it.
const CLOSED_NAP: Duration = Duration::from_millis(1);

/// How long a worker may take to answer a question.
const ANSWER: Duration = Duration::from_secs(1);

impl Node {
    /// Moves `endpoint` to processor `core`, whose worker spins there from now on.
    ///
    /// # Errors
    /// [`OpenError::Lcore`] when this process may not use the processor, [`OpenError::Thread`].
    pub fn start(eal: &Eal, endpoint: Endpoint, core: usize) -> Result<Node, OpenError> {
        Node::run(eal, endpoint, core, Worker::poll)
    }

    /// The same with `turn` for what the worker does over and over.
    fn run(
        eal: &Eal,
        endpoint: Endpoint,
        core: usize,
        mut turn: impl FnMut(&mut Worker) -> bool + Send + 'static,
    ) -> Result<Node, OpenError> {
        let Endpoint { mut worker, control, requests, device, port, clock, .. } = endpoint;
        device.hub().set_threaded();
        let (orphaned, ended) = (Stop::new(), Stop::new());
        let control = ControlThread::spawn(control, clock, orphaned.clone());
        let control = control.map_err(OpenError::Thread)?;
        let name = format!("heddle-w{core}");
        let theirs = ended.clone();
        let worker = LcoreWorker::spawn(eal, core, &name, move |stop| {
            let run = catch_unwind(AssertUnwindSafe(|| {
                while !stop.is_set() && !orphaned.is_set() {
                    if !turn(&mut worker) {
                        std::hint::spin_loop();
                    }
                }
            }));
            if run.is_err() || orphaned.is_set() {
                worker.end(run.is_err());
                theirs.set();
                // Peers are to hear that their connections are gone, for as long as the RNIC is there.
                while !stop.is_set() {
                    if !worker.poll_closed() {
                        std::thread::sleep(CLOSED_NAP);
                    }
                }
            }
        })?;
        Ok(Node { worker, control, requests, device, port, ended })
    }

    /// Two RNICs whose ports are joined by rings, as [`Endpoint::ring_pair`] makes them, each on
    /// one of the first two processors this process may use. With one alone both share it, and take
    /// turns as the scheduler has it.
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
        Ok((Node::start(eal, a, first)?, Node::start(eal, b, second)?))
    }

    /// What applications of their own are opened with.
    pub fn hub(&self) -> &Arc<Hub> {
        self.device.hub()
    }

    /// The application's handle.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The way to ask about it while it runs, from any thread.
    pub fn asker(&self) -> Asker {
        Asker::new(self.requests.clone())
    }

    /// Everything the worker has counted; `None` when it has ended, or does not answer within a
    /// second.
    pub fn snapshot(&self) -> Option<WorkerSnapshot> {
        ask(&self.requests)
    }

    /// Ends both threads; everything they have counted, zeros for a worker that does not answer.
    pub fn stop(self) -> Snapshot {
        let snapshot = self.snapshot().unwrap_or_default();
        let Node { worker, control, port, .. } = self;
        drop(worker);
        Snapshot { worker: snapshot, port: port.stats(), ctl: control.stop() }
    }

    /// Whether worker and control plane still run; they end early only by a defect.
    pub fn is_running(&self) -> bool {
        !self.ended.is_set() && !self.worker.is_finished()
    }
}
