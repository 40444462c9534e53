//! The command line.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use heddle::dpdk;
use heddle_daemon::StartError;

mod admin;
mod bench;
mod capture;
mod cm;
mod counters;
mod demo;
#[cfg(test)]
mod documents;
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
mod support;

/// A software RNIC: iWARP in user space on DPDK.
#[derive(Debug, Parser)]
#[command(name = "heddle", version = version(), disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Returns the version of this program and of the DPDK that it was built for.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        format!("{} (built for DPDK {})", env!("CARGO_PKG_VERSION"), dpdk::VERSION)
    });
    &VERSION
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure throughput, latency or rate
    Bench(Box<bench::Args>),
    /// Serve the RDMA programs of other hosts: rping, perftest and more
    Serve(serve::Args),
    /// Run a program for libibverbs on an RNIC of this host: Debian's own, without a kernel module
    #[command(disable_version_flag = true)]
    Run(run::Args),
    /// Exchange messages with a peer, wire-compatible with the rping of rdma-core
    #[command(disable_version_flag = true)]
    Rping(rping::Args),
    /// Make and answer connections, and show the events that the connection manager reports
    Cm(cm::Args),
    /// Answer the frames of a capture file, in virtual time
    Pcap(pcap::Args),
    /// List, read and copy files of an NFS server, by NFS version 3 over RDMA
    #[command(subcommand)]
    Nfs(nfs::Command),
    /// Show the contents of a capture file, up to RPC-over-RDMA, and each breach of a rule
    Dump(dump::Args),
    /// Move a file by Send, RDMA Write and RDMA Read and compare its SHA-256
    Demo(demo::Args),
    /// Show the state of a running appliance (heddle serve), in short
    Status(admin::Plain),
    /// Show its connections, with the agreed options and the state of TCP
    Conns(admin::ConnsCommand),
    /// Show its connected queue pairs
    Qps(admin::ConnsCommand),
    /// Show its registered memory
    Mrs(admin::MrsCommand),
    /// Show its ports: link, addresses, device counters
    Ports(admin::Plain),
    /// Show all its counters
    Stats(admin::StatsCommand),
    /// Show its rates, live: of workers, ports and connections
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
    /// Make it read its configuration again
    Reload(admin::Plain),
    /// Change the level of its log
    LogLevel(admin::LogCommand),
    /// Have it take no new connections and applications, and wait until its connections have ended
    Drain(admin::drain::DrainCommand),
    /// Have it take new connections and applications again
    Undrain(admin::Plain),
    /// Show its settings, and how they differ from its file
    #[command(subcommand)]
    Config(admin::config::ConfigCommand),
    /// Collect what a report of a fault needs, from the appliance and this host
    Support(support::Args),
    /// Make man pages and completions for shells
    Generate(generate::Args),
}

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line is wrong.
    Usage(String),
    /// The command line or a file is wrong in several places: one line for each fault, with its
    /// place.
    Lines(String),
    /// The command was right, but its execution failed.
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

    /// Returns the reason alone.
    pub(crate) fn into_text(self) -> String {
        match self {
            Failure::Usage(what) | Failure::Lines(what) | Failure::Failed(what) => what,
        }
    }

    pub(crate) fn failed(what: impl fmt::Display) -> Failure {
        Failure::Failed(what.to_string())
    }
}

impl<E: Error> From<E> for Failure {
    /// Joins the error's text and each cause that the text so far does not contain.
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

/// Runs the command that the process was started for.
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
        Command::Drain(a) => admin::drain::drain(&a),
        Command::Undrain(a) => admin::drain::undrain(&a),
        Command::Config(a) => admin::config::config(&a),
        Command::Support(a) => support::run(&a),
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
            // Clap colours the text if the terminal can show colours. A closed pipe is not our
            // error.
            let _ = e.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = e.print();
            ExitCode::from(2)
        }
        _ => {
            // Only clap's first paragraph says what is wrong; `--help` shows usage and hints.
            let text = e.to_string();
            let line = text.lines().take_while(|l| !l.trim().is_empty()).collect::<Vec<_>>();
            let line = line.iter().map(|l| l.trim()).collect::<Vec<_>>().join(" ");
            let line = line.strip_prefix("error: ").unwrap_or(&line);
            complain(&format!("{line} (see heddle --help)"));
            ExitCode::from(2)
        }
    }
}

/// Prints a line on stderr that is no complaint, such as progress.
pub(crate) fn note(what: &str) {
    let _ = writeln!(io::stderr(), "{what}");
}

/// Prints one line on stderr, in the format of the log there.
fn complain(what: &str) {
    let line = what.replace('\n', " ");
    if heddle_daemon::log::is_json() && tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!("{line}");
        return;
    }
    // The process has no other place to report that stderr is closed, so ignore the error.
    let _ = writeln!(io::stderr(), "heddle: {line}");
}

/// Prints text for people on stdout. A reader that has closed the pipe is not an error.
pub(crate) fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
