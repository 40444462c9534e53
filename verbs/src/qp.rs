//! Queue pairs: the application's end.
//!
//! # A post, step by step
//!
//! A post checks the request against the static rules, writes it into free blocks and publishes it
//! by the tail; then it rings the doorbell of the worker that runs the queue pair. A request counts
//! as outstanding until the worker has retired it. The worker retires a request when the
//! application can poll its completion, or could if the request were signaled. When the outstanding
//! requests reach the depth, the queue pair refuses posts.
//!
//! # The end
//!
//! When a connection ends, its worker marks the queue pair, takes the posted requests once more,
//! writes down how many requests it took in all, and marks the queue pair dead. A post that finds
//! the mark waits for that number, and so knows whether the worker took its request: such a request
//! completes as flushed, and the queue pair refuses any other. So no posted request is ever
//! silently lost.

use heddle_base::sync::atomic::{AtomicU64, Ordering, fence};
use heddle_base::sync::{Mutex, MutexGuard, yield_now};
use heddle_rings::layout::{LINE, qp as at, state};
use heddle_rings::qp::{Producer, QueueWords, RQ, Rings, SQ, TiedStags, header, header_of};
use heddle_rings::srq::Taker;
use heddle_rings::worker::{Links, QpEnds};
use heddle_rings::{Area, AreaError, Bells, Block, encode_recv, encode_send, encode_with_operands};
use heddle_types::{
    AppId, Data, Limits, Pd, PostError, Qpn, RecvWr, SendWr, check_recv, check_send,
    wr::{MAX_INLINE, MAX_SGES},
};
use std::sync::{Arc, PoisonError, Weak};

use crate::cq::Cq;
use crate::error::{BatchError, DeviceError};
use crate::state::QpState;

mod batch;
mod claim;
mod init;
mod lost;

pub use batch::{Recvs, Sends};
pub(crate) use claim::Claim;
pub use init::QpInit;

/// The application's handle of a queue pair; clones are handles of the same one. Any thread may
/// post.
///
/// An application may post work requests as soon as the queue pair exists. Receives posted before
/// the connection is established are available to its first message.
#[derive(Clone, Debug)]
pub struct Qp(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pd: Pd,
    block: Arc<Block>,
    bells: Bells,
    bell: u32,
    app: AppId,
    sq: Mutex<Producer>,
    rq: Mutex<Producer>,
    rings: Rings,
    limits: [Limits; 2],
    claim: Arc<Claim>,
    init: QpInit,
    tied: Arc<dyn TiedStags>,
    /// Frees the queue pair's number and bell when the last handle is dropped.
    _owner: Option<Owner>,
}

impl Inner {
    /// Checks a request and publishes it; `words` are the words of the queue pair's block.
    #[inline(always)]
    fn put_send(
        &self,
        words: &[AtomicU64],
        sq: &mut Producer,
        wr: &SendWr<'_>,
    ) -> Result<(), PostError> {
        check_send(wr, &self.limits[0])?;
        let Some(entry) = encode_send(wr) else { return self.put_with_operands(words, sq, wr) };
        let ring = self.rings.sq_of(words.as_chunks().0);
        sq.post(header_of(words), SQ, ring, entry, &wr.data)
    }

    /// Publishes a request of the longer kind, which the caller has checked.
    #[inline(never)]
    fn put_with_operands(
        &self,
        words: &[AtomicU64],
        sq: &mut Producer,
        wr: &SendWr<'_>,
    ) -> Result<(), PostError> {
        let ring = self.rings.sq_of(words.as_chunks().0);
        sq.post(header_of(words), SQ, ring, encode_with_operands(wr), &wr.data)
    }

    /// As [`put_send`](Inner::put_send), for the receive queue.
    #[inline(always)]
    fn put_recv(
        &self,
        words: &[AtomicU64],
        rq: &mut Producer,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostError> {
        check_recv(wr, &self.limits[1])?;
        let ring = self.rings.rq_of(words.as_chunks().0);
        rq.post(header_of(words), RQ, ring, encode_recv(wr), &Data::Sges(wr.sges))
    }
}

/// A function to call when the last handle of a queue pair is dropped.
pub struct Owner(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Owner {
    /// Returns an owner that calls `told` once.
    pub fn new(told: impl FnOnce() + Send + Sync + 'static) -> Owner {
        Owner(Some(Box::new(told)))
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Owner")
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

/// The parts that a queue pair has of its RNIC and of its application.
#[derive(Debug)]
pub struct QpParts {
    /// The application.
    pub app: AppId,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Its protection domain.
    pub pd: Pd,
    /// Doorbells of the application.
    pub bells: Bells,
    /// The doorbell of this queue pair, of `bells`.
    pub bell: u32,
    /// STags that end with the queue pair.
    pub tied: Arc<dyn TiedStags>,
}

impl Qp {
    /// Makes a queue pair in an area of this process; `owner` learns of its end.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn new(
        area: &Arc<Area>,
        parts: QpParts,
        init: QpInit,
        owner: Owner,
    ) -> Result<Qp, AreaError> {
        let rings = Rings::new(&init.sizes());
        let block = Arc::new(area.take_clearing(rings.words(), at::ENTRIES)?);
        let words = block.words();
        let set = |i: usize, v: u64| words[i].store(v, Ordering::Relaxed);
        set(at::QPN, parts.qpn.0.into());
        set(at::PD, parts.pd.0.into());
        set(at::DEPTHS, u64::from(init.sq_depth) | u64::from(init.rq_depth) << 32);
        set(at::BLOCKS, u64::from(rings.sq) | u64::from(rings.rq) << 32);
        let (send, recv) = (u64::from(init.max_send_sge), u64::from(init.max_recv_sge));
        set(at::LIMITS, send | recv << 16 | u64::from(init.max_inline) << 32);
        set(at::BELL, parts.bell.into());
        set(at::SHARED, init.srq.is_some().into());
        Ok(Qp::over(block, parts, rings, init, Some(owner)))
    }

    fn over(
        block: Arc<Block>,
        parts: QpParts,
        rings: Rings,
        init: QpInit,
        owner: Option<Owner>,
    ) -> Qp {
        let QpParts { app, qpn, pd, bells, bell, tied } = parts;
        let limits = |sges: u16| Limits {
            sges: usize::from(sges).min(MAX_SGES),
            inline: usize::from(init.max_inline).min(MAX_INLINE),
            // ORD is not known before the connection is; without an ORD a Read completes with an
            // error that says so.
            ..Limits::default()
        };
        let shared = init.srq.is_some() || header(&block)[at::SHARED].load(Ordering::Relaxed) != 0;
        let sq = Producer::new(block.words(), SQ, init.sq_depth, rings.sq);
        // No request may be posted to the receive queue when receives are shared, so its depth is
        // 0.
        let rq_depth = if shared { 0 } else { init.rq_depth };
        let rq = Producer::new(block.words(), RQ, rq_depth, rings.rq);
        Qp(Arc::new(Inner {
            pd,
            bells,
            bell,
            app,
            sq: Mutex::new(sq),
            rq: Mutex::new(rq),
            rings,
            limits: [limits(init.max_send_sge), limits(init.max_recv_sge)],
            claim: Arc::new(Claim::new(qpn)),
            init,
            tied,
            _owner: owner,
            block,
        }))
    }

    /// Returns the queue pair's place in its area, as offset and words, for another process.
    pub fn share(&self) -> (usize, usize) {
        (self.0.block.offset(), self.0.block.words().len())
    }

    /// Returns the queue pair at `(offset, words)` of an area that another process has made, with
    /// the application's doorbells and the completion queues of the queue pair. A queue pair has
    /// one producer at a time: the process that made the queue pair must not post to it meanwhile.
    pub fn attach(
        area: &Arc<Area>,
        (off, words): (usize, usize),
        bells: Bells,
        send_cq: Cq,
        recv_cq: Cq,
    ) -> Option<Qp> {
        let block = Arc::new(area.at(off, words)?);
        let get = |i: usize| block.words().get(i).map(|w| w.load(Ordering::Relaxed));
        let low = |v: u64| u32::try_from(v & 0xffff_ffff).unwrap_or(0);
        let short = |v: u64| u16::try_from(v & 0xffff).unwrap_or(0);
        let (depths, blocks, limits) = (get(at::DEPTHS)?, get(at::BLOCKS)?, get(at::LIMITS)?);
        let init = QpInit {
            send_cq,
            recv_cq,
            srq: None,
            sq_depth: low(depths),
            rq_depth: low(depths >> 32),
            max_send_sge: short(limits),
            max_recv_sge: short(limits >> 16),
            max_inline: short(limits >> 32),
        };
        let rings = Rings { sq: low(blocks), rq: low(blocks >> 32) };
        if !rings.sq.is_power_of_two() || !rings.rq.is_power_of_two() || rings.words() > words {
            return None;
        }
        let parts = QpParts {
            // A process that only posts and polls needs no application number.
            app: AppId(u64::MAX),
            qpn: Qpn(low(get(at::QPN)?)),
            pd: Pd(low(get(at::PD)?)),
            bells,
            bell: low(get(at::BELL)?),
            tied: Arc::new(()),
        };
        Some(Qp::over(block, parts, rings, init, None))
    }

    /// Returns the queue pair of a device whose RNIC belongs to another process, which has made the
    /// queue pair with `init`. Returns `None` when the block does not fit `init`.
    pub(crate) fn remote(
        area: &Arc<Area>,
        parts: QpParts,
        (off, words): (usize, usize),
        init: QpInit,
        owner: Owner,
    ) -> Option<Qp> {
        let rings = Rings::new(&init.sizes());
        let block = Arc::new(area.at(off, words)?);
        let fits = rings.words() <= words;
        fits.then(|| Qp::over(block, parts, rings, init, Some(owner)))
    }

    /// Returns a handle that does not keep the queue pair alive.
    pub(crate) fn downgrade(&self) -> WeakQp {
        WeakQp(Arc::downgrade(&self.0))
    }

    /// Returns the claim to a follower of the connection. The follower loses the claim when the
    /// queue pair is destroyed.
    pub(crate) fn weak_claim(&self) -> Weak<Claim> {
        Arc::downgrade(&self.0.claim)
    }

    /// Returns the number of the queue pair, as completions carry it.
    pub fn qpn(&self) -> Qpn {
        self.0.claim.qpn()
    }

    /// Returns the protection domain whose regions the queue pair reaches.
    pub fn pd(&self) -> Pd {
        self.0.pd
    }

    /// Returns the application that owns the queue pair.
    pub fn app(&self) -> AppId {
        self.0.app
    }

    /// Returns the depths, limits and completion queues that the queue pair was made with.
    pub fn init(&self) -> &QpInit {
        &self.0.init
    }

    /// Returns the current state of the queue pair.
    pub fn qp_state(&self) -> QpState {
        let phase = header(&self.0.block)[at::PHASE].load(Ordering::Acquire);
        QpState::of(self.state(), phase, self.is_claimed())
    }

    /// Returns true if the queue pair's connection is over. The queue pair cannot have another
    /// connection until it is [reset](crate::Device::reset_qp).
    pub fn is_dead(&self) -> bool {
        self.state() & 0xff >= state::ENDING
    }

    /// Returns true if the queue pair's connection is over and no worker has the queue pair any
    /// more: all its completions are in the completion queues.
    pub fn has_ended(&self) -> bool {
        self.state() & 0xff == state::DEAD
    }

    /// Returns true if a worker has the queue pair; the worker may be about to end it.
    pub fn is_with_worker(&self) -> bool {
        matches!(self.state() & 0xff, state::RUNNING | state::ENDING)
    }

    /// Posts a work request to the send queue.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted then.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let q = &*self.0;
        let words = q.block.words();
        let mut sq = lock(&q.sq);
        let before = sq.posted();
        let result = q.put_send(words, &mut sq, wr);
        let result = result.map_err(BatchError::at(0));
        self.tell(words, &sq, SQ, before, result).map_err(|e| e.error)
    }

    /// Posts several send requests with one doorbell.
    ///
    /// # Errors
    /// [`BatchError`]: the requests before the failed one are posted.
    pub fn post_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        let mut sends = self.sends();
        let mut wrs = wrs.iter().enumerate();
        let result = wrs.try_for_each(|(i, wr)| sends.post(wr).map_err(BatchError::at(i)));
        sends.finish().and(result)
    }

    /// Posts a receive buffer.
    ///
    /// # Errors
    /// [`PostError`]; the buffer was not posted then.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let q = &*self.0;
        let words = q.block.words();
        let mut rq = lock(&q.rq);
        let before = rq.posted();
        let result = q.put_recv(words, &mut rq, wr);
        let result = result.map_err(BatchError::at(0));
        self.tell(words, &rq, RQ, before, result).map_err(|e| e.error)
    }

    /// Posts several receive buffers with one doorbell.
    ///
    /// # Errors
    /// [`BatchError`]: the buffers before the failed one are posted.
    pub fn post_recvs(&self, wrs: &[RecvWr<'_>]) -> Result<(), BatchError> {
        let mut recvs = self.recvs();
        let mut wrs = wrs.iter().enumerate();
        let result = wrs.try_for_each(|(i, wr)| recvs.post(wr).map_err(BatchError::at(i)));
        recvs.finish().and(result)
    }

    /// Rings once for all requests that were posted after the first `before`; `result` is the
    /// result of the last post. A full queue is rung as well: the worker then publishes how many
    /// requests it has retired without a completion.
    #[inline]
    fn tell(
        &self,
        words: &[AtomicU64],
        queue: &Producer,
        at: QueueWords,
        before: u64,
        result: Result<(), BatchError>,
    ) -> Result<(), BatchError> {
        if queue.posted() != before
            || matches!(result, Err(BatchError { error: PostError::Full, .. }))
        {
            self.ring_or_end(words, queue, at, before)?;
        }
        result
    }

    /// Rings the worker, or finds out that no worker has the queue pair any more; `before` requests
    /// were posted earlier.
    #[inline(always)]
    fn ring_or_end(
        &self,
        words: &[AtomicU64],
        queue: &Producer,
        at: QueueWords,
        before: u64,
    ) -> Result<(), BatchError> {
        let q = &*self.0;
        // Pairs with the fences in `WorkerQp`: either the worker sees the tail, or we see its mark.
        fence(Ordering::SeqCst);
        let seen = header_of(words)[at::STATE].load(Ordering::Acquire);
        match seen & 0xff {
            // A worker that ends the queue pair after this load marks it first and then takes our
            // posts.
            state::RUNNING => {
                q.bells.ring(usize::try_from(seen >> 8).unwrap_or(usize::MAX), q.bell);
                Ok(())
            }
            state::IDLE => Ok(()),
            _ => self.after_the_end(queue, at, before),
        }
    }

    #[cold]
    fn after_the_end(
        &self,
        queue: &Producer,
        at: QueueWords,
        before: u64,
    ) -> Result<(), BatchError> {
        // The worker goes from ENDING to DEAD without waiting for any thread, so this loop is
        // short.
        while self.state() & 0xff == state::ENDING {
            yield_now();
        }
        let taken = header(&self.0.block)[at.last].load(Ordering::Acquire);
        // The requests that the worker took complete as flushed.
        let lost = queue.posted().wrapping_sub(taken);
        if lost == 0 || lost > queue.posted().wrapping_sub(before) {
            return if lost == 0 && queue.posted() != before {
                Ok(())
            } else {
                Err(BatchError { posted: 0, error: PostError::Ended })
            };
        }
        let posted = queue.posted().wrapping_sub(before) - lost;
        let posted = usize::try_from(posted).unwrap_or(0);
        Err(BatchError { posted, error: PostError::Ended })
    }

    #[inline]
    fn state(&self) -> u64 {
        header(&self.0.block)[at::STATE].load(Ordering::SeqCst)
    }

    /// Returns true if the queue pair lies in this area; each application has one area.
    pub(crate) fn is_in(&self, area: &Arc<Area>) -> bool {
        Arc::ptr_eq(self.0.block.area(), area)
    }

    /// Claims the queue pair for a connection. Returns false when a connection has it already.
    pub(crate) fn claim(&self) -> bool {
        self.0.claim.take()
    }

    /// Gives the claim back: the connection did not come about, and no worker has had the queue
    /// pair. The queue pair stays claimed if its application has asked for its end.
    pub fn unclaim(&self) {
        self.0.claim.give_back();
    }

    /// Notes that the application asks for the queue pair's end: no connection takes it from here
    /// on.
    pub(crate) fn set_failing(&self) {
        self.0.claim.set_failing();
    }

    /// Undoes [`set_failing`](Qp::set_failing): the end was refused, and nothing has changed.
    /// `claimed`: a connection had the queue pair before.
    pub(crate) fn unset_failing(&self, claimed: bool) {
        self.0.claim.unset_failing(claimed);
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.0.claim.is_taken()
    }

    /// Returns true if no worker has had the queue pair and no caller has ordered a worker to flush
    /// it before: the caller then orders the flush.
    pub fn begin_flush(&self) -> bool {
        self.state() == state::IDLE && self.0.claim.begin_flush()
    }

    /// Notes that the connection is over and nothing refers to the queue pair any more.
    pub fn set_over(&self) {
        self.0.claim.set_over();
    }

    /// Empties the queue pair, as if it had just been made. The function calls `forget` once the
    /// reset is allowed, and `forget` may refuse. No thread posts meanwhile.
    pub(crate) fn reset(
        &self,
        forget: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let q = &*self.0;
        let (mut sq, mut rq) = (lock(&q.sq), lock(&q.rq));
        let state = self.qp_state();
        // A connection that never came about has left the state word unchanged.
        let over = q.claim.is_over() || self.is_flushed();
        // A queue pair whose connection carried no data never had a worker, so no state word says
        // that it has ended.
        let ended = over && matches!(state, QpState::Error | QpState::Connecting);
        if !ended && (!state.can_reset() || state == QpState::Error) {
            return Err(DeviceError::QpState(state));
        }
        if !q.claim.take() && !over {
            return Err(DeviceError::QpInUse);
        }
        forget().inspect_err(|_| q.claim.restore(over))?;
        let header = header(&q.block);
        for word in &header[LINE..at::ENTRIES] {
            word.store(0, Ordering::SeqCst);
        }
        for queue in [&mut sq, &mut rq] {
            queue.restart();
        }
        // Clear this before the next connection: the worker may have noted the end of the last
        // connection here.
        q.tied.restart();
        q.claim.clear();
        Ok(())
    }

    /// Returns true if the queue pair has ended at its application's request and no worker has it
    /// any more.
    fn is_flushed(&self) -> bool {
        self.0.claim.is_failing() && self.state() & 0xff == state::DEAD
    }

    /// Returns the number of the doorbell that the queue pair rings.
    pub fn bell(&self) -> u32 {
        self.0.bell
    }

    /// Returns the queue pair for the worker that is to run it.
    pub fn ends(&self) -> QpEnds {
        let q = &*self.0;
        let links = Links {
            send_cq: q.init.send_cq.link(),
            recv_cq: q.init.recv_cq.link(),
            srq: q.init.srq.as_ref().map(|srq| Box::new(Taker(srq.pool())) as _),
        };
        QpEnds {
            qpn: q.claim.qpn(),
            pd: q.pd,
            block: q.block.clone(),
            rings: q.rings,
            bell: q.bell,
            depths: (q.init.sq_depth, q.init.rq_depth),
            tied: q.tied.clone(),
            links,
        }
    }
}

/// Queue pairs for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Returns parts of queue pair 5 of application 1, in protection domain 1.
    pub(crate) fn parts(bells: Bells, bell: u32) -> QpParts {
        let tied = Arc::new(());
        QpParts { app: AppId(1), qpn: Qpn(5), pd: Pd(1), bells, bell, tied }
    }
}

/// See [`Qp::downgrade`].
#[derive(Clone, Debug)]
pub(crate) struct WeakQp(Weak<Inner>);

impl WeakQp {
    /// Returns a handle, if the queue pair still exists. The caller may come to hold the last
    /// handle, and then destroys the queue pair by dropping it: the caller must hold no lock that
    /// this takes.
    pub(crate) fn upgrade(&self) -> Option<Qp> {
        self.0.upgrade().map(Qp)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Ends a queue pair that no worker runs any more although none has said so: see [`Qp::lose`].
    /// The caller may destroy the queue pair, as with [`upgrade`](WeakQp::upgrade).
    pub(crate) fn lose(&self) {
        if let Some(q) = self.upgrade() {
            q.lose();
        }
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
