//! The registered memory that holds messages and their items.
//!
//! A memory is one region, registered once. Callers take buffers from the region and return them.
//! The region's own STag has no remote rights, so peers reach nothing by it: this end
//! fast-registers exactly the bytes that a peer may reach, for one call ([`pool`](crate::pool)).
//!
//! Peers and workers may write to registered memory at any time, so this module copies its bytes in
//! and out and never borrows them. The system moves the bytes of a file into registered memory, and
//! back to a file, without a copy in this process.

mod arena;
mod share;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_verbs::{Access, Device, DeviceError, Mr, Pd, Sge, Waker};

pub(crate) use self::arena::Lack;
use self::arena::{ALIGN, Ask, Charges, Kept, Returned, Room};
pub(crate) use self::share::{Budget, Share};

/// The fraction of a server's memory (one part in this many) that calls leave to results and
/// replies.
const RESULTS: usize = 4;

/// The fraction of a server's memory (one part in this many) that is kept for replies.
const REPLIES: usize = 16;

/// A region from which callers take buffers; clones are handles of the same region. The region is
/// unregistered when the last handle and the last buffer are dropped.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Arena>);

#[derive(Debug)]
struct Arena {
    mr: Mr,
    room: Mutex<Room>,
    returned: Returned,
    /// Number of calls that wait for room for their results.
    parked: AtomicUsize,
}

/// The error that no buffer of this length is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {len} bytes of registered memory in one piece are free")]
pub struct NoMemory {
    /// Requested length in bytes.
    pub len: usize,
}

/// The error that a range of bytes is not entirely inside a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {off} are not inside a buffer of {room}")]
pub struct Outside {
    /// Offset of the first byte.
    pub off: usize,
    /// Length of the range in bytes.
    pub len: usize,
    /// Length of the buffer in bytes.
    pub room: usize,
}

impl Memory {
    /// Registers `len` bytes of the device's memory, for queue pairs of `pd`.
    ///
    /// # Errors
    /// Returns the error of the device.
    pub fn new(device: &Device, pd: Pd, len: usize) -> Result<Memory, DeviceError> {
        Memory::made(device, pd, len, Kept::default(), None)
    }

    /// Registers the memory of a server. `waker` is woken when there is memory again for waiting
    /// calls. Calls leave a part of the memory to results, and both leave another part to replies:
    /// an executed call must get its reply, however many calls wait to be executed.
    pub(crate) fn of_server(
        device: &Device,
        pd: Pd,
        len: usize,
        waker: Waker,
    ) -> Result<Memory, DeviceError> {
        let kept = Kept { replies: len / REPLIES, results: len / RESULTS };
        Memory::made(device, pd, len, kept, Some(waker))
    }

    fn made(
        device: &Device,
        pd: Pd,
        len: usize,
        kept: Kept,
        waker: Option<Waker>,
    ) -> Result<Memory, DeviceError> {
        let access = Access::LOCAL_WRITE.with(Access::BIND);
        let mr = device.alloc_mr(pd, len, access)?;
        let room = Mutex::new(Room::new(mr.len(), kept));
        Ok(Memory(Arc::new(Arena {
            mr,
            room,
            returned: Returned::new(waker),
            parked: AtomicUsize::new(0),
        })))
    }

    /// Takes a buffer of `len` bytes with arbitrary old contents. A server keeps a sixteenth of its
    /// memory for replies, and this method does not use that part.
    ///
    /// # Errors
    /// [`NoMemory`]; buffers that come back later may make room.
    pub fn take(&self, len: usize) -> Result<Buffer, NoMemory> {
        self.take_for(len, Ask::default())
    }

    /// Takes a buffer and fills it with these bytes.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn take_copy(&self, bytes: &[u8]) -> Result<Buffer, NoMemory> {
        let buffer = self.take(bytes.len())?;
        // The buffer has the length of `bytes`, so the write fits.
        let inside = buffer.write(0, bytes);
        debug_assert!(inside.is_ok());
        Ok(buffer)
    }

    /// Takes a buffer as [`take`](Memory::take) does, charged to `budget` and `share` until the
    /// last handle of the buffer is dropped.
    pub(crate) fn take_within(
        &self,
        (budget, share): (&Budget, Option<&Share>),
        len: usize,
    ) -> Result<Buffer, NoMemory> {
        self.take_for(len, Ask { budget: Some(budget), share, ..Ask::default() })
    }

    /// Takes a buffer for results as [`take`](Memory::take) does, charged to `share`. A call does
    /// not overtake calls that wait for room.
    pub(crate) fn take_for_results(&self, share: &Share, len: usize) -> Result<Buffer, NoMemory> {
        if self.0.parked.load(Ordering::Relaxed) > 0 {
            return Err(NoMemory { len });
        }
        self.take_for(len, Ask { share: Some(share), ..Ask::default() })
    }

    /// Takes a buffer for the results of a call that waits for room.
    ///
    /// # Errors
    /// Returns the reason why there is no buffer.
    pub(crate) fn take_for_parked(&self, share: &Share, len: usize) -> Result<Buffer, Lack> {
        self.ask(len, Ask { share: Some(share), waits: true, ..Ask::default() })
    }

    /// Sets the number of calls that wait for room, which other calls must not overtake.
    pub(crate) fn set_parked(&self, count: usize) {
        self.0.parked.store(count, Ordering::Relaxed);
    }

    /// Returns the length in bytes of the longest results that can ever get room.
    pub fn results_max(&self) -> usize {
        self.len().saturating_sub(self.for_replies()) / ALIGN * ALIGN
    }

    /// Takes a buffer as [`take_within`](Memory::take_within) does, for the connection with this
    /// number. A connection that finds no buffer waits, after those that wait already. A connection
    /// that has used up its own budget keeps no other connection waiting. A connection whose
    /// address has used up its share keeps no connection of another address waiting.
    pub(crate) fn take_in_turn(
        &self,
        (budget, share): (&Budget, Option<&Share>),
        number: u64,
        len: usize,
    ) -> Result<Buffer, NoMemory> {
        self.take_for(
            len,
            Ask { budget: Some(budget), share, turn: Some(number), ..Ask::default() },
        )
    }

    /// Takes a buffer as [`take`](Memory::take) does, also from the part that is kept for replies.
    pub(crate) fn take_for_reply(
        &self,
        share: Option<&Share>,
        len: usize,
    ) -> Result<Buffer, NoMemory> {
        self.take_for(len, Ask { is_reply: true, share, ..Ask::default() })
    }

    fn take_for(&self, len: usize, ask: Ask<'_>) -> Result<Buffer, NoMemory> {
        self.ask(len, ask).map_err(|_| NoMemory { len })
    }

    fn ask(&self, len: usize, ask: Ask<'_>) -> Result<Buffer, Lack> {
        let room = len.max(1).checked_next_multiple_of(ALIGN).ok_or(Lack::Own)?;
        let (taken, moved) = {
            let mut all = self.0.room();
            (all.take(room, ask), all.take_moved())
        };
        if moved {
            self.0.returned.tell();
        }
        let (off, charge) = taken?;
        let block = Block { arena: self.0.clone(), off, room, charge };
        Ok(Buffer { block: Arc::new(block), off, len })
    }

    /// Returns the length in bytes of the longest buffer that a connection can ever get for a call.
    pub(crate) fn call_max(&self, budget: &Budget) -> usize {
        self.0.room().call_max().min(budget.max) / ALIGN * ALIGN
    }

    /// Returns the number of bytes that are kept for replies.
    pub(crate) fn for_replies(&self) -> usize {
        self.0.room().for_replies()
    }

    /// Returns the connections that wait for memory, in the order of their turns.
    pub(crate) fn in_turn(&self) -> Vec<u64> {
        self.0.room().in_turn()
    }

    /// Removes the connection with this number from those that wait.
    pub(crate) fn leave(&self, number: u64) {
        // Connections after it may find memory that this connection did not.
        let moved = {
            let mut room = self.0.room();
            room.forget(number);
            room.take_moved()
        };
        if moved {
            self.0.returned.tell();
        }
    }

    /// Returns true if memory has come back or a waiting connection has made way, since the last
    /// call of this method and since a request found no memory.
    pub(crate) fn take_returned(&self) -> bool {
        self.0.returned.take()
    }

    /// Returns what [`take_returned`](Memory::take_returned) would, without resetting it.
    pub(crate) fn has_returned(&self) -> bool {
        self.0.returned.has()
    }

    /// Returns the number of bytes that are in no buffer, in however many pieces.
    pub fn available(&self) -> usize {
        self.0.room().available()
    }

    /// Returns the length of the region in bytes.
    pub fn len(&self) -> usize {
        self.0.mr.len()
    }

    /// Returns true if the region has length 0.
    pub fn is_empty(&self) -> bool {
        self.0.mr.is_empty()
    }

    /// Returns true if the buffer is from this region: another region may have another protection
    /// domain.
    pub(crate) fn has(&self, buffer: &Buffer) -> bool {
        Arc::ptr_eq(&self.0, &buffer.block.arena)
    }
}

impl Arena {
    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory that a buffer and its parts share; it goes back when the last of them is dropped.
struct Block {
    arena: Arc<Arena>,
    off: usize,
    room: usize,
    charge: Charges,
}

impl Drop for Block {
    fn drop(&mut self) {
        // The temporary lock is released before a thread is woken.
        let wanted = self.arena.room().give(self.off, self.room, std::mem::take(&mut self.charge));
        if wanted {
            self.arena.returned.tell();
        }
    }
}

/// A buffer in registered memory, or a part of one. Clones and parts share the same bytes, which go
/// back to their [`Memory`] when the last of them is dropped. A call keeps a clone as long as its
/// peer could reach the bytes.
#[derive(Clone)]
pub struct Buffer {
    block: Arc<Block>,
    /// Offset in the region.
    off: usize,
    len: usize,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} at {})", self.len, self.off)
    }
}

impl Buffer {
    /// Returns the length of the buffer in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` into the buffer at offset `off`.
    ///
    /// # Errors
    /// [`Outside`]; nothing was written then.
    pub fn write(&self, off: usize, bytes: &[u8]) -> Result<(), Outside> {
        let at = self.inside(off, bytes.len())?;
        self.block.arena.mr.write(at, bytes);
        Ok(())
    }

    /// Copies bytes from offset `off` on to `out`.
    ///
    /// # Errors
    /// [`Outside`]; `out` is then unchanged.
    pub fn read(&self, off: usize, out: &mut [u8]) -> Result<(), Outside> {
        let at = self.inside(off, out.len())?;
        self.block.arena.mr.read(at, out);
        Ok(())
    }

    /// Has the system read up to `len` bytes of `file`, from its offset `at` on, into the buffer at
    /// `off`, without a copy in between. Returns the number of bytes read; 0 at the end of the
    /// file.
    ///
    /// # Errors
    /// Returns the errors of `pread(2)`; `InvalidInput` when the range is not inside the buffer.
    pub fn write_from_file(
        &self,
        off: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> io::Result<usize> {
        let off = self.inside(off, len).map_err(invalid)?;
        self.block.arena.mr.write_from_file(off, len, file, at)
    }

    /// Has the system write up to `len` bytes from `off` on to `file`, at its offset `at`, without
    /// a copy in between. Returns the number of bytes written.
    ///
    /// # Errors
    /// Returns the errors of `pwrite(2)`; `InvalidInput` when the range is not inside the buffer.
    pub fn read_to_file(
        &self,
        off: usize,
        len: usize,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> io::Result<usize> {
        let off = self.inside(off, len).map_err(invalid)?;
        self.block.arena.mr.read_to_file(off, len, file, at)
    }

    /// Returns a copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = bytes(self.len);
        self.block.arena.mr.read(self.off, &mut out);
        out
    }

    /// Returns the part of `len` bytes from `off` on.
    ///
    /// # Errors
    /// [`Outside`].
    pub fn part(&self, off: usize, len: usize) -> Result<Buffer, Outside> {
        let off = self.inside(off, len)?;
        Ok(Buffer { block: self.block.clone(), off, len })
    }

    /// Returns the place of the buffer for a work request.
    pub(crate) fn sge(&self) -> Sge {
        self.block.arena.mr.sge(self.off, self.len)
    }

    /// Returns the offset in the region of the range of `len` bytes at `off` in this buffer.
    fn inside(&self, off: usize, len: usize) -> Result<usize, Outside> {
        match off.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.off + off),
            _ => Err(Outside { off, len, room: self.len }),
        }
    }
}

fn invalid(error: Outside) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// Returns a vector of `len` bytes that the caller will overwrite. A short vector is filled with
/// other bytes than zero, because `calloc`, which allocates zeros, takes longer than writing the
/// bytes.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    const LONG: usize = 64 << 10;
    if len >= LONG { vec![0; len] } else { vec![0xff; len] }
}
