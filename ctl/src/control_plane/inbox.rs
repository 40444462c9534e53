//! The queue of requests to a control plane that may end at any time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, TrySendError};
use heddle_verbs::DeviceError;

use super::ThreadRequest;

/// The entry for requests, until the control plane has ended. The lock makes the end sharp: a
/// request is either refused or found by [`Inbox::close`], and none is lost between the two. A
/// sender holds the lock only while it queues a request.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    sender: Arc<Mutex<Option<Sender<ThreadRequest>>>>,
    waiting: Arc<AtomicUsize>,
}

impl Gate {
    pub(super) fn send(&self, request: ThreadRequest) -> Result<(), DeviceError> {
        let sender = self.lock();
        let sender = sender.as_ref().ok_or(DeviceError::Gone)?;
        // The count comes before the request, so that `take` never subtracts a request that is not
        // counted.
        self.waiting.fetch_add(1, Ordering::Release);
        sender.try_send(request).map_err(|e| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            match e {
                TrySendError::Full(_) => DeviceError::Overloaded,
                TrySendError::Disconnected(_) => DeviceError::Gone,
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sender<ThreadRequest>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The exit of the queue of requests.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Receiver<ThreadRequest>,
    gate: Gate,
}

impl Inbox {
    /// Makes the two ends of a queue of `len` requests.
    pub(super) fn new(len: usize) -> (Gate, Inbox) {
        let (sender, queue) = crossbeam_channel::bounded(len);
        let waiting = Arc::default();
        let gate = Gate { sender: Arc::new(Mutex::new(Some(sender))), waiting };
        (gate.clone(), Inbox { queue, gate })
    }

    /// Returns true if no request waits; a request that is just being queued may count already.
    /// Every turn of a worker asks this: one load, and no call.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.gate.waiting.load(Ordering::Acquire) == 0
    }

    pub(super) fn take(&self) -> Option<ThreadRequest> {
        let request = self.queue.try_recv().ok()?;
        self.gate.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(request)
    }

    /// Accepts no more requests. Requests that were queued can still be taken.
    pub(super) fn close(&self) {
        drop(self.gate.lock().take());
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.close();
    }
}
