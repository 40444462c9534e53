//! The end that measures.

use core::net::SocketAddr;
use std::time::Duration;

use heddle_base::Instant;
use heddle_ctl::{
    CmEvent, CmId, ConnectFailure, ConnectParams, Cq, CtlError, Device, DisconnectReason,
    EventQueue, Mr, Qp, QpInit,
};
use heddle_dataplane::Clock;
use heddle_iwarp::mpa::startup::CrcPolicy;
use heddle_iwarp::{Access, Cqe, CqeStatus, Pd, PostError};

use super::hello::{Hello, HelloError, Reason, Refusal, Region, Welcome};
use super::{CREDIT_BUFFERS, CREDIT_LEN, LAT_BUFFERS, Run, send_window};
use crate::latency::{Latency, Recorder};
use crate::spec::{Mode, Op, Until};

mod pingpong;
mod stream;

use pingpong::PingPong;
use stream::Stream;

/// Whether there was something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Idle,
    /// Something.
    Busy,
    /// The run is over and its connections are closed.
    Done,
}

/// What a run measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Time measured.
    pub elapsed: Duration,
    /// Operations completed in it.
    pub ops: u64,
    /// Distribution of their times.
    pub latency: Latency,
    /// Whether every message was compared, and was right.
    pub verified: bool,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The control plane refused.
    #[error(transparent)]
    Ctl(#[from] CtlError),
    /// No connection.
    #[error("cannot connect to {remote}: {failure}")]
    Connect {
        /// The server.
        remote: SocketAddr,
        /// Why.
        failure: ConnectFailure,
    },
    /// The server does not want to.
    #[error("{remote} refuses: {why}")]
    Refused {
        /// The server.
        remote: SocketAddr,
        /// Why, as far as it says.
        why: String,
    },
    /// The server's private data.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The connection ended in the middle.
    #[error("the connection ended early: {0}")]
    Disconnected(DisconnectReason),
    /// An operation failed.
    #[error("operation {wr_id:#x} failed: {status:?}")]
    Completion {
        /// Of the work request.
        wr_id: u64,
        /// How.
        status: CqeStatus,
    },
    /// A work request was not taken.
    #[error("cannot post: {0}")]
    Post(#[from] PostError),
    /// An octet is not what was sent.
    #[error("message {message} of {size} octets is wrong at octet {at}")]
    Wrong {
        /// Number of the operation, or slot at the end of the run.
        message: u64,
        /// Its size.
        size: u32,
        /// First wrong octet.
        at: usize,
    },
    /// The server found wrong messages.
    #[error("the server counts {0} wrong messages")]
    WrongThere(u64),
    /// A message that means nothing.
    #[error("the server sent a message of {0} octets that means nothing")]
    Stray(u32),
    /// Nothing happens any more.
    #[error("nothing has happened for {} s ({phase})", PATIENCE.as_secs())]
    Stalled {
        /// In what part of the run.
        phase: &'static str,
    },
    /// The peer wants other sizes than this end allows.
    #[error("the data at {remote} does not fit: {why}")]
    Misfit {
        /// The peer.
        remote: SocketAddr,
        /// Why.
        why: &'static str,
    },
}

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Steps between looks at the clock for it.
const LOOK_EVERY: u32 = 4096;

/// Connections in their set-up at a time.
const CONNECTING: usize = 32;

/// A connection of a run.
struct Conn {
    qp: Qp,
    id: Option<CmId>,
    established: bool,
    closed: bool,
    /// Source of Writes and Sends, destination of Reads: one slot per operation.
    local: Mr,
    /// What comes back: Writes of a ping-pong, Sends, or what is read to compare it.
    back: Mr,
    /// The server's.
    remote: Region,
    /// Receive buffers the server has.
    window: u32,
}

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

/// One run, from its connections to their end. [`step`](Client::step) it, with the RNIC's polls in
/// between, until it is done.
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
    started: usize,
    up: usize,
    down: usize,
    steps: u32,
    last_busy: Instant,
    was_busy: bool,
}

/// The completion queues of all connections.
struct Cqs {
    send: Cq,
    recv: Cq,
}

/// What the engines share.
struct Measure {
    clock: Clock,
    recorder: Recorder,
    ops: u64,
    /// Since when it counts.
    since: Instant,
    /// When the warm-up is over and everything starts from zero; once.
    warm_until: Option<Instant>,
    /// When no more is started; moves with the end of the warm-up.
    deadline: Option<Instant>,
    /// How long is measured.
    length: Option<Duration>,
    /// When it stopped counting.
    ended: Option<Instant>,
}

impl Measure {
    fn new(clock: &Clock, run: &Run) -> Measure {
        let now = clock.now();
        let warm = run.warm_up();
        let length = match run.until {
            Until::Elapsed(d) => Some(d),
            Until::Iters(_) => None,
        };
        Measure {
            clock: clock.clone(),
            recorder: Recorder::default(),
            ops: 0,
            since: now,
            warm_until: (!warm.is_zero()).then(|| now + warm),
            deadline: length.map(|d| now + warm + d),
            length,
            ended: None,
        }
    }

    /// Looks at what time it is.
    fn tick(&mut self, now: Instant) {
        if self.warm_until.is_some_and(|t| t <= now) {
            self.warm_until = None;
            (self.ops, self.since) = (0, now);
            self.deadline = self.length.map(|d| now + d);
            self.recorder.clear();
        }
        if self.deadline.is_some_and(|t| t <= now) {
            self.end(now);
        }
    }

    #[inline]
    fn count(&mut self, from: Instant, to: Instant) {
        if self.ended.is_none() {
            self.ops += 1;
            self.recorder.record(to.since(from));
        }
    }

    fn end(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    fn outcome(&self, verified: bool) -> Outcome {
        Outcome {
            elapsed: self.ended.unwrap_or(self.since).since(self.since),
            ops: self.ops,
            latency: self.recorder.latency(),
            verified,
        }
    }
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
        let pd = device.alloc_pd();
        // Room for every completion there can be at a time is not needed: the worker waits.
        let cqs = Cqs {
            send: device.create_cq(CQ_DEPTH, None)?,
            recv: device.create_cq(CQ_DEPTH, None)?,
        };
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
            started: 0,
            up: 0,
            down: 0,
            steps: 0,
            last_busy: clock.now(),
            was_busy: false,
        };
        client.connect_more()?;
        Ok(client)
    }

    /// Does what there is to do. After [`Step::Done`] there is nothing more.
    #[inline]
    pub fn step(&mut self) -> Result<Step, WorkloadError> {
        self.steps = self.steps.wrapping_add(1);
        let mut busy = false;
        if let Phase::Running(engine) = &mut self.phase {
            busy = match engine {
                Engine::Stream(s) => s.step(&self.conns, &self.cqs)?,
                Engine::PingPong(p) => p.step(&self.conns, &self.cqs)?,
            };
        }
        // Events are rare while operations run.
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

    /// What was measured; final once the run is done.
    pub fn outcome(&self) -> Outcome {
        match &self.phase {
            Phase::Running(e) => e.measure().outcome(false),
            _ => self.outcome,
        }
    }

    /// Gives up: closes what is open, without waiting.
    pub fn abandon(&mut self) {
        for c in &self.conns {
            if let Some(id) = c.id
                && !c.closed
            {
                // It may be gone already.
                let _ = self.device.disconnect(id);
            }
        }
        self.phase = Phase::Done;
    }

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
            let mut params = ConnectParams::new(conn.qp.clone());
            params.crc = if self.run.crc { CrcPolicy::Required } else { CrcPolicy::Off };
            params.private_data = conn.hello(&self.run).encode();
            conn.id = Some(self.device.connect(self.remote, params, &self.events)?);
            self.started += 1;
        }
        Ok(())
    }

    fn handle_events(&mut self) -> Result<bool, WorkloadError> {
        let mut busy = false;
        while let Some(event) = self.events.poll() {
            busy = true;
            let remote = self.remote;
            let Some(conn) = self.conns.iter_mut().find(|c| c.id == Some(event.id())) else {
                continue;
            };
            match event {
                CmEvent::Established { private_data, .. } => {
                    conn.take_welcome(remote, &self.run, &Welcome::decode(&private_data)?)?;
                    self.up += 1;
                }
                CmEvent::Rejected { private_data, .. } => {
                    let why = match Refusal::decode(&private_data) {
                        Ok(Refusal(reason)) => reason,
                        Err(_) => Reason::NOT_OURS,
                    };
                    return Err(WorkloadError::Refused { remote, why: why.to_string() });
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
                CmEvent::ConnectRequest { .. } => {}
            }
        }
        if busy && matches!(self.phase, Phase::Connecting) {
            self.connect_more()?;
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
                self.phase = Phase::Closing;
                for id in self.conns.iter().filter_map(|c| c.id) {
                    self.device.disconnect(id)?;
                }
            }
            Phase::Closing if self.down == self.conns.len() => self.phase = Phase::Done,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Engine {
    fn is_done(&self) -> bool {
        match self {
            Engine::Stream(s) => s.is_done(),
            Engine::PingPong(p) => p.is_done(),
        }
    }

    fn measure(&self) -> &Measure {
        match self {
            Engine::Stream(s) => s.measure(),
            Engine::PingPong(p) => p.measure(),
        }
    }
}

/// Completions one queue of a run holds.
const CQ_DEPTH: u32 = 1 << 14;

impl Conn {
    fn new(device: &Device, pd: Pd, cqs: &Cqs, run: &Run) -> Result<Conn, WorkloadError> {
        let size = run.size as usize;
        let (back, rights) = match (run.op, run.mode) {
            (Op::Send, Mode::Lat) => (LAT_BUFFERS as usize * size, Access::LOCAL_WRITE),
            (Op::Send, _) => (CREDIT_BUFFERS as usize * CREDIT_LEN, Access::LOCAL_WRITE),
            (Op::Write, Mode::Lat) => (size, Access::REMOTE_WRITE),
            (Op::Write, _) => (run.region(), Access::LOCAL_WRITE),
            (Op::Read, _) => (0, Access::NONE),
        };
        let init = QpInit {
            send_cq: cqs.send.clone(),
            recv_cq: cqs.recv.clone(),
            // Twice: in a verified run each Write has its Read.
            sq_depth: 2 * run.depth + 2,
            rq_depth: CREDIT_BUFFERS,
        };
        Ok(Conn {
            qp: device.create_qp(pd, init)?,
            id: None,
            established: false,
            closed: false,
            local: device.alloc_mr(pd, run.region().max(1), Access::LOCAL_WRITE)?,
            back: device.alloc_mr(pd, back.max(1), rights)?,
            remote: Region::default(),
            window: 0,
        })
    }

    fn hello(&self, run: &Run) -> Hello {
        let region = match (run.op, run.mode) {
            (Op::Write, Mode::Lat) => {
                Region { stag: self.back.stag(), to: self.back.to(), len: self.back.len() as u64 }
            }
            _ => Region::default(),
        };
        let Run { op, mode, verify, size, depth, seed, .. } = *run;
        Hello { op, mode, verify, size, depth, seed, region }
    }

    fn take_welcome(
        &mut self,
        remote: SocketAddr,
        run: &Run,
        w: &Welcome,
    ) -> Result<(), WorkloadError> {
        let misfit = |why| Err(WorkloadError::Misfit { remote, why });
        if run.op != Op::Send && w.region.len < run.region() as u64 {
            return misfit("its region is too short");
        }
        if run.op == Op::Send && w.window < send_window(run.mode, run.depth) {
            return misfit("it has too few receive buffers");
        }
        (self.remote, self.window, self.established) = (w.region, w.window, true);
        Ok(())
    }
}

/// Connection and slot in the mark of a work request, with a bit for what it is for.
#[derive(Clone, Copy)]
struct Mark {
    conn: u32,
    /// A Read that brings back what was written.
    read_back: bool,
    slot: u32,
}

impl Mark {
    fn encode(self) -> u64 {
        u64::from(self.conn) << 32 | u64::from(self.read_back) << 31 | u64::from(self.slot)
    }

    fn decode(wr_id: u64) -> Mark {
        let low = u32::try_from(wr_id & 0xffff_ffff).unwrap_or(0);
        let conn = u32::try_from(wr_id >> 32).unwrap_or(0);
        Mark { conn, read_back: low >> 31 == 1, slot: low & 0x7fff_ffff }
    }
}

fn successful(cqe: &Cqe) -> Result<(), WorkloadError> {
    if cqe.status.is_success() {
        Ok(())
    } else {
        Err(WorkloadError::Completion { wr_id: cqe.wr_id, status: cqe.status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_mark_goes_round() {
        for (conn, read_back, slot) in [(0, false, 0), (7, true, 5), (u32::MAX, true, 0x7fff_ffff)]
        {
            let m = Mark::decode(Mark { conn, read_back, slot }.encode());
            assert_eq!((m.conn, m.read_back, m.slot), (conn, read_back, slot));
        }
    }

    #[test]
    fn test_measure_starts_again_after_the_warm_up_and_ends_at_the_deadline() {
        let (clock, hand) = Clock::manual();
        let spec = crate::spec::BenchSpec {
            until: Until::Elapsed(Duration::from_secs(1)),
            ..Default::default()
        };
        let mut m = Measure::new(&clock, &Run::new(&spec, crate::spec::Size(8)));
        let at = |ms: u64, m: &mut Measure| {
            hand.set(Instant::from_millis(ms));
            m.tick(clock.now());
            m.count(Instant::from_millis(ms - 1), clock.now());
        };
        at(50, &mut m);
        at(100, &mut m);
        at(600, &mut m);
        assert_eq!((m.ops, m.ended), (2, None), "the first was in the warm-up");
        at(1100, &mut m);
        at(1200, &mut m);
        let o = m.outcome(false);
        assert_eq!((o.ops, o.elapsed), (2, Duration::from_secs(1)));
        assert!((990_000..=1_010_000).contains(&o.latency.p50), "{:?}", o.latency);
    }
}
