//! InfiniBand's communication management, with the RDMA IP CM service (IBTA Annex A11) on top.
//!
//! ```text
//!   active    ReqSent ─ REP, we send RTU ─▶ Established
//!   passive   ReqRcvd ─ accept, we send REP ─▶ RepSent ─ RTU ─▶ Established
//!   both      Established ─ we send DREQ ─▶ DreqSent ─ DREP ─▶ TimeWait ─▶ gone
//!                └ DREQ, we send DREP ─▶ TimeWait
//!             any state before Established ─ REJ, either way; time-out ─▶ TimeWait
//! ```
//!
//! An application sees over InfiniBand what it sees over MPA: a listener, a request, an answer, one
//! end. The difference lies below: there is no TCP connection, and each message is a datagram of
//! its own, so a message may be lost, come twice, or come from any host.
//!
//! - **No transport follows.** A connection is established and ends in order, and its queue pair
//!   does not run: [`Transport::carries_data`](heddle_types::Transport::carries_data) says so, and
//!   applications have to ask for InfiniBand
//!   ([`ListenParams::infiniband`](heddle_types::ListenParams::infiniband),
//!   [`Protocol::InfiniBand`](heddle_types::Protocol::InfiniBand)).
//! - **Answers come from the state.** The manager answers a repeated message as the first time, and
//!   the repetition changes nothing; after the end this holds for as long as copies may be under
//!   way ([`IbConfig::time_wait`]).
//! - **Names cannot be guessed.** Our communication ids and transaction ids are random. A message
//!   counts when it names our id, comes from the peer's address, and has the peer's id.
//! - **Everything that peers can cause has a limit**: connections in all; requests that no
//!   application has answered, in all, for each listener, and for each peer at a listener; one
//!   datagram out for each that comes in. When no place is left, an accepted peer that does not
//!   answer makes room.
//! - **A flood costs strangers, not connections.** Workers drop datagrams that are no messages
//!   ([`filter`]), and have separate budgets for messages of connections and messages of strangers;
//!   answers to strangers take at most half of any queue.
//! - **The manager probes a peer that made a connection** after the peer has been silent for
//!   [`IbConfig::keepalive`]. A peer that we connected to cannot be probed: InfiniBand has no
//!   message that such a peer would answer.

mod admit;
mod counters;
mod filter;
mod keepalive;
mod link;
mod message;
mod state;
mod step;
mod table;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use heddle_base::Seed;
use heddle_ib::TimeCode;
use heddle_types::WorkerId;

pub use counters::IbCounters;

pub(crate) use admit::{Refused, header, port};
pub(crate) use filter::Filter;
pub(crate) use keepalive::Keepalive;
pub(crate) use link::{Depths, IbConn, IbLink};
pub(crate) use message::{drep, names, rej};
pub(crate) use state::{Effect, IbState, Input, Wait};
pub(crate) use table::{Table, To};

/// Settings of the manager's InfiniBand side.
#[derive(Clone, Debug)]
pub struct IbConfig {
    /// Seed of our communication ids, transaction ids and the like.
    pub seed: Seed,
    /// Name of our end besides its addresses: any unique number, such as a MAC address stretched to
    /// 64 bits.
    pub ca_guid: u64,
    /// Addresses that answer InfiniBand, each with the worker that receives and sends its
    /// datagrams.
    pub ports: Vec<IbPort>,
    /// Largest number of connections, including ended connections that answer copies. The
    /// connection that ended first makes room for a newcomer.
    pub max_conns: usize,
    /// Largest number of requests that wait for applications, over all listeners.
    pub max_startups: usize,
    /// Time that we wait for an answer before we send again, and time that we ask a peer to wait
    /// for our answer.
    pub response: TimeCode,
    /// Number of retransmissions of a message, whatever a peer asks for: 15 at most.
    pub max_retries: u8,
    /// Time for which an ended connection answers copies.
    pub time_wait: Duration,
    /// Silence after which the manager probes the peer that made an established connection; absent
    /// for no probes. See [`ConnectionManager::set_ib_keepalive`].
    ///
    /// [`ConnectionManager::set_ib_keepalive`]: crate::ConnectionManager::set_ib_keepalive
    pub keepalive: Option<Duration>,
}

/// An address that speaks InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbPort {
    /// The IP address.
    pub addr: IpAddr,
    /// The worker that receives and sends the address's datagrams.
    pub worker: WorkerId,
}

impl IbConfig {
    /// Returns defaults: 4096 connections, 256 requests, 0.54 s for an answer and 10
    /// retransmissions, 5 s for copies, a minute of silence.
    pub fn new(seed: Seed, ca_guid: u64, ports: Vec<IbPort>) -> IbConfig {
        IbConfig {
            seed,
            ca_guid,
            ports,
            max_conns: 4096,
            max_startups: 256,
            response: TimeCode::new(17),
            max_retries: 10,
            time_wait: Duration::from_secs(5),
            keepalive: Some(Duration::from_secs(60)),
        }
    }

    /// Returns the worker of an address of ours.
    pub(crate) fn worker_of(&self, addr: IpAddr) -> Option<WorkerId> {
        self.ports.iter().find(|p| p.addr == addr).map(|p| p.worker)
    }

    pub(crate) fn is_ours(&self, addr: IpAddr) -> bool {
        self.worker_of(addr).is_some()
    }

    /// Returns our end for a connect to `remote`: the port of `local`, or, if `local` is absent and
    /// `remote` an IPv6 address, for which ports have no routes, the first IPv6 port.
    pub(crate) fn source(&self, local: Option<IpAddr>, remote: IpAddr) -> Option<IbPort> {
        let fits = |p: &&IbPort| match local {
            Some(local) => p.addr == local,
            None => p.addr.is_ipv4() == remote.is_ipv4() && !remote.is_ipv4(),
        };
        self.ports.iter().find(fits).copied()
    }
}

/// A datagram to send by UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbDatagram {
    /// Our address and the source port.
    pub local: SocketAddr,
    /// The peer's address and the port of RoCEv2.
    pub remote: SocketAddr,
    /// The payload of UDP. The invariant CRC at its end presumes an IP header without options, with
    /// IPv4 identification 0 and Don't Fragment, and any UDP checksum or none.
    pub payload: Vec<u8>,
    /// Whether nothing proves yet that the receiver exists: the datagram answers a request that any
    /// host can send in the name of another.
    pub to_stranger: bool,
}

/// The shortest interval between retransmissions of a message, whatever a peer announces.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(50);
/// The longest interval between retransmissions.
pub(crate) const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// The longest time by which a peer may delay an answer with MRAs.
pub(crate) const MAX_PUT_OFF: Duration = Duration::from_secs(120);
/// The longest time for which an accepted peer may stay silent.
pub(crate) const MAX_HALF_OPEN: Duration = Duration::from_secs(30);
/// Largest number of datagrams that wait to be polled; at most half of them go to strangers.
pub(crate) const MAX_OUT: usize = 1024;
