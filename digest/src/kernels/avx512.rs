//! AVX-512 with VPCLMULQDQ: folding, four vectors of 64 bytes at a time.
//!
//! A 128-bit lane holds 16 bytes, its low half the earlier ones: lane = lo * x^64 + hi. Moving it
//! over D bits gives lo * x^(D+64) + hi * x^D; both factors are taken modulo the polynomial. The 64
//! x 64-bit product of reflected values reads one power too high, hence the -1. The last 16 bytes,
//! which are congruent to everything folded, go through `crc32` as data does.

use core::arch::x86_64::{
    __m128i, __m512i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64,
    _mm_set_epi64x, _mm_xor_si128, _mm512_add_epi64, _mm512_clmulepi64_epi128,
    _mm512_extracti32x4_epi32, _mm512_loadu_si512, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_reduce_add_epi64, _mm512_set_epi64, _mm512_setzero_si512,
    _mm512_slli_epi64, _mm512_srli_epi64, _mm512_storeu_si512, _mm512_sub_epi64,
    _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use heddle_base::Sum;

use super::{Kernels, add_carry, avx2, fold, framed, lanes, low32, x_pow};

pub(crate) static KERNELS: Kernels = Kernels {
    name: "avx512-vpclmulqdq",
    sum,
    crc,
    digest,
    copy_sum,
    copy_digest,
    copy_crc,
    copy_framed,
};

/// Below this, setting up and joining the vectors costs more than they gain.
const MIN: usize = 256;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("vpclmulqdq")
        && avx2::is_available()
}

/// Returns the factors that move a lane over `bits`: for its high half, and for its low half.
const fn factors(bits: u32) -> (i64, i64) {
    let high = (x_pow(bits - 1) as u64) << 32;
    let low = (x_pow(bits + 63) as u64) << 32;
    (high.cast_signed(), low.cast_signed())
}

/// # Safety
/// As for [`super::CrcKernel`]; and the processor has what [`update`] needs.
#[target_feature(enable = "avx512f,vpclmulqdq,avx2,sse4.2,pclmulqdq")]
unsafe fn crc(src: *const u8, len: usize, crc: u32) -> u32 {
    // SAFETY: by the caller; no destination is used.
    !unsafe { either::<false, false>(src, std::ptr::null_mut(), len, !crc) }.0
}

/// # Safety
/// As for [`super::DigestKernel`]; and the processor has what [`update`] needs.
#[target_feature(enable = "avx512f,vpclmulqdq,avx2,sse4.2,pclmulqdq")]
unsafe fn digest(src: *const u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: by the caller; no destination is used.
    let (crc, sum) = unsafe { either::<false, true>(src, std::ptr::null_mut(), len, !crc) };
    (!crc, fold(sum))
}

/// # Safety
/// As for [`super::CopyDigestKernel`]; and the processor has what [`update`] needs.
#[target_feature(enable = "avx512f,vpclmulqdq,avx2,sse4.2,pclmulqdq")]
unsafe fn copy_digest(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: by the caller.
    let (crc, sum) = unsafe { either::<true, true>(src, dst, len, !crc) };
    (!crc, fold(sum))
}

/// # Safety
/// As for [`super::CopyCrcKernel`]; and the processor has what [`update`] needs.
#[target_feature(enable = "avx512f,vpclmulqdq,avx2,sse4.2,pclmulqdq")]
unsafe fn copy_crc(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> u32 {
    // SAFETY: by the caller.
    !unsafe { either::<true, false>(src, dst, len, !crc) }.0
}

/// # Safety
/// As for [`super::CopyFramedKernel`]; and the processor has what [`update`] needs.
#[target_feature(enable = "avx512f,vpclmulqdq,avx2,sse4.2,pclmulqdq")]
unsafe fn copy_framed(src: *const u8, dst: *mut u8, also: *mut u8, head: usize, len: usize) -> u32 {
    // SAFETY: by the caller.
    unsafe { framed((crc, copy_crc), src, (dst, also), (head, len)) }
}

/// Calls [`update`], or a faster kernel when the buffer is shorter than `update` takes.
///
/// # Safety
/// As [`update`], for any length.
#[target_feature(enable = "avx512f,vpclmulqdq,avx2,sse4.2,pclmulqdq")]
#[inline]
unsafe fn either<const COPY: bool, const SUM: bool>(
    src: *const u8,
    dst: *mut u8,
    len: usize,
    crc: u32,
) -> (u32, u64) {
    // SAFETY: by the caller; `update` has its least length.
    unsafe {
        if len >= MIN {
            update::<COPY, SUM>(src, dst, len, crc)
        } else if SUM {
            avx2::update::<COPY, SUM>(src, dst, len, crc)
        } else {
            lanes::update::<COPY, SUM>(src, dst, len, crc)
        }
    }
}

/// # Safety
/// As for [`super::SumKernel`]; and the processor has AVX-512F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn sum(src: *const u8, len: usize) -> Sum {
    // SAFETY: by the caller; no destination is used.
    unsafe { sum_of::<false>(src, std::ptr::null_mut(), len) }
}

/// # Safety
/// As for [`super::CopySumKernel`]; and the processor has AVX-512F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_sum(src: *const u8, dst: *mut u8, len: usize) -> Sum {
    // SAFETY: by the caller.
    unsafe { sum_of::<true>(src, dst, len) }
}

/// # Safety
/// The processor has AVX-512F and BW; `src` is valid for reads of `len` bytes, and `dst` for writes
/// when COPY.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn sum_of<const COPY: bool>(mut src: *const u8, mut dst: *mut u8, mut len: usize) -> Sum {
    let mut sums = [Words::default(); 2];
    // SAFETY: takes each vector only while `len`, the bytes left at `src` and `dst`, covers it; the
    // mask of the last vector lets only the remaining bytes through.
    unsafe {
        while len >= 128 {
            take::<COPY, true>(src, dst, 0, &mut sums[0]);
            take::<COPY, true>(src, dst, 64, &mut sums[1]);
            src = src.add(128);
            dst = dst.wrapping_add(128);
            len -= 128;
        }
        if len >= 64 {
            take::<COPY, true>(src, dst, 0, &mut sums[0]);
            src = src.add(64);
            dst = dst.wrapping_add(64);
            len -= 64;
        }
        if len > 0 {
            let mask = !0 >> (64 - len);
            if COPY {
                let v = load_masked_once(src, mask);
                _mm512_mask_storeu_epi8(dst.cast(), mask, v);
                sums[1].add(v);
            } else {
                sums[1].add(_mm512_maskz_loadu_epi8(mask, src.cast()));
            }
        }
    }
    fold(Words::total(sums))
}

/// # Safety
/// The processor has AVX-512F and VPCLMULQDQ; `src` is valid for reads of `len` bytes, at least
/// 256, and `dst` for writes when COPY.
#[target_feature(enable = "avx512f,vpclmulqdq,avx2,sse4.2,pclmulqdq")]
unsafe fn update<const COPY: bool, const SUM: bool>(
    mut src: *const u8,
    mut dst: *mut u8,
    mut len: usize,
    crc: u32,
) -> (u32, u64) {
    let mut sums = [Words::default(); 2];
    // SAFETY: takes each vector only while `len`, the bytes left at `src` and `dst`, covers it; the
    // caller's 256 bytes cover the first four.
    unsafe {
        let mut v = [_mm512_setzero_si512(); 4];
        for (i, v) in v.iter_mut().enumerate() {
            *v = take::<COPY, SUM>(src, dst, 64 * i, &mut sums[i % 2]);
        }
        v[0] = _mm512_xor_si512(v[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, i64::from(crc)));
        src = src.add(256);
        dst = dst.wrapping_add(256);
        len -= 256;

        let far = spread(const { factors(4 * 512) });
        while len >= 256 {
            for (i, v) in v.iter_mut().enumerate() {
                let data = take::<COPY, SUM>(src, dst, 64 * i, &mut sums[i % 2]);
                *v = fold512(*v, far, data);
            }
            src = src.add(256);
            dst = dst.wrapping_add(256);
            len -= 256;
        }

        let near = spread(const { factors(512) });
        let mut x = v[0];
        for next in &v[1..] {
            x = fold512(x, near, *next);
        }
        while len >= 64 {
            let data = take::<COPY, SUM>(src, dst, 0, &mut sums[0]);
            x = fold512(x, near, data);
            src = src.add(64);
            dst = dst.wrapping_add(64);
            len -= 64;
        }

        let crc = join(x);
        let sum = if SUM { Words::total(sums) } else { 0 };
        let (crc, rest) = lanes::update::<COPY, SUM>(src, dst, len, crc);
        (crc, add_carry(sum, rest))
    }
}

/// Loads 64 bytes at `off`, stores them when COPY, adds them to `sum` when SUM.
///
/// # Safety
/// As [`update`], for `off + 64` bytes.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn take<const COPY: bool, const SUM: bool>(
    src: *const u8,
    dst: *mut u8,
    off: usize,
    sum: &mut Words,
) -> __m512i {
    // SAFETY: by the caller; unaligned accesses.
    let v = unsafe {
        if COPY {
            let v = load_once(src, off);
            _mm512_storeu_si512(dst.add(off).cast(), v);
            v
        } else {
            _mm512_loadu_si512(src.add(off).cast())
        }
    };
    if SUM {
        sum.add(v);
    }
    v
}

/// Returns a vector that is loaded only once. After an ordinary load, the compiler may load it a
/// second time for its digest, and another thread may have written there by then.
///
/// # Safety
/// `src + off` is valid for reads of 64 bytes; the processor has AVX-512F.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load_once(src: *const u8, off: usize) -> __m512i {
    let v;
    // SAFETY: one load of memory that is valid, by the caller.
    unsafe {
        core::arch::asm!(
            "vmovdqu64 {v}, zmmword ptr [{src} + {off}]",
            v = lateout(zmm_reg) v, src = in(reg) src, off = in(reg) off,
            options(readonly, nostack, preserves_flags),
        );
    }
    v
}

/// Returns the bytes that `mask` lets through, loaded as by [`load_once`], and zeros.
///
/// # Safety
/// `src` is valid for reads of the bytes that `mask` has; the processor has AVX-512BW.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn load_masked_once(src: *const u8, mask: u64) -> __m512i {
    let v;
    // SAFETY: one load, which touches no byte outside the mask.
    unsafe {
        core::arch::asm!(
            "vmovdqu8 {v}{{{mask}}}{{z}}, zmmword ptr [{src}]",
            v = lateout(zmm_reg) v, mask = in(kreg) mask, src = in(reg) src,
            options(readonly, nostack, preserves_flags),
        );
    }
    v
}

/// Sums of 32-bit words in 64-bit lanes: the sum of whole lanes, wrapping, and the sum of their
/// upper halves. The sum of the lower halves is the difference, so `add` need not extract them from
/// each lane. An overflow would take 2^32 additions, 256 GiB.
#[derive(Clone, Copy)]
struct Words {
    whole: __m512i,
    upper: __m512i,
}

impl Default for Words {
    #[inline(always)]
    fn default() -> Words {
        // SAFETY: all zeros are a valid vector.
        unsafe { core::mem::zeroed() }
    }
}

impl Words {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn add(&mut self, v: __m512i) {
        self.whole = _mm512_add_epi64(self.whole, v);
        self.upper = _mm512_add_epi64(self.upper, _mm512_srli_epi64::<32>(v));
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn total([a, b]: [Words; 2]) -> u64 {
        let whole = _mm512_add_epi64(a.whole, b.whole);
        let upper = _mm512_add_epi64(a.upper, b.upper);
        let lower = _mm512_sub_epi64(whole, _mm512_slli_epi64::<32>(upper));
        _mm512_reduce_add_epi64(_mm512_add_epi64(lower, upper)).cast_unsigned()
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn spread((high, low): (i64, i64)) -> __m512i {
    _mm512_set_epi64(high, low, high, low, high, low, high, low)
}

/// Moves `v` by the distance of `k` and adds `data`.
#[target_feature(enable = "avx512f,vpclmulqdq")]
#[inline]
fn fold512(v: __m512i, k: __m512i, data: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(v, k);
    let high = _mm512_clmulepi64_epi128::<0x11>(v, k);
    _mm512_ternarylogic_epi64::<0x96>(low, high, data)
}

/// Joins the four lanes and reduces them to a raw CRC.
#[target_feature(enable = "avx512f,sse4.2,pclmulqdq")]
#[inline]
fn join(v: __m512i) -> u32 {
    let (high, low) = const { factors(128) };
    let k = _mm_set_epi64x(high, low);
    let lane = |a: __m128i, b: __m128i| {
        let l = _mm_clmulepi64_si128::<0x00>(a, k);
        let h = _mm_clmulepi64_si128::<0x11>(a, k);
        _mm_xor_si128(_mm_xor_si128(l, h), b)
    };
    let mut x = _mm512_extracti32x4_epi32::<0>(v);
    x = lane(x, _mm512_extracti32x4_epi32::<1>(v));
    x = lane(x, _mm512_extracti32x4_epi32::<2>(v));
    x = lane(x, _mm512_extracti32x4_epi32::<3>(v));
    let c = _mm_crc32_u64(0, _mm_cvtsi128_si64(x).cast_unsigned());
    low32(_mm_crc32_u64(c, _mm_extract_epi64::<1>(x).cast_unsigned()))
}
