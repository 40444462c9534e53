//! An FPDU to send: header bytes and a reference to the payload.

mod make;
mod marks;
#[cfg(test)]
mod tests;

use super::buffers::Buffers;
use crate::ddp::UNTAGGED_LEN;
use crate::mpa::fpdu::{CRC_LEN, HEADER_LEN, pad_len};
use heddle_base::Sum;
use heddle_mr::{MemRange, Memory};

/// Room for the longest head: length field, untagged DDP header, inlined payload, CRC. A Read
/// Request is shorter.
pub(super) const HEAD: usize = 56;

/// Room for the head of an FPDU whose payload is in registered memory, in whole words.
const BARE: usize = 24;
const _: () = assert!(HEADER_LEN + UNTAGGED_LEN <= BARE);

/// Stored in place of an offset by an FPDU without markers.
const NO_MARKERS: u8 = u8::MAX;

/// Room for pad and CRC, in whole words.
const TAIL: usize = 8;

/// A part of an FPDU, in order of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Ordinary bytes.
    Bytes(&'a [u8]),
    /// Registered memory.
    Memory(MemRange),
}

/// The places of the bytes of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// All bytes are in the head.
    Short,
    /// In the head and in registered memory; the CRC is not computed yet.
    Open,
    /// In the head, registered memory, and the tail.
    Sealed,
    /// All bytes are in memory of the FPDU's own.
    Owned,
}

/// An FPDU as on the wire, kept until the peer's TCP has acknowledged it.
///
/// The payload stays where it is: `head | payload | tail`, where the tail is pad and CRC. A short
/// FPDU is all in the head; a Read Response, long inline data or a Terminate is in a buffer of its
/// own. None of these holds markers, which follow from the FPDU's place in the stream. The FPDU
/// inserts the markers, piece by piece, each time it is written to a frame.
///
/// With CRC on, an FPDU that refers to memory is *open* until it is first sent: then the sender
/// [fills it into the frame](Fpdu::fill), copied and digested in one pass, so that the frame's CRC
/// is that of the frame's bytes. A retransmission gathers the payload anew and has the CRC of the
/// first time. So if the application changes the memory before the peer has the bytes, the peer
/// sees a wrong CRC, as with any RNIC.
///
/// An FPDU of a Read Response keeps a snapshot. Where the copy into the frame can make it in passing,
/// the FPDU is open at first, with room for it, and refers to memory no longer than a turn of its
/// owner: filling or sealing it takes the snapshot.
///
/// The QP makes an FPDU in its place in a queue, over older contents: bytes of the head after its
/// length have no meaning.
#[derive(Clone, Debug)]
pub struct Fpdu {
    head: [u8; HEAD],
    tail: [u8; TAIL],
    /// Meaningful only in the two forms that refer to memory.
    payload: MemRange,
    /// The whole FPDU at the start, in the form that owns its bytes. The vector is not shortened to
    /// it, so that reused memory is not cleared each time.
    owned: Vec<u8>,
    /// Bytes of the whole FPDU on the wire.
    len: u32,
    head_len: u8,
    form: Form,
    last: bool,
    /// True if the FPDU owns a copy of its payload, or, while open, is about to.
    snapshot: bool,
    /// A fourth of the FPDU's offset modulo 512 in a stream with markers, or [`NO_MARKERS`].
    marks: u8,
    /// The checksum of all bytes, if a copy or a CRC has computed it in passing.
    sum: Option<Sum>,
}

impl Default for Fpdu {
    /// Makes an empty FPDU for
    /// [`QpContext::poll_transmit_into`](super::QpContext::poll_transmit_into) to fill in.
    #[inline]
    fn default() -> Fpdu {
        Fpdu {
            head: [0; HEAD],
            tail: [0; TAIL],
            payload: MemRange::EMPTY,
            owned: Vec::new(),
            len: 0,
            head_len: 0,
            form: Form::Short,
            last: false,
            snapshot: false,
            marks: NO_MARKERS,
            sum: None,
        }
    }
}

impl Fpdu {
    /// Returns true if the CRC is not computed yet.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.form == Form::Open
    }

    /// Returns true if the FPDU can be [filled](Fpdu::fill) into a frame: true unless its payload
    /// is better sent from registered memory.
    #[inline]
    pub fn is_fillable(&self) -> bool {
        self.form != Form::Sealed
    }

    /// Returns the number of bytes of payload that the CRC still has to read.
    #[inline]
    pub fn open_len(&self) -> u32 {
        if self.is_open() && !self.snapshot { self.payload.len() } else { 0 }
    }

    /// Returns true if the snapshot is still to be taken.
    #[inline]
    pub fn owes_snapshot(&self) -> bool {
        self.is_open() && self.snapshot
    }

    /// Computes CRC and checksum of an open FPDU whose payload is sent from registered memory, or
    /// takes its snapshot.
    pub fn seal<M: Memory>(&mut self, mem: &M) {
        if self.has_markers() {
            self.seal_marked(mem, None);
        } else if self.owes_snapshot() {
            self.take_snapshot(mem, true, true);
        } else if self.is_open() {
            let crc = mem.crc(0, &self.head[..usize::from(self.head_len)]);
            let (crc, sum) = mem.digest(self.payload, crc);
            self.close(mem, Some(crc), Some(sum));
            self.form = Form::Sealed;
        }
    }

    /// Writes a [fillable](Fpdu::is_fillable) FPDU to the start of `dst`, and meaningless data to a
    /// few bytes after it if `dst` is longer; `dst` has at least the FPDU's [length](Fpdu::len).
    /// Returns the checksum, or `None` if the caller still has to compute it of the written bytes,
    /// as it may have to without `want_sum`.
    ///
    /// A call seals an open FPDU: it loads each byte of the payload once, and writes and digests
    /// the loaded value.
    #[inline]
    pub fn fill<M: Memory>(&mut self, mem: &M, dst: &mut [u8], want_sum: bool) -> Option<Sum> {
        if self.has_markers() {
            return self.fill_marked(mem, dst);
        }
        let len = self.len as usize;
        match self.form {
            // Copy whole words, if they fit: later writes overwrite the surplus.
            Form::Short => match dst.first_chunk_mut::<HEAD>() {
                Some(room) => *room = self.head,
                None => dst.get_mut(..len)?.copy_from_slice(&self.head[..len]),
            },
            Form::Owned => dst.get_mut(..len)?.copy_from_slice(&self.owned[..len]),
            Form::Open if self.snapshot => self.keep_and_fill(mem, dst.get_mut(..len)?),
            Form::Open => self.seal_into(mem, dst.get_mut(..len)?, want_sum),
            Form::Sealed => {
                self.copy_to(mem, 0, dst.get_mut(..len)?);
                return None;
            }
        }
        self.sum
    }

    #[inline(always)]
    fn seal_into<M: Memory>(&mut self, mem: &M, dst: &mut [u8], want_sum: bool) {
        let (head_len, end) = (usize::from(self.head_len), self.unpadded());
        // Copy whole words: the payload then overwrites the surplus.
        match (dst.first_chunk_mut::<BARE>(), self.head.first_chunk()) {
            (Some(room), Some(head)) => *room = *head,
            _ => dst[..head_len].copy_from_slice(&self.head[..head_len]),
        }
        let Some((rest, tail)) = dst.split_at_mut_checked(end) else { return };
        if want_sum {
            let crc = mem.crc(0, &self.head[..head_len]);
            let (crc, sum) = mem.copy_digest(self.payload, crc, &mut rest[head_len..]);
            self.close(mem, Some(crc), Some(sum));
        } else {
            let crc = mem.copy_framed(self.payload, head_len, rest, None);
            self.close(mem, Some(crc), None);
        }
        self.form = Form::Sealed;
        put_tail(tail, self.tail);
    }

    /// Fills an FPDU that owes its snapshot into `dst`, which has its length: frame and snapshot get
    /// their bytes in one pass.
    fn keep_and_fill<M: Memory>(&mut self, mem: &M, dst: &mut [u8]) {
        let (head_len, end) = (usize::from(self.head_len), self.unpadded());
        self.own_head();
        let Some((rest, tail)) = dst.split_at_mut_checked(end) else { return };
        match (rest.first_chunk_mut::<BARE>(), self.head.first_chunk()) {
            (Some(room), Some(head)) => *room = *head,
            _ => rest[..head_len].copy_from_slice(&self.head[..head_len]),
        }
        let crc = mem.copy_framed(self.payload, head_len, rest, self.owned.get_mut(..end));
        self.close(mem, Some(crc), None);
        self.own_tail();
        put_tail(tail, self.tail);
    }

    /// Returns the length of the whole FPDU in bytes; a multiple of 4.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if the FPDU ends its message: no segment of the message follows.
    pub const fn ends_message(&self) -> bool {
        self.last
    }

    /// Returns the bytes before the payload; all bytes when [`payload`](Fpdu::payload) is `None`.
    #[inline]
    pub fn head(&self) -> &[u8] {
        match self.form {
            Form::Owned => &self.owned[..self.plain_len()],
            _ => &self.head[..usize::from(self.head_len)],
        }
    }

    /// Returns the number of bytes of a snapshot that this FPDU keeps until it is dropped; 0 when
    /// it keeps none.
    #[inline]
    pub fn snapshot_len(&self) -> u32 {
        if self.snapshot { self.len } else { 0 }
    }

    /// Empties the FPDU, and gives memory of its own to `buffers` for reuse.
    #[inline]
    pub fn clear(&mut self, buffers: &mut Buffers) {
        if self.form == Form::Owned || self.snapshot {
            buffers.give(core::mem::take(&mut self.owned));
        }
        (self.form, self.snapshot, self.len) = (Form::Short, false, 0);
    }

    /// Returns the payload that stays in registered memory.
    #[inline]
    pub fn payload(&self) -> Option<MemRange> {
        let refers = matches!(self.form, Form::Open | Form::Sealed) && !self.snapshot;
        refers.then_some(self.payload)
    }

    /// Returns the bytes after the payload: pad and CRC.
    #[inline]
    pub fn tail(&self) -> &[u8] {
        match self.form {
            Form::Open | Form::Sealed => {
                let n = pad(self.unpadded()) + CRC_LEN;
                self.tail.get(..n).unwrap_or_default()
            }
            Form::Short | Form::Owned => &[],
        }
    }

    /// Returns the Internet checksum of all bytes; for an open FPDU, as if the CRC field were zero.
    /// The call is free when the sum was computed with the CRC of the payload; otherwise it reads
    /// the payload.
    #[inline]
    pub fn sum<M: Memory>(&self, mem: &M) -> Sum {
        match (self.sum, self.payload()) {
            (Some(sum), _) => sum,
            _ if self.has_markers() => self.sum_marked(mem),
            (None, Some(p)) => self.join(mem.sum(p), &self.tail),
            (None, None) => Sum::of(self.head()),
        }
    }

    /// Returns the number of bytes of head and payload.
    #[inline]
    fn unpadded(&self) -> usize {
        usize::from(self.head_len) + self.payload.len() as usize
    }

    /// Ends an FPDU whose payload is in registered memory. `crc`, if the FPDU is to have one, is
    /// that of head and payload, `sum`, if known, that of the payload.
    #[inline(always)]
    fn close<M: Memory>(&mut self, mem: &M, crc: Option<u32>, sum: Option<Sum>) {
        let pad = pad(self.unpadded());
        let crc = match crc {
            Some(crc) if pad > 0 => mem.crc(crc, &[0; 3][..pad]),
            Some(crc) => crc,
            None => 0,
        };
        // Build pad and CRC as one number: if the code stored them in pieces and read them back at
        // once, the sum would have to wait for the stores.
        let tail = (u64::from(crc) << (8 * pad)).to_le_bytes();
        self.tail = tail;
        self.sum = sum.map(|sum| self.join(sum, &tail));
    }

    /// Returns the checksum of bare head, payload and tail.
    #[inline]
    fn join(&self, payload: Sum, tail: &[u8; TAIL]) -> Sum {
        // Head and tail are zero after their ends, so summing whole words needs no look at their
        // lengths.
        let head = self.head.first_chunk::<BARE>().map_or(Sum::ZERO, Sum::of_words);
        head.add_at(usize::from(self.head_len), payload)
            .add_at(self.unpadded(), Sum::of_words(tail))
    }

    /// Calls `f` with the pieces of bytes `[off, off + len)`, in order and none of them empty;
    /// stops early at the end of the FPDU.
    pub fn for_each_piece(&self, off: u32, len: u32, mut f: impl FnMut(Piece<'_>)) {
        if self.has_markers() {
            self.for_each_marked(off, len, &mut f);
        } else {
            self.for_each_plain(off, len, &mut f);
        }
    }

    /// Calls `f` with the pieces of the FPDU without its markers.
    fn for_each_plain(&self, off: u32, len: u32, f: &mut impl FnMut(Piece<'_>)) {
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
        let (head, tail) = (self.head(), self.tail());
        if let Some((at, n)) = part(bytes(head)) {
            f(Piece::Bytes(&head[at as usize..(at + n) as usize]));
        }
        if let Some(payload) = self.payload()
            && let Some(p) = part(payload.len()).and_then(|(at, n)| payload.slice(at, n))
        {
            f(Piece::Memory(p));
        }
        if let Some((at, n)) = part(bytes(tail)) {
            f(Piece::Bytes(&tail[at as usize..(at + n) as usize]));
        }
    }

    /// Copies bytes from `off` on into `dst`, and returns the number copied.
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

/// Copies pad and CRC, as many bytes as `dst` has. Two words, which overlap, do it without a call.
#[inline(always)]
fn put_tail(dst: &mut [u8], tail: [u8; TAIL]) {
    let n = dst.len().min(TAIL);
    let [first, last] = [0, n.saturating_sub(CRC_LEN)]
        .map(|at| tail.get(at..).and_then(|t| t.first_chunk::<CRC_LEN>()).copied());
    if let (Some(first), Some(last)) = (first, last)
        && let Some(room) = dst.first_chunk_mut()
    {
        *room = first;
        if let Some(room) = dst.get_mut(..n).and_then(|d| d.last_chunk_mut()) {
            *room = last;
        }
    }
}

/// Returns the number of bytes of pad after `unpadded` bytes of length field and ULPDU.
#[inline]
const fn pad(unpadded: usize) -> usize {
    unpadded.wrapping_neg() & 3
}
const _: () = assert!(pad(HEADER_LEN + 7) == pad_len(7));

/// Converts a length, which always fits: an FPDU is shorter than
/// [`MAX_FPDU_LEN`](crate::mpa::fpdu::MAX_FPDU_LEN), with markers half as long again.
#[inline]
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Converts the length of a head, which is at most [`HEAD`].
#[expect(clippy::cast_possible_truncation)]
const fn small(n: usize) -> u8 {
    n as u8
}
