//! The lines of the intervals of a run, while it goes on.

use std::io::{Write as _, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use heddle_perf::progress::Progress;
use heddle_perf::report::{IntervalReport, LatencyKind};

use super::super::say;

/// How often the thread looks for intervals that have ended.
const LOOK: Duration = Duration::from_millis(50);

/// The lines; dropping them shows the last ones.
pub(super) struct Intervals {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Intervals {
    /// Shows the intervals of a run with messages of `size` bytes that `progress` holds; on stderr
    /// if results go to standard output.
    pub(super) fn start(
        progress: Progress,
        size: u32,
        kind: LatencyKind,
        to_stderr: bool,
    ) -> Intervals {
        let (stop, stopped) = channel::<()>();
        let show = move || {
            let mut shown = 0;
            loop {
                let over = stopped.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout);
                for interval in progress.intervals_from(shown) {
                    shown += 1;
                    let line = format!("{}\n", IntervalReport::of(&interval, size, kind).line());
                    if to_stderr {
                        // The process has no other place to report that stderr is closed.
                        let _ = stderr().write_all(line.as_bytes());
                    } else {
                        say(&line);
                    }
                }
                if over {
                    return;
                }
            }
        };
        // If the thread cannot start, the report has the intervals nevertheless.
        let thread = std::thread::Builder::new().name("heddle-intervals".into()).spawn(show).ok();
        Intervals { stop: Some(stop), thread }
    }
}

impl Drop for Intervals {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
