use core::time::Duration;

use heddle_base::Instant;
use heddle_ib::cm::Message;
use heddle_types::{AcceptTerms, Agreed, Event, Qpn, RequestError};

use super::counters::IbCounters;
use super::keepalive::Keepalive;
use super::link::Depths;
use crate::counters::CmCounters;

/// The stage of a connection's life.
#[derive(Debug)]
pub(crate) enum IbState {
    /// Our REQ is on its way.
    ReqSent { wait: Wait, qpn: Qpn, ours: Depths },
    /// The application's answer is awaited until `accept_by`. At `mra_at`, unless absent, the peer
    /// gets an MRA that asks for more time.
    ReqRcvd { accept_by: Instant, mra_at: Option<Instant> },
    /// Our REP is on its way.
    RepSent { wait: Wait, qpn: Qpn, agreed: Agreed },
    /// Both sides know of the connection. `keepalive` is present if the peer made the connection,
    /// because only such a peer can be probed.
    Established { qpn: Qpn, keepalive: Option<Box<Keepalive>> },
    /// Our DREQ is on its way.
    DreqSent { wait: Wait, qpn: Qpn },
    /// The connection has ended. Until `until` the manager answers copies of the peer's messages
    /// with `last`.
    TimeWait { last: Option<Message>, until: Instant },
    /// Nothing is left of the connection.
    Gone,
}

/// The kind of place that a passive connection takes at its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    None,
    /// The application has the connection request.
    Asked,
    /// The application has accepted it.
    Taken,
}

impl IbState {
    pub(crate) const fn place(&self) -> Place {
        match self {
            IbState::ReqRcvd { .. } => Place::Asked,
            IbState::RepSent { .. } | IbState::Established { .. } | IbState::DreqSent { .. } => {
                Place::Taken
            }
            IbState::ReqSent { .. } | IbState::TimeWait { .. } | IbState::Gone => Place::None,
        }
    }

    /// Returns the state's name for people.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            IbState::ReqSent { .. } => "req-sent",
            IbState::ReqRcvd { .. } => "req-received",
            IbState::RepSent { .. } => "rep-sent",
            IbState::Established { .. } => "established",
            IbState::DreqSent { .. } => "dreq-sent",
            IbState::TimeWait { .. } => "time-wait",
            IbState::Gone => "gone",
        }
    }

    /// Returns true if the connection's end has been reported: the connection no longer belongs to
    /// an application.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, IbState::TimeWait { .. } | IbState::Gone)
    }

    /// Returns true if our REP was sent at least twice without any message from the peer.
    pub(crate) const fn is_unanswered(&self) -> bool {
        matches!(self, IbState::RepSent { wait, .. } if wait.unanswered >= 2)
    }

    /// Returns true if our REP was sent without any message from the peer since: nothing proves yet
    /// that the peer is at the address that the REQ named.
    pub(crate) const fn is_half_open(&self) -> bool {
        matches!(self, IbState::RepSent { wait, .. } if wait.unanswered >= 1)
    }

    /// Returns the time of the next action.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            IbState::ReqSent { wait, .. }
            | IbState::RepSent { wait, .. }
            | IbState::DreqSent { wait, .. } => Some(wait.next.min(wait.give_up)),
            IbState::ReqRcvd { accept_by, mra_at } => {
                Some(mra_at.map_or(*accept_by, |at| at.min(*accept_by)))
            }
            IbState::TimeWait { until, .. } => Some(*until),
            IbState::Established { keepalive, .. } => keepalive.as_ref()?.deadline(),
            IbState::Gone => None,
        }
    }
}

/// A message that awaits its answer.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) tid: u64,
    pub(crate) message: Message,
    interval: Duration,
    /// The time of the next retransmission.
    next: Instant,
    /// The time at which we stop waiting for the answer.
    give_up: Instant,
    /// The latest time to which MRAs may delay `give_up`.
    limit: Instant,
    /// Number of retransmissions left.
    left: u8,
    /// Number of transmissions since the peer's last MRA.
    unanswered: u8,
}

impl Wait {
    /// Makes the record of a message that is sent now, and retransmitted `retries` times at
    /// `interval`. The whole takes no longer than `limit`.
    pub(crate) fn new(
        now: Instant,
        tid: u64,
        message: Message,
        interval: Duration,
        retries: u8,
        limit: Duration,
    ) -> Wait {
        let all = interval.saturating_mul(u32::from(retries) + 1);
        Wait {
            tid,
            message,
            interval,
            next: now + interval,
            give_up: now + all.min(limit),
            limit: now + limit,
            left: retries,
            unanswered: 1,
        }
    }

    /// Limits the wait to `patience`, unless the peer asks for more time.
    #[must_use]
    pub(crate) fn within(self, now: Instant, patience: Duration) -> Wait {
        Wait { give_up: self.give_up.min(now + patience), ..self }
    }

    /// Retransmits the message at the deadline and returns true, or returns false if the time or
    /// the retransmissions are used up.
    pub(crate) fn again(&mut self, now: Instant, fx: &mut Effects) -> bool {
        if now >= self.give_up || self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.unanswered = self.unanswered.saturating_add(1);
        self.next = now + self.interval;
        fx.ib.retransmissions += 1;
        fx.send(self.tid, self.message.clone());
        true
    }

    /// Extends the wait for a peer that has the message and needs `more` time.
    pub(crate) fn put_off(&mut self, now: Instant, more: Duration) {
        let next = now + more + self.interval;
        self.next = next.max(self.next);
        self.give_up = next.max(self.give_up).min(self.limit);
        self.unanswered = 0;
    }
}

/// The inputs of a connection.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// A message that names the connection, with its transaction id.
    Message(u64, &'a Message),
    /// The application accepts.
    Accept(&'a AcceptTerms),
    /// The application rejects.
    Reject(&'a [u8]),
    /// The application refuses with a reason of InfiniBand's REJ.
    Refuse(u16),
    /// The application closes, or gives up.
    Disconnect,
    /// The deadline has passed.
    Timeout,
    /// Another connection needs the place.
    MakeRoom,
    /// The application has ended.
    AppGone,
    /// Our address, or the route from it to the peer, was removed.
    Withdrawn,
    /// The worker that handles the connection's datagrams has ended.
    WorkerLost,
}

/// A consequence of an input. The manager carries the effects out in their order.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A message for the peer, with its transaction id.
    Send(u64, Message),
    Tell(Event),
    /// The queue pair may be used for another connection.
    Free(Qpn),
    /// The queue pair cannot be used again.
    Spend(Qpn),
}

/// Collects the effects of an input.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) list: Vec<Effect>,
    pub(crate) ib: IbCounters,
    pub(crate) cm: CmCounters,
    /// The reason why the manager refuses the application's request, if the input was one.
    pub(crate) denied: Option<RequestError>,
}

impl Effects {
    pub(crate) fn send(&mut self, tid: u64, message: Message) {
        self.list.push(Effect::Send(tid, message));
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.list.push(Effect::Tell(event));
    }
}
