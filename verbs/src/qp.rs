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

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_cm::AppId;
use heddle_iwarp::qp::{Limits, MAX_INLINE, MAX_SGES, check_recv, check_send};
use heddle_iwarp::{Pd, PostError, Qpn, RecvWr, SendWr};

use crate::cq::Cq;
use crate::ring::layout::{BLOCK, opcode, qp as at, state};
use crate::ring::{
    Area, AreaError, Bells, Block, BlockRing, encode_recv, encode_send, layout, recv_blocks,
    send_blocks,
};
use crate::window::Tied;

/// What a queue pair is made with.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Where completions of the send queue go.
    pub send_cq: Cq,
    /// Where completions of the receive queue go.
    pub recv_cq: Cq,
    /// Work requests the send queue holds.
    pub sq_depth: u32,
    /// Work requests the receive queue holds.
    pub rq_depth: u32,
    /// Most SGEs of a send request, at most [`MAX_SGES`].
    pub max_send_sge: u16,
    /// Most SGEs of a receive request, at most [`MAX_SGES`].
    pub max_recv_sge: u16,
    /// Most inline octets of a send request, at most [`MAX_INLINE`].
    pub max_inline: u16,
}

impl QpInit {
    /// One completion queue for both, 128 requests each way, 4 SGEs, 64 inline octets.
    pub fn new(cq: Cq) -> QpInit {
        QpInit {
            send_cq: cq.clone(),
            recv_cq: cq,
            sq_depth: 128,
            rq_depth: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
        }
    }

    /// The same with these depths.
    #[must_use]
    pub fn depths(mut self, sq: u32, rq: u32) -> QpInit {
        (self.sq_depth, self.rq_depth) = (sq, rq);
        self
    }
}

/// The application's handle of a queue pair; clones are handles of the same one. Any thread may post.
///
/// Work requests may be posted from the moment it exists. Receives posted before the connection is
/// established are there when its first message arrives.
#[derive(Clone, Debug)]
pub struct Qp(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    qpn: Qpn,
    pd: Pd,
    block: Arc<Block>,
    bells: Bells,
    bell: u32,
    app: AppId,
    sq: Mutex<Producer>,
    rq: Mutex<Producer>,
    rings: Rings,
    limits: [Limits; 2],
    /// In a connection, or about to be.
    claimed: AtomicBool,
    init: QpInit,
    tied: Arc<Tied>,
    /// Gives back its number and its bell when the last handle is gone.
    _owner: Option<Owner>,
}

/// What is told when the last handle of a queue pair is gone.
pub(crate) struct Owner(pub(crate) Option<Box<dyn FnOnce() + Send + Sync>>);

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
        let sq = layout::blocks(opcode::WRITE, data) as u64 * u64::from(init.sq_depth);
        let rq = layout::blocks(opcode::RECV, usize::from(init.max_recv_sge) * 2) as u64;
        let rq = rq * u64::from(init.rq_depth);
        Rings { sq: sq.next_power_of_two(), rq: rq.next_power_of_two() }
    }

    fn words(self) -> usize {
        at::ENTRIES + self.len(self.sq) + self.len(self.rq)
    }

    fn len(self, blocks: u64) -> usize {
        usize::try_from(blocks).unwrap_or(usize::MAX / 4 / BLOCK).saturating_mul(BLOCK)
    }

    #[inline]
    pub(crate) fn sq_of(self, words: &[AtomicU64]) -> BlockRing<'_> {
        BlockRing::new(words.get(at::ENTRIES..at::ENTRIES + self.len(self.sq)).unwrap_or(&[]))
    }

    #[inline]
    pub(crate) fn rq_of(self, words: &[AtomicU64]) -> BlockRing<'_> {
        let from = at::ENTRIES + self.len(self.sq);
        BlockRing::new(words.get(from..from + self.len(self.rq)).unwrap_or(&[]))
    }
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
    /// Which words of the queue pair are this queue's.
    at: QueueWords,
}

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
            at,
        }
    }

    /// Whether a request of `n` blocks has room.
    #[inline]
    fn has_room(&mut self, words: &[AtomicU64], n: u64) -> bool {
        if self.posted.wrapping_sub(self.retired) >= self.depth {
            self.retired = words[self.at.retired].load(Ordering::Acquire);
        }
        if self.tail.wrapping_sub(self.head) + n > self.blocks {
            // Acquire: the worker has read the blocks before it gave them back.
            self.head = words[self.at.head].load(Ordering::Acquire);
        }
        self.posted.wrapping_sub(self.retired) < self.depth
            && self.tail.wrapping_sub(self.head) + n <= self.blocks
    }

    #[inline]
    fn publish(&mut self, words: &[AtomicU64], n: u64) {
        self.tail = self.tail.wrapping_add(n);
        self.posted = self.posted.wrapping_add(1);
        words[self.at.posted].store(self.posted, Ordering::Relaxed);
        // Release: the blocks were stored before.
        words[self.at.tail].store(self.tail, Ordering::Release);
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
        let block = Arc::new(area.take(rings.words())?);
        let words = block.words();
        let set = |i: usize, v: u64| words[i].store(v, Ordering::Relaxed);
        set(at::QPN, qpn.0.into());
        set(at::PD, pd.0.into());
        set(at::DEPTHS, u64::from(init.sq_depth) | u64::from(init.rq_depth) << 32);
        set(at::BLOCKS, rings.sq | rings.rq << 32);
        let (send, recv) = (u64::from(init.max_send_sge), u64::from(init.max_recv_sge));
        set(at::LIMITS, send | recv << 16 | u64::from(init.max_inline) << 32);
        set(at::BELL, bell.into());
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
        let sq = Producer::new(block.words(), SQ, init.sq_depth, rings.sq);
        let rq = Producer::new(block.words(), RQ, init.rq_depth, rings.rq);
        Qp(Arc::new(Inner {
            qpn,
            pd,
            bells,
            bell,
            app,
            sq: Mutex::new(sq),
            rq: Mutex::new(rq),
            rings,
            limits: [limits(init.max_send_sge), limits(init.max_recv_sge)],
            claimed: AtomicBool::new(false),
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

    /// Its number, as completions carry it.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
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

    /// Whether its connection is over. It cannot have another one.
    pub fn is_dead(&self) -> bool {
        self.state() & 0xff >= state::ENDING
    }

    /// Posts a work request to the send queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_sends(core::slice::from_ref(wr)).map_err(|(_, e)| e)
    }

    /// Posts several with one doorbell.
    ///
    /// # Errors
    /// The index of the first that was not posted, and why. Those before it are posted.
    pub fn post_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        let q = &*self.0;
        let words = q.block.words();
        let ring = q.rings.sq_of(words);
        let mut sq = lock(&q.sq);
        let post = |sq: &mut Producer, wr: &SendWr<'_>| {
            check_send(wr, &q.limits[0])?;
            let n = send_blocks(wr);
            if !sq.has_room(words, n) {
                return Err(PostError::Full);
            }
            encode_send(ring, sq.tail, wr);
            sq.publish(words, n);
            Ok(())
        };
        self.post_all(&mut sq, wrs, post)
    }

    /// Posts a receive buffer.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_recvs(core::slice::from_ref(wr)).map_err(|(_, e)| e)
    }

    /// Posts several with one doorbell.
    ///
    /// # Errors
    /// The index of the first that was not posted, and why. Those before it are posted.
    pub fn post_recvs(&self, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
        let q = &*self.0;
        let words = q.block.words();
        let ring = q.rings.rq_of(words);
        let mut rq = lock(&q.rq);
        let post = |rq: &mut Producer, wr: &RecvWr<'_>| {
            check_recv(wr, &q.limits[1])?;
            let n = recv_blocks(wr);
            if !rq.has_room(words, n) {
                return Err(PostError::Full);
            }
            encode_recv(ring, rq.tail, wr);
            rq.publish(words, n);
            Ok(())
        };
        self.post_all(&mut rq, wrs, post)
    }

    /// Posts `wrs` and rings once. A queue that is full is rung as well: the worker then tells what
    /// it has retired without a completion.
    #[inline]
    fn post_all<W>(
        &self,
        queue: &mut Producer,
        wrs: &[W],
        mut post: impl FnMut(&mut Producer, &W) -> Result<(), PostError>,
    ) -> Result<(), (usize, PostError)> {
        let before = queue.posted;
        let mut result = Ok(());
        for (i, wr) in wrs.iter().enumerate() {
            if let Err(e) = post(queue, wr) {
                result = Err((i, e));
                break;
            }
        }
        if queue.posted != before || matches!(result, Err((_, PostError::Full))) {
            self.ring_or_end(queue, before)?;
        }
        result
    }

    /// Tells the worker, or finds out that there is none any more; `before` requests were posted
    /// earlier.
    #[inline]
    fn ring_or_end(&self, queue: &Producer, before: u64) -> Result<(), (usize, PostError)> {
        let q = &*self.0;
        // Pairs with the fences in `WorkerQp`: either the worker sees the tail, or we see its mark.
        fence(Ordering::SeqCst);
        let seen = self.state();
        match seen & 0xff {
            state::IDLE => Ok(()),
            state::RUNNING => {
                q.bells.ring(usize::try_from(seen >> 8).unwrap_or(usize::MAX), q.bell);
                // Should it have ended meanwhile, it took what is there after marking itself.
                match self.state() & 0xff {
                    state::RUNNING => Ok(()),
                    _ => self.after_the_end(queue, before),
                }
            }
            _ => self.after_the_end(queue, before),
        }
    }

    #[cold]
    fn after_the_end(&self, queue: &Producer, before: u64) -> Result<(), (usize, PostError)> {
        // The worker goes from here to the next state without waiting for anybody.
        while self.state() & 0xff == state::ENDING {
            std::thread::yield_now();
        }
        let taken = self.0.block.words()[queue.at.last].load(Ordering::Acquire);
        // What it took completes as flushed.
        let lost = queue.posted.wrapping_sub(taken);
        if lost == 0 || lost > queue.posted.wrapping_sub(before) {
            return if lost == 0 && queue.posted != before {
                Ok(())
            } else {
                Err((0, PostError::Ended))
            };
        }
        let posted = queue.posted.wrapping_sub(before) - lost;
        Err((usize::try_from(posted).unwrap_or(0), PostError::Ended))
    }

    #[inline]
    fn state(&self) -> u64 {
        self.0.block.words()[at::STATE].load(Ordering::SeqCst)
    }

    /// Takes it for a connection; false when it is in one.
    pub(crate) fn claim(&self) -> bool {
        !self.0.claimed.swap(true, Ordering::AcqRel)
    }

    /// The connection did not come about, and no worker has had the queue pair.
    pub fn unclaim(&self) {
        self.0.claimed.store(false, Ordering::Release);
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

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
