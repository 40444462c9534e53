//! Messages of a peer of InfiniBand's connection manager, for tests of other crates.

use core::net::IpAddr;

use crate::cm::{Dreq, Mad, Message, Path, Req, Rtu, Transport};
use crate::ip_cm::{Header, Service};
use crate::roce::UdRepr;
use crate::{CommId, Psn, Qpn, TimeCode};

/// The port of a peer's application in its REQs.
pub const PORT: u16 = 5000;

/// The UDP source port of a peer's datagrams.
const UDP_PORT: u16 = 0xc000;

/// A peer, and the side that it sends to.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Address of the peer.
    pub addr: IpAddr,
    /// Address of the other side.
    pub to: IpAddr,
}

impl Peer {
    /// Makes a valid request for a connection called `name` to a service at TCP's port `service`.
    /// `time` is the longest time that an answer may take, and that this peer takes for its own
    /// answers.
    pub fn req(&self, service: u16, name: CommId, time: TimeCode) -> Req {
        let Peer { addr: src, to: dst } = *self;
        let header = Header { src, src_port: PORT, dst };
        Req {
            local_comm_id: name,
            vendor_id: 0,
            service_id: Service::tcp(service).id(),
            local_ca_guid: 1,
            local_q_key: 0,
            local_qpn: Qpn::new(name.0 & 0xff_ffff),
            responder_resources: 2,
            local_eecn: 0,
            initiator_depth: 2,
            remote_eecn: 0,
            remote_cm_response_timeout: time,
            transport: Transport::RC,
            flow_control: true,
            starting_psn: Psn::new(0),
            local_cm_response_timeout: time,
            retry_count: 7,
            p_key: 0xffff,
            path_mtu: 3,
            rdc_exists: false,
            rnr_retry_count: 7,
            max_cm_retries: 7,
            srq: false,
            extended_transport: 0,
            primary: Path { local_gid: src.into(), remote_gid: dst.into(), ..Path::default() },
            alternate: Path::default(),
            private_data: header.emit(b"").expect("addresses of one version"),
        }
    }

    /// Makes the packet with a message of this peer.
    pub fn packet(&self, tid: u64, message: Message) -> Vec<u8> {
        let mad = Mad::new(tid, message).emit();
        UdRepr::gsi(self.addr, self.to, UDP_PORT).emit(&mad).expect("addresses of one version")
    }
}

/// Makes an RTU ("Your REP has come") about the connection that the sender calls `ours` and the
/// receiver `theirs`.
pub fn rtu(ours: CommId, theirs: CommId) -> Message {
    let (local_comm_id, remote_comm_id) = (ours, theirs);
    Message::Rtu(Box::new(Rtu { local_comm_id, remote_comm_id, private_data: [0; 224] }))
}

/// Makes a DREQ, which ends that connection. `remote_qpn` is the other side's queue pair.
pub fn dreq(ours: CommId, theirs: CommId, remote_qpn: Qpn) -> Message {
    let (local_comm_id, remote_comm_id) = (ours, theirs);
    Message::Dreq(Box::new(Dreq {
        local_comm_id,
        remote_comm_id,
        remote_qpn,
        private_data: [0; 220],
    }))
}
