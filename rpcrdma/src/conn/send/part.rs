//! Sends of calls and replies: in one Send, or in several by continuation.

use super::{ENDED, Kind, NO_ROOM, Next, Step};
use crate::conn::calls::Phase;
use crate::conn::negotiate::Flow;
use crate::conn::plan::{Format, gather};
use crate::conn::{CloseReason, Connection, WorkId, served};
use crate::property::ThresholdError;
use crate::segment::Handle;
use crate::{Xid, v1, v2};

/// A message that this end is sending in parts, and the progress of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::conn) struct Sequel {
    of: Of,
    slot: u16,
    generation: u32,
    offset: u32,
}

impl Connection {
    /// Returns the next Send of a call or a reply, if there is credit: a whole message or a part. A
    /// message that is still in a queue must be the first there.
    pub(super) fn next_part(&mut self, sequel: Sequel, out: &mut [u8]) -> Step {
        let Some((length, header, format)) = self.extent(sequel) else {
            return Err(ENDED);
        };
        if !self.may_send() {
            return Ok(None);
        }
        let left = length - sequel.offset;
        let room = self.thresholds.send.saturating_sub(header);
        let (part, last) = match format {
            Format::Chunk => (0, true),
            Format::Inline if left <= room => (left, true),
            Format::Inline => (room / 4 * 4, false),
        };
        if !last && (part == 0 || self.version == Some(v1::VERSION)) {
            // The peer's thresholds have shrunk since this end planned the message.
            return Err(CloseReason::Threshold(ThresholdError { bytes: self.thresholds.send }));
        }
        let (id, xid) = self.account(sequel, part, last)?;
        let credit = match self.message_credit(sequel)? {
            Some(credit) => credit,
            None => return Err(CloseReason::Driver("credit was there and is not")),
        };
        let remaining = left - part;
        let written = if last {
            self.encode_last(sequel, credit, out)
        } else {
            let body = match sequel.of {
                Of::Call => v2::Body::CallMiddle { remaining },
                Of::Reply => v2::Body::ReplyMiddle { remaining },
            };
            v2::Header { xid, credit, body }.encode(out).ok()
        };
        let header = written.ok_or(NO_ROOM)?;
        let next = Sequel { offset: sequel.offset + part, ..sequel };
        self.sending = (!last).then_some(next);
        let invalidate = self.served_invalidation(sequel).filter(|_| last);
        Ok(Some(Next::Send { id, header, invalidate }))
    }

    /// Returns the extent of a message: the length of its stream and of its longest header in
    /// bytes, and its format.
    pub(super) fn extent(&self, sequel: Sequel) -> Option<(u32, u32, Format)> {
        match sequel.of {
            Of::Call => {
                let row = self.calls.at(sequel.slot)?;
                // Finish a message once begun, also after the peer has refused it: the peer
                // discards the rest, and would take another message for a part of this one.
                let is = self.calls.is(sequel.slot, sequel.generation);
                is.then_some((row.plan.length, row.plan.header, row.plan.format))
            }
            Of::Reply => {
                let row = self.served.at(sequel.slot)?;
                let is = self.served.is(sequel.slot, sequel.generation);
                is.then_some((row.reduced, row.header_len, row.format))
            }
        }
    }

    /// Records that a part is posted, and gathers its payload.
    pub(super) fn account(
        &mut self,
        sequel: Sequel,
        part: u32,
        last: bool,
    ) -> Result<(WorkId, Xid), CloseReason> {
        let range = (sequel.offset, part);
        let (slot, generation) = (sequel.slot, sequel.generation);
        match sequel.of {
            Of::Call => {
                let row = self.calls.at_mut(slot).ok_or(ENDED)?;
                gather(&row.stream, row.total, row.reduced_items(), range, &mut self.gather);
                row.sends += 1;
                if row.phase != Phase::Ending {
                    row.phase = if last { Phase::Waiting } else { Phase::Sending };
                }
                if sequel.offset == 0 {
                    self.queue.pop_front();
                    self.outstanding += 1;
                }
                self.counters.calls_sent += u64::from(last);
                Ok((WorkId::of(Kind::Call, slot, generation), row.xid))
            }
            Of::Reply => {
                let row = self.served.at_mut(slot).ok_or(ENDED)?;
                if row.format == Format::Inline {
                    gather(&row.stream, row.total, &row.placed, range, &mut self.gather);
                }
                row.sends += 1;
                if sequel.offset == 0 {
                    self.replies.pop_front();
                }
                if last {
                    row.phase = served::Phase::Sent;
                    self.unanswered = self.unanswered.saturating_sub(1);
                    self.counters.replies_sent += 1;
                }
                Ok((WorkId::of(Kind::Reply, slot, generation), row.xid))
            }
        }
    }

    /// Returns the credit field of a call or reply.
    pub(super) fn message_credit(&mut self, sequel: Sequel) -> Result<Option<u32>, CloseReason> {
        self.advertise();
        let requested = self.served.at(sequel.slot).map_or(0, |row| row.requested);
        match (&mut self.flow, sequel.of) {
            (Flow::V2(_), _) => Ok(self.credit_of_message()),
            (Flow::V1(flow), Of::Call) => {
                let may = flow.calls.call().is_ok();
                Ok(may.then(|| flow.calls.requested()))
            }
            (Flow::V1(flow), Of::Reply) => {
                flow.serves.reply(requested).map(Some).map_err(CloseReason::CreditsV1)
            }
            (Flow::None, _) => Ok(None),
        }
    }

    pub(super) fn encode_last(
        &mut self,
        sequel: Sequel,
        credit: u32,
        out: &mut [u8],
    ) -> Option<usize> {
        let version = self.version?;
        match sequel.of {
            Of::Call => {
                let row = self.calls.at(sequel.slot)?;
                row.encode(version, credit, &mut self.lists, out).ok()
            }
            Of::Reply => self.served.at(sequel.slot)?.encode(version, credit, out).ok(),
        }
    }

    pub(super) fn served_invalidation(&self, sequel: Sequel) -> Option<Handle> {
        match sequel.of {
            Of::Call => None,
            Of::Reply => self.served.at(sequel.slot)?.invalidate,
        }
    }
}

impl Sequel {
    /// Returns the sequel of a call whose sending has not begun.
    pub(super) fn call(slot: u16, generation: u32) -> Sequel {
        Sequel { of: Of::Call, slot, generation, offset: 0 }
    }

    /// Returns the sequel of a reply whose sending has not begun.
    pub(super) fn reply(slot: u16, generation: u32) -> Sequel {
        Sequel { of: Of::Reply, slot, generation, offset: 0 }
    }

    pub(in crate::conn) fn is_of_call(&self, slot: u16) -> bool {
        self.of == Of::Call && self.slot == slot
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Call,
    Reply,
}
