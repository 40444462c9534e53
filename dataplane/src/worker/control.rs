//! The messages between the control plane and a worker, through bounded rings that never make
//! either wait.

use heddle_engine::Engine;
use heddle_rings::cq::CqLink;
use heddle_rings::wakeup::WorkerWaker;
use heddle_rings::worker::WorkerQp;
use heddle_shm::Waker;
use heddle_types::{AppId, ConnId};

use super::queues::Doorbells;
use super::ring::{Consumer, End, Producer, ring};
use super::{ConnFacts, DATAGRAMS, RING, WorkerSnapshot};

/// An order to a worker, which carries orders out in the order of their arrival.
#[derive(Debug)]
pub enum Command<E: Engine> {
    /// An order for the worker's engine.
    Order(E::Order),
    /// Run a queue pair on a connection; the report of [`Engine::entered`] answers.
    Enter {
        /// The connection, which has no queue pair yet.
        conn: ConnId,
        /// The terms on which both ends have agreed.
        mode: Box<E::Mode>,
        /// The application that owns the queue pair.
        app: AppId,
        /// The worker's end of the queue pair.
        qp: Box<WorkerQp>,
    },
    /// Flush a queue pair that has no connection.
    FlushQp {
        /// The application that owns the queue pair.
        app: AppId,
        /// The worker's end of the queue pair.
        qp: Box<WorkerQp>,
    },
    /// Write the completions of this queue to its new memory from now on.
    ResizeCq {
        /// The application that owns the queue.
        app: AppId,
        /// The queue's new memory.
        link: CqLink,
    },
    /// Listen to the doorbells of an application.
    OpenApp(Doorbells),
    /// Stop listening to the doorbells of an application.
    CloseApp {
        /// The application whose doorbells the worker no longer takes.
        app: AppId,
    },
    /// Report all counters: one [`WorkerReport::Snapshot`] answers each order, after some turns.
    Snapshot,
    /// Report the state of these connections, of [`INSPECT_MAX`](super::INSPECT_MAX) at most: one
    /// [`WorkerReport::Inspected`] answers each order, in the same turn.
    Inspect(Box<[ConnId]>),
}

/// A report from a worker to the control plane.
#[derive(Debug)]
pub enum WorkerReport<E: Engine> {
    /// A report of the worker's engine.
    Engine(E::Report),
    /// All counters of the worker, in answer to [`Command::Snapshot`].
    Snapshot(Box<WorkerSnapshot<E::Counters>>),
    /// The state of connections, in answer to [`Command::Inspect`]. Connections that no longer
    /// exist are left out.
    Inspected(Vec<ConnFacts<E::Facts>>),
}

/// Why there is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReport {
    /// There is none at this moment.
    Yet,
    /// The worker has ended, and there will be no more reports. All its queue pairs have ended
    /// before.
    Ended {
        /// Whether the worker ended by a panic.
        panicked: bool,
    },
}

/// The control plane's end of the ring of orders, which has no other sender.
#[derive(Debug)]
pub struct CommandSender<E: Engine> {
    pub(super) ring: Producer<Command<E>>,
    /// Wakes the worker's thread.
    waker: Option<WorkerWaker>,
}

impl<E: Engine> CommandSender<E> {
    pub(super) fn new(ring: Producer<Command<E>>) -> CommandSender<E> {
        CommandSender { ring, waker: None }
    }

    /// Returns this sender with a waker: its orders wake the worker's thread if the thread sleeps.
    #[must_use]
    pub fn waking(self, waker: WorkerWaker) -> CommandSender<E> {
        CommandSender { waker: Some(waker), ..self }
    }

    /// Queues an order; returns the order if the ring is full.
    pub fn send(&mut self, command: Command<E>) -> Result<(), Box<Command<E>>> {
        self.ring.push(command).map_err(Box::new)?;
        self.wake();
        Ok(())
    }

    /// Makes the worker take its turn if its thread sleeps.
    pub fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Takes back the oldest order that the worker never carries out because it has ended.
    pub fn reclaim(&mut self) -> Option<Command<E>> {
        self.ring.reclaim()
    }
}

/// The control plane's end of the rings of reports and of datagrams.
#[derive(Debug)]
pub struct ReportReceiver<E: Engine> {
    reports: Consumer<WorkerReport<E>>,
    datagrams: Consumer<E::Datagram>,
}

impl<E: Engine> ReportReceiver<E> {
    /// Returns the oldest report; datagrams come after all other reports that wait.
    ///
    /// # Errors
    /// Returns [`NoReport`] if there is no report.
    pub fn recv(&mut self) -> Result<WorkerReport<E>, NoReport> {
        if let Some(report) = self.reports.pop() {
            return Ok(report);
        }
        if let Some(datagram) = self.datagrams.pop() {
            return Ok(WorkerReport::Engine(E::brought(datagram)));
        }
        // A report may have come between the two loads: then this is not the end yet.
        Err(match self.reports.end() {
            None => NoReport::Yet,
            Some(how) => NoReport::Ended { panicked: how == End::Panicked },
        })
    }

    /// Returns true if [`recv`](ReportReceiver::recv) has something to return: a report, or the end
    /// of reports.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.reports.is_empty() || !self.datagrams.is_empty() || self.reports.end().is_some()
    }
}

/// Makes the rings from a worker to the control plane: one for reports, and one for datagrams,
/// which any host may send and which so keep no report waiting.
pub(super) fn reports<E: Engine>(waker: Option<Waker>) -> (ReportSender<E>, ReportReceiver<E>) {
    let (reports, reports_out) = ring(RING);
    let (datagrams, datagrams_out) = ring(DATAGRAMS);
    let receiver = ReportReceiver { reports: reports_out, datagrams: datagrams_out };
    (ReportSender { ring: reports, datagrams, waker }, receiver)
}

/// The worker's end of the rings of reports and of datagrams.
#[derive(Debug)]
pub(super) struct ReportSender<E: Engine> {
    ring: Producer<WorkerReport<E>>,
    datagrams: Producer<E::Datagram>,
    /// The waker of the control plane's thread, if it has one.
    waker: Option<Waker>,
}

impl<E: Engine> ReportSender<E> {
    /// Returns true if a report would have to wait. If the control plane has dropped its end, no
    /// report waits.
    pub(super) fn is_full(&self) -> bool {
        self.ring.is_full() && !self.ring.is_deserted()
    }

    /// Sends a datagram; returns false if there is no room. Datagrams of strangers leave half of
    /// the room to those of connections.
    pub(super) fn send_datagram(&mut self, datagram: E::Datagram) -> bool {
        let has_room = E::is_known(&datagram) || !self.datagrams.is_half_full();
        let sent = has_room && self.datagrams.push(datagram).is_ok();
        if sent {
            self.wake();
        }
        sent
    }

    /// Sends a report. The caller has checked that there is room.
    pub(super) fn send(&mut self, report: WorkerReport<E>) {
        let sent = self.ring.push(report);
        debug_assert!(sent.is_ok() || self.ring.is_deserted());
        self.wake();
    }

    /// Ends the reports, and records whether a panic is the reason.
    pub(super) fn end(&mut self, panicked: bool) {
        self.ring.end(panicked);
        self.wake();
    }

    fn wake(&self) {
        if let Some(w) = &self.waker {
            w.wake();
        }
    }
}
