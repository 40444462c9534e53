//! One slot of the STag table: a sequence lock made of atomics, on one cache line.

use super::{Kind, MrAttr};
use crate::{Access, Pd, Qpn, Stag};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

/// What a slot holds.
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
    /// Whether the STag may be used. One that may not keeps its slot.
    pub(super) valid: bool,
    /// Pages that a fast registration may have.
    pub(super) pages: u32,
    /// Runs of a [page list](super::pages); 0 where the memory is one range, which begins at `addr`.
    pub(super) runs: u8,
    /// Whose memory it is, of a window or a fast registration that is valid.
    pub(super) parent: Parent,
}

/// A region by its slot, and the slot's sequence number while it is registered: no later region in
/// the slot has it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) slot: u32,
    pub(super) seq: u64,
}

impl Region {
    /// One that is no window and no fast registration, without a name yet.
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

// The word `terms`: rights in the lower 8 bits, then the kind, two marks, and pages.
const KIND_SHIFT: u32 = 8;
/// The STag may not be used.
const INVALID: u32 = 1 << 10;
/// Whether the STag may be used does not stand here alone.
const DERIVED: u32 = 1 << 11;
const PAGES_SHIFT: u32 = 12;

/// In the word of the parent: its slot, of [`MAX_SLOTS`](super::MAX_SLOTS), and above it the runs.
const RUNS_SHIFT: u32 = 24;
const PARENT_SLOT: u32 = (1 << RUNS_SHIFT) - 1;
/// In the same word: `any_qp`.
const ANY_QP: u32 = 1 << 31;
const _: () = assert!(super::MAX_SLOTS < PARENT_SLOT as usize);
const _: () = assert!((super::MAX_RUNS as u32) << RUNS_SHIFT < ANY_QP);

/// Most pages a fast registration can have.
pub(super) const MAX_PAGES: u32 = (1 << (32 - PAGES_SHIFT)) - 1;

/// `seq` is odd while a writer is inside. An empty slot has STag 0.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Slot {
    seq: AtomicU64,
    addr: AtomicU64,
    to: AtomicU64,
    len: AtomicU64,
    /// 0 for any QP, else its number + 1.
    qpn: AtomicU64,
    parent_seq: AtomicU64,
    stag: AtomicU32,
    pd: AtomicU32,
    terms: AtomicU32,
    parent: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    /// Address of `len` bytes at `to`, if this is a registered region (and nothing that derives from
    /// one) of which all that is asked for is true. The common case in one pass; what else it may be,
    /// and what is wrong, [`read`](Slot::read) tells.
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
        // The loads above come before this one: an unchanged number means none of them was late.
        fence(Acquire);
        if seq & 1 != 0 || self.seq.load(Relaxed) != seq {
            return None;
        }
        let need = u32::from(need.bits());
        // Registering has checked that base and size do not wrap; so an offset below the base, which
        // wraps, is beyond the size.
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

    /// What it holds, valid or not, and the sequence number it has so; `None` when the slot is empty or
    /// changed while it was read.
    #[inline]
    pub(super) fn read(&self) -> Option<(u64, Region)> {
        let seq = self.seq.load(Acquire);
        if seq & 1 != 0 {
            return None;
        }
        let region = self.load();
        (self.is_still(seq) && region.stag.0 != 0).then_some((seq, region))
    }

    /// What it holds, if its STag may be used.
    pub(super) fn valid(&self) -> Option<Region> {
        self.read().map(|(_, r)| r).filter(|r| r.valid)
    }

    /// Whether nobody has changed it since [`read`](Slot::read) gave `seq`, nor what stands beside it
    /// and was read in between.
    #[inline]
    pub(super) fn is_still(&self, seq: u64) -> bool {
        fence(Acquire);
        self.seq.load(Relaxed) == seq
    }

    /// Its sequence number now.
    #[inline]
    pub(super) fn seq(&self) -> u64 {
        self.seq.load(Acquire)
    }

    /// Writes a region into an empty slot, or over what its owner had there; its sequence number.
    pub(super) fn set(&self, r: &Region) -> u64 {
        let seq = self.enter();
        self.store(r);
        self.leave(seq)
    }

    /// Empties the slot; its sequence number, and what was in it.
    pub(super) fn clear(&self) -> (u64, Option<Region>) {
        let seq = self.enter();
        // Nobody else is inside.
        let was = self.load();
        self.stag.store(0, Relaxed);
        (self.leave(seq), (was.stag.0 != 0).then_some(was))
    }

    /// Replaces what `read` gave by `to`, unless somebody has changed it since or `commit` fails;
    /// `commit` runs while nobody else can change the slot.
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
        fence(Release);
        if let Err(e) = commit() {
            // Nothing was stored: it is what it was.
            self.seq.store(seq, Release);
            return Err(e);
        }
        self.store(to);
        self.leave(seq);
        Ok(())
    }

    /// The fields, of one state only if nobody writes meanwhile.
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

    /// Takes the slot for writing. Owners are serialised by the table's mutex, so the only rival is
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
                // The odd number is seen by whoever sees one of the stores that follow.
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

/// Stored from a `u32`, so nothing is lost.
#[expect(clippy::cast_possible_truncation)]
const fn low32(v: u64) -> u32 {
    v as u32
}

/// What stands in the lowest bits.
#[expect(clippy::cast_possible_truncation)]
const fn low8(v: u32) -> u8 {
    v as u8
}
