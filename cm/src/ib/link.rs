use core::net::SocketAddr;
use core::time::Duration;

use heddle_base::Instant;
use heddle_ib::{CommId, Qpn as IbQpn};
use heddle_types::{AppId, CmId, ListenerId, PeerDepths, TenantId, WorkerId, mpa::Depth};

use super::state::IbState;

/// A connection of InfiniBand.
#[derive(Debug)]
pub(crate) struct IbConn {
    pub(crate) link: IbLink,
    pub(crate) state: IbState,
    /// The time of the connection's entry in the list of timers.
    pub(crate) deadline: Option<Instant>,
}

/// Facts about a connection that stay the same through its states, or are known from some state on.
#[derive(Clone, Debug)]
pub(crate) struct IbLink {
    pub(crate) id: CmId,
    pub(crate) app: AppId,
    /// The tenant that pays for the connection's place.
    pub(crate) tenant: TenantId,
    pub(crate) worker: WorkerId,
    /// The listener that the connection came to, if the peer made the connection.
    pub(crate) listener: Option<ListenerId>,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// UDP source port of our datagrams.
    pub(crate) src_port: u16,
    pub(crate) local_comm: CommId,
    /// The peer's communication id; absent until the peer has sent it.
    pub(crate) remote_comm: Option<CommId>,
    /// Whether the peer is a stranger: it made the connection, and has not yet named our
    /// communication id, which would prove that our answer reached its address.
    pub(crate) is_stranger: bool,
    /// Transaction id of the REQ and of all messages that answer it.
    pub(crate) tid: u64,
    /// Transaction id of a DREQ of ours.
    pub(crate) dreq_tid: u64,
    pub(crate) ca_guid: u64,
    pub(crate) local_qpn: IbQpn,
    pub(crate) local_psn: u32,
    /// Number of the peer's queue pair; unique together with the peer's GUID.
    pub(crate) remote_qpn: IbQpn,
    pub(crate) remote_guid: u64,
    /// Depths that the peer announced for its RDMA Reads.
    pub(crate) peer: Depths,
    /// Time that the peer may take to answer; then, `retries` times, the message is retransmitted.
    pub(crate) interval: Duration,
    pub(crate) retries: u8,
    /// Time for which an ended connection answers copies.
    pub(crate) time_wait: Duration,
    /// Time for which the peer may be silent, if it made the connection.
    pub(crate) keepalive: Option<Duration>,
}

/// RDMA Reads and Atomics of one side: responder resources and initiator depth, as in the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Depths {
    /// Reads of the other side that this side takes at a time: its IRD.
    pub(crate) responder_resources: u8,
    /// Reads of its own that this side has outstanding at a time: its ORD.
    pub(crate) initiator_depth: u8,
}

impl Depths {
    /// Returns our depths, lowered to the largest number that the messages can carry.
    pub(crate) fn ours(ird: u16, ord: u16) -> Depths {
        let most = |n: u16| u8::try_from(n).unwrap_or(u8::MAX);
        Depths { responder_resources: most(ird), initiator_depth: most(ord) }
    }

    pub(crate) fn told(self) -> PeerDepths {
        // Every number of 8 bits is a valid depth, which has 14 bits.
        let depth = |n: u8| Depth::new(n.into()).unwrap_or(Depth::MAX);
        PeerDepths { ird: depth(self.responder_resources), ord: depth(self.initiator_depth) }
    }
}
