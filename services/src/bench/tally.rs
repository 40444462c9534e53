//! The figures of the server's operations in a bidirectional run.

/// The figures. On the wire four numbers of 64 bits, big-endian, in the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of operations that completed in the counted time.
    pub ops: u64,
    /// The counted time, in nanoseconds.
    pub nanos: u64,
    /// The number of operations from the beginning to the end.
    pub posted: u64,
    /// The number of slots that held wrong bytes at the end.
    pub wrong: u64,
}

impl Tally {
    /// Bytes on the wire.
    pub const LEN: usize = 32;

    /// Encodes the tally.
    pub fn encode(self) -> [u8; Tally::LEN] {
        let mut b = [0; Tally::LEN];
        for (to, n) in b.chunks_exact_mut(8).zip([self.ops, self.nanos, self.posted, self.wrong]) {
            to.copy_from_slice(&n.to_be_bytes());
        }
        b
    }

    /// Decodes a tally; `None` for one that counts more operations than there were.
    pub fn decode(b: &[u8; Tally::LEN]) -> Option<Tally> {
        let n = |at: usize| b[at..at + 8].iter().fold(0, |v, &b| v << 8 | u64::from(b));
        let tally = Tally { ops: n(0), nanos: n(8), posted: n(16), wrong: n(24) };
        (tally.ops <= tally.posted).then_some(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_tally_bytes_match_reference() {
        let tally = Tally { ops: 1, nanos: 0x0203, posted: 4, wrong: 5 };
        let want = b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x02\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x05";
        assert_eq!(&tally.encode(), want);
        assert_eq!(Tally::decode(want), Some(tally));
        assert_eq!(Tally::decode(&Tally { ops: 5, ..tally }.encode()), None);
    }
}
