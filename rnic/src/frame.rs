//! A received frame as an RNIC takes it.

use heddle_tcp::RxFrame;

/// A received frame of TCP's, which may know something of the FPDU in it.
///
/// Where nobody has verified TCP's checksum, all payload is read for it, and read once more for the
/// CRC of the FPDU. Our senders, as RFC 5044 (section 5.1) wants it, put one whole FPDU into a
/// segment, so both can be computed in one pass when the stack asks for the checksum
/// ([`RxFrame::sum_segment`]). Whether that is worth while, [`Rnic::wants_crc`](crate::Rnic::wants_crc)
/// tells.
pub trait RnicFrame: RxFrame {
    /// The CRC-32C of the payload `[off, off + len)` of the frame but for its last four octets (the
    /// CRC of an FPDU that fills it), if it was computed in passing.
    fn payload_crc(&self, off: usize, len: usize) -> Option<u32> {
        let _ = (off, len);
        None
    }
}
