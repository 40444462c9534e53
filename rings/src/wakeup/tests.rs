use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::{Area, Bells};

/// Returns true if a wake-up is there, or comes in time.
fn is_woken(sleeper: &WorkerSleeper, time: Duration) -> bool {
    let fd = sleeper.fd();
    let time = Timespec::try_from(time).unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).unwrap_or(0) > 0
}

fn is_woken_now(sleeper: &WorkerSleeper) -> bool {
    is_woken(sleeper, Duration::ZERO)
}

/// Most rounds of a test, and the longest time for them: a test runs as many as time allows.
const ROUNDS: u64 = 1_000_000;
const TIME: Duration = Duration::from_secs(2);

/// Two threads meet over and over. The first says that it is about to sleep and looks for work,
/// by `find`; the second has work for it and says so, by `tell`. Both begin at the same time.
/// Afterwards either `find` has found the work, or there is a wake-up; no clock decides.
fn meet(sleeper: &mut WorkerSleeper, tell: impl Fn() + Sync, mut find: impl FnMut() -> bool) {
    let (go, told) = (AtomicU64::new(0), AtomicU64::new(0));
    let (mut n, mut delay) = (0, 0u64);
    let end = Instant::now() + TIME;
    let nanos = |n: u64| (0..n).for_each(|i| _ = std::hint::black_box(i));
    let until = |word: &AtomicU64, n: u64| {
        let mut spins = 0u32;
        while word.load(Ordering::Acquire) < n {
            spins += 1;
            if spins.is_multiple_of(4096) {
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 1..=ROUNDS {
                until(&go, n);
                if told.load(Ordering::Relaxed) == u64::MAX {
                    break;
                }
                tell();
                told.store(n, Ordering::Release);
            }
        });
        while n < ROUNDS && (n % 64 != 0 || Instant::now() < end) {
            n += 1;
            let start = Instant::now();
            go.store(n, Ordering::Release);
            nanos(delay + n % 16);
            sleeper.arm();
            let at_once = find();
            until(&told, n);
            let took = start.elapsed();
            if !at_once && !sleeper.clear() {
                // Let the other thread end as well.
                told.store(u64::MAX, Ordering::Relaxed);
                go.store(u64::MAX, Ordering::Release);
                panic!("round {n}: slept over");
            }
            // The two threads have to meet within the same few nanoseconds, where both outcomes are
            // equally likely. A round in which one of them had no processor says nothing about
            // that.
            if took < Duration::from_micros(5) {
                delay = if at_once { delay.saturating_sub(5) } else { delay + 5 };
            }
            sleeper.disarm();
            sleeper.clear();
            if !at_once {
                assert!(find(), "round {n}: woken for nothing");
            }
        }
        told.store(u64::MAX, Ordering::Relaxed);
        go.store(u64::MAX, Ordering::Release);
    });
    assert!(n > 100, "{n} rounds");
}

/// Does the same with a thread that sleeps. A wake-up is lost if it is missing although `tell` has
/// returned and `find` did not find the work before.
fn sleep(sleeper: &mut WorkerSleeper, tell: impl Fn() + Sync, mut find: impl FnMut() -> bool) {
    const ROUNDS: u64 = 5_000;
    let (told, found) = (AtomicU64::new(0), AtomicU64::new(0));
    let (mut n, mut sleeps) = (0, 0);
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 1..=ROUNDS {
                tell();
                told.store(n, Ordering::Release);
                while found.load(Ordering::Acquire) < n {
                    std::thread::yield_now();
                }
            }
        });
        while n < ROUNDS {
            sleeper.arm();
            if find() {
                sleeper.disarm();
                n += 1;
                found.store(n, Ordering::Release);
                continue;
            }
            sleeps += 1;
            while !is_woken(sleeper, Duration::from_millis(10)) {
                if told.load(Ordering::Acquire) > n && !is_woken_now(sleeper) {
                    // Let the other thread end as well.
                    found.store(u64::MAX, Ordering::Release);
                    panic!("round {n}: a wake-up was lost");
                }
            }
            sleeper.disarm();
            sleeper.clear();
        }
    });
    assert!(sleeps > 0, "it never slept");
}

#[test]
fn test_doorbell_always_ends_the_sleep_of_its_worker() {
    let wakers = WorkerWakers::new(2).unwrap();
    let mut sleeper = wakers.sleeper(&[1]).unwrap();
    let area = Area::new(Bells::bytes(2)).unwrap();
    let bells = Bells::new(&area, 2).unwrap().waking(Some(wakers));
    let ring = || bells.ring(1, 77);
    meet(&mut sleeper, ring, || bells.take(1).count() > 0);
    sleep(&mut sleeper, ring, || bells.take(1).count() > 0);
}

#[test]
fn test_handed_on_work_always_ends_the_sleep_of_its_worker() {
    let wakers = WorkerWakers::new(1).unwrap();
    let mut sleeper = wakers.sleeper(&[0]).unwrap();
    let waker = WorkerWaker::new(&wakers, 0);
    let (tail, mut head) = (AtomicU64::new(0), 0);
    let hand_on = || {
        tail.store(tail.load(Ordering::Relaxed) + 1, Ordering::Release);
        waker.wake();
    };
    let mut find = || {
        let tail = tail.load(Ordering::Acquire);
        std::mem::replace(&mut head, tail) != tail
    };
    meet(&mut sleeper, hand_on, &mut find);
    sleep(&mut sleeper, hand_on, &mut find);
}

#[test]
fn test_awake_worker_is_not_woken_and_sleeping_worker_is_woken_once() {
    let wakers = WorkerWakers::new(3).unwrap();
    wakers.wake_all();
    let mut a = wakers.sleeper(&[0, 2]).unwrap();
    let mut b = wakers.sleeper(&[1]).unwrap();
    wakers.wake_all();
    assert!(!is_woken_now(&a) && !is_woken_now(&b));
    a.arm();
    wakers.wake(2);
    assert!(is_woken_now(&a) && !is_woken_now(&b));
    // A nap needs only one wake-up.
    assert!(a.clear() && !is_woken_now(&a));
    wakers.wake(2);
    wakers.wake(2);
    assert!(!a.clear());
    // A wake-up of the thread's other worker.
    wakers.wake(0);
    assert!(a.clear());
    a.disarm();
    a.arm();
    wakers.wake(2);
    assert!(a.clear());
    b.arm();
    drop(b);
    wakers.wake(1);
    // A worker that no thread polls.
    wakers.wake(3);
}

#[test]
fn test_worker_has_at_most_one_sleeper() {
    let wakers = WorkerWakers::new(2).unwrap();
    let _a = wakers.sleeper(&[0]).unwrap();
    assert!(wakers.sleeper(&[0]).is_err() && wakers.sleeper(&[2]).is_err());
}

/// Attaches to the wakers as another process does.
fn attach(wakers: &Arc<WorkerWakers>, lent: &Lent) -> Arc<WorkerWakers> {
    let page = wakers.page_fd().try_clone_to_owned().unwrap();
    let fds = lent.fds().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    WorkerWakers::attach(page, fds, lent.by_worker()).unwrap()
}

#[test]
fn test_lent_waker_wakes_until_it_is_revoked() {
    let wakers = WorkerWakers::new(2).unwrap();
    assert!(wakers.lend().unwrap().is_none(), "nobody sleeps");
    let mut sleeper = wakers.sleeper(&[1]).unwrap();
    let lent = wakers.lend().unwrap().unwrap();
    let theirs = attach(&wakers, &lent);
    theirs.wake(1);
    theirs.wake(0);
    assert!(!is_woken_now(&sleeper));
    sleeper.arm();
    theirs.wake(0);
    assert!(!is_woken_now(&sleeper), "worker 0 never sleeps");
    theirs.wake(1);
    assert!(sleeper.clear());
    sleeper.disarm();
    drop(lent);
    sleeper.arm();
    theirs.wake(1);
    assert!(!is_woken_now(&sleeper), "it was taken back");
    wakers.wake(1);
    assert!(sleeper.clear());
}

/// The application does anything to the descriptors that it was given.
#[test]
fn test_hostile_application_cannot_block_or_steal_wakeups() {
    let wakers = WorkerWakers::new(1).unwrap();
    let mut sleeper = wakers.sleeper(&[0]).unwrap();
    let lent = [wakers.lend().unwrap().unwrap(), wakers.lend().unwrap().unwrap()];
    let honest = attach(&wakers, &lent[0]);
    let hostile = lent[1].fds().next().unwrap();
    // Reads and writes wait from here on; the counter is full.
    rustix::fs::fcntl_setfl(hostile, rustix::fs::OFlags::empty()).unwrap();
    rustix::io::write(hostile, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let start = Instant::now();
    for _ in 0..1000 {
        sleeper.arm();
        wakers.wake(0);
        assert!(sleeper.clear());
        sleeper.disarm();
        sleeper.arm();
        honest.wake(0);
        assert!(sleeper.clear());
        sleeper.disarm();
        assert!(!sleeper.clear());
    }
    // The application takes back what it wrote, and writes again: this causes one wake-up, and no
    // wait.
    let mut bytes = [0; 8];
    rustix::io::read(hostile, &mut bytes).unwrap();
    rustix::io::write(hostile, &1u64.to_ne_bytes()).unwrap();
    assert!(sleeper.clear() && !sleeper.clear());
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// An application gets at most this many descriptors, no matter how many threads there are.
#[test]
fn test_threads_beyond_descriptor_limit_share_descriptors() {
    let wakers = WorkerWakers::new(MAX_LENT + 2).unwrap();
    let mut all: Vec<_> = (0..MAX_LENT + 2).map(|w| wakers.sleeper(&[w]).unwrap()).collect();
    let lent = wakers.lend().unwrap().unwrap();
    assert_eq!(lent.fds().count(), MAX_LENT);
    let theirs = attach(&wakers, &lent);
    for w in 0..all.len() {
        all.iter_mut().for_each(WorkerSleeper::arm);
        theirs.wake(w);
        let woken: Vec<usize> = (0..all.len()).filter(|&i| all[i].clear()).collect();
        let same = (0..all.len()).filter(|i| i % MAX_LENT == w % MAX_LENT);
        assert_eq!(woken, same.collect::<Vec<_>>());
        all.iter_mut().for_each(WorkerSleeper::disarm);
    }
}
