//! The operations that a device needs from the RNIC's side.
//!
//! [`Device`](super::Device) has checked everything that it can know itself: numbers against the
//! limits, and that each object named belongs to the application.

use core::fmt::Debug;
use core::net::SocketAddr;
use std::sync::Arc;

use heddle_shm::{Region, Waker};
use heddle_types::{AcceptTerms, Access, CmId, ConnectTerms, ListenerId, Pd};

use super::{DeviceEvents, MrInit};
use crate::cq::Cq;
use crate::error::DeviceError;
use crate::event::EventQueue;
use crate::mr::Mr;
use crate::mr::MrUsage;
use crate::params::ListenParams;
use crate::port::PortInfo;
use crate::qp::{Owner, Qp, QpInit};
use crate::srq::Srq;
use crate::window::{HeldStag, WindowFor};

/// A function to call when an RNIC has ended.
pub type OnEnd = Box<dyn FnOnce(&DeviceError) + Send>;

/// The RNIC behind a device. Handles that a backend makes notify the backend when they are dropped.
pub trait Backend: Send + Sync + Debug {
    /// Returns true if the RNIC belongs to this process.
    fn is_local(&self) -> bool;

    /// Returns true if the thread that polls the RNIC is the thread that would wait for it.
    fn is_inline(&self) -> bool;

    /// Returns the end of the RNIC, if the RNIC belongs to another process and has ended.
    fn ended(&self) -> Option<DeviceError> {
        None
    }

    /// Calls `f` when the RNIC of another process has ended; at once if it has already.
    fn when_ended(&self, _f: OnEnd) {}

    /// Returns the RNIC's ports as they are now.
    fn ports(&self) -> Result<Vec<PortInfo>, DeviceError>;

    /// Makes `events` collect events. Repeated calls are allowed.
    fn watch(&self, events: &DeviceEvents) -> Result<(), DeviceError>;

    /// Returns true if the RNIC takes regions that others may shrink.
    fn takes_files(&self) -> bool;

    /// Returns true if the application has this protection domain.
    fn has_pd(&self, pd: Pd) -> bool;

    /// Makes a protection domain.
    fn create_pd(&self) -> Result<Pd, DeviceError>;

    /// Frees a protection domain.
    fn dealloc_pd(&self, pd: Pd) -> Result<(), DeviceError>;

    /// Makes a completion queue.
    fn create_cq(&self, depth: u32, waker: Option<Waker>) -> Result<Cq, DeviceError>;

    /// Gives a completion queue other room.
    fn resize_cq(&self, cq: &Cq, depth: u32) -> Result<(), DeviceError>;

    /// Makes a shared receive queue for `size`: receives, and pieces of each.
    fn create_srq(
        &self,
        pd: Pd,
        size: (u32, u16),
        waker: Option<Waker>,
    ) -> Result<Srq, DeviceError>;

    /// Makes a queue pair.
    fn create_qp(self: Arc<Self>, pd: Pd, init: QpInit) -> Result<Qp, DeviceError>;

    /// Makes a queue pair as good as new: nothing refers to its last connection afterwards.
    fn forget_qp(&self, qp: &Qp) -> Result<(), DeviceError>;

    /// Ends a queue pair that is marked as failing.
    fn fail_qp(&self, qp: &Qp) -> Result<(), DeviceError>;

    /// Registers `len` bytes of the device's memory.
    fn alloc_mr(&self, pd: Pd, len: usize, init: &MrInit<'_>) -> Result<Mr, DeviceError>;

    /// Registers a region. Calls `meanwhile` once after asking the RNIC, if the call gets that far.
    fn register_mr(
        &self,
        pd: Pd,
        region: &Arc<Region>,
        range: (usize, usize),
        init: &MrInit<'_>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Mr, DeviceError>;

    /// Sets `len` bytes of the device's memory aside.
    fn reserve(self: Arc<Self>, len: usize) -> Result<Box<dyn Reserved>, DeviceError>;

    /// Returns an STag for fast registrations of up to `len` bytes.
    fn alloc_fast(
        &self,
        pd: Pd,
        qp: Option<&Qp>,
        len: u64,
    ) -> Result<Box<dyn HeldStag>, DeviceError>;

    /// Returns an STag for a memory window.
    fn alloc_window(&self, pd: Pd, of: WindowFor<'_>) -> Result<Box<dyn HeldStag>, DeviceError>;

    /// Returns the STags of the application, or of one of its protection domains.
    fn mr_usage(&self, pd: Option<Pd>) -> Option<MrUsage>;

    /// Reserves an address, without IPv4 if `v6_only`; dropping the owner frees it.
    fn reserve_addr(
        self: Arc<Self>,
        addr: SocketAddr,
        v6_only: bool,
    ) -> Result<(SocketAddr, u64, Owner), DeviceError>;

    /// Listens at `addr`; `reserved` is the number of the reservation of `addr`.
    fn listen(
        &self,
        addr: SocketAddr,
        reserved: Option<u64>,
        params: ListenParams,
        events: &EventQueue,
    ) -> Result<ListenerId, DeviceError>;

    /// Stops listening.
    fn unlisten(&self, id: ListenerId) -> Result<(), DeviceError>;

    /// Connects a queue pair that was claimed for this connection.
    fn connect(
        &self,
        remote: SocketAddr,
        qp: &Qp,
        terms: ConnectTerms,
        events: &EventQueue,
    ) -> Result<CmId, DeviceError>;

    /// Accepts a connection with a claimed queue pair; further events go to the listener's queue
    /// unless the caller names another queue.
    fn accept(
        &self,
        id: CmId,
        qp: &Qp,
        terms: AcceptTerms,
        events: Option<&EventQueue>,
    ) -> Result<(), DeviceError>;

    /// Refuses a peer.
    fn reject(
        &self,
        id: CmId,
        private_data: Vec<u8>,
        needs_ord: Option<u16>,
    ) -> Result<(), DeviceError>;

    /// Ends a connection.
    fn disconnect(&self, id: CmId) -> Result<(), DeviceError>;

    /// Ends everything that the application has.
    fn close(&self) -> Result<(), DeviceError>;
}

/// Memory that was set aside; dropping this frees the memory.
pub trait Reserved: Send + Debug {
    /// Clears up to `most` more bytes. Returns true when all are clear.
    fn clear(&mut self, most: usize) -> bool;

    /// Registers the memory, after clearing any part that is not clear yet.
    fn register(self: Box<Self>, pd: Pd, access: Access) -> Result<Mr, DeviceError>;
}
