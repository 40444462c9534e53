//! Waking a thread that sleeps until a ring has something for it.
//!
//! A [`Sleeper`] belongs to the thread that sleeps; its [`Waker`]s go to whoever fills rings. Within a
//! process a sleeper can be a futex ([`Sleeper::new`]); as a descriptor ([`Sleeper::with_fd`]) it can be
//! woken by another process, and given to `epoll` or an async runtime.
//!
//! **Why a pair of sockets and no eventfd.** Whether a write to an eventfd waits is a flag of the open
//! file, which both processes share: an application could clear it, fill the counter and have the
//! worker that wakes it sleep for ever. Whether a send waits is said with each call.

use std::io;
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
    /// Two sockets that are joined: one octet for each wake-up.
    Sockets { wake: Option<OwnedFd>, sleep: Option<OwnedFd> },
}

impl Waker {
    /// The waker behind a descriptor that another process has made by [`Sleeper::with_fd`]. Wakes never
    /// wait, whatever that process does to it.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) when it is not a connected Unix stream socket
    /// without a name: what is sent to a waker is to go nowhere else.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Waker> {
        let mut addr = libc::sockaddr_un { sun_family: 0, sun_path: [0; 108] };
        let mut len = socklen(size_of_val(&addr));
        let mut sort: libc::c_int = 0;
        let mut sort_len = socklen(size_of_val(&sort));
        // SAFETY: both calls write at most as many octets as the live variables have, whose sizes they
        // are given; a descriptor that is no socket is an error.
        let connected_stream = unsafe {
            let peer = (&raw mut addr).cast();
            let found = (&raw mut sort).cast();
            libc::getpeername(fd.as_raw_fd(), peer, &raw mut len) == 0
                && libc::getsockopt(
                    fd.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_TYPE,
                    found,
                    &raw mut sort_len,
                ) == 0
        };
        // A Unix address without a path is no more than its family.
        let nameless = usize::try_from(len) == Ok(size_of::<libc::sa_family_t>());
        if !connected_stream
            || sort != libc::SOCK_STREAM
            || i32::from(addr.sun_family) != libc::AF_UNIX
            || !nameless
        {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no descriptor of a waker"));
        }
        Ok(Waker(Arc::new(Shared::Sockets { wake: Some(fd), sleep: None })))
    }

    /// What another process makes the same waker of; `None` for a futex, which wakes only threads of
    /// this process.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &*self.0 {
            Shared::Futex(_) => None,
            Shared::Sockets { wake, .. } => wake.as_ref().map(AsFd::as_fd),
        }
    }

    /// Wakes the thread if it sleeps. Call it after the ring was written. For a futex this is one
    /// fence and one load when nobody sleeps; for a descriptor a system call each time, which does not
    /// wait.
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
            Shared::Sockets { wake: Some(fd), .. } => {
                const HOW: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                let one = [1u8];
                // SAFETY: sends one octet of a live array to a descriptor that we own. It does not
                // wait: where there is no room the thread has long been woken.
                unsafe { libc::send(fd.as_raw_fd(), one.as_ptr().cast(), one.len(), HOW) };
            }
            Shared::Sockets { wake: None, .. } => {}
        }
    }
}

fn socklen(octets: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(octets).unwrap_or(0)
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
    pub fn with_fd() -> io::Result<Sleeper> {
        const SORT: libc::c_int = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let mut pair = [0; 2];
        // SAFETY: writes two descriptors into a live array; the result is checked.
        if unsafe { libc::socketpair(libc::AF_UNIX, SORT, 0, pair.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: descriptors just made, which nobody else owns.
        let [sleep, wake] = pair.map(|fd| Some(unsafe { OwnedFd::from_raw_fd(fd) }));
        Ok(Sleeper(Waker(Arc::new(Shared::Sockets { wake, sleep }))))
    }

    /// A sleeper on the descriptor of one that another process has made ([`fd`](Sleeper::fd)), which
    /// wakes it. Its own [`waker`](Sleeper::waker) wakes nobody.
    pub fn from_fd(fd: OwnedFd) -> Sleeper {
        Sleeper(Waker(Arc::new(Shared::Sockets { wake: None, sleep: Some(fd) })))
    }

    /// The end to give to whoever writes the rings.
    pub fn waker(&self) -> Waker {
        self.0.clone()
    }

    /// The descriptor, for `epoll` and the like; `None` for a futex. After it was readable, call
    /// [`clear`](Sleeper::clear), then look at the rings.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &*self.0.0 {
            Shared::Sockets { sleep, .. } => sleep.as_ref().map(AsFd::as_fd),
            Shared::Futex(_) => None,
        }
    }

    /// Forgets wake-ups so far.
    pub fn clear(&self) {
        if let Shared::Sockets { sleep: Some(fd), .. } = &*self.0.0 {
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
            Shared::Sockets { sleep: Some(fd), .. } => {
                if !has_work() {
                    wait_readable(fd.as_raw_fd(), timeout);
                }
                drain(fd.as_raw_fd());
            }
            // A sleeper always has one.
            Shared::Sockets { sleep: None, .. } => {}
        }
    }
}

fn drain(fd: RawFd) {
    // More than a socket keeps of single octets, so once is mostly enough.
    let mut octets = [0u8; 512];
    // SAFETY: receives at most as many octets as the live array has, and does not wait.
    let more = || unsafe {
        libc::recv(fd, octets.as_mut_ptr().cast(), octets.len(), libc::MSG_DONTWAIT) == 512
    };
    std::iter::repeat_with(more).find(|more| !more);
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

    /// The other process has the same open files. Whatever it does to them, no wake-up waits.
    #[test]
    fn test_waker_of_another_process_does_not_wait_for_it() {
        let sleeper = Sleeper::with_fd().unwrap();
        let theirs = sleeper.waker();
        let theirs = theirs.fd().unwrap();
        let waker = Waker::from_fd(theirs.try_clone_to_owned().unwrap()).unwrap();
        // SAFETY: changes a flag of a descriptor that we own: now writes wait.
        assert_eq!(unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFL, 0) }, 0);
        let start = Instant::now();
        for _ in 0..10_000 {
            waker.wake();
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        sleeper.clear();
        let start = Instant::now();
        sleeper.sleep(Duration::from_millis(20), || false);
        assert!(start.elapsed() >= Duration::from_millis(20), "a wake-up was left");
        drop(sleeper);
        waker.wake();
    }

    #[test]
    fn test_what_is_no_end_of_a_sleeper_is_no_waker() {
        use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
        let refused = |fd: OwnedFd| Waker::from_fd(fd).is_err();
        let (pipe, _end) = std::io::pipe().unwrap();
        assert!(refused(pipe.into()));
        assert!(refused(std::fs::File::open("/dev/null").unwrap().into()));
        assert!(refused(UnixDatagram::pair().unwrap().0.into()));
        assert!(refused(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()));
        let path = std::env::temp_dir().join(format!("heddle-waker-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        // Somebody's service.
        let named = UnixStream::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(refused(named.into()) && refused(listener.into()));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(!refused(ours.into()));
    }
}
