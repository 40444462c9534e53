//! Where frames to send are built.

use heddle_iwarp::MemRange;

/// What the port has to compute in a frame handed to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Fill in the IPv4 header checksum.
    pub ip: bool,
    /// Fill in the TCP checksum; the field holds the sum of the pseudo-header.
    pub tcp: bool,
    /// Octets of Ethernet header.
    pub l2_len: u8,
    /// Octets of IP header.
    pub l3_len: u8,
    /// Octets of TCP header.
    pub l4_len: u8,
}

/// Builds one frame at a time out of copied bytes and references to registered memory.
///
/// Calls come in the order of the wire: [`begin`](TxSink::begin), any number of
/// [`bytes`](TxSink::bytes) and [`memory`](TxSink::memory), [`end`](TxSink::end). Or the frame is
/// written in one piece: [`begin`](TxSink::begin), [`whole`](TxSink::whole), [`end`](TxSink::end).
pub trait TxSink {
    /// Whether a frame can be begun: false when the port or its buffers are full.
    fn has_room(&mut self) -> bool;

    /// Starts a frame that will have `len` octets in all.
    fn begin(&mut self, len: usize);

    /// All `len` octets of the frame just begun, in one piece whose content is arbitrary, for the
    /// caller to fill in. `None` when the sink has no such piece (no buffer, or none as long); the
    /// frame is then built by the other calls, or given up by [`end`](TxSink::end).
    ///
    /// This is how payload with a CRC leaves: it is read once, for the copy and the CRC together.
    fn whole(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Appends a copy of `bytes`.
    fn bytes(&mut self, bytes: &[u8]);

    /// Appends registered memory, by reference where the port can gather.
    fn memory(&mut self, range: MemRange);

    /// Appends an FPDU behind its headers: four pieces, as most frames have them.
    #[inline]
    fn fpdu(&mut self, header: &[u8], head: &[u8], payload: MemRange, tail: &[u8]) {
        self.bytes(header);
        self.bytes(head);
        self.memory(payload);
        self.bytes(tail);
    }

    /// Finishes the frame and queues it for the port. A frame that cannot be finished (no buffers)
    /// is dropped and counted there, as a full wire would drop it; TCP sends it again.
    fn end(&mut self, offload: Offload);
}
