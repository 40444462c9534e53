//! The loops behind the crate's functions: one generic body per instruction set, chosen at run time.
//!
//! The crate's documentation says how the loops read a source that others write meanwhile.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
mod portable;

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::compiler_fence;
use std::sync::OnceLock;

use heddle_base::Sum;

/// Returns the Internet checksum.
///
/// # Safety
/// `src` is valid for reads of `len` bytes.
type SumKernel = unsafe fn(src: *const u8, len: usize) -> Sum;

/// Returns the CRC-32C, continued from `crc`.
///
/// # Safety
/// As [`SumKernel`].
type CrcKernel = unsafe fn(src: *const u8, len: usize, crc: u32) -> u32;

/// Returns CRC-32C and Internet checksum.
///
/// # Safety
/// As [`SumKernel`].
type DigestKernel = unsafe fn(src: *const u8, len: usize, crc: u32) -> (u32, Sum);

/// Copies, and returns the checksum of the bytes copied.
///
/// # Safety
/// `src` is valid for reads of `len` bytes, `dst` for writes and reads; they do not overlap, and no
/// other code writes to `dst` meanwhile: the kernel may read the stored bytes back for the digest.
type CopySumKernel = unsafe fn(src: *const u8, dst: *mut u8, len: usize) -> Sum;

/// As [`CopySumKernel`], with the CRC as well.
///
/// # Safety
/// As [`CopySumKernel`].
type CopyDigestKernel = unsafe fn(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> (u32, Sum);

/// As [`CopySumKernel`], with the CRC instead of the checksum.
///
/// # Safety
/// As [`CopySumKernel`].
type CopyCrcKernel = unsafe fn(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> u32;

/// Copies to `dst` after its first `head` bytes, which are there already, and if `also` is not null,
/// to the same place there. Returns the CRC of the `head + len` bytes at `dst`.
///
/// # Safety
/// As [`CopySumKernel`], for `head + len` bytes at `dst`, and at `also` unless that is null; `dst` and
/// `also` do not overlap.
type CopyFramedKernel =
    unsafe fn(src: *const u8, dst: *mut u8, also: *mut u8, head: usize, len: usize) -> u32;

pub(crate) struct Kernels {
    pub(crate) name: &'static str,
    pub(crate) sum: SumKernel,
    pub(crate) crc: CrcKernel,
    pub(crate) digest: DigestKernel,
    pub(crate) copy_sum: CopySumKernel,
    pub(crate) copy_digest: CopyDigestKernel,
    pub(crate) copy_crc: CopyCrcKernel,
    pub(crate) copy_framed: CopyFramedKernel,
}

static CHOSEN: OnceLock<&'static Kernels> = OnceLock::new();

/// Returns the fastest kernels of this processor.
#[inline]
pub(crate) fn kernels() -> &'static Kernels {
    CHOSEN.get_or_init(|| available().last().copied().unwrap_or(&portable::KERNELS))
}

/// Returns all kernels of this processor, slowest first.
pub(crate) fn available() -> Vec<&'static Kernels> {
    #[allow(unused_mut, reason = "other architectures have one")]
    let mut all = vec![&portable::KERNELS];
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if lanes::is_available() {
        all.push(&lanes::KERNELS);
        #[cfg(target_arch = "x86_64")]
        if avx2::is_available() {
            all.push(&avx2::KERNELS);
            if avx512::is_available() {
                all.push(&avx512::KERNELS);
            }
        }
    }
    all
}

/// Makes a kernel for headers and payload of those for either.
///
/// # Safety
/// As [`CopyFramedKernel`], and as both kernels.
#[inline(always)]
unsafe fn framed(
    (crc, copy_crc): (CrcKernel, CopyCrcKernel),
    src: *const u8,
    (dst, also): (*mut u8, *mut u8),
    (head, len): (usize, usize),
) -> u32 {
    // SAFETY: by the caller; nothing else writes to `dst`, so `also` gets the same bytes.
    unsafe {
        let start = crc(dst, head, 0);
        let crc = copy_crc(src, dst.add(head), len, start);
        if !also.is_null() {
            std::ptr::copy_nonoverlapping(dst.add(head), also.add(head), len);
        }
        crc
    }
}

/// Returns the sum of native-endian words in less than 32 bytes, the rest after the vectors; copies
/// the bytes when COPY.
///
/// # Safety
/// `src` is valid for reads of `len` bytes, and `dst` for writes when COPY.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn short_sum<const COPY: bool>(mut src: *const u8, mut dst: *mut u8, len: usize) -> u64 {
    debug_assert!(len < 32);
    let mut sum = 0;
    // SAFETY: takes as many bytes as the bits of `len` say.
    unsafe {
        if len & 16 != 0 {
            sum = piece::<COPY, u64>(&mut src, &mut dst);
            sum = add_carry(sum, piece::<COPY, u64>(&mut src, &mut dst));
        }
        if len & 8 != 0 {
            sum = add_carry(sum, piece::<COPY, u64>(&mut src, &mut dst));
        }
        // Each piece starts at an even offset, which is all that the sum needs.
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
            // The fence keeps copy and digest on a single load.
            compiler_fence(SeqCst);
            dst.cast::<T>().write_unaligned(v);
            *dst = dst.add(size_of::<T>());
        }
        v
    }
}

/// Folds a sum of native-endian words, with end-around carry, to a [`Sum`].
#[inline]
fn fold(v: u64) -> Sum {
    Sum::from_folded(u16::from_be(Sum::of_numbers(v).folded()))
}

/// Returns the low half: a CRC in the 64-bit register that the instruction uses.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the instruction clears the high half")]
fn low32(v: u64) -> u32 {
    v as u32
}

/// Adds in one's complement.
#[inline]
fn add_carry(a: u64, b: u64) -> u64 {
    let (s, carry) = a.overflowing_add(b);
    s + u64::from(carry)
}

/// Returns x^n modulo the Castagnoli polynomial, bit-reflected.
const fn x_pow(n: u32) -> u32 {
    times_x_pow(0x8000_0000, n)
}

/// Returns `v` times x^n modulo the same polynomial.
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
