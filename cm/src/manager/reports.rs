//! Reports of workers.

use core::net::SocketAddr;

use heddle_base::Instant;
use heddle_rnic::{Event as RnicEvent, Order, Report};
use heddle_types::{
    AppId, CmId, ConnId, ConnectError, Event, ListenError, ListenFailure, ListenerId, TcpTerms,
    WorkerId,
};

use super::ConnectionManager;
use crate::conn::{ConnInfo, Input, Passive, State};
use crate::dialogue;
use crate::dialogue::Answer;
use crate::notice::Refusal;
use crate::shares::Room;
use crate::small::Stamp;

/// The parts of a new passive connection.
struct Admitted {
    listener: ListenerId,
    app: AppId,
    answer: Box<dyn Answer>,
}

impl ConnectionManager {
    /// Takes a report of a worker. A report about a connection that the manager does not know (any
    /// more) changes nothing.
    pub fn handle_report(&mut self, now: Instant, worker: WorkerId, report: Report) {
        self.now = now;
        if !self.is_running(worker) {
            return;
        }
        match report {
            Report::Listening { token, result } => {
                self.listening(worker, ListenerId(token), result);
            }
            Report::Connecting { token, result } => self.opened(worker, CmId(token), result),
            Report::Entered { conn, result } => {
                self.drive_conn(worker, conn, Input::Entered(result));
            }
            Report::Refused { conn, error } => {
                self.drive_conn(worker, conn, Input::OrderRefused(error));
            }
            Report::Event(event) => self.handle_event(worker, event),
            // The shell passes datagrams to `handle_datagram`, and takes news of links itself.
            Report::Datagram(_) | Report::Link(_) => {}
        }
    }

    fn handle_event(&mut self, worker: WorkerId, event: RnicEvent) {
        match event {
            RnicEvent::Accepted { conn, local, remote } => {
                self.accepted(worker, conn, local, remote);
            }
            RnicEvent::Connected { conn, local } => {
                self.drive_conn(worker, conn, Input::Connected(local));
            }
            RnicEvent::StartupBytes { conn, bytes } => {
                self.drive_conn(worker, conn, Input::Bytes(&bytes));
            }
            RnicEvent::Qp { conn, event } => self.drive_conn(worker, conn, Input::Qp(event)),
            RnicEvent::PeerTerminate { conn, terminate } => {
                self.drive_conn(worker, conn, Input::PeerTerminate(terminate));
            }
            RnicEvent::PeerClosed { conn } => self.drive_conn(worker, conn, Input::PeerClosed),
            RnicEvent::Closed { conn, reason } => {
                self.drive_conn(worker, conn, Input::Closed(reason));
            }
        }
    }

    fn drive_conn(&mut self, worker: WorkerId, conn: ConnId, input: Input<'_>) {
        if let Some(&id) = self.by_worker.get(&(worker, conn)) {
            self.drive(id, input);
        }
    }

    fn listening(&mut self, worker: WorkerId, id: ListenerId, result: Result<(), ListenError>) {
        // The application has taken this listener back, and the workers have the order to stop.
        let Some(l) = self.listeners.get_mut(id) else { return };
        let (app, at, port) = (l.app, l.at(), l.addr.port());
        let answered = l.answered(worker, result);
        self.withdraw(&answered.withdraw, at, port);
        match answered.outcome {
            None => {}
            Some(Ok(())) => self.tell(app, Event::Listening { id }),
            Some(Err(e)) => {
                let error = ListenFailure::Worker(e);
                self.tell(app, Event::ListenFailed { id, error });
                self.forget_listener(id);
            }
        }
    }

    fn opened(&mut self, worker: WorkerId, id: CmId, result: Result<ConnId, ConnectError>) {
        let expected = self.conns.get(&id).is_some_and(|c| {
            c.link.worker == worker && matches!(c.state, State::Opening { .. } | State::Unopened)
        });
        match result {
            Ok(conn) if !expected => self.turn_away(worker, conn),
            Ok(conn) => {
                self.by_worker.insert((worker, conn), id);
                self.drive(id, Input::Opened(Ok(conn)));
            }
            Err(_) if !expected => {}
            Err(e) => drop(self.drive(id, Input::Opened(Err(e)))),
        }
    }

    fn accepted(&mut self, worker: WorkerId, conn: ConnId, local: SocketAddr, remote: SocketAddr) {
        if self.by_worker.contains_key(&(worker, conn)) {
            return;
        }
        let listener = self.listeners.at(local);
        let admitted = listener
            .ok_or(Refusal::NotListening)
            .and_then(|listener| self.admit(worker, listener, remote));
        let Admitted { listener, app, answer } = match admitted {
            Ok(admitted) => admitted,
            Err(reason) => {
                self.turn_away(worker, conn);
                return self.refused(listener, local, remote, reason);
            }
        };
        let Some(params) = self.listeners.get(listener).map(|l| &l.params) else { return };
        let request_timeout = params.request_timeout;
        let passive = Passive {
            listener,
            accept_timeout: params.accept_timeout.into(),
            first_fpdu_timeout: params.first_fpdu_timeout.map(Into::into),
            rtr_timeout: params.rtr_timeout.into(),
        };
        let id = CmId(self.next_passive);
        self.next_passive += 1;
        let link = ConnInfo {
            id,
            app,
            worker,
            conn: Some(conn),
            local: Some(local.into()),
            remote: remote.into(),
            received: 0,
            since: Stamp::of(self.now),
            passive: Some(passive),
            tcp: TcpTerms::default(),
            close_timeout: self.config.close_timeout.into(),
            close_limit: self.config.close_limit.into(),
        };
        self.insert(link, State::AwaitRequest { answer });
        self.set_deadline(id, Some(request_timeout));
    }

    /// Admits a new connection, or returns the reason for its refusal. The peer's own limits come
    /// first, so that no other connection makes room for a peer that is over its limits.
    fn admit(
        &mut self,
        worker: WorkerId,
        listener: ListenerId,
        remote: SocketAddr,
    ) -> Result<Admitted, Refusal> {
        let l = self.listeners.get(listener).ok_or(Refusal::NotListening)?;
        let app = l.app;
        let inside = self.config.ports.is_inside(worker);
        let answer =
            dialogue::answer(&l.params.protocol, inside).map_err(|_| Refusal::NotListening)?;
        if self.draining {
            return Err(Refusal::Draining);
        }
        if self.is_overfull(app) {
            return Err(Refusal::Events);
        }
        l.admit(remote.ip())?;
        // No connection is evicted in vain: both victims are known before either goes.
        let victim = if l.places.len() >= l.params.backlog {
            Some(l.places.to_evict().ok_or(Refusal::Backlog)?)
        } else {
            None
        };
        let tenant = self.tenant(app);
        let room =
            |cm: &Self| cm.workers.get(worker.0).map_or(Room::Full, |w| w.startups.room(tenant));
        let before = room(self);
        if before == Room::Full {
            return Err(Refusal::Startups);
        }
        if let Some(id) = victim {
            self.evict(id);
        }
        // The first victim may have held a place at the worker too, so the worker may have room
        // now.
        if before != Room::Free
            && let Room::After(id) = room(self)
        {
            self.evict(id);
        }
        Ok(Admitted { listener, app, answer })
    }

    fn evict(&mut self, id: CmId) {
        self.fx.counters.backlog_evicted += 1;
        self.drive(id, Input::Evict(Refusal::Evicted));
    }

    /// Resets a connection that no application knows of.
    fn turn_away(&mut self, worker: WorkerId, conn: ConnId) {
        self.orders.push_back((worker, Order::Abort { conn }));
        self.orders.push_back((worker, Order::Release { conn }));
    }
}
