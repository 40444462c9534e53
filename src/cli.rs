//! The command line.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use heddle::daemon::StartError;

mod admin;
mod bench;
mod capture;
mod cm;
mod counters;
mod demo;
mod dump;
mod generate;
mod log;
mod mpa;
mod net;
mod nfs;
mod pcap;
mod progress;
mod rnic;
mod rping;
mod run;
mod serve;
mod signals;

/// A software RNIC: iWARP in user space on DPDK.
#[derive(Debug, Parser)]
#[command(name = "heddle", version = VERSION, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (built for DPDK ", env!("HEDDLE_DPDK_VERSION"), ")");

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure throughput, latency or rate
    Bench(bench::Args),
    /// Serve the RDMA programs of other hosts: rping, perftest and more
    Serve(serve::Args),
    /// Run a program for libibverbs on an RNIC of this host: Debian's own, without a kernel module
    #[command(disable_version_flag = true)]
    Run(run::Args),
    /// Send messages to and fro, wire-compatible with the rping of rdma-core
    #[command(disable_version_flag = true)]
    Rping(rping::Args),
    /// Make and answer connections, and show what the connection manager says of them
    Cm(cm::Args),
    /// Answer the frames of a capture file, in virtual time
    Pcap(pcap::Args),
    /// List, read and copy files of an NFS server, by NFS version 3 over RDMA
    #[command(subcommand)]
    Nfs(nfs::Command),
    /// Show what is in a capture file, up to RPC-over-RDMA, and what breaks a rule
    Dump(dump::Args),
    /// Move a file by Send, RDMA Write and RDMA Read and compare its SHA-256
    Demo(demo::Args),
    /// How an appliance fares that runs (heddle serve), in short
    Status(admin::Plain),
    /// Its connections, with what was agreed and how TCP fares
    Conns(admin::ConnsCommand),
    /// Its queue pairs that are in a connection
    Qps(admin::ConnsCommand),
    /// Its registered memory
    Mrs(admin::MrsCommand),
    /// Its ports: link, addresses, what the device has counted
    Ports(admin::Plain),
    /// Everything it has counted
    Stats(admin::StatsCommand),
    /// Its rates, live: of workers, ports and connections
    Top(admin::top::Args),
    /// Start and stop its services
    #[command(subcommand)]
    Listen(admin::ListenCommand),
    /// End its connections
    #[command(subcommand)]
    Conn(admin::ConnCommand),
    /// End applications of other processes
    #[command(subcommand)]
    Application(admin::ApplicationCommand),
    /// Make it read its configuration anew
    Reload(admin::Plain),
    /// Make it log from another level on
    LogLevel(admin::LogCommand),
    /// Make man pages and completions for shells
    Generate(generate::Args),
}

/// Why a command did not do what was asked for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was asked for wrongly.
    Usage(String),
    /// The same, in a line for each thing that is wrong, each of which says where.
    Lines(String),
    /// It failed.
    Failed(String),
}

impl Failure {
    pub(crate) fn usage(what: impl fmt::Display) -> Failure {
        Failure::Usage(what.to_string())
    }

    pub(crate) fn of_start(e: StartError) -> Failure {
        match e {
            StartError::Usage(what) => Failure::Usage(what),
            StartError::Failed(what) => Failure::Failed(what),
        }
    }

    pub(crate) fn failed(what: impl fmt::Display) -> Failure {
        Failure::Failed(what.to_string())
    }
}

impl<E: Error> From<E> for Failure {
    /// What happened, and each cause that it does not name already.
    fn from(e: E) -> Failure {
        let mut text = e.to_string();
        let mut cause = e.source();
        while let Some(c) = cause {
            let c_text = c.to_string();
            if !text.contains(&c_text) {
                text = format!("{text}: {c_text}");
            }
            cause = c.source();
        }
        Failure::Failed(text)
    }
}

/// Runs what the process was started for.
pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return refuse(&e),
    };
    let done = match cli.command {
        Command::Bench(a) => bench::run(&a),
        Command::Serve(a) => serve::run(&a),
        Command::Run(a) => run::run(&a),
        Command::Rping(a) => rping::run(&a),
        Command::Cm(a) => cm::run(&a),
        Command::Pcap(a) => pcap::run(&a),
        Command::Nfs(a) => nfs::run(&a),
        Command::Dump(a) => dump::run(&a),
        Command::Demo(a) => demo::run(&a),
        Command::Status(a) => admin::status(&a),
        Command::Conns(a) => admin::conns(&a),
        Command::Qps(a) => admin::qps(&a),
        Command::Mrs(a) => admin::mrs(&a),
        Command::Ports(a) => admin::ports(&a),
        Command::Stats(a) => admin::stats(&a),
        Command::Top(a) => admin::top::run(&a),
        Command::Listen(a) => admin::listen(&a),
        Command::Conn(a) => admin::conn(&a),
        Command::Application(a) => admin::application(&a),
        Command::Reload(a) => admin::reload(&a),
        Command::LogLevel(a) => admin::log(&a),
        Command::Generate(a) => generate::run(&a, Cli::command()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(what)) => {
            complain(&format!("{what} (see heddle --help)"));
            ExitCode::from(2)
        }
        Err(Failure::Lines(what)) => {
            for line in what.lines() {
                complain(line);
            }
            ExitCode::from(2)
        }
        Err(Failure::Failed(what)) => {
            complain(&what);
            ExitCode::from(1)
        }
    }
}

fn refuse(e: &clap::Error) -> ExitCode {
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // With colours if the terminal has them; a closed pipe is not our error.
            let _ = e.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = e.print();
            ExitCode::from(2)
        }
        _ => {
            // Its first line says what; usage and hints are for `--help`.
            let text = e.to_string();
            let line = text.lines().take_while(|l| !l.trim().is_empty()).collect::<Vec<_>>();
            let line = line.iter().map(|l| l.trim()).collect::<Vec<_>>().join(" ");
            let line = line.strip_prefix("error: ").unwrap_or(&line);
            complain(&format!("{line} (see heddle --help)"));
            ExitCode::from(2)
        }
    }
}

/// One line on stderr.
fn complain(what: &str) {
    let line = what.replace('\n', " ");
    // There is nobody left to tell.
    let _ = writeln!(io::stderr(), "heddle: {line}");
}

/// Text for people, on stdout. A reader that has gone away is not an error.
pub(crate) fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
