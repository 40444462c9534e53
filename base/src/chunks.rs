//! Bytes that lie in several pieces.

/// A run of bytes that need not be contiguous: a received frame whose mbuf has several segments, or
/// the bytes of a stream held in several frames.
///
/// Readers walk the pieces with [`Chunks::chunk_at`]; the common case, all bytes in one piece, is a
/// plain `[u8]`.
pub trait Chunks {
    /// Returns the number of bytes in all pieces together.
    fn len(&self) -> usize;

    /// Returns true if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the longest contiguous piece that starts `off` bytes in. The piece is never empty
    /// while `off < self.len()`, and empty at and beyond the end.
    fn chunk_at(&self, off: usize) -> &[u8];

    /// Returns the `len` bytes at `off`, or `None` when some of these bytes are missing or they do
    /// not lie in one piece.
    #[inline]
    fn piece_at(&self, off: usize, len: usize) -> Option<&[u8]> {
        self.chunk_at(off).get(..len)
    }

    /// Copies bytes from `off` on into `dst`. Returns the number of bytes copied, at most
    /// `dst.len()`.
    fn copy_at(&self, off: usize, dst: &mut [u8]) -> usize {
        let mut done = 0;
        while done < dst.len() {
            let src = self.chunk_at(off + done);
            if src.is_empty() {
                break;
            }
            let n = src.len().min(dst.len() - done);
            dst[done..done + n].copy_from_slice(&src[..n]);
            done += n;
        }
        done
    }

    /// Returns the `N` bytes at `off`, or `None` when some of them are missing.
    ///
    /// Parsers read headers with this function: a header usually lies in one piece, and then the
    /// function copies nothing but the array.
    #[inline]
    fn read_at<const N: usize>(&self, off: usize) -> Option<[u8; N]> {
        match self.chunk_at(off).first_chunk() {
            Some(bytes) => Some(*bytes),
            None => {
                let mut bytes = [0; N];
                (self.copy_at(off, &mut bytes) == N).then_some(bytes)
            }
        }
    }

    /// Calls `f` with each contiguous piece of `[off, off + len)` in order; stops early at the end.
    #[inline]
    fn for_each_chunk(&self, off: usize, len: usize, mut f: impl FnMut(&[u8])) {
        let mut done = 0;
        while done < len {
            let src = self.chunk_at(off + done);
            if src.is_empty() {
                break;
            }
            let n = src.len().min(len - done);
            f(&src[..n]);
            done += n;
        }
    }
}

impl Chunks for [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        self.get(off..).unwrap_or(&[])
    }
}

impl<C: Chunks + ?Sized> Chunks for &C {
    #[inline]
    fn len(&self) -> usize {
        (**self).len()
    }

    #[inline]
    fn chunk_at(&self, off: usize) -> &[u8] {
        (**self).chunk_at(off)
    }

    #[inline]
    fn for_each_chunk(&self, off: usize, len: usize, f: impl FnMut(&[u8])) {
        (**self).for_each_chunk(off, len, f);
    }
}

impl<C: Chunks + ?Sized> Chunks for &mut C {
    #[inline]
    fn len(&self) -> usize {
        (**self).len()
    }

    #[inline]
    fn chunk_at(&self, off: usize) -> &[u8] {
        (**self).chunk_at(off)
    }

    #[inline]
    fn for_each_chunk(&self, off: usize, len: usize, f: impl FnMut(&[u8])) {
        (**self).for_each_chunk(off, len, f);
    }
}

/// The bytes of another [`Chunks`] without its first `skip` bytes and limited to `len` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Skip<C> {
    inner: C,
    skip: usize,
    len: usize,
}

impl<C: Chunks> Skip<C> {
    /// Returns bytes `[skip, skip + len)` of `inner`, cut at the end of `inner`.
    pub fn new(inner: C, skip: usize, len: usize) -> Skip<C> {
        let len = len.min(inner.len().saturating_sub(skip));
        Skip { inner, skip, len }
    }
}

impl<C: Chunks> Chunks for Skip<C> {
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn chunk_at(&self, off: usize) -> &[u8] {
        if off >= self.len {
            return &[];
        }
        let c = self.inner.chunk_at(self.skip + off);
        &c[..c.len().min(self.len - off)]
    }

    #[inline]
    fn for_each_chunk(&self, off: usize, len: usize, f: impl FnMut(&[u8])) {
        let len = len.min(self.len.saturating_sub(off));
        self.inner.for_each_chunk(self.skip.saturating_add(off), len, f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two(&'static [u8], &'static [u8]);

    impl Chunks for Two {
        fn len(&self) -> usize {
            self.0.len() + self.1.len()
        }

        fn chunk_at(&self, off: usize) -> &[u8] {
            if off < self.0.len() { &self.0[off..] } else { self.1.chunk_at(off - self.0.len()) }
        }
    }

    #[test]
    fn test_copy_at_crosses_chunk_borders_and_stops_at_the_end() {
        let c = Two(b"abc", b"defg");
        let mut out = [0; 4];
        assert_eq!(c.copy_at(2, &mut out), 4);
        assert_eq!(&out, b"cdef");
        assert_eq!(c.copy_at(5, &mut out), 2);
        assert_eq!(&out[..2], b"fg");
        assert_eq!(c.copy_at(7, &mut out), 0);
    }

    #[test]
    fn test_skip_view_hides_chunks_outside_its_start_and_length() {
        let c = Skip::new(Two(b"abc", b"defg"), 1, 4);
        let mut seen = Vec::new();
        c.for_each_chunk(0, 99, |p| seen.push(p.to_vec()));
        assert_eq!(seen, [b"bc".to_vec(), b"de".to_vec()]);
        assert_eq!(c.chunk_at(4), b"");
        assert_eq!(Skip::new(Two(b"abc", b""), 9, 4).len(), 0);
    }
}
