//! The Internet checksum (RFC 1071), as a value that adds up.

/// A one's complement sum of 16-bit big-endian words, not yet complemented.
///
/// Sums of adjacent ranges add up when the first has an even length; [`Sum::add_at`] serves an odd
/// start by swapping bytes. The field on the wire is [`Sum::complement`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u16);

impl Sum {
    /// Longest run of bytes that [`Sum::of`] sums word by word, without vectors.
    pub const SHORT: usize = 64;

    /// The sum of nothing.
    pub const ZERO: Sum = Sum(0);

    /// A sum that was computed elsewhere (folded to 16 bits, big-endian words).
    pub const fn from_folded(v: u16) -> Sum {
        Sum(v)
    }

    /// The sum of numbers that were added up as they are: of 16-bit words, and of wider fields,
    /// whose words add up to the same.
    #[must_use]
    #[inline]
    pub fn of_numbers(total: u64) -> Sum {
        Sum(fold(total))
    }

    /// The folded sum, big-endian words.
    pub const fn folded(self) -> u16 {
        self.0
    }

    /// Sum of `bytes`; an odd last byte is padded with a zero byte on its right.
    ///
    /// Native-endian words are summed and swapped once at the end: the one's complement sum is
    /// indifferent to byte order (RFC 1071 section 2(B)).
    #[must_use]
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        if bytes.len() <= Sum::SHORT { Sum::of_short(bytes) } else { Sum::of_long(bytes) }
    }

    /// Sum of bytes that are a whole number of words of 64 bits; an inlined run of additions.
    #[must_use]
    #[inline]
    pub fn of_words<const N: usize>(bytes: &[u8; N]) -> Sum {
        const { assert!(N.is_multiple_of(8)) }
        let mut acc = 0u64;
        for w in bytes.chunks_exact(8) {
            let word = u64::from_ne_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]);
            let (sum, carry) = acc.overflowing_add(word);
            acc = sum + u64::from(carry);
        }
        Sum(u16::from_be(fold(acc)))
    }

    /// Sum of a header or another short run of bytes (of any length, but slower than [`Sum::of`]
    /// from [`Sum::SHORT`] on): setting up lanes would cost more than they gain.
    #[inline]
    #[must_use]
    pub fn of_short(bytes: &[u8]) -> Sum {
        let mut acc = 0u64;
        let mut words = bytes.chunks_exact(8);
        for w in &mut words {
            let (sum, carry) = acc.overflowing_add(u64::from_ne_bytes([
                w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7],
            ]));
            acc = sum + u64::from(carry);
        }
        // What is left of it has room for a few words more.
        acc = (acc & 0xffff_ffff) + (acc >> 32);
        let mut rest = words.remainder();
        if let [a, b, c, d, more @ ..] = rest {
            acc += u64::from(u32::from_ne_bytes([*a, *b, *c, *d]));
            rest = more;
        }
        acc += u64::from(match *rest {
            [a, b, c] => u32::from_ne_bytes([a, b, c, 0]),
            [a, b] => u32::from_ne_bytes([a, b, 0, 0]),
            [a] => u32::from_ne_bytes([a, 0, 0, 0]),
            _ => 0,
        });
        Sum(u16::from_be(fold(acc)))
    }

    /// Four lanes of 32-bit words in 64-bit accumulators let the compiler vectorise; 2^32
    /// additions would be needed to overflow one.
    #[inline(never)]
    fn of_long(bytes: &[u8]) -> Sum {
        let mut lanes = [0u64; 4];
        let mut blocks = bytes.chunks_exact(16);
        for b in &mut blocks {
            for (i, lane) in lanes.iter_mut().enumerate() {
                *lane += u64::from(u32::from_ne_bytes([
                    b[4 * i],
                    b[4 * i + 1],
                    b[4 * i + 2],
                    b[4 * i + 3],
                ]));
            }
        }
        let mut acc: u64 = lanes.iter().map(|l| (l & 0xffff_ffff) + (l >> 32)).sum();
        let mut words = blocks.remainder().chunks_exact(2);
        for w in &mut words {
            acc += u64::from(u16::from_ne_bytes([w[0], w[1]]));
        }
        if let [last] = words.remainder() {
            acc += u64::from(u16::from_ne_bytes([*last, 0]));
        }
        Sum(u16::from_be(fold(acc)))
    }

    /// This sum plus that of the bytes that follow.
    #[must_use]
    #[inline]
    pub fn plus(self, other: Sum) -> Sum {
        let (sum, carry) = self.0.overflowing_add(other.0);
        // With a carry the sum is at most 0xfffe.
        Sum(sum + u16::from(carry))
    }

    /// This sum plus `other`, whose first byte lies `off` bytes after this one's first byte.
    #[must_use]
    #[inline]
    pub fn add_at(self, off: usize, other: Sum) -> Sum {
        self.plus(if off.is_multiple_of(2) { other } else { Sum(other.0.swap_bytes()) })
    }

    /// This sum plus one 16-bit word.
    #[must_use]
    #[inline]
    pub fn add_u16(self, word: u16) -> Sum {
        self.plus(Sum(word))
    }

    /// This sum plus one 32-bit word.
    #[must_use]
    #[inline]
    pub fn add_u32(self, word: u32) -> Sum {
        Sum(fold(u64::from(self.0) + u64::from(word)))
    }

    /// The checksum field: the one's complement of the sum.
    pub const fn complement(self) -> u16 {
        !self.0
    }

    /// Whether data that includes its checksum field adds up to all ones.
    pub const fn is_valid(self) -> bool {
        self.0 == 0xffff
    }
}

/// Folds with end-around carry, without a branch.
#[inline]
fn fold(v: u64) -> u16 {
    // Each half plus the other, its carry added in; a sum with a carry has room for it.
    let (sum, carry) = low32(v).overflowing_add(low32(v >> 32));
    let v = sum + u32::from(carry);
    let (sum, carry) = low16(v).overflowing_add(low16(v >> 16));
    sum + u16::from(carry)
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn low32(v: u64) -> u32 {
    v as u32
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn low16(v: u32) -> u16 {
    v as u16
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, reason = "the definition, spelled out")]
    use super::*;
    use proptest::prelude::*;

    fn slow(bytes: &[u8]) -> u16 {
        let mut s = 0u32;
        for w in bytes.chunks(2) {
            s += u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0));
            s = (s & 0xffff) + (s >> 16);
        }
        s as u16
    }

    proptest! {
        #[test]
        fn test_of_matches_the_definition(v in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(Sum::of(&v).folded() % 0xffff, slow(&v) % 0xffff);
        }

        #[test]
        fn test_add_at_joins_any_cut(v in proptest::collection::vec(any::<u8>(), 1..300), cut in 0usize..300) {
            let cut = cut.min(v.len());
            let joined = Sum::of(&v[..cut]).add_at(cut, Sum::of(&v[cut..]));
            prop_assert_eq!(joined.folded() % 0xffff, Sum::of(&v).folded() % 0xffff);
        }
    }

    #[test]
    fn test_of_words_is_of() {
        let bytes: [u8; 56] = core::array::from_fn(|i| (i * 37 + 200) as u8);
        assert_eq!(Sum::of_words(&bytes), Sum::of(&bytes));
        assert_eq!(Sum::of_words(&[0xff; 16]), Sum::of(&[0xff; 16]));
        assert_eq!(Sum::of_words(&[]), Sum::ZERO);
    }

    #[test]
    fn test_complement_makes_data_valid() {
        let mut d = *b"\x45\x00\x12\x34\x00\x00abcd";
        let c = Sum::of(&d).complement().to_be_bytes();
        d[4..6].copy_from_slice(&c);
        assert!(Sum::of(&d).is_valid());
        d[7] ^= 1;
        assert!(!Sum::of(&d).is_valid());
    }
}
