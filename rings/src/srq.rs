//! Shared receive queues: the ring, and the end that all workers share.
//!
//! # Several workers
//!
//! The ring has one producer (the application, under a lock) and as many consumers as there are
//! workers. The head belongs to the workers, in memory that the application cannot reach. A worker
//! copies the entry at the head, checks the copy, and then moves the head by compare-and-swap. If
//! that succeeds, no other worker has the entry, and the copy was made before the entry's slot was
//! free again. A worker that is interrupted at any point delays no other. All slots have the same
//! size, so the head counts requests.
//!
//! # A ring that makes no sense
//!
//! Such a ring ends the queue pairs that come for a buffer, which all belong to the same
//! application.

use std::sync::Arc;

use arrayvec::ArrayVec;
use heddle_base::sync::atomic::{AtomicU64, Ordering, fence};
use heddle_engine::{SharedBroken, SharedReceives};
use heddle_shm::Waker;
use heddle_types::{Data, RecvWr, Sge, wr::MAX_SGES};

use crate::area::Block;
use crate::layout::{self, LINE, opcode, srq as at};
use crate::wqe::{BlockRing, Broken, encode_recv, read_recv, store};

/// The workers' end of the queue, which all workers share.
#[derive(Debug)]
pub struct SrqPool {
    block: Arc<Block>,
    places: Places,
    /// Requests that workers have taken.
    head: AtomicU64,
    waker: Option<Waker>,
}

/// The number of slots in the ring, and the blocks of each slot; powers of two.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    count: u64,
    blocks: u64,
}

impl Places {
    /// Returns room for `depth` receives of up to `max_sge` pieces each.
    pub fn new(depth: u32, max_sge: u16) -> Places {
        let blocks = layout::blocks(opcode::RECV, 2 * usize::from(max_sge)) as u64;
        Places {
            count: u64::from(depth.max(1)).next_power_of_two(),
            blocks: blocks.next_power_of_two(),
        }
    }

    /// Returns the words of a queue with these slots.
    pub fn words(self) -> usize {
        let blocks = usize::try_from(self.count.saturating_mul(self.blocks));
        blocks.unwrap_or(usize::MAX / LINE / 2).saturating_mul(LINE).saturating_add(at::ENTRIES)
    }

    #[inline]
    fn ring(self, block: &Block) -> BlockRing<'_> {
        BlockRing::new(block.lines(), (at::ENTRIES / LINE) as u64, self.count * self.blocks)
    }
}

/// The words of a queue before its entries.
pub type Header = [AtomicU64; at::ENTRIES];

/// Returns the header of this queue, whose block is at least that long.
#[inline]
pub fn header(block: &Block) -> &Header {
    &block.words().as_chunks().0[0]
}

impl SrqPool {
    /// Returns the end of a queue from which no receive has been taken.
    pub fn new(block: Arc<Block>, places: Places, waker: Option<Waker>) -> SrqPool {
        SrqPool { block, places, head: AtomicU64::new(0), waker }
    }

    /// Returns the block that the queue lies in.
    #[inline]
    pub fn block(&self) -> &Arc<Block> {
        &self.block
    }

    /// Writes a receive, which the caller has checked, as request number `tail` of the queue, and
    /// publishes it. Returns the next number, or `None` when `depth` receives are posted already.
    pub fn post(&self, tail: u64, depth: u64, wr: &RecvWr<'_>) -> Option<u64> {
        let words = header(&self.block);
        // Acquire: workers have read the slots before they gave them back.
        let head = words[at::HEAD].load(Ordering::Acquire);
        if tail.wrapping_sub(head) >= depth {
            return None;
        }
        let first = tail.wrapping_mul(self.places.blocks);
        store(self.places.ring(&self.block), (first, 0), encode_recv(wr), &Data::Sges(wr.sges));
        let next = tail.wrapping_add(1);
        // Release: the blocks were stored before.
        words[at::TAIL].store(next, Ordering::Release);
        Some(next)
    }

    /// Takes the oldest receive: returns its mark, and puts its pieces into `sges`.
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
            // The copy, or the error, counts only if the entry is still the oldest: otherwise
            // another worker has the entry, and the application may have overwritten the slot.
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
            // fetch_max: another worker may have taken later entries and stored a higher head
            // already. This entry is safe all the same: its copy was complete before `self.head`
            // moved on.
            words[at::HEAD].fetch_max(next, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.check_limit(next);
            return Ok(Some(wr_id));
        }
    }

    /// Raises the event if the limit is armed and fewer receives are left after `head` were taken.
    #[inline]
    pub fn check_limit(&self, head: u64) {
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

/// The link of a worker's queue pair to a shared receive queue.
#[derive(Debug)]
pub struct Taker(pub Arc<SrqPool>);

impl SharedReceives for Taker {
    #[inline]
    fn take(&mut self, sges: &mut ArrayVec<Sge, MAX_SGES>) -> Result<Option<u64>, SharedBroken> {
        self.0.take(sges).map_err(|_| SharedBroken)
    }
}
