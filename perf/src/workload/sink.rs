//! The `sink` service: takes whatever comes, and counts it.
//!
//! It accepts every connection, takes Sends of up to 64 KiB, and grants a region of 256 KiB that the
//! peer may write and read. The private data of its acceptance names it, big-endian:
//! `"HSNK"`, STag (4 octets), tagged offset (8), length (8).
//!
//! Nobody reads what is sent to it, so that all receives of a connection go to the same 64 KiB: a
//! client takes as much memory as it can use, and hardly any time of others to clear it.

use core::net::SocketAddr;

use heddle_verbs::{
    AcceptParams, Access, Arm, CmEvent, CmId, Cq, Device, DeviceError, EventQueue, ListenFailure,
    ListenParams, Mr, PostError, Qp, QpInit, RecvWr, Waker,
};
use tracing::{debug, info};

use crate::connections::{Connections, Full, place_and_low, wr_id};
use crate::inbox::{EVENTS, Inbox};
use crate::service::Limits;

/// Longest Send.
pub const MAX_SEND: usize = 64 << 10;
/// Receive buffers of a connection.
pub const BUFFERS: u32 = 64;
/// Octets of the region a peer may write.
pub const REGION: usize = 256 << 10;

const MAX_CONNS: usize = 256;
const CQ_DEPTH: u32 = 1 << 14;
const TURN: usize = 256;

heddle_base::counters! {
    /// What a sink has taken.
    pub struct SinkCounters {
        /// Connections accepted.
        connections,
        /// Connections rejected for want of room.
        refused,
        /// Messages received.
        messages,
        /// Octets in them.
        bytes,
    }
}

/// Takes everything on one address. Whoever polls the RNIC also calls [`step`](Self::step).
pub struct Sink {
    device: Device,
    inbox: Inbox,
    cq: Cq,
    conns: Connections<Drain>,
    counters: SinkCounters,
}

struct Drain {
    qp: Qp,
    /// What is sent ends here, one message over the other.
    inbox: Mr,
    region: Mr,
    counters: SinkCounters,
}

impl Sink {
    /// Listens. `waker` is woken when there is something to do.
    pub fn new(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        waker: Option<&Waker>,
    ) -> Result<Sink, DeviceError> {
        Sink::with_limits(device, addr, params, Limits::default(), waker)
    }

    /// Listens, with other limits than the usual ones. A client of the sink may be silent for as
    /// long as it likes: what it writes and reads is not seen here.
    pub fn with_limits(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        limits: Limits,
        waker: Option<&Waker>,
    ) -> Result<Sink, DeviceError> {
        let events = EventQueue::new(waker.cloned());
        let listener = device.listen(addr, params, &events)?;
        let cq = device.create_cq(CQ_DEPTH, waker.cloned())?;
        let counters = SinkCounters::default();
        let conns = Connections::new(device, listener, MAX_CONNS, limits);
        Ok(Sink { device: device.clone(), inbox: Inbox::new(events), cq, conns, counters })
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

    /// Takes no more connections; those there are go on.
    pub fn stop_listening(&mut self) {
        self.conns.stop_listening();
    }

    /// What all connections have brought.
    pub fn counters(&self) -> &SinkCounters {
        &self.counters
    }

    /// Does what there is to do; true when there was something. Never blocks.
    pub fn step(&mut self) -> bool {
        let mut busy = self.poll_cq();
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
            for c in [&mut self.counters, &mut conn.state.counters] {
                c.messages += 1;
                c.bytes += u64::from(cqe.len);
            }
            let (_, buffer) = place_and_low(cqe.wr_id);
            if let Err(e) = conn.state.post_buffer(place, buffer) {
                self.conns.fail(place, &e);
            }
        }
        busy
    }

    fn handle_event(&mut self, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest { id, remote, .. } => match self.accept(id, remote) {
                Ok(()) => self.counters.connections += 1,
                Err(e) => {
                    self.counters.refused += 1;
                    self.conns.rejected(remote, &e);
                    let _ = self.device.reject(id, e.to_string().into_bytes());
                }
            },
            CmEvent::Established { remote, agreed, .. } => {
                info!(peer = %remote, ?agreed, "connected");
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
                    let SinkCounters { messages, bytes, .. } = c.state.counters;
                    debug!(peer = %c.remote, messages, bytes, "served");
                }
            }
        }
    }

    fn accept(&mut self, id: CmId, remote: SocketAddr) -> Result<(), SinkError> {
        let place = self.conns.free_place(remote.ip())?;
        let d = &self.device;
        let pd = d.alloc_pd();
        let init = QpInit { max_recv_sge: 1, ..QpInit::new(self.cq.clone()).depths(1, BUFFERS) };
        let conn = Drain {
            qp: d.create_qp(pd, init)?,
            inbox: d.alloc_mr(pd, MAX_SEND, Access::LOCAL_WRITE)?,
            region: d.alloc_mr(pd, REGION, Access::REMOTE_WRITE.with(Access::REMOTE_READ))?,
            counters: SinkCounters::default(),
        };
        (0..BUFFERS).try_for_each(|b| conn.post_buffer(place, b))?;
        let mut params = AcceptParams::new(conn.qp.clone());
        params.private_data = [
            &b"HSNK"[..],
            &conn.region.stag().0.to_be_bytes(),
            &conn.region.to().to_be_bytes(),
            &(conn.region.len() as u64).to_be_bytes(),
        ]
        .concat();
        d.accept(id, params)?;
        self.conns.insert(place, id, remote, conn.qp.clone(), conn);
        Ok(())
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
