//! Upper-layer bindings. A binding states which items of a program's arguments and results are
//! eligible for direct placement, and how long replies can be (RFC 8166 section 6, draft Appendix
//! A).
//!
//! A [`Binding`] walks through arguments or results with a [`Stream`] and reports to the stream
//! each item that may be placed. The same walk serves four readers: a requester or a responder that
//! looks for items to take out of a message, and the peer of either, whose message lacks some
//! items. The stream knows the chunks, skips each item that is in a chunk, and refuses a chunk that
//! belongs to no item.
//!
//! A [`Table`] is a binding made of a list of procedures, for an application's own programs.
//! [`NFS3`] is a ready-made table.

mod nfs3;
#[cfg(test)]
mod tests;

pub use nfs3::{NFS3, NFS3_PROCEDURES};

use crate::reduce::{Item, chunk_fits};
use crate::rpc::Procedure;
use crate::xdr::{self, Reader, padded};

/// The largest number of eligible items that a walk looks for in one message.
pub const ITEMS_MAX: usize = 16;

/// The items of a message that may be placed, in stream order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Items {
    items: [Item; ITEMS_MAX],
    len: usize,
}

impl Items {
    /// Returns the items in stream order.
    pub fn as_slice(&self) -> &[Item] {
        self.items.get(..self.len).unwrap_or(&self.items)
    }

    fn push(&mut self, item: Item) -> Result<(), Error> {
        *self.items.get_mut(self.len).ok_or(Error::TooMany)? = item;
        self.len += 1;
        Ok(())
    }
}

/// The data that chunks hold and the stream therefore lacks.
#[derive(Clone, Copy, Debug)]
pub enum Chunks<'a> {
    /// No chunks: the stream is not reduced.
    None,
    /// A call's Read chunks: positions and lengths, in order. In version 1 a chunk may also hold
    /// its item's padding.
    Read {
        /// Positions and lengths of the chunks, in stream order.
        chunks: &'a [Item],
        /// True if a chunk may hold its item's padding.
        padding: bool,
    },
    /// A reply's Write chunks: the number of bytes that the responder put into each, in the order
    /// of the list. A length of 0 means that the item is in the stream.
    Write(&'a [u32]),
}

/// The reason why a stream cannot be the arguments or results of its procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The stream is not XDR of the expected type.
    #[error(transparent)]
    Xdr(#[from] xdr::Error),
    /// A chunk belongs to no item that may be placed.
    #[error("chunk at {position} is of no item that may be placed")]
    Ineligible {
        /// The position of a Read chunk, or the index of a Write chunk, from 0.
        position: u32,
    },
    /// The length of a chunk differs from the length of its item.
    #[error("chunk of {chunk} bytes for the item of {length} at {offset}")]
    Length {
        /// Offset of the item in the unreduced stream.
        offset: u32,
        /// Length of the chunk in bytes.
        chunk: u32,
        /// Length of the item in bytes, as the stream states it.
        length: u32,
    },
    /// The message has more than [`ITEMS_MAX`] eligible items.
    #[error("more than {ITEMS_MAX} items")]
    TooMany,
}

/// A stream of arguments or results that may lack the items which chunks hold.
#[derive(Debug)]
pub struct Stream<'a> {
    r: Reader<'a>,
    /// Offset of the next byte in the unreduced Payload stream.
    at: u32,
    chunks: Chunks<'a>,
    /// Number of chunks that the walk has passed.
    met: usize,
    items: Items,
}

impl<'a> Stream<'a> {
    /// Creates a stream over `bytes`, which begin at `offset` in the Payload stream, after the RPC
    /// header.
    pub fn new(bytes: &'a [u8], offset: u32, chunks: Chunks<'a>) -> Stream<'a> {
        Stream { r: Reader::new(bytes), at: offset, chunks, met: 0, items: Items::default() }
    }

    /// Reads with `read` a part that contains no eligible item, and moves the offset along.
    fn pass<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, xdr::Error>,
    ) -> Result<T, Error> {
        let before = self.r.at();
        let value = read(&mut self.r)?;
        let passed = u32::try_from(self.r.at() - before).unwrap_or(u32::MAX);
        self.at = self.at.saturating_add(passed);
        Ok(value)
    }

    /// Reads an unsigned integer.
    ///
    /// # Errors
    /// [`Error::Xdr`].
    pub fn u32(&mut self) -> Result<u32, Error> {
        self.pass(Reader::u32)
    }

    /// Reads an unsigned hyper integer.
    ///
    /// # Errors
    /// [`Error::Xdr`].
    pub fn u64(&mut self) -> Result<u64, Error> {
        self.pass(Reader::u64)
    }

    /// Reads a boolean, or the flag in front of optional data.
    ///
    /// # Errors
    /// [`Error::Xdr`].
    pub fn flag(&mut self) -> Result<bool, Error> {
        self.pass(Reader::flag)
    }

    /// Reads opaque data or a string of at most `max` bytes, which may not be placed.
    ///
    /// # Errors
    /// [`Error::Xdr`].
    pub fn opaque(&mut self, max: u32) -> Result<&'a [u8], Error> {
        self.pass(|r| r.opaque(max))
    }

    /// Skips `len` bytes, whatever their content.
    ///
    /// # Errors
    /// [`Error::Xdr`].
    pub fn skip(&mut self, len: usize) -> Result<(), Error> {
        self.pass(|r| r.take(len).map(drop))
    }

    /// Reads opaque data or a string that may be placed: from the stream, or from the next chunk.
    ///
    /// # Errors
    /// [`Error::Xdr`]; [`Error::Length`] when the chunk and the length in the stream disagree;
    /// [`Error::TooMany`].
    pub fn item(&mut self) -> Result<(), Error> {
        let mut ahead = self.r;
        let length = ahead.u32()?;
        let offset = self.at.saturating_add(4);
        let (chunk, may_have_padding) = match self.chunks {
            Chunks::None => (None, false),
            Chunks::Read { chunks, padding } => {
                let next = chunks.get(self.met).filter(|c| c.offset == offset);
                (next.map(|c| c.length), padding)
            }
            // A Write list has an entry for each item, also for an item that was not placed.
            Chunks::Write(lengths) => {
                (lengths.get(self.items.len).copied().filter(|&l| l > 0), false)
            }
        };
        self.items.push(Item { offset, length })?;
        let Some(chunk) = chunk else {
            self.pass(|r| r.opaque(u32::MAX))?;
            return Ok(());
        };
        if !chunk_fits(chunk, length, may_have_padding) {
            return Err(Error::Length { offset, chunk, length });
        }
        self.met += 1;
        self.r = ahead;
        let padded = u32::try_from(padded(length as usize)).unwrap_or(u32::MAX);
        self.at = offset.saturating_add(padded);
        Ok(())
    }

    /// Returns all items, provided that each chunk belongs to an item.
    fn finish(self) -> Result<Items, Error> {
        let left = match self.chunks {
            Chunks::None => None,
            Chunks::Read { chunks, .. } => chunks.get(self.met).map(|c| c.offset),
            // The order of Write chunks ties them to items, so the first one beyond the items is
            // ineligible.
            Chunks::Write(lengths) => (0u32..)
                .zip(lengths)
                .skip(self.items.len)
                .find(|&(_, &length)| length > 0)
                .map(|(index, _)| index),
        };
        left.map_or(Ok(self.items), |position| Err(Error::Ineligible { position }))
    }
}

/// The longest reply that a call can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplySize {
    /// Length of the results in bytes, without an item that may be placed.
    pub stream: u32,
    /// Length of the longest eligible item in bytes; 0 when the results have none.
    pub item: u32,
}

/// A program's binding.
pub trait Binding {
    /// Walks through the arguments of `procedure` up to the last item that may be placed.
    ///
    /// # Errors
    /// Returns an error when the bytes are not arguments of `procedure`.
    fn walk_arguments(&self, procedure: Procedure, arguments: &mut Stream<'_>)
    -> Result<(), Error>;

    /// Walks through the results of `procedure` up to the last item that may be placed.
    ///
    /// # Errors
    /// Returns an error when the bytes are not results of `procedure`.
    fn walk_results(&self, procedure: Procedure, results: &mut Stream<'_>) -> Result<(), Error>;

    /// Returns the length of the longest results of a call with these arguments, without the RPC
    /// header; `None` when the results have no limit or the binding does not know it.
    fn reply_size(&self, procedure: Procedure, arguments: &[u8]) -> Option<ReplySize>;

    /// Returns true if calls of `procedure` have a reply. Calls without a reply are call-only
    /// (draft section 4.7).
    fn has_reply(&self, _procedure: Procedure) -> bool {
        true
    }

    /// Returns the items of a call's arguments that may be placed, with their offsets in the
    /// unreduced stream.
    ///
    /// # Errors
    /// Returns an error when the arguments or the chunks are wrong. A responder then refuses the
    /// call: with a transport error for bad chunks, with GARBAGE_ARGS for bad arguments.
    fn arguments(&self, procedure: Procedure, mut arguments: Stream<'_>) -> Result<Items, Error> {
        self.walk_arguments(procedure, &mut arguments)?;
        arguments.finish()
    }

    /// Returns the items of a call's results that may be placed, with their offsets in the
    /// unreduced stream.
    ///
    /// # Errors
    /// Returns an error when the results or the chunks are wrong. The requester then ends the call
    /// with an error.
    fn results(&self, procedure: Procedure, mut results: Stream<'_>) -> Result<Items, Error> {
        self.walk_results(procedure, &mut results)?;
        results.finish()
    }
}

/// A function that walks through arguments or results up to the last item that may be placed.
pub type Walk = fn(&mut Stream<'_>) -> Result<(), Error>;

/// The longest results of a procedure.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    /// The binding does not know how long the results can be.
    Unknown,
    /// At most this many bytes, none of which may be placed.
    Fixed(u32),
    /// No results and no reply. Only version 2 has such calls (draft section 4.7).
    None,
    /// The length depends on the arguments, from which the function computes it.
    Of(fn(&mut Reader<'_>) -> Result<ReplySize, xdr::Error>),
}

/// A procedure of a [`Table`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The program, version and procedure that this entry describes.
    pub procedure: Procedure,
    /// Walks through the arguments; with `None`, no item of the arguments may be placed.
    pub arguments: Option<Walk>,
    /// Walks through the results; with `None`, no item of the results may be placed.
    pub results: Option<Walk>,
    /// The longest results of a call.
    pub reply: Reply,
}

/// A binding made of procedures. No item of a procedure that the table lacks may be placed.
///
/// ```
/// use heddle_rpcrdma::binding::{Binding, Chunks, Entry, Reply, ReplySize, Stream, Table};
/// use heddle_rpcrdma::rpc::Procedure;
///
/// // Its argument is a key and a value, its result a value of at most 1 MiB; values may be placed.
/// const PUT: Procedure = Procedure { program: 0x2000_0001, version: 1, procedure: 1 };
/// const STORE: Table<'static> = Table(&[Entry {
///     procedure: PUT,
///     arguments: Some(|s| { s.opaque(255)?; s.item() }),
///     results: Some(|s| s.item()),
///     reply: Reply::Of(|_| Ok(ReplySize { stream: 4, item: 1 << 20 })),
/// }]);
///
/// let arguments = [0, 0, 0, 1, b'k', 0, 0, 0, 0, 0, 0, 2, 8, 9, 0, 0];
/// let items = STORE.arguments(PUT, Stream::new(&arguments, 40, Chunks::None)).unwrap();
/// assert_eq!((items.as_slice()[0].offset, items.as_slice()[0].length), (52, 2));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(pub &'a [Entry]);

impl Table<'_> {
    fn entry(&self, procedure: Procedure) -> Option<&Entry> {
        self.0.iter().find(|e| e.procedure == procedure)
    }
}

impl Binding for Table<'_> {
    fn walk_arguments(
        &self,
        procedure: Procedure,
        arguments: &mut Stream<'_>,
    ) -> Result<(), Error> {
        let walk = self.entry(procedure).and_then(|e| e.arguments);
        walk.map_or(Ok(()), |walk| walk(arguments))
    }

    fn walk_results(&self, procedure: Procedure, results: &mut Stream<'_>) -> Result<(), Error> {
        let walk = self.entry(procedure).and_then(|e| e.results);
        walk.map_or(Ok(()), |walk| walk(results))
    }

    fn reply_size(&self, procedure: Procedure, arguments: &[u8]) -> Option<ReplySize> {
        match self.entry(procedure)?.reply {
            Reply::Unknown => None,
            Reply::Fixed(stream) => Some(ReplySize { stream, item: 0 }),
            Reply::None => Some(ReplySize::default()),
            Reply::Of(size) => size(&mut Reader::new(arguments)).ok(),
        }
    }

    fn has_reply(&self, procedure: Procedure) -> bool {
        !self.entry(procedure).is_some_and(|e| matches!(e.reply, Reply::None))
    }
}
