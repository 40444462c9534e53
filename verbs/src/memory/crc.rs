//! The loops behind [`crate::memory::raw`]: one generic body per instruction set, chosen at run
//! time.
//!
//! A source that others write meanwhile is read as [`crate::memory::raw`] tells.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(target_arch = "x86_64")]
mod sse42;

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::compiler_fence;
use std::sync::OnceLock;

use heddle_base::Sum;

/// The Internet checksum.
///
/// # Safety
/// `src` is valid for reads of `len` bytes.
type SumKernel = unsafe fn(src: *const u8, len: usize) -> Sum;

/// CRC-32C, continued from `crc`.
///
/// # Safety
/// As [`SumKernel`].
type CrcKernel = unsafe fn(src: *const u8, len: usize, crc: u32) -> u32;

/// Both of them.
///
/// # Safety
/// As [`SumKernel`].
type DigestKernel = unsafe fn(src: *const u8, len: usize, crc: u32) -> (u32, Sum);

/// Copies, and gives the checksum of what was copied.
///
/// # Safety
/// `src` is valid for reads of `len` bytes, `dst` for writes and reads; they do not overlap, and
/// nobody else writes to `dst` meanwhile: what was stored there may be read back for the digest.
type CopySumKernel = unsafe fn(src: *const u8, dst: *mut u8, len: usize) -> Sum;

/// As [`CopySumKernel`], with the CRC as well.
///
/// # Safety
/// As [`CopySumKernel`].
type CopyDigestKernel = unsafe fn(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> (u32, Sum);

pub(crate) struct Kernels {
    pub(crate) name: &'static str,
    pub(crate) sum: SumKernel,
    pub(crate) crc: CrcKernel,
    pub(crate) digest: DigestKernel,
    pub(crate) copy_sum: CopySumKernel,
    pub(crate) copy_digest: CopyDigestKernel,
}

static CHOSEN: OnceLock<&'static Kernels> = OnceLock::new();

/// The fastest kernels this processor has.
#[inline]
pub(crate) fn kernels() -> &'static Kernels {
    CHOSEN.get_or_init(|| available().last().copied().unwrap_or(&portable::KERNELS))
}

/// All kernels this processor has, slowest first.
pub(crate) fn available() -> Vec<&'static Kernels> {
    #[allow(unused_mut, reason = "other architectures have one")]
    let mut all = vec![&portable::KERNELS];
    #[cfg(target_arch = "x86_64")]
    {
        if sse42::is_available() {
            all.push(&sse42::KERNELS);
            if avx2::is_available() {
                all.push(&avx2::KERNELS);
                if avx512::is_available() {
                    all.push(&avx512::KERNELS);
                }
            }
        }
    }
    all
}

/// What the compiler makes of a loop.
///
/// # Safety
/// As [`SumKernel`].
unsafe fn plain_sum(src: *const u8, len: usize) -> Sum {
    // SAFETY: by the caller. Bytes of a received frame; see the module about external segments.
    Sum::of(unsafe { std::slice::from_raw_parts(src, len) })
}

/// The sum of native-endian words in less than 32 bytes, what is left behind the vectors; copied
/// when COPY.
///
/// # Safety
/// `src` is valid for reads of `len` bytes, and `dst` for writes when COPY.
#[inline(always)]
unsafe fn short_sum<const COPY: bool>(mut src: *const u8, mut dst: *mut u8, len: usize) -> u64 {
    debug_assert!(len < 32);
    let mut sum = 0;
    // SAFETY: as many bytes are taken as the bits of `len` say.
    unsafe {
        if len & 16 != 0 {
            sum = piece::<COPY, u64>(&mut src, &mut dst);
            sum = add_carry(sum, piece::<COPY, u64>(&mut src, &mut dst));
        }
        if len & 8 != 0 {
            sum = add_carry(sum, piece::<COPY, u64>(&mut src, &mut dst));
        }
        // Each piece starts at an even offset, which is all the sum asks.
        if len & 4 != 0 {
            sum = add_carry(sum, u64::from(piece::<COPY, u32>(&mut src, &mut dst)));
        }
        if len & 2 != 0 {
            sum = add_carry(sum, u64::from(piece::<COPY, u16>(&mut src, &mut dst)));
        }
        if len & 1 != 0 {
            sum = add_carry(sum, u64::from(piece::<COPY, u8>(&mut src, &mut dst)));
        }
    }
    sum
}

/// Takes a `T` off the front of `src`, and of `dst` when COPY.
///
/// # Safety
/// `src` is valid for that many bytes, and `dst` when COPY.
#[inline(always)]
unsafe fn piece<const COPY: bool, T: Copy>(src: &mut *const u8, dst: &mut *mut u8) -> T {
    // SAFETY: by the caller; unaligned accesses of a plain number.
    unsafe {
        let v = src.cast::<T>().read_unaligned();
        *src = src.add(size_of::<T>());
        if COPY {
            // What is copied and what is digested is of one load.
            compiler_fence(SeqCst);
            dst.cast::<T>().write_unaligned(v);
            *dst = dst.add(size_of::<T>());
        }
        v
    }
}

/// Folds a sum of native-endian words, with end-around carry, to what [`Sum`] holds.
#[inline]
fn fold(v: u64) -> Sum {
    Sum::from_folded(u16::from_be(Sum::of_numbers(v).folded()))
}

/// The low half: a CRC in the 64-bit register the instruction uses.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the instruction clears the high half")]
fn low32(v: u64) -> u32 {
    v as u32
}

/// One's complement addition.
#[inline]
fn add_carry(a: u64, b: u64) -> u64 {
    let (s, carry) = a.overflowing_add(b);
    s + u64::from(carry)
}

/// x^n modulo the Castagnoli polynomial, bit-reflected.
const fn x_pow(n: u32) -> u32 {
    times_x_pow(0x8000_0000, n)
}

/// `v` times x^n modulo the same.
const fn times_x_pow(mut v: u32, n: u32) -> u32 {
    let mut i = 0;
    while i < n {
        v = (v >> 1) ^ (if v & 1 != 0 { 0x82f6_3b78 } else { 0 });
        i += 1;
    }
    v
}

#[cfg(test)]
mod tests;
