//! What there is, for people who look.

use core::net::SocketAddr;
use core::ops::Bound;

use heddle_tcp::ConnId;

use super::ConnectionManager;
use crate::conn::State;
use crate::event::Transport;
use crate::id::{AppId, CmId, ListenerId, WorkerId};

/// A connection at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnView {
    /// Its name.
    pub id: CmId,
    /// Whose it is.
    pub app: AppId,
    /// The worker that has it.
    pub worker: WorkerId,
    /// The worker's name of it; absent until the worker has given it one, and over InfiniBand, of
    /// whose connections no worker knows.
    pub conn: Option<ConnId>,
    /// Our end; the peer's until TCP has told ours.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// Where it came in, when the peer made it. The listener may be gone.
    pub listener: Option<ListenerId>,
    /// What it runs on.
    pub transport: Transport,
    /// The state's name, in lower case with hyphens.
    pub state: &'static str,
}

/// A listener at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerView {
    /// Its name.
    pub id: ListenerId,
    /// Whose it is.
    pub app: AppId,
    /// Where it listens.
    pub addr: SocketAddr,
    /// Whether all workers have answered.
    pub listening: bool,
    /// Its connections that are in their start-up, or being refused.
    pub startups: usize,
    /// Start-ups it takes at a time.
    pub backlog: usize,
}

impl ConnectionManager {
    /// Connections of both transports in the order of their names, from the first behind `after` on. A
    /// step takes time that grows with the logarithm of their number, so that a few at a time can be
    /// had of many.
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

    /// The connection of this name.
    pub fn conn(&self, id: CmId) -> Option<ConnView> {
        let before = id.0.checked_sub(1).map(CmId);
        self.conns(before).next().filter(|c| c.id == id)
    }

    /// All listeners.
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
    /// For people.
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
