//! Memory that the program has already, made shared with the RNIC in place.
//!
//! A program registers memory from `malloc`, its stack, its variables. The RNIC is another process, so the
//! pages of that memory have to become pages of a file that both map:
//!
//! ```text
//!   guard     writers of the pages sleep: userfaultfd write-protects them, or mprotect and a handler
//!   copy      the pages to the window's file
//!   replace   the mapping by one of the file, in one system call
//!   wake      who waited writes the shared page
//! ```
//!
//! The pages are given back, by the same steps the other way, when nothing registered has them any more:
//! `free` and `madvise` then find memory that behaves as they expect. ADR 17 has the reasons.
//!
//! | Module | Holds |
//! |---|---|
//! | `window` | stretches of address space, each with one sparse file |
//! | `maps` | what is mapped where, as the kernel has it |
//! | `convert` | one conversion, in which nothing may wait for the guard |
//! | `uffd`, `segv` | the two guards |
//! | `own`, `sys` | memory and system calls that meet no guard |
//! | `fork` | a child's own copy of the pages |
//! | `thread` | the control blocks of threads, which glibc has at the end of their stacks |
//! | `files` | pages that the program shares with others, which stay as they are |
//!

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use heddle_verbs::Region;

mod convert;
mod files;
pub(crate) mod fork;
mod maps;
mod own;
mod segv;
mod sys;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests;
mod thread;
mod uffd;
mod window;

use convert::{Job, Kind};
use maps::{Mapping, Maps};
use own::Own;
use sys::Errno;
use uffd::Uffd;
use window::{Owner, Window};

const PAGE: usize = 4096;
/// A huge page of the machine.
const HUGE: usize = 2 << 20;

/// Bytes that are guarded at a time. Writers wait for less than a millisecond.
const PIECE: usize = HUGE;

/// Bytes that the file has at most before they are converted: until then the program has them as well.
const AHEAD: usize = 16 << 20;

/// How long [`still`] waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a thread sleeps before it looks again whether the lock is free.
const PAUSE: Duration = Duration::from_micros(50);

/// How often a conversion lets the threads in [`still`] go first, of which none may ever end.
const TURNS: usize = 200;

/// The variable that chooses the guard: `userfaultfd` (where it is allowed) or `mprotect`.
pub const GUARD: &str = "HEDDLE_GUARD";

/// The variable that asks for messages on standard error: anything but `off`.
pub const LOG: &str = "HEDDLE_LOG";

/// Pages that are shared with the RNIC for as long as this lives.
#[derive(Debug)]
pub struct Shared {
    region: Arc<Region>,
    offset: usize,
    /// Addresses; of memory that others share nothing is given back.
    pages: Range<usize>,
    is_writable: bool,
    /// Forks before it was made. A child has its own copy of the pages, which are not shared.
    forks: usize,
}

impl Shared {
    /// The region that has the bytes: a sparse one, in which only shared pages may be registered.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where the first byte is in that region.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether the program may write all of it. The RNIC could in any case, so whoever registers memory
    /// for peers to write has to ask.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }
}

impl Drop for Shared {
    /// Gives the pages back that nothing else shares.
    fn drop(&mut self) {
        let mut state = lock();
        if state.forks == self.forks {
            state.give_back(&self.pages, &self.region);
        }
    }
}

/// Memory that is about to be [shared](share): its window's file has pages for it, so the RNIC can register these while
/// the memory is converted. No other thread converts any as long as this lives.
#[derive(Debug)]
pub(crate) struct Plan(Planned);

#[derive(Debug)]
enum Planned {
    Convert {
        state: MutexGuard<'static, State>,
        window: usize,
        parts: Vec<Part>,
        pages: Range<usize>,
        region: Arc<Region>,
        offset: usize,
        is_writable: bool,
    },
    Shared(Shared),
}

impl Plan {
    /// As [`Shared::region`].
    pub(crate) fn region(&self) -> &Arc<Region> {
        match &self.0 {
            Planned::Convert { region, .. } | Planned::Shared(Shared { region, .. }) => region,
        }
    }

    /// As [`Shared::offset`].
    pub(crate) fn offset(&self) -> usize {
        match &self.0 {
            Planned::Convert { offset, .. } | Planned::Shared(Shared { offset, .. }) => *offset,
        }
    }

    /// As [`Shared::is_writable`].
    pub(crate) fn is_writable(&self) -> bool {
        match &self.0 {
            Planned::Convert { is_writable, .. } | Planned::Shared(Shared { is_writable, .. }) => {
                *is_writable
            }
        }
    }

    /// Shares the memory.
    ///
    /// # Errors
    /// As [`share`].
    pub(crate) fn carry_out(self) -> Result<Shared, i32> {
        match self.0 {
            Planned::Shared(shared) => Ok(shared),
            Planned::Convert { mut state, window, parts, pages, region, offset, is_writable } => {
                let shared = state.carry_out(window, &parts, &pages);
                let forks = state.forks;
                drop(state);
                let pages = shared.map_err(|refusal| {
                    log(&format!("cannot share memory at {:#x}: {}", pages.start, refusal.why));
                    refusal.errno
                })?;
                Ok(Shared { region, offset, pages, is_writable, forks })
            }
        }
    }
}

/// Shares the pages that have `[addr, addr + len)` with the RNIC. Other threads may read and write them
/// meanwhile. Where the kernel may not be made to wait (without privileges), a system call of another thread
/// that writes there in that moment can fail with EFAULT.
///
/// # Errors
/// An error number: EINVAL for no bytes, EFAULT where nothing is mapped or may be read, EOPNOTSUPP for code, and for
/// memory that other processes may map unless the RNIC `takes_files` and can be given its file; ENOMEM.
pub fn share(addr: usize, len: usize, takes_files: bool) -> Result<Shared, i32> {
    plan(addr, len, takes_files)?.carry_out()
}

/// Plans what [`share`] does.
///
/// # Errors
/// As [`share`], as far as it can be seen before.
pub(crate) fn plan(addr: usize, len: usize, takes_files: bool) -> Result<Plan, i32> {
    let pages =
        window::pages(addr, len).ok_or(if len == 0 { libc::EINVAL } else { libc::EFAULT })?;
    fork::prepare_once();
    let mut state = lock();
    match state.plan(&pages) {
        Ok((window, parts, is_writable)) => {
            let found = &state.windows[window];
            let (region, offset) = (found.region.clone(), found.offset(addr));
            let all: usize = parts.iter().map(|part| part.pages.len()).sum();
            let populate = |part: &Part| state.windows[window].populate(&part.pages);
            let has_pages = all <= AHEAD && parts.iter().all(populate);
            let plan =
                Planned::Convert { state, window, parts, pages, region, offset, is_writable };
            // What is large is not to be there twice. Else the kernel cannot populate, or has no memory: the conversion
            // says which.
            if has_pages {
                Ok(Plan(plan))
            } else {
                Plan(plan).carry_out().map(|s| Plan(Planned::Shared(s)))
            }
        }
        Err(Refusal { is_shared: true, .. }) if takes_files => {
            let forks = state.forks;
            let found = files::share(&mut state.files, &pages);
            drop(state);
            let files::Part { region, offset, is_writable } = found.map_err(|refusal| {
                log(&format!("cannot share {len} bytes at {addr:#x}: {}", refusal.why));
                refusal.errno
            })?;
            let offset = offset + (addr - pages.start);
            Ok(Plan(Planned::Shared(Shared { region, offset, pages, is_writable, forks })))
        }
        Err(refusal) => {
            drop(state);
            log(&format!("cannot share {len} bytes at {addr:#x}: {}", refusal.why));
            Err(refusal.errno)
        }
    }
}

/// Runs `f` while no pages are being converted. `None` when a conversion or a fork did not end within
/// [`PATIENCE`]: a thread that forks has the lock, and may wait for one that our caller has.
pub(crate) fn still<T>(f: impl FnOnce() -> T) -> Option<T> {
    // Conversions let this thread go first, or one that converts all the time would keep the lock.
    let _waiting = Waiting::new();
    let until = Instant::now() + PATIENCE;
    loop {
        let _state = match state().try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(TryLockError::WouldBlock) => return None,
        };
        return Some(f());
    }
}

/// Uses new files for what is shared from here on: for a process that opens another device, since a file can
/// be brought to one device in its life. What the old device has keeps its pages until it is deregistered,
/// and until then cannot be registered with the new one (EBUSY).
pub fn renew() {
    let mut state = lock();
    state.windows.retain(|w| !w.shared.is_empty());
    state.windows.iter_mut().for_each(|w| w.is_old = true);
}

/// Why memory is not shared.
#[derive(Debug)]
struct Refusal {
    errno: i32,
    why: String,
    /// Other processes may map it.
    is_shared: bool,
}

impl Refusal {
    fn new(errno: i32, why: impl Into<String>) -> Refusal {
        Refusal { errno, why: why.into(), is_shared: false }
    }
}

/// All windows, and how pages are guarded. The lock is taken by threads that share and give back, and by
/// `fork`; no handler takes it.
#[derive(Debug, Default)]
struct State {
    windows: Vec<Window>,
    files: files::Known,
    /// Opened at first use, and again in a child.
    uffd: Option<Result<Uffd, Errno>>,
    /// Forks of this process and its ancestors since the library was loaded.
    forks: usize,
}

fn state() -> &'static Mutex<State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE.get_or_init(Mutex::default)
}

fn lock() -> MutexGuard<'static, State> {
    for _ in 0..TURNS {
        if WAITING.load(Ordering::Relaxed) == 0 {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    state().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that want the lock in [`still`].
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// One of [`WAITING`].
struct Waiting;

impl Waiting {
    fn new() -> Waiting {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells whoever asked for it by `HEDDLE_LOG`.
pub(crate) fn log(text: &str) {
    if std::env::var_os(LOG).is_some_and(|level| level != "off") {
        eprintln!("heddle: {text}");
    }
}

/// Bytes of stack to have below a shared page.
const BELOW: usize = 64 << 10;

/// Grows a stack that begins at `start`. Only the kernel's own mapping of it grows, and a shared page at its
/// lower end would take its place. Another mapping stays as it is.
fn grow(start: usize) {
    let mut byte = 0u8;
    let local = [start.saturating_sub(BELOW), 1];
    let remote = [(&raw mut byte).addr(), 1];
    // SAFETY: has the kernel read a byte, if there is one, into a live one.
    let _ = unsafe {
        let me = sys::call(libc::SYS_getpid, [0; 6]).unwrap_or(0);
        let args = [me, (&raw const local).addr(), 1, (&raw const remote).addr(), 1, 0];
        sys::call(libc::SYS_process_vm_writev, args)
    };
}

/// A part of a mapping to convert: whole pages of it.
#[derive(Debug)]
struct Part {
    pages: Range<usize>,
    protection: i32,
}

impl State {
    /// Plans how to share pages: in which window, which parts, and whether the program may write all of them.
    fn plan(&mut self, pages: &Range<usize>) -> Result<(usize, Vec<Part>, bool), Refusal> {
        let known = self.windows.len();
        let at = self.window_of(pages)?;
        let (parts, is_writable) = self.windows[at].parts(pages).inspect_err(|_| {
            // A window that was made for these pages alone.
            self.windows.truncate(known);
        })?;
        Ok((at, parts, is_writable))
    }

    /// Shares pages by a plan; the pages with the rest of huge ones. When it fails everything is as it was.
    fn carry_out(
        &mut self,
        at: usize,
        parts: &[Part],
        pages: &Range<usize>,
    ) -> Result<Range<usize>, Refusal> {
        let own = own::own().ok_or_else(|| Refusal::new(libc::ENOMEM, "no memory"))?;
        self.open_uffd();
        let mut done: Vec<Range<usize>> = Vec::new();
        for part in parts {
            if let Err(e) = self.convert(own, at, part, Kind::Share, &mut done) {
                // What nothing shares goes back: the rest of a huge page, too.
                let shared = &self.windows[at].shared;
                let gaps: Vec<_> = done.iter().flat_map(|piece| shared.gaps(piece)).collect();
                for pages in gaps {
                    self.return_pages(at, &pages);
                }
                let why = format!("the pages at {:#x} cannot be converted: {e}", part.pages.start);
                return Err(Refusal::new(e.0, why));
            }
        }
        let ends = parts.iter().map(|p| p.pages.clone()).chain([pages.clone()]);
        let all = ends.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        let pages = all.unwrap_or_default();
        self.windows[at].shared.add(&pages);
        Ok(pages)
    }

    /// The window that is to have `pages`.
    fn window_of(&mut self, pages: &Range<usize>) -> Result<usize, Refusal> {
        let has_some = |w: &Window| w.shared.gaps(pages) != [pages.clone()];
        let some: Vec<usize> =
            (0..self.windows.len()).filter(|i| has_some(&self.windows[*i])).collect();
        let at = match some[..] {
            [] => self.windows.iter().position(|w| !w.is_old && w.contains(pages)),
            _ if some.iter().any(|at| self.windows[*at].is_old) => {
                return Err(Refusal::new(libc::EBUSY, "a device that is gone has parts of it yet"));
            }
            [at] if self.windows[at].contains(pages) => Some(at),
            _ => {
                let why =
                    "parts of it are registered in stretches of address space that do not meet";
                return Err(Refusal::new(libc::ENOMEM, why));
            }
        };
        if let Some(at) = at {
            let window = &mut self.windows[at];
            let astray = window.astray.parts();
            for part in astray.iter().filter(|p| p.start < pages.end && pages.start < p.end) {
                if window.is_elsewhere(part) {
                    let why = "the program has moved registered memory away from there";
                    return Err(Refusal::new(libc::EBUSY, why));
                }
                window.astray.remove(part);
            }
            return Ok(at);
        }
        let window = Window::around(pages, &self.windows).ok_or_else(|| {
            Refusal::new(libc::ENOMEM, "no file or no address space for its window")
        })?;
        self.windows.push(window);
        Ok(self.windows.len() - 1)
    }

    fn open_uffd(&mut self) {
        if self.uffd.is_none() {
            let wanted = std::env::var_os(GUARD).is_none_or(|guard| guard != "mprotect");
            let opened = if wanted { Uffd::open() } else { Err(Errno(libc::EPERM)) };
            match &opened {
                Ok(uffd) if uffd.is_full => log("userfaultfd guards pages, against the kernel too"),
                Ok(_) => log("userfaultfd guards pages"),
                Err(e) => log(&format!("mprotect guards pages (userfaultfd: {e})")),
            }
            self.uffd = Some(opened);
        }
    }

    /// Converts a part, piece by piece; those that are converted go to `done`.
    fn convert(
        &mut self,
        own: *mut Own,
        at: usize,
        part: &Part,
        kind: Kind,
        done: &mut Vec<Range<usize>>,
    ) -> Result<(), Errno> {
        let mut rest = part.pages.clone();
        while !rest.is_empty() {
            let end = (rest.start + 1).next_multiple_of(PIECE).min(rest.end);
            let piece = rest.start..end;
            let shadow = self.windows[at].shadow(piece.start);
            let job = Job::new(kind, &piece, shadow, part.protection);
            if kind == Kind::Share {
                self.windows[at].fill(&piece);
            }
            let uffd = self.uffd.as_ref().and_then(|u| u.as_ref().ok());
            // SAFETY: the kernel says that these are private pages, or those of the window's file, and the
            // lock keeps every other conversion away. Of a program that unmaps memory while it registers
            // or deregisters it, as of one that uses memory after freeing it, nothing can be promised.
            unsafe { convert::convert(own, uffd, job) }?;
            done.push(piece);
            rest.start = end;
        }
        Ok(())
    }

    /// One registration fewer has these pages. Those that none has any more become private.
    fn give_back(&mut self, pages: &Range<usize>, region: &Arc<Region>) {
        let Some(at) = self.windows.iter().position(|w| Arc::ptr_eq(&w.region, region)) else {
            return;
        };
        for gone in self.windows[at].shared.remove(pages) {
            self.return_pages(at, &gone);
        }
        if self.windows[at].is_waste() {
            self.windows.swap_remove(at);
        }
    }

    /// Makes pages private, as far as they are those of the window still.
    fn return_pages(&mut self, at: usize, pages: &Range<usize>) {
        let Some(own) = own::there() else { return };
        let Ok(mut maps) = Maps::open() else { return };
        let mut rest = pages.clone();
        while !rest.is_empty() {
            let found = maps.at_or_after(rest.start).ok().flatten();
            let Some(mapping) = found.filter(|m| m.range.start < rest.end) else {
                self.windows[at].stray(&rest);
                return;
            };
            let here = rest.start.max(mapping.range.start)..rest.end.min(mapping.range.end);
            self.windows[at].stray(&(rest.start..here.start));
            rest.start = here.end;
            if self.windows[at].owner(&mapping) != Owner::Window {
                self.windows[at].stray(&here);
                continue;
            }
            let part = Part { pages: here, protection: mapping.protection };
            let mut done = Vec::new();
            if let Err(e) = self.convert(own, at, &part, Kind::GiveBack, &mut done) {
                // Without memory for the copy the rest stays shared, for good: a child of fork copies it, and
                // the program notices nothing but that `madvise` frees nothing there.
                let left = done.last().map_or(part.pages.start, |piece| piece.end);
                self.windows[at].shared.add(&(left..part.pages.end));
                log(&format!("the pages at {:#x} stay shared: {e}", part.pages.start));
            }
        }
    }
}

impl Window {
    /// What of `pages` has to be converted to share all of them, and whether the program may write all.
    fn parts(&self, pages: &Range<usize>) -> Result<(Vec<Part>, bool), Refusal> {
        let refuse = |errno, at: usize, why: &str| {
            Err(Refusal::new(errno, format!("the memory at {at:#x} {why}")))
        };
        let mut maps = Maps::open().map_err(|e| {
            Refusal::new(libc::EOPNOTSUPP, format!("cannot read /proc/self/maps: {e}"))
        })?;
        let (mut parts, mut is_writable) = (Vec::new(), true);
        let mut at = pages.start;
        while at < pages.end {
            let found = maps.at_or_after(at);
            let found = found.map_err(|e| Refusal::new(libc::EFAULT, e.to_string()))?;
            let Some(mapping) = found.filter(|m| m.range.contains(&at)) else {
                return refuse(libc::EFAULT, at, "is not mapped");
            };
            if mapping.protection & libc::PROT_READ == 0 {
                return refuse(libc::EFAULT, at, "may not be read");
            }
            is_writable &= mapping.protection & libc::PROT_WRITE != 0;
            let here = at..pages.end.min(mapping.range.end);
            at = here.end;
            match self.owner(&mapping) {
                Owner::Window => {}
                Owner::Shared => {
                    let why = "is shared with other processes, or may be (MAP_SHARED)";
                    let refused = refuse(libc::EOPNOTSUPP, here.start, why);
                    return refused.map_err(|refusal| Refusal { is_shared: true, ..refusal });
                }
                Owner::Private if mapping.protection & libc::PROT_EXEC != 0 => {
                    return refuse(
                        libc::EOPNOTSUPP,
                        here.start,
                        "is code, which other threads may run",
                    );
                }
                Owner::Private => {
                    if here.start - mapping.range.start < BELOW {
                        grow(mapping.range.start);
                    }
                    parts.push(self.part(here, &mapping)?);
                }
            }
        }
        Ok((parts, is_writable))
    }

    /// Whole pages of the mapping that have `here`: a huge page is replaced as a whole.
    fn part(&self, here: Range<usize>, mapping: &Mapping) -> Result<Part, Refusal> {
        let page = mapping.page.max(PAGE);
        let pages = here.start / page * page..here.end.next_multiple_of(page);
        if !self.contains(&pages) {
            let why = "its huge page does not lie in one window of address space";
            return Err(Refusal::new(libc::ENOMEM, why));
        }
        Ok(Part { pages, protection: mapping.protection })
    }

    /// Notes pages that were not there when they were to be given back.
    fn stray(&mut self, pages: &Range<usize>) {
        for new in self.astray.gaps(pages) {
            self.astray.add(&new);
        }
    }
}
