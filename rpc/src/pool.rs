//! STags for fast registrations, for one queue pair.
//!
//! Each STag of the pool gives access to a part of registered memory for one call. A request on the
//! send queue, ahead of the Send that announces the STag to the peer, makes the STag valid. A local
//! invalidation, or the peer's Send with Invalidate, ends that. Only then is the STag free for
//! another call. The STag gets another key each time, so that a peer that uses the STag of an
//! earlier call is refused and does not reach the memory of a later call. Keys repeat after 256
//! registrations, so the memory must also be invalid in between.
//!
//! The pool never grows: a call that finds the pool empty waits until other registrations end.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use heddle_verbs::{Device, DeviceError, FastMr, Qp, Stag};

/// The STags of one queue pair.
#[derive(Debug)]
pub struct FastPool {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots by the indices of their STags, which are the bits above the 8-bit key.
    by_index: HashMap<u32, usize>,
    /// The largest number of bytes that one STag covers.
    len: u32,
}

#[derive(Debug)]
struct Slot {
    fast: Source,
    key: u8,
    state: State,
}

/// The source of an STag.
#[derive(Debug)]
enum Source {
    Device(FastMr),
    /// A fixed number, for tests without a device.
    #[cfg(test)]
    Number(Stag),
}

impl Source {
    fn stag(&self, key: u8) -> Stag {
        match self {
            Source::Device(fast) => fast.stag(key),
            #[cfg(test)]
            Source::Number(stag) => stag.with_key(key),
        }
    }
}

/// The state of an STag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// A peer may use the STag.
    Valid,
    /// A request to invalidate the STag is on the send queue.
    Ending,
}

/// The error that an STag is not in the state that an operation requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("STag {:#x} is not valid", .0.0)]
pub struct NotValid(pub Stag);

impl FastPool {
    /// Allocates `count` STags for up to `len` bytes each, for `qp` alone: they end with its
    /// connection.
    ///
    /// # Errors
    /// Returns the error of the device.
    pub fn new(device: &Device, qp: &Qp, count: usize, len: u32) -> Result<FastPool, DeviceError> {
        let all: Result<Vec<_>, _> = (0..count)
            .map(|_| device.alloc_fast_mr_for(qp, len.into()).map(Source::Device))
            .collect();
        Ok(FastPool::of(all?, len))
    }

    fn of(sources: Vec<Source>, len: u32) -> FastPool {
        let slot = |fast| Slot { fast, key: 0, state: State::Free };
        let slots: Vec<_> = sources.into_iter().map(slot).collect();
        let index = |(number, slot): (usize, &Slot)| (slot.fast.stag(0).0 >> 8, number);
        let by_index = slots.iter().enumerate().map(index).collect();
        // The STag that was freed last is taken first, because its entry in the STag table is in
        // the cache.
        let free = (0..slots.len()).rev().collect();
        FastPool { slots, free, by_index, len }
    }

    /// Returns the largest number of bytes in one registration.
    pub fn max_len(&self) -> u32 {
        self.len
    }

    /// Returns the number of STags in the pool.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if the pool has no STags.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of free STags.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of STags that `bytes` bytes in one piece need.
    pub fn needed(&self, bytes: u32) -> usize {
        bytes.div_ceil(self.len.max(1)) as usize
    }

    /// Takes a free STag, with another key than before; the STag is valid from the time when the
    /// request with it is posted. Returns `None` when no STag is free.
    pub fn take(&mut self) -> Option<Stag> {
        let slot = self.slots.get_mut(self.free.pop()?)?;
        slot.key = slot.key.wrapping_add(1);
        slot.state = State::Valid;
        Some(slot.fast.stag(slot.key))
    }

    /// Records that the request which invalidates `stag` was posted.
    ///
    /// # Errors
    /// [`NotValid`]; the caller must not post the request then.
    pub fn invalidating(&mut self, stag: Stag) -> Result<(), NotValid> {
        let slot = self.find(stag, State::Valid)?;
        self.slots[slot].state = State::Ending;
        Ok(())
    }

    /// Records that the invalidation has completed: the STag is free.
    ///
    /// # Errors
    /// [`NotValid`].
    pub fn invalidated(&mut self, stag: Stag) -> Result<(), NotValid> {
        let slot = self.find(stag, State::Ending)?;
        self.free(slot);
        Ok(())
    }

    /// Records that the peer has invalidated `stag` by a received Send: the STag is free. The
    /// worker lets a peer invalidate only STags that it may invalidate at all; this method checks
    /// that the peer may invalidate this STag *now*.
    ///
    /// # Errors
    /// [`NotValid`]: the STag belongs to no registration that was announced to the peer.
    pub fn invalidated_by_peer(&mut self, stag: Stag) -> Result<(), NotValid> {
        let slot = self.find(stag, State::Valid)?;
        self.free(slot);
        Ok(())
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot].state = State::Free;
        self.free.push(slot);
    }

    fn find(&self, stag: Stag, state: State) -> Result<usize, NotValid> {
        let number = *self.by_index.get(&(stag.0 >> 8)).ok_or(NotValid(stag))?;
        let slot = self.slots.get(number).ok_or(NotValid(stag))?;
        let is = slot.state == state && slot.fast.stag(slot.key) == stag;
        if is { Ok(number) } else { Err(NotValid(stag)) }
    }
}
