//! The end of a control plane, also by a panic: an application that waits for an event hears that
//! none will come.
//!
//! Each listener and each connection gets its last event from this module, and so does each request
//! that was queued and not looked at; later requests are refused. After a panic the control plane
//! does not use the connection manager any more: the last events follow from the handles alone.
//! Workers without a control plane can neither begin nor end a connection, so they end first, which
//! completes the posted work requests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use heddle_dataplane::NoReport;
use heddle_hub::ControlRequest;
use heddle_types::{
    CmId, ConnectFailure, DisconnectReason, Event, ListenFailure, ListenerId, QpFate,
};
use heddle_verbs::{EventQueue, Qp, TakenEvents};

use super::{Conn, Control, ThreadRequest};

/// Time that the workers have to end. A worker that takes longer does not run.
const PATIENCE: Duration = Duration::from_secs(1);

impl Control {
    /// Ends the control plane after a panic: waits until the workers, which already have the order
    /// to end, have ended, and sends the last events.
    pub(crate) fn end_after_panic(&mut self) {
        let until = Instant::now() + PATIENCE;
        while !self.workers_have_ended() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.end();
    }

    /// Takes the workers' reports, so that no worker waits for room. Returns true if all workers
    /// have ended.
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

    /// Reports to every waiting application that the control plane has ended.
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

    /// Answers a request that will not be carried out.
    fn refuse(
        &mut self,
        request: &heddle_types::Request,
        qp: Option<Qp>,
        events: Option<EventQueue>,
    ) {
        match *request {
            heddle_types::Request::Listen { id, .. } => {
                if let Some(events) = events {
                    tell_no_listener(id, &events);
                }
            }
            heddle_types::Request::Connect { id, .. }
            | heddle_types::Request::Accept { id, .. } => {
                let known = self.conns.remove(&id).map(|c| c.events);
                let fate = qp.as_ref().map_or(QpFate::NoQp, |qp| QpFate::Free(qp.qpn()));
                if let Some(qp) = qp {
                    qp.unclaim();
                }
                if let Some(events) = events.or(known) {
                    tell_no_connection(id, fate, &events);
                }
            }
            // No application waits for an answer to the other requests.
            _ => {}
        }
    }

    fn end_conn(&mut self, id: CmId, c: &Conn) {
        let qp = c.qp.and_then(|qpn| self.qps.remove(&qpn));
        // A queue pair that a worker has had is dead now.
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
                c.events.push(event, &TakenEvents::default());
            }
            _ => tell_no_connection(id, fate, &c.events),
        }
    }
}

fn tell_no_listener(id: ListenerId, events: &EventQueue) {
    let error = ListenFailure::ControlLost;
    events.push(Event::ListenFailed { id, error }, &TakenEvents::default());
}

fn tell_no_connection(id: CmId, qp: QpFate, events: &EventQueue) {
    let error = ConnectFailure::ControlLost;
    events.push(Event::ConnectError { id, error, qp }, &TakenEvents::default());
}

impl Drop for Control {
    /// Reports the ends to applications. An RNIC that is stopped ends its workers first, so their
    /// ends come first, and then the control plane's end for everything that is left.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if !std::thread::panicking() {
            // A panic here must not leave any application waiting.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                self.poll(self.now);
                // The second turn takes the requests that waited for a worker, because that worker
                // is known to have ended now.
                self.poll(self.now);
            }));
        }
        self.end();
    }
}
