use crate::bytes::{array, be16, be24, be32, put, put24};
use crate::gid::Gid;
use crate::mad::Data;
use crate::types::{Qpn, TimeCode};

/// Where requests, or traps, of the class are to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contact {
    /// The port; zeros for the one that was asked.
    pub gid: Gid,
    /// Traffic class 8, service level 4, flow label 20.
    pub class_sl_flow: u32,
    /// Local identifier.
    pub lid: u16,
    /// The partition.
    pub p_key: u16,
    /// Hop limit; of traps only.
    pub hop_limit: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its key.
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

/// What the communication manager of a port can do.
///
/// ```text
///    0  base version 8 │ class version 8 │ capability mask 16
///    4  capability mask 2, 27 bits │ response time 5
///    8  redirect: GID 128, TC 8, SL 4, FL 20, LID 16, P_Key 16, reserved 8, QP 24, Q_Key 32
///   40  trap: the same, with the hop limit in place of the reserved octet
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassPortInfo {
    /// Version of the common header.
    pub base_version: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Of the constants here.
    pub capability_mask: u16,
    /// More of them, 27 bits.
    pub capability_mask2: u32,
    /// How long an answer may take.
    pub response_time: TimeCode,
    /// Where requests are to go.
    pub redirect: Contact,
    /// Where traps go.
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

    /// Reads the attribute; any octets are one.
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
