//! System calls that touch no memory but their arguments.
//!
//! The C library's wrappers store `errno`, which lies in memory of the program. While pages are
//! guarded, a store to one of them waits for the end of the guard, so the guarding thread must not
//! make such a store.

use core::ffi::c_long;
use core::fmt;

/// An error number of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(pub(super) i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// Converts flags or protections to an argument.
pub(super) const fn bits(flags: i32) -> usize {
    flags.cast_unsigned() as usize
}

/// Converts a descriptor to an argument.
pub(super) const fn fd(fd: std::os::fd::RawFd) -> usize {
    fd.cast_unsigned() as usize
}

/// Makes a system call.
///
/// # Safety
/// The arguments satisfy the conditions of the system call `number`.
#[inline(always)]
pub(super) unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a word of the machine, and it has 64 bits"
    )]
    let number = number as isize;
    // SAFETY: the assembly follows the kernel's calling convention, which changes only the named
    // registers; the caller answers for what the call does to memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    match usize::try_from(result) {
        Ok(value) => Ok(value),
        Err(_) => Err(Errno(i32::try_from(-result).unwrap_or(libc::EIO))),
    }
}

/// Calls `f(argument)` on another stack, from `top` down.
///
/// # Safety
/// `top` is the end of writable memory that no other code uses meanwhile, aligned to 16 bytes, and
/// `f` needs no more stack than that memory has. `f` is sound with that argument and does not
/// unwind.
pub(super) unsafe fn call_on_stack(
    top: *mut u8,
    f: unsafe extern "C" fn(*mut u8),
    argument: *mut u8,
) {
    // SAFETY: the old stack pointer waits in a register that `f` preserves, by the C calling
    // convention.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {f}",
            "mov rsp, r12",
            top = in(reg) top,
            f = in(reg) f,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {f}",
            "mov sp, x20",
            top = in(reg) top,
            f = in(reg) f,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}

/// Sleeps while `word` is `value`; may also wake for no reason.
///
/// # Safety
/// `word` stays mapped.
pub(super) unsafe fn futex_wait(word: *const u32, value: u32) {
    let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the caller says that the futex word stays mapped; the call has no timeout.
    let _ = unsafe { call(libc::SYS_futex, [word.addr(), bits(how), value as usize, 0, 0, 0]) };
}

/// Wakes all threads that sleep on `word`.
///
/// # Safety
/// `word` stays mapped.
pub(super) unsafe fn futex_wake(word: *const u32) {
    let how = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the caller says that the futex word stays mapped.
    let _ = unsafe { call(libc::SYS_futex, [word.addr(), bits(how), bits(i32::MAX), 0, 0, 0]) };
}
