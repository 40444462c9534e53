use std::collections::BTreeMap;

use super::arena::{FreeList, Lack};
use super::*;

const LEN: usize = 16 * ALIGN;

#[test]
fn test_freed_ranges_merge_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut free = FreeList::new(LEN);
        let taken: Vec<_> =
            [3, 5, 8].iter().map(|n| (free.take(n * ALIGN).unwrap(), n * ALIGN)).collect();
        assert_eq!((free.available(), free.take(ALIGN)), (0, None));
        for i in order {
            free.give(taken[i].0, taken[i].1);
        }
        assert_eq!(free.stretches(), BTreeMap::from([(0, LEN)]), "{order:?}");
    }
}

#[test]
fn test_first_free_range_that_fits_is_used_and_the_rest_stays() {
    let mut free = FreeList::new(LEN);
    let [a, _b, c] = [2, 1, 4].map(|n| free.take(n * ALIGN).unwrap());
    free.give(a, 2 * ALIGN);
    free.give(c, 4 * ALIGN);
    assert_eq!(free.take(3 * ALIGN), Some(c), "the first stretch is too short");
    assert_eq!(free.take(ALIGN), Some(a));
    assert_eq!(free.take(ALIGN), Some(a + ALIGN));
    assert_eq!(free.available(), LEN - 6 * ALIGN);
}

#[test]
fn test_free_list_leaves_a_partial_last_line_unused() {
    let mut free = FreeList::new(2 * ALIGN - 1);
    assert_eq!(free.take(ALIGN), Some(0));
    assert_eq!(free.take(ALIGN), None);
}

#[test]
fn test_budget_is_free_again_when_its_charges_are_dropped() {
    let budget = Budget::new(100);
    let first = budget.charge(60).unwrap();
    assert!(budget.charge(41).is_none() && budget.charge(usize::MAX).is_none());
    let second = budget.clone().charge(40).unwrap();
    drop(first);
    assert!(budget.charge(61).is_none());
    drop(second);
    assert!(budget.charge(100).is_some());
}

/// Creates a room of `lines` cache lines, some of which are kept.
fn room(lines: usize, replies: usize, results: usize) -> Room {
    Room::new(lines * ALIGN, Kept { replies: replies * ALIGN, results: results * ALIGN })
}

fn turn(budget: &Budget, number: u64) -> Ask<'_> {
    Ask { budget: Some(budget), turn: Some(number), ..Ask::default() }
}

#[test]
fn test_connections_without_memory_are_served_in_turn_and_not_overtaken() {
    let (mut room, budget) = (room(4, 0, 0), Budget::new(100 * ALIGN));
    let (off, charge) = room.take(3 * ALIGN, turn(&budget, 1)).unwrap();
    assert!(room.take(2 * ALIGN, turn(&budget, 2)).is_err());
    assert!(room.take(ALIGN, turn(&budget, 3)).is_err(), "it does not pass the other");
    assert_eq!(room.in_turn().first(), Some(&2));
    assert!(room.give(off, 3 * ALIGN, charge), "they are to be told");
    assert!(room.take(ALIGN, turn(&budget, 3)).is_err());
    let _second = room.take(2 * ALIGN, turn(&budget, 2)).unwrap();
    assert_eq!(room.in_turn().first(), Some(&3));
    // A connection that has had its turn gets the next turn after the others.
    assert!(room.take(ALIGN, turn(&budget, 2)).is_err());
    let _third = room.take(ALIGN, turn(&budget, 3)).unwrap();
    assert_eq!(room.in_turn().first(), Some(&2));
    room.forget(2);
    assert!(room.in_turn().is_empty());
}

#[test]
fn test_connection_over_its_budget_blocks_no_other_connection() {
    let (mut room, few, many) = (room(8, 0, 0), Budget::new(2 * ALIGN), Budget::new(100 * ALIGN));
    let (off, charge) = room.take(2 * ALIGN, turn(&few, 1)).unwrap();
    assert!(room.take(ALIGN, turn(&few, 1)).is_err());
    assert!(room.in_turn().is_empty());
    let _other = room.take(6 * ALIGN, turn(&many, 2)).unwrap();
    assert!(room.give(off, 2 * ALIGN, charge), "it is to be told");
    assert!(room.take(ALIGN, turn(&few, 1)).is_ok());
}

#[test]
fn test_calls_leave_memory_for_results_and_both_for_replies() {
    let (mut room, budget) = (room(8, 1, 3), Budget::new(100 * ALIGN));
    assert_eq!(room.call_max(), 5 * ALIGN);
    assert!(room.take(6 * ALIGN, turn(&budget, 1)).is_err());
    room.forget(1);
    let (off, charge) = room.take(5 * ALIGN, turn(&budget, 1)).unwrap();
    assert!(room.take(ALIGN, turn(&budget, 1)).is_err());
    room.forget(1);
    assert!(room.take(3 * ALIGN, Ask::default()).is_err());
    assert!(room.take(2 * ALIGN, Ask::default()).is_ok());
    assert!(room.take(ALIGN, Ask::default()).is_err());
    let reply = Ask { is_reply: true, ..Ask::default() };
    assert!(room.take(ALIGN, reply).is_ok());
    assert!(room.take(ALIGN, reply).is_err());
    assert!(room.give(off, 5 * ALIGN, charge), "a reply waits");
    assert!(room.take(ALIGN, reply).is_ok());
}

#[test]
fn test_program_that_finds_no_memory_does_not_join_the_queue() {
    let mut room = room(2, 0, 0);
    let (off, charge) = room.take(2 * ALIGN, Ask::default()).unwrap();
    assert!(room.take(ALIGN, Ask::default()).is_err());
    assert!(!room.give(off, 2 * ALIGN, charge), "nobody is to be told");
}

fn turn_of<'a>(budget: &'a Budget, share: &'a Share, number: u64) -> Ask<'a> {
    Ask { share: Some(share), ..turn(budget, number) }
}

#[test]
fn test_call_over_its_share_is_overtaken_by_other_addresses_only() {
    let (mut room, budget) = (room(12, 0, 0), Budget::new(100 * ALIGN));
    let (one, other) = (Share::default(), Share::default());
    let (off, charges) = room.take(4 * ALIGN, turn_of(&budget, &one, 1)).unwrap();
    // The address would have 10 lines and leave 2.
    assert_eq!(room.take(6 * ALIGN, turn_of(&budget, &one, 2)).unwrap_err(), Lack::Own);
    assert_eq!(room.take(ALIGN, turn_of(&budget, &one, 3)).unwrap_err(), Lack::Own);
    let _passes = room.take(2 * ALIGN, turn_of(&budget, &other, 4)).unwrap();
    assert_eq!(room.in_turn(), [2, 3]);
    assert!(!room.take_moved());
    assert!(room.give(off, 4 * ALIGN, charges), "they are to be told");
    assert!(room.take(ALIGN, turn_of(&budget, &one, 3)).is_err(), "it is behind the long one yet");
    let (off, charges) = room.take(6 * ALIGN, turn_of(&budget, &one, 2)).unwrap();
    assert!(room.take_moved(), "the next is to be asked, though nothing comes back");
    room.give(off, 6 * ALIGN, charges);
    assert!(room.take(ALIGN, turn_of(&budget, &one, 3)).is_ok());
    assert!(!room.take_moved() && room.in_turn().is_empty());
}

#[test]
fn test_later_waiters_are_told_when_first_leaves_or_lacks_only_its_share() {
    let (mut room, budget) = (room(12, 0, 4), Budget::new(100 * ALIGN));
    let (one, other, third) = (Share::default(), Share::default(), Share::default());
    let _first = room.take(ALIGN, turn_of(&budget, &one, 1)).unwrap();
    let _others = room.take(5 * ALIGN, turn_of(&budget, &other, 2)).unwrap();
    // Calls leave 4 of 12 lines to results: the request is within its share, but there are not 3
    // free lines.
    assert_eq!(room.take(3 * ALIGN, turn_of(&budget, &one, 3)).unwrap_err(), Lack::Others);
    assert_eq!(room.take(ALIGN, turn_of(&budget, &third, 4)).unwrap_err(), Lack::Others);
    assert_eq!(room.take(ALIGN, turn_of(&budget, &third, 5)).unwrap_err(), Lack::Others);
    assert!(!room.take_moved());
    // Results reduce the free memory so far that the first connection would exceed its share.
    let results = room.take(2 * ALIGN, Ask::default()).unwrap();
    assert_eq!(room.take(3 * ALIGN, turn_of(&budget, &one, 3)).unwrap_err(), Lack::Own);
    assert!(room.take_moved() && !room.take_moved());
    room.give(results.0, 2 * ALIGN, results.1);
    room.forget(4);
    assert!(room.take_moved(), "5 has nobody in front that it waits for");
    assert!(room.take(ALIGN, turn_of(&budget, &third, 5)).is_ok());
    room.forget(5);
    room.forget(3);
    assert!(!room.take_moved(), "nobody was behind them");
}

/// When each kind was counted separately, an address with calls up to its share, and results beside
/// them, took memory that others were meant to find.
#[test]
fn test_buffers_of_all_kinds_count_toward_one_share_of_an_address() {
    let (mut room, budget) = (room(24, 3, 6), Budget::new(100 * ALIGN));
    let (one, other) = (Share::default(), Share::default());
    let results = |of| Ask { share: Some(of), ..Ask::default() };
    let calls = room.take(14 * ALIGN, turn_of(&budget, &one, 1)).unwrap();
    let first = room.take(ALIGN, results(&one)).expect("its calls need results to end");
    // The address has 15 of 24 lines, and would have 17 and leave 7.
    assert_eq!(room.take(2 * ALIGN, results(&one)).unwrap_err(), Lack::Own);
    assert!(room.take(ALIGN, turn_of(&budget, &other, 2)).is_ok(), "a call of another address");
    assert!(room.take(4 * ALIGN, results(&other)).is_ok(), "and its results");
    room.give(calls.0, 14 * ALIGN, calls.1);
    assert!(room.take(2 * ALIGN, results(&one)).is_ok());
    room.give(first.0, ALIGN, first.1);
}
