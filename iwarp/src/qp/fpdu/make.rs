//! Makes an FPDU in its place in a queue.

use super::{BARE, Form, Fpdu, HEAD, NO_MARKERS, TAIL, count, pad, small};
use crate::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use crate::mpa::fpdu::{CRC_LEN, HEADER_LEN};
use crate::qp::buffers::Buffers;
use crate::qp::config::INLINE_PAYLOAD;
use heddle_mr::{MemRange, Memory};

/// The caller puts the headers first, then the payload, then calls [`complete`](Fpdu::complete).
impl Fpdu {
    /// Empties the FPDU, and writes length field and tagged header, of which `start` is the first
    /// six bytes. Uses few large stores: the CRC reads whole words and would have to wait for
    /// smaller stores.
    #[inline]
    pub(in crate::qp) fn put_tagged(&mut self, payload: u32, start: u64, to: u64) {
        let ulpdu = u64::from(payload) + TAGGED_LEN as u64;
        self.start(HEADER_LEN + TAGGED_LEN, [ulpdu << 48 | start, to, 0]);
    }

    /// Writes an untagged header as [`put_tagged`](Fpdu::put_tagged) writes a tagged one.
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

    /// Returns the next `n` bytes of the head, for the caller to fill in. The callers' sums stay
    /// below [`HEAD`]; this function cuts what would not fit.
    #[inline]
    pub(in crate::qp) fn room(&mut self, n: usize) -> &mut [u8] {
        let at = usize::from(self.head_len);
        debug_assert!(at + n <= HEAD);
        let end = (at + n).min(HEAD);
        self.head_len = small(end);
        self.head.get_mut(at..end).unwrap_or_default()
    }

    /// Copies inline data: to the head if it fits, else the FPDU owns all its bytes.
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

    /// Makes the FPDU refer to its payload.
    #[inline]
    pub(in crate::qp) fn put_reference(&mut self, payload: MemRange) {
        self.payload = payload;
        self.form = Form::Sealed;
    }

    /// Copies the payload as it is now, and completes the FPDU. So the sent and retransmitted bytes
    /// are those of which the CRC was computed, even if `src` changes meanwhile.
    #[inline]
    pub(in crate::qp) fn put_snapshot<M: Memory>(
        &mut self,
        mem: &M,
        src: MemRange,
        crc: bool,
        buffers: &mut Buffers,
    ) {
        self.payload = src;
        let end = self.unpadded();
        buffers.take(&mut self.owned, end + TAIL);
        self.take_snapshot(mem, crc, buffers.sums);
    }

    /// Makes the FPDU refer to its payload until it is filled into its frame or sealed, which takes
    /// the snapshot. It is to have a CRC, and no checksum of ours.
    #[inline]
    pub(in crate::qp) fn owe_snapshot(&mut self, src: MemRange, buffers: &mut Buffers) {
        self.put_reference(src);
        self.snapshot = true;
        let end = self.unpadded();
        buffers.take(&mut self.owned, end + TAIL);
    }

    /// Takes the snapshot of the payload, for which there is room.
    #[inline]
    pub(in crate::qp) fn take_snapshot<M: Memory>(&mut self, mem: &M, crc: bool, sums: bool) {
        let (src, at, end) = (self.payload, usize::from(self.head_len), self.unpadded());
        self.own_head();
        let whole = self.owned.get_mut(..end).unwrap_or_default();
        let start = if crc && sums { mem.crc(0, &self.head[..at]) } else { 0 };
        let (digest, sum) = match (crc, sums) {
            (true, true) => {
                let (digest, sum) = mem.copy_digest(src, start, &mut whole[at..]);
                (digest, Some(sum))
            }
            (true, false) => (mem.copy_framed(src, at, whole, None), None),
            (false, true) => (0, Some(mem.copy_sum(src, &mut whole[at..]))),
            (false, false) => {
                mem.gather(src, &mut whole[at..]);
                (0, None)
            }
        };
        self.close(mem, crc.then_some(digest), sum);
        self.own_tail();
    }

    /// Writes the head to the FPDU's own memory.
    #[inline]
    pub(super) fn own_head(&mut self) {
        let at = usize::from(self.head_len);
        match (self.owned.first_chunk_mut::<BARE>(), self.head.first_chunk()) {
            (Some(room), Some(head)) => *room = *head,
            _ => self.owned[..at].copy_from_slice(&self.head[..at]),
        }
    }

    /// Writes the tail to the FPDU's own memory, which is then all of it.
    #[inline]
    pub(super) fn own_tail(&mut self) {
        let end = self.unpadded();
        if let Some(room) = self.owned.get_mut(end..).and_then(|o| o.first_chunk_mut()) {
            // There is room for all of it.
            *room = self.tail;
        }
        (self.form, self.snapshot) = (Form::Owned, true);
        self.len = count(end + pad(end) + CRC_LEN);
    }

    /// Makes the FPDU own its first `len` bytes, with room for pad and CRC after them. The head is
    /// already written.
    #[inline]
    fn own(&mut self, len: usize, buffers: &mut Buffers) -> &mut [u8] {
        buffers.take(&mut self.owned, len + TAIL);
        self.own_head();
        self.form = Form::Owned;
        self.len = count(len);
        &mut self.owned
    }

    /// Completes an FPDU whose headers and payload are in place: pads it and computes its CRC, if
    /// it has one. An FPDU that refers to memory and is to have a CRC becomes open instead.
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

    /// Completes an FPDU that is all in the head, of which `end` bytes are in place.
    #[inline(always)]
    fn complete_short<M: Memory>(&mut self, mem: &M, crc: bool, end: usize) {
        let body = end + pad(end);
        self.head[end..end + CRC_LEN].fill(0);
        let field = if crc { mem.crc(0, &self.head[..body]) } else { 0 };
        self.head[body..body + CRC_LEN].copy_from_slice(&field.to_le_bytes());
        self.head_len = small(body + CRC_LEN);
        self.len = count(body + CRC_LEN);
    }

    /// Completes the only FPDU of a message after its header: `len` bytes of payload, at most
    /// [`INLINE_PAYLOAD`], which `fill` writes to their place.
    #[inline(always)]
    pub(in crate::qp) fn put_short<M: Memory>(
        &mut self,
        mem: &M,
        crc: bool,
        len: u32,
        fill: impl FnOnce(&mut [u8]),
    ) {
        // Keep the length in registers: reading it back from memory would have to wait for the
        // writes to the head.
        let at = usize::from(self.head_len).min(BARE);
        let end = at + len.min(INLINE_PAYLOAD) as usize;
        fill(&mut self.head[at..end]);
        self.complete_short(mem, crc, end);
        self.last = true;
    }

    /// Makes an FPDU that owns all its bytes.
    pub(in crate::qp) fn owned(bytes: Vec<u8>) -> Fpdu {
        Fpdu { len: count(bytes.len()), owned: bytes, form: Form::Owned, ..Fpdu::default() }
    }

    /// Sets whether the FPDU ends its message.
    #[inline]
    pub(in crate::qp) fn set_last(&mut self, last: bool) {
        self.last = last;
    }
}
