//! Many operations outstanding.

use heddle_base::Instant;
use heddle_dataplane::Clock;
use heddle_services::bench::Op;
use heddle_services::bench::{CREDIT_BUFFERS, CREDIT_LEN, pattern};
use heddle_verbs::{Data, RecvWr, SendOp, SendWr};

use super::WorkloadError;
use super::conn::{Conn, Cqs, Mark, send_op};
use super::error::{counted, successful};
use super::measure::Measure;
use super::pace::Pace;
use super::reverse::{Reverse, ReverseOutcome};
use crate::spec::Until;
use crate::workload::Run;

/// The operations of a connection.
///
/// ```text
///        done            posted          allowed
///  ────────┼───────────────┼────────────────┼──▶  number of the operation
///   slots  │  outstanding, │  may be posted │  no receive buffer (Send)
///   free   │  <= depth     │                │
/// ```
struct Flow {
    posted: u64,
    done: u64,
    /// The number of operations for which the peer has room.
    allowed: u64,
    /// The number of operations that the peer has taken, by its last credit.
    credited: u64,
    /// The time at which the operation in each slot was posted.
    posted_at: Vec<Instant>,
    /// True after the last operation has been posted.
    complete: bool,
    /// True after the client has asked for the contents of the slots at the end.
    checking: bool,
    finished: bool,
}

impl Flow {
    /// Returns true if all operations of the flow are done.
    fn has_run(&self) -> bool {
        self.finished || self.checking || self.complete && self.done == self.posted
    }
}

pub(super) struct Stream {
    run: Run,
    flows: Vec<Flow>,
    measure: Measure,
    /// The schedule of a run with a fixed rate.
    pace: Option<Pace>,
    /// The server's operations, in a bidirectional run.
    reverse: Option<Reverse>,
    finished: usize,
    bytes: Vec<u8>,
    primed: bool,
}

impl Stream {
    pub(super) fn new(clock: &Clock, run: Run, conns: &[Conn]) -> Stream {
        let measure = Measure::new(clock, &run);
        let flow = |c: &Conn| Flow {
            posted: 0,
            done: 0,
            allowed: if run.op.takes_buffer() { c.window.into() } else { u64::MAX },
            credited: 0,
            posted_at: vec![Instant::ZERO; run.depth as usize],
            complete: false,
            checking: false,
            finished: false,
        };
        let flows = conns.iter().map(flow).collect();
        let bytes = vec![0; run.size as usize];
        Stream { run, flows, measure, pace: None, reverse: None, finished: 0, bytes, primed: false }
    }

    pub(super) fn is_done(&self) -> bool {
        let flows = self.flows.len();
        self.finished == flows && self.reverse.as_ref().is_none_or(|r| r.is_done(flows))
    }

    /// Returns the figures of the server's operations, in a bidirectional run.
    pub(super) fn reverse(&self) -> Option<ReverseOutcome> {
        self.reverse.as_ref().map(Reverse::outcome)
    }

    pub(super) fn measure(&self) -> &Measure {
        &self.measure
    }

    pub(super) fn measure_mut(&mut self) -> &mut Measure {
        &mut self.measure
    }

    pub(super) fn step(&mut self, conns: &[Conn], cqs: &Cqs) -> Result<bool, WorkloadError> {
        if !self.primed {
            self.prime(conns)?;
        }
        let mut busy = self.step_forward(conns, cqs)?;
        if let Some(reverse) = &mut self.reverse {
            busy |= reverse.step(conns, cqs, &self.measure)?;
        }
        Ok(busy)
    }

    #[inline]
    fn step_forward(&mut self, conns: &[Conn], cqs: &Cqs) -> Result<bool, WorkloadError> {
        if self.pace.is_some() {
            self.post_due(conns)?;
        }
        let Some(first) = cqs.send.poll() else {
            return self.credits(conns, cqs);
        };
        let now = self.measure.clock.now();
        self.measure.tick(now);
        let mut next = Some(first);
        while let Some(cqe) = next {
            successful(&cqe)?;
            self.complete(conns, Mark::decode(cqe.wr_id), now)?;
            next = cqs.send.poll();
        }
        self.credits(conns, cqs)?;
        Ok(true)
    }

    /// Fills the slots and posts the first operations.
    fn prime(&mut self, conns: &[Conn]) -> Result<(), WorkloadError> {
        self.primed = true;
        for (i, conn) in conns.iter().enumerate() {
            if self.run.op.takes_buffer() {
                (0..CREDIT_BUFFERS).try_for_each(|slot| post_credit_buffer(conn, i, slot))?;
            }
            if !self.run.op.is_answered() {
                for slot in 0..u64::from(self.run.depth) {
                    pattern::fill(&mut self.bytes, self.run.seed, slot);
                    conn.local.write(self.offset(slot), &self.bytes);
                }
            }
        }
        if self.run.bidirectional {
            self.reverse = Some(Reverse::start(&self.run, conns)?);
        }
        self.measure = Measure::new(&self.measure.clock, &self.run);
        let now = self.measure.since;
        self.pace = Pace::new(&self.run, now);
        (0..conns.len()).try_for_each(|i| self.post_more(conns, i, now))
    }

    /// Posts the operations of all connections that have come due.
    fn post_due(&mut self, conns: &[Conn]) -> Result<(), WorkloadError> {
        let now = self.measure.clock.now();
        self.measure.tick(now);
        for i in 0..conns.len() {
            if !self.flows[i].finished && !self.flows[i].checking {
                self.post_more(conns, i, now)?;
                // A flow with nothing outstanding at the deadline has no completion that ends it.
                self.finish(conns, i, now)?;
            }
        }
        Ok(())
    }

    fn offset(&self, slot: u64) -> usize {
        // A slot is below the depth, so it fits.
        usize::try_from(slot).unwrap_or(0) * self.run.size as usize
    }

    fn complete(&mut self, conns: &[Conn], mark: Mark, now: Instant) -> Result<(), WorkloadError> {
        let i = mark.conn as usize;
        let (conn, run) = (&conns[i], self.run);
        let flow = &mut self.flows[i];
        let slot = u64::from(mark.slot);
        if flow.checking {
            return self.checked(conn, i, slot);
        }
        let waits_for_read_back = run.verify && run.op == Op::Write && !mark.read_back;
        if waits_for_read_back {
            return Ok(());
        }
        self.measure.count(flow.posted_at[mark.slot as usize], now);
        let op = flow.done;
        flow.done += 1;
        match run.op {
            Op::Write if run.verify => self.compare(conn, slot, op, op)?,
            Op::Read if run.verify => self.compare(conn, slot, slot, op)?,
            // The server carries out Atomic Operations in order, so this one found the number of
            // those before it.
            Op::FetchAdd | Op::CmpSwap => counted(&conn.local, self.offset(slot), op)?,
            _ => {}
        }
        self.post_more(conns, i, now)?;
        self.finish(conns, i, now)
    }

    /// Posts as many operations as the depth and the peer's room allow.
    fn post_more(&mut self, conns: &[Conn], i: usize, now: Instant) -> Result<(), WorkloadError> {
        let depth = u64::from(self.run.depth);
        loop {
            let flow = &self.flows[i];
            if flow.complete || flow.posted - flow.done >= depth || flow.posted >= flow.allowed {
                return Ok(());
            }
            let last = match self.run.until {
                Until::Iters(n) => flow.posted + 1 >= n,
                Until::Elapsed(_) if self.measure.ended.is_none() => false,
                // A last Send asks the server for its last credit.
                Until::Elapsed(_) if self.run.op.takes_buffer() => true,
                Until::Elapsed(_) => {
                    self.flows[i].complete = true;
                    return Ok(());
                }
            };
            // With a fixed rate an operation counts from the time at which it was due. The last
            // Send of a run by the clock is not measured, so it need not wait.
            let from = match &self.pace {
                Some(pace) if self.measure.ended.is_none() => {
                    let due = pace.due(i, flow.posted);
                    if due > now {
                        return Ok(());
                    }
                    due
                }
                _ => now,
            };
            self.post(&conns[i], i, last, from)?;
        }
    }

    fn post(
        &mut self,
        conn: &Conn,
        i: usize,
        last: bool,
        now: Instant,
    ) -> Result<(), WorkloadError> {
        let run = self.run;
        let op = self.flows[i].posted;
        let slot = op % u64::from(run.depth);
        let at = self.offset(slot);
        if run.verify && !run.op.is_atomic() {
            if run.op == Op::Read {
                // Cleared, so that bytes of an earlier Read do not pass for this one.
                self.bytes.fill(0);
            } else {
                pattern::fill(&mut self.bytes, run.seed, op);
            }
            conn.local.write(at, &self.bytes);
        }
        let there = match run.op {
            // The server has checked the messages that its credits count, so only their slots may
            // be overwritten.
            Op::WriteImm => op % u64::from(conn.window) * u64::from(run.size),
            Op::FetchAdd | Op::CmpSwap => 0,
            Op::Write | Op::Read | Op::Send | Op::SendImm => at as u64,
        };
        let sge = [conn.local.sge(at, run.size as usize)];
        let mark = Mark { conn: index(i), read_back: false, slot: index(self.offset_slot(slot)) };
        let wr = SendWr {
            wr_id: mark.encode(),
            op: send_op(run.op, conn.remote.stag, conn.remote.to.wrapping_add(there), op, last),
            data: Data::Sges(if run.op == Op::SendImm { &[] } else { &sge }),
            signaled: true,
            fence: false,
        };
        conn.qp.post_send(&wr)?;
        if run.verify && run.op == Op::Write {
            self.read_back(conn, i, slot)?;
        }
        let flow = &mut self.flows[i];
        flow.posted_at[mark.slot as usize] = now;
        flow.posted += 1;
        flow.complete = last;
        Ok(())
    }

    fn offset_slot(&self, slot: u64) -> usize {
        usize::try_from(slot).unwrap_or(0)
    }

    /// Reads back the bytes that were written into a slot.
    fn read_back(&self, conn: &Conn, i: usize, slot: u64) -> Result<(), WorkloadError> {
        let at = self.offset(slot);
        let mark = Mark { conn: index(i), read_back: true, slot: index(self.offset_slot(slot)) };
        Ok(conn.qp.post_send(&SendWr {
            wr_id: mark.encode(),
            op: SendOp::Read { stag: conn.remote.stag, to: conn.remote.to.wrapping_add(at as u64) },
            data: Data::Sges(&[conn.back.sge(at, self.run.size as usize)]),
            signaled: true,
            fence: false,
        })?)
    }

    /// Compares a slot with the bytes of message `expected`.
    fn compare(
        &mut self,
        conn: &Conn,
        slot: u64,
        expected: u64,
        message: u64,
    ) -> Result<(), WorkloadError> {
        let at = self.offset(slot);
        let mr = if self.run.op == Op::Read { &conn.local } else { &conn.back };
        mr.read(at, &mut self.bytes);
        match pattern::first_difference(&self.bytes, self.run.seed, expected) {
            None => Ok(()),
            Some(at) => Err(WorkloadError::Wrong { message, size: self.run.size, at }),
        }
    }

    /// Ends a flow whose operations are all done, after checking the contents of the slots.
    fn finish(&mut self, conns: &[Conn], i: usize, now: Instant) -> Result<(), WorkloadError> {
        let run = self.run;
        let flow = &mut self.flows[i];
        if !flow.complete || flow.done < flow.posted || flow.checking || flow.finished {
            return Ok(());
        }
        if run.op.takes_buffer() && flow.credited < flow.posted {
            return Ok(());
        }
        let filled = flow.posted.min(run.depth.into());
        if self.flows.iter().all(Flow::has_run) {
            self.measure.end(now);
        }
        if run.op.is_atomic() {
            let flow = &mut self.flows[i];
            flow.checking = true;
            return self.read_back(&conns[i], i, 0);
        }
        // At a low rate a flow may end before its first operation was due.
        if run.op.takes_buffer() || run.verify || run.size == 0 || filled == 0 {
            return self.finished(i);
        }
        if run.op == Op::Read {
            (0..filled).try_for_each(|slot| self.compare(&conns[i], slot, slot, slot))?;
            return self.finished(i);
        }
        let flow = &mut self.flows[i];
        flow.checking = true;
        flow.posted = filled;
        flow.done = 0;
        (0..filled).try_for_each(|slot| self.read_back(&conns[i], i, slot))
    }

    fn checked(&mut self, conn: &Conn, i: usize, slot: u64) -> Result<(), WorkloadError> {
        if self.run.op.is_atomic() {
            counted(&conn.back, 0, self.flows[i].posted)?;
            return self.finished(i);
        }
        self.compare(conn, slot, slot, slot)?;
        let flow = &mut self.flows[i];
        flow.done += 1;
        if flow.done == flow.posted { self.finished(i) } else { Ok(()) }
    }

    fn finished(&mut self, i: usize) -> Result<(), WorkloadError> {
        self.flows[i].finished = true;
        self.finished += 1;
        Ok(())
    }

    /// Handles the server's credits.
    fn credits(&mut self, conns: &[Conn], cqs: &Cqs) -> Result<bool, WorkloadError> {
        if !self.run.op.takes_buffer() {
            return Ok(false);
        }
        let mut busy = false;
        while let Some(cqe) = cqs.recv.poll() {
            busy = true;
            let mark = Mark::decode(cqe.wr_id);
            let i = mark.conn as usize;
            successful(&cqe)?;
            if cqe.len as usize != CREDIT_LEN {
                return Err(WorkloadError::Stray(cqe.len));
            }
            let mut b = [0; CREDIT_LEN];
            conns[i].back.read(mark.slot as usize * CREDIT_LEN, &mut b);
            let [taken, wrong] = decode_credit(&b);
            if wrong > 0 {
                return Err(WorkloadError::WrongThere(wrong));
            }
            let flow = &mut self.flows[i];
            if taken > flow.posted || taken < flow.credited {
                return Err(WorkloadError::Stray(cqe.len));
            }
            flow.credited = taken;
            flow.allowed = taken + u64::from(conns[i].window);
            post_credit_buffer(&conns[i], i, mark.slot)?;
            let now = self.measure.clock.now();
            self.measure.tick(now);
            self.post_more(conns, i, now)?;
            self.finish(conns, i, now)?;
        }
        Ok(busy)
    }
}

fn decode_credit(b: &[u8; CREDIT_LEN]) -> [u64; 2] {
    let (taken, wrong) = b.split_at(8);
    [taken, wrong].map(|n| n.iter().fold(0, |v, &b| v << 8 | u64::from(b)))
}

fn post_credit_buffer(conn: &Conn, i: usize, slot: u32) -> Result<(), WorkloadError> {
    let sge = conn.back.sge(slot as usize * CREDIT_LEN, CREDIT_LEN);
    let wr_id = Mark { conn: index(i), read_back: false, slot }.encode();
    Ok(conn.qp.post_recv(&RecvWr { wr_id, sges: &[sge] })?)
}

/// Returns `i` as a `u32`: connections and slots are few, so it fits.
fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap_or(u32::MAX)
}
