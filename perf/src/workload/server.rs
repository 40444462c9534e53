//! The `perf` service: the end of a benchmark that answers.
//!
//! ```text
//!   greeted ──▶ preparing ──▶ serving
//!      its first    memory cleared and
//!      message      filled, a piece a step
//! ```
//!
//! A greeting alone gets a queue pair and a few octets. Memory is set aside when the client is there
//! and asks for it, and made ready in pieces, so that neither those who only greet nor those who
//! ask for much make others wait.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use heddle_verbs::{
    AcceptParams, Access, Arm, CmEvent, CmId, Cq, Cqe, Data, Device, DeviceError, EventQueue,
    ListenFailure, ListenParams, Mr, Pd, PostError, Qp, QpInit, RecvWr, Reservation, SendOp,
    SendWr, Waker,
};
use tracing::{debug, info};

use super::hello::{Hello, Reason, Refusal, Region, Welcome};
use super::{CREDIT_LEN, pattern, send_window};
use crate::connections::{Connection, Connections, place_and_low, wr_id};
use crate::inbox::{EVENTS, Inbox};
use crate::server::Serve;
use crate::service::Limits;
use crate::shares::MemoryShares;
use crate::spec::{Mode, Op};

/// Connections one service takes.
const MAX_CONNS: usize = 4096;

/// Registered memory one connection may ask for.
const MAX_CONN_MEMORY: u64 = 512 << 20;

/// Completions taken in one step, so that connection events have their turn.
const TURN: usize = 256;

/// Buffers for credits under way.
const CREDITS: u32 = 8;

/// Enough for the credits of all connections.
const CQ_DEPTH: u32 = 1 << 16;

/// Answers benchmarks on one address. Whoever polls the RNIC also calls [`step`](Self::step).
pub struct PerfServer {
    device: Device,
    inbox: Inbox,
    send_cq: Cq,
    recv_cq: Cq,
    conns: Connections<Client>,
    /// Connections whose memory is made ready, in turn.
    preparing: VecDeque<usize>,
    /// Connections whose memory is watched for Writes.
    watched: Vec<usize>,
    /// Octets of memory that each address has.
    memory: MemoryShares,
}

/// A connection, with what it has from the start.
struct Client {
    hello: Hello,
    pd: Pd,
    qp: Qp,
    /// Where its grant or refusal is sent from.
    talk: Mr,
    stage: Stage,
}

/// How far a connection is with its memory.
enum Stage {
    /// It has not asked for it, or has been refused.
    Greeted,
    /// Some of it is not clear yet.
    Clearing(Reservation),
    /// So many octets are filled with what is to be read.
    Filling(Mr, usize),
    /// It has it.
    Serving(Box<Serving>),
}

/// A connection that is served.
struct Serving {
    hello: Hello,
    qp: Qp,
    /// Slots.
    local: Mr,
    credits: Mr,
    /// Messages taken, and how many of them were told.
    taken: u64,
    told: u64,
    wrong: u64,
    next_credit: u32,
    credits_out: u32,
    /// A credit is due although the batch is not full.
    asked: bool,
    bytes: Vec<u8>,
}

/// What tells the work request of a credit from those of messages.
const CREDIT: u32 = 1 << 31;

/// The work request of a grant or refusal.
const GRANT: u32 = 1 << 30;

/// Octets cleared or filled in a step: some 20 microseconds.
const PIECE: usize = 256 << 10;

impl PerfServer {
    /// Listens. `waker` is woken when there is something to do.
    pub fn new(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        waker: Option<&Waker>,
    ) -> Result<PerfServer, DeviceError> {
        PerfServer::with_limits(device, addr, params, Limits::default(), waker)
    }

    /// Listens, with other limits than the usual ones.
    pub fn with_limits(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        limits: Limits,
        waker: Option<&Waker>,
    ) -> Result<PerfServer, DeviceError> {
        let events = EventQueue::new(waker.cloned());
        let listener = device.listen(addr, params, &events)?;
        Ok(PerfServer {
            device: device.clone(),
            inbox: Inbox::new(events),
            send_cq: device.create_cq(CQ_DEPTH, waker.cloned())?,
            recv_cq: device.create_cq(CQ_DEPTH, waker.cloned())?,
            conns: Connections::new(device, listener, MAX_CONNS, limits),
            preparing: VecDeque::new(),
            watched: Vec::new(),
            memory: MemoryShares::new(&limits),
        })
    }

    /// Whether memory has to be watched or made ready: nobody wakes this service for it.
    pub fn must_poll(&self) -> bool {
        !self.watched.is_empty() || !self.preparing.is_empty()
    }

    /// Connections.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Does what there is to do; true when there was something. Never blocks.
    #[inline]
    pub fn step(&mut self) -> bool {
        let mut busy = self.watch();
        // Of each that is watched there may be an answer that has gone.
        busy |= self.poll_cqs(TURN.max(self.watched.len()));
        busy |= self.prepare_some();
        self.conns.end_silent();
        for _ in 0..EVENTS {
            let Some(event) = self.inbox.poll() else { break };
            busy = true;
            self.handle_event(event);
        }
        busy
    }

    fn poll_cqs(&mut self, turn: usize) -> bool {
        let mut busy = false;
        for _ in 0..turn {
            let Some(cqe) = self.recv_cq.poll() else { break };
            busy = true;
            self.handle_recv(&cqe);
        }
        for _ in 0..turn {
            let Some(cqe) = self.send_cq.poll() else { break };
            busy = true;
            if let Some((place, conn)) = self.conns.of(&cqe)
                && let Stage::Serving(s) = &mut conn.state.stage
                && let Err(e) = s.handle_sent(&cqe)
            {
                self.conns.fail(place, &e);
            }
        }
        busy
    }

    #[inline]
    fn handle_recv(&mut self, cqe: &Cqe) {
        let Some((place, conn)) = self.conns.of(cqe) else { return };
        match &mut conn.state.stage {
            // An answer to it would be one to a message that did not come.
            Stage::Serving(s) if s.hello.mode == Mode::Lat && s.is_of_another_kind(cqe) => {
                self.conns.fail(place, &"a message of another operation than announced");
            }
            Stage::Serving(s) => {
                if let Err(e) = s.handle_recv(cqe) {
                    self.conns.fail(place, &e);
                }
            }
            Stage::Greeted if cqe.immediate.is_some() => {
                self.conns.fail(place, &"Immediate Data where a Send was to ask for memory");
            }
            Stage::Greeted => self.start_preparing(place),
            // There was a buffer for one message.
            Stage::Clearing(_) | Stage::Filling(..) => {}
        }
    }

    /// Looks for Writes of ping-pongs and answers them.
    #[inline]
    fn watch(&mut self) -> bool {
        let mut busy = false;
        for &place in &self.watched {
            let Some(conn) = self.conns.get_mut(place) else { continue };
            let Stage::Serving(state) = &mut conn.state.stage else { continue };
            let last = state.hello.size as usize - 1;
            let next = state.taken.wrapping_add(1);
            if state.local.load(last) == next.to_le_bytes()[0] {
                busy = true;
                state.taken = next;
                if let Err(e) = state.write_back(place) {
                    self.conns.fail(place, &e);
                }
            }
        }
        busy
    }

    fn handle_event(&mut self, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest { id, remote, private_data, .. } => {
                if let Err(reason) = self.accept(id, remote, &private_data) {
                    self.conns.rejected(remote, &reason);
                    let _ = self.device.reject(id, Refusal(reason).encode());
                }
            }
            CmEvent::Established { id, remote, agreed, .. } => {
                info!(peer = %remote, ?agreed, "connected");
                self.conns.expect_word(id);
            }
            CmEvent::ConnectError { id, error, .. } => {
                while self.poll_cqs(TURN) {}
                if let Some((place, _)) = self.conns.not_established(id, &error) {
                    self.preparing.retain(|&p| p != place);
                }
            }
            CmEvent::Disconnected { id, reason, .. } => {
                while self.poll_cqs(TURN) {}
                if let Some((place, c)) = self.conns.ended(id, reason) {
                    self.preparing.retain(|&p| p != place);
                    self.watched.retain(|&p| p != place);
                    if !matches!(c.state.stage, Stage::Greeted) {
                        self.memory.give_back(c.remote.ip(), memory_of(&c.state.hello));
                    }
                }
            }
            CmEvent::Listening { .. } => self.conns.listens(Ok(())),
            CmEvent::ListenFailed { error, .. } => self.conns.listens(Err(error)),
            CmEvent::Rejected { .. } => {}
        }
    }

    fn accept(&mut self, id: CmId, remote: SocketAddr, private_data: &[u8]) -> Result<(), Reason> {
        let hello = Hello::decode(private_data)?;
        let place = self.conns.free_place(remote.ip()).map_err(|_| Reason::BUSY)?;
        // A message that found no room in the completion queue would end all connections that have
        // something there.
        let others = self.conns.states().map(|c| u64::from(receives(&c.hello))).sum::<u64>();
        if others + u64::from(receives(&hello)) > CQ_DEPTH.into() {
            return Err(Reason::BUSY);
        }
        // Whether there is room is told at once; it is taken only when the client asks.
        self.room(remote.ip(), &hello)?;
        let client = self.greet(hello, place).map_err(|e| {
            debug!(error = %e, "cannot serve");
            Reason::NO_MEMORY
        })?;
        let qp = client.qp.clone();
        let mut params = AcceptParams::new(qp.clone());
        params.private_data = Welcome::ASK.encode();
        self.device.accept(id, params).map_err(|_| Reason::BUSY)?;
        self.conns.insert(place, id, remote, qp, client);
        Ok(())
    }

    /// Sets aside what a connection asks for.
    fn room(&self, peer: IpAddr, hello: &Hello) -> Result<Reservation, Reason> {
        let len = memory_of(hello);
        let fits = len <= MAX_CONN_MEMORY && self.memory.has_room(peer, len);
        let len = usize::try_from(len).ok().filter(|_| fits);
        self.device.reserve(len.ok_or(Reason::NO_MEMORY)?).map_err(|e| {
            debug!(error = %e, "cannot serve");
            Reason::NO_MEMORY
        })
    }

    /// A queue pair, and room for the grant and for credits.
    fn greet(&self, hello: Hello, place: usize) -> Result<Client, PrepareError> {
        let pd = self.device.alloc_pd();
        let init = QpInit {
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            sq_depth: CREDITS + 1,
            rq_depth: receives(&hello),
            srq: None,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let qp = self.device.create_qp(pd, init)?;
        let talk = self.device.alloc_mr(pd, Welcome::LEN, Access::NONE)?;
        qp.post_recv(&RecvWr { wr_id: wr_id(place, 0), sges: &[] })?;
        Ok(Client { hello, pd, qp, talk, stage: Stage::Greeted })
    }

    /// The client is there and asks for its memory.
    fn start_preparing(&mut self, place: usize) {
        let Some(Connection { remote, state, .. }) = self.conns.get_mut(place) else { return };
        let (peer, hello) = (remote.ip(), state.hello);
        let room = self.room(peer, &hello);
        let Some(Connection { state, .. }) = self.conns.get_mut(place) else { return };
        match room {
            Ok(memory) => {
                state.stage = Stage::Clearing(memory);
                self.memory.take(peer, memory_of(&hello));
                self.preparing.push_back(place);
            }
            Err(reason) => {
                // The client ends the connection when it has read it.
                if let Err(e) = state.say(place, &Refusal(reason).encode()) {
                    self.conns.fail(place, &e);
                }
            }
        }
    }

    /// Makes some memory of one connection ready.
    #[inline]
    fn prepare_some(&mut self) -> bool {
        let Some(place) = self.preparing.pop_front() else { return false };
        let Some(conn) = self.conns.get_mut(place) else { return true };
        let serves_pings = (conn.state.hello.op, conn.state.hello.mode) == (Op::Write, Mode::Lat);
        match conn.state.prepare(&self.device, place) {
            Ok(false) => self.preparing.push_back(place),
            Ok(true) if serves_pings => self.watched.push(place),
            Ok(true) => {}
            Err(e) => self.conns.fail(place, &e),
        }
        true
    }
}

impl Serve for PerfServer {
    fn step(&mut self) -> bool {
        PerfServer::step(self)
    }

    fn stop_listening(&mut self) {
        self.conns.stop_listening();
    }

    fn is_listening(&self) -> Result<bool, ListenFailure> {
        self.conns.is_listening()
    }

    fn has_work(&self) -> bool {
        self.send_cq.arm(Arm::Next);
        self.recv_cq.arm(Arm::Next);
        self.must_poll()
            || !self.inbox.is_empty()
            || !self.send_cq.is_empty()
            || !self.recv_cq.is_empty()
    }
}

/// Receive buffers for a client: of its messages, or of the one that asks for its memory.
fn receives(hello: &Hello) -> u32 {
    if hello.op.takes_buffer() { send_window(hello.mode, hello.depth) } else { 1 }
}

/// Octets of memory that a client asks for.
fn memory_of(hello: &Hello) -> u64 {
    let window = send_window(hello.mode, hello.depth);
    let slots = if hello.op.takes_buffer() { window } else { hello.depth };
    (u64::from(slots) * u64::from(hello.size)).max(1)
}

/// Why a connection cannot be made ready.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error(transparent)]
    Ctl(#[from] DeviceError),
    #[error(transparent)]
    Post(#[from] PostError),
}

impl Client {
    /// Makes a piece of memory ready, and tells the client when all is; true then.
    #[cold]
    fn prepare(&mut self, device: &Device, place: usize) -> Result<bool, PrepareError> {
        let local = match core::mem::replace(&mut self.stage, Stage::Greeted) {
            Stage::Clearing(mut memory) => {
                if !memory.clear(PIECE) {
                    self.stage = Stage::Clearing(memory);
                    return Ok(false);
                }
                let rights = match self.hello.op {
                    Op::Write => Access::REMOTE_WRITE.with(Access::REMOTE_READ),
                    Op::Read => Access::REMOTE_READ,
                    Op::Send | Op::SendImm => Access::LOCAL_WRITE,
                    Op::WriteImm => Access::REMOTE_WRITE,
                    Op::FetchAdd | Op::CmpSwap => Access::REMOTE_ATOMIC.with(Access::REMOTE_READ),
                };
                let local = device.register_reserved(self.pd, memory, rights)?;
                if self.hello.op == Op::Read {
                    self.stage = Stage::Filling(local, 0);
                    return Ok(false);
                }
                local
            }
            Stage::Filling(local, at) => {
                let at = self.fill(&local, at);
                if at < local.len() && self.hello.size > 0 {
                    self.stage = Stage::Filling(local, at);
                    return Ok(false);
                }
                local
            }
            other => {
                self.stage = other;
                return Ok(true);
            }
        };
        let serving = Serving {
            hello: self.hello,
            qp: self.qp.clone(),
            local,
            credits: device.alloc_mr(self.pd, CREDITS as usize * CREDIT_LEN, Access::NONE)?,
            taken: 0,
            told: 0,
            wrong: 0,
            next_credit: 0,
            credits_out: 0,
            asked: false,
            bytes: vec![0; self.hello.size as usize],
        };
        let window = send_window(self.hello.mode, self.hello.depth);
        if self.hello.op.takes_buffer() {
            (0..window).try_for_each(|b| serving.post_buffer(place, b))?;
        }
        let len = if matches!(self.hello.op, Op::Send | Op::SendImm) {
            0
        } else {
            serving.local.len() as u64
        };
        let region = Region { stag: serving.local.stag(), to: serving.local.to(), len };
        self.stage = Stage::Serving(Box::new(serving));
        self.say(place, &Welcome { window, region }.encode())?;
        Ok(true)
    }

    /// Fills a piece from `at` on with what is to be read; where the next begins.
    fn fill(&self, local: &Mr, at: usize) -> usize {
        let size = self.hello.size as usize;
        let (slot, within) = (at.checked_div(size).unwrap_or(0), at.checked_rem(size).unwrap_or(0));
        let mut piece = vec![0; PIECE.min(size - within)];
        pattern::fill_from(&mut piece, self.hello.seed, slot as u64, within as u64 / 8);
        local.write(at, &piece);
        at + piece.len()
    }

    fn say(&self, place: usize, text: &[u8]) -> Result<(), PostError> {
        self.talk.write(0, text);
        self.qp.post_send(&SendWr {
            wr_id: wr_id(place, GRANT),
            op: SendOp::Send { solicited: true, invalidate: None },
            data: Data::Sges(&[self.talk.sge(0, text.len())]),
            signaled: true,
            fence: false,
        })
    }
}

impl Serving {
    fn post_buffer(&self, place: usize, buffer: u32) -> Result<(), PostError> {
        let size = self.hello.size as usize;
        let sge = [self.local.sge(buffer as usize * size, size)];
        // Immediate Data needs a receive, but nothing to put anything into.
        let sges = if self.hello.op.is_immediate() { &[] } else { &sge[..] };
        self.qp.post_recv(&RecvWr { wr_id: wr_id(place, buffer), sges })
    }

    /// Whether a message is Immediate Data and the operation has none, or the other way round.
    fn is_of_another_kind(&self, cqe: &Cqe) -> bool {
        self.hello.op.is_immediate() != cqe.immediate.is_some()
    }

    /// A message has arrived.
    fn handle_recv(&mut self, cqe: &Cqe) -> Result<(), PostError> {
        let (place, buffer) = place_and_low(cqe.wr_id);
        let Hello { op, mode, verify, size, depth, .. } = self.hello;
        let number = self.taken;
        self.taken += 1;
        if mode == Mode::Lat {
            // The buffer is posted again when the answer has gone.
            let Region { stag, to, .. } = self.hello.region;
            let data = cqe.immediate.unwrap_or(0);
            let (answer, sge) = match op {
                // There is one slot: rounds do not overlap.
                Op::WriteImm => (
                    SendOp::WriteImmediate { stag, to, data, solicited: false },
                    Some(self.local.sge(0, size as usize)),
                ),
                Op::SendImm => (SendOp::Immediate { data, solicited: false }, None),
                _ => (
                    SendOp::Send { solicited: false, invalidate: None },
                    Some(self.local.sge(buffer as usize * size as usize, cqe.len as usize)),
                ),
            };
            return self.qp.post_send(&SendWr {
                wr_id: cqe.wr_id,
                op: answer,
                data: Data::Sges(sge.as_slice()),
                signaled: true,
                fence: false,
            });
        }
        let as_told = if op.is_immediate() {
            // The number of the operation.
            cqe.immediate == Some(number)
        } else {
            cqe.immediate.is_none() && cqe.len == size
        };
        if !as_told {
            self.wrong += 1;
        } else if op == Op::SendImm {
            // There is nothing else to compare.
        } else if verify && op == Op::WriteImm {
            let window = u64::from(send_window(mode, depth));
            self.compare(u32::try_from(number % window).unwrap_or(0), number);
        } else if verify {
            self.compare(buffer, number);
        } else if cqe.solicited {
            // The last: a look at what the latest messages left.
            let window = u64::from(send_window(mode, depth));
            for n in self.taken.saturating_sub(window)..self.taken {
                let buffer = u32::try_from(n % window).unwrap_or(0);
                self.compare(buffer, n % u64::from(depth));
            }
        }
        self.post_buffer(place, buffer)?;
        self.asked |= cqe.solicited;
        self.give_credit(place)
    }

    fn compare(&mut self, buffer: u32, message: u64) {
        self.local.read(buffer as usize * self.bytes.len(), &mut self.bytes);
        if pattern::first_difference(&self.bytes, self.hello.seed, message).is_some() {
            self.wrong += 1;
        }
    }

    /// Tells how many messages were taken, when it is time and there is a buffer to do it from.
    fn give_credit(&mut self, place: usize) -> Result<(), PostError> {
        let batch = u64::from((self.hello.depth / 2).max(1));
        let due = self.taken - self.told >= batch || self.asked && self.taken > self.told;
        if !due || self.credits_out == CREDITS {
            return Ok(());
        }
        let at = self.next_credit as usize * CREDIT_LEN;
        self.credits.write(at, &[self.taken.to_be_bytes(), self.wrong.to_be_bytes()].concat());
        self.qp.post_send(&SendWr {
            wr_id: wr_id(place, CREDIT | self.next_credit),
            op: SendOp::Send { solicited: false, invalidate: None },
            data: Data::Sges(&[self.credits.sge(at, CREDIT_LEN)]),
            signaled: true,
            fence: false,
        })?;
        self.next_credit = (self.next_credit + 1) % CREDITS;
        self.credits_out += 1;
        self.told = self.taken;
        self.asked = false;
        Ok(())
    }

    /// Writes a ping-pong's message back from where it arrived.
    fn write_back(&self, place: usize) -> Result<(), PostError> {
        let Region { stag, to, .. } = self.hello.region;
        self.qp.post_send(&SendWr {
            wr_id: wr_id(place, 0),
            op: SendOp::Write { stag, to },
            data: Data::Sges(&[self.local.sge(0, self.hello.size as usize)]),
            signaled: true,
            fence: false,
        })
    }

    /// What we sent has been acknowledged.
    fn handle_sent(&mut self, cqe: &Cqe) -> Result<(), PostError> {
        let (place, slot) = place_and_low(cqe.wr_id);
        if slot & GRANT != 0 {
            return Ok(());
        }
        if slot & CREDIT != 0 {
            self.credits_out -= 1;
            return self.give_credit(place);
        }
        if self.hello.op.takes_buffer() { self.post_buffer(place, slot) } else { Ok(()) }
    }
}
