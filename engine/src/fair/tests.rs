//! The shares of turns that a queue gives, in units of cost.

use std::sync::Arc;

use super::*;
use crate::share::{Share, ShareTerms};

fn terms(weight: u32) -> ShareTerms {
    ShareTerms { weight, ..ShareTerms::default() }
}

/// Returns one connection for each share, at the index of its lane.
fn shares(terms: &[ShareTerms]) -> (Shares, Vec<Arc<Share>>) {
    let mut shares = Shares::default();
    let list: Vec<_> = (1..).zip(terms).map(|(n, t)| Share::new(n, *t)).collect();
    for (i, share) in list.iter().enumerate() {
        assert_eq!(usize::from(shares.assign(i + 1, share).unwrap()), i + 1);
    }
    (shares, list)
}

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// Takes `turns` turns of items that always come back, each at the cost that `cost` gives for its
/// lane; returns the costs by lane.
fn run(
    queue: &mut FairQueue<Lane>,
    shares: &Shares,
    turns: usize,
    cost: impl Fn(Lane) -> u64,
) -> Vec<u64> {
    let mut sums = vec![0; 8];
    for _ in 0..turns {
        let (lane, _) = queue.pop(shares, None).unwrap();
        let cost = cost(lane);
        queue.charge(shares, cost);
        sums[usize::from(lane)] += cost;
        queue.push(lane, lane);
    }
    sums
}

#[test]
fn test_shares_with_work_get_their_weights_whatever_a_turn_costs() {
    let (shares, _list) = shares(&[terms(1), terms(3), terms(4)]);
    let mut queue = FairQueue::default();
    (1..=3).for_each(|lane| queue.push(lane, lane));
    let costs = |lane| [0, 70_000, 1_100, 9_000][usize::from(lane)];
    let sums = run(&mut queue, &shares, 20_000, costs);
    let all: u64 = sums.iter().sum();
    for (lane, eighths) in [(1, 1), (2, 3), (3, 4)] {
        let due = all / 8 * eighths;
        assert!(sums[lane].abs_diff(due) < 100_000, "{sums:?}");
    }
}

#[test]
fn test_many_items_of_a_share_have_the_turns_of_one() {
    let (shares, _list) = shares(&[terms(1), terms(1)]);
    let mut queue = FairQueue::default();
    (0..100).for_each(|_| queue.push(1, 1));
    queue.push(2, 2);
    let sums = run(&mut queue, &shares, 1000, |_| 10);
    assert_eq!((sums[1], sums[2]), (5000, 5000));
}

#[test]
fn test_items_of_a_share_keep_their_order() {
    let (shares, _list) = shares(&[terms(1), terms(2)]);
    let mut queue = FairQueue::default();
    (10..20).for_each(|i| queue.push(1, i));
    (20..30).for_each(|i| queue.push(2, i));
    queue.urge(7);
    let mut popped = Vec::new();
    while let Some((i, credit)) = queue.pop(&shares, Some(at(1))) {
        assert_eq!(credit, u64::MAX);
        queue.charge(&shares, 5);
        popped.push(i);
    }
    assert_eq!(popped.remove(0), 7, "urgent items come first");
    let (a, b): (Vec<i32>, Vec<i32>) = popped.iter().partition(|i| **i < 20);
    assert!(a.into_iter().eq(10..20) && b.into_iter().eq(20..30));
    assert!(queue.is_empty());
}

#[test]
fn test_share_that_leaves_after_each_turn_still_pays_for_it() {
    let (shares, _list) = shares(&[terms(1), terms(1)]);
    let mut queue = FairQueue::default();
    (0..2).for_each(|_| queue.push(1, 1));
    queue.push(2, 2);
    let mut sums = [0; 3];
    for _ in 0..1000 {
        let (lane, _) = queue.pop(&shares, None).unwrap();
        let cost = if lane == 2 { 900 } else { 100 };
        sums[usize::from(lane)] += cost;
        queue.charge(&shares, cost);
        // The item of the second share is away at the end of its turn, and comes back at once.
        queue.push(lane, lane);
    }
    assert!(sums[1].abs_diff(sums[2]) <= 1000, "{sums:?}");
}

#[test]
fn test_share_saves_nothing_up_while_it_has_no_work() {
    let (shares, _list) = shares(&[terms(1), terms(1)]);
    let mut queue = FairQueue::default();
    queue.push(1, 1);
    run(&mut queue, &shares, 1000, |_| 10);
    queue.push(2, 2);
    let sums = run(&mut queue, &shares, 100, |_| 10);
    assert!(sums[1].abs_diff(sums[2]) <= 20, "{sums:?}");
    // The share that was alone has no debt either.
    let first = queue.pop(&shares, None).map(|(lane, _)| lane);
    queue.charge(&shares, 10);
    let second = queue.pop(&shares, None).map(|(lane, _)| lane);
    assert_ne!(first, second);
}

#[test]
fn test_share_over_its_rate_waits_and_others_go_on() {
    let limited = ShareTerms { rate: Some(1_000_000), ..ShareTerms::default() };
    let (mut shares, list) = shares(&[limited, terms(1)]);
    let mut queue = FairQueue::default();
    (0..3).for_each(|_| queue.push(1, 1));
    queue.push(2, 2);
    shares.spend(1, 11_000, at(1000));
    assert_eq!(queue.pop(&shares, Some(at(1000))).map(|(lane, _)| lane), Some(2));
    queue.charge(&shares, 1);
    assert!(queue.is_empty() && queue.pop(&shares, Some(at(1000))).is_none());
    // A millisecond of credit paid for a thousand bytes; the rest takes ten, and a grain more.
    let wake = queue.next_wake().unwrap();
    assert_eq!(wake.since(at(1000)).as_micros(), 10_100);
    queue.wake(&shares, at(1010));
    assert!(queue.is_empty(), "it is not time yet");
    // Items that come meanwhile wait too.
    queue.push(1, 1);
    assert!(queue.is_empty());
    queue.wake(&shares, wake);
    assert_eq!(queue.pop(&shares, Some(wake)), Some((1, 100)));
    assert_eq!((list[0].usage().waits, list[0].usage().waited.as_micros()), (1, 10_100));
    assert_eq!(list[1].usage().waits, 0);
    assert_eq!(queue.next_wake(), None);
}

#[test]
fn test_item_over_its_own_rate_leaves_its_share_to_the_others() {
    let (shares, list) = shares(&[terms(1)]);
    let mut queue = FairQueue::default();
    queue.push(1, 10);
    queue.push(1, 11);
    let (first, _) = queue.pop(&shares, Some(at(1))).unwrap();
    queue.wait(1, first, at(1), at(5));
    assert_eq!(queue.pop(&shares, Some(at(1))).map(|(i, _)| i), Some(11));
    queue.charge(&shares, 1);
    assert!(queue.is_empty());
    queue.wake(&shares, at(5));
    assert_eq!(queue.pop(&shares, Some(at(5))).map(|(i, _)| i), Some(10));
    assert_eq!(list[0].usage().waited.as_millis(), 4);
}

#[test]
fn test_new_share_of_a_lane_does_not_wait_for_the_last() {
    let limited = ShareTerms { rate: Some(1000), ..ShareTerms::default() };
    let (mut shares, _list) = shares(&[limited]);
    let mut queue = FairQueue::default();
    queue.push(1, 10);
    shares.spend(1, 1_000_000, at(1000));
    assert!(queue.pop(&shares, Some(at(1000))).is_none());
    shares.leave(1);
    assert_eq!(shares.assign(5, &Share::new(9, terms(1))), Some(1));
    queue.renew(1);
    queue.push(1, 12);
    assert_eq!(queue.pop(&shares, Some(at(1000))), Some((12, u64::MAX)));
    queue.charge(&shares, 1);
    // The end of the last share's wait moves nothing.
    queue.push(1, 13);
    queue.wake(&shares, at(10_000_000));
    assert_eq!(queue.pop(&shares, Some(at(10_000_000))).map(|(i, _)| i), Some(13));
    assert!(queue.is_empty());
}

#[test]
fn test_look_ahead_sees_each_item_once_before_its_turn() {
    const ITEMS: u16 = 30;
    for n in 1..=3u16 {
        let (shares, _list) = shares(&vec![terms(1); usize::from(n)]);
        for turns in [0, 3, 7, 11] {
            let mut queue = FairQueue::default();
            (0..ITEMS).for_each(|item| queue.push(item % n + 1, item));
            let mut seen: Vec<u16> = queue.first(turns).collect();
            for turn in 0.. {
                seen.extend(queue.ahead(turns));
                let Some((item, _)) = queue.pop(&shares, None) else { break };
                assert_eq!(seen.iter().filter(|s| **s == item).count(), 1, "{n} {turns} {turn}");
                queue.charge(&shares, 1);
            }
            assert_eq!(seen.len(), usize::from(ITEMS), "{n} {turns}");
        }
    }
}
