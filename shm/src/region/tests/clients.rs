//! Memory that a client brings.

use super::*;
use crate::pages::MIB2;

fn clients(len: usize) -> (Region, Region) {
    let theirs = Region::shared(len).unwrap();
    let ours = Region::of_client(theirs.fd().unwrap(), len).unwrap();
    (theirs, ours)
}

#[test]
fn test_client_region_is_populated_on_demand_and_locked() {
    let bytes = 6 * PAGE;
    let fd = file::create(bytes, PAGE).unwrap();
    let r = Region::of_client(fd.as_fd(), 5 * PAGE + 1).unwrap();
    let resident = |page: usize| {
        let mut found = 0u8;
        // SAFETY: asks about one page of the mapping, into one live byte.
        let rc = unsafe {
            let at = r.base().as_ptr().add(page * PAGE);
            libc::mincore(at.cast(), 1, &raw mut found)
        };
        rc == 0 && found & 1 == 1
    };
    assert!((0..6).all(|p| !resident(p)));
    r.populate(PAGE + 5, PAGE).unwrap();
    assert_eq!([0, 1, 2, 3].map(resident), [false, true, true, false]);
    r.populate(5 * PAGE, 1).unwrap();
    assert!(resident(5));
    assert!(r.populate(5 * PAGE, 2).is_err() && r.populate(usize::MAX, 2).is_err());
    let at = format!("{:x}-", r.base().as_ptr().addr() + PAGE);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mapping = smaps.split(&at).nth(1).unwrap();
    let locked = mapping.lines().find(|l| l.starts_with("Locked:")).unwrap();
    assert!(!locked.contains(" 0 kB"), "{locked}");
}

/// The client tries every descriptor and mapping, made before or after the seal.
#[test]
fn test_client_region_loses_no_page_to_other_processes() {
    let len = 16 * PAGE;
    let theirs = Region::shared(len).unwrap();
    let fd = theirs.fd().unwrap();
    let copy = fd.try_clone_to_owned().unwrap();
    let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
    let options = || std::fs::OpenOptions::new().read(true).write(true).open(&path);
    let earlier = options().unwrap();
    let second = mmap(len, libc::MAP_SHARED, copy.as_raw_fd()).unwrap();
    let ours = Region::of_client(fd, len).unwrap();
    ours.populate(0, len).unwrap();
    ours.place(0, b"here").unwrap();
    let later = options();
    let punch = |fd: BorrowedFd<'_>| {
        let how = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(fd, how, 0, len as u64)
    };
    let fds =
        [Some(fd), Some(copy.as_fd()), Some(earlier.as_fd()), later.as_ref().ok().map(AsFd::as_fd)];
    for fd in fds.into_iter().flatten() {
        assert_eq!(punch(fd), Err(rustix::io::Errno::PERM));
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        assert!(rustix::fs::ftruncate(fd, 2 * len as u64).is_err());
        assert!(mmap(len, libc::MAP_SHARED, fd.as_raw_fd()).is_err(), "a new writable mapping");
    }
    for base in [theirs.base(), second, ours.base()] {
        // SAFETY: whole pages of a live mapping; a hole would read as zeros.
        let removed = unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_REMOVE) };
        let why = std::io::Error::last_os_error().raw_os_error();
        // The kernel refuses locked pages with EINVAL before it looks at the seals of the file.
        let locked = base == ours.base() && why == Some(libc::EINVAL);
        assert!(removed == -1 && (locked || why == Some(libc::EPERM)), "{why:?}");
    }
    let mut here = [0; 4];
    ours.gather(0, &mut here).unwrap();
    assert_eq!(&here, b"here");
    // Both processes still write bytes that the other reads.
    theirs.place(1, b"!").unwrap();
    assert_eq!(ours.load(1), Ok(b'!'));
    let again = Region::of_client(fd, len).err();
    assert_eq!(again, Some(RegionError::AlreadySealed));
    // SAFETY: our mapping, to which nothing refers.
    unsafe { libc::munmap(second.as_ptr().cast(), len) };
}

#[test]
fn test_client_file_must_have_its_declared_size() {
    let fd = file::create(4 * PAGE, PAGE).unwrap();
    let of = |len| Region::of_client(fd.as_fd(), len).err();
    let (has, wanted) = (4 * PAGE as u64, PAGE);
    assert_eq!(of(PAGE), Some(RegionError::FileTooLong { has, wanted }));
    assert_eq!(of(4 * PAGE + 1), Some(RegionError::FileTooShort { has, wanted: 5 * PAGE }));
    assert_eq!(of(0), Some(RegionError::Size(0)));
    assert_eq!(of(3 * PAGE + 1), None);
    // Pages beyond the end do not belong to the file's length, but they use its owner's memory all
    // the same.
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("t", flags).unwrap();
    rustix::fs::ftruncate(&fd, PAGE as u64).unwrap();
    let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&fd, keep, 0, 8 * PAGE as u64).unwrap();
    let refused = Region::of_client(fd.as_fd(), PAGE).err();
    let has = 8 * PAGE as u64;
    assert_eq!(refused, Some(RegionError::FileTooLong { has, wanted: PAGE }));
    let pipe = std::io::pipe().unwrap().0;
    assert_eq!(Region::of_client(pipe.as_fd(), PAGE).err(), Some(RegionError::NotSealed));
}

/// Where the machine has hugepages: such files keep their pages too.
#[test]
fn test_client_region_may_use_hugepages() {
    let Ok(theirs) = Region::shared_on(3 << 20, PageSize::Huge2M) else { return };
    assert_eq!((theirs.page_size(), theirs.mapped_len()), (MIB2, Some(2 * MIB2)));
    let fd = theirs.fd().unwrap();
    let ours = Region::of_client(fd, 3 << 20).unwrap();
    assert_eq!((ours.page_size(), ours.mapped_len()), (MIB2, Some(2 * MIB2)));
    ours.populate(0, 3 << 20).unwrap();
    ours.place((3 << 20) - 1, b"x").unwrap();
    assert_eq!(theirs.load((3 << 20) - 1), Ok(b'x'));
    let how = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let punched = rustix::fs::fallocate(fd, how, 0, MIB2 as u64);
    assert_eq!(punched, Err(rustix::io::Errno::PERM));
}

/// Simulates a page that fails: the file ends under the mapping, which a seal forbids.
#[test]
fn test_failing_memory_reads_as_zeros_and_its_region_is_lost() {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("t", flags).unwrap();
    rustix::fs::ftruncate(&fd, 2 * PAGE as u64).unwrap();
    let base = mmap(2 * PAGE, libc::MAP_SHARED, fd.as_raw_fd()).unwrap();
    let client = Some(Client { watch: Watch::new(base.as_ptr(), 2 * PAGE) });
    let backing = Backing::Mapped { bytes: 2 * PAGE, fd: None, client };
    let failing = Region { base, len: 2 * PAGE, page: PAGE, backing, sparse: None };
    let (_theirs, other) = clients(PAGE);
    failing.place(0, b"here").unwrap();
    other.place(0, b"here").unwrap();
    let before = crate::lost();
    rustix::fs::ftruncate(&fd, 0).unwrap();
    assert!(!failing.is_lost());
    assert_eq!(failing.load(PAGE), Ok(0));
    assert!(failing.is_lost() && crate::lost() > before);
    assert_eq!(failing.load(0), Ok(0));
    failing.place(PAGE, b"nowhere").unwrap();
    assert_eq!((other.is_lost(), other.load(0)), (false, Ok(b'h')));
}

#[test]
fn test_client_region_is_unmapped_by_another_thread() {
    let (theirs, ours) = clients(200 << 20);
    let at = format!("{:x}-", ours.base().as_ptr().addr());
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(&at);
    assert!(mapped());
    let (done, is_done) = std::sync::mpsc::channel();
    // The lane is blocked, so no other thread can have unmapped the region.
    closer::run(closer::MEMORY, move || is_done.recv().unwrap());
    drop(ours);
    assert!(mapped());
    done.send(()).unwrap();
    while mapped() {
        std::thread::yield_now();
    }
    drop(theirs);
}
