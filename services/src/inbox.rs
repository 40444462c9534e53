//! The events of a service, without connect requests that have already failed.

use std::collections::{HashSet, VecDeque};

use heddle_verbs::{CmEvent, CmId, EventQueue};

/// The number of events taken from the queue ahead of their turn.
const AHEAD: usize = 256;

/// The number of events that a service handles in one step: the thread that handles them also moves
/// the data of other connections.
pub(crate) const EVENTS: usize = 8;

/// Reads ahead in an event queue.
pub(crate) struct Inbox {
    queue: EventQueue,
    waiting: VecDeque<CmEvent>,
    /// Connections whose failure is among the waiting events.
    failed: HashSet<CmId>,
}

impl Inbox {
    pub(crate) fn new(queue: EventQueue) -> Inbox {
        Inbox { queue, waiting: VecDeque::new(), failed: HashSet::new() }
    }

    /// Returns true if there is no event to poll at this moment.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.queue.is_empty()
    }

    /// Returns the oldest event, and skips connect requests of peers that have left since.
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
