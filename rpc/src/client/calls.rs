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

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use heddle_rpcrdma::Xid;
use heddle_rpcrdma::conn::CallRefused;
use heddle_rpcrdma::rpc::Procedure;

use super::{CallError, Room};
use crate::body::Body;
use crate::message::Message;
use crate::transport::Made;

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
    /// It has no reply, and nobody waits for its end either.
    is_left: bool,
}

/// XIDs are counted here, and no peer chooses one: their hash need not be keyed.
#[derive(Debug, Default)]
struct Counted(u64);

impl Hasher for Counted {
    fn write(&mut self, octets: &[u8]) {
        // Nothing but XIDs comes here.
        octets.iter().for_each(|&octet| self.0 = self.0 << 8 | u64::from(octet));
    }

    fn write_u32(&mut self, xid: u32) {
        self.0 = xid.into();
    }

    /// Spread over all bits: tables look at the lowest and at the highest.
    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
    }
}

/// Calls that have not been taken.
#[derive(Debug)]
pub(crate) struct Calls {
    calls: HashMap<Xid, Pending, BuildHasherDefault<Counted>>,
    /// Those that are not finished.
    running: usize,
    /// Those to be sent, in order.
    queue: VecDeque<Xid>,
    /// When those that are not finished end, in order; the first is of one that is not. Behind it there are
    /// some that are finished.
    deadlines: VecDeque<(Instant, Xid)>,
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
        Calls { calls, running: 0, queue, deadlines, woken, next: first.0, max }
    }

    /// An XID that no call has.
    ///
    /// # Errors
    /// [`CallError::TooMany`].
    pub(crate) fn reserve(&mut self) -> Result<Xid, CallError> {
        let mut next = self.next;
        let xid = self.reserve_of(|| {
            let xid = Xid(next);
            next = next.wrapping_add(1);
            xid
        });
        self.next = next;
        xid
    }

    /// The XID of a call before.
    ///
    /// # Errors
    /// [`CallError::TooMany`], and when it is under way or has not been taken.
    pub(crate) fn reserve_again(&self, xid: Xid) -> Result<Xid, CallError> {
        if self.calls.contains_key(&xid) {
            return Err(CallError::Refused(CallRefused::Xid));
        }
        self.reserve_of(|| xid)
    }

    /// The same as [`reserve`](Calls::reserve), of those that `next` gives.
    ///
    /// # Errors
    /// [`CallError::TooMany`].
    pub(crate) fn reserve_of(&self, mut next: impl FnMut() -> Xid) -> Result<Xid, CallError> {
        if self.calls.len() >= self.max {
            return Err(CallError::TooMany { max: self.max });
        }
        // There are fewer calls than XIDs.
        loop {
            let xid = next();
            if !self.calls.contains_key(&xid) {
                return Ok(xid);
            }
        }
    }

    /// Puts a call with an XID that was reserved behind those that wait to be sent.
    pub(crate) fn add(&mut self, xid: Xid, outgoing: Outgoing, deadline: Instant) {
        let state = State::Queued;
        let call = Pending { outgoing, state, deadline, waker: None, sent: 0, is_left: false };
        self.calls.insert(xid, call);
        self.queue.push_back(xid);
        self.running += 1;
        // Mostly as long as that of the call before.
        match self.deadlines.back() {
            Some(last) if *last > (deadline, xid) => {
                let at = self.deadlines.partition_point(|other| *other < (deadline, xid));
                self.deadlines.insert(at, (deadline, xid));
            }
            _ => self.deadlines.push_back((deadline, xid)),
        }
    }

    /// Forgets deadlines of calls that are finished: those in front, and the others when they have become
    /// many.
    fn forget_deadlines(&mut self) {
        let Calls { calls, deadlines, running, .. } = self;
        let is_running = |&(deadline, xid): &(Instant, Xid)| {
            calls.get(&xid).is_some_and(|call| {
                call.deadline == deadline && !matches!(call.state, State::Finished(_))
            })
        };
        while deadlines.front().is_some_and(|first| !is_running(first)) {
            deadlines.pop_front();
        }
        if deadlines.len() > 2 * *running + 64 {
            deadlines.retain(is_running);
        }
    }

    /// Has `make` make those that wait to be sent, in order, as long as it does; whether there was anything.
    pub(crate) fn send_by(
        &mut self,
        mut make: impl FnMut(Xid, &Outgoing) -> Result<Made, CallError>,
    ) -> bool {
        let (mut any, mut passed) = (false, 0);
        // Those that were passed over are behind the others now.
        while passed < self.queue.len()
            && let Some((xid, outgoing)) = self.front()
        {
            match make(xid, outgoing) {
                Ok(Made::Yes) => self.sent_front(),
                Ok(Made::Later) => break,
                Ok(Made::Again) => {
                    self.queue.rotate_left(1);
                    passed += 1;
                    continue;
                }
                Err(error) => drop(self.finish(xid, Err(error))),
            }
            any = true;
        }
        any
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
        self.woken.extend(call.waker.take());
        let is_left = call.is_left;
        self.running -= 1;
        self.forget_deadlines();
        if is_left {
            self.calls.remove(&xid);
        }
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
        let &(deadline, xid) = self.deadlines.front()?;
        if deadline > now {
            return None;
        }
        let call = self.calls.get(&xid);
        let sent = call.is_some_and(|c| matches!(c.state, State::Sent));
        let ever = call.is_some_and(|c| c.sent > 0);
        // Also where the call is not known, so that this ends.
        self.deadlines.pop_front();
        self.finish(xid, Err(CallError::TimedOut { sent: ever }));
        Some((xid, sent))
    }

    /// When the next call's time is over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|&(deadline, _)| deadline)
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

    /// Takes what has come of a call, or has the waker of `context` woken when something has.
    pub(crate) fn poll(
        &mut self,
        xid: Xid,
        context: &mut Context<'_>,
    ) -> Poll<Result<Body, CallError>> {
        if let Some(outcome) = self.take(xid) {
            return Poll::Ready(outcome);
        }
        self.wake_by(xid, context.waker());
        Poll::Pending
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
    /// is to be told. One that is to have none goes on.
    pub(crate) fn cancel(&mut self, xid: Xid) -> bool {
        if let Some(call) = self.calls.get_mut(&xid)
            && call.outgoing.room.is_none()
            && !matches!(call.state, State::Finished(_))
        {
            call.is_left = true;
            return false;
        }
        let Some(call) = self.calls.remove(&xid) else { return false };
        if !matches!(call.state, State::Finished(_)) {
            self.running -= 1;
            self.forget_deadlines();
        }
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
