//! Completion channels: one event for each arm.

use heddle_base::sync::atomic::{AtomicUsize, Ordering};
use heddle_rings::Area;
use loom::thread;
use std::sync::Arc;

use super::check;
use super::completions::cqe;
use crate::cq::{Arm, CompletionChannel, Cq};
use crate::limits::count::Count;

fn queue(channel: &CompletionChannel) -> Cq {
    let held = Count::default().take("queues", 1).unwrap();
    let place = channel.begin();
    let area = Area::new(1 << 14).unwrap();
    let cq = Cq::new(&area, 3, 4, 1, Some(place.waker()), held).unwrap();
    cq.join(place, 7);
    cq
}

/// Counts and takes the available events. The descriptor is readable for exactly this many.
fn events(channel: &CompletionChannel) -> usize {
    let mut count = 0;
    while channel.is_readable() {
        assert_eq!(channel.try_event().unwrap(), Some(7));
        count += 1;
    }
    assert_eq!(channel.try_event().unwrap(), None);
    count
}

/// The consumer arms, polls and arms again, no matter how many completions it finds: each arm
/// before a completion yields an event, and an arm without a completion yields none.
#[test]
fn test_every_arm_before_a_completion_yields_one_event_whenever_it_is_polled() {
    check(|| {
        let channel = CompletionChannel::new().unwrap();
        let cq = queue(&channel);
        let mut producer = cq.link().producer(0);
        let theirs = thread::spawn(move || {
            for wr_id in 1..=2 {
                producer.push(&cqe(wr_id, false)).unwrap();
                producer.notify();
            }
            producer
        });
        cq.arm(Arm::Next);
        let polled = std::iter::from_fn(|| cq.poll()).count();
        cq.arm(Arm::Next);
        let after = std::iter::from_fn(|| cq.poll()).count();
        let mut producer = theirs.join().unwrap();
        let left = std::iter::from_fn(|| cq.poll()).count();
        assert_eq!(polled + after + left, 2);
        let seen = events(&channel);
        assert!(left == 0 || seen >= 1, "a completion after the last arm, and no event");
        assert!(seen <= 2);
        // The next completion shows whether the queue is still armed; after that nothing is armed.
        producer.push(&cqe(3, false)).unwrap();
        producer.notify();
        let last = events(&channel);
        assert!(seen + last >= 1 && seen + last <= 2 && last <= 1);
        producer.push(&cqe(4, false)).unwrap();
        producer.notify();
        assert_eq!(events(&channel), 0);
    });
}

/// A thread fetches events while another arms: no event is fetched twice and none is lost.
#[test]
fn test_event_is_fetched_once_while_the_queue_is_armed_again() {
    check(|| {
        let channel = CompletionChannel::new().unwrap();
        let cq = queue(&channel);
        let mut producer = cq.link().producer(0);
        cq.arm(Arm::Next);
        producer.push(&cqe(1, false)).unwrap();
        producer.notify();
        let fetched = Arc::new(AtomicUsize::new(0));
        let (theirs, count) = (channel.clone(), fetched.clone());
        let fetcher = thread::spawn(move || {
            if theirs.try_event().unwrap().is_some() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        cq.arm(Arm::Next);
        producer.push(&cqe(2, false)).unwrap();
        producer.notify();
        fetcher.join().unwrap();
        assert_eq!(fetched.load(Ordering::Relaxed) + events(&channel), 2);
    });
}

/// The consumer widens an arm for solicited completions while a completion arrives.
#[test]
fn test_widened_arm_yields_its_event_when_completion_arrives_meanwhile() {
    check(|| {
        let channel = CompletionChannel::new().unwrap();
        let cq = queue(&channel);
        let mut producer = cq.link().producer(0);
        cq.arm(Arm::Solicited);
        let theirs = thread::spawn(move || {
            producer.push(&cqe(1, true)).unwrap();
            producer.notify();
            producer
        });
        cq.arm(Arm::Next);
        let mut producer = theirs.join().unwrap();
        let first = events(&channel);
        assert!((1..=1).contains(&first), "the arm for it came before the completion");
        producer.push(&cqe(2, false)).unwrap();
        producer.notify();
        assert!(first + events(&channel) <= 2);
    });
}
