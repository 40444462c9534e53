//! The end of a worker, also by a panic: its applications get every completion that they wait for.
//!
//! A queue pair is in shared memory, and its application may be another process. If that
//! application waits, only the worker can wake it. So a worker that ends, for whatever reason,
//! first ends each of its queue pairs as if its connection had ended: posted requests complete as
//! flushed, and later posts fail. Then the worker reports its end, and the control plane reports
//! the end of the connections.
//!
//! A panic may have left the engine in a state in which more panics follow. The worker asks once for
//! everything that the engine still knows. If that fails, the requests that the engine had taken
//! have no completions, and their completion queues report that some were lost. The worker ends the
//! rings themselves without the engine.
//!
//! Peers learn of the end as well ([`Worker::end`]). As long as the engine answers, the worker
//! resets its connections. Then the worker replaces the engine by one that has no connections and
//! accepts none ([`Engine::closed`]), on the same queues of the port, and [`Worker::poll_closed`]
//! gives this engine the thread. The engine of iWARP over TCP answers ARP then, and answers frames
//! for the former connections, also if their reset was lost or never made, with RST (RFC 9293
//! section 3.10.7.1).

use std::panic::{AssertUnwindSafe, catch_unwind};

use heddle_engine::Engine;

use super::Worker;
use crate::rx::RxMbuf;

impl<E: Engine<Frame = RxMbuf>> Worker<E> {
    /// Ends all queue pairs; returns true if the engine has ended its connections as well.
    fn end_queue_pairs(&mut self) -> bool {
        if let Some((conn, app, qp)) = self.entering.take()
            && self.queues.is_free(conn)
        {
            // The panic came after the worker took the order and before it carried the order out.
            let _ = guarded(|| self.queues.insert(conn, app, *qp));
        }
        let conns = self.queues.conns();
        let whole = guarded(|| {
            for conn in &conns {
                self.engine.abort(*conn);
                self.collect_completions();
            }
        });
        for conn in conns {
            let _ = guarded(|| self.flush_qp(conn, whole.is_none()));
        }
        whole.is_some()
    }
}

/// Turns in which the worker sends resets, each of [`TX_BURST`](super::TX_BURST) frames.
const RESET_TURNS: usize = 1024;

impl<E: Engine<Frame = RxMbuf>> Worker<E> {
    /// Ends the worker by a defect, its own (`panicked`) or the control plane's, after its thread
    /// has caught the panic: ends queue pairs and reports as a drop does, and resets peers. After
    /// this call, the worker can only [`poll_closed`](Worker::poll_closed).
    pub fn end(&mut self, panicked: bool) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        // Drop the work that the panic interrupted: a frame that was being sent may be incomplete.
        self.frames.clear();
        self.received.clear();
        self.tx.clear();
        if self.end_queue_pairs() {
            let _ = guarded(|| self.reset_peers());
        }
        self.tell_end(panicked);
        if let Some(fresh) = guarded(|| E::closed(&self.config)) {
            let old = std::mem::replace(&mut self.engine, fresh);
            // The old engine may panic; what it cannot give back is lost.
            let _ = guarded(|| drop(old));
        }
    }

    /// Takes one turn of a worker that has ended: it answers strays with RST, and ARP and echo
    /// requests as ever. Returns true if there was something to do.
    pub fn poll_closed(&mut self) -> bool {
        let now = self.clock.now();
        let mut busy = self.receive();
        // No connection is left whose work could wait for the frames of strangers.
        self.handle_frames(now, true);
        if self.engine.is_due(now) {
            self.engine.handle_timeouts(now);
        }
        busy |= self.transmit(now);
        self.mem.quiescent();
        busy
    }

    /// Sends the resets of the connections that were just aborted.
    fn reset_peers(&mut self) {
        let now = self.clock.now();
        for _ in 0..RESET_TURNS {
            if !self.transmit(now) {
                break;
            }
        }
    }

    /// Reports the end, in this order: a control plane that learns of the end finds everything
    /// completed, and gets back all orders that were not carried out.
    fn tell_end(&mut self, panicked: bool) {
        self.commands.desert();
        self.reports.end(panicked);
    }
}

impl<E: Engine<Frame = RxMbuf>> Drop for Worker<E> {
    fn drop(&mut self) {
        if !self.ended {
            self.end_queue_pairs();
            self.tell_end(std::thread::panicking());
        }
    }
}

/// Calls `f`; returns `None` if it panics. A panic that leaves a destructor while another panic
/// unwinds ends the process.
fn guarded<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()
}
