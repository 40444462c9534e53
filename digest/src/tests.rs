//! A child copies, one instruction at a time, and the test looks at the memory after each
//! instruction.
//!
//! Miri has no processes.
#![cfg(not(miri))]

use std::sync::atomic::{AtomicU8, Ordering};

use super::{place, transfer};

/// The value of each byte before the child copies.
const BEFORE: u8 = 0xaa;
/// The value of the last byte that the child copies.
const LAST: u8 = 0x55;
/// The test writes this where it has seen [`LAST`].
const ANSWER: u8 = 0x77;
/// Bytes before the copy and after it.
const AROUND: usize = 64;

/// Memory of this process and its children.
struct Shared {
    base: *mut u8,
    len: usize,
}

impl Shared {
    fn new(len: usize) -> Self {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let shared = Self { base: base.cast(), len };
        shared.bytes().iter().for_each(|b| b.store(BEFORE, Ordering::Relaxed));
        shared
    }

    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: mapped until drop, and other processes write its bytes as atomics may be written.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.len) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and no reference outlives self.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Makes a child run `copy` step by step, and calls `look` after each instruction. Returns the
/// number of instructions.
fn step_through(copy: impl Fn(), mut look: impl FnMut()) -> usize {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the child only makes system calls and copies, and needs no lock that a thread of the
    // parent may have held.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1);
    if child == 0 {
        // SAFETY: as above; the child ends here.
        unsafe {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, nothing, nothing) != 0 {
                libc::_exit(2);
            }
            libc::raise(libc::SIGSTOP);
            copy();
            libc::_exit(0);
        }
    }
    let mut steps = 0;
    loop {
        let mut status = 0;
        // SAFETY: a child of this process; `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0, "the child may be traced");
            return steps;
        }
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        look();
        steps += 1;
        // SAFETY: the child is stopped, and goes on by one instruction, without the signal that
        // stopped it.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child, nothing, nothing) }, 0);
    }
}

/// Looks at each step of `copy`, which gets a destination in shared memory and `len` bytes.
fn watch(len: usize, copy: fn(*mut u8, &[u8])) {
    let shared = Shared::new(len + 2 * AROUND);
    // The ends of the copies lie at all distances from the ends of cache lines.
    let at = len * 7 % AROUND;
    let (before, rest) = shared.bytes().split_at(at);
    let (dst, behind) = rest.split_at(len);
    let (last, others) = dst.split_last().unwrap();
    let mut src: Vec<u8> = (0..len).map(|i| u8::try_from(i % 0x55).unwrap()).collect();
    src[len - 1] = LAST;

    let mut seen = false;
    let all =
        |part: &[AtomicU8]| part.iter().map(|b| b.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let steps = step_through(
        || copy(shared.base.wrapping_add(at), &src),
        || match last.load(Ordering::Relaxed) {
            LAST => {
                assert!(!seen, "{len} bytes: the last is stored once");
                assert!(
                    all(others) == src[..len - 1],
                    "{len} bytes: the last is stored behind all others"
                );
                last.store(ANSWER, Ordering::Relaxed);
                seen = true;
            }
            value => assert_eq!(value, if seen { ANSWER } else { BEFORE }, "{len} bytes"),
        },
    );
    assert!(seen && steps > 10, "{len} bytes in {steps} steps");
    assert!(
        all(before).iter().chain(&all(behind)).all(|b| *b == BEFORE),
        "{len} bytes: none around them"
    );
}

fn lengths() -> impl Iterator<Item = usize> {
    (1..=260).chain([511, 512, 1024, 1442, 2048, 4096, 8938])
}

#[test]
fn test_placed_message_writes_its_last_byte_last_and_once() {
    // SAFETY: `watch` gives a destination that is valid for as many bytes.
    lengths().for_each(|len| watch(len, |dst, src| unsafe { place(dst, src) }));
}

#[test]
fn test_transferred_message_writes_its_last_byte_last_and_once() {
    // SAFETY: as above, and a reference is valid for reads.
    lengths()
        .for_each(|len| watch(len, |dst, src| unsafe { transfer(dst, src.as_ptr(), src.len()) }));
}

#[test]
fn test_overlapping_transfer_copies_original_source() {
    for (len, from, to) in
        (0..130).flat_map(|len| [(len, 0, 1), (len, 1, 0), (len, 0, 9), (len, 9, 0), (len, 3, 3)])
    {
        let mut bytes: Vec<u8> = (0..150).collect();
        let mut expected = bytes.clone();
        expected.copy_within(from..from + len, to);
        let base = bytes.as_mut_ptr();
        // SAFETY: both ranges lie in `bytes`.
        unsafe { transfer(base.add(to), base.add(from), len) };
        assert_eq!(bytes, expected, "{len} bytes from {from} to {to}");
    }
}
