//! Waking a thread that sleeps until a ring has something for it.
//!
//! A [`Sleeper`] belongs to the thread that sleeps; its [`Waker`]s go to the threads that fill
//! rings.
//!
//! | Made by | Sleeps on | Woken by |
//! |---|---|---|
//! | [`Sleeper::new`] | a futex | this process |
//! | [`Sleeper::with_fd`] | an `epoll` descriptor | this process, and the servers of its devices |
//! | [`Sleeper::pair`] | one end of a pair of sockets | this process, which may hand that end on |
//!
//! **Why a pair of sockets and no eventfd between processes.** A flag of the open file says whether
//! a write to an eventfd waits, and both processes share that file: an application could clear the
//! flag, fill the counter and so make the worker that wakes it sleep for ever. On a socket, each
//! send says whether it waits.
//!
//! **Why the waking process makes the pair.** An application that made the pair could queue
//! descriptors in the worker's end, and the last close of these descriptors takes as long as the
//! application likes. This process makes the worker's end and shuts it for receiving before the
//! other end leaves the process, so no peer can ever queue anything in it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use crate::closer;

mod gathering;

pub use gathering::{Gathering, Source};

/// Wakes the thread that owns the matching [`Sleeper`]; clones wake the same thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

/// A handle that does not keep its waker alive.
#[derive(Clone, Debug)]
pub struct WeakWaker(Weak<Shared>);

impl WeakWaker {
    /// Returns the waker, if a handle of it is left.
    pub fn upgrade(&self) -> Option<Waker> {
        self.0.upgrade().map(Waker)
    }

    /// Returns true if no handle of the waker is left.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

#[derive(Debug)]
enum Shared {
    /// 1 while the thread sleeps or is about to.
    Futex(AtomicU32),
    /// Two connected sockets: one byte for each wake-up.
    Sockets { wake: Option<WakeEnd>, sleep: Option<OwnedFd> },
    /// An `epoll` descriptor over a bell of this process and sockets of servers.
    Gathering { set: Arc<Gathering>, number: u64 },
}

/// The next number; numbers distinguish the sleepers of a process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// The end that wake-ups are sent to. Nothing can be received from this end.
#[derive(Debug)]
struct WakeEnd {
    fd: Option<OwnedFd>,
    /// The other end is in another process.
    far: bool,
}

impl Drop for WakeEnd {
    fn drop(&mut self) {
        // A worker may drop the last reference, and kernels before Linux 6.10 collect garbage of
        // all Unix sockets in the thread that closes such a socket.
        if let Some(fd) = self.fd.take().filter(|_| self.far) {
            closer::release(closer::MEMORY, fd);
        }
    }
}

/// Returns a pair of sockets: the waking end, shut for receiving, and the sleeping end.
fn pair(far: bool) -> io::Result<(WakeEnd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (wake, sleep) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Shut this end before another process has the other end: from here on a send there fails.
    shutdown(&wake, Shutdown::Read)?;
    Ok((WakeEnd { fd: Some(wake), far }, sleep))
}

impl Waker {
    /// Returns a waker with a number of its own.
    pub fn of(set: &Arc<Gathering>) -> Waker {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        Waker(Arc::new(Shared::Gathering { set: set.clone(), number }))
    }

    /// Returns a waker of a thread in another process, and the descriptor on which that thread
    /// sleeps ([`Sleeper::from_fd`]). Wakes never wait, no matter what that process does to its
    /// end.
    ///
    /// # Errors
    /// The system's error if it gives no descriptors.
    pub fn for_process() -> io::Result<(Waker, OwnedFd)> {
        let (wake, sleep) = pair(true)?;
        Ok((Waker(Arc::new(Shared::Sockets { wake: Some(wake), sleep: None })), sleep))
    }

    /// Returns the number by which servers know this waker's sleeper, or `None` if no other process
    /// can wake that sleeper.
    pub fn number(&self) -> Option<u64> {
        match &*self.0 {
            Shared::Gathering { number, .. } => Some(*number),
            Shared::Futex(_) | Shared::Sockets { .. } => None,
        }
    }

    /// Adds `fd`, which a server wakes, to the descriptors that the waker's sleeper sleeps on.
    ///
    /// # Errors
    /// The system's error; [`InvalidInput`](io::ErrorKind::InvalidInput) when the waker has no
    /// [number](Self::number).
    pub fn listen_to(&self, fd: OwnedFd) -> io::Result<()> {
        match &*self.0 {
            Shared::Gathering { set, number } => set.add(fd, *number),
            Shared::Futex(_) | Shared::Sockets { .. } => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Returns a handle that does not keep the waker.
    pub fn downgrade(&self) -> WeakWaker {
        WeakWaker(Arc::downgrade(&self.0))
    }

    /// Wakes the thread if it sleeps. Call this after the ring was written. For a futex this costs
    /// a fence and a load when the thread is awake; for a descriptor it costs a system call each
    /// time, which does not wait.
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
            Shared::Sockets { wake: Some(WakeEnd { fd: Some(fd), .. }), .. } => {
                const HOW: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                let one = [1u8];
                // SAFETY: sends one byte of a live array to a descriptor that we own. The call does
                // not wait: when the socket has no room, the thread was woken long ago.
                unsafe { libc::send(fd.as_raw_fd(), one.as_ptr().cast(), one.len(), HOW) };
            }
            Shared::Sockets { .. } => {}
            Shared::Gathering { set, .. } => set.ring(),
        }
    }
}

/// The sleeping end; one thread at a time owns a sleeper.
#[derive(Debug)]
pub struct Sleeper(Waker);

impl Default for Sleeper {
    fn default() -> Self {
        Sleeper::new()
    }
}

impl Sleeper {
    /// Returns a sleeper that is awake, for wakers in this process.
    pub fn new() -> Sleeper {
        Sleeper(Waker(Arc::new(Shared::Futex(AtomicU32::new(0)))))
    }

    /// Returns a sleeper whose descriptor becomes readable when the sleeper is woken, also by the
    /// server of a device that was opened through a socket (`heddle_verbs::Device::open`).
    ///
    /// # Errors
    /// The system's error if it gives no descriptors.
    pub fn with_fd() -> io::Result<Sleeper> {
        Ok(Sleeper(Waker::of(&Arc::new(Gathering::new()?))))
    }

    /// Returns a sleeper on one end of a pair of sockets. Its wakers belong to this process; the
    /// caller can hand its descriptor to another process, which sleeps on it by
    /// [`from_fd`](Sleeper::from_fd).
    ///
    /// # Errors
    /// The system's error if it gives no descriptors.
    pub fn pair() -> io::Result<Sleeper> {
        let (wake, sleep) = pair(false)?;
        Ok(Sleeper(Waker(Arc::new(Shared::Sockets { wake: Some(wake), sleep: Some(sleep) }))))
    }

    /// Returns a sleeper on a descriptor that another process wakes: that of a [`Sleeper::pair`],
    /// or of [`Waker::for_process`]. The sleeper's own [`waker`](Sleeper::waker) wakes no thread.
    pub fn from_fd(fd: OwnedFd) -> Sleeper {
        Sleeper(Waker(Arc::new(Shared::Sockets { wake: None, sleep: Some(fd) })))
    }

    /// Returns the waker, for the thread that writes the rings.
    pub fn waker(&self) -> Waker {
        self.0.clone()
    }

    /// Returns the descriptor, for `epoll` and the like, or `None` for a futex. After the
    /// descriptor was readable, call [`clear`](Sleeper::clear), then look at the rings.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &*self.0.0 {
            Shared::Sockets { sleep, .. } => sleep.as_ref().map(AsFd::as_fd),
            Shared::Gathering { set, .. } => Some(set.fd()),
            Shared::Futex(_) => None,
        }
    }

    /// Forgets all wake-ups so far.
    pub fn clear(&self) {
        match &*self.0.0 {
            Shared::Sockets { sleep: Some(fd), .. } => {
                drain(fd.as_raw_fd());
            }
            Shared::Gathering { set, .. } => set.wait(Duration::ZERO),
            Shared::Sockets { sleep: None, .. } | Shared::Futex(_) => {}
        }
    }

    /// Sleeps until woken or for `timeout`, unless `has_work` returns true. This function calls
    /// `has_work` after the wakers can see that the thread sleeps: `has_work` is the place to arm a
    /// completion queue.
    pub fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        match &*self.0.0 {
            Shared::Futex(asleep) => {
                asleep.store(1, Ordering::Relaxed);
                // Pairs with the fence in `wake`.
                fence(Ordering::SeqCst);
                if !has_work() {
                    futex(asleep, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 1, Some(timeout));
                }
                asleep.store(0, Ordering::Relaxed);
            }
            Shared::Sockets { sleep: Some(fd), .. } => {
                if !has_work() {
                    wait_readable(fd.as_raw_fd(), timeout);
                }
                drain(fd.as_raw_fd());
            }
            Shared::Gathering { set, .. } => {
                set.wait(if has_work() { Duration::ZERO } else { timeout });
            }
            // A sleeper always has a descriptor here.
            Shared::Sockets { sleep: None, .. } => {}
        }
    }
}

/// Takes the bytes of all wake-ups so far. Returns false when no more can come.
fn drain(fd: RawFd) -> bool {
    // A socket keeps fewer single bytes than this, so one call is usually enough.
    let mut bytes = [0u8; 512];
    loop {
        // SAFETY: receives at most as many bytes as the live array has, and does not wait.
        let got =
            unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        match got {
            512 => {}
            0 => return false,
            _ => return true,
        }
    }
}

fn wait_readable(fd: RawFd, timeout: Duration) {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // Round up: a wait of less than a millisecond must not become a spin.
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
    // SAFETY: the word is a live, aligned u32 and the time-out a live struct or null. Every failure
    // (a changed word, a signal, the time-out) ends the wait, and the caller looks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, spec) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Instant;

    use super::*;

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
    fn test_wake_ends_a_sleep_of_every_sleeper_kind() {
        wakes(&Sleeper::new());
        wakes(&Sleeper::with_fd().unwrap());
        wakes(&Sleeper::pair().unwrap());
    }

    #[test]
    fn test_sleeper_does_not_sleep_when_work_is_ready() {
        for sleeper in [Sleeper::new(), Sleeper::with_fd().unwrap(), Sleeper::pair().unwrap()] {
            let start = Instant::now();
            sleeper.sleep(Duration::from_secs(5), || true);
            assert!(start.elapsed() < Duration::from_secs(1));
        }
    }

    #[test]
    fn test_waker_descriptor_is_readable_until_cleared() {
        descriptor_is_readable_until_it_is_cleared(&Sleeper::with_fd().unwrap());
        descriptor_is_readable_until_it_is_cleared(&Sleeper::pair().unwrap());
    }

    fn descriptor_is_readable_until_it_is_cleared(sleeper: &Sleeper) {
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

    /// The other process has one end. No matter what that process does to its end, no wake-up
    /// waits.
    #[test]
    fn test_waker_of_another_process_never_blocks() {
        let (waker, theirs) = Waker::for_process().unwrap();
        // SAFETY: changes a flag of a descriptor that we own.
        assert_eq!(unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFL, 0) }, 0);
        let start = Instant::now();
        for _ in 0..10_000 {
            waker.wake();
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        let sleeper = Sleeper::from_fd(theirs);
        sleeper.clear();
        let start = Instant::now();
        sleeper.sleep(Duration::from_millis(20), || false);
        assert!(start.elapsed() >= Duration::from_millis(20), "a wake-up was left");
        drop(sleeper);
        waker.wake();
    }

    /// A worker that closes the waking end would also close any descriptors queued in it.
    #[test]
    fn test_other_process_cannot_queue_descriptors_in_the_waking_end() {
        let (waker, theirs) = Waker::for_process().unwrap();
        let stream = std::os::unix::net::UnixStream::from(theirs);
        let hidden = std::fs::File::open("/dev/null").unwrap();
        let sent = heddle_socket::wire::send(&stream, b"x", &[hidden.as_fd()]);
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        waker.wake();
        let sleeper = Sleeper::from_fd(stream.into());
        let start = Instant::now();
        sleeper.sleep(Duration::from_secs(30), || false);
        assert!(start.elapsed() < Duration::from_secs(25), "it still wakes");
    }

    #[test]
    fn test_sleeper_is_woken_by_servers_and_forgets_closed_ones() {
        let sleeper = Sleeper::with_fd().unwrap();
        let (one, end) = Waker::for_process().unwrap();
        sleeper.waker().listen_to(end).unwrap();
        let (two, end) = Waker::for_process().unwrap();
        sleeper.waker().listen_to(end).unwrap();
        let woken = |time: u64| {
            let (start, time) = (Instant::now(), Duration::from_millis(time));
            sleeper.sleep(time, || false);
            start.elapsed() < time
        };
        for waker in [&one, &two, &one, &sleeper.waker()] {
            waker.wake();
            assert!(woken(30_000));
            assert!(!woken(20), "once");
        }
        drop(one);
        // The end of a server is a wake-up as well, and only one.
        assert!(woken(30_000));
        assert!(!woken(20));
        two.wake();
        assert!(woken(30_000));
        assert!(
            Sleeper::pair()
                .unwrap()
                .waker()
                .listen_to(File::open("/dev/null").unwrap().into())
                .is_err()
        );
    }
}
