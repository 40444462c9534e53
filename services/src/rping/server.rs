//! The end that reads and writes: the `rping` service.

use core::net::SocketAddr;

use heddle_verbs::{
    AcceptParams, Access, Agreed, Cqe, Data, Device, DeviceError, DisconnectReason, ListenFailure,
    ListenParams, Mr, PostError, Qp, QpInit, RecvWr, SendOp, SendWr, Waker,
};
use tracing::debug;

use crate::connections::{Connection, Full, place_and_low, wr_id};
use crate::server::{Answer, Next, Protocol, Request, Serve, Server};
use crate::service::Limits;

use super::{Info, MAX_SIZE, printable};

const BUFFERS: u32 = 4;

/// Answers rping clients on one address. The thread that polls the RNIC also calls
/// [`step`](Self::step).
pub struct RpingServer(Server<Rping>);

/// The service's counters and results.
struct Rping {
    /// The number of accepted connections that have closed so far.
    closed: u64,
    /// The text of each message, for callers that show it.
    lines: Option<Vec<String>>,
    /// The reason of the latest connection that did not end in order.
    failure: Option<String>,
}

/// The meaning of the next Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expects {
    Source,
    /// The client must not send: an operation of ours is in flight.
    Nothing,
    Sink,
}

struct Serving {
    qp: Qp,
    data: Mr,
    inbox: Mr,
    outbox: Mr,
    expects: Expects,
    /// Bytes read from the source.
    len: u32,
    messages: u64,
}

/// The purpose of a work request; a receive buffer's number is added.
const INBOX: u32 = 1 << 30;
const READ: u32 = 2 << 30;
const WRITE: u32 = 3 << 30;
const GO_AHEAD: u32 = 0;
const KIND: u32 = 3 << 30;

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the client sent {0} bytes, not {len}", len = Info::LEN)]
    Stray(u32),
    #[error("the client did not wait for the go-ahead")]
    OutOfTurn,
    #[error("a region of {0} bytes; {MAX_SIZE} is the most")]
    TooLong(u32),
    #[error("a region of {len} bytes at {to:#x}, which goes past the end of all offsets")]
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
    /// Listens. The service wakes `waker` when a step has work to do. With `show`,
    /// [`take_lines`](Self::take_lines) returns the text of the messages.
    pub fn new(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        waker: Option<&Waker>,
        show: bool,
    ) -> Result<RpingServer, DeviceError> {
        RpingServer::with_limits(device, addr, params, Limits::default(), waker, show)
    }

    /// Listens with limits other than the defaults.
    pub fn with_limits(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        limits: Limits,
        waker: Option<&Waker>,
        show: bool,
    ) -> Result<RpingServer, DeviceError> {
        let rping = Rping { closed: 0, lines: show.then(Vec::new), failure: None };
        Server::new(device, addr, params, limits, waker, rping).map(RpingServer)
    }

    /// Returns true if the service listens, and false until the RNIC does.
    ///
    /// # Errors
    /// [`ListenFailure`] if the service never will.
    pub fn is_listening(&self) -> Result<bool, ListenFailure> {
        self.0.is_listening()
    }

    /// Returns the number of connections that have come and gone.
    pub fn closed(&self) -> u64 {
        self.0.protocol.closed
    }

    /// Returns why the latest connection that did not end in order ended.
    pub fn failure(&self) -> Option<&str> {
        self.0.protocol.failure.as_deref()
    }

    /// Returns the messages read since the last call.
    pub fn take_lines(&mut self) -> Vec<String> {
        self.0.protocol.lines.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// Does the work that is due. Returns true if there was any. Never blocks.
    pub fn step(&mut self) -> bool {
        self.0.step()
    }

    pub(crate) fn into_service(self) -> Box<dyn Serve> {
        Box::new(self.0)
    }
}

impl Protocol for Rping {
    type Conn = Serving;
    type Fault = Fault;

    const MAX_CONNS: usize = 256;

    fn cq_depth(&self) -> u32 {
        1 << 12
    }

    fn accept(&mut self, request: &Request<'_>) -> Result<Answer<Serving>, Fault> {
        if request.peer.is_some_and(|p| p.ird.get() == Some(0)) {
            return Err(Fault::NoReads);
        }
        let d = request.device;
        let pd = d.own_pd()?;
        let init = QpInit::new(request.cq.clone()).depths(8, BUFFERS);
        let conn = Serving {
            qp: d.create_qp(pd.id(), QpInit { max_send_sge: 1, max_recv_sge: 1, ..init })?,
            data: d.alloc_mr(pd.id(), MAX_SIZE as usize, Access::LOCAL_WRITE)?,
            inbox: d.alloc_mr(pd.id(), BUFFERS as usize * Info::LEN, Access::LOCAL_WRITE)?,
            outbox: d.alloc_mr(pd.id(), Info::LEN, Access::NONE)?,
            expects: Expects::Source,
            len: 0,
            messages: 0,
        };
        (0..BUFFERS).try_for_each(|b| conn.post_buffer(request.place, b))?;
        let params = AcceptParams::new(conn.qp.clone());
        Ok(Answer { conn, params })
    }

    fn established(&mut self, _: usize, _: &mut Serving, agreed: &Agreed) -> Result<bool, Fault> {
        if agreed.ord == 0 { Err(Fault::NoReads) } else { Ok(true) }
    }

    fn completed(&mut self, place: usize, conn: &mut Serving, cqe: &Cqe) -> Result<Next, Fault> {
        conn.handle(place, cqe, &mut self.lines).map(|()| Next::Go)
    }

    fn faulted(&mut self, remote: SocketAddr, fault: &Fault) {
        self.failure = Some(format!("{remote}: {fault}"));
    }

    fn ended(&mut self, _: usize, c: Connection<Serving>, reason: Option<DisconnectReason>) {
        let Some(reason) = reason else { return };
        self.closed += 1;
        debug!(peer = %c.remote, messages = c.state.messages, "served");
        if reason != DisconnectReason::Orderly {
            self.failure = Some(format!("{}: {reason}", c.remote));
        }
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
            // Acknowledged Writes and Sends need no further work.
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
                // The peer receives the go-ahead only after the Write is placed, so the go-ahead
                // need not wait for the Write's acknowledgement.
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
