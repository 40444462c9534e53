use core::net::SocketAddr;
use core::time::Duration;

use heddle_base::Instant;
use heddle_ib::{CommId, Qpn as IbQpn};
use heddle_iwarp::mpa::frame::Depth;

use super::state::IbState;
use crate::event::PeerDepths;
use crate::id::{AppId, CmId, ListenerId, TenantId, WorkerId};

/// A connection.
#[derive(Debug)]
pub(crate) struct IbConn {
    pub(crate) link: IbLink,
    pub(crate) state: IbState,
    /// The time in the list of timers.
    pub(crate) deadline: Option<Instant>,
}

/// What stays the same through the states, or is known from some state on.
#[derive(Clone, Debug)]
pub(crate) struct IbLink {
    pub(crate) id: CmId,
    pub(crate) app: AppId,
    /// Who pays for the place it takes.
    pub(crate) tenant: TenantId,
    pub(crate) worker: WorkerId,
    /// Where it came in, when the peer made it.
    pub(crate) listener: Option<ListenerId>,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// UDP source port of what we send.
    pub(crate) src_port: u16,
    pub(crate) local_comm: CommId,
    /// Absent until the peer has told it.
    pub(crate) remote_comm: Option<CommId>,
    /// Whether the peer is a stranger: it made the connection, and has not yet named it as we do, which
    /// shows that our answer reached its address.
    pub(crate) is_stranger: bool,
    /// That of the REQ and all that answers it.
    pub(crate) tid: u64,
    /// That of a DREQ of ours.
    pub(crate) dreq_tid: u64,
    pub(crate) ca_guid: u64,
    pub(crate) local_qpn: IbQpn,
    pub(crate) local_psn: u32,
    /// With the peer's GUID it names its queue pair.
    pub(crate) remote_qpn: IbQpn,
    pub(crate) remote_guid: u64,
    /// What the peer said of its RDMA Reads.
    pub(crate) peer: Depths,
    /// How long the peer may take to answer, and how often it is asked again.
    pub(crate) interval: Duration,
    pub(crate) retries: u8,
    /// How long a connection that has ended answers copies.
    pub(crate) time_wait: Duration,
    /// How long its peer may be silent, when it was the peer that made it.
    pub(crate) keepalive: Option<Duration>,
}

/// RDMA Reads and Atomics of one side: responder resources and initiator depth, as the messages have
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Depths {
    /// Those of the other side that it takes at a time: its IRD.
    pub(crate) responder_resources: u8,
    /// Those of its own that it has outstanding at a time: its ORD.
    pub(crate) initiator_depth: u8,
}

impl Depths {
    /// Ours, of an application that may ask for more than the messages can say.
    pub(crate) fn ours(ird: u16, ord: u16) -> Depths {
        let most = |n: u16| u8::try_from(n).unwrap_or(u8::MAX);
        Depths { responder_resources: most(ird), initiator_depth: most(ord) }
    }

    pub(crate) fn told(self) -> PeerDepths {
        // A number of eight bits is a depth of fourteen.
        let depth = |n: u8| Depth::new(n.into()).unwrap_or(Depth::MAX);
        PeerDepths { ird: depth(self.responder_resources), ord: depth(self.initiator_depth) }
    }
}
