//! The configuration and the counters of servers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use heddle_rpcrdma::binding::{Binding, Table};
use heddle_verbs::{ListenParams, Waker};

use super::DuplicateLimits;
use crate::credential::Credential;
use crate::transport::TransportConfig;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Versions, sizes and depths of the server's connections.
    pub transport: TransportConfig,
    /// Parameters of the listener.
    pub listen: ListenParams,
    /// Length in bytes of the registered memory for received calls and the replies to them. Calls
    /// leave a quarter for results, and wait when there is no more. The Receives of connections use
    /// other memory.
    pub memory: usize,
    /// The number of bytes of that memory that the calls of one connection may hold until programs
    /// are done with them. Further calls of the connection wait, and a call that is longer is
    /// refused.
    pub connection_memory: usize,
    /// Largest number of connections.
    pub connections: usize,
    /// Largest number of connections from one peer address.
    pub peer_connections: usize,
    /// Limits for the replies that are kept for repeated calls.
    pub duplicates: DuplicateLimits,
    /// A waker for arrivals, in place of the server's own descriptor. A thread that also steps
    /// other objects provides it, and calls [`Server::arm`](super::Server::arm) before it sleeps.
    pub waker: Option<Waker>,
    /// Configuration of calls to programs of the clients
    /// ([`Request::caller`](super::Request::caller)); with `None` the server makes no calls.
    pub calls: Option<Arc<CallsConfig>>,
}

/// The configuration of a server's calls to its clients.
pub struct CallsConfig {
    /// The binding that states which items of calls and results may be placed.
    pub binding: Box<dyn Binding + Send + Sync>,
    /// The credential of calls that do not set their own.
    pub credential: Credential,
    /// Length in bytes of the registered memory for calls on each connection. A connection holds
    /// this memory until it ends.
    pub memory: usize,
    /// Number of fast registrations of each connection, for version 2; calls that need more wait.
    pub registrations: u32,
    /// Largest number of calls under way on each connection, sent or not.
    pub calls: usize,
    /// Timeout of calls that do not set their own.
    pub timeout: Duration,
}

impl Default for CallsConfig {
    /// The default places no items and has no credential. Each connection has 256 KiB of memory, 8
    /// registrations and 64 calls; the timeout of a call is 30 s.
    fn default() -> CallsConfig {
        CallsConfig {
            binding: Box::new(Table(&[])),
            credential: Credential::None,
            memory: 256 << 10,
            registrations: 8,
            calls: 64,
            timeout: Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for CallsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallsConfig { memory, registrations, calls, timeout, .. } = self;
        write!(f, "{memory} bytes, {registrations} registrations, {calls} calls, {timeout:?}")
    }
}

impl Default for ServerConfig {
    /// The default has 32 MiB of memory, a quarter of it for each connection; 64 connections, 16
    /// from each peer.
    fn default() -> ServerConfig {
        ServerConfig {
            transport: TransportConfig::default(),
            listen: ListenParams::default(),
            memory: 32 << 20,
            connection_memory: 8 << 20,
            connections: 64,
            peer_connections: 16,
            duplicates: DuplicateLimits::default(),
            waker: None,
            calls: None,
        }
    }
}

heddle_base::counters! {
    /// Events that a server has counted since its creation.
    pub struct ServerCounters {
        /// Connections that were established.
        connections,
        /// Connections that the server rejected, because of limits or lack of memory.
        connections_refused,
        /// Connections that the server closed because of the peer's behaviour, or because of a
        /// failure.
        connections_dropped,
        /// Dropped connections that were closed because a transfer took too long.
        transfer_timeouts,
        /// Calls that the server gave to programs.
        calls,
        /// Calls of procedure 0.
        calls_null,
        /// Repeated calls, which were begun or executed before.
        calls_repeated,
        /// Calls that no program got: unknown program or version, bad credential or arguments.
        calls_refused,
        /// Calls whose RPC header cannot be decoded.
        calls_unreadable,
        /// Calls that had to wait for memory, for the call itself or for its results.
        memory_waits,
    }
}
