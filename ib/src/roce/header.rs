//! Base and datagram extended transport headers.

use crate::bytes::{be16, be24, be32, put, put24};
use crate::types::{Psn, Qpn};

/// Bytes of a base transport header.
pub const BTH_LEN: usize = 12;
/// Bytes of a datagram extended transport header.
pub const DETH_LEN: usize = 8;
/// The opcode of an unreliable datagram that is one packet, without immediate data.
pub const OPCODE_UD_SEND_ONLY: u8 = 0x64;

/// The base transport header, with which every packet begins.
///
/// ```text
///   0  opcode │ SE │ M │ pad 2 │ version 4 │ P_Key 16
///   4  FECN │ BECN │ reserved 6 │ destination QP 24
///   8  A │ reserved 7 │ PSN 24
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Kind of the packet, with its transport.
    pub opcode: u8,
    /// The packet asks for a solicited event.
    pub solicited: bool,
    /// The state of path migration.
    pub migrated: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad: u8,
    /// Version of the transport's headers: 0.
    pub version: u8,
    /// P_Key of the partition.
    pub p_key: u16,
    /// The packet has met congestion. The network sets the congestion bits, so no CRC covers them.
    pub fecn: bool,
    /// The other direction has met congestion.
    pub becn: bool,
    /// The queue pair that receives the packet.
    pub dest_qp: Qpn,
    /// The sender asks for an acknowledgment.
    pub ack_request: bool,
    /// Sequence number of the packet.
    pub psn: Psn,
}

impl Bth {
    /// Reads a header, which may have any value.
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

    /// Returns the header as on the wire.
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

/// The datagram extended transport header, which follows the base header.
///
/// ```text
///   0  Q_Key 32
///   4  reserved 8 │ source QP 24
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key of the queue pair that receives the packet.
    pub q_key: u32,
    /// The queue pair that sends the packet.
    pub src_qp: Qpn,
}

impl Deth {
    /// Reads a header, which may have any value.
    pub fn parse(b: &[u8; DETH_LEN]) -> Deth {
        Deth { q_key: be32(b, 0), src_qp: Qpn::new(be24(b, 5)) }
    }

    /// Returns the header as on the wire.
    pub fn emit(&self) -> [u8; DETH_LEN] {
        let mut b = [0; DETH_LEN];
        put(&mut b, 0, &self.q_key.to_be_bytes());
        put24(&mut b, 5, self.src_qp.get());
        b
    }
}
