//! Handles of an application for objects of the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use heddle_types::{Access, BindError, Pd, Stag};

use super::link::Link;
use super::{Remote, SOME};
use crate::device::Reserved;
use crate::error::DeviceError;
use crate::mr::{Mr, MrOwner};
use crate::remote::protocol::{
    self, BindWindow, Deregistered, Id, NewMr, Request, WindowBound, bits,
};
use crate::window::HeldStag;

/// Sends a request without an answer, if the server still exists.
fn tell(link: &Weak<Link>, request: &Request) {
    if let Some(link) = link.upgrade() {
        link.tell(request);
    }
}

/// Memory of the application's own that the server has mapped.
#[derive(Debug)]
pub(super) struct SharedRegion {
    link: Weak<Link>,
    id: u64,
}

impl SharedRegion {
    pub(super) fn new(link: &Arc<Link>, id: u64) -> SharedRegion {
        SharedRegion { link: Arc::downgrade(link), id }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for SharedRegion {
    fn drop(&mut self) {
        tell(&self.link, &Request::DestroyRegion(Id { id: self.id }));
    }
}

/// A registration.
#[derive(Debug)]
pub(super) struct RemoteMr {
    link: Weak<Link>,
    id: u64,
    /// The registration has ended.
    over: AtomicBool,
    /// The memory of the registration, if the application brought it; freed after the registration.
    _own: Option<Arc<SharedRegion>>,
}

impl RemoteMr {
    pub(super) fn new(link: &Arc<Link>, id: u64, own: Option<Arc<SharedRegion>>) -> RemoteMr {
        RemoteMr { link: Arc::downgrade(link), id, over: AtomicBool::new(false), _own: own }
    }
}

impl MrOwner for RemoteMr {
    fn deregister(&self) -> Result<(), u32> {
        let Some(link) = self.link.upgrade() else { return Ok(()) };
        match link.call(&Request::DeregisterMr(Id { id: self.id })) {
            Ok(Deregistered { bound: 0 }) => {
                self.over.store(true, Ordering::Relaxed);
                Ok(())
            }
            Ok(Deregistered { bound }) => Err(bound),
            // Without a server no memory is registered.
            Err(_) => Ok(()),
        }
    }
}

impl Drop for RemoteMr {
    fn drop(&mut self) {
        if !*self.over.get_mut() {
            tell(&self.link, &Request::DestroyMr(Id { id: self.id }));
        }
    }
}

/// A window, or an STag for fast registrations.
#[derive(Debug)]
pub(super) struct RemoteStag {
    link: Weak<Link>,
    id: u64,
    stag: Stag,
}

impl RemoteStag {
    pub(super) fn new(link: &Arc<Link>, id: u64, stag: Stag) -> RemoteStag {
        RemoteStag { link: Arc::downgrade(link), id, stag }
    }
}

impl HeldStag for RemoteStag {
    fn stag(&self) -> Stag {
        self.stag
    }

    fn bind(
        &mut self,
        (mr, at, len): (Stag, u64, u32),
        as_to: u64,
        access: Access,
    ) -> Result<Stag, BindError> {
        let request = Request::BindWindow(BindWindow {
            id: self.id,
            mr: mr.0,
            at,
            len,
            to: as_to,
            access: bits(access),
        });
        // Without a server there is no such STag.
        let link = self.link.upgrade().ok_or(BindError::Stag)?;
        let bound: WindowBound = link.call(&request).map_err(|_| BindError::Stag)?;
        self.stag = Stag(bound.stag);
        bound.refused.map_or(Ok(self.stag), Err)
    }

    fn revoke(&mut self) {
        if let Some(link) = self.link.upgrade() {
            // Ignore the error: the binding is over when this returns, with or without a server.
            let _ = link.call::<()>(&Request::UnbindWindow(Id { id: self.id }));
        }
    }
}

impl Drop for RemoteStag {
    fn drop(&mut self) {
        tell(&self.link, &Request::DestroyStag(Id { id: self.id }));
    }
}

/// Memory that the server has set aside.
#[derive(Debug)]
pub(super) struct RemoteStretch {
    remote: Arc<Remote>,
    id: u64,
    off: usize,
    len: usize,
    /// Bytes that are zero.
    cleared: usize,
    registered: bool,
}

impl RemoteStretch {
    /// Returns a handle of a stretch of the device's memory.
    pub(super) fn new(remote: Arc<Remote>, id: u64, (off, len): (usize, usize)) -> RemoteStretch {
        RemoteStretch { remote, id, off, len, cleared: 0, registered: false }
    }
}

impl Reserved for RemoteStretch {
    fn clear(&mut self, most: usize) -> bool {
        let n = most.min(self.len - self.cleared);
        if let Some(memory) = &self.remote.memory {
            let zeroed = memory.zero(self.off + self.cleared, n);
            debug_assert!(zeroed.is_ok(), "it was looked at");
        }
        self.cleared += n;
        self.cleared == self.len
    }

    fn register(mut self: Box<Self>, pd: Pd, access: Access) -> Result<Mr, DeviceError> {
        while !self.clear(SOME) {}
        let request = Request::RegisterReserved(protocol::RegisterReserved {
            id: self.id,
            pd: pd.0,
            access: bits(access),
        });
        // Whether the registration succeeds or fails, the server has the memory no longer set
        // aside.
        self.registered = true;
        let new: NewMr = self.remote.link.call(&request)?;
        let memory = self.remote.memory(self.len)?;
        self.remote.mr(memory, self.len, &new, None)
    }
}

impl Drop for RemoteStretch {
    fn drop(&mut self) {
        if !self.registered {
            self.remote.link.tell(&Request::DestroyReserved(Id { id: self.id }));
        }
    }
}
