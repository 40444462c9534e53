//! The messages a connection sends.

use core::time::Duration;

use heddle_ib::cm::{
    Answered, Drep, Dreq, Failover, Message, Mra, Path, Rej, Rep, Req, Rtu, Transport,
};
use heddle_ib::ip_cm::{self, Header, Service};
use heddle_ib::roce::DEFAULT_P_KEY;
use heddle_ib::{CommId, Psn, Qpn as IbQpn, TimeCode};
use heddle_types::ib::RejReason;

use super::link::{Depths, IbLink};

/// Code of a path MTU of 1024 bytes, which any Ethernet carries with all headers.
const MTU_1024: u8 = 3;
/// The retry counts of the REQ and REP, for packets and for a receiver that is not ready. The
/// counts have no effect, because no transport runs.
const RETRIES: u8 = 7;

impl IbLink {
    fn peer_comm(&self) -> CommId {
        self.remote_comm.unwrap_or_default()
    }

    /// Returns the REQ; `None` when the private data are longer than 56 bytes, or the two addresses
    /// of different IP versions.
    pub(crate) fn req(&self, ours: Depths, response: TimeCode, private: &[u8]) -> Option<Message> {
        let (src, dst) = (self.local.ip(), self.remote.ip());
        let header = Header { src, src_port: self.local.port(), dst };
        let primary = Path {
            // LIDs have no meaning over RoCE; other implementations put all ones there too.
            local_lid: u16::MAX,
            remote_lid: u16::MAX,
            local_gid: src.into(),
            remote_gid: dst.into(),
            hop_limit: 64,
            ack_timeout: response,
            ..Path::default()
        };
        Some(Message::Req(Box::new(Req {
            local_comm_id: self.local_comm,
            vendor_id: 0,
            service_id: Service::tcp(self.remote.port()).id(),
            local_ca_guid: self.ca_guid,
            local_q_key: 0,
            local_qpn: self.local_qpn,
            responder_resources: ours.responder_resources,
            local_eecn: 0,
            initiator_depth: ours.initiator_depth,
            remote_eecn: 0,
            remote_cm_response_timeout: response,
            transport: Transport::RC,
            flow_control: true,
            starting_psn: Psn::new(self.local_psn),
            local_cm_response_timeout: response,
            retry_count: RETRIES,
            p_key: DEFAULT_P_KEY,
            path_mtu: MTU_1024,
            rdc_exists: false,
            rnr_retry_count: RETRIES,
            max_cm_retries: self.retries & 0xf,
            srq: false,
            extended_transport: 0,
            primary,
            alternate: Path::default(),
            private_data: header.emit(private)?,
        })))
    }

    /// Returns the REP; `None` when the private data are longer than 196 bytes.
    pub(crate) fn rep(&self, ours: Depths, private: &[u8]) -> Option<Message> {
        Some(Message::Rep(Box::new(Rep {
            local_comm_id: self.local_comm,
            remote_comm_id: self.peer_comm(),
            local_q_key: 0,
            local_qpn: self.local_qpn,
            vendor_id: 0,
            local_eecn: 0,
            starting_psn: Psn::new(self.local_psn),
            responder_resources: ours.responder_resources,
            initiator_depth: ours.initiator_depth,
            target_ack_delay: TimeCode::new(15),
            failover: Failover::UNSUPPORTED,
            flow_control: true,
            rnr_retry_count: RETRIES,
            srq: false,
            local_ca_guid: self.ca_guid,
            private_data: padded(private)?,
        })))
    }

    pub(crate) fn rtu(&self) -> Message {
        Message::Rtu(Box::new(Rtu {
            local_comm_id: self.local_comm,
            remote_comm_id: self.peer_comm(),
            private_data: [0; Rtu::PRIVATE_LEN],
        }))
    }

    /// Returns an MRA: the REQ has come, and its answer may take `longer`.
    pub(crate) fn mra(&self, longer: Duration) -> Message {
        Message::Mra(Box::new(Mra {
            local_comm_id: self.local_comm,
            remote_comm_id: self.peer_comm(),
            answered: Answered::REQ,
            service_timeout: TimeCode::at_least(longer),
            private_data: [0; Mra::PRIVATE_LEN],
        }))
    }

    /// Returns a REJ of the communication manager itself. A REJ for a time-out carries the GUID of
    /// our adapter, because we may send it before we know the peer's name of the connection.
    pub(crate) fn rej(&self, answered: Answered, reason: RejReason) -> Message {
        let mut rej = rej(self.local_comm, self.peer_comm(), answered, reason);
        if reason == RejReason::TIMEOUT {
            rej.ari[..8].copy_from_slice(&self.ca_guid.to_be_bytes());
            rej.ari_len = 8;
        }
        Message::Rej(Box::new(rej))
    }

    /// Returns the application's REJ; `None` when the private data are longer than 148 bytes.
    pub(crate) fn consumer_rej(&self, private: &[u8]) -> Option<Message> {
        let mut rej = rej(self.local_comm, self.peer_comm(), Answered::REQ, RejReason::CONSUMER);
        (rej.ari, rej.ari_len) = ip_cm::ulp_ari();
        rej.private_data = padded(private)?;
        Some(Message::Rej(Box::new(rej)))
    }

    pub(crate) fn dreq(&self) -> Message {
        Message::Dreq(Box::new(Dreq {
            local_comm_id: self.local_comm,
            remote_comm_id: self.peer_comm(),
            remote_qpn: self.remote_qpn,
            private_data: [0; Dreq::PRIVATE_LEN],
        }))
    }

    /// Returns a DREP. The manager sends a DREP for an unknown connection too, so that the peer can
    /// finish its close.
    pub(crate) fn drep(&self) -> Message {
        drep(self.local_comm, self.peer_comm())
    }
}

pub(crate) fn drep(local: CommId, remote: CommId) -> Message {
    Message::Drep(Box::new(Drep {
        local_comm_id: local,
        remote_comm_id: remote,
        private_data: [0; Drep::PRIVATE_LEN],
    }))
}

pub(crate) fn rej(local: CommId, remote: CommId, answered: Answered, reason: RejReason) -> Rej {
    Rej {
        local_comm_id: local,
        remote_comm_id: remote,
        answered,
        reason,
        ari_len: 0,
        ari: [0; Rej::ARI_LEN],
        private_data: [0; Rej::PRIVATE_LEN],
    }
}

fn padded<const N: usize>(private: &[u8]) -> Option<[u8; N]> {
    let mut out = [0; N];
    out.get_mut(..private.len())?.copy_from_slice(private);
    Some(out)
}

/// Returns the names that a message gives to its connection: its sender's and its receiver's.
/// `None` for a message that does not belong to a connection that both ends know.
pub(crate) fn names(message: &Message) -> Option<(CommId, CommId)> {
    Some(match message {
        Message::Mra(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Rej(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Rep(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Rtu(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Dreq(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Drep(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Lap(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Apr(m) => (m.local_comm_id, m.remote_comm_id),
        Message::Req(_)
        | Message::SidrReq(_)
        | Message::SidrRep(_)
        | Message::GetClassPortInfo
        | Message::ClassPortInfo(_) => return None,
    })
}

/// Makes a number for a queue pair that does not exist in any RNIC: neither of the two management
/// queue pairs, nor the multicast number.
pub(crate) fn qpn(random: u32) -> IbQpn {
    IbQpn::new(2 + random % 0xff_fff0)
}
