//! A client in service: the server takes, compares and answers its messages, and gives credits.

use heddle_verbs::{Cqe, Data, Mr, PostError, Qp, RecvWr, SendOp, SendWr};

use super::super::hello::{Hello, Region};
use super::super::{CREDIT_LEN, pattern, send_window};
use super::source::Source;
use crate::bench::{Mode, Op};
use crate::connections::{place_and_low, wr_id};

/// The work that a completion leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// None.
    Done,
    /// The run has ended, and the server compares what its Reads have brought, piece by piece.
    Compare,
}

/// A connection in service.
pub(super) struct Serving {
    pub(super) hello: Hello,
    qp: Qp,
    /// The memory of the slots.
    pub(super) local: Mr,
    credits: Mr,
    /// The number of messages taken; `told` is the number in the last credit.
    pub(super) taken: u64,
    told: u64,
    wrong: u64,
    next_credit: u32,
    credits_out: u32,
    /// True if a credit is due although the batch is not full.
    asked: bool,
    bytes: Vec<u8>,
    /// The server's operations, in a bidirectional run.
    pub(super) source: Option<Box<Source>>,
}

impl Serving {
    pub(super) fn new(hello: Hello, qp: Qp, local: Mr, credits: Mr) -> Serving {
        let source = hello.bidirectional.then(|| Box::new(Source::new(hello, qp.clone())));
        Serving {
            hello,
            qp,
            local,
            credits,
            taken: 0,
            told: 0,
            wrong: 0,
            next_credit: 0,
            credits_out: 0,
            asked: false,
            bytes: vec![0; hello.size as usize],
            source,
        }
    }

    pub(super) fn post_buffer(&self, place: usize, buffer: u32) -> Result<(), PostError> {
        let size = self.hello.size as usize;
        let sge = [self.local.sge(buffer as usize * size, size)];
        // Immediate Data takes a receive, but places no bytes in its buffer.
        let sges = if self.hello.op.is_immediate() { &[] } else { &sge[..] };
        self.qp.post_recv(&RecvWr { wr_id: wr_id(place, buffer), sges })
    }

    /// Returns true if a message is Immediate Data and the operation has none, or the other way
    /// round.
    pub(super) fn is_of_another_kind(&self, cqe: &Cqe) -> bool {
        self.hello.op.is_immediate() != cqe.immediate.is_some()
    }

    /// Handles a message that has arrived.
    pub(super) fn handle_recv(&mut self, cqe: &Cqe) -> Result<Turn, PostError> {
        let (place, buffer) = place_and_low(cqe.wr_id);
        if let Some(source) = &mut self.source {
            return Ok(turn(source.handle_recv(place, &self.local)?));
        }
        self.take(cqe, place, buffer)?;
        Ok(Turn::Done)
    }

    /// Takes a message of the run: answers it in a ping-pong, compares it otherwise.
    fn take(&mut self, cqe: &Cqe, place: usize, buffer: u32) -> Result<(), PostError> {
        let Hello { op, mode, verify, size, depth, .. } = self.hello;
        let number = self.taken;
        self.taken += 1;
        if mode == Mode::Lat {
            // The server posts the buffer again after the answer has gone.
            let Region { stag, to, .. } = self.hello.region;
            let data = cqe.immediate.unwrap_or(0);
            let (answer, sge) = match op {
                // A single slot suffices, since rounds do not overlap.
                Op::WriteImm => (
                    SendOp::WriteImmediate { stag, to, data, solicited: false },
                    Some(self.local.sge(0, size as usize)),
                ),
                Op::SendImm => (SendOp::Immediate { data, solicited: false }, None),
                _ => (
                    SendOp::Send { solicited: false, invalidate: None },
                    Some(self.local.sge(buffer as usize * size as usize, cqe.len as usize)),
                ),
            };
            return self.qp.post_send(&SendWr {
                wr_id: cqe.wr_id,
                op: answer,
                data: Data::Sges(sge.as_slice()),
                signaled: true,
                fence: false,
            });
        }
        let as_told = if op.is_immediate() {
            // Immediate Data is the number of the operation.
            cqe.immediate == Some(number)
        } else {
            cqe.immediate.is_none() && cqe.len == size
        };
        if !as_told {
            self.wrong += 1;
        } else if op == Op::SendImm {
            // Immediate Data alone brings no bytes to compare.
        } else if verify && op == Op::WriteImm {
            let window = u64::from(send_window(mode, depth));
            self.compare(u32::try_from(number % window).unwrap_or(0), number);
        } else if verify {
            self.compare(buffer, number);
        } else if cqe.solicited {
            // This is the last message: compare what the latest messages left in the slots.
            let window = u64::from(send_window(mode, depth));
            for n in self.taken.saturating_sub(window)..self.taken {
                let buffer = u32::try_from(n % window).unwrap_or(0);
                self.compare(buffer, n % u64::from(depth));
            }
        }
        self.post_buffer(place, buffer)?;
        self.asked |= cqe.solicited;
        self.give_credit(place)
    }

    fn compare(&mut self, buffer: u32, message: u64) {
        self.local.read(buffer as usize * self.bytes.len(), &mut self.bytes);
        if pattern::first_difference(&self.bytes, self.hello.seed, message).is_some() {
            self.wrong += 1;
        }
    }

    /// Sends a credit if one is due and a buffer for it is free.
    fn give_credit(&mut self, place: usize) -> Result<(), PostError> {
        let batch = u64::from((self.hello.depth / 2).max(1));
        let due = self.taken - self.told >= batch || self.asked && self.taken > self.told;
        if !due || self.credits_out == CREDITS {
            return Ok(());
        }
        let at = self.next_credit as usize * CREDIT_LEN;
        self.credits.write(at, &[self.taken.to_be_bytes(), self.wrong.to_be_bytes()].concat());
        self.qp.post_send(&SendWr {
            wr_id: wr_id(place, CREDIT | self.next_credit),
            op: SendOp::Send { solicited: false, invalidate: None },
            data: Data::Sges(&[self.credits.sge(at, CREDIT_LEN)]),
            signaled: true,
            fence: false,
        })?;
        self.next_credit = (self.next_credit + 1) % CREDITS;
        self.credits_out += 1;
        self.told = self.taken;
        self.asked = false;
        Ok(())
    }

    /// Writes a ping-pong's message back from where it arrived.
    pub(super) fn write_back(&self, place: usize) -> Result<(), PostError> {
        let Region { stag, to, .. } = self.hello.region;
        self.qp.post_send(&SendWr {
            wr_id: wr_id(place, 0),
            op: SendOp::Write { stag, to },
            data: Data::Sges(&[self.local.sge(0, self.hello.size as usize)]),
            signaled: true,
            fence: false,
        })
    }

    /// Handles the completion of a request of ours.
    pub(super) fn handle_sent(&mut self, cqe: &Cqe) -> Result<Turn, PostError> {
        let (place, slot) = place_and_low(cqe.wr_id);
        if slot & GRANT != 0 {
            return Ok(Turn::Done);
        }
        if let Some(source) = &mut self.source {
            return Ok(turn(source.handle_sent(place, slot, &self.local)?));
        }
        if slot & CREDIT != 0 {
            self.credits_out -= 1;
            self.give_credit(place)?;
        } else if self.hello.op.takes_buffer() {
            self.post_buffer(place, slot)?;
        }
        Ok(Turn::Done)
    }
}

/// Returns the work that is left after an operation of the server.
fn turn(has_ended: bool) -> Turn {
    if has_ended { Turn::Compare } else { Turn::Done }
}

/// The number of buffers for credits in flight.
pub(super) const CREDITS: u32 = 8;

/// Distinguishes the work request of a credit from the requests of messages.
const CREDIT: u32 = 1 << 31;

/// Marks the work request of a grant or refusal.
pub(super) const GRANT: u32 = 1 << 30;
