//! Entries of send and receive queues: encoding by the application, decoding by the worker.
//!
//! The decoder is the border between two processes: it copies an entry out word by word, and
//! everything it hands on comes from the copy.

use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use heddle_iwarp::qp::{MAX_INLINE, MAX_SGES};
use heddle_iwarp::{Access, Bind, Data, RecvWr, SendOp, SendWr, Sge, Stag};

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

/// A ring of blocks.
#[derive(Clone, Copy)]
pub(crate) struct BlockRing<'a> {
    blocks: &'a [[AtomicU64; BLOCK]],
    /// Of blocks; their number is a power of two.
    mask: usize,
}

impl<'a> BlockRing<'a> {
    /// The ring in `words`, which are a power of two of blocks.
    #[inline]
    pub(crate) fn new(words: &'a [AtomicU64]) -> BlockRing<'a> {
        let (blocks, _) = words.as_chunks();
        debug_assert!(blocks.len().is_power_of_two());
        BlockRing { blocks, mask: blocks.len().wrapping_sub(1) }
    }

    /// A block, by its running index.
    #[inline]
    fn block(&self, index: u64) -> Option<&'a [AtomicU64; BLOCK]> {
        self.blocks.get(low_usize(index) & self.mask)
    }

    /// Stores a whole block.
    #[inline]
    fn store(&self, index: u64, words: &[u64; BLOCK]) {
        if let Some(block) = self.block(index) {
            for (to, word) in block.iter().zip(words) {
                to.store(*word, Ordering::Relaxed);
            }
        }
    }

    /// Loads a whole block.
    #[inline]
    fn load(&self, index: u64) -> [u64; BLOCK] {
        self.block(index).map_or([0; BLOCK], |b| b.each_ref().map(|w| w.load(Ordering::Relaxed)))
    }
}

/// A ring is indexed modulo its length, which is far below 2^32.
#[expect(clippy::cast_possible_truncation)]
const fn low_usize(index: u64) -> usize {
    index as usize
}

/// Words on their way into consecutive blocks.
struct BlockWriter<'a> {
    ring: BlockRing<'a>,
    /// The block being filled, and how many of its words are.
    at: u64,
    block: [u64; BLOCK],
    filled: usize,
}

impl<'a> BlockWriter<'a> {
    /// Starts at block `at` with the words of `head`, the first of which count.
    #[inline]
    fn new(ring: BlockRing<'a>, at: u64, head: [u64; BLOCK], count: usize) -> BlockWriter<'a> {
        BlockWriter { ring, at, block: head, filled: count }
    }

    #[inline]
    fn put(&mut self, word: u64) {
        if self.filled == BLOCK {
            self.ring.store(self.at, &self.block);
            self.at = self.at.wrapping_add(1);
            self.block = [0; BLOCK];
            self.filled = 0;
        }
        self.block[self.filled] = word;
        self.filled += 1;
    }

    #[inline]
    fn sges(&mut self, sges: &[Sge]) {
        for s in sges {
            self.put(s.to);
            self.put(pair(s.stag.0, s.len));
        }
    }

    #[inline]
    fn octets(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for w in words {
            self.put(u64::from_ne_bytes(*w));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.put(u64::from_ne_bytes(word));
        }
    }

    #[inline]
    fn finish(self) {
        self.ring.store(self.at, &self.block);
    }
}

const fn low8(v: u64) -> u8 {
    v.to_le_bytes()[0]
}

const fn low32(v: u64) -> u32 {
    let b = v.to_le_bytes();
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

const fn high32(v: u64) -> u32 {
    low32(v >> 32)
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

fn data_words(data: &Data<'_>) -> usize {
    match data {
        Data::Sges(s) => 2 * s.len(),
        Data::Inline(b) => b.len().div_ceil(8),
    }
}

const fn op_of(op: &SendOp) -> (u64, Stag, Stag, u64) {
    match *op {
        SendOp::Send { invalidate: None, .. } => (opcode::SEND, Stag(0), Stag(0), 0),
        SendOp::Send { invalidate: Some(s), .. } => (opcode::SEND_INVALIDATE, Stag(0), s, 0),
        SendOp::Write { stag, to } => (opcode::WRITE, stag, Stag(0), to),
        SendOp::Read { stag, to } => (opcode::READ, stag, Stag(0), to),
        SendOp::FastRegister(b) => (opcode::FAST_REGISTER, b.stag, rights(b.access), b.to),
        SendOp::BindWindow(b) => (opcode::BIND_WINDOW, b.stag, rights(b.access), b.to),
        SendOp::LocalInvalidate { stag } => (opcode::LOCAL_INVALIDATE, stag, Stag(0), 0),
        SendOp::Immediate { .. } => (opcode::IMMEDIATE, Stag(0), Stag(0), 0),
        SendOp::WriteImmediate { stag, to, .. } => (opcode::WRITE_IMMEDIATE, stag, Stag(0), to),
        SendOp::Atomic { stag, to, .. } => (opcode::FETCH_ADD, stag, Stag(0), to),
    }
}

/// Rights, where other operations have a second STag.
const fn rights(access: Access) -> Stag {
    Stag(access.bits() as u32)
}

/// Blocks of a send request.
#[inline]
pub(crate) fn send_blocks(wr: &SendWr<'_>) -> u64 {
    blocks(op_of(&wr.op).0, data_words(&wr.data)) as u64
}

/// Blocks of a receive request.
#[inline]
pub(crate) fn recv_blocks(wr: &RecvWr<'_>) -> u64 {
    blocks(opcode::RECV, 2 * wr.sges.len()) as u64
}

/// Writes a request that has passed the static rules at block `at`; it is published by whoever moves
/// the tail.
#[inline]
pub(crate) fn encode_send(ring: BlockRing<'_>, at: u64, wr: &SendWr<'_>) {
    let (op, remote, invalidate, to) = op_of(&wr.op);
    let solicited = matches!(wr.op, SendOp::Send { solicited: true, .. });
    let mut flags = (flag::SIGNALED * u64::from(wr.signaled))
        | (flag::FENCE * u64::from(wr.fence))
        | (flag::SOLICITED * u64::from(solicited));
    let (mut sges, mut inline) = (0, 0);
    match wr.data {
        Data::Sges(s) => sges = s.len() as u64,
        Data::Inline(b) => {
            flags |= flag::INLINE;
            inline = b.len() as u64;
        }
    }
    let n = blocks(op, data_words(&wr.data)) as u64;
    let first = op | flags << 8 | sges << 16 | n << 24 | inline << 32;
    let head = [first, wr.wr_id, pair(remote.0, invalidate.0), to, 0, 0, 0, 0];
    let mut out = BlockWriter::new(ring, at, head, head_words(op));
    match wr.data {
        Data::Sges(s) => out.sges(s),
        Data::Inline(b) => out.octets(b),
    }
    out.finish();
}

/// As [`encode_send`], for the receive queue.
#[inline]
pub(crate) fn encode_recv(ring: BlockRing<'_>, at: u64, wr: &RecvWr<'_>) {
    let first = opcode::RECV | (wr.sges.len() as u64) << 16 | recv_blocks(wr) << 24;
    let head = [first, wr.wr_id, 0, 0, 0, 0, 0, 0];
    let mut out = BlockWriter::new(ring, at, head, head_words(opcode::RECV));
    out.sges(wr.sges);
    out.finish();
}

/// What an operation on STags asks for; rights that do not exist are dropped.
const fn bind(stags: u64, to: u64) -> Bind {
    Bind { stag: Stag(low32(stags)), to, access: Access::from_bits(low8(stags >> 32)) }
}

/// A private copy of one entry, and the request that was read out of it.
#[derive(Debug)]
pub struct Entry {
    words: [u64; MAX_WORDS],
    sges: ArrayVec<Sge, MAX_SGES>,
    inline: [u8; MAX_INLINE],
}

impl Default for Entry {
    fn default() -> Entry {
        Entry { words: [0; MAX_WORDS], sges: ArrayVec::new(), inline: [0; MAX_INLINE] }
    }
}

impl Entry {
    /// Copies the entry at block `head` out of a ring in which `available` blocks are published;
    /// its blocks.
    #[inline]
    fn copy(&mut self, ring: BlockRing<'_>, head: u64, available: u64) -> Result<u64, Broken> {
        let block = ring.load(head);
        let n = block[0] >> 24 & 0xff;
        if n == 0 || n > MAX_BLOCKS as u64 || n > available {
            return Err(Broken::Blocks);
        }
        let (blocks, _) = self.words.as_chunks_mut();
        blocks[0] = block;
        for (i, b) in (1..n).zip(&mut blocks[1..]) {
            *b = ring.load(head.wrapping_add(i));
        }
        Ok(n)
    }

    /// Reads the SGEs of the copied entry.
    #[inline]
    fn read_sges(&mut self, op: u64) -> Result<(), Broken> {
        let (count, end) = (usize::from(low8(self.words[0] >> 16)), self.end());
        let at = head_words(op);
        if count > MAX_SGES || at + 2 * count > end {
            return Err(Broken::Data);
        }
        self.sges.clear();
        for pair in self.words[at..at + 2 * count].chunks_exact(2) {
            let s = Sge { to: pair[0], stag: Stag(low32(pair[1])), len: high32(pair[1]) };
            // Not more than it has room for.
            let _ = self.sges.try_push(s);
        }
        Ok(())
    }

    /// Reads its inline octets; how many.
    #[inline]
    fn read_inline(&mut self, op: u64) -> Result<usize, Broken> {
        let (len, end) = ((self.words[0] >> 32 & 0xffff) as usize, self.end());
        let at = head_words(op);
        if len > MAX_INLINE || at + len.div_ceil(8) > end {
            return Err(Broken::Data);
        }
        for (out, w) in self.inline.chunks_exact_mut(8).zip(&self.words[at..at + len.div_ceil(8)]) {
            out.copy_from_slice(&w.to_ne_bytes());
        }
        Ok(len)
    }

    /// Words of the copied entry.
    fn end(&self) -> usize {
        usize::from(low8(self.words[0] >> 24)) * BLOCK
    }

    #[inline]
    fn send(&mut self) -> Result<SendWr<'_>, Broken> {
        let [first, wr_id, stags, to, ..] = self.words;
        let (op, flags) = (first & 0xff, first >> 8 & 0xff);
        let has = |f: u64| flags & f != 0;
        let solicited = has(flag::SOLICITED);
        let send_op = match op {
            opcode::SEND => SendOp::Send { solicited, invalidate: None },
            opcode::SEND_INVALIDATE => {
                SendOp::Send { solicited, invalidate: Some(Stag(high32(stags))) }
            }
            opcode::WRITE => SendOp::Write { stag: Stag(low32(stags)), to },
            opcode::READ => SendOp::Read { stag: Stag(low32(stags)), to },
            opcode::FAST_REGISTER => SendOp::FastRegister(bind(stags, to)),
            opcode::BIND_WINDOW => SendOp::BindWindow(bind(stags, to)),
            opcode::LOCAL_INVALIDATE => SendOp::LocalInvalidate { stag: Stag(low32(stags)) },
            _ => return Err(Broken::Opcode(low8(op))),
        };
        let data = if has(flag::INLINE) {
            let len = self.read_inline(op)?;
            Data::Inline(&self.inline[..len])
        } else {
            self.read_sges(op)?;
            Data::Sges(&self.sges)
        };
        let (signaled, fence) = (has(flag::SIGNALED), has(flag::FENCE));
        Ok(SendWr { wr_id, op: send_op, data, signaled, fence })
    }

    #[inline]
    fn recv(&mut self) -> Result<RecvWr<'_>, Broken> {
        let op = self.words[0] & 0xff;
        if op != opcode::RECV {
            return Err(Broken::Opcode(low8(op)));
        }
        self.read_sges(op)?;
        Ok(RecvWr { wr_id: self.words[1], sges: &self.sges })
    }
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
            // Acquire: the entries were stored before the tail.
            let seen = tail.load(Ordering::Acquire);
            if seen.wrapping_sub(self.head) > self.blocks {
                return Err(Broken::Tail);
            }
            self.tail = seen;
        }
        Ok(self.head != self.tail)
    }

    /// Takes the next entry of a send queue; [`has_next`](EntryReader::has_next) said there is one.
    #[inline]
    pub(crate) fn send<'e>(
        &mut self,
        ring: BlockRing<'_>,
        entry: &'e mut Entry,
    ) -> Result<SendWr<'e>, Broken> {
        let n = entry.copy(ring, self.head, self.tail.wrapping_sub(self.head))?;
        self.head = self.head.wrapping_add(n);
        entry.send()
    }

    /// Takes the next entry of a receive queue.
    #[inline]
    pub(crate) fn recv<'e>(
        &mut self,
        ring: BlockRing<'_>,
        entry: &'e mut Entry,
    ) -> Result<RecvWr<'e>, Broken> {
        let n = entry.copy(ring, self.head, self.tail.wrapping_sub(self.head))?;
        self.head = self.head.wrapping_add(n);
        entry.recv()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring(blocks: usize) -> Vec<AtomicU64> {
        (0..blocks * BLOCK).map(|_| AtomicU64::new(0)).collect()
    }

    fn words(ring: &[AtomicU64]) -> Vec<u64> {
        ring.iter().map(|w| w.load(Ordering::Relaxed)).collect()
    }

    /// Golden words: the layout is a promise to other processes.
    #[test]
    fn test_send_entries_are_laid_out_as_documented() {
        let r = ring(2);
        let sge = Sge { stag: Stag(0xaabb_cc01), len: 5, to: 0x77 };
        let wr = SendWr {
            wr_id: 9,
            op: SendOp::Write { stag: Stag(0x1234_5678), to: 0x99 },
            data: Data::Sges(&[sge]),
            signaled: true,
            fence: true,
        };
        encode_send(BlockRing::new(&r), 0, &wr);
        let want = [0x0101_0303, 9, 0x1234_5678, 0x99, 0x77, 0x5_aabb_cc01, 0, 0];
        assert_eq!(words(&r)[..8], want);
        let wr = SendWr {
            wr_id: 10,
            op: SendOp::Send { solicited: true, invalidate: Some(Stag(7)) },
            data: Data::Inline(b"abcdefghi"),
            signaled: false,
            fence: false,
        };
        encode_send(BlockRing::new(&r), 1, &wr);
        let text = [u64::from_ne_bytes(*b"abcdefgh"), u64::from_ne_bytes(*b"i\0\0\0\0\0\0\0")];
        let want = [0x9_0100_0c02, 10, 7 << 32, 0, text[0], text[1], 0, 0];
        assert_eq!(words(&r)[8..], want);
    }

    #[test]
    fn test_entries_about_stags_are_laid_out_as_documented() {
        let r = ring(4);
        let sge = [Sge { stag: Stag(0xaabb_cc01), len: 5, to: 0x77 }];
        let access = Access::REMOTE_READ.with(Access::REMOTE_ATOMIC);
        let wr = SendWr::fast_register(9, Stag(0x1234_5678), &sge, 0x99, access);
        encode_send(BlockRing::new(&r), 0, &wr);
        let want = [0x0101_010a, 9, 0x14_1234_5678, 0x99, 0x77, 0x5_aabb_cc01, 0, 0];
        assert_eq!(words(&r)[..8], want);
        let wr = SendWr::local_invalidate(10, Stag(7)).unsignaled();
        encode_send(BlockRing::new(&r), 1, &wr);
        assert_eq!(words(&r)[8..16], [0x0100_000b, 10, 7, 0, 0, 0, 0, 0]);
        let wr = SendWr::bind_window(11, Stag(8), &sge, 0, Access::REMOTE_WRITE).fenced();
        encode_send(BlockRing::new(&r), 2, &wr);
        let want = [0x0101_030c, 11, 0x2_0000_0008, 0, 0x77, 0x5_aabb_cc01, 0, 0];
        assert_eq!(words(&r)[16..24], want);
    }

    #[test]
    fn test_recv_entries_are_laid_out_as_documented() {
        let r = ring(1);
        let sges = [Sge { stag: Stag(1), len: 2, to: 3 }, Sge { stag: Stag(4), len: 5, to: 6 }];
        encode_recv(BlockRing::new(&r), 0, &RecvWr { wr_id: 11, sges: &sges });
        assert_eq!(words(&r), [0x0102_0000, 11, 3, 0x2_0000_0001, 6, 0x5_0000_0004, 0, 0]);
    }

    fn sges() -> impl Strategy<Value = Vec<Sge>> {
        let sge = (any::<u32>(), any::<u32>(), any::<u64>());
        let sge = sge.prop_map(|(s, len, to)| Sge { stag: Stag(s), len, to });
        proptest::collection::vec(sge, 0..=MAX_SGES)
    }

    fn op() -> impl Strategy<Value = SendOp> {
        let place = (any::<u32>(), any::<u64>());
        prop_oneof![
            (any::<bool>(), any::<Option<u32>>())
                .prop_map(|(solicited, s)| SendOp::Send { solicited, invalidate: s.map(Stag) }),
            place.prop_map(|(s, to)| SendOp::Write { stag: Stag(s), to }),
            place.prop_map(|(s, to)| SendOp::Read { stag: Stag(s), to }),
            (any::<u32>(), any::<u64>(), any::<u8>()).prop_map(|(s, to, a)| {
                SendOp::FastRegister(Bind { stag: Stag(s), to, access: Access::from_bits(a) })
            }),
            (any::<u32>(), any::<u64>(), any::<u8>()).prop_map(|(s, to, a)| {
                SendOp::BindWindow(Bind { stag: Stag(s), to, access: Access::from_bits(a) })
            }),
            any::<u32>().prop_map(|s| SendOp::LocalInvalidate { stag: Stag(s) }),
        ]
    }

    proptest! {
        #[test]
        fn test_requests_come_out_as_they_went_in(
            wrs in proptest::collection::vec(
                (op(), any::<u64>(), any::<bool>(), any::<bool>(), sges(),
                 proptest::option::of(proptest::collection::vec(any::<u8>(), 0..=MAX_INLINE))), 1..40)
        ) {
            let r = ring(16);
            let (tail, mut end) = (AtomicU64::new(0), 0);
            let (mut reader, mut entry) = (EntryReader::new(16), Entry::default());
            for (op, wr_id, signaled, fence, sges, inline) in &wrs {
                let data = inline.as_ref().map_or(Data::Sges(sges), |b| Data::Inline(b));
                let wr = SendWr { wr_id: *wr_id, op: *op, data, signaled: *signaled, fence: *fence };
                encode_send(BlockRing::new(&r), end, &wr);
                end += send_blocks(&wr);
                tail.store(end, Ordering::Release);
                prop_assert_eq!(reader.has_next(&tail), Ok(true));
                prop_assert_eq!(reader.send(BlockRing::new(&r), &mut entry), Ok(wr));
                prop_assert_eq!(reader.has_next(&tail), Ok(false));
                let recv = RecvWr { wr_id: *wr_id, sges };
                encode_recv(BlockRing::new(&r), end, &recv);
                end += recv_blocks(&recv);
                tail.store(end, Ordering::Release);
                prop_assert_eq!(reader.has_next(&tail), Ok(true));
                prop_assert_eq!(reader.recv(BlockRing::new(&r), &mut entry), Ok(recv));
            }
        }

        /// Any words and any tail: an error, or a request within every limit; never a panic, never a
        /// step beyond what was published.
        #[test]
        fn test_garbage_is_read_or_refused(
            fill in proptest::collection::vec(any::<u64>(), 16 * BLOCK), tail in any::<u64>(), near in 0u64..20
        ) {
            let r: Vec<AtomicU64> = fill.into_iter().map(AtomicU64::new).collect();
            for tail in [tail, near] {
                let tail = AtomicU64::new(tail);
                let (mut reader, mut entry) = (EntryReader::new(16), Entry::default());
                while let Ok(true) = reader.has_next(&tail) {
                    match reader.send(BlockRing::new(&r), &mut entry) {
                        Ok(wr) => match wr.data {
                            Data::Sges(s) => prop_assert!(s.len() <= MAX_SGES),
                            Data::Inline(b) => prop_assert!(b.len() <= MAX_INLINE),
                        },
                        Err(_) => break,
                    }
                    prop_assert!(reader.head() <= 16);
                }
            }
        }
    }

    #[test]
    fn test_tail_out_of_reach_is_told() {
        let mut reader = EntryReader::new(8);
        assert_eq!(reader.has_next(&AtomicU64::new(9)), Err(Broken::Tail));
        assert_eq!(reader.has_next(&AtomicU64::new(u64::MAX)), Err(Broken::Tail));
        assert_eq!(reader.has_next(&AtomicU64::new(8)), Ok(true));
    }
}
