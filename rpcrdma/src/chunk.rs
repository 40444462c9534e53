//! Chunks and chunk lists (RFC 8166 sections 3.4 and 4.3; draft section 4.5), as they stand in
//! transport headers of both versions.
//!
//! A list is a *view*: of the octets that were received, or of segments that the sender has in a
//! slice. Either is checked once, when the list is made; from then on it is iterated without failure
//! and without allocation, and written again as the same octets. What is checked:
//!
//! * structure: flags, counts, no octet missing;
//! * numbers: a receiver's [`Limits`], so that work per message is bounded;
//! * segments: none wraps around the end of the address space, and no chunk is longer than an XDR
//!   item can be, 2^32 - 1 octets;
//! * positions: multiples of four, zero where and only where the header's type has a body chunk, in
//!   increasing order where the version wants it, and no chunk in the room of another.
//!
//! What is not checked is whether the memory is there and long enough: the RDMA operation finds out.
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

/// What a receiver takes in one message. A peer that sends more is answered, not disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Read chunks in a Read list. Version 1's body chunk, which is in that list, is one more.
    pub read_chunks: u16,
    /// Write chunks in a Write list.
    pub write_chunks: u16,
    /// Segments of each chunk.
    pub segments: u16,
}

impl Limits {
    /// What a server of NFS version 4 must take at least (RFC 8267 section 6.4.2), with more Write
    /// chunks.
    pub const DEFAULT: Limits = Limits { read_chunks: 4, write_chunks: 4, segments: 16 };

    /// None but those of the length of a message.
    pub const NONE: Limits =
        Limits { read_chunks: u16::MAX, write_chunks: u16::MAX, segments: u16::MAX };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

/// What is wrong with a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not XDR of its type.
    #[error(transparent)]
    Xdr(#[from] xdr::Fault),
    /// A position is not a multiple of four.
    #[error("position {position} is not a multiple of four")]
    Unaligned {
        /// The position.
        position: u32,
    },
    /// A position is zero in a list of data items.
    #[error("a data item at position zero")]
    PositionZero,
    /// A position is not zero in a body chunk.
    #[error("position {position} in a body chunk")]
    BodyPosition {
        /// The position.
        position: u32,
    },
    /// A body chunk without a segment.
    #[error("body chunk without segments")]
    NoBody,
    /// A position is below the one before it.
    #[error("position {position} behind {before}")]
    Order {
        /// The one before.
        before: u32,
        /// The position.
        position: u32,
    },
    /// A chunk begins in the room of another.
    #[error("chunk at {position} within the one at {before}")]
    Overlap {
        /// Where that one begins.
        before: u32,
        /// Where this one begins.
        position: u32,
    },
    /// A segment reaches beyond offset 2^64 - 1.
    #[error("segment wraps around the address space")]
    SegmentWraps,
    /// A chunk, or what is in front of it and it together, is longer than 2^32 - 1 octets.
    #[error("chunk longer than an XDR item")]
    ChunkLength,
    /// More Read chunks than the receiver takes.
    #[error("more than {max} Read chunks")]
    ReadChunks {
        /// As many as it takes.
        max: u16,
    },
    /// More Write chunks than the receiver takes.
    #[error("more than {max} Write chunks")]
    WriteChunks {
        /// As many as it takes.
        max: u16,
    },
    /// A chunk of more segments than the receiver takes.
    #[error("more than {max} segments in a chunk")]
    Segments {
        /// As many as it takes.
        max: u16,
    },
}

/// A [`Fault`], and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at octet {at}: {fault}")]
pub struct Error {
    /// Offset in what was read; for lists of a sender, the index of the segment.
    pub at: usize,
    /// What is wrong.
    pub fault: Fault,
}

impl From<xdr::Error> for Error {
    fn from(e: xdr::Error) -> Error {
        Error { at: e.at, fault: e.fault.into() }
    }
}

/// The length of a chunk: the sum of its segments' lengths, which must be that of an XDR item.
fn sum(lengths: impl Iterator<Item = u32>) -> Result<u32, Fault> {
    let mut sum = 0u32;
    for length in lengths {
        sum = sum.checked_add(length).ok_or(Fault::ChunkLength)?;
    }
    Ok(sum)
}
