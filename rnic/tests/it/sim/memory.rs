//! A host's part of registered memory.

use std::sync::Arc;

use heddle_base::Sum;
use heddle_mr::{MemRange, Memory, testing::TestMemory};
use heddle_types::AtomicOp;

/// Memory of a host: all there is, or the part of it that begins at `base`, after the memory of
/// another host.
#[derive(Clone, Debug)]
pub struct HostMemory {
    all: Arc<TestMemory>,
    pub base: usize,
}

impl HostMemory {
    /// Returns the memories of `parts` hosts, `len` bytes for each, all of which are 0xee.
    pub fn of(parts: usize, len: usize) -> Vec<HostMemory> {
        let all = Arc::new(TestMemory::new(parts * len, 0xee));
        (0..parts).map(|part| HostMemory { all: all.clone(), base: part * len }).collect()
    }

    /// Writes `bytes` at `at`, as the application would.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.all.write(self.base + at, bytes);
    }

    /// Returns the `len` bytes at `at`.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.all.read(self.base + at, len)
    }

    /// Returns all bytes, of all hosts.
    pub fn snapshot(&self) -> Vec<u8> {
        self.all.snapshot()
    }

    /// Returns the number of bytes placed; each byte counts as often as it was placed.
    pub fn placed(&self) -> u64 {
        self.all.placed()
    }
}

impl Memory for HostMemory {
    fn place(&self, dst: MemRange, src: &[u8]) {
        self.all.place(dst, src);
    }

    fn gather(&self, src: MemRange, dst: &mut [u8]) {
        self.all.gather(src, dst);
    }

    fn copy(&self, dst: MemRange, src: MemRange) {
        self.all.copy(dst, src);
    }

    fn digest(&self, src: MemRange, crc: u32) -> (u32, Sum) {
        self.all.digest(src, crc)
    }

    fn atomic(&self, at: MemRange, op: AtomicOp) -> Option<u64> {
        self.all.atomic(at, op)
    }

    fn takes_atomics(&self, at: MemRange) -> bool {
        self.all.takes_atomics(at)
    }
}
