//! The STag table; the [crate](crate) describes it.

mod derive;
mod pages;
mod slot;
#[cfg(test)]
mod tests;

use crate::MemRange;
use core::sync::atomic::AtomicU64;
use heddle_base::{Random, Seed};
use heddle_types::{Access, MrError, MrFault, Pd, Qpn, Stag};
use pages::PageList;
use slot::{Parent, Region, Slot};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The largest number of regions in one table. This limit leaves 12 random bits in each STag.
pub const MAX_SLOTS: usize = 1 << 20;

/// The kinds of memory that an STag names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory registered as a whole.
    Region,
    /// A part of a region, registered by a request on a send queue.
    Fast,
    /// A part of a region, bound by the region's owner, for the peers of all QPs of a PD.
    Window,
    /// A part of a region, bound by a request on the send queue of the one QP whose peer may use
    /// it.
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

    /// Returns true if only peers may use an STag of this kind.
    const fn is_window(self) -> bool {
        matches!(self, Kind::Window | Kind::QpWindow)
    }
}

/// A registered memory region, or an STag that derives from a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrAttr {
    /// The STag, for local SGEs and for the peer.
    pub stag: Stag,
    /// The protection domain of the STag.
    pub pd: Pd,
    /// The only QP that may use the STag, if it is bound to one.
    pub qpn: Option<Qpn>,
    /// Tagged offset of the first byte.
    pub to: u64,
    /// Length in bytes.
    pub len: u64,
    /// The rights of its users.
    pub access: Access,
}

/// The STag table of one RNIC. See the [crate](crate) for the guarantees that it gives.
#[derive(Debug)]
pub struct MrTable {
    slots: Box<[Slot]>,
    /// Per slot of a region: the count of valid STags that derive from it, in the lower half; see
    /// [`derive`](self::derive).
    bound: Box<[AtomicU64]>,
    /// Per slot: the pages of a fast registration whose memory is not contiguous.
    pages: Box<[PageList]>,
    /// `slots.len() - 1`; the length is a power of two.
    mask: u32,
    secret: u32,
    owner: Mutex<Owner>,
}

/// The data of the registering side, under the mutex.
#[derive(Debug)]
struct Owner {
    random: Random,
    free: Vec<u32>,
    /// Per slot: its latest STag, and its kind while the slot is taken (valid or not). The key of a
    /// fast registration or of a QP's window may have changed since.
    held: Vec<(Stag, Option<Kind>)>,
}

impl Owner {
    /// Returns the kind of `stag`, if it has taken its slot.
    fn kind(&self, index: u32, stag: Stag) -> Option<Kind> {
        let (held, kind) = self.held[index as usize];
        let same = match kind? {
            Kind::Region | Kind::Window => held == stag,
            Kind::Fast | Kind::QpWindow => held.same_index(stag),
        };
        kind.filter(|_| same)
    }
}

/// Memory that [`MrTable::check_rest`] has checked: the rest of a region, or of the part of a region
/// that an STag names which derives from it. It may be used for as long as both stay as they were,
/// which each use checks.
#[derive(Clone, Copy, Debug)]
pub struct CheckedRest {
    range: MemRange,
    /// Sequence number of the region's slot.
    seq: u64,
    /// The slot of the STag and its sequence number; those of the region where the STag is the
    /// region's own.
    named: (u32, u64),
}

impl CheckedRest {
    /// Memory of no region.
    pub const NONE: CheckedRest = CheckedRest { range: MemRange::EMPTY, seq: 1, named: (0, 1) };

    /// Returns the memory without what is beyond its first `len` bytes.
    #[must_use]
    pub fn limit(self, len: u32) -> CheckedRest {
        CheckedRest { range: self.range.slice(0, len).unwrap_or(self.range), ..self }
    }

    /// Takes the next `len` bytes. Returns `None` if fewer are left, or if the region may have
    /// changed since it was checked.
    #[inline]
    pub fn take(&mut self, mrs: &MrTable, len: u32) -> Option<MemRange> {
        let taken = self.range.slice(0, len)?;
        // An odd number is never that of a region.
        let is_still = |slot: u32, seq| mrs.slots.get(slot as usize).map(Slot::seq) == Some(seq);
        let (slot, seq) = self.named;
        let region = self.range.mr();
        if !is_still(region, self.seq) || (slot != region && !is_still(slot, seq)) {
            return None;
        }
        self.range = self.range.slice(len, self.range.len() - len)?;
        Some(taken)
    }
}

impl MrTable {
    /// Makes a table of `slots` regions, rounded up to a power of two and at most [`MAX_SLOTS`].
    pub fn new(seed: &Seed, slots: usize) -> MrTable {
        let n = slots.clamp(1, MAX_SLOTS).next_power_of_two();
        // The label is "STAG" in ASCII: the table's own stream of random numbers.
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

    /// Registers memory as [`register`](MrTable::register) does, for the QP `qpn` alone. No other
    /// stream can use the STag, so the caller may give the peer [`Access::REMOTE_INVALIDATE`].
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

    /// Unregisters a region at once: [`retire`](MrTable::retire) and [`release`](MrTable::release).
    /// See the [crate](crate) for the accesses that may still follow.
    pub fn deregister(&self, stag: Stag) -> Result<(), MrError> {
        self.retire(stag)?;
        self.release(stag)
    }

    /// Invalidates an STag, if it is still valid, and returns its slot, which stays taken. All
    /// STags that derive from the region become invalid with it.
    pub fn retire(&self, stag: Stag) -> Result<u32, MrError> {
        let owner = self.owner();
        self.retire_in(&owner, stag)
    }

    /// Retires an STag as [`retire`](MrTable::retire) does, unless a valid STag derives from the
    /// region ([`MrError::Bound`]); then the region stays as it is.
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

    /// Frees the slot of a region for other registrations, and [retires](MrTable::retire) the
    /// region if it is not retired yet.
    pub fn release(&self, stag: Stag) -> Result<(), MrError> {
        let mut owner = self.owner();
        let index = self.retire_in(&owner, stag)?;
        owner.held[index as usize].1 = None;
        owner.free.push(index);
        Ok(())
    }

    /// Invalidates an STag on behalf of the peer of `qpn` (Send with Invalidate). The slot stays
    /// taken until the owner calls [`deregister`](MrTable::deregister); a fast registration or
    /// window can be used again. Takes no lock.
    pub fn invalidate(&self, pd: Pd, qpn: Qpn, stag: Stag) -> Result<(), MrFault> {
        let slot = self.slot(stag);
        let (seq, r) = slot.read().ok_or(MrFault::InvalidStag)?;
        self.may_invalidate(&r, pd, qpn, stag)?;
        // This fails only when another thread has changed the slot since: then the STag is already
        // invalid.
        slot.replace(seq, &Region { valid: false, ..r }, MrFault::InvalidStag, || Ok(()))?;
        self.unbind(&r);
        Ok(())
    }

    /// Returns true if [`invalidate`](MrTable::invalidate) would succeed now.
    pub fn check_invalidate(&self, pd: Pd, qpn: Qpn, stag: Stag) -> Result<(), MrFault> {
        let (_, region) = self.slot(stag).read().ok_or(MrFault::InvalidStag)?;
        self.may_invalidate(&region, pd, qpn, stag)
    }

    /// Checks a use of `len` bytes at tagged offset `to` by the QP `qpn` of `pd`, and returns the
    /// memory. The result covers all `len` bytes, except in a fast registration whose pages are not
    /// contiguous: there it covers the contiguous bytes from `to` on, although the check covers
    /// all. Takes no lock. When several things are wrong, returns the first in the order of
    /// [`MrFault`].
    ///
    /// RFC 5040 and RFC 5041 forbid checking the STag of an access of no bytes: do not call this
    /// function for such an access.
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

    /// Checks as [`check`](MrTable::check) does, if the STag is that of a region, as most are.
    /// `None` decides nothing: the caller must then call [`check`](MrTable::check).
    #[inline]
    pub fn check_region(
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

    /// Returns the memory from `to` to the end of a region, or of the contiguous part of a region
    /// that an STag names which derives from it, for a user that goes through it piece by piece, as
    /// far as a range can be long. Returns `None` for memory that such a user has to check piece by
    /// piece: that of a page list, and of a refused use.
    #[inline(never)]
    pub fn check_rest(
        &self,
        user: (Pd, Qpn),
        stag: Stag,
        to: u64,
        need: Access,
    ) -> Option<CheckedRest> {
        let slot = self.index(stag);
        let Some((addr, len, seq)) = self.slots[slot as usize].grant_rest(user, stag, to, need)
        else {
            return self.check_derived(user, stag, to, need);
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Some(CheckedRest { range: MemRange::new(addr, len, slot), seq, named: (slot, seq) })
    }

    /// Returns the rest of the memory of an STag that derives from a region, if it is one piece. `None`
    /// decides nothing, as for [`check_region`](MrTable::check_region).
    fn check_derived(
        &self,
        user: (Pd, Qpn),
        stag: Stag,
        to: u64,
        need: Access,
    ) -> Option<CheckedRest> {
        let index = self.index(stag);
        let rest = self.slots[index as usize].grant_derived(user, stag, to, need)?;
        let Parent { slot, seq } = rest.parent;
        // The STag is good only as long as its region is.
        if self.slots.get(slot as usize)?.seq() != seq {
            return None;
        }
        let len = u32::try_from(rest.len).unwrap_or(u32::MAX);
        let range = MemRange::new(rest.addr, len, slot);
        Some(CheckedRest { range, seq, named: (index, rest.seq) })
    }

    /// Checks STags that derive from a region, and finds the fault of a refused use.
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
        // Only peers may use a window: no local operation may, not even as a source.
        if !r.access.has(need) || (r.kind.is_window() && !need.is_remote()) {
            return Err(MrFault::Access);
        }
        let end = to.checked_add(u64::from(len)).ok_or(MrFault::ToWrap)?;
        // The registration has checked that neither sum wraps.
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

    /// Checks that an STag is valid, and valid for this stream.
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

    /// Returns the number of STags, invalid ones included.
    pub fn len(&self) -> usize {
        self.slots.len() - self.owner().free.len()
    }

    /// Returns true if no slot is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of slots, which is the most regions that the table can hold.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Calls `f` with every region, window and fast registration whose STag is valid.
    pub fn for_each(&self, mut f: impl FnMut(MrAttr)) {
        for r in self.slots.iter().filter_map(Slot::valid).filter(|r| self.is_good(r)) {
            f(r.mr());
        }
    }

    /// Returns the slot of an STag, if the STag is one of this table's. The result is below
    /// [`capacity`](MrTable::capacity) for any other STag too.
    #[inline]
    pub fn index(&self, stag: Stag) -> u32 {
        ((stag.0 >> 8) ^ self.secret) & self.mask
    }

    #[inline]
    fn slot(&self, stag: Stag) -> &Slot {
        &self.slots[self.index(stag) as usize]
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        // Ignore poisoning: no code panics while it holds the lock with half-changed data.
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
