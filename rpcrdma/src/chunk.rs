//! Chunks and chunk lists (RFC 8166 sections 3.4 and 4.3; draft section 4.5), in the form that the
//! transport headers of both versions share.
//!
//! A list is a *view*: either of the bytes that this end received, or of a slice of segments that
//! this end sends. The constructor or the decoder checks the list once; from then on a caller can
//! iterate over the list without failure or allocation, and encode the same bytes again. The check
//! covers:
//!
//! * structure: flags and counts are valid, and no byte is missing;
//! * numbers: a receiver's [`Limits`] bound the work per message;
//! * segments: no segment wraps around the end of the address space, and no chunk is longer than an
//!   XDR item can be, 2^32 - 1 bytes;
//! * positions: each is a multiple of four, and zero exactly where the header's type has a body
//!   chunk; they increase where the version requires that; and no chunk begins within another.
//!
//! The check does not cover whether the memory exists and is long enough: the RDMA operation finds
//! out.
//!
//! ```text
//!   Read list    { 1 │ position │ handle │ length │ offset 64 } ... 0
//!   Write chunk  count { handle │ length │ offset 64 } ...
//!   Write list   { 1 │ Write chunk } ... 0
//!   Reply chunk  0, or 1 │ Write chunk
//! ```

mod read;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use read::Rule;
pub use read::{ReadChunk, ReadList, ZeroPosition};
pub use write::{ReturnedError, WriteChunk, WriteList};

use crate::xdr;

/// The limits that a receiver sets for one message. A peer that exceeds a limit gets an error as
/// its answer and keeps the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Read chunks in a Read list. Version 1's body chunk is in the same list and comes on top of
    /// this number.
    pub read_chunks: u16,
    /// Write chunks in a Write list.
    pub write_chunks: u16,
    /// Segments in each chunk.
    pub segments: u16,
}

impl Limits {
    /// The least that a server of NFS version 4 must take (RFC 8267 section 6.4.2), with more Write
    /// chunks.
    pub const DEFAULT: Limits = Limits { read_chunks: 4, write_chunks: 4, segments: 16 };

    /// No limits except those that the length of a message implies.
    pub const NONE: Limits =
        Limits { read_chunks: u16::MAX, write_chunks: u16::MAX, segments: u16::MAX };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

/// The reason why a list is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes are not XDR of the expected type.
    #[error(transparent)]
    Xdr(#[from] xdr::Fault),
    /// A position is not a multiple of four.
    #[error("position {position} is not a multiple of four")]
    Unaligned {
        /// The position in the segment.
        position: u32,
    },
    /// A position is zero in a list of data items.
    #[error("a data item at position zero")]
    PositionZero,
    /// A position is not zero in a body chunk.
    #[error("position {position} in a body chunk")]
    BodyPosition {
        /// The position in the segment.
        position: u32,
    },
    /// A body chunk without a segment.
    #[error("body chunk without segments")]
    NoBody,
    /// A position is below its predecessor in a list that must be in order.
    #[error("position {position} behind {before}")]
    Order {
        /// The position of the preceding segment.
        before: u32,
        /// The position that is too low.
        position: u32,
    },
    /// A chunk begins within another chunk.
    #[error("chunk at {position} within the one at {before}")]
    Overlap {
        /// Position at which the enclosing chunk begins.
        before: u32,
        /// Position at which the faulty chunk begins.
        position: u32,
    },
    /// A segment reaches beyond offset 2^64 - 1.
    #[error("segment wraps around the address space")]
    SegmentWraps,
    /// A chunk is longer than 2^32 - 1 bytes, or ends beyond that offset of the stream.
    #[error("chunk longer than an XDR item")]
    ChunkLength,
    /// More Read chunks than the receiver takes.
    #[error("more than {max} Read chunks")]
    ReadChunks {
        /// The receiver's limit.
        max: u16,
    },
    /// More Write chunks than the receiver takes.
    #[error("more than {max} Write chunks")]
    WriteChunks {
        /// The receiver's limit.
        max: u16,
    },
    /// A chunk has more segments than the receiver takes.
    #[error("more than {max} segments in a chunk")]
    Segments {
        /// The receiver's limit.
        max: u16,
    },
}

/// A [`Fault`] and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {fault}")]
pub struct Error {
    /// Byte offset in the received message; for a sender's list, the index of the segment.
    pub at: usize,
    /// The fault at that place.
    pub fault: Fault,
}

impl From<xdr::Error> for Error {
    fn from(e: xdr::Error) -> Error {
        Error { at: e.at, fault: e.fault.into() }
    }
}

/// Returns the length of a chunk: the sum of its segments' lengths, which must not exceed that of
/// an XDR item.
fn sum(lengths: impl Iterator<Item = u32>) -> Result<u32, Fault> {
    let mut sum = 0u32;
    for length in lengths {
        sum = sum.checked_add(length).ok_or(Fault::ChunkLength)?;
    }
    Ok(sum)
}
