//! Requests of applications: their queue, and the handling of each.

use crossbeam_channel::Sender;
use heddle_base::Instant;
use heddle_dataplane::{Command, Doorbells, WorkerSnapshot};
use heddle_hub::{ControlPlane, ControlRequest};
use heddle_rings::worker::WorkerQp;
use heddle_types::{
    AppId, CmId, ConnectFailure, Event, ListenFailure, ListenerId, QpFate, RequestError, WorkerId,
};
use heddle_verbs::{DeviceError, DeviceEvent, EventQueue, Qp, Qpn, Sleeper, TakenEvents, Waker};

use super::inbox::{Gate, Inbox};
use super::{Conn, Control};
use crate::ask::{Kill, Question, Reply};
use crate::counters::CtlCounters;

/// Largest number of requests of applications that may wait.
pub(crate) const REQUESTS: usize = 4096;

/// A request to a control plane.
#[derive(Debug)]
pub(crate) enum ThreadRequest {
    /// From an application.
    Device(ControlRequest),
    /// Asks for all counters of a worker. If no answer can come, `reply` is dropped.
    Snapshot { worker: WorkerId, reply: Sender<Box<WorkerSnapshot>> },
    /// From a program that watches the RNIC.
    Ask(Question),
    /// Asks for all counters of the control plane.
    Counters { reply: Sender<Box<CtlCounters>> },
    /// From a test: makes the control plane panic.
    #[cfg(test)]
    Panic,
}

/// The way to a control plane, for applications and for the owner of the RNIC.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    gate: Gate,
    waker: Waker,
}

impl Requests {
    /// Makes the two ends of a queue of [`REQUESTS`], and the object that the control plane sleeps
    /// on.
    pub(crate) fn new() -> (Requests, Inbox, Sleeper) {
        let (gate, inbox) = Inbox::new(REQUESTS);
        let sleeper = Sleeper::new();
        (Requests { gate, waker: sleeper.waker() }, inbox, sleeper)
    }

    /// Returns the waker of the control plane.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) fn send(&self, request: ThreadRequest) -> Result<(), DeviceError> {
        self.gate.send(request)?;
        self.waker.wake();
        Ok(())
    }
}

impl ControlPlane for Requests {
    fn request(&self, request: ControlRequest) -> Result<(), DeviceError> {
        self.send(ThreadRequest::Device(request))
    }
}

/// The object of a request, for the case that the request is refused.
enum Subject {
    None,
    Listener(ListenerId),
    Unlisten(ListenerId),
    Reject(CmId),
    Connect(CmId),
    /// With the caller's event queue, if the connection does not exist to hold that queue.
    Accept(CmId, Option<Qpn>, Option<EventQueue>),
}

impl Control {
    pub(super) fn handle_request(&mut self, now: Instant, request: ThreadRequest) {
        match request {
            ThreadRequest::Device(ControlRequest::Open { app, tenant, share, bells, taken }) => {
                self.cm.set_tenant(app, tenant);
                self.apps.insert(app, taken);
                for link in &mut self.links {
                    link.order(Command::OpenApp(Doorbells::new(app, bells.clone(), share.clone())));
                }
            }
            ThreadRequest::Device(ControlRequest::ResizeCq { app, link }) => {
                for w in &mut self.links {
                    w.order(Command::ResizeCq { app, link: link.clone() });
                }
            }
            ThreadRequest::Device(ControlRequest::FailQp { app, qp }) => self.fail_qp(now, app, qp),
            ThreadRequest::Device(ControlRequest::Cm { app, request, qp, events }) => {
                self.handle_cm(now, app, request, qp, events);
            }
            ThreadRequest::Ask(question) => self.handle_question(now, question),
            #[cfg(test)]
            ThreadRequest::Panic => panic!("on purpose"),
            ThreadRequest::Snapshot { worker, reply } => {
                if let Some(link) = self.links.get_mut(worker.0) {
                    // The asking thread may have stopped waiting.
                    link.ask_snapshot(Reply::new(move |s| drop(reply.try_send(s))));
                }
            }
            ThreadRequest::Counters { reply } => {
                // The asking thread may have stopped waiting.
                let _ = reply.try_send(Box::new(self.counters()));
            }
        }
    }

    fn handle_cm(
        &mut self,
        now: Instant,
        app: AppId,
        request: heddle_types::Request,
        qp: Option<Qp>,
        events: Option<EventQueue>,
    ) {
        // The handles come first, because the manager may send an event about them at once.
        let subject = match &request {
            heddle_types::Request::Listen { id, .. } => {
                if let Some(events) = &events {
                    self.listeners.insert(*id, (app, events.clone()));
                }
                Subject::Listener(*id)
            }
            heddle_types::Request::Connect { id, .. } => {
                if let Some(events) = events {
                    let qp = qp.map(|qp| self.hold(qp));
                    self.conns
                        .insert(*id, Conn { app, events, qp, established: false, agreed: None });
                }
                Subject::Connect(*id)
            }
            heddle_types::Request::Accept { id, .. } => {
                let qp = qp.map(|qp| self.hold(qp));
                match self.conns.get_mut(id) {
                    Some(c) if c.app == app && c.qp.is_none() => {
                        c.qp = qp;
                        c.events = events.unwrap_or_else(|| c.events.clone());
                        Subject::Accept(*id, qp, None)
                    }
                    Some(_) => Subject::Accept(*id, qp, None),
                    None => Subject::Accept(*id, qp, events),
                }
            }
            heddle_types::Request::Unlisten { id } => Subject::Unlisten(*id),
            heddle_types::Request::Reject { id, .. } => Subject::Reject(*id),
            heddle_types::Request::AppGone => {
                self.apps.remove(&app);
                self.failing.retain(|_, of| *of != app);
                // The application gets no more events.
                self.listeners.retain(|_, (a, _)| *a != app);
                let qps = &mut self.qps;
                self.conns.retain(|_, c| {
                    let gone = c.app == app;
                    if let Some(qpn) = c.qp.filter(|_| gone) {
                        qps.remove(&qpn);
                    }
                    !gone
                });
                for link in &mut self.links {
                    link.order(Command::CloseApp { app });
                }
                Subject::None
            }
            _ => Subject::None,
        };
        match self.cm.handle_request(now, app, request) {
            Ok(()) => self.carried_out(subject),
            Err(error) => self.refused(now, app, subject, error),
        }
    }

    /// Ends a queue pair, with its connection if it has one.
    fn fail_qp(&mut self, now: Instant, app: AppId, qp: Qp) {
        let qpn = qp.qpn();
        let of_qp = |(_, c): &(&CmId, &Conn)| c.app == app && c.qp == Some(qpn);
        let conn = self.qps.get(&qpn).and_then(|_| self.conns.iter().find(of_qp));
        match conn.map(|(id, _)| *id) {
            Some(id) => {
                // A connection that is not established leaves the queue pair untouched, so `let_go`
                // flushes it.
                self.failing.insert(qpn, app);
                if !self.kill(now, id, Kill::Reset) {
                    self.failing.remove(&qpn);
                    self.flush(app, &qp);
                }
            }
            None => self.flush(app, &qp),
        }
    }

    /// Orders a worker to flush a queue pair that has no connection.
    pub(super) fn flush(&mut self, app: AppId, qp: &Qp) {
        if !qp.begin_flush() {
            return;
        }
        // If no worker is left, the command and its queue pair are dropped, which also ends the
        // queue pair.
        let command = Command::FlushQp { app, qp: Box::new(WorkerQp::to_flush(qp.ends())) };
        if let Some(link) = self.links.iter_mut().find(|link| link.is_up()) {
            link.order(command);
        }
        if qp.init().srq.is_some() {
            self.board.tell(app, DeviceEvent::LastWqeReached(qp.qpn()));
        }
    }

    /// Forgets an object for which no event follows, after the manager has carried out the request.
    fn carried_out(&mut self, subject: Subject) {
        match subject {
            Subject::Unlisten(id) => {
                // First the application gets the remaining events: that the listener was not up
                // yet, and earlier connection requests.
                self.settle();
                self.listeners.remove(&id);
            }
            Subject::Reject(id) => self.forget_asker(id),
            _ => {}
        }
    }

    /// Forgets a connection that was rejected, because no event follows.
    pub(super) fn forget_asker(&mut self, id: CmId) {
        self.conns.remove(&id);
    }

    fn hold(&mut self, qp: Qp) -> Qpn {
        let qpn = qp.qpn();
        self.qps.insert(qpn, qp);
        qpn
    }

    /// Reports a request that the manager refused at once, and that has changed nothing.
    fn refused(&mut self, now: Instant, app: AppId, subject: Subject, error: RequestError) {
        tracing::debug!(app = app.0, "a request is refused: {error}");
        let (id, events, qp) = match subject {
            Subject::None | Subject::Unlisten(_) => return,
            Subject::Reject(id) => {
                if matches!(error, RequestError::Params(_)) {
                    self.reject(now, app, id);
                }
                return;
            }
            Subject::Listener(id) => {
                let Some((_, events)) = self.listeners.remove(&id) else { return };
                let error = match error {
                    RequestError::Listen(e) => ListenFailure::Worker(e),
                    RequestError::NoWorker => ListenFailure::WorkerLost,
                    _ => ListenFailure::Withdrawn,
                };
                let event = Event::ListenFailed { id, error };
                self.board.note(app, &event, None);
                return events.push(event, &TakenEvents::default());
            }
            Subject::Connect(id) => {
                let Some(c) = self.conns.remove(&id) else { return };
                (id, Some(c.events), c.qp)
            }
            Subject::Accept(id, qp, given) => {
                // An answer to a connection that is over, runs or belongs to another application
                // changes nothing. The queue of connection requests already has the end of the
                // connection; an application that waits on another queue gets the event there.
                let c = self.conns.get(&id);
                let mine = c.is_some_and(|c| c.app == app && c.qp == qp);
                let c = if mine { self.conns.remove(&id) } else { None };
                if mine {
                    self.reject(now, app, id);
                }
                (id, c.map(|c| c.events).or(given), qp)
            }
        };
        if let Some(qpn) = qp {
            self.let_go(qpn, true);
        }
        if let Some(events) = events {
            let qp = qp.map_or(QpFate::NoQp, QpFate::Free);
            let error = match error {
                RequestError::Connect(e) => ConnectFailure::Open(e),
                other => ConnectFailure::Request(other),
            };
            // The manager did not make this event, so it must not count the event as taken.
            events.push(Event::ConnectError { id, error, qp }, &TakenEvents::default());
        }
    }

    /// Rejects a connection whose answer was refused: the application can do no better, and the
    /// peer need not wait.
    fn reject(&mut self, now: Instant, app: AppId, id: CmId) {
        let reject =
            heddle_types::Request::Reject { id, private_data: Vec::new(), needs_ord: None };
        if self.cm.handle_request(now, app, reject).is_ok() {
            self.conns.remove(&id);
        }
    }
}
