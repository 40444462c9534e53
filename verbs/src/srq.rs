//! Shared receive queues, both ends.
//!
//! ```text
//!   application ── post ──▶ [ SRQ ] ──▶ whichever queue pair gets the next message, of any worker
//! ```
//!
//! Queue pairs that have one take a buffer when the first segment of a message is there for it, so
//! buffers go to messages in the order of their arrival, and a queue pair has one buffer at most that
//! is not complete: a peer that stops in the middle of a message holds that one and no other. It
//! completes in the receive completion queue of the queue pair that took it, under its number; when the
//! connection ends in the middle it completes as flushed. Buffers that nobody has taken stay.
//!
//! # Several workers
//!
//! The ring has one producer (the application, under a lock) and as many consumers as there are
//! workers. The head is the workers' own, in memory that the application does not have. A worker copies
//! the entry at the head out, checks it, and then moves the head by compare-and-swap: if that succeeds
//! nobody else has the entry, and the copy was made before its place was free again. One that is
//! interrupted anywhere holds nobody up. Places are of one size, so the head counts requests.
//!
//! # A ring that makes no sense
//!
//! It ends the queue pairs that come for a buffer, which are all of the same application.

use heddle_base::sync::atomic::{AtomicU64, Ordering, fence};
use heddle_base::sync::{Mutex, MutexGuard};
use std::sync::{Arc, PoisonError, Weak};

use arrayvec::ArrayVec;
use heddle_iwarp::qp::{Limits, MAX_SGES, check_recv};
use heddle_iwarp::{Data, Pd, PostError, RecvWr, Sge, SharedBroken, SharedReceives};

use crate::error::{BatchError, DeviceError};
use crate::limits::count::{Count, Place};
use crate::memory::Quota;
use crate::qp::Owner;
use crate::ring::layout::{self, LINE, opcode, srq as at};
use crate::ring::{Area, AreaError, Block, BlockRing, Broken, encode_recv, read_recv, store};
use crate::waker::Waker;

/// The application's handle of a shared receive queue; clones are handles of the same one. Any thread
/// may post.
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
    /// Whoever made it is another process.
    attached: bool,
    /// Its place, and its protection domain.
    _held: Option<(Place, Arc<Quota>)>,
    /// Whoever made it for this process is told of its end.
    _owner: Option<Owner>,
}

/// The limit events of a queue. A thread that looks for them holds this part alone, so it is never the last to hold the
/// queue.
#[derive(Debug)]
pub(crate) struct LimitEvents {
    number: u32,
    pool: Arc<SrqPool>,
    /// How many were taken.
    told: AtomicU64,
}

impl LimitEvents {
    /// See [`Srq::number`].
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns true if there were any.
    fn take(&self) -> bool {
        let events = self.count();
        self.told.swap(events, Ordering::AcqRel) != events
    }

    /// The same, of each event once: true as often as there were.
    pub(crate) fn take_one(&self) -> bool {
        let events = self.count();
        let one_more = |told: u64| (told != events).then(|| told.wrapping_add(1));
        self.told.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).is_ok()
    }

    fn count(&self) -> u64 {
        header(&self.pool.block)[at::EVENTS].load(Ordering::Acquire)
    }
}

/// The workers' end, which all of them share.
#[derive(Debug)]
pub struct SrqPool {
    block: Arc<Block>,
    places: Places,
    /// Requests taken.
    head: AtomicU64,
    waker: Option<Waker>,
}

/// How many places the ring has, and how many blocks each; powers of two.
#[derive(Clone, Copy, Debug)]
struct Places {
    count: u64,
    blocks: u64,
}

impl Places {
    fn new(depth: u32, max_sge: u16) -> Places {
        let blocks = layout::blocks(opcode::RECV, 2 * usize::from(max_sge)) as u64;
        Places {
            count: u64::from(depth.max(1)).next_power_of_two(),
            blocks: blocks.next_power_of_two(),
        }
    }

    fn words(self) -> usize {
        let blocks = usize::try_from(self.count.saturating_mul(self.blocks));
        blocks.unwrap_or(usize::MAX / LINE / 2).saturating_mul(LINE).saturating_add(at::ENTRIES)
    }

    #[inline]
    fn ring(self, block: &Block) -> BlockRing<'_> {
        BlockRing::new(block.lines(), (at::ENTRIES / LINE) as u64, self.count * self.blocks)
    }
}

type Header = [AtomicU64; at::ENTRIES];

#[inline]
fn header(block: &Block) -> &Header {
    &block.words().as_chunks().0[0]
}

impl Srq {
    pub(crate) fn new(
        area: &Arc<Area>,
        number: u32,
        pd: Pd,
        (depth, max_sge): (u32, u16),
        waker: Option<Waker>,
        held: (Place, Arc<Quota>),
    ) -> Result<Srq, AreaError> {
        let places = Places::new(depth, max_sge);
        let block = area.take_clearing(places.words(), at::ENTRIES)?;
        let set = |i: usize, v: u64| header(&block)[i].store(v, Ordering::Relaxed);
        set(at::NUMBER, number.into());
        set(at::PD, pd.0.into());
        set(at::DEPTH, depth.into());
        set(at::MAX_SGE, max_sge.into());
        Ok(Srq::over(block, (pd, depth, max_sge), waker, Some(held), None))
    }

    fn over(
        block: Block,
        (pd, depth, max_sge): (Pd, u32, u16),
        waker: Option<Waker>,
        held: Option<(Place, Arc<Quota>)>,
        owner: Option<Owner>,
    ) -> Srq {
        let tail = Mutex::new(header(&block)[at::TAIL].load(Ordering::Relaxed));
        let number = header(&block)[at::NUMBER].load(Ordering::Relaxed);
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let places = Places::new(depth, max_sge);
        let pool = SrqPool { block: Arc::new(block), places, head: AtomicU64::new(0), waker };
        let pool = Arc::new(pool);
        let limit = LimitEvents { number, pool: pool.clone(), told: AtomicU64::new(0) };
        Srq(Arc::new(Inner {
            limit: Arc::new(limit),
            pd,
            depth: depth.into(),
            max_sge,
            tail,
            pool,
            users: Count::default(),
            attached: held.is_none() && owner.is_none(),
            _held: held,
            _owner: owner,
        }))
    }

    /// Where it lies in its area: offset and words, for another process.
    pub fn share(&self) -> (usize, usize) {
        (self.0.pool.block.offset(), self.0.pool.block.words().len())
    }

    /// The queue at `(offset, words)` of an area that another process has made, to post to. There is
    /// one producer at a time: whoever made it must not post to it meanwhile.
    pub fn attach(area: &Arc<Area>, (off, words): (usize, usize)) -> Option<Srq> {
        let block = area.at(off, words)?;
        if words < at::ENTRIES {
            return None;
        }
        let get = |i: usize| header(&block)[i].load(Ordering::Relaxed);
        let (pd, depth) = (u32::try_from(get(at::PD)).ok()?, u32::try_from(get(at::DEPTH)).ok()?);
        let max_sge = u16::try_from(get(at::MAX_SGE)).ok()?;
        let fits = Places::new(depth, max_sge).words() <= words;
        fits.then(|| Srq::over(block, (Pd(pd), depth, max_sge), None, None, None))
    }

    /// The same, of a device whose RNIC is another process's: as good as one that was made here.
    pub(crate) fn remote(
        area: &Arc<Area>,
        (off, words): (usize, usize),
        (pd, depth, max_sge): (Pd, u32, u16),
        waker: Option<Waker>,
        owner: Owner,
    ) -> Option<Srq> {
        let block = area.at(off, words)?;
        let fits = Places::new(depth, max_sge).words() <= words;
        fits.then(|| Srq::over(block, (pd, depth, max_sge), waker, None, Some(owner)))
    }

    /// Distinguishes the completion queues and shared receive queues of one application, of all times.
    pub fn number(&self) -> u32 {
        self.0.limit.number()
    }

    pub(crate) fn weak_limit(&self) -> Weak<LimitEvents> {
        Arc::downgrade(&self.0.limit)
    }

    /// The protection domain of its queue pairs and buffers.
    pub fn pd(&self) -> Pd {
        self.0.pd
    }

    /// Receives it holds.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.0.depth).unwrap_or(u32::MAX)
    }

    /// Receives that no queue pair has taken.
    pub fn len(&self) -> u64 {
        let words = header(&self.0.pool.block);
        let head = words[at::HEAD].load(Ordering::Acquire);
        self.tail().wrapping_sub(head)
    }

    /// Whether the next message would find no buffer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts a receive buffer.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.put(&mut self.tail(), wr)
    }

    /// Posts several.
    ///
    /// # Errors
    /// [`BatchError`]: those before the one that could not be posted are posted.
    pub fn post_recvs(&self, wrs: &[RecvWr<'_>]) -> Result<(), BatchError> {
        let mut tail = self.tail();
        let mut wrs = wrs.iter().enumerate();
        wrs.try_for_each(|(i, wr)| self.put(&mut tail, wr).map_err(BatchError::at(i)))
    }

    fn put(&self, tail: &mut u64, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let q = &*self.0;
        let limits = Limits { sges: usize::from(q.max_sge).min(MAX_SGES), ..Limits::default() };
        check_recv(wr, &limits)?;
        let (block, places) = (&q.pool.block, q.pool.places);
        // Acquire: workers have read the places before they gave them back.
        let head = header(block)[at::HEAD].load(Ordering::Acquire);
        if tail.wrapping_sub(head) >= q.depth {
            return Err(PostError::Full);
        }
        let first = tail.wrapping_mul(places.blocks);
        store(places.ring(block), (first, 0), encode_recv(wr), &Data::Sges(wr.sges));
        *tail = tail.wrapping_add(1);
        // Release: the blocks were stored before.
        header(block)[at::TAIL].store(*tail, Ordering::Release);
        Ok(())
    }

    /// Asks for one event when fewer than `limit` receives are left, at once if it is so already; 0
    /// asks for none. The waker that the queue was made with is woken.
    pub fn arm_limit(&self, limit: u32) {
        let pool = &self.0.pool;
        let words = header(&pool.block);
        words[at::LIMIT].store(limit.into(), Ordering::SeqCst);
        // Pairs with the one in `SrqPool::take`: either the worker sees the limit, or we its head.
        fence(Ordering::SeqCst);
        pool.check_limit(words[at::HEAD].load(Ordering::SeqCst));
    }

    /// Whether the limit it was armed for was reached since this was asked last.
    pub fn take_limit_event(&self) -> bool {
        self.0.limit.take()
    }

    /// Gives it up.
    ///
    /// # Errors
    /// [`DeviceError::SrqInUse`] and the handle, while queue pairs have it.
    pub fn destroy(self) -> Result<(), (Srq, DeviceError)> {
        match self.0.users.now() {
            0 => Ok(()),
            users => Err((self, DeviceError::SrqInUse { users })),
        }
    }

    /// Whether it was made here, in this area, for this protection domain.
    pub(crate) fn is_for(&self, area: &Arc<Area>, pd: Pd) -> bool {
        Arc::ptr_eq(self.0.pool.block.area(), area) && self.0.pd == pd && !self.0.attached
    }

    /// One more queue pair has it.
    pub(crate) fn join(&self) -> Result<Place, DeviceError> {
        self.0.users.take("queue pairs of a shared receive queue", u32::MAX)
    }

    pub(crate) fn pool(&self) -> Arc<SrqPool> {
        self.0.pool.clone()
    }

    fn tail(&self) -> MutexGuard<'_, u64> {
        self.0.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SrqPool {
    /// Takes the oldest receive: its mark, and its pieces into `sges`.
    ///
    /// # Errors
    /// [`Broken`]: the ring makes no sense.
    #[inline]
    pub fn take(&self, sges: &mut ArrayVec<Sge, MAX_SGES>) -> Result<Option<u64>, Broken> {
        let words = header(&self.block);
        loop {
            let head = self.head.load(Ordering::Acquire);
            // Acquire: the entries were stored before the tail.
            let there = words[at::TAIL].load(Ordering::Acquire).wrapping_sub(head);
            if there == 0 {
                return Ok(None);
            }
            let found = if there > self.places.count {
                Err(Broken::Tail)
            } else {
                let first = head.wrapping_mul(self.places.blocks);
                read_recv(self.places.ring(&self.block), first, self.places.blocks, sges)
            };
            // What was read is an entry, or an error, only while it is the oldest.
            let next = head.wrapping_add(1);
            let moved = match found {
                Ok(_) => self
                    .head
                    .compare_exchange(head, next, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok(),
                Err(_) => self.head.load(Ordering::Acquire) == head,
            };
            if !moved {
                continue;
            }
            let wr_id = found?;
            // Another may have taken and told more; it took this place's copy to come so far.
            words[at::HEAD].fetch_max(next, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.check_limit(next);
            return Ok(Some(wr_id));
        }
    }

    /// Raises the event if it is armed and fewer are left when `head` were taken.
    #[inline]
    fn check_limit(&self, head: u64) {
        let limit = header(&self.block)[at::LIMIT].load(Ordering::SeqCst);
        if limit != 0 {
            self.raise_below(limit, head);
        }
    }

    #[inline(never)]
    fn raise_below(&self, limit: u64, head: u64) {
        let words = header(&self.block);
        let left = words[at::TAIL].load(Ordering::Acquire).wrapping_sub(head);
        let once =
            || words[at::LIMIT].compare_exchange(limit, 0, Ordering::SeqCst, Ordering::Relaxed);
        if left < limit && once().is_ok() {
            words[at::EVENTS].fetch_add(1, Ordering::AcqRel);
            if let Some(w) = &self.waker {
                w.wake();
            }
        }
    }
}

/// What a queue pair of a worker has of a shared receive queue.
#[derive(Debug)]
pub(crate) struct Taker(pub(crate) Arc<SrqPool>);

impl SharedReceives for Taker {
    #[inline]
    fn take(&mut self, sges: &mut ArrayVec<Sge, MAX_SGES>) -> Result<Option<u64>, SharedBroken> {
        self.0.take(sges).map_err(|_| SharedBroken)
    }
}

#[cfg(test)]
mod tests;
