//! From the start-up into FPDU mode, and ends that several states share.

use core::net::SocketAddr;

use heddle_iwarp::QpConfig;
use heddle_rnic::{FpduMode, Order};
use heddle_types::{
    CloseReason, ConnectFailure, DisconnectReason, Event, QpFate, QpSpec, Qpn, TerminatePayload,
    mpa::RtrConfig,
};

use super::{ConnInfo, Effect, Effects, State};
use crate::dialogue::{Agreement, Ask};

/// The way in which a connection ends that is not established.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// At once. A peer that breaks a rule or stays silent must not hold a place for as long as it
    /// leaves our FIN unanswered, nor leave us in TIME-WAIT.
    Reset,
    /// With a FIN, so that our last bytes (a Reply, a Terminate) arrive.
    InOrder,
}

impl ConnInfo {
    pub(super) fn send(&self, bytes: Vec<u8>, fx: &mut Effects) {
        if let Some(conn) = self.conn {
            fx.order(Order::SendStartup { conn, bytes });
        }
    }

    pub(super) fn abort(&self, fx: &mut Effects) {
        if let Some(conn) = self.conn {
            fx.order(Order::Abort { conn });
        }
    }

    pub(super) fn disconnect(&self, fx: &mut Effects) {
        if let Some(conn) = self.conn {
            fx.order(Order::Disconnect { conn });
        }
    }

    /// Releases the connection and its deadline, after the worker has reported the close.
    pub(super) fn release(&self, fx: &mut Effects) -> State {
        if let Some(conn) = self.conn {
            fx.order(Order::Release { conn });
        }
        State::Gone
    }

    /// Closes a connection that is not established and has no queue pair at the worker.
    pub(super) fn close(&self, end: End, fx: &mut Effects) -> State {
        match end {
            End::Reset => {
                fx.deadline(None);
                self.abort(fx);
                State::Closing { in_order: false }
            }
            End::InOrder => {
                fx.deadline(Some(self.close_timeout.get()));
                self.disconnect(fx);
                State::Closing { in_order: true }
            }
        }
    }

    /// Reports to the application that the connection was not established.
    pub(super) fn tell_failure(&self, error: ConnectFailure, qp: QpFate, fx: &mut Effects) {
        fx.counters.failed += 1;
        match qp {
            QpFate::NoQp => {}
            QpFate::Free(qpn) => fx.list.push(Effect::Free(qpn)),
            QpFate::Spent(qpn) => fx.list.push(Effect::Spend(qpn)),
        }
        fx.tell(Event::ConnectError { id: self.id, error, qp });
    }

    /// Asks again, on another connection.
    pub(super) fn redial(
        &mut self,
        ask: Box<dyn Ask>,
        qp: QpSpec,
        closed: bool,
        fx: &mut Effects,
    ) -> State {
        fx.counters.fallbacks += 1;
        if let Some(old) = self.conn.take() {
            fx.list.push(Effect::Redial { old, closed });
        }
        // The same address is kept; the port will be another.
        if let Some(local) = &mut self.local {
            *local = SocketAddr::new(local.get().ip(), 0).into();
        }
        self.received = 0;
        State::Opening { ask, qp }
    }

    /// Ends a start-up that the application knows of, with a reason.
    pub(super) fn fail(
        &self,
        error: ConnectFailure,
        qp: QpFate,
        end: End,
        fx: &mut Effects,
    ) -> State {
        let state = self.close(end, fx);
        self.tell_failure(error, qp, fx);
        state
    }

    /// Orders the worker to run the queue pair, after the dialogue has succeeded.
    pub(super) fn enter(
        &self,
        qp: &QpSpec,
        agreement: Agreement,
        reply: Vec<u8>,
        fx: &mut Effects,
    ) -> State {
        fx.deadline(None);
        let config = QpConfig {
            qpn: qp.qpn,
            pd: qp.pd,
            sq_depth: qp.sq_depth,
            rq_depth: qp.rq_depth,
            ird: agreement.agreed.ird,
            ord: agreement.agreed.ord,
            crc: agreement.agreed.crc,
            send_markers: agreement.agreed.send_markers,
            recv_markers: agreement.agreed.recv_markers,
            role: agreement.role,
            rtr: agreement.agreed.rtr,
            ..QpConfig::default()
        };
        if let Some(conn) = self.conn {
            let startup_len = usize::try_from(self.received).unwrap_or(usize::MAX);
            let mode = FpduMode { startup_len, reply, qp: config };
            fx.order(Order::EnterFpduMode { conn, mode: Box::new(mode) });
        }
        State::Entering { qpn: qp.qpn, agreement: Box::new(agreement), ends: false }
    }

    /// Reports the connection as established, once the worker runs the queue pair.
    pub(super) fn established(
        &self,
        qpn: Qpn,
        agreement: Agreement,
        ends: bool,
        fx: &mut Effects,
    ) -> State {
        fx.counters.established += 1;
        fx.tell(Event::Established {
            id: self.id,
            qpn,
            worker: self.worker,
            private_data: agreement.private_data,
            agreed: agreement.agreed,
            local: self.local(),
            remote: self.remote(),
        });
        if ends {
            // The worker already has the order to close.
            fx.deadline(Some(self.close_limit.get()));
            return State::Ending { qpn, why: None, terminate: None };
        }
        let first_fpdu = match agreement.agreed.rtr {
            RtrConfig::Expect(_) => self.passive.map(|p| p.rtr_timeout),
            _ => self.passive.and_then(|p| p.first_fpdu_timeout),
        };
        match first_fpdu {
            Some(after) => {
                fx.deadline(Some(after.get()));
                State::AwaitFpdu { qpn }
            }
            None => State::Running { qpn },
        }
    }

    /// Releases an established connection that is over, and reports its end.
    pub(super) fn disconnected(
        &self,
        qpn: Qpn,
        why: Option<DisconnectReason>,
        terminate: Option<Box<TerminatePayload>>,
        reason: CloseReason,
        fx: &mut Effects,
    ) -> State {
        let state = self.release(fx);
        let reason = why.unwrap_or(match reason {
            CloseReason::Orderly => DisconnectReason::Orderly,
            other => DisconnectReason::Tcp(other),
        });
        self.tell_end(qpn, reason, terminate, fx);
        state
    }

    /// Spends the queue pair and reports the end to the application.
    pub(super) fn tell_end(
        &self,
        qpn: Qpn,
        reason: DisconnectReason,
        terminate: Option<Box<TerminatePayload>>,
        fx: &mut Effects,
    ) {
        fx.list.push(Effect::Spend(qpn));
        fx.tell(Event::Disconnected { id: self.id, qpn, reason, terminate });
    }

    /// Closes an established connection in order, within a time limit. The limit is longer while
    /// data still has to go, because TCP watches that the data moves; it is shorter after an error,
    /// when a peer may send whatever it likes.
    pub(super) fn end(&self, qpn: Qpn, why: Option<DisconnectReason>, fx: &mut Effects) -> State {
        let within = if why.is_some() { self.close_timeout } else { self.close_limit };
        fx.deadline(Some(within.get()));
        State::Ending { qpn, why, terminate: None }
    }
}
