//! Memory that the program already has, made shared with the RNIC in place.
//!
//! A program registers memory from `malloc`, its stack, its variables. The RNIC is another process,
//! so the pages of that memory have to become pages of a file that both processes map:
//!
//! ```text
//!   guard     make writers of the pages sleep: by userfaultfd, or by mprotect and a handler
//!   copy      the pages to the window's file
//!   replace   the mapping by one of the file, in one system call
//!   wake      the waiting writers, which then write the shared pages
//! ```
//!
//! When the last registration of a page ends, the module gives the page back by the same steps in
//! the other direction: `free` and `madvise` then find memory that behaves as they expect. ADR 17
//! has the reasons.
//!
//! | Module | Holds |
//! |---|---|
//! | `window` | stretches of address space, each with one sparse file |
//! | `maps` | the process's mappings, as the kernel reports them |
//! | `convert` | a conversion, during which no step may wait for the guard |
//! | `uffd`, `segv` | the two guards |
//! | `own`, `sys` | memory and system calls that meet no guard |
//! | `fork` | a child's own copy of the pages |
//! | `thread` | the control blocks of threads, which glibc has at the end of their stacks |
//! | `files` | pages that the program shares with others, which stay as they are |

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
/// Bytes of one of the machine's huge pages.
const HUGE: usize = 2 << 20;

/// Bytes that one guard covers at a time. At this size, writers wait for less than a millisecond.
const PIECE: usize = HUGE;

/// Most bytes that the file gets before the conversion: until the conversion both the file and the
/// program have them.
const AHEAD: usize = 16 << 20;

/// The longest wait of [`still`].
const PATIENCE: Duration = Duration::from_secs(1);

/// Time that a thread sleeps between two attempts to take the lock.
const PAUSE: Duration = Duration::from_micros(50);

/// Number of times that a conversion lets the threads in [`still`] go first. The number is limited,
/// because threads may enter `still` without end.
const TURNS: usize = 200;

/// The variable that chooses the guard: `userfaultfd` (where the system allows it) or `mprotect`.
pub const GUARD: &str = "HEDDLE_GUARD";

/// The variable that turns on messages on standard error: any value but `off`.
pub const LOG: &str = "HEDDLE_LOG";

/// Pages that are shared with the RNIC for as long as this value lives.
#[derive(Debug)]
pub struct Shared {
    region: Arc<Region>,
    offset: usize,
    /// Addresses of the pages. If the program shares the memory with others, dropping this value
    /// gives nothing back.
    pages: Range<usize>,
    is_writable: bool,
    /// The state's count of forks when this value was made. A child of a later fork has its own
    /// copy of the pages, which are not shared.
    forks: usize,
}

impl Shared {
    /// Returns the region that holds the bytes: a sparse region, in which only shared pages may be
    /// registered.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the offset of the first byte in that region.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns true if the program may write all of the memory. The RNIC could write it in any
    /// case, so a caller that registers memory for peers to write has to check this first.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }
}

impl Drop for Shared {
    /// Gives back the pages that no other `Shared` covers.
    fn drop(&mut self) {
        let mut state = lock();
        if state.forks == self.forks {
            state.give_back(&self.pages, &self.region);
        }
    }
}

/// Memory that is about to be [shared](share): its window's file already has the pages, so the RNIC
/// can register them while this process converts the memory. No other thread converts any pages
/// while this value lives, because the value holds the lock.
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
    /// Returns the planned [`Shared::region`].
    pub(crate) fn region(&self) -> &Arc<Region> {
        match &self.0 {
            Planned::Convert { region, .. } | Planned::Shared(Shared { region, .. }) => region,
        }
    }

    /// Returns the planned [`Shared::offset`].
    pub(crate) fn offset(&self) -> usize {
        match &self.0 {
            Planned::Convert { offset, .. } | Planned::Shared(Shared { offset, .. }) => *offset,
        }
    }

    /// Returns the planned [`Shared::is_writable`].
    pub(crate) fn is_writable(&self) -> bool {
        match &self.0 {
            Planned::Convert { is_writable, .. } | Planned::Shared(Shared { is_writable, .. }) => {
                *is_writable
            }
        }
    }

    /// Shares the memory as planned.
    ///
    /// # Errors
    /// Returns the errors of [`share`].
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

/// Shares the pages that hold `[addr, addr + len)` with the RNIC. Other threads may read and write
/// them meanwhile. Without the privilege to make the kernel wait, a system call of another thread
/// that writes there at that moment can fail with EFAULT.
///
/// # Errors
/// Returns an error number: EINVAL for no bytes; EFAULT for memory that is unmapped or unreadable;
/// EOPNOTSUPP for code, for memory that other processes may map, unless the RNIC `takes_files`
/// and can be given the memory's file, and on kernels whose pages are not of 4 KiB; ENOMEM.
pub fn share(addr: usize, len: usize, takes_files: bool) -> Result<Shared, i32> {
    plan(addr, len, takes_files)?.carry_out()
}

/// Plans what [`share`] is to do.
///
/// # Errors
/// Returns the errors of [`share`] that show before the conversion.
pub(crate) fn plan(addr: usize, len: usize, takes_files: bool) -> Result<Plan, i32> {
    let pages =
        window::pages(addr, len).ok_or(if len == 0 { libc::EINVAL } else { libc::EFAULT })?;
    if page_of_kernel() != PAGE {
        log(&format!("cannot share {len} bytes at {addr:#x}: the kernel's pages are not of 4 KiB"));
        return Err(libc::EOPNOTSUPP);
    }
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
            // Convert large memory at once, so that file and program do not both hold it. Convert
            // here also if populating failed: either the kernel cannot populate or it has no
            // memory, and the conversion's result tells which.
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

/// Returns the bytes of a page of the kernel. Kernels of 64-bit Arm may have larger pages than
/// [`PAGE`]: replacing a page of ours would then replace its neighbors too.
fn page_of_kernel() -> usize {
    // SAFETY: the call only reads a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0)
}

/// Runs `f` while no thread converts pages. Returns `None` if a conversion or a fork does not end
/// within [`PATIENCE`]: a forking thread holds the lock, and may itself wait for a lock that our
/// caller holds.
pub(crate) fn still<T>(f: impl FnOnce() -> T) -> Option<T> {
    // While this counts, conversions let this thread go first. Otherwise a thread that converts all
    // the time would keep the lock.
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

/// Uses new files for all memory shared from here on. A process that opens another device needs
/// this, because a file belongs to one device for all its life. Memory registered with the old
/// device keeps its pages until the program unregisters it, and until then cannot be registered
/// with the new device (EBUSY).
pub fn renew() {
    let mut state = lock();
    state.windows.retain(|w| !w.shared.is_empty());
    state.windows.iter_mut().for_each(|w| w.is_old = true);
}

/// The reason why memory cannot be shared.
#[derive(Debug)]
struct Refusal {
    errno: i32,
    why: String,
    /// True if other processes may map the memory.
    is_shared: bool,
}

impl Refusal {
    fn new(errno: i32, why: impl Into<String>) -> Refusal {
        Refusal { errno, why: why.into(), is_shared: false }
    }
}

/// All windows, and the guard for pages. Threads that share and give back take the lock, and so
/// does `fork`; no signal handler takes it.
#[derive(Debug, Default)]
struct State {
    windows: Vec<Window>,
    files: files::Known,
    /// Opened at first use, and again in a child of a fork.
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

/// Number of threads that want the lock in [`still`].
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Counts one thread in [`WAITING`] while it lives.
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

/// Prints a line on standard error if `HEDDLE_LOG` asks for it.
pub(crate) fn log(text: &str) {
    if std::env::var_os(LOG).is_some_and(|level| level != "off") {
        eprintln!("heddle: {text}");
    }
}

/// Prints a line on standard error, unless `HEDDLE_LOG` is `off`: about an error of the user's, for which
/// the program gets a number alone.
pub(crate) fn complain(text: &str) {
    if std::env::var_os(LOG).is_none_or(|level| level != "off") {
        eprintln!("heddle: {text}");
    }
}

/// Bytes of stack that should lie below a shared page.
const BELOW: usize = 64 << 10;

/// Grows a stack whose mapping begins at `start`. The kernel grows only its own mapping of the
/// stack, and a shared page at the lower end would take that mapping's place. Any other mapping
/// stays unchanged.
fn grow(start: usize) {
    let mut byte = 0u8;
    let local = [start.saturating_sub(BELOW), 1];
    let remote = [(&raw mut byte).addr(), 1];
    // SAFETY: the kernel reads one byte, if there is one, into the live `byte`, and returns an
    // error otherwise.
    let _ = unsafe {
        let me = sys::call(libc::SYS_getpid, [0; 6]).unwrap_or(0);
        let args = [me, (&raw const local).addr(), 1, (&raw const remote).addr(), 1, 0];
        sys::call(libc::SYS_process_vm_writev, args)
    };
}

/// A part of a mapping to convert: whole pages.
#[derive(Debug)]
struct Part {
    pages: Range<usize>,
    protection: i32,
}

impl State {
    /// Plans the sharing of pages. Returns the window, the parts to convert, and whether the
    /// program may write all of the pages.
    fn plan(&mut self, pages: &Range<usize>) -> Result<(usize, Vec<Part>, bool), Refusal> {
        let known = self.windows.len();
        let at = self.window_of(pages)?;
        let (parts, is_writable) = self.windows[at].parts(pages).inspect_err(|_| {
            // Drop a window that `window_of` made only for these pages.
            self.windows.truncate(known);
        })?;
        Ok((at, parts, is_writable))
    }

    /// Shares pages as planned. Returns the shared pages, including the rest of their huge pages. A
    /// failed call leaves everything as it was.
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
                // Return each converted page that no registration shares, including the rest of a
                // huge page.
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

    /// Returns the index of the window that is to hold `pages`, and makes a window if none can.
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

    /// Converts a part, piece by piece, and adds each converted piece to `done`.
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
            // SAFETY: the kernel reports these pages as private, or as pages of the window's file,
            // and the lock excludes every other conversion. A program that unmaps memory while it
            // registers or unregisters that memory uses freed memory, for which no guarantee is
            // possible.
            unsafe { convert::convert(own, uffd, job) }?;
            done.push(piece);
            rest.start = end;
        }
        Ok(())
    }

    /// Ends one registration of these pages. Pages without any other registration become private.
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

    /// Makes pages private, except pages that no longer belong to the window.
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
                // Without memory for the copy, the rest stays shared for good: a child of fork
                // copies it, and the program notices only that `madvise` frees nothing there.
                let left = done.last().map_or(part.pages.start, |piece| piece.end);
                self.windows[at].shared.add(&(left..part.pages.end));
                log(&format!("the pages at {:#x} stay shared: {e}", part.pages.start));
            }
        }
    }
}

impl Window {
    /// Returns the parts of `pages` that still need conversion to share all of them, and whether
    /// the program may write all of `pages`.
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

    /// Returns the whole pages of the mapping that hold `here`: a conversion replaces a huge page
    /// as a whole.
    fn part(&self, here: Range<usize>, mapping: &Mapping) -> Result<Part, Refusal> {
        let page = mapping.page.max(PAGE);
        let pages = here.start / page * page..here.end.next_multiple_of(page);
        if !self.contains(&pages) {
            let why = "its huge page does not lie in one window of address space";
            return Err(Refusal::new(libc::ENOMEM, why));
        }
        Ok(Part { pages, protection: mapping.protection })
    }

    /// Records pages that were not in place when the module wanted to give them back.
    fn stray(&mut self, pages: &Range<usize>) {
        for new in self.astray.gaps(pages) {
            self.astray.add(&new);
        }
    }
}
