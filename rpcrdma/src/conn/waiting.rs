//! Calls of the peer that wait for memory.
//!
//! The row of such a call keeps the bytes of its Send, and the call holds no buffer, so calls that
//! wait never block each other. The table bounds their number, and a peer that obeys its credits
//! has no more calls under way than it was granted.

use super::receive::HEADER_MIN;
use super::served::{Body, Phase};
use super::work::ServedId;
use super::{BufferId, CloseReason, Connection, Memory, Purpose};
use crate::chunk::ReadList;
use crate::header::{Header, Message, decode};
use crate::reduce::Assembly;
use crate::{v1, v2};

impl Connection {
    /// Returns the number of the peer's calls that wait for memory.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of the peer's calls that the upper layer has, or will get by a queued
    /// event, and has not answered.
    pub fn serving(&self) -> usize {
        let rows = self.served.all().filter_map(|slot| self.served.at(slot));
        rows.filter(|row| row.phase == Phase::Serving).count()
    }

    /// Resumes waiting calls in their order, after buffers for calls may have come back, until a
    /// call finds no buffer. Returns true if any call resumed.
    pub fn memory_returned(&mut self, memory: &mut impl Memory) -> bool {
        self.stirred = true;
        let mut any = false;
        while self.is_running()
            && let Some(&slot) = self.waiting.front()
        {
            let row = self.served.at(slot);
            let (purpose, length) = row.map_or((Purpose::Call, 1), |row| (row.purpose, row.length));
            let Some(buffer) = memory.allocate(purpose, length) else { break };
            self.waiting.pop_front();
            any = true;
            if self.resume(slot, buffer, memory).is_none() {
                memory.free(buffer);
                self.served.release(slot);
                self.close(UNREADABLE);
            }
        }
        any
    }

    /// Keeps a call, which came in a Send of these `bytes`, until there is memory for the call.
    pub(super) fn wait_for_memory(&mut self, slot: u16, bytes: &[u8]) {
        if let Some(row) = self.served.at_mut(slot) {
            row.phase = Phase::Waiting;
            row.bytes.clear();
            row.bytes.extend_from_slice(bytes);
        }
        self.waiting.push_back(slot);
        self.counters.memory_waits += 1;
    }

    /// Resumes a call that has waited and now has a buffer. Returns `None` when the call can no
    /// longer be decoded, although it was decoded before.
    fn resume(&mut self, slot: u16, buffer: BufferId, memory: &mut impl Memory) -> Option<()> {
        let (versions, limits, max) =
            (self.versions(), self.config.limits, self.config.message_max);
        let id = ServedId { slot, generation: self.served.generation(slot) };
        let row = self.served.at_mut(slot)?;
        let (bytes, items) = (core::mem::take(&mut row.bytes), row.items);
        let message = decode(&bytes, versions, &limits).ok()?;
        let (body, reads) = body_of(&message)?;
        let items = items.as_slice().iter().copied();
        let assembly = Assembly::new(body.length(), HEADER_MIN, items, max).ok()?;
        self.begin_call(id, buffer, (&body, reads), &assembly, memory);
        self.served.at_mut(slot)?.bytes = bytes;
        Some(())
    }
}

/// The kept bytes of a call have changed: a defect.
const UNREADABLE: CloseReason = CloseReason::Driver("a call that has waited cannot be read");

/// Returns the place of the Payload stream of a call that came in one Send, and its Read list.
fn body_of<'a>(message: &Message<'a>) -> Option<(Body<'a>, ReadList<'a>)> {
    let inline = Body::Inline(message.payload);
    match message.header {
        Header::V1(header) => match header.body {
            v1::Body::Msg(chunks) => Some((inline, chunks.reads)),
            v1::Body::NoMsg(chunks) => {
                Some((chunks.reads.body().map_or(inline, Body::Chunk), chunks.reads))
            }
            v1::Body::Error(_) => None,
        },
        Header::V2(header) => match header.body {
            v2::Body::CallInline { chunks, .. } => Some((inline, chunks.reads)),
            v2::Body::CallExternal { call, chunks, .. } => {
                Some((Body::Chunk(call.body()?), chunks.reads))
            }
            _ => None,
        },
    }
}
