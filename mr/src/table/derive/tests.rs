//! Windows and fast registrations: what each may do, and what threads may see.

mod model;

use super::super::tests::{PD, QP, table};
use super::*;
use heddle_base::Seed;
use heddle_types::mr::MAX_FAST_LEN;
use std::sync::atomic::{AtomicU32, Ordering};

fn all() -> Access {
    Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ).with(Access::BIND)
}

fn bind(stag: Stag, to: u64, access: Access) -> Bind {
    Bind { stag, to, access }
}

const US: (Pd, Qpn) = (PD, QP);

#[test]
fn test_fast_registration_is_valid_only_with_its_last_key() {
    let t = table(4);
    let mr = t.register(PD, 1000, 50, 8192, all()).unwrap();
    let s = t.allocate(PD, None, 8192).unwrap();
    let check = |stag, to, len| t.check(PD, QP, stag, to, len, Access::REMOTE_WRITE);
    assert_eq!(check(s, 0, 1), Err(MrFault::InvalidStag), "nothing is registered yet");
    let first = s.with_key(7);
    t.bind(US, Kind::Fast, &bind(first, 0, all_but_bind()), [(mr.stag, 150, 100)]).unwrap();
    let found = check(first, 10, 90).unwrap();
    assert_eq!((found.addr(), found.len(), found.mr()), (1110, 90, t.index(mr.stag)));
    assert_eq!(check(first, 10, 91), Err(MrFault::Bounds));
    // The STag is valid: no request can register the same key or another.
    for key in [7, 8] {
        let again = bind(s.with_key(key), 0, Access::REMOTE_READ);
        let got = t.bind(US, Kind::Fast, &again, [(mr.stag, 50, 10)]);
        assert_eq!(got, Err(BindError::Valid));
    }
    assert_eq!(t.invalidate_local(US, s.with_key(8)), Err(BindError::Valid));
    t.invalidate_local(US, first).unwrap();
    t.invalidate_local(US, first).unwrap();
    assert_eq!(check(first, 10, 1), Err(MrFault::InvalidStag));
    let second = s.with_key(8);
    let anew = bind(second, 1 << 40, Access::REMOTE_WRITE);
    t.bind(US, Kind::Fast, &anew, [(mr.stag, 50, 10)]).unwrap();
    assert_eq!(check(first, 10, 1), Err(MrFault::InvalidStag), "the stale key is good again");
    assert_eq!(check(second, (1 << 40) + 9, 1).unwrap().addr(), 1009);
    assert_eq!(t.invalidate_local(US, first), Err(BindError::Valid));
    assert!(check(second, 1 << 40, 1).is_ok());
}

/// A user that goes through the memory of an STag piece by piece checks it once. Each piece asks
/// whether the STag and its region are as they were.
#[test]
fn test_checked_rest_of_derived_stag_ends_with_stag_and_with_region() {
    let ends: [fn(&MrTable, Stag, Stag); 5] = [
        |t, _, stag| t.invalidate(PD, QP, stag).unwrap(),
        |t, _, stag| t.invalidate_local(US, stag).unwrap(),
        |t, _, stag| t.revoke(stag).unwrap(),
        |t, _, stag| t.deregister(stag).unwrap(),
        |t, region, _| t.deregister(region).unwrap(),
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let t = table(4);
        let register = || t.register(PD, 1000, 50, 8192, all()).unwrap().stag;
        let region = register();
        let base = t.allocate(PD, Some(QP), 8192).unwrap();
        let stag = base.with_key(1);
        let rights = Access::REMOTE_WRITE.with(Access::REMOTE_INVALIDATE);
        t.bind(US, Kind::Fast, &bind(stag, 7, rights), [(region, 150, 100)]).unwrap();
        let rest = |user, stag, to, need| t.check_rest(user, stag, to, need);
        let write = Access::REMOTE_WRITE;
        assert!(rest(US, stag, 7, Access::REMOTE_READ).is_none(), "no such right");
        assert!(rest((PD, Qpn(10)), stag, 7, write).is_none(), "of another queue pair");
        assert!(rest((Pd(8), QP), stag, 7, write).is_none(), "of another domain");
        assert!(rest(US, base.with_key(2), 7, write).is_none(), "of another key");
        assert!(rest(US, stag, 6, write).is_none() && rest(US, stag, 107, write).is_none());
        let mut rest = rest(US, stag, 17, write).unwrap();
        let first = rest.take(&t, 60).unwrap();
        assert_eq!((first.addr(), first.len(), first.mr()), (1110, 60, t.index(region)));
        assert!(rest.take(&t, 31).is_none(), "the registration has 30 bytes more");
        let mut last = rest;
        assert_eq!(last.take(&t, 30).unwrap().addr(), 1170);
        end(&t, region, stag);
        assert!(rest.take(&t, 1).is_none(), "after end {n}");
        // The same memory once more is another registration, whatever slots it takes.
        let region = if n == 4 { register() } else { region };
        let again = if n == 3 { t.allocate(PD, Some(QP), 8192).unwrap() } else { base };
        let again = again.with_key(2);
        t.bind(US, Kind::Fast, &bind(again, 7, rights), [(region, 150, 100)]).unwrap();
        assert!(t.check(PD, QP, again, 87, 1, write).is_ok());
        assert!(rest.take(&t, 1).is_none(), "after end {n}, registered again");
    }
}

#[test]
fn test_window_and_page_list_have_no_rest_for_local_use() {
    let t = table(4);
    let region = t.register(PD, 5 * PAGE, 0, 64 * PAGE, all()).unwrap().stag;
    let window = t.allocate_window(PD, Some(QP)).unwrap().with_key(1);
    let access = Access::REMOTE_READ;
    t.bind(US, Kind::QpWindow, &bind(window, 0, access), [(region, 0, 4096)]).unwrap();
    assert!(t.check_rest(US, window, 0, access).is_some());
    assert!(t.check_rest(US, window, 0, Access::NONE).is_none());
    assert_eq!(t.check(PD, QP, window, 0, 1, Access::NONE), Err(MrFault::Access));
    let list = t.allocate(PD, None, 4 * PAGE).unwrap().with_key(1);
    let pieces = [(region, 2 * PAGE, 4096), (region, 9 * PAGE, 4096)];
    t.bind(US, Kind::Fast, &bind(list, 0, access), pieces).unwrap();
    assert!(t.check_rest(US, list, 0, access).is_none(), "its pieces are checked one by one");
    assert_eq!(t.check(PD, QP, list, 4095, 2, access).map(|r| r.len()), Ok(1));
}

/// Returns the address of each byte of `[to, to + len)`, as checks give it.
fn bytes(t: &MrTable, stag: Stag, to: u64, len: u32) -> Result<Vec<u64>, MrFault> {
    let mut all = Vec::new();
    while all.len() < len as usize {
        let done = u32::try_from(all.len()).unwrap();
        let at = to + u64::from(done);
        let range = t.check(PD, QP, stag, at, len - done, Access::REMOTE_READ)?;
        assert!(!range.is_empty());
        all.extend(range.addr()..range.addr() + u64::from(range.len()));
    }
    Ok(all)
}

#[test]
fn test_page_list_maps_each_byte_to_its_page() {
    let t = table(4);
    let mr = t.register(PD, 5 * PAGE, 0, 64 * PAGE, all()).unwrap().stag;
    let s = t.allocate(PD, None, 6 * PAGE).unwrap();
    let page = 4096;
    // A part of a page, a page, two adjacent pages, the first of those again, a part of a page.
    let pieces = [
        (mr, 10 * PAGE + 4000, 96),
        (mr, 3 * PAGE, page),
        (mr, 20 * PAGE, page),
        (mr, 21 * PAGE, page),
        (mr, 20 * PAGE, page),
        (mr, 7 * PAGE, 10),
    ];
    let want: Vec<u64> =
        pieces.iter().flat_map(|p| 5 * PAGE + p.1..5 * PAGE + p.1 + u64::from(p.2)).collect();
    let stag = s.with_key(1);
    t.bind(US, Kind::Fast, &bind(stag, 77, Access::REMOTE_READ), pieces).unwrap();
    let len = u32::try_from(want.len()).unwrap();
    assert_eq!(bytes(&t, stag, 77, len).unwrap(), want);
    // From any place in the registration, to any other.
    for (off, n) in [(95, 2), (96, page), (90, 5000), (len - 1, 1), (4000, 10_000), (len - 11, 11)]
    {
        let (from, to) = (off as usize, (off + n) as usize);
        assert_eq!(bytes(&t, stag, 77 + u64::from(off), n).unwrap(), want[from..to]);
    }
    // Adjacent pages are one range.
    let both = t.check(PD, QP, stag, 77 + 96 + PAGE, 3 * page, Access::REMOTE_READ).unwrap();
    assert_eq!((both.addr(), both.len()), (25 * PAGE, 2 * page));
    assert_eq!(both.mr(), t.index(mr), "counted as the region");
    // The check covers the whole request, not only the part that it returns.
    let check = |to, n, need| t.check(PD, QP, stag, to, n, need);
    assert_eq!(check(77, len + 1, Access::REMOTE_READ), Err(MrFault::Bounds));
    assert_eq!(check(76, 1, Access::REMOTE_READ), Err(MrFault::Bounds));
    assert_eq!(check(77, 1, Access::REMOTE_WRITE), Err(MrFault::Access));
    assert_eq!(t.bound(mr), 1);
    // The same STag as one range with another key: nothing of the list is left.
    t.invalidate_local(US, stag).unwrap();
    assert_eq!(check(77, 1, Access::REMOTE_READ), Err(MrFault::InvalidStag));
    let next = s.with_key(2);
    t.bind(US, Kind::Fast, &bind(next, 0, Access::REMOTE_READ), [(mr, 1, 3 * page)]).unwrap();
    let range = t.check(PD, QP, next, 0, 3 * page, Access::REMOTE_READ).unwrap();
    assert_eq!((range.addr(), range.len()), (5 * PAGE + 1, 3 * page));
    // When the region ends, the list ends too.
    t.invalidate_local(US, next).unwrap();
    let last = s.with_key(3);
    t.bind(US, Kind::Fast, &bind(last, 0, Access::REMOTE_READ), pieces).unwrap();
    t.deregister(mr).unwrap();
    assert_eq!(t.check(PD, QP, last, 0, 1, Access::REMOTE_READ), Err(MrFault::InvalidStag));
}

#[test]
fn test_page_list_must_hold_whole_pages_of_one_region_within_limit() {
    let t = table(8);
    let mr = t.register(PD, PAGE, 0, 64 * PAGE, all()).unwrap().stag;
    let other = t.register(PD, 65 * PAGE, 0, 64 * PAGE, all()).unwrap().stag;
    let s = t.allocate(PD, None, 64 * PAGE).unwrap();
    let w = t.allocate_window(PD, Some(QP)).unwrap();
    let page = 4096;
    let try_list = |kind, stag: Stag, pieces: &[(Stag, u64, u32)]| {
        let bind = bind(stag.with_key(3), 0, Access::REMOTE_READ);
        let got = t.bind(US, kind, &bind, pieces.to_vec());
        if got.is_ok() {
            t.invalidate_local(US, bind.stag).unwrap();
        }
        got
    };
    let scattered = Err(BindError::Scattered);
    let fast = |pieces: &[_]| try_list(Kind::Fast, s, pieces);
    assert_eq!(fast(&[(mr, 3 * PAGE, page), (mr, PAGE, page)]), Ok(()));
    assert_eq!(fast(&[(mr, 3 * PAGE, page - 8), (mr, PAGE, page)]), scattered, "ends in a page");
    assert_eq!(fast(&[(mr, 3 * PAGE, page), (mr, PAGE + 8, page)]), scattered, "begins in a page");
    assert_eq!(fast(&[(mr, 3 * PAGE, page), (other, PAGE, page)]), scattered, "another region");
    // Adjacent pages of two regions still belong to two regions.
    assert_eq!(fast(&[(mr, 63 * PAGE, page), (other, 0, page)]), scattered);
    let every_other = |n: u64| (0..n).map(|i| (mr, 2 * i * PAGE, page)).collect::<Vec<_>>();
    assert_eq!(fast(&every_other(16)), Ok(()));
    assert_eq!(fast(&every_other(17)), scattered);
    assert_eq!(try_list(Kind::QpWindow, w, &every_other(2)), scattered, "a window is one range");
    assert_eq!(try_list(Kind::QpWindow, w, &every_other(1)), Ok(()));
    assert_eq!(t.bound(mr), 0, "what was refused is not counted");
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A thread that checks while one list replaces another sees either list, never a mix.
#[test]
fn test_concurrent_reader_never_sees_a_mix_of_two_page_lists() {
    const ENOUGH: u32 = 200_000;
    let t = table(4);
    let mr = t.register(PD, 0, 0, 64 * PAGE, all()).unwrap().stag;
    let s = t.allocate(PD, None, 4 * PAGE).unwrap();
    // Key 1 always has even pages, key 2 odd ones.
    let list = |odd: u64, first: u64| [0, 2, 4].map(|i| (mr, (first + i * 2 + odd) * PAGE, 4096));
    let stop = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0u64;
            while stop.load(Ordering::Acquire) == 0 {
                let odd = round % 2;
                let stag = s.with_key(if odd == 0 { 1 } else { 2 });
                let bind = bind(stag, 0, Access::REMOTE_READ);
                t.bind(US, Kind::Fast, &bind, list(odd, round / 2 % 8 * 2)).unwrap();
                t.invalidate_local(US, stag).unwrap();
                round += 1;
            }
        });
        // If a check panics, this guard ends the other thread too.
        let _stop = OnDrop(|| stop.store(1, Ordering::Release));
        let mut seen = [0; 2];
        while seen.iter().any(|n| *n < ENOUGH) {
            for (key, odd) in [(1, 0), (2, 1)] {
                let stag = s.with_key(key);
                for at in [100, PAGE + 5, 2 * PAGE] {
                    if let Ok(range) = t.check(PD, QP, stag, at, 50, Access::REMOTE_READ) {
                        assert_eq!(range.addr() / PAGE % 2, odd);
                        assert_eq!(range.addr() % PAGE, at % PAGE);
                        seen[usize::try_from(odd).unwrap()] += 1;
                    }
                }
            }
        }
    });
}

fn all_but_bind() -> Access {
    Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ)
}

#[test]
fn test_region_pieces_are_refused_unless_they_form_one_range() {
    let t = table(8);
    let mr = t.register(PD, 1000, 0, 8192, all()).unwrap().stag;
    // The adjacent memory is another region.
    let next = t.register(PD, 9192, 0, 8192, all()).unwrap().stag;
    let s = t.allocate(PD, None, 4096).unwrap();
    let mut key = 0;
    let mut register = |pieces: &[(Stag, u64, u32)]| {
        key += 1;
        let stag = s.with_key(key);
        let got = t.bind(US, Kind::Fast, &bind(stag, 0, Access::REMOTE_READ), pieces.to_vec());
        got.map(|()| {
            let len = pieces.iter().map(|p| p.2).sum();
            let found = t.check(PD, QP, stag, 0, len, Access::REMOTE_READ).unwrap();
            t.invalidate_local(US, stag).unwrap();
            found.addr()
        })
    };
    assert_eq!(register(&[(mr, 0, 100), (mr, 100, 50), (mr, 150, 1)]), Ok(1000));
    assert_eq!(register(&[(mr, 0, 4096)]), Ok(1000));
    let scattered = Err(BindError::Scattered);
    assert_eq!(register(&[(mr, 0, 100), (mr, 101, 50)]), scattered);
    assert_eq!(register(&[(mr, 100, 100), (mr, 0, 100)]), scattered);
    assert_eq!(register(&[(mr, 8000, 192), (next, 0, 10)]), scattered);
    assert_eq!(register(&[(mr, 0, 4097)]), Err(BindError::Length), "more than it was made for");
    assert_eq!(register(&[]), Err(BindError::Length));
    assert_eq!(register(&[(mr, 0, 0)]), Err(BindError::Length));
    assert_eq!(register(&[(mr, 8000, 193)]), Err(BindError::Memory(MrFault::Bounds)));
    let wraps = bind(s, u64::MAX - 9, Access::REMOTE_READ);
    let got = |len| t.bind(US, Kind::Fast, &wraps, [(mr, 0, len)]);
    assert_eq!((got(10), got(9)), (Err(BindError::Length), Ok(())));
}

#[test]
fn test_derived_rights_never_exceed_those_of_the_region() {
    let t = table(16);
    let register = |access| t.register(PD, 0, 0, 100, access).unwrap().stag;
    let reader = register(Access::BIND);
    let closed = register(all_but_bind());
    let writer = register(Access::BIND.with(Access::LOCAL_WRITE));
    let get = |mr, qpn: Option<Qpn>, kind, access| {
        let s = if kind == Kind::Fast {
            t.allocate(PD, qpn, 100).unwrap()
        } else {
            t.allocate_window(PD, qpn).unwrap()
        };
        let got = t.bind(US, kind, &bind(s, 0, access), [(mr, 0, 100)]);
        t.deregister(s).unwrap();
        got
    };
    let (qp, fast, win) = (Some(QP), Kind::Fast, Kind::QpWindow);
    let no = Err(BindError::Rights);
    for kind in [fast, win] {
        assert_eq!(
            get(closed, qp, kind, Access::REMOTE_READ),
            Err(BindError::Memory(MrFault::Access))
        );
        assert_eq!(get(reader, qp, kind, Access::REMOTE_READ), Ok(()));
        for changes in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(get(reader, qp, kind, changes), no);
            assert_eq!(get(reader, qp, kind, changes.with(Access::REMOTE_READ)), no);
            assert_eq!(get(writer, qp, kind, changes), Ok(()));
        }
        assert_eq!(get(writer, qp, kind, Access::BIND), no);
        assert_eq!(get(writer, qp, kind, Access::REMOTE_INVALIDATE), Ok(()));
    }
    assert_eq!(get(writer, None, fast, Access::REMOTE_INVALIDATE), no, "several QPs share it");
    assert_eq!(get(writer, qp, fast, Access::LOCAL_WRITE), Ok(()));
    assert_eq!(get(writer, qp, win, Access::LOCAL_WRITE), no);
    // Nothing derives from a derived STag.
    let s = t.allocate(PD, None, 100).unwrap();
    t.bind(US, fast, &bind(s, 0, Access::REMOTE_READ), [(writer, 0, 100)]).unwrap();
    assert_eq!(get(s, qp, win, Access::REMOTE_READ), Err(BindError::Memory(MrFault::Access)));
}

#[test]
fn test_window_serves_peers_only_and_fast_registration_both_sides() {
    let t = table(8);
    let mr = t.register(PD, 0, 0, 100, all()).unwrap().stag;
    let (f, w) = (t.allocate(PD, None, 100).unwrap(), t.allocate_window(PD, Some(QP)).unwrap());
    t.bind(US, Kind::Fast, &bind(f, 0, all_but_bind()), [(mr, 0, 100)]).unwrap();
    t.bind(US, Kind::QpWindow, &bind(w, 0, Access::REMOTE_READ), [(mr, 0, 100)]).unwrap();
    for local in [Access::NONE, Access::LOCAL_WRITE] {
        assert!(t.check(PD, QP, f, 0, 100, local).is_ok());
        assert_eq!(t.check(PD, QP, w, 0, 100, local), Err(MrFault::Access));
    }
    assert!(t.check(PD, QP, w, 0, 100, Access::REMOTE_READ).is_ok());
    assert_eq!(t.check(PD, QP, w, 0, 100, Access::REMOTE_WRITE), Err(MrFault::Access));
}

#[test]
fn test_other_domain_or_queue_pair_cannot_bind_invalidate_or_use() {
    let t = table(8);
    let other = Qpn(8);
    let mr = t.register(PD, 0, 0, 100, all()).unwrap().stag;
    let mine = t.register_for_qp(PD, QP, 0, 0, 100, all()).unwrap().stag;
    let theirs = t.register(Pd(8), 0, 0, 100, all()).unwrap().stag;
    let w = t.allocate_window(PD, Some(QP)).unwrap();
    let shared = t.allocate(PD, None, 100).unwrap();
    let read = |stag| bind(stag, 0, Access::REMOTE_READ);
    let memory = [(mr, 0, 100)];
    for us in [(Pd(8), QP), (PD, other)] {
        let own = if us.0 == PD { mr } else { theirs };
        let got = t.bind(us, Kind::QpWindow, &read(w), [(own, 0, 100)]);
        assert_eq!(got, Err(BindError::Stag));
    }
    let not_ours = Err(BindError::Memory(MrFault::NotAssociated));
    assert_eq!(t.bind(US, Kind::QpWindow, &read(w), [(theirs, 0, 100)]), not_ours);
    assert_eq!(t.bind((PD, other), Kind::Fast, &read(shared), [(mine, 0, 100)]), not_ours);
    // A request of the one QP that may use memory does not open it to all QPs of the PD.
    assert_eq!(t.bind(US, Kind::Fast, &read(shared), [(mine, 0, 100)]), not_ours);
    // A request for one kind does not accept the other, and neither accepts a region.
    assert_eq!(t.bind(US, Kind::Fast, &read(w), memory), Err(BindError::Stag));
    assert_eq!(t.bind(US, Kind::QpWindow, &read(shared), memory), Err(BindError::Stag));
    assert_eq!(t.bind(US, Kind::Fast, &read(mr), memory), Err(BindError::Stag));
    assert_eq!(t.bind(US, Kind::Region, &read(mr), memory), Err(BindError::Stag));
    t.bind(US, Kind::QpWindow, &read(w), memory).unwrap();
    let check = |pd, qpn| t.check(pd, qpn, w, 0, 1, Access::REMOTE_READ);
    assert!(check(PD, QP).is_ok());
    assert_eq!(check(PD, other), Err(MrFault::NotAssociated));
    assert_eq!(check(Pd(8), QP), Err(MrFault::NotAssociated));
    for us in [(Pd(8), QP), (PD, other)] {
        assert_eq!(t.invalidate_local(us, w), Err(BindError::Stag));
    }
    assert_eq!(t.invalidate_local(US, mr), Err(BindError::Stag), "a region is deregistered");
    assert!(check(PD, QP).is_ok());
    // The end of the QP: the owner revokes the window.
    t.revoke(w).unwrap();
    assert_eq!(check(PD, QP), Err(MrFault::InvalidStag));
    assert_eq!(t.revoke(mr), Err(MrError::Unknown));
}

#[test]
fn test_unowned_window_serves_only_peer_of_queue_pair_that_bound_it() {
    let t = table(8);
    let other = (PD, Qpn(8));
    let mr = t.register(PD, 0, 0, 100, all()).unwrap().stag;
    let w = t.allocate_window_for_any(PD).unwrap();
    let show = |us, key| {
        let rights = Access::REMOTE_READ.with(Access::REMOTE_INVALIDATE);
        t.bind(us, Kind::QpWindow, &bind(w.with_key(key), 0, rights), [(mr, 0, 100)])
    };
    let read = |us: (Pd, Qpn), key| {
        t.check(us.0, us.1, w.with_key(key), 0, 1, Access::REMOTE_READ).map(|_| ())
    };
    assert_eq!(show((Pd(8), QP), 1), Err(BindError::Memory(MrFault::NotAssociated)));
    show(US, 1).unwrap();
    assert_eq!((read(US, 1), read(other, 1)), (Ok(()), Err(MrFault::NotAssociated)));
    // While it is bound it belongs to that queue pair, for requests and for peers.
    assert_eq!(show(other, 2), Err(BindError::Stag));
    assert_eq!(t.invalidate_local(other, w.with_key(1)), Err(BindError::Stag));
    assert_eq!(t.invalidate(PD, other.1, w.with_key(1)), Err(MrFault::NotAssociated));
    t.invalidate(PD, QP, w.with_key(1)).unwrap();
    assert_eq!(t.bound(mr), 0);
    show(other, 2).unwrap();
    assert_eq!((read(US, 2), read(other, 2)), (Err(MrFault::NotAssociated), Ok(())));
    // The end of a queue pair takes its windows, and no other's.
    t.revoke_of(w, QP);
    assert_eq!(read(other, 2), Ok(()));
    t.revoke_of(w, other.1);
    assert_eq!((read(other, 2), t.bound(mr)), (Err(MrFault::InvalidStag), 0));
    // A window whose region has gone is free for each of them.
    show(US, 3).unwrap();
    t.deregister(mr).unwrap();
    let mr = t.register(PD, 0, 0, 100, all()).unwrap().stag;
    let rights = bind(w.with_key(4), 0, Access::REMOTE_READ);
    t.bind(other, Kind::QpWindow, &rights, [(mr, 0, 100)]).unwrap();
    assert_eq!(read(other, 4), Ok(()));
}

#[test]
fn test_region_retires_with_all_derived_stags_or_not_at_all() {
    let t = table(8);
    let register = || t.register(PD, 0, 0, 100, all()).unwrap().stag;
    let mr = register();
    let (w, f) = (t.allocate_window(PD, None).unwrap(), t.allocate(PD, None, 100).unwrap());
    let w = t.bind_window(PD, w, (mr, 0, 100), 0, Access::REMOTE_READ).unwrap().stag;
    t.bind(US, Kind::Fast, &bind(f, 0, Access::REMOTE_READ), [(mr, 0, 100)]).unwrap();
    let good = |s| t.check(PD, QP, s, 0, 1, Access::REMOTE_READ).is_ok();
    assert_eq!((t.bound(mr), t.retire_unbound(mr)), (2, Err(MrError::Bound(2))));
    assert!(good(mr) && good(w) && good(f));
    t.revoke(w).unwrap();
    assert_eq!(t.retire_unbound(mr), Err(MrError::Bound(1)));
    t.deregister(f).unwrap();
    t.retire_unbound(mr).unwrap();
    t.release(mr).unwrap();
    // The owner unregisters by force: from then on no derived STag is valid, even if another region
    // takes the slot.
    let t = table(2);
    for _ in 0..100 {
        let mr = t.register(PD, 0, 0, 100, all()).unwrap().stag;
        let w = t.allocate_window(PD, None).unwrap();
        let w = t.bind_window(PD, w, (mr, 0, 100), 0, Access::REMOTE_READ).unwrap().stag;
        assert!(t.check(PD, QP, w, 0, 1, Access::REMOTE_READ).is_ok());
        t.deregister(mr).unwrap();
        let next = t.register(PD, 0, 0, 100, all()).unwrap().stag;
        let got = t.check(PD, QP, w, 0, 1, Access::REMOTE_READ);
        assert_eq!(got, Err(MrFault::InvalidStag));
        let mut seen = Vec::new();
        t.for_each(|mr| seen.push(mr.stag));
        assert_eq!(seen, [next]);
        // A window left over from the old region does not count for the new one.
        t.revoke(w).unwrap();
        assert_eq!(t.bound(next), 0);
        t.retire_unbound(next).unwrap();
        t.release(next).unwrap();
        t.deregister(w).unwrap();
    }
}

#[test]
fn test_peer_invalidating_a_region_invalidates_its_windows() {
    let t = table(4);
    let rights = all().with(Access::REMOTE_INVALIDATE);
    let mr = t.register_for_qp(PD, QP, 0, 0, 100, rights).unwrap().stag;
    let w = t.allocate_window(PD, Some(QP)).unwrap();
    let read = bind(w, 0, Access::REMOTE_READ);
    t.bind(US, Kind::QpWindow, &read, [(mr, 0, 100)]).unwrap();
    t.invalidate(PD, QP, mr).unwrap();
    assert_eq!(t.check(PD, QP, w, 0, 1, Access::REMOTE_READ), Err(MrFault::InvalidStag));
    let gone = Err(BindError::Memory(MrFault::InvalidStag));
    assert_eq!(t.bind(US, Kind::QpWindow, &read, [(mr, 0, 100)]), gone);
    t.retire_unbound(mr).unwrap();
}

#[test]
fn test_rebound_window_exposes_new_memory_under_a_new_key() {
    let t = table(4);
    let (a, b) = (t.register(PD, 0, 0, 100, all()), t.register(PD, 500, 0, 100, all()));
    let (a, b) = (a.unwrap().stag, b.unwrap().stag);
    let w = t.allocate_window(PD, None).unwrap();
    let first = t.bind_window(PD, w, (a, 0, 100), 0, Access::REMOTE_READ).unwrap().stag;
    let second = t.bind_window(PD, first, (b, 10, 10), 77, Access::REMOTE_READ).unwrap();
    assert!(second.stag.same_index(first) && second.stag != first);
    assert_eq!((second.to, second.len), (77, 10));
    assert_eq!((t.bound(a), t.bound(b)), (0, 1));
    let check = |s| t.check(PD, QP, s, 77, 10, Access::REMOTE_READ);
    assert_eq!(check(first), Err(MrFault::InvalidStag));
    assert_eq!(check(second.stag).unwrap().addr(), 510);
    // A refused bind leaves the window as it is.
    let got = t.bind_window(PD, second.stag, (a, 0, 101), 0, Access::REMOTE_READ);
    assert_eq!(got, Err(BindError::Memory(MrFault::Bounds)));
    assert!(check(second.stag).is_ok());
    assert_eq!(t.bind_window(PD, first, (a, 0, 1), 0, Access::NONE), Err(BindError::Stag));
    assert_eq!(t.invalidate(PD, QP, second.stag), Err(MrFault::Access), "the peer's, of type 1");
}

#[test]
fn test_fast_registration_needs_a_length_within_its_limit() {
    let t = table(4);
    assert_eq!(t.allocate(PD, None, 0), Err(MrError::FastLen));
    assert_eq!(t.allocate(PD, None, MAX_FAST_LEN + 1), Err(MrError::FastLen));
    t.allocate(PD, None, MAX_FAST_LEN).unwrap();
}

/// Binds race attempts to unregister the region. A region that its owner retires only if nothing is
/// bound never invalidates a derived STag, and in the end the counts are right.
#[test]
fn test_concurrent_binds_and_unregistrations_keep_counts_right() {
    let t = table(4);
    let mr = std::sync::Mutex::new(t.register(PD, 0, 0, 100, all()).unwrap().stag);
    let f = t.allocate(PD, None, 100).unwrap();
    let read = bind(f, 0, Access::REMOTE_READ);
    // Each thread goes on until both have succeeded often enough, however the scheduler favours
    // them.
    const BOUND: u32 = 5_000;
    const GONE: u32 = 50;
    let gone = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let binder = scope.spawn(|| {
            let mut bound = 0;
            while bound < BOUND || gone.load(Ordering::Relaxed) < GONE {
                let now = *mr.lock().unwrap();
                if t.bind(US, Kind::Fast, &read, [(now, 0, 100)]).is_ok() {
                    let good = t.check(PD, QP, f, 0, 1, Access::REMOTE_READ);
                    assert!(good.is_ok(), "its region went although it was bound");
                    t.invalidate_local(US, f).unwrap();
                    bound += 1;
                }
            }
        });
        while !binder.is_finished() {
            let now = *mr.lock().unwrap();
            if t.retire_unbound(now).is_ok() {
                t.release(now).unwrap();
                *mr.lock().unwrap() = t.register(PD, 0, 0, 100, all()).unwrap().stag;
                gone.fetch_add(1, Ordering::Relaxed);
            }
        }
        binder.join().unwrap();
    });
    assert_eq!(t.bound(*mr.lock().unwrap()), 0);
}
