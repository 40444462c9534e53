//! A direction of a TCP connection: captured segments, put in order.
//!
//! ```text
//!             next          acked                 bytes that came ahead
//!   ── taken ──┼─── missing ──┼── missing ── [held] ── missing ── [held]
//! ```
//!
//! The sender may still send missing bytes again. But bytes that the other side has acknowledged
//! will not come: the capture does not have them. A capture may have frames of the two directions
//! in a slightly different order than the wire had, so the first acknowledgment does not prove yet
//! that the capture lacks the bytes.
//!
//! A segment acknowledges what its sender knew when it sent the segment. So the decoder takes its
//! bytes only after the bytes of the other direction that it acknowledges. An answer is then read
//! after the message that it answers, even when that message was captured later, and never before
//! the decoder has found which bytes of the other direction are missing.

use std::collections::BTreeMap;

use heddle_tcp::SeqNumber;

/// Most bytes ahead of a gap that are held for one direction: more than any window in use.
const HELD_MAX: usize = 4 << 20;

/// Most segments ahead of a gap that are held for one direction.
const SEGMENTS_MAX: usize = 1 << 14;

/// Frames of the connection after which an acknowledged gap counts as a gap in the capture.
const PATIENCE: u32 = 16;

/// The place of a segment in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The segment is unremarkable.
    InOrder,
    /// This many of the segment's bytes had come before.
    Again(u64),
    /// This many bytes are missing before the segment, which is the first after the gap.
    Ahead(u64),
    /// The segment cannot be of this connection, or is too far ahead.
    Far,
}

/// The stream of a direction.
#[derive(Debug)]
pub(crate) struct Stream {
    first: SeqNumber,
    next: SeqNumber,
    /// Bytes taken or skipped.
    pos: u64,
    /// The highest acknowledged position, counted as `pos` is.
    acked: u64,
    /// The position of the FIN. An acknowledgment counts it like a byte (RFC 9293 section 3.4), but the
    /// stream has no such byte.
    fin: Option<u64>,
    /// Frames since that acknowledgment, while there is a gap.
    waited: u32,
    held: BTreeMap<u64, Held>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Held {
    bytes: Vec<u8>,
    /// The position that the other direction has to reach first.
    after: u64,
}

impl Stream {
    /// Makes a stream whose first byte has the number `first`.
    pub(crate) fn new(first: SeqNumber) -> Stream {
        let held = BTreeMap::new();
        Stream { first, next: first, pos: 0, acked: 0, fin: None, waited: 0, held, bytes: 0 }
    }

    /// Returns the number of the first byte.
    pub(crate) fn first(&self) -> SeqNumber {
        self.first
    }

    /// Adds a segment, whose bytes can be taken when the other direction is at `after`.
    pub(crate) fn segment(&mut self, seq: SeqNumber, after: u64, payload: &[u8]) -> Seen {
        if payload.is_empty() {
            return Seen::InOrder;
        }
        let distance = i64::from(seq.distance(self.next));
        let old = usize::try_from(-distance).unwrap_or(0).min(payload.len());
        let fresh = payload.get(old..).unwrap_or(&[]);
        let ahead = u64::try_from(distance).unwrap_or(0);
        if fresh.is_empty() {
            return Seen::Again(old as u64);
        }
        if ahead > HELD_MAX as u64 {
            return Seen::Far;
        }
        let edge = self.edge();
        let at = self.pos + ahead;
        let first = self.held.range(edge..).next().is_none();
        let room = HELD_MAX.saturating_sub(self.bytes);
        if ahead > 0 && (fresh.len() > room || self.held.len() >= SEGMENTS_MAX) {
            return Seen::Far;
        }
        if self.hold(at, after, fresh) {
            return Seen::Again(payload.len() as u64);
        }
        match (old, at.checked_sub(edge)) {
            (0, Some(missing @ 1..)) if first => Seen::Ahead(missing),
            (0, _) => Seen::InOrder,
            (old, _) => Seen::Again(old as u64),
        }
    }

    /// Returns the end of the bytes that have come without a gap.
    fn edge(&self) -> u64 {
        let mut edge = self.pos;
        for (&at, held) in &self.held {
            if at > edge {
                break;
            }
            edge = edge.max(at + held.bytes.len() as u64);
        }
        edge
    }

    /// Holds bytes. Returns true if all of them had been held before.
    fn hold(&mut self, at: u64, after: u64, bytes: &[u8]) -> bool {
        let known = self.held.entry(at).or_default();
        if known.bytes.len() >= bytes.len() {
            return true;
        }
        self.bytes += bytes.len() - known.bytes.len();
        *known = Held { bytes: bytes.to_vec(), after };
        false
    }

    /// Records that the other side has acknowledged everything before `ack`, and returns that
    /// position.
    pub(crate) fn acknowledged(&mut self, ack: SeqNumber) -> u64 {
        let ahead = u64::try_from(ack.distance(self.next)).unwrap_or(0);
        if ahead > HELD_MAX as u64 {
            return self.pos;
        }
        let at = self.without_fin(self.pos + ahead);
        self.acked = self.acked.max(at);
        at
    }

    /// Records that a segment whose bytes end before `seq` had a FIN.
    pub(crate) fn finished(&mut self, seq: SeqNumber) {
        let Ok(ahead) = u64::try_from(seq.distance(self.next)) else { return };
        self.fin = Some(self.pos + ahead);
        // The capture may have the acknowledgment before the FIN.
        self.acked = self.without_fin(self.acked);
    }

    fn without_fin(&self, at: u64) -> u64 {
        self.fin.filter(|&fin| at == fin + 1).unwrap_or(at)
    }

    /// Counts a frame of the connection, of either direction.
    pub(crate) fn tick(&mut self) {
        let waits = self.acked > self.pos;
        self.waited = if waits { self.waited.saturating_add(1) } else { 0 };
    }

    /// Returns true if `seq` is the number of the first byte that has not come, or follows the FIN.
    pub(crate) fn is_next(&self, seq: SeqNumber) -> bool {
        let ahead = u64::try_from(seq.distance(self.next));
        ahead.is_ok_and(|ahead| self.without_fin(self.pos + ahead) == self.edge())
    }

    /// Returns the position in the stream at which [`Stream::take`] goes on.
    pub(crate) fn pos(&self) -> u64 {
        self.pos
    }

    /// Takes the next bytes, as they came in one segment, when the other direction is at `other`.
    /// Two directions wait for each other only in forged frames; then a direction waits for
    /// [`PATIENCE`] frames at most, and not at all when `finally` is true.
    pub(crate) fn take(&mut self, other: u64, finally: bool) -> Option<Vec<u8>> {
        let patient = !finally && self.waited <= PATIENCE;
        while let Some(first) = self.held.first_entry() {
            if *first.key() > self.pos || (patient && first.get().after > other) {
                return None;
            }
            let (at, Held { mut bytes, .. }) = first.remove_entry();
            self.bytes -= bytes.len();
            let old = usize::try_from(self.pos - at).unwrap_or(usize::MAX).min(bytes.len());
            bytes.drain(..old);
            if !bytes.is_empty() {
                self.forward(bytes.len() as u64);
                return Some(bytes);
            }
        }
        None
    }

    /// Skips bytes that will not come, and returns their number: the other side has acknowledged
    /// them, or, when `finally` is true, there are no more frames.
    pub(crate) fn skip(&mut self, finally: bool) -> Option<u64> {
        let full = self.bytes > HELD_MAX / 2 || self.held.len() > SEGMENTS_MAX / 2;
        let gone = self.acked > self.pos && self.waited > PATIENCE;
        let held = self.held.keys().next().copied();
        let to = match held {
            Some(held) if finally || full || (gone && held <= self.acked) => held,
            None if gone || finally => self.acked,
            Some(held) if gone => held.min(self.acked),
            _ => return None,
        };
        let gap = to.checked_sub(self.pos).filter(|&n| n > 0)?;
        self.forward(gap);
        self.waited = 0;
        Some(gap)
    }

    fn forward(&mut self, bytes: u64) {
        self.pos += bytes;
        // A step is no longer than the bytes held, or acknowledged ahead, so it fits 32 bits.
        self.next = self.next.advance(u32::try_from(bytes).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: SeqNumber = SeqNumber(0xffff_fff0);

    fn at(n: u32) -> SeqNumber {
        FIRST.advance(n)
    }

    fn all(s: &mut Stream) -> Vec<u8> {
        std::iter::from_fn(|| s.take(0, false)).flatten().collect()
    }

    #[test]
    fn test_stream_reorders_segments_across_sequence_wrap() {
        let mut s = Stream::new(FIRST);
        assert_eq!(s.segment(at(20), 0, b"cd"), Seen::Ahead(20));
        assert_eq!(s.segment(at(22), 0, b"e"), Seen::InOrder);
        assert_eq!(s.take(0, false), None);
        assert_eq!(s.segment(at(0), 0, &[b'a'; 20]), Seen::InOrder);
        assert_eq!(all(&mut s), [&[b'a'; 20][..], b"cde"].concat());
        assert_eq!(s.first(), FIRST);
    }

    #[test]
    fn test_stream_reports_retransmitted_bytes_and_takes_them_once() {
        let mut s = Stream::new(FIRST);
        s.segment(at(0), 0, b"abcd");
        assert_eq!(all(&mut s), b"abcd");
        assert_eq!(s.segment(at(0), 0, b"abcd"), Seen::Again(4));
        assert_eq!(s.segment(at(2), 0, b"cdef"), Seen::Again(2));
        assert_eq!(all(&mut s), b"ef");
        assert_eq!(s.segment(at(10), 0, b"kl"), Seen::Ahead(4));
        assert_eq!(s.segment(at(10), 0, b"kl"), Seen::Again(2));
        // A segment that fills a gap may overlap the bytes after it.
        s.segment(at(6), 0, b"ghijkl");
        assert_eq!(all(&mut s), b"ghijkl");
        assert_eq!((s.pos(), s.bytes), (12, 0));
    }

    #[test]
    fn test_stream_skips_gap_that_was_acknowledged_for_long_enough() {
        let mut s = Stream::new(FIRST);
        s.segment(at(8), 0, b"ij");
        s.acknowledged(at(9));
        for _ in 0..PATIENCE {
            s.tick();
            assert_eq!(s.skip(false), None);
        }
        s.tick();
        assert_eq!(s.skip(false), Some(8));
        assert_eq!(all(&mut s), b"ij");
        assert_eq!(s.skip(true), None);
    }

    #[test]
    fn test_stream_counts_acknowledged_fin_as_no_byte() {
        for fin_first in [true, false] {
            let mut s = Stream::new(FIRST);
            s.segment(at(0), 0, b"abcd");
            assert_eq!(all(&mut s), b"abcd");
            if fin_first {
                s.finished(at(4));
                assert_eq!(s.acknowledged(at(5)), 4);
            } else {
                // The acknowledgment stands before the FIN in the capture.
                assert_eq!(s.acknowledged(at(5)), 5);
                s.finished(at(4));
            }
            assert_eq!(s.skip(true), None);
            assert!(s.is_next(at(4)) && s.is_next(at(5)) && !s.is_next(at(6)));
            assert_eq!(s.acknowledged(at(7)), 7);
            assert_eq!(s.skip(true), Some(3));
        }
    }

    #[test]
    fn test_stream_skips_unacknowledged_gap_only_at_the_end() {
        let mut s = Stream::new(FIRST);
        s.segment(at(8), 0, b"ij");
        (0..100).for_each(|_| s.tick());
        assert_eq!(s.skip(false), None);
        assert_eq!(s.skip(true), Some(8));
    }

    #[test]
    fn test_stream_bounds_bytes_held_ahead_of_a_gap() {
        let mut s = Stream::new(FIRST);
        for i in 0..200 {
            s.segment(at(4 + 65536 * i), 0, &vec![0; 65536]);
            assert!(s.bytes <= HELD_MAX);
        }
        assert_eq!(s.segment(at(u32::try_from(HELD_MAX).unwrap() + 1), 0, b"x"), Seen::Far);
        assert_eq!(s.skip(false), Some(4), "held too much to wait any longer");
    }

    #[test]
    fn test_stream_withholds_bytes_until_the_data_they_acknowledge_are_taken() {
        let mut s = Stream::new(FIRST);
        s.segment(at(0), 100, b"ab");
        assert_eq!(s.segment(at(2), 100, b"cd"), Seen::InOrder, "nothing is missing here");
        assert_eq!(s.segment(at(2), 100, b"cd"), Seen::Again(2));
        assert_eq!(s.take(99, false), None);
        assert_eq!(s.take(100, false), Some(b"ab".to_vec()));
        assert_eq!(s.take(99, false), None);
        // Frames that no TCP sends: the other side acknowledged the bytes, and they are never
        // taken.
        s.acknowledged(at(4));
        (0..=PATIENCE).for_each(|_| s.tick());
        assert_eq!(s.take(99, false), Some(b"cd".to_vec()));
    }
}
