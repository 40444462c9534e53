//! Sends the operations of a device to the server.

use core::net::SocketAddr;
use std::sync::Arc;

use heddle_shm::{Region, Waker};
use heddle_socket::FaultKind;
use heddle_types::{
    AcceptTerms, CmId, ConnectFailure, ConnectTerms, Event, ListenerId, Pd, QpFate, Qpn,
    RequestError,
};

use super::handles::RemoteStretch;
use super::{Remote, confused, link, lock};
use crate::cq::Cq;
use crate::device::{Backend, DeviceEvents, MrInit, OnEnd, Reserved};
use crate::error::DeviceError;
use crate::event::{EventQueue, TakenEvents};
use crate::mr::Mr;
use crate::mr::{MrLimits, MrUsage, RegisterError};
use crate::params::ListenParams;
use crate::port::PortInfo;
use crate::qp::{Owner, Qp, QpInit, QpParts};
use crate::remote::protocol::{
    self, Block, Connecting, Id, Listening, NewMr, NewPd, NewQp, QpName, Request, Resized,
    SetAside, Usage, bits,
};
use crate::srq::Srq;
use crate::window::{HeldStag, WindowFor};

/// Returns true if the server has no such connection. The connection has ended while the request
/// was on its way, which is no mistake of the application; its last event reports the end.
fn is_over<T>(answered: &Result<T, DeviceError>) -> bool {
    matches!(answered, Err(DeviceError::Refused(fault)) if fault.kind == FaultKind::NotFound)
}

/// Returns the number by which the server knows a waker.
fn number_of(waker: Option<&Waker>) -> Result<Option<u64>, DeviceError> {
    waker.map(|w| w.number().ok_or(DeviceError::WakerWithoutFd)).transpose()
}

impl Backend for Remote {
    fn is_local(&self) -> bool {
        false
    }

    fn is_inline(&self) -> bool {
        false
    }

    fn ended(&self) -> Option<DeviceError> {
        self.link.ended()
    }

    fn when_ended(&self, f: OnEnd) {
        self.link.when_ended(f);
    }

    fn ports(&self) -> Result<Vec<PortInfo>, DeviceError> {
        self.link.call(&Request::Ports).map(|answer: protocol::Ports| answer.ports)
    }

    fn watch(&self, events: &DeviceEvents) -> Result<(), DeviceError> {
        self.link.routes().watch(events);
        self.link.call(&Request::Watch)
    }

    fn takes_files(&self) -> bool {
        self.takes_files
    }

    fn has_pd(&self, pd: Pd) -> bool {
        lock(&self.pds).contains(&pd)
    }

    fn create_pd(&self) -> Result<Pd, DeviceError> {
        let new: NewPd = self.link.call(&Request::CreatePd)?;
        lock(&self.pds).insert(Pd(new.pd));
        Ok(Pd(new.pd))
    }

    fn dealloc_pd(&self, pd: Pd) -> Result<(), DeviceError> {
        lock(&self.pds).remove(&pd);
        self.link.call(&Request::DeallocPd(protocol::PdName { pd: pd.0 }))
    }

    fn create_cq(&self, depth: u32, waker: Option<Waker>) -> Result<Cq, DeviceError> {
        let number = number_of(waker.as_ref())?;
        let request = Request::CreateCq(protocol::CreateCq { depth, waker: number });
        let at: Block = self.link.call_waking(&request, waker.as_ref())?;
        let owner = self.owner(Request::DestroyCq(at.clone()));
        let cq = confused(Cq::remote(&self.area, (at.off, at.words), waker, owner))?;
        self.link.watch_cq(&cq);
        Ok(cq)
    }

    fn resize_cq(&self, cq: &Cq, depth: u32) -> Result<(), DeviceError> {
        let (place, _) = cq.share();
        let request = Request::ResizeCq(protocol::ResizeCq { cq: place, depth });
        match cq.resize_elsewhere(|| self.link.call(&request))? {
            Resized { resizing: true, .. } => Err(DeviceError::CqResizing),
            Resized { held: 0, .. } => Ok(()),
            Resized { held, .. } => Err(DeviceError::CqTooSmall { held, depth }),
        }
    }

    fn create_srq(
        &self,
        pd: Pd,
        (depth, max_sge): (u32, u16),
        waker: Option<Waker>,
    ) -> Result<Srq, DeviceError> {
        let request = Request::CreateSrq(protocol::CreateSrq {
            pd: pd.0,
            depth,
            max_sge,
            waker: number_of(waker.as_ref())?,
        });
        let at: Block = self.link.call_waking(&request, waker.as_ref())?;
        let owner = self.owner(Request::DestroySrq(at.clone()));
        let size = (pd, depth, max_sge);
        confused(Srq::remote(&self.area, (at.off, at.words), size, waker, owner))
    }

    fn create_qp(self: Arc<Self>, pd: Pd, init: QpInit) -> Result<Qp, DeviceError> {
        let user = init.srq.as_ref().map(Srq::join).transpose()?;
        let request = Request::CreateQp(protocol::CreateQp {
            pd: pd.0,
            send_cq: init.send_cq.share().0,
            recv_cq: init.recv_cq.share().0,
            srq: init.srq.as_ref().map(|srq| srq.share().0),
            sq_depth: init.sq_depth,
            rq_depth: init.rq_depth,
            max_send_sge: init.max_send_sge,
            max_recv_sge: init.max_recv_sge,
            max_inline: init.max_inline,
        });
        let new: NewQp = self.link.call(&request)?;
        let remote = self.clone();
        // Every queue pair of the device keeps the device alive.
        let owner = Owner::new(move || {
            drop(user);
            remote.link.routes().forget_qp(Qpn(new.qp));
            remote.link.tell(&Request::DestroyQp(QpName { qp: new.qp }));
        });
        let parts = QpParts {
            app: self.id,
            qpn: Qpn(new.qp),
            pd,
            bells: self.bells.clone(),
            bell: new.bell,
            tied: Arc::new(()),
        };
        let qp = Qp::remote(&self.area, parts, (new.off, new.words), init, owner);
        let qp = confused(qp)?;
        self.link.watch_qp(&qp);
        Ok(qp)
    }

    fn forget_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.link.call(&Request::ResetQp(QpName { qp: qp.qpn().0 }))
    }

    fn fail_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.link.call(&Request::FailQp(QpName { qp: qp.qpn().0 }))
    }

    fn alloc_mr(&self, pd: Pd, len: usize, init: &MrInit<'_>) -> Result<Mr, DeviceError> {
        let memory = self.memory(len)?;
        let request = Request::AllocMr(protocol::AllocMr {
            pd: pd.0,
            len,
            access: bits(init.access),
            to: init.to,
            qp: init.qp.map(|qp| qp.qpn().0),
        });
        let new: NewMr = self.patiently(|| self.link.call(&request))?;
        let mr = self.mr(memory, len, &new, None)?;
        // No other process knows the STag yet.
        mr.zero(0, len);
        Ok(mr)
    }

    fn register_mr(
        &self,
        pd: Pd,
        region: &Arc<Region>,
        (off, len): (usize, usize),
        init: &MrInit<'_>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Mr, DeviceError> {
        let there = region.ptr(off, len).ok_or(RegisterError::OutOfRange)?;
        let own = self.shared(region)?;
        let request = Request::RegisterMr(protocol::RegisterMr {
            pd: pd.0,
            region: own.id(),
            off,
            len,
            access: bits(init.access),
            to: init.to.unwrap_or(there.addr() as u64),
            qp: init.qp.map(|qp| qp.qpn().0),
        });
        let mut meanwhile = Some(meanwhile);
        let new: NewMr = self.patiently(|| match meanwhile.take() {
            Some(meanwhile) => self.link.call_while(&request, meanwhile),
            None => self.link.call(&request),
        })?;
        if new.off != off {
            return confused(None);
        }
        self.mr(region, len, &new, Some(own))
    }

    fn reserve(self: Arc<Self>, len: usize) -> Result<Box<dyn Reserved>, DeviceError> {
        let memory = self.memory(len)?.clone();
        let request = Request::Reserve(protocol::Len { len });
        let new: SetAside = self.patiently(|| self.link.call(&request))?;
        confused(memory.ptr(new.off, len))?;
        Ok(Box::new(RemoteStretch::new(self, new.id, (new.off, len))))
    }

    fn alloc_fast(
        &self,
        pd: Pd,
        qp: Option<&Qp>,
        len: u64,
    ) -> Result<Box<dyn HeldStag>, DeviceError> {
        let qp = qp.map(|qp| qp.qpn().0);
        self.stag(&Request::AllocFast(protocol::AllocFast { pd: pd.0, qp, len }))
    }

    fn alloc_window(&self, pd: Pd, of: WindowFor<'_>) -> Result<Box<dyn HeldStag>, DeviceError> {
        let (qp, any_qp) = match of {
            WindowFor::Domain => (None, false),
            WindowFor::Qp(qp) => (Some(qp.qpn().0), false),
            WindowFor::AnyQp => (None, true),
        };
        self.stag(&Request::AllocWindow(protocol::AllocWindow { pd: pd.0, qp, any_qp }))
    }

    fn mr_usage(&self, pd: Option<Pd>) -> Option<MrUsage> {
        let request = Request::Usage(protocol::OfPd { pd: pd.map(|pd| pd.0) });
        let u: Usage = self.link.call(&request).ok()?;
        Some(MrUsage {
            regions: u.regions,
            windows: u.windows,
            refused: u.refused,
            limits: MrLimits { regions: u.most_regions, windows: u.most_windows },
        })
    }

    fn reserve_addr(
        self: Arc<Self>,
        addr: SocketAddr,
        v6_only: bool,
    ) -> Result<(SocketAddr, u64, Owner), DeviceError> {
        let request = Request::ReserveAddr(protocol::ReserveAddr { addr, v6_only });
        let answer: protocol::ReservedAddr = self.link.call(&request)?;
        if let Some(why) = answer.refused {
            return Err(DeviceError::Address(addr, why));
        }
        let told = Request::DestroyReservedAddr(Id { id: answer.id });
        Ok((answer.addr, answer.id, self.owner(told)))
    }

    fn listen(
        &self,
        addr: SocketAddr,
        bound: Option<u64>,
        params: ListenParams,
        events: &EventQueue,
    ) -> Result<ListenerId, DeviceError> {
        let request = Request::Listen(protocol::Listen { addr, params, bound });
        let events = events.clone();
        let then = link::then(move |new: &Listening, routes| routes.listen(new.listener, events));
        let (new, _): (Listening, _) = self.link.call_with(&request, &[], Some(then))?;
        Ok(ListenerId(new.listener))
    }

    fn unlisten(&self, id: ListenerId) -> Result<(), DeviceError> {
        self.link.call::<()>(&Request::Unlisten(Listening { listener: id.0 }))?;
        self.link.routes().unlisten(id.0);
        Ok(())
    }

    fn connect(
        &self,
        remote: SocketAddr,
        qp: &Qp,
        terms: ConnectTerms,
        events: &EventQueue,
    ) -> Result<CmId, DeviceError> {
        let request = Request::Connect(protocol::Connect {
            remote,
            local: terms.local,
            qp: qp.qpn().0,
            protocol: terms.protocol,
            ird: terms.ird,
            ord: terms.ord,
            private_data: terms.private_data,
            timeout: terms.timeout,
            tcp: terms.tcp,
        });
        let (events, qp) = (events.clone(), qp.weak_claim());
        let then = link::then(move |new: &Connecting, routes| routes.connect(new.conn, events, qp));
        let (new, _): (Connecting, _) = self.link.call_with(&request, &[], Some(then))?;
        Ok(CmId(new.conn))
    }

    fn accept(
        &self,
        id: CmId,
        qp: &Qp,
        terms: AcceptTerms,
        events: Option<&EventQueue>,
    ) -> Result<(), DeviceError> {
        let request = Request::Accept(protocol::Accept {
            conn: id.0,
            qp: qp.qpn().0,
            ird: terms.ird,
            ord: terms.ord,
            private_data: terms.private_data,
        });
        let (to, weak) = (events.cloned(), qp.weak_claim());
        let then = link::then(move |(): &(), routes| routes.accept(id.0, to, weak));
        let answered = self.link.call_with::<()>(&request, &[], Some(then));
        if is_over(&answered) {
            qp.unclaim();
            // The listener's queue has got this event; report it in the caller's own queue too.
            if let Some(events) = events {
                let error = ConnectFailure::Request(RequestError::NoConnection);
                let qp = QpFate::Free(qp.qpn());
                events.push(Event::ConnectError { id, error, qp }, &TakenEvents::default());
            }
            return Ok(());
        }
        answered.map(|_| ())
    }

    fn reject(
        &self,
        id: CmId,
        private_data: Vec<u8>,
        needs_ord: Option<u16>,
    ) -> Result<(), DeviceError> {
        let request = Request::Reject(protocol::Reject { conn: id.0, private_data, needs_ord });
        let then = link::then(move |(): &(), routes| routes.forget(id.0));
        let answered = self.link.call_with::<()>(&request, &[], Some(then));
        if is_over(&answered) { Ok(()) } else { answered.map(|_| ()) }
    }

    fn disconnect(&self, id: CmId) -> Result<(), DeviceError> {
        let answered = self.link.call(&Request::Disconnect(Connecting { conn: id.0 }));
        if is_over(&answered) { Ok(()) } else { answered }
    }

    fn close(&self) -> Result<(), DeviceError> {
        self.link.call(&Request::Close)
    }
}
