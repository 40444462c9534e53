//! Registered memory that a device reaches through an IOMMU.

use heddle_dpdk_sys as sys;

use crate::Arena;
use crate::eal;

/// Lets a device reach memory, and no longer.
pub(crate) trait Dma {
    /// `[base, base + len)`, under addresses that are the same; an error is an error number of
    /// DPDK.
    fn map(&self, base: *mut u8, len: usize) -> Result<(), i32>;

    /// Takes back exactly what [`Dma::map`] gave.
    fn unmap(&self, base: *mut u8, len: usize);
}

/// A device on its bus.
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
        // SAFETY: the device is plugged in; the range is registered external memory (an arena's),
        // and its IOVA is its address (iova-mode=va).
        let rc = unsafe { sys::rte_dev_dma_map(self.0, base.cast(), base as u64, len) };
        if rc == 0 { Ok(()) } else { Err(eal::last_errno()) }
    }

    fn unmap(&self, base: *mut u8, len: usize) {
        // SAFETY: as for `map`, and this range was mapped. There is nothing to do about an error.
        let _ = unsafe { sys::rte_dev_dma_unmap(self.0, base.cast(), base as u64, len) };
    }
}

/// An arena that a device may reach. It keeps the memory, and when dropped unmaps it first: the
/// IOMMU never lets a device into memory that is gone or somebody else's.
#[derive(Debug)]
pub(crate) struct Mapping<D: Dma = BusDevice> {
    dma: D,
    arena: Arena,
}

impl<D: Dma> Mapping<D> {
    /// # Errors
    /// DPDK's error number.
    pub(crate) fn new(dma: D, arena: &Arena) -> Result<Mapping<D>, i32> {
        dma.map(arena.base().as_ptr(), arena.mapped_len())?;
        Ok(Mapping { dma, arena: arena.clone() })
    }

    /// Whether it is of this arena.
    pub(crate) fn is_of(&self, arena: &Arena) -> bool {
        self.arena.base() == arena.base()
    }
}

impl<D: Dma> Drop for Mapping<D> {
    fn drop(&mut self) {
        self.dma.unmap(self.arena.base().as_ptr(), self.arena.mapped_len());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::{Eal, EalConfig, Hugepages};

    /// Writes down what is asked of it, and looks whether the memory is there.
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
        let config = EalConfig { hugepages: Hugepages::Never, ..EalConfig::default() };
        let eal = Eal::get().unwrap_or_else(|| Eal::init(&config).unwrap());
        let said = RefCell::new(Vec::new());
        let arena = Arena::new(&eal, 5000).unwrap();
        let base = arena.base().as_ptr() as usize;
        assert_eq!(Mapping::new(Fake(&said, Err(12)), &arena).err(), Some(12));
        assert_eq!(said.take(), [("map", base, 8192)], "what was not mapped is not unmapped");
        let mapping = Mapping::new(Fake(&said, Ok(())), &arena).unwrap();
        assert!(mapping.is_of(&arena));
        drop(arena);
        assert!(is_mapped(base), "the mapping outlives the last other handle");
        drop(mapping);
        assert_eq!(said.take(), [("map", base, 8192), ("unmap", base, 8192)]);
        assert!(!is_mapped(base));
    }
}
