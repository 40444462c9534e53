use std::collections::BTreeMap;

use super::arena::FreeList;
use super::*;

const LEN: usize = 16 * ALIGN;

#[test]
fn test_stretches_that_come_back_are_one_again_in_any_order() {
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
fn test_first_stretch_that_is_long_enough_is_taken_and_the_rest_stays() {
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
fn test_length_of_no_whole_number_of_lines_is_not_used_to_the_end() {
    let mut free = FreeList::new(2 * ALIGN - 1);
    assert_eq!(free.take(ALIGN), Some(0));
    assert_eq!(free.take(ALIGN), None);
}

#[test]
fn test_budget_is_free_again_when_what_was_charged_is_gone() {
    let budget = Budget::new(100);
    let first = budget.charge(60).unwrap();
    assert!(budget.charge(41).is_none() && budget.charge(usize::MAX).is_none());
    let second = budget.clone().charge(40).unwrap();
    drop(first);
    assert!(budget.charge(61).is_none());
    drop(second);
    assert!(budget.charge(100).is_some());
}

/// A room of so many lines, of which some are kept.
fn room(lines: usize, replies: usize, results: usize) -> Room {
    Room::new(lines * ALIGN, Kept { replies: replies * ALIGN, results: results * ALIGN })
}

fn turn(budget: &Budget, number: u64) -> Ask<'_> {
    Ask { budget: Some(budget), turn: Some(number), ..Ask::default() }
}

#[test]
fn test_connections_that_find_no_memory_have_it_in_turn_and_nobody_passes_them() {
    let (mut room, budget) = (room(4, 0, 0), Budget::new(100 * ALIGN));
    let (off, charge) = room.take(3 * ALIGN, turn(&budget, 1)).unwrap();
    assert!(room.take(2 * ALIGN, turn(&budget, 2)).is_none());
    assert!(room.take(ALIGN, turn(&budget, 3)).is_none(), "it does not pass the other");
    assert_eq!(room.first(), Some(2));
    assert!(room.give(off, 3 * ALIGN, charge), "they are to be told");
    assert!(room.take(ALIGN, turn(&budget, 3)).is_none());
    let _second = room.take(2 * ALIGN, turn(&budget, 2)).unwrap();
    assert_eq!(room.first(), Some(3));
    // Who has had his turn has the next behind the others.
    assert!(room.take(ALIGN, turn(&budget, 2)).is_none());
    let _third = room.take(ALIGN, turn(&budget, 3)).unwrap();
    assert_eq!(room.first(), Some(2));
    assert!(!room.leave(2) && room.first().is_none());
}

#[test]
fn test_connection_that_has_used_up_its_budget_keeps_nobody_waiting() {
    let (mut room, few, many) = (room(8, 0, 0), Budget::new(2 * ALIGN), Budget::new(100 * ALIGN));
    let (off, charge) = room.take(2 * ALIGN, turn(&few, 1)).unwrap();
    assert!(room.take(ALIGN, turn(&few, 1)).is_none());
    assert_eq!(room.first(), None);
    let _other = room.take(6 * ALIGN, turn(&many, 2)).unwrap();
    assert!(room.give(off, 2 * ALIGN, charge), "it is to be told");
    assert!(room.take(ALIGN, turn(&few, 1)).is_some());
}

#[test]
fn test_calls_leave_room_to_results_and_both_to_replies() {
    let (mut room, budget) = (room(8, 1, 3), Budget::new(100 * ALIGN));
    assert_eq!(room.call_max(), 5 * ALIGN);
    assert!(room.take(6 * ALIGN, turn(&budget, 1)).is_none());
    assert!(!room.leave(1));
    let (off, charge) = room.take(5 * ALIGN, turn(&budget, 1)).unwrap();
    assert!(room.take(ALIGN, turn(&budget, 1)).is_none());
    assert!(!room.leave(1));
    assert!(room.take(3 * ALIGN, Ask::default()).is_none());
    assert!(room.take(2 * ALIGN, Ask::default()).is_some());
    assert!(room.take(ALIGN, Ask::default()).is_none());
    let reply = Ask { is_reply: true, ..Ask::default() };
    assert!(room.take(ALIGN, reply).is_some());
    assert!(room.take(ALIGN, reply).is_none());
    assert!(room.give(off, 5 * ALIGN, charge), "a reply waits");
    assert!(room.take(ALIGN, reply).is_some());
}

#[test]
fn test_program_that_finds_no_memory_waits_for_nobody() {
    let mut room = room(2, 0, 0);
    let (off, charge) = room.take(2 * ALIGN, Ask::default()).unwrap();
    assert!(room.take(ALIGN, Ask::default()).is_none());
    assert!(!room.give(off, 2 * ALIGN, charge), "nobody is to be told");
}
