//! The send and the receive queue: rings made once, walked by running indices.
//!
//! ```text
//!   SQ   freed ≤ reported ≤ head ≤ next ≤ tail       RQ   freed ≤ head ≤ tail
//!        slots up to  completed  oldest   next to  next       oldest  next
//!        `freed` can  up to here not      send     free       buffer  free
//!        be reused               complete
//! ```
//! Indices count from the beginning and wrap modulo 2^32; a slot is given back when the
//! application has polled the completion that retires it, which also bounds the completion queue.

use super::wr::{PostError, RecvWr, SendOp, SendWr, SgList};
use crate::Msn;
use heddle_base::StreamPos;

/// A ring of slots addressed by running index.
#[derive(Debug)]
pub(super) struct Ring<T> {
    slots: Box<[T]>,
    mask: u32,
}

impl<T: Clone> Ring<T> {
    pub(super) fn new(depth: u32, empty: T) -> Ring<T> {
        let n = depth.clamp(1, 1 << 24).next_power_of_two();
        Ring { slots: vec![empty; n as usize].into(), mask: n - 1 }
    }

    pub(super) fn at(&self, index: u32) -> &T {
        &self.slots[(index & self.mask) as usize]
    }

    pub(super) fn at_mut(&mut self, index: u32) -> &mut T {
        &mut self.slots[(index & self.mask) as usize]
    }
}

/// How far a send request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not all of it is in FPDUs.
    Queued,
    /// Its last byte is that before `end`; waits for the acknowledgment (Read: for the response).
    Sent,
    /// Done, but not yet reported: an earlier one is not.
    Done,
}

/// A send work request in its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wqe {
    pub(super) wr: SendWr,
    /// Bytes of the message.
    pub(super) len: u32,
    /// Of a Send or Read, once started.
    pub(super) msn: Msn,
    pub(super) progress: Progress,
    /// One past its last byte in our stream, once sent.
    pub(super) end: StreamPos,
}

/// The send queue.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) ring: Ring<Wqe>,
    depth: u32,
    pub(super) freed: u32,
    pub(super) reported: u32,
    pub(super) head: u32,
    pub(super) next: u32,
    pub(super) tail: u32,
}

impl SendQueue {
    pub(super) fn new(depth: u32) -> SendQueue {
        let empty = Wqe {
            wr: SendWr {
                wr_id: 0,
                op: SendOp::Send { solicited: false, invalidate: None },
                sges: SgList::EMPTY,
                signaled: false,
                fence: false,
            },
            len: 0,
            msn: Msn(0),
            progress: Progress::Queued,
            end: StreamPos::START,
        };
        SendQueue {
            ring: Ring::new(depth, empty),
            depth: depth.min(1 << 24),
            freed: 0,
            reported: 0,
            head: 0,
            next: 0,
            tail: 0,
        }
    }

    pub(super) fn push(&mut self, wr: &SendWr, len: u32) -> Result<(), PostError> {
        if self.tail.wrapping_sub(self.freed) >= self.depth {
            return Err(PostError::Full);
        }
        let slot = self.ring.at_mut(self.tail);
        slot.wr = *wr;
        slot.len = len;
        slot.progress = Progress::Queued;
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Whether something waits to be sent or is being sent.
    pub(super) fn has_next(&self) -> bool {
        self.next != self.tail
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }
}

/// A receive buffer in its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rqe {
    pub(super) wr_id: u64,
    pub(super) sges: SgList,
    /// Bytes it holds.
    pub(super) len: u32,
}

/// The receive queue.
#[derive(Debug)]
pub(super) struct RecvQueue {
    pub(super) ring: Ring<Rqe>,
    depth: u32,
    pub(super) freed: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
    /// Of the message that comes or is being received.
    pub(super) msn: Msn,
    /// Bytes of it that are in place.
    pub(super) received: u32,
}

impl RecvQueue {
    pub(super) fn new(depth: u32) -> RecvQueue {
        RecvQueue {
            ring: Ring::new(depth, Rqe { wr_id: 0, sges: SgList::EMPTY, len: 0 }),
            depth: depth.min(1 << 24),
            freed: 0,
            head: 0,
            tail: 0,
            msn: Msn(1),
            received: 0,
        }
    }

    pub(super) fn push(&mut self, wr: &RecvWr, len: u32) -> Result<(), PostError> {
        if self.tail.wrapping_sub(self.freed) >= self.depth {
            return Err(PostError::Full);
        }
        *self.ring.at_mut(self.tail) = Rqe { wr_id: wr.wr_id, sges: wr.sges, len };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    pub(super) fn front(&self) -> Option<&Rqe> {
        (self.head != self.tail).then(|| self.ring.at(self.head))
    }
}
