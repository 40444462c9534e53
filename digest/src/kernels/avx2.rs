//! AVX2 beside SSE4.2: vectors to copy and to sum, the `crc32` instruction in three lanes.
//!
//! `crc32` takes eight bytes at a time, so the kernel would have to take each vector apart for it.
//! Instead, `crc32` reads memory: when copying, the destination, where the kernel has just stored
//! the vector and which is still in the store buffer or the first-level cache. The kernel joins the
//! lanes as [`lanes`] does, and lanes may have any length: most packets then take one turn of the
//! loop, and less than a vector or two more.

use core::arch::x86_64::{
    __m256i, _mm_add_epi64, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64, _mm256_add_epi64,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_setzero_si256,
    _mm256_slli_epi64, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_sub_epi64,
};
use std::sync::atomic::{Ordering, compiler_fence};

use heddle_base::Sum;

use super::lanes::{self, multiply};
use super::{Kernels, add_carry, fold, times_x_pow, x_pow};

pub(crate) static KERNELS: Kernels =
    Kernels { name: "avx2-sse4.2", sum, copy_sum, crc, digest, copy_digest, copy_crc, copy_framed };

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && lanes::is_available()
}

/// Bytes of a vector, and its bits.
const V: usize = 32;
const V_BITS: u32 = 256;
const _: () = assert!(V_BITS as usize == 8 * V);

/// Vectors of the longest lane.
const MAX_LANE: usize = 64;

/// Below this, joining lanes costs more than they gain.
const MIN_LANES: usize = 3 * 2 * V;

/// Factors that move a CRC over that many vectors; see [`lanes`]. The first is not used.
static SHIFTS: [u32; 2 * MAX_LANE + 1] = {
    let mut shifts = [0; 2 * MAX_LANE + 1];
    shifts[1] = x_pow(V_BITS - 33);
    let mut i = 2;
    while i < shifts.len() {
        shifts[i] = times_x_pow(shifts[i - 1], V_BITS);
        i += 1;
    }
    shifts
};

/// # Safety
/// As for [`super::CrcKernel`]; and the processor has AVX2, SSE4.2 and PCLMULQDQ.
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
unsafe fn crc(src: *const u8, len: usize, crc: u32) -> u32 {
    // SAFETY: by the caller; no destination is used.
    !unsafe { update::<false, false>(src, std::ptr::null_mut(), len, !crc) }.0
}

/// # Safety
/// As for [`super::DigestKernel`]; and the processor has AVX2, SSE4.2 and PCLMULQDQ.
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
unsafe fn digest(src: *const u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: by the caller; no destination is used.
    let (crc, sum) = unsafe { update::<false, true>(src, std::ptr::null_mut(), len, !crc) };
    (!crc, fold(sum))
}

/// # Safety
/// As for [`super::CopyDigestKernel`]; and the processor has AVX2, SSE4.2 and PCLMULQDQ.
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
unsafe fn copy_digest(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: by the caller.
    let (crc, sum) = unsafe { update::<true, true>(src, dst, len, !crc) };
    (!crc, fold(sum))
}

/// # Safety
/// As for [`super::CopyCrcKernel`]; and the processor has AVX2, SSE4.2 and PCLMULQDQ.
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
unsafe fn copy_crc(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> u32 {
    // SAFETY: by the caller.
    !unsafe { update::<true, false>(src, dst, len, !crc) }.0
}

/// # Safety
/// As for [`super::CopyFramedKernel`]; and the processor has AVX2, SSE4.2 and PCLMULQDQ.
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
unsafe fn copy_framed(src: *const u8, dst: *mut u8, also: *mut u8, head: usize, len: usize) -> u32 {
    // SAFETY: by the caller.
    unsafe {
        let crc = words(dst, head, u64::from(u32::MAX));
        let dst = dst.add(head);
        !match also.is_null() {
            true => update::<true, false>(src, dst, len, crc).0,
            false => twice(src, dst, also.add(head), len, u64::from(crc)),
        }
    }
}

/// Continues a raw CRC over few bytes, of headers.
///
/// # Safety
/// As [`update`] without COPY.
#[target_feature(enable = "sse4.2")]
#[inline]
unsafe fn words(mut src: *const u8, mut len: usize, mut crc: u64) -> u32 {
    // SAFETY: takes words only while `len`, the bytes left at `src`, covers them.
    unsafe {
        while len >= 8 {
            crc = _mm_crc32_u64(crc, src.cast::<u64>().read_unaligned());
            src = src.add(8);
            len -= 8;
        }
        lanes::short::<false, false>(src, std::ptr::null_mut(), len, crc, 0).0
    }
}

/// Copies to two places, and continues a raw CRC.
///
/// # Safety
/// As [`update`] with COPY, for both places, which do not overlap.
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
#[inline(never)]
unsafe fn twice(src: *const u8, dst: *mut u8, also: *mut u8, len: usize, mut crc: u64) -> u32 {
    let (mut at, mut sums) = (0, Words::zero());
    // SAFETY: takes lanes only while the bytes left after `at` cover them.
    unsafe {
        while len - at >= MIN_LANES {
            let vectors = ((len - at) / (3 * V)).min(MAX_LANE);
            let (s, d, a) = (src.add(at), dst.add(at), also.add(at));
            crc = three::<true, false, true>(s, d, a, vectors, crc, &mut sums);
            at += 3 * V * vectors;
        }
        let (crc, _) = rest::<true, false>(src.add(at), dst.add(at), len - at, crc, sums);
        // Nothing else writes to `dst`, so these are the bytes of the CRC.
        std::ptr::copy_nonoverlapping(dst.add(at), also.add(at), len - at);
        crc
    }
}

/// Continues a raw (inverted) CRC; also returns the sum of native-endian words.
///
/// # Safety
/// The processor has AVX2, SSE4.2 and PCLMULQDQ; `src` is valid for reads of `len` bytes, and
/// `dst`, which is ours alone, for writes and reads when COPY.
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
#[inline]
pub(super) unsafe fn update<const COPY: bool, const SUM: bool>(
    src: *const u8,
    dst: *mut u8,
    len: usize,
    crc: u32,
) -> (u32, u64) {
    let crc = u64::from(crc);
    // SAFETY: by the caller.
    unsafe {
        if len < MIN_LANES {
            rest::<COPY, SUM>(src, dst, len, crc, Words::zero())
        } else {
            lanes::<COPY, SUM>(src, dst, len, crc)
        }
    }
}

/// Digests in three lanes. This is apart from the code for short buffers, which needs few
/// registers.
///
/// # Safety
/// As [`update`].
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
#[inline(never)]
unsafe fn lanes<const COPY: bool, const SUM: bool>(
    mut src: *const u8,
    mut dst: *mut u8,
    mut len: usize,
    mut crc: u64,
) -> (u32, u64) {
    let mut sums = Words::zero();
    // SAFETY: takes lanes only while `len`, the bytes left at `src` and `dst`, covers them.
    unsafe {
        while len >= MIN_LANES {
            let vectors = (len / (3 * V)).min(MAX_LANE);
            let none = std::ptr::null_mut();
            crc = three::<COPY, SUM, false>(src, dst, none, vectors, crc, &mut sums);
            let n = 3 * V * vectors;
            src = src.add(n);
            dst = dst.wrapping_add(n);
            len -= n;
        }
        rest::<COPY, SUM>(src, dst, len, crc, sums)
    }
}

/// Digests vector by vector, then word by word.
///
/// # Safety
/// As [`update`].
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
#[inline]
unsafe fn rest<const COPY: bool, const SUM: bool>(
    mut src: *const u8,
    mut dst: *mut u8,
    mut len: usize,
    mut crc: u64,
    mut sums: Words,
) -> (u32, u64) {
    // SAFETY: takes vectors only while `len`, the bytes left at `src` and `dst`, covers them.
    unsafe {
        while len >= V {
            let none = std::ptr::null_mut();
            let at = take::<COPY, SUM, false>(src, 0, dst, none, &mut sums);
            settle::<COPY>();
            crc = crc_of(crc, at);
            src = src.add(V);
            dst = dst.wrapping_add(V);
            len -= V;
        }
        let sum = if SUM { sums.total() } else { 0 };
        lanes::short::<COPY, SUM>(src, dst, len, crc, sum)
    }
}

/// Digests three lanes of so many vectors, at most [`MAX_LANE`].
///
/// # Safety
/// As [`update`], for three times as many vectors, also at `also` when TWICE.
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
#[inline]
unsafe fn three<const COPY: bool, const SUM: bool, const TWICE: bool>(
    src: *const u8,
    dst: *mut u8,
    also: *mut u8,
    vectors: usize,
    crc: u64,
    sums: &mut Words,
) -> u64 {
    let lane = vectors * V;
    let (mut a, mut b, mut c) = (crc, 0, 0);
    let mut i = 0;
    while i < lane {
        // SAFETY: i + V <= lane, so the three vectors lie inside the three lanes.
        unsafe {
            let (s, d, e) = (src.add(i), dst.wrapping_add(i), also.wrapping_add(i));
            let [d1, d2] = [d.wrapping_add(lane), d.wrapping_add(2 * lane)];
            let [e1, e2] = [e.wrapping_add(lane), e.wrapping_add(2 * lane)];
            let x = take::<COPY, SUM, TWICE>(src, i, d, e, sums);
            let y = take::<COPY, SUM, TWICE>(s, lane, d1, e1, sums);
            let z = take::<COPY, SUM, TWICE>(s, 2 * lane, d2, e2, sums);
            settle::<COPY>();
            a = crc_of(a, x);
            b = crc_of(b, y);
            c = crc_of(c, z);
        }
        i += V;
    }
    let moved = multiply(a, SHIFTS[2 * vectors]) ^ multiply(b, SHIFTS[vectors]);
    _mm_crc32_u64(0, moved) ^ c
}

/// Takes the vector at `src + off`: copies it to `dst` when COPY, and to `also` when TWICE as well,
/// and adds it to `sums` when SUM.
/// Returns the address from which to compute its CRC.
///
/// # Safety
/// As [`update`], for [`V`] bytes at `src + off`, at `dst`, and when TWICE at `also`.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn take<const COPY: bool, const SUM: bool, const TWICE: bool>(
    src: *const u8,
    off: usize,
    dst: *mut u8,
    also: *mut u8,
    sums: &mut Words,
) -> *const u8 {
    // SAFETY: by the caller; unaligned accesses.
    unsafe {
        if COPY {
            let v = load_once(src, off);
            _mm256_storeu_si256(dst.cast(), v);
            if TWICE {
                _mm256_storeu_si256(also.cast(), v);
            }
            if SUM {
                sums.add(v);
            }
            return dst;
        }
        let at = src.add(off);
        if SUM {
            sums.add(_mm256_loadu_si256(at.cast()));
        }
        at
    }
}

/// Returns a vector that is loaded only once. After an ordinary load, the compiler may load parts
/// from the same place a second time, and another thread may have written there by then.
///
/// # Safety
/// `src + off` is valid for reads of [`V`] bytes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn load_once(src: *const u8, off: usize) -> __m256i {
    let v;
    // SAFETY: one load of memory that is valid, by the caller; the processor has AVX2.
    unsafe {
        core::arch::asm!(
            "vmovdqu {v}, ymmword ptr [{src} + {off}]",
            v = lateout(ymm_reg) v, src = in(reg) src, off = in(reg) off,
            options(readonly, nostack, preserves_flags),
        );
    }
    v
}

/// Separates copying from [`crc_of`]. Otherwise the compiler, which knows the stored value, takes
/// words out of vectors instead of loading them. Only speed depends on this.
#[inline(always)]
fn settle<const COPY: bool>() {
    if COPY {
        compiler_fence(Ordering::AcqRel);
    }
}

/// Returns the CRC continued over a vector's bytes at `at`.
///
/// # Safety
/// `at` is valid for reads of [`V`] bytes.
#[target_feature(enable = "sse4.2")]
#[inline]
unsafe fn crc_of(mut crc: u64, at: *const u8) -> u64 {
    for i in 0..V / 8 {
        // SAFETY: by the caller; unaligned accesses.
        crc = _mm_crc32_u64(crc, unsafe { at.add(8 * i).cast::<u64>().read_unaligned() });
    }
    crc
}

/// # Safety
/// As for [`super::SumKernel`]; and the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn sum(src: *const u8, len: usize) -> Sum {
    // SAFETY: by the caller; no destination is used.
    unsafe { sum_of::<false>(src, std::ptr::null_mut(), len) }
}

/// # Safety
/// As for [`super::CopySumKernel`]; and the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn copy_sum(src: *const u8, dst: *mut u8, len: usize) -> Sum {
    // SAFETY: by the caller.
    unsafe { sum_of::<true>(src, dst, len) }
}

/// # Safety
/// As [`update`].
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn sum_of<const COPY: bool>(mut src: *const u8, mut dst: *mut u8, mut len: usize) -> Sum {
    let mut sums = [Words::zero(); 2];
    // SAFETY: takes vectors only while `len`, the bytes left at `src` and `dst`, covers them.
    let rest = unsafe {
        while len >= 4 * V {
            for i in 0..4 {
                let (d, sums) = (dst.wrapping_add(V * i), &mut sums[i % 2]);
                take::<COPY, true, false>(src, V * i, d, std::ptr::null_mut(), sums);
            }
            src = src.add(4 * V);
            dst = dst.wrapping_add(4 * V);
            len -= 4 * V;
        }
        while len >= V {
            take::<COPY, true, false>(src, 0, dst, std::ptr::null_mut(), &mut sums[0]);
            src = src.add(V);
            dst = dst.wrapping_add(V);
            len -= V;
        }
        super::short_sum::<COPY>(src, dst, len)
    };
    let sum = sums.map(|s| s.total());
    fold(add_carry(rest, add_carry(sum[0], sum[1])))
}

/// Sums of 32-bit words in 64-bit lanes; see the AVX-512 kernel.
#[derive(Clone, Copy)]
struct Words {
    whole: __m256i,
    upper: __m256i,
}

impl Words {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn zero() -> Words {
        Words { whole: _mm256_setzero_si256(), upper: _mm256_setzero_si256() }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn add(&mut self, v: __m256i) {
        self.whole = _mm256_add_epi64(self.whole, v);
        self.upper = _mm256_add_epi64(self.upper, _mm256_srli_epi64::<32>(v));
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn total(self) -> u64 {
        let lower = _mm256_sub_epi64(self.whole, _mm256_slli_epi64::<32>(self.upper));
        let v = _mm256_add_epi64(lower, self.upper);
        let v = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        (_mm_cvtsi128_si64(v).cast_unsigned())
            .wrapping_add(_mm_extract_epi64::<1>(v).cast_unsigned())
    }
}
