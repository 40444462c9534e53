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
    /// Answers to handshakes for which no half-open connection has a frame due: SYN-ACKs with
    /// cookies, and answers to repeated segments. The stack takes them in turn with connections.
    Handshake,
}

/// The most frames of each kind that wait.
pub(super) const MAX_EACH: usize = 64;

/// A queue for each kind.
#[derive(Debug)]
pub(super) struct ControlQueue {
    kinds: [VecDeque<TxFrame>; 6],
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

    /// Returns the next frame to send, but none of a handshake.
    pub(super) fn pop(&mut self) -> Option<TxFrame> {
        let others = &mut self.kinds[..Control::Handshake as usize];
        let frame = others.iter_mut().find_map(VecDeque::pop_front);
        self.len -= usize::from(frame.is_some());
        frame
    }

    /// Returns the next frame of a handshake.
    pub(super) fn pop_handshake(&mut self) -> Option<TxFrame> {
        let frame = self.kinds[Control::Handshake as usize].pop_front();
        self.len -= usize::from(frame.is_some());
        frame
    }

    /// Returns the number of frames of a kind that wait.
    pub(super) fn waiting(&self, kind: Control) -> usize {
        self.kinds[kind as usize].len()
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
