//! The service: which connections it accepts, and how it answers messages on each.

use core::net::SocketAddr;
use std::collections::HashMap;

use heddle_verbs::{
    AcceptParams, Access, Agreed, Cqe, Device, DeviceError, DisconnectReason, PostError, QpInit,
    SendOp,
};
use tracing::{debug, info, trace};

use super::conn::{CREDIT_LEN, Conn, Data, KIND, Parameters, RECV, SEND, post_recv, post_send};
use super::session::{DataQp, Held, MAX_QPS, Session};
use super::wire::{Dest, MAX_LEN, Outcome, Question, Unknown};
use super::{Program, Test};
use crate::connections::{Connection, Connections, Full, place_and_low, wr_id};
use crate::server::{Answer, Next, Protocol, Request};
use crate::service::Limits;
use crate::shares::MemoryShares;

/// The number of buffers for questions; a client that waits for answers fills only one.
const QUESTIONS: u32 = 4;

/// The number of receives of a queue pair of `ib_send_bw`, and so the highest `-r` of a client.
const RECEIVES: u32 = 1000;

/// The number of our own requests on a data connection, which are credits, echoes or Writes; only
/// one is in flight.
const SENDS: u32 = 8;

/// Answers the clients of one [`Test`].
pub(crate) struct Perftest {
    test: Test,
    device: Device,
    sessions: HashMap<u64, Session>,
    next: u64,
    memory: MemoryShares,
    /// Sessions with an answer that waits.
    waiting: Vec<u64>,
    /// Sessions whose memory the server watches for the Writes of `ib_write_lat`.
    watched: Vec<u64>,
}

/// Why the server refuses a client, or ends its connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Unknown(#[from] Unknown),
    #[error("the client did not wait for an answer")]
    OutOfTurn,
    #[error("no queue pair was connected")]
    NoData,
    #[error("queue pair {0} was not connected")]
    NoSuchQp(u32),
    #[error("too many queue pairs ({0} is the most)")]
    TooManyQps(usize),
    #[error("a message before the parameters were told")]
    Early,
    #[error("too much memory for this address ({0} bytes)")]
    Memory(u64),
    #[error(
        "the server of ib_write_lat begins, which MPA allows it only if the client asks for the \
         peer-to-peer model (RFC 6581 section 9), and this one does not"
    )]
    MayNotBegin,
    #[error(transparent)]
    Post(#[from] PostError),
    #[error(transparent)]
    Ctl(#[from] DeviceError),
    #[error(transparent)]
    Full(#[from] Full),
}

impl Perftest {
    pub(crate) fn new(device: &Device, test: Test, limits: &Limits) -> Perftest {
        Perftest {
            test,
            device: device.clone(),
            sessions: HashMap::new(),
            next: 0,
            memory: MemoryShares::new(limits),
            waiting: Vec::new(),
            watched: Vec::new(),
        }
    }

    /// Sets memory aside for a test that begins.
    fn reserve(&mut self, id: u64) -> Result<(), Fault> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let (peer, len) = (session.peer, self.test.memory());
        let bytes = usize::try_from(len).ok().filter(|_| self.memory.has_room(peer, len));
        session.reserve(self.device.reserve(bytes.ok_or(Fault::Memory(len))?)?);
        self.memory.take(peer, len);
        Ok(())
    }

    /// Holds back the answer to the question in buffer `n`.
    fn hold(&mut self, id: u64, n: u32, held: Held) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.held = Some((n, held));
            self.waiting.push(id);
        }
    }

    /// Accepts a data connection of the session `id`.
    fn accept_data(&mut self, id: u64, request: &Request<'_>) -> Result<Answer<Conn>, Fault> {
        let Test { program, size } = self.test;
        let most = if program.is_latency() { 1 } else { MAX_QPS };
        if program == Program::WriteLat && !request.peer_to_peer {
            return Err(Fault::MayNotBegin);
        }
        let session = self.sessions.get_mut(&id).ok_or(Fault::NoData)?;
        if session.qps.len() >= most {
            return Err(Fault::TooManyQps(most));
        }
        let d = request.device;
        let receives = match program {
            Program::SendBw => RECEIVES,
            Program::SendLat => SENDS,
            _ => 1,
        };
        let init = QpInit::new(request.cq.clone()).depths(SENDS, receives);
        let init = QpInit { max_send_sge: 1, max_recv_sge: 1, max_inline: 0, ..init };
        let qp = d.create_qp(session.pd.id(), init)?;
        let credit = d.alloc_mr(session.pd.id(), CREDIT_LEN, Access::NONE)?;
        if program.takes_sends() {
            let region = session.region().ok_or(Fault::NoData)?;
            for n in 0..receives {
                post_recv(&qp, region, request.place, n, size)?;
            }
        }
        let index = session.qps.len();
        let (place, qpn) = (request.place, qp.qpn().0);
        session.qps.push(DataQp { place: Some(place), qpn, client: None, written: 0 });
        let params = AcceptParams::new(qp.clone());
        let (session, taken, told, len) = (id, 0, 0, 0);
        let data = Data { session, index, qp, credit, taken, told, len, credit_out: false };
        Ok(Answer { conn: Conn::Data(data), params })
    }

    fn accept_parameters(&mut self, request: &Request<'_>) -> Result<Answer<Conn>, Fault> {
        let d = request.device;
        let pd = d.own_pd()?;
        let init = QpInit::new(request.cq.clone()).depths(QUESTIONS, QUESTIONS);
        let init = QpInit { max_send_sge: 1, max_recv_sge: 1, max_inline: 0, ..init };
        let id = self.next;
        let len = QUESTIONS as usize * MAX_LEN;
        let conn = Parameters {
            session: id,
            qp: d.create_qp(pd.id(), init)?,
            inbox: d.alloc_mr(pd.id(), len, Access::LOCAL_WRITE)?,
            outbox: d.alloc_mr(pd.id(), len, Access::NONE)?,
        };
        (0..QUESTIONS).try_for_each(|n| conn.post_buffer(request.place, n))?;
        let session = Session::new(self.test, request.remote.ip(), request.place, pd);
        self.sessions.insert(id, session);
        self.next += 1;
        let params = AcceptParams::new(conn.qp.clone());
        Ok(Answer { conn: Conn::Parameters(conn), params })
    }

    /// Handles a message on a parameter connection.
    fn question(&mut self, place: usize, conn: &Parameters, cqe: &Cqe) -> Result<(), Fault> {
        let (_, low) = place_and_low(cqe.wr_id);
        let n = low & !KIND;
        if low & KIND == SEND {
            // The answer has arrived, so the client may send another question.
            return Ok(conn.post_buffer(place, n)?);
        }
        let Some(session) = self.sessions.get_mut(&conn.session) else { return Ok(()) };
        if session.held.is_some() {
            return Err(Fault::OutOfTurn);
        }
        let mut b = [0; MAX_LEN];
        let b = &mut b[..(cqe.len as usize).min(MAX_LEN)];
        conn.inbox.read(n as usize * MAX_LEN, b);
        trace!(peer = %session.peer, bytes = b.len(), "a message among the parameters");
        match Question::decode(b)? {
            Question::Common => conn.answer(place, n, b)?,
            Question::Report(number) => {
                if let Some(o) = session.report.next(number) {
                    let Outcome { size, iterations, peak, average, rate } = o;
                    let peer = session.peer;
                    info!(%peer, size, iterations, peak, average, rate, "the client reports");
                }
                conn.answer(place, n, &[0; 8])?;
            }
            Question::Dest(dest) => match session.dest(dest)? {
                Ok(answer) => conn.answer(place, n, &answer.encode())?,
                Err(held) => {
                    if held == Held::Memory {
                        self.reserve(conn.session)?;
                    }
                    self.hold(conn.session, n, held);
                }
            },
        }
        let told = |s: &Session| s.qps.iter().any(|q| q.client.is_some());
        if self.test.program == Program::WriteLat
            && !self.watched.contains(&conn.session)
            && self.sessions.get(&conn.session).is_some_and(told)
        {
            self.watched.push(conn.session);
        }
        Ok(())
    }

    /// Handles a completion on a data connection.
    fn data(&mut self, place: usize, conn: &mut Data, cqe: &Cqe) -> Result<(), Fault> {
        let Test { program, size } = self.test;
        // The client ends all its connections at once, so the session may be gone.
        let Some(session) = self.sessions.get_mut(&conn.session) else { return Ok(()) };
        let Some(region) = session.region() else { return Ok(()) };
        let (_, low) = place_and_low(cqe.wr_id);
        let n = low & !KIND;
        match (program, low & KIND) {
            (Program::SendBw, RECV) => {
                post_recv(&conn.qp, region, place, n, size)?;
                // With `-a` the client restarts its count for each length.
                conn.taken = if conn.len == cqe.len { conn.taken.wrapping_add(1) } else { 1 };
                conn.len = cqe.len;
            }
            (Program::SendBw, _) => conn.credit_out = false,
            (Program::SendLat, RECV) => {
                let op = SendOp::Send { solicited: false, invalidate: None };
                post_send(&conn.qp, op, region, 0, cqe.len as usize, wr_id(place, SEND | n))?;
            }
            (Program::SendLat, _) => post_recv(&conn.qp, region, place, n, size)?,
            _ => {}
        }
        if program == Program::SendBw {
            if low & KIND == RECV {
                session.data();
            }
            let client = session.qps[conn.index].client.ok_or(Fault::Early)?;
            conn.give_credit(place, client)?;
        }
        Ok(())
    }

    /// Sends the answers that are due.
    fn answer_waiting(&mut self, conns: &mut Connections<Conn>) -> bool {
        let mut busy = false;
        for id in core::mem::take(&mut self.waiting) {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let Some((n, held)) = session.held else { continue };
            let (place, done) = (
                session.place,
                match held {
                    Held::Memory => session.prepare(&self.device),
                    Held::Quiet(_) => Ok(session.is_quiet()),
                },
            );
            let answer = match held {
                Held::Memory => Dest::default(),
                Held::Quiet(answer) => answer,
            };
            busy |= held == Held::Memory;
            match done {
                Ok(false) => self.waiting.push(id),
                Err(e) => conns.fail(place, &e),
                Ok(true) => {
                    session.held = None;
                    let Some(conn) = conns.get_mut(place) else { continue };
                    let Conn::Parameters(p) = &conn.state else { continue };
                    if let Err(e) = p.answer(place, n, &answer.encode()) {
                        conns.fail(place, &e);
                    }
                }
            }
        }
        busy
    }

    /// Looks for the Writes of `ib_write_lat`, and answers them.
    fn watch(&mut self, conns: &mut Connections<Conn>) -> bool {
        let mut busy = false;
        let size = self.test.size as usize;
        for id in &self.watched {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            let Some(seen) = session.region().map(|r| r.load(size - 1)) else { continue };
            let Some(qp) = session.qps.first_mut() else { continue };
            let (Some(place), Some(client)) = (qp.place, qp.client) else { continue };
            // The server's Write comes first; each of the client's Writes carries the number of the
            // Write that it answers.
            if qp.written > 0 && seen != low_byte(qp.written) {
                continue;
            }
            busy = true;
            qp.written += 1;
            let number = low_byte(qp.written);
            let Some(region) = session.region() else { continue };
            region.write(2 * size - 1, &[number]);
            let Some(conn) = conns.get_mut(place) else { continue };
            let Conn::Data(data) = &conn.state else { continue };
            let op = SendOp::Write { stag: client.stag(), to: client.to };
            if let Err(e) = post_send(&data.qp, op, region, size, size, wr_id(place, SEND)) {
                conns.fail(place, &e);
            }
        }
        busy
    }
}

impl Protocol for Perftest {
    type Conn = Conn;
    type Fault = Fault;

    /// A single address may have a quarter of these: a test of 15 queue pairs, or 8 tests of one.
    const MAX_CONNS: usize = 64;
    const TURN: usize = 256;

    fn cq_depth(&self) -> u32 {
        let receives = if self.test.program == Program::SendBw { RECEIVES } else { SENDS };
        64 * (receives + SENDS)
    }

    fn accept(&mut self, request: &Request<'_>) -> Result<Answer<Conn>, Fault> {
        let peer = request.remote.ip();
        let mut sessions = self.sessions.iter();
        // Only one fact tells a data connection from the parameters of another test: the server has
        // told the client to make a data connection. If one address begins two tests at the same
        // time, one of them may fail.
        match sessions.find(|(_, s)| s.peer == peer && s.awaits_data()).map(|(&id, _)| id) {
            Some(id) => self.accept_data(id, request),
            None => self.accept_parameters(request),
        }
    }

    fn established(&mut self, _: usize, conn: &mut Conn, _: &Agreed) -> Result<bool, Fault> {
        // On data connections there may be only RDMA Writes and Reads, which the server does not
        // see.
        Ok(matches!(conn, Conn::Parameters(_)))
    }

    fn completed(&mut self, place: usize, conn: &mut Conn, cqe: &Cqe) -> Result<Next, Fault> {
        match conn {
            Conn::Parameters(p) => self.question(place, p, cqe)?,
            Conn::Data(d) => self.data(place, d, cqe)?,
        }
        Ok(Next::Go)
    }

    fn ended(&mut self, _: usize, conn: Connection<Conn>, _: Option<DisconnectReason>) {
        match conn.state {
            Conn::Data(d) => {
                if let Some(s) = self.sessions.get_mut(&d.session) {
                    s.qps[d.index].place = None;
                }
            }
            Conn::Parameters(p) => {
                let Some(session) = self.sessions.remove(&p.session) else { return };
                self.waiting.retain(|&id| id != p.session);
                self.watched.retain(|&id| id != p.session);
                if session.has_memory() {
                    self.memory.give_back(session.peer, self.test.memory());
                }
                debug!(peer = %session.peer, "served");
            }
        }
    }

    fn poll(&mut self, conns: &mut Connections<Conn>) -> bool {
        self.answer_waiting(conns) | self.watch(conns)
    }

    fn must_poll(&self) -> bool {
        !self.waiting.is_empty() || !self.watched.is_empty()
    }

    fn faulted(&mut self, remote: SocketAddr, fault: &Fault) {
        debug!(%remote, %fault, program = self.test.program.name());
    }
}

fn low_byte(n: u64) -> u8 {
    n.to_le_bytes()[0]
}
