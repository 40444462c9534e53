//! The transition function.

use heddle_iwarp::rdmap::Terminate;
use heddle_iwarp::{QpEvent, Qpn, Role, Side};
use heddle_rnic::CloseReason;

use super::enter::End;
use super::{ConnInfo, Effects, Input, State};
use crate::dialogue::{Answer, AnswerStep, Ask, AskStep};
use crate::event::{Awaited, ConnectFailure, DisconnectReason, Event, QpFate, Refusal};
use crate::params::QpSpec;
use crate::request::RequestError;

impl State {
    /// What `input` makes of the connection. What a state has no arm for changes nothing there:
    /// `conn/tests/matrix.txt` shows every state with every input.
    pub(crate) fn step(self, link: &mut ConnInfo, input: Input<'_>, fx: &mut Effects) -> State {
        if let Input::Bytes(bytes) = &input {
            link.received = link.received.saturating_add(bytes.len());
        }
        if let Input::WorkerLost { touched } = input {
            return self.worker_lost(touched, link, fx);
        }
        match self {
            State::Opening { ask, qp } => opening(ask, qp, link, input, fx),
            State::Connecting { ask, qp } => connecting(ask, qp, link, input, fx),
            State::AwaitReply { ask, qp } => await_reply(ask, qp, link, input, fx),
            State::AwaitRequest { answer } => await_request(answer, link, input, fx),
            State::AwaitAnswer { answer } => await_answer(answer, link, input, fx),
            State::Entering { .. } => entering(self, link, input, fx),
            State::Undoing { qpn, error, closed } => undoing(qpn, error, closed, link, input, fx),
            State::AwaitFpdu { .. } | State::Running { .. } => running(self, link, input, fx),
            State::Ending { qpn, why, terminate } => ending(qpn, why, terminate, link, input, fx),
            State::Closing { in_order } => closing(in_order, link, input, fx),
            State::Unopened => unopened(link, input, fx),
            State::Gone => State::Gone,
        }
    }
}

/// What an application asks of a connection that does not wait for its answer.
fn not_asked(input: &Input<'_>, fx: &mut Effects) {
    if let Input::Accept(_) | Input::Reject(..) = input {
        fx.deny(RequestError::NotAsked);
    }
}

/// What an application asks of a connection that it does not know, or whose end it has been told.
fn unknown(input: &Input<'_>, fx: &mut Effects) {
    if let Input::Accept(_) | Input::Reject(..) | Input::Disconnect = input {
        fx.deny(RequestError::NoConnection);
    }
}

fn opening(
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
    // The connection has no name yet: it is reset when the worker says which it is.
    fx.deadline(None);
    link.tell_failure(error, QpFate::Free(qp.qpn), fx);
    State::Unopened
}

/// What ends every start-up that has a TCP connection and is known to the application.
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

fn connecting(
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

fn await_reply(
    mut ask: Box<dyn Ask>,
    qp: QpSpec,
    link: &mut ConnInfo,
    input: Input<'_>,
    fx: &mut Effects,
) -> State {
    let free = QpFate::Free(qp.qpn);
    // A responder that does not know the revision closes without a word (RFC 6581 section 10).
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

/// The application has not heard of it and will not.
fn await_request(
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

fn await_answer(
    mut answer: Box<dyn Answer>,
    link: &mut ConnInfo,
    input: Input<'_>,
    fx: &mut Effects,
) -> State {
    if let Some(end) = startup_ends(Awaited::Application, QpFate::NoQp, link, &input, fx) {
        return end;
    }
    match input {
        // A peer sends nothing behind its Request before it has the Reply, so the Request was longer
        // than it said (RFC 5044 section 7.1.1), whether that came in one segment or not.
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
        _ => {}
    }
    State::AwaitAnswer { answer }
}

/// There is no deadline here and none in `Undoing`: the worker owes an answer, as it does to every
/// order to connect, and until it comes, or the worker is known to have ended, nobody can say whether
/// the queue pair has been touched.
fn entering(state: State, link: &mut ConnInfo, input: Input<'_>, fx: &mut Effects) -> State {
    let State::Entering { qpn, agreement, peer_closed } = state else { return state };
    match input {
        Input::Entered(Ok(())) => link.established(qpn, *agreement, peer_closed, fx),
        Input::Entered(Err(e)) => {
            // The peer is told in the dialogue's own words (RFC 6581 section 9.3).
            let end = match agreement.last_word {
                Some(bytes) => {
                    link.send(bytes, fx);
                    match agreement.role {
                        Role::Initiator => fx.counters.terminates_sent += 1,
                        Role::Responder => fx.counters.rejects_sent += 1,
                    }
                    End::InOrder
                }
                None => End::Reset,
            };
            link.fail(ConnectFailure::Worker(e), QpFate::Free(qpn), end, fx)
        }
        Input::Closed(reason) => {
            State::Undoing { qpn, error: ConnectFailure::Tcp(reason), closed: true }
        }
        Input::PeerClosed => {
            link.disconnect(fx);
            State::Entering { qpn, agreement, peer_closed: true }
        }
        Input::Disconnect | Input::AppGone => {
            fx.counters.cancelled += 1;
            link.abort(fx);
            State::Undoing { qpn, error: ConnectFailure::Cancelled, closed: false }
        }
        other => {
            not_asked(&other, fx);
            State::Entering { qpn, agreement, peer_closed }
        }
    }
}

fn undoing(
    qpn: Qpn,
    error: ConnectFailure,
    closed: bool,
    link: &mut ConnInfo,
    input: Input<'_>,
    fx: &mut Effects,
) -> State {
    match input {
        Input::Entered(result) => {
            let fate = if result.is_ok() { QpFate::Spent(qpn) } else { QpFate::Free(qpn) };
            let state = if closed { link.release(fx) } else { State::Closing { in_order: false } };
            link.tell_failure(error, fate, fx);
            state
        }
        Input::Closed(_) => State::Undoing { qpn, error, closed: true },
        other => {
            not_asked(&other, fx);
            State::Undoing { qpn, error, closed }
        }
    }
}

fn running(state: State, link: &mut ConnInfo, input: Input<'_>, fx: &mut Effects) -> State {
    let (State::AwaitFpdu { qpn } | State::Running { qpn }) = state else { return state };
    let waits = matches!(state, State::AwaitFpdu { .. });
    match input {
        Input::Qp(QpEvent::FirstFpdu) if waits => {
            fx.deadline(None);
            State::Running { qpn }
        }
        Input::Timeout if waits => {
            fx.counters.first_fpdu_timeouts += 1;
            link.abort(fx);
            State::Ending { qpn, why: Some(DisconnectReason::NoFirstFpdu), terminate: None }
        }
        Input::Qp(QpEvent::Terminated { by, code }) => {
            // The worker closes when a Terminate of ours is out; the peer may not care.
            let why = terminated(by, code, fx);
            link.end(qpn, Some(why), fx)
        }
        Input::Qp(QpEvent::Failed { code }) => {
            link.end(qpn, Some(DisconnectReason::LocalTerminate(code)), fx)
        }
        Input::Qp(QpEvent::Truncated(cut)) => {
            // The worker closes: there is nothing left to say.
            fx.counters.truncated += 1;
            link.end(qpn, Some(DisconnectReason::Truncated(cut)), fx)
        }
        // iWARP has no half-open streams: the peer's end is ours too (RFC 5040 section 6.2).
        Input::Disconnect | Input::PeerClosed => {
            link.disconnect(fx);
            link.end(qpn, None, fx)
        }
        Input::Closed(reason) => link.disconnected(qpn, None, None, reason, fx),
        Input::AppGone => {
            fx.deadline(None);
            link.abort(fx);
            State::Ending { qpn, why: None, terminate: None }
        }
        other => {
            not_asked(&other, fx);
            state
        }
    }
}

fn terminated(by: Side, code: heddle_iwarp::rdmap::TermCode, fx: &mut Effects) -> DisconnectReason {
    match by {
        Side::Local => {
            fx.counters.terminates_sent += 1;
            DisconnectReason::LocalTerminate(code)
        }
        Side::Remote => {
            fx.counters.terminates_received += 1;
            DisconnectReason::RemoteTerminate(code)
        }
    }
}

fn ending(
    qpn: Qpn,
    why: Option<DisconnectReason>,
    terminate: Option<Box<Terminate>>,
    link: &mut ConnInfo,
    input: Input<'_>,
    fx: &mut Effects,
) -> State {
    let (mut why, mut terminate) = (why, terminate);
    match input {
        // What came first is the reason, and the time for the close is not made longer.
        Input::Qp(QpEvent::Terminated { by, code }) => {
            let terminated = terminated(by, code, fx);
            why.get_or_insert(terminated);
        }
        Input::Qp(QpEvent::Failed { code }) => {
            why.get_or_insert(DisconnectReason::LocalTerminate(code));
        }
        Input::Qp(QpEvent::Truncated(cut)) => {
            fx.counters.truncated += 1;
            why.get_or_insert(DisconnectReason::Truncated(cut));
        }
        Input::PeerClosed => link.disconnect(fx),
        Input::Timeout => {
            fx.counters.close_timeouts += 1;
            link.abort(fx);
        }
        Input::AppGone => {
            fx.deadline(None);
            link.abort(fx);
        }
        // That the stream has ended by it was said before.
        Input::PeerTerminate(headers) => terminate = Some(headers),
        Input::Closed(reason) => return link.disconnected(qpn, why, terminate, reason, fx),
        other => not_asked(&other, fx),
    }
    State::Ending { qpn, why, terminate }
}

fn closing(in_order: bool, link: &mut ConnInfo, input: Input<'_>, fx: &mut Effects) -> State {
    match input {
        Input::Closed(_) => return link.release(fx),
        Input::Timeout if in_order => {
            fx.counters.close_timeouts += 1;
            return link.close(End::Reset, fx);
        }
        Input::Evict(_) if in_order => return link.close(End::Reset, fx),
        other => unknown(&other, fx),
    }
    State::Closing { in_order }
}

fn unopened(link: &mut ConnInfo, input: Input<'_>, fx: &mut Effects) -> State {
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
