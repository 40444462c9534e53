//! ONC RPC (RFC 5531) over RPC-over-RDMA, versions 1 (RFC 8166) and 2
//! (draft-ietf-nfsv4-rpcrdma-version-two-07), on the queue pairs of [`heddle_verbs`].
//!
//! * [`client`]: calls to the programs of a server, and programs that it calls;
//! * [`server`]: programs that peers call, and calls to theirs;
//! * [`Body`]: arguments and results, in octets and in items that lie apart in registered memory
//!   ([`Memory`], [`Buffer`]) and go by RDMA Read and Write;
//! * [`rpcbind`]: where programs are;
//! * [`FastPool`]: the STags that show a peer such memory, for one call each.
//!
//! The state of a connection is [`heddle_rpcrdma::conn`]'s, which does no IO; its driver is here. There
//! is no DPDK and no thread: a client and a server are stepped by their owners, and can be waited for on
//! a descriptor. The RNIC may be another process's ([`heddle_verbs::Device::open`]).
//!
//! # What is copied
//!
//! An item in a [`Buffer`] is sent from there and placed there, by the RNIC. What is in octets (headers,
//! and whatever is not in an item) is copied once into registered memory when it is sent and once or
//! twice out of it when it has come.
#![forbid(unsafe_code)]

mod body;
pub mod client;
mod credential;
mod memory;
mod message;
mod pool;
pub mod rpcbind;
pub mod server;
mod thread;
mod transport;

pub use heddle_rpcrdma::conn::{Counters, Speaks};
pub use heddle_rpcrdma::property::ReverseSupport;
pub use heddle_rpcrdma::rpc::{AuthStat, Gids, Procedure};
pub use heddle_rpcrdma::{binding, xdr};

pub use body::{Body, BodyReader, Item, Opaque, TooLong};
pub use client::{CallError, Client, ClientConfig};
pub use credential::{Credential, SysCredential};
pub use memory::{Buffer, Memory, NoMemory, Outside};
pub use pool::{FastPool, NotValid};
pub use server::{Caller, Program, Refusal, Repeat, Request, Server, ServerConfig};
pub use transport::{SetupError, TransportConfig};
