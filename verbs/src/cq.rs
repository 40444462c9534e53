//! Completion queues, both ends.
//!
//! A completion queue has one ring for each worker, so each ring has one producer, no matter on
//! which workers the queue pairs run. The application takes from the rings in turn.

mod aside;
mod channel;
#[cfg(test)]
mod tests;

pub(crate) use channel::Joining;
pub use channel::{ChannelError, CompletionChannel};

use heddle_base::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use heddle_base::sync::{Mutex, MutexGuard};
use heddle_rings::cq::{Entries, has_moved, is_before, retired_word, start_of};
use heddle_rings::cqe::RawCqe;
use heddle_rings::layout::{armed, cq as at};
use heddle_rings::{Area, AreaError, Block, cqe};
use heddle_shm::{Sleeper, Waker};
use heddle_types::Cqe;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::error::DeviceError;
use crate::limits::count::Place;
use crate::qp::Owner;
pub use heddle_rings::cq::{CqLink, CqOverflow};

/// The completions that an armed completion queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next completion.
    Next,
    /// The next completion that is solicited, or has failed.
    Solicited,
}

impl Arm {
    fn word(self) -> u64 {
        match self {
            Arm::Next => armed::NEXT,
            Arm::Solicited => armed::SOLICITED,
        }
    }
}

/// Why [`Cq::wait`] returned without a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// No completion came in time.
    #[error("no completion in time")]
    TimedOut,
    /// Completions were lost.
    #[error(transparent)]
    Overflow(#[from] CqOverflow),
}

/// The application's end of a completion queue; clones are handles of the same queue. Any thread
/// may poll it.
///
/// ```
/// # use heddle_verbs as heddle;
/// use heddle::{Arm, Cq, CqOverflow, Cqe};
///
/// /// Handles completions when the descriptor of the queue is readable. Arms first: a completion that
/// /// comes after the last look then makes the descriptor readable again.
/// fn readable(cq: &Cq, mut handle: impl FnMut(Cqe)) -> Result<(), CqOverflow> {
///     cq.arm(Arm::Next);
///     while let Some(completion) = cq.poll() {
///         handle(completion);
///     }
///     cq.check()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Cq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The indices, and the word that says what is armed; the completions lie in blocks of their
    /// own.
    block: Arc<Block>,
    /// Distinguishes the completion queues of one application.
    number: u32,
    waker: Option<Waker>,
    /// True once an event has reported that completions were lost.
    failed: AtomicBool,
    /// The channel for the queue's events, if it has one. Set before the application has the queue.
    channel: OnceLock<channel::Membership>,
    ends: Box<[End]>,
    consumer: Mutex<Consumer>,
    /// Locked while a thread resizes the queue: there is one resize at a time.
    resizing: Mutex<()>,
    /// True if another process made the queue.
    attached: bool,
    /// The queue's place among those of its application.
    _place: Option<Place>,
    /// Reports the end of the queue to its maker, which made it for this process.
    _owner: Option<Owner>,
}

/// The application's side of one ring. Only a thread that holds the consumer's lock writes these
/// fields; a thread that only checks for completions reads them without the lock.
#[derive(Debug)]
struct End {
    head: AtomicU64,
    /// The worker's tail as last seen, or the index from which on the ring goes on in other room.
    /// While completions are set aside, the tail of the first ring is one less than its head, which
    /// makes the queue look non-empty.
    tail: AtomicU64,
    /// Index of the first word of the ring's indices.
    start: usize,
}

/// State of the thread that takes completions.
#[derive(Debug)]
struct Consumer {
    /// The ring to look at first.
    next: usize,
    /// The room from which this end reads the completions of each ring.
    rings: Box<[Entries]>,
    /// The room where workers write completions, or will.
    newest: Entries,
    /// Completions that are older than all completions in the rings.
    aside: VecDeque<Cqe>,
}

impl Cq {
    /// Returns a queue for `depth` completions (rounded up to a power of two) of each of `workers`
    /// workers.
    pub fn new(
        area: &Arc<Area>,
        number: u32,
        depth: u32,
        workers: usize,
        waker: Option<Waker>,
        place: Place,
    ) -> Result<Cq, AreaError> {
        let entries = Entries::take(area, depth, workers, 0)?;
        let block = area.take(start_of(workers))?;
        let words = block.words();
        words[at::NUMBER].store(u64::from(number), Ordering::Relaxed);
        words[at::RINGS].store(workers as u64, Ordering::Relaxed);
        entries.write(&block);
        Ok(Cq::over(block, (number, workers), entries, waker, (Some(place), None)))
    }

    /// Returns a queue over an existing block, whose `workers` rings continue at their indices.
    fn over(
        block: Block,
        (number, workers): (u32, usize),
        entries: Entries,
        waker: Option<Waker>,
        (place, owner): (Option<Place>, Option<Owner>),
    ) -> Cq {
        let end = |r: usize| {
            let start = start_of(r);
            let head = block.words()[start + at::HEAD].load(Ordering::Relaxed);
            End { head: AtomicU64::new(head), tail: AtomicU64::new(head), start }
        };
        let ends = (0..workers).map(end).collect();
        let rings = vec![entries.clone(); workers].into();
        let aside = VecDeque::new();
        let consumer = Mutex::new(Consumer { next: 0, rings, newest: entries, aside });
        let block = Arc::new(block);
        let attached = place.is_none();
        Cq(Arc::new(Inner {
            block,
            number,
            waker,
            failed: AtomicBool::new(false),
            channel: OnceLock::new(),
            ends,
            consumer,
            resizing: Mutex::new(()),
            attached,
            _place: place,
            _owner: owner,
        }))
    }

    /// Returns the queue's place in its area, as offset and words, for another process.
    pub fn share(&self) -> (usize, usize) {
        (self.0.block.offset(), self.0.block.words().len())
    }

    /// Returns the queue at `(offset, words)` of an area that another process has made. A queue has
    /// one consumer at a time: the process that made the queue must not poll it meanwhile. Returns
    /// `None` also while the queue is being resized.
    pub fn attach(area: &Arc<Area>, at: (usize, usize)) -> Option<Cq> {
        Cq::attach_with(area, at, None, None)
    }

    /// Does the same for a device whose RNIC belongs to another process.
    pub(crate) fn remote(
        area: &Arc<Area>,
        at: (usize, usize),
        waker: Option<Waker>,
        owner: Owner,
    ) -> Option<Cq> {
        Cq::attach_with(area, at, waker, Some(owner))
    }

    fn attach_with(
        area: &Arc<Area>,
        (off, words): (usize, usize),
        waker: Option<Waker>,
        owner: Option<Owner>,
    ) -> Option<Cq> {
        let block = area.at(off, words)?;
        let get = |i: usize| block.words().get(i).map(|v| v.load(Ordering::Relaxed));
        let (number, workers) = (get(at::NUMBER)?, get(at::RINGS)?);
        let (number, workers) = (u32::try_from(number).ok()?, usize::try_from(workers).ok()?);
        if workers.checked_mul(at::RING)?.checked_add(at::FIRST)? > words {
            return None;
        }
        let entries = Entries::attach(&block, workers)?;
        let moved = (0..workers).all(|r| has_moved(&block, r, entries.generation));
        moved.then(|| Cq::over(block, (number, workers), entries, waker, (None, owner)))
    }

    /// Returns a number that distinguishes the queue from all completion queues and shared receive
    /// queues that its application ever had.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns true if completions were lost, and only once.
    pub(crate) fn has_just_failed(&self) -> bool {
        self.check().is_err() && !self.0.failed.swap(true, Ordering::AcqRel)
    }

    /// Makes the queue a member of a channel, which gets its events under this tag. The application
    /// does not have the queue yet.
    pub(crate) fn join(&self, place: Joining, tag: u64) {
        let membership = place.join(&self.0.block, tag);
        // The server may have ended before the queue was a member.
        if self.check().is_err() {
            membership.lose();
        }
        let _ = self.0.channel.set(membership);
    }

    /// Returns a handle that does not keep the queue alive.
    pub(crate) fn downgrade(&self) -> WeakCq {
        WeakCq(Arc::downgrade(&self.0))
    }

    /// Returns true if the queue lies in this area; each application has one area.
    pub(crate) fn is_in(&self, area: &Arc<Area>) -> bool {
        Arc::ptr_eq(self.0.block.area(), area)
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn poll(&self) -> Option<Cqe> {
        // A caller that waits for a completion polls an empty queue most of the time, so look
        // without the lock first.
        if self.is_empty() { None } else { self.poll_one() }
    }

    #[inline(never)]
    fn poll_one(&self) -> Option<Cqe> {
        let mut consumer = self.consumer();
        if !consumer.aside.is_empty() {
            return self.0.take_aside(&mut consumer);
        }
        let raw = self.0.take_one(&mut consumer)?;
        drop(consumer);
        cqe::decode(raw).or_else(|| self.poll_next())
    }

    /// Takes the next completion after one that this build does not know; a worker of this build
    /// writes no such completion.
    #[cold]
    fn poll_next(&self) -> Option<Cqe> {
        let mut next = None;
        self.poll_batch(1, |c| next = Some(c));
        next
    }

    /// Calls `f` with up to `max` completions, the oldest of each queue pair first. Returns how
    /// many there were.
    #[inline]
    pub fn poll_batch(&self, max: usize, f: impl FnMut(Cqe)) -> usize {
        if self.is_empty() { 0 } else { self.0.take(&mut self.consumer(), max, f) }
    }

    /// Returns true if there is nothing to poll at this moment.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let words = self.0.block.words();
        self.0.ends.iter().all(|end| {
            // Acquire orders this load before that of the tail. The head never passes the tail, so
            // a tail that equals the head loaded here also equals the head at that later moment.
            let head = end.head.load(Ordering::Acquire);
            head == end.tail.load(Ordering::Relaxed)
                && words
                    .get(end.start + at::TAIL)
                    .is_none_or(|tail| tail.load(Ordering::Acquire) == head)
        })
    }

    /// Requests one wake-up, and one event of a [`CompletionChannel`]. Earlier completions cause
    /// neither: arm, poll until the queue is empty, then sleep.
    pub fn arm(&self, arm: Arm) {
        if let Some(channel) = self.0.channel.get() {
            return channel.arm(arm);
        }
        self.0.block.words()[at::ARMED].store(arm.word(), Ordering::SeqCst);
        // Pairs with the fence in `CqProducer::notify`: either the worker sees that the queue is
        // armed, or a poll after this sees the completion.
        fence(Ordering::SeqCst);
    }

    /// Yields the event that a queue of a [`CompletionChannel`] is armed for, as a completion
    /// would: for a program that has completions of its own beside those of the RNIC. Without an
    /// arm there is no event.
    pub fn notify(&self) {
        if let Some(channel) = self.0.channel.get() {
            channel.fire();
        }
    }

    /// Does the same as [`notify`](Cq::notify), if the queue is armed for any completion and has
    /// some. For a program that arms before it polls and then leaves some completions: without this
    /// call it would sleep although they wait.
    pub fn notify_of_rest(&self) {
        if let Some(channel) = self.0.channel.get()
            && !self.is_empty()
        {
            channel.fire_if_any();
        }
    }

    /// Checks whether completions were lost. Once some were lost, the error stays.
    ///
    /// # Errors
    /// [`CqOverflow`].
    pub fn check(&self) -> Result<(), CqOverflow> {
        match self.0.block.words()[at::OVERFLOWED].load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(CqOverflow),
        }
    }

    /// Waits for the next completion; the queue must have been made with the waker of `sleeper`.
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

    /// Returns the number of completions that the queue holds for each worker, or will hold when
    /// its workers have moved to a new size.
    pub fn depth(&self) -> u32 {
        let size = match self.0.block.words().get(at::SIZE) {
            Some(size) if self.0.attached => size.load(Ordering::Relaxed),
            _ => self.consumer().newest.size,
        };
        u32::try_from(size).unwrap_or(u32::MAX)
    }

    /// Calls `ask`, by which the RNIC, which is another process, resizes the queue. Before that,
    /// this end follows the workers to the room where they write now: the queue's words describe
    /// only the newest room.
    pub fn resize_elsewhere<T>(
        &self,
        ask: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let _one = self.0.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.follow_all() {
            return Err(DeviceError::CqResizing);
        }
        ask()
    }

    /// Takes room for `depth` completions of each worker, and calls `tell`, which passes the new
    /// room to the workers and must not wait.
    ///
    /// Each worker goes on in the new room from its next completion on, and writes down the index
    /// of this completion; the consumer reads earlier completions where they lie. So no completion
    /// is copied or lost, and neither side waits for the other.
    pub fn resize(
        &self,
        depth: u32,
        tell: impl FnOnce(CqLink) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let q = &*self.0;
        if q.attached {
            return Err(DeviceError::ForeignCq);
        }
        // Hold the lock until the resize has succeeded or failed, so that no thread gets a link to
        // room that is not used in the end.
        let mut consumer = self.consumer();
        let now = consumer.newest.generation;
        if !(0..q.ends.len()).all(|r| has_moved(&q.block, r, now)) {
            return Err(DeviceError::CqResizing);
        }
        let entries = Entries::take(q.block.area(), depth, q.ends.len(), now.wrapping_add(1))?;
        let held = q.ends.iter().map(|end| end.held(&q.block)).max().unwrap_or(0);
        if held > entries.size {
            return Err(DeviceError::CqTooSmall { held, depth });
        }
        // All workers have moved and their old room is read out, perhaps by a consumer in another
        // process. Let the rings here follow.
        let settled = consumer.newest.clone();
        consumer.rings.fill(settled.clone());
        entries.write(&q.block);
        let link = q.link(&entries);
        tell(link).inspect_err(|_| settled.write(&q.block))?;
        consumer.newest = entries;
        Ok(())
    }

    /// Returns the link with which a worker writes to the queue.
    pub fn link(&self) -> CqLink {
        self.0.link(&self.consumer().newest)
    }

    #[inline]
    fn consumer(&self) -> MutexGuard<'_, Consumer> {
        self.0.consumer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Cq::downgrade`].
#[derive(Debug)]
pub(crate) struct WeakCq(Weak<Inner>);

impl WeakCq {
    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Notes that no worker writes completions any more: the queue reports that some were lost, and
    /// wakes a program that sleeps on it.
    pub(crate) fn lose(&self) {
        let Some(q) = self.0.upgrade() else { return };
        if let Some(w) = q.block.words().get(at::OVERFLOWED) {
            w.store(1, Ordering::Release);
        }
        match (q.channel.get(), &q.waker) {
            (Some(channel), _) => channel.lose(),
            (None, Some(w)) => w.wake(),
            (None, None) => {}
        }
    }
}

impl Inner {
    fn link(&self, entries: &Entries) -> CqLink {
        CqLink::new(self.number, self.block.clone(), entries.clone(), self.waker.clone())
    }

    /// Takes the oldest completion of the ring whose turn it is, or of the next ring that has one.
    #[inline]
    fn take_one(&self, consumer: &mut Consumer) -> Option<RawCqe> {
        self.take_next(consumer).or_else(|| self.take_other(consumer))
    }

    /// Takes the oldest completion of the ring whose turn it is.
    #[inline(always)]
    fn take_next(&self, consumer: &mut Consumer) -> Option<RawCqe> {
        let (ring, end) = self.turn(consumer)?;
        let (at, tail) = self.look(consumer, ring, end);
        if at == tail {
            return None;
        }
        let raw = consumer.load(ring, at)?;
        end.give(&self.block, at.wrapping_add(1));
        Some(raw)
    }

    /// Takes a completion of another ring; the ring whose turn it was has none.
    #[inline(never)]
    fn take_other(&self, consumer: &mut Consumer) -> Option<RawCqe> {
        (1..self.ends.len()).find_map(|_| self.take_next(consumer))
    }

    /// Takes up to `max` completions of all rings. Returns how many there were.
    #[inline]
    fn take(&self, consumer: &mut Consumer, max: usize, mut f: impl FnMut(Cqe)) -> usize {
        let mut done = 0;
        while !consumer.aside.is_empty()
            && done < max
            && let Some(c) = self.take_aside(consumer)
        {
            f(c);
            done += 1;
        }
        for _ in 0..self.ends.len() {
            let Some((ring, end)) = self.turn(consumer) else { break };
            let (mut at, tail) = self.look(consumer, ring, end);
            while at != tail
                && done < max
                && let Some(raw) = consumer.load(ring, at)
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

    /// Returns the ring whose turn it is, and moves the turn on.
    #[inline]
    fn turn(&self, consumer: &mut Consumer) -> Option<(usize, &End)> {
        if let [only] = &*self.ends {
            return Some((0, only));
        }
        let ring = if consumer.next < self.ends.len() { consumer.next } else { 0 };
        consumer.next = ring + 1;
        Some((ring, self.ends.get(ring)?))
    }

    /// Returns head and tail of a ring. If this end has read all completions that it has seen, it
    /// looks at the worker's tail.
    #[inline]
    fn look(&self, consumer: &mut Consumer, ring: usize, end: &End) -> (u64, u64) {
        let (head, seen) = (end.head.load(Ordering::Relaxed), end.tail.load(Ordering::Relaxed));
        if head != seen {
            return (head, seen);
        }
        let words = self.block.words().get(end.start..).unwrap_or_default();
        // Acquire: the entries were stored before the tail.
        let mut tail = words.get(at::TAIL).map_or(head, |w| w.load(Ordering::Acquire));
        // The worker stores MOVED before TAIL, so loading TAIL also makes a resize visible. This
        // load is Acquire too, because a resize can precede any new entry.
        let moved = words.get(at::MOVED).map_or(0, |w| w.load(Ordering::Acquire));
        if consumer.rings.get(ring).is_some_and(|e| e.generation != moved) {
            tail = self.follow(consumer, ring, (head, tail), moved);
        }
        end.tail.store(tail, Ordering::Relaxed);
        (head, tail)
    }

    /// Follows a worker that writes elsewhere, once all completions in the old room are read.
    /// Returns the tail, or the index at which the old room's completions end.
    #[cold]
    fn follow(
        &self,
        consumer: &mut Consumer,
        ring: usize,
        (head, tail): (u64, u64),
        moved: u64,
    ) -> u64 {
        let word = self.block.words().get(start_of(ring) + at::MOVED_AT);
        let limit = word.map_or(tail, |w| w.load(Ordering::Relaxed));
        if head != limit {
            // Never read beyond the completions that the worker has written.
            return if is_before(limit, tail) { limit } else { tail };
        }
        // Only a process that attached reads the new room from the queue's words. The process that
        // made the queue knows the room itself, and must not trust words that an application may
        // have overwritten.
        if self.attached
            && consumer.newest.generation != moved
            && let Some(entries) = Entries::attach(&self.block, self.ends.len())
            && entries.generation == moved
        {
            consumer.newest = entries;
        }
        if let Some(e) = consumer.rings.get_mut(ring) {
            e.clone_from(&consumer.newest);
        }
        tail
    }
}

impl Consumer {
    #[inline]
    fn load(&self, ring: usize, index: u64) -> Option<RawCqe> {
        self.rings.get(ring)?.slot(ring, index).map(cqe::load)
    }
}

impl End {
    /// Returns the number of completions that wait.
    fn held(&self, block: &Block) -> u64 {
        let get = |i: usize| {
            let word = block.words().get(self.start.wrapping_add(i));
            word.map_or(0, |w| w.load(Ordering::Acquire))
        };
        let head = get(at::HEAD);
        get(at::TAIL).wrapping_sub(head)
    }

    /// Gives the entries before `head` back to the worker. The caller holds the consumer's lock.
    #[inline]
    fn give(&self, block: &Block, head: u64) {
        // Release: the entries have been read.
        self.head.store(head, Ordering::Release);
        if let Some(w) = block.words().get(self.start + at::HEAD) {
            w.store(head, Ordering::Release);
        }
    }
}
