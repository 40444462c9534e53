//! What servers are made with, and what they count.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use heddle_rpcrdma::binding::{Binding, Table};
use heddle_verbs::{ListenParams, Waker};

use super::DuplicateLimits;
use crate::credential::Credential;
use crate::transport::TransportConfig;

/// What a server is made with.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Versions, sizes and depths of its connections.
    pub transport: TransportConfig,
    /// How it listens.
    pub listen: ListenParams,
    /// Octets of registered memory, for the calls that come and the replies to them. Calls leave a quarter
    /// to results, and wait when there is no more. Receives of connections are apart.
    pub memory: usize,
    /// Octets of it that the calls of one connection may have, until programs have done with them: others
    /// of it wait, and one that is longer is refused.
    pub connection_memory: usize,
    /// Connections at a time.
    pub connections: usize,
    /// Connections of one peer address.
    pub peer_connections: usize,
    /// Replies that are kept for calls that come again.
    pub duplicates: DuplicateLimits,
    /// Woken when something has come, instead of the server's own descriptor: of a thread that steps
    /// others too, and asks [`Server::arm`](super::Server::arm) before it sleeps.
    pub waker: Option<Waker>,
    /// Calls to programs of its clients ([`Request::caller`](super::Request::caller)); none without.
    pub calls: Option<Arc<CallsConfig>>,
}

/// What a server calls its clients with.
pub struct CallsConfig {
    /// Which items of calls and results may be placed.
    pub binding: Box<dyn Binding + Send + Sync>,
    /// Who calls.
    pub credential: Credential,
    /// Octets of registered memory for calls on each connection, which it has as long as it lives.
    pub memory: usize,
    /// Fast registrations of each connection, for version 2; calls that need more wait.
    pub registrations: u32,
    /// Calls of each connection that may be under way, sent or not.
    pub calls: usize,
    /// How long a call may take, unless it says otherwise.
    pub timeout: Duration,
}

impl Default for CallsConfig {
    /// Nothing is placed, nobody in particular calls; of each connection 256 KiB of memory, 8 registrations
    /// and 64 calls; 30 s for a call.
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
        write!(f, "{memory} octets, {registrations} registrations, {calls} calls, {timeout:?}")
    }
}

impl Default for ServerConfig {
    /// 32 MiB of memory, a quarter of it for each connection; 64 connections, 16 of each peer.
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
    /// What a server counts.
    pub struct ServerCounters {
        /// Connections that came about.
        connections,
        /// Connections that were turned away: for limits, or for want of memory.
        connections_refused,
        /// Connections closed for what the peer did, or for a failure.
        connections_dropped,
        /// Connections of them that were closed for a transfer that took too long.
        transfer_timeouts,
        /// Calls that programs were given.
        calls,
        /// Calls of procedure 0.
        calls_null,
        /// Calls that came again: begun, or executed, before.
        calls_repeated,
        /// Calls that no program was given: no such program or version, bad credential or arguments.
        calls_refused,
        /// Calls whose RPC header cannot be read.
        calls_unreadable,
        /// Calls that had to wait for memory: for their own, or for that of their results.
        memory_waits,
    }
}
