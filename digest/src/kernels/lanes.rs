//! An instruction for CRC-32C in three interleaved lanes, joined by carry-less multiplication: `crc32`
//! of SSE4.2 on x86-64, `crc32c` on 64-bit Arm.
//!
//! The instruction takes two or three cycles, and the processor can start one each cycle: three
//! lanes keep it busy. A multiplication by x^(8 * bytes) moves a lane's CRC over the bytes after it.
//! The product of two reflected 32-bit polynomials, read as 64 bits, is one power too high, and
//! reducing it with the instruction adds 32 more, so the constant is x^(8 * bytes - 33).

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::compiler_fence;

use heddle_base::Sum;

use super::{Kernels, add_carry, fold, framed, low32, piece, portable, x_pow};
pub(super) use instructions::multiply;
use instructions::{crc_u8, crc_u16, crc_u32, crc_u64};

pub(crate) static KERNELS: Kernels = Kernels {
    name: instructions::NAME,
    sum: portable::sum,
    crc,
    digest,
    copy_sum: portable::copy_sum,
    copy_digest,
    copy_crc,
    copy_framed,
};

pub(super) fn is_available() -> bool {
    instructions::are_available()
}

/// Bytes per lane: long for large buffers, short for the rest of a buffer.
const LONG: u32 = 1024;
const SHORT: u32 = 128;
/// Bytes of three lanes.
const LONG3: usize = 3 * LONG as usize;
const SHORT3: usize = 3 * SHORT as usize;

const fn shift(bytes: u32) -> u32 {
    x_pow(8 * bytes - 33)
}

/// # Safety
/// As for [`super::CrcKernel`]; and the processor has the instructions.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2,pclmulqdq"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc,aes"))]
unsafe fn crc(src: *const u8, len: usize, crc: u32) -> u32 {
    // SAFETY: by the caller; no destination is used.
    !unsafe { update::<false, false>(src, std::ptr::null_mut(), len, !crc) }.0
}

/// # Safety
/// As for [`super::DigestKernel`]; and the processor has the instructions.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2,pclmulqdq"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc,aes"))]
unsafe fn digest(src: *const u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: by the caller; no destination is used.
    let (crc, sum) = unsafe { update::<false, true>(src, std::ptr::null_mut(), len, !crc) };
    (!crc, fold(sum))
}

/// # Safety
/// As for [`super::CopyDigestKernel`]; and the processor has the instructions.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2,pclmulqdq"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc,aes"))]
unsafe fn copy_digest(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: by the caller.
    let (crc, sum) = unsafe { update::<true, true>(src, dst, len, !crc) };
    (!crc, fold(sum))
}

/// # Safety
/// As for [`super::CopyCrcKernel`]; and the processor has the instructions.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2,pclmulqdq"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc,aes"))]
unsafe fn copy_crc(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> u32 {
    // SAFETY: by the caller.
    !unsafe { update::<true, false>(src, dst, len, !crc) }.0
}

/// # Safety
/// As for [`super::CopyFramedKernel`]; and the processor has the instructions.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2,pclmulqdq"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc,aes"))]
unsafe fn copy_framed(src: *const u8, dst: *mut u8, also: *mut u8, head: usize, len: usize) -> u32 {
    // SAFETY: by the caller.
    unsafe { framed((crc, copy_crc), src, (dst, also), (head, len)) }
}

/// Continues a raw (inverted) CRC; also returns the sum of native-endian words.
///
/// # Safety
/// The processor has the instructions; `src` is valid for reads of `len` bytes, and `dst` for
/// writes when COPY.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2,pclmulqdq"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc,aes"))]
pub(super) unsafe fn update<const COPY: bool, const SUM: bool>(
    mut src: *const u8,
    mut dst: *mut u8,
    mut len: usize,
    crc: u32,
) -> (u32, u64) {
    let (mut crc, mut sum) = (u64::from(crc), 0);
    // SAFETY: takes a block only while `len`, the bytes left at `src` and `dst`, covers it.
    unsafe {
        while len >= LONG3 {
            let k = const { (shift(2 * LONG), shift(LONG)) };
            (crc, sum) = three::<COPY, SUM, LONG>(src, dst, crc, sum, k);
            src = src.add(LONG3);
            dst = dst.wrapping_add(LONG3);
            len -= LONG3;
        }
        while len >= SHORT3 {
            let k = const { (shift(2 * SHORT), shift(SHORT)) };
            (crc, sum) = three::<COPY, SUM, SHORT>(src, dst, crc, sum, k);
            src = src.add(SHORT3);
            dst = dst.wrapping_add(SHORT3);
            len -= SHORT3;
        }
        while len >= 8 {
            let w = piece::<COPY, u64>(&mut src, &mut dst);
            crc = crc_u64(crc, w);
            if SUM {
                sum = add_carry(sum, w);
            }
            len -= 8;
        }
        short::<COPY, SUM>(src, dst, len, crc, sum)
    }
}

/// Does the same for less than 32 bytes, and continues the sum as well: for the rest after the
/// blocks.
///
/// # Safety
/// As [`update`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc"))]
#[inline]
pub(super) unsafe fn short<const COPY: bool, const SUM: bool>(
    mut src: *const u8,
    mut dst: *mut u8,
    len: usize,
    mut crc: u64,
    mut sum: u64,
) -> (u32, u64) {
    debug_assert!(len < 32);
    // SAFETY: takes as many bytes as the bits of `len` say.
    unsafe {
        if len & 16 != 0 {
            for _ in 0..2 {
                let w = piece::<COPY, u64>(&mut src, &mut dst);
                crc = crc_u64(crc, w);
                if SUM {
                    sum = add_carry(sum, w);
                }
            }
        }
        if len & 8 != 0 {
            let w = piece::<COPY, u64>(&mut src, &mut dst);
            crc = crc_u64(crc, w);
            if SUM {
                sum = add_carry(sum, w);
            }
        }
        let mut c = low32(crc);
        if len & 7 == 0 {
            return (c, sum);
        }
        // Each piece starts at an even offset, which is all that the sum needs.
        if len & 4 != 0 {
            let w = piece::<COPY, u32>(&mut src, &mut dst);
            c = crc_u32(c, w);
            if SUM {
                sum = add_carry(sum, u64::from(w));
            }
        }
        if len & 2 != 0 {
            let w = piece::<COPY, u16>(&mut src, &mut dst);
            c = crc_u16(c, w);
            if SUM {
                sum = add_carry(sum, u64::from(w));
            }
        }
        if len & 1 != 0 {
            let b = piece::<COPY, u8>(&mut src, &mut dst);
            c = crc_u8(c, b);
            if SUM {
                sum = add_carry(sum, u64::from(b));
            }
        }
        (c, sum)
    }
}

/// # Safety
/// `src` is valid for 8 bytes, and `dst` when COPY.
#[inline(always)]
unsafe fn word<const COPY: bool>(src: *const u8, dst: *mut u8) -> u64 {
    // SAFETY: by the caller; unaligned accesses.
    unsafe {
        let w = src.cast::<u64>().read_unaligned();
        if COPY {
            compiler_fence(SeqCst);
            dst.cast::<u64>().write_unaligned(w);
        }
        w
    }
}

/// # Safety
/// As [`update`], for `3 * L` bytes; `k` are the shifts over `2 * L` and `L` bytes.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2,pclmulqdq"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc,aes"))]
#[inline]
unsafe fn three<const COPY: bool, const SUM: bool, const L: u32>(
    src: *const u8,
    dst: *mut u8,
    crc: u64,
    sum: u64,
    k: (u32, u32),
) -> (u64, u64) {
    let (mut a, mut b, mut c) = (crc, 0u64, 0u64);
    let (mut s, mut t, mut u) = (sum, 0u64, 0u64);
    let lane = L as usize;
    let mut i = 0;
    while i < lane {
        // SAFETY: i + 8 <= L, so all three words lie inside 3 * L bytes.
        let (x, y, z) = unsafe {
            (
                word::<COPY>(src.add(i), dst.wrapping_add(i)),
                word::<COPY>(src.add(lane + i), dst.wrapping_add(lane + i)),
                word::<COPY>(src.add(2 * lane + i), dst.wrapping_add(2 * lane + i)),
            )
        };
        a = crc_u64(a, x);
        b = crc_u64(b, y);
        c = crc_u64(c, z);
        if SUM {
            s = add_carry(s, x);
            t = add_carry(t, y);
            u = add_carry(u, z);
        }
        i += 8;
    }
    let moved = multiply(a, k.0) ^ multiply(b, k.1);
    (crc_u64(0, moved) ^ c, add_carry(s, add_carry(t, u)))
}

#[cfg(target_arch = "x86_64")]
mod instructions {
    use core::arch::x86_64::{_mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64};
    pub(super) use core::arch::x86_64::{
        _mm_crc32_u8 as crc_u8, _mm_crc32_u16 as crc_u16, _mm_crc32_u32 as crc_u32,
        _mm_crc32_u64 as crc_u64,
    };

    pub(super) const NAME: &str = "sse4.2";

    pub(super) fn are_available() -> bool {
        is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")
    }

    /// Returns the carry-less product, which the caller still has to reduce.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    #[inline]
    pub(in super::super) fn multiply(crc: u64, k: u32) -> u64 {
        let p = _mm_clmulepi64_si128::<0>(
            _mm_cvtsi64_si128(crc.cast_signed()),
            _mm_cvtsi64_si128(i64::from(k)),
        );
        _mm_cvtsi128_si64(p).cast_unsigned()
    }
}

#[cfg(target_arch = "aarch64")]
mod instructions {
    use core::arch::aarch64::{__crc32cb, __crc32cd, __crc32ch, __crc32cw, vmull_p64};

    use super::low32;

    pub(super) const NAME: &str = "armv8";

    pub(super) fn are_available() -> bool {
        use std::arch::is_aarch64_feature_detected;
        is_aarch64_feature_detected!("crc") && is_aarch64_feature_detected!("aes")
    }

    #[target_feature(enable = "crc")]
    #[inline]
    pub(super) fn crc_u64(crc: u64, v: u64) -> u64 {
        u64::from(__crc32cd(low32(crc), v))
    }

    #[target_feature(enable = "crc")]
    #[inline]
    pub(super) fn crc_u32(crc: u32, v: u32) -> u32 {
        __crc32cw(crc, v)
    }

    #[target_feature(enable = "crc")]
    #[inline]
    pub(super) fn crc_u16(crc: u32, v: u16) -> u32 {
        __crc32ch(crc, v)
    }

    #[target_feature(enable = "crc")]
    #[inline]
    pub(super) fn crc_u8(crc: u32, v: u8) -> u32 {
        __crc32cb(crc, v)
    }

    /// Returns the carry-less product, which the caller still has to reduce.
    #[target_feature(enable = "crc,aes")]
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "a product of 32 bits each has 63")]
    pub(in super::super) fn multiply(crc: u64, k: u32) -> u64 {
        vmull_p64(crc, u64::from(k)) as u64
    }
}
