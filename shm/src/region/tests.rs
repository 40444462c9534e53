//! Memory of this process, and memory that it shares.

use std::os::fd::FromRawFd;

use super::*;

mod clients;

#[test]
fn test_access_beyond_end_of_region_is_refused() {
    let r = Region::anonymous(5000).unwrap();
    r.place(4996, b"abcd").unwrap();
    assert!(r.place(4997, b"abcd").is_err() && r.place(usize::MAX, b"a").is_err());
    let mut out = [0; 6];
    r.gather(4994, &mut out).unwrap();
    assert_eq!(&out, b"\0\0abcd");
    assert_eq!((r.load(4999), r.load(5000).is_err()), (Ok(b'd'), true));
    r.zero(4996, 3).unwrap();
    assert_eq!((r.load(4998), r.load(4999)), (Ok(0), Ok(b'd')));
}

#[test]
fn test_region_is_filled_from_file_and_written_to_file() {
    let file = std::fs::File::from(file::create(PAGE, PAGE).unwrap());
    let r = Region::anonymous(100).unwrap();
    r.place(10, b"0123456789").unwrap();
    assert_eq!(r.gather_file(12, 5, file.as_fd(), 4090).unwrap(), 5);
    // A read stops at the end of the file, and never exceeds the count.
    assert_eq!(r.place_file(90, 10, file.as_fd(), 4088).unwrap(), 8);
    assert_eq!(r.place_file(50, 2, file.as_fd(), 4091).unwrap(), 2);
    assert_eq!(r.place_file(50, 50, file.as_fd(), 4096).unwrap(), 0);
    let mut out = [0; 100];
    r.gather(0, &mut out).unwrap();
    assert_eq!(&out[88..], b"\0\0\0\x0023456\0\0\0");
    assert_eq!(&out[49..53], b"\x0034\0");
    for (off, count, at) in [(99, 2, 0), (usize::MAX, 1, 0), (0, 1, u64::MAX)] {
        for done in [
            r.place_file(off, count, file.as_fd(), at),
            r.gather_file(off, count, file.as_fd(), at),
        ] {
            assert_eq!(done.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
        }
    }
    let closed = std::fs::File::open("/").unwrap();
    assert!(r.place_file(0, 1, closed.as_fd(), 0).is_err(), "a directory was read");
}

/// On any machine: a caller gets the pages that it asks for, or an error that says so.
#[test]
fn test_region_has_requested_page_size_or_reports_missing_hugepages() {
    let small = Region::anonymous_on(5 << 20, PageSize::Small).unwrap();
    assert_eq!((small.page_size(), small.mapped_len()), (PAGE, Some(5 << 20)));
    for (pages, size) in [(PageSize::Huge2M, 2 << 20), (PageSize::Huge1G, 1 << 30)] {
        match Region::anonymous_on(100, pages) {
            Ok(r) => {
                assert_eq!((r.page_size(), r.mapped_len()), (size, Some(size)));
                r.place(99, b"x").unwrap();
            }
            Err(e) => assert!(e.to_string().contains("hugepages"), "{e}"),
        }
    }
}

#[test]
fn test_shared_region_maps_same_memory_and_cannot_shrink() {
    let r = Region::shared(10_000).unwrap();
    let fd = r.fd().unwrap().try_clone_to_owned().unwrap();
    let file = std::fs::File::from(fd.try_clone().unwrap());
    assert!(file.set_len(4096).is_err(), "a sealed file was cut");
    let other = Region::from_fd(fd, 10_000).unwrap();
    other.place(9999, b"x").unwrap();
    assert_eq!(r.load(9999), Ok(b'x'));
}

#[test]
fn test_region_refuses_file_that_is_unsealed_or_too_short() {
    // SAFETY: the name is a C string; the result is checked.
    let raw = unsafe { libc::memfd_create(c"t".as_ptr(), libc::MFD_ALLOW_SEALING) };
    // SAFETY: a descriptor just made.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let err = Region::from_fd(fd, 4096).err();
    assert_eq!(err, Some(RegionError::NotSealed));
    let short = Region::shared(4096).unwrap();
    let fd = short.fd().unwrap().try_clone_to_owned().unwrap();
    let err = Region::from_fd(fd, 4097).err();
    assert_eq!(err, Some(RegionError::FileTooShort { has: 4096, wanted: 4097 }));
    assert_eq!(Region::anonymous(0).err(), Some(RegionError::Size(0)));
}

/// The kernel may find no hugepage when a worker touches a hole that another process has punched.
#[test]
fn test_region_refuses_hugepage_file_although_it_is_sealed() {
    const HOW: libc::c_uint = libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
    // SAFETY: as above.
    let raw = unsafe { libc::memfd_create(c"t".as_ptr(), HOW) };
    assert!(raw >= 0, "this kernel has no hugepages");
    // SAFETY: a descriptor just made.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: calls on our descriptor with integer arguments.
    let sealed = unsafe {
        libc::ftruncate(raw, 2 << 20) == 0
            && libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0
    };
    assert!(sealed);
    assert_eq!(Region::from_fd(fd, 2 << 20).err(), Some(RegionError::NotMemory));
}

#[test]
fn test_borrowed_region_keeps_its_owner_alive() {
    // Not a box: moving a box would invalidate pointers to its bytes.
    let mut owner = vec![7u8; 100];
    let base = NonNull::new(owner.as_mut_ptr()).unwrap();
    let (mark, gone) = (std::sync::Arc::new(()), std::sync::Arc::new(()));
    // SAFETY: the vector is owned by the region and not touched otherwise.
    let r = unsafe { Region::from_raw(base, 100, Box::new((owner, mark.clone()))) }.unwrap();
    drop(gone);
    assert_eq!((r.load(99), std::sync::Arc::strong_count(&mark)), (Ok(7), 2));
    drop(r);
    assert_eq!(std::sync::Arc::strong_count(&mark), 1);
}
