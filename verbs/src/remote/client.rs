//! The asking side: a device whose RNIC is another process's.

use core::net::SocketAddr;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use heddle_cm::{AcceptTerms, AppId, CmId, ConnectTerms, ListenerId};
use heddle_iwarp::{Pd, Qpn, Stag};
use heddle_socket::document::FaultKind;

use super::protocol::{
    self, Block, Connecting, Id, Listening, NewMr, NewPd, NewQp, NewStag, Opened, QpName, Request,
    Resized, SetAside, Usage, bits,
};
use crate::cq::Cq;
use crate::device::{Backend, Device, Hub, MrInit, Parts, Reserved};
use crate::error::DeviceError;
use crate::event::EventQueue;
use crate::limits::DeviceLimits;
use crate::memory::{MrLimits, MrUsage, Region, RegionError};
use crate::mr::{Mr, MrInfo};
use crate::params::ListenParams;
use crate::qp::{Owner, Qp, QpInit};
use crate::ring::{Area, Bells};
use crate::srq::Srq;
use crate::waker::Waker;
use crate::window::HeldStag;

mod handles;
mod link;
mod routes;

use handles::{RemoteMr, RemoteStag, RemoteStretch, SharedRegion};
use link::Link;

/// What a device is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenParams {
    /// Octets of memory it can register without bringing its own; none at 0.
    pub memory: usize,
    /// Octets for its queues.
    pub queues: usize,
    /// What the server shows people of whose it is.
    pub name: String,
}

impl Default for OpenParams {
    /// 64 MiB of memory, 16 MiB of queues, the name of the program.
    fn default() -> OpenParams {
        let program = std::env::args_os().next().map(std::path::PathBuf::from);
        let name = program.as_deref().and_then(Path::file_name);
        OpenParams {
            memory: 64 << 20,
            queues: 16 << 20,
            name: name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
        }
    }
}

/// How long a registration is tried again while memory is on its way back.
const RECLAIM_WAIT: Duration = Duration::from_millis(100);

/// Octets that are cleared at a time, at least.
const SOME: usize = 1 << 20;

impl Device {
    /// A device of the RNIC that `heddle serve` runs, which answers on the control socket at `path`
    /// (`/run/heddle.sock` as a rule). It is a device as any other: what it makes is in memory that
    /// this process shares with the workers of that one.
    ///
    /// A thread of the device's own waits for what the server says. When the server is gone, every
    /// listener and connection has its last event, completion queues say that completions were lost,
    /// posts are refused, and what is asked for fails with [`DeviceError::Gone`].
    ///
    /// # Errors
    /// [`DeviceError::Socket`] when nobody is there, [`DeviceError::Refused`] when it will not be.
    pub fn open(path: impl AsRef<Path>) -> Result<Device, DeviceError> {
        Device::open_with(path, &OpenParams::default())
    }

    /// As [`open`](Device::open), with parameters.
    ///
    /// # Errors
    /// As [`open`](Device::open).
    pub fn open_with(path: impl AsRef<Path>, params: &OpenParams) -> Result<Device, DeviceError> {
        let path = path.as_ref();
        let socket = UnixStream::connect(path).map_err(|e| {
            DeviceError::Socket(format!("cannot connect to {}: {e}", path.display()))
        })?;
        Device::open_on(socket, params)
    }

    /// The same on a connection there is.
    ///
    /// # Errors
    /// As [`open`](Device::open).
    pub fn open_on(socket: UnixStream, params: &OpenParams) -> Result<Device, DeviceError> {
        let link = Link::start(socket).map_err(|e| DeviceError::Socket(e.to_string()))?;
        match open(&link, params) {
            Ok(device) => Ok(device),
            Err(e) => {
                link.shut();
                Err(e)
            }
        }
    }
}

fn open(link: &Arc<Link>, params: &OpenParams) -> Result<Device, DeviceError> {
    let request = Request::DeviceOpen(protocol::Open {
        memory: params.memory as u64,
        queues: params.queues as u64,
        name: params.name.clone(),
    });
    let (opened, fds): (Opened, Vec<OwnedFd>) = link.call_with(&request, &[], None)?;
    let mut fds = fds.into_iter();
    let confused = || DeviceError::Socket("the server answers nonsense".to_owned());
    let area = Area::attach(fds.next().ok_or_else(confused)?, opened.area)?;
    let bells = Bells::attach(&area, opened.bells, opened.workers).ok_or_else(confused)?;
    let memory = match opened.memory {
        0 => None,
        len => Some(Arc::new(Region::from_fd(fds.next().ok_or_else(confused)?, len)?)),
    };
    let (id, limits) = (AppId(opened.app), DeviceLimits::from(&opened.limits));
    let backend = Arc::new(Remote {
        link: link.clone(),
        id,
        area: area.clone(),
        bells: bells.clone(),
        memory: memory.clone(),
        pds: Mutex::default(),
        regions: Mutex::default(),
    });
    Ok(Device::new(Parts { id, area, bells, memory, limits, backend }))
}

/// What a device has of a server.
#[derive(Debug)]
struct Remote {
    link: Arc<Link>,
    id: AppId,
    area: Arc<Area>,
    bells: Bells,
    memory: Option<Arc<Region>>,
    pds: Mutex<HashSet<Pd>>,
    /// Regions of the application's own that the server has mapped, by where they are in this process.
    regions: Mutex<HashMap<usize, Weak<SharedRegion>>>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.link.shut();
    }
}

/// The server has answered with something that cannot be.
fn confused<T>(found: Option<T>) -> Result<T, DeviceError> {
    found.ok_or_else(|| DeviceError::Socket("the server answers nonsense".to_owned()))
}

impl Remote {
    /// Something that tells the server of its own end.
    fn owner(&self, told: Request) -> Owner {
        let link = Arc::downgrade(&self.link);
        Owner::new(move || {
            if let Some(link) = link.upgrade() {
                link.tell(&told);
            }
        })
    }

    /// Asks again for a while when memory is on its way back.
    fn patiently<T>(
        &self,
        mut ask: impl FnMut() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let end = Instant::now() + RECLAIM_WAIT;
        let mut nap = Duration::from_micros(100);
        loop {
            let result = ask();
            let busy = matches!(&result, Err(DeviceError::Refused(f)) if f.kind == FaultKind::Busy);
            if !busy || Instant::now() >= end {
                return result;
            }
            std::thread::sleep(nap);
            nap = (2 * nap).min(Duration::from_millis(5));
        }
    }

    fn mr(
        &self,
        region: &Arc<Region>,
        len: usize,
        new: &NewMr,
        own: Option<Arc<SharedRegion>>,
    ) -> Result<Mr, DeviceError> {
        let owner = Box::new(RemoteMr::new(&self.link, new.id, own));
        confused(region.ptr(new.off, len))?;
        let info = MrInfo { stag: Stag(new.stag), to: new.to, off: new.off, len };
        Ok(Mr::new(region.clone(), info, owner))
    }

    /// The memory that registrations are made of.
    fn memory(&self, wanted: usize) -> Result<&Arc<Region>, DeviceError> {
        let none = crate::memory::RegisterError::NoMemory { wanted, free: 0, size: 0 };
        self.memory.as_ref().ok_or(none.into())
    }

    /// A region of the application's own, which the server maps once however often it is registered.
    fn shared(&self, region: &Arc<Region>) -> Result<Arc<SharedRegion>, DeviceError> {
        let mut regions = lock(&self.regions);
        let at = Arc::as_ptr(region).addr();
        if let Some(there) = regions.get(&at).and_then(Weak::upgrade) {
            return Ok(there);
        }
        regions.retain(|_, r| r.strong_count() > 0);
        let fd = region.fd().ok_or(RegionError::NotShared)?;
        let request = Request::AddRegion(protocol::Len { len: region.len() });
        let (answer, _): (Id, _) = self.link.call_with(&request, &[fd], None)?;
        let shared = Arc::new(SharedRegion::new(&self.link, answer.id, region.clone()));
        regions.insert(at, Arc::downgrade(&shared));
        Ok(shared)
    }

    fn stag(&self, request: &Request) -> Result<Box<dyn HeldStag>, DeviceError> {
        let new: NewStag = self.patiently(|| self.link.call(request))?;
        Ok(Box::new(RemoteStag::new(&self.link, new.id, Stag(new.stag))))
    }
}

impl Backend for Remote {
    fn hub(&self) -> Option<&Arc<Hub>> {
        None
    }

    fn has_pd(&self, pd: Pd) -> bool {
        lock(&self.pds).contains(&pd)
    }

    fn create_pd(&self) -> Result<Pd, DeviceError> {
        let new: NewPd = self.link.call(&Request::CreatePd)?;
        lock(&self.pds).insert(Pd(new.pd));
        Ok(Pd(new.pd))
    }

    fn create_cq(&self, depth: u32, waker: Option<Waker>) -> Result<Cq, DeviceError> {
        let request = Request::CreateCq(protocol::CreateCq { depth, waker: waker.is_some() });
        let at: Block = self.link.call_waking(&request, waker.as_ref())?;
        let owner = self.owner(Request::DestroyCq(at.clone()));
        let cq = confused(Cq::remote(&self.area, (at.off, at.words), waker, owner))?;
        self.link.watch_cq(&cq);
        Ok(cq)
    }

    fn resize_cq(&self, cq: &Cq, depth: u32) -> Result<(), DeviceError> {
        let (place, _) = cq.share();
        let request = Request::ResizeCq(protocol::ResizeCq { cq: place, depth });
        match self.link.call(&request)? {
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
            waker: waker.is_some(),
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
        // The device is there as long as a queue pair of it is.
        let owner = Owner::new(move || {
            drop(user);
            remote.link.tell(&Request::DestroyQp(QpName { qp: new.qp }));
        });
        let (bells, at) = ((self.bells.clone(), new.bell), (new.off, new.words));
        let qp = Qp::remote(&self.area, self.id, (Qpn(new.qp), pd), bells, at, init, owner);
        let qp = confused(qp)?;
        self.link.watch_qp(&qp);
        Ok(qp)
    }

    fn forget_qp(&self, qp: &Qp) -> Result<(), DeviceError> {
        self.link.call(&Request::ResetQp(QpName { qp: qp.qpn().0 }))
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
        // Nobody knows its STag yet.
        mr.zero(0, len);
        Ok(mr)
    }

    fn register_mr(
        &self,
        pd: Pd,
        region: &Arc<Region>,
        (off, len): (usize, usize),
        init: &MrInit<'_>,
    ) -> Result<Mr, DeviceError> {
        let there = region.ptr(off, len).ok_or(crate::memory::RegisterError::OutOfRange)?;
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
        let new: NewMr = self.patiently(|| self.link.call(&request))?;
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

    fn alloc_window(&self, pd: Pd, qp: Option<&Qp>) -> Result<Box<dyn HeldStag>, DeviceError> {
        let qp = qp.map(|qp| qp.qpn().0);
        self.stag(&Request::AllocWindow(protocol::AllocWindow { pd: pd.0, qp }))
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

    fn listen(
        &self,
        addr: SocketAddr,
        params: ListenParams,
        events: &EventQueue,
    ) -> Result<ListenerId, DeviceError> {
        let request = Request::Listen(protocol::Listen { addr, params });
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
        });
        let (events, qp) = (events.clone(), qp.downgrade());
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
        let (events, qp) = (events.cloned(), qp.downgrade());
        let then = link::then(move |(): &(), routes| routes.accept(id.0, events, qp));
        self.link.call_with::<()>(&request, &[], Some(then)).map(|_| ())
    }

    fn reject(
        &self,
        id: CmId,
        private_data: Vec<u8>,
        needs_ord: Option<u16>,
    ) -> Result<(), DeviceError> {
        let request = Request::Reject(protocol::Reject { conn: id.0, private_data, needs_ord });
        let then = link::then(move |(): &(), routes| routes.forget(id.0));
        self.link.call_with::<()>(&request, &[], Some(then)).map(|_| ())
    }

    fn disconnect(&self, id: CmId) -> Result<(), DeviceError> {
        self.link.call(&Request::Disconnect(Connecting { conn: id.0 }))
    }

    fn close(&self) -> Result<(), DeviceError> {
        self.link.call(&Request::Close)
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
