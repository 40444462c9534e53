//! Write chunks and Write lists (RFC 8166 section 3.4.6, draft section 4.5.2). A Reply chunk is a
//! Write chunk.

use core::fmt;

use super::{Error, Fault, Limits, sum};
use crate::segment::Segment;
use crate::xdr::{Reader, Writer};

#[derive(Clone, Copy)]
enum Store<'a> {
    /// Segments as they were received.
    Wire(&'a [u8]),
    /// A sender's.
    Values(&'a [Segment]),
}

/// A checked Write chunk. A requester says by it where a result may be put, its responder how much of
/// it was.
#[derive(Clone, Copy)]
pub struct WriteChunk<'a> {
    store: Store<'a>,
    /// Octets that are filled, from the first segment on; `None` leaves the lengths as they are.
    filled: Option<u32>,
}

impl<'a> WriteChunk<'a> {
    /// One without segments.
    pub const EMPTY: WriteChunk<'static> = WriteChunk { store: Store::Values(&[]), filled: None };

    /// That of a requester.
    ///
    /// # Errors
    /// When a receiver would refuse it; `at` is the index of the segment.
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
        let octets = r.take(Segment::LEN.saturating_mul(count as usize))?;
        let chunk = WriteChunk { store: Store::Wire(octets), filled: None };
        chunk.check().map_err(|(i, fault)| Error { at: start + i * Segment::LEN, fault })?;
        Ok(chunk)
    }

    fn check(&self) -> Result<(), (usize, Fault)> {
        match self.provided().position(|s| !s.fits()) {
            Some(at) => Err((at, Fault::SegmentWraps)),
            None => sum(self.provided().map(|s| s.length)).map(drop).map_err(|f| (0, f)),
        }
    }

    /// The same chunk as its responder returns it when the first `octets` of it are filled: all
    /// segments, with the lengths that were used. More than it has room for is as much as it has.
    #[must_use]
    pub fn filled(self, octets: u32) -> WriteChunk<'a> {
        WriteChunk { filled: Some(octets), ..self }
    }

    /// Number of segments; an *empty* chunk has none.
    pub fn len(&self) -> usize {
        match self.store {
            Store::Wire(octets) => octets.len() / Segment::LEN,
            Store::Values(segments) => segments.len(),
        }
    }

    /// Whether it has no segments. One that has segments of no octets is *unused*, not empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, index: usize) -> Option<Segment> {
        match self.store {
            Store::Wire(octets) => {
                Some(Segment::of(octets.get(index.checked_mul(Segment::LEN)?..)?))
            }
            Store::Values(segments) => segments.get(index).copied(),
        }
    }

    /// Segments as they were before they were filled.
    fn provided(&self) -> impl Iterator<Item = Segment> + use<'a> {
        let chunk = *self;
        (0..chunk.len()).filter_map(move |i| chunk.get(i))
    }

    /// The segments in order.
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

    /// Octets of all segments.
    pub fn length(&self) -> u32 {
        sum(self.segments().map(|s| s.length)).unwrap_or(u32::MAX)
    }

    /// Checks this chunk, which a responder has returned, with the one it was `provided`: the same
    /// segments, filled one behind another. Gives the octets there are.
    ///
    /// A chunk that was not used may come back without segments: RFC 8267 section 6.4.1 asks for
    /// that, RFC 8166 section 4.3.2.2 for all segments with no octets.
    ///
    /// # Errors
    /// What the responder has done otherwise.
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
        // As many as were decoded or checked fit.
        w.u32(u32::try_from(self.len()).unwrap_or(u32::MAX));
        self.encode_segments(w);
    }

    /// The same without its count.
    pub(crate) fn encode_segments(&self, w: &mut Writer<'_>) {
        match (self.store, self.filled) {
            (Store::Wire(octets), None) => w.raw(octets),
            _ => self.segments().for_each(|s| s.encode(w)),
        }
    }

    /// One that was decoded before, of its segments.
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

/// A responder has returned another chunk than it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReturnedError {
    /// Another number of segments, or of chunks in the list.
    #[error("{returned} returned of {provided}")]
    Count {
        /// As many as there were.
        provided: usize,
        /// As many as there are.
        returned: usize,
    },
    /// A segment with another handle or offset.
    #[error("segment {index} is another")]
    Other {
        /// Which one, from 0.
        index: usize,
    },
    /// A segment with more octets than it has room for.
    #[error("segment {index} is longer than it was")]
    Longer {
        /// Which one, from 0.
        index: usize,
    },
    /// A segment is used though one before it is not full.
    #[error("segment {index} is used before those in front of it are full")]
    Gap {
        /// Which one, from 0.
        index: usize,
    },
}

#[derive(Clone, Copy)]
enum Chunks<'a> {
    /// Entries as they were received, each with its flag, without the last flag; and how many.
    Wire(&'a [u8], usize),
    /// A sender's.
    Values(&'a [WriteChunk<'a>]),
}

/// A checked Write list.
#[derive(Clone, Copy)]
pub struct WriteList<'a>(Chunks<'a>);

impl<'a> WriteList<'a> {
    /// That of a message without Write chunks.
    pub const EMPTY: WriteList<'static> = WriteList(Chunks::Values(&[]));

    /// That of a sender.
    pub const fn new(chunks: &'a [WriteChunk<'a>]) -> WriteList<'a> {
        WriteList(Chunks::Values(chunks))
    }

    pub(crate) fn decode(r: &mut Reader<'a>, limits: &Limits) -> Result<WriteList<'a>, Error> {
        let start = r.at();
        let mut count = 0;
        loop {
            let end = r.at();
            if !r.flag()? {
                let octets = r.since(start).get(..end - start).unwrap_or(&[]);
                return Ok(WriteList(Chunks::Wire(octets, count)));
            }
            if count == usize::from(limits.write_chunks) {
                let fault = Fault::WriteChunks { max: limits.write_chunks };
                return Err(Error { at: end, fault });
            }
            WriteChunk::decode(r, limits)?;
            count += 1;
        }
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        match self.0 {
            Chunks::Wire(_, count) => count,
            Chunks::Values(chunks) => chunks.len(),
        }
    }

    /// Whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The chunks in the order of the list.
    pub fn chunks(&self) -> impl Iterator<Item = WriteChunk<'a>> + use<'a> {
        let (octets, values) = match self.0 {
            Chunks::Wire(octets, _) => (octets, &[][..]),
            Chunks::Values(chunks) => (&[][..], chunks),
        };
        let mut r = Reader::new(octets);
        let received = core::iter::from_fn(move || {
            r.flag().ok()?;
            let count = r.u32().ok()?;
            let octets = r.take(Segment::LEN.saturating_mul(count as usize)).ok()?;
            Some(WriteChunk { store: Store::Wire(octets), filled: None })
        });
        received.chain(values.iter().copied())
    }

    /// Checks this list, which a responder has returned, with the one it was `provided`, as
    /// [`WriteChunk::returned`] does.
    ///
    /// # Errors
    /// The index of the chunk, from 0, and what is wrong with it; for a list of another length, its
    /// length and that.
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

    /// The same without what ends it.
    pub(crate) fn encode_entries(&self, w: &mut Writer<'_>) {
        match self.0 {
            Chunks::Wire(octets, _) => w.raw(octets),
            Chunks::Values(chunks) => {
                for chunk in chunks {
                    w.flag(true);
                    chunk.encode(w);
                }
            }
        }
    }

    /// One of so many chunks that was decoded before, of its entries.
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
