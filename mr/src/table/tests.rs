//! Tests of the STag table.

use super::*;
use crate::Pins;

#[test]
fn test_retired_region_is_invalid_but_keeps_its_slot() {
    let table = MrTable::new(&Seed::from_u64(1), 2);
    let access = Access::REMOTE_READ;
    let register = || table.register(Pd(1), 0, 0, 100, access);
    let (a, b) = (register().unwrap(), register().unwrap());
    let check = |mr: MrAttr| table.check(Pd(1), Qpn(1), mr.stag, 0, 1, access);
    let slot = check(a).unwrap().mr();
    assert_ne!(slot, check(b).unwrap().mr());
    assert_eq!(table.retire(a.stag), Ok(slot));
    assert_eq!(check(a), Err(MrFault::InvalidStag));
    assert_eq!(register(), Err(MrError::Full));
    // A second call returns the same.
    assert_eq!(table.retire(a.stag), Ok(slot));
    table.release(a.stag).unwrap();
    assert_eq!(table.release(a.stag), Err(MrError::Unknown));
    assert_eq!(table.retire(a.stag), Err(MrError::Unknown));
    let c = register().unwrap();
    assert_eq!(check(c).unwrap().mr(), slot);
    // The owner retires a region that the peer has invalidated like any other.
    table.deregister(b.stag).unwrap();
    let rights = access.with(Access::REMOTE_INVALIDATE);
    let d = table.register_for_qp(Pd(1), Qpn(1), 0, 0, 100, rights).unwrap();
    let slot = table.check(Pd(1), Qpn(1), d.stag, 0, 1, access).unwrap().mr();
    table.invalidate(Pd(1), Qpn(1), d.stag).unwrap();
    assert_eq!(table.retire(d.stag), Ok(slot));
    assert_eq!(register(), Err(MrError::Full));
    table.release(d.stag).unwrap();
    register().unwrap();
}

#[test]
fn test_slice_of_a_range_belongs_to_the_same_region() {
    let r = MemRange::new(10, 5, 7);
    assert_eq!(r.slice(2, 3), Some(MemRange::new(12, 3, 7)));
    let pins = Pins::new(8);
    pins.pin(r);
    pins.pin(r);
    pins.unpin(r);
    assert_eq!((0..9).map(|mr| pins.count(mr)).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 0, 1, 0]);
}

use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(super) const PD: Pd = Pd(7);
pub(super) const QP: Qpn = Qpn(9);

pub(super) fn table(slots: usize) -> MrTable {
    MrTable::new(&Seed::from_u64(1), slots)
}

fn all() -> Access {
    Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ)
}

#[test]
fn test_region_check_maps_offset_to_address() {
    let t = table(4);
    let mr = t.register(PD, 1000, 50, 100, all()).unwrap();
    let r = t.check(PD, QP, mr.stag, 60, 20, Access::REMOTE_READ).unwrap();
    assert_eq!((r.addr(), r.len()), (1010, 20));
    assert_eq!(mr, MrAttr { stag: mr.stag, pd: PD, qpn: None, to: 50, len: 100, access: all() });
}

#[test]
fn test_region_check_accepts_bounds_and_refuses_just_past_them() {
    let t = table(4);
    let s = t.register(PD, 1000, 50, 100, all()).unwrap().stag;
    let check = |to, len| t.check(PD, QP, s, to, len, Access::NONE);
    assert!(check(50, 100).is_ok());
    assert!(check(149, 1).is_ok());
    assert_eq!(check(49, 1), Err(MrFault::Bounds));
    assert_eq!(check(150, 1), Err(MrFault::Bounds));
    assert_eq!(check(50, 101), Err(MrFault::Bounds));
    assert_eq!(check(149, 2), Err(MrFault::Bounds));
    assert_eq!(check(u64::MAX - 3, 3), Err(MrFault::Bounds));
    assert_eq!(check(u64::MAX - 3, 4), Err(MrFault::ToWrap));
}

#[test]
fn test_region_check_refuses_range_that_wraps_past_last_offset() {
    let t = table(4);
    let s = t.register(PD, 0, u64::MAX - 10, 10, all()).unwrap().stag;
    assert!(t.check(PD, QP, s, u64::MAX - 10, 10, Access::NONE).is_ok());
    assert_eq!(t.check(PD, QP, s, u64::MAX - 10, 11, Access::NONE), Err(MrFault::ToWrap));
    assert_eq!(t.register(PD, 0, u64::MAX - 10, 11, all()), Err(MrError::Wrap));
    assert_eq!(t.register(PD, u64::MAX, 0, 1, all()), Err(MrError::Wrap));
}

#[test]
fn test_region_check_refuses_other_domain_or_queue_pair() {
    let t = table(4);
    let shared = t.register(PD, 0, 0, 8, all()).unwrap().stag;
    let bound = t.register_for_qp(PD, QP, 0, 0, 8, all()).unwrap().stag;
    let check = |pd, qpn, s| t.check(pd, qpn, s, 0, 8, Access::NONE);
    assert!(check(PD, QP, shared).is_ok());
    assert!(check(PD, Qpn(8), shared).is_ok());
    assert_eq!(check(Pd(8), QP, shared), Err(MrFault::NotAssociated));
    assert!(check(PD, QP, bound).is_ok());
    assert_eq!(check(PD, Qpn(8), bound), Err(MrFault::NotAssociated));
    assert_eq!(check(Pd(8), QP, bound), Err(MrFault::NotAssociated));
}

#[test]
fn test_region_check_refuses_access_without_the_right() {
    let t = table(8);
    let rights = [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_READ];
    for have in rights {
        let s = t.register(PD, 0, 0, 8, have).unwrap().stag;
        for need in rights {
            let got = t.check(PD, QP, s, 0, 8, need);
            assert_eq!(got.is_ok(), have == need);
            assert!(have == need || got == Err(MrFault::Access));
        }
        assert!(t.check(PD, QP, s, 0, 8, Access::NONE).is_ok());
    }
}

#[test]
fn test_deregistered_stag_is_invalid() {
    let t = table(2);
    let s = t.register(PD, 0, 0, 8, all()).unwrap().stag;
    t.deregister(s).unwrap();
    assert_eq!(t.check(PD, QP, s, 0, 1, Access::NONE), Err(MrFault::InvalidStag));
    assert_eq!(t.deregister(s), Err(MrError::Unknown));
    assert!(t.is_empty());
}

#[test]
fn test_full_table_refuses_region_until_one_is_unregistered() {
    let t = table(3);
    assert_eq!(t.capacity(), 4);
    let stags: Vec<_> = (0..4).map(|_| t.register(PD, 0, 0, 8, all()).unwrap().stag).collect();
    assert_eq!(t.register(PD, 0, 0, 8, all()), Err(MrError::Full));
    t.deregister(stags[2]).unwrap();
    assert!(t.register(PD, 0, 0, 8, all()).is_ok());
    assert_eq!(t.len(), 4);
}

#[test]
fn test_reused_slot_never_has_the_same_stag_twice_in_a_row() {
    let t = table(1);
    let mut last = Stag(0);
    for _ in 0..1000 {
        let s = t.register(PD, 0, 0, 8, all()).unwrap().stag;
        assert_ne!(s, last);
        assert_eq!(t.check(PD, QP, last, 0, 1, Access::NONE), Err(MrFault::InvalidStag));
        t.deregister(s).unwrap();
        last = s;
    }
}

#[test]
fn test_stags_are_spread_and_differ_by_seed() {
    let t = table(256);
    let other = MrTable::new(&Seed::from_u64(2), 256);
    let take = |t: &MrTable| -> Vec<u32> {
        (0..256).map(|_| t.register(PD, 0, 0, 8, all()).unwrap().stag.0).collect()
    };
    let (a, b) = (take(&t), take(&other));
    assert_eq!(a.iter().collect::<HashSet<_>>().len(), 256);
    assert_ne!(a, b);
    // The STags are spread over all 32 bits: every bit is set in about half of them; none is
    // constant.
    for bit in 0..32 {
        let ones = a.iter().filter(|s| *s >> bit & 1 == 1).count();
        assert!((64..192).contains(&ones), "bit {bit}: {ones}");
    }
    // STags that follow each other in time are not adjacent in number.
    assert!(a.windows(2).all(|w| w[0].abs_diff(w[1]) > 1));
    assert!(!a.contains(&0));
}

#[test]
fn test_unknown_stag_is_refused_by_check_and_unregistration() {
    let t = table(16);
    let s = t.register(PD, 0, 0, 8, all()).unwrap().stag;
    for wrong in (0..32).map(|bit| Stag(s.0 ^ 1 << bit)).chain([Stag(0)]) {
        assert_eq!(t.check(PD, QP, wrong, 0, 1, Access::NONE), Err(MrFault::InvalidStag));
        assert_eq!(t.deregister(wrong), Err(MrError::Unknown));
    }
}

#[test]
fn test_remote_invalidate_needs_the_right_and_a_single_qp() {
    let t = table(8);
    let inv = Access::REMOTE_INVALIDATE;
    assert_eq!(t.register(PD, 0, 0, 8, inv), Err(MrError::SharedInvalidate));
    let shared = t.register(PD, 0, 0, 8, all()).unwrap().stag;
    assert_eq!(t.invalidate(PD, QP, shared), Err(MrFault::Access));
    let s = t.register_for_qp(PD, QP, 0, 0, 8, all().with(inv)).unwrap().stag;
    assert_eq!(t.invalidate(PD, Qpn(1), s), Err(MrFault::NotAssociated));
    assert_eq!(t.invalidate(Pd(1), QP, s), Err(MrFault::NotAssociated));
    assert!(t.check(PD, QP, s, 0, 8, Access::NONE).is_ok());
    t.check_invalidate(PD, QP, s).unwrap();
    t.invalidate(PD, QP, s).unwrap();
    assert_eq!(t.check(PD, QP, s, 0, 8, Access::NONE), Err(MrFault::InvalidStag));
    assert_eq!(t.invalidate(PD, QP, s), Err(MrFault::InvalidStag));
    assert_eq!(t.check_invalidate(PD, QP, s), Err(MrFault::InvalidStag));
    // The slot stays taken until the owner unregisters the STag.
    assert_eq!(t.len(), 2);
    t.deregister(s).unwrap();
    assert_eq!(t.len(), 1);
}

#[test]
fn test_for_each_lists_valid_regions() {
    let t = table(8);
    let a = t.register(PD, 0, 5, 8, all()).unwrap();
    let b = t.register(Pd(3), 0, 0, 9, Access::NONE).unwrap();
    t.deregister(b.stag).unwrap();
    let mut seen = Vec::new();
    t.for_each(|mr| seen.push(mr));
    assert_eq!(seen, [a]);
}

/// Readers race a writer that registers and unregisters regions. The regions differ only in QP
/// number, address and length, which all derive from one number, so a reader that saw a mix would
/// notice.
#[test]
fn test_concurrent_readers_never_see_a_mix_of_two_registrations() {
    let t = table(1);
    let stop = AtomicBool::new(false);
    let published = AtomicU64::new(0);
    let hits = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Upper half: the number of the registration; lower: its STag.
                    let v = published.load(Ordering::Acquire);
                    let (n, stag) = (v >> 32, Stag(u32::try_from(v & 0xffff_ffff).unwrap()));
                    let qpn = Qpn(u32::try_from(n).unwrap());
                    for _ in 0..50 {
                        if let Ok(r) = t.check(PD, qpn, stag, 0, 1000, Access::LOCAL_WRITE) {
                            assert_eq!(r.addr(), n << 24);
                            hits.fetch_add(1, Ordering::Relaxed);
                        }
                        t.for_each(|mr| {
                            assert_eq!(mr.qpn.map(|q| u64::from(q.0) + 1000), Some(mr.len));
                        });
                    }
                }
            });
        }
        let mut n = 0u64;
        while n < 4_000_000 || (hits.load(Ordering::Relaxed) < 1000 && n < 20_000_000) {
            n += 1;
            let qpn = Qpn(u32::try_from(n).unwrap());
            let access = Access::LOCAL_WRITE;
            let mr = t.register_for_qp(PD, qpn, n << 24, 0, n + 1000, access).unwrap();
            published.store(n << 32 | u64::from(mr.stag.0), Ordering::Release);
            // A check finds the new region at once.
            assert!(t.check(PD, qpn, mr.stag, 0, 1000, access).is_ok());
            t.deregister(mr.stag).unwrap();
            assert!(t.check(PD, qpn, mr.stag, 0, 1000, access).is_err());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(hits.load(Ordering::Relaxed) > 0);
}

#[test]
fn test_concurrent_invalidate_and_unregister_remove_region_once() {
    let t = table(1);
    for _ in 0..2000 {
        let access = Access::REMOTE_INVALIDATE;
        let s = t.register_for_qp(PD, QP, 0, 0, 8, access).unwrap().stag;
        std::thread::scope(|scope| {
            let a = scope.spawn(|| t.invalidate(PD, QP, s));
            let b = scope.spawn(|| t.invalidate(PD, QP, s));
            t.deregister(s).unwrap();
            let wins = [a.join().unwrap(), b.join().unwrap()];
            assert!(wins.iter().filter(|w| w.is_ok()).count() <= 1);
        });
        assert!(t.is_empty());
        assert_eq!(t.check(PD, QP, s, 0, 8, Access::NONE), Err(MrFault::InvalidStag));
    }
}

proptest! {
    /// For any question, the granted range lies inside the region, byte for byte.
    #[test]
    fn test_check_grants_only_what_was_registered(
        addr in 0u64..1 << 40, base in any::<u64>(), len in 0u64..1 << 33,
        to in any::<u64>(), ask in any::<u32>(), near in any::<bool>(), delta in -5i64..5,
    ) {
        let t = table(4);
        let Ok(mr) = t.register(PD, addr, base, len, all()) else {
            prop_assert!(base.checked_add(len).is_none());
            return Ok(());
        };
        let to = if near { base.wrapping_add_signed(delta) } else { to };
        let inside = to.checked_add(u64::from(ask)).is_some_and(|end| to >= base && end <= base + len);
        match t.check(PD, QP, mr.stag, to, ask, Access::REMOTE_WRITE) {
            Ok(r) => {
                prop_assert!(inside);
                prop_assert_eq!((r.addr(), r.len()), (addr + (to - base), ask));
            }
            Err(_) => prop_assert!(!inside),
        }
    }
}
