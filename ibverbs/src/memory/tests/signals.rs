//! The program's own handler for SIGSEGV beside the module's.

use std::mem::MaybeUninit;

use super::*;

/// Runs `child` in a child of fork with `mprotect` as its guard, and returns the child's exit
/// status.
fn ends(child: impl FnOnce()) -> i32 {
    // SAFETY: the child makes only system calls, and ends without destructors.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            lock().uffd = Some(Err(Errno(libc::EPERM)));
            child();
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        status
    }
}

extern "C" fn leave(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a live structure, and the call ends the process. The address proves
    // that all arguments arrived.
    unsafe { libc::_exit(if (*info).si_addr().addr() == 16 { 42 } else { 43 }) }
}

extern "C" fn leave_plainly(signal: libc::c_int) {
    // SAFETY: the call ends the process.
    unsafe { libc::_exit(if signal == libc::SIGSEGV { 44 } else { 45 }) }
}

fn handle_by(handler: usize, flags: libc::c_int) {
    // SAFETY: the structure consists of integers and pointers, and the handler is safe at any
    // moment.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut());
    }
}

#[test]
fn test_faults_of_the_program_reach_its_own_handler_or_kill_it() {
    let area = Area::new(2);
    area.fill();
    let exited = |status| (libc::WIFEXITED(status), libc::WEXITSTATUS(status));
    // The program installs its handler before the module's, or after it; in the second case the
    // module takes over at the next guard.
    for late in [false, true] {
        let status = ends(|| {
            if late {
                drop(area.share(0, PAGE));
            }
            handle_by(leave as *const () as usize, libc::SA_SIGINFO);
            drop(area.share(0, 2 * PAGE));
            poke(16, 1);
        });
        assert_eq!(exited(status), (true, 42), "late: {late}, {status:#x}");
    }
    let status = ends(|| {
        handle_by(leave_plainly as *const () as usize, 0);
        drop(area.share(0, PAGE));
        poke(16, 1);
    });
    assert_eq!(exited(status), (true, 44), "{status:#x}");
    for handler in [libc::SIG_DFL, libc::SIG_IGN] {
        let status = ends(|| {
            handle_by(handler, 0);
            drop(area.share(0, PAGE));
            // The fault also lies in a range that was guarded a moment ago.
            write_where_it_is_forbidden(&area);
        });
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    }
}

fn write_where_it_is_forbidden(area: &Area) {
    // SAFETY: the call changes only mappings of this test.
    unsafe { libc::mprotect(area.byte(0), PAGE, libc::PROT_READ) };
    area.set(0, 1);
}

/// A signal that another process sends is not a fault.
#[test]
fn test_signal_that_is_sent_reaches_the_handler_of_the_program() {
    let area = Area::new(1);
    let status = ends(|| {
        handle_by(leave_plainly as *const () as usize, 0);
        drop(area.share(0, PAGE));
        // SAFETY: the call sends a signal to this process.
        unsafe { libc::raise(libc::SIGSEGV) };
    });
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 44, "{status:#x}");
    let status = ends(|| {
        drop(area.share(0, PAGE));
        handle_by(libc::SIG_DFL, 0);
        drop(area.share(0, PAGE));
        // SAFETY: as above.
        unsafe { libc::raise(libc::SIGSEGV) };
    });
    assert!(libc::WIFSIGNALED(status), "{status:#x}");
}
