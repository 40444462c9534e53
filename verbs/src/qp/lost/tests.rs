//! A worker that stops at some point, as one whose process is killed does.

use std::sync::Arc;
use std::time::Duration;

use heddle_base::sync::atomic::{Ordering, fence};
use heddle_cm::AppId;
use heddle_iwarp::{
    Cqe, CqeOp, CqeStatus, Data, Pd, PostError, Qpn, Queue, RecvWr, SendOp, SendWr, Sge, Stag,
};

use crate::cq::Cq;
use crate::limits::count::Count;
use crate::qp::{Owner, Qp, QpInit, header};
use crate::ring::layout::{qp as at, state};
use crate::ring::{Area, Bells, Entry};
use crate::worker::WorkerQp;

struct Bench {
    qp: Qp,
    worker: WorkerQp,
    cq: Cq,
    entry: Entry,
}

impl Bench {
    /// A queue pair that a worker runs, with queues of this depth.
    fn new(depth: u32) -> Bench {
        let area: Arc<Area> = Area::new(1 << 18).unwrap();
        let bells = Bells::new(&area, 1).unwrap();
        let place = Count::default().take("queues", 1).unwrap();
        let cq = Cq::new(&area, 3, 64, 1, None, place).unwrap();
        let init = QpInit { max_send_sge: 16, ..QpInit::new(cq.clone()).depths(depth, depth) };
        let owner = Owner::new(|| ());
        let qp = Qp::new(&area, AppId(1), (Qpn(5), Pd(1)), (bells, 3), init, owner).unwrap();
        let mut worker = WorkerQp::new(&qp);
        worker.attach(0);
        Bench { qp, worker, cq, entry: Entry::default() }
    }

    /// Posts a request of so many pieces, of which the first two need no block of their own.
    fn send(&self, wr_id: u64, op: SendOp, pieces: usize) -> Result<(), PostError> {
        let sges = vec![Sge { stag: Stag(1), to: 0, len: 1 }; pieces];
        self.qp.post_send(&SendWr {
            wr_id,
            op,
            data: Data::Sges(&sges),
            signaled: true,
            fence: false,
        })
    }

    fn take_sends(&mut self, count: usize) {
        for _ in 0..count {
            assert!(self.worker.has_send().unwrap());
            self.worker.take_send(&mut self.entry, |_: &SendWr<'_>| ()).unwrap().unwrap();
        }
        self.worker.give_blocks();
    }

    fn polled(&self) -> Vec<(u64, CqeOp, CqeStatus)> {
        std::iter::from_fn(|| self.cq.poll()).map(|c| (c.wr_id, c.op, c.status)).collect()
    }
}

const SEND: SendOp = SendOp::Send { solicited: false, invalidate: None };
const WRITE: SendOp = SendOp::Write { stag: Stag(9), to: 0 };
const IMMEDIATE: SendOp = SendOp::Immediate { data: 1, solicited: false };

fn flushed(wr_id: u64, op: CqeOp) -> (u64, CqeOp, CqeStatus) {
    (wr_id, op, CqeStatus::Flushed)
}

/// Requests of one to several blocks, several times around the ring; the worker stops with some retired, some taken
/// and some not.
#[test]
fn test_what_a_lost_worker_has_not_retired_completes_as_flushed() {
    for lap in 0..40u64 {
        let mut b = Bench::new(8);
        let op = |n: u64| [SEND, WRITE, IMMEDIATE][(n % 3) as usize];
        let (mut posted, mut retired) = (0, 0);
        let post = |b: &Bench, posted: &mut u64| {
            let pieces = if *posted % 3 == 2 { 0 } else { (*posted % 5 * 3) as usize };
            b.send(*posted, op(*posted), pieces).unwrap();
            *posted += 1;
        };
        for _ in 0..lap {
            post(&b, &mut posted);
            b.take_sends(1);
            retired += 1;
            b.worker.retire(retired, 0);
        }
        for _ in 0..6 {
            post(&b, &mut posted);
        }
        b.take_sends(4);
        b.worker.retire(retired + 2, 0);
        b.qp.post_recv(&RecvWr { wr_id: 1000, sges: &[] }).unwrap();

        b.qp.downgrade().lose();
        let ops = [CqeOp::Send, CqeOp::Write, CqeOp::Immediate];
        let mut wanted: Vec<_> =
            (lap + 2..lap + 6).map(|n| flushed(n, ops[(n % 3) as usize])).collect();
        wanted.push(flushed(1000, CqeOp::Recv));
        assert_eq!(b.polled(), wanted, "after {lap}");
        assert!(b.qp.has_ended() && b.cq.is_empty());
        assert_eq!(b.send(7, SEND, 0), Err(PostError::Ended));
        assert_eq!(b.qp.post_recv(&RecvWr { wr_id: 8, sges: &[] }), Err(PostError::Ended));
    }
}

#[test]
fn test_what_a_worker_has_written_comes_before_what_it_has_lost() {
    let mut b = Bench::new(4);
    (1..=3).for_each(|n| b.send(n, SEND, 0).unwrap());
    b.take_sends(3);
    b.worker.retire(1, 0);
    let done = Cqe {
        wr_id: 1,
        qpn: Qpn(5),
        queue: Queue::Sq,
        op: CqeOp::Send,
        status: CqeStatus::Success,
        solicited: false,
        len: 0,
        invalidated: None,
        immediate: None,
    };
    b.cq.link().producer(0).push(&done).unwrap();
    b.qp.downgrade().lose();
    let wanted =
        [(1, CqeOp::Send, CqeStatus::Success), flushed(2, CqeOp::Send), flushed(3, CqeOp::Send)];
    assert_eq!(b.polled(), wanted);
    // The second loss finds the queue pair ended, and completes nothing again.
    b.qp.downgrade().lose();
    assert!(b.polled().is_empty());
}

#[test]
fn test_queue_pair_that_its_worker_has_ended_is_left_as_it_is() {
    let mut b = Bench::new(4);
    b.send(1, SEND, 0).unwrap();
    let mut seen = Vec::new();
    b.worker.end(|wr_id, _| seen.push(wr_id), |_| ());
    b.worker.close();
    b.qp.downgrade().lose();
    assert_eq!((seen, b.polled()), (vec![1], Vec::new()));
}

/// The worker is killed between its two marks, while a thread waits for the second.
#[test]
fn test_post_that_waits_for_a_lost_worker_completes_as_flushed() {
    let b = Bench::new(4);
    header(&b.qp.0.block)[at::STATE].store(state::ENDING, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let qp = b.qp.clone();
    let post = std::thread::spawn(move || {
        let (op, data) = (SEND, Data::Sges(&[]));
        qp.post_send(&SendWr { wr_id: 4, op, data, signaled: true, fence: false })
    });
    while header(&b.qp.0.block)[at::SQ_POSTED].load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(5));
    b.qp.downgrade().lose();
    assert_eq!(post.join().unwrap(), Ok(()));
    assert_eq!(b.polled(), [flushed(4, CqeOp::Send)]);
    // The worker of this test was never told of its end.
    std::mem::forget(b.worker);
}
