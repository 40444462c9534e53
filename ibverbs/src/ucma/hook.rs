//! Replaces the calls by which librdmacm reaches its device.
//!
//! An object with librdmacm's code imports `ibv_copy_path_rec_from_kern`, which no other code uses,
//! and it calls `ibv_get_device_list` before it opens its device. At that call [`install`] searches
//! all objects of the process for that import and changes their tables of imported functions:
//! `open`, `fstat`, `write` and `close` of these objects, and of no other, then call the functions
//! here. The decision is in `docs/adr/0018-rdma-cm-inside-the-process.md`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::elf;
use super::errno::Errno;
use super::service::{self, Begun};

/// The device that librdmacm opens.
const DEVICE: &[u8] = b"/dev/infiniband/rdma_cm";
/// The import by which to recognize librdmacm: no other code uses it.
const MARK: &[u8] = b"ibv_copy_path_rec_from_kern";

/// Redirects the calls of every librdmacm in the process to this module. Each call searches again,
/// for objects that were loaded since.
pub fn install() {
    elf::redirect(MARK, |name| {
        let to: *const () = match name {
            b"open" | b"open64" => open as *const (),
            b"__open_2" | b"__open64_2" => open_2 as *const (),
            b"openat" | b"openat64" => openat as *const (),
            b"__openat_2" | b"__openat64_2" => openat_2 as *const (),
            b"fstat" | b"fstat64" => fstat as *const (),
            b"__fxstat" | b"__fxstat64" => fxstat as *const (),
            b"write" => write as *const (),
            b"close" => close as *const (),
            _ => return None,
        };
        Some(to.expose_provenance())
    });
}

unsafe extern "C-unwind" {
    /// Calls `libc::read`. A cancelled thread may unwind through this call.
    #[link_name = "read"]
    fn read_or_unwind(fd: c_int, to: *mut c_void, len: usize) -> isize;
}

/// Borrows a descriptor of the program for the time of a call.
pub(super) fn borrow<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: the number is not -1, and only system calls use it, which check that it is open. If
    // the program closes the descriptor in another thread meanwhile, the program answers for that,
    // as with the kernel.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

fn fail(errno: Errno) -> c_int {
    // SAFETY: the C library returns a pointer to the thread's own variable.
    unsafe { *libc::__errno_location() = errno.0 };
    -1
}

/// Runs `f`, which should not panic; if it does, the call fails and the program goes on.
fn guarded<T>(f: impl FnOnce() -> T, failed: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| failed())
}

/// # Safety
/// `path` is null or a string.
unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: the caller says that it is null or a string.
    !path.is_null() && unsafe { CStr::from_ptr(path) }.to_bytes() == DEVICE
}

fn open_channel(flags: c_int) -> c_int {
    let open = || service::open(flags & libc::O_NONBLOCK != 0, flags & libc::O_CLOEXEC != 0);
    match guarded(open, || Err(Errno(libc::EIO))) {
        Ok(fd) => fd.into_raw_fd(),
        Err(e) => fail(e),
    }
}

/// # Safety
/// The conditions of `open`. The mode is garbage if the program gives none; this function passes it
/// on, and the C library then does not use it.
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the function passes on the caller's arguments unchanged.
    if unsafe { is_device(path) } {
        open_channel(flags)
    } else {
        // SAFETY: as above.
        unsafe { libc::open(path, flags, mode) }
    }
}

/// # Safety
/// The conditions of `open`; this is the checked form of `open` without a mode.
unsafe extern "C" fn open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the function passes on the caller's arguments unchanged.
    unsafe { open(path, flags, 0) }
}

/// # Safety
/// The conditions of `openat`.
unsafe extern "C" fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the function passes on the caller's arguments unchanged.
    if unsafe { is_device(path) } {
        open_channel(flags)
    } else {
        // SAFETY: as above.
        unsafe { libc::openat(dir, path, flags, mode) }
    }
}

/// # Safety
/// The conditions of `openat`; this is the checked form of `openat` without a mode.
unsafe extern "C" fn openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the function passes on the caller's arguments unchanged.
    unsafe { openat(dir, path, flags, 0) }
}

/// # Safety
/// The conditions of `fstat`.
unsafe extern "C" fn fstat(fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: the function passes on the caller's arguments unchanged.
    let answer = unsafe { libc::fstat(fd, stat) };
    let ours = || borrow(fd).is_some_and(service::is_channel);
    if answer == 0 && guarded(ours, || false) {
        // SAFETY: fstat has filled in the structure.
        let stat = unsafe { &mut *stat };
        stat.st_mode = libc::S_IFCHR | 0o666;
        stat.st_rdev = device_number();
    }
    answer
}

/// # Safety
/// The conditions of `__fxstat`, which older versions of libc have instead of `fstat`.
unsafe extern "C" fn fxstat(_version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: the function passes on the caller's arguments unchanged; the structure has only one
    // version.
    unsafe { fstat(fd, stat) }
}

/// Returns the number of the kernel's own device, if there is one: librdmacm may have asked the
/// kernel for it, and compares. Without such a device no program knows a number.
fn device_number() -> libc::dev_t {
    let text = fs::read_to_string("/sys/class/misc/rdma_cm/dev").unwrap_or_default();
    let numbers = text.trim().split_once(':').map(|(a, b)| (a.parse(), b.parse()));
    match numbers {
        Some((Ok(major), Ok(minor))) => libc::makedev(major, minor),
        _ => libc::makedev(10, 0),
    }
}

/// # Safety
/// The conditions of `write`. The program may cancel a thread that waits here for an event: this
/// frame then holds no value that needs dropping.
unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    match begin(fd, bytes.expose_provenance() as u64, len) {
        // SAFETY: the function passes on the caller's arguments unchanged.
        Begun::Foreign => unsafe { libc::write(fd, bytes, len) },
        Begun::Done(done) => answer(done, len),
        Begun::Wait { response, room } => loop {
            let mut byte = [0u8];
            // SAFETY: the byte lives in this frame.
            let got = unsafe { read_or_unwind(fd, byte.as_mut_ptr().cast(), 1) };
            if got <= 0 {
                // The writing end closes only after the last close of this one, so end of file
                // cannot happen here.
                return if got < 0 { -1 } else { fail(Errno(libc::EIO)) as isize };
            }
            if let Some(done) = take(fd, response, room) {
                return answer(done, len);
            }
        },
    }
}

fn begin(fd: c_int, at: u64, len: usize) -> Begun {
    let begin = || borrow(fd).map_or(Begun::Foreign, |fd| service::write(fd, at, len));
    guarded(begin, || Begun::Done(Err(Errno(libc::EIO))))
}

fn take(fd: c_int, response: u64, room: usize) -> Option<Result<(), Errno>> {
    let take = || service::take_event(borrow(fd)?, response, room);
    guarded(take, || Some(Err(Errno(libc::EIO))))
}

fn answer(done: Result<(), Errno>, len: usize) -> isize {
    match done {
        Ok(()) => len.cast_signed(),
        Err(e) => fail(e) as isize,
    }
}

/// # Safety
/// The conditions of `close`.
unsafe extern "C" fn close(fd: c_int) -> c_int {
    let key = guarded(|| borrow(fd).and_then(service::closing), || None);
    // SAFETY: the descriptor is the caller's to close.
    let answer = unsafe { libc::close(fd) };
    if let Some(key) = key {
        guarded(|| service::closed(key), || ());
    }
    answer
}

#[cfg(test)]
mod tests;
