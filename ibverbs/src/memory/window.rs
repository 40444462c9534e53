//! Stretches of address space, each with one file: the offset in the file is the address minus the
//! base.
//!
//! So registrations that overlap or adjoin lie in one region, in whatever order the program makes
//! them, and pages that are converted later meet their neighbours in the file.

use std::ops::Range;
use std::sync::Arc;

use heddle_shm::Counted;
use heddle_verbs::Region;

use super::maps::Mapping;
use super::{HUGE, PAGE};

/// Bytes of a window, if the address space has room for them. The stretches that a program
/// allocates from (its heap, its mappings, the stack of its main thread) are usually smaller, so
/// one window covers each.
const SIZE: usize = 16 << 30;

/// Largest file, in bytes, to keep when none of its pages is shared. A larger file must go as a
/// whole: it is sealed against holes, so its pages cannot be freed one by one.
const KEEP: usize = 64 << 20;

/// The first address that a program's memory can have.
const LOWEST: usize = HUGE;
/// The end of the programs' address space, with 47 bits.
const HIGHEST: usize = 1 << 47;

/// A stretch of address space with its file.
#[derive(Debug)]
pub(super) struct Window {
    /// Addresses of the window; both ends are multiples of [`HUGE`].
    pub(super) range: Range<usize>,
    /// The whole file, mapped elsewhere: the shadow of the pages.
    pub(super) region: Arc<Region>,
    /// The window's file, by device and inode.
    file: (u64, u64),
    /// The shared pages, by address, with the number of registrations of each.
    pub(super) shared: Counted,
    /// Pages that the file has, or may have: the window never frees one.
    filled: Counted,
    /// Pages that the program had moved or unmapped by the time the module wanted to give them
    /// back. Another mapping of the file may show them elsewhere.
    pub(super) astray: Counted,
    /// True if the file belongs to a device that the process no longer uses.
    pub(super) is_old: bool,
}

/// The owner of a mapping's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The program: the pages are private, so the module can replace them.
    Private,
    /// This window: its file already has the pages.
    Window,
    /// The program and others: other processes may map the pages as well.
    Shared,
}

impl Window {
    /// Makes a window around `pages`, between the existing windows. Returns `None` if there is no
    /// memory for it.
    pub(super) fn around(pages: &Range<usize>, others: &[Window]) -> Option<Window> {
        let mut size = SIZE;
        loop {
            let others = others.iter().filter(|w| !w.is_old);
            let range = place(pages, size, others.map(|w| w.range.clone()));
            match Window::new(range.clone()) {
                Some(window) => return Some(window),
                // The process may have a limit on its address space (RLIMIT_AS), so try a smaller
                // window.
                None if size > HUGE => size /= 4,
                None => return None,
            }
        }
    }

    fn new(range: Range<usize>) -> Option<Window> {
        let region = Arc::new(Region::sparse(range.len()).ok()?);
        let fd = region.fd()?;
        let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the call asks about a live descriptor, and fills in the structure when it
        // succeeds.
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

    /// Returns the offset of an address in the file.
    pub(super) fn offset(&self, address: usize) -> usize {
        address - self.range.start
    }

    /// Returns the address of the same page in the shadow.
    pub(super) fn shadow(&self, address: usize) -> usize {
        self.region.base().as_ptr().expose_provenance() + self.offset(address)
    }

    /// Returns the owner of a mapping's pages.
    pub(super) fn owner(&self, mapping: &Mapping) -> Owner {
        if !mapping.is_shared {
            return Owner::Private;
        }
        let start = mapping.range.start;
        let here = self.range.contains(&start) && self.offset(start) as u64 == mapping.offset;
        if here && mapping.file == self.file { Owner::Window } else { Owner::Shared }
    }

    /// Returns true if a mapping other than the shadow and the pages themselves shows some of
    /// `pages`.
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

    /// Gives the file these pages, huge ones where possible. Returns false if the kernel refuses;
    /// the file may then lack some of them.
    pub(super) fn populate(&self, pages: &Range<usize>) -> bool {
        self.advise(pages);
        self.filled.gaps(pages).into_iter().all(|gap| {
            let at = core::ptr::with_exposed_provenance_mut(self.shadow(gap.start));
            // SAFETY: these are whole pages of our own mapping, and the call keeps their contents.
            unsafe { libc::madvise(at, gap.len(), libc::MADV_POPULATE_WRITE) == 0 }
        })
    }

    /// Records that the file has these pages from here on.
    pub(super) fn fill(&mut self, pages: &Range<usize>) {
        for new in self.filled.gaps(pages) {
            self.filled.add(&new);
        }
    }

    /// Returns true if no page of the window is shared, and the window is old or its file is large.
    pub(super) fn is_waste(&self) -> bool {
        self.shared.is_empty() && (self.is_old || self.filled.covered() > KEEP)
    }

    /// Asks for huge pages in the file wherever the program's own pages could be huge.
    fn advise(&self, pages: &Range<usize>) {
        let start = pages.start.next_multiple_of(HUGE);
        let end = pages.end / HUGE * HUGE;
        if start < end {
            let at = core::ptr::with_exposed_provenance_mut(self.shadow(start));
            // SAFETY: the call is a hint about our own mapping.
            unsafe { libc::madvise(at, end - start, libc::MADV_HUGEPAGE) };
        }
    }
}

/// Returns the place of a window of about `size` bytes around `pages`. The window overlaps `others`
/// only where `pages` do.
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

/// Returns the pages that hold `[address, address + len)`; `None` if `len` is 0 or the addresses do
/// not exist.
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
        // A neighbour has a part of these pages, so the window covers only the pages themselves.
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
    fn test_mapping_belongs_to_window_by_file_and_offset() {
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
