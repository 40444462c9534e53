//! Registered memory as a worker reaches it: looks up addresses of the protocol in the table of
//! regions, and moves bytes there.

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use heddle_base::Sum;
use heddle_mr::{MemRange, Memory};
use heddle_types::AtomicOp;

use super::atomic;
use super::readers::Reader;
use super::region_table::{RegionId, RegionTable};

heddle_base::counters! {
    /// Copies between frames and registered memory. These counters are independent of those of the
    /// protocols: they count every byte that gets into or out of registered memory on a worker,
    /// except by a frame that refers to the memory.
    pub struct MemoryCounters {
        /// Bytes copied into registered memory.
        mem_placed_bytes,
        /// Bytes copied out of registered memory.
        mem_gathered_bytes,
        /// Bytes copied from registered memory to registered memory, once each: between two queue
        /// pairs of one worker.
        mem_copied_bytes,
    }
}

/// Registered memory of one RNIC as one worker sees it. Each access is checked against the region:
/// no range, however made, reaches beyond.
#[derive(Debug)]
pub struct RegionMemory {
    regions: Arc<RegionTable>,
    reader: Reader,
    placed: Cell<u64>,
    gathered: Cell<u64>,
    copied: Cell<u64>,
}

impl RegionMemory {
    /// Returns the memory of `regions`, for one worker.
    pub fn new(regions: Arc<RegionTable>) -> RegionMemory {
        let reader = regions.readers.reader();
        let zero = || Cell::new(0);
        RegionMemory { regions, reader, placed: zero(), gathered: zero(), copied: zero() }
    }

    /// Notes that the worker holds no address of a region at this point. The worker calls this once
    /// per turn: memory is used again only after this call.
    #[inline]
    pub fn quiescent(&self) {
        self.reader.quiescent();
    }

    /// Returns the table of regions.
    pub fn regions(&self) -> &Arc<RegionTable> {
        &self.regions
    }

    /// Returns the address of a range, or `None` when the range does not lie in a region. The
    /// address is valid until the next [`quiescent`](RegionMemory::quiescent), and as long as
    /// another owner keeps the region.
    #[inline]
    pub fn ptr(&self, range: MemRange) -> Option<*mut u8> {
        let (id, off) = RegionId::split(range.addr());
        let slot = self.regions.slots.get(id.index())?;
        let end = off.checked_add(range.len() as usize)?;
        // Acquire: the base was stored before the length.
        if end > slot.len.load(Ordering::Acquire) {
            return None;
        }
        Some(slot.base.load(Ordering::Relaxed).wrapping_add(off))
    }

    /// As [`ptr`](RegionMemory::ptr), for a device that reads the range where it lies; `None` also
    /// where devices cannot.
    #[inline]
    pub fn dma_ptr(&self, range: MemRange) -> Option<*mut u8> {
        let p = self.ptr(range)?;
        let (id, _) = RegionId::split(range.addr());
        let slot = self.regions.slots.get(id.index())?;
        slot.dma.load(Ordering::Relaxed).then_some(p)
    }

    /// Returns the bytes copied through this handle.
    pub fn counters(&self) -> MemoryCounters {
        MemoryCounters {
            mem_placed_bytes: self.placed.get(),
            mem_gathered_bytes: self.gathered.get(),
            mem_copied_bytes: self.copied.get(),
        }
    }

    #[inline]
    fn count_gathered(&self, n: usize) {
        self.gathered.set(self.gathered.get() + n as u64);
    }

    /// Returns the address again, or null. An STag names only memory in a region, and the region
    /// stays until no worker can know the STag, so null never occurs.
    #[inline]
    fn known(&self, range: MemRange) -> *mut u8 {
        let p = self.ptr(range);
        debug_assert!(p.is_some(), "the STag table knows a range outside the regions");
        p.unwrap_or(ptr::null_mut())
    }
}

// SAFETY argument of the functions below: `known` gives null or an address that is valid for the
// range. The slot held base and length of a region when `known` read them, and regions that are
// taken out stay mapped until this reader has passed its next quiescent point. The reader passes
// none in here (`&self` of one thread).
impl Memory for RegionMemory {
    #[inline]
    fn place(&self, dst: MemRange, src: &[u8]) {
        let n = src.len().min(dst.len() as usize);
        self.placed.set(self.placed.get() + n as u64);
        let p = self.known(dst);
        if !p.is_null() {
            // SAFETY: see above; n is at most the range's length, and `src` is a reference.
            unsafe { heddle_digest::place(p, &src[..n]) };
        }
    }

    #[inline]
    fn gather(&self, src: MemRange, dst: &mut [u8]) {
        let n = dst.len().min(src.len() as usize);
        self.count_gathered(n);
        let p = self.known(src);
        if !p.is_null() {
            // SAFETY: as in `place`.
            unsafe { heddle_digest::gather(p, &mut dst[..n]) };
        }
    }

    #[inline]
    fn copy(&self, dst: MemRange, src: MemRange) {
        let n = dst.len().min(src.len()) as usize;
        self.copied.set(self.copied.get() + n as u64);
        let (to, from) = (self.known(dst), self.known(src));
        if !to.is_null() && !from.is_null() {
            // SAFETY: as in `place`, for both ranges; n is at most the length of either.
            unsafe { heddle_digest::transfer(to, from, n) };
        }
    }

    #[inline]
    fn digest(&self, src: MemRange, crc: u32) -> (u32, Sum) {
        let p = self.known(src);
        if p.is_null() {
            return (crc, Sum::ZERO);
        }
        // SAFETY: as in `place`.
        unsafe { heddle_digest::digest(p, src.len() as usize, crc) }
    }

    #[inline]
    fn sum(&self, src: MemRange) -> Sum {
        let p = self.known(src);
        if p.is_null() {
            return Sum::ZERO;
        }
        // SAFETY: as in `place`.
        unsafe { heddle_digest::sum_at(p, src.len() as usize) }
    }

    #[inline]
    fn copy_sum(&self, src: MemRange, dst: &mut [u8]) -> Sum {
        let n = dst.len().min(src.len() as usize);
        self.count_gathered(n);
        let p = self.known(src);
        if p.is_null() {
            return Sum::ZERO;
        }
        // SAFETY: as in `place`.
        unsafe { heddle_digest::gather_sum(p, &mut dst[..n]) }
    }

    #[inline]
    fn copy_digest(&self, src: MemRange, crc: u32, dst: &mut [u8]) -> (u32, Sum) {
        let n = dst.len().min(src.len() as usize);
        self.count_gathered(n);
        let p = self.known(src);
        if p.is_null() {
            return (crc, Sum::ZERO);
        }
        // SAFETY: as in `place`.
        unsafe { heddle_digest::gather_digest(p, &mut dst[..n], crc) }
    }

    #[inline]
    fn copy_crc(&self, src: MemRange, crc: u32, dst: &mut [u8]) -> u32 {
        let n = dst.len().min(src.len() as usize);
        self.count_gathered(n);
        let p = self.known(src);
        if p.is_null() {
            return crc;
        }
        // SAFETY: as in `place`.
        unsafe { heddle_digest::gather_crc(p, &mut dst[..n], crc) }
    }

    #[inline]
    fn copy_framed(
        &self,
        src: MemRange,
        head: usize,
        dst: &mut [u8],
        also: Option<&mut [u8]>,
    ) -> u32 {
        let all = dst.len().min(head.saturating_add(src.len() as usize));
        let also = match also {
            Some(also) => also.get_mut(..all).map(Some),
            None => Some(None),
        };
        let p = self.known(src);
        let Some(also) = also.filter(|_| head <= all && !p.is_null()) else { return 0 };
        self.count_gathered(all - head);
        // SAFETY: as in `place`; the bytes after `head` are no more than the range has.
        unsafe { heddle_digest::gather_framed(p, head, &mut dst[..all], also) }
    }

    fn atomic(&self, at: MemRange, op: AtomicOp) -> Option<u64> {
        if !self.takes_atomics(at) {
            return None;
        }
        // SAFETY: as in `place`, for the 8 bytes of the range; `takes_atomics` has just checked
        // that the address is aligned and not null.
        Some(unsafe { atomic::apply(self.known(at), op) })
    }

    fn takes_atomics(&self, at: MemRange) -> bool {
        let p = self.known(at);
        // The address has to be aligned, whatever the tagged offset is.
        at.len() == 8 && !p.is_null() && p.cast::<u64>().is_aligned()
    }

    #[inline]
    fn crc(&self, crc: u32, bytes: &[u8]) -> u32 {
        heddle_digest::crc32c_append(crc, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_base::Seed;
    use heddle_mr::MrTable;
    use heddle_types::{Access, Pd, Qpn};
    use std::sync::atomic::AtomicU64;

    use heddle_shm::Region;

    /// Returns a region of 4096 zeros in a table of its own, as a worker sees it, and its address.
    fn alone() -> (RegionMemory, Arc<Region>, u64) {
        let regions = Arc::new(RegionTable::new(1, None));
        let region = Arc::new(Region::anonymous(4096).unwrap());
        let id = regions.insert(&region).unwrap();
        (RegionMemory::new(regions), region, id.addr(0))
    }

    fn range(table: &MrTable, addr: u64, off: u64, len: u32) -> MemRange {
        let mr = table.register(Pd(1), addr, 0, 4096, Access::REMOTE_WRITE).unwrap();
        table.check(Pd(1), Qpn(1), mr.stag, off, len, Access::REMOTE_WRITE).unwrap()
    }

    #[test]
    fn test_region_memory_places_and_gathers_any_length_and_no_other_byte() {
        let (mem, region, addr) = alone();
        let table = MrTable::new(&Seed::from_u64(1), 128);
        for len in 0..=40u32 {
            let n = len as usize;
            let bytes: Vec<u8> = (1..=40).take(n).collect();
            region.place(0, &[0xee; 64]).unwrap();
            if len > 0 {
                mem.place(range(&table, addr, 3, len), &bytes);
            }
            let mut all = [0; 64];
            region.gather(0, &mut all).unwrap();
            assert_eq!((&all[..3], &all[3..3 + n]), (&[0xee; 3][..], &bytes[..]), "{len}");
            assert!(all[3 + n..].iter().all(|b| *b == 0xee), "{len}");
            let mut back = vec![0; n];
            if len > 0 {
                mem.gather(range(&table, addr, 3, len), &mut back);
            }
            assert_eq!(back, bytes, "{len}");
        }
    }

    #[test]
    fn test_region_memory_copies_any_length_and_no_other_byte() {
        let (mem, region, addr) = alone();
        let table = MrTable::new(&Seed::from_u64(1), 256);
        let mut copied = 0;
        for len in 1..=70u32 {
            let n = len as usize;
            let bytes: Vec<u8> = (1..=70).take(n).collect();
            region.place(0, &[0xee; 256]).unwrap();
            region.place(128 + 3, &bytes).unwrap();
            mem.copy(range(&table, addr, 5, len), range(&table, addr, 131, len));
            copied += u64::from(len);
            let mut all = [0; 128];
            region.gather(0, &mut all).unwrap();
            assert_eq!((&all[..5], &all[5..5 + n]), (&[0xee; 5][..], &bytes[..]), "{len}");
            assert!(all[5 + n..].iter().all(|b| *b == 0xee), "{len}");
        }
        let want = MemoryCounters { mem_copied_bytes: copied, ..MemoryCounters::default() };
        assert_eq!(mem.counters(), want);
    }

    #[test]
    fn test_region_memory_copies_overlapping_ranges_correctly() {
        let (mem, region, addr) = alone();
        let table = MrTable::new(&Seed::from_u64(1), 2048);
        for len in [1, 7, 8, 9, 16, 17, 31, 33, 64, 500] {
            for (to, from) in [(64, 64), (64, 65), (65, 64), (64, 71), (71, 64), (64, 80), (80, 64)]
            {
                let before: Vec<u8> = (0..=255).cycle().take(700).collect();
                region.place(0, &before).unwrap();
                mem.copy(range(&table, addr, to, len), range(&table, addr, from, len));
                let [to, from, len] =
                    [to, from, u64::from(len)].map(|n| usize::try_from(n).unwrap());
                let mut want = before.clone();
                want[to..to + len].copy_from_slice(&before[from..from + len]);
                let mut found = vec![0; 700];
                region.gather(0, &mut found).unwrap();
                assert_eq!(found, want, "{len} from {from} to {to}");
            }
        }
    }

    #[test]
    fn test_atomic_is_refused_unless_eight_bytes_and_aligned() {
        let (mem, region, addr) = alone();
        let table = MrTable::new(&Seed::from_u64(1), 4);
        let op = AtomicOp::swap(u64::MAX);
        for (off, len) in [(1, 8), (4, 8), (8, 4)] {
            assert_eq!(mem.atomic(range(&table, addr, off, len), op), None, "{off} {len}");
        }
        let mut all = [0; 4096];
        region.gather(0, &mut all).unwrap();
        assert_eq!(all, [0; 4096], "something was written");
        assert_eq!(mem.atomic(range(&table, addr, 4088, 8), op), Some(0));
    }

    #[test]
    fn test_concurrent_atomics_of_workers_and_processors_lose_no_update() {
        // Far longer than a thread takes to start, or than it has the processor at a time.
        const EACH: u64 = if cfg!(miri) { 50 } else { 500_000 };
        let start = std::sync::Barrier::new(4);
        let (mem, region, addr) = alone();
        let table = MrTable::new(&Seed::from_u64(1), 4);
        let at = range(&table, addr, 64, 8);
        let regions = mem.regions().clone();
        let word = region.base().as_ptr().wrapping_add(64) as usize;
        std::thread::scope(|s| {
            for mask in [0, 1 << 63] {
                let (other, start) = (RegionMemory::new(regions.clone()), &start);
                s.spawn(move || {
                    start.wait();
                    for _ in 0..EACH {
                        other.atomic(at, AtomicOp::FetchAdd { add: 1, mask });
                    }
                });
            }
            let start = &start;
            s.spawn(move || {
                // A compare-and-swap that counts only when it succeeds.
                let mut hits = 0;
                let mut seen = 0;
                let other = RegionMemory::new(regions);
                start.wait();
                while hits < EACH {
                    let op = AtomicOp::CmpSwap {
                        compare: seen,
                        compare_mask: u64::MAX,
                        swap: seen + 1,
                        swap_mask: u64::MAX,
                    };
                    let was = other.atomic(at, op).unwrap();
                    hits += u64::from(was == seen);
                    seen = was + u64::from(was == seen);
                }
            });
            start.wait();
            for _ in 0..EACH {
                // SAFETY: aligned, inside the region, which outlives the scope.
                unsafe { AtomicU64::from_ptr(word as *mut u64) }.fetch_add(1, Ordering::SeqCst);
            }
        });
        let read = AtomicOp::FetchAdd { add: 0, mask: 0 };
        assert_eq!(mem.atomic(at, read), Some(4 * EACH));
    }
}
