//! Views of connections and listeners, for people.

use core::net::SocketAddr;
use core::ops::Bound;

use heddle_types::{AppId, CmId, ConnId, ListenerId, Transport, WorkerId};

use super::ConnectionManager;
use crate::conn::State;

/// A connection at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnView {
    /// Name of the connection.
    pub id: CmId,
    /// The owner.
    pub app: AppId,
    /// The worker that has the connection.
    pub worker: WorkerId,
    /// The worker's name of the connection. Absent until the worker has given it, and over
    /// InfiniBand, of whose connections no worker knows.
    pub conn: Option<ConnId>,
    /// Our end; the peer's until TCP reports ours.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The listener that the connection came to, if the peer made the connection. The listener may
    /// have ended.
    pub listener: Option<ListenerId>,
    /// The protocols below the connection.
    pub transport: Transport,
    /// The state's name, in lower case with hyphens.
    pub state: &'static str,
}

/// A listener at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerView {
    /// Name of the listener.
    pub id: ListenerId,
    /// The owner.
    pub app: AppId,
    /// Address and port of the listener.
    pub addr: SocketAddr,
    /// Whether all workers have answered.
    pub listening: bool,
    /// The listener's connections that are in their start-up, or being refused.
    pub startups: usize,
    /// Largest number of simultaneous start-ups.
    pub backlog: usize,
}

impl ConnectionManager {
    /// Returns the connections of both transports in the order of their names, from the first after
    /// `after` on. A step takes time that grows with the logarithm of their number, so a caller can
    /// read a large table a few connections at a time.
    pub fn conns(&self, after: Option<CmId>) -> impl Iterator<Item = ConnView> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let iwarp = self.conns.range((from, Bound::Unbounded)).map(|(_, c)| ConnView {
            id: c.link.id,
            app: c.link.app,
            worker: c.link.worker,
            conn: c.link.conn,
            local: c.link.local(),
            remote: c.link.remote(),
            listener: c.link.passive.map(|p| p.listener),
            transport: Transport::Iwarp,
            state: c.state.name(),
        });
        let ib = self.ib.iter().flat_map(move |ib| ib.behind(from)).map(|c| ConnView {
            id: c.link.id,
            app: c.link.app,
            worker: c.link.worker,
            conn: None,
            local: c.link.local,
            remote: c.link.remote,
            listener: c.link.listener,
            transport: Transport::InfiniBand,
            state: c.state.name(),
        });
        let (mut iwarp, mut ib) = (iwarp.peekable(), ib.peekable());
        core::iter::from_fn(move || match (iwarp.peek(), ib.peek()) {
            (Some(a), Some(b)) if b.id < a.id => ib.next(),
            (None, _) => ib.next(),
            _ => iwarp.next(),
        })
    }

    /// Returns the connection of this name.
    pub fn conn(&self, id: CmId) -> Option<ConnView> {
        let before = id.0.checked_sub(1).map(CmId);
        self.conns(before).next().filter(|c| c.id == id)
    }

    /// Returns all listeners.
    pub fn listeners(&self) -> impl Iterator<Item = ListenerView> {
        self.listeners.iter().map(|(id, l)| ListenerView {
            id,
            app: l.app,
            addr: l.addr,
            listening: l.is_listening(),
            startups: l.places.len(),
            backlog: l.params.backlog,
        })
    }
}

impl State {
    /// Returns the state's name for people.
    const fn name(&self) -> &'static str {
        match self {
            State::Opening { .. } => "opening",
            State::Connecting { .. } => "connecting",
            State::AwaitReply { .. } => "await-reply",
            State::AwaitRequest { .. } => "await-request",
            State::AwaitAnswer { .. } => "await-answer",
            State::Entering { .. } => "entering",
            State::Undoing { .. } => "undoing",
            State::AwaitFpdu { .. } => "await-fpdu",
            State::Running { .. } => "running",
            State::Ending { .. } => "ending",
            State::Closing { .. } => "closing",
            State::Unopened => "unopened",
            State::Gone => "gone",
        }
    }
}
