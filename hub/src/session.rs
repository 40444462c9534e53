//! The serving side of one application: lines in, lines out.
//!
//! The owner of the socket calls [`handle`](Session::handle) with each line and sends the lines
//! that [`poll_transmit`](Session::poll_transmit) returns; while [`has_work`](Session::has_work)
//! returns true, it also calls [`work`](Session::work); at the end it calls
//! [`close`](Session::close) until this returns true. None of these calls waits, and each does a
//! bounded amount of work:
//!
//! - another thread maps, seals and populates memory ([`closer`]; this thread itself populates
//!   small registrations where all clients are [one user's](Session::of_own_user)), and no thread
//!   clears memory (see [`remote`](super));
//! - the session refuses a registration as busy if memory for it is about to become free, and the
//!   client tries again;
//! - `close` drops the objects of an application that has ended, a few at a time.
//!
//! A request leads to at most one answer, so the caller bounds the lines that wait to be sent:
//! while many wait, the caller reads no more lines and requests no more. Events then wait where
//! those of applications in this process do, with the same bound: while the application has
//! thousands of events to take, listeners refuse peers, and the session refuses further
//! connections.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use heddle_base::counters;
use heddle_engine::Share;
use heddle_rings::wakeup::Lent;
use heddle_shm::account::{Account, Kind, Over, Reserved};
use heddle_shm::{Region, Waker, closer};
use heddle_socket::document::{Answer, Fault, FaultKind, VERSION, read_call, to_line};
use heddle_socket::wire::{ForeignFd, Inbox};
use heddle_types::{AppId, Event as CmEvent, ListenFailure, ListenerId};
use heddle_verbs::remote::protocol::{Ports, Request, Told, ToldOfDevice};
use heddle_verbs::{
    Cq, Device, DeviceError, DeviceEvents, EventQueue, Mr, Qp, RegisterError, Srq, TakenEvents,
};
use serde::Serialize;

use crate::Hub;
use crate::Policy;
use crate::local::Local;

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
    /// Counts the requests and events of a session.
    pub struct SessionCounters {
        /// Requests that the session has read, with any result.
        requests,
        /// Requests that the session has refused.
        refused,
        /// Requests that the session has refused because they exceeded a quota.
        over_quota,
        /// Events that the session has passed on.
        events,
    }
}

/// Resources that an application of another process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionUsage {
    /// Bytes of memory: that of the device and that which the application has brought.
    pub memory: u64,
    /// Queue pairs that the application has now.
    pub queue_pairs: usize,
    /// STags: windows, and regions, including unregistered regions until their memory is free.
    pub registrations: u32,
}

/// Bytes to send, and descriptors that go with the first byte.
#[derive(Debug)]
pub struct Outgoing {
    /// A whole line.
    pub bytes: Vec<u8>,
    /// Descriptors, at most [`MAX_FDS`](heddle_socket::wire::MAX_FDS).
    pub fds: Vec<OwnedFd>,
}

/// Number of events passed on and not taken beyond which the application cannot request new
/// connections.
const MAX_UNTAKEN: usize = 1 << 14;

/// Objects dropped at a time when the application has ended.
const DROPPED: usize = 64;

/// An application of another process.
///
/// The owner of the socket calls [`handle`](Session::handle) with each line and sends the lines
/// that [`poll_transmit`](Session::poll_transmit) returns, while there is room; while
/// [`has_work`](Session::has_work) returns true, it also calls [`work`](Session::work); at the end
/// it calls [`close`](Session::close) until this returns true. None of these calls waits. A session
/// that is dropped without being closed frees everything at once, and reports its end to the
/// control plane only if that has room.
#[derive(Debug)]
pub struct Session {
    hub: Arc<Hub>,
    policy: Policy,
    /// The account of all sessions of the same principal.
    account: Arc<Account>,
    /// The share of all sessions of the same principal.
    share: Arc<Share>,
    /// Amounts that the device itself takes of the account. The first, for the memory, stays taken
    /// as long as the memory is mapped.
    held: Vec<Reserved>,
    memory: Weak<Region>,
    /// The name that the application gave, for people.
    name: String,
    state: State,
    /// The queue to which the control plane sends events of listeners and connections.
    events: EventQueue,
    /// The queue for events of the device and its objects, once the application has requested them.
    device_events: Option<DeviceEvents>,
    /// Wakes the owner of the socket.
    waker: Waker,
    /// Lane of [`closer`] for the session's work.
    lane: usize,
    /// All clients of the RNIC are programs of its own user.
    is_own_users: bool,
    /// For each event passed on, the counter at which it counts when it is taken; the oldest comes
    /// first.
    untaken: VecDeque<TakenEvents>,
    out: VecDeque<Outgoing>,
    jobs: VecDeque<Job>,
    objects: Objects,
    listeners: HashMap<u64, Listener>,
    /// Reserved addresses.
    bound: HashMap<u64, Bound>,
    /// Peers that wait for the application's answer.
    asked: HashSet<u64>,
    /// Connections that the application is making or has accepted.
    conns: HashMap<u64, Reserved>,
    counters: SessionCounters,
}

#[derive(Debug)]
enum State {
    /// The session waits for the first request.
    New,
    /// The session is carrying out the first request.
    Opening,
    Open(Open),
    /// The application has ended the device, or has ended itself.
    Closing(Option<Open>),
}

#[derive(Clone, Debug)]
struct Open {
    device: Device,
    local: Arc<Local>,
    /// Eventfds with which the application wakes workers, for as long as it has a device.
    _lent: Option<Arc<Lent>>,
}

/// The result of a request.
enum Outcome {
    /// The answer, with its descriptors.
    Done(serde_json::Value, Vec<OwnedFd>),
    /// A job will send the answer.
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
    /// Returns a session on `hub`, whose application may do what `policy` allows and take the rest
    /// of `account`; the session wakes `waker` when there may be an event to send.
    pub fn new(hub: &Arc<Hub>, policy: Policy, account: Arc<Account>, waker: Waker) -> Session {
        let share = hub.share_of(&account);
        share.set(policy.share);
        Session {
            hub: hub.clone(),
            share,
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

    /// Handles a request. `inbox` is the inbox that the line came from; descriptors of the request
    /// are there.
    pub fn handle(&mut self, line: &[u8], inbox: &mut Inbox) {
        self.counters.requests += 1;
        let (id, outcome) = match read_call::<Request>(line) {
            Ok((id, request)) => {
                // Take the descriptors even if the request is refused: the next request must not
                // find them.
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
        // No client waits for an answer without a number, but tell the client about a line that is
        // no request.
        if id != 0 || answer.error.as_ref().is_some_and(|e| e.kind == FaultKind::Malformed) {
            let fds_count = u32::try_from(fds.len()).unwrap_or(0);
            let bytes = to_line(&Answer { fds: fds_count, ..answer });
            self.out.push_back(Outgoing { bytes, fds });
        }
    }

    /// Returns the next line to send: answers first, then events.
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

    /// Returns true if there is work for [`work`](Session::work).
    pub fn has_work(&self) -> bool {
        self.jobs.front().is_some_and(Job::is_ready)
    }

    /// Returns true if another thread is preparing memory; the thread wakes this session when
    /// there is [work](Session::has_work).
    pub fn is_preparing(&self) -> bool {
        self.jobs.front().is_some_and(|job| !job.is_ready())
    }

    /// Returns this session, with slow operations on the threads of this [lane](closer::lane_of).
    #[must_use]
    pub fn on_lane(self, lane: usize) -> Session {
        Session { lane, ..self }
    }

    /// Returns this session for an RNIC that serves programs of its own user alone, who may end it
    /// anyway. Such a session takes files that are not [sealed](heddle_shm::Region::of_file). Its
    /// [`handle`](Session::handle) and [`work`](Session::work) populate small registrations
    /// themselves, for as long as the client holds its file: this saves two wake-ups.
    #[must_use]
    pub fn of_own_user(self) -> Session {
        Session { is_own_users: true, ..self }
    }

    /// Goes on with requests whose memory is prepared.
    pub fn work(&mut self) {
        self.step();
    }

    /// Ends everything that the application has, a part with each call. Returns true when all is
    /// done. The control plane learns of the end as soon as it has room for the request.
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

    /// Changes the permissions of the application, and the terms of its share. Listeners at
    /// addresses where it may no longer listen end, and the application gets an event for each; all
    /// its other objects stay.
    pub fn set_policy(&mut self, policy: Policy) {
        self.share.set(policy.share);
        self.policy = policy;
        let State::Open(Open { device, .. }) = &self.state else { return };
        let device = device.clone();
        let may = |l: &Listener| self.policy.may_listen((l.addr, l.v6_only));
        let ended: Vec<_> =
            self.listeners.iter().filter(|(_, l)| !may(l)).map(|(id, _)| *id).collect();
        for id in ended {
            // If the control plane has no room now, the listener ends with the next policy.
            // Otherwise an error means that the listener does not exist.
            if device.unlisten(ListenerId(id)).is_ok() {
                self.forget_listener(id);
                let error = ListenFailure::Withdrawn;
                let event = CmEvent::ListenFailed { id: ListenerId(id), error };
                self.events.push(event, &TakenEvents::default());
            }
        }
    }

    /// Ends the device: the application gets no more objects from here on.
    fn end_device(&mut self) {
        self.device_events = None;
        self.state = match std::mem::replace(&mut self.state, State::Closing(None)) {
            State::Open(open) => State::Closing(Some(open)),
            closing @ State::Closing(_) => closing,
            State::New | State::Opening => State::Closing(None),
        };
    }

    /// Returns true if memory of the application has failed: the session has to end.
    pub fn has_lost_memory(&self) -> bool {
        let State::Open(o) = &self.state else { return false };
        o.device.area().is_lost()
            || o.device.memory().is_some_and(|m| m.is_lost())
            || self.objects.has_lost_memory()
    }

    /// Returns the name that the application calls itself by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the application's number, once it has a device.
    pub fn app(&self) -> Option<AppId> {
        match &self.state {
            State::Open(o) => Some(o.device.app()),
            _ => None,
        }
    }

    /// Returns the session's counters.
    pub fn counters(&self) -> SessionCounters {
        self.counters
    }

    /// Returns the resources that the application has.
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

    /// Returns the share of all sessions of the same principal in the turns of workers.
    pub fn share(&self) -> &Arc<Share> {
        &self.share
    }

    /// Returns the numbers of connections and of listeners.
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
                    // Two descriptors of this process: an `epoll` and an eventfd.
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

    /// Returns the fault that the client gets for an error of the device.
    fn fault(&self, error: DeviceError) -> Fault {
        use DeviceError as E;
        let kind = match &error {
            E::TooMany { .. } | E::Area(_) | E::Register(RegisterError::Quota { .. }) => {
                FaultKind::Quota
            }
            E::Register(
                RegisterError::NoMemory { .. }
                | RegisterError::TooManyRegions
                | RegisterError::Mr(heddle_types::MrError::Full),
            ) if self.hub.registry().draining() > 0 => FaultKind::Busy,
            E::Register(
                RegisterError::NoMemory { .. }
                | RegisterError::TooManyRegions
                | RegisterError::Mr(heddle_types::MrError::Full),
            ) => FaultKind::Quota,
            E::ForeignPd(_) | E::ForeignCq | E::ForeignSrq | E::ForeignQp(_) => FaultKind::NotFound,
            E::Overloaded | E::CqResizing => FaultKind::Busy,
            E::Gone => FaultKind::Failed,
            _ => FaultKind::Invalid,
        };
        Fault::new(kind, error.to_string())
    }
}

/// Why the session refuses a request about an object.
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
