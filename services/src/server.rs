//! The part that all services have in common: a [`Server`] listens, accepts or rejects with a
//! reason, takes completions to their connections, ends connections that break the rules, and
//! reports ends.
//!
//! A service is a [`Protocol`]: the state that it keeps for a connection, and its reactions to a
//! request, a completion and an end. [`Server`] runs the protocol.

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

/// The interface by which a driver runs a service.
pub trait Serve {
    /// Does the work that is due. Returns true if there was any. Never blocks.
    fn step(&mut self) -> bool;
    /// Takes no more connections; the existing ones go on.
    fn stop_listening(&mut self);
    /// Takes no more connections, and ends the existing ones in order. The caller steps on until
    /// none is left.
    fn end(&mut self);
    /// Returns the number of the service's connections.
    fn conns(&self) -> usize;
    /// Returns true if the service listens, and false until the RNIC does.
    fn is_listening(&self) -> Result<bool, ListenFailure>;
    /// Returns true if a step would find work. Arms the completion queues, so the caller asks
    /// before it sleeps.
    fn has_work(&self) -> bool;
}

/// The behaviour of a service. Its connections share one completion queue.
pub(crate) trait Protocol {
    /// The service's state for a connection.
    type Conn;
    /// Why the service refuses or ends a connection.
    type Fault: fmt::Display + From<Full> + From<DeviceError>;

    /// The highest number of connections.
    const MAX_CONNS: usize;
    /// The highest number of completions per step, so that connection events have their turn.
    const TURN: usize = 64;

    /// Returns how many completions all connections together can have outstanding.
    fn cq_depth(&self) -> u32;

    /// Makes the state for a connection, or returns why the service refuses it; the peer receives
    /// this reason.
    fn accept(&mut self, request: &Request<'_>) -> Result<Answer<Self::Conn>, Self::Fault>;

    /// Handles a connection that is up. Returns true if its peer has to send a message before long.
    fn established(
        &mut self,
        place: usize,
        conn: &mut Self::Conn,
        agreed: &Agreed,
    ) -> Result<bool, Self::Fault>;

    /// Handles the completion of a work request.
    fn completed(
        &mut self,
        place: usize,
        conn: &mut Self::Conn,
        cqe: &Cqe,
    ) -> Result<Next, Self::Fault>;

    /// Notes that the server rejected a request from `remote`, or ended its connection, because of
    /// `fault`.
    fn faulted(&mut self, _remote: SocketAddr, _fault: &Self::Fault) {}

    /// Handles the end of an accepted connection; `reason` is `None` when the connection was never
    /// established.
    fn ended(
        &mut self,
        place: usize,
        conn: Connection<Self::Conn>,
        reason: Option<DisconnectReason>,
    );

    /// Does work that no completion triggers. Returns true if there was any.
    fn poll(&mut self, _conns: &mut Connections<Self::Conn>) -> bool {
        false
    }

    /// Returns true if the driver has to call [`poll`](Self::poll) although no request completes.
    fn must_poll(&self) -> bool {
        false
    }
}

/// The server's next act on a connection after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The connection goes on.
    Go,
    /// The server disconnects the connection, in order.
    Close,
}

/// The service's consent to a connection.
pub(crate) struct Answer<T> {
    /// The service's state for the connection.
    pub(crate) conn: T,
    /// The connection's queue pair, read depths and private data.
    pub(crate) params: AcceptParams,
}

/// A peer's request to connect.
pub(crate) struct Request<'a> {
    /// The device on which the service makes its queues and memory.
    pub(crate) device: &'a Device,
    /// The completion queue for the connection.
    pub(crate) cq: &'a Cq,
    /// The number that the connection's work requests carry.
    pub(crate) place: usize,
    /// The address of the peer.
    pub(crate) remote: SocketAddr,
    /// The peer's RDMA Read depths; `None` in MPA revision 1.
    pub(crate) peer: Option<PeerDepths>,
    /// True if the peer speaks first by itself, so that we need not wait for a message (RFC 6581
    /// section 9.2).
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
    /// Listens. The service wakes `waker` when a step has work to do.
    pub(crate) fn new(
        device: &Device,
        addr: SocketAddr,
        params: ListenParams,
        limits: Limits,
        waker: Option<&Waker>,
        protocol: P,
    ) -> Result<Server<P>, DeviceError> {
        // The queue is made before the server listens: without room for a queue, no listener may
        // exist.
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
            // The request was on its way when the listener ended.
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
                info!(peer = %remote, "connected: {agreed}");
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
            // The protocol takes back its state for this connection, as for every other.
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
