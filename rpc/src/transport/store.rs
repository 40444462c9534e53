//! The buffers of a connection, by the names that [`heddle_rpcrdma::conn`] uses.

use std::sync::Arc;

use heddle_rpcrdma::conn;
use heddle_rpcrdma::conn::{BufferId, Purpose};
use heddle_rpcrdma::reduce::Piece;
use heddle_verbs as verbs;

use crate::memory::{self, Budget, Buffer, Memory, NoMemory, Share};
use crate::message::Message;

/// The buffer that a name stands for.
#[derive(Debug)]
pub(crate) enum Stored {
    /// Registered memory: data that this end sends, that peers read or write, or that RDMA Reads
    /// place.
    Registered(Buffer),
    /// Bytes that come in Sends, in their order, and are used nowhere else. The vector has room for
    /// all from the start.
    Heap(Vec<u8>),
    /// The bytes of a message without its separate items, which are copied into its Sends.
    Short(Arc<Message>),
}

impl Stored {
    /// Returns a copy of a range of bytes; `None` when the range is not inside the buffer.
    pub(crate) fn copy(&self, off: usize, len: usize) -> Option<Vec<u8>> {
        match self {
            Stored::Heap(bytes) => bytes.get(off..off.checked_add(len)?).map(<[u8]>::to_vec),
            Stored::Short(message) => message.part(off, len).map(|parts| parts.concat()),
            Stored::Registered(buffer) => {
                let mut bytes = memory::bytes(len);
                buffer.read(off, &mut bytes).ok().map(|()| bytes)
            }
        }
    }

    /// Returns the first `len` bytes.
    pub(crate) fn into_bytes(self, len: usize) -> Option<Vec<u8>> {
        match self {
            Stored::Heap(mut bytes) if bytes.len() >= len => {
                bytes.truncate(len);
                Some(bytes)
            }
            Stored::Heap(_) | Stored::Short(_) => None,
            Stored::Registered(buffer) => buffer.part(0, len).ok().map(|part| part.to_vec()),
        }
    }

    fn put(&mut self, off: usize, bytes: &[u8]) -> Option<()> {
        match self {
            Stored::Registered(buffer) => buffer.write(off, bytes).ok(),
            Stored::Heap(all) => {
                let has_room = bytes.len() <= all.capacity() - all.len();
                (off == all.len() && has_room).then(|| all.extend_from_slice(bytes))
            }
            Stored::Short(_) => None,
        }
    }
}

/// The buffers of one connection.
#[derive(Debug)]
pub(crate) struct Store {
    slots: Vec<Slot>,
    free: Vec<u32>,
    memory: Memory,
    /// Budget for the memory that peers cause this end to take.
    budget: Budget,
    /// Share of the peer's address, where there are several peers.
    share: Option<Share>,
    /// Length in bytes of the longest call for which there can ever be a buffer.
    call_max: u32,
    /// Number under which the connection waits for memory.
    number: u64,
    /// True if the connection has named bytes that do not exist: a defect.
    broken: bool,
}

#[derive(Debug, Default)]
struct Slot {
    /// Counts the uses of the slot, so that an old name is not taken for a new name.
    generation: u32,
    stored: Option<Stored>,
}

const fn split(id: BufferId) -> (usize, u32) {
    ((id.0 & 0xffff_ffff) as usize, (id.0 >> 32) as u32)
}

impl Store {
    /// Creates the store of a connection. The store takes memory for peers within `budget` and
    /// `share`, in turn with other connections by `number`.
    pub(crate) fn new(memory: Memory, budget: Budget, share: Option<Share>, number: u64) -> Store {
        let call_max = u32::try_from(memory.call_max(&budget)).unwrap_or(u32::MAX);
        let (slots, free) = (Vec::new(), Vec::new());
        Store { slots, free, memory, budget, share, call_max, number, broken: false }
    }

    /// Returns the share of the memory that the peer's address has.
    pub(crate) fn share(&self) -> Option<&Share> {
        self.share.as_ref()
    }

    /// Stops waiting for memory.
    pub(crate) fn leave(&self) {
        self.memory.leave(self.number);
    }

    /// Gives a name to a buffer.
    pub(crate) fn put(&mut self, stored: Stored) -> BufferId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            // A connection has a few buffers for each call under way, so the index fits.
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(slot) = self.slots.get_mut(index as usize) else { return BufferId(u64::MAX) };
        slot.generation = slot.generation.wrapping_add(1);
        slot.stored = Some(stored);
        BufferId(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// Puts the bytes of a message that was to go in Sends into `memory`, under the same name, for
    /// the peer will read them there. Does nothing for other buffers.
    ///
    /// # Errors
    /// [`NoMemory`] for the bytes.
    pub(crate) fn promote(&mut self, id: BufferId, memory: &Memory) -> Result<(), NoMemory> {
        let share = self.share.clone();
        let Some(stored) = self.get_mut(id) else { return Ok(()) };
        let Stored::Short(message) = stored else { return Ok(()) };
        let buffer = memory.take_for_reply(share.as_ref(), message.own_len())?;
        // The buffer has room for all of the bytes, so the writes fit.
        let inside = buffer
            .write(0, message.header())
            .and_then(|()| buffer.write(message.header().len(), message.body().bytes()));
        debug_assert!(inside.is_ok());
        *stored = Stored::Registered(buffer);
        Ok(())
    }

    /// Removes a buffer.
    pub(crate) fn remove(&mut self, id: BufferId) -> Option<Stored> {
        let (index, generation) = split(id);
        let slot = self.slots.get_mut(index).filter(|s| s.generation == generation)?;
        let stored = slot.stored.take()?;
        self.free.push(u32::try_from(index).ok()?);
        Some(stored)
    }

    fn get(&self, id: BufferId) -> Option<&Stored> {
        let (index, generation) = split(id);
        self.slots.get(index).filter(|s| s.generation == generation)?.stored.as_ref()
    }

    fn get_mut(&mut self, id: BufferId) -> Option<&mut Stored> {
        let (index, generation) = split(id);
        self.slots.get_mut(index).filter(|s| s.generation == generation)?.stored.as_mut()
    }

    /// Returns the place of a piece for a work request; `None` when the piece is not in registered
    /// memory.
    pub(crate) fn sge(&self, sge: &conn::Sge) -> Option<verbs::Sge> {
        let Some(Stored::Registered(buffer)) = self.get(sge.buffer) else { return None };
        let (off, len) = (usize::try_from(sge.offset).ok()?, sge.length as usize);
        buffer.part(off, len).ok().map(|part| part.sge())
    }

    /// Returns bytes of a message that are copied into its Send; `None` when the piece is of
    /// another kind.
    pub(crate) fn short(&self, sge: &conn::Sge) -> Option<[&[u8]; 2]> {
        let Some(Stored::Short(message)) = self.get(sge.buffer) else { return None };
        message.part(usize::try_from(sge.offset).ok()?, sge.length as usize)
    }

    /// Appends a copy of a piece to `out`.
    pub(crate) fn gather(&self, sge: &conn::Sge, out: &mut Vec<u8>) -> Option<()> {
        let off = usize::try_from(sge.offset).ok()?;
        out.extend(self.get(sge.buffer)?.copy(off, sge.length as usize)?);
        Some(())
    }

    /// Returns true if the connection has named bytes that do not exist.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.leave();
    }
}

impl conn::Memory for Store {
    fn allocate(&mut self, purpose: Purpose, bytes: u32) -> Option<BufferId> {
        let len = bytes as usize;
        let stored = match purpose {
            Purpose::Call => {
                let taken =
                    self.memory.take_in_turn((&self.budget, self.share.as_ref()), self.number, len);
                Stored::Registered(taken.ok()?)
            }
            Purpose::Parts => {
                let taken = self.memory.take_within((&self.budget, self.share.as_ref()), len);
                Stored::Registered(taken.ok()?)
            }
            // An inline call is no longer than a Send, and there is one for each served call.
            Purpose::Inline => Stored::Heap(Vec::with_capacity(len)),
            // A reply is no longer than the connection's longest message, and there is one for each
            // call of this end.
            Purpose::Reply => Stored::Heap(Vec::with_capacity(len)),
        };
        Some(self.put(stored))
    }

    fn call_max(&self) -> u32 {
        self.call_max
    }

    fn write(&mut self, buffer: BufferId, offset: u32, bytes: &[u8]) {
        let written = self.get_mut(buffer).and_then(|s| s.put(offset as usize, bytes));
        self.broken |= written.is_none();
    }

    fn copy(&mut self, from: (BufferId, Piece), to: (BufferId, u32)) {
        let (source, Piece { offset, length }) = from;
        let bytes = self.get(source).and_then(|s| s.copy(offset as usize, length as usize));
        match bytes {
            Some(bytes) => self.write(to.0, to.1, &bytes),
            None => self.broken = true,
        }
    }

    fn free(&mut self, buffer: BufferId) {
        self.broken |= self.remove(buffer).is_none();
    }
}
