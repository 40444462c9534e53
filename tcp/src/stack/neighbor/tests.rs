use super::*;

const M1: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const M2: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
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
    let again = Due::Ask { ip: ip(1), at: MacAddr::BROADCAST };
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
fn test_incomplete_without_users_goes_quietly() {
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

#[test]
fn test_change_is_believed_only_a_while_after_a_confirmation() {
    let mut n = table(8);
    let (i, _) = n.acquire(at(0), ip(1)).unwrap();
    n.learn(at(10), ip(1), M1, Source::Reply);
    assert_eq!(n.learn(at(10), ip(1), M2, Source::Reply), Learned::Refused);
    assert_eq!(n.mac(i), Some(M1));
    assert_eq!(n.learn(at(11), ip(1), M2, Source::Overheard), Learned::Changed);
    assert_eq!(n.mac(i), Some(M2));
    assert_eq!(n.learn(at(11), ip(1), M2, Source::Overheard), Learned::Confirmed);
}

#[test]
fn test_entry_in_use_is_asked_for_again_and_kept() {
    let mut n = table(8);
    let (i, _) = n.acquire(at(0), ip(1)).unwrap();
    n.learn(at(0), ip(1), M1, Source::Reply);
    assert_eq!(due(&mut n, 59), []);
    for s in 60..63 {
        assert_eq!(due(&mut n, s), [Due::Ask { ip: ip(1), at: M1 }]);
    }
    for s in 63..66 {
        assert_eq!(due(&mut n, s), [Due::Ask { ip: ip(1), at: MacAddr::BROADCAST }]);
    }
    assert_eq!(n.mac(i), Some(M1));
    assert_eq!(due(&mut n, 66), [Due::Unconfirmed]);
    assert_eq!((n.mac(i), due(&mut n, 67)), (Some(M1), vec![]));
}

#[test]
fn test_answer_while_probing_starts_anew() {
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
    assert!(n.by_ip.contains_key(&ip(1)) && !n.by_ip.contains_key(&ip(2)));
    for i in 3..=5 {
        n.acquire(at(7), ip(i)).unwrap();
    }
    assert_eq!(n.acquire(at(7), ip(9)), None);
    assert_eq!(n.learn(at(7), ip(9), M2, Source::Request), Learned::Ignored);
}

#[test]
fn test_questions_take_at_most_half_of_the_table() {
    let mut n = table(8);
    for i in 1..=4 {
        assert!(n.acquire(at(0), ip(i)).is_some());
    }
    assert_eq!(n.acquire(at(0), ip(5)), None);
    n.learn(at(0), ip(1), M1, Source::Reply);
    assert!(n.acquire(at(0), ip(5)).is_some());
}
