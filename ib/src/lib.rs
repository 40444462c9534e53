//! What InfiniBand's connection management says on the wire, over RoCEv2: codecs, and nothing else.
//!
//! * [`roce`]: UD packets in UDP over IPv4 and IPv6, with their invariant CRC;
//! * [`mad`]: the common header of management datagrams, of 256 octets each;
//! * [`cm`]: the messages of the communication management class;
//! * [`ip_cm`]: the RDMA IP CM service (InfiniBand Architecture Specification, Annex A11), which puts
//!   the addresses and ports of sockets into them.
//!
//! Every decoder is total: any octets give a value or a named error. Fields are big-endian, as on the
//! wire, but for the CRC. Reserved bits are sent as zero and not looked at. What a message means is
//! the connection manager's matter (`heddle-cm`).
#![forbid(unsafe_code)]

mod bytes;
pub mod cm;
mod gid;
pub mod ip_cm;
pub mod mad;
pub mod roce;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod types;

pub use gid::Gid;
pub use types::{CommId, Psn, Qpn, ServiceId, TimeCode};
