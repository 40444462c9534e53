//! The end of a worker, and of everything it had.

use std::collections::BTreeSet;

use heddle_base::Instant;
use heddle_types::{ConnId, Event, ListenFailure, WorkerId};

use super::ConnectionManager;
use crate::conn::Input;

impl ConnectionManager {
    /// Handles the end of a worker, by a defect or because it was stopped: ends every connection
    /// that the worker had, and every listener whose last worker it was. Call this after all
    /// reports of the worker; the manager ignores later reports.
    ///
    /// `untouched` names the connections for which the worker had, and never took, the order to
    /// enter FPDU mode: their queue pairs may be used again. The call takes time that grows with
    /// the number of all connections.
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
        self.ib_worker_lost(worker);
        // The listeners come after the connections, so that connections that wait for a listener's
        // application end with this reason and are not evicted.
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

    /// Returns true if the worker exists and has not ended.
    pub(super) fn is_running(&self, worker: WorkerId) -> bool {
        worker.0 < self.workers.len() && !self.lost.contains(&worker)
    }

    /// Returns the workers of a port that have not ended.
    pub(super) fn workers_at(&self, port: usize) -> impl Iterator<Item = WorkerId> {
        self.config.ports.workers_of(port).filter(|w| self.is_running(*w))
    }

    /// Returns the workers that have not ended.
    pub(super) fn running_workers(&self) -> impl Iterator<Item = WorkerId> {
        (0..self.workers.len()).map(WorkerId).filter(|w| !self.lost.contains(w))
    }
}
