//! Messages of the peer that find no receive and wait for one ("receiver not ready").
//!
//! RFC 5041 (section 7.1) makes such a message end the stream, but lets an implementation use the
//! transport to avoid that. So the owner may leave such a message in the stream, or with the queue
//! pair that is to hand it over, for as long as it likes.

use super::QpContext;
#[cfg(doc)]
use super::config::QpConfig;
use crate::Msn;

/// Flag: messages may wait.
const MAY_WAIT: u8 = 1;
/// Flag: a message waits.
const WAITS: u8 = 2;

/// The owner's marks on a queue pair with a message that waits. The queue pair stores them because
/// the owner's own record of a connection has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RnrMark {
    /// The queue pair is on the owner's list of queue pairs with such a message.
    Listed = 4,
    /// The owner is to try the message again.
    Retried = 8,
}

/// All flags and marks in one byte: a connection has room for no more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rnr(u8);

impl Rnr {
    pub(super) const fn new(may_wait: bool) -> Rnr {
        Rnr(if may_wait { MAY_WAIT } else { 0 })
    }

    #[inline]
    pub(super) const fn may_wait(self) -> bool {
        self.0 & MAY_WAIT != 0
    }

    pub(super) const fn begin(&mut self) {
        self.0 |= WAITS;
    }
}

impl QpContext {
    /// Returns true if a message of the peer waits for a receive.
    #[inline]
    pub const fn waits_for_receive(&self) -> bool {
        self.rnr.0 & WAITS != 0 && self.state.is_live()
    }

    /// Returns the number of the next message that takes a receive, or of the message that is being
    /// received.
    pub const fn receive_msn(&self) -> Msn {
        self.rq.msn
    }

    /// Ends the wait of a message, so that the QP handles it again when the owner shows it again.
    pub const fn end_rnr_wait(&mut self) {
        self.rnr.0 &= !WAITS;
    }

    /// From now on a message that finds no receive ends the stream, also a message that waits now;
    /// the queue pair then behaves as without [`QpConfig::rnr_wait`].
    pub const fn refuse_rnr(&mut self) {
        self.rnr.0 &= !MAY_WAIT;
    }

    /// Returns true if the queue pair takes its receives from a shared queue.
    pub const fn shares_receives(&self) -> bool {
        self.rq.shared.is_some()
    }

    /// Returns true if the owner has set this mark.
    #[inline]
    pub const fn has_mark(&self, mark: RnrMark) -> bool {
        self.rnr.0 & mark as u8 != 0
    }

    /// Sets or clears a mark. Returns true if the mark was set before.
    pub const fn set_mark(&mut self, mark: RnrMark, on: bool) -> bool {
        let was = self.has_mark(mark);
        let bit = mark as u8;
        self.rnr.0 = if on { self.rnr.0 | bit } else { self.rnr.0 & !bit };
        was
    }
}
