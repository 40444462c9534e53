//! A TCP segment as a value: what the wire formats parse to and the connection speaks in.

use core::fmt;
use heddle_base::StreamPos;

/// A 32-bit TCP sequence number; order is that of RFC 9293 section 3.4 (modulo 2^32).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// `self - other` as a signed distance: negative when `self` lies before `other`.
    pub const fn distance(self, other: SeqNumber) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    /// The number `n` further on.
    #[must_use]
    pub const fn advance(self, n: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_add(n))
    }

    /// Whether `self` lies before `other`.
    pub const fn before(self, other: SeqNumber) -> bool {
        self.distance(other) < 0
    }

    /// Whether `self` lies after `other`.
    pub const fn after(self, other: SeqNumber) -> bool {
        self.distance(other) > 0
    }
}

impl fmt::Debug for SeqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// TCP control bits, as in octet 13 of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is significant.
    pub const URG: Flags = Flags(0x20);

    /// Whether all bits of `other` are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets of bits.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The timestamps option (RFC 7323 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock.
    pub val: u32,
    /// The echo of the receiver's.
    pub ecr: u32,
}

/// A block of the SACK option: bytes received ahead of a gap (RFC 2018 section 3), or, first in the
/// option and in front of the acknowledgment number or inside the second block, bytes received
/// more than once (RFC 2883 section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// The first octet.
    pub start: SeqNumber,
    /// One past the last octet.
    pub end: SeqNumber,
}

/// The blocks of a SACK option: none when there is no option.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [SackBlock; SackBlocks::MAX],
    len: u8,
}

impl SackBlocks {
    /// No option.
    pub const NONE: SackBlocks = SackBlocks {
        blocks: [SackBlock { start: SeqNumber(0), end: SeqNumber(0) }; SackBlocks::MAX],
        len: 0,
    };
    /// Blocks a header has room for without other options; beside timestamps there is room for one
    /// less.
    pub const MAX: usize = 4;

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many there are.
    pub const fn count(&self) -> u8 {
        self.len
    }

    /// Adds one behind the others; those that find no room are dropped.
    pub fn push(&mut self, block: SackBlock) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.len)) {
            *place = block;
            self.len += 1;
        }
    }

    /// The blocks in the order of the option.
    pub fn as_slice(&self) -> &[SackBlock] {
        self.blocks.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

impl fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// A received segment without its payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of the first octet (of the SYN, when there is one).
    pub seq: SeqNumber,
    /// Acknowledgment number; meaningful with [`Flags::ACK`].
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: Flags,
    /// The window field, not scaled.
    pub window: u16,
    /// Payload octets.
    pub len: u32,
    /// MSS option, on a SYN.
    pub mss: Option<u16>,
    /// Window scale option, on a SYN (not yet limited to 14).
    pub window_scale: Option<u8>,
    /// SACK-permitted option, on a SYN.
    pub sack_permitted: bool,
    /// Timestamps option.
    pub timestamps: Option<Timestamps>,
}

/// Where the new payload of a received segment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Position in the peer's stream of the first byte to take.
    pub pos: StreamPos,
    /// Bytes of the segment's payload to skip before it (already received).
    pub skip: u32,
    /// Bytes to take (what lies beyond the window is cut off).
    pub len: u32,
    /// Whether `pos` is the next byte expected; otherwise it lies ahead of a gap.
    pub in_order: bool,
}

/// What came of a received segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentOutcome {
    /// Our stream is acknowledged up to here, further than before.
    pub acked: Option<StreamPos>,
    /// New payload for the owner to take; see
    /// [`Connection::accept_payload`](crate::Connection::accept_payload).
    pub payload: Option<Payload>,
}

/// A segment to send: everything but addresses, ports and payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxSegment {
    /// Sequence number of the first octet.
    pub seq: SeqNumber,
    /// Acknowledgment number.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: Flags,
    /// The window field, already scaled.
    pub window: u16,
    /// MSS option (on a SYN).
    pub mss: Option<u16>,
    /// Window scale option (on a SYN).
    pub window_scale: Option<u8>,
    /// SACK-permitted option (on a SYN).
    pub sack_permitted: bool,
    /// Timestamps option.
    pub timestamps: Option<Timestamps>,
    /// Blocks of the SACK option, which [`Connection::sack_blocks`](crate::Connection::sack_blocks)
    /// has: they would weigh on every segment, and few have any.
    pub sack: u8,
    /// Position of the first payload byte in our stream.
    pub pos: StreamPos,
    /// Payload bytes to gather from the [`SendQueue`](crate::SendQueue).
    pub len: u32,
    /// Whether any of it was sent before.
    pub retransmit: bool,
}
