//! Randomness from the operating system.

use std::fs::File;
use std::io::Read;

use heddle_base::Seed;

/// Returns a seed that no peer can guess. From it the RNIC derives all values that a peer must not
/// know (STags, initial sequence numbers, ports, tagged offsets).
///
/// # Panics
///
/// When the operating system has no randomness to give: an RNIC without it would not be safe.
pub fn random_seed() -> Seed {
    let mut bytes = [0; 32];
    let read = File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
    assert!(read.is_ok(), "cannot read /dev/urandom: {read:?}");
    Seed::new(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_seeds_differ() {
        assert_ne!(random_seed(), random_seed());
    }
}
