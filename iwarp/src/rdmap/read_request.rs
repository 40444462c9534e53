use crate::types::Stag;

/// Bytes of a Read Request header, which is the whole payload of the message.
pub const READ_REQUEST_LEN: usize = 28;

/// The header of an RDMA Read Request (section 4.4).
///
/// The sink is memory of the one who asks, the source memory of the one who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Where the answer goes: repeated in the Read Response without being looked at.
    pub sink_stag: Stag,
    /// And at which offset.
    pub sink_to: u64,
    /// Bytes asked for; 0 is allowed, and then neither STag is checked.
    pub size: u32,
    /// What to read.
    pub src_stag: Stag,
    /// And from which offset.
    pub src_to: u64,
}

/// A Read Request payload of another length than its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Read Request of {have} bytes, not {READ_REQUEST_LEN}")]
pub struct ReadRequestError {
    /// Bytes there are.
    pub have: usize,
}

impl ReadRequest {
    /// Reads the payload of a Read Request; it holds the header and nothing else (figure 5).
    ///
    /// # Errors
    /// When it is shorter or longer.
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

    /// The header on the wire.
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
