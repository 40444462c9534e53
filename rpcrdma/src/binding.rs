//! Upper-layer bindings: which items of a program's arguments and results may be placed, and how long
//! replies can be (RFC 8166 section 6, draft Appendix A).
//!
//! A [`Binding`] walks through arguments or results with a [`Stream`], which it tells of each item that
//! may be placed. The same walk serves all four: a requester and a responder that look for items to
//! take out of a message, and their peers, in whose message some are missing; a stream knows the
//! chunks, passes over what is in one, and refuses a chunk that is not of an item.
//!
//! [`Table`] is a binding made of a list of procedures, for one's own programs; [`NFS3`] is one.

mod nfs3;
#[cfg(test)]
mod tests;

pub use nfs3::{NFS3, NFS3_PROCEDURES};

use crate::reduce::{Item, chunk_fits};
use crate::rpc::Procedure;
use crate::xdr::{self, Reader, padded};

/// Most items of a message that are looked for.
pub const ITEMS_MAX: usize = 16;

/// Items of a message that may be placed, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Items {
    items: [Item; ITEMS_MAX],
    len: usize,
}

impl Items {
    /// The items.
    pub fn as_slice(&self) -> &[Item] {
        self.items.get(..self.len).unwrap_or(&self.items)
    }

    fn push(&mut self, item: Item) -> Result<(), Error> {
        *self.items.get_mut(self.len).ok_or(Error::TooMany)? = item;
        self.len += 1;
        Ok(())
    }
}

/// What is in chunks and not in the stream.
#[derive(Clone, Copy, Debug)]
pub enum Chunks<'a> {
    /// Nothing: the stream is not reduced.
    None,
    /// A call's Read chunks: positions and lengths, in order. In version 1 a chunk may have its item's
    /// padding.
    Read {
        /// The chunks.
        chunks: &'a [Item],
        /// Whether chunks may have padding.
        padding: bool,
    },
    /// A reply's Write chunks: how many octets each was filled with, in the order of the list. One of
    /// none says that its item is in the stream.
    Write(&'a [u32]),
}

/// What cannot be the arguments or results of its procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not XDR of its type.
    #[error(transparent)]
    Xdr(#[from] xdr::Error),
    /// A chunk that is not of an item that may be placed.
    #[error("chunk at {position} is of no item that may be placed")]
    Ineligible {
        /// Its position; of a Write chunk its index, from 0.
        position: u32,
    },
    /// A chunk of another length than its item.
    #[error("chunk of {chunk} octets for the item of {length} at {offset}")]
    Length {
        /// Offset of the item.
        offset: u32,
        /// Octets of the chunk.
        chunk: u32,
        /// Octets of the item, as the stream says.
        length: u32,
    },
    /// More than [`ITEMS_MAX`] items.
    #[error("more than {ITEMS_MAX} items")]
    TooMany,
}

/// Arguments or results, from which items may be missing.
#[derive(Debug)]
pub struct Stream<'a> {
    r: Reader<'a>,
    /// Offset of the next octet in the unreduced Payload stream.
    at: u32,
    chunks: Chunks<'a>,
    /// Chunks that were met.
    met: usize,
    items: Items,
}

impl<'a> Stream<'a> {
    /// Of `octets`, which begin at `offset` in the Payload stream: behind the RPC header.
    pub fn new(octets: &'a [u8], offset: u32, chunks: Chunks<'a>) -> Stream<'a> {
        Stream { r: Reader::new(octets), at: offset, chunks, met: 0, items: Items::default() }
    }

    /// Reads with `read`, something in which no item may be placed.
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

    /// An unsigned integer.
    ///
    /// # Errors
    /// [`Error::Xdr`].
    pub fn u32(&mut self) -> Result<u32, Error> {
        self.pass(Reader::u32)
    }

    /// An unsigned hyper integer.
    ///
    /// # Errors
    /// [`Error::Xdr`].
    pub fn u64(&mut self) -> Result<u64, Error> {
        self.pass(Reader::u64)
    }

    /// A boolean, or the flag in front of optional data.
    ///
    /// # Errors
    /// [`Error::Xdr`].
    pub fn flag(&mut self) -> Result<bool, Error> {
        self.pass(Reader::flag)
    }

    /// Opaque data or a string of at most `max` octets, which may not be placed.
    ///
    /// # Errors
    /// [`Error::Xdr`].
    pub fn opaque(&mut self, max: u32) -> Result<&'a [u8], Error> {
        self.pass(|r| r.opaque(max))
    }

    /// `len` octets, whatever they are.
    ///
    /// # Errors
    /// [`Error::Xdr`].
    pub fn skip(&mut self, len: usize) -> Result<(), Error> {
        self.pass(|r| r.take(len).map(drop))
    }

    /// Opaque data or a string which may be placed: in the stream, or in the next chunk.
    ///
    /// # Errors
    /// [`Error::Xdr`]; [`Error::Length`] when the chunk is of another length than the stream says;
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
            // Of each item, also one that was not placed.
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

    /// All items, when every chunk was of one.
    fn finish(self) -> Result<Items, Error> {
        let left = match self.chunks {
            Chunks::None => None,
            Chunks::Read { chunks, .. } => chunks.get(self.met).map(|c| c.offset),
            // Write chunks are of items by their order.
            Chunks::Write(lengths) => (0u32..)
                .zip(lengths)
                .skip(self.items.len)
                .find(|&(_, &length)| length > 0)
                .map(|(index, _)| index),
        };
        left.map_or(Ok(self.items), |position| Err(Error::Ineligible { position }))
    }
}

/// How long a reply can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplySize {
    /// Octets of the results without those of an item that may be placed.
    pub stream: u32,
    /// Octets of the longest such item; 0 when there is none.
    pub item: u32,
}

/// A program's binding.
pub trait Binding {
    /// Walks through the arguments of `procedure` up to the last item that may be placed.
    ///
    /// # Errors
    /// When they are none.
    fn walk_arguments(&self, procedure: Procedure, arguments: &mut Stream<'_>)
    -> Result<(), Error>;

    /// Walks through the results of `procedure` up to the last item that may be placed.
    ///
    /// # Errors
    /// When they are none.
    fn walk_results(&self, procedure: Procedure, results: &mut Stream<'_>) -> Result<(), Error>;

    /// The longest results of a call with these arguments, behind the RPC header; `None` when there is
    /// no limit, or it is not known.
    fn reply_size(&self, procedure: Procedure, arguments: &[u8]) -> Option<ReplySize>;

    /// Whether calls of `procedure` have a reply; those that have none are call-only (draft section 4.7).
    fn has_reply(&self, _procedure: Procedure) -> bool {
        true
    }

    /// The items of a call's arguments that may be placed, with their offsets in the unreduced stream.
    ///
    /// # Errors
    /// What is wrong with the arguments or the chunks. A responder refuses the call: chunks by an error
    /// of the transport, arguments by GARBAGE_ARGS.
    fn arguments(&self, procedure: Procedure, mut arguments: Stream<'_>) -> Result<Items, Error> {
        self.walk_arguments(procedure, &mut arguments)?;
        arguments.finish()
    }

    /// The items of a call's results that may be placed, likewise.
    ///
    /// # Errors
    /// What is wrong with the results or the chunks: the requester ends the call with an error.
    fn results(&self, procedure: Procedure, mut results: Stream<'_>) -> Result<Items, Error> {
        self.walk_results(procedure, &mut results)?;
        results.finish()
    }
}

/// A walk through arguments or results, up to the last item that may be placed.
pub type Walk = fn(&mut Stream<'_>) -> Result<(), Error>;

/// How long results are.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    /// It is not known.
    Unknown,
    /// At most so many octets, none of which may be placed.
    Fixed(u32),
    /// There are none, and no reply: version 2 alone has such calls (draft section 4.7).
    None,
    /// It depends on the arguments.
    Of(fn(&mut Reader<'_>) -> Result<ReplySize, xdr::Error>),
}

/// A procedure of a [`Table`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Which one.
    pub procedure: Procedure,
    /// Items of its arguments; without, none may be placed.
    pub arguments: Option<Walk>,
    /// Items of its results.
    pub results: Option<Walk>,
    /// The longest results.
    pub reply: Reply,
}

/// A binding made of procedures. Of one that it does not have, nothing may be placed.
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
