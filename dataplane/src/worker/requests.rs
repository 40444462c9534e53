//! Work requests, from the rings of applications to the queue pairs.

use heddle_iwarp::{PostError, QpContext, SendWr};
use heddle_verbs::ring::{Broken, Entry, OnSend};
use heddle_verbs::worker::WorkerQp;

use super::Worker;

/// Work requests taken from one queue of a queue pair before the next has its turn.
const WR_TURN: usize = 64;

impl Worker {
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
        // Those that waited from the last turn first, then those that rang; each once.
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

    /// Takes work requests from the rings of one queue pair, at most a turn of each; whether there may
    /// be more.
    pub(super) fn take_from(&mut self, index: usize) -> bool {
        let Worker { rnic, queues, entry, watch, clock, .. } = self;
        let Some(slot) = queues.slot(index) else { return false };
        if slot.broken {
            return false;
        }
        let (conn, ends) = (slot.conn, &mut slot.qp);
        let taken = rnic.post_with(conn, |qp| {
            // An application that finds its queue full rings, to be told what was retired in silence.
            ends.retire(qp.sq_retired(), qp.rq_retired());
            let before = ends.outstanding().0;
            let more = take_wrs(qp, ends, entry);
            let outstanding = ends.outstanding().0;
            if outstanding > before && watch.is_due() {
                let until = qp.sq_retired().wrapping_add(outstanding);
                watch.follow(conn.index(), until, clock.now());
            }
            more
        });
        match taken {
            Ok(Ok(more)) => more,
            // The connection is over: its end is delivered in this turn and flushes what is posted.
            Err(_) => false,
            Ok(Err(e)) => {
                slot.broken = true;
                match e {
                    Broken::Overrun => self.counters.wr_overruns += 1,
                    _ => self.counters.wr_broken += 1,
                }
                self.rnic.abort(conn);
                false
            }
        }
    }
}

/// Posts what is taken from a send queue.
struct PostTo<'q>(&'q mut QpContext);

impl OnSend<Result<(), PostError>> for PostTo<'_> {
    #[inline(always)]
    fn take(self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.0.post_send(wr)
    }
}

/// Takes work requests from the rings of a queue pair, at most a turn of each; whether there may be
/// more.
#[inline]
fn take_wrs(qp: &mut QpContext, ends: &mut WorkerQp, entry: &mut Entry) -> Result<bool, Broken> {
    let (mut recvs, mut sends) = (0, 0);
    while recvs < WR_TURN
        && let Some(posted) = ends.take_recv(entry, |wr| qp.post_recv(wr))?
    {
        recvs += 1;
        posted.map_err(|_| Broken::Overrun)?;
    }
    while sends < WR_TURN
        && let Some(posted) = ends.take_send(entry, PostTo(qp))?
    {
        sends += 1;
        posted.map_err(|_| Broken::Overrun)?;
    }
    ends.give_blocks();
    Ok(recvs == WR_TURN || sends == WR_TURN)
}
