//! Frames as the stack takes and gives them.

use arrayvec::ArrayVec;
use heddle_base::{Chunks, StreamPos, Sum};

use super::slab::ConnId;
use crate::wire::{ethernet, tcp};

/// What the port found out about a frame's IPv4 and TCP checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// Nothing: the stack verifies them.
    #[default]
    Unknown,
    /// Both are right.
    Good,
    /// One is wrong.
    Bad,
}

/// A received frame, from its Ethernet header to its end, without the frame check sequence.
///
/// All headers must lie in the first piece; payload may lie in any number of pieces of any length.
pub trait RxFrame: Chunks {
    /// What the port says about its checksums.
    fn checksum(&self) -> RxChecksum {
        RxChecksum::Unknown
    }

    /// The Internet checksum of bytes `[off, off + len)`; `None` when they are not all there.
    fn sum(&self, off: usize, len: usize) -> Option<Sum> {
        let (mut sum, mut done) = (Sum::ZERO, 0);
        self.for_each_chunk(off, len, |piece| {
            sum = sum.add_at(done, Sum::of(piece));
            done += piece.len();
        });
        (done == len).then_some(sum)
    }

    /// As [`sum`](RxFrame::sum), of the TCP segment of `len` octets at `off`, `header` of which are
    /// its header. The stack asks once, and only when the port has verified nothing, so a frame
    /// whose owner wants to know more of the payload finds it out in the same pass and keeps it.
    #[inline]
    fn sum_segment(&mut self, off: usize, header: usize, len: usize) -> Option<Sum> {
        let _ = header;
        self.sum(off, len)
    }
}

impl RxFrame for [u8] {}

/// A frame that is only looked at: it keeps nothing.
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

/// What came of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameOutcome {
    /// Nothing for the owner to do.
    Done,
    /// A segment of a connection. Even one that neither acknowledges nor carries anything may have
    /// changed how much the connection may send.
    Conn {
        /// Which.
        conn: ConnId,
        /// Our stream is acknowledged up to here, further than before.
        acked: Option<StreamPos>,
        /// New bytes to take.
        payload: Option<FramePayload>,
    },
}

/// Where the new bytes of a frame lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePayload {
    /// Position in the peer's stream of the first of them.
    pub pos: StreamPos,
    /// Where it lies, from the start of the frame.
    pub frame_off: usize,
    /// How many there are.
    pub len: u32,
    /// Whether `pos` is the next byte expected; otherwise it lies ahead of a gap.
    pub in_order: bool,
}

/// Octets of the longest header of a TCP segment.
pub const MAX_HEADER_LEN: usize =
    ethernet::HEADER_LEN + crate::wire::ipv4::HEADER_LEN + tcp::HEADER_LEN + tcp::MAX_OPTIONS_LEN;

/// A frame to send: its headers, and where the rest comes from.
///
/// It is not padded to the least Ethernet frame of 60 octets: ports do that.
#[derive(Clone, Debug)]
pub struct TxFrame {
    /// From the Ethernet header to the end of the last header.
    pub header: ArrayVec<u8, MAX_HEADER_LEN>,
    /// What follows.
    pub body: TxBody,
    /// Octets of the Ethernet header.
    pub l2_len: u8,
    /// Octets of the IPv4 header; 0 in an ARP packet.
    pub l3_len: u8,
    /// Octets of the TCP header; 0 when it is not TCP.
    pub l4_len: u8,
    /// What is left to do about the TCP checksum.
    pub tcp_checksum: TcpChecksum,
    /// Whether the port is to fill in the IPv4 header checksum, which is 0.
    pub ip_checksum_offload: bool,
}

/// What follows the headers of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxBody {
    /// Nothing.
    None,
    /// Bytes `[pos, pos + len)` of the owner's send queue.
    Stream {
        /// Of which connection.
        conn: ConnId,
        /// The first of them.
        pos: StreamPos,
        /// How many, at least 1.
        len: u32,
        /// Whether any of them was sent before.
        retransmit: bool,
    },
    /// These bytes: an ICMP message.
    Owned(Vec<u8>),
}

/// What is left to do about the TCP checksum of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpChecksum {
    /// Nothing.
    None,
    /// The sum of the payload is to be added: [`TxFrame::finish_tcp_checksum`].
    NeedsPayloadSum,
    /// The port computes it; the field holds the sum of the pseudo-header, not complemented.
    Offloaded,
}

impl Default for TxFrame {
    /// An empty one, for [`Stack::poll_transmit`](super::Stack::poll_transmit) to fill in.
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

    /// Octets of the whole frame.
    pub fn len(&self) -> usize {
        self.header.len()
            + match &self.body {
                TxBody::None => 0,
                TxBody::Stream { len, .. } => *len as usize,
                TxBody::Owned(b) => b.len(),
            }
    }

    /// Never: a frame has at least a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}
