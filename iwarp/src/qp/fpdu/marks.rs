//! An FPDU in a stream with markers, which are made whenever the FPDU is read.

use super::{CRC_LEN, Form, Fpdu, NO_MARKERS, Piece, count, pad};
use crate::mpa::markers::{Grid, MARKER_LEN, marker};
use heddle_base::Sum;
use heddle_mr::Memory;

impl Fpdu {
    /// Returns true if there may be markers in the FPDU.
    #[inline]
    pub fn has_markers(&self) -> bool {
        self.marks != NO_MARKERS
    }

    /// Returns the places of markers in the FPDU.
    #[inline]
    fn grid(&self) -> Grid {
        Grid::at(u64::from(self.marks) * 4)
    }

    /// Returns the number of bytes without markers.
    #[inline]
    pub(super) fn plain_len(&self) -> usize {
        let len = self.len as usize;
        if self.has_markers() { self.grid().unmarked(len) } else { len }
    }

    /// Gives a complete FPDU without CRC its markers, `offset` bytes after a place of one, and its
    /// CRC if it is to have one. An FPDU that refers to memory and is to have a CRC becomes open.
    pub(in crate::qp) fn put_markers<M: Memory>(&mut self, mem: &M, offset: u64, crc: bool) {
        self.marks = (offset / 4 % 128) as u8;
        let plain = self.len as usize;
        self.len = count(self.grid().marked(plain));
        self.sum = None;
        match self.form {
            Form::Open | Form::Sealed => self.form = if crc { Form::Open } else { Form::Sealed },
            Form::Short | Form::Owned if crc => {
                let (field, _) = self.digest(mem, None);
                let at = plain - CRC_LEN;
                let bytes =
                    if self.form == Form::Short { &mut self.head[..] } else { &mut self.owned };
                bytes[at..plain].copy_from_slice(&field.to_le_bytes());
            }
            Form::Short | Form::Owned => {}
        }
    }

    /// Writes an FPDU with markers to `dst`. See [`fill`](Fpdu::fill).
    pub(super) fn fill_marked<M: Memory>(&mut self, mem: &M, dst: &mut [u8]) -> Option<Sum> {
        let dst = dst.get_mut(..self.len as usize)?;
        if self.is_open() {
            self.seal_marked(mem, Some(dst));
            return self.sum;
        }
        self.copy_to(mem, 0, dst);
        None
    }

    /// Computes CRC and checksum of an open FPDU. If there is a `dst`, which is as long as the
    /// FPDU, also writes the FPDU to it and computes both of the written bytes.
    pub(super) fn seal_marked<M: Memory>(&mut self, mem: &M, mut dst: Option<&mut [u8]>) {
        if !self.is_open() {
            return;
        }
        let (crc, sum) = self.digest(mem, dst.as_deref_mut());
        self.tail = (u64::from(crc) << (8 * pad(self.unpadded()))).to_le_bytes();
        let (field, at) = (crc.to_le_bytes(), self.len as usize - CRC_LEN);
        if let Some(dst) = dst {
            dst[at..].copy_from_slice(&field);
        }
        self.sum = Some(sum.add_at(at, Sum::of(&field)));
        self.form = Form::Sealed;
    }

    /// Returns CRC and checksum of all bytes before the CRC field, markers included. If there is a
    /// `dst`, writes the bytes to it and digests the written ones.
    fn digest<M: Memory>(&self, mem: &M, mut dst: Option<&mut [u8]>) -> (u32, Sum) {
        let (mut crc, mut sum, mut at) = (0, Sum::ZERO, 0);
        self.for_each_piece(0, self.len - count(CRC_LEN), |piece| {
            let of_piece;
            let n = match piece {
                Piece::Bytes(bytes) => {
                    let n = bytes.len();
                    let dst = dst.as_mut().map(|dst| &mut dst[at..at + n]);
                    // Nearly all pieces of bytes are markers, whose length the compiler then knows.
                    (crc, of_piece) = match <&[u8; MARKER_LEN]>::try_from(bytes) {
                        Ok(marker) => digest_bytes(mem, crc, marker, dst),
                        Err(_) => digest_bytes(mem, crc, bytes, dst),
                    };
                    n
                }
                Piece::Memory(range) => {
                    let n = range.len() as usize;
                    (crc, of_piece) = match &mut dst {
                        Some(dst) => mem.copy_digest(range, crc, &mut dst[at..at + n]),
                        None => mem.digest(range, crc),
                    };
                    n
                }
            };
            sum = sum.add_at(at, of_piece);
            at += n;
        });
        (crc, sum)
    }

    /// Returns the checksum of an FPDU with markers. See [`sum`](Fpdu::sum).
    pub(super) fn sum_marked<M: Memory>(&self, mem: &M) -> Sum {
        let (mut sum, mut at) = (Sum::ZERO, 0);
        self.for_each_piece(0, self.len, |piece| {
            let (of_piece, n) = match piece {
                Piece::Bytes(bytes) => (Sum::of(bytes), bytes.len()),
                Piece::Memory(range) => (mem.sum(range), range.len() as usize),
            };
            sum = sum.add_at(at, of_piece);
            at += n;
        });
        sum
    }

    /// Calls `f` with the pieces and the markers. See [`for_each_piece`](Fpdu::for_each_piece).
    pub(super) fn for_each_marked(&self, off: u32, len: u32, f: &mut impl FnMut(Piece<'_>)) {
        let (grid, header) = (self.grid(), self.grid().index(0));
        let (mut at, end) = (off as usize, off.saturating_add(len).min(self.len) as usize);
        while at < end {
            // Find the marker at this place, even if a segment was cut inside of it, or the next
            // one.
            let next = grid.marker_from(at.saturating_sub(MARKER_LEN - 1));
            if next <= at {
                let upto = end.min(next + MARKER_LEN);
                f(Piece::Bytes(&marker(next.saturating_sub(header))[at - next..upto - next]));
                at = upto;
            } else {
                let upto = end.min(next);
                self.for_each_plain(count(grid.unmarked(at)), count(upto - at), f);
                at = upto;
            }
        }
    }
}

/// Returns the CRC of `bytes`, continued from `crc`, and their checksum; copies `bytes` to `dst` if
/// there is one.
#[inline(always)]
fn digest_bytes<M: Memory>(mem: &M, crc: u32, bytes: &[u8], dst: Option<&mut [u8]>) -> (u32, Sum) {
    if let Some(dst) = dst {
        dst.copy_from_slice(bytes);
    }
    (mem.crc(crc, bytes), Sum::of(bytes))
}
