//! The client of a server of perftest: `ib_write_bw -R`, `ib_read_lat -R` and so on.
//!
//! ```text
//!   parameters:   version, page, cache line, MTU    a message and its answer each
//!                 Dest without queue pair
//!   data:                                           connect
//!   parameters:   Dest, several times               the first with queue pairs tells where memory is
//!   data:                                           the operations
//!   parameters:   Dest                              not of ib_write_lat
//!                 five numbers, Dest                of ib_write_bw and ib_read_bw
//! ```
//!
//! [`heddle_services`] is the other side, and its documentation says what each program does. No
//! message has the number of operations or their size: a server that takes part (of Sends, and of
//! `ib_write_lat`) ends after the number that its own `-n` gives, so the user gives both sides the
//! same.

use core::net::SocketAddr;
use std::time::Duration;

use heddle_base::Instant;
use heddle_dataplane::Clock;
use heddle_services::Step;
use heddle_services::bench::{Mode, Op};
use heddle_services::perftest::Program;
use heddle_services::perftest::wire::{Dest, OTHERS, VERSION};
use heddle_types::CloseReason;
use heddle_types::mpa::{Revision, RtrSet};
use heddle_verbs::{
    Access, CmEvent, CmId, ConnectFailure, ConnectParams, Cq, Cqe, Data, Device, EventQueue, Mr,
    Pd, Qp, QpInit, RecvWr, SendOp, SendWr,
};

use super::client::Measure;
use super::client::error::{Flushed, successful};
use super::{Interval, Outcome, Run, Workload, WorkloadError};
use crate::spec::Until;

/// How long a run may go without any progress.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time that perftest's own client leaves the server to post its first receive: iWARP has no
/// way to repeat a message that finds none.
const SETTLE: Duration = Duration::from_secs(1);

/// How long the client asks for the data connection: perftest's server stops listening after the
/// first connection, and listens anew only after it has answered the last message on it.
const ASKING: Duration = Duration::from_secs(10);

/// The time from a refusal of the data connection to the next request.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The time from the last answer to the end of the connections. siw fails a Send that it has not
/// completed when the end comes, and perftest's server then reports a failed test.
const REST: Duration = Duration::from_millis(100);

/// The failure of a request to a server that does not listen.
const REFUSED: ConnectFailure = ConnectFailure::Tcp(CloseReason::Refused);

/// The number of Sends that a server can take beyond those that it has counted: perftest's default
/// number of receives (`-r`).
const RECEIVES: u64 = 512;

/// Receives for the echoes of `ib_send_lat`.
const ECHOES: u32 = 4;

/// Bytes of the number of Sends that the server has taken.
const CREDIT_LEN: usize = 4;

/// A step of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Say one of the messages that tell the version and the machine.
    Other(usize),
    /// Say a Dest without a queue pair.
    Empty,
    /// Say our Dest.
    Ours,
    /// Connect the queue pair for the data.
    Connect,
    /// Run the operations.
    Run,
    /// Say one of the five numbers of the result.
    Result(usize),
    /// Wait until the server's RNIC has completed the last answer.
    Rest,
}

/// Returns the steps of a program, as perftest 4.5 has them.
fn script(program: Program) -> Vec<Act> {
    let reports = matches!(program, Program::WriteBw | Program::ReadBw);
    let mut acts: Vec<Act> = (0..=OTHERS.len()).map(Act::Other).collect();
    acts.extend([Act::Empty, Act::Connect, Act::Empty]);
    // The first tells where memory is; with the others the two sides wait for each other.
    acts.extend([Act::Ours].repeat(if reports { 3 } else { 4 }));
    acts.push(Act::Run);
    // The server of ib_write_lat counts to its own end.
    if program != Program::WriteLat {
        acts.push(Act::Ours);
    }
    if reports {
        acts.extend((0..5).map(Act::Result));
        acts.push(Act::Ours);
    }
    acts.push(Act::Rest);
    acts
}

/// The event that the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// A connection: that of the parameters, or that of the data.
    Connection,
    /// The time of the next act: the server takes messages, listens anew, or has completed its last.
    Until(Instant),
    /// The answer to a message of this length.
    Answer(usize),
    /// The operations.
    Run,
    /// The end of both connections.
    End,
    /// Nothing: the run is over.
    Nothing,
}

/// A run against a server of perftest.
pub struct PerftestClient {
    device: Device,
    remote: SocketAddr,
    run: Run,
    program: Program,
    events: EventQueue,
    talk: Talk,
    data: Flow,
    acts: Vec<Act>,
    /// The number of the next act.
    next: usize,
    wait: Wait,
    last_busy: Instant,
    flushed: Flushed,
    /// The time of the first request for the data connection.
    asked: Option<Instant>,
}

/// The parameter connection.
struct Talk {
    qp: Qp,
    cq: Cq,
    /// A received message, then one to send.
    buffer: Mr,
    id: CmId,
    up: bool,
    closed: bool,
}

/// The data connection and its operations.
struct Flow {
    pd: Pd,
    qp: Qp,
    cq: Cq,
    id: Option<CmId>,
    closed: bool,
    /// Source of Writes and Sends, destination of Reads.
    local: Mr,
    /// The memory that the server writes: messages of a ping-pong, or the number of Sends taken.
    back: Mr,
    /// The server's memory.
    peer: Dest,
    measure: Measure,
    posted: u64,
    done: u64,
    /// The time at which each outstanding operation was posted, by its number modulo the depth.
    posted_at: Vec<Instant>,
    /// In a ping-pong: the number of the server's messages.
    heard: u64,
}

/// Returns the program that a run is the client of.
///
/// # Errors
/// The reason why there is none.
pub(crate) fn program(run: &Run) -> Result<Program, &'static str> {
    let counts = matches!(run.until, Until::Iters(_));
    let program = match (run.op, run.mode) {
        (Op::Write, Mode::Bw | Mode::Rate) => Program::WriteBw,
        (Op::Read, Mode::Bw | Mode::Rate) => Program::ReadBw,
        (Op::Send, Mode::Bw | Mode::Rate) => Program::SendBw,
        (Op::Write, Mode::Lat) => Program::WriteLat,
        (Op::Read, Mode::Lat) => Program::ReadLat,
        (Op::Send, Mode::Lat) => Program::SendLat,
        _ => return Err("perftest's servers take write, read and send"),
    };
    let takes_part = program.takes_sends() || program == Program::WriteLat;
    if takes_part && !counts {
        return Err("this server of perftest ends after the number of operations of its -n: give \
                    the same with --iters");
    }
    if run.size == 0 {
        return Err("perftest has no empty messages");
    }
    if run.qps != 1 || run.verify || run.rate.is_some() {
        return Err("a server of perftest has one connection here, without --verify and --rate");
    }
    Ok(program)
}

impl PerftestClient {
    /// Prepares everything and starts to connect.
    ///
    /// # Errors
    /// [`WorkloadError::Perftest`] for a run that perftest does not have, or an error of the device.
    pub fn new(
        device: &Device,
        clock: &Clock,
        remote: SocketAddr,
        run: Run,
    ) -> Result<PerftestClient, WorkloadError> {
        let program = program(&run).map_err(|why| WorkloadError::Perftest { remote, why })?;
        let mut run = run;
        let can_ask = run.mpa.revision > Revision::V1 && !run.mpa.fall_back;
        if program == Program::WriteLat && run.mpa.rtr.is_empty() && can_ask {
            // The server writes first, which MPA allows it in the peer-to-peer model alone (RFC 6581
            // section 9).
            run.mpa = run.mpa.peer_to_peer(RtrSet::ALL);
        }
        let events = EventQueue::new(None);
        let pd = device.alloc_pd()?;
        let talk_cq = device.create_cq(4, None)?;
        let data_cq = device.create_cq(run.depth + 2 + ECHOES, None)?;
        let (size, rights) = match program {
            Program::WriteLat => (run.size as usize, Access::REMOTE_WRITE),
            Program::SendBw => (CREDIT_LEN, Access::REMOTE_WRITE),
            Program::SendLat => (ECHOES as usize * run.size as usize, Access::LOCAL_WRITE),
            Program::WriteBw | Program::ReadBw | Program::ReadLat => (1, Access::NONE),
        };
        let qp = device.create_qp(pd, init(&talk_cq, 2, 2))?;
        let params = ConnectParams::new(qp.clone()).mpa(run.mpa);
        let talk = Talk {
            id: device.connect(remote, params, &events)?,
            qp,
            cq: talk_cq,
            buffer: device.alloc_mr(pd, 2 * Dest::LEN, Access::LOCAL_WRITE)?,
            up: false,
            closed: false,
        };
        let data = Flow {
            pd,
            qp: device.create_qp(pd, init(&data_cq, run.depth + 1, ECHOES))?,
            cq: data_cq,
            id: None,
            closed: false,
            local: device.alloc_mr(pd, run.size as usize, Access::LOCAL_WRITE)?,
            back: device.alloc_mr(pd, size, rights)?,
            peer: Dest::default(),
            measure: Measure::new(clock, &run),
            posted: 0,
            done: 0,
            posted_at: vec![Instant::ZERO; run.depth as usize],
            heard: 0,
        };
        Ok(PerftestClient {
            device: device.clone(),
            remote,
            run,
            program,
            events,
            talk,
            data,
            acts: script(program),
            next: 0,
            wait: Wait::Connection,
            last_busy: clock.now(),
            flushed: Flushed::default(),
            asked: None,
        })
    }

    fn now(&self) -> Instant {
        self.data.measure.clock.now()
    }

    /// Does the next act, or ends the run after the last.
    fn act(&mut self) -> Result<(), WorkloadError> {
        let Some(&act) = self.acts.get(self.next) else {
            self.wait = Wait::End;
            self.device.disconnect(self.talk.id)?;
            if let Some(id) = self.data.id {
                self.device.disconnect(id)?;
            }
            return Ok(());
        };
        self.next += 1;
        match act {
            Act::Other(0) => self.say(&VERSION),
            Act::Other(n) => self.say(OTHERS[n - 1]),
            Act::Empty => self.say(&Dest::default().encode()),
            Act::Ours => self.say(&self.data.dest(self.program).encode()),
            Act::Result(n) => self.say(&self.result(n).to_be_bytes()),
            Act::Rest => {
                self.wait = Wait::Until(self.now() + REST);
                Ok(())
            }
            Act::Connect => {
                let now = self.now();
                self.asked.get_or_insert(now);
                let params = ConnectParams::new(self.data.qp.clone()).mpa(self.run.mpa);
                self.data.id = Some(self.device.connect(self.remote, params, &self.events)?);
                self.wait = Wait::Connection;
                Ok(())
            }
            Act::Run => {
                self.wait = Wait::Run;
                self.data.start(self.program, &self.run)
            }
        }
    }

    /// Sends a message among the parameters. Its answer has the same length.
    fn say(&mut self, message: &[u8]) -> Result<(), WorkloadError> {
        let Talk { qp, buffer, .. } = &self.talk;
        qp.post_recv(&RecvWr { wr_id: 0, sges: &[buffer.sge(0, Dest::LEN)] })?;
        buffer.write(Dest::LEN, message);
        qp.post_send(&SendWr {
            wr_id: 1,
            op: SendOp::Send { solicited: false, invalidate: None },
            data: Data::Sges(&[buffer.sge(Dest::LEN, message.len())]),
            signaled: false,
            fence: false,
        })?;
        self.wait = Wait::Answer(message.len());
        Ok(())
    }

    /// Returns a number of the result as perftest's client reports it: bytes of a message,
    /// operations, highest and average MiB a second, millions of messages a second.
    fn result(&self, n: usize) -> u64 {
        let outcome = self.data.measure.outcome(false);
        let seconds = outcome.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let rate = outcome.ops as f64 / seconds;
        let mib = rate * f64::from(self.run.size) / f64::from(1u32 << 20);
        match n {
            0 => self.run.size.into(),
            1 => outcome.ops,
            2 | 3 => mib.to_bits(),
            _ => (rate * 1e-6).to_bits(),
        }
    }

    /// Handles the answer to the last message.
    fn answered(&mut self, cqe: &Cqe, expected: usize) -> Result<(), WorkloadError> {
        successful(cqe)?;
        if cqe.len as usize != expected {
            return Err(WorkloadError::Stray(cqe.len));
        }
        if expected == Dest::LEN {
            let mut b = [0; Dest::LEN];
            self.talk.buffer.read(0, &mut b);
            let dest = Dest::decode(&b);
            // The later ones repeat it.
            if self.data.peer.is_empty() {
                self.data.peer = dest;
            }
        }
        if self.acts.get(self.next) == Some(&Act::Run) && self.data.peer.is_empty() {
            let why = "it names no queue pair, as servers of perftest do";
            return Err(WorkloadError::Misfit { remote: self.remote, why });
        }
        self.act()
    }

    fn may_ask_again(&self) -> bool {
        self.asked.is_some_and(|asked| self.now().since(asked) < ASKING)
    }

    /// Lets the client ask for the data connection again, with another queue pair: the refusal has
    /// ended this one.
    fn ask_again(&mut self) -> Result<(), WorkloadError> {
        let Flow { pd, qp, cq, id, .. } = &mut self.data;
        *qp = self.device.create_qp(*pd, init(cq, self.run.depth + 1, ECHOES))?;
        *id = None;
        self.next -= 1;
        self.wait = Wait::Until(self.now() + ASK_EVERY);
        Ok(())
    }

    fn handle_events(&mut self) -> Result<bool, WorkloadError> {
        let mut busy = false;
        while let Some(event) = self.events.poll() {
            busy = true;
            let remote = self.remote;
            match event {
                CmEvent::Established { id, .. } if id == self.talk.id => {
                    self.talk.up = true;
                    self.wait = Wait::Until(self.now() + SETTLE);
                }
                CmEvent::Established { .. } => self.act()?,
                CmEvent::Rejected { .. } => {
                    let why = "the server rejects the connection".to_owned();
                    return Err(WorkloadError::Refused { remote, why });
                }
                CmEvent::ConnectError { id, error: REFUSED, .. }
                    if Some(id) == self.data.id && self.may_ask_again() =>
                {
                    self.ask_again()?;
                }
                CmEvent::ConnectError { error, .. } => {
                    return Err(WorkloadError::Connect { remote, failure: error });
                }
                CmEvent::Disconnected { id, reason, .. } => {
                    // The server closes after its last answer, perhaps before the client has read it.
                    let last = self.next == self.acts.len();
                    if self.wait != Wait::End && !last {
                        return Err(WorkloadError::Disconnected(reason));
                    }
                    if id == self.talk.id {
                        self.talk.closed = true;
                    } else {
                        self.data.closed = true;
                    }
                }
                CmEvent::ConnectRequest { .. }
                | CmEvent::Listening { .. }
                | CmEvent::ListenFailed { .. } => {}
            }
        }
        Ok(busy)
    }
}

impl Workload for PerftestClient {
    fn step(&mut self) -> Result<Step, WorkloadError> {
        if self.flushed.is_held() {
            self.handle_events()?;
            self.flushed.give_up(self.now())?;
            return Ok(Step::Idle);
        }
        self.work().or_else(|e| {
            self.flushed.hold(e, self.now())?;
            Ok(Step::Busy)
        })
    }

    fn outcome(&self) -> Outcome {
        self.data.measure.outcome(false)
    }

    fn ops(&self) -> u64 {
        self.data.measure.ops
    }

    fn is_measuring(&self) -> bool {
        self.data.measure.is_warm()
    }

    fn take_intervals(&mut self) -> Vec<Interval> {
        self.data.measure.take_intervals()
    }

    fn abandon(&mut self) {
        // A connection may be gone already, so errors are ignored.
        let _ = self.device.disconnect(self.talk.id);
        if let Some(id) = self.data.id {
            let _ = self.device.disconnect(id);
        }
        self.wait = Wait::Nothing;
    }
}

impl PerftestClient {
    /// Does the work that is due.
    fn work(&mut self) -> Result<Step, WorkloadError> {
        let mut busy = false;
        // An answer that came before the end of its connection counts.
        if self.talk.up
            && let Some(cqe) = self.talk.cq.poll()
        {
            busy = true;
            match self.wait {
                Wait::Answer(expected) => self.answered(&cqe, expected)?,
                _ => successful(&cqe)?,
            }
        }
        busy |= match self.wait {
            Wait::Run => {
                let (busy, done) = self.data.step(self.program, &self.run)?;
                if done {
                    self.act()?;
                }
                busy
            }
            Wait::Until(time) if self.now() >= time => {
                self.act()?;
                true
            }
            Wait::End if self.talk.closed && self.data.closed => {
                self.wait = Wait::Nothing;
                true
            }
            _ => false,
        };
        if !busy || self.wait != Wait::Run {
            busy |= self.handle_events()?;
        }
        let now = self.now();
        if busy || matches!(self.wait, Wait::Until(_)) {
            self.last_busy = now;
        } else if now.since(self.last_busy) > PATIENCE {
            return Err(WorkloadError::Stalled { phase: self.phase() });
        }
        Ok(match (self.wait, busy) {
            (Wait::Nothing, _) => Step::Done,
            (_, true) => Step::Busy,
            (_, false) => Step::Idle,
        })
    }

    fn phase(&self) -> &'static str {
        match self.wait {
            Wait::Connection => "connecting",
            Wait::Until(_) | Wait::Answer(_) => {
                "parameters: is its size and number of operations ours?"
            }
            Wait::Run => "running: is the server's number of operations (-n) ours?",
            Wait::End | Wait::Nothing => "closing",
        }
    }
}

impl Flow {
    /// Returns our end of the data connection, with the memory that the server may write.
    fn dest(&self, program: Program) -> Dest {
        let memory = match program {
            Program::WriteLat | Program::SendBw => &self.back,
            _ => &self.local,
        };
        Dest {
            reads: heddle_verbs::DEFAULT_READ_DEPTH.into(),
            qpn: self.qp.qpn().0.max(1),
            stag: memory.stag().0,
            to: memory.to(),
        }
    }

    /// Starts the measurement and posts the first operations.
    fn start(&mut self, program: Program, run: &Run) -> Result<(), WorkloadError> {
        if program == Program::SendLat {
            (0..ECHOES).try_for_each(|n| self.post_echo(n, run.size))?;
        }
        self.measure = Measure::new(&self.measure.clock, run);
        let now = self.measure.since;
        // The server of ib_write_lat begins.
        if program != Program::WriteLat {
            self.post_more(program, run, now)?;
        }
        Ok(())
    }

    fn post_echo(&self, n: u32, size: u32) -> Result<(), WorkloadError> {
        let sges = &[self.back.sge(n as usize * size as usize, size as usize)];
        Ok(self.qp.post_recv(&RecvWr { wr_id: ECHO | u64::from(n), sges })?)
    }

    /// Does the work that is due. Returns whether there was any, and whether the run is over.
    fn step(&mut self, program: Program, run: &Run) -> Result<(bool, bool), WorkloadError> {
        let mut busy = false;
        if program == Program::WriteLat {
            busy |= self.hear(run)?;
        }
        while let Some(cqe) = self.cq.poll() {
            busy = true;
            successful(&cqe)?;
            let now = self.measure.clock.now();
            self.measure.tick(now);
            if cqe.wr_id & ECHO != 0 {
                // A message that answers none, or of another length than the server was to have. A
                // server that answers twice is found when the answers are ahead of the completions:
                // an answer acknowledges the message before it.
                let ahead = self.posted - self.done > u64::from(run.depth);
                if self.heard == self.posted || cqe.len != run.size || ahead {
                    return Err(WorkloadError::Stray(cqe.len));
                }
                self.post_echo(u32::try_from(cqe.wr_id & !ECHO).unwrap_or(0), run.size)?;
                self.heard += 1;
                self.measure.count(self.posted_at[0], now);
                self.post_more(program, run, now)?;
                continue;
            }
            self.done += 1;
            if !matches!(program, Program::WriteLat | Program::SendLat) {
                let slot = usize::try_from(cqe.wr_id % u64::from(run.depth)).unwrap_or(0);
                self.measure.count(self.posted_at[slot], now);
                self.post_more(program, run, now)?;
            }
        }
        // The server writes its count without a completion here.
        if program == Program::SendBw && !busy {
            let now = self.measure.clock.now();
            self.post_more(program, run, now)?;
        }
        let all = match run.until {
            Until::Iters(n) => self.posted >= n,
            Until::Elapsed(_) => self.measure.ended.is_some(),
        };
        let over = all
            && self.done == self.posted
            && (program != Program::SendLat || self.heard == self.posted);
        if over {
            self.measure.end(self.measure.clock.now());
        }
        Ok((busy, over))
    }

    /// Looks for the server's next Write of `ib_write_lat`, and answers it.
    fn hear(&mut self, run: &Run) -> Result<bool, WorkloadError> {
        let next = (self.heard + 1).to_le_bytes()[0];
        let Until::Iters(n) = run.until else { return Ok(false) };
        if self.heard == n || self.back.load(run.size as usize - 1) != next {
            return Ok(false);
        }
        let now = self.measure.clock.now();
        self.heard += 1;
        if self.heard > 1 {
            self.measure.tick(now);
            self.measure.count(self.posted_at[0], now);
        }
        self.post(Program::WriteLat, run, now)?;
        Ok(true)
    }

    /// Posts as many operations as the depth, the end of the run and the server's receives allow.
    fn post_more(
        &mut self,
        program: Program,
        run: &Run,
        now: Instant,
    ) -> Result<(), WorkloadError> {
        let depth = if program.is_latency() { 1 } else { u64::from(run.depth) };
        loop {
            let done = if program == Program::SendLat { self.heard } else { self.done };
            let all = match run.until {
                Until::Iters(n) => self.posted >= n,
                Until::Elapsed(_) => self.measure.ended.is_some(),
            };
            let allowed = match program {
                Program::SendBw => self.posted < self.credit() + RECEIVES,
                _ => true,
            };
            if all || self.posted - done >= depth || !allowed {
                return Ok(());
            }
            self.post(program, run, now)?;
        }
    }

    /// Returns the number of Sends that the server has taken, which the server writes.
    fn credit(&self) -> u64 {
        let mut b = [0; CREDIT_LEN];
        self.back.read(0, &mut b);
        let low = u32::from_le_bytes(b);
        // The server counts in 32 bits. It is behind us by less than that.
        let behind = self.posted.wrapping_sub(low.into()) & u64::from(u32::MAX);
        self.posted.saturating_sub(behind)
    }

    fn post(&mut self, program: Program, run: &Run, now: Instant) -> Result<(), WorkloadError> {
        let Dest { to, .. } = self.peer;
        let stag = self.peer.stag();
        let op = match program {
            Program::WriteBw | Program::WriteLat => SendOp::Write { stag, to },
            Program::ReadBw | Program::ReadLat => SendOp::Read { stag, to },
            Program::SendBw | Program::SendLat => {
                SendOp::Send { solicited: false, invalidate: None }
            }
        };
        if program == Program::WriteLat {
            let round = (self.posted + 1).to_le_bytes()[0];
            self.local.write(run.size as usize - 1, &[round]);
        }
        let number = self.posted;
        self.posted += 1;
        let slot = if program.is_latency() { 0 } else { number % u64::from(run.depth) };
        self.posted_at[usize::try_from(slot).unwrap_or(0)] = now;
        let sge = [self.local.sge(0, run.size as usize)];
        let data = Data::Sges(&sge);
        Ok(self.qp.post_send(&SendWr { wr_id: number, op, data, signaled: true, fence: false })?)
    }
}

/// Returns the attributes of a queue pair for the parameters, or for the data.
fn init(cq: &Cq, sq: u32, rq: u32) -> QpInit {
    let init = QpInit::new(cq.clone()).depths(sq, rq);
    QpInit { max_send_sge: 1, max_recv_sge: 1, max_inline: 0, ..init }
}

/// Marks a receive for an echo.
const ECHO: u64 = 1 << 63;
