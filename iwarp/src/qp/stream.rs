//! The peer's stream, as FPDUs are read from it: with or without markers, in one piece or in
//! several. Each kind is a type of its own, so that a stream without markers in one piece, the most
//! frequent kind, does not pay for the others.

use crate::mpa::markers::Marked;
use core::marker::PhantomData;
use heddle_base::{Chunks, Skip};
use heddle_mr::{MemRange, Memory};

/// Bytes of the peer's stream from an FPDU's beginning on. Indices do not count markers.
pub(super) trait Stream: Chunks {
    /// The bytes are in one piece and without markers, so that reading a header costs a load.
    const PLAIN: bool = false;

    /// Returns the CRC-32C of the bytes that the CRC field of the FPDU at `at` covers: `body` bytes
    /// of the FPDU and the markers among them.
    fn crc<M: Memory>(&self, mem: &M, at: usize, body: usize) -> u32;

    /// Returns true if the visible stream is exactly the FPDU at the start, of `len` bytes.
    #[inline]
    fn is_filled_by(&self, len: usize) -> bool {
        self.upto(len) == self.end()
    }

    /// Returns true if the markers of the FPDU at `at`, of `len` bytes, point to it.
    #[inline]
    fn markers_agree(&self, _at: usize, _len: usize) -> bool {
        true
    }

    /// Returns the number of bytes of TCP's stream before `at`.
    #[inline]
    fn upto(&self, at: usize) -> usize {
        at
    }

    /// Returns the number of bytes of TCP's stream in all.
    #[inline]
    fn end(&self) -> usize {
        self.len()
    }

    /// Copies payload from index `at` on to `ranges`, as many bytes as they have.
    #[inline]
    fn place<M: Memory>(&self, mem: &M, at: usize, ranges: &[MemRange]) {
        if let [range] = ranges
            && let Some(bytes) = self.piece_at(at, range.len() as usize)
        {
            return mem.place(*range, bytes);
        }
        self.place_pieces(mem, at, ranges);
    }

    /// Copies the payload piece by piece; a separate function, because most streams do not need it.
    #[inline(never)]
    fn place_pieces<M: Memory>(&self, mem: &M, at: usize, ranges: &[MemRange]) {
        place_each(self, mem, at, ranges);
    }
}

/// Copies payload from index `at` of `stream` on to `ranges`, piece by piece.
#[inline(always)]
pub(super) fn place_each<M: Memory, S: Stream + ?Sized>(
    stream: &S,
    mem: &M,
    mut at: usize,
    ranges: &[MemRange],
) {
    for range in ranges {
        let mut done = 0;
        stream.for_each_chunk(at, range.len() as usize, |piece| {
            let n = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            if let Some(dst) = range.slice(done, n) {
                mem.place(dst, piece);
            }
            done += n;
        });
        at += range.len() as usize;
    }
}

/// Returns the CRC-32C of bytes `[at, at + len)`.
#[inline]
fn crc_of<M: Memory, C: Chunks>(mem: &M, bytes: &C, at: usize, len: usize) -> u32 {
    if let Some(bytes) = bytes.piece_at(at, len) {
        return mem.crc(0, bytes);
    }
    let mut crc = 0;
    bytes.for_each_chunk(at, len, |piece| crc = mem.crc(crc, piece));
    crc
}

/// A stream that is all in one piece. Each `C` makes another type, so that the code for the frames
/// of a port has one caller, into which it is inlined whole.
#[derive(Clone, Copy)]
pub(super) struct OnePiece<'a, C: ?Sized> {
    bytes: &'a [u8],
    of: PhantomData<&'a C>,
}

impl<'a, C: Chunks + ?Sized> OnePiece<'a, C> {
    /// Returns `stream` as one piece, if it is in one piece.
    #[inline]
    pub(super) fn of(stream: &'a C) -> Option<OnePiece<'a, C>> {
        let bytes = stream.chunk_at(0).get(..stream.len())?;
        Some(OnePiece { bytes, of: PhantomData })
    }

    /// Returns all bytes.
    #[inline]
    pub(super) fn all(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> OnePiece<'a, [u8]> {
    /// Returns one piece of a stream.
    #[inline]
    pub(super) fn bytes(bytes: &'a [u8]) -> OnePiece<'a, [u8]> {
        OnePiece { bytes, of: PhantomData }
    }
}

impl<C: Chunks + ?Sized> Chunks for OnePiece<'_, C> {
    #[inline]
    fn len(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn chunk_at(&self, off: usize) -> &[u8] {
        self.bytes.get(off..).unwrap_or_default()
    }

    #[inline]
    fn piece_at(&self, off: usize, len: usize) -> Option<&[u8]> {
        self.bytes.get(off..off.checked_add(len)?)
    }

    #[inline]
    fn read_at<const N: usize>(&self, off: usize) -> Option<[u8; N]> {
        self.piece_at(off, N)?.first_chunk().copied()
    }
}

impl<C: Chunks + ?Sized> Stream for OnePiece<'_, C> {
    const PLAIN: bool = true;

    #[inline]
    fn crc<M: Memory>(&self, mem: &M, at: usize, body: usize) -> u32 {
        crc_of(mem, self, at, body)
    }
}

impl<C: Chunks> Stream for Skip<C> {
    #[inline]
    fn crc<M: Memory>(&self, mem: &M, at: usize, body: usize) -> u32 {
        crc_of(mem, self, at, body)
    }
}

impl<C: Chunks + ?Sized> Stream for &C {
    #[inline]
    fn crc<M: Memory>(&self, mem: &M, at: usize, body: usize) -> u32 {
        crc_of(mem, self, at, body)
    }
}

impl<C: Chunks> Stream for Marked<C> {
    fn crc<M: Memory>(&self, mem: &M, at: usize, body: usize) -> u32 {
        let (from, to) = (self.grid().marked(at), self.grid().index(at + body));
        crc_of(mem, self.stream(), from, to - from)
    }

    fn markers_agree(&self, at: usize, len: usize) -> bool {
        Marked::markers_agree(self, at, len)
    }

    /// Nearly every payload contains a marker or two, so a payload in one piece is rare.
    #[inline(always)]
    fn place<M: Memory>(&self, mem: &M, at: usize, ranges: &[MemRange]) {
        place_each(self, mem, at, ranges);
    }

    fn upto(&self, at: usize) -> usize {
        self.grid().marked(at)
    }

    fn end(&self) -> usize {
        self.stream().len()
    }
}

/// The stream of an FPDU whose payload is already in its place: it has no bytes.
pub(super) struct Placed;

impl Chunks for Placed {
    fn len(&self) -> usize {
        0
    }

    fn chunk_at(&self, _off: usize) -> &[u8] {
        &[]
    }
}

impl Stream for Placed {
    fn crc<M: Memory>(&self, _mem: &M, _at: usize, _body: usize) -> u32 {
        0
    }

    fn place<M: Memory>(&self, _mem: &M, _at: usize, _ranges: &[MemRange]) {}
}
