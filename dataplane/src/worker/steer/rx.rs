//! The receiving end of a worker.

use arrayvec::ArrayVec;
use heddle_tcp::{Spread, Steer};

use super::SteerCounters;
use super::ring::{FrameReceiver, FrameSender};
use crate::queue::RxCounters;
use crate::{BURST, Mbuf, Mempool, RxQueue};

/// The source of a worker's frames.
#[derive(Debug)]
pub enum RxEnd {
    /// A queue, all of whose frames belong to the worker.
    Queue(RxQueue),
    /// A queue with frames for any worker of the port, rings from other workers, or both.
    Steered(Box<SteeredRx>),
}

impl From<RxQueue> for RxEnd {
    fn from(queue: RxQueue) -> RxEnd {
        RxEnd::Queue(queue)
    }
}

impl RxEnd {
    pub(crate) fn counters(&self) -> RxCounters {
        match self {
            RxEnd::Queue(queue) => *queue.counters(),
            RxEnd::Steered(s) => s.queue.as_ref().map(|q| *q.counters()).unwrap_or_default(),
        }
    }

    pub(crate) fn steer_counters(&self) -> SteerCounters {
        match self {
            RxEnd::Queue(_) => SteerCounters::default(),
            RxEnd::Steered(s) => s.counters,
        }
    }
}

/// The receiving end of a worker that has no queue of its own, or shares its queue with others.
#[derive(Debug)]
pub struct SteeredRx {
    pub(super) queue: Option<RxQueue>,
    pub(super) spread: Spread,
    /// Whether the frames of the queue may belong to any worker, and only this worker hands them
    /// on.
    pub(super) by_software: bool,
    /// By number of the worker; none for the worker itself, and if it has no queue.
    pub(super) outlets: Vec<Option<Outlet>>,
    pub(super) inlets: Vec<FrameReceiver>,
    /// The pool for copies of frames that all workers get.
    pub(super) pool: Mempool,
    /// Frames that came out of the queue and that the worker has not looked at yet, in reverse
    /// order.
    pub(super) taken: ArrayVec<Mbuf, BURST>,
    /// The ring that the next turn looks at first.
    pub(super) first: usize,
    pub(super) counters: SteerCounters,
}

/// The way to another worker.
#[derive(Debug)]
pub(super) struct Outlet {
    ring: FrameSender,
    /// Frames for that worker, from the burst in progress.
    staged: ArrayVec<Mbuf, BURST>,
}

impl Outlet {
    pub(super) fn new(ring: FrameSender) -> Outlet {
        Outlet { ring, staged: ArrayVec::new() }
    }

    fn stage(&mut self, frame: Mbuf) {
        // A burst gives each worker no more frames than the burst has.
        let staged = self.staged.try_push(frame);
        debug_assert!(staged.is_ok());
    }

    fn send(&mut self, counters: &mut SteerCounters) {
        if self.staged.is_empty() {
            return;
        }
        if self.ring.is_deserted() {
            counters.steer_gone += self.staged.len() as u64;
        } else {
            counters.rx_steered += self.ring.push_all(&mut self.staged) as u64;
            counters.steer_full += self.staged.len() as u64;
        }
        Mbuf::free_bulk(&mut self.staged);
    }
}

impl SteeredRx {
    pub(crate) fn queue(&self) -> Option<&RxQueue> {
        self.queue.as_ref()
    }

    /// Returns true if other workers get frames from here that no other worker would give them.
    pub(crate) fn feeds_others(&self) -> bool {
        self.queue.is_some() && self.by_software
    }

    /// Fills `out`, which must be empty, with up to `most` received frames of this worker's own,
    /// and hands others on. Returns true if there was any frame.
    #[inline(never)]
    pub(crate) fn receive(&mut self, out: &mut ArrayVec<Mbuf, BURST>, most: usize) -> bool {
        let most = most.min(out.capacity());
        // With a queue as well, rings get half of the room at most, so that neither starves the
        // other.
        let share = if self.queue.is_some() { most.div_ceil(2) } else { most };
        let passed_on = self.take_passed_on(out, share);
        passed_on | self.take_received(out, most)
    }

    fn take_passed_on(&mut self, out: &mut ArrayVec<Mbuf, BURST>, most: usize) -> bool {
        let (mut got, n) = (0, self.inlets.len());
        for at in 0..n {
            let inlet = &mut self.inlets[(self.first + at) % n];
            got += inlet.pop_into(out, most.saturating_sub(got));
        }
        self.first = if n > 0 { (self.first + 1) % n } else { 0 };
        self.counters.rx_from_workers += got as u64;
        got > 0
    }

    /// Takes frames from the queue until `out` has `most` frames; returns true if there were any.
    fn take_received(&mut self, out: &mut ArrayVec<Mbuf, BURST>, most: usize) -> bool {
        let Some(queue) = &mut self.queue else { return false };
        if self.taken.is_empty() {
            if queue.burst(&mut self.taken) == 0 {
                return false;
            }
            // The rule looks at bytes of the frames.
            for f in &self.taken {
                f.prefetch_head();
            }
            for f in &self.taken {
                f.prefetch();
            }
            self.taken.reverse();
        }
        while out.len() < most
            && let Some(frame) = self.taken.pop()
        {
            match self.spread.steer(frame.data(), frame.tag().is_some()) {
                Steer::Own => out.push(frame),
                Steer::Other(worker) => match self.outlets.get_mut(usize::from(worker)) {
                    Some(Some(outlet)) => outlet.stage(frame),
                    _ => out.push(frame),
                },
                Steer::All => {
                    for outlet in self.outlets.iter_mut().flatten() {
                        // A received frame belongs to its worker alone: others get copies.
                        match frame.copy(&self.pool) {
                            Some(copy) => outlet.stage(copy),
                            None => self.counters.steer_no_mbuf += 1,
                        }
                    }
                    out.push(frame);
                }
            }
        }
        for outlet in self.outlets.iter_mut().flatten() {
            outlet.send(&mut self.counters);
        }
        true
    }
}
