//! Calls that this end makes: the state of each call, and its transport header.

use heddle_base::Instant;

use super::config::CHUNKS_MAX;
use super::event::{BadReply, CallError, Filled, IncomingReply, ReplyStream};
use super::memory::{BufferId, Sge};
use super::plan::{Format, Plan, Span, Use, Wanted};
use super::work::Region;
use super::{Call, CallRefused, memory};
use crate::chunk::{ReadList, WriteChunk, WriteList, ZeroPosition};
use crate::header::Xid;
use crate::reduce::{Item, Reduction};
use crate::segment::{Handle, ReadSegment, Segment};
use crate::v1::{self, Chunks};
use crate::v2;
use crate::xdr::NoRoom;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The call waits for credits.
    #[default]
    Queued,
    /// The memory of the call is registered.
    Registered,
    /// Some parts of the call were posted.
    Sending,
    /// All parts of the call were posted.
    Waiting,
    /// The call has its outcome, and the connection takes its memory out of the peer's reach.
    Ending,
    /// The call was given up and has ended; a late reply may still come.
    Zombie,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Reply(IncomingReply),
    Sent,
    Failed(CallError),
}

/// The state of a handle between this end and the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grip {
    /// The peer may use the handle.
    Live,
    /// This end has posted an invalidation.
    Invalidating,
    /// The handle is invalid: the peer cannot use it any more.
    Gone,
}

/// A call that this end makes. The lists keep their capacity from call to call.
#[derive(Debug, Default)]
pub(super) struct OutCall {
    pub(super) xid: Xid,
    pub(super) phase: Phase,
    pub(super) stream: Vec<Sge>,
    pub(super) total: u32,
    pub(super) items: Vec<Item>,
    rooms: Vec<Sge>,
    room_ends: Vec<usize>,
    whole: Vec<Sge>,
    stream_max: Option<u32>,
    pub(super) has_reply: bool,
    pub(super) deadline: Option<Instant>,
    pub(super) plan: Plan,
    pub(super) regions: Vec<Region>,
    pub(super) spans: Vec<Span>,
    /// The registered segments, in the order of `regions`.
    pub(super) handles: Vec<(Segment, Grip)>,
    /// Sends that have not completed.
    pub(super) sends: u32,
    pub(super) outcome: Option<Outcome>,
    /// The error for which the call was given up.
    pub(super) abandoned: Option<CallError>,
}

/// Length of the shortest RPC message in bytes: the XID, and the message type (call or reply).
pub(super) const MESSAGE_MIN: u32 = 8;

/// Checks an RPC message that this end sends. Returns its length in bytes.
pub(super) fn stream_len(stream: &[Sge]) -> Option<u32> {
    memory::total(stream).filter(|&n| n >= MESSAGE_MIN && n.is_multiple_of(4))
}

impl OutCall {
    /// Checks a call before the connection keeps any part of it. Returns the length of its stream.
    pub(super) fn check(call: &Call<'_>) -> Result<u32, CallRefused> {
        let total = stream_len(call.stream).ok_or(CallRefused::Stream)?;
        let room = call.reply.unwrap_or_default();
        let short = |pieces: &[Sge]| memory::total(pieces).is_some();
        if call.items.len() > CHUNKS_MAX
            || room.items.len() > CHUNKS_MAX
            || !room.items.iter().all(|pieces| short(pieces))
            || !short(room.whole)
        {
            return Err(CallRefused::Items);
        }
        let some = call.items.iter().copied().filter(|item| item.length > 0);
        Reduction::new(total, MESSAGE_MIN, some)?;
        Ok(total)
    }

    /// Fills the row with a checked call.
    pub(super) fn set(&mut self, call: &Call<'_>, total: u32) {
        let room = call.reply.unwrap_or_default();
        self.xid = call.xid;
        self.phase = Phase::Queued;
        self.stream.clear();
        self.stream.extend_from_slice(call.stream);
        self.total = total;
        self.items.clear();
        self.items.extend(call.items.iter().copied().filter(|item| item.length > 0));
        self.rooms.clear();
        self.room_ends.clear();
        for pieces in room.items {
            self.rooms.extend_from_slice(pieces);
            self.room_ends.push(self.rooms.len());
        }
        self.whole.clear();
        self.whole.extend_from_slice(room.whole);
        self.stream_max = room.stream_max;
        self.has_reply = call.reply.is_some();
        self.deadline = call.deadline;
        self.plan = Plan::default();
        self.regions.clear();
        self.spans.clear();
        self.handles.clear();
        self.sends = 0;
        self.outcome = None;
        self.abandoned = None;
    }

    /// Chooses the format of the call. Returns true if the peer can be sent the call.
    pub(super) fn make_plan(&mut self, bounds: &super::plan::Bounds) -> bool {
        let wanted = Wanted {
            stream: &self.stream,
            total: self.total,
            items: &self.items,
            rooms: &self.rooms,
            room_ends: &self.room_ends,
            whole: &self.whole,
            reply_max: self.stream_max,
            has_reply: self.has_reply,
        };
        match wanted.plan(bounds, &mut self.regions, &mut self.spans) {
            Ok(plan) => self.plan = plan,
            Err(_) => {
                self.regions.clear();
                return false;
            }
        }
        true
    }

    /// Returns the header type of the call's first message in version 2, for Sends of at most
    /// `threshold` bytes.
    pub(super) const fn htype(&self, threshold: u32) -> u32 {
        let Plan { format, length, header, .. } = self.plan;
        match format {
            Format::Chunk => v2::htype::CALL_EXTERNAL,
            Format::Inline if length.saturating_add(header) <= threshold => v2::htype::CALL_INLINE,
            Format::Inline => v2::htype::CALL_MIDDLE,
        }
    }

    /// Returns the items that are taken out of the stream.
    pub(super) fn reduced_items(&self) -> &[Item] {
        if self.plan.is_reduced { &self.items } else { &[] }
    }

    /// Returns the number of handles that are not invalidated yet.
    pub(super) fn grips(&self) -> usize {
        self.handles.iter().filter(|(_, grip)| *grip != Grip::Gone).count()
    }

    /// Records that the peer invalidated `handle`. Returns true if the handle was one of this
    /// call's and in the peer's reach.
    pub(super) fn invalidated(&mut self, handle: Handle) -> bool {
        let mut all = self.handles.iter_mut();
        let of = |(segment, grip): &&mut (Segment, Grip)| {
            segment.handle == handle && *grip == Grip::Live
        };
        match all.find(of) {
            Some((_, grip)) => {
                *grip = Grip::Gone;
                true
            }
            None => false,
        }
    }

    /// Returns the segments of each chunk.
    fn chunks(&self) -> impl Iterator<Item = (Use, &[(Segment, Grip)])> {
        let mut left = self.handles.as_slice();
        self.spans.iter().map(move |span| {
            let (these, rest) = left.split_at_checked(span.regions.into()).unwrap_or((left, &[]));
            left = rest;
            (span.of, these)
        })
    }

    /// Writes the header of the call's only or last Send.
    pub(super) fn encode(
        &self,
        version: u32,
        credit: u32,
        lists: &mut Lists,
        out: &mut [u8],
    ) -> Result<usize, NoRoom> {
        lists.fill(self);
        let (body, items) = lists.reads.split_at(lists.body);
        let mut room = None;
        let (writes, reply) = lists.for_reply(&mut room);
        let chunks = |reads| Chunks { reads, writes, reply };
        let call = |reads, zero| ReadList::new(reads, zero).unwrap_or(ReadList::EMPTY);
        if version != v2::VERSION {
            let body = match self.plan.format {
                Format::Inline => v1::Body::Msg(chunks(call(items, ZeroPosition::Never))),
                Format::Chunk => v1::Body::NoMsg(chunks(call(&lists.reads, ZeroPosition::Also))),
            };
            return v1::Header { xid: self.xid, credit, body }.encode(out);
        }
        let invalidate = self.handles.first().map_or(Handle(0), |(segment, _)| segment.handle);
        let chunks = chunks(call(items, ZeroPosition::Never));
        let body = match self.plan.format {
            Format::Inline => v2::Body::CallInline { invalidate, chunks },
            Format::Chunk => {
                let call = call(body, ZeroPosition::Only);
                v2::Body::CallExternal { invalidate, call, chunks }
            }
        };
        v2::Header { xid: self.xid, credit, body }.encode(out)
    }

    /// Checks the Write chunks and the Reply chunk that a reply returns.
    pub(super) fn replied(
        &self,
        returned: WriteList<'_>,
        source: ReplySource<'_>,
        lists: &mut Lists,
    ) -> Result<IncomingReply, BadReply> {
        lists.fill(self);
        let mut room = None;
        let (provided, reply_chunk) = lists.for_reply(&mut room);
        // If the call provided no chunks, the reply must not claim to fill any.
        returned.returned(&provided).map_err(|(_, e)| BadReply::Write(e))?;
        let filled = Filled::of(returned.chunks().map(|chunk| chunk.length()));
        let stream = match source {
            ReplySource::Buffer { buffer, length } => ReplyStream::Buffer { buffer, length },
            ReplySource::Chunk(chunk) => {
                let room = reply_chunk.ok_or(BadReply::NoChunk)?;
                ReplyStream::Chunk { length: chunk.returned(&room).map_err(BadReply::Chunk)? }
            }
        };
        let (ReplyStream::Buffer { length, .. } | ReplyStream::Chunk { length }) = stream;
        if length < MESSAGE_MIN {
            return Err(BadReply::Short { bytes: length });
        }
        Ok(IncomingReply { stream, filled })
    }
}

/// The place of a reply's Payload stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplySource<'a> {
    Buffer { buffer: BufferId, length: u32 },
    Chunk(WriteChunk<'a>),
}

/// Space in which to assemble a header's lists.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// Read segments, those of the body first.
    reads: Vec<ReadSegment>,
    body: usize,
    writes: Vec<Segment>,
    write_ends: Vec<usize>,
    reply: Vec<Segment>,
    has_reply: bool,
}

impl Lists {
    fn fill(&mut self, call: &OutCall) {
        self.reads.clear();
        self.writes.clear();
        self.write_ends.clear();
        self.reply.clear();
        self.has_reply = false;
        let at = |position| move |&(target, _): &(Segment, Grip)| ReadSegment { position, target };
        let body = call.chunks().filter(|(of, _)| *of == Use::Body);
        self.reads.extend(body.flat_map(|(_, segments)| segments.iter().map(at(0))));
        self.body = self.reads.len();
        for (of, segments) in call.chunks() {
            match of {
                Use::Body => {}
                Use::Read { position } => self.reads.extend(segments.iter().map(at(position))),
                Use::Write => {
                    self.writes.extend(segments.iter().map(|(segment, _)| *segment));
                    self.write_ends.push(self.writes.len());
                }
                Use::Reply => {
                    self.reply.extend(segments.iter().map(|(segment, _)| *segment));
                    self.has_reply = true;
                }
            }
        }
    }
}

/// Space for the Write chunks of a list; `None` for a call without Write chunks.
type Room<'a> = Option<[WriteChunk<'a>; CHUNKS_MAX]>;

impl Lists {
    /// Returns the chunks that the call provides for its reply.
    fn for_reply<'a>(&'a self, room: &'a mut Room<'a>) -> (WriteList<'a>, Option<WriteChunk<'a>>) {
        let reply = WriteChunk::new(&self.reply).unwrap_or(WriteChunk::EMPTY);
        let reply = self.has_reply.then_some(reply);
        if self.write_ends.is_empty() {
            return (WriteList::EMPTY, reply);
        }
        let chunks = room.insert([WriteChunk::EMPTY; CHUNKS_MAX]);
        let (mut start, mut len) = (0, 0);
        for (to, &end) in chunks.iter_mut().zip(&self.write_ends) {
            let segments = self.writes.get(start..end).unwrap_or(&[]);
            *to = WriteChunk::new(segments).unwrap_or(WriteChunk::EMPTY);
            (start, len) = (end, len + 1);
        }
        (WriteList::new(chunks.get(..len).unwrap_or(chunks)), reply)
    }
}
