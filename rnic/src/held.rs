//! Received bytes that the RNIC cannot place yet: part of an FPDU, or bytes beyond a gap.
//!
//! ```text
//!        rx_next
//!   ready   |  gap   run 0    gap    run 1
//!  |########|       |####|##|       |#####|       pieces: a frame, or a buffer of copies
//! ```
//! The RNIC charges bytes beyond gaps, and every held frame, to the budget of the [`HoldPool`].
//! Beyond the budget, the RNIC refuses a segment beyond a gap; for TCP, the network might have lost
//! it. A segment in order needs no room in this budget, which guarantees progress: if the budget is
//! used up, the RNIC copies the segment. Such copies are part of one FPDU, which has a [`budget`]
//! of its own, or of the start-up, whose bytes are few.
//!
//! The work per segment is bounded too. A segment beyond a gap takes a search among at most
//! [`MAX_RUNS`] runs, one insertion among them, and at most two joints of pieces, each of which
//! copies at most half of a buffer. When a gap closes, each piece moves once.
//!
//! An FPDU beyond a gap that the RNIC could place at once leaves no bytes here: its piece keeps the
//! information needed to deliver the FPDU in its turn.

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

/// The RNIC copies frames shorter than this if it has to keep them: a buffer of 2 KiB for a few
/// bytes would let a peer that sends tiny segments take all buffers.
const HOLD_COPY_BELOW: usize = 512;

/// The RNIC copies what it has to keep of frames longer than this, the longest packet and its
/// header: a train that no port has cut consists of tens of buffers, and the pool counts one.
const HOLD_COPY_ABOVE: usize = 9018;

/// Runs beyond gaps that a connection has at most: as many as TCP keeps account of.
const MAX_RUNS: usize = 1024;

/// Bytes in order that count as progress of an unfinished FPDU; the end of the FPDU counts in any
/// case.
const PROGRESS: u64 = 4096;

/// The part of a segment beyond a gap that was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldPart {
    /// The number of bytes of the segment, from the first on, that are held now. The rest lies
    /// beyond bytes that were held before, and the peer retransmits it.
    pub(crate) len: usize,
    /// Bytes copied.
    pub(crate) copied: usize,
}

/// Waiting bytes of one connection.
///
/// `ready` is contiguous and starts at the first byte not yet consumed. `ahead` lies beyond gaps:
/// its runs ascend and neither overlap nor touch. No two copies that follow each other share a
/// stretch of [`pool::COPY_BUF`] bytes of the stream, so `n` bytes without a gap and without frames
/// take at most `n / COPY_BUF + 2` buffers, in whatever order the bytes came.
#[derive(Debug)]
struct Lists<F> {
    ready: VecDeque<Held<F>>,
    ready_len: usize,
    ahead: VecDeque<Run>,
    /// Buffers charged to the pool: frames, and copies of bytes beyond gaps.
    charged: usize,
    /// FPDUs beyond gaps that are placed and wait for delivery.
    placed: usize,
    /// The share of the budget that the FPDU at the front takes; set since the connection's first
    /// such FPDU.
    share: Option<Share>,
    /// The position of the stream when it was last seen to make progress.
    mark: Option<Mark>,
}

/// The state of a stream at one moment.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The first byte that waited, or that the connection waited for.
    first: StreamPos,
    /// The position after the last byte in order.
    next: StreamPos,
    at: Instant,
}

/// Waiting bytes of one connection; has no memory until the first byte waits.
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
    /// Frees memory beyond what is in use, for a connection that is quiet.
    pub(crate) fn trim(&mut self, pool: &mut HoldPool<F>) {
        match &mut self.0 {
            Some(lists) if !lists.is_empty() => {
                lists.ready.shrink_to_fit();
                lists.ahead.shrink_to_fit();
            }
            _ => self.clear(pool),
        }
    }

    /// Charges the FPDU at the front with `bytes` bytes, to the account of `peer`. Returns false,
    /// and changes nothing, if the budget has no room for them.
    pub(crate) fn reserve(&mut self, pool: &mut HoldPool<F>, peer: IpAddr, bytes: usize) -> bool {
        let Some(lists) = &mut self.0 else { return bytes == 0 };
        if lists.share.as_ref().map_or(0, Share::bytes) == bytes {
            return true;
        }
        let share = lists.share.get_or_insert_with(|| pool.budget.open(peer));
        pool.budget.resize(share, bytes)
    }

    /// Returns true if the connection has reserved bytes of the budget.
    pub(crate) fn has_share(&self) -> bool {
        let share = self.0.as_ref().and_then(|l| l.share.as_ref());
        share.is_some_and(|share| share.bytes() > 0)
    }

    /// Returns true if another connection of the same peer waits for the room that this one has
    /// reserved.
    pub(crate) fn is_wanted(&self, pool: &HoldPool<F>) -> bool {
        let share = self.0.as_ref().and_then(|l| l.share.as_ref());
        share.is_some_and(|share| pool.budget.is_wanted(share))
    }

    /// Gives back the reserved room, except for one buffer.
    pub(crate) fn release_share(&mut self, pool: &mut HoldPool<F>) {
        if let Some(share) = self.0.as_mut().and_then(|l| l.share.as_mut()) {
            let least = share.bytes().min(COPY_BUF);
            pool.budget.resize(share, least);
        }
    }

    /// Restarts the time of [`is_overdue`](Self::is_overdue).
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

    /// Returns true if bytes have waited for `limit` for others that have not come; `next` is the
    /// position after the last byte in order. The caller must ask now and then: the time starts
    /// with the first call.
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

    /// Returns true if no bytes wait at all.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|l| l.is_empty())
    }

    /// Returns true if bytes wait beyond a gap.
    pub(crate) fn has_ahead(&self) -> bool {
        self.0.as_ref().is_some_and(|l| !l.ahead.is_empty())
    }

    /// Returns the number of in-order bytes that wait.
    pub(crate) fn ready_len(&self) -> usize {
        self.0.as_ref().map_or(0, |l| l.ready_len)
    }

    /// Returns a copy of the last `n` in-order bytes.
    pub(crate) fn last_ready(&self, n: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(n);
        let skip = self.ready_len().saturating_sub(n);
        self.ready().for_each_chunk(skip, n, |c| bytes.extend_from_slice(c));
        bytes
    }

    /// Returns true if in-order bytes wait.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready_len() > 0
    }

    /// Returns the buffers of the budget that this connection holds.
    pub(crate) fn charged(&self) -> usize {
        self.0.as_ref().map_or(0, |l| l.charged)
    }

    /// Returns the in-order bytes.
    pub(crate) fn ready(&self) -> Ready<'_, F> {
        Ready(self.0.as_deref())
    }

    /// Keeps the `len` bytes that start `off` bytes into `frame`; these bytes follow the ready
    /// bytes. If they are few, or the budget is low, this function copies them and drops the frame,
    /// which returns to its port. Returns the number of bytes copied.
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

    /// Keeps bytes that lie beyond a gap.
    ///
    /// # Errors
    /// Returns the frame if there is no room for it.
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

    /// Keeps a copy of bytes that lie beyond a gap; returns `None` if there is no room for the
    /// copy.
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

    /// Returns the start and the end of the new part of `[pos, pos + len)`, which lies beyond a
    /// gap: from the first byte that is not held up to the next byte that is held already.
    pub(crate) fn free_ahead(&self, pos: StreamPos, len: usize) -> (StreamPos, StreamPos) {
        self.0.as_ref().map_or((pos, pos + len as u64), |l| {
            let slot = l.slot(pos, len);
            (slot.start, slot.end)
        })
    }

    /// Returns how many of `len` in-order bytes at `pos` lie before the first byte that is held
    /// already.
    pub(crate) fn free_ready(&self, pos: StreamPos, len: usize) -> usize {
        let ahead = self.0.as_ref().and_then(|l| l.ahead.front());
        ahead.map_or(len, |run| usize::try_from(run.start.since(pos)).map_or(len, |n| n.min(len)))
    }

    /// Returns true if an FPDU begins at `pos` because a placed FPDU ends there.
    pub(crate) fn is_behind_placed(&self, pool: &HoldPool<F>, pos: StreamPos) -> bool {
        self.0.as_ref().is_some_and(|l| {
            let at = l.ahead.partition_point(|r| r.start < pos);
            let before = at.checked_sub(1).and_then(|i| l.ahead.get(i));
            before.is_some_and(|r| r.end == pos && pool.last(r).is_some_and(Held::is_placed))
        })
    }

    /// Returns true if there is room to note one more FPDU beyond a gap as placed.
    pub(crate) fn has_room_for_placed(&self, pool: &HoldPool<F>) -> bool {
        let (placed, runs) = self.0.as_ref().map_or((0, 0), |l| (l.placed, l.ahead.len()));
        runs < MAX_RUNS && pool.allows_placed(placed)
    }

    /// Notes that the FPDU at `pos` is placed. None of its bytes may be held, and there must be
    /// room.
    pub(crate) fn push_placed(&mut self, pool: &mut HoldPool<F>, pos: StreamPos, fpdu: PlacedFpdu) {
        self.0.get_or_insert_default().push_placed(pool, pos, fpdu);
    }

    /// Takes out the placed FPDU that begins at `next`, where the gap before it ended.
    pub(crate) fn pop_placed(
        &mut self,
        pool: &mut HoldPool<F>,
        next: StreamPos,
    ) -> Option<(StreamPos, PlacedFpdu)> {
        self.0.as_mut()?.pop_placed(pool, next)
    }

    /// Moves the bytes that have become contiguous with `next`, the next byte not yet ready, to the
    /// ready bytes, up to a placed FPDU. Returns the number of bytes moved.
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

    /// Releases a piece that was in order.
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
