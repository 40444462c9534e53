//! The device of an application in the RNIC's process, or of one that is served there.

use core::net::SocketAddr;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use heddle_cm::{AppId, CmId, ListenerId, Request};
use heddle_iwarp::{Pd, Qpn};

use super::names::{Holder, ReserveError};
use super::{ControlRequest, Hub, lock};
use crate::account::{Account, Kind, Over, Reserved};
use crate::cq::Cq;
use crate::error::DeviceError;
use crate::event::EventQueue;
use crate::limits::DeviceLimits;
use crate::limits::count::{Count, Place};
use crate::memory::{Pool, Quota};
use crate::qp::{Owner, Qp, QpInit};
use crate::ring::{Area, BELLS, Bells};
use crate::srq::Srq;
use crate::waker::Waker;
use crate::window::AnyQpWindows;

mod backend;
mod registration;

pub(crate) use registration::Aside;

/// What one application has of an RNIC.
#[derive(Debug)]
pub(crate) struct Local {
    id: AppId,
    hub: Arc<Hub>,
    area: Arc<Area>,
    bells: Bells,
    pool: Option<Arc<Pool>>,
    /// Doorbells in use, a bit each.
    slots: Mutex<Vec<u64>>,
    /// With the STags each has.
    pds: Mutex<HashMap<Pd, Arc<Quota>>>,
    /// Those included that are given up, and have something in them yet.
    domains: Count,
    quota: Arc<Quota>,
    limits: DeviceLimits,
    /// That of all applications of the same principal, where they have one.
    account: Option<Arc<Account>>,
    qps: Count,
    cqs: Count,
    srqs: Count,
    any_qp_windows: Arc<AnyQpWindows>,
    /// Numbers of completion queues and shared receive queues.
    next_cq: AtomicU32,
    /// Registrations wait a little for memory that is on its way back.
    patient: bool,
    /// The control plane knows that it is gone.
    closed: AtomicBool,
}

/// A protection domain. What is in it holds it, beside the application: its number has an owner until
/// all of that is gone.
#[derive(Debug)]
pub(crate) struct Domain {
    pd: Pd,
    /// Weak: memory on its way back is the hub's, and counts in its domain.
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
        // Without a control plane there is nothing left to end.
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
            next_cq: AtomicU32::new(0),
            patient,
            closed: AtomicBool::new(false),
        }
    }

    /// Tells the control plane, once, that the application is gone.
    fn end(&self) -> Result<(), DeviceError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.hub.board.unsubscribe(self.id);
        self.hub.board.names.give_up_all_of(self.id);
        self.request(Request::AppGone, None, None)
            .inspect_err(|_| self.closed.store(false, Ordering::Release))
    }

    /// Reserves an address, of which `may` says whether it is allowed.
    pub(crate) fn reserve_allowed(
        self: Arc<Self>,
        addr: SocketAddr,
        may: impl Fn(SocketAddr) -> bool,
    ) -> Result<(SocketAddr, u64, Owner), DeviceError> {
        let board = self.hub.board.clone();
        if !addr.ip().is_unspecified() && !board.may_have(addr.ip()) {
            return Err(DeviceError::Address(addr, ReserveError::NotOurs));
        }
        let reserved = board.names.reserve(self.id, addr, &self.hub.random, may);
        let (chosen, number) = reserved.map_err(|e| DeviceError::Address(addr, e))?;
        let owner = Owner::new(move || board.names.give_up(Holder::Reserved(number)));
        Ok((chosen, number, owner))
    }

    /// One more of each kind, of the account.
    fn pay(&self, kinds: &[Kind]) -> Result<Vec<Reserved>, DeviceError> {
        let Some(account) = &self.account else { return Ok(Vec::new()) };
        let taken: Result<_, _> = kinds.iter().map(|kind| account.take(*kind, 1)).collect();
        taken.map_err(|over: Over| DeviceError::TooMany {
            what: over.kind.name(),
            most: u32::try_from(over.most).unwrap_or(u32::MAX),
        })
    }

    /// What holds a protection domain.
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

    /// The last handle of a queue pair is gone.
    fn forget(&self, qpn: Qpn, bell: u32, place: Place) {
        // Of an application that is gone nothing is known any more.
        if !self.closed.load(Ordering::Acquire) {
            let _ = self.request(Request::ForgetQp { qpn }, None, None);
            self.hub.board.forget_qp(self.id, qpn);
        }
        if let Some(word) = lock(&self.slots).get_mut(bell as usize / 64) {
            *word &= !(1 << (bell % 64));
        }
        self.any_qp_windows.revoke_of(&self.hub.registry, qpn);
        lock(&self.hub.qpns).taken.remove(&qpn.0);
        drop(place);
    }
}

/// A free doorbell, now taken.
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
