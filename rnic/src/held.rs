//! Received bytes that cannot be placed yet: part of an FPDU, or ahead of a gap.
//!
//! ```text
//!        rx_next
//!   ready   |  gap   run 0    gap    run 1
//!  |########|       |####|##|       |#####|       pieces: a frame, or a buffer of copies
//! ```
//! What lies ahead of gaps is charged to the budget of the [`HoldPool`], and so is every frame.
//! Beyond the budget a segment ahead of a gap is refused, which to TCP is as if it had been lost.
//! A segment in order needs no place in it, so that there is progress: beyond the budget it is copied.
//! Such copies are part of one FPDU, which has a [`budget`] of its own, or of the start-up, whose
//! bytes are few.
//!
//! Work per segment is bounded too. A segment ahead of a gap is a search among at most
//! [`MAX_RUNS`] runs, one insertion among them, and at most two joints of pieces, each of which
//! copies at most half of a buffer. When a gap closes, each piece is moved once.
//!
//! An FPDU ahead of a gap that could be placed at once leaves no bytes here: its piece says what is
//! needed to deliver it in its turn.

mod ahead;
mod budget;
mod pool;
mod ready;

use std::collections::VecDeque;

use core::net::IpAddr;
use core::time::Duration;

use heddle_base::{Chunks, Instant, StreamPos};
use heddle_iwarp::PlacedFpdu;

use budget::Share;
use pool::{Body, Held, Run};
use ready::Ready;

pub(crate) use pool::{COPY_BUF, HoldPool};

/// Frames shorter than this are copied when they have to be kept: a buffer of 2 KiB for a few
/// bytes would let a peer that sends tiny segments take all buffers.
const HOLD_COPY_BELOW: usize = 512;

/// Runs ahead of gaps a connection has at most: as many as TCP keeps account of.
const MAX_RUNS: usize = 128;

/// Octets in order that count as progress of an FPDU that is not whole; its end does in any case.
const PROGRESS: u64 = 4096;

/// What was kept of a segment ahead of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldPart {
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
    /// FPDUs ahead of gaps that are placed and wait to be delivered.
    placed: usize,
    /// What the FPDU at the front takes of the budget, from the first such FPDU on.
    share: Option<Share>,
    /// Where the stream was when it was last seen to get on.
    mark: Option<Mark>,
}

/// A stream at one moment.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The first byte that waited, or was awaited.
    first: StreamPos,
    /// One past the last byte in order.
    next: StreamPos,
    at: Instant,
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
        Lists {
            ready: VecDeque::new(),
            ready_len: 0,
            ahead: VecDeque::new(),
            charged: 0,
            placed: 0,
            share: None,
            mark: None,
        }
    }
}

impl<F: Chunks> HeldBytes<F> {
    /// Gives back memory beyond what is in use, of a connection that is quiet.
    pub(crate) fn trim(&mut self, pool: &mut HoldPool<F>) {
        match &mut self.0 {
            Some(lists) if !lists.is_empty() => {
                lists.ready.shrink_to_fit();
                lists.ahead.shrink_to_fit();
            }
            _ => self.clear(pool),
        }
    }

    /// Has the FPDU at the front be charged with `octets`, to the account of `peer`. Returns false, and
    /// changes nothing, if the budget has no room for that.
    pub(crate) fn reserve(&mut self, pool: &mut HoldPool<F>, peer: IpAddr, octets: usize) -> bool {
        let Some(lists) = &mut self.0 else { return octets == 0 };
        if lists.share.as_ref().map_or(0, Share::octets) == octets {
            return true;
        }
        let share = lists.share.get_or_insert_with(|| pool.budget.open(peer));
        pool.budget.resize(share, octets)
    }

    /// Returns true if something is reserved.
    pub(crate) fn has_share(&self) -> bool {
        let share = self.0.as_ref().and_then(|l| l.share.as_ref());
        share.is_some_and(|share| share.octets() > 0)
    }

    /// Returns true if what is reserved is room that another connection of the same peer waits for.
    pub(crate) fn is_wanted(&self, pool: &HoldPool<F>) -> bool {
        let share = self.0.as_ref().and_then(|l| l.share.as_ref());
        share.is_some_and(|share| pool.budget.is_wanted(share))
    }

    /// Gives back what is reserved, but for one buffer.
    pub(crate) fn release_share(&mut self, pool: &mut HoldPool<F>) {
        if let Some(share) = self.0.as_mut().and_then(|l| l.share.as_mut()) {
            let least = share.octets().min(COPY_BUF);
            pool.budget.resize(share, least);
        }
    }

    /// Has the time of [`is_overdue`](Self::is_overdue) begin anew.
    pub(crate) fn forgive(&mut self) {
        if let Some(lists) = &mut self.0 {
            lists.mark = None;
        }
    }

    /// Drops the last `n` ready bytes.
    pub(crate) fn truncate_ready(&mut self, pool: &mut HoldPool<F>, n: usize) {
        if let Some(lists) = &mut self.0 {
            lists.truncate_ready(pool, n);
        }
    }

    /// Returns true if bytes wait for others that have not come for `limit`; `next` is one past the last
    /// byte in order. It is to be asked now and then: time counts from when it was asked first.
    pub(crate) fn is_overdue(&mut self, next: StreamPos, now: Instant, limit: Duration) -> bool {
        let Some(lists) = &mut self.0 else { return false };
        if lists.is_empty() {
            lists.mark = None;
            return false;
        }
        let first = StreamPos(next.0.saturating_sub(lists.ready_len as u64));
        match lists.mark {
            Some(m) if m.first == first && next.since(m.next) < PROGRESS => now - m.at >= limit,
            _ => {
                lists.mark = Some(Mark { first, next, at: now });
                false
            }
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
    ) -> Result<HeldPart, F> {
        self.0.get_or_insert_default().push_ahead(pool, pos, frame, off, len)
    }

    /// Keeps a copy of bytes that lie ahead of a gap; `None` when there is no room for it.
    pub(crate) fn copy_ahead(
        &mut self,
        pool: &mut HoldPool<F>,
        pos: StreamPos,
        frame: &F,
        off: usize,
        len: usize,
    ) -> Option<HeldPart> {
        self.0.get_or_insert_default().copy_ahead(pool, pos, frame, off, len)
    }

    /// Of `[pos, pos + len)`, which lies ahead of a gap, the part up to the first that is held already:
    /// where it starts and ends.
    pub(crate) fn free_ahead(&self, pos: StreamPos, len: usize) -> (StreamPos, StreamPos) {
        self.0.as_ref().map_or((pos, pos + len as u64), |l| {
            let slot = l.slot(pos, len);
            (slot.start, slot.end)
        })
    }

    /// Of `len` in-order bytes at `pos`, those before what is held already.
    pub(crate) fn free_ready(&self, pos: StreamPos, len: usize) -> usize {
        let ahead = self.0.as_ref().and_then(|l| l.ahead.front());
        ahead.map_or(len, |run| usize::try_from(run.start.since(pos)).map_or(len, |n| n.min(len)))
    }

    /// Whether an FPDU begins at `pos` because one that is placed ends there.
    pub(crate) fn is_behind_placed(&self, pool: &HoldPool<F>, pos: StreamPos) -> bool {
        self.0.as_ref().is_some_and(|l| {
            let at = l.ahead.partition_point(|r| r.start < pos);
            let before = at.checked_sub(1).and_then(|i| l.ahead.get(i));
            before.is_some_and(|r| r.end == pos && pool.last(r).is_some_and(Held::is_placed))
        })
    }

    /// Whether there is room to note one more FPDU ahead of a gap as placed.
    pub(crate) fn has_room_for_placed(&self, pool: &HoldPool<F>) -> bool {
        let (placed, runs) = self.0.as_ref().map_or((0, 0), |l| (l.placed, l.ahead.len()));
        runs < MAX_RUNS && pool.allows_placed(placed)
    }

    /// Notes that the FPDU at `pos`, of which nothing was held, is placed; there is room.
    pub(crate) fn push_placed(&mut self, pool: &mut HoldPool<F>, pos: StreamPos, fpdu: PlacedFpdu) {
        self.0.get_or_insert_default().push_placed(pool, pos, fpdu);
    }

    /// Takes out the FPDU that is placed and begins where the gap before it ended, at `next`.
    pub(crate) fn pop_placed(
        &mut self,
        pool: &mut HoldPool<F>,
        next: StreamPos,
    ) -> Option<(StreamPos, PlacedFpdu)> {
        self.0.as_mut()?.pop_placed(pool, next)
    }

    /// Moves what has become contiguous with `next`, the next byte not yet ready, over to what is
    /// ready, up to an FPDU that is placed; returns how many bytes that were.
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

    fn charge(&mut self, pool: &mut HoldPool<F>, buffers: usize) {
        self.charged += buffers;
        pool.charge(buffers);
    }

    fn refund(&mut self, pool: &mut HoldPool<F>) {
        self.charged = self.charged.saturating_sub(1);
        pool.refund(1);
    }

    fn refund_placed(&mut self, pool: &mut HoldPool<F>) {
        self.placed = self.placed.saturating_sub(1);
        pool.refund_placed();
    }

    /// Lets go of a piece that was in order.
    fn drop_ready(&mut self, pool: &mut HoldPool<F>, held: Held<F>) {
        if held.charged {
            self.refund(pool);
        }
        match held.body {
            Body::Frame { .. } => {}
            Body::Copied(buf) => pool.give_buf(buf),
            Body::Placed(_) => self.refund_placed(pool),
        }
    }

    /// Drops everything.
    fn clear(&mut self, pool: &mut HoldPool<F>) {
        while let Some(h) = self.ready.pop_front() {
            self.drop_ready(pool, h);
        }
        while let Some(mut run) = self.ahead.pop_front() {
            while let Some(h) = pool.pop(&mut run) {
                self.drop_ready(pool, h);
            }
        }
        if let Some(share) = self.share.take() {
            pool.budget.close(share);
        }
        debug_assert_eq!((self.charged, self.placed), (0, 0));
    }
}

#[cfg(test)]
mod tests;
