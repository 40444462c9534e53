//! The private copy of an entry, and the values read from the copy.

use heddle_types::{
    Access, Bind, Data, Sge, Stag,
    wr::{MAX_INLINE, MAX_SGES},
};

use super::{BlockRing, Broken, MAX_BLOCKS, MAX_WORDS, high32, low_usize, low8, low32};
use crate::layout::{BLOCK, flag};

/// Returns the operands of an operation on STags; drops rights that do not exist.
pub(super) const fn bind(stags: u64, to: u64) -> Bind {
    Bind { stag: Stag(low32(stags)), to, access: Access::from_bits(low8(stags >> 32)) }
}

/// Room for the private copy of one entry, and for the values read from it.
#[derive(Debug)]
pub struct Entry {
    /// Words of an entry of several blocks.
    pub(super) words: [u64; MAX_WORDS],
    pub(super) sges: [Sge; MAX_SGES],
    pub(super) inline: [u8; MAX_INLINE],
}

impl Default for Entry {
    fn default() -> Entry {
        let sges = [Sge::default(); MAX_SGES];
        Entry { words: [0; MAX_WORDS], sges, inline: [0; MAX_INLINE] }
    }
}

/// The counts in the first word of an entry.
#[derive(Clone, Copy)]
pub(super) struct Counts(pub(super) u64);

impl Counts {
    #[inline]
    pub(super) fn op(self) -> u64 {
        self.0 & 0xff
    }

    #[inline]
    pub(super) fn sges(self) -> usize {
        usize::from(low8(self.0 >> 16))
    }

    #[inline]
    pub(super) fn blocks(self) -> u64 {
        self.0 >> 24 & 0xff
    }

    /// Returns the blocks of the entry before this entry; 0 for the first entry.
    pub(super) fn blocks_before(self) -> u64 {
        self.0 >> 48 & 0xff
    }

    #[inline]
    pub(super) fn inline(self) -> usize {
        low_usize(self.0 >> 32 & 0xffff)
    }

    #[inline]
    pub(super) fn has(self, flag: u64) -> bool {
        self.0 & flag << 8 != 0
    }
}

impl Entry {
    /// Copies the entry at block `head`, of which `first` is the private copy of the first block,
    /// out of a ring in which `available` blocks are published. Returns the number of words.
    pub(super) fn copy(
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

    /// Reads `count` SGEs of an entry of several blocks, which has `words` words in all, `head` of
    /// them before the data.
    #[inline(never)]
    pub(super) fn read_sges(
        &mut self,
        count: usize,
        head: usize,
        words: usize,
    ) -> Result<(), Broken> {
        let data = self.words.get(head..words).ok_or(Broken::Data)?.as_chunks().0;
        if count > MAX_SGES || count > data.len() {
            return Err(Broken::Data);
        }
        for (s, words) in self.sges.iter_mut().zip(&data[..count]) {
            *s = sge(words);
        }
        Ok(())
    }

    /// Reads `len` inline bytes of an entry of several blocks.
    #[inline(never)]
    pub(super) fn read_inline(
        &mut self,
        len: usize,
        head: usize,
        words: usize,
    ) -> Result<(), Broken> {
        let data = self.words.get(head..words).ok_or(Broken::Data)?;
        if len > MAX_INLINE || len.div_ceil(8) > data.len() {
            return Err(Broken::Data);
        }
        for (out, w) in self.inline.as_chunks_mut().0.iter_mut().zip(data) {
            *out = w.to_ne_bytes();
        }
        Ok(())
    }

    /// Reads the data of an entry of one block; `data` are the words after its head.
    #[inline]
    pub(super) fn data_of<const N: usize>(
        &mut self,
        c: Counts,
        data: &[u64; N],
    ) -> Result<(), Broken> {
        if c.has(flag::INLINE) {
            self.inline_of(c.inline(), data)
        } else {
            self.sges_of(c.sges(), data)
        }
    }

    /// Reads the SGEs of an entry of one block; `data` are the words after its head. The function
    /// copies all SGEs that have room, regardless of the count: that is less work than checking.
    #[inline]
    pub(super) fn sges_of<const N: usize>(
        &mut self,
        count: usize,
        data: &[u64; N],
    ) -> Result<(), Broken> {
        let data = data.as_chunks().0;
        if count > data.len() {
            return Err(Broken::Data);
        }
        for (s, words) in self.sges.iter_mut().zip(data) {
            *s = sge(words);
        }
        Ok(())
    }

    /// Returns the data read, as far as the counts say.
    #[inline(always)]
    pub(super) fn data(&self, c: Counts) -> Result<Data<'_>, Broken> {
        if c.has(flag::INLINE) {
            return self.inline.get(..c.inline()).map(Data::Inline).ok_or(Broken::Data);
        }
        self.sges.get(..c.sges()).map(Data::Sges).ok_or(Broken::Data)
    }

    /// Reads the inline bytes of an entry of one block.
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

#[inline]
pub(super) fn sge(&[to, word]: &[u64; 2]) -> Sge {
    Sge { to, stag: Stag(low32(word)), len: high32(word) }
}
