//! What the control plane and a worker say to each other, through bounded rings that never make either
//! wait.

use heddle_cm::AppId;
use heddle_rnic::{FpduMode, Order, Report};
use heddle_tcp::{ConnId, RxDatagram};
use heddle_verbs::Waker;
use heddle_verbs::cq::CqLink;
use heddle_verbs::wakeup::WorkerWaker;
use heddle_verbs::worker::WorkerQp;

use super::queues::Doorbells;
use super::ring::{Consumer, End, Producer, ring};
use super::{ConnFacts, DATAGRAMS, RING, WorkerSnapshot};

/// An order to a worker, carried out in turn with the others.
#[derive(Debug)]
pub enum Command {
    /// One for its RNIC; not [`Order::EnterFpduMode`].
    Order(Order),
    /// End the start-up and run a queue pair; [`Report::Entered`](heddle_rnic::Report::Entered)
    /// answers.
    EnterFpduMode {
        /// The connection.
        conn: ConnId,
        /// How.
        mode: Box<FpduMode>,
        /// Whose queue pair it is.
        app: AppId,
        /// The queue pair.
        qp: Box<WorkerQp>,
    },
    /// Flush a queue pair that has no connection.
    FlushQp {
        /// Whose it is.
        app: AppId,
        /// The queue pair.
        qp: Box<WorkerQp>,
    },
    /// Write the completions of this queue where it has room now.
    ResizeCq {
        /// Whose it is.
        app: AppId,
        /// Where.
        link: CqLink,
    },
    /// Hear the doorbells of an application.
    OpenApp(Doorbells),
    /// Hear them no more.
    CloseApp {
        /// Which.
        app: AppId,
    },
    /// Answer with everything counted: one [`WorkerReport::Snapshot`] for each, after some turns.
    Snapshot,
    /// Answer with what is known of these connections, [`INSPECT_MAX`](super::INSPECT_MAX) at most:
    /// one [`WorkerReport::Inspected`] for each, in this turn.
    Inspect(Box<[ConnId]>),
}

/// What a worker tells the control plane.
#[derive(Debug)]
pub enum WorkerReport {
    /// A report of its RNIC.
    Rnic(Report),
    /// Everything it has counted, as it was asked.
    Snapshot(Box<WorkerSnapshot>),
    /// How connections fare, as it was asked. Those that are gone are not in it.
    Inspected(Vec<ConnFacts>),
}

/// Why there is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReport {
    /// There is none at this moment.
    Yet,
    /// The worker has ended: there will be none. All its queue pairs have ended before.
    Ended {
        /// By a defect.
        panicked: bool,
    },
}

/// The control plane's end of the ring of orders; it has the only one.
#[derive(Debug)]
pub struct CommandSender {
    pub(super) ring: Producer<Command>,
    /// Wakes the worker's thread.
    waker: Option<WorkerWaker>,
}

impl CommandSender {
    pub(super) fn new(ring: Producer<Command>) -> CommandSender {
        CommandSender { ring, waker: None }
    }

    /// The same, whose orders wake the worker's thread should it sleep.
    #[must_use]
    pub fn waking(self, waker: WorkerWaker) -> CommandSender {
        CommandSender { waker: Some(waker), ..self }
    }

    /// Queues an order; hands it back when the ring is full.
    pub fn send(&mut self, command: Command) -> Result<(), Box<Command>> {
        self.ring.push(command).map_err(Box::new)?;
        self.wake();
        Ok(())
    }

    /// Has the worker take its turn should it sleep.
    pub fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// The oldest order that was not carried out and never will be: the worker has ended.
    pub fn reclaim(&mut self) -> Option<Command> {
        self.ring.reclaim()
    }
}

/// The control plane's end of the rings of reports and of datagrams.
#[derive(Debug)]
pub struct ReportReceiver {
    reports: Consumer<WorkerReport>,
    datagrams: Consumer<RxDatagram>,
}

impl ReportReceiver {
    /// The oldest report; datagrams come after all else that waits.
    ///
    /// # Errors
    /// [`NoReport`].
    pub fn recv(&mut self) -> Result<WorkerReport, NoReport> {
        if let Some(report) = self.reports.pop() {
            return Ok(report);
        }
        if let Some(datagram) = self.datagrams.pop() {
            return Ok(WorkerReport::Rnic(Report::Datagram(Box::new(datagram))));
        }
        // One may have come between the two looks: then there is no end yet.
        Err(match self.reports.end() {
            None => NoReport::Yet,
            Some(how) => NoReport::Ended { panicked: how == End::Panicked },
        })
    }

    /// Whether [`recv`](ReportReceiver::recv) has something to say: a report, or that there will be
    /// none.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.reports.is_empty() || !self.datagrams.is_empty() || self.reports.end().is_some()
    }
}

/// The rings from a worker to the control plane: reports, and datagrams of anybody, which so keep no
/// report waiting.
pub(super) fn reports(waker: Option<Waker>) -> (ReportSender, ReportReceiver) {
    let (reports, reports_out) = ring(RING);
    let (datagrams, datagrams_out) = ring(DATAGRAMS);
    let receiver = ReportReceiver { reports: reports_out, datagrams: datagrams_out };
    (ReportSender { ring: reports, datagrams, waker }, receiver)
}

/// The worker's end of the rings of reports and of datagrams.
#[derive(Debug)]
pub(super) struct ReportSender {
    ring: Producer<WorkerReport>,
    datagrams: Producer<RxDatagram>,
    /// Of the control plane's thread, if it has one.
    waker: Option<Waker>,
}

impl ReportSender {
    /// Whether a report would have to wait. With nobody there to hear it it need not.
    pub(super) fn is_full(&self) -> bool {
        self.ring.is_full() && !self.ring.is_deserted()
    }

    /// Sends a datagram; false when there is no room. Those of strangers leave half of it to those of
    /// connections.
    pub(super) fn send_datagram(&mut self, datagram: RxDatagram) -> bool {
        let has_room = datagram.known || !self.datagrams.is_half_full();
        let sent = has_room && self.datagrams.push(datagram).is_ok();
        if sent {
            self.wake();
        }
        sent
    }

    /// Sends a report. The caller has seen that there is room.
    pub(super) fn send(&mut self, report: WorkerReport) {
        let sent = self.ring.push(report);
        debug_assert!(sent.is_ok() || self.ring.is_deserted());
        self.wake();
    }

    /// Says that there will be no more, and whether that is because of a panic.
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
