//! Requests to bind, register or invalidate that the RNIC must refuse: each has exactly one reason
//! for the refusal.

use heddle_base::Random;
use heddle_types::{Access, Bind, BindError, MrFault, PostError, Sge};

use crate::programs::bind::{binding, invalidation};
use crate::programs::derived::{Derived, Phase};
use crate::programs::draft::{Draft, NOWHERE};
use crate::programs::stream::Bad;
use crate::programs::world::{MEMORY, SHARED, World};
use crate::sim::TO_BASE;

impl World {
    pub fn bad_bind(&mut self, r: &mut Random, s: usize, me: usize) -> Option<Draft> {
        if self.streams[s].ends[me].parent_gone {
            return None;
        }
        let choice = r.below(18);
        if choice < 3 {
            return self.bad_invalidation(r, s, me);
        }
        let valid = self.some_valid(r, s, me);
        let regions = &self.regions[me];
        let parent = regions.parents[s].stag;
        let sge = |stag, at: usize, len| Sge { stag, to: at as u64 + TO_BASE, len };
        let read = Access::REMOTE_READ;
        let own = |d: &Derived| d.stream == Some(s);
        let free = |d: &Derived| own(d) && d.phase == Phase::Free;
        let (d, sges, to, access, why) = match choice {
            3 | 10 | 11 => {
                let sges = vec![sge(parent, 0, 9)];
                (valid?, sges, 0, read, BindError::Valid)
            }
            4 => {
                let at = r.below((SHARED - 30) as u64) as usize;
                let (a, b) = (sge(parent, at, 10), sge(parent, at + 10, 10));
                let sges = match r.below(4) {
                    0 => vec![b, a],
                    1 => vec![a, sge(parent, at + 11, 10)],
                    2 => vec![a, a],
                    _ => vec![a, sge(regions.bindable.stag, at + 10, 10)],
                };
                (self.of(r, me, free)?, sges, 0, read, BindError::Scattered)
            }
            5 | 6 | 14.. => {
                let (sges, fault) = match r.below(6) {
                    0 => (vec![sge(parent, MEMORY - 3, 4)], MrFault::Bounds),
                    1 => (vec![sge(regions.shared.stag, 0, 4)], MrFault::Access),
                    2 => (vec![sge(regions.alien[0], 0, 4)], MrFault::NotAssociated),
                    3 => (vec![sge(NOWHERE, 0, 4)], MrFault::InvalidStag),
                    4 => {
                        let one = valid?;
                        let sge = Sge { stag: one.stag, to: one.view.to, len: 1 };
                        (vec![sge], MrFault::Access)
                    }
                    _ => {
                        let other = parent.with_key(parent.key() ^ 1);
                        (vec![sge(parent, 0, 4), sge(other, 4, 4)], MrFault::InvalidStag)
                    }
                };
                (self.of(r, me, free)?, sges, 0, read, BindError::Memory(fault))
            }
            7 => {
                let d = self.of(r, me, free)?;
                let frozen = sge(regions.frozen.stag, 0, 8);
                let (from, access) = match r.below(4) {
                    0 => (sge(parent, 0, 8), read.with(Access::BIND)),
                    1 if d.is_window() => (sge(parent, 0, 8), read.with(Access::LOCAL_WRITE)),
                    1 if !d.alone => (sge(parent, 0, 8), read.with(Access::REMOTE_INVALIDATE)),
                    2 => (frozen, Access::REMOTE_ATOMIC),
                    _ => (frozen, read.with(Access::REMOTE_WRITE)),
                };
                (d, vec![from], 0, access, BindError::Rights)
            }
            8 | 12 | 13 => {
                let short = |d: &Derived| free(d) && d.most <= SHARED;
                let d = self.of(r, me, short)?;
                let sges = vec![sge(parent, 5, d.most as u32), sge(parent, 5 + d.most, 1)];
                (d, sges, 0, read, BindError::Length)
            }
            _ => {
                // An STag of the other kind, or of another owner.
                let like = self.of(r, me, own)?;
                let other = |d: &Derived| own(d) && d.is_window() != like.is_window();
                let stag = if r.chance(0.5) {
                    self.of(r, me, other)?.stag
                } else {
                    self.no_window(r, s, me)
                };
                let d = Derived { stag, ..like };
                (d, vec![sge(parent, 0, 4)], 0, read, BindError::Stag)
            }
        };
        let stag = if why == BindError::Stag && r.chance(0.5) {
            d.stag
        } else {
            self.other_key(r, me, d.stag)
        };
        if why == BindError::Length && r.chance(0.3) {
            let draft = binding(&d, Bind { stag, to, access }, vec![]);
            return Some(draft.bad(Bad::Refused(PostError::BindData)));
        }
        let to = if why == BindError::Length && r.chance(0.3) { u64::MAX - 3 } else { to };
        let wraps = to > 0;
        let draft = binding(&d, Bind { stag, to, access }, sges);
        let bad = if wraps { Bad::Refused(PostError::ToWrap) } else { Bad::Bind(why) };
        Some(draft.bad(bad))
    }

    /// Returns an STag that is valid when a request that is posted now has its turn.
    fn some_valid(&mut self, r: &mut Random, s: usize, me: usize) -> Option<Derived> {
        let valid = |d: &Derived| d.stream == Some(s) && stays_valid(d);
        if let Some(d) = self.of(r, me, valid) {
            return Some(d);
        }
        let free = |d: &Derived| d.stream == Some(s) && d.phase == Phase::Free;
        let i = self.some_derived(r, me, free)?;
        self.post_bind(r, s, me, i);
        Some(self.derived[me][i]).filter(stays_valid)
    }

    fn bad_invalidation(&mut self, r: &mut Random, s: usize, me: usize) -> Option<Draft> {
        let own = |d: &Derived| d.stream == Some(s);
        let (stag, why) = match r.below(4) {
            0 => {
                let d = self.some_valid(r, s, me)?;
                (self.other_key(r, me, d.stag), Bad::Bind(BindError::Valid))
            }
            1 => {
                let free = |d: &Derived| own(d) && d.phase == Phase::Free;
                let d = self.of(r, me, free)?;
                (self.other_key(r, me, d.stag), Bad::Bind(BindError::Stag))
            }
            2 => {
                let stag = self.of(r, me, own)?.stag;
                let sges = vec![self.sge(s, me, SHARED, 4)];
                let draft = Draft { sges, len: 4, ..invalidation(stag) };
                return Some(draft.bad(Bad::Refused(PostError::BindData)));
            }
            _ => (self.no_window(r, s, me), Bad::Bind(BindError::Stag)),
        };
        Some(invalidation(stag).bad(why))
    }
}

/// Returns true if the STag is valid when a request that is posted now has its turn: the peer
/// cannot end it meanwhile.
fn stays_valid(d: &Derived) -> bool {
    let may = d.view.access.has(Access::REMOTE_INVALIDATE);
    matches!(d.phase, Phase::Bound | Phase::Posted(_)) && !may
}
