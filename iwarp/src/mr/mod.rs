//! The STag table: which memory the peer and the local QPs may reach, and how.
//!
//! One table serves all threads. [`MrTable::check`] is on the path of every DDP segment, so it
//! takes no lock: a slot is a cache line of atomics guarded by a sequence number, and a reader that
//! sees the number change under it treats the slot as empty. That needs no retry: a slot changes
//! only when a registration appears (whose STag nobody can know yet) or goes away (whose STag is
//! no longer good).
//!
//! # Kinds of STags
//! A *region* is registered memory. Two more are STags without memory of their own, which are given a
//! part of a region, over and over, each time with another key: a *fast registration* (as a request
//! on the send queue) and a *window* of type 1 (bound by its owner, for all QPs of a PD) or type 2
//! (bound by a request, for one QP). They keep the slot of their region and its sequence number, and
//! are good while it has that number: with a region end all that derive from it, at once and without
//! a search. What they grant counts as a reference to the region. `mr::derive` has the rules. A fast
//! registration may name pages that do not lie together; a check gives one stretch of them at a time.
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
//! never gets the same index twice in a row. 0 is never an STag. The local and the remote key of a
//! region are the same. The key of a region is the table's choice, that of a fast registration or
//! window the consumer's.

mod derive;
mod pages;
mod pins;
mod slot;
#[cfg(test)]
mod tests;

pub use derive::{Bind, BindError, MAX_FAST_LEN, PAGE};
pub use pages::MAX_RUNS;
pub use pins::Pins;

use crate::{Access, MemRange, Pd, Qpn, Stag};
use core::sync::atomic::AtomicU64;
use heddle_base::{Random, Seed};
use pages::PageList;
use slot::{Region, Slot};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most regions one table can hold: leaves 12 random bits in each STag.
pub const MAX_SLOTS: usize = 1 << 20;

/// What an STag names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Registered memory.
    Region,
    /// A part of a region, registered by a request on a send queue.
    Fast,
    /// A part of a region, bound by its owner: for the peers of all QPs of a PD.
    Window,
    /// A part of a region, bound by a request on the send queue of the one QP that it is for.
    QpWindow,
}

impl Kind {
    const fn bits(self) -> u32 {
        match self {
            Kind::Region => 0,
            Kind::Fast => 1,
            Kind::Window => 2,
            Kind::QpWindow => 3,
        }
    }

    const fn from_bits(bits: u32) -> Kind {
        match bits & 3 {
            0 => Kind::Region,
            1 => Kind::Fast,
            2 => Kind::Window,
            _ => Kind::QpWindow,
        }
    }

    /// Whether it is for peers alone.
    const fn is_window(self) -> bool {
        matches!(self, Kind::Window | Kind::QpWindow)
    }
}

/// A registered memory region, or what derives from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrAttr {
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
    /// A fast registration of no octets, or of more than [`MAX_FAST_LEN`].
    #[error("a fast registration has 1 to {MAX_FAST_LEN} octets")]
    FastLen,
    /// Windows or fast registrations of the region are valid: they come first.
    #[error("{0} windows or fast registrations of the region are valid")]
    Bound(u32),
}

/// Why a use of an STag was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// Per slot of a region: what derives from it, in the lower half; see [`derive`](self::derive).
    bound: Box<[AtomicU64]>,
    /// Per slot: the memory of a fast registration that does not lie together.
    pages: Box<[PageList]>,
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
    /// Per slot: its latest STag, and what that is while the slot is taken (valid or not). The key of
    /// a fast registration or a window of a QP may have changed since.
    held: Vec<(Stag, Option<Kind>)>,
}

impl Owner {
    /// What `stag` is, if its slot is taken by it.
    fn kind(&self, index: u32, stag: Stag) -> Option<Kind> {
        let (held, kind) = self.held[index as usize];
        let same = match kind? {
            Kind::Region | Kind::Window => held == stag,
            Kind::Fast | Kind::QpWindow => held.same_index(stag),
        };
        kind.filter(|_| same)
    }
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
            bound: (0..n).map(|_| AtomicU64::new(0)).collect(),
            pages: (0..n).map(|_| PageList::default()).collect(),
            mask: n32 - 1,
            secret,
            owner: Mutex::new(Owner {
                random,
                free: (0..n32).collect(),
                held: vec![(Stag(0), None); n],
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
    ) -> Result<MrAttr, MrError> {
        self.insert(Region::plain(pd, None, [addr, to, len], access))
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
    ) -> Result<MrAttr, MrError> {
        self.insert(Region::plain(pd, Some(qpn), [addr, to, len], access))
    }

    fn insert(&self, mut region: Region) -> Result<MrAttr, MrError> {
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
            if stag.0 != 0 && !stag.same_index(owner.held[at].0) {
                break stag;
            }
        };
        owner.held[at] = (region.stag, Some(region.kind));
        let seq = self.slots[at].set(&region);
        self.forget_bound(index, seq);
        Ok(region.mr())
    }

    /// Takes a region back at once: [`retire`](MrTable::retire) and [`release`](MrTable::release).
    /// See the [module](self) for what still may touch its memory.
    pub fn deregister(&self, stag: Stag) -> Result<(), MrError> {
        self.retire(stag)?;
        self.release(stag)
    }

    /// Makes an STag useless, if it is not already, and gives its slot, which stays taken. What derives
    /// from the region is useless with it.
    pub fn retire(&self, stag: Stag) -> Result<u32, MrError> {
        let owner = self.owner();
        self.retire_in(&owner, stag)
    }

    /// As [`retire`](MrTable::retire), unless something that derives from the region is valid
    /// ([`MrError::Bound`]); then it stays as it is.
    pub fn retire_unbound(&self, stag: Stag) -> Result<u32, MrError> {
        let owner = self.owner();
        let index = self.index(stag);
        owner.kind(index, stag).ok_or(MrError::Unknown)?;
        self.close_unbound(index)?;
        self.retire_in(&owner, stag)
    }

    fn retire_in(&self, owner: &Owner, stag: Stag) -> Result<u32, MrError> {
        let index = self.index(stag);
        owner.kind(index, stag).ok_or(MrError::Unknown)?;
        let (seq, was) = self.slots[index as usize].clear();
        self.forget_bound(index, seq);
        if let Some(was) = was {
            self.unbind(&was);
        }
        Ok(index)
    }

    /// Gives the slot of a region to others. One that is not [retired](MrTable::retire) is retired.
    pub fn release(&self, stag: Stag) -> Result<(), MrError> {
        let mut owner = self.owner();
        let index = self.retire_in(&owner, stag)?;
        owner.held[index as usize].1 = None;
        owner.free.push(index);
        Ok(())
    }

    /// Makes an STag useless on behalf of the peer of `qpn` (Send with Invalidate). The slot stays
    /// taken until the owner calls [`deregister`](MrTable::deregister); a fast registration or window
    /// can be used again. Takes no lock.
    pub fn invalidate(&self, pd: Pd, qpn: Qpn, stag: Stag) -> Result<(), MrFault> {
        let slot = self.slot(stag);
        let (seq, r) = slot.read().ok_or(MrFault::InvalidStag)?;
        self.may_invalidate(&r, pd, qpn, stag)?;
        // Fails only when someone else changed the slot since: then the STag is gone already.
        slot.replace(seq, &Region { valid: false, ..r }, MrFault::InvalidStag, || Ok(()))?;
        self.unbind(&r);
        Ok(())
    }

    /// Whether [`invalidate`](MrTable::invalidate) would succeed now.
    pub fn check_invalidate(&self, pd: Pd, qpn: Qpn, stag: Stag) -> Result<(), MrFault> {
        let (_, region) = self.slot(stag).read().ok_or(MrFault::InvalidStag)?;
        self.may_invalidate(&region, pd, qpn, stag)
    }

    /// Checks a use of `len` bytes at tagged offset `to` by the QP `qpn` of `pd`, and gives the
    /// memory: all of it, or of a fast registration whose pages do not lie together as much as does from
    /// `to` on, though all is checked. Takes no lock. Where several things are wrong the first in the
    /// order of [`MrFault`] is told.
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
        match self.check_region((pd, qpn), stag, to, len, need) {
            Some(range) => Ok(range),
            None => self.check_closely((pd, qpn), stag, to, len, need),
        }
    }

    /// The same where the STag is that of a region, as most are. `None` says nothing:
    /// [`check`](MrTable::check) tells.
    #[inline]
    pub(crate) fn check_region(
        &self,
        user: (Pd, Qpn),
        stag: Stag,
        to: u64,
        len: u32,
        need: Access,
    ) -> Option<MemRange> {
        let index = self.index(stag);
        let addr = self.slots[index as usize].grant(user, stag, to, len, need)?;
        Some(MemRange::new(addr, len, index))
    }

    /// The same for what derives from a region, and for what is wrong.
    #[inline(never)]
    fn check_closely(
        &self,
        (pd, qpn): (Pd, Qpn),
        stag: Stag,
        to: u64,
        len: u32,
        need: Access,
    ) -> Result<MemRange, MrFault> {
        let slot = self.slot(stag);
        let (seq, r) = slot.read().ok_or(MrFault::InvalidStag)?;
        self.associated(&r, pd, qpn, stag)?;
        // A window is for peers: no local operation may use it, not even as a source.
        if !r.access.has(need) || (r.kind.is_window() && !need.is_remote()) {
            return Err(MrFault::Access);
        }
        let end = to.checked_add(u64::from(len)).ok_or(MrFault::ToWrap)?;
        // Registering has checked that neither sum wraps.
        if to < r.to || end > r.to + r.len {
            return Err(MrFault::Bounds);
        }
        let off = to - r.to;
        if r.runs > 0 {
            let found = self.pages[self.index(stag) as usize].find(r.runs, off);
            let (addr, room) = found.filter(|_| slot.is_still(seq)).ok_or(MrFault::InvalidStag)?;
            let len = u32::try_from(room).map_or(len, |room| room.min(len));
            return Ok(MemRange::new(addr, len, r.parent.slot));
        }
        let mr = if r.kind == Kind::Region { self.index(stag) } else { r.parent.slot };
        Ok(MemRange::new(r.addr + off, len, mr))
    }

    /// Whether an STag is good, and for this stream.
    fn associated(&self, r: &Region, pd: Pd, qpn: Qpn, stag: Stag) -> Result<(), MrFault> {
        if r.stag != stag || stag.0 == 0 || !self.is_good(r) {
            return Err(MrFault::InvalidStag);
        }
        if r.pd != pd || r.qpn.is_some_and(|q| q != qpn) {
            return Err(MrFault::NotAssociated);
        }
        Ok(())
    }

    fn may_invalidate(&self, r: &Region, pd: Pd, qpn: Qpn, stag: Stag) -> Result<(), MrFault> {
        self.associated(r, pd, qpn, stag)?;
        if r.access.has(Access::REMOTE_INVALIDATE) { Ok(()) } else { Err(MrFault::Access) }
    }

    /// STags there are now, invalid ones included.
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

    /// Calls `f` with every region, window and fast registration whose STag is valid.
    pub fn for_each(&self, mut f: impl FnMut(MrAttr)) {
        for r in self.slots.iter().filter_map(Slot::valid).filter(|r| self.is_good(r)) {
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
