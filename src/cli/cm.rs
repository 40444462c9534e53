//! `heddle cm`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use heddle::connection::{
    AcceptParams, CmEvent, CmId, ConnectParams, Depth, EventQueue, ListenParams, Protocol,
};
use heddle::memory::Pd;
use heddle::queue::QpInit;
use heddle::tcp::ConnConfig;
use heddle::units::Span;
use heddle::{Cq, Device, Endpoint, EndpointConfig, Instant, Qp};
use heddle_daemon::config::keepalive;

use super::log::LogArgs;
use super::net::{NetArgs, mtu};
use super::signals::Stop;
use super::{Failure, say};

mod spec;

use spec::{Ask, Listen};

/// Makes and answers connections, and shows the events that the connection manager reports, one per
/// line. Sends no data on them.
#[derive(Debug, clap::Args)]
#[command(long_about = LONG)]
pub(crate) struct Args {
    #[command(flatten)]
    net: NetArgs,
    /// Where to listen, and the answer (10.0.0.1:7174=accept); may be given several times
    #[arg(long = "listen", value_name = "ADDR:PORT=ANSWER", long_help = spec::LISTEN_HELP)]
    listen: Vec<Listen>,
    /// The peers to connect to, one after the other; may be given several times
    #[arg(long = "connect", value_name = "ADDR:PORT[,OPTION]...", required_unless_present = "listen",
          long_help = spec::CONNECT_HELP)]
    connect: Vec<Ask>,
    /// Speak the RDMA IP CM service of InfiniBand over RoCEv2: answer it beside MPA, and connect by
    /// it. Such connections carry no data
    #[arg(long)]
    infiniband: bool,
    /// Bytes of an IP packet
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = mtu)]
    mtu: u16,
    /// Silence of a peer after which the RNIC probes whether it is alive [0s: never]. Over
    /// InfiniBand only the peer that made the connection is probed
    #[arg(long, value_name = "T", default_value = "60s")]
    keepalive: Span,
    #[command(flatten)]
    log: LogArgs,
}

const LONG: &str = "Makes and answers connections, and shows what the connection manager says of them, \
    an event a line. Nothing is sent on them.\n\n\
    Ends when all that was to be connected to is over, or, with --listen, when told to. \
    Private data are shown as LENGTH:HEX, without the zeros at their end.";

/// Bytes for the queues of its connections.
const QUEUES: usize = 4 << 20;

/// Time for the last packets of a closed connection to be exchanged.
const LINGER: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    args.net.source()?;
    for l in &args.listen {
        if !l.addr.ip().is_unspecified() && !args.net.has(l.addr.ip()) {
            return Err(Failure::usage(format!("--listen {}: no --ip has that address", l.addr)));
        }
    }
    args.log.start();
    let stop = Stop::on_signals()?;
    let (_eal, mut endpoint) = args.net.open_with(|config| EndpointConfig {
        mtu: args.mtu,
        queues: QUEUES,
        infiniband: args.infiniband,
        ib_keepalive: (!args.keepalive.0.is_zero()).then_some(args.keepalive.0),
        tcp: ConnConfig { keepalive: keepalive(args.keepalive.0), ..config.tcp },
        ..config
    })?;
    let result = Session::new(args, &endpoint).and_then(|s| s.run(&stop, &mut endpoint));
    let until = endpoint.now() + LINGER;
    while endpoint.now() < until {
        endpoint.poll();
    }
    result
}

/// An action that a connection has scheduled for later.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Due {
    Answer(usize),
    End,
}

struct Session<'a> {
    args: &'a Args,
    device: Device,
    pd: Pd,
    cq: Cq,
    events: EventQueue,
    /// The listeners' names, in the order of the command line.
    listeners: Vec<heddle::connection::ListenerId>,
    /// Listeners that were requested and not answered yet.
    starting: usize,
    /// Scheduled actions, by their time.
    due: BTreeMap<(Instant, CmId), Due>,
    /// For each connection that is being made, the time from its establishment to its end.
    ends: BTreeMap<CmId, Option<Duration>>,
    /// Queue pairs, for as long as their connections exist.
    qps: BTreeMap<CmId, Qp>,
    /// The outgoing connection that is being made, or established.
    current: Option<CmId>,
    next: usize,
    /// Outgoing connections that failed.
    failed: BTreeSet<CmId>,
}

impl<'a> Session<'a> {
    fn new(args: &'a Args, endpoint: &Endpoint) -> Result<Session<'a>, Failure> {
        let device = endpoint.device().clone();
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(64, None)?;
        let events = EventQueue::new(None);
        let mut listeners = Vec::new();
        for l in &args.listen {
            let params = ListenParams { infiniband: args.infiniband, ..ListenParams::default() };
            listeners.push(device.listen(l.addr, params, &events)?);
        }
        Ok(Session {
            args,
            device,
            pd,
            cq,
            events,
            starting: listeners.len(),
            listeners,
            due: BTreeMap::new(),
            ends: BTreeMap::new(),
            qps: BTreeMap::new(),
            current: None,
            next: 0,
            failed: BTreeSet::new(),
        })
    }

    fn run(mut self, stop: &Stop, endpoint: &mut Endpoint) -> Result<(), Failure> {
        let announced = self.starting;
        let mut listening = announced == 0;
        while !stop.is_set() {
            endpoint.poll();
            let now = endpoint.now();
            while let Some(event) = self.events.poll() {
                say(&format!("{}\n", line(&event)));
                self.take(now, &event)?;
            }
            if !listening && self.starting == 0 {
                listening = true;
                say("listening\n");
            }
            while let Some(first) = self.due.first_entry()
                && first.key().0 <= now
            {
                let ((_, id), due) = first.remove_entry();
                self.carry_out(id, &due)?;
            }
            if listening && self.current.is_none() && !self.connect_next()? {
                break;
            }
        }
        match self.failed.len() {
            0 => Ok(()),
            n => Err(Failure::failed(format!("{n} of {} not connected", self.args.connect.len()))),
        }
    }

    /// Returns false when there is no further connection to make.
    fn connect_next(&mut self) -> Result<bool, Failure> {
        let Some(ask) = self.args.connect.get(self.next) else {
            return Ok(!self.args.listen.is_empty());
        };
        self.next += 1;
        let qp = self.qp()?;
        let protocol =
            if self.args.infiniband { Protocol::InfiniBand } else { Protocol::default() };
        let params = ConnectParams {
            protocol,
            private_data: ask.options.private.clone().into_bytes(),
            timeout: ask.options.timeout,
            ..ConnectParams::new(qp.clone()).reads(ask.options.ird, ask.options.ord)
        };
        let id = self.device.connect(ask.addr, params, &self.events)?;
        self.qps.insert(id, qp);
        self.ends.insert(id, ask.options.end);
        self.current = Some(id);
        Ok(true)
    }

    fn qp(&self) -> Result<Qp, Failure> {
        Ok(self.device.create_qp(self.pd, QpInit::new(self.cq.clone()).depths(4, 4))?)
    }

    fn take(&mut self, now: Instant, event: &CmEvent) -> Result<(), Failure> {
        match event {
            CmEvent::Listening { .. } => self.starting -= 1,
            CmEvent::ListenFailed { error, .. } => return Err(Failure::failed(error)),
            CmEvent::ConnectRequest { id, listener, .. } => {
                if let Some(n) = self.listeners.iter().position(|l| l == listener) {
                    let delay = self.args.listen[n].options.delay;
                    self.due.insert((now + delay, *id), Due::Answer(n));
                }
            }
            CmEvent::Established { id, .. } => {
                if let Some(after) = self.ends.get(id).copied().flatten() {
                    self.due.insert((now + after, *id), Due::End);
                }
            }
            CmEvent::Rejected { id, .. } | CmEvent::ConnectError { id, .. } => {
                if self.current == Some(*id) {
                    self.failed.insert(*id);
                }
                self.over(*id);
            }
            CmEvent::Disconnected { id, .. } => self.over(*id),
        }
        Ok(())
    }

    fn over(&mut self, id: CmId) {
        self.due.retain(|(_, other), _| *other != id);
        self.ends.remove(&id);
        self.qps.remove(&id);
        if self.current == Some(id) {
            self.current = None;
        }
    }

    fn carry_out(&mut self, id: CmId, due: &Due) -> Result<(), Failure> {
        match *due {
            Due::End => self.device.disconnect(id)?,
            Due::Answer(n) => {
                let Listen { accept, options, .. } = &self.args.listen[n];
                let private_data = options.private.clone().into_bytes();
                if *accept {
                    let qp = self.qp()?;
                    let params = AcceptParams::new(qp.clone()).reads(options.ird, options.ord);
                    self.device.accept(id, AcceptParams { private_data, ..params })?;
                    self.qps.insert(id, qp);
                    self.ends.insert(id, options.end);
                } else {
                    self.device.reject(id, private_data)?;
                }
            }
        }
        Ok(())
    }
}

/// Formats an event as one line.
fn line(event: &CmEvent) -> String {
    let mut s = String::new();
    // Writing to a string cannot fail.
    let _ = match event {
        CmEvent::Listening { .. } => write!(s, "Listening"),
        CmEvent::ListenFailed { error, .. } => write!(s, "ListenFailed error={error}"),
        CmEvent::ConnectRequest { local, remote, private_data, peer, transport, .. } => {
            let _ =
                write!(s, "ConnectRequest transport={transport:?} local={local} remote={remote}");
            if let Some(p) = peer {
                let _ = write!(s, " peer_ird={} peer_ord={}", depth(p.ird), depth(p.ord));
            }
            write!(s, " private={}", hex(private_data))
        }
        CmEvent::Established { private_data, agreed, local, remote, .. } => write!(
            s,
            "Established transport={:?} local={local} remote={remote} ird={} ord={} private={}",
            agreed.transport,
            agreed.ird,
            agreed.ord,
            hex(private_data)
        ),
        CmEvent::Rejected { private_data, .. } => {
            write!(s, "Rejected private={}", hex(private_data))
        }
        CmEvent::ConnectError { error, .. } => write!(s, "ConnectError error={error}"),
        CmEvent::Disconnected { reason, .. } => write!(s, "Disconnected reason={reason}"),
    };
    s
}

fn depth(d: Depth) -> String {
    d.get().map_or_else(|| "unnegotiated".into(), |n| n.to_string())
}

fn hex(data: &[u8]) -> String {
    let end = data.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    let mut s = format!("{}:", data.len());
    for b in &data[..end] {
        let _ = write!(s, "{b:02x}");
    }
    s
}
