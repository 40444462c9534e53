//! ONC RPC (RFC 5531) over RPC-over-RDMA, versions 1 (RFC 8166) and 2
//! (draft-ietf-nfsv4-rpcrdma-version-two-07), on the queue pairs of [`heddle_verbs`].
//!
//! * [`client`]: makes calls to the programs of a server, and has programs that the server calls;
//! * [`server`]: has programs that peers call, and makes calls to programs of the peers;
//! * [`Body`]: arguments and results, in bytes and in items; items are in separate registered
//!   memory ([`Memory`], [`Buffer`]) and travel by RDMA Read and Write;
//! * [`rpcbind`]: reports the addresses of programs;
//! * [`FastPool`]: the STags that give a peer access to such memory, each for one call.
//!
//! [`heddle_rpcrdma::conn`] keeps the state of a connection and does no IO; this crate is its
//! driver. The crate has no DPDK and no thread: the owner of a client or server steps it, and can
//! wait for it on a descriptor. The RNIC may be in another process
//! ([`heddle_verbs::Device::open`]).
//!
//! # What is copied
//!
//! The RNIC sends an item from its [`Buffer`], and places an item in one, without a copy. This
//! crate copies all other bytes (headers, and data outside items) once into registered memory to
//! send them, and once or twice out of registered memory after they have arrived.
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
