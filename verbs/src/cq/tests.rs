//! Both ends of a completion queue, without a worker.

use super::*;
use crate::limits::count::Count;
use heddle_types::{CqeOp, CqeStatus, Qpn, Queue};

fn cqe(wr_id: u64, solicited: bool) -> Cqe {
    Cqe {
        wr_id,
        qpn: Qpn(1),
        queue: Queue::Rq,
        op: CqeOp::Recv,
        status: CqeStatus::Success,
        solicited,
        len: 0,
        invalidated: None,
        immediate: None,
    }
}

fn place() -> Place {
    Count::default().take("queues", 1).unwrap()
}

fn cq(depth: u32, workers: usize, waker: Option<Waker>) -> Cq {
    Cq::new(&Area::new(1 << 16).unwrap(), 3, depth, workers, waker, place()).unwrap()
}

#[test]
fn test_queue_yields_completions_of_all_workers_once_and_in_order() {
    let cq = cq(4, 2, None);
    let (mut a, mut b) = (cq.link().producer(0), cq.link().producer(1));
    let mut seen: Vec<u64> = Vec::new();
    for round in 0..10 {
        for i in 0..4 {
            a.push(&cqe(round * 4 + i, false)).unwrap();
        }
        b.push(&cqe(1000 + round, false)).unwrap();
        assert!(!cq.is_empty());
        assert_eq!(cq.poll_batch(99, |c| seen.push(c.wr_id)), 5);
    }
    assert!(cq.is_empty() && cq.check().is_ok());
    let (a, b): (Vec<u64>, Vec<u64>) = seen.into_iter().partition(|i| *i < 1000);
    assert!(a.into_iter().eq(0..40) && b.into_iter().eq(1000..1010));
}

/// The worker is of another build than the application.
#[test]
fn test_queue_skips_completions_of_unknown_operation() {
    let cq = cq(8, 1, None);
    let mut p = cq.link().producer(0);
    for i in 0..6 {
        p.push(&cqe(i, false)).unwrap();
    }
    for i in [0, 1, 3, 5] {
        let entries = Entries::attach(&cq.0.block, 1).unwrap();
        entries.slot(0, i).unwrap()[1].fetch_or(0xff, Ordering::Relaxed);
    }
    assert_eq!([cq.poll(), cq.poll()].map(|c| c.map(|c| c.wr_id)), [Some(2), Some(4)]);
    assert_eq!((cq.poll(), cq.is_empty()), (None, true));
}

/// Two threads poll the completions that two workers write, and look without the lock first.
#[test]
fn test_each_completion_is_polled_once_by_concurrent_threads() {
    const EACH: u64 = if cfg!(miri) { 50 } else { 20_000 };
    let cq = cq(8, 2, None);
    let taken = AtomicU64::new(0);
    let sums: Vec<u64> = std::thread::scope(|s| {
        for worker in 0..2 {
            let (cq, mut p) = (&cq, cq.link().producer(worker));
            s.spawn(move || {
                for i in 0..EACH {
                    // Wait while the ring is full, so that nothing is lost. HEAD counts the entries
                    // given back, and the producer goes by this word.
                    let head = &cq.0.block.words()[cq.0.ends[worker].start + at::HEAD];
                    while i - head.load(Ordering::Acquire) >= 8 {
                        std::thread::yield_now();
                    }
                    p.push(&cqe(i + 1, false)).unwrap();
                }
            });
        }
        let poll = || {
            let mut sum = 0;
            while taken.load(Ordering::Relaxed) < 2 * EACH {
                match cq.poll() {
                    Some(c) => {
                        sum += c.wr_id;
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                    None => std::thread::yield_now(),
                }
            }
            sum
        };
        let pollers = [s.spawn(poll), s.spawn(poll)];
        pollers.into_iter().map(|p| p.join().unwrap()).collect()
    });
    assert_eq!(taken.into_inner(), 2 * EACH);
    assert_eq!(sums.iter().sum::<u64>(), EACH * (EACH + 1));
    assert!(cq.is_empty() && cq.check().is_ok());
}

#[test]
fn test_overflow_is_reported_and_loses_only_completions_without_room() {
    let cq = cq(2, 1, None);
    let mut p = cq.link().producer(0);
    assert!(!p.has_news());
    assert_eq!(p.push(&cqe(1, false)), Ok(()));
    assert_eq!(p.push(&cqe(2, false)), Ok(()));
    assert!(p.has_news());
    p.notify();
    assert!(!p.has_news());
    assert_eq!(p.push(&cqe(3, false)), Err(CqOverflow));
    assert!(p.has_news(), "whoever waits has to hear of it");
    assert_eq!(cq.check(), Err(CqOverflow));
    let sleeper = Sleeper::new();
    assert_eq!(cq.wait(&sleeper, Duration::ZERO).map(|c| c.wr_id), Ok(1));
    assert_eq!(cq.poll().map(|c| c.wr_id), Some(2));
    assert_eq!(cq.wait(&sleeper, Duration::ZERO), Err(WaitError::Overflow(CqOverflow)));
}

#[test]
fn test_only_an_armed_queue_wakes_and_only_for_what_it_is_armed_for() {
    let sleeper = Sleeper::with_fd().unwrap();
    let cq = cq(16, 1, Some(sleeper.waker()));
    let mut p = cq.link().producer(0);
    let woken = || {
        let start = Instant::now();
        sleeper.sleep(Duration::from_millis(20), || false);
        start.elapsed() < Duration::from_millis(15)
    };
    let mut write = |solicited| {
        p.push(&cqe(1, solicited)).unwrap();
        p.notify();
    };
    write(true);
    assert!(!woken(), "not armed");
    cq.arm(Arm::Solicited);
    write(false);
    assert!(!woken(), "not solicited");
    write(true);
    assert!(woken());
    write(true);
    assert!(!woken(), "armed once");
    cq.arm(Arm::Next);
    write(false);
    assert!(woken());
}

#[test]
fn test_attached_queue_continues_where_it_was() {
    let area = Area::new(1 << 16).unwrap();
    let cq = Cq::new(&area, 1, 4, 1, None, place()).unwrap();
    let mut p = cq.link().producer(0);
    p.push(&cqe(1, false)).unwrap();
    p.push(&cqe(2, false)).unwrap();
    assert_eq!(cq.poll().map(|c| c.wr_id), Some(1));
    let theirs = Area::attach(area.fd().unwrap().try_clone_to_owned().unwrap(), area.len());
    let theirs = Cq::attach(&theirs.unwrap(), cq.share()).unwrap();
    assert_eq!(theirs.poll().map(|c| c.wr_id), Some(2));
    assert!(theirs.poll().is_none());
    let (off, words) = cq.share();
    assert!(Cq::attach(&area, (off, words - 1)).is_none(), "shorter than it says");
}

/// A head that the application made up does not make the worker overwrite or loop.
#[test]
fn test_producer_reports_overflow_when_head_is_impossible() {
    let cq = cq(4, 1, None);
    let mut p = cq.link().producer(0);
    for i in 0..4 {
        p.push(&cqe(i, false)).unwrap();
    }
    for head in [u64::MAX, 5, 1 << 40] {
        cq.0.block.words()[at::FIRST + at::HEAD].store(head, Ordering::Relaxed);
        assert_eq!(p.push(&cqe(9, false)), Err(CqOverflow), "{head}");
    }
}

/// Requests a new size; the workers do not know of it yet.
fn resize(cq: &Cq, depth: u32) -> Result<CqLink, DeviceError> {
    let mut told = None;
    cq.resize(depth, |link| {
        told = Some(link);
        Ok(())
    })?;
    Ok(told.unwrap())
}

proptest::proptest! {
    /// Completions come once and in order, and none is lost while there is room by the smaller of
    /// the sizes, no matter when either side learns of a new size.
    #[test]
    fn test_resized_queue_loses_nothing(steps in proptest::collection::vec(0u8..12, 1..400)) {
        let cq = cq(8, 2, None);
        let mut ends = [cq.link().producer(0), cq.link().producer(1)];
        let (mut written, mut read) = ([0u64; 2], [0u64; 2]);
        let mut news: [Option<CqLink>; 2] = [None, None];
        // `least` is what the smaller room holds; it counts while a worker may still write to
        // either room.
        let (mut size, mut least) = (8, 8);
        for step in steps {
            match step {
                0..=5 => {
                    let w = usize::from(step % 2);
                    if written[w] - read[w] < least {
                        written[w] += 1;
                        ends[w].push(&cqe((w as u64) << 32 | written[w], false)).unwrap();
                    }
                }
                6..=8 => {
                    let mut take = |c: Cqe| {
                        let w = usize::try_from(c.wr_id >> 32).unwrap();
                        read[w] += 1;
                        assert_eq!(c.wr_id & 0xffff_ffff, read[w], "in order");
                    };
                    match step {
                        6 => cq.poll().into_iter().for_each(&mut take),
                        7 => { cq.poll_batch(3, take); }
                        _ => { cq.poll_batch(100, take); }
                    }
                }
                9 | 10 => {
                    let depth = 1 << ((written[0] + read[1]) % 6);
                    let most = (written[0] - read[0]).max(written[1] - read[1]);
                    match resize(&cq, depth) {
                        Ok(link) => {
                            assert!(u64::from(depth) >= most, "it was refused otherwise");
                            news = [Some(link.clone()), Some(link)];
                            least = size.min(u64::from(depth));
                            size = u64::from(depth);
                        }
                        Err(DeviceError::CqTooSmall { held, .. }) => assert_eq!(held, most),
                        Err(e) => assert_eq!(e, DeviceError::CqResizing),
                    }
                }
                _ => {
                    for (end, link) in ends.iter_mut().zip(&mut news) {
                        if let Some(link) = link.take() {
                            end.renew(&link);
                        }
                    }
                    least = size;
                }
            }
        }
        while cq.poll_batch(1000, |c| read[usize::try_from(c.wr_id >> 32).unwrap()] += 1) > 0 {}
        assert_eq!(read, written);
        assert!(cq.check().is_ok() && cq.is_empty());
    }
}

#[test]
fn test_new_queue_size_takes_effect_when_worker_learns_of_it() {
    let cq = cq(2, 1, None);
    let mut p = cq.link().producer(0);
    p.push(&cqe(1, false)).unwrap();
    p.push(&cqe(2, false)).unwrap();
    assert_eq!(resize(&cq, 1).err(), Some(DeviceError::CqTooSmall { held: 2, depth: 1 }));
    let link = resize(&cq, 4).unwrap();
    assert_eq!(cq.depth(), 4);
    assert_eq!(resize(&cq, 8).err(), Some(DeviceError::CqResizing), "not heard of");
    p.renew(&link);
    assert_eq!(resize(&cq, 8).err(), Some(DeviceError::CqResizing), "the old ones not polled");
    for i in 3..=6 {
        assert_eq!(p.push(&cqe(i, false)), Ok(()), "{i}");
    }
    assert_eq!(p.push(&cqe(7, false)), Err(CqOverflow));
    let mut seen = Vec::new();
    while cq.poll_batch(100, |c| seen.push(c.wr_id)) > 0 {}
    assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    assert!(resize(&cq, 8).is_ok());
}

#[test]
fn test_refused_resize_leaves_queue_size_unchanged() {
    let cq = cq(2, 1, None);
    let refused = cq.resize(8, |_| Err(DeviceError::Overloaded));
    assert_eq!((refused, cq.depth()), (Err(DeviceError::Overloaded), 2));
    let mut p = cq.link().producer(0);
    p.push(&cqe(1, false)).unwrap();
    p.push(&cqe(2, false)).unwrap();
    assert_eq!(p.push(&cqe(3, false)), Err(CqOverflow));
    assert_eq!(cq.poll_batch(9, |_| ()), 2);
}

/// A worker gets the queue for the first time, or again, after it was resized.
#[test]
fn test_worker_that_joins_after_resize_writes_to_new_ring() {
    let cq = cq(2, 1, None);
    let mut p = cq.link().producer(0);
    p.push(&cqe(1, false)).unwrap();
    drop(p);
    let link = resize(&cq, 4).unwrap();
    let mut p = cq.link().producer(0);
    p.renew(&link);
    for i in 2..=5 {
        p.push(&cqe(i, false)).unwrap();
    }
    let mut seen = Vec::new();
    while cq.poll_batch(100, |c| seen.push(c.wr_id)) > 0 {}
    assert_eq!(seen, [1, 2, 3, 4, 5]);
}

/// The area gets the old room back, so an application can change sizes for ever.
#[test]
fn test_area_gets_old_ring_back_after_each_resize() {
    let cq = cq(64, 1, None);
    let mut p = cq.link().producer(0);
    for i in 0..if cfg!(miri) { 20 } else { 1000 } {
        let link = resize(&cq, if i % 2 == 0 { 256 } else { 64 }).unwrap();
        p.push(&cqe(i, false)).unwrap();
        p.renew(&link);
        assert_eq!(cq.poll().map(|c| c.wr_id), Some(i));
    }
}

#[test]
fn test_another_process_follows_queue_to_its_new_ring() {
    let area = Area::new(1 << 16).unwrap();
    let cq = Cq::new(&area, 1, 4, 1, None, place()).unwrap();
    let theirs = Area::attach(area.fd().unwrap().try_clone_to_owned().unwrap(), area.len());
    let theirs = theirs.unwrap();
    let far = Cq::attach(&theirs, cq.share()).unwrap();
    let mut p = cq.link().producer(0);
    p.push(&cqe(1, false)).unwrap();
    let link = resize(&cq, 16).unwrap();
    assert!(Cq::attach(&theirs, cq.share()).is_none(), "under way");
    p.renew(&link);
    p.push(&cqe(2, false)).unwrap();
    let mut seen = Vec::new();
    while far.poll_batch(100, |c| seen.push(c.wr_id)) > 0 {}
    assert_eq!(seen, [1, 2]);
    assert!(far.is_empty() && Cq::attach(&theirs, cq.share()).is_some());
    assert_eq!(far.resize(4, |_| Ok(())), Err(DeviceError::ForeignCq));
}

/// A worker writes and an application polls while a third thread changes the size.
#[test]
fn test_queue_is_resized_while_other_threads_write_and_poll() {
    const ALL: u64 = if cfg!(miri) { 100 } else { 50_000 };
    let cq = cq(16, 1, None);
    let (links, news) = std::sync::mpsc::channel::<CqLink>();
    let [taken, sizes] = [0; 2].map(AtomicU64::new);
    // Number of completions, stored once all are written: at least ALL, and as many as it takes
    // until a resize has happened meanwhile.
    let end = AtomicU64::new(u64::MAX);
    std::thread::scope(|s| {
        let (cq, taken, sizes, end) = (&cq, &taken, &sizes, &end);
        let mut p = cq.link().producer(0);
        s.spawn(move || {
            for i in 0.. {
                if i >= ALL && sizes.load(Ordering::Relaxed) > 1 {
                    return end.store(i, Ordering::Release);
                }
                if let Ok(link) = news.try_recv() {
                    p.renew(&link);
                }
                // Stay within the smallest size that the queue has.
                while i - taken.load(Ordering::Acquire) >= 8 {
                    std::thread::yield_now();
                }
                p.push(&cqe(i, false)).unwrap();
            }
        });
        s.spawn(move || {
            let mut done = 0;
            while end.load(Ordering::Relaxed) == u64::MAX {
                if let Ok(link) = resize(cq, [8, 64, 16][done % 3]) {
                    done += 1;
                    sizes.fetch_add(1, Ordering::Relaxed);
                    let _ = links.send(link);
                }
                std::thread::yield_now();
            }
        });
        let mut next = 0;
        while next < end.load(Ordering::Acquire) {
            cq.poll_batch(5, |c| {
                assert_eq!(c.wr_id, next);
                next += 1;
            });
            taken.store(next, Ordering::Release);
        }
        assert_eq!(next, end.load(Ordering::Relaxed));
    });
    assert!(cq.check().is_ok());
}

/// The forgotten queue pair's completions are partly polled, and lie between those of others.
#[test]
fn test_completions_of_forgotten_queue_pair_are_not_polled() {
    let cq = cq(8, 2, None);
    let (mut a, mut b) = (cq.link().producer(0), cq.link().producer(1));
    let of = |qpn: u32, wr_id: u64| Cqe { qpn: Qpn(qpn), ..cqe(wr_id, false) };
    for (qpn, wr_id) in [(1, 1), (2, 2), (1, 3), (3, 4), (2, 5)] {
        a.push(&of(qpn, wr_id)).unwrap();
    }
    b.push(&of(1, 6)).unwrap();
    assert_eq!(cq.poll().map(|c| c.wr_id), Some(1));
    cq.forget(Qpn(2));
    assert!(!cq.is_empty());
    // The worker writes one more, which comes after the completions already there.
    a.push(&of(4, 7)).unwrap();
    let mut seen: Vec<u64> = Vec::new();
    assert_eq!(cq.poll_batch(2, |c| seen.push(c.wr_id)), 2);
    seen.extend(cq.poll().map(|c| c.wr_id));
    assert_eq!(cq.poll_batch(9, |c| seen.push(c.wr_id)), 1);
    assert_eq!((seen.last(), seen.len(), cq.is_empty()), (Some(&7), 4, true));
    seen.sort_unstable();
    assert_eq!(seen, [3, 4, 6, 7]);
    // The rings have their room back.
    (0..8).for_each(|n| a.push(&of(1, n)).unwrap());
    assert_eq!(cq.poll_batch(99, |_| ()), 8);
}

#[test]
fn test_queue_reports_queue_pairs_with_unpolled_successes() {
    let cq = cq(8, 2, None);
    let (mut a, mut b) = (cq.link().producer(0), cq.link().producer(1));
    let of = |qpn: u32, status| Cqe { qpn: Qpn(qpn), status, ..cqe(1, false) };
    a.push(&of(1, CqeStatus::Success)).unwrap();
    a.push(&of(2, CqeStatus::Flushed)).unwrap();
    b.push(&of(3, CqeStatus::Success)).unwrap();
    let waits = |qpn| cq.has_success_of(Qpn(qpn));
    assert_eq!([1, 2, 3, 4].map(waits), [true, false, true, false]);
    // Also where they were set aside.
    cq.forget(Qpn(3));
    assert_eq!([1, 2, 3, 4].map(waits), [true, false, false, false]);
    assert_eq!(cq.poll_batch(1, |_| ()), 1);
    assert_eq!([1, 2, 3, 4].map(waits), [false; 4]);
}

/// The program has polled all completions in the first room and has not looked since its worker
/// moved to the second. The queue's words describe the third room by then, and the program must not
/// take that for the room where the worker writes.
#[test]
fn test_queue_is_resized_again_only_after_its_program_has_followed() {
    let area = Area::new(1 << 16).unwrap();
    let cq = Cq::new(&area, 1, 4, 1, None, place()).unwrap();
    let theirs = Area::attach(area.fd().unwrap().try_clone_to_owned().unwrap(), area.len());
    let far = Cq::attach(&theirs.unwrap(), cq.share()).unwrap();
    let again = |depth| far.resize_elsewhere(|| resize(&cq, depth));
    let mut p = cq.link().producer(0);
    p.push(&cqe(1, false)).unwrap();
    p.push(&cqe(2, false)).unwrap();
    assert_eq!(far.poll().map(|c| c.wr_id), Some(1));
    let second = again(8).unwrap();
    assert_eq!(again(16).err(), Some(DeviceError::CqResizing), "the worker writes to the first");
    p.renew(&second);
    // The program has not polled completion 2, and takes it along.
    let third = again(16).unwrap();
    assert_eq!((cq.0.ends[0].held(&cq.0.block), far.is_empty()), (0, false));
    p.push(&cqe(3, false)).unwrap();
    assert_eq!(std::iter::from_fn(|| far.poll()).map(|c| c.wr_id).collect::<Vec<_>>(), [2, 3]);
    p.renew(&third);
    (10..20).for_each(|n| p.push(&cqe(n, false)).unwrap());
    assert!(std::iter::from_fn(|| far.poll()).map(|c| c.wr_id).eq(10..20));
}
