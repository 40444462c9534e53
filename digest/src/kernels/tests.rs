#![allow(clippy::cast_possible_truncation, reason = "noise")]

use super::*;
use proptest::prelude::*;

/// Bytes beside the destination that must not change.
const GUARD: usize = 64;

/// Runs a processor's kernels over `src`, into a destination `to` bytes after a multiple of 64;
/// checks CRC, sum, copy, and that no kernel writes beside the destination.
fn check_to(k: &Kernels, src: &[u8], start: u32, to: usize) {
    let (p, len) = (src.as_ptr(), src.len());
    let (crc, sum) = (crc32c::crc32c_append(start, src), Sum::of(src));
    let mut room = vec![0xa5u8; len + 2 * GUARD + 128];
    let at = GUARD + room[GUARD..].as_ptr().align_offset(64) + to % 64;
    let mut copied = |what: &str, copy: &dyn Fn(*mut u8)| {
        room.fill(0xa5);
        copy(room[at..at + len].as_mut_ptr());
        assert!(&room[at..at + len] == src, "{} {what} {len}", k.name);
        let beside = room[..at].iter().chain(&room[at + len..]);
        assert!(beside.into_iter().all(|&b| b == 0xa5), "{} {what} {len}: beside it", k.name);
    };
    // SAFETY: `src` is a slice of that length, and the destination that `copied` gives is as long.
    unsafe {
        assert_eq!((k.sum)(p, len), sum, "{} sum {len}", k.name);
        assert_eq!((k.crc)(p, len, start), crc, "{} crc {len}", k.name);
        assert_eq!((k.digest)(p, len, start), (crc, sum), "{} digest {len}", k.name);
        copied("copy_sum", &|dst| {
            assert_eq!((k.copy_sum)(p, dst, len), sum, "{} copy_sum {len}", k.name);
        });
        copied("copy_digest", &|dst| {
            let got = (k.copy_digest)(p, dst, len, start);
            assert_eq!(got, (crc, sum), "{} copy_digest {len}", k.name);
        });
        copied("copy_crc", &|dst| {
            assert_eq!((k.copy_crc)(p, dst, len, start), crc, "{} copy_crc {len}", k.name);
        });
        let head = &src[..len.min(start as usize % 24)];
        let framed = crc32c::crc32c_append(crc32c::crc32c(head), &src[head.len()..]);
        copied("copy_framed", &|dst| {
            dst.copy_from_nonoverlapping(head.as_ptr(), head.len());
            let (n, rest) = (head.len(), len - head.len());
            let none = std::ptr::null_mut();
            let got = (k.copy_framed)(p.add(n), dst, none, n, rest);
            assert_eq!(got, framed, "{} copy_framed {len}", k.name);
        });
        copied("copy_framed to two places", &|dst| {
            let mut other = vec![0x5au8; len + GUARD];
            let (n, rest) = (head.len(), len - head.len());
            other[..n].copy_from_slice(head);
            let got = (k.copy_framed)(p.add(n), other.as_mut_ptr(), dst, n, rest);
            dst.copy_from_nonoverlapping(head.as_ptr(), n);
            assert_eq!(got, framed, "{} copy_framed to two places {len}", k.name);
            assert!(&other[..len] == src && other[len..] == [0x5a; GUARD], "{} {len}", k.name);
        });
    }
}

fn check(k: &Kernels, src: &[u8], start: u32) {
    check_to(k, src, start, src.len() / 3);
}

fn noise(len: usize) -> Vec<u8> {
    let mut r = heddle_base::Random::new(&heddle_base::Seed::from_u64(len as u64));
    (0..len).map(|_| r.next_u32() as u8).collect()
}

#[test]
fn test_every_crc_length_to_4096_is_correct_at_every_alignment() {
    let data = noise(4096 + 64);
    for k in available() {
        for len in 0..=4096 {
            // Alignments take turns; together, lengths of each kind meet all 64.
            for at in [len % 64, (len * 7 + 3) % 64] {
                check(k, &data[at..at + len], 0);
            }
        }
    }
}

#[test]
fn test_every_pair_of_crc_alignments_is_correct() {
    let data = noise(2048);
    let base = data.as_ptr().align_offset(32);
    // Words alone, single vectors, lanes, and each of them with a rest.
    for len in [5, 24, 32, 95, 191, 192, 250, 256, 300, 1431] {
        for k in available() {
            for from in 0..32 {
                for to in 0..32 {
                    check_to(k, &data[base + from..base + from + len], 7, to);
                }
            }
        }
    }
}

/// Another thread writes the source meanwhile. A copy may include these writes or not; the digest
/// is that of the bytes copied.
#[test]
fn test_copy_and_its_digest_agree_while_source_is_written() {
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
    let src: Vec<AtomicU8> = (0..1431).map(|_| AtomicU8::new(0)).collect();
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    let mixtures = std::thread::scope(|s| {
        s.spawn(|| {
            let mut turn = 0u8;
            while !done.load(Relaxed) {
                turn = turn.wrapping_add(1);
                src.iter().for_each(|b| b.store(turn, Relaxed));
            }
        });
        // A failed comparison ends the writer too.
        let _end = End(&done);
        let (mut dst, mut mixtures) = (vec![0; src.len()], 0);
        let began = std::time::Instant::now();
        // Go on until copies have met writes; a machine with one processor may take long.
        while mixtures < 100 && began.elapsed().as_secs() < 10 {
            for k in available() {
                // SAFETY: both have that length; the test is about concurrent writes to the source.
                let got =
                    unsafe { (k.copy_digest)(src.as_ptr().cast(), dst.as_mut_ptr(), dst.len(), 3) };
                assert_eq!(got, (crc32c::crc32c_append(3, &dst), Sum::of(&dst)), "{}", k.name);
                mixtures += usize::from(dst.iter().any(|&b| b != dst[0]));
                // SAFETY: as above.
                let crc =
                    unsafe { (k.copy_crc)(src.as_ptr().cast(), dst.as_mut_ptr(), dst.len(), 3) };
                assert_eq!(crc, crc32c::crc32c_append(3, &dst), "{}", k.name);
                let mut also = vec![0; dst.len()];
                // SAFETY: as above; the third has that length, too.
                let crc = unsafe {
                    let (p, d, a) = (src.as_ptr().cast(), dst.as_mut_ptr(), also.as_mut_ptr());
                    (k.copy_framed)(p, d, a, 0, dst.len())
                };
                assert_eq!(crc, crc32c::crc32c(&dst), "{}", k.name);
                assert!(also == dst, "{}: both places have the same mixture", k.name);
                // SAFETY: as above.
                let sum = unsafe { (k.copy_sum)(src.as_ptr().cast(), dst.as_mut_ptr(), dst.len()) };
                assert_eq!(sum, Sum::of(&dst), "{}", k.name);
            }
        }
        mixtures
    });
    assert!(mixtures > 0, "no copy met a write");
}

#[test]
fn test_known_values() {
    for k in available() {
        // SAFETY: slices of these lengths.
        unsafe {
            let crc = |b: &[u8]| (k.crc)(b.as_ptr(), b.len(), 0);
            assert_eq!(crc(b"123456789"), 0xe306_9283, "{}", k.name);
            assert_eq!(crc(&[0; 32]), 0x8a91_36aa, "{}", k.name);
            assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43, "{}", k.name);
        }
    }
}

#[test]
fn test_crc_sum_is_correct_for_all_ones_and_all_zeros() {
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
    fn test_crc_of_parts_equals_crc_of_whole(a in 0usize..3000, b in 0usize..3000) {
        let data = noise(a + b);
        let whole = crate::crc32c_append(0, &data);
        let parts = crate::crc32c_append(crate::crc32c_append(0, &data[..a]), &data[a..]);
        prop_assert_eq!(whole, parts);
    }
}
