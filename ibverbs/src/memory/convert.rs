//! A conversion: guard the pages, copy them, map the copy over them, wake the waiting writers.
//!
//! [`run`] is the guarded stretch. The function runs on a stack of this module's own ([`Own`]) with
//! all signals blocked, allocates nothing, and touches no memory of the program but the pages that
//! it copies. So the function never waits for its own guard, whatever lies in those pages: the
//! caller's stack, the heap, a lock.

use std::ops::Range;
use std::os::fd::RawFd;

use super::own::Own;
use super::segv;
use super::sys::{self, Errno};
use super::thread;
use super::uffd::{self, Uffd};

/// The kind of conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) enum Kind {
    /// The pages become those of the window's file.
    #[default]
    Share,
    /// The pages become private again.
    GiveBack,
    /// Like `GiveBack`, but without a guard: in a child that has no other thread.
    Inherit,
    /// Like `Share`, for pages that were shared a moment ago: only bytes that have changed go to
    /// the file, so that other bytes which the RNIC has placed there survive.
    Merge,
}

/// Pages to convert, and the way to do so.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Job {
    kind: Kind,
    /// Address of the program's pages, whole ones.
    at: usize,
    len: usize,
    /// Address of the same pages of the file, in the window's mapping of its whole file.
    shadow: usize,
    /// Address of private memory of the same length, for the pages given back; for `Merge`, of the
    /// pages' earlier contents.
    staging: usize,
    /// Private memory of the same length that gets a copy of the pages on the way back, or 0.
    snapshot: usize,
    /// `PROT_READ` and so on, of the pages both before and after the conversion.
    protection: i32,
    guard: Guard,
    uffd: RawFd,
    /// The outcome: an error number, or 0.
    error: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
enum Guard {
    /// No other thread can write the pages.
    #[default]
    None,
    Uffd,
    Mprotect,
}

/// Converts pages. The caller has the lock of the module. A failed call leaves the pages as they
/// were.
///
/// # Errors
/// Returns the system's error; EFAULT if the pages are not all mapped.
///
/// # Safety
/// The pages are the program's own: private memory or pages of a window's file, as `job` says;
/// `shadow` is the place of the pages in the mapping of the file.
pub(super) unsafe fn convert(own: *mut Own, uffd: Option<&Uffd>, job: Job) -> Result<(), Errno> {
    let mut job = job;
    let is_back = matches!(job.kind, Kind::GiveBack | Kind::Inherit);
    if is_back {
        job.staging = stage(job.len)?;
    }
    let uffd = uffd.filter(|u| !is_back || u.guards_shared());
    job.guard = match uffd {
        _ if job.protection & libc::PROT_WRITE == 0 || job.kind == Kind::Inherit => Guard::None,
        Some(uffd) => {
            if !uffd.guards_unpopulated() {
                populate(job.at, job.len);
            }
            job.uffd = uffd.fd();
            Guard::Uffd
        }
        None => Guard::Mprotect,
    };
    // SAFETY: the caller keeps this function's conditions, which are those of `perform`.
    let mut result = unsafe { perform(own, &job) };
    // userfaultfd guards neither a private mapping of a file nor a mapping that another userfaultfd
    // guards, so fall back to mprotect.
    if job.guard == Guard::Uffd && matches!(result, Err(e) if e == NO_GUARD) {
        job.guard = Guard::Mprotect;
        // SAFETY: as above; only the guard has changed.
        result = unsafe { perform(own, &job) };
    }
    if result.is_ok() && !is_back {
        // The mapping comes from the shadow, which core dumps leave out; these pages are the
        // program's.
        let args = [job.at, job.len, sys::bits(libc::MADV_DODUMP), 0, 0, 0];
        // SAFETY: the call leaves the contents of the pages alone.
        let _ = unsafe { sys::call(libc::SYS_madvise, args) };
    }
    if result.is_err() && is_back {
        // SAFETY: these are the staging pages, which the failed conversion has not moved elsewhere.
        unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(job.staging), job.len) };
    }
    result
}

/// Bytes at the end of a job among which control blocks of threads are looked for.
const ENDS: usize = 64 << 10;

/// Control blocks of threads: their places in the pages of a job.
#[derive(Default)]
struct ControlBlocks {
    /// No more fit: the smallest stack of a thread has 16 KiB.
    places: [usize; ENDS / (16 << 10) + 1],
    count: usize,
}

impl ControlBlocks {
    #[inline(always)]
    fn places(&self) -> impl Iterator<Item = usize> {
        self.places.iter().take(self.count).copied()
    }
}

/// A value that is no error number, for "the kernel refused the guard".
const NO_GUARD: Errno = Errno(i32::MAX);

unsafe fn perform(own: *mut Own, job: &Job) -> Result<(), Errno> {
    if job.guard == Guard::Mprotect {
        segv::install(own);
    }
    // SAFETY: the caller has the lock, and with it the job and the stack; `run` needs only a few
    // hundred bytes of stack.
    unsafe {
        (&raw mut (*own).job).write(*job);
        sys::call_on_stack(Own::top(own), run, own.cast());
        match (*own).job.error {
            0 => Ok(()),
            e => Err(Errno(e)),
        }
    }
}

/// Performs the guarded stretch of a conversion.
///
/// # Safety
/// `own` is the module's memory with a job that [`convert`] has made, and the caller has the lock.
unsafe extern "C" fn run(own: *mut u8) {
    let own = own.cast::<Own>();
    // SAFETY: the caller has the lock, so no other thread uses the job.
    let job = unsafe { &mut (*own).job };
    let all = u64::MAX;
    let mut before = 0u64;
    let set =
        [sys::bits(libc::SIG_SETMASK), (&raw const all).addr(), (&raw mut before).addr(), 8, 0, 0];
    let reset = [sys::bits(libc::SIG_SETMASK), (&raw const before).addr(), 0, 8, 0, 0];
    // SAFETY: both masks are live and have 64 signals. Signals must be blocked: a handler of the
    // program on this thread could write guarded memory, and wait for ever.
    unsafe {
        let _ = sys::call(libc::SYS_rt_sigprocmask, set);
        job.error = match job.guarded(own) {
            Ok(()) => 0,
            Err(Errno(e)) => e,
        };
        let _ = sys::call(libc::SYS_rt_sigprocmask, reset);
    }
}

impl Job {
    /// Makes a job for whole pages with this protection; `shadow` is their place in the window's
    /// mapping of its file.
    pub(super) fn new(kind: Kind, pages: &Range<usize>, shadow: usize, protection: i32) -> Job {
        Job { kind, at: pages.start, len: pages.len(), shadow, protection, ..Job::default() }
    }

    /// Makes the job of a merge, with the contents that the pages had when they were last shared.
    pub(super) fn merging(self, snapshot: usize) -> Job {
        Job { staging: snapshot, ..self }
    }

    /// The same, with a copy of the bytes that the pages have when they become private, into memory of the
    /// caller's.
    pub(super) fn keeping(self, snapshot: usize) -> Job {
        Job { snapshot, ..self }
    }

    #[inline(always)]
    unsafe fn guarded(&self, own: *mut Own) -> Result<(), Errno> {
        // SAFETY: the caller of `convert` keeps the conditions.
        unsafe {
            let blocks = match self.kind {
                Kind::Share | Kind::Merge => self.control_blocks(self.at),
                Kind::GiveBack | Kind::Inherit => ControlBlocks::default(),
            };
            // Before the guard, which may keep the kernel from the page. Joiners that come later wait for its end.
            self.move_joiners(&blocks);
            let result = self.begin(own).and_then(|()| self.converted(own));
            self.wake_joiners(&blocks);
            result
        }
    }

    #[inline(always)]
    unsafe fn converted(&self, own: *mut Own) -> Result<(), Errno> {
        // SAFETY: the caller of `convert` keeps the conditions.
        unsafe {
            let result = self.copy().and_then(|()| {
                if self.snapshot != 0 {
                    let from = core::ptr::with_exposed_provenance(self.staging);
                    let to = core::ptr::with_exposed_provenance_mut(self.snapshot);
                    // Under the guard: a thread that writes later changes the pages and not the snapshot.
                    copy_words(from, to, self.len);
                }
                self.replace()
            });
            self.end(own, result.is_ok());
            result
        }
    }

    #[inline(always)]
    unsafe fn begin(&self, own: *mut Own) -> Result<(), Errno> {
        // SAFETY: the caller of `convert` keeps the conditions.
        unsafe {
            match self.guard {
                Guard::None => Ok(()),
                Guard::Uffd => uffd::guard(self.uffd, self.at, self.len).map_err(|_| NO_GUARD),
                Guard::Mprotect => {
                    (*own).words.begin(self.at, self.at + self.len);
                    let guarded = self.protect(self.protection & !libc::PROT_WRITE);
                    if guarded.is_err() {
                        let _ = self.protect(self.protection);
                        (*own).words.end();
                    }
                    guarded
                }
            }
        }
    }

    /// Lets the kernel copy: if another thread unmaps a page meanwhile, the call returns an error
    /// instead of raising a signal.
    #[inline(always)]
    unsafe fn copy(&self) -> Result<(), Errno> {
        let (from, to) = match self.kind {
            Kind::Share => (self.at, self.shadow),
            // The program's pages may be unreadable. The file's pages are readable.
            Kind::GiveBack => (self.shadow, self.staging),
            // The child's job has no shadow, so the child copies the pages where they are mapped.
            Kind::Inherit => (self.at, self.staging),
            Kind::Merge => {
                // SAFETY: the caller of `convert` says that these pages are mapped.
                unsafe { merge(self.at, self.staging, self.shadow, self.len) };
                return Ok(());
            }
        };
        let mut done = 0;
        while done < self.len {
            let local = [from + done, self.len - done];
            let remote = [to + done, self.len - done];
            // SAFETY: the kernel checks both ranges, and the call fails if one is not mapped.
            let copied = unsafe {
                let me = sys::call(libc::SYS_getpid, [0; 6])?;
                let args = [me, (&raw const local).addr(), 1, (&raw const remote).addr(), 1, 0];
                sys::call(libc::SYS_process_vm_writev, args)
            };
            match copied {
                Ok(0) => return Err(Errno(libc::EFAULT)),
                Ok(n) => done += n,
                // A filter of system calls refuses the call.
                Err(Errno(libc::EPERM | libc::ENOSYS)) => {
                    let (from, to) = (
                        core::ptr::with_exposed_provenance::<u8>(from + done),
                        core::ptr::with_exposed_provenance_mut::<u8>(to + done),
                    );
                    // SAFETY: the source is mapped, as the caller of `convert` says, and the
                    // destination is this module's own.
                    unsafe { copy_words(from, to, self.len - done) };
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    #[inline(always)]
    unsafe fn replace(&self) -> Result<(), Errno> {
        const HOW: usize = sys::bits(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        let args = match self.kind {
            // An old size of 0 makes mremap map the same pages of a shared mapping once more. So
            // the second mapping is writable even though a seal forbids new writable mappings of
            // the file.
            Kind::Share | Kind::Merge => [self.shadow, 0, self.len, HOW, self.at, 0],
            Kind::GiveBack | Kind::Inherit => [self.staging, self.len, self.len, HOW, self.at, 0],
        };
        const PLAIN: i32 = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the new mapping takes the place of the program's pages, whose contents are
        // already copied.
        unsafe {
            sys::call(libc::SYS_mremap, args)?;
            if self.kind == Kind::GiveBack {
                self.wake_joiners(&self.control_blocks(self.shadow));
            }
            if self.protection != PLAIN {
                // This cannot fail for lack of memory: the range is all of one new mapping, so the
                // kernel splits none.
                let _ = self.protect(self.protection);
            }
        }
        Ok(())
    }

    /// Finds control blocks of threads in the last of these pages, where stacks have them. The pages' bytes are at
    /// `from`.
    #[inline(always)]
    unsafe fn control_blocks(&self, from: usize) -> ControlBlocks {
        let mut found = ControlBlocks::default();
        let first = self.len.saturating_sub(ENDS);
        for off in (first..self.len).step_by(thread::ALIGN) {
            // SAFETY: the caller says that the bytes are mapped.
            if unsafe { thread::is_control_block(from + off, self.at + off) }
                && let Some(place) = found.places.get_mut(found.count)
            {
                *place = off;
                found.count += 1;
            }
        }
        found
    }

    /// Moves the threads that join these threads to the page of the file. A joiner waits for the thread's number, and
    /// the kernel finds waiters by the page that they wait at. A joiner that was woken instead could preempt this
    /// thread, and wait at the old page once more before the mapping changes: nothing would ever wake it.
    #[inline(always)]
    unsafe fn move_joiners(&self, blocks: &ControlBlocks) {
        for off in blocks.places() {
            let (from, to) = (self.at + off + thread::NUMBER, self.shadow + off + thread::NUMBER);
            let args = [from, sys::bits(libc::FUTEX_REQUEUE), 0, sys::bits(i32::MAX), to, 0];
            // SAFETY: the kernel checks both addresses, and writes neither.
            let _ = unsafe { sys::call(libc::SYS_futex, args) };
        }
    }

    /// Wakes the threads that wait for these threads at the page of the file. Each looks at the number, which may have
    /// changed meanwhile, and waits anew at the page that the program has now.
    #[inline(always)]
    unsafe fn wake_joiners(&self, blocks: &ControlBlocks) {
        for off in blocks.places() {
            let word = self.shadow + off + thread::NUMBER;
            let args = [word, sys::bits(libc::FUTEX_WAKE), sys::bits(i32::MAX), 0, 0, 0];
            // SAFETY: the kernel checks the address, and writes nothing there.
            let _ = unsafe { sys::call(libc::SYS_futex, args) };
        }
    }

    #[inline(always)]
    unsafe fn end(&self, own: *mut Own, replaced: bool) {
        // SAFETY: the caller of `convert` keeps the conditions.
        unsafe {
            match self.guard {
                Guard::None => {}
                Guard::Uffd => uffd::wake(self.uffd, self.at, self.len, replaced),
                Guard::Mprotect => {
                    if !replaced {
                        let _ = self.protect(self.protection);
                    }
                    (*own).words.end();
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn protect(&self, rights: i32) -> Result<(), Errno> {
        let args = [self.at, self.len, sys::bits(rights), 0, 0, 0];
        // SAFETY: these are whole pages, and they get more rights than before only where the
        // program had these rights.
        unsafe { sys::call(libc::SYS_mprotect, args) }.map(drop)
    }
}

/// Copies bytes without a call of the C library, whose `memcpy` may be replaced by the program's.
///
/// # Safety
/// Both ranges are mapped, aligned to words, and whole words long.
#[inline(always)]
unsafe fn copy_words(from: *const u8, to: *mut u8, len: usize) {
    for off in (0..len).step_by(size_of::<u64>()) {
        // SAFETY: the caller says that both ranges are mapped; pages are aligned to words.
        unsafe {
            let word = from.add(off).cast::<u64>().read_volatile();
            to.add(off).cast::<u64>().write_volatile(word);
        }
    }
}

/// Stores to `to` the bytes at `from` that differ from the bytes at `before`.
///
/// # Safety
/// All three ranges are mapped.
#[inline(always)]
unsafe fn merge(from: usize, before: usize, to: usize, len: usize) {
    for off in 0..len {
        // SAFETY: the caller says that all three ranges are mapped.
        unsafe {
            let now = core::ptr::with_exposed_provenance::<u8>(from + off).read_volatile();
            if now != core::ptr::with_exposed_provenance::<u8>(before + off).read_volatile() {
                core::ptr::with_exposed_provenance_mut::<u8>(to + off).write_volatile(now);
            }
        }
    }
}

/// Maps private memory for pages to be given back, and returns its address.
pub(super) fn stage(len: usize) -> Result<usize, Errno> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let args = [0, len, sys::bits(rights), sys::bits(how), usize::MAX, 0];
    // SAFETY: the call makes a new mapping at an address that the kernel chooses.
    let at = unsafe { sys::call(libc::SYS_mmap, args) }?;
    // Later code reaches this mapping by its bare address, so its provenance must be exposed.
    let _ = core::ptr::with_exposed_provenance::<u8>(at);
    Ok(at)
}

/// Puts a page at each address, if only the zero page: kernels before Linux 6.4 cannot guard absent
/// pages.
pub(super) fn populate(at: usize, len: usize) {
    // SAFETY: the call only reads pages of the program, as the copy does.
    let populated = unsafe {
        sys::call(libc::SYS_madvise, [at, len, sys::bits(libc::MADV_POPULATE_READ), 0, 0, 0])
    };
    if matches!(populated, Err(Errno(libc::EINVAL))) {
        // Kernels before Linux 5.14 have no MADV_POPULATE_READ, so read each page.
        for page in (at..at + len).step_by(super::PAGE) {
            // SAFETY: the byte is in a mapped page.
            unsafe { core::ptr::with_exposed_provenance::<u8>(page).read_volatile() };
        }
    }
}
