use heddle_types::Stag;

/// Bytes of a Read Request header, which is the whole payload of the message.
pub const READ_REQUEST_LEN: usize = 28;

/// The header of an RDMA Read Request (section 4.4).
///
/// The sink is memory of the requester, the source memory of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// STag of the sink. The responder repeats it in the Read Response and does not check it.
    pub sink_stag: Stag,
    /// Tagged offset in the sink.
    pub sink_to: u64,
    /// Bytes to read; 0 is allowed, and then neither STag is checked.
    pub size: u32,
    /// STag of the source.
    pub src_stag: Stag,
    /// Tagged offset in the source.
    pub src_to: u64,
}

/// The error for a Read Request payload that is longer or shorter than its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Read Request of {have} bytes, not {READ_REQUEST_LEN}")]
pub struct ReadRequestError {
    /// Bytes of the payload.
    pub have: usize,
}

impl ReadRequest {
    /// Reads the payload of a Read Request, which holds the header and nothing else (figure 5).
    ///
    /// # Errors
    /// Fails when the payload is shorter or longer than the header.
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<ReadRequest, ReadRequestError> {
        let Ok(b) = <&[u8; READ_REQUEST_LEN]>::try_from(payload) else {
            return Err(ReadRequestError { have: payload.len() });
        };
        let be32 = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let be64 = |at: usize| u64::from(be32(at)) << 32 | u64::from(be32(at + 4));
        Ok(ReadRequest {
            sink_stag: Stag(be32(0)),
            sink_to: be64(4),
            size: be32(12),
            src_stag: Stag(be32(16)),
            src_to: be64(20),
        })
    }

    /// Returns the header as on the wire.
    #[inline]
    pub fn emit(&self) -> [u8; READ_REQUEST_LEN] {
        let mut b = [0; READ_REQUEST_LEN];
        b[0..4].copy_from_slice(&self.sink_stag.0.to_be_bytes());
        b[4..12].copy_from_slice(&self.sink_to.to_be_bytes());
        b[12..16].copy_from_slice(&self.size.to_be_bytes());
        b[16..20].copy_from_slice(&self.src_stag.0.to_be_bytes());
        b[20..28].copy_from_slice(&self.src_to.to_be_bytes());
        b
    }
}
