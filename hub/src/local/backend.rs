//! Carries out the operations of a device in this process.

use core::net::SocketAddr;

use heddle_shm::Region;
use heddle_types::{AcceptTerms, ConnectTerms, Event, ListenError, ListenFailure};
use heddle_verbs::provider::{Backend, HeldStag, QpParts, Reserved, WindowFor};
use heddle_verbs::{DeviceEvents, ListenParams, Mr, MrInit, MrUsage, PortInfo, TakenEvents};

use super::*;
use crate::names::Holder;

impl Backend for Local {
    fn is_local(&self) -> bool {
        true
    }

    fn is_inline(&self) -> bool {
        self.hub.is_inline()
    }

    fn ports(&self) -> Result<Vec<PortInfo>, DeviceError> {
        Ok(self.hub.board.ports())
    }

    fn watch(&self, events: &DeviceEvents) -> Result<(), DeviceError> {
        self.hub.board.subscribe(self.id, events);
        Ok(())
    }

    fn takes_files(&self) -> bool {
        true
    }

    fn has_pd(&self, pd: Pd) -> bool {
        lock(&self.pds).contains_key(&pd)
    }

    fn create_pd(&self) -> Result<Pd, DeviceError> {
        let most = self.limits.max_pds;
        let place = self.domains.take("protection domains", most)?;
        let place = place.paid(self.pay(&[Kind::Domains])?);
        let pd = self.hub.name_pd(self.id);
        let domain = Domain { pd, hub: Arc::downgrade(&self.hub), _place: place };
        lock(&self.pds).insert(pd, Quota::of_domain(self.limits.mrs_per_pd(), domain));
        Ok(pd)
    }

    fn dealloc_pd(&self, pd: Pd) -> Result<(), DeviceError> {
        // Drop the domain after the lock is released: the last holder frees the domain's place.
        let given_up = lock(&self.pds).remove(&pd);
        given_up.map(drop).ok_or(DeviceError::ForeignPd(pd))
    }

    fn create_cq(&self, depth: u32, waker: Option<Waker>) -> Result<Cq, DeviceError> {
        let place = self.cqs.take("completion queues", self.limits.max_cqs)?;
        let place = place.paid(self.pay(&[Kind::CompletionQueues])?);
        let number = self.next_cq.fetch_add(1, Ordering::Relaxed);
        Ok(Cq::new(&self.area, number, depth, self.hub.workers, waker, place)?)
    }

    fn resize_cq(&self, cq: &Cq, depth: u32) -> Result<(), DeviceError> {
        let app = self.id;
        cq.resize(depth, |link| self.hub.control.request(ControlRequest::ResizeCq { app, link }))
    }

    fn create_srq(
        &self,
        pd: Pd,
        size: (u32, u16),
        waker: Option<Waker>,
    ) -> Result<Srq, DeviceError> {
        let domain = self.domain(pd)?;
        let place = self.srqs.take("shared receive queues", self.limits.max_srqs)?;
        let place = place.paid(self.pay(&[Kind::SharedReceiveQueues])?);
        let number = self.next_cq.fetch_add(1, Ordering::Relaxed);
        Ok(Srq::new(
            &self.area,
            number,
            pd,
            size,
            waker,
            (place, Owner::new(move || drop(domain))),
        )?)
    }

    fn create_qp(self: Arc<Self>, pd: Pd, init: QpInit) -> Result<Qp, DeviceError> {
        let user = init.srq.as_ref().map(Srq::join).transpose()?;
        let most = self.limits.max_qps;
        let domain = self.domain(pd)?;
        let place = self.qps.take("queue pairs", most)?.paid(self.pay(&[Kind::QueuePairs])?);
        let full = DeviceError::TooMany { what: "queue pairs", most };
        let bell = take_slot(&mut lock(&self.slots)).ok_or(full)?;
        let qpn = Qpn(lock(&self.hub.qpns).take());
        let tied: Arc<Tied> = Arc::default();
        lock(&self.tied).insert(qpn, tied.clone());
        let owner = self.clone();
        let owner = Owner::new(move || {
            drop((user, domain));
            owner.forget(qpn, bell, place);
        });
        let parts = QpParts { app: self.id, qpn, pd, bells: self.bells.clone(), bell, tied };
        Ok(Qp::new(&self.area, parts, init, owner)?)
    }

    fn forget_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.any_qp_windows.revoke_of(&self.hub.registry, qp.qpn());
        self.request(Request::ForgetQp { qpn: qp.qpn() }, None, None)
    }

    fn fail_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.hub.control.request(ControlRequest::FailQp { app: self.id, qp: qp.clone() })
    }

    fn alloc_mr(&self, pd: Pd, len: usize, init: &MrInit<'_>) -> Result<Mr, DeviceError> {
        self.take_mr(pd, len, init, true)
    }

    fn register_mr(
        &self,
        pd: Pd,
        region: &Arc<Region>,
        range: (usize, usize),
        init: &MrInit<'_>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Mr, DeviceError> {
        meanwhile();
        self.bring_mr(pd, region, range, init, None)
    }

    fn reserve(self: Arc<Self>, len: usize) -> Result<Box<dyn Reserved>, DeviceError> {
        Ok(Box::new(self.set_aside(len)?))
    }

    fn alloc_fast(
        &self,
        pd: Pd,
        qp: Option<&Qp>,
        len: u64,
    ) -> Result<Box<dyn HeldStag>, DeviceError> {
        Ok(Box::new(self.fast(pd, qp, len)?))
    }

    fn alloc_window(&self, pd: Pd, of: WindowFor<'_>) -> Result<Box<dyn HeldStag>, DeviceError> {
        Ok(Box::new(self.window(pd, of)?))
    }

    fn mr_usage(&self, pd: Option<Pd>) -> Option<MrUsage> {
        match pd {
            None => Some(self.quota.usage()),
            Some(pd) => lock(&self.pds).get(&pd).map(|q| q.usage()),
        }
    }

    fn reserve_addr(
        self: Arc<Self>,
        addr: SocketAddr,
        v6_only: bool,
    ) -> Result<(SocketAddr, u64, Owner), DeviceError> {
        self.reserve_allowed((addr, v6_only), |_| true)
    }

    fn listen(
        &self,
        addr: SocketAddr,
        reserved: Option<u64>,
        params: ListenParams,
        events: &EventQueue,
    ) -> Result<ListenerId, DeviceError> {
        let id = ListenerId(self.next_id());
        if !self.hub.board.names.listen(self.id, (addr, params.v6_only), id, reserved) {
            // Answer with an event, as the control plane does where another program listens.
            let error = ListenFailure::Worker(ListenError::InUse);
            events.push(Event::ListenFailed { id, error }, &TakenEvents::default());
            return Ok(id);
        }
        let request = heddle_types::Request::Listen { id, addr, params };
        let names = &self.hub.board.names;
        self.request(request, None, Some(events.clone()))
            .inspect_err(|_| names.give_up(Holder::Listener(id)))?;
        Ok(id)
    }

    fn unlisten(&self, id: ListenerId) -> Result<(), DeviceError> {
        self.request(heddle_types::Request::Unlisten { id }, None, None)?;
        self.hub.board.names.give_up(Holder::Listener(id));
        Ok(())
    }

    fn connect(
        &self,
        remote: SocketAddr,
        qp: &Qp,
        params: ConnectTerms,
        events: &EventQueue,
    ) -> Result<CmId, DeviceError> {
        let id = CmId(self.next_id());
        let request = heddle_types::Request::Connect { id, remote, params };
        self.request(request, Some(qp.clone()), Some(events.clone()))?;
        Ok(id)
    }

    fn accept(
        &self,
        id: CmId,
        qp: &Qp,
        params: AcceptTerms,
        events: Option<&EventQueue>,
    ) -> Result<(), DeviceError> {
        let request = heddle_types::Request::Accept { id, params };
        self.request(request, Some(qp.clone()), events.cloned())
    }

    fn reject(
        &self,
        id: CmId,
        private_data: Vec<u8>,
        needs_ord: Option<u16>,
    ) -> Result<(), DeviceError> {
        self.request(heddle_types::Request::Reject { id, private_data, needs_ord }, None, None)
    }

    fn disconnect(&self, id: CmId) -> Result<(), DeviceError> {
        self.request(heddle_types::Request::Disconnect { id }, None, None)
    }

    fn close(&self) -> Result<(), DeviceError> {
        self.end()
    }
}
