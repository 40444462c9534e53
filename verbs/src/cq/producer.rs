//! The worker's end of a completion queue.

use heddle_base::sync::atomic::{Ordering, fence};
use std::sync::Arc;

use heddle_iwarp::{Cqe, Queue};

use super::{CqOverflow, Entries, is_before, retired_word, start_of};
use crate::ring::layout::{LINE, armed, cq as at};
use crate::ring::{Block, cqe};
use crate::waker::Waker;

/// A completion queue, as a worker finds it.
#[derive(Clone, Debug)]
pub struct CqLink {
    number: u32,
    block: Arc<Block>,
    entries: Entries,
    waker: Option<Waker>,
}

impl CqLink {
    pub(super) fn new(
        number: u32,
        block: Arc<Block>,
        entries: Entries,
        waker: Option<Waker>,
    ) -> CqLink {
        CqLink { number, block, entries, waker }
    }

    /// Its number among those of its application.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The producing end of `worker`, of which there must be one at a time.
    pub fn producer(&self, worker: usize) -> CqProducer {
        let start = start_of(worker);
        let word = |i: usize| {
            let w = self.block.words().get(start + i);
            w.map_or(0, |w| w.load(Ordering::Relaxed))
        };
        // The worker wrote these itself, if it had the queue before. Should the application have
        // changed them, the application reads nonsense.
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
    /// The head as it was last seen.
    head: u64,
    /// Its first completion where it writes now: those before lie elsewhere and take no room here.
    floor: u64,
    /// First word of its indices.
    start: usize,
    ring: usize,
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
    pub fn push(&mut self, c: &Cqe) -> Result<(), CqOverflow> {
        self.put(c).inspect(|()| self.publish())
    }

    /// Writes completions of one queue of a queue pair where the application does not see them yet; how many had
    /// no room. The caller then tells that `retired` requests of that queue are retired (a running number modulo
    /// 2^32), and [publishes](CqProducer::publish): should its process be killed at any point in between, the application
    /// finds for each request either its completion or that it is not retired, and never both.
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
            // Release: the completions, and what they retire, first.
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

    /// Shows the application what was written.
    #[inline]
    pub fn publish(&mut self) {
        if let Some(tail) = self.link.block.words().get(self.start + at::TAIL) {
            // Release: the entries were stored before.
            tail.store(self.tail, Ordering::Release);
        }
        self.news = true;
    }

    /// Goes on in the room that `link` has, if that is newer.
    pub fn renew(&mut self, link: &CqLink) {
        if link.entries.generation > self.link.entries.generation {
            self.link = link.clone();
            self.move_in();
        }
    }

    /// Writes down where the completions from here on lie.
    fn move_in(&mut self) {
        (self.floor, self.head) = (self.tail, self.tail);
        let words = self.link.block.words();
        if let (Some(at), Some(moved)) =
            (words.get(self.start + at::MOVED_AT), words.get(self.start + at::MOVED))
        {
            at.store(self.tail, Ordering::Relaxed);
            // Release: the index first.
            moved.store(self.link.entries.generation, Ordering::Release);
        }
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

    /// Completions that are due here will not come, for want of a worker that knows them: the queue
    /// says so for good.
    #[cold]
    pub fn lose(&mut self) {
        self.link.block.words()[at::OVERFLOWED].store(1, Ordering::Release);
        (self.solicited, self.news) = (true, true);
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
        let mut seen = word.load(Ordering::Relaxed);
        // Twice: an application may widen its arm meanwhile, and an arm that has fired stays fired.
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
