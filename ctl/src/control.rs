//! The control plane between applications and workers, and the thread it may have.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use core::net::SocketAddr;
use crossbeam_channel::{Receiver, Select};
use heddle_base::Instant;
use heddle_dataplane::{Clock, Command, CommandSender, Report};

use crate::CtlCounters;
use crate::cm::ConnectionManager;
use crate::device::Registry;
use crate::params::Request;

/// Requests of applications that may wait.
pub(crate) const REQUESTS: usize = 4096;

/// The control plane of one or more workers.
#[derive(Debug)]
pub(crate) struct Control {
    cm: ConnectionManager,
    requests: Receiver<Request>,
    links: Vec<WorkerLink>,
    registry: Arc<Registry>,
    /// Memory that waits until every worker has answered; one round at a time.
    quiescing: Option<Quiescing>,
    next_round: u64,
}

/// The control plane's ends of the rings to one worker.
#[derive(Debug)]
pub(crate) struct WorkerLink {
    pub(crate) commands: CommandSender,
    pub(crate) reports: Receiver<Report>,
    /// Orders the worker's ring had no room for: a few for each connection, see
    /// [`Control::poll`].
    pub(crate) backlog: VecDeque<Command>,
}

#[derive(Debug)]
struct Quiescing {
    round: u64,
    waiting: usize,
    stretches: Vec<(usize, usize)>,
}

impl Control {
    pub(crate) fn new(
        requests: Receiver<Request>,
        links: Vec<WorkerLink>,
        registry: Arc<Registry>,
    ) -> Control {
        let cm = ConnectionManager::default();
        Control { cm, requests, links, registry, quiescing: None, next_round: 0 }
    }

    /// Does what there is to do; true when there was something. Never blocks.
    pub(crate) fn poll(&mut self, now: Instant) -> bool {
        let mut busy = false;
        // Applications wait while a worker is behind. Reports are taken all the same, or worker and
        // control plane would wait for each other; the orders they lead to are few for each
        // connection, and the worker has only so many connections until it takes them.
        while !self.is_behind()
            && let Ok(request) = self.requests.try_recv()
        {
            busy = true;
            self.cm.handle_request(now, request, route);
            self.send_commands();
        }
        for w in 0..self.links.len() {
            while let Ok(report) = self.links[w].reports.try_recv() {
                busy = true;
                if let Report::Quiesced { token } = report {
                    self.quiesced(token);
                } else {
                    self.cm.handle_report(now, w, report);
                }
            }
        }
        if self.cm.poll_timeout().is_some_and(|t| t <= now) {
            self.cm.handle_timeouts(now);
            busy = true;
        }
        self.quiesce();
        self.send_commands();
        busy
    }

    /// What it has counted.
    pub(crate) fn counters(&self) -> &CtlCounters {
        &self.cm.counters
    }

    fn send_commands(&mut self) {
        while let Some((w, command)) = self.cm.poll_command() {
            if let Some(link) = self.links.get_mut(w) {
                link.backlog.push_back(command);
            }
        }
        for link in &mut self.links {
            while let Some(command) = link.backlog.pop_front() {
                if let Err(command) = link.commands.send(command) {
                    self.cm.counters.command_backlog += 1;
                    link.backlog.push_front(*command);
                    break;
                }
            }
        }
    }

    /// Whether a worker has orders to take that do not fit into its ring.
    fn is_behind(&self) -> bool {
        self.links.iter().any(|l| !l.backlog.is_empty())
    }

    /// Starts a round of waiting for all workers, when there is memory to give back.
    fn quiesce(&mut self) {
        if self.quiescing.is_some() {
            return;
        }
        let stretches = self.registry.take_limbo();
        if stretches.is_empty() {
            return;
        }
        let round = self.next_round;
        self.next_round += 1;
        for link in &mut self.links {
            link.backlog.push_back(Command::Quiesce { token: round });
        }
        self.quiescing = Some(Quiescing { round, waiting: self.links.len(), stretches });
    }

    fn quiesced(&mut self, token: u64) {
        let Some(q) = &mut self.quiescing else { return };
        if q.round != token {
            return;
        }
        q.waiting -= 1;
        if q.waiting == 0
            && let Some(q) = self.quiescing.take()
        {
            self.registry.free(&q.stretches);
        }
    }

    /// Sleeps until something arrives, `limit` has passed or a deadline has.
    fn wait(&self, now: Instant, limit: Duration) {
        let mut select = Select::new();
        let behind = self.is_behind();
        if !behind {
            select.recv(&self.requests);
        }
        for link in &self.links {
            select.recv(&link.reports);
        }
        let limit = if behind { Duration::from_millis(1) } else { limit };
        let until = self.cm.poll_timeout().map_or(limit, |t| t.since(now).min(limit));
        // Ready or timed out: either way the caller looks at everything.
        let _ = select.ready_timeout(until);
    }
}

/// One worker serves all addresses, until there are several queues.
fn route(_: SocketAddr) -> usize {
    0
}

/// The thread of a control plane; stops and ends when dropped.
#[derive(Debug)]
pub(crate) struct ControlThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<CtlCounters>>,
}

/// Longest sleep of the control thread: how late it may be to give memory back, or to end.
const NAP: Duration = Duration::from_millis(100);

impl ControlThread {
    pub(crate) fn spawn(mut control: Control, clock: Clock) -> std::io::Result<ControlThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = stop.clone();
        let thread = std::thread::Builder::new().name("heddle-ctl".into()).spawn(move || {
            while !theirs.load(Ordering::Relaxed) {
                if !control.poll(clock.now()) {
                    control.wait(clock.now(), NAP);
                }
            }
            *control.counters()
        })?;
        Ok(ControlThread { stop, thread: Some(thread) })
    }

    /// Ends the thread; what it has counted.
    pub(crate) fn stop(mut self) -> CtlCounters {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<CtlCounters> {
        self.stop.store(true, Ordering::Relaxed);
        let counters = self.thread.take()?.join();
        if counters.is_err() {
            tracing::error!("the control thread panicked");
        }
        counters.ok()
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use heddle_base::Seed;
    use heddle_dataplane::{
        Arena, Eal, EalConfig, Hugepages, Mempool, MempoolConfig, Port, PortConfig, Qp, QpInit,
        Worker, WorkerConfig,
    };
    use heddle_iwarp::{MrTable, Pd, Qpn};
    use heddle_rnic::RnicConfig;
    use heddle_tcp::StackConfig;

    use crate::event::CmId;
    use crate::params::ConnectParams;
    use crate::{CmEvent, Device, EventQueue};

    /// The worker takes no orders: they fill its ring, then the requests theirs, and nothing grows
    /// behind the two.
    #[test]
    fn test_requests_wait_while_the_worker_is_behind() {
        let config = EalConfig { hugepages: Hugepages::Never, ..EalConfig::default() };
        let eal = Eal::init(&config).unwrap();
        let pool = Mempool::new(&eal, &MempoolConfig::for_mtu(255, 1500)).unwrap();
        let ports = PortConfig::new(pool);
        let (mut port, _far) = Port::ring_pair(&eal, "control", 64, &ports, &ports).unwrap();
        let (rx, tx) = port.take_queues().pop().unwrap();
        let seed = Seed::from_u64(1);
        let arena = Arena::new(&eal, 8192).unwrap();
        let mrs = Arc::new(MrTable::new(&seed, 16));
        let stack = StackConfig::new(port.mac(), "10.0.0.1/24".parse().unwrap(), seed);
        let (clock, hand) = Clock::manual();
        let (mut worker, commands, reports) = Worker::new(WorkerConfig {
            rnic: RnicConfig { stack, max_held_frames: 64 },
            rx,
            tx,
            pool,
            arena: arena.clone(),
            mrs: mrs.clone(),
            clock,
            fault: None,
            rx_burst: 32,
        });
        let registry = Arc::new(Registry::new(mrs, arena, 0));
        let (requests, requests_out) = crossbeam_channel::bounded(REQUESTS);
        let device = Device::new(registry.clone(), requests, Vec::new());
        let link = WorkerLink { commands, reports, backlog: VecDeque::new() };
        let mut control = Control::new(requests_out, vec![link], registry);

        let cq = device.create_cq(1, None).unwrap();
        let init = QpInit { send_cq: cq.clone(), recv_cq: cq, sq_depth: 1, rq_depth: 1 };
        let qp = Qp::new(Qpn(1), Pd(1), init);
        let events = EventQueue::new(None);
        let remote = "192.0.2.1:1".parse().unwrap();
        let mut asked: Vec<CmId> = Vec::new();
        for _ in 0..3 {
            let params = || ConnectParams::new(qp.clone());
            while let Ok(id) = device.connect(remote, params(), &events) {
                asked.push(id);
            }
            control.poll(hand.now());
            assert!(control.links[0].backlog.len() <= 1);
        }
        // What the worker's ring holds, one that did not fit, and the ring of requests.
        assert_eq!(asked.len(), 4096 + 1 + REQUESTS);
        assert!(control.counters().command_backlog > 0);
        // There is no route, so each fails when the worker hears of it; in turn, none lost.
        let mut failed = Vec::new();
        while failed.len() < asked.len() {
            worker.poll();
            control.poll(hand.now());
            while let Some(event) = events.poll() {
                let CmEvent::ConnectError { id, .. } = event else { panic!("{event:?}") };
                failed.push(id);
            }
        }
        assert_eq!(failed, asked);
    }
}
