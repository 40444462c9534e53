//! The memory that one end of a connection has offered to the other: the chunks of its calls.

use std::collections::{BTreeMap, VecDeque};

use heddle_rpcrdma::chunk::{ReadList, ReturnedError, WriteChunk, WriteList};
use heddle_rpcrdma::{Handle, Segment, v1};

use crate::item::{ChunkName, ChunkOf, Place, Procedure};

/// Most calls of one end that the decoder keeps account of at a time: more than any end grants.
const CALLS_MAX: usize = 4096;

/// Most segments of these calls.
const SEGMENTS_MAX: usize = 1 << 14;

/// Most handles of ended calls that the decoder remembers, to tell late accesses from wrong ones.
const ENDED_MAX: usize = 256;

/// A chunk of a call.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) name: ChunkName,
    pub(crate) segments: Vec<Segment>,
    /// Bytes that the other end has written, or asked for.
    pub(crate) moved: u64,
}

/// A call without a reply.
#[derive(Debug, Default)]
pub(crate) struct Call {
    pub(crate) procedure: Option<Procedure>,
    pub(crate) chunks: Vec<Chunk>,
    /// The handle that the reply may invalidate (version 2).
    pub(crate) invalidate: Option<Handle>,
    /// All messages of the call have come.
    pub(crate) whole: bool,
}

impl Call {
    /// Adds the chunks of a Read list; the chunk at position zero holds the call.
    pub(crate) fn offer_reads(&mut self, list: &ReadList<'_>) {
        for chunk in list.chunks() {
            let name = match chunk.position() {
                0 => ChunkName::Call,
                position => ChunkName::Read { position },
            };
            self.chunks.push(Chunk { name, segments: chunk.segments().collect(), moved: 0 });
        }
    }

    /// Adds the chunks of all lists of a header.
    pub(crate) fn offer(&mut self, chunks: &v1::Chunks<'_>) {
        self.offer_reads(&chunks.reads);
        for (index, chunk) in chunks.writes.chunks().enumerate() {
            self.offer_write(ChunkName::Write { index }, &chunk);
        }
        if let Some(reply) = &chunks.reply {
            self.offer_write(ChunkName::Reply, reply);
        }
    }

    fn offer_write(&mut self, name: ChunkName, chunk: &WriteChunk<'_>) {
        self.chunks.push(Chunk { name, segments: chunk.segments().collect(), moved: 0 });
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.chunks.iter().flat_map(|c| &c.segments)
    }

    /// Returns true if `handle` belongs to one of the call's chunks.
    pub(crate) fn has(&self, handle: u32) -> bool {
        self.segments().any(|s| s.handle.0 == handle)
    }

    /// Returns the faults of the lists that a reply returns. A reply that fails may return no
    /// lists.
    pub(crate) fn returned(
        &self,
        writes: &WriteList<'_>,
        reply: Option<&WriteChunk<'_>>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let provided = |name| self.chunks.iter().find(|c| c.name == name);
        if !writes.is_empty() {
            let all = self.chunks.iter().filter(|c| matches!(c.name, ChunkName::Write { .. }));
            let count = all.count();
            if count != writes.len() {
                let e = ReturnedError::Count { provided: count, returned: writes.len() };
                wrong.push(format!("Write list: {e}"));
            }
            for (index, chunk) in writes.chunks().enumerate() {
                if let Some(was) = provided(ChunkName::Write { index }) {
                    wrong.extend(check(&format!("Write chunk {index}"), &chunk, was));
                }
            }
        }
        match (reply, provided(ChunkName::Reply)) {
            (Some(is), Some(was)) => wrong.extend(check("Reply chunk", is, was)),
            (Some(_), None) => wrong.push("Reply chunk: the call has none".into()),
            (None, _) => {}
        }
        wrong
    }
}

/// Checks one chunk of a reply: its segments, and whether the reported bytes were written.
fn check(name: &str, is: &WriteChunk<'_>, was: &Chunk) -> Option<String> {
    let provided = WriteChunk::new(&was.segments).ok()?;
    match is.returned(&provided) {
        Err(e) => Some(format!("{name}: {e}")),
        Ok(told) if u64::from(told) > was.moved => {
            Some(format!("{name}: {told} bytes told, {} written", was.moved))
        }
        Ok(_) => None,
    }
}

/// The memory in which a place lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The place is in a chunk.
    In(ChunkOf),
    /// The place is in memory that was offered for the other direction.
    Misused(ChunkOf),
    /// The place is in a segment, but does not fit it.
    Beyond(ChunkOf),
    /// The place is in memory of a call that has ended.
    Ended,
    /// The place is in no offered memory.
    Nowhere,
}

/// The calls of an end.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    open: BTreeMap<u32, Call>,
    /// XIDs in the order in which the calls came, ended ones among them.
    order: VecDeque<u32>,
    segments: usize,
    ended: VecDeque<u32>,
}

impl Calls {
    pub(crate) fn get(&mut self, xid: u32) -> Option<&mut Call> {
        self.open.get_mut(&xid)
    }

    /// Adds a call. Returns true if the decoder had to forget others for it.
    pub(crate) fn add(&mut self, xid: u32, call: Call) -> bool {
        self.segments += call.segments().count();
        if let Some(before) = self.open.insert(xid, call) {
            self.segments -= before.segments().count();
        } else {
            self.order.push_back(xid);
        }
        let mut forgot = false;
        while self.open.len() > CALLS_MAX || (self.segments > SEGMENTS_MAX && self.open.len() > 1) {
            let Some(oldest) = self.order.pop_front() else { break };
            forgot |= self.end(oldest).is_some();
        }
        // `order` keeps ended calls until there are as many as may be open.
        if self.order.len() > 2 * CALLS_MAX {
            self.order.retain(|x| self.open.contains_key(x));
        }
        forgot
    }

    /// Replaces a call, of which only the first messages had come, by `call`, which has its chunks.
    pub(crate) fn complete(&mut self, xid: u32, mut call: Call) -> bool {
        if let Some(begun) = self.open.get(&xid) {
            call.procedure = call.procedure.or(begun.procedure);
        }
        self.add(xid, call)
    }

    /// Removes a call, and remembers its handles as ended.
    pub(crate) fn end(&mut self, xid: u32) -> Option<Call> {
        let call = self.open.remove(&xid)?;
        self.segments -= call.segments().count();
        for s in call.segments() {
            if self.ended.len() >= ENDED_MAX {
                self.ended.pop_front();
            }
            self.ended.push_back(s.handle.0);
        }
        Some(call)
    }

    /// Forgets all calls.
    pub(crate) fn clear(&mut self) {
        *self = Calls::default();
    }

    /// Finds the memory that the other end writes (`write`) or reads, and counts the bytes.
    pub(crate) fn moved(&mut self, write: bool, place: Place, bytes: u64) -> Found {
        let mut found = Found::Nowhere;
        for (&xid, call) in &mut self.open {
            for chunk in &mut call.chunks {
                let mut before = 0;
                for s in &chunk.segments {
                    let into = place.offset.wrapping_sub(s.offset);
                    if s.handle.0 == place.handle && into < u64::from(s.length) {
                        let of = ChunkOf { xid, chunk: chunk.name, at: before + into };
                        let fits = bytes <= u64::from(s.length) - into;
                        let for_writing =
                            matches!(chunk.name, ChunkName::Write { .. } | ChunkName::Reply);
                        found = match (fits, for_writing == write) {
                            (true, true) => {
                                chunk.moved += bytes;
                                return Found::In(of);
                            }
                            (false, true) => Found::Beyond(of),
                            (_, false) => Found::Misused(of),
                        };
                    }
                    before += u64::from(s.length);
                }
            }
        }
        if found == Found::Nowhere && self.ended.contains(&place.handle) {
            return Found::Ended;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(handle: u32, offset: u64, length: u32) -> Segment {
        Segment { handle: Handle(handle), length, offset }
    }

    fn calls() -> Calls {
        let chunk = |name, segments| Chunk { name, segments, moved: 0 };
        let chunks = vec![
            chunk(ChunkName::Read { position: 40 }, vec![segment(1, 0x1000, 100)]),
            chunk(ChunkName::Reply, vec![segment(2, 0, 10), segment(3, 0x5000, 10)]),
        ];
        let mut calls = Calls::default();
        assert!(!calls.add(9, Call { chunks, ..Call::default() }));
        calls
    }

    #[test]
    fn test_place_is_found_only_within_bounds_of_its_segment() {
        let mut c = calls();
        let at = |handle, offset| Place { handle, offset };
        let of = |chunk, at| ChunkOf { xid: 9, chunk, at };
        let position = ChunkName::Read { position: 40 };
        assert_eq!(c.moved(false, at(1, 0x1000), 100), Found::In(of(position, 0)));
        assert_eq!(c.moved(false, at(1, 0x1000), 101), Found::Beyond(of(position, 0)));
        assert_eq!(c.moved(true, at(1, 0x1063), 1), Found::Misused(of(position, 99)));
        assert_eq!(c.moved(false, at(1, 0x1064), 1), Found::Nowhere);
        assert_eq!(c.moved(false, at(1, 0xfff), 1), Found::Nowhere);
        assert_eq!(c.moved(true, at(3, 0x5004), 6), Found::In(of(ChunkName::Reply, 14)));
        assert_eq!(c.moved(true, at(4, 0x5004), 6), Found::Nowhere);
        c.end(9);
        assert_eq!(c.moved(true, at(3, 0x5004), 6), Found::Ended);
        assert_eq!(c.segments, 0);
    }

    #[test]
    fn test_reply_is_faulted_when_it_reports_more_than_was_written() {
        let mut c = calls();
        c.moved(true, Place { handle: 2, offset: 0 }, 8);
        let call = c.get(9).unwrap();
        let provided = [segment(2, 0, 10), segment(3, 0x5000, 10)];
        let provided = WriteChunk::new(&provided).unwrap();
        let none = WriteList::EMPTY;
        assert!(call.returned(&none, Some(&provided.filled(8))).is_empty());
        let wrong = call.returned(&none, Some(&provided.filled(9)));
        assert_eq!(wrong, ["Reply chunk: 9 bytes told, 8 written"]);
        let other = [segment(5, 0, 4)];
        let other = WriteChunk::new(&other).unwrap();
        assert_eq!(call.returned(&none, Some(&other)).len(), 1);
        let list = [other];
        let list = WriteList::new(&list);
        assert_eq!(call.returned(&list, None), ["Write list: 1 returned of 0"]);
    }

    #[test]
    fn test_call_table_bounds_its_calls_and_segments() {
        let mut c = Calls::default();
        let segments = vec![segment(1, 0, 1); 1000];
        for xid in 0..10_000 {
            let segments = if xid % 100 == 0 { segments.clone() } else { Vec::new() };
            let chunks = vec![Chunk { name: ChunkName::Reply, segments, moved: 0 }];
            c.add(xid, Call { chunks, ..Call::default() });
            assert!(c.open.len() <= CALLS_MAX && c.segments <= SEGMENTS_MAX);
            assert!(c.order.len() <= 2 * CALLS_MAX && c.ended.len() <= ENDED_MAX);
        }
        assert!(c.get(9_999).is_some() && c.get(0).is_none());
    }
}
