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
        assert_eq!(free.0, BTreeMap::from([(0, LEN)]), "{order:?}");
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
