//! Programs of a client, which its server calls on the client's connection.
//!
//! Whoever drives the client calls them, under no lock of the client, and one at a time. What comes while
//! one runs is left to the thread that runs it.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};

use heddle_rpcrdma::binding::Binding;
use heddle_rpcrdma::property::ReverseSupport;
use heddle_verbs::{DeviceError, Waker};

use super::{Client, Shared};
use crate::server::{
    AlreadyRegistered, Dispatch, DuplicateLimits, From, Outbox, Program, ServerCounters, Taken,
};
use crate::thread::here;

/// What a client with programs gives to the calls of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeConfig {
    /// Octets of registered memory, for the calls that come and the replies to them. Calls leave a quarter
    /// to results, and wait when there is no more.
    pub memory: usize,
    /// Replies that are kept for calls that come again.
    pub duplicates: DuplicateLimits,
    /// What is taken of the reverse direction in version 2, and told to the server. Version 1 has it in one
    /// message each way.
    pub takes: ReverseSupport,
}

impl Default for ServeConfig {
    /// 4 MiB of memory; calls and replies may have chunks, as in the other direction.
    fn default() -> ServeConfig {
        let takes = ReverseSupport::General;
        ServeConfig { memory: 4 << 20, duplicates: DuplicateLimits::default(), takes }
    }
}

/// A client cannot have a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// It has one for these versions.
    #[error(transparent)]
    AlreadyRegistered(#[from] AlreadyRegistered),
    /// No memory for calls.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A program of the client asks for it, and may not while it runs.
    #[error("a program that runs cannot add another")]
    InProgram,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

/// The programs of a client.
pub(super) struct Programs {
    dispatch: Mutex<(Dispatch, ServerCounters)>,
    /// The thread that has them; 0 when none has.
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

    /// Does `f` with them, unless somebody else has them.
    fn with<T>(&self, f: impl FnOnce(&mut Dispatch, &mut ServerCounters) -> T) -> Option<T> {
        struct Running<'a>(&'a AtomicUsize);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Relaxed);
            }
        }
        let mut programs = match self.dispatch.try_lock() {
            Ok(programs) => programs,
            // A program has panicked. Others go on.
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
    /// Gives the client a program, for some of its versions, that its server may call on the client's
    /// connection. `binding` says which items of its calls and results may be placed.
    ///
    /// Connections that are made from now on say so to the server, in version 2. The client then connects
    /// without a call of its own, and again when the connection is lost, as the server can not: something has
    /// to drive it ([`run`](Client::run), or an event loop). In version 1 a server hears of its client by the
    /// first call, and has to know by it that there is a program.
    ///
    /// The program is called by whoever drives the client, under no lock: it may make calls of the client,
    /// and wait for them; calls that come meanwhile wait for it. Items of its results lie in
    /// [`Client::memory`], or are those of arguments. A program that has a handle of its client keeps it
    /// alive, until [`close`](Client::close).
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

    /// Calls of the server's: what programs were given, what has come again, and what was refused.
    pub fn served(&self) -> ServerCounters {
        self.0.lock().session.served()
    }
}

impl Shared {
    /// Has programs called and answers sent; whether there was any, and `None` when another thread, or a
    /// program of this one, is about it.
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
            // What has come after the last look, and was left to this thread.
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
                Taken::Given => {}
                Taken::Replied(message) => state.session.reply(call.ticket, &message),
                Taken::Refused => state.session.refuse(call.ticket),
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

    /// Drops the programs of a client that is closed: when one runs, its thread does when it is done.
    pub(super) fn end_programs(&self) {
        let programs = self.programs.with(|dispatch, _| dispatch.close());
        drop(programs);
    }
}
