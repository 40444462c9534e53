//! Received calls of the peer.

use super::Received;
use crate::chunk::ReadList;
use crate::conn::negotiate::Flow;
use crate::conn::offer::Offer;
use crate::conn::served::{self, Body};
use crate::conn::{
    AnswerFlow, BufferId, CloseReason, Connection, Event, ItemSet, Memory, ServedId, Side, Unsent,
    calls,
};
use crate::header::{Answer, Refusal, Xid};
use crate::property::ReverseSupport;
use crate::reduce::{AssembleError, Assembly, Item};
use crate::rpc::Call as RpcCall;
use crate::{v1, v2};

/// Length of the shortest RPC header in bytes: no item can be nearer to the front.
pub(in crate::conn) const HEADER_MIN: u32 = 40;
const _: () = assert!(HEADER_MIN as usize == RpcCall::MIN_LEN);

/// The chunks that a call carries, and the offer among them for its reply.
#[derive(Clone, Copy)]
pub(super) struct Uses<'a> {
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) offer: Offer<'a>,
}

impl<'a> Uses<'a> {
    pub(super) fn new(reads: bool, offer: Offer<'a>) -> Uses<'a> {
        Uses { reads, writes: offer.has_room(), offer }
    }
}

/// A call of the peer, without its arguments.
pub(super) struct ReceivedCall<'a> {
    pub(super) xid: Xid,
    /// The credits that the message asks for (version 1) or grants (version 2).
    pub(super) credit: u32,
    /// Where its arguments are.
    pub(super) body: Body<'a>,
    /// The arguments' chunks that this end has to read.
    pub(super) reads: ReadList<'a>,
    pub(super) uses: Uses<'a>,
}

impl Connection {
    /// Handles a call of the peer. In version 1 the caller has counted its credit.
    pub(super) fn receive_call<M: Memory>(
        &mut self,
        call: ReceivedCall<'_>,
        received: &mut Received<'_, M>,
    ) -> Result<(), CloseReason> {
        let ReceivedCall { xid, credit, body, reads, uses } = call;
        let refused = |c: &mut Connection, memory: &mut M, refusal| {
            if let Body::Buffer { buffer, .. } = body {
                memory.free(buffer);
            }
            c.refuse_call(xid, credit, refusal)
        };
        // Skip rows whose reply is on its way: the peer may have that reply already and reuse the
        // XID.
        if self.served.with(xid).any(|row| row.phase != served::Phase::Sent) {
            self.counters.duplicate_calls += 1;
            if let Body::Buffer { buffer, .. } = body {
                received.memory.free(buffer);
            }
            // Version 1 counts the duplicate as answered, because one reply answers both calls.
            if let Flow::V1(flow) = &mut self.flow {
                flow.serves.reply(credit).map_err(CloseReason::CreditsV1)?;
            }
            return Ok(());
        }
        if let Some(refusal) = self.unsupported(uses) {
            return refused(self, received.memory, refusal);
        }
        let items =
            ItemSet::of(reads.items().map(|c| Item { offset: c.position(), length: c.length() }));
        let max = self.config.message_max;
        let items_of = items.as_slice().iter().copied();
        let assembly = match Assembly::new(body.length(), HEADER_MIN, items_of, max) {
            Ok(assembly) if assembly.total() >= calls::MESSAGE_MIN => assembly,
            Err(AssembleError::TooLong { .. }) => {
                self.counters.overloads += 1;
                return refused(self, received.memory, v2::Refusal::System);
            }
            Ok(_) | Err(_) => return refused(self, received.memory, v2::Refusal::BadXdr),
        };
        let Some((slot, generation)) = self.served.take(xid) else {
            self.counters.overloads += 1;
            return refused(self, received.memory, v2::Refusal::System);
        };
        let total = assembly.total();
        let has_parts = matches!(body, Body::Buffer { .. });
        let purpose = body.purpose(reads);
        let memory = &mut *received.memory;
        let buffer = match body {
            Body::Buffer { buffer, .. } if items.as_slice().is_empty() => Some(buffer),
            Body::Buffer { .. } => memory.allocate(purpose, total),
            // Serve calls in their order: a later call must not take memory that earlier calls wait
            // for.
            _ if self.waiting.is_empty() && total <= memory.call_max() => {
                memory.allocate(purpose, total)
            }
            _ => None,
        };
        if buffer.is_none() && (has_parts || total > memory.call_max()) {
            self.served.release(slot);
            self.counters.overloads += 1;
            return refused(self, received.memory, v2::Refusal::System);
        }
        if let Some(row) = self.served.at_mut(slot) {
            row.set(xid, credit, &uses.offer);
            row.length = total;
            row.items = items;
            row.purpose = purpose;
        }
        self.unanswered += 1;
        let id = ServedId { slot, generation };
        match buffer {
            Some(buffer) => {
                self.begin_call(id, buffer, (&body, reads), &assembly, received.memory);
                if let Body::Buffer { buffer: parts, .. } = body
                    && parts != buffer
                {
                    received.memory.free(parts);
                }
            }
            None => self.wait_for_memory(slot, received.bytes),
        }
        Ok(())
    }

    /// Begins to assemble a call of the peer in its buffer.
    pub(in crate::conn) fn begin_call<C: Iterator<Item = Item> + Clone>(
        &mut self,
        id: ServedId,
        buffer: BufferId,
        (body, reads): (&Body<'_>, ReadList<'_>),
        assembly: &Assembly<C>,
        memory: &mut impl Memory,
    ) {
        let read_max = self.config.read_max;
        let Some(row) = self.served.at_mut(id.slot) else { return };
        row.begin_transfer(served::Phase::Reading);
        row.buffer = buffer;
        row.assemble(assembly, (body, reads), read_max, memory);
        if row.reads.is_empty() {
            self.hand_up(id);
        } else {
            self.reading.push_back(id.slot);
        }
    }

    /// Passes a complete call of the peer to the upper layer.
    pub(in crate::conn) fn hand_up(&mut self, id: ServedId) {
        if let Some(row) = self.served.at_mut(id.slot) {
            row.phase = served::Phase::Serving;
            let call = row.incoming(id);
            self.counters.calls_received += 1;
            self.events.push_back(Event::Call(call));
        }
    }

    /// Returns the refusal of a reverse-direction call that uses a feature this end does not
    /// support (draft sections 4.6.3 and 4.6.4).
    pub(super) fn unsupported(&self, uses: Uses<'_>) -> Option<v2::Refusal> {
        if self.config.side == Side::Server {
            return None;
        }
        match self.config.properties.reverse {
            ReverseSupport::General if self.version == Some(v2::VERSION) => None,
            ReverseSupport::None => Some(v2::Refusal::System),
            _ if uses.reads => Some(v2::Refusal::ReadChunks { max: 0 }),
            // A call whose reply this end cannot send in parts either has a code of its own
            // (section 7.3.2).
            ReverseSupport::Simple if uses.writes => Some(v2::Refusal::ReplyResource { needed: 0 }),
            _ if uses.writes => Some(v2::Refusal::WriteChunks { max: 0 }),
            _ => None,
        }
    }

    /// Answers a call with an error; the upper layer does not see the call.
    pub(super) fn refuse_call(
        &mut self,
        xid: Xid,
        requested: u32,
        refusal: v2::Refusal,
    ) -> Result<(), CloseReason> {
        self.send_answer(self.refusal_of(xid, requested, refusal))
    }

    /// Returns the error message that ends a call, in the terms of the connection's version.
    pub(in crate::conn) fn refusal_of(
        &self,
        xid: Xid,
        requested: u32,
        refusal: v2::Refusal,
    ) -> Unsent {
        if self.version == Some(v1::VERSION) {
            let refusal = Refusal::V1(v1::Refusal::Chunk);
            let answer = Answer { xid, version: v1::VERSION, refusal };
            return Unsent { answer, flow: AnswerFlow::Reply { requested } };
        }
        let answer = Answer { xid, version: v2::VERSION, refusal: Refusal::V2(refusal) };
        Unsent { answer, flow: AnswerFlow::Message }
    }
}
