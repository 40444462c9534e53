//! The hostile tenant as a program, which `scripts/soak` runs as a user of its own.
//!
//! ```text
//! tenant --socket PATH --service ADDR:PORT --nobody ADDR:PORT --own ADDR:PORT
//!        [--forbidden ADDR:PORT]... (--seconds S --seed N [--leave-behind] | --measure)
//! ```
//!
//! The program runs attacks at random, and prints on stdout one line of JSON with the number of
//! each that it has begun. At its end it may leave its own end of the control socket behind
//! (`--leave-behind`). With `--measure` it prints how many objects of each kind it can get instead.
//!
//! Exit status: 0; 1 when a promise of SECURITY.md is broken, which the program reports on stderr;
//! 2 for wrong usage.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub, reason = "parts of a test")]

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use heddle_base::{Random, Seed};

#[path = "mod.rs"]
#[allow(dead_code, reason = "what the tests use besides")]
mod tenant;

use tenant::attacks::{ATTACKS, Course, measure};
use tenant::{Raw, Target};

/// A hostile application
#[derive(Parser)]
struct Args {
    /// Control socket of the appliance
    #[arg(long)]
    socket: PathBuf,
    /// A service of a peer
    #[arg(long)]
    service: SocketAddr,
    /// An address without a host
    #[arg(long)]
    nobody: SocketAddr,
    /// The address from which the tenant may listen, this port and higher ones
    #[arg(long)]
    own: SocketAddr,
    /// Addresses where the tenant may not listen
    #[arg(long)]
    forbidden: Vec<SocketAddr>,
    /// How long to attack
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// The seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Exit so that the server does not see the end of the socket
    #[arg(long)]
    leave_behind: bool,
    /// Count the objects of each kind that the tenant can get
    #[arg(long)]
    measure: bool,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "tenant: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), String> {
    let Args { socket, service, nobody, own, forbidden, .. } = args;
    let target = Target { socket, user: None, service, nobody, own, forbidden };
    if args.measure {
        return say(&measure(&target)?);
    }
    let mut random = Random::new(&Seed::from_u64(args.seed));
    let end = Instant::now() + Duration::from_secs_f64(args.seconds);
    let mut begun = BTreeMap::new();
    while Instant::now() < end {
        let attack = &ATTACKS[usize::try_from(random.below(ATTACKS.len() as u64)).unwrap()];
        *begun.entry(attack.name).or_insert(0) += 1;
        say(&serde_json::json!(begun))?;
        let long = Duration::from_millis(100 + random.below(900));
        let seed = Seed::from_u64(random.next_u64());
        let mut course = Course { until: Instant::now() + long, random: Random::new(&seed) };
        (attack.run)(&target, &mut course).map_err(|e| format!("{}: {e}", attack.name))?;
    }
    if args.leave_behind {
        let raw = Raw::open(&target)?;
        raw.leave_own_end_behind(random.chance(0.5));
    }
    Ok(())
}

fn say(what: &serde_json::Value) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}").and_then(|()| out.flush()).map_err(|e| e.to_string())
}
