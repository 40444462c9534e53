//! Each test runs with the guard that the machine allows. [`again`] runs all of them with the other
//! guards.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::*;

mod again;
mod forks;
mod kinds;
mod races;
mod signals;

/// Memory that only this test uses, mapped as a program maps it.
#[derive(Debug)]
struct Area {
    at: usize,
    len: usize,
}

const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const PLAIN: i32 = libc::PROT_READ | libc::PROT_WRITE;

impl Area {
    fn new(pages: usize) -> Area {
        Area::with(pages * PAGE, PLAIN, PRIVATE, -1).unwrap()
    }

    /// Maps at a place where the kernel maps nothing by itself, so that a hole in the area stays
    /// one.
    fn apart(pages: usize) -> Area {
        static NEXT: AtomicU64 = AtomicU64::new(0x2000_0000_0000);
        let at = usize::try_from(NEXT.fetch_add(1 << 30, Relaxed)).unwrap();
        let area = Area { at, len: pages * PAGE };
        let how = PRIVATE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the call changes only mappings of this test.
        let mapped = unsafe { libc::mmap(area.byte(0), area.len, PLAIN, how, -1, 0) };
        assert_eq!(mapped, area.byte(0));
        area
    }

    fn with(len: usize, rights: i32, how: i32, fd: i32) -> Option<Area> {
        // SAFETY: the call changes only mappings of this test.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, rights, how, fd, 0) };
        (at != libc::MAP_FAILED).then(|| Area { at: at.expose_provenance(), len })
    }

    fn byte(&self, off: usize) -> *mut libc::c_void {
        assert!(off < self.len);
        ptr::with_exposed_provenance_mut(self.at + off)
    }

    fn get(&self, off: usize) -> u8 {
        assert!(off < self.len);
        peek(self.at + off)
    }

    fn set(&self, off: usize, value: u8) {
        assert!(off < self.len);
        poke(self.at + off, value);
    }

    /// Writes a different byte to the start of each page.
    fn fill(&self) {
        for (n, off) in (0..self.len).step_by(PAGE).enumerate() {
            self.set(off, u8::try_from(n % 251).unwrap() + 1);
        }
    }

    fn share(&self, off: usize, len: usize) -> Shared {
        share(self.at + off, len, false).unwrap()
    }

    fn mapping(&self, off: usize) -> Option<Mapping> {
        let found = Maps::open().unwrap().at_or_after(self.at + off).unwrap();
        found.filter(|m| m.range.contains(&(self.at + off)))
    }

    fn is_shared(&self, off: usize) -> bool {
        self.mapping(off).unwrap().is_shared
    }

    fn unmap(&self, off: usize, len: usize) {
        // SAFETY: the call changes only mappings of this test.
        assert_eq!(unsafe { libc::munmap(self.byte(off), len) }, 0);
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the call changes only mappings of this test.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.at), self.len) };
    }
}

/// Reads a byte of a test's memory.
fn peek(at: usize) -> u8 {
    // SAFETY: tests pass only addresses that they have mapped.
    unsafe { ptr::with_exposed_provenance::<u8>(at).read_volatile() }
}

fn poke(at: usize, value: u8) {
    // SAFETY: as above. No reference to the bytes exists.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(value) }
}

/// Reads the byte at `off` of shared memory as the RNIC sees it.
fn rnic(shared: &Shared, off: usize) -> u8 {
    shared.region().load(shared.offset() + off).unwrap()
}

fn rnic_writes(shared: &Shared, off: usize, byte: u8) {
    shared.region().place(shared.offset() + off, &[byte]).unwrap();
}

#[test]
fn test_program_and_rnic_write_the_same_bytes_until_the_memory_is_given_back() {
    let area = Area::new(3);
    area.fill();
    let shared = area.share(PAGE + 100, 10);
    assert!(shared.is_writable());
    assert_eq!([0, PAGE, 2 * PAGE].map(|off| area.is_shared(off)), [false, true, false]);
    // Bytes of the page that are not registered are shared along with it.
    assert_eq!(area.get(PAGE), 2);
    area.set(PAGE + 100, 77);
    assert_eq!(rnic(&shared, 0), 77);
    rnic_writes(&shared, 9, 78);
    assert_eq!(area.get(PAGE + 109), 78);
    let region = shared.region().clone();
    let offset = shared.offset();
    drop(shared);
    assert!(!area.is_shared(PAGE));
    assert_eq!([PAGE, PAGE + 100, PAGE + 109].map(|off| area.get(off)), [2, 77, 78]);
    // The RNIC writes after the pages were given back, so this byte is lost.
    region.place(offset, b"x").unwrap();
    assert_eq!(area.get(PAGE + 100), 77);
}

#[test]
fn test_memory_is_freed_by_madvise_after_it_is_given_back() {
    let area = Area::new(4);
    area.fill();
    drop(area.share(0, 4 * PAGE));
    assert_eq!(area.get(PAGE), 2);
    // SAFETY: the call changes only mappings of this test.
    unsafe { libc::madvise(area.byte(0), 4 * PAGE, libc::MADV_DONTNEED) };
    assert_eq!([0, PAGE, 3 * PAGE].map(|off| area.get(off)), [0; 3]);
}

/// Registrations begin and end in any order; the test compares with a count for each page.
#[test]
fn test_page_stays_shared_until_its_last_overlapping_registration_ends() {
    const PAGES: usize = 48;
    let area = Area::new(PAGES);
    let mut model = [0u32; PAGES];
    let mut bytes = [0u8; PAGES];
    let mut held: Vec<(Range<usize>, Shared)> = Vec::new();
    let mut seed = 88_172_645_463_325_252u64;
    let mut random = |most: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % most as u64).unwrap()
    };
    for step in 0..600 {
        if held.len() < 12 && (random(3) > 0 || held.is_empty()) {
            let start = random(PAGES * PAGE - 1);
            let len = 1 + random((PAGES * PAGE - start).min(9 * PAGE));
            let shared = area.share(start, len);
            let pages = start / PAGE..(start + len).div_ceil(PAGE);
            model[pages.clone()].iter_mut().for_each(|n| *n += 1);
            held.push((pages, shared));
        } else {
            let (pages, shared) = held.swap_remove(random(held.len()));
            drop(shared);
            model[pages].iter_mut().for_each(|n| *n -= 1);
        }
        let page = random(PAGES);
        bytes[page] = u8::try_from(step % 256).unwrap();
        area.set(page * PAGE + 7, bytes[page]);
        for page in 0..PAGES {
            assert_eq!(area.get(page * PAGE + 7), bytes[page], "step {step}, page {page}");
            assert_eq!(area.is_shared(page * PAGE), model[page] > 0, "step {step}, page {page}");
        }
        let bases = held.iter().map(|(_, s)| s.region().base());
        assert!(bases.collect::<Vec<_>>().windows(2).all(|w| w[0] == w[1]), "one region");
        for (pages, shared) in &held {
            for (page, want) in bytes.iter().enumerate().take(pages.end).skip(pages.start + 1) {
                let off = page * PAGE + 7 + shared.offset() - (shared.offset() % PAGE);
                let byte = shared.region().load(off - pages.start * PAGE);
                assert_eq!(byte, Ok(*want), "step {step}, page {page}");
            }
        }
    }
}

#[test]
fn test_unmapped_or_empty_memory_is_refused_and_nothing_changes() {
    let area = Area::apart(4);
    area.fill();
    area.unmap(2 * PAGE, PAGE);
    assert_eq!(share(area.at, 0, false).err(), Some(libc::EINVAL));
    for (at, len) in [
        (area.at, 3 * PAGE),
        (area.at + 2 * PAGE, 1),
        (area.at + PAGE, PAGE + 1),
        (usize::MAX, 1),
        (area.at, usize::MAX),
        (0, 1),
        (1 << 47, PAGE),
    ] {
        assert_eq!(share(at, len, false).err(), Some(libc::EFAULT), "{at:#x} {len}");
    }
    assert!(![0, PAGE, 3 * PAGE].iter().any(|off| area.is_shared(*off)));
    assert_eq!([0, PAGE, 3 * PAGE].map(|off| area.get(off)), [1, 2, 4]);
}

/// A program frees memory before it unregisters it, and has other memory there by then.
#[test]
fn test_mapping_placed_over_registered_memory_is_left_unchanged() {
    let area = Area::apart(8);
    area.fill();
    let shared = area.share(0, 8 * PAGE);
    area.unmap(PAGE, PAGE);
    area.unmap(3 * PAGE, PAGE);
    // SAFETY: the call changes only mappings of this test.
    let fixed = unsafe {
        let at = area.byte(3 * PAGE);
        libc::mmap(at, PAGE, PLAIN, PRIVATE | libc::MAP_FIXED, -1, 0)
    };
    assert_ne!(fixed, libc::MAP_FAILED);
    area.set(3 * PAGE, 99);
    // The RNIC keeps the old pages until the program unregisters them.
    assert_eq!((rnic(&shared, PAGE), rnic(&shared, 3 * PAGE)), (2, 4));
    // SAFETY: the call changes only mappings of this test.
    assert_eq!(unsafe { libc::mprotect(area.byte(5 * PAGE), PAGE, libc::PROT_READ) }, 0);
    drop(shared);
    assert_eq!(area.mapping(PAGE), None, "mapped again");
    assert_eq!((area.get(3 * PAGE), area.get(4 * PAGE), area.get(5 * PAGE)), (99, 5, 6));
    assert_eq!(area.mapping(5 * PAGE).unwrap().protection, libc::PROT_READ);
    assert!(![0, 2 * PAGE, 3 * PAGE, 5 * PAGE, 7 * PAGE].iter().any(|o| area.is_shared(*o)));
    // The program can register the memory again.
    let again = area.share(3 * PAGE, PAGE);
    assert_eq!(rnic(&again, 0), 99);
}

#[test]
fn test_moved_registered_memory_is_not_confused_with_its_replacement() {
    let area = Area::apart(2);
    let elsewhere = Area::apart(2);
    area.fill();
    let shared = area.share(0, 2 * PAGE);
    // SAFETY: the call changes only mappings of this test.
    let moved = unsafe {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        libc::mremap(area.byte(0), PAGE, PAGE, how, elsewhere.byte(0))
    };
    assert_ne!(moved, libc::MAP_FAILED);
    drop(shared);
    let fixed =
        // SAFETY: the call changes only mappings of this test.
        unsafe { libc::mmap(area.byte(0), PAGE, PLAIN, PRIVATE | libc::MAP_FIXED, -1, 0) };
    assert_ne!(fixed, libc::MAP_FAILED);
    assert_eq!(
        share(area.at, PAGE, false).err(),
        Some(libc::EBUSY),
        "the file shows its page elsewhere"
    );
    assert_eq!(elsewhere.get(0), 1);
    elsewhere.unmap(0, PAGE);
    area.set(0, 5);
    assert_eq!(rnic(&area.share(0, PAGE), 0), 5);
}
