//! The application that `scripts/soak` runs on an appliance: a server that sends back every
//! message, and clients that compare every byte and account for every request.
//!
//! ```text
//! exchange --socket PATH serve ADDR:PORT
//! exchange --socket PATH connect ADDR:PORT [--connections N] [--rate R] [--rounds N] ...
//! exchange --socket PATH accept ADDR:PORT
//! exchange --socket PATH hold ADDR:PORT [--connections N] [--at-once N]
//! exchange --socket PATH make ADDR:PORT [--connections N] [--at-once N]
//! ```
//!
//! The last three commands exercise connections alone, for `scripts/bench --appliance`.
//!
//! Once a second the program prints its counts so far on stdout, as a line of JSON. SIGTERM ends it
//! in order. Exit status: 0; 1 when a check failed, which stderr reports; 2 for wrong usage.

use std::error::Error;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Parser, Subcommand};
use heddle_perf::exchange::{ExchangeError, SLOT, Tally, client, many, server};
use heddle_verbs::Device;
use heddle_verbs::remote::OpenParams;
use signal_hook::consts::{SIGINT, SIGTERM};

/// An application that exchanges messages with another one
#[derive(Debug, Parser)]
struct Args {
    /// Control socket of the appliance
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The name of this application in the appliance's output
    #[arg(long, default_value = "exchange")]
    name: String,
    /// MiB of memory of the device
    #[arg(long, default_value_t = 64)]
    memory: usize,
    /// MiB for queues
    #[arg(long, default_value_t = 16)]
    queues: usize,
    #[command(subcommand)]
    side: Side,
}

#[derive(Clone, Debug, Subcommand)]
enum Side {
    /// Grant memory, and send back each message
    Serve {
        /// Address to listen on
        #[arg(value_name = "ADDR:PORT")]
        at: SocketAddr,
    },
    /// Connect, exchange messages and compare them
    Connect(Connect),
    /// Accept all connections, and do nothing with them
    Accept {
        /// Address to listen on
        #[arg(value_name = "ADDR:PORT")]
        at: SocketAddr,
    },
    /// Make connections, and keep them
    Hold(Many),
    /// Make connections and end them, and report how long that took
    Make(Many),
}

#[derive(Clone, Debug, clap::Args)]
struct Connect {
    /// The server
    #[arg(value_name = "ADDR:PORT")]
    remote: SocketAddr,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// Rounds of up to 16 messages, per connection and second
    #[arg(long, value_name = "R", default_value_t = 20.0, value_parser = rate)]
    rate: f64,
    /// Rounds of a connection before the next one takes its place; 0: the connection stays
    #[arg(long, value_name = "N", default_value_t = 0)]
    rounds: u64,
    /// Bytes of the longest message, 1 to 16384
    #[arg(
        long,
        value_name = "N",
        default_value_t = SLOT as u64,
        value_parser = clap::value_parser!(u64).range(1..=SLOT as u64)
    )]
    longest: u64,
    /// Seed that determines bytes, lengths and operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Memory of this program's own, registered anew for each connection
    #[arg(long)]
    own_memory: bool,
    /// Peers may leave, or be absent: then connect again
    #[arg(long)]
    expendable: bool,
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Many {
    /// The server
    #[arg(value_name = "ADDR:PORT")]
    remote: SocketAddr,
    /// Number of connections
    #[arg(long, value_name = "N", default_value_t = 1000)]
    connections: u64,
    /// Connections in their set-up at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    at_once: u64,
}

impl Many {
    fn wanted(self) -> many::Wanted {
        let Many { remote, connections: count, at_once } = self;
        many::Wanted { remote, count, at_once }
    }
}

fn rate(s: &str) -> Result<f64, String> {
    match s.parse() {
        Ok(r) if (0.01..=1e6).contains(&r) => Ok(r),
        _ => Err("expected 0.01 to 1000000".into()),
    }
}

const EVERY: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "exchange: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let Args { socket, name, memory, queues, side } = args;
    let params =
        OpenParams { memory: memory << 20, queues: queues << 20, name, ..OpenParams::default() };
    let device = Device::open_with(socket, &params)?;
    let tally = Arc::new(Tally::default());
    let mut threads = Vec::new();
    match side {
        Side::Serve { at } => {
            let (stop, tally) = (stop.clone(), tally.clone());
            let serve = move || server::serve(&device, at, &stop, &tally);
            threads.push(thread::Builder::new().spawn(serve)?);
        }
        Side::Accept { at } => {
            let (stop, tally) = (stop.clone(), tally.clone());
            let accept = move || many::accept(&device, at, &stop, &tally);
            threads.push(thread::Builder::new().spawn(accept)?);
        }
        Side::Hold(m) => {
            let (stop, tally) = (stop.clone(), tally.clone());
            let hold = move || many::hold(&device, m.wanted(), &stop, &tally);
            threads.push(thread::Builder::new().spawn(hold)?);
        }
        Side::Make(m) => {
            let took = many::make(&device, m.wanted(), &tally)?;
            let (connections, seconds) = (m.connections, took.as_secs_f64());
            let said = serde_json::json!({ "connections": connections, "seconds": seconds });
            writeln!(std::io::stdout(), "{said}")?;
            return Ok(());
        }
        Side::Connect(c) => {
            for n in 0..c.connections {
                let (device, stop, tally) = (device.clone(), stop.clone(), tally.clone());
                let plan = plan(&c, n);
                let run = move || client::run(&device, &plan, &stop, &tally);
                threads.push(thread::Builder::new().spawn(run)?);
            }
        }
    }
    let mut since = EVERY;
    let mut result = Ok(());
    while !threads.is_empty() {
        if since >= EVERY {
            since = Duration::ZERO;
            say(&tally)?;
        }
        thread::sleep(LOOK);
        since += LOOK;
        for ended in threads.extract_if(.., |t| t.is_finished()) {
            let one: Result<(), ExchangeError> =
                ended.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(one);
        }
        if result.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
    }
    say(&tally)?;
    Ok(result?)
}

fn plan(c: &Connect, n: u64) -> client::Plan {
    client::Plan {
        remote: c.remote,
        seed: c.seed.wrapping_mul(1 << 16).wrapping_add(n),
        rate: c.rate,
        rounds: c.rounds,
        longest: usize::try_from(c.longest).unwrap_or(SLOT),
        own_memory: c.own_memory,
        expendable: c.expendable,
    }
}

fn say(tally: &Tally) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", tally.to_json())?;
    out.flush()
}
