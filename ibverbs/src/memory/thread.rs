//! Control blocks of threads, as glibc has them: at the end of a thread's stack, behind its thread-local variables.

use std::ptr;

/// Bytes of a control block (`struct pthread`) at most. It begins with the thread's TCB.
pub(super) const LENGTH: usize = 4096;

/// The alignment of a control block.
pub(super) const ALIGN: usize = 64;

/// Where a control block has the number of its thread, which the kernel clears when the thread ends, and for which
/// joiners wait: glibc 2.4 to 2.41 on x86-64.
pub(super) const NUMBER: usize = 720;

/// Returns true if the bytes at `from`, those of the address `at`, are the start of a control block: its first word and
/// its third are its own address.
///
/// # Safety
/// Two dozen bytes at `from` can be read.
#[inline(always)]
pub(super) unsafe fn is_control_block(from: usize, at: usize) -> bool {
    let word = |n: usize| {
        let word = ptr::with_exposed_provenance::<usize>(from + n * size_of::<usize>());
        // SAFETY: by the caller.
        unsafe { word.read_volatile() }
    };
    cfg!(target_arch = "x86_64") && word(0) == at && word(2) == at
}
