use core::fmt;
use core::time::Duration;

/// The number of a queue pair: 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The queue pair that receives management datagrams of general services.
    pub const GSI: Qpn = Qpn(1);

    /// Makes a queue pair number of the low 24 bits of `n`.
    pub const fn new(n: u32) -> Qpn {
        Qpn(n & 0xff_ffff)
    }

    /// Returns the number, 24 bits.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A packet sequence number: 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Makes a sequence number of the low 24 bits of `n`.
    pub const fn new(n: u32) -> Psn {
        Psn(n & 0xff_ffff)
    }

    /// Returns the number, 24 bits.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The name that one side's communication manager gives to a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

/// The id of a service that a server listens on: 64 bits, of which the RDMA IP CM service has a
/// range ([`ip_cm::Service`](crate::ip_cm::Service)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// A time in the five bits that messages have for a time: 4.096 µs times two to this power, from 4
/// µs to two and a half hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeCode(u8);

impl TimeCode {
    /// The longest time.
    pub const MAX: TimeCode = TimeCode(31);

    /// Makes a time of the low five bits of `code`.
    pub const fn new(code: u8) -> TimeCode {
        TimeCode(code & 0x1f)
    }

    /// Returns the code, 5 bits.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the time that the code stands for.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// Returns the shortest code whose time is at least `time`, or [`MAX`](Self::MAX) if there is
    /// none.
    pub fn at_least(time: Duration) -> TimeCode {
        (0..31).map(TimeCode).find(|c| c.duration() >= time).unwrap_or(TimeCode::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_time_code_doubles_its_duration_per_step() {
        assert_eq!(TimeCode::new(0).duration(), Duration::from_nanos(4096));
        // The code that Linux sends: about 4.3 s.
        assert_eq!(TimeCode::new(20).duration(), Duration::from_nanos(4_294_967_296));
        assert_eq!(TimeCode::MAX.duration().as_secs(), 8796);
        for code in (0..32).map(TimeCode::new) {
            assert_eq!(TimeCode::at_least(code.duration()), code);
            let more = code.duration() + Duration::from_nanos(1);
            assert_eq!(TimeCode::at_least(more).get(), (code.get() + 1).min(31));
        }
        assert_eq!(TimeCode::new(0xff), TimeCode::MAX);
    }

    #[test]
    fn test_queue_pair_and_sequence_numbers_keep_24_bits() {
        assert_eq!((Qpn::new(u32::MAX).get(), Psn::new(1 << 24 | 5).get()), (0xff_ffff, 5));
    }
}
