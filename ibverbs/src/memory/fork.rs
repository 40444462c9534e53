//! A child's own copy of the pages that its parent shares with the RNIC.
//!
//! The kernel gives a child the shared pages themselves: the parent would read what the child writes there, and
//! the RNIC would send it. So handlers of `fork` give the child private pages with the same bytes at the same
//! addresses, by default and without `ibv_fork_init`. The thread that forks waits for that. Other threads of the
//! parent run on, and the child may see what they write in that moment, or not.
//!
//! # Pages that are private while a thread forks
//! A child writes before its handlers run: parent and child return from `fork` on the same stack, and glibc resets
//! the heads of its malloc arenas, the control blocks of the threads that the child lacks, and the locks of the
//! streams of stdio. Where a program has registered memory in the same pages, the parent would lose a lock or a
//! thread. The [pages](State::early_pages) that have such things are private from before the fork until it is over in
//! the parent. Then every byte that the parent has changed meanwhile goes to the shared page, and no other byte, so
//! that nothing is lost that the RNIC has placed beside. Until then the RNIC does not see what threads write to these
//! pages, nor they what the RNIC places there: threads that post or poll [wait](wait_for_fork).
//!
//! `vfork` and `posix_spawn` run no handlers and need none. A child of a bare `clone` shares the pages.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{MutexGuard, Once};
use std::time::{Duration, Instant};

use super::convert::{Job, Kind, convert, stage};
use super::maps::Maps;
use super::own;
use super::sys::{self, Errno};
use super::thread;
use super::window::Owner;
use super::{PAGE, PIECE, Part, State, lock, log};

/// Bytes of stack around the frames of `fork` and its handlers.
const FRAMES: (usize, usize) = (128 << 10, 16 << 10);

/// glibc allocates an arena at a multiple of this, with the arena's head at its start (`HEAP_MAX_SIZE`).
const ARENA: usize = 64 << 20;

/// Where a stream of stdio (`FILE`) has the next one of the list, and the address of its lock: parts of glibc's ABI.
const NEXT_STREAM: usize = 104;
const STREAM_LOCK: usize = 136;
/// Bytes of that lock.
const LOCK: usize = 16;

/// Bytes of one part beyond which a child gets a private view of the file in place of a copy. It sees what the
/// RNIC or its parent writes later, until it writes the page itself.
const COPIED: usize = 64 << 20;

/// Seconds that a parent waits for its child's copy.
const PATIENCE: libc::time_t = 10;

/// The state that the handlers of one `fork` hand on.
struct Forking {
    /// The thread that forks, by the same name in parent and child.
    thread: libc::pthread_t,
    /// The child's copy of the lock is taken too.
    state: MutexGuard<'static, State>,
    /// The parts that the child copies.
    parts: Vec<(Part, usize, i32)>,
    /// Pages that are private meanwhile.
    apart: Vec<PrivatePages>,
    /// The child writes one byte when it has its copy.
    pipe: Option<[i32; 2]>,
}

/// Pages that are private while a thread forks.
struct PrivatePages {
    /// The number of their window.
    window: usize,
    part: Part,
    /// Memory for a copy of the bytes that they had.
    snapshot: usize,
    /// They have become private.
    is_private: bool,
}

/// The thread that forks while pages are private which were shared, or 0.
static FORKER: AtomicI32 = AtomicI32::new(0);

/// How long a thread sleeps at a time that waits for the end of a fork.
const NAP: Duration = Duration::from_micros(50);

/// How long it waits. It may have a lock for which `fork` waits: one of the dynamic linker's, in a constructor.
const LONGEST: Duration = Duration::from_secs(1);

/// Waits while another thread forks and pages are private that the RNIC shares otherwise. A thread calls it before it
/// posts a request, whose bytes the RNIC would not see, and after it has polled completions, whose bytes it would not
/// see itself.
#[inline(always)]
pub(crate) fn wait_for_fork() {
    // The forking thread stores the word before it makes pages private by system calls. So a thread that has used a
    // private page, or has a completion of bytes that went past it, finds the word.
    if FORKER.load(Ordering::Acquire) != 0 {
        wait_for_its_end();
    }
}

#[cold]
#[inline(never)]
fn wait_for_its_end() {
    let until = Instant::now() + LONGEST;
    // A signal handler of the forking thread would wait for itself.
    while ![0, this_thread()].contains(&FORKER.load(Ordering::Acquire)) && Instant::now() < until {
        std::thread::sleep(NAP);
    }
}

fn itself() -> libc::pthread_t {
    // SAFETY: returns a word.
    unsafe { libc::pthread_self() }
}

fn this_thread() -> i32 {
    // SAFETY: a system call without arguments.
    unsafe { libc::gettid() }
}

/// Belongs to the thread that has the lock. Handlers of another see whether it is theirs, and leave it.
struct Slot(UnsafeCell<Option<Forking>>);

// SAFETY: reached by the handlers alone, which run between taking the lock and giving it back.
unsafe impl Sync for Slot {}

static FORKING: Slot = Slot(UnsafeCell::new(None));

/// Has the handlers run at each `fork` from here on.
pub(super) fn prepare_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions that do not unwind. They stay as long as the library, which nothing unloads.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), None) };
    });
}

/// Before a fork, the handlers that were registered last run first; in a child, those that were registered first. So
/// [`before`] can allocate: no handler of an allocator has taken its locks yet. [`set_apart`] runs after the program's
/// handlers, which may wait for locks of threads that wait for the end of the fork. And [`in_child`] runs before any
/// other handler writes in the child.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn prepare() {
        // SAFETY: as above.
        unsafe { libc::pthread_atfork(Some(set_apart), None, Some(in_child)) };
    }
    prepare
};

/// Takes the lock, and allocates all that the other handlers need.
extern "C" fn before() {
    let state = lock();
    let (mut parts, mut apart, mut pipe) = (Vec::new(), Vec::new(), None);
    if state.windows.iter().any(|w| !w.shared.is_empty()) {
        let here = (&raw const pipe).addr() / PAGE * PAGE;
        let mut pages = state.early_pages();
        pages.push(here.saturating_sub(FRAMES.0)..here + FRAMES.1);
        (parts, apart) = state.shared_parts(pages);
        let mut ends = [0; 2];
        // SAFETY: makes two descriptors, into an array of two.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0 {
            pipe = Some(ends);
        }
    }
    // SAFETY: this thread has the lock.
    unsafe { *FORKING.0.get() = Some(Forking { thread: itself(), state, parts, apart, pipe }) };
}

/// Makes pages private. Allocates nothing.
extern "C" fn set_apart() {
    // SAFETY: a thread finds what it has put there itself, and has had the lock since.
    let Some(forking) = (unsafe { (*FORKING.0.get()).as_mut().filter(|f| f.thread == itself()) })
    else {
        return;
    };
    let Some(own) = own::there() else { return };
    let Forking { state, apart, .. } = forking;
    if !apart.is_empty() {
        FORKER.store(this_thread(), Ordering::SeqCst);
    }
    let uffd = state.uffd.as_ref().and_then(|u| u.as_ref().ok());
    for PrivatePages { window, part, snapshot, is_private } in apart {
        let shadow = state.windows[*window].shadow(part.pages.start);
        let job = Job::new(Kind::GiveBack, &part.pages, shadow, part.protection);
        // SAFETY: pages of the window's file; the lock keeps every other conversion away.
        *is_private = unsafe { convert(own, uffd, job.keeping(*snapshot)) }.is_ok();
    }
}

extern "C" fn in_parent() {
    // SAFETY: as in `set_apart`.
    let forking = unsafe { (*FORKING.0.get()).take_if(|f| f.thread == itself()) };
    let Some(Forking { mut state, apart, pipe, parts, .. }) = forking else { return };
    // Before this thread waits: others may wait for it.
    state.share_again(apart);
    FORKER.store(0, Ordering::SeqCst);
    if let Some([read, write]) = pipe {
        let mut poll = libc::pollfd { fd: read, events: libc::POLLIN, revents: 0 };
        // The kernel leaves the rest of the time here.
        let mut patience = libc::timespec { tv_sec: PATIENCE, tv_nsec: 0 };
        // SAFETY: descriptors of `before`, which nothing else knows; live structures.
        unsafe {
            libc::close(write);
            let args = [(&raw mut poll).addr(), 1, (&raw mut patience).addr(), 0, 0, 0];
            // If the child has died, or none was made, `ppoll` finds the end of the pipe. 64-bit Arm
            // has no `poll`.
            let mut left = 8;
            while sys::call(libc::SYS_ppoll, args) == Err(Errno(libc::EINTR)) && left > 0 {
                left -= 1;
            }
            libc::close(read);
        }
        if poll.revents == 0 {
            log("a child of fork has not copied its memory in time, and may see later writes");
        }
    }
    drop(state);
    drop(parts);
}

extern "C" fn in_child() {
    // SAFETY: as in `set_apart`, in the parent. Here it is the only thread.
    let forking = unsafe { (*FORKING.0.get()).take_if(|f| f.thread == itself()) };
    let Some(Forking { mut state, parts, apart, pipe, .. }) = forking else { return };
    // Nothing may be allocated until all is copied: the heap may be among what the parent still has.
    for (part, offset, file) in &parts {
        // SAFETY: pages of windows that the parent has had converted.
        unsafe { inherit(part, *offset, *file) };
    }
    // The others are private already, and the child's own.
    for PrivatePages { window, part, .. } in apart.iter().filter(|apart| !apart.is_private) {
        if let Some(window) = state.windows.get(*window) {
            let offset = window.offset(part.pages.start);
            // SAFETY: as above.
            unsafe { inherit(part, offset, window.file_number()) };
        }
    }
    let done = 1u8;
    if let Some([read, write]) = pipe {
        // SAFETY: descriptors of `before`, and one live byte. The parent has the other ends.
        unsafe {
            let _ = libc::write(write, (&raw const done).cast(), 1);
            libc::close(write);
            libc::close(read);
        }
    }
    for PrivatePages { snapshot, part, .. } in &apart {
        unmap(*snapshot, part.pages.len());
    }
    FORKER.store(0, Ordering::SeqCst);
    state.forks += 1;
    state.uffd = None;
    state.windows.clear();
    // The threads that waited are the parent's.
    super::WAITING.store(0, Ordering::Relaxed);
    drop(state);
}

/// Gives this process, which has one thread, its own pages.
///
/// # Safety
/// The pages are shared ones of a window, at `offset` in its `file`.
unsafe fn inherit(part: &Part, offset: usize, file: i32) {
    let Some(own) = own::there() else { return };
    let (pages, protection) = (part.pages.clone(), part.protection);
    let copy = |pages: Range<usize>| {
        let job = Job::new(Kind::Inherit, &pages, 0, protection);
        // SAFETY: by the caller. No other thread is there to be guarded against.
        unsafe { convert(own, None, job) }.is_ok()
    };
    let view = |pages: Range<usize>| {
        let how = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let at = ptr::with_exposed_provenance_mut(pages.start);
        let Ok(from) = libc::off_t::try_from(offset + pages.start - part.pages.start) else {
            return;
        };
        // SAFETY: takes the place of the same pages of the same file.
        unsafe { libc::mmap(at, pages.len(), protection, how, file, from) };
    };
    if pages.len() <= COPIED && copy(pages.clone()) {
        return;
    }
    // The first and the last page have what belongs to others as well, the heap's records for example.
    let inner = pages.start + PAGE..pages.end - PAGE;
    if !inner.is_empty() {
        view(inner.clone());
    }
    for edge in [pages.start..inner.start, inner.end.max(inner.start)..pages.end] {
        if !edge.is_empty() && !copy(edge.clone()) {
            view(edge);
        }
    }
}

impl State {
    /// All pages that are shared: those that the child is to copy, with their places in the files and the files, and
    /// those of `early`, which are to be set apart.
    fn shared_parts(
        &self,
        mut early: Vec<Range<usize>>,
    ) -> (Vec<(Part, usize, i32)>, Vec<PrivatePages>) {
        early.sort_by_key(|p| p.start);
        early.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        let Ok(mut maps) = Maps::open() else { return Default::default() };
        let (mut copied, mut apart) = (Vec::new(), Vec::new());
        for (at, window) in self.windows.iter().enumerate() {
            let parts = window.shared.parts();
            for part in parts.iter().flat_map(|pages| window.own_parts(&mut maps, pages)) {
                let Part { pages, protection } = part;
                let mut copy = |pages: Range<usize>| {
                    let offset = window.offset(pages.start);
                    copied.push((Part { pages, protection }, offset, window.file_number()));
                };
                let mut left = pages.start;
                for early in &early {
                    let mut rest = early.start.max(left)..early.end.min(pages.end);
                    if rest.is_empty() {
                        continue;
                    }
                    if left < rest.start {
                        copy(left..rest.start);
                    }
                    left = rest.end;
                    while !rest.is_empty() {
                        let end = (rest.start + 1).next_multiple_of(PIECE).min(rest.end);
                        let piece = rest.start..end;
                        rest.start = end;
                        match stage(piece.len()) {
                            Ok(snapshot) => apart.push(PrivatePages {
                                window: at,
                                part: Part { pages: piece, protection },
                                snapshot,
                                is_private: false,
                            }),
                            Err(_) => copy(piece),
                        }
                    }
                }
                if left < pages.end {
                    copy(left..pages.end);
                }
            }
        }
        (copied, apart)
    }

    /// The shared pages that a child writes before its handlers run, as far as this can be known.
    fn early_pages(&self) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut add = |at: usize, len: usize| {
            found.push(at / PAGE * PAGE..(at + len).next_multiple_of(PAGE));
        };
        for window in &self.windows {
            for pages in window.shared.parts() {
                let arena = pages.start.next_multiple_of(ARENA);
                (arena..pages.end).step_by(ARENA).for_each(|at| add(at, PAGE));
                if pages.len() <= COPIED {
                    // SAFETY: all of the window's file is mapped there.
                    let is_block =
                        |at: &usize| unsafe { thread::is_control_block(window.shadow(*at), *at) };
                    let places = pages.step_by(thread::ALIGN).filter(is_block);
                    places.for_each(|at| add(at, thread::LENGTH));
                }
            }
        }
        streams(|lock| add(lock, LOCK));
        found
    }

    /// Shares pages again, with what was written there meanwhile.
    fn share_again(&mut self, apart: Vec<PrivatePages>) {
        let Some(own) = own::there() else { return };
        for PrivatePages { window, part, snapshot, is_private } in apart {
            let uffd = self.uffd.as_ref().and_then(|u| u.as_ref().ok());
            let shadow = self.windows[window].shadow(part.pages.start);
            let job = Job::new(Kind::Merge, &part.pages, shadow, part.protection);
            // SAFETY: private pages that `set_apart` has made, which are the window's again afterwards.
            let merge = || unsafe { convert(own, uffd, job.merging(snapshot)) };
            if is_private && let Err(e) = merge() {
                let at = part.pages.start;
                log(&format!("the memory at {at:#x} is not shared any more: {e}"));
            }
            unmap(snapshot, part.pages.len());
        }
    }
}

/// Calls `f` with the address of the lock of each stream of stdio. Without glibc it finds none.
fn streams(mut f: impl FnMut(usize)) {
    let find = |name: &CStr| {
        // SAFETY: a name that ends with 0.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let [first, lock, unlock] = [c"_IO_list_all", c"_IO_list_lock", c"_IO_list_unlock"].map(find);
    if first.is_null() || lock.is_null() || unlock.is_null() {
        return;
    }
    // SAFETY: glibc's functions of these names take and return nothing.
    let [lock, unlock] =
        [lock, unlock].map(|at| unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(at) });
    // `fork` takes the same lock after its handlers.
    lock();
    // SAFETY: under its lock the list is whole, and so is each stream in it.
    unsafe {
        let mut stream = first.cast::<*const u8>().read();
        while !stream.is_null() {
            f(stream.add(STREAM_LOCK).cast::<usize>().read());
            stream = stream.add(NEXT_STREAM).cast::<*const u8>().read();
        }
    }
    unlock();
}

impl super::Window {
    fn file_number(&self) -> i32 {
        self.region.fd().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// Returns the parts of `pages` that are mapped from the window's file.
    fn own_parts(&self, maps: &mut Maps, pages: &Range<usize>) -> Vec<Part> {
        let (mut parts, mut at) = (Vec::new(), pages.start);
        while at < pages.end {
            let found = maps.at_or_after(at).ok().flatten();
            let Some(mapping) = found.filter(|m| m.range.start < pages.end) else { break };
            let here = at.max(mapping.range.start)..pages.end.min(mapping.range.end);
            at = here.end;
            if self.owner(&mapping) == Owner::Window {
                parts.push(Part { pages: here, protection: mapping.protection });
            }
        }
        parts
    }
}

fn unmap(at: usize, len: usize) {
    // SAFETY: a mapping that `stage` has made.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), len) };
}
