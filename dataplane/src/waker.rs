//! Waking an application thread that sleeps until a ring has something for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use crossbeam_utils::sync::{Parker, Unparker};

/// Wakes the thread that owns the matching [`Sleeper`]. Cheap when that thread is not asleep: one
/// load.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    asleep: AtomicBool,
    unparker: Unparker,
}

impl Waker {
    /// Wakes the thread if it sleeps. Call it after the ring was written.
    pub fn wake(&self) {
        // Pairs with the fence in `sleep`: either the sleeper sees what was written, or we see
        // that it sleeps.
        fence(Ordering::SeqCst);
        if self.0.asleep.load(Ordering::Relaxed) && self.0.asleep.swap(false, Ordering::AcqRel) {
            self.0.unparker.unpark();
        }
    }
}

/// The sleeping end; owned by one thread.
#[derive(Debug)]
pub struct Sleeper {
    parker: Parker,
    waker: Waker,
}

impl Default for Sleeper {
    fn default() -> Self {
        Sleeper::new()
    }
}

impl Sleeper {
    /// A sleeper that is awake.
    pub fn new() -> Sleeper {
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        Sleeper {
            parker,
            waker: Waker(Arc::new(Shared { asleep: AtomicBool::new(false), unparker })),
        }
    }

    /// The end to give to whoever writes the rings.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Sleeps until woken or for `timeout`, unless `has_work` says there is something already.
    pub fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        let asleep = &self.waker.0.asleep;
        asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() {
            self.parker.park_timeout(timeout);
        }
        asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    #[test]
    fn test_wake_ends_a_sleep() {
        let sleeper = Sleeper::new();
        let waker = sleeper.waker();
        let value = Arc::new(AtomicU32::new(0));
        let theirs = value.clone();
        let t = std::thread::spawn(move || {
            for i in 1..=1000 {
                theirs.store(i, Ordering::Release);
                waker.wake();
                while theirs.load(Ordering::Acquire) != 0 {
                    std::thread::yield_now();
                }
            }
        });
        let start = Instant::now();
        for i in 1..=1000 {
            while value.load(Ordering::Acquire) != i {
                sleeper.sleep(Duration::from_secs(5), || value.load(Ordering::Acquire) == i);
            }
            value.store(0, Ordering::Release);
        }
        t.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "a wake-up was lost");
    }

    #[test]
    fn test_sleep_does_not_start_with_work_there() {
        let start = Instant::now();
        Sleeper::new().sleep(Duration::from_secs(5), || true);
        assert!(start.elapsed() < Duration::from_secs(1));
    }
}
