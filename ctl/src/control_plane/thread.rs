//! The thread of a control plane.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use heddle_dataplane::{Clock, Stop};
use heddle_rings::wakeup::WorkerWakers;

use super::Control;
use crate::counters::CtlCounters;

/// The thread of a control plane; dropping the handle stops and ends the thread.
#[derive(Debug)]
pub(crate) struct ControlThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<CtlCounters>>,
}

/// Longest sleep of the control thread, and thus the longest delay of its end.
const NAP: Duration = Duration::from_millis(100);

impl ControlThread {
    /// Starts the thread. If the control plane panics, the thread sets `orphaned`, which ends the
    /// workers, wakes those that sleep, and then sends all last events.
    pub(crate) fn spawn(
        mut control: Control,
        clock: Clock,
        orphaned: Stop,
        wakers: Option<Arc<WorkerWakers>>,
    ) -> std::io::Result<ControlThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = stop.clone();
        let thread = std::thread::Builder::new().name("heddle-ctl".into()).spawn(move || {
            let run = catch_unwind(AssertUnwindSafe(|| {
                while !theirs.load(Ordering::Relaxed) {
                    if !control.poll(clock.now()) {
                        control.wait(clock.now(), NAP);
                    }
                }
            }));
            if run.is_err() {
                tracing::error!("the control thread panicked: all connections are lost");
                orphaned.set();
                if let Some(wakers) = &wakers {
                    wakers.wake_all();
                }
                control.end_after_panic();
            }
            control.counters()
        })?;
        Ok(ControlThread { stop, thread: Some(thread) })
    }

    /// Ends the thread, and returns the counters of the control plane.
    pub(crate) fn stop(mut self) -> CtlCounters {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<CtlCounters> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        self.end();
    }
}
