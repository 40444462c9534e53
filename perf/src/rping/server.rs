//! The end that reads and writes: the `rping` service.

use core::net::SocketAddr;

use heddle_verbs::{
    AcceptParams, Access, Arm, CmEvent, CmId, Cq, Cqe, Data, Device, DeviceError, DisconnectReason,
    EventQueue, ListenFailure, ListenParams, Mr, PostError, Qp, QpInit, RecvWr, SendOp, SendWr,
    Waker,
};
use tracing::{debug, info};

use crate::connections::{Connections, Full, place_and_low, wr_id};
use crate::inbox::{EVENTS, Inbox};
use crate::service::Limits;

use super::{Info, MAX_SIZE, printable};

const MAX_CONNS: usize = 256;
const CQ_DEPTH: u32 = 1 << 12;
const TURN: usize = 64;
const BUFFERS: u32 = 4;

/// Answers rping clients on one address. Whoever polls the RNIC also calls [`step`](Self::step).
pub struct RpingServer {
    device: Device,
    inbox: Inbox,
    cq: Cq,
    conns: Connections<Serving>,
    /// Connections accepted and closed so far.
    closed: u64,
    /// The text of each message, for those who want to see it.
    lines: Option<Vec<String>>,
    /// The latest connection that ended otherwise than in order.
    failure: Option<String>,
}

/// What the next Send means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expects {
    Source,
    /// Nothing: an operation of ours is under way.
    Nothing,
    Sink,
}

struct Serving {
    qp: Qp,
    data: Mr,
    inbox: Mr,
    outbox: Mr,
    expects: Expects,
    /// Octets read from the source.
    len: u32,
    messages: u64,
}

/// What a work request is for; a receive buffer's number is added.
const INBOX: u32 = 1 << 30;
const READ: u32 = 2 << 30;
const WRITE: u32 = 3 << 30;
const GO_AHEAD: u32 = 0;
const KIND: u32 = 3 << 30;

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the client sent {0} octets, not {len}", len = Info::LEN)]
    Stray(u32),
    #[error("the client did not wait for the go-ahead")]
    OutOfTurn,
    #[error("a region of {0} octets; {MAX_SIZE} is the most")]
    TooLong(u32),
    #[error("a region of {len} octets at {to:#x}, which goes past the end of all offsets")]
    Wraps { to: u64, len: u32 },
    #[error("the client takes no RDMA Reads (its IRD is 0), and rping is made of them")]
    NoReads,
    #[error("{0}")]
    Post(#[from] PostError),
    #[error("{0}")]
    Ctl(#[from] DeviceError),
    #[error(transparent)]
    Full(#[from] Full),
}

impl RpingServer {
    /// Listens. `waker` is woken when there is something to do. With `show`,
    /// [`take_lines`](Self::take_lines) gives the text of the messages.
    pub fn new(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        waker: Option<&Waker>,
        show: bool,
    ) -> Result<RpingServer, DeviceError> {
        RpingServer::with_limits(device, addr, params, Limits::default(), waker, show)
    }

    /// Listens, with other limits than the usual ones.
    pub fn with_limits(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        limits: Limits,
        waker: Option<&Waker>,
        show: bool,
    ) -> Result<RpingServer, DeviceError> {
        let events = EventQueue::new(waker.cloned());
        let listener = device.listen(addr, params, &events)?;
        Ok(RpingServer {
            device: device.clone(),
            inbox: Inbox::new(events),
            cq: device.create_cq(CQ_DEPTH, waker.cloned())?,
            conns: Connections::new(device, listener, MAX_CONNS, limits),
            closed: 0,
            lines: show.then(Vec::new),
            failure: None,
        })
    }

    /// Whether the service listens: false until the RNIC does.
    ///
    /// # Errors
    /// [`ListenFailure`]: it never will.
    pub fn is_listening(&self) -> Result<bool, ListenFailure> {
        self.conns.is_listening()
    }

    /// Whether a step would find something. Arms the completion queues: to be asked before sleeping.
    pub fn has_work(&self) -> bool {
        self.cq.arm(Arm::Next);
        !self.inbox.is_empty() || !self.cq.is_empty()
    }

    /// Connections that have come and gone.
    pub fn closed(&self) -> u64 {
        self.closed
    }

    /// Why the latest connection that did not end in order ended.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The messages read since the last call.
    pub fn take_lines(&mut self) -> Vec<String> {
        self.lines.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// Takes no more connections; those there are go on.
    pub fn stop_listening(&mut self) {
        self.conns.stop_listening();
    }

    /// Does what there is to do; true when there was something. Never blocks.
    pub fn step(&mut self) -> bool {
        let mut busy = self.poll_cq();
        self.conns.end_silent();
        for _ in 0..EVENTS {
            let Some(event) = self.inbox.poll() else { break };
            busy = true;
            self.handle_event(event);
        }
        busy
    }

    fn poll_cq(&mut self) -> bool {
        let mut busy = false;
        for _ in 0..TURN {
            let Some(cqe) = self.cq.poll() else { break };
            busy = true;
            let Some((place, conn)) = self.conns.of(&cqe) else { continue };
            if let Err(e) = conn.state.handle(place, &cqe, &mut self.lines) {
                self.failure = Some(format!("{}: {e}", conn.remote));
                self.conns.fail(place, &e);
            }
        }
        busy
    }

    fn handle_event(&mut self, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest { id, remote, peer, .. } => {
                let accepted = if peer.is_some_and(|p| p.ird.get() == Some(0)) {
                    Err(Fault::NoReads)
                } else {
                    Ok(())
                };
                if let Err(e) = accepted.and_then(|()| self.accept(id, remote)) {
                    self.conns.rejected(remote, &e);
                    self.failure = Some(format!("{remote}: {e}"));
                    let _ = self.device.reject(id, e.to_string().into_bytes());
                }
            }
            CmEvent::Established { id, remote, agreed, .. } => {
                info!(peer = %remote, ?agreed, "connected");
                if agreed.ord == 0
                    && let Some((place, _)) = self.conns.find(id)
                {
                    self.conns.fail(place, &Fault::NoReads);
                }
                self.conns.expect_word(id);
            }
            CmEvent::Listening { .. } => self.conns.listens(Ok(())),
            CmEvent::ListenFailed { error, .. } => self.conns.listens(Err(error)),
            CmEvent::Rejected { .. } => {}
            CmEvent::ConnectError { id, error, .. } => {
                while self.poll_cq() {}
                let _ = self.conns.not_established(id, &error);
            }
            CmEvent::Disconnected { id, reason, .. } => {
                while self.poll_cq() {}
                if let Some((_, c)) = self.conns.ended(id, reason) {
                    self.closed += 1;
                    debug!(peer = %c.remote, messages = c.state.messages, "served");
                    if reason != DisconnectReason::Orderly {
                        self.failure = Some(format!("{}: {reason}", c.remote));
                    }
                }
            }
        }
    }

    fn accept(&mut self, id: CmId, remote: SocketAddr) -> Result<(), Fault> {
        let place = self.conns.free_place(remote.ip())?;
        let d = &self.device;
        let pd = d.alloc_pd();
        let init = QpInit::new(self.cq.clone()).depths(8, BUFFERS);
        let conn = Serving {
            qp: d.create_qp(pd, QpInit { max_send_sge: 1, max_recv_sge: 1, ..init })?,
            data: d.alloc_mr(pd, MAX_SIZE as usize, Access::LOCAL_WRITE)?,
            inbox: d.alloc_mr(pd, BUFFERS as usize * Info::LEN, Access::LOCAL_WRITE)?,
            outbox: d.alloc_mr(pd, Info::LEN, Access::NONE)?,
            expects: Expects::Source,
            len: 0,
            messages: 0,
        };
        (0..BUFFERS).try_for_each(|b| conn.post_buffer(place, b))?;
        d.accept(id, AcceptParams::new(conn.qp.clone()))?;
        self.conns.insert(place, id, remote, conn.qp.clone(), conn);
        Ok(())
    }
}

impl Serving {
    fn post_buffer(&self, place: usize, n: u32) -> Result<(), PostError> {
        let at = n as usize * Info::LEN;
        let sges = &[self.inbox.sge(at, Info::LEN)];
        self.qp.post_recv(&RecvWr { wr_id: wr_id(place, INBOX | n), sges })
    }

    fn handle(
        &mut self,
        place: usize,
        cqe: &Cqe,
        lines: &mut Option<Vec<String>>,
    ) -> Result<(), Fault> {
        let (_, low) = place_and_low(cqe.wr_id);
        match low & KIND {
            INBOX => {
                if cqe.len as usize != Info::LEN {
                    return Err(Fault::Stray(cqe.len));
                }
                let n = low & !KIND;
                let mut b = [0; Info::LEN];
                self.inbox.read(n as usize * Info::LEN, &mut b);
                self.post_buffer(place, n)?;
                self.handle_info(place, Info::decode(&b))
            }
            READ => {
                if let Some(lines) = lines {
                    let mut b = vec![0; self.len as usize];
                    self.data.read(0, &mut b);
                    lines.push(printable(&b));
                }
                self.expects = Expects::Sink;
                self.go_ahead(place)
            }
            // Writes and Sends: they have been acknowledged, which nobody waits for.
            _ => Ok(()),
        }
    }

    fn handle_info(&mut self, place: usize, info: Info) -> Result<(), Fault> {
        let Info { stag, to, len } = info;
        if len > MAX_SIZE {
            return Err(Fault::TooLong(len));
        }
        if to.checked_add(len.into()).is_none() {
            return Err(Fault::Wraps { to, len });
        }
        match self.expects {
            Expects::Nothing => Err(Fault::OutOfTurn),
            Expects::Source => {
                (self.expects, self.len) = (Expects::Nothing, len);
                self.post(place, READ, SendOp::Read { stag, to }, len)
            }
            Expects::Sink => {
                self.expects = Expects::Source;
                self.messages += 1;
                let len = self.len.min(len);
                // The go-ahead is delivered after the Write is placed, so it need not wait for the
                // Write to be acknowledged.
                self.post(place, WRITE, SendOp::Write { stag, to }, len)?;
                self.go_ahead(place)
            }
        }
    }

    fn go_ahead(&self, place: usize) -> Result<(), Fault> {
        let sges = &[self.outbox.sge(0, Info::LEN)];
        let op = SendOp::Send { solicited: true, invalidate: None };
        let wr_id = wr_id(place, GO_AHEAD);
        Ok(self.qp.post_send(&SendWr {
            wr_id,
            op,
            data: Data::Sges(sges),
            signaled: true,
            fence: false,
        })?)
    }

    fn post(&self, place: usize, kind: u32, op: SendOp, len: u32) -> Result<(), Fault> {
        let sges = &[self.data.sge(0, len as usize)];
        let wr_id = wr_id(place, kind);
        Ok(self.qp.post_send(&SendWr {
            wr_id,
            op,
            data: Data::Sges(sges),
            signaled: true,
            fence: false,
        })?)
    }
}
