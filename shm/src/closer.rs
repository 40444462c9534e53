//! Threads that release kernel objects whose release takes as long as a client likes.
//!
//! The last `close` of a TCP socket with SO_LINGER waits for the peer, and a client can hide such a
//! socket in the queue of another socket; dropping the last reference to a file in memory frees all
//! its pages. A worker, and a thread that serves several clients, therefore never closes or unmaps
//! an object that a client made or sized: it hands the owner of the object to a lane here.
//!
//! Each lane is one thread, which starts with its first job. [`MEMORY`] frees memory; the others
//! belong to clients, by user ([`lane_of`]), so that one user's releases never delay another's for
//! long.
//!
//! **No release lasts.** A lane has a timer that signals its thread every [`NUDGE`] while a job
//! runs. A lingering socket stops waiting when a signal is pending, so a job of a hundred lingering
//! sockets takes a hundred nudges, no matter what linger time their owner set.
//!
//! **Handing over never waits.** [`release`] pushes to a lock-free stack and wakes the thread by a
//! futex, so a worker may call it.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use crate::threads::without_signals;
use crate::waker::{Sleeper, Waker};

mod stack;

use stack::Stack;

/// The lane that frees memory.
pub const MEMORY: usize = 0;

/// Lanes of clients.
const CLIENTS: usize = 8;

/// Longest time that one release may wait.
pub const NUDGE: Duration = Duration::from_millis(1);

/// Time that a lane sleeps when no job wakes it.
const NAP: Duration = Duration::from_secs(60);

type Job = Box<dyn FnOnce() + Send>;

/// A thread and the jobs that it runs.
struct Lane {
    jobs: Stack<Job>,
    waker: Waker,
}

static LANES: [OnceLock<Option<Lane>>; CLIENTS + 1] = [const { OnceLock::new() }; CLIENTS + 1];

/// Returns the lane for objects that clients of user `uid` have sent.
pub fn lane_of(uid: u32) -> usize {
    1 + usize::try_from(uid).unwrap_or(0) % CLIENTS
}

/// Drops `what` on the thread of `lane`.
pub fn release(lane: usize, what: impl Send + 'static) {
    run(lane, move || drop(what));
}

/// Calls `job` on the thread of `lane`. If the system has no thread left, the caller runs the job.
pub fn run(lane: usize, job: impl FnOnce() + Send + 'static) {
    // The model checker has threads of its own, so run the job here.
    if cfg!(feature = "loom") {
        return job();
    }
    let lane = LANES[lane % LANES.len()].get_or_init(|| Lane::start(lane).ok());
    match lane {
        Some(lane) => {
            lane.jobs.push(Box::new(job));
            lane.waker.wake();
        }
        None => job(),
    }
}

/// Starts the lane that frees memory, so that no worker has to start it.
pub fn prepare() {
    run(MEMORY, || {});
}

impl Lane {
    fn start(number: usize) -> io::Result<Lane> {
        let sleeper = Sleeper::new();
        let waker = sleeper.waker();
        let work = move || {
            // The lane is in `LANES` only after `get_or_init` has returned, so wait for that.
            let lane = loop {
                match LANES[number % LANES.len()].get() {
                    Some(Some(lane)) => break lane,
                    Some(None) => return,
                    None => std::thread::yield_now(),
                }
            };
            lane.work(&sleeper, nudge::Timer::new().ok().as_ref());
        };
        let thread = std::thread::Builder::new().name(format!("heddle-close-{number}"));
        without_signals(|| thread.spawn(work))?;
        Ok(Lane { jobs: Stack::new(), waker })
    }

    fn work(&self, sleeper: &Sleeper, timer: Option<&nudge::Timer>) {
        loop {
            for job in self.jobs.take_all() {
                if let Some(timer) = timer {
                    timer.set(NUDGE);
                }
                // A destructor that panics is a defect, but the lane has to go on with the other
                // jobs.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                if let Some(timer) = timer {
                    timer.set(Duration::ZERO);
                }
            }
            sleeper.sleep(NAP, || !self.jobs.is_empty());
        }
    }
}

/// Returns the number of the signal that ends waits of the lanes' threads. No other thread takes it.
pub fn nudge() -> libc::c_int {
    nudge::signal()
}

/// A timer that sends its thread a signal at intervals; the signal only ends waits.
mod nudge {
    use std::io;
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::time::Duration;

    /// The timer of the thread that made it.
    #[derive(Debug)]
    pub(super) struct Timer(libc::timer_t);

    extern "C" fn nothing(_signal: libc::c_int) {}

    /// Returns the signal, which only threads of lanes take.
    pub(super) fn signal() -> libc::c_int {
        // The C library uses the first two real-time signals; nothing here or in DPDK uses one this
        // high.
        libc::SIGRTMIN() + 7
    }

    impl Timer {
        pub(super) fn new() -> io::Result<Timer> {
            // SAFETY: structures of integers and pointers, for which all zeros are values.
            let (mut action, mut event) = unsafe {
                let action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                let event: libc::sigevent = MaybeUninit::zeroed().assume_init();
                (action, event)
            };
            let handler: extern "C" fn(libc::c_int) = nothing;
            action.sa_sigaction = handler as libc::sighandler_t;
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            let mut timer = ptr::null_mut();
            // SAFETY: the handler touches nothing, so it is safe at any moment; without SA_RESTART
            // the signal ends waits. The timer signals the calling thread, by its id, and that
            // thread takes no signal but this; all structures are live.
            let made = unsafe {
                let mut ours: libc::sigset_t = MaybeUninit::zeroed().assume_init();
                libc::sigemptyset(&raw mut ours);
                libc::sigaddset(&raw mut ours, signal());
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const ours, ptr::null_mut());
                event.sigev_notify_thread_id = libc::gettid();
                libc::sigaction(signal(), &raw const action, ptr::null_mut()) == 0
                    && libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
                        == 0
            };
            if made { Ok(Timer(timer)) } else { Err(io::Error::last_os_error()) }
        }

        /// Signals every `period` from now on; stops signalling when `period` is zero.
        pub(super) fn set(&self, period: Duration) {
            let every = libc::timespec {
                tv_sec: period.as_secs().try_into().unwrap_or(0),
                tv_nsec: period.subsec_nanos().into(),
            };
            let spec = libc::itimerspec { it_interval: every, it_value: every };
            // SAFETY: a timer of ours and a live structure; a null pointer says that we do not want
            // the old setting.
            unsafe { libc::timer_settime(self.0, 0, &raw const spec, ptr::null_mut()) };
        }
    }

    impl Drop for Timer {
        fn drop(&mut self) {
            // SAFETY: a timer of ours, which no code uses after this.
            unsafe { libc::timer_delete(self.0) };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    /// Returns a socket with unsent data whose last close waits for a minute, and its silent peer.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 60 };
        let len = libc::socklen_t::try_from(size_of_val(&linger)).unwrap();
        // SAFETY: an option of a live descriptor, from a live structure of that length.
        let set = unsafe {
            let value = (&raw const linger).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, len)
        };
        assert_eq!(set, 0);
        socket.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &socket, &[0; 1 << 16]).is_ok() {}
        (socket.into(), peer)
    }

    #[test]
    fn test_closer_lane_closes_lingering_sockets_without_waiting_for_peers() {
        let (sockets, _peers): (Vec<_>, Vec<_>) = (0..20).map(|_| lingering()).unzip();
        let start = Instant::now();
        let (done, closed) = channel();
        run(lane_of(3), move || {
            drop(sockets);
            done.send(()).unwrap();
        });
        assert!(start.elapsed() < Duration::from_secs(30), "handing over waited");
        closed.recv_timeout(Duration::from_secs(50)).expect("a close lingered");
    }

    #[test]
    fn test_closer_lane_runs_jobs_in_order_after_a_panic() {
        let (to, from) = channel();
        run(2, || panic!("on purpose"));
        for n in 0..100 {
            let to = to.clone();
            run(2, move || to.send(n).unwrap());
        }
        drop(to);
        assert!(from.iter().eq(0..100));
    }
}
