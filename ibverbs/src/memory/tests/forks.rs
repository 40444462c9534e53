//! Children of `fork`, and their parents.

use super::*;

/// Runs `child` in a child of fork and returns its result; `child` must use nothing that another
/// thread may have locked.
fn in_a_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes only system calls, and ends without destructors.
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

/// The child gives back nothing of its parent's, and can still share its own memory.
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

/// `fork` returns twice on this stack, and both processes go on using it.
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

/// The part is too large to copy.
#[test]
fn test_child_has_its_own_view_of_very_large_memory() {
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
fn test_executed_program_inherits_no_memory_window() {
    let area = Area::new(2);
    area.fill();
    let _shared = area.share(0, 2 * PAGE);
    let output = std::process::Command::new("cat").arg("/proc/self/maps").output().unwrap();
    assert!(output.status.success());
    assert!(!String::from_utf8_lossy(&output.stdout).contains("heddle"), "it has a window");
}

/// Threads fork while other threads register.
#[test]
fn test_concurrent_forks_and_registrations_do_not_deadlock() {
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

/// glibc has the control block of a thread at the top of the thread's stack. A child resets the thread's number there,
/// and its parent would have no such thread any more.
#[test]
fn test_fork_leaves_threads_alone_whose_control_blocks_lie_in_shared_pages() {
    let (to_thread, from_test) = std::sync::mpsc::channel::<()>();
    let (to_test, from_thread) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: returns the address of this thread's control block.
        to_test.send(usize::try_from(unsafe { libc::pthread_self() }).unwrap()).unwrap();
        from_test.recv().unwrap();
    });
    let block = from_thread.recv().unwrap();
    // The kernel writes there when the thread runs, and ends the process where the guard forbids it: so the thread has
    // to sleep.
    settle(block / PAGE * PAGE);
    let number = || {
        let at = ptr::with_exposed_provenance::<i32>(block + thread::NUMBER);
        // SAFETY: a word of the control block of a thread that lives.
        unsafe { at.read_volatile() }
    };
    let before = number();
    let shared = share(block / PAGE * PAGE, PAGE, false).unwrap();
    for _ in 0..5 {
        assert_eq!(in_a_child(|| 0), 0);
    }
    drop(shared);
    let after = number();
    to_thread.send(()).unwrap();
    thread.join().unwrap();
    assert_ne!(before, 0);
    assert_eq!(after, before, "a child has changed a thread of its parent");
}

/// Waits until nothing changes in a page: its thread sleeps then.
fn settle(page: usize) {
    let bytes = || (page..page + PAGE).map(peek).collect::<Vec<_>>();
    // Threads of other tests may join a list there, and a later look serves as well.
    for _ in 0..50 {
        let before = bytes();
        std::thread::sleep(std::time::Duration::from_millis(20));
        if bytes() == before {
            break;
        }
    }
}

/// Writes what a control block begins with.
fn forge_control_block(area: &Area) {
    for word in [0, 2] {
        // SAFETY: within the first page, which is this test's.
        unsafe { area.byte(0).cast::<usize>().add(word).write_volatile(area.at) };
    }
}

/// Keeps this thread on one processor.
fn stay_on_one_processor() {
    // SAFETY: the set is plain data, and the calls read it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap(), &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
    }
}

/// The kernel finds waiters by their page, so a joiner has to wait at the page that has the thread's number now. Both
/// threads share a processor here: a joiner that is woken runs at once, in the middle of a conversion.
#[test]
fn test_joiner_waits_at_the_page_that_the_thread_has() {
    let area = Area::new(1);
    forge_control_block(&area);
    let word = area.at + thread::NUMBER;
    let wait = || loop {
        // SAFETY: waits while the word is 0, which the test changes at last.
        let waited =
            unsafe { sys::call(libc::SYS_futex, [word, sys::bits(libc::FUTEX_WAIT), 0, 0, 0, 0]) };
        if waited == Err(sys::Errno(libc::EAGAIN)) {
            break;
        }
    };
    // Moves one waiter from the word to the word, if there is one. To wake it instead would make a joiner of it that
    // comes while the library converts the page.
    let waits = || {
        let args = [word, sys::bits(libc::FUTEX_REQUEUE), 0, 1, word, 0];
        // SAFETY: changes nothing but the kernel's list of waiters.
        unsafe { sys::call(libc::SYS_futex, args) == Ok(1) }
    };
    let until_it_waits = || {
        let end = Instant::now() + 30 * PATIENCE;
        while !waits() {
            if Instant::now() >= end {
                // A test that panics would wait for its thread for ever.
                eprintln!("the joiner does not wait where the number is");
                std::process::abort();
            }
            std::thread::yield_now();
        }
    };
    stay_on_one_processor();
    std::thread::scope(|scope| {
        scope.spawn(wait);
        until_it_waits();
        for _ in 0..300 {
            let shared = area.share(0, PAGE);
            until_it_waits();
            drop(shared);
            until_it_waits();
        }
        area.set(thread::NUMBER, 1);
        // SAFETY: wakes all who wait for the word, as the kernel does when a thread ends.
        let _ =
            unsafe { sys::call(libc::SYS_futex, [word, sys::bits(libc::FUTEX_WAKE), 9, 0, 0, 0]) };
    });
}

/// A child resets the arenas of all threads but its own.
#[test]
fn test_fork_leaves_arenas_of_malloc_alone_whose_heads_lie_in_shared_pages() {
    const ARENA: usize = 64 << 20;
    let (to_thread, from_test) = std::sync::mpsc::channel::<()>();
    let (to_test, from_thread) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: memory of the arena that glibc gives to a thread; freed below.
        let some = unsafe { libc::malloc(1000) };
        let head = some.expose_provenance() / ARENA * ARENA;
        let shared = share(head, PAGE, false);
        to_test.send((head, shared.is_ok())).unwrap();
        from_test.recv().unwrap();
        drop(shared);
        // SAFETY: allocated above.
        unsafe { libc::free(some) };
    });
    let (head, is_shared) = from_thread.recv().unwrap();
    assert!(is_shared);
    settle(head);
    for _ in 0..5 {
        assert_eq!(in_a_child(|| 0), 0);
    }
    to_thread.send(()).unwrap();
    // glibc asserts that the arena of a thread that ends has that thread, and aborts this process.
    thread.join().unwrap();
}

/// A child frees the locks of all streams.
#[test]
fn test_fork_leaves_locks_of_streams_alone_that_lie_in_shared_pages() {
    unsafe extern "C" {
        fn flockfile(stream: *mut libc::FILE);
        fn ftrylockfile(stream: *mut libc::FILE) -> libc::c_int;
        fn funlockfile(stream: *mut libc::FILE);
    }
    // SAFETY: a stream of this test alone. Its lock is right after it, in the same allocation.
    unsafe {
        let stream = libc::tmpfile();
        assert!(!stream.is_null());
        let shared = share(stream.expose_provenance(), 500, false).unwrap();
        let at = stream.expose_provenance();
        flockfile(stream);
        assert_eq!(in_a_child(|| 0), 0);
        let tried = move || {
            let stream = ptr::with_exposed_provenance_mut(at);
            ftrylockfile(stream)
        };
        let refused = std::thread::spawn(tried).join().unwrap();
        funlockfile(stream);
        assert_ne!(refused, 0, "a child has freed the lock of its parent");
        drop(shared);
        libc::fclose(stream);
    }
}

/// Threads write to a page that is private while another forks, and the RNIC beside them.
#[test]
fn test_no_byte_is_lost_that_threads_or_the_rnic_write_while_a_thread_forks() {
    const OWN: usize = 2000;
    const PLACED: usize = 2001;
    let area = Area::new(1);
    forge_control_block(&area);
    let shared = area.share(0, PAGE);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut n, mut lost) = (0u8, 0);
            while !stop.load(Relaxed) {
                n = n.wrapping_add(1);
                area.set(OWN, n);
                rnic_writes(&shared, PLACED, n);
                // As before it posts, and after it has polled.
                fork::wait_for_fork();
                lost += i32::from(area.get(OWN) != n) + i32::from(area.get(PLACED) != n);
                lost += i32::from(rnic(&shared, OWN) != n);
                rounds.fetch_add(1, Relaxed);
            }
            lost
        });
        for _ in 0..50 {
            let before = rounds.load(Relaxed);
            assert_eq!(in_a_child(|| i32::from(area.is_shared(0))), 0);
            while rounds.load(Relaxed) == before {
                std::thread::yield_now();
            }
        }
        stop.store(true, Relaxed);
        assert_eq!(writer.join().unwrap(), 0, "bytes are lost");
    });
}
