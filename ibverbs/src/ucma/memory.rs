//! Copies to and from the program's memory, at addresses that the program states in a command.
//!
//! The kernel answers a bad address with `EFAULT`. A library that read from a bad address would
//! crash the program, so this module copies bytes by system calls that check addresses; if a
//! sandbox forbids these calls, it trusts the address.
//!
//! Another thread may be sharing the page with the RNIC at this moment. The system calls would then
//! find the page guarded, or write into a page that is about to be replaced; so this module makes
//! them only while no conversion is under way.

use super::errno::Errno;
use crate::memory;

/// Copies `len` bytes from an address of this process.
///
/// # Errors
/// Returns [`Errno::FAULT`] for a bad address.
pub(super) fn read(at: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    copy(at, bytes.as_mut_ptr(), len, Way::In)?;
    Ok(bytes)
}

/// Copies bytes to an address of this process.
///
/// # Errors
/// Returns [`Errno::FAULT`] for a bad address.
pub(super) fn write(at: u64, bytes: &[u8]) -> Result<(), Errno> {
    copy(at, bytes.as_ptr().cast_mut(), bytes.len(), Way::Out)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// Copies between `ours`, of which `len` bytes are live, and the address `at`.
fn copy(at: u64, ours: *mut u8, len: usize, way: Way) -> Result<(), Errno> {
    memory::still(|| try_copy(at, ours, len, way)).unwrap_or_else(|| try_copy(at, ours, len, way))
}

fn try_copy(at: u64, ours: *mut u8, len: usize, way: Way) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let Ok(at) = usize::try_from(at) else { return Err(Errno::FAULT) };
    let theirs = std::ptr::with_exposed_provenance_mut::<u8>(at);
    let local = libc::iovec { iov_base: ours.cast(), iov_len: len };
    let remote = libc::iovec { iov_base: theirs.cast(), iov_len: len };
    // SAFETY: each side has one entry. `local` is live for `len` bytes, and the call only reads it
    // on the way out; the kernel checks `remote`, as it checks the address arguments of system
    // calls.
    let copied = unsafe {
        let pid = libc::getpid();
        match way {
            Way::In => libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0),
            Way::Out => libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0),
        }
    };
    match usize::try_from(copied) {
        Ok(n) if n == len => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) if matches!(Errno::last().0, libc::ENOSYS | libc::EPERM) && at != 0 => {
            // SAFETY: the program itself has stated the address of the bytes (`write` of libc would
            // trust it as much, and librdmacm has made the structure). `ours` is live for `len`
            // bytes.
            unsafe {
                match way {
                    Way::In => std::ptr::copy(theirs.cast_const(), ours, len),
                    Way::Out => std::ptr::copy(ours.cast_const(), theirs, len),
                }
            }
            Ok(())
        }
        Err(_) => Err(Errno::FAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_bytes_reach_a_page_that_another_thread_shares_meanwhile() {
        use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
        // SAFETY: no other code in this test's process reads the environment yet.
        unsafe { std::env::set_var(memory::GUARD, "mprotect") };
        let page = vec![0u64; 2 * 4096 / 8];
        let start = page.as_ptr().expose_provenance().next_multiple_of(4096);
        let (stop, shared) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(memory::share(start, 64, false).unwrap());
                    shared.fetch_add(1, Ordering::Relaxed);
                }
            });
            let at = start as u64 + 512;
            let mut wrong = None;
            for n in 0..2000u64 {
                // Give the other thread time to begin a conversion.
                std::thread::sleep(std::time::Duration::from_micros(20));
                let written = write(at, &n.to_ne_bytes());
                let there = read(at, 8);
                if (&written, &there) != (&Ok(()), &Ok(n.to_ne_bytes().to_vec())) {
                    wrong = Some((n, written, there));
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None);
            let shared = shared.load(Ordering::Relaxed);
            assert!(shared >= 100, "the page was shared {shared} times only");
        });
        std::hint::black_box(&page);
    }

    #[test]
    fn test_bytes_are_copied_and_bad_addresses_refused() {
        let mut place = [7u8; 4];
        let at = place.as_mut_ptr().expose_provenance() as u64;
        assert_eq!(read(at, 4), Ok(vec![7; 4]));
        assert_eq!(write(at, &[1, 2]), Ok(()));
        assert_eq!(read(at, 4), Ok(vec![1, 2, 7, 7]));
        for bad in [0, 8, u64::MAX, 1 << 63] {
            assert_eq!(read(bad, 4), Err(Errno::FAULT), "{bad:#x}");
            assert_eq!(write(bad, &[1]), Err(Errno::FAULT), "{bad:#x}");
        }
        let constant: &'static [u8] = b"constant";
        let at = constant.as_ptr().expose_provenance() as u64;
        assert_eq!(write(at, b"x"), Err(Errno::FAULT), "the page cannot be written");
    }
}
