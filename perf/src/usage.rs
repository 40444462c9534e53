//! The processor time that threads and the process use.

use core::iter::Sum;
use core::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::{Deserialize, Serialize};

/// Processor time, as the kernel accounts for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds in the program.
    pub user_seconds: f64,
    /// Seconds in the kernel on behalf of the program.
    pub system_seconds: f64,
}

impl Usage {
    /// Returns the processor time of the process so far, of all its threads.
    pub fn of_process() -> Usage {
        Usage::of(UsageWho::RUSAGE_SELF)
    }

    /// Returns the processor time of the calling thread so far.
    pub fn of_thread() -> Usage {
        Usage::of(UsageWho::RUSAGE_THREAD)
    }

    fn of(who: UsageWho) -> Usage {
        // The call fails only for an unknown `who` or a bad address.
        let Ok(usage) = getrusage(who) else { return Usage::default() };
        let seconds =
            |micros: i64| Duration::from_micros(u64::try_from(micros).unwrap_or(0)).as_secs_f64();
        Usage {
            user_seconds: seconds(usage.user_time().num_microseconds()),
            system_seconds: seconds(usage.system_time().num_microseconds()),
        }
    }

    /// Returns the processor time since `before`.
    #[must_use]
    pub fn since(self, before: Usage) -> Usage {
        Usage {
            user_seconds: (self.user_seconds - before.user_seconds).max(0.0),
            system_seconds: (self.system_seconds - before.system_seconds).max(0.0),
        }
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(iter: I) -> Usage {
        iter.fold(Usage::default(), |a, b| Usage {
            user_seconds: a.user_seconds + b.user_seconds,
            system_seconds: a.system_seconds + b.system_seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_usage_counts_the_work_of_its_thread() {
        let (process, thread) = (Usage::of_process(), Usage::of_thread());
        let start = std::time::Instant::now();
        let mut n = 0u64;
        let used = loop {
            (0..100_000).for_each(|i| n = std::hint::black_box(n.wrapping_add(i)));
            let used = Usage::of_thread().since(thread);
            if used.user_seconds + used.system_seconds >= 0.02 || start.elapsed().as_secs() > 20 {
                break used;
            }
        };
        assert!(used.user_seconds + used.system_seconds >= 0.02, "{used:?}");
        let all = Usage::of_process().since(process);
        let sum = |u: Usage| u.user_seconds + u.system_seconds;
        assert!(sum(all) >= sum(used) * 0.9, "{all:?} {used:?}");
        let idle = std::thread::spawn(Usage::of_thread).join().unwrap();
        assert!(sum(idle) < 0.02, "{idle:?}");
    }
}
