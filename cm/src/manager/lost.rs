//! What becomes of everything a worker had when it has ended.

use std::collections::BTreeSet;

use heddle_base::Instant;
use heddle_tcp::ConnId;

use super::ConnectionManager;
use crate::conn::Input;
use crate::event::{Event, ListenFailure};
use crate::id::WorkerId;

impl ConnectionManager {
    /// A worker has ended, by a defect or because it was stopped: every connection it had is over,
    /// and so is every listener of which it was the last worker. It is to be called after all reports
    /// of the worker; those that come later count for nothing.
    ///
    /// `untouched` are the connections of which it was ordered to enter FPDU mode and never took
    /// the order: their queue pairs may be used again. It takes time that grows with the number of
    /// all connections.
    pub fn handle_worker_lost(
        &mut self,
        now: Instant,
        worker: WorkerId,
        untouched: &BTreeSet<ConnId>,
    ) {
        self.now = now;
        if !self.is_running(worker) {
            return;
        }
        self.lost.insert(worker);
        self.orders.retain(|(w, _)| *w != worker);
        let conns: Vec<_> = self
            .conns
            .iter()
            .filter(|(_, c)| c.link.worker == worker)
            .map(|(id, c)| (*id, !c.link.conn.is_some_and(|conn| untouched.contains(&conn))))
            .collect();
        for (id, touched) in conns {
            self.drive(id, Input::WorkerLost { touched });
        }
        // Afterwards: those that wait for a listener's application are gone, and not evicted.
        for id in self.listeners.ids() {
            let Some(l) = self.listeners.get(id) else { continue };
            let last = !l.workers().iter().any(|w| self.is_running(*w));
            if !l.workers().contains(&worker) {
                continue;
            }
            let Some(l) = self.listeners.get_mut(id) else { continue };
            let app = l.app;
            let error = match l.worker_lost(worker) {
                _ if last => ListenFailure::WorkerLost,
                Some(Ok(())) => {
                    self.tell(app, Event::Listening { id });
                    continue;
                }
                Some(Err(e)) => ListenFailure::Worker(e),
                None => continue,
            };
            self.tell(app, Event::ListenFailed { id, error });
            self.forget_listener(id);
        }
    }

    /// Whether there is such a worker, and it has not ended.
    pub(super) fn is_running(&self, worker: WorkerId) -> bool {
        worker.0 < self.workers.len() && !self.lost.contains(&worker)
    }

    /// The workers of a port that have not ended.
    pub(super) fn workers_at(&self, port: usize) -> impl Iterator<Item = WorkerId> {
        self.config.ports.workers_of(port).filter(|w| self.is_running(*w))
    }

    /// The workers that have not ended.
    pub(super) fn running_workers(&self) -> impl Iterator<Item = WorkerId> {
        (0..self.workers.len()).map(WorkerId).filter(|w| !self.lost.contains(w))
    }
}
