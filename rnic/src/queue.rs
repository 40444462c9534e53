//! The send queue of one connection: start-up bytes first, then FPDUs.

mod ring;
#[cfg(test)]
mod tests;

use core::cell::Cell;

use heddle_base::{Fetch, StreamPos, Sum};
use heddle_iwarp::{Buffers, Fpdu, qp::Piece};
use heddle_mr::Memory;
use heddle_tcp::{ByteQueue, SendQueue};

use crate::kept::Snapshots;
use ring::Ring;

/// Bytes of a connection, starting with the oldest unacknowledged byte.
///
/// ```text
///        start-up (copied)          FPDUs (headers here, payload in registered memory)
///   |--------------------------|---------------|---------------|-----------|
///   una                      fpdu_start        ^ records: segments are cut here   end
/// ```
#[derive(Debug, Default)]
pub(crate) struct FpduQueue {
    /// Start-up bytes, which `trim` frees after their acknowledgment: a connection has some for a
    /// few round trips only.
    startup: Option<Box<ByteQueue>>,
    startup_end: StreamPos,
    fpdus: Ring,
    /// The position after the last FPDU; meaningful after the first FPDU was queued.
    fpdu_end: StreamPos,
    /// The most FPDUs that the queue has held since it was last empty, and how many times in a row
    /// the queue became empty after it had needed only a small part of its memory.
    peak: u32,
    calm: u8,
    /// Bytes of snapshots among the FPDUs.
    snapshots: usize,
    /// The result of the last search: the next search is mostly for the same FPDUs, or those that
    /// follow.
    last: Cell<Whole>,
}

/// Whole FPDUs that follow each other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Whole {
    /// Index of the first FPDU, and the index after the last.
    first: u32,
    end: u32,
    /// Position of the first FPDU, and the length of all of them.
    pos: StreamPos,
    pub(crate) len: u32,
    /// Whether the caller may [fill in](FpduQueue::fill) each FPDU, if none of its bytes was sent
    /// before.
    pub(crate) fillable: bool,
}

impl Whole {
    /// Returns the number of FPDUs.
    pub(crate) fn count(&self) -> u32 {
        self.end.wrapping_sub(self.first)
    }

    /// Returns true if there is no FPDU.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl FpduQueue {
    /// Queues bytes of the MPA start-up; the queue must not have any FPDU yet.
    pub(crate) fn push_startup(&mut self, bytes: &[u8]) {
        debug_assert!(self.fpdus.is_empty());
        let startup = self.startup.get_or_insert_default();
        startup.push(bytes);
        self.startup_end = startup.end();
    }

    /// Queues an FPDU after everything else. `make` makes the FPDU in its place in the ring, with
    /// memory from the buffers if the FPDU has to own its bytes. Returns the length of the FPDU, or
    /// 0 if `make` had none to make.
    #[inline]
    pub(crate) fn push_fpdu(
        &mut self,
        kept: &mut Snapshots,
        make: impl FnOnce(&mut Buffers, &mut Fpdu) -> bool,
    ) -> u32 {
        let start = self.end();
        let queued = self.fpdus.push(|q| {
            q.start = start;
            make(&mut kept.buffers, &mut q.fpdu)
        });
        let Some(q) = queued else { return 0 };
        self.snapshots += kept.enter(&q.fpdu);
        self.fpdu_end = q.end();
        q.fpdu.len()
    }

    /// Returns the index of the next FPDU to be queued.
    #[inline]
    pub(crate) fn next_index(&self) -> u32 {
        self.fpdus.tail()
    }

    /// Returns true if the youngest FPDU owes its snapshot.
    #[inline]
    pub(crate) fn owes_last(&self) -> bool {
        self.fpdus.back().is_some_and(|q| q.fpdu.owes_snapshot())
    }

    /// Takes the snapshots that FPDUs from index `at` on still owe.
    pub(crate) fn take_owed<M: Memory>(&mut self, mem: &M, mut at: u32) {
        while let Some(q) = self.fpdus.get_mut(at) {
            if q.fpdu.owes_snapshot() {
                q.fpdu.seal(mem);
            }
            at = at.wrapping_add(1);
        }
    }

    /// Fetches the memory to which the queue points and that a turn touches.
    #[inline]
    pub(crate) fn fetch(&self, fetch: impl Fetch) {
        self.fpdus.fetch(fetch);
    }

    /// Returns the number of FPDUs that the queue has memory for.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.fpdus.capacity()
    }

    /// Returns true if the queue keeps nothing but bytes of the start-up.
    pub(crate) fn has_no_fpdus(&self) -> bool {
        self.fpdus.is_empty()
    }

    /// Returns the bytes of the snapshots that the queue keeps.
    pub(crate) fn snapshots(&self) -> usize {
        self.snapshots
    }

    /// Returns the number of FPDUs that refer to the region in slot `mr`.
    pub(crate) fn references(&self, mr: u32) -> u32 {
        let refers = |q: &&ring::Queued| q.fpdu.payload().is_some_and(|p| p.mr() == mr);
        u32::try_from(self.fpdus.iter().filter(refers).count()).unwrap_or(u32::MAX)
    }

    /// Drops the bytes that the peer has acknowledged.
    pub(crate) fn release(&mut self, kept: &mut Snapshots, upto: StreamPos) {
        if let Some(startup) = &mut self.startup {
            startup.release(upto);
        }
        self.peak = self.peak.max(self.fpdus.count());
        while self.fpdus.front().is_some_and(|q| q.end() <= upto) {
            if let Some(q) = self.fpdus.pop_front() {
                self.snapshots -= kept.leave(&mut q.fpdu);
            }
        }
        if self.fpdus.is_empty() && self.fpdus.capacity() > SMALL {
            self.give_back();
        }
    }

    /// Gives memory back if the queue, which is empty, has needed little of its memory for a while.
    /// The queue waits for [`CALM`] such times, because it would call the allocator again and again
    /// under occasional bursts otherwise.
    #[cold]
    fn give_back(&mut self) {
        let peak = core::mem::take(&mut self.peak) as usize;
        self.calm = if peak * 4 < self.fpdus.capacity() { self.calm + 1 } else { 0 };
        if self.calm == CALM {
            self.calm = 0;
            self.fpdus.resize((2 * peak).max(SMALL));
        }
    }

    /// Frees memory beyond what is in use, for a connection that is quiet.
    pub(crate) fn trim(&mut self) {
        if self.startup.as_ref().is_some_and(|s| s.start() == s.end()) {
            self.startup = None;
        }
        self.fpdus.trim();
        (self.peak, self.calm) = (0, 0);
    }

    /// Takes back the FPDUs that begin at or after `from`, of which TCP has sent nothing. Returns
    /// the new end of the queue.
    pub(crate) fn withdraw(&mut self, kept: &mut Snapshots, from: StreamPos) -> StreamPos {
        while self.fpdus.back().is_some_and(|q| q.start >= from) {
            if let Some(q) = self.fpdus.pop_back() {
                self.fpdu_end = q.start;
                self.snapshots -= kept.leave(&mut q.fpdu);
            }
        }
        // Another FPDU may get the index of a withdrawn one, so the last result is void.
        self.last.set(Whole::default());
        self.end()
    }

    /// Drops everything, because the connection is over.
    pub(crate) fn clear(&mut self, kept: &mut Snapshots) {
        while let Some(q) = self.fpdus.pop_front() {
            kept.leave(&mut q.fpdu);
        }
        let fpdu_end = self.fpdu_end;
        *self = FpduQueue { fpdu_end, ..FpduQueue::default() };
    }

    /// Returns the index of the FPDU that holds `pos`, or of the first FPDU after `pos`.
    #[inline]
    fn find(&self, pos: StreamPos) -> u32 {
        let last = self.last.get();
        for at in [last.end, last.first] {
            if self.fpdus.get(at).is_some_and(|q| q.start <= pos && pos < q.end()) {
                return at;
            }
        }
        self.fpdus.search(pos)
    }

    /// Returns the whole FPDUs that make up `[from, from + len)`, as they mostly do for a segment
    /// of new data.
    #[inline]
    pub(crate) fn whole(&self, from: StreamPos, len: u32) -> Option<Whole> {
        let last = self.last.get();
        if last.pos == from && last.len == len {
            // `segment_len` made TCP cut here a moment ago.
            return Some(last);
        }
        let found = self.whole_from(from, len);
        (found.len == len).then_some(found)
    }

    /// Returns as many whole FPDUs from `from` on as fit in `max` bytes; none if an FPDU lies
    /// across `from`.
    #[inline(always)]
    fn whole_from(&self, from: StreamPos, max: u32) -> Whole {
        let next = self.last.get().end;
        let begins = |at| self.fpdus.get(at).is_some_and(|q| q.start == from);
        let first = if begins(next) {
            next
        } else {
            let first = self.find(from);
            if !begins(first) {
                return Whole { first, end: first, pos: from, ..Whole::default() };
            }
            first
        };
        let (mut end, mut left, mut fillable) = (first, max, true);
        while left >= MIN_FPDU
            && let Some(q) = self.fpdus.get(end)
            && q.fpdu.len() <= left
        {
            left -= q.fpdu.len();
            fillable &= q.fpdu.is_fillable();
            end = end.wrapping_add(1);
        }
        let found = Whole { first, end, pos: from, len: max - left, fillable };
        self.last.set(found);
        found
    }

    /// Takes the FPDUs of the next segment, of `segment` bytes or fewer if no more are left, from
    /// the front of `rest`. Segments begin and end with whole FPDUs.
    #[inline]
    pub(crate) fn cut(&self, rest: &mut Whole, segment: u32) -> Whole {
        let (mut end, mut len) = (rest.first, 0);
        while len < segment
            && end != rest.end
            && let Some(q) = self.fpdus.get(end)
        {
            len += q.fpdu.len();
            end = end.wrapping_add(1);
        }
        let cut = Whole { end, len, ..*rest };
        // An FPDU that the queue does not have would have no end.
        rest.len = if end == rest.first { 0 } else { rest.len.saturating_sub(len) };
        (rest.first, rest.pos) = (end, rest.pos + u64::from(len));
        cut
    }

    /// Returns the FPDUs of `len` bytes from index `first` on, at most `most`: each is a segment,
    /// since none has room for another FPDU.
    #[inline]
    fn fpdus_alike(&self, first: u32, len: u32, most: u32) -> Whole {
        let (mut n, mut fillable) = (0, true);
        while n < most
            && let Some(q) = self.fpdus.get(first.wrapping_add(n))
            && q.fpdu.len() == len
        {
            fillable &= q.fpdu.is_fillable();
            n += 1;
        }
        Whole { first, end: first.wrapping_add(n), len: n * len, fillable, ..Whole::default() }
    }

    /// Returns the FPDUs of the segments of `len` bytes from `from` on, at most `most` segments.
    fn groups_alike(&self, from: StreamPos, len: u32, max: u32, most: u32) -> Whole {
        let first = self.last.get().end;
        let mut all = Whole { first, end: first, fillable: true, ..Whole::default() };
        for _ in 0..most {
            let found = self.whole_from(from + u64::from(all.len), max);
            if found.len != len {
                break;
            }
            all.end = found.end;
            all.len += len;
            all.fillable &= found.fillable;
        }
        all
    }

    /// Returns the FPDU if `found` is a single one without markers.
    #[inline]
    pub(crate) fn single(&self, found: Whole) -> Option<&Fpdu> {
        let q = self.fpdus.get(found.first)?;
        (q.fpdu.len() == found.len && !q.fpdu.has_markers()).then_some(&q.fpdu)
    }

    /// Writes FPDUs to `dst`, which has exactly their length, and seals the FPDUs that are open.
    /// Returns the checksum of all bytes, if `want_sum` is set, and the number of payload bytes
    /// copied while sealing.
    #[inline(always)]
    pub(crate) fn fill<M: Memory>(
        &mut self,
        mem: &M,
        found: Whole,
        dst: &mut [u8],
        want_sum: bool,
    ) -> (Sum, u64) {
        // `at`: bytes written. `summed`: the index up to which `sum` includes the bytes.
        let (mut at, mut summed) = (0, 0);
        let (mut sum, mut digested) = (Sum::ZERO, 0);
        for q in self.fpdus.run_mut(found.first, found.end).into_iter().flatten() {
            let Some(room) = dst.get_mut(at..) else { break };
            digested += u64::from(q.fpdu.open_len());
            let known = q.fpdu.fill(mem, room, want_sum);
            let end = at + q.fpdu.len() as usize;
            // `fill` returns no sum for short FPDUs, which are summed together in one pass. The
            // length of an FPDU is a multiple of 4 bytes, so the partial sums just add up.
            if let Some(known) = known {
                if summed < at && want_sum {
                    sum = sum.plus(sum_of(dst, summed, at));
                }
                sum = sum.plus(known);
                summed = end;
            }
            at = end;
        }
        if summed < at && want_sum {
            sum = sum.plus(sum_of(dst, summed, at));
        }
        (sum, digested)
    }

    /// Returns the FPDUs of `found`, for the caller to fill in one by one.
    #[inline(always)]
    pub(crate) fn each(&mut self, found: Whole) -> impl Iterator<Item = &mut Fpdu> {
        self.fpdus.run_mut(found.first, found.end).into_iter().flatten().map(|q| &mut q.fpdu)
    }

    /// Seals the open FPDUs in `[from, from + len)`, so that TCP can send them by reference.
    /// Returns true if there were any.
    pub(crate) fn seal<M: Memory>(&mut self, mem: &M, from: StreamPos, len: u32) -> bool {
        let (mut at, end) = (self.find(from), from + u64::from(len));
        let mut any = false;
        while let Some(q) = self.fpdus.get_mut(at)
            && q.start < end
        {
            any |= q.fpdu.is_open();
            q.fpdu.seal(mem);
            at = at.wrapping_add(1);
        }
        any
    }

    /// Calls `f` with each piece of `[from, from + len)`, in order.
    pub(crate) fn pieces(&self, from: StreamPos, len: u32, mut f: impl FnMut(Piece<'_>)) {
        if from < self.startup_end {
            let mut bytes = Vec::with_capacity(len as usize);
            if let Some(startup) = &self.startup {
                startup.copy(from, len, &mut bytes);
            }
            return f(Piece::Bytes(&bytes));
        }
        let end = from + u64::from(len);
        let (mut pos, mut at) = (from, self.find(from));
        while pos < end
            && let Some(q) = self.fpdus.get(at)
        {
            let skip = clamp(pos.since(q.start));
            let take = clamp(end.since(pos)).min(q.fpdu.len().saturating_sub(skip));
            q.fpdu.for_each_piece(skip, take, &mut f);
            pos += u64::from(take);
            at = at.wrapping_add(1);
        }
    }

    /// Returns the Internet checksum of `[from, from + len)`.
    ///
    /// With `fresh`, this function computes the checksum from the bytes as they are now. A
    /// retransmission needs a fresh checksum: once the peer has placed a Read Response, it may have
    /// the source memory written again. If our copy of the peer's acknowledgment is then lost, a
    /// checksum of the old bytes would make the peer drop every retransmission as damaged and never
    /// acknowledge one.
    pub(crate) fn sum<M: Memory>(&self, mem: &M, from: StreamPos, len: u32, fresh: bool) -> Sum {
        if !fresh
            && from >= self.startup_end
            && let Some(found) = self.whole(from, len)
        {
            return self.sum_of_whole(mem, found);
        }
        let (mut sum, mut off) = (Sum::ZERO, 0);
        self.pieces(from, len, |p| match p {
            Piece::Bytes(b) => {
                sum = sum.add_at(off, Sum::of(b));
                off += b.len();
            }
            Piece::Memory(r) => {
                sum = sum.add_at(off, mem.sum(r));
                off += r.len() as usize;
            }
        });
        sum
    }

    /// Like [`sum`](Self::sum), but from the sums that `fill` and `seal` made with the CRCs.
    fn sum_of_whole<M: Memory>(&self, mem: &M, found: Whole) -> Sum {
        let (mut sum, mut at) = (Sum::ZERO, found.first);
        while at != found.end
            && let Some(q) = self.fpdus.get(at)
        {
            sum = sum.plus(q.fpdu.sum(mem));
            at = at.wrapping_add(1);
        }
        sum
    }
}

/// Returns the checksum of `bytes[from..to]`.
#[inline(always)]
fn sum_of(bytes: &[u8], from: usize, to: usize) -> Sum {
    match bytes.get(from..to) {
        Some(bytes) => Sum::of(bytes),
        None => Sum::ZERO,
    }
}

impl SendQueue for FpduQueue {
    #[inline]
    fn end(&self) -> StreamPos {
        self.startup_end.max(self.fpdu_end)
    }

    #[inline]
    fn segment_len(&self, from: StreamPos, max: u32) -> u32 {
        if from < self.startup_end {
            return clamp(self.startup_end.since(from)).min(max);
        }
        let whole = self.whole_from(from, max);
        if whole.len > 0 {
            return whole.len;
        }
        // `from` is inside an FPDU: send only its rest, so that the next segment starts with a
        // header.
        self.fpdus.get(whole.first).map_or(0, |q| clamp(q.end().since(from)).min(max))
    }

    fn bytes_in_a_row(&self, from: StreamPos) -> u64 {
        // The bytes of the start-up lie elsewhere.
        let end = if from < self.startup_end { self.startup_end } else { self.end() };
        end.since(from)
    }

    #[inline]
    fn segments_alike(&self, from: StreamPos, len: u32, max: u32, most: u32) -> u32 {
        let last = self.last.get();
        let follows = last.len == len && last.pos + u64::from(len) == from;
        if !follows || from < self.startup_end {
            return 0;
        }
        let alike = if last.end == last.first.wrapping_add(1) && max - len < MIN_FPDU {
            self.fpdus_alike(last.end, len, most)
        } else {
            self.groups_alike(from, len, max, most)
        };
        let (end, fillable) = (alike.end, last.fillable && alike.fillable);
        self.last.set(Whole { end, len: len + alike.len, fillable, ..last });
        alike.len / len
    }
}

/// FPDUs that a queue always keeps memory for while its connection is at work, once the queue has
/// needed as many: the window of a long message. Traffic of mixed sizes then does not call the
/// allocator.
const SMALL: usize = 1024;

/// Times in a row that a queue may become empty with far too much memory before it gives some back.
const CALM: u8 = 32;

/// Bytes of the shortest FPDU: a tagged segment without payload (RFC 5044 section 4.1).
const MIN_FPDU: u32 = 20;

fn clamp(v: u64) -> u32 {
    u32::try_from(v).unwrap_or(u32::MAX)
}
