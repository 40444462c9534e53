//! Registered memory that a device reaches through an IOMMU.

use std::sync::Arc;

use heddle_dpdk_sys as sys;
use heddle_shm::Region;

use crate::eal;

/// Lets a device reach memory, and ends this access.
pub(crate) trait Dma {
    /// Maps `[base, base + len)` at the same addresses for the device; an error is an error number
    /// of DPDK.
    fn map(&self, base: *mut u8, len: usize) -> Result<(), i32>;

    /// Unmaps exactly the range that [`Dma::map`] mapped.
    fn unmap(&self, base: *mut u8, len: usize);
}

/// A physical device, by the handle of its bus in DPDK.
#[derive(Debug)]
pub(crate) struct BusDevice(*mut sys::rte_device);

// SAFETY: the pointer is only handed to DPDK, by one thread at a time (`Mapping`s lie behind a
// lock), and the device stays plugged in as long as a `Mapping` has it.
unsafe impl Send for BusDevice {}

impl BusDevice {
    /// # Safety
    /// `device` is plugged in and stays so as long as the result lives.
    pub(crate) unsafe fn new(device: *mut sys::rte_device) -> BusDevice {
        BusDevice(device)
    }
}

impl Dma for BusDevice {
    fn map(&self, base: *mut u8, len: usize) -> Result<(), i32> {
        // SAFETY: the device is plugged in; the range is registered external memory,
        // and its IOVA is its address (iova-mode=va).
        let rc = unsafe { sys::rte_dev_dma_map(self.0, base.cast(), base as u64, len) };
        if rc == 0 { Ok(()) } else { Err(eal::last_errno()) }
    }

    fn unmap(&self, base: *mut u8, len: usize) {
        // SAFETY: as for `map`, and this range was mapped. The caller can do nothing about an
        // error.
        let _ = unsafe { sys::rte_dev_dma_unmap(self.0, base.cast(), base as u64, len) };
    }
}

/// A region that a device may reach. The mapping keeps the memory, and when dropped unmaps it
/// first: the IOMMU never lets a device into memory that is freed or belongs to another owner.
#[derive(Debug)]
pub(crate) struct Mapping<D: Dma = BusDevice> {
    dma: D,
    region: Arc<Region>,
    len: usize,
}

impl<D: Dma> Mapping<D> {
    /// Maps a region; `len` is the length of the region's mapping, in whole pages.
    ///
    /// # Errors
    /// Returns DPDK's error number.
    pub(crate) fn new(dma: D, region: &Arc<Region>, len: usize) -> Result<Mapping<D>, i32> {
        dma.map(region.base().as_ptr(), len)?;
        Ok(Mapping { dma, region: region.clone(), len })
    }

    /// Returns true if the mapping is of this region.
    pub(crate) fn is_of(&self, region: &Region) -> bool {
        self.region.base() == region.base()
    }
}

impl<D: Dma> Drop for Mapping<D> {
    fn drop(&mut self) {
        self.dma.unmap(self.region.base().as_ptr(), self.len);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Records the calls, and checks that the memory is still mapped.
    #[derive(Debug)]
    struct Fake<'a>(&'a RefCell<Vec<(&'static str, usize, usize)>>, Result<(), i32>);

    impl Dma for Fake<'_> {
        fn map(&self, base: *mut u8, len: usize) -> Result<(), i32> {
            self.0.borrow_mut().push(("map", base as usize, len));
            self.1
        }

        fn unmap(&self, base: *mut u8, len: usize) {
            assert!(is_mapped(base as usize), "unmapped for the device while it is still there");
            self.0.borrow_mut().push(("unmap", base as usize, len));
        }
    }

    fn is_mapped(addr: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|l| {
            let (from, to) = l.split(' ').next().unwrap().split_once('-').unwrap();
            let at = |s| usize::from_str_radix(s, 16).unwrap();
            (at(from)..at(to)).contains(&addr)
        })
    }

    #[test]
    fn test_mapping_keeps_memory_until_the_device_cannot_reach_it() {
        let said = RefCell::new(Vec::new());
        let region = Arc::new(Region::anonymous(5000).unwrap());
        let len = region.mapped_len().unwrap();
        let base = region.base().as_ptr() as usize;
        assert_eq!(Mapping::new(Fake(&said, Err(12)), &region, len).err(), Some(12));
        assert_eq!(said.take(), [("map", base, 8192)], "what was not mapped is not unmapped");
        let mapping = Mapping::new(Fake(&said, Ok(())), &region, len).unwrap();
        assert!(mapping.is_of(&region));
        drop(region);
        assert!(is_mapped(base), "the mapping outlives the last other handle");
        drop(mapping);
        assert_eq!(said.take(), [("map", base, 8192), ("unmap", base, 8192)]);
        assert!(!is_mapped(base));
    }
}
