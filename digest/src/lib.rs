//! Copies, CRC-32C and the Internet checksum of memory that others may write, through raw pointers.
//!
//! This is the one room that moves bytes between registered memory and ordinary slices, and between
//! regions. The peer, the application and the NIC may write registered memory at any time, so no
//! code here forms a `&[u8]` on it. A copy loads each byte once, and its digest is that of the
//! bytes stored at the destination, which is ours alone: a racing write yields a mixture of old and
//! new bytes, and a digest that belongs to that mixture. Without a copy, CRC and checksum may
//! belong to two different mixtures; in that case another reader reads the bytes anew anyway. None
//! of this can lead to an access out of bounds.
//!
//! CRC-32C is the Castagnoli CRC with the usual reflection and inversion; `crc` arguments and
//! results are finished values, so that `crc32c_append(crc32c_append(0, a), b)` is the CRC of `a`
//! followed by `b`, as in the `crc32c` crate.
//!
//! # Which loop, and why
//! This crate has its own loops, because no other computes CRC and checksum, or either and a copy,
//! in one pass, nor reads through raw pointers. The crate chooses a loop once per process: AVX-512
//! with VPCLMULQDQ folding, else AVX2 with SSE4.2's `crc32` in three lanes, else the latter alone,
//! else the `crc32c` crate by blocks; on 64-bit Arm, the instructions for CRC-32C in three lanes, else
//! that crate. Nothing was measured on Arm. The table shows GB/s on a Sapphire Rapids Xeon at about 3 GHz
//! with buffers in the cache (`cargo run --release -p heddle-digest --example digest`). The example
//! measures the loops that its processor chooses; the rows of AVX2 and SSE4.2 come from builds that
//! choose these loops, and not all rows come from one run. The machine was shared: trust the order
//! of the rows, not their digits.
//!
//! | bytes                               |   64 |  512 | 1442 | 8938 | 65536 |
//! |-------------------------------------|-----:|-----:|-----:|-----:|------:|
//! | CRC, `crc32c` 0.6.9                 |  8.7 | 20.4 | 14.9 | 21.6 |  25.6 |
//! | CRC, `crc-fast` 1.10                | 10.8 | 50.3 | 56.5 | 90.4 |  90.7 |
//! | CRC, AVX-512 here                   |  9.9 | 54.2 | 72.3 | 86.5 |  69.3 |
//! | CRC, AVX2 here                      | 12.8 | 21.0 | 22.3 | 22.7 |  20.8 |
//! | CRC, SSE4.2 here                    |  8.5 | 23.6 | 22.3 | 23.6 |  23.2 |
//! | sum, `Sum::of`                      | 13.0 | 30.7 | 31.3 | 31.5 |  32.6 |
//! | sum, AVX-512 here                   | 13.2 | 59.1 | 80.0 | 95.1 |  68.2 |
//! | sum, AVX2 here                      | 12.8 | 48.6 | 66.7 | 80.0 |  55.9 |
//! | CRC + sum, `crc-fast`, `Sum::of`    |  5.9 | 13.9 | 14.4 | 22.1 |  22.8 |
//! | CRC + sum, AVX-512 here             | 10.1 | 36.6 | 47.4 | 56.9 |  55.0 |
//! | CRC + sum, AVX2 here                | 10.7 | 19.9 | 22.2 | 22.5 |  20.2 |
//! | CRC + sum, SSE4.2 here              |  8.0 | 16.2 | 15.3 | 21.5 |  22.6 |
//! | copy + CRC + sum, AVX-512 here      |  8.6 | 26.0 | 43.6 | 53.5 |  32.7 |
//! | copy + CRC + sum, AVX2 here         |  8.9 | 13.1 | 21.6 | 22.5 |  17.0 |
//! | copy + CRC + sum, SSE4.2 here       |  7.4 | 16.6 | 15.3 | 21.5 |  13.7 |
//! | copy + sum, AVX-512 here            | 12.4 | 30.4 | 62.2 | 64.6 |  32.2 |
//! | copy + sum, AVX2 here               |  8.8 | 26.4 | 51.6 | 66.7 |  23.9 |

mod kernels;

use std::sync::atomic::{AtomicU8, Ordering, fence};

use heddle_base::Sum;

use kernels::kernels;

/// Copies `src` to `dst`. The last byte is stored once, after all others.
///
/// A program that polls the last byte takes its change to mean that the whole RDMA Write has
/// arrived, as `ib_write_lat` does, and may write its answer to the same memory at once, as
/// `riostream` does. A `memcpy` may store any byte twice and in any order: a `memcpy` with
/// registers of 64 bytes stores a copy of exactly 64 bytes twice, and the answer may fall in
/// between.
///
/// # Safety
/// `dst` is valid for writes of `src.len()` bytes, and does not overlap `src`.
#[inline]
pub unsafe fn place(dst: *mut u8, src: &[u8]) {
    if src.len() == WORD {
        // SAFETY: both are valid for a word, by the caller and because `src` is a reference.
        return unsafe { store_word(dst, src.as_ptr()) };
    }
    if let Some((last, rest)) = src.split_last() {
        // SAFETY: both ranges are valid and apart, by the caller and because `src` is a reference.
        unsafe {
            std::ptr::copy_nonoverlapping(rest.as_ptr(), dst, rest.len());
            AtomicU8::from_ptr(dst.add(rest.len())).store(*last, Ordering::Release);
        }
    }
}

/// Copies from `src` into `dst`. Copies 8 to 16 bytes without a call, as two words, which may
/// overlap; bytes in both words come from the second load.
///
/// # Safety
/// `src` is valid for reads of `dst.len()` bytes, and does not overlap `dst`.
#[inline]
pub unsafe fn gather(src: *const u8, dst: &mut [u8]) {
    let (len, dst) = (dst.len(), dst.as_mut_ptr());
    // SAFETY: both ranges are valid and apart, by the caller and because `dst` is a reference; the
    // first and the last word lie inside.
    unsafe {
        if (WORD..=2 * WORD).contains(&len) {
            let first = src.cast::<u64>().read_unaligned();
            let last = src.add(len - WORD).cast::<u64>().read_unaligned();
            dst.cast::<u64>().write_unaligned(first);
            dst.add(len - WORD).cast::<u64>().write_unaligned(last);
        } else {
            std::ptr::copy_nonoverlapping(src, dst, len);
        }
    }
}

/// Copies `len` bytes from `src` to `dst`, which may overlap: `dst` then holds the old contents of
/// `src`. Stores the last byte as [`place`] does.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes.
#[inline]
pub unsafe fn transfer(dst: *mut u8, src: *const u8, len: usize) {
    if len == WORD {
        // SAFETY: by the caller.
        return unsafe { store_word(dst, src) };
    }
    if let Some(rest) = len.checked_sub(1) {
        // SAFETY: by the caller; the last byte lies inside, and is loaded before the first is
        // stored.
        unsafe {
            let last = src.add(rest).read();
            std::ptr::copy(src, dst, rest);
            AtomicU8::from_ptr(dst.add(rest)).store(last, Ordering::Release);
        }
    }
}

const WORD: usize = size_of::<u64>();

/// Copies a word by one store, which no processor sees before earlier stores of this thread.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of 8 bytes.
#[inline(always)]
unsafe fn store_word(dst: *mut u8, src: *const u8) {
    // A program may poll a word that a peer writes after its data. x86-64 keeps stores in order, so
    // the fence has no instruction there. `dst` may be unaligned, so no atomic store can do this.
    fence(Ordering::Release);
    // SAFETY: by the caller.
    unsafe { dst.cast::<u64>().write_unaligned(src.cast::<u64>().read_unaligned()) }
}

/// Returns one byte, loaded anew at each call: the compiler may not reuse an earlier load.
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

/// Returns the CRC-32C, continued from `crc`, and the Internet checksum of `len` bytes, in one
/// pass.
///
/// # Safety
/// `src` is valid for reads of `len` bytes.
#[inline]
pub unsafe fn digest(src: *const u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: the caller ensures the kernel's conditions.
    unsafe { (kernels().digest)(src, len, crc) }
}

/// Returns the Internet checksum of `len` bytes.
///
/// # Safety
/// `src` is valid for reads of `len` bytes.
#[inline]
pub unsafe fn sum_at(src: *const u8, len: usize) -> Sum {
    // SAFETY: the caller ensures the kernel's conditions.
    unsafe { (kernels().sum)(src, len) }
}

/// As [`gather`], and returns the Internet checksum of the bytes copied.
///
/// # Safety
/// As [`gather`].
#[inline]
pub unsafe fn gather_sum(src: *const u8, dst: &mut [u8]) -> Sum {
    // SAFETY: the caller ensures the conditions for `src`; `dst` is a reference, valid for its
    // length, and no other code uses it.
    unsafe { (kernels().copy_sum)(src, dst.as_mut_ptr(), dst.len()) }
}

/// As [`gather_sum`], and continues the CRC-32C `crc` over the bytes copied.
///
/// # Safety
/// As [`gather`].
#[inline]
pub unsafe fn gather_digest(src: *const u8, dst: &mut [u8], crc: u32) -> (u32, Sum) {
    // SAFETY: the caller ensures the conditions for `src`; `dst` is a reference, valid for its
    // length, and no other code uses it.
    unsafe { (kernels().copy_digest)(src, dst.as_mut_ptr(), dst.len(), crc) }
}

/// As [`gather_digest`], without the checksum.
///
/// # Safety
/// As [`gather`].
#[inline]
pub unsafe fn gather_crc(src: *const u8, dst: &mut [u8], crc: u32) -> u32 {
    // SAFETY: the caller ensures the conditions for `src`; `dst` is a reference, valid for its
    // length, and no other code uses it.
    unsafe { (kernels().copy_crc)(src, dst.as_mut_ptr(), dst.len(), crc) }
}

/// Copies from `src` into `dst` after its first `head` bytes, and to the same place in `also`, if
/// there is one. Returns the CRC-32C of all of `dst`. Headers and payload need one call, not one
/// each.
///
/// # Safety
/// `src` is valid for reads of as many bytes as `dst` has after `head`, and overlaps neither `dst` nor
/// `also`.
///
/// # Panics
/// If `dst` is shorter than `head`, or `also` shorter than `dst`.
#[inline]
pub unsafe fn gather_framed(
    src: *const u8,
    head: usize,
    dst: &mut [u8],
    also: Option<&mut [u8]>,
) -> u32 {
    let all = dst.len();
    assert!(head <= all && also.as_ref().is_none_or(|a| a.len() >= all), "lengths");
    let also = also.map_or(std::ptr::null_mut(), <[u8]>::as_mut_ptr);
    // SAFETY: the caller ensures the conditions for `src`; `dst` and `also` are references to
    // different memory, which no other code uses, and long enough, as just checked.
    unsafe { (kernels().copy_framed)(src, dst.as_mut_ptr(), also, head, all - head) }
}

/// Continues the CRC-32C `crc` over `bytes`.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: a reference is valid for reads of its length.
    unsafe { (kernels().crc)(bytes.as_ptr(), bytes.len(), crc) }
}

/// Returns the Internet checksum of `bytes`.
#[inline]
pub fn sum(bytes: &[u8]) -> Sum {
    if bytes.len() <= Sum::SHORT {
        return Sum::of_short(bytes);
    }
    // SAFETY: a reference is valid for reads of its length.
    unsafe { (kernels().sum)(bytes.as_ptr(), bytes.len()) }
}

/// Returns the name of the code chosen for this processor, for reports.
pub fn implementation() -> &'static str {
    kernels().name
}

#[cfg(test)]
mod tests;
