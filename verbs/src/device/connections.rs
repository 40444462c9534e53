//! Requests to the connection manager.

use core::net::SocketAddr;

use heddle_cm::{AppId, CmId, ListenerId};

use super::{Device, ReserveError};
use crate::error::DeviceError;
use crate::event::EventQueue;
use crate::limits::within;
use crate::params::{AcceptParams, ConnectParams, ListenParams};
use crate::qp::{Owner, Qp};

/// An address and port that a device has reserved; given back when it is dropped.
#[derive(Debug)]
pub struct BoundAddr {
    app: AppId,
    addr: SocketAddr,
    number: u64,
    _owner: Owner,
}

impl BoundAddr {
    /// The address, with the port that was asked for or chosen.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Device {
    /// Reserves an address and port for a listener: from here on nobody else gets it. With port 0 the RNIC
    /// chooses one of [`DYNAMIC_PORTS`](super::DYNAMIC_PORTS) that nobody has at any address;
    /// [`BoundAddr::addr`] says which. An unspecified address stands for all addresses of the RNIC, those
    /// included that it gets later; it and a single address may have the same port, and the listener at the
    /// single one then has the connections that come there.
    ///
    /// # Errors
    /// [`DeviceError::Address`]: somebody has it, it is no address of the RNIC, or no port is free;
    /// [`DeviceError::Refused`], [`DeviceError::Gone`].
    pub fn reserve_addr(&self, addr: SocketAddr) -> Result<BoundAddr, DeviceError> {
        let (addr, number, owner) = self.0.backend.clone().reserve_addr(addr)?;
        Ok(BoundAddr { app: self.app(), addr, number, _owner: owner })
    }

    /// As [`listen`](Device::listen), at an address that was reserved, which stays so afterwards.
    ///
    /// # Errors
    /// As [`listen`](Device::listen); [`DeviceError::Address`] for a reservation of another device.
    pub fn listen_at(
        &self,
        at: &BoundAddr,
        params: ListenParams,
        events: &EventQueue,
    ) -> Result<ListenerId, DeviceError> {
        if at.app != self.app() {
            return Err(DeviceError::Address(at.addr, ReserveError::InUse));
        }
        self.0.backend.listen(at.addr, Some(at.number), params, events)
    }

    /// Listens for connections; [`Event::Listening`](heddle_cm::Event::Listening) or
    /// [`Event::ListenFailed`](heddle_cm::Event::ListenFailed) comes through `events`, and then the
    /// requests. Port 0 is refused: [`reserve_addr`](Device::reserve_addr) chooses one.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn listen(
        &self,
        addr: SocketAddr,
        params: ListenParams,
        events: &EventQueue,
    ) -> Result<ListenerId, DeviceError> {
        self.0.backend.listen(addr, None, params, events)
    }

    /// Stops listening; connections go on.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn unlisten(&self, id: ListenerId) -> Result<(), DeviceError> {
        self.0.backend.unlisten(id)
    }

    /// Connects to a peer; the outcome comes through `events`.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::ForeignQp`], [`DeviceError::QpInUse`] and
    /// [`DeviceError::QpDead`] at once; [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn connect(
        &self,
        remote: SocketAddr,
        params: ConnectParams,
        events: &EventQueue,
    ) -> Result<CmId, DeviceError> {
        let (qp, params) = params.split();
        self.check_depths(params.ird, params.ord)?;
        self.claim(&qp)?;
        self.0.backend.connect(remote, &qp, params, events).inspect_err(|_| qp.unclaim())
    }

    /// Accepts a connection request. Where the peer has gone since,
    /// [`Event::ConnectError`](heddle_cm::Event::ConnectError) was told for it and nothing happens.
    ///
    /// # Errors
    /// As [`connect`](Device::connect).
    pub fn accept(&self, id: CmId, params: AcceptParams) -> Result<(), DeviceError> {
        self.answer(id, params, None)
    }

    /// As [`accept`](Device::accept); further events of the connection come through `events` and
    /// not through those of the listener. That the peer has gone since is told there too.
    ///
    /// # Errors
    /// As [`connect`](Device::connect).
    pub fn accept_on(
        &self,
        id: CmId,
        params: AcceptParams,
        events: &EventQueue,
    ) -> Result<(), DeviceError> {
        self.answer(id, params, Some(events))
    }

    fn answer(
        &self,
        id: CmId,
        params: AcceptParams,
        events: Option<&EventQueue>,
    ) -> Result<(), DeviceError> {
        let (qp, params) = params.split();
        self.check_depths(params.ird, params.ord)?;
        self.claim(&qp)?;
        self.0.backend.accept(id, &qp, params, events).inspect_err(|_| qp.unclaim())
    }

    /// Rejects a connection request, with at most 508 octets for the peer's application.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn reject(&self, id: CmId, private_data: Vec<u8>) -> Result<(), DeviceError> {
        self.0.backend.reject(id, private_data, None)
    }

    /// As [`reject`](Device::reject), and names the RDMA Reads that we need to have outstanding:
    /// the peer takes fewer (RFC 6581 section 9.1). In MPA revision 1 it is a plain rejection.
    ///
    /// # Errors
    /// As [`reject`](Device::reject).
    pub fn reject_needing_ord(
        &self,
        id: CmId,
        private_data: Vec<u8>,
        ord: u16,
    ) -> Result<(), DeviceError> {
        self.0.backend.reject(id, private_data, Some(ord))
    }

    /// Ends a connection in order; [`Event::Disconnected`](heddle_cm::Event::Disconnected) follows.
    /// One that is not established yet is given up at once, and
    /// [`Event::ConnectError`](heddle_cm::Event::ConnectError) follows. One that was accepted counts as
    /// established: to the peer it is before we know of it.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn disconnect(&self, id: CmId) -> Result<(), DeviceError> {
        self.0.backend.disconnect(id)
    }

    /// Ends everything the application has, whoever still holds handles: listeners end, connections
    /// are reset. For an application that is gone and cannot do so itself. Its memory comes back
    /// with the handles of its regions.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn close(&self) -> Result<(), DeviceError> {
        self.0.backend.close()
    }

    /// What is kept of a peer's Reads, and of our own, is bounded by the device whatever is agreed.
    fn check_depths(&self, ird: u16, ord: u16) -> Result<(), DeviceError> {
        let most = &self.0.limits;
        within("an IRD", ird.into(), 0, most.max_ird.into())?;
        within("an ORD", ord.into(), 0, most.max_ord.into())
    }

    /// The queue pair for a connection that is to be, which nothing else has from here on.
    fn claim(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.check_qp(qp)?;
        if qp.is_dead() {
            return Err(DeviceError::QpDead);
        }
        if qp.claim() { Ok(()) } else { Err(DeviceError::QpInUse) }
    }
}
