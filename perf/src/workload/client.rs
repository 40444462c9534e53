//! The end that measures.

use core::net::SocketAddr;
use std::time::Duration;

use heddle_base::Instant;
use heddle_dataplane::Clock;
use heddle_services::Step;
use heddle_services::bench::Mode;
use heddle_services::bench::hello::{Reason, Refusal, Welcome};
use heddle_verbs::{CmEvent, ConnectParams, Device, EventQueue};

use super::{Run, Workload};

mod conn;
pub(crate) mod error;
mod measure;
mod pace;
mod pingpong;
mod reverse;
mod stream;

use conn::{Conn, Cqs};
use error::Flushed;
pub use error::WorkloadError;
pub(crate) use measure::Measure;
pub use measure::{Interval, Outcome};
use pingpong::PingPong;
pub use reverse::ReverseOutcome;
use stream::Stream;

/// How long a run may go without any progress.
const PATIENCE: Duration = Duration::from_secs(30);

/// The number of steps between checks for progress.
const LOOK_EVERY: u32 = 4096;

/// The highest number of connections in their set-up at a time.
const CONNECTING: usize = 32;
/// Connections that the client ends at a time.
const DISCONNECTING: usize = 1024;

enum Phase {
    Connecting,
    Running(Engine),
    Closing,
    Done,
}

enum Engine {
    Stream(Box<Stream>),
    PingPong(Box<PingPong>),
}

/// A run, from its connections to their end. The caller calls [`step`](Client::step), with the
/// RNIC's polls in between, until the run is done.
pub struct Client {
    device: Device,
    clock: Clock,
    events: EventQueue,
    remote: SocketAddr,
    run: Run,
    conns: Vec<Conn>,
    cqs: Cqs,
    phase: Phase,
    outcome: Outcome,
    /// The intervals that had ended when the engine was done, until the caller takes them.
    intervals: Vec<Interval>,
    started: usize,
    up: usize,
    down: usize,
    /// Connections that the client has begun to end.
    ended: usize,
    steps: u32,
    last_busy: Instant,
    was_busy: bool,
    flushed: Flushed,
}

impl Client {
    /// Prepares everything and starts to connect.
    pub fn new(
        device: &Device,
        clock: &Clock,
        remote: SocketAddr,
        run: Run,
    ) -> Result<Client, WorkloadError> {
        let events = EventQueue::new(None);
        let pd = device.alloc_pd()?;
        let cqs = Cqs::new(device, &run)?;
        let conns =
            (0..run.qps).map(|_| Conn::new(device, pd, &cqs, &run)).collect::<Result<_, _>>()?;
        let mut client = Client {
            device: device.clone(),
            clock: clock.clone(),
            events,
            remote,
            run,
            conns,
            cqs,
            phase: Phase::Connecting,
            outcome: Outcome::default(),
            intervals: Vec::new(),
            started: 0,
            up: 0,
            down: 0,
            ended: 0,
            steps: 0,
            last_busy: clock.now(),
            was_busy: false,
            flushed: Flushed::default(),
        };
        client.connect_more()?;
        Ok(client)
    }
}

impl Workload for Client {
    #[inline]
    fn step(&mut self) -> Result<Step, WorkloadError> {
        self.steps = self.steps.wrapping_add(1);
        let mut busy = false;
        if let Phase::Running(engine) = &mut self.phase {
            let stepped = match engine {
                _ if self.flushed.is_held() => {
                    self.flushed.give_up(self.clock.now()).map(|()| false)
                }
                Engine::Stream(s) => s.step(&self.conns, &self.cqs),
                Engine::PingPong(p) => p.step(&self.conns, &self.cqs),
            };
            busy = stepped.or_else(|e| self.flushed.hold(e, self.clock.now()).map(|()| false))?;
        }
        // Events are rare while operations run, so a busy client looks for them less often.
        if !busy || self.steps.is_multiple_of(64) {
            busy |= self.handle_events()?;
            busy |= self.next_phase()?;
        }
        self.was_busy |= busy;
        if self.steps.is_multiple_of(LOOK_EVERY) {
            self.look_for_stall()?;
        }
        Ok(match (&self.phase, busy) {
            (Phase::Done, _) => Step::Done,
            (_, true) => Step::Busy,
            (_, false) => Step::Idle,
        })
    }

    fn outcome(&self) -> Outcome {
        match &self.phase {
            Phase::Running(e) => e.measure().outcome(false),
            _ => self.outcome.clone(),
        }
    }

    fn ops(&self) -> u64 {
        match &self.phase {
            Phase::Running(e) => e.measure().ops,
            _ => self.outcome.ops,
        }
    }

    fn is_measuring(&self) -> bool {
        match &self.phase {
            Phase::Running(e) => e.measure().is_warm(),
            Phase::Connecting => false,
            Phase::Closing | Phase::Done => true,
        }
    }

    fn take_intervals(&mut self) -> Vec<Interval> {
        let mut intervals = core::mem::take(&mut self.intervals);
        if let Phase::Running(e) = &mut self.phase {
            intervals.extend(e.measure_mut().take_intervals());
        }
        intervals
    }

    fn abandon(&mut self) {
        for c in &self.conns {
            if let Some(id) = c.id
                && !c.closed
            {
                // The connection may be gone already, so an error is ignored.
                let _ = self.device.disconnect(id);
            }
        }
        self.phase = Phase::Done;
    }
}

impl Client {
    fn look_for_stall(&mut self) -> Result<(), WorkloadError> {
        let now = self.clock.now();
        if core::mem::take(&mut self.was_busy) {
            self.last_busy = now;
        } else if now.since(self.last_busy) > PATIENCE {
            let phase = match self.phase {
                Phase::Connecting => "connecting",
                Phase::Running(_) => "running",
                Phase::Closing | Phase::Done => "closing",
            };
            return Err(WorkloadError::Stalled { phase });
        }
        Ok(())
    }

    fn connect_more(&mut self) -> Result<(), WorkloadError> {
        while self.started < self.conns.len() && self.started - self.up < CONNECTING {
            let conn = &mut self.conns[self.started];
            let mut params = ConnectParams::new(conn.qp.clone()).mpa(self.run.mpa);
            params.private_data = conn.hello(&self.run).encode();
            conn.id = Some(self.device.connect(self.remote, params, &self.events)?);
            self.started += 1;
        }
        Ok(())
    }

    /// Ends some more connections: the control plane takes so many requests at a time.
    fn disconnect_more(&mut self) -> Result<(), WorkloadError> {
        let upto = (self.ended + DISCONNECTING).min(self.conns.len());
        for id in self.conns[self.ended..upto].iter().filter_map(|c| c.id) {
            self.device.disconnect(id)?;
        }
        self.ended = upto;
        Ok(())
    }

    fn handle_events(&mut self) -> Result<bool, WorkloadError> {
        let mut busy = false;
        while let Some(event) = self.events.poll() {
            busy = true;
            let remote = self.remote;
            let id = event.cm_id();
            let mut conns = self.conns.iter_mut().enumerate();
            let Some((n, conn)) = conns.find(|(_, c)| c.id == id) else { continue };
            match event {
                CmEvent::Established { private_data, .. } => {
                    let welcome = Welcome::decode(&private_data)?;
                    if welcome == Welcome::ASK {
                        conn.ask_for_grant(n)?;
                    } else {
                        conn.take_welcome(remote, &self.run, &welcome)?;
                        self.up += 1;
                    }
                }
                CmEvent::Rejected { private_data, .. } => {
                    return Err(refused(remote, &private_data));
                }
                CmEvent::ConnectError { error, .. } => {
                    return Err(WorkloadError::Connect { remote, failure: error });
                }
                CmEvent::Disconnected { reason, .. } => {
                    if !matches!(self.phase, Phase::Closing) {
                        return Err(WorkloadError::Disconnected(reason));
                    }
                    self.down += usize::from(!core::mem::replace(&mut conn.closed, true));
                }
                CmEvent::ConnectRequest { .. }
                | CmEvent::Listening { .. }
                | CmEvent::ListenFailed { .. } => {}
            }
        }
        if matches!(self.phase, Phase::Connecting) {
            busy |= self.handle_grants()?;
            if busy {
                self.connect_more()?;
            }
        }
        Ok(busy)
    }

    /// Handles the grants of servers for connections that are up.
    fn handle_grants(&mut self) -> Result<bool, WorkloadError> {
        let mut busy = false;
        // The client receives no other messages before all connections are up.
        while self.up < self.conns.len()
            && let Some(cqe) = self.cqs.recv.poll()
        {
            busy = true;
            let n = usize::try_from(cqe.wr_id >> 32).unwrap_or(usize::MAX);
            // A failed completion is skipped: the end of the connection brings the reason.
            let Some(conn) = self.conns.get_mut(n).filter(|_| cqe.status.is_success()) else {
                continue;
            };
            let text = conn.granted(cqe.len);
            let Ok(welcome) = Welcome::decode(&text) else {
                return Err(refused(self.remote, &text));
            };
            conn.take_welcome(self.remote, &self.run, &welcome)?;
            self.up += 1;
        }
        Ok(busy)
    }

    fn next_phase(&mut self) -> Result<bool, WorkloadError> {
        match &mut self.phase {
            Phase::Connecting if self.up == self.conns.len() => {
                let engine = match self.run.mode {
                    Mode::Bw | Mode::Rate => {
                        Engine::Stream(Box::new(Stream::new(&self.clock, self.run, &self.conns)))
                    }
                    Mode::Lat => Engine::PingPong(Box::new(PingPong::new(
                        &self.clock,
                        self.run,
                        &self.conns,
                    ))),
                };
                self.phase = Phase::Running(engine);
            }
            Phase::Running(engine) => {
                if !engine.is_done() {
                    return Ok(false);
                }
                self.outcome = engine.measure().outcome(self.run.verify);
                self.outcome.reverse = engine.reverse();
                self.intervals.extend(engine.measure_mut().take_intervals());
                self.phase = Phase::Closing;
                self.disconnect_more()?;
            }
            Phase::Closing if self.down == self.ended && self.ended < self.conns.len() => {
                self.disconnect_more()?;
            }
            Phase::Closing if self.down == self.conns.len() => self.phase = Phase::Done,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Returns the error for a server that refuses, with the server's reason.
fn refused(remote: SocketAddr, text: &[u8]) -> WorkloadError {
    let why = match Refusal::decode(text) {
        Ok(Refusal(reason)) => reason,
        Err(_) => Reason::NOT_OURS,
    };
    WorkloadError::Refused { remote, why: why.to_string() }
}

impl Engine {
    fn is_done(&self) -> bool {
        match self {
            Engine::Stream(s) => s.is_done(),
            Engine::PingPong(p) => p.is_done(),
        }
    }

    /// Returns the figures of the server's operations, in a bidirectional run.
    fn reverse(&self) -> Option<ReverseOutcome> {
        match self {
            Engine::Stream(s) => s.reverse(),
            Engine::PingPong(_) => None,
        }
    }

    fn measure(&self) -> &Measure {
        match self {
            Engine::Stream(s) => s.measure(),
            Engine::PingPong(p) => p.measure(),
        }
    }

    fn measure_mut(&mut self) -> &mut Measure {
        match self {
            Engine::Stream(s) => s.measure_mut(),
            Engine::PingPong(p) => p.measure_mut(),
        }
    }
}
