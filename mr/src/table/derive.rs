//! STags that derive from a region: fast registrations and windows.
//!
//! # The tie to the region
//! A derived STag keeps the region's slot and that slot's sequence number at the time of binding.
//! The number changes whenever the region ends, in whichever way, and never returns to an old
//! value; a check compares the two. The memory is the region's: each access counts as a reference
//! to the region's slot. So the memory of an unregistered region becomes free in the usual way,
//! whatever was bound to it.
//!
//! # The count
//! A caller that retires a region [only if nothing is bound](MrTable::retire_unbound) has to know
//! the number of derived STags. So each slot has a word with a count in its lower half and, in the
//! upper, as much of the slot's sequence number as fits. A thread that counts compares the number:
//! a derived STag left over from an earlier region changes no count, and once the number has
//! changed, no thread can bind anything to the region any more.
//!
//! # The rights
//! The memory must lie in one region of the same PD (and the same QP, if the region has one), whose
//! owner has allowed binding ([`Access::BIND`]). The memory of a window is one range. The memory of
//! a fast registration may be a page list: where two of its pieces are not adjacent in memory, the
//! first ends and the second begins at the border of a page.

#[cfg(test)]
mod tests;

use super::pages::Run;
use super::slot::{MAX_PAGES, Parent, Region};
use super::{Kind, MrAttr, MrTable};
use arrayvec::ArrayVec;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use heddle_types::{
    Access, Bind, BindError, MrError, MrFault, Pd, Qpn, Stag,
    mr::{MAX_RUNS, PAGE},
};

/// The memory that an STag is to be bound to.
#[derive(Clone, Copy, Debug)]
struct Source {
    addr: u64,
    len: u64,
    /// Address after the last byte of the last piece, which need not be `addr + len`.
    end: u64,
    access: Access,
    qpn: Option<Qpn>,
    parent: Parent,
}

/// The places of the pieces of one [`Source`].
type Runs = ArrayVec<Run, MAX_RUNS>;

impl MrTable {
    /// Allocates an STag for fast registrations of up to `len` bytes (in whole [pages](PAGE)), for
    /// the QPs of `pd` or for `qpn` alone. The STag is invalid until a request registers it.
    pub fn allocate(&self, pd: Pd, qpn: Option<Qpn>, len: u64) -> Result<Stag, MrError> {
        let pages = u32::try_from(len.div_ceil(PAGE)).ok().filter(|n| (1..=MAX_PAGES).contains(n));
        let pages = pages.ok_or(MrError::FastLen)?;
        let stag = self.reserve(pd, qpn, Kind::Fast, pages)?;
        self.pages[self.index(stag) as usize].reserve();
        Ok(stag)
    }

    /// Allocates a window without memory: of type 2 for the QP `qpn`, or of type 1 for all of `pd`.
    pub fn allocate_window(&self, pd: Pd, qpn: Option<Qpn>) -> Result<Stag, MrError> {
        let kind = if qpn.is_some() { Kind::QpWindow } else { Kind::Window };
        self.reserve(pd, qpn, kind, 0)
    }

    /// A window of type 2 without memory that any QP of `pd` may bind, by a request: it is for the peers
    /// of that QP alone until it is invalidated, and then any may bind it again.
    pub fn allocate_window_for_any(&self, pd: Pd) -> Result<Stag, MrError> {
        let plain = Region::plain(pd, None, [0; 3], Access::NONE);
        let window = Region { kind: Kind::QpWindow, any_qp: true, valid: false, ..plain };
        self.insert(window).map(|mr| mr.stag)
    }

    fn reserve(&self, pd: Pd, qpn: Option<Qpn>, kind: Kind, pages: u32) -> Result<Stag, MrError> {
        let plain = Region::plain(pd, qpn, [0; 3], Access::NONE);
        self.insert(Region { kind, pages, valid: false, ..plain }).map(|mr| mr.stag)
    }

    /// Makes an STag of `kind` valid for the memory that `pieces` (STag, tagged offset, bytes)
    /// name, on behalf of a request of the QP `qpn`. The kind is [`Kind::Fast`] or
    /// [`Kind::QpWindow`]. Takes no lock.
    ///
    /// # Errors
    /// Fails with a [`BindError`] and changes nothing.
    pub fn bind(
        &self,
        (pd, qpn): (Pd, Qpn),
        kind: Kind,
        bind: &Bind,
        pieces: impl IntoIterator<Item = (Stag, u64, u32)>,
    ) -> Result<(), BindError> {
        let mut runs = Runs::new();
        let source = self.source((pd, Some(qpn)), pieces, &mut runs)?;
        if kind.is_window() && runs.len() > 1 {
            return Err(BindError::Scattered);
        }
        let slot = self.slot(bind.stag);
        let (seq, mut r) = slot.read().ok_or(BindError::Stag)?;
        let ours = self.is_owned(&r, (pd, qpn));
        if r.kind != kind || kind == Kind::Region || !r.stag.same_index(bind.stag) || !ours {
            return Err(BindError::Stag);
        }
        // If its region has ended, the STag is invalid although its own word says valid.
        if self.is_good(&r) {
            return Err(BindError::Valid);
        }
        if r.any_qp {
            r.qpn = Some(qpn);
        }
        let mut bound = derived(&r, bind, &source)?;
        if runs.len() > 1 {
            bound.runs = u8::try_from(runs.len()).map_err(|_| BindError::Scattered)?;
        }
        slot.replace(seq, &bound, BindError::Valid, || {
            self.count(source.parent)?;
            if bound.runs > 0 {
                self.pages[self.index(bind.stag) as usize].store(&runs);
            }
            Ok(())
        })
    }

    /// Binds a window of type 1 to the memory that a piece (STag, tagged offset, bytes) names, and
    /// ends its earlier binding. Returns the window with its new STag, which has another key.
    ///
    /// # Errors
    /// Fails with a [`BindError`] and changes nothing.
    pub fn bind_window(
        &self,
        pd: Pd,
        window: Stag,
        (stag, at, len): (Stag, u64, u32),
        to: u64,
        access: Access,
    ) -> Result<MrAttr, BindError> {
        let mut owner = self.owner();
        let index = self.index(window);
        if owner.kind(index, window) != Some(Kind::Window) {
            return Err(BindError::Stag);
        }
        let source = self.source((pd, None), [(stag, at, len)], &mut Runs::new())?;
        let slot = &self.slots[index as usize];
        let (seq, r) = slot.read().filter(|(_, r)| r.pd == pd).ok_or(BindError::Stag)?;
        let stag = window.with_key(window.key().wrapping_add(1));
        let bound = derived(&r, &Bind { stag, to, access }, &source)?;
        slot.replace(seq, &bound, BindError::Stag, || self.count(source.parent))?;
        self.unbind(&r);
        owner.held[index as usize].0 = stag;
        Ok(bound.mr())
    }

    /// Invalidates a fast registration or a window of type 2, on behalf of a request of `qpn`.
    /// Succeeds also if the peer has invalidated the STag already, or the region has ended.
    ///
    /// # Errors
    /// Fails with [`BindError::Stag`], or with [`BindError::Valid`] when another key is valid.
    pub fn invalidate_local(&self, (pd, qpn): (Pd, Qpn), stag: Stag) -> Result<(), BindError> {
        let slot = self.slot(stag);
        let (seq, r) = slot.read().ok_or(BindError::Stag)?;
        let ours = self.is_owned(&r, (pd, qpn));
        if !matches!(r.kind, Kind::Fast | Kind::QpWindow) || !r.stag.same_index(stag) || !ours {
            return Err(BindError::Stag);
        }
        if r.stag != stag {
            return if r.valid { Err(BindError::Valid) } else { Err(BindError::Stag) };
        }
        if r.valid {
            slot.replace(seq, &Region { valid: false, ..r }, BindError::Stag, || Ok(()))?;
            self.unbind(&r);
        }
        Ok(())
    }

    /// Invalidates a window or fast registration on behalf of its owner: its QP has ended, or a
    /// window of type 1 is to grant nothing. For a window of type 1 the key has to be right. The
    /// owner can bind the STag again. Takes no lock.
    ///
    /// # Errors
    /// Fails with [`MrError::Unknown`].
    pub fn revoke(&self, stag: Stag) -> Result<(), MrError> {
        let slot = self.slot(stag);
        loop {
            let (seq, r) = slot.read().ok_or(MrError::Unknown)?;
            let same = match r.kind {
                Kind::Region => false,
                Kind::Window => r.stag == stag,
                Kind::Fast | Kind::QpWindow => r.stag.same_index(stag),
            };
            if !same {
                return Err(MrError::Unknown);
            }
            // If another thread has changed the slot since the read, the loop reads it again.
            if !r.valid || slot.replace(seq, &Region { valid: false, ..r }, (), || Ok(())).is_ok() {
                self.unbind(&r);
                return Ok(());
            }
        }
    }

    /// Makes a window that [any QP may bind](MrTable::allocate_window_for_any) invalid if `qpn` is the QP
    /// that bound it last. Call it before another QP gets that number. Takes no lock.
    pub fn revoke_of(&self, stag: Stag, qpn: Qpn) {
        let slot = self.slot(stag);
        while let Some((seq, r)) = slot.read() {
            if !(r.any_qp && r.valid && r.stag.same_index(stag) && r.qpn == Some(qpn)) {
                return;
            }
            // The peer of the QP, or its worker, may have invalidated the window since `read`.
            if slot.replace(seq, &Region { valid: false, ..r }, (), || Ok(())).is_ok() {
                self.unbind(&r);
                return;
            }
        }
    }

    /// Returns the number of valid windows and fast registrations of a region; 0 for any other
    /// STag.
    pub fn bound(&self, stag: Stag) -> u32 {
        let index = self.index(stag) as usize;
        let Some((seq, r)) = self.slots[index].read() else { return 0 };
        let (number, n) = split(self.bound[index].load(Acquire));
        if r.stag == stag && r.valid && number == mark(seq) { n } else { 0 }
    }

    /// Returns true if a check of this STag may succeed.
    pub(super) fn is_good(&self, r: &Region) -> bool {
        let parent = || self.slots.get(r.parent.slot as usize).map(super::Slot::seq);
        r.valid && (r.kind == Kind::Region || parent() == Some(r.parent.seq))
    }

    /// Returns true if a request of this QP may bind or invalidate an STag.
    fn is_owned(&self, r: &Region, (pd, qpn): (Pd, Qpn)) -> bool {
        let free = r.any_qp && !self.is_good(r);
        r.pd == pd && (free || r.qpn.is_none_or(|q| q == qpn))
    }

    /// Returns the memory that the pieces make up, and stores the runs in which it lies in `runs`.
    fn source(
        &self,
        (pd, qpn): (Pd, Option<Qpn>),
        pieces: impl IntoIterator<Item = (Stag, u64, u32)>,
        runs: &mut Runs,
    ) -> Result<Source, BindError> {
        let mut all: Option<Source> = None;
        for (stag, to, len) in pieces {
            let piece = self.piece((pd, qpn), stag, to, len)?;
            let Some(s) = &mut all else {
                runs.push(Run { end: piece.len, addr: piece.addr });
                all = Some(piece);
                continue;
            };
            if piece.parent != s.parent {
                return Err(BindError::Scattered);
            }
            s.len += piece.len;
            let pages = s.end % PAGE == 0 && piece.addr % PAGE == 0 && !runs.is_full();
            match runs.last_mut() {
                Some(run) if s.end == piece.addr => run.end = s.len,
                _ if pages => runs.push(Run { end: s.len, addr: piece.addr }),
                _ => return Err(BindError::Scattered),
            }
            s.end = piece.end;
        }
        all.ok_or(BindError::Length)
    }

    fn piece(
        &self,
        (pd, qpn): (Pd, Option<Qpn>),
        stag: Stag,
        to: u64,
        len: u32,
    ) -> Result<Source, BindError> {
        let fault = BindError::Memory;
        let found = self.slot(stag).read().filter(|(_, r)| r.stag == stag && r.valid);
        let (seq, r) = found.ok_or(fault(MrFault::InvalidStag))?;
        if r.pd != pd || r.qpn.is_some_and(|q| Some(q) != qpn) {
            return Err(fault(MrFault::NotAssociated));
        }
        // A derived STag never has the right BIND, so nothing derives from a derived STag.
        if r.kind != Kind::Region || !r.access.has(Access::BIND) {
            return Err(fault(MrFault::Access));
        }
        let end = to.checked_add(u64::from(len)).ok_or(fault(MrFault::ToWrap))?;
        if to < r.to || end > r.to + r.len {
            return Err(fault(MrFault::Bounds));
        }
        let parent = Parent { slot: self.index(stag), seq };
        let (addr, len) = (r.addr + (to - r.to), u64::from(len));
        Ok(Source { addr, len, end: addr + len, access: r.access, qpn: r.qpn, parent })
    }

    /// Counts one more STag that derives from a region, if the region still exists.
    fn count(&self, parent: Parent) -> Result<(), BindError> {
        let gone = BindError::Memory(MrFault::InvalidStag);
        let word = self.bound.get(parent.slot as usize).ok_or(gone)?;
        word.fetch_update(AcqRel, Acquire, |w| {
            let (number, n) = split(w);
            (number == mark(parent.seq)).then(|| join(number, n + 1))
        })
        .map(|_| ())
        .map_err(|_| gone)
    }

    /// Counts one less STag that derives from a region, if `was` was such an STag and valid.
    pub(super) fn unbind(&self, was: &Region) {
        if was.valid
            && was.kind != Kind::Region
            && let Some(word) = self.bound.get(was.parent.slot as usize)
        {
            // Ignore the error: the region may have ended, and its count with it.
            let _ = word.fetch_update(AcqRel, Acquire, |w| {
                let (number, n) = split(w);
                (number == mark(was.parent.seq)).then(|| join(number, n.saturating_sub(1)))
            });
        }
    }

    /// Starts a count of 0 for the region that is now in a slot, or for an empty slot.
    pub(super) fn forget_bound(&self, index: u32, seq: u64) {
        self.bound[index as usize].store(join(mark(seq), 0), Release);
    }

    /// Prevents further binds to the region in a slot, unless an STag is bound to it.
    pub(super) fn close_unbound(&self, index: u32) -> Result<(), MrError> {
        let slot = &self.slots[index as usize];
        // A region that the peer has invalidated has no valid STag that derives from it.
        let region = slot.read().filter(|(_, r)| r.valid && r.kind == Kind::Region);
        let Some((seq, _)) = region else { return Ok(()) };
        let open = mark(seq);
        // No slot at rest has a number with this mark except the slot's next number, which the
        // caller is about to give it.
        let closed = join(open.wrapping_add(1), 0);
        self.bound[index as usize]
            .compare_exchange(join(open, 0), closed, AcqRel, Acquire)
            .map(|_| ())
            .map_err(|w| MrError::Bound(split(w).1))
    }
}

/// Returns the contents of an STag's slot after it is bound as asked.
fn derived(r: &Region, bind: &Bind, source: &Source) -> Result<Region, BindError> {
    let &Bind { stag, to, access } = bind;
    let fits = match r.kind {
        Kind::Fast => source.len <= u64::from(r.pages) * PAGE,
        _ => true,
    };
    if source.len == 0 || !fits || to.checked_add(source.len).is_none() {
        return Err(BindError::Length);
    }
    let changes = [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
    let changes = changes.iter().any(|a| access.has(*a));
    if access.has(Access::BIND)
        || (r.kind.is_window() && access.has(Access::LOCAL_WRITE))
        || (changes && !source.access.has(Access::LOCAL_WRITE))
        || (access.has(Access::REMOTE_INVALIDATE) && r.qpn.is_none())
    {
        return Err(BindError::Rights);
    }
    // The memory of one QP alone must not become accessible to other QPs.
    if source.qpn.is_some() && source.qpn != r.qpn {
        return Err(BindError::Memory(MrFault::NotAssociated));
    }
    let &Source { addr, len, parent, .. } = source;
    Ok(Region { stag, addr, to, len, access, valid: true, runs: 0, parent, ..*r })
}

/// Returns the part of a sequence number that is stored with a count. The number is even while no
/// thread writes, so its lowest bit says nothing.
const fn mark(seq: u64) -> u32 {
    let b = (seq >> 1).to_le_bytes();
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

const fn join(mark: u32, count: u32) -> u64 {
    (mark as u64) << 32 | count as u64
}

const fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([e, f, g, h]), u32::from_le_bytes([a, b, c, d]))
}
