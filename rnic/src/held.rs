//! Received bytes that cannot be placed yet: part of an FPDU, or ahead of a gap.
//!
//! ```text
//!        rx_next
//!   ready   |  gap   run 0    gap    run 1
//!  |########|       |####|##|       |#####|       pieces: a frame, or a buffer of copies
//! ```
//! What lies ahead of gaps is charged to the budget of the [`HoldPool`], and so is every frame.
//! Beyond the budget a segment ahead of a gap is refused, which to TCP is as if it had been lost.
//! A segment in order is always taken, so that there is progress: beyond the budget it is copied.
//! Such copies are not charged, but bounded: they are part of one FPDU, or of the start-up.
//!
//! Work per segment is bounded too. A segment ahead of a gap is a search among at most
//! [`MAX_RUNS`] runs, one insertion among them, and at most two joints of pieces, each of which
//! copies at most half of a buffer. When a gap closes, each piece is moved once.

mod pool;

use std::collections::VecDeque;

use heddle_base::{Chunks, StreamPos};

use pool::{Body, Held, Run, page};

pub(crate) use pool::HoldPool;

/// Frames shorter than this are copied when they have to be kept: a buffer of 2 KiB for a few
/// bytes would let a peer that sends tiny segments take all buffers.
const COPY_BELOW: usize = 512;

/// Runs ahead of gaps a connection has at most: as many as TCP keeps account of.
const MAX_RUNS: usize = 128;

/// Runs there is room for from the first gap on.
const FIRST_RUNS: usize = 32;

/// Frames one connection may keep for an FPDU that is not complete; beyond it bytes are copied.
const READY_FRAMES: usize = 64;

/// What was kept of a segment ahead of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// So many of its octets are held now, from its first on. The rest lies beyond others that
    /// were there before, and comes again.
    pub(crate) len: usize,
    /// Octets copied.
    pub(crate) copied: usize,
}

/// Bytes of one connection that wait.
///
/// `ready` is contiguous and starts at the first byte not yet consumed. `ahead` lies beyond gaps:
/// its runs ascend and neither overlap nor touch. No two copies that follow each other share a
/// stretch of [`pool::COPY_BUF`] octets of the stream, so `n` octets without a gap and without
/// frames take at most `n / COPY_BUF + 2` buffers, in whatever order they came.
#[derive(Debug)]
struct Lists<F> {
    ready: VecDeque<Held<F>>,
    ready_len: usize,
    ahead: VecDeque<Run>,
    /// Buffers charged to the pool: frames, and copies ahead of gaps.
    charged: usize,
}

/// Bytes of one connection that wait, and memory for them from the first on.
#[derive(Debug)]
pub(crate) struct HeldBytes<F>(Option<Box<Lists<F>>>);

impl<F> Default for HeldBytes<F> {
    fn default() -> Self {
        HeldBytes(None)
    }
}

impl<F> Default for Lists<F> {
    fn default() -> Self {
        Lists { ready: VecDeque::new(), ready_len: 0, ahead: VecDeque::new(), charged: 0 }
    }
}

impl<F: Chunks> HeldBytes<F> {
    /// Gives back memory beyond what is in use, of a connection that is quiet.
    pub(crate) fn trim(&mut self) {
        match &mut self.0 {
            Some(lists) if !lists.is_empty() => {
                lists.ready.shrink_to_fit();
                lists.ahead.shrink_to_fit();
            }
            none => *none = None,
        }
    }

    /// Whether nothing at all waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|l| l.is_empty())
    }

    /// Whether bytes wait ahead of a gap.
    pub(crate) fn has_ahead(&self) -> bool {
        self.0.as_ref().is_some_and(|l| !l.ahead.is_empty())
    }

    /// In-order bytes that wait.
    pub(crate) fn ready_len(&self) -> usize {
        self.0.as_ref().map_or(0, |l| l.ready_len)
    }

    /// A copy of the last `n` in-order bytes.
    pub(crate) fn last_ready(&self, n: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(n);
        let skip = self.ready_len().saturating_sub(n);
        self.ready().for_each_chunk(skip, n, |c| bytes.extend_from_slice(c));
        bytes
    }

    /// Whether in-order bytes wait.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready_len() > 0
    }

    /// Buffers of the budget this connection holds.
    pub(crate) fn charged(&self) -> usize {
        self.0.as_ref().map_or(0, |l| l.charged)
    }

    /// The in-order bytes.
    pub(crate) fn ready(&self) -> Ready<'_, F> {
        Ready(self.0.as_deref())
    }

    /// Keeps the `len` bytes that start `off` bytes into `frame`; they follow what is ready. They
    /// are copied, and the frame goes back to its port, when they are few or the budget says so.
    /// Returns how many were copied.
    pub(crate) fn push_ready(
        &mut self,
        pool: &mut HoldPool<F>,
        pos: StreamPos,
        frame: F,
        off: usize,
        len: usize,
    ) -> usize {
        self.0.get_or_insert_default().push_ready(pool, pos, frame, off, len)
    }

    /// Keeps bytes that lie ahead of a gap.
    ///
    /// # Errors
    /// Gives the frame back when there is no room for it.
    pub(crate) fn push_ahead(
        &mut self,
        pool: &mut HoldPool<F>,
        pos: StreamPos,
        frame: F,
        off: usize,
        len: usize,
    ) -> Result<Kept, F> {
        self.0.get_or_insert_default().push_ahead(pool, pos, frame, off, len)
    }

    /// Moves what has become contiguous with `next`, the next byte not yet ready, over to what is
    /// ready; returns how many bytes that were.
    pub(crate) fn close_gap(&mut self, pool: &mut HoldPool<F>, next: StreamPos) -> usize {
        self.0.as_mut().map_or(0, |l| l.close_gap(pool, next))
    }

    /// Drops the first `n` ready bytes.
    pub(crate) fn consume(&mut self, pool: &mut HoldPool<F>, n: usize) {
        if let Some(lists) = &mut self.0 {
            lists.consume(pool, n);
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self, pool: &mut HoldPool<F>) {
        if let Some(mut lists) = self.0.take() {
            lists.clear(pool);
        }
    }
}

impl<F: Chunks> Lists<F> {
    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.ahead.is_empty()
    }

    /// See [`HeldBytes::push_ready`].
    fn push_ready(
        &mut self,
        pool: &mut HoldPool<F>,
        pos: StreamPos,
        frame: F,
        off: usize,
        len: usize,
    ) -> usize {
        self.ready_len += len;
        if len >= COPY_BELOW && self.ready.len() < READY_FRAMES && pool.is_half_free() {
            self.charge(pool, 1);
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
                _ => self.ready.push_back(pool.empty_copy(pos + done as u64)),
            }
        }
        len
    }

    /// See [`HeldBytes::push_ahead`].
    fn push_ahead(
        &mut self,
        pool: &mut HoldPool<F>,
        pos: StreamPos,
        frame: F,
        off: usize,
        len: usize,
    ) -> Result<Kept, F> {
        let at = self.ahead.partition_point(|r| r.start <= pos);
        let prev = at.checked_sub(1).and_then(|i| self.ahead.get(i)).copied();
        let next = self.ahead.get(at).copied();
        // TCP tells of bytes it has not got. The runs stay apart even if it does not.
        let start = prev.map_or(pos, |r| r.end.max(pos));
        let end = next.map_or(pos + len as u64, |r| r.start.min(pos + len as u64));
        let Ok(new) = usize::try_from(end.since(start)) else { return Err(frame) };
        if new == 0 {
            return Ok(Kept { len, copied: 0 });
        }
        let prev = prev.filter(|r| r.end == start);
        let next = next.filter(|r| r.start == end);
        if prev.is_none() && next.is_none() && self.ahead.len() >= MAX_RUNS {
            return Err(frame);
        }
        let copies = new < COPY_BELOW;
        let more = if copies { new_copies(pool, start, end, prev, next) } else { 1 };
        if !pool.allows(self.charged, more) && more > 0 {
            return Err(frame);
        }
        let off = off + usize::try_from(start.since(pos)).unwrap_or(len);
        let mut run = if copies {
            self.copy_run(pool, start, &frame, off, new)
        } else {
            self.charge(pool, 1);
            pool.run(Held { pos: start, len: new, body: Body::Frame { frame, off } })
        };
        if let Some(next) = next {
            self.concat(pool, &mut run, next);
            self.ahead.remove(at);
        }
        match prev {
            Some(mut joined) => {
                self.concat(pool, &mut joined, run);
                self.ahead[at - 1] = joined;
            }
            None => {
                if self.ahead.capacity() == 0 {
                    // Once, and not again and again up to what an ordinary loss takes.
                    self.ahead.reserve(FIRST_RUNS);
                }
                self.ahead.insert(at, run);
            }
        }
        #[cfg(test)]
        {
            pool.work += (1 + at.min(self.ahead.len() - at)) as u64;
        }
        let len = usize::try_from(end.since(pos)).unwrap_or(len);
        Ok(Kept { len, copied: if copies { new } else { 0 } })
    }

    /// A run of copies of the `len` octets `off` octets into `frame`.
    fn copy_run(
        &mut self,
        pool: &mut HoldPool<F>,
        start: StreamPos,
        frame: &F,
        off: usize,
        len: usize,
    ) -> Run {
        let piece = |pool: &mut HoldPool<F>, done: usize| {
            let mut piece = pool.empty_copy(start + done as u64);
            let n = piece.room().min(len - done);
            piece.append(frame, off + done, n);
            (pool.run(piece), done + n)
        };
        self.charge(pool, 1);
        let (mut run, mut done) = piece(pool, 0);
        while done < len {
            self.charge(pool, 1);
            let (next, upto) = piece(pool, done);
            done = upto;
            self.concat(pool, &mut run, next);
        }
        run
    }

    fn concat(&mut self, pool: &mut HoldPool<F>, a: &mut Run, b: Run) {
        if pool.concat(a, b) {
            self.refund(pool);
        }
    }

    fn charge(&mut self, pool: &mut HoldPool<F>, buffers: usize) {
        self.charged += buffers;
        pool.charge(buffers);
    }

    fn refund(&mut self, pool: &mut HoldPool<F>) {
        self.charged = self.charged.saturating_sub(1);
        pool.refund(1);
    }

    /// Lets go of a piece that was in order.
    fn drop_ready(&mut self, pool: &mut HoldPool<F>, held: Held<F>) {
        match held.body {
            Body::Frame { .. } => self.refund(pool),
            Body::Copied(buf) => pool.give_buf(buf),
        }
    }

    /// See [`HeldBytes::close_gap`].
    fn close_gap(&mut self, pool: &mut HoldPool<F>, mut next: StreamPos) -> usize {
        let mut moved = 0;
        while self.ahead.front().is_some_and(|r| r.start <= next) {
            let Some(mut run) = self.ahead.pop_front() else { break };
            while let Some(mut h) = pool.pop(&mut run) {
                if h.is_copy() {
                    self.refund(pool);
                }
                h.skip(usize::try_from(next.since(h.pos)).unwrap_or(usize::MAX));
                if h.len == 0 {
                    self.drop_ready(pool, h);
                    continue;
                }
                moved += h.len;
                next = h.end();
                self.ready_len += h.len;
                let h = match self.ready.back_mut() {
                    Some(last) => last.absorb(h),
                    None => Err(h),
                };
                match h {
                    Ok(buf) => pool.give_buf(buf),
                    Err(h) => self.ready.push_back(h),
                }
            }
        }
        moved
    }

    /// Drops the first `n` ready bytes.
    fn consume(&mut self, pool: &mut HoldPool<F>, mut n: usize) {
        self.ready_len = self.ready_len.saturating_sub(n);
        while let Some(first) = self.ready.front_mut() {
            if n < first.len {
                first.skip(n);
                break;
            }
            n -= first.len;
            if let Some(first) = self.ready.pop_front() {
                self.drop_ready(pool, first);
            }
        }
    }

    /// Drops everything.
    fn clear(&mut self, pool: &mut HoldPool<F>) {
        while let Some(h) = self.ready.pop_front() {
            self.drop_ready(pool, h);
        }
        while let Some(mut run) = self.ahead.pop_front() {
            while let Some(h) = pool.pop(&mut run) {
                if h.is_copy() {
                    self.refund(pool);
                }
                self.drop_ready(pool, h);
            }
        }
        debug_assert_eq!(self.charged, 0);
    }
}

/// Buffers that copies of `[start, end)` take beyond those of the runs they join.
fn new_copies<F: Chunks>(
    pool: &HoldPool<F>,
    start: StreamPos,
    end: StreamPos,
    prev: Option<Run>,
    next: Option<Run>,
) -> usize {
    let last = StreamPos(end.0 - 1);
    let before = prev.is_some_and(|r| {
        page(StreamPos(r.end.0 - 1)) == page(start) && pool.ends_in_copy(&r, true)
    });
    let behind = next.is_some_and(|r| page(r.start) == page(last) && pool.ends_in_copy(&r, false));
    // Fewer than COPY_BELOW octets lie in one stretch or two.
    if page(start) == page(last) {
        usize::from(!before && !behind)
    } else {
        usize::from(!before) + usize::from(!behind)
    }
}

/// The in-order bytes of a [`HeldBytes`].
pub(crate) struct Ready<'a, F>(Option<&'a Lists<F>>);

impl<F: Chunks> Chunks for Ready<'_, F> {
    fn len(&self) -> usize {
        self.0.map_or(0, |l| l.ready_len)
    }

    fn chunk_at(&self, off: usize) -> &[u8] {
        // When a gap closes, a whole window of frames becomes ready at once, and each FPDU in it is
        // asked for several times.
        let Some(Lists { ready, .. }) = self.0 else { return &[] };
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
mod tests;
