//! `heddle drain` and `heddle undrain`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use heddle::units::Span;
use heddle_socket::Client;
use heddle_socket::admin::{DrainArgs, Drained, End, Request, Status};
use serde::Serialize;

use super::{Plain, Where};
use crate::cli::{Failure, note};

/// Interval between looks at the connections that are left.
const LOOK: Duration = Duration::from_millis(100);

/// Shortest time between two lines of progress.
const SAY: Duration = Duration::from_secs(1);

/// Time that connections have to end in order, before they are reset.
const IN_ORDER: Duration = Duration::from_secs(5);

/// Time that reset connections have to be gone.
const RESET: Duration = Duration::from_secs(5);

/// The arguments of `heddle drain`.
#[derive(Debug, clap::Args)]
pub(crate) struct DrainCommand {
    /// The longest wait for connections to end [default: until they have ended]
    #[arg(long, value_name = "T")]
    timeout: Option<Span>,
    /// End the connections that are left after --timeout, or at once without it: in order, and
    /// after 5 s by a reset
    #[arg(long)]
    end: bool,
    /// Begin to drain and return
    #[arg(long, conflicts_with_all = ["timeout", "end"])]
    no_wait: bool,
    #[command(flatten)]
    at: Where,
}

/// The outcome of a drain.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    /// Beginning of the drain, since the start of the appliance.
    since_ns: u64,
    /// Connections that are left.
    conns: usize,
    /// Applications of other processes that are left.
    applications: usize,
    /// Connections that were there when this command ended them.
    ended: usize,
}

/// A wait for connections to end.
struct Wait {
    client: Client,
    outcome: Outcome,
    /// The number of the last line of progress, and its time.
    said: Option<(usize, Instant)>,
}

pub(crate) fn drain(args: &DrainCommand) -> Result<(), Failure> {
    let mut client = args.at.connect()?;
    let begun: Drained = client.call(&Request::Drain(None))?;
    let Drained { since_ns, conns, applications } = begun;
    let outcome = Outcome { since_ns, conns, applications, ended: 0 };
    let mut wait = Wait { client, outcome, said: None };
    if args.no_wait {
        return args.at.print(&wait.outcome, table);
    }
    let patience = match (args.timeout, args.end) {
        (Some(t), _) => Some(t.0),
        (None, true) => Some(Duration::ZERO),
        (None, false) => None,
    };
    let mut gone = wait.until_none(patience)?;
    if !gone && args.end {
        wait.outcome.ended = wait.outcome.conns;
        gone = wait.end(End::InOrder, IN_ORDER)? || wait.end(End::Reset, RESET)?;
    }
    args.at.print(&wait.outcome, table)?;
    if gone {
        return Ok(());
    }
    let left = wait.outcome.conns;
    let what = format!("{} left, and the appliance still drains", connections(left));
    Err(Failure::failed(match args.end {
        true => what,
        false => format!("{what}: heddle drain --end ends them, heddle undrain gives up"),
    }))
}

pub(crate) fn undrain(args: &Plain) -> Result<(), Failure> {
    args.at.show(&Request::Undrain, |(): &()| String::new())
}

impl Wait {
    /// Waits until no connection is left; returns false if some are left after `patience`.
    fn until_none(&mut self, patience: Option<Duration>) -> Result<bool, Failure> {
        let until = patience.and_then(|p| Instant::now().checked_add(p));
        loop {
            let status: Status = self.client.call(&Request::Status)?;
            if status.draining_ns.is_none() {
                return Err(Failure::failed("another client has ended the drain (heddle undrain)"));
            }
            (self.outcome.conns, self.outcome.applications) = (status.conns, status.clients.len());
            if status.conns == 0 {
                return Ok(true);
            }
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return Ok(false);
            }
            self.say(now);
            sleep(until.map_or(LOOK, |until| LOOK.min(until - now)));
        }
    }

    /// Ends all connections, and waits until they have ended.
    fn end(&mut self, how: End, patience: Duration) -> Result<bool, Failure> {
        let args = DrainArgs { end: Some(how) };
        let _: Drained = self.client.call(&Request::Drain(Some(args)))?;
        self.until_none(Some(patience))
    }

    /// Reports the number of connections, if it has changed.
    fn say(&mut self, now: Instant) {
        let n = self.outcome.conns;
        if self.said.is_some_and(|(said, at)| said == n || now - at < SAY) {
            return;
        }
        note(&format!("draining: {} left", connections(n)));
        self.said = Some((n, now));
    }
}

fn connections(n: usize) -> String {
    format!("{n} connection{}", if n == 1 { " is" } else { "s are" })
}

fn table(o: &Outcome) -> String {
    let applications = match o.applications {
        0 => String::new(),
        n => format!("; applications that keep their devices: {n}"),
    };
    let ended = match o.ended {
        0 => String::new(),
        n => format!("; ended: {n}"),
    };
    format!("no new connections are taken; connections left: {}{ended}{applications}\n", o.conns)
}
