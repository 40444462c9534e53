//! The connection of a client: made when there are calls, and made again when it is lost.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use heddle_rpcrdma::conn::{CloseReason, Counters, Side, Speaks};
use heddle_rpcrdma::private_data::PrivateData;
use heddle_rpcrdma::property::ReverseSupport;
use heddle_verbs::{
    Arm, CmEvent, CmId, ConnectParams, Cq, Device, DeviceError, EventQueue, Pd, Waker,
};

use super::calls::Calls;
use super::serving::{Arrived, Serving, ServingSigns};
use super::{CallError, ClientConfig, ClientCounters, ConnectionFailure};
use crate::memory::Memory;
use crate::server::Ticket;
use crate::transport::{Link, LinkEvent, Parts, SetupError};

/// The first wait before another attempt to connect; each is twice as long as the one before.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// The longest.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Completions of one step: others wait for the lock meanwhile.
const BATCH: usize = 256;

#[derive(Debug)]
pub(super) enum Phase {
    /// There is none, and until then none is made.
    Idle { until: Option<Instant> },
    /// It is being made.
    Connecting { id: CmId, parts: Box<Parts> },
    /// It is there.
    Up {
        id: CmId,
        link: Box<Link>,
        /// It is being ended.
        closing: bool,
        /// Why by this end, if the peer is the reason.
        closed_for: Option<CloseReason>,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) device: Device,
    pub(super) pd: Pd,
    server: SocketAddr,
    pub(super) config: ClientConfig,
    memory: Memory,
    events: EventQueue,
    pub(super) waker: Waker,
    pub(super) phase: Phase,
    /// What is left to speak with this server.
    pub(super) speaks: Speaks,
    backoff: Duration,
    pub(super) counters: ClientCounters,
    /// Why the last connection that failed has failed.
    failure: Option<ConnectionFailure>,
    /// No more connections.
    closed: bool,
    /// Of a client with programs.
    pub(super) serving: Option<Serving>,
}

impl Session {
    pub(super) fn new(
        device: Device,
        server: SocketAddr,
        config: ClientConfig,
        waker: Waker,
    ) -> Result<Session, DeviceError> {
        let pd = device.alloc_pd()?;
        let memory = Memory::new(&device, pd, config.memory)?;
        let events = EventQueue::new(Some(waker.clone()));
        let (phase, speaks) = (Phase::Idle { until: None }, config.transport.speaks);
        let (backoff, counters) = (BACKOFF_MIN, ClientCounters::default());
        Ok(Session {
            device,
            pd,
            server,
            config,
            memory,
            events,
            waker,
            phase,
            speaks,
            backoff,
            counters,
            failure: None,
            closed: false,
            serving: None,
        })
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(super) fn server(&self) -> SocketAddr {
        self.server
    }

    pub(super) fn config(&self) -> &ClientConfig {
        &self.config
    }

    pub(super) fn counters(&self) -> ClientCounters {
        self.counters
    }

    /// The version that is spoken, when there is a connection that has one.
    pub(super) fn version(&self) -> Option<u32> {
        match &self.phase {
            Phase::Up { link, .. } => link.version(),
            Phase::Idle { .. } | Phase::Connecting { .. } => None,
        }
    }

    /// What the connection that there is has counted.
    pub(super) fn transport_counters(&self) -> Option<Counters> {
        match &self.phase {
            Phase::Up { link, .. } => Some(*link.counters()),
            Phase::Idle { .. } | Phase::Connecting { .. } => None,
        }
    }

    pub(super) fn last_failure(&self) -> Option<ConnectionFailure> {
        self.failure.clone()
    }

    /// Does what there is to do; whether there was anything. After that there may be more to do, unless
    /// [`is_done`](Session::is_done).
    pub(super) fn step(&mut self, now: Instant, calls: &mut Calls) -> bool {
        let mut busy = false;
        while let Some(event) = self.events.poll() {
            self.handle_event(now, event, calls);
            busy = true;
        }
        if let Phase::Idle { until } = self.phase
            && !self.closed
            && self.wants_connection(calls)
            && until.is_none_or(|until| until <= now)
        {
            self.connect(now);
        }
        while let Some((xid, sent)) = calls.expire(now) {
            self.counters.timeouts += 1;
            if sent {
                self.cancel(xid);
            }
        }
        busy |= self.feed_served();
        busy | self.step_link(now, calls)
    }

    /// Whether the last step has left nothing to do but what has come since.
    pub(super) fn is_done(&self) -> bool {
        match &self.phase {
            Phase::Up { link, .. } => link.has_told_all() && link.taken() < BATCH,
            Phase::Idle { .. } | Phase::Connecting { .. } => false,
        }
    }

    fn step_link(&mut self, now: Instant, calls: &mut Calls) -> bool {
        let Phase::Up { id, link, closing, closed_for } = &mut self.phase else { return false };
        let mut busy = link.step(now, BATCH);
        let mut lost = false;
        while let Some(event) = link.poll_event(&*self.config.binding) {
            busy = true;
            match event {
                LinkEvent::Established { .. } => self.backoff = BACKOFF_MIN,
                LinkEvent::Reply { xid, outcome } => {
                    self.counters.replies += u64::from(calls.finish(xid, outcome));
                }
                LinkEvent::Close(reason) => {
                    lost = true;
                    *closed_for = Some(reason);
                }
                LinkEvent::Call { call, stream, items } => {
                    if let Some(serving) = &mut self.serving {
                        let ticket = Ticket { link: self.counters.connections, call };
                        serving.arrived.push_back(Arrived { ticket, stream, items });
                    }
                }
                // A client calls in any case.
                LinkEvent::Takes(_) => {}
            }
        }
        // After the events: a place in the connection's table is free before its event is taken.
        if !*closing {
            busy |= calls.send_by(|xid, outgoing| link.call(xid, outgoing));
        }
        // Work that these calls and events have made.
        busy |= link.post();
        if (lost || link.is_broken()) && !*closing {
            *closing = true;
            // Without a control plane it is over; the event that says so comes in any case.
            let _ = self.device.disconnect(*id);
        }
        busy
    }

    fn connect(&mut self, now: Instant) {
        self.counters.attempts += 1;
        match self.begin() {
            Ok((id, parts)) => self.phase = Phase::Connecting { id, parts },
            Err(error) => self.retry(now, error.into()),
        }
    }

    fn begin(&self) -> Result<(CmId, Box<Parts>), SetupError> {
        let transport = &self.config.transport;
        let side = (Side::Client, transport);
        let registrations = transport.registrations.max(1);
        let parts = Parts::new(&self.device, self.pd, side, registrations, self.waker.clone())?;
        let private_data = transport.private_data();
        let params = ConnectParams {
            private_data,
            protocol: self.config.protocol,
            timeout: self.config.connect_timeout,
            ..ConnectParams::new(parts.qp().clone()).reads(transport.reads, transport.reads)
        };
        let id = self.device.connect(self.server, params, &self.events)?;
        Ok((id, Box::new(parts)))
    }

    /// Another attempt a little later.
    fn retry(&mut self, now: Instant, failure: ConnectionFailure) {
        self.failure = Some(failure);
        self.phase = Phase::Idle { until: Some(now + self.backoff) };
        self.backoff = (2 * self.backoff).min(BACKOFF_MAX);
    }

    fn handle_event(&mut self, now: Instant, event: CmEvent, calls: &mut Calls) {
        if let (Phase::Up { id, closing, .. }, CmEvent::Disconnected { id: of, .. }) =
            (&mut self.phase, &event)
            && id == of
        {
            // Replies that have come are taken first. There is an end to them.
            *closing = true;
            while self.step_link(now, calls) {}
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Idle { until: None });
        self.phase = match (phase, event) {
            (
                Phase::Connecting { id, parts },
                CmEvent::Established { id: of, agreed, private_data, .. },
            ) if id == of => {
                let peers = PrivateData::find(&private_data);
                let transport = &self.config.transport;
                let mut config = transport.connection(Side::Client, self.speaks, peers, agreed.ord);
                self.counters.connections += 1;
                let own = self.memory.clone();
                let serving = self.serving.as_ref();
                let served = serving.map_or(&self.memory, |serving| &serving.memory).clone();
                config.properties.reverse = serving.map_or(ReverseSupport::None, |s| s.takes);
                // There is one peer, and no other to leave anything to.
                let share = (self.counters.connections, served.len(), None);
                match Link::new(now, *parts, (own, served), config, share) {
                    Ok(link) => {
                        let (link, closing) = (Box::new(link), self.closed);
                        Phase::Up { id, link, closing, closed_for: None }
                    }
                    Err(error) => return self.retry(now, error.into()),
                }
            }
            (Phase::Connecting { id, .. }, CmEvent::Rejected { id: of, .. }) if id == of => {
                return self.retry(now, ConnectionFailure::Rejected);
            }
            (Phase::Connecting { id, .. }, CmEvent::ConnectError { id: of, error, .. })
                if id == of =>
            {
                return self.retry(now, ConnectionFailure::Connect(error));
            }
            (Phase::Connecting { id, .. }, CmEvent::Disconnected { id: of, reason, .. })
                if id == of =>
            {
                return self.retry(now, ConnectionFailure::Disconnected(reason));
            }
            (
                Phase::Up { id, mut link, closed_for, .. },
                CmEvent::Disconnected { id: of, reason, .. },
            ) if id == of => {
                link.disconnected();
                let ended = ConnectionFailure::Disconnected(reason);
                let failure = closed_for.map_or(ended, ConnectionFailure::Closed);
                return self.lost(now, calls, link.next_speaks(), failure);
            }
            (phase, _) => phase,
        };
    }

    /// The connection is over: what it had is made again on the next, with a version that is left.
    fn lost(
        &mut self,
        now: Instant,
        calls: &mut Calls,
        speaks: Option<Speaks>,
        failure: ConnectionFailure,
    ) {
        self.counters.retransmissions += calls.lost() as u64;
        // Whoever made these calls has lost them.
        self.serving.iter_mut().for_each(|serving| serving.arrived.clear());
        if speaks.is_none() {
            calls.finish_all(&CallError::NoVersion);
        }
        self.speaks = speaks.unwrap_or(self.config.transport.speaks);
        self.retry(now, failure);
    }

    /// A call that was sent is of no interest any more.
    pub(super) fn cancel(&mut self, xid: heddle_rpcrdma::Xid) {
        if let Phase::Up { link, .. } = &mut self.phase {
            link.cancel(xid);
        }
    }

    /// No more connections; that which is there ends in order.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.serving.iter_mut().for_each(|serving| serving.arrived.clear());
        match &mut self.phase {
            Phase::Up { closing: true, .. } | Phase::Idle { .. } => {}
            Phase::Up { id, closing, .. } => {
                *closing = true;
                let _ = self.device.disconnect(*id);
            }
            // It is given up, or ends when it has come about: the server may have it already.
            Phase::Connecting { id, .. } => drop(self.device.disconnect(*id)),
        }
    }

    /// When something is to be done though nothing happens.
    pub(super) fn deadline(&self, calls: &Calls) -> Option<Instant> {
        let own = match &self.phase {
            Phase::Idle { until } if self.wants_connection(calls) => *until,
            Phase::Up { link, .. } => link.deadline(),
            Phase::Idle { .. } | Phase::Connecting { .. } => None,
        };
        own.into_iter().chain(calls.deadline()).min()
    }

    /// What says whether there is something to do.
    pub(super) fn signs(&self) -> Signs {
        let cq = match &self.phase {
            Phase::Connecting { parts, .. } => Some(parts.cq().clone()),
            Phase::Up { link, .. } => Some(link.cq().clone()),
            Phase::Idle { .. } => None,
        };
        Signs { cq, events: self.events.clone(), serving: self.serving_signs() }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

/// Where something may come from.
#[derive(Debug)]
pub(super) struct Signs {
    cq: Option<Cq>,
    events: EventQueue,
    serving: Option<ServingSigns>,
}

impl Signs {
    /// Whether something has come; what comes from here on wakes.
    pub(super) fn arm(&self) -> bool {
        if let Some(cq) = &self.cq {
            cq.arm(Arm::Next);
        }
        let served = self.serving.as_ref().is_some_and(|serving| !serving.may_sleep());
        served || !self.events.is_empty() || self.cq.as_ref().is_some_and(|cq| !cq.is_empty())
    }
}
