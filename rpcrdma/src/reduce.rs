//! Taking data items out of a Payload stream, and inserting them again (RFC 8166 section 3.4, draft
//! sections 4.4.2 and 4.5).
//!
//! This module computes numbers only: which bytes of a message stay, and where arriving bytes
//! belong. Nothing is copied here, so a sender can gather the remaining bytes where they are, and a
//! responder can let RDMA Reads place chunks in the buffer from which it reads the call.
//!
//! ```text
//!   unreduced   ──────────── n ┃ item of n bytes  ┃ padding ┃────────┃ end
//!                              ▲ position, offset
//!   reduced     ──────────── n ┃────────┃ end
//!   chunk                      ┃ item of n bytes  ┃
//! ```
//!
//! Positions are offsets in the *unreduced* stream. The item's length stays in the stream, and its
//! padding is not sent at all, because the receiver can compute it. Version 1 lets a requester put
//! padding into a Read chunk (section 3.4.5.2). Such a chunk is a multiple of four, so its bytes
//! and the following bytes get the same offsets, and [`Assembly`] is the same for both versions.

#[cfg(test)]
mod tests;

use crate::chunk::{WriteChunk, WriteList};
use crate::xdr::padded;

/// A data item of an unreduced stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Offset of the item's first byte, after its length: a multiple of four.
    pub offset: u32,
    /// Length in bytes, without padding.
    pub length: u32,
}

impl Item {
    /// Returns the offset of the next item in the stream.
    fn end(self) -> Option<u32> {
        let padded = u32::try_from(padded(self.length as usize)).ok()?;
        self.offset.checked_add(padded)
    }
}

/// The reason why an item cannot be taken out of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// The offset is not a multiple of four.
    #[error("item at {offset} is not aligned")]
    Unaligned {
        /// Offset of the item.
        offset: u32,
    },
    /// The item begins before the preceding item ends, or within the RPC header.
    #[error("item at {offset} begins before {free}")]
    Order {
        /// Offset of the item.
        offset: u32,
        /// First offset at which the item could have begun.
        free: u32,
    },
    /// The item is empty: there is nothing to place.
    #[error("item at {offset} is empty")]
    Empty {
        /// Offset of the item.
        offset: u32,
    },
    /// The item or its padding ends after the stream.
    #[error("item at {offset} ends behind the stream")]
    Beyond {
        /// Offset of the item.
        offset: u32,
    },
}

/// A piece of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset of the piece in the stream.
    pub offset: u32,
    /// Length in bytes; never 0.
    pub length: u32,
}

/// A stream without some of its items, which the sender puts into chunks.
#[derive(Clone, Copy, Debug)]
pub struct Reduction<I> {
    total: u32,
    reduced: u32,
    items: I,
}

impl<I: Iterator<Item = Item> + Clone> Reduction<I> {
    /// Takes `items`, in order, out of a stream of `total` bytes, of which the first `header` bytes
    /// are the RPC header.
    ///
    /// # Errors
    /// Returns the fault in an item.
    pub fn new(total: u32, header: u32, items: I) -> Result<Reduction<I>, ItemError> {
        let (mut free, mut reduced) = (header, total);
        for item in items.clone() {
            let Item { offset, length } = item;
            if !offset.is_multiple_of(4) {
                return Err(ItemError::Unaligned { offset });
            }
            if offset < free {
                return Err(ItemError::Order { offset, free });
            }
            if length == 0 {
                return Err(ItemError::Empty { offset });
            }
            let Some(end) = item.end().filter(|&end| end <= total) else {
                return Err(ItemError::Beyond { offset });
            };
            reduced -= end - offset;
            free = end;
        }
        Ok(Reduction { total, reduced, items })
    }

    /// Returns the length of the reduced stream in bytes.
    pub fn reduced_len(&self) -> u32 {
        self.reduced
    }

    /// Returns the items that are taken out, with a chunk for each. Their offsets are positions.
    pub fn items(&self) -> I {
        self.items.clone()
    }

    /// Returns the pieces of the unreduced stream that stay, in order. Together they are the
    /// reduced stream.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + use<I> {
        let total = self.total;
        let mut items = self.items.clone();
        let mut at = Some(0);
        core::iter::from_fn(move || {
            while let Some(offset) = at {
                let (end, next) = match items.next() {
                    Some(item) => (item.offset, item.end()),
                    None => (total, None),
                };
                at = next;
                if end > offset {
                    return Some(Piece { offset, length: end - offset });
                }
            }
            None
        })
    }
}

/// The reason why a chunk has no place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// The position is within the RPC header, or within the preceding chunk.
    #[error("chunk at {position} begins before {free}")]
    Order {
        /// Position of the chunk.
        position: u32,
        /// First position at which the chunk could have begun.
        free: u32,
    },
    /// The reduced stream ends before the chunk's position.
    #[error("chunk at {position}, the stream ends at {end}")]
    Beyond {
        /// Position of the chunk.
        position: u32,
        /// Position at which the stream ends.
        end: u32,
    },
    /// The stream would be longer than the limit.
    #[error("stream of more than {max} bytes")]
    TooLong {
        /// Largest length of the stream in bytes.
        max: u32,
    },
}

/// A part of an unreduced stream, by its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes of the reduced stream.
    Stream {
        /// Offset in the reduced stream.
        from: u32,
        /// Place in the unreduced stream.
        to: Piece,
    },
    /// A chunk: the place is the sink for the RDMA Reads of the chunk's segments.
    Chunk {
        /// Index of the chunk, from 0.
        index: usize,
        /// Place in the unreduced stream.
        to: Piece,
    },
    /// Zeros, which the sender left out.
    Padding {
        /// Place in the unreduced stream; at most three bytes.
        to: Piece,
    },
}

/// An unreduced stream that is assembled from a reduced stream and chunks.
#[derive(Clone, Copy, Debug)]
pub struct Assembly<C> {
    reduced: u32,
    total: u32,
    chunks: C,
}

impl<C: Iterator<Item = Item> + Clone> Assembly<C> {
    /// Inserts `chunks`, each with its position and length, in order of positions, into a reduced
    /// stream of `reduced` bytes, of which the first `header` bytes are the RPC header. The
    /// assembled stream may have `max` bytes.
    ///
    /// # Errors
    /// Returns the fault in a chunk, or in all chunks together. A responder refuses the call by a
    /// transport error or, if it has begun the call, by GARBAGE_ARGS.
    pub fn new(
        reduced: u32,
        header: u32,
        chunks: C,
        max: u32,
    ) -> Result<Assembly<C>, AssembleError> {
        let too_long = AssembleError::TooLong { max };
        let (mut free, mut total) = (header, reduced);
        for chunk in chunks.clone() {
            let position = chunk.offset;
            if position < free || !position.is_multiple_of(4) {
                return Err(AssembleError::Order { position, free });
            }
            // `total` is where the stream ends with the chunks so far.
            if position > total {
                return Err(AssembleError::Beyond { position, end: total });
            }
            free = chunk.end().ok_or(too_long)?;
            total = total.checked_add(free - position).ok_or(too_long)?;
        }
        if total > max {
            return Err(too_long);
        }
        Ok(Assembly { reduced, total, chunks })
    }

    /// Returns the length of the unreduced stream in bytes.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns the parts of the stream, from its beginning to its end.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<C> {
        let Assembly { reduced, total, .. } = *self;
        let mut chunks = self.chunks.clone().enumerate().peekable();
        // Bytes already covered, in the unreduced and in the reduced stream.
        let (mut at, mut from) = (0, 0);
        let mut padding = 0;
        core::iter::from_fn(move || {
            if padding > 0 {
                let to = Piece { offset: at, length: padding };
                (at, padding) = (at + padding, 0);
                return Some(Part::Padding { to });
            }
            // Skip empty chunks, which take no place.
            while chunks.next_if(|(_, c)| c.length == 0).is_some() {}
            if let Some((index, chunk)) = chunks.next_if(|(_, c)| c.offset == at) {
                let to = Piece { offset: at, length: chunk.length };
                at += chunk.length;
                padding = chunk.length.wrapping_neg() % 4;
                return Some(Part::Chunk { index, to });
            }
            let end = chunks.peek().map_or(total, |(_, c)| c.offset);
            let length = (end - at).min(reduced - from);
            if length == 0 {
                return None;
            }
            let part = Part::Stream { from, to: Piece { offset: at, length } };
            (at, from) = (at + length, from + length);
            Some(part)
        })
    }
}

/// Returns true if a chunk of `chunk` bytes fits an item whose length in the stream is `length`. In
/// version 1 a Read chunk may also hold the item's padding.
pub const fn chunk_fits(chunk: u32, length: u32, may_have_padding: bool) -> bool {
    chunk == length || (may_have_padding && chunk as usize == padded(length as usize))
}

/// The error that a Write chunk is shorter than the result that must go into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Write chunk {chunk} is shorter than its result of {needed} bytes")]
pub struct Shortage {
    /// Number of the chunk, from 1, as version 2 reports it.
    pub chunk: u32,
    /// Length of the result in bytes.
    pub needed: u32,
}

/// The assignment of results to Write chunks (RFC 8166 section 4.3.2, RFC 8267 section 6.4.1): the
/// first eligible result goes into the first chunk, and so on. A result stays in the stream when
/// its chunk is empty or missing. A chunk is returned unused when its result is missing or empty.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    items: &'a [Item],
    writes: WriteList<'a>,
}

impl<'a> Placement<'a> {
    /// Assigns all results that may be placed to all chunks that the requester provided.
    ///
    /// # Errors
    /// Returns an error when a chunk is too short.
    pub fn new(items: &'a [Item], writes: WriteList<'a>) -> Result<Placement<'a>, Shortage> {
        let placement = Placement { items, writes };
        let too_short = |(item, chunk): &(Item, WriteChunk<'_>)| chunk.length() < item.length;
        let mut numbered = (1..).zip(placement.pairs());
        match numbered.find(|(_, pair)| pair.as_ref().is_some_and(too_short)) {
            Some((chunk, Some((item, _)))) => Err(Shortage { chunk, needed: item.length }),
            _ => Ok(placement),
        }
    }

    /// Returns for each result the chunk into which it goes, if any.
    fn pairs(&self) -> impl Iterator<Item = Option<(Item, WriteChunk<'a>)>> + Clone + use<'a> {
        let Placement { items, writes } = *self;
        items.iter().enumerate().map(move |(i, &item)| {
            let chunk = writes.chunks().nth(i).filter(|c| !c.is_empty() && item.length > 0)?;
            Some((item, chunk))
        })
    }

    /// Returns the placed results with their chunks, each filled to the length of its result. The
    /// items are those of the [`Reduction`].
    pub fn placed(&self) -> impl Iterator<Item = (Item, WriteChunk<'a>)> + Clone + use<'a> {
        self.pairs().flatten().map(|(item, chunk)| (item, chunk.filled(item.length)))
    }

    /// Returns the chunks as the reply returns them, in the order of the list.
    pub fn returned(&self) -> impl Iterator<Item = WriteChunk<'a>> + use<'a> {
        let items = self.items;
        self.writes
            .chunks()
            .enumerate()
            .map(move |(i, chunk)| chunk.filled(items.get(i).map_or(0, |item| item.length)))
    }
}
