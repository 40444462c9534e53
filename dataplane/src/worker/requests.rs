//! The path of work requests from the rings of applications to the queue pairs.

use std::cell::RefCell;

use heddle_engine::{Engine, POST_TURN, Posted, PostedReceives, QueuePair, take_turn};
use heddle_rings::worker::WorkerQp;
use heddle_rings::{Broken, Entry, OnSend};
use heddle_types::{PostError, SendWr};

use super::Worker;
use super::queues::Queues;
use crate::rx::RxMbuf;

impl<E: Engine<Frame = RxMbuf>> Worker<E> {
    #[inline]
    pub(super) fn take_work_requests(&mut self) -> bool {
        let Worker { queues, ready, .. } = self;
        let turn = ready.len();
        queues.take_bells(|slot| ready.push_back(slot));
        if ready.is_empty() {
            return false;
        }
        self.take_ready(turn)
    }

    fn take_ready(&mut self, turn: usize) -> bool {
        let mut busy = false;
        // First the queue pairs that waited from the last turn, then those that rang; each once.
        for i in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            if i < turn
                && let Some(slot) = self.queues.slot(index)
            {
                slot.again = false;
            }
            if self.take_from(index)
                && let Some(slot) = self.queues.slot(index)
                && !std::mem::replace(&mut slot.again, true)
            {
                self.ready.push_back(index);
            }
            busy = true;
        }
        busy
    }

    /// Takes work requests from the rings of one queue pair, at most a turn of each; returns true
    /// if there may be more.
    pub(super) fn take_from(&mut self, index: usize) -> bool {
        let Worker { engine, queues, entry, watch, clock, .. } = self;
        let Some(slot) = queues.slot(index) else { return false };
        if slot.broken {
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
                slot.broken = true;
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
        let Some(slot) = queues.slot(of).filter(|slot| !slot.broken) else { return };
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
