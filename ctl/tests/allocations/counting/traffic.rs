//! Operations of every kind, as many at a time as the queues hold.

use heddle_verbs::{CqeOp, Data, RecvWr, SendOp, SendWr};

use super::{Conn, DEPTH, LARGEST};

/// The operation that the client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    SendSolicited,
    Write,
    Read,
    /// All kinds in turn.
    Mixed,
}

/// All kinds of operations.
pub const KINDS: [Kind; 5] =
    [Kind::Send, Kind::SendSolicited, Kind::Write, Kind::Read, Kind::Mixed];

/// Payload of the largest tagged and untagged segment at an MTU of 1500, with TCP timestamps.
pub const TAGGED: usize = 1428;
pub const UNTAGGED: usize = 1424;

/// No byte, one byte, odd numbers, sizes around each limit, and many segments.
pub const SIZES: [usize; 24] = [
    0,
    1,
    3,
    31,
    32,
    33,
    64,
    255,
    256,
    257,
    511,
    512,
    513,
    1000,
    UNTAGGED - 1,
    UNTAGGED,
    UNTAGGED + 1,
    TAGGED - 1,
    TAGGED,
    TAGGED + 1,
    4096,
    4097,
    16_385,
    LARGEST,
];

/// Traffic from client to server over some connections. Makes no allocation after its construction.
pub struct Traffic<'a> {
    conns: &'a [Conn],
    kind: Kind,
    sizes: &'a [usize],
    /// The progress of each connection: operations posted and completed, Sends that arrived,
    /// receive buffers posted.
    state: Vec<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    posted: u64,
    completed: u64,
    sends: u64,
    arrived: u64,
    buffers: u64,
}

impl<'a> Traffic<'a> {
    pub fn new(conns: &'a [Conn], kind: Kind, sizes: &'a [usize]) -> Traffic<'a> {
        let mut t = Traffic { conns, kind, sizes, state: vec![State::default(); conns.len()] };
        t.post_buffers();
        t
    }

    /// Returns the number of operations completed, over all connections.
    pub fn completed(&self) -> u64 {
        self.state.iter().map(|s| s.completed).sum()
    }

    /// Runs until each connection has completed `ops` operations in all; `poll` drives the RNICs.
    pub fn run(&mut self, ops: u64, mut poll: impl FnMut()) {
        let start = std::time::Instant::now();
        let mut turns = 0u64;
        loop {
            self.post(ops);
            poll();
            self.reap();
            self.post_buffers();
            // A completed Send has arrived at the server's RNIC, but the server may not have polled
            // its completion.
            if self.state.iter().all(|s| s.completed == ops && s.arrived == s.sends) {
                return;
            }
            turns += 1;
            if turns.is_multiple_of(4096) {
                assert!(
                    start.elapsed().as_secs() < 60,
                    "{:?} of {:?} stand still at {} operations",
                    self.kind,
                    self.sizes,
                    self.completed()
                );
            }
        }
    }

    /// Takes completions on both sides.
    fn reap(&mut self) {
        for (conn, s) in self.conns.iter().zip(&mut self.state) {
            while let Some(cqe) = conn.client.cq.poll() {
                assert!(cqe.status.is_success(), "{cqe:?}");
                assert_eq!(cqe.wr_id, s.completed);
                s.completed += 1;
            }
            while let Some(cqe) = conn.server.cq.poll() {
                assert!(cqe.status.is_success() && cqe.op == CqeOp::Recv, "{cqe:?}");
                assert_eq!(cqe.wr_id, s.arrived);
                s.arrived += 1;
            }
        }
    }

    fn post_buffers(&mut self) {
        for (conn, s) in self.conns.iter().zip(&mut self.state) {
            while s.buffers - s.arrived < DEPTH as u64 {
                let at = (2 * DEPTH + s.buffers as usize % DEPTH) * LARGEST;
                let sges = [conn.server.mr.sge(at, LARGEST)];
                let wr = RecvWr { wr_id: s.buffers, sges: &sges };
                if conn.server.qp.post_recv(&wr).is_err() {
                    break;
                }
                s.buffers += 1;
            }
        }
    }

    fn post(&mut self, ops: u64) {
        for (conn, s) in self.conns.iter().zip(&mut self.state) {
            while s.posted < ops && s.posted - s.completed < DEPTH as u64 {
                let n = s.posted as usize;
                let kind = match self.kind {
                    Kind::Mixed => KINDS[n * 7 / 3 % (KINDS.len() - 1)],
                    kind => kind,
                };
                let sends = matches!(kind, Kind::Send | Kind::SendSolicited);
                // A Send needs a receive buffer that was posted before.
                if sends && s.sends - s.arrived >= DEPTH as u64 / 2 {
                    break;
                }
                let len = self.sizes[n % self.sizes.len()];
                let (slot, far) = (n % DEPTH * LARGEST, (DEPTH + n % DEPTH) * LARGEST);
                let remote = conn.server.mr.sge(far, len);
                let (stag, to) = (remote.stag, remote.to);
                let op = match kind {
                    Kind::Write => SendOp::Write { stag, to },
                    Kind::Read => SendOp::Read { stag, to },
                    _ => SendOp::Send { solicited: kind == Kind::SendSolicited, invalidate: None },
                };
                let sges = [conn.client.mr.sge(slot, len)];
                let wr = SendWr {
                    wr_id: s.posted,
                    op,
                    data: Data::Sges(&sges),
                    signaled: true,
                    fence: false,
                };
                if conn.client.qp.post_send(&wr).is_err() {
                    break;
                }
                s.posted += 1;
                s.sends += u64::from(sends);
            }
        }
    }
}
