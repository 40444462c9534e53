//! The last lines of the log, in memory.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};

use heddle_socket::admin::LogLines;

/// Number of lines that are kept, and bytes of each.
const LINES: usize = 1000;
const BYTES: usize = 1024;

static RECENT: Mutex<Ring> = Mutex::new(Ring { lines: VecDeque::new(), dropped: 0 });

struct Ring {
    lines: VecDeque<String>,
    dropped: u64,
}

impl Ring {
    fn push(&mut self, line: &str) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
            self.dropped += 1;
        }
        let mut end = line.len().min(BYTES);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        self.lines.push_back(line[..end].to_owned());
    }
}

/// Returns the lines that are kept.
pub(crate) fn lines() -> LogLines {
    let ring = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    LogLines { lines: ring.lines.iter().cloned().collect(), dropped: ring.dropped }
}

/// Takes the text of one event, and keeps its lines when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.0);
        let mut ring = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
        text.lines().for_each(|line| ring.push(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_ring_keeps_last_lines_and_cuts_long_ones() {
        let mut ring = Ring { lines: VecDeque::new(), dropped: 0 };
        (0..LINES + 3).for_each(|n| ring.push(&n.to_string()));
        assert_eq!((ring.lines.len(), ring.dropped), (LINES, 3));
        assert_eq!(ring.lines.front().map(String::as_str), Some("3"));
        ring.push(&"ä".repeat(BYTES));
        assert_eq!(ring.lines.back().map(String::len), Some(BYTES));
        ring.push(&format!("x{}", "ä".repeat(BYTES)));
        assert_eq!(ring.lines.back().map(String::len), Some(BYTES - 1), "no half character");
    }
}
