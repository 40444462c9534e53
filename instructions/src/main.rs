//! Counts the instructions that the work of the RNICs takes.
//!
//! Times differ from run to run on a shared machine; counts do not. Each [`Case`] sets up two RNICs
//! of this process, joined by rings and driven by one thread in virtual time, and warms them up. It
//! then runs its operations in a part that a simulator of the processor (Valgrind's callgrind)
//! counts: the calls from [`measured`], and nothing else. Both ends count: an operation is posted,
//! sent, received, acknowledged and completed.
//!
//! ```text
//!   instructions check ──▶ for each case: valgrind --tool=callgrind instructions run CASE
//!                              │ count of the part / operations
//!                              ▼
//!                          gate: beside the figures of instructions/figures.toml
//! ```
//!
//! A case whose name ends in `-lines` counts lines of memory instead: those that its operations bring
//! into a simulated cache, which is too small for the state of all its connections. Such a count
//! shows how a change of a structure's layout, or another look-up, tells with many connections.
//!
//! Valgrind does not know AVX-512 or VPCLMULQDQ, whatever the machine has. Under Valgrind the CRC
//! runs in its SSE 4.2 form, and the figures are for that form. The figures show the cost of a
//! change of the code, not the speed of a machine.
//!
//! ```text
//! instructions check FILE [CASE...]   counts; exit status 1 when one is worse
//! instructions renew FILE [CASE...]   counts and writes the file
//! instructions profile CASE OUT       counts one and leaves callgrind's file at OUT
//! instructions run CASE               what callgrind runs: does the case, says how many operations
//! instructions list                   the cases
//! ```
//!
//! `scripts/bench` calls this program with all that it needs. Exit status: 0; 1 when something
//! failed or has become worse; 2 for wrong usage.

mod calls;
mod cases;
mod gate;
mod harness;
mod rpc;
mod runner;

use std::error::Error;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use heddle_dataplane::{Eal, EalConfig, Hugepages};
use heddle_perf::report::align;

use crate::calls::{By, Call, MARGIN};
use crate::cases::Case;
use crate::gate::{Figures, Verdict, judge};
use crate::runner::{count, count_all};

/// The function that callgrind counts, with all that it calls.
const MEASURED: &str = "*instructions::measured*";

/// Calls `part`. Callgrind counts this call and nothing else.
#[inline(never)]
fn measured<R>(part: impl FnOnce() -> R) -> R {
    // Keep the call out of tail position: a jump instead of a call would never come back here.
    std::hint::black_box(part())
}

/// Instructions per operation, under callgrind
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Count and compare
    Check { file: PathBuf, cases: Vec<Case> },
    /// Count and write the file anew
    Renew { file: PathBuf, cases: Vec<Case> },
    /// Count one case and keep callgrind's file
    Profile { case: Case, out: PathBuf },
    /// Do a case
    Run { case: Case },
    /// Name the cases
    List,
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        What::Check { file, cases } => check(&file, cases),
        What::Renew { file, cases } => renew(&file, cases),
        What::Profile { case, out } => profile(case, &out),
        What::Run { case } => run(case),
        What::List => list(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            let _ = writeln!(io::stderr(), "instructions: {e}");
            ExitCode::from(1)
        }
    }
}

type Outcome = Result<bool, Box<dyn Error>>;

fn say(text: &str) {
    // A reader that has closed the pipe is not an error.
    let _ = writeln!(io::stdout(), "{text}");
}

fn list() -> Outcome {
    Case::all().iter().for_each(|c| say(&c.to_string()));
    Ok(true)
}

fn run(case: Case) -> Outcome {
    let config = EalConfig { hugepages: Hugepages::Never, ..EalConfig::default() };
    say(&case.run(&Eal::init(&config)?)?.to_string());
    Ok(true)
}

fn profile(case: Case, out: &Path) -> Outcome {
    let c = count(&std::env::current_exe()?, case, out)?;
    say(&format!("{case}: {} in {} operations", c.counted, c.ops));
    Ok(true)
}

/// Instructions per operation of each case, and whether all cases could be counted.
type Counts = (Vec<(Case, u64)>, bool);

/// Counts `cases`, or all.
fn measure(cases: Vec<Case>) -> Result<Counts, Box<dyn Error>> {
    let cases = if cases.is_empty() { Case::all() } else { cases };
    let dir = std::env::temp_dir().join(format!("heddle-instructions-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let results = count_all(&std::env::current_exe()?, &cases, &dir);
    // The program does not need these files any more.
    let _ = std::fs::remove_dir_all(&dir);
    let mut all = true;
    let mut counts = Vec::new();
    for (case, result) in results {
        match result {
            Ok(c) => counts.push((case, c.per_op())),
            Err(e) => {
                all = false;
                let _ = writeln!(io::stderr(), "instructions: {e}");
            }
        }
    }
    Ok((counts, all))
}

fn read(file: &Path) -> Result<Figures, Box<dyn Error>> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    Ok(text.parse().map_err(|e| format!("{}: {e}", file.display()))?)
}

fn check(file: &Path, cases: Vec<Case>) -> Outcome {
    let figures = read(file)?;
    let every = cases.is_empty();
    let (counts, mut good) = measure(cases)?;
    let mut rows = Vec::new();
    let (mut worse, mut better) = (0, 0);
    for &(case, n) in &counts {
        let name = case.to_string();
        let figure = figures.0.get(&name).copied();
        let verdict = judge(figure, n);
        worse += u32::from(matches!(verdict, Verdict::Worse | Verdict::Unknown));
        better += u32::from(verdict == Verdict::Better);
        let change = figure
            .map_or_else(|| "-".into(), |f| format!("{:+.2}", (n as f64 / f as f64 - 1.0) * 100.0));
        let word = match verdict {
            Verdict::Same => "",
            Verdict::Better => "better: renew the figures",
            Verdict::Worse => "WORSE",
            Verdict::Unknown => "NO FIGURE",
        };
        let figure = figure.map_or_else(|| "-".into(), |f| f.to_string());
        rows.push(vec![name, word.into(), figure, n.to_string(), change]);
    }
    let dear = dear(&counts);
    let gone: Vec<_> =
        figures.0.keys().filter(|name| name.parse::<Case>().is_err()).map(String::as_str).collect();
    say(align(&["case", "", "figure", "now", "%"], rows, 2).trim_end());
    if every && !gone.is_empty() {
        say(&format!("no such case any more: {}", gone.join(", ")));
        good = false;
    }
    if better > 0 {
        say(&format!("{better} took fewer instructions: scripts/bench --instructions --renew"));
    }
    if worse > 0 {
        say(&format!("{worse} took more instructions than before, or have no figure"));
    }
    dear.iter().for_each(|line| say(line));
    Ok(good && worse == 0 && dear.is_empty())
}

/// Returns a message for each call of libibverbs that exceeds its margin above the Rust call, where
/// both were counted.
fn dear(counts: &[(Case, u64)]) -> Vec<String> {
    let count = |of: Case| counts.iter().find(|(case, _)| *case == of).map(|(_, n)| *n);
    let all = Call::ALL.into_iter().filter_map(|call| {
        let [rust, ibverbs] = [By::Rust, By::Ibverbs].map(|by| Case::Call(call, by));
        let above = count(ibverbs)?.saturating_sub(count(rust)?);
        (above > MARGIN)
            .then(|| format!("{ibverbs} takes {above} more than {rust}: at most {MARGIN}"))
    });
    all.collect()
}

fn renew(file: &Path, cases: Vec<Case>) -> Outcome {
    // When renewing some cases, keep the figures of the others.
    let mut figures = if cases.is_empty() { Figures::default() } else { read(file)? };
    let (counts, good) = measure(cases)?;
    if !good {
        return Err("nothing was written: not all could be counted".into());
    }
    figures.0.extend(counts.into_iter().map(|(case, n)| (case.to_string(), n)));
    std::fs::write(file, figures.to_text())
        .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    say(figures.to_text().trim_end());
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_gate_reports_ibverbs_call_dearer_than_rust_call_by_over_margin() {
        let [rust, ibverbs] = [By::Rust, By::Ibverbs].map(|by| Case::Call(Call::Poll, by));
        assert_eq!(dear(&[(rust, 100), (ibverbs, 100 + MARGIN)]), Vec::<String>::new());
        let one = dear(&[(ibverbs, 101 + MARGIN), (Case::Connect, 5), (rust, 100)]);
        assert_eq!(one, ["poll-ibverbs takes 151 more than poll: at most 150"]);
        assert!(dear(&[(ibverbs, 10_000)]).is_empty(), "nothing to compare it with");
    }
}
