//! Requests to the connection manager.

use core::net::SocketAddr;

use heddle_types::{AppId, CmId, ListenerId};

use super::{Device, ReserveError};
use crate::error::DeviceError;
use crate::event::EventQueue;
use crate::limits::within;
use crate::params::{AcceptParams, ConnectParams, ListenParams};
use crate::qp::{Owner, Qp};

/// An address and port that a device has reserved; dropping this frees them.
#[derive(Debug)]
pub struct BoundAddr {
    app: AppId,
    addr: SocketAddr,
    v6_only: bool,
    number: u64,
    _owner: Owner,
}

impl BoundAddr {
    /// Returns the address, with the port that the caller asked for or the RNIC chose.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Device {
    /// Reserves an address and port for a listener: from here on no other program gets them. With
    /// port 0 the RNIC chooses one of [`DYNAMIC_PORTS`](super::DYNAMIC_PORTS) that no program has
    /// at any address; [`BoundAddr::addr`] returns the port. `0.0.0.0` stands for all IPv4 addresses
    /// of the RNIC and `::` for all its addresses, including later ones. Such an address and a
    /// single address may have the same port; the listener at the single address then gets the
    /// connections to that address.
    ///
    /// # Errors
    /// [`DeviceError::Address`]: another program has the address, it is no address of the RNIC, or
    /// no port is free; [`DeviceError::Refused`], [`DeviceError::Gone`].
    pub fn reserve_addr(&self, addr: SocketAddr) -> Result<BoundAddr, DeviceError> {
        self.reserve_for(addr, false)
    }

    /// As [`reserve_addr`](Device::reserve_addr), but `::` leaves IPv4 alone, and so does the
    /// listener at the reserved address.
    ///
    /// # Errors
    /// As [`reserve_addr`](Device::reserve_addr).
    pub fn reserve_addr_v6_only(&self, addr: SocketAddr) -> Result<BoundAddr, DeviceError> {
        self.reserve_for(addr, true)
    }

    fn reserve_for(&self, addr: SocketAddr, v6_only: bool) -> Result<BoundAddr, DeviceError> {
        let (addr, number, owner) = self.0.backend.clone().reserve_addr(addr, v6_only)?;
        Ok(BoundAddr { app: self.app(), addr, v6_only, number, _owner: owner })
    }

    /// As [`listen`](Device::listen), at a reserved address, which stays reserved afterwards.
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
        let params = ListenParams { v6_only: at.v6_only, ..params };
        self.0.backend.listen(at.addr, Some(at.number), params, events)
    }

    /// Listens for connections; [`Event::Listening`](heddle_types::Event::Listening) or
    /// [`Event::ListenFailed`](heddle_types::Event::ListenFailed) comes through `events`, and then the
    /// requests. `0.0.0.0` takes connections over IPv4, and `::` over both families unless
    /// [`ListenParams::v6_only`]. Port 0 is refused: use [`reserve_addr`](Device::reserve_addr) to choose a port.
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

    /// Connects to a peer; the outcome comes through `events`. The scope of a link-local `remote`
    /// names the port by its number, from 1 on; without a scope the first port with IPv6 serves.
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

    /// Accepts a connection request. If the peer has given up since,
    /// [`Event::ConnectError`](heddle_types::Event::ConnectError) has reported that, and this call
    /// does nothing.
    ///
    /// # Errors
    /// As [`connect`](Device::connect).
    pub fn accept(&self, id: CmId, params: AcceptParams) -> Result<(), DeviceError> {
        self.answer(id, params, None)
    }

    /// As [`accept`](Device::accept); further events of the connection come through `events` and
    /// not through those of the listener, including the event that the peer has given up since.
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

    /// Rejects a connection request, with at most 508 bytes for the peer's application.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn reject(&self, id: CmId, private_data: Vec<u8>) -> Result<(), DeviceError> {
        self.0.backend.reject(id, private_data, None)
    }

    /// As [`reject`](Device::reject), and names the RDMA Reads that we need to have outstanding,
    /// because the peer takes fewer (RFC 6581 section 9.1). In MPA revision 1 this is a plain
    /// rejection.
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

    /// Ends a connection in order; [`Event::Disconnected`](heddle_types::Event::Disconnected) follows.
    /// The RNIC gives up a connection that is not established yet at once, and
    /// [`Event::ConnectError`](heddle_types::Event::ConnectError) follows. An accepted connection
    /// counts as established: the peer may consider it established before we know.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn disconnect(&self, id: CmId) -> Result<(), DeviceError> {
        self.0.backend.disconnect(id)
    }

    /// Ends everything that the application has, even if handles remain: listeners end, connections
    /// are reset. This is for an application that has ended and cannot do so itself. Its memory
    /// becomes free when the handles of its regions are dropped.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn close(&self) -> Result<(), DeviceError> {
        self.0.backend.close()
    }

    /// Checks IRD and ORD: the device bounds how many Reads we keep for a peer and for ourselves,
    /// no matter what both ends agree on.
    fn check_depths(&self, ird: u16, ord: u16) -> Result<(), DeviceError> {
        let most = &self.0.limits;
        within("an IRD", ird.into(), 0, most.max_ird.into())?;
        within("an ORD", ord.into(), 0, most.max_ord.into())
    }

    /// Claims the queue pair for a new connection; nothing else can use it from here on.
    fn claim(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.check_qp(qp)?;
        if qp.is_dead() {
            return Err(DeviceError::QpDead);
        }
        if qp.claim() { Ok(()) } else { Err(DeviceError::QpInUse) }
    }
}
