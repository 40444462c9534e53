use core::time::Duration;

use heddle_base::Instant;
use heddle_ib::cm::Message;
use heddle_iwarp::Qpn;

use super::counters::IbCounters;
use super::keepalive::Keepalive;
use super::link::Depths;
use crate::counters::CmCounters;
use crate::event::{Agreed, Event};
use crate::params::AcceptTerms;
use crate::request::RequestError;

/// Where a connection is in its life.
#[derive(Debug)]
pub(crate) enum IbState {
    /// A REQ is on its way.
    ReqSent { wait: Wait, qpn: Qpn, ours: Depths },
    /// The application has the word until `accept_by`. At `mra_at` the peer is told that it takes
    /// time, if that was not told before.
    ReqRcvd { accept_by: Instant, mra_at: Option<Instant> },
    /// A REP is on its way.
    RepSent { wait: Wait, qpn: Qpn, agreed: Agreed },
    /// Both sides know of each other. Whether the peer is still there can be asked when it made the
    /// connection.
    Established { qpn: Qpn, keepalive: Option<Box<Keepalive>> },
    /// A DREQ is on its way.
    DreqSent { wait: Wait, qpn: Qpn },
    /// It has ended, and copies of its messages are answered with `last` until `until`.
    TimeWait { last: Option<Message>, until: Instant },
    /// Nothing is left of it.
    Gone,
}

/// The place a passive connection takes of those its listener has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    None,
    /// The application has been told of it.
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

    /// For people.
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

    /// Whether its end has been told: it is no application's any more.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, IbState::TimeWait { .. } | IbState::Gone)
    }

    /// Whether our REP was sent twice at least and the peer has not said anything.
    pub(crate) const fn is_unanswered(&self) -> bool {
        matches!(self, IbState::RepSent { wait, .. } if wait.unanswered >= 2)
    }

    /// Whether our REP was sent and the peer has not said anything since: nothing shows yet that the
    /// peer is where the REQ said.
    pub(crate) const fn is_half_open(&self) -> bool {
        matches!(self, IbState::RepSent { wait, .. } if wait.unanswered >= 1)
    }

    /// When something has to happen.
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

/// A message whose answer is awaited.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) tid: u64,
    pub(crate) message: Message,
    interval: Duration,
    /// When it is sent again.
    next: Instant,
    /// When it is not awaited any more.
    give_up: Instant,
    /// As late as an MRA may make that.
    limit: Instant,
    /// How often it is sent again.
    left: u8,
    /// How often it was sent since the peer last put us off.
    unanswered: u8,
}

impl Wait {
    /// A message that is sent now, and again after each `interval`, `retries` times; all of it takes
    /// no longer than `limit`.
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

    /// It is not awaited any longer than `patience`, unless the peer puts us off.
    #[must_use]
    pub(crate) fn within(self, now: Instant, patience: Duration) -> Wait {
        Wait { give_up: self.give_up.min(now + patience), ..self }
    }

    /// Its time has come: it is sent again, or given up (false).
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

    /// The peer has the message and needs `more` time.
    pub(crate) fn put_off(&mut self, now: Instant, more: Duration) {
        let next = now + more + self.interval;
        self.next = next.max(self.next);
        self.give_up = next.max(self.give_up).min(self.limit);
        self.unanswered = 0;
    }
}

/// What can happen to a connection.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// A message about it, with its transaction id.
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
    /// Its place is needed.
    MakeRoom,
    /// The application is no more.
    AppGone,
    /// Our address, or the way from it to the peer, is no more.
    Withdrawn,
    /// The worker that has its datagrams is no more.
    WorkerLost,
}

/// What follows from an input, in this order.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A message for the peer, with its transaction id.
    Send(u64, Message),
    Tell(Event),
    /// The queue pair may be used for another connection.
    Free(Qpn),
    /// The queue pair is of no more use.
    Spend(Qpn),
}

/// Collects what follows.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) list: Vec<Effect>,
    pub(crate) ib: IbCounters,
    pub(crate) cm: CmCounters,
    /// Why the application's request, which the input was, is refused.
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
