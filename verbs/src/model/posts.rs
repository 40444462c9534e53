//! Queue pairs: posts against the worker that takes them, and against the end of the connection.

use heddle_rings::worker::WorkerQp;
use heddle_rings::{Area, Bells, Entry};
use heddle_types::{CqeOp, Data, RecvWr, SendOp, SendWr};
use loom::thread;

use super::check;
use super::completions::queue;
use crate::qp::testing::parts;
use crate::qp::{Owner, Qp, QpInit};

/// Returns a queue pair with its bells, and the worker's end.
fn pair() -> (Qp, Bells, WorkerQp) {
    let area = Area::new(1 << 16).unwrap();
    let bells = Bells::new(&area, 1).unwrap();
    let init = QpInit::new(queue(2, None)).depths(2, 2);
    let owner = Owner::new(|| ());
    let qp = Qp::new(&area, parts(bells.clone(), 3), init, owner).unwrap();
    let mut worker = WorkerQp::new(qp.ends());
    worker.attach(0);
    (qp, bells, worker)
}

fn send(qp: &Qp, wr_id: u64) -> bool {
    let op = SendOp::Send { solicited: false, invalidate: None };
    qp.post_send(&SendWr { wr_id, op, data: Data::Sges(&[]), signaled: true, fence: false }).is_ok()
}

/// Does what a worker does after a ring, in the worker's order.
fn take(worker: &mut WorkerQp, into: &mut Vec<(CqeOp, u64)>) {
    let mut entry = Entry::default();
    while worker.has_send().unwrap() {
        while worker.owes_recvs() {
            let taken = worker.take_recv(&mut entry, |wr| wr.wr_id).unwrap();
            into.push((CqeOp::Recv, taken.unwrap()));
        }
        let taken = worker.take_send(&mut entry, |wr: &SendWr<'_>| wr.wr_id).unwrap();
        into.push((CqeOp::Send, taken.unwrap()));
    }
}

/// The worker takes a Send after the receive that was posted before the Send, and either takes the
/// last post or finds its bell still ringing.
#[test]
fn test_worker_takes_posts_in_order_and_misses_none() {
    check(|| {
        let (qp, bells, mut worker) = pair();
        let turn = {
            let bells = bells.clone();
            thread::spawn(move || {
                let mut seen = Vec::new();
                for _ in bells.take(0) {
                    take(&mut worker, &mut seen);
                }
                (worker, seen)
            })
        };
        qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
        assert!(send(&qp, 2));
        let (mut worker, mut seen) = turn.join().unwrap();
        for _ in bells.take(0) {
            take(&mut worker, &mut seen);
        }
        assert_eq!(seen, [(CqeOp::Recv, 1), (CqeOp::Send, 2)]);
    });
}

/// The connection ends while the application posts: the queue pair refuses a post, or the post
/// completes as flushed.
#[test]
fn test_post_during_end_of_connection_is_flushed_or_refused() {
    check(|| {
        let (qp, _bells, mut worker) = pair();
        let application = thread::spawn(move || {
            let posted = send(&qp, 9);
            (posted, qp)
        });
        let mut flushed = Vec::new();
        worker.end(|wr_id, _| flushed.push(wr_id), |_| ());
        worker.close();
        drop(worker);
        let (posted, qp) = application.join().unwrap();
        assert_eq!(flushed, if posted { vec![9] } else { Vec::new() });
        assert!(!send(&qp, 10), "nothing is posted after the end");
    });
}
