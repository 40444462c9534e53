//! Questions about an RNIC while it runs, for whoever watches over it.
//!
//! A question goes to the control thread, which answers it itself or asks its workers: they look at a
//! few connections per turn and are never waited for. Whoever asks is not made to wait either: the
//! answer is a call, made on the control thread, which must not block there. No answer comes when the
//! RNIC ends or a worker does not run; the call is dropped then.

use std::fmt;
use std::time::Duration;

use heddle_cm::{Agreed, AppId, CmGauges, CmId, ConnView, ListenerView, PortsError, WorkerId};
use heddle_dataplane::{ConnFacts, WorkerSnapshot};
use heddle_tcp::{Addressing, Keepalive};
use heddle_verbs::{DeviceError, Pd, QpState, Qpn};

use crate::CtlCounters;
use crate::config::Patience;
use crate::control_plane::{Requests, ThreadRequest};

/// Where an answer goes: called at most once, on the control thread.
pub struct Reply<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Reply<T> {
    /// An answer that `f` hears.
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

/// A question.
#[derive(Debug)]
pub enum Question {
    /// Everything a worker has counted.
    Snapshot {
        /// Which.
        worker: WorkerId,
        /// Who hears it; nobody when there is no such worker.
        reply: Reply<Box<WorkerSnapshot>>,
    },
    /// The next connections, [`INSPECT_MAX`](heddle_dataplane::INSPECT_MAX) at most.
    Conns {
        /// Those whose names lie behind this one.
        after: Option<CmId>,
        /// Who hears it.
        reply: Reply<ConnPage>,
    },
    /// What the control plane has counted, and what it holds.
    Control {
        /// Who hears it.
        reply: Reply<ControlState>,
    },
    /// Use other addresses and routes, one entry for each port, from here on; see
    /// [`set_addressing`](heddle_cm::ConnectionManager::set_addressing) for what becomes of listeners and
    /// connections.
    SetAddressing {
        /// Of each port.
        nets: Vec<Addressing>,
        /// Whether that was done; nothing has changed otherwise.
        reply: Reply<Result<(), PortsError>>,
    },
    /// Announce the addresses of a port to the hosts of its links; see
    /// [`Stack::announce`](heddle_tcp::Stack::announce). For ports that have started, or whose link has
    /// come up; there is no answer.
    Announce {
        /// Its number.
        port: usize,
    },
    /// Refuse a connection request with a reason of InfiniBand's REJ; see
    /// [`refuse`](heddle_cm::ConnectionManager::refuse). Of one that is over nobody hears.
    Refuse {
        /// Whose it is.
        app: AppId,
        /// Which.
        id: CmId,
        /// The reason.
        reason: u16,
    },
    /// Probe silent peers so from here on; see [`Stack::set_keepalive`](heddle_tcp::Stack::set_keepalive)
    /// for what becomes of connections that stand.
    SetKeepalive {
        /// How; never when absent.
        keepalive: Option<Keepalive>,
        /// Who hears that workers have been told.
        reply: Reply<()>,
    },
    /// Bear with peers for so long from here on, those of connections that stand included; see
    /// [`Rnic::set_patience`](heddle_rnic::Rnic::set_patience) and
    /// [`set_close_limit`](heddle_cm::ConnectionManager::set_close_limit).
    SetPatience {
        /// How long.
        patience: Patience,
        /// Who hears that workers have been told.
        reply: Reply<()>,
    },
    /// Ask silent peers of InfiniBand so from here on; see
    /// [`set_ib_keepalive`](heddle_cm::ConnectionManager::set_ib_keepalive).
    SetIbKeepalive {
        /// After how much silence; never when absent.
        keepalive: Option<Duration>,
        /// Who hears that it is so.
        reply: Reply<()>,
    },
    /// End a connection, whoever has it.
    Kill {
        /// Which.
        id: CmId,
        /// How.
        how: Kill,
        /// Whether there was one.
        reply: Reply<bool>,
    },
}

/// How a connection is ended on behalf of whoever watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// As its application would end it: what is posted is sent, then FIN.
    InOrder,
    /// With a reset. Its application hears of it as of any other. InfiniBand's connection management
    /// has none: such a connection is ended in order.
    Reset,
}

/// Some connections.
#[derive(Clone, Debug, Default)]
pub struct ConnPage {
    /// In the order of their names.
    pub conns: Vec<ConnStatus>,
    /// Where to go on, when there may be more.
    pub next: Option<CmId>,
}

/// A connection as control plane and worker have it, each at its moment.
#[derive(Clone, Debug)]
pub struct ConnStatus {
    /// What the connection manager knows.
    pub view: ConnView,
    /// What was agreed, once it is established.
    pub agreed: Option<Agreed>,
    /// Its queue pair, once it has one.
    pub qp: Option<QpStatus>,
    /// What the worker knows; absent when the worker does not have it yet, or any more.
    pub facts: Option<ConnFacts>,
}

/// A queue pair as its application made it.
#[derive(Clone, Copy, Debug)]
pub struct QpStatus {
    /// Its number.
    pub qpn: Qpn,
    /// Its protection domain.
    pub pd: Pd,
    /// Its state, as its application sees it.
    pub state: QpState,
    /// Depth of its send queue.
    pub sq_depth: u32,
    /// Depth of its receive queue.
    pub rq_depth: u32,
    /// Whether its receives are of a shared receive queue.
    pub shared: bool,
}

/// The control plane at one moment.
#[derive(Clone, Debug)]
pub struct ControlState {
    /// What it has counted.
    pub counters: CtlCounters,
    /// What it holds.
    pub gauges: CmGauges,
    /// Those who listen.
    pub listeners: Vec<ListenerView>,
}

/// The way to ask; clones ask the same RNIC.
#[derive(Clone, Debug)]
pub struct Asker(Requests);

impl Asker {
    pub(crate) fn new(requests: Requests) -> Asker {
        Asker(requests)
    }

    /// Asks. It does not wait.
    ///
    /// # Errors
    /// [`DeviceError::Overloaded`], [`DeviceError::Gone`]: nobody hears an answer then.
    pub fn ask(&self, question: Question) -> Result<(), DeviceError> {
        self.0.send(ThreadRequest::Ask(question))
    }
}
