//! The server's own operations in a bidirectional run.
//!
//! ```text
//!   client's message    1st             2nd                3rd
//!                        │               │  counted         │
//!   waiting              ▼  running      ▼                  ▼  ending      comparing
//!                        depth operations outstanding          the last    a piece a step,
//!                                                              complete    then the tally
//! ```

use std::time::Instant;

use heddle_verbs::{Data, Mr, PostError, Qp, SendOp, SendWr};

use super::super::hello::{Hello, Region};
use super::super::pattern;
use super::super::tally::Tally;
use crate::bench::Op;
use crate::connections::wr_id;

/// The messages by which the client says how far the run is.
pub(super) const MESSAGES: u32 = 3;

/// The operations of one connection.
pub(super) struct Source {
    hello: Hello,
    qp: Qp,
    phase: Phase,
    outstanding: u32,
    tally: Tally,
    /// The number of bytes that the server has compared.
    compared: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    /// Operations count since this time.
    Counting(Instant),
    Ending,
    Comparing,
}

impl Source {
    pub(super) fn new(hello: Hello, qp: Qp) -> Source {
        let tally = Tally::default();
        Source { hello, qp, phase: Phase::Waiting, outstanding: 0, tally, compared: 0 }
    }

    /// Handles the client's next message. Returns true if only the comparison is left.
    pub(super) fn handle_recv(&mut self, place: usize, local: &Mr) -> Result<bool, PostError> {
        match self.phase {
            Phase::Waiting => {
                self.phase = Phase::Running;
                (0..self.hello.depth).try_for_each(|slot| self.post(place, slot, local))?;
            }
            Phase::Running => self.phase = Phase::Counting(Instant::now()),
            Phase::Counting(since) => {
                self.tally.nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.phase = Phase::Ending;
            }
            // The client has no receive for another message.
            Phase::Ending | Phase::Comparing => {}
        }
        Ok(self.has_ended())
    }

    /// Handles the completion of the operation in `slot`. Returns true if only the comparison is
    /// left.
    pub(super) fn handle_sent(
        &mut self,
        place: usize,
        slot: u32,
        local: &Mr,
    ) -> Result<bool, PostError> {
        self.outstanding -= 1;
        match self.phase {
            Phase::Counting(_) => {
                self.tally.ops += 1;
                self.post(place, slot, local)?;
            }
            Phase::Running => self.post(place, slot, local)?,
            Phase::Waiting | Phase::Ending | Phase::Comparing => {}
        }
        Ok(self.has_ended())
    }

    /// Returns true once, when the last operation is done.
    fn has_ended(&mut self) -> bool {
        let ended = self.phase == Phase::Ending && self.outstanding == 0;
        if ended {
            self.phase = Phase::Comparing;
        }
        ended
    }

    fn post(&mut self, place: usize, slot: u32, local: &Mr) -> Result<(), PostError> {
        let Hello { op, size, depth, region: Region { stag, to, .. }, .. } = self.hello;
        let at = u64::from(slot) * u64::from(size);
        let to = to + at;
        let op =
            if op == Op::Read { SendOp::Read { stag, to } } else { SendOp::Write { stag, to } };
        let own = u64::from(depth) * u64::from(size) + at;
        let sge = local.sge(usize::try_from(own).unwrap_or(usize::MAX), size as usize);
        self.qp.post_send(&SendWr {
            wr_id: wr_id(place, slot),
            op,
            data: Data::Sges(&[sge]),
            signaled: true,
            fence: false,
        })?;
        self.outstanding += 1;
        self.tally.posted += 1;
        Ok(())
    }

    /// Compares a piece of at most `most` bytes of what the Reads have brought. Returns the tally
    /// when all is compared; `None` while there is more, and in a run that is not over.
    pub(super) fn compare(&mut self, local: &Mr, most: usize) -> Option<Tally> {
        let Hello { op, size, depth, seed, .. } = self.hello;
        if self.phase != Phase::Comparing {
            return None;
        }
        let (size, depth) = (u64::from(size), u64::from(depth));
        let end = if op == Op::Read { self.tally.posted.min(depth) * size } else { 0 };
        if self.compared < end {
            let (slot, within) = (self.compared / size, self.compared % size);
            let len = usize::try_from(size - within).map_or(most, |left| left.min(most));
            let (mut want, mut got) = (vec![0; len], vec![0; len]);
            pattern::fill_from(&mut want, seed, slot, within / 8);
            local.read(usize::try_from(depth * size + self.compared).ok()?, &mut got);
            if want == got {
                self.compared += len as u64;
            } else {
                self.tally.wrong += 1;
                self.compared = (slot + 1) * size;
            }
        }
        (self.compared >= end).then_some(self.tally)
    }
}
