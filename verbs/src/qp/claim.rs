//! Says whether a connection has a queue pair.

use heddle_base::sync::atomic::{AtomicBool, Ordering};

use heddle_iwarp::Qpn;

/// Part of a queue pair. A thread that follows its connection holds this part and not the queue pair: it could be the
/// last to hold that, if only for a moment, and would destroy it with whatever locks it has.
#[derive(Debug)]
pub(crate) struct Claim {
    qpn: Qpn,
    /// In a connection, or about to be.
    claimed: AtomicBool,
    /// Its connection is over and its application has been told, or is about to be.
    over: AtomicBool,
    /// Its application has asked for its end: it has no other connection until it is reset.
    failing: AtomicBool,
    /// A worker has been ordered to flush it without a connection.
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

    /// Takes it for a connection. Returns true if none had it before.
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

    /// `claimed`: it was in a connection before.
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

    /// It is as it was before it was [taken](Claim::take).
    pub(super) fn restore(&self, claimed: bool) {
        self.claimed.store(claimed, Ordering::Release);
    }

    /// It is as that of a queue pair that has just been made.
    pub(super) fn clear(&self) {
        for flag in [&self.over, &self.failing, &self.flushing, &self.claimed] {
            flag.store(false, Ordering::Release);
        }
    }
}
