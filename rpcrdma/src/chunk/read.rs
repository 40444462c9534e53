//! Read lists and Read chunks (RFC 8166 section 3.4.5, draft section 4.5.1).

use core::fmt;

use super::{Error, Fault, Limits, sum};
use crate::segment::{ReadSegment, Segment};
use crate::xdr::{Reader, Writer, padded};

/// The role of position zero, which stands for a whole Payload stream, in a Read list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroPosition {
    /// All segments belong to a body chunk at position zero (version 2's Call chunk).
    Only,
    /// The list may have a body chunk beside the chunks of data items (version 1's RDMA_NOMSG).
    Also,
    /// The list has no body chunk: the Payload stream is in the message.
    Never,
}

/// The rule that a Read list must obey.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) zero: ZeroPosition,
    /// True if positions must increase. Version 1 does not require that, and its receivers gather
    /// the segments of a position from anywhere in the list.
    pub(crate) ordered: bool,
}

#[derive(Clone, Copy)]
enum Store<'a> {
    /// Entries as this end received them: each has its flag, and the final flag is cut off.
    Wire(&'a [u8]),
    /// Segments that this end sends.
    Values(&'a [ReadSegment]),
}

/// Length of an entry in bytes: a flag and a segment.
const ENTRY: usize = 4 + ReadSegment::LEN;

/// A checked Read list: the Read chunks of one message.
#[derive(Clone, Copy)]
pub struct ReadList<'a> {
    store: Store<'a>,
    ordered: bool,
}

impl<'a> ReadList<'a> {
    /// The list of a message without Read chunks.
    pub const EMPTY: ReadList<'static> = ReadList { store: Store::Values(&[]), ordered: true };

    /// Creates a sender's list, in order of positions; `zero` states the role of position zero.
    ///
    /// # Errors
    /// Returns an error when a receiver would refuse the list; `at` is the index of the segment.
    pub fn new(segments: &'a [ReadSegment], zero: ZeroPosition) -> Result<ReadList<'a>, Error> {
        let rule = Rule { zero, ordered: true };
        let mut before = None;
        for (at, segment) in segments.iter().enumerate() {
            rule.check(segment, before).map_err(|fault| Error { at, fault })?;
            before = Some(segment.position);
        }
        let list = ReadList { store: Store::Values(segments), ordered: true };
        let whole = |fault| Error { at: segments.len(), fault };
        list.check_chunks(rule, &Limits::NONE).map_err(whole)?;
        Ok(list)
    }

    pub(crate) fn decode(
        r: &mut Reader<'a>,
        rule: Rule,
        limits: &Limits,
    ) -> Result<ReadList<'a>, Error> {
        let start = r.at();
        let body = usize::from(rule.zero == ZeroPosition::Also);
        let chunks = usize::from(limits.read_chunks) + body;
        let most = chunks.saturating_mul(limits.segments.into());
        let (mut before, mut ordered, mut count, mut run) = (None, true, 0, 0u16);
        loop {
            let end = r.at();
            if !r.flag()? {
                let store = Store::Wire(r.since(start).get(..end - start).unwrap_or(&[]));
                let list = ReadList { store, ordered };
                let whole = |fault| Error { at: start, fault };
                list.check_chunks(rule, limits).map_err(whole)?;
                return Ok(list);
            }
            let at = r.at();
            let segment = ReadSegment::decode(r)?;
            rule.check(&segment, before).map_err(|fault| Error { at, fault })?;
            ordered &= before.is_none_or(|before| before <= segment.position);
            run = if before == Some(segment.position) { run.saturating_add(1) } else { 1 };
            before = Some(segment.position);
            if run > limits.segments {
                return Err(Error { at, fault: Fault::Segments { max: limits.segments } });
            }
            // Stop at the number of segments that all chunks together may have. This bounds the
            // work of `check_chunks`.
            count += 1;
            if count > most {
                let fault = Fault::ReadChunks { max: limits.read_chunks };
                return Err(Error { at, fault });
            }
        }
    }

    /// Checks the chunks as wholes: their number, their lengths, their segments, and that no chunk
    /// begins within another.
    fn check_chunks(&self, rule: Rule, limits: &Limits) -> Result<(), Fault> {
        let mut room: Option<(u32, u32)> = None;
        let mut items = 0;
        for chunk in self.raw_chunks() {
            let position = chunk.position;
            items += u32::from(position != 0);
            if items > limits.read_chunks.into() {
                return Err(Fault::ReadChunks { max: limits.read_chunks });
            }
            if chunk.segments().nth(limits.segments.into()).is_some() {
                return Err(Fault::Segments { max: limits.segments });
            }
            let length = sum(chunk.segments().map(|s| s.length))?;
            // Skip the body: positions count in the unreduced stream, so they bound no body chunk,
            // which holds the reduced stream.
            if position == 0 {
                continue;
            }
            if let Some((before, _)) = room.filter(|&(_, end)| position < end) {
                return Err(Fault::Overlap { before, position });
            }
            let padded = u32::try_from(padded(length as usize)).ok();
            let end = padded.and_then(|l| position.checked_add(l)).ok_or(Fault::ChunkLength)?;
            room = Some((position, end));
        }
        match rule.zero {
            ZeroPosition::Only if self.is_empty() => Err(Fault::NoBody),
            _ => Ok(()),
        }
    }

    /// Returns true if the list has no segments.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of segments in all chunks.
    pub fn len(&self) -> usize {
        match self.store {
            Store::Wire(bytes) => bytes.len() / ENTRY,
            Store::Values(segments) => segments.len(),
        }
    }

    fn get(&self, index: usize) -> Option<ReadSegment> {
        match self.store {
            Store::Wire(bytes) => {
                let entry = bytes.get(index.checked_mul(ENTRY)?..)?.get(4..ENTRY)?;
                Some(ReadSegment::of(entry))
            }
            Store::Values(segments) => segments.get(index).copied(),
        }
    }

    /// Returns the segments in the order of the list.
    pub fn segments(&self) -> impl Iterator<Item = ReadSegment> + use<'a> {
        let list = *self;
        (0..list.len()).filter_map(move |i| list.get(i))
    }

    fn raw_chunks(&self) -> Chunks<'a> {
        Chunks { list: *self, next: 0, last: None }
    }

    /// Returns the chunks by increasing position.
    pub fn chunks(&self) -> impl Iterator<Item = ReadChunk<'a>> + use<'a> {
        self.raw_chunks()
    }

    /// Returns the chunk at position zero, which holds the Payload stream.
    pub fn body(&self) -> Option<ReadChunk<'a>> {
        self.raw_chunks().next().filter(|c| c.position == 0)
    }

    /// Returns the chunks of data items by increasing position.
    pub fn items(&self) -> impl Iterator<Item = ReadChunk<'a>> + use<'a> {
        self.raw_chunks().filter(|c| c.position != 0)
    }

    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        match self.store {
            Store::Wire(bytes) => w.raw(bytes),
            Store::Values(segments) => {
                for segment in segments {
                    w.flag(true);
                    segment.encode(w);
                }
            }
        }
        w.flag(false);
    }
}

impl Rule {
    /// Checks one segment; `before` is the position of its predecessor.
    fn check(self, segment: &ReadSegment, before: Option<u32>) -> Result<(), Fault> {
        let position = segment.position;
        match (self.zero, position) {
            (ZeroPosition::Never, 0) => return Err(Fault::PositionZero),
            (ZeroPosition::Only, 1..) => return Err(Fault::BodyPosition { position }),
            _ if !position.is_multiple_of(4) => return Err(Fault::Unaligned { position }),
            _ => {}
        }
        if let Some(before) = before.filter(|&b| self.ordered && b > position) {
            return Err(Fault::Order { before, position });
        }
        if segment.target.fits() { Ok(()) } else { Err(Fault::SegmentWraps) }
    }
}

struct Chunks<'a> {
    list: ReadList<'a>,
    /// In an ordered list: the index of the first segment that the iterator has not visited.
    next: usize,
    /// In an unordered list: the position of the chunk that the iterator returned last.
    last: Option<u32>,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = ReadChunk<'a>;

    fn next(&mut self) -> Option<ReadChunk<'a>> {
        let list = self.list;
        let (start, position) = if list.ordered {
            (self.next, list.get(self.next)?.position)
        } else {
            let later = |s: &ReadSegment| self.last.is_none_or(|last| s.position > last);
            (0, list.segments().filter(later).map(|s| s.position).min()?)
        };
        let chunk = ReadChunk { list, start, position };
        if list.ordered {
            self.next += chunk.segments().count();
        }
        self.last = Some(position);
        Some(chunk)
    }
}

/// A Read chunk: all segments with the same position.
#[derive(Clone, Copy)]
pub struct ReadChunk<'a> {
    list: ReadList<'a>,
    /// Index of the chunk's first segment, or of an earlier segment.
    start: usize,
    position: u32,
}

impl<'a> ReadChunk<'a> {
    /// Returns the offset in the unreduced Payload stream at which the chunk's data belongs.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Returns the length of all segments together, in bytes.
    pub fn length(&self) -> u32 {
        sum(self.segments().map(|s| s.length)).unwrap_or(u32::MAX)
    }

    /// Returns the segments that hold the chunk's bytes, in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<'a> {
        let ReadChunk { list, start, position } = *self;
        let all = (start..list.len()).filter_map(move |i| list.get(i));
        all.take_while(move |s| !list.ordered || s.position == position)
            .filter(move |s| s.position == position)
            .map(|s| s.target)
    }
}

impl PartialEq for ReadList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.segments().eq(other.segments())
    }
}

impl Eq for ReadList<'_> {}

impl fmt::Debug for ReadList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.segments()).finish()
    }
}

impl fmt::Debug for ReadChunk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.position)?;
        f.debug_list().entries(self.segments()).finish()
    }
}
