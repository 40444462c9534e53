//! Orders of the control plane.

use heddle_base::Instant;
use heddle_engine::{Engine, QueuePair as _, Subject};
use heddle_types::{AppId, ConnId};

use super::queues::let_go;
use super::{Command, Worker, WorkerReport};
use crate::rx::RxMbuf;

impl<E: Engine<Frame = RxMbuf>> Worker<E> {
    /// Takes orders; returns true if there was one.
    #[inline]
    pub(super) fn take_commands(&mut self, now: Instant) -> bool {
        !self.commands.is_empty() && self.carry_all_out(now)
    }

    #[inline(never)]
    fn carry_all_out(&mut self, now: Instant) -> bool {
        // Each order gets one report at most. If there is no room for the report, the order waits
        // in its ring, and if that ring is full too, with the control plane.
        while !self.commands.is_empty() {
            if self.reports_are_full() {
                break;
            }
            if let Some(command) = self.commands.pop() {
                self.carry_out(now, command);
            }
        }
        // Return true also if the orders have to wait, so that an inline control plane gets its
        // turn.
        true
    }

    fn carry_out(&mut self, now: Instant, command: Command<E>) {
        match command {
            Command::Order(order) => {
                let subject = E::subject(&order);
                match subject {
                    Subject::Other => {}
                    Subject::Release(conn) => self.end_qp(conn),
                    // Take all posts first, also more than one turn would take: no request is
                    // posted twice, so the depth of the queues bounds this loop.
                    Subject::Disconnect(conn) => {
                        while self.queues.has_posts(conn) && self.take_from(conn.index()) {}
                    }
                }
                if let Some(report) = self.engine.handle_order(now, order) {
                    self.report(report);
                }
                if let Subject::Disconnect(conn) = subject {
                    self.tell_state(conn);
                }
            }
            Command::Enter { conn, mode, app, qp } => {
                self.entering = Some((conn, app, qp));
                self.enter(conn, *mode);
            }
            Command::FlushQp { app, qp } => self.flush_idle(app, *qp),
            Command::OpenApp(doorbells) => self.queues.open_app(doorbells),
            Command::ResizeCq { app, link } => {
                self.queues.resize_cq(app, &link);
                let_go(link);
            }
            Command::CloseApp { app } => self.queues.close_app(app),
            Command::Snapshot => self.snapshots.ask(),
            Command::Inspect(conns) => {
                let facts = self.inspect(&conns);
                self.reports.send(WorkerReport::Inspected(facts));
            }
        }
    }

    /// Runs the queue pair that is in `entering`. The queue pair stays there until it is in the
    /// table, so that the end of the worker finds it if anything panics.
    fn enter(&mut self, conn: ConnId, mode: E::Mode) {
        let result = if self.queues.is_free(conn) {
            self.engine.enter(conn, mode)
        } else {
            Err(heddle_types::RnicError::NotStartup)
        };
        // A queue pair that the engine refused has not changed.
        let qp = self.entering.take().filter(|_| result.is_ok());
        if let Some((_, app, qp)) = qp {
            if let Some(srq) = self.queues.insert(conn, app, *qp) {
                let shared = self.engine.post_with(conn, |qp| qp.share_receives(srq));
                debug_assert!(shared.is_ok(), "it was made above");
            }
            self.give_share(conn, app);
            // Take the receives first: the first message may have come with the start-up already.
            // The application posts up to the queue pair's own depth, so the loop takes all of
            // them.
            while self.take_from(conn.index()) {}
            self.engine.start(&self.mem, conn);
        }
        self.report(E::entered(conn, result));
    }

    /// Gives a new queue pair the share of its application.
    fn give_share(&mut self, conn: ConnId, app: AppId) {
        let Some(share) = self.queues.share(app).cloned() else { return };
        self.engine.assign(conn, &share);
        if let Some(lane) = self.queues.shares.assign(conn.index(), &share) {
            self.fair.renew(lane);
        }
    }
}
