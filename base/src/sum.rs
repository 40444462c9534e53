//! The Internet checksum (RFC 1071), as a value that can be added up piece by piece.

/// A one's complement sum of 16-bit big-endian words, not yet complemented.
///
/// Callers may add the sums of adjacent ranges when the first range has an even length;
/// [`Sum::add_at`] handles an odd start by swapping bytes. The field on the wire is
/// [`Sum::complement`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u16);

impl Sum {
    /// Longest run of bytes that [`Sum::of`] sums word by word, without vectors.
    pub const SHORT: usize = 64;

    /// The sum of no bytes.
    pub const ZERO: Sum = Sum(0);

    /// Wraps a sum that was computed elsewhere (folded to 16 bits, big-endian words).
    pub const fn from_folded(v: u16) -> Sum {
        Sum(v)
    }

    /// Returns the sum of numbers that the caller has added up as plain integers: 16-bit words, and
    /// wider fields, because the words of a wider field add up to the same sum.
    #[must_use]
    #[inline]
    pub fn of_numbers(total: u64) -> Sum {
        Sum(fold(total))
    }

    /// Returns the folded sum, of big-endian words.
    pub const fn folded(self) -> u16 {
        self.0
    }

    /// Returns the sum of `bytes`; an odd last byte is padded with a zero byte on its right.
    ///
    /// The function sums native-endian words and swaps once at the end: the one's complement sum is
    /// indifferent to byte order (RFC 1071 section 2(B)).
    #[must_use]
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        if bytes.len() <= Sum::SHORT { Sum::of_short(bytes) } else { Sum::of_long(bytes) }
    }

    /// Returns the sum of bytes that are a whole number of 64-bit words, by an inlined run of
    /// additions.
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

    /// Returns the sum of a header or another short run of bytes. Any length is allowed, but from
    /// [`Sum::SHORT`] bytes on [`Sum::of`] is faster. For a short run, setting up lanes would cost
    /// more than they gain.
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
        // The accumulator, folded to 33 bits, has room for the few words that remain.
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

    /// Sums in four lanes of 32-bit words in 64-bit accumulators, which lets the compiler
    /// vectorise. An accumulator overflows only after 2^32 additions.
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

    /// Returns this sum plus that of the bytes that follow.
    #[must_use]
    #[inline]
    pub fn plus(self, other: Sum) -> Sum {
        let (sum, carry) = self.0.overflowing_add(other.0);
        // After a carry the sum is at most 0xfffe, so this addition cannot overflow.
        Sum(sum + u16::from(carry))
    }

    /// Returns this sum plus `other`, whose first byte lies `off` bytes after the first byte of
    /// `self`.
    #[must_use]
    #[inline]
    pub fn add_at(self, off: usize, other: Sum) -> Sum {
        self.plus(if off.is_multiple_of(2) { other } else { Sum(other.0.swap_bytes()) })
    }

    /// Returns this sum plus one 16-bit word.
    #[must_use]
    #[inline]
    pub fn add_u16(self, word: u16) -> Sum {
        self.plus(Sum(word))
    }

    /// Returns this sum plus one 32-bit word.
    #[must_use]
    #[inline]
    pub fn add_u32(self, word: u32) -> Sum {
        Sum(fold(u64::from(self.0) + u64::from(word)))
    }

    /// Returns the checksum field: the one's complement of the sum.
    pub const fn complement(self) -> u16 {
        !self.0
    }

    /// Returns true if data that includes its checksum field adds up to all ones, so that the
    /// checksum is right.
    pub const fn is_valid(self) -> bool {
        self.0 == 0xffff
    }
}

/// Folds a sum to 16 bits with end-around carry, without a branch.
#[inline]
fn fold(v: u64) -> u16 {
    // Each step adds one half to the other and then adds the carry; a sum with a carry has room for
    // that carry.
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
        fn test_checksum_matches_the_slow_definition(v in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(Sum::of(&v).folded() % 0xffff, slow(&v) % 0xffff);
        }

        #[test]
        fn test_checksum_of_two_parts_equals_checksum_of_whole_at_any_cut(
            v in proptest::collection::vec(any::<u8>(), 1..300),
            cut in 0usize..300,
        ) {
            let cut = cut.min(v.len());
            let joined = Sum::of(&v[..cut]).add_at(cut, Sum::of(&v[cut..]));
            prop_assert_eq!(joined.folded() % 0xffff, Sum::of(&v).folded() % 0xffff);
        }
    }

    #[test]
    fn test_checksum_over_words_equals_checksum_over_bytes() {
        let bytes: [u8; 56] = core::array::from_fn(|i| (i * 37 + 200) as u8);
        assert_eq!(Sum::of_words(&bytes), Sum::of(&bytes));
        assert_eq!(Sum::of_words(&[0xff; 16]), Sum::of(&[0xff; 16]));
        assert_eq!(Sum::of_words(&[]), Sum::ZERO);
    }

    #[test]
    fn test_checksum_is_valid_once_its_complement_is_stored() {
        let mut d = *b"\x45\x00\x12\x34\x00\x00abcd";
        let c = Sum::of(&d).complement().to_be_bytes();
        d[4..6].copy_from_slice(&c);
        assert!(Sum::of(&d).is_valid());
        d[7] ^= 1;
        assert!(!Sum::of(&d).is_valid());
    }
}
