//! The transition function: what follows from an input in a state.

use heddle_base::Instant;
use heddle_ib::cm::{Answered, Message, Mra, Rej, RejReason, Rep};
use heddle_ib::ip_cm::Ari;
use heddle_iwarp::{Qpn, RtrConfig};

use super::link::{Depths, IbLink};
use super::state::{Effect, Effects, IbState, Input, Wait};
use super::{MAX_PUT_OFF, MIN_INTERVAL};
use crate::dialogue::ParamsError;
use crate::event::{
    Agreed, Awaited, ConnectFailure, DisconnectReason, Event, IbRefusal, QpFate, Transport,
};
use crate::params::AcceptTerms;
use crate::request::RequestError;

impl IbState {
    /// What comes after `input`.
    pub(crate) fn step(
        self,
        link: &mut IbLink,
        input: Input<'_>,
        now: Instant,
        fx: &mut Effects,
    ) -> IbState {
        if let Input::Accept(_) | Input::Reject(_) | Input::Refuse(_) = input
            && !matches!(self, IbState::ReqRcvd { .. })
        {
            fx.denied = Some(RequestError::NotAsked);
            return self;
        }
        match self {
            IbState::ReqSent { wait, qpn, ours } => req_sent(wait, qpn, ours, link, input, now, fx),
            IbState::ReqRcvd { accept_by, mra_at } => {
                req_rcvd(accept_by, mra_at, link, input, now, fx)
            }
            IbState::RepSent { wait, qpn, agreed } => {
                rep_sent(wait, qpn, agreed, link, input, now, fx)
            }
            IbState::Established { qpn } => established(qpn, link, input, now, fx),
            IbState::DreqSent { wait, qpn } => dreq_sent(wait, qpn, link, input, now, fx),
            IbState::TimeWait { last, until } => time_wait(last, until, link, input, now, fx),
            IbState::Gone => IbState::Gone,
        }
    }
}

fn req_sent(
    mut wait: Wait,
    qpn: Qpn,
    ours: Depths,
    link: &mut IbLink,
    input: Input<'_>,
    now: Instant,
    fx: &mut Effects,
) -> IbState {
    let again = |wait| IbState::ReqSent { wait, qpn, ours };
    match input {
        // The answer to a REQ has its transaction id, which nobody else knows.
        Input::Message(tid, _) if tid != link.tid => {
            fx.ib.rx_foreign += 1;
            again(wait)
        }
        Input::Message(_, Message::Rep(rep)) => take_rep(rep, qpn, ours, link, now, fx),
        Input::Message(_, Message::Rej(rej)) => {
            match refusal(rej) {
                None => {
                    fx.cm.rejects_received += 1;
                    fx.list.push(Effect::Free(qpn));
                    let private_data = rej.private_data.to_vec();
                    fx.tell(Event::Rejected { id: link.id, qpn, private_data, peer: None });
                }
                Some(why) => link.fail(ConnectFailure::InfiniBand(why), QpFate::Free(qpn), fx),
            }
            IbState::Gone
        }
        Input::Message(_, Message::Mra(mra)) if mra.answered == Answered::REQ => {
            put_off(&mut wait, mra, now, fx);
            again(wait)
        }
        Input::Timeout if wait.again(now, fx) => again(wait),
        Input::Timeout => {
            fx.cm.startup_timeouts += 1;
            let error = ConnectFailure::TimedOut(Awaited::Answer);
            link.fail(error, QpFate::Free(qpn), fx);
            link.refuse(Answered::OTHER, RejReason::TIMEOUT, now, fx)
        }
        Input::Disconnect => {
            fx.cm.cancelled += 1;
            link.fail(ConnectFailure::Cancelled, QpFate::Free(qpn), fx);
            link.refuse(Answered::OTHER, RejReason::TIMEOUT, now, fx)
        }
        Input::AppGone => {
            fx.list.push(Effect::Free(qpn));
            link.refuse(Answered::OTHER, RejReason::TIMEOUT, now, fx)
        }
        Input::WorkerLost => link.lost(QpFate::Free(qpn), fx),
        Input::Message(..) | Input::Accept(_) | Input::Reject(_) | Input::Refuse(_) => {
            fx.ib.rx_unexpected += 1;
            again(wait)
        }
    }
}

/// The peer accepts.
fn take_rep(
    rep: &Rep,
    qpn: Qpn,
    ours: Depths,
    link: &mut IbLink,
    now: Instant,
    fx: &mut Effects,
) -> IbState {
    link.remote_comm = Some(rep.local_comm_id);
    link.remote_qpn = rep.local_qpn;
    link.remote_guid = rep.local_ca_guid;
    let (responder_resources, initiator_depth) = (rep.responder_resources, rep.initiator_depth);
    link.peer = Depths { responder_resources, initiator_depth };
    // It would have more Reads outstanding than we take.
    if initiator_depth > ours.responder_resources {
        let why = IbRefusal::Ours(RejReason::INSUFFICIENT_RESOURCES.0);
        link.fail(ConnectFailure::InfiniBand(why), QpFate::Free(qpn), fx);
        return link.refuse(Answered::REP, RejReason::INSUFFICIENT_RESOURCES, now, fx);
    }
    let ord = ours.initiator_depth.min(responder_resources);
    let agreed = link.agreed(Depths { initiator_depth: ord, ..ours });
    fx.send(link.tid, link.rtu());
    link.establish(qpn, agreed, rep.private_data.to_vec(), fx)
}

fn req_rcvd(
    accept_by: Instant,
    mra_at: Option<Instant>,
    link: &mut IbLink,
    input: Input<'_>,
    now: Instant,
    fx: &mut Effects,
) -> IbState {
    let asked = |mra_at| IbState::ReqRcvd { accept_by, mra_at };
    let put_off = |link: &IbLink, fx: &mut Effects| {
        fx.ib.mra_sent += 1;
        fx.send(link.tid, link.mra(accept_by.since(now)));
        asked(None)
    };
    match input {
        // It asks again: it has to know that we have understood, and are not quick.
        Input::Message(_, Message::Req(_)) => {
            fx.ib.rx_duplicates += 1;
            put_off(link, fx)
        }
        Input::Message(_, Message::Rej(rej)) => {
            let why = refusal(rej).unwrap_or(IbRefusal::Reason(rej.reason.0));
            link.fail(ConnectFailure::InfiniBand(why), QpFate::NoQp, fx);
            link.time_wait(None, now)
        }
        Input::Accept(terms) => match accept(link, terms, now, fx) {
            Ok(state) => state,
            Err(e) => {
                fx.denied = Some(RequestError::Params(e));
                asked(mra_at)
            }
        },
        Input::Reject(private) => match link.consumer_rej(private) {
            Some(rej) => {
                fx.cm.rejects_sent += 1;
                link.last_word(rej, now, fx)
            }
            None => {
                fx.denied = Some(RequestError::Params(ParamsError::PrivateData));
                asked(mra_at)
            }
        },
        Input::Refuse(reason) => {
            fx.cm.rejects_sent += 1;
            link.refuse(Answered::REQ, RejReason(reason), now, fx)
        }
        Input::Timeout if now >= accept_by => {
            fx.cm.startup_timeouts += 1;
            link.fail(ConnectFailure::TimedOut(Awaited::Application), QpFate::NoQp, fx);
            link.refuse(Answered::REQ, RejReason::TIMEOUT, now, fx)
        }
        Input::Timeout => put_off(link, fx),
        Input::Disconnect => {
            fx.cm.cancelled += 1;
            link.fail(ConnectFailure::Cancelled, QpFate::NoQp, fx);
            link.consumer_refuses(now, fx)
        }
        Input::AppGone => link.consumer_refuses(now, fx),
        Input::WorkerLost => link.lost(QpFate::NoQp, fx),
        Input::Message(..) => {
            fx.ib.rx_unexpected += 1;
            asked(mra_at)
        }
    }
}

/// Our application accepts.
fn accept(
    link: &mut IbLink,
    terms: &AcceptTerms,
    now: Instant,
    fx: &mut Effects,
) -> Result<IbState, ParamsError> {
    let ours = Depths::ours(terms.ird, terms.ord);
    // We take of the peer's what it said it has, and have no more outstanding than it takes.
    let ours =
        Depths { initiator_depth: ours.initiator_depth.min(link.peer.responder_resources), ..ours };
    let rep = link.rep(ours, &terms.private_data).ok_or(ParamsError::PrivateData)?;
    fx.cm.accepts_sent += 1;
    fx.send(link.tid, rep.clone());
    let wait = Wait::new(now, link.tid, rep, link.interval, link.retries, MAX_PUT_OFF);
    Ok(IbState::RepSent { wait, qpn: terms.qp.qpn, agreed: link.agreed(ours) })
}

fn rep_sent(
    mut wait: Wait,
    qpn: Qpn,
    agreed: Agreed,
    link: &mut IbLink,
    input: Input<'_>,
    now: Instant,
    fx: &mut Effects,
) -> IbState {
    let again = |wait| IbState::RepSent { wait, qpn, agreed };
    let free = QpFate::Free(qpn);
    match input {
        Input::Message(_, Message::Rtu(_)) => link.establish(qpn, agreed, Vec::new(), fx),
        Input::Message(_, Message::Req(_)) => {
            fx.ib.rx_duplicates += 1;
            fx.send(wait.tid, wait.message.clone());
            again(wait)
        }
        Input::Message(_, Message::Mra(mra)) if mra.answered == Answered::REP => {
            put_off(&mut wait, mra, now, fx);
            again(wait)
        }
        Input::Message(_, Message::Rej(rej)) => {
            let why = refusal(rej).unwrap_or(IbRefusal::Reason(rej.reason.0));
            link.fail(ConnectFailure::InfiniBand(why), free, fx);
            link.time_wait(None, now)
        }
        // Its RTU is lost, and it is through with the connection.
        Input::Message(tid, Message::Dreq(dreq)) if dreq.remote_qpn == link.local_qpn => {
            link.fail(ConnectFailure::InfiniBand(IbRefusal::Ended), free, fx);
            fx.send(tid, link.drep());
            link.time_wait(None, now)
        }
        Input::Timeout if wait.again(now, fx) => again(wait),
        Input::Timeout => {
            fx.cm.startup_timeouts += 1;
            link.fail(ConnectFailure::TimedOut(Awaited::ReadyToUse), free, fx);
            link.refuse(Answered::OTHER, RejReason::TIMEOUT, now, fx)
        }
        Input::Disconnect => {
            fx.cm.cancelled += 1;
            link.fail(ConnectFailure::Cancelled, free, fx);
            link.consumer_refuses(now, fx)
        }
        Input::AppGone => {
            fx.list.push(Effect::Free(qpn));
            link.consumer_refuses(now, fx)
        }
        Input::WorkerLost => link.lost(free, fx),
        Input::Message(..) | Input::Accept(_) | Input::Reject(_) | Input::Refuse(_) => {
            fx.ib.rx_unexpected += 1;
            again(wait)
        }
    }
}

fn established(
    qpn: Qpn,
    link: &mut IbLink,
    input: Input<'_>,
    now: Instant,
    fx: &mut Effects,
) -> IbState {
    match input {
        // Our RTU is lost.
        Input::Message(tid, Message::Rep(rep))
            if tid == link.tid && link.listener.is_none() && rep.local_qpn == link.remote_qpn =>
        {
            fx.ib.rx_duplicates += 1;
            fx.send(tid, link.rtu());
        }
        Input::Message(_, Message::Req(_) | Message::Rtu(_)) if link.listener.is_some() => {
            fx.ib.rx_duplicates += 1;
        }
        Input::Message(tid, Message::Dreq(dreq)) if dreq.remote_qpn == link.local_qpn => {
            fx.send(tid, link.drep());
            link.disconnected(qpn, DisconnectReason::Orderly, fx);
            return link.time_wait(None, now);
        }
        // None of our RTUs came, and it has given up.
        Input::Message(tid, Message::Rej(rej)) if tid == link.tid => {
            link.disconnected(qpn, DisconnectReason::InfiniBand(rej.reason.0), fx);
            return link.time_wait(None, now);
        }
        Input::Disconnect | Input::AppGone => {
            let dreq = link.dreq();
            fx.send(link.dreq_tid, dreq.clone());
            let (interval, retries) = (link.interval, link.retries);
            let wait = Wait::new(now, link.dreq_tid, dreq, interval, retries, MAX_PUT_OFF);
            return IbState::DreqSent { wait, qpn };
        }
        Input::WorkerLost => {
            fx.cm.worker_lost += 1;
            link.disconnected(qpn, DisconnectReason::WorkerLost, fx);
            return IbState::Gone;
        }
        Input::Message(..) | Input::Accept(_) | Input::Reject(_) | Input::Refuse(_) => {
            fx.ib.rx_unexpected += 1
        }
        Input::Timeout => {}
    }
    IbState::Established { qpn }
}

fn dreq_sent(
    mut wait: Wait,
    qpn: Qpn,
    link: &mut IbLink,
    input: Input<'_>,
    now: Instant,
    fx: &mut Effects,
) -> IbState {
    match input {
        Input::Message(tid, Message::Drep(_)) if tid == link.dreq_tid => {
            link.disconnected(qpn, DisconnectReason::Orderly, fx);
            link.time_wait(None, now)
        }
        // Both at once.
        Input::Message(tid, Message::Dreq(dreq)) if dreq.remote_qpn == link.local_qpn => {
            fx.send(tid, link.drep());
            link.disconnected(qpn, DisconnectReason::Orderly, fx);
            link.time_wait(None, now)
        }
        Input::Timeout if wait.again(now, fx) => IbState::DreqSent { wait, qpn },
        Input::Timeout => {
            fx.cm.close_timeouts += 1;
            link.disconnected(qpn, DisconnectReason::Unanswered, fx);
            link.time_wait(None, now)
        }
        Input::WorkerLost => {
            fx.cm.worker_lost += 1;
            link.disconnected(qpn, DisconnectReason::WorkerLost, fx);
            IbState::Gone
        }
        Input::Message(..) => {
            fx.ib.rx_unexpected += 1;
            IbState::DreqSent { wait, qpn }
        }
        Input::Disconnect
        | Input::AppGone
        | Input::Accept(_)
        | Input::Reject(_)
        | Input::Refuse(_) => IbState::DreqSent { wait, qpn },
    }
}

fn time_wait(
    last: Option<Message>,
    until: Instant,
    link: &mut IbLink,
    input: Input<'_>,
    now: Instant,
    fx: &mut Effects,
) -> IbState {
    match input {
        Input::Timeout if now >= until => return IbState::Gone,
        Input::WorkerLost => return IbState::Gone,
        Input::Message(tid, Message::Dreq(_)) => {
            fx.ib.rx_duplicates += 1;
            fx.send(tid, link.drep());
        }
        Input::Message(_, message @ (Message::Req(_) | Message::Rep(_))) => {
            fx.ib.rx_duplicates += 1;
            let to_req = matches!(message, Message::Req(_));
            let answered = if to_req { Answered::REQ } else { Answered::REP };
            let stale = || link.rej(answered, RejReason::STALE_CONNECTION);
            fx.send(link.tid, last.clone().unwrap_or_else(stale));
        }
        // It holds for established what we have refused after our REP: it is to know, in a way that
        // one who is established understands.
        Input::Message(_, Message::Rtu(_)) if last.is_some() => {
            fx.ib.rx_duplicates += 1;
            fx.send(link.dreq_tid, link.dreq());
        }
        Input::Message(..) => fx.ib.rx_unexpected += 1,
        Input::Timeout
        | Input::Accept(_)
        | Input::Reject(_)
        | Input::Refuse(_)
        | Input::Disconnect
        | Input::AppGone => {}
    }
    IbState::TimeWait { last, until }
}

fn put_off(wait: &mut Wait, mra: &Mra, now: Instant, fx: &mut Effects) {
    fx.ib.mra_received += 1;
    wait.put_off(now, mra.service_timeout.duration());
}

/// What a REJ says; `None` when it is the peer's application that says it.
fn refusal(rej: &Rej) -> Option<IbRefusal> {
    if rej.reason != RejReason::CONSUMER {
        return Some(IbRefusal::Reason(rej.reason.0));
    }
    match Ari::parse(rej.ari()) {
        Ari::Service { code, .. } => Some(IbRefusal::Service(code.0)),
        Ari::Absent | Ari::Ulp(_) | Ari::Other(_) => None,
    }
}

impl IbLink {
    pub(super) fn agreed(&self, ours: Depths) -> Agreed {
        Agreed {
            transport: Transport::InfiniBand,
            revision: 0,
            crc: true,
            ird: ours.responder_resources.into(),
            ord: ours.initiator_depth.into(),
            peer: Some(self.peer.told()),
            rtr: RtrConfig::None,
            send_markers: false,
            recv_markers: false,
        }
    }

    fn establish(
        &self,
        qpn: Qpn,
        agreed: Agreed,
        private_data: Vec<u8>,
        fx: &mut Effects,
    ) -> IbState {
        fx.cm.established += 1;
        let IbLink { id, worker, local, remote, .. } = *self;
        fx.tell(Event::Established { id, qpn, worker, private_data, agreed, local, remote });
        IbState::Established { qpn }
    }

    /// The application is told that the connection did not come about.
    fn fail(&self, error: ConnectFailure, qp: QpFate, fx: &mut Effects) {
        fx.cm.failed += 1;
        if let QpFate::Free(qpn) = qp {
            fx.list.push(Effect::Free(qpn));
        }
        fx.tell(Event::ConnectError { id: self.id, error, qp });
    }

    /// The application is told of the end.
    fn disconnected(&self, qpn: Qpn, reason: DisconnectReason, fx: &mut Effects) {
        fx.list.push(Effect::Spend(qpn));
        fx.tell(Event::Disconnected { id: self.id, qpn, reason, terminate: None });
    }

    fn lost(&self, qp: QpFate, fx: &mut Effects) -> IbState {
        fx.cm.worker_lost += 1;
        self.fail(ConnectFailure::WorkerLost, qp, fx);
        IbState::Gone
    }

    /// A REJ of ours, and what is left after it.
    fn refuse(
        &self,
        answered: Answered,
        reason: RejReason,
        now: Instant,
        fx: &mut Effects,
    ) -> IbState {
        self.last_word(self.rej(answered, reason), now, fx)
    }

    /// The application refuses, and says nothing.
    fn consumer_refuses(&self, now: Instant, fx: &mut Effects) -> IbState {
        let plain = || self.rej(Answered::REQ, RejReason::CONSUMER);
        self.last_word(self.consumer_rej(&[]).unwrap_or_else(plain), now, fx)
    }

    fn last_word(&self, rej: Message, now: Instant, fx: &mut Effects) -> IbState {
        fx.send(self.tid, rej.clone());
        self.time_wait(Some(rej), now)
    }

    fn time_wait(&self, last: Option<Message>, now: Instant) -> IbState {
        IbState::TimeWait { last, until: now + self.time_wait.max(MIN_INTERVAL) }
    }
}
