//! Registered memory that messages and their items lie in.
//!
//! One region, registered once, from which buffers are taken and into which they go back. Peers reach
//! none of it by the region's own STag, which has no remote rights: what a peer is to reach is fast
//! registered, for one call and to the octet ([`pool`](crate::pool)).
//!
//! Peers and workers may write to registered memory at any time, so its octets are copied in and out
//! and never borrowed.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_verbs::{Access, Device, DeviceError, Mr, Pd, Sge};

/// Buffers begin at multiples of this: a cache line, so that two do not share one.
const ALIGN: usize = 64;

/// A region from which buffers are taken; clones are handles of the same one. It is deregistered when
/// the last handle and the last buffer are gone.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Arena>);

#[derive(Debug)]
struct Arena {
    mr: Mr,
    free: Mutex<FreeList>,
}

/// No buffer of this length is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {len} octets of registered memory in one piece are free")]
pub struct NoMemory {
    /// Octets that were asked for.
    pub len: usize,
}

/// Octets that are not all inside of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} octets at {off} are not inside a buffer of {room}")]
pub struct Outside {
    /// Where the first was to be.
    pub off: usize,
    /// How many.
    pub len: usize,
    /// Octets of the buffer.
    pub room: usize,
}

impl Memory {
    /// `len` octets of the device's memory, for queue pairs of `pd`.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(device: &Device, pd: Pd, len: usize) -> Result<Memory, DeviceError> {
        let access = Access::LOCAL_WRITE.with(Access::BIND);
        let mr = device.alloc_mr(pd, len, access)?;
        let free = Mutex::new(FreeList::new(mr.len()));
        Ok(Memory(Arc::new(Arena { mr, free })))
    }

    /// A buffer of `len` octets, whose contents are whatever was there before.
    ///
    /// # Errors
    /// [`NoMemory`]; buffers that are given back later may make room.
    pub fn take(&self, len: usize) -> Result<Buffer, NoMemory> {
        self.take_for(len, None)
    }

    /// A buffer of these octets.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn take_copy(&self, octets: &[u8]) -> Result<Buffer, NoMemory> {
        let buffer = self.take(octets.len())?;
        // It was taken for all of them.
        let inside = buffer.write(0, octets);
        debug_assert!(inside.is_ok());
        Ok(buffer)
    }

    /// As [`take`](Memory::take), within `budget` until the last handle of the buffer is gone.
    pub(crate) fn take_within(&self, budget: &Budget, len: usize) -> Result<Buffer, NoMemory> {
        self.take_for(len, Some(budget))
    }

    fn take_for(&self, len: usize, budget: Option<&Budget>) -> Result<Buffer, NoMemory> {
        let room = len.max(1).checked_next_multiple_of(ALIGN).ok_or(NoMemory { len })?;
        let charge = match budget {
            Some(budget) => Some(budget.charge(room).ok_or(NoMemory { len })?),
            None => None,
        };
        let off = self.0.free().take(room).ok_or(NoMemory { len })?;
        let block = Block { arena: self.0.clone(), off, room, _charge: charge };
        Ok(Buffer { block: Arc::new(block), off, len })
    }

    /// Octets that are in no buffer, in however many pieces.
    pub fn available(&self) -> usize {
        self.0.free().available()
    }

    /// Octets in all.
    pub fn len(&self) -> usize {
        self.0.mr.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.mr.is_empty()
    }

    /// Whether a buffer was taken from here: another region may be of another protection domain.
    pub(crate) fn has(&self, buffer: &Buffer) -> bool {
        Arc::ptr_eq(&self.0, &buffer.block.arena)
    }
}

impl Arena {
    fn free(&self) -> MutexGuard<'_, FreeList> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stretches that are free, by offset; neighbors are one. First fit: buffers live as long as calls, so
/// what is taken early comes back early.
#[derive(Debug)]
struct FreeList(BTreeMap<usize, usize>);

impl FreeList {
    fn new(len: usize) -> FreeList {
        FreeList(BTreeMap::from([(0, len / ALIGN * ALIGN)]))
    }

    fn available(&self) -> usize {
        self.0.values().sum()
    }

    fn take(&mut self, room: usize) -> Option<usize> {
        let (&off, &len) = self.0.iter().find(|&(_, &len)| len >= room)?;
        self.0.remove(&off);
        if len > room {
            self.0.insert(off + room, len - room);
        }
        Some(off)
    }

    fn give(&mut self, mut off: usize, mut room: usize) {
        if let Some(after) = self.0.remove(&(off + room)) {
            room += after;
        }
        if let Some((&before, &len)) = self.0.range(..off).next_back()
            && before + len == off
        {
            (off, room) = (before, len + room);
        }
        self.0.insert(off, room);
    }
}

/// How much of a memory one connection may have, with all that its application has not given back.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    used: Arc<AtomicUsize>,
    max: usize,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Budget {
        Budget { used: Arc::default(), max }
    }

    fn charge(&self, octets: usize) -> Option<Charge> {
        let more = |used: usize| used.checked_add(octets).filter(|&sum| sum <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Charge { used: self.used.clone(), octets })
    }
}

/// Octets of a budget that are used as long as it lives.
struct Charge {
    used: Arc<AtomicUsize>,
    octets: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.octets, Ordering::Relaxed);
    }
}

/// What a buffer and its parts share; given back when the last of them is gone.
struct Block {
    arena: Arc<Arena>,
    off: usize,
    room: usize,
    _charge: Option<Charge>,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.free().give(self.off, self.room);
    }
}

/// A buffer in registered memory, or a part of one. Clones and parts are of the same octets, which go
/// back to their [`Memory`] when the last of them is gone; a call keeps a clone as long as its peer
/// could reach them.
#[derive(Clone)]
pub struct Buffer {
    block: Arc<Block>,
    /// Of the region.
    off: usize,
    len: usize,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} at {})", self.len, self.off)
    }
}

impl Buffer {
    /// Its octets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `octets` to `off`.
    ///
    /// # Errors
    /// [`Outside`]; nothing was written then.
    pub fn write(&self, off: usize, octets: &[u8]) -> Result<(), Outside> {
        let at = self.inside(off, octets.len())?;
        self.block.arena.mr.write(at, octets);
        Ok(())
    }

    /// Copies octets from `off` on over `out`.
    ///
    /// # Errors
    /// [`Outside`]; `out` is as it was then.
    pub fn read(&self, off: usize, out: &mut [u8]) -> Result<(), Outside> {
        let at = self.inside(off, out.len())?;
        self.block.arena.mr.read(at, out);
        Ok(())
    }

    /// A copy of all its octets.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len];
        self.block.arena.mr.read(self.off, &mut out);
        out
    }

    /// `len` of its octets from `off` on.
    ///
    /// # Errors
    /// [`Outside`].
    pub fn part(&self, off: usize, len: usize) -> Result<Buffer, Outside> {
        let off = self.inside(off, len)?;
        Ok(Buffer { block: self.block.clone(), off, len })
    }

    /// Where it is, for a work request.
    pub(crate) fn sge(&self) -> Sge {
        self.block.arena.mr.sge(self.off, self.len)
    }

    /// Offset in the region of what is at `off` here.
    fn inside(&self, off: usize, len: usize) -> Result<usize, Outside> {
        match off.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.off + off),
            _ => Err(Outside { off, len, room: self.len }),
        }
    }
}
