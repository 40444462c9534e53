//! A thread that polls workers, at rest: does what [`Idle`] says.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_base::Instant;
use heddle_dpdk_sys as sys;
use heddle_verbs::wakeup::WorkerSleeper;

use crate::idle::{Idle, IdlePolicy, Naps, Rest};
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
    /// What doorbells, orders and other workers wake it by.
    sleeper: Option<WorkerSleeper>,
    precise: bool,
    counters: RestCounters,
    shown: Arc<RestShown>,
}

/// What a thread has counted of its rest, for others to see; as of its last sleep.
#[derive(Debug, Default)]
pub struct RestShown([AtomicU64; 4]);

impl RestShown {
    /// What it is.
    pub fn counters(&self) -> RestCounters {
        let [rest_sleeps, rest_slept_us, rest_interrupts, rest_wakeups] =
            self.0.each_ref().map(|n| n.load(Ordering::Relaxed));
        RestCounters { rest_sleeps, rest_slept_us, rest_interrupts, rest_wakeups }
    }

    fn show(&self, counters: &RestCounters) {
        let RestCounters { rest_sleeps, rest_slept_us, rest_interrupts, rest_wakeups } = *counters;
        let all = [rest_sleeps, rest_slept_us, rest_interrupts, rest_wakeups];
        for (to, n) in self.0.iter().zip(all) {
            to.store(n, Ordering::Relaxed);
        }
    }
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
        /// Those that a doorbell, an order or another worker ended.
        rest_wakeups,
    }
}

impl Rester {
    /// For a thread that polls `queues`, among others. Where the policy asks for interrupts and a
    /// queue has none, naps are what is left for it: [`Rester::interrupts`] says how many have.
    /// `sleeper` is how the thread is woken by those who have something else for it; without one they
    /// wait for the end of the nap.
    pub fn new(
        policy: IdlePolicy,
        clock: Clock,
        queues: &[&RxQueue],
        sleeper: Option<WorkerSleeper>,
    ) -> Rester {
        let mut r = Rester {
            idle: Idle::new(policy),
            clock,
            queues: Vec::new(),
            epoll: None,
            sleeper,
            precise: false,
            counters: RestCounters::default(),
            shown: Arc::default(),
        };
        if let IdlePolicy::Interrupt(naps) = policy {
            r.watch(naps, queues);
        }
        if r.sleeper.is_some() && r.queues.len() == queues.len() {
            r.idle = r.idle.woken_by_all();
        }
        r
    }

    /// Has queues interrupt, those that can.
    fn watch(&mut self, naps: Naps, queues: &[&RxQueue]) {
        // SAFETY: no memory is passed; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd >= 0 {
            // SAFETY: a descriptor just made, which nobody else owns.
            let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
            self.queues = queues
                .iter()
                .map(|q| q.interrupt())
                .filter_map(|mut q| q.watch(epoll.as_fd()).then_some(q))
                .collect();
            self.epoll = Some(epoll);
        }
        if self.queues.is_empty() {
            self.idle = Idle::new(IdlePolicy::Backoff(naps));
        }
    }

    /// Queues that wake the thread.
    pub fn interrupts(&self) -> usize {
        self.queues.len()
    }

    /// The same for other threads.
    pub fn shown(&self) -> Arc<RestShown> {
        self.shown.clone()
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
            Rest::Arm => self.set(true),
            Rest::Disarm => self.set(false),
            Rest::Wait(time) => {
                self.sleep(time);
                self.set(false);
            }
        }
    }

    fn set(&mut self, on: bool) {
        for q in &self.queues {
            // One that cannot is looked at after the nap.
            q.set(on);
        }
        match &mut self.sleeper {
            Some(sleeper) if on => sleeper.arm(),
            Some(sleeper) => sleeper.disarm(),
            None => {}
        }
    }

    fn sleep(&mut self, asked: Duration) {
        if !self.precise {
            // The kernel may wake a thread later by its slack, 50 µs unless told otherwise.
            // SAFETY: sets a number of the calling thread.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
            self.precise = true;
        }
        let before = self.clock.now();
        let woken = self.wait(asked);
        let took = self.clock.now().since(before);
        if woken {
            self.idle.woken();
        } else {
            self.idle.slept(asked, took);
        }
        self.counters.rest_sleeps += 1;
        self.counters.rest_slept_us += u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.shown.show(&self.counters);
    }

    /// Until it is woken, or for so long; whether it was. DPDK waits for whole milliseconds only, so it
    /// is asked when there is something.
    fn wait(&mut self, time: Duration) -> bool {
        // A negative number is nothing to wait for.
        let fd = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let queues = self.epoll.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let others = self.sleeper.as_ref().map_or(-1, |s| s.fd().as_raw_fd());
        let mut polls = [fd(queues), fd(others)];
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(time.subsec_nanos().cast_signed()),
        };
        // SAFETY: two descriptors and a time, all live during the call; no signal mask.
        let n = unsafe { libc::ppoll(polls.as_mut_ptr(), 2, &limit, std::ptr::null()) };
        let [by_queue, by_other] = polls.map(|p| n > 0 && p.revents != 0);
        if by_queue {
            // SAFETY: the descriptor is open, and has events of DPDK's queues only.
            unsafe { sys::heddle_rx_intr_wait(queues, 0) };
            self.counters.rest_interrupts += 1;
        }
        if by_other && let Some(sleeper) = &mut self.sleeper {
            sleeper.clear();
            self.counters.rest_wakeups += 1;
        }
        by_queue || by_other
    }
}
