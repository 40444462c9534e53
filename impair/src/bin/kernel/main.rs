//! iWARP over the kernel's TCP sockets: the host beside which Heddle's TCP is compared.
//!
//! ```text
//! kernel-peer sink ADDR:PORT
//! kernel-peer source ADDR:PORT [--connections N] [--seconds T] [--verify]
//! kernel-peer flood KIND ADDR:PORT --from ADDR:PORT [--rate N] [--seconds T]
//! ```
//!
//! The sink accepts connections of `heddle bench --op write --mpa 1` and of the source, places their
//! RDMA Writes after it has verified each CRC, and answers their RDMA Reads. The source writes to
//! this sink, or to the `sink` service of Heddle, in FPDUs that it has prepared once, so that it
//! does hardly more than `send`. The flood sends forged packets to a server. Each side prints a line
//! of JSON at its end, in which `tcp` is the kernel's report of a connection; SIGTERM ends sink and
//! flood. Exit status: 0; 1 when a connection failed, which stderr reports; 2 for wrong usage.

mod flood;
mod fpdus;
mod info;
mod sink;
mod source;

use std::error::Error;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// iWARP over the kernel's TCP
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    side: Side,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// Take RDMA Writes, and report the bytes of each connection over time
    Sink {
        /// Address to listen on
        #[arg(value_name = "ADDR:PORT")]
        at: SocketAddr,
    },
    /// Write as fast as TCP takes it, then end the connections with a reset
    Source(source::Plan),
    /// Send forged packets from addresses of others, by raw sockets (needs root)
    Flood(flood::Plan),
}

fn main() -> ExitCode {
    let done = match Args::parse().side {
        Side::Sink { at } => sink::run(at),
        Side::Source(plan) => source::run(&plan),
        Side::Flood(plan) => flood::run(&plan),
    };
    match done {
        Ok(report) => say(&report),
        Err(e) => fail(e.as_ref()),
    }
}

/// Prints what a side has found; its failures go to stderr as well.
fn say(report: &serde_json::Value) -> ExitCode {
    let errors: Vec<&str> = report["connections"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|c| c["error"].as_str())
        .collect();
    if let Err(e) = writeln!(io::stdout(), "{report}") {
        return fail(&e);
    }
    match errors.first() {
        None => ExitCode::SUCCESS,
        Some(first) => {
            let _ = writeln!(io::stderr(), "kernel-peer: {} failed: {first}", errors.len());
            ExitCode::FAILURE
        }
    }
}

fn fail(e: &dyn Error) -> ExitCode {
    let _ = writeln!(io::stderr(), "kernel-peer: {e}");
    ExitCode::FAILURE
}
