//! The events of a service, without requests that are over before they are looked at.

use std::collections::{HashSet, VecDeque};

use heddle_verbs::{CmEvent, CmId, EventQueue};

/// Events taken from the queue ahead of their turn.
const AHEAD: usize = 256;

/// Events a service handles in one step: what it does for them is done on the thread that moves the
/// data of others.
pub(crate) const EVENTS: usize = 8;

/// Looks ahead in an event queue.
pub(crate) struct Inbox {
    queue: EventQueue,
    waiting: VecDeque<CmEvent>,
    /// Connections of which a failure waits.
    failed: HashSet<CmId>,
}

impl Inbox {
    pub(crate) fn new(queue: EventQueue) -> Inbox {
        Inbox { queue, waiting: VecDeque::new(), failed: HashSet::new() }
    }

    /// Whether there is nothing to poll at this moment.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.queue.is_empty()
    }

    /// The oldest event, but no request of a peer that has gone since.
    pub(crate) fn poll(&mut self) -> Option<CmEvent> {
        while self.waiting.len() < AHEAD
            && let Some(event) = self.queue.poll()
        {
            if let CmEvent::ConnectError { id, .. } = &event {
                self.failed.insert(*id);
            }
            self.waiting.push_back(event);
        }
        loop {
            match self.waiting.pop_front()? {
                CmEvent::ConnectRequest { id, .. } if self.failed.contains(&id) => {}
                event => {
                    if let CmEvent::ConnectError { id, .. } = &event {
                        self.failed.remove(id);
                    }
                    return Some(event);
                }
            }
        }
    }
}
