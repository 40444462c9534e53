//! A slot of the STag table: a sequence lock made of atomics, on one cache line.

use super::{Kind, MrAttr};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

use heddle_types::{Access, Pd, Qpn, Stag};

/// The contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) stag: Stag,
    pub(super) pd: Pd,
    pub(super) qpn: Option<Qpn>,
    pub(super) addr: u64,
    pub(super) to: u64,
    pub(super) len: u64,
    pub(super) access: Access,
    pub(super) kind: Kind,
    /// Any QP of the PD may bind this window, whose `qpn` is the QP that bound it last.
    pub(super) any_qp: bool,
    /// The STag may be used. An STag that may not be used keeps its slot.
    pub(super) valid: bool,
    /// Number of pages that a fast registration may have.
    pub(super) pages: u32,
    /// Runs of a [page list](super::pages); 0 where the memory is one range that begins at `addr`.
    pub(super) runs: u8,
    /// The region whose memory it is, for a window or a fast registration that is valid.
    pub(super) parent: Parent,
}

/// A region, named by its slot and by the slot's sequence number while the region is registered. No
/// later region in the slot has the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) slot: u32,
    pub(super) seq: u64,
}

/// The rest of the memory of an STag that derives from a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct DerivedRest {
    pub(super) addr: u64,
    pub(super) len: u64,
    /// Sequence number of the STag's slot.
    pub(super) seq: u64,
    pub(super) parent: Parent,
}

impl Region {
    /// Makes a region that is no window and no fast registration, without an STag yet.
    pub(super) fn plain(pd: Pd, qpn: Option<Qpn>, range: [u64; 3], access: Access) -> Region {
        let ([addr, to, len], parent) = (range, Parent::default());
        let (stag, kind) = (Stag(0), Kind::Region);
        Region {
            stag,
            pd,
            qpn,
            addr,
            to,
            len,
            access,
            kind,
            any_qp: false,
            valid: true,
            pages: 0,
            runs: 0,
            parent,
        }
    }

    pub(super) fn mr(&self) -> MrAttr {
        let Region { stag, pd, qpn, to, len, access, .. } = *self;
        MrAttr { stag, pd, qpn, to, len, access }
    }
}

// The word `terms`: rights in the lower 8 bits, then the kind, two flags, and the number of pages.
const KIND_SHIFT: u32 = 8;
/// The STag may not be used.
const INVALID: u32 = 1 << 10;
/// The STag derives from a region, so this word alone does not say whether the STag may be used.
const DERIVED: u32 = 1 << 11;
const PAGES_SHIFT: u32 = 12;

/// The word `parent`: the parent's slot, below [`MAX_SLOTS`](super::MAX_SLOTS), and above it the
/// number of runs.
const RUNS_SHIFT: u32 = 24;
const PARENT_SLOT: u32 = (1 << RUNS_SHIFT) - 1;
/// In the same word: `any_qp`.
const ANY_QP: u32 = 1 << 31;
const _: () = assert!(super::MAX_SLOTS < PARENT_SLOT as usize);
const _: () = assert!(heddle_types::mr::MAX_RUNS < (ANY_QP >> RUNS_SHIFT) as usize);

/// The largest number of pages of a fast registration.
pub(super) const MAX_PAGES: u32 = (1 << (32 - PAGES_SHIFT)) - 1;

/// A slot's words. `seq` is odd while a writer is inside. An empty slot has STag 0.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Slot {
    seq: AtomicU64,
    addr: AtomicU64,
    to: AtomicU64,
    len: AtomicU64,
    /// 0 for any QP, else the QP's number + 1.
    qpn: AtomicU64,
    parent_seq: AtomicU64,
    stag: AtomicU32,
    pd: AtomicU32,
    terms: AtomicU32,
    parent: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    /// Returns the address of `len` bytes at `to`, if the slot holds a registered region (not an
    /// STag that derives from one) that passes every check. The function handles the common case in
    /// one pass. On `None` the caller finds the other cases and the faults by [`read`](Slot::read).
    #[inline]
    pub(super) fn grant(
        &self,
        (pd, qpn): (Pd, Qpn),
        stag: Stag,
        to: u64,
        len: u32,
        need: Access,
    ) -> Option<u64> {
        let seq = self.seq.load(Acquire);
        let (addr, base, size) =
            (self.addr.load(Relaxed), self.to.load(Relaxed), self.len.load(Relaxed));
        let owner = self.qpn.load(Relaxed);
        let (name, domain) = (self.stag.load(Relaxed), self.pd.load(Relaxed));
        let terms = self.terms.load(Relaxed);
        // Load the number after all the loads above: if it is unchanged, none of them saw a later
        // state.
        fence(Acquire);
        if seq & 1 != 0 || self.seq.load(Relaxed) != seq {
            return None;
        }
        let need = u32::from(need.bits());
        // The registration has checked that base and size do not wrap. So an offset below the base
        // wraps to a number above the size.
        let off = to.wrapping_sub(base);
        let fits = off <= size && u64::from(len) <= size - off;
        (name == stag.0
            && name != 0
            && domain == pd.0
            && (owner == 0 || owner == u64::from(qpn.0) + 1)
            && terms & (need | INVALID | DERIVED) == need
            && fits)
            .then(|| addr + off)
    }

    /// Returns the bytes from `to` to the end of the region, and the slot's sequence number, if
    /// [`grant`](Slot::grant) grants the first of them.
    pub(super) fn grant_rest(
        &self,
        user: (Pd, Qpn),
        stag: Stag,
        to: u64,
        need: Access,
    ) -> Option<(u64, u64, u64)> {
        let seq = self.seq.load(Acquire);
        let addr = self.grant(user, stag, to, 1, need)?;
        let (base, size) = (self.to.load(Relaxed), self.len.load(Relaxed));
        self.is_still(seq).then(|| (addr, size - to.wrapping_sub(base), seq))
    }

    /// Returns the bytes from `to` to the end of the memory of an STag that derives from a region,
    /// if the memory is one piece and the first of these bytes passes every check of this slot. The
    /// caller has yet to check that the region is still as it was.
    pub(super) fn grant_derived(
        &self,
        (pd, qpn): (Pd, Qpn),
        stag: Stag,
        to: u64,
        need: Access,
    ) -> Option<DerivedRest> {
        let seq = self.seq.load(Acquire);
        let (addr, base, size) =
            (self.addr.load(Relaxed), self.to.load(Relaxed), self.len.load(Relaxed));
        let owner = self.qpn.load(Relaxed);
        let (name, domain) = (self.stag.load(Relaxed), self.pd.load(Relaxed));
        let (terms, parent) = (self.terms.load(Relaxed), self.parent.load(Relaxed));
        let parent_seq = self.parent_seq.load(Relaxed);
        if seq & 1 != 0 || !self.is_still(seq) {
            return None;
        }
        // Only peers may use a window: no local operation may, not even as a source.
        let is_window = Kind::from_bits(terms >> KIND_SHIFT).is_window();
        let off = to.wrapping_sub(base);
        // The registration has checked that neither sum wraps, as for `grant`.
        let fits = off < size;
        let bits = u32::from(need.bits());
        let one_run = (parent & !ANY_QP) >> RUNS_SHIFT == 0;
        let parent = Parent { slot: parent & PARENT_SLOT, seq: parent_seq };
        (name == stag.0
            && name != 0
            && domain == pd.0
            && (owner == 0 || owner == u64::from(qpn.0) + 1)
            && terms & (bits | INVALID | DERIVED) == bits | DERIVED
            && (!is_window || need.is_remote())
            && one_run
            && fits)
            .then(|| DerivedRest { addr: addr + off, len: size - off, seq, parent })
    }

    /// Returns the contents, valid or not, and the sequence number that goes with them. Returns
    /// `None` when the slot is empty or changed during the read.
    #[inline]
    pub(super) fn read(&self) -> Option<(u64, Region)> {
        let seq = self.seq.load(Acquire);
        if seq & 1 != 0 {
            return None;
        }
        let region = self.load();
        (self.is_still(seq) && region.stag.0 != 0).then_some((seq, region))
    }

    /// Returns the contents, if the STag may be used.
    pub(super) fn valid(&self) -> Option<Region> {
        self.read().map(|(_, r)| r).filter(|r| r.valid)
    }

    /// Returns true if no thread has changed the slot since [`read`](Slot::read) returned `seq`.
    /// Data beside the slot that the caller read in between, such as a page list, is unchanged too.
    #[inline]
    pub(super) fn is_still(&self, seq: u64) -> bool {
        // Load the number after the caller's loads, as in `grant`.
        fence(Acquire);
        self.seq.load(Relaxed) == seq
    }

    /// Returns the current sequence number.
    #[inline]
    pub(super) fn seq(&self) -> u64 {
        self.seq.load(Acquire)
    }

    /// Writes a region into an empty slot, or over the owner's earlier contents, and returns the
    /// new sequence number.
    pub(super) fn set(&self, r: &Region) -> u64 {
        let seq = self.enter();
        self.store(r);
        self.leave(seq)
    }

    /// Empties the slot, and returns the new sequence number and the old contents.
    pub(super) fn clear(&self) -> (u64, Option<Region>) {
        let seq = self.enter();
        // No other writer is inside, so these loads all see one state.
        let was = self.load();
        self.stag.store(0, Relaxed);
        (self.leave(seq), (was.stag.0 != 0).then_some(was))
    }

    /// Replaces the contents that `read` returned by `to`, unless another thread has changed them
    /// since or `commit` fails. No other thread can change the slot while `commit` runs.
    pub(super) fn replace<E>(
        &self,
        seq: u64,
        to: &Region,
        raced: E,
        commit: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        if self.seq.compare_exchange(seq, seq.wrapping_add(1), Acquire, Relaxed).is_err() {
            return Err(raced);
        }
        // A reader that sees one of the following stores also sees the odd number.
        fence(Release);
        if let Err(e) = commit() {
            // `commit` failed before any field changed; restore the old sequence number.
            self.seq.store(seq, Release);
            return Err(e);
        }
        self.store(to);
        self.leave(seq);
        Ok(())
    }

    /// Loads the fields, which are of one state only if no thread writes meanwhile.
    #[inline]
    fn load(&self) -> Region {
        let (qpn, terms) = (self.qpn.load(Relaxed), self.terms.load(Relaxed));
        let parent = self.parent.load(Relaxed);
        Region {
            stag: Stag(self.stag.load(Relaxed)),
            pd: Pd(self.pd.load(Relaxed)),
            qpn: qpn.checked_sub(1).map(|q| Qpn(low32(q))),
            addr: self.addr.load(Relaxed),
            to: self.to.load(Relaxed),
            len: self.len.load(Relaxed),
            access: Access::from_bits(low8(terms)),
            kind: Kind::from_bits(terms >> KIND_SHIFT),
            any_qp: parent & ANY_QP != 0,
            valid: terms & INVALID == 0,
            pages: terms >> PAGES_SHIFT,
            runs: low8((parent & !ANY_QP) >> RUNS_SHIFT),
            parent: Parent { slot: parent & PARENT_SLOT, seq: self.parent_seq.load(Relaxed) },
        }
    }

    fn store(&self, r: &Region) {
        self.addr.store(r.addr, Relaxed);
        self.to.store(r.to, Relaxed);
        self.len.store(r.len, Relaxed);
        self.qpn.store(r.qpn.map_or(0, |q| u64::from(q.0) + 1), Relaxed);
        self.pd.store(r.pd.0, Relaxed);
        let marks = if r.valid { 0 } else { INVALID };
        let marks = marks | if r.kind == Kind::Region { 0 } else { DERIVED };
        let terms = u32::from(r.access.bits()) | r.kind.bits() << KIND_SHIFT | marks;
        self.terms.store(terms | r.pages << PAGES_SHIFT, Relaxed);
        let any_qp = if r.any_qp { ANY_QP } else { 0 };
        self.parent.store(r.parent.slot | u32::from(r.runs) << RUNS_SHIFT | any_qp, Relaxed);
        self.parent_seq.store(r.parent.seq, Relaxed);
        self.stag.store(r.stag.0, Relaxed);
    }

    /// Takes the slot for writing. The table's mutex serialises the owners, so the only rival is
    /// [`replace`](Slot::replace), which leaves after a few stores.
    fn enter(&self) -> u64 {
        loop {
            let seq = self.seq.load(Relaxed);
            if seq & 1 == 0
                && self
                    .seq
                    .compare_exchange_weak(seq, seq.wrapping_add(1), Acquire, Relaxed)
                    .is_ok()
            {
                // A reader that sees one of the following stores also sees the odd number.
                fence(Release);
                return seq;
            }
            core::hint::spin_loop();
        }
    }

    fn leave(&self, seq: u64) -> u64 {
        let next = seq.wrapping_add(2);
        self.seq.store(next, Release);
        next
    }
}

/// The value was stored from a `u32`, so the cast loses nothing.
#[expect(clippy::cast_possible_truncation)]
const fn low32(v: u64) -> u32 {
    v as u32
}

/// Returns the lowest 8 bits.
#[expect(clippy::cast_possible_truncation)]
const fn low8(v: u32) -> u8 {
    v as u8
}
