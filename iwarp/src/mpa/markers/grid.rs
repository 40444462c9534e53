//! The places of markers, and the lengths and indices that follow from them.

use super::{INTERVAL, MARKER_LEN};

/// Bytes of FPDUs between two markers.
const BETWEEN: usize = INTERVAL - MARKER_LEN;

/// The places of markers, seen from one byte of an FPDU stream.
///
/// ```text
/// index      0        first                    first + 512
/// stream     | 0 ... ..|marker| first ...  ... |marker| first + 508 ...
///              place of a byte, markers left out
/// ```
/// An *index* counts all bytes from there on, a *place* only the bytes that are not of markers. A
/// marker between two places belongs to the second: [`index`](Grid::index) is after the marker, and
/// [`marked`](Grid::marked) before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    first: usize,
}

impl Grid {
    /// Makes the grid as seen from `offset` bytes into the FPDU stream, markers included. `offset`
    /// modulo 512 gives the same grid.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "less than 512")]
    pub(crate) const fn at(offset: u64) -> Grid {
        Grid { first: (offset.wrapping_neg() % INTERVAL as u64) as usize }
    }

    /// Returns the index of the first marker.
    #[inline]
    pub(crate) const fn first(self) -> usize {
        self.first
    }

    /// Returns the index of the byte at `place`.
    #[inline]
    pub(crate) const fn index(self, place: usize) -> usize {
        if place < self.first {
            place
        } else {
            place + MARKER_LEN * (1 + (place - self.first) / BETWEEN)
        }
    }

    /// Returns the number of bytes that the bytes before `place` take, the markers among and before
    /// them included.
    #[inline]
    pub(crate) const fn marked(self, place: usize) -> usize {
        if place <= self.first {
            place
        } else {
            place + MARKER_LEN * (place - self.first).div_ceil(BETWEEN)
        }
    }

    /// Returns the number of bytes among the first `len` that are not of markers.
    #[inline]
    pub(crate) const fn unmarked(self, len: usize) -> usize {
        if len <= self.first {
            len
        } else {
            let behind = len - self.first;
            self.first
                + behind / INTERVAL * BETWEEN
                + (behind % INTERVAL).saturating_sub(MARKER_LEN)
        }
    }

    /// Returns the number of bytes from `place` to the next marker after it; never 0.
    #[inline]
    pub(crate) const fn run(self, place: usize) -> usize {
        if place < self.first {
            self.first - place
        } else {
            BETWEEN - (place - self.first) % BETWEEN
        }
    }

    /// Returns the index of the first marker that begins at `index` or after it.
    #[inline]
    pub(crate) const fn marker_from(self, index: usize) -> usize {
        if index <= self.first {
            self.first
        } else {
            self.first + (index - self.first).div_ceil(INTERVAL) * INTERVAL
        }
    }

    /// Returns true if a marker begins at `index`.
    #[inline]
    pub(crate) const fn is_marker(self, index: usize) -> bool {
        self.marker_from(index) == index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns, for each of `n` indices, the first index at or after it that is `wanted`.
    fn next(n: usize, wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut next = vec![usize::MAX; n];
        for i in (0..n).rev() {
            next[i] = if wanted(i) { i } else { *next.get(i + 1).unwrap_or(&usize::MAX) };
        }
        next
    }

    /// Compares the grid with a stream in which each byte of a marker is labelled as such.
    #[test]
    fn test_marker_grid_matches_markers_counted_in_a_stream() {
        for offset in (0..1100).step_by(4) {
            let grid = Grid::at(offset);
            let of_marker = |i: usize| (offset + i as u64) % 512 < 4;
            let starts = next(1700 + INTERVAL, |i| (offset + i as u64).is_multiple_of(512));
            let markers = next(1700 + INTERVAL, of_marker);
            // From within a marker a grid would see half of a marker; FPDUs are whole words, so no
            // grid begins there.
            let mut place = 0;
            for i in 0..1700 {
                assert_eq!(grid.unmarked(i), place, "of {i} at {offset}");
                assert_eq!(grid.is_marker(i), (offset + i as u64).is_multiple_of(512));
                assert_eq!(grid.marker_from(i), starts[i]);
                if of_marker(i) {
                    continue;
                }
                assert_eq!(grid.index(place), i, "at {offset}");
                assert_eq!(grid.run(place), markers[i] - i);
                let before = if i >= 4 && of_marker(i - 1) { i - 4 } else { i };
                assert_eq!(grid.marked(place), before, "before {place} at {offset}");
                place += 1;
            }
        }
    }
}
