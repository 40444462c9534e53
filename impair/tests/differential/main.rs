//! Random segments, legal and illegal, to Heddle's TCP and to Linux's: after each of them both have
//! sent the same and both applications have seen the same, or `rules` has the reason.
//!
//! The test needs root, for a network namespace and a tap device of its own. `scripts/differential`
//! runs it with any number of seeds:
//!
//! - `HEDDLE_SEEDS=N`: the seeds 1 to N; 1000 if nothing is said.
//! - `HEDDLE_SEED=N`: this seed alone, with every step and what both hosts did.
//!
//! No timer of either host runs: Heddle's time stands still, and Linux's timers take longer than a
//! seed. A difference counts only if it comes again.
#![allow(missing_docs, unreachable_pub, reason = "parts of a test")]
#![allow(clippy::print_stdout, reason = "a run reports its differences")]

#[path = "../../../tcp/tests/scripts/flow.rs"]
#[allow(dead_code, reason = "the packet scripts use all of it")]
mod flow;
mod heddle;
#[path = "../../../tcp/tests/scripts/host.rs"]
#[allow(dead_code, reason = "the packet scripts use all of it")]
mod host;
mod host_under_test;
mod linux;
#[path = "../../../tcp/tests/scripts/parse.rs"]
#[allow(dead_code, reason = "the packet scripts use all of it")]
mod parse;
mod plan;
mod rules;
mod side;
#[path = "../../src/bin/impair/tap.rs"]
mod tap;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io;
use std::net::IpAddr;

use heddle::Heddle;
use linux::Linux;
use plan::{Plan, Step};
use rules::Then;
use side::{Seen, Side};

/// The station addresses of the hosts and of their peer.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Seeds of a run of which nothing is said.
const SEEDS: u64 = 1000;
/// Differences that a run shows.
const SHOWN: usize = 20;

fn address(ipv6: bool, n: u8) -> IpAddr {
    if ipv6 { [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)].into() } else { [10, 0, 0, n].into() }
}

/// The first step after which the hosts differ without a reason.
struct Difference {
    step: String,
    linux: Seen,
    heddle: Seen,
}

/// Two hosts, a port for each run, and the reasons that were needed.
struct Lab {
    linux: Side<Linux>,
    heddle: Side<Heddle>,
    port: u16,
    reasons: BTreeMap<&'static str, u64>,
    /// True to print each step.
    verbose: bool,
}

impl Lab {
    fn new() -> io::Result<Lab> {
        Ok(Lab {
            linux: Side::new(Linux::new()?),
            heddle: Side::new(Heddle::new()),
            port: 1024,
            reasons: BTreeMap::new(),
            verbose: false,
        })
    }

    /// Runs a plan on both hosts.
    fn run(&mut self, plan: &Plan) -> io::Result<Option<Difference>> {
        self.port = if self.port == u16::MAX { 1024 } else { self.port + 1 };
        let mut linux = self.linux.begin(plan, self.port)?;
        let mut heddle = self.heddle.begin(plan, self.port)?;
        let mut found = None;
        let mut before = heddle.clone();
        let mut steps = plan.all().into_iter();
        let mut step: Option<Step> = None;
        loop {
            let name = step.as_ref().map_or("the beginning".to_owned(), Step::to_string);
            if self.verbose {
                println!("{name}\n    Linux:  {linux}\n    Heddle: {heddle}");
            }
            let at = self.heddle.at;
            match rules::reason(plan, step.as_ref(), at, [&before, &linux, &heddle]) {
                Some((reason, then)) => {
                    *self.reasons.entry(reason).or_default() += 1;
                    if self.verbose {
                        println!("    {reason}");
                    }
                    if then == Then::Stop {
                        break;
                    }
                }
                None if linux != heddle => {
                    found = Some(Difference { step: name, linux, heddle });
                    break;
                }
                None => {}
            }
            // A seed is about one connection.
            if before.app.open && linux.syn.is_some() {
                break;
            }
            let Some(next) = steps.next() else { break };
            before = heddle;
            linux = self.linux.step(plan, &next)?;
            heddle = self.heddle.step(plan, &next)?;
            step = Some(next);
        }
        self.linux.end()?;
        self.heddle.end()?;
        Ok(found)
    }

    /// Runs a plan again without each of its steps, as long as the hosts still differ.
    fn shrink(&mut self, plan: &Plan) -> io::Result<Plan> {
        let mut least = plan.clone();
        let mut at = 0;
        while at < least.steps.len() {
            let mut fewer = least.clone();
            fewer.steps.remove(at);
            match self.run(&fewer)? {
                Some(_) => least = fewer,
                None => at += 1,
            }
        }
        Ok(least)
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|n| n.parse().ok())
}

#[test]
fn test_every_rule_has_its_reason_in_the_docs_and_no_other_has_one() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/differences.md");
    let page = std::fs::read_to_string(page).expect("docs/differences.md");
    let rows = page.lines().filter_map(|l| l.strip_prefix("| ")?.split_once(" | "));
    let told: BTreeSet<_> = rows.map(|(name, _)| name).filter(|n| *n != "Difference").collect();
    assert_eq!(told, rules::names().collect());
}

#[test]
#[ignore = "needs root, for a network namespace of its own"]
fn test_heddle_and_linux_answer_alike() {
    let mut lab = Lab::new().expect("a namespace with a tap device");
    if let Some(seed) = number("HEDDLE_SEED") {
        lab.verbose = true;
        let plan = Plan::of(seed);
        println!("{plan}");
        assert!(lab.run(&plan).expect("both hosts answer").is_none(), "the hosts differ");
        return;
    }
    let seeds = number("HEDDLE_SEEDS").unwrap_or(SEEDS);
    let mut differ = 0;
    for seed in 1..=seeds {
        let plan = Plan::of(seed);
        let run = |lab: &mut Lab, plan| {
            lab.run(plan).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{plan}"))
        };
        // The machine may have been so busy that a timer of Linux expired.
        let again = |lab: &mut Lab| (0..2).all(|_| run(lab, &plan).is_some());
        if run(&mut lab, &plan).is_none() || !again(&mut lab) {
            continue;
        }
        differ += 1;
        if differ <= SHOWN {
            let least = lab.shrink(&plan).expect("both hosts answer");
            let d = run(&mut lab, &least).or_else(|| run(&mut lab, &plan));
            println!("seed {seed}: {least}");
            if let Some(d) = d {
                println!("after {}\n    Linux:  {}\n    Heddle: {}\n", d.step, d.linux, d.heddle);
            }
        }
    }
    for (reason, times) in &lab.reasons {
        println!("{times:>7} times: {reason}");
    }
    println!("{seeds} seeds, {differ} of which differ without a reason");
    assert_eq!(differ, 0, "seeds differ; HEDDLE_SEED=N shows the steps of one");
}
