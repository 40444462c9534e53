//! The passive side: a listener, and peers that want to connect.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::BorrowedFd;

use heddle_shm::Sleeper;
use heddle_types::{CmId, Event, ListenerId, PeerDepths};

use super::{Connecting, Connection, ConnectionError, Ends, SETUP, wait_event};
use crate::device::{BoundAddr, Device};
use crate::event::{EventQueue, TakenEvents};
use crate::params::AcceptParams;

/// A listener; dropping it stops peers from connecting.
///
/// ```
/// # use heddle_verbs as heddle;
/// use std::time::Duration;
///
/// use heddle::Device;
///
/// /// Accepts peers that say hello, and rejects others with a reason.
/// fn accept(device: &Device) -> Result<(), Box<dyn std::error::Error>> {
///     let listener = device.bind("10.0.0.2:0")?;
///     println!("listening on {}", listener.addr());
///     loop {
///         let peer = listener.request(Duration::MAX)?;
///         if peer.private_data != b"hello" {
///             peer.reject(b"say hello first")?;
///             continue;
///         }
///         let connection = peer.accept()?;
///         println!("{} is connected", connection.remote());
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Listener {
    pub(super) device: Device,
    pub(super) id: ListenerId,
    pub(super) addr: SocketAddr,
    /// The reservation of the address, where the RNIC chose the port.
    pub(super) _bound: Option<BoundAddr>,
    pub(super) events: EventQueue,
    pub(super) sleeper: Sleeper,
}

impl Listener {
    /// Returns the address at which the listener listens.
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
    /// [`ConnectionError::TimedOut`]; [`ConnectionError::Listen`], from then on, when the listener
    /// has ended because its worker has.
    pub fn request(&self, timeout: Duration) -> Result<Incoming, ConnectionError> {
        // A year is practically for ever, and short enough to add to an `Instant`.
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
                // Put the event back: for later calls, and for other threads that wait here.
                self.events.push(event, &TakenEvents::default());
                Some(Err(ConnectionError::Listen(error)))
            }
            _ => None,
        })
        .map_err(|e| e.of(&self.device))
    }

    /// Returns a descriptor that is readable when a peer may want to connect: then call
    /// [`request`](Listener::request) with a timeout of zero until it times out.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleeper.fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Ignore the error: without a control plane the listener has ended already.
        let _ = self.device.unlisten(self.id);
    }
}

/// A peer that wants to connect; dropping this without an answer rejects the peer.
#[derive(Debug)]
pub struct Incoming {
    device: Device,
    id: CmId,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Private data of the peer's application.
    pub private_data: Vec<u8>,
    /// The peer's numbers of RDMA Reads; `None` in MPA revision 1.
    pub peer: Option<PeerDepths>,
    /// True if the peer asks for the peer-to-peer model, so that we may send first.
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

    /// Rejects the peer, with at most 508 bytes for its application.
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
