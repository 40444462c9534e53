//! Handles a received Send.

mod call;
mod parts;
mod reply;

use heddle_base::Instant;

pub(super) use call::HEADER_MIN;
pub(super) use parts::Incoming;

use self::call::{ReceivedCall, Uses};
use self::reply::Source;
use super::calls::Outcome;
use super::negotiate::Flow;
use super::offer::Offer;
use super::served::{self, Body};
use super::{AnswerFlow, CallError, CloseReason, Connection, Memory, Side, Unsent};
use crate::credit::v2::Kind;
use crate::header::{Answer, Direction, Failure, Header, Message, Refusal, Role, Xid, decode};
use crate::segment::Handle;
use crate::sequence::{Step, Unread};
use crate::{v1, v2};

/// The largest number of errors that wait to be sent.
const UNSENT_MAX: usize = 64;

impl Connection {
    /// Handles the completion of a Receive with `bytes`; `invalidated` is the handle that the peer
    /// invalidated with the message. The connection keeps no reference to `bytes` when this method
    /// returns.
    pub fn handle_receive(
        &mut self,
        now: Instant,
        bytes: &[u8],
        invalidated: Option<Handle>,
        memory: &mut impl Memory,
    ) {
        if !self.is_running() {
            return;
        }
        self.stirred = true;
        self.counters.receives += 1;
        // A deadline up to `now` passed before this message came, so handle deadlines first.
        self.handle_timeout(now);
        if !self.is_running() {
            return;
        }
        let limits = self.config.limits;
        let result = match decode(bytes, self.versions(), &limits) {
            Ok(Message { header, payload }) => {
                let mut received = Received { bytes, payload, invalidated, memory };
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

    /// Handles a message that could not be decoded.
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
            // While the version is unknown, an error can report only the versions that this end
            // speaks.
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
                let part = of_v2.map(|prefix| flow.sequence.unread(prefix.kind, prefix.xid));
                match part.unwrap_or(Unread::Other) {
                    Unread::Other => {}
                    Unread::Part => {
                        self.counters.broken_sequences += 1;
                        self.forget_incoming(memory);
                    }
                    Unread::Discard => {
                        self.counters.stray_replies += 1;
                        return Ok(());
                    }
                }
                AnswerFlow::Message
            }
        };
        if let Some(prefix) = failure.prefix.filter(|_| is_reply) {
            self.end_incoming(prefix.xid, memory);
            return self.bad_reply(prefix.xid, prefix.credit);
        }
        if self.version.is_none() && self.config.side == Side::Client {
            // A client expects an answer to its first message; this one is not even a readable
            // error.
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
                let uses = Uses::new(!chunks.reads.is_empty(), Offer::of_v1(&chunks));
                let (xid, credit, reads) = (header.xid, header.credit, chunks.reads);
                self.receive_call(ReceivedCall { xid, credit, body, reads, uses }, received)
            }
            None => {
                // Leave the credits alone (RFC 8167 section 4.1).
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
        // An RDMA2_ERR_VERS that answers a client's first message may come from a peer that speaks
        // only version 1 and repeats the version that it refuses.
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
                let uses = Uses::new(true, Offer::of_v2(header));
                let (body, reads) = (Body::Chunk(body), chunks.reads);
                self.receive_call(ReceivedCall { xid, credit, body, reads, uses }, received)
            }
            v2::Body::ReplyExternal { writes, reply } => {
                self.receive_reply(xid, credit, writes, Source::Chunk(reply), received)
            }
            // `sequence` never reports the other types as a whole message by themselves.
            _ => Ok(()),
        }
    }

    /// Handles an error by which the peer refuses a message of this end.
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

/// A received Send, and the memory to which its payload can be moved.
struct Received<'a, M> {
    bytes: &'a [u8],
    payload: &'a [u8],
    invalidated: Option<Handle>,
    memory: &'a mut M,
}

impl<M> Received<'_, M> {
    /// Fails if the message invalidated a handle. Only a reply may invalidate (draft section 6.5),
    /// and only a handle that its call has offered.
    fn no_invalidation(&self) -> Result<(), CloseReason> {
        if self.invalidated.is_some() { Err(CloseReason::WrongInvalidate) } else { Ok(()) }
    }
}
