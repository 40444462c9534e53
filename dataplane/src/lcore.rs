//! Worker threads bound to a processor.
//!
//! Workers are plain threads of ours, registered with DPDK so that mempools give them a cache of
//! their own; the EAL itself starts none.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use heddle_dpdk_sys as sys;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use thiserror::Error;

use crate::eal::{self, Eal};

/// Why there is no worker, or no result of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LcoreError {
    /// A string is not a list of processors.
    #[error("not a list of processors: {list:?}: {why} (expected as 0,2 or 0-3)")]
    BadList {
        /// The string.
        list: String,
        /// The error in the string.
        why: &'static str,
    },
    /// This process may not use the processor.
    #[error("worker {name}: processor {core} does not exist or may not be used")]
    NoSuchCore {
        /// The worker's name.
        name: String,
        /// The processor's number.
        core: usize,
    },
    /// The system did not start the thread.
    #[error("worker {name}: {why}")]
    Start {
        /// The worker's name.
        name: String,
        /// The system's reason.
        why: String,
    },
    /// The worker's thread panicked.
    #[error("worker {name} failed: {message}")]
    Panicked {
        /// The worker's name.
        name: String,
        /// The message of the panic.
        message: String,
    },
}

/// Returns the numbers of the processors that this process may use.
pub fn available() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Binds the calling thread to processors; returns false if the system refuses.
pub fn bind_to(cpus: &[usize]) -> bool {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    sched_setaffinity(None, &set).is_ok()
}

/// The most numbers in a list of processors.
const MAX_CORES: usize = 1024;

/// Processor numbers, in the order given, as `0,2` or `1-3`. A number that is given twice is in the
/// list twice; the user of the list decides what that means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreList(Vec<usize>);

impl CoreList {
    /// Returns the numbers, in the order given.
    pub fn cores(&self) -> &[usize] {
        &self.0
    }
}

impl FromStr for CoreList {
    type Err = LcoreError;

    fn from_str(list: &str) -> Result<CoreList, LcoreError> {
        let bad = |why| LcoreError::BadList { list: list.into(), why };
        let number = |s: &str| match s.trim().parse::<usize>() {
            Ok(n) if n < 1024 => Ok(n),
            Ok(_) => Err(bad("a number is above 1023")),
            Err(_) => Err(bad("a number is missing or malformed")),
        };
        let mut cores = Vec::new();
        for part in list.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((a, b)) => (number(a)?, number(b)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(bad("a range goes down"));
            }
            for c in first..=last {
                if cores.len() == MAX_CORES {
                    return Err(bad("there are more than 1024 numbers"));
                }
                cores.push(c);
            }
        }
        Ok(CoreList(cores))
    }
}

impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&all.join(","))
    }
}

/// A flag that asks a worker to end; the worker looks at it once per round.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Returns a flag that is not set.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Returns true if the worker has to end.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Asks the worker to end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A running worker. Dropping this value asks the worker to end and waits for it.
#[derive(Debug)]
pub struct LcoreWorker<T> {
    name: String,
    core: usize,
    stop: Stop,
    thread: Option<JoinHandle<Option<T>>>,
}

impl<T: Send + 'static> LcoreWorker<T> {
    /// Starts `body` on a thread of its own, bound to `core` and registered with DPDK. The thread
    /// runs until `body` returns, which `body` should do when [`Stop::is_set`].
    ///
    /// # Errors
    /// Fails if this process may not use the processor, or the thread cannot be started or
    /// registered; `body` has not run then.
    pub fn spawn(
        _eal: &Eal,
        core: usize,
        name: &str,
        body: impl FnOnce(&Stop) -> T + Send + 'static,
    ) -> Result<LcoreWorker<T>, LcoreError> {
        let failed = |why: String| LcoreError::Start { name: name.into(), why };
        let no_core = || LcoreError::NoSuchCore { name: name.into(), core };
        if !available().contains(&core) {
            return Err(no_core());
        }
        let bind = move || bind_to(&[core]);
        LcoreWorker::start(core, name, bind, body).map_err(|why| why.map_or_else(no_core, failed))
    }

    /// Like [`spawn`](Self::spawn), but on a thread that the scheduler moves to any free processor,
    /// and that must run at once among programs that poll: the thread asks for short turns, so that
    /// it takes a processor from threads with longer turns when it is woken. `core` is a processor
    /// of this process, for reports.
    ///
    /// # Errors
    /// Fails if the thread cannot be started or registered; `body` has not run then.
    pub fn spawn_among_programs(
        _eal: &Eal,
        core: usize,
        name: &str,
        body: impl FnOnce(&Stop) -> T + Send + 'static,
    ) -> Result<LcoreWorker<T>, LcoreError> {
        let unbound = || {
            ask_for_short_turns();
            true
        };
        let failed = |why: Option<String>| LcoreError::Start {
            name: name.into(),
            why: why.unwrap_or_default(),
        };
        LcoreWorker::start(core, name, unbound, body).map_err(failed)
    }

    /// Starts a thread, which `prepare` prepares. An error without a reason means that `prepare`
    /// failed.
    fn start(
        core: usize,
        name: &str,
        prepare: impl FnOnce() -> bool + Send + 'static,
        body: impl FnOnce(&Stop) -> T + Send + 'static,
    ) -> Result<LcoreWorker<T>, Option<String>> {
        let stop = Stop::new();
        let theirs = stop.clone();
        let (tx, rx) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                // Prepare before registration, because DPDK takes over the affinity that it finds.
                if !prepare() {
                    let _ = tx.send(Err(None));
                    return None;
                }
                let registration = match Registration::of_this_thread() {
                    Ok(r) => r,
                    Err(why) => {
                        let _ = tx.send(Err(Some(why)));
                        return None;
                    }
                };
                let _ = tx.send(Ok(()));
                let result = body(&theirs);
                drop(registration);
                Some(result)
            })
            .map_err(|e| Some(e.to_string()))?;
        match rx.recv() {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return Err(why),
            Err(_) => return Err(Some("the thread ended at once".into())),
        }
        Ok(LcoreWorker { name: name.into(), core, stop, thread: Some(thread) })
    }
}

/// Nanoseconds that a turn of a thread among programs should last: the shortest that the kernel
/// accepts.
const SHORT_TURN: u64 = 100_000;

/// Asks the scheduler to give the calling thread short turns, and so to run the thread soon after
/// it is woken (`sched_setattr`, since Linux 6.12). The thread's share of the processor stays, and
/// it needs no privilege. If the kernel does not accept the request, nothing changes.
fn ask_for_short_turns() {
    /// `struct sched_attr` in its first form (48 bytes).
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SIZE: libc::c_uint = {
        assert!(size_of::<SchedAttr>() == 48);
        48
    };
    let mut attr = SchedAttr::default();
    // SAFETY: number 0 is the calling thread; `attr` is the structure whose size the calls get, and
    // lives longer than they do.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, SIZE, 0) == 0 {
            attr.size = SIZE;
            attr.runtime = SHORT_TURN;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        }
    }
}

impl<T> LcoreWorker<T> {
    /// Returns the worker's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the processor that the worker is bound to.
    pub fn core(&self) -> usize {
        self.core
    }

    /// Returns the flag that asks the worker to end.
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Asks the worker to end, without waiting.
    pub fn stop(&self) {
        self.stop.set();
    }

    /// Returns true if the worker has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks the worker to end, waits, and returns its result.
    ///
    /// # Errors
    /// Fails if the worker panicked.
    pub fn join(mut self) -> Result<T, LcoreError> {
        self.stop.set();
        let panicked = |message: &str| LcoreError::Panicked {
            name: self.name.clone(),
            message: message.into(),
        };
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Some(result))) => Ok(result),
            Some(Err(payload)) => {
                let text = payload
                    .downcast_ref::<&str>()
                    .copied()
                    .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
                Err(panicked(text.unwrap_or("a panic without a message")))
            }
            // A worker was started, so it has run, and `join` consumes it: this case cannot occur.
            _ => Err(panicked("it never ran")),
        }
    }
}

impl<T> Drop for LcoreWorker<T> {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A thread known to DPDK, to which mempools give a cache, until this value is dropped on the same
/// thread.
///
/// [`LcoreWorker`] registers its own thread; an application's thread that drives a worker inline
/// registers itself.
#[derive(Debug)]
pub struct Registration {
    ours: bool,
    _this_thread: PhantomData<*mut ()>,
}

impl Registration {
    /// Registers the calling thread. The thread that started the EAL, and a thread that is
    /// registered already, stay as they are.
    ///
    /// # Errors
    /// Fails if DPDK has no number left (it has 128 in a usual build).
    pub fn new(_eal: &Eal) -> Result<Registration, LcoreError> {
        Registration::of_this_thread()
            .map_err(|why| LcoreError::Start { name: "of the calling thread".into(), why })
    }

    fn of_this_thread() -> Result<Registration, String> {
        const LCORE_ID_ANY: u32 = u32::MAX;
        // SAFETY: reads a thread-local.
        let ours = unsafe { sys::heddle_lcore_id() } == LCORE_ID_ANY;
        let registration = Registration { ours, _this_thread: PhantomData };
        if !ours {
            return Ok(registration);
        }
        // SAFETY: the EAL runs (callers have proof of it), and this thread is not registered.
        let rc = unsafe { sys::rte_thread_register() };
        if rc == 0 {
            Ok(registration)
        } else {
            std::mem::forget(registration);
            Err(format!(
                "DPDK does not register the thread: {}",
                eal::error_text(eal::last_errno())
            ))
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        // SAFETY: this module registered this thread (the type cannot leave its thread). No call
        // flushes the thread's mempool caches, but the next thread of that number can use them.
        unsafe { sys::rte_thread_unregister() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_lcore_list_parses_numbers_and_ranges_in_order() {
        assert_eq!("0".parse::<CoreList>().unwrap().cores(), [0]);
        assert_eq!("3,0-2".parse::<CoreList>().unwrap().cores(), [3, 0, 1, 2]);
        assert_eq!("1-1, 5".parse::<CoreList>().unwrap().to_string(), "1,5");
    }

    #[test]
    fn test_lcore_list_refuses_malformed_text_with_reason() {
        for (bad, why) in [
            ("", "missing"),
            ("0,", "missing"),
            ("a", "malformed"),
            ("3-1", "down"),
            ("0-1023,0", "more than"),
            ("1024", "above"),
            ("-1", "missing"),
        ] {
            let e = bad.parse::<CoreList>().unwrap_err().to_string();
            assert!(e.contains(why), "{bad}: {e}");
        }
    }
}
