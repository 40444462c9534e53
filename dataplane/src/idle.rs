//! When a thread that polls workers may sleep, and for how long.
//!
//! [`Idle`] decides from its inputs: whether the last turn found something, the time, and the time
//! of the next timer. `Idle` reads no clock and calls nothing. [`Parker`](crate::Parker) carries
//! out its decisions.
//!
//! A turn that finds nothing says little; only after a while of such turns ([`Naps::after`]) does
//! the thread sleep, at first shortly and then for longer, up to a bound ([`Naps::longest`]). The
//! bound limits how long a frame waits that comes meanwhile to a queue without interrupts.
//! Doorbells, orders of the control plane and frames of other workers end the sleep
//! ([`heddle_rings::wakeup`]). If the thread's queues end the sleep as well, or the thread has
//! none, the thread sleeps until its next timer ([`FULL`]). The sleep does not delay a timer: the
//! thread wakes earlier by the time that its sleeps were seen to last too long, and spins for the
//! rest.
//!
//! A queue whose driver supports interrupts need not raise any. [`Parker`](crate::Parker) therefore
//! makes the thread trust its queues ([`Idle::trust`]) only after each queue has interrupted, and
//! stops the trust when a turn finds frames after a nap that no interrupt has ended; until then
//! naps are those of a thread without interrupts.
//!
//! ```text
//!   something found ─▶ spin ──after──▶ arm ──▶ one more turn ──▶ sleep first, 2 first .. longest
//!          ▲                            ▲            │                    │
//!          │                            └────────────│──── woken by nothing but the time
//!          └─────────────────────────────────────────┴─── something found, or woken
//! ```

use core::time::Duration;

use heddle_base::Instant;

/// The behavior of a thread when its workers have nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdlePolicy {
    /// The thread looks again at once, and takes all of a processor.
    #[default]
    Spin,
    /// The thread sleeps for growing times. Ports do not wake the thread, but everything else does.
    Backoff(Naps),
    /// The thread sleeps until a queue of a port interrupts. Until all of its queues are known to
    /// interrupt, the thread sleeps for growing times.
    Interrupt(Naps),
}

/// When to sleep, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naps {
    /// Time without work before the first nap.
    pub after: Duration,
    /// The first nap; each nap is twice as long as the one before.
    pub first: Duration,
    /// The longest nap of a thread that polls a queue which cannot wake the thread, or is not known
    /// to.
    pub longest: Duration,
}

/// The longest nap of a thread that everything but its timers wakes.
pub const FULL: Duration = Duration::from_secs(1);

impl Default for Naps {
    /// The first nap is as long as a round trip in a machine room, and the longest is no longer
    /// than a delayed ACK.
    fn default() -> Naps {
        Naps {
            after: Duration::from_micros(100),
            first: Duration::from_micros(10),
            longest: Duration::from_micros(500),
        }
    }
}

/// The action before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Take the next turn at once.
    Poll,
    /// Let queues interrupt, and let all other threads know that this thread must be woken. The
    /// thread takes another turn before it waits, for work that came just before.
    Arm,
    /// Sleep until woken, but no longer than this; then undo [`Rest::Arm`].
    Wait(Duration),
    /// Undo [`Rest::Arm`]: the turn after it found something.
    Disarm,
}

/// A sleep shorter than this takes less time than falling asleep, and is not worth it.
const SHORTEST: Duration = Duration::from_micros(2);

/// The assumed delay of a wake-up before any is measured: the kernel's usual slack and a switch.
const LATE: Duration = Duration::from_micros(60);

/// Decides when a thread sleeps; each thread has one.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    policy: IdlePolicy,
    /// The time since which turns have found nothing.
    since: Option<Instant>,
    /// The next nap.
    nap: Duration,
    /// Everything that the thread has to do wakes it, as far as is known.
    woken_by_all: bool,
    /// The thread can be woken.
    armed: bool,
    /// The time by which sleeps have lasted longer than asked.
    late: Duration,
}

impl Idle {
    /// Returns the state of a thread that is awake.
    pub fn new(policy: IdlePolicy) -> Idle {
        let (nap, woken_by_all) = (Duration::ZERO, false);
        Idle { policy, since: None, nap, woken_by_all, armed: false, late: LATE }
    }

    /// Sets whether everything that the thread may have to do wakes it.
    pub fn trust(&mut self, woken_by_all: bool) {
        self.woken_by_all = woken_by_all;
        self.since = None;
    }

    /// Returns the policy that [`new`](Self::new) was given.
    pub fn policy(&self) -> IdlePolicy {
        self.policy
    }

    /// Decides after a turn that found something (`busy`) or nothing. This function calls `now` and
    /// `next`, for the time and the time of the next timer, only if it needs them.
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

    /// Notes that another thread or a device has woken the thread. There is work, though it may
    /// take a moment to appear: the next naps are as after a turn that found some.
    pub fn woken(&mut self) {
        self.since = None;
    }

    /// Notes that a sleep of `asked` has taken `took`. The delay by which the thread wakes before a
    /// timer follows upwards at once and downwards slowly. A delay beyond the longest nap is a
    /// delay of the system, not of the sleep. The caller does not call this function if the thread
    /// was woken.
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

    /// Takes a turn that finds nothing, at `now`.
    fn idle(i: &mut Idle, now: u64, next: Option<u64>) -> Rest {
        i.turn(false, || us(now), || next.map(us))
    }

    #[test]
    fn test_spinning_thread_polls_without_reading_clock_or_timer() {
        let mut i = Idle::new(IdlePolicy::Spin);
        for busy in [false, true] {
            let rest = i.turn(busy, || panic!("no clock"), || panic!("no timer"));
            assert_eq!(rest, Rest::Poll);
        }
    }

    #[test]
    fn test_busy_turn_polls_without_reading_clock_or_timer() {
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

    /// However long the naps are, the thread is awake when the timer is due.
    #[test]
    fn test_thread_never_sleeps_past_a_timer() {
        for due in 100..2000 {
            let mut i = Idle::new(IdlePolicy::Backoff(NAPS));
            let mut now = 0;
            loop {
                match idle(&mut i, now, Some(due)) {
                    Rest::Poll | Rest::Arm | Rest::Disarm => now += 1,
                    Rest::Wait(d) => {
                        // The sleep lasts too long by as much as `Idle` expects.
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
    fn test_sleep_margin_follows_measured_oversleep() {
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
    fn test_thread_arms_interrupts_polls_again_and_then_waits() {
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

    /// A thread without a queue that it could miss sleeps as long as no timer is due.
    #[test]
    fn test_thread_that_trusts_its_queues_sleeps_until_next_timer() {
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
    fn test_thread_that_loses_trust_in_its_queues_naps_briefly_again() {
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
    fn test_interrupt_restarts_the_polling_period() {
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
    fn test_near_timer_disarms_interrupts() {
        let mut i = Idle::new(IdlePolicy::Interrupt(NAPS));
        assert_eq!(idle(&mut i, 0, Some(400)), Rest::Poll);
        assert_eq!(idle(&mut i, 330, Some(400)), Rest::Arm);
        assert_eq!(idle(&mut i, 339, Some(400)), Rest::Disarm);
        assert_eq!(idle(&mut i, 340, Some(400)), Rest::Poll);
        assert_eq!(idle(&mut i, 401, Some(2000)), Rest::Arm);
        assert_eq!(idle(&mut i, 402, Some(470)), Rest::Wait(8 * US));
    }
}
