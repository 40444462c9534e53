//! What has to follow when a connection has changed: its place among those that are ready to send,
//! its events, its timer, and the end of its entry.

use super::event::EventKind;
use super::slab::{ConnId, Entry, NextHop, Owner};
use super::{NONE, Stack, StackEvent};
use crate::{ConnEvent, SendQueue, State};

impl<S: SendQueue + Default> Stack<S> {
    /// What happened; call until it gives `None`.
    #[inline]
    pub fn poll_event(&mut self) -> Option<(ConnId, StackEvent)> {
        self.eventful.front()?;
        self.next_event()
    }

    #[inline]
    fn next_event(&mut self) -> Option<(ConnId, StackEvent)> {
        while let Some(index) = self.eventful.front() {
            let id = self.conns.id(index);
            match self.conns.get_mut(index).and_then(take_event) {
                Some(event) => return Some((id, event)),
                None => {
                    self.eventful.pop();
                }
            }
        }
        None
    }

    /// Brings everything the stack keeps about a connection in line with it: whether it is ready to
    /// send, its events, its timer, and whether it is over.
    ///
    /// The contract: whatever may have changed a connection, or what its owner has to send, is
    /// followed by `update`; or, where it caused no event, by [`Stack::defer_update`], which does
    /// the same later, once for all segments of a burst. Both may be called without need.
    #[inline]
    pub(super) fn update(&mut self, index: u32) {
        let Some(e) = self.conns.get_mut(index) else { return };
        if let Some(ns) = e.conn.take_round_trip() {
            self.round_trips.record(ns.into());
        }
        if !e.is_waiting() && e.conn.wants_transmit(e.end()) {
            self.ready.push(index);
        }
        self.update_idle(index);
    }

    /// As [`Stack::update`], for a connection that has just said that it has nothing to send.
    #[inline]
    pub(super) fn update_idle(&mut self, index: u32) {
        let Some(e) = self.conns.get(index) else { return };
        if e.conn.has_events() || !e.events.is_empty() || e.conn.state() == State::Closed {
            return self.update_changed(index);
        }
        if let Some(at) = e.conn.poll_timeout() {
            self.timers.arm(index, at);
        }
    }

    /// As [`Stack::update_idle`], for a connection with events, or one that is over.
    #[cold]
    #[inline(never)]
    fn update_changed(&mut self, index: u32) {
        let Some(e) = self.conns.get_mut(index) else { return };
        let mut accepted = false;
        while let Some(event) = e.conn.poll_event() {
            match e.owner {
                Owner::HalfOpen if event == ConnEvent::Connected => {
                    e.owner = Owner::Held;
                    e.raise(EventKind::Accepted);
                    accepted = true;
                }
                _ => e.raise(event.into()),
            }
        }
        if !e.events.is_empty() {
            self.eventful.push(index);
        }
        if let Some(at) = e.conn.poll_timeout() {
            self.timers.arm(index, at);
        }
        let closed = e.conn.state() == State::Closed;
        if accepted {
            self.established(index);
        }
        if closed {
            self.retire(index);
        }
    }

    /// Has a connection updated before anything else is done to another, at the end of a burst at
    /// the latest.
    #[inline]
    pub(super) fn defer_update(&mut self, index: u32) {
        if self.deferred != index {
            self.update_deferred();
            self.deferred = index;
        }
    }

    #[inline(always)]
    pub(super) fn update_deferred(&mut self) {
        if self.deferred != NONE {
            let index = core::mem::replace(&mut self.deferred, NONE);
            self.update(index);
        }
    }

    /// Takes a closed connection out of everything it is in; its slot is free once no one looks at
    /// it and its RST, if there is one, is sent.
    fn retire(&mut self, index: u32) {
        self.detach(index);
        let Some(e) = self.conns.get(index) else { return };
        // One whose next hop does not answer cannot send it.
        let silent = e.muted || e.is_waiting() || !e.conn.wants_transmit(e.end());
        if e.owner == Owner::Held || !silent {
            return;
        }
        self.counters.half_open_failed += u64::from(e.owner == Owner::HalfOpen);
        self.remove(index);
    }

    /// Takes a connection out of everything it is in and frees its slot, without a word to its peer
    /// or its owner. The queues of indices may still have it; whoever takes it off looks.
    pub(super) fn remove(&mut self, index: u32) {
        self.detach(index);
        let Some(e) = self.conns.get(index) else { return };
        self.retired.add(e.conn.counters());
        if let Some(tally) = self.tally.as_mut().filter(|t| t.next <= index) {
            tally.sum.add(e.conn.counters());
        }
        let (owner, next_hop, listener, flow) = (e.owner, e.next_hop, e.listener, e.flow);
        match owner {
            Owner::HalfOpen => self.leave_half_open(index),
            Owner::Released { .. } => self.time_wait.remove(&mut self.conns, index),
            Owner::Held => {}
        }
        if let Some(listener) = listener {
            self.peers.gone(listener, *flow.remote().ip(), owner == Owner::HalfOpen);
        }
        if let NextHop::Neighbor(n) = next_hop {
            self.neighbors.stop_waiting(n, &mut self.conns, index);
            self.neighbors.release(n);
        }
        self.timers.cancel(index);
        self.conns.remove(index);
    }

    /// Segments do not find the connection any more.
    pub(super) fn detach(&mut self, index: u32) {
        if let Some(e) = self.conns.get_mut(index)
            && e.attached
        {
            e.attached = false;
            self.flows.remove(e.flow.hash(&self.ids.flow), index);
        }
    }
}

/// The next event of a connection.
fn take_event<S>(e: &mut Entry<S>) -> Option<StackEvent> {
    Some(match e.events.pop()? {
        EventKind::Accepted => {
            StackEvent::Accepted { local: e.flow.local().into(), remote: e.flow.remote().into() }
        }
        EventKind::Connected => StackEvent::Conn(ConnEvent::Connected),
        EventKind::Unresponsive => StackEvent::Conn(ConnEvent::Unresponsive),
        EventKind::Stalled => StackEvent::Conn(ConnEvent::Stalled),
        EventKind::SoftError => StackEvent::SoftError(e.soft_error?),
        EventKind::PeerClosed => StackEvent::Conn(ConnEvent::PeerClosed),
        EventKind::Closed => StackEvent::Conn(ConnEvent::Closed),
        EventKind::Reset => StackEvent::Conn(ConnEvent::Reset),
        EventKind::TimedOut => StackEvent::Conn(ConnEvent::TimedOut),
        EventKind::WindowShut => StackEvent::Conn(ConnEvent::WindowShut),
        EventKind::Refused => StackEvent::Conn(ConnEvent::Refused),
        EventKind::Aborted => StackEvent::Conn(ConnEvent::Aborted),
        EventKind::Unreachable => StackEvent::Unreachable,
        EventKind::Withdrawn => StackEvent::Withdrawn,
    })
}
