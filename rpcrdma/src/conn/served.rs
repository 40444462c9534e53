//! Calls of the peer's: what is kept of each, what is read for it, and where its reply goes.

use super::event::{IncomingCall, ItemSet, ServeError};
use super::memory::{BufferId, Memory, Sge};
use super::plan::{Format, HeaderLen};
use super::transfers::Age;
use super::work::ServedId;
use crate::Limits;
use crate::chunk::{ReadChunk, WriteChunk, WriteList};
use crate::header::{Header, Message, Versions, Xid, decode};
use crate::reduce::{Assembly, Item, Part, Piece, Placement, Shortage};
use crate::segment::{Handle, Segment};
use crate::v1::{self, Chunks};
use crate::v2;
use crate::xdr::NoRoom;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for memory.
    Waiting,
    /// Its chunks are read.
    #[default]
    Reading,
    /// The layer above has it.
    Serving,
    /// Its reply is written and sent.
    Replying,
    /// All of its reply was posted.
    Sent,
}

/// An RDMA Read to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOp {
    pub(super) from: Segment,
    /// Offset in the buffer.
    pub(super) to: u32,
}

/// An RDMA Write to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteOp {
    pub(super) to: Segment,
    /// Offset in the reply's stream: the unreduced one for items, the reduced one for a Reply chunk.
    pub(super) from: u32,
    pub(super) is_reduced: bool,
}

/// A call of the peer's. Lists keep their capacity from call to call.
#[derive(Debug, Default)]
pub(super) struct InCall {
    pub(super) xid: Xid,
    pub(super) phase: Phase,
    pub(super) age: Age,
    /// Its transport header, with the first words of the payload; with all of it as long as it waits for
    /// memory.
    pub(super) header: Vec<u8>,
    /// Credits it asked for (version 1).
    pub(super) requested: u32,
    pub(super) buffer: BufferId,
    pub(super) length: u32,
    pub(super) items: ItemSet,
    pub(super) reads: Vec<ReadOp>,
    pub(super) next_read: usize,
    pub(super) reads_done: usize,
    pub(super) stream: Vec<Sge>,
    pub(super) total: u32,
    /// Results that go into Write chunks.
    pub(super) placed: Vec<Item>,
    /// Octets of each Write chunk that are used.
    filled: Vec<u32>,
    pub(super) writes: Vec<WriteOp>,
    pub(super) next_write: usize,
    pub(super) format: Format,
    /// Octets of the reply's stream as it is conveyed.
    pub(super) reduced: u32,
    pub(super) header_len: u32,
    pub(super) invalidate: Option<Handle>,
    pub(super) sends: u32,
    pub(super) result: Option<Result<(), ServeError>>,
}

/// Where a received call's Payload stream is.
#[derive(Clone, Copy)]
pub(super) enum Body<'a> {
    /// In the Send.
    Inline(&'a [u8]),
    /// It came in parts.
    Buffer { buffer: BufferId, length: u32 },
    /// The peer has it.
    Chunk(ReadChunk<'a>),
}

impl Body<'_> {
    pub(super) fn length(&self) -> u32 {
        match self {
            Body::Inline(payload) => u32::try_from(payload.len()).unwrap_or(u32::MAX),
            Body::Buffer { length, .. } => *length,
            Body::Chunk(chunk) => chunk.length(),
        }
    }
}

/// What a responder's reply has to fit into.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyBounds {
    pub(super) send: u32,
    /// Octets of the longest reply that is sent in parts; 0 where none is.
    pub(super) parts: u32,
    /// Whether any handle of the call may be invalidated (version 1 with RFC 8797).
    pub(super) may_invalidate: bool,
}

const PADDING: [u8; 3] = [0; 3];

impl InCall {
    pub(super) fn set(&mut self, xid: Xid, requested: u32, octets: &[u8], payload: usize) {
        self.xid = xid;
        self.phase = Phase::Reading;
        self.header.clear();
        self.header.extend_from_slice(octets.get(..kept(octets, payload)).unwrap_or(octets));
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

    /// Puts the call together as far as it is there, and notes what is to be read.
    pub(super) fn assemble<C: Iterator<Item = Item> + Clone>(
        &mut self,
        assembly: &Assembly<C>,
        body: &Body<'_>,
        chunks: &[Option<ReadChunk<'_>>],
        read_max: u32,
        memory: &mut impl Memory,
    ) {
        for part in assembly.parts() {
            match part {
                Part::Padding { to } => {
                    let zeros = PADDING.get(..to.length as usize).unwrap_or(&PADDING);
                    memory.write(self.buffer, to.offset, zeros);
                }
                Part::Chunk { index, to } => {
                    if let Some(Some(chunk)) = chunks.get(index) {
                        self.read(chunk, 0, to, read_max);
                    }
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

    /// Notes the Reads of a piece of a chunk, from octet `skip` of it on.
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

    /// As it goes up.
    pub(super) fn incoming(
        &self,
        id: ServedId,
        versions: Versions,
        limits: &Limits,
    ) -> IncomingCall {
        let write_chunks =
            chunks_of(&self.header, versions, limits).map_or(0, |(chunks, _)| chunks.writes.len());
        IncomingCall {
            id,
            xid: self.xid,
            buffer: self.buffer,
            length: self.length,
            reads: self.items,
            write_chunks: u16::try_from(write_chunks).unwrap_or(u16::MAX),
        }
    }

    /// Chooses the format of its reply. Items are all results that may be placed.
    pub(super) fn plan(
        &mut self,
        items: &[Item],
        versions: Versions,
        limits: &Limits,
        bounds: &ReplyBounds,
    ) -> Result<(), v2::Refusal> {
        let version = if versions == Versions::V2 { v2::VERSION } else { v1::VERSION };
        let header = core::mem::take(&mut self.header);
        let planned = match chunks_of(&header, versions, limits) {
            Some((chunks, invalidate)) => {
                self.invalidate = invalidate.filter(|_| version == 2 || bounds.may_invalidate);
                self.place(items, version, &chunks, bounds)
            }
            None => Err(v2::Refusal::System),
        };
        self.header = header;
        planned
    }

    fn place(
        &mut self,
        items: &[Item],
        version: u32,
        chunks: &Chunks<'_>,
        bounds: &ReplyBounds,
    ) -> Result<(), v2::Refusal> {
        let short = |Shortage { chunk, needed }| v2::Refusal::WriteResource { chunk, needed };
        let placement = Placement::new(items, chunks.writes).map_err(short)?;
        self.filled.extend(placement.returned().map(|chunk| chunk.length()));
        for (item, chunk) in placement.placed() {
            self.placed.push(item);
            write_ops(&mut self.writes, chunk, item.offset, false);
        }
        let taken = self.placed.iter().map(|i| i.length.next_multiple_of(4));
        self.reduced = self.total - taken.sum::<u32>();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let len = HeaderLen {
            version,
            reads: 0,
            write_chunks: count(chunks.writes.len()),
            write_segments: count(chunks.writes.chunks().map(|c| c.len()).sum()),
            reply: chunks.reply.map(|c| count(c.len())),
        };
        let header = len.reply(Format::Inline);
        self.header_len = header;
        if header.checked_add(self.reduced).is_some_and(|all| all <= bounds.send) {
            return Ok(());
        }
        let needed = self.reduced;
        match chunks.reply {
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

    /// Writes the header of the only or last Send of its reply.
    pub(super) fn encode(
        &self,
        versions: Versions,
        limits: &Limits,
        credit: u32,
        out: &mut [u8],
    ) -> Result<usize, NoRoom> {
        let chunks =
            chunks_of(&self.header, versions, limits).map_or(Chunks::NONE, |(chunks, _)| chunks);
        let mut writes = [WriteChunk::EMPTY; super::CHUNKS_MAX];
        let mut len = 0;
        for (to, (chunk, &filled)) in
            writes.iter_mut().zip(chunks.writes.chunks().zip(&self.filled))
        {
            *to = chunk.filled(filled);
            len += 1;
        }
        let writes = WriteList::new(writes.get(..len).unwrap_or(&writes));
        let used = if self.format == Format::Chunk { self.reduced } else { 0 };
        let reply = chunks.reply.map(|chunk| chunk.filled(used));
        let xid = self.xid;
        if versions == Versions::V2 {
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

/// Octets of a received Send that are kept as long as its call is served: its header, and as much of the
/// payload as decoding looks at.
pub(super) fn kept(octets: &[u8], payload: usize) -> usize {
    octets.len() - payload + payload.min(8)
}

/// The chunks of a kept header, and what may be invalidated by the reply.
fn chunks_of<'a>(
    header: &'a [u8],
    versions: Versions,
    limits: &Limits,
) -> Option<(Chunks<'a>, Option<Handle>)> {
    // It was decoded before.
    let Message { header, .. } = decode(header, versions, limits).ok()?;
    Some(match header {
        Header::V1(header) => match header.body {
            v1::Body::Msg(chunks) | v1::Body::NoMsg(chunks) => (chunks, first_handle(&chunks)),
            v1::Body::Error(_) => return None,
        },
        Header::V2(header) => match header.body {
            v2::Body::CallInline { chunks, .. } | v2::Body::CallExternal { chunks, .. } => {
                (chunks, header.invalidate())
            }
            _ => return None,
        },
    })
}

/// The Writes that fill a chunk, with octets of the stream from `from` on.
fn write_ops(ops: &mut Vec<WriteOp>, chunk: WriteChunk<'_>, mut from: u32, is_reduced: bool) {
    for to in chunk.segments().filter(|s| s.length > 0) {
        ops.push(WriteOp { to, from, is_reduced });
        from += to.length;
    }
}

/// In version 1 the responder chooses (RFC 8797 section 4.1): the first of all.
fn first_handle(chunks: &Chunks<'_>) -> Option<Handle> {
    let reads = chunks.reads.segments().map(|s| s.target);
    let writes = chunks.writes.chunks().chain(chunks.reply).flat_map(|c| c.segments());
    reads.chain(writes).map(|s| s.handle).next()
}
