//! Codecs for InfiniBand's connection management on the wire, over RoCEv2, and nothing else.
//!
//! * [`roce`]: UD packets in UDP over IPv4 and IPv6, with their invariant CRC;
//! * [`mad`]: the common header of management datagrams, of 256 bytes each;
//! * [`cm`]: the messages of the communication management class;
//! * [`ip_cm`]: the RDMA IP CM service (InfiniBand Architecture Specification, Annex A11), which
//!   puts the addresses and ports of sockets into those messages.
//!
//! Every decoder is total: any bytes give a value or a named error. Fields are big-endian, as on
//! the wire, except for the CRC. Emitters write reserved bits as zero, and parsers ignore them. The
//! connection manager (`heddle-cm`) decides what a message means.
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
