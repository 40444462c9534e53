//! Waking a thread that sleeps until a ring has something for it.
//!
//! A [`Sleeper`] belongs to the thread that sleeps; its [`Waker`]s go to whoever fills rings. Within a
//! process a sleeper can be a futex ([`Sleeper::new`]); as an eventfd ([`Sleeper::with_fd`]) it can be
//! given to another process, and its descriptor to `epoll` or an async runtime.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Wakes the thread that owns the matching [`Sleeper`]; clones wake the same one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

#[derive(Debug)]
enum Shared {
    /// 1 while the thread sleeps or is about to.
    Futex(AtomicU32),
    Fd(OwnedFd),
}

impl Waker {
    /// The waker behind an eventfd that another process waits on.
    pub fn from_fd(fd: OwnedFd) -> Waker {
        Waker(Arc::new(Shared::Fd(fd)))
    }

    /// Wakes the thread if it sleeps. Call it after the ring was written. For a futex this is one
    /// fence and one load when nobody sleeps; an eventfd is a system call each time.
    pub fn wake(&self) {
        match &*self.0 {
            Shared::Futex(asleep) => {
                // Pairs with the fence in `sleep`: either the sleeper sees what was written, or we
                // see that it sleeps.
                fence(Ordering::SeqCst);
                if asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0 {
                    futex(asleep, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1, None);
                }
            }
            Shared::Fd(fd) => {
                let one = 1u64.to_ne_bytes();
                // SAFETY: writes eight octets of a live array to a descriptor that we own. It does
                // not block: where the count is at its limit the thread has long been woken.
                unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            }
        }
    }
}

/// The sleeping end; owned by one thread at a time.
#[derive(Debug)]
pub struct Sleeper(Waker);

impl Default for Sleeper {
    fn default() -> Self {
        Sleeper::new()
    }
}

impl Sleeper {
    /// A sleeper that is awake, for wakers in this process.
    pub fn new() -> Sleeper {
        Sleeper(Waker(Arc::new(Shared::Futex(AtomicU32::new(0)))))
    }

    /// A sleeper whose descriptor becomes readable when it is woken.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn with_fd() -> std::io::Result<Sleeper> {
        // SAFETY: no memory is passed; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, which nobody else owns.
        Ok(Sleeper::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// A sleeper on an eventfd that another process wakes; it must not block.
    pub fn from_fd(fd: OwnedFd) -> Sleeper {
        Sleeper(Waker::from_fd(fd))
    }

    /// The end to give to whoever writes the rings.
    pub fn waker(&self) -> Waker {
        self.0.clone()
    }

    /// The descriptor, for `epoll` and the like; `None` for a futex. After it was readable, call
    /// [`clear`](Sleeper::clear), then look at the rings.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &*self.0.0 {
            Shared::Fd(fd) => Some(fd.as_fd()),
            Shared::Futex(_) => None,
        }
    }

    /// Forgets wake-ups so far.
    pub fn clear(&self) {
        if let Shared::Fd(fd) = &*self.0.0 {
            drain(fd.as_raw_fd());
        }
    }

    /// Sleeps until woken or for `timeout`, unless `has_work` says there is something already. It is
    /// asked after the wakers can see that this thread sleeps: there a completion queue is armed.
    pub fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        match &*self.0.0 {
            Shared::Futex(asleep) => {
                asleep.store(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                if !has_work() {
                    futex(asleep, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 1, Some(timeout));
                }
                asleep.store(0, Ordering::Relaxed);
            }
            Shared::Fd(fd) => {
                if !has_work() {
                    wait_readable(fd.as_raw_fd(), timeout);
                }
                drain(fd.as_raw_fd());
            }
        }
    }
}

fn drain(fd: RawFd) {
    let mut count = [0u8; 8];
    // SAFETY: reads at most eight octets into a live array; the descriptor does not block.
    unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
}

fn wait_readable(fd: RawFd, timeout: Duration) {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // Rounded up: a wait of less than a millisecond must not become a spin.
    let millis = timeout.as_nanos().div_ceil(1_000_000);
    // SAFETY: one live entry. A signal ends the wait early, as a spurious wake-up would.
    unsafe { libc::poll(&raw mut poll, 1, i32::try_from(millis).unwrap_or(i32::MAX)) };
}

fn futex(word: &AtomicU32, op: i32, value: u32, timeout: Option<Duration>) {
    let spec = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is a live, aligned u32 and the time-out a live struct or null. All that can go
    // wrong (a changed word, a signal, the time-out) ends the wait, and the caller looks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, spec) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn wakes(sleeper: &Sleeper) {
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
    fn test_wake_ends_a_sleep() {
        wakes(&Sleeper::new());
        wakes(&Sleeper::with_fd().unwrap());
    }

    #[test]
    fn test_sleep_does_not_start_with_work_there() {
        for sleeper in [Sleeper::new(), Sleeper::with_fd().unwrap()] {
            let start = Instant::now();
            sleeper.sleep(Duration::from_secs(5), || true);
            assert!(start.elapsed() < Duration::from_secs(1));
        }
    }

    #[test]
    fn test_descriptor_is_readable_until_it_is_cleared() {
        let sleeper = Sleeper::with_fd().unwrap();
        let readable = || {
            let fd = sleeper.fd().unwrap().as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one live entry, no wait.
            unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
        };
        assert!(!readable());
        sleeper.waker().wake();
        sleeper.waker().wake();
        assert!(readable());
        sleeper.clear();
        assert!(!readable());
        assert!(Sleeper::new().fd().is_none());
    }
}
