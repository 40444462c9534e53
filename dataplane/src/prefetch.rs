//! Prefetch instructions: hints that bring memory into the caches of this processor.

/// Bytes of a cache line, on x86-64 and on most processors of 64-bit Arm. Where lines are longer, the
/// worker fetches some of them twice.
pub(crate) const LINE: usize = 64;

/// Fetches the line of `at`, which need not be an address of valid memory, for a load.
#[inline(always)]
pub(crate) fn read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect on memory and takes any address; SSE is part of x86-64.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch has no effect on memory and takes any address.
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{at}]",
            at = in(reg) at,
            options(nomem, nostack, preserves_flags),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Does the same for a store.
#[inline(always)]
pub(crate) fn write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect on memory and takes any address; SSE is part of x86-64.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch has no effect on memory and takes any address.
    unsafe {
        core::arch::asm!(
            "prfm pstl1keep, [{at}]",
            at = in(reg) at,
            options(nomem, nostack, preserves_flags),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
