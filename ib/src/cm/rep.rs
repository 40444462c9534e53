use crate::bytes::{array, be24, be32, be64, put, put24};
use crate::mad::Data;
use crate::types::{CommId, Psn, Qpn, TimeCode};

/// The answer to the alternate path of a REQ: two bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failover(pub u8);

impl Failover {
    /// The answering side accepts the path.
    pub const ACCEPTED: Failover = Failover(0);
    /// The answering side does not support failover.
    pub const UNSUPPORTED: Failover = Failover(1);
    /// The answering side rejects this path.
    pub const REJECTED: Failover = Failover(2);
}

/// REP: accepts a connection. "Local" is the side that answers.
///
/// ```text
///    0  local communication id 32
///    4  remote communication id 32
///    8  local Q_Key 32
///   12  local QPN 24 │ vendor id, high 8
///   16  local EECN 24 │ vendor id, middle 8
///   20  starting PSN 24 │ vendor id, low 8
///   24  responder resources 8 │ initiator depth 8
///   26  target ACK delay 5, failover 2, flow control 1 │ RNR retry count 3, SRQ 1, reserved 4
///   28  local CA GUID 64
///   36  private data, 196 bytes
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The answering side's name of the connection.
    pub local_comm_id: CommId,
    /// The asking side's name of the connection.
    pub remote_comm_id: CommId,
    /// Q_Key of the queue pair, for reliable datagrams.
    pub local_q_key: u32,
    /// Number of the answering side's queue pair.
    pub local_qpn: Qpn,
    /// Manufacturer of the answering CM, 24 bits.
    pub vendor_id: u32,
    /// End-to-end context, for reliable datagrams; 24 bits.
    pub local_eecn: u32,
    /// Number of the first packet that the answering side will send.
    pub starting_psn: Psn,
    /// RDMA Reads and Atomics of the peer that the answering side serves at a time.
    pub responder_resources: u8,
    /// RDMA Reads and Atomics that the answering side has outstanding at a time.
    pub initiator_depth: u8,
    /// Longest time that the answering side takes to acknowledge a packet.
    pub target_ack_delay: TimeCode,
    /// The answer to the alternate path of the REQ.
    pub failover: Failover,
    /// The answering side uses end-to-end flow control.
    pub flow_control: bool,
    /// Number of retries when a receiver is not ready, 3 bits; 7 for ever.
    pub rnr_retry_count: u8,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// GUID of the adapter that answers.
    pub local_ca_guid: u64,
    /// The application's private data.
    pub private_data: [u8; Rep::PRIVATE_LEN],
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 196;

    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> Rep {
        Rep {
            local_comm_id: CommId(be32(b, 0)),
            remote_comm_id: CommId(be32(b, 4)),
            local_q_key: be32(b, 8),
            local_qpn: Qpn::new(be24(b, 12)),
            vendor_id: u32::from_be_bytes([0, b[15], b[19], b[23]]),
            local_eecn: be24(b, 16),
            starting_psn: Psn::new(be24(b, 20)),
            responder_resources: b[24],
            initiator_depth: b[25],
            target_ack_delay: TimeCode::new(b[26] >> 3),
            failover: Failover(b[26] >> 1 & 3),
            flow_control: b[26] & 1 != 0,
            rnr_retry_count: b[27] >> 5,
            srq: b[27] & 0x10 != 0,
            local_ca_guid: be64(b, 28),
            private_data: array(b, 36),
        }
    }

    /// Writes the message into `b`, which must be zero before.
    pub(super) fn emit(&self, b: &mut Data) {
        let [_, high, middle, low] = self.vendor_id.to_be_bytes();
        put(b, 0, &self.local_comm_id.0.to_be_bytes());
        put(b, 4, &self.remote_comm_id.0.to_be_bytes());
        put(b, 8, &self.local_q_key.to_be_bytes());
        put24(b, 12, self.local_qpn.get());
        b[15] = high;
        put24(b, 16, self.local_eecn);
        b[19] = middle;
        put24(b, 20, self.starting_psn.get());
        b[23] = low;
        b[24] = self.responder_resources;
        b[25] = self.initiator_depth;
        b[26] = self.target_ack_delay.get() << 3 | (self.failover.0 & 3) << 1;
        b[26] |= u8::from(self.flow_control);
        b[27] = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        put(b, 28, &self.local_ca_guid.to_be_bytes());
        put(b, 36, &self.private_data);
    }
}
