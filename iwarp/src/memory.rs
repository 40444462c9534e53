//! Registered memory, as the protocol sees it.

use crate::rdmap::AtomicOp;
use heddle_base::Sum;

/// A range of registered memory that has passed every check: STag, PD, rights and bounds.
///
/// Only the STag table makes one, so code that holds a `MemRange` need not check again. The
/// address means something to the [`Memory`] alone; it is not the tagged offset of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemRange {
    addr: u64,
    len: u32,
    /// Slot of its region in the STag table.
    mr: u32,
}

impl MemRange {
    pub(crate) const fn new(addr: u64, len: u32, mr: u32) -> MemRange {
        MemRange { addr, len, mr }
    }

    /// No memory.
    pub(crate) const EMPTY: MemRange = MemRange::new(0, 0, 0);

    /// Where the range starts, in the terms of the [`Memory`] it belongs to.
    pub const fn addr(self) -> u64 {
        self.addr
    }

    /// The slot of its region in the STag table, by which [`Pins`](crate::mr::Pins) are counted.
    pub const fn mr(self) -> u32 {
        self.mr
    }

    /// Bytes.
    pub const fn len(self) -> u32 {
        self.len
    }

    /// Whether the range has no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The `len` bytes that start `off` bytes in; `None` when they are not all inside.
    #[must_use]
    pub fn slice(self, off: u32, len: u32) -> Option<MemRange> {
        let end = off.checked_add(len)?;
        (end <= self.len).then(|| MemRange { addr: self.addr + u64::from(off), len, mr: self.mr })
    }
}

/// Access to registered memory.
///
/// The peer and the application write this memory at any time, so it is never a slice: bytes are
/// copied in and out, and a reader must not assume that two reads agree.
pub trait Memory {
    /// Copies `src` to the start of `dst`; bytes of `src` beyond `dst` are not written.
    fn place(&self, dst: MemRange, src: &[u8]);

    /// Copies the start of `src` over `dst`; bytes of `dst` beyond `src` are left alone.
    fn gather(&self, src: MemRange, dst: &mut [u8]);

    /// Copies `src` over `dst`, which has the same length. The two may overlap: `dst` holds afterwards what
    /// `src` held before.
    fn copy(&self, dst: MemRange, src: MemRange);

    /// CRC-32C of the range continued from `crc` (as [`crc32c::crc32c_append`] does it) and its
    /// Internet checksum, counted as if the range began at an even offset.
    fn digest(&self, src: MemRange, crc: u32) -> (u32, Sum);

    /// The Internet checksum alone.
    fn sum(&self, src: MemRange) -> Sum {
        self.digest(src, 0).1
    }

    /// Copies `src` over `dst`, which has the same length, and gives the checksum of what was copied.
    fn copy_sum(&self, src: MemRange, dst: &mut [u8]) -> Sum {
        self.gather(src, dst);
        Sum::of(dst)
    }

    /// Copies `src` over `dst`, which has the same length, and gives the [`digest`](Memory::digest)
    /// of what was copied: whatever is written to `src` meanwhile, the two agree.
    fn copy_digest(&self, src: MemRange, crc: u32, dst: &mut [u8]) -> (u32, Sum) {
        self.gather(src, dst);
        (self.crc(crc, dst), Sum::of(dst))
    }

    /// Carries out `op` on the 8 octets of `at` and gives what stood there before. In one step for
    /// everybody who changes them by atomic operations: other streams, other workers, and the local
    /// processors. Numbers are in the order of the machine. `None`, and nothing changes, when these
    /// are not 8 octets at a multiple of 8.
    fn atomic(&self, at: MemRange, op: AtomicOp) -> Option<u64>;

    /// Whether [`atomic`](Memory::atomic) would carry out an operation here.
    fn takes_atomics(&self, at: MemRange) -> bool;

    /// CRC-32C of ordinary bytes, continued from `crc`.
    fn crc(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(crc, bytes)
    }
}
