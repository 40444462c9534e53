use crate::types::Msn;
use core::fmt;

use heddle_types::Stag;

/// The DDP version that Heddle uses (the DV field).
pub const VERSION: u8 = 1;
/// Bytes of a tagged header.
pub const TAGGED_LEN: usize = 14;
/// Bytes of an untagged header.
pub const UNTAGGED_LEN: usize = 18;
/// Bytes of the longest header.
pub const MAX_LEN: usize = UNTAGGED_LEN;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;

/// A DDP queue number (QN), which names a queue of untagged buffers.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qn(pub u32);

impl Qn {
    /// Sends, and Immediate Data (RFC 7306).
    pub const SEND: Qn = Qn(0);
    /// Read Requests, and Atomic Requests (RFC 7306).
    pub const READ_REQUEST: Qn = Qn(1);
    /// Terminates.
    pub const TERMINATE: Qn = Qn(2);
    /// Atomic Responses (RFC 7306).
    pub const ATOMIC_RESPONSE: Qn = Qn(3);
    /// The highest queue number of a stream.
    pub const LAST: Qn = Qn::ATOMIC_RESPONSE;
}

impl fmt::Debug for Qn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Qn::SEND => f.write_str("Send"),
            Qn::READ_REQUEST => f.write_str("ReadRequest"),
            Qn::TERMINATE => f.write_str("Terminate"),
            Qn::ATOMIC_RESPONSE => f.write_str("AtomicResponse"),
            Qn(n) => write!(f, "Qn({n})"),
        }
    }
}

impl fmt::Display for Qn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The header of a DDP segment.
///
/// `rsvd_ulp` belongs to the layer above, where [`rdmap::Control`](crate::rdmap::Control) reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DdpHeader {
    /// A segment for a buffer that the receiver advertised (section 4.2).
    Tagged {
        /// True if the segment ends its message.
        last: bool,
        /// The byte that DDP reserves for the layer above (RsvdULP).
        rsvd_ulp: u8,
        /// The buffer's STag.
        stag: Stag,
        /// The payload's place in the buffer: a tagged offset, in bytes.
        to: u64,
    },
    /// A segment for the next buffer of a queue (section 4.3).
    Untagged {
        /// True if the segment ends its message.
        last: bool,
        /// The first byte that DDP reserves for the layer above (RsvdULP).
        rsvd_ulp: u8,
        /// The other four bytes that DDP reserves for the layer above, in host order.
        rsvd_ulp32: u32,
        /// The queue that the message goes to.
        qn: Qn,
        /// The number of the message on its queue; the first is 1.
        msn: Msn,
        /// The payload's place in the message, in bytes from its start.
        mo: u32,
    },
}

/// The reasons for which bytes are not a DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DdpError {
    /// The segment ends inside its header.
    #[error("DDP segment of {have} bytes cannot hold its header of {need}")]
    Short {
        /// Bytes of the segment.
        have: usize,
        /// Bytes of the header.
        need: usize,
    },
    /// A version other than [`VERSION`].
    #[error("DDP version {version} in a {} segment", if *tagged { "tagged" } else { "untagged" })]
    Version {
        /// True for the tagged header, whose error codes differ from the untagged header's.
        tagged: bool,
        /// The value of the DV field.
        version: u8,
    },
}

/// Returns the first six bytes of a tagged header as a number, most significant first: DDP's
/// control byte, the byte of the layer above, STag. The tagged offset follows.
#[inline]
pub(crate) const fn tagged_start(last: bool, rsvd_ulp: u8, stag: Stag) -> u64 {
    let control = TAGGED | if last { LAST } else { 0 } | VERSION;
    (control as u64) << 40 | (rsvd_ulp as u64) << 32 | stag.0 as u64
}

/// Returns the first six bytes of an untagged header, as [`tagged_start`] does. QN, MSN and MO
/// follow.
#[inline]
pub(crate) const fn untagged_start(last: bool, rsvd_ulp: u8, rsvd_ulp32: u32) -> u64 {
    let control = if last { LAST } else { 0 } | VERSION;
    (control as u64) << 40 | (rsvd_ulp as u64) << 32 | rsvd_ulp32 as u64
}

impl DdpHeader {
    /// Reads the header at the start of a DDP segment and returns it with its length; the payload
    /// is the rest of the segment.
    ///
    /// # Errors
    /// Fails with a [`DdpError`] when the segment is too short for its header or of another
    /// version. An empty segment counts as one that needs an untagged header.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(DdpHeader, usize), DdpError> {
        let have = segment.len();
        let Some(&control) = segment.first() else {
            return Err(DdpError::Short { have, need: UNTAGGED_LEN });
        };
        let tagged = control & TAGGED != 0;
        // Check the version first: another version may have a header of another length.
        let version = control & VERSION_MASK;
        if version != VERSION {
            return Err(DdpError::Version { tagged, version });
        }
        let last = control & LAST != 0;
        if tagged {
            let Some(bytes) = segment.first_chunk::<TAGGED_LEN>() else {
                return Err(DdpError::Short { have, need: TAGGED_LEN });
            };
            let &[_, rsvd_ulp, a, b, c, d, ref to @ ..] = bytes;
            let stag = Stag(u32::from_be_bytes([a, b, c, d]));
            let to = u64::from_be_bytes(*to);
            Ok((DdpHeader::Tagged { last, rsvd_ulp, stag, to }, TAGGED_LEN))
        } else {
            let Some(b) = segment.first_chunk::<UNTAGGED_LEN>() else {
                return Err(DdpError::Short { have, need: UNTAGGED_LEN });
            };
            let header = DdpHeader::Untagged {
                last,
                rsvd_ulp: b[1],
                rsvd_ulp32: be32(b, 2),
                qn: Qn(be32(b, 6)),
                msn: Msn(be32(b, 10)),
                mo: be32(b, 14),
            };
            Ok((header, UNTAGGED_LEN))
        }
    }

    /// Writes the header to the start of `out` and returns its length.
    ///
    /// # Panics
    /// Panics when `out` is shorter than [`len`](Self::len): a mistake of the caller, never of the
    /// peer.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        match *self {
            DdpHeader::Tagged { last, rsvd_ulp, stag, to } => {
                let b = &mut out[..TAGGED_LEN];
                b[0] = TAGGED | if last { LAST } else { 0 } | VERSION;
                b[1] = rsvd_ulp;
                b[2..6].copy_from_slice(&stag.0.to_be_bytes());
                b[6..14].copy_from_slice(&to.to_be_bytes());
                TAGGED_LEN
            }
            DdpHeader::Untagged { last, rsvd_ulp, rsvd_ulp32, qn, msn, mo } => {
                let b = &mut out[..UNTAGGED_LEN];
                b[0] = if last { LAST } else { 0 } | VERSION;
                b[1] = rsvd_ulp;
                b[2..6].copy_from_slice(&rsvd_ulp32.to_be_bytes());
                b[6..10].copy_from_slice(&qn.0.to_be_bytes());
                b[10..14].copy_from_slice(&msn.0.to_be_bytes());
                b[14..18].copy_from_slice(&mo.to_be_bytes());
                UNTAGGED_LEN
            }
        }
    }

    /// Returns the number of bytes of the header on the wire.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub const fn len(&self) -> usize {
        match self {
            DdpHeader::Tagged { .. } => TAGGED_LEN,
            DdpHeader::Untagged { .. } => UNTAGGED_LEN,
        }
    }

    /// Returns true if the segment ends its message.
    pub const fn is_last(&self) -> bool {
        match *self {
            DdpHeader::Tagged { last, .. } | DdpHeader::Untagged { last, .. } => last,
        }
    }

    /// Returns true if the segment goes to a tagged buffer.
    pub const fn is_tagged(&self) -> bool {
        matches!(self, DdpHeader::Tagged { .. })
    }

    /// Returns the byte of the layer above that both headers have.
    pub const fn rsvd_ulp(&self) -> u8 {
        match *self {
            DdpHeader::Tagged { rsvd_ulp, .. } | DdpHeader::Untagged { rsvd_ulp, .. } => rsvd_ulp,
        }
    }
}

#[inline]
const fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
