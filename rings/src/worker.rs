//! The worker's ends of an application's queues.
//!
//! All data that this module reads come from another process, which may be hostile: see
//! the documentation of this crate.

use heddle_base::Fetch;
use heddle_base::sync::atomic::{Ordering, fence};
use std::sync::Arc;

use heddle_engine::{Retired, SharedReceives};
use heddle_types::{CqeOp, Pd, Qpn, RecvWr, SendOp, SendWr};

use crate::cq::CqLink;
use crate::layout::{phase, qp as at, state};
use crate::qp::{Rings, TiedStags, header};
use crate::{Block, Broken, Entry, EntryReader, OnSend, low32};

/// A queue pair, as the worker that runs it holds it.
#[derive(Debug)]
pub struct WorkerQp {
    qpn: Qpn,
    pd: Pd,
    block: Arc<Block>,
    rings: Rings,
    bell: u32,
    sq: QueueCursor,
    rq: QueueCursor,
    /// STags that end with the queue pair.
    tied: Arc<dyn TiedStags>,
    /// The application believes that a worker serves the queue pair.
    running: bool,
    /// For the worker's use, which it sets: the queue pair has to end, because its rings make no
    /// sense or its completion queue has overflowed.
    pub broken: bool,
    /// Present until the worker has taken the links.
    links: Option<Box<Links>>,
}

/// Queues that a queue pair is joined to; the worker takes this once.
#[derive(Debug)]
pub struct Links {
    /// The completion queue for completions of the send queue.
    pub send_cq: CqLink,
    /// The completion queue for completions of the receive queue.
    pub recv_cq: CqLink,
    /// The shared queue of receive buffers, if the queue pair has no receive queue of its own.
    pub srq: Option<Box<dyn SharedReceives>>,
}

/// The worker's position in one queue.
#[derive(Debug)]
struct QueueCursor {
    reader: EntryReader,
    /// Requests retired since the beginning.
    retired: u64,
    /// Requests taken and not retired.
    outstanding: u32,
    depth: u32,
}

impl QueueCursor {
    fn new(blocks: u32, depth: u32) -> QueueCursor {
        QueueCursor { reader: EntryReader::new(blocks.into()), retired: 0, outstanding: 0, depth }
    }

    /// Returns the number of requests taken since the beginning.
    fn requests(&self) -> u64 {
        self.retired + u64::from(self.outstanding)
    }

    /// Counts a request that is being taken; no more requests than the queue's depth can be
    /// outstanding.
    #[inline]
    fn count(&mut self) -> Result<(), Broken> {
        if self.outstanding >= self.depth {
            return Err(Broken::Overrun);
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Counts retired requests, given as a running number modulo 2^32.
    #[inline]
    fn retire(&mut self, retired: u32) -> bool {
        let seen = u32::try_from(self.retired & 0xffff_ffff).unwrap_or(0);
        let more = retired.wrapping_sub(seen);
        self.retired += u64::from(more);
        self.outstanding = self.outstanding.saturating_sub(more);
        more > 0
    }
}

/// A queue pair, as its maker hands it to the worker that is to run it.
#[derive(Debug)]
pub struct QpEnds {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Its protection domain.
    pub pd: Pd,
    /// The block that the queue pair lies in.
    pub block: Arc<Block>,
    /// The rings in that block.
    pub rings: Rings,
    /// The doorbell that the queue pair rings.
    pub bell: u32,
    /// Requests that the send and the receive queue hold.
    pub depths: (u32, u32),
    /// STags that end with the queue pair.
    pub tied: Arc<dyn TiedStags>,
    /// The queues that the queue pair is joined to.
    pub links: Links,
}

impl WorkerQp {
    /// Returns the worker's end of a queue pair. There is one at a time: a queue pair has one
    /// connection until it is reset.
    pub fn new(ends: QpEnds) -> WorkerQp {
        let QpEnds { qpn, pd, block, rings, bell, depths, tied, links } = ends;
        WorkerQp {
            qpn,
            pd,
            block,
            rings,
            bell,
            sq: QueueCursor::new(rings.sq, depths.0),
            // With a shared receive queue this ring has no blocks, so any entry published here is
            // invalid.
            rq: QueueCursor::new(if links.srq.is_some() { 0 } else { rings.rq }, depths.1),
            tied,
            running: false,
            broken: false,
            links: Some(Box::new(links)),
        }
    }

    /// Returns the worker's end of a queue pair that has no connection and is to be flushed. If the
    /// end is dropped before [`end`](WorkerQp::end) is called, the queue pair ends without
    /// completions.
    pub fn to_flush(ends: QpEnds) -> WorkerQp {
        let mut qp = WorkerQp::new(ends);
        qp.running = true;
        qp
    }

    /// Returns the number of the queue pair.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the protection domain of the queue pair.
    pub fn pd(&self) -> Pd {
        self.pd
    }

    /// Returns the number of the doorbell that the queue pair rings with.
    pub fn bell(&self) -> u32 {
        self.bell
    }

    /// Returns the numbers of requests of the send and of the receive queue that were taken and are
    /// not retired.
    pub fn outstanding(&self) -> (u32, u32) {
        (self.sq.outstanding, self.rq.outstanding)
    }

    /// Returns the queues that the queue pair is joined to; only the first call returns them.
    pub fn take_links(&mut self) -> Option<Box<Links>> {
        self.links.take()
    }

    /// Marks the queue pair as running: from here on posts ring at `worker`. Earlier posts have not
    /// rung, so the worker has to look for them.
    pub fn attach(&mut self, worker: usize) {
        self.running = true;
        self.mark(state::RUNNING | (worker as u64) << 8);
    }

    /// Returns true if the send queue holds a request.
    ///
    /// An application posts the receives for the answers to a Send before the Send. So when this
    /// function finds new send requests, it also looks at the end of the receive queue, and
    /// [`owes_recvs`](WorkerQp::owes_recvs) says how long the send requests have to wait.
    ///
    /// # Errors
    /// [`Broken`]: the worker cannot interpret the queue any more. The queue pair has to end.
    #[inline]
    pub fn has_send(&mut self) -> Result<bool, Broken> {
        if self.sq.reader.has_seen() {
            return Ok(true);
        }
        let words = header(&self.block);
        if !self.sq.reader.has_next(|| &words[at::SQ_TAIL])? {
            return Ok(false);
        }
        // This comes after the load of the send queue's tail, which acquires: the tail loaded here
        // includes receives whose tail was stored before that of the sends.
        self.rq.reader.note(&words[at::RQ_TAIL])?;
        Ok(true)
    }

    /// Returns true if the worker has not yet taken all receives that were posted before the send
    /// requests [`has_send`](WorkerQp::has_send) found. The peer may answer a Send with as many
    /// messages as there are receives before it, so the worker takes those receives first.
    #[inline]
    pub fn owes_recvs(&self) -> bool {
        self.sq.reader.has_seen() && self.rq.reader.owes()
    }

    /// Fetches what leads to the queue pair's words.
    #[inline]
    pub fn fetch_block(&self, fetch: impl Fetch) {
        fetch.value::<Block>(&self.block);
    }

    /// Fetches the words of both queues' ends, and the next request of the send queue.
    #[inline]
    pub fn fetch_words(&self, fetch: impl Fetch) {
        let words = header(&self.block);
        for at in [at::SQ_TAIL, at::RQ_TAIL, at::SQ_HEAD] {
            fetch.value(&words[at]);
        }
        self.sq.reader.fetch(self.rings.sq_of(self.block.lines()), fetch);
    }

    /// Returns true unless the worker has taken all requests of both queues.
    pub fn has_posts(&self) -> bool {
        let words = header(&self.block);
        self.rq.reader.is_behind(&words[at::RQ_TAIL])
            || self.sq.reader.is_behind(&words[at::SQ_TAIL])
    }

    /// Takes the next of the requests that [`has_send`](WorkerQp::has_send) has found in the send
    /// queue, if there is one, and hands it to `f`.
    ///
    /// # Errors
    /// As [`has_send`](WorkerQp::has_send).
    #[inline(always)]
    pub fn take_send<R>(
        &mut self,
        entry: &mut Entry,
        f: impl OnSend<R>,
    ) -> Result<Option<R>, Broken> {
        if !self.sq.reader.has_seen() {
            return Ok(None);
        }
        self.sq.count()?;
        let ring = self.rings.sq_of(self.block.lines());
        self.sq.reader.send(ring, entry, f).map(Some)
    }

    /// Takes the next request of the receive queue, if there is one, and calls `f` with it.
    ///
    /// # Errors
    /// As [`has_send`](WorkerQp::has_send).
    #[inline(always)]
    pub fn take_recv<R>(
        &mut self,
        entry: &mut Entry,
        f: impl FnOnce(&RecvWr<'_>) -> R,
    ) -> Result<Option<R>, Broken> {
        if !self.rq.reader.has_next(|| &header(&self.block)[at::RQ_TAIL])? {
            return Ok(None);
        }
        self.rq.count()?;
        let ring = self.rings.rq_of(self.block.lines());
        self.rq.reader.recv(ring, entry, f).map(Some)
    }

    /// Gives the blocks taken so far back to the application. Call this after a run of takes.
    #[inline]
    pub fn give_blocks(&self) {
        self.set(at::SQ_HEAD, self.sq.reader.head());
        self.set(at::RQ_HEAD, self.rq.reader.head());
    }

    /// Shows the application the state of its connection.
    pub fn tell_state(&self, state: heddle_types::ConnectedState) {
        self.set(
            at::PHASE,
            match state {
                heddle_types::ConnectedState::Rts => phase::RTS,
                heddle_types::ConnectedState::Closing => phase::CLOSING,
                heddle_types::ConnectedState::Terminate => phase::TERMINATE,
                heddle_types::ConnectedState::Error => phase::ERROR,
            },
        );
    }

    /// Returns the numbers that retire every request taken so far.
    pub fn taken(&self) -> Retired {
        Retired { sq: low32(self.sq.requests()), rq: low32(self.rq.requests()) }
    }

    /// Publishes how many requests of each queue are retired: running numbers modulo 2^32, as the
    /// protocol's queue pair has them.
    #[inline]
    pub fn retire(&mut self, sq: u32, rq: u32) {
        if self.sq.retire(sq) {
            self.set(at::SQ_RETIRED, self.sq.retired);
        }
        if self.rq.retire(rq) {
            self.set(at::RQ_RETIRED, self.rq.retired);
        }
    }

    /// Ends the queue pair, because its connection is over. Calls `send` and `recv` with the mark
    /// of each request that was posted and not taken, in order: these requests complete as flushed.
    /// The worker takes no request after this. Windows and fast registrations that are for this
    /// queue pair alone end here. Once the completions are written, call
    /// [`close`](WorkerQp::close): posts wait for that.
    pub fn end(&mut self, mut send: impl FnMut(u64, CqeOp), mut recv: impl FnMut(u64)) {
        // From here on `drop` sets the last mark if a panic unwinds the worker, so no post waits
        // for that mark for ever.
        self.running = true;
        self.mark(state::ENDING);
        self.tied.end();
        let mut entry = Entry::default();
        // The depths bound the loops below, even if a malicious application posts faster than they
        // take.
        let what = |wr: &SendWr<'_>| {
            let op = match wr.op {
                SendOp::Send { .. } => CqeOp::Send,
                SendOp::Write { .. } | SendOp::WriteImmediate { .. } => CqeOp::Write,
                SendOp::Read { .. } => CqeOp::Read,
                SendOp::Immediate { .. } => CqeOp::Immediate,
                SendOp::Atomic { op, .. } => op.into(),
                SendOp::FastRegister(_) => CqeOp::FastRegister,
                SendOp::BindWindow(_) => CqeOp::BindWindow,
                SendOp::LocalInvalidate { .. } => CqeOp::LocalInvalidate,
            };
            (wr.wr_id, op)
        };
        while let Ok(true) = self.has_send()
            && let Ok(Some((wr_id, op))) = self.take_send(&mut entry, what)
        {
            send(wr_id, op);
        }
        while let Ok(Some(wr_id)) = self.take_recv(&mut entry, |wr| wr.wr_id) {
            recv(wr_id);
        }
    }

    /// Writes down how many requests were taken; the worker takes no more. A thread that sees the
    /// mark DEAD finds all completions.
    pub fn close(&mut self) {
        self.give_blocks();
        self.set(at::SQ_FINAL, self.sq.requests());
        self.set(at::RQ_FINAL, self.rq.requests());
        self.set(at::SQ_RETIRED, self.sq.requests());
        self.set(at::RQ_RETIRED, self.rq.requests());
        self.mark(state::DEAD);
        self.running = false;
    }

    fn mark(&self, state: u64) {
        header(&self.block)[at::STATE].store(state, Ordering::SeqCst);
        // Pairs with the fence in `Qp::ring_or_end`.
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn set(&self, word: usize, value: u64) {
        header(&self.block)[word].store(value, Ordering::Release);
    }
}

impl Drop for WorkerQp {
    /// Ends a queue pair whose worker is unwound before it has closed the queue pair: otherwise a
    /// post that finds the queue pair ending would wait for ever.
    fn drop(&mut self) {
        if self.running {
            self.tied.end();
            self.close();
        }
    }
}
