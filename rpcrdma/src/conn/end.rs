//! How calls end: outcomes, invalidation, completions, time and loss.

use std::collections::VecDeque;

use heddle_base::Instant;

use super::calls::{Grip, Outcome, Phase};
use super::event::{CallError, CloseReason, Event, ServeError};
use super::memory::Memory;
use super::send::Kind;
use super::work::{CallId, ServedId, WorkId};
use super::{Connection, NotRegistered, Stage, served};
use crate::header::Refusal;
use crate::segment::Segment;
use crate::v2;

impl Connection {
    /// Gives a call of this end its outcome. The connection reports the outcome when the call's
    /// memory is safe.
    pub(super) fn complete(&mut self, slot: u16, outcome: Outcome) {
        let Some(row) = self.calls.at_mut(slot) else { return };
        match row.phase {
            Phase::Ending => return,
            Phase::Zombie => {
                self.outstanding = self.outstanding.saturating_sub(1);
                self.calls.release(slot);
                return;
            }
            Phase::Sending | Phase::Waiting => {
                self.outstanding = self.outstanding.saturating_sub(1);
            }
            Phase::Queued | Phase::Registered => {}
        }
        row.phase = Phase::Ending;
        row.outcome = Some(outcome);
        self.clear_deadline(slot);
        if self.calls.at(slot).is_some_and(|row| row.grips() > 0) {
            self.ending.push_back(slot);
        }
        self.try_finish(slot);
    }

    fn clear_deadline(&mut self, slot: u16) {
        if let Some(row) = self.calls.at_mut(slot) {
            row.deadline = None;
        }
    }

    /// Ends a call that has its outcome, if its memory is safe.
    fn try_finish(&mut self, slot: u16) {
        let Some(row) = self.calls.at(slot) else { return };
        if row.phase != Phase::Ending || row.sends > 0 || row.grips() > 0 || self.is_sending(slot) {
            return;
        }
        let outcome = row.outcome;
        let call = CallId { slot, generation: self.calls.generation(slot) };
        self.calls.release(slot);
        self.report(call, outcome);
    }

    /// Returns true if some parts of the call are still to be posted.
    fn is_sending(&self, slot: u16) -> bool {
        self.sending.is_some_and(|sequel| sequel.is_of_call(slot))
    }

    fn report(&mut self, call: CallId, outcome: Option<Outcome>) {
        self.events.push_back(match outcome {
            Some(Outcome::Reply(reply)) => {
                self.counters.replies_received += 1;
                Event::Reply { call, reply }
            }
            Some(Outcome::Sent) => Event::Sent { call },
            Some(Outcome::Failed(error)) => Event::Failed { call, error },
            None => Event::Failed { call, error: CallError::Lost },
        });
    }

    /// Gives up a call for which the upper layer no longer waits.
    pub(super) fn abandon(&mut self, slot: u16, error: CallError) {
        let Some(row) = self.calls.at_mut(slot) else { return };
        match row.phase {
            Phase::Queued | Phase::Registered => {
                // The driver is about to answer the registration, so the slot must still hold the
                // call.
                if self.registering == Some(slot) {
                    row.abandoned = Some(error);
                    self.clear_deadline(slot);
                    return;
                }
                self.queue.retain(|&of| of != slot);
                self.complete(slot, Outcome::Failed(error));
            }
            Phase::Sending | Phase::Waiting => {
                row.abandoned.get_or_insert(error);
                self.clear_deadline(slot);
                self.try_abandon(slot);
            }
            Phase::Ending | Phase::Zombie => {}
        }
    }

    /// Ends a call that was given up and has no memory in the peer's reach. Its slot stays taken
    /// until the reply comes.
    fn try_abandon(&mut self, slot: u16) {
        let Some(row) = self.calls.at_mut(slot) else { return };
        let Some(error) = row.abandoned else { return };
        if row.phase != Phase::Waiting || row.sends > 0 || !row.handles.is_empty() {
            return;
        }
        row.phase = Phase::Zombie;
        let call = CallId { slot, generation: self.calls.generation(slot) };
        self.report(call, Some(Outcome::Failed(error)));
    }

    /// Answers [`Work::Register`](super::Work::Register) with a segment for each region, in order
    /// and of the same length. Each handle differs from those of all other registrations of this
    /// connection.
    pub fn registered(&mut self, call: CallId, segments: &[Segment]) {
        self.stirred = true;
        if !self.is_running() {
            return;
        }
        let asked = self.registering.take() == Some(call.slot);
        let row = self.calls.at_mut(call.slot).filter(|_| asked);
        let Some(row) = row else {
            return self.close(CloseReason::Driver("registration that was not asked for"));
        };
        let fits =
            |(region, s): (&super::Region, &Segment)| region.memory.length == s.length && s.fits();
        if segments.len() != row.regions.len() || !row.regions.iter().zip(segments).all(fits) {
            return self.close(CloseReason::Driver("other segments than regions"));
        }
        row.handles.extend(segments.iter().map(|&segment| (segment, Grip::Live)));
        row.phase = Phase::Registered;
        self.counters.registrations += segments.len() as u64;
        if let Some(error) = row.abandoned {
            self.abandon(call.slot, error);
        }
    }

    /// Answers [`Work::Register`](super::Work::Register) when the driver registered nothing.
    pub fn not_registered(&mut self, call: CallId, when: NotRegistered) {
        self.stirred = true;
        if !self.is_running() {
            return;
        }
        if self.registering.take() != Some(call.slot) {
            return self.close(CloseReason::Driver("registration that was not asked for"));
        }
        if let Some(error) = self.calls.at(call.slot).and_then(|row| row.abandoned) {
            return self.abandon(call.slot, error);
        }
        match when {
            NotRegistered::Later => {
                self.counters.registration_waits += 1;
                self.waits_for_memory = true;
            }
            NotRegistered::Never => self.abandon(call.slot, CallError::Registration),
        }
    }

    /// Reports that the driver can register memory again, after [`NotRegistered::Later`].
    pub fn memory_available(&mut self) {
        self.stirred = true;
        self.waits_for_memory = false;
    }

    /// Reports that a work request has completed. A failed work request (`ok` is false) ends the
    /// connection, as it ends the queue pair.
    pub fn handle_completion(&mut self, id: WorkId, ok: bool) {
        if !self.is_running() {
            return;
        }
        if !ok {
            return self.close(CloseReason::Completion);
        }
        let (kind, slot, generation) = id.parts();
        // Each arm sets `stirred` if the completion makes room for other work; most Sends and
        // Writes make none.
        match kind {
            Kind::Call if self.calls.is(slot, generation) => self.call_sent(slot),
            Kind::Invalidate(index) if self.calls.is(slot, generation) => {
                self.invalidated(slot, index.into());
            }
            Kind::Read if self.served.is(slot, generation) => self.chunk_read(slot, generation),
            Kind::Reply if self.served.is(slot, generation) => self.reply_sent(slot),
            _ => {}
        }
    }

    fn call_sent(&mut self, slot: u16) {
        let Some(row) = self.calls.at_mut(slot) else { return };
        row.sends = row.sends.saturating_sub(1);
        if row.phase == Phase::Waiting && row.sends == 0 && !row.has_reply {
            self.stirred = true;
            self.complete(slot, Outcome::Sent);
            return;
        }
        self.try_abandon(slot);
        self.try_finish(slot);
    }

    fn invalidated(&mut self, slot: u16, index: usize) {
        self.stirred = true;
        if let Some((_, grip)) = self.calls.at_mut(slot).and_then(|row| row.handles.get_mut(index))
            && *grip == Grip::Invalidating
        {
            *grip = Grip::Gone;
            self.waits_for_memory = false;
        }
        self.try_finish(slot);
    }

    fn chunk_read(&mut self, slot: u16, generation: u32) {
        let Some(row) = self.served.at_mut(slot) else { return };
        // The Reads of a call complete in the order in which they were posted.
        let Some(read) = row.reads.get(row.reads_done).filter(|_| row.reads_done < row.next_read)
        else {
            return;
        };
        self.stirred = true;
        self.reads_posted = self.reads_posted.saturating_sub(1);
        self.read_bytes_posted = self.read_bytes_posted.saturating_sub(read.from.length);
        row.reads_done += 1;
        if row.reads_done == row.reads.len() {
            self.hand_up(ServedId { slot, generation });
        }
    }

    fn reply_sent(&mut self, slot: u16) {
        let Some(row) = self.served.at_mut(slot) else { return };
        row.sends = row.sends.saturating_sub(1);
        if row.phase == served::Phase::Sent && row.sends == 0 {
            let id = ServedId { slot, generation: self.served.generation(slot) };
            self.served.release(slot);
            self.events.push_back(Event::Served { id, result: Ok(()) });
        }
    }

    /// Ends a call of the peer by an error.
    pub(super) fn refuse_served(&mut self, slot: u16, refusal: v2::Refusal) {
        let Some(row) = self.served.at(slot) else { return };
        let unsent = self.refusal_of(row.xid, row.requested, refusal);
        let told: Refusal = unsent.answer.refusal;
        if let Err(reason) = self.send_answer(unsent) {
            self.close(reason);
        }
        self.end_served(slot, Err(ServeError::Refused(told)));
    }

    pub(super) fn end_served(&mut self, slot: u16, result: Result<(), ServeError>) {
        let id = ServedId { slot, generation: self.served.generation(slot) };
        self.unanswered = self.unanswered.saturating_sub(1);
        self.served.release(slot);
        self.events.push_back(Event::Served { id, result });
    }

    /// Handles the deadlines that have passed at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.opening_ends.is_some_and(|at| at <= now) && self.is_running() {
            self.opening_ends = None;
            if self.version.is_none() {
                return self.close(CloseReason::NegotiationTimeout);
            }
            self.stirred = true;
        }
        self.time_transfers(now);
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        self.stirred = true;
        for slot in 0..self.config.calls {
            let at = self.calls.at(slot).and_then(|row| row.deadline);
            if at.is_some_and(|at| at <= now) {
                self.counters.timeouts += 1;
                self.abandon(slot, CallError::TimedOut);
                self.clear_deadline(slot);
            }
        }
        let deadlines = self.calls.all().filter_map(|slot| self.calls.at(slot)?.deadline);
        self.deadline = deadlines.min();
    }

    /// Returns the time of the next call of [`handle_timeout`](Connection::handle_timeout). The
    /// time may be too early, since the deadline of a call that has ended can still count.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.is_running() {
            return None;
        }
        self.opening_ends.into_iter().chain(self.deadline).chain(self.transfers_at).min()
    }

    /// Ends all calls after the end of the queue pair. By then no work request is under way, and
    /// the peer can reach no memory that was registered on the queue pair. Gives back the buffers
    /// of calls that the upper layer has not received.
    pub fn handle_disconnected(&mut self, memory: &mut impl Memory) {
        if self.stage == Stage::Gone {
            return;
        }
        self.stage = Stage::Gone;
        self.forget_incoming(memory);
        let (calls, served) = (self.config.calls, self.config.served_slots());
        (0..calls).for_each(|slot| self.lose_call(slot));
        (0..served).for_each(|slot| self.lose_served(slot, memory));
        let queues = [
            &mut self.queue,
            &mut self.ending,
            &mut self.waiting,
            &mut self.reading,
            &mut self.replies,
        ];
        queues.into_iter().for_each(VecDeque::clear);
        self.unsent.clear();
        self.sending = None;
        self.registering = None;
    }

    fn lose_call(&mut self, slot: u16) {
        let Some(row) = self.calls.at(slot) else { return };
        let outcome = match (row.phase, row.abandoned) {
            // The call has ended before; only its slot is left.
            (Phase::Zombie, _) => {
                self.calls.release(slot);
                return;
            }
            (Phase::Ending, _) => row.outcome,
            (_, Some(error)) => Some(Outcome::Failed(error)),
            _ => None,
        };
        let call = CallId { slot, generation: self.calls.generation(slot) };
        self.calls.release(slot);
        self.report(call, outcome);
    }

    fn lose_served(&mut self, slot: u16, memory: &mut impl Memory) {
        let Some(row) = self.served.at(slot) else { return };
        match row.phase {
            served::Phase::Waiting => self.served.release(slot),
            served::Phase::Reading => {
                memory.free(row.buffer);
                self.served.release(slot);
            }
            _ => self.end_served(slot, Err(ServeError::Lost)),
        }
    }
}
