//! A line on stderr that says how far a run is.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heddle::perf::progress::Progress;

/// The line; it goes away when dropped.
pub(crate) struct Line {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// On a terminal the line is written over again and again.
const TERMINAL: Duration = Duration::from_millis(500);
/// Elsewhere there is a new line now and then.
const FILE: Duration = Duration::from_secs(10);

impl Line {
    /// Shows `what` and the operations `progress` counts, unless `quiet`.
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
                // Nobody to tell.
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
        // Without the thread there is no line, and that is all.
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
