//! An established connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use heddle_base as base;
use heddle_rpcrdma::binding::Binding;
use heddle_rpcrdma::conn::{self, Config, Connection, Counters, Event, Speaks, Work, WorkId};
use heddle_rpcrdma::property::ReverseSupport;
use heddle_rpcrdma::segment::{Handle, Segment};
use heddle_rpcrdma::{Xid, conn::CloseReason};
use heddle_verbs::{Cq, Cqe, Queue, Sge, Stag};

use super::layout::Laid;
use super::parts::Parts;
use super::post;
use super::requester::Active;
use super::send_queue::UNNAMED;
use super::store::Store;
use crate::body::{Body, Item};
use crate::client::CallError;
use crate::memory::{Budget, Memory, Share};
use crate::message::Message;

/// An event that a link reports to its owner.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The connection speaks this version: calls are sent.
    Established { version: u32 },
    /// The reverse-direction support of the peer (version 2).
    Takes(ReverseSupport),
    /// A call of this end has ended, for another reason than the end of the connection. The outcome
    /// of a call without a reply is an empty body.
    Reply { xid: Xid, outcome: Result<Body, CallError> },
    /// The peer has made a call.
    Call {
        /// Number of the call on this link.
        call: u64,
        /// The bytes that did not come in Read chunks.
        stream: Vec<u8>,
        /// The items that came in Read chunks.
        items: Vec<Item>,
    },
    /// The connection must be closed.
    Close(CloseReason),
}

/// The action after the completion of a signaled request.
#[derive(Clone, Copy, Debug)]
enum After {
    Nothing,
    /// Free the room of this header.
    Header(usize),
    /// Free this STag.
    Invalidated(Stag),
}

/// See [the module](self).
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) conn: Connection,
    pub(super) parts: Parts,
    pub(super) store: Store,
    /// Memory for calls of this end.
    pub(super) memory: Memory,
    /// Memory for calls of the peer, and the replies to them.
    pub(super) served_memory: Memory,
    /// Calls of this end, by [`CallId::index`](conn::CallId::index).
    pub(super) active: Vec<Option<Active>>,
    /// Number of calls in `active`.
    pub(super) active_len: usize,
    /// Memory of replies, by [`ServedId::index`](conn::ServedId::index).
    pub(super) replies: Vec<Option<(Arc<Message>, Laid)>>,
    /// Lists of messages that are no longer needed, to be reused.
    pub(super) spare: Vec<Laid>,
    /// Number of calls that get no reply, because the connection is about to end.
    pub(super) left: usize,
    /// Replies that wait for memory, with the numbers of their calls, in order.
    pub(super) late: VecDeque<(u64, Arc<Message>)>,
    /// Actions of signaled requests, in order.
    after: VecDeque<(u64, After)>,
    /// Buffers that are lent for headers, and for received messages.
    header: Vec<u8>,
    scratch: Vec<u8>,
    segments: Vec<Segment>,
    sges: Vec<Sge>,
    /// Number of registrations that one piece of work can ask for, plus one request.
    step: u32,
    broken: bool,
    epoch: Instant,
    /// Number of completions that the last step has taken.
    taken: usize,
}

impl Link {
    /// Creates the link of a connected queue pair. Calls of this end use `memory`; calls of the
    /// peer use `served`, of which they may take `budget` bytes within the share of the peer's
    /// address. The link waits for that memory under its `number`.
    ///
    /// # Errors
    /// Returns an error for a configuration that no connection can have.
    pub(crate) fn new(
        now: Instant,
        parts: Parts,
        (memory, served_memory): (Memory, Memory),
        config: Config,
        (number, budget, share): (u64, usize, Option<Share>),
    ) -> Result<Link, conn::ConfigError> {
        let (calls, served) = (usize::from(config.calls), usize::from(config.served));
        let header = vec![0; config.header_size() as usize];
        let conn = Connection::new(config, base::Instant::from_nanos(0))?;
        let store = Store::new(served_memory.clone(), Budget::new(budget), share, number);
        let step = u32::try_from(parts.pool.available()).unwrap_or(u32::MAX).max(64) + 1;
        Ok(Link {
            conn,
            parts,
            store,
            memory,
            served_memory,
            active: std::iter::repeat_with(|| None).take(calls).collect(),
            active_len: 0,
            replies: std::iter::repeat_with(|| None).take(served).collect(),
            spare: Vec::new(),
            left: 0,
            late: VecDeque::new(),
            after: VecDeque::new(),
            header,
            scratch: Vec::new(),
            segments: Vec::new(),
            sges: Vec::new(),
            step,
            broken: false,
            epoch: now,
            taken: 0,
        })
    }

    fn time(&self, now: Instant) -> base::Instant {
        let since = now.saturating_duration_since(self.epoch).as_nanos();
        base::Instant::from_nanos(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Takes up to `batch` completions, and posts pending work. Returns true if there was any.
    pub(crate) fn step(&mut self, now: Instant, batch: usize) -> bool {
        // Read the clock only when something has arrived, or a deadline may have passed.
        let time = |link: &Link| link.time(now);
        let mut taken = 0;
        while taken < batch
            && let Some(cqe) = self.parts.cq.poll()
        {
            taken += 1;
            match cqe.queue {
                Queue::Sq => self.sent(&cqe),
                Queue::Rq => self.received(time(self), &cqe),
            }
        }
        self.broken |= self.parts.cq.check().is_err() || self.store.is_broken();
        if self.conn.poll_timeout().is_some_and(|at| at <= time(self)) {
            self.conn.handle_timeout(time(self));
        }
        self.taken = taken;
        self.post() | (taken > 0)
    }

    fn received(&mut self, now: base::Instant, cqe: &Cqe) {
        if !cqe.status.is_success() {
            return;
        }
        let bytes = self.parts.receives.read(cqe.wr_id, cqe.len, &mut self.scratch);
        self.broken |= self.parts.receives.post(&self.parts.qp, cqe.wr_id).is_err();
        let invalidated = cqe.invalidated.map(|stag| {
            // Ignore the error: the connection judges an STag that is not valid.
            let _ = self.parts.pool.invalidated_by_peer(stag);
            Handle(stag.0)
        });
        self.conn.handle_receive(now, bytes, invalidated, &mut self.store);
    }

    fn sent(&mut self, cqe: &Cqe) {
        let ok = cqe.status.is_success();
        if self.after.front().is_some_and(|(id, _)| *id == cqe.wr_id) {
            let after = self.after.pop_front().map(|(_, after)| after);
            self.parts.places.completed();
            match after {
                Some(After::Header(number)) => self.parts.headers.give(number),
                Some(After::Invalidated(stag)) if ok => {
                    self.broken |= self.parts.pool.invalidated(stag).is_err();
                    self.conn.memory_available();
                }
                _ => {}
            }
        } else {
            // Only a failed, unsignaled request completes out of turn, so a success here is a
            // defect.
            self.broken |= ok;
        }
        if cqe.wr_id == UNNAMED {
            self.broken |= !ok;
        } else {
            self.conn.handle_completion(WorkId::from_bits(cqe.wr_id), ok);
        }
    }

    /// Posts the connection's work as long as there is room. Returns true if there was any. Callers
    /// call this method after everything that may bring work, and mostly there is none.
    #[inline]
    pub(crate) fn post(&mut self) -> bool {
        self.conn.may_have_work() && self.post_all()
    }

    fn post_all(&mut self) -> bool {
        let mut any = false;
        while !self.broken && self.parts.places.has_room(self.step) && self.parts.headers.has_room()
        {
            let Some(work) = self.conn.poll_work(&mut self.header) else { break };
            any = true;
            let posted = match work {
                Work::Register { call, regions } => {
                    let on = (&mut self.parts, &mut self.store, &self.memory);
                    match post::register(on, regions, &mut self.segments) {
                        Ok(None) => {
                            self.conn.registered(call, &self.segments);
                            Ok(())
                        }
                        Ok(Some(when)) => {
                            self.conn.not_registered(call, when);
                            Ok(())
                        }
                        Err(error) => Err(error),
                    }
                }
                Work::Send { id, header, payload, invalidate } => {
                    let header = self.header.get(..header).unwrap_or(&[]);
                    let parts = (&mut self.parts, &self.store, &mut self.sges);
                    post::send(parts, id, (header, payload), invalidate).map(|number| {
                        self.after.push_back((id.to_bits(), After::Header(number)));
                    })
                }
                Work::Read { id, to, from } => {
                    self.after.push_back((id.to_bits(), After::Nothing));
                    post::read(&mut self.parts, &self.store, id, &to, from)
                }
                Work::Write { id, from, to } => {
                    // The completion of the reply says that its Writes are done. Only a peer with
                    // many chunks makes so many of them that their places must come back before.
                    let signaled = self.parts.places.is_signal_due();
                    if signaled {
                        self.after.push_back((id.to_bits(), After::Nothing));
                    }
                    let parts = (&mut self.parts, &self.store, &mut self.sges);
                    post::write(parts, id, from, (to, signaled))
                }
                Work::Invalidate { id, handle } => {
                    let stag = Stag(handle.0);
                    self.after.push_back((id.to_bits(), After::Invalidated(stag)));
                    post::invalidate(&mut self.parts, id, stag)
                }
            };
            // Either the queue pair has ended, or its state is not as the connection believes.
            self.broken |= posted.is_err();
        }
        any
    }

    /// Returns the next event; mostly there is none. `binding` decodes results.
    #[inline]
    pub(crate) fn poll_event(&mut self, binding: &dyn Binding) -> Option<LinkEvent> {
        if self.has_told_all() { None } else { self.next_event(binding) }
    }

    fn next_event(&mut self, binding: &dyn Binding) -> Option<LinkEvent> {
        loop {
            match self.conn.poll_event()? {
                Event::Established { version } => return Some(LinkEvent::Established { version }),
                Event::Close(reason) => return Some(LinkEvent::Close(reason)),
                Event::Reply { call, reply } => {
                    if let Some((xid, outcome)) = self.replied(call, reply, binding) {
                        return Some(LinkEvent::Reply { xid, outcome });
                    }
                }
                Event::Failed { call, error } => {
                    if let Some((xid, error)) = self.failed(call, error) {
                        return Some(LinkEvent::Reply { xid, outcome: Err(error) });
                    }
                }
                Event::Call(call) => {
                    if let Some(event) = self.called(&call) {
                        return Some(event);
                    }
                }
                Event::Served { id, .. } => self.replied_to(id),
                Event::Sent { call } => {
                    if let Some(xid) = self.sent_off(call) {
                        return Some(LinkEvent::Reply { xid, outcome: Ok(Body::new()) });
                    }
                }
                Event::Properties(peers) => return Some(LinkEvent::Takes(peers.reverse)),
            }
        }
    }

    /// Returns true if there are no events.
    pub(crate) fn has_told_all(&self) -> bool {
        !self.conn.has_events()
    }

    /// Returns the number of completions that the last step has taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Returns true if the connection cannot go on.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns the version that the connection speaks, once known.
    pub(crate) fn version(&self) -> Option<u32> {
        self.conn.version()
    }

    /// Returns the versions that the next connection to this peer should speak.
    pub(crate) fn next_speaks(&self) -> Option<Speaks> {
        self.conn.next_speaks()
    }

    /// Returns the counters of the connection.
    pub(crate) fn counters(&self) -> &Counters {
        self.conn.counters()
    }

    /// Returns the time when the link must be stepped although nothing has completed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let at = self.conn.poll_timeout()?;
        let since = at.since(base::Instant::from_nanos(0));
        self.epoch.checked_add(since)
    }

    /// Returns the completion queue of the link.
    pub(crate) fn cq(&self) -> &Cq {
        &self.parts.cq
    }

    /// Handles the end of the queue pair: the connection returns the memory that it was lent.
    pub(crate) fn disconnected(&mut self) {
        self.conn.handle_disconnected(&mut self.store);
    }
}
