//! Connections for programs that have a thread to wait with: listen, connect, accept, and wait for
//! completions, each in one call.
//!
//! Everything here is made of what [`Device`] gives, and every call that waits has a twin there that
//! does not. They need an RNIC that runs on threads of its own: nobody polls an inline one while its
//! thread waits.

use core::net::SocketAddr;
use core::time::Duration;
use std::net::ToSocketAddrs;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use heddle_cm::{Agreed, CmId, ConnectFailure, DisconnectReason, Event, ListenFailure, PeerDepths};
use heddle_iwarp::rdmap::Terminate;
use heddle_iwarp::{Access, Cqe, Pd, PostError, RecvWr, SendWr};

use crate::cq::{Cq, WaitError};
use crate::device::{BoundAddr, Device, OwnedPd};
use crate::error::DeviceError;
use crate::event::EventQueue;
use crate::mr::Mr;
use crate::params::{ConnectParams, ListenParams};
use crate::qp::{Qp, QpInit};
use crate::waker::Sleeper;

mod listener;

pub use listener::{Incoming, Listener};

/// Why there is no connection, or no listener.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Nobody can listen there, or nobody does any more.
    #[error("cannot listen: {0}")]
    Listen(ListenFailure),
    /// The connection did not come about.
    #[error("cannot connect: {0}")]
    Connect(ConnectFailure),
    /// The peer's application rejected it.
    #[error("rejected by the peer")]
    Rejected {
        /// What it says.
        private_data: Vec<u8>,
        /// What it says of its RDMA Reads; its ORD may be what it needs.
        peer: Option<PeerDepths>,
    },
    /// The connection ended while its first event was awaited.
    #[error("{0}")]
    Disconnected(DisconnectReason),
    /// Nothing came in time.
    #[error("nothing came in time")]
    TimedOut,
    /// No descriptor to sleep on.
    #[error("no descriptor: {0}")]
    Sleeper(#[from] std::io::Error),
    /// The text names no address.
    #[error("no such address")]
    Address,
    /// The RNIC is polled by the thread that would wait here.
    #[error("an inline RNIC cannot be waited for: poll it, and use the device's own calls")]
    Inline,
}

/// How long a listener, and an accepted connection, may take to come about.
const SETUP: Duration = Duration::from_secs(30);

fn first(addr: impl ToSocketAddrs) -> Result<SocketAddr, ConnectionError> {
    let mut addrs = addr.to_socket_addrs().map_err(|_| ConnectionError::Address)?;
    addrs.next().ok_or(ConnectionError::Address)
}

/// Waits for an event that `wanted` makes something of.
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
    /// ([`Listener::addr`]); an unspecified address is all of its addresses, later ones included.
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
        let bound = if addr.port() == 0 { Some(self.reserve_addr(addr)?) } else { None };
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
        })?;
        Ok(listener)
    }

    /// Begins to connect to `addr`, with a protection domain, a completion queue and a queue pair of
    /// the connection's own. The protection domain is given back with the connection: who goes on with
    /// the queue pair, or with others beside it, takes [`dial_with`](Device::dial_with).
    ///
    /// # Errors
    /// [`ConnectionError`]; what fails later is told by [`Connecting::wait`].
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

/// What a connection is made with: a queue pair, where its completions go, and a way to wait for
/// them.
#[derive(Debug)]
pub struct Ends {
    /// The queue pair.
    pub qp: Qp,
    /// Where its completions go.
    pub cq: Cq,
    events: EventQueue,
    completions: Sleeper,
    sleeper: Sleeper,
    /// Theirs alone, and given back with them.
    _pd: Option<OwnedPd>,
}

impl Ends {
    /// As [`new`](Ends::new), in a protection domain of their own.
    pub(crate) fn of_own(device: &Device) -> Result<Ends, ConnectionError> {
        let pd = device.own_pd()?;
        let ends = Ends::new(device, pd.id())?;
        Ok(Ends { _pd: Some(pd), ..ends })
    }

    /// A queue pair of 128 requests each way, with a completion queue that holds them all.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn new(device: &Device, pd: Pd) -> Result<Ends, ConnectionError> {
        Ends::with(device, pd, 256, |init| init)
    }

    /// A queue pair as `configure` wants it, with a completion queue of `depth`, which has to hold all
    /// its requests.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn with(
        device: &Device,
        pd: Pd,
        depth: u32,
        configure: impl FnOnce(QpInit) -> QpInit,
    ) -> Result<Ends, ConnectionError> {
        // The descriptor of a device of this process can be handed to another one; a server cannot wake
        // such a sleeper.
        let local = device.is_local();
        let completions = if local { Sleeper::pair()? } else { Sleeper::with_fd()? };
        let sleeper = Sleeper::with_fd()?;
        let cq = device.create_cq(depth, Some(completions.waker()))?;
        let qp = device.create_qp(pd, configure(QpInit::new(cq.clone())))?;
        let events = EventQueue::new(Some(sleeper.waker()));
        Ok(Ends { qp, cq, events, completions, sleeper, _pd: None })
    }
}

/// A connection that is on its way.
#[derive(Debug)]
pub struct Connecting {
    device: Device,
    id: CmId,
    ends: Ends,
    timeout: Duration,
}

impl Connecting {
    /// Waits until it is established, or is known not to be.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn wait(self) -> Result<Connection, ConnectionError> {
        let Connecting { device, id, ends, timeout } = self;
        // The manager has the time-out; a little more lets its answer come.
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
            })?;
        let (ended, terminate) = (None, None);
        Ok(Connection { device, id, ends, agreed, remote, private_data, ended, terminate })
    }
}

/// An established connection, with its queue pair and completion queue; disconnected when dropped.
#[derive(Debug)]
pub struct Connection {
    device: Device,
    id: CmId,
    ends: Ends,
    agreed: Agreed,
    remote: SocketAddr,
    private_data: Vec<u8>,
    ended: Option<DisconnectReason>,
    terminate: Option<Box<Terminate>>,
}

impl Connection {
    /// Its queue pair.
    pub fn qp(&self) -> &Qp {
        &self.ends.qp
    }

    /// Where its completions go.
    pub fn cq(&self) -> &Cq {
        &self.ends.cq
    }

    /// What both ends agreed on.
    pub fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// The peer.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// What the peer's application said when it accepted; empty on the side that did.
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

    /// Posts to the send queue.
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

    /// Readable when a completion has come since the queue was armed ([`Cq::arm`]). After it was:
    /// [`clear`](Connection::clear), poll, and arm again.
    pub fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ends.completions.fd()
    }

    /// Forgets that completions have come; see [`completion_fd`](Connection::completion_fd).
    pub fn clear(&self) {
        self.ends.completions.clear();
    }

    /// Readable when the connection has ended.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ends.sleeper.fd()
    }

    /// Why it ended, if it has.
    pub fn end(&mut self) -> Option<DisconnectReason> {
        if self.ended.is_none() {
            let _ = self.wait_end(Duration::ZERO);
        }
        self.ended
    }

    /// The peer's Terminate, once [`end`](Connection::end) has said that one ended the connection: with
    /// the headers it repeats (RFC 5040 section 4.8), which tell what the peer refused.
    pub fn terminate(&self) -> Option<&Terminate> {
        self.terminate.as_deref()
    }

    /// Ends it in order, what is posted first, and waits until it is over.
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
