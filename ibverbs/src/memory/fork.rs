//! A child's own copy of the pages that its parent shares with the RNIC.
//!
//! The kernel gives a child the shared pages themselves: what it writes there its parent would read, and the
//! RNIC send. So handlers of `fork` give the child private pages with the same bytes at the same addresses, by
//! default and without `ibv_fork_init`. The thread that forks waits for that. Other threads of the parent run
//! on, and what they write in that moment the child may see or not.
//!
//! Parent and child return from `fork` on the same stack. Pages of it that are shared are private while the
//! thread forks; what it has written there by then goes to the shared page byte by byte, so that nothing is
//! lost that the RNIC has placed beside.
//!
//! `vfork` and `posix_spawn` run no handlers and need none. A child of a bare `clone` shares the pages.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, Once};

use super::convert::{Job, Kind, convert};
use super::maps::Maps;
use super::own;
use super::sys::{self, Errno};
use super::window::Owner;
use super::{PAGE, Part, State, lock, log};

/// Bytes of stack around the frames of `fork` and its handlers.
const FRAMES: (usize, usize) = (128 << 10, 16 << 10);

/// Bytes of one part beyond which a child gets a private view of the file in place of a copy. It sees what the
/// RNIC or its parent writes later, until it writes the page itself.
const COPIED: usize = 64 << 20;

/// Milliseconds that a parent waits for its child's copy.
const PATIENCE: usize = 10_000;

/// What the handlers of one `fork` hand on.
struct Forking {
    /// The child's copy of the lock is taken too.
    state: MutexGuard<'static, State>,
    /// What the child copies.
    parts: Vec<(Part, usize, i32)>,
    /// Pages of the stack that are private meanwhile: the window's number, and what was in them.
    frames: Vec<(usize, Part, usize)>,
    /// The child writes one byte when it has its copy.
    pipe: Option<[i32; 2]>,
}

/// Belongs to the thread that has the lock.
struct Slot(UnsafeCell<Option<Forking>>);

// SAFETY: reached by the handlers alone, which run between taking the lock and giving it back.
unsafe impl Sync for Slot {}

static FORKING: Slot = Slot(UnsafeCell::new(None));

/// Has the handlers run at each `fork` from here on.
pub(super) fn prepare_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions that do not unwind. They stay as long as the library, which nobody unloads.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    let mut state = lock();
    let (mut parts, mut frames, mut pipe) = (Vec::new(), Vec::new(), None);
    if state.windows.iter().any(|w| !w.shared.is_empty()) {
        let here = (&raw const pipe).addr() / PAGE * PAGE;
        frames = state.unshare_frames(here.saturating_sub(FRAMES.0)..here + FRAMES.1);
        parts = state.shared_parts();
        let mut ends = [0; 2];
        // SAFETY: makes two descriptors, into an array of two.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0 {
            pipe = Some(ends);
        }
    }
    // SAFETY: this thread has the lock.
    unsafe { *FORKING.0.get() = Some(Forking { state, parts, frames, pipe }) };
}

extern "C" fn in_parent() {
    // SAFETY: this thread has had the lock since `before`.
    let Some(forking) = (unsafe { (*FORKING.0.get()).take() }) else { return };
    let Forking { mut state, frames, pipe, parts } = forking;
    if let Some([read, write]) = pipe {
        let mut poll = libc::pollfd { fd: read, events: libc::POLLIN, revents: 0 };
        // SAFETY: descriptors of `before`, which nothing else knows; a live structure.
        unsafe {
            libc::close(write);
            let args = [(&raw mut poll).addr(), 1, PATIENCE, 0, 0, 0];
            // Of a child that has died, and of none, the pipe has its end.
            let mut left = 8;
            while sys::call(libc::SYS_poll, args) == Err(Errno(libc::EINTR)) && left > 0 {
                left -= 1;
            }
            libc::close(read);
        }
        if poll.revents == 0 {
            log("a child of fork has not copied its memory in time, and may see later writes");
        }
    }
    state.share_frames(frames);
    drop(state);
    drop(parts);
}

extern "C" fn in_child() {
    // SAFETY: this thread has had the lock since `before`, in the parent, and is the only one here.
    let Some(forking) = (unsafe { (*FORKING.0.get()).take() }) else { return };
    let Forking { mut state, parts, frames, pipe } = forking;
    // Nothing may be allocated until all is copied: the heap may be among what the parent still has.
    for (part, offset, file) in &parts {
        // SAFETY: pages of windows that the parent has had converted.
        unsafe { inherit(part, *offset, *file) };
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
    // The frames are private already, and the child's own.
    for (_, part, snapshot) in &frames {
        unmap(*snapshot, part.pages.len());
    }
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
    /// All pages that are shared, with their places in the files and the files.
    fn shared_parts(&self) -> Vec<(Part, usize, i32)> {
        let Ok(mut maps) = Maps::open() else { return Vec::new() };
        let mut all = Vec::new();
        for window in &self.windows {
            let file = window.region.fd().map_or(-1, |fd| std::os::fd::AsRawFd::as_raw_fd(&fd));
            for pages in window.shared.parts() {
                for part in window.own_parts(&mut maps, &pages) {
                    let offset = window.offset(part.pages.start);
                    all.push((part, offset, file));
                }
            }
        }
        all
    }

    /// Makes the shared pages of the stack of this thread private; what is in them afterwards.
    fn unshare_frames(&mut self, stack: Range<usize>) -> Vec<(usize, Part, usize)> {
        let mut frames = Vec::new();
        let (Some(own), Ok(mut maps)) = (own::there(), Maps::open()) else { return frames };
        for at in 0..self.windows.len() {
            let window = &self.windows[at];
            let near = |part: Range<usize>| part.start.max(stack.start)..part.end.min(stack.end);
            let parts: Vec<Part> = window
                .shared
                .parts()
                .into_iter()
                .map(near)
                .filter(|part| !part.is_empty())
                .flat_map(|part| window.own_parts(&mut maps, &part))
                .collect();
            for part in parts {
                let back = self.convert(own, at, &part, Kind::GiveBack, &mut Vec::new());
                if back.is_err() {
                    continue;
                }
                if let Some(snapshot) = snapshot(&part.pages) {
                    frames.push((at, part, snapshot));
                }
            }
        }
        frames
    }

    /// Shares the pages of the stack again, with what was written there meanwhile.
    fn share_frames(&mut self, frames: Vec<(usize, Part, usize)>) {
        let Some(own) = own::there() else { return };
        for (at, part, snapshot) in frames {
            let uffd = self.uffd.as_ref().and_then(|u| u.as_ref().ok());
            let shadow = self.windows[at].shadow(part.pages.start);
            let job = Job::new(Kind::Merge, &part.pages, shadow, part.protection);
            // SAFETY: private pages of this thread's stack, which are the window's again afterwards.
            let merged = unsafe { convert(own, uffd, job.merging(snapshot)) };
            if let Err(e) = merged {
                log(&format!("the stack at {:#x} is not shared any more: {e}", part.pages.start));
            }
            unmap(snapshot, part.pages.len());
        }
    }
}

impl super::Window {
    /// What of `pages` is mapped from the window's file.
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

/// A copy of pages of this thread's stack.
fn snapshot(pages: &Range<usize>) -> Option<usize> {
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, into which as many bytes of mapped memory are copied.
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let copy = libc::mmap(ptr::null_mut(), pages.len(), rights, how, -1, 0);
        if copy == libc::MAP_FAILED {
            return None;
        }
        let from = ptr::with_exposed_provenance::<u8>(pages.start);
        ptr::copy_nonoverlapping(from, copy.cast(), pages.len());
        Some(copy.expose_provenance())
    }
}

fn unmap(at: usize, len: usize) {
    // SAFETY: a mapping that `snapshot` has made.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), len) };
}
