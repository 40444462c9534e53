//! The end of a worker, by a panic as well: its applications are told everything they wait for.
//!
//! A queue pair is in shared memory, and its application may be another process. Whoever waits there
//! is woken by the worker or by nobody. So a worker that goes, for whatever reason, first ends each of
//! its queue pairs as if its connection had ended: what is posted completes as flushed, later posts
//! are refused. Then it says that it has ended, and the control plane tells of the connections.
//!
//! A panic may have left the RNIC in a state in which more panics follow. What the RNIC still knows is
//! asked for once; if that fails, the requests it had taken have no completions, and their completion
//! queues say that some were lost. The rings themselves are ended without it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Worker;

impl Worker {
    fn end_queue_pairs(&mut self) {
        if let Some((conn, app, qp)) = self.entering.take()
            && self.queues.is_free(conn)
        {
            // The panic came between taking the order and carrying it out.
            let _ = guarded(|| self.queues.insert(conn, app, *qp));
        }
        let conns = self.queues.conns();
        let whole = guarded(|| {
            for conn in &conns {
                self.rnic.abort(*conn);
                self.collect_completions();
            }
        });
        for conn in conns {
            let _ = guarded(|| self.flush_qp(conn, whole.is_none()));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end_queue_pairs();
        // In this order: whoever hears of the end finds everything completed, and all orders back that
        // were not carried out.
        self.commands.desert();
        self.reports.end();
    }
}

/// Calls `f`; nothing when it panics. A panic that leaves a destructor while another one unwinds ends
/// the process.
fn guarded<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()
}
