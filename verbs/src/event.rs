//! Connection events, on their way to an application.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_types::Event;

use heddle_shm::Waker;

/// A queue for the events of the listeners and connections made with it; clones are handles of the
/// same queue.
///
/// The queue does not drop events. Peers cannot make it long: listeners reset new connections while
/// their application has thousands of events to take. Each connection that the application itself
/// asks for adds two events, an outcome and an end.
#[derive(Clone, Debug)]
pub struct EventQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<VecDeque<(Event, TakenEvents)>>,
    len: AtomicUsize,
    waker: Option<Waker>,
}

/// Counts the events that an application has taken, for the connection manager.
#[derive(Clone, Debug, Default)]
pub struct TakenEvents(Arc<AtomicU64>);

impl TakenEvents {
    /// Returns the number of events taken since the last call.
    pub fn swap(&self) -> u64 {
        if self.0.load(Ordering::Relaxed) == 0 { 0 } else { self.0.swap(0, Ordering::Relaxed) }
    }

    /// Counts one more event as taken.
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts the remaining events as taken, because no handle can take them any more: the application
/// has dropped all handles of this queue, and goes on.
impl Drop for Shared {
    fn drop(&mut self) {
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
        queue.drain(..).for_each(|(_, taken)| taken.add_one());
    }
}

impl EventQueue {
    /// Returns an empty queue; an event that arrives wakes `waker`.
    pub fn new(waker: Option<Waker>) -> EventQueue {
        EventQueue(Arc::new(Shared { queue: Mutex::default(), len: AtomicUsize::new(0), waker }))
    }

    /// Takes the oldest event.
    pub fn poll(&self) -> Option<Event> {
        let (event, taken) = self.pass_on()?;
        taken.add_one();
        Some(event)
    }

    /// Takes the oldest event for another taker, with the counter at which that taker counts the
    /// event.
    pub fn pass_on(&self) -> Option<(Event, TakenEvents)> {
        if self.is_empty() {
            return None;
        }
        let mut queue = self.queue();
        let front = queue.pop_front();
        self.0.len.store(queue.len(), Ordering::Release);
        front
    }

    /// Returns true if there is nothing to poll at this moment.
    pub fn is_empty(&self) -> bool {
        self.0.len.load(Ordering::Acquire) == 0
    }

    /// Adds an event; the queue counts the event at `taken` when a caller takes it.
    pub fn push(&self, event: Event, taken: &TakenEvents) {
        {
            let mut queue = self.queue();
            queue.push_back((event, taken.clone()));
            self.0.len.store(queue.len(), Ordering::Release);
        }
        if let Some(w) = &self.0.waker {
            w.wake();
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<(Event, TakenEvents)>> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_events_count_as_taken_when_polled_or_when_last_handle_is_dropped() {
        let (taken, listening) =
            (TakenEvents::default(), Event::Listening { id: heddle_types::ListenerId(1) });
        let ours = EventQueue::new(None);
        let theirs = ours.clone();
        for _ in 0..3 {
            theirs.push(listening.clone(), &taken);
        }
        assert!(ours.poll().is_some());
        assert_eq!(taken.swap(), 1);
        drop(ours);
        theirs.push(listening, &taken);
        assert_eq!(taken.swap(), 0, "there is a handle");
        drop(theirs);
        assert_eq!(taken.swap(), 3);
    }
}
