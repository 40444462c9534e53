//! Moves a file between two RNICs of one process, in each of the ways RDMA has, and counts with
//! Atomic Operations.
//!
//! A single thread drives everything. The end that sends registers the file's bytes, the other end
//! registers zeros. After a pass the mover hashes the bytes that arrived and compares the hash with
//! the file's. A pass over some megabytes takes milliseconds, and has too few operations for a
//! distribution of their times, so the mover repeats passes for as long as the caller asks. The
//! mover checks each pass, and does not count the time for zeroing and hashing.
//!
//! Atomic Operations move 64 bits, so a pass of theirs moves no file: as many operations as another
//! pass needs count from 0 in the server's memory, and each must find the number of those before
//! it.

use core::net::SocketAddr;
use std::time::Duration;

use heddle_base::Instant;
use heddle_ctl::Endpoint;
use heddle_services::bench::Op;
use heddle_verbs::{
    AcceptParams, Access, CmEvent, CmId, ConnectFailure, ConnectParams, Cq, Cqe, CqeStatus,
    DeviceError, DisconnectReason, EventQueue, ListenParams, Mr, Pd, PostError, Qp, QpInit, RecvWr,
    SendWr,
};
use sha2::{Digest, Sha256};

use crate::embedded::poll_pair;
use crate::latency::{Latency, Recorder};
use crate::progress::Progress;

/// A SHA-256.
pub type Hash = [u8; 32];

/// Bytes of one operation.
pub const CHUNK: usize = 64 << 10;

/// Operations, or receive buffers, outstanding: their bytes fit into a cache.
pub const WINDOW: u32 = 4;

/// Bytes that an Atomic Operation changes.
const COUNTER: usize = 8;

/// How long a run may go without any progress.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of one way of moving, over all passes.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The operation that moved the bytes.
    pub op: Op,
    /// The number of times that the file was moved.
    pub passes: u64,
    /// The number of passes after which the hash differed from the file's; for Atomic Operations,
    /// after which the counter was wrong, or in which an operation had found a wrong value.
    pub wrong: u64,
    /// The number of operations of all passes.
    pub ops: u64,
    /// The number of bytes moved in all passes.
    pub bytes: u64,
    /// Time from the first operation of a pass to its last completion.
    pub elapsed: Duration,
    /// Times of the operations, from posting to completion.
    pub latency: Latency,
}

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The control plane refused.
    #[error(transparent)]
    Ctl(#[from] DeviceError),
    /// The connection could not be established.
    #[error("cannot connect: {0}")]
    Connect(ConnectFailure),
    /// The connection ended before the transfer was done.
    #[error("the connection ended early: {0}")]
    Disconnected(DisconnectReason),
    /// An operation failed.
    #[error("operation {0} failed: {1}")]
    Completion(u64, CqeStatus),
    /// The device did not take a work request.
    #[error("cannot post: {0}")]
    Post(#[from] PostError),
    /// Immediate Data alone has no room for a file.
    #[error("Immediate Data alone moves no file")]
    Nothing,
    /// The transfer makes no progress any more.
    #[error("nothing has happened for {} s", PATIENCE.as_secs())]
    Stalled,
}

/// An end of the transfer: an RNIC with its objects.
struct End {
    endpoint: Endpoint,
    events: EventQueue,
    pd: Pd,
    mr: Mr,
}

/// Two RNICs with a region of the file's length each.
pub struct Mover {
    client: End,
    server: End,
    addr: SocketAddr,
    file: Vec<u8>,
    hash: Hash,
    /// The counter in which [`run`](Mover::run) reports how far it is.
    pub progress: Progress,
}

/// A connection between the two.
struct Link {
    qps: [Qp; 2],
    cqs: [Cq; 2],
    id: CmId,
}

/// The number and the times of the operations of all passes.
#[derive(Default)]
struct Measured {
    ops: u64,
    times: Recorder,
}

impl Mover {
    /// Listens at `addr`, which is the server's, and registers memory for `file` at both ends.
    pub fn new(
        client: Endpoint,
        server: Endpoint,
        addr: SocketAddr,
        file: Vec<u8>,
    ) -> Result<Mover, TransferError> {
        let end = |endpoint: Endpoint| {
            let pd = endpoint.device().alloc_pd()?;
            let all = Access::LOCAL_WRITE
                .with(Access::REMOTE_WRITE)
                .with(Access::REMOTE_READ)
                .with(Access::REMOTE_ATOMIC);
            let mr =
                endpoint.device().alloc_mr(pd, file.len().max(WINDOW as usize * COUNTER), all)?;
            Ok::<_, DeviceError>(End { endpoint, events: EventQueue::new(None), pd, mr })
        };
        let (client, server) = (end(client)?, end(server)?);
        server.endpoint.device().listen(addr, ListenParams::default(), &server.events)?;
        let hash = hash(&file);
        Ok(Mover { client, server, addr, file, hash, progress: Progress::default() })
    }

    /// Returns the hash of the file.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Moves the file, from client to server by Send and Write, from server to client by Read:
    /// once, and again until `time` has passed. Refuses Immediate Data alone.
    pub fn run(&mut self, op: Op, time: Duration) -> Result<Moved, TransferError> {
        if op == Op::SendImm {
            return Err(TransferError::Nothing);
        }
        let len = if op.is_atomic() { COUNTER } else { self.file.len() };
        let (zeros, mut got) = (vec![0; len], vec![0; len]);
        if !op.is_atomic() {
            self.source(op).write(0, &self.file);
        }
        self.progress.set(0);
        let link = self.connect(op)?;
        let mut measured = Measured::default();
        let (mut passes, mut wrong, mut elapsed) = (0, 0, Duration::ZERO);
        while passes == 0 || elapsed < time {
            self.sink(op).write(0, &zeros);
            let start = self.client.endpoint.now();
            let mut failed = self.pump(&link, op, &mut measured)?;
            elapsed += self.client.endpoint.now().since(start);
            self.sink(op).read(0, &mut got);
            passes += 1;
            failed |= match <[u8; COUNTER]>::try_from(&got[..]) {
                Ok(n) if op.is_atomic() => u64::from_ne_bytes(n) != self.chunks() as u64,
                _ => hash(&got) != self.hash,
            };
            wrong += u64::from(failed);
        }
        self.close(&link, op)?;
        let (ops, latency) = (measured.ops, measured.times.latency());
        let bytes = if op.is_atomic() { ops } else { passes } * len as u64;
        Ok(Moved { op, passes, wrong, ops, bytes, elapsed, latency })
    }

    /// Returns the number of operations in a pass.
    fn chunks(&self) -> usize {
        self.file.len().div_ceil(CHUNK)
    }

    fn source(&self, op: Op) -> &Mr {
        if op == Op::Read { &self.server.mr } else { &self.client.mr }
    }

    fn sink(&self, op: Op) -> &Mr {
        if op == Op::Read { &self.client.mr } else { &self.server.mr }
    }

    fn poll(&mut self, op: Op) -> Instant {
        let (client, server) = (&mut self.client.endpoint, &mut self.server.endpoint);
        if op.is_answered() {
            poll_pair(server, Some(client))
        } else {
            poll_pair(client, Some(server))
        }
        self.client.endpoint.now()
    }

    fn connect(&mut self, op: Op) -> Result<Link, TransferError> {
        let mut cqs = Vec::with_capacity(2);
        let mut qps = Vec::with_capacity(2);
        for end in [&self.client, &self.server] {
            let device = end.endpoint.device();
            let cq = device.create_cq(4 * WINDOW, None)?;
            let init = QpInit::new(cq.clone()).depths(WINDOW, WINDOW);
            qps.push(device.create_qp(end.pd, init)?);
            cqs.push(cq);
        }
        let [a, b] = [qps[0].clone(), qps[1].clone()];
        let device = self.client.endpoint.device();
        let id = device.connect(self.addr, ConnectParams::new(a.clone()), &self.client.events)?;
        let until = self.poll(op) + PATIENCE;
        let mut up = 0;
        while up < 2 {
            let now = self.poll(op);
            if let Some(CmEvent::ConnectRequest { id, .. }) = self.server_event(&mut up)? {
                self.server.endpoint.device().accept(id, AcceptParams::new(b.clone()))?;
            }
            match self.client.events.poll() {
                Some(CmEvent::Established { .. }) => up += 1,
                Some(CmEvent::ConnectError { error, .. }) => {
                    return Err(TransferError::Connect(error));
                }
                Some(CmEvent::Disconnected { reason, .. }) => {
                    return Err(TransferError::Disconnected(reason));
                }
                _ if now > until => return Err(TransferError::Stalled),
                _ => {}
            }
        }
        Ok(Link { qps: [a, b], cqs: [cqs[0].clone(), cqs[1].clone()], id })
    }

    fn server_event(&self, up: &mut u32) -> Result<Option<CmEvent>, TransferError> {
        match self.server.events.poll() {
            Some(CmEvent::Established { .. }) => *up += 1,
            Some(CmEvent::ConnectError { error, .. }) => return Err(TransferError::Connect(error)),
            other => return Ok(other),
        }
        Ok(None)
    }

    /// Runs a pass. Returns true if Immediate Data, or the value that an Atomic Operation found,
    /// was wrong.
    fn pump(
        &mut self,
        link: &Link,
        op: Op,
        measured: &mut Measured,
    ) -> Result<bool, TransferError> {
        let (len, chunks) = (self.file.len(), self.chunks());
        let mut wrong = false;
        let chunk = |mr: &Mr, n: usize| mr.sge(n * CHUNK, CHUNK.min(len - n * CHUNK));
        let (mut posted, mut sent, mut arrived, mut buffers) = (0, 0, 0, 0);
        let mut busy_at = self.client.endpoint.now();
        // The operations complete in the order in which they were posted.
        let mut posted_at = [busy_at; WINDOW as usize];
        while sent < chunks || op.takes_buffer() && arrived < chunks {
            let before = (posted, sent, arrived);
            while op.takes_buffer() && buffers < chunks && buffers - arrived < WINDOW as usize {
                let sge = [chunk(&self.server.mr, buffers)];
                let sges = if op.is_immediate() { &[] } else { &sge[..] };
                link.qps[1].post_recv(&RecvWr { wr_id: buffers as u64, sges })?;
                buffers += 1;
            }
            let allowed = if op.takes_buffer() { buffers } else { chunks };
            while posted < allowed && posted - sent < WINDOW as usize {
                let (stag, counter) = (self.server.mr.stag(), self.server.mr.to());
                let to = chunk(&self.server.mr, posted).to;
                let n = posted as u64;
                let sges = [chunk(&self.client.mr, posted)];
                let found = [self.client.mr.sge(posted % WINDOW as usize * COUNTER, COUNTER)];
                let wr = match op {
                    Op::Send => SendWr::send(n, &sges),
                    Op::Write => SendWr::write(n, &sges, stag, to),
                    Op::Read => SendWr::read(n, &sges, stag, to),
                    Op::WriteImm => SendWr::write_immediate(n, &sges, stag, to, n),
                    Op::SendImm => SendWr::immediate(n, n),
                    Op::FetchAdd => SendWr::fetch_add(n, &found, stag, counter, 1),
                    Op::CmpSwap => SendWr::compare_swap(n, &found, stag, counter, n, n + 1),
                };
                posted_at[posted % WINDOW as usize] = self.client.endpoint.now();
                link.qps[0].post_send(&wr)?;
                posted += 1;
            }
            let now = self.poll(op);
            while let Some(cqe) = link.cqs[0].poll() {
                check(&cqe)?;
                measured.times.record(now.since(posted_at[sent % WINDOW as usize]));
                if op.is_atomic() {
                    let mut found = [0; COUNTER];
                    self.client.mr.read(sent % WINDOW as usize * COUNTER, &mut found);
                    wrong |= u64::from_ne_bytes(found) != sent as u64;
                }
                sent += 1;
            }
            while let Some(cqe) = link.cqs[1].poll() {
                check(&cqe)?;
                wrong |= op.is_immediate() && cqe.immediate != Some(arrived as u64);
                arrived += 1;
            }
            if before != (posted, sent, arrived) {
                busy_at = now;
                self.progress.set(measured.ops + sent as u64);
            } else if now.since(busy_at) > PATIENCE {
                return Err(TransferError::Stalled);
            }
        }
        measured.ops += chunks as u64;
        Ok(wrong)
    }

    fn close(&mut self, link: &Link, op: Op) -> Result<(), TransferError> {
        self.client.endpoint.device().disconnect(link.id)?;
        let until = self.poll(op) + PATIENCE;
        let mut down = 0;
        while down < 2 {
            let now = self.poll(op);
            for events in [&self.client.events, &self.server.events] {
                if let Some(CmEvent::Disconnected { .. }) = events.poll() {
                    down += 1;
                }
            }
            if now > until {
                return Err(TransferError::Stalled);
            }
        }
        Ok(())
    }
}

fn check(cqe: &Cqe) -> Result<(), TransferError> {
    if cqe.status.is_success() {
        Ok(())
    } else {
        Err(TransferError::Completion(cqe.wr_id, cqe.status))
    }
}

/// Returns the SHA-256 of `bytes`.
pub fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_hash_is_sha_256() {
        // FIPS 180-4, the example of one block.
        let want = [0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea];
        assert_eq!(hash(b"abc")[..8], want);
    }
}
