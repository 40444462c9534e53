//! The queues of frames that belong to no connection.
//!
//! Each kind has a bound of its own: answers that one kind of stranger causes do not keep the stack
//! from answering another kind, and least of all from address resolution, without which no frame
//! goes.

use std::collections::VecDeque;

use super::frame::TxFrame;

/// Kinds, in the order in which the stack sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// Questions and answers of ARP and of neighbor discovery.
    Neighbor,
    /// RST for segments of no connection.
    Reset,
    /// ICMP echo replies.
    Echo,
    /// UDP datagrams to peers of connections.
    Datagram,
    /// UDP datagrams that answer strangers.
    Stranger,
}

/// The most frames of each kind that wait.
pub(super) const MAX_EACH: usize = 64;

/// A queue for each kind.
#[derive(Debug)]
pub(super) struct ControlQueue {
    kinds: [VecDeque<TxFrame>; 5],
    len: usize,
}

impl Default for ControlQueue {
    fn default() -> Self {
        ControlQueue { kinds: core::array::from_fn(|_| VecDeque::with_capacity(MAX_EACH)), len: 0 }
    }
}

impl ControlQueue {
    /// Queues a frame. Returns false when too many frames of its kind wait.
    pub(super) fn push(&mut self, kind: Control, frame: TxFrame) -> bool {
        let queue = &mut self.kinds[kind as usize];
        let fits = queue.len() < MAX_EACH;
        if fits {
            queue.push_back(frame);
            self.len += 1;
        }
        fits
    }

    /// Returns the next frame to send.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<TxFrame> {
        if self.is_empty() { None } else { self.pop_first() }
    }

    #[inline(never)]
    fn pop_first(&mut self) -> Option<TxFrame> {
        let frame = self.kinds.iter_mut().find_map(VecDeque::pop_front);
        self.len -= usize::from(frame.is_some());
        frame
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }
}
