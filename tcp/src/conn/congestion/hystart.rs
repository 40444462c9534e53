//! HyStart++ (RFC 9406): ends the first slow start when round trips grow, before the queue of the
//! bottleneck overflows.
//!
//! The algorithm compares the least round trip of a *round* (a window's worth of acknowledgments)
//! with that of the round before. When it has grown by an eighth, but by 4 ms at least, the window
//! grows at a quarter of the pace for up to five more rounds (conservative slow start). If the round
//! trips come down again meanwhile, the growth was a chance, and slow start goes on. Otherwise
//! congestion avoidance begins.
//!
//! Round trips below 4 ms cannot grow by that much, so connections within a machine room never get
//! here. A connection begins to watch at its first long round trip. The first round then compares
//! with the least round trip that the connection ever saw.

use core::time::Duration;

use heddle_base::StreamPos;

/// MIN_RTT_THRESH and MAX_RTT_THRESH of RFC 9406 section 4.3.
const LEAST_GROWTH: Duration = Duration::from_millis(4);
const MOST_GROWTH: Duration = Duration::from_millis(16);
/// MIN_RTT_DIVISOR.
const GROWTH_DIVISOR: u32 = 8;
/// N_RTT_SAMPLE.
const SAMPLES: u8 = 8;
/// CSS_GROWTH_DIVISOR.
const CSS_DIVISOR: u32 = 4;
/// The rounds of conservative slow start.
const CSS_ROUNDS: u8 = 5;

/// The watch over the round trips of a slow start.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowStart {
    /// lastRoundMinRTT and currentRoundMinRTT.
    last: Duration,
    current: Duration,
    samples: u8,
    /// The round ends when the peer acknowledges this position.
    round_end: StreamPos,
    /// Conservative slow start: the round trip at its beginning, and its rounds so far. The round in
    /// which it begins counts.
    css: Option<(Duration, u8)>,
}

impl SlowStart {
    /// Begins a round that ends at `max`; round trips took at least `least` so far.
    pub(super) fn new(least: Duration, max: StreamPos) -> SlowStart {
        SlowStart { last: least, current: Duration::MAX, samples: 0, round_end: max, css: None }
    }

    /// Returns the bytes by which the window grows where slow start without this watch would let it
    /// grow by `by`.
    pub(super) fn growth(&self, by: u32) -> u32 {
        if self.css.is_some() { by / CSS_DIVISOR } else { by }
    }

    /// Takes an acknowledgment of `una`, which shows a round trip of `rtt`, while all bytes before
    /// `max` are sent. Returns true if slow start is over.
    pub(super) fn is_over(
        &mut self,
        una: StreamPos,
        max: StreamPos,
        rtt: Option<Duration>,
    ) -> bool {
        if let Some(rtt) = rtt {
            self.current = self.current.min(rtt);
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES {
            match self.css {
                None => {
                    let growth = (self.last / GROWTH_DIVISOR).clamp(LEAST_GROWTH, MOST_GROWTH);
                    if self.current >= self.last.saturating_add(growth) {
                        self.css = Some((self.current, 0));
                    }
                }
                Some((baseline, _)) if self.current < baseline => self.css = None,
                Some(_) => {}
            }
        }
        if una < self.round_end {
            return false;
        }
        self.round_end = max;
        self.last = if self.samples > 0 { self.current } else { self.last };
        (self.current, self.samples) = (Duration::MAX, 0);
        match &mut self.css {
            Some((_, rounds)) => {
                *rounds += 1;
                *rounds >= CSS_ROUNDS
            }
            None => false,
        }
    }
}
