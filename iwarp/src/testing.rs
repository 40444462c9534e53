//! Memory for tests, here and in other crates (feature `testing`).

use crate::rdmap::AtomicOp;
use crate::{MemRange, Memory};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use heddle_base::Sum;

/// Registered memory made of ordinary atomics; addresses are offsets into it.
///
/// A range outside of it is a bug of the code under test and panics.
#[derive(Debug, Default)]
pub struct TestMemory {
    cells: Vec<AtomicU8>,
    placed: AtomicU64,
}

impl TestMemory {
    /// `len` bytes, each `fill`.
    pub fn new(len: usize, fill: u8) -> TestMemory {
        TestMemory {
            cells: (0..len).map(|_| AtomicU8::new(fill)).collect(),
            placed: AtomicU64::new(0),
        }
    }

    /// Bytes that were placed in it, each as often as it was.
    pub fn placed(&self) -> u64 {
        self.placed.load(Relaxed)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Writes `bytes` at `at`, as the application would.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        for (cell, b) in self.cells[at..at + bytes.len()].iter().zip(bytes) {
            cell.store(*b, Relaxed);
        }
    }

    /// The `len` bytes at `at`.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.cells[at..at + len].iter().map(|c| c.load(Relaxed)).collect()
    }

    /// All bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        self.read(0, self.len())
    }

    fn cells(&self, range: MemRange) -> &[AtomicU8] {
        let at = usize::try_from(range.addr()).expect("address inside");
        &self.cells[at..at + range.len() as usize]
    }
}

impl Memory for TestMemory {
    fn place(&self, dst: MemRange, src: &[u8]) {
        let n = src.len().min(dst.len() as usize) as u64;
        self.placed.fetch_add(n, Relaxed);
        for (cell, b) in self.cells(dst).iter().zip(src) {
            cell.store(*b, Relaxed);
        }
    }

    fn gather(&self, src: MemRange, dst: &mut [u8]) {
        for (cell, b) in self.cells(src).iter().zip(dst) {
            *b = cell.load(Relaxed);
        }
    }

    fn digest(&self, src: MemRange, crc: u32) -> (u32, Sum) {
        let (mut crc, mut sum) = (crc, Sum::ZERO);
        let mut piece = [0; 256];
        for cells in self.cells(src).chunks(256) {
            for (b, cell) in piece.iter_mut().zip(cells) {
                *b = cell.load(Relaxed);
            }
            let bytes = &piece[..cells.len()];
            crc = self.crc(crc, bytes);
            sum = sum.plus(Sum::of(bytes));
        }
        (crc, sum)
    }

    fn atomic(&self, at: MemRange, op: AtomicOp) -> Option<u64> {
        if !self.takes_atomics(at) {
            return None;
        }
        // Tests run both ends in one thread.
        let mut bytes = [0; 8];
        self.gather(at, &mut bytes);
        let original = u64::from_ne_bytes(bytes);
        self.place(at, &op.apply(original).to_ne_bytes());
        Some(original)
    }

    fn takes_atomics(&self, at: MemRange) -> bool {
        at.len() == 8 && at.addr().is_multiple_of(8)
    }
}
