//! The answers to `conns` and `mrs`: connections with their queue pairs, and memory regions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A list of connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conns {
    /// Time of the request, since the start.
    pub at_ns: u64,
    /// Connections in the order of their numbers.
    pub conns: Vec<Conn>,
    /// Value for [`ConnsArgs::after`](super::ConnsArgs::after) to go on with, when there may be more connections.
    pub next: Option<u64>,
    /// Numbers of the workers that have not answered in time: the state of TCP and the counters of
    /// their connections are missing.
    #[serde(default)]
    pub silent: Vec<usize>,
}

/// A connection with its queue pair and its counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conn {
    /// Number of the connection, never given again. Connections that peers made have numbers from
    /// 2^63 on.
    pub conn: u64,
    /// Address of our end.
    pub local: String,
    /// Address of the peer's end.
    pub remote: String,
    /// State of the connection.
    pub state: String,
    /// Number of the worker that runs the connection.
    pub worker: usize,
    /// `iwarp` or `infiniband`.
    #[serde(default)]
    pub transport: String,
    /// The service, `forward`, or the number of the application.
    pub service: String,
    /// For a forwarded connection, the number of the connection at the other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<u64>,
    /// The agreed parameters, once the connection is established.
    pub agreed: Option<Agreed>,
    /// The queue pair, once the connection has one.
    pub qp: Option<Qp>,
    /// State of TCP, while the worker has the connection.
    pub tcp: Option<Tcp>,
    /// Every counter of TCP and of the queue pair that is not 0.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
}

/// Parameters that both ends agreed on during start-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// Revision of MPA.
    pub revision: u8,
    /// True if FPDUs carry a CRC.
    pub crc: bool,
    /// Reads that the peer may have outstanding.
    pub ird: u16,
    /// Reads that we may have outstanding.
    pub ord: u16,
    /// True if we send markers.
    pub send_markers: bool,
    /// True if the peer sends markers.
    pub recv_markers: bool,
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Qp {
    /// Queue pair number.
    pub qpn: u32,
    /// Number of the protection domain.
    pub pd: u32,
    /// State of the queue pair.
    pub state: String,
    /// Depth of the send queue.
    pub sq_depth: u32,
    /// Depth of the receive queue.
    pub rq_depth: u32,
    /// True if the queue pair takes its receives from a shared receive queue.
    pub shared: bool,
    /// Requests of the send queue that the worker has taken and not completed.
    pub sq_outstanding: u32,
    /// Requests of the receive queue that the worker has taken and not completed.
    pub rq_outstanding: u32,
    /// Bytes of payload that the worker has put into FPDUs.
    pub tx_bytes: u64,
    /// Bytes of payload that the worker has placed.
    pub rx_bytes: u64,
    /// FPDUs that the worker has made.
    pub tx_fpdus: u64,
    /// FPDUs that the worker has received and found valid.
    pub rx_fpdus: u64,
}

/// A TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tcp {
    /// Connection state of RFC 9293.
    pub state: String,
    /// Bytes of payload in a full segment.
    pub emss: u32,
    /// Smoothed round-trip time; absent before the first measurement.
    pub srtt_ns: Option<u64>,
    /// Variation of the round-trip time.
    pub rttvar_ns: u64,
    /// Retransmission timeout.
    pub rto_ns: u64,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes.
    pub ssthresh: u32,
    /// Bytes believed to be in the network.
    pub in_flight: u64,
    /// The peer's window in bytes.
    pub snd_wnd: u32,
    /// Bytes that the peer has acknowledged.
    pub acked: u64,
    /// Bytes received in order.
    pub received: u64,
    /// Why the connection makes no progress: `peer silent` or `window shut`. A connection whose
    /// hindrance lasts ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
    /// Segments retransmitted.
    pub retransmits: u64,
    /// Expiries of the retransmission timer.
    pub timeouts: u64,
}

/// A list of registered memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mrs {
    /// Regions, windows and fast registrations whose STag is valid.
    pub mrs: Vec<Mr>,
    /// True if there are more entries than fit into an answer.
    pub cut: bool,
}

/// A region, a window or a fast registration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mr {
    /// Slot in the table of STags. An STag is a capability, and a slot number is not.
    pub index: u32,
    /// The STag, where a client that may see STags has asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stag: Option<u32>,
    /// Number of the protection domain.
    pub pd: u32,
    /// Owner of the protection domain: `services`, or the name of an application with its number.
    /// Absent when the owner no longer exists.
    #[serde(default)]
    pub owner: Option<String>,
    /// The only queue pair that may use the memory, where it is bound to one.
    pub qpn: Option<u32>,
    /// Length in bytes.
    pub len: u64,
    /// Names of the access rights.
    pub access: Vec<String>,
}
