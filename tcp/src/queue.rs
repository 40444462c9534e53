//! The bytes that wait to be sent, as TCP sees them.

use heddle_base::StreamPos;

/// The owner's queue of bytes to send, from the oldest unacknowledged one to the newest.
///
/// TCP asks only for lengths. The code that builds a frame gathers the bytes themselves, at each
/// transmission anew.
pub trait SendQueue {
    /// Returns the position after the last byte queued.
    fn end(&self) -> StreamPos;

    /// Returns how many bytes a segment that starts at `from` carries: at most `max` and at most up
    /// to [`end`](SendQueue::end). The segment carries as many whole records as fit. If not even
    /// one record fits, the segment carries `max` bytes of the first record. The result is never 0
    /// while `from < end` and `max > 0`.
    fn segment_len(&self, from: StreamPos, max: u32) -> u32;

    /// Returns how many bytes from `from` on a segment may carry across the ends of records.
    fn bytes_in_a_row(&self, from: StreamPos) -> u64 {
        self.end().since(from)
    }

    /// Returns how many segments of exactly `len` bytes follow each other from `from` on: the
    /// number of times in a row that [`segment_len`](SendQueue::segment_len) returns `len`, at most
    /// `most`. The segment before `from` has `len` bytes too, and the queue was asked for it last.
    fn segments_alike(&self, from: StreamPos, len: u32, max: u32, most: u32) -> u32 {
        let alike = |n: &u32| {
            let at = from + u64::from(*n) * u64::from(len);
            at < self.end() && self.segment_len(at, max) == len
        };
        (0..most).take_while(alike).count().try_into().unwrap_or(most)
    }
}

/// A [`SendQueue`] of plain bytes without records: the MPA start-up, and tests.
#[derive(Clone, Debug, Default)]
pub struct ByteQueue {
    bytes: std::collections::VecDeque<u8>,
    start: StreamPos,
}

impl ByteQueue {
    /// Queues `bytes` after the bytes already queued.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Drops everything before `upto`, which the peer has acknowledged.
    pub fn release(&mut self, upto: StreamPos) {
        let n = usize::try_from(upto.since(self.start)).unwrap_or(usize::MAX);
        let n = n.min(self.bytes.len());
        self.bytes.drain(..n);
        self.start += n as u64;
    }

    /// Returns the position of the oldest byte still held.
    pub fn start(&self) -> StreamPos {
        self.start
    }

    /// Appends bytes `[from, from + len)` to `out`.
    pub fn copy(&self, from: StreamPos, len: u32, out: &mut Vec<u8>) {
        let skip = usize::try_from(from.since(self.start)).unwrap_or(usize::MAX);
        out.extend(self.bytes.iter().skip(skip).take(len as usize));
    }
}

impl SendQueue for ByteQueue {
    fn end(&self) -> StreamPos {
        self.start + self.bytes.len() as u64
    }

    fn segment_len(&self, from: StreamPos, max: u32) -> u32 {
        u32::try_from(self.end().since(from)).unwrap_or(u32::MAX).min(max)
    }
}
