//! STags for fast registrations, of one queue pair.
//!
//! Each STag of the pool shows a part of registered memory for one call: it is made valid by a request
//! on the send queue, ahead of the Send that tells the peer of it, and ends by a local invalidation or
//! by the peer's Send with Invalidate. Only then it is free for another call. Its key is another one
//! each time, so that a peer which uses an STag of a call that is over is refused and does not reach the
//! memory of a later one (until 256 registrations later, which is why the memory is invalid in between).
//!
//! The pool never grows: a call that finds it empty waits until registrations of others end.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use heddle_verbs::{Device, DeviceError, FastMr, Qp, Stag};

/// STags of one queue pair.
#[derive(Debug)]
pub struct FastPool {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots by the indices of their STags, which are above the key's 8 bits.
    by_index: HashMap<u32, usize>,
    /// Most octets that one shows.
    len: u32,
}

#[derive(Debug)]
struct Slot {
    fast: Source,
    key: u8,
    state: State,
}

/// Where STags come from.
#[derive(Debug)]
enum Source {
    Device(FastMr),
    /// Without a device.
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

/// Where an STag is between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// A peer may use it.
    Valid,
    /// A request to invalidate it is on the send queue.
    Ending,
}

/// What was said of an STag that is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("STag {:#x} is not valid", .0.0)]
pub struct NotValid(pub Stag);

impl FastPool {
    /// `count` STags for up to `len` octets each, for `qp` alone: they end with its connection.
    ///
    /// # Errors
    /// What the device says.
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
        // What was given back last is taken first: its entry in the STag table is in the cache.
        let free = (0..slots.len()).rev().collect();
        FastPool { slots, free, by_index, len }
    }

    /// Most octets of one registration.
    pub fn max_len(&self) -> u32 {
        self.len
    }

    /// STags in all.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// STags that are free.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// STags that `octets` in one piece need.
    pub fn needed(&self, octets: u32) -> usize {
        octets.div_ceil(self.len.max(1)) as usize
    }

    /// A free STag with another key than it had last; valid from the moment on that the request with it
    /// is posted. `None` when there is none.
    pub fn take(&mut self) -> Option<Stag> {
        let slot = self.slots.get_mut(self.free.pop()?)?;
        slot.key = slot.key.wrapping_add(1);
        slot.state = State::Valid;
        Some(slot.fast.stag(slot.key))
    }

    /// The request that makes `stag` invalid was posted.
    ///
    /// # Errors
    /// [`NotValid`]; it must not be posted then.
    pub fn invalidating(&mut self, stag: Stag) -> Result<(), NotValid> {
        let slot = self.find(stag, State::Valid)?;
        self.slots[slot].state = State::Ending;
        Ok(())
    }

    /// The request has completed: the STag is free.
    ///
    /// # Errors
    /// [`NotValid`].
    pub fn invalidated(&mut self, stag: Stag) -> Result<(), NotValid> {
        let slot = self.find(stag, State::Ending)?;
        self.free(slot);
        Ok(())
    }

    /// The peer has invalidated `stag` by the Send that was received: it is free. The worker lets a
    /// peer invalidate only what it may; whether it may invalidate this one *now* is to be seen here.
    ///
    /// # Errors
    /// [`NotValid`]: it is of no registration that the peer was told of.
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
