//! A TCP segment as a value: the wire formats parse to it, and the connection takes and gives it.

use core::fmt;
use core::num::NonZeroU16;
use core::time::Duration;
use heddle_base::StreamPos;

/// A 32-bit TCP sequence number. RFC 9293 section 3.4 defines its order (modulo 2^32).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// Returns `self - other` as a signed distance: negative when `self` lies before `other`.
    pub const fn distance(self, other: SeqNumber) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    /// Returns the number that lies `n` after `self`.
    #[must_use]
    pub const fn advance(self, n: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_add(n))
    }

    /// Returns true if `self` lies before `other`.
    pub const fn before(self, other: SeqNumber) -> bool {
        self.distance(other) < 0
    }

    /// Returns true if `self` lies after `other`.
    pub const fn after(self, other: SeqNumber) -> bool {
        self.distance(other) > 0
    }
}

impl fmt::Debug for SeqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// TCP control bits: the low nine bits of bytes 12 and 13 of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    /// The sender sends no more data.
    pub const FIN: Flags = Flags(0x01);
    /// The sender synchronises sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// The sender resets the connection.
    pub const RST: Flags = Flags(0x04);
    /// The sender asks the receiver to push the data to the application.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is significant.
    pub const URG: Flags = Flags(0x20);
    /// ECN-Echo: a packet arrived with the mark of congestion (RFC 3168 section 6.1).
    pub const ECE: Flags = Flags(0x40);
    /// The sender has reduced its congestion window.
    pub const CWR: Flags = Flags(0x80);
    /// Accurate ECN (RFC 9768 section 3.1.1).
    pub const AE: Flags = Flags(0x100);
    /// The field ACE: the three bits of ECN, with which ends in AccECN mode count marks (RFC 9768
    /// section 3.2.2).
    pub const ACE: Flags = Flags(0x1c0);
    /// All control bits.
    pub(crate) const ALL: u16 = 0x1ff;

    /// Returns true if all bits of `other` are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets of bits.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The ECN codepoint of a packet: the two low bits of the traffic class (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codepoint(u8);

impl Codepoint {
    /// The packet is not capable of ECN.
    pub const NOT_ECT: Codepoint = Codepoint(0);
    /// The sender is capable of ECN, and uses the second codepoint for saying so.
    pub const ECT_1: Codepoint = Codepoint(1);
    /// The sender is capable of ECN.
    pub const ECT_0: Codepoint = Codepoint(2);
    /// Congestion experienced: a router has marked the packet.
    pub const CE: Codepoint = Codepoint(3);

    /// Returns the codepoint in a traffic class.
    #[inline(always)]
    pub const fn of(traffic_class: u8) -> Codepoint {
        Codepoint(traffic_class & 3)
    }

    /// Returns true if a router has marked the packet.
    #[inline(always)]
    pub const fn is_ce(self) -> bool {
        self.0 == Codepoint::CE.0
    }

    /// Returns the two bits.
    #[inline(always)]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// The AccECN option: how many bytes of payload have arrived with each codepoint, modulo 2^24 (RFC
/// 9768 section 3.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounts {
    /// False for order 0: ECT(0), CE, ECT(1). True for order 1: ECT(1), CE, ECT(0).
    pub reversed: bool,
    /// The fields in their order, of which the option has the first `len`.
    pub fields: [u32; 3],
    /// The number of fields, at most three.
    pub len: u8,
}

impl ByteCounts {
    /// Bytes of a field, and of the option without fields.
    pub(crate) const FIELD: usize = 3;
    pub(crate) const HEAD: usize = 2;
    /// Bytes of the longest option with its padding.
    pub(crate) const MOST: u32 = 12;

    fn field(&self, at: usize) -> Option<u32> {
        self.fields.get(at).copied().filter(|_| at < usize::from(self.len))
    }

    /// Returns the bytes that came with CE, if the option says.
    pub fn ce(&self) -> Option<u32> {
        self.field(1)
    }

    /// Returns the bytes that came with ECT(0), if the option says.
    pub fn ect_0(&self) -> Option<u32> {
        self.field(if self.reversed { 2 } else { 0 })
    }

    /// Returns the bytes that came with ECT(1), if the option says.
    pub fn ect_1(&self) -> Option<u32> {
        self.field(if self.reversed { 0 } else { 2 })
    }
}

/// The value of the user timeout option (RFC 5482 section 3.3): 15 bits, in minutes if the first of the 16
/// bits is set, otherwise in seconds. The value zero is reserved, so that no option with it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserTimeout(NonZeroU16);

impl UserTimeout {
    const MINUTES: u16 = 1 << 15;
    const MOST: u16 = UserTimeout::MINUTES - 1;

    /// Returns the value of a time, rounded up to whole seconds or, if these are too many, minutes: at
    /// least a second, and at most 32,767 minutes.
    pub fn of(time: Duration) -> UserTimeout {
        let units = |each: u64| {
            let part = u64::from(!time.as_secs().is_multiple_of(each) || time.subsec_nanos() > 0);
            u16::try_from((time.as_secs() / each).saturating_add(part)).unwrap_or(u16::MAX)
        };
        let bits = match units(1) {
            seconds @ ..=UserTimeout::MOST => seconds.max(1),
            _ => units(60).min(UserTimeout::MOST) | UserTimeout::MINUTES,
        };
        UserTimeout(NonZeroU16::new(bits).unwrap_or(NonZeroU16::MIN))
    }

    /// Returns the value in 16 bits of an option, unless it is reserved.
    pub fn from_bits(bits: u16) -> Option<UserTimeout> {
        let value = NonZeroU16::new(bits).filter(|bits| bits.get() != UserTimeout::MINUTES)?;
        Some(UserTimeout(value))
    }

    /// Returns the 16 bits of the option.
    pub fn bits(self) -> u16 {
        self.0.get()
    }

    /// Returns the time.
    pub fn time(self) -> Duration {
        let value = u64::from(self.bits() & UserTimeout::MOST);
        let unit = if self.bits() & UserTimeout::MINUTES == 0 { 1 } else { 60 };
        Duration::from_secs(value * unit)
    }
}

/// The options that few segments have, and that [`Segment`] does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RareOptions {
    /// AccECN option, on any segment but the first SYN.
    pub counts: Option<ByteCounts>,
    /// User timeout option, on any segment but the first SYN.
    pub user_timeout: Option<UserTimeout>,
}

/// The timestamps option (RFC 7323 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the timestamp clock of the sender of this segment.
    pub val: u32,
    /// TSecr: the echo of the timestamp clock of the receiver of this segment.
    pub ecr: u32,
}

/// A block of the SACK option. A block usually reports bytes received ahead of a gap (RFC 2018
/// section 3). The first block of the option reports bytes received more than once if it lies in
/// front of the acknowledgment number or inside the second block (RFC 2883 section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// The sequence number of the first byte.
    pub start: SeqNumber,
    /// The sequence number after the last byte.
    pub end: SeqNumber,
}

/// The blocks of a SACK option: none when there is no option.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [SackBlock; SackBlocks::MAX],
    len: u8,
}

impl SackBlocks {
    /// The value for a segment without the option.
    pub const NONE: SackBlocks = SackBlocks {
        blocks: [SackBlock { start: SeqNumber(0), end: SeqNumber(0) }; SackBlocks::MAX],
        len: 0,
    };
    /// The number of blocks that fit into a header without other options. A header with timestamps
    /// has room for one block less.
    pub const MAX: usize = 4;

    /// Returns true if there are no blocks.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of blocks.
    pub const fn count(&self) -> u8 {
        self.len
    }

    /// Adds `block` after the other blocks. Drops `block` if there is no room for it.
    pub fn push(&mut self, block: SackBlock) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.len)) {
            *place = block;
            self.len += 1;
        }
    }

    /// Returns the blocks in the order of the option.
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
    /// Sequence number of the first byte (of the SYN, when there is one).
    pub seq: SeqNumber,
    /// Acknowledgment number; meaningful with [`Flags::ACK`].
    pub ack: SeqNumber,
    /// Control bits of the header.
    pub flags: Flags,
    /// The window field, not scaled.
    pub window: u16,
    /// Payload bytes.
    pub len: u32,
    /// MSS option, on a SYN.
    pub mss: Option<u16>,
    /// The codepoint with which the packet came.
    pub ecn: Codepoint,
    /// Window scale option, on a SYN (not yet limited to 14).
    pub window_scale: Option<u8>,
    /// SACK-permitted option, on a SYN.
    pub sack_permitted: bool,
    /// Timestamps option (TSval and TSecr).
    pub timestamps: Option<Timestamps>,
}

/// Where the new payload of a received segment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Position in the peer's stream of the first byte to take.
    pub pos: StreamPos,
    /// Bytes of the segment's payload to skip before it (already received).
    pub skip: u32,
    /// Bytes to take. The connection has cut off bytes beyond the window.
    pub len: u32,
    /// True if `pos` is the next byte expected; otherwise `pos` lies ahead of a gap.
    pub in_order: bool,
}

/// The result of handling a received segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentOutcome {
    /// The peer acknowledges our stream up to this position, which is further than before.
    pub acked: Option<StreamPos>,
    /// New payload for the owner to take; see
    /// [`Connection::accept_payload`](crate::Connection::accept_payload).
    pub payload: Option<Payload>,
}

/// A segment to send: everything but addresses, ports and payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxSegment {
    /// Sequence number of the first byte.
    pub seq: SeqNumber,
    /// Acknowledgment number of the header.
    pub ack: SeqNumber,
    /// Control bits of the header.
    pub flags: Flags,
    /// The window field, already scaled.
    pub window: u16,
    /// MSS option (on a SYN).
    pub mss: Option<u16>,
    /// Window scale option (on a SYN).
    pub window_scale: Option<u8>,
    /// SACK-permitted option (on a SYN).
    pub sack_permitted: bool,
    /// Timestamps option (TSval and TSecr).
    pub timestamps: Option<Timestamps>,
    /// Number of blocks of the SACK option.
    /// [`Connection::sack_blocks`](crate::Connection::sack_blocks) has the blocks themselves: they
    /// would make every segment larger, and few segments have any.
    pub sack: u8,
    /// AccECN option. A segment with SACK blocks has none.
    pub counts: Option<ByteCounts>,
    /// User timeout option. Only a segment without data and SACK blocks has it.
    pub user_timeout: Option<UserTimeout>,
    /// Position of the first payload byte in our stream.
    pub pos: StreamPos,
    /// Payload bytes to gather from the [`SendQueue`](crate::SendQueue).
    pub len: u32,
    /// True if the segment carries any byte that was sent before.
    pub retransmit: bool,
    /// True if the packet has the codepoint ECT(0): routers may mark it instead of dropping it (RFC
    /// 3168 section 5).
    pub ect: bool,
}
