//! The calls of a client that have not ended: which wait to be sent, which for their reply, and until
//! when. No connection and no clock: both are told to it.
//!
//! ```text
//!            send           reply, error
//!   Queued ────────▶ Sent ───────────────▶ Finished ──▶ taken by whoever made it
//!     ▲                │   │
//!     └── connection ──┘   └─ deadline, cancelled ──▶ Finished or gone; the connection is told
//!         lost
//! ```

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::rpc::Procedure;

use super::{CallError, Room};
use crate::body::Body;
use crate::message::Message;

/// What is sent, and where its reply may go.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) procedure: Procedure,
    pub(crate) message: Arc<Message>,
    /// `None` when there is no reply to come.
    pub(crate) room: Option<Room>,
}

#[derive(Debug)]
enum State {
    Queued,
    Sent,
    Finished(Result<Body, CallError>),
}

#[derive(Debug)]
struct Pending {
    outgoing: Outgoing,
    state: State,
    deadline: Instant,
    waker: Option<Waker>,
    /// Times that it was sent.
    sent: u32,
}

/// Calls that have not been taken.
#[derive(Debug)]
pub(crate) struct Calls {
    calls: HashMap<Xid, Pending>,
    /// Those to be sent, in order.
    queue: VecDeque<Xid>,
    /// When those that are not finished end.
    deadlines: BTreeSet<(Instant, Xid)>,
    /// Of calls that have ended, to be woken by whoever holds no lock.
    woken: Vec<Waker>,
    next: u32,
    max: usize,
}

impl Calls {
    /// At most `max` at a time; XIDs go on from `first`, which another client of the same host should
    /// not have.
    pub(crate) fn new(max: usize, first: Xid) -> Calls {
        let (calls, queue, deadlines, woken) = Default::default();
        Calls { calls, queue, deadlines, woken, next: first.0, max }
    }

    /// An XID that no call has.
    ///
    /// # Errors
    /// [`CallError::TooMany`].
    pub(crate) fn reserve(&mut self) -> Result<Xid, CallError> {
        if self.calls.len() >= self.max {
            return Err(CallError::TooMany { max: self.max });
        }
        // There are fewer calls than XIDs.
        loop {
            let xid = Xid(self.next);
            self.next = self.next.wrapping_add(1);
            if !self.calls.contains_key(&xid) {
                return Ok(xid);
            }
        }
    }

    /// Puts a call with an XID that was reserved behind those that wait to be sent.
    pub(crate) fn add(&mut self, xid: Xid, outgoing: Outgoing, deadline: Instant) {
        let state = State::Queued;
        let call = Pending { outgoing, state, deadline, waker: None, sent: 0 };
        self.calls.insert(xid, call);
        self.queue.push_back(xid);
        self.deadlines.insert((deadline, xid));
    }

    /// The call to be sent next.
    pub(crate) fn front(&self) -> Option<(Xid, &Outgoing)> {
        let xid = *self.queue.front()?;
        self.calls.get(&xid).map(|call| (xid, &call.outgoing))
    }

    /// The first was sent.
    pub(crate) fn sent_front(&mut self) {
        let call = self.queue.pop_front().and_then(|xid| self.calls.get_mut(&xid));
        if let Some(call) = call {
            call.state = State::Sent;
            call.sent = call.sent.saturating_add(1);
        }
    }

    /// The connection is lost: what was sent is to be sent again, before what was not, in the order in
    /// which the calls were made. Gives how many were.
    pub(crate) fn lost(&mut self) -> usize {
        let mut again: Vec<_> = self
            .calls
            .iter_mut()
            .filter(|(_, call)| matches!(call.state, State::Sent))
            .map(|(&xid, call)| {
                call.state = State::Queued;
                xid
            })
            .collect();
        // XIDs go up from the oldest to the newest, which is just before the next.
        again.sort_by_key(|xid| std::cmp::Reverse(self.next.wrapping_sub(xid.0)));
        again.iter().rev().for_each(|&xid| self.queue.push_front(xid));
        again.len()
    }

    /// The call has ended. False when nobody waits for it, or it had ended before.
    pub(crate) fn finish(&mut self, xid: Xid, outcome: Result<Body, CallError>) -> bool {
        let Some(call) = self.calls.get_mut(&xid) else { return false };
        match call.state {
            State::Finished(_) => return false,
            State::Queued => self.queue.retain(|&x| x != xid),
            State::Sent => {}
        }
        call.state = State::Finished(outcome);
        self.deadlines.remove(&(call.deadline, xid));
        self.woken.extend(call.waker.take());
        true
    }

    /// Who is to be woken for calls that have ended: not by whoever holds a lock, as a waker may do
    /// anything, with this client too.
    pub(crate) fn woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    /// All have ended, with `error`.
    pub(crate) fn finish_all(&mut self, error: &CallError) {
        let all: Vec<_> = self.calls.keys().copied().collect();
        for xid in all {
            self.finish(xid, Err(error.clone()));
        }
    }

    /// The next call whose time is over at `now` ends; whether it was sent, so that the connection is to
    /// be told.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<(Xid, bool)> {
        let &(deadline, xid) = self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        let sent = self.calls.get(&xid).is_some_and(|c| matches!(c.state, State::Sent));
        // Also where the call is not known, so that this ends.
        self.deadlines.remove(&(deadline, xid));
        let ever = self.calls.get(&xid).is_some_and(|c| c.sent > 0);
        self.finish(xid, Err(CallError::TimedOut { sent: ever }));
        Some((xid, sent))
    }

    /// When the next call's time is over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Takes what has come of a call.
    pub(crate) fn take(&mut self, xid: Xid) -> Option<Result<Body, CallError>> {
        match self.calls.get(&xid)?.state {
            State::Finished(_) => match self.calls.remove(&xid)?.state {
                State::Finished(outcome) => Some(outcome),
                State::Queued | State::Sent => None,
            },
            State::Queued | State::Sent => None,
        }
    }

    /// Has `waker` woken when the call ends.
    pub(crate) fn wake_by(&mut self, xid: Xid, waker: &Waker) {
        if let Some(call) = self.calls.get_mut(&xid)
            && !call.waker.as_ref().is_some_and(|w| w.will_wake(waker))
        {
            call.waker = Some(waker.clone());
        }
    }

    /// Nobody waits for the call any more; whether it was sent and has no reply, so that the connection
    /// is to be told.
    pub(crate) fn cancel(&mut self, xid: Xid) -> bool {
        let Some(call) = self.calls.remove(&xid) else { return false };
        self.deadlines.remove(&(call.deadline, xid));
        match call.state {
            State::Queued => {
                self.queue.retain(|&x| x != xid);
                false
            }
            State::Sent => true,
            State::Finished(_) => false,
        }
    }

    /// Calls that have not been taken.
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }
}
