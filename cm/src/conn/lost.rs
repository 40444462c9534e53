//! The end of a connection whose worker has ended.

use super::{ConnInfo, Effects, State};
use crate::event::{ConnectFailure, DisconnectReason, QpFate};

impl State {
    /// The worker is gone, and with it TCP and the queue pair's other end: nobody is owed an order or
    /// an answer, and nobody gives one. `touched`: the worker had taken the order to enter FPDU mode,
    /// if there was one.
    pub(super) fn worker_lost(self, touched: bool, link: &ConnInfo, fx: &mut Effects) -> State {
        let fate = |qpn| if touched { QpFate::Spent(qpn) } else { QpFate::Free(qpn) };
        let lost = ConnectFailure::WorkerLost;
        match self {
            State::Opening { qp, .. }
            | State::Connecting { qp, .. }
            | State::AwaitReply { qp, .. } => link.tell_failure(lost, QpFate::Free(qp.qpn), fx),
            // The application has not heard of it and will not.
            State::AwaitRequest { .. } => fx.counters.failed += 1,
            State::AwaitAnswer { .. } => link.tell_failure(lost, QpFate::NoQp, fx),
            State::Entering { qpn, .. } => link.tell_failure(lost, fate(qpn), fx),
            // What came first is the reason.
            State::Undoing { qpn, error, .. } => link.tell_failure(error, fate(qpn), fx),
            State::AwaitFpdu { qpn } | State::Running { qpn } => {
                link.tell_end(qpn, DisconnectReason::WorkerLost, None, fx);
            }
            State::Ending { qpn, why, terminate } => {
                let why = why.unwrap_or(DisconnectReason::WorkerLost);
                link.tell_end(qpn, why, terminate, fx);
            }
            // It is known to be over.
            State::Closing { .. } | State::Unopened | State::Gone => return State::Gone,
        }
        fx.counters.worker_lost += 1;
        State::Gone
    }
}
