//! Random programs on both ends of several streams at once, over links that behave like real links.
//! The tests compare the results with a model of memory and completions that knows nothing of the
//! implementation.
//!
//! # What is in them
//! Programs contain every operation that a peer can be asked for: Sends, with Invalidate and
//! solicited, Writes, Reads, atomic operations, Immediate Data. They contain windows of both types
//! and fast registrations, over memory that other regions, windows and streams use too: programs
//! bind them, use them as peers and in requests of the owner, invalidate them at either end, and
//! bind them again with another key, one after the other and without waiting. Receive queues belong
//! to one queue pair, or queue pairs of a host share one. Streams have markers in either direction,
//! and with them FPDUs that the RNIC places beyond gaps. The message that says ready to receive has
//! each of its forms, or does not exist, and the first FPDU may be lost. An application grants
//! receives to its peer by the dozen, more than a turn takes, by a Send of the same stream or
//! beside it. Hosts speak IPv4 or IPv6, and switches mark packets of connections with ECN, under CUBIC
//! and DCTCP. Applications post receives late, and messages wait for them. Connections of every second
//! program have shares of tenants, with weights and rates that change. Owners of the RNICs are
//! quick or slow and take much or little in a turn, by the worker's own rules. Some streams have
//! operations that end them, or may end them: each of these has the Terminate, or the status of a
//! request, that it causes, and the model accepts no other; the other streams have to go on.
//!
//! The test plays the application of a host, and the part of the verbs: when a queue pair has
//! ended, the test revokes the windows that only this queue pair may use, and the shared queue is a
//! list. (The ring and the limit of a shared queue have a model of their own, in `heddle-verbs`.)
//!
//! # How they run
//! A program is its seed: the behavior of the link, the setup of the queue pairs, and a list of
//! operations. `HEDDLE_PROGRAMS=FROM..TO` runs other seeds than the usual ones, and `-- --ignored`
//! runs thousands. If a program fails, the test prints it without the operations that the failure
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
mod tenants;
mod words;
mod world;
mod wrong;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use outcome::Outcome;
use program::{Op, Place, Program};
use world::run;

/// Runs a program; returns the message of its panic as an error.
fn attempt(program: &Program) -> Result<Outcome, String> {
    catch_unwind(AssertUnwindSafe(|| run(program))).map_err(|e| {
        let text = e.downcast_ref::<String>().cloned();
        text.or_else(|| e.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
    })
}

/// Leaves out halves of the program, then quarters, and so on, as long as the program goes on
/// failing in the same way, that is, with a message that begins alike.
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

/// Runs the programs of `seeds`, and returns the sum of their outcomes.
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

/// Outcomes that cannot happen between two RNICs, with looped frames, and if no FPDU is in a frame.
const APART: [&str; 1] = ["handed over"];
const LOOPED: [&str; 3] = ["handed over", "damaged", "placed ahead of a gap"];
const HANDED: [&str; 5] =
    ["marked", "retransmits", "damaged", "snapshot stalls", "placed ahead of a gap"];

/// Checks that the link and the applications did everything that they can do: a run without variety
/// proves little.
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

/// The same programs run for two applications of one RNIC, whose queue pairs hand FPDUs over to
/// each other.
#[test]
fn test_random_programs_of_an_rnic_with_itself_match_the_model() {
    check_variety(&run_all(0..1200, |seed| Program::inside(seed, Place::Handed)), &HANDED);
}

/// The same programs run where queue pairs hand nothing over: frames come back to the RNIC that
/// sends them.
#[test]
fn test_random_programs_over_looped_frames_match_the_model() {
    check_variety(&run_all(0..600, |seed| Program::inside(seed, Place::Looped)), &LOOPED);
}

/// The programs above run for some minutes.
#[test]
#[ignore = "takes minutes; see the module"]
fn test_thousands_of_random_programs_match_the_model() {
    check_variety(&run_all(10_000..60_000, Program::new), &APART);
    let inside = |seed| Program::inside(seed, Place::Handed);
    check_variety(&run_all(10_000..60_000, inside), &HANDED);
}
