//! The loops behind [`crate::memory::raw`]: one generic body per instruction set, chosen at run time.
//!
//! Every kernel takes source, destination (used by the copying ones only), length and CRC.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(target_arch = "x86_64")]
mod sse42;

use std::sync::OnceLock;

use heddle_base::Sum;

/// # Safety
/// `src` is valid for reads of `len` bytes; a copying kernel's `dst` is valid for writes of `len`
/// bytes that do not overlap them.
pub(crate) type Kernel =
    unsafe fn(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> (u32, Sum);

/// The Internet checksum alone.
///
/// # Safety
/// `src` is valid for reads of `len` bytes.
pub(crate) type SumKernel = unsafe fn(src: *const u8, len: usize) -> Sum;

pub(crate) struct Kernels {
    pub(crate) name: &'static str,
    pub(crate) sum: SumKernel,
    pub(crate) crc: Kernel,
    pub(crate) digest: Kernel,
    pub(crate) copy_crc: Kernel,
    pub(crate) copy_digest: Kernel,
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
            if avx512::is_available() {
                all.push(&avx512::KERNELS);
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
    let mut v = 0x8000_0000u32;
    let mut i = 0;
    while i < n {
        v = (v >> 1) ^ (if v & 1 != 0 { 0x82f6_3b78 } else { 0 });
        i += 1;
    }
    v
}

#[cfg(test)]
mod tests;
