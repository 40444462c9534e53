//! Stretches of address space, each with one file: the offset in the file is the address less the base.
//!
//! So registrations that overlap or adjoin, made in any order, lie in one region, and pages that are
//! converted later meet their neighbours in the file.

use std::ops::Range;
use std::sync::Arc;

use heddle_verbs::Region;
use heddle_verbs::memory::Counted;

use super::maps::Mapping;
use super::{HUGE, PAGE};

/// Bytes of a window, if the address space has room for them. The stretches that a program allocates from
/// (its heap, its mappings, the stack of its main thread) are smaller as a rule, and so each is one window.
const SIZE: usize = 16 << 30;

/// Bytes of a file beyond which it goes when nothing of it is shared: its pages cannot be freed one by one,
/// since it is sealed against holes.
const KEEP: usize = 64 << 20;

/// The first address that a program can have.
const LOWEST: usize = HUGE;
/// The end of the addresses of programs, with 47 bits.
const HIGHEST: usize = 1 << 47;

/// One window.
#[derive(Debug)]
pub(super) struct Window {
    /// Addresses, a multiple of [`HUGE`] at both ends.
    pub(super) range: Range<usize>,
    /// The whole file, mapped elsewhere: the shadow of the pages.
    pub(super) region: Arc<Region>,
    /// Its file, by device and inode.
    file: (u64, u64),
    /// Which pages are shared, by address, and how often.
    pub(super) shared: Counted,
    /// Pages that the file has, or may have: none of them is ever freed.
    filled: Counted,
    /// Pages that the program had moved or unmapped when they were to be given back. Another mapping of the
    /// file may show them elsewhere.
    pub(super) astray: Counted,
    /// Its file belongs to a device that the process uses no more.
    pub(super) is_old: bool,
}

/// Whose pages a mapping has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The program's: private, so they can be replaced.
    Private,
    /// This window's file has them already.
    Window,
    /// Others may map them as well.
    Shared,
}

impl Window {
    /// A window around `pages`, between those there are. `None` without memory for it.
    pub(super) fn around(pages: &Range<usize>, others: &[Window]) -> Option<Window> {
        let mut size = SIZE;
        loop {
            let others = others.iter().filter(|w| !w.is_old);
            let range = place(pages, size, others.map(|w| w.range.clone()));
            match Window::new(range.clone()) {
                Some(window) => return Some(window),
                // The address space of the process has a limit (RLIMIT_AS).
                None if size > HUGE => size /= 4,
                None => return None,
            }
        }
    }

    fn new(range: Range<usize>) -> Option<Window> {
        let region = Arc::new(Region::sparse(range.len()).ok()?);
        let fd = region.fd()?;
        let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: asks for what a live descriptor is, into a structure that is filled in on success.
        let stat = unsafe {
            if libc::fstat(std::os::fd::AsRawFd::as_raw_fd(&fd), stat.as_mut_ptr()) != 0 {
                return None;
            }
            stat.assume_init()
        };
        Some(Window {
            range,
            region,
            file: (stat.st_dev, stat.st_ino),
            shared: Counted::default(),
            filled: Counted::default(),
            astray: Counted::default(),
            is_old: false,
        })
    }

    pub(super) fn contains(&self, pages: &Range<usize>) -> bool {
        self.range.start <= pages.start && pages.end <= self.range.end
    }

    /// Where an address is in the file.
    pub(super) fn offset(&self, address: usize) -> usize {
        address - self.range.start
    }

    /// Where the page of an address is in the shadow.
    pub(super) fn shadow(&self, address: usize) -> usize {
        self.region.base().as_ptr().expose_provenance() + self.offset(address)
    }

    /// Whose the pages of a mapping are.
    pub(super) fn owner(&self, mapping: &Mapping) -> Owner {
        if !mapping.is_shared {
            return Owner::Private;
        }
        let start = mapping.range.start;
        let here = self.range.contains(&start) && self.offset(start) as u64 == mapping.offset;
        if here && mapping.file == self.file { Owner::Window } else { Owner::Shared }
    }

    /// Whether some other mapping than the shadow and the pages themselves shows some of `pages`.
    pub(super) fn is_elsewhere(&self, pages: &Range<usize>) -> bool {
        let shadow = self.region.base().as_ptr().addr();
        let Ok(mappings) = super::maps::Maps::of_file(self.file) else { return true };
        mappings.iter().any(|m| {
            let Ok(offset) = usize::try_from(m.offset) else { return true };
            let shown = self.range.start + offset..self.range.start + offset + m.range.len();
            let at_home = shown.start == m.range.start || m.range.start == shadow + offset;
            !at_home && shown.start < pages.end && pages.start < shown.end
        })
    }

    /// Gives the file these pages, huge ones where it can; false if the kernel does not. It may not have all of them
    /// then.
    pub(super) fn populate(&self, pages: &Range<usize>) -> bool {
        self.advise(pages);
        self.filled.gaps(pages).into_iter().all(|gap| {
            let at = core::ptr::with_exposed_provenance_mut(self.shadow(gap.start));
            // SAFETY: whole pages of a mapping of ours, which keep what is in them.
            unsafe { libc::madvise(at, gap.len(), libc::MADV_POPULATE_WRITE) == 0 }
        })
    }

    /// The file has these pages from here on.
    pub(super) fn fill(&mut self, pages: &Range<usize>) {
        for new in self.filled.gaps(pages) {
            self.filled.add(&new);
        }
    }

    /// Whether nobody needs it, and it is old or takes much memory.
    pub(super) fn is_waste(&self) -> bool {
        self.shared.is_empty() && (self.is_old || self.filled.covered() > KEEP)
    }

    /// Asks for huge pages in the file where the pages of the program could be huge.
    fn advise(&self, pages: &Range<usize>) {
        let start = pages.start.next_multiple_of(HUGE);
        let end = pages.end / HUGE * HUGE;
        if start < end {
            let at = core::ptr::with_exposed_provenance_mut(self.shadow(start));
            // SAFETY: a hint for a mapping of ours.
            unsafe { libc::madvise(at, end - start, libc::MADV_HUGEPAGE) };
        }
    }
}

/// Where a window of about `size` bytes around `pages` goes. It overlaps `others` only where `pages` do.
fn place(
    pages: &Range<usize>,
    size: usize,
    others: impl Iterator<Item = Range<usize>>,
) -> Range<usize> {
    let least = pages.start / HUGE * HUGE..pages.end.next_multiple_of(HUGE);
    let half = size / 2 / HUGE * HUGE;
    let mut start = least.start.saturating_sub(half).max(LOWEST).min(least.start);
    let mut end = (least.start + half).min(HIGHEST).max(least.end);
    for other in others {
        if other.end <= least.start {
            start = start.max(other.end);
        } else if other.start >= least.end {
            end = end.min(other.start);
        } else {
            (start, end) = (start.max(least.start), end.min(least.end));
        }
    }
    start..end
}

/// The pages that hold `[address, address + len)`; `None` when there are none, or no such addresses.
pub(super) fn pages(address: usize, len: usize) -> Option<Range<usize>> {
    let end = address.checked_add(len)?.checked_next_multiple_of(PAGE)?;
    let start = address / PAGE * PAGE;
    (len > 0 && end <= HIGHEST).then_some(start..end)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::single_range_in_vec_init, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_window_has_its_pages_in_its_middle_and_ends_at_its_neighbours() {
        const G: usize = 1 << 30;
        let at = |start: usize, len: usize, others: &[Range<usize>]| {
            place(&pages(start, len).unwrap(), SIZE, others.iter().cloned())
        };
        assert_eq!(at(100 * G + 5, 10, &[]), 92 * G..108 * G);
        assert_eq!(at(100 * G, 20 * G, &[]), 92 * G..120 * G);
        assert_eq!(at(100 * G, 1, &[90 * G..95 * G, 101 * G..102 * G]), 95 * G..101 * G);
        assert_eq!(at(PAGE, 1, &[]), 0..8 * G);
        assert_eq!(at(HIGHEST - PAGE, PAGE, &[]).end, HIGHEST);
        // Pages that a neighbour has in part: no more than these.
        assert_eq!(at(100 * G, G, &[90 * G..100 * G + HUGE]), 100 * G..101 * G);
    }

    #[test]
    fn test_pages_hold_all_bytes_and_addresses_without_pages_are_refused() {
        assert_eq!(pages(4095, 2), Some(0..8192));
        assert_eq!(pages(4096, 4096), Some(4096..8192));
        let refused =
            [pages(4096, 0), pages(usize::MAX, 1), pages(1, usize::MAX), pages(1 << 47, 1)];
        assert_eq!(refused, [None, None, None, None]);
    }

    #[test]
    fn test_owner_of_a_mapping_goes_by_file_and_place() {
        let window = Window::new(8 << 30..9 << 30).unwrap();
        let ours = Mapping {
            range: (8 << 30) + PAGE..(8 << 30) + 3 * PAGE,
            protection: 3,
            is_shared: true,
            offset: PAGE as u64,
            file: window.file,
            page: PAGE,
        };
        assert_eq!(window.owner(&ours), Owner::Window);
        let moved = Mapping { offset: 0, ..ours.clone() };
        let other = Mapping { file: (0, 1), ..ours.clone() };
        assert_eq!([&moved, &other].map(|m| window.owner(m)), [Owner::Shared; 2]);
        let private = Mapping { is_shared: false, ..ours };
        assert_eq!(window.owner(&private), Owner::Private);
    }
}
