//! Entries of send and receive queues: encoding by the application, decoding by the worker.
//!
//! The decoder is the border between two processes: it copies an entry word by word, and passes on
//! only values from the copy.

use heddle_base::Fetch;
use heddle_base::sync::atomic::{AtomicU64, Ordering};
use heddle_types::{
    AtomicOp, RecvWr, SendOp, SendWr, Sge, Stag,
    wr::{MAX_INLINE, MAX_SGES},
};

use arrayvec::ArrayVec;

use super::area::Line;
use super::layout::{BLOCK, blocks, flag, head_words, opcode};

mod encode;
mod entry;

pub use encode::{Encoded, behind, encode_recv, encode_send, encode_with_operands, store};
pub use entry::Entry;

use entry::{Counts, bind, sge};

/// Blocks of the longest entry.
pub const MAX_BLOCKS: usize = blocks(opcode::WRITE_IMMEDIATE, MAX_INLINE / 8);

/// Words of the longest entry.
const MAX_WORDS: usize = MAX_BLOCKS * BLOCK;

/// An entry that no application linked with this library writes. The worker cannot interpret the
/// queue from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The tail lies before the head, or further after the head than the queue is long.
    #[error("the tail is not inside the queue")]
    Tail,
    /// The entry claims no block, more blocks than an entry can have, or more than were published.
    #[error("the length of the entry is impossible")]
    Blocks,
    /// No such operation exists, or none in this queue.
    #[error("unknown opcode {0}")]
    Opcode(u8),
    /// The entry has more SGEs or inline bytes than room for them.
    #[error("more data than the entry has room for")]
    Data,
    /// More requests were posted than the queue is deep.
    #[error("more requests than the queue is deep")]
    Overrun,
}

/// A ring of blocks, each a line; their number is a power of two.
#[derive(Clone, Copy)]
pub struct BlockRing<'a> {
    lines: &'a [Line],
    /// Index of the ring's first line; `mask` is the number of blocks less one.
    first: usize,
    mask: usize,
}

impl<'a> BlockRing<'a> {
    /// Returns the ring of `blocks` blocks, a power of two, that starts at line `first`. An index
    /// that leads outside `lines` leads to no block.
    #[inline]
    pub fn new(lines: &'a [Line], first: u64, blocks: u64) -> BlockRing<'a> {
        debug_assert!(blocks.is_power_of_two());
        let (first, mask) = (low_usize(first), low_usize(blocks.wrapping_sub(1)));
        BlockRing { lines, first, mask }
    }

    /// Returns a block, by its running index.
    #[inline]
    fn block(self, index: u64) -> Option<&'a Line> {
        self.lines.get(self.first.wrapping_add(low_usize(index) & self.mask))
    }

    /// Loads a whole block.
    #[inline]
    fn load(self, index: u64) -> Result<[u64; BLOCK], Broken> {
        let block = self.block(index).ok_or(Broken::Blocks)?;
        Ok(block.each_ref().map(|w| w.load(Ordering::Relaxed)))
    }
}

/// Converts an index: a ring is indexed modulo its length, which is far below 2^32.
#[expect(clippy::cast_possible_truncation)]
const fn low_usize(index: u64) -> usize {
    index as usize
}

const fn low8(v: u64) -> u8 {
    v.to_le_bytes()[0]
}

/// Returns the low 32 bits.
pub const fn low32(v: u64) -> u32 {
    let b = v.to_le_bytes();
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

const fn high32(v: u64) -> u32 {
    low32(v >> 32)
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Words before the SGEs or inline bytes: of an operation with operands (RFC 7306), of other send
/// requests, and of receive requests.
const LONG_HEAD: usize = head_words(opcode::WRITE_IMMEDIATE);
const SEND_HEAD: usize = head_words(opcode::WRITE);
const RECV_HEAD: usize = head_words(opcode::RECV);

const _: () = {
    let (send, read) = (head_words(opcode::SEND), head_words(opcode::READ));
    assert!(send == SEND_HEAD && read == SEND_HEAD);
    assert!(head_words(opcode::SEND_INVALIDATE) == SEND_HEAD);
    let (fast, window) = (head_words(opcode::FAST_REGISTER), head_words(opcode::BIND_WINDOW));
    assert!(fast == SEND_HEAD && window == SEND_HEAD);
    assert!(head_words(opcode::LOCAL_INVALIDATE) == SEND_HEAD);
    assert!(LONG_HEAD == BLOCK && head_words(opcode::COMPARE_SWAP) == LONG_HEAD);
};

/// Reads the receive request at block `at`, which has `available` blocks, from a ring whose head
/// other workers may move meanwhile. Returns the request's mark, and puts its pieces into `sges`.
pub fn read_recv(
    ring: BlockRing<'_>,
    at: u64,
    available: u64,
    sges: &mut ArrayVec<Sge, MAX_SGES>,
) -> Result<u64, Broken> {
    sges.clear();
    let [first, wr_id, data @ ..] = ring.load(at)?;
    let c = Counts(first);
    if c.op() != opcode::RECV {
        return Err(Broken::Opcode(low8(c.op())));
    }
    if c.blocks() == 0 || c.blocks() > available {
        return Err(Broken::Blocks);
    }
    let room = (low_usize(c.blocks()) * BLOCK - RECV_HEAD) / 2;
    if c.sges() > room.min(MAX_SGES) {
        return Err(Broken::Data);
    }
    sges.extend(data.as_chunks().0.iter().take(c.sges()).map(sge));
    let mut block = at;
    while sges.len() < c.sges() {
        block = block.wrapping_add(1);
        let left = c.sges() - sges.len();
        sges.extend(ring.load(block)?.as_chunks().0.iter().take(left).map(sge));
    }
    Ok(wr_id)
}

/// Returns the marks and operations of the last `count` requests in a ring, in the order of their
/// posts. The requests end before block `tail`; `before` holds the length of the last of them, as
/// the next request would record it.
pub fn look_back(
    ring: BlockRing<'_>,
    (tail, before): (u64, u64),
    count: u64,
) -> impl Iterator<Item = (u64, u64)> {
    let (mut at, mut blocks) = (tail, Counts(before).blocks_before());
    let mut found = Vec::new();
    for _ in 0..count {
        at = at.wrapping_sub(blocks);
        let Ok([first, wr_id, ..]) = ring.load(at) else { break };
        found.push((wr_id, Counts(first).op()));
        blocks = Counts(first).blocks_before();
        if blocks == 0 {
            break;
        }
    }
    found.into_iter().rev()
}

/// Takes a request that was taken from a send queue. A closure implements this. Code that runs for
/// every request is a type of its own, which can ask the compiler to inline it at each call.
pub trait OnSend<R> {
    /// Handles a request that was taken.
    fn take(self, wr: &SendWr<'_>) -> R;
}

impl<R, F: FnOnce(&SendWr<'_>) -> R> OnSend<R> for F {
    #[inline]
    fn take(self, wr: &SendWr<'_>) -> R {
        self(wr)
    }
}

/// The worker's end of a send or receive queue: its own head, and the tail that it has seen.
#[derive(Debug, Default)]
pub struct EntryReader {
    head: u64,
    /// The tail as the worker last saw it.
    tail: u64,
    blocks: u32,
    /// The tail at the last [`note`](EntryReader::note), modulo 2^32.
    noted: u32,
}

impl EntryReader {
    /// Returns the reader of a queue of so many blocks.
    pub fn new(blocks: u64) -> EntryReader {
        // A queue that claims more blocks than fit has none, so all its entries are invalid.
        let blocks = u32::try_from(blocks).unwrap_or(0);
        EntryReader { head: 0, tail: 0, blocks, noted: 0 }
    }

    /// Fetches the next entry.
    #[inline]
    pub fn fetch(&self, ring: BlockRing<'_>, fetch: impl Fetch) {
        if let Some(block) = ring.block(self.head) {
            fetch.value(block);
        }
    }

    /// Returns the number of blocks taken so far.
    #[inline]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Returns true if an entry is published; looks at the tail only when the reader knows of no
    /// entry.
    #[inline]
    pub fn has_next<'t>(&mut self, tail: impl FnOnce() -> &'t AtomicU64) -> Result<bool, Broken> {
        if !self.has_seen() {
            self.look(tail())?;
        }
        Ok(self.has_seen())
    }

    /// Returns true if an entry was published when the reader last looked at the tail.
    #[inline]
    pub fn has_seen(&self) -> bool {
        self.head != self.tail
    }

    /// Returns true unless the reader has taken all entries of the queue.
    pub fn is_behind(&self, tail: &AtomicU64) -> bool {
        // SeqCst: this load is in one order with doorbells, as in `look`.
        tail.load(Ordering::SeqCst) != self.head
    }

    /// Looks where the queue ends now.
    #[inline]
    fn look(&mut self, tail: &AtomicU64) -> Result<(), Broken> {
        // Acquire: the entries were stored before the tail. SeqCst: this load is also in one order
        // with the operations on doorbells, see `Bells::ring`.
        let seen = tail.load(Ordering::SeqCst);
        if seen.wrapping_sub(self.head) > self.blocks.into() {
            return Err(Broken::Tail);
        }
        self.tail = seen;
        Ok(())
    }

    /// Looks where the queue ends now, and notes this tail.
    #[inline]
    pub fn note(&mut self, tail: &AtomicU64) -> Result<(), Broken> {
        self.look(tail)?;
        self.noted = low32(self.tail);
        Ok(())
    }

    /// Returns true if an entry that was published at the last [`note`](EntryReader::note) is not
    /// taken yet. The answer is valid for the next 2^31 blocks.
    #[inline]
    pub fn owes(&self) -> bool {
        // The noted tail was at most the whole queue ahead of the head, and the head only moves
        // forward.
        self.noted.wrapping_sub(low32(self.head)).wrapping_sub(1) < self.blocks
    }

    /// Takes the next entry of a send queue and calls `f` with it;
    /// [`has_next`](EntryReader::has_next) has said that there is one.
    ///
    /// Each of the common operations calls `f` at a place of its own: `f`, inlined there, knows the
    /// operation without looking again.
    #[inline(always)]
    pub fn send<R>(
        &mut self,
        ring: BlockRing<'_>,
        entry: &mut Entry,
        f: impl OnSend<R>,
    ) -> Result<R, Broken> {
        // Keep the words apart, and assemble the array only where a callee takes it: an array that
        // is passed on would lie in memory from the beginning.
        let [first, wr_id, stags, to, d0, d1, d2, d3] = ring.load(self.head)?;
        let c = Counts(first);
        let op = c.op();
        if !matches!(op, opcode::SEND | opcode::WRITE | opcode::READ) {
            let block = [first, wr_id, stags, to, d0, d1, d2, d3];
            return Ok(f.take(&self.rarer_send(ring, entry, block)?));
        }
        if c.blocks() == 1 {
            self.head = self.head.wrapping_add(1);
            entry.data_of(c, &[d0, d1, d2, d3])?;
        } else {
            let block = [first, wr_id, stags, to, d0, d1, d2, d3];
            self.copy_with_data(ring, entry, block, SEND_HEAD)?;
        }
        let (data, signaled, fence) = (entry.data(c)?, c.has(flag::SIGNALED), c.has(flag::FENCE));
        let wr = |op| SendWr { wr_id, op, data, signaled, fence };
        let stag = Stag(low32(stags));
        Ok(match op {
            opcode::WRITE => f.take(&wr(SendOp::Write { stag, to })),
            opcode::READ => f.take(&wr(SendOp::Read { stag, to })),
            _ => f.take(&wr(SendOp::Send { solicited: c.has(flag::SOLICITED), invalidate: None })),
        })
    }

    /// Takes an entry of a less common operation; `block` is the private copy of its first block.
    #[inline(never)]
    fn rarer_send<'e>(
        &mut self,
        ring: BlockRing<'_>,
        entry: &'e mut Entry,
        block: [u64; BLOCK],
    ) -> Result<SendWr<'e>, Broken> {
        let [first, wr_id, stags, to, a, b, c_mask, d_mask] = block;
        let c = Counts(first);
        self.copy_with_data(ring, entry, block, head_words(c.op()))?;
        let (stag, solicited) = (Stag(low32(stags)), c.has(flag::SOLICITED));
        let op = match c.op() {
            opcode::SEND_INVALIDATE => {
                SendOp::Send { solicited, invalidate: Some(Stag(high32(stags))) }
            }
            opcode::FAST_REGISTER => SendOp::FastRegister(bind(stags, to)),
            opcode::BIND_WINDOW => SendOp::BindWindow(bind(stags, to)),
            opcode::LOCAL_INVALIDATE => SendOp::LocalInvalidate { stag },
            opcode::IMMEDIATE => SendOp::Immediate { data: a, solicited },
            opcode::WRITE_IMMEDIATE => SendOp::WriteImmediate { stag, to, data: a, solicited },
            opcode::FETCH_ADD => {
                SendOp::Atomic { stag, to, op: AtomicOp::FetchAdd { add: a, mask: c_mask } }
            }
            opcode::COMPARE_SWAP => SendOp::Atomic {
                stag,
                to,
                op: AtomicOp::CmpSwap {
                    compare: a,
                    compare_mask: c_mask,
                    swap: b,
                    swap_mask: d_mask,
                },
            },
            op => return Err(Broken::Opcode(low8(op))),
        };
        Ok(SendWr {
            wr_id,
            op,
            data: entry.data(c)?,
            signaled: c.has(flag::SIGNALED),
            fence: c.has(flag::FENCE),
        })
    }

    /// Takes the next entry of a receive queue and calls `f` with it.
    #[inline(always)]
    pub fn recv<R>(
        &mut self,
        ring: BlockRing<'_>,
        entry: &mut Entry,
        f: impl FnOnce(&RecvWr<'_>) -> R,
    ) -> Result<R, Broken> {
        let [first, wr_id, d0, d1, d2, d3, d4, d5] = ring.load(self.head)?;
        let c = Counts(first);
        if c.op() != opcode::RECV {
            return Err(Broken::Opcode(low8(c.op())));
        }
        if c.blocks() == 1 {
            self.head = self.head.wrapping_add(1);
            entry.sges_of(c.sges(), &[d0, d1, d2, d3, d4, d5])?;
        } else {
            let block = [first, wr_id, d0, d1, d2, d3, d4, d5];
            self.copy_with_sges(ring, entry, block)?;
        }
        Ok(f(&RecvWr { wr_id, sges: entry.sges.get(..c.sges()).ok_or(Broken::Data)? }))
    }

    /// Copies an entry of a send queue that may have several blocks, and reads its data; `head`
    /// words come before the data.
    #[inline(never)]
    fn copy_with_data(
        &mut self,
        ring: BlockRing<'_>,
        entry: &mut Entry,
        first: [u64; BLOCK],
        head: usize,
    ) -> Result<(), Broken> {
        let c = Counts(first[0]);
        let words = self.copy(ring, entry, first)?;
        if c.has(flag::INLINE) {
            entry.read_inline(c.inline(), head, words)
        } else {
            entry.read_sges(c.sges(), head, words)
        }
    }

    /// Copies an entry of a receive queue in the same way, and reads its SGEs.
    #[inline(never)]
    fn copy_with_sges(
        &mut self,
        ring: BlockRing<'_>,
        entry: &mut Entry,
        first: [u64; BLOCK],
    ) -> Result<(), Broken> {
        let words = self.copy(ring, entry, first)?;
        entry.read_sges(Counts(first[0]).sges(), RECV_HEAD, words)
    }

    /// Copies an entry of several blocks and steps beyond it. Returns the number of words.
    fn copy(
        &mut self,
        ring: BlockRing<'_>,
        entry: &mut Entry,
        first: [u64; BLOCK],
    ) -> Result<usize, Broken> {
        let words = entry.copy(ring, self.head, self.tail.wrapping_sub(self.head), first)?;
        self.head = self.head.wrapping_add((words / BLOCK) as u64);
        Ok(words)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
