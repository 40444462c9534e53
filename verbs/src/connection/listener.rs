//! The side that is connected to: a listener, and peers that want a connection.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::BorrowedFd;

use heddle_cm::{CmId, Event, ListenerId, PeerDepths};

use super::{Connecting, Connection, ConnectionError, Ends, SETUP, wait_event};
use crate::device::{BoundAddr, Device};
use crate::event::{EventQueue, Taken};
use crate::params::AcceptParams;
use crate::waker::Sleeper;

/// A listener; peers cannot connect any more when it is dropped.
#[derive(Debug)]
pub struct Listener {
    pub(super) device: Device,
    pub(super) id: ListenerId,
    pub(super) addr: SocketAddr,
    /// Where the port was chosen.
    pub(super) _bound: Option<BoundAddr>,
    pub(super) events: EventQueue,
    pub(super) sleeper: Sleeper,
}

impl Listener {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits for a peer and accepts it.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn accept(&self) -> Result<Connection, ConnectionError> {
        self.request(Duration::MAX)?.accept()
    }

    /// Waits for a peer that wants to connect.
    ///
    /// # Errors
    /// [`ConnectionError::TimedOut`]; [`ConnectionError::Listen`], from then on, when nobody
    /// listens any more because the worker has ended.
    pub fn request(&self, timeout: Duration) -> Result<Incoming, ConnectionError> {
        // Far enough away to be for ever, and an instant all the same.
        let timeout = timeout.min(Duration::from_secs(86_400 * 365));
        wait_event(&self.events, &self.sleeper, timeout, |event| match event {
            Event::ConnectRequest { id, remote, private_data, peer, peer_to_peer, .. } => {
                let device = self.device.clone();
                Some(Ok(Incoming {
                    device,
                    id,
                    remote,
                    private_data,
                    peer,
                    peer_to_peer,
                    answered: false,
                }))
            }
            Event::ListenFailed { error, .. } => {
                // It stays: for later calls, and for other threads that wait here.
                self.events.push(event, &Taken::default());
                Some(Err(ConnectionError::Listen(error)))
            }
            _ => None,
        })
    }

    /// Readable when a peer may want to connect: then [`request`](Listener::request) with no time
    /// to wait, until it times out.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleeper.fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Without a control plane nobody listens.
        let _ = self.device.unlisten(self.id);
    }
}

/// A peer that wants to connect; rejected when it is dropped without an answer.
#[derive(Debug)]
pub struct Incoming {
    device: Device,
    id: CmId,
    /// Who.
    pub remote: SocketAddr,
    /// What its application says.
    pub private_data: Vec<u8>,
    /// What it says of its RDMA Reads; `None` in MPA revision 1.
    pub peer: Option<PeerDepths>,
    /// It asks for the peer-to-peer model: we may send first.
    pub peer_to_peer: bool,
    answered: bool,
}

impl Incoming {
    /// Accepts, and waits until the connection is established.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn accept(self) -> Result<Connection, ConnectionError> {
        let ends = Ends::of_own(&self.device)?;
        let params = AcceptParams::new(ends.qp.clone());
        self.accept_with(params, ends)
    }

    /// As [`accept`](Incoming::accept), with parameters for the queue pair of `ends`.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn accept_with(
        mut self,
        params: AcceptParams,
        ends: Ends,
    ) -> Result<Connection, ConnectionError> {
        self.answered = true;
        self.device.accept_on(self.id, params, &ends.events)?;
        Connecting { device: self.device.clone(), id: self.id, ends, timeout: SETUP }.wait()
    }

    /// Rejects, with at most 508 octets for the peer's application.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectionError> {
        self.answered = true;
        Ok(self.device.reject(self.id, private_data.to_vec())?)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.answered {
            let _ = self.device.reject(self.id, Vec::new());
        }
    }
}
