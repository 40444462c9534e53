//! The direction from the server to the client in a bidirectional run: the server carries out the
//! operations, and the client tells it when to begin, to count and to end.

use std::time::Duration;

use heddle_services::bench::tally::Tally;
use heddle_services::bench::{Op, pattern};
use heddle_verbs::{Cqe, Data, Mr, RecvWr, SendOp, SendWr};

use super::WorkloadError;
use super::conn::{Conn, Cqs, Mark};
use super::error::successful;
use super::measure::Measure;
use crate::workload::Run;

/// The figures of the server's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReverseOutcome {
    /// The longest time that the server counted on a connection.
    pub elapsed: Duration,
    /// The number of operations that completed in this time, on all connections.
    pub ops: u64,
}

/// How far the server's operations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Counting,
    Ending,
}

pub(super) struct Reverse {
    run: Run,
    phase: Phase,
    /// The number of connections whose tally has come.
    tallies: usize,
    outcome: ReverseOutcome,
}

impl Reverse {
    /// Fills the memory that the server reads, and has the server begin.
    pub(super) fn start(run: &Run, conns: &[Conn]) -> Result<Reverse, WorkloadError> {
        for (n, conn) in conns.iter().enumerate() {
            if let (Op::Read, Some(incoming)) = (run.op, &conn.incoming) {
                let mut bytes = vec![0; run.size as usize];
                for slot in 0..run.depth {
                    pattern::fill(&mut bytes, run.seed, slot.into());
                    incoming.write(slot as usize * bytes.len(), &bytes);
                }
            }
            let wr_id = mark(n);
            conn.qp.post_recv(&RecvWr { wr_id, sges: &[conn.grant.sge(0, Tally::LEN)] })?;
        }
        let outcome = ReverseOutcome::default();
        let reverse = Reverse { run: *run, phase: Phase::Running, tallies: 0, outcome };
        reverse.tell(conns)?;
        Ok(reverse)
    }

    /// Tells the server that the next part begins.
    fn tell(&self, conns: &[Conn]) -> Result<(), WorkloadError> {
        conns.iter().enumerate().try_for_each(|(n, conn)| {
            Ok(conn.qp.post_send(&SendWr {
                wr_id: mark(n),
                op: SendOp::Send { solicited: true, invalidate: None },
                data: Data::Sges(&[]),
                signaled: false,
                fence: false,
            })?)
        })
    }

    pub(super) fn step(
        &mut self,
        conns: &[Conn],
        cqs: &Cqs,
        measure: &Measure,
    ) -> Result<bool, WorkloadError> {
        let mut busy = false;
        if self.phase == Phase::Running && measure.is_warm() {
            self.phase = Phase::Counting;
            self.tell(conns)?;
            busy = true;
        }
        if self.phase == Phase::Counting && measure.ended.is_some() {
            self.phase = Phase::Ending;
            self.tell(conns)?;
            busy = true;
        }
        while let Some(cqe) = cqs.recv.poll() {
            busy = true;
            self.handle_tally(conns, &cqe)?;
        }
        Ok(busy)
    }

    fn handle_tally(&mut self, conns: &[Conn], cqe: &Cqe) -> Result<(), WorkloadError> {
        successful(cqe)?;
        let stray = WorkloadError::Stray(cqe.len);
        if self.phase != Phase::Ending || cqe.len as usize != Tally::LEN {
            return Err(stray);
        }
        let conn = &conns[Mark::decode(cqe.wr_id).conn as usize];
        let mut b = [0; Tally::LEN];
        conn.grant.read(0, &mut b);
        let Some(tally) = Tally::decode(&b) else { return Err(stray) };
        if tally.wrong > 0 {
            return Err(WorkloadError::WrongThere(tally.wrong));
        }
        if let (Op::Write, Some(incoming)) = (self.run.op, &conn.incoming) {
            self.compare(incoming, tally.posted)?;
        }
        self.tallies += 1;
        self.outcome.ops += tally.ops;
        self.outcome.elapsed = self.outcome.elapsed.max(Duration::from_nanos(tally.nanos));
        Ok(())
    }

    /// Compares the slots that `posted` Writes of the server have filled.
    fn compare(&self, incoming: &Mr, posted: u64) -> Result<(), WorkloadError> {
        let size = self.run.size;
        let mut bytes = vec![0; size as usize];
        for slot in 0..u64::from(self.run.depth).min(posted) {
            let at = usize::try_from(slot).unwrap_or(0) * bytes.len();
            incoming.read(at, &mut bytes);
            if let Some(at) = pattern::first_difference(&bytes, self.run.seed, slot) {
                return Err(WorkloadError::Wrong { message: slot, size, at });
            }
        }
        Ok(())
    }

    /// Returns true when every connection's tally has come.
    pub(super) fn is_done(&self, conns: usize) -> bool {
        self.tallies == conns
    }

    pub(super) fn outcome(&self) -> ReverseOutcome {
        self.outcome
    }
}

/// Returns the mark of connection `n`'s messages to the server.
fn mark(n: usize) -> u64 {
    Mark { conn: u32::try_from(n).unwrap_or(u32::MAX), read_back: false, slot: 0 }.encode()
}
