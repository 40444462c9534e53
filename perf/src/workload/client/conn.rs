//! The connections of a run.

use core::net::SocketAddr;

use heddle_services::bench::hello::{Hello, Region, Welcome};
use heddle_services::bench::tally::Tally;
use heddle_services::bench::{
    COUNTER_LEN, CREDIT_BUFFERS, CREDIT_LEN, LAT_BUFFERS, Mode, Op, send_window,
};
use heddle_verbs::{
    Access, AtomicOp, CmId, Cq, Data, Device, DeviceError, MAX_DEPTH, Mr, Pd, PostError, Qp,
    QpInit, RecvWr, SendOp, SendWr, Stag,
};

use super::WorkloadError;
use crate::workload::Run;

/// A connection of a run.
pub(super) struct Conn {
    pub(super) qp: Qp,
    pub(super) id: Option<CmId>,
    pub(super) established: bool,
    pub(super) closed: bool,
    /// Source of Writes and Sends, destination of Reads: one slot per operation.
    pub(super) local: Mr,
    /// The destination of returning data: Writes of a ping-pong, Sends, or the bytes that the
    /// client reads for comparison.
    pub(super) back: Mr,
    /// The region of the server's operations in a bidirectional run: one slot per operation.
    pub(super) incoming: Option<Mr>,
    /// The buffer for the server's grant, and for its tally.
    pub(super) grant: Mr,
    /// The server's region.
    pub(super) remote: Region,
    /// The number of receive buffers that the server has.
    pub(super) window: u32,
}

/// The completion queues of all connections.
pub(super) struct Cqs {
    pub(super) send: Cq,
    pub(super) recv: Cq,
}

/// Returns the depth of the send queue, twice the run's: in a verified run each Write has its Read.
fn sq_depth(run: &Run) -> u32 {
    2 * run.depth + 2
}

impl Cqs {
    /// Makes queues with room for every completion that can wait at a time, as far as a queue can
    /// be that deep. In the largest runs the queue overflows only if all operations complete
    /// between two steps, and then the connections end.
    pub(super) fn new(device: &Device, run: &Run) -> Result<Cqs, DeviceError> {
        let cq = |depth| device.create_cq(run.qps.saturating_mul(depth).min(MAX_DEPTH), None);
        Ok(Cqs { send: cq(sq_depth(run))?, recv: cq(CREDIT_BUFFERS)? })
    }
}

impl Conn {
    pub(super) fn new(
        device: &Device,
        pd: Pd,
        cqs: &Cqs,
        run: &Run,
    ) -> Result<Conn, WorkloadError> {
        let size = run.size as usize;
        let (back, rights) = match (run.op, run.mode) {
            // Credits are Sends for every operation, so they need local write access.
            (Op::SendImm, Mode::Lat) => (0, Access::NONE),
            (Op::WriteImm, Mode::Lat) => (size, Access::REMOTE_WRITE),
            (Op::Send, Mode::Lat) => (LAT_BUFFERS as usize * size, Access::LOCAL_WRITE),
            (Op::Send | Op::WriteImm | Op::SendImm, _) => {
                (CREDIT_BUFFERS as usize * CREDIT_LEN, Access::LOCAL_WRITE)
            }
            (Op::Write, Mode::Lat) => (size, Access::REMOTE_WRITE),
            (Op::Write, _) => (run.region(), Access::LOCAL_WRITE),
            (Op::Read, _) => (0, Access::NONE),
            // The counter, which the client reads at the end.
            (Op::FetchAdd | Op::CmpSwap, _) => (COUNTER_LEN, Access::LOCAL_WRITE),
        };
        let incoming = match run.op {
            _ if !run.bidirectional => None,
            Op::Read => Some(Access::REMOTE_READ),
            _ => Some(Access::REMOTE_WRITE),
        };
        let init = QpInit {
            send_cq: cqs.send.clone(),
            recv_cq: cqs.recv.clone(),
            sq_depth: sq_depth(run),
            rq_depth: CREDIT_BUFFERS,
            srq: None,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        Ok(Conn {
            qp: device.create_qp(pd, init)?,
            id: None,
            established: false,
            closed: false,
            local: device.alloc_mr(pd, run.region().max(1), Access::LOCAL_WRITE)?,
            back: device.alloc_mr(pd, back.max(1), rights)?,
            incoming: incoming.map(|r| device.alloc_mr(pd, run.region(), r)).transpose()?,
            grant: device.alloc_mr(pd, Welcome::LEN.max(Tally::LEN), Access::LOCAL_WRITE)?,
            remote: Region::default(),
            window: 0,
        })
    }

    pub(super) fn hello(&self, run: &Run) -> Hello {
        let memory = match (run.op, run.mode) {
            (Op::Write | Op::WriteImm, Mode::Lat) => Some(&self.back),
            _ => self.incoming.as_ref(),
        };
        let region = memory.map_or_else(Region::default, |mr| Region {
            stag: mr.stag(),
            to: mr.to(),
            len: mr.len() as u64,
        });
        let Run { op, mode, verify, bidirectional, size, depth, seed, .. } = *run;
        Hello { op, mode, verify, bidirectional, size, depth, seed, region }
    }

    /// Asks for the grant, as the `n`th connection.
    pub(super) fn ask_for_grant(&self, n: usize) -> Result<(), PostError> {
        let wr_id = (n as u64) << 32;
        self.qp.post_recv(&RecvWr { wr_id, sges: &[self.grant.sge(0, Welcome::LEN)] })?;
        self.qp.post_send(&SendWr {
            wr_id,
            op: SendOp::Send { solicited: true, invalidate: None },
            data: Data::Sges(&[]),
            signaled: false,
            fence: false,
        })
    }

    /// Returns the answer, which has `len` bytes.
    pub(super) fn granted(&self, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.grant.len().min(len as usize)];
        self.grant.read(0, &mut bytes);
        bytes
    }

    pub(super) fn take_welcome(
        &mut self,
        remote: SocketAddr,
        run: &Run,
        w: &Welcome,
    ) -> Result<(), WorkloadError> {
        let misfit = |why| Err(WorkloadError::Misfit { remote, why });
        let needs = match run.op {
            Op::Send | Op::SendImm => 0,
            Op::WriteImm => u64::from(send_window(run.mode, run.depth)) * u64::from(run.size),
            Op::Write | Op::Read | Op::FetchAdd | Op::CmpSwap => run.region() as u64,
        };
        if w.region.len < needs {
            return misfit("its region is too short");
        }
        if run.op.takes_buffer() && w.window < send_window(run.mode, run.depth) {
            return misfit("it has too few receive buffers");
        }
        (self.remote, self.window, self.established) = (w.region, w.window, true);
        Ok(())
    }
}

/// Returns the send operation for `op`.
pub(super) fn send_op(op: Op, stag: Stag, to: u64, number: u64, solicited: bool) -> SendOp {
    let atomic = |op| SendOp::Atomic { stag, to, op };
    match op {
        Op::Write => SendOp::Write { stag, to },
        Op::Read => SendOp::Read { stag, to },
        Op::Send => SendOp::Send { solicited, invalidate: None },
        Op::WriteImm => SendOp::WriteImmediate { stag, to, data: number, solicited },
        Op::SendImm => SendOp::Immediate { data: number, solicited },
        Op::FetchAdd => atomic(AtomicOp::FetchAdd { add: 1, mask: 0 }),
        Op::CmpSwap => atomic(AtomicOp::CmpSwap {
            compare: number,
            compare_mask: u64::MAX,
            swap: number + 1,
            swap_mask: u64::MAX,
        }),
    }
}

/// Connection and slot in the mark of a work request, with a bit for its purpose.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    pub(super) conn: u32,
    /// True for a Read that brings back the bytes of a Write.
    pub(super) read_back: bool,
    pub(super) slot: u32,
}

impl Mark {
    pub(super) fn encode(self) -> u64 {
        u64::from(self.conn) << 32 | u64::from(self.read_back) << 31 | u64::from(self.slot)
    }

    pub(super) fn decode(wr_id: u64) -> Mark {
        let low = u32::try_from(wr_id & 0xffff_ffff).unwrap_or(0);
        let conn = u32::try_from(wr_id >> 32).unwrap_or(0);
        Mark { conn, read_back: low >> 31 == 1, slot: low & 0x7fff_ffff }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_mark_goes_round() {
        for (conn, read_back, slot) in [(0, false, 0), (7, true, 5), (u32::MAX, true, 0x7fff_ffff)]
        {
            let m = Mark::decode(Mark { conn, read_back, slot }.encode());
            assert_eq!((m.conn, m.read_back, m.slot), (conn, read_back, slot));
        }
    }
}
