//! The manager: the tables from names to connections, listeners and applications, and the queues of
//! its output.

mod ib;
mod lost;
mod readdress;
mod reports;
mod requests;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::net::SocketAddr;
use core::time::Duration;

use heddle_base::{Histogram, Instant};
use heddle_rnic::Order;
use heddle_types::{AppId, CmId, ConnId, Event, ListenerId, RequestError, TenantId, WorkerId};

use crate::claims::Claims;
use crate::config::CmConfig;
use crate::conn::{Conn, ConnInfo, Effect, Effects, Input, NO_DEADLINE, Place, State};
use crate::counters::CmCounters;
use crate::ib::Table;
use crate::listener::Listeners;
use crate::notice::Notices;
use crate::notice::{Notice, Refusal};
use crate::shares::Shares;

pub use view::{ConnView, ListenerView};

/// The connection manager of one RNIC, over one or more workers.
///
/// # Calling order
///
/// Call [`handle_request`](Self::handle_request), [`handle_report`](Self::handle_report),
/// [`handle_datagram`](Self::handle_datagram), [`handle_worker_lost`](Self::handle_worker_lost),
/// [`set_addressing`](Self::set_addressing) and, when [`poll_timeout`](Self::poll_timeout) has
/// passed, [`handle_timeout`](Self::handle_timeout), in any order, with times that do not decrease.
/// After each call, or after several, call [`poll_order`](Self::poll_order),
/// [`poll_event`](Self::poll_event) and [`poll_notice`](Self::poll_notice) until they are empty,
/// with InfiniBand [`poll_datagram`](Self::poll_datagram) too; then `poll_timeout` has a new time.
///
/// The orders for one worker must reach it in the order in which they are polled, and its reports
/// must come back in the order in which it makes them.
///
/// # Promises
///
/// - A refused request has changed nothing. Every other `Listen`, `Connect` and `Accept` has one
///   outcome, and every `Established` one `Disconnected`.
/// - The manager reports `Established` after the worker has reported that the queue pair runs.
/// - A queue pair is in one connection at a time. If the connection fails before FPDU mode, the
///   queue pair becomes free again; after FPDU mode, the queue pair is spent until the application
///   forgets it.
/// - Every connection of a worker is released once, after the worker has reported its close. When
///   the worker itself has ended, each of its connections ends at once, and the manager makes no
///   more orders for that worker.
/// - Every state that waits for a peer or an application has a deadline, except the established
///   state.
/// - The manager's memory is bounded: by the connections that workers have, by the number of queue
///   pairs, and by [`CmConfig::max_events`] and a few more events for each connection and each
///   application.
///
/// An order or a report takes time that grows with the logarithm of the number of connections, and
/// so does the choice of a start-up that makes room; a connect looks at each port, and at each
/// worker of one port. `AppGone` walks over everything that the application has.
#[derive(Debug)]
pub struct ConnectionManager {
    config: CmConfig,
    now: Instant,
    /// Each connection is in a box, because the map leaves places empty.
    conns: BTreeMap<CmId, Box<Conn>>,
    by_worker: BTreeMap<(WorkerId, ConnId), CmId>,
    listeners: Listeners,
    apps: BTreeMap<AppId, App>,
    /// Tenants of the applications that exist and were given one.
    tenants: BTreeMap<AppId, TenantId>,
    claims: Claims,
    timers: BTreeSet<(Instant, CmId)>,
    workers: Vec<Work>,
    /// Workers that have ended.
    lost: BTreeSet<WorkerId>,
    orders: VecDeque<(WorkerId, Order)>,
    events: VecDeque<(AppId, Event)>,
    notices: Notices,
    next_passive: u64,
    fx: Effects,
    startups: StartupTimes,
    /// Whether new connections of peers are refused.
    draining: bool,
    /// Absent when InfiniBand is not enabled.
    ib: Option<Box<Table>>,
}

/// Histograms of the time from the beginning of a connection to FPDU mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartupTimes {
    /// Connections made by applications of this side, from the request on: the time includes TCP's
    /// handshake, another attempt in MPA revision 1, and the time that the peer took to accept.
    pub active: Histogram,
    /// Connections made by peers, from the end of TCP's handshake on: the time includes the time
    /// that the application took to accept.
    pub passive: Histogram,
}

/// Heap bytes that an established connection takes in a manager: its record, and places in the
/// maps, which are half empty at worst.
pub const CONN_BYTES: usize = size_of::<Conn>()
    + 2 * size_of::<(CmId, Box<Conn>)>()
    + 2 * size_of::<((WorkerId, ConnId), CmId)>()
    + 2 * size_of::<CmId>()
    + 2 * Claims::ENTRY;

/// The load of a worker.
#[derive(Debug)]
struct Work {
    /// Passive connections in their start-up.
    startups: Shares,
    /// Connections in any state.
    conns: usize,
}

/// An application's listeners, connections and events.
#[derive(Debug, Default)]
struct App {
    listeners: BTreeSet<ListenerId>,
    conns: BTreeSet<CmId>,
    /// Events that the manager has reported and the application has not taken.
    waiting: usize,
    gone: bool,
}

/// Numbers of the objects that a manager holds at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmGauges {
    /// Connections in any state.
    pub conns: usize,
    /// Passive connections among them that are not established and have a place at their worker.
    pub startups: usize,
    /// Listeners, including those that some worker has not answered yet.
    pub listeners: usize,
    /// Queue pairs in a connection, or spent.
    pub claims: usize,
    /// Deadlines of connections.
    pub timers: usize,
    /// Applications that have a listener, a connection, or events that wait.
    pub apps: usize,
    /// Events not taken by their applications, whether the shell has polled them or not.
    pub events: usize,
}

impl ConnectionManager {
    /// Makes a manager without listeners or connections.
    pub fn new(config: CmConfig) -> ConnectionManager {
        let (all, most) = (config.max_startups, config.max_startups_per_tenant);
        let work = |_| Work { startups: Shares::new(all, most), conns: 0 };
        let workers = (0..config.ports.workers()).map(work).collect();
        ConnectionManager {
            notices: Notices::new(config.notice_burst),
            config,
            now: Instant::ZERO,
            conns: BTreeMap::new(),
            by_worker: BTreeMap::new(),
            listeners: Listeners::default(),
            apps: BTreeMap::new(),
            tenants: BTreeMap::new(),
            claims: Claims::default(),
            timers: BTreeSet::new(),
            workers,
            lost: BTreeSet::new(),
            orders: VecDeque::new(),
            events: VecDeque::new(),
            next_passive: CmId::PASSIVE.0,
            fx: Effects::default(),
            startups: StartupTimes::default(),
            draining: false,
            ib: None,
        }
    }

    /// Sets the total time for an orderly close of an established connection from now on
    /// ([`CmConfig::close_limit`]). A close that has begun keeps its deadline.
    pub fn set_close_limit(&mut self, limit: Duration) {
        self.config.close_limit = limit;
        for conn in self.conns.values_mut() {
            conn.link.close_limit = limit.into();
        }
    }

    /// Refuses new connections of peers from now on, at all listeners, or takes them again. All
    /// connections that have begun go on, also in their start-up, and applications may still make
    /// connections.
    pub fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Makes `app` share its part of common stores with all applications of `tenant`. Call this
    /// before the application's first request; the assignment holds until the application ends.
    pub fn set_tenant(&mut self, app: AppId, tenant: TenantId) {
        self.tenants.insert(app, tenant);
    }

    /// Returns the tenant that pays for an application's part of common stores.
    fn tenant(&self, app: AppId) -> TenantId {
        self.tenants.get(&app).copied().unwrap_or(TenantId::App(app))
    }

    /// Returns the next order, and the worker that it is for.
    pub fn poll_order(&mut self) -> Option<(WorkerId, Order)> {
        self.orders.pop_front()
    }

    /// Returns the next event, and the application that it is for. The event counts as waiting
    /// until [`Request::EventsTaken`](heddle_types::Request::EventsTaken).
    pub fn poll_event(&mut self) -> Option<(AppId, Event)> {
        self.events.pop_front()
    }

    /// Returns the next refusal for a log.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.poll()
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) has to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ib = self.ib.as_ref().and_then(|ib| ib.next_timer());
        self.timers.first().map(|(t, _)| *t).into_iter().chain(ib).min()
    }

    /// Handles all deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        while let Some(&(t, id)) = self.timers.first() {
            if t > now {
                break;
            }
            self.timers.pop_first();
            if let Some(c) = self.conns.get_mut(&id) {
                c.deadline = NO_DEADLINE;
            }
            self.drive(id, Input::Timeout);
        }
        self.ib_timeouts();
    }

    /// Returns the manager's counters.
    pub fn counters(&self) -> &CmCounters {
        &self.fx.counters
    }

    /// Returns the start-up times of the connections that have been established.
    pub fn startup_times(&self) -> &StartupTimes {
        &self.startups
    }

    /// Returns the numbers of the objects that the manager holds.
    pub fn gauges(&self) -> CmGauges {
        CmGauges {
            conns: self.conns.len() + self.ib.as_ref().map_or(0, |ib| ib.len()),
            startups: self.workers.iter().map(|w| w.startups.len()).sum(),
            listeners: self.listeners.len(),
            claims: self.claims.len(),
            timers: self.timers.len() + self.ib.as_ref().map_or(0, |ib| ib.timers()),
            apps: self.apps.len(),
            events: self.apps.values().map(|a| a.waiting).sum(),
        }
    }

    /// Gives `input` to a connection and carries out its effects.
    fn drive(&mut self, id: CmId, input: Input<'_>) -> Option<RequestError> {
        let c = self.conns.get_mut(&id)?;
        let from = c.state.place();
        let established = self.fx.counters.established;
        let state = core::mem::replace(&mut c.state, State::Gone);
        c.state = state.step(&mut c.link, input, &mut self.fx);
        let to = c.state.place();
        let gone = matches!(c.state, State::Gone);
        if self.fx.counters.established > established {
            let (passive, took) = (c.link.passive.is_some(), c.link.since.age(self.now));
            let times = &mut self.startups;
            let side = if passive { &mut times.passive } else { &mut times.active };
            side.record_time(took);
        }
        self.change_place(id, from, to);
        // The list goes back, so that the next input reuses its memory.
        let mut effects = core::mem::take(&mut self.fx.list);
        for effect in effects.drain(..) {
            self.carry_out(id, effect);
        }
        self.fx.list = effects;
        if gone {
            self.remove(id);
        }
        self.fx.denied.take()
    }

    fn carry_out(&mut self, id: CmId, effect: Effect) {
        let Some(c) = self.conns.get(&id) else { return };
        match effect {
            Effect::Order(order) => self.orders.push_back((c.link.worker, order)),
            Effect::Tell(event) => self.tell(c.link.app, event),
            Effect::Deadline(after) => self.set_deadline(id, after),
            Effect::Redial { old, closed } => {
                let (worker, remote, tcp) = (c.link.worker, c.link.remote(), c.link.tcp);
                let local = c.link.local.as_ref().map(|l| l.get().ip());
                self.by_worker.remove(&(worker, old));
                if !closed {
                    self.orders.push_back((worker, Order::Abort { conn: old }));
                }
                self.orders.push_back((worker, Order::Release { conn: old }));
                let connect = Order::Connect { token: id.0, local, remote, tcp };
                self.orders.push_back((worker, connect));
            }
            Effect::Free(qpn) => self.claims.free(qpn),
            Effect::Spend(qpn) if self.is_gone(c.link.app) => self.claims.free(qpn),
            Effect::Spend(qpn) => self.claims.spend(qpn),
            Effect::Refused(reason) => {
                let listener = c.link.passive.map(|p| p.listener);
                let (local, remote) = (c.link.local(), c.link.remote());
                self.refused(listener, local, remote, reason);
            }
        }
    }

    fn tell(&mut self, app: AppId, event: Event) {
        tracing::trace!(app = app.0, ?event, "event for an application");
        if let Some(a) = self.apps.get_mut(&app)
            && !a.gone
        {
            a.waiting += 1;
            self.events.push_back((app, event));
        }
    }

    fn refused(
        &mut self,
        listener: Option<ListenerId>,
        local: SocketAddr,
        peer: SocketAddr,
        reason: Refusal,
    ) {
        tracing::debug!(?listener, %local, %peer, ?reason, "connection refused");
        let counters = &mut self.fx.counters;
        match reason {
            Refusal::NotListening => counters.not_listening += 1,
            Refusal::Backlog => counters.backlog_full += 1,
            Refusal::Startups => counters.startups_full += 1,
            Refusal::PeerStartups | Refusal::PeerConns => counters.peer_full += 1,
            Refusal::Events => counters.events_full += 1,
            Refusal::Draining => counters.draining_refused += 1,
            // The code that raised the refusal has already counted it.
            Refusal::Evicted | Refusal::TimedOut | Refusal::Startup(_) => {}
        }
        let notice = Notice { listener, local, peer, reason, suppressed: 0 };
        if !self.notices.push(self.now, notice) {
            counters.notices_suppressed += 1;
        }
    }

    fn set_deadline(&mut self, id: CmId, after: Option<Duration>) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        let old = core::mem::replace(&mut c.deadline, NO_DEADLINE);
        if old != NO_DEADLINE {
            self.timers.remove(&(old, id));
        }
        if let Some(after) = after {
            let at = self.now + after;
            // The time is so far away that it never comes.
            if at == NO_DEADLINE {
                return;
            }
            c.deadline = at;
            self.timers.insert((at, id));
        }
    }

    fn change_place(&mut self, id: CmId, from: Place, to: Place) {
        let Some(link) = self.conns.get(&id).map(|c| &c.link) else { return };
        let Some(passive) = link.passive else { return };
        if from == to {
            return;
        }
        let tenant = self.tenant(link.app);
        if let Some(w) = self.workers.get_mut(link.worker.0) {
            w.startups.change(tenant, id, from, to);
        }
        // A listener that has ended has no places.
        if let Some(l) = self.listeners.get_mut(passive.listener) {
            l.change(id, link.remote().ip(), from, to);
        }
    }

    /// Enters a new connection into the maps.
    fn insert(&mut self, link: ConnInfo, state: State) {
        let conn = Conn { link, state, deadline: NO_DEADLINE };
        let (id, worker, to) = (conn.link.id, conn.link.worker, conn.state.place());
        if let Some(name) = conn.link.conn {
            self.by_worker.insert((worker, name), id);
        }
        if let Some(w) = self.workers.get_mut(worker.0) {
            w.conns += 1;
        }
        self.apps.entry(conn.link.app).or_default().conns.insert(id);
        self.conns.insert(id, Box::new(conn));
        self.change_place(id, Place::None, to);
    }

    /// Forgets a connection and its timer.
    fn remove(&mut self, id: CmId) {
        self.set_deadline(id, None);
        let Some(link) = self.conns.remove(&id).map(|c| c.link) else { return };
        if let Some(w) = self.workers.get_mut(link.worker.0) {
            w.conns -= 1;
        }
        if let Some(name) = link.conn {
            self.by_worker.remove(&(link.worker, name));
        }
        if let Some(a) = self.apps.get_mut(&link.app) {
            a.conns.remove(&id);
        }
        self.prune(link.app);
    }

    fn is_gone(&self, app: AppId) -> bool {
        self.apps.get(&app).is_some_and(|a| a.gone)
    }

    /// Returns true if the application has left so many events untaken that the manager should make
    /// no more.
    fn is_overfull(&self, app: AppId) -> bool {
        self.apps.get(&app).is_some_and(|a| a.waiting >= self.config.max_events)
    }

    /// Forgets an application that has nothing.
    fn prune(&mut self, app: AppId) {
        let empty =
            |a: &App| a.listeners.is_empty() && a.conns.is_empty() && (a.gone || a.waiting == 0);
        if self.apps.get(&app).is_some_and(empty) {
            let gone = self.apps.remove(&app).is_some_and(|a| a.gone);
            // The tenant goes after the application's last connection: each connection gives its
            // place back to the tenant that took it.
            if gone {
                self.tenants.remove(&app);
            }
        }
    }
}
