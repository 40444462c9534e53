//! Completion queues, both ends.
//!
//! A completion queue has one ring for each worker, so that each ring has one producer, whichever
//! workers its queue pairs run on. The application takes from them in turn.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_iwarp::Cqe;

use crate::limits::count::Place;
use crate::ring::cqe::{self, RawCqe};
use crate::ring::layout::{CQE, armed, cq as at};
use crate::ring::{Area, AreaError, Block};
use crate::waker::{Sleeper, Waker};

/// What a completion queue is armed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next completion.
    Next,
    /// The next that is solicited, or has failed.
    Solicited,
}

/// Completions were lost: the application did not take them in time. The queue pairs that had them
/// have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue overflowed: completions were lost")]
pub struct CqOverflow;

/// Why [`Cq::wait`] returned without a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// None came in time.
    #[error("no completion in time")]
    TimedOut,
    /// Completions were lost.
    #[error(transparent)]
    Overflow(#[from] CqOverflow),
}

/// The application's end of a completion queue; clones are handles of the same one. Any thread may
/// poll it.
#[derive(Clone, Debug)]
pub struct Cq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    block: Arc<Block>,
    /// Distinguishes the completion queues of one application.
    number: u32,
    rings: Rings,
    waker: Option<Waker>,
    ends: Box<[End]>,
    consumer: Mutex<Consumer>,
    /// Among those of its application; none where it is attached.
    _place: Option<Place>,
}

/// The application's side of one ring. Whoever has the lock writes it; who only wants to know whether
/// there is something needs no lock to read it.
#[derive(Debug)]
struct End {
    head: AtomicU64,
    /// The tail as it was last seen.
    tail: AtomicU64,
    /// First word of the ring.
    start: usize,
}

/// Who may take.
#[derive(Debug)]
struct Consumer {
    /// The ring to look at first.
    next: usize,
}

/// Where the rings of a queue lie among its words.
#[derive(Clone, Copy, Debug)]
struct Rings {
    /// Completions of one, a power of two.
    size: u64,
    /// Words of one.
    words: usize,
}

impl Rings {
    fn new(size: u64) -> Rings {
        let entries = usize::try_from(size).unwrap_or(usize::MAX).saturating_mul(CQE);
        Rings { size, words: at::ENTRIES.saturating_add(entries) }
    }

    /// First word of a ring.
    #[inline]
    fn start(self, ring: usize) -> usize {
        at::FIRST.wrapping_add(ring.wrapping_mul(self.words))
    }

    /// The completion with this running index, of the ring at `start`.
    #[inline]
    fn slot(self, block: &Block, start: usize, index: u64) -> Option<&cqe::Slot> {
        // All of these are multiples of a completion.
        let first = start.wrapping_add(at::ENTRIES) / CQE;
        block.words().as_chunks().0.get(first + low_usize(index & (self.size - 1)))
    }
}

impl Cq {
    /// A queue for `depth` completions (rounded up to a power of two) of each of `workers` workers.
    pub(crate) fn new(
        area: &Arc<Area>,
        number: u32,
        depth: u32,
        workers: usize,
        waker: Option<Waker>,
        place: Option<Place>,
    ) -> Result<Cq, AreaError> {
        let size = u64::from(depth.max(1)).next_power_of_two();
        let rings = Rings::new(size);
        let block = area.take(rings.start(workers))?;
        let words = block.words();
        words[at::NUMBER].store(u64::from(number), Ordering::Relaxed);
        words[at::RINGS].store(workers as u64, Ordering::Relaxed);
        words[at::SIZE].store(size, Ordering::Relaxed);
        Ok(Cq::over(block, number, rings, waker, workers, place))
    }

    /// Continues with `workers` rings where they are.
    fn over(
        block: Block,
        number: u32,
        rings: Rings,
        waker: Option<Waker>,
        workers: usize,
        place: Option<Place>,
    ) -> Cq {
        let end = |r: usize| {
            let start = rings.start(r);
            let head = block.words()[start + at::HEAD].load(Ordering::Relaxed);
            End { head: AtomicU64::new(head), tail: AtomicU64::new(head), start }
        };
        let ends = (0..workers).map(end).collect();
        let consumer = Mutex::new(Consumer { next: 0 });
        let block = Arc::new(block);
        Cq(Arc::new(Inner { block, number, rings, waker, ends, consumer, _place: place }))
    }

    /// Where it lies in its area: offset and words, for another process.
    pub fn share(&self) -> (usize, usize) {
        (self.0.block.offset(), self.0.block.words().len())
    }

    /// The queue at `(offset, words)` of an area that another process has made. There is one consumer
    /// at a time: whoever made it must not poll it meanwhile.
    pub fn attach(area: &Arc<Area>, (off, words): (usize, usize)) -> Option<Cq> {
        let block = area.at(off, words)?;
        let w = block.words();
        let get = |i: usize| w.get(i).map(|v| v.load(Ordering::Relaxed));
        let (number, workers, size) = (get(at::NUMBER)?, get(at::RINGS)?, get(at::SIZE)?);
        let (number, workers) = (u32::try_from(number).ok()?, usize::try_from(workers).ok()?);
        let rings = Rings::new(size);
        let fits = size.is_power_of_two()
            && workers.checked_mul(rings.words)?.checked_add(at::FIRST)? <= words;
        fits.then(|| Cq::over(block, number, rings, None, workers, None))
    }

    /// Whether it lies in this area, which each application has one of.
    pub(crate) fn is_in(&self, area: &Arc<Area>) -> bool {
        Arc::ptr_eq(self.0.block.area(), area)
    }

    /// The oldest completion.
    #[inline]
    pub fn poll(&self) -> Option<Cqe> {
        // Whoever waits for a completion asks in vain most of the time.
        if self.is_empty() { None } else { self.poll_one() }
    }

    #[inline(never)]
    fn poll_one(&self) -> Option<Cqe> {
        loop {
            let mut consumer = self.consumer();
            let raw = self.0.take_one(&mut consumer)?;
            drop(consumer);
            // Every completion a worker of this build writes is one this build knows.
            if let Some(c) = cqe::decode(raw) {
                return Some(c);
            }
        }
    }

    /// Calls `f` with up to `max` completions, the oldest of each queue pair first; how many.
    #[inline]
    pub fn poll_batch(&self, max: usize, f: impl FnMut(Cqe)) -> usize {
        if self.is_empty() { 0 } else { self.0.take(&mut self.consumer(), max, f) }
    }

    /// Whether there is nothing to poll at this moment.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let words = self.0.block.words();
        self.0.ends.iter().all(|end| {
            // Acquire: the head first. It is never beyond the tail, so a tail that is where the head
            // was is where the head is.
            let head = end.head.load(Ordering::Acquire);
            head == end.tail.load(Ordering::Relaxed)
                && words
                    .get(end.start + at::TAIL)
                    .is_none_or(|tail| tail.load(Ordering::Acquire) == head)
        })
    }

    /// Asks for one wake-up. Completions that came before are not told of: arm, poll until there is
    /// nothing, then sleep.
    pub fn arm(&self, arm: Arm) {
        let what = match arm {
            Arm::Next => armed::NEXT,
            Arm::Solicited => armed::SOLICITED,
        };
        self.0.block.words()[at::ARMED].store(what, Ordering::SeqCst);
        // Pairs with the fence in `CqProducer::notify`: either the worker sees that it is armed, or a
        // poll after this sees the completion.
        fence(Ordering::SeqCst);
    }

    /// Whether completions were lost. It stays so.
    ///
    /// # Errors
    /// [`CqOverflow`].
    pub fn check(&self) -> Result<(), CqOverflow> {
        match self.0.block.words()[at::OVERFLOWED].load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(CqOverflow),
        }
    }

    /// The next completion; `sleeper` is the one whose waker the queue was made with.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&self, sleeper: &Sleeper, timeout: Duration) -> Result<Cqe, WaitError> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(c) = self.poll() {
                return Ok(c);
            }
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WaitError::TimedOut);
            }
            sleeper.sleep(left, || {
                self.arm(Arm::Next);
                !self.is_empty()
            });
        }
    }

    /// Completions it holds for each worker.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.0.rings.size).unwrap_or(u32::MAX)
    }

    /// What a worker needs to write to it.
    pub(crate) fn link(&self) -> CqLink {
        let Inner { block, number, rings, waker, .. } = &*self.0;
        CqLink { number: *number, block: block.clone(), rings: *rings, waker: waker.clone() }
    }

    #[inline]
    fn consumer(&self) -> MutexGuard<'_, Consumer> {
        self.0.consumer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A ring is indexed modulo its length, which is far below 2^32.
#[expect(clippy::cast_possible_truncation)]
const fn low_usize(index: u64) -> usize {
    index as usize
}

impl Inner {
    /// The oldest completion of the ring whose turn it is, or of the next that has one.
    #[inline]
    fn take_one(&self, consumer: &mut Consumer) -> Option<RawCqe> {
        for _ in 0..self.ends.len() {
            let end = self.turn(consumer)?;
            let (at, tail) = end.look(&self.block);
            if at != tail {
                let raw = self.load(end, at)?;
                end.give(&self.block, at.wrapping_add(1));
                return Some(raw);
            }
        }
        None
    }

    /// Up to `max` completions of all rings; how many there were.
    #[inline]
    fn take(&self, consumer: &mut Consumer, max: usize, mut f: impl FnMut(Cqe)) -> usize {
        let mut done = 0;
        for _ in 0..self.ends.len() {
            let Some(end) = self.turn(consumer) else { break };
            let (mut at, tail) = end.look(&self.block);
            while at != tail
                && done < max
                && let Some(raw) = self.load(end, at)
            {
                at = at.wrapping_add(1);
                if let Some(c) = cqe::decode(raw) {
                    done += 1;
                    f(c);
                }
            }
            end.give(&self.block, at);
            if done == max {
                break;
            }
        }
        done
    }

    /// The ring whose turn it is.
    #[inline]
    fn turn(&self, consumer: &mut Consumer) -> Option<&End> {
        if let [only] = &*self.ends {
            return Some(only);
        }
        let end = self.ends.get(consumer.next).or(self.ends.first());
        consumer.next = if consumer.next < self.ends.len() { consumer.next + 1 } else { 1 };
        end
    }

    #[inline]
    fn load(&self, end: &End, index: u64) -> Option<RawCqe> {
        self.rings.slot(&self.block, end.start, index).map(cqe::load)
    }
}

impl End {
    /// Head and tail, with a look at the worker's when there was nothing. With the lock.
    #[inline]
    fn look(&self, block: &Block) -> (u64, u64) {
        let (head, seen) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        if head != seen {
            return (head, seen);
        }
        // Acquire: the entries were stored before the tail.
        let tail = block.words().get(self.start + at::TAIL);
        let tail = tail.map_or(head, |w| w.load(Ordering::Acquire));
        self.tail.store(tail, Ordering::Relaxed);
        (head, tail)
    }

    /// Gives the worker the entries before `head` back. With the lock.
    #[inline]
    fn give(&self, block: &Block, head: u64) {
        // Release: the entries have been read.
        self.head.store(head, Ordering::Release);
        if let Some(w) = block.words().get(self.start + at::HEAD) {
            w.store(head, Ordering::Release);
        }
    }
}

/// A completion queue, as a worker finds it.
#[derive(Clone, Debug)]
pub struct CqLink {
    number: u32,
    block: Arc<Block>,
    rings: Rings,
    waker: Option<Waker>,
}

impl CqLink {
    /// Its number among those of its application.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The producing end of `worker`, of which there must be one at a time.
    pub fn producer(&self, worker: usize) -> CqProducer {
        let start = self.rings.start(worker);
        let word = |i: usize| {
            let w = self.block.words().get(start + i);
            w.map_or(0, |w| w.load(Ordering::Relaxed))
        };
        // The worker wrote this tail itself, if it had the queue before. Should the application have
        // changed it, the application reads nonsense.
        CqProducer {
            tail: word(at::TAIL),
            head: word(at::HEAD),
            start,
            link: self.clone(),
            news: false,
            solicited: false,
        }
    }
}

/// A worker's end of a completion queue.
#[derive(Debug)]
pub struct CqProducer {
    tail: u64,
    /// The head as it was last seen.
    head: u64,
    /// First word of its ring.
    start: usize,
    /// Something was written since the last [`notify`](CqProducer::notify), and of that something
    /// solicited.
    news: bool,
    solicited: bool,
    link: CqLink,
}

impl CqProducer {
    /// Writes a completion. It is there for the application at once; call
    /// [`notify`](CqProducer::notify) once for all of a turn.
    ///
    /// # Errors
    /// [`CqOverflow`]: there is no room, and from now on the queue says so.
    #[inline(always)]
    pub fn push(&mut self, c: &Cqe) -> Result<(), CqOverflow> {
        if self.tail.wrapping_sub(self.head) >= self.link.rings.size {
            self.make_room()?;
        }
        let block = &*self.link.block;
        if let Some(slot) = self.link.rings.slot(block, self.start, self.tail)
            && let Some(tail) = block.words().get(self.start + at::TAIL)
        {
            cqe::store(slot, cqe::encode(c));
            self.tail = self.tail.wrapping_add(1);
            // Release: the entry was stored before.
            tail.store(self.tail, Ordering::Release);
        }
        self.solicited |= cqe::is_solicited(c);
        self.news = true;
        Ok(())
    }

    /// Whether something was written, or lost, since the last [`notify`](CqProducer::notify).
    #[inline]
    pub fn has_news(&self) -> bool {
        self.news
    }

    /// Looks at what the application has taken.
    #[cold]
    fn make_room(&mut self) -> Result<(), CqOverflow> {
        let words = self.link.block.words();
        // Acquire: the application has read the entry before it gave it back. A head that is not
        // between tail and one ring before it is no head, and there is no room either.
        self.head = words[self.start + at::HEAD].load(Ordering::Acquire);
        if self.tail.wrapping_sub(self.head) < self.link.rings.size {
            return Ok(());
        }
        words[at::OVERFLOWED].store(1, Ordering::Release);
        self.solicited = true;
        self.news = true;
        Err(CqOverflow)
    }

    /// Wakes the application if the queue is armed for what was written.
    #[inline]
    pub fn notify(&mut self) {
        if !core::mem::take(&mut self.news) {
            return;
        }
        let solicited = core::mem::take(&mut self.solicited);
        let word = &self.link.block.words()[at::ARMED];
        fence(Ordering::SeqCst);
        let wanted = |w: u64| w == armed::NEXT || w == armed::SOLICITED && solicited;
        let seen = word.load(Ordering::Relaxed);
        if wanted(seen)
            && word.compare_exchange(seen, armed::NO, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            && let Some(w) = &self.link.waker
        {
            w.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_iwarp::{CqeOp, CqeStatus, Qpn, Queue};

    fn cqe(wr_id: u64, solicited: bool) -> Cqe {
        Cqe {
            wr_id,
            qpn: Qpn(1),
            queue: Queue::Rq,
            op: CqeOp::Recv,
            status: CqeStatus::Success,
            solicited,
            len: 0,
            invalidated: None,
            immediate: None,
        }
    }

    fn cq(depth: u32, workers: usize, waker: Option<Waker>) -> Cq {
        Cq::new(&Area::new(1 << 16).unwrap(), 3, depth, workers, waker, None).unwrap()
    }

    #[test]
    fn test_completions_of_all_workers_come_once_and_in_order() {
        let cq = cq(4, 2, None);
        let (mut a, mut b) = (cq.link().producer(0), cq.link().producer(1));
        let mut seen: Vec<u64> = Vec::new();
        for round in 0..10 {
            for i in 0..4 {
                a.push(&cqe(round * 4 + i, false)).unwrap();
            }
            b.push(&cqe(1000 + round, false)).unwrap();
            assert!(!cq.is_empty());
            assert_eq!(cq.poll_batch(99, |c| seen.push(c.wr_id)), 5);
        }
        assert!(cq.is_empty() && cq.check().is_ok());
        let (a, b): (Vec<u64>, Vec<u64>) = seen.into_iter().partition(|i| *i < 1000);
        assert!(a.into_iter().eq(0..40) && b.into_iter().eq(1000..1010));
    }

    /// Two threads poll what two workers write, and look without the lock first.
    #[test]
    fn test_each_completion_is_taken_once_whoever_polls() {
        const EACH: u64 = 20_000;
        let cq = cq(8, 2, None);
        let taken = AtomicU64::new(0);
        let sums: Vec<u64> = std::thread::scope(|s| {
            for worker in 0..2 {
                let (cq, mut p) = (&cq, cq.link().producer(worker));
                s.spawn(move || {
                    for i in 0..EACH {
                        // The ring is never full: nothing is lost.
                        let mine = &cq.0.ends[worker];
                        while i - mine.head.load(Ordering::Acquire) >= 8 {
                            std::thread::yield_now();
                        }
                        p.push(&cqe(i + 1, false)).unwrap();
                    }
                });
            }
            let poll = || {
                let mut sum = 0;
                while taken.load(Ordering::Relaxed) < 2 * EACH {
                    match cq.poll() {
                        Some(c) => {
                            sum += c.wr_id;
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                        None => std::thread::yield_now(),
                    }
                }
                sum
            };
            let pollers = [s.spawn(poll), s.spawn(poll)];
            pollers.into_iter().map(|p| p.join().unwrap()).collect()
        });
        assert_eq!(taken.into_inner(), 2 * EACH);
        assert_eq!(sums.iter().sum::<u64>(), EACH * (EACH + 1));
        assert!(cq.is_empty() && cq.check().is_ok());
    }

    #[test]
    fn test_overflow_is_told_and_loses_only_what_has_no_room() {
        let cq = cq(2, 1, None);
        let mut p = cq.link().producer(0);
        assert!(!p.has_news());
        assert_eq!(p.push(&cqe(1, false)), Ok(()));
        assert_eq!(p.push(&cqe(2, false)), Ok(()));
        assert!(p.has_news());
        p.notify();
        assert!(!p.has_news());
        assert_eq!(p.push(&cqe(3, false)), Err(CqOverflow));
        assert!(p.has_news(), "whoever waits has to hear of it");
        assert_eq!(cq.check(), Err(CqOverflow));
        let sleeper = Sleeper::new();
        assert_eq!(cq.wait(&sleeper, Duration::ZERO).map(|c| c.wr_id), Ok(1));
        assert_eq!(cq.poll().map(|c| c.wr_id), Some(2));
        assert_eq!(cq.wait(&sleeper, Duration::ZERO), Err(WaitError::Overflow(CqOverflow)));
    }

    #[test]
    fn test_only_an_armed_queue_wakes_and_only_for_what_it_is_armed_for() {
        let sleeper = Sleeper::with_fd().unwrap();
        let cq = cq(16, 1, Some(sleeper.waker()));
        let mut p = cq.link().producer(0);
        let woken = || {
            let start = Instant::now();
            sleeper.sleep(Duration::from_millis(20), || false);
            start.elapsed() < Duration::from_millis(15)
        };
        let mut write = |solicited| {
            p.push(&cqe(1, solicited)).unwrap();
            p.notify();
        };
        write(true);
        assert!(!woken(), "not armed");
        cq.arm(Arm::Solicited);
        write(false);
        assert!(!woken(), "not solicited");
        write(true);
        assert!(woken());
        write(true);
        assert!(!woken(), "armed once");
        cq.arm(Arm::Next);
        write(false);
        assert!(woken());
    }

    #[test]
    fn test_attached_queue_continues_where_it_was() {
        let area = Area::new(1 << 16).unwrap();
        let cq = Cq::new(&area, 1, 4, 1, None, None).unwrap();
        let mut p = cq.link().producer(0);
        p.push(&cqe(1, false)).unwrap();
        p.push(&cqe(2, false)).unwrap();
        assert_eq!(cq.poll().map(|c| c.wr_id), Some(1));
        let theirs = Area::attach(area.fd().unwrap().try_clone_to_owned().unwrap(), area.len());
        let theirs = Cq::attach(&theirs.unwrap(), cq.share()).unwrap();
        assert_eq!(theirs.poll().map(|c| c.wr_id), Some(2));
        assert!(theirs.poll().is_none());
        let (off, words) = cq.share();
        assert!(Cq::attach(&area, (off, words - 1)).is_none(), "shorter than it says");
    }

    /// A head that the application made up does not make the worker overwrite or loop.
    #[test]
    fn test_impossible_heads_are_no_room() {
        let cq = cq(4, 1, None);
        let mut p = cq.link().producer(0);
        for i in 0..4 {
            p.push(&cqe(i, false)).unwrap();
        }
        for head in [u64::MAX, 5, 1 << 40] {
            cq.0.block.words()[at::FIRST + at::HEAD].store(head, Ordering::Relaxed);
            assert_eq!(p.push(&cqe(9, false)), Err(CqOverflow), "{head}");
        }
    }
}
