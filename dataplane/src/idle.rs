//! When a thread that polls workers may sleep, and for how long.
//!
//! [`Idle`] decides from what it is told: whether the last turn found something, the time, and when
//! the next timer is due. It reads no clock and calls nothing. [`Rester`](crate::Rester) does what it
//! says.
//!
//! A turn that finds nothing says little; only after a while of them ([`Naps::after`]) does the thread
//! sleep, at first shortly and then for longer, up to a bound ([`Naps::longest`]). The bound is what a
//! frame that comes meanwhile may have to wait, and a doorbell or an order of the control plane, which
//! interrupt nobody. A timer is not late for it: what threads are found to oversleep by is kept off, and
//! the rest is spun.
//!
//! ```text
//!   something found ─▶ spin ──after──▶ sleep first, 2 first, 4 first .. longest, longest ..
//!          ▲                             │
//!          └──── something found ◀───────┘        with interrupts: arm, look once more, wait
//! ```

use core::time::Duration;

use heddle_base::Instant;

/// What a thread does when its workers have nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdlePolicy {
    /// It looks again at once, and takes all of a processor.
    #[default]
    Spin,
    /// It sleeps for growing times.
    Backoff(Naps),
    /// It sleeps until a queue of a port interrupts, or for the longest nap. Queues that cannot
    /// interrupt are looked at after each nap.
    Interrupt(Naps),
}

/// When to sleep, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naps {
    /// Time without work before the first nap.
    pub after: Duration,
    /// The first nap; each is twice the one before.
    pub first: Duration,
    /// The longest nap.
    pub longest: Duration,
}

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
    /// Sleep so long.
    Sleep(Duration),
    /// Let queues interrupt. There is another turn before the wait, for a frame that came just before.
    Arm,
    /// Sleep until one does, or so long; then let them interrupt no more.
    Wait(Duration),
    /// Let queues interrupt no more: the turn after [`Rest::Arm`] found something.
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
    /// Queues were told to interrupt.
    armed: bool,
    /// What sleeps took longer than they were to.
    late: Duration,
}

impl Idle {
    /// Awake.
    pub fn new(policy: IdlePolicy) -> Idle {
        Idle { policy, since: None, nap: Duration::ZERO, armed: false, late: LATE }
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
        if matches!(self.policy, IdlePolicy::Interrupt(_)) {
            self.armed = !self.armed;
            return if self.armed { Rest::Arm } else { Rest::Wait(naps.longest.min(room)) };
        }
        let nap = self.nap.min(naps.longest);
        self.nap = nap.saturating_mul(2);
        Rest::Sleep(nap.min(room))
    }

    /// A queue has interrupted. There is work, though it may take a moment to show: the next naps are
    /// as after a turn that found some.
    pub fn woken(&mut self) {
        self.since = None;
    }

    /// A sleep of `asked` has taken `took`. What a timer has to be kept off by follows upwards at once
    /// and downwards slowly; beyond the longest nap it is the system that is late, not the sleep.
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
                assert_eq!(idle(&mut i, now, None), Rest::Sleep(nap * US));
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
                    Rest::Poll => now += 1,
                    Rest::Sleep(d) => {
                        // As late as it is taken to be.
                        now += u64::try_from((d + LATE).as_micros()).unwrap();
                        assert!(now <= due, "slept until {now}, due at {due}");
                        i.slept(d, d + LATE);
                    }
                    other => panic!("{other:?}"),
                }
                if now >= due {
                    break;
                }
            }
            assert_eq!(idle(&mut i, now, Some(due)), Rest::Poll, "it is due");
        }
    }

    #[test]
    fn test_margin_follows_what_sleeps_take() {
        let mut i = Idle::new(IdlePolicy::Backoff(DEFAULT));
        let nap = |i: &mut Idle| {
            idle(&mut Idle { since: Some(us(0)), nap: 500 * US, ..*i }, 0, Some(300))
        };
        assert_eq!(nap(&mut i), Rest::Sleep(240 * US));
        i.slept(10 * US, 110 * US);
        assert_eq!(nap(&mut i), Rest::Sleep(200 * US), "later than thought");
        for _ in 0..100 {
            i.slept(10 * US, 14 * US);
        }
        let Rest::Sleep(d) = nap(&mut i) else { panic!() };
        assert!(d > 290 * US, "{d:?}");
        i.slept(10 * US, Duration::from_secs(3));
        assert_eq!(nap(&mut i), Rest::Poll, "bounded by the longest nap");
        assert_eq!(i.late, 500 * US);
    }

    #[test]
    fn test_interrupts_are_armed_then_looked_past_then_waited_for() {
        let mut i = Idle::new(IdlePolicy::Interrupt(NAPS));
        assert_eq!(idle(&mut i, 0, None), Rest::Poll);
        for now in [100, 600] {
            assert_eq!(idle(&mut i, now, None), Rest::Arm);
            assert_eq!(idle(&mut i, now, None), Rest::Wait(500 * US));
        }
        assert_eq!(idle(&mut i, 1100, None), Rest::Arm);
        assert_eq!(i.turn(true, || us(1100), || None), Rest::Disarm, "it came just before");
        assert_eq!(i.turn(true, || us(1100), || None), Rest::Poll);
    }

    #[test]
    fn test_an_interrupt_starts_the_while_again() {
        let mut i = Idle::new(IdlePolicy::Interrupt(NAPS));
        assert_eq!(idle(&mut i, 0, None), Rest::Poll);
        assert_eq!(idle(&mut i, 100, None), Rest::Arm);
        assert_eq!(idle(&mut i, 100, None), Rest::Wait(500 * US));
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
        assert_eq!(idle(&mut i, 402, Some(802)), Rest::Wait(340 * US));
    }
}
