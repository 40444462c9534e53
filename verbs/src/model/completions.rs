//! Completion queues: order, room, wake-ups, resizing.

use std::sync::Arc;

use heddle_base::sync::Mutex;
use heddle_rings::Area;
use heddle_rings::cq::CqLink;
use heddle_shm::{Sleeper, Waker};
use heddle_types::{Cqe, CqeOp, CqeStatus, Qpn, Queue};
use loom::thread;

use super::{check, is_woken};
use crate::cq::{Arm, Cq};
use crate::limits::count::Count;

pub(super) fn cqe(wr_id: u64, solicited: bool) -> Cqe {
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

pub(super) fn queue(depth: u32, waker: Option<Waker>) -> Cq {
    let place = Count::default().take("queues", 1).unwrap();
    Cq::new(&Area::new(1 << 14).unwrap(), 3, depth, 1, waker, place).unwrap()
}

fn polled(cq: &Cq) -> Vec<u64> {
    std::iter::from_fn(|| cq.poll()).map(|c| c.wr_id).collect()
}

#[test]
fn test_consumer_reads_whole_completions_in_order_while_the_worker_writes() {
    check(|| {
        let cq = queue(2, None);
        let mut producer = cq.link().producer(0);
        let theirs = thread::spawn(move || {
            producer.push(&cqe(1, false)).unwrap();
            producer.push(&cqe(2, true)).unwrap();
        });
        let mut seen: Vec<u64> = cq.poll().into_iter().map(|c| c.wr_id).collect();
        theirs.join().unwrap();
        seen.extend(polled(&cq));
        assert_eq!(seen, [1, 2]);
    });
}

/// The ring is full, and the worker has an old head: a third completion takes a slot that the
/// consumer has given back, or fails because there is none.
#[test]
fn test_worker_never_overwrites_a_completion_that_was_not_read() {
    check(|| {
        let cq = queue(2, None);
        let mut producer = cq.link().producer(0);
        for wr_id in 1..=2 {
            producer.push(&cqe(wr_id, false)).unwrap();
        }
        let theirs = thread::spawn(move || producer.push(&cqe(3, false)).is_ok());
        let mut seen: Vec<u64> = cq.poll().into_iter().map(|c| c.wr_id).collect();
        let had_room = theirs.join().unwrap();
        seen.extend(polled(&cq));
        let all = if had_room { &[1, 2, 3][..] } else { &[1, 2] };
        assert_eq!((seen.as_slice(), cq.check().is_ok()), (all, had_room));
    });
}

#[test]
fn test_two_consumers_take_each_completion_once() {
    check(|| {
        let cq = queue(2, None);
        let mut producer = cq.link().producer(0);
        producer.push(&cqe(1, false)).unwrap();
        let other = cq.clone();
        let theirs = thread::spawn(move || other.poll().map(|c| c.wr_id));
        producer.push(&cqe(2, false)).unwrap();
        let mut seen: Vec<u64> = cq.poll().into_iter().map(|c| c.wr_id).collect();
        seen.extend(theirs.join().unwrap());
        seen.extend(polled(&cq));
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
    });
}

/// A consumer arms, looks once more and sleeps: a consumer that found nothing is woken.
#[test]
fn test_consumer_that_armed_finds_the_completion_or_is_woken() {
    for (arm, solicited) in [(Arm::Next, false), (Arm::Solicited, true)] {
        check(move || {
            let sleeper = Sleeper::with_fd().unwrap();
            let cq = queue(2, Some(sleeper.waker()));
            let mut producer = cq.link().producer(0);
            let theirs = thread::spawn(move || {
                producer.push(&cqe(1, solicited)).unwrap();
                producer.notify();
            });
            cq.arm(arm);
            let found = cq.poll().is_some();
            theirs.join().unwrap();
            assert!(found || is_woken(&sleeper), "a wake-up is lost");
            assert!(found || cq.poll().is_some());
        });
    }
}

/// The application enlarges the queue while its worker writes: neither waits for the other, and no
/// completion is lost, read twice or read out of order.
#[test]
fn test_resized_queue_keeps_all_completions_in_order() {
    check(|| {
        let cq = queue(2, None);
        let mut producer = cq.link().producer(0);
        producer.push(&cqe(1, false)).unwrap();
        let told: Arc<Mutex<Option<CqLink>>> = Arc::new(Mutex::new(None));
        let heard = told.clone();
        let theirs = thread::spawn(move || {
            for wr_id in 2..=3 {
                let link = heard.lock().unwrap().take();
                link.iter().for_each(|link| producer.renew(link));
                if wr_id == 2 {
                    producer.push(&cqe(2, false)).unwrap();
                }
            }
            producer
        });
        cq.resize(4, |link| {
            *told.lock().unwrap() = Some(link);
            Ok(())
        })
        .unwrap();
        let mut seen: Vec<u64> = cq.poll().into_iter().map(|c| c.wr_id).collect();
        let mut producer = theirs.join().unwrap();
        told.lock().unwrap().iter().for_each(|link| producer.renew(link));
        producer.push(&cqe(3, false)).unwrap();
        seen.extend(polled(&cq));
        assert_eq!((seen, cq.check().is_ok()), (vec![1, 2, 3], true));
    });
}
