//! A thread that polls workers, at rest: does what [`Idle`] says.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use heddle_base::Instant;
use heddle_dpdk_sys as sys;

use crate::idle::{Idle, IdlePolicy, Rest};
use crate::port::RxInterrupt;
use crate::{Clock, RxQueue};

/// What a thread does between two turns. Made on the thread that polls, or moved there before its
/// first turn.
#[derive(Debug)]
pub struct Rester {
    idle: Idle,
    clock: Clock,
    /// Queues that interrupt; taken out of `epoll` before it is closed.
    queues: Vec<RxInterrupt>,
    epoll: Option<OwnedFd>,
    precise: bool,
    counters: RestCounters,
}

heddle_base::counters! {
    /// How a thread rested.
    pub struct RestCounters {
        /// Times it slept.
        rest_sleeps,
        /// Microseconds of that.
        rest_slept_us,
        /// Of the sleeps, those that an interrupt of a queue ended.
        rest_interrupts,
    }
}

impl Rester {
    /// For a thread that polls `queues`, among others. Where the policy asks for interrupts and a
    /// queue has none, naps are what is left for it: [`Rester::interrupts`] says how many have.
    pub fn new(policy: IdlePolicy, clock: Clock, queues: &[&RxQueue]) -> Rester {
        let mut r = Rester {
            idle: Idle::new(policy),
            clock,
            queues: Vec::new(),
            epoll: None,
            precise: false,
            counters: RestCounters::default(),
        };
        let IdlePolicy::Interrupt(naps) = policy else { return r };
        // SAFETY: no memory is passed; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd >= 0 {
            // SAFETY: a descriptor just made, which nobody else owns.
            let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
            r.queues = queues
                .iter()
                .map(|q| q.interrupt())
                .filter_map(|mut q| q.watch(epoll.as_fd()).then_some(q))
                .collect();
            r.epoll = Some(epoll);
        }
        if r.queues.is_empty() {
            r.idle = Idle::new(IdlePolicy::Backoff(naps));
        }
        r
    }

    /// Queues that wake the thread.
    pub fn interrupts(&self) -> usize {
        self.queues.len()
    }

    /// What it did.
    pub fn counters(&self) -> &RestCounters {
        &self.counters
    }

    /// Between two turns, of which the last found something (`busy`) or not. `next` says when the next
    /// timer of any worker is due: now, where one has frames that wait for its port.
    #[inline]
    pub fn turn(&mut self, busy: bool, next: impl FnOnce() -> Option<Instant>) {
        let clock = &self.clock;
        match self.idle.turn(busy, || clock.now(), next) {
            Rest::Poll if busy => {}
            Rest::Poll => std::hint::spin_loop(),
            other => self.rest(other),
        }
    }

    #[cold]
    fn rest(&mut self, rest: Rest) {
        match rest {
            Rest::Poll => {}
            Rest::Sleep(time) => self.sleep(time, |_| std::thread::sleep(time)),
            Rest::Arm => self.set(true),
            Rest::Disarm => self.set(false),
            Rest::Wait(time) => {
                self.sleep(time, |r| r.wait(time));
                self.set(false);
            }
        }
    }

    fn set(&mut self, on: bool) {
        for q in &self.queues {
            // One that cannot is looked at after the nap.
            q.set(on);
        }
    }

    fn sleep(&mut self, asked: Duration, how: impl FnOnce(&mut Rester)) {
        if !self.precise {
            // The kernel may wake a thread later by its slack, 50 µs unless told otherwise.
            // SAFETY: sets a number of the calling thread.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
            self.precise = true;
        }
        let before = self.clock.now();
        how(self);
        let took = self.clock.now().since(before);
        self.idle.slept(asked, took);
        self.counters.rest_sleeps += 1;
        self.counters.rest_slept_us += u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    }

    /// Until a queue interrupts, or for so long. DPDK waits for whole milliseconds only, so it is asked
    /// when there is something.
    fn wait(&mut self, time: Duration) {
        let Some(epoll) = &self.epoll else { return };
        let mut poll = libc::pollfd { fd: epoll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(time.subsec_nanos().cast_signed()),
        };
        // SAFETY: one descriptor and a time, both live during the call; no signal mask.
        let n = unsafe { libc::ppoll(&mut poll, 1, &limit, std::ptr::null()) };
        if n > 0 {
            // SAFETY: the descriptor is open, and has events of DPDK's queues only.
            unsafe { sys::heddle_rx_intr_wait(poll.fd, 0) };
            self.idle.woken();
            self.counters.rest_interrupts += 1;
        }
    }
}
