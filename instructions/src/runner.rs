//! Runs cases under callgrind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::MEASURED;
use crate::cases::{Case, Unit};

/// The result of callgrind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// Instructions of the measured part, or lines of memory that it brought into the cache.
    pub(crate) counted: u64,
    /// Operations in the measured part.
    pub(crate) ops: u64,
}

impl Count {
    /// Returns the count per operation, rounded.
    pub(crate) fn per_op(self) -> u64 {
        (self.counted + self.ops / 2).checked_div(self.ops).unwrap_or(0)
    }
}

/// Why there is no count.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunnerError {
    /// The program cannot start Valgrind.
    #[error("cannot run valgrind: {0}")]
    Start(#[from] std::io::Error),
    /// Valgrind failed, or the case did.
    #[error("{case} under valgrind: {status}\n{stderr}")]
    Failed {
        /// The case that ran.
        case: Case,
        /// The exit status of Valgrind.
        status: std::process::ExitStatus,
        /// The text that Valgrind and the case wrote to stderr.
        stderr: String,
    },
    /// Callgrind counted nothing.
    #[error("{case}: {what}")]
    NoCount {
        /// The case that ran.
        case: Case,
        /// The reason, for the error message.
        what: &'static str,
    },
}

/// The cache for [`Unit::Lines`]: larger than everything that a turn touches, and smaller than the
/// state of all connections.
const CACHE: &str = "--D1=262144,16,64";

/// Counts `case` with the program `exe`, which runs the case when called with `run CASE`. Callgrind
/// leaves its file at `out`.
pub(crate) fn count(exe: &Path, case: Case, out: &Path) -> Result<Count, RunnerError> {
    let run = Command::new("valgrind")
        // Make libc copy long blocks without `rep movsb`: callgrind counts this single instruction
        // once for each byte.
        .env("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=1073741824")
        .args(["--quiet", "--tool=callgrind", &format!("--toggle-collect={MEASURED}")])
        .args(if case.unit() == Unit::Lines { &["--cache-sim=yes", CACHE][..] } else { &[] })
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(exe)
        .args(["run", &case.to_string()])
        .output()?;
    if !run.status.success() {
        let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
        return Err(RunnerError::Failed { case, status: run.status, stderr });
    }
    let text = std::fs::read_to_string(out)?;
    let none = |what| RunnerError::NoCount { case, what };
    let events: &[&str] = match case.unit() {
        Unit::Instructions => &["Ir"],
        Unit::Lines => &["D1mr", "D1mw"],
    };
    let counted = total(&text, events).ok_or_else(|| none("callgrind's file has no total"))?;
    let ops = String::from_utf8_lossy(&run.stdout).trim().parse().unwrap_or(0);
    match (counted, ops) {
        (0, _) => Err(none("nothing was counted: the function to be counted was not found")),
        (_, 0) => Err(none("the case did not say how many operations it did")),
        _ => Ok(Count { counted, ops }),
    }
}

/// Returns the sum of `events` in all functions together, from callgrind's file.
fn total(text: &str, events: &[&str]) -> Option<u64> {
    let names = text.lines().find_map(|l| l.strip_prefix("events:"))?;
    let counts = text.lines().rev().find_map(|l| l.strip_prefix("totals:"))?;
    let all = names.split_whitespace().zip(counts.split_whitespace());
    let mut found = all.filter(|(name, _)| events.contains(name)).peekable();
    found.peek()?;
    found.map(|(_, n)| n.parse::<u64>().ok()).sum()
}

/// Counts `cases`, as many at a time as there are processors: the count of a case does not depend
/// on the others. Returns the results in the order of `cases`.
pub(crate) fn count_all(
    exe: &Path,
    cases: &[Case],
    dir: &Path,
) -> Vec<(Case, Result<Count, RunnerError>)> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(cases.len()));
    std::thread::scope(|s| {
        for _ in 0..threads.min(cases.len()) {
            s.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&case) = cases.get(i) else { return };
                    let out: PathBuf = dir.join(format!("{case}.callgrind"));
                    let result = count(exe, case, &out);
                    if let Ok(mut done) = done.lock() {
                        done.push((i, (case, result)));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, r)| r).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_runner_reads_totals_of_events_from_callgrind_file() {
        let file = "events: Ir\nsummary: 12\n\nfn=(1) f\n10 12\n\ntotals: 123456\n";
        assert_eq!(total(file, &["Ir"]), Some(123_456));
        assert_eq!(total(file, &["D1mr"]), None);
        let file = "events: Ir Dr Dw D1mr D1mw\ntotals: 9 8 7 6 5\n";
        assert_eq!(total(file, &["D1mr", "D1mw"]), Some(11));
        assert_eq!(total("events: Ir\n", &["Ir"]), None);
        assert_eq!(total("events: Ir\ntotals: many\n", &["Ir"]), None);
    }

    #[test]
    fn test_count_per_operation_is_rounded() {
        let per_op = |counted, ops| Count { counted, ops }.per_op();
        assert_eq!((per_op(1000, 4), per_op(1001, 4), per_op(1002, 4)), (250, 250, 251));
        assert_eq!(per_op(5, 0), 0);
    }
}
