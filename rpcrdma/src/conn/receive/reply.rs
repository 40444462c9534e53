//! The peer's replies to calls of this end.

use super::Received;
use crate::chunk::WriteList;
use crate::conn::calls::{Outcome, Phase, ReplySource};
use crate::conn::negotiate::Flow;
use crate::conn::{BadReply, BufferId, CallError, CloseReason, Connection, Memory, Purpose};
use crate::header::Xid;

/// The place of a received reply's Payload stream.
pub(super) enum Source<'a> {
    /// The stream is in the Send.
    Inline,
    /// The stream came in parts, which the buffer holds.
    Buffer { buffer: BufferId, length: u32 },
    /// The stream came in parts, and there was no memory for them.
    Refused,
    /// The stream is in the Reply chunk.
    Chunk(crate::chunk::WriteChunk<'a>),
}

impl Connection {
    /// Fails the call `xid`, whose reply cannot be used.
    pub(super) fn bad_reply(&mut self, xid: Xid, credit: u32) -> Result<(), CloseReason> {
        let Some(slot) = self.find_call(xid) else {
            self.counters.stray_replies += 1;
            return Ok(());
        };
        self.reply_credit(credit)?;
        self.complete(slot, Outcome::Failed(CallError::BadReply(BadReply::Header)));
        Ok(())
    }

    /// Counts the credits of a reply in version 1.
    pub(super) fn reply_credit(&mut self, credit: u32) -> Result<(), CloseReason> {
        match &mut self.flow {
            Flow::V1(flow) => flow.calls.reply(credit).map_err(CloseReason::CreditsV1),
            _ => Ok(()),
        }
    }

    /// Returns the call of this end with this XID, if any part of the call was sent and no reply
    /// has come.
    pub(super) fn find_call(&self, xid: Xid) -> Option<u16> {
        let slot = self.calls.find(xid)?;
        let phase = self.calls.at(slot)?.phase;
        matches!(phase, Phase::Sending | Phase::Waiting | Phase::Zombie).then_some(slot)
    }

    /// Returns true if a reply may invalidate a handle that its call has offered. In version 1 only
    /// the private data of this end decides, although RFC 8797 section 4.1 requires both ends to
    /// announce support: a server that invalidates can do so, and the server of Linux invalidates
    /// without having announced it.
    fn takes_invalidation(&self) -> bool {
        match self.flow {
            Flow::V1(_) => self.config.private_data.invalidate,
            Flow::V2(_) | Flow::None => true,
        }
    }

    pub(super) fn receive_reply<M: Memory>(
        &mut self,
        xid: Xid,
        credit: u32,
        writes: WriteList<'_>,
        source: Source<'_>,
        received: &mut Received<'_, M>,
    ) -> Result<(), CloseReason> {
        let Some(slot) = self.find_call(xid) else {
            self.counters.stray_replies += 1;
            source.free(received.memory);
            return received.no_invalidation();
        };
        self.reply_credit(credit)?;
        let takes = self.takes_invalidation();
        let Some(row) = self.calls.at_mut(slot) else { return Ok(()) };
        if let Some(handle) = received.invalidated {
            if !takes || !row.invalidated(handle) {
                source.free(received.memory);
                return Err(CloseReason::WrongInvalidate);
            }
            self.counters.remote_invalidations += 1;
        }
        let outcome = if let Some(error) = row.abandoned {
            source.free(received.memory);
            Outcome::Failed(error)
        } else {
            match source.place(received) {
                Some(placed) => match row.replied(writes, placed, &mut self.lists) {
                    Ok(reply) => Outcome::Reply(reply),
                    Err(bad) => {
                        if let ReplySource::Buffer { buffer, .. } = placed {
                            received.memory.free(buffer);
                        }
                        Outcome::Failed(CallError::BadReply(bad))
                    }
                },
                None => {
                    self.counters.overloads += 1;
                    Outcome::Failed(CallError::NoMemory)
                }
            }
        };
        self.complete(slot, outcome);
        Ok(())
    }
}

impl<'a> Source<'a> {
    pub(super) fn free(&self, memory: &mut impl Memory) {
        if let Source::Buffer { buffer, .. } = *self {
            memory.free(buffer);
        }
    }

    /// Moves the stream to memory in which it can stay after this Receive.
    pub(super) fn place<M: Memory>(
        self,
        received: &mut Received<'_, M>,
    ) -> Option<ReplySource<'a>> {
        match self {
            Source::Chunk(chunk) => Some(ReplySource::Chunk(chunk)),
            Source::Buffer { buffer, length } => Some(ReplySource::Buffer { buffer, length }),
            Source::Refused => None,
            Source::Inline => {
                let length = u32::try_from(received.payload.len()).ok()?;
                let buffer = received.memory.allocate(Purpose::Reply, length)?;
                received.memory.write(buffer, 0, received.payload);
                Some(ReplySource::Buffer { buffer, length })
            }
        }
    }
}
