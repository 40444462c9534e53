//! Requests and calls that bind, register and invalidate, as an honest application makes them.

use heddle_base::Random;
use heddle_mr::Kind as Of;
use heddle_types::{Access, Bind, BindError, CqeOp, MrFault, SendOp, Sge, Stag};

use crate::programs::derived::{Derived, Phase, View};
use crate::programs::draft::{Draft, Planned};
use crate::programs::program::{Kind, pick};
use crate::programs::stream::Bad;
use crate::programs::world::{SHARED, WORDS, WORDS_AT, World};
use crate::sim::TO_BASE;

impl World {
    /// Binds an STag that names nothing, or invalidates one that names memory.
    pub fn bind_or_invalidate(&mut self, r: &mut Random, s: usize, me: usize) {
        let mine = |d: &Derived| d.stream == Some(s) && d.phase != Phase::Gone;
        let free = |d: &Derived| mine(d) && d.phase == Phase::Free;
        let free = self.some_derived(r, me, free).filter(|_| r.chance(0.5));
        let Some(i) = free.or_else(|| self.some_derived(r, me, mine)) else { return };
        let d = self.derived[me][i];
        let bind = match d.phase {
            // Bind after an invalidation by the same end, without waiting for it.
            Phase::Free | Phase::Leaving => true,
            Phase::Bound | Phase::Posted(_) if !self.is_in_use(me, d.stag) => {
                self.post_invalidation(r, s, me, i) && r.chance(0.5)
            }
            _ => false,
        };
        if bind {
            self.post_bind(r, s, me, i);
        }
    }

    pub fn post_bind(&mut self, r: &mut Random, s: usize, me: usize, i: usize) -> bool {
        let view = some_view(r, &self.derived[me][i]);
        let draft = self.bind(r, (s, me), i, view);
        self.post(r, s, me, draft)
    }

    pub fn some_derived(
        &self,
        r: &mut Random,
        host: usize,
        like: impl Fn(&Derived) -> bool,
    ) -> Option<usize> {
        let all: Vec<_> =
            (0..self.derived[host].len()).filter(|i| like(&self.derived[host][*i])).collect();
        (!all.is_empty()).then(|| pick(r, &all))
    }

    /// Returns a request that gives an STag a view of the stream's region, in pieces that follow
    /// each other.
    fn bind(&self, r: &mut Random, (s, me): (usize, usize), i: usize, view: View) -> Draft {
        let d = self.derived[me][i];
        let stag = self.other_key(r, me, d.stag);
        let sges = self.pieces(r, self.regions[me].parents[s].stag, view.at, view.len);
        let draft = binding(&d, Bind { stag, to: view.to, access: view.access }, sges);
        if self.streams[s].ends[me].parent_gone {
            let gone = BindError::Memory(MrFault::InvalidStag);
            return draft.bad(Bad::Bind(gone));
        }
        Draft { effect: Planned::Bind(i, stag, view), ..draft }
    }

    pub fn post_invalidation(&mut self, r: &mut Random, s: usize, me: usize, i: usize) -> bool {
        let stag = self.derived[me][i].stag;
        let draft = invalidation(stag);
        self.post(r, s, me, Draft { effect: Planned::Unbind(i), ..draft })
    }

    /// Registers memory for one request of its own, and invalidates the registration after it; the
    /// application posts all three requests at once.
    pub fn use_once(&mut self, r: &mut Random, s: usize, me: usize, kind: Kind, wrong: bool) {
        let free = |d: &Derived| {
            d.stream == Some(s) && d.kind == Of::Fast && matches!(d.phase, Phase::Free)
        };
        let Some(i) = self.some_derived(r, me, free) else { return };
        let Some(mut draft) = self.draft(r, s, me, kind) else { return };
        let Some((at, len)) = draft.held.filter(|h| h.1 > 0 && h.1 <= self.derived[me][i].most)
        else {
            return;
        };
        if self.streams[s].ends[me].parent_gone || draft.sges.is_empty() {
            return;
        }
        let write = !wrong && (kind == Kind::Read || r.chance(0.3));
        let access = if write { Access::LOCAL_WRITE } else { Access::NONE };
        let view = View { to: some_to(r, at, len), at, len, access };
        let bind = self.bind(r, (s, me), i, view);
        let Planned::Bind(_, stag, _) = bind.effect else { return };
        for sge in &mut draft.sges {
            *sge = Sge { stag, to: view.to + (sge.to - TO_BASE - at as u64), ..*sge };
        }
        if wrong {
            draft = draft.bad(Bad::Local);
        }
        if self.post(r, s, me, bind) {
            self.post(r, s, me, draft);
            self.post_invalidation(r, s, me, i);
        }
    }

    /// Binds a window of type 1, at once. The window does not show its old memory any more.
    pub fn rebind_window(&mut self, r: &mut Random, me: usize) {
        let Some(i) = self.some_derived(r, me, |d| d.kind == Of::Window) else { return };
        let d = self.derived[me][i];
        // If peers use the window, only requests of streams that may fail may use it.
        if self.users(me, d.stag).iter().any(|s| !self.streams[*s].plan.sick) {
            return;
        }
        let (mrs, stag) = (self.pair.hosts[me].mrs.clone(), self.regions[me].bindable.stag);
        let view = some_view(r, &d);
        let (memory, len) = ((view.at as u64) + TO_BASE, view.len as u32);
        let pd = self.pair.hosts[me].pd;
        let bind = |memory, to, access| mrs.bind_window(pd, d.stag, memory, to, access);
        // A bind that the table refuses changes nothing.
        let fault = BindError::Memory;
        let frozen = self.regions[me].frozen.stag;
        let refused = match r.below(6) {
            0 => Some((bind((stag, memory, 0), 0, view.access), BindError::Length)),
            1 => {
                let write = view.access.with(Access::REMOTE_WRITE);
                Some((bind((frozen, memory, len), view.to, write), BindError::Rights))
            }
            2 => {
                let region = self.regions[me].shared.stag;
                Some((bind((region, memory, len), 0, view.access), fault(MrFault::Access)))
            }
            3 => {
                let access = view.access.with(Access::REMOTE_INVALIDATE);
                Some((bind((stag, memory, len), view.to, access), BindError::Rights))
            }
            _ => None,
        };
        if let Some((found, want)) = refused {
            assert_eq!(found, Err(want), "{view:?}");
            self.outcome.count("type 1 refused", 1);
            self.probe(me);
        }
        self.tick();
        if r.chance(0.15) {
            assert_eq!(mrs.revoke(d.stag), Ok(()));
            self.derived[me][i].phase = Phase::Free;
        } else {
            let bound = bind((stag, memory, len), view.to, view.access).unwrap();
            assert_eq!((bound.to, bound.len, bound.access), (view.to, len.into(), view.access));
            self.derived[me][i].name(bound.stag, view, Phase::Bound);
            self.outcome.count("type 1", 1);
        }
        self.cut_off_users(me, d.stag);
        self.probe(me);
    }

    /// Notes that a request that names an STag of this end is complete as asked.
    pub fn bound(&mut self, me: usize, i: usize, stag: Stag) {
        let d = &mut self.derived[me][i];
        if d.stag == stag && matches!(d.phase, Phase::Posted(_)) {
            d.phase = Phase::Bound;
        }
        self.probe(me);
    }

    pub fn unbound(&mut self, me: usize, i: usize, stag: Stag) {
        let d = &mut self.derived[me][i];
        if d.stag == stag && d.phase == Phase::Leaving {
            d.phase = Phase::Free;
        }
        self.cut_off_users(me, stag);
        self.probe(me);
    }
}

/// Returns a request to bind.
pub fn binding(d: &Derived, bind: Bind, sges: Vec<Sge>) -> Draft {
    let (what, op) = match d.kind {
        Of::Fast => (CqeOp::FastRegister, SendOp::FastRegister(bind)),
        _ => (CqeOp::BindWindow, SendOp::BindWindow(bind)),
    };
    let len = sges.iter().map(|s| s.len as usize).sum();
    Draft { sges, len, ..Draft::new(what, op) }
}

pub fn invalidation(stag: Stag) -> Draft {
    Draft::new(CqeOp::LocalInvalidate, SendOp::LocalInvalidate { stag })
}

/// Picks memory that all streams share, or some of the words.
fn some_view(r: &mut Random, d: &Derived) -> View {
    let words = r.chance(0.3);
    let (at, len) = if words {
        let first = r.below(WORDS as u64) as usize;
        (WORDS_AT + 8 * first, 8 * (1 + r.below((WORDS - first) as u64) as usize))
    } else {
        let len = 1 + r.below(d.most.min(3000) as u64) as usize;
        (r.below((SHARED - len) as u64) as usize, len)
    };
    let mut access = if words {
        Access::REMOTE_ATOMIC
    } else {
        pick(
            r,
            &[
                Access::REMOTE_READ,
                Access::REMOTE_WRITE,
                Access::REMOTE_READ.with(Access::REMOTE_WRITE),
                Access::REMOTE_READ.with(Access::REMOTE_WRITE),
            ],
        )
    };
    if d.alone && r.chance(0.5) {
        access = access.with(Access::REMOTE_INVALIDATE);
    }
    if !d.is_window() && r.chance(0.3) {
        access = access.with(Access::LOCAL_WRITE);
    }
    View { to: some_to(r, at, len), at, len, access }
}

/// Picks a tagged offset for `len` bytes at an address.
fn some_to(r: &mut Random, at: usize, len: usize) -> u64 {
    let any = r.next_u64() >> 1;
    pick(r, &[0, at as u64, at as u64 + TO_BASE, any, u64::MAX - len as u64 - 64])
}
