//! Bytes beyond gaps: runs of pieces, and the place of a new run among them.

use heddle_base::{Chunks, StreamPos};
use heddle_iwarp::PlacedFpdu;

use super::pool::{Body, Held, HoldPool, Run, page};
use super::{HOLD_COPY_ABOVE, HOLD_COPY_BELOW, HeldPart, Lists, MAX_RUNS};

/// Runs allocated with the first gap.
const FIRST_RUNS: usize = 32;

impl<F: Chunks> Lists<F> {
    /// Returns the place of the bytes `[pos, pos + len)` among the runs.
    #[inline]
    pub(super) fn slot(&self, pos: StreamPos, len: usize) -> Slot {
        // Bytes beyond a gap come in order, too: most belong behind all others.
        let at = match self.ahead.back() {
            Some(last) if last.start > pos => self.ahead.partition_point(|r| r.start <= pos),
            _ => self.ahead.len(),
        };
        let prev = at.checked_sub(1).and_then(|i| self.ahead.get(i)).copied();
        let next = self.ahead.get(at).copied();
        // TCP reports only bytes that it does not have. The runs stay apart even if TCP breaks this
        // rule.
        let start = prev.map_or(pos, |r| r.end.max(pos));
        let end = next.map_or(pos + len as u64, |r| r.start.min(pos + len as u64)).max(start);
        let prev = prev.filter(|r| r.end == start);
        let next = next.filter(|r| r.start == end);
        Slot { at, start, end, prev, next }
    }

    /// Returns true if the connection may make one more run, or needs none.
    fn has_run(&self, slot: &Slot) -> bool {
        slot.prev.is_some() || slot.next.is_some() || self.ahead.len() < MAX_RUNS
    }

    /// Puts a run in its place, joined to the runs that it touches.
    fn insert(&mut self, pool: &mut HoldPool<F>, slot: Slot, mut run: Run) {
        let Slot { at, prev, next, .. } = slot;
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
                    // Allocate at once what an ordinary loss takes, instead of growing again and
                    // again.
                    self.ahead.reserve(FIRST_RUNS);
                }
                match at == self.ahead.len() {
                    true => self.ahead.push_back(run),
                    false => self.ahead.insert(at, run),
                }
            }
        }
        #[cfg(test)]
        {
            pool.work += (1 + at.min(self.ahead.len() - at)) as u64;
        }
    }

    /// See [`HeldBytes::push_ahead`].
    pub(super) fn push_ahead(
        &mut self,
        pool: &mut HoldPool<F>,
        pos: StreamPos,
        frame: F,
        off: usize,
        len: usize,
    ) -> Result<HeldPart, F> {
        let slot = self.slot(pos, len);
        let new = slot.len();
        if new < HOLD_COPY_BELOW || frame.len() > HOLD_COPY_ABOVE {
            return self.copy_ahead(pool, pos, &frame, off, len).ok_or(frame);
        }
        if !self.has_run(&slot) || !pool.allows(self.charged, 1) {
            return Err(frame);
        }
        let off = off + usize::try_from(slot.start.since(pos)).unwrap_or(len);
        self.charge(pool, 1);
        let body = Body::Frame { frame, off };
        let run = pool.run(Held { pos: slot.start, len: new, charged: true, body });
        self.insert(pool, slot, run);
        Ok(HeldPart { len: usize::try_from(slot.end.since(pos)).unwrap_or(len), copied: 0 })
    }

    /// See [`HeldBytes::copy_ahead`].
    pub(super) fn copy_ahead(
        &mut self,
        pool: &mut HoldPool<F>,
        pos: StreamPos,
        frame: &F,
        off: usize,
        len: usize,
    ) -> Option<HeldPart> {
        let slot = self.slot(pos, len);
        let new = slot.len();
        if new == 0 {
            return Some(HeldPart { len, copied: 0 });
        }
        let more = new_copies(pool, &slot);
        if !self.has_run(&slot) || more > 0 && !pool.allows(self.charged, more) {
            return None;
        }
        let off = off + usize::try_from(slot.start.since(pos)).unwrap_or(len);
        let run = self.copy_run(pool, slot.start, frame, off, new);
        self.insert(pool, slot, run);
        Some(HeldPart { len: usize::try_from(slot.end.since(pos)).unwrap_or(len), copied: new })
    }

    /// See [`HeldBytes::push_placed`].
    pub(super) fn push_placed(&mut self, pool: &mut HoldPool<F>, pos: StreamPos, fpdu: PlacedFpdu) {
        let slot = self.slot(pos, fpdu.len() as usize);
        debug_assert_eq!((slot.start, slot.len()), (pos, fpdu.len() as usize));
        self.placed += 1;
        pool.charge_placed();
        let (len, body) = (fpdu.len() as usize, Body::Placed(fpdu));
        let run = pool.run(Held { pos, len, charged: false, body });
        self.insert(pool, slot, run);
    }

    /// See [`HeldBytes::pop_placed`].
    pub(super) fn pop_placed(
        &mut self,
        pool: &mut HoldPool<F>,
        next: StreamPos,
    ) -> Option<(StreamPos, PlacedFpdu)> {
        let run = self.ahead.front_mut().filter(|r| r.start <= next)?;
        if !pool.first(run).is_some_and(Held::is_placed) {
            return None;
        }
        let held = pool.pop(run)?;
        if run.is_empty() {
            self.ahead.pop_front();
        }
        self.refund_placed(pool);
        match held.body {
            Body::Placed(fpdu) => Some((held.pos, fpdu)),
            Body::Frame { .. } | Body::Copied(_) => None,
        }
    }

    /// Returns a run of copies of the `len` bytes that start `off` bytes into `frame`.
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
            piece.charged = true;
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
}

/// A place among the runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Index of the first run after this place.
    at: usize,
    /// Start and end of the bytes that are not held yet.
    pub(super) start: StreamPos,
    pub(super) end: StreamPos,
    /// The runs that these bytes touch.
    prev: Option<Run>,
    next: Option<Run>,
}

impl Slot {
    fn len(&self) -> usize {
        usize::try_from(self.end.since(self.start)).unwrap_or(usize::MAX)
    }
}

/// Returns the number of buffers that copies of a slot take beyond those of the runs that they
/// join.
fn new_copies<F: Chunks>(pool: &HoldPool<F>, slot: &Slot) -> usize {
    let (start, last) = (slot.start, StreamPos(slot.end.0 - 1));
    let before = slot.prev.is_some_and(|r| {
        page(StreamPos(r.end.0 - 1)) == page(start) && pool.ends_in_copy(&r, true)
    });
    let behind =
        slot.next.is_some_and(|r| page(r.start) == page(last) && pool.ends_in_copy(&r, false));
    let pages = usize::try_from(page(last) - page(start) + 1).unwrap_or(usize::MAX);
    pages.saturating_sub(usize::from(before) + usize::from(behind))
}
