//! What the control plane and a worker say to each other, through bounded rings.

use core::net::{IpAddr, SocketAddr};

use heddle_rnic::{Event, FpduMode, RnicError};
use heddle_tcp::{ConnId, ConnectError, ListenError};

use crate::queues::Qp;

/// An order to a worker.
#[derive(Debug)]
pub enum Command {
    /// Accept TCP connections; [`Report::Listening`] answers.
    Listen {
        /// Names the order in the answer.
        token: u64,
        /// Our address; all of them when absent.
        addr: Option<IpAddr>,
        /// TCP port.
        port: u16,
        /// Connections that may be half-open at a time.
        backlog: usize,
    },
    /// Stop accepting what a [`Command::Listen`] with the same address and port began.
    Unlisten {
        /// Our address; all of them when absent.
        addr: Option<IpAddr>,
        /// TCP port.
        port: u16,
    },
    /// Start a TCP connection; [`Report::Connecting`] answers.
    Connect {
        /// Names the order in the answer.
        token: u64,
        /// The peer.
        remote: SocketAddr,
    },
    /// Send bytes of the MPA start-up.
    SendStartup {
        /// The connection.
        conn: ConnId,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// End the start-up and run a queue pair.
    EnterFpduMode {
        /// The connection.
        conn: ConnId,
        /// How.
        mode: Box<FpduMode>,
        /// The application's queue pair.
        qp: Qp,
    },
    /// Close in order.
    Disconnect {
        /// The connection.
        conn: ConnId,
    },
    /// Reset.
    Abort {
        /// The connection.
        conn: ConnId,
    },
    /// Forget a connection that is closed.
    Release {
        /// The connection.
        conn: ConnId,
    },
    /// Answer with [`Report::Quiesced`] once everything before this order has been dealt with and
    /// no frame is being placed: memory that was deregistered before is not written any more.
    Quiesce {
        /// Names the order in the answer.
        token: u64,
    },
    /// Answer with everything counted.
    Snapshot {
        /// Where to.
        reply: crossbeam_channel::Sender<Box<crate::WorkerSnapshot>>,
    },
}

/// What a worker tells the control plane.
#[derive(Debug)]
pub enum Report {
    /// Something happened to a connection.
    Event(Event),
    /// Outcome of [`Command::Listen`].
    Listening {
        /// The order's name.
        token: u64,
        /// Whether the port is being listened on.
        result: Result<(), ListenError>,
    },
    /// Outcome of [`Command::Connect`].
    Connecting {
        /// The order's name.
        token: u64,
        /// The connection that is being made.
        result: Result<ConnId, ConnectError>,
    },
    /// An order for a connection could not be carried out.
    Refused {
        /// The connection.
        conn: ConnId,
        /// Why.
        error: RnicError,
    },
    /// Answer to [`Command::Quiesce`].
    Quiesced {
        /// The order's name.
        token: u64,
    },
}
