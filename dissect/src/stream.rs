//! One direction of a TCP connection: segments as they were captured, put in order.
//!
//! ```text
//!             next          acked                 octets that came ahead
//!   ── taken ──┼─── missing ──┼── missing ── [held] ── missing ── [held]
//! ```
//!
//! What is missing may still come, sent again. What the other side has acknowledged will not: the
//! capture does not have it. As a capture may have frames of the two directions in a slightly other
//! order than they were on the wire, that is not concluded from the first acknowledgment.
//!
//! A segment acknowledges what its sender knew when it sent it. So its octets are not taken before those
//! of the other direction are that it acknowledges: an answer is read behind what it answers, also when
//! that was captured later, and never before what is missing there was found to be.

use std::collections::BTreeMap;

use heddle_tcp::SeqNumber;

/// Octets ahead of a gap that are held for one direction: more than any window in use.
const HELD_MAX: usize = 4 << 20;

/// Segments ahead of a gap that are held for one direction.
const SEGMENTS_MAX: usize = 1 << 14;

/// Frames of the connection after which an acknowledged gap is one.
const PATIENCE: u32 = 16;

/// What was seen of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing of note.
    InOrder,
    /// So many of its octets had come before.
    Again(u64),
    /// So many octets are missing before it, and none were before.
    Ahead(u64),
    /// It cannot be of this connection, or is too far ahead.
    Far,
}

/// A direction.
#[derive(Debug)]
pub(crate) struct Stream {
    first: SeqNumber,
    next: SeqNumber,
    /// Octets taken or skipped.
    pos: u64,
    /// The most that was acknowledged, as `pos` counts.
    acked: u64,
    /// Frames since then, while there is a gap.
    waited: u32,
    held: BTreeMap<u64, Held>,
    octets: usize,
}

#[derive(Debug, Default)]
struct Held {
    octets: Vec<u8>,
    /// Where the other direction has to be.
    after: u64,
}

impl Stream {
    /// One whose first octet is `first`.
    pub(crate) fn new(first: SeqNumber) -> Stream {
        let held = BTreeMap::new();
        Stream { first, next: first, pos: 0, acked: 0, waited: 0, held, octets: 0 }
    }

    /// The number of its first octet.
    pub(crate) fn first(&self) -> SeqNumber {
        self.first
    }

    /// A segment; its octets are taken when the other direction is at `after`.
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
        let room = HELD_MAX.saturating_sub(self.octets);
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

    /// The end of what is there without a gap.
    fn edge(&self) -> u64 {
        let mut edge = self.pos;
        for (&at, held) in &self.held {
            if at > edge {
                break;
            }
            edge = edge.max(at + held.octets.len() as u64);
        }
        edge
    }

    /// Keeps octets; whether all of them were there.
    fn hold(&mut self, at: u64, after: u64, octets: &[u8]) -> bool {
        let known = self.held.entry(at).or_default();
        if known.octets.len() >= octets.len() {
            return true;
        }
        self.octets += octets.len() - known.octets.len();
        *known = Held { octets: octets.to_vec(), after };
        false
    }

    /// The other side has acknowledged what comes before `ack`: where that is.
    pub(crate) fn acknowledged(&mut self, ack: SeqNumber) -> u64 {
        let ahead = u64::try_from(ack.distance(self.next)).unwrap_or(0);
        if ahead > HELD_MAX as u64 {
            return self.pos;
        }
        let at = self.pos + ahead;
        self.acked = self.acked.max(at);
        at
    }

    /// A frame of the connection has passed, of whichever direction.
    pub(crate) fn tick(&mut self) {
        let waits = self.acked > self.pos;
        self.waited = if waits { self.waited.saturating_add(1) } else { 0 };
    }

    /// Whether `seq` is that of the first octet that has not come.
    pub(crate) fn is_next(&self, seq: SeqNumber) -> bool {
        let there = self.edge() - self.pos;
        u64::try_from(seq.distance(self.next)) == Ok(there)
    }

    /// Where in the stream [`Stream::take`] goes on.
    pub(crate) fn pos(&self) -> u64 {
        self.pos
    }

    /// The next octets, as they came in one segment, when the other direction is at `other`. Each waits
    /// for the other only if frames were made up; then, and `finally`, neither waits for long.
    pub(crate) fn take(&mut self, other: u64, finally: bool) -> Option<Vec<u8>> {
        let patient = !finally && self.waited <= PATIENCE;
        while let Some(first) = self.held.first_entry() {
            if *first.key() > self.pos || (patient && first.get().after > other) {
                return None;
            }
            let (at, Held { mut octets, .. }) = first.remove_entry();
            self.octets -= octets.len();
            let old = usize::try_from(self.pos - at).unwrap_or(usize::MAX).min(octets.len());
            octets.drain(..old);
            if !octets.is_empty() {
                self.forward(octets.len() as u64);
                return Some(octets);
            }
        }
        None
    }

    /// Octets that will not come, which are skipped: because they were acknowledged, or, when
    /// `finally`, because there are no more frames.
    pub(crate) fn skip(&mut self, finally: bool) -> Option<u64> {
        let full = self.octets > HELD_MAX / 2 || self.held.len() > SEGMENTS_MAX / 2;
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

    fn forward(&mut self, octets: u64) {
        self.pos += octets;
        // No step is longer than what is held, or acknowledged ahead.
        self.next = self.next.advance(u32::try_from(octets).unwrap_or(0));
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
    fn test_order_is_made_over_the_wrap() {
        let mut s = Stream::new(FIRST);
        assert_eq!(s.segment(at(20), 0, b"cd"), Seen::Ahead(20));
        assert_eq!(s.segment(at(22), 0, b"e"), Seen::InOrder);
        assert_eq!(s.take(0, false), None);
        assert_eq!(s.segment(at(0), 0, &[b'a'; 20]), Seen::InOrder);
        assert_eq!(all(&mut s), [&[b'a'; 20][..], b"cde"].concat());
        assert_eq!(s.first(), FIRST);
    }

    #[test]
    fn test_octets_again_are_said_and_not_taken_twice() {
        let mut s = Stream::new(FIRST);
        s.segment(at(0), 0, b"abcd");
        assert_eq!(all(&mut s), b"abcd");
        assert_eq!(s.segment(at(0), 0, b"abcd"), Seen::Again(4));
        assert_eq!(s.segment(at(2), 0, b"cdef"), Seen::Again(2));
        assert_eq!(all(&mut s), b"ef");
        assert_eq!(s.segment(at(10), 0, b"kl"), Seen::Ahead(4));
        assert_eq!(s.segment(at(10), 0, b"kl"), Seen::Again(2));
        // What fills a gap may overlap what is behind it.
        s.segment(at(6), 0, b"ghijkl");
        assert_eq!(all(&mut s), b"ghijkl");
        assert_eq!((s.pos(), s.octets), (12, 0));
    }

    #[test]
    fn test_gap_is_one_when_it_was_acknowledged_for_a_while() {
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
    fn test_gap_that_is_not_acknowledged_is_one_at_the_end() {
        let mut s = Stream::new(FIRST);
        s.segment(at(8), 0, b"ij");
        (0..100).for_each(|_| s.tick());
        assert_eq!(s.skip(false), None);
        assert_eq!(s.skip(true), Some(8));
    }

    #[test]
    fn test_octets_ahead_are_bounded() {
        let mut s = Stream::new(FIRST);
        for i in 0..200 {
            s.segment(at(4 + 65536 * i), 0, &vec![0; 65536]);
            assert!(s.octets <= HELD_MAX);
        }
        assert_eq!(s.segment(at(u32::try_from(HELD_MAX).unwrap() + 1), 0, b"x"), Seen::Far);
        assert_eq!(s.skip(false), Some(4), "held too much to wait any longer");
    }

    #[test]
    fn test_octets_wait_for_what_they_acknowledge() {
        let mut s = Stream::new(FIRST);
        s.segment(at(0), 100, b"ab");
        assert_eq!(s.segment(at(2), 100, b"cd"), Seen::InOrder, "nothing is missing here");
        assert_eq!(s.segment(at(2), 100, b"cd"), Seen::Again(2));
        assert_eq!(s.take(99, false), None);
        assert_eq!(s.take(100, false), Some(b"ab".to_vec()));
        assert_eq!(s.take(99, false), None);
        // Frames that could not be: it was acknowledged, and is not taken.
        s.acknowledged(at(4));
        (0..=PATIENCE).for_each(|_| s.tick());
        assert_eq!(s.take(99, false), Some(b"cd".to_vec()));
    }
}
