//! The payload of a peer's Terminate.

use arrayvec::ArrayVec;

/// Bytes of the longest payload: control field, segment length, the longest DDP header, and the
/// header of a Read Request (RFC 5040 section 4.8).
const MAX_LEN: usize = 52;

/// The payload of a Terminate that the peer sent, in the layout of RFC 5040 section 4.8, with the
/// headers that it repeats. `heddle_iwarp::rdmap::Terminate` reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "document::Payload", into = "document::Payload"))]
pub struct TerminatePayload {
    bytes: ArrayVec<u8, MAX_LEN>,
    swapped: bool,
}

impl TerminatePayload {
    /// Keeps the first bytes of a payload, as many as the longest payload has. `swapped` is true if
    /// the peer wrote the control field in the order of Linux siw on a little-endian machine; the
    /// bytes are in the order of the RFC all the same.
    pub fn new(payload: &[u8], swapped: bool) -> TerminatePayload {
        TerminatePayload { bytes: payload.iter().copied().take(MAX_LEN).collect(), swapped }
    }

    /// Returns the bytes, in the layout of the RFC.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns true if the peer wrote the control field in the order of siw.
    pub const fn swapped(&self) -> bool {
        self.swapped
    }
}

#[cfg(feature = "serde")]
mod document {
    use super::TerminatePayload;

    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) struct Payload {
        payload: Vec<u8>,
        swapped: bool,
    }

    impl From<TerminatePayload> for Payload {
        fn from(t: TerminatePayload) -> Payload {
            Payload { payload: t.as_bytes().to_vec(), swapped: t.swapped }
        }
    }

    impl From<Payload> for TerminatePayload {
        fn from(p: Payload) -> TerminatePayload {
            TerminatePayload::new(&p.payload, p.swapped)
        }
    }
}
