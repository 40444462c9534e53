//! A gateway at connection level: a request that comes in one protocol is made in the other, and what
//! becomes of it there is told here.
//!
//! ```text
//!   asker ── request ──▶ Gateway ── request ──▶ target
//!         ◀── answer ───         ◀── answer ───
//! ```
//!
//! [`Gateway`] is an application of a [`ConnectionManager`](crate::ConnectionManager) like any other,
//! and as pure: events go in, and requests come out. It knows nothing of bytes or messages. Private
//! data, read depths and refusals are carried over; an end on either side ends the other. No data are
//! carried: over InfiniBand there are none.
//!
//! # Loops
//!
//! Neither protocol has room for a mark that a request has been forwarded. Three things take its
//! place: a rule whose target is a listener of a rule is refused ([`GatewayError::Loop`]), however many
//! rules lie between; a request that comes from the very host it would be sent to is refused; and each
//! rule has so many connections at a time, so that a loop over other gateways comes to an end when the
//! first of them is full, and unwinds.

mod pair;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use crate::dialogue::Protocol;
use crate::event::{ConnectFailure, Event, IbRefusal, Transport};
use crate::id::{CmId, ListenerId};
use crate::params::QpSpec;
use crate::request::Request;

use pair::Pair;

/// Where requests of a listener go.
#[derive(Clone, Debug)]
pub struct GatewayRule {
    /// The listener, which the shell has made or makes: with
    /// [`ListenParams::infiniband`](crate::ListenParams::infiniband) if it is to take InfiniBand's
    /// requests.
    pub listener: ListenerId,
    /// Its address.
    pub addr: SocketAddr,
    /// Which requests are forwarded; the others are rejected.
    pub from: Transport,
    /// Where they go.
    pub target: SocketAddr,
    /// And how.
    pub protocol: Protocol,
    /// How long that may take. The listener's own time for an answer should be longer.
    pub timeout: Duration,
    /// Connections at a time.
    pub most: usize,
}

/// Why there is no such rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// The listener has a rule.
    #[error("the listener forwards already")]
    Taken,
    /// What it forwards would come back to it.
    #[error("what it forwards would come back to it")]
    Loop,
}

/// What a gateway wants done.
#[derive(Clone, Debug)]
pub enum GatewayAction {
    /// A request to the manager, whose refusal [`Gateway::handle_refused`] takes.
    Request(Request),
    /// [`ConnectionManager::refuse`](crate::ConnectionManager::refuse): the request `id` with this
    /// reason of InfiniBand's REJ.
    Refuse {
        /// The connection that asks.
        id: CmId,
        /// The reason.
        reason: u16,
    },
    /// The queue pair is of no more use to the gateway: it is to be reset or destroyed, and another to
    /// be given in its place.
    Spent(QpSpec),
}

heddle_base::counters! {
    /// What a gateway counts.
    pub struct GatewayCounters {
        /// Requests forwarded.
        forwarded,
        /// Connections that came about at both ends.
        established,
        /// Requests that the target's application rejected.
        rejected,
        /// Requests that could not be made at the target.
        failed,
        /// Requests refused because they came from the host they would go to.
        refused_loop,
        /// Requests refused because their rule has as many as it may, or no queue pair is left.
        refused_full,
        /// Requests rejected because they came in a protocol that the rule does not forward.
        refused_protocol,
        /// Private data that the other protocol has no room for: the connection was refused.
        private_data_too_long,
        /// Askers that gave up before the target had answered.
        abandoned,
    }
}

/// Forwards connections.
#[derive(Debug)]
pub struct Gateway {
    /// Our addresses: what goes to one of them may come back.
    ours: Vec<IpAddr>,
    rules: BTreeMap<ListenerId, GatewayRule>,
    /// By the name of the connection that asks.
    pairs: BTreeMap<CmId, Pair>,
    /// The connection that asks, by the name of the one that was made for it.
    by_active: BTreeMap<CmId, CmId>,
    /// Of each listener, those whose rule is gone included.
    load: BTreeMap<ListenerId, usize>,
    qps: Vec<QpSpec>,
    /// Names of connections that we make, below [`CmId::PASSIVE`].
    next: u64,
    actions: VecDeque<GatewayAction>,
    counters: GatewayCounters,
}

/// Reasons of InfiniBand's REJ.
const NO_RESOURCES: u16 = 3;
const TIMEOUT: u16 = 4;
const UNSUPPORTED: u16 = 5;
const INVALID_SERVICE_ID: u16 = 8;

impl Gateway {
    /// One without rules. `first` and what follows name the connections it makes.
    pub fn new(ours: Vec<IpAddr>, first: CmId) -> Gateway {
        Gateway {
            ours,
            rules: BTreeMap::new(),
            pairs: BTreeMap::new(),
            by_active: BTreeMap::new(),
            load: BTreeMap::new(),
            qps: Vec::new(),
            next: first.0,
            actions: VecDeque::new(),
            counters: GatewayCounters::ZERO,
        }
    }

    /// Gives it a queue pair; each connection takes two.
    pub fn give_qp(&mut self, qp: QpSpec) {
        self.qps.push(qp);
    }

    /// Queue pairs that no connection has.
    pub fn free_qps(&self) -> usize {
        self.qps.len()
    }

    /// Other addresses of ours. Rules stay, whatever comes of them: who changes addresses changes rules
    /// that would become a loop before.
    pub fn set_addresses(&mut self, ours: Vec<IpAddr>) {
        self.ours = ours;
    }

    /// Whether what comes to `addr` may be sent to `target`, as far as rules can say.
    ///
    /// # Errors
    /// [`GatewayError::Loop`].
    pub fn check(&self, addr: SocketAddr, target: SocketAddr) -> Result<(), GatewayError> {
        // What reaches a rule's listener goes to its target. As many steps as there are rules, and the
        // new one, are enough to come back.
        let mut at = target;
        for _ in 0..=self.rules.len() {
            if self.reaches(at, addr) {
                return Err(GatewayError::Loop);
            }
            let Some(next) = self.rules.values().find(|r| self.reaches(at, r.addr)) else { break };
            at = next.target;
        }
        Ok(())
    }

    /// Adds a rule.
    ///
    /// # Errors
    /// When the listener has one, or it would be part of a loop.
    pub fn add(&mut self, rule: GatewayRule) -> Result<(), GatewayError> {
        if self.rules.contains_key(&rule.listener) {
            return Err(GatewayError::Taken);
        }
        self.check(rule.addr, rule.target)?;
        self.rules.insert(rule.listener, rule);
        Ok(())
    }

    /// Takes a rule back. Its connections go on.
    pub fn remove(&mut self, listener: ListenerId) {
        self.rules.remove(&listener);
    }

    /// Whether a request to `to` comes to a listener at `addr`.
    fn reaches(&self, to: SocketAddr, addr: SocketAddr) -> bool {
        let any = addr.ip().is_unspecified() && self.ours.contains(&to.ip());
        to.port() == addr.port() && (to.ip() == addr.ip() || any)
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<GatewayAction> {
        self.actions.pop_front()
    }

    /// What it has counted.
    pub fn counters(&self) -> &GatewayCounters {
        &self.counters
    }

    /// What belongs together: the connection that asks, and the one that was made for it.
    pub fn pairs(&self) -> impl Iterator<Item = (CmId, CmId)> {
        self.pairs.iter().map(|(asker, pair)| (*asker, pair.active))
    }

    /// Ends all connections in order, and forgets all rules: what comes from here on is refused.
    pub fn end(&mut self) {
        self.rules.clear();
        for passive in self.pairs.keys().copied().collect::<Vec<_>>() {
            self.give_up(passive);
        }
    }

    /// Connections it stands between, or is about to.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Takes an event of one of its listeners or connections.
    pub fn handle_event(&mut self, event: Event) {
        match event {
            Event::ConnectRequest {
                id, listener, transport, remote, private_data, peer, ..
            } => {
                self.asked(id, listener, transport, remote, private_data, peer);
            }
            Event::Established { id, private_data, agreed, .. } => {
                self.established(id, private_data, agreed);
            }
            Event::Rejected { id, private_data, .. } => self.rejected(id, private_data),
            Event::ConnectError { id, error, .. } => self.failed(id, error),
            Event::Disconnected { id, .. } => self.ended(id),
            Event::Listening { .. } | Event::ListenFailed { .. } => {}
        }
    }

    /// A request of [`GatewayAction::Request`] was refused, as if it had failed.
    pub fn handle_refused(&mut self, request: &Request) {
        match request {
            Request::Connect { id, .. } => {
                self.failed(*id, ConnectFailure::InfiniBand(IbRefusal::Ours(UNSUPPORTED)));
            }
            // The asker's protocol has no room for what the target has said.
            Request::Accept { id, .. } => self.unsayable(*id),
            Request::Reject { id, private_data, .. } if !private_data.is_empty() => {
                self.counters.private_data_too_long += 1;
                let (id, private_data) = (*id, Vec::new());
                self.request(Request::Reject { id, private_data, needs_ord: None });
            }
            // It is over already, and its end is told or has been.
            _ => {}
        }
    }

    fn act(&mut self, action: GatewayAction) {
        self.actions.push_back(action);
    }

    fn request(&mut self, request: Request) {
        self.act(GatewayAction::Request(request));
    }
}

/// What an asker over InfiniBand is told of a failure at the target.
fn reason(error: ConnectFailure) -> u16 {
    match error {
        // Nobody listens there, which is what the asker would hear of the target itself.
        ConnectFailure::Tcp(heddle_rnic::CloseReason::Refused) => INVALID_SERVICE_ID,
        ConnectFailure::InfiniBand(IbRefusal::Reason(reason)) => reason,
        ConnectFailure::Tcp(_) | ConnectFailure::Open(_) | ConnectFailure::TimedOut(_) => TIMEOUT,
        _ => UNSUPPORTED,
    }
}
