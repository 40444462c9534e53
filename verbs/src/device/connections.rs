//! Requests to the connection manager.

use core::net::SocketAddr;

use heddle_cm::{CmId, ListenerId};

use super::Device;
use crate::error::DeviceError;
use crate::event::EventQueue;
use crate::limits::within;
use crate::params::{AcceptParams, ConnectParams, ListenParams};
use crate::qp::Qp;

impl Device {
    /// Listens for connections; [`Event::Listening`](heddle_cm::Event::Listening) or
    /// [`Event::ListenFailed`](heddle_cm::Event::ListenFailed) comes through `events`, and then the
    /// requests.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`].
    pub fn listen(
        &self,
        addr: SocketAddr,
        params: ListenParams,
        events: &EventQueue,
    ) -> Result<ListenerId, DeviceError> {
        self.0.backend.listen(addr, params, events)
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
