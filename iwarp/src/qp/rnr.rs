//! Messages of the peer's that find no receive, and wait for one ("receiver not ready").
//!
//! RFC 5041 (section 7.1) has them end the stream, and lets an implementation repair that by means of the
//! transport. So such a message may be left in the stream, or with the queue pair that is to hand it over, for
//! as long as the owner likes.

use super::QpContext;
#[cfg(doc)]
use super::config::QpConfig;
use crate::Msn;

/// Messages may wait.
const MAY_WAIT: u8 = 1;
/// One does.
const WAITS: u8 = 2;

/// What the owner of a queue pair keeps of a message that waits. The queue pair has room for it, and the
/// owner's own record of a connection has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RnrMark {
    /// The queue pair is on a list of those with such a message.
    Listed = 4,
    /// The message is to be tried again.
    Retried = 8,
}

/// All of it, in one octet: a connection has room for no more.
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
    /// Returns true if a message of the peer's waits for a receive.
    #[inline]
    pub const fn waits_for_receive(&self) -> bool {
        self.rnr.0 & WAITS != 0 && self.state.is_live()
    }

    /// The number of the next message that takes a receive, or of the one that it is taking.
    pub const fn receive_msn(&self) -> Msn {
        self.rq.msn
    }

    /// Has a message that waits for a receive be handled once more, when it is shown again.
    pub const fn end_rnr_wait(&mut self) {
        self.rnr.0 &= !WAITS;
    }

    /// From here on a message that finds no receive ends the stream, also one that waits now; as without
    /// [`QpConfig::rnr_wait`].
    pub const fn refuse_rnr(&mut self) {
        self.rnr.0 &= !MAY_WAIT;
    }

    /// Returns true if its receives come from a queue that is not its alone.
    pub const fn shares_receives(&self) -> bool {
        self.rq.shared.is_some()
    }

    /// Whether the owner has set a mark.
    #[inline]
    pub const fn has_mark(&self, mark: RnrMark) -> bool {
        self.rnr.0 & mark as u8 != 0
    }

    /// Sets a mark, or takes it away; whether it was there.
    pub const fn set_mark(&mut self, mark: RnrMark, on: bool) -> bool {
        let was = self.has_mark(mark);
        let bit = mark as u8;
        self.rnr.0 = if on { self.rnr.0 | bit } else { self.rnr.0 & !bit };
        was
    }
}
