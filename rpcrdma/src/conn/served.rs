//! Calls of the peer: the state of each call, the RDMA Reads for the call, and the place of its
//! reply.

use super::Connection;
use super::event::{IncomingCall, ItemSet, ServeError};
use super::memory::{BufferId, Memory, Purpose, Sge};
use super::offer::{Kept, Offer};
use super::plan::{Format, HeaderLen};
use super::transfers::Age;
use super::work::ServedId;
use crate::chunk::{ReadChunk, ReadList, WriteChunk, WriteList};
use crate::header::Xid;
use crate::reduce::{Assembly, Item, Part, Piece, Placement, Shortage};
use crate::segment::{Handle, Segment};
use crate::v1::{self, Chunks};
use crate::v2;
use crate::xdr::NoRoom;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The call waits for memory.
    Waiting,
    /// The chunks of the call are being read.
    #[default]
    Reading,
    /// The upper layer has the call.
    Serving,
    /// The reply is being written and sent.
    Replying,
    /// All work requests of the reply were posted.
    Sent,
}

/// An RDMA Read to post.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOp {
    pub(super) from: Segment,
    /// Offset in the call's buffer.
    pub(super) to: u32,
}

/// An RDMA Write to post.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteOp {
    pub(super) to: Segment,
    /// Offset in the reply's stream: in the unreduced stream for items, in the reduced stream for a
    /// Reply chunk.
    pub(super) from: u32,
    pub(super) is_reduced: bool,
}

/// A call of the peer. The lists keep their capacity from call to call.
#[derive(Debug, Default)]
pub(super) struct InCall {
    pub(super) xid: Xid,
    pub(super) phase: Phase,
    pub(super) age: Age,
    /// All bytes of the call's Send, while the call waits for memory.
    pub(super) bytes: Vec<u8>,
    /// Room for the reply, and the handle that the reply may invalidate.
    pub(super) offer: Kept,
    /// Credits that the call asked for (version 1).
    pub(super) requested: u32,
    pub(super) buffer: BufferId,
    pub(super) length: u32,
    pub(super) items: ItemSet,
    /// The purpose of the buffer for which the call waits.
    pub(super) purpose: Purpose,
    pub(super) reads: Vec<ReadOp>,
    pub(super) next_read: usize,
    pub(super) reads_done: usize,
    pub(super) stream: Vec<Sge>,
    pub(super) total: u32,
    /// Results that go into Write chunks.
    pub(super) placed: Vec<Item>,
    /// Number of bytes that the reply fills in each Write chunk.
    filled: Vec<u32>,
    pub(super) writes: Vec<WriteOp>,
    pub(super) next_write: usize,
    pub(super) format: Format,
    /// Length of the conveyed reply stream in bytes, without the results in Write chunks.
    pub(super) reduced: u32,
    pub(super) header_len: u32,
    pub(super) invalidate: Option<Handle>,
    pub(super) sends: u32,
    pub(super) result: Option<Result<(), ServeError>>,
}

/// The place of a received call's Payload stream.
#[derive(Clone, Copy)]
pub(super) enum Body<'a> {
    /// The stream is in the Send.
    Inline(&'a [u8]),
    /// The stream came in parts, which the buffer holds.
    Buffer { buffer: BufferId, length: u32 },
    /// The stream is in memory of the peer, which this end reads.
    Chunk(ReadChunk<'a>),
}

impl Body<'_> {
    /// Returns the purpose of a buffer for a call with this body and these Read chunks.
    pub(super) fn purpose(&self, reads: ReadList<'_>) -> Purpose {
        match self {
            Body::Inline(_) if reads.is_empty() => Purpose::Inline,
            Body::Inline(_) | Body::Chunk(_) => Purpose::Call,
            Body::Buffer { .. } => Purpose::Parts,
        }
    }

    pub(super) fn length(&self) -> u32 {
        match self {
            Body::Inline(payload) => u32::try_from(payload.len()).unwrap_or(u32::MAX),
            Body::Buffer { length, .. } => *length,
            Body::Chunk(chunk) => chunk.length(),
        }
    }
}

/// The limits that a responder's reply has to meet.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyBounds {
    pub(super) send: u32,
    /// Length in bytes of the longest reply that may go in parts; 0 when no reply may.
    pub(super) parts: u32,
    /// True if the reply may invalidate a handle of its call (version 1 with RFC 8797).
    pub(super) may_invalidate: bool,
}

const PADDING: [u8; 3] = [0; 3];

impl InCall {
    pub(super) fn set(&mut self, xid: Xid, requested: u32, offer: &Offer<'_>) {
        self.xid = xid;
        self.phase = Phase::Reading;
        self.offer.keep(offer);
        self.requested = requested;
        self.reads.clear();
        self.next_read = 0;
        self.reads_done = 0;
        self.stream.clear();
        self.placed.clear();
        self.filled.clear();
        self.writes.clear();
        self.next_write = 0;
        self.format = Format::Inline;
        self.invalidate = None;
        self.sends = 0;
        self.result = None;
    }

    /// Assembles the parts of the call that have come, and notes the RDMA Reads for the rest.
    pub(super) fn assemble<C: Iterator<Item = Item> + Clone>(
        &mut self,
        assembly: &Assembly<C>,
        (body, reads): (&Body<'_>, ReadList<'_>),
        read_max: u32,
        memory: &mut impl Memory,
    ) {
        // Both the chunks and the parts of the assembly are in order of their positions.
        let (mut chunks, mut passed) = (reads.items(), 0);
        for part in assembly.parts() {
            match part {
                Part::Padding { to } => {
                    let zeros = PADDING.get(..to.length as usize).unwrap_or(&PADDING);
                    memory.write(self.buffer, to.offset, zeros);
                }
                Part::Chunk { index, to } => {
                    if let Some(chunk) = chunks.nth(index - passed) {
                        self.read(&chunk, 0, to, read_max);
                    }
                    passed = index + 1;
                }
                Part::Stream { from, to } => match body {
                    Body::Inline(payload) => {
                        let from = from as usize..from as usize + to.length as usize;
                        memory.write(self.buffer, to.offset, payload.get(from).unwrap_or(&[]));
                    }
                    Body::Buffer { buffer, .. } if *buffer == self.buffer => {}
                    Body::Buffer { buffer, .. } => {
                        let from = Piece { offset: from, length: to.length };
                        memory.copy((*buffer, from), (self.buffer, to.offset));
                    }
                    Body::Chunk(chunk) => self.read(chunk, from, to, read_max),
                },
            }
        }
    }

    /// Notes the RDMA Reads for a piece of a chunk, which begins at byte `skip` of the chunk.
    fn read(&mut self, chunk: &ReadChunk<'_>, mut skip: u32, to: Piece, read_max: u32) {
        let (mut at, mut left) = (to.offset, to.length);
        for segment in chunk.segments() {
            let skipped = skip.min(segment.length);
            skip -= skipped;
            let mut from = segment.offset.wrapping_add(skipped.into());
            let mut here = (segment.length - skipped).min(left);
            left -= here;
            while here > 0 {
                let length = here.min(read_max);
                let source = Segment { handle: segment.handle, length, offset: from };
                self.reads.push(ReadOp { from: source, to: at });
                from = from.wrapping_add(length.into());
                at += length;
                here -= length;
            }
        }
    }

    /// Returns the call as the event passes it to the upper layer.
    pub(super) fn incoming(&self, id: ServedId) -> IncomingCall {
        IncomingCall {
            id,
            xid: self.xid,
            buffer: self.buffer,
            length: self.length,
            reads: self.items,
            write_chunks: u16::try_from(self.offer.write_chunks()).unwrap_or(u16::MAX),
        }
    }

    /// Chooses the format of the reply. `items` are all results that may be placed.
    pub(super) fn plan(
        &mut self,
        items: &[Item],
        version: u32,
        bounds: &ReplyBounds,
    ) -> Result<(), v2::Refusal> {
        let kept = core::mem::take(&mut self.offer);
        let offer = kept.offer();
        let may_invalidate = version == v2::VERSION || bounds.may_invalidate;
        self.invalidate = offer.invalidate.filter(|_| may_invalidate);
        let planned = self.place(items, version, &offer, bounds);
        self.offer = kept;
        planned
    }

    fn place(
        &mut self,
        items: &[Item],
        version: u32,
        offer: &Offer<'_>,
        bounds: &ReplyBounds,
    ) -> Result<(), v2::Refusal> {
        let short = |Shortage { chunk, needed }| v2::Refusal::WriteResource { chunk, needed };
        let placement = Placement::new(items, offer.writes).map_err(short)?;
        self.filled.extend(placement.returned().map(|chunk| chunk.length()));
        for (item, chunk) in placement.placed() {
            self.placed.push(item);
            write_ops(&mut self.writes, chunk, item.offset, false);
        }
        let taken = self.placed.iter().map(|i| i.length.next_multiple_of(4));
        self.reduced = self.total - taken.sum::<u32>();
        let len = reply_header(version, offer);
        let header = len.reply(Format::Inline);
        self.header_len = header;
        if header.checked_add(self.reduced).is_some_and(|all| all <= bounds.send) {
            return Ok(());
        }
        let needed = self.reduced;
        match offer.reply {
            Some(chunk) if chunk.length() >= needed => {
                self.format = Format::Chunk;
                self.header_len = len.reply(Format::Chunk);
                write_ops(&mut self.writes, chunk.filled(needed), 0, true);
                let fits = self.header_len <= bounds.send;
                if fits { Ok(()) } else { Err(v2::Refusal::System) }
            }
            _ if needed <= bounds.parts && header.saturating_add(4) <= bounds.send => Ok(()),
            _ => Err(v2::Refusal::ReplyResource { needed }),
        }
    }

    /// Writes the header of the reply's only or last Send.
    pub(super) fn encode(
        &self,
        version: u32,
        credit: u32,
        out: &mut [u8],
    ) -> Result<usize, NoRoom> {
        let offer = self.offer.offer();
        let mut chunks;
        let writes = if self.filled.is_empty() {
            WriteList::EMPTY
        } else {
            chunks = [WriteChunk::EMPTY; super::CHUNKS_MAX];
            let mut len = 0;
            let filled = offer.writes.chunks().zip(&self.filled);
            for (to, (chunk, &filled)) in chunks.iter_mut().zip(filled) {
                *to = chunk.filled(filled);
                len += 1;
            }
            WriteList::new(chunks.get(..len).unwrap_or(&chunks))
        };
        let used = if self.format == Format::Chunk { self.reduced } else { 0 };
        let reply = offer.reply.map(|chunk| chunk.filled(used));
        let xid = self.xid;
        if version == v2::VERSION {
            let body = match (self.format, reply) {
                (Format::Chunk, Some(reply)) => v2::Body::ReplyExternal { writes, reply },
                _ => v2::Body::ReplyInline { writes },
            };
            return v2::Header { xid, credit, body }.encode(out);
        }
        let chunks = Chunks { writes, reply, ..Chunks::NONE };
        let body = match self.format {
            Format::Inline => v1::Body::Msg(chunks),
            Format::Chunk => v1::Body::NoMsg(chunks),
        };
        v1::Header { xid, credit, body }.encode(out)
    }
}

/// Returns the header length of a reply to a call with this offer.
fn reply_header(version: u32, offer: &Offer<'_>) -> HeaderLen {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    HeaderLen {
        version,
        reads: 0,
        write_chunks: count(offer.writes.len()),
        write_segments: count(offer.writes.chunks().map(|c| c.len()).sum()),
        reply: offer.reply.map(|c| count(c.len())),
    }
}

impl Connection {
    /// Returns the length in bytes of the longest reply to this call with these results that may be
    /// placed, of which everything but the placed results goes in Sends and nothing into a Reply
    /// chunk; 0 when there is no such call or reply.
    pub fn reply_inline_max(&self, call: ServedId, items: &[Item]) -> u32 {
        let row = self.served.at(call.slot).filter(|_| self.served.is(call.slot, call.generation));
        let (Some(row), Some(version)) = (row, self.version) else { return 0 };
        let offer = row.offer.offer();
        let Ok(placement) = Placement::new(items, offer.writes) else { return 0 };
        let placed = placement.placed().map(|(item, _)| item.length);
        let placed = placed.fold(0, u32::saturating_add);
        let header = reply_header(version, &offer).reply(Format::Inline);
        match self.thresholds.send.checked_sub(header) {
            Some(left) => left.saturating_add(placed),
            None => 0,
        }
    }
}

/// Adds the Writes that fill a chunk with the bytes of the stream from `from` on.
fn write_ops(ops: &mut Vec<WriteOp>, chunk: WriteChunk<'_>, mut from: u32, is_reduced: bool) {
    for to in chunk.segments().filter(|s| s.length > 0) {
        ops.push(WriteOp { to, from, is_reduced });
        from += to.length;
    }
}
