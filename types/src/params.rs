//! Parameters of listeners and connections.

use core::net::IpAddr;
use core::time::Duration;

use crate::mpa::MpaOptions;
use crate::number::{Pd, Qpn};
use crate::protocol::Protocol;
use crate::tcp::TcpTerms;

/// Default number of RDMA Reads outstanding at a time in either direction.
pub const DEFAULT_READ_DEPTH: u16 = 16;

/// The manager's knowledge of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSpec {
    /// The queue pair's number, unique among all applications.
    pub qpn: Qpn,
    /// Its protection domain.
    pub pd: Pd,
    /// Capacity of the send queue, in work requests.
    pub sq_depth: u32,
    /// Capacity of the receive queue, in work requests.
    pub rq_depth: u32,
}

/// A listener's dialogue and its limits for peers.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ListenParams {
    /// The start-up dialogue to answer in.
    pub protocol: Protocol,
    /// Whether the listener also answers InfiniBand's requests for its port. Such connections carry
    /// no data ([`Transport::carries_data`](crate::Transport::carries_data)), so an application has
    /// to ask for them. Their start-ups have places of their own, as many as iWARP's; the limits
    /// for a peer count each protocol separately.
    pub infiniband: bool,
    /// Whether a listener at `::` leaves IPv4 alone. Otherwise it takes connections over both
    /// families; a listener at `0.0.0.0` takes connections over IPv4 only in either case.
    #[cfg_attr(feature = "serde", serde(default))]
    pub v6_only: bool,
    /// Settings of TCP for the listener's connections, where they differ from the RNIC's.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "TcpTerms::is_usual"))]
    pub tcp: TcpTerms,
    /// Connections that may be in their start-up at a time, at all workers together. TCP takes as
    /// many half-open connections at each worker.
    pub backlog: usize,
    /// How long a peer may take from TCP connection to a complete request.
    pub request_timeout: Duration,
    /// How long the application may take to accept or reject.
    pub accept_timeout: Duration,
    /// Time from acceptance to the peer's first good FPDU (RFC 5044 section 7.1.2); unlimited when
    /// absent.
    pub first_fpdu_timeout: Option<Duration>,
    /// The same time in the peer-to-peer model, where the initiator sends its first FPDU of its own
    /// accord (RFC 6581 section 9.2).
    pub rtr_timeout: Duration,
    /// Connections of one peer address that may be in their start-up at a time, at all workers
    /// together; when absent, as many as the listener has places.
    pub max_startups_per_peer: Option<usize>,
    /// Connections of one peer address that may exist at a time, established or not, at all workers
    /// together; any number when absent.
    pub max_conns_per_peer: Option<usize>,
}

impl Default for ListenParams {
    /// Returns defaults: MPA with CRC; 128 start-ups, at most half of them of one peer; 5 s for the
    /// request, 30 s for the application, 60 s for the first FPDU, 5 s in the peer-to-peer model.
    fn default() -> Self {
        ListenParams {
            protocol: Protocol::default(),
            infiniband: false,
            v6_only: false,
            tcp: TcpTerms::default(),
            backlog: 128,
            request_timeout: Duration::from_secs(5),
            accept_timeout: Duration::from_secs(30),
            first_fpdu_timeout: Some(Duration::from_secs(60)),
            rtr_timeout: Duration::from_secs(5),
            max_startups_per_peer: Some(64),
            max_conns_per_peer: None,
        }
    }
}

impl ListenParams {
    /// Returns the same parameters with these options of MPA.
    #[must_use]
    pub fn mpa(self, options: MpaOptions) -> ListenParams {
        ListenParams { protocol: Protocol::Mpa(options), ..self }
    }
}

/// Parameters of a connection that an application makes.
#[derive(Clone, Debug)]
pub struct ConnectTerms {
    /// The queue pair that is to run on the connection.
    pub qp: QpSpec,
    /// Our address, which also selects the port; when absent, the route to the peer selects both.
    pub local: Option<IpAddr>,
    /// The start-up dialogue to ask in.
    pub protocol: Protocol,
    /// RDMA Reads that we take from the peer at a time. A peer that wants more outstanding is
    /// turned away.
    pub ird: u16,
    /// RDMA Reads that we want to have outstanding; lowered to the number that the peer takes.
    pub ord: u16,
    /// Private data for the peer's application; with MPA at most 508 bytes in revision 2, 512 in
    /// revision 1.
    pub private_data: Vec<u8>,
    /// Time limit from the request to the established connection.
    pub timeout: Duration,
    /// Settings of TCP for the connection, where they differ from the RNIC's.
    pub tcp: TcpTerms,
}

impl ConnectTerms {
    /// Returns defaults: MPA revision 2, with CRC, 16 Reads each way, no private data, 10 s, from
    /// any address of ours.
    pub fn new(qp: QpSpec) -> ConnectTerms {
        ConnectTerms {
            qp,
            local: None,
            protocol: Protocol::default(),
            ird: DEFAULT_READ_DEPTH,
            ord: DEFAULT_READ_DEPTH,
            private_data: Vec::new(),
            timeout: Duration::from_secs(10),
            tcp: TcpTerms::default(),
        }
    }
}

/// Parameters for accepting a connection request.
#[derive(Clone, Debug)]
pub struct AcceptTerms {
    /// The queue pair that is to run on the connection.
    pub qp: QpSpec,
    /// RDMA Reads that we take from the peer at a time. In the peer-to-peer model a 0 becomes a 1
    /// if the peer can begin only with a Read.
    pub ird: u16,
    /// RDMA Reads that we want to have outstanding; lowered to the number that the peer takes.
    pub ord: u16,
    /// Private data for the peer's application.
    pub private_data: Vec<u8>,
}

impl AcceptTerms {
    /// Returns defaults: 16 Reads each way, no private data.
    pub fn new(qp: QpSpec) -> AcceptTerms {
        AcceptTerms {
            qp,
            ird: DEFAULT_READ_DEPTH,
            ord: DEFAULT_READ_DEPTH,
            private_data: Vec::new(),
        }
    }
}
