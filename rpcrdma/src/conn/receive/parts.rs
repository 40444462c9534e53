//! RPC messages of version 2 that come in parts (draft section 6.6.2).

use super::call::{ReceivedCall, Uses};
use super::reply::Source;
use super::{Received, served::Body};
use crate::conn::offer::Offer;
use crate::conn::transfers::Age;
use crate::conn::{BufferId, CloseReason, Connection, Memory, Purpose};
use crate::header::{Direction, Xid};
use crate::v2;

/// An RPC message of which this end has received some parts.
#[derive(Debug)]
pub(in crate::conn) struct Incoming {
    direction: Direction,
    xid: Xid,
    /// The buffer that collects the parts; `None` when the parts are discarded.
    pub(in crate::conn) buffer: Option<BufferId>,
    pub(in crate::conn) age: Age,
}

impl Connection {
    /// Handles a part of a message, or a whole message.
    pub(super) fn receive_part<M: Memory>(
        &mut self,
        header: &v2::Header<'_>,
        (offset, total, last): (u32, u32, bool),
        received: &mut Received<'_, M>,
    ) -> Result<(), CloseReason> {
        let is_whole = offset == 0 && last;
        if offset == 0 && !last {
            self.begin_incoming(header, total, received)?;
        }
        if !is_whole && let Some(Incoming { buffer: Some(buffer), .. }) = self.incoming {
            received.memory.write(buffer, offset, received.payload);
        }
        if !last {
            return Ok(());
        }
        let parts = self.incoming.take();
        let gathered = parts.as_ref().and_then(|parts| parts.buffer);
        let (xid, credit) = (header.xid, header.credit);
        match header.body {
            v2::Body::ReplyInline { writes } => {
                let source = match (is_whole, gathered) {
                    (true, _) => Source::Inline,
                    (false, Some(buffer)) => Source::Buffer { buffer, length: total },
                    (false, None) => Source::Refused,
                };
                self.receive_reply(xid, credit, writes, source, received)
            }
            v2::Body::CallInline { chunks, .. } => {
                let body = match (is_whole, gathered) {
                    (true, _) => Body::Inline(received.payload),
                    (false, Some(buffer)) => Body::Buffer { buffer, length: total },
                    // The call was refused at its first part.
                    (false, None) => return Ok(()),
                };
                let uses = Uses::new(!chunks.reads.is_empty(), Offer::of_v2(header));
                let reads = chunks.reads;
                self.receive_call(ReceivedCall { xid, credit, body, reads, uses }, received)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn begin_incoming<M: Memory>(
        &mut self,
        header: &v2::Header<'_>,
        total: u32,
        received: &mut Received<'_, M>,
    ) -> Result<(), CloseReason> {
        let xid = header.xid;
        let direction = header.direction().unwrap_or(Direction::Call);
        let (wanted, purpose) = match direction {
            Direction::Call => (true, Purpose::Parts),
            Direction::Reply => (self.find_call(xid).is_some(), Purpose::Reply),
        };
        let buffer = if wanted { received.memory.allocate(purpose, total) } else { None };
        if wanted && buffer.is_none() {
            self.counters.overloads += 1;
            if direction == Direction::Call {
                self.refuse_call(xid, 0, v2::Refusal::System)?;
            }
        }
        self.incoming = Some(Incoming { direction, xid, buffer, age: Age::default() });
        Ok(())
    }

    /// Drops the message that was coming in parts and will not be complete.
    pub(super) fn drop_incoming(&mut self, memory: &mut impl Memory) -> Result<(), CloseReason> {
        let Some(Incoming { direction, xid, buffer, .. }) = self.incoming.take() else {
            return Ok(());
        };
        if let Some(buffer) = buffer {
            memory.free(buffer);
        }
        if direction == Direction::Reply { self.bad_reply(xid, 0) } else { Ok(()) }
    }

    /// Drops the parts of the reply `xid`, if that reply is coming in parts.
    pub(super) fn end_incoming(&mut self, xid: Xid, memory: &mut impl Memory) {
        let is = |i: &Incoming| i.direction == Direction::Reply && i.xid == xid;
        if let Some(incoming) = self.incoming.as_mut().filter(|i| is(i))
            && let Some(buffer) = incoming.buffer.take()
        {
            memory.free(buffer);
        }
    }

    /// Forgets the message that was coming in parts, and gives its buffer back.
    pub(in crate::conn) fn forget_incoming(&mut self, memory: &mut impl Memory) {
        if let Some(Incoming { buffer: Some(buffer), .. }) = self.incoming.take() {
            memory.free(buffer);
        }
    }
}
