//! Children.

use super::*;

/// What `child` returns, as a child of fork; it may use nothing that another thread may have locked.
fn in_a_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes system calls, and ends without destructors.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::_exit(child());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
        libc::WEXITSTATUS(status)
    }
}

#[test]
fn test_child_has_its_own_copy_and_parent_and_rnic_go_on_sharing() {
    let area = Area::new(40);
    area.fill();
    let shared = area.share(100, 39 * PAGE);
    rnic_writes(&shared, 0, 60);
    let code = in_a_child(|| {
        let seen = (area.get(100), area.get(PAGE), area.get(39 * PAGE));
        if seen != (60, 2, 40) {
            return 1;
        }
        for page in 0..40 {
            area.set(page * PAGE + 100, 99);
        }
        if area.is_shared(0) { 2 } else { 0 }
    });
    assert_eq!(code, 0);
    assert_eq!((area.get(100), area.get(PAGE + 100), rnic(&shared, 0)), (60, 0, 60));
    area.set(100, 61);
    assert_eq!(rnic(&shared, 0), 61);
}

/// The child neither gives back what its parent has nor keeps it from sharing its own.
#[test]
fn test_child_drops_what_its_parent_shares_and_shares_its_own() {
    let area = Area::new(4);
    area.fill();
    let shared = area.share(0, 2 * PAGE);
    let mut shared = Some(shared);
    let code = in_a_child(|| {
        drop(shared.take());
        let Ok(own) = share(area.at, 2 * PAGE, false) else { return 1 };
        area.set(0, 70);
        if rnic(&own, 0) != 70 {
            return 2;
        }
        drop(own);
        if area.get(0) == 70 && !area.is_shared(0) { 0 } else { 3 }
    });
    assert_eq!(code, 0);
    let shared = shared.unwrap();
    assert_eq!((area.get(0), rnic(&shared, 0), area.is_shared(0)), (1, 1, true));
}

/// `fork` returns twice on this stack, which both go on using.
#[test]
fn test_thread_forks_while_its_stack_is_shared() {
    let mut bytes = [1u8; 200];
    let at = (&raw mut bytes).expose_provenance();
    let shared = share(at, bytes.len(), false).unwrap();
    for round in 0..20u8 {
        rnic_writes(&shared, 7, round);
        let code = in_a_child(|| {
            poke(at + 8, 200);
            i32::from(peek(at + 7) != round)
        });
        assert_eq!(code, 0);
        poke(at + 9, round);
        assert_eq!((rnic(&shared, 7), rnic(&shared, 8), rnic(&shared, 9)), (round, 1, round));
    }
    drop(shared);
    std::hint::black_box(&mut bytes);
}

/// A part that is too large to copy.
#[test]
fn test_child_has_a_view_of_its_own_of_very_large_memory() {
    let area = Area::new((65 << 20) / PAGE);
    area.fill();
    let shared = area.share(0, area.len);
    let code = in_a_child(|| {
        for off in (0..area.len).step_by(1 << 20) {
            if usize::from(area.get(off)) != off / PAGE % 251 + 1 {
                return 1;
            }
            area.set(off, 255);
        }
        0
    });
    assert_eq!(code, 0);
    for off in (0..area.len).step_by(1 << 20) {
        assert_eq!(usize::from(rnic(&shared, off)), off / PAGE % 251 + 1);
    }
}

#[test]
fn test_program_that_is_started_has_nothing_of_it() {
    let area = Area::new(2);
    area.fill();
    let _shared = area.share(0, 2 * PAGE);
    let output = std::process::Command::new("cat").arg("/proc/self/maps").output().unwrap();
    assert!(output.status.success());
    assert!(!String::from_utf8_lossy(&output.stdout).contains("heddle"), "it has a window");
}

/// Threads that fork while others register.
#[test]
fn test_forks_and_registrations_at_once_end() {
    let area = Area::new(8);
    area.fill();
    std::thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..200 {
                drop(area.share(0, 8 * PAGE));
            }
        });
        for _ in 0..30 {
            assert_eq!(in_a_child(|| i32::from(area.get(PAGE) != 2)), 0);
        }
    });
}
