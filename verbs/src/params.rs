//! Parameters with which an application makes and accepts connections.

use core::net::IpAddr;
use core::time::Duration;

use heddle_types::{DEFAULT_READ_DEPTH, MpaOptions, Protocol, QpSpec, TcpTerms};

use crate::qp::Qp;

pub use heddle_types::ListenParams;

/// A connection to make.
#[derive(Clone, Debug)]
pub struct ConnectParams {
    /// The queue pair that is to run on the connection.
    pub qp: Qp,
    /// Our address, which also selects the port. When absent, the route to the peer selects both.
    pub local: Option<IpAddr>,
    /// The start-up dialogue and its options: MPA revision, CRC, markers, the peer-to-peer model.
    pub protocol: Protocol,
    /// RDMA Reads that we take from the peer at a time. The start-up rejects a peer that insists on
    /// more outstanding Reads (RFC 6581 section 9.1).
    pub ird: u16,
    /// RDMA Reads that we want to have outstanding; the start-up lowers this to the number that the
    /// peer takes.
    pub ord: u16,
    /// Data for the peer's application; at most 508 bytes with MPA revision 2, 512 with revision 1.
    pub private_data: Vec<u8>,
    /// Time limit for the whole start-up.
    pub timeout: Duration,
    /// Settings of TCP for the connection, where they differ from the RNIC's.
    pub tcp: TcpTerms,
}

impl ConnectParams {
    /// Returns parameters with MPA revision 2, CRC, 16 Reads each way, no private data, a time
    /// limit of 10 s, and any address of ours.
    pub fn new(qp: Qp) -> ConnectParams {
        ConnectParams {
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

    /// Returns these parameters with the given options of MPA.
    #[must_use]
    pub fn mpa(self, options: MpaOptions) -> ConnectParams {
        ConnectParams { protocol: Protocol::Mpa(options), ..self }
    }

    /// Returns these parameters with the given address of ours (as `rdma_bind_addr` chooses it).
    #[must_use]
    pub fn from(self, local: IpAddr) -> ConnectParams {
        ConnectParams { local: Some(local), ..self }
    }

    /// Returns these parameters with the given IRD and ORD.
    #[must_use]
    pub fn reads(self, ird: u16, ord: u16) -> ConnectParams {
        ConnectParams { ird, ord, ..self }
    }

    pub(crate) fn split(self) -> (Qp, heddle_types::ConnectTerms) {
        let ConnectParams { qp, local, protocol, ird, ord, private_data, timeout, tcp } = self;
        let spec = spec(&qp);
        (
            qp,
            heddle_types::ConnectTerms {
                qp: spec,
                local,
                protocol,
                ird,
                ord,
                private_data,
                timeout,
                tcp,
            },
        )
    }
}

/// Parameters with which an application accepts a connection request.
#[derive(Clone, Debug)]
pub struct AcceptParams {
    /// The queue pair that is to run on the connection.
    pub qp: Qp,
    /// RDMA Reads that we take from the peer at a time. The start-up uses this number as it is,
    /// except that a 0 becomes a 1 where the peer can begin only with a Read, in the peer-to-peer
    /// model.
    pub ird: u16,
    /// RDMA Reads that we want to have outstanding; the start-up lowers this to the number that the
    /// peer takes.
    pub ord: u16,
    /// Data for the peer's application.
    pub private_data: Vec<u8>,
}

impl AcceptParams {
    /// Returns parameters with 16 Reads each way and no private data.
    pub fn new(qp: Qp) -> AcceptParams {
        AcceptParams {
            qp,
            ird: DEFAULT_READ_DEPTH,
            ord: DEFAULT_READ_DEPTH,
            private_data: Vec::new(),
        }
    }

    /// Returns these parameters with the given IRD and ORD.
    #[must_use]
    pub fn reads(self, ird: u16, ord: u16) -> AcceptParams {
        AcceptParams { ird, ord, ..self }
    }

    pub(crate) fn split(self) -> (Qp, heddle_types::AcceptTerms) {
        let AcceptParams { qp, ird, ord, private_data } = self;
        let spec = spec(&qp);
        (qp, heddle_types::AcceptTerms { qp: spec, ird, ord, private_data })
    }
}

fn spec(qp: &Qp) -> QpSpec {
    let init = qp.init();
    QpSpec { qpn: qp.qpn(), pd: qp.pd(), sq_depth: init.sq_depth, rq_depth: init.rq_depth }
}
