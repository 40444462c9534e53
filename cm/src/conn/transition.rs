//! The transition function, and the transitions of the states from `Entering` on; `startup` has
//! those of the states before.

use core::time::Duration;

use heddle_iwarp::{QpEvent, Role, Side};
use heddle_types::{
    CloseReason, ConnectFailure, DisconnectReason, QpFate, Qpn, RequestError, TerminatePayload,
};

use super::enter::End;
use super::startup::{await_answer, await_reply, await_request, connecting, opening, unopened};
use super::{ConnInfo, Effects, Input, State};

impl State {
    /// Returns the state after `input`. An input without an arm in its state changes nothing:
    /// `conn/tests/matrix.txt` shows every state with every input.
    pub(crate) fn step(self, link: &mut ConnInfo, input: Input<'_>, fx: &mut Effects) -> State {
        if let Input::Bytes(bytes) = &input {
            link.received =
                link.received.saturating_add(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
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

/// Denies an answer of the application to a connection that does not wait for one.
pub(super) fn not_asked(input: &Input<'_>, fx: &mut Effects) {
    if let Input::Accept(_) | Input::Reject(..) = input {
        fx.deny(RequestError::NotAsked);
    }
}

/// Denies a request about a connection that the application does not know, or whose end it has
/// already received.
pub(super) fn unknown(input: &Input<'_>, fx: &mut Effects) {
    if let Input::Accept(_) | Input::Reject(..) | Input::Disconnect = input {
        fx.deny(RequestError::NoConnection);
    }
}

/// Handles an input in `Entering`, which has no deadline, like `Undoing`. The worker owes an
/// answer, as it does to every order to connect. Until the answer comes, or the worker is known to
/// have ended, the manager cannot tell whether the queue pair has been touched.
fn entering(state: State, link: &mut ConnInfo, input: Input<'_>, fx: &mut Effects) -> State {
    let State::Entering { qpn, agreement, ends } = state else { return state };
    match input {
        Input::Entered(Ok(())) => link.established(qpn, *agreement, ends, fx),
        Input::Entered(Err(e)) => {
            // The peer gets the dialogue's own message (RFC 6581 section 9.3).
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
            State::Entering { qpn, agreement, ends: true }
        }
        // The peer has our Reply by now, or will have it soon. The peer then holds the connection
        // for established, and a reset would destroy the data that it has sent.
        Input::Disconnect if agreement.role == Role::Responder => {
            link.disconnect(fx);
            State::Entering { qpn, agreement, ends: true }
        }
        Input::Disconnect | Input::AppGone => {
            fx.counters.cancelled += 1;
            link.abort(fx);
            State::Undoing { qpn, error: ConnectFailure::Cancelled, closed: false }
        }
        other => {
            not_asked(&other, fx);
            State::Entering { qpn, agreement, ends }
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
            // The worker closes once our Terminate is out, but the peer may ignore the close, so
            // the close has a deadline.
            let why = terminated(by, code, fx);
            link.end(qpn, Some(why), fx)
        }
        Input::Qp(QpEvent::Failed { code }) => {
            link.end(qpn, Some(DisconnectReason::LocalTerminate(code)), fx)
        }
        Input::Qp(QpEvent::Truncated(cut)) => {
            // The worker closes: there is nothing left to send.
            fx.counters.truncated += 1;
            link.end(qpn, Some(DisconnectReason::Truncated(cut)), fx)
        }
        // iWARP has no half-open streams: the peer's end of stream is ours too (RFC 5040
        // section 6.2).
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

fn terminated(by: Side, code: heddle_types::TermCode, fx: &mut Effects) -> DisconnectReason {
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

/// Time in which our Terminate should reach the peer, once the application wants the end.
const LAST_WORD: Duration = Duration::from_secs(1);

fn ending(
    qpn: Qpn,
    why: Option<DisconnectReason>,
    terminate: Option<Box<TerminatePayload>>,
    link: &mut ConnInfo,
    input: Input<'_>,
    fx: &mut Effects,
) -> State {
    let (mut why, mut terminate) = (why, terminate);
    match input {
        // The first error is the reported reason, and the deadline of the close stays.
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
        // The application wants the end. The peer has said its last word, and may leave TCP open.
        Input::Disconnect if matches!(why, Some(DisconnectReason::RemoteTerminate(_))) => {
            link.abort(fx);
        }
        // A reset could overtake our Terminate, so the Terminate gets a moment.
        Input::Disconnect if matches!(why, Some(DisconnectReason::LocalTerminate(_))) => {
            fx.deadline(Some(LAST_WORD));
        }
        Input::Timeout => {
            fx.counters.close_timeouts += 1;
            link.abort(fx);
        }
        Input::AppGone => {
            fx.deadline(None);
            link.abort(fx);
        }
        // An earlier event has already reported that this Terminate ended the stream.
        Input::PeerTerminate(headers) => terminate = Some(headers),
        Input::Closed(reason) => {
            // TCP watches that a close makes progress, and resets the connection if not.
            let stalled = matches!(reason, CloseReason::TimedOut | CloseReason::WindowShut);
            fx.counters.close_timeouts += u64::from(stalled);
            return link.disconnected(qpn, why, terminate, reason, fx);
        }
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
