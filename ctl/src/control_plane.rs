//! The control plane: the connection manager between applications and workers.
//!
//! [`heddle_cm`] decides, and this shell carries its decisions out: it takes requests of
//! applications in, puts orders into the workers' rings, takes reports back, and puts events into
//! the queues of applications. The shell holds the handles that belong to the manager's numbers,
//! and logs the refusals that no application hears of.

use std::sync::Arc;
use std::time::Duration;

use heddle_base::Instant;
use heddle_cm::{CmConfig, ConnectionManager, Notice, Ports};
use heddle_dataplane::{Command, NoReport, WorkerReport};
use heddle_hub::Board;
use heddle_hub::memory::Registry;
use heddle_rings::worker::WorkerQp;
use heddle_rnic::{Order, Report};
use heddle_types::{Agreed, AppId, CmId, Event, ListenerId, QpFate, RnicError, WorkerId};
use heddle_verbs::{EventQueue, Qp, Qpn, Sleeper, TakenEvents};
use rustc_hash::FxHashMap;

use crate::config::RnicSetup;
use crate::counters::{ControlCounters, CtlCounters};

mod datagrams;
mod end;
mod inbox;
mod inspect;
mod link;
mod requests;
mod routers;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
mod tests;
mod thread;

use inbox::Inbox;
use inspect::Pages;
pub(crate) use link::WorkerLink;
pub(crate) use requests::{Requests, ThreadRequest};
pub(crate) use routers::{PortRouters, Routers};
pub(crate) use thread::ControlThread;

/// The control plane of one or more workers.
#[derive(Debug)]
pub(crate) struct Control {
    cm: ConnectionManager,
    requests: Inbox,
    sleeper: Sleeper,
    links: Vec<WorkerLink>,
    registry: Arc<Registry>,
    /// Reports the state of the RNIC and of its objects to applications.
    board: Arc<Board>,
    /// The time at which the control plane next looks at the links of the ports.
    links_at: Instant,
    // The keys are the RNIC's own numbers. An application cannot choose them so that they collide, so
    // their hash needs no secret, which would cost more than the rest of a look-up.
    /// Counts of the events that each application has taken.
    apps: FxHashMap<AppId, TakenEvents>,
    listeners: FxHashMap<ListenerId, (AppId, EventQueue)>,
    conns: FxHashMap<CmId, Conn>,
    /// Queue pairs that are in a connection, or are about to be.
    qps: FxHashMap<Qpn, Qp>,
    /// Queue pairs among `qps` that end at the request of this application.
    failing: FxHashMap<Qpn, AppId>,
    /// Time of the control plane's last turn.
    now: Instant,
    /// Set when every waiting application has the report of the control plane's end.
    over: bool,
    counters: ControlCounters,
    /// Lists of connections that workers have been asked about.
    pages: Pages,
    /// The addresses and routes of each port, with those that routers tell.
    routers: Routers,
}

/// Interval at which the control plane looks at the links of the ports, for applications that want
/// to hear of them.
const LINKS_EVERY: Duration = Duration::from_millis(500);

/// The handles of one connection.
#[derive(Debug)]
struct Conn {
    app: AppId,
    events: EventQueue,
    qp: Option<Qpn>,
    /// The application knows that the connection is up.
    established: bool,
    /// The parameters agreed in the start-up.
    agreed: Option<Agreed>,
}

impl Control {
    pub(crate) fn new(
        requests: Inbox,
        sleeper: Sleeper,
        links: Vec<WorkerLink>,
        registry: Arc<Registry>,
        board: Arc<Board>,
        (ports, routers): (Ports, Routers),
        setup: &RnicSetup,
    ) -> Control {
        let (max_conns, close_limit) = (setup.max_conns, setup.close_limit);
        let config = CmConfig { close_limit, ..CmConfig::new(ports) };
        // Start-ups leave room for established connections and for connections that are closing.
        let max_startups = config.max_startups.min((max_conns / 2).max(1));
        Control {
            cm: ConnectionManager::new(CmConfig {
                max_startups,
                max_startups_per_tenant: (max_startups - max_startups / 4).max(1),
                ..config
            }),
            requests,
            sleeper,
            links,
            registry,
            board,
            links_at: Instant::ZERO,
            apps: FxHashMap::default(),
            listeners: FxHashMap::default(),
            conns: FxHashMap::default(),
            qps: FxHashMap::default(),
            failing: FxHashMap::default(),
            now: Instant::ZERO,
            over: false,
            counters: ControlCounters::default(),
            pages: Pages::default(),
            routers,
        }
    }

    /// Returns true if there is work for [`poll`](Control::poll). The check is cheap enough for
    /// every turn of a worker. Deadlines, events that applications have taken and memory to hand
    /// back do not count here, because none of them is urgent.
    #[inline]
    pub(crate) fn is_called(&self) -> bool {
        !self.requests.is_empty() || self.links.iter().any(|l| l.has_news() || l.is_behind())
    }

    /// Does the work that waits; returns true if there was any. Never blocks.
    pub(crate) fn poll(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut busy = false;
        for (&app, taken) in &self.apps {
            let count = usize::try_from(taken.swap()).unwrap_or(usize::MAX);
            if count > 0 {
                let _ =
                    self.cm.handle_request(now, app, heddle_types::Request::EventsTaken { count });
            }
        }
        // Requests of applications wait while a worker is behind. Reports are taken in any case;
        // otherwise worker and control plane would wait for each other. Reports lead to few orders
        // for each connection, and the worker has a bounded number of connections until it takes
        // the orders.
        while !self.is_behind()
            && let Some(request) = self.requests.take()
        {
            busy = true;
            self.handle_request(now, request);
            self.settle();
        }
        for w in 0..self.links.len() {
            busy |= self.take_reports(now, w);
        }
        if self.cm.poll_timeout().is_some_and(|t| t <= now) {
            self.cm.handle_timeout(now);
            busy = true;
        }
        busy |= self.tend_routers(now);
        self.settle();
        self.registry.reclaim();
        if self.links_at <= now {
            self.links_at = now + LINKS_EVERY;
            self.board.look_at_links();
        }
        busy
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> CtlCounters {
        let ib = self.cm.ib_counters().copied().unwrap_or_default();
        CtlCounters {
            cm: *self.cm.counters(),
            ib,
            control: self.counters,
            startups: *self.cm.startup_times(),
            gauges: self.cm.gauges(),
        }
    }

    fn take_reports(&mut self, now: Instant, w: usize) -> bool {
        let mut busy = false;
        loop {
            match self.links[w].recv() {
                Ok(WorkerReport::Engine(Report::Datagram(d))) => {
                    self.cm.handle_datagram(now, WorkerId(w), &d.bytes);
                }
                Ok(WorkerReport::Engine(Report::Link(news))) => {
                    self.take_news(now, WorkerId(w), &news);
                }
                Ok(WorkerReport::Engine(report)) => self.cm.handle_report(now, WorkerId(w), report),
                Ok(WorkerReport::Snapshot(s)) => self.links[w].answer(s),
                Ok(WorkerReport::Inspected(facts)) => {
                    if let Some(number) = self.links[w].answered() {
                        self.inspected(w, number, facts);
                    }
                }
                Err(NoReport::Yet) => return busy,
                Err(NoReport::Ended { panicked }) => self.worker_lost(now, w, panicked),
            }
            busy = true;
            self.settle();
        }
    }

    /// Handles the end of a worker, which has ended all its queue pairs before. Called once for
    /// each worker.
    fn worker_lost(&mut self, now: Instant, w: usize, panicked: bool) {
        if panicked {
            self.counters.worker_panics += 1;
            tracing::error!(worker = w, "the worker panicked: its connections are lost");
        }
        let untouched = self.links[w].lose();
        while let Some(number) = self.links[w].answered() {
            self.inspected(w, number, Vec::new());
        }
        self.cm.handle_worker_lost(now, WorkerId(w), &untouched);
    }

    /// Carries out the manager's decisions.
    fn settle(&mut self) {
        while let Some((worker, order)) = self.cm.poll_order() {
            self.order(worker, order);
        }
        while let Some((app, event)) = self.cm.poll_event() {
            self.tell(app, event);
        }
        while let Some(notice) = self.cm.poll_notice() {
            log(&notice);
        }
        for link in &mut self.links {
            self.counters.command_backlog += u64::from(!link.send());
        }
        self.send_datagrams();
    }

    fn order(&mut self, WorkerId(worker): WorkerId, order: Order) {
        let command = match order {
            Order::EnterFpduMode { conn, mode } => {
                let Some(qp) = self.qps.get(&mode.qp.qpn) else {
                    // The manager waits for the worker's answer, and the order cannot be sent
                    // without a queue pair.
                    self.counters.stale += 1;
                    let result = Err(RnicError::NoQueuePair);
                    let report = Report::Entered { conn, result };
                    return self.cm.handle_report(self.now, WorkerId(worker), report);
                };
                let app = qp.app();
                Command::Enter { conn, mode, app, qp: Box::new(WorkerQp::new(qp.ends())) }
            }
            order => Command::Order(order),
        };
        if let Some(link) = self.links.get_mut(worker) {
            link.order(command);
        }
    }

    fn tell(&mut self, app: AppId, event: Event) {
        let taken = self.apps.get(&app).cloned().unwrap_or_default();
        let qp = match &event {
            Event::Established { qpn, .. } | Event::Disconnected { qpn, .. } => self.qps.get(qpn),
            _ => None,
        };
        self.board.note(app, &event, qp);
        let events = match &event {
            Event::Listening { id } => self.listeners.get(id).map(|l| l.1.clone()),
            Event::ListenFailed { id, .. } => self.listeners.remove(id).map(|l| l.1),
            Event::ConnectRequest { id, listener, .. } => {
                let events = self.listeners.get(listener).map(|l| l.1.clone());
                if let Some(events) = &events {
                    let events = events.clone();
                    self.conns.insert(
                        *id,
                        Conn { app, events, qp: None, established: false, agreed: None },
                    );
                }
                events
            }
            Event::Established { id, agreed, .. } => self.conns.get_mut(id).map(|c| {
                c.established = true;
                c.agreed = Some(*agreed);
                c.events.clone()
            }),
            Event::Rejected { id, .. } => self.gone(*id, true),
            Event::ConnectError { id, qp, .. } => self.gone(*id, !matches!(qp, QpFate::Spent(_))),
            Event::Disconnected { id, .. } => self.gone(*id, false),
        };
        match events {
            Some(events) => events.push(event, &taken),
            None => self.counters.stale += 1,
        }
    }

    /// Forgets a connection that is over. Its queue pair becomes usable again if no worker has had
    /// it (`free`).
    fn gone(&mut self, id: CmId, free: bool) -> Option<EventQueue> {
        let c = self.conns.remove(&id)?;
        if let Some(qpn) = c.qp {
            self.let_go(qpn, free);
        }
        Some(c.events)
    }

    fn let_go(&mut self, qpn: Qpn, free: bool) {
        let failing = self.failing.remove(&qpn);
        match (self.qps.remove(&qpn), failing) {
            (Some(qp), Some(app)) if free => self.flush(app, &qp),
            (qp, _) => Control::end_of_conn(qp, free),
        }
    }

    fn end_of_conn(qp: Option<Qp>, free: bool) {
        match qp {
            Some(qp) if free => qp.unclaim(),
            Some(qp) => qp.set_over(),
            None => {}
        }
    }

    /// Returns true if a worker has orders that do not fit into its ring.
    fn is_behind(&self) -> bool {
        self.links.iter().any(WorkerLink::is_behind)
    }

    /// Sleeps until a request or a report arrives, `limit` has passed, or a deadline has.
    fn wait(&self, now: Instant, limit: Duration) {
        let behind = self.is_behind();
        // Memory comes back as workers proceed, and workers send no notice of that.
        let drains = self.registry.draining() > 0 && self.links.iter().any(WorkerLink::is_up);
        if drains {
            // The memory waits for a turn of each worker, so workers that sleep need a turn too.
            self.links.iter().for_each(WorkerLink::wake);
        }
        let limit = if behind || drains { Duration::from_millis(1) } else { limit };
        let due = [self.cm.poll_timeout(), self.routers.next_timeout(now)];
        let until = due.into_iter().flatten().min().map_or(limit, |t| t.since(now).min(limit));
        // The reason for waking does not matter, because the caller looks at everything.
        self.sleeper.sleep(until, || {
            !behind && !self.requests.is_empty() || self.links.iter().any(WorkerLink::has_news)
        });
    }
}

/// Logs a refusal that no application hears of.
fn log(n: &Notice) {
    let Notice { peer, local, reason, suppressed, .. } = n;
    match suppressed {
        0 => tracing::warn!(%peer, %local, "connection refused: {reason}"),
        n => tracing::warn!(%peer, %local, "connection refused: {reason} (and {n} others)"),
    }
}
