//! When a thread that polls workers may sleep, and for how long.
//!
//! [`Idle`] decides from what it is told: whether the last turn found something, the time, and when
//! the next timer is due. It reads no clock and calls nothing. [`Rester`](crate::Rester) does what it
//! says.
//!
//! A turn that finds nothing says little; only after a while of them ([`Naps::after`]) does the thread
//! sleep, at first shortly and then for longer, up to a bound ([`Naps::longest`]). The bound is what a
//! frame may have to wait that comes meanwhile to a queue without interrupts. Doorbells, orders of the
//! control plane and frames of other workers end the sleep ([`heddle_verbs::wakeup`]); where queues do as
//! well, or the thread has none, it sleeps until its next timer ([`FULL`]). A timer is not late for it:
//! what threads are found to oversleep by is kept off, and the rest is spun.
//!
//! Queues that a driver lets interrupt need not do so. [`Rester`](crate::Rester) therefore has the thread
//! trust them ([`Idle::trust`]) once each has interrupted, and no longer when frames are found after a nap
//! that no interrupt has ended; until then naps are those of a thread without interrupts.
//!
//! ```text
//!   something found ─▶ spin ──after──▶ arm ──▶ one more turn ──▶ sleep first, 2 first .. longest ..
//!          ▲                            ▲            │                    │
//!          │                            └────────────│──── woken by nothing but the time
//!          └─────────────────────────────────────────┴─── something found, or woken
//! ```

use core::time::Duration;

use heddle_base::Instant;

/// What a thread does when its workers have nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdlePolicy {
    /// It looks again at once, and takes all of a processor.
    #[default]
    Spin,
    /// It sleeps for growing times. Ports do not wake it, all else does.
    Backoff(Naps),
    /// It sleeps until a queue of a port interrupts. As long as not all of its queues are known to, it
    /// sleeps for growing times.
    Interrupt(Naps),
}

/// When to sleep, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naps {
    /// Time without work before the first nap.
    pub after: Duration,
    /// The first nap; each is twice the one before.
    pub first: Duration,
    /// The longest nap of a thread that polls a queue which cannot wake it, or is not known to.
    pub longest: Duration,
}

/// The longest nap of a thread that everything wakes but its timers.
pub const FULL: Duration = Duration::from_secs(1);

impl Default for Naps {
    /// A round trip in a machine room long, and no longer than a delayed ACK.
    fn default() -> Naps {
        Naps {
            after: Duration::from_micros(100),
            first: Duration::from_micros(10),
            longest: Duration::from_micros(500),
        }
    }
}

/// What to do before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing.
    Poll,
    /// Let queues interrupt, and everybody know that there is a thread to be woken. There is another
    /// turn before the wait, for what came just before.
    Arm,
    /// Sleep until woken, or so long; then undo [`Rest::Arm`].
    Wait(Duration),
    /// Undo [`Rest::Arm`]: the turn after it found something.
    Disarm,
}

/// Shorter than what it takes to fall asleep: not worth it.
const SHORTEST: Duration = Duration::from_micros(2);

/// What a thread is taken to oversleep by before it is known: the kernel's usual slack and a switch.
const LATE: Duration = Duration::from_micros(60);

/// Decides when a thread sleeps; one for each.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    policy: IdlePolicy,
    /// Since when there was nothing.
    since: Option<Instant>,
    /// The next nap.
    nap: Duration,
    /// All it has to do wakes it, as far as is known.
    woken_by_all: bool,
    /// The thread can be woken.
    armed: bool,
    /// What sleeps took longer than they were to.
    late: Duration,
}

impl Idle {
    /// Awake.
    pub fn new(policy: IdlePolicy) -> Idle {
        let (nap, woken_by_all) = (Duration::ZERO, false);
        Idle { policy, since: None, nap, woken_by_all, armed: false, late: LATE }
    }

    /// From now on the thread is taken to be woken by all there may be for it to do, or no longer.
    pub fn trust(&mut self, woken_by_all: bool) {
        self.woken_by_all = woken_by_all;
        self.since = None;
    }

    /// The policy.
    pub fn policy(&self) -> IdlePolicy {
        self.policy
    }

    /// After a turn that found something (`busy`) or nothing. `now` and `next`, the time and when the
    /// next timer is due, are asked for only where they matter.
    #[inline]
    pub fn turn(
        &mut self,
        busy: bool,
        now: impl FnOnce() -> Instant,
        next: impl FnOnce() -> Option<Instant>,
    ) -> Rest {
        let naps = match self.policy {
            IdlePolicy::Spin => return Rest::Poll,
            IdlePolicy::Backoff(n) | IdlePolicy::Interrupt(n) => n,
        };
        if busy {
            self.since = None;
            return self.awake();
        }
        let now = now();
        let Some(since) = self.since else {
            self.since = Some(now);
            self.nap = naps.first;
            return self.awake();
        };
        if now.since(since) < naps.after {
            return Rest::Poll;
        }
        self.rest(now, naps, next())
    }

    #[inline]
    fn awake(&mut self) -> Rest {
        if std::mem::take(&mut self.armed) { Rest::Disarm } else { Rest::Poll }
    }

    #[cold]
    fn rest(&mut self, now: Instant, naps: Naps, next: Option<Instant>) -> Rest {
        let room = match next {
            Some(at) => at.since(now).saturating_sub(self.late),
            None => Duration::MAX,
        };
        if room < SHORTEST {
            return self.awake();
        }
        self.armed = !self.armed;
        if self.armed {
            return Rest::Arm;
        }
        let nap = if self.woken_by_all {
            FULL
        } else {
            let nap = self.nap.min(naps.longest);
            self.nap = nap.saturating_mul(2);
            nap
        };
        Rest::Wait(nap.min(room))
    }

    /// Something has woken the thread. There is work, though it may take a moment to show: the next naps
    /// are as after a turn that found some.
    pub fn woken(&mut self) {
        self.since = None;
    }

    /// A sleep of `asked` has taken `took`. What a timer has to be kept off by follows upwards at once
    /// and downwards slowly; beyond the longest nap it is the system that is late, not the sleep. Not to
    /// be called when the thread was woken.
    pub fn slept(&mut self, asked: Duration, took: Duration) {
        let bound = match self.policy {
            IdlePolicy::Spin => return,
            IdlePolicy::Backoff(n) | IdlePolicy::Interrupt(n) => n.longest,
        };
        let over = took.saturating_sub(asked).min(bound);
        self.late = if over >= self.late { over } else { self.late - (self.late - over) / 8 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const NAPS: Naps = Naps { after: Duration::from_micros(100), ..DEFAULT };
    const DEFAULT: Naps = Naps {
        after: Duration::from_micros(0),
        first: Duration::from_micros(10),
        longest: Duration::from_micros(500),
    };

    fn us(n: u64) -> Instant {
        Instant::from_nanos(n * 1000)
    }

    /// A turn that finds nothing, at `now`.
    fn idle(i: &mut Idle, now: u64, next: Option<u64>) -> Rest {
        i.turn(false, || us(now), || next.map(us))
    }

    #[test]
    fn test_spin_asks_for_nothing() {
        let mut i = Idle::new(IdlePolicy::Spin);
        for busy in [false, true] {
            let rest = i.turn(busy, || panic!("no clock"), || panic!("no timer"));
            assert_eq!(rest, Rest::Poll);
        }
    }

    #[test]
    fn test_busy_turns_ask_for_nothing() {
        let mut i = Idle::new(IdlePolicy::Backoff(NAPS));
        assert_eq!(i.turn(true, || panic!("no clock"), || panic!("no timer")), Rest::Poll);
    }

    #[test]
    fn test_naps_grow_after_a_while_and_start_again_after_work() {
        let mut i = Idle::new(IdlePolicy::Backoff(NAPS));
        for _ in 0..2 {
            let mut now = 1000;
            assert_eq!(idle(&mut i, now, None), Rest::Poll);
            assert_eq!(idle(&mut i, now + 99, None), Rest::Poll, "not yet");
            now += 100;
            for nap in [10, 20, 40, 80, 160, 320, 500, 500, 500] {
                assert_eq!(idle(&mut i, now, None), Rest::Arm);
                assert_eq!(idle(&mut i, now, None), Rest::Wait(nap * US));
                now += u64::from(nap);
            }
            assert_eq!(i.turn(true, || us(now), || None), Rest::Poll);
        }
    }

    /// Whatever the naps, the thread is awake when the timer is due.
    #[test]
    fn test_no_timer_is_slept_over() {
        for due in 100..2000 {
            let mut i = Idle::new(IdlePolicy::Backoff(NAPS));
            let mut now = 0;
            loop {
                match idle(&mut i, now, Some(due)) {
                    Rest::Poll | Rest::Arm | Rest::Disarm => now += 1,
                    Rest::Wait(d) => {
                        // As late as it is taken to be.
                        now += u64::try_from((d + LATE).as_micros()).unwrap();
                        assert!(now <= due, "slept until {now}, due at {due}");
                        i.slept(d, d + LATE);
                    }
                }
                if now >= due {
                    break;
                }
            }
            assert!(matches!(idle(&mut i, now, Some(due)), Rest::Poll | Rest::Disarm), "it is due");
        }
    }

    #[test]
    fn test_margin_follows_what_sleeps_take() {
        let mut i = Idle::new(IdlePolicy::Backoff(DEFAULT));
        let nap = |i: &mut Idle| {
            let armed = Idle { since: Some(us(0)), nap: 500 * US, armed: true, ..*i };
            idle(&mut { armed }, 0, Some(300))
        };
        assert_eq!(nap(&mut i), Rest::Wait(240 * US));
        i.slept(10 * US, 110 * US);
        assert_eq!(nap(&mut i), Rest::Wait(200 * US), "later than thought");
        for _ in 0..100 {
            i.slept(10 * US, 14 * US);
        }
        let Rest::Wait(d) = nap(&mut i) else { panic!() };
        assert!(d > 290 * US, "{d:?}");
        i.slept(10 * US, Duration::from_secs(3));
        assert_eq!(nap(&mut i), Rest::Disarm, "bounded by the longest nap");
        assert_eq!(i.late, 500 * US);
    }

    #[test]
    fn test_interrupts_are_armed_then_looked_past_then_waited_for() {
        let mut i = Idle::new(IdlePolicy::Interrupt(NAPS));
        assert_eq!(idle(&mut i, 0, None), Rest::Poll);
        for (now, nap) in [(100, 10), (600, 20)] {
            assert_eq!(idle(&mut i, now, None), Rest::Arm);
            assert_eq!(idle(&mut i, now, None), Rest::Wait(nap * US), "not trusted yet");
        }
        assert_eq!(idle(&mut i, 1100, None), Rest::Arm);
        assert_eq!(i.turn(true, || us(1100), || None), Rest::Disarm, "it came just before");
        assert_eq!(i.turn(true, || us(1100), || None), Rest::Poll);
    }

    /// A thread without a queue that could be missed sleeps for as long as there is no timer.
    #[test]
    fn test_who_is_woken_by_all_sleeps_until_a_timer() {
        for policy in [IdlePolicy::Backoff(NAPS), IdlePolicy::Interrupt(NAPS)] {
            let mut i = Idle::new(policy);
            i.trust(true);
            assert_eq!(idle(&mut i, 0, None), Rest::Poll);
            assert_eq!(idle(&mut i, 100, None), Rest::Arm);
            assert_eq!(idle(&mut i, 100, None), Rest::Wait(FULL));
            assert_eq!(idle(&mut i, 200, Some(30_200)), Rest::Arm);
            assert_eq!(idle(&mut i, 200, Some(30_200)), Rest::Wait(30_000 * US - LATE));
        }
    }

    #[test]
    fn test_thread_that_trusts_its_queues_no_longer_naps_shortly_again() {
        let mut i = Idle::new(IdlePolicy::Interrupt(NAPS));
        i.trust(true);
        assert_eq!(idle(&mut i, 0, None), Rest::Poll);
        assert_eq!(idle(&mut i, 100, None), Rest::Arm);
        assert_eq!(idle(&mut i, 100, None), Rest::Wait(FULL));
        i.trust(false);
        assert_eq!(idle(&mut i, 200, None), Rest::Poll);
        assert_eq!(idle(&mut i, 300, None), Rest::Arm);
        assert_eq!(idle(&mut i, 300, None), Rest::Wait(10 * US));
    }

    #[test]
    fn test_an_interrupt_starts_the_while_again() {
        let mut i = Idle::new(IdlePolicy::Interrupt(NAPS));
        assert_eq!(idle(&mut i, 0, None), Rest::Poll);
        assert_eq!(idle(&mut i, 100, None), Rest::Arm);
        assert_eq!(idle(&mut i, 100, None), Rest::Wait(10 * US));
        i.woken();
        for now in [150, 200, 249] {
            assert_eq!(idle(&mut i, now, None), Rest::Poll, "the frame may not be there yet");
        }
        assert_eq!(idle(&mut i, 250, None), Rest::Arm);
    }

    #[test]
    fn test_a_timer_that_comes_near_disarms() {
        let mut i = Idle::new(IdlePolicy::Interrupt(NAPS));
        assert_eq!(idle(&mut i, 0, Some(400)), Rest::Poll);
        assert_eq!(idle(&mut i, 330, Some(400)), Rest::Arm);
        assert_eq!(idle(&mut i, 339, Some(400)), Rest::Disarm);
        assert_eq!(idle(&mut i, 340, Some(400)), Rest::Poll);
        assert_eq!(idle(&mut i, 401, Some(2000)), Rest::Arm);
        assert_eq!(idle(&mut i, 402, Some(470)), Rest::Wait(8 * US));
    }
}
