//! The RNIC as an application sees it.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Sender, TrySendError};
use heddle_dataplane::{Arena, Cq, Qp, QpInit, Waker};
use heddle_iwarp::{Access, MrTable, Pd, Qpn, Stag};
use heddle_tcp::{ListenError, MAX_LISTENERS};

use crate::arena_alloc::Stretches;
use crate::event::{CmId, EventQueue, ListenerId};
use crate::params::{AcceptParams, ConnectParams, ListenParams, Request};
use crate::{CtlError, Mr};

/// Largest depth of a send, receive or completion queue.
const MAX_DEPTH: u32 = 1 << 16;

/// How long [`Device::listen`] waits for the worker in a [`Node`](crate::Node).
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Regions of one RNIC: the arena they lie in, and the table of their STags.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) mrs: Arc<MrTable>,
    arena: Arena,
    /// Tagged offset of the arena's first byte. Not its address: peers need not learn where this
    /// process keeps its memory.
    to: u64,
    stretches: Mutex<Stretches>,
    /// Stretches that a worker may still be writing.
    limbo: Mutex<Vec<(usize, usize)>>,
    has_limbo: AtomicBool,
}

impl Registry {
    pub(crate) fn new(mrs: Arc<MrTable>, arena: Arena, to: u64) -> Registry {
        let stretches = Mutex::new(Stretches::new(arena.len()));
        let limbo = Mutex::new(Vec::new());
        Registry { mrs, arena, to, stretches, limbo, has_limbo: AtomicBool::new(false) }
    }

    pub(crate) fn deregister(&self, stag: Stag, at: usize, len: usize) {
        // The table may have been told already, by a Send with Invalidate.
        let _ = self.mrs.deregister(stag);
        lock(&self.limbo).push((at, len));
        self.has_limbo.store(true, Ordering::Release);
    }

    /// Stretches that may be reused once every worker has passed a quiescent point.
    pub(crate) fn take_limbo(&self) -> Vec<(usize, usize)> {
        if !self.has_limbo.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        core::mem::take(&mut *lock(&self.limbo))
    }

    pub(crate) fn free(&self, stretches: &[(usize, usize)]) {
        let mut s = lock(&self.stretches);
        for &(at, len) in stretches {
            s.give(at, len);
        }
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One RNIC as an application sees it; clones are handles of the same one. Any thread may use it.
#[derive(Clone, Debug)]
pub struct Device(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    registry: Arc<Registry>,
    requests: Sender<Request>,
    /// In an [`Endpoint`](crate::Endpoint) nobody answers while the caller waits.
    inline: AtomicBool,
    next_pd: AtomicU32,
    next_qpn: AtomicU32,
    next_id: AtomicU64,
    /// Our addresses, and where there are listeners. The worker goes by the same rules, but in an
    /// endpoint it is asked only after `listen` has returned.
    addrs: Vec<IpAddr>,
    listening: Mutex<Vec<(ListenerId, SocketAddr)>>,
}

impl Device {
    pub(crate) fn new(
        registry: Arc<Registry>,
        requests: Sender<Request>,
        addrs: Vec<IpAddr>,
    ) -> Device {
        Device(Arc::new(Shared {
            addrs,
            listening: Mutex::new(Vec::new()),
            registry,
            requests,
            inline: AtomicBool::new(true),
            next_pd: AtomicU32::new(1),
            next_qpn: AtomicU32::new(1),
            next_id: AtomicU64::new(1),
        }))
    }

    /// From here on a thread of its own runs the control plane.
    pub(crate) fn set_threaded(&self) {
        self.0.inline.store(false, Ordering::Relaxed);
    }

    /// A new protection domain.
    pub fn alloc_pd(&self) -> Pd {
        Pd(self.0.next_pd.fetch_add(1, Ordering::Relaxed))
    }

    /// A completion queue; `waker` is woken when a completion arrives.
    pub fn create_cq(&self, depth: u32, waker: Option<Waker>) -> Result<Cq, CtlError> {
        check_depth(depth)?;
        Ok(Cq::new(depth as usize, waker))
    }

    /// A queue pair that is not connected yet. Receives may be posted at once.
    pub fn create_qp(&self, pd: Pd, init: QpInit) -> Result<Qp, CtlError> {
        check_depth(init.sq_depth)?;
        check_depth(init.rq_depth)?;
        Ok(Qp::new(Qpn(self.0.next_qpn.fetch_add(1, Ordering::Relaxed)), pd, init))
    }

    /// Registers `len` zeroed bytes of the RNIC's memory.
    pub fn alloc_mr(&self, pd: Pd, len: usize, access: Access) -> Result<Mr, CtlError> {
        let mut r = self.reserve(len)?;
        r.clear(len);
        self.register(r, pd, access)
    }

    /// Sets `len` bytes of the RNIC's memory aside. They are cleared piece by piece and then
    /// registered, by a program that has something else to do in between.
    ///
    /// # Errors
    /// [`CtlError::NoMemory`].
    pub fn reserve(&self, len: usize) -> Result<Reservation, CtlError> {
        let registry = self.0.registry.clone();
        let mut s = lock(&registry.stretches);
        let at = s.take(len).ok_or_else(|| CtlError::NoMemory {
            wanted: len,
            free: s.largest(),
            size: s.size(),
        })?;
        drop(s);
        Ok(Reservation { registry, at, len, cleared: 0, registered: false })
    }

    /// Registers what was set aside; what is not clear yet is cleared first.
    ///
    /// # Errors
    /// [`CtlError::Mr`] when the table of STags refuses; the memory is free again then.
    pub fn register(&self, mut r: Reservation, pd: Pd, access: Access) -> Result<Mr, CtlError> {
        r.clear(r.len);
        let registry = r.registry.clone();
        let to = registry.to + r.at as u64;
        let mr = registry.mrs.register(pd, r.at as u64, to, r.len as u64, access)?;
        r.registered = true;
        let arena = registry.arena.clone();
        Ok(Mr { stag: mr.stag, to, len: r.len, at: r.at, arena, registry })
    }

    /// Listens for connections; their requests come through `events`.
    ///
    /// With a [`Node`](crate::Node) the listener is there when this returns, with an
    /// [`Endpoint`](crate::Endpoint) after its next poll.
    ///
    /// # Errors
    /// [`CtlError::Listen`] when the address is not ours or is taken.
    pub fn listen(
        &self,
        addr: SocketAddr,
        params: ListenParams,
        events: &EventQueue,
    ) -> Result<ListenerId, CtlError> {
        let id = ListenerId(self.0.next_id.fetch_add(1, Ordering::Relaxed));
        let (done, answer) = crossbeam_channel::bounded(1);
        {
            // Held until the request is in its ring: requests about one port keep their order.
            let mut listening = lock(&self.0.listening);
            self.check_listen(&listening, addr).map_err(|e| CtlError::Listen(addr, e))?;
            self.request(Request::Listen { id, addr, params, events: events.clone(), done })?;
            listening.push((id, addr));
        }
        if !self.0.inline.load(Ordering::Relaxed) {
            let answer = answer.recv_timeout(LISTEN_TIMEOUT).map_err(|_| CtlError::Gone);
            if let Err(e) | Ok(Err(e)) = answer {
                lock(&self.0.listening).retain(|l| l.0 != id);
                return Err(e);
            }
        }
        Ok(id)
    }

    /// The worker's rules, [`Stack::listen`](heddle_tcp::Stack::listen).
    fn check_listen(
        &self,
        listening: &[(ListenerId, SocketAddr)],
        addr: SocketAddr,
    ) -> Result<(), ListenError> {
        let any = addr.ip().is_unspecified();
        if !any && !self.0.addrs.contains(&addr.ip()) {
            return Err(ListenError::NotOurs);
        }
        if addr.port() == 0 {
            return Err(ListenError::PortZero);
        }
        if listening.len() >= MAX_LISTENERS {
            return Err(ListenError::Full);
        }
        let taken = listening.iter().any(|(_, l)| {
            l.port() == addr.port() && (l.ip() == addr.ip() || any && l.ip().is_unspecified())
        });
        if taken { Err(ListenError::InUse) } else { Ok(()) }
    }

    /// Stops listening; connections go on.
    pub fn unlisten(&self, id: ListenerId) -> Result<(), CtlError> {
        let mut listening = lock(&self.0.listening);
        self.request(Request::Unlisten { id })?;
        listening.retain(|l| l.0 != id);
        Ok(())
    }

    /// Connects to a peer; the outcome comes through `events`.
    pub fn connect(
        &self,
        remote: SocketAddr,
        params: ConnectParams,
        events: &EventQueue,
    ) -> Result<CmId, CtlError> {
        let id = CmId(self.0.next_id.fetch_add(1, Ordering::Relaxed));
        self.request(Request::Connect { id, remote, params, events: events.clone() })?;
        Ok(id)
    }

    /// Accepts a connection request.
    pub fn accept(&self, id: CmId, params: AcceptParams) -> Result<(), CtlError> {
        self.request(Request::Accept { id, params })
    }

    /// Rejects a connection request, with at most 508 octets for the peer's application.
    pub fn reject(&self, id: CmId, private_data: Vec<u8>) -> Result<(), CtlError> {
        self.request(Request::Reject { id, private_data })
    }

    /// Ends a connection in order; [`CmEvent::Disconnected`](crate::CmEvent::Disconnected) follows.
    /// One that is not established yet is given up at once, and
    /// [`CmEvent::ConnectError`](crate::CmEvent::ConnectError) follows.
    pub fn disconnect(&self, id: CmId) -> Result<(), CtlError> {
        self.request(Request::Disconnect { id })
    }

    fn request(&self, request: Request) -> Result<(), CtlError> {
        self.0.requests.try_send(request).map_err(|e| match e {
            TrySendError::Full(_) => CtlError::Overloaded,
            TrySendError::Disconnected(_) => CtlError::Gone,
        })
    }
}

/// Memory that is nobody's region yet; free again when dropped.
#[derive(Debug)]
pub struct Reservation {
    registry: Arc<Registry>,
    at: usize,
    len: usize,
    cleared: usize,
    registered: bool,
}

impl Reservation {
    /// Clears up to `most` bytes more; true when all are clear.
    pub fn clear(&mut self, most: usize) -> bool {
        let n = most.min(self.len - self.cleared);
        zero(&self.registry.arena, self.at + self.cleared, n);
        self.cleared += n;
        self.cleared == self.len
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.registered {
            lock(&self.registry.stretches).give(self.at, self.len);
        }
    }
}

/// What was there before is nobody's business.
fn zero(arena: &Arena, mut at: usize, len: usize) {
    const ZEROS: [u8; 4096] = [0; 4096];
    let end = at + len;
    while at < end {
        let n = ZEROS.len().min(end - at);
        if arena.place(at, &ZEROS[..n]).is_err() {
            return;
        }
        at += n;
    }
}

fn check_depth(depth: u32) -> Result<(), CtlError> {
    if (1..=MAX_DEPTH).contains(&depth) { Ok(()) } else { Err(CtlError::Depth(depth, MAX_DEPTH)) }
}
