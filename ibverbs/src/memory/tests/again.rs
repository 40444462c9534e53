//! Runs the tests of this module again, in processes of their own with another guard.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::*;

/// Marks a process as such a rerun, and names the guard that it must have.
const EXPECTED: &str = "HEDDLE_TEST_GUARD";

fn run(mut command: Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{:?}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("test result: ok") && !text.contains(" 0 passed"), "{text}");
}

fn all_tests(guard: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["memory::tests", "--skip", "memory::tests::again::test_all"]);
    command.env(EXPECTED, guard);
    command
}

fn is_again() -> bool {
    std::env::var_os(EXPECTED).is_some()
}

#[test]
fn test_memory_guard_is_of_the_expected_kind() {
    drop(Area::new(1).share(0, 1));
    let state = lock();
    let uffd = state.uffd.as_ref().unwrap();
    match std::env::var(EXPECTED).as_deref() {
        Ok("mprotect") => assert!(uffd.is_err(), "{uffd:?}"),
        Ok("user") => assert!(!uffd.as_ref().unwrap().is_full),
        _ => {}
    }
}

#[test]
fn test_all_memory_tests_pass_with_mprotect() {
    if !is_again() {
        let mut command = all_tests("mprotect");
        command.env(GUARD, "mprotect");
        run(command);
    }
}

/// A filter of system calls refuses `userfaultfd`, as in a container.
#[test]
fn test_all_memory_tests_pass_without_userfaultfd() {
    if !is_again() {
        let mut command = all_tests("mprotect");
        // SAFETY: the closure makes only system calls between fork and exec.
        unsafe { command.pre_exec(|| filter(0)) };
        run(command);
    }
}

/// `userfaultfd` does not make the kernel wait, as for a user without privileges.
#[test]
fn test_all_memory_tests_pass_with_unprivileged_userfaultfd() {
    if !is_again() {
        let mut command = all_tests("user");
        // SAFETY: as above.
        unsafe { command.pre_exec(|| filter(1)) };
        run(command);
    }
}

/// Makes `userfaultfd` fail with EPERM unless its flags contain `unless`, and makes its device
/// unusable.
fn filter(unless: u32) -> std::io::Result<()> {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap_or(0),
        jt,
        jf,
        k,
    };
    let number = u32::try_from(libc::SYS_userfaultfd).unwrap_or(0);
    let ioctl = u32::try_from(libc::SYS_ioctl).unwrap_or(0);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 2, number),
        // Loads the flags of the call.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16),
        op(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 3, 4, unless),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 2, ioctl),
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 24),
        // USERFAULTFD_IOC_NEW.
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, 0xaa00),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
    ];
    let list = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(0),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: `list` is a live program.
    let rc = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const list)
    };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
