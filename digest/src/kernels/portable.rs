//! Kernels for processors without instructions that we know: the `crc32c` crate and plain sums, by
//! small blocks that stay in the first-level cache between the passes.

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::compiler_fence;

use heddle_base::Sum;

use super::{Kernels, fold, framed};

pub(crate) static KERNELS: Kernels =
    Kernels { name: "portable", sum, crc, digest, copy_sum, copy_digest, copy_crc, copy_framed };

/// # Safety
/// As for [`super::SumKernel`].
pub(super) unsafe fn sum(src: *const u8, len: usize) -> Sum {
    // SAFETY: by the caller; no destination is used.
    unsafe { run::<false, false, true>(src, std::ptr::null_mut(), len, 0) }.1
}

/// # Safety
/// As for [`super::CrcKernel`].
unsafe fn crc(src: *const u8, len: usize, crc: u32) -> u32 {
    // SAFETY: by the caller; no destination is used.
    unsafe { run::<false, true, false>(src, std::ptr::null_mut(), len, crc) }.0
}

/// # Safety
/// As for [`super::DigestKernel`].
unsafe fn digest(src: *const u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: by the caller; no destination is used.
    unsafe { run::<false, true, true>(src, std::ptr::null_mut(), len, crc) }
}

/// # Safety
/// As for [`super::CopySumKernel`].
pub(super) unsafe fn copy_sum(src: *const u8, dst: *mut u8, len: usize) -> Sum {
    // SAFETY: by the caller.
    unsafe { run::<true, false, true>(src, dst, len, 0) }.1
}

/// # Safety
/// As for [`super::CopyDigestKernel`].
unsafe fn copy_digest(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> (u32, Sum) {
    // SAFETY: by the caller.
    unsafe { run::<true, true, true>(src, dst, len, crc) }
}

/// # Safety
/// As for [`super::CopyCrcKernel`].
unsafe fn copy_crc(src: *const u8, dst: *mut u8, len: usize, crc: u32) -> u32 {
    // SAFETY: by the caller.
    unsafe { run::<true, true, false>(src, dst, len, crc) }.0
}

/// # Safety
/// As for [`super::CopyFramedKernel`].
unsafe fn copy_framed(src: *const u8, dst: *mut u8, also: *mut u8, head: usize, len: usize) -> u32 {
    // SAFETY: by the caller.
    unsafe { framed((crc, copy_crc), src, (dst, also), (head, len)) }
}

/// Copies each block into our own memory, and on from there when COPY.
///
/// # Safety
/// `src` is valid for reads of `len` bytes, and `dst` for writes when COPY.
unsafe fn run<const COPY: bool, const CRC: bool, const SUM: bool>(
    src: *const u8,
    dst: *mut u8,
    len: usize,
    mut crc: u32,
) -> (u32, Sum) {
    let mut block = [0u8; 512];
    let mut sum = fold(0);
    let mut off = 0;
    while off < len {
        let n = (len - off).min(block.len());
        // SAFETY: off + n <= len, for which `src` (and `dst`, when COPY) is valid; `block` is our
        // own, so the digest is that of the copied bytes even when `src` changes.
        unsafe {
            std::ptr::copy_nonoverlapping(src.add(off), block.as_mut_ptr(), n);
            // Without the fence, the compiler could make the next copy read `src` again.
            compiler_fence(SeqCst);
            if COPY {
                std::ptr::copy_nonoverlapping(block.as_ptr(), dst.add(off), n);
            }
        }
        if CRC {
            crc = crc32c::crc32c_append(crc, &block[..n]);
        }
        if SUM {
            sum = sum.plus(Sum::of(&block[..n]));
        }
        off += n;
    }
    (crc, sum)
}
