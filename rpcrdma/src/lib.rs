//! RPC-over-RDMA versions 1 (RFC 8166, with RFC 8167 and RFC 8797) and 2
//! (draft-ietf-nfsv4-rpcrdma-version-two-07), without IO: what stands on the wire, the rules that go
//! with it, and a connection that keeps to them.
//!
//! An RPC message is the *Payload stream*. It goes in an RDMA Send behind a *transport header*; items
//! of it that are worth it go apart, by RDMA Read and Write between the responder and memory that the
//! requester names in *chunks*.
//!
//! * [`xdr`]: the items that headers are made of;
//! * [`segment`], [`chunk`]: memory, and lists of it;
//! * [`v1`], [`v2`]: the headers of the two versions; [`header`]: a received message of either, and
//!   what is answered when it is not understood;
//! * [`property`]: what version 2 says of its ends once the connection is there;
//! * [`private_data`]: what version 1 says of them while it is made;
//! * [`credit`]: flow control of either version;
//! * [`sequence`]: messages of version 2 that belong together;
//! * [`rpc`]: headers of RPC messages (RFC 5531);
//! * [`reduce`]: taking items out of a Payload stream and putting them back;
//! * [`binding`]: which items may be;
//! * [`conn`]: a connection of either version, of all of these.
//!
//! Every decoder is total: any octets give a value or a named error. Values borrow from what was
//! received, decoding allocates nothing, and what was decoded encodes to the same octets. Numbers are
//! big-endian, as in all of XDR. Where the draft contradicts itself or says nothing,
//! `docs/rpcrdma-v2-notes.md` has what is done here, and why.
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
