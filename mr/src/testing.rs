//! Memory for tests of this crate and of others (feature `testing`).

use crate::{MemRange, Memory};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use heddle_base::Sum;
use heddle_types::AtomicOp;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Registered memory under a lock, with offsets into it as addresses. Copies are as fast in an
/// unoptimised build, which most test builds are, as in an optimised one.
///
/// A range outside of this memory is a bug of the code under test and panics.
#[derive(Debug, Default)]
pub struct TestMemory {
    bytes: Mutex<Vec<u8>>,
    placed: AtomicU64,
}

impl TestMemory {
    /// Makes a memory of `len` bytes, each `fill`.
    pub fn new(len: usize, fill: u8) -> TestMemory {
        TestMemory { bytes: Mutex::new(vec![fill; len]), placed: AtomicU64::new(0) }
    }

    /// Returns the number of bytes placed, each counted as often as it was placed.
    pub fn placed(&self) -> u64 {
        self.placed.load(Relaxed)
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Returns true if the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes `bytes` at `at`, as the application would.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.bytes()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the `len` bytes at `at`.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.bytes()[at..at + len].to_vec()
    }

    /// Returns a copy of all bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes().clone()
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the first `most` bytes of a range, or all of it if it is shorter.
fn start_of(range: MemRange, most: usize) -> Range<usize> {
    let at = usize::try_from(range.addr()).expect("address inside");
    at..at + most.min(range.len() as usize)
}

impl Memory for TestMemory {
    fn place(&self, dst: MemRange, src: &[u8]) {
        let dst = start_of(dst, src.len());
        self.placed.fetch_add(dst.len() as u64, Relaxed);
        let src = &src[..dst.len()];
        self.bytes()[dst].copy_from_slice(src);
    }

    fn gather(&self, src: MemRange, dst: &mut [u8]) {
        let src = start_of(src, dst.len());
        dst[..src.len()].copy_from_slice(&self.bytes()[src]);
    }

    fn copy(&self, dst: MemRange, src: MemRange) {
        let dst = start_of(dst, src.len() as usize);
        let src = start_of(src, dst.len());
        self.placed.fetch_add(dst.len() as u64, Relaxed);
        self.bytes().copy_within(src, dst.start);
    }

    fn digest(&self, src: MemRange, crc: u32) -> (u32, Sum) {
        let bytes = &self.bytes()[start_of(src, usize::MAX)];
        (self.crc(crc, bytes), Sum::of(bytes))
    }

    fn atomic(&self, at: MemRange, op: AtomicOp) -> Option<u64> {
        if !self.takes_atomics(at) {
            return None;
        }
        // Not indivisible, which suffices here: tests run both ends in one thread.
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

/// Returns a range that no table has granted.
pub const fn range(addr: u64, len: u32, mr: u32) -> MemRange {
    MemRange::new(addr, len, mr)
}
