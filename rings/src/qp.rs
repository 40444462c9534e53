//! The block of a queue pair: its header, its two rings, and the end that posts to a ring.

use std::fmt::Debug;

use heddle_base::sync::atomic::{AtomicU64, Ordering};
use heddle_types::{Data, PostError};

use crate::area::{Block, Line};
use crate::layout::{self, BLOCK, LINE, opcode, qp as at};
use crate::wqe::{BlockRing, Encoded, behind, look_back, store};

/// STags that end with a queue pair.
pub trait TiedStags: Send + Sync + Debug {
    /// Ends the STags: they name no memory any more. The worker calls this, and must not wait.
    fn end(&self);

    /// Prepares for another connection of the queue pair: revokes the STags still due before any is
    /// bound again.
    fn restart(&self);
}

/// No STags.
impl TiedStags for () {
    fn end(&self) {}

    fn restart(&self) {}
}

/// Numbers from which the sizes of the two rings follow.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Requests that the send queue holds.
    pub sq_depth: u32,
    /// Receives that the receive queue holds; `None` for a queue pair that takes its receives from
    /// a shared queue.
    pub rq_depth: Option<u32>,
    /// Most SGEs of a send request.
    pub max_send_sge: u16,
    /// Most SGEs of a receive.
    pub max_recv_sge: u16,
    /// Most inline bytes of a send request.
    pub max_inline: u16,
}

/// Sizes of the two rings, in blocks; powers of two.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    /// Blocks of the send queue.
    pub sq: u32,
    /// Blocks of the receive queue.
    pub rq: u32,
}

impl Rings {
    /// Returns rings that hold as many requests, of whatever kind.
    pub fn new(of: &Sizes) -> Rings {
        let data = usize::from(of.max_send_sge) * 2;
        let data = data.max(usize::from(of.max_inline).div_ceil(8));
        // An Atomic Operation and immediate data have the longest head, and a queue has to hold its
        // depth of any kind of request.
        let longest = layout::blocks(opcode::WRITE_IMMEDIATE, data) as u64;
        let sq = longest * u64::from(of.sq_depth);
        let recv = layout::blocks(opcode::RECV, usize::from(of.max_recv_sge) * 2) as u64;
        let rq = of.rq_depth.map_or(1, |depth| recv * u64::from(depth));
        // No area has room for rings that this cuts.
        let rounded =
            |blocks: u64| u32::try_from(blocks.next_power_of_two()).unwrap_or(1 << (u32::BITS - 1));
        Rings { sq: rounded(sq), rq: rounded(rq) }
    }

    /// Returns the words of a queue pair with these rings.
    pub fn words(self) -> usize {
        at::ENTRIES + words_of(self.sq).saturating_add(words_of(self.rq))
    }

    /// Returns the send queue, in the lines of the queue pair's block.
    #[inline]
    pub fn sq_of(self, lines: &[Line]) -> BlockRing<'_> {
        BlockRing::new(lines, ENTRIES, self.sq.into())
    }

    /// Returns the receive queue, in the lines of the queue pair's block.
    #[inline]
    pub fn rq_of(self, lines: &[Line]) -> BlockRing<'_> {
        BlockRing::new(lines, ENTRIES + u64::from(self.sq), self.rq.into())
    }
}

/// Index of the first line of the send queue.
const ENTRIES: u64 = (at::ENTRIES / LINE) as u64;

/// Returns the number of words of so many blocks.
fn words_of(blocks: u32) -> usize {
    usize::try_from(blocks).unwrap_or(usize::MAX / 4 / BLOCK).saturating_mul(BLOCK)
}

/// The words of a queue pair before its entries.
pub type Header = [AtomicU64; at::ENTRIES];

/// Returns the header of this queue pair, whose block is at least that long.
#[inline]
pub fn header(block: &Block) -> &Header {
    header_of(block.words())
}

/// Does the same for a caller that has already looked up the words. A post looks them up once:
/// after each of its fences the compiler would look them up again.
#[inline]
pub fn header_of(words: &[AtomicU64]) -> &Header {
    &words.as_chunks().0[0]
}

/// The application's end of one queue: it writes requests into free blocks, and publishes them by
/// the tail.
#[derive(Debug)]
pub struct Producer {
    /// Blocks published.
    tail: u64,
    /// Requests published.
    posted: u64,
    /// Blocks freed and requests retired by the worker, as this side last saw them.
    head: u64,
    retired: u64,
    depth: u64,
    blocks: u64,
    /// The length of the last entry as the next entry records it, 0 when there is no last entry.
    before: u64,
}

/// The words of a queue pair that belong to one of its queues.
#[derive(Clone, Copy, Debug)]
pub struct QueueWords {
    /// Blocks that the application has published.
    pub tail: usize,
    /// Requests that the application has published.
    pub posted: usize,
    /// Blocks that the worker has given back.
    pub head: usize,
    /// Requests that the worker has retired.
    pub retired: usize,
    /// Requests that the worker has taken in all, once the queue pair has ended.
    pub last: usize,
}

/// The words of the send queue.
pub const SQ: QueueWords = QueueWords {
    tail: at::SQ_TAIL,
    posted: at::SQ_POSTED,
    head: at::SQ_HEAD,
    retired: at::SQ_RETIRED,
    last: at::SQ_FINAL,
};

/// The words of the receive queue.
pub const RQ: QueueWords = QueueWords {
    tail: at::RQ_TAIL,
    posted: at::RQ_POSTED,
    head: at::RQ_HEAD,
    retired: at::RQ_RETIRED,
    last: at::RQ_FINAL,
};

impl Producer {
    /// Returns the end of a queue that holds `depth` requests in `blocks` blocks, and continues at
    /// the indices in `words`.
    pub fn new(words: &[AtomicU64], at: QueueWords, depth: u32, blocks: u32) -> Producer {
        let get = |i: usize| words[i].load(Ordering::Relaxed);
        Producer {
            tail: get(at.tail),
            posted: get(at.posted),
            head: get(at.head),
            retired: get(at.retired),
            depth: depth.into(),
            blocks: blocks.into(),
            before: 0,
        }
    }

    /// Returns true if a request of `n` blocks has room, as far as this side knows.
    #[inline]
    fn fits(&self, n: u64) -> bool {
        self.posted.wrapping_sub(self.retired) < self.depth
            && self.tail.wrapping_sub(self.head).wrapping_add(n) <= self.blocks
    }

    /// Returns true if a request of `n` blocks has room, after a look at the blocks and requests
    /// that the worker has given back.
    #[cold]
    fn has_room(&mut self, header: &Header, at: QueueWords, n: u64) -> bool {
        self.retired = header[at.retired].load(Ordering::Acquire);
        // Acquire: the worker has read the blocks before it gave them back.
        self.head = header[at.head].load(Ordering::Acquire);
        self.fits(n)
    }

    /// Returns the number of requests published since the beginning.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns mark and opcode of each request that is not retired, in order; `retired` requests
    /// are.
    pub fn outstanding<'r>(
        &self,
        ring: BlockRing<'r>,
        retired: u64,
    ) -> impl Iterator<Item = (u64, u64)> + use<'r> {
        let left = self.posted.wrapping_sub(retired).min(self.depth);
        look_back(ring, (self.tail, self.before), left)
    }

    /// Retires all requests in the place of a worker that no longer exists.
    pub fn retire_all(&self, header: &Header, at: QueueWords) {
        let set = |i: usize, value: u64| header[i].store(value, Ordering::Release);
        set(at.last, self.posted);
        set(at.retired, self.posted);
        set(at.head, self.tail);
    }

    /// Begins anew, over an empty ring.
    pub fn restart(&mut self) {
        (self.tail, self.posted, self.head, self.retired, self.before) = (0, 0, 0, 0, 0);
    }

    /// Writes a request and publishes it.
    ///
    /// # Errors
    /// [`PostError::Full`], or [`PostError::SharedReceives`] for a queue of depth 0.
    #[inline(always)]
    pub fn post<const N: usize>(
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
