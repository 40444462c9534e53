//! What the joint between TCP and iWARP counts.

heddle_base::counters! {
    /// Counters of one RNIC, beside those of its TCP stack and queue pairs.
    pub struct RnicCounters {
        /// Payload octets taken from received segments.
        rx_payload_bytes,
        /// Segments whose bytes went to the queue pair straight from the frame.
        rx_direct,
        /// Segments that had to wait for the rest of an FPDU.
        rx_held,
        /// Segments that arrived ahead of a gap and were kept, or ends of them that were.
        rx_ahead,
        /// FPDUs of segments ahead of a gap that were placed at once, found by a marker.
        rx_placed_ahead,
        /// Octets of these in TCP's stream, headers and markers included.
        rx_placed_ahead_bytes,
        /// Segments ahead of a gap, or ends of them, refused: the connection's share of the buffers
        /// for such bytes was used up, or it had too many gaps. The peer sends them again.
        rx_refused,
        /// Segments in order refused, in part or as a whole: the peer's address had its share of the
        /// memory for FPDUs that are not whole. The peer sends them again.
        rx_unfinished_refused,
        /// Connections ended because the peer left an FPDU unfinished, or a gap, for too long.
        unfinished_timeouts,
        /// Times a connection began to wait for a receive: a message of the peer's had found none.
        rnr_waits,
        /// Segments in order refused because they came behind a message that waits for a receive. The peer
        /// sends them again.
        rnr_refused,
        /// Octets copied because keeping their frame would have wasted buffers: a second copy.
        held_copied_bytes,
        /// Octets that arrived before FPDU mode beyond what a start-up needs, and were refused.
        startup_overflow_bytes,
        /// Octets that arrived for a connection whose queue pair is gone.
        rx_after_close_bytes,
        /// Streams that peers closed in the middle of something.
        rx_truncated,
        /// FPDUs made.
        tx_fpdus,
        /// Octets of FPDUs made.
        tx_fpdu_bytes,
        /// Segments built from FPDUs or start-up bytes.
        tx_segments,
        /// Of those, segments sent before.
        tx_retransmits,
        /// Payload octets copied into their frame in the pass that computed their CRC.
        tx_digested_bytes,
        /// Segments whose payload had to be read for its CRC first and once more for the frame: the
        /// port had no buffer for them, or TCP cut them otherwise than FPDUs.
        tx_digested_apart,
        /// Payload octets handed to the port by reference to registered memory.
        tx_referenced_bytes,
        /// Connections of the RNIC with itself of which FPDUs were handed over without frames.
        handed_connections,
        /// FPDUs handed over.
        handed_fpdus,
        /// Octets of these, headers included.
        handed_bytes,
    }
}
