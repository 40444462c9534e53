//! The end of a connection whose worker has ended.

use super::{ConnInfo, Effects, State};
use heddle_types::{ConnectFailure, DisconnectReason, QpFate};

impl State {
    /// Ends the connection of a worker that has ended, and with it TCP and the worker's side of the
    /// queue pair: from here on the manager sends the worker no order, and the worker answers none.
    /// `touched`: the worker had taken the order to enter FPDU mode, if there was such an order.
    pub(super) fn worker_lost(self, touched: bool, link: &ConnInfo, fx: &mut Effects) -> State {
        let fate = |qpn| if touched { QpFate::Spent(qpn) } else { QpFate::Free(qpn) };
        let lost = ConnectFailure::WorkerLost;
        match self {
            State::Opening { qp, .. }
            | State::Connecting { qp, .. }
            | State::AwaitReply { qp, .. } => link.tell_failure(lost, QpFate::Free(qp.qpn), fx),
            // The application has not heard of the connection and will not.
            State::AwaitRequest { .. } => fx.counters.failed += 1,
            State::AwaitAnswer { .. } => link.tell_failure(lost, QpFate::NoQp, fx),
            State::Entering { qpn, .. } => link.tell_failure(lost, fate(qpn), fx),
            // The application hears of the error that came first.
            State::Undoing { qpn, error, .. } => link.tell_failure(error, fate(qpn), fx),
            State::AwaitFpdu { qpn } | State::Running { qpn } => {
                link.tell_end(qpn, DisconnectReason::WorkerLost, None, fx);
            }
            State::Ending { qpn, why, terminate } => {
                let why = why.unwrap_or(DisconnectReason::WorkerLost);
                link.tell_end(qpn, why, terminate, fx);
            }
            // The manager has dealt with the end already; the lost worker adds nothing.
            State::Closing { .. } | State::Unopened | State::Gone => return State::Gone,
        }
        fx.counters.worker_lost += 1;
        State::Gone
    }
}
