//! Threads of the program, and the kernel on their behalf, write while memory is converted.

use super::*;

/// Three threads write each page and compare its contents with their own last write.
#[test]
fn test_threads_lose_no_write_while_memory_is_shared_and_unshared() {
    const PAGES: usize = 64;
    let area = Area::new(PAGES);
    let (stop, lost, writes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let word = |page: usize, writer: usize| {
        let at = area.at + page * PAGE + 8 * writer;
        // SAFETY: this is an aligned word of the area, and all accesses to it are atomic.
        unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(at)) }
    };
    std::thread::scope(|s| {
        for writer in 0..3 {
            let (stop, lost, writes, word) = (&stop, &lost, &writes, &word);
            s.spawn(move || {
                let mut round = 0;
                while !stop.load(Relaxed) {
                    for page in 0..PAGES {
                        let found = word(page, writer).load(Relaxed);
                        lost.fetch_add(u64::from(found != round), Relaxed);
                        word(page, writer).store(round + 1, Relaxed);
                    }
                    round += 1;
                    writes.fetch_add(PAGES as u64, Relaxed);
                }
                for page in 0..PAGES {
                    lost.fetch_add(u64::from(word(page, writer).load(Relaxed) != round), Relaxed);
                }
            });
        }
        // Go on until the writers have surely met many conversions.
        let mut rounds = 0;
        while rounds < 300 || writes.load(Relaxed) < 200_000 {
            let first = area.share(rounds % 7 * PAGE, 20 * PAGE);
            let second = area.share(0, PAGES * PAGE);
            drop(first);
            drop(second);
            rounds += 1;
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(lost.load(Relaxed), 0, "of {} writes", writes.load(Relaxed));
}

/// A thread reads from a file into a page at that moment. If the guard makes the kernel wait too,
/// no read fails.
#[test]
fn test_kernel_writes_during_sharing_wait_or_fail_and_never_go_elsewhere() {
    let area = Area::new(4);
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Relaxed) {
                for page in 0..4 {
                    area.set(page * PAGE, 1);
                    let fd = std::os::fd::AsRawFd::as_raw_fd(&zeros);
                    // SAFETY: the call changes only mappings of this test.
                    let read = unsafe { libc::read(fd, area.byte(page * PAGE), 64) };
                    let why = std::io::Error::last_os_error().raw_os_error();
                    if read != 64 {
                        let is_full = lock()
                            .uffd
                            .as_ref()
                            .is_some_and(|u| u.as_ref().is_ok_and(|u| u.is_full));
                        assert!(!is_full, "{read} bytes, {why:?}");
                    }
                    // The sharing may begin while the kernel writes: then it stops in between.
                    match read {
                        1..=64 => assert_eq!(area.get(page * PAGE), 0, "what was read is lost"),
                        _ => assert_eq!((read, why), (-1, Some(libc::EFAULT))),
                    }
                    reads.fetch_add(1, Relaxed);
                }
            }
        });
        let mut rounds = 0;
        while rounds < 300 || reads.load(Relaxed) < 2_000 {
            drop(area.share(0, 4 * PAGE));
            rounds += 1;
        }
        stop.store(true, Relaxed);
    });
}

/// Threads register and unregister at once, each its own memory and all of them common memory.
#[test]
fn test_threads_register_and_deregister_concurrently() {
    let common = Area::new(16);
    std::thread::scope(|s| {
        for thread in 0..4u8 {
            let common = &common;
            s.spawn(move || {
                let own = Area::new(8);
                for round in 0..100u8 {
                    let shared = own.share(usize::from(round % 4) * PAGE + 3, 2 * PAGE);
                    let also = common.share(usize::from(thread) * 64, 15 * PAGE);
                    common.set(usize::from(thread) * 64, round);
                    assert_eq!(rnic(&also, 0), round);
                    own.set(usize::from(round % 4) * PAGE + 3, round);
                    assert_eq!(rnic(&shared, 0), round);
                }
            });
        }
    });
    assert!(!(0..16).any(|page| common.is_shared(page * PAGE)));
}

/// The heap, the stack and the lock itself may lie in the pages: the conversion touches none of
/// them.
#[test]
fn test_thread_registers_its_own_stack_and_the_heap_that_it_uses() {
    let mut on_stack = [1u8; 3 * PAGE];
    let heap = vec![2u8; 2000];
    for _ in 0..100 {
        let at = (&raw mut on_stack).expose_provenance();
        let stack = share(at, on_stack.len(), false).unwrap();
        let small = share(heap.as_ptr().expose_provenance(), heap.len(), false).unwrap();
        assert_eq!((rnic(&stack, 5), rnic(&small, 1999)), (1, 2));
        rnic_writes(&stack, 5, 7);
        assert_eq!(peek(at + 5), 7);
        // Other blocks of the same heap pages still work.
        drop((0..50).map(|n| vec![n; 100]).collect::<Vec<Vec<u8>>>());
        rnic_writes(&stack, 5, 1);
        drop((stack, small));
    }
    std::hint::black_box(&mut on_stack);
}
