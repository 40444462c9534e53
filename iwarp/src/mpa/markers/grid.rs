//! Where markers stand, and what that makes of lengths and places.

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
/// An *index* counts all bytes from there on, a *place* those that are not of markers. Where a marker
/// stands between two places it belongs to the second ([`index`](Grid::index) is behind it,
/// [`marked`](Grid::marked) before it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    first: usize,
}

impl Grid {
    /// Seen from `offset` bytes into the FPDU stream, markers included; modulo 512 will do.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "less than 512")]
    pub(crate) const fn at(offset: u64) -> Grid {
        Grid { first: (offset.wrapping_neg() % INTERVAL as u64) as usize }
    }

    /// Index of the first marker.
    #[inline]
    pub(crate) const fn first(self) -> usize {
        self.first
    }

    /// Index of the byte at `place`.
    #[inline]
    pub(crate) const fn index(self, place: usize) -> usize {
        if place < self.first {
            place
        } else {
            place + MARKER_LEN * (1 + (place - self.first) / BETWEEN)
        }
    }

    /// Bytes that those before `place` take, the markers among and before them included.
    #[inline]
    pub(crate) const fn marked(self, place: usize) -> usize {
        if place <= self.first {
            place
        } else {
            place + MARKER_LEN * (place - self.first).div_ceil(BETWEEN)
        }
    }

    /// Bytes that are left of the first `len` when markers are left out.
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

    /// Bytes from `place` to the next marker behind it; never 0.
    #[inline]
    pub(crate) const fn run(self, place: usize) -> usize {
        if place < self.first {
            self.first - place
        } else {
            BETWEEN - (place - self.first) % BETWEEN
        }
    }

    /// Index of the first marker that stands at `index` or behind it.
    #[inline]
    pub(crate) const fn marker_from(self, index: usize) -> usize {
        if index <= self.first {
            self.first
        } else {
            self.first + (index - self.first).div_ceil(INTERVAL) * INTERVAL
        }
    }

    /// Whether a marker stands at `index`.
    #[inline]
    pub(crate) const fn is_marker(self, index: usize) -> bool {
        self.marker_from(index) == index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each of `n` indices, the first at or behind it that is `wanted`.
    fn next(n: usize, wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut next = vec![usize::MAX; n];
        for i in (0..n).rev() {
            next[i] = if wanted(i) { i } else { *next.get(i + 1).unwrap_or(&usize::MAX) };
        }
        next
    }

    /// Against a stream in which each byte of a marker is marked as such.
    #[test]
    fn test_places_and_indices_are_those_of_a_stream_that_is_counted() {
        for offset in (0..1100).step_by(4) {
            let grid = Grid::at(offset);
            let of_marker = |i: usize| (offset + i as u64) % 512 < 4;
            let starts = next(1700 + INTERVAL, |i| (offset + i as u64).is_multiple_of(512));
            let markers = next(1700 + INTERVAL, of_marker);
            // Seen from within a marker there would be half of one; FPDUs are whole words, and so
            // it does not come to that.
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
