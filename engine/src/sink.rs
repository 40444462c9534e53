//! The trait of a place where an engine builds frames to send.

use heddle_mr::MemRange;

/// Checksums that the port has to compute in a frame handed to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The frame holds an IPv6 packet, not an IPv4 one.
    pub ipv6: bool,
    /// The port fills in the IPv4 header checksum.
    pub ip: bool,
    /// The port fills in the TCP checksum; the field holds the sum of the pseudo-header.
    pub tcp: bool,
    /// Bytes of the Ethernet header.
    pub l2_len: u8,
    /// Bytes of the IP header.
    pub l3_len: u8,
    /// Bytes of the TCP header.
    pub l4_len: u8,
    /// Bytes of payload of each segment into which the port cuts the frame (the last may have
    /// fewer), or 0 if the frame is a single segment.
    pub segment: u16,
}

/// Builds one frame at a time out of copied bytes and references to registered memory.
///
/// Calls come in the order of the wire: [`begin`](TxSink::begin), any number of
/// [`bytes`](TxSink::bytes) and [`memory`](TxSink::memory), [`end`](TxSink::end). Alternatively,
/// the caller writes the frame in one piece: [`begin`](TxSink::begin), [`whole`](TxSink::whole),
/// [`end`](TxSink::end); any number of [`piece`](TxSink::piece) may follow `whole`.
pub trait TxSink {
    /// Returns how many frames the caller may begin: 0 if the port or its buffers are full.
    fn room(&mut self) -> u32;

    /// Returns the most segments of a frame that the port cuts into segments; 1 if the port cuts
    /// none. The frame then has an [`Offload::segment`], and a segment's bytes may lie in three
    /// pieces.
    fn cuts(&self) -> u32 {
        1
    }

    /// Starts a frame of `len` bytes in all.
    fn begin(&mut self, len: usize);

    /// Starts a frame of `len` bytes in all, which the port cuts into segments of `segment` bytes of
    /// payload.
    fn begin_train(&mut self, len: usize, segment: u32) {
        let _ = segment;
        self.begin(len);
    }

    /// Returns all `len` bytes of the frame just begun, in one piece whose content is arbitrary,
    /// for the caller to fill in. Returns `None` if the sink has no such piece (no buffer, or none
    /// long enough); the caller then builds the frame by the other calls, or gives it up by
    /// [`end`](TxSink::end).
    ///
    /// Payload with a CRC leaves by this path: the caller reads the payload once, for the copy and
    /// the CRC together.
    fn whole(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Appends `len` bytes, in one piece whose content is arbitrary, for the caller to fill in.
    /// Returns `None` if the sink has no such piece; the caller then gives the frame up by
    /// [`end`](TxSink::end), which drops it.
    fn piece(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Appends a copy of `bytes`.
    fn bytes(&mut self, bytes: &[u8]);

    /// Appends registered memory, by reference where the port can gather.
    fn memory(&mut self, range: MemRange);

    /// Appends a header, the head of a message, its payload and what follows the payload: four pieces,
    /// as most frames have them.
    #[inline]
    fn message(&mut self, header: &[u8], head: &[u8], payload: MemRange, tail: &[u8]) {
        self.bytes(header);
        self.bytes(head);
        self.memory(payload);
        self.bytes(tail);
    }

    /// Finishes the frame and queues it for the port. If the sink cannot finish a frame (no
    /// buffers), it drops and counts the frame, as a full wire would drop it; the protocol
    /// retransmits the bytes.
    fn end(&mut self, offload: Offload);
}
