//! Random programs on both ends of several streams at once, over links that do what links do, held
//! against a model of memory and completions that knows nothing of the implementation.
//!
//! # What is in them
//! Every operation that a peer is asked for: Sends, with Invalidate and solicited, Writes, Reads,
//! atomic operations, Immediate Data. Windows of both types and fast registrations, over memory that
//! other regions, windows and streams use too: bound, used by peers and in requests of the owner's,
//! invalidated by either, bound again with another key, behind each other and without waiting. Receive
//! queues of a queue pair's own, and one that queue pairs of a host share. Markers in either direction,
//! and with them FPDUs that are placed ahead of gaps. Each form of the message that says ready to
//! receive, and none, with the first FPDU lost. Receives that are granted to the peer by the dozen, more
//! than a turn takes, by a Send of the same stream or beside it. Receives that are posted late, for which
//! messages wait. Owners of the RNICs that are quick or slow and take much or little in a turn, by
//! the worker's own rules. And on some streams what ends
//! them, or may: each of these has the Terminate, or the status of a request, that it brings about, and
//! no other is accepted; the other streams have to go on.
//!
//! The application of a host is played here, and what the verbs add to it: when a queue pair has ended
//! the windows that are its alone are revoked, and the shared queue is a list. (Its ring and its limit
//! have a model of their own, in `heddle-verbs`.)
//!
//! # How they run
//! A program is its seed: what the link does, how the queue pairs are set up, and a list of
//! operations. `HEDDLE_PROGRAMS=FROM..TO` runs other seeds than the usual ones, and `-- --ignored`
//! runs thousands. A program that fails is printed with its operations, less those that the failure
//! does not need.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "small numbers of a test"
)]

mod bind;
mod derived;
mod draft;
mod memory;
mod misuse;
mod observe;
mod outcome;
mod post;
mod program;
mod refused;
mod regions;
mod shared;
mod stream;
mod words;
mod world;
mod wrong;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use outcome::Outcome;
use program::{Op, Place, Program};
use world::run;

/// What a panic said.
fn attempt(program: &Program) -> Result<Outcome, String> {
    catch_unwind(AssertUnwindSafe(|| run(program))).map_err(|e| {
        let text = e.downcast_ref::<String>().cloned();
        text.or_else(|| e.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
    })
}

/// Leaves out halves, then quarters, and so on, as long as it goes on failing in the same way: the
/// message begins alike.
fn shrink(program: &Program, first: &str) -> Program {
    let kind: String = first.chars().take(12).collect();
    let mut best = program.clone();
    let mut size = best.ops.len() / 2;
    while size > 0 {
        let mut from = 0;
        while from < best.ops.len() {
            let rest = |(i, op): (usize, &Op)| (i < from || i >= from + size).then_some(*op);
            let ops = best.ops.iter().enumerate().filter_map(rest).collect();
            let smaller = Program { ops, ..best.clone() };
            if attempt(&smaller).is_err_and(|e| e.starts_with(&kind)) {
                best = smaller;
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    best
}

/// Runs the programs of `seeds`; what all of them did together.
fn run_all(seeds: Range<u64>, program: impl Fn(u64) -> Program) -> Outcome {
    let mut sum = Outcome::default();
    for seed in seeds {
        let program = program(seed);
        match attempt(&program) {
            Ok(outcome) => sum.add(&outcome),
            Err(first) => {
                let small = shrink(&program, &first);
                let last = attempt(&small).err().unwrap_or_default();
                let ops: String = small.ops.iter().map(|op| format!("{op:?}\n")).collect();
                panic!("seed {seed}: {first}\nsmallest: {last}\n{:?}\n{ops}", small.plan);
            }
        }
    }
    sum
}

/// What cannot happen between two RNICs, with looped frames, and where no FPDU is in a frame.
const APART: [&str; 1] = ["handed over"];
const LOOPED: [&str; 3] = ["handed over", "damaged", "placed ahead of a gap"];
const HANDED: [&str; 4] = ["retransmits", "damaged", "snapshot stalls", "placed ahead of a gap"];

/// The link and the applications did all that they can do: a run in which they did not shows little.
fn check_variety(o: &Outcome, never: &[&str]) {
    eprintln!("{o:?}");
    for (what, n) in o.counts() {
        assert_eq!(n > 0, !never.contains(&what), "{what} happened {n} times: {o:?}");
    }
}

#[test]
fn test_random_programs_on_bad_links_match_the_model() {
    let given = std::env::var("HEDDLE_PROGRAMS").ok();
    let given = given.as_deref().and_then(|v| v.split_once(".."));
    if let Some((from, to)) = given {
        run_all(from.parse().unwrap()..to.parse().unwrap(), Program::new);
        return;
    }
    check_variety(&run_all(0..1200, Program::new), &APART);
}

/// The same programs of two applications of one RNIC, whose queue pairs hand FPDUs over to each other.
#[test]
fn test_random_programs_of_an_rnic_with_itself_match_the_model() {
    check_variety(&run_all(0..1200, |seed| Program::inside(seed, Place::Handed)), &HANDED);
}

/// And where they do not: frames come back to the RNIC that sends them.
#[test]
fn test_random_programs_over_looped_frames_match_the_model() {
    check_variety(&run_all(0..600, |seed| Program::inside(seed, Place::Looped)), &LOOPED);
}

/// As above, for some minutes.
#[test]
#[ignore = "takes minutes; see the module"]
fn test_thousands_of_random_programs_match_the_model() {
    check_variety(&run_all(10_000..60_000, Program::new), &APART);
    let inside = |seed| Program::inside(seed, Place::Handed);
    check_variety(&run_all(10_000..60_000, inside), &HANDED);
}
