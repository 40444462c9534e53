//! A single message to and fro.

use heddle_base::Instant;
use heddle_dataplane::Clock;
use heddle_services::bench::Op;
use heddle_services::bench::{LAT_BUFFERS, pattern};
use heddle_verbs::{Data, RecvWr, SendWr};

use super::WorkloadError;
use super::conn::{Conn, Cqs, Mark, send_op};
use super::error::{counted, successful};
use super::measure::Measure;
use super::pace::Pace;
use crate::spec::Until;
use crate::workload::Run;

/// The state of a connection. A round is over when the answer is there and the work request has
/// completed: the request's memory must not change until then.
#[derive(Clone, Copy)]
struct Exchange {
    /// The number of the current round; the first is 1, so that its low byte differs from zeroed
    /// memory.
    round: u64,
    posted_at: Instant,
    answered: bool,
    completed: bool,
    /// The receive buffer that holds the answer.
    buffer: u32,
    /// True while the next round waits for the time at which it is due.
    waiting: bool,
    finished: bool,
}

pub(super) struct PingPong {
    run: Run,
    exchanges: Vec<Exchange>,
    measure: Measure,
    /// The schedule of a run with a fixed rate.
    pace: Option<Pace>,
    finished: usize,
    bytes: Vec<u8>,
    primed: bool,
}

impl PingPong {
    pub(super) fn new(clock: &Clock, run: Run, conns: &[Conn]) -> PingPong {
        let exchange = Exchange {
            round: 0,
            posted_at: Instant::ZERO,
            answered: false,
            completed: false,
            buffer: 0,
            waiting: false,
            finished: false,
        };
        PingPong {
            run,
            exchanges: vec![exchange; conns.len()],
            measure: Measure::new(clock, &run),
            pace: None,
            finished: 0,
            bytes: vec![0; run.size as usize],
            primed: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.finished == self.exchanges.len()
    }

    pub(super) fn measure(&self) -> &Measure {
        &self.measure
    }

    pub(super) fn measure_mut(&mut self) -> &mut Measure {
        &mut self.measure
    }

    #[inline]
    pub(super) fn step(&mut self, conns: &[Conn], cqs: &Cqs) -> Result<bool, WorkloadError> {
        if !self.primed {
            self.prime(conns)?;
        }
        let mut busy = false;
        if self.pace.is_some() {
            busy = self.post_due(conns)?;
        }
        if self.run.op == Op::Write {
            let last = self.run.size as usize - 1;
            for (i, conn) in conns.iter().enumerate() {
                let exchange = &self.exchanges[i];
                if !exchange.answered
                    && !exchange.finished
                    && conn.back.load(last) == low(exchange.round)
                {
                    busy = true;
                    self.answered(conns, i)?;
                }
            }
        }
        while let Some(cqe) = cqs.recv.poll() {
            busy = true;
            successful(&cqe)?;
            let mark = Mark::decode(cqe.wr_id);
            if self.run.op.is_immediate() {
                let expected = self.exchanges[mark.conn as usize].round;
                if cqe.immediate != Some(expected) {
                    return Err(WorkloadError::Immediate { expected, found: cqe.immediate });
                }
            } else if cqe.len != self.run.size {
                return Err(WorkloadError::Stray(cqe.len));
            }
            self.exchanges[mark.conn as usize].buffer = mark.slot;
            self.answered(conns, mark.conn as usize)?;
        }
        while let Some(cqe) = cqs.send.poll() {
            busy = true;
            successful(&cqe)?;
            let i = Mark::decode(cqe.wr_id).conn as usize;
            self.exchanges[i].completed = true;
            if self.run.op.is_answered() {
                self.answered(conns, i)?;
            } else {
                self.next_round(conns, i)?;
            }
        }
        Ok(busy)
    }

    fn prime(&mut self, conns: &[Conn]) -> Result<(), WorkloadError> {
        self.primed = true;
        pattern::fill(&mut self.bytes, self.run.seed, 0);
        for (i, conn) in conns.iter().enumerate() {
            if !self.run.op.is_answered() {
                conn.local.write(0, &self.bytes);
            }
            if self.run.op.takes_buffer() {
                (0..LAT_BUFFERS).try_for_each(|b| self.post_buffer(conn, i, b))?;
            }
        }
        self.measure = Measure::new(&self.measure.clock, &self.run);
        self.pace = Pace::new(&self.run, self.measure.since);
        if self.pace.is_some() {
            self.exchanges.iter_mut().for_each(|e| (e.answered, e.waiting) = (true, true));
            return Ok(());
        }
        (0..conns.len()).try_for_each(|i| self.post(&conns[i], i))
    }

    /// Starts the rounds that have come due, and ends the exchanges that wait past the deadline.
    fn post_due(&mut self, conns: &[Conn]) -> Result<bool, WorkloadError> {
        let Some(pace) = self.pace else { return Ok(false) };
        let now = self.measure.clock.now();
        self.measure.tick(now);
        let mut busy = false;
        for (i, conn) in conns.iter().enumerate() {
            let Exchange { waiting, round, .. } = self.exchanges[i];
            if !waiting {
                continue;
            }
            if self.measure.ended.is_some() {
                self.exchanges[i].waiting = false;
                self.finish(conn, i)?;
                busy = true;
                continue;
            }
            let due = pace.due(i, round);
            if due <= now {
                self.exchanges[i].waiting = false;
                self.post(conn, i)?;
                // A round counts from the time at which it was due.
                self.exchanges[i].posted_at = due;
                busy = true;
            }
        }
        Ok(busy)
    }

    /// Handles an answer: checks it and the round's end.
    fn answered(&mut self, conns: &[Conn], i: usize) -> Result<(), WorkloadError> {
        let now = self.measure.clock.now();
        let exchange = &mut self.exchanges[i];
        exchange.answered = true;
        self.measure.tick(now);
        self.measure.count(self.exchanges[i].posted_at, now);
        if self.run.op.is_atomic() {
            // Rounds begin with 1, the counter with 0.
            counted(&conns[i].local, 0, self.exchanges[i].round - 1)?;
        } else if self.run.verify {
            self.compare(&conns[i], i)?;
        }
        if self.run.op.takes_buffer() {
            self.post_buffer(&conns[i], i, self.exchanges[i].buffer)?;
        }
        self.next_round(conns, i)
    }

    fn next_round(&mut self, conns: &[Conn], i: usize) -> Result<(), WorkloadError> {
        let exchange = &mut self.exchanges[i];
        if !exchange.answered || !exchange.completed || exchange.finished {
            return Ok(());
        }
        let over = match self.run.until {
            Until::Iters(n) => exchange.round >= n,
            Until::Elapsed(_) => self.measure.ended.is_some(),
        };
        if !over {
            if self.pace.is_some() {
                exchange.waiting = true;
                return Ok(());
            }
            return self.post(&conns[i], i);
        }
        self.finish(&conns[i], i)
    }

    /// Ends an exchange after its last round, whose bytes it compares.
    fn finish(&mut self, conn: &Conn, i: usize) -> Result<(), WorkloadError> {
        let exchange = &mut self.exchanges[i];
        exchange.finished = true;
        self.finished += 1;
        let any = exchange.round > 0 && self.run.size > 0 && !self.run.op.is_atomic();
        if !self.run.verify && any {
            self.compare(conn, i)?;
        }
        if self.is_done() {
            let now = self.measure.clock.now();
            self.measure.end(now);
        }
        Ok(())
    }

    fn post(&mut self, conn: &Conn, i: usize) -> Result<(), WorkloadError> {
        let run = self.run;
        let exchange = &mut self.exchanges[i];
        exchange.round += 1;
        (exchange.answered, exchange.completed) = (false, false);
        let round = exchange.round;
        match (run.op, run.verify) {
            (Op::Read, false) => {}
            (Op::Read, true) => {
                self.bytes.fill(0);
                conn.local.write(0, &self.bytes);
            }
            (Op::FetchAdd | Op::CmpSwap | Op::SendImm, _) => {}
            (Op::Write | Op::Send | Op::WriteImm, true) => {
                self.expect(round);
                conn.local.write(0, &self.bytes);
            }
            (Op::Write, false) => conn.local.write(run.size as usize - 1, &[low(round)]),
            (Op::Send | Op::WriteImm, false) => {}
        }
        let (stag, to) = (conn.remote.stag, conn.remote.to);
        // A CmpSwap has to find the number of rounds before.
        let number = if run.op.is_atomic() { round - 1 } else { round };
        let sge = [conn.local.sge(0, run.size as usize)];
        let wr = SendWr {
            wr_id: Mark { conn: index(i), read_back: false, slot: 0 }.encode(),
            op: send_op(run.op, stag, to, number, false),
            data: Data::Sges(if run.op == Op::SendImm { &[] } else { &sge }),
            signaled: true,
            fence: false,
        };
        self.exchanges[i].posted_at = self.measure.clock.now();
        Ok(conn.qp.post_send(&wr)?)
    }

    /// Writes the bytes of a round's message into `bytes`.
    fn expect(&mut self, round: u64) {
        let n = if self.run.verify && self.run.op != Op::Read { round } else { 0 };
        pattern::fill(&mut self.bytes, self.run.seed, n);
        if self.run.op == Op::Write
            && let Some(last) = self.bytes.last_mut()
        {
            *last = low(round);
        }
    }

    /// Compares the bytes that came back in the current round.
    fn compare(&mut self, conn: &Conn, i: usize) -> Result<(), WorkloadError> {
        let Run { op, size, .. } = self.run;
        let exchange = self.exchanges[i];
        let mut got = vec![0; size as usize];
        match op {
            // The number of the round has been compared already.
            Op::SendImm | Op::FetchAdd | Op::CmpSwap => return Ok(()),
            Op::Write | Op::WriteImm => conn.back.read(0, &mut got),
            Op::Send => conn.back.read(exchange.buffer as usize * size as usize, &mut got),
            Op::Read => conn.local.read(0, &mut got),
        }
        self.expect(exchange.round);
        match got.iter().zip(&self.bytes).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => Err(WorkloadError::Wrong { message: exchange.round, size, at }),
        }
    }

    fn post_buffer(&self, conn: &Conn, i: usize, buffer: u32) -> Result<(), WorkloadError> {
        let size = self.run.size as usize;
        let wr_id = Mark { conn: index(i), read_back: false, slot: buffer }.encode();
        let sge;
        let sges: &[_] = if self.run.op.is_immediate() {
            &[]
        } else {
            sge = [conn.back.sge(buffer as usize * size, size)];
            &sge
        };
        Ok(conn.qp.post_recv(&RecvWr { wr_id, sges })?)
    }
}

fn low(round: u64) -> u8 {
    round.to_le_bytes()[0]
}

/// Returns `i` as a `u32`: connections are few, so it fits.
fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap_or(u32::MAX)
}
