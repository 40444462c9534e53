//! The STag table: which memory the peer and the local QPs may reach, and how.
//!
//! One table serves all threads. [`MrTable::check`] is on the path of every DDP segment, so it
//! takes no lock: a slot is a cache line of atomics guarded by a sequence number, and a reader that
//! sees the number change under it treats the slot as empty. That needs no retry: a slot changes
//! only when a registration appears (whose STag nobody can know yet) or goes away (whose STag is
//! no longer good).
//!
//! # What deregistration guarantees
//! After [`MrTable::deregister`] or [`MrTable::invalidate`] has returned, no check that starts
//! later finds the region. A worker that had its [`MemRange`] *before* may still be copying, and
//! FPDUs that TCP has not seen acknowledged refer to the memory until they are. Whoever reuses
//! or unmaps the memory must first let every worker pass a quiescent point (return from its poll)
//! and then wait until no worker's [`Pins`] count a reference to it. That holds for a region that the
//! peer invalidated too. [`MrTable::retire`] and [`MrTable::release`] keep the slot taken meanwhile,
//! so that what is counted is the old region and no new one.
//!
//! # STags
//! 24 bits of index and 8 of key. The low bits of the index name the slot, hidden by a secret; all
//! other bits are random for each registration and slots are handed out in random order, so STags
//! are sparse and hard to guess (RFC 5042 section 6.2.1; it is no substitute for rights). A slot
//! never gets the same STag twice in a row. 0 is never an STag. The local and the remote key of a
//! region are the same.

mod pins;
mod slot;
#[cfg(test)]
mod tests;

pub use pins::Pins;

use crate::{Access, MemRange, Pd, Qpn, Stag};
use heddle_base::{Random, Seed};
use slot::{Region, Slot};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most regions one table can hold: leaves 12 random bits in each STag.
pub const MAX_SLOTS: usize = 1 << 20;

/// A registered memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// Its name, for local SGEs and for the peer.
    pub stag: Stag,
    /// Its protection domain.
    pub pd: Pd,
    /// The only QP that may use it, if it is bound to one.
    pub qpn: Option<Qpn>,
    /// Tagged offset of its first byte.
    pub to: u64,
    /// Bytes.
    pub len: u64,
    /// What it may be used for.
    pub access: Access,
}

/// Why a region could not be registered or taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MrError {
    /// Every slot is taken.
    #[error("no free memory region slot")]
    Full,
    /// The address or the tagged offset would run past 2^64.
    #[error("memory region wraps around")]
    Wrap,
    /// [`Access::REMOTE_INVALIDATE`] without binding the region to one QP.
    #[error("a region that several QPs share cannot be remotely invalidated")]
    SharedInvalidate,
    /// No region has this STag (any more).
    #[error("unknown STag")]
    Unknown,
}

/// Why a use of an STag was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MrFault {
    /// No region has it.
    #[error("invalid STag")]
    InvalidStag,
    /// It belongs to another protection domain or QP.
    #[error("STag not associated with the stream")]
    NotAssociated,
    /// It lacks a right.
    #[error("access rights violation")]
    Access,
    /// Tagged offset and length wrap past 2^64.
    #[error("tagged offset wraps")]
    ToWrap,
    /// Not all bytes lie inside.
    #[error("base or bounds violation")]
    Bounds,
}

/// The STag table of one RNIC. See the [module](self) for its guarantees.
#[derive(Debug)]
pub struct MrTable {
    slots: Box<[Slot]>,
    /// `slots.len() - 1`; the length is a power of two.
    mask: u32,
    secret: u32,
    owner: Mutex<Owner>,
}

/// The registering side, under the mutex.
#[derive(Debug)]
struct Owner {
    random: Random,
    free: Vec<u32>,
    /// Per slot: its latest STag and whether it is registered (also when remotely invalidated).
    held: Vec<(Stag, bool)>,
}

impl MrTable {
    /// A table of `slots` regions, rounded up to a power of two and at most [`MAX_SLOTS`].
    pub fn new(seed: &Seed, slots: usize) -> MrTable {
        let n = slots.clamp(1, MAX_SLOTS).next_power_of_two();
        let mut random = Random::new(&seed.derive(0x5354_4147));
        let secret = random.next_u32();
        let n32 = u32::try_from(n).unwrap_or(1 << 20);
        MrTable {
            slots: (0..n).map(|_| Slot::default()).collect(),
            mask: n32 - 1,
            secret,
            owner: Mutex::new(Owner {
                random,
                free: (0..n32).collect(),
                held: vec![(Stag(0), false); n],
            }),
        }
    }

    /// Registers `len` bytes at `addr` (an address of the [`Memory`](crate::Memory)) as tagged
    /// offsets `to..to + len`, for all QPs of `pd`.
    pub fn register(
        &self,
        pd: Pd,
        addr: u64,
        to: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr, MrError> {
        self.insert(Region { stag: Stag(0), pd, qpn: None, addr, to, len, access })
    }

    /// As [`register`](MrTable::register), for the QP `qpn` alone: no other stream can use the
    /// STag, and the peer may be given [`Access::REMOTE_INVALIDATE`].
    pub fn register_for_qp(
        &self,
        pd: Pd,
        qpn: Qpn,
        addr: u64,
        to: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr, MrError> {
        self.insert(Region { stag: Stag(0), pd, qpn: Some(qpn), addr, to, len, access })
    }

    fn insert(&self, mut region: Region) -> Result<Mr, MrError> {
        region.addr.checked_add(region.len).ok_or(MrError::Wrap)?;
        region.to.checked_add(region.len).ok_or(MrError::Wrap)?;
        if region.qpn.is_none() && region.access.has(Access::REMOTE_INVALIDATE) {
            return Err(MrError::SharedInvalidate);
        }
        let mut owner = self.owner();
        let n = owner.free.len() as u64;
        if n == 0 {
            return Err(MrError::Full);
        }
        let pick = usize::try_from(owner.random.below(n)).unwrap_or(0);
        let index = owner.free.swap_remove(pick);
        let at = index as usize;
        region.stag = loop {
            let r = owner.random.next_u32();
            let low = (index ^ self.secret) & self.mask;
            let stag = Stag(((r >> 8) & !self.mask | low) << 8 | r & 0xff);
            if stag.0 != 0 && stag != owner.held[at].0 {
                break stag;
            }
        };
        owner.held[at] = (region.stag, true);
        self.slots[at].set(&region);
        Ok(region.mr())
    }

    /// Takes a region back at once: [`retire`](MrTable::retire) and [`release`](MrTable::release).
    /// See the [module](self) for what still may touch its memory.
    pub fn deregister(&self, stag: Stag) -> Result<(), MrError> {
        self.retire(stag)?;
        self.release(stag)
    }

    /// Makes an STag useless, if it is not already, and gives its slot, which stays taken.
    pub fn retire(&self, stag: Stag) -> Result<u32, MrError> {
        let owner = self.owner();
        let index = self.index(stag);
        if owner.held[index as usize] != (stag, true) {
            return Err(MrError::Unknown);
        }
        self.slots[index as usize].clear();
        Ok(index)
    }

    /// Gives the slot of a region to others. One that is not [retired](MrTable::retire) is retired.
    pub fn release(&self, stag: Stag) -> Result<(), MrError> {
        let index = self.retire(stag)?;
        let mut owner = self.owner();
        // Two may release it at once; the slot is given back by the first.
        if owner.held[index as usize] != (stag, true) {
            return Err(MrError::Unknown);
        }
        owner.held[index as usize].1 = false;
        owner.free.push(index);
        Ok(())
    }

    /// Makes an STag useless on behalf of the peer of `qpn` (Send with Invalidate). The slot stays
    /// taken until the owner calls [`deregister`](MrTable::deregister). Takes no lock.
    pub fn invalidate(&self, pd: Pd, qpn: Qpn, stag: Stag) -> Result<(), MrFault> {
        self.slot(stag).clear_if(|r| may_invalidate(r, pd, qpn, stag))
    }

    /// Whether [`invalidate`](MrTable::invalidate) would succeed now.
    pub fn check_invalidate(&self, pd: Pd, qpn: Qpn, stag: Stag) -> Result<(), MrFault> {
        let region = self.slot(stag).get().ok_or(MrFault::InvalidStag)?;
        may_invalidate(&region, pd, qpn, stag)
    }

    /// Checks a use of `len` bytes at tagged offset `to` by the QP `qpn` of `pd`, and gives the
    /// memory. Takes no lock. Where several things are wrong the first in the order of
    /// [`MrFault`] is told.
    ///
    /// RFC 5040 and RFC 5041 forbid checking the STag of an access of no bytes: do not call it.
    #[inline]
    pub fn check(
        &self,
        pd: Pd,
        qpn: Qpn,
        stag: Stag,
        to: u64,
        len: u32,
        need: Access,
    ) -> Result<MemRange, MrFault> {
        let r = self.slot(stag).get().ok_or(MrFault::InvalidStag)?;
        associated(&r, pd, qpn, stag)?;
        if !r.access.has(need) {
            return Err(MrFault::Access);
        }
        let end = to.checked_add(u64::from(len)).ok_or(MrFault::ToWrap)?;
        // `insert` has checked that neither sum wraps.
        if to < r.to || end > r.to + r.len {
            return Err(MrFault::Bounds);
        }
        Ok(MemRange::new(r.addr + (to - r.to), len, self.index(stag)))
    }

    /// Regions registered now, remotely invalidated ones included.
    pub fn len(&self) -> usize {
        self.slots.len() - self.owner().free.len()
    }

    /// Whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Regions there can be.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Calls `f` with every region whose STag is valid.
    pub fn for_each(&self, mut f: impl FnMut(Mr)) {
        for r in self.slots.iter().filter_map(Slot::get) {
            f(r.mr());
        }
    }

    /// The slot an STag lies in, if it is one of this table's; below
    /// [`capacity`](MrTable::capacity) for any other too.
    #[inline]
    pub fn index(&self, stag: Stag) -> u32 {
        ((stag.0 >> 8) ^ self.secret) & self.mask
    }

    #[inline]
    fn slot(&self, stag: Stag) -> &Slot {
        &self.slots[self.index(stag) as usize]
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        // Nothing panics while it is held half-changed.
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[inline]
fn associated(r: &Region, pd: Pd, qpn: Qpn, stag: Stag) -> Result<(), MrFault> {
    if r.stag != stag || stag.0 == 0 {
        return Err(MrFault::InvalidStag);
    }
    if r.pd != pd || r.qpn.is_some_and(|q| q != qpn) {
        return Err(MrFault::NotAssociated);
    }
    Ok(())
}

fn may_invalidate(r: &Region, pd: Pd, qpn: Qpn, stag: Stag) -> Result<(), MrFault> {
    associated(r, pd, qpn, stag)?;
    if r.access.has(Access::REMOTE_INVALIDATE) { Ok(()) } else { Err(MrFault::Access) }
}
