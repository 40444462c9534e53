//! What a connection has its driver do.

use super::Connection;
use super::memory::Sge;
use super::negotiate::Hello;
use crate::segment::{Handle, Segment};

impl Connection {
    /// Whether [`poll_work`](Connection::poll_work) may give something: whether anything has happened that can
    /// bring work since it gave nothing.
    pub fn may_have_work(&self) -> bool {
        self.stirred
    }

    /// Whether there is more to post than a GRANT, or will be when there are credits.
    pub(super) fn has_queued(&self) -> bool {
        let queues = [&self.ending, &self.reading, &self.replies, &self.queue];
        self.hello != Hello::Done
            || self.sending.is_some()
            || !self.unsent.is_empty()
            || queues.iter().any(|queue| !queue.is_empty())
    }
}

/// A call of ours, from [`call`](super::Connection::call) to the event that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

impl CallId {
    /// A number below [`Config::calls`](super::Config::calls) that no other call under way has.
    pub const fn index(self) -> usize {
        self.slot as usize
    }
}

/// A call of the peer's, from [`Event::Call`](super::Event::Call) to the event that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServedId {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

impl ServedId {
    /// A number below [`Config::served_slots`](super::Config::served_slots) that no other call being served has.
    pub const fn index(self) -> usize {
        self.slot as usize
    }

    /// As 64 bits.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 16 | self.slot as u64
    }

    /// Of these bits. Any are an id; what is of no call being served is answered with
    /// [`ReplyRefused::NoCall`](super::ReplyRefused::NoCall).
    pub const fn from_bits(bits: u64) -> ServedId {
        let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
        let (slot, generation) = (u16::from_be_bytes([e, f]), u32::from_be_bytes([a, b, c, d]));
        ServedId { slot, generation }
    }
}

/// What the peer may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// RDMA Read.
    RemoteRead,
    /// RDMA Write.
    RemoteWrite,
}

/// Memory that is to be registered, by one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The memory: at most [`Config::registration_max`](super::Config::registration_max) octets.
    pub memory: Sge,
    /// What the peer may do with it, and nothing else.
    pub access: Access,
}

/// Names a work request; goes back in [`handle_completion`](super::Connection::handle_completion).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkId(pub(crate) u64);

impl WorkId {
    /// As the 64 bits of a work request's name.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Of the bits that a completion brings back. Any bits are an id; what is not of a work request
    /// under way is passed over.
    pub const fn from_bits(bits: u64) -> WorkId {
        WorkId(bits)
    }
}

/// What is to be posted to the send queue, in the order in which it is given. Each but
/// [`Work::Register`] is one signaled work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work<'a> {
    /// Fast registrations, unsignaled, in front of the Send that tells the peer of them. The driver
    /// answers before it asks for more work, by
    /// [`registered`](super::Connection::registered) or
    /// [`not_registered`](super::Connection::not_registered): all of them or none.
    Register {
        /// The call whose memory it is.
        call: CallId,
        /// What is to be registered, each by a handle of its own.
        regions: &'a [Region],
    },
    /// A Send of the first `header` octets of the buffer that was lent to
    /// [`poll_work`](super::Connection::poll_work), and of `payload` behind them.
    Send {
        /// Its name.
        id: WorkId,
        /// Octets of the header.
        header: usize,
        /// What is gathered behind it.
        payload: &'a [Sge],
        /// With Invalidate of this, if any.
        invalidate: Option<Handle>,
    },
    /// An RDMA Read.
    Read {
        /// Its name.
        id: WorkId,
        /// The sink: a part of a buffer that [`Memory::allocate`](super::Memory::allocate) gave.
        to: Sge,
        /// The source, of the peer's. As long as the sink.
        from: Segment,
    },
    /// An RDMA Write.
    Write {
        /// Its name.
        id: WorkId,
        /// What is gathered.
        from: &'a [Sge],
        /// The sink, of the peer's. As long as the source.
        to: Segment,
    },
    /// The local invalidation of a handle. It has to be carried out before it completes.
    Invalidate {
        /// Its name.
        id: WorkId,
        /// What was registered.
        handle: Handle,
    },
}
