//! Completion queues: the room for completions, and the worker's end.
//!
//! A completion queue has one ring for each worker, so each ring has one producer, no matter on
//! which workers the queue pairs run. The application takes from the rings in turn.

use heddle_base::sync::atomic::{Ordering, fence};
use heddle_shm::Waker;
use heddle_types::{Cqe, Queue};
use std::sync::Arc;

use crate::area::{Area, AreaError, Block};
use crate::cqe;
use crate::layout::{CQE, LINE, armed, cq as at};

/// Completions were lost, because the application did not take them in time. The queue pairs that
/// these completions belong to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue overflowed: completions were lost")]
pub struct CqOverflow;

/// The room in which the completions of a queue lie: as many for each worker.
#[derive(Clone, Debug)]
pub struct Entries {
    /// The block that the rings lie in, one after the other.
    pub block: Arc<Block>,
    /// Completions of one ring, a power of two.
    pub size: u64,
    /// Number of times that the queue has been resized.
    pub generation: u64,
}

impl Entries {
    /// Takes room for `depth` completions (rounded up to a power of two) of each ring.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn take(
        area: &Arc<Area>,
        depth: u32,
        rings: usize,
        generation: u64,
    ) -> Result<Self, AreaError> {
        let size = u64::from(depth.max(1)).next_power_of_two();
        let words = low_usize(size).saturating_mul(CQE).saturating_mul(rings);
        let block = Arc::new(area.take_clearing(words, 0)?);
        Ok(Entries { block, size, generation })
    }

    /// Returns the room that the words of a queue describe.
    pub fn attach(queue: &Block, rings: usize) -> Option<Entries> {
        let get = |i: usize| queue.words().get(i).map(|w| w.load(Ordering::Acquire));
        let (size, generation) = (get(at::SIZE)?, get(at::GENERATION)?);
        let words = usize::try_from(size).ok()?.checked_mul(CQE)?.checked_mul(rings)?;
        let block = queue.area().at(usize::try_from(get(at::PLACE)?).ok()?, words)?;
        size.is_power_of_two().then(|| Entries { block: Arc::new(block), size, generation })
    }

    /// Writes the room into the words of the queue, for processes that attach to it.
    pub fn write(&self, queue: &Block) {
        let words = queue.words();
        words[at::PLACE].store(self.block.offset() as u64, Ordering::Relaxed);
        words[at::SIZE].store(self.size, Ordering::Relaxed);
        words[at::GENERATION].store(self.generation, Ordering::Release);
    }

    /// Returns the completion of this ring with this running index.
    #[inline]
    pub fn slot(&self, ring: usize, index: u64) -> Option<&cqe::Slot> {
        let first = ring.wrapping_mul(low_usize(self.size));
        let at = first.wrapping_add(low_usize(index & (self.size - 1)));
        self.block.words().as_chunks().0.get(at)
    }
}

/// Returns the word of a ring that says how many requests of `queue` the staged completions retire.
#[inline]
pub const fn retired_word(queue: Queue) -> usize {
    match queue {
        Queue::Sq => at::SQ_RETIRED,
        Queue::Rq => at::RQ_RETIRED,
    }
}

/// Returns the first word of a ring's indices.
#[inline]
pub fn start_of(ring: usize) -> usize {
    at::FIRST.wrapping_add(ring.wrapping_mul(at::RING))
}

/// Converts an index: a ring is indexed modulo its length, which is far below 2^32.
#[expect(clippy::cast_possible_truncation)]
const fn low_usize(index: u64) -> usize {
    index as usize
}

/// Returns true if a ring's worker writes to the room of this generation, and the application has
/// read all completions that lie elsewhere.
pub fn has_moved(block: &Block, ring: usize, generation: u64) -> bool {
    let get = |i: usize| {
        let word = block.words().get(start_of(ring).wrapping_add(i));
        word.map_or(0, |w| w.load(Ordering::Acquire))
    };
    get(at::MOVED) == generation && !is_before(get(at::HEAD), get(at::MOVED_AT))
}

/// Returns true if a running index is before another.
#[inline]
pub const fn is_before(a: u64, b: u64) -> bool {
    a.wrapping_sub(b) > u64::MAX / 2
}

/// A completion queue, as a worker gets it.
#[derive(Clone, Debug)]
pub struct CqLink {
    number: u32,
    block: Arc<Block>,
    entries: Entries,
    waker: Option<Waker>,
}

impl CqLink {
    /// Returns the queue of an application with this number; `entries` is its room.
    pub fn new(number: u32, block: Arc<Block>, entries: Entries, waker: Option<Waker>) -> CqLink {
        CqLink { number, block, entries, waker }
    }

    /// Returns the queue's number among those of its application.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the producing end of `worker`; there must be only one at a time.
    pub fn producer(&self, worker: usize) -> CqProducer {
        let start = start_of(worker);
        let word = |i: usize| {
            let w = self.block.words().get(start + i);
            w.map_or(0, |w| w.load(Ordering::Relaxed))
        };
        // The worker wrote these words itself, if it had the queue before. If the application has
        // changed them, only the application reads nonsense.
        let mut producer = CqProducer {
            tail: word(at::TAIL),
            head: word(at::HEAD),
            floor: word(at::MOVED_AT),
            start,
            ring: worker,
            link: self.clone(),
            news: false,
            solicited: false,
        };
        if word(at::MOVED) != self.entries.generation {
            producer.move_in();
        }
        producer
    }
}

/// A worker's end of a completion queue.
#[derive(Debug)]
pub struct CqProducer {
    tail: u64,
    /// The head as this end last saw it.
    head: u64,
    /// Index of the worker's first completion in its present room: earlier completions lie
    /// elsewhere and take no room here.
    floor: u64,
    /// First word of the worker's indices.
    start: usize,
    ring: usize,
    /// True if the worker has written something since the last [`notify`](CqProducer::notify);
    /// `solicited` says whether any of that is solicited.
    news: bool,
    solicited: bool,
    link: CqLink,
}

impl CqProducer {
    /// Writes a completion and shows it to the application at once; call
    /// [`notify`](CqProducer::notify) once for all completions of a turn.
    ///
    /// # Errors
    /// [`CqOverflow`]: there is no room, and from now on the queue reports an overflow.
    pub fn push(&mut self, c: &Cqe) -> Result<(), CqOverflow> {
        self.put(c).inspect(|()| self.publish())
    }

    /// Writes completions of one queue of a queue pair where the application does not see them yet.
    /// Returns how many had no room. The caller then retires requests of that queue up to `retired`
    /// (a running number modulo 2^32), and [publishes](CqProducer::publish). If the caller's
    /// process is killed at any point in between, the application finds for each request either its
    /// completion or that the request is not retired, and never both.
    #[inline]
    pub fn stage<'c>(
        &mut self,
        queue: Queue,
        retired: u32,
        all: impl Iterator<Item = &'c Cqe>,
    ) -> u64 {
        let mut lost = 0;
        for c in all {
            lost += u64::from(self.put(c).is_err());
        }
        let words = self.link.block.words().get(self.start..).unwrap_or_default();
        if let Some(line) = words.first_chunk::<LINE>() {
            line[retired_word(queue)].store(retired.into(), Ordering::Relaxed);
            // Release: the completions, and the number that they retire, were stored before.
            line[at::STAGED].store(self.tail, Ordering::Release);
        }
        self.news = true;
        lost
    }

    /// Writes a completion where the application does not see it yet.
    #[inline(always)]
    fn put(&mut self, c: &Cqe) -> Result<(), CqOverflow> {
        if self.tail.wrapping_sub(self.head) >= self.link.entries.size {
            self.make_room()?;
        }
        if let Some(slot) = self.link.entries.slot(self.ring, self.tail) {
            cqe::store(slot, cqe::encode(c));
            self.tail = self.tail.wrapping_add(1);
        }
        self.solicited |= cqe::is_solicited(c);
        Ok(())
    }

    /// Shows the application the completions written so far.
    #[inline]
    pub fn publish(&mut self) {
        if let Some(tail) = self.link.block.words().get(self.start + at::TAIL) {
            // Release: the entries were stored before.
            tail.store(self.tail, Ordering::Release);
        }
        self.news = true;
    }

    /// Goes on in the room of `link`, if that room is newer.
    pub fn renew(&mut self, link: &CqLink) {
        if link.entries.generation > self.link.entries.generation {
            self.link = link.clone();
            self.move_in();
        }
    }

    /// Writes down from which index on completions lie in the new room.
    fn move_in(&mut self) {
        (self.floor, self.head) = (self.tail, self.tail);
        let words = self.link.block.words();
        if let (Some(at), Some(moved)) =
            (words.get(self.start + at::MOVED_AT), words.get(self.start + at::MOVED))
        {
            at.store(self.tail, Ordering::Relaxed);
            // Release: the index was stored before.
            moved.store(self.link.entries.generation, Ordering::Release);
        }
    }

    /// Returns true if the worker has written or lost a completion since the last
    /// [`notify`](CqProducer::notify).
    #[inline]
    pub fn has_news(&self) -> bool {
        self.news
    }

    /// Looks at how many completions the application has taken.
    #[cold]
    fn make_room(&mut self) -> Result<(), CqOverflow> {
        let words = self.link.block.words();
        // Acquire: the application has read the entry before it gave it back. A head that does not
        // lie between the tail and one ring before the tail is invalid, and leaves no room either.
        let head = words[self.start + at::HEAD].load(Ordering::Acquire);
        self.head = if is_before(head, self.floor) { self.floor } else { head };
        if self.tail.wrapping_sub(self.head) < self.link.entries.size {
            return Ok(());
        }
        words[at::OVERFLOWED].store(1, Ordering::Release);
        self.solicited = true;
        self.news = true;
        Err(CqOverflow)
    }

    /// Notes that due completions will not come, because no worker knows the requests any more: the
    /// queue reports the loss for good.
    #[cold]
    pub fn lose(&mut self) {
        self.link.block.words()[at::OVERFLOWED].store(1, Ordering::Release);
        (self.solicited, self.news) = (true, true);
    }

    /// Wakes the application if the queue is armed for a completion that was written.
    #[inline]
    pub fn notify(&mut self) {
        if !core::mem::take(&mut self.news) {
            return;
        }
        let solicited = core::mem::take(&mut self.solicited);
        let word = &self.link.block.words()[at::ARMED];
        // Pairs with the fence in `Cq::arm`: either this side sees the arm, or a poll after that
        // fence sees the completion.
        fence(Ordering::SeqCst);
        let wanted = |w: u64| w == armed::NEXT || w == armed::SOLICITED && solicited;
        let mut seen = word.load(Ordering::Relaxed);
        // Try twice: the application may widen its arm between the load and the exchange. An arm
        // that has fired instead stays fired.
        for _ in 0..2 {
            if !wanted(seen) {
                return;
            }
            match word.compare_exchange(seen, armed::NO, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    if let Some(w) = &self.link.waker {
                        w.wake();
                    }
                    return;
                }
                Err(now) => seen = now,
            }
        }
    }
}
