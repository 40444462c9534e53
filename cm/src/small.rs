//! Values that every connection keeps, in little space.

use core::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use core::time::Duration;

use heddle_base::Instant;

/// An address and port. An IPv6 address, which is rare, lies in a box elsewhere.
#[derive(Clone, Debug)]
pub(crate) enum SmallAddr {
    V4(SocketAddrV4),
    V6(Box<SocketAddrV6>),
}

impl From<SocketAddr> for SmallAddr {
    fn from(addr: SocketAddr) -> SmallAddr {
        match addr {
            SocketAddr::V4(v4) => SmallAddr::V4(v4),
            SocketAddr::V6(v6) => SmallAddr::V6(Box::new(v6)),
        }
    }
}

impl SmallAddr {
    pub(crate) fn get(&self) -> SocketAddr {
        match self {
            SmallAddr::V4(v4) => SocketAddr::V4(*v4),
            SmallAddr::V6(v6) => SocketAddr::V6(**v6),
        }
    }
}

/// A time in whole milliseconds, rounded up; 49 days at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Millis(u32);

impl From<Duration> for Millis {
    fn from(time: Duration) -> Millis {
        Millis(u32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX))
    }
}

impl Millis {
    pub(crate) fn get(self) -> Duration {
        Duration::from_millis(self.0.into())
    }
}

/// A moment, in whole microseconds modulo 2^32: measures the time since the moment, up to 71
/// minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

impl Stamp {
    pub(crate) const fn of(now: Instant) -> Stamp {
        // The cast drops the bits from 2^32 up.
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
        Stamp((now.as_nanos() / 1000) as u32)
    }

    /// Returns the time from this moment to `now`, modulo 71 minutes.
    pub(crate) const fn age(self, now: Instant) -> Duration {
        Duration::from_micros(Stamp::of(now).0.wrapping_sub(self.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_small_address_converts_back_to_same_address() {
        for text in ["10.0.0.1:1", "255.255.255.255:65535", "[fe80::1%3]:7", "[::]:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(SmallAddr::from(addr).get(), addr);
        }
    }

    #[test]
    fn test_stamp_age_is_right_across_wraparound() {
        let then = Instant::from_nanos((1 << 32) * 1000 - 2000);
        let stamp = Stamp::of(then);
        assert_eq!(stamp.age(then), Duration::ZERO);
        assert_eq!(stamp.age(then + Duration::from_millis(5)), Duration::from_millis(5));
        assert_eq!(stamp.age(then + Duration::from_secs(4294)), Duration::from_secs(4294));
    }

    #[test]
    fn test_time_is_rounded_up() {
        let ms = |time| Millis::from(time).get();
        assert_eq!(ms(Duration::ZERO), Duration::ZERO);
        assert_eq!(ms(Duration::from_nanos(1)), Duration::from_millis(1));
        assert_eq!(ms(Duration::from_secs(60)), Duration::from_secs(60));
        assert_eq!(ms(Duration::from_micros(1001)), Duration::from_millis(2));
        assert_eq!(ms(Duration::MAX), Duration::from_millis(u32::MAX.into()));
    }
}
