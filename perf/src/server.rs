//! What all services do, whatever they serve: listen, accept or reject with a reason, take
//! completions to the connection they are of, end connections that break the rules, tell of ends.
//!
//! A service is a [`Protocol`]: what it keeps for a connection, and what it makes of a request, a
//! completion and an end. [`Server`] runs it.

use core::fmt;
use core::net::SocketAddr;

use heddle_verbs::{
    AcceptParams, Agreed, Arm, CmEvent, CmId, Cq, Cqe, Device, DeviceError, DisconnectReason,
    EventQueue, ListenFailure, ListenParams, PeerDepths, Qp, Waker,
};
use tracing::info;

use crate::connections::{Connection, Connections, Full};
use crate::inbox::{EVENTS, Inbox};
use crate::service::Limits;

/// A service as those see it that drive it.
pub(crate) trait Serve {
    /// Does what there is to do; true when there was something. Never blocks.
    fn step(&mut self) -> bool;
    /// Takes no more connections; those there are go on.
    fn stop_listening(&mut self);
    /// Takes no more connections, and ends those there are in order. Steps go on until there is none.
    fn end(&mut self);
    /// Connections it has.
    fn conns(&self) -> usize;
    /// Whether it listens: false until the RNIC does.
    fn is_listening(&self) -> Result<bool, ListenFailure>;
    /// Whether a step would find something. Arms the completion queues: to be asked before
    /// sleeping.
    fn has_work(&self) -> bool;
}

/// What a service is made of. Its connections share one completion queue.
pub(crate) trait Protocol {
    /// What is kept for a connection.
    type Conn;
    /// Why a connection is refused, or ended.
    type Fault: fmt::Display + From<Full> + From<DeviceError>;

    /// Connections it takes.
    const MAX_CONNS: usize;
    /// Completions taken in one step, so that connection events have their turn.
    const TURN: usize = 64;

    /// Completions its connections can have outstanding, all together.
    fn cq_depth(&self) -> u32;

    /// Makes what is kept for a connection, or says why there will be none: the peer is told.
    fn accept(&mut self, request: &Request<'_>) -> Result<Answer<Self::Conn>, Self::Fault>;

    /// The connection is up. Whether it has to say something before long.
    fn established(
        &mut self,
        place: usize,
        conn: &mut Self::Conn,
        agreed: &Agreed,
    ) -> Result<bool, Self::Fault>;

    /// A work request has been carried out.
    fn completed(
        &mut self,
        place: usize,
        conn: &mut Self::Conn,
        cqe: &Cqe,
    ) -> Result<Next, Self::Fault>;

    /// A request from `remote` was rejected, or its connection ended, because of `fault`.
    fn faulted(&mut self, _remote: SocketAddr, _fault: &Self::Fault) {}

    /// A connection that was accepted is over; `reason` is `None` when it did not come about.
    fn ended(
        &mut self,
        place: usize,
        conn: Connection<Self::Conn>,
        reason: Option<DisconnectReason>,
    );

    /// Does what no completion calls for; true when there was something.
    fn poll(&mut self, _conns: &mut Connections<Self::Conn>) -> bool {
        false
    }

    /// Whether [`poll`](Self::poll) has to be called although nothing completes.
    fn must_poll(&self) -> bool {
        false
    }
}

/// What a connection does after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Goes on.
    Go,
    /// Is disconnected, in order.
    Close,
}

/// A connection to be accepted, and what with.
pub(crate) struct Answer<T> {
    /// What is kept for it.
    pub(crate) conn: T,
    /// Its queue pair, read depths and private data.
    pub(crate) params: AcceptParams,
}

/// A peer that wants to connect.
pub(crate) struct Request<'a> {
    /// What the service makes its queues and memory of.
    pub(crate) device: &'a Device,
    /// Where its completions go.
    pub(crate) cq: &'a Cq,
    /// The number that its work requests carry.
    pub(crate) place: usize,
    /// The peer.
    pub(crate) remote: SocketAddr,
    /// What it says of its RDMA Reads; `None` in MPA revision 1.
    pub(crate) peer: Option<PeerDepths>,
    /// It speaks first of its own accord, so that we need not wait for it (RFC 6581 section 9.2).
    pub(crate) peer_to_peer: bool,
}

/// Runs a [`Protocol`] on one address.
pub(crate) struct Server<P: Protocol> {
    device: Device,
    inbox: Inbox,
    cq: Cq,
    conns: Connections<P::Conn>,
    pub(crate) protocol: P,
}

impl<P: Protocol> Server<P> {
    /// Listens. `waker` is woken when there is something to do.
    pub(crate) fn new(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        limits: Limits,
        waker: Option<&Waker>,
        protocol: P,
    ) -> Result<Server<P>, DeviceError> {
        // Before it listens: where there is no room for it nobody is to listen.
        let cq = device.create_cq(protocol.cq_depth(), waker.cloned())?;
        let events = EventQueue::new(waker.cloned());
        let listener = device.listen(addr, params, &events)?;
        let conns = Connections::new(device, listener, P::MAX_CONNS, limits);
        Ok(Server { device: device.clone(), inbox: Inbox::new(events), cq, conns, protocol })
    }

    fn poll_cq(&mut self) -> bool {
        let mut busy = false;
        for _ in 0..P::TURN {
            let Some(cqe) = self.cq.poll() else { break };
            busy = true;
            let Some((place, conn)) = self.conns.of(&cqe) else { continue };
            match self.protocol.completed(place, &mut conn.state, &cqe) {
                Ok(Next::Go) => {}
                Ok(Next::Close) => self.conns.close(place),
                Err(fault) => self.fail(place, &fault),
            }
        }
        busy
    }

    fn fail(&mut self, place: usize, fault: &P::Fault) {
        if let Some(conn) = self.conns.get_mut(place) {
            self.protocol.faulted(conn.remote, fault);
        }
        self.conns.fail(place, fault);
    }

    fn handle_event(&mut self, event: CmEvent) {
        match event {
            // It was on its way when nobody listened any more.
            CmEvent::ConnectRequest { id, .. } if self.conns.is_ending() => {
                let _ = self.device.reject(id, b"the service ends".to_vec());
            }
            CmEvent::ConnectRequest { id, remote, peer, peer_to_peer, .. } => {
                if let Err(fault) = self.accept(id, remote, peer, peer_to_peer) {
                    self.conns.rejected(remote, &fault);
                    self.protocol.faulted(remote, &fault);
                    let _ = self.device.reject(id, fault.to_string().into_bytes());
                }
            }
            CmEvent::Established { id, remote, agreed, .. } => {
                info!(peer = %remote, ?agreed, "connected");
                let Some((place, _)) = self.conns.find(id) else { return };
                let Some(conn) = self.conns.get_mut(place) else { return };
                match self.protocol.established(place, &mut conn.state, &agreed) {
                    Ok(true) => self.conns.expect_word(id),
                    Ok(false) => {}
                    Err(fault) => self.fail(place, &fault),
                }
            }
            CmEvent::Listening { .. } => self.conns.listens(Ok(())),
            CmEvent::ListenFailed { error, .. } => self.conns.listens(Err(error)),
            CmEvent::Rejected { .. } => {}
            CmEvent::ConnectError { id, error, .. } => {
                while self.poll_cq() {}
                if let Some((place, conn)) = self.conns.not_established(id, &error) {
                    self.protocol.ended(place, conn, None);
                }
            }
            CmEvent::Disconnected { id, reason, .. } => {
                while self.poll_cq() {}
                if let Some((place, conn)) = self.conns.ended(id, reason) {
                    self.protocol.ended(place, conn, Some(reason));
                }
            }
        }
    }

    fn accept(
        &mut self,
        id: CmId,
        remote: SocketAddr,
        peer: Option<PeerDepths>,
        peer_to_peer: bool,
    ) -> Result<(), P::Fault> {
        let place = self.conns.free_place(remote.ip())?;
        let (device, cq) = (&self.device, &self.cq);
        let request = Request { device, cq, place, remote, peer, peer_to_peer };
        let Answer { conn, params } = self.protocol.accept(&request)?;
        let qp: Qp = params.qp.clone();
        let accepted = self.device.accept(id, params);
        self.conns.insert(place, id, remote, qp, conn);
        if let Err(error) = accepted {
            // What the protocol has noted for it is taken back as for every other.
            if let Some((place, conn)) = self.conns.take(id) {
                self.protocol.ended(place, conn, None);
            }
            return Err(error.into());
        }
        Ok(())
    }
}

impl<P: Protocol> Serve for Server<P> {
    fn step(&mut self) -> bool {
        let mut busy = self.poll_cq();
        busy |= self.protocol.poll(&mut self.conns);
        self.conns.end_silent();
        for _ in 0..EVENTS {
            let Some(event) = self.inbox.poll() else { break };
            busy = true;
            self.handle_event(event);
        }
        busy
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
        self.cq.arm(Arm::Next);
        self.protocol.must_poll() || !self.inbox.is_empty() || !self.cq.is_empty()
    }
}
