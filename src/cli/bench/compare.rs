//! `heddle bench compare`

use std::path::PathBuf;

use heddle_perf::comparison::Comparison;

use super::super::{Failure, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The report (--json) to compare with
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The report that is better or worse
    #[arg(value_name = "B.json")]
    b: PathBuf,
    /// Fail (exit status 1) when B is worse than A by more than PERCENT, by the median of the figure
    /// that the mode measures: Gb/s (bw), Mop/s (rate), p50 (lat)
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_above: Option<f64>,
}

fn percent(s: &str) -> Result<f64, String> {
    let n = s.strip_suffix('%').unwrap_or(s).parse::<f64>().ok();
    n.filter(|n| n.is_finite() && *n >= 0.0).ok_or_else(|| "not a percentage such as 5".into())
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let found = Comparison::of_files(&args.a, &args.b)?;
    say(&found.table());
    let Some(percent) = args.fail_above else { return Ok(()) };
    match found.regressions(percent) {
        all if all.is_empty() => Ok(()),
        all => Err(Failure::failed(format!("a regression above {percent} %: {}", all.join("; ")))),
    }
}
