//! Shared receive queues: one producer, and consumers that never wait for each other.

use arrayvec::ArrayVec;
use heddle_rings::Area;
use heddle_rings::srq::SrqPool;
use heddle_shm::{Sleeper, Waker};
use heddle_types::{Pd, RecvWr, Sge, Stag};
use loom::thread;

use super::{check, is_woken};
use crate::limits::count::Count;
use crate::qp::Owner;
use crate::srq::Srq;

fn queue(depth: u32, waker: Option<Waker>) -> Srq {
    let place = Count::default().take("queues", 1).unwrap();
    let area = Area::new(1 << 14).unwrap();
    Srq::new(&area, 7, Pd(1), (depth, 1), waker, (place, Owner::new(|| ()))).unwrap()
}

/// Posts a buffer whose address follows from its mark, so that a torn read is visible.
fn post(srq: &Srq, wr_id: u64) -> bool {
    let sge = Sge { stag: Stag(1), to: wr_id << 8, len: 1 };
    srq.post_recv(&RecvWr { wr_id, sges: &[sge] }).is_ok()
}

fn take(pool: &SrqPool) -> Option<u64> {
    let mut sges = ArrayVec::new();
    let wr_id = pool.take(&mut sges).unwrap()?;
    assert_eq!((sges.len(), sges[0].to), (1, wr_id << 8), "a copy of two entries");
    Some(wr_id)
}

#[test]
fn test_two_workers_take_each_buffer_once_while_its_slot_is_reused() {
    check(|| {
        let srq = queue(1, None);
        let pool = srq.pool();
        assert!(post(&srq, 1));
        let workers = [pool.clone(), pool.clone()].map(|p| thread::spawn(move || take(&p)));
        // The second post finds room once one of the workers has taken the first buffer.
        let again = post(&srq, 2);
        let mut seen: Vec<u64> = workers.into_iter().filter_map(|w| w.join().unwrap()).collect();
        seen.extend(std::iter::from_fn(|| take(&pool)));
        seen.sort_unstable();
        assert_eq!(seen, if again { vec![1, 2] } else { vec![1] });
    });
}

#[test]
fn test_reached_limit_raises_its_event_once() {
    check(|| {
        let sleeper = Sleeper::with_fd().unwrap();
        let srq = queue(2, Some(sleeper.waker()));
        let pool = srq.pool();
        assert!(post(&srq, 1));
        let worker = thread::spawn(move || take(&pool));
        srq.arm_limit(1);
        assert_eq!(worker.join().unwrap(), Some(1));
        assert!(srq.take_limit_event() && is_woken(&sleeper), "the event is lost");
        assert!(!srq.take_limit_event(), "it comes once");
    });
}
