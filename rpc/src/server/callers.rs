//! The clients that a server may call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use heddle_verbs::{Device, DeviceError, Pd};

use super::Caller;
use super::caller::Common;
use super::config::CallsConfig;
use super::outbox::Outbox;
use crate::memory::Memory;
use crate::thread::here;
use crate::transport::{Link, LinkEvent};

/// An event about a client that the server may call. See [`Server::watch`](super::Server::watch).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerEvent {
    /// The client has connected, and the server can call it from now on.
    Connected(Caller),
    /// The connection of the client has ended, and all calls on it.
    Gone(Caller),
}

/// The largest number of completions that one step of a link takes.
const BATCH: usize = 32;

type Watcher = Box<dyn FnMut(CallerEvent) + Send>;

/// See [the module](self).
pub(super) struct Callers {
    common: Common,
    watcher: Option<Watcher>,
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.common.fmt(f)
    }
}

/// Keeps the caller of one connection; dropping the guard ends the caller's calls.
#[derive(Debug)]
pub(super) struct CallerGuard {
    pub(super) caller: Caller,
    /// True if the watcher knows the caller.
    is_told: bool,
}

impl Drop for CallerGuard {
    fn drop(&mut self) {
        self.caller.gone();
    }
}

impl Callers {
    pub(super) fn new(config: &Arc<CallsConfig>, memory: &Memory, outbox: &Outbox) -> Callers {
        use std::hash::{BuildHasher, RandomState};
        // The XIDs of another server, for example after a restart, begin elsewhere.
        let first = RandomState::new().hash_one("calls") & 0xffff_ffff;
        let common = Common {
            config: config.clone(),
            memory: memory.clone(),
            outbox: outbox.clone(),
            xids: Arc::new(AtomicU32::new(u32::try_from(first).unwrap_or(0))),
            stepping: Arc::new(AtomicUsize::new(0)),
        };
        Callers { common, watcher: None }
    }

    pub(super) fn watch(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
    }

    pub(super) fn config(&self) -> &CallsConfig {
        &self.common.config
    }

    /// Allocates memory for the calls on a connection.
    pub(super) fn memory(&self, device: &Device, pd: Pd) -> Result<Memory, DeviceError> {
        Memory::new(device, pd, self.common.config.memory)
    }

    /// Creates the guard of an established connection.
    pub(super) fn guard(&self, addr: std::net::SocketAddr, memory: Memory) -> CallerGuard {
        CallerGuard { caller: Caller::new(self.common.clone(), addr, memory), is_told: false }
    }

    /// Marks this thread as within a step of the server until the guard is dropped.
    pub(super) fn step(&self) -> InStep {
        let stepping = self.common.stepping.clone();
        stepping.store(here(), Ordering::Relaxed);
        InStep(stepping)
    }

    /// Returns the next event of a link that does not concern calls to its client, and handles the
    /// others.
    pub(super) fn poll(&mut self, link: &mut Link, guard: &mut CallerGuard) -> Option<LinkEvent> {
        loop {
            let event = link.poll_event(&*self.common.config.binding)?;
            if let Some(other) = self.take(guard, event) {
                return Some(other);
            }
        }
    }

    /// Handles an event of calls to the client; returns any other event.
    fn take(&mut self, guard: &mut CallerGuard, event: LinkEvent) -> Option<LinkEvent> {
        let can_be_called = match event {
            LinkEvent::Reply { xid, outcome } => {
                guard.caller.finish(xid, outcome);
                false
            }
            LinkEvent::Established { version } => guard.caller.established(version),
            LinkEvent::Takes(takes) => {
                guard.caller.told(takes);
                true
            }
            other => return Some(other),
        };
        if can_be_called && !guard.is_told {
            guard.is_told = true;
            self.tell(CallerEvent::Connected(guard.caller.clone()));
        }
        None
    }

    /// Ends the calls on a connection whose queue pair has ended: replies that have arrived count,
    /// and all other calls are lost.
    pub(super) fn ended(&mut self, now: Instant, mut guard: CallerGuard, link: &mut Link) {
        // Callbacks from here must also be marked as within a step.
        let _step = self.step();
        // The loop ends, because a finite number of requests has completed.
        while link.step(now, BATCH) {}
        link.disconnected();
        while self.poll(link, &mut guard).is_some() {}
        guard.caller.gone();
        if guard.is_told {
            self.tell(CallerEvent::Gone(guard.caller.clone()));
        }
    }

    fn tell(&mut self, event: CallerEvent) {
        if let Some(watcher) = &mut self.watcher {
            watcher(event);
        }
    }
}

/// The guard of [`Callers::step`].
pub(super) struct InStep(Arc<AtomicUsize>);

impl Drop for InStep {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
