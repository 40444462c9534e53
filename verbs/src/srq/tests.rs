//! Both ends of a shared receive queue, without queue pairs.

use arrayvec::ArrayVec;
use heddle_rings::Broken;
use heddle_types::{Sge, Stag};

use super::*;

fn area() -> Arc<Area> {
    Area::new(1 << 20).unwrap()
}

fn srq(area: &Arc<Area>, depth: u32, max_sge: u16) -> Srq {
    let place = Count::default().take("queues", 1).unwrap();
    Srq::new(area, 7, Pd(1), (depth, max_sge), None, (place, Owner::new(|| ()))).unwrap()
}

fn pieces(n: usize, seed: u32) -> Vec<Sge> {
    let piece = |i: u32| Sge { stag: Stag(seed + i), to: u64::from(seed) << 32, len: 3 + i };
    (0..u32::try_from(n).unwrap()).map(piece).collect()
}

fn take(pool: &SrqPool) -> Option<(u64, Vec<Sge>)> {
    let mut sges = ArrayVec::new();
    pool.take(&mut sges).unwrap().map(|wr_id| (wr_id, sges.to_vec()))
}

#[test]
fn test_receives_come_out_as_they_went_in_at_every_number_of_pieces() {
    let q = srq(&area(), 5, 16);
    let pool = q.pool();
    let mut next = 0;
    for round in 0u32..40 {
        for i in 0..5u32 {
            let list = pieces(((round + i) % 17) as usize, round * 100);
            q.post_recv(&RecvWr { wr_id: u64::from(round * 5 + i), sges: &list }).unwrap();
        }
        assert_eq!(q.post_recv(&RecvWr { wr_id: 0, sges: &[] }), Err(PostError::Full));
        assert_eq!(q.len(), 5);
        for i in 0..5u32 {
            let want = pieces(((round + i) % 17) as usize, round * 100);
            assert_eq!(take(&pool), Some((next, want)));
            next += 1;
        }
        assert_eq!((take(&pool), q.is_empty()), (None, true));
    }
}

#[test]
fn test_shared_receive_queue_refuses_more_sges_than_its_maximum() {
    let q = srq(&area(), 4, 3);
    assert!(q.post_recv(&RecvWr { wr_id: 1, sges: &pieces(3, 1) }).is_ok());
    let two = [RecvWr { wr_id: 2, sges: &pieces(3, 1) }, RecvWr { wr_id: 3, sges: &pieces(4, 1) }];
    assert_eq!(q.post_recvs(&two), Err(BatchError { posted: 1, error: PostError::TooManySges }));
    assert_eq!(q.len(), 2);
}

/// The event comes once, when fewer receives are left than the limit, also if so few are left
/// already.
#[test]
fn test_limit_event_is_raised_once_per_arm() {
    let q = srq(&area(), 8, 1);
    let pool = q.pool();
    for wr_id in 0..8 {
        q.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap();
    }
    take(&pool);
    assert!(!q.take_limit_event(), "not armed");
    q.arm_limit(6);
    take(&pool);
    assert!(!q.take_limit_event(), "six are left");
    take(&pool);
    assert!(q.take_limit_event(), "five are left");
    take(&pool);
    assert!(!q.take_limit_event(), "once");
    q.arm_limit(5);
    assert!(q.take_limit_event(), "four are left already");
    q.arm_limit(4);
    q.arm_limit(0);
    take(&pool);
    assert!(!q.take_limit_event(), "disarmed");
}

/// Each buffer goes to one worker, while the application posts and another thread arms the limit.
#[test]
fn test_each_receive_is_taken_once_by_concurrent_workers() {
    const ALL: u64 = if cfg!(miri) { 60 } else { 60_000 };
    let q = srq(&area(), 16, 4);
    let taken = AtomicU64::new(0);
    let sums: Vec<u64> = std::thread::scope(|s| {
        let (q, taken) = (&q, &taken);
        s.spawn(move || {
            for wr_id in 1..=ALL {
                let seed = u32::try_from(wr_id).unwrap();
                let list = pieces(usize::try_from(wr_id % 5).unwrap(), seed);
                while q.post_recv(&RecvWr { wr_id, sges: &list }) == Err(PostError::Full) {
                    std::thread::yield_now();
                }
                if wr_id % 100 == 0 {
                    q.arm_limit(4);
                }
            }
        });
        let work = move || {
            let pool = q.pool();
            let (mut sum, mut last) = (0, 0);
            while taken.load(Ordering::Relaxed) < ALL {
                let Some((wr_id, sges)) = take(&pool) else {
                    std::thread::yield_now();
                    continue;
                };
                assert!(wr_id > last, "in order");
                last = wr_id;
                let seed = u32::try_from(wr_id).unwrap();
                assert_eq!(sges, pieces(usize::try_from(wr_id % 5).unwrap(), seed));
                sum += wr_id;
                taken.fetch_add(1, Ordering::Relaxed);
            }
            sum
        };
        let workers = [s.spawn(work), s.spawn(work)];
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    assert_eq!(sums.iter().sum::<u64>(), ALL * (ALL + 1) / 2);
}

#[test]
fn test_invalid_ring_contents_are_reported_and_no_receive_is_taken() {
    let q = srq(&area(), 4, 16);
    let (pool, words) = (q.pool(), header(q.0.pool.block()));
    let mut sges = ArrayVec::new();
    for tail in [5, 1 << 40, u64::MAX] {
        words[at::TAIL].store(tail, Ordering::Relaxed);
        assert_eq!(pool.take(&mut sges), Err(Broken::Tail), "{tail}");
    }
    words[at::TAIL].store(1, Ordering::Relaxed);
    let entry = &q.0.pool.block().words()[at::ENTRIES];
    for (word, want) in [
        (1 << 24 | 1, Broken::Opcode(1)),
        (0, Broken::Blocks),
        (9 << 24, Broken::Blocks),
        (1 << 24 | 4 << 16, Broken::Data),
        (8 << 24 | 17 << 16, Broken::Data),
    ] {
        entry.store(word, Ordering::Relaxed);
        assert_eq!(pool.take(&mut sges), Err(want), "{word:#x}");
    }
    entry.store(1 << 24, Ordering::Relaxed);
    assert_eq!(pool.take(&mut sges), Ok(Some(0)));
    // The workers do not read the head in shared memory, so a false one harms only the application.
    words[at::HEAD].store(u64::MAX, Ordering::Relaxed);
    assert_eq!(pool.take(&mut sges), Ok(None));
}

#[test]
fn test_shared_receive_queue_in_use_cannot_be_destroyed() {
    let q = srq(&area(), 4, 1);
    let user = q.join().unwrap();
    let (q, error) = q.destroy().unwrap_err();
    assert_eq!(error, DeviceError::SrqInUse { users: 1 });
    drop(user);
    assert!(q.destroy().is_ok());
}

#[test]
fn test_another_process_posts_to_shared_receive_queue() {
    let area = area();
    let q = srq(&area, 4, 2);
    let theirs = Area::attach(area.fd().unwrap().try_clone_to_owned().unwrap(), area.len());
    let theirs = theirs.unwrap();
    let (off, words) = q.share();
    assert!(Srq::attach(&theirs, (off, words - 8)).is_none(), "shorter than it says");
    let far = Srq::attach(&theirs, (off, words)).unwrap();
    far.post_recv(&RecvWr { wr_id: 7, sges: &pieces(2, 9) }).unwrap();
    assert_eq!(take(&q.pool()), Some((7, pieces(2, 9))));
    assert!(far.is_empty() && !far.is_for(&theirs, Pd(1)), "it makes no queue pairs there");
}

/// Posts, takes and limits in any order, against a list. The ring turns many times, and is full at
/// times and empty at others.
#[test]
fn test_random_programs_match_a_list() {
    let (mut told, mut full, mut empty) = (0, 0, 0);
    for seed in 0..200 {
        let mut random = heddle_base::Random::new(&heddle_base::Seed::from_u64(seed));
        let r = &mut random;
        let (depth, max_sge) = (1 + r.below(9), 1 + r.below(4));
        let q = srq(&area(), u32::try_from(depth).unwrap(), u16::try_from(max_sge).unwrap());
        let pools = [q.pool(), q.pool()];
        let mut list = std::collections::VecDeque::new();
        let (mut limit, mut event) = (0, false);
        // Mostly posts for a while, then mostly takes.
        for wr_id in 0..400 {
            let posts = if wr_id / 40 % 2 == 0 { 6 } else { 3 };
            match r.below(10) {
                n if n < posts => {
                    let some = usize::try_from(r.below(max_sge + 2)).unwrap();
                    let sges = pieces(some, u32::try_from(wr_id).unwrap());
                    let want = match (some as u64 > max_sge, list.len() as u64 == depth) {
                        (true, _) => Err(PostError::TooManySges),
                        (_, true) => Err(PostError::Full),
                        _ => Ok(()),
                    };
                    if want.is_ok() {
                        list.push_back((wr_id, sges.clone()));
                    }
                    full += u32::from(want == Err(PostError::Full));
                    assert_eq!(q.post_recv(&RecvWr { wr_id, sges: &sges }), want, "seed {seed}");
                }
                8 => {
                    limit = r.below(depth + 2);
                    q.arm_limit(u32::try_from(limit).unwrap());
                }
                9 => {
                    assert_eq!(q.take_limit_event(), event, "seed {seed}");
                    told += u32::from(event);
                    event = false;
                }
                n => {
                    let found = take(&pools[usize::try_from(n % 2).unwrap()]);
                    empty += u32::from(found.is_none());
                    assert_eq!(found, list.pop_front(), "seed {seed}");
                }
            }
            // The workers check the limit when they take, and the application when it sets the
            // limit; a post never raises the event.
            if (list.len() as u64) < limit {
                (limit, event) = (0, true);
            }
            assert_eq!(q.len(), list.len() as u64, "seed {seed}");
        }
    }
    assert!(told > 1000 && full > 1000 && empty > 1000, "{told} {full} {empty}");
}
