//! The work that a connection posts, and its order.
//!
//! Invalidations come first, because callers wait for them; then RDMA Reads; then Sends, one
//! message at a time: the rest of a message in parts, properties, errors, replies (after the Writes
//! that belong to them), calls (after their registrations), and, when none of these could be sent,
//! a GRANT.

mod part;

pub(super) use part::Sequel;

use super::calls::{Grip, Outcome, Phase};
use super::event::{CallError, CloseReason};
use super::memory::Sge;
use super::negotiate::{Flow, Hello};
use super::plan::{Bounds, gather};
use super::served::ReplyBounds;
use super::work::{CallId, Work, WorkId};
use super::{AnswerFlow, Connection, Side, Stage, Unsent};
use crate::credit::v2 as credit;
use crate::header::Refusal;
use crate::property::ReverseSupport;
use crate::segment::{Handle, Segment};
use crate::{v1, v2};

/// The purpose of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A Send of the connection's own.
    Control,
    /// A Send that carries a call or a part of it.
    Call,
    /// The local invalidation of a call's handle, which the index names.
    Invalidate(u16),
    /// An RDMA Read for a served call.
    Read,
    /// An RDMA Write for a served call.
    Write,
    /// A Send that carries a reply or a part of it.
    Reply,
}

impl WorkId {
    /// ```text
    ///   63   60 59      48 47      32 31          0
    ///   │ kind │  index   │   slot   │ generation │
    /// ```
    fn of(kind: Kind, slot: u16, generation: u32) -> WorkId {
        let (code, index) = match kind {
            Kind::Control => (0, 0),
            Kind::Call => (1, 0),
            Kind::Invalidate(index) => (2, index),
            Kind::Read => (3, 0),
            Kind::Write => (4, 0),
            Kind::Reply => (5, 0),
        };
        let high = code << 28 | u32::from(index & 0xfff) << 16 | u32::from(slot);
        WorkId(u64::from(high) << 32 | u64::from(generation))
    }

    pub(super) fn parts(self) -> (Kind, u16, u32) {
        let [a, b, c, d, rest @ ..] = self.0.to_be_bytes();
        let kind = match a >> 4 {
            1 => Kind::Call,
            2 => Kind::Invalidate(u16::from_be_bytes([a & 0xf, b])),
            3 => Kind::Read,
            4 => Kind::Write,
            5 => Kind::Reply,
            _ => Kind::Control,
        };
        (kind, u16::from_be_bytes([c, d]), u32::from_be_bytes(rest))
    }
}

/// The next [`Work`], before `poll_work` borrows its lists from the connection.
enum Next {
    Register { slot: u16 },
    Send { id: WorkId, header: usize, invalidate: Option<Handle> },
    Read { id: WorkId, to: Sge, from: Segment },
    Write { id: WorkId, to: Segment },
    Invalidate { id: WorkId, handle: Handle },
}

/// The buffer for a header is too short, or a header is longer than planned.
const NO_ROOM: CloseReason = CloseReason::Driver("buffer for a header");

/// A call has disappeared before all of it was sent.
const ENDED: CloseReason = CloseReason::Driver("a call has ended while it was sent");

type Step = Result<Option<Next>, CloseReason>;

impl Connection {
    /// Returns the next work request to post. The connection writes a Send's header to the buffer
    /// `header`, which has [`Config::header_size`](super::Config::header_size) bytes. The driver
    /// keeps that buffer unchanged until the Send has completed; other work does not write to the
    /// buffer.
    pub fn poll_work(&mut self, header: &mut [u8]) -> Option<Work<'_>> {
        if !self.stirred || !self.is_running() {
            return None;
        }
        if self.registering.is_some() {
            self.close(CloseReason::Driver("registration was not answered"));
            return None;
        }
        self.gather.clear();
        let next = match self.next_work(header) {
            Ok(Some(next)) => next,
            Ok(None) => {
                self.stirred = false;
                return None;
            }
            Err(reason) => {
                self.close(reason);
                return None;
            }
        };
        Some(match next {
            Next::Register { slot } => {
                let call = CallId { slot, generation: self.calls.generation(slot) };
                let regions = self.calls.at(slot).map_or(&[][..], |row| &row.regions);
                Work::Register { call, regions }
            }
            Next::Send { id, header, invalidate } => {
                self.counters.sends += 1;
                Work::Send { id, header, payload: &self.gather, invalidate }
            }
            Next::Read { id, to, from } => Work::Read { id, to, from },
            Next::Write { id, to } => Work::Write { id, from: &self.gather, to },
            Next::Invalidate { id, handle } => Work::Invalidate { id, handle },
        })
    }

    fn next_work(&mut self, out: &mut [u8]) -> Step {
        if !self.has_queued() {
            self.advertise();
            return self.next_grant(out);
        }
        if let Some(next) = self.next_invalidation() {
            return Ok(Some(next));
        }
        if let Some(next) = self.next_read() {
            return Ok(Some(next));
        }
        self.advertise();
        if let Some(sequel) = self.sending {
            match self.next_part(sequel, out)? {
                Some(next) => return Ok(Some(next)),
                None => return self.next_grant(out),
            }
        }
        if let Some(next) = self.next_hello(out)? {
            return Ok(Some(next));
        }
        if let Some(next) = self.next_answer(out)? {
            return Ok(Some(next));
        }
        if self.stage == Stage::Open {
            if let Some(next) = self.next_reply(out)? {
                return Ok(Some(next));
            }
            if let Some(next) = self.next_call(out)? {
                return Ok(Some(next));
            }
        }
        self.next_grant(out)
    }

    fn next_invalidation(&mut self) -> Option<Next> {
        while let Some(&slot) = self.ending.front() {
            let generation = self.calls.generation(slot);
            let mut live =
                self.calls.at_mut(slot).into_iter().flat_map(|row| (0..).zip(&mut row.handles));
            if let Some((index, (segment, grip))) = live.find(|(_, (_, grip))| *grip == Grip::Live)
            {
                *grip = Grip::Invalidating;
                self.counters.invalidations += 1;
                let id = WorkId::of(Kind::Invalidate(index), slot, generation);
                return Some(Next::Invalidate { id, handle: segment.handle });
            }
            self.ending.pop_front();
        }
        None
    }

    fn next_read(&mut self) -> Option<Next> {
        let &slot = self.reading.front()?;
        let generation = self.served.generation(slot);
        let row = self.served.at_mut(slot)?;
        let op = *row.reads.get(row.next_read)?;
        let length = op.from.length;
        let bytes = self.read_bytes_posted.saturating_add(length);
        let is_alone = self.reads_posted == 0;
        if !is_alone
            && (self.reads_posted >= self.config.ord.into() || bytes > self.config.read_max)
        {
            return None;
        }
        let to = Sge { buffer: row.buffer, offset: op.to.into(), length };
        row.next_read += 1;
        if row.next_read == row.reads.len() {
            self.reading.pop_front();
        }
        self.reads_posted += 1;
        self.read_bytes_posted = bytes;
        self.counters.reads += 1;
        self.counters.read_bytes += u64::from(length);
        Some(Next::Read { id: WorkId::of(Kind::Read, slot, generation), to, from: op.from })
    }

    /// Sets the advertised credits to the number of calls that this end still has room for.
    fn advertise(&mut self) {
        let Flow::V2(flow) = &mut self.flow else { return };
        let free = u32::from(self.config.served).saturating_sub(self.unanswered);
        // Even without room for calls, replies to calls of this end must still come. Without such
        // calls this end waits only for its own replies to go out, which makes room again.
        let least = if free == 0 && self.outstanding == 0 { 0 } else { credit::ADVERTISED_MIN };
        flow.credits.advertise(free.min(self.config.credits).max(least));
    }

    /// Returns true if flow control allows a message other than a GRANT now.
    fn may_send(&self) -> bool {
        match &self.flow {
            Flow::V2(flow) => flow.credits.may_send(credit::Kind::Message),
            Flow::V1(_) => true,
            Flow::None => false,
        }
    }

    fn credit_of_message(&mut self) -> Option<u32> {
        match &mut self.flow {
            Flow::V2(flow) => flow.credits.send(credit::Kind::Message).ok(),
            Flow::V1(_) | Flow::None => None,
        }
    }

    fn control(header: usize) -> Next {
        Next::Send { id: WorkId::of(Kind::Control, 0, 0), header, invalidate: None }
    }

    fn next_hello(&mut self, out: &mut [u8]) -> Step {
        if self.hello == Hello::Done || !self.may_send() {
            return Ok(None);
        }
        let Some(credit) = self.credit_of_message() else { return Ok(None) };
        self.write_hello(credit, out).map(|len| Some(Connection::control(len))).ok_or(NO_ROOM)
    }

    fn next_answer(&mut self, out: &mut [u8]) -> Step {
        let Some(&Unsent { answer, flow }) = self.unsent.front() else { return Ok(None) };
        let credit = match (flow, &mut self.flow) {
            (AnswerFlow::Message, _) => match self.credit_of_message() {
                Some(credit) => credit,
                None => return Ok(None),
            },
            (AnswerFlow::Reply { requested }, Flow::V1(flow)) => {
                flow.serves.reply(requested).map_err(CloseReason::CreditsV1)?
            }
            _ => self.config.served.into(),
        };
        self.unsent.pop_front();
        self.counters.errors_sent += 1;
        answer.encode(credit, out).map(|len| Some(Connection::control(len))).map_err(|_| NO_ROOM)
    }

    fn next_grant(&mut self, out: &mut [u8]) -> Step {
        let Flow::V2(flow) = &mut self.flow else { return Ok(None) };
        if self.version.is_none() || !flow.credits.grant_due() {
            return Ok(None);
        }
        let Ok(credit) = flow.credits.send(credit::Kind::Grant) else { return Ok(None) };
        self.counters.grants_sent += 1;
        let grant = v2::Header { xid: crate::Xid(0), credit, body: v2::Body::Grant };
        grant.encode(out).map(|len| Some(Connection::control(len))).map_err(|_| NO_ROOM)
    }

    pub(super) fn reply_bounds(&self) -> ReplyBounds {
        let is_v2 = self.version == Some(v2::VERSION);
        // A client that announced simple support sends reverse-direction replies in one Send (draft
        // section 5.2.5).
        let is_single = self.config.side == Side::Client
            && self.config.properties.reverse == ReverseSupport::Simple;
        ReplyBounds {
            send: self.thresholds.send,
            parts: if is_v2 && !is_single { self.config.message_max } else { 0 },
            may_invalidate: !is_v2 && self.config.terms().invalidate,
        }
    }

    fn next_reply(&mut self, out: &mut [u8]) -> Step {
        let Some(&slot) = self.replies.front() else { return Ok(None) };
        let generation = self.served.generation(slot);
        let Some(row) = self.served.at_mut(slot) else { return Ok(None) };
        if let Some(&op) = row.writes.get(row.next_write) {
            row.next_write += 1;
            let range = (op.from, op.to.length);
            if op.is_reduced {
                gather(&row.stream, row.total, &row.placed, range, &mut self.gather);
            } else {
                self.gather.extend(super::memory::range(&row.stream, range.0, range.1));
            }
            self.counters.writes += 1;
            self.counters.write_bytes += u64::from(op.to.length);
            let id = WorkId::of(Kind::Write, slot, generation);
            return Ok(Some(Next::Write { id, to: op.to }));
        }
        let sequel = Sequel::reply(slot, generation);
        self.next_part(sequel, out)
    }

    fn bounds(&self) -> Result<Bounds, CallError> {
        let version = self.version.unwrap_or(v1::VERSION);
        let is_reverse = self.config.side == Side::Server;
        let (chunks, parts_max) = match (version, is_reverse, self.peers.reverse) {
            (_, false, _) => (true, self.config.parts_max),
            (v1::VERSION, true, _) => (false, 1),
            (_, true, ReverseSupport::None) => return Err(CallError::NoReverse),
            (_, true, ReverseSupport::Simple) => (false, 1),
            (_, true, ReverseSupport::Continued) => (false, u32::MAX),
            (_, true, ReverseSupport::General) => (true, self.config.parts_max),
        };
        let is_v2 = version == v2::VERSION;
        let region_max = self.config.registration_max;
        let body = !self.is_untaken(v2::htype::CALL_EXTERNAL);
        let parts_max = match () {
            () if self.is_untaken(v2::htype::CALL_MIDDLE) => 1,
            () if !body && chunks => u32::MAX,
            () => parts_max,
        };
        Ok(Bounds {
            version,
            send: self.thresholds.send,
            receive: self.thresholds.receive,
            chunks,
            body,
            parts_max,
            region_max: if is_v2 {
                region_max.min(self.peers.segment_size.max(1))
            } else {
                region_max
            },
            segments_max: if is_v2 { self.peers.segment_count } else { u32::MAX },
        })
    }

    /// Returns the next work of the first queued call, if there are credits for the call.
    fn next_call(&mut self, out: &mut [u8]) -> Step {
        while let Some(&slot) = self.queue.front() {
            let may = match &self.flow {
                Flow::V1(flow) => flow.calls.available() > 0,
                Flow::V2(flow) => {
                    flow.credits.may_send(credit::Kind::Message) && self.outstanding < flow.window
                }
                Flow::None => false,
            };
            if !may || self.waits_for_memory {
                return Ok(None);
            }
            let generation = self.calls.generation(slot);
            if let Err(error) = self.plan_call(slot) {
                if self.awaits_properties() {
                    return Ok(None);
                }
                self.queue.pop_front();
                self.complete(slot, Outcome::Failed(error));
                continue;
            }
            let Some(row) = self.calls.at(slot) else { return Ok(None) };
            if self.is_untaken(row.htype(self.thresholds.send)) {
                self.queue.pop_front();
                let refusal = Refusal::V2(v2::Refusal::InvalHtype);
                self.complete(slot, Outcome::Failed(CallError::Refused(refusal)));
                continue;
            }
            if row.phase == Phase::Queued && !row.regions.is_empty() {
                self.registering = Some(slot);
                return Ok(Some(Next::Register { slot }));
            }
            let sequel = Sequel::call(slot, generation);
            return self.next_part(sequel, out);
        }
        Ok(None)
    }

    /// Chooses a call's format, unless the call's memory is already registered for a format.
    fn plan_call(&mut self, slot: u16) -> Result<(), CallError> {
        let bounds = self.bounds()?;
        let Some(row) = self.calls.at_mut(slot).filter(|row| row.phase == Phase::Queued) else {
            return Ok(());
        };
        if !row.has_reply && bounds.version == v1::VERSION {
            return Err(CallError::CallOnly);
        }
        // Without a reply, this end would not learn when the peer is done with the chunks (draft
        // section 4.7).
        let parts_max = if bounds.chunks { u32::MAX } else { bounds.parts_max };
        let without = Bounds { chunks: false, parts_max, ..bounds };
        let bounds = if row.has_reply { bounds } else { without };
        let threshold = bounds.send;
        if row.make_plan(&bounds) { Ok(()) } else { Err(CallError::TooLong { threshold }) }
    }
}
