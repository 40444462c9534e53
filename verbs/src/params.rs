//! How connections are made and accepted.

use core::net::IpAddr;
use core::time::Duration;

use heddle_cm::{DEFAULT_READ_DEPTH, MpaOptions, Protocol, QpSpec};

use crate::qp::Qp;

pub use heddle_cm::ListenParams;

/// A connection to make.
#[derive(Clone, Debug)]
pub struct ConnectParams {
    /// The queue pair that is to run on it.
    pub qp: Qp,
    /// Our address, which says the port too; when absent, both are those of the way to the peer.
    pub local: Option<IpAddr>,
    /// The start-up dialogue and its options: MPA revision, CRC, markers, the peer-to-peer model.
    pub protocol: Protocol,
    /// RDMA Reads we take from the peer at a time. A peer that will have more outstanding is turned
    /// away (RFC 6581 section 9.1).
    pub ird: u16,
    /// RDMA Reads we want to have outstanding; lowered to what the peer takes.
    pub ord: u16,
    /// For the peer's application; at most 508 octets with MPA revision 2, 512 with revision 1.
    pub private_data: Vec<u8>,
    /// How long the whole may take.
    pub timeout: Duration,
}

impl ConnectParams {
    /// MPA revision 2, with CRC, 16 Reads each way, no private data, 10 s, from any address of ours.
    pub fn new(qp: Qp) -> ConnectParams {
        ConnectParams {
            qp,
            local: None,
            protocol: Protocol::default(),
            ird: DEFAULT_READ_DEPTH,
            ord: DEFAULT_READ_DEPTH,
            private_data: Vec::new(),
            timeout: Duration::from_secs(10),
        }
    }

    /// The same with these options of MPA.
    #[must_use]
    pub fn mpa(self, options: MpaOptions) -> ConnectParams {
        ConnectParams { protocol: Protocol::Mpa(options), ..self }
    }

    /// The same from this address of ours (as `rdma_bind_addr` chooses it).
    #[must_use]
    pub fn from(self, local: IpAddr) -> ConnectParams {
        ConnectParams { local: Some(local), ..self }
    }

    /// The same with this IRD and ORD.
    #[must_use]
    pub fn reads(self, ird: u16, ord: u16) -> ConnectParams {
        ConnectParams { ird, ord, ..self }
    }

    pub(crate) fn split(self) -> (Qp, heddle_cm::ConnectTerms) {
        let ConnectParams { qp, local, protocol, ird, ord, private_data, timeout } = self;
        let spec = spec(&qp);
        (qp, heddle_cm::ConnectTerms { qp: spec, local, protocol, ird, ord, private_data, timeout })
    }
}

/// How a connection request is accepted.
#[derive(Clone, Debug)]
pub struct AcceptParams {
    /// The queue pair that is to run on it.
    pub qp: Qp,
    /// RDMA Reads we take from the peer at a time. Only a 0 becomes a 1 where a Read is all the peer
    /// can begin with, in the peer-to-peer model.
    pub ird: u16,
    /// RDMA Reads we want to have outstanding; lowered to what the peer takes.
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

    /// The same with this IRD and ORD.
    #[must_use]
    pub fn reads(self, ird: u16, ord: u16) -> AcceptParams {
        AcceptParams { ird, ord, ..self }
    }

    pub(crate) fn split(self) -> (Qp, heddle_cm::AcceptTerms) {
        let AcceptParams { qp, ird, ord, private_data } = self;
        let spec = spec(&qp);
        (qp, heddle_cm::AcceptTerms { qp: spec, ird, ord, private_data })
    }
}

fn spec(qp: &Qp) -> QpSpec {
    let init = qp.init();
    QpSpec { qpn: qp.qpn(), pd: qp.pd(), sq_depth: init.sq_depth, rq_depth: init.rq_depth }
}
