//! Doorbells: which queue pairs of an application have new requests.
//!
//! Each queue pair has one bit, and each word of bits has one summary bit. Ringing and taking are
//! single atomic operations, so no thread can stop half way with a place taken. Ringing twice is
//! the same as ringing once. The words of summary bits share a line, which is all that a worker
//! reads while no bell rings. An application that rings a bell without a queue pair costs the worker
//! a look, once a turn.

use heddle_base::sync::atomic::{AtomicU64, Ordering};
use heddle_base::sync::seq_cst_operations;
use std::sync::Arc;

use super::area::{Area, AreaError, Block, Line};
use super::layout::LINE;
use crate::wakeup::WorkerWakers;

/// Queue pairs of one application that can ring at one worker.
pub const BELLS: usize = 16 * 1024;

/// Words of summary bits, the first words of a line of their own.
const SUMMARIES: usize = BELLS / 64 / 64;
/// Lines of a worker's bells: first that of the summaries, then the bits.
const LINES: usize = 1 + BELLS / 64 / LINE;
const PER_WORKER: usize = LINES * LINE;

/// The doorbells of one application, one set for each worker.
#[derive(Clone, Debug)]
pub struct Bells {
    block: Arc<Block>,
    workers: usize,
    /// Wakes workers that sleep.
    wakers: Option<Arc<WorkerWakers>>,
}

impl Bells {
    /// Returns doorbells at `workers` workers.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn new(area: &Arc<Area>, workers: usize) -> Result<Bells, AreaError> {
        let block = Arc::new(area.take(workers * PER_WORKER)?);
        Ok(Bells { block, workers, wakers: None })
    }

    /// Returns the doorbells at `off` of an area that another process has made.
    pub fn attach(area: &Arc<Area>, off: usize, workers: usize) -> Option<Bells> {
        let block = Arc::new(area.at(off, workers.checked_mul(PER_WORKER)?)?);
        Some(Bells { block, workers, wakers: None })
    }

    /// Returns these doorbells; a ring now also wakes its worker if the worker sleeps.
    #[must_use]
    pub fn waking(mut self, wakers: Option<Arc<WorkerWakers>>) -> Bells {
        self.wakers = wakers;
        self
    }

    /// Returns the place of the doorbells in their area.
    pub fn offset(&self) -> usize {
        self.block.offset()
    }

    /// Returns the bytes that the bells of so many workers take.
    pub const fn bytes(workers: usize) -> usize {
        workers * PER_WORKER * size_of::<u64>()
    }

    /// Returns the number of workers that can be rung.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Returns a worker's bells.
    #[inline]
    fn of(&self, worker: usize) -> Option<&[Line; LINES]> {
        self.block.lines().get(worker.checked_mul(LINES)?..)?.first_chunk()
    }

    /// Rings `bell` at `worker`. If the caller executes a `SeqCst` fence before this call, the
    /// worker, when it looks, sees every store before that fence.
    ///
    /// A bell that is still ringing is left alone, which makes several posts in a row cheap while
    /// the worker is busy. This is safe: in the single order of all `SeqCst` operations, the
    /// worker's swap of the bell is yet to come, and the worker loads the tail after that swap.
    #[inline]
    pub fn ring(&self, worker: usize, bell: u32) {
        let bell = bell as usize % BELLS;
        let (word, bit) = (bell / 64, 1 << (bell % 64));
        let words = self.block.words();
        let Some(first) = worker.checked_mul(PER_WORKER) else { return };
        let (Some(of_bell), Some(summary)) =
            (words.get(first.wrapping_add(LINE + word)), words.get(first.wrapping_add(word / 64)))
        else {
            return;
        };
        let of_word = 1 << (word % 64);
        if of_bell.load(Ordering::SeqCst) & bit == 0 {
            of_bell.fetch_or(bit, Ordering::SeqCst);
        }
        seq_cst_operations();
        // The worker takes the summary before the words: while the summary's bit is set, the worker
        // has yet to look at the word.
        if summary.load(Ordering::SeqCst) & of_word == 0 {
            summary.fetch_or(of_word, Ordering::SeqCst);
            // If the bit was set already, the thread that set it wakes the worker.
            if let Some(wakers) = &self.wakers {
                wakers.wake_after_rmw(worker);
            }
        }
    }

    /// Takes the bells that were rung at `worker`, each once.
    #[inline]
    pub fn take(&self, worker: usize) -> BellsTaken<'_> {
        let Some([first, rest @ ..]) = self.of(worker) else { return BellsTaken::default() };
        let summaries = first.first_chunk::<SUMMARIES>().map_or(&[][..], |s| &s[..]);
        // Usually no bell rings, and plain loads of one line show that.
        if summaries.iter().fold(0, |any, s| any | s.load(Ordering::Relaxed)) == 0 {
            return BellsTaken::default();
        }
        BellsTaken { summaries, words: rest.as_flattened(), ..BellsTaken::default() }
    }
}

/// See [`Bells::take`].
#[derive(Debug, Default)]
pub struct BellsTaken<'a> {
    /// The words of summary bits that are not taken yet.
    summaries: &'a [AtomicU64],
    words: &'a [AtomicU64],
    summary: u64,
    /// The word after those of `summary`.
    after: u32,
    word: u32,
    bits: u64,
}

impl BellsTaken<'_> {
    /// Takes the next word of summary bits; returns false after the last.
    fn next_summary(&mut self) -> bool {
        let Some((summary, later)) = self.summaries.split_first() else { return false };
        self.summaries = later;
        self.after += 64;
        if summary.load(Ordering::Relaxed) != 0 {
            self.summary = summary.swap(0, Ordering::SeqCst);
            seq_cst_operations();
        }
        true
    }
}

impl Iterator for BellsTaken<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.bits == 0 {
            while self.summary == 0 {
                if !self.next_summary() {
                    return None;
                }
            }
            self.word = self.after - 64 + self.summary.trailing_zeros();
            self.summary &= self.summary - 1;
            self.bits = self.words.get(self.word as usize)?.swap(0, Ordering::SeqCst);
            seq_cst_operations();
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(self.word * 64 + bit)
    }
}

const _: () = assert!(SUMMARIES <= LINE && BELLS.is_multiple_of(64 * 64));

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_base::sync::atomic::fence;

    #[test]
    fn test_each_bell_is_taken_once_by_its_worker() {
        let area = Area::new(Bells::bytes(2)).unwrap();
        let bells = Bells::new(&area, 2).unwrap();
        let last = u32::try_from(BELLS).unwrap() - 1;
        for b in [0, 63, 64, 4095, last, 64, 4096, 8191, last + 1 + 5] {
            bells.ring(1, b);
        }
        assert_eq!(bells.take(0).count(), 0);
        assert_eq!(bells.take(1).collect::<Vec<_>>(), [0, 5, 63, 64, 4095, 4096, 8191, last]);
        assert_eq!(bells.take(1).count(), 0);
        bells.ring(7, 1);
        assert_eq!(bells.take(7).count(), 0);
    }

    /// The worker hears every ring although two threads ring at the same time.
    #[test]
    fn test_no_ring_is_lost_between_threads() {
        const ROUNDS: u64 = if cfg!(miri) { 100 } else { 20_000 };
        let area = Area::new(Bells::bytes(1) + 128).unwrap();
        let bells = Bells::new(&area, 1).unwrap();
        let posted: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
        let heard: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|s| {
            for i in 0..2usize {
                let (bells, posted, heard) = (&bells, &posted, &heard);
                s.spawn(move || {
                    for n in 1..=ROUNDS {
                        posted[i].store(n, Ordering::Relaxed);
                        fence(Ordering::SeqCst);
                        bells.ring(0, u32::try_from(i).unwrap());
                        if n % 64 == 0 {
                            while heard[i].load(Ordering::Relaxed) < n {
                                std::thread::yield_now();
                            }
                        }
                    }
                });
            }
            while heard.iter().any(|h| h.load(Ordering::Relaxed) < ROUNDS) {
                for bell in bells.take(0) {
                    let i = bell as usize;
                    heard[i].store(posted[i].load(Ordering::SeqCst), Ordering::Relaxed);
                }
                std::thread::yield_now();
            }
        });
    }
}
