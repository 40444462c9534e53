//! Commands that ask a running appliance, over its control socket.
//!
//! With `--json` each command prints the answer as one document, and otherwise as tables for
//! people.

pub(crate) mod config;
mod conns;
pub(crate) mod drain;
mod show;
pub(crate) mod top;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Subcommand;
use heddle::units::Span;
use heddle_socket::admin::{
    ApplicationKill, ConnKill, ConnsArgs, Forward, ListenAdd, ListenDel, LogLevel, Mrs, MrsArgs,
    Ports, Reloaded, Request, Stats, Status,
};
use heddle_socket::{Client, DEFAULT_PATH};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Failure, say};

/// The control socket to ask, and the format of the answer.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Where {
    /// Control socket of the appliance
    #[arg(long, value_name = "PATH", default_value = DEFAULT_PATH)]
    socket: PathBuf,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

impl Where {
    fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.socket)?)
    }

    /// Sends one request and shows the answer.
    fn show<A: DeserializeOwned + Serialize>(
        &self,
        request: &Request,
        table: impl FnOnce(&A) -> String,
    ) -> Result<(), Failure> {
        let answer: A = self.connect()?.call(request)?;
        self.print(&answer, table)
    }

    fn print<A: Serialize>(
        &self,
        answer: &A,
        table: impl FnOnce(&A) -> String,
    ) -> Result<(), Failure> {
        if self.json {
            say(&format!("{}\n", serde_json::to_string(answer)?));
        } else {
            say(&table(answer));
        }
        Ok(())
    }
}

/// The arguments of a command that takes only a socket and a format.
#[derive(Debug, clap::Args)]
pub(crate) struct Plain {
    #[command(flatten)]
    at: Where,
}

/// The connections to show.
#[derive(Debug, clap::Args)]
pub(crate) struct ConnsCommand {
    /// Connections whose peer has this address
    #[arg(long, value_name = "IP")]
    remote: Option<IpAddr>,
    /// Connections at this local port
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Connections of this worker
    #[arg(long, value_name = "N")]
    worker: Option<usize>,
    /// Connections in this state
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Show at most N connections [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    at: Where,
}

impl ConnsCommand {
    fn args(&self) -> ConnsArgs {
        ConnsArgs {
            after: None,
            limit: self.limit,
            remote: self.remote,
            port: self.port,
            worker: self.worker,
            state: self.state.clone(),
        }
    }
}

/// The arguments of `heddle mrs`.
#[derive(Debug, clap::Args)]
pub(crate) struct MrsCommand {
    /// Show STags as well, with which a peer could be given access (root only)
    #[arg(long)]
    stags: bool,
    #[command(flatten)]
    at: Where,
}

/// The arguments of `heddle stats`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatsCommand {
    /// Show counters that are 0 as well
    #[arg(long)]
    all: bool,
    /// Explain each counter
    #[arg(long)]
    help_texts: bool,
    #[command(flatten)]
    at: Where,
}

/// The commands for listeners.
#[derive(Debug, Subcommand)]
pub(crate) enum ListenCommand {
    /// Start a service, or forward connections
    Add {
        /// Address and service, as 10.0.0.1:7174=rping; the address alone, with --forward
        #[arg(value_name = "ADDR:PORT[=SERVICE]")]
        listen: String,
        /// Answer InfiniBand's requests too, whose connections carry no data: cmtime only
        #[arg(long, conflicts_with = "forward")]
        infiniband: bool,
        /// Congestion control of its connections: cubic, newreno or dctcp
        #[arg(long, value_name = "NAME")]
        congestion: Option<String>,
        /// Whether its connections use ECN: off, accept, request or accurate
        #[arg(long, value_name = "NAME")]
        ecn: Option<String>,
        /// Whether its connections spread new data over long round trips: off or auto
        #[arg(long, value_name = "NAME")]
        pacing: Option<String>,
        /// Forward connections that arrive over the other protocol than --over
        #[arg(long, value_name = "ADDR:PORT", requires = "over")]
        forward: Option<String>,
        /// The protocol of the outgoing connection: iwarp or infiniband
        #[arg(long, value_name = "PROTOCOL", requires = "forward")]
        over: Option<String>,
        /// Connections forwarded at a time [default: 64]
        #[arg(long, value_name = "N", requires = "forward")]
        connections: Option<usize>,
        /// The longest time that the target may take [default: 5s]
        #[arg(long, value_name = "T", requires = "forward")]
        timeout: Option<Span>,
        #[command(flatten)]
        at: Where,
    },
    /// Stop accepting connections there; existing connections continue
    Del {
        /// The listener's address
        #[arg(value_name = "ADDR:PORT")]
        address: String,
        #[command(flatten)]
        at: Where,
    },
}

/// The commands for connections.
#[derive(Debug, Subcommand)]
pub(crate) enum ConnCommand {
    /// End the connection, whichever application has it
    Kill {
        /// Its number, as `heddle conns` shows it
        #[arg(value_name = "NUMBER")]
        conn: u64,
        /// Send what is posted and close, instead of a reset
        #[arg(long)]
        in_order: bool,
        #[command(flatten)]
        at: Where,
    },
}

/// The commands for applications of other processes.
#[derive(Debug, Subcommand)]
pub(crate) enum ApplicationCommand {
    /// End the application: it loses its device and everything that it allocated
    Kill {
        /// Its number, as `heddle status` shows it
        #[arg(value_name = "NUMBER")]
        application: u64,
        #[command(flatten)]
        at: Where,
    },
}

/// The arguments of `heddle log-level`.
#[derive(Debug, clap::Args)]
pub(crate) struct LogCommand {
    /// The level from which the log has lines
    #[arg(value_parser = ["off", "error", "warn", "info", "debug", "trace"])]
    level: String,
    #[command(flatten)]
    at: Where,
}

pub(crate) fn status(args: &Plain) -> Result<(), Failure> {
    args.at.show(&Request::Status, |s: &Status| show::status(s))
}

pub(crate) fn conns(args: &ConnsCommand) -> Result<(), Failure> {
    let all = conns::all(&mut args.at.connect()?, args.args())?;
    args.at.print(&all, conns::table)
}

pub(crate) fn qps(args: &ConnsCommand) -> Result<(), Failure> {
    let all = conns::all(&mut args.at.connect()?, args.args())?;
    args.at.print(&conns::qps(&all), conns::qp_table)
}

/// Returns all connections, and all connected queue pairs, as the commands for them print them.
///
/// # Errors
/// The reason, in one line.
pub(crate) fn all_conns(client: &mut Client) -> Result<(Value, Value), String> {
    let all = conns::all(client, ConnsArgs::default()).map_err(Failure::into_text)?;
    let value = |v: Result<Value, serde_json::Error>| v.map_err(|e| e.to_string());
    let qps = value(serde_json::to_value(conns::qps(&all)))?;
    Ok((value(serde_json::to_value(all))?, qps))
}

pub(crate) fn mrs(args: &MrsCommand) -> Result<(), Failure> {
    let request = Request::Mrs(Some(MrsArgs { stags: args.stags }));
    args.at.show(&request, |m: &Mrs| show::mrs(m))
}

pub(crate) fn ports(args: &Plain) -> Result<(), Failure> {
    args.at.show(&Request::Ports, |p: &Ports| show::ports(p))
}

pub(crate) fn stats(args: &StatsCommand) -> Result<(), Failure> {
    args.at.show(&Request::Stats, |s: &Stats| show::stats(s, args.all, args.help_texts))
}

pub(crate) fn listen(command: &ListenCommand) -> Result<(), Failure> {
    match command {
        ListenCommand::Add {
            listen,
            infiniband,
            congestion,
            ecn,
            pacing,
            forward,
            over,
            connections,
            timeout,
            at,
        } => {
            let [congestion, ecn, pacing] = [congestion, ecn, pacing].map(Clone::clone);
            let args = match (forward, over) {
                (Some(to), Some(over)) => {
                    let (to, over) = (to.clone(), over.clone());
                    let ms = |t: &Span| u64::try_from(t.0.as_millis()).unwrap_or(u64::MAX);
                    let timeout_ms = timeout.as_ref().map(ms);
                    let to = Forward { to, over, connections: *connections, timeout_ms };
                    ListenAdd {
                        address: listen.clone(),
                        service: String::new(),
                        infiniband: false,
                        congestion,
                        ecn,
                        pacing,
                        forward: Some(to),
                    }
                }
                _ => {
                    let form = "expected ADDR:PORT=SERVICE, as 10.0.0.1:7174=rping";
                    let parts = listen.split_once('=').ok_or_else(|| Failure::usage(form))?;
                    ListenAdd {
                        address: parts.0.into(),
                        service: parts.1.into(),
                        infiniband: *infiniband,
                        congestion,
                        ecn,
                        pacing,
                        forward: None,
                    }
                }
            };
            at.show(&Request::ListenAdd(args), |(): &()| String::new())
        }
        ListenCommand::Del { address, at } => {
            let args = ListenDel { address: address.clone() };
            at.show(&Request::ListenDel(args), |(): &()| String::new())
        }
    }
}

pub(crate) fn conn(command: &ConnCommand) -> Result<(), Failure> {
    let ConnCommand::Kill { conn, in_order, at } = command;
    let args = ConnKill { conn: *conn, in_order: *in_order };
    at.show(&Request::ConnKill(args), |(): &()| String::new())
}

pub(crate) fn application(command: &ApplicationCommand) -> Result<(), Failure> {
    let ApplicationCommand::Kill { application, at } = command;
    let args = ApplicationKill { application: *application };
    at.show(&Request::ApplicationKill(args), |(): &()| String::new())
}

/// Fails if the appliance could not carry out a part of the file, even when it carried out the
/// rest.
pub(crate) fn reload(args: &Plain) -> Result<(), Failure> {
    let done: Reloaded = args.at.connect()?.call(&Request::Reload)?;
    args.at.print(&done, show::reloaded)?;
    if done.failed.is_empty() { Ok(()) } else { Err(Failure::failed(done.failed.join("; "))) }
}

pub(crate) fn log(args: &LogCommand) -> Result<(), Failure> {
    let level = LogLevel { level: args.level.clone() };
    args.at.show(&Request::LogLevel(level), |(): &()| String::new())
}
