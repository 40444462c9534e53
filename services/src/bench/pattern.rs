//! Bytes that a seed and a number determine.

/// Fills `out` with the bytes of message `n`. Different messages differ in nearly every byte.
pub fn fill(out: &mut [u8], seed: u64, n: u64) {
    fill_from(out, seed, n, 0);
}

/// Fills `out` with the bytes of message `n` from word `word` on; a word has eight bytes.
pub fn fill_from(out: &mut [u8], seed: u64, n: u64, word: u64) {
    let mut x = start(seed, n).wrapping_add(STEP.wrapping_mul(word));
    let mut words = out.chunks_exact_mut(8);
    for w in &mut words {
        x = x.wrapping_add(STEP);
        w.copy_from_slice(&mix(x).to_le_bytes());
    }
    let rest = words.into_remainder();
    let last = mix(x.wrapping_add(STEP)).to_le_bytes();
    let n = rest.len();
    rest.copy_from_slice(&last[..n]);
}

/// Returns the index at which `got` first differs from the bytes of message `n`.
pub fn first_difference(got: &[u8], seed: u64, n: u64) -> Option<usize> {
    let mut x = start(seed, n);
    for (at, w) in got.chunks(8).enumerate() {
        x = x.wrapping_add(STEP);
        let want = &mix(x).to_le_bytes()[..w.len()];
        if w != want {
            let k = w.iter().zip(want).position(|(a, b)| a != b);
            return Some(8 * at + k.unwrap_or(0));
        }
    }
    None
}

/// The golden ratio in 64 bits: an odd number whose multiples are spread evenly.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn start(seed: u64, n: u64) -> u64 {
    mix(seed ^ mix(n.wrapping_add(1)))
}

/// A permutation of 64 bits in which each input bit reaches every output bit.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn test_filled_pattern_verifies_and_a_changed_byte_is_found(
            len in 1usize..300, seed in any::<u64>(), n in any::<u64>(), at in 0usize..300,
        ) {
            let mut b = vec![0; len];
            fill(&mut b, seed, n);
            prop_assert_eq!(first_difference(&b, seed, n), None);
            b[at % len] ^= 0x40;
            prop_assert_eq!(first_difference(&b, seed, n), Some(at % len));
        }
    }

    #[test]
    fn test_pattern_filled_in_pieces_equals_whole() {
        let mut whole = [0; 100];
        fill(&mut whole, 3, 5);
        let mut pieces = [0; 100];
        fill(&mut pieces[..48], 3, 5);
        fill_from(&mut pieces[48..], 3, 5, 6);
        assert_eq!(whole, pieces);
    }

    #[test]
    fn test_neighbouring_messages_and_seeds_differ() {
        let of = |seed, n| {
            let mut b = [0; 64];
            fill(&mut b, seed, n);
            b
        };
        let same = |a: [u8; 64], b: [u8; 64]| a.iter().zip(b).filter(|(a, b)| *a == b).count();
        assert!(same(of(1, 1), of(1, 2)) < 8);
        assert!(same(of(1, 1), of(2, 1)) < 8);
        assert!(same(of(0, 0), [0; 64]) < 8);
    }
}
