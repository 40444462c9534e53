//! The path of work requests from the rings of applications to the queue pairs.

use std::cell::RefCell;
use std::collections::VecDeque;

use heddle_engine::{Engine, POST_TURN, Posted, PostedReceives, QueuePair, Step, take_turn};
use heddle_rings::worker::WorkerQp;
use heddle_rings::{Broken, Entry, OnSend};
use heddle_types::{PostError, SendWr};

use super::Worker;
use super::ahead::{GROUP, fetch_qp};
use super::queues::Queues;
use crate::rx::RxMbuf;

/// Queue pairs whose requests one turn takes. The state of so many stays in the cache until the turn
/// sends what they have posted, and frames wait no longer for a turn because many others have rung.
const QPS: usize = 64;

/// Requests that a turn takes of all queue pairs together while there are several shares: enough
/// for a burst of frames, and few enough that no share waits long for the turns of others.
const FAIR_POSTS: u64 = 4 * POST_TURN as u64;

/// Stands in the queue for the queue pairs that wait for the turn of their share. No slot has this
/// index.
const OTHERS: usize = usize::MAX;

/// Slots of queue pairs that wait for a turn, each once.
#[derive(Debug)]
pub(super) struct Waiting {
    queue: VecDeque<usize>,
    /// A bit for each slot that is in the queue, or waits for the turn of its share.
    queued: Box<[u64]>,
}

impl Waiting {
    pub(super) fn with_capacity(conns: usize) -> Waiting {
        let queued = vec![0; conns.div_ceil(64)].into();
        Waiting { queue: VecDeque::with_capacity(conns + 1), queued }
    }

    /// Notes that a slot waits; returns false if it does already.
    #[inline]
    fn mark(&mut self, slot: usize) -> bool {
        let Some(bits) = self.queued.get_mut(slot / 64) else { return false };
        let before = *bits;
        *bits |= 1 << (slot % 64);
        *bits != before
    }

    /// Notes that a slot waits no more.
    #[inline]
    fn unmark(&mut self, slot: usize) {
        if let Some(bits) = self.queued.get_mut(slot / 64) {
            *bits &= !(1 << (slot % 64));
        }
    }

    /// Puts a slot at the end, unless it waits already.
    #[inline]
    fn push(&mut self, slot: usize) {
        if self.mark(slot) {
            self.queue.push_back(slot);
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<usize> {
        let slot = self.queue.pop_front()?;
        self.unmark(slot);
        Some(slot)
    }
}

impl<E: Engine<Frame = RxMbuf>> Worker<E> {
    #[inline]
    pub(super) fn take_work_requests(&mut self) -> bool {
        let Worker { queues, ready, .. } = self;
        queues.take_bells(|slot| ready.push(slot));
        if ready.queue.is_empty() {
            return false;
        }
        if queues.shares.are_several() {
            return self.take_fairly();
        }
        self.take_ready();
        true
    }

    /// Takes requests in turns of the shares, until all are taken or the worker has taken
    /// [`FAIR_POSTS`]. Each of a share's queue pairs has a turn before one of them has another.
    #[inline(never)]
    fn take_fairly(&mut self) -> bool {
        let Worker { queues, ready, fair, .. } = self;
        for index in ready.queue.drain(..).filter(|&index| index != OTHERS) {
            fair.push(queues.shares.lane(index), index);
        }
        let mut left = FAIR_POSTS;
        let mut busy = false;
        let looks = self.engine.is_wide();
        if looks {
            for (i, step) in Step::ALL.into_iter().enumerate() {
                for index in self.fair.first((Step::ALL.len() - 1 - i) * GROUP) {
                    fetch_qp(&self.engine, &self.queues, index, step);
                }
            }
        }
        while left > 0 {
            if looks {
                self.fetch_fairly();
            }
            let Some((index, _)) = self.fair.pop(&self.queues.shares, None) else { break };
            self.ready.unmark(index);
            let before = self.taken(index);
            let more = self.take_from(index);
            let cost = 1 + u64::from(self.taken(index).wrapping_sub(before));
            self.fair.charge(&self.queues.shares, cost);
            left = left.saturating_sub(cost);
            if more && self.ready.mark(index) {
                self.fair.push(self.queues.shares.lane(index), index);
            }
            busy = true;
        }
        if !self.fair.is_empty() {
            self.ready.queue.push_back(OTHERS);
        }
        busy
    }

    /// Takes all steps of the look ahead, each at the queue pair that is so far from its turn.
    #[inline]
    fn fetch_fairly(&self) {
        for (i, step) in Step::ALL.into_iter().enumerate() {
            if let Some(index) = self.fair.ahead((Step::ALL.len() - i) * GROUP - 1) {
                fetch_qp(&self.engine, &self.queues, index, step);
            }
        }
    }

    /// Returns the running count of requests that were taken from both queues of a queue pair.
    fn taken(&mut self, index: usize) -> u32 {
        self.queues.slot(index).map_or(0, |slot| {
            let taken = slot.qp.taken();
            taken.sq.wrapping_add(taken.rq)
        })
    }

    /// Takes requests of the queue pairs that wait, of each once and of at most [`QPS`].
    #[inline(never)]
    fn take_ready(&mut self) {
        let n = self.ready.queue.len().min(QPS);
        let looks = n > 1 && self.engine.is_wide();
        if looks {
            for (i, step) in Step::ALL.into_iter().enumerate() {
                for at in 0..(Step::ALL.len() - 1 - i) * GROUP {
                    self.fetch_waiting(at, step);
                }
            }
        }
        for _ in 0..n {
            if looks {
                for (i, step) in Step::ALL.into_iter().enumerate() {
                    self.fetch_waiting((Step::ALL.len() - i) * GROUP - 1, step);
                }
            }
            let Some(index) = self.ready.pop() else { break };
            if self.take_from(index) {
                self.ready.push(index);
            }
        }
    }

    /// Takes a step of the look ahead at the queue pair that is at this place among those waiting.
    #[inline]
    fn fetch_waiting(&self, at: usize, step: Step) {
        if let Some(&index) = self.ready.queue.get(at) {
            fetch_qp(&self.engine, &self.queues, index, step);
        }
    }

    /// Takes work requests from the rings of one queue pair, at most a turn of each; returns true
    /// if there may be more.
    pub(super) fn take_from(&mut self, index: usize) -> bool {
        let Worker { engine, queues, entry, watch, clock, .. } = self;
        let Some(slot) = queues.slot(index) else { return false };
        if slot.qp.broken {
            return false;
        }
        let (conn, ends) = (slot.conn, &mut slot.qp);
        let taken = engine.post_with(conn, |qp| {
            // An application that finds its queue full rings to learn which requests were retired
            // in silence.
            let retired = qp.retired();
            ends.retire(retired.sq, retired.rq);
            let before = ends.outstanding().0;
            let more = take_turn(qp, &mut Rings { ends, entry }, POST_TURN);
            ends.give_blocks();
            let outstanding = ends.outstanding().0;
            if outstanding > before && watch.is_due() {
                let until = qp.retired().sq.wrapping_add(outstanding);
                watch.follow(conn.index(), until, clock.now());
            }
            more
        });
        match taken {
            Ok(Ok(more)) => more,
            // The connection is over: this turn delivers its end and flushes the posted requests.
            Err(_) => false,
            Ok(Err(e)) => {
                slot.qp.broken = true;
                match e {
                    Broken::Overrun => self.counters.wr_overruns += 1,
                    _ => self.counters.wr_broken += 1,
                }
                self.engine.abort(conn);
                false
            }
        }
    }
}

/// The rings of a queue pair, and the place to which the worker copies an entry.
struct Rings<'w> {
    ends: &'w mut WorkerQp,
    entry: &'w mut Entry,
}

impl<Q: QueuePair> Posted<Q> for Rings<'_> {
    type Broken = Broken;

    #[inline(always)]
    fn take_recvs(&mut self, qp: &mut Q, most: usize) -> Result<usize, Broken> {
        let mut taken = 0;
        while taken < most
            && let Some(posted) = self.ends.take_recv(self.entry, |wr| qp.post_recv(wr))?
        {
            taken += 1;
            posted.map_err(|_| Broken::Overrun)?;
        }
        Ok(taken)
    }

    #[inline(always)]
    fn has_send(&mut self) -> Result<bool, Broken> {
        self.ends.has_send()
    }

    #[inline(always)]
    fn owes_recvs(&self) -> bool {
        self.ends.owes_recvs()
    }

    #[inline(always)]
    fn take_sends(&mut self, qp: &mut Q, most: usize) -> Result<usize, Broken> {
        let mut taken = 0;
        while taken < most
            && let Some(posted) = self.ends.take_send(self.entry, PostTo(qp))?
        {
            taken += 1;
            posted.map_err(|_| Broken::Overrun)?;
        }
        Ok(taken)
    }
}

/// The receives that the turns of a worker have not taken, for messages that need them earlier.
#[derive(Debug)]
pub(super) struct NotTaken<'w>(RefCell<(&'w mut Queues, &'w mut Entry)>);

impl<'w> NotTaken<'w> {
    pub(super) fn new(queues: &'w mut Queues, entry: &'w mut Entry) -> NotTaken<'w> {
        NotTaken(RefCell::new((queues, entry)))
    }
}

impl<Q: QueuePair> PostedReceives<Q> for NotTaken<'_> {
    #[cold]
    fn post_to(&self, of: usize, qp: &mut Q) {
        // Posting a receive handles no message, so there is no second borrow.
        let Ok(mut borrowed) = self.0.try_borrow_mut() else { return };
        let (queues, entry) = &mut *borrowed;
        let Some(slot) = queues.slot(of).filter(|slot| !slot.qp.broken) else { return };
        let ends = &mut slot.qp;
        // The next turn meets the same error in a broken queue, and ends the queue pair then.
        let _ = Rings { ends, entry }.take_recvs(qp, POST_TURN);
        slot.qp.give_blocks();
    }
}

/// Posts requests taken from a send queue.
struct PostTo<'q, Q>(&'q mut Q);

impl<Q: QueuePair> OnSend<Result<(), PostError>> for PostTo<'_, Q> {
    #[inline(always)]
    fn take(self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.0.post_send(wr)
    }
}
