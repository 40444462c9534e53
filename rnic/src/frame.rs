//! The trait of a received frame that an RNIC takes.

use heddle_tcp::RxFrame;

/// A received TCP frame, which may know the CRC of the FPDU in it.
///
/// If the port has not verified TCP's checksum, the stack reads the whole payload for the checksum,
/// and the queue pair reads the payload once more for the CRC of the FPDU. Our senders put one
/// whole FPDU into a segment, as RFC 5044 (section 5.1) recommends, so a frame can compute both in
/// one pass when the stack asks for the checksum ([`RxFrame::sum_segment`]).
/// [`Rnic::wants_crc`](crate::Rnic::wants_crc) reports whether the CRC is likely to be used.
pub trait RnicFrame: RxFrame {
    /// Returns the CRC-32C of the payload `[off, off + len)` of the frame without its last four
    /// bytes (the CRC of an FPDU that fills the payload), if the frame computed the CRC while it
    /// summed the segment.
    fn payload_crc(&self, off: usize, len: usize) -> Option<u32> {
        let _ = (off, len);
        None
    }
}
