//! Throughput of CRC-32C, checksum and copy loops, against the crates that a program could use
//! instead.
//!
//! `cargo run --release -p heddle-digest --example digest`
//!
//! Results are in GB/s (10^9 bytes), the median of 15 rounds. Every candidate takes its turn in
//! each round, so that a slow phase of the machine affects all alike. Buffers are warm in the
//! cache.

#![allow(clippy::print_stdout, reason = "a report for a terminal")]
#![allow(clippy::cast_possible_truncation, reason = "arbitrary bytes")]

use std::hint::black_box;
use std::time::Instant;

use heddle_base::Sum;

type Candidate<'a> = (&'static str, Box<dyn FnMut(&[u8], &mut [u8]) -> u32 + 'a>);

const SIZES: [usize; 5] = [64, 512, 1442, 8938, 65536];
const ROUNDS: usize = 15;

fn main() {
    let crc_fast_crc = |b: &[u8]| {
        let c = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, b);
        u32::try_from(c).unwrap_or(0)
    };
    let fold = |s: Sum| u32::from(s.folded());
    let mut all: Vec<Candidate> = vec![
        ("crc      crc32c crate", Box::new(|s, _| crc32c::crc32c(s))),
        ("crc      crc-fast", Box::new(move |s, _| crc_fast_crc(s))),
        ("crc      raw", Box::new(|s, _| heddle_digest::crc32c_append(0, s))),
        ("sum      Sum::of", Box::new(move |s, _| fold(Sum::of(s)))),
        ("sum      raw", Box::new(move |s, _| fold(heddle_digest::sum(s)))),
        ("crc+sum  crc32c, Sum::of", Box::new(move |s, _| crc32c::crc32c(s) ^ fold(Sum::of(s)))),
        ("crc+sum  crc-fast, Sum::of", Box::new(move |s, _| crc_fast_crc(s) ^ fold(Sum::of(s)))),
        (
            "crc+sum  heddle_digest::digest",
            Box::new(move |s, _| {
                // SAFETY: a slice is valid for reads of its length.
                let (c, sum) = unsafe { heddle_digest::digest(s.as_ptr(), s.len(), 0) };
                c ^ fold(sum)
            }),
        ),
        (
            "copy     memcpy",
            Box::new(|s, d| {
                d.copy_from_slice(s);
                0
            }),
        ),
        (
            "copy+crc memcpy, crc-fast",
            Box::new(move |s, d| {
                d.copy_from_slice(s);
                crc_fast_crc(d)
            }),
        ),
        (
            "copy+crc memcpy, raw crc",
            Box::new(|s, d| {
                d.copy_from_slice(s);
                heddle_digest::crc32c_append(0, d)
            }),
        ),
        (
            "copy+sum heddle_digest::gather_sum",
            // SAFETY: `s` is as long as `d`; slices do not overlap.
            Box::new(move |s, d| fold(unsafe { heddle_digest::gather_sum(s.as_ptr(), d) })),
        ),
        (
            "copy+crc+sum heddle_digest::gather_digest",
            Box::new(move |s, d| {
                // SAFETY: as above.
                let (c, sum) = unsafe { heddle_digest::gather_digest(s.as_ptr(), d, 0) };
                c ^ fold(sum)
            }),
        ),
    ];

    println!("chosen here: {}", heddle_digest::implementation());
    print!("{:32}", "GB/s at bytes");
    SIZES.iter().for_each(|s| print!("{s:>9}"));
    println!();
    let mut table = vec![Vec::new(); all.len()];
    for size in SIZES {
        let src: Vec<u8> = (0..size).map(|i| (i * 7 % 251) as u8).collect();
        let mut dst = vec![0u8; size];
        let turns = (4 << 20) / size;
        let mut times = vec![Vec::new(); all.len()];
        for _ in 0..ROUNDS {
            for ((_, run), times) in all.iter_mut().zip(&mut times) {
                let start = Instant::now();
                for _ in 0..turns {
                    black_box(run(black_box(&src), black_box(&mut dst)));
                }
                times.push(start.elapsed().as_secs_f64());
            }
        }
        for (times, row) in times.iter_mut().zip(&mut table) {
            times.sort_by(f64::total_cmp);
            row.push((size * turns) as f64 / times[ROUNDS / 2] / 1e9);
        }
    }
    for ((name, _), row) in all.iter().zip(&table) {
        print!("{name:32}");
        row.iter().for_each(|v| print!("{v:>9.1}"));
        println!();
    }
}
