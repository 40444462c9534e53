//! Which pages a mapping of our own consists of.

/// Pages of a [`Region`](super::Region) that the library maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// The largest hugepages that are free and of which little would be left over; if there are
    /// none, ordinary pages, which the library asks the kernel to enlarge.
    #[default]
    Auto,
    /// Ordinary pages of 4 KiB.
    Small,
    /// Hugepages of 2 MiB, or none.
    Huge2M,
    /// Hugepages of 1 GiB, or none.
    Huge1G,
}

pub(super) const PAGE: usize = 4096;
pub(super) const MIB2: usize = 2 << 20;
pub(super) const GIB: usize = 1 << 30;

impl PageSize {
    /// Returns the sizes of hugepages to try for `len` bytes, the best first.
    pub(super) fn hugepages(self, len: usize) -> &'static [usize] {
        // Waste at most an eighth of `len` with 1 GiB pages, and at most half a page with 2 MiB
        // pages.
        let spare = len.next_multiple_of(GIB) - len;
        match self {
            PageSize::Auto if spare <= len / 8 => &[GIB, MIB2],
            PageSize::Auto if len >= MIB2 / 2 => &[MIB2],
            PageSize::Auto | PageSize::Small => &[],
            PageSize::Huge2M => &[MIB2],
            PageSize::Huge1G => &[GIB],
        }
    }

    /// Returns true if ordinary pages are allowed.
    pub(super) fn may_be_small(self) -> bool {
        matches!(self, PageSize::Auto | PageSize::Small)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_page_size_is_chosen_by_region_length() {
        let auto = |len| PageSize::Auto.hugepages(len);
        assert_eq!(auto(4096), &[] as &[usize]);
        assert_eq!(auto(MIB2 / 2 - 1), &[] as &[usize]);
        assert_eq!(auto(MIB2 / 2), [MIB2]);
        assert_eq!(auto(GIB), [GIB, MIB2]);
        assert_eq!(auto(GIB + 4096), [MIB2], "nearly a GiB would be left over");
        assert_eq!(auto(9 * GIB - (GIB >> 4)), [GIB, MIB2]);
        assert_eq!(PageSize::Small.hugepages(GIB), &[] as &[usize]);
        assert_eq!(PageSize::Huge1G.hugepages(1), [GIB]);
        assert_eq!(PageSize::Huge2M.hugepages(GIB), [MIB2]);
        let small = [PageSize::Auto, PageSize::Small, PageSize::Huge2M, PageSize::Huge1G];
        assert_eq!(small.map(PageSize::may_be_small), [true, true, false, false]);
    }
}
