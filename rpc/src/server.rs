//! Servers: their programs serve the calls of peers.
//!
//! ```text
//!   peers ──▶ links ──▶ dispatch ──▶ programs
//!                 ◀── replies ◀── outbox ◀── now, or later from any thread
//! ```
//!
//! The owner of a server steps it, and the server never waits in a step. Links have their turns one
//! after the other, each for a batch, so that a link with many calls keeps no other link waiting.
//! Limits bound the calls and the memory of each link, and the number of links, of each peer and in
//! total.

mod caller;
mod callers;
mod config;
mod dispatch;
mod duplicates;
mod links;
mod outbox;
mod parking;
mod program;

pub use caller::Caller;
pub use callers::CallerEvent;
pub use config::{CallsConfig, ServerConfig, ServerCounters};
pub use dispatch::AlreadyRegistered;
pub use duplicates::{DuplicateLimits, Duplicates, Key, Verdict};
pub use program::{Program, Refusal, Repeat, Request};

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use heddle_rpcrdma::binding::Binding;
use heddle_verbs::{
    CmEvent, Device, DeviceError, EventQueue, ListenFailure, ListenerId, Sleeper, Waker,
};

pub(crate) use self::dispatch::{Dispatch, Dispatched, From};
pub(crate) use self::outbox::Outbox;

use self::callers::Callers;
use self::links::Links;
use self::parking::Parking;
use crate::memory::Memory;
use crate::transport::LinkEvent;

/// A call of a connection that expects a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Number of the connection.
    pub(crate) link: u64,
    /// Number of the call on the connection.
    pub(crate) call: u64,
}

/// The reason why no server could be created, or the server cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system gave no descriptor to sleep on.
    #[error("no descriptor: {0}")]
    Sleeper(#[from] std::io::Error),
    /// The listener could not be created, or has ended.
    #[error("cannot listen: {0}")]
    Listen(ListenFailure),
    /// The device did not report in time whether the listener was created.
    #[error("nothing was heard of the listener in time")]
    TimedOut,
}

/// The state of the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listening {
    NotYet,
    Yes,
    Failed(ListenFailure),
}

/// How long the creation of a listener may take.
const SETUP: Duration = Duration::from_secs(30);

/// The largest number of connection events in one step.
const EVENTS: usize = 64;

/// A server of RPC programs.
#[derive(Debug)]
pub struct Server {
    device: Device,
    listener: ListenerId,
    listening: Listening,
    events: EventQueue,
    sleeper: Sleeper,
    memory: Memory,
    links: Links,
    dispatch: Dispatch,
    outbox: Outbox,
    parking: Parking,
    counters: ServerCounters,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Creates a server that begins to listen at `addr`.
    ///
    /// # Errors
    /// Returns the error of the device. [`listening`](Server::listening) later reports that the
    /// server cannot listen at `addr`.
    pub fn new(
        device: &Device,
        addr: SocketAddr,
        config: ServerConfig,
    ) -> Result<Server, ServerError> {
        let sleeper = Sleeper::with_fd()?;
        let pd = device.alloc_pd()?;
        let waker = config.waker.clone().unwrap_or_else(|| sleeper.waker());
        let memory = Memory::of_server(device, pd, config.memory, waker.clone())?;
        let events = EventQueue::new(Some(waker.clone()));
        let listener = device.listen(addr, config.listen.clone(), &events)?;
        let outbox = Outbox::new(Some(waker.clone()));
        let dispatch = Dispatch::new(config.duplicates, outbox.clone());
        let calls = config.calls.as_ref();
        let callers = calls.map(|calls| Callers::new(calls, &memory, &outbox));
        let links = Links::new(device.clone(), pd, memory.clone(), config, waker, callers);
        let parking = Parking::new(memory.clone());
        Ok(Server {
            device: device.clone(),
            listener,
            listening: Listening::NotYet,
            events,
            sleeper,
            memory,
            links,
            dispatch,
            outbox,
            parking,
            counters: ServerCounters::default(),
            stop: Arc::default(),
        })
    }

    /// Creates a server, and waits until peers can connect.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn bind(
        device: &Device,
        addr: SocketAddr,
        config: ServerConfig,
    ) -> Result<Server, ServerError> {
        let mut server = Server::new(device, addr, config)?;
        let end = Instant::now() + SETUP;
        while !server.listening()? {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ServerError::TimedOut);
            }
            server.wait(left);
            server.step();
        }
        Ok(server)
    }

    /// Returns true if peers can connect by now.
    ///
    /// # Errors
    /// [`ServerError::Listen`] when peers cannot connect, or cannot connect any more.
    pub fn listening(&self) -> Result<bool, ServerError> {
        match self.listening {
            Listening::NotYet => Ok(false),
            Listening::Yes => Ok(true),
            Listening::Failed(error) => Err(ServerError::Listen(error)),
        }
    }

    /// Adds a program, for some of its versions. `binding` states which items of its calls and
    /// results may be placed.
    ///
    /// # Errors
    /// Returns an error when the server already has a program for any of these versions.
    pub fn register(
        &mut self,
        program: u32,
        versions: RangeInclusive<u32>,
        binding: impl Binding + Send + 'static,
        handler: impl Program + 'static,
    ) -> Result<(), AlreadyRegistered> {
        self.dispatch.register(program, versions, Box::new(binding), Box::new(handler))
    }

    /// Registers `watcher` for clients that the server can call, and for clients that are gone, if
    /// the server makes calls ([`ServerConfig::calls`]). The thread that steps the server calls
    /// `watcher`, which must not wait.
    pub fn watch(&mut self, watcher: impl FnMut(CallerEvent) + Send + 'static) {
        if let Some(callers) = self.links.callers() {
            callers.watch(Box::new(watcher));
        }
    }

    /// Returns the memory for items of results. The transport cannot place data in other memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the counters of the server.
    pub fn counters(&self) -> ServerCounters {
        self.counters
    }

    /// Returns the number of connections, of all peers.
    pub fn connections(&self) -> usize {
        self.links.len()
    }

    /// Returns the number of connections that speak this version of RPC-over-RDMA, 1 or 2. The
    /// first message of a connection shows its version.
    pub fn connections_speaking(&self, version: u32) -> usize {
        self.links.speaking(version)
    }

    /// Takes no more connections; existing connections go on.
    pub fn stop_listening(&mut self) {
        // Ignore an error: without a control plane there is no listener, and a second call finds
        // none to remove.
        let _ = self.device.unlisten(self.listener);
    }

    /// Ends all connections in order. Clients connect again and repeat the calls that have no
    /// reply; programs go on with the calls that they have.
    pub fn disconnect_all(&mut self) {
        self.links.disconnect();
    }

    /// Ends each connection in order, for good, when the calls that programs have from it are
    /// replied to and the client has the replies. The server does not execute calls that arrive
    /// meanwhile: clients repeat them elsewhere.
    pub fn drain(&mut self) {
        self.links.drain();
    }

    /// Does all pending work without waiting. Returns true if there was any.
    pub fn step(&mut self) -> bool {
        self.outbox.awake();
        let now = Instant::now();
        let mut any = self.outbox.take_rung();
        let mut has_room = any && self.take_parked();
        for _ in 0..EVENTS {
            let Some(event) = self.events.poll() else { break };
            self.handle_event(now, event);
            any = true;
        }
        if self.memory.take_returned() {
            any |= self.links.memory_returned();
            has_room = true;
        }
        if has_room || self.parking.is_due(now) {
            for request in self.parking.take(now) {
                any = true;
                self.dispatch.give(request);
            }
        }
        let Server { links, dispatch, counters, .. } = self;
        any |= links.step(now, counters, |from, link, number, event, counters| {
            let LinkEvent::Call { call, stream, items } = event else { return };
            let ticket = Ticket { link: number, call };
            match dispatch.call(from, ticket, (stream, items), counters) {
                Dispatched::Given => {}
                Dispatched::Replied(message) => link.reply(call, &message),
                Dispatched::Refused => link.refuse(call),
            }
        });
        for (ip, link) in self.links.take_gone() {
            self.dispatch.leave(ip, link);
        }
        while let Some((tickets, message)) = self.dispatch.next_reply() {
            any = true;
            for Ticket { link, call } in tickets {
                if let Some(link) = self.links.get(link) {
                    link.reply(call, &message);
                    link.post();
                }
            }
        }
        any
    }

    /// Takes the calls that programs let wait for room. Returns true if there are any.
    fn take_parked(&mut self) -> bool {
        let parked = self.outbox.take_parked();
        let any = !parked.is_empty();
        self.counters.memory_waits += parked.len() as u64;
        parked.into_iter().for_each(|parked| self.parking.push(parked));
        any
    }

    fn handle_event(&mut self, now: Instant, event: CmEvent) {
        match event {
            CmEvent::Listening { id } if id == self.listener => self.listening = Listening::Yes,
            CmEvent::ListenFailed { id, error } if id == self.listener => {
                self.listening = Listening::Failed(error);
            }
            event => self.links.handle_event(now, event, &self.events, &mut self.counters),
        }
    }

    /// Sleeps until something arrives, at most for `timeout`.
    pub fn wait(&mut self, timeout: Duration) {
        let deadline = self.deadline();
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.into_iter().chain([timeout]).min().unwrap_or(timeout);
        if !timeout.is_zero() {
            self.sleeper.sleep(timeout, || !self.arm());
        }
        self.outbox.awake();
    }

    /// Returns how long the server needs no step if nothing arrives; `None` for ever.
    pub fn timeout(&self) -> Option<Duration> {
        self.deadline().map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn deadline(&self) -> Option<Instant> {
        self.links.deadline().into_iter().chain(self.parking.deadline()).min()
    }

    /// Returns a descriptor that becomes readable when something arrives, once [`arm`](Server::arm)
    /// was called; it is for an event loop.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleeper.fd()
    }

    /// Arms the descriptor to become readable when something arrives. Returns false if something
    /// has arrived already; the caller must then call [`step`](Server::step) first. Clear the
    /// descriptor before this call ([`clear`](Server::clear)).
    pub fn arm(&self) -> bool {
        let links = self.links.arm();
        let quiet = self.events.is_empty() && !self.memory.has_returned();
        self.outbox.may_sleep() && links && quiet && !self.is_stopped()
    }

    /// Makes the descriptor unreadable again; see [`fd`](Server::fd).
    pub fn clear(&self) {
        self.sleeper.clear();
    }

    /// Serves until the server is stopped ([`stopper`](Server::stopper)).
    ///
    /// # Errors
    /// Returns an error when the listener has failed.
    pub fn run(&mut self) -> Result<(), ServerError> {
        while !self.is_stopped() {
            if !self.step() {
                self.listening()?;
                self.wait(Duration::from_secs(60));
            }
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns a waker that ends a [`wait`](Server::wait), from another thread.
    pub fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    /// Returns a stopper that ends [`run`](Server::run), from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone(), waker: self.sleeper.waker() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_listening();
        // Reject pending connection requests, so that their clients need not wait.
        while let Some(event) = self.events.poll() {
            if let CmEvent::ConnectRequest { id, .. } = event {
                let _ = self.device.reject(id, Vec::new());
            }
        }
        self.links.close();
    }
}

/// A handle that stops a server. See [`Server::stopper`].
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Stopper {
    /// Makes the server's `run` return after its current step.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }
}
