//! The work that a connection has its driver do.

use super::Connection;
use super::memory::Sge;
use super::negotiate::Hello;
use crate::segment::{Handle, Segment};

impl Connection {
    /// Returns true if [`poll_work`](Connection::poll_work) may return work: since it last returned
    /// none, something has happened that can bring work.
    pub fn may_have_work(&self) -> bool {
        self.stirred
    }

    /// Returns true if there is more to post than a GRANT, or will be when there are credits.
    pub(super) fn has_queued(&self) -> bool {
        let queues = [&self.ending, &self.reading, &self.replies, &self.queue];
        self.hello != Hello::Done
            || self.sending.is_some()
            || !self.unsent.is_empty()
            || queues.iter().any(|queue| !queue.is_empty())
    }
}

/// Names a call of this end, from [`call`](super::Connection::call) to the event that ends the
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

impl CallId {
    /// Returns a number below [`Config::calls`](super::Config::calls) that no other call under way
    /// has.
    pub const fn index(self) -> usize {
        self.slot as usize
    }
}

/// Names a call of the peer, from [`Event::Call`](super::Event::Call) to the event that ends the
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServedId {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

impl ServedId {
    /// Returns a number below [`Config::served_slots`](super::Config::served_slots) that no other
    /// call being served has.
    pub const fn index(self) -> usize {
        self.slot as usize
    }

    /// Encodes the id in 64 bits.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 16 | self.slot as u64
    }

    /// Decodes an id. Any bits are valid; the connection answers an id that names no call being
    /// served with [`ReplyRefused::NoCall`](super::ReplyRefused::NoCall).
    pub const fn from_bits(bits: u64) -> ServedId {
        let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
        let (slot, generation) = (u16::from_be_bytes([e, f]), u32::from_be_bytes([a, b, c, d]));
        ServedId { slot, generation }
    }
}

/// The operation that the peer may perform on a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The peer may read the region by RDMA Read.
    RemoteRead,
    /// The peer may write the region by RDMA Write.
    RemoteWrite,
}

/// A piece of memory to be registered under one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The memory: at most [`Config::registration_max`](super::Config::registration_max) bytes.
    pub memory: Sge,
    /// The only operation that the peer may perform on the memory.
    pub access: Access,
}

/// Names a work request; the driver returns the name in
/// [`handle_completion`](super::Connection::handle_completion).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkId(pub(crate) u64);

impl WorkId {
    /// Encodes the id in the 64 bits of a work request's name.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Decodes the id that a completion returns. Any bits are valid; the connection ignores an id
    /// that names no work request under way.
    pub const fn from_bits(bits: u64) -> WorkId {
        WorkId(bits)
    }
}

/// A work request to post to the send queue, in the order in which `poll_work` returns them. Each
/// one except [`Work::Register`] is one signaled work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work<'a> {
    /// Fast registrations, unsignaled, which precede the Send that announces them to the peer.
    /// Before the driver asks for more work it answers with
    /// [`registered`](super::Connection::registered) or
    /// [`not_registered`](super::Connection::not_registered), for all regions or none.
    Register {
        /// The call that owns the memory.
        call: CallId,
        /// The memory to register, each region under a handle of its own.
        regions: &'a [Region],
    },
    /// A Send of the first `header` bytes of the buffer that the driver lent to
    /// [`poll_work`](super::Connection::poll_work), followed by `payload`.
    Send {
        /// Name of the work request.
        id: WorkId,
        /// Length of the header in bytes.
        header: usize,
        /// The pieces that the Send gathers after the header.
        payload: &'a [Sge],
        /// The handle for a Send with Invalidate; `None` for a plain Send.
        invalidate: Option<Handle>,
    },
    /// An RDMA Read.
    Read {
        /// Name of the work request.
        id: WorkId,
        /// The sink: a part of a buffer that [`Memory::allocate`](super::Memory::allocate) gave.
        to: Sge,
        /// The source in the peer's memory, as long as the sink.
        from: Segment,
    },
    /// An RDMA Write.
    Write {
        /// Name of the work request.
        id: WorkId,
        /// The pieces that the Write gathers.
        from: &'a [Sge],
        /// The sink in the peer's memory, as long as the source.
        to: Segment,
    },
    /// The local invalidation of a handle. The driver must carry out the invalidation before it
    /// reports the completion.
    Invalidate {
        /// Name of the work request.
        id: WorkId,
        /// The handle that was registered.
        handle: Handle,
    },
}
