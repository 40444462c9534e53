//! `heddle top`

mod model;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use heddle::units::Span;
use heddle_perf::report::align;
use heddle_socket::Client;
use heddle_socket::admin::{ConnsArgs, MAX_CONNS, Request};
use ratatui::DefaultTerminal;
use serde_json::json;

use super::super::{Failure, say};
use super::Where;
use model::{Order, Sample};
use view::{HEADS, View, conn_cells, export_cells, port_cells, worker_cells};

/// Show activity, live: rates of workers, ports and connections.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Time between two samples
    #[arg(long, value_name = "T", default_value = "1s")]
    every: Span,
    /// Take two samples and show what happened between them; the default without a terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    at: Where,
}

/// The shortest and the longest time between two samples.
const EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if !EVERY.contains(&args.every.0) {
        return Err(Failure::usage("--every is between 100ms and 60m"));
    }
    let mut client = args.at.connect()?;
    let first = sample(&mut client)?;
    if args.once || args.at.json || !std::io::stdout().is_terminal() {
        std::thread::sleep(args.every.0);
        print(&first, &sample(&mut client)?, args.at.json);
        return Ok(());
    }
    let mut terminal = ratatui::try_init()?;
    let done = live(&mut terminal, args, client, first);
    ratatui::restore();
    done
}

fn sample(client: &mut Client) -> Result<Sample, Failure> {
    let args = ConnsArgs { limit: Some(MAX_CONNS), ..ConnsArgs::default() };
    Ok(Sample {
        stats: client.call(&Request::Stats)?,
        ports: client.call(&Request::Ports)?,
        conns: client.call(&Request::Conns(Some(args)))?,
        status: client.call(&Request::Status)?,
    })
}

fn print(old: &Sample, new: &Sample, as_json: bool) {
    let workers = model::workers(&old.stats, &new.stats);
    let ports = model::ports(&old.ports, &new.ports);
    let conns = model::conns(&old.conns, &new.conns, Order::Rate);
    let exports = model::exports(&old.status, &new.status);
    if as_json {
        let workers = workers.iter().map(|w| {
            json!({"worker": w.worker, "busy": w.busy, "tx_bits": w.tx_bits, "rx_bits": w.rx_bits,
                "tx_fpdus": w.tx_fpdus, "rx_fpdus": w.rx_fpdus, "retransmits": w.retransmits})
        });
        let ports = ports.iter().map(|p| {
            json!({"name": p.name, "up": p.up, "tx_bits": p.tx_bits, "rx_bits": p.rx_bits,
                "tx_frames": p.tx_frames, "rx_frames": p.rx_frames, "lost": p.lost})
        });
        let conns = conns.iter().map(|c| {
            json!({"conn": c.conn.conn, "service": c.conn.service, "remote": c.conn.remote,
                "tx_bits": c.tx_bits, "rx_bits": c.rx_bits, "retransmits": c.retransmits})
        });
        let exports = exports.iter().map(|e| {
            json!({"address": e.listener.address, "service": e.listener.service,
                "conns": e.conns[0], "tcp_conns": e.conns[1], "calls": e.calls, "failed": e.failed,
                "read_bytes": e.read, "written_bytes": e.written})
        });
        let all = json!({
            "workers": workers.collect::<Vec<_>>(),
            "ports": ports.collect::<Vec<_>>(),
            "exports": exports.collect::<Vec<_>>(),
            "conns": conns.collect::<Vec<_>>(),
            "silent": new.silent(),
        });
        return say(&format!("{all}\n"));
    }
    let [worker, port, export, conn] = HEADS;
    let workers = align(&worker, workers.iter().map(|w| worker_cells(w).to_vec()), 1);
    let ports = align(&port, ports.iter().map(|p| port_cells(p).to_vec()), 2);
    let conns = align(&conn, conns.iter().map(|c| conn_cells(c).to_vec()), 2);
    let exports = match &exports[..] {
        [] => String::new(),
        all => align(&export, all.iter().map(|e| export_cells(e).to_vec()), 2) + "\n",
    };
    let silent = super::conns::silent(&new.silent());
    say(&format!("{workers}\n{ports}\n{exports}{conns}{silent}"));
}

/// Draws until the user presses `q`. An appliance that restarts is found again.
fn live(
    terminal: &mut DefaultTerminal,
    args: &Args,
    client: Client,
    first: Sample,
) -> Result<(), Failure> {
    let mut client = Some(client);
    let (mut old, mut new) = (first.clone(), first);
    let mut view = View { order: Order::Rate, skip: 0, trouble: None };
    let mut next = Instant::now() + args.every.0;
    loop {
        terminal.draw(|frame| view.draw(frame, &old, &new))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                let last = new.conns.conns.len().saturating_sub(1);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        return Ok(());
                    }
                    KeyCode::Char('s') => view.order = view.order.next(),
                    KeyCode::Up => view.skip = view.skip.saturating_sub(1),
                    KeyCode::Down => view.skip = (view.skip + 1).min(last),
                    KeyCode::PageUp => view.skip = view.skip.saturating_sub(10),
                    KeyCode::PageDown => view.skip = (view.skip + 10).min(last),
                    KeyCode::Home => view.skip = 0,
                    _ => {}
                }
            }
            continue;
        }
        next = Instant::now() + args.every.0;
        let looked = match &mut client {
            Some(client) => sample(client),
            None => args.at.connect().and_then(|mut c| {
                let s = sample(&mut c)?;
                client = Some(c);
                Ok(s)
            }),
        };
        match looked {
            Ok(s) => {
                view.trouble = None;
                // A restarted appliance counts from 0 again, so its new sample has no rate over the
                // old one.
                old = if s.stats.at_ns < new.stats.at_ns { s.clone() } else { new };
                new = s;
            }
            Err(Failure::Usage(e) | Failure::Failed(e) | Failure::Lines(e)) => {
                view.trouble = Some(e);
                client = None;
            }
        }
    }
}
