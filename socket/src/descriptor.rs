//! Where a library keeps its own descriptors, in a program that does not know of them.
//!
//! A program expects low numbers for the descriptors that it asks for: `select` takes none beyond
//! 1,023, netcat none beyond 16, and some programs close or replace a range of low numbers. So a
//! library that a program did not ask for moves its own descriptors to higher numbers.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The lowest number that [`aside`] gives; 0 while [`aside`] moves nothing.
static LOWEST: AtomicI32 = AtomicI32::new(0);

/// From now on, [`aside`] gives descriptors of this process numbers from `lowest` on.
pub fn keep_from(lowest: RawFd) {
    LOWEST.store(lowest.max(0), Ordering::Relaxed);
}

/// Returns the same open file under a higher number, if the process keeps its own descriptors there
/// and has a number left. Call this function before anything refers to the number. `exec` closes
/// the returned descriptor.
pub fn aside(fd: OwnedFd) -> OwnedFd {
    match LOWEST.load(Ordering::Relaxed) {
        0 => fd,
        lowest => rustix::io::fcntl_dupfd_cloexec(&fd, lowest).unwrap_or(fd),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn test_descriptor_moves_above_reserved_numbers_if_limit_allows() {
        let open = || OwnedFd::from(File::open("/proc/self/stat").unwrap());
        let fd = open();
        let number = fd.as_raw_fd();
        assert_eq!(aside(fd).as_raw_fd(), number);

        keep_from(300);
        let fd = aside(open());
        assert!(fd.as_raw_fd() >= 300, "{fd:?}");
        let mut text = String::new();
        File::from(fd).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty(), "it is the same file");

        // This number is beyond those that the process may have.
        keep_from(i32::MAX);
        assert!(aside(open()).as_raw_fd() < 300);
        keep_from(0);
    }
}
