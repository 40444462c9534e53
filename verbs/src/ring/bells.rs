//! Doorbells: which queue pairs of an application have something new.
//!
//! One bit for each queue pair, and one summary bit for each word of them. Ringing and taking are
//! single atomic operations, so nobody can stop half way with a place taken; ringing twice is ringing
//! once; and an application that rings what it does not have costs the worker a look, once a turn.

use heddle_base::sync::atomic::{AtomicU64, Ordering};
use heddle_base::sync::seq_cst_operations;
use std::sync::Arc;

use super::area::{Area, AreaError, Block, Line};
use super::layout::LINE;
use crate::wakeup::WorkerWakers;

/// Queue pairs of one application that can ring at one worker.
pub const BELLS: usize = 4096;

/// Lines of a worker's bells: the summary on one of its own, of which it is the first word, then the
/// bits.
const SUMMARY: usize = 0;
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
    /// Doorbells at `workers` workers.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn new(area: &Arc<Area>, workers: usize) -> Result<Bells, AreaError> {
        let block = Arc::new(area.take(workers * PER_WORKER)?);
        Ok(Bells { block, workers, wakers: None })
    }

    /// Those at `off` of an area that another process has made.
    pub fn attach(area: &Arc<Area>, off: usize, workers: usize) -> Option<Bells> {
        let block = Arc::new(area.at(off, workers.checked_mul(PER_WORKER)?)?);
        Some(Bells { block, workers, wakers: None })
    }

    /// The same, which wake the worker they are rung at should it sleep.
    #[must_use]
    pub fn waking(mut self, wakers: Option<Arc<WorkerWakers>>) -> Bells {
        self.wakers = wakers;
        self
    }

    /// Where they lie in the area.
    pub fn offset(&self) -> usize {
        self.block.offset()
    }

    /// Octets that the bells of so many workers take.
    pub const fn octets(workers: usize) -> usize {
        workers * PER_WORKER * size_of::<u64>()
    }

    /// Workers that can be rung.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// A worker's bells.
    #[inline]
    fn of(&self, worker: usize) -> Option<&[Line; LINES]> {
        self.block.lines().get(worker.checked_mul(LINES)?..)?.first_chunk()
    }

    /// Rings `bell` at `worker`. What was stored before a `SeqCst` fence before this is seen by the
    /// worker when it looks.
    ///
    /// A bell that is still ringing is left alone, which is what makes one post after the other cheap
    /// while the worker is busy. It is enough: the worker's swap is yet to come in the one order of
    /// all that is `SeqCst` here, and its load of the tail comes after that.
    #[inline]
    pub fn ring(&self, worker: usize, bell: u32) {
        let bell = bell as usize % BELLS;
        let (word, bit) = (bell / 64, 1 << (bell % 64));
        let words = self.block.words();
        let Some(first) = worker.checked_mul(PER_WORKER) else { return };
        let (Some(of_bell), Some(summary)) =
            (words.get(first.wrapping_add(LINE + word)), words.get(first.wrapping_add(SUMMARY)))
        else {
            return;
        };
        if of_bell.load(Ordering::SeqCst) & bit == 0 {
            of_bell.fetch_or(bit, Ordering::SeqCst);
        }
        seq_cst_operations();
        // The worker takes the summary first: where the bit stands, it has yet to look at the word.
        if summary.load(Ordering::SeqCst) & 1 << word == 0 {
            summary.fetch_or(1 << word, Ordering::SeqCst);
            // Where the bit stood, whoever set it does this.
            if let Some(wakers) = &self.wakers {
                wakers.wake_after_rmw(worker);
            }
        }
    }

    /// The bells that were rung at `worker`, each once.
    #[inline]
    pub fn take(&self, worker: usize) -> BellsTaken<'_> {
        let Some(lines) = self.of(worker) else { return BellsTaken::default() };
        let summary = &lines[0][SUMMARY];
        // Mostly there is nothing, and a plain load says so.
        if summary.load(Ordering::Relaxed) == 0 {
            return BellsTaken::default();
        }
        let words = lines[1..].as_flattened();
        let summary = summary.swap(0, Ordering::SeqCst);
        seq_cst_operations();
        BellsTaken { words, summary, word: 0, bits: 0 }
    }
}

/// See [`Bells::take`].
#[derive(Debug, Default)]
pub struct BellsTaken<'a> {
    words: &'a [AtomicU64],
    summary: u64,
    word: u32,
    bits: u64,
}

impl Iterator for BellsTaken<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.bits == 0 {
            if self.summary == 0 {
                return None;
            }
            self.word = self.summary.trailing_zeros();
            self.summary &= self.summary - 1;
            self.bits = self.words.get(self.word as usize)?.swap(0, Ordering::SeqCst);
            seq_cst_operations();
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(self.word * 64 + bit)
    }
}

const _: () = assert!(BELLS / 64 <= 64 && (BELLS / 64).is_multiple_of(LINE));

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_base::sync::atomic::fence;

    #[test]
    fn test_each_bell_is_taken_once_at_its_worker() {
        let area = Area::new(Bells::octets(2)).unwrap();
        let bells = Bells::new(&area, 2).unwrap();
        for b in [0, 63, 64, 4095, 64, 4096 + 5] {
            bells.ring(1, b);
        }
        assert_eq!(bells.take(0).count(), 0);
        assert_eq!(bells.take(1).collect::<Vec<_>>(), [0, 5, 63, 64, 4095]);
        assert_eq!(bells.take(1).count(), 0);
        bells.ring(7, 1);
        assert_eq!(bells.take(7).count(), 0);
    }

    /// Every ring is heard although two threads ring and one takes.
    #[test]
    fn test_no_ring_is_lost_between_threads() {
        const ROUNDS: u64 = if cfg!(miri) { 100 } else { 20_000 };
        let area = Area::new(Bells::octets(1) + 128).unwrap();
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
