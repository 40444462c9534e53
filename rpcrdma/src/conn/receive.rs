//! What a received Send does.

mod call;
mod parts;
mod reply;

use heddle_base::Instant;

pub(super) use call::HEADER_MIN;
pub(super) use parts::Incoming;

use self::call::Uses;
use self::reply::Source;
use super::calls::Outcome;
use super::negotiate::Flow;
use super::served::{self, Body};
use super::{AnswerFlow, CallError, CloseReason, Connection, Memory, Side, Unsent};
use crate::credit::v2::Kind;
use crate::header::{Answer, Direction, Failure, Header, Message, Refusal, Role, Xid, decode};
use crate::segment::Handle;
use crate::sequence::Step;
use crate::{v1, v2};

/// Errors that wait to be sent, at most.
const UNSENT_MAX: usize = 64;

impl Connection {
    /// A Receive has completed, with `octets`; `invalidated` is the handle that the peer has
    /// invalidated by it. Nothing of `octets` is used any more when this returns.
    pub fn handle_receive(
        &mut self,
        now: Instant,
        octets: &[u8],
        invalidated: Option<Handle>,
        memory: &mut impl Memory,
    ) {
        if !self.is_running() {
            return;
        }
        self.counters.receives += 1;
        // A deadline that has passed has passed before what comes now.
        self.handle_timeout(now);
        if !self.is_running() {
            return;
        }
        let limits = self.config.limits;
        let result = match decode(octets, self.versions(), &limits) {
            Ok(Message { header, payload }) => {
                let mut received = Received { octets, payload, invalidated, memory };
                match &header {
                    Header::V1(header) => self.receive_v1(header, &mut received),
                    Header::V2(header) => self.receive_v2(header, &mut received),
                }
            }
            Err(failure) => self.receive_bad(&failure, memory),
        };
        if let Err(reason) = result {
            self.close(reason);
        }
        self.watch_transfers(now);
    }

    /// A message that was not understood.
    fn receive_bad(
        &mut self,
        failure: &Failure,
        memory: &mut impl Memory,
    ) -> Result<(), CloseReason> {
        self.counters.bad_messages += 1;
        let role = match self.config.side {
            Side::Client => Role::Requester,
            Side::Server => Role::Responder,
        };
        let answer = failure.answer(role);
        let of_v2 = failure.prefix.filter(|prefix| prefix.version == v2::VERSION);
        let is_reply = failure.direction == Some(Direction::Reply);
        let flow = match &mut self.flow {
            // Before a version is known, versions are all that can be told.
            Flow::None => {
                if answer.is_some() {
                    self.count_refused()?;
                }
                AnswerFlow::None
            }
            Flow::V1(flow) => match answer {
                Some(Answer { refusal: Refusal::V1(v1::Refusal::Chunk), .. }) => {
                    flow.serves.call().map_err(CloseReason::CreditsV1)?;
                    let requested = failure.prefix.map_or(0, |prefix| prefix.credit);
                    AnswerFlow::Reply { requested }
                }
                _ => AnswerFlow::None,
            },
            Flow::V2(flow) => {
                match of_v2 {
                    Some(prefix) if prefix.kind == v2::htype::GRANT => {
                        flow.credits.receive(Kind::Grant, prefix.credit)
                    }
                    Some(prefix) => flow.credits.receive(Kind::Message, prefix.credit),
                    None => flow.credits.receive_unread(),
                }
                .map_err(CloseReason::CreditsV2)?;
                AnswerFlow::Message
            }
        };
        if let Some(prefix) = failure.prefix.filter(|_| is_reply) {
            self.end_incoming(prefix.xid, memory);
            return self.bad_reply(prefix.xid, prefix.credit);
        }
        if self.version.is_none() && self.config.side == Side::Client {
            // It is not even an error that could be read.
            return Err(CloseReason::NoVersion);
        }
        answer.map_or(Ok(()), |answer| self.send_answer(Unsent { answer, flow }))
    }

    pub(super) fn send_answer(&mut self, unsent: Unsent) -> Result<(), CloseReason> {
        if self.unsent.len() >= UNSENT_MAX {
            return Err(CloseReason::Errors);
        }
        self.unsent.push_back(unsent);
        Ok(())
    }

    fn receive_v1<M: Memory>(
        &mut self,
        header: &v1::Header<'_>,
        received: &mut Received<'_, M>,
    ) -> Result<(), CloseReason> {
        let direction = header.direction(received.payload);
        if let v1::Body::Error(refusal) = header.body {
            return self.receive_error(header.xid, Refusal::V1(refusal), header.credit, received);
        }
        if self.version.is_none() {
            self.establish(v1::VERSION);
        }
        let (v1::Body::Msg(chunks) | v1::Body::NoMsg(chunks)) = header.body else { return Ok(()) };
        match direction {
            Some(Direction::Reply) => {
                let source = match (header.body, chunks.reply) {
                    (v1::Body::NoMsg(_), Some(chunk)) => Source::Chunk(chunk),
                    _ => Source::Inline,
                };
                self.receive_reply(header.xid, header.credit, chunks.writes, source, received)
            }
            Some(Direction::Call) => {
                received.no_invalidation()?;
                if let Flow::V1(flow) = &mut self.flow {
                    flow.serves.call().map_err(CloseReason::CreditsV1)?;
                }
                let body = match (header.body, chunks.reads.body()) {
                    (v1::Body::NoMsg(_), Some(chunk)) => Body::Chunk(chunk),
                    _ => Body::Inline(received.payload),
                };
                let has_chunks =
                    (!chunks.reads.is_empty(), !chunks.writes.is_empty(), chunks.reply);
                let uses =
                    Uses { reads: has_chunks.0, writes: has_chunks.1 || has_chunks.2.is_some() };
                self.receive_call(header.xid, header.credit, body, chunks.reads, uses, received)
            }
            None => {
                // It touches no credits (RFC 8167 section 4.1).
                self.counters.bad_messages += 1;
                Ok(())
            }
        }
    }

    fn receive_v2<M: Memory>(
        &mut self,
        header: &v2::Header<'_>,
        received: &mut Received<'_, M>,
    ) -> Result<(), CloseReason> {
        // The answer to a client's first message may be of somebody who speaks version 1 alone, and
        // repeats the version that it refuses.
        if let (None, v2::Body::Error(refusal)) = (self.version, header.body) {
            if self.config.side == Side::Server {
                self.counters.stray_replies += 1;
                return Ok(());
            }
            if matches!(refusal, v2::Refusal::Versions { .. }) {
                self.counters.errors_received += 1;
                return self.first_refused(Refusal::V2(refusal));
            }
        }
        if self.version.is_none() {
            self.establish(v2::VERSION);
        }
        let Flow::V2(flow) = &mut self.flow else { return Ok(()) };
        let kind = if header.body == v2::Body::Grant { Kind::Grant } else { Kind::Message };
        flow.credits.receive(kind, header.credit).map_err(CloseReason::CreditsV2)?;
        flow.window = flow.window.max(flow.credits.available());
        let step = flow.sequence.receive(header, received.payload);
        if header.direction() != Some(Direction::Reply) {
            received.no_invalidation()?;
        }
        match step {
            Ok(Step::Alone) => self.receive_alone(header, received),
            Ok(Step::Discard) => {
                self.counters.stray_replies += 1;
                Ok(())
            }
            Ok(Step::Properties { last }) => match &header.body {
                v2::Body::ConnProp { props, .. } => self.take_properties(props, last),
                _ => Ok(()),
            },
            Ok(Step::Part { offset, total, last, .. }) => {
                self.receive_part(header, (offset, total, last), received)
            }
            Err(error) => {
                self.counters.broken_sequences += 1;
                self.drop_incoming(received.memory)?;
                if header.direction() == Some(Direction::Reply) {
                    self.bad_reply(header.xid, header.credit)?;
                }
                let flow = AnswerFlow::Message;
                error.answer().map_or(Ok(()), |answer| self.send_answer(Unsent { answer, flow }))
            }
        }
    }

    fn receive_alone<M: Memory>(
        &mut self,
        header: &v2::Header<'_>,
        received: &mut Received<'_, M>,
    ) -> Result<(), CloseReason> {
        let (xid, credit) = (header.xid, header.credit);
        match header.body {
            v2::Body::Grant => {
                self.counters.grants_received += 1;
                Ok(())
            }
            v2::Body::Error(refusal) => {
                self.receive_error(xid, Refusal::V2(refusal), credit, received)
            }
            v2::Body::CallExternal { call, chunks, .. } => {
                let Some(body) = call.body() else { return Ok(()) };
                let writes = !chunks.writes.is_empty() || chunks.reply.is_some();
                let uses = Uses { reads: true, writes };
                self.receive_call(xid, credit, Body::Chunk(body), chunks.reads, uses, received)
            }
            v2::Body::ReplyExternal { writes, reply } => {
                self.receive_reply(xid, credit, writes, Source::Chunk(reply), received)
            }
            // These are not alone.
            _ => Ok(()),
        }
    }

    /// The peer has refused something of ours.
    fn receive_error<M: Memory>(
        &mut self,
        xid: Xid,
        refusal: Refusal,
        credit: u32,
        received: &mut Received<'_, M>,
    ) -> Result<(), CloseReason> {
        self.counters.errors_received += 1;
        received.no_invalidation()?;
        if self.version.is_none() {
            return match self.config.side {
                Side::Client => self.first_refused(refusal),
                Side::Server => Ok(()),
            };
        }
        if let Refusal::V2(refusal) = refusal
            && refusal.recovery() == v2::Recovery::Discard
        {
            return Ok(());
        }
        if let Some(slot) = self.find_call(xid) {
            self.reply_credit(credit)?;
            self.end_incoming(xid, received.memory);
            if refusal == Refusal::V2(v2::Refusal::InvalHtype) {
                self.type_refused(slot);
            }
            self.complete(slot, Outcome::Failed(CallError::Refused(refusal)));
        } else {
            self.counters.stray_replies += 1;
        }
        self.version_refused(refusal)
    }
}

/// A received Send, and where its payload can go.
struct Received<'a, M> {
    octets: &'a [u8],
    payload: &'a [u8],
    invalidated: Option<Handle>,
    memory: &'a mut M,
}

impl<M> Received<'_, M> {
    /// Only replies may invalidate (draft section 6.5), and only what their call has offered.
    fn no_invalidation(&self) -> Result<(), CloseReason> {
        if self.invalidated.is_some() { Err(CloseReason::WrongInvalidate) } else { Ok(()) }
    }
}
