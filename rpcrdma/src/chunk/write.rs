//! Write chunks and Write lists (RFC 8166 section 3.4.6, draft section 4.5.2). A Reply chunk is a
//! Write chunk.

use core::fmt;

use super::{Error, Fault, Limits, sum};
use crate::segment::Segment;
use crate::xdr::{Reader, Writer};

#[derive(Clone, Copy)]
enum Store<'a> {
    /// Segments as this end received them.
    Wire(&'a [u8]),
    /// Segments that this end sends.
    Values(&'a [Segment]),
}

/// A checked Write chunk. The requester states in a Write chunk where the responder may put a
/// result; the responder returns the chunk with the lengths that it filled.
#[derive(Clone, Copy)]
pub struct WriteChunk<'a> {
    store: Store<'a>,
    /// Number of filled bytes, counted from the first segment on; `None` leaves the lengths as they
    /// are.
    filled: Option<u32>,
}

impl<'a> WriteChunk<'a> {
    /// The chunk without segments.
    pub const EMPTY: WriteChunk<'static> = WriteChunk { store: Store::Values(&[]), filled: None };

    /// Creates a requester's chunk.
    ///
    /// # Errors
    /// Returns an error when a receiver would refuse the chunk; `at` is the index of the segment.
    pub fn new(segments: &'a [Segment]) -> Result<WriteChunk<'a>, Error> {
        let chunk = WriteChunk { store: Store::Values(segments), filled: None };
        if u32::try_from(segments.len()).is_err() {
            return Err(Error { at: segments.len(), fault: Fault::ChunkLength });
        }
        chunk.check().map_err(|(at, fault)| Error { at, fault })?;
        Ok(chunk)
    }

    pub(crate) fn decode(r: &mut Reader<'a>, limits: &Limits) -> Result<WriteChunk<'a>, Error> {
        let at = r.at();
        let count = r.count(u32::MAX)?;
        if count > limits.segments.into() {
            return Err(Error { at, fault: Fault::Segments { max: limits.segments } });
        }
        let start = r.at();
        let bytes = r.take(Segment::LEN.saturating_mul(count as usize))?;
        let chunk = WriteChunk { store: Store::Wire(bytes), filled: None };
        chunk.check().map_err(|(i, fault)| Error { at: start + i * Segment::LEN, fault })?;
        Ok(chunk)
    }

    fn check(&self) -> Result<(), (usize, Fault)> {
        match self.provided().position(|s| !s.fits()) {
            Some(at) => Err((at, Fault::SegmentWraps)),
            None => sum(self.provided().map(|s| s.length)).map(drop).map_err(|f| (0, f)),
        }
    }

    /// Returns the same chunk as its responder returns it after filling the first `bytes` bytes:
    /// all segments, each with the length that was used. A number above the chunk's length fills
    /// the whole chunk.
    #[must_use]
    pub fn filled(self, bytes: u32) -> WriteChunk<'a> {
        WriteChunk { filled: Some(bytes), ..self }
    }

    /// Returns the number of segments; an *empty* chunk has none.
    pub fn len(&self) -> usize {
        match self.store {
            Store::Wire(bytes) => bytes.len() / Segment::LEN,
            Store::Values(segments) => segments.len(),
        }
    }

    /// Returns true if the chunk has no segments. A chunk with segments of length 0 is *unused*,
    /// not empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, index: usize) -> Option<Segment> {
        match self.store {
            Store::Wire(bytes) => Some(Segment::of(bytes.get(index.checked_mul(Segment::LEN)?..)?)),
            Store::Values(segments) => segments.get(index).copied(),
        }
    }

    /// Returns the segments with the lengths that the requester provided.
    fn provided(&self) -> impl Iterator<Item = Segment> + use<'a> {
        let chunk = *self;
        (0..chunk.len()).filter_map(move |i| chunk.get(i))
    }

    /// Returns the segments in order, with the filled lengths if the chunk is filled.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<'a> {
        let mut left = self.filled;
        self.provided().map(move |segment| match &mut left {
            None => segment,
            Some(left) => {
                let length = segment.length.min(*left);
                *left -= length;
                Segment { length, ..segment }
            }
        })
    }

    /// Returns the length of all segments together, in bytes.
    pub fn length(&self) -> u32 {
        sum(self.segments().map(|s| s.length)).unwrap_or(u32::MAX)
    }

    /// Checks this chunk, which a responder returned, against the chunk that the requester
    /// `provided`: the responder must return the same segments, and fill each segment before the
    /// next one. Returns the number of filled bytes.
    ///
    /// A responder may return an unused chunk without segments: RFC 8267 section 6.4.1 asks for
    /// that form, RFC 8166 section 4.3.2.2 for all segments with length 0.
    ///
    /// # Errors
    /// Returns the deviation when the responder returned another chunk.
    pub fn returned(&self, provided: &WriteChunk<'_>) -> Result<u32, ReturnedError> {
        if self.is_empty() {
            return Ok(0);
        }
        if self.len() != provided.len() {
            let (provided, returned) = (provided.len(), self.len());
            return Err(ReturnedError::Count { provided, returned });
        }
        let mut open = true;
        for (index, (is, was)) in self.segments().zip(provided.segments()).enumerate() {
            if (is.handle, is.offset) != (was.handle, was.offset) {
                return Err(ReturnedError::Other { index });
            }
            if is.length > was.length {
                return Err(ReturnedError::Longer { index });
            }
            if !open && is.length > 0 {
                return Err(ReturnedError::Gap { index });
            }
            open &= is.length == was.length;
        }
        Ok(self.length())
    }

    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        // The count fits: decoding or the constructor checked the chunk.
        w.u32(u32::try_from(self.len()).unwrap_or(u32::MAX));
        self.encode_segments(w);
    }

    /// Encodes the segments without their count.
    pub(crate) fn encode_segments(&self, w: &mut Writer<'_>) {
        match (self.store, self.filled) {
            (Store::Wire(bytes), None) => w.raw(bytes),
            _ => self.segments().for_each(|s| s.encode(w)),
        }
    }

    /// Restores a chunk, which was decoded before, from the bytes of its segments.
    pub(crate) const fn received(segments: &'a [u8]) -> WriteChunk<'a> {
        WriteChunk { store: Store::Wire(segments), filled: None }
    }

    pub(crate) fn decode_optional(
        r: &mut Reader<'a>,
        limits: &Limits,
    ) -> Result<Option<WriteChunk<'a>>, Error> {
        if r.flag()? { WriteChunk::decode(r, limits).map(Some) } else { Ok(None) }
    }

    pub(crate) fn encode_optional(chunk: Option<&WriteChunk<'_>>, w: &mut Writer<'_>) {
        w.flag(chunk.is_some());
        if let Some(chunk) = chunk {
            chunk.encode(w);
        }
    }
}

/// The difference between a returned chunk or list and the provided chunk or list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReturnedError {
    /// The number of segments, or of chunks in the list, differs.
    #[error("{returned} returned of {provided}")]
    Count {
        /// Number that the requester provided.
        provided: usize,
        /// Number that the responder returned.
        returned: usize,
    },
    /// A segment has another handle or offset.
    #[error("segment {index} is another")]
    Other {
        /// Index of the segment, from 0.
        index: usize,
    },
    /// A segment is longer than the room that the requester provided.
    #[error("segment {index} is longer than it was")]
    Longer {
        /// Index of the segment, from 0.
        index: usize,
    },
    /// A segment is used although an earlier segment is not full.
    #[error("segment {index} is used before those in front of it are full")]
    Gap {
        /// Index of the segment, from 0.
        index: usize,
    },
}

#[derive(Clone, Copy)]
enum Chunks<'a> {
    /// Entries as this end received them, each with its flag and without the final flag; and their
    /// number.
    Wire(&'a [u8], usize),
    /// Chunks that this end sends.
    Values(&'a [WriteChunk<'a>]),
}

/// A checked Write list.
#[derive(Clone, Copy)]
pub struct WriteList<'a>(Chunks<'a>);

impl<'a> WriteList<'a> {
    /// The list of a message without Write chunks.
    pub const EMPTY: WriteList<'static> = WriteList(Chunks::Values(&[]));

    /// Creates a sender's list.
    pub const fn new(chunks: &'a [WriteChunk<'a>]) -> WriteList<'a> {
        WriteList(Chunks::Values(chunks))
    }

    pub(crate) fn decode(r: &mut Reader<'a>, limits: &Limits) -> Result<WriteList<'a>, Error> {
        let start = r.at();
        let mut count = 0;
        loop {
            let end = r.at();
            if !r.flag()? {
                let bytes = r.since(start).get(..end - start).unwrap_or(&[]);
                return Ok(WriteList(Chunks::Wire(bytes, count)));
            }
            if count == usize::from(limits.write_chunks) {
                let fault = Fault::WriteChunks { max: limits.write_chunks };
                return Err(Error { at: end, fault });
            }
            WriteChunk::decode(r, limits)?;
            count += 1;
        }
    }

    /// Returns the number of chunks.
    pub fn len(&self) -> usize {
        match self.0 {
            Chunks::Wire(_, count) => count,
            Chunks::Values(chunks) => chunks.len(),
        }
    }

    /// Returns true if the list has no chunks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the chunks in the order of the list.
    pub fn chunks(&self) -> impl Iterator<Item = WriteChunk<'a>> + use<'a> {
        let (bytes, values) = match self.0 {
            Chunks::Wire(bytes, _) => (bytes, &[][..]),
            Chunks::Values(chunks) => (&[][..], chunks),
        };
        let mut r = Reader::new(bytes);
        let received = core::iter::from_fn(move || {
            r.flag().ok()?;
            let count = r.u32().ok()?;
            let bytes = r.take(Segment::LEN.saturating_mul(count as usize)).ok()?;
            Some(WriteChunk { store: Store::Wire(bytes), filled: None })
        });
        received.chain(values.iter().copied())
    }

    /// Checks this list, which a responder returned, against the list that the requester
    /// `provided`, chunk by chunk as [`WriteChunk::returned`] does.
    ///
    /// # Errors
    /// Returns the index of the chunk, from 0, and the deviation; when the lengths of the lists
    /// differ, the returned length and [`ReturnedError::Count`].
    pub fn returned(&self, provided: &WriteList<'_>) -> Result<(), (usize, ReturnedError)> {
        if self.len() != provided.len() {
            let (provided, returned) = (provided.len(), self.len());
            return Err((returned, ReturnedError::Count { provided, returned }));
        }
        for (index, (is, was)) in self.chunks().zip(provided.chunks()).enumerate() {
            is.returned(&was).map_err(|e| (index, e))?;
        }
        Ok(())
    }

    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        self.encode_entries(w);
        w.flag(false);
    }

    /// Encodes the entries without the flag that ends the list.
    pub(crate) fn encode_entries(&self, w: &mut Writer<'_>) {
        match self.0 {
            Chunks::Wire(bytes, _) => w.raw(bytes),
            Chunks::Values(chunks) => {
                for chunk in chunks {
                    w.flag(true);
                    chunk.encode(w);
                }
            }
        }
    }

    /// Restores a list of `count` chunks, which was decoded before, from the bytes of its entries.
    pub(crate) const fn received(entries: &'a [u8], count: usize) -> WriteList<'a> {
        WriteList(Chunks::Wire(entries, count))
    }
}

impl PartialEq for WriteChunk<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.segments().eq(other.segments())
    }
}

impl Eq for WriteChunk<'_> {}

impl PartialEq for WriteList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.chunks().eq(other.chunks())
    }
}

impl Eq for WriteList<'_> {}

impl fmt::Debug for WriteChunk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.segments()).finish()
    }
}

impl fmt::Debug for WriteList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.chunks()).finish()
    }
}
