//! Randomness from a seed given at construction.

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

/// 32 bytes from which a component derives every value that a peer must not guess (ISNs, STags,
/// ports). A run with the same seed and inputs produces the same outputs.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed([u8; 32]);

impl Seed {
    /// Returns a seed of 32 bytes, which in production come from the operating system's generator.
    pub const fn new(bytes: [u8; 32]) -> Seed {
        Seed(bytes)
    }

    /// Returns a seed for tests and reproducible runs.
    pub fn from_u64(n: u64) -> Seed {
        let mut b = [0; 32];
        ChaCha12Rng::seed_from_u64(n).fill_bytes(&mut b);
        Seed(b)
    }

    /// Returns the seed of the part that `label` names; the seeds of different labels are
    /// independent.
    #[must_use]
    pub fn derive(&self, label: u64) -> Seed {
        let mut r = ChaCha12Rng::from_seed(self.0);
        r.set_stream(label);
        let mut b = [0; 32];
        r.fill_bytes(&mut b);
        Seed(b)
    }
}

impl core::fmt::Debug for Seed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// A generator whose next output a peer cannot predict from earlier outputs (ChaCha12).
#[derive(Clone, Debug)]
pub struct Random(ChaCha12Rng);

impl Random {
    /// Returns a generator that starts from `seed`.
    pub fn new(seed: &Seed) -> Random {
        Random(ChaCha12Rng::from_seed(seed.0))
    }

    /// Returns 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns true with probability `p` (in 0..=1).
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.0.next_u32() as f64) < p * 4_294_967_296.0)
    }

    /// Returns a number in `0..n`, near enough to uniform for `n` far below 2^64; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        u64::try_from((u128::from(self.0.next_u64()) * u128::from(n)) >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_generator_repeats_values_for_a_seed_and_differs_per_label() {
        let s = Seed::from_u64(7);
        assert_eq!(Random::new(&s).next_u64(), Random::new(&Seed::from_u64(7)).next_u64());
        assert_ne!(Random::new(&s.derive(1)).next_u64(), Random::new(&s.derive(2)).next_u64());
    }

    #[test]
    fn test_generator_honours_chances_of_zero_and_one_and_its_limit() {
        let mut r = Random::new(&Seed::from_u64(1));
        assert!((0..1000).all(|_| !r.chance(0.0)));
        assert!((0..1000).all(|_| r.chance(1.0)));
        assert!((0..1000).all(|_| r.below(3) < 3));
        assert_eq!(r.below(0), 0);
    }
}
