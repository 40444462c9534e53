use super::*;

fn pool(count: u32) -> FastPool {
    FastPool::of((0..count).map(|n| Source::Number(Stag(n << 8))).collect(), 4096)
}

#[test]
fn test_stag_is_taken_by_one_call_at_a_time_and_with_another_key_each_time() {
    let mut pool = pool(2);
    let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
    assert!(!a.same_index(b));
    assert_eq!((pool.take(), pool.available()), (None, 0));
    pool.invalidating(a).unwrap();
    assert_eq!(pool.take(), None, "not before the request has completed");
    pool.invalidated(a).unwrap();
    let again = pool.take().unwrap();
    assert!(again.same_index(a) && again != a);
}

#[test]
fn test_stag_of_a_call_that_is_over_is_not_invalidated_again() {
    let mut pool = pool(1);
    let old = pool.take().unwrap();
    pool.invalidated_by_peer(old).unwrap();
    assert_eq!(pool.invalidated_by_peer(old), Err(NotValid(old)), "nobody has it");
    let new = pool.take().unwrap();
    for stag in [old, Stag(7 << 8 | 1)] {
        assert_eq!(pool.invalidated_by_peer(stag), Err(NotValid(stag)));
        assert_eq!(pool.invalidating(stag), Err(NotValid(stag)));
    }
    pool.invalidating(new).unwrap();
    assert_eq!(pool.invalidated_by_peer(new), Err(NotValid(new)), "ours is on its way");
    assert_eq!(pool.invalidating(new), Err(NotValid(new)), "once");
    pool.invalidated(new).unwrap();
    assert_eq!(pool.available(), 1);
}

#[test]
fn test_long_pieces_need_several_stags() {
    let pool = pool(1);
    let needed = [0, 1, 4096, 4097, 1 << 20].map(|bytes| pool.needed(bytes));
    assert_eq!(needed, [0, 1, 1, 2, 256]);
}
