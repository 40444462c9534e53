//! The sending end of a worker.

use arrayvec::ArrayVec;

use super::SteerCounters;
use super::ring::{FrameReceiver, FrameSender};
use crate::queue::TxCounters;
use crate::{BURST, Mbuf, TxQueue};

/// The destination of a worker's frames.
#[derive(Debug)]
pub enum TxEnd {
    /// A queue of its own.
    Queue(TxQueue),
    /// A queue through which others send as well.
    Shared(Box<SharedTx>),
    /// A ring to the worker that has the queue.
    Relay(Box<Relay>),
}

impl From<TxQueue> for TxEnd {
    fn from(queue: TxQueue) -> TxEnd {
        TxEnd::Queue(queue)
    }
}

/// A queue, and the rings by which other workers' frames come to it.
#[derive(Debug)]
pub struct SharedTx {
    pub(super) queue: TxQueue,
    pub(super) inlets: Vec<FrameReceiver>,
    /// Frames of other workers that the port has not taken yet.
    pub(super) waiting: ArrayVec<Mbuf, BURST>,
    /// The ring whose turn it is.
    pub(super) first: usize,
    pub(super) counters: SteerCounters,
}

/// The way to another worker's queue.
#[derive(Debug)]
pub struct Relay {
    pub(super) ring: FrameSender,
    pub(super) multi_segs: bool,
    pub(super) cuts: u16,
    pub(super) counters: SteerCounters,
}

impl TxEnd {
    /// Sends frames from the front of `frames`; the others stay there. This function drops no frame
    /// for want of room: the worker that made the frames makes no more until there is some.
    #[inline]
    pub(crate) fn burst<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) {
        match self {
            TxEnd::Queue(queue) => {
                queue.burst(frames);
            }
            TxEnd::Shared(shared) => {
                shared.queue.burst(frames);
            }
            TxEnd::Relay(relay) => relay.send(frames),
        }
    }

    /// Returns true if frames of several segments go out as they are.
    #[inline]
    pub(crate) fn supports_multi_segs(&self) -> bool {
        match self {
            TxEnd::Queue(queue) => queue.supports_multi_segs(),
            TxEnd::Shared(shared) => shared.queue.supports_multi_segs(),
            TxEnd::Relay(relay) => relay.multi_segs,
        }
    }

    /// Returns the most segments of a frame that the port cuts into segments; 1 if it cuts none.
    pub(crate) fn cuts(&self) -> u16 {
        match self {
            TxEnd::Queue(queue) => queue.cuts(),
            TxEnd::Shared(shared) => shared.queue.cuts(),
            TxEnd::Relay(relay) => relay.cuts,
        }
    }

    pub(crate) fn counters(&self) -> TxCounters {
        match self {
            TxEnd::Queue(queue) => *queue.counters(),
            TxEnd::Shared(shared) => *shared.queue.counters(),
            TxEnd::Relay(_) => TxCounters::default(),
        }
    }

    pub(crate) fn steer_counters(&self) -> SteerCounters {
        match self {
            TxEnd::Queue(_) => SteerCounters::default(),
            TxEnd::Shared(shared) => shared.counters,
            TxEnd::Relay(relay) => relay.counters,
        }
    }

    /// Takes the frames of one more worker that has no queue.
    pub(super) fn serve(self, inlet: FrameReceiver) -> TxEnd {
        let mut shared = match self {
            TxEnd::Shared(shared) => shared,
            TxEnd::Queue(queue) => Box::new(SharedTx {
                queue,
                inlets: Vec::new(),
                waiting: ArrayVec::new(),
                first: 0,
                counters: SteerCounters::default(),
            }),
            TxEnd::Relay(_) => return self,
        };
        shared.inlets.push(inlet);
        TxEnd::Shared(shared)
    }

    /// Returns true if other workers send their frames through this end.
    pub(crate) fn serves_others(&self) -> bool {
        matches!(self, TxEnd::Shared(_))
    }

    /// Sends frames of other workers; returns true if there were any.
    #[inline]
    pub(crate) fn relay(&mut self) -> bool {
        match self {
            TxEnd::Shared(shared) => shared.relay(),
            TxEnd::Queue(_) | TxEnd::Relay(_) => false,
        }
    }
}

impl SharedTx {
    /// Sends at most a burst of each ring, so that no ring waits for another. Returns true if there
    /// were any frames.
    fn relay(&mut self) -> bool {
        let n = self.inlets.len();
        let mut busy = false;
        for at in 0..n {
            let inlet = &mut self.inlets[(self.first + at) % n];
            busy |= inlet.pop_into(&mut self.waiting, BURST) > 0;
            if !self.waiting.is_empty() {
                self.counters.tx_for_workers += self.queue.burst(&mut self.waiting) as u64;
            }
            if self.waiting.is_full() {
                break;
            }
        }
        self.first = if n > 0 { (self.first + 1) % n } else { 0 };
        busy
    }
}

impl Relay {
    #[inline]
    fn send<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) {
        if self.ring.is_deserted() {
            self.counters.steer_gone += frames.len() as u64;
            return Mbuf::free_bulk(frames);
        }
        self.counters.tx_relayed += self.ring.push_all(frames) as u64;
    }
}
