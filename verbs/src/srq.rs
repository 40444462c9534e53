//! Shared receive queues, both ends.
//!
//! ```text
//!   application ── post ──▶ [ SRQ ] ──▶ whichever queue pair gets the next message, of any worker
//! ```
//!
//! Queue pairs that share such a queue take a buffer when the first segment of a message needs one.
//! So buffers go to messages in the order of their arrival, and a queue pair has at most one buffer
//! that is not complete: a peer that stops in the middle of a message holds that buffer and no
//! other. A buffer completes in the receive completion queue of the queue pair that took it, under
//! the number of that queue pair; when the connection ends in the middle of the message, the buffer
//! completes as flushed. Buffers that no queue pair has taken stay.

use heddle_base::sync::atomic::{AtomicU64, Ordering, fence};
use heddle_base::sync::{Mutex, MutexGuard};
use std::sync::{Arc, PoisonError, Weak};

use heddle_rings::layout::srq as at;
use heddle_rings::srq::{Places, SrqPool, header};
use heddle_rings::{Area, AreaError, Block};
use heddle_shm::Waker;
use heddle_types::{Limits, Pd, PostError, RecvWr, check_recv, wr::MAX_SGES};

use crate::error::{BatchError, DeviceError};
use crate::limits::count::{Count, Place};
use crate::qp::Owner;

/// The application's handle of a shared receive queue; clones are handles of the same queue. Any
/// thread may post.
#[derive(Clone, Debug)]
pub struct Srq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: Arc<LimitEvents>,
    pd: Pd,
    depth: u64,
    max_sge: u16,
    /// Requests published.
    tail: Mutex<u64>,
    pool: Arc<SrqPool>,
    users: Count,
    /// True if another process made the queue.
    attached: bool,
    /// The queue's place among those of its application.
    _place: Option<Place>,
    /// Reports the end of the queue to its maker.
    _owner: Option<Owner>,
}

/// The limit events of a queue. A thread that looks for events holds this part alone, so it never
/// holds the last handle of the queue.
#[derive(Debug)]
pub(crate) struct LimitEvents {
    number: u32,
    pool: Arc<SrqPool>,
    /// Number of events taken.
    told: AtomicU64,
}

impl LimitEvents {
    /// See [`Srq::number`].
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Takes all events. Returns true if there were any.
    fn take(&self) -> bool {
        let events = self.count();
        self.told.swap(events, Ordering::AcqRel) != events
    }

    /// Takes a single event. Returns true if there was one.
    pub(crate) fn take_one(&self) -> bool {
        let events = self.count();
        let one_more = |told: u64| (told != events).then(|| told.wrapping_add(1));
        self.told.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).is_ok()
    }

    fn count(&self) -> u64 {
        header(self.pool.block())[at::EVENTS].load(Ordering::Acquire)
    }
}

impl Srq {
    /// Makes a queue in an area of this process; `owner` learns of its end.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn new(
        area: &Arc<Area>,
        number: u32,
        pd: Pd,
        (depth, max_sge): (u32, u16),
        waker: Option<Waker>,
        (place, owner): (Place, Owner),
    ) -> Result<Srq, AreaError> {
        let places = Places::new(depth, max_sge);
        let block = area.take_clearing(places.words(), at::ENTRIES)?;
        let set = |i: usize, v: u64| header(&block)[i].store(v, Ordering::Relaxed);
        set(at::NUMBER, number.into());
        set(at::PD, pd.0.into());
        set(at::DEPTH, depth.into());
        set(at::MAX_SGE, max_sge.into());
        Ok(Srq::over(block, (pd, depth, max_sge), waker, (Some(place), Some(owner))))
    }

    fn over(
        block: Block,
        (pd, depth, max_sge): (Pd, u32, u16),
        waker: Option<Waker>,
        (place, owner): (Option<Place>, Option<Owner>),
    ) -> Srq {
        let tail = Mutex::new(header(&block)[at::TAIL].load(Ordering::Relaxed));
        let number = header(&block)[at::NUMBER].load(Ordering::Relaxed);
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let places = Places::new(depth, max_sge);
        let pool = Arc::new(SrqPool::new(Arc::new(block), places, waker));
        let limit = LimitEvents { number, pool: pool.clone(), told: AtomicU64::new(0) };
        Srq(Arc::new(Inner {
            limit: Arc::new(limit),
            pd,
            depth: depth.into(),
            max_sge,
            tail,
            pool,
            users: Count::default(),
            attached: owner.is_none(),
            _place: place,
            _owner: owner,
        }))
    }

    /// Returns the queue's place in its area, as offset and words, for another process.
    pub fn share(&self) -> (usize, usize) {
        (self.0.pool.block().offset(), self.0.pool.block().words().len())
    }

    /// Returns the queue at `(offset, words)` of an area that another process has made, to post to.
    /// A queue has one producer at a time: the process that made the queue must not post to it
    /// meanwhile.
    pub fn attach(area: &Arc<Area>, (off, words): (usize, usize)) -> Option<Srq> {
        let block = area.at(off, words)?;
        if words < at::ENTRIES {
            return None;
        }
        let get = |i: usize| header(&block)[i].load(Ordering::Relaxed);
        let (pd, depth) = (u32::try_from(get(at::PD)).ok()?, u32::try_from(get(at::DEPTH)).ok()?);
        let max_sge = u16::try_from(get(at::MAX_SGE)).ok()?;
        let fits = Places::new(depth, max_sge).words() <= words;
        fits.then(|| Srq::over(block, (Pd(pd), depth, max_sge), None, (None, None)))
    }

    /// Does the same for a device whose RNIC belongs to another process. The handle does not count
    /// as attached: it serves as if the queue were made here.
    pub(crate) fn remote(
        area: &Arc<Area>,
        (off, words): (usize, usize),
        (pd, depth, max_sge): (Pd, u32, u16),
        waker: Option<Waker>,
        owner: Owner,
    ) -> Option<Srq> {
        let block = area.at(off, words)?;
        let fits = Places::new(depth, max_sge).words() <= words;
        fits.then(|| Srq::over(block, (pd, depth, max_sge), waker, (None, Some(owner))))
    }

    /// Returns a number that distinguishes the queue from all completion queues and shared receive
    /// queues that its application ever had.
    pub fn number(&self) -> u32 {
        self.0.limit.number()
    }

    pub(crate) fn weak_limit(&self) -> Weak<LimitEvents> {
        Arc::downgrade(&self.0.limit)
    }

    /// Returns the protection domain of the queue's queue pairs and buffers.
    pub fn pd(&self) -> Pd {
        self.0.pd
    }

    /// Returns the number of receives that the queue holds.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.0.depth).unwrap_or(u32::MAX)
    }

    /// Returns the number of receives that no queue pair has taken.
    pub fn len(&self) -> u64 {
        let words = header(self.0.pool.block());
        let head = words[at::HEAD].load(Ordering::Acquire);
        self.tail().wrapping_sub(head)
    }

    /// Returns true if the next message would find no buffer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts a receive buffer.
    ///
    /// # Errors
    /// [`PostError`]; the buffer was not posted then.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.put(&mut self.tail(), wr)
    }

    /// Posts several receive buffers.
    ///
    /// # Errors
    /// [`BatchError`]: the buffers before the failed one are posted.
    pub fn post_recvs(&self, wrs: &[RecvWr<'_>]) -> Result<(), BatchError> {
        let mut tail = self.tail();
        let mut wrs = wrs.iter().enumerate();
        wrs.try_for_each(|(i, wr)| self.put(&mut tail, wr).map_err(BatchError::at(i)))
    }

    fn put(&self, tail: &mut u64, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let q = &*self.0;
        let limits = Limits { sges: usize::from(q.max_sge).min(MAX_SGES), ..Limits::default() };
        check_recv(wr, &limits)?;
        *tail = q.pool.post(*tail, q.depth, wr).ok_or(PostError::Full)?;
        Ok(())
    }

    /// Requests one event when fewer than `limit` receives are left, at once if so few are left
    /// already; 0 cancels the request. The event wakes the waker that the queue was made with.
    pub fn arm_limit(&self, limit: u32) {
        let pool = &self.0.pool;
        let words = header(pool.block());
        words[at::LIMIT].store(limit.into(), Ordering::SeqCst);
        // Pairs with the fence in `SrqPool::take`: either the worker sees the limit, or we see its
        // head.
        fence(Ordering::SeqCst);
        pool.check_limit(words[at::HEAD].load(Ordering::SeqCst));
    }

    /// Returns true if the limit that the queue was armed for was reached since the last call.
    pub fn take_limit_event(&self) -> bool {
        self.0.limit.take()
    }

    /// Destroys the queue.
    ///
    /// # Errors
    /// [`DeviceError::SrqInUse`] and the handle, while queue pairs use the queue.
    pub fn destroy(self) -> Result<(), (Srq, DeviceError)> {
        match self.0.users.now() {
            0 => Ok(()),
            users => Err((self, DeviceError::SrqInUse { users })),
        }
    }

    /// Returns true if the queue was made by this process, in this area and for this protection
    /// domain.
    pub(crate) fn is_for(&self, area: &Arc<Area>, pd: Pd) -> bool {
        Arc::ptr_eq(self.0.pool.block().area(), area) && self.0.pd == pd && !self.0.attached
    }

    /// Adds a queue pair that uses the queue.
    pub fn join(&self) -> Result<Place, DeviceError> {
        self.0.users.take("queue pairs of a shared receive queue", u32::MAX)
    }

    pub(crate) fn pool(&self) -> Arc<SrqPool> {
        self.0.pool.clone()
    }

    fn tail(&self) -> MutexGuard<'_, u64> {
        self.0.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
