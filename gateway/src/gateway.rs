//! The gateway as an application of an RNIC.
//!
//! It has a device of its own, a queue of events for all its listeners and connections, and
//! a pool of queue pairs, of which it makes as many as it needs. Its owner steps it, on any thread
//! but a worker's; no call here waits.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use heddle_hub::{DeviceConfig, Hub};
use heddle_types::{
    AppId, CmId, Event, ListenFailure, ListenerId, QpSpec, Request, TcpTerms, Transport,
};
use heddle_verbs::{
    AcceptParams, ConnectParams, Cq, Device, DeviceError, DeviceLimits, EventQueue, ListenParams,
    Pd, Protocol, Qp, QpInit, Qpn, Waker,
};

use crate::pairing::{Action, GatewayCounters, Pairing, PairingRule, RuleError};

/// Default number of connections that one RNIC forwards at a time, over all rules.
pub const MAX_FORWARDED: usize = 1024;

/// Largest number of events taken in one step.
const TURN: usize = 64;

/// Time that a listener allows beyond the target's time, so that the asker gets the outcome.
const ANSWER: Duration = Duration::from_secs(5);

/// A rule: the connections to forward, and their target.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Address and port to listen at.
    pub addr: SocketAddr,
    /// Settings of the listener. The rule itself sets whether InfiniBand's requests come, and how
    /// long an answer may take.
    pub params: ListenParams,
    /// Protocol of the requests that are forwarded.
    pub from: Transport,
    /// Address and port that the requests are sent to.
    pub target: SocketAddr,
    /// Protocol of the forwarded requests, with its options.
    pub protocol: Protocol,
    /// Time limit for the connection to the target.
    pub timeout: Duration,
    /// Largest number of simultaneous connections.
    pub most: usize,
    /// Settings of TCP for the connections to the target, if they go over iWARP, where they differ from
    /// the RNIC's.
    pub tcp: TcpTerms,
}

/// The reason why a rule cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The rule contradicts the existing rules.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Refuses the request `CmId` of an application's listener with this reason of InfiniBand's REJ. If the
/// refusal cannot be sent, the asker asks again or gives up.
type Refuse = Box<dyn Fn(AppId, CmId, u16) + Send>;

/// Forwards connections by rules.
pub struct Gateway {
    device: Device,
    refuse: Refuse,
    events: EventQueue,
    pd: Pd,
    cq: Cq,
    pairing: Pairing,
    most_qps: usize,
    qps: HashMap<Qpn, Qp>,
    /// The RNIC's names of the connections that were made, by the gateway's names; and the reverse.
    named: HashMap<CmId, CmId>,
    known: HashMap<CmId, CmId>,
    listeners: BTreeMap<ListenerId, Result<bool, ListenFailure>>,
    /// Something in [`pairs`](Self::pairs) or in the counters may have changed.
    news: bool,
}

impl Gateway {
    /// Makes a gateway without rules, which forwards at most `most` connections at a time. `ours` are
    /// the addresses of the RNIC; the gateway wakes `waker` when there is work for it.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn new(
        hub: &Arc<Hub>,
        refuse: impl Fn(AppId, CmId, u16) + Send + 'static,
        ours: Vec<IpAddr>,
        most: usize,
        waker: Option<Waker>,
    ) -> Result<Gateway, DeviceError> {
        let most_qps = most.saturating_mul(2);
        let limits = DeviceLimits {
            max_qps: u32::try_from(most_qps).unwrap_or(u32::MAX),
            max_mrs: 0,
            ..DeviceLimits::default()
        };
        // The queue pairs get no work requests and no completions, so queues are as small as they
        // can be.
        let queues = (most_qps * QP_BYTES) + (64 << 10);
        let config = DeviceConfig { memory: 0, queues, limits, ..DeviceConfig::default() };
        let device = hub.open(&config)?;
        Ok(Gateway {
            pd: device.alloc_pd()?,
            cq: device.create_cq(1, None)?,
            device,
            refuse: Box::new(refuse),
            events: EventQueue::new(waker),
            pairing: Pairing::new(ours, CmId(0)),
            most_qps,
            qps: HashMap::new(),
            named: HashMap::new(),
            known: HashMap::new(),
            listeners: BTreeMap::new(),
            news: true,
        })
    }

    /// Returns the device that has the forwarded connections.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Listens for the rule's requests, and forwards them. [`is_listening`](Self::is_listening)
    /// reports the outcome.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub fn add(&mut self, rule: &Rule) -> Result<ListenerId, GatewayError> {
        self.pairing.check(rule.addr, rule.target)?;
        let params = ListenParams {
            infiniband: rule.from == Transport::InfiniBand,
            accept_timeout: rule.timeout + ANSWER,
            // A forwarded connection may stay without an FPDU for ever.
            first_fpdu_timeout: None,
            ..rule.params.clone()
        };
        let listener = self.device.listen(rule.addr, params, &self.events)?;
        let Rule { addr, from, target, protocol, timeout, most, tcp, .. } = *rule;
        let rule = PairingRule { listener, addr, from, target, protocol, timeout, most, tcp };
        self.pairing.add(rule)?;
        self.listeners.insert(listener, Ok(false));
        Ok(listener)
    }

    /// Returns true if the listener listens; false until the RNIC does.
    ///
    /// # Errors
    /// The reason why the listener does not listen, or does so no longer.
    pub fn is_listening(&self, listener: ListenerId) -> Result<bool, ListenFailure> {
        self.listeners.get(&listener).copied().unwrap_or(Err(ListenFailure::Withdrawn))
    }

    /// Ends a listener. Its connections go on, including those that are not established yet.
    pub fn remove(&mut self, listener: ListenerId) {
        if self.listeners.remove(&listener).is_some() {
            self.pairing.remove(listener);
            // Without a control plane there is no listener left to end.
            let _ = self.device.unlisten(listener);
        }
    }

    /// Takes the RNIC's new addresses.
    pub fn set_addresses(&mut self, ours: Vec<IpAddr>) {
        self.pairing.set_addresses(ours);
    }

    /// Takes no more requests, and ends all connections in order.
    pub fn end(&mut self) {
        for listener in self.listeners.keys().copied().collect::<Vec<_>>() {
            self.remove(listener);
        }
        self.pairing.end();
        self.act();
    }

    /// Does the work that waits; returns true if there was any. Never blocks.
    pub fn step(&mut self) -> bool {
        for n in 0..TURN {
            let Some(event) = self.events.poll() else { return n > 0 };
            self.news = true;
            self.handle_event(event);
            self.act();
            // A name lives no longer than its connection.
            debug_assert!(self.named.len() <= self.pairing.len());
            debug_assert_eq!(self.named.len(), self.known.len());
        }
        true
    }

    /// Returns true if a step would find work.
    pub fn has_work(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns true if anything may have changed since the last call.
    pub fn take_news(&mut self) -> bool {
        core::mem::replace(&mut self.news, false)
    }

    /// Returns the number of pairs of connections, established or not.
    pub fn len(&self) -> usize {
        self.pairing.len()
    }

    /// Returns true if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairing.is_empty()
    }

    /// Returns the pairs: the connection that asks, and the connection that was made for it.
    pub fn pairs(&self) -> impl Iterator<Item = (CmId, CmId)> {
        let pairs = self.pairing.pairs();
        pairs.filter_map(|(asker, made)| Some((asker, *self.named.get(&made)?)))
    }

    /// Returns the counters.
    pub fn counters(&self) -> &GatewayCounters {
        self.pairing.counters()
    }

    fn handle_event(&mut self, mut event: Event) {
        match &event {
            Event::Listening { id } => return self.listens(*id, Ok(true)),
            Event::ListenFailed { id, error } => {
                self.pairing.remove(*id);
                return self.listens(*id, Err(*error));
            }
            Event::ConnectRequest { .. } => self.make_qps(),
            _ => {}
        }
        let made = event.cm_id().and_then(|id| self.known.get(&id)).copied();
        let over = matches!(
            event,
            Event::Rejected { .. } | Event::ConnectError { .. } | Event::Disconnected { .. }
        );
        if let Some(made) = made {
            if over && let Some(name) = self.named.remove(&made) {
                self.known.remove(&name);
            }
            rename(&mut event, made);
        }
        self.pairing.handle_event(event);
    }

    fn listens(&mut self, id: ListenerId, outcome: Result<bool, ListenFailure>) {
        // A listener that was removed is ignored.
        if let Some(state) = self.listeners.get_mut(&id) {
            *state = outcome;
        }
    }

    /// Carries out the gateway's actions.
    fn act(&mut self) {
        while let Some(action) = self.pairing.poll_action() {
            match action {
                Action::Request(request) => {
                    if self.ask(&request).is_err() {
                        self.pairing.handle_refused(&request);
                    }
                }
                Action::Refuse { id, reason } => {
                    (self.refuse)(self.device.app(), id, reason);
                }
                Action::Spent(spec) => self.renew(spec),
            }
        }
    }

    fn ask(&mut self, request: &Request) -> Result<(), DeviceError> {
        match request {
            Request::Connect { id, remote, params: p } => {
                let qp = self.qp(p.qp.qpn)?;
                let params = ConnectParams {
                    local: p.local,
                    protocol: p.protocol,
                    private_data: p.private_data.clone(),
                    timeout: p.timeout,
                    tcp: p.tcp,
                    ..ConnectParams::new(qp).reads(p.ird, p.ord)
                };
                let name = self.device.connect(*remote, params, &self.events)?;
                self.named.insert(*id, name);
                self.known.insert(name, *id);
                Ok(())
            }
            Request::Accept { id, params: p } => {
                let (qp, private_data) = (self.qp(p.qp.qpn)?, p.private_data.clone());
                self.device.accept(*id, AcceptParams { qp, ird: p.ird, ord: p.ord, private_data })
            }
            Request::Reject { id, private_data, .. } => {
                self.device.reject(*id, private_data.clone())
            }
            // The asking connection has its own name in the RNIC. A connection that we made has a
            // name here until it is over.
            Request::Disconnect { id } if id.is_passive() => self.device.disconnect(*id),
            Request::Disconnect { id } => match self.named.get(id) {
                Some(name) => self.device.disconnect(*name),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn qp(&self, qpn: Qpn) -> Result<Qp, DeviceError> {
        self.qps.get(&qpn).cloned().ok_or(DeviceError::ForeignQp(qpn))
    }

    /// Makes the two queue pairs that a connection takes. If they cannot be made, the gateway
    /// refuses the request.
    fn make_qps(&mut self) {
        while self.pairing.free_qps() < 2 && self.qps.len() < self.most_qps {
            let init = QpInit::new(self.cq.clone()).depths(1, 1);
            let init = QpInit { max_send_sge: 1, max_recv_sge: 1, max_inline: 0, ..init };
            let Ok(qp) = self.device.create_qp(self.pd, init) else { return };
            self.pairing.give_qp(spec(&qp));
            self.qps.insert(qp.qpn(), qp);
        }
    }

    /// Renews a queue pair that has had its connection, or whose connection was not established.
    fn renew(&mut self, spec: QpSpec) {
        let Some(qp) = self.qps.get(&spec.qpn) else { return };
        match self.device.reset_qp(qp) {
            Ok(()) => self.pairing.give_qp(spec),
            // A new queue pair is made at the next need.
            Err(_) => drop(self.qps.remove(&spec.qpn)),
        }
    }
}

/// Bytes that a queue pair of the smallest depth takes of the device's area, with some reserve.
const QP_BYTES: usize = 2048;

fn spec(qp: &Qp) -> QpSpec {
    let init = qp.init();
    QpSpec { qpn: qp.qpn(), pd: qp.pd(), sq_depth: init.sq_depth, rq_depth: init.rq_depth }
}

/// Gives an event another connection name.
fn rename(event: &mut Event, name: CmId) {
    match event {
        Event::ConnectRequest { id, .. }
        | Event::Established { id, .. }
        | Event::Rejected { id, .. }
        | Event::ConnectError { id, .. }
        | Event::Disconnected { id, .. } => *id = name,
        Event::Listening { .. } | Event::ListenFailed { .. } => {}
    }
}
