use heddle_types::{AtomicOp, Stag};

/// Bytes of an Atomic Request header, which is the whole payload of the message.
pub const ATOMIC_REQUEST_LEN: usize = 52;

/// Bytes of an Atomic Response header, which is the whole payload of the message.
pub const ATOMIC_RESPONSE_LEN: usize = 12;

/// The header of an Atomic Request (RFC 7306 section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The requester's own mark, which the response repeats.
    pub id: u32,
    /// The responder's region.
    pub stag: Stag,
    /// Tagged offset of the 64 bits. The address that it stands for must be a multiple of 8.
    pub to: u64,
    /// The operation to carry out on the 64 bits.
    pub op: AtomicOp,
}

/// The reasons for which an Atomic Request cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomicRequestError {
    /// The payload is shorter or longer than the header.
    #[error("Atomic Request of {have} bytes, not {ATOMIC_REQUEST_LEN}")]
    Length {
        /// Bytes of the payload.
        have: usize,
    },
    /// No RFC assigns the code of the operation.
    #[error("atomic operation code {code:#x} is not assigned")]
    Code {
        /// The code, 4 bits.
        code: u8,
    },
}

/// Codes from the registry in RFC 7306 section 10.1.
const FETCH_ADD: u8 = 0;
const CMP_SWAP: u8 = 2;

impl AtomicRequest {
    /// Reads the payload of an Atomic Request, which holds the header and nothing else. Ignores
    /// fields that the operation does not use.
    ///
    /// # Errors
    /// Fails when the length is not that of the header or the operation's code is not assigned.
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<AtomicRequest, AtomicRequestError> {
        let Ok(b) = <&[u8; ATOMIC_REQUEST_LEN]>::try_from(payload) else {
            return Err(AtomicRequestError::Length { have: payload.len() });
        };
        let be32 = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let be64 = |at: usize| u64::from(be32(at)) << 32 | u64::from(be32(at + 4));
        let (data, mask) = (be64(20), be64(28));
        let op = match b[3] & 0x0f {
            FETCH_ADD => AtomicOp::FetchAdd { add: data, mask },
            CMP_SWAP => AtomicOp::CmpSwap {
                compare: be64(36),
                compare_mask: be64(44),
                swap: data,
                swap_mask: mask,
            },
            code => return Err(AtomicRequestError::Code { code }),
        };
        Ok(AtomicRequest { id: be32(4), stag: Stag(be32(8)), to: be64(12), op })
    }

    /// Returns the header as on the wire. Fields that the operation does not use have the values
    /// that RFC 7306 gives them.
    #[inline]
    pub fn emit(&self) -> [u8; ATOMIC_REQUEST_LEN] {
        let (code, data, mask, compare, compare_mask) = match self.op {
            AtomicOp::FetchAdd { add, mask } => (FETCH_ADD, add, mask, 0, u64::MAX),
            AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                (CMP_SWAP, swap, swap_mask, compare, compare_mask)
            }
        };
        let mut b = [0; ATOMIC_REQUEST_LEN];
        b[3] = code;
        b[4..8].copy_from_slice(&self.id.to_be_bytes());
        b[8..12].copy_from_slice(&self.stag.0.to_be_bytes());
        b[12..20].copy_from_slice(&self.to.to_be_bytes());
        b[20..28].copy_from_slice(&data.to_be_bytes());
        b[28..36].copy_from_slice(&mask.to_be_bytes());
        b[36..44].copy_from_slice(&compare.to_be_bytes());
        b[44..52].copy_from_slice(&compare_mask.to_be_bytes());
        b
    }
}

/// The header of an Atomic Response (RFC 7306 section 5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The mark that the request carried.
    pub id: u32,
    /// The value that memory held before the operation.
    pub original: u64,
}

/// The error for an Atomic Response that is longer or shorter than its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Atomic Response of {have} bytes, not {ATOMIC_RESPONSE_LEN}")]
pub struct AtomicResponseError {
    /// Bytes of the payload.
    pub have: usize,
}

impl AtomicResponse {
    /// Reads the payload of an Atomic Response, which holds the header and nothing else.
    ///
    /// # Errors
    /// Fails when the payload is shorter or longer than the header.
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<AtomicResponse, AtomicResponseError> {
        let Ok([a, b, c, d, original @ ..]) = <[u8; ATOMIC_RESPONSE_LEN]>::try_from(payload) else {
            return Err(AtomicResponseError { have: payload.len() });
        };
        let id = u32::from_be_bytes([a, b, c, d]);
        Ok(AtomicResponse { id, original: u64::from_be_bytes(original) })
    }

    /// Returns the header as on the wire.
    #[inline]
    pub fn emit(&self) -> [u8; ATOMIC_RESPONSE_LEN] {
        let mut b = [0; ATOMIC_RESPONSE_LEN];
        b[..4].copy_from_slice(&self.id.to_be_bytes());
        b[4..].copy_from_slice(&self.original.to_be_bytes());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the masked sum, computed bit by bit as the RFC's pseudocode does.
    fn add_by_bits(original: u64, add: u64, mask: u64) -> u64 {
        let (mut carry, mut out) = (0, 0);
        for bit in 0..64 {
            let sum = carry + (original >> bit & 1) + (add >> bit & 1);
            out |= (sum & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { sum >> 1 };
        }
        out
    }

    #[test]
    fn test_fetch_add_without_mask_adds_64_bits() {
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        assert_eq!(op.apply(0xffff_ffff), 0x1_0000_0000);
        assert_eq!(op.apply(u64::MAX), 0);
    }

    #[test]
    fn test_fetch_add_drops_the_carry_out_of_each_field() {
        // Two fields of 32 bits: the lower overflows, and the upper does not receive the carry.
        let op = AtomicOp::FetchAdd { add: 0x0000_0001_0000_0001, mask: 0x8000_0000_8000_0000 };
        assert_eq!(op.apply(0x0000_0007_ffff_ffff), 0x0000_0008_0000_0000);
        // 64 fields of one bit each: exclusive or.
        let op = AtomicOp::FetchAdd { add: 0b1100, mask: u64::MAX };
        assert_eq!(op.apply(0b1010), 0b0110);
    }

    #[test]
    fn test_compare_and_swap_compares_and_stores_only_masked_bits() {
        let op = AtomicOp::CmpSwap {
            compare: 0x00ff,
            compare_mask: 0x00f0,
            swap: 0xabcd,
            swap_mask: 0xff00,
        };
        assert_eq!(op.apply(0x12f4), 0xabf4, "bits 4 to 7 are equal");
        assert_eq!(op.apply(0x12e4), 0x12e4, "and here they are not");
        assert_eq!(AtomicOp::swap(7).apply(0xdead), 7);
    }

    #[test]
    fn test_fetch_add_request_matches_expected_bytes() {
        let op = AtomicOp::FetchAdd { add: 0x0102_0304_0506_0708, mask: 0x8000_0000_0000_0000 };
        let r = AtomicRequest { id: 0x1112_1314, stag: Stag(0x2122_2324), to: 0x3132_3334, op };
        let b = r.emit();
        assert_eq!(
            b[..36],
            [
                0, 0, 0, 0, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0, 0, 0, 0, 0x31, 0x32,
                0x33, 0x34, 1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0, 0, 0, 0, 0, 0, 0
            ]
        );
        assert_eq!(b[36..44], [0; 8], "compare data are zero");
        assert_eq!(b[44..], [0xff; 8], "the compare mask is all ones");
        assert_eq!(AtomicRequest::parse(&b), Ok(r));
    }

    #[test]
    fn test_compare_and_swap_request_matches_expected_bytes() {
        let op = AtomicOp::CmpSwap { compare: 1, compare_mask: 2, swap: 3, swap_mask: 4 };
        let b = AtomicRequest { id: 9, stag: Stag(8), to: 7, op }.emit();
        assert_eq!((b[3], b[27], b[35], b[43], b[51]), (2, 3, 4, 1, 2));
    }

    #[test]
    fn test_atomic_request_of_unknown_code_or_wrong_length_is_refused() {
        let op = AtomicOp::swap(1);
        let mut b = AtomicRequest { id: 0, stag: Stag(1), to: 0, op }.emit();
        for code in [1, 3, 15] {
            b[3] = code;
            assert_eq!(AtomicRequest::parse(&b), Err(AtomicRequestError::Code { code }));
        }
        assert_eq!(AtomicRequest::parse(&b[..51]), Err(AtomicRequestError::Length { have: 51 }));
        let have = 13;
        assert_eq!(AtomicResponse::parse(&[0; 13]), Err(AtomicResponseError { have }));
    }

    #[test]
    fn test_reserved_bits_of_the_code_word_are_ignored() {
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let r = AtomicRequest { id: 0, stag: Stag(1), to: 0, op };
        let mut b = r.emit();
        b[..3].fill(0xff);
        b[3] |= 0xf0;
        assert_eq!(AtomicRequest::parse(&b), Ok(r));
    }

    #[test]
    fn test_atomic_response_matches_expected_bytes() {
        let r = AtomicResponse { id: 0x0102_0304, original: 0x1112_1314_1516_1718 };
        let b = r.emit();
        assert_eq!(b, [1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!(AtomicResponse::parse(&b), Ok(r));
    }

    proptest! {
        #[test]
        fn test_masked_sum_equals_the_sum_bit_by_bit(a: u64, b: u64, mask: u64) {
            let op = AtomicOp::FetchAdd { add: b, mask };
            prop_assert_eq!(op.apply(a), add_by_bits(a, b, mask));
        }
    }
}
