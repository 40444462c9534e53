//! The FPDU: a ULPDU with its length before it, pad and CRC after it (RFC 5044 section 4).
//!
//! ```text
//! | ULPDU length (2, big-endian) | ULPDU | pad 0..3 | CRC (4, least significant byte first) |
//! ```
//!
//! The length counts only the ULPDU. The CRC field is always present and covers everything before
//! it; when neither side asked for CRCs, the field may hold anything and a receiver must ignore it.
//! The CRC is plain CRC-32C. MPA refers to its polynomial form in iSCSI, which puts the least
//! significant byte first.

use crate::ddp;

/// Bytes of the ULPDU length.
pub const HEADER_LEN: usize = 2;
/// Bytes of the CRC.
pub const CRC_LEN: usize = 4;
/// Smallest MULPDU, however small the TCP segment is (section 3).
pub const MIN_MULPDU: u16 = 128;
/// Largest ULPDU that an end may send (section 3).
pub const MAX_MULPDU: u16 = 64768;
/// Bytes of the longest FPDU without markers that a length field can announce.
pub const MAX_FPDU_LEN: usize = fpdu_len(u16::MAX);
/// Bytes of the shortest FPDU that holds a DDP segment.
pub const MIN_FPDU_LEN: usize = 20;
const _: () = assert!(fpdu_len(14) == MIN_FPDU_LEN && ddp::TAGGED_LEN == 14);

/// Returns the number of bytes of the pad after a ULPDU.
#[inline]
pub const fn pad_len(ulpdu_len: u16) -> usize {
    (HEADER_LEN + ulpdu_len as usize).wrapping_neg() & 3
}

/// Returns the number of bytes of the FPDU of a ULPDU, markers not counted; a multiple of 4.
#[inline]
pub const fn fpdu_len(ulpdu_len: u16) -> usize {
    HEADER_LEN + ulpdu_len as usize + pad_len(ulpdu_len) + CRC_LEN
}

/// Returns the largest ULPDU whose FPDU fits a TCP segment of `emss` bytes (section 4.5), within
/// [`MIN_MULPDU`]..=[`MAX_MULPDU`].
///
/// With markers the result allows for the worst case: as many markers as can fall into such a
/// segment.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "limited to MAX_MULPDU")]
pub const fn mulpdu(emss: u32, markers: bool) -> u16 {
    let marker_bytes = if markers { 4 * emss.div_ceil(512) } else { 0 };
    let overhead = 6 + marker_bytes + emss % 4;
    let n = emss.saturating_sub(overhead);
    if n < MIN_MULPDU as u32 {
        MIN_MULPDU
    } else if n > MAX_MULPDU as u32 {
        MAX_MULPDU
    } else {
        n as u16
    }
}

/// Returns the CRC-32C of `bytes`, continued from `crc`; start with 0.
#[inline]
pub fn crc(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// Returns a CRC as it is on the wire.
#[inline]
pub const fn crc_to_wire(crc: u32) -> [u8; CRC_LEN] {
    crc.to_le_bytes()
}

/// Returns a CRC that was read from the wire.
#[inline]
pub const fn crc_from_wire(bytes: [u8; CRC_LEN]) -> u32 {
    u32::from_le_bytes(bytes)
}

/// Appends the FPDU of `ulpdu` to `out`. The function copies, so it is for tests, tools and the
/// marker path.
///
/// The CRC field is zero when `with_crc` is false.
///
/// # Errors
/// Fails with [`TooLong`] and appends nothing when the ULPDU exceeds [`MAX_MULPDU`].
pub fn append(ulpdu: &[u8], with_crc: bool, out: &mut Vec<u8>) -> Result<(), TooLong> {
    let len = match u16::try_from(ulpdu.len()) {
        Ok(n) if n <= MAX_MULPDU => n,
        _ => return Err(TooLong { have: ulpdu.len() }),
    };
    let start = out.len();
    out.reserve(fpdu_len(len));
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(ulpdu);
    out.resize(out.len() + pad_len(len), 0);
    let c = if with_crc { crc(0, &out[start..]) } else { 0 };
    out.extend_from_slice(&crc_to_wire(c));
    Ok(())
}

/// The error for a ULPDU longer than MPA may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ULPDU of {have} bytes exceeds {MAX_MULPDU}")]
pub struct TooLong {
    /// Bytes of the ULPDU.
    pub have: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The DDP segment of the example in section 4.4: an untagged Send header and 24 zeros.
    fn sample_ulpdu(msn: u8) -> Vec<u8> {
        let mut u = vec![0x41, 0x43];
        u.resize(42, 0);
        u[13] = msn;
        u
    }

    #[test]
    fn test_crc_is_crc32c_in_little_endian_order() {
        // The check value of CRC-32C (polynomial 0x1EDC6F41, reflected).
        assert_eq!(crc(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc(crc(0, b"1234"), b"56789"), 0xe306_9283);
        assert_eq!(crc_to_wire(0xe306_9283), [0x83, 0x92, 0x06, 0xe3]);
        assert_eq!(crc_from_wire(crc_to_wire(0x0102_0304)), 0x0102_0304);
        // Figure 5 of RFC 5044: marker, length 0x2a, Send, MSN 1, and its CRC.
        let mut b = vec![0, 0, 0, 0, 0, 0x2a];
        b.extend_from_slice(&sample_ulpdu(1));
        assert_eq!(crc_to_wire(crc(0, &b)), [0x52, 0x23, 0x99, 0x83]);
    }

    #[test]
    fn test_append_writes_length_ulpdu_zero_pad_crc() {
        let mut out = vec![0xee];
        append(b"\x41\x42\x43", true, &mut out).unwrap();
        assert_eq!(out.len(), 1 + 12);
        assert_eq!(out[1..9], *b"\x00\x03\x41\x42\x43\x00\x00\x00");
        assert_eq!(out[9..], crc_to_wire(crc(0, &out[1..9])));
        let mut out = Vec::new();
        append(b"\x41\x42\x43", false, &mut out).unwrap();
        assert_eq!(out, b"\x00\x03\x41\x42\x43\x00\x00\x00\x00\x00\x00\x00");
    }

    #[test]
    fn test_append_refuses_one_byte_more_than_the_limit() {
        let mut out = Vec::new();
        let max = usize::from(MAX_MULPDU);
        assert_eq!(append(&vec![0; max + 1], true, &mut out), Err(TooLong { have: max + 1 }));
        assert!(out.is_empty());
        assert_eq!(append(&vec![0; max], true, &mut out), Ok(()));
    }

    #[test]
    fn test_mulpdu_follows_both_formulas() {
        assert_eq!(mulpdu(1460, false), 1454);
        assert_eq!(mulpdu(1448, false), 1442);
        assert_eq!(mulpdu(1461, false), 1454);
        assert_eq!(mulpdu(1463, false), 1454);
        assert_eq!(mulpdu(1460, true), 1460 - 6 - 12);
        assert_eq!(mulpdu(1536, true), 1536 - 6 - 12);
        assert_eq!(mulpdu(1537, true), 1537 - 6 - 16 - 1);
    }

    #[test]
    fn test_mulpdu_stays_in_its_range() {
        for markers in [false, true] {
            for emss in [0, 1, 100, 133] {
                assert_eq!(mulpdu(emss, markers), MIN_MULPDU);
            }
            assert_eq!(mulpdu(u32::MAX, markers), MAX_MULPDU);
        }
        assert_eq!(mulpdu(137, false), MIN_MULPDU + 2);
        assert_eq!(mulpdu(64774, false), 64766, "rounded down to whole words");
        assert_eq!(mulpdu(65000, false), MAX_MULPDU);
    }

    proptest! {
        #[test]
        fn test_fpdu_of_mulpdu_fits_the_segment(emss in 140u32..65535) {
            let m = mulpdu(emss, false);
            prop_assert!(fpdu_len(m) <= emss as usize);
            if m < MAX_MULPDU {
                prop_assert!(fpdu_len(m + 1) > (emss & !3) as usize, "and is as large as can be");
            }
        }

        #[test]
        fn test_fpdu_length_is_the_least_number_of_whole_words(n: u16) {
            let (len, least) = (fpdu_len(n), usize::from(n) + 6);
            prop_assert!(len % 4 == 0 && len >= least && len < least + 4);
            prop_assert_eq!(pad_len(n), len - least);
        }
    }
}
