//! An FPDU to send: header bytes and a reference to the payload.

use super::config::INLINE_PAYLOAD;
use crate::ddp::TAGGED_LEN;
use crate::mpa::fpdu::{CRC_LEN, HEADER_LEN};
use crate::{MemRange, Memory};
use heddle_base::Sum;

/// Room for the longest head: length field, untagged DDP header, inlined payload, CRC; a Read
/// Request is shorter.
pub(super) const HEAD: usize = 56;

/// Part of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Ordinary bytes.
    Bytes(&'a [u8]),
    /// Registered memory.
    Memory(MemRange),
}

/// One FPDU as it goes on the wire, kept until TCP has it acknowledged.
///
/// The payload stays where it is: `head | payload | tail`, where the tail is pad and CRC. What is
/// short, and what has markers in it, lies in the head (or a buffer of its own) altogether.
///
/// With CRC on, an FPDU that refers to memory is *open* until it is first sent: then it is
/// [sealed into the frame](Fpdu::seal_into), copied and digested in one pass, so that the frame's
/// CRC is that of the frame's octets. What is sent again is gathered anew and has the CRC of the
/// first time: if the application changes the memory before the peer has the bytes, the peer sees a
/// wrong CRC, as with any RNIC.
#[derive(Clone, Debug)]
pub struct Fpdu {
    payload: MemRange,
    /// The whole FPDU at its start, if `owned_len` is not 0: a Read Response, long inline data, with
    /// markers, a Terminate. Its memory is used again, and is not shortened, so that it is not
    /// cleared each time.
    owned: Vec<u8>,
    owned_len: u32,
    head: [u8; HEAD],
    tail: [u8; 8],
    head_len: u8,
    tail_len: u8,
    has_sum: bool,
    last: bool,
    snapshot: bool,
    /// It is to have a CRC, which is not computed yet.
    open: bool,
    sum: Sum,
}

impl Default for Fpdu {
    /// An empty one, for [`Qp::poll_transmit_into`](super::Qp::poll_transmit_into) to fill in.
    #[inline]
    fn default() -> Fpdu {
        Fpdu {
            payload: MemRange::EMPTY,
            owned: Vec::new(),
            owned_len: 0,
            head: [0; HEAD],
            tail: [0; 8],
            head_len: 0,
            tail_len: 0,
            has_sum: false,
            last: false,
            snapshot: false,
            open: false,
            sum: Sum::ZERO,
        }
    }
}

const fn pad_of(unpadded: u32) -> usize {
    (unpadded.wrapping_neg() & 3) as usize
}

impl Fpdu {
    /// Empties it for headers to be written: there is room for the length field only.
    #[inline]
    pub(super) fn start(&mut self) {
        self.payload = MemRange::EMPTY;
        self.owned_len = 0;
        self.snapshot = false;
        self.open = false;
        self.head = [0; HEAD];
        self.tail = [0; 8];
        self.head_len = small(HEADER_LEN);
        self.tail_len = 0;
        self.has_sum = false;
        self.sum = Sum::ZERO;
    }

    /// Writes length field and tagged header, `start` being the header's first six octets, in two
    /// stores: the CRC, which reads whole words, would have to wait for smaller ones.
    #[inline]
    pub(super) fn put_tagged(&mut self, payload: u32, start: u64, to: u64) {
        let ulpdu = u64::from(payload) + TAGGED_LEN as u64;
        self.head[..8].copy_from_slice(&(ulpdu << 48 | start).to_be_bytes());
        self.head[8..16].copy_from_slice(&to.to_be_bytes());
        self.head_len = small(HEADER_LEN + TAGGED_LEN);
    }

    /// Appends bytes to the head. The callers' sums stay below [`HEAD`]; what would not fit is cut.
    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let dst = self.room(bytes.len());
        let n = dst.len();
        dst.copy_from_slice(&bytes[..n]);
    }

    /// The next `n` bytes of the head, to be filled in.
    #[inline]
    pub(super) fn room(&mut self, n: usize) -> &mut [u8] {
        let at = usize::from(self.head_len);
        debug_assert!(at + n <= HEAD);
        let end = (at + n).min(HEAD);
        self.head_len = small(end);
        &mut self.head[at..end]
    }

    /// Appends inline data: to the head if it fits, else all becomes owned.
    #[inline]
    pub(super) fn put_inline(&mut self, parts: [&[u8]; 2]) {
        let n = parts[0].len() + parts[1].len();
        if n <= INLINE_PAYLOAD as usize {
            parts.into_iter().for_each(|p| self.put(p));
            return;
        }
        let at = usize::from(self.head_len);
        let owned = self.own(at + n);
        owned[at..at + parts[0].len()].copy_from_slice(parts[0]);
        owned[at + parts[0].len()..at + n].copy_from_slice(parts[1]);
    }

    /// Takes the payload as it is now: what is sent, and sent again, is what its CRC was computed
    /// of, whatever is written to `src` meanwhile.
    #[inline]
    pub(super) fn put_snapshot<M: Memory>(&mut self, mem: &M, src: MemRange, crc: bool) {
        let at = usize::from(self.head_len);
        let end = at + src.len() as usize;
        let ulpdu = u16::try_from(end - HEADER_LEN).unwrap_or(u16::MAX);
        self.head[..HEADER_LEN].copy_from_slice(&ulpdu.to_be_bytes());
        let start = if crc { mem.crc(0, &self.head[..at]) } else { 0 };
        let payload = &mut self.own(end)[at..end];
        let (crc, sum) = match crc {
            true => mem.copy_digest(src, start, payload),
            false => (0, mem.copy_sum(src, payload)),
        };
        // For `complete_owned`.
        self.tail[..4].copy_from_slice(&crc.to_le_bytes());
        self.sum = sum;
        self.snapshot = true;
    }

    /// As [`complete`](Fpdu::complete), for what is owned.
    fn complete_owned<M: Memory>(&mut self, mem: &M, crc: bool) {
        let (at, len) = (usize::from(self.head_len), self.owned_len as usize);
        let body = len.next_multiple_of(4);
        let mut field = 0;
        self.owned[len..body].fill(0);
        if self.snapshot {
            let [a, b, c, d, ..] = self.tail;
            field = mem.crc(u32::from_le_bytes([a, b, c, d]), &self.owned[len..body]);
        } else {
            let ulpdu = u16::try_from(len - HEADER_LEN).unwrap_or(u16::MAX);
            self.owned[..HEADER_LEN].copy_from_slice(&ulpdu.to_be_bytes());
            self.sum = Sum::of(&self.owned[at..len]);
            if crc {
                field = mem.crc(0, &self.owned[..body]);
            }
        }
        let field = if crc { field } else { 0 };
        self.owned[body..body + 4].copy_from_slice(&field.to_le_bytes());
        self.owned_len += u32::try_from(body + 4 - len).unwrap_or(0);
        self.sum = Sum::of(&self.owned[..at])
            .add_at(at, self.sum)
            .add_at(len, Sum::of(&self.owned[len..body + 4]));
        self.has_sum = true;
    }

    /// Makes the first `len` bytes its own, with room for pad and CRC behind them; the head is
    /// there already.
    #[inline]
    fn own(&mut self, len: usize) -> &mut [u8] {
        let room = len.next_multiple_of(4) + 4;
        if self.owned.len() < room {
            self.owned.resize(room, 0);
        }
        let at = usize::from(self.head_len);
        self.owned[..at].copy_from_slice(&self.head[..at]);
        self.owned_len = u32::try_from(len).unwrap_or(0);
        &mut self.owned
    }

    /// An empty one that will use `memory` if it has to own its bytes.
    #[inline]
    pub fn with_memory(memory: Vec<u8>) -> Fpdu {
        Fpdu { owned: memory, ..Fpdu::default() }
    }

    /// The memory it used or was given, to be used again.
    #[inline]
    pub fn into_memory(self) -> Vec<u8> {
        self.owned
    }

    /// Completes an FPDU whose headers are written: fills in the length and pads. One that refers to
    /// memory and is to have a CRC is open then; of any other, CRC and checksum are computed.
    #[inline]
    pub(super) fn complete<M: Memory>(
        &mut self,
        mem: &M,
        payload: MemRange,
        crc: bool,
        want_sum: bool,
        last: bool,
    ) {
        self.last = last;
        if self.owned_len > 0 {
            return self.complete_owned(mem, crc);
        }
        let head_len = usize::from(self.head_len);
        let unpadded = u32::from(self.head_len).wrapping_add(payload.len());
        let ulpdu = unpadded.saturating_sub(2);
        let length = u16::try_from(ulpdu).unwrap_or(u16::MAX).to_be_bytes();
        if self.head[..2] != length {
            self.head[..2].copy_from_slice(&length);
        }
        self.payload = payload;
        let pad = pad_of(unpadded);
        if payload.is_empty() {
            let body = head_len + pad;
            self.head[head_len..body + 4].fill(0);
            if crc {
                let c = mem.crc(0, &self.head[..body]);
                self.head[body..body + 4].copy_from_slice(&c.to_le_bytes());
            }
            self.head_len = small(body + 4);
        } else {
            self.tail_len = small(pad + 4);
            if crc {
                self.open = true;
                return;
            }
        }
        if want_sum {
            self.sum = self.sum(mem);
            self.has_sum = true;
        }
    }

    /// Whether its CRC is still to be computed.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Computes CRC and checksum of an open FPDU whose payload is sent from where it lies.
    pub fn seal<M: Memory>(&mut self, mem: &M) {
        if self.open {
            let crc = mem.crc(0, &self.head[..usize::from(self.head_len)]);
            let (crc, sum) = mem.digest(self.payload, crc);
            self.close(mem, crc, sum);
        }
    }

    /// Writes an FPDU to `dst`, which has just its [length](Fpdu::len). An open one is sealed: each
    /// octet of its payload is loaded once, and what was loaded is written and digested.
    #[inline]
    pub fn seal_into<M: Memory>(&mut self, mem: &M, dst: &mut [u8]) {
        if !self.open {
            self.copy_to(mem, 0, dst);
            return;
        }
        let head_len = usize::from(self.head_len);
        let tail_at = head_len + self.payload.len() as usize;
        let Some((rest, tail)) = dst.split_at_mut_checked(tail_at) else { return };
        let (head, payload) = rest.split_at_mut(head_len);
        head.copy_from_slice(&self.head[..head_len]);
        let crc = mem.crc(0, &self.head[..head_len]);
        let (crc, sum) = mem.copy_digest(self.payload, crc, payload);
        self.close(mem, crc, sum);
        let n = tail.len().min(usize::from(self.tail_len));
        tail[..n].copy_from_slice(&self.tail[..n]);
    }

    /// Ends an open FPDU: `crc` is that of head and payload, `sum` that of the payload.
    #[inline(always)]
    fn close<M: Memory>(&mut self, mem: &M, mut crc: u32, sum: Sum) {
        let pad = usize::from(self.tail_len).saturating_sub(CRC_LEN);
        if pad > 0 {
            crc = mem.crc(crc, &self.tail[..pad]);
        }
        // Pad and CRC as one number: read back from where it was stored in pieces, the sum would
        // have to wait.
        let tail = (u64::from(crc) << (8 * pad)).to_le_bytes();
        self.tail = tail;
        self.sum = self.join(sum, &tail);
        self.has_sum = true;
        self.open = false;
    }

    /// An FPDU whose bytes are all here.
    pub(super) fn owned(bytes: Vec<u8>, last: bool) -> Fpdu {
        let owned_len = u32::try_from(bytes.len()).unwrap_or(0);
        let sum = Sum::of(&bytes);
        Fpdu { sum, owned: bytes, owned_len, has_sum: true, last, ..Fpdu::default() }
    }

    /// Bytes in all; a multiple of 4.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    #[inline]
    pub fn len(&self) -> u32 {
        if self.owned_len > 0 {
            return self.owned_len;
        }
        u32::from(self.head_len) + self.payload.len() + u32::from(self.tail_len)
    }

    /// Whether it ends its message: nothing of it will follow.
    pub const fn ends_message(&self) -> bool {
        self.last
    }

    /// The bytes before the payload; all bytes when [`payload`](Fpdu::payload) is `None`.
    #[inline]
    pub fn head(&self) -> &[u8] {
        if self.owned_len > 0 {
            return &self.owned[..self.owned_len as usize];
        }
        &self.head[..usize::from(self.head_len)]
    }

    /// The same, kept on the same account as `other`, of which it is a copy.
    pub(super) fn kept_like(mut self, other: &Fpdu) -> Fpdu {
        self.snapshot = other.snapshot;
        self
    }

    /// Whether its payload was taken as it was when the FPDU was made.
    #[inline]
    pub(super) fn is_snapshot(&self) -> bool {
        self.snapshot
    }

    /// Octets of a snapshot that this FPDU keeps until it is dropped; 0 when it keeps none.
    #[inline]
    pub fn snapshot_len(&self) -> u32 {
        if self.snapshot { self.owned_len } else { 0 }
    }

    /// Memory that was given and is not used.
    #[inline]
    pub fn take_unused(&mut self) -> Vec<u8> {
        if self.owned_len > 0 { Vec::new() } else { core::mem::take(&mut self.owned) }
    }

    /// The payload that stays in registered memory.
    #[inline]
    pub fn payload(&self) -> Option<MemRange> {
        (!self.payload.is_empty()).then_some(self.payload)
    }

    /// The bytes after the payload: pad and CRC.
    #[inline]
    pub fn tail(&self) -> &[u8] {
        &self.tail[..usize::from(self.tail_len)]
    }

    /// Internet checksum of all bytes; of an open FPDU, that of a CRC field of zeros. Free when the
    /// FPDU was sealed or made with `want_sum`; otherwise reads the payload.
    #[inline]
    pub fn sum<M: Memory>(&self, mem: &M) -> Sum {
        if self.has_sum {
            return self.sum;
        }
        match self.payload() {
            Some(p) => self.join(mem.sum(p), &self.tail),
            None => Sum::of(self.head()),
        }
    }

    #[inline]
    fn join(&self, payload: Sum, tail: &[u8; 8]) -> Sum {
        let at = usize::from(self.head_len);
        // Head and tail are zero behind their ends: whole words are summed, without a look at how
        // long they are.
        Sum::of_words(&self.head)
            .add_at(at, payload)
            .add_at(at + self.payload.len() as usize, Sum::of_words(tail))
    }

    /// Calls `f` with the pieces of bytes `[off, off + len)`, in order and none of them empty;
    /// stops early at the end of the FPDU.
    pub fn for_each_piece(&self, off: u32, len: u32, mut f: impl FnMut(Piece<'_>)) {
        let (mut skip, mut left) = (off, len);
        let mut part = |total: u32| -> Option<(u32, u32)> {
            if skip >= total {
                skip -= total;
                return None;
            }
            let n = (total - skip).min(left);
            let at = core::mem::take(&mut skip);
            left -= n;
            (n > 0).then_some((at, n))
        };
        let bytes = |b: &[u8]| u32::try_from(b.len()).unwrap_or(u32::MAX);
        // What is owned is all of it.
        let tail = if self.owned_len > 0 { &[] } else { self.tail() };
        let head = self.head();
        if let Some((at, n)) = part(bytes(head)) {
            f(Piece::Bytes(&head[at as usize..(at + n) as usize]));
        }
        if let Some(p) = part(self.payload.len()).and_then(|(at, n)| self.payload.slice(at, n)) {
            f(Piece::Memory(p));
        }
        if let Some((at, n)) = part(bytes(tail)) {
            f(Piece::Bytes(&tail[at as usize..(at + n) as usize]));
        }
    }

    /// Copies bytes from `off` on into `dst`; returns how many there were.
    pub fn copy_to<M: Memory>(&self, mem: &M, off: u32, dst: &mut [u8]) -> usize {
        let mut done = 0;
        let len = u32::try_from(dst.len()).unwrap_or(u32::MAX);
        self.for_each_piece(off, len, |piece| match piece {
            Piece::Bytes(b) => {
                dst[done..done + b.len()].copy_from_slice(b);
                done += b.len();
            }
            Piece::Memory(range) => {
                let n = range.len() as usize;
                mem.gather(range, &mut dst[done..done + n]);
                done += n;
            }
        });
        done
    }
}

/// Head and tail lengths are at most [`HEAD`].
#[expect(clippy::cast_possible_truncation)]
const fn small(n: usize) -> u8 {
    n as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestMemory;

    #[test]
    fn test_size_fits_two_cache_lines() {
        assert!(size_of::<Fpdu>() <= 128, "{}", size_of::<Fpdu>());
    }

    fn sample(mem: &TestMemory, payload: u32, crc: bool, want_sum: bool) -> Fpdu {
        let mut f = Fpdu::default();
        f.start();
        f.put(&[0xc1; 14]);
        f.complete(mem, MemRange::new(3, payload, 0), crc, want_sum, true);
        assert_eq!(f.is_open(), crc && payload > 0);
        f
    }

    #[test]
    fn test_bytes_are_the_same_in_any_pieces_and_the_sum_is_theirs() {
        let mem = TestMemory::new(256, 0);
        mem.write(0, &(0..=255).collect::<Vec<u8>>());
        for payload in [0, 1, 2, 3, 4, 33, 100, 101, 102, 103] {
            for (crc, want_sum) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut f = sample(&mem, payload, crc, want_sum);
                let mut framed = vec![0xdd; f.len() as usize];
                f.clone().seal_into(&mem, &mut framed);
                f.seal(&mem);
                let mut whole = vec![0; f.len() as usize + 9];
                let n = f.copy_to(&mem, 0, &mut whole);
                assert_eq!((n, n % 4), (f.len() as usize, 0));
                whole.truncate(n);
                assert_eq!(whole, framed);
                assert_eq!(f.sum(&mem).folded() % 0xffff, Sum::of(&whole).folded() % 0xffff);
                let want = if crc { crc32c::crc32c(&whole[..n - 4]) } else { 0 };
                assert_eq!(whole[n - 4..], want.to_le_bytes());
                assert_eq!(whole[..2], u16::try_from(14 + payload).unwrap().to_be_bytes());
                for off in 0..n {
                    for len in [1, 2, 7, 40] {
                        let mut part = vec![0; len];
                        let m = f.copy_to(&mem, u32::try_from(off).unwrap(), &mut part);
                        assert_eq!(m, len.min(n - off));
                        assert_eq!(part[..m], whole[off..off + m]);
                    }
                }
            }
        }
    }
    /// Sealed into a frame it is, from then on, what was put into the frame.
    #[test]
    fn test_memory_may_change_after_an_fpdu_was_sealed_into_its_frame() {
        for payload in [33, 100, 101, 102, 103] {
            let mem = TestMemory::new(256, 7);
            let mut f = sample(&mem, payload, true, true);
            // Cut before it changes: the CRC is that of what is sent.
            mem.write(0, &[8; 128]);
            let n = f.len() as usize;
            let mut framed = vec![0; n];
            f.seal_into(&mem, &mut framed);
            mem.write(0, &[9; 256]);
            assert!(!f.is_open());
            assert_eq!(framed[n - 4..], crc32c::crc32c(&framed[..n - 4]).to_le_bytes());
            assert_eq!(framed[16..16 + payload as usize], vec![8; payload as usize]);
            assert_eq!(f.sum(&mem).folded() % 0xffff, Sum::of(&framed).folded() % 0xffff);
            // Sent again: what is there now, with the CRC of the first time.
            let mut again = vec![0; n];
            f.seal_into(&mem, &mut again);
            assert_eq!(again[16..16 + payload as usize], vec![9; payload as usize]);
            assert_eq!(again[n - 4..], framed[n - 4..]);
        }
    }
}
