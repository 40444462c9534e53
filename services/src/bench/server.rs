//! The `perf` service: the end of a benchmark that answers.
//!
//! ```text
//!   greeted ──▶ preparing ──▶ serving
//!      its first    memory cleared and
//!      message      filled, a piece a step
//! ```
//!
//! A greeting alone gets a queue pair and a few bytes. The server reserves memory when the client
//! is connected and asks for it, and prepares the memory in pieces, so that neither clients that
//! only greet nor clients that ask for much make others wait.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use heddle_verbs::{
    AcceptParams, Access, Arm, CmEvent, CmId, Cq, Cqe, Device, DeviceError, EventQueue,
    ListenFailure, ListenParams, QpInit, RecvWr, Reservation, Waker,
};
use tracing::{debug, info};

use super::hello::{Hello, Reason, Refusal, Welcome};
use crate::bench::{Mode, Op};
use crate::connections::{Connection, Connections, wr_id};
use crate::inbox::{EVENTS, Inbox};
use crate::server::Serve;
use crate::service::Limits;
use crate::shares::MemoryShares;

mod prepare;
mod serving;
mod source;

use prepare::{Client, PrepareError, Stage, completions, memory_of, receives, sends};
use serving::Turn;

/// The highest number of connections of a service.
const MAX_CONNS: usize = 16 * 1024;

/// The most registered memory in bytes that one connection may ask for.
const MAX_CONN_MEMORY: u64 = 512 << 20;

/// The highest number of completions per step, so that connection events have their turn.
const TURN: usize = 256;

/// Answers benchmarks on one address. The thread that polls the RNIC also calls
/// [`step`](Self::step).
pub struct BenchServer {
    device: Device,
    inbox: Inbox,
    send_cq: Cq,
    recv_cq: Cq,
    /// Room for the completions of all connections, in either queue, and what they may need of it.
    room: u32,
    needed: u64,
    conns: Connections<Client>,
    /// Connections whose memory the server prepares or compares, in turn.
    preparing: VecDeque<usize>,
    /// Connections whose memory the server watches for Writes.
    watched: Vec<usize>,
    /// Bytes of memory that each address has.
    memory: MemoryShares,
}

impl BenchServer {
    /// Listens. The service wakes `waker` when a step has work to do.
    pub fn new(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        waker: Option<&Waker>,
    ) -> Result<BenchServer, DeviceError> {
        BenchServer::with_limits(device, addr, params, Limits::default(), waker)
    }

    /// Listens with limits other than the defaults.
    pub fn with_limits(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        limits: Limits,
        waker: Option<&Waker>,
    ) -> Result<BenchServer, DeviceError> {
        // The queues are made before the server listens: without room for the queues, no listener
        // may exist.
        let send_cq = device.create_cq(limits.completions, waker.cloned())?;
        let recv_cq = device.create_cq(limits.completions, waker.cloned())?;
        let events = EventQueue::new(waker.cloned());
        let listener = device.listen(addr, params, &events)?;
        Ok(BenchServer {
            device: device.clone(),
            inbox: Inbox::new(events),
            send_cq,
            recv_cq,
            room: limits.completions,
            needed: 0,
            conns: Connections::new(device, listener, MAX_CONNS, limits),
            preparing: VecDeque::new(),
            watched: Vec::new(),
            memory: MemoryShares::new(&limits),
        })
    }

    /// Returns true if the server has to watch, prepare or compare memory: no event wakes this
    /// service for that.
    pub fn must_poll(&self) -> bool {
        !self.watched.is_empty() || !self.preparing.is_empty()
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Does the work that is due. Returns true if there was any. Never blocks.
    #[inline]
    pub fn step(&mut self) -> bool {
        let mut busy = self.watch();
        // Each watched connection may have the completion of an answer in the queue.
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
            {
                match s.handle_sent(&cqe) {
                    Ok(Turn::Done) => {}
                    Ok(Turn::Compare) => self.preparing.push_back(place),
                    Err(e) => self.conns.fail(place, &e),
                }
            }
        }
        busy
    }

    /// Takes the completions of a connection that has ended: all are in the queues before its event.
    /// Other connections may add completions all the while, so this ends after as many as a queue
    /// holds.
    fn drain_cqs(&mut self) {
        for _ in 0..self.room as usize / TURN {
            if !self.poll_cqs(TURN) {
                break;
            }
        }
    }

    #[inline]
    fn handle_recv(&mut self, cqe: &Cqe) {
        let Some((place, conn)) = self.conns.of(cqe) else { return };
        match &mut conn.state.stage {
            // An answer would answer a message that the client did not send.
            Stage::Serving(s) if s.hello.mode == Mode::Lat && s.is_of_another_kind(cqe) => {
                self.conns.fail(place, &"a message of another operation than announced");
            }
            Stage::Serving(s) if s.source.is_some() && cqe.immediate.is_some() => {
                self.conns
                    .fail(place, &"Immediate Data where a Send was to say how far the run is");
            }
            Stage::Serving(s) => match s.handle_recv(cqe) {
                Ok(Turn::Done) => {}
                Ok(Turn::Compare) => self.preparing.push_back(place),
                Err(e) => self.conns.fail(place, &e),
            },
            Stage::Greeted if cqe.immediate.is_some() => {
                self.conns.fail(place, &"Immediate Data where a Send was to ask for memory");
            }
            Stage::Greeted => self.start_preparing(place),
            // The client had a buffer for one message only, so no other can arrive.
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
                info!(peer = %remote, "connected: {agreed}");
                self.conns.expect_word(id);
            }
            CmEvent::ConnectError { id, error, .. } => {
                self.drain_cqs();
                if let Some((place, _)) = self.conns.not_established(id, &error) {
                    self.preparing.retain(|&p| p != place);
                }
            }
            CmEvent::Disconnected { id, reason, .. } => {
                self.drain_cqs();
                if let Some((place, c)) = self.conns.ended(id, reason) {
                    self.preparing.retain(|&p| p != place);
                    self.watched.retain(|&p| p != place);
                    self.needed -= u64::from(completions(&c.state.hello));
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
        // Completions without room in the queue would end all connections that have a completion
        // there.
        let more = u64::from(completions(&hello));
        if self.needed + more > self.room.into() {
            return Err(Reason::BUSY);
        }
        // The server checks for room at once, so that it can reject; it takes the room only when
        // the client asks for it.
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
        self.needed += more;
        Ok(())
    }

    /// Reserves the memory that a connection asks for.
    fn room(&self, peer: IpAddr, hello: &Hello) -> Result<Reservation, Reason> {
        let len = memory_of(hello);
        let fits = len <= MAX_CONN_MEMORY && self.memory.has_room(peer, len);
        let len = usize::try_from(len).ok().filter(|_| fits);
        self.device.reserve(len.ok_or(Reason::NO_MEMORY)?).map_err(|e| {
            debug!(error = %e, "cannot serve");
            Reason::NO_MEMORY
        })
    }

    /// Makes a queue pair, and room for the grant and for credits.
    fn greet(&self, hello: Hello, place: usize) -> Result<Client, PrepareError> {
        let pd = self.device.own_pd()?;
        let init = QpInit {
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            sq_depth: sends(&hello),
            rq_depth: receives(&hello),
            srq: None,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let qp = self.device.create_qp(pd.id(), init)?;
        let talk = self.device.alloc_mr(pd.id(), Welcome::LEN, Access::NONE)?;
        qp.post_recv(&RecvWr { wr_id: wr_id(place, 0), sges: &[] })?;
        Ok(Client { hello, pd, qp, talk, stage: Stage::Greeted })
    }

    /// Starts to prepare memory: the client is connected and asks for it.
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
                // The client ends the connection after it has read the refusal.
                if let Err(e) = state.say(place, &Refusal(reason).encode()) {
                    self.conns.fail(place, &e);
                }
            }
        }
    }

    /// Prepares or compares a piece of one connection's memory.
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

impl Serve for BenchServer {
    fn step(&mut self) -> bool {
        BenchServer::step(self)
    }

    fn stop_listening(&mut self) {
        self.conns.stop_listening();
    }

    fn end(&mut self) {
        self.conns.end();
    }

    fn conns(&self) -> usize {
        self.conns.len()
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
