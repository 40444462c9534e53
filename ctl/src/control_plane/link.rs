//! The control plane's link to a worker.

use std::collections::{BTreeSet, VecDeque};

use heddle_dataplane::{
    Command, CommandSender, NoReport, ReportReceiver, WorkerReport, WorkerSnapshot,
};
use heddle_types::ConnId;

use crate::ask::Reply;

/// Questions of each kind that a worker may leave unanswered. Further questions are refused: a
/// worker that does not answer would otherwise fill its ring, and applications would wait for it.
const QUESTIONS: usize = 64;

/// The control plane's ends of the rings to one worker, and its orders and questions that are under
/// way.
#[derive(Debug)]
pub(crate) struct WorkerLink {
    /// Absent once the worker is known to have ended.
    rings: Option<(CommandSender, ReportReceiver)>,
    /// Orders that the worker's ring had no room for: a few for each connection, see
    /// [`Control::poll`](super::Control::poll).
    backlog: VecDeque<Command>,
    /// Receivers of snapshots, in the order in which the snapshots were ordered.
    snapshots: VecDeque<Reply<Box<WorkerSnapshot>>>,
    /// Numbers of the lists of connections that wait for an answer, in the order of the questions.
    inspections: VecDeque<u64>,
}

impl WorkerLink {
    pub(crate) fn new(commands: CommandSender, reports: ReportReceiver) -> WorkerLink {
        let rings = Some((commands, reports));
        let (backlog, snapshots) = (VecDeque::new(), VecDeque::new());
        WorkerLink { rings, backlog, snapshots, inspections: VecDeque::new() }
    }

    /// Returns true if the worker has not ended, as far as the control plane knows.
    pub(super) fn is_up(&self) -> bool {
        self.rings.is_some()
    }

    /// Returns true if there is a report, or a notice of the worker's end.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.rings.as_ref().is_some_and(|(_, reports)| reports.has_news())
    }

    /// Returns true if there are orders that do not fit into its ring.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Returns the number of those orders.
    #[cfg(test)]
    pub(super) fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    /// Queues an order for [`send`](WorkerLink::send); drops it if the worker has ended.
    pub(super) fn order(&mut self, command: Command) {
        if self.is_up() {
            self.backlog.push_back(command);
        }
    }

    /// Sends the orders for which the ring has room; returns false if more are left.
    pub(super) fn send(&mut self) -> bool {
        let Some((commands, _)) = &mut self.rings else { return true };
        while let Some(command) = self.backlog.pop_front() {
            if let Err(command) = commands.send(command) {
                self.backlog.push_front(*command);
                return false;
            }
        }
        true
    }

    /// Wakes the worker if it sleeps.
    pub(super) fn wake(&self) {
        if let Some((commands, _)) = &self.rings {
            commands.wake();
        }
    }

    /// Returns the next report.
    pub(super) fn recv(&mut self) -> Result<WorkerReport, NoReport> {
        self.rings.as_mut().map_or(Err(NoReport::Yet), |(_, reports)| reports.recv())
    }

    /// Orders a snapshot. If the worker has ended, or has left [`QUESTIONS`] unanswered, `reply` is
    /// dropped, which ends the wait for it.
    pub(super) fn ask_snapshot(&mut self, reply: Reply<Box<WorkerSnapshot>>) {
        if self.is_up() && self.snapshots.len() < QUESTIONS {
            self.snapshots.push_back(reply);
            self.order(Command::Snapshot);
        }
    }

    /// Answers the oldest order of a snapshot.
    pub(super) fn answer(&mut self, snapshot: Box<WorkerSnapshot>) {
        if let Some(reply) = self.snapshots.pop_front() {
            reply.answer(snapshot);
        }
    }

    /// Orders the worker's facts about `conns`, for the list `number`; returns false if the
    /// worker has ended, or has left [`QUESTIONS`] unanswered.
    pub(super) fn ask_about(&mut self, number: u64, conns: Box<[ConnId]>) -> bool {
        let asked = self.is_up() && self.inspections.len() < QUESTIONS;
        if asked {
            self.inspections.push_back(number);
            self.order(Command::Inspect(conns));
        }
        asked
    }

    /// Returns the number of the list that the worker's answer is for: the oldest that waits.
    pub(super) fn answered(&mut self) -> Option<u64> {
        self.inspections.pop_front()
    }

    /// Drops the rings of a worker that has ended, and everything that waits for the worker.
    /// Returns the connections whose queue pairs the worker has never had, although it was ordered
    /// to run them.
    pub(super) fn lose(&mut self) -> BTreeSet<ConnId> {
        let reclaimed = self
            .rings
            .take()
            .into_iter()
            .flat_map(|(mut commands, _)| std::iter::from_fn(move || commands.reclaim()));
        let conn = |command| match command {
            Command::Enter { conn, .. } => Some(conn),
            _ => None,
        };
        let conns = reclaimed.chain(self.backlog.drain(..)).filter_map(conn).collect();
        self.snapshots.clear();
        conns
    }
}
