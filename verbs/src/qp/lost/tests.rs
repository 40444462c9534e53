//! A worker that stops at some point, as the worker of a killed process does.

use std::sync::Arc;
use std::time::Duration;

use heddle_base::sync::atomic::{Ordering, fence};
use heddle_engine::Retired;
use heddle_rings::layout::{qp as at, state};
use heddle_rings::qp::header;
use heddle_rings::worker::WorkerQp;
use heddle_rings::{Area, Bells, Entry};
use heddle_types::{
    Cqe, CqeOp, CqeStatus, Data, PostError, Qpn, Queue, RecvWr, SendOp, SendWr, Sge, Stag,
};

use crate::cq::Cq;
use crate::limits::count::Count;
use crate::qp::{Owner, Qp, QpInit};

pub(in crate::qp) struct Bench {
    pub(in crate::qp) qp: Qp,
    pub(in crate::qp) worker: WorkerQp,
    cq: Cq,
    entry: Entry,
}

impl Bench {
    /// Returns a queue pair that a worker runs, with queues of this depth.
    pub(in crate::qp) fn new(depth: u32) -> Bench {
        Bench::with_recv_cq(depth, |_, cq| cq.clone()).0
    }

    /// Does the same, with the completion queue that `recv_cq` makes for the receives.
    fn with_recv_cq(depth: u32, recv_cq: impl FnOnce(&Arc<Area>, &Cq) -> Cq) -> (Bench, Cq) {
        let area: Arc<Area> = Area::new(1 << 18).unwrap();
        let bells = Bells::new(&area, 1).unwrap();
        let place = Count::default().take("queues", 1).unwrap();
        let cq = Cq::new(&area, 3, 64, 1, None, place).unwrap();
        let recv_cq = recv_cq(&area, &cq);
        let init = QpInit::new(cq.clone()).depths(depth, depth);
        let init = QpInit { max_send_sge: 16, recv_cq: recv_cq.clone(), ..init };
        let owner = Owner::new(|| ());
        let qp = Qp::new(&area, crate::qp::testing::parts(bells, 3), init, owner).unwrap();
        let mut worker = WorkerQp::new(qp.ends());
        worker.attach(0);
        (Bench { qp, worker, cq, entry: Entry::default() }, recv_cq)
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

    pub(in crate::qp) fn take_sends(&mut self, count: usize) {
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

/// Requests of one to several blocks, several times around the ring; when the worker stops, it has
/// retired some, taken some and not taken the rest.
#[test]
fn test_requests_not_retired_by_lost_worker_complete_as_flushed() {
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
fn test_completions_written_by_lost_worker_come_before_flushed_ones() {
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
    // The second loss finds the queue pair ended, and completes no request again.
    b.qp.downgrade().lose();
    assert!(b.polled().is_empty());
}

/// Steps of a worker that completes requests of both queues; it may be killed between any two.
const STEPS: usize = 6;

/// Completes two of three sends (one of them without a completion) and one of two receives, up to a
/// step; then drops the worker.
fn complete_up_to(step: usize, b: &mut Bench, recv_cq: &Cq) {
    for wr_id in 1..=3 {
        b.send(wr_id, SEND, 0).unwrap();
    }
    for wr_id in 11..=12 {
        b.qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap();
    }
    b.take_sends(3);
    for _ in 0..2 {
        b.worker.take_recv(&mut b.entry, |_| ()).unwrap().unwrap();
    }
    b.worker.give_blocks();
    let one_cq = recv_cq.number() == b.cq.number();
    let mut to = [&b.cq, recv_cq].map(|cq| cq.link().producer(0));
    let done = |queue, op, wr_id| Cqe {
        status: CqeStatus::Success,
        ..Cqe::flushed(Qpn(5), queue, op, wr_id)
    };
    let (sent, received) = (done(Queue::Sq, CqeOp::Send, 2), done(Queue::Rq, CqeOp::Recv, 11));
    let retired = Retired { sq: 2, rq: 1 };
    let other = usize::from(!one_cq);
    for i in 0..step {
        match i {
            0 => {
                to[0].stage(Queue::Sq, retired.sq, [&sent].into_iter());
            }
            1 => {
                to[other].stage(Queue::Rq, retired.rq, [&received].into_iter());
            }
            2 => b.worker.retire(retired.sq, 0),
            3 => b.worker.retire(retired.sq, retired.rq),
            4 => to[0].publish(),
            _ => to[other].publish(),
        }
    }
}

/// The RNIC is killed at each point between the first completion that it writes and the last that
/// it shows: each request has at most one completion, and every request that could succeed or be
/// flushed has one.
#[test]
fn test_each_request_completes_once_wherever_rnic_is_killed() {
    for step in 0..=STEPS {
        for one_cq in [true, false] {
            let (mut b, recv_cq) = Bench::with_recv_cq(8, |area, cq| {
                let place = Count::default().take("queues", 1).unwrap();
                if one_cq { cq.clone() } else { Cq::new(area, 4, 64, 1, None, place).unwrap() }
            });
            complete_up_to(step, &mut b, &recv_cq);
            b.qp.downgrade().lose();
            let mut all = b.polled();
            if !one_cq {
                all.extend(
                    std::iter::from_fn(|| recv_cq.poll()).map(|c| (c.wr_id, c.op, c.status)),
                );
            }
            all.sort_unstable_by_key(|c| c.0);
            let success = |wr_id, op| (wr_id, op, CqeStatus::Success);
            let mut wanted = if step > 2 {
                vec![success(2, CqeOp::Send)]
            } else {
                vec![flushed(1, CqeOp::Send), flushed(2, CqeOp::Send)]
            };
            wanted.push(flushed(3, CqeOp::Send));
            let received = if step > 3 { success } else { flushed };
            wanted.extend([received(11, CqeOp::Recv), flushed(12, CqeOp::Recv)]);
            assert_eq!(all, wanted, "killed after step {step}, one queue for both: {one_cq}");
            std::mem::forget(b.worker);
        }
    }
}

/// Other queue pairs have completions in the same queue, and an older worker wrote no word about
/// the completions that it stages.
#[test]
fn test_staged_completions_of_another_queue_pair_are_not_counted() {
    let mut b = Bench::new(4);
    b.send(1, SEND, 0).unwrap();
    b.take_sends(1);
    let other =
        Cqe { status: CqeStatus::Success, ..Cqe::flushed(Qpn(6), Queue::Sq, CqeOp::Send, 9) };
    let mut producer = b.cq.link().producer(0);
    producer.push(&other).unwrap();
    producer.stage(Queue::Sq, 0, [&other].into_iter());
    b.qp.downgrade().lose();
    assert_eq!(b.polled(), [(9, CqeOp::Send, CqeStatus::Success), flushed(1, CqeOp::Send)]);
}

#[test]
fn test_queue_pair_already_ended_by_its_worker_is_left_unchanged() {
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
fn test_post_that_waits_for_lost_worker_completes_as_flushed() {
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
    // No order to end ever reached the worker of this test, so keep its destructor from ending the
    // queue pair.
    std::mem::forget(b.worker);
}
