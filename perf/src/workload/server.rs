//! The `perf` service: the end of a benchmark that answers.

use core::net::SocketAddr;

use heddle_ctl::{
    AcceptParams, CmEvent, CmId, Cq, CtlError, Device, EventQueue, ListenParams, Mr, Qp, QpInit,
    Waker,
};
use heddle_iwarp::{Access, Cqe, PostError, RecvWr, SendOp, SendWr, SgList};
use tracing::{debug, info, warn};

use super::hello::{Hello, Reason, Refusal, Region, Welcome};
use super::{CREDIT_LEN, pattern, send_window};
use crate::spec::{Mode, Op};

/// Connections one service takes.
const MAX_CONNS: usize = 4096;

/// Registered memory one connection may ask for.
const MAX_CONN_MEMORY: u64 = 512 << 20;

/// Completions taken in one step, so that connection events have their turn.
const TURN: usize = 256;

/// Buffers for credits under way.
const CREDITS: u32 = 8;

const CQ_DEPTH: u32 = 1 << 14;

/// Answers benchmarks on one address. Whoever polls the RNIC also calls [`step`](Self::step).
pub struct PerfServer {
    device: Device,
    events: EventQueue,
    send_cq: Cq,
    recv_cq: Cq,
    /// Places keep their number for as long as the connection lives; work requests carry it.
    conns: Vec<Option<Serving>>,
    /// Connections whose memory is watched for Writes.
    watched: Vec<usize>,
}

/// A connection.
struct Serving {
    id: CmId,
    remote: SocketAddr,
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

/// Which of the work requests of a connection.
const BUFFER: u64 = 0;
const CREDIT: u64 = 1 << 31;

impl PerfServer {
    /// Listens. `waker` is woken when there is something to do.
    pub fn new(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        waker: Option<&Waker>,
    ) -> Result<PerfServer, CtlError> {
        let events = EventQueue::new(waker.cloned());
        device.listen(addr, params, &events)?;
        Ok(PerfServer {
            device: device.clone(),
            events,
            send_cq: device.create_cq(CQ_DEPTH, waker.cloned())?,
            recv_cq: device.create_cq(CQ_DEPTH, waker.cloned())?,
            conns: Vec::new(),
            watched: Vec::new(),
        })
    }

    /// Whether memory has to be watched: nobody wakes this service when it changes.
    pub fn must_poll(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Whether a step would find something.
    pub fn has_work(&self) -> bool {
        self.must_poll()
            || !self.events.is_empty()
            || !self.send_cq.is_empty()
            || !self.recv_cq.is_empty()
    }

    /// Connections.
    pub fn connections(&self) -> usize {
        self.conns.iter().flatten().count()
    }

    /// Does what there is to do; true when there was something. Never blocks.
    #[inline]
    pub fn step(&mut self) -> bool {
        let mut busy = self.watch();
        busy |= self.poll_cqs(TURN);
        while let Some(event) = self.events.poll() {
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
            self.handle(&cqe, Serving::handle_recv);
        }
        for _ in 0..turn {
            let Some(cqe) = self.send_cq.poll() else { break };
            busy = true;
            self.handle(&cqe, Serving::handle_sent);
        }
        busy
    }

    fn handle(&mut self, cqe: &Cqe, f: impl FnOnce(&mut Serving, &Cqe) -> Result<(), PostError>) {
        let place = usize::try_from(cqe.wr_id >> 32).unwrap_or(usize::MAX);
        // What is flushed is followed by the end of the connection.
        if !cqe.status.is_success() {
            return;
        }
        if let Some(Some(conn)) = self.conns.get_mut(place)
            && conn.qp.qpn() == cqe.qpn
            && let Err(e) = f(conn, cqe)
        {
            warn!(peer = %conn.remote, error = %e, "cannot answer");
            // It may be gone already.
            let _ = self.device.disconnect(conn.id);
        }
    }

    /// Looks for Writes of ping-pongs and answers them.
    #[inline]
    fn watch(&mut self) -> bool {
        let mut busy = false;
        for &place in &self.watched {
            let Some(Some(conn)) = self.conns.get_mut(place) else { continue };
            let last = conn.hello.size as usize - 1;
            let next = conn.taken.wrapping_add(1);
            if conn.local.load(last) == next.to_le_bytes()[0] {
                busy = true;
                conn.taken = next;
                if let Err(e) = conn.write_back(place) {
                    warn!(peer = %conn.remote, error = %e, "cannot answer");
                    let _ = self.device.disconnect(conn.id);
                }
            }
        }
        busy
    }

    fn handle_event(&mut self, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest { id, remote, private_data, .. } => {
                if let Err(reason) = self.accept(id, remote, &private_data) {
                    info!(peer = %remote, %reason, "rejected");
                    let _ = self.device.reject(id, Refusal(reason).encode());
                }
            }
            CmEvent::Established { id, .. } => {
                if let Some(place) = self.place_of(id) {
                    let conn = self.conns[place].as_ref();
                    if conn.is_some_and(|c| (c.hello.op, c.hello.mode) == (Op::Write, Mode::Lat)) {
                        self.watched.push(place);
                    }
                }
            }
            CmEvent::ConnectError { id, error } => {
                debug!(%error, "no connection");
                self.forget(id);
            }
            CmEvent::Disconnected { id, reason } => {
                debug!(%reason, "connection closed");
                self.forget(id);
            }
            CmEvent::Rejected { .. } => {}
        }
    }

    fn place_of(&self, id: CmId) -> Option<usize> {
        self.conns.iter().position(|c| c.as_ref().is_some_and(|c| c.id == id))
    }

    fn forget(&mut self, id: CmId) {
        // What it has completed comes before its place goes to another.
        while self.poll_cqs(TURN) {}
        if let Some(place) = self.place_of(id) {
            self.watched.retain(|&p| p != place);
            self.conns[place] = None;
        }
    }

    fn accept(&mut self, id: CmId, remote: SocketAddr, private_data: &[u8]) -> Result<(), Reason> {
        let hello = Hello::decode(private_data)?;
        let place = match self.conns.iter().position(Option::is_none) {
            Some(p) => p,
            None if self.conns.len() < MAX_CONNS => {
                self.conns.push(None);
                self.conns.len() - 1
            }
            None => return Err(Reason::BUSY),
        };
        let conn = self.prepare(id, remote, hello, place).map_err(|e| {
            debug!(error = %e, "cannot serve");
            Reason::NO_MEMORY
        })?;
        let Some(conn) = conn else { return Err(Reason::NO_MEMORY) };
        let mut params = AcceptParams::new(conn.qp.clone());
        let len = if hello.op == Op::Send { 0 } else { conn.local.len() as u64 };
        let region = Region { stag: conn.local.stag(), to: conn.local.to(), len };
        params.private_data =
            Welcome { window: send_window(hello.mode, hello.depth), region }.encode();
        self.device.accept(id, params).map_err(|_| Reason::BUSY)?;
        self.conns[place] = Some(conn);
        Ok(())
    }

    /// Allocates what a connection needs; `None` when it asks for too much.
    fn prepare(
        &self,
        id: CmId,
        remote: SocketAddr,
        hello: Hello,
        place: usize,
    ) -> Result<Option<Serving>, CtlError> {
        let window = send_window(hello.mode, hello.depth);
        let slots = if hello.op == Op::Send { window } else { hello.depth };
        let len = u64::from(slots) * u64::from(hello.size);
        if len > MAX_CONN_MEMORY {
            return Ok(None);
        }
        let Ok(len) = usize::try_from(len) else { return Ok(None) };
        let pd = self.device.alloc_pd();
        let rights = match hello.op {
            Op::Write => Access::REMOTE_WRITE.with(Access::REMOTE_READ),
            Op::Read => Access::REMOTE_READ,
            Op::Send => Access::LOCAL_WRITE,
        };
        let init = QpInit {
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            sq_depth: CREDITS,
            rq_depth: if hello.op == Op::Send { window } else { 1 },
        };
        let conn = Serving {
            id,
            remote,
            hello,
            qp: self.device.create_qp(pd, init)?,
            local: self.device.alloc_mr(pd, len.max(1), rights)?,
            credits: self.device.alloc_mr(pd, CREDITS as usize * CREDIT_LEN, Access::NONE)?,
            taken: 0,
            told: 0,
            wrong: 0,
            next_credit: 0,
            credits_out: 0,
            asked: false,
            bytes: vec![0; hello.size as usize],
        };
        Ok(conn.prime(place).is_ok().then_some(conn))
    }
}

impl Drop for PerfServer {
    fn drop(&mut self) {
        for conn in self.conns.iter().flatten() {
            // The control plane may be gone already.
            let _ = self.device.disconnect(conn.id);
        }
    }
}

impl Serving {
    /// Fills what is to be read, posts buffers for what is to be received.
    fn prime(&self, place: usize) -> Result<(), PostError> {
        let Hello { op, mode, size, depth, seed, .. } = self.hello;
        match op {
            Op::Write => {}
            Op::Read => {
                let mut bytes = vec![0; size as usize];
                for slot in 0..depth {
                    pattern::fill(&mut bytes, seed, slot.into());
                    self.local.write(slot as usize * size as usize, &bytes);
                }
            }
            Op::Send => {
                (0..send_window(mode, depth)).try_for_each(|b| self.post_buffer(place, b))?
            }
        }
        Ok(())
    }

    fn post_buffer(&self, place: usize, buffer: u32) -> Result<(), PostError> {
        let size = self.hello.size as usize;
        let sge = self.local.sge(buffer as usize * size, size);
        let wr_id = (place as u64) << 32 | BUFFER | u64::from(buffer);
        self.qp.post_recv(&RecvWr { wr_id, sges: SgList::one(sge) })
    }

    /// A message has arrived.
    fn handle_recv(&mut self, cqe: &Cqe) -> Result<(), PostError> {
        let (place, buffer) = unmark(cqe.wr_id);
        let Hello { mode, verify, size, depth, .. } = self.hello;
        let number = self.taken;
        self.taken += 1;
        if mode == Mode::Lat {
            // The buffer is posted again when the answer has gone.
            let sge = self.local.sge(buffer as usize * size as usize, cqe.len as usize);
            return self.qp.post_send(&SendWr {
                wr_id: cqe.wr_id,
                op: SendOp::Send { solicited: false, invalidate: None },
                sges: SgList::one(sge),
                signaled: true,
                fence: false,
            });
        }
        if cqe.len != size {
            self.wrong += 1;
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
            wr_id: (place as u64) << 32 | CREDIT | u64::from(self.next_credit),
            op: SendOp::Send { solicited: false, invalidate: None },
            sges: SgList::one(self.credits.sge(at, CREDIT_LEN)),
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
            wr_id: (place as u64) << 32,
            op: SendOp::Write { stag, to },
            sges: SgList::one(self.local.sge(0, self.hello.size as usize)),
            signaled: true,
            fence: false,
        })
    }

    /// What we sent has been acknowledged.
    fn handle_sent(&mut self, cqe: &Cqe) -> Result<(), PostError> {
        let (place, slot) = unmark(cqe.wr_id);
        if cqe.wr_id & CREDIT != 0 {
            self.credits_out -= 1;
            return self.give_credit(place);
        }
        if self.hello.op == Op::Send { self.post_buffer(place, slot) } else { Ok(()) }
    }
}

/// Place and number in the mark of a work request.
fn unmark(wr_id: u64) -> (usize, u32) {
    let place = usize::try_from(wr_id >> 32).unwrap_or(usize::MAX);
    (place, u32::try_from(wr_id & 0x7fff_ffff).unwrap_or(0))
}
