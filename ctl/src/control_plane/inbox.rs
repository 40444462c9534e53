//! Requests, on their way to a control plane that may end meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, TrySendError};
use heddle_verbs::DeviceError;

use super::ThreadRequest;

/// Where requests go in, until the control plane has ended. The lock makes the end sharp: a request
/// is either refused or found by [`Inbox::close`], and none is lost between the two. It is held for
/// as long as it takes to queue one.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    sender: Arc<Mutex<Option<Sender<ThreadRequest>>>>,
    waiting: Arc<AtomicUsize>,
}

impl Gate {
    pub(super) fn send(&self, request: ThreadRequest) -> Result<(), DeviceError> {
        let sender = self.lock();
        let sender = sender.as_ref().ok_or(DeviceError::Gone)?;
        // Before: whoever takes it finds it counted.
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

/// Where they come out.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Receiver<ThreadRequest>,
    gate: Gate,
}

impl Inbox {
    /// The two ends of a queue of so many.
    pub(super) fn new(len: usize) -> (Gate, Inbox) {
        let (sender, queue) = crossbeam_channel::bounded(len);
        let waiting = Arc::default();
        let gate = Gate { sender: Arc::new(Mutex::new(Some(sender))), waiting };
        (gate.clone(), Inbox { queue, gate })
    }

    /// Whether nothing waits; one that is just being queued may count already. It is asked after
    /// every turn of a worker: one load, and no call.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.gate.waiting.load(Ordering::Acquire) == 0
    }

    pub(super) fn take(&self) -> Option<ThreadRequest> {
        let request = self.queue.try_recv().ok()?;
        self.gate.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(request)
    }

    /// Takes no more. Those that were taken and not carried out can still be had.
    pub(super) fn close(&self) {
        drop(self.gate.lock().take());
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.close();
    }
}
