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
    /// Orders the worker's ring had no room for.
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
        while let Ok(request) = self.requests.try_recv() {
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
        select.recv(&self.requests);
        for link in &self.links {
            select.recv(&link.reports);
        }
        let backlog = self.links.iter().any(|l| !l.backlog.is_empty());
        let limit = if backlog { Duration::from_millis(1) } else { limit };
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
