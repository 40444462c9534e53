//! Frames as the stack takes and returns them.

use arrayvec::ArrayVec;
use heddle_base::{Chunks, StreamPos, Sum};

use crate::wire::{ethernet, tcp};
use heddle_types::ConnId;

/// The port's findings about a frame's IPv4 and TCP checksums.
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

/// A received frame, from its Ethernet header to its end, without the frame check sequence.
///
/// All headers must lie in the first piece; payload may lie in any number of pieces of any length.
pub trait RxFrame: Chunks {
    /// Returns the port's findings about the frame's checksums.
    fn checksum(&self) -> RxChecksum {
        RxChecksum::Unknown
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

/// Bytes of the longest header of a TCP segment.
pub const MAX_HEADER_LEN: usize =
    ethernet::HEADER_LEN + crate::wire::ipv4::HEADER_LEN + tcp::HEADER_LEN + tcp::MAX_OPTIONS_LEN;

/// A frame to send: its headers, and the place of the rest.
///
/// The stack does not pad the frame to the least Ethernet frame of 60 bytes: ports do that.
#[derive(Clone, Debug)]
pub struct TxFrame {
    /// All headers, from the Ethernet header on.
    pub header: ArrayVec<u8, MAX_HEADER_LEN>,
    /// The part of the frame after the headers.
    pub body: TxBody,
    /// Bytes of the Ethernet header.
    pub l2_len: u8,
    /// Bytes of the IPv4 header; 0 in an ARP packet.
    pub l3_len: u8,
    /// Bytes of the TCP header; 0 when the frame is not TCP.
    pub l4_len: u8,
    /// The work left for the TCP checksum.
    pub tcp_checksum: TcpChecksum,
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
