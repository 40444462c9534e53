use core::net::IpAddr;
use core::time::Duration;

use heddle_iwarp::{Pd, Qpn};

use crate::dialogue::{MpaOptions, Protocol};
use crate::ports::Ports;

/// RDMA Reads outstanding at a time in either direction, unless something else is asked for.
pub const DEFAULT_READ_DEPTH: u16 = 16;

/// What a manager is made with.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// The ports with their workers, whose ids are the numbers below how many there are.
    pub ports: Ports,
    /// TCP connections of one worker that may be passive and not established at a time, over all
    /// listeners. Keep it below what the worker's TCP stack holds: start-ups alone then never fill
    /// it.
    pub max_startups: usize,
    /// Those of them that the listeners of one tenant may have.
    pub max_startups_per_tenant: usize,
    /// Events an application may leave untaken before its listeners take no new connections and it
    /// may ask for none.
    pub max_events: usize,
    /// How long the orderly close of a connection that was never established, or has ended by an
    /// error, may take before the connection is reset.
    pub close_timeout: Duration,
    /// How long the orderly close of an established connection may take in all, however slowly its
    /// data moves. TCP resets it sooner when nothing moves
    /// ([`ConnConfig::close_stall`](heddle_tcp::ConnConfig::close_stall)).
    pub close_limit: Duration,
    /// Notices of refused start-ups that may be given at once, and a second later one more.
    pub notice_burst: u32,
}

impl CmConfig {
    /// 512 start-ups for each worker, 384 of them of one tenant, 4096 events for each application,
    /// closes of 20 s, of ten minutes where data moves, 16 notices.
    pub const fn new(ports: Ports) -> CmConfig {
        CmConfig {
            ports,
            max_startups: 512,
            max_startups_per_tenant: 384,
            max_events: 4096,
            close_timeout: Duration::from_secs(20),
            close_limit: Duration::from_secs(600),
            notice_burst: 16,
        }
    }
}

/// What the manager has to know of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSpec {
    /// Its number, among those of all applications.
    pub qpn: Qpn,
    /// Its protection domain.
    pub pd: Pd,
    /// Send work requests it holds.
    pub sq_depth: u32,
    /// Receive work requests it holds.
    pub rq_depth: u32,
}

/// How a listener answers, and what it takes from its peers.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ListenParams {
    /// The start-up dialogue to answer in.
    pub protocol: Protocol,
    /// Whether InfiniBand's requests for this port are answered too. Such connections carry no data
    /// ([`Transport::carries_data`](crate::Transport::carries_data)), so an application has to ask
    /// for them. Their start-ups have places of their own, as many as there are for iWARP; limits of a
    /// peer count each protocol by itself.
    pub infiniband: bool,
    /// Connections that may be in their start-up at a time, at all workers together. TCP takes as
    /// many half-open ones at each worker.
    pub backlog: usize,
    /// How long a peer may take from TCP connection to a complete request.
    pub request_timeout: Duration,
    /// How long the application may take to accept or reject.
    pub accept_timeout: Duration,
    /// How long the peer of an accepted connection may take to its first good FPDU (RFC 5044
    /// section 7.1.2); for ever when absent.
    pub first_fpdu_timeout: Option<Duration>,
    /// The same in the peer-to-peer model, where the initiator sends its first FPDU without being
    /// told (RFC 6581 section 9.2).
    pub rtr_timeout: Duration,
    /// Connections of one peer address that may be in their start-up at a time, at all workers
    /// together; as many as there are places when absent.
    pub max_startups_per_peer: Option<usize>,
    /// Connections of one peer address there may be at a time, established or not, at all workers
    /// together; any number when absent.
    pub max_conns_per_peer: Option<usize>,
}

impl Default for ListenParams {
    /// MPA with CRC; 128 in their start-up, at most half of them of one peer; 5 s for the request,
    /// 30 s for the application, 60 s for the first FPDU, 5 s in the peer-to-peer model.
    fn default() -> Self {
        ListenParams {
            protocol: Protocol::default(),
            infiniband: false,
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
    /// The same with these options of MPA.
    #[must_use]
    pub fn mpa(self, options: MpaOptions) -> ListenParams {
        ListenParams { protocol: Protocol::Mpa(options), ..self }
    }
}

/// A connection to make.
#[derive(Clone, Debug)]
pub struct ConnectTerms {
    /// The queue pair that is to run on it.
    pub qp: QpSpec,
    /// Our address, which says the port too; when absent, both are those of the way to the peer.
    pub local: Option<IpAddr>,
    /// The start-up dialogue to ask in.
    pub protocol: Protocol,
    /// RDMA Reads we take from the peer at a time. A peer that will have more outstanding is turned
    /// away.
    pub ird: u16,
    /// RDMA Reads we want to have outstanding; lowered to what the peer takes.
    pub ord: u16,
    /// For the peer's application; with MPA at most 508 octets in revision 2, 512 in revision 1.
    pub private_data: Vec<u8>,
    /// How long the whole may take.
    pub timeout: Duration,
}

impl ConnectTerms {
    /// MPA revision 2, with CRC, 16 Reads each way, no private data, 10 s, from any address of ours.
    pub fn new(qp: QpSpec) -> ConnectTerms {
        ConnectTerms {
            qp,
            local: None,
            protocol: Protocol::default(),
            ird: DEFAULT_READ_DEPTH,
            ord: DEFAULT_READ_DEPTH,
            private_data: Vec::new(),
            timeout: Duration::from_secs(10),
        }
    }
}

/// How a connection request is accepted.
#[derive(Clone, Debug)]
pub struct AcceptTerms {
    /// The queue pair that is to run on it.
    pub qp: QpSpec,
    /// RDMA Reads we take from the peer at a time. Only a 0 becomes a 1 where a Read is all the
    /// peer can begin with, in the peer-to-peer model.
    pub ird: u16,
    /// RDMA Reads we want to have outstanding; lowered to what the peer takes.
    pub ord: u16,
    /// For the peer's application.
    pub private_data: Vec<u8>,
}

impl AcceptTerms {
    /// 16 Reads each way, no private data.
    pub fn new(qp: QpSpec) -> AcceptTerms {
        AcceptTerms {
            qp,
            ird: DEFAULT_READ_DEPTH,
            ord: DEFAULT_READ_DEPTH,
            private_data: Vec::new(),
        }
    }
}
