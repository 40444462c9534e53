//! Counters of the joint between TCP and iWARP.

heddle_base::counters! {
    /// Counters of one RNIC, beside those of its TCP stack and queue pairs.
    pub struct RnicCounters {
        /// Payload bytes taken from received segments.
        rx_payload_bytes,
        /// Segments whose bytes went to the queue pair straight from the frame.
        rx_direct,
        /// Segments that had to wait for the rest of an FPDU.
        rx_held,
        /// Segments beyond a gap that the RNIC kept, as a whole or an end of them.
        rx_ahead,
        /// FPDUs in segments beyond a gap that a marker located and the RNIC placed at once.
        rx_placed_ahead,
        /// Bytes of the FPDUs placed beyond a gap, in TCP's stream, headers and markers included.
        rx_placed_ahead_bytes,
        /// Segments beyond a gap, or ends of them, that the RNIC refused: the connection had used
        /// up its share of the buffers for such bytes, or had too many gaps. The peer retransmits
        /// them.
        rx_refused,
        /// Segments in order that the RNIC refused, in part or as a whole: the peer's address had
        /// used up its share of the memory for unfinished FPDUs. The peer retransmits them.
        rx_unfinished_refused,
        /// Connections that the RNIC ended because the peer left an FPDU unfinished, or a gap open,
        /// for too long.
        unfinished_timeouts,
        /// Times a connection began to wait for a receive because a message of the peer found none.
        rnr_waits,
        /// Segments in order that the RNIC refused because they came after a message that waits for
        /// a receive. The peer retransmits them.
        rnr_refused,
        /// Bytes that the RNIC copied a second time because keeping their frame would have wasted
        /// buffers.
        held_copied_bytes,
        /// Bytes beyond a start-up's needs that arrived before FPDU mode, and that the RNIC
        /// refused.
        startup_overflow_bytes,
        /// Bytes that arrived for a connection whose queue pair no longer exists.
        rx_after_close_bytes,
        /// Streams that peers closed in the middle of an FPDU or message.
        rx_truncated,
        /// FPDUs made.
        tx_fpdus,
        /// Bytes of FPDUs made.
        tx_fpdu_bytes,
        /// Segments built from FPDUs or start-up bytes.
        tx_segments,
        /// Frames of several segments each, which the port cuts into these segments.
        tx_trains,
        /// Segments among `tx_segments` that the RNIC had sent before.
        tx_retransmits,
        /// Payload bytes that the RNIC copied into their frame in the pass that computed their CRC.
        tx_digested_bytes,
        /// Segments whose payload the RNIC read once for the CRC and once more for the frame,
        /// because the port had no buffer for the whole frame, or TCP cut the segment at other
        /// places than FPDUs.
        tx_digested_apart,
        /// Payload bytes that the RNIC handed to the port by reference to registered memory.
        tx_referenced_bytes,
        /// Connections of the RNIC with itself on which FPDUs go from queue pair to queue pair
        /// without frames.
        handed_connections,
        /// FPDUs handed over without frames.
        handed_fpdus,
        /// Bytes of FPDUs handed over, headers included.
        handed_bytes,
    }
}
