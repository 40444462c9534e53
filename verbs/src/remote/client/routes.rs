//! The destinations of events.

use std::collections::{HashMap, VecDeque};
use std::sync::Weak;

use heddle_types::{
    CmId, ConnectFailure, DisconnectReason, Event, ListenFailure, ListenerId, QpFate, Qpn,
};

use crate::cq::WeakCq;
use crate::device::{DeviceEvent, DeviceEvents, WeakEvents};
use crate::event::{EventQueue, TakenEvents};
use crate::qp::{Claim, WeakQp};

/// Stopped listeners that this side still remembers, because an event may be on its way to them.
const ENDED: usize = 64;

/// Listeners, connections, and the objects that have to learn of the server's end.
///
/// Destroying a queue pair takes the lock that protects these tables. So no function here holds a
/// queue pair, not even for a moment: its program might drop all other handles meanwhile.
#[derive(Debug, Default)]
pub(super) struct Routes {
    listeners: HashMap<u64, EventQueue>,
    /// Listeners that the application has stopped, the oldest first.
    ended: VecDeque<u64>,
    conns: HashMap<u64, Conn>,
    qps: Vec<WeakQp>,
    cqs: Vec<WeakCq>,
    /// The queue for events of the device.
    device: Option<WeakEvents>,
    /// Counts the events that the application has taken.
    pub(super) taken: TakenEvents,
    /// The server has ended: no event follows.
    pub(super) gone: bool,
}

#[derive(Debug)]
struct Conn {
    events: EventQueue,
    qp: Option<Weak<Claim>>,
    established: bool,
}

impl Routes {
    pub(super) fn listen(&mut self, id: u64, events: EventQueue) {
        self.listeners.insert(id, events);
    }

    /// Stops a listener; events sent before may still arrive.
    pub(super) fn unlisten(&mut self, id: u64) {
        self.ended.push_back(id);
        if self.ended.len() > ENDED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.listeners.remove(&oldest);
        }
    }

    pub(super) fn connect(&mut self, id: u64, events: EventQueue, qp: Weak<Claim>) {
        self.conns.insert(id, Conn { events, qp: Some(qp), established: false });
    }

    pub(super) fn accept(&mut self, id: u64, events: Option<EventQueue>, qp: Weak<Claim>) {
        if let Some(c) = self.conns.get_mut(&id) {
            c.qp = Some(qp);
            c.events = events.unwrap_or_else(|| c.events.clone());
        }
    }

    /// Forgets a connection, which gets no more events.
    pub(super) fn forget(&mut self, id: u64) {
        self.conns.remove(&id);
    }

    /// Adds a queue pair. Returns false if the server has ended: the caller then marks the queue
    /// pair as lost.
    #[must_use]
    pub(super) fn watch_qp(&mut self, qp: WeakQp) -> bool {
        if !self.gone {
            if self.qps.len().is_power_of_two() {
                self.qps.retain(|qp| !qp.is_gone());
            }
            self.qps.push(qp);
        }
        !self.gone
    }

    /// Adds a completion queue. Returns false if the server has ended: the caller then marks the
    /// queue as lost.
    #[must_use]
    pub(super) fn watch_cq(&mut self, cq: WeakCq) -> bool {
        if !self.gone {
            if self.cqs.len().is_power_of_two() {
                self.cqs.retain(|cq| !cq.is_gone());
            }
            self.cqs.push(cq);
        }
        !self.gone
    }

    pub(super) fn watch(&mut self, events: &DeviceEvents) {
        self.device = Some(events.downgrade());
        if self.gone {
            events.push(DeviceEvent::DeviceFatal);
        }
    }

    pub(super) fn tell_device(&self, event: DeviceEvent) {
        if let Some(events) = self.device.as_ref().and_then(WeakEvents::upgrade) {
            events.push(event);
        }
    }

    pub(super) fn forget_qp(&self, qpn: Qpn) {
        if let Some(events) = self.device.as_ref().and_then(WeakEvents::upgrade) {
            events.forget_qp(qpn);
        }
    }

    /// Hands an event to the queue that it is for.
    pub(super) fn tell(&mut self, event: Event) {
        let events = match &event {
            Event::Listening { id } => self.listeners.get(&id.0).cloned(),
            Event::ListenFailed { id, .. } => {
                self.ended.retain(|ended| *ended != id.0);
                self.listeners.remove(&id.0)
            }
            Event::ConnectRequest { id, listener, .. } => {
                let events = self.listeners.get(&listener.0).cloned();
                if let Some(events) = events.clone() {
                    self.conns.insert(id.0, Conn { events, qp: None, established: false });
                }
                events
            }
            Event::Established { id, .. } => self.conns.get_mut(&id.0).map(|c| {
                c.established = true;
                c.events.clone()
            }),
            Event::Rejected { id, .. } => self.over(*id, true),
            Event::ConnectError { id, qp, .. } => self.over(*id, !matches!(qp, QpFate::Spent(_))),
            Event::Disconnected { id, .. } => self.over(*id, false),
        };
        match events {
            Some(events) => events.push(event, &self.taken),
            // No queue waits for this event.
            None => self.taken.add_one(),
        }
    }

    /// Ends a connection; its queue pair may have another connection, if no worker has had it.
    fn over(&mut self, CmId(id): CmId, free: bool) -> Option<EventQueue> {
        let c = self.conns.remove(&id)?;
        match c.qp.and_then(|qp| qp.upgrade()) {
            Some(qp) if free => qp.give_back(),
            Some(qp) => qp.set_over(),
            None => {}
        }
        Some(c.events)
    }

    /// Returns all queue pairs.
    pub(super) fn qps(&self) -> Vec<WeakQp> {
        self.qps.clone()
    }

    /// Notes that the server has ended: later objects are lost at once. Returns the objects that
    /// are lost now.
    pub(super) fn lose(&mut self) -> (Vec<WeakQp>, Vec<WeakCq>) {
        self.gone = true;
        (std::mem::take(&mut self.qps), std::mem::take(&mut self.cqs))
    }

    /// Ends everything, with an event to every owner.
    pub(super) fn end(&mut self) {
        for (id, c) in std::mem::take(&mut self.conns) {
            let qpn = c.qp.and_then(|qp| qp.upgrade()).map(|claim| claim.qpn());
            let id = CmId(id);
            let event = match qpn {
                Some(qpn) if c.established => {
                    let (reason, terminate) = (DisconnectReason::ControlLost, None);
                    Event::Disconnected { id, qpn, reason, terminate }
                }
                qpn => {
                    let qp = qpn.map_or(QpFate::NoQp, QpFate::Spent);
                    Event::ConnectError { id, error: ConnectFailure::ControlLost, qp }
                }
            };
            c.events.push(event, &TakenEvents::default());
        }
        let ended = std::mem::take(&mut self.ended);
        for (id, events) in std::mem::take(&mut self.listeners) {
            if !ended.contains(&id) {
                let (id, error) = (ListenerId(id), ListenFailure::ControlLost);
                events.push(Event::ListenFailed { id, error }, &TakenEvents::default());
            }
        }
        self.tell_device(DeviceEvent::DeviceFatal);
    }
}

#[cfg(test)]
mod tests;
