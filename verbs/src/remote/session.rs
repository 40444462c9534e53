//! The serving side of one application: lines in, lines out.
//!
//! Whoever has the socket calls [`handle`](Session::handle) with each line and sends what
//! [`poll_transmit`](Session::poll_transmit) gives; while [`has_work`](Session::has_work),
//! [`work`](Session::work) is called as well; at the end [`close`](Session::close), until it is done.
//! None of them waits, and each does a bounded amount of work:
//!
//! - memory is mapped, sealed and populated by another thread ([`closer`]; small registrations by this one, where
//!   all clients are [one user's](Session::of_own_user)), and never cleared (see [`remote`](super));
//! - a registration for which memory is on its way back is refused as busy, and the client tries again;
//! - objects of an application that is gone are dropped a few at a time, by `close`.
//!
//! A request leads to one answer at most, so it is the caller who bounds what waits to be sent: while
//! much does, it reads no more lines and asks for no more. Events then wait where those of applications
//! in this process do, and are bounded as those are: while thousands were not taken by the application,
//! listeners refuse peers, and further connections are refused.

use core::net::SocketAddr;
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use heddle_base::counters;
use heddle_cm::{AppId, Event as CmEvent, ListenFailure, ListenerId};
use heddle_socket::document::{Answer, Fault, FaultKind, VERSION, read_call, to_line};
use heddle_socket::wire::{ForeignFd, Inbox};
use serde::Serialize;

use super::policy::Policy;
use super::protocol::{Ports, Request, Told, ToldOfDevice};
use crate::account::{Account, Kind, Over, Reserved};
use crate::closer;
use crate::cq::Cq;
use crate::device::local::Local;
use crate::device::{Device, DeviceEvents, Hub};
use crate::error::DeviceError;
use crate::event::{EventQueue, Taken};
use crate::memory::{Region, RegisterError};
use crate::mr::Mr;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::waker::Waker;
use crate::wakeup::Lent;

mod connections;
mod holding;
mod objects;
mod opening;
mod preparing;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests;

use connections::{Bound, Listener};
use objects::Objects;
use opening::Job;

counters! {
    /// What a session has seen.
    pub struct SessionCounters {
        /// Requests that were read, whatever became of them.
        requests,
        /// Those that were refused.
        refused,
        /// Those of them that were beyond a quota.
        over_quota,
        /// Events that were passed on.
        events,
    }
}

/// What an application of another process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionUsage {
    /// Octets of memory: of its device, and that it has brought.
    pub memory: u64,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// STags: regions, of those given back until their memory is, and windows.
    pub registrations: u32,
}

/// Octets to send, and descriptors to go with the first of them.
#[derive(Debug)]
pub struct Outgoing {
    /// One line.
    pub bytes: Vec<u8>,
    /// At most [`MAX_FDS`](heddle_socket::wire::MAX_FDS).
    pub fds: Vec<OwnedFd>,
}

/// Events that were passed on and not taken, beyond which the application can ask for none.
const MAX_UNTAKEN: usize = 1 << 14;

/// Objects dropped at a time when the application is gone.
const DROPPED: usize = 64;

/// One application of another process.
///
/// Whoever has the socket calls [`handle`](Session::handle) with each line and sends what
/// [`poll_transmit`](Session::poll_transmit) gives, while there is room; while
/// [`has_work`](Session::has_work), [`work`](Session::work) is called as well; at the end
/// [`close`](Session::close), until it is done. None of them waits. Dropped without being closed, it gives
/// everything back at once, and tells the control plane only if that has room.
#[derive(Debug)]
pub struct Session {
    hub: Arc<Hub>,
    policy: Policy,
    /// That of all sessions of the same principal.
    account: Arc<Account>,
    /// What the device itself takes of it; the memory, which comes first, as long as it is mapped.
    held: Vec<Reserved>,
    memory: Weak<Region>,
    /// What was asked for, for people.
    name: String,
    state: State,
    /// Where the control plane tells of listeners and connections.
    events: EventQueue,
    /// Where it tells of the device and its objects, once the application wants to know.
    device_events: Option<DeviceEvents>,
    /// Of whoever has the socket.
    waker: Waker,
    /// Of [`closer`].
    lane: usize,
    /// All clients of the RNIC are programs of its own user.
    is_own_users: bool,
    /// Where each event that was passed on is to be counted when it is taken, the oldest first.
    untaken: VecDeque<Taken>,
    out: VecDeque<Outgoing>,
    jobs: VecDeque<Job>,
    objects: Objects,
    listeners: HashMap<u64, Listener>,
    /// Addresses that are reserved.
    bound: HashMap<u64, Bound>,
    /// Peers that wait for the application's answer.
    asked: HashSet<u64>,
    /// Connections it makes or has accepted.
    conns: HashMap<u64, Reserved>,
    counters: SessionCounters,
}

#[derive(Debug)]
enum State {
    /// The first request is awaited.
    New,
    /// It is being carried out.
    Opening,
    Open(Open),
    /// The application has ended it, or is gone.
    Closing(Option<Open>),
}

#[derive(Clone, Debug)]
struct Open {
    device: Device,
    local: Arc<Local>,
    /// What it wakes workers with, for as long as it has a device.
    _lent: Option<Arc<Lent>>,
}

/// What a request has led to.
enum Outcome {
    /// An answer, with descriptors.
    Done(serde_json::Value, Vec<OwnedFd>),
    /// A job will answer.
    Later,
}

fn done(answer: &impl Serialize) -> Result<Outcome, Fault> {
    with_fds(answer, Vec::new())
}

fn with_fds(answer: &impl Serialize, fds: Vec<OwnedFd>) -> Result<Outcome, Fault> {
    let written = serde_json::to_value(answer);
    let value = written.map_err(|e| Fault::new(FaultKind::Failed, e.to_string()))?;
    Ok(Outcome::Done(value, fds))
}

impl Session {
    /// A session on `hub`, whose application may do what `policy` says and have what is left of
    /// `account`; `waker` is woken when there may be an event to send.
    pub fn new(hub: &Arc<Hub>, policy: Policy, account: Arc<Account>, waker: Waker) -> Session {
        Session {
            hub: hub.clone(),
            policy,
            account,
            held: Vec::new(),
            memory: Weak::new(),
            name: String::new(),
            state: State::New,
            events: EventQueue::new(Some(waker.clone())),
            device_events: None,
            waker,
            lane: closer::MEMORY,
            is_own_users: false,
            untaken: VecDeque::new(),
            out: VecDeque::new(),
            jobs: VecDeque::new(),
            objects: Objects::default(),
            listeners: HashMap::new(),
            bound: HashMap::new(),
            asked: HashSet::new(),
            conns: HashMap::new(),
            counters: SessionCounters::default(),
        }
    }

    /// Takes a request; `inbox` is where the line came from, for a descriptor that came with it.
    pub fn handle(&mut self, line: &[u8], inbox: &mut Inbox) {
        self.counters.requests += 1;
        let (id, outcome) = match read_call::<Request>(line) {
            Ok((id, request)) => {
                // Also where the request is refused: the next one is not to find what came with this.
                let fds = inbox.take_fds(request.descriptors());
                let fds = fds.ok_or_else(|| invalid("its descriptors did not come with it"));
                (id, fds.and_then(|fds| self.carry_out(id, request, fds)))
            }
            Err(refusal) => {
                self.counters.refused += 1;
                return self.send(refusal.id, *refusal, Vec::new());
            }
        };
        match outcome {
            Ok(Outcome::Later) => {}
            Ok(Outcome::Done(value, fds)) => self.send(id, Answer::ok(id, &value), fds),
            Err(fault) => self.refuse(id, fault),
        }
    }

    fn refuse(&mut self, id: u64, fault: Fault) {
        self.counters.refused += 1;
        self.counters.over_quota += u64::from(fault.kind == FaultKind::Quota);
        self.send(id, Answer::fault(id, fault), Vec::new());
    }

    fn send(&mut self, id: u64, answer: Answer, fds: Vec<OwnedFd>) {
        // Nobody waits for what has no number; what could not be read as a request is said.
        if id != 0 || answer.error.as_ref().is_some_and(|e| e.kind == FaultKind::Malformed) {
            let fds_count = u32::try_from(fds.len()).unwrap_or(0);
            let bytes = to_line(&Answer { fds: fds_count, ..answer });
            self.out.push_back(Outgoing { bytes, fds });
        }
    }

    /// The next line to send: answers first, then events.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        if let Some(answer) = self.out.pop_front() {
            return Some(answer);
        }
        let Some((event, taken)) = self.events.pass_on() else {
            let device = self.device_events.as_ref()?.poll()?;
            let bytes = to_line(&ToldOfDevice { v: VERSION, device });
            return Some(Outgoing { bytes, fds: Vec::new() });
        };
        self.note(&event);
        self.untaken.push_back(taken);
        self.counters.events += 1;
        let bytes = to_line(&Told { v: VERSION, event });
        Some(Outgoing { bytes, fds: Vec::new() })
    }

    /// Whether [`work`](Session::work) has something to do.
    pub fn has_work(&self) -> bool {
        self.jobs.front().is_some_and(Job::is_ready)
    }

    /// Whether another thread is preparing memory. It wakes this session when there is
    /// [work](Session::has_work).
    pub fn is_preparing(&self) -> bool {
        self.jobs.front().is_some_and(|job| !job.is_ready())
    }

    /// Has the threads of this [lane](closer::lane_of) do what may take long.
    #[must_use]
    pub fn on_lane(self, lane: usize) -> Session {
        Session { lane, ..self }
    }

    /// For an RNIC that serves programs of its own user alone, who may end it in any case. It takes files that are not
    /// [sealed](crate::Region::of_file); and [`handle`](Session::handle) and [`work`](Session::work) populate small
    /// registrations themselves, for as long as the client holds its file: that saves two wake-ups.
    #[must_use]
    pub fn of_own_user(self) -> Session {
        Session { is_own_users: true, ..self }
    }

    /// Goes on where memory has been prepared.
    pub fn work(&mut self) {
        self.step();
    }

    /// Ends all the application has, a part of it with each call; true when all is done. The control
    /// plane has heard of it as soon as it could.
    pub fn close(&mut self) -> bool {
        self.jobs.clear();
        self.end_device();
        let State::Closing(open) = &mut self.state else { return true };
        if let Some(o) = open
            && o.device.close() == Err(DeviceError::Overloaded)
        {
            return false;
        }
        if !self.objects.drop_some(DROPPED) {
            return false;
        }
        *open = None;
        self.listeners.clear();
        self.bound.clear();
        self.conns.clear();
        self.objects.linger(&self.account);
        // Frames that are on their way may still refer to the memory.
        let mut held = core::mem::take(&mut self.held).into_iter();
        if let Some(bytes) = held.next() {
            let memory = core::mem::take(&mut self.memory);
            self.account.linger(bytes, move || memory.strong_count() == 0);
        }
        true
    }

    /// What the application may do from here on. Listeners at addresses where it may listen no more end,
    /// and it hears of that; all else that it has stays.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        let State::Open(Open { device, .. }) = &self.state else { return };
        let device = device.clone();
        let may = |at: &SocketAddr| self.policy.may_listen(*at);
        let ended: Vec<_> =
            self.listeners.iter().filter(|(_, l)| !may(&l.addr)).map(|(id, _)| *id).collect();
        for id in ended {
            // One that the control plane has no room for now ends with the next policy, or never was.
            if device.unlisten(ListenerId(id)).is_ok() {
                self.forget_listener(id);
                let error = ListenFailure::Withdrawn;
                let event = CmEvent::ListenFailed { id: ListenerId(id), error };
                self.events.push(event, &Taken::default());
            }
        }
    }

    /// The application is to have nothing from here on.
    fn end_device(&mut self) {
        self.device_events = None;
        self.state = match std::mem::replace(&mut self.state, State::Closing(None)) {
            State::Open(open) => State::Closing(Some(open)),
            closing @ State::Closing(_) => closing,
            State::New | State::Opening => State::Closing(None),
        };
    }

    /// Whether memory of it has failed: the session has to end.
    pub fn has_lost_memory(&self) -> bool {
        let State::Open(o) = &self.state else { return false };
        o.device.area().is_lost()
            || o.device.memory().is_some_and(|m| m.is_lost())
            || self.objects.has_lost_memory()
    }

    /// What the application calls itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number, once it has a device.
    pub fn app(&self) -> Option<AppId> {
        match &self.state {
            State::Open(o) => Some(o.device.app()),
            _ => None,
        }
    }

    /// What it has seen.
    pub fn counters(&self) -> SessionCounters {
        self.counters
    }

    /// What it has.
    pub fn usage(&mut self) -> SessionUsage {
        let (own, mrs) = match &self.state {
            State::Open(o) => (o.device.memory().map_or(0, |m| m.len()), o.device.mr_usage()),
            _ => return SessionUsage::default(),
        };
        SessionUsage {
            memory: (own as u64).saturating_add(self.objects.brought() as u64),
            queue_pairs: self.objects.queue_pairs(),
            registrations: mrs.regions.saturating_add(mrs.windows),
        }
    }

    /// Connections it has, and listeners.
    pub fn connections(&self) -> (usize, usize) {
        (self.conns.len(), self.listeners.len())
    }

    fn carry_out(
        &mut self,
        id: u64,
        request: Request,
        fds: Vec<ForeignFd>,
    ) -> Result<Outcome, Fault> {
        if let Request::DeviceOpen(args) = request {
            return self.open(id, args, fds);
        }
        let open = match &self.state {
            State::Open(open) => open.clone(),
            State::New | State::Opening => return Err(invalid("the device is not open")),
            State::Closing(_) => return Err(invalid("the device is closed")),
        };
        match request {
            Request::AddRegion(args) => self.add_region(id, args, fds),
            Request::RegisterMr(args) => match self.objects.sparse(args.region) {
                Some(region) => self.register_sparse(id, args, region),
                None => {
                    let request = Request::RegisterMr(args);
                    let result = self.objects.carry_out(&open, &self.account, request);
                    result.map_err(|refused| refused.into_fault(|e| self.fault(e)))
                }
            },
            Request::ReserveAddr(_)
            | Request::DestroyReservedAddr(_)
            | Request::Listen(_)
            | Request::Unlisten(_)
            | Request::Connect(_)
            | Request::Accept(_)
            | Request::Reject(_)
            | Request::Disconnect(_)
            | Request::Taken(_) => self.carry_out_connection(&open, request),
            Request::Ports => {
                done(&Ports { ports: open.device.ports().map_err(|e| self.fault(e))? })
            }
            Request::Watch => {
                let held = match &self.device_events {
                    Some(_) => None,
                    // Of this process: an `epoll` and an event descriptor.
                    None => Some(self.account.take(Kind::Descriptors, 2).map_err(over)?),
                };
                let events = open.device.events().map_err(|e| self.fault(e))?;
                events.set_reader(self.waker.clone());
                if held.is_some() {
                    self.held.extend(held);
                    self.device_events = Some(events);
                }
                done(&())
            }
            Request::Close => {
                open.device.close().map_err(|e| self.fault(e))?;
                self.end_device();
                done(&())
            }
            other => {
                let result = self.objects.carry_out(&open, &self.account, other);
                result.map_err(|refused| refused.into_fault(|e| self.fault(e)))
            }
        }
    }

    /// An error of the device, as the client is told.
    fn fault(&self, error: DeviceError) -> Fault {
        use DeviceError as E;
        let kind = match &error {
            E::TooMany { .. } | E::Area(_) | E::Register(RegisterError::Quota { .. }) => {
                FaultKind::Quota
            }
            E::Register(
                RegisterError::NoMemory { .. }
                | RegisterError::TooManyRegions
                | RegisterError::Mr(heddle_iwarp::MrError::Full),
            ) if self.hub.registry().draining() > 0 => FaultKind::Busy,
            E::Register(
                RegisterError::NoMemory { .. }
                | RegisterError::TooManyRegions
                | RegisterError::Mr(heddle_iwarp::MrError::Full),
            ) => FaultKind::Quota,
            E::ForeignPd(_) | E::ForeignCq | E::ForeignSrq | E::ForeignQp(_) => FaultKind::NotFound,
            E::Overloaded | E::CqResizing => FaultKind::Busy,
            E::Gone => FaultKind::Failed,
            _ => FaultKind::Invalid,
        };
        Fault::new(kind, error.to_string())
    }
}

/// Why a request about an object is refused.
enum Refused {
    Fault(Fault),
    Device(DeviceError),
}

impl Refused {
    fn into_fault(self, by_device: impl FnOnce(DeviceError) -> Fault) -> Fault {
        match self {
            Refused::Fault(fault) => fault,
            Refused::Device(e) => by_device(e),
        }
    }
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Refused {
        Refused::Fault(fault)
    }
}

impl From<DeviceError> for Refused {
    fn from(e: DeviceError) -> Refused {
        Refused::Device(e)
    }
}

fn invalid(text: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Invalid, text)
}

fn not_found(text: impl Into<String>) -> Fault {
    Fault::new(FaultKind::NotFound, text)
}

fn over(over: Over) -> Fault {
    Fault::new(FaultKind::Quota, over.to_string())
}

fn quota(what: &str, most: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Quota, format!("no more than {most} {what}"))
}
