//! The gateway's decisions: [`Pairing`] makes a request that comes in one protocol in the other, and
//! reports the outcome to the asker.
//!
//! Events go in, and requests come out. The gateway knows nothing of bytes or messages. It carries
//! private data, read depths and refusals over, and an end on either side ends the other. Data are
//! not carried, because over InfiniBand there are none.
//!
//! # Loops
//!
//! Neither protocol has room for a mark that a request has been forwarded. Three checks take its
//! place. The gateway refuses a rule whose target is a listener of a rule ([`RuleError::Loop`]),
//! however many rules lie between. The gateway refuses a request that comes from the host that the
//! request would be sent to. Each rule has a limit of simultaneous connections, so that a loop over
//! other gateways ends when the first of them is full, and unwinds.

mod pair;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use heddle_types::{
    CmId, ConnectFailure, Event, IbRefusal, ListenAt, ListenerId, Protocol, QpSpec, Request,
    TcpTerms, Transport,
};

use pair::Pair;

/// A rule: where the gateway sends the requests of a listener.
#[derive(Clone, Debug)]
pub struct PairingRule {
    /// The listener, which the shell makes: with
    /// [`ListenParams::infiniband`](heddle_types::ListenParams::infiniband) if the listener is to take
    /// InfiniBand's requests.
    pub listener: ListenerId,
    /// Address and port of the listener.
    pub addr: SocketAddr,
    /// Protocol of the requests that the gateway forwards; it rejects the others.
    pub from: Transport,
    /// Address and port that the requests are sent to.
    pub target: SocketAddr,
    /// Protocol of the forwarded requests, with its options.
    pub protocol: Protocol,
    /// Time for the connection to the target. The listener's own time for an answer should be
    /// longer.
    pub timeout: Duration,
    /// Largest number of simultaneous connections.
    pub most: usize,
    /// Settings of TCP for the connections to the target.
    pub tcp: TcpTerms,
}

/// The reason why a rule is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The listener has a rule already.
    #[error("the listener forwards already")]
    Taken,
    /// A request that the rule forwards would come back to its listener.
    #[error("what it forwards would come back to it")]
    Loop,
}

/// An action that a gateway asks of its shell.
#[derive(Clone, Debug)]
pub enum Action {
    /// A request to the manager. If the manager refuses it, call [`Pairing::handle_refused`].
    Request(Request),
    /// Refuse the request `id` with this reason of InfiniBand's REJ.
    Refuse {
        /// The connection that asks.
        id: CmId,
        /// The reason of the REJ.
        reason: u16,
    },
    /// The gateway has no more use for the queue pair: reset or destroy it, and give another in its
    /// place.
    Spent(QpSpec),
}

heddle_base::counters! {
    /// Numbers of requests and connections since the gateway was made.
    pub struct GatewayCounters {
        /// Requests forwarded.
        forwarded,
        /// Connections established at both ends.
        established,
        /// Requests that the target's application rejected.
        rejected,
        /// Requests that could not be made at the target.
        failed,
        /// Requests refused because they came from the host they would go to.
        refused_loop,
        /// Requests refused because their rule has its largest number of connections, or no queue
        /// pair is left.
        refused_full,
        /// Requests rejected because they came in a protocol that the rule does not forward.
        refused_protocol,
        /// Private data for which the other protocol has no room: the connection was refused, or
        /// the rejection sent without them.
        private_data_too_long,
        /// Askers that gave up before the target had answered.
        abandoned,
    }
}

/// Pairs connections by its rules.
#[derive(Debug)]
pub struct Pairing {
    /// Our addresses: a request sent to one of them may come back.
    ours: Vec<IpAddr>,
    rules: BTreeMap<ListenerId, PairingRule>,
    /// Pairs by the name of the connection that asks.
    pairs: BTreeMap<CmId, Pair>,
    /// The connection that asks, by the name of the connection that was made for it.
    by_active: BTreeMap<CmId, CmId>,
    /// Number of connections of each listener, including listeners without a rule any more.
    load: BTreeMap<ListenerId, usize>,
    qps: Vec<QpSpec>,
    /// Next name of a connection that we make, below [`CmId::PASSIVE`].
    next: u64,
    actions: VecDeque<Action>,
    counters: GatewayCounters,
}

/// Reasons of InfiniBand's REJ.
const NO_RESOURCES: u16 = 3;
const TIMEOUT: u16 = 4;
const UNSUPPORTED: u16 = 5;
const INVALID_SERVICE_ID: u16 = 8;

impl Pairing {
    /// Makes a gateway without rules. `first` and the numbers after it name the connections that
    /// the gateway makes.
    pub fn new(ours: Vec<IpAddr>, first: CmId) -> Pairing {
        Pairing {
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

    /// Gives the gateway a queue pair; each connection takes two.
    pub fn give_qp(&mut self, qp: QpSpec) {
        self.qps.push(qp);
    }

    /// Returns the number of queue pairs that no connection has.
    pub fn free_qps(&self) -> usize {
        self.qps.len()
    }

    /// Replaces our addresses. Rules stay: before it changes addresses, the shell removes rules
    /// that would become a loop.
    pub fn set_addresses(&mut self, ours: Vec<IpAddr>) {
        self.ours = ours;
    }

    /// Returns `Ok` if requests that come to `addr` may be sent to `target`, as far as the rules
    /// show.
    ///
    /// # Errors
    /// [`RuleError::Loop`].
    pub fn check(&self, addr: SocketAddr, target: SocketAddr) -> Result<(), RuleError> {
        // A request that reaches a rule's listener goes on to the rule's target. A loop has at most
        // as many steps as there are rules, and one for the new rule.
        let mut at = target;
        for _ in 0..=self.rules.len() {
            if self.reaches(at, addr) {
                return Err(RuleError::Loop);
            }
            let Some(next) = self.rules.values().find(|r| self.reaches(at, r.addr)) else { break };
            at = next.target;
        }
        Ok(())
    }

    /// Adds a rule.
    ///
    /// # Errors
    /// When the listener has a rule already, or the new rule would be part of a loop.
    pub fn add(&mut self, rule: PairingRule) -> Result<(), RuleError> {
        if self.rules.contains_key(&rule.listener) {
            return Err(RuleError::Taken);
        }
        self.check(rule.addr, rule.target)?;
        self.rules.insert(rule.listener, rule);
        Ok(())
    }

    /// Removes a rule. The rule's connections go on.
    pub fn remove(&mut self, listener: ListenerId) {
        self.rules.remove(&listener);
    }

    /// Returns true if a request to `to` comes to a listener at `addr`.
    fn reaches(&self, to: SocketAddr, addr: SocketAddr) -> bool {
        let takes = ListenAt::new(addr.ip(), false).takes(to.ip());
        let any = takes && self.ours.contains(&to.ip());
        to.port() == addr.port() && (to.ip() == addr.ip() || any)
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &GatewayCounters {
        &self.counters
    }

    /// Returns the pairs: the connection that asks, and the connection that was made for it.
    pub fn pairs(&self) -> impl Iterator<Item = (CmId, CmId)> {
        self.pairs.iter().map(|(asker, pair)| (*asker, pair.active))
    }

    /// Ends all connections in order, and forgets all rules: from here on the gateway refuses every
    /// request.
    pub fn end(&mut self) {
        self.rules.clear();
        for passive in self.pairs.keys().copied().collect::<Vec<_>>() {
            self.give_up(passive);
        }
    }

    /// Returns the number of pairs of connections, established or not.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns true if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Takes an event of one of the gateway's listeners or connections.
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

    /// Handles the manager's refusal of a request of [`Action::Request`] like a failure.
    pub fn handle_refused(&mut self, request: &Request) {
        match request {
            Request::Connect { id, .. } => {
                self.failed(*id, ConnectFailure::InfiniBand(IbRefusal::Ours(UNSUPPORTED)));
            }
            // The asker's protocol has no room for the target's private data.
            Request::Accept { id, .. } => self.unsayable(*id),
            Request::Reject { id, private_data, .. } if !private_data.is_empty() => {
                self.counters.private_data_too_long += 1;
                let (id, private_data) = (*id, Vec::new());
                self.request(Request::Reject { id, private_data, needs_ord: None });
            }
            // The connection is already over, and its end has been reported or will be.
            _ => {}
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn request(&mut self, request: Request) {
        self.act(Action::Request(request));
    }
}

/// Returns the reason of the REJ that reports a failure at the target to an asker over InfiniBand.
fn reason(error: ConnectFailure) -> u16 {
    match error {
        // There is no listener at the target. The asker would get this reason from the target
        // itself.
        ConnectFailure::Tcp(heddle_types::CloseReason::Refused) => INVALID_SERVICE_ID,
        ConnectFailure::InfiniBand(IbRefusal::Reason(reason)) => reason,
        ConnectFailure::Tcp(_) | ConnectFailure::Open(_) | ConnectFailure::TimedOut(_) => TIMEOUT,
        _ => UNSUPPORTED,
    }
}
