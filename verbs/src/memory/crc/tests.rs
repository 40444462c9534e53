#![allow(clippy::cast_possible_truncation, reason = "noise")]

use super::*;
use proptest::prelude::*;

/// Runs one kernel over `src` into a destination with guards; checks CRC, sum and copy.
fn check(k: &Kernels, src: &[u8], start: u32) {
    let crc = crc32c::crc32c_append(start, src);
    let sum = Sum::of(src);
    let mut dst = vec![0xa5u8; src.len() + 32];
    let null = std::ptr::null_mut();
    // SAFETY: `src` is a slice of that length; `dst` has 16 more bytes on both sides.
    unsafe {
        assert_eq!(
            (k.crc)(src.as_ptr(), null, src.len(), start).0,
            crc,
            "{} crc {}",
            k.name,
            src.len()
        );
        let d = (k.digest)(src.as_ptr(), null, src.len(), start);
        assert_eq!(d, (crc, sum), "{} digest {}", k.name, src.len());
        for copy in [k.copy_crc, k.copy_digest] {
            dst.fill(0xa5);
            let got = copy(src.as_ptr(), dst.as_mut_ptr().add(16), src.len(), start);
            assert_eq!(got.0, crc, "{} copy {}", k.name, src.len());
            assert!(&dst[16..16 + src.len()] == src, "{} copy {}", k.name, src.len());
            assert!(dst[..16].iter().chain(&dst[16 + src.len()..]).all(|&b| b == 0xa5));
        }
        assert_eq!((k.copy_digest)(src.as_ptr(), dst.as_mut_ptr(), src.len(), start).1, sum);
    }
}

fn noise(len: usize) -> Vec<u8> {
    let mut r = heddle_base::Random::new(&heddle_base::Seed::from_u64(len as u64));
    (0..len).map(|_| r.next_u32() as u8).collect()
}

#[test]
fn test_every_length_to_4096_at_every_alignment() {
    let data = noise(4096 + 64);
    for k in available() {
        for len in 0..=4096 {
            // Alignments take turns; all 64 are met for lengths of each kind.
            for at in [len % 64, (len * 7 + 3) % 64] {
                check(k, &data[at..at + len], 0);
            }
        }
    }
}

#[test]
fn test_known_values() {
    for k in available() {
        // SAFETY: slices of these lengths.
        unsafe {
            let crc = |b: &[u8]| (k.crc)(b.as_ptr(), std::ptr::null_mut(), b.len(), 0).0;
            assert_eq!(crc(b"123456789"), 0xe306_9283, "{}", k.name);
            assert_eq!(crc(&[0; 32]), 0x8a91_36aa, "{}", k.name);
            assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43, "{}", k.name);
        }
    }
}

#[test]
fn test_sum_of_all_ones_and_of_zeros() {
    for k in available() {
        check(k, &[0xff; 70_001], 1);
        check(k, &[0; 5000], 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn test_any_bytes_any_start(len in 0usize..70_000, at in 0usize..64, start: u32) {
        let data = noise(len + 64);
        for k in available() {
            check(k, &data[at..at + len], start);
        }
    }

    #[test]
    fn test_crc_continues(a in 0usize..3000, b in 0usize..3000) {
        let data = noise(a + b);
        let whole = crate::memory::raw::crc32c_append(0, &data);
        let parts = crate::memory::raw::crc32c_append(crate::memory::raw::crc32c_append(0, &data[..a]), &data[a..]);
        prop_assert_eq!(whole, parts);
    }
}
