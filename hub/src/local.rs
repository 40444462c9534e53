//! The device of an application in the RNIC's process, or of an application that this process
//! serves.

use core::net::SocketAddr;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use heddle_rings::{Area, BELLS, Bells};
use heddle_shm::Waker;
use heddle_shm::account::{Account, Kind, Over, Reserved};
use heddle_types::{AppId, CmId, ListenerId, Pd, Qpn, Request};
use heddle_verbs::provider::{Count, Owner, Place};
use heddle_verbs::{Cq, DeviceError, DeviceLimits, EventQueue, Qp, QpInit, ReserveError, Srq};

use crate::memory::{Pool, Quota};
use crate::names::Holder;
use crate::window::{AnyQpWindows, Tied};
use crate::{ControlRequest, Hub, lock};

mod backend;
mod registration;

pub(crate) use registration::Aside;

/// Objects and limits of one application of an RNIC.
#[derive(Debug)]
pub(crate) struct Local {
    id: AppId,
    hub: Arc<Hub>,
    area: Arc<Area>,
    bells: Bells,
    pool: Option<Arc<Pool>>,
    /// Doorbells in use, a bit each.
    slots: Mutex<Vec<u64>>,
    /// Protection domains, with the STags of each.
    pds: Mutex<HashMap<Pd, Arc<Quota>>>,
    /// Counts protection domains, including freed domains that still contain objects.
    domains: Count,
    quota: Arc<Quota>,
    limits: DeviceLimits,
    /// The account of all applications of the same principal, where they have one.
    account: Option<Arc<Account>>,
    qps: Count,
    cqs: Count,
    srqs: Count,
    any_qp_windows: Arc<AnyQpWindows>,
    /// STags that end with a queue pair, of every queue pair.
    tied: Mutex<HashMap<Qpn, Arc<Tied>>>,
    /// The next number of a completion queue or shared receive queue.
    next_cq: AtomicU32,
    /// Registrations wait a little for memory that is about to become free.
    patient: bool,
    /// The control plane knows that the application has ended.
    closed: AtomicBool,
}

/// A protection domain. The application holds it, and so do the objects in it: its number has an
/// owner until none of them exists.
#[derive(Debug)]
pub(crate) struct Domain {
    pd: Pd,
    /// Weak, because the hub owns draining memory, and such memory counts in its domain.
    hub: Weak<Hub>,
    _place: Place,
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            lock(&hub.owners).remove(&self.pd);
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Ignore the error: without a control plane there is nothing left to end.
        let _ = self.end();
    }
}

impl Local {
    pub(super) fn new(
        (id, hub): (AppId, Arc<Hub>),
        (area, bells, pool): (Arc<Area>, Bells, Option<Arc<Pool>>),
        limits: DeviceLimits,
        account: Option<Arc<Account>>,
        patient: bool,
    ) -> Local {
        Local {
            id,
            hub,
            area,
            bells,
            pool,
            slots: Mutex::default(),
            pds: Mutex::default(),
            domains: Count::default(),
            quota: Quota::within(limits.mrs(), account.clone()),
            limits,
            account,
            qps: Count::default(),
            cqs: Count::default(),
            srqs: Count::default(),
            any_qp_windows: Arc::default(),
            tied: Mutex::default(),
            next_cq: AtomicU32::new(0),
            patient,
            closed: AtomicBool::new(false),
        }
    }

    /// Reports the end of the application to the control plane, once.
    fn end(&self) -> Result<(), DeviceError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.hub.board.unsubscribe(self.id);
        self.hub.board.names.give_up_all_of(self.id);
        self.request(Request::AppGone, None, None)
            .inspect_err(|_| self.closed.store(false, Ordering::Release))
    }

    /// Reserves an address for which `may` returns true, without IPv4 if `v6_only`.
    pub(crate) fn reserve_allowed(
        self: Arc<Self>,
        (addr, v6_only): (SocketAddr, bool),
        may: impl Fn(SocketAddr) -> bool,
    ) -> Result<(SocketAddr, u64, Owner), DeviceError> {
        let board = self.hub.board.clone();
        if !addr.ip().is_unspecified() && !board.may_have(addr.ip()) {
            return Err(DeviceError::Address(addr, ReserveError::NotOurs));
        }
        let reserved = board.names.reserve(self.id, (addr, v6_only), &self.hub.random, may);
        let (chosen, number) = reserved.map_err(|e| DeviceError::Address(addr, e))?;
        let owner = Owner::new(move || board.names.give_up(Holder::Reserved(number)));
        Ok((chosen, number, owner))
    }

    /// Takes one of each kind from the account.
    fn pay(&self, kinds: &[Kind]) -> Result<Vec<Reserved>, DeviceError> {
        let Some(account) = &self.account else { return Ok(Vec::new()) };
        let taken: Result<_, _> = kinds.iter().map(|kind| account.take(*kind, 1)).collect();
        taken.map_err(|over: Over| DeviceError::TooMany {
            what: over.kind.name(),
            most: u32::try_from(over.most).unwrap_or(u32::MAX),
        })
    }

    /// Returns the quota that keeps a protection domain alive.
    fn domain(&self, pd: Pd) -> Result<Arc<Quota>, DeviceError> {
        lock(&self.pds).get(&pd).cloned().ok_or(DeviceError::ForeignPd(pd))
    }

    fn next_id(&self) -> u64 {
        self.hub.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn request(
        &self,
        request: Request,
        qp: Option<Qp>,
        events: Option<EventQueue>,
    ) -> Result<(), DeviceError> {
        self.hub.control.request(ControlRequest::Cm { app: self.id, request, qp, events })
    }

    /// Frees a queue pair whose last handle was dropped.
    fn forget(&self, qpn: Qpn, bell: u32, place: Place) {
        // The control plane and the board know nothing any more of an application that has ended.
        if !self.closed.load(Ordering::Acquire) {
            let _ = self.request(Request::ForgetQp { qpn }, None, None);
            self.hub.board.forget_qp(self.id, qpn);
        }
        if let Some(word) = lock(&self.slots).get_mut(bell as usize / 64) {
            *word &= !(1 << (bell % 64));
        }
        self.any_qp_windows.revoke_of(&self.hub.registry, qpn);
        // Before the number is free: another queue pair that gets it has a list of its own.
        lock(&self.tied).remove(&qpn);
        lock(&self.hub.qpns).taken.remove(&qpn.0);
        drop(place);
    }
}

/// Takes a free doorbell.
fn take_slot(slots: &mut Vec<u64>) -> Option<u32> {
    let at = slots.iter().position(|w| *w != u64::MAX).unwrap_or(slots.len());
    if at >= BELLS / 64 {
        return None;
    }
    if at == slots.len() {
        slots.push(0);
    }
    let bit = slots[at].trailing_ones();
    slots[at] |= 1 << bit;
    Some(u32::try_from(at).ok()? * 64 + bit)
}
