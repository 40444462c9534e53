//! The rest of a thread that polls workers: carries out the decisions of [`Idle`].

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_base::Instant;
use heddle_dpdk_sys as sys;
use heddle_rings::wakeup::WorkerSleeper;

use crate::idle::{Idle, IdlePolicy, Naps, Rest};
use crate::port::RxInterrupt;
use crate::{Clock, RxQueue};

/// Parks a thread between two turns by its [`IdlePolicy`]. The thread that polls makes this value,
/// or gets it before its first turn.
#[derive(Debug)]
pub struct Parker {
    idle: Idle,
    clock: Clock,
    /// Queues that interrupt; removed from `epoll` before it is closed.
    queues: Vec<RxInterrupt>,
    epoll: Option<OwnedFd>,
    /// The thread's queues that are known to interrupt.
    trust: Trust,
    /// Frames that the thread's queues had brought before a nap that only time has ended; the next
    /// turns that find something show whether there were more.
    doubted: Option<u64>,
    /// The sleeper by which doorbells, orders and other workers wake the thread.
    sleeper: Option<WorkerSleeper>,
    precise: bool,
    counters: RestCounters,
    shown: Arc<RestShown>,
}

/// Counters of a thread's rest for other threads, as of its last sleep.
#[derive(Debug, Default)]
pub struct RestShown([AtomicU64; 5]);

impl RestShown {
    /// Returns the counters.
    pub fn counters(&self) -> RestCounters {
        let [rest_sleeps, rest_slept_us, rest_interrupts, rest_wakeups, rest_unwoken] =
            self.0.each_ref().map(|n| n.load(Ordering::Relaxed));
        RestCounters { rest_sleeps, rest_slept_us, rest_interrupts, rest_wakeups, rest_unwoken }
    }

    fn show(&self, counters: &RestCounters) {
        let RestCounters {
            rest_sleeps,
            rest_slept_us,
            rest_interrupts,
            rest_wakeups,
            rest_unwoken,
        } = *counters;
        let all = [rest_sleeps, rest_slept_us, rest_interrupts, rest_wakeups, rest_unwoken];
        for (to, n) in self.0.iter().zip(all) {
            to.store(n, Ordering::Relaxed);
        }
    }
}

heddle_base::counters! {
    /// Counters of a thread's rest.
    pub struct RestCounters {
        /// Times the thread slept.
        rest_sleeps,
        /// Microseconds that the thread slept.
        rest_slept_us,
        /// Sleeps that an interrupt of a queue ended.
        rest_interrupts,
        /// Sleeps that a doorbell, an order or another worker ended.
        rest_wakeups,
        /// Sleeps after which frames lay in a queue that the thread trusted to interrupt and that
        /// had not.
        rest_unwoken,
    }
}

/// The queues of a thread that are known to interrupt: those that have interrupted since a queue
/// was last found not to.
#[derive(Debug)]
struct Trust {
    /// Whether a queue has interrupted, by its number among the watched queues.
    seen: Vec<bool>,
    /// The thread has queues that cannot interrupt, or no sleeper, so that doorbells do not end its
    /// naps.
    never: bool,
}

impl Trust {
    /// Returns the trust of a thread that has `queues`, of which so many are `watched`.
    fn new(queues: usize, watched: usize, sleeper: bool) -> Trust {
        Trust { seen: vec![false; watched], never: !sleeper || watched < queues }
    }

    /// Notes that a queue has interrupted.
    fn interrupted(&mut self, queue: usize) {
        if let Some(seen) = self.seen.get_mut(queue) {
            *seen = true;
        }
    }

    /// Notes that frames lay in a queue that has not interrupted; it is unknown in which.
    fn lost(&mut self) {
        self.seen.fill(false);
    }

    /// Returns true if everything that there may be for the thread to do wakes it.
    fn is_full(&self) -> bool {
        !self.never && self.seen.iter().all(|&seen| seen)
    }
}

impl Parker {
    /// Returns the parker of a thread that polls `queues`, among others. If the policy asks for
    /// interrupts and a queue has none, the thread naps instead: [`Parker::interrupts`] returns how
    /// many queues interrupt. `sleeper` lets other threads wake the thread for other work; without
    /// a sleeper they wait for the end of the nap.
    pub fn new(
        policy: IdlePolicy,
        clock: Clock,
        queues: &[&RxQueue],
        sleeper: Option<WorkerSleeper>,
    ) -> Parker {
        let mut r = Parker {
            idle: Idle::new(policy),
            clock,
            queues: Vec::new(),
            epoll: None,
            trust: Trust::new(queues.len(), 0, sleeper.is_some()),
            doubted: None,
            sleeper,
            precise: false,
            counters: RestCounters::default(),
            shown: Arc::default(),
        };
        if let IdlePolicy::Interrupt(naps) = policy {
            r.watch(naps, queues);
        }
        r.trust = Trust::new(queues.len(), r.queues.len(), r.sleeper.is_some());
        r.idle.trust(r.trust.is_full());
        r
    }

    /// Lets those queues interrupt that can.
    fn watch(&mut self, naps: Naps, queues: &[&RxQueue]) {
        // SAFETY: no memory is passed; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd >= 0 {
            // SAFETY: a descriptor just made, which has no other owner.
            let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
            for queue in queues {
                let (mut queue, number) = (queue.interrupt(), self.queues.len());
                if queue.watch(epoll.as_fd(), u32::try_from(number).unwrap_or(u32::MAX)) {
                    self.queues.push(queue);
                }
            }
            self.epoll = Some(epoll);
        }
        if self.queues.is_empty() {
            self.idle = Idle::new(IdlePolicy::Backoff(naps));
        }
    }

    /// Returns the number of queues that wake the thread.
    pub fn interrupts(&self) -> usize {
        self.queues.len()
    }

    /// Returns the counters in a form for other threads.
    pub fn shown(&self) -> Arc<RestShown> {
        self.shown.clone()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &RestCounters {
        &self.counters
    }

    /// Rests between two turns, of which the last found something (`busy`) or not. `next` returns
    /// the time of the next timer of any worker: now, if a worker has frames that wait for its
    /// port. `frames` returns how many frames the queues of the thread have brought so far; this
    /// function calls it only around naps.
    #[inline]
    pub fn turn(
        &mut self,
        busy: bool,
        next: impl FnOnce() -> Option<Instant>,
        frames: impl Fn() -> u64,
    ) {
        if self.doubted.is_some() {
            self.compare(frames());
        }
        let clock = &self.clock;
        match self.idle.turn(busy, || clock.now(), next) {
            Rest::Poll if busy => {}
            Rest::Poll => std::hint::spin_loop(),
            other => self.rest(other, frames),
        }
    }

    #[cold]
    fn rest(&mut self, rest: Rest, frames: impl Fn() -> u64) {
        match rest {
            Rest::Poll => {}
            Rest::Arm => self.set(true),
            Rest::Disarm => self.set(false),
            Rest::Wait(time) => {
                let woken = self.sleep(time);
                self.set(false);
                self.doubted = (!woken && self.trust.is_full()).then(frames);
            }
        }
    }

    /// Checks for frames after the turn that followed a nap which only time has ended.
    #[cold]
    fn compare(&mut self, frames: u64) {
        if self.doubted.take().is_some_and(|before| before != frames) {
            self.counters.rest_unwoken += 1;
            self.trust.lost();
            self.idle.trust(self.trust.is_full());
        }
    }

    fn set(&mut self, on: bool) {
        for q in &self.queues {
            // If a queue cannot interrupt, the thread looks at it after the nap.
            q.set(on);
        }
        match &mut self.sleeper {
            Some(sleeper) if on => sleeper.arm(),
            Some(sleeper) => sleeper.disarm(),
            None => {}
        }
    }

    /// Sleeps for `asked`, or until woken. Returns true if the thread was woken.
    fn sleep(&mut self, asked: Duration) -> bool {
        if !self.precise {
            // The kernel may wake a thread late by the thread's slack, which is 50 µs by default.
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
        woken
    }

    /// Waits for `time`, or until the thread is woken; returns true if it was woken. DPDK waits for
    /// whole milliseconds only, so this function waits itself, and asks DPDK only when there is an
    /// interrupt.
    fn wait(&mut self, time: Duration) -> bool {
        // `ppoll` ignores a negative descriptor.
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
            self.clear_interrupts(queues);
        }
        if by_other && let Some(sleeper) = &mut self.sleeper {
            sleeper.clear();
            self.counters.rest_wakeups += 1;
        }
        by_queue || by_other
    }

    #[cold]
    fn clear_interrupts(&mut self, epoll: RawFd) {
        let mut which = [0; 8];
        // SAFETY: the descriptor is open, and has events of DPDK's queues only; `which` has room
        // for as many numbers as the call says.
        let n = unsafe { sys::heddle_rx_intr_wait(epoll, 0, which.as_mut_ptr(), 8) };
        for &queue in which.iter().take(usize::try_from(n).unwrap_or(0)) {
            self.trust.interrupted(queue as usize);
        }
        if self.trust.is_full() {
            self.idle.trust(true);
        }
        self.counters.rest_interrupts += 1;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn test_thread_trusts_its_queues_once_each_has_interrupted_without_a_miss() {
        let mut t = Trust::new(2, 2, true);
        assert!(!t.is_full());
        t.interrupted(1);
        assert!(!t.is_full(), "the other one never has");
        t.interrupted(0);
        assert!(t.is_full());
        t.lost();
        t.interrupted(1);
        assert!(!t.is_full(), "nothing says which of the two has failed");
        t.interrupted(0);
        assert!(t.is_full());
        t.interrupted(7);
        assert!(t.is_full(), "a number that no queue has");
    }

    /// Returns a thread that trusts its only queue to interrupt.
    fn trusting() -> (Parker, crate::ManualClock) {
        let wakers = heddle_rings::wakeup::WorkerWakers::new(1).unwrap();
        let (clock, hand) = Clock::manual();
        let naps = Naps { after: Duration::ZERO, ..Naps::default() };
        let sleeper = wakers.sleeper(&[0]).unwrap();
        let mut r = Parker::new(IdlePolicy::Interrupt(naps), clock, &[], Some(sleeper));
        r.idle = Idle::new(IdlePolicy::Interrupt(naps));
        r.trust = Trust::new(1, 1, true);
        r.trust.interrupted(0);
        r.idle.trust(true);
        (r, hand)
    }

    /// Takes turns that find nothing until the thread has slept once more.
    fn nap(r: &mut Parker, hand: &crate::ManualClock) {
        let sleeps = r.counters().rest_sleeps;
        while r.counters().rest_sleeps == sleeps {
            let soon = hand.now() + Duration::from_millis(2);
            r.turn(false, || Some(soon), || 7);
        }
    }

    #[test]
    fn test_frames_that_lie_in_a_queue_after_a_nap_end_the_trust_in_interrupts() {
        let (mut r, hand) = trusting();
        nap(&mut r, &hand);
        r.turn(true, || None, || 8);
        assert_eq!(r.counters().rest_unwoken, 1);
        assert!(!r.trust.is_full(), "naps are short again, until the queue has interrupted");
        nap(&mut r, &hand);
        r.turn(true, || None, || 9);
        assert_eq!(r.counters().rest_unwoken, 1, "nothing else is expected of short naps");
    }

    #[test]
    fn test_timer_that_ends_a_nap_keeps_trust_in_interrupts() {
        let (mut r, hand) = trusting();
        nap(&mut r, &hand);
        r.turn(true, || None, || 7);
        r.turn(true, || None, || 8);
        assert_eq!(r.counters().rest_unwoken, 0, "the frame came later");
        assert!(r.trust.is_full());
    }

    #[test]
    fn test_thread_without_a_sleeper_or_queue_interrupts_never_trusts() {
        assert!(Trust::new(0, 0, true).is_full(), "nothing but doorbells can come");
        for mut t in [Trust::new(2, 1, true), Trust::new(1, 1, false), Trust::new(0, 0, false)] {
            t.interrupted(0);
            assert!(!t.is_full(), "{t:?}");
        }
    }
}
