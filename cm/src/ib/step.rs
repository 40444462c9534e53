//! The transition function: the state after an input, and the effects.

mod ends;
mod late;

use heddle_base::Instant;
use heddle_ib::cm::{Answered, Message, Mra, Rej, Rep};
use heddle_ib::ip_cm::Ari;
use heddle_types::{
    AcceptTerms, Agreed, Awaited, ConnectFailure, DisconnectReason, Event, IbRefusal, ParamsError,
    QpFate, Qpn, RequestError, ib::RejReason,
};

use late::{dreq_sent, established, time_wait};

use super::link::{Depths, IbLink};
use super::state::{Effect, Effects, IbState, Input, Wait};
use super::{Keepalive, MAX_HALF_OPEN, MAX_PUT_OFF};

impl IbState {
    /// Returns the state after `input`.
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
        let turn = Turn { link, now, fx };
        match self {
            IbState::ReqSent { wait, qpn, ours } => req_sent(wait, qpn, ours, input, turn),
            IbState::ReqRcvd { accept_by, mra_at } => req_rcvd(accept_by, mra_at, input, turn),
            IbState::RepSent { wait, qpn, agreed } => rep_sent(wait, qpn, agreed, input, turn),
            IbState::Established { qpn, keepalive } => established(qpn, keepalive, input, turn),
            IbState::DreqSent { wait, qpn } => dreq_sent(wait, qpn, input, turn),
            IbState::TimeWait { last, until } => time_wait(last, until, input, turn),
            IbState::Gone => IbState::Gone,
        }
    }
}

/// The parts that every transition has at hand beside its state and input.
struct Turn<'a> {
    link: &'a mut IbLink,
    now: Instant,
    /// The effects of the transition go here.
    fx: &'a mut Effects,
}

fn req_sent(mut wait: Wait, qpn: Qpn, ours: Depths, input: Input<'_>, turn: Turn<'_>) -> IbState {
    let Turn { link, now, fx } = turn;
    let again = |wait| IbState::ReqSent { wait, qpn, ours };
    match input {
        // The answer to a REQ carries the REQ's transaction id, which no other host knows.
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
        Input::Withdrawn => {
            fx.send(link.tid, link.rej(Answered::OTHER, RejReason::TIMEOUT));
            link.withdrawn(QpFate::Free(qpn), fx)
        }
        Input::WorkerLost => link.lost(QpFate::Free(qpn), fx),
        Input::MakeRoom => again(wait),
        Input::Message(..) | Input::Accept(_) | Input::Reject(_) | Input::Refuse(_) => {
            fx.ib.rx_unexpected += 1;
            again(wait)
        }
    }
}

/// Takes the peer's accepting answer.
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
    // The peer would have more Reads outstanding than we take.
    if initiator_depth > ours.responder_resources {
        let why = IbRefusal::Ours(RejReason::INSUFFICIENT_RESOURCES.0);
        link.fail(ConnectFailure::InfiniBand(why), QpFate::Free(qpn), fx);
        return link.refuse(Answered::REP, RejReason::INSUFFICIENT_RESOURCES, now, fx);
    }
    let ord = ours.initiator_depth.min(responder_resources);
    let agreed = link.agreed(Depths { initiator_depth: ord, ..ours });
    fx.send(link.tid, link.rtu());
    link.establish(qpn, agreed, rep.private_data.to_vec(), None, fx)
}

fn req_rcvd(
    accept_by: Instant,
    mra_at: Option<Instant>,
    input: Input<'_>,
    turn: Turn<'_>,
) -> IbState {
    let Turn { link, now, fx } = turn;
    let asked = |mra_at| IbState::ReqRcvd { accept_by, mra_at };
    let put_off = |link: &IbLink, fx: &mut Effects| {
        fx.ib.mra_sent += 1;
        fx.send(link.tid, link.mra(accept_by.since(now)));
        asked(None)
    };
    match input {
        // The peer asks again: it has to learn that we have its REQ and need more time.
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
        Input::Withdrawn => {
            fx.send(link.tid, link.rej(Answered::REQ, RejReason::INVALID_SERVICE_ID));
            link.withdrawn(QpFate::NoQp, fx)
        }
        Input::WorkerLost => link.lost(QpFate::NoQp, fx),
        Input::MakeRoom => {
            link.fail(ConnectFailure::Displaced, QpFate::NoQp, fx);
            link.refuse(Answered::REQ, RejReason::NO_RESOURCES, now, fx)
        }
        Input::Message(..) => {
            fx.ib.rx_unexpected += 1;
            asked(mra_at)
        }
    }
}

/// Sends the REP of our application, which accepts.
fn accept(
    link: &mut IbLink,
    terms: &AcceptTerms,
    now: Instant,
    fx: &mut Effects,
) -> Result<IbState, ParamsError> {
    let ours = Depths::ours(terms.ird, terms.ord);
    // We take the number of Reads that we announce, and have no more outstanding than the peer
    // takes.
    let ours =
        Depths { initiator_depth: ours.initiator_depth.min(link.peer.responder_resources), ..ours };
    let rep = link.rep(ours, &terms.private_data).ok_or(ParamsError::PrivateData)?;
    fx.cm.accepts_sent += 1;
    fx.send(link.tid, rep.clone());
    let wait = Wait::new(now, link.tid, rep, link.interval, link.retries, MAX_PUT_OFF);
    // The limit holds whatever response time the REQ announces. Only an MRA, which has to name our
    // id, proves that the REP reached a host.
    let wait = wait.within(now, MAX_HALF_OPEN);
    Ok(IbState::RepSent { wait, qpn: terms.qp.qpn, agreed: link.agreed(ours) })
}

fn rep_sent(mut wait: Wait, qpn: Qpn, agreed: Agreed, input: Input<'_>, turn: Turn<'_>) -> IbState {
    let Turn { link, now, fx } = turn;
    let again = |wait| IbState::RepSent { wait, qpn, agreed };
    let free = QpFate::Free(qpn);
    match input {
        Input::Message(_, Message::Rtu(_)) => {
            let keepalive = Keepalive::new(wait.message, link.keepalive, now);
            link.establish(qpn, agreed, Vec::new(), Some(Box::new(keepalive)), fx)
        }
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
        // The peer's RTU is lost or late, and the peer already closes. The DREQ names our queue
        // pair, so the peer has our REP. So the connection was established at the peer, and has
        // ended in order.
        Input::Message(tid, Message::Dreq(dreq)) if dreq.remote_qpn == link.local_qpn => {
            link.establish(qpn, agreed, Vec::new(), None, fx);
            fx.send(tid, link.drep());
            link.disconnected(qpn, DisconnectReason::Orderly, fx);
            link.time_wait(None, now)
        }
        Input::Timeout if wait.again(now, fx) => again(wait),
        Input::Timeout | Input::MakeRoom => {
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
        // We send both messages that the peer may understand: if our REP has come, the peer holds
        // the connection for established.
        Input::Withdrawn => {
            fx.send(link.tid, link.rej(Answered::REQ, RejReason::INVALID_SERVICE_ID));
            fx.send(link.dreq_tid, link.dreq());
            link.withdrawn(free, fx)
        }
        Input::WorkerLost => link.lost(free, fx),
        Input::Message(..) | Input::Accept(_) | Input::Reject(_) | Input::Refuse(_) => {
            fx.ib.rx_unexpected += 1;
            again(wait)
        }
    }
}

fn put_off(wait: &mut Wait, mra: &Mra, now: Instant, fx: &mut Effects) {
    fx.ib.mra_received += 1;
    wait.put_off(now, mra.service_timeout.duration());
}

/// Returns the reason of a REJ; `None` when the peer's application rejects.
fn refusal(rej: &Rej) -> Option<IbRefusal> {
    if rej.reason != RejReason::CONSUMER {
        return Some(IbRefusal::Reason(rej.reason.0));
    }
    match Ari::parse(rej.ari()) {
        Ari::Service { code, .. } => Some(IbRefusal::Service(code.0)),
        Ari::Absent | Ari::Ulp(_) | Ari::Other(_) => None,
    }
}
