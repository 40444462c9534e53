//! Entries of send and receive queues: encoding by the application, decoding by the worker.
//!
//! The decoder is the border between two processes: it copies an entry out word by word, and
//! everything it hands on comes from the copy.

use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use heddle_iwarp::qp::{MAX_INLINE, MAX_SGES};
use heddle_iwarp::rdmap::AtomicOp;
use heddle_iwarp::{Access, Bind, Data, RecvWr, SendOp, SendWr, Sge, Stag};

use super::area::Line;
use super::layout::{BLOCK, blocks, flag, head_words, opcode};

/// Blocks of the longest entry.
pub const MAX_BLOCKS: usize = blocks(opcode::WRITE_IMMEDIATE, MAX_INLINE / 8);

/// Words of the longest entry.
const MAX_WORDS: usize = MAX_BLOCKS * BLOCK;

/// An entry that no application linked with this library writes. Its queue cannot be understood from
/// here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The tail is further from the head than the queue is long, or behind it.
    #[error("the tail is not inside the queue")]
    Tail,
    /// The entry says it has no block, more than an entry can have, or more than were published.
    #[error("the length of the entry is impossible")]
    Blocks,
    /// The operation does not exist, or not in this queue.
    #[error("unknown opcode {0}")]
    Opcode(u8),
    /// Its SGEs or inline octets are more than it has room for.
    #[error("more data than the entry has room for")]
    Data,
    /// More requests were posted than the queue is deep.
    #[error("more requests than the queue is deep")]
    Overrun,
}

/// A ring of blocks, each a line; their number is a power of two.
#[derive(Clone, Copy)]
pub(crate) struct BlockRing<'a>(&'a [Line]);

impl<'a> BlockRing<'a> {
    /// The ring of `blocks` blocks, a power of two, that starts at line `first`. One that does not lie
    /// in the lines has no block.
    #[inline]
    pub(crate) fn new(lines: &'a [Line], first: u64, blocks: u64) -> BlockRing<'a> {
        debug_assert!(blocks.is_power_of_two());
        let ring = lines.get(low_usize(first)..low_usize(first.wrapping_add(blocks)));
        BlockRing(ring.unwrap_or_default())
    }

    /// A block, by its running index.
    #[inline]
    fn block(self, index: u64) -> Option<&'a Line> {
        self.0.get(low_usize(index) & self.0.len().wrapping_sub(1))
    }

    /// Loads a whole block.
    #[inline]
    fn load(self, index: u64) -> Result<[u64; BLOCK], Broken> {
        let block = self.block(index).ok_or(Broken::Blocks)?;
        Ok(block.each_ref().map(|w| w.load(Ordering::Relaxed)))
    }
}

/// A ring is indexed modulo its length, which is far below 2^32.
#[expect(clippy::cast_possible_truncation)]
const fn low_usize(index: u64) -> usize {
    index as usize
}

const fn low8(v: u64) -> u8 {
    v.to_le_bytes()[0]
}

pub(super) const fn low32(v: u64) -> u32 {
    let b = v.to_le_bytes();
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

const fn high32(v: u64) -> u32 {
    low32(v >> 32)
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Words before the SGEs or inline octets of an operation with operands (RFC 7306), and of the others.
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

/// A request that has passed the static rules, as it will lie in its ring, but for its data: the `N`
/// words before them.
#[derive(Clone, Copy)]
pub(crate) struct Encoded<const N: usize> {
    head: [u64; N],
    /// Blocks it takes.
    pub(crate) blocks: u64,
}

/// The head of a send request; `None` when it has operands:
/// [`encode_with_operands`].
#[inline]
pub(crate) fn encode_send(wr: &SendWr<'_>) -> Option<Encoded<SEND_HEAD>> {
    let signaled = flag::SIGNALED * u64::from(wr.signaled);
    let flags = signaled | (flag::FENCE * u64::from(wr.fence));
    let (op, flags, stags, to) = match wr.op {
        SendOp::Write { stag, to } => (opcode::WRITE, flags, u64::from(stag.0), to),
        SendOp::Read { stag, to } => (opcode::READ, flags, u64::from(stag.0), to),
        SendOp::Send { solicited, invalidate } => {
            let flags = flags | (flag::SOLICITED * u64::from(solicited));
            match invalidate {
                None => (opcode::SEND, flags, 0, 0),
                Some(s) => (opcode::SEND_INVALIDATE, flags, pair(0, s.0), 0),
            }
        }
        SendOp::FastRegister(b) => (opcode::FAST_REGISTER, flags, stag_with_rights(&b), b.to),
        SendOp::BindWindow(b) => (opcode::BIND_WINDOW, flags, stag_with_rights(&b), b.to),
        SendOp::LocalInvalidate { stag } => (opcode::LOCAL_INVALIDATE, flags, stag.0.into(), 0),
        SendOp::Immediate { .. } | SendOp::WriteImmediate { .. } | SendOp::Atomic { .. } => {
            return None;
        }
    };
    let (counts, words) = counts(&wr.data);
    let blocks = blocks(opcode::WRITE, words) as u64;
    let first = op | flags << 8 | counts | blocks << 24;
    Some(Encoded { head: [first, wr.wr_id, stags, to], blocks })
}

/// What the first word of a request says of its data, and the words they take.
#[inline]
fn counts(data: &Data<'_>) -> (u64, usize) {
    match data {
        Data::Sges(s) => ((s.len() as u64) << 16, 2 * s.len()),
        Data::Inline(b) => (flag::INLINE << 8 | (b.len() as u64) << 32, b.len().div_ceil(8)),
    }
}

/// The head of a send request, with room for operands.
pub(crate) fn encode_with_operands(wr: &SendWr<'_>) -> Encoded<LONG_HEAD> {
    let mut flags = (flag::SIGNALED * u64::from(wr.signaled)) | (flag::FENCE * u64::from(wr.fence));
    let mut ask = |solicited| flags |= flag::SOLICITED * u64::from(solicited);
    let (op, stag, to, operands) = match wr.op {
        SendOp::Immediate { data, solicited } => {
            ask(solicited);
            (opcode::IMMEDIATE, Stag(0), 0, [data, 0, 0, 0])
        }
        SendOp::WriteImmediate { stag, to, data, solicited } => {
            ask(solicited);
            (opcode::WRITE_IMMEDIATE, stag, to, [data, 0, 0, 0])
        }
        SendOp::Atomic { stag, to, op: AtomicOp::FetchAdd { add, mask } } => {
            (opcode::FETCH_ADD, stag, to, [add, 0, mask, 0])
        }
        SendOp::Atomic {
            stag,
            to,
            op: AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask },
        } => (opcode::COMPARE_SWAP, stag, to, [compare, swap, compare_mask, swap_mask]),
        SendOp::Send { .. }
        | SendOp::Write { .. }
        | SendOp::Read { .. }
        | SendOp::FastRegister(_)
        | SendOp::BindWindow(_)
        | SendOp::LocalInvalidate { .. } => {
            debug_assert!(false, "a request without operands");
            (u64::from(u8::MAX), Stag(0), 0, [0; 4])
        }
    };
    let (counts, words) = counts(&wr.data);
    let blocks = blocks(op, words) as u64;
    let first = op | flags << 8 | counts | blocks << 24;
    let [a, b, c, d] = operands;
    Encoded { head: [first, wr.wr_id, u64::from(stag.0), to, a, b, c, d], blocks }
}

/// The head of a receive request.
#[inline]
pub(crate) fn encode_recv(wr: &RecvWr<'_>) -> Encoded<RECV_HEAD> {
    let blocks = blocks(opcode::RECV, 2 * wr.sges.len()) as u64;
    let first = opcode::RECV | (wr.sges.len() as u64) << 16 | blocks << 24;
    Encoded { head: [first, wr.wr_id], blocks }
}

/// Writes a request at block `at`; it is published by whoever moves the tail. Words that it does not
/// need keep what they held.
#[inline]
pub(crate) fn store<const N: usize>(ring: BlockRing<'_>, at: u64, wr: Encoded<N>, data: &Data<'_>) {
    let Some(block) = ring.block(at) else { return };
    let Some((head, rest)) = block.split_first_chunk::<N>() else { return };
    for (to, word) in head.iter().zip(wr.head) {
        to.store(word, Ordering::Relaxed);
    }
    match data {
        _ if wr.blocks > 1 => store_data(ring, at, N, data),
        Data::Sges(sges) => {
            for (to, s) in rest.as_chunks::<2>().0.iter().zip(*sges) {
                to[0].store(s.to, Ordering::Relaxed);
                to[1].store(pair(s.stag.0, s.len), Ordering::Relaxed);
            }
        }
        Data::Inline(bytes) => {
            let (words, last) = bytes.as_chunks();
            for (to, word) in rest.iter().zip(words) {
                to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
            if let Some(to) = rest.get(words.len())
                && !last.is_empty()
            {
                to.store(last_word(last), Ordering::Relaxed);
            }
        }
    }
}

/// Writes the data of an entry of several blocks, `head` words into it.
#[inline(never)]
fn store_data(ring: BlockRing<'_>, at: u64, head: usize, data: &Data<'_>) {
    let put = |(i, word): (usize, u64)| {
        let i = head + i;
        if let Some(block) = ring.block(at.wrapping_add((i / BLOCK) as u64)) {
            block[i % BLOCK].store(word, Ordering::Relaxed);
        }
    };
    match data {
        Data::Sges(s) => {
            let words = s.iter().flat_map(|s| [s.to, pair(s.stag.0, s.len)]);
            words.enumerate().for_each(put);
        }
        Data::Inline(b) => {
            let (words, last) = b.as_chunks();
            let words = words.iter().copied().map(u64::from_ne_bytes);
            let last = (!last.is_empty()).then(|| last_word(last));
            words.chain(last).enumerate().for_each(put);
        }
    }
}

/// The last octets of inline data, fewer than a word, filled up with zeros.
#[inline(never)]
fn last_word(octets: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, octet) in word.iter_mut().zip(octets) {
        *to = *octet;
    }
    u64::from_ne_bytes(word)
}

/// Word 2 of an operation on STags.
fn stag_with_rights(b: &Bind) -> u64 {
    pair(b.stag.0, b.access.bits().into())
}

/// What an operation on STags asks for; rights that do not exist are dropped.
const fn bind(stags: u64, to: u64) -> Bind {
    Bind { stag: Stag(low32(stags)), to, access: Access::from_bits(low8(stags >> 32)) }
}

/// Room for the private copy of one entry, and for what was read out of it.
#[derive(Debug)]
pub struct Entry {
    /// Of an entry of several blocks.
    words: [u64; MAX_WORDS],
    sges: [Sge; MAX_SGES],
    inline: [u8; MAX_INLINE],
}

impl Default for Entry {
    fn default() -> Entry {
        let sges = [Sge::default(); MAX_SGES];
        Entry { words: [0; MAX_WORDS], sges, inline: [0; MAX_INLINE] }
    }
}

/// The counts in the first word of an entry.
#[derive(Clone, Copy)]
struct Counts(u64);

impl Counts {
    #[inline]
    fn op(self) -> u64 {
        self.0 & 0xff
    }

    #[inline]
    fn sges(self) -> usize {
        usize::from(low8(self.0 >> 16))
    }

    #[inline]
    fn blocks(self) -> u64 {
        self.0 >> 24 & 0xff
    }

    #[inline]
    fn inline(self) -> usize {
        low_usize(self.0 >> 32 & 0xffff)
    }

    #[inline]
    fn has(self, flag: u64) -> bool {
        self.0 & flag << 8 != 0
    }
}

impl Entry {
    /// Copies the entry at block `head`, of which `first` is the private copy, out of a ring in which
    /// `available` blocks are published; its words.
    fn copy(
        &mut self,
        ring: BlockRing<'_>,
        head: u64,
        available: u64,
        first: [u64; BLOCK],
    ) -> Result<usize, Broken> {
        let n = Counts(first[0]).blocks();
        if n == 0 || n > MAX_BLOCKS as u64 || n > available {
            return Err(Broken::Blocks);
        }
        let (blocks, _) = self.words.as_chunks_mut();
        blocks[0] = first;
        for (i, b) in (1..n).zip(&mut blocks[1..]) {
            *b = ring.load(head.wrapping_add(i))?;
        }
        Ok(low_usize(n) * BLOCK)
    }

    /// Reads `count` SGEs of an entry of several blocks, of so many words in all, `head` of which come
    /// before the data.
    #[inline(never)]
    fn read_sges(&mut self, count: usize, head: usize, words: usize) -> Result<(), Broken> {
        let data = self.words.get(head..words).ok_or(Broken::Data)?.as_chunks().0;
        if count > MAX_SGES || count > data.len() {
            return Err(Broken::Data);
        }
        for (s, words) in self.sges.iter_mut().zip(&data[..count]) {
            *s = sge(words);
        }
        Ok(())
    }

    /// Reads `len` inline octets of such an entry.
    #[inline(never)]
    fn read_inline(&mut self, len: usize, head: usize, words: usize) -> Result<(), Broken> {
        let data = self.words.get(head..words).ok_or(Broken::Data)?;
        if len > MAX_INLINE || len.div_ceil(8) > data.len() {
            return Err(Broken::Data);
        }
        for (out, w) in self.inline.as_chunks_mut().0.iter_mut().zip(data) {
            *out = w.to_ne_bytes();
        }
        Ok(())
    }

    /// Reads the SGEs of an entry of one block, of which `data` is what comes after its head. What
    /// there is room for is copied, whatever the count: that is less work than to look.
    #[inline]
    fn sges_of<const N: usize>(&mut self, count: usize, data: &[u64; N]) -> Result<(), Broken> {
        let data = data.as_chunks().0;
        if count > data.len() {
            return Err(Broken::Data);
        }
        for (s, words) in self.sges.iter_mut().zip(data) {
            *s = sge(words);
        }
        Ok(())
    }

    /// What was read, as the counts have it.
    #[inline(always)]
    fn data(&self, c: Counts) -> Result<Data<'_>, Broken> {
        if c.has(flag::INLINE) {
            return self.inline.get(..c.inline()).map(Data::Inline).ok_or(Broken::Data);
        }
        self.sges.get(..c.sges()).map(Data::Sges).ok_or(Broken::Data)
    }

    /// Reads the inline octets of an entry of one block.
    #[inline]
    fn inline_of<const N: usize>(&mut self, len: usize, data: &[u64; N]) -> Result<(), Broken> {
        if len > N * 8 {
            return Err(Broken::Data);
        }
        for (out, w) in self.inline.as_chunks_mut().0.iter_mut().zip(data) {
            *out = w.to_ne_bytes();
        }
        Ok(())
    }
}

/// Reads the receive request at block `at`, which has `available` blocks, from a ring whose head others
/// may move meanwhile: its mark, and its pieces into `sges`.
pub(crate) fn read_recv(
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

#[inline]
fn sge(&[to, word]: &[u64; 2]) -> Sge {
    Sge { to, stag: Stag(low32(word)), len: high32(word) }
}

/// The worker's end of a send or receive queue: its own head, and how much it has seen published.
#[derive(Debug, Default)]
pub(crate) struct EntryReader {
    head: u64,
    /// The tail as it was last seen.
    tail: u64,
    blocks: u64,
}

impl EntryReader {
    /// Of a queue of so many blocks.
    pub(crate) fn new(blocks: u64) -> EntryReader {
        EntryReader { head: 0, tail: 0, blocks }
    }

    /// Blocks taken so far.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Whether an entry is published; looks at `tail` only when nothing is known of.
    #[inline]
    pub(crate) fn has_next(&mut self, tail: &AtomicU64) -> Result<bool, Broken> {
        if self.head == self.tail {
            // Acquire: the entries were stored before the tail. And in one order with what is done
            // to doorbells: see `Bells::ring`.
            let seen = tail.load(Ordering::SeqCst);
            if seen.wrapping_sub(self.head) > self.blocks {
                return Err(Broken::Tail);
            }
            self.tail = seen;
        }
        Ok(self.head != self.tail)
    }

    /// Takes the next entry of a send queue; [`has_next`](EntryReader::has_next) said there is one.
    #[inline(always)]
    pub(crate) fn send<'e>(
        &mut self,
        ring: BlockRing<'_>,
        entry: &'e mut Entry,
    ) -> Result<SendWr<'e>, Broken> {
        let block = ring.load(self.head)?;
        let [first, wr_id, stags, to, data @ ..] = block;
        let c = Counts(first);
        if (opcode::IMMEDIATE..=opcode::COMPARE_SWAP).contains(&c.op()) {
            return self.send_with_operands(ring, entry, block);
        }
        let (sges, inline, is_inline) = (c.sges(), c.inline(), c.has(flag::INLINE));
        if c.blocks() == 1 {
            self.head = self.head.wrapping_add(1);
            if is_inline {
                entry.inline_of(inline, &data)?;
            } else {
                entry.sges_of(sges, &data)?;
            }
        } else {
            let words = self.copy(ring, entry, block)?;
            if is_inline {
                entry.read_inline(inline, SEND_HEAD, words)?;
            } else {
                entry.read_sges(sges, SEND_HEAD, words)?;
            }
        }
        let solicited = c.has(flag::SOLICITED);
        let op = match c.op() {
            opcode::WRITE => SendOp::Write { stag: Stag(low32(stags)), to },
            opcode::READ => SendOp::Read { stag: Stag(low32(stags)), to },
            opcode::SEND => SendOp::Send { solicited, invalidate: None },
            opcode::SEND_INVALIDATE => {
                SendOp::Send { solicited, invalidate: Some(Stag(high32(stags))) }
            }
            opcode::FAST_REGISTER => SendOp::FastRegister(bind(stags, to)),
            opcode::BIND_WINDOW => SendOp::BindWindow(bind(stags, to)),
            opcode::LOCAL_INVALIDATE => SendOp::LocalInvalidate { stag: Stag(low32(stags)) },
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

    /// Takes an entry of the longer kind, of which `block` is the private copy of the first block.
    #[inline(never)]
    fn send_with_operands<'e>(
        &mut self,
        ring: BlockRing<'_>,
        entry: &'e mut Entry,
        block: [u64; BLOCK],
    ) -> Result<SendWr<'e>, Broken> {
        let [first, wr_id, stags, to, a, b, c_mask, d_mask] = block;
        let c = Counts(first);
        let words = self.copy(ring, entry, block)?;
        if c.has(flag::INLINE) {
            entry.read_inline(c.inline(), LONG_HEAD, words)?;
        } else {
            entry.read_sges(c.sges(), LONG_HEAD, words)?;
        }
        let (stag, solicited) = (Stag(low32(stags)), c.has(flag::SOLICITED));
        let op = match c.op() {
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

    /// Takes the next entry of a receive queue.
    #[inline(always)]
    pub(crate) fn recv<'e>(
        &mut self,
        ring: BlockRing<'_>,
        entry: &'e mut Entry,
    ) -> Result<RecvWr<'e>, Broken> {
        let block = ring.load(self.head)?;
        let [first, wr_id, data @ ..] = block;
        let c = Counts(first);
        if c.op() != opcode::RECV {
            return Err(Broken::Opcode(low8(c.op())));
        }
        if c.blocks() == 1 {
            self.head = self.head.wrapping_add(1);
            entry.sges_of(c.sges(), &data)?;
        } else {
            let words = self.copy(ring, entry, block)?;
            entry.read_sges(c.sges(), RECV_HEAD, words)?;
        }
        Ok(RecvWr { wr_id, sges: entry.sges.get(..c.sges()).ok_or(Broken::Data)? })
    }

    /// Copies an entry of several blocks and steps beyond it; its words.
    #[inline(never)]
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

#[cfg(test)]
mod tests;
