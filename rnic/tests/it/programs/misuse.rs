//! Uses of windows and fast registrations that these do not allow, and invalidations while peers
//! use them. Each misuse may cause exactly one Terminate, or one status.

use heddle_base::Random;
use heddle_types::{Access, AtomicOp, CqeOp, MrFault, SendOp, Sge, Stag};

use crate::programs::derived::{Derived, Phase, View};
use crate::programs::draft::{Draft, NOWHERE, Planned};
use crate::programs::program::{Kind, pick};
use crate::programs::stream::{
    Bad, CANNOT_INVALIDATE, Code, DDP_ASSOCIATION, DDP_BOUNDS, DDP_STAG, LOCAL, RDMAP_ACCESS,
    RDMAP_ASSOCIATION, RDMAP_BOUNDS, RDMAP_STAG,
};
use crate::programs::world::World;
use crate::sim::{TO_BASE, pattern};

/// A peer's use of memory, or of an STag.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Write,
    Read,
    Atomic,
    Invalidate,
}

impl Use {
    fn right(self) -> Access {
        match self {
            Use::Write => Access::REMOTE_WRITE,
            Use::Read => Access::REMOTE_READ,
            Use::Atomic => Access::REMOTE_ATOMIC,
            Use::Invalidate => Access::REMOTE_INVALIDATE,
        }
    }

    /// Returns the code by which the peer learns of the fault: for a Write a code of DDP, which
    /// knows no rights; for an invalidation the same code for every fault.
    fn code(self, fault: MrFault) -> Code {
        match (self, fault) {
            (Use::Invalidate, _) => CANNOT_INVALIDATE,
            (Use::Write, MrFault::NotAssociated) => DDP_ASSOCIATION,
            (Use::Write, MrFault::Bounds) => DDP_BOUNDS,
            (Use::Write, _) => DDP_STAG,
            (_, MrFault::NotAssociated) => RDMAP_ASSOCIATION,
            (_, MrFault::Bounds) => RDMAP_BOUNDS,
            (_, MrFault::Access) => RDMAP_ACCESS,
            _ => RDMAP_STAG,
        }
    }
}

impl World {
    /// Makes a peer use memory that is not there for it. Returns the request, and the code that the
    /// peer gets.
    pub fn misuse(&mut self, r: &mut Random, s: usize, me: usize) -> Option<(Draft, Code)> {
        let peer = 1 - me;
        let all = [Use::Write, Use::Invalidate, Use::Read, Use::Atomic];
        let may = if self.streams[s].plan.ord[me] == 0 { 2 } else { 4 };
        let how = pick(r, &all[..may]);
        let (fault, name, stag, to, len) = match r.below(8) {
            0 => {
                let d = self.of(r, peer, |d| !d.alone || d.stream == Some(s))?;
                let dead = |key: &u8| {
                    let other = d.stag.with_key(*key);
                    other != d.stag && Some(other) != d.stale
                };
                let key = (0..=255).map(|k: u8| k ^ d.stag.key()).rev().find(dead)?;
                (MrFault::InvalidStag, "another key", d.stag.with_key(key), d.view.to, 8)
            }
            1 => {
                let d = self.of(r, peer, |d| d.is_for(s) && d.stale.is_some())?;
                (MrFault::InvalidStag, "a stale key", d.stale?, d.view.to, 8)
            }
            2 => {
                let d = self.of(r, peer, |d| {
                    let ours = !d.alone || d.stream == Some(s);
                    ours && matches!(d.phase, Phase::Free | Phase::Gone)
                })?;
                (MrFault::InvalidStag, "not bound", d.stag, d.view.to, 8)
            }
            3 => {
                let lacks = |d: &Derived| d.is_for(s) && !d.view.access.has(how.right());
                let d = self.of(r, peer, lacks)?;
                (MrFault::Access, "without the right", d.stag, d.view.to, d.view.len.min(8))
            }
            side @ (4 | 5) if how != Use::Invalidate => {
                let has = |d: &Derived| d.is_for(s) && d.view.access.has(how.right());
                let Derived { stag, view, .. } = self.of(r, peer, has)?;
                let inside = 1 + r.below(view.len.min(20) as u64);
                let (to, len) = if side == 4 && view.to > 0 {
                    (view.to - 1, inside + 1)
                } else if how == Use::Atomic {
                    // An atomic operation takes eight bytes.
                    (view.to + view.len as u64 - 4, 8)
                } else {
                    (view.to + view.len as u64 - inside, inside + 1 + r.below(8))
                };
                (MrFault::Bounds, "beside it", stag, to, len as usize)
            }
            6 => {
                let alien = pick(r, &self.regions[peer].alien);
                (MrFault::NotAssociated, "of another domain", alien, TO_BASE, 8)
            }
            _ => {
                let other = |d: &Derived| d.alone && d.stream != Some(s) && d.phase == Phase::Bound;
                let d = self.of(r, peer, other)?;
                (MrFault::NotAssociated, "of another queue pair", d.stag, d.view.to, 8)
            }
        };
        self.outcome.count(name, 1);
        let draft = self.use_so(r, (s, me), how, (stag, to, len))?;
        Some((Draft { names: Some(stag), ..draft.bad(Bad::Remote) }, how.code(fault)))
    }

    fn use_so(
        &mut self,
        r: &mut Random,
        (s, me): (usize, usize),
        how: Use,
        (stag, to, len): (Stag, u64, usize),
    ) -> Option<Draft> {
        match how {
            Use::Write => {
                let data = pattern(r.next_u64(), len);
                let draft = Draft::new(CqeOp::Write, SendOp::Write { stag, to });
                self.with_data(r, (s, me), Draft { len, ..draft }, &data)
            }
            Use::Invalidate => self.send(r, s, me, Some(stag)),
            Use::Read | Use::Atomic => {
                let (what, op, len) = if how == Use::Read {
                    (CqeOp::Read, SendOp::Read { stag, to }, len)
                } else {
                    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
                    (CqeOp::FetchAdd, SendOp::Atomic { stag, to, op }, 8)
                };
                let sink = self.allocate(me, len)?;
                let sges = vec![self.sge(s, me, sink, len)];
                Some(Draft { sges, len, held: Some((sink, len)), ..Draft::new(what, op) })
            }
        }
    }

    pub fn of(
        &self,
        r: &mut Random,
        host: usize,
        like: impl Fn(&Derived) -> bool,
    ) -> Option<Derived> {
        self.some_derived(r, host, like).map(|i| self.derived[host][i])
    }

    /// Returns a local operation with a window, which only peers may use, or into memory that it
    /// may only read.
    pub fn misuse_here(&mut self, r: &mut Random, s: usize, me: usize) -> Option<Draft> {
        if self.streams[s].plan.ord[me] > 0 && r.chance(0.5) {
            self.outcome.count("sink without the right", 1);
            self.use_once(r, s, me, Kind::Read, true);
            return None;
        }
        let own = |d: &Derived| d.is_for(s) && d.is_window();
        let d = self.of(r, me, own)?;
        self.outcome.count("window as a source", 1);
        let len = 1 + r.below(d.view.len as u64) as u32;
        let op = SendOp::Write { stag: self.regions[1 - me].shared.stag, to: TO_BASE };
        let sges = vec![Sge { stag: d.stag, to: d.view.to, len }];
        let draft = Draft::new(CqeOp::Write, op).bad(Bad::Local);
        Some(Draft { sges, len: len as usize, ..draft })
    }

    /// Invalidates a window or fast registration by a request while others use it.
    pub fn invalidate_in_use(&mut self, r: &mut Random, s: usize, me: usize) {
        let sick = |u: &usize| self.streams[*u].plan.sick;
        let own = |d: &Derived| {
            d.stream == Some(s) && d.is_for(s) && self.users(me, d.stag).iter().all(sick)
        };
        let Some(i) = self.some_derived(r, me, own) else { return };
        let d = self.derived[me][i];
        // Either request may be the first, or arrive in the middle of the other.
        if !self.is_in_use(me, d.stag)
            && let Some(draft) = self.use_rightly(r, s, 1 - me, &d)
        {
            self.post(r, s, 1 - me, draft);
            for _ in 0..r.below(12) {
                self.step();
            }
        }
        if self.derived[me][i].phase == Phase::Bound && self.is_in_use(me, d.stag) {
            self.outcome.count("invalidated in use", 1);
            self.excuse_users(me, d.stag);
            self.post_invalidation(r, s, me, i);
        }
    }

    /// Returns a Write or Read of all memory that an STag of the peer names.
    fn use_rightly(&mut self, r: &mut Random, s: usize, me: usize, d: &Derived) -> Option<Draft> {
        let View { to, at, len, access } = d.view;
        let reads = access.has(Access::REMOTE_READ) && self.streams[s].plan.ord[me] > 0;
        let draft = if access.has(Access::REMOTE_WRITE) && (!reads || r.chance(0.5)) {
            let data = pattern(r.next_u64(), len);
            let draft = Draft::new(CqeOp::Write, SendOp::Write { stag: d.stag, to });
            let draft = self.with_data(r, (s, me), Draft { len, ..draft }, &data)?;
            Draft { effect: Planned::Write(at, data), ..draft }
        } else if reads {
            let draft = self.use_so(r, (s, me), Use::Read, (d.stag, to, len))?;
            Draft { effect: Planned::Read(at), ..draft }
        } else {
            return None;
        };
        Some(Draft { names: Some(d.stag), ..draft })
    }

    /// Unregisters the stream's region; all STags that derive from it end with it.
    pub fn deregister_parent(&mut self, r: &mut Random, s: usize, me: usize) {
        let mrs = self.pair.hosts[me].mrs.clone();
        let own = |d: &&Derived| d.stream == Some(s);
        let all: Vec<Derived> = self.derived[me].iter().filter(own).copied().collect();
        let healthy = |u: &usize| !self.streams[*u].plan.sick;
        let end = &self.streams[s].ends[me];
        if end.parent_gone || all.iter().any(|d| self.users(me, d.stag).iter().any(healthy)) {
            return;
        }
        mrs.deregister(self.regions[me].parents[s].stag).unwrap();
        self.streams[s].ends[me].parent_gone = true;
        self.streams[s].excuse(&[LOCAL, DDP_STAG, RDMAP_STAG]);
        self.tick();
        for d in &mut self.derived[me].iter_mut().filter(|d| d.stream == Some(s)) {
            d.phase = Phase::Gone;
        }
        for d in &all {
            self.cut_off_users(me, d.stag);
        }
        self.probe(me);
        // The peer does not know of the end.
        if let Some(d) = all.iter().find(|d| d.is_for(s))
            && let Some(draft) = self.use_rightly(r, s, 1 - me, d)
        {
            self.outcome.count("without its region", 1);
            self.post(r, s, 1 - me, draft.bad(Bad::Remote));
        }
    }

    /// Returns an STag that certainly has no owner, or that is no window.
    pub fn no_window(&self, r: &mut Random, s: usize, me: usize) -> Stag {
        let other =
            |d: &Derived| d.kind == heddle_mr::Kind::Window || d.alone && d.stream != Some(s);
        let other = self.of(r, me, other).map_or(NOWHERE, |d| d.stag);
        pick(r, &[NOWHERE, self.regions[me].shared.stag, self.regions[me].alien[1], other])
    }
}
