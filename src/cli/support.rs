//! `heddle support`: collects what a report of a fault needs.
//!
//! Every part is collected by itself. A part that cannot be had is listed with the reason, so the
//! command is of use also when the appliance does not answer or does not run.

mod host;
mod store;

use std::fmt::Write;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use heddle_socket::admin::{MrsArgs, Request, Settings, Status};
use heddle_socket::{Client, DEFAULT_PATH};
use serde_json::Value;

use super::{Failure, admin, say};
use store::Store;

/// Collects from the appliance: version, settings, state, counters, last log lines; and from the
/// host: kernel, processors, memory, devices. Nothing that gives access to memory, and no data of
/// connections.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to put it: an archive if the name ends in .tar.gz or .tgz, otherwise a directory. It
    /// must not exist yet, and only its owner can read it
    #[arg(value_name = "FILE.tar.gz|DIR")]
    to: PathBuf,
    /// The configuration file, where the appliance does not answer
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Control socket of the appliance
    #[arg(long, value_name = "PATH", default_value = DEFAULT_PATH)]
    socket: PathBuf,
}

/// A part of a report: name, purpose, and contents or the reason why there are none.
struct Part {
    name: &'static str,
    what: &'static str,
    contents: Result<Vec<u8>, String>,
}

#[derive(Default)]
struct Parts(Vec<Part>);

impl Parts {
    fn add(&mut self, name: &'static str, what: &'static str, got: Result<String, String>) {
        self.0.push(Part { name, what, contents: got.map(String::into_bytes) });
    }

    fn add_value(&mut self, name: &'static str, what: &'static str, got: Result<&Value, String>) {
        let text = |v: &Value| serde_json::to_string_pretty(v).map_err(|e| e.to_string());
        self.add(name, what, got.and_then(text));
    }
}

const README: &str = "\
A report on an appliance of Heddle and its host, made by heddle support.

It has addresses and ports of peers, names and user numbers of applications, paths of exported
directories, names of interfaces and devices, and lines of the log. It has no data of connections,
no STags, and no keys or passwords, which Heddle's configuration does not have. Read it before you
give it to others.

";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // The place comes first: without one, nothing has to be collected.
    let mut store = Store::create(&args.to).map_err(Failure::failed)?;
    let mut parts = Parts::default();
    parts.add("version.txt", "version of this program and of DPDK", Ok(host::version()));
    appliance(args, &mut parts);
    host::collect(&mut parts);
    let mut readme = README.to_owned();
    let mut missing = String::new();
    for part in &parts.0 {
        // Writing to a string cannot fail.
        let _ = match &part.contents {
            Ok(_) => writeln!(readme, "{:<20} {}", part.name, part.what),
            Err(why) => writeln!(missing, "{:<20} {}: {why}", part.name, part.what),
        };
    }
    if !missing.is_empty() {
        let _ = write!(readme, "\nWhat could not be had:\n\n{missing}");
    }
    let written = (|| {
        store.put("README.txt", readme.as_bytes())?;
        for part in &parts.0 {
            if let Ok(contents) = &part.contents {
                store.put(part.name, contents)?;
            }
        }
        store.finish()
    })();
    written.map_err(|e| Failure::failed(format!("{}: {e}", args.to.display())))?;
    let n = parts.0.iter().filter(|p| p.contents.is_ok()).count();
    say(&format!("{}: {n} parts; README.txt in it lists them\n{missing}", args.to.display()));
    Ok(())
}

/// Collects everything that the appliance reports.
fn appliance(args: &Args, parts: &mut Parts) {
    let mut ask = |name, what, request: &Request| {
        // A new connection each time: after a question without an answer, the old one is of no use.
        let answer = Client::connect(&args.socket).and_then(|mut c| c.call::<Value>(request));
        let answer = answer.map_err(|e| e.to_string());
        parts.add_value(name, what, answer.as_ref().map_err(Clone::clone));
        answer.ok()
    };
    let status = ask("status.json", "state of the appliance", &Request::Status);
    let settings = ask("settings.json", "settings in force", &Request::Config);
    ask("config-diff.json", "difference of settings and file", &Request::ConfigDiff);
    ask("mrs.json", "registered memory, without STags", &Request::Mrs(Some(MrsArgs::default())));
    ask("ports.json", "ports and their counters", &Request::Ports);
    ask("stats.json", "all counters", &Request::Stats);
    ask("log.json", "last lines of the log", &Request::Log);
    let conns = || {
        let mut client = Client::connect(&args.socket).map_err(|e| e.to_string())?;
        admin::all_conns(&mut client)
    };
    let (conns, qps) = match conns() {
        Ok((conns, qps)) => (Ok(conns), Ok(qps)),
        Err(e) => (Err(e.clone()), Err(e)),
    };
    parts.add_value("conns.json", "connections", conns.as_ref().map_err(Clone::clone));
    parts.add_value("qps.json", "connected queue pairs", qps.as_ref().map_err(Clone::clone));
    let settings: Option<Settings> = settings.and_then(|v| serde_json::from_value(v).ok());
    let status: Option<Status> = status.and_then(|v| serde_json::from_value(v).ok());
    let none = || "the appliance has not reported it".to_owned();
    let text = settings.as_ref().map(|s| s.text.clone());
    parts.add("settings.toml", "settings in force, as a file", text.ok_or_else(none));
    let file = args.config.clone();
    let file = file.or_else(|| settings.as_ref().and_then(|s| s.file.as_ref()).map(PathBuf::from));
    let file = file.ok_or_else(|| "no file is known (--config)".to_owned());
    let file = file.and_then(|f| host::read(&f));
    parts.add("heddle.toml", "configuration file", file);
    let metrics = settings.as_ref().ok_or_else(none).and_then(|s| {
        let addr = s.settings.pointer("/metrics/listen").and_then(Value::as_str);
        let addr = addr.ok_or("the appliance has no metrics")?;
        metrics(addr).map_err(|e| format!("{addr}: {e}"))
    });
    parts.add("metrics.txt", "metrics, as Prometheus reads them", metrics);
    let of_process = |file: &str| {
        let pid = status.as_ref().ok_or_else(none)?.pid;
        host::read(&PathBuf::from(format!("/proc/{pid}/{file}")))
    };
    parts.add("process-status.txt", "its process: memory, threads, rights", of_process("status"));
    parts.add("process-limits.txt", "its process: limits", of_process("limits"));
}

/// Reads the metrics over HTTP.
fn metrics(addr: &str) -> Result<String, String> {
    const PATIENCE: Duration = Duration::from_secs(5);
    /// Longest answer.
    const MOST: u64 = 64 << 20;
    let fail = |e: std::io::Error| e.to_string();
    let mut addr: SocketAddr = addr.parse().map_err(|_| "no address")?;
    // An appliance that listens at all addresses also listens at this one.
    if addr.ip().is_unspecified() {
        addr.set_ip(match addr.ip() {
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE).map_err(fail)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(fail)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(fail)?;
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(fail)?;
    let mut bytes = Vec::new();
    stream.take(MOST).read_to_end(&mut bytes).map_err(fail)?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no answer in HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(status.to_owned()),
    }
}
