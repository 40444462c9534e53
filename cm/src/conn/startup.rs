//! The transitions of the states before the worker has the order to run the queue pair.

use heddle_types::{Awaited, CloseReason, ConnectFailure, Event, QpFate, QpSpec, Transport};

use super::enter::End;
use super::transition::{not_asked, unknown};
use super::{ConnInfo, Effects, Input, State};
use crate::dialogue::{Answer, AnswerStep, Ask, AskStep};
use crate::notice::Refusal;

pub(super) fn opening(
    ask: Box<dyn Ask>,
    qp: QpSpec,
    link: &mut ConnInfo,
    input: Input<'_>,
    fx: &mut Effects,
) -> State {
    let error = match input {
        Input::Opened(Ok(conn)) => {
            link.conn = Some(conn);
            return State::Connecting { ask, qp };
        }
        Input::Opened(Err(e)) => {
            link.tell_failure(ConnectFailure::Open(e), QpFate::Free(qp.qpn), fx);
            return State::Gone;
        }
        Input::Timeout => {
            fx.counters.startup_timeouts += 1;
            ConnectFailure::TimedOut(Awaited::Tcp)
        }
        Input::Disconnect | Input::AppGone => {
            fx.counters.cancelled += 1;
            ConnectFailure::Cancelled
        }
        other => {
            not_asked(&other, fx);
            return State::Opening { ask, qp };
        }
    };
    // The connection has no name yet. The manager resets it when the worker reports the name.
    fx.deadline(None);
    link.tell_failure(error, QpFate::Free(qp.qpn), fx);
    State::Unopened
}

/// Handles the inputs that end any start-up that has a TCP connection and is known to the
/// application.
fn startup_ends(
    awaited: Awaited,
    qp: QpFate,
    link: &ConnInfo,
    input: &Input<'_>,
    fx: &mut Effects,
) -> Option<State> {
    Some(match *input {
        Input::Closed(reason) => {
            let state = link.release(fx);
            link.tell_failure(ConnectFailure::Tcp(reason), qp, fx);
            state
        }
        Input::PeerClosed => link.fail(ConnectFailure::PeerClosed, qp, End::InOrder, fx),
        Input::OrderRefused(e) => link.fail(ConnectFailure::Worker(e), qp, End::Reset, fx),
        Input::Timeout => {
            fx.counters.startup_timeouts += 1;
            link.fail(ConnectFailure::TimedOut(awaited), qp, End::Reset, fx)
        }
        Input::Disconnect | Input::AppGone => {
            fx.counters.cancelled += 1;
            link.fail(ConnectFailure::Cancelled, qp, End::Reset, fx)
        }
        _ => return None,
    })
}

pub(super) fn connecting(
    ask: Box<dyn Ask>,
    qp: QpSpec,
    link: &mut ConnInfo,
    input: Input<'_>,
    fx: &mut Effects,
) -> State {
    if let Some(end) = startup_ends(Awaited::Tcp, QpFate::Free(qp.qpn), link, &input, fx) {
        return end;
    }
    if let Input::Connected(local) = input {
        link.local = Some(local.into());
        fx.counters.requests_sent += 1;
        link.send(ask.request(), fx);
        return State::AwaitReply { ask, qp };
    }
    not_asked(&input, fx);
    State::Connecting { ask, qp }
}

pub(super) fn await_reply(
    mut ask: Box<dyn Ask>,
    qp: QpSpec,
    link: &mut ConnInfo,
    input: Input<'_>,
    fx: &mut Effects,
) -> State {
    let free = QpFate::Free(qp.qpn);
    // A responder that does not know the revision closes without an answer (RFC 6581 section 10).
    let silent_end = match input {
        Input::PeerClosed => Some(false),
        Input::Closed(CloseReason::Reset | CloseReason::Orderly) => Some(true),
        _ => None,
    };
    if let Some(closed) = silent_end
        && link.received == 0
        && let Some(other) = ask.fall_back()
    {
        return link.redial(other, qp, closed, fx);
    }
    if let Some(end) = startup_ends(Awaited::Reply, free, link, &input, fx) {
        return end;
    }
    let Input::Bytes(bytes) = input else {
        not_asked(&input, fx);
        return State::AwaitReply { ask, qp };
    };
    match ask.handle_bytes(bytes) {
        AskStep::NeedMore => State::AwaitReply { ask, qp },
        AskStep::Connected(agreement) => link.enter(&qp, agreement, Vec::new(), fx),
        AskStep::FallBack => match ask.fall_back() {
            Some(other) => link.redial(other, qp, false, fx),
            None => State::AwaitReply { ask, qp },
        },
        AskStep::Rejected { private_data, peer } => {
            fx.counters.rejects_received += 1;
            let state = link.close(End::InOrder, fx);
            fx.list.push(super::Effect::Free(qp.qpn));
            fx.tell(Event::Rejected { id: link.id, qpn: qp.qpn, private_data, peer });
            state
        }
        AskStep::Failed { error, last_word } => {
            fx.counters.startup_errors += 1;
            let end = match last_word {
                Some(bytes) => {
                    fx.counters.terminates_sent += 1;
                    link.send(bytes, fx);
                    End::InOrder
                }
                None => End::Reset,
            };
            link.fail(ConnectFailure::Startup(error), free, end, fx)
        }
    }
}

/// Handles an input while the peer's request is awaited. The application has not heard of the
/// connection; if the start-up fails, it never does.
pub(super) fn await_request(
    mut answer: Box<dyn Answer>,
    link: &mut ConnInfo,
    input: Input<'_>,
    fx: &mut Effects,
) -> State {
    let refusal = match input {
        Input::Bytes(bytes) => match answer.handle_bytes(bytes) {
            AnswerStep::NeedMore => return State::AwaitRequest { answer },
            AnswerStep::Request { private_data, peer, peer_to_peer } => {
                let Some(passive) = link.passive else { return link.close(End::Reset, fx) };
                fx.counters.requests_received += 1;
                fx.deadline(Some(passive.accept_timeout.get()));
                fx.tell(Event::ConnectRequest {
                    transport: Transport::Iwarp,
                    id: link.id,
                    listener: passive.listener,
                    worker: link.worker,
                    local: link.local(),
                    remote: link.remote(),
                    private_data,
                    peer,
                    peer_to_peer,
                });
                return State::AwaitAnswer { answer };
            }
            AnswerStep::Failed(error) => {
                fx.counters.startup_errors += 1;
                Refusal::Startup(error)
            }
        },
        Input::Timeout => {
            fx.counters.startup_timeouts += 1;
            Refusal::TimedOut
        }
        Input::Evict(why) => why,
        Input::AppGone => Refusal::NotListening,
        Input::PeerClosed => {
            fx.counters.failed += 1;
            return link.close(End::InOrder, fx);
        }
        Input::Closed(_) => {
            fx.counters.failed += 1;
            return link.release(fx);
        }
        other => {
            unknown(&other, fx);
            return State::AwaitRequest { answer };
        }
    };
    fx.counters.failed += 1;
    fx.list.push(super::Effect::Refused(refusal));
    link.close(End::Reset, fx)
}

pub(super) fn await_answer(
    mut answer: Box<dyn Answer>,
    link: &mut ConnInfo,
    input: Input<'_>,
    fx: &mut Effects,
) -> State {
    if let Some(end) = startup_ends(Awaited::Application, QpFate::NoQp, link, &input, fx) {
        return end;
    }
    match input {
        // A peer sends nothing after its Request until it has the Reply. So the Request was longer
        // than its header said (RFC 5044 section 7.1.1), whether the surplus came in the same
        // segment or not.
        Input::Bytes(bytes) => {
            if let AnswerStep::Failed(error) = answer.handle_bytes(bytes) {
                fx.counters.startup_errors += 1;
                let error = ConnectFailure::Startup(error);
                return link.fail(error, QpFate::NoQp, End::Reset, fx);
            }
        }
        Input::Accept(params) => match answer.accept(params) {
            Ok((reply, agreement)) => {
                fx.counters.accepts_sent += 1;
                return link.enter(&params.qp, agreement, reply, fx);
            }
            Err(e) => fx.deny(e.into()),
        },
        Input::Reject(private_data, needs_ord) => match answer.reject(private_data, needs_ord) {
            Ok(reply) => {
                fx.counters.rejects_sent += 1;
                link.send(reply, fx);
                return link.close(End::InOrder, fx);
            }
            Err(e) => fx.deny(e.into()),
        },
        Input::Evict(_) => {
            return link.fail(ConnectFailure::Displaced, QpFate::NoQp, End::Reset, fx);
        }
        _ => {}
    }
    State::AwaitAnswer { answer }
}

pub(super) fn unopened(link: &mut ConnInfo, input: Input<'_>, fx: &mut Effects) -> State {
    match input {
        Input::Opened(Ok(conn)) => {
            link.conn = Some(conn);
            link.close(End::Reset, fx)
        }
        Input::Opened(Err(_)) => State::Gone,
        other => {
            unknown(&other, fx);
            State::Unopened
        }
    }
}
