//! The `perf` service: the end of a benchmark that answers.

use core::net::SocketAddr;

use heddle_verbs::{
    AcceptParams, Access, CmEvent, CmId, Cq, Cqe, Data, Device, DeviceError, EventQueue,
    ListenParams, Mr, PostError, Qp, QpInit, RecvWr, SendOp, SendWr, Waker,
};
use tracing::{debug, error, info, warn};

use super::hello::{Hello, Reason, Refusal, Region, Welcome};
use super::{CREDIT_LEN, pattern, send_window};
use crate::connections::{Connection, Connections, Full, place_and_low, wr_id};
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
    conns: Connections<Serving>,
    /// Connections whose memory is watched for Writes.
    watched: Vec<usize>,
}

/// A connection.
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

impl PerfServer {
    /// Listens. `waker` is woken when there is something to do.
    pub fn new(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        waker: Option<&Waker>,
    ) -> Result<PerfServer, DeviceError> {
        let events = EventQueue::new(waker.cloned());
        device.listen(addr, params, &events)?;
        Ok(PerfServer {
            device: device.clone(),
            events,
            send_cq: device.create_cq(CQ_DEPTH, waker.cloned())?,
            recv_cq: device.create_cq(CQ_DEPTH, waker.cloned())?,
            conns: Connections::new(device, MAX_CONNS),
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
        self.conns.len()
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
        if let Some((place, conn)) = self.conns.of(cqe)
            && let Err(e) = f(&mut conn.state, cqe)
        {
            self.conns.fail(place, &e);
        }
    }

    /// Looks for Writes of ping-pongs and answers them.
    #[inline]
    fn watch(&mut self) -> bool {
        let mut busy = false;
        for &place in &self.watched {
            let Some(Connection { state, .. }) = self.conns.get_mut(place) else { continue };
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
                    warn!(peer = %remote, %reason, "rejected");
                    let _ = self.device.reject(id, Refusal(reason).encode());
                }
            }
            CmEvent::Established { id, .. } => {
                if let Some((place, conn)) = self.conns.find(id)
                    && (conn.state.hello.op, conn.state.hello.mode) == (Op::Write, Mode::Lat)
                {
                    self.watched.push(place);
                }
            }
            CmEvent::ConnectError { id, error, .. } => {
                while self.poll_cqs(TURN) {}
                self.conns.not_established(id, &error);
            }
            CmEvent::Disconnected { id, reason, .. } => {
                while self.poll_cqs(TURN) {}
                if let Some((place, c)) = self.conns.ended(id, reason) {
                    self.watched.retain(|&p| p != place);
                    info!(peer = %c.remote, %reason, "closed");
                }
            }
            CmEvent::Rejected { .. } | CmEvent::Listening { .. } => {}
            CmEvent::ListenFailed { error, .. } => error!(%error, "cannot listen"),
        }
    }

    fn accept(&mut self, id: CmId, remote: SocketAddr, private_data: &[u8]) -> Result<(), Reason> {
        let hello = Hello::decode(private_data)?;
        let place = self.conns.free_place().map_err(|Full| Reason::BUSY)?;
        let conn = self.prepare(hello, place).map_err(|e| {
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
        self.conns.insert(place, id, remote, conn.qp.clone(), conn);
        Ok(())
    }

    /// Allocates what a connection needs; `None` when it asks for too much.
    fn prepare(&self, hello: Hello, place: usize) -> Result<Option<Serving>, DeviceError> {
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
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let conn = Serving {
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
        self.qp.post_recv(&RecvWr { wr_id: wr_id(place, buffer), sges: &[sge] })
    }

    /// A message has arrived.
    fn handle_recv(&mut self, cqe: &Cqe) -> Result<(), PostError> {
        let (place, buffer) = place_and_low(cqe.wr_id);
        let Hello { mode, verify, size, depth, .. } = self.hello;
        let number = self.taken;
        self.taken += 1;
        if mode == Mode::Lat {
            // The buffer is posted again when the answer has gone.
            let sge = self.local.sge(buffer as usize * size as usize, cqe.len as usize);
            return self.qp.post_send(&SendWr {
                wr_id: cqe.wr_id,
                op: SendOp::Send { solicited: false, invalidate: None },
                data: Data::Sges(&[sge]),
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
        if slot & CREDIT != 0 {
            self.credits_out -= 1;
            return self.give_credit(place);
        }
        if self.hello.op == Op::Send { self.post_buffer(place, slot) } else { Ok(()) }
    }
}
