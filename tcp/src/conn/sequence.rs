//! Conversion between 64-bit stream positions and 32-bit sequence numbers.

use super::Connection;
use crate::SeqNumber;
use heddle_base::{Instant, StreamPos};

/// Returns the low 32 bits of `v`.
pub(super) fn low32(v: u64) -> u32 {
    u32::try_from(v & 0xffff_ffff).unwrap_or(0)
}

/// Returns the sequence number of `pos` in a stream whose position 0 has number `base`.
pub(super) fn seq_of(base: SeqNumber, pos: StreamPos) -> SeqNumber {
    base.advance(low32(pos.0))
}

/// Returns how far `seq` lies from `pos`: negative when `seq` lies before `pos`. The result is
/// right for numbers within 2^31 of `pos`, which includes every number inside a window (RFC 9293
/// section 3.4).
pub(super) fn offset(base: SeqNumber, pos: StreamPos, seq: SeqNumber) -> i64 {
    i64::from(seq.distance(seq_of(base, pos)))
}

/// Returns `a - b`.
pub(super) fn signed(a: StreamPos, b: StreamPos) -> i64 {
    a.0.wrapping_sub(b.0).cast_signed()
}

/// Returns `pos + by`, at least 0.
pub(super) fn shifted(pos: StreamPos, by: i64) -> StreamPos {
    StreamPos(pos.0.saturating_add_signed(by))
}

impl Connection {
    /// Returns the timestamp clock: milliseconds plus the connection's offset (RFC 7323 section
    /// 5.4).
    pub(super) fn ts_clock(&self, now: Instant) -> u32 {
        self.hot.ts_offset.wrapping_add(low32(now.as_millis()))
    }

    /// Returns the sequence number of `pos` in our stream.
    pub(super) fn snd_seq(&self, pos: StreamPos) -> SeqNumber {
        seq_of(self.hot.snd_base, pos)
    }

    /// Returns the sequence number of `pos` in the peer's stream.
    pub(super) fn rcv_seq_of(&self, pos: StreamPos) -> SeqNumber {
        seq_of(self.hot.rcv_base, pos)
    }

    /// Returns the sequence number expected next from the peer.
    pub(super) fn rcv_seq(&self) -> SeqNumber {
        seq_of(self.hot.rcv_base, self.hot.rcv_nxt)
    }
}
