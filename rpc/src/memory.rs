//! Registered memory that messages and their items lie in.
//!
//! One region, registered once, from which buffers are taken and into which they go back. Peers reach
//! none of it by the region's own STag, which has no remote rights: what a peer is to reach is fast
//! registered, for one call and to the octet ([`pool`](crate::pool)).
//!
//! Peers and workers may write to registered memory at any time, so its octets are copied in and out
//! and never borrowed. A file's get there, and from there into a file, without a copy of ours.

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

/// Of a server's memory calls leave this part to results and replies.
const RESULTS: usize = 4;

/// Of a server's memory this part is kept for replies.
const REPLIES: usize = 16;

/// A region from which buffers are taken; clones are handles of the same one. It is deregistered when
/// the last handle and the last buffer are gone.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Arena>);

#[derive(Debug)]
struct Arena {
    mr: Mr,
    room: Mutex<Room>,
    returned: Returned,
    /// Calls that wait for room for their results.
    parked: AtomicUsize,
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
        Memory::made(device, pd, len, Kept::default(), None)
    }

    /// The same of a server, which is woken when there is memory again for what waits. Calls leave a part of
    /// it to results, and both another to replies: a call that was carried out is to have its reply, however
    /// many wait to be.
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

    /// A buffer of `len` octets, whose contents are whatever was there before. Of a server's memory a
    /// sixteenth is kept for replies, which is not had in this way.
    ///
    /// # Errors
    /// [`NoMemory`]; buffers that are given back later may make room.
    pub fn take(&self, len: usize) -> Result<Buffer, NoMemory> {
        self.take_for(len, Ask::default())
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

    /// As [`take`](Memory::take), within `budget` and `share` until the last handle of the buffer is gone.
    pub(crate) fn take_within(
        &self,
        (budget, share): (&Budget, Option<&Share>),
        len: usize,
    ) -> Result<Buffer, NoMemory> {
        self.take_for(len, Ask { budget: Some(budget), share, ..Ask::default() })
    }

    /// As [`take`](Memory::take), within `share`, for results. A call passes none of those that wait.
    pub(crate) fn take_for_results(&self, share: &Share, len: usize) -> Result<Buffer, NoMemory> {
        if self.0.parked.load(Ordering::Relaxed) > 0 {
            return Err(NoMemory { len });
        }
        self.take_for(len, Ask { share: Some(share), ..Ask::default() })
    }

    /// The same for a call that waits.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn take_for_parked(&self, share: &Share, len: usize) -> Result<Buffer, Lack> {
        self.ask(len, Ask { share: Some(share), waits: true, ..Ask::default() })
    }

    /// Has calls know how many wait for room.
    pub(crate) fn set_parked(&self, count: usize) {
        self.0.parked.store(count, Ordering::Relaxed);
    }

    /// Bytes of the longest results that there can ever be room for.
    pub fn results_max(&self) -> usize {
        self.len().saturating_sub(self.for_replies()) / ALIGN * ALIGN
    }

    /// The same for the connection with this number. Who finds none waits, behind those that wait already;
    /// who has used up its own budget keeps nobody else waiting, and whose address has used up its share, none
    /// of other addresses.
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

    /// As [`take`](Memory::take), also of what is kept for replies.
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

    /// Octets of the longest buffer that a connection can ever have for a call.
    pub(crate) fn call_max(&self, budget: &Budget) -> usize {
        self.0.room().call_max().min(budget.max) / ALIGN * ALIGN
    }

    /// Octets that are kept for replies.
    pub(crate) fn for_replies(&self) -> usize {
        self.0.room().for_replies()
    }

    /// The connections that wait for memory, in the order of their turns.
    pub(crate) fn in_turn(&self) -> Vec<u64> {
        self.0.room().in_turn()
    }

    /// The connection with this number waits no more.
    pub(crate) fn leave(&self, number: u64) {
        // Those behind it may find what it did not.
        let moved = {
            let mut room = self.0.room();
            room.forget(number);
            room.take_moved()
        };
        if moved {
            self.0.returned.tell();
        }
    }

    /// Whether memory has come back, or who was in others' way has moved, since this was asked last and since
    /// somebody found none.
    pub(crate) fn take_returned(&self) -> bool {
        self.0.returned.take()
    }

    /// The same, and it can be asked again.
    pub(crate) fn has_returned(&self) -> bool {
        self.0.returned.has()
    }

    /// Octets that are in no buffer, in however many pieces.
    pub fn available(&self) -> usize {
        self.0.room().available()
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
    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a buffer and its parts share; given back when the last of them is gone.
struct Block {
    arena: Arc<Arena>,
    off: usize,
    room: usize,
    charge: Charges,
}

impl Drop for Block {
    fn drop(&mut self) {
        // The lock is free again before anybody is woken.
        let wanted = self.arena.room().give(self.off, self.room, std::mem::take(&mut self.charge));
        if wanted {
            self.arena.returned.tell();
        }
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

    /// Has the system read up to `len` octets of `file`, from its offset `at` on, to `off`, without a copy
    /// in between. How many it were; none at the end of the file.
    ///
    /// # Errors
    /// Those of `pread(2)`; `InvalidInput` when the buffer has not that many octets.
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

    /// Has the system write up to `len` octets from `off` on to `file`, at its offset `at`, without a copy
    /// in between. How many it were.
    ///
    /// # Errors
    /// Those of `pwrite(2)`; `InvalidInput` when the buffer has not that many octets.
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

    /// A copy of all its octets.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = octets(self.len);
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

fn invalid(error: Outside) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// So many octets, to be written over. Few are no zeros: `calloc`, which zeros are allocated by, takes longer
/// than to write them.
pub(crate) fn octets(len: usize) -> Vec<u8> {
    const LONG: usize = 64 << 10;
    if len >= LONG { vec![0; len] } else { vec![0xff; len] }
}
