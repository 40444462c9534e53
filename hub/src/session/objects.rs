//! Queues, regions and STags of one session.

use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::Weak;

use heddle_shm::Region;
use heddle_shm::account::{Account, Kind, Reserved};
use heddle_shm::region::Hold;
use heddle_shm::waker::WeakWaker;
use heddle_types::{Access, Pd, Qpn, Stag};
use heddle_verbs::provider::{Backend, HeldStag, WindowFor};
use heddle_verbs::remote::protocol;
use heddle_verbs::remote::protocol::{
    Block, Deregistered, NewMr, NewPd, NewQp, NewStag, Resized, SetAside, Usage, WindowBound,
};
use heddle_verbs::{MrInit, QpInit};

use super::{
    Arc, Cq, DeviceError, HashMap, Mr, Open, Outcome, Qp, Refused, Request, Srq, Waker, done,
    invalid, not_found, over, quota, with_fds,
};
use crate::local::Aside;

/// Most stretches that may be set aside at a time.
const MAX_RESERVED: usize = 1024;

/// All objects of a session, by the names that its client has for them.
#[derive(Debug, Default)]
pub(super) struct Objects {
    cqs: HashMap<usize, Cq>,
    srqs: HashMap<usize, Srq>,
    qps: HashMap<u32, Qp>,
    mrs: HashMap<u64, Mr>,
    stags: HashMap<u64, Box<dyn HeldStag>>,
    reserved: HashMap<u64, Aside>,
    regions: HashMap<u64, Arc<Region>>,
    /// The wakers of the client's threads, by the client's numbers. The queues hold the wakers.
    wakers: HashMap<u64, WeakWaker>,
    /// Memory of the application's own that may still be mapped here, with the bytes of each region
    /// and the amounts taken from the account.
    brought: Vec<(Weak<Region>, usize, Vec<Reserved>)>,
    next: u64,
}

impl Objects {
    fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn add_region(&mut self, region: Region, held: Vec<Reserved>) -> u64 {
        let (name, region) = (self.name(), Arc::new(region));
        self.brought.push((Arc::downgrade(&region), region.len(), held));
        self.regions.insert(name, region);
        name
    }

    /// Returns the bytes of the application's own memory that are mapped here. A sparse region
    /// counts its registered bytes; a region that was given back counts until nothing refers to it.
    pub(super) fn brought(&mut self) -> usize {
        self.forget_gone();
        let held = |(region, len, _): &(Weak<Region>, usize, Vec<Reserved>)| {
            region.upgrade().map_or(*len, |region| region.held())
        };
        self.brought.iter().map(held).sum()
    }

    /// Frees the amounts of memory that nothing refers to any more.
    pub(super) fn forget_gone(&mut self) {
        self.brought.retain(|(region, ..)| region.strong_count() > 0);
    }

    /// Keeps the amounts of an application that has ended until its memory is free.
    pub(super) fn linger(&mut self, account: &Arc<Account>) {
        for (region, _, held) in self.brought.drain(..) {
            for part in held {
                let region = region.clone();
                account.linger(part, move || region.strong_count() == 0);
            }
        }
    }

    /// Returns true if memory that the application has brought has failed.
    pub(super) fn has_lost_memory(&self) -> bool {
        self.regions.values().any(|region| region.is_lost())
    }

    /// Returns the region of that name, if it is sparse.
    pub(super) fn sparse(&self, name: u64) -> Option<Arc<Region>> {
        self.regions.get(&name).filter(|region| region.is_sparse()).cloned()
    }

    /// Registers a part of a sparse region whose pages are held.
    pub(super) fn register_held(
        &mut self,
        open: &Open,
        args: &protocol::RegisterMr,
        region: &Arc<Region>,
        hold: Hold,
    ) -> Result<NewMr, Refused> {
        let (pd, range) = (Pd(args.pd), (args.off, args.len));
        let access = rights(args.access)?;
        let init = MrInit { access, to: Some(args.to), qp: self.optional_qp(args.qp)? };
        open.device.check_terms(pd, &init)?;
        open.device.check_mr_size(args.len)?;
        let mr = open.local.bring_mr(pd, region, range, &init, Some(hold))?;
        Ok(self.enter_mr(mr))
    }

    /// Returns the number of queue pairs.
    pub(super) fn queue_pairs(&self) -> usize {
        self.qps.len()
    }

    /// Drops up to `most` objects. Returns true when none are left. Objects that queue pairs need
    /// go after the queue pairs.
    pub(super) fn drop_some(&mut self, most: usize) -> bool {
        let mut left = most;
        drain(&mut self.qps, &mut left);
        drain(&mut self.stags, &mut left);
        drain(&mut self.mrs, &mut left);
        drain(&mut self.reserved, &mut left);
        drain(&mut self.regions, &mut left);
        drain(&mut self.srqs, &mut left);
        drain(&mut self.cqs, &mut left);
        left > 0
    }

    /// Returns the number of objects.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        let queues = self.cqs.len() + self.srqs.len() + self.qps.len();
        queues + self.mrs.len() + self.stags.len() + self.reserved.len() + self.regions.len()
    }

    fn qp(&self, name: u32) -> Result<&Qp, Refused> {
        self.qps.get(&name).ok_or_else(|| DeviceError::ForeignQp(Qpn(name)).into())
    }

    /// Returns a queue pair for a new connection.
    pub(super) fn qp_for_connection(&self, name: u32) -> Result<Qp, heddle_socket::Fault> {
        self.qps.get(&name).cloned().ok_or_else(|| unknown("queue pair", name))
    }

    fn cq(&self, place: usize) -> Result<&Cq, Refused> {
        self.cqs.get(&place).ok_or_else(|| DeviceError::ForeignCq.into())
    }

    fn optional_qp(&self, name: Option<u32>) -> Result<Option<&Qp>, Refused> {
        name.map(|n| self.qp(n)).transpose()
    }

    /// Carries out a request that is about objects.
    pub(super) fn carry_out(
        &mut self,
        open: &Open,
        account: &Arc<Account>,
        request: Request,
    ) -> Result<Outcome, Refused> {
        let device = &open.device;
        match request {
            Request::CreatePd => Ok(done(&NewPd { pd: device.alloc_pd()?.0 })?),
            Request::DeallocPd(a) => {
                device.dealloc_pd(Pd(a.pd))?;
                Ok(done(&())?)
            }
            Request::CreateCq(a) => self.create_cq(open, account, &a),
            Request::ResizeCq(a) => self.resize_cq(open, &a),
            Request::CreateSrq(a) => self.create_srq(open, account, &a),
            Request::CreateQp(a) => self.create_qp(open, &a),
            Request::FailQp(a) => {
                device.fail_qp(self.qp(a.qp)?)?;
                Ok(done(&())?)
            }
            Request::ResetQp(a) => {
                device.reset_qp(self.qp(a.qp)?)?;
                Ok(done(&())?)
            }
            Request::AllocMr(a) => self.alloc_mr(open, &a),
            Request::Reserve(a) => self.reserve(open, &a),
            Request::RegisterReserved(a) => self.register_reserved(open, &a),
            Request::RegisterMr(a) => self.register_mr(open, &a),
            Request::DeregisterMr(a) => self.deregister_mr(&a),
            Request::AllocFast(a) => self.alloc_fast(open, &a),
            Request::AllocWindow(a) => self.alloc_window(open, &a),
            Request::BindWindow(a) => self.bind_window(&a),
            Request::UnbindWindow(a) => {
                let window = self.stags.get_mut(&a.id).ok_or_else(|| unknown("window", a.id))?;
                window.revoke();
                Ok(done(&())?)
            }
            Request::Usage(a) => usage(open, &a),
            Request::DestroyCq(a) => give(&mut self.cqs, a.off, "completion queue"),
            Request::DestroySrq(a) => give(&mut self.srqs, a.off, "shared receive queue"),
            Request::DestroyQp(a) => give(&mut self.qps, a.qp, "queue pair"),
            Request::DestroyMr(a) => give(&mut self.mrs, a.id, "region"),
            Request::DestroyStag(a) => give(&mut self.stags, a.id, "STag"),
            Request::DestroyReserved(a) => give(&mut self.reserved, a.id, "memory set aside"),
            Request::DestroyRegion(a) => give(&mut self.regions, a.id, "region"),
            // The session carries these out itself.
            Request::DeviceOpen(_)
            | Request::AddRegion(_)
            | Request::ReserveAddr(_)
            | Request::DestroyReservedAddr(_)
            | Request::Listen(_)
            | Request::Unlisten(_)
            | Request::Connect(_)
            | Request::Accept(_)
            | Request::Reject(_)
            | Request::Disconnect(_)
            | Request::Taken(_)
            | Request::Close
            | Request::Ports
            | Request::Watch => Err(invalid("the request is about no object").into()),
        }
    }

    fn create_cq(
        &mut self,
        open: &Open,
        account: &Arc<Account>,
        a: &protocol::CreateCq,
    ) -> Result<Outcome, Refused> {
        let (waker, fds) = self.waker(account, a.waker)?;
        let cq = open.device.create_cq(a.depth, waker)?;
        let (off, words) = cq.share();
        self.cqs.insert(off, cq);
        Ok(with_fds(&Block { off, words }, fds)?)
    }

    fn resize_cq(&mut self, open: &Open, a: &protocol::ResizeCq) -> Result<Outcome, Refused> {
        let (held, resizing) = match open.device.resize_cq(self.cq(a.cq)?, a.depth) {
            Ok(()) => (0, false),
            Err(DeviceError::CqTooSmall { held, .. }) => (held, false),
            Err(DeviceError::CqResizing) => (0, true),
            Err(e) => return Err(e.into()),
        };
        Ok(done(&Resized { held, resizing })?)
    }

    fn create_srq(
        &mut self,
        open: &Open,
        account: &Arc<Account>,
        a: &protocol::CreateSrq,
    ) -> Result<Outcome, Refused> {
        let (waker, fds) = self.waker(account, a.waker)?;
        let srq = open.device.create_srq(Pd(a.pd), a.depth, a.max_sge, waker)?;
        let (off, words) = srq.share();
        self.srqs.insert(off, srq);
        Ok(with_fds(&Block { off, words }, fds)?)
    }

    fn create_qp(&mut self, open: &Open, a: &protocol::CreateQp) -> Result<Outcome, Refused> {
        let srq = a.srq.map(|place| self.srqs.get(&place).ok_or(DeviceError::ForeignSrq));
        let init = QpInit {
            send_cq: self.cq(a.send_cq)?.clone(),
            recv_cq: self.cq(a.recv_cq)?.clone(),
            sq_depth: a.sq_depth,
            rq_depth: a.rq_depth,
            srq: srq.transpose()?.cloned(),
            max_send_sge: a.max_send_sge,
            max_recv_sge: a.max_recv_sge,
            max_inline: a.max_inline,
        };
        let qp = open.device.create_qp(Pd(a.pd), init)?;
        let ((off, words), bell) = (qp.share(), qp.bell());
        let name = qp.qpn().0;
        self.qps.insert(name, qp);
        Ok(done(&NewQp { qp: name, bell, off, words })?)
    }

    fn alloc_mr(&mut self, open: &Open, a: &protocol::AllocMr) -> Result<Outcome, Refused> {
        let init = MrInit { access: rights(a.access)?, to: a.to, qp: self.optional_qp(a.qp)? };
        open.device.check_terms(Pd(a.pd), &init)?;
        open.device.check_mr_size(a.len)?;
        let mr = open.local.take_mr(Pd(a.pd), a.len, &init, false)?;
        self.add_mr(mr)
    }

    fn reserve(&mut self, open: &Open, a: &protocol::Len) -> Result<Outcome, Refused> {
        if self.reserved.len() >= MAX_RESERVED {
            return Err(quota("stretches set aside", MAX_RESERVED).into());
        }
        open.device.check_mr_size(a.len)?;
        let mut aside = open.local.clone().set_aside(a.len)?;
        aside.stretch.leave();
        let (off, _) = aside.stretch.range();
        let id = self.name();
        self.reserved.insert(id, aside);
        Ok(done(&SetAside { id, off })?)
    }

    fn register_reserved(
        &mut self,
        open: &Open,
        a: &protocol::RegisterReserved,
    ) -> Result<Outcome, Refused> {
        // Whether the registration succeeds or fails, the memory is set aside no longer.
        let aside = self.reserved.remove(&a.id).ok_or_else(|| unknown("memory", a.id))?;
        let access = rights(a.access)?;
        open.device.check_pd(Pd(a.pd))?;
        let mr = open.local.register_stretch(Pd(a.pd), aside.stretch, access)?;
        self.add_mr(mr)
    }

    fn register_mr(&mut self, open: &Open, a: &protocol::RegisterMr) -> Result<Outcome, Refused> {
        let init =
            MrInit { access: rights(a.access)?, to: Some(a.to), qp: self.optional_qp(a.qp)? };
        let region = self.regions.get(&a.region).ok_or_else(|| unknown("region", a.region))?;
        let mr = open.device.register_mr_with(Pd(a.pd), region, (a.off, a.len), &init)?;
        self.add_mr(mr)
    }

    fn deregister_mr(&mut self, a: &protocol::Id) -> Result<Outcome, Refused> {
        let mr = self.mrs.remove(&a.id).ok_or_else(|| unknown("region", a.id))?;
        let bound = match mr.deregister() {
            Ok(()) => 0,
            Err(bound) => {
                self.mrs.insert(a.id, *bound.mr);
                bound.count
            }
        };
        Ok(done(&Deregistered { bound })?)
    }

    fn alloc_fast(&mut self, open: &Open, a: &protocol::AllocFast) -> Result<Outcome, Refused> {
        open.device.check_pd(Pd(a.pd))?;
        let qp = self.optional_qp(a.qp)?.filter(|qp| qp.pd() == Pd(a.pd));
        if qp.is_some() != a.qp.is_some() {
            return Err(DeviceError::ForeignPd(Pd(a.pd)).into());
        }
        let held = open.local.alloc_fast(Pd(a.pd), qp, a.len)?;
        self.add_stag(held)
    }

    fn alloc_window(&mut self, open: &Open, a: &protocol::AllocWindow) -> Result<Outcome, Refused> {
        open.device.check_pd(Pd(a.pd))?;
        let qp = self.optional_qp(a.qp)?.filter(|qp| qp.pd() == Pd(a.pd));
        if qp.is_some() != a.qp.is_some() {
            return Err(DeviceError::ForeignPd(Pd(a.pd)).into());
        }
        let of = match (qp, a.any_qp) {
            (None, false) => WindowFor::Domain,
            (None, true) => WindowFor::AnyQp,
            (Some(qp), false) => WindowFor::Qp(qp),
            (Some(_), true) => {
                return Err(invalid("a window for one queue pair, and for any").into());
            }
        };
        let held = open.local.alloc_window(Pd(a.pd), of)?;
        self.add_stag(held)
    }

    fn bind_window(&mut self, a: &protocol::BindWindow) -> Result<Outcome, Refused> {
        let access = rights(a.access)?;
        let window = self.stags.get_mut(&a.id).ok_or_else(|| unknown("window", a.id))?;
        let bound = window.bind((Stag(a.mr), a.at, a.len), a.to, access);
        let stag = window.stag().0;
        Ok(done(&WindowBound { stag, refused: bound.err() })?)
    }

    /// Returns the waker of the thread to which the client gives this number; if the waker is new,
    /// also returns the descriptor on which the thread sleeps.
    fn waker(
        &mut self,
        account: &Arc<Account>,
        number: Option<u64>,
    ) -> Result<(Option<Waker>, Vec<OwnedFd>), Refused> {
        let Some(number) = number else { return Ok((None, Vec::new())) };
        if let Some(there) = self.wakers.get(&number).and_then(WeakWaker::upgrade) {
            return Ok((Some(there), Vec::new()));
        }
        let held = account.take(Kind::Descriptors, 1).map_err(over)?;
        let made = Waker::for_process();
        let (waker, fd) = made.map_err(|e| DeviceError::Socket(e.to_string()))?;
        // There are at most as many wakers as queues.
        self.wakers.retain(|_, waker| !waker.is_gone());
        self.wakers.insert(number, waker.downgrade());
        let weak = waker.downgrade();
        account.linger(held, move || weak.is_gone());
        Ok((Some(waker), vec![fd]))
    }

    fn enter_mr(&mut self, mr: Mr) -> NewMr {
        let (id, info) = (self.name(), mr.info());
        self.mrs.insert(id, mr);
        NewMr { id, stag: info.stag.0, to: info.to, off: info.off }
    }

    fn add_mr(&mut self, mr: Mr) -> Result<Outcome, Refused> {
        Ok(done(&self.enter_mr(mr))?)
    }

    fn add_stag(&mut self, held: Box<dyn HeldStag>) -> Result<Outcome, Refused> {
        let (id, stag) = (self.name(), held.stag().0);
        self.stags.insert(id, held);
        Ok(done(&NewStag { id, stag })?)
    }
}

fn usage(open: &Open, a: &protocol::OfPd) -> Result<Outcome, Refused> {
    let usage = open.local.mr_usage(a.pd.map(Pd));
    let usage = usage.ok_or(DeviceError::ForeignPd(Pd(a.pd.unwrap_or(0))))?;
    Ok(done(&Usage {
        regions: usage.regions,
        windows: usage.windows,
        refused: usage.refused,
        most_regions: usage.limits.regions,
        most_windows: usage.limits.windows,
    })?)
}

fn give<K, V>(from: &mut HashMap<K, V>, name: K, what: &str) -> Result<Outcome, Refused>
where
    K: Eq + std::hash::Hash + std::fmt::Display + Copy,
{
    match from.entry(name) {
        Entry::Occupied(e) => {
            drop(e.remove());
            Ok(done(&())?)
        }
        Entry::Vacant(_) => Err(unknown(what, name).into()),
    }
}

fn drain<K: Copy + Eq + std::hash::Hash, V>(from: &mut HashMap<K, V>, left: &mut usize) {
    let some: Vec<K> = from.keys().take(*left).copied().collect();
    for name in some {
        from.remove(&name);
        *left -= 1;
    }
}

fn unknown(what: &str, name: impl std::fmt::Display) -> heddle_socket::Fault {
    not_found(format!("there is no {what} {name}"))
}

fn rights(bits: u8) -> Result<Access, Refused> {
    protocol::access(bits).ok_or_else(|| invalid("there are no such rights").into())
}
