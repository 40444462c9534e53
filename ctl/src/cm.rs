//! The connection manager: MPA start-up and life of every connection.
//!
//! A state machine without threads or clocks: requests of applications and reports of workers go
//! in with the time, orders to workers and events to applications come out.
//!
//! ```text
//!   active    Connecting ─ TCP up ─▶ AwaitReply ─ Reply ─▶ Running ─▶ (Closing) ─▶ gone
//!   passive   AwaitRequest ─ Request ─▶ AwaitApplication ─ accept ─▶ Running
//!                                                        └ reject ─▶ Closing
//! ```
//!
//! Every state before `Running` has a deadline. The connection is forgotten when the worker has
//! reported it closed.

use std::collections::{BTreeSet, HashMap, VecDeque};

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use heddle_base::Instant;
use heddle_dataplane::{Command, Qp, Report};
use heddle_iwarp::mpa::startup::{
    AcceptParams as MpaAccept, Initiator, InitiatorConfig, InitiatorStep, Negotiated, Responder,
    ResponderConfig, ResponderStep, StartupAction,
};
use heddle_iwarp::{QpConfig, QpEvent, Role, Side};
use heddle_rnic::{CloseReason, Event, FpduMode};
use heddle_tcp::ConnId;

use crate::event::{
    Agreed, CmEvent, CmId, ConnectFailure, DisconnectReason, EventQueue, ListenerId,
};
use crate::params::{AcceptParams, ConnectParams, ListenParams, Request};
use crate::refusals::Refusals;
use crate::{CtlCounters, CtlError};

/// Index of a worker.
pub(crate) type WorkerIndex = usize;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct ConnectionManager {
    conns: HashMap<CmId, Conn>,
    by_worker: HashMap<(WorkerIndex, ConnId), CmId>,
    listeners: HashMap<ListenerId, Listener>,
    deadlines: BTreeSet<(Instant, CmId)>,
    commands: VecDeque<(WorkerIndex, Command)>,
    pending_listens: HashMap<ListenerId, PendingListen>,
    next_passive: u64,
    now: Instant,
    refusals: Refusals,
    pub(crate) counters: CtlCounters,
}

#[derive(Debug)]
struct Listener {
    addr: SocketAddr,
    params: ListenParams,
    events: EventQueue,
    /// Connections in their start-up.
    starting: usize,
}

#[derive(Debug)]
struct PendingListen {
    listener: Listener,
    done: crossbeam_channel::Sender<Result<(), CtlError>>,
    /// The application has not taken it back meanwhile.
    wanted: bool,
}

#[derive(Debug)]
struct Conn {
    worker: WorkerIndex,
    conn: Option<ConnId>,
    events: EventQueue,
    local: Option<SocketAddr>,
    remote: SocketAddr,
    deadline: Option<Instant>,
    /// Start-up octets received.
    received: usize,
    listener: Option<ListenerId>,
    qp: Option<Qp>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Connecting {
        params: Box<ConnectParams>,
    },
    AwaitReply {
        initiator: Box<Initiator>,
    },
    AwaitRequest {
        responder: Box<Responder>,
    },
    AwaitApplication {
        responder: Box<Responder>,
        used: usize,
    },
    Running {
        why_closed: Option<DisconnectReason>,
    },
    /// Not established and not going to be; the worker has still to say that it is closed.
    Closing,
}

/// How long an orderly close may take before the connection is reset.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

/// RDMA Reads of one peer served at a time, at most.
const MAX_IRD: u16 = 128;

/// Connections a passive side makes are numbered apart from those applications ask for.
const PASSIVE: u64 = 1 << 63;

impl ConnectionManager {
    /// The next order for a worker.
    pub(crate) fn poll_command(&mut self) -> Option<(WorkerIndex, Command)> {
        self.commands.pop_front()
    }

    /// When [`handle_timeouts`](Self::handle_timeouts) has to be called next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(t, _)| *t)
    }

    /// Ends start-ups that took too long.
    pub(crate) fn handle_timeouts(&mut self, now: Instant) {
        self.now = now;
        while let Some(&(t, id)) = self.deadlines.first() {
            if t > now {
                break;
            }
            self.deadlines.pop_first();
            let Some(c) = self.conns.get_mut(&id) else { continue };
            c.deadline = None;
            let what = match c.phase {
                Phase::Connecting { .. } => "the TCP connection",
                Phase::AwaitReply { .. } => "the MPA Reply",
                Phase::AwaitRequest { .. } => "the MPA Request",
                Phase::AwaitApplication { .. } => "the application's answer",
                Phase::Running { .. } | Phase::Closing => {
                    self.counters.close_timeouts += 1;
                    if let Some(conn) = c.conn {
                        self.commands.push_back((c.worker, Command::Abort { conn }));
                    }
                    continue;
                }
            };
            self.counters.startup_timeouts += 1;
            self.fail(id, ConnectFailure::TimedOut(what));
        }
    }

    /// Carries out a request of an application; workers are chosen by `route`.
    pub(crate) fn handle_request(
        &mut self,
        now: Instant,
        request: Request,
        route: impl Fn(SocketAddr) -> WorkerIndex,
    ) {
        self.now = now;
        match request {
            Request::Listen { id, addr, params, events, done } => {
                let worker = route(addr);
                self.commands.push_back((
                    worker,
                    Command::Listen {
                        token: id.0,
                        addr: bind(addr),
                        port: addr.port(),
                        backlog: params.backlog,
                    },
                ));
                let listener = Listener { addr, params, events, starting: 0 };
                self.pending_listens.insert(id, PendingListen { listener, done, wanted: true });
            }
            Request::Unlisten { id } => {
                let addr = match self.pending_listens.get_mut(&id) {
                    Some(pending) => {
                        pending.wanted = false;
                        Some(pending.listener.addr)
                    }
                    None => self.listeners.remove(&id).map(|l| l.addr),
                };
                // Now and not after the worker's answer: the next request may be to listen there.
                if let Some(at) = addr {
                    let (addr, port) = (bind(at), at.port());
                    self.commands.push_back((route(at), Command::Unlisten { addr, port }));
                }
            }
            Request::Connect { id, remote, params, events } => {
                let worker = route(remote);
                let deadline = now + params.timeout;
                let qp = Some(params.qp.clone());
                let phase = Phase::Connecting { params: Box::new(params) };
                self.conns.insert(
                    id,
                    Conn {
                        worker,
                        conn: None,
                        events,
                        local: None,
                        remote,
                        deadline: None,
                        received: 0,
                        listener: None,
                        qp,
                        phase,
                    },
                );
                self.set_deadline(id, Some(deadline));
                self.commands.push_back((worker, Command::Connect { token: id.0, remote }));
            }
            Request::Accept { id, params } => self.accept(id, params),
            Request::Reject { id, private_data } => self.reject(id, &private_data),
            Request::Disconnect { id } => self.disconnect(id),
        }
    }

    /// Takes a report of a worker.
    pub(crate) fn handle_report(&mut self, now: Instant, worker: WorkerIndex, report: Report) {
        self.now = now;
        match report {
            Report::Listening { token, result } => {
                self.listening(ListenerId(token), result);
            }
            Report::Connecting { token, result } => {
                let id = CmId(token);
                match result {
                    Ok(conn) => self.connecting(worker, id, conn),
                    Err(e) => {
                        self.fail(id, ConnectFailure::Tcp(e.to_string()));
                        self.conns.remove(&id);
                    }
                }
            }
            Report::Refused { conn, error } => {
                if let Some(&id) = self.by_worker.get(&(worker, conn)) {
                    self.fail(id, ConnectFailure::Worker(error.to_string()));
                }
            }
            Report::Quiesced { .. } => {}
            Report::Event(event) => self.handle_event(now, worker, event),
        }
    }

    /// The worker's answer. A listener counts from here on, so that one the worker refuses takes no
    /// connections of another at the same port.
    fn listening(&mut self, id: ListenerId, result: Result<(), heddle_tcp::ListenError>) {
        let Some(PendingListen { listener, done, wanted }) = self.pending_listens.remove(&id)
        else {
            return;
        };
        let addr = listener.addr;
        match result {
            Ok(()) if wanted => {
                self.listeners.insert(id, listener);
            }
            Ok(()) => {}
            Err(e) => tracing::error!(%addr, "cannot listen: {e}"),
        }
        // The application may have stopped waiting, or never waited.
        let _ = done.try_send(result.map_err(|e| CtlError::Listen(addr, e)));
    }

    fn connecting(&mut self, worker: WorkerIndex, id: CmId, conn: ConnId) {
        match self.conns.get_mut(&id) {
            Some(c) => {
                c.conn = Some(conn);
                self.by_worker.insert((worker, conn), id);
                if matches!(c.phase, Phase::Closing) {
                    self.commands.push_back((worker, Command::Abort { conn }));
                }
            }
            None => self.commands.push_back((worker, Command::Release { conn })),
        }
    }

    fn handle_event(&mut self, now: Instant, worker: WorkerIndex, event: Event) {
        let conn = match &event {
            Event::Accepted { conn, local, remote } => {
                return self.accepted(now, worker, *conn, *local, *remote);
            }
            Event::Connected { conn, .. }
            | Event::StartupBytes { conn, .. }
            | Event::Qp { conn, .. }
            | Event::PeerClosed { conn }
            | Event::Closed { conn, .. } => *conn,
        };
        let Some(&id) = self.by_worker.get(&(worker, conn)) else { return };
        match event {
            Event::Accepted { .. } => {}
            Event::Connected { local, .. } => self.connected(id, local),
            Event::StartupBytes { bytes, .. } => self.startup_bytes(now, id, &bytes),
            Event::Qp { event, .. } => self.qp_event(id, &event),
            Event::PeerClosed { .. } => self.peer_closed(id),
            Event::Closed { reason, .. } => self.closed(id, reason),
        }
    }

    // ---- passive side

    fn accepted(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        conn: ConnId,
        local: SocketAddr,
        remote: SocketAddr,
    ) {
        let Some(listener) = self.listener_at(local) else {
            return self.turn_away(worker, conn);
        };
        let full = |l: &Listener| l.starting >= l.params.backlog;
        if self.listeners.get(&listener).is_some_and(full) {
            self.evict_starting(listener);
        }
        let Some(l) = self.listeners.get_mut(&listener) else { return };
        if full(l) {
            self.counters.backlog_full += 1;
            return self.turn_away(worker, conn);
        }
        if l.events.is_overfull() {
            self.counters.events_full += 1;
            return self.turn_away(worker, conn);
        }
        let config =
            ResponderConfig { crc: l.params.crc, max_ird: MAX_IRD, ..ResponderConfig::default() };
        let Ok(responder) = Responder::new(&config) else {
            return self.turn_away(worker, conn);
        };
        l.starting += 1;
        let deadline = now + l.params.request_timeout;
        let events = l.events.clone();
        let id = CmId(PASSIVE | self.next_passive);
        self.next_passive += 1;
        self.by_worker.insert((worker, conn), id);
        self.conns.insert(
            id,
            Conn {
                worker,
                conn: Some(conn),
                events,
                local: Some(local),
                remote,
                deadline: None,
                received: 0,
                listener: Some(listener),
                qp: None,
                phase: Phase::AwaitRequest { responder: Box::new(responder) },
            },
        );
        self.set_deadline(id, Some(deadline));
    }

    /// The listener for `local`: one at that very address comes before one at all of ours.
    fn listener_at(&self, local: SocketAddr) -> Option<ListenerId> {
        let at = |l: &Listener| l.addr.port() == local.port();
        let found = |f: &dyn Fn(&Listener) -> bool| {
            self.listeners.iter().find(|(_, l)| at(l) && f(l)).map(|(id, _)| *id)
        };
        found(&|l| l.addr.ip() == local.ip()).or_else(|| found(&|l| l.addr.ip().is_unspecified()))
    }

    /// Resets a connection that nobody has been told of.
    fn turn_away(&mut self, worker: WorkerIndex, conn: ConnId) {
        self.commands.push_back((worker, Command::Abort { conn }));
        self.commands.push_back((worker, Command::Release { conn }));
    }

    /// Resets the connection of `listener` that has kept us waiting for its MPA Request for longest:
    /// an honest peer sends it at once, and peers that connect and say nothing must not keep others
    /// out. Those that wait for the application are left alone.
    fn evict_starting(&mut self, listener: ListenerId) {
        let oldest = self.deadlines.iter().map(|(_, id)| *id).find(|id| {
            self.conns.get(id).is_some_and(|c| {
                c.listener == Some(listener) && matches!(c.phase, Phase::AwaitRequest { .. })
            })
        });
        if let Some(id) = oldest {
            self.counters.backlog_evicted += 1;
            self.counters.failed += 1;
            self.give_up(id, End::Reset);
        }
    }

    fn startup_bytes(&mut self, now: Instant, id: CmId, bytes: &[u8]) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.received += bytes.len();
        let received = c.received;
        match &mut c.phase {
            Phase::AwaitRequest { responder } => match responder.handle_bytes(bytes) {
                Ok(ResponderStep::NeedMore) => {}
                Ok(ResponderStep::Request { peer, private_data, .. }) => {
                    let (events, local, remote) = (c.events.clone(), c.local, c.remote);
                    let Phase::AwaitRequest { responder } =
                        core::mem::replace(&mut c.phase, Phase::Closing)
                    else {
                        return;
                    };
                    c.phase = Phase::AwaitApplication { responder, used: received };
                    let Some(listener) = c.listener else { return };
                    let timeout = self.listeners.get(&listener).map_or_else(
                        || ListenParams::default().accept_timeout,
                        |l| l.params.accept_timeout,
                    );
                    self.counters.requests_received += 1;
                    self.set_deadline(id, Some(now + timeout));
                    events.push(CmEvent::ConnectRequest {
                        id,
                        listener,
                        local: local.unwrap_or(remote),
                        remote,
                        private_data,
                        peer_ird: peer.and_then(|p| p.ird.get()),
                        peer_ord: peer.and_then(|p| p.ord.get()),
                    });
                }
                Err(e) => {
                    self.counters.startup_errors += 1;
                    self.fail(id, ConnectFailure::Mpa(e.to_string()));
                }
            },
            Phase::AwaitReply { initiator } => match initiator.handle_bytes(bytes) {
                Ok(InitiatorStep::NeedMore) => {}
                Ok(InitiatorStep::Connected { negotiated, private_data, .. }) => {
                    let start = FpduStart {
                        startup_len: received,
                        reply: Vec::new(),
                        role: Role::Initiator,
                    };
                    self.run(id, &negotiated, start, private_data);
                }
                Ok(InitiatorStep::Rejected { private_data, .. }) => {
                    self.counters.rejects_received += 1;
                    let events = c.events.clone();
                    self.give_up(id, End::Orderly);
                    events.push(CmEvent::Rejected { id, private_data });
                }
                Err(e) => {
                    let last_word = match e.action() {
                        StartupAction::Terminate(code) => initiator.terminate(code),
                        StartupAction::Close => None,
                    };
                    self.counters.startup_errors += 1;
                    let error = ConnectFailure::Mpa(e.to_string());
                    match last_word {
                        Some(bytes) => {
                            self.counters.terminates_sent += 1;
                            self.send_startup(id, bytes);
                            self.fail_in(id, error, End::Orderly);
                        }
                        None => self.fail(id, error),
                    }
                }
            },
            // A peer sends nothing behind its Request before it has the Reply, so the Request was
            // longer than it said (RFC 5044 section 7.1.1), whether that came in one segment or not.
            Phase::AwaitApplication { responder, .. } => {
                if let Err(e) = responder.handle_bytes(bytes) {
                    self.counters.startup_errors += 1;
                    self.fail(id, ConnectFailure::Mpa(e.to_string()));
                }
            }
            Phase::Connecting { .. } | Phase::Running { .. } | Phase::Closing => {}
        }
    }

    fn accept(&mut self, id: CmId, params: AcceptParams) {
        let Some(c) = self.conns.get_mut(&id) else { return params.qp.kill() };
        let Phase::AwaitApplication { responder, used } = &mut c.phase else {
            return params.qp.kill();
        };
        let used = *used;
        let answer = responder.accept(&MpaAccept {
            ird: params.ird,
            ord: params.ord,
            private_data: &params.private_data,
        });
        c.qp = Some(params.qp);
        match answer {
            Ok((reply, negotiated)) => {
                self.counters.accepts_sent += 1;
                let start = FpduStart { startup_len: used, reply, role: Role::Responder };
                self.run(id, &negotiated, start, Vec::new());
            }
            Err(e) => {
                // The application's mistake; the peer need not wait for its time-out.
                let reply = responder.reject(&[]);
                if let Ok(reply) = reply {
                    self.counters.rejects_sent += 1;
                    self.send_startup(id, reply);
                }
                self.fail_in(id, ConnectFailure::Mpa(e.to_string()), End::Orderly);
            }
        }
    }

    fn reject(&mut self, id: CmId, private_data: &[u8]) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        let Phase::AwaitApplication { responder, .. } = &mut c.phase else { return };
        // Private data that is too long is the application's mistake; the peer is told all the same.
        let reply = responder.reject(private_data).or_else(|_| responder.reject(&[]));
        self.counters.rejects_sent += 1;
        if let Ok(reply) = reply {
            self.send_startup(id, reply);
        }
        self.give_up(id, End::Orderly);
    }

    // ---- active side

    fn connected(&mut self, id: CmId, local: SocketAddr) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.local = Some(local);
        let Phase::Connecting { params } = &c.phase else { return };
        let config = InitiatorConfig {
            revision: params.revision,
            crc: params.crc,
            ird: params.ird,
            max_ird: params.ird.max(MAX_IRD),
            ord: params.ord,
            private_data: &params.private_data,
            ..InitiatorConfig::default()
        };
        match Initiator::new(&config) {
            Ok(initiator) => {
                let request = initiator.request().to_vec();
                c.phase = Phase::AwaitReply { initiator: Box::new(initiator) };
                self.counters.requests_sent += 1;
                self.send_startup(id, request);
            }
            Err(e) => self.fail(id, ConnectFailure::Mpa(e.to_string())),
        }
    }

    // ---- both

    fn run(&mut self, id: CmId, negotiated: &Negotiated, start: FpduStart, private_data: Vec<u8>) {
        self.set_deadline(id, None);
        let Some(c) = self.conns.get_mut(&id) else { return };
        let (Some(conn), Some(qp)) = (c.conn, c.qp.clone()) else { return };
        let init = qp.init();
        let config = QpConfig {
            qpn: qp.qpn(),
            pd: qp.pd(),
            sq_depth: init.sq_depth,
            rq_depth: init.rq_depth,
            ird: negotiated.ird,
            ord: negotiated.ord,
            crc: negotiated.crc,
            send_markers: negotiated.send_markers,
            role: start.role,
            ..QpConfig::default()
        };
        let mode = FpduMode { startup_len: start.startup_len, reply: start.reply, qp: config };
        self.commands
            .push_back((c.worker, Command::EnterFpduMode { conn, mode: Box::new(mode), qp }));
        c.phase = Phase::Running { why_closed: None };
        self.counters.established += 1;
        let agreed = Agreed {
            revision: negotiated.revision.0,
            crc: negotiated.crc,
            ird: negotiated.ird,
            ord: negotiated.ord,
        };
        let local = c.local.unwrap_or(c.remote);
        c.events.push(CmEvent::Established { id, private_data, agreed, local, remote: c.remote });
        self.started(id);
    }

    /// The start-up of a passive connection is over, one way or the other.
    fn started(&mut self, id: CmId) {
        let listener = self.conns.get_mut(&id).and_then(|c| c.listener.take());
        if let Some(l) = listener.and_then(|l| self.listeners.get_mut(&l)) {
            l.starting -= 1;
        }
    }

    fn disconnect(&mut self, id: CmId) {
        let Some(c) = self.conns.get(&id) else { return };
        match (&c.phase, c.conn) {
            (Phase::Running { .. }, Some(conn)) => {
                self.commands.push_back((c.worker, Command::Disconnect { conn }));
                self.set_deadline(id, Some(self.now + CLOSE_TIMEOUT));
            }
            (Phase::Closing, _) => {}
            _ => {
                self.counters.cancelled += 1;
                self.fail(id, ConnectFailure::Cancelled);
            }
        }
    }

    fn qp_event(&mut self, id: CmId, event: &QpEvent) {
        let Some(Conn { phase: Phase::Running { why_closed }, .. }) = self.conns.get_mut(&id)
        else {
            return;
        };
        if let QpEvent::Terminated { by, code } = event {
            let (reason, counter) = match by {
                Side::Local => {
                    (DisconnectReason::LocalTerminate(*code), &mut self.counters.terminates_sent)
                }
                Side::Remote => (
                    DisconnectReason::RemoteTerminate(*code),
                    &mut self.counters.terminates_received,
                ),
            };
            *counter += 1;
            why_closed.get_or_insert(reason);
            // The worker closes when the Terminate is out; the peer may not care.
            self.set_deadline(id, Some(self.now + CLOSE_TIMEOUT));
        }
    }

    fn peer_closed(&mut self, id: CmId) {
        let Some(c) = self.conns.get(&id) else { return };
        let Some(conn) = c.conn else { return };
        match c.phase {
            // iWARP has no half-open streams: the peer's end is ours too (RFC 5040 section 6.2).
            Phase::Running { .. } | Phase::Closing => {
                self.commands.push_back((c.worker, Command::Disconnect { conn }));
                self.set_deadline(id, Some(self.now + CLOSE_TIMEOUT));
            }
            _ => self.fail_in(id, ConnectFailure::PeerClosed, End::Orderly),
        }
    }

    fn closed(&mut self, id: CmId, reason: CloseReason) {
        self.set_deadline(id, None);
        self.started(id);
        let Some(c) = self.conns.remove(&id) else { return };
        if let Some(conn) = c.conn {
            self.by_worker.remove(&(c.worker, conn));
            self.commands.push_back((c.worker, Command::Release { conn }));
        }
        match c.phase {
            Phase::Running { why_closed } => {
                let orderly = if reason == CloseReason::Orderly {
                    DisconnectReason::Orderly
                } else {
                    DisconnectReason::Tcp(reason)
                };
                // What was posted and not taken by the worker completes before the event that says
                // that everything has.
                if let Some(qp) = c.qp {
                    qp.kill();
                }
                c.events.push(CmEvent::Disconnected { id, reason: why_closed.unwrap_or(orderly) });
            }
            Phase::Closing => {}
            phase => {
                self.counters.failed += 1;
                if let Some(qp) = c.qp {
                    qp.kill();
                }
                // The application has not been told of a passive connection before its request.
                if !matches!(phase, Phase::AwaitRequest { .. }) {
                    let error = ConnectFailure::Tcp(reason.to_string());
                    c.events.push(CmEvent::ConnectError { id, error });
                }
            }
        }
    }

    /// Ends a connection that is not established with a reset, and says why.
    fn fail(&mut self, id: CmId, error: ConnectFailure) {
        self.fail_in(id, error, End::Reset);
    }

    fn fail_in(&mut self, id: CmId, error: ConnectFailure, end: End) {
        let Some(c) = self.conns.get(&id) else { return };
        if matches!(c.phase, Phase::Closing) {
            return;
        }
        let (events, unknown) = (c.events.clone(), matches!(c.phase, Phase::AwaitRequest { .. }));
        if unknown {
            self.refusals.log(self.now, c.remote, &error);
        }
        self.counters.failed += 1;
        self.give_up(id, end);
        if !unknown {
            events.push(CmEvent::ConnectError { id, error });
        }
    }

    fn give_up(&mut self, id: CmId, end: End) {
        self.set_deadline(id, None);
        self.started(id);
        let Some(c) = self.conns.get_mut(&id) else { return };
        if let Some(qp) = c.qp.take() {
            qp.kill();
        }
        c.phase = Phase::Closing;
        // When the worker has not even begun, the connection is reset once it reports it.
        let Some(conn) = c.conn else { return };
        match end {
            End::Reset => self.commands.push_back((c.worker, Command::Abort { conn })),
            End::Orderly => {
                self.commands.push_back((c.worker, Command::Disconnect { conn }));
                self.set_deadline(id, Some(self.now + CLOSE_TIMEOUT));
            }
        }
    }

    fn send_startup(&mut self, id: CmId, bytes: Vec<u8>) {
        if let Some(Conn { worker, conn: Some(conn), .. }) = self.conns.get(&id) {
            self.commands.push_back((*worker, Command::SendStartup { conn: *conn, bytes }));
        }
    }

    fn set_deadline(&mut self, id: CmId, at: Option<Instant>) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        if let Some(old) = c.deadline.take() {
            self.deadlines.remove(&(old, id));
        }
        if let Some(at) = at {
            c.deadline = Some(at);
            self.deadlines.insert((at, id));
        }
    }
}

/// How a connection ends that is not established.
#[derive(Clone, Copy, Debug)]
enum End {
    /// At once. Whoever breaks a rule, or says nothing, must not hold a place for as long as it likes
    /// not to answer our FIN, nor leave us in TIME-WAIT.
    Reset,
    /// With a FIN: what was sent last (a Reply, a Terminate) is to arrive.
    Orderly,
}

/// How a connection enters FPDU mode, as far as the start-up decides it.
struct FpduStart {
    startup_len: usize,
    reply: Vec<u8>,
    role: Role,
}

/// The address a worker binds to; absent for all of ours.
fn bind(addr: SocketAddr) -> Option<IpAddr> {
    (!addr.ip().is_unspecified()).then(|| addr.ip())
}
