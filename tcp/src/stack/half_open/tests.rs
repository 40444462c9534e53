use core::net::Ipv4Addr;

use super::*;
use crate::Flags;

const MS: Duration = Duration::from_millis(1);

fn flow(n: u16) -> FlowKey {
    FlowKey::v4(Ipv4Addr::new(10, 0, 0, 2), 80, Ipv4Addr::new(10, 0, 0, 1), n)
}

/// Few distinct hashes, so that entries collide.
fn hash(n: u16) -> u64 {
    u64::from(n % 3)
}

fn entry(n: u16) -> HalfOpen {
    let syn = Segment { flags: Flags::SYN, ..Segment::default() };
    let (key, terms) = (flow(n), (1, TcpTerms::default()));
    let hashed = Hashed { key: &key, hash: hash(n) };
    HalfOpen::new(hashed, &syn, SeqNumber(n.into()), terms, MacAddr([2; 6]))
}

fn find(t: &HalfOpens, n: u16) -> Option<u32> {
    t.find(Hashed { key: &flow(n), hash: hash(n) })
}

fn table(max: usize) -> HalfOpens {
    HalfOpens::new(max, &ConnConfig::default())
}

#[test]
fn test_entry_takes_a_tenth_of_a_connection() {
    let entry = size_of::<Option<HalfOpen>>();
    assert!(entry <= 184, "{entry} bytes");
    assert!(10 * entry <= 2048, "{entry} bytes");
}

#[test]
fn test_entries_are_found_until_they_are_removed_and_their_number_is_bounded() {
    let mut t = table(8);
    let all: Vec<_> = (0..8).map(|n| t.insert(entry(n)).unwrap()).collect();
    assert!(t.is_full() && t.insert(entry(8)).is_none());
    for (n, index) in (0..8).zip(&all) {
        assert_eq!(find(&t, n), Some(*index));
    }
    assert_eq!(t.oldest(), Some(all[0]));
    assert_eq!(t.remove(all[0]).unwrap().flow, flow(0));
    assert_eq!((find(&t, 0), t.oldest(), t.len()), (None, Some(all[1]), 7));
    assert_eq!(find(&t, 3), Some(all[3]));
    assert!(t.remove(all[0]).is_none(), "once");
    assert!(t.insert(entry(8)).is_some());
}

#[test]
fn test_syn_acks_fall_due_at_doubling_intervals_and_then_the_entry_is_over() {
    let mut t = table(8);
    let index = t.insert(entry(1)).unwrap();
    assert_eq!((t.first_due(), t.next_timeout()), (Some(index), None));
    t.sent(Instant::ZERO, index);
    let (mut now, mut at) = (Instant::ZERO, Vec::new());
    loop {
        assert!(!t.has_due());
        assert!(t.expired(now).is_none(), "too early");
        now = t.next_timeout().unwrap();
        at.push(now.as_millis());
        let (found, more) = t.expired(now).unwrap();
        assert_eq!((found, t.first_due()), (index, Some(index)));
        if !more {
            break;
        }
        t.sent(now, index);
    }
    assert_eq!(at, [1000, 3000, 7000, 15_000]);
    assert!(t.remove(index).is_some());
    assert!(t.expired(now).is_none() && t.next_timeout().is_none());
}

#[test]
fn test_entries_expire_in_the_order_of_their_deadlines_over_all_lists() {
    let mut t = table(8);
    let all: Vec<_> = (0..3).map(|n| t.insert(entry(n)).unwrap()).collect();
    for &i in &all {
        t.sent(Instant::ZERO, i);
    }
    let early = Instant::ZERO + 1000 * MS;
    assert_eq!(t.expired(early), Some((all[0], true)));
    t.sent(early, all[0]);
    let last = t.insert(entry(5)).unwrap();
    t.sent(early + 500 * MS, last);
    let order: Vec<_> = core::iter::from_fn(|| {
        let (i, _) = t.expired(early + 9000 * MS)?;
        t.remove(i);
        Some(i)
    })
    .collect();
    assert_eq!(order, [all[1], all[2], last, all[0]]);
}

#[test]
fn test_entry_that_waits_or_ends_is_in_no_list_of_the_others() {
    let mut t = table(2);
    let (a, b) = (t.insert(entry(1)).unwrap(), t.insert(entry(2)).unwrap());
    t.wait(a, 7);
    assert_eq!((t.get(a).unwrap().stage(), t.first_due()), (Stage::Waiting(7), Some(b)));
    t.resume(a);
    t.sent(Instant::ZERO, b);
    assert_eq!(t.first_due(), Some(a));
    // An entry that ends is not found any more, and does not count.
    t.end(b);
    assert_eq!((t.get(b).unwrap().stage(), t.first_due()), (Stage::Ending, Some(a)));
    assert!(t.expired(Instant::ZERO + 2000 * MS).is_none());
}

/// Entries of ended listeners whose reset cannot go do not add up.
#[test]
fn test_ending_entries_are_bounded_too() {
    let mut t = table(4);
    let mut ended = 0;
    for n in 0..100 {
        let Some(index) = t.insert(entry(n)) else { break };
        t.end(index);
        ended += 1;
    }
    assert_eq!((ended, t.len()), (8, 0));
    assert!(t.is_full() && t.iter().count() == 0);
    let first = t.first_due().unwrap();
    t.remove(first);
    assert!(t.insert(entry(9)).is_some());
}
