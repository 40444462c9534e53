use std::net::Ipv4Addr;

use super::*;
use crate::server::Ticket;

const SET: Procedure = Procedure { program: 0x2000_0001, version: 1, procedure: 1 };

fn peer(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

fn ticket(n: u64) -> Ticket {
    Ticket { link: n, call: 0 }
}

type All = Duplicates<Ticket, u32>;

/// Ends a call with reply number `reply`, which has a header and `bytes` bytes.
fn done(all: &mut All, key: Key, reply: u32, bytes: usize, keep: bool) -> Vec<Ticket> {
    all.done(key, 24 + bytes, keep.then_some(|| reply))
}

fn new(all: &mut All, n: u8, xid: u32, t: u64) -> Key {
    match all.call((peer(n), Xid(xid)), SET, 7, ticket(t)) {
        Verdict::New(key) => key,
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_repeated_call_is_executed_once_and_every_copy_gets_the_reply() {
    let mut all = All::new(DuplicateLimits::default());
    let key = new(&mut all, 1, 5, 0);
    for t in 1..8 {
        let again = all.call((peer(1), Xid(5)), SET, 7, ticket(t));
        assert!(matches!(again, Verdict::Running), "{again:?}");
    }
    assert_eq!(done(&mut all, key, 5, 8, true), [0, 1, 2, 3, 4, 5, 6, 7].map(ticket));
    let kept = all.call((peer(1), Xid(5)), SET, 7, ticket(9));
    assert!(matches!(kept, Verdict::Done(5)), "{kept:?}");
    assert_eq!(done(&mut all, key, 5, 8, true), [], "told once");
}

/// A client loses connection after connection while its call is executed.
#[test]
fn test_only_last_connection_of_a_repeated_call_gets_the_reply() {
    let mut all = All::new(DuplicateLimits::default());
    let key = new(&mut all, 1, 5, 0);
    for t in 1..1000 {
        let again = all.call((peer(1), Xid(5)), SET, 7, ticket(t));
        assert!(matches!(again, Verdict::Running), "{again:?}");
        all.leave(peer(1), |ticket| ticket.link == t - 1);
    }
    all.leave(peer(2), |_| true);
    assert_eq!(done(&mut all, key, 5, 8, true), [ticket(999)]);
}

#[test]
fn test_call_with_another_xid_peer_procedure_or_arguments_is_new() {
    let mut all = All::new(DuplicateLimits::default());
    let key = new(&mut all, 1, 5, 0);
    done(&mut all, key, 5, 8, true);
    let other = Procedure { procedure: 2, ..SET };
    for (n, xid, procedure, word) in
        [(2, 5, SET, 7), (1, 6, SET, 7), (1, 5, other, 7), (1, 5, SET, 8)]
    {
        let verdict = all.call((peer(n), Xid(xid)), procedure, word, ticket(1));
        assert!(matches!(verdict, Verdict::New(_)), "{n} {xid} {procedure:?} {word}");
    }
}

#[test]
fn test_call_with_uncached_or_too_long_reply_is_executed_again() {
    let limits = DuplicateLimits { bytes: 400, ..DuplicateLimits::default() };
    let mut all = All::new(limits);
    for (bytes, keep, kept) in [(0, false, false), (4, true, true), (100, true, false)] {
        let key = new(&mut all, 1, 100 + bytes, 0);
        done(&mut all, key, 1, bytes as usize, keep);
        let again = all.call((peer(1), Xid(100 + bytes)), SET, 7, ticket(1));
        assert_eq!(matches!(again, Verdict::Done(_)), kept, "{bytes}");
    }
}

#[test]
fn test_oldest_replies_of_a_peer_are_evicted_and_other_peers_keep_theirs() {
    let limits = DuplicateLimits { peers: 4, replies: 3, bytes: 1000 };
    let mut all = All::new(limits);
    let key = new(&mut all, 9, 1, 0);
    done(&mut all, key, 1, 4, true);
    for xid in 0..1000 {
        let key = new(&mut all, 1, xid, 0);
        done(&mut all, key, xid, 4, true);
    }
    assert_eq!(all.len(), 4);
    for (n, xid, kept) in [(9, 1, true), (1, 999, true), (1, 997, true), (1, 996, false)] {
        let again = all.call((peer(n), Xid(xid)), SET, 7, ticket(1));
        assert_eq!(matches!(again, Verdict::Done(_)), kept, "{n} {xid}");
    }
}

#[test]
fn test_peers_are_limited_and_none_with_a_running_call_is_evicted() {
    let limits = DuplicateLimits { peers: 2, ..DuplicateLimits::default() };
    let mut all = All::new(limits);
    let waits = new(&mut all, 200, 1, 0);
    for n in 0..100 {
        let key = new(&mut all, n, 1, 0);
        done(&mut all, key, 1, 4, true);
        assert!(all.peers.len() <= 2, "{n}");
    }
    assert_eq!(done(&mut all, waits, 1, 4, false), [ticket(0)]);
}

#[test]
fn test_digest_covers_the_call_and_all_its_arguments() {
    let all = All::new(DuplicateLimits::default());
    let digest =
        |xid, procedure, parts: &[&[u8]]| all.digest((Xid(xid), procedure), parts.iter().copied());
    let one = digest(1, SET, &[&[1, 2], &[3]]);
    assert_eq!(digest(1, SET, &[&[1, 2, 3]]), one, "however it came");
    let other = Procedure { procedure: 2, ..SET };
    for another in [digest(2, SET, &[&[1, 2, 3]]), digest(1, other, &[&[1, 2, 3]])] {
        assert_ne!(another, one);
    }
    assert_ne!(digest(1, SET, &[&[1, 2, 4]]), one);
}
