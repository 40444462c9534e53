//! Received bytes that cannot be placed yet: part of an FPDU, or ahead of a gap.

use std::collections::VecDeque;

use heddle_base::{Chunks, StreamPos};

/// Frames shorter than this are copied when they have to be kept: a buffer of 2 KiB for a few
/// bytes would let a peer that sends tiny segments take all buffers.
const COPY_BELOW: usize = 512;

/// Octets of a buffer for copied bytes. Bytes that follow each other share buffers, so that tiny
/// segments cost little more than what is in them.
const COPY_BUF: usize = 2048;

/// Empty buffers kept for the next copies.
const SPARE_BUFS: usize = 64;

/// Buffers for copied bytes, used again and again: what is held now and then under loss shall not
/// go to the allocator each time. One pool serves all connections of a worker.
#[derive(Debug)]
pub(crate) struct CopyBufs(Vec<Vec<u8>>);

impl Default for CopyBufs {
    fn default() -> Self {
        CopyBufs((0..SPARE_BUFS).map(|_| Vec::with_capacity(COPY_BUF)).collect())
    }
}

impl CopyBufs {
    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_else(|| Vec::with_capacity(COPY_BUF))
    }

    fn give(&mut self, mut buf: Vec<u8>) {
        if self.0.len() < SPARE_BUFS {
            buf.clear();
            self.0.push(buf);
        }
    }
}

/// A run of stream bytes and the frame they lie in.
#[derive(Debug)]
struct Held<F> {
    pos: StreamPos,
    len: usize,
    body: Body<F>,
}

#[derive(Debug)]
enum Body<F> {
    Frame { frame: F, off: usize },
    Copied { bytes: Vec<u8>, off: usize },
}

impl<F: Chunks> Held<F> {
    /// A buffer for copied bytes from `pos` on.
    fn empty(pos: StreamPos, bufs: &mut CopyBufs) -> Held<F> {
        Held { pos, len: 0, body: Body::Copied { bytes: bufs.take(), off: 0 } }
    }

    fn end(&self) -> StreamPos {
        self.pos + self.len as u64
    }

    fn skip(&mut self, n: usize) {
        let n = n.min(self.len);
        self.pos += n as u64;
        self.len -= n;
        match &mut self.body {
            Body::Frame { off, .. } | Body::Copied { off, .. } => *off += n,
        }
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        if off >= self.len {
            return &[];
        }
        let c = match &self.body {
            Body::Frame { frame, off: start } => frame.chunk_at(start + off),
            Body::Copied { bytes, off: start } => bytes.chunk_at(start + off),
        };
        &c[..c.len().min(self.len - off)]
    }

    /// Room for more bytes behind its own; none in a frame.
    fn room(&self) -> usize {
        match &self.body {
            Body::Frame { .. } => 0,
            Body::Copied { bytes, .. } => COPY_BUF.saturating_sub(bytes.len()),
        }
    }

    /// Appends a copy of `n` bytes of `frame`; there is room.
    fn append(&mut self, frame: &F, off: usize, n: usize) {
        if let Body::Copied { bytes, .. } = &mut self.body {
            frame.for_each_chunk(off, n, |c| bytes.extend_from_slice(c));
            self.len += n;
        }
    }
}

/// Bytes of one connection that wait, with a count of the frames they keep.
///
/// `ready` is contiguous and starts at the first byte not yet consumed; `ahead` lies beyond gaps,
/// sorted by position, and may overlap.
#[derive(Debug)]
pub(crate) struct HeldBytes<F> {
    ready: VecDeque<Held<F>>,
    ready_len: usize,
    ahead: VecDeque<Held<F>>,
    frames: usize,
}

impl<F> Default for HeldBytes<F> {
    fn default() -> Self {
        HeldBytes { ready: VecDeque::new(), ready_len: 0, ahead: VecDeque::new(), frames: 0 }
    }
}

impl<F: Chunks> HeldBytes<F> {
    /// Whether nothing at all waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.ahead.is_empty()
    }

    /// Whether bytes wait ahead of a gap.
    pub(crate) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// In-order bytes that wait.
    pub(crate) fn ready_len(&self) -> usize {
        self.ready_len
    }

    /// A copy of the last `n` in-order bytes.
    pub(crate) fn last_ready(&self, n: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(n);
        let skip = self.ready_len.saturating_sub(n);
        self.ready().for_each_chunk(skip, n, |c| bytes.extend_from_slice(c));
        bytes
    }

    /// Whether in-order bytes wait.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready_len > 0
    }

    /// Frames and copies the in-order bytes lie in.
    pub(crate) fn ready_runs(&self) -> usize {
        self.ready.len()
    }

    /// Frames kept from the port's pool.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// The in-order bytes.
    pub(crate) fn ready(&self) -> Ready<'_, F> {
        Ready(self)
    }

    /// Keeps the `len` bytes that start `off` bytes into `frame`; they follow what is ready. With
    /// `copy` the bytes are copied and the frame goes back to its pool. Returns how many were
    /// copied.
    pub(crate) fn push_ready(
        &mut self,
        bufs: &mut CopyBufs,
        pos: StreamPos,
        frame: F,
        off: usize,
        len: usize,
        copy: bool,
    ) -> usize {
        self.ready_len += len;
        if !copy && len >= COPY_BELOW {
            self.frames += 1;
            self.ready.push_back(Held { pos, len, body: Body::Frame { frame, off } });
            return 0;
        }
        let mut done = 0;
        while done < len {
            match self.ready.back_mut() {
                Some(last) if last.room() > 0 => {
                    let n = last.room().min(len - done);
                    last.append(&frame, off + done, n);
                    done += n;
                }
                _ => self.ready.push_back(Held::empty(pos + done as u64, bufs)),
            }
        }
        len
    }

    /// Keeps bytes that lie ahead of a gap. Returns how many were copied.
    pub(crate) fn push_ahead(
        &mut self,
        bufs: &mut CopyBufs,
        pos: StreamPos,
        frame: F,
        off: usize,
        len: usize,
    ) -> usize {
        let mut at = self.ahead.partition_point(|h| h.pos <= pos);
        if len >= COPY_BELOW {
            self.frames += 1;
            self.ahead.insert(at, Held { pos, len, body: Body::Frame { frame, off } });
            return 0;
        }
        let before = at.checked_sub(1).and_then(|i| self.ahead.get(i));
        if before.is_some_and(|h| h.end() == pos && h.room() >= len) {
            at -= 1;
        } else {
            self.ahead.insert(at, Held::empty(pos, bufs));
        }
        self.ahead[at].append(&frame, off, len);
        len
    }

    /// Lets go of what has been taken out.
    fn drop_held(&mut self, bufs: &mut CopyBufs, held: Held<F>) {
        match held.body {
            Body::Frame { .. } => self.frames -= 1,
            Body::Copied { bytes, .. } => bufs.give(bytes),
        }
    }

    /// Moves what has become contiguous with `next`, the next byte not yet ready, over to `ready`;
    /// returns how many bytes that were.
    pub(crate) fn close_gap(&mut self, bufs: &mut CopyBufs, mut next: StreamPos) -> usize {
        let mut moved = 0;
        while self.ahead.front().is_some_and(|h| h.pos <= next) {
            let Some(mut h) = self.ahead.pop_front() else { break };
            if h.end() <= next {
                self.drop_held(bufs, h);
                continue;
            }
            h.skip(usize::try_from(next.since(h.pos)).unwrap_or(usize::MAX));
            moved += h.len;
            next = h.end();
            self.ready_len += h.len;
            self.ready.push_back(h);
        }
        moved
    }

    /// Drops the first `n` ready bytes.
    pub(crate) fn consume(&mut self, bufs: &mut CopyBufs, mut n: usize) {
        self.ready_len = self.ready_len.saturating_sub(n);
        while let Some(first) = self.ready.front_mut() {
            if n < first.len {
                first.skip(n);
                break;
            }
            n -= first.len;
            if let Some(first) = self.ready.pop_front() {
                self.drop_held(bufs, first);
            }
        }
    }

    /// Drops everything; returns how many frames that frees.
    pub(crate) fn clear(&mut self, bufs: &mut CopyBufs) -> usize {
        let frames = self.frames;
        while let Some(h) = self.ready.pop_front().or_else(|| self.ahead.pop_front()) {
            self.drop_held(bufs, h);
        }
        *self = HeldBytes::default();
        frames
    }
}

/// The in-order bytes of a [`HeldBytes`].
pub(crate) struct Ready<'a, F>(&'a HeldBytes<F>);

impl<F: Chunks> Chunks for Ready<'_, F> {
    fn len(&self) -> usize {
        self.0.ready_len
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        // When a gap closes, a whole window of frames becomes ready at once, and each FPDU in it is
        // asked for several times.
        let ready = &self.0.ready;
        let Some(first) = ready.front() else { return &[] };
        if off < first.len {
            return first.chunk_at(off);
        }
        let pos = first.pos + off as u64;
        let Some(h) = ready.get(ready.partition_point(|h| h.end() <= pos)) else { return &[] };
        h.chunk_at(usize::try_from(pos - h.pos).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, reason = "bytes that count up and wrap")]
    use super::*;

    struct Frame(Vec<u8>);

    impl Chunks for Frame {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn chunk_at(&self, off: usize) -> &[u8] {
            self.0.chunk_at(off)
        }
    }

    fn frame(first: u8, len: usize) -> Frame {
        Frame((0..len).map(|i| first.wrapping_add(i as u8)).collect())
    }

    fn ready(h: &HeldBytes<Frame>) -> Vec<u8> {
        let mut v = Vec::new();
        h.ready().for_each_chunk(0, usize::MAX, |c| v.extend_from_slice(c));
        v
    }

    #[test]
    fn test_ready_joins_frames_and_copies_small_ones() {
        let (mut h, mut b) = (HeldBytes::default(), CopyBufs::default());
        h.push_ready(&mut b, StreamPos(0), frame(0, 600), 10, 590, false);
        h.push_ready(&mut b, StreamPos(590), frame(1, 3), 0, 3, false);
        h.push_ready(&mut b, StreamPos(593), frame(9, 2), 0, 2, false);
        assert_eq!((h.frames(), h.ready().len()), (1, 595));
        h.consume(&mut b, 588);
        assert_eq!(ready(&h), [86, 87, 1, 2, 3, 9, 10]);
        h.consume(&mut b, 4);
        assert_eq!((ready(&h), h.frames()), (vec![3, 9, 10], 0));
        h.consume(&mut b, 3);
        assert!(h.is_empty());
    }

    #[test]
    fn test_close_gap_trims_overlaps() {
        let (mut h, mut b) = (HeldBytes::default(), CopyBufs::default());
        h.push_ahead(&mut b, StreamPos(1000), frame(0, 700), 0, 700);
        h.push_ahead(&mut b, StreamPos(900), frame(156, 600), 0, 600);
        h.push_ahead(&mut b, StreamPos(950), frame(0, 600), 0, 20);
        assert_eq!(h.close_gap(&mut b, StreamPos(899)), 0);
        assert_eq!(h.close_gap(&mut b, StreamPos(905)), 795);
        let want: Vec<u8> = (905..1700).map(|p: usize| (p + 24) as u8).collect();
        assert_eq!(ready(&h), want);
        assert!(!h.has_ahead());
        assert_eq!(h.clear(&mut b), 2);
    }

    /// A window of frames behind one gap: all are kept, and every byte is found.
    #[test]
    fn test_close_gap_of_a_whole_window() {
        const LEN: usize = 1448;
        let (mut h, mut b) = (HeldBytes::default(), CopyBufs::default());
        for i in (1..700).rev() {
            h.push_ahead(&mut b, StreamPos((i * LEN) as u64), frame((i * LEN) as u8, LEN), 0, LEN);
        }
        assert_eq!((h.frames(), h.ready_len()), (699, 0));
        h.push_ready(&mut b, StreamPos(0), frame(0, LEN), 0, LEN, false);
        assert_eq!(h.close_gap(&mut b, StreamPos(LEN as u64)), 699 * LEN);
        h.consume(&mut b, 1000);
        for off in (0..700 * LEN - 1000).step_by(97) {
            assert_eq!(h.ready().chunk_at(off)[0], (1000 + off) as u8);
        }
        assert!(h.ready().chunk_at(700 * LEN - 1000).is_empty());
        h.consume(&mut b, 700 * LEN);
        assert!(h.is_empty() && h.frames() == 0);
    }

    #[test]
    fn test_copy_frees_the_frame() {
        let (mut h, mut b) = (HeldBytes::default(), CopyBufs::default());
        h.push_ready(&mut b, StreamPos(0), frame(0, 1400), 0, 1400, true);
        assert_eq!((h.frames(), h.ready().len()), (0, 1400));
    }

    fn all(h: &HeldBytes<Frame>) -> impl Iterator<Item = &Held<Frame>> {
        h.ready.iter().chain(&h.ahead)
    }

    #[test]
    fn test_a_stream_that_is_always_in_the_middle_of_an_fpdu_keeps_two_buffers() {
        let (mut h, mut b) = (HeldBytes::default(), CopyBufs::default());
        let mut pos = StreamPos(0);
        for i in 0..100_000u32 {
            h.push_ready(&mut b, pos, frame(i as u8, 100), 0, 100, false);
            pos += 100;
            // All but the last 30 octets were whole FPDUs.
            h.consume(&mut b, h.ready_len() - 30);
            assert!(h.ready.len() <= 2 && all(&h).all(|x| x.room() < COPY_BUF), "{i}");
            assert_eq!(ready(&h), (70..100).map(|k| (i + k) as u8).collect::<Vec<_>>());
        }
        assert!(all(&h).all(|x| matches!(&x.body, Body::Copied { bytes, .. }
            if bytes.capacity() == COPY_BUF)));
    }

    #[test]
    fn test_tiny_segments_ahead_of_a_gap_share_buffers() {
        let (mut h, mut b) = (HeldBytes::default(), CopyBufs::default());
        for i in 0..10_000u64 {
            h.push_ahead(&mut b, StreamPos(1 + i), frame(i as u8, 1), 0, 1);
        }
        assert_eq!(h.ahead.len(), 10_000usize.div_ceil(COPY_BUF));
        assert_eq!(h.close_gap(&mut b, StreamPos(1)), 10_000);
        assert_eq!(ready(&h), (0..10_000u64).map(|i| i as u8).collect::<Vec<_>>());
        h.consume(&mut b, 10_000);
        assert!(h.is_empty() && b.0.len() == SPARE_BUFS);
    }

    #[test]
    fn test_copied_octets_are_counted_and_buffers_come_back() {
        let (mut h, mut b) = (HeldBytes::default(), CopyBufs::default());
        assert_eq!(h.push_ready(&mut b, StreamPos(0), frame(0, 511), 0, 511, false), 511);
        assert_eq!(h.push_ready(&mut b, StreamPos(511), frame(0, 512), 0, 512, false), 0);
        assert_eq!(h.push_ready(&mut b, StreamPos(1023), frame(0, 5000), 0, 5000, true), 5000);
        assert_eq!(h.push_ahead(&mut b, StreamPos(9000), frame(0, 511), 0, 511), 511);
        assert_eq!(h.push_ahead(&mut b, StreamPos(9511), frame(0, 512), 0, 512), 0);
        assert_eq!(b.0.len(), SPARE_BUFS - 5);
        assert_eq!(h.clear(&mut b), 2);
        assert_eq!(b.0.len(), SPARE_BUFS);
    }
}
