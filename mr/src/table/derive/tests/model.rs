//! Regions, windows and fast registrations against a model that keeps everything in a list.

use super::*;
use proptest::prelude::*;

/// An STag of the model: plain data, which the model searches from the beginning.
#[derive(Clone, Debug)]
struct Entry {
    stag: Stag,
    kind: Kind,
    any_qp: bool,
    pd: Pd,
    qpn: Option<Qpn>,
    valid: bool,
    addr: u64,
    to: u64,
    len: u64,
    access: Access,
    /// Index of the entry that owns the memory.
    parent: usize,
    gone: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Register { pd: u32, qpn: Option<u32>, access: u8 },
    Allocate { pd: u32, qpn: Option<u32>, window: bool },
    AllocateForAny { pd: u32 },
    Bind { who: usize, of: usize, pd: u32, qpn: u32, access: u8, key: u8, off: u64, len: u32 },
    BindWindow { who: usize, of: usize, pd: u32, access: u8, len: u32 },
    Local { who: usize, pd: u32, qpn: u32 },
    Remote { who: usize, pd: u32, qpn: u32 },
    Revoke { who: usize },
    RevokeOf { who: usize, qpn: u32 },
    Deregister { who: usize, forced: bool },
    Check { who: usize, pd: u32, qpn: u32, key: Option<u8>, to: u64, len: u32, access: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let (pd, qpn, who) = (1u32..3, 1u32..3, 0usize..12);
    let maybe = proptest::option::of(1u32..3);
    prop_oneof![
        2 => (pd.clone(), maybe.clone(), any::<u8>())
            .prop_map(|(pd, qpn, access)| Step::Register { pd, qpn, access: access | 32 }),
        2 => (pd.clone(), maybe, any::<bool>())
            .prop_map(|(pd, qpn, window)| Step::Allocate { pd, qpn, window }),
        2 => pd.clone().prop_map(|pd| Step::AllocateForAny { pd }),
        6 => (who.clone(), who.clone(), pd.clone(), qpn.clone(), 0u8..32, 0u8..3, 0u64..80, 0u32..60)
            .prop_map(|(who, of, pd, qpn, access, key, off, len)| Step::Bind {
                who, of, pd, qpn, access, key, off, len
            }),
        3 => (who.clone(), who.clone(), pd.clone(), 0u8..32, 0u32..120)
            .prop_map(|(who, of, pd, access, len)| Step::BindWindow { who, of, pd, access, len }),
        2 => (who.clone(), pd.clone(), qpn.clone()).prop_map(|(who, pd, qpn)| Step::Local { who, pd, qpn }),
        2 => (who.clone(), pd.clone(), qpn.clone()).prop_map(|(who, pd, qpn)| Step::Remote { who, pd, qpn }),
        1 => who.clone().prop_map(|who| Step::Revoke { who }),
        1 => (who.clone(), qpn.clone()).prop_map(|(who, qpn)| Step::RevokeOf { who, qpn }),
        2 => (who.clone(), any::<bool>()).prop_map(|(who, forced)| Step::Deregister { who, forced }),
        9 => (who, pd, qpn, proptest::option::weighted(0.2, any::<u8>()), 0u64..160, 0u32..60,
              prop_oneof![Just(0u8), Just(1), Just(2), Just(4), Just(16), Just(6)])
            .prop_map(|(who, pd, qpn, key, to, len, access)| Step::Check {
                who, pd, qpn, key, to, len, access
            }),
    ]
}

#[derive(Default)]
struct Model(Vec<Entry>);

impl Model {
    fn good(&self, e: &Entry) -> bool {
        !e.gone
            && e.valid
            && (e.kind == Kind::Region || self.0[e.parent].valid && !self.0[e.parent].gone)
    }

    fn owns(&self, e: &Entry, (pd, qpn): (Pd, Qpn)) -> bool {
        e.pd == pd && (e.any_qp && !self.good(e) || e.qpn.is_none_or(|q| q == qpn))
    }

    fn bound(&self, i: usize) -> usize {
        self.0.iter().filter(|e| e.kind != Kind::Region && e.parent == i && self.good(e)).count()
    }

    /// Returns true if `who` may be bound to `len` bytes at `off` of `of`.
    fn may_bind(
        &self,
        who: &Entry,
        of: &Entry,
        off: u64,
        len: u64,
        access: Access,
        qpn: Option<Qpn>,
    ) -> bool {
        let changes = access.bits() & (1 | 2 | 16) != 0;
        let rights = [
            !changes || of.access.has(Access::LOCAL_WRITE),
            !who.kind.is_window() || !access.has(Access::LOCAL_WRITE),
            !access.has(Access::REMOTE_INVALIDATE) || who.qpn.is_some(),
        ];
        let memory = of.kind == Kind::Region
            && self.good(of)
            && of.pd == who.pd
            && of.access.has(Access::BIND)
            && (of.qpn.is_none() || (of.qpn == qpn && of.qpn == who.qpn));
        !rights.contains(&false) && memory && len > 0 && off + len <= of.len
    }
}

proptest! {
    #[test]
    fn test_region_table_matches_model_for_any_steps(
        steps in proptest::collection::vec(step(), 1..120),
        seed in any::<u64>(),
    ) {
        let t = MrTable::new(&Seed::from_u64(seed), 8);
        let mut m = Model::default();
        let mut regions = 0u64;
        for step in steps {
            let pick = |m: &Model, who: usize| (!m.0.is_empty()).then(|| who % m.0.len());
            let live = m.0.iter().filter(|e| !e.gone).count();
            match step {
                Step::Register { pd, qpn, access } => {
                    let mut access = Access::from_bits(access);
                    if qpn.is_none() {
                        access = Access::from_bits(access.bits() & !8);
                    }
                    let (pd, qpn, addr) = (Pd(pd), qpn.map(Qpn), regions * 1000);
                    let got = match qpn {
                        None => t.register(pd, addr, 30, 100, access),
                        Some(q) => t.register_for_qp(pd, q, addr, 30, 100, access),
                    };
                    prop_assert_eq!(got.is_ok(), live < 8);
                    if let Ok(mr) = got {
                        regions += 1;
                        m.0.push(Entry { stag: mr.stag, kind: Kind::Region, any_qp: false, pd, qpn, valid: true, addr,
                            to: 30, len: 100, access, parent: 0, gone: false });
                    }
                }
                Step::Allocate { pd, qpn, window } => {
                    let (pd, qpn) = (Pd(pd), qpn.map(Qpn));
                    let got = if window { t.allocate_window(pd, qpn) } else { t.allocate(pd, qpn, 4096) };
                    prop_assert_eq!(got.is_ok(), live < 8);
                    let kind = match (window, qpn) {
                        (false, _) => Kind::Fast,
                        (true, None) => Kind::Window,
                        (true, Some(_)) => Kind::QpWindow,
                    };
                    if let Ok(stag) = got {
                        m.0.push(Entry { stag, kind, any_qp: false, pd, qpn, valid: false, addr: 0, to: 0,
                            len: 0, access: Access::NONE, parent: 0, gone: false });
                    }
                }
                Step::AllocateForAny { pd } => {
                    let got = t.allocate_window_for_any(Pd(pd));
                    prop_assert_eq!(got.is_ok(), live < 8);
                    if let Ok(stag) = got {
                        m.0.push(Entry { stag, kind: Kind::QpWindow, any_qp: true, pd: Pd(pd), qpn: None,
                            valid: false, addr: 0, to: 0, len: 0, access: Access::NONE, parent: 0,
                            gone: false });
                    }
                }
                Step::Bind { who, of, pd, qpn, access, key, off, len } => {
                    let (Some(w), Some(o)) = (pick(&m, who), pick(&m, of)) else { continue };
                    let (pd, qpn, access) = (Pd(pd), Qpn(qpn), Access::from_bits(access));
                    let (mut e, from) = (m.0[w].clone(), m.0[o].clone());
                    let owned = m.owns(&e, (pd, qpn));
                    if e.any_qp {
                        e.qpn = Some(qpn);
                    }
                    let kind = if e.kind == Kind::QpWindow { Kind::QpWindow } else { Kind::Fast };
                    let stag = e.stag.with_key(key);
                    let got = t.bind((pd, qpn), kind, &bind(stag, 7, access), [(from.stag, from.to + off, len)]);
                    let want = !e.gone && e.kind == kind && owned && !m.good(&e)
                        && m.may_bind(&e, &from, off, len.into(), access, Some(qpn));
                    prop_assert_eq!(got.is_ok(), want, "{:?}: {:?} to {:?}", got, e, from);
                    if want {
                        let (addr, len) = (from.addr + off, len.into());
                        m.0[w] = Entry { stag, valid: true, addr, to: 7, len, access, parent: o, ..e };
                    }
                }
                Step::BindWindow { who, of, pd, access, len } => {
                    let (Some(w), Some(o)) = (pick(&m, who), pick(&m, of)) else { continue };
                    let (pd, access) = (Pd(pd), Access::from_bits(access));
                    let (e, from) = (m.0[w].clone(), m.0[o].clone());
                    let got = t.bind_window(pd, e.stag, (from.stag, from.to, len), 9, access);
                    let want = !e.gone && e.kind == Kind::Window && e.pd == pd
                        && m.may_bind(&e, &from, 0, len.into(), access, None);
                    prop_assert_eq!(got.is_ok(), want, "{:?}: {:?} to {:?}", got, e, from);
                    if let Ok(mr) = got {
                        let (addr, len) = (from.addr, len.into());
                        m.0[w] = Entry { stag: mr.stag, valid: true, addr, to: 9, len, access, parent: o, ..e };
                    }
                }
                Step::Local { who, pd, qpn } => {
                    let Some(w) = pick(&m, who) else { continue };
                    let (e, us) = (m.0[w].clone(), (Pd(pd), Qpn(qpn)));
                    let want = !e.gone && matches!(e.kind, Kind::Fast | Kind::QpWindow)
                        && m.owns(&e, us);
                    prop_assert_eq!(t.invalidate_local(us, e.stag).is_ok(), want);
                    m.0[w].valid &= !want;
                }
                Step::Remote { who, pd, qpn } => {
                    let Some(w) = pick(&m, who) else { continue };
                    let (e, us) = (m.0[w].clone(), (Pd(pd), Qpn(qpn)));
                    let want = m.good(&e) && e.pd == us.0 && e.qpn == Some(us.1)
                        && e.access.has(Access::REMOTE_INVALIDATE);
                    prop_assert_eq!(t.check_invalidate(us.0, us.1, e.stag).is_ok(), want);
                    prop_assert_eq!(t.invalidate(us.0, us.1, e.stag).is_ok(), want);
                    m.0[w].valid &= !want;
                }
                Step::Revoke { who } => {
                    let Some(w) = pick(&m, who) else { continue };
                    let e = m.0[w].clone();
                    let want = !e.gone && e.kind != Kind::Region;
                    prop_assert_eq!(t.revoke(e.stag).is_ok(), want);
                    m.0[w].valid &= !want;
                }
                Step::RevokeOf { who, qpn } => {
                    let Some(w) = pick(&m, who) else { continue };
                    let e = m.0[w].clone();
                    t.revoke_of(e.stag, Qpn(qpn));
                    m.0[w].valid &= e.gone || !e.any_qp || e.qpn != Some(Qpn(qpn));
                }
                Step::Deregister { who, forced } => {
                    let Some(w) = pick(&m, who) else { continue };
                    let e = m.0[w].clone();
                    let bound = if e.kind == Kind::Region && e.valid { m.bound(w) } else { 0 };
                    let got = if forced { t.retire(e.stag) } else { t.retire_unbound(e.stag) };
                    let want = !e.gone && (forced || bound == 0);
                    prop_assert_eq!(got.is_ok(), want, "{:?} with {} bound", got, bound);
                    if want {
                        t.release(e.stag).unwrap();
                        m.0[w].gone = true;
                    }
                }
                Step::Check { who, pd, qpn, key, to, len, access } => {
                    let Some(w) = pick(&m, who) else { continue };
                    let (e, need) = (&m.0[w], Access::from_bits(access));
                    let stag = key.map_or(e.stag, |k| e.stag.with_key(k));
                    let end = to + u64::from(len);
                    let want = if !m.good(e) || stag != e.stag {
                        Err(MrFault::InvalidStag)
                    } else if e.pd != Pd(pd) || e.qpn.is_some_and(|q| q != Qpn(qpn)) {
                        Err(MrFault::NotAssociated)
                    } else if !e.access.has(need) || (e.kind.is_window() && access & 22 == 0) {
                        Err(MrFault::Access)
                    } else if to < e.to || end > e.to + e.len {
                        Err(MrFault::Bounds)
                    } else {
                        let of = if e.kind == Kind::Region { e } else { &m.0[e.parent] };
                        Ok((e.addr + to - e.to, len, t.index(of.stag)))
                    };
                    let got = t.check(Pd(pd), Qpn(qpn), stag, to, len, need);
                    prop_assert_eq!(got.map(|r| (r.addr(), r.len(), r.mr())), want, "{:?}", e);
                }
            }
            prop_assert_eq!(t.len(), m.0.iter().filter(|e| !e.gone).count());
        }
        let mut seen = Vec::new();
        t.for_each(|mr| seen.push(mr.stag));
        seen.sort_unstable();
        let mut want: Vec<_> = m.0.iter().filter(|e| m.good(e)).map(|e| e.stag).collect();
        want.sort_unstable();
        prop_assert_eq!(seen, want);
    }
}
