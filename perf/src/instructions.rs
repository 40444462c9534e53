//! How many instructions the work of the RNICs takes.
//!
//! Times differ from run to run on a machine that others use too; counts do not. Each [`Case`] sets
//! up two RNICs of this process, joined by rings and driven by one thread in virtual time, warms
//! them up and then does its operations in a part that a simulator of the processor
//! (Valgrind's callgrind) is told to count: what is called from [`measured`], and nothing else.
//! Both ends count: an operation is posted, sent, received, acknowledged and completed.
//!
//! ```text
//!   instructions check ──▶ for each case: valgrind --tool=callgrind instructions run CASE
//!                              │ count of the part / operations
//!                              ▼
//!                          gate: beside the figures of perf/instructions.toml
//! ```
//!
//! Valgrind does not know AVX-512 or VPCLMULQDQ, whatever the machine has: under it the CRC runs in
//! its SSE 4.2 form, and the figures are of that one. They say what a change of the code costs, not
//! how fast a machine is.

mod bed;
mod cases;
mod gate;
mod rpc;
mod runner;

pub use bed::BedError;
pub use cases::Case;
pub use gate::{Figures, FiguresError, TOLERANCE, Verdict, judge};
pub use runner::{Count, RunnerError, count, count_all};

/// What callgrind is told to count.
pub const MEASURED: &str = "*instructions::measured*";

/// Calls `part`; the only place that is counted.
#[inline(never)]
pub fn measured<R>(part: impl FnOnce() -> R) -> R {
    // Not in tail position: a jump instead of a call would never come back here.
    std::hint::black_box(part())
}
