//! Programs of a client, which its server calls on the client's connection.
//!
//! The thread that drives the client calls the programs, without holding a lock of the client, and
//! one at a time. Other threads leave calls that arrive meanwhile to the thread that runs a
//! program.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};

use heddle_rpcrdma::binding::Binding;
use heddle_rpcrdma::property::ReverseSupport;
use heddle_verbs::{DeviceError, Waker};

use super::{Client, Shared};
use crate::server::{
    AlreadyRegistered, Dispatch, Dispatched, DuplicateLimits, From, Outbox, Program, ServerCounters,
};
use crate::thread::here;

/// The limits of a client with programs for the calls of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeConfig {
    /// Length in bytes of the registered memory for the server's calls and the replies to them.
    /// Calls leave a quarter for results, and wait when there is no more.
    pub memory: usize,
    /// Limits for the replies that are kept for repeated calls.
    pub duplicates: DuplicateLimits,
    /// The level of reverse-direction support that the client announces to the server in version 2.
    /// In version 1 each call and reply is one message.
    pub takes: ReverseSupport,
}

impl Default for ServeConfig {
    /// The default has 4 MiB of memory; calls and replies may have chunks, as in the forward
    /// direction.
    fn default() -> ServeConfig {
        let takes = ReverseSupport::General;
        ServeConfig { memory: 4 << 20, duplicates: DuplicateLimits::default(), takes }
    }
}

/// The reason why a client cannot take a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// The client already has a program for some of these versions.
    #[error(transparent)]
    AlreadyRegistered(#[from] AlreadyRegistered),
    /// The device has no memory for calls.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A running program of the client asked for this, which is not allowed.
    #[error("a program that runs cannot add another")]
    InProgram,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

/// The programs of a client.
pub(super) struct Programs {
    dispatch: Mutex<(Dispatch, ServerCounters)>,
    /// The thread that uses the programs; 0 when none does.
    running: AtomicUsize,
    outbox: Outbox,
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Programs")
    }
}

impl Programs {
    pub(super) fn new(limits: DuplicateLimits, waker: Waker) -> Programs {
        let outbox = Outbox::new(Some(waker));
        let dispatch = Dispatch::new(limits, outbox.clone());
        let dispatch = Mutex::new((dispatch, ServerCounters::default()));
        Programs { dispatch, running: AtomicUsize::new(0), outbox }
    }

    /// Calls `f` with the programs, unless another caller uses them.
    fn with<T>(&self, f: impl FnOnce(&mut Dispatch, &mut ServerCounters) -> T) -> Option<T> {
        struct Running<'a>(&'a AtomicUsize);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Relaxed);
            }
        }
        let mut programs = match self.dispatch.try_lock() {
            Ok(programs) => programs,
            // A program has panicked; other programs go on.
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.running.store(here(), Ordering::Relaxed);
        let _running = Running(&self.running);
        let (dispatch, counters) = &mut *programs;
        Some(f(dispatch, counters))
    }
}

impl Client {
    /// Adds a program, for some of its versions, that the server may call on the client's
    /// connection. `binding` states which items of its calls and results may be placed.
    ///
    /// Connections made from now on announce the program to the server, in version 2. The client
    /// then connects without a call of its own, and again when the connection is lost, because the
    /// server cannot connect. The application must drive the client for that ([`run`](Client::run),
    /// or an event loop). In version 1 a server learns of its client from the client's first call,
    /// and must know from that call that the client has a program.
    ///
    /// The thread that drives the client calls the program without holding a lock. The program may
    /// make calls of the client and wait for them; calls that arrive meanwhile wait for the
    /// program. Items of its results are in [`Client::memory`], or are items of arguments. A
    /// program that holds a handle of its client keeps the client alive until
    /// [`close`](Client::close).
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn serve(
        &self,
        program: u32,
        versions: RangeInclusive<u32>,
        binding: impl Binding + Send + 'static,
        handler: impl Program + 'static,
    ) -> Result<(), ServeError> {
        let Shared { programs, .. } = &*self.0;
        let mut added = Some((versions, binding, handler));
        loop {
            if programs.running.load(Ordering::Relaxed) == here() {
                return Err(ServeError::InProgram);
            }
            let registered = programs.with(|dispatch, _| {
                let (versions, binding, handler) = added.take()?;
                Some(dispatch.register(program, versions, Box::new(binding), Box::new(handler)))
            });
            match registered.flatten() {
                Some(registered) => break registered?,
                // A program runs on another thread.
                None => std::thread::yield_now(),
            }
        }
        let mut state = self.0.lock();
        if state.closed {
            drop(state);
            self.0.end_programs();
            return Err(ServeError::Closed);
        }
        state.session.begin_serving(&programs.outbox)?;
        drop(state);
        self.0.waker.wake();
        Ok(())
    }

    /// Returns the counters of the server's calls: given to programs, repeated, and refused.
    pub fn served(&self) -> ServerCounters {
        self.0.lock().session.served()
    }
}

impl Shared {
    /// Calls programs and sends answers. Returns true if there was work, and `None` when another
    /// thread, or a program on this thread, is serving already.
    pub(super) fn serve(&self) -> Option<bool> {
        let mut any = false;
        loop {
            any |= self.programs.with(|dispatch, counters| {
                let mut any = false;
                while self.serve_one(dispatch, counters) {
                    any = true;
                }
                any
            })?;
            // Look again: other threads left calls to this thread that arrived after its last look.
            let state = self.lock();
            if state.closed {
                drop(state);
                self.end_programs();
                return Some(any);
            }
            if !state.session.has_to_serve() {
                return Some(any);
            }
        }
    }

    fn serve_one(&self, dispatch: &mut Dispatch, counters: &mut ServerCounters) -> bool {
        let (arrived, server) = {
            let mut state = self.lock();
            (state.session.next_arrived(), state.session.server())
        };
        let mut any = arrived.is_some();
        if let Some(call) = arrived {
            let from = From { peer: server, share: None, caller: None };
            let taken = dispatch.call(from, call.ticket, (call.stream, call.items), counters);
            let mut state = self.lock();
            state.session.count_served(*counters);
            match taken {
                Dispatched::Given => {}
                Dispatched::Replied(message) => state.session.reply(call.ticket, &message),
                Dispatched::Refused => state.session.refuse(call.ticket),
            }
        }
        while let Some((tickets, message)) = dispatch.next_reply() {
            any = true;
            let mut state = self.lock();
            for ticket in tickets {
                state.session.reply(ticket, &message);
            }
        }
        any
    }

    /// Drops the programs of a closed client. If a program runs, its thread drops them when the
    /// program is done.
    pub(super) fn end_programs(&self) {
        let programs = self.programs.with(|dispatch, _| dispatch.close());
        drop(programs);
    }
}
