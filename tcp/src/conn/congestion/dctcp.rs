//! DCTCP (RFC 8257): reduces the window in proportion to the bytes that met a full queue.
//!
//! The switches of a data center mark packets that find more than a few others in their queue, and
//! the receiver reports which bytes were marked. The sender keeps `alpha`, the moving average of the
//! marked part of each window of data, and reduces its window by half of this part. The window grows
//! as Reno's does, and a loss halves it.

use heddle_base::StreamPos;

/// The scale of `alpha`: the value that means that all bytes were marked.
const ONE: u32 = 1 << 16;
/// The gain g of the moving average, 1/16, as a shift.
const GAIN_SHIFT: u32 = 4;

/// DCTCP's variables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dctcp {
    /// DCTCP.Alpha, scaled by [`ONE`].
    alpha: u32,
    /// DCTCP.BytesAcked and DCTCP.BytesMarked.
    acked: u64,
    marked: u64,
    /// DCTCP.WindowEnd.
    window_end: StreamPos,
}

impl Dctcp {
    /// Begins with a window that ends at `una`.
    pub(super) fn new(una: StreamPos) -> Dctcp {
        Dctcp { alpha: ONE, acked: 0, marked: 0, window_end: una }
    }

    /// Takes an acknowledgment of `acked` bytes, up to `una`, while all bytes before `max` are sent. The
    /// acknowledgment reports that `marked` of them were marked. Returns the new window instead of `cwnd`
    /// at the end of a window of data in which bytes were marked (section 3.3).
    pub(super) fn on_ack(
        &mut self,
        una: StreamPos,
        max: StreamPos,
        acked: u64,
        marked: u64,
        cwnd: u32,
    ) -> Option<u32> {
        self.acked += acked;
        self.marked += marked;
        if una <= self.window_end {
            return None;
        }
        let share = u128::from(self.marked) * u128::from(ONE) / u128::from(self.acked.max(1));
        let share = u32::try_from(share).unwrap_or(ONE);
        // The average has to reach 0, which shifting alone would not let it (section 4.2).
        let old = if self.alpha >> GAIN_SHIFT == 0 { 0 } else { self.alpha };
        self.alpha = (old - (old >> GAIN_SHIFT) + (share >> GAIN_SHIFT)).min(ONE);
        let reduce = self.marked > 0;
        (self.acked, self.marked, self.window_end) = (0, 0, max);
        let less = u64::from(cwnd) * u64::from(self.alpha) / (2 * u64::from(ONE));
        reduce.then(|| cwnd - u32::try_from(less).unwrap_or(cwnd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `rounds` windows of ten segments, of which the peer reports `marked` as marked. Returns
    /// the windows after each round that reduced it.
    fn run(d: &mut Dctcp, rounds: u32, marked: u64) -> Vec<u32> {
        let mut reduced = Vec::new();
        for _ in 0..rounds {
            let end = d.window_end + 10_000;
            for n in 1..=10 {
                let una = d.window_end + 1000 * n;
                if n == 10 {
                    // The first byte beyond the window ends it.
                    assert_eq!(
                        d.on_ack(
                            d.window_end,
                            end,
                            1000,
                            if n <= marked { 1000 } else { 0 },
                            100_000
                        ),
                        None
                    );
                    reduced.extend(d.on_ack(una, end, 0, 0, 100_000));
                } else {
                    assert_eq!(
                        d.on_ack(
                            d.window_end,
                            end,
                            1000,
                            if n <= marked { 1000 } else { 0 },
                            100_000
                        ),
                        None
                    );
                }
            }
        }
        reduced
    }

    /// Sections 3.3 and 4.2: alpha starts at 1, moves by a sixteenth, and reaches 0.
    #[test]
    fn test_alpha_is_the_moving_average_of_the_marked_part() {
        let mut d = Dctcp::new(StreamPos(1000));
        assert_eq!(run(&mut d, 1, 10), [50_000], "all marked, from the start: half");
        assert_eq!(run(&mut d, 200, 0), [0; 0]);
        assert_eq!(d.alpha, 0);
        let reduced = run(&mut d, 100, 4);
        let alpha = 1.0 / 16.0 * 0.4;
        let first = f64::from(100_000 - reduced[0]);
        assert!((first - 100_000.0 * alpha / 2.0).abs() < 10.0, "{first}");
        // In the end as many as are marked: a fifth of the window.
        assert!((79_900..80_200).contains(reduced.last().unwrap()), "{reduced:?}");
        assert!(d.alpha <= ONE);
    }

    #[test]
    fn test_arithmetic_holds_at_extremes() {
        let mut d = Dctcp::new(StreamPos::START);
        for n in 1..100u64 {
            let una = StreamPos(n << 33);
            let all = u64::from(u32::MAX) << 20;
            let next = d.on_ack(una, una, all, all, u32::MAX);
            assert!(next.is_some_and(|w| w >= u32::MAX / 2), "{next:?}");
        }
    }
}
