//! The end of a control plane, by a panic as well: whoever waits for an event hears that there will be
//! none.
//!
//! Each listener and each connection gets its last event from here, and so does each request that
//! was queued and not looked at; later ones are refused. After a panic the connection manager is not
//! asked any more: what is told follows from the handles alone. Workers without a control plane can
//! neither begin nor end a connection, so they end first, which completes what is posted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use heddle_cm::{CmId, ConnectFailure, DisconnectReason, Event, ListenFailure, ListenerId, QpFate};
use heddle_dataplane::NoReport;
use heddle_verbs::device::ControlRequest;
use heddle_verbs::{EventQueue, Qp, Taken};

use super::{Conn, Control, ThreadRequest};

/// How long the workers may take to end. One that takes longer does not run.
const PATIENCE: Duration = Duration::from_secs(1);

impl Control {
    /// After a panic: waits until the workers, which have been told to, have ended, and tells everybody.
    pub(crate) fn end_after_panic(&mut self) {
        let until = Instant::now() + PATIENCE;
        while !self.workers_have_ended() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.end();
    }

    /// Takes what workers report, so that none waits for room, and looks for their ends.
    fn workers_have_ended(&mut self) -> bool {
        self.links.iter_mut().fold(true, |all, link| {
            let end = loop {
                match link.recv() {
                    Ok(_) => {}
                    Err(end) => break end,
                }
            };
            all & (!link.is_up() || matches!(end, NoReport::Ended { .. }))
        })
    }

    /// Tells everybody who waits that the control plane has ended.
    fn end(&mut self) {
        self.over = true;
        self.requests.close();
        while let Some(request) = self.requests.take() {
            if let ThreadRequest::Device(ControlRequest::Cm { request, qp, events, .. }) = request {
                self.refuse(&request, qp, events);
            }
        }
        self.board.end();
        for (id, (_, events)) in self.listeners.drain() {
            tell_no_listener(id, &events);
        }
        for (id, c) in std::mem::take(&mut self.conns) {
            self.end_conn(id, &c);
        }
    }

    /// A request that nobody carries out any more.
    fn refuse(&mut self, request: &heddle_cm::Request, qp: Option<Qp>, events: Option<EventQueue>) {
        match *request {
            heddle_cm::Request::Listen { id, .. } => {
                if let Some(events) = events {
                    tell_no_listener(id, &events);
                }
            }
            heddle_cm::Request::Connect { id, .. } | heddle_cm::Request::Accept { id, .. } => {
                let known = self.conns.remove(&id).map(|c| c.events);
                let fate = qp.as_ref().map_or(QpFate::NoQp, |qp| QpFate::Free(qp.qpn()));
                if let Some(qp) = qp {
                    qp.unclaim();
                }
                if let Some(events) = events.or(known) {
                    tell_no_connection(id, fate, &events);
                }
            }
            // Nobody waits for an answer.
            _ => {}
        }
    }

    fn end_conn(&mut self, id: CmId, c: &Conn) {
        let qp = c.qp.and_then(|qpn| self.qps.remove(&qpn));
        // One that a worker has had is dead now.
        let fate = match &qp {
            None => QpFate::NoQp,
            Some(qp) if c.established || qp.is_dead() => {
                qp.set_over();
                QpFate::Spent(qp.qpn())
            }
            Some(qp) => {
                qp.unclaim();
                QpFate::Free(qp.qpn())
            }
        };
        match (c.established, c.qp) {
            (true, Some(qpn)) => {
                let (reason, terminate) = (DisconnectReason::ControlLost, None);
                let event = Event::Disconnected { id, qpn, reason, terminate };
                c.events.push(event, &Taken::default());
            }
            _ => tell_no_connection(id, fate, &c.events),
        }
    }
}

fn tell_no_listener(id: ListenerId, events: &EventQueue) {
    let error = ListenFailure::ControlLost;
    events.push(Event::ListenFailed { id, error }, &Taken::default());
}

fn tell_no_connection(id: CmId, qp: QpFate, events: &EventQueue) {
    let error = ConnectFailure::ControlLost;
    events.push(Event::ConnectError { id, error, qp }, &Taken::default());
}

impl Drop for Control {
    /// An RNIC that is stopped ends its workers first: applications are told of those, and what is left
    /// is told of the control plane's end.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if !std::thread::panicking() {
            // A panic here is no reason to leave anybody waiting.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                self.poll(self.now);
                // Requests that waited behind a worker, which is known to be gone now.
                self.poll(self.now);
            }));
        }
        self.end();
    }
}
