use super::*;
use core::net::Ipv4Addr;

const M1: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const M2: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn ip(n: u8) -> LinkAddr {
    LinkAddr::new(Vid::NONE, Ipv4Addr::new(10, 0, 0, n).into())
}

fn at(s: u64) -> Instant {
    Instant::from_millis(s * 1000)
}

fn due(n: &mut Neighbors, s: u64) -> Vec<Due> {
    core::iter::from_fn(|| n.poll_due(at(s))).collect()
}

fn table(max: usize) -> Neighbors {
    Neighbors::new(max, [1; 16])
}

#[test]
fn test_incomplete_asks_three_times_and_fails() {
    let mut n = table(8);
    let (i, ask) = n.acquire(at(0), ip(1)).unwrap();
    assert!(ask);
    assert_eq!(n.acquire(at(0), ip(1)), Some((i, false)));
    let again = Due::Ask { who: ip(1), at: MacAddr::BROADCAST };
    assert_eq!(n.next_timeout(), Some(at(1)));
    assert_eq!(due(&mut n, 1), [again]);
    assert_eq!(due(&mut n, 2), [again]);
    assert_eq!(due(&mut n, 3), [Due::Failed(i)]);
    assert_eq!(n.mac(i), None);
    n.release(i);
    assert_eq!(n.len(), 1);
    n.release(i);
    assert_eq!((n.len(), n.next_timeout()), (0, None));
    assert!(n.acquire(at(4), ip(1)).unwrap().1, "asked anew");
}

#[test]
fn test_incomplete_neighbor_without_users_is_removed() {
    let mut n = table(8);
    let (i, _) = n.acquire(at(0), ip(1)).unwrap();
    n.release(i);
    assert_eq!(due(&mut n, 1), []);
    assert_eq!((n.len(), n.incomplete), (0, 0));
}

#[test]
fn test_reply_resolves_only_what_was_asked_for() {
    let mut n = table(8);
    assert_eq!(n.learn(at(0), ip(1), M1, Source::Reply), Learned::Ignored);
    assert_eq!(n.learn(at(0), ip(1), M1, Source::Overheard), Learned::Ignored);
    let (i, _) = n.acquire(at(0), ip(1)).unwrap();
    assert_eq!(n.learn(at(0), ip(1), M1, Source::Overheard), Learned::Ignored);
    assert_eq!(n.learn(at(0), ip(1), M1, Source::Reply), Learned::Resolved(i));
    assert_eq!(n.mac(i), Some(M1));
}

#[test]
fn test_request_to_us_makes_an_entry() {
    let mut n = table(8);
    assert_eq!(n.learn(at(0), ip(1), M1, Source::Request), Learned::New);
    let (i, ask) = n.acquire(at(1), ip(1)).unwrap();
    assert!(!ask);
    assert_eq!(n.mac(i), Some(M1));
}

/// Returns a neighbor in use at `M1`, known since 0 s.
fn in_use(n: &mut Neighbors) -> u32 {
    let (i, _) = n.acquire(at(0), ip(1)).unwrap();
    n.learn(at(0), ip(1), M1, Source::Reply);
    i
}

fn due_at(n: &mut Neighbors, now: Instant) -> Vec<Due> {
    core::iter::from_fn(|| n.poll_due(now)).collect()
}

#[test]
fn test_claim_of_another_address_holds_when_the_station_we_know_is_silent() {
    for source in [Source::Reply, Source::Request, Source::Overheard] {
        let mut n = table(8);
        let i = in_use(&mut n);
        assert_eq!(n.learn(at(0), ip(1), M2, source), Learned::Contested(M1));
        assert_eq!((n.mac(i), n.is_settled(i)), (Some(M1), false));
        assert_eq!(n.learn(at(0), ip(1), M2, source), Learned::Ignored, "asked already");
        let ask = Due::Ask { who: ip(1), at: M1 };
        assert_eq!(due_at(&mut n, Instant::from_millis(99)), []);
        assert_eq!(due_at(&mut n, Instant::from_millis(100)), [ask]);
        assert_eq!(due_at(&mut n, Instant::from_millis(199)), []);
        let changed = Due::Changed { neighbor: i, who: ip(1), at: M2 };
        assert_eq!(due_at(&mut n, Instant::from_millis(200)), [changed]);
        assert_eq!((n.mac(i), n.is_settled(i)), (Some(M2), true));
        assert_eq!(n.learn(at(1), ip(1), M2, Source::Reply), Learned::Confirmed);
    }
}

#[test]
fn test_claim_of_another_address_is_refused_when_the_station_we_know_answers() {
    let mut n = table(8);
    let i = in_use(&mut n);
    n.learn(at(5), ip(1), M2, Source::Reply);
    assert_eq!(n.learn(at(5), ip(1), M1, Source::Reply), Learned::Defended(i));
    assert_eq!((n.mac(i), n.is_settled(i)), (Some(M1), true));
    assert_eq!(due(&mut n, 6), []);
    // Claims can make us ask one question a second and no more.
    let almost = Instant::from_millis(5999);
    assert_eq!(n.learn(almost, ip(1), M2, Source::Reply), Learned::Refused);
    assert_eq!(n.learn(at(6), ip(1), M2, Source::Reply), Learned::Contested(M1));
}

#[test]
fn test_wrong_claim_that_held_is_set_right_by_the_next_packet_of_the_host() {
    let mut n = table(8);
    let i = in_use(&mut n);
    n.learn(at(0), ip(1), M2, Source::Overheard);
    due(&mut n, 1);
    due(&mut n, 2);
    assert_eq!(n.mac(i), Some(M2));
    assert_eq!(n.learn(at(2), ip(1), M1, Source::Request), Learned::Contested(M2));
    due(&mut n, 3);
    due(&mut n, 4);
    assert_eq!(n.mac(i), Some(M1));
}

#[test]
fn test_conflicting_claim_removes_unused_neighbor_entry() {
    let mut n = table(8);
    n.learn(at(0), ip(1), M1, Source::Request);
    assert_eq!(n.learn(at(0), ip(1), M2, Source::Overheard), Learned::Changed);
    assert_eq!((n.len(), n.next_timeout()), (0, None));
    assert!(n.acquire(at(0), ip(1)).unwrap().1, "everyone is asked");
}

#[test]
fn test_contest_whose_users_leave_ends_with_the_entry() {
    let mut n = table(8);
    let i = in_use(&mut n);
    n.learn(at(0), ip(1), M2, Source::Reply);
    n.release(i);
    assert_eq!((due(&mut n, 1), n.len()), (vec![], 0));
}

#[test]
fn test_answer_to_a_question_asked_of_everyone_is_believed_at_once() {
    let mut n = table(8);
    let i = in_use(&mut n);
    for s in 60..63 {
        due(&mut n, s);
    }
    assert_eq!(n.learn(at(62), ip(1), M2, Source::Reply), Learned::Contested(M1));
    let mut n = table(8);
    assert_eq!(in_use(&mut n), i);
    for s in 60..64 {
        due(&mut n, s);
    }
    assert_eq!(n.learn(at(63), ip(1), M2, Source::Reply), Learned::Changed);
    assert_eq!(n.mac(i), Some(M2));
}

#[test]
fn test_entry_in_use_is_asked_for_again_and_kept() {
    let mut n = table(8);
    let (i, _) = n.acquire(at(0), ip(1)).unwrap();
    n.learn(at(0), ip(1), M1, Source::Reply);
    assert_eq!(due(&mut n, 59), []);
    for s in 60..63 {
        assert_eq!(due(&mut n, s), [Due::Ask { who: ip(1), at: M1 }]);
    }
    for s in 63..66 {
        assert_eq!(due(&mut n, s), [Due::Ask { who: ip(1), at: MacAddr::BROADCAST }]);
    }
    assert_eq!(n.mac(i), Some(M1));
    assert_eq!(due(&mut n, 66), [Due::Unconfirmed(i)]);
    assert_eq!((n.mac(i), due(&mut n, 67)), (Some(M1), vec![]));
}

#[test]
fn test_suspected_neighbor_is_asked_for_at_once_and_once_a_second_at_most() {
    let mut n = table(8);
    let (i, _) = n.acquire(at(0), ip(1)).unwrap();
    n.suspect(i);
    n.learn(at(0), ip(1), M1, Source::Reply);
    n.suspect(i);
    assert_eq!(due(&mut n, 0), []);
    assert_eq!(due(&mut n, 1), [Due::Ask { who: ip(1), at: M1 }]);
    n.suspect(i);
    assert_eq!((due(&mut n, 1), n.is_settled(i)), (vec![], true));
    n.learn(at(10), ip(1), M1, Source::Reply);
    assert_eq!(due(&mut n, 15), []);
    n.suspect(i);
    assert_eq!(due(&mut n, 15), [Due::Ask { who: ip(1), at: M1 }]);
    // Another claims the address of a suspect: the stack asks the known station as it does otherwise.
    n.learn(at(15), ip(1), M1, Source::Reply);
    n.suspect(i);
    assert_eq!(n.learn(at(15), ip(1), M2, Source::Request), Learned::Contested(M1));
    n.suspect(i);
    assert_eq!(n.mac(i), Some(M1));
}

#[test]
fn test_answer_to_probe_restarts_neighbor_timer() {
    let mut n = table(8);
    n.acquire(at(0), ip(1)).unwrap();
    n.learn(at(0), ip(1), M1, Source::Reply);
    due(&mut n, 60);
    assert_eq!(n.learn(at(60), ip(1), M1, Source::Reply), Learned::Confirmed);
    assert_eq!(due(&mut n, 119), []);
    assert_eq!(due(&mut n, 120).len(), 1);
}

#[test]
fn test_unused_entry_expires() {
    let mut n = table(8);
    n.learn(at(0), ip(1), M1, Source::Request);
    assert_eq!((due(&mut n, 60), n.len(), n.next_timeout()), (vec![], 0, None));
}

#[test]
fn test_full_table_evicts_the_stalest_unused_entry_and_never_one_in_use() {
    let mut n = table(4);
    for i in 1..=4 {
        n.learn(at(u64::from(i)), ip(i), M1, Source::Request);
    }
    let (first, _) = n.acquire(at(5), ip(1)).unwrap();
    n.learn(at(6), ip(5), M2, Source::Request);
    assert_eq!((n.len(), n.evictions), (4, 1));
    assert_eq!(n.mac(first), Some(M1));
    assert!(n.by_addr.contains_key(&ip(1)) && !n.by_addr.contains_key(&ip(2)));
    for i in 3..=5 {
        n.acquire(at(7), ip(i)).unwrap();
    }
    assert_eq!(n.acquire(at(7), ip(9)), None);
    assert_eq!(n.learn(at(7), ip(9), M2, Source::Request), Learned::Ignored);
}

#[test]
fn test_unresolved_neighbors_take_at_most_half_of_the_table() {
    let mut n = table(8);
    for i in 1..=4 {
        assert!(n.acquire(at(0), ip(i)).is_some());
    }
    assert_eq!(n.acquire(at(0), ip(5)), None);
    n.learn(at(0), ip(1), M1, Source::Reply);
    assert!(n.acquire(at(0), ip(5)).is_some());
}
