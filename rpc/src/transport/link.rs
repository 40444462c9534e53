//! A connection that is up.

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

/// What a link has to tell.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// This version is spoken: calls are sent.
    Established { version: u32 },
    /// What the peer takes in the reverse direction (version 2).
    Takes(ReverseSupport),
    /// A call of ours has ended, other than by the end of the connection; one that has no reply with
    /// nothing.
    Reply { xid: Xid, outcome: Result<Body, CallError> },
    /// A call to serve.
    Call {
        /// Its number on this link.
        call: u64,
        /// The octets that did not come in Read chunks.
        stream: Vec<u8>,
        /// Those that did.
        items: Vec<Item>,
    },
    /// The connection is to be closed.
    Close(CloseReason),
}

/// What is to be done when a signaled request has completed.
#[derive(Clone, Copy, Debug)]
enum After {
    Nothing,
    /// The room of a header is free.
    Header(usize),
    /// An STag is free.
    Invalidated(Stag),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) conn: Connection,
    pub(super) parts: Parts,
    pub(super) store: Store,
    /// For our calls.
    pub(super) memory: Memory,
    /// For calls of the peer's, and the replies to them.
    pub(super) served_memory: Memory,
    /// Our calls, by [`CallId::index`](conn::CallId::index).
    pub(super) active: Vec<Option<Active>>,
    /// How many of them there are.
    pub(super) active_len: usize,
    /// Memory of replies, by [`ServedId::index`](conn::ServedId::index).
    pub(super) replies: Vec<Option<(Arc<Message>, Laid)>>,
    /// Lists of messages that are not needed any more, to be used again.
    pub(super) spare: Vec<Laid>,
    /// Calls that nobody replies to.
    pub(super) left: usize,
    /// Replies that wait for memory, by the numbers of their calls; in order.
    pub(super) late: VecDeque<(u64, Arc<Message>)>,
    /// Of signaled requests, in order.
    after: VecDeque<(u64, After)>,
    /// Lent for headers, and for what is received.
    header: Vec<u8>,
    scratch: Vec<u8>,
    segments: Vec<Segment>,
    sges: Vec<Sge>,
    /// Registrations that one piece of work can ask for, and one request more.
    step: u32,
    broken: bool,
    epoch: Instant,
    /// Completions that the last step has taken.
    taken: usize,
}

impl Link {
    /// On a queue pair that is connected. Our calls lie in `memory`, and those of the peer in `served`, of
    /// which it may have us take `budget` octets within the share of its address; the link waits for them by
    /// its `number`.
    ///
    /// # Errors
    /// A configuration that no connection can have.
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

    /// Takes up to `batch` completions, and posts what there is to post; whether there was anything.
    pub(crate) fn step(&mut self, now: Instant, batch: usize) -> bool {
        // Read when something has come, or may be over.
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
        let octets = self.parts.receives.read(cqe.wr_id, cqe.len, &mut self.scratch);
        self.broken |= self.parts.receives.post(&self.parts.qp, cqe.wr_id).is_err();
        let invalidated = cqe.invalidated.map(|stag| {
            // One that is not valid is the connection's to judge.
            let _ = self.parts.pool.invalidated_by_peer(stag);
            Handle(stag.0)
        });
        self.conn.handle_receive(now, octets, invalidated, &mut self.store);
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
            // Only one that is unsignaled and has failed completes out of turn.
            self.broken |= ok;
        }
        if cqe.wr_id == UNNAMED {
            self.broken |= !ok;
        } else {
            self.conn.handle_completion(WorkId::from_bits(cqe.wr_id), ok);
        }
    }

    /// Posts what the connection asks for, as long as there is room; whether there was anything. Asked for
    /// after whatever may bring work, and mostly there is none.
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
                    let registered =
                        post::register(&mut self.parts, &self.store, regions, |segments| {
                            self.segments.clear();
                            self.segments.extend_from_slice(segments);
                        });
                    match registered {
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
                    self.after.push_back((id.to_bits(), After::Nothing));
                    post::write((&mut self.parts, &self.store, &mut self.sges), id, from, to)
                }
                Work::Invalidate { id, handle } => {
                    let stag = Stag(handle.0);
                    self.after.push_back((id.to_bits(), After::Invalidated(stag)));
                    post::invalidate(&mut self.parts, id, stag)
                }
            };
            // The queue pair has ended, or something is not as the connection believes.
            self.broken |= posted.is_err();
        }
        any
    }

    /// What there is to tell, which mostly is nothing. Results are understood by `binding`.
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

    /// Whether there is nothing to tell.
    pub(crate) fn has_told_all(&self) -> bool {
        !self.conn.has_events()
    }

    /// Completions that the last step has taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Whether the connection cannot go on.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// The version that is spoken.
    pub(crate) fn version(&self) -> Option<u32> {
        self.conn.version()
    }

    /// Versions that the next connection to this peer should speak.
    pub(crate) fn next_speaks(&self) -> Option<Speaks> {
        self.conn.next_speaks()
    }

    /// What the connection has counted.
    pub(crate) fn counters(&self) -> &Counters {
        self.conn.counters()
    }

    /// When it is to be stepped though nothing has completed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let at = self.conn.poll_timeout()?;
        let since = at.since(base::Instant::from_nanos(0));
        self.epoch.checked_add(since)
    }

    /// Where its completions come.
    pub(crate) fn cq(&self) -> &Cq {
        &self.parts.cq
    }

    /// The queue pair has ended: what was lent comes back.
    pub(crate) fn disconnected(&mut self) {
        self.conn.handle_disconnected(&mut self.store);
    }
}
