//! Pacing: new data are spread over the round trip instead of leaving as fast as the port takes them.
//!
//! A window that leaves at once has to wait in the queue of the bottleneck, and overflows a short one.
//! Where round trips take microseconds, the ACKs themselves keep the pace, and no timer could do
//! better. So a connection paces where its smoothed round trip is long ([`LONG`]): the
//! quanta of a millisecond then cut a window into several parts. Elsewhere, pacing costs the
//! comparison of the round trip.
//!
//! Retransmissions, probes, ACKs and FINs do not wait: proportional rate reduction spreads the first,
//! and the others are few.
//!
//! [`LONG`]: super::rto

use super::config::Pacing;
use super::{Connection, NEVER};
use heddle_base::Instant;

impl Connection {
    /// Returns true if new data may have to wait for their pace.
    #[inline(always)]
    pub(super) fn is_paced(&self) -> bool {
        self.rto.is_long() || self.hot.pace_at != NEVER
    }

    /// Returns true if `len` bytes of new data may go now; otherwise the timer is set.
    #[cold]
    pub(super) fn keep_pace(&mut self, now: Instant, len: u32) -> bool {
        if self.hot.pace_at != NEVER {
            if now < self.hot.pace_at {
                return false;
            }
            self.hot.pace_at = NEVER;
        }
        let Some(srtt) = self.rto.srtt().filter(|_| self.cold.set.pacing == Pacing::Auto) else {
            return true;
        };
        match self.hot.cc.pace(now, len, srtt) {
            Ok(()) => true,
            Err(at) => {
                self.hot.pace_at = at;
                false
            }
        }
    }
}
