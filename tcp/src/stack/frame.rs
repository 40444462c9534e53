//! Frames as the stack takes and returns them.

use arrayvec::ArrayVec;
use heddle_base::{Chunks, StreamPos, Sum};

use crate::wire::vlan::{TAG_AT, TAG_LEN};
use crate::wire::{Tag, Vid, ethernet, tcp};
use heddle_types::ConnId;

/// The port's findings about a frame's checksums: TCP's, and that of an IPv4 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// The port verified nothing: the stack verifies the checksums.
    #[default]
    Unknown,
    /// Both checksums are right.
    Good,
    /// One of the checksums is wrong.
    Bad,
}

/// A received frame, from its Ethernet header to its end, without the frame check sequence. A VLAN's
/// tag stands beside the frame, or in it until the stack has it taken out.
///
/// All headers must lie in the first piece; payload may lie in any number of pieces of any length.
pub trait RxFrame: Chunks {
    /// Returns the port's findings about the frame's checksums.
    fn checksum(&self) -> RxChecksum {
        RxChecksum::Unknown
    }

    /// Returns the tag that was taken out of the frame, by the port or by
    /// [`take_tag`](RxFrame::take_tag); `None` if there was none.
    #[inline]
    fn tag(&self) -> Option<Tag> {
        None
    }

    /// Takes the tag out of the frame, which begins with one: the bytes after the tag move up, or
    /// those before it move down, and [`tag`](RxFrame::tag) returns its contents from now on. Returns
    /// false, and changes nothing, if the frame begins with no whole tag, or cannot be changed.
    fn take_tag(&mut self) -> bool {
        false
    }

    /// Returns the VLAN of a frame whose tag was taken out, or that has none.
    #[inline(always)]
    fn vid(&self) -> Vid {
        self.tag().map_or(Vid::NONE, Tag::vid)
    }

    /// Returns the Internet checksum of bytes `[off, off + len)`, or `None` when the frame does not
    /// hold all of them.
    fn sum(&self, off: usize, len: usize) -> Option<Sum> {
        let (mut sum, mut done) = (Sum::ZERO, 0);
        self.for_each_chunk(off, len, |piece| {
            sum = sum.add_at(done, Sum::of(piece));
            done += piece.len();
        });
        (done == len).then_some(sum)
    }

    /// Returns the [`sum`](RxFrame::sum) of the TCP segment of `len` bytes at `off`, of which the
    /// first `header` bytes are its header. The stack asks once, and only when the port has
    /// verified nothing. An owner that wants further facts about the payload can compute and keep
    /// them in the same pass.
    #[inline]
    fn sum_segment(&mut self, off: usize, header: usize, len: usize) -> Option<Sum> {
        let _ = header;
        self.sum(off, len)
    }
}

impl RxFrame for [u8] {}

/// A frame behind a shared reference keeps nothing.
impl<F: RxFrame + ?Sized> RxFrame for &F {
    #[inline]
    fn checksum(&self) -> RxChecksum {
        (**self).checksum()
    }

    #[inline]
    fn tag(&self) -> Option<Tag> {
        (**self).tag()
    }

    #[inline]
    fn sum(&self, off: usize, len: usize) -> Option<Sum> {
        (**self).sum(off, len)
    }
}

impl<F: RxFrame + ?Sized> RxFrame for &mut F {
    #[inline]
    fn checksum(&self) -> RxChecksum {
        (**self).checksum()
    }

    #[inline]
    fn tag(&self) -> Option<Tag> {
        (**self).tag()
    }

    fn take_tag(&mut self) -> bool {
        (**self).take_tag()
    }

    #[inline]
    fn sum(&self, off: usize, len: usize) -> Option<Sum> {
        (**self).sum(off, len)
    }

    #[inline]
    fn sum_segment(&mut self, off: usize, header: usize, len: usize) -> Option<Sum> {
        (**self).sum_segment(off, header, len)
    }
}

/// The result of handling a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameOutcome {
    /// The owner has nothing to do.
    Done,
    /// The frame was a segment of a connection. Even a segment that neither acknowledges nor
    /// carries bytes may have changed how much the connection may send.
    Conn {
        /// The connection of the segment.
        conn: ConnId,
        /// The peer acknowledges our stream up to this position, which is further than before.
        acked: Option<StreamPos>,
        /// New bytes for the owner to take.
        payload: Option<FramePayload>,
    },
}

impl FrameOutcome {
    /// Returns the number of new bytes in the frame.
    #[inline]
    pub(super) fn payload_len(&self) -> u32 {
        match self {
            FrameOutcome::Conn { payload: Some(p), .. } => p.len,
            _ => 0,
        }
    }
}

/// Frames that the stack has taken as one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of frames, at least 1.
    pub frames: u32,
    /// New bytes in the last frame, at the same offset as in the first. The other frames have as
    /// many as the first.
    pub last: u32,
    /// The result: its payload is that of the first frame.
    pub outcome: FrameOutcome,
}

/// Where the new bytes of a frame lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePayload {
    /// Position of the first new byte in the peer's stream.
    pub pos: StreamPos,
    /// Offset of the first new byte from the start of the frame.
    pub frame_off: usize,
    /// The number of new bytes.
    pub len: u32,
    /// True if `pos` is the next byte expected; otherwise `pos` lies ahead of a gap.
    pub in_order: bool,
}

/// Bytes of the longest header of a TCP segment, with a VLAN's tag.
pub const MAX_HEADER_LEN: usize = ethernet::HEADER_LEN
    + TAG_LEN
    + crate::wire::ipv6::HEADER_LEN
    + tcp::HEADER_LEN
    + tcp::MAX_OPTIONS_LEN;

/// A frame to send: its headers, and the place of the rest.
///
/// The stack does not pad the frame to the least Ethernet frame of 60 bytes: ports do that.
#[derive(Clone, Debug)]
pub struct TxFrame {
    /// All headers, from the Ethernet header on.
    pub header: ArrayVec<u8, MAX_HEADER_LEN>,
    /// The part of the frame after the headers.
    pub body: TxBody,
    /// Bytes of the Ethernet header, and of the VLAN's tag in it.
    pub l2_len: u8,
    /// Bytes of the IP header; 0 in an ARP packet.
    pub l3_len: u8,
    /// Bytes of the TCP header; 0 when the frame is not TCP.
    pub l4_len: u8,
    /// The work left for the TCP checksum.
    pub tcp_checksum: TcpChecksum,
    /// The TCP checksum field before the payload's sum is added.
    pub(super) header_sum: u16,
    /// True if the frame holds an IPv6 packet.
    pub is_ipv6: bool,
    /// True if the port must fill in the IPv4 header checksum, which is 0.
    pub ip_checksum_offload: bool,
}

/// The part of a frame after its headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxBody {
    /// No bytes follow the headers.
    None,
    /// Bytes `[pos, pos + len)` of the owner's send queue.
    Stream {
        /// The connection whose queue holds the bytes.
        conn: ConnId,
        /// Position of the first byte in our stream.
        pos: StreamPos,
        /// The number of bytes, at least 1.
        len: u32,
        /// Bytes of each segment on the wire; the last segment may have fewer. Less than `len` only
        /// in a [train](super::Train).
        segment: u32,
        /// True if any of these bytes was sent before.
        retransmit: bool,
    },
    /// These bytes: an ICMP message, or a UDP header with its payload.
    Owned(Vec<u8>),
}

/// The work left for the TCP checksum of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpChecksum {
    /// No work: the checksum is complete, or the frame is not TCP.
    None,
    /// The owner must add the sum of the payload: [`TxFrame::finish_tcp_checksum`].
    NeedsPayloadSum,
    /// The port computes the checksum; the field holds the sum of the pseudo-header, not
    /// complemented.
    Offloaded,
}

/// The longest train that the stack may return: a frame that stands for several segments of one
/// connection, which differ only in their place in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// The most segments of a train; 1 for no trains.
    pub segments: u32,
    /// Whether the port cuts a train into its segments (TCP segmentation offload). The frame is
    /// then a single long segment, and its TCP checksum field holds the sum of the pseudo-header
    /// without a length. Otherwise the owner makes a frame of each segment: the header is that of
    /// the first, and [`TxFrame::next_segment`] turns it into that of the next.
    pub by_port: bool,
}

impl Train {
    /// No trains: each frame is a segment.
    pub const NONE: Train = Train { segments: 1, by_port: false };
}

impl Default for TxFrame {
    /// Returns an empty frame for [`Stack::poll_transmit`](super::Stack::poll_transmit) to fill in.
    fn default() -> TxFrame {
        TxFrame {
            header: ArrayVec::new(),
            body: TxBody::None,
            l2_len: 0,
            l3_len: 0,
            l4_len: 0,
            tcp_checksum: TcpChecksum::None,
            header_sum: 0,
            is_ipv6: false,
            ip_checksum_offload: false,
        }
    }
}

impl TxFrame {
    /// Adds the sum of the body's bytes to the TCP checksum, which is then complete. Does nothing
    /// unless [`TxFrame::tcp_checksum`] is [`TcpChecksum::NeedsPayloadSum`].
    pub fn finish_tcp_checksum(&mut self, payload: Sum) {
        if self.tcp_checksum != TcpChecksum::NeedsPayloadSum {
            return;
        }
        self.tcp_checksum = TcpChecksum::None;
        // A TCP header has an even length, so the payload starts on a word.
        let at = usize::from(self.l2_len) + usize::from(self.l3_len) + tcp::CHECKSUM_AT;
        if let Some(&[a, b]) = self.header.get(at..at + 2) {
            let sum = Sum::from_folded(u16::from_be_bytes([a, b])).plus(payload);
            self.header[at..at + 2].copy_from_slice(&sum.complement().to_be_bytes());
        }
    }

    /// Puts a VLAN's tag into the Ethernet header, which has none.
    #[cold]
    pub(super) fn put_tag(&mut self, tag: Tag) {
        let len = self.header.len();
        let fits = self.header.try_extend_from_slice(&tag.bytes());
        debug_assert!(fits.is_ok() && len >= TAG_AT);
        if let Some(rest) = self.header.get_mut(TAG_AT..) {
            rest.rotate_right(TAG_LEN);
        }
        self.l2_len += const { TAG_LEN.to_le_bytes()[0] };
    }

    /// Turns the header of a segment of a [train](Train) that the owner cuts into the header of the
    /// segment after it.
    #[inline]
    pub fn next_segment(&mut self) {
        let TxBody::Stream { segment, .. } = self.body else { return };
        let at = usize::from(self.l2_len) + usize::from(self.l3_len);
        let Some(header) = self.header.get_mut(at..).and_then(|h| h.first_chunk_mut()) else {
            return;
        };
        let before = tcp::seq(header);
        let seq = before.advance(segment);
        if self.tcp_checksum != TcpChecksum::Offloaded {
            // To subtract a number from a one's complement sum, add its complement.
            let total = u64::from(self.header_sum) + u64::from(!before.0) + u64::from(seq.0);
            self.header_sum = Sum::of_numbers(total).folded();
            self.tcp_checksum = TcpChecksum::NeedsPayloadSum;
        }
        tcp::emit_seq(seq, self.header_sum, header);
    }

    /// Returns the bytes of the whole frame.
    pub fn len(&self) -> usize {
        self.header.len()
            + match &self.body {
                TxBody::None => 0,
                TxBody::Stream { len, .. } => *len as usize,
                TxBody::Owned(b) => b.len(),
            }
    }

    /// Always returns false: a frame has at least a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}
