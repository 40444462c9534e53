//! Questions about an RNIC while it runs, for a program that watches over it.
//!
//! A question goes to the control thread, which answers it itself or asks its workers. Workers look
//! at a few connections per turn, and the control thread never waits for them. The caller does not
//! wait either: the answer is a call, made on the control thread, which must not block there. If
//! the RNIC ends or a worker does not run, no answer comes, and the call is dropped.

use std::fmt;
use std::time::Duration;

use heddle_cm::{CmGauges, ConnView, ListenerView, PortsError};
use heddle_dataplane::{ConnFacts, WorkerSnapshot};
use heddle_tcp::{Addressing, Keepalive};
use heddle_types::{Agreed, AppId, CmId, WorkerId};
use heddle_verbs::{DeviceError, Pd, QpState, Qpn};

use crate::CtlCounters;
use crate::config::Patience;
use crate::control_plane::{Requests, ThreadRequest};

/// The receiver of an answer: called at most once, on the control thread.
pub struct Reply<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Reply<T> {
    /// Makes a reply that passes the answer to `f`.
    pub fn new(f: impl FnOnce(T) + Send + 'static) -> Reply<T> {
        Reply(Box::new(f))
    }

    pub(crate) fn answer(self, answer: T) {
        (self.0)(answer);
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

/// A question to a running RNIC.
#[derive(Debug)]
pub enum Question {
    /// Asks for all counters of a worker.
    Snapshot {
        /// The worker's number.
        worker: WorkerId,
        /// Receives the answer; dropped when there is no such worker.
        reply: Reply<Box<WorkerSnapshot>>,
    },
    /// Asks for the next connections, at most [`INSPECT_MAX`](heddle_dataplane::INSPECT_MAX). No
    /// answer comes while a worker with one of these connections does not answer.
    Conns {
        /// The answer begins after this name; at the first connection when absent.
        after: Option<CmId>,
        /// Workers not to ask: their connections are listed without facts.
        without: Vec<WorkerId>,
        /// Receives the page of connections.
        reply: Reply<ConnPage>,
    },
    /// Asks for the counters and the gauges of the control plane.
    Control {
        /// Receives the state of the control plane.
        reply: Reply<ControlState>,
    },
    /// Replaces the addresses and routes, one entry for each port; see
    /// [`set_addressing`](heddle_cm::ConnectionManager::set_addressing) for the effect on listeners
    /// and connections.
    SetAddressing {
        /// Addresses and routes of each port.
        nets: Vec<Addressing>,
        /// Receives `Ok` when the change is made; after an error nothing has changed.
        reply: Reply<Result<(), PortsError>>,
    },
    /// Announces the addresses of a port to the hosts of its links; see
    /// [`Stack::announce`](heddle_tcp::Stack::announce). Meant for ports that have started, or
    /// whose link has come up. There is no answer.
    Announce {
        /// The port's number.
        port: usize,
    },
    /// Refuses a connection request with a reason of InfiniBand's REJ; see
    /// [`refuse`](heddle_cm::ConnectionManager::refuse). Has no effect on a connection that is
    /// over.
    Refuse {
        /// The application that has the request.
        app: AppId,
        /// The connection that asks.
        id: CmId,
        /// The reason of the REJ.
        reason: u16,
    },
    /// Sets the keepalive probes to silent peers from here on; see
    /// [`Stack::set_keepalive`](heddle_tcp::Stack::set_keepalive) for the effect on existing
    /// connections.
    SetKeepalive {
        /// Timing of the probes; absent for no probes.
        keepalive: Option<Keepalive>,
        /// Called when the workers have the order.
        reply: Reply<()>,
    },
    /// Sets the patience with peers from here on, also for existing connections; see
    /// [`Rnic::set_patience`](heddle_rnic::Rnic::set_patience) and
    /// [`set_close_limit`](heddle_cm::ConnectionManager::set_close_limit).
    SetPatience {
        /// The new time limits.
        patience: Patience,
        /// Called when the workers have the order.
        reply: Reply<()>,
    },
    /// Sets the probes to silent peers of InfiniBand from here on; see
    /// [`set_ib_keepalive`](heddle_cm::ConnectionManager::set_ib_keepalive).
    SetIbKeepalive {
        /// Silence before a probe; absent for no probes.
        keepalive: Option<Duration>,
        /// Called when the change is made.
        reply: Reply<()>,
    },
    /// Refuses new connections of peers from here on, or takes them again; see
    /// [`set_draining`](heddle_cm::ConnectionManager::set_draining).
    SetDraining {
        /// Whether new connections are refused.
        draining: bool,
        /// Called when the change is made.
        reply: Reply<()>,
    },
    /// Ends a connection of any application.
    Kill {
        /// Name of the connection.
        id: CmId,
        /// The way to end the connection.
        how: Kill,
        /// Receives true if the connection existed.
        reply: Reply<bool>,
    },
}

/// The way in which a connection ends at the request of a watching program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// As its application would end it: posted work requests are sent, then a FIN.
    InOrder,
    /// With a reset. The application hears of the end as of any other. InfiniBand's connection
    /// management has no reset, so such a connection ends in order.
    Reset,
}

/// A page of the list of connections.
#[derive(Clone, Debug, Default)]
pub struct ConnPage {
    /// Connections in the order of their names.
    pub conns: Vec<ConnStatus>,
    /// The value of `after` for the next page; absent on the last page.
    pub next: Option<CmId>,
    /// Workers that were not asked because many questions to them are unanswered.
    pub silent: Vec<WorkerId>,
}

/// A connection as the control plane and its worker see it, each at its own moment.
#[derive(Clone, Debug)]
pub struct ConnStatus {
    /// The connection manager's view.
    pub view: ConnView,
    /// The parameters agreed in the start-up, once the connection is established.
    pub agreed: Option<Agreed>,
    /// The connection's queue pair, once it has one.
    pub qp: Option<QpStatus>,
    /// The worker's view; absent when the worker does not have the connection yet, or no longer.
    pub facts: Option<ConnFacts>,
}

/// A queue pair as its application made it.
#[derive(Clone, Copy, Debug)]
pub struct QpStatus {
    /// Queue pair number.
    pub qpn: Qpn,
    /// Protection domain of the queue pair.
    pub pd: Pd,
    /// The state that its application sees.
    pub state: QpState,
    /// Depth of its send queue, in work requests.
    pub sq_depth: u32,
    /// Depth of its receive queue, in work requests.
    pub rq_depth: u32,
    /// Whether its receives come from a shared receive queue.
    pub shared: bool,
}

/// The control plane at one moment.
#[derive(Clone, Debug)]
pub struct ControlState {
    /// Counters of the control plane.
    pub counters: CtlCounters,
    /// Number of objects that the control plane holds.
    pub gauges: CmGauges,
    /// Listeners of all applications.
    pub listeners: Vec<ListenerView>,
}

/// The handle for questions; clones ask the same RNIC.
#[derive(Clone, Debug)]
pub struct Asker(Requests);

impl Asker {
    pub(crate) fn new(requests: Requests) -> Asker {
        Asker(requests)
    }

    /// Sends a question, without waiting.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`]: no answer comes then.
    pub fn ask(&self, question: Question) -> Result<(), DeviceError> {
        self.0.send(ThreadRequest::Ask(question))
    }
}
