//! `rping`, wire-compatible with the program of that name in rdma-core.
//!
//! ```text
//!   client                                server
//!     Send {source region}  ─────────────▶
//!                           ◀───────────── RDMA Read of the source
//!                           ◀───────────── Send (go ahead)
//!     Send {sink region}    ─────────────▶
//!                           ◀───────────── RDMA Write into the sink
//!                           ◀───────────── Send (go ahead)
//! ```
//!
//! and so on, until the client disconnects. Every Send is an [`Info`] of 16 bytes; the content of
//! the server's Sends means nothing.

mod client;
mod server;

pub use client::{RpingClient, RpingConfig, RpingError};
pub use server::RpingServer;

use heddle_verbs::Stag;

/// The port that `rping` uses unless the user gives another.
pub const DEFAULT_PORT: u16 = 7174;

/// Bytes of a message by default.
pub const DEFAULT_SIZE: u32 = 64;

/// The fewest bytes of a message: the text with the largest number, and its terminating zero.
pub const MIN_SIZE: u32 = 26;

/// The most bytes of a message.
pub const MAX_SIZE: u32 = 65_535;

/// A region as a peer announces it: address (8 bytes), key (4) and length (4), big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The tagged offset of the region's first byte.
    pub to: u64,
    /// The region's STag.
    pub stag: Stag,
    /// The region's length in bytes.
    pub len: u32,
}

impl Info {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Encodes the region as a message.
    pub fn encode(self) -> [u8; Info::LEN] {
        let mut b = [0; Info::LEN];
        b[..8].copy_from_slice(&self.to.to_be_bytes());
        b[8..12].copy_from_slice(&self.stag.0.to_be_bytes());
        b[12..].copy_from_slice(&self.len.to_be_bytes());
        b
    }

    /// Decodes a message; every content is valid.
    pub fn decode(b: &[u8; Info::LEN]) -> Info {
        let number =
            |r: core::ops::Range<usize>| b[r].iter().fold(0u64, |v, &x| v << 8 | u64::from(x));
        let low = |v: u64| u32::try_from(v & 0xffff_ffff).unwrap_or(0);
        Info { to: number(0..8), stag: Stag(low(number(8..12))), len: low(number(12..16)) }
    }
}

/// Returns the text of message `n`, `size` bytes with its terminating zero: its number, and a run
/// of characters that starts one character further along in each message.
pub fn message(n: u64, size: u32) -> Vec<u8> {
    let size = size.max(1) as usize;
    let mut b = format!("rdma-ping-{n}: ").into_bytes();
    let start = n % u64::from(LAST - FIRST + 1);
    let chars = (FIRST..=LAST).cycle().skip(usize::try_from(start).unwrap_or(0));
    b.extend(chars.take(size.saturating_sub(b.len())));
    b.truncate(size);
    b[size - 1] = 0;
    b
}

const FIRST: u8 = b'A';
const LAST: u8 = b'z';

/// Returns a message as text, up to its zero, without characters that a terminal could take for a
/// command.
fn printable(b: &[u8]) -> String {
    let text = b.split(|&c| c == 0).next().unwrap_or(b);
    text.iter().map(|&c| if (0x20..0x7f).contains(&c) { char::from(c) } else { '.' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_rping_info_bytes_match_reference() {
        let i = Info { to: 0x0102_0304_0506_0708, stag: Stag(0x0a0b_0c0d), len: 64 };
        let b = *b"\x01\x02\x03\x04\x05\x06\x07\x08\x0a\x0b\x0c\x0d\0\0\0\x40";
        assert_eq!(i.encode(), b);
        assert_eq!(Info::decode(&b), i);
    }

    #[test]
    fn test_message_text_rotates_and_ends_in_zero() {
        assert_eq!(message(0, 26), b"rdma-ping-0: ABCDEFGHIJKL\0");
        assert_eq!(message(1, 26), b"rdma-ping-1: BCDEFGHIJKLM\0");
        assert_eq!(message(57, 26), b"rdma-ping-57: zABCDEFGHIJ\0");
        assert_eq!(message(58, 26), b"rdma-ping-58: ABCDEFGHIJK\0");
        assert_eq!(message(0, 65535).len(), 65535);
        assert_eq!(message(u64::MAX, MIN_SIZE).len(), 26);
        assert_eq!(message(u64::MAX, MIN_SIZE)[25], 0);
    }

    #[test]
    fn test_printable_stops_at_zero_and_hides_control_characters() {
        assert_eq!(printable(b"ab\x1b[1m\0cd"), "ab.[1m");
        assert_eq!(printable(b"ab"), "ab");
    }
}
