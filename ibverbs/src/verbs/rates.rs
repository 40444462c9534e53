//! Converts rates of InfiniBand's static rate control between their codes, multiples of 2.5 Gbit/s,
//! and Mbit/s.

use std::ffi::c_int;

/// Code, multiple of 2.5 Gbit/s (-1 if the rate is not a multiple), Mbit/s.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, -1, 14_062),
    (12, -1, 56_250),
    (13, -1, 112_500),
    (14, -1, 168_750),
    (15, -1, 25_781),
    (16, -1, 103_125),
    (17, -1, 206_250),
    (18, -1, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

fn find(
    key: impl Fn(&(c_int, c_int, c_int)) -> bool,
    value: impl Fn(&(c_int, c_int, c_int)) -> c_int,
    none: c_int,
) -> c_int {
    RATES.iter().find(|rate| key(rate)).map_or(none, value)
}

/// Returns the multiple of 2.5 Gbit/s of a code; -1 for a code that has none.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    find(|r| r.0 == rate, |r| r.1, -1)
}

/// Returns the code of a multiple of 2.5 Gbit/s; 0, the code of "as fast as it goes", if there is
/// none.
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    find(|r| mult > 0 && r.1 == mult, |r| r.0, 0)
}

/// Returns the Mbit/s of a code; -1 for a code that has none.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    find(|r| r.0 == rate, |r| r.2, -1)
}

/// Returns the code of a rate in Mbit/s; 0, the code of "as fast as it goes", if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    find(|r| r.2 == mbps, |r| r.0, 0)
}
