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
//!
//! Peers are told as well ([`Worker::end`]). As long as the RNIC answers it resets its connections.
//! Then it is replaced by one that has none and takes none, on the same queues of the port, and to that
//! [`Worker::poll_closed`] gives the thread: it answers ARP, and what comes for the connections that
//! were, also when their reset was lost or never made, with RST (RFC 9293 section 3.10.7.1).

use std::panic::{AssertUnwindSafe, catch_unwind};

use std::sync::Arc;

use heddle_iwarp::MrTable;
use heddle_rnic::{Rnic, RnicConfig};
use heddle_tcp::StackConfig;

use super::Worker;

impl Worker {
    /// True when the RNIC has ended its connections as well.
    fn end_queue_pairs(&mut self) -> bool {
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
        whole.is_some()
    }
}

/// Turns in which resets are sent: each is of [`TX_BURST`](super::TX_BURST) frames.
const FAREWELL: usize = 1024;

impl Worker {
    /// Ends the worker by a defect, its own (`panicked`) or the control plane's, after its thread has
    /// caught the panic: queue pairs and reports as a drop ends them, and peers are reset.
    /// [`poll_closed`](Worker::poll_closed) is what it can do from here on.
    pub fn end(&mut self, panicked: bool) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        // What the panic interrupted. A frame that was being sent may be half of one.
        self.frames.clear();
        self.done.clear();
        self.tx.clear();
        if self.end_queue_pairs() {
            let _ = guarded(|| self.reset_peers());
        }
        self.tell_end(panicked);
        let closed = RnicConfig {
            stack: StackConfig { max_conns: 1, ..self.closed.stack.clone() },
            ..*self.closed
        };
        let mrs = Arc::new(MrTable::new(&closed.stack.seed, 1));
        if let Some(fresh) = guarded(|| Rnic::new(closed, mrs)) {
            let old = std::mem::replace(&mut self.rnic, fresh);
            // What it cannot give back is lost.
            let _ = guarded(|| drop(old));
        }
    }

    /// One turn of a worker that has ended: strays are answered with RST, ARP and echo requests as ever.
    /// True when there was something.
    pub fn poll_closed(&mut self) -> bool {
        let now = self.clock.now();
        let mut busy = self.receive();
        self.handle_frames(now);
        if self.rnic.is_due(now) {
            self.rnic.handle_timeouts(now);
        }
        busy |= self.transmit(now);
        self.mem.quiescent();
        busy
    }

    /// Sends what the connections that were just aborted have to say.
    fn reset_peers(&mut self) {
        let now = self.clock.now();
        for _ in 0..FAREWELL {
            if !self.transmit(now) {
                break;
            }
        }
    }

    /// In this order: whoever hears of the end finds everything completed, and all orders back that
    /// were not carried out.
    fn tell_end(&mut self, panicked: bool) {
        self.commands.desert();
        self.reports.end(panicked);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.ended {
            self.end_queue_pairs();
            self.tell_end(std::thread::panicking());
        }
    }
}

/// Calls `f`; nothing when it panics. A panic that leaves a destructor while another one unwinds ends
/// the process.
fn guarded<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()
}
