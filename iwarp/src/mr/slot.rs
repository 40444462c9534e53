//! One slot of the STag table: a sequence lock made of atomics, on one cache line.

use super::{Mr, MrFault};
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
}

impl Region {
    pub(super) fn mr(&self) -> Mr {
        let Region { stag, pd, qpn, to, len, access, .. } = *self;
        Mr { stag, pd, qpn, to, len, access }
    }
}

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
    stag: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
}

impl Slot {
    /// The region, or `None` when the slot is empty or changed while it was read.
    #[inline]
    pub(super) fn get(&self) -> Option<Region> {
        self.read().map(|(_, r)| r)
    }

    #[inline]
    fn read(&self) -> Option<(u64, Region)> {
        let seq = self.seq.load(Acquire);
        if seq & 1 != 0 {
            return None;
        }
        let qpn = self.qpn.load(Relaxed);
        let region = Region {
            stag: Stag(self.stag.load(Relaxed)),
            pd: Pd(self.pd.load(Relaxed)),
            qpn: qpn.checked_sub(1).map(|q| Qpn(low32(q))),
            addr: self.addr.load(Relaxed),
            to: self.to.load(Relaxed),
            len: self.len.load(Relaxed),
            access: Access::from_bits(low8(self.access.load(Relaxed))),
        };
        // The loads above come before this one: an unchanged number means none of them was late.
        fence(Acquire);
        (self.seq.load(Relaxed) == seq && region.stag.0 != 0).then_some((seq, region))
    }

    /// Writes a region into an empty slot.
    pub(super) fn set(&self, r: &Region) {
        let seq = self.enter();
        self.addr.store(r.addr, Relaxed);
        self.to.store(r.to, Relaxed);
        self.len.store(r.len, Relaxed);
        self.qpn.store(r.qpn.map_or(0, |q| u64::from(q.0) + 1), Relaxed);
        self.pd.store(r.pd.0, Relaxed);
        self.access.store(u32::from(r.access.bits()), Relaxed);
        self.stag.store(r.stag.0, Relaxed);
        self.leave(seq);
    }

    /// Empties the slot.
    pub(super) fn clear(&self) {
        let seq = self.enter();
        self.stag.store(0, Relaxed);
        self.leave(seq);
    }

    /// Empties the slot if `allow` says so of the very region it removes.
    pub(super) fn clear_if(
        &self,
        allow: impl FnOnce(&Region) -> Result<(), MrFault>,
    ) -> Result<(), MrFault> {
        let (seq, region) = self.read().ok_or(MrFault::InvalidStag)?;
        allow(&region)?;
        // Fails only when someone else changed the slot since: then the STag is gone already.
        self.seq
            .compare_exchange(seq, seq.wrapping_add(1), Acquire, Relaxed)
            .map_err(|_| MrFault::InvalidStag)?;
        fence(Release);
        self.stag.store(0, Relaxed);
        self.leave(seq);
        Ok(())
    }

    /// Takes the slot for writing. Registration is serialised by the table's mutex, so the only
    /// rival is `clear_if`, which leaves after two stores.
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

    fn leave(&self, seq: u64) {
        self.seq.store(seq.wrapping_add(2), Release);
    }
}

/// Stored from a `u32`, so nothing is lost.
#[expect(clippy::cast_possible_truncation)]
const fn low32(v: u64) -> u32 {
    v as u32
}

/// Stored from a `u8`, so nothing is lost.
#[expect(clippy::cast_possible_truncation)]
const fn low8(v: u32) -> u8 {
    v as u8
}
