//! A connection: its states, its inputs, and the function that maps an input to its effects.
//!
//! ```text
//!   active    Opening ─▶ Connecting ─ TCP up ─▶ AwaitReply ─ Reply ─▶ Entering
//!                ▲ └─ the peer speaks another revision ─┘
//!                └ ended before the worker has answered ─▶ Unopened
//!   passive   AwaitRequest ─ Request ─▶ AwaitAnswer ─ accept ─▶ Entering
//!                                           └ reject ─▶ Closing
//!   both      Entering ─ the queue pair runs ─▶ (AwaitFpdu ─▶) Running ─▶ Ending ─▶ gone
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
use heddle_iwarp::QpEvent;
use heddle_rnic::Order;
use heddle_types::{
    AcceptTerms, AppId, CloseReason, CmId, ConnId, ConnectError, ConnectFailure, DisconnectReason,
    Event, ListenerId, QpSpec, Qpn, RequestError, RnicError, TcpTerms, TerminatePayload, WorkerId,
};

use crate::counters::CmCounters;
use crate::dialogue::{Agreement, Answer, Ask};
use crate::notice::Refusal;
use crate::small::{Millis, SmallAddr, Stamp};

/// A connection in its current state.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) link: ConnInfo,
    pub(crate) state: State,
    /// The time of the connection's entry in the manager's list of timers; [`NO_DEADLINE`] when
    /// there is no entry.
    pub(crate) deadline: Instant,
}

/// The deadline of a connection that waits for nothing.
pub(crate) const NO_DEADLINE: Instant = Instant::from_nanos(u64::MAX);

/// Facts about a connection that stay the same through its states, and counts that several states
/// add to.
#[derive(Debug)]
pub(crate) struct ConnInfo {
    pub(crate) id: CmId,
    pub(crate) app: AppId,
    pub(crate) worker: WorkerId,
    /// The worker's name of the connection; absent in `Opening` and `Unopened`.
    pub(crate) conn: Option<ConnId>,
    /// Our end, as far as it is known: absent, or with port 0, until TCP reports it.
    pub(crate) local: Option<SmallAddr>,
    pub(crate) remote: SmallAddr,
    /// Start-up bytes received.
    pub(crate) received: u32,
    /// The time at which the application asked for the connection, or TCP's handshake with the peer
    /// completed.
    pub(crate) since: Stamp,
    /// The listener that the connection came to, if the peer made the connection.
    pub(crate) passive: Option<Passive>,
    /// Settings of TCP, for another attempt.
    pub(crate) tcp: TcpTerms,
    pub(crate) close_timeout: Millis,
    pub(crate) close_limit: Millis,
}

impl ConnInfo {
    /// Returns our end. Before TCP reports our end, returns the peer's; no application hears of the
    /// connection before TCP's report.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local.as_ref().unwrap_or(&self.remote).get()
    }

    /// Returns the peer's address and port.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote.get()
    }
}

/// Data that a passive connection copies from its listener, because the listener may end first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passive {
    pub(crate) listener: ListenerId,
    pub(crate) accept_timeout: Millis,
    pub(crate) first_fpdu_timeout: Option<Millis>,
    pub(crate) rtr_timeout: Millis,
}

/// The stage of a connection's life, and the data that it has only in that stage.
#[derive(Debug)]
pub(crate) enum State {
    /// The worker has the order to connect and has not answered.
    Opening { ask: Box<dyn Ask>, qp: QpSpec },
    /// TCP's handshake is under way.
    Connecting { ask: Box<dyn Ask>, qp: QpSpec },
    /// Our request is on its way; the peer's Reply is awaited.
    AwaitReply { ask: Box<dyn Ask>, qp: QpSpec },
    /// TCP is up; the peer's request is awaited.
    AwaitRequest { answer: Box<dyn Answer> },
    /// The application's answer is awaited.
    AwaitAnswer { answer: Box<dyn Answer> },
    /// The worker has the order to enter FPDU mode and has not answered. `ends`: the peer has
    /// closed, or the application that accepted the connection has, and the worker has the order to
    /// close as well.
    Entering { qpn: Qpn, agreement: Box<Agreement>, ends: bool },
    /// As `Entering`, but the connection is not wanted any more, or is already closed.
    Undoing { qpn: Qpn, error: ConnectFailure, closed: bool },
    /// Accepted and running; the peer's first FPDU is awaited.
    AwaitFpdu { qpn: Qpn },
    /// Established, and the queue pair runs.
    Running { qpn: Qpn },
    /// The connection was established and is being closed; the worker has not yet reported the
    /// close. `terminate` is the peer's Terminate, if there was one.
    Ending { qpn: Qpn, why: Option<DisconnectReason>, terminate: Option<Box<TerminatePayload>> },
    /// The connection was not established and will not be; the worker has not yet reported the
    /// close. `in_order`: the worker closes with a FIN, which the peer may leave unanswered.
    Closing { in_order: bool },
    /// Given up before the worker has answered the order to connect.
    Unopened,
    /// Nothing is left of the connection.
    Gone,
}

/// The kind of place that a passive connection takes at its listener and its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// None: the connection is being reset, or has ended.
    None,
    /// The peer's request is awaited.
    Waiting,
    /// The application has the connection request.
    Asked,
    /// The peer has our last message and decides how long the close takes.
    Leaving,
    /// The start-up is complete.
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

/// The inputs of a connection.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// The worker's answer to the order to connect.
    Opened(Result<ConnId, ConnectError>),
    /// TCP is up; the address is our end.
    Connected(SocketAddr),
    /// Bytes of the start-up.
    Bytes(&'a [u8]),
    /// The application accepts.
    Accept(&'a AcceptTerms),
    /// The application rejects, with private data; the ORD that it needs, if the peer's depth is
    /// the reason.
    Reject(&'a [u8], Option<u16>),
    /// The application closes, or gives up.
    Disconnect,
    /// The worker's answer to the order to enter FPDU mode.
    Entered(Result<(), RnicError>),
    /// The worker could not send bytes of the start-up.
    OrderRefused(RnicError),
    /// The queue pair reports an event.
    Qp(QpEvent),
    /// The Terminate that an earlier event of the queue pair announced.
    PeerTerminate(Box<TerminatePayload>),
    /// The peer sends no more.
    PeerClosed,
    /// The TCP connection is over.
    Closed(CloseReason),
    /// The deadline has passed.
    Timeout,
    /// Another connection needs the place, or the listener has ended.
    Evict(Refusal),
    /// The application has ended.
    AppGone,
    /// The worker has ended. `touched`: the worker may have had the queue pair.
    WorkerLost { touched: bool },
}

/// A consequence of an input. The manager carries the effects out in their order.
#[derive(Debug)]
pub(crate) enum Effect {
    Order(Order),
    Tell(Event),
    /// Sets the deadline to that time from now, or removes the deadline.
    Deadline(Option<Duration>),
    /// The queue pair may be used for another connection.
    Free(Qpn),
    /// The queue pair cannot be used again.
    Spend(Qpn),
    /// The worker is to drop that connection, which may be closed already, and to make another to
    /// the same peer in its place.
    Redial {
        old: ConnId,
        closed: bool,
    },
    /// The peer has been refused, and no application hears of it.
    Refused(Refusal),
}

/// Collects the effects of an input.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) list: Vec<Effect>,
    pub(crate) counters: CmCounters,
    /// The reason why the manager refuses the application's request, if the input was one.
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
