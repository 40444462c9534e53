//! Base and datagram extended transport headers.

use crate::bytes::{be16, be24, be32, put, put24};
use crate::types::{Psn, Qpn};

/// Octets of a base transport header.
pub const BTH_LEN: usize = 12;
/// Octets of a datagram extended transport header.
pub const DETH_LEN: usize = 8;
/// The opcode of a message of unreliable datagrams that is one packet, without immediate data.
pub const OPCODE_UD_SEND_ONLY: u8 = 0x64;

/// A base transport header.
///
/// ```text
///   0  opcode │ SE │ M │ pad 2 │ version 4 │ P_Key 16
///   4  FECN │ BECN │ reserved 6 │ destination QP 24
///   8  A │ reserved 7 │ PSN 24
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What packet it is.
    pub opcode: u8,
    /// Solicited event.
    pub solicited: bool,
    /// The state of path migration.
    pub migrated: bool,
    /// Octets of padding behind the payload, 0 to 3.
    pub pad: u8,
    /// Version of the transport's headers: 0.
    pub version: u8,
    /// The partition.
    pub p_key: u16,
    /// The packet has met congestion. Congestion bits are the network's: no CRC covers them.
    pub fecn: bool,
    /// The other direction has met congestion.
    pub becn: bool,
    /// The queue pair it is for.
    pub dest_qp: Qpn,
    /// An acknowledgment is asked for.
    pub ack_request: bool,
    /// Its number.
    pub psn: Psn,
}

impl Bth {
    /// Reads a header.
    pub fn parse(b: &[u8; BTH_LEN]) -> Bth {
        Bth {
            opcode: b[0],
            solicited: b[1] & 0x80 != 0,
            migrated: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            version: b[1] & 0xf,
            p_key: be16(b, 2),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qp: Qpn::new(be24(b, 5)),
            ack_request: b[8] & 0x80 != 0,
            psn: Psn::new(be24(b, 9)),
        }
    }

    /// The header on the wire.
    pub fn emit(&self) -> [u8; BTH_LEN] {
        let bit = |on: bool, at: u8| u8::from(on) << at;
        let mut b = [0; BTH_LEN];
        b[0] = self.opcode;
        b[1] = bit(self.solicited, 7) | bit(self.migrated, 6) | (self.pad & 3) << 4;
        b[1] |= self.version & 0xf;
        put(&mut b, 2, &self.p_key.to_be_bytes());
        b[4] = bit(self.fecn, 7) | bit(self.becn, 6);
        put24(&mut b, 5, self.dest_qp.get());
        b[8] = bit(self.ack_request, 7);
        put24(&mut b, 9, self.psn.get());
        b
    }
}

/// A datagram extended transport header.
///
/// ```text
///   0  Q_Key 32
///   4  reserved 8 │ source QP 24
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The key of the queue pair it is for.
    pub q_key: u32,
    /// The queue pair it comes from.
    pub src_qp: Qpn,
}

impl Deth {
    /// Reads a header.
    pub fn parse(b: &[u8; DETH_LEN]) -> Deth {
        Deth { q_key: be32(b, 0), src_qp: Qpn::new(be24(b, 5)) }
    }

    /// The header on the wire.
    pub fn emit(&self) -> [u8; DETH_LEN] {
        let mut b = [0; DETH_LEN];
        put(&mut b, 0, &self.q_key.to_be_bytes());
        put24(&mut b, 5, self.src_qp.get());
        b
    }
}
