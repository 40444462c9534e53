//! One connection: its states, what can happen to it, and the one function that says what follows.
//!
//! ```text
//!   active    Opening ─▶ Connecting ─ TCP up ─▶ AwaitReply ─ Reply ─▶ Entering
//!                ▲ └─────────── the peer speaks otherwise ──┘
//!                └ ended before the worker has answered ─▶ Unopened
//!   passive   AwaitRequest ─ Request ─▶ AwaitAnswer ─ accept ─▶ Entering
//!                                           └ reject ─▶ Closing
//!   both      Entering ─ the worker runs the queue pair ─▶ (AwaitFpdu ─▶) Running ─▶ Ending ─▶ gone
//!                └ ended before the worker has answered ─▶ Undoing
//!             any state before Running ─ failure, cancel, time-out ─▶ Closing ─▶ gone
//!             any state ─ the worker has ended ─▶ gone
//! ```

mod enter;
mod lost;
mod startup;
#[cfg(test)]
pub(crate) mod tests;
mod transition;

use core::net::SocketAddr;
use core::time::Duration;

use heddle_base::Instant;
use heddle_iwarp::rdmap::Terminate;
use heddle_iwarp::{QpEvent, Qpn};
use heddle_rnic::{CloseReason, Order, RnicError};
use heddle_tcp::{ConnId, ConnectError};

use crate::counters::CmCounters;
use crate::dialogue::{Agreement, Answer, Ask};
use crate::event::{ConnectFailure, DisconnectReason, Event, Refusal};
use crate::id::{AppId, CmId, ListenerId, WorkerId};
use crate::params::{AcceptTerms, QpSpec};
use crate::request::RequestError;
use crate::small::{Millis, SmallAddr, Stamp};

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) link: ConnInfo,
    pub(crate) state: State,
    /// The time in the manager's list of timers; [`NO_DEADLINE`] when it is not there.
    pub(crate) deadline: Instant,
}

/// It waits for nothing.
pub(crate) const NO_DEADLINE: Instant = Instant::from_nanos(u64::MAX);

/// What stays the same through the states, and what several of them add to.
#[derive(Debug)]
pub(crate) struct ConnInfo {
    pub(crate) id: CmId,
    pub(crate) app: AppId,
    pub(crate) worker: WorkerId,
    /// The worker's name of it; absent in `Opening` and `Unopened`.
    pub(crate) conn: Option<ConnId>,
    /// Our end, as far as it is known: absent, or with port 0, until TCP has told it.
    pub(crate) local: Option<SmallAddr>,
    pub(crate) remote: SmallAddr,
    /// Start-up octets received.
    pub(crate) received: u32,
    /// When the application asked for it, or TCP's handshake with the peer was over.
    pub(crate) since: Stamp,
    /// Where it came in, when the peer made it.
    pub(crate) passive: Option<Passive>,
    pub(crate) close_timeout: Millis,
    pub(crate) close_limit: Millis,
}

impl ConnInfo {
    /// Our end; the peer's until TCP has told ours, which is before anyone is told of it.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local.as_ref().unwrap_or(&self.remote).get()
    }

    /// The peer's end.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote.get()
    }
}

/// What a passive connection keeps of its listener, which may end before it does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passive {
    pub(crate) listener: ListenerId,
    pub(crate) accept_timeout: Millis,
    pub(crate) first_fpdu_timeout: Option<Millis>,
    pub(crate) rtr_timeout: Millis,
}

/// Where a connection is in its life, and what it has only there.
#[derive(Debug)]
pub(crate) enum State {
    /// The worker has been told to connect and has not answered.
    Opening { ask: Box<dyn Ask>, qp: QpSpec },
    /// TCP's handshake.
    Connecting { ask: Box<dyn Ask>, qp: QpSpec },
    /// Our request is on its way.
    AwaitReply { ask: Box<dyn Ask>, qp: QpSpec },
    /// TCP is up; the peer has the word.
    AwaitRequest { answer: Box<dyn Answer> },
    /// The application has the word.
    AwaitAnswer { answer: Box<dyn Answer> },
    /// The worker has been told to enter FPDU mode and has not answered. `ends`: the peer has closed, or
    /// the application that accepted it has, and the worker has been told to close as well.
    Entering { qpn: Qpn, agreement: Box<Agreement>, ends: bool },
    /// The same, but the connection is not wanted any more, or is closed already.
    Undoing { qpn: Qpn, error: ConnectFailure, closed: bool },
    /// Accepted and running; the peer's first FPDU is awaited.
    AwaitFpdu { qpn: Qpn },
    /// Running.
    Running { qpn: Qpn },
    /// It was established and is being closed; the worker has still to say that it is. With the peer's
    /// Terminate, if there was one.
    Ending { qpn: Qpn, why: Option<DisconnectReason>, terminate: Option<Box<Terminate>> },
    /// Not established and not going to be; the worker has still to say that it is closed.
    /// `in_order`: with a FIN, which the peer may leave without an answer.
    Closing { in_order: bool },
    /// Given up before the worker has answered the order to connect.
    Unopened,
    /// Nothing is left of it.
    Gone,
}

/// The place a passive connection takes of those its listener and its worker have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// None: it is being reset, or is gone.
    None,
    /// The peer has the word.
    Waiting,
    /// The application has been told of it.
    Asked,
    /// It has been told its last word, and closes at its peer's pleasure.
    Leaving,
    /// It is past the start-up.
    Established,
}

impl State {
    pub(crate) const fn place(&self) -> Place {
        match self {
            State::AwaitRequest { .. } => Place::Waiting,
            State::AwaitAnswer { .. } => Place::Asked,
            State::Entering { .. }
            | State::Undoing { .. }
            | State::AwaitFpdu { .. }
            | State::Running { .. }
            | State::Ending { .. } => Place::Established,
            State::Closing { in_order: true } => Place::Leaving,
            State::Closing { in_order: false }
            | State::Opening { .. }
            | State::Connecting { .. }
            | State::AwaitReply { .. }
            | State::Unopened
            | State::Gone => Place::None,
        }
    }
}

/// What can happen to a connection.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// The worker's answer to the order to connect.
    Opened(Result<ConnId, ConnectError>),
    /// TCP is up.
    Connected(SocketAddr),
    /// Bytes of the start-up.
    Bytes(&'a [u8]),
    /// The application accepts.
    Accept(&'a AcceptTerms),
    /// The application rejects; the ORD it needs, if that is why.
    Reject(&'a [u8], Option<u16>),
    /// The application closes, or gives up.
    Disconnect,
    /// The worker's answer to the order to enter FPDU mode.
    Entered(Result<(), RnicError>),
    /// The worker could not send bytes of the start-up.
    OrderRefused(RnicError),
    /// The queue pair has something to say.
    Qp(QpEvent),
    /// The Terminate that it has said of.
    PeerTerminate(Box<Terminate>),
    /// The peer sends no more.
    PeerClosed,
    /// TCP is over.
    Closed(CloseReason),
    /// The deadline has passed.
    Timeout,
    /// Another one needs its place, or its listener has ended.
    Evict(Refusal),
    /// The application is no more.
    AppGone,
    /// The worker is no more. `touched`: it may have had the queue pair.
    WorkerLost { touched: bool },
}

/// What follows from an input, for the manager to carry out in this order.
#[derive(Debug)]
pub(crate) enum Effect {
    Order(Order),
    Tell(Event),
    /// The deadline is so far away from now on, or there is none.
    Deadline(Option<Duration>),
    /// The queue pair may be used for another connection.
    Free(Qpn),
    /// The queue pair is of no more use.
    Spend(Qpn),
    /// The worker is to drop that connection, which may be closed already, and make another to the
    /// same peer in its place.
    Redial {
        old: ConnId,
        closed: bool,
    },
    /// The peer has been refused, and no application is told.
    Refused(Refusal),
}

/// Collects what follows.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) list: Vec<Effect>,
    pub(crate) counters: CmCounters,
    /// Why the application's request, which the input was, is refused.
    pub(crate) denied: Option<RequestError>,
}

impl Effects {
    fn order(&mut self, order: Order) {
        self.list.push(Effect::Order(order));
    }

    fn tell(&mut self, event: Event) {
        self.list.push(Effect::Tell(event));
    }

    fn deadline(&mut self, after: Option<Duration>) {
        self.list.push(Effect::Deadline(after));
    }

    fn deny(&mut self, error: RequestError) {
        self.denied = Some(error);
    }
}
