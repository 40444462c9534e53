//! Copies and digests of registered memory, through raw pointers.
//!
//! The one file that moves bytes between registered memory and ordinary slices. The peer, the
//! application and the NIC may write registered memory at any time, so nothing here forms a
//! `&[u8]` on it: each byte is loaded once, and what was loaded is what is copied, summed and
//! CRC'd. A racing write yields a mixture of old and new bytes, and a digest that belongs to that
//! mixture; it cannot lead to an access out of bounds.
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

use std::sync::atomic::{AtomicU64, Ordering};

use heddle_base::Sum;
use heddle_iwarp::rdmap::AtomicOp;

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

/// Carries out `op` on the 64 bits at `at`, in one step for all who use atomic instructions on them,
/// in this process or another; what was there before.
///
/// # Safety
/// `at` is valid for reads and writes of 8 bytes, and a multiple of 8.
#[inline]
pub unsafe fn atomic(at: *mut u8, op: AtomicOp) -> u64 {
    // SAFETY: valid and aligned, by the caller.
    let cell = unsafe { AtomicU64::from_ptr(at.cast()) };
    if let AtomicOp::FetchAdd { add, mask: 0 } = op {
        return cell.fetch_add(add, Ordering::SeqCst);
    }
    let update = |v| Some(op.apply(v)).filter(|new| *new != v);
    cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update).unwrap_or_else(|v| v)
}

/// CRC-32C, continued from `crc`, and Internet checksum of `len` bytes, in one pass.
///
/// # Safety
/// `src` is valid for reads of `len` bytes.
#[inline]
pub unsafe fn digest(src: *const u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: passed on; no destination is used.
    unsafe { (crc::kernels().digest)(src, std::ptr::null_mut(), len, crc) }
}

/// Copies `src` to `dst` and continues the CRC-32C `crc` over it, in one pass.
///
/// # Safety
/// `dst` is valid for writes of `src.len()` bytes, and does not overlap `src`.
#[inline]
pub unsafe fn copy_crc(dst: *mut u8, src: &[u8], crc: u32) -> u32 {
    // SAFETY: passed on; `src` is a reference.
    unsafe { (crc::kernels().copy_crc)(src.as_ptr(), dst, src.len(), crc) }.0
}

/// As [`copy_crc`], with the Internet checksum of the bytes as well.
///
/// # Safety
/// As [`copy_crc`].
#[inline]
pub unsafe fn copy_digest(dst: *mut u8, src: &[u8], crc: u32) -> (u32, Sum) {
    // SAFETY: passed on; `src` is a reference.
    unsafe { (crc::kernels().copy_digest)(src.as_ptr(), dst, src.len(), crc) }
}

/// As [`copy_crc`], from memory that is no reference (an external segment).
///
/// # Safety
/// `src` and `dst` are valid for reads and writes of `len` bytes and do not overlap.
#[inline]
pub unsafe fn copy_crc_raw(dst: *mut u8, src: *const u8, len: usize, crc: u32) -> u32 {
    // SAFETY: passed on.
    unsafe { (crc::kernels().copy_crc)(src, dst, len, crc) }.0
}

/// As [`copy_digest`], from memory that is no reference: each byte is loaded once, and what was
/// loaded is what is stored and digested.
///
/// # Safety
/// `src` is valid for reads of `dst.len()` bytes, and does not overlap `dst`.
#[inline]
pub unsafe fn gather_digest(src: *const u8, dst: &mut [u8], crc: u32) -> (u32, Sum) {
    // SAFETY: passed on; `dst` is a reference, valid for writes of its length.
    unsafe { (crc::kernels().copy_digest)(src, dst.as_mut_ptr(), dst.len(), crc) }
}

/// Continues the CRC-32C `crc` over `bytes`.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: a reference is valid for reads of its length; no destination is used.
    unsafe { (crc::kernels().crc)(bytes.as_ptr(), std::ptr::null_mut(), bytes.len(), crc) }.0
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
