//! The steps after a connection has changed: its place among the connections ready to send, its
//! events, its timer, and the end of its entry.

use super::event::EventKind;
use super::open::peer_of;
use super::slab::{Entry, NextHop, Owner};
use super::{NONE, Stack, StackEvent};
use crate::{ConnEvent, SendQueue, State};
use heddle_types::ConnId;

impl<S: SendQueue + Default> Stack<S> {
    /// Returns true if [`poll_event`](Stack::poll_event) may return an event.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.eventful.is_empty()
    }

    /// Returns the next event. The owner repeats the call until it returns `None`.
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

    /// Brings the stack's data about a connection in line with the connection: whether it is ready
    /// to send, its events, its timer, and whether it is over.
    ///
    /// The contract: code that may have changed a connection, or the bytes that its owner has to
    /// send, calls `update` afterwards. If the change caused no event, the code may call
    /// [`Stack::defer_update`] instead, which does the same later, once for all segments of a
    /// burst. Unneeded calls of both are harmless.
    #[inline(always)]
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

    /// Does the work of [`Stack::update`] for a connection that has just reported that it has
    /// nothing to send.
    #[inline]
    pub(super) fn update_idle(&mut self, index: u32) {
        let Some(e) = self.conns.get_mut(index) else { return };
        if e.has_changed() {
            return self.update_changed(index);
        }
        e.arm(&mut self.timers, index);
    }

    /// Does the work of [`Stack::update_idle`] for a connection with events, or one that is over.
    #[cold]
    #[inline(never)]
    fn update_changed(&mut self, index: u32) {
        let Some(e) = self.conns.get_mut(index) else { return };
        let noted = e.conn.take_note();
        let (mut accepted, next_hop) = (false, e.next_hop);
        let mut unanswered = false;
        while let Some(event) = e.conn.poll_event() {
            unanswered |= event == ConnEvent::Unresponsive;
            // The peer opened the connection; the owner hears of it for the first time.
            if event == ConnEvent::Connected && e.listener.is_some() {
                e.raise(EventKind::Accepted);
                accepted = true;
            } else {
                e.raise(event.into());
            }
        }
        if !e.events.is_empty() {
            self.eventful.push(index);
        }
        e.arm(&mut self.timers, index);
        let closed = e.conn.state() == State::Closed;
        self.settle_window(index);
        if noted {
            self.note_path(index);
        }
        if let (true, NextHop::Neighbor(n)) = (unanswered, next_hop) {
            self.neighbors.suspect(n);
        }
        self.counters.accepted += u64::from(accepted);
        if closed {
            self.retire(index);
        }
    }

    /// Gives a connection the receive window that it asks for, as far as the budget allows, or takes
    /// back what it does not need.
    fn settle_window(&mut self, index: u32) {
        let Some(e) = self.conns.get_mut(index) else { return };
        let (held, wanted) = e.conn.window_growth();
        if held == wanted {
            return;
        }
        let flow = e.flow();
        let site = self.cfg.net.site_on(flow.vid(), flow.remote().ip());
        let got = self.windows.resize(site, held, wanted);
        self.counters.windows_grown += u64::from(got > held);
        self.counters.windows_limited += u64::from(got < wanted);
        e.conn.grant_window(got);
    }

    /// Keeps what a connection has found out about its path for those that follow.
    fn note_path(&mut self, index: u32) {
        let Some(e) = self.conns.get_mut(index) else { return };
        let Some(news) = e.conn.path_news() else { return };
        let host = peer_of(&e.flow());
        match news.mss {
            Some(mss) => self.paths.learn(news.found, host, mss, news.probe_at),
            None => self.paths.forget(host),
        }
    }

    /// Schedules the update of a connection. The stack makes this update before it works on another
    /// connection, and at the end of a burst at the latest.
    #[inline(always)]
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

    /// Takes a closed connection out of all tables and lists. Its slot becomes free after the owner
    /// has released the connection and its RST, if any, is sent.
    fn retire(&mut self, index: u32) {
        self.detach(index);
        let Some(e) = self.conns.get(index) else { return };
        // A connection whose next hop does not answer cannot send its RST.
        let silent = e.muted || e.is_waiting() || !e.conn.wants_transmit(e.end());
        if e.owner == Owner::Held || !silent {
            return;
        }
        self.remove(index);
    }

    /// Takes a connection out of all tables and lists and frees its slot, without a message to its
    /// peer or its owner. The queues of indices may still hold it; code that takes an index off
    /// checks the entry.
    pub(super) fn remove(&mut self, index: u32) {
        self.detach(index);
        let Some(e) = self.conns.get(index) else { return };
        self.retired.add(e.conn.counters());
        if let Some(tally) = self.tally.as_mut().filter(|t| t.next <= index) {
            tally.sum.add(e.conn.counters());
        }
        let (owner, next_hop, listener, flow) = (e.owner, e.next_hop, e.listener, e.flow());
        let (window, _) = e.conn.window_growth();
        if window > 0 {
            self.windows.give_back(self.cfg.net.site_on(flow.vid(), flow.remote().ip()), window);
        }
        match owner {
            Owner::Released { .. } => self.time_wait.remove(&mut self.conns, index),
            Owner::Held => {}
        }
        if let Some(listener) = listener {
            let site = self.cfg.net.site_on(flow.vid(), flow.remote().ip());
            self.peers.gone(listener.get(), site, false);
        }
        if let NextHop::Neighbor(n) = next_hop {
            self.neighbors.stop_waiting(n, &mut self.conns, index);
            self.neighbors.release(n);
        }
        self.timers.cancel(index);
        self.conns.remove(index);
    }

    /// Detaches the connection from the flow table, so that segments do not find it any more.
    pub(super) fn detach(&mut self, index: u32) {
        if let Some(e) = self.conns.get_mut(index)
            && e.attached
        {
            e.attached = false;
            self.flows.remove(e.flow().hash(&self.ids.flow), index);
        }
    }
}

/// Returns the next event of a connection.
fn take_event<S>(e: &mut Entry<S>) -> Option<StackEvent> {
    Some(match e.events.pop()? {
        EventKind::Accepted => {
            StackEvent::Accepted { local: e.flow().local(), remote: e.flow().remote() }
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
