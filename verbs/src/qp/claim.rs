//! Says whether a connection has a queue pair.

use heddle_base::sync::atomic::{AtomicBool, Ordering};
use heddle_types::Qpn;

/// The part of a queue pair that says whether a connection has it. A thread that follows the
/// connection holds this part and not the queue pair: the thread could briefly hold the last handle
/// of the queue pair, and would then destroy the queue pair while holding its own locks.
#[derive(Debug)]
pub(crate) struct Claim {
    qpn: Qpn,
    /// The queue pair is in a connection, or about to be.
    claimed: AtomicBool,
    /// The connection is over, and the application has got the event, or is about to get it.
    over: AtomicBool,
    /// The application has asked for the queue pair's end: the queue pair has no other connection
    /// until it is reset.
    failing: AtomicBool,
    /// A worker has been ordered to flush the queue pair without a connection.
    flushing: AtomicBool,
}

impl Claim {
    pub(super) fn new(qpn: Qpn) -> Claim {
        let no = || AtomicBool::new(false);
        Claim { qpn, claimed: no(), over: no(), failing: no(), flushing: no() }
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Claims the queue pair for a connection. Returns true if no connection had it before.
    pub(super) fn take(&self) -> bool {
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// See [`Qp::unclaim`](super::Qp::unclaim).
    pub(crate) fn give_back(&self) {
        if !self.is_failing() {
            self.claimed.store(false, Ordering::Release);
        }
    }

    pub(super) fn is_taken(&self) -> bool {
        self.claimed.load(Ordering::Acquire)
    }

    /// See [`Qp::set_over`](super::Qp::set_over).
    pub(crate) fn set_over(&self) {
        self.over.store(true, Ordering::Release);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(super) fn set_failing(&self) {
        self.failing.store(true, Ordering::Release);
        self.claimed.store(true, Ordering::Release);
    }

    /// Undoes `set_failing`. `claimed`: a connection had the queue pair before.
    pub(super) fn unset_failing(&self, claimed: bool) {
        self.failing.store(false, Ordering::Release);
        self.restore(claimed);
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    /// Notes that the caller orders a flush. Returns true if this is the first order.
    pub(super) fn begin_flush(&self) -> bool {
        !self.flushing.swap(true, Ordering::AcqRel)
    }

    /// Restores the claim to its value before [`take`](Claim::take).
    pub(super) fn restore(&self, claimed: bool) {
        self.claimed.store(claimed, Ordering::Release);
    }

    /// Resets the claim to that of a queue pair that has just been made.
    pub(super) fn clear(&self) {
        for flag in [&self.over, &self.failing, &self.flushing, &self.claimed] {
            flag.store(false, Ordering::Release);
        }
    }
}
