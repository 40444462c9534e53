//! RPC-over-RDMA versions 1 (RFC 8166, with RFC 8167 and RFC 8797) and 2
//! (draft-ietf-nfsv4-rpcrdma-version-two-07), without IO: the encodings on the wire, the rules that
//! belong to them, and a connection that obeys the rules.
//!
//! An RPC message is the *Payload stream*. The sender puts the stream into an RDMA Send after a
//! *transport header*. Items of the stream that are large enough travel separately, by RDMA Read
//! and Write between the responder and memory that the requester names in *chunks*.
//!
//! * [`xdr`]: the data types that headers consist of;
//! * [`segment`], [`chunk`]: memory, and lists of memory;
//! * [`v1`], [`v2`]: the headers of the two versions; [`header`]: a received message of either
//!   version, and the answer to a message that was not understood;
//! * [`property`]: the properties that the ends exchange in version 2 on an established connection;
//! * [`private_data`]: the properties that the ends exchange in version 1 during connection setup;
//! * [`credit`]: flow control of either version;
//! * [`sequence`]: messages of version 2 that belong together;
//! * [`rpc`]: headers of RPC messages (RFC 5531);
//! * [`reduce`]: taking items out of a Payload stream and putting them back;
//! * [`binding`]: the items that may be taken out;
//! * [`conn`]: a connection of either version, built from all of these.
//!
//! Every decoder is total: any bytes give a value or a named error. Values borrow from the received
//! bytes, decoding allocates nothing, and a decoded value encodes to the same bytes. Numbers are
//! big-endian, as in all of XDR. Where the draft contradicts itself or is silent,
//! `docs/rpcrdma-v2-notes.md` states what this crate does, and why.
#![forbid(unsafe_code)]

pub mod binding;
pub mod chunk;
pub mod conn;
pub mod credit;
pub mod header;
pub mod private_data;
pub mod property;
pub mod reduce;
pub mod rpc;
pub mod segment;
pub mod sequence;
pub mod v1;
pub mod v2;
pub mod xdr;

pub use chunk::Limits;
pub use header::{Direction, Prefix, Xid};
pub use segment::{Handle, ReadSegment, Segment};
