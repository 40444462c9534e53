//! The unfinished calls of a client: which of them wait to be sent, which of them wait for their
//! reply, and until when. This module has no connection and no clock; its caller passes in events
//! and times.
//!
//! ```text
//!            send           reply, error
//!   Queued ────────▶ Sent ───────────────▶ Finished ──▶ taken by the caller
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

use super::CallError;
use crate::body::Body;
use crate::message::Message;
use crate::transport::Made;

/// A call to send.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) procedure: Procedure,
    pub(crate) message: Arc<Message>,
    /// Length in bytes of the longest results without those that have room of their own; `None` for
    /// a call without a reply.
    pub(crate) results: Option<u32>,
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
    /// The number of times that the call was sent.
    sent: u32,
    /// True for a call without a reply that no application waits for.
    is_left: bool,
}

/// Hashes XIDs. This end counts the XIDs and no peer chooses one, so the hash needs no key.
#[derive(Debug, Default)]
struct Counted(u64);

impl Hasher for Counted {
    fn write(&mut self, bytes: &[u8]) {
        // The keys of the table are XIDs, which use `write_u32`, so no other data comes here.
        bytes.iter().for_each(|&byte| self.0 = self.0 << 8 | u64::from(byte));
    }

    fn write_u32(&mut self, xid: u32) {
        self.0 = xid.into();
    }

    /// Spreads the XID over all bits, since hash tables use the lowest and the highest bits.
    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
    }
}

/// The calls whose outcome no application has taken.
#[derive(Debug)]
pub(crate) struct Calls {
    calls: HashMap<Xid, Pending, BuildHasherDefault<Counted>>,
    /// Number of calls that are not finished.
    running: usize,
    /// Calls to be sent, in order.
    queue: VecDeque<Xid>,
    /// Deadlines of unfinished calls, in order. The first entry belongs to an unfinished call;
    /// later entries may belong to finished calls.
    deadlines: VecDeque<(Instant, Xid)>,
    /// Wakers of calls that have ended. A thread wakes them when it holds no lock.
    woken: Vec<Waker>,
    next: u32,
    max: usize,
}

impl Calls {
    /// Creates an empty set of at most `max` calls. XIDs count up from `first`, which should differ
    /// from that of other clients on the same host.
    pub(crate) fn new(max: usize, first: Xid) -> Calls {
        let (calls, queue, deadlines, woken) = Default::default();
        Calls { calls, running: 0, queue, deadlines, woken, next: first.0, max }
    }

    /// Reserves an XID that no call has.
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

    /// Reserves the XID of an earlier call.
    ///
    /// # Errors
    /// [`CallError::TooMany`]; or an error when that call is under way, or has an outcome that was
    /// not taken.
    pub(crate) fn reserve_again(&self, xid: Xid) -> Result<Xid, CallError> {
        if self.calls.contains_key(&xid) {
            return Err(CallError::Refused(CallRefused::Xid));
        }
        self.reserve_of(|| xid)
    }

    /// Reserves the first unused XID among those that `next` returns.
    ///
    /// # Errors
    /// [`CallError::TooMany`].
    pub(crate) fn reserve_of(&self, mut next: impl FnMut() -> Xid) -> Result<Xid, CallError> {
        if self.calls.len() >= self.max {
            return Err(CallError::TooMany { max: self.max });
        }
        // The loop ends, because there are fewer calls than XIDs.
        loop {
            let xid = next();
            if !self.calls.contains_key(&xid) {
                return Ok(xid);
            }
        }
    }

    /// Appends a call with a reserved XID to the queue of calls to be sent.
    pub(crate) fn add(&mut self, xid: Xid, outgoing: Outgoing, deadline: Instant) {
        let state = State::Queued;
        let call = Pending { outgoing, state, deadline, waker: None, sent: 0, is_left: false };
        self.calls.insert(xid, call);
        self.queue.push_back(xid);
        self.running += 1;
        // Most calls have the timeout of the previous call, so their deadlines belong at the end.
        match self.deadlines.back() {
            Some(last) if *last > (deadline, xid) => {
                let at = self.deadlines.partition_point(|other| *other < (deadline, xid));
                self.deadlines.insert(at, (deadline, xid));
            }
            _ => self.deadlines.push_back((deadline, xid)),
        }
    }

    /// Forgets deadlines of finished calls: those at the front, and the others when they have
    /// become many.
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

    /// Passes the queued calls to `make`, in order, until `make` postpones a call. Returns true if
    /// there were any.
    pub(crate) fn send_by(
        &mut self,
        mut make: impl FnMut(Xid, &Outgoing) -> Result<Made, CallError>,
    ) -> bool {
        let (mut any, mut passed) = (false, 0);
        // Calls that were passed over are now at the end of the queue.
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

    /// Returns the call to be sent next.
    pub(crate) fn front(&self) -> Option<(Xid, &Outgoing)> {
        let xid = *self.queue.front()?;
        self.calls.get(&xid).map(|call| (xid, &call.outgoing))
    }

    /// Records that the first queued call was sent.
    pub(crate) fn sent_front(&mut self) {
        let call = self.queue.pop_front().and_then(|xid| self.calls.get_mut(&xid));
        if let Some(call) = call {
            call.state = State::Sent;
            call.sent = call.sent.saturating_add(1);
        }
    }

    /// Queues all sent calls again after the connection was lost, before the calls that were not
    /// sent, in the order in which they were made. Returns their number.
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
        // XIDs rise from the oldest call to the newest, which is just before `next`.
        again.sort_by_key(|xid| std::cmp::Reverse(self.next.wrapping_sub(xid.0)));
        again.iter().rev().for_each(|&xid| self.queue.push_front(xid));
        again.len()
    }

    /// Ends a call with `outcome`. Returns false if no application waits for the call, or the call
    /// had ended before.
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

    /// Returns the wakers of calls that have ended. The caller must wake them without holding a
    /// lock, since a waker may do anything, also with this client.
    pub(crate) fn woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    /// Ends all calls with `error`.
    pub(crate) fn finish_all(&mut self, error: &CallError) {
        let all: Vec<_> = self.calls.keys().copied().collect();
        for xid in all {
            self.finish(xid, Err(error.clone()));
        }
    }

    /// Ends the next call whose deadline has passed at `now`. Returns its XID, and whether the call
    /// was on the wire, so that the connection must be told.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<(Xid, bool)> {
        let &(deadline, xid) = self.deadlines.front()?;
        if deadline > now {
            return None;
        }
        let call = self.calls.get(&xid);
        let sent = call.is_some_and(|c| matches!(c.state, State::Sent));
        let ever = call.is_some_and(|c| c.sent > 0);
        // Pop the deadline even if the call is unknown, so that a loop over `expire` ends.
        self.deadlines.pop_front();
        self.finish(xid, Err(CallError::TimedOut { sent: ever }));
        Some((xid, sent))
    }

    /// Returns the deadline of the next call to expire.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|&(deadline, _)| deadline)
    }

    /// Takes the outcome of a call.
    pub(crate) fn take(&mut self, xid: Xid) -> Option<Result<Body, CallError>> {
        match self.calls.get(&xid)?.state {
            State::Finished(_) => match self.calls.remove(&xid)?.state {
                State::Finished(outcome) => Some(outcome),
                State::Queued | State::Sent => None,
            },
            State::Queued | State::Sent => None,
        }
    }

    /// Takes the outcome of a call, or registers the waker of `context` for the end of the call.
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

    /// Registers `waker` for the end of the call.
    pub(crate) fn wake_by(&mut self, xid: Xid, waker: &Waker) {
        if let Some(call) = self.calls.get_mut(&xid)
            && !call.waker.as_ref().is_some_and(|w| w.will_wake(waker))
        {
            call.waker = Some(waker.clone());
        }
    }

    /// Gives up a call for which no application waits any more. Returns true if the call was sent
    /// and has no reply yet, so that the connection must be told. A call without a reply goes on.
    pub(crate) fn cancel(&mut self, xid: Xid) -> bool {
        if let Some(call) = self.calls.get_mut(&xid)
            && call.outgoing.results.is_none()
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

    /// Returns the number of calls whose outcome was not taken.
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }
}
