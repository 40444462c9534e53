//! Queue pairs: the application's end.
//!
//! # A post, step by step
//!
//! The request is checked against the static rules, written into free blocks and published by the
//! tail; then the doorbell of the worker that runs the queue pair is rung. A request counts as
//! outstanding until the worker has retired it, which is when its completion is there, or would be if
//! it were signaled; beyond the depth posting is refused.
//!
//! # The end
//!
//! When a connection ends its worker marks the queue pair, takes what is posted once more, writes
//! down how many requests it took in all, and marks it dead. A post that finds the mark waits for that
//! number, and knows whether its request was among them: it completes as flushed, or the post is
//! refused. So nothing posted is ever silently lost.

use heddle_base::sync::atomic::{AtomicU64, Ordering, fence};
use heddle_base::sync::{Mutex, MutexGuard, yield_now};
use std::sync::{Arc, PoisonError, Weak};

use heddle_cm::AppId;
use heddle_iwarp::qp::{Limits, MAX_INLINE, MAX_SGES, check_recv, check_send};
use heddle_iwarp::{Data, Pd, PostError, Qpn, RecvWr, SendWr};

use crate::cq::Cq;
use crate::error::{BatchError, DeviceError};
use crate::ring::layout::{BLOCK, LINE, opcode, qp as at, state};
use crate::ring::{
    Area, AreaError, Bells, Block, BlockRing, Encoded, Line, behind, encode_recv, encode_send,
    encode_with_operands, layout, store,
};
use crate::state::QpState;
use crate::window::Tied;

mod batch;
mod claim;
mod init;
mod lost;

pub use batch::{Recvs, Sends};
pub(crate) use claim::Claim;
pub use init::QpInit;

/// The application's handle of a queue pair; clones are handles of the same one. Any thread may post.
///
/// Work requests may be posted from the moment it exists. Receives posted before the connection is
/// established are there when its first message arrives.
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
    tied: Arc<Tied>,
    /// Gives back its number and its bell when the last handle is gone.
    _owner: Option<Owner>,
}

impl Inner {
    /// Checks a request and publishes it; `words` are those of the queue pair's block.
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

    /// A request of the longer kind, which has passed the rules.
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

/// What is told when the last handle of a queue pair is gone.
pub(crate) struct Owner(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Owner {
    pub(crate) fn new(told: impl FnOnce() + Send + Sync + 'static) -> Owner {
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

/// Sizes of the two rings, in blocks; powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rings {
    pub(crate) sq: u64,
    pub(crate) rq: u64,
}

impl Rings {
    fn new(init: &QpInit) -> Rings {
        let data = usize::from(init.max_send_sge) * 2;
        let data = data.max(usize::from(init.max_inline).div_ceil(8));
        // An Atomic Operation and immediate data take the longest head, and a queue holds its depth of whatever
        // is posted.
        let longest = layout::blocks(opcode::WRITE_IMMEDIATE, data) as u64;
        let sq = longest * u64::from(init.sq_depth);
        let rq = layout::blocks(opcode::RECV, usize::from(init.max_recv_sge) * 2) as u64;
        let rq = if init.srq.is_some() { 1 } else { rq * u64::from(init.rq_depth) };
        Rings { sq: sq.next_power_of_two(), rq: rq.next_power_of_two() }
    }

    fn words(self) -> usize {
        at::ENTRIES + words_of(self.sq).saturating_add(words_of(self.rq))
    }

    #[inline]
    pub(crate) fn sq_of(self, lines: &[Line]) -> BlockRing<'_> {
        BlockRing::new(lines, ENTRIES, self.sq)
    }

    #[inline]
    pub(crate) fn rq_of(self, lines: &[Line]) -> BlockRing<'_> {
        BlockRing::new(lines, ENTRIES + self.sq, self.rq)
    }
}

/// The first line of the send queue.
const ENTRIES: u64 = (at::ENTRIES / LINE) as u64;

/// Words of so many blocks.
fn words_of(blocks: u64) -> usize {
    usize::try_from(blocks).unwrap_or(usize::MAX / 4 / BLOCK).saturating_mul(BLOCK)
}

/// The words of a queue pair before its entries.
type Header = [AtomicU64; at::ENTRIES];

/// Those of this queue pair, whose block is no shorter.
#[inline]
pub(crate) fn header(block: &Block) -> &Header {
    header_of(block.words())
}

/// The same, for who has looked up the words. A post does that once: behind each of its fences the
/// compiler would have them looked up again.
#[inline]
fn header_of(words: &[AtomicU64]) -> &Header {
    &words.as_chunks().0[0]
}

/// The application's side of one queue.
#[derive(Debug)]
struct Producer {
    /// Blocks published.
    tail: u64,
    /// Requests published.
    posted: u64,
    /// Blocks free again and requests retired, as they were last seen.
    head: u64,
    retired: u64,
    depth: u64,
    blocks: u64,
    /// What the next request says of the last one, if there was one.
    before: u64,
}

/// Which words of a queue pair are a queue's.
#[derive(Clone, Copy, Debug)]
struct QueueWords {
    tail: usize,
    posted: usize,
    head: usize,
    retired: usize,
    last: usize,
}

const SQ: QueueWords = QueueWords {
    tail: at::SQ_TAIL,
    posted: at::SQ_POSTED,
    head: at::SQ_HEAD,
    retired: at::SQ_RETIRED,
    last: at::SQ_FINAL,
};

const RQ: QueueWords = QueueWords {
    tail: at::RQ_TAIL,
    posted: at::RQ_POSTED,
    head: at::RQ_HEAD,
    retired: at::RQ_RETIRED,
    last: at::RQ_FINAL,
};

impl Producer {
    fn new(words: &[AtomicU64], at: QueueWords, depth: u32, blocks: u64) -> Producer {
        let get = |i: usize| words[i].load(Ordering::Relaxed);
        Producer {
            tail: get(at.tail),
            posted: get(at.posted),
            head: get(at.head),
            retired: get(at.retired),
            depth: depth.into(),
            blocks,
            before: 0,
        }
    }

    /// Whether a request of `n` blocks has room, as far as is known.
    #[inline]
    fn fits(&self, n: u64) -> bool {
        self.posted.wrapping_sub(self.retired) < self.depth
            && self.tail.wrapping_sub(self.head).wrapping_add(n) <= self.blocks
    }

    /// Whether it has, after a look at what the worker has given back.
    #[cold]
    fn has_room(&mut self, header: &Header, at: QueueWords, n: u64) -> bool {
        self.retired = header[at.retired].load(Ordering::Acquire);
        // Acquire: the worker has read the blocks before it gave them back.
        self.head = header[at.head].load(Ordering::Acquire);
        self.fits(n)
    }

    /// Writes a request and publishes it.
    #[inline(always)]
    fn post<const N: usize>(
        &mut self,
        header: &Header,
        at: QueueWords,
        ring: BlockRing<'_>,
        wr: Encoded<N>,
        data: &Data<'_>,
    ) -> Result<(), PostError> {
        let n = wr.blocks;
        if !self.fits(n) && !self.has_room(header, at, n) {
            return Err(if self.depth == 0 { PostError::SharedReceives } else { PostError::Full });
        }
        store(ring, (self.tail, self.before), wr, data);
        self.before = behind(n);
        self.tail = self.tail.wrapping_add(n);
        self.posted = self.posted.wrapping_add(1);
        header[at.posted].store(self.posted, Ordering::Relaxed);
        // Release: the blocks were stored before.
        header[at.tail].store(self.tail, Ordering::Release);
        Ok(())
    }
}

impl Qp {
    pub(crate) fn new(
        area: &Arc<Area>,
        app: AppId,
        (qpn, pd): (Qpn, Pd),
        (bells, bell): (Bells, u32),
        init: QpInit,
        owner: Owner,
    ) -> Result<Qp, AreaError> {
        let rings = Rings::new(&init);
        let block = Arc::new(area.take_clearing(rings.words(), at::ENTRIES)?);
        let words = block.words();
        let set = |i: usize, v: u64| words[i].store(v, Ordering::Relaxed);
        set(at::QPN, qpn.0.into());
        set(at::PD, pd.0.into());
        set(at::DEPTHS, u64::from(init.sq_depth) | u64::from(init.rq_depth) << 32);
        set(at::BLOCKS, rings.sq | rings.rq << 32);
        let (send, recv) = (u64::from(init.max_send_sge), u64::from(init.max_recv_sge));
        set(at::LIMITS, send | recv << 16 | u64::from(init.max_inline) << 32);
        set(at::BELL, bell.into());
        set(at::SHARED, init.srq.is_some().into());
        Ok(Qp::over(block, app, (qpn, pd), (bells, bell), rings, init, Some(owner)))
    }

    fn over(
        block: Arc<Block>,
        app: AppId,
        (qpn, pd): (Qpn, Pd),
        (bells, bell): (Bells, u32),
        rings: Rings,
        init: QpInit,
        owner: Option<Owner>,
    ) -> Qp {
        let limits = |sges: u16| Limits {
            sges: usize::from(sges).min(MAX_SGES),
            inline: usize::from(init.max_inline).min(MAX_INLINE),
            // Not known before the connection is; a Read without ORD completes with its reason.
            ..Limits::default()
        };
        let shared = init.srq.is_some() || header(&block)[at::SHARED].load(Ordering::Relaxed) != 0;
        let sq = Producer::new(block.words(), SQ, init.sq_depth, rings.sq);
        // Nothing is posted to a receive queue that is shared: it is no deeper than that.
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
            tied: Arc::default(),
            _owner: owner,
            block,
        }))
    }

    /// Where it lies in its area: offset and words, for another process.
    pub fn share(&self) -> (usize, usize) {
        (self.0.block.offset(), self.0.block.words().len())
    }

    /// The queue pair at `(offset, words)` of an area that another process has made, with the
    /// application's doorbells and the completion queues it was made with. There is one producer at a
    /// time: whoever made it must not post to it meanwhile.
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
        let rings = Rings { sq: blocks & 0xffff_ffff, rq: blocks >> 32 };
        if !rings.sq.is_power_of_two() || !rings.rq.is_power_of_two() || rings.words() > words {
            return None;
        }
        let ids = (Qpn(low(get(at::QPN)?)), Pd(low(get(at::PD)?)));
        let bell = low(get(at::BELL)?);
        // Of no use to a process that only posts and polls.
        let app = AppId(u64::MAX);
        Some(Qp::over(block, app, ids, (bells, bell), rings, init, None))
    }

    /// The queue pair of a device whose RNIC is another process's, which has made it with `init`;
    /// `None` when it is not such.
    pub(crate) fn remote(
        area: &Arc<Area>,
        app: AppId,
        ids: (Qpn, Pd),
        bells: (Bells, u32),
        (off, words): (usize, usize),
        init: QpInit,
        owner: Owner,
    ) -> Option<Qp> {
        let rings = Rings::new(&init);
        let block = Arc::new(area.at(off, words)?);
        let fits = rings.words() <= words;
        fits.then(|| Qp::over(block, app, ids, bells, rings, init, Some(owner)))
    }

    /// What holds it no longer than others do.
    pub(crate) fn downgrade(&self) -> WeakQp {
        WeakQp(Arc::downgrade(&self.0))
    }

    /// For what follows its connection; gone with it.
    pub(crate) fn weak_claim(&self) -> Weak<Claim> {
        Arc::downgrade(&self.0.claim)
    }

    /// Its number, as completions carry it.
    pub fn qpn(&self) -> Qpn {
        self.0.claim.qpn()
    }

    /// The protection domain whose regions it reaches.
    pub fn pd(&self) -> Pd {
        self.0.pd
    }

    /// The application whose it is.
    pub fn app(&self) -> AppId {
        self.0.app
    }

    /// Depths, limits and completion queues it was made with.
    pub fn init(&self) -> &QpInit {
        &self.0.init
    }

    /// Where it is in its life.
    pub fn qp_state(&self) -> QpState {
        let phase = header(&self.0.block)[at::PHASE].load(Ordering::Acquire);
        QpState::of(self.state(), phase, self.is_claimed())
    }

    /// Whether its connection is over. It cannot have another one until it is
    /// [reset](crate::Device::reset_qp).
    pub fn is_dead(&self) -> bool {
        self.state() & 0xff >= state::ENDING
    }

    /// Whether its connection is over and no worker has it any more: all its completions are there.
    pub fn has_ended(&self) -> bool {
        self.state() & 0xff == state::DEAD
    }

    /// Whether a worker has it, which may be about to end it.
    pub fn is_with_worker(&self) -> bool {
        matches!(self.state() & 0xff, state::RUNNING | state::ENDING)
    }

    /// Posts a work request to the send queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let q = &*self.0;
        let words = q.block.words();
        let mut sq = lock(&q.sq);
        let before = sq.posted;
        let result = q.put_send(words, &mut sq, wr);
        let result = result.map_err(BatchError::at(0));
        self.tell(words, &sq, SQ, before, result).map_err(|e| e.error)
    }

    /// Posts several with one doorbell.
    ///
    /// # Errors
    /// [`BatchError`]: those before the one that could not be posted are posted.
    pub fn post_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        let mut sends = self.sends();
        let mut wrs = wrs.iter().enumerate();
        let result = wrs.try_for_each(|(i, wr)| sends.post(wr).map_err(BatchError::at(i)));
        sends.finish().and(result)
    }

    /// Posts a receive buffer.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let q = &*self.0;
        let words = q.block.words();
        let mut rq = lock(&q.rq);
        let before = rq.posted;
        let result = q.put_recv(words, &mut rq, wr);
        let result = result.map_err(BatchError::at(0));
        self.tell(words, &rq, RQ, before, result).map_err(|e| e.error)
    }

    /// Posts several with one doorbell.
    ///
    /// # Errors
    /// [`BatchError`]: those before the one that could not be posted are posted.
    pub fn post_recvs(&self, wrs: &[RecvWr<'_>]) -> Result<(), BatchError> {
        let mut recvs = self.recvs();
        let mut wrs = wrs.iter().enumerate();
        let result = wrs.try_for_each(|(i, wr)| recvs.post(wr).map_err(BatchError::at(i)));
        recvs.finish().and(result)
    }

    /// Rings once for all that was posted since `before` requests were, which ended with `result`. A
    /// queue that is full is rung as well: the worker then tells what it has retired without a
    /// completion.
    #[inline]
    fn tell(
        &self,
        words: &[AtomicU64],
        queue: &Producer,
        at: QueueWords,
        before: u64,
        result: Result<(), BatchError>,
    ) -> Result<(), BatchError> {
        if queue.posted != before
            || matches!(result, Err(BatchError { error: PostError::Full, .. }))
        {
            self.ring_or_end(words, queue, at, before)?;
        }
        result
    }

    /// Tells the worker, or finds out that there is none any more; `before` requests were posted
    /// earlier.
    #[inline]
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
            // Should it end from here on, it takes what is there after marking itself.
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
        // The worker goes from here to the next state without waiting for anybody.
        while self.state() & 0xff == state::ENDING {
            yield_now();
        }
        let taken = header(&self.0.block)[at.last].load(Ordering::Acquire);
        // What it took completes as flushed.
        let lost = queue.posted.wrapping_sub(taken);
        if lost == 0 || lost > queue.posted.wrapping_sub(before) {
            return if lost == 0 && queue.posted != before {
                Ok(())
            } else {
                Err(BatchError { posted: 0, error: PostError::Ended })
            };
        }
        let posted = queue.posted.wrapping_sub(before) - lost;
        let posted = usize::try_from(posted).unwrap_or(0);
        Err(BatchError { posted, error: PostError::Ended })
    }

    #[inline]
    fn state(&self) -> u64 {
        header(&self.0.block)[at::STATE].load(Ordering::SeqCst)
    }

    /// Whether it lies in this area, which each application has one of.
    pub(crate) fn is_in(&self, area: &Arc<Area>) -> bool {
        Arc::ptr_eq(self.0.block.area(), area)
    }

    /// Takes it for a connection; false when it is in one.
    pub(crate) fn claim(&self) -> bool {
        self.0.claim.take()
    }

    /// The connection did not come about, and no worker has had the queue pair. It stays taken if its
    /// application has asked for its end.
    pub fn unclaim(&self) {
        self.0.claim.give_back();
    }

    /// Its application asks for its end: no connection takes it from here on.
    pub(crate) fn set_failing(&self) {
        self.0.claim.set_failing();
    }

    /// The end was refused, and nothing has changed. `claimed`: it was in a connection before.
    pub(crate) fn unset_failing(&self, claimed: bool) {
        self.0.claim.unset_failing(claimed);
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.0.claim.is_taken()
    }

    /// Returns true if no worker has had it and none has been ordered to flush it before: the caller
    /// orders that.
    pub fn begin_flush(&self) -> bool {
        self.state() == state::IDLE && self.0.claim.begin_flush()
    }

    /// Its connection is over, and nothing refers to it any more.
    pub fn set_over(&self) {
        self.0.claim.set_over();
    }

    /// Empties it, as if it had just been made: `forget` is called when that is allowed, and may
    /// refuse. Nobody posts meanwhile.
    pub(crate) fn reset(
        &self,
        forget: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let q = &*self.0;
        let (mut sq, mut rq) = (lock(&q.sq), lock(&q.rq));
        let state = self.qp_state();
        // A connection that never came about has left it as it was.
        let over = q.claim.is_over() || self.is_flushed();
        // No worker has had one whose connection carried no data: nothing says of it that it has ended.
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
            (queue.tail, queue.posted, queue.head, queue.retired, queue.before) = (0, 0, 0, 0, 0);
        }
        // Before its next connection: its worker may have left word of the end of the last one.
        q.tied.restart();
        q.claim.clear();
        Ok(())
    }

    /// Returns true if it has ended as its application asked, and no worker has it any more.
    fn is_flushed(&self) -> bool {
        self.0.claim.is_failing() && self.state() & 0xff == state::DEAD
    }

    /// STags that end with it.
    pub(crate) fn tied(&self) -> &Arc<Tied> {
        &self.0.tied
    }

    /// Block and rings, for the worker.
    pub(crate) fn rings(&self) -> (Arc<Block>, Rings, u32) {
        (self.0.block.clone(), self.0.rings, self.0.bell)
    }
}

/// See [`Qp::downgrade`].
#[derive(Clone, Debug)]
pub(crate) struct WeakQp(Weak<Inner>);

impl WeakQp {
    /// The caller may be the last to hold the queue pair, and destroys it then: it must have no lock that this takes.
    pub(crate) fn upgrade(&self) -> Option<Qp> {
        self.0.upgrade().map(Qp)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// No worker runs it any more, and none has said so: see [`Qp::lose`]. The caller may destroy it, as with
    /// [`upgrade`](WeakQp::upgrade).
    pub(crate) fn lose(&self) {
        if let Some(q) = self.upgrade() {
            q.lose();
        }
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
