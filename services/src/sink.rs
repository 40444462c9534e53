//! The `sink` service: takes all messages, and counts them.
//!
//! The sink accepts every connection, takes Sends of up to 64 KiB, and grants a region of 256 KiB
//! that the peer may write and read. The private data of its acceptance names the region,
//! big-endian: `"HSNK"`, STag (4 bytes), tagged offset (8), length (8).
//!
//! No program reads the messages, so all receives of a connection share the same 64 KiB: a client
//! takes only as much memory as it can use, and clearing this memory costs others hardly any time.

use core::net::SocketAddr;

use heddle_verbs::{
    AcceptParams, Access, Agreed, Cqe, Device, DeviceError, DisconnectReason, ListenParams, Mr,
    PostError, Qp, QpInit, RecvWr, Waker,
};
use tracing::debug;

use crate::connections::{Connection, Full, place_and_low, wr_id};
use crate::server::{Answer, Next, Protocol, Request, Serve, Server};
use crate::service::Limits;

/// Bytes of the longest Send.
pub(crate) const MAX_SEND: usize = 64 << 10;
/// The number of receive buffers of a connection.
pub(crate) const BUFFERS: u32 = 64;
/// Bytes of the region that a peer may write.
pub(crate) const REGION: usize = 256 << 10;

heddle_base::counters! {
    /// Counts of the connections and messages that a sink has taken.
    pub struct SinkCounters {
        /// Connections accepted.
        connections,
        /// Connections rejected for want of room.
        refused,
        /// Messages received.
        messages,
        /// Bytes in the messages.
        bytes,
    }
}

/// Takes all messages on one address. The thread that polls the RNIC also calls
/// [`step`](Self::step).
pub struct Sink(Server<Taker>);

/// The counters of all connections together.
#[derive(Default)]
struct Taker {
    counters: SinkCounters,
}

struct Drain {
    qp: Qp,
    /// Messages end here, one over the other.
    inbox: Mr,
    region: Mr,
    counters: SinkCounters,
}

impl Sink {
    /// Listens. The service wakes `waker` when a step has work to do.
    pub fn new(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        waker: Option<&Waker>,
    ) -> Result<Sink, DeviceError> {
        Sink::with_limits(device, addr, params, Limits::default(), waker)
    }

    /// Listens with limits other than the defaults. A client of the sink may be silent for as long
    /// as it likes: the sink does not see the client's Writes and Reads.
    pub fn with_limits(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        limits: Limits,
        waker: Option<&Waker>,
    ) -> Result<Sink, DeviceError> {
        Server::new(device, addr, params, limits, waker, Taker::default()).map(Sink)
    }

    /// Returns the counters of all connections together.
    pub fn counters(&self) -> &SinkCounters {
        &self.0.protocol.counters
    }

    /// Does the work that is due. Returns true if there was any. Never blocks.
    pub fn step(&mut self) -> bool {
        self.0.step()
    }

    pub(crate) fn into_service(self) -> Box<dyn Serve> {
        Box::new(self.0)
    }
}

impl Protocol for Taker {
    type Conn = Drain;
    type Fault = SinkError;

    const MAX_CONNS: usize = 256;
    const TURN: usize = 256;

    fn cq_depth(&self) -> u32 {
        1 << 14
    }

    fn accept(&mut self, request: &Request<'_>) -> Result<Answer<Drain>, SinkError> {
        let d = request.device;
        let pd = d.own_pd()?;
        let init = QpInit { max_recv_sge: 1, ..QpInit::new(request.cq.clone()).depths(1, BUFFERS) };
        let conn = Drain {
            qp: d.create_qp(pd.id(), init)?,
            inbox: d.alloc_mr(pd.id(), MAX_SEND, Access::LOCAL_WRITE)?,
            region: d.alloc_mr(pd.id(), REGION, Access::REMOTE_WRITE.with(Access::REMOTE_READ))?,
            counters: SinkCounters::default(),
        };
        (0..BUFFERS).try_for_each(|b| conn.post_buffer(request.place, b))?;
        let mut params = AcceptParams::new(conn.qp.clone());
        params.private_data = [
            &b"HSNK"[..],
            &conn.region.stag().0.to_be_bytes(),
            &conn.region.to().to_be_bytes(),
            &(conn.region.len() as u64).to_be_bytes(),
        ]
        .concat();
        Ok(Answer { conn, params })
    }

    fn established(&mut self, _: usize, _: &mut Drain, _: &Agreed) -> Result<bool, SinkError> {
        self.counters.connections += 1;
        Ok(false)
    }

    fn completed(&mut self, place: usize, conn: &mut Drain, cqe: &Cqe) -> Result<Next, SinkError> {
        for c in [&mut self.counters, &mut conn.counters] {
            c.messages += 1;
            c.bytes += u64::from(cqe.len);
        }
        let (_, buffer) = place_and_low(cqe.wr_id);
        conn.post_buffer(place, buffer)?;
        Ok(Next::Go)
    }

    fn faulted(&mut self, _: SocketAddr, fault: &SinkError) {
        if !matches!(fault, SinkError::Post(_)) {
            self.counters.refused += 1;
        }
    }

    fn ended(&mut self, _: usize, c: Connection<Drain>, _: Option<DisconnectReason>) {
        let SinkCounters { messages, bytes, .. } = c.state.counters;
        debug!(peer = %c.remote, messages, bytes, "served");
    }
}

#[derive(Debug, thiserror::Error)]
enum SinkError {
    #[error(transparent)]
    Full(#[from] Full),
    #[error(transparent)]
    Ctl(#[from] DeviceError),
    #[error(transparent)]
    Post(#[from] PostError),
}

impl Drain {
    fn post_buffer(&self, place: usize, buffer: u32) -> Result<(), PostError> {
        let sges = &[self.inbox.sge(0, MAX_SEND)];
        self.qp.post_recv(&RecvWr { wr_id: wr_id(place, buffer), sges })
    }
}
