//! Each kind of memory that a program can have.

use std::io::Write;
use std::os::fd::AsRawFd;

use super::*;

/// Shares `len` bytes at an address, checks that both sides see each other's writes, and gives the
/// bytes back.
fn goes_both_ways(at: usize, len: usize) {
    let before = peek(at + len - 1);
    let shared = share(at, len, false).unwrap();
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

/// Variables without and with an initial value: pages of zeros and pages of the program's file.
#[test]
fn test_variables_of_the_program_are_shared() {
    struct Variable(std::cell::UnsafeCell<[u8; 3 * PAGE]>);
    // SAFETY: only one test uses it, by raw pointers.
    unsafe impl Sync for Variable {}
    static BSS: Variable = Variable(std::cell::UnsafeCell::new([0; 3 * PAGE]));
    static DATA: Variable = Variable(std::cell::UnsafeCell::new([9; 3 * PAGE]));
    for variable in [&BSS, &DATA] {
        // First all of its pages, then a page between other bytes of it.
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
    // Take memory from the end of the heap, which grows and shrinks afterwards. SAFETY: the call
    // changes only mappings of this test.
    let heap = unsafe { libc::sbrk(1 << 16) };
    assert_ne!(heap.addr(), usize::MAX);
    goes_both_ways(heap.expose_provenance() + 100, 10_000);
    drop((0..200).map(|n| vec![0u8; n * 37]).collect::<Vec<_>>());
}

#[test]
fn test_stack_of_a_thread_is_shared_by_another_thread() {
    let bytes = [3u8; 2 * PAGE];
    let at = bytes.as_ptr().expose_provenance();
    std::thread::scope(|s| {
        let joined = s.spawn(move || goes_both_ways(at, 2 * PAGE)).join();
        assert!(joined.is_ok());
    });
    std::hint::black_box(&bytes);
}

#[test]
fn test_private_file_mapping_is_shared_and_file_stays_unchanged() {
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
    // If other processes may map the file as well, the program must not replace its pages.
    let common = Area::with(PAGE, PLAIN, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
    assert_eq!(share(common.at, 1, false).err(), Some(libc::EOPNOTSUPP));
    let anonymous = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let common = Area::with(PAGE, PLAIN, anonymous, -1).unwrap();
    assert_eq!(share(common.at, 1, false).err(), Some(libc::EOPNOTSUPP));
}

#[test]
fn test_read_only_memory_is_shared_for_reading_and_keeps_its_rights() {
    let area = Area::new(4);
    area.fill();
    let rights = |off: usize| area.mapping(off).unwrap().protection;
    let protect = |off: usize, rights: i32| {
        // SAFETY: the call changes only mappings of this test.
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
    assert_eq!(share(area.at + 2 * PAGE, 1, false).err(), Some(libc::EFAULT));
    protect(3 * PAGE, libc::PROT_READ | libc::PROT_EXEC);
    assert_eq!(share(area.at + 3 * PAGE, 1, false).err(), Some(libc::EOPNOTSUPP));
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
    // SAFETY: the call changes only mappings of this test.
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

/// Runs if the machine has hugepages: each is replaced as a whole, and comes back as small pages.
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

/// A window goes if its file is large and no page of it is shared.
#[test]
fn test_window_file_is_removed_when_nothing_of_it_is_shared() {
    let area = Area::new((80 << 20) / PAGE);
    let region = Arc::downgrade(area.share(0, area.len).region());
    // Other tests may have shared pages in the same window, so wait for them.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while region.strong_count() > 0 && lock().windows.iter().any(|w| w.shared.is_empty()) {
        drop(Area::new(1).share(0, 1));
        assert!(std::time::Instant::now() < end, "nobody lets go of it");
        std::thread::yield_now();
    }
}

/// A file in memory that the program has mapped and that others use.
struct Common {
    area: Area,
    file: std::fs::File,
}

impl Common {
    fn new(pages: usize) -> Common {
        // SAFETY: the call only makes a descriptor.
        let fd = unsafe { libc::memfd_create(c"common".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the call above just made the descriptor.
        let file = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
        Common::of(file, pages)
    }

    fn of(file: std::fs::File, pages: usize) -> Common {
        file.set_len((pages * PAGE) as u64).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let area = Area::with(pages * PAGE, PLAIN, libc::MAP_SHARED, fd).unwrap();
        Common { area, file }
    }
}

#[test]
fn test_shared_file_mapping_is_registered_in_place() {
    use std::os::unix::fs::FileExt;
    let common = Common::new(8);
    let (at, len) = (common.area.at + 2 * PAGE + 7, 3 * PAGE);
    assert_eq!(share(at, len, false).err(), Some(libc::EOPNOTSUPP));
    let shared = share(at, len, true).unwrap();
    assert!(shared.is_writable() && shared.region().is_unsealed());
    assert_eq!(shared.offset(), 2 * PAGE + 7);
    // The program, the file and the RNIC see the same pages.
    shared.region().place(shared.offset(), b"rnic").unwrap();
    assert_eq!(common.area.get(2 * PAGE + 7), b'r');
    common.area.set(2 * PAGE + 8, b'!');
    let mut found = [0; 4];
    common.file.read_exact_at(&mut found, 2 * PAGE as u64 + 7).unwrap();
    assert_eq!(&found, b"r!ic");
    // Another part belongs to the same region, and dropping it gives nothing back.
    let more = share(common.area.at, PAGE, true).unwrap();
    assert!(Arc::ptr_eq(more.region(), shared.region()));
    drop((shared, more));
    assert_eq!(common.area.get(2 * PAGE + 7), b'r');
    assert!(common.area.is_shared(2 * PAGE));
    // The file has grown since its registration.
    common.file.set_len(16 * PAGE as u64).unwrap();
    let longer = Area::with(
        16 * PAGE,
        PLAIN,
        libc::MAP_SHARED,
        std::os::fd::AsRawFd::as_raw_fd(&common.file),
    );
    let longer = longer.unwrap();
    let small = share(common.area.at, PAGE, true).unwrap();
    let end = share(longer.at + 15 * PAGE, PAGE, true).unwrap();
    assert_eq!((small.offset(), end.offset()), (0, 15 * PAGE));
    assert!(end.region().len() >= 16 * PAGE);
}

#[test]
fn test_file_is_found_by_its_name_and_refused_without_one() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("a name with blanks");
    let options = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let Common { area, file } = Common::of(options.unwrap(), 2);
    drop(file);
    area.set(PAGE, 9);
    let shared = share(area.at + PAGE, PAGE, true).unwrap();
    assert_eq!(shared.region().load(shared.offset()), Ok(9));
    drop(shared);
    // First another file has that name, then no file has it.
    std::fs::write(dir.path().join("other"), [0; 2 * PAGE]).unwrap();
    std::fs::rename(dir.path().join("other"), &path).unwrap();
    assert_eq!(share(area.at, PAGE, true).err(), Some(libc::EOPNOTSUPP));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(share(area.at, PAGE, true).err(), Some(libc::EOPNOTSUPP));
    // The first mapping never had a name, and the second file is on no file system in memory.
    let nameless = Area::with(PAGE, PLAIN, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1).unwrap();
    assert_eq!(share(nameless.at, PAGE, true).err(), Some(libc::EOPNOTSUPP));
    let on_disk = Common::of(tempfile::tempfile_in("/var/tmp").unwrap(), 1);
    assert_eq!(share(on_disk.area.at, PAGE, true).err(), Some(libc::EOPNOTSUPP));
}

#[test]
fn test_parts_of_different_kinds_are_not_registered_together() {
    let common = Common::new(4);
    let area = Area::apart(4);
    // SAFETY: the call changes only mappings of this test.
    let middle = unsafe {
        let how = libc::MAP_SHARED | libc::MAP_FIXED;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&common.file);
        libc::mmap(area.byte(PAGE), 2 * PAGE, PLAIN, how, fd, 0)
    };
    assert_eq!(middle, area.byte(PAGE));
    for (page, pages) in [(0, 2), (1, 3), (0, 4)] {
        let refused = share(area.at + page * PAGE, pages * PAGE, true).err();
        assert_eq!(refused, Some(libc::EOPNOTSUPP), "{page} {pages}");
    }
    assert!(share(area.at + PAGE, 2 * PAGE, true).is_ok());
    assert!(share(area.at, PAGE, true).is_ok() && share(area.at + 3 * PAGE, PAGE, true).is_ok());
    // SAFETY: as above.
    unsafe { libc::mprotect(area.byte(2 * PAGE), PAGE, libc::PROT_READ) };
    assert!(!share(area.at + PAGE, 2 * PAGE, true).unwrap().is_writable());
    // SAFETY: as above.
    unsafe { libc::mprotect(area.byte(2 * PAGE), PAGE, libc::PROT_NONE) };
    assert_eq!(share(area.at + PAGE, 2 * PAGE, true).err(), Some(libc::EFAULT));
}

/// Returns the kernel's flags of the mapping that holds `address`.
fn flags(address: usize) -> String {
    let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in all.lines() {
        let ends = line.split(' ').next().and_then(|word| word.split_once('-'));
        let hex = |text: &str| usize::from_str_radix(text, 16).ok();
        if let Some((start, end)) = ends.and_then(|(start, end)| hex(start).zip(hex(end))) {
            inside = (start..end).contains(&address);
        }
        if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.to_owned();
        }
    }
    panic!("{address:#x} is not mapped")
}

/// A core dump has the program's memory once, and not the 16 GiB of the window.
#[test]
fn test_core_dumps_hold_shared_pages_and_no_shadow() {
    let area = Area::apart(4);
    area.fill();
    let shared = area.share(PAGE, 2 * PAGE);
    let shadow = shared.region().base().as_ptr().addr() + shared.offset();
    let is_left_out = |address| flags(address).split(' ').any(|flag| flag == "dd");
    assert!(is_left_out(shadow), "{}", flags(shadow));
    for off in [0, PAGE, 2 * PAGE] {
        assert!(!is_left_out(area.at + off), "{off}: {}", flags(area.at + off));
    }
    drop(shared);
    assert!(!is_left_out(area.at + PAGE));
}
