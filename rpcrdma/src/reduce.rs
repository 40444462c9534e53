//! Taking data items out of a Payload stream, and putting them back (RFC 8166 section 3.4, draft
//! sections 4.4.2 and 4.5).
//!
//! Here are numbers only: which octets of a message stay, and where those that arrive belong. Nothing
//! is copied, so that a sender can gather what stays from where it is, and a responder can let RDMA
//! Reads place chunks in the buffer in which it reads the call.
//!
//! ```text
//!   unreduced   ──────────── n ┃ item of n octets ┃ padding ┃────────┃ end
//!                              ▲ position, offset
//!   reduced     ──────────── n ┃────────┃ end
//!   chunk                      ┃ item of n octets ┃
//! ```
//!
//! Positions are offsets in the *unreduced* stream. The item's length stays in the stream, its padding
//! is nowhere: the receiver knows it. Version 1 lets a requester put padding into a Read chunk (section
//! 3.4.5.2); as the chunk is then a multiple of four, its octets and those behind it come out at the
//! same offsets, and [`Assembly`] is the same for both versions.

#[cfg(test)]
mod tests;

use crate::chunk::{WriteChunk, WriteList};
use crate::xdr::padded;

/// A data item of an unreduced stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Offset of its first octet, behind its length: a multiple of four.
    pub offset: u32,
    /// Its octets, without padding.
    pub length: u32,
}

impl Item {
    /// Where the next item of the stream begins.
    fn end(self) -> Option<u32> {
        let padded = u32::try_from(padded(self.length as usize)).ok()?;
        self.offset.checked_add(padded)
    }
}

/// An item that cannot be taken out of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// Its offset is not a multiple of four.
    #[error("item at {offset} is not aligned")]
    Unaligned {
        /// Its offset.
        offset: u32,
    },
    /// It begins before the one in front of it ends, or within the RPC header.
    #[error("item at {offset} begins before {free}")]
    Order {
        /// Its offset.
        offset: u32,
        /// Where it could have begun.
        free: u32,
    },
    /// It has no octets: there is nothing to place.
    #[error("item at {offset} is empty")]
    Empty {
        /// Its offset.
        offset: u32,
    },
    /// It, or its padding, ends behind the stream.
    #[error("item at {offset} ends behind the stream")]
    Beyond {
        /// Its offset.
        offset: u32,
    },
}

/// A piece of a stream: its offset and its octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it is.
    pub offset: u32,
    /// Octets of it; never none.
    pub length: u32,
}

/// A stream without some of its items, which are sent in chunks.
#[derive(Clone, Copy, Debug)]
pub struct Reduction<I> {
    total: u32,
    reduced: u32,
    items: I,
}

impl<I: Iterator<Item = Item> + Clone> Reduction<I> {
    /// Takes `items`, in order, out of a stream of `total` octets, the first `header` of which are the
    /// RPC header.
    ///
    /// # Errors
    /// What is wrong with an item.
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

    /// Octets of the reduced stream.
    pub fn reduced_len(&self) -> u32 {
        self.reduced
    }

    /// What is taken out: a chunk for each. Offsets are positions.
    pub fn items(&self) -> I {
        self.items.clone()
    }

    /// What stays, in order: pieces of the unreduced stream, which together are the reduced one.
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

/// A chunk that has no place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// Its position is within the RPC header, or within the chunk before it.
    #[error("chunk at {position} begins before {free}")]
    Order {
        /// Its position.
        position: u32,
        /// Where it could have begun.
        free: u32,
    },
    /// The reduced stream ends before its position.
    #[error("chunk at {position}, the stream ends at {end}")]
    Beyond {
        /// Its position.
        position: u32,
        /// Where the stream ends.
        end: u32,
    },
    /// The stream would be longer than it may be.
    #[error("stream of more than {max} octets")]
    TooLong {
        /// As many as it may have.
        max: u32,
    },
}

/// What comes where in an unreduced stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Octets of the reduced stream.
    Stream {
        /// Where they are in the reduced stream.
        from: u32,
        /// Where they belong.
        to: Piece,
    },
    /// A chunk: the sink of the RDMA Reads of its segments.
    Chunk {
        /// Which one, from 0.
        index: usize,
        /// Where its octets belong.
        to: Piece,
    },
    /// Zeros, which nobody has sent.
    Padding {
        /// Where they belong; at most three.
        to: Piece,
    },
}

/// An unreduced stream of a reduced one and chunks.
#[derive(Clone, Copy, Debug)]
pub struct Assembly<C> {
    reduced: u32,
    total: u32,
    chunks: C,
}

impl<C: Iterator<Item = Item> + Clone> Assembly<C> {
    /// Puts `chunks`, each with its position and length, in order of positions, into a reduced stream
    /// of `reduced` octets, the first `header` of which are the RPC header. The whole may have `max`
    /// octets.
    ///
    /// # Errors
    /// What is wrong with a chunk, or with all together. A responder refuses the call by an error of
    /// the transport or, if it has begun, by GARBAGE_ARGS.
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
            // So far, the stream ends here.
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

    /// Octets of the unreduced stream.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// What it is made of, from its beginning to its end.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<C> {
        let Assembly { reduced, total, .. } = *self;
        let mut chunks = self.chunks.clone().enumerate().peekable();
        // Of the unreduced and of the reduced stream: what is dealt with.
        let (mut at, mut from) = (0, 0);
        let mut padding = 0;
        core::iter::from_fn(move || {
            if padding > 0 {
                let to = Piece { offset: at, length: padding };
                (at, padding) = (at + padding, 0);
                return Some(Part::Padding { to });
            }
            // Chunks of no octets are nowhere.
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

/// Whether a chunk of `chunk` octets is one of an item whose length in the stream is `length`. In
/// version 1 a Read chunk may have the item's padding, too.
pub const fn chunk_fits(chunk: u32, length: u32, may_have_padding: bool) -> bool {
    chunk == length || (may_have_padding && chunk as usize == padded(length as usize))
}

/// A Write chunk is shorter than the result that must go into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Write chunk {chunk} is shorter than its result of {needed} octets")]
pub struct Shortage {
    /// Which one, from 1, as version 2 tells it.
    pub chunk: u32,
    /// Octets of the result.
    pub needed: u32,
}

/// Which results go into which Write chunks (RFC 8166 section 4.3.2, RFC 8267 section 6.4.1): the
/// first that may be placed into the first chunk, and so on. A result whose chunk is empty, or that
/// has none, stays in the stream; a chunk that has none, or one of no octets, is returned unused.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    items: &'a [Item],
    writes: WriteList<'a>,
}

impl<'a> Placement<'a> {
    /// Of all results that may be placed, and all chunks that were provided.
    ///
    /// # Errors
    /// When a chunk is too short.
    pub fn new(items: &'a [Item], writes: WriteList<'a>) -> Result<Placement<'a>, Shortage> {
        let placement = Placement { items, writes };
        let too_short = |(item, chunk): &(Item, WriteChunk<'_>)| chunk.length() < item.length;
        let mut numbered = (1..).zip(placement.pairs());
        match numbered.find(|(_, pair)| pair.as_ref().is_some_and(too_short)) {
            Some((chunk, Some((item, _)))) => Err(Shortage { chunk, needed: item.length }),
            _ => Ok(placement),
        }
    }

    /// For each chunk the result that goes into it.
    fn pairs(&self) -> impl Iterator<Item = Option<(Item, WriteChunk<'a>)>> + Clone + use<'a> {
        let Placement { items, writes } = *self;
        items.iter().enumerate().map(move |(i, &item)| {
            let chunk = writes.chunks().nth(i).filter(|c| !c.is_empty() && item.length > 0)?;
            Some((item, chunk))
        })
    }

    /// What goes into chunks, and into which: filled as far as it goes. The items are those of the
    /// [`Reduction`].
    pub fn placed(&self) -> impl Iterator<Item = (Item, WriteChunk<'a>)> + Clone + use<'a> {
        self.pairs().flatten().map(|(item, chunk)| (item, chunk.filled(item.length)))
    }

    /// The chunks as they are returned, in the order of the list.
    pub fn returned(&self) -> impl Iterator<Item = WriteChunk<'a>> + use<'a> {
        let items = self.items;
        self.writes
            .chunks()
            .enumerate()
            .map(move |(i, chunk)| chunk.filled(items.get(i).map_or(0, |item| item.length)))
    }
}
