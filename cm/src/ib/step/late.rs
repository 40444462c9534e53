//! The transitions of the states from `Established` on.

use heddle_base::Instant;
use heddle_ib::cm::{Answered, Message};
use heddle_types::{DisconnectReason, Qpn, ib::RejReason};

use super::Turn;
use crate::ib::link::IbLink;
use crate::ib::state::{Effects, IbState, Input, Wait};
use crate::ib::{Keepalive, MAX_PUT_OFF};

pub(super) fn established(
    qpn: Qpn,
    mut keepalive: Option<Box<Keepalive>>,
    input: Input<'_>,
    turn: Turn<'_>,
) -> IbState {
    let Turn { link, now, fx } = turn;
    // Any message proves that the peer exists.
    let was_asked = match &mut keepalive {
        Some(k) if matches!(input, Input::Message(..)) => k.heard(link.keepalive, now),
        _ => false,
    };
    match input {
        // Our RTU is lost, or the peer probes whether we exist.
        Input::Message(tid, Message::Rep(rep))
            if tid == link.tid && link.listener.is_none() && rep.local_qpn == link.remote_qpn =>
        {
            fx.ib.rx_duplicates += 1;
            fx.send(tid, link.rtu());
        }
        // The RTU answers our probe.
        Input::Message(_, Message::Rtu(_)) if was_asked => {}
        Input::Message(_, Message::Req(_) | Message::Rtu(_)) if link.listener.is_some() => {
            fx.ib.rx_duplicates += 1;
        }
        Input::Message(tid, Message::Dreq(dreq)) if dreq.remote_qpn == link.local_qpn => {
            fx.send(tid, link.drep());
            link.disconnected(qpn, DisconnectReason::Orderly, fx);
            return link.time_wait(None, now);
        }
        // None of our RTUs came, and the peer has given up.
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
        // The DREQ goes out once: the address is removed, so it cannot be sent again and its answer
        // cannot be received.
        Input::Withdrawn => {
            fx.send(link.dreq_tid, link.dreq());
            link.disconnected(qpn, DisconnectReason::Withdrawn, fx);
            return IbState::Gone;
        }
        Input::WorkerLost => {
            fx.cm.worker_lost += 1;
            link.disconnected(qpn, DisconnectReason::WorkerLost, fx);
            return IbState::Gone;
        }
        Input::Message(..) | Input::Accept(_) | Input::Reject(_) | Input::Refuse(_) => {
            fx.ib.rx_unexpected += 1
        }
        Input::Timeout => {
            if let Some(k) = &mut keepalive
                && k.deadline().is_some_and(|due| due <= now)
                && !k.ask(link, now, fx)
            {
                return silent(qpn, link, now, fx);
            }
        }
        Input::MakeRoom => {}
    }
    IbState::Established { qpn, keepalive }
}

/// Ends the connection of a peer that has not answered any probe. If the peer exists after all, one
/// DREQ reports the end. More than one would not help, because the peer missed as many probes.
fn silent(qpn: Qpn, link: &IbLink, now: Instant, fx: &mut Effects) -> IbState {
    fx.ib.keepalive_timeouts += 1;
    fx.send(link.dreq_tid, link.dreq());
    link.disconnected(qpn, DisconnectReason::PeerSilent, fx);
    link.time_wait(None, now)
}

pub(super) fn dreq_sent(mut wait: Wait, qpn: Qpn, input: Input<'_>, turn: Turn<'_>) -> IbState {
    let Turn { link, now, fx } = turn;
    match input {
        Input::Message(tid, Message::Drep(_)) if tid == link.dreq_tid => {
            link.disconnected(qpn, DisconnectReason::Orderly, fx);
            link.time_wait(None, now)
        }
        // Both ends close at the same time.
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
        Input::Withdrawn => {
            link.disconnected(qpn, DisconnectReason::Withdrawn, fx);
            IbState::Gone
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
        | Input::Refuse(_)
        | Input::MakeRoom => IbState::DreqSent { wait, qpn },
    }
}

pub(super) fn time_wait(
    last: Option<Message>,
    until: Instant,
    input: Input<'_>,
    turn: Turn<'_>,
) -> IbState {
    let Turn { link, now, fx } = turn;
    match input {
        Input::Timeout if now >= until => return IbState::Gone,
        Input::WorkerLost | Input::Withdrawn => return IbState::Gone,
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
        // The peer holds a connection for established that we have refused after our REP. The DREQ
        // is a message that an established peer understands.
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
        | Input::MakeRoom
        | Input::AppGone => {}
    }
    IbState::TimeWait { last, until }
}
