//! Positions in one direction of a byte stream.

use core::ops::{Add, AddAssign, Sub};

/// Bytes since the start of one direction of a TCP connection: the first byte after the SYN is 0.
///
/// A position does not wrap (2^64 bytes take 1,400 years at 3 Gb/s), so order and difference are
/// plain arithmetic; `tcp` maps positions to and from 32-bit sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamPos(pub u64);

impl StreamPos {
    /// The position of the first byte of the stream.
    pub const START: StreamPos = StreamPos(0);

    /// Returns the bytes from `earlier` to `self`; 0 when `earlier` lies after `self`.
    pub const fn since(self, earlier: StreamPos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for StreamPos {
    type Output = StreamPos;

    fn add(self, bytes: u64) -> StreamPos {
        StreamPos(self.0.saturating_add(bytes))
    }
}

impl AddAssign<u64> for StreamPos {
    fn add_assign(&mut self, bytes: u64) {
        *self = *self + bytes;
    }
}

impl Sub for StreamPos {
    type Output = u64;

    fn sub(self, earlier: StreamPos) -> u64 {
        self.since(earlier)
    }
}
