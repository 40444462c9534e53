//! RoCEv2: packets of InfiniBand in UDP (IBTA Annex A17).
//!
//! ```text
//!   IP │ UDP, port 4791 │ BTH 12 │ DETH 8 │ payload, padded to 4 │ ICRC 4
//! ```
//!
//! This module has only the transport's packets of unreliable datagrams in one piece
//! ([`UdPacket`]): management uses no others.

mod header;
mod icrc;
#[cfg(test)]
mod tests;
mod ud;

pub use header::{BTH_LEN, Bth, DETH_LEN, Deth, OPCODE_UD_SEND_ONLY};
pub use icrc::{ICRC_LEN, icrc};
pub use ud::{PacketError, UdPacket, UdRepr};

/// The UDP port to which RoCEv2 packets go.
pub const UDP_PORT: u16 = 4791;

/// The Q_Key of the queue pair for general services ([`Qpn::GSI`](crate::Qpn::GSI)).
pub const GSI_Q_KEY: u32 = 0x8001_0000;

/// The default partition, with the bit of a full member.
pub const DEFAULT_P_KEY: u16 = 0xffff;

/// Returns true if two P_Keys are of one partition and at least one is of a full member (the top
/// bit): two limited members may not communicate.
pub const fn p_keys_match(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && (a | b) & 0x8000 != 0
}
