//! A received stream with markers, read without them.

use super::{Grid, MARKER_LEN, pointer};
use heddle_base::Chunks;

/// The bytes of an FPDU stream, from the beginning of an FPDU on, without the markers among them.
/// This type copies and removes nothing: it maps each access to the places between markers, so no
/// piece is longer than 508 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marked<C> {
    stream: C,
    grid: Grid,
}

impl<C: Chunks> Marked<C> {
    /// Makes a view of `stream`, which begins `offset` bytes into the FPDU stream. `offset` modulo
    /// 512 gives the same view.
    #[inline]
    pub(crate) fn new(stream: C, offset: u64) -> Marked<C> {
        Marked { stream, grid: Grid::at(offset) }
    }

    /// Returns the bytes with their markers.
    #[inline]
    pub(crate) fn stream(&self) -> &C {
        &self.stream
    }

    /// Returns the places of the markers.
    #[inline]
    pub(crate) fn grid(&self) -> Grid {
        self.grid
    }

    /// Returns true if all markers of the FPDU at `at` point to its length field. The FPDU has
    /// `len` bytes without markers, and all of them have come.
    pub(crate) fn markers_agree(&self, at: usize, len: usize) -> bool {
        let (header, end) = (self.grid.index(at), self.grid.marked(at + len));
        let mut index = self.grid.marker_from(self.grid.marked(at));
        while index < end {
            let want = index.saturating_sub(header);
            let got = self.stream.read_at::<MARKER_LEN>(index).map(pointer);
            if got.is_none_or(|got| usize::from(got) != want) {
                return false;
            }
            index += super::INTERVAL;
        }
        true
    }

    /// Returns the beginning of the first FPDU to which a marker in these bytes points and which
    /// begins in them too: its length field, or the marker before that. The index counts markers.
    pub(crate) fn first_start(&self) -> Option<usize> {
        let mut index = self.grid.first();
        while let Some(marker) = self.stream.read_at::<MARKER_LEN>(index) {
            let header = match usize::from(pointer(marker)) {
                0 => Some(index + MARKER_LEN),
                back => index.checked_sub(back),
            };
            let start = header.and_then(|header| match header.checked_sub(MARKER_LEN) {
                Some(before) if self.grid.is_marker(before) => Some(before),
                // The marker before the FPDU is not in these bytes.
                None if self.grid.is_marker(header + super::INTERVAL - MARKER_LEN) => None,
                // No FPDU begins inside of a marker.
                _ if self.grid.is_marker(header) => None,
                _ => Some(header),
            });
            if start.is_some() {
                return start;
            }
            index += super::INTERVAL;
        }
        None
    }
}

impl<C: Chunks> Chunks for Marked<C> {
    #[inline]
    fn len(&self) -> usize {
        self.grid.unmarked(self.stream.len())
    }

    #[inline]
    fn chunk_at(&self, off: usize) -> &[u8] {
        let chunk = self.stream.chunk_at(self.grid.index(off));
        &chunk[..chunk.len().min(self.grid.run(off))]
    }
}
