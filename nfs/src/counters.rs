//! The counters of a service.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use heddle_base::Histogram;
use heddle_rpcrdma::rpc::Procedure;

use crate::wire::{Status, mount, procedure};

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $name:ident,)*) => {
        heddle_base::counters! {
            /// The counters of a service since its start.
            pub struct Counts { $($(#[doc = $help])+ $name,)* }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            failures: Failures,
            times: Times,
        }

        impl Counters {
            pub(crate) fn get(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Calls that the service carried out, whatever their status.
    calls,
    /// Calls that the service carried out with a status other than OK.
    failed,
    /// Calls whose arguments the service could not read.
    garbage,
    /// Calls of a program, version or procedure that the service does not offer.
    unavailable,
    /// Calls whose credential the service refused.
    denied,
    /// Messages that are no calls: the service did not answer them.
    dropped,
    /// Calls with a handle that is none of ours, or whose object does not exist any more.
    stale,
    /// Calls that panicked, which is a defect. The service answered SYSTEM_ERR.
    panics,
    /// Bytes that READs returned.
    read_bytes,
    /// Bytes that WRITEs stored.
    written_bytes,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

/// How long calls of a procedure took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// `NFS` or `MOUNT`.
    pub program: &'static str,
    /// The procedure's name in RFC 1813.
    pub procedure: &'static str,
    /// Time from the arrival of the arguments to the finished results: this includes the disk and
    /// excludes the network.
    pub times: Histogram,
}

/// Calls that failed, by their statuses, in the order of [`Status::ALL`].
#[derive(Debug)]
struct Failures([AtomicU64; Status::ALL.len()]);

impl Default for Failures {
    fn default() -> Failures {
        Failures(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Procedures of both programs, by their numbers.
#[derive(Debug)]
struct Times {
    nfs: [Mutex<Histogram>; procedure::NAMES.len()],
    mount: [Mutex<Histogram>; mount::NAMES.len()],
}

impl Default for Times {
    fn default() -> Times {
        let zero = |_| Mutex::new(Histogram::ZERO);
        Times { nfs: std::array::from_fn(zero), mount: std::array::from_fn(zero) }
    }
}

fn locked(times: &Mutex<Histogram>) -> MutexGuard<'_, Histogram> {
    // A thread that panicked in the middle of an update leaves a histogram that is still usable.
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Counters {
    /// Counts a call that was carried out and took `time`.
    pub(crate) fn took(&self, of: Procedure, time: Duration) {
        let all = match of.program {
            procedure::PROGRAM => &self.times.nfs[..],
            _ => &self.times.mount[..],
        };
        if let Some(times) = all.get(of.procedure as usize) {
            locked(times).record_time(time);
        }
    }

    /// Counts a status that is not OK.
    pub(crate) fn fail(&self, status: Status) {
        let at = Status::ALL.iter().position(|known| *known == status);
        if let Some(counter) = at.and_then(|at| self.failures.0.get(at)) {
            count(counter, 1);
        }
    }

    /// Returns the statuses other than OK that calls had, each with its count.
    pub(crate) fn failures(&self) -> Vec<(Status, u64)> {
        let all = Status::ALL.iter().zip(&self.failures.0);
        let all = all.map(|(status, counter)| (*status, counter.load(Relaxed)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the times of the procedures that clients have called.
    pub(crate) fn timings(&self) -> Vec<Timing> {
        let program = |program, names: &'static [&'static str], all: &[Mutex<Histogram>]| {
            let all = names.iter().zip(all).map(|(name, times)| (*name, *locked(times)));
            let all = all.map(|(procedure, times)| Timing { program, procedure, times });
            all.filter(|t| t.times.count() > 0).collect::<Vec<_>>()
        };
        let nfs = program("NFS", &procedure::NAMES, &self.times.nfs);
        let mount = program("MOUNT", &mount::NAMES, &self.times.mount);
        [nfs, mount].concat()
    }
}
