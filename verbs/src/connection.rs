//! Connections for programs that have a thread to wait with: listen, connect, accept, and wait for
//! completions, each in one call.
//!
//! This module is built on the calls of [`Device`] alone, and every call here that waits has a
//! counterpart there that does not wait. These calls need an RNIC that runs on threads of its own:
//! no thread polls an inline RNIC while the program's thread waits.

use core::net::SocketAddr;
use core::time::Duration;
use std::net::ToSocketAddrs;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use heddle_shm::Sleeper;
use heddle_types::{
    Access, Agreed, CmId, ConnectFailure, Cqe, DisconnectReason, Event, ListenFailure, Pd,
    PeerDepths, PostError, RecvWr, SendWr, TerminatePayload,
};

use crate::cq::{Cq, WaitError};
use crate::device::{BoundAddr, Device, OwnedPd};
use crate::error::DeviceError;
use crate::event::EventQueue;
use crate::mr::Mr;
use crate::params::{ConnectParams, ListenParams};
use crate::qp::{Qp, QpInit};

mod listener;

pub use listener::{Incoming, Listener};

/// Why there is no connection, or no listener.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The device refused the request.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The listener could not start, or has ended.
    #[error("cannot listen: {0}")]
    Listen(ListenFailure),
    /// The connection did not come about.
    #[error("cannot connect: {0}")]
    Connect(ConnectFailure),
    /// The peer's application rejected the connection.
    #[error("rejected by the peer")]
    Rejected {
        /// The peer's private data.
        private_data: Vec<u8>,
        /// The peer's numbers of RDMA Reads; the ORD may be the number that the peer needs.
        peer: Option<PeerDepths>,
    },
    /// The connection ended while the caller waited for its first event.
    #[error("{0}")]
    Disconnected(DisconnectReason),
    /// No event came in time.
    #[error("nothing came in time")]
    TimedOut,
    /// The system gives no descriptor to sleep on.
    #[error("no descriptor: {0}")]
    Sleeper(#[from] std::io::Error),
    /// The text names no address.
    #[error("no such address")]
    Address,
    /// The thread that would wait here is the thread that polls the RNIC.
    #[error("an inline RNIC cannot be waited for: poll it, and use the device's own calls")]
    Inline,
}

impl ConnectionError {
    /// Returns the end of the device's RNIC in place of an error that follows from it.
    fn of(self, device: &Device) -> ConnectionError {
        match self {
            ConnectionError::Listen(ListenFailure::ControlLost)
            | ConnectionError::Connect(ConnectFailure::ControlLost)
            | ConnectionError::Disconnected(DisconnectReason::ControlLost) => {
                device.ended().map_or(self, ConnectionError::Device)
            }
            other => other,
        }
    }
}

/// Time that a listener, and an accepted connection, may take to come about.
const SETUP: Duration = Duration::from_secs(30);

fn first(addr: impl ToSocketAddrs) -> Result<SocketAddr, ConnectionError> {
    let mut addrs = addr.to_socket_addrs().map_err(|_| ConnectionError::Address)?;
    addrs.next().ok_or(ConnectionError::Address)
}

/// Waits for an event for which `wanted` returns a result.
fn wait_event<T>(
    events: &EventQueue,
    sleeper: &Sleeper,
    timeout: Duration,
    mut wanted: impl FnMut(Event) -> Option<Result<T, ConnectionError>>,
) -> Result<T, ConnectionError> {
    let end = Instant::now() + timeout;
    loop {
        while let Some(event) = events.poll() {
            if let Some(result) = wanted(event) {
                return result;
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ConnectionError::TimedOut);
        }
        sleeper.sleep(left, || !events.is_empty());
    }
}

impl Device {
    /// Listens at `addr` and waits until peers can connect. With port 0 the RNIC chooses a port
    /// ([`Listener::addr`]); `0.0.0.0` stands for all IPv4 addresses of the RNIC and `::` for all its
    /// addresses, including later ones.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn bind(&self, addr: impl ToSocketAddrs) -> Result<Listener, ConnectionError> {
        self.bind_with(addr, ListenParams::default())
    }

    /// As [`bind`](Device::bind), with parameters.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn bind_with(
        &self,
        addr: impl ToSocketAddrs,
        params: ListenParams,
    ) -> Result<Listener, ConnectionError> {
        if self.is_inline() {
            return Err(ConnectionError::Inline);
        }
        let sleeper = Sleeper::with_fd()?;
        let events = EventQueue::new(Some(sleeper.waker()));
        let addr = first(addr)?;
        let bound = match addr.port() {
            0 if params.v6_only => Some(self.reserve_addr_v6_only(addr)?),
            0 => Some(self.reserve_addr(addr)?),
            _ => None,
        };
        let id = match &bound {
            Some(bound) => self.listen_at(bound, params, &events)?,
            None => self.listen(addr, params, &events)?,
        };
        let addr = bound.as_ref().map_or(addr, BoundAddr::addr);
        let listener = Listener { device: self.clone(), id, addr, _bound: bound, events, sleeper };
        wait_event(&listener.events, &listener.sleeper, SETUP, |event| match event {
            Event::Listening { .. } => Some(Ok(())),
            Event::ListenFailed { error, .. } => Some(Err(ConnectionError::Listen(error))),
            _ => None,
        })
        .map_err(|e| e.of(self))?;
        Ok(listener)
    }

    /// Begins to connect to `addr`, with a protection domain, a completion queue and a queue pair
    /// of the connection's own. The protection domain ends with the connection: a caller that goes
    /// on using the queue pair, or uses other queue pairs beside it, calls
    /// [`dial_with`](Device::dial_with) instead.
    ///
    /// # Errors
    /// [`ConnectionError`]; [`Connecting::wait`] reports later failures.
    pub fn dial(&self, addr: impl ToSocketAddrs) -> Result<Connecting, ConnectionError> {
        let ends = Ends::of_own(self)?;
        let params = ConnectParams::new(ends.qp.clone());
        self.dial_with(addr, params, ends)
    }

    /// As [`dial`](Device::dial), with parameters for the queue pair of `ends`.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn dial_with(
        &self,
        addr: impl ToSocketAddrs,
        params: ConnectParams,
        ends: Ends,
    ) -> Result<Connecting, ConnectionError> {
        if self.is_inline() {
            return Err(ConnectionError::Inline);
        }
        let timeout = params.timeout;
        let id = self.connect(first(addr)?, params, &ends.events)?;
        Ok(Connecting { device: self.clone(), id, ends, timeout })
    }
}

/// The objects that a connection is made with: a queue pair, its completion queue, and a way to
/// wait for completions.
#[derive(Debug)]
pub struct Ends {
    /// The queue pair.
    pub qp: Qp,
    /// The completion queue of both queues.
    pub cq: Cq,
    events: EventQueue,
    completions: Sleeper,
    sleeper: Sleeper,
    /// The protection domain that only these objects use; it ends with them.
    _pd: Option<OwnedPd>,
}

impl Ends {
    /// Does the same as [`new`](Ends::new), in a new protection domain.
    pub(crate) fn of_own(device: &Device) -> Result<Ends, ConnectionError> {
        let pd = device.own_pd()?;
        let ends = Ends::new(device, pd.id())?;
        Ok(Ends { _pd: Some(pd), ..ends })
    }

    /// Returns a queue pair of 128 requests each way, with a completion queue that holds all of
    /// them.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn new(device: &Device, pd: Pd) -> Result<Ends, ConnectionError> {
        Ends::with(device, pd, 256, |init| init)
    }

    /// Returns a queue pair as `configure` sets it up, with a completion queue of `depth`, which
    /// has to hold completions of all the queue pair's requests.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn with(
        device: &Device,
        pd: Pd,
        depth: u32,
        configure: impl FnOnce(QpInit) -> QpInit,
    ) -> Result<Ends, ConnectionError> {
        // A program can hand the descriptor of a local device's sleeper to another process, so use
        // a pair there. A server cannot wake such a sleeper.
        let local = device.is_local();
        let completions = if local { Sleeper::pair()? } else { Sleeper::with_fd()? };
        let sleeper = Sleeper::with_fd()?;
        let cq = device.create_cq(depth, Some(completions.waker()))?;
        let qp = device.create_qp(pd, configure(QpInit::new(cq.clone())))?;
        let events = EventQueue::new(Some(sleeper.waker()));
        Ok(Ends { qp, cq, events, completions, sleeper, _pd: None })
    }
}

/// A connection that is being established.
#[derive(Debug)]
pub struct Connecting {
    device: Device,
    id: CmId,
    ends: Ends,
    timeout: Duration,
}

impl Connecting {
    /// Waits until the connection is established or has failed.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn wait(self) -> Result<Connection, ConnectionError> {
        let Connecting { device, id, ends, timeout } = self;
        // The connection manager applies the time-out; wait a little longer for its answer.
        let timeout = timeout.saturating_add(Duration::from_secs(5));
        let (agreed, remote, private_data) =
            wait_event(&ends.events, &ends.sleeper, timeout, |event| match event {
                Event::Established { agreed, remote, private_data, .. } => {
                    Some(Ok((agreed, remote, private_data)))
                }
                Event::Rejected { private_data, peer, .. } => {
                    Some(Err(ConnectionError::Rejected { private_data, peer }))
                }
                Event::ConnectError { error, .. } => Some(Err(ConnectionError::Connect(error))),
                Event::Disconnected { reason, .. } => {
                    Some(Err(ConnectionError::Disconnected(reason)))
                }
                _ => None,
            })
            .map_err(|e| e.of(&device))?;
        let (ended, terminate) = (None, None);
        Ok(Connection { device, id, ends, agreed, remote, private_data, ended, terminate })
    }
}

/// An established connection, with its queue pair and completion queue; dropping it disconnects.
///
/// ```
/// # use heddle_verbs as heddle;
/// use std::time::Duration;
///
/// use heddle::{Access, Device, SendWr, Stag};
///
/// /// Writes a page of the peer's memory, and waits until the peer's TCP has it.
/// fn put(
///     device: &Device,
///     (stag, to): (Stag, u64),
///     page: &[u8],
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let connection = device.dial("10.0.0.2:7174")?.wait()?;
///     let source = connection.alloc_mr(page.len(), Access::NONE)?;
///     source.write(0, page);
///     connection.post_send(&SendWr::write(1, &[source.sge(0, page.len())], stag, to))?;
///     let done = connection.wait(Duration::from_secs(10))?;
///     if !done.status.is_success() {
///         return Err(format!("{:?}: {:?}", done.status, connection.terminate()).into());
///     }
///     connection.disconnect()?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Connection {
    device: Device,
    id: CmId,
    ends: Ends,
    agreed: Agreed,
    remote: SocketAddr,
    private_data: Vec<u8>,
    ended: Option<DisconnectReason>,
    terminate: Option<Box<TerminatePayload>>,
}

impl Connection {
    /// Returns the connection's queue pair.
    pub fn qp(&self) -> &Qp {
        &self.ends.qp
    }

    /// Returns the completion queue of the queue pair.
    pub fn cq(&self) -> &Cq {
        &self.ends.cq
    }

    /// Returns the parameters that both ends agreed on.
    pub fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// Returns the peer's address.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Returns the private data with which the peer's application accepted; empty on the accepting
    /// side.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Registers `len` zeroed bytes that this connection can use.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr, DeviceError> {
        self.device.alloc_mr(self.ends.qp.pd(), len, access)
    }

    /// Posts a request to the send queue.
    ///
    /// # Errors
    /// [`PostError`].
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.ends.qp.post_send(wr)
    }

    /// Posts a receive buffer.
    ///
    /// # Errors
    /// [`PostError`].
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.ends.qp.post_recv(wr)
    }

    /// Waits for the next completion.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&self, timeout: Duration) -> Result<Cqe, WaitError> {
        self.ends.cq.wait(&self.ends.completions, timeout)
    }

    /// Returns a descriptor that is readable when a completion has come since the queue was armed
    /// ([`Cq::arm`]). After that: [`clear`](Connection::clear), poll, and arm again.
    pub fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ends.completions.fd()
    }

    /// Forgets that completions have come; see [`completion_fd`](Connection::completion_fd).
    pub fn clear(&self) {
        self.ends.completions.clear();
    }

    /// Returns a descriptor that is readable when the connection has ended.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ends.sleeper.fd()
    }

    /// Returns why the connection ended, if it has. After [`DisconnectReason::ControlLost`],
    /// [`Device::ended`] of the device knows more.
    pub fn end(&mut self) -> Option<DisconnectReason> {
        if self.ended.is_none() {
            let _ = self.wait_end(Duration::ZERO);
        }
        self.ended
    }

    /// Returns the peer's Terminate, once [`end`](Connection::end) has reported that a Terminate
    /// ended the connection. It contains the headers that the peer copies (RFC 5040 section 4.8),
    /// which show what the peer refused.
    pub fn terminate(&self) -> Option<&TerminatePayload> {
        self.terminate.as_deref()
    }

    /// Ends the connection in order, after all posted requests, and waits until it is over.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn disconnect(mut self) -> Result<DisconnectReason, ConnectionError> {
        if let Some(reason) = self.end() {
            return Ok(reason);
        }
        self.device.disconnect(self.id)?;
        self.wait_end(SETUP)
    }

    fn wait_end(&mut self, timeout: Duration) -> Result<DisconnectReason, ConnectionError> {
        let (events, sleeper) = (&self.ends.events, &self.ends.sleeper);
        let (reason, terminate) = wait_event(events, sleeper, timeout, |event| match event {
            Event::Disconnected { reason, terminate, .. } => Some(Ok((reason, terminate))),
            _ => None,
        })?;
        (self.ended, self.terminate) = (Some(reason), terminate);
        Ok(reason)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.device.disconnect(self.id);
        }
    }
}
