//! CUBIC (RFC 9438): in congestion avoidance the window follows a cubic function of the time since
//! the last reduction.
//!
//! ```text
//!   cwnd                                   .     W(t) = C (t - K)^3 + W_max
//!    |                                    .
//!  W_max - - - - - - - - . . . . . . . .          concave up to W_max, convex beyond it
//!    |            .
//!    |       .
//!    |    .
//!  0.7 W_max
//!    |________________________|______________ t
//!    epoch                    K
//! ```
//!
//! Where round trips are short, as in a machine room, Reno with the same average window would grow
//! faster than this function, and the window follows Reno (the Reno-friendly region).
//!
//! All arithmetic is in integers: windows in bytes, times in *ticks* of 1/1024 s. C is 0.4 segments
//! per cubic second.

use core::time::Duration;

use crate::conn::NEVER;
use crate::conn::config::nanos;
use heddle_base::Instant;

/// Ticks in a second, as a power of two.
const TICK_SHIFT: u32 = 10;
/// C in 1/1024 of a segment per cubic second.
const C_SCALED: u64 = 410;
/// C's scale, as a power of two.
const C_SHIFT: u32 = 10;
/// The longest time from K at which the function is computed: 512 s, with which it lies far beyond
/// any window.
const TICKS_MAX: u64 = 1 << 19;

/// Bits of the longest K, in ticks: 34 minutes. The cube of such a number fits into 63 bits.
const ROOT_BITS: u32 = 21;

/// CUBIC's variables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    /// W_max; 0 while there is none: the next epoch begins at the plateau of the function.
    w_max: u32,
    /// cwnd_prior: the window when ssthresh was last set.
    prior: u32,
    /// W_est: the window that Reno would have.
    w_est: u32,
    /// Bytes acknowledged since `w_est` last grew.
    est_acked: u32,
    /// K in ticks.
    k: u32,
    /// When congestion avoidance began; [`NEVER`] before.
    epoch: Instant,
    /// Since when the sender has not used its window; [`NEVER`] while it uses the window.
    paused: Instant,
}

impl Default for Cubic {
    fn default() -> Cubic {
        Cubic { w_max: 0, prior: 0, w_est: 0, est_acked: 0, k: 0, epoch: NEVER, paused: NEVER }
    }
}

impl Cubic {
    /// Returns the window after `acked` bytes were acknowledged in congestion avoidance. `count` is
    /// the number of bytes acknowledged since the window last grew, before and after this
    /// acknowledgment.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        acked: u32,
        count: &mut u32,
        cwnd: u32,
        mss: u32,
        srtt: Option<Duration>,
    ) -> u32 {
        let (cwnd, mss) = (cwnd.max(1), mss.max(1));
        self.resume(now);
        if self.epoch == NEVER {
            self.start_epoch(now, cwnd, mss);
            *count = 0;
        }
        *count = count.saturating_add(acked);
        self.grow_estimate(acked, cwnd, mss);
        let t = ticks(now - self.epoch);
        let friendly = self.w_est > cwnd && self.at(t, mss) < u64::from(self.w_est);
        if friendly {
            *count = 0;
            return self.w_est;
        }
        // Figure 1 and the bounds of section 4.2.
        let most = u64::from(cwnd) + u64::from(cwnd / 2);
        let target = self.at(t + ticks(srtt.unwrap_or_default()), mss).min(most);
        let Some(gap) = target.checked_sub(u64::from(cwnd)).filter(|&gap| gap > 0) else {
            *count = 0;
            return cwnd;
        };
        // The window grows by (target - cwnd) / cwnd for each segment, so by a segment for every
        // `need` bytes.
        let need = (u64::from(cwnd) * u64::from(mss) / gap).max(1);
        let segments = u64::from(*count) / need;
        *count = clamp(u64::from(*count) - segments * need);
        cwnd.saturating_add(clamp(segments * u64::from(mss)))
    }

    /// Records a loss, or with `timeout` the expiry of the retransmission timer, while the window is
    /// `cwnd` and `flight` bytes count as outstanding. Returns the new ssthresh (section 4.6).
    pub(super) fn on_loss(&mut self, cwnd: u32, flight: u64, timeout: bool) -> u64 {
        // Fast convergence (section 4.7): a plateau below the last is a sign of other flows, for
        // which a lower one makes room.
        let w_max = if cwnd < self.w_max { clamp(u64::from(cwnd) * 17 / 20) } else { cwnd };
        // After a timeout the next epoch begins at its plateau (section 4.8).
        self.w_max = if timeout { 0 } else { w_max };
        self.prior = cwnd;
        self.end_epoch();
        flight.saturating_mul(7) / 10
    }

    /// Records that slow start ended without a loss, with the window `cwnd` (section 4.10).
    pub(super) fn slow_start_over(&mut self, cwnd: u32) {
        self.w_max = 0;
        self.prior = cwnd;
        self.end_epoch();
    }

    /// Records that the sender does not use its window from `now` on. Such a time does not count in
    /// the function (section 5.8).
    pub(super) fn pause(&mut self, now: Instant) {
        self.paused = self.paused.min(now);
    }

    /// Ends the epoch; the next begins with the next acknowledgment in congestion avoidance.
    pub(super) fn end_epoch(&mut self) {
        self.epoch = NEVER;
        self.paused = NEVER;
    }

    /// Adapts to segments of `mss` bytes instead of `before`.
    pub(super) fn set_mss(&mut self, before: u32, mss: u32) {
        let scaled = |n: u32| clamp(u64::from(n) * u64::from(mss) / u64::from(before.max(1)));
        self.w_max = scaled(self.w_max);
        self.prior = scaled(self.prior);
        self.end_epoch();
    }

    fn resume(&mut self, now: Instant) {
        if self.paused != NEVER && self.epoch != NEVER {
            self.epoch = self.epoch + (now - self.paused);
        }
        self.paused = NEVER;
    }

    fn start_epoch(&mut self, now: Instant, cwnd: u32, mss: u32) {
        self.epoch = now;
        self.w_max = self.w_max.max(cwnd);
        // Figure 2. In ticks, K^3 is 2^30 (W_max - cwnd) / (C MSS), with 1 / C = 5/2.
        let gap = u64::from(self.w_max - cwnd);
        let cube = u128::from(gap) * (5 << (3 * TICK_SHIFT - 1)) / u128::from(mss);
        self.k = cube_root(u64::try_from(cube).unwrap_or(u64::MAX));
        self.w_est = cwnd;
        self.est_acked = 0;
    }

    /// Lets the estimate of Reno's window grow (figure 4): by 9/17 of a segment per window until it
    /// reaches the window before the reduction, then by a segment.
    fn grow_estimate(&mut self, acked: u32, cwnd: u32, mss: u32) {
        self.est_acked = self.est_acked.saturating_add(acked);
        let cwnd = u64::from(cwnd);
        let need = if self.w_est < self.prior { cwnd * 17 / 9 } else { cwnd }.max(1);
        let segments = u64::from(self.est_acked) / need;
        self.est_acked = clamp(u64::from(self.est_acked) - segments * need);
        self.w_est = self.w_est.saturating_add(clamp(segments * u64::from(mss)));
    }

    /// Returns the cubic function `t` ticks after the epoch began, in bytes.
    fn at(&self, t: u64, mss: u32) -> u64 {
        let k = u64::from(self.k);
        let d = t.abs_diff(k).min(TICKS_MAX);
        let delta = u128::from(d * d * d) * u128::from(C_SCALED * u64::from(mss));
        let delta = u64::try_from(delta >> (3 * TICK_SHIFT + C_SHIFT)).unwrap_or(u64::MAX);
        let w_max = u64::from(self.w_max);
        if t < k { w_max.saturating_sub(delta) } else { w_max.saturating_add(delta) }
    }
}

/// Returns a time in whole ticks.
fn ticks(d: Duration) -> u64 {
    const TICK_NS: u64 = 1_000_000_000 >> TICK_SHIFT;
    nanos(d) / TICK_NS
}

/// Returns the largest number of [`ROOT_BITS`] bits whose cube is at most `n`.
fn cube_root(n: u64) -> u32 {
    // The loop finds bit after bit of the root, from the highest possible.
    let mut root = 0u64;
    for bit in (0..ROOT_BITS).rev() {
        let next = root | 1 << bit;
        if next * next * next <= n {
            root = next;
        }
    }
    clamp(root)
}

fn clamp(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
