//! The only connection manager of a process: state, descriptors, and the thread that receives the
//! RNIC's reports.
//!
//! All threads of the program share one lock. A thread holds it for a command or a report, and
//! never while it waits for an event. The thread `rdma_cm` waits for reports, and for the last
//! close of a channel.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_shm::threads;
use heddle_socket::descriptor::aside;
use heddle_verbs::{CmEvent, CmId, EventQueue, ListenerId, Sleeper};
use rustix::event::{Timespec, epoll};

use super::command::{self, Command, ConnParam, Descriptor, Written};
use super::device::{self, Rnic};
use super::errno::Errno;
use super::memory;
use super::pipe::{Key, Pipe, key_of};
use super::reply::{Identity, Reply};
use super::state::{ChannelId, Dial, Happening, Outcome, Outside, Place, Reserved, State};
use crate::rnic;

mod fork;

/// Number of open channels. Most programs have none, and their writes must not wait for a lock.
static OPEN: AtomicUsize = AtomicUsize::new(0);
static SERVICE: Mutex<Option<Service>> = Mutex::new(None);
/// Signals that a report may have answered a waiting command.
static REPORTED: Condvar = Condvar::new();

#[derive(Debug)]
struct Service {
    state: State,
    channels: HashMap<ChannelId, Pipe>,
    by_key: HashMap<Key, ChannelId>,
    rnic: Rnic,
    /// The descriptor on which the thread waits.
    epoll: OwnedFd,
    /// True if the process was forked since the thread started, so that this process has no such
    /// thread.
    forked: bool,
}

/// The next step of a write to a channel.
#[derive(Debug)]
pub(super) enum Begun {
    /// The descriptor is not a channel's.
    Foreign,
    /// The service has carried out or refused the command.
    Done(Result<(), Errno>),
    /// The program wants an event: read a byte from the descriptor, then call [`take_event`].
    Wait {
        /// The address in the program's memory for the event.
        response: u64,
        /// Bytes of room at that address.
        room: usize,
    },
}

fn lock() -> MutexGuard<'static, Option<Service>> {
    // A thread that panicked has left no id half made: after each step the maps agree, or the id is
    // reported as unknown.
    let mut guard = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(service) = guard.as_mut().filter(|service| service.forked) {
        service.revive();
    }
    guard
}

/// Opens a channel and returns the descriptor for the program.
///
/// # Errors
/// Returns an error if the system has no descriptors or no thread left.
pub(super) fn open(nonblocking: bool, cloexec: bool) -> Result<OwnedFd, Errno> {
    let mut guard = lock();
    let service = match &mut *guard {
        Some(service) => service,
        none => none.insert(Service::start()?),
    };
    let (pipe, given) = Pipe::new(nonblocking, cloexec)?;
    let channel = service.state.open();
    let data = epoll::EventData::new_u64(channel.0);
    // epoll always reports errors, and this service needs no other event of the pipe.
    let added = epoll::add(&service.epoll, pipe.fd(), data, epoll::EventFlags::empty());
    if let Err(e) = added {
        service.close(channel);
        return Err(Errno(e.raw_os_error()));
    }
    service.by_key.insert(pipe.key(), channel);
    service.channels.insert(channel, pipe);
    OPEN.fetch_add(1, Ordering::Relaxed);
    Ok(given)
}

/// Returns true if the descriptor belongs to a channel.
pub(super) fn is_channel(fd: BorrowedFd<'_>) -> bool {
    find(fd).is_some()
}

fn find(fd: BorrowedFd<'_>) -> Option<Key> {
    if OPEN.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let key = key_of(fd)?;
    lock().as_ref()?.by_key.contains_key(&key).then_some(key)
}

/// Begins a command that the program has written: `len` bytes at `at`.
pub(super) fn write(fd: BorrowedFd<'_>, at: u64, len: usize) -> Begun {
    let Some(key) = find(fd) else { return Begun::Foreign };
    let written = memory::read(at, len.min(command::MAX_LEN))
        .and_then(|bytes| command::decode(&bytes, &mut memory::read));
    match written {
        Ok(Written { command: Command::GetEvent, response, room }) => {
            Begun::Wait { response, room }
        }
        Ok(written) => Begun::Done(carry_out(key, &written)),
        Err(e) => Begun::Done(Err(e)),
    }
}

fn carry_out(key: Key, written: &Written) -> Result<(), Errno> {
    let mut guard = lock();
    let reply = loop {
        let service = guard.as_mut().ok_or(Errno::INVAL)?;
        let channel = *service.by_key.get(&key).ok_or(Errno::INVAL)?;
        match service.handle(channel, written.command.clone())? {
            Outcome::Done(reply) => break reply,
            // Check before the first wait: if no RNIC was asked, the answer exists already, and no
            // report will come.
            Outcome::Listening(id) => loop {
                let service = guard.as_mut().ok_or(Errno::INVAL)?;
                if let Some(answer) = service.state.listened(id) {
                    REPORTED.notify_all();
                    return answer;
                }
                guard = REPORTED.wait(guard).unwrap_or_else(PoisonError::into_inner);
            },
            Outcome::Busy => {
                guard = REPORTED.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
        }
    };
    let mut bytes = reply.encode();
    bytes.truncate(written.room);
    memory::write(written.response, &bytes).inspect_err(|_| {
        if let Some(service) = guard.as_mut() {
            service.undo(&reply);
        }
    })
}

/// Gives the program the event whose byte the thread has read; `None` if the event was removed
/// meanwhile.
pub(super) fn take_event(
    fd: BorrowedFd<'_>,
    response: u64,
    room: usize,
) -> Option<Result<(), Errno>> {
    let mut guard = lock();
    let channel = key_of(fd).and_then(|key| guard.as_ref()?.by_key.get(&key).copied());
    let (Some(service), Some(channel)) = (guard.as_mut(), channel) else {
        return Some(Err(Errno::INVAL));
    };
    if let Some(pipe) = service.channels.get_mut(&channel) {
        pipe.byte_read();
    }
    let taken = match service.handle(channel, Command::GetEvent) {
        Ok(Outcome::Done(reply)) => {
            let mut bytes = reply.encode();
            bytes.truncate(room);
            let copied = memory::write(response, &bytes);
            if copied.is_ok() {
                service.state.delivered(channel);
            }
            Some(copied)
        }
        Ok(_) | Err(Errno::AGAIN) => None,
        Err(e) => Some(Err(e)),
    };
    service.settle(channel);
    service.settle_all();
    taken
}

/// Handles the close of a descriptor by the program: closes the channel, if that was its last
/// descriptor, before the program goes on.
pub(super) fn closed(key: Key) {
    let mut guard = lock();
    let Some(service) = guard.as_mut() else { return };
    let Some(&channel) = service.by_key.get(&key) else { return };
    if service.channels.get(&channel).is_some_and(Pipe::is_closed) {
        service.close(channel);
    }
}

/// Returns the key of the channel whose descriptor the program is about to close.
pub(super) fn closing(fd: BorrowedFd<'_>) -> Option<Key> {
    find(fd)
}

impl Service {
    fn start() -> Result<Service, Errno> {
        fork::watch();
        let (rnic, epoll) = Service::start_thread()?;
        Ok(Service {
            state: State::default(),
            channels: HashMap::new(),
            by_key: HashMap::new(),
            rnic,
            epoll,
            forked: false,
        })
    }

    /// Starts the thread, and returns the two handles that connect it to the service.
    fn start_thread() -> Result<(Rnic, OwnedFd), Errno> {
        let sleeper = Sleeper::with_fd().map_err(|_| Errno(libc::EMFILE))?;
        let events = EventQueue::new(Some(sleeper.waker()));
        let new = epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = aside(new.map_err(|e| Errno(e.raw_os_error()))?);
        let waits = aside(epoll.try_clone().map_err(|_| Errno(libc::EMFILE))?);
        if let Some(fd) = sleeper.fd() {
            let added = epoll::add(&epoll, fd, REPORTS, epoll::EventFlags::IN);
            added.map_err(|e| Errno(e.raw_os_error()))?;
        }
        let queue = events.clone();
        threads::start("rdma_cm", move || run(&waits, &sleeper, &queue))
            .map_err(|_| Errno::AGAIN)?;
        Ok((Rnic { events, gone: false }, epoll))
    }

    /// Gives the child of a fork a thread of its own, and removes from its ids everything that
    /// belongs to the parent.
    fn revive(&mut self) {
        // If descriptors or threads run out, the next call tries again, and the child gets no
        // reports until then.
        let Ok((rnic, epoll)) = Service::start_thread() else { return };
        // Leave the parent's epoll set untouched: closing the child's copy of the descriptor
        // changes nothing there.
        (self.rnic, self.epoll, self.forked) = (rnic, epoll, false);
        self.state.forget_device();
        for (channel, pipe) in &self.channels {
            let data = epoll::EventData::new_u64(channel.0);
            // An error means that the child has closed our end; the service then does not notice
            // the channel's close.
            let _ = epoll::add(&self.epoll, pipe.fd(), data, epoll::EventFlags::empty());
        }
    }

    /// Runs `f` with the state and its surroundings, and then updates the descriptors of all
    /// changed channels.
    fn with<T>(&mut self, f: impl FnOnce(&mut State, &mut dyn Outside) -> T) -> T {
        let mut outside = Around { rnic: &self.rnic, by_key: &self.by_key };
        let done = f(&mut self.state, &mut outside);
        self.settle_all();
        done
    }

    fn handle(&mut self, channel: ChannelId, command: Command) -> Result<Outcome, Errno> {
        self.with(|state, outside| state.handle(channel, command, outside))
    }

    fn undo(&mut self, reply: &Reply) {
        self.with(|state, outside| state.undo(reply, outside));
    }

    fn report(&mut self, happening: Happening) {
        self.with(|state, outside| state.handle_event(happening, outside));
    }

    fn close(&mut self, channel: ChannelId) {
        if let Some(pipe) = self.channels.remove(&channel) {
            self.by_key.remove(&pipe.key());
            OPEN.fetch_sub(1, Ordering::Relaxed);
            // An error means that the program has closed our end, so the thread no longer waits for
            // it.
            let _ = epoll::delete(&self.epoll, pipe.fd());
        }
        self.with(|state, outside| state.close(channel, outside));
    }

    fn settle_all(&mut self) {
        for channel in self.state.take_changed() {
            self.settle(channel);
        }
    }

    /// Makes a channel's descriptor reflect the number of waiting events.
    fn settle(&mut self, channel: ChannelId) {
        if let Some(pipe) = self.channels.get_mut(&channel) {
            pipe.set(self.state.waiting(channel));
        }
    }
}

/// The process as the state machine sees it.
struct Around<'a> {
    rnic: &'a Rnic,
    by_key: &'a HashMap<Key, ChannelId>,
}

impl Outside for Around<'_> {
    fn identity(&mut self) -> Option<Identity> {
        self.rnic.identity()
    }

    fn has_address(&mut self, addr: SocketAddr) -> bool {
        self.rnic.has_address(addr)
    }

    fn source_for(&mut self, dst: SocketAddr) -> Result<SocketAddr, Errno> {
        self.rnic.source_for(dst)
    }

    fn random(&mut self) -> u16 {
        Rnic::random()
    }

    fn reserve(&mut self, place: Place) -> Result<(Reserved, u16), Errno> {
        self.rnic.reserve(place)
    }

    fn listen(
        &mut self,
        place: Place,
        reserved: Option<&Reserved>,
        backlog: u32,
    ) -> Result<ListenerId, Errno> {
        self.rnic.listen(place, reserved, backlog)
    }

    fn unlisten(&mut self, id: ListenerId) {
        self.rnic.unlisten(id);
    }

    fn connect(&mut self, dial: Dial) -> Result<CmId, Errno> {
        self.rnic.connect(dial)
    }

    fn accept(&mut self, id: CmId, param: ConnParam) -> Result<(), Errno> {
        self.rnic.accept(id, param)
    }

    fn reject(&mut self, id: CmId, private_data: Vec<u8>) {
        self.rnic.reject(id, private_data);
    }

    fn disconnect(&mut self, id: CmId) {
        self.rnic.disconnect(id);
    }

    fn channel_of(&mut self, fd: Descriptor) -> Result<ChannelId, Errno> {
        let fd = super::hook::borrow(fd.0).ok_or(Errno::NOENT)?;
        if rustix::io::fcntl_getfd(fd).is_err() {
            return Err(Errno::NOENT);
        }
        key_of(fd).and_then(|key| self.by_key.get(&key).copied()).ok_or(Errno::INVAL)
    }
}

/// The tag of the queue of reports in the thread's epoll set; no channel has this number.
const REPORTS: epoll::EventData = epoll::EventData::new_u64(0);

/// How often the thread looks whether a program has polled the completions before a disconnect.
const LOOK: Duration = Duration::from_millis(1);

/// How long it holds a disconnect back for them.
const HELD: Duration = Duration::from_millis(100);

/// Disconnects that the program does not hear of yet, each until when.
///
/// With NICs, and with siw, the event of a disconnect takes its way through the kernel, and comes well after the
/// completions of what the peer has sent before. Programs count on that: libfabric polls, then looks for events, and
/// destroys a queue pair whose peer has gone, with the completions that it has not polled. Where processors are busy,
/// both arrive between its two looks.
#[derive(Default)]
struct HeldBack(Vec<(CmEvent, Instant)>);

impl HeldBack {
    /// Returns the event if the program may hear of it now.
    fn pass(&mut self, event: CmEvent) -> Option<CmEvent> {
        match event {
            CmEvent::Disconnected { qpn, .. } if rnic::has_unpolled(qpn) => {
                self.0.push((event, Instant::now() + HELD));
                None
            }
            _ => Some(event),
        }
    }

    /// Returns the events that the program may hear of now; `all` of them if the RNIC is gone.
    fn due(&mut self, all: bool) -> Vec<CmEvent> {
        let now = Instant::now();
        let is_due = |(event, until): &mut (CmEvent, Instant)| match event {
            CmEvent::Disconnected { qpn, .. } => all || *until <= now || !rnic::has_unpolled(*qpn),
            _ => true,
        };
        self.0.extract_if(.., is_due).map(|(event, _)| event).collect()
    }
}

/// Runs the thread: carries the RNIC's reports to the ids, and closes channels without an open
/// descriptor.
fn run(epoll: &OwnedFd, sleeper: &Sleeper, queue: &EventQueue) {
    thread_local! {
        static EVENTS: RefCell<Vec<epoll::Event>> = RefCell::new(Vec::with_capacity(16));
    }
    let mut held = HeldBack::default();
    let look = Timespec::try_from(LOOK).ok();
    loop {
        let patience = look.as_ref().filter(|_| !held.0.is_empty());
        let found: Vec<u64> = EVENTS.with_borrow_mut(|events| {
            events.clear();
            let spare = rustix::buffer::spare_capacity(events);
            match epoll::wait(epoll.as_fd(), spare, patience) {
                Ok(_) => events.drain(..).map(|e| e.data.u64()).collect(),
                // A debugger that attaches interrupts the wait.
                Err(rustix::io::Errno::INTR) => Vec::new(),
                Err(_) => vec![u64::MAX],
            }
        });
        if found == [u64::MAX] {
            // The program has closed a descriptor that it did not open, so the thread can report
            // nothing more.
            return;
        }
        for event in held.due(false) {
            report(event);
        }
        for channel in found {
            if channel == REPORTS.u64() {
                take_reports(sleeper, queue, &mut held);
            } else if let Some(service) = lock().as_mut() {
                service.close(ChannelId(channel));
            }
        }
    }
}

fn take_reports(sleeper: &Sleeper, queue: &EventQueue, held: &mut HeldBack) {
    sleeper.clear();
    while let Some(event) = queue.poll() {
        if device::tells_of_the_end(&event) {
            held.due(true).into_iter().chain([event]).for_each(report);
        } else if let Some(event) = held.pass(event) {
            report(event);
        }
    }
}

fn report(event: CmEvent) {
    let end = device::tells_of_the_end(&event);
    let mut guard = lock();
    let Some(service) = guard.as_mut() else { return };
    if let Some(happening) = service.rnic.translate(event) {
        service.report(happening);
    }
    if end && !service.rnic.gone {
        service.rnic.gone = true;
        service.report(Happening::DeviceGone);
    }
    drop(guard);
    REPORTED.notify_all();
}
