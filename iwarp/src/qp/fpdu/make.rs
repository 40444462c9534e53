//! Making an FPDU, in its place in a queue.

use super::{BARE, Form, Fpdu, HEAD, NO_MARKERS, TAIL, count, pad, small};
use crate::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use crate::mpa::fpdu::{CRC_LEN, HEADER_LEN};
use crate::qp::buffers::Buffers;
use crate::qp::config::INLINE_PAYLOAD;
use crate::{MemRange, Memory};

/// Headers first, then the payload, then [`complete`](Fpdu::complete).
impl Fpdu {
    /// Empties it and writes length field and tagged header, `start` being the header's first six
    /// octets, in two stores: the CRC, which reads whole words, would have to wait for smaller ones.
    #[inline]
    pub(in crate::qp) fn put_tagged(&mut self, payload: u32, start: u64, to: u64) {
        let ulpdu = u64::from(payload) + TAGGED_LEN as u64;
        self.start(HEADER_LEN + TAGGED_LEN, [ulpdu << 48 | start, to, 0]);
    }

    /// As [`put_tagged`](Fpdu::put_tagged), an untagged header.
    #[inline]
    pub(in crate::qp) fn put_untagged(&mut self, payload: u32, start: u64, qn_msn: u64, mo: u32) {
        let ulpdu = u64::from(payload) + UNTAGGED_LEN as u64;
        self.start(HEADER_LEN + UNTAGGED_LEN, [ulpdu << 48 | start, qn_msn, u64::from(mo) << 32]);
    }

    #[inline(always)]
    fn start(&mut self, len: usize, words: [u64; BARE / 8]) {
        for (room, word) in self.head.chunks_exact_mut(8).zip(words) {
            room.copy_from_slice(&word.to_be_bytes());
        }
        self.head_len = small(len);
        self.form = Form::Short;
        self.snapshot = false;
        self.marks = NO_MARKERS;
        self.sum = None;
    }

    /// The next `n` bytes of the head, to be filled in. The callers' sums stay below [`HEAD`]; what
    /// would not fit is cut.
    #[inline]
    pub(in crate::qp) fn room(&mut self, n: usize) -> &mut [u8] {
        let at = usize::from(self.head_len);
        debug_assert!(at + n <= HEAD);
        let end = (at + n).min(HEAD);
        self.head_len = small(end);
        self.head.get_mut(at..end).unwrap_or_default()
    }

    /// Takes inline data: to the head if it fits, else all becomes owned.
    #[inline]
    pub(in crate::qp) fn put_inline(&mut self, parts: [&[u8]; 2], buffers: &mut Buffers) {
        let [a, b] = parts;
        let n = a.len() + b.len();
        let room = if n <= INLINE_PAYLOAD as usize {
            self.room(n)
        } else {
            let at = usize::from(self.head_len);
            &mut self.own(at + n, buffers)[at..at + n]
        };
        room[..a.len()].copy_from_slice(a);
        room[a.len()..].copy_from_slice(b);
    }

    /// Refers to its payload.
    #[inline]
    pub(in crate::qp) fn put_reference(&mut self, payload: MemRange) {
        self.payload = payload;
        self.form = Form::Sealed;
    }

    /// Takes the payload as it is now, and completes it: what is sent, and sent again, is what its
    /// CRC was computed of, whatever is written to `src` meanwhile.
    #[inline]
    pub(in crate::qp) fn put_snapshot<M: Memory>(
        &mut self,
        mem: &M,
        src: MemRange,
        crc: bool,
        buffers: &mut Buffers,
    ) {
        self.payload = src;
        let (at, end) = (usize::from(self.head_len), self.unpadded());
        let start = if crc { mem.crc(0, &self.head[..at]) } else { 0 };
        let payload = &mut self.own(end, buffers)[at..end];
        let (digest, sum) = match crc {
            true => mem.copy_digest(src, start, payload),
            false => (0, mem.copy_sum(src, payload)),
        };
        self.close(mem, crc.then_some(digest), sum);
        let (tail, pad) = (self.tail, pad(end));
        let n = pad + CRC_LEN;
        self.owned[end..end + n].copy_from_slice(&tail[..n]);
        (self.form, self.snapshot) = (Form::Owned, true);
        self.len = count(end + n);
    }

    /// Makes the first `len` bytes its own, with room for pad and CRC behind them; the head is
    /// there already.
    #[inline]
    fn own(&mut self, len: usize, buffers: &mut Buffers) -> &mut [u8] {
        buffers.take(&mut self.owned, len + TAIL);
        let at = usize::from(self.head_len);
        match self.owned.first_chunk_mut::<BARE>() {
            Some(room) => room.copy_from_slice(&self.head[..BARE]),
            None => self.owned[..at].copy_from_slice(&self.head[..at]),
        }
        self.form = Form::Owned;
        self.len = count(len);
        &mut self.owned
    }

    /// Completes an FPDU whose headers and payload are there: pads. One that refers to memory and is
    /// to have a CRC is open then; of any other the CRC is computed.
    #[inline(always)]
    pub(in crate::qp) fn complete<M: Memory>(&mut self, mem: &M, crc: bool) {
        match self.form {
            Form::Short => self.complete_short(mem, crc, usize::from(self.head_len)),
            Form::Open | Form::Sealed => {
                let end = self.unpadded();
                self.len = count(end + pad(end) + CRC_LEN);
                self.tail = [0; TAIL];
                self.form = if crc { Form::Open } else { Form::Sealed };
            }
            Form::Owned if self.snapshot => {}
            Form::Owned => {
                let end = self.len as usize;
                let body = end + pad(end);
                self.owned[end..body].fill(0);
                let field = if crc { mem.crc(0, &self.owned[..body]) } else { 0 };
                self.owned[body..body + CRC_LEN].copy_from_slice(&field.to_le_bytes());
                self.len = count(body + CRC_LEN);
            }
        }
    }

    /// Completes one that lies in the head altogether, `end` bytes of which are there.
    #[inline(always)]
    fn complete_short<M: Memory>(&mut self, mem: &M, crc: bool, end: usize) {
        let body = end + pad(end);
        self.head[end..end + CRC_LEN].fill(0);
        let field = if crc { mem.crc(0, &self.head[..body]) } else { 0 };
        self.head[body..body + CRC_LEN].copy_from_slice(&field.to_le_bytes());
        self.head_len = small(body + CRC_LEN);
        self.len = count(body + CRC_LEN);
    }

    /// All of an FPDU of a message that is this one, behind its header: `len` bytes of payload, at most
    /// [`INLINE_PAYLOAD`], which `fill` writes to their place.
    #[inline(always)]
    pub(in crate::qp) fn put_short<M: Memory>(
        &mut self,
        mem: &M,
        crc: bool,
        len: u32,
        fill: impl FnOnce(&mut [u8]),
    ) {
        // How long it is stays in registers: read back, it would have been in the way of what is
        // written to the head meanwhile.
        let at = usize::from(self.head_len).min(BARE);
        let end = at + len.min(INLINE_PAYLOAD) as usize;
        fill(&mut self.head[at..end]);
        self.complete_short(mem, crc, end);
        self.last = true;
    }

    /// An FPDU whose bytes are all here.
    pub(in crate::qp) fn owned(bytes: Vec<u8>) -> Fpdu {
        Fpdu { len: count(bytes.len()), owned: bytes, form: Form::Owned, ..Fpdu::default() }
    }

    /// Says whether it ends its message.
    #[inline]
    pub(in crate::qp) fn set_last(&mut self, last: bool) {
        self.last = last;
    }
}
