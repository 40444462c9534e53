//! What applications ask of the control plane.

use core::net::SocketAddr;
use core::time::Duration;

use heddle_dataplane::Qp;
use heddle_iwarp::mpa::frame::Revision;
use heddle_iwarp::mpa::startup::CrcPolicy;

/// RDMA Reads outstanding at a time in either direction, unless something else is asked for.
pub const DEFAULT_READ_DEPTH: u16 = 16;

/// How a listener answers.
#[derive(Clone, Debug)]
pub struct ListenParams {
    /// Connections that may be in their start-up at a time.
    pub backlog: usize,
    /// Whether CRCs are asked for; they are used when either side asks.
    pub crc: CrcPolicy,
    /// How long a peer may take from TCP connection to a complete MPA Request.
    pub request_timeout: Duration,
    /// How long the application may take to accept or reject.
    pub accept_timeout: Duration,
}

impl Default for ListenParams {
    fn default() -> Self {
        ListenParams {
            backlog: 128,
            crc: CrcPolicy::Required,
            request_timeout: Duration::from_secs(5),
            accept_timeout: Duration::from_secs(30),
        }
    }
}

/// A connection to make.
#[derive(Clone, Debug)]
pub struct ConnectParams {
    /// The queue pair that is to run on it.
    pub qp: Qp,
    /// MPA revision to ask for.
    pub revision: Revision,
    /// Whether CRCs are asked for.
    pub crc: CrcPolicy,
    /// RDMA Reads we take from the peer at a time.
    pub ird: u16,
    /// RDMA Reads we want to have outstanding.
    pub ord: u16,
    /// For the peer's application; at most 508 octets with revision 2, 512 with revision 1.
    pub private_data: Vec<u8>,
    /// How long the whole may take.
    pub timeout: Duration,
}

impl ConnectParams {
    /// Revision 2, with CRC, 16 Reads each way, no private data, 10 s.
    pub fn new(qp: Qp) -> ConnectParams {
        ConnectParams {
            qp,
            revision: Revision::V2,
            crc: CrcPolicy::Required,
            ird: DEFAULT_READ_DEPTH,
            ord: DEFAULT_READ_DEPTH,
            private_data: Vec::new(),
            timeout: Duration::from_secs(10),
        }
    }
}

/// How a connection request is accepted.
#[derive(Clone, Debug)]
pub struct AcceptParams {
    /// The queue pair that is to run on it.
    pub qp: Qp,
    /// RDMA Reads we take from the peer at a time.
    pub ird: u16,
    /// RDMA Reads we want to have outstanding.
    pub ord: u16,
    /// For the peer's application.
    pub private_data: Vec<u8>,
}

impl AcceptParams {
    /// 16 Reads each way, no private data.
    pub fn new(qp: Qp) -> AcceptParams {
        AcceptParams {
            qp,
            ird: DEFAULT_READ_DEPTH,
            ord: DEFAULT_READ_DEPTH,
            private_data: Vec::new(),
        }
    }
}

/// A request to the control plane, as it travels through the ring.
#[derive(Debug)]
pub(crate) enum Request {
    Listen {
        id: crate::ListenerId,
        addr: SocketAddr,
        params: ListenParams,
        events: crate::EventQueue,
        done: crossbeam_channel::Sender<Result<(), crate::CtlError>>,
    },
    Unlisten {
        id: crate::ListenerId,
    },
    Connect {
        id: crate::CmId,
        remote: SocketAddr,
        params: ConnectParams,
        events: crate::EventQueue,
    },
    Accept {
        id: crate::CmId,
        params: AcceptParams,
    },
    Reject {
        id: crate::CmId,
        private_data: Vec<u8>,
    },
    Disconnect {
        id: crate::CmId,
    },
}
