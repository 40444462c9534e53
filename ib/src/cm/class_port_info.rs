use crate::bytes::{array, be16, be24, be32, put, put24};
use crate::gid::Gid;
use crate::mad::Data;
use crate::types::{Qpn, TimeCode};

/// The address to which a sender of requests, or of traps, of the class sends them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contact {
    /// GID of the port; zeros for the port that answers.
    pub gid: Gid,
    /// Traffic class 8, service level 4, flow label 20.
    pub class_sl_flow: u32,
    /// Local identifier of the port; without meaning over RoCE.
    pub lid: u16,
    /// P_Key of the partition.
    pub p_key: u16,
    /// Hop limit; only for traps.
    pub hop_limit: u8,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Q_Key of the queue pair.
    pub q_key: u32,
}

const CONTACT_LEN: usize = 32;

impl Contact {
    fn parse(b: &[u8; CONTACT_LEN]) -> Contact {
        Contact {
            gid: Gid(array(b, 0)),
            class_sl_flow: be32(b, 16),
            lid: be16(b, 20),
            p_key: be16(b, 22),
            hop_limit: b[24],
            qpn: Qpn::new(be24(b, 25)),
            q_key: be32(b, 28),
        }
    }

    fn emit(&self) -> [u8; CONTACT_LEN] {
        let mut b = [0; CONTACT_LEN];
        put(&mut b, 0, &self.gid.0);
        put(&mut b, 16, &self.class_sl_flow.to_be_bytes());
        put(&mut b, 20, &self.lid.to_be_bytes());
        put(&mut b, 22, &self.p_key.to_be_bytes());
        b[24] = self.hop_limit;
        put24(&mut b, 25, self.qpn.get());
        put(&mut b, 28, &self.q_key.to_be_bytes());
        b
    }
}

/// The capabilities of a port's communication manager.
///
/// ```text
///    0  base version 8 │ class version 8 │ capability mask 16
///    4  capability mask 2, 27 bits │ response time 5
///    8  redirect: GID 128, TC 8, SL 4, FL 20, LID 16, P_Key 16, reserved 8, QP 24, Q_Key 32
///   40  trap: the same, with the hop limit in place of the reserved byte
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassPortInfo {
    /// Version of the common header.
    pub base_version: u8,
    /// Version of the class that the communication manager supports.
    pub class_version: u8,
    /// Capability bits, of which this type has constants.
    pub capability_mask: u16,
    /// Further capability bits, 27 of them.
    pub capability_mask2: u32,
    /// Longest time that an answer takes.
    pub response_time: TimeCode,
    /// The address for requests.
    pub redirect: Contact,
    /// The address for traps.
    pub trap: Contact,
}

impl ClassPortInfo {
    /// Capability: reliable connections.
    pub const RC_CAPABLE: u16 = 1 << 9;
    /// Capability: reliable datagrams.
    pub const RD_CAPABLE: u16 = 1 << 10;
    /// Capability: unreliable connections.
    pub const UC_CAPABLE: u16 = 1 << 12;
    /// Capability: service id resolution.
    pub const SIDR_CAPABLE: u16 = 1 << 13;

    /// Reads the attribute, which may have any value.
    pub fn parse(b: &Data) -> ClassPortInfo {
        let word = be32(b, 4);
        ClassPortInfo {
            base_version: b[0],
            class_version: b[1],
            capability_mask: be16(b, 2),
            capability_mask2: word >> 5,
            response_time: TimeCode::new(b[7]),
            redirect: Contact::parse(&array(b, 8)),
            trap: Contact::parse(&array(b, 40)),
        }
    }

    pub(super) fn emit(&self, b: &mut Data) {
        b[0] = self.base_version;
        b[1] = self.class_version;
        put(b, 2, &self.capability_mask.to_be_bytes());
        let word = self.capability_mask2 << 5 | u32::from(self.response_time.get());
        put(b, 4, &word.to_be_bytes());
        put(b, 8, &self.redirect.emit());
        put(b, 40, &self.trap.emit());
    }
}
