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
//! What an application sees is what it sees of MPA: a listener, a request, an answer, one end. What
//! differs is below: there is no TCP connection, each message is a datagram of its own, and so
//! everything may be lost, come twice, or be sent by anybody.
//!
//! - **There is no transport behind it.** A connection is established and ends in order, and its queue
//!   pair is not run: [`Transport::carries_data`](crate::Transport::carries_data) says so, and
//!   applications have to ask for it ([`ListenParams::infiniband`](crate::ListenParams::infiniband),
//!   [`Protocol::InfiniBand`](crate::Protocol::InfiniBand)).
//! - **Answers come from the state.** A message that comes again is answered as the first time, and
//!   changes nothing; after the end for as long as copies may be under way ([`IbConfig::time_wait`]).
//! - **Names cannot be guessed.** Communication ids and transaction ids of ours are random. A message
//!   counts when it names ours, comes from the peer's address, and has the peer's.
//! - **What peers can cause is bounded**: connections in all; requests no application has answered, in
//!   all, of a listener, and of a peer at a listener; one datagram out for one that comes in. Where there
//!   is no place left, an accepted peer that does not answer makes room.
//! - **A flood costs strangers, not connections.** Workers drop what is no message ([`filter`]), and have
//!   for messages of connections budgets apart from those of strangers; answers to strangers have
//!   no more than half of any queue.
//! - **A peer that made a connection is asked whether it is there**, when it has been silent for
//!   [`IbConfig::keepalive`]. One that we have asked for a connection cannot be: InfiniBand has no
//!   message that it would answer.

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

use crate::id::WorkerId;

pub use counters::IbCounters;

pub(crate) use admit::{Refused, header, port};
pub(crate) use filter::Filter;
pub(crate) use keepalive::Keepalive;
pub(crate) use link::{Depths, IbConn, IbLink};
pub(crate) use message::{drep, names, rej};
pub(crate) use state::{Effect, IbState, Input, Wait};
pub(crate) use table::{Table, To};

/// How the manager speaks InfiniBand.
#[derive(Clone, Debug)]
pub struct IbConfig {
    /// What communication ids, transaction ids and the like are derived from.
    pub seed: Seed,
    /// What our end is called besides its addresses: any number that is unique, such as a MAC address
    /// stretched to 64 bits.
    pub ca_guid: u64,
    /// The addresses that answer, each with the worker its datagrams come and go by.
    pub ports: Vec<IbPort>,
    /// Connections in all, those included that have ended and answer copies. Room for a newcomer is
    /// made by the one of these that ended first.
    pub max_conns: usize,
    /// Requests that wait for applications, in all.
    pub max_startups: usize,
    /// How long we wait for an answer before we ask again, and how long a peer is told to wait for
    /// ours.
    pub response: TimeCode,
    /// How often a message is sent again, whatever a peer asks for: 15 at most.
    pub max_retries: u8,
    /// How long a connection that has ended answers copies.
    pub time_wait: Duration,
    /// Silence after which the peer that made an established connection is asked whether it is there;
    /// never when absent. See [`ConnectionManager::set_ib_keepalive`].
    ///
    /// [`ConnectionManager::set_ib_keepalive`]: crate::ConnectionManager::set_ib_keepalive
    pub keepalive: Option<Duration>,
}

/// An address that speaks InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbPort {
    /// The address.
    pub addr: IpAddr,
    /// The worker that takes its datagrams, and sends them.
    pub worker: WorkerId,
}

impl IbConfig {
    /// 4096 connections, 256 requests, 0.54 s for an answer and 10 more attempts, 5 s for copies, a
    /// minute of silence.
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

    /// The worker of an address of ours.
    pub(crate) fn worker_of(&self, addr: IpAddr) -> Option<WorkerId> {
        self.ports.iter().find(|p| p.addr == addr).map(|p| p.worker)
    }

    pub(crate) fn is_ours(&self, addr: IpAddr) -> bool {
        self.worker_of(addr).is_some()
    }

    /// Where a peer is asked from: by `local`, or where that is not known, as with IPv6, of which
    /// ports have no routes, by the first address of the peer's family.
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
    /// What UDP carries. The invariant CRC at its end counts on an IP header without options, of
    /// IPv4 with identification 0 and Don't Fragment, and on no UDP checksum or any.
    pub payload: Vec<u8>,
    /// Whether nothing proves yet that its receiver is there: the answer to a request that anybody can
    /// send in the name of another.
    pub to_stranger: bool,
}

/// The shortest time after which a message is sent again, whatever a peer says it takes.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(50);
/// The longest.
pub(crate) const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// How long a peer may put us off with MRAs.
pub(crate) const MAX_PUT_OFF: Duration = Duration::from_secs(120);
/// How long a peer that has been accepted may say nothing at all.
pub(crate) const MAX_HALF_OPEN: Duration = Duration::from_secs(30);
/// Datagrams that wait to be polled; those to strangers may be half of them.
pub(crate) const MAX_OUT: usize = 1024;
