//! Send, receive and completion queues as application and worker share them.
//!
//! ```text
//!   application ── Qp::post_send ──▶ [SQ ring] ─┐ doorbell   worker: takes new work requests only
//!               ── Qp::post_recv ──▶ [RQ ring] ─┘ ─────────▶ while it can deliver completions
//!               ◀──────── Cq::poll ── [CQ ring] ◀─────────── worker
//! ```
//!
//! Every ring is bounded. A work request counts as outstanding from its posting until its
//! completion is in the CQ ring; posting beyond the depth of the queue is refused. When the
//! application does not empty a CQ, the worker keeps what does not fit and takes no further work
//! requests of those queue pairs: nothing is lost, and nothing grows.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crossbeam_queue::ArrayQueue;
use heddle_iwarp::{Cqe, CqeOp, CqeStatus, Pd, PostError, Qpn, Queue, RecvWr, SendOp, SendWr};

use crate::waker::Waker;

/// A completion queue; clones are handles of the same queue.
#[derive(Clone, Debug)]
pub struct Cq(Arc<CqShared>);

#[derive(Debug)]
struct CqShared {
    ring: ArrayQueue<Cqe>,
    /// Flushed completions of queue pairs that never ran; bounded by their depths.
    flushed: Mutex<VecDeque<Cqe>>,
    has_flushed: AtomicBool,
    waker: Option<Waker>,
}

impl Cq {
    /// A queue for `depth` completions (at least 1); `waker` is woken when one arrives.
    pub fn new(depth: usize, waker: Option<Waker>) -> Cq {
        Cq(Arc::new(CqShared {
            ring: ArrayQueue::new(depth.max(1)),
            flushed: Mutex::new(VecDeque::new()),
            has_flushed: AtomicBool::new(false),
            waker,
        }))
    }

    /// The oldest completion.
    #[inline]
    pub fn poll(&self) -> Option<Cqe> {
        if let Some(cqe) = pop(&self.0.ring) {
            return Some(cqe);
        }
        if self.0.has_flushed.load(Ordering::Acquire) { self.poll_flushed() } else { None }
    }

    fn poll_flushed(&self) -> Option<Cqe> {
        let mut flushed = self.0.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        let cqe = flushed.pop_front();
        self.0.has_flushed.store(!flushed.is_empty(), Ordering::Release);
        cqe
    }

    /// Whether there is nothing to poll at this moment.
    pub fn is_empty(&self) -> bool {
        self.0.ring.is_empty() && !self.0.has_flushed.load(Ordering::Acquire)
    }

    fn push(&self, cqe: Cqe) -> Result<(), Cqe> {
        self.0.ring.push(cqe)
    }

    fn push_flushed(&self, cqe: Cqe) {
        let mut flushed = self.0.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        flushed.push_back(cqe);
        self.0.has_flushed.store(true, Ordering::Release);
    }

    fn wake(&self) {
        if let Some(w) = &self.0.waker {
            w.wake();
        }
    }
}

/// What a queue pair is made with.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Where completions of the send queue go.
    pub send_cq: Cq,
    /// Where completions of the receive queue go.
    pub recv_cq: Cq,
    /// Work requests the send queue holds.
    pub sq_depth: u32,
    /// Work requests the receive queue holds.
    pub rq_depth: u32,
}

/// The application's handle of a queue pair; clones are handles of the same one.
///
/// Work requests may be posted from the moment it exists. Receives posted before the connection is
/// established are there when its first message arrives.
#[derive(Clone, Debug)]
pub struct Qp(Arc<QpShared>);

#[derive(Debug)]
struct QpShared {
    qpn: Qpn,
    pd: Pd,
    init: QpInit,
    sq: ArrayQueue<SendWr>,
    rq: ArrayQueue<RecvWr>,
    sq_outstanding: AtomicU32,
    rq_outstanding: AtomicU32,
    /// The doorbell has been rung and not been answered.
    rung: AtomicBool,
    /// Set once the queue pair cannot run any more: posts are flushed at once.
    dead: AtomicBool,
    /// Where to ring, once a worker runs the queue pair.
    bell: OnceLock<(Arc<Doorbells>, u32)>,
}

/// Queue pairs of one worker that have new work requests.
#[derive(Debug)]
pub(crate) struct Doorbells(ArrayQueue<u32>);

impl Doorbells {
    /// Room for `slots` queue pairs, each of which is in it at most once.
    pub(crate) fn new(slots: usize) -> Arc<Doorbells> {
        Arc::new(Doorbells(ArrayQueue::new(slots.max(1))))
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<u32> {
        pop(&self.0)
    }
}

impl Qp {
    /// A queue pair that no worker runs yet.
    pub fn new(qpn: Qpn, pd: Pd, init: QpInit) -> Qp {
        Qp(Arc::new(QpShared {
            qpn,
            pd,
            sq: ArrayQueue::new((init.sq_depth.max(1)) as usize),
            rq: ArrayQueue::new((init.rq_depth.max(1)) as usize),
            init,
            sq_outstanding: AtomicU32::new(0),
            rq_outstanding: AtomicU32::new(0),
            rung: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            bell: OnceLock::new(),
        }))
    }

    /// Its number, as completions carry it.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    /// The protection domain whose regions it reaches.
    pub fn pd(&self) -> Pd {
        self.0.pd
    }

    /// Depths and completion queues it was made with.
    pub fn init(&self) -> &QpInit {
        &self.0.init
    }

    /// Posts a work request to the send queue. Any thread.
    #[inline]
    pub fn post_send(&self, wr: &SendWr) -> Result<(), PostError> {
        let s = &*self.0;
        take_credit(&s.sq_outstanding, s.init.sq_depth)?;
        s.sq.push(*wr).map_err(|_| PostError::Full)?;
        self.ring();
        Ok(())
    }

    /// Posts a receive buffer. Any thread.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr) -> Result<(), PostError> {
        let s = &*self.0;
        take_credit(&s.rq_outstanding, s.init.rq_depth)?;
        s.rq.push(*wr).map_err(|_| PostError::Full)?;
        self.ring();
        Ok(())
    }

    #[inline]
    fn ring(&self) {
        let s = &*self.0;
        // Pairs with the fence in `attach` and `take_ring`: either the worker sees the work
        // request, or we see that it has to be told.
        fence(Ordering::SeqCst);
        if s.dead.load(Ordering::Relaxed) {
            return self.flush_rings();
        }
        let Some((bells, slot)) = s.bell.get() else { return };
        if !s.rung.load(Ordering::Relaxed) && !s.rung.swap(true, Ordering::AcqRel) {
            // Cannot be full: it has room for every slot, and each is in it once.
            let _ = bells.0.push(*slot);
        }
    }

    /// Makes a worker run the queue pair in `slot`; false when one does already.
    pub(crate) fn attach(&self, bells: &Arc<Doorbells>, slot: u32) -> bool {
        let fresh = self.0.bell.set((bells.clone(), slot)).is_ok();
        fence(Ordering::SeqCst);
        fresh
    }

    /// Answers the doorbell: what is posted from here on rings again.
    #[inline]
    pub(crate) fn answer(&self) {
        self.0.rung.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn pop_send(&self) -> Option<SendWr> {
        pop(&self.0.sq)
    }

    #[inline]
    pub(crate) fn pop_recv(&self) -> Option<RecvWr> {
        pop(&self.0.rq)
    }

    /// Gives a completion to the application; hands it back when its CQ is full.
    #[inline]
    pub(crate) fn complete(&self, cqe: Cqe) -> Result<(), Cqe> {
        let (cq, outstanding) = self.queue_of(&cqe);
        let retired = cqe.retired;
        cq.push(cqe)?;
        outstanding.fetch_sub(retired, Ordering::Release);
        cq.wake();
        Ok(())
    }

    /// Ends a queue pair that runs nowhere (any more): everything posted, now or later, completes
    /// as flushed.
    pub fn kill(&self) {
        self.0.dead.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.flush_rings();
    }

    /// Gives a completion to the application whether its CQ has room or not; for the end of a
    /// queue pair, which has only so many.
    pub(crate) fn complete_late(&self, cqe: Cqe) {
        let s = &*self.0;
        let (cq, outstanding) = self.queue_of(&cqe);
        let retired = cqe.retired;
        cq.push_flushed(cqe);
        debug_assert!(outstanding.load(Ordering::Relaxed) >= retired, "{:?}", s.qpn);
        outstanding.fetch_sub(retired, Ordering::Release);
        cq.wake();
    }

    #[inline]
    fn queue_of(&self, cqe: &Cqe) -> (&Cq, &AtomicU32) {
        let s = &*self.0;
        match cqe.queue {
            Queue::Sq => (&s.init.send_cq, &s.sq_outstanding),
            Queue::Rq => (&s.init.recv_cq, &s.rq_outstanding),
        }
    }

    fn flush_rings(&self) {
        let s = &*self.0;
        while let Some(wr) = s.sq.pop() {
            s.init.send_cq.push_flushed(flushed_send(s.qpn, &wr));
            s.sq_outstanding.fetch_sub(1, Ordering::Release);
        }
        while let Some(wr) = s.rq.pop() {
            s.init.recv_cq.push_flushed(flushed_recv(s.qpn, &wr));
            s.rq_outstanding.fetch_sub(1, Ordering::Release);
        }
        s.init.send_cq.wake();
        s.init.recv_cq.wake();
    }
}

/// Takes the first of a ring, which is mostly empty: seeing that with plain loads is cheaper than
/// `pop`, which puts a fence before the same answer.
#[inline]
fn pop<T>(ring: &ArrayQueue<T>) -> Option<T> {
    if ring.is_empty() { None } else { ring.pop() }
}

/// The completion of a send work request that was never begun.
pub(crate) fn flushed_send(qpn: Qpn, wr: &SendWr) -> Cqe {
    let op = match wr.op {
        SendOp::Send { .. } => CqeOp::Send,
        SendOp::Write { .. } => CqeOp::Write,
        SendOp::Read { .. } => CqeOp::Read,
    };
    flushed(qpn, Queue::Sq, op, wr.wr_id)
}

/// The completion of a receive work request that was never used.
pub(crate) fn flushed_recv(qpn: Qpn, wr: &RecvWr) -> Cqe {
    flushed(qpn, Queue::Rq, CqeOp::Recv, wr.wr_id)
}

fn flushed(qpn: Qpn, queue: Queue, op: CqeOp, wr_id: u64) -> Cqe {
    Cqe {
        wr_id,
        qpn,
        queue,
        op,
        status: CqeStatus::Flushed,
        solicited: false,
        len: 0,
        retired: 1,
        invalidated: None,
    }
}

#[inline]
fn take_credit(outstanding: &AtomicU32, depth: u32) -> Result<(), PostError> {
    let mut seen = outstanding.load(Ordering::Acquire);
    loop {
        if seen >= depth {
            return Err(PostError::Full);
        }
        match outstanding.compare_exchange_weak(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => return Ok(()),
            Err(now) => seen = now,
        }
    }
}
