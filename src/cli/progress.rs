//! A line on stderr that shows the progress of a run.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heddle_perf::progress::Progress;

/// The line; dropping it removes it from the screen.
pub(crate) struct Line {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Interval on a terminal, where each line overwrites the last.
const TERMINAL: Duration = Duration::from_millis(500);
/// Interval elsewhere, where each line is a new one.
const FILE: Duration = Duration::from_secs(10);

impl Line {
    /// Shows `what` and the operations that `progress` counts, unless `quiet`.
    pub(crate) fn start(what: String, progress: Progress, quiet: bool) -> Line {
        if quiet {
            return Line { stop: None, thread: None };
        }
        let (stop, stopped) = channel();
        let show = move || {
            let terminal = stderr().is_terminal();
            let start = Instant::now();
            let mut shown = false;
            let every = if terminal { TERMINAL } else { FILE };
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let seconds = start.elapsed().as_secs();
                let text = format!("{what}: {} operations in {seconds} s", progress.ops());
                // Ignore errors: the process has no other place to report them.
                let _ = if terminal {
                    write!(stderr(), "\r\x1b[K{text}")
                } else {
                    writeln!(stderr(), "{text}")
                };
                shown = true;
            }
            if terminal && shown {
                let _ = write!(stderr(), "\r\x1b[K");
            }
        };
        // If the thread cannot start, the run only lacks its progress line.
        let thread = std::thread::Builder::new().name("heddle-progress".into()).spawn(show).ok();
        Line { stop: Some(stop), thread }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}
