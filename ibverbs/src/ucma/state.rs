//! The connection manager as a program sees it: channels, ids, their states and their events.
//!
//! This module never blocks, makes no system call and does not touch the program's memory.
//! [`State::handle`] carries out one command of one channel, [`State::handle_event`] takes a report
//! of the RNIC, and [`Outside`] stands for the RNIC and the process.
//!
//! ```text
//!   Idle ── BIND ──▶ Bound ── RESOLVE_ADDR ──▶ AddrResolved ── RESOLVE_ROUTE ──▶ RouteResolved
//!     │                │                                                           │ CONNECT
//!     └────────────────┴── LISTEN ──▶ Starting ──▶ Listening                       ▼
//!                                                      │ connect request  ┌─▶ Connecting ──┐
//!                                                      ▼                  │        │       │
//!                                                  Requested ── ACCEPT ───┘        │ ESTABLISHED
//!                                                      │                           │       ▼
//!                                                    REJECT          REJECTED, ... │  Established
//!                                                      ▼                           │       │
//!                                                    Over ◀────────────────────────┘       │
//!                                                      ▲                                   │
//!                                                      └─────────── DISCONNECTED ──────────┘
//! ```
//!
//! An id is bound to the device from the moment its address is known to be the RNIC's; until then
//! the state machine refuses commands that need a device. An id's events stay in the queue of its
//! channel until the program takes them, and are removed with the id when the program destroys it.
//! The state machine never reports an event of a destroyed id.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;

use heddle_verbs::{CmId, ListenerId};

use super::command::{Command, ConnParam, Descriptor};
use super::errno::Errno;
use super::number::{EventKind, port_space, qp_type};
use super::reply::{Ends, Event, Identity, Reply};

mod answer;
mod bind;
mod connect;
mod happened;
mod settings;
#[cfg(test)]
mod tests;

/// Identifies one open file of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u64);

/// A connection for the RNIC to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// This side's address, with the port that the program was told.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The program's parameters of the connection.
    pub param: ConnParam,
}

/// The address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address, or a wildcard.
    pub addr: SocketAddr,
    /// True if the IPv6 wildcard leaves IPv4 alone.
    pub v6_only: bool,
}

/// An address and port that the RNIC reserves for an id. Dropping the value gives them back.
pub struct Reserved(Box<dyn Any + Send>);

impl Reserved {
    /// Wraps the value that the RNIC uses for a reservation.
    pub fn new(held: impl Any + Send) -> Reserved {
        Reserved(Box::new(held))
    }

    /// Returns the value that [`new`](Self::new) wrapped, if it has type `T`.
    pub fn held<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reserved")
    }
}

/// The services that the state machine needs of the RNIC and of the process.
pub trait Outside {
    /// Returns the identity of the device, if there is one.
    fn identity(&mut self) -> Option<Identity>;

    /// Returns true if the address is the RNIC's, for a link-local address in its scope.
    fn has_address(&mut self, addr: SocketAddr) -> bool;

    /// Returns the address from which the RNIC reaches `dst`, with the scope of a link-local
    /// address and any port.
    ///
    /// # Errors
    /// Returns the reason why the RNIC does not reach `dst`.
    fn source_for(&mut self, dst: SocketAddr) -> Result<SocketAddr, Errno>;

    /// Returns a random number, for the choice of ports.
    fn random(&mut self) -> u16;

    /// Has the RNIC reserve an address and port for a listener; for port 0 the RNIC chooses a free
    /// one. Returns the reservation and the port.
    ///
    /// # Errors
    /// Returns [`Errno::NODEV`] if there is no RNIC to ask; otherwise the reason why the address
    /// cannot be reserved.
    fn reserve(&mut self, place: Place) -> Result<(Reserved, u16), Errno>;

    /// Starts to listen; [`Happening::Listening`] or [`Happening::ListenFailed`] follows.
    ///
    /// # Errors
    /// Returns an error if the RNIC refuses at once.
    fn listen(
        &mut self,
        place: Place,
        reserved: Option<&Reserved>,
        backlog: u32,
    ) -> Result<ListenerId, Errno>;

    /// Stops a listener.
    fn unlisten(&mut self, id: ListenerId);

    /// Starts to connect; a report of the outcome follows.
    ///
    /// # Errors
    /// Returns an error if the RNIC refuses at once, or if the program has no such queue pair.
    fn connect(&mut self, dial: Dial) -> Result<CmId, Errno>;

    /// Accepts a connect request.
    ///
    /// # Errors
    /// Returns the errors of [`connect`](Self::connect).
    fn accept(&mut self, id: CmId, param: ConnParam) -> Result<(), Errno>;

    /// Rejects a connect request.
    fn reject(&mut self, id: CmId, private_data: Vec<u8>);

    /// Ends a connection, or an attempt that is not established yet.
    fn disconnect(&mut self, id: CmId);

    /// Returns the channel of a descriptor of the program.
    ///
    /// # Errors
    /// Returns [`Errno::NOENT`] if the number is not open, [`Errno::INVAL`] if it is another
    /// file's.
    fn channel_of(&mut self, fd: Descriptor) -> Result<ChannelId, Errno>;
}

/// A report of the RNIC.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "ids, ends and parameters of the connection that it is about")]
pub enum Happening {
    /// The listener now listens.
    Listening { id: ListenerId },
    /// The listener could not listen, or has stopped listening.
    ListenFailed { id: ListenerId, errno: Errno },
    /// A peer wants to connect.
    Request {
        conn: CmId,
        listener: ListenerId,
        local: SocketAddr,
        remote: SocketAddr,
        param: ConnParam,
    },
    /// The connection is established.
    Established { conn: CmId, local: SocketAddr, param: ConnParam },
    /// The connection failed; `kind` says how.
    Failed { conn: CmId, kind: EventKind, errno: Errno, param: ConnParam },
    /// The connection has ended.
    Disconnected { conn: CmId },
    /// The RNIC is gone, and with it all its listeners and connections.
    DeviceGone,
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command is complete.
    Done(Reply),
    /// The RNIC was asked to listen for this id: ask [`State::listened`] after the next event.
    Listening(u32),
    /// Another thread's `LISTEN` of the same id is under way: try again after the next event.
    Busy,
}

/// The stage of an id's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    /// A `LISTEN` waits for the RNIC's answer.
    Starting,
    Listening,
    /// A connect request that the program has not answered yet.
    Requested,
    /// A connect request that the peer took back before the program answered.
    Withdrawn,
    Connecting,
    Established,
    Over,
}

#[derive(Debug)]
struct Id {
    channel: ChannelId,
    /// The program's own name for the id; 0 for a connect request that is not accepted.
    uid: u64,
    qp_type: u8,
    phase: Phase,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
    device: Option<Identity>,
    /// The id's port, if it is entered in [`State::ports`].
    port: Option<u16>,
    /// The RNIC's reservation for the id.
    reserved: Option<Reserved>,
    reuse: bool,
    /// True if an IPv6 wildcard excludes IPv4; `None` until the program or the first bind decides.
    af_only: Option<bool>,
    conn: Option<CmId>,
    listener: Option<ListenerId>,
    /// The RNIC's answer to a `LISTEN` that another thread waits for.
    listened: Option<Result<(), Errno>>,
    /// Number of further connect requests that may wait for the program to take them.
    backlog: u32,
    /// Number of events that the program has taken.
    taken: u32,
}

impl Id {
    fn new(channel: ChannelId, uid: u64, qp_type: u8) -> Id {
        Id {
            channel,
            uid,
            qp_type,
            phase: Phase::Idle,
            src: None,
            dst: None,
            device: None,
            port: None,
            reserved: None,
            reuse: false,
            af_only: None,
            conn: None,
            listener: None,
            listened: None,
            backlog: 0,
            taken: 0,
        }
    }

    fn ends(&self) -> Ends {
        Ends { src: self.src, dst: self.dst, device: self.device }
    }
}

/// A waiting event, and the id that it belongs to: for a connect request the listener.
#[derive(Debug)]
struct Waiting {
    owner: u32,
    event: Event,
}

#[derive(Debug, Default)]
struct Channel {
    waiting: VecDeque<Waiting>,
}

/// Most ids at a time: librdmacm indexes tables of its own by their numbers.
pub const MAX_IDS: usize = 1 << 16;

/// All channels and ids of a process.
#[derive(Debug, Default)]
pub struct State {
    channels: BTreeMap<ChannelId, Channel>,
    next_channel: u64,
    ids: BTreeMap<u32, Id>,
    by_conn: HashMap<CmId, u32>,
    by_listener: HashMap<ListenerId, u32>,
    /// The ids that are bound to each port.
    ports: HashMap<u16, Vec<u32>>,
    /// Channels whose queue has changed.
    changed: Vec<ChannelId>,
}

impl State {
    /// Opens a channel.
    pub fn open(&mut self) -> ChannelId {
        self.next_channel += 1;
        let id = ChannelId(self.next_channel);
        self.channels.insert(id, Channel::default());
        id
    }

    /// Closes a channel and destroys its ids.
    pub fn close(&mut self, channel: ChannelId, outside: &mut dyn Outside) {
        let ids = self.ids.iter().filter(|(_, id)| id.channel == channel).map(|(&n, _)| n);
        for n in ids.collect::<Vec<_>>() {
            self.destroy(n, outside);
        }
        self.channels.remove(&channel);
    }

    /// Carries out a command that the program wrote to `channel`.
    ///
    /// # Errors
    /// Returns the error number that the kernel would return.
    pub fn handle(
        &mut self,
        channel: ChannelId,
        command: Command,
        outside: &mut dyn Outside,
    ) -> Result<Outcome, Errno> {
        if let Some(n) = named(&command)
            && !matches!(command, Command::MigrateId { .. })
            && self.id(channel, n)?.phase == Phase::Starting
        {
            return Ok(Outcome::Busy);
        }
        match command {
            Command::CreateId { uid, port_space, qp_type } => {
                return self.create(channel, uid, port_space, qp_type).map(Outcome::Done);
            }
            Command::DestroyId { id } => {
                return Ok(Outcome::Done(Reply::EventsReported(self.destroy(id, outside))));
            }
            Command::Bind { id, addr } => self.bind(id, addr, outside)?,
            Command::ResolveAddr { id, src, dst } => self.resolve_addr(id, src, dst, outside)?,
            Command::ResolveRoute { id } => self.resolve_route(channel, id)?,
            Command::Connect { id, param } => self.connect(channel, id, param, outside)?,
            Command::Listen { id, backlog } => {
                self.listen(id, backlog, outside)?;
                return Ok(Outcome::Listening(id));
            }
            Command::Accept { id, uid, param } => self.accept(channel, id, uid, param, outside)?,
            Command::Reject { id, reason, private_data } => {
                self.reject(channel, id, reason, private_data, outside)?;
            }
            Command::Disconnect { id } => self.disconnect(channel, id, outside)?,
            Command::SetOption { id, level, name, value } => {
                self.set_option(channel, id, level, name, value)?;
            }
            Command::Notify { id } => {
                self.with_device(channel, id)?;
            }
            Command::JoinMcast { id } => {
                self.with_device(channel, id)?;
                // Multicast groups are for datagrams, which iWARP does not have.
                return Err(Errno::INVAL);
            }
            Command::LeaveMcast => return Err(Errno::NOENT),
            Command::GetEvent => return self.event(channel).map(Outcome::Done),
            Command::MigrateId { id, from } => {
                return self.migrate(channel, id, from, outside);
            }
            Command::QueryRoute { .. }
            | Command::QueryAddr { .. }
            | Command::QueryPath { .. }
            | Command::QueryGid { .. }
            | Command::InitQpAttr { .. } => return self.ask(channel, &command).map(Outcome::Done),
        }
        Ok(Outcome::Done(Reply::None))
    }

    /// Undoes a command whose answer did not reach the program.
    pub fn undo(&mut self, reply: &Reply, outside: &mut dyn Outside) {
        if let Reply::Id(n) = *reply {
            self.destroy(n, outside);
        }
    }

    /// Returns the number of waiting events of a channel.
    pub fn waiting(&self, channel: ChannelId) -> usize {
        self.channels.get(&channel).map_or(0, |c| c.waiting.len())
    }

    /// Returns the channels whose queues may have changed since the last call.
    pub fn take_changed(&mut self) -> Vec<ChannelId> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the number of existing ids.
    pub fn ids(&self) -> usize {
        self.ids.len()
    }

    fn id(&mut self, channel: ChannelId, n: u32) -> Result<&mut Id, Errno> {
        let id = self.ids.get_mut(&n).ok_or(Errno::NOENT)?;
        if id.channel == channel { Ok(id) } else { Err(Errno::INVAL) }
    }

    /// Returns an id that is bound to the device.
    fn with_device(&mut self, channel: ChannelId, n: u32) -> Result<&mut Id, Errno> {
        let id = self.id(channel, n)?;
        if id.device.is_some() { Ok(id) } else { Err(Errno::INVAL) }
    }

    fn create(
        &mut self,
        channel: ChannelId,
        uid: u64,
        space: u16,
        asked: u8,
    ) -> Result<Reply, Errno> {
        let qp_type = match space {
            port_space::TCP => qp_type::RC,
            port_space::UDP | port_space::IPOIB => qp_type::UD,
            port_space::IB => asked,
            _ => return Err(Errno::INVAL),
        };
        self.enter(Id::new(channel, uid, qp_type)).map(Reply::Id)
    }

    /// Stores an id under the lowest free number, and returns the number.
    fn enter(&mut self, id: Id) -> Result<u32, Errno> {
        if self.ids.len() >= MAX_IDS {
            return Err(Errno::NOMEM);
        }
        let numbers = self.ids.keys().copied();
        let free = numbers.zip(0..).find(|(n, i)| n != i).map(|(_, i)| i);
        let n = free.unwrap_or(u32::try_from(self.ids.len()).unwrap_or(u32::MAX));
        self.ids.insert(n, id);
        Ok(n)
    }

    /// Destroys an id with all that it has, and returns the number of its events that the program
    /// has taken.
    fn destroy(&mut self, n: u32, outside: &mut dyn Outside) -> u32 {
        let Some(id) = self.ids.remove(&n) else { return 0 };
        if let Some(listener) = id.listener {
            self.by_listener.remove(&listener);
            outside.unlisten(listener);
        }
        if let Some(conn) = id.conn {
            self.by_conn.remove(&conn);
            match id.phase {
                Phase::Requested => outside.reject(conn, Vec::new()),
                _ => outside.disconnect(conn),
            }
        }
        self.release_port(n, id.port);
        let Some(channel) = self.channels.get_mut(&id.channel) else { return id.taken };
        let (gone, kept): (VecDeque<_>, VecDeque<_>) =
            channel.waiting.drain(..).partition(|w| w.owner == n);
        channel.waiting = kept;
        self.changed.push(id.channel);
        // The program will never take the requests that waited at this listener, so destroy their
        // ids.
        for w in gone {
            if w.event.kind == EventKind::ConnectRequest {
                self.destroy(w.event.id, outside);
            }
        }
        id.taken
    }

    /// Moves an id, with its waiting events, to channel `to` from the channel of the descriptor
    /// `from`.
    fn migrate(
        &mut self,
        to: ChannelId,
        n: u32,
        from: Descriptor,
        outside: &mut dyn Outside,
    ) -> Result<Outcome, Errno> {
        let from = outside.channel_of(from)?;
        let id = self.id(from, n)?;
        if id.phase == Phase::Starting {
            return Ok(Outcome::Busy);
        }
        id.channel = to;
        let taken = id.taken;
        if from != to
            && let Some(old) = self.channels.get_mut(&from)
        {
            let (moved, kept): (VecDeque<_>, VecDeque<_>) =
                old.waiting.drain(..).partition(|w| w.owner == n);
            old.waiting = kept;
            // A connect request moves along with its listener.
            let requests = moved.iter().filter(|w| w.event.kind == EventKind::ConnectRequest);
            for new in requests.map(|w| w.event.id).collect::<Vec<_>>() {
                if let Some(id) = self.ids.get_mut(&new) {
                    id.channel = to;
                }
            }
            self.channels.entry(to).or_default().waiting.extend(moved);
            self.changed.extend([from, to]);
        }
        Ok(Outcome::Done(Reply::EventsReported(taken)))
    }

    /// Returns the oldest event of a channel, which stays in the queue until
    /// [`delivered`](Self::delivered).
    fn event(&mut self, channel: ChannelId) -> Result<Reply, Errno> {
        let channel = self.channels.get(&channel).ok_or(Errno::INVAL)?;
        let first = channel.waiting.front().ok_or(Errno::AGAIN)?;
        Ok(Reply::Event(first.event.clone()))
    }

    /// Removes the oldest event of a channel, after the program has received it.
    pub fn delivered(&mut self, channel: ChannelId) {
        let Some(queue) = self.channels.get_mut(&channel) else { return };
        let Some(Waiting { owner, event }) = queue.waiting.pop_front() else { return };
        self.changed.push(channel);
        if let Some(id) = self.ids.get_mut(&owner) {
            id.taken += 1;
            if event.kind == EventKind::ConnectRequest {
                id.backlog += 1;
            }
        }
    }

    /// Puts an event about `n` into the queue of its channel.
    fn report(&mut self, n: u32, kind: EventKind, status: i32, param: ConnParam) {
        let Some(id) = self.ids.get(&n) else { return };
        let event = Event { uid: id.uid, id: n, kind, status, param };
        let channel = id.channel;
        self.push(channel, Waiting { owner: n, event });
    }

    fn push(&mut self, channel: ChannelId, waiting: Waiting) {
        if let Some(c) = self.channels.get_mut(&channel) {
            c.waiting.push_back(waiting);
            self.changed.push(channel);
        }
    }
}

/// Returns the id that a command is about.
fn named(command: &Command) -> Option<u32> {
    match *command {
        Command::DestroyId { id }
        | Command::Bind { id, .. }
        | Command::ResolveAddr { id, .. }
        | Command::ResolveRoute { id }
        | Command::QueryRoute { id }
        | Command::QueryAddr { id }
        | Command::QueryPath { id }
        | Command::QueryGid { id }
        | Command::Connect { id, .. }
        | Command::Listen { id, .. }
        | Command::Accept { id, .. }
        | Command::Reject { id, .. }
        | Command::Disconnect { id }
        | Command::InitQpAttr { id, .. }
        | Command::SetOption { id, .. }
        | Command::Notify { id }
        | Command::JoinMcast { id }
        | Command::MigrateId { id, .. } => Some(id),
        Command::CreateId { .. } | Command::GetEvent | Command::LeaveMcast => None,
    }
}
