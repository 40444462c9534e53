//! Servers: programs that peers call.
//!
//! ```text
//!   peers ──▶ links ──▶ dispatch ──▶ programs
//!                 ◀── replies ◀── outbox ◀── now, or later from any thread
//! ```
//!
//! A server is stepped by its owner and never waits in a step. Links have their turn one after the
//! other, each for a batch, so that one with many calls keeps none waiting; what each may have of calls
//! and of memory is bounded, and so is the number of links, of each peer and of all.

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

pub(crate) use self::dispatch::{Dispatch, From, Taken};
pub(crate) use self::outbox::Outbox;

use self::callers::Callers;
use self::links::Links;
use self::parking::Parking;
use crate::memory::Memory;
use crate::transport::LinkEvent;

/// A call of a connection, to be replied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Which connection.
    pub(crate) link: u64,
    /// Which of its calls.
    pub(crate) call: u64,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No descriptor to sleep on.
    #[error("no descriptor: {0}")]
    Sleeper(#[from] std::io::Error),
    /// Nobody can listen there, or nobody does any more.
    #[error("cannot listen: {0}")]
    Listen(ListenFailure),
    /// Whether somebody listens was not known in time.
    #[error("nothing was heard of the listener in time")]
    TimedOut,
}

/// Whether peers can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listening {
    NotYet,
    Yes,
    Failed(ListenFailure),
}

/// How long a listener may take to come about.
const SETUP: Duration = Duration::from_secs(30);

/// Connection events of one step.
const EVENTS: usize = 64;

/// A server.
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
    /// A server that begins to listen at `addr`.
    ///
    /// # Errors
    /// What the device says; that nobody can listen there is told later, by
    /// [`listening`](Server::listening).
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

    /// The same, and waits until peers can connect.
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

    /// Whether peers can connect by now.
    ///
    /// # Errors
    /// [`ServerError::Listen`], when they cannot, or cannot any more.
    pub fn listening(&self) -> Result<bool, ServerError> {
        match self.listening {
            Listening::NotYet => Ok(false),
            Listening::Yes => Ok(true),
            Listening::Failed(error) => Err(ServerError::Listen(error)),
        }
    }

    /// Gives it a program, for some of its versions. `binding` says which items of its calls and results
    /// may be placed.
    ///
    /// # Errors
    /// When it has one for any of these versions.
    pub fn register(
        &mut self,
        program: u32,
        versions: RangeInclusive<u32>,
        binding: impl Binding + Send + 'static,
        handler: impl Program + 'static,
    ) -> Result<(), AlreadyRegistered> {
        self.dispatch.register(program, versions, Box::new(binding), Box::new(handler))
    }

    /// Has `watcher` told of clients that can be called, and of those that are gone: of a server that makes
    /// calls ([`ServerConfig::calls`]). It is called by the thread that steps the server, and must not wait.
    pub fn watch(&mut self, watcher: impl FnMut(CallerEvent) + Send + 'static) {
        if let Some(callers) = self.links.callers() {
            callers.watch(Box::new(watcher));
        }
    }

    /// Memory for items of results: what lies elsewhere cannot be placed.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What was counted.
    pub fn counters(&self) -> ServerCounters {
        self.counters
    }

    /// Connections there are, of all peers.
    pub fn connections(&self) -> usize {
        self.links.len()
    }

    /// Of them, those that speak this version of RPC-over-RDMA, 1 or 2: it is known with the first
    /// message.
    pub fn connections_speaking(&self, version: u32) -> usize {
        self.links.speaking(version)
    }

    /// Takes no more connections; those there are go on.
    pub fn stop_listening(&mut self) {
        // Without a control plane nobody listens, and a second time there is nothing to take back.
        let _ = self.device.unlisten(self.listener);
    }

    /// Ends all connections, in order. Clients make theirs again, with the calls that have no reply;
    /// programs go on with those that they have.
    pub fn disconnect_all(&mut self) {
        self.links.disconnect();
    }

    /// For good, ends each connection in order when the calls of it that programs have are replied to, and
    /// the replies with the client. Calls that come meanwhile are not executed: clients make them again,
    /// elsewhere.
    pub fn drain(&mut self) {
        self.links.drain();
    }

    /// Does what there is to do, without waiting; whether there was anything.
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
                Taken::Given => {}
                Taken::Replied(message) => link.reply(call, &message),
                Taken::Refused => link.refuse(call),
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

    /// Programs have calls wait for room; whether any does.
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

    /// Sleeps until something has come, at most for `timeout`.
    pub fn wait(&mut self, timeout: Duration) {
        let deadline = self.deadline();
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.into_iter().chain([timeout]).min().unwrap_or(timeout);
        if !timeout.is_zero() {
            self.sleeper.sleep(timeout, || !self.arm());
        }
        self.outbox.awake();
    }

    /// How long it may be left alone when nothing comes; `None` for ever.
    pub fn timeout(&self) -> Option<Duration> {
        self.deadline().map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn deadline(&self) -> Option<Instant> {
        self.links.deadline().into_iter().chain(self.parking.deadline()).min()
    }

    /// Readable when something has come, once [`arm`](Server::arm) was called: for an event loop.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleeper.fd()
    }

    /// Has the descriptor become readable when something comes; false when something has come already,
    /// and [`step`](Server::step) is to be called first. Clear the descriptor before
    /// ([`clear`](Server::clear)).
    pub fn arm(&self) -> bool {
        let links = self.links.arm();
        let quiet = self.events.is_empty() && !self.memory.has_returned();
        self.outbox.may_sleep() && links && quiet && !self.is_stopped()
    }

    /// Forgets that something has come; see [`fd`](Server::fd).
    pub fn clear(&self) {
        self.sleeper.clear();
    }

    /// Serves until it is stopped ([`stopper`](Server::stopper)).
    ///
    /// # Errors
    /// When nobody listens any more.
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

    /// Ends a [`wait`](Server::wait), from another thread.
    pub fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    /// What ends [`run`](Server::run), from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone(), waker: self.sleeper.waker() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_listening();
        // Who has asked and was not heard is told, instead of waiting.
        while let Some(event) = self.events.poll() {
            if let CmEvent::ConnectRequest { id, .. } = event {
                let _ = self.device.reject(id, Vec::new());
            }
        }
        self.links.close();
    }
}

/// See [`Server::stopper`].
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Stopper {
    /// The server's `run` returns after its step.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }
}
