//! Encodes requests for a ring.

use heddle_base::sync::atomic::Ordering;
use heddle_types::{AtomicOp, Bind, Data, RecvWr, SendOp, SendWr, Stag};

use super::{BlockRing, LONG_HEAD, RECV_HEAD, SEND_HEAD, pair};
use crate::layout::{BLOCK, blocks, flag, opcode};

/// A request that has passed the static rules, as it will lie in its ring, without its data: the
/// `N` words before the data.
#[derive(Clone, Copy)]
pub struct Encoded<const N: usize> {
    head: [u64; N],
    /// Blocks that the request takes.
    pub blocks: u64,
}

/// Returns the head of a send request, or `None` when the request has operands: see
/// [`encode_with_operands`].
#[inline]
pub fn encode_send(wr: &SendWr<'_>) -> Option<Encoded<SEND_HEAD>> {
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

/// Returns the data counts that the first word of a request carries, and the number of words that
/// the data take.
#[inline]
fn counts(data: &Data<'_>) -> (u64, usize) {
    match data {
        Data::Sges(s) => ((s.len() as u64) << 16, 2 * s.len()),
        Data::Inline(b) => (flag::INLINE << 8 | (b.len() as u64) << 32, b.len().div_ceil(8)),
    }
}

/// Returns the head of a send request, with room for operands.
pub fn encode_with_operands(wr: &SendWr<'_>) -> Encoded<LONG_HEAD> {
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

/// Returns the head of a receive request.
#[inline]
pub fn encode_recv(wr: &RecvWr<'_>) -> Encoded<RECV_HEAD> {
    let blocks = blocks(opcode::RECV, 2 * wr.sges.len()) as u64;
    let first = opcode::RECV | (wr.sges.len() as u64) << 16 | blocks << 24;
    Encoded { head: [first, wr.wr_id], blocks }
}

/// Returns the bits by which the first word of a request says that the request before it has so
/// many blocks.
#[inline]
pub const fn behind(blocks: u64) -> u64 {
    blocks << 48
}

/// Writes a request at block `at`, with the bits `before` that say how long the request before it
/// is ([`behind`]). The caller publishes the request by moving the tail. Words that the request
/// does not need keep their contents.
#[inline]
pub fn store<const N: usize>(
    ring: BlockRing<'_>,
    (at, before): (u64, u64),
    wr: Encoded<N>,
    data: &Data<'_>,
) {
    let Some(block) = ring.block(at) else { return };
    let Some((head, rest)) = block.split_first_chunk::<N>() else { return };
    for (i, (to, word)) in head.iter().zip(wr.head).enumerate() {
        to.store(if i == 0 { word | before } else { word }, Ordering::Relaxed);
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

/// Writes the data of an entry of several blocks, `head` words into the entry.
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

/// Returns the last bytes of inline data, fewer than a word, filled up with zeros.
#[inline(never)]
fn last_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, byte) in word.iter_mut().zip(bytes) {
        *to = *byte;
    }
    u64::from_ne_bytes(word)
}

/// Returns word 2 of an operation on STags.
fn stag_with_rights(b: &Bind) -> u64 {
    pair(b.stag.0, b.access.bits().into())
}
