//! A worker's clock.
//!
//! A worker reads its clock once per poll. On x86-64 processors whose cycle counter runs at a
//! constant rate, the clock is that counter and a multiplication (about 20 cycles). On 64-bit Arm
//! the clock is the counter of the generic timer, which all processors share. Otherwise the clock is
//! the system's monotonic clock. All clocks of a process count from the same moment, so instants of
//! two workers are comparable.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_base::Instant;

use crate::eal::Eal;

/// A source of time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Tsc(Tsc),
    System(std::time::Instant),
    Manual(ManualClock),
}

/// Nanoseconds are `(cycles - origin) * mult / 2^32`.
#[derive(Clone, Copy, Debug)]
struct Tsc {
    origin: u64,
    mult: u64,
}

#[derive(Clone, Copy, Debug)]
struct Origin {
    tsc: u64,
    system: std::time::Instant,
}

static ORIGIN: OnceLock<Origin> = OnceLock::new();

fn origin() -> Origin {
    *ORIGIN.get_or_init(|| Origin { tsc: counter::read(), system: std::time::Instant::now() })
}

impl Clock {
    /// Returns the best clock of this machine.
    pub fn new(_eal: &Eal) -> Clock {
        match counter::rate() {
            Some(hz) => Clock(Source::Tsc(Tsc::new(origin().tsc, hz))),
            None => Clock::system(),
        }
    }

    /// Returns the system's monotonic clock, which needs no EAL.
    pub fn system() -> Clock {
        Clock(Source::System(origin().system))
    }

    /// Returns a clock that stands still until its [`ManualClock`] moves it, for deterministic
    /// runs.
    pub fn manual() -> (Clock, ManualClock) {
        let hand = ManualClock::default();
        (Clock(Source::Manual(hand.clone())), hand)
    }

    /// Returns the time now, which never goes back on one thread.
    #[inline]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::Tsc(t) => t.at(counter::read()),
            Source::System(origin) => {
                Instant::from_nanos(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
            }
            Source::Manual(hand) => hand.now(),
        }
    }

    /// Returns the name of the source, for reports.
    pub fn name(&self) -> &'static str {
        match self.0 {
            Source::Tsc(_) => "tsc",
            Source::System(_) => "system",
            Source::Manual(_) => "manual",
        }
    }
}

/// Moves a manual [`Clock`]; all clones move the same clock.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Returns the time that the clock shows.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Acquire))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.set(self.now() + by);
    }

    /// Sets the clock; a time before the one that the clock shows has no effect.
    pub fn set(&self, to: Instant) {
        self.0.fetch_max(to.as_nanos(), Ordering::AcqRel);
    }
}

impl Tsc {
    fn new(origin: u64, hz: u64) -> Tsc {
        let mult = (1_000_000_000u128 << 32) / u128::from(hz);
        Tsc { origin, mult: u64::try_from(mult).unwrap_or(u64::MAX) }
    }

    #[inline]
    fn at(self, cycles: u64) -> Instant {
        // Processors' counters may differ by a few cycles: treat a time before the origin as the
        // origin.
        let since = u128::from(cycles.saturating_sub(self.origin));
        let ns = (since * u128::from(self.mult)) >> 32;
        Instant::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// The processor's counter of time, of x86-64.
#[cfg(target_arch = "x86_64")]
mod counter {
    use core::arch::x86_64::{__cpuid, _rdtsc};
    use heddle_dpdk_sys as sys;

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _rdtsc() }
    }

    /// Returns how often the counter counts in a second. The EAL runs.
    pub(super) fn rate() -> Option<u64> {
        // SAFETY: the EAL runs, by the caller, and has measured the rate.
        let hz = unsafe { sys::rte_get_tsc_hz() };
        (is_constant() && hz > 0).then_some(hz)
    }

    /// Returns true if the cycle counter runs at one rate in every power state (CPUID 0x80000007,
    /// EDX bit 8).
    #[allow(unused_unsafe, reason = "CPUID became a safe function in later compilers")]
    fn is_constant() -> bool {
        // SAFETY: every x86-64 processor has the instruction; leaf 0x80000000 reports which leaves
        // exist.
        unsafe {
            __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
        }
    }
}

/// The same of 64-bit Arm: the generic timer, which Linux lets programs read.
#[cfg(target_arch = "aarch64")]
mod counter {
    use core::arch::asm;

    #[inline]
    pub(super) fn read() -> u64 {
        let count: u64;
        // The barrier keeps the processor from reading the counter before an earlier read, after
        // which time would go back.
        // SAFETY: the instructions change no memory, and only the named register.
        unsafe {
            asm!(
                "isb",
                "mrs {count}, cntvct_el0",
                count = out(reg) count,
                options(nomem, nostack, preserves_flags),
            );
        }
        count
    }

    /// Returns how often the counter counts in a second, if the firmware has set that.
    pub(super) fn rate() -> Option<u64> {
        let hz: u64;
        // SAFETY: as in `read`.
        unsafe {
            asm!(
                "mrs {hz}, cntfrq_el0",
                hz = out(reg) hz,
                options(nomem, nostack, preserves_flags),
            );
        }
        (hz > 0).then_some(hz)
    }
}

/// Other processors have no counter that we know.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod counter {
    pub(super) fn read() -> u64 {
        0
    }

    pub(super) fn rate() -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_tsc_conversion_is_exact_enough_after_a_year() {
        let hz = 2_700_000_000;
        let t = Tsc::new(1000, hz);
        assert_eq!(t.at(1000), Instant::ZERO);
        assert_eq!(t.at(10), Instant::ZERO);
        let year = 365 * 86_400;
        let got = t.at(1000 + year * hz).as_nanos();
        let off = got.abs_diff(year * 1_000_000_000);
        assert!(off < 20_000_000, "{off} ns off");
    }

    #[test]
    fn test_manual_clock_never_goes_back() {
        let (clock, hand) = Clock::manual();
        assert_eq!(clock.now(), Instant::ZERO);
        hand.advance(Duration::from_micros(3));
        hand.set(Instant::from_nanos(5));
        assert_eq!(clock.now(), Instant::from_nanos(3000));
        assert_eq!(clock.name(), "manual");
    }

    #[test]
    fn test_system_clock_moves() {
        let c = Clock::system();
        let a = c.now();
        while c.now() == a {}
        assert!(c.now() > a);
    }
}
