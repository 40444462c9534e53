//! Copies and digests of registered memory, through raw pointers.
//!
//! The one file that moves bytes between registered memory and ordinary slices. The peer, the
//! application and the NIC may write registered memory at any time, so nothing here forms a
//! `&[u8]` on it. What is copied is loaded once, and its digest is of what was stored at the
//! destination, which is ours alone: a racing write yields a mixture of old and new bytes, and a
//! digest that belongs to that mixture. Where nothing is copied, CRC and checksum may be of two
//! different mixtures; they are then of bytes that somebody else reads anew in any case. Nothing of
//! this can lead to an access out of bounds.
//!
//! CRC-32C is the Castagnoli CRC with the usual reflection and inversion; `crc` arguments and
//! results are finished values, so that `crc32c_append(crc32c_append(0, a), b)` is the CRC of `a`
//! followed by `b`, as in the `crc32c` crate.
//!
//! # Which loop, and why
//! Own loops, because no crate computes CRC and checksum, or CRC and copy, in one pass, nor reads
//! through raw pointers. Chosen once per process: AVX-512 with VPCLMULQDQ folding, else SSE4.2 in
//! three lanes, else the `crc32c` crate by blocks. On a Sapphire Rapids Xeon at about 3 GHz, GB/s
//! with buffers in the cache (`cargo run --release -p heddle-verbs --example digest`):
//!
//! | bytes                               |   64 |  512 | 1442 | 8938 | 65536 |
//! |-------------------------------------|-----:|-----:|-----:|-----:|------:|
//! | CRC, `crc32c` 0.6.9                 |  8.7 | 20.4 | 14.9 | 21.6 |  25.6 |
//! | CRC, `crc-fast` 1.10                | 10.8 | 50.3 | 56.5 | 90.4 |  90.7 |
//! | CRC, AVX-512 here                   | 12.8 | 60.9 | 73.3 | 90.1 |  77.9 |
//! | CRC, SSE4.2 here                    | 10.4 | 26.7 | 26.0 | 28.1 |  27.7 |
//! | CRC + sum, `crc-fast`, `Sum::of`    |  7.4 | 15.5 | 14.7 | 24.3 |  25.2 |
//! | CRC + sum, AVX-512 here             | 10.2 | 35.3 | 42.6 | 51.3 |  54.5 |
//! | CRC + sum, SSE4.2 here              |  8.2 | 16.5 | 17.3 | 25.2 |  25.3 |
//! | copy + CRC, `memcpy`, `crc-fast`    |  5.1 | 14.6 | 19.5 | 55.9 |  28.3 |
//! | copy + CRC, AVX-512 here            | 10.4 | 50.5 | 59.6 | 62.3 |  29.2 |
//! | copy + CRC, SSE4.2 here             | 10.7 | 25.9 | 22.0 | 26.7 |  21.7 |

use heddle_base::Sum;

use super::crc;

/// Copies `src` to `dst`.
///
/// # Safety
/// `dst` is valid for writes of `src.len()` bytes, and does not overlap `src`.
#[inline]
pub unsafe fn place(dst: *mut u8, src: &[u8]) {
    // SAFETY: both ranges are valid and apart, by the caller and because `src` is a reference.
    unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) }
}

/// Copies from `src` into `dst`.
///
/// # Safety
/// `src` is valid for reads of `dst.len()` bytes, and does not overlap `dst`.
#[inline]
pub unsafe fn gather(src: *const u8, dst: &mut [u8]) {
    // SAFETY: both ranges are valid and apart, by the caller and because `dst` is a reference.
    unsafe { std::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) }
}

/// One byte, loaded each time this is called: the compiler may not reuse an earlier one.
///
/// # Safety
/// `src` is valid for a read of one byte.
#[inline]
pub unsafe fn load(src: *const u8) -> u8 {
    // SAFETY: valid, by the caller.
    unsafe { std::ptr::read_volatile(src) }
}

/// Fills `len` bytes with zeros.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes.
#[inline]
pub unsafe fn zero(dst: *mut u8, len: usize) {
    // SAFETY: valid, by the caller.
    unsafe { std::ptr::write_bytes(dst, 0, len) }
}

/// CRC-32C, continued from `crc`, and Internet checksum of `len` bytes, in one pass.
///
/// # Safety
/// `src` is valid for reads of `len` bytes.
#[inline]
pub unsafe fn digest(src: *const u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: passed on.
    unsafe { (crc::kernels().digest)(src, len, crc) }
}

/// The Internet checksum of `len` bytes.
///
/// # Safety
/// `src` is valid for reads of `len` bytes.
#[inline]
pub unsafe fn sum_at(src: *const u8, len: usize) -> Sum {
    // SAFETY: passed on.
    unsafe { (crc::kernels().sum)(src, len) }
}

/// As [`gather`], with the Internet checksum of the bytes copied.
///
/// # Safety
/// As [`gather`].
#[inline]
pub unsafe fn gather_sum(src: *const u8, dst: &mut [u8]) -> Sum {
    // SAFETY: passed on; `dst` is a reference, valid for its length and nobody else's.
    unsafe { (crc::kernels().copy_sum)(src, dst.as_mut_ptr(), dst.len()) }
}

/// As [`gather_sum`], and continues the CRC-32C `crc` over the bytes copied.
///
/// # Safety
/// As [`gather`].
#[inline]
pub unsafe fn gather_digest(src: *const u8, dst: &mut [u8], crc: u32) -> (u32, Sum) {
    // SAFETY: passed on; `dst` is a reference, valid for its length and nobody else's.
    unsafe { (crc::kernels().copy_digest)(src, dst.as_mut_ptr(), dst.len(), crc) }
}

/// Continues the CRC-32C `crc` over `bytes`.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: a reference is valid for reads of its length.
    unsafe { (crc::kernels().crc)(bytes.as_ptr(), bytes.len(), crc) }
}

/// The Internet checksum of `bytes`.
#[inline]
pub fn sum(bytes: &[u8]) -> Sum {
    if bytes.len() <= Sum::SHORT {
        return Sum::of_short(bytes);
    }
    // SAFETY: a reference is valid for reads of its length.
    unsafe { (crc::kernels().sum)(bytes.as_ptr(), bytes.len()) }
}

/// Name of the code chosen for this processor, for reports.
pub fn implementation() -> &'static str {
    crc::kernels().name
}
