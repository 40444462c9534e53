//! Hugepages of every size that the kernel has set aside.

use std::path::Path;

/// Hugepages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HugePool {
    /// Bytes of a page.
    pub(super) page: usize,
    /// Pages that are free and not reserved.
    pub(super) free: u64,
}

impl HugePool {
    /// Returns the pools of all sizes, read from the same place as in the EAL; some containers hide
    /// it.
    pub(super) fn all() -> Vec<HugePool> {
        HugePool::read_from(Path::new("/sys/kernel/mm/hugepages"))
    }

    fn read_from(dir: &Path) -> Vec<HugePool> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let number = |path: &Path| -> Option<u64> {
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        let mut all: Vec<HugePool> = entries
            .filter_map(|e| {
                let name = e.file_name();
                let kib = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
                let page = kib.parse::<usize>().ok()?.checked_mul(1024)?;
                let free = number(&e.path().join("free_hugepages"))?;
                let promised = number(&e.path().join("resv_hugepages")).unwrap_or(0);
                Some(HugePool { page, free: free.saturating_sub(promised) })
            })
            .collect();
        all.sort_by_key(|p| p.page);
        all
    }
}

/// Returns the free MiB in all sizes that this process may map: the EAL takes pages of any size.
pub(super) fn free_mb(pools: &[HugePool], may_map: impl Fn(usize) -> bool) -> u64 {
    let there = pools.iter().filter(|p| p.free > 0 && may_map(p.page));
    there.map(|p| p.free.saturating_mul(p.page as u64) >> 20).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_free_hugepages_count_only_sizes_that_can_be_mapped() {
        const MIB2: usize = 2 << 20;
        const GIB: usize = 1 << 30;
        let pools = [HugePool { page: MIB2, free: 3 }, HugePool { page: GIB, free: 2 }];
        assert_eq!(free_mb(&pools, |_| true), 6 + 2048);
        assert_eq!(free_mb(&pools, |page| page == GIB), 2048);
        assert_eq!(free_mb(&pools, |_| false), 0);
        let none = [HugePool { page: GIB, free: 0 }];
        assert_eq!(free_mb(&none, |_| panic!("nothing to map")), 0);
    }

    #[test]
    fn test_free_hugepages_exclude_reserved_ones() {
        let dir = tempfile::tempdir().unwrap();
        for (name, free, promised) in [
            ("hugepages-1048576kB", "4", "1"),
            ("hugepages-2048kB", "10", "12"),
            ("other", "1", "0"),
        ] {
            let at = dir.path().join(name);
            std::fs::create_dir(&at).unwrap();
            std::fs::write(at.join("free_hugepages"), format!("{free}\n")).unwrap();
            std::fs::write(at.join("resv_hugepages"), format!("{promised}\n")).unwrap();
        }
        let want = [HugePool { page: 2 << 20, free: 0 }, HugePool { page: 1 << 30, free: 3 }];
        assert_eq!(HugePool::read_from(dir.path()), want);
        assert_eq!(HugePool::read_from(Path::new("/nonexistent")), []);
    }
}
