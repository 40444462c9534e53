//! Registered memory, as the protocol sees it.

use heddle_base::Sum;
use heddle_types::AtomicOp;

/// A range of registered memory that has passed every check: STag, PD, rights and bounds.
///
/// Only the STag table makes a `MemRange`, so code that holds one need not check again. Only the
/// [`Memory`] can interpret the address, which is not the tagged offset of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemRange {
    addr: u64,
    len: u32,
    /// Slot of the region in the STag table.
    mr: u32,
}

impl MemRange {
    pub(crate) const fn new(addr: u64, len: u32, mr: u32) -> MemRange {
        MemRange { addr, len, mr }
    }

    /// A range without memory.
    pub const EMPTY: MemRange = MemRange::new(0, 0, 0);

    /// Returns the address at which the range starts, in the terms of its [`Memory`].
    pub const fn addr(self) -> u64 {
        self.addr
    }

    /// Returns the slot of the region in the STag table, by which [`Pins`](crate::Pins) count.
    pub const fn mr(self) -> u32 {
        self.mr
    }

    /// Returns the length in bytes.
    pub const fn len(self) -> u32 {
        self.len
    }

    /// Returns true if the range has no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the `len` bytes that start `off` bytes into the range, or `None` when they are not
    /// all inside.
    #[must_use]
    pub fn slice(self, off: u32, len: u32) -> Option<MemRange> {
        let end = off.checked_add(len)?;
        (end <= self.len).then(|| MemRange { addr: self.addr + u64::from(off), len, mr: self.mr })
    }
}

/// Access to registered memory.
///
/// The peer and the application write this memory at any time, so it is never a slice. The crate
/// copies bytes in and out, and a reader must not assume that two reads agree.
pub trait Memory {
    /// Copies `src` to the start of `dst`; bytes of `src` beyond `dst` are not written.
    fn place(&self, dst: MemRange, src: &[u8]);

    /// Copies the start of `src` over `dst`; bytes of `dst` beyond `src` are left alone.
    fn gather(&self, src: MemRange, dst: &mut [u8]);

    /// Copies `src` over `dst`, which has the same length. The two may overlap: `dst` then holds
    /// what `src` held before the call.
    fn copy(&self, dst: MemRange, src: MemRange);

    /// Returns the CRC-32C of the range, continued from `crc` (as [`crc32c::crc32c_append`] does
    /// it), and the Internet checksum of the range, counted as if the range began at an even
    /// offset.
    fn digest(&self, src: MemRange, crc: u32) -> (u32, Sum);

    /// Returns the Internet checksum alone.
    fn sum(&self, src: MemRange) -> Sum {
        self.digest(src, 0).1
    }

    /// Copies `src` over `dst`, which has the same length, and returns the checksum of the copied
    /// bytes.
    fn copy_sum(&self, src: MemRange, dst: &mut [u8]) -> Sum {
        self.gather(src, dst);
        Sum::of(dst)
    }

    /// Copies `src` over `dst`, which has the same length, and returns the
    /// [`digest`](Memory::digest) of the copied bytes. The digest and `dst` agree even if `src`
    /// changes meanwhile.
    fn copy_digest(&self, src: MemRange, crc: u32, dst: &mut [u8]) -> (u32, Sum) {
        self.gather(src, dst);
        (self.crc(crc, dst), Sum::of(dst))
    }

    /// Does the same without the checksum; returns the CRC.
    fn copy_crc(&self, src: MemRange, crc: u32, dst: &mut [u8]) -> u32 {
        self.copy_digest(src, crc, dst).0
    }

    /// Copies `src` over `dst` after its first `head` bytes, and to the same place in `also`, which is
    /// as long as `dst`, if there is one. Returns the CRC of all of `dst`. The bytes in both places are
    /// those of the CRC even if `src` changes meanwhile.
    fn copy_framed(
        &self,
        src: MemRange,
        head: usize,
        dst: &mut [u8],
        also: Option<&mut [u8]>,
    ) -> u32 {
        let Some((start, payload)) = dst.split_at_mut_checked(head) else { return 0 };
        let crc = self.copy_crc(src, self.crc(0, start), payload);
        if let Some(also) = also.and_then(|a| a.get_mut(head..)) {
            let n = also.len().min(payload.len());
            also[..n].copy_from_slice(&payload[..n]);
        }
        crc
    }

    /// Carries out `op` on the 8 bytes of `at` and returns their value before. The step is
    /// indivisible for everything that changes them by atomic operations: other streams, other
    /// workers, and the local processors. Numbers are in the byte order of the machine. Returns
    /// `None` and changes nothing when `at` is not 8 bytes at a multiple of 8.
    fn atomic(&self, at: MemRange, op: AtomicOp) -> Option<u64>;

    /// Returns true if [`atomic`](Memory::atomic) would carry out an operation on `at`.
    fn takes_atomics(&self, at: MemRange) -> bool;

    /// Returns the CRC-32C of ordinary bytes, continued from `crc`.
    fn crc(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(crc, bytes)
    }
}
