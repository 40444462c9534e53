//! Steps that several states share: establishing, failing and ending a connection.

use heddle_base::Instant;
use heddle_ib::cm::{Answered, Message};
use heddle_types::{
    Agreed, ConnectFailure, DisconnectReason, Event, QpFate, Qpn, Transport, ib::RejReason,
    mpa::RtrConfig,
};

use crate::ib::link::{Depths, IbLink};
use crate::ib::state::{Effect, Effects, IbState};
use crate::ib::{Keepalive, MIN_INTERVAL};

impl IbLink {
    pub(in crate::ib) fn agreed(&self, ours: Depths) -> Agreed {
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

    pub(super) fn establish(
        &self,
        qpn: Qpn,
        agreed: Agreed,
        private_data: Vec<u8>,
        keepalive: Option<Box<Keepalive>>,
        fx: &mut Effects,
    ) -> IbState {
        fx.cm.established += 1;
        let IbLink { id, worker, local, remote, .. } = *self;
        fx.tell(Event::Established { id, qpn, worker, private_data, agreed, local, remote });
        IbState::Established { qpn, keepalive }
    }

    /// Reports to the application that the connection was not established.
    pub(super) fn fail(&self, error: ConnectFailure, qp: QpFate, fx: &mut Effects) {
        fx.cm.failed += 1;
        if let QpFate::Free(qpn) = qp {
            fx.list.push(Effect::Free(qpn));
        }
        fx.tell(Event::ConnectError { id: self.id, error, qp });
    }

    /// Reports the end to the application.
    pub(super) fn disconnected(&self, qpn: Qpn, reason: DisconnectReason, fx: &mut Effects) {
        fx.list.push(Effect::Spend(qpn));
        fx.tell(Event::Disconnected { id: self.id, qpn, reason, terminate: None });
    }

    pub(super) fn lost(&self, qp: QpFate, fx: &mut Effects) -> IbState {
        fx.cm.worker_lost += 1;
        self.fail(ConnectFailure::WorkerLost, qp, fx);
        IbState::Gone
    }

    /// Fails a connection whose local address was removed, so that no message can be sent or
    /// received any more.
    pub(super) fn withdrawn(&self, qp: QpFate, fx: &mut Effects) -> IbState {
        self.fail(ConnectFailure::Withdrawn, qp, fx);
        IbState::Gone
    }

    /// Sends our REJ and returns the state after it.
    pub(super) fn refuse(
        &self,
        answered: Answered,
        reason: RejReason,
        now: Instant,
        fx: &mut Effects,
    ) -> IbState {
        self.last_word(self.rej(answered, reason), now, fx)
    }

    /// Sends the application's refusal, without private data.
    pub(super) fn consumer_refuses(&self, now: Instant, fx: &mut Effects) -> IbState {
        let plain = || self.rej(Answered::REQ, RejReason::CONSUMER);
        self.last_word(self.consumer_rej(&[]).unwrap_or_else(plain), now, fx)
    }

    pub(super) fn last_word(&self, rej: Message, now: Instant, fx: &mut Effects) -> IbState {
        fx.send(self.tid, rej.clone());
        self.time_wait(Some(rej), now)
    }

    pub(super) fn time_wait(&self, last: Option<Message>, now: Instant) -> IbState {
        IbState::TimeWait { last, until: now + self.time_wait.max(MIN_INTERVAL) }
    }
}
