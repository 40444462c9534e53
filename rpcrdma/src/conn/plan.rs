//! Plans how this end conveys a message: the lengths of headers, and the format of a call (RFC 8166
//! section 3.5, draft section 6.6).

use super::memory::{Sge, range};
use super::work::{Access, Region};
use crate::header::Prefix;
use crate::reduce::{Item, Reduction};
use crate::segment::{ReadSegment, Segment};

/// The place of the Payload stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    /// The stream is in the Send, or in several Sends by continuation.
    #[default]
    Inline,
    /// The stream is in a body chunk: at position zero (version 1), a Call chunk, or the Reply
    /// chunk.
    Chunk,
}

/// The purpose of a call's regions, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Body,
    Read { position: u32 },
    Write,
    Reply,
}

/// A chunk of a call: its purpose, and its number of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) of: Use,
    pub(super) regions: u16,
}

/// Computes the lengths of headers from the numbers of their segments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeaderLen {
    pub(super) version: u32,
    pub(super) reads: u32,
    pub(super) write_chunks: u32,
    pub(super) write_segments: u32,
    /// Number of segments in the Reply chunk; `None` without one.
    pub(super) reply: Option<u32>,
}

const FLAG: u32 = 4;
const PREFIX: u32 = 16;
const READ: u32 = FLAG + 20;
const SEGMENT: u32 = 16;
const _: () = assert!(
    PREFIX as usize == Prefix::LEN
        && READ as usize == FLAG as usize + ReadSegment::LEN
        && SEGMENT as usize == Segment::LEN
);

impl HeaderLen {
    fn writes(&self) -> u32 {
        let chunks = self.write_chunks.saturating_mul(FLAG + 4);
        FLAG.saturating_add(chunks).saturating_add(self.write_segments.saturating_mul(SEGMENT))
    }

    fn chunks(&self) -> u32 {
        let reply = self.reply.map_or(0, |n| n.saturating_mul(SEGMENT).saturating_add(4));
        let reads = self.reads.saturating_mul(READ).saturating_add(FLAG);
        reads.saturating_add(self.writes()).saturating_add(FLAG).saturating_add(reply)
    }

    /// Returns the header's length in bytes for a call, or for any message of version 1. `format`
    /// states whether the stream is in a body chunk.
    pub(super) fn call(&self, format: Format) -> u32 {
        let more = match (self.version, format) {
            (2, Format::Inline) => 4,
            // The Call chunk is in a list of its own, which ends with a flag.
            (2, Format::Chunk) => 4 + FLAG,
            _ => 0,
        };
        PREFIX.saturating_add(more).saturating_add(self.chunks())
    }

    /// Returns the header's length in bytes for a reply.
    pub(super) fn reply(&self, format: Format) -> u32 {
        if self.version != 2 {
            return self.call(format);
        }
        let chunk = match format {
            Format::Inline => 0,
            Format::Chunk => {
                self.reply.unwrap_or(0).saturating_mul(SEGMENT).saturating_add(FLAG + 4)
            }
        };
        PREFIX.saturating_add(self.writes()).saturating_add(chunk)
    }
}

/// A call as the upper layer passed it.
pub(super) struct Wanted<'a> {
    pub(super) stream: &'a [Sge],
    pub(super) total: u32,
    pub(super) items: &'a [Item],
    /// Room for results: all pieces, and the index at which each room ends among them.
    pub(super) rooms: &'a [Sge],
    pub(super) room_ends: &'a [usize],
    pub(super) whole: &'a [Sge],
    /// Length of the longest reply in bytes; `None` when unknown, or when the call has no reply.
    pub(super) reply_max: Option<u32>,
    pub(super) has_reply: bool,
}

/// The limits that the connection sets for a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) version: u32,
    pub(super) send: u32,
    pub(super) receive: u32,
    /// True if the call may use chunks.
    pub(super) chunks: bool,
    /// True if the call itself may go in a chunk.
    pub(super) body: bool,
    /// The largest number of Sends for one message.
    pub(super) parts_max: u32,
    pub(super) region_max: u32,
    /// The largest number of segments in a header.
    pub(super) segments_max: u32,
}

/// The way in which this end conveys a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    pub(super) format: Format,
    /// True if items are taken out of the stream.
    pub(super) is_reduced: bool,
    /// Length of the conveyed stream in bytes, without the items that were taken out.
    pub(super) length: u32,
    /// Length of the header in bytes; of the last part's header, if the call has several parts.
    pub(super) header: u32,
}

/// The error that a call cannot be conveyed within the limits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// The largest number of regions in a call: a [`WorkId`](super::WorkId) can tell this many apart.
pub(super) const REGIONS_MAX: usize = 1 << 12;

impl Wanted<'_> {
    /// Chooses the format. Puts the memory to register into `regions`, and its purposes into
    /// `spans`.
    pub(super) fn plan(
        &self,
        bounds: &Bounds,
        regions: &mut Vec<Region>,
        spans: &mut Vec<Span>,
    ) -> Result<Plan, TooLong> {
        let mut lists = Lists { regions, spans, max: bounds.region_max };
        lists.regions.clear();
        lists.spans.clear();
        let mut len = HeaderLen { version: bounds.version, ..HeaderLen::default() };
        if self.has_reply && bounds.chunks {
            self.provide(bounds, &mut lists, &mut len);
        }
        let plan = self.send(bounds, &mut lists, &mut len)?;
        let segments = lists.regions.len();
        if segments >= REGIONS_MAX || segments > bounds.segments_max as usize {
            return Err(TooLong);
        }
        Ok(plan)
    }

    /// Provides room for the parts of the reply that may not fit into a Send.
    fn provide(&self, bounds: &Bounds, lists: &mut Lists<'_>, len: &mut HeaderLen) {
        let fits = |items: u32, len: &HeaderLen| {
            let stream = self.reply_max?.checked_add(items)?;
            let all = stream.checked_add(len.reply(Format::Inline))?;
            (all <= bounds.receive).then_some(())
        };
        let padded = |sge: &Sge| sge.length.checked_next_multiple_of(4);
        let items = self.rooms.iter().try_fold(0u32, |sum, sge| sum.checked_add(padded(sge)?));
        if !self.room_ends.is_empty() && items.and_then(|items| fits(items, len)).is_none() {
            let mut start = 0;
            for &end in self.room_ends {
                let room = self.rooms.get(start..end).unwrap_or(&[]).iter().copied();
                let n = lists.push(Use::Write, Access::RemoteWrite, room);
                len.write_chunks += 1;
                len.write_segments += n;
                start = end;
            }
        }
        if !self.whole.is_empty() && fits(0, len).is_none() {
            let n = lists.push(Use::Reply, Access::RemoteWrite, self.whole.iter().copied());
            len.reply = Some(n);
        }
    }

    /// Plans the call itself. In the header, its chunks precede the chunks for the reply.
    fn send(
        &self,
        bounds: &Bounds,
        lists: &mut Lists<'_>,
        len: &mut HeaderLen,
    ) -> Result<Plan, TooLong> {
        let plan = |format, is_reduced, length, len: &HeaderLen| Plan {
            format,
            is_reduced,
            length,
            header: len.call(format),
        };
        let fits = |length: u32, len: &HeaderLen| {
            length.checked_add(len.call(Format::Inline)).is_some_and(|all| all <= bounds.send)
        };
        if fits(self.total, len) {
            return Ok(plan(Format::Inline, false, self.total, len));
        }
        let mut reduced = self.total;
        let reduce = bounds.chunks && !self.items.is_empty();
        if reduce {
            // `OutCall::check` has verified that the items can be taken out.
            let r =
                Reduction::new(self.total, 0, self.items.iter().copied()).map_err(|_| TooLong)?;
            reduced = r.reduced_len();
            for item in self.items {
                let of = Use::Read { position: item.offset };
                let bytes = range(self.stream, item.offset, item.length);
                len.reads += lists.push(of, Access::RemoteRead, bytes);
            }
        }
        if fits(reduced, len) || self.parts(reduced, bounds, len) {
            return Ok(plan(Format::Inline, reduce, reduced, len));
        }
        if !bounds.chunks || !bounds.body {
            return Err(TooLong);
        }
        let items = if reduce { self.items } else { &[] };
        let r = Reduction::new(self.total, 0, items.iter().copied()).map_err(|_| TooLong)?;
        let bytes = r.pieces().flat_map(|p| range(self.stream, p.offset, p.length));
        len.reads += lists.push(Use::Body, Access::RemoteRead, bytes);
        if len.call(Format::Chunk) > bounds.send {
            return Err(TooLong);
        }
        Ok(plan(Format::Chunk, reduce, reduced, len))
    }

    /// Returns true if the number of Sends for the message is within the limit.
    fn parts(&self, length: u32, bounds: &Bounds, len: &HeaderLen) -> bool {
        let room = bounds.send.saturating_sub(len.call(Format::Inline)) / 4 * 4;
        bounds.version == 2 && room > 0 && length.div_ceil(room) <= bounds.parts_max
    }
}

struct Lists<'a> {
    regions: &'a mut Vec<Region>,
    spans: &'a mut Vec<Span>,
    max: u32,
}

impl Lists<'_> {
    /// Adds a chunk of these pieces. Returns its number of segments.
    fn push(&mut self, of: Use, access: Access, pieces: impl Iterator<Item = Sge>) -> u32 {
        let before = self.regions.len();
        for piece in pieces {
            let mut memory = piece;
            while memory.length > 0 && self.regions.len() < REGIONS_MAX {
                let length = memory.length.min(self.max);
                self.regions.push(Region { memory: Sge { length, ..memory }, access });
                memory.length -= length;
                memory.offset += u64::from(length);
            }
        }
        let regions = u16::try_from(self.regions.len() - before).unwrap_or(u16::MAX);
        self.spans.push(Span { of, regions });
        regions.into()
    }
}

/// Appends to `out` the pieces of the reduced stream that cover `length` bytes from byte `from` on.
pub(super) fn gather(
    stream: &[Sge],
    total: u32,
    items: &[Item],
    (from, length): (u32, u32),
    out: &mut Vec<Sge>,
) {
    if items.is_empty() {
        out.extend(range(stream, from, length));
        return;
    }
    let Ok(reduction) = Reduction::new(total, 0, items.iter().copied()) else { return };
    let (mut skip, mut left) = (from, length);
    for piece in reduction.pieces() {
        let skipped = skip.min(piece.length);
        skip -= skipped;
        let length = (piece.length - skipped).min(left);
        left -= length;
        out.extend(range(stream, piece.offset + skipped, length));
    }
}
