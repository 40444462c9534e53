use crate::bytes::{array, be16, be24, be32, be64, put, put24};
use crate::gid::Gid;
use crate::mad::Data;
use crate::types::{CommId, Psn, Qpn, ServiceId, TimeCode};

/// The transport that a REQ asks for: two bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transport(pub u8);

impl Transport {
    /// Reliable connection.
    pub const RC: Transport = Transport(0);
    /// Unreliable connection.
    pub const UC: Transport = Transport(1);
    /// Reliable datagram.
    pub const RD: Transport = Transport(2);
    /// Another transport, which the extended transport type names.
    pub const EXTENDED: Transport = Transport(3);
}

/// A path from the side that asks to the side that answers.
///
/// ```text
///    0  local LID 16 │ remote LID 16
///    4  local GID 128
///   20  remote GID 128
///   36  flow label 20 │ reserved 6 │ packet rate 6
///   40  traffic class 8 │ hop limit 8 │ SL 4, subnet local, reserved 3 │ ACK timeout 5, reserved 3
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Local identifier of the port that asks; without meaning over RoCE.
    pub local_lid: u16,
    /// Local identifier of the port that answers; without meaning over RoCE.
    pub remote_lid: u16,
    /// Address of the port that asks.
    pub local_gid: Gid,
    /// Address of the port that answers.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Code of the packet rate, 6 bits.
    pub packet_rate: u8,
    /// Traffic class, 8 bits.
    pub traffic_class: u8,
    /// Hop limit, 8 bits.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// No router is on the way.
    pub subnet_local: bool,
    /// Longest time that the acknowledgment of a packet takes.
    pub ack_timeout: TimeCode,
}

/// Bytes of a path.
const PATH_LEN: usize = 44;

impl Path {
    fn parse(b: &[u8; PATH_LEN]) -> Path {
        Path {
            local_lid: be16(b, 0),
            remote_lid: be16(b, 2),
            local_gid: Gid(array(b, 4)),
            remote_gid: Gid(array(b, 20)),
            flow_label: be32(b, 36) >> 12,
            packet_rate: b[39] & 0x3f,
            traffic_class: b[40],
            hop_limit: b[41],
            sl: b[42] >> 4,
            subnet_local: b[42] & 8 != 0,
            ack_timeout: TimeCode::new(b[43] >> 3),
        }
    }

    fn emit(&self) -> [u8; PATH_LEN] {
        let mut b = [0; PATH_LEN];
        put(&mut b, 0, &self.local_lid.to_be_bytes());
        put(&mut b, 2, &self.remote_lid.to_be_bytes());
        put(&mut b, 4, &self.local_gid.0);
        put(&mut b, 20, &self.remote_gid.0);
        let word = self.flow_label << 12 | u32::from(self.packet_rate & 0x3f);
        put(&mut b, 36, &word.to_be_bytes());
        b[40] = self.traffic_class;
        b[41] = self.hop_limit;
        b[42] = self.sl << 4 | u8::from(self.subnet_local) << 3;
        b[43] = self.ack_timeout.get() << 3;
        b
    }
}

/// REQ: asks for a connection. "Local" is the side that asks.
///
/// ```text
///    0  local communication id 32
///    4  reserved 8 │ vendor id 24
///    8  service id 64
///   16  local CA GUID 64
///   24  reserved 32
///   28  local Q_Key 32
///   32  local QPN 24 │ responder resources 8
///   36  local EECN 24 │ initiator depth 8
///   40  remote EECN 24 │ remote CM response timeout 5, transport 2, flow control 1
///   44  starting PSN 24 │ local CM response timeout 5, retry count 3
///   48  P_Key 16 │ MTU 4, RDC exists 1, RNR retry count 3 │ max CM retries 4, SRQ 1, extended 3
///   52  primary path, 44 bytes
///   96  alternate path, 44 bytes
///  140  private data, 92 bytes
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Req {
    /// The asking side's name of the connection.
    pub local_comm_id: CommId,
    /// Manufacturer of the asking CM, 24 bits.
    pub vendor_id: u32,
    /// The service that the asking side wants.
    pub service_id: ServiceId,
    /// GUID of the adapter that asks. Together with the QPN it names the queue pair.
    pub local_ca_guid: u64,
    /// Q_Key of the queue pair, for reliable datagrams.
    pub local_q_key: u32,
    /// Number of the asking side's queue pair.
    pub local_qpn: Qpn,
    /// RDMA Reads and Atomics of the peer that the asking side serves at a time.
    pub responder_resources: u8,
    /// End-to-end context, for reliable datagrams; 24 bits.
    pub local_eecn: u32,
    /// RDMA Reads and Atomics that the asking side has outstanding at a time.
    pub initiator_depth: u8,
    /// End-to-end context of the peer; 24 bits.
    pub remote_eecn: u32,
    /// Time that the asking side waits for an answer or an MRA before it repeats the REQ.
    pub remote_cm_response_timeout: TimeCode,
    /// Transport of the connection.
    pub transport: Transport,
    /// The asking side uses end-to-end flow control.
    pub flow_control: bool,
    /// Number of the first packet that the asking side will send.
    pub starting_psn: Psn,
    /// Longest time that the asking side takes for an answer.
    pub local_cm_response_timeout: TimeCode,
    /// Number of times that a sender repeats a packet, 3 bits.
    pub retry_count: u8,
    /// P_Key of the partition.
    pub p_key: u16,
    /// Code of the path's MTU, 4 bits: 1 for 256 bytes, to 5 for 4096.
    pub path_mtu: u8,
    /// A reliable datagram channel exists already.
    pub rdc_exists: bool,
    /// Number of retries when a receiver is not ready, 3 bits; 7 for ever.
    pub rnr_retry_count: u8,
    /// Number of times that either side repeats a message, 4 bits.
    pub max_cm_retries: u8,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// The transport, 3 bits, if `transport` is [`Transport::EXTENDED`].
    pub extended_transport: u8,
    /// The path that the connection uses first.
    pub primary: Path,
    /// The path to fail over to; all zeros for none.
    pub alternate: Path,
    /// The application's private data.
    pub private_data: [u8; Req::PRIVATE_LEN],
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 92;

    /// Reads a message, which may have any value.
    pub fn parse(b: &Data) -> Req {
        Req {
            local_comm_id: CommId(be32(b, 0)),
            vendor_id: be24(b, 5),
            service_id: ServiceId(be64(b, 8)),
            local_ca_guid: be64(b, 16),
            local_q_key: be32(b, 28),
            local_qpn: Qpn::new(be24(b, 32)),
            responder_resources: b[35],
            local_eecn: be24(b, 36),
            initiator_depth: b[39],
            remote_eecn: be24(b, 40),
            remote_cm_response_timeout: TimeCode::new(b[43] >> 3),
            transport: Transport(b[43] >> 1 & 3),
            flow_control: b[43] & 1 != 0,
            starting_psn: Psn::new(be24(b, 44)),
            local_cm_response_timeout: TimeCode::new(b[47] >> 3),
            retry_count: b[47] & 7,
            p_key: be16(b, 48),
            path_mtu: b[50] >> 4,
            rdc_exists: b[50] & 8 != 0,
            rnr_retry_count: b[50] & 7,
            max_cm_retries: b[51] >> 4,
            srq: b[51] & 8 != 0,
            extended_transport: b[51] & 7,
            primary: Path::parse(&array(b, 52)),
            alternate: Path::parse(&array(b, 96)),
            private_data: array(b, 140),
        }
    }

    /// Writes the message into `b`, which must be zero before.
    pub(super) fn emit(&self, b: &mut Data) {
        put(b, 0, &self.local_comm_id.0.to_be_bytes());
        put24(b, 5, self.vendor_id);
        put(b, 8, &self.service_id.0.to_be_bytes());
        put(b, 16, &self.local_ca_guid.to_be_bytes());
        put(b, 28, &self.local_q_key.to_be_bytes());
        put24(b, 32, self.local_qpn.get());
        b[35] = self.responder_resources;
        put24(b, 36, self.local_eecn);
        b[39] = self.initiator_depth;
        put24(b, 40, self.remote_eecn);
        b[43] = self.remote_cm_response_timeout.get() << 3 | (self.transport.0 & 3) << 1;
        b[43] |= u8::from(self.flow_control);
        put24(b, 44, self.starting_psn.get());
        b[47] = self.local_cm_response_timeout.get() << 3 | self.retry_count & 7;
        put(b, 48, &self.p_key.to_be_bytes());
        b[50] = self.path_mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7;
        b[51] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | self.extended_transport & 7;
        put(b, 52, &self.primary.emit());
        put(b, 96, &self.alternate.emit());
        put(b, 140, &self.private_data);
    }
}
