//! Completion queues, both ends.
//!
//! A completion queue has one ring for each worker, so that each ring has one producer, whichever
//! workers its queue pairs run on. The application takes from them in turn.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_iwarp::Cqe;

use crate::ring::layout::{CQE, armed, cq as at};
use crate::ring::{Area, AreaError, Block, cqe};
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
    size: u64,
    waker: Option<Waker>,
    consumer: Mutex<Consumer>,
}

/// The application's side of the rings.
#[derive(Debug)]
struct Consumer {
    rings: Vec<Ring>,
    /// The ring to look at first.
    next: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    head: u64,
    /// The tail as it was last seen.
    tail: u64,
}

/// First word of a ring.
fn ring_at(ring: usize, size: u64) -> usize {
    at::FIRST + ring * ring_words(size)
}

fn ring_words(size: u64) -> usize {
    at::ENTRIES + usize::try_from(size).unwrap_or(usize::MAX).saturating_mul(CQE)
}

/// Where a completion lies.
#[inline]
fn entry(words: &[AtomicU64], base: usize, size: u64, index: u64) -> &[AtomicU64] {
    let slot = usize::try_from(index & (size - 1)).unwrap_or(0);
    let from = base + at::ENTRIES + slot * CQE;
    words.get(from..from + CQE).unwrap_or(&[])
}

impl Cq {
    /// A queue for `depth` completions (rounded up to a power of two) of each of `workers` workers.
    pub(crate) fn new(
        area: &Arc<Area>,
        number: u32,
        depth: u32,
        workers: usize,
        waker: Option<Waker>,
    ) -> Result<Cq, AreaError> {
        let size = u64::from(depth.max(1)).next_power_of_two();
        let block = area.take(at::FIRST + workers * ring_words(size))?;
        let words = block.words();
        words[at::NUMBER].store(u64::from(number), Ordering::Relaxed);
        words[at::RINGS].store(workers as u64, Ordering::Relaxed);
        words[at::SIZE].store(size, Ordering::Relaxed);
        let consumer = Consumer { rings: vec![Ring::default(); workers], next: 0 };
        Ok(Cq(Arc::new(Inner {
            block: Arc::new(block),
            number,
            size,
            waker,
            consumer: Mutex::new(consumer),
        })))
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
        let (number, rings, size) = (get(at::NUMBER)?, get(at::RINGS)?, get(at::SIZE)?);
        let rings = usize::try_from(rings).ok()?;
        let fits = size.is_power_of_two()
            && rings.checked_mul(ring_words(size))?.checked_add(at::FIRST)? <= words;
        if !fits {
            return None;
        }
        let ring = |r: usize| {
            let head = w[ring_at(r, size) + at::HEAD].load(Ordering::Relaxed);
            Ring { head, tail: head }
        };
        let consumer = Mutex::new(Consumer { rings: (0..rings).map(ring).collect(), next: 0 });
        let number = u32::try_from(number).ok()?;
        Some(Cq(Arc::new(Inner { block: Arc::new(block), number, size, waker: None, consumer })))
    }

    /// The oldest completion.
    #[inline]
    pub fn poll(&self) -> Option<Cqe> {
        let mut one = None;
        self.consumer().take(&self.0, 1, |c| one = Some(c));
        one
    }

    /// Calls `f` with up to `max` completions, the oldest of each queue pair first; how many.
    #[inline]
    pub fn poll_batch(&self, max: usize, f: impl FnMut(Cqe)) -> usize {
        self.consumer().take(&self.0, max, f)
    }

    /// Whether there is nothing to poll at this moment.
    pub fn is_empty(&self) -> bool {
        let c = self.consumer();
        let words = self.0.block.words();
        c.rings.iter().enumerate().all(|(r, ring)| {
            words[ring_at(r, self.0.size) + at::TAIL].load(Ordering::Acquire) == ring.head
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
        u32::try_from(self.0.size).unwrap_or(u32::MAX)
    }

    /// What a worker needs to write to it.
    pub(crate) fn link(&self) -> CqLink {
        let Inner { block, number, size, waker, .. } = &*self.0;
        CqLink { number: *number, block: block.clone(), size: *size, waker: waker.clone() }
    }

    #[inline]
    fn consumer(&self) -> MutexGuard<'_, Consumer> {
        self.0.consumer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Consumer {
    #[inline]
    fn take(&mut self, cq: &Inner, max: usize, mut f: impl FnMut(Cqe)) -> usize {
        let words = cq.block.words();
        let (rings, mut done) = (self.rings.len(), 0);
        for i in 0..rings {
            let r = if rings == 1 { 0 } else { (self.next + i) % rings };
            let (ring, base) = (&mut self.rings[r], ring_at(r, cq.size));
            if ring.head == ring.tail {
                // Acquire: the entries were stored before the tail.
                ring.tail = words[base + at::TAIL].load(Ordering::Acquire);
            }
            let before = ring.head;
            while ring.head != ring.tail && done < max {
                let raw = cqe::load(entry(words, base, cq.size, ring.head));
                ring.head = ring.head.wrapping_add(1);
                // Every completion a worker of this build writes is one this build knows.
                if let Some(c) = cqe::decode(raw) {
                    done += 1;
                    f(c);
                }
            }
            if ring.head != before {
                // Release: the entries have been read.
                words[base + at::HEAD].store(ring.head, Ordering::Release);
            }
            if done == max {
                break;
            }
        }
        if rings > 1 {
            self.next = (self.next + 1) % rings;
        }
        done
    }
}

/// A completion queue, as a worker finds it.
#[derive(Clone, Debug)]
pub struct CqLink {
    number: u32,
    block: Arc<Block>,
    size: u64,
    waker: Option<Waker>,
}

impl CqLink {
    /// Its number among those of its application.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The producing end of `worker`, of which there must be one at a time.
    pub fn producer(&self, worker: usize) -> CqProducer {
        let base = ring_at(worker, self.size);
        let word = |i: usize| {
            let w = self.block.words().get(base + i);
            w.map_or(0, |w| w.load(Ordering::Relaxed))
        };
        // The worker wrote this tail itself, if it had the queue before. Should the application have
        // changed it, the application reads nonsense.
        CqProducer {
            tail: word(at::TAIL),
            head: word(at::HEAD),
            base,
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
    base: usize,
    /// Something was written since the last [`notify`](CqProducer::notify), and of that something
    /// solicited.
    news: bool,
    solicited: bool,
    link: CqLink,
}

impl CqProducer {
    /// Writes a completion. It is there for the application at once; call
    /// [`notify`](CqProducer::notify) once for all of a turn. True when it is the first of the turn.
    ///
    /// # Errors
    /// [`CqOverflow`]: there is no room, and from now on the queue says so.
    #[inline]
    pub fn push(&mut self, c: &Cqe) -> Result<bool, CqOverflow> {
        let words = self.link.block.words();
        let size = self.link.size;
        if self.tail.wrapping_sub(self.head) >= size {
            // Acquire: the application has read the entry before it gave it back. A head that is not
            // between tail and one ring before it is no head, and there is no room either.
            self.head = words[self.base + at::HEAD].load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) >= size {
                words[at::OVERFLOWED].store(1, Ordering::Release);
                self.solicited = true;
                self.news = true;
                return Err(CqOverflow);
            }
        }
        cqe::store(entry(words, self.base, size, self.tail), cqe::encode(c));
        self.tail = self.tail.wrapping_add(1);
        words[self.base + at::TAIL].store(self.tail, Ordering::Release);
        let first = !core::mem::replace(&mut self.news, true);
        self.solicited |= cqe::is_solicited(c);
        Ok(first)
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
        Cq::new(&Area::new(1 << 16).unwrap(), 3, depth, workers, waker).unwrap()
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

    #[test]
    fn test_overflow_is_told_and_loses_only_what_has_no_room() {
        let cq = cq(2, 1, None);
        let mut p = cq.link().producer(0);
        assert_eq!(p.push(&cqe(1, false)), Ok(true));
        assert_eq!(p.push(&cqe(2, false)), Ok(false));
        assert_eq!(p.push(&cqe(3, false)), Err(CqOverflow));
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
        let cq = Cq::new(&area, 1, 4, 1, None).unwrap();
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
            cq.0.block.words()[ring_at(0, 4) + at::HEAD].store(head, Ordering::Relaxed);
            assert_eq!(p.push(&cqe(9, false)), Err(CqOverflow), "{head}");
        }
    }
}
