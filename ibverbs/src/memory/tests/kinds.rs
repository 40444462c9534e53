//! Each kind of memory that a program has.

use std::io::Write;
use std::os::fd::AsRawFd;

use super::*;

/// Shares `len` bytes at an address, sees them both ways, and gives them back.
fn goes_both_ways(at: usize, len: usize) {
    let before = peek(at + len - 1);
    let shared = share(at, len).unwrap();
    assert_eq!(rnic(&shared, len - 1), before);
    poke(at, 0xa1);
    assert_eq!(rnic(&shared, 0), 0xa1);
    rnic_writes(&shared, len - 1, 0xb2);
    assert_eq!(peek(at + len - 1), 0xb2);
    let found = Maps::open().unwrap().at_or_after(at).unwrap().unwrap();
    assert!(found.is_shared);
    drop(shared);
    let found = Maps::open().unwrap().at_or_after(at).unwrap().unwrap();
    assert!(!found.is_shared);
    assert_eq!(peek(at + len - 1), 0xb2);
    poke(at + len - 1, before);
}

/// Without a first value, and with one: pages of zeros and pages of the program's file.
#[test]
fn test_variables_of_the_program_are_shared() {
    struct Variable(std::cell::UnsafeCell<[u8; 3 * PAGE]>);
    // SAFETY: one test uses it, by raw pointers.
    unsafe impl Sync for Variable {}
    static BSS: Variable = Variable(std::cell::UnsafeCell::new([0; 3 * PAGE]));
    static DATA: Variable = Variable(std::cell::UnsafeCell::new([9; 3 * PAGE]));
    for variable in [&BSS, &DATA] {
        // Its pages and their neighbours' bytes.
        goes_both_ways(variable.0.get().expose_provenance(), 3 * PAGE);
        goes_both_ways(variable.0.get().expose_provenance() + PAGE, PAGE);
    }
}

#[test]
fn test_memory_of_malloc_is_shared_whatever_its_size() {
    for len in [16, 1000, 5000, 200_000, 3 << 20] {
        let memory = vec![1u8; len];
        goes_both_ways(memory.as_ptr().expose_provenance(), len);
    }
    // From the end of the heap, which grows and shrinks after it.
    // SAFETY: changes mappings of this test alone.
    let heap = unsafe { libc::sbrk(1 << 16) };
    assert_ne!(heap.addr(), usize::MAX);
    goes_both_ways(heap.expose_provenance() + 100, 10_000);
    drop((0..200).map(|n| vec![0u8; n * 37]).collect::<Vec<_>>());
}

#[test]
fn test_stack_of_a_thread_is_shared_by_another_one() {
    let bytes = [3u8; 2 * PAGE];
    let at = bytes.as_ptr().expose_provenance();
    std::thread::scope(|s| {
        let joined = s.spawn(move || goes_both_ways(at, 2 * PAGE)).join();
        assert!(joined.is_ok());
    });
    std::hint::black_box(&bytes);
}

#[test]
fn test_private_view_of_a_file_is_shared_and_the_file_stays_as_it_is() {
    let path = std::env::temp_dir().join(format!("heddle-memory-{}", std::process::id()));
    let mut file = std::fs::File::create_new(&path).unwrap();
    file.write_all(&[4; 3 * PAGE]).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let view = Area::with(3 * PAGE, PLAIN, libc::MAP_PRIVATE, file.as_raw_fd()).unwrap();
    goes_both_ways(view.at + 10, 2 * PAGE);
    assert_eq!((view.get(10), view.get(3 * PAGE - 1)), (0xa1, 4));
    let mut bytes = [0; 16];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    assert_eq!(bytes, [4; 16]);
    // Of a file that others may map as well, the pages are not the program's to replace.
    let common = Area::with(PAGE, PLAIN, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
    assert_eq!(share(common.at, 1).err(), Some(libc::EOPNOTSUPP));
    let anonymous = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let common = Area::with(PAGE, PLAIN, anonymous, -1).unwrap();
    assert_eq!(share(common.at, 1).err(), Some(libc::EOPNOTSUPP));
}

#[test]
fn test_memory_that_may_only_be_read_is_shared_for_reading_and_other_rights_stay() {
    let area = Area::new(4);
    area.fill();
    let rights = |off: usize| area.mapping(off).unwrap().protection;
    let protect = |off: usize, rights: i32| {
        // SAFETY: changes mappings of this test alone.
        assert_eq!(unsafe { libc::mprotect(area.byte(off), PAGE, rights) }, 0);
    };
    protect(PAGE, libc::PROT_READ);
    let shared = area.share(0, 2 * PAGE);
    assert!(!shared.is_writable() && area.share(0, PAGE).is_writable());
    assert_eq!((rights(0), rights(PAGE), rnic(&shared, PAGE)), (PLAIN, libc::PROT_READ, 2));
    rnic_writes(&shared, PAGE, 50);
    assert_eq!(area.get(PAGE), 50);
    drop(shared);
    assert_eq!((rights(0), rights(PAGE), area.get(PAGE)), (PLAIN, libc::PROT_READ, 50));
    protect(2 * PAGE, libc::PROT_NONE);
    assert_eq!(share(area.at + 2 * PAGE, 1).err(), Some(libc::EFAULT));
    protect(3 * PAGE, libc::PROT_READ | libc::PROT_EXEC);
    assert_eq!(share(area.at + 3 * PAGE, 1).err(), Some(libc::EOPNOTSUPP));
}

#[test]
fn test_pages_that_were_never_touched_are_shared() {
    let area = Area::new(2000);
    let shared = area.share(5, 1999 * PAGE);
    assert_eq!(rnic(&shared, 1000 * PAGE), 0);
    area.set(700 * PAGE + 5, 7);
    assert_eq!(rnic(&shared, 700 * PAGE), 7);
    drop(shared);
    assert_eq!((area.get(700 * PAGE + 5), area.get(3)), (7, 0));
}

#[test]
fn test_transparent_huge_pages_are_shared_in_part_and_whole() {
    let area = Area::new(5 * HUGE / PAGE);
    // SAFETY: changes mappings of this test alone.
    unsafe { libc::madvise(area.byte(0), area.len, libc::MADV_HUGEPAGE) };
    area.fill();
    let whole = area.share(0, area.len);
    for (n, off) in (0..area.len).step_by(PAGE).enumerate() {
        assert_eq!(usize::from(rnic(&whole, off)), n % 251 + 1);
    }
    drop(whole);
    let middle = area.share(HUGE + 3 * PAGE, PAGE);
    assert_eq!([HUGE + 2 * PAGE, HUGE + 3 * PAGE].map(|off| area.is_shared(off)), [false, true]);
    drop(middle);
    for (n, off) in (0..area.len).step_by(PAGE).enumerate() {
        assert_eq!(usize::from(area.get(off)), n % 251 + 1);
    }
}

/// Where the machine has some: each is replaced as a whole, and comes back on small pages.
#[test]
fn test_huge_pages_are_shared_as_a_whole() {
    let how = PRIVATE | libc::MAP_HUGETLB | 21 << libc::MAP_HUGE_SHIFT;
    let Some(area) = Area::with(2 * HUGE, PLAIN, how, -1) else { return };
    area.fill();
    let shared = area.share(HUGE - PAGE, PAGE);
    assert_eq!([0, HUGE].map(|off| area.is_shared(off)), [true, false]);
    area.set(HUGE - PAGE, 77);
    assert_eq!(rnic(&shared, 0), 77);
    drop(shared);
    assert_eq!([0, HUGE].map(|off| area.is_shared(off)), [false, false]);
    assert_eq!(
        (area.get(0), area.get(HUGE - PAGE), area.get(HUGE + PAGE)),
        (1, 77, area.get(HUGE) + 1)
    );
}

/// A window that has much of the file, and nothing shared, goes.
#[test]
fn test_file_of_a_window_goes_when_nothing_of_it_is_shared() {
    let area = Area::new((80 << 20) / PAGE);
    let region = Arc::downgrade(area.share(0, area.len).region());
    // Other tests may have something in the same window.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while region.strong_count() > 0 && lock().windows.iter().any(|w| w.shared.is_empty()) {
        drop(Area::new(1).share(0, 1));
        assert!(std::time::Instant::now() < end, "nobody lets go of it");
        std::thread::yield_now();
    }
}
