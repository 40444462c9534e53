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

/// The wait before the second attempt to connect; each further wait is twice as long.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// The longest wait between attempts to connect.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The largest number of completions in one step, because other threads wait for the lock
/// meanwhile.
const BATCH: usize = 256;

#[derive(Debug)]
pub(super) enum Phase {
    /// There is no connection, and the client makes none before `until`.
    Idle { until: Option<Instant> },
    /// The client is connecting.
    Connecting { id: CmId, parts: Box<Parts> },
    /// The connection is established.
    Up {
        id: CmId,
        link: Box<Link>,
        /// True if the connection is being ended.
        closing: bool,
        /// The reason why this end closes the connection, if the peer caused it.
        closed_for: Option<CloseReason>,
    },
}

/// See [the module](self).
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
    /// Versions that are left to try with this server.
    pub(super) speaks: Speaks,
    backoff: Duration,
    pub(super) counters: ClientCounters,
    /// The reason why the last failed connection failed.
    failure: Option<ConnectionFailure>,
    /// True if the session makes no more connections.
    closed: bool,
    /// State of a client with programs.
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

    /// Returns the version that the connection speaks, if there is a connection with a known
    /// version.
    pub(super) fn version(&self) -> Option<u32> {
        match &self.phase {
            Phase::Up { link, .. } => link.version(),
            Phase::Idle { .. } | Phase::Connecting { .. } => None,
        }
    }

    /// Returns the counters of the current connection.
    pub(super) fn transport_counters(&self) -> Option<Counters> {
        match &self.phase {
            Phase::Up { link, .. } => Some(*link.counters()),
            Phase::Idle { .. } | Phase::Connecting { .. } => None,
        }
    }

    pub(super) fn last_failure(&self) -> Option<ConnectionFailure> {
        self.failure.clone()
    }

    /// Does pending work. Returns true if there was any. More work may be left, unless
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

    /// Returns true if the last step left no work, apart from later arrivals.
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
                // A client calls its server whatever the server takes.
                LinkEvent::Takes(_) => {}
            }
        }
        // Make calls after the events: a call's slot in the connection is free before its event is
        // taken.
        if !*closing {
            busy |= calls.send_by(|xid, outgoing| link.call(xid, outgoing));
        }
        // Post the work that these calls and events have made.
        busy |= link.post();
        if (lost || link.is_broken()) && !*closing {
            *closing = true;
            // An error means that the control plane is gone and the connection over; the event that
            // reports the end comes in any case.
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

    /// Schedules another attempt a little later.
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
            // Take the replies that have arrived first. The loop ends, because no more arrive.
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
                // There is only one peer, so this end reserves no share for others.
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

    /// Handles the loss of the connection: calls go to the next connection, which speaks one of the
    /// versions that are left.
    fn lost(
        &mut self,
        now: Instant,
        calls: &mut Calls,
        speaks: Option<Speaks>,
        failure: ConnectionFailure,
    ) {
        self.counters.retransmissions += calls.lost() as u64;
        // The server that made these calls gets no reply any more.
        self.serving.iter_mut().for_each(|serving| serving.arrived.clear());
        if speaks.is_none() {
            calls.finish_all(&CallError::NoVersion);
        }
        self.speaks = speaks.unwrap_or(self.config.transport.speaks);
        self.retry(now, failure);
    }

    /// Gives up a call that was sent.
    pub(super) fn cancel(&mut self, xid: heddle_rpcrdma::Xid) {
        if let Phase::Up { link, .. } = &mut self.phase {
            link.cancel(xid);
        }
    }

    /// Ends the connection in order, and makes no more connections.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.serving.iter_mut().for_each(|serving| serving.arrived.clear());
        match &mut self.phase {
            Phase::Up { closing: true, .. } | Phase::Idle { .. } => {}
            Phase::Up { id, closing, .. } => {
                *closing = true;
                let _ = self.device.disconnect(*id);
            }
            // The attempt is abandoned, or the connection ends once established: the server may
            // have accepted it already.
            Phase::Connecting { id, .. } => drop(self.device.disconnect(*id)),
        }
    }

    /// Returns the time of the next step if nothing happens before.
    pub(super) fn deadline(&self, calls: &Calls) -> Option<Instant> {
        let own = match &self.phase {
            Phase::Idle { until } if self.wants_connection(calls) => *until,
            Phase::Up { link, .. } => link.deadline(),
            Phase::Idle { .. } | Phase::Connecting { .. } => None,
        };
        own.into_iter().chain(calls.deadline()).min()
    }

    /// Returns the sources of new work.
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

/// The sources of new work.
#[derive(Debug)]
pub(super) struct Signs {
    cq: Option<Cq>,
    events: EventQueue,
    serving: Option<ServingSigns>,
}

impl Signs {
    /// Arms the completion queue. Returns true if something has arrived already; later arrivals
    /// wake the sleeper.
    pub(super) fn arm(&self) -> bool {
        if let Some(cq) = &self.cq {
            cq.arm(Arm::Next);
        }
        let served = self.serving.as_ref().is_some_and(|serving| !serving.may_sleep());
        served || !self.events.is_empty() || self.cq.as_ref().is_some_and(|cq| !cq.is_empty())
    }
}
