//! The send queue of one connection: start-up bytes first, then FPDUs.

mod ring;
#[cfg(test)]
mod tests;

use core::cell::Cell;

use heddle_base::{StreamPos, Sum};
use heddle_iwarp::qp::Piece;
use heddle_iwarp::{Buffers, Fpdu, Memory};
use heddle_tcp::{ByteQueue, SendQueue};

use crate::kept::Snapshots;
use ring::Ring;

/// Bytes of a connection from its oldest unacknowledged one on.
///
/// ```text
///        start-up (copied)          FPDUs (headers here, payload in registered memory)
///   |--------------------------|---------------|---------------|-----------|
///   una                      fpdu_start        ^ records: segments are cut here   end
/// ```
#[derive(Debug, Default)]
pub(crate) struct FpduQueue {
    /// While there is any of it: every connection has it once, and for a few round trips.
    startup: Option<Box<ByteQueue>>,
    startup_end: StreamPos,
    fpdus: Ring,
    /// One past the last FPDU; meaningful once there was one.
    fpdu_end: StreamPos,
    /// Most FPDUs seen since it was last empty, and how often in a row it became empty having needed
    /// a small part of its memory.
    peak: usize,
    calm: u8,
    /// Octets of snapshots among the FPDUs.
    snapshots: usize,
    /// What was asked for last: the next question is mostly about the same, or what follows it.
    last: Cell<Whole>,
}

/// Whole FPDUs that follow each other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Whole {
    /// Indices of the first, and one past the last.
    first: u32,
    end: u32,
    /// Where the first begins, and how long they are in all.
    pos: StreamPos,
    len: u32,
    /// Whether each can be [filled in](FpduQueue::fill), if nothing of them was sent before.
    pub(crate) fillable: bool,
}

impl FpduQueue {
    /// Queues bytes of the MPA start-up; there must be no FPDU yet.
    pub(crate) fn push_startup(&mut self, bytes: &[u8]) {
        debug_assert!(self.fpdus.is_empty());
        let startup = self.startup.get_or_insert_default();
        startup.push(bytes);
        self.startup_end = startup.end();
    }

    /// Queues an FPDU behind everything else, made by `make` in its place, with memory from the
    /// buffers if it has to own its bytes; its length, or 0 when there was none to make.
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

    /// FPDUs it has memory for.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.fpdus.capacity()
    }

    /// Returns true if it keeps nothing but bytes of the start-up.
    pub(crate) fn has_no_fpdus(&self) -> bool {
        self.fpdus.is_empty()
    }

    /// Octets of snapshots it keeps.
    pub(crate) fn snapshots(&self) -> usize {
        self.snapshots
    }

    /// FPDUs that refer to the region in slot `mr`.
    pub(crate) fn references(&self, mr: u32) -> u32 {
        let refers = |q: &&ring::Queued| q.fpdu.payload().is_some_and(|p| p.mr() == mr);
        u32::try_from(self.fpdus.iter().filter(refers).count()).unwrap_or(u32::MAX)
    }

    /// Drops what the peer has acknowledged.
    pub(crate) fn release(&mut self, kept: &mut Snapshots, upto: StreamPos) {
        if let Some(startup) = &mut self.startup {
            startup.release(upto);
        }
        self.peak = self.peak.max(self.fpdus.len());
        while self.fpdus.front().is_some_and(|q| q.end() <= upto) {
            if let Some(q) = self.fpdus.pop_front() {
                self.snapshots -= kept.leave(&mut q.fpdu);
            }
        }
        if self.fpdus.is_empty() && self.fpdus.capacity() > SMALL {
            self.give_back();
        }
    }

    /// The queue is empty: gives memory back if it has needed little of it for a while. Not at once,
    /// or a burst now and then would have the allocator asked each time.
    #[cold]
    fn give_back(&mut self) {
        let peak = core::mem::take(&mut self.peak);
        self.calm = if peak * 4 < self.fpdus.capacity() { self.calm + 1 } else { 0 };
        if self.calm == CALM {
            self.calm = 0;
            self.fpdus.resize((2 * peak).max(SMALL));
        }
    }

    /// Gives back memory beyond what is in use, of a connection that is quiet.
    pub(crate) fn trim(&mut self) {
        if self.startup.as_ref().is_some_and(|s| s.start() == s.end()) {
            self.startup = None;
        }
        self.fpdus.trim();
        (self.peak, self.calm) = (0, 0);
    }

    /// Takes back the FPDUs that begin at `from` or behind it, of which nothing was sent; where the
    /// queue ends now.
    pub(crate) fn withdraw(&mut self, kept: &mut Snapshots, from: StreamPos) -> StreamPos {
        while self.fpdus.back().is_some_and(|q| q.start >= from) {
            if let Some(q) = self.fpdus.pop_back() {
                self.fpdu_end = q.start;
                self.snapshots -= kept.leave(&mut q.fpdu);
            }
        }
        // An index may come to be another FPDU's.
        self.last.set(Whole::default());
        self.end()
    }

    /// Drops everything: the connection is gone.
    pub(crate) fn clear(&mut self, kept: &mut Snapshots) {
        while let Some(q) = self.fpdus.pop_front() {
            kept.leave(&mut q.fpdu);
        }
        let fpdu_end = self.fpdu_end;
        *self = FpduQueue { fpdu_end, ..FpduQueue::default() };
    }

    /// The FPDU that holds `pos`, or the first after it.
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

    /// The whole FPDUs that `[from, from + len)` consists of, as a segment of new data mostly does.
    #[inline]
    pub(crate) fn whole(&self, from: StreamPos, len: u32) -> Option<Whole> {
        let last = self.last.get();
        if last.pos == from && last.len == len {
            // TCP was told to cut here a moment ago.
            return Some(last);
        }
        let found = self.whole_from(from, len);
        (found.len == len).then_some(found)
    }

    /// As many whole FPDUs from `from` on as there are within `max` octets; none when another lies
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

    /// The FPDU of those found, if it is one and without markers.
    #[inline]
    pub(crate) fn single(&self, found: Whole) -> Option<&Fpdu> {
        let q = self.fpdus.get(found.first)?;
        (q.fpdu.len() == found.len && !q.fpdu.has_markers()).then_some(&q.fpdu)
    }

    /// Writes FPDUs to `dst`, which has just their length, and seals those that are open. The
    /// checksum of all, if it is wanted, and how many octets of payload were copied in that.
    #[inline(always)]
    pub(crate) fn fill<M: Memory>(
        &mut self,
        mem: &M,
        found: Whole,
        dst: &mut [u8],
        want_sum: bool,
    ) -> (Sum, u64) {
        // Octets written, and those among them whose sum is known.
        let (mut at, mut summed) = (0, 0);
        let (mut sum, mut digested) = (Sum::ZERO, 0);
        for q in self.fpdus.run_mut(found.first, found.end).into_iter().flatten() {
            let Some(room) = dst.get_mut(at..) else { break };
            digested += u64::from(q.fpdu.open_len());
            let known = q.fpdu.fill(mem, room);
            let end = at + q.fpdu.len() as usize;
            // Short ones are summed together. FPDUs are whole words.
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

    /// Seals what is open in `[from, from + len)`, for it to be sent by reference; whether there was
    /// any.
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

    /// The Internet checksum of `[from, from + len)`.
    ///
    /// `fresh` has it computed from the bytes as they are now. A retransmission needs that: once
    /// the peer has placed a Read Response it may have the memory it came from written again, and
    /// if then our copy of its acknowledgment is lost, a checksum of the old bytes would have every
    /// retransmission dropped as damaged and never acknowledged.
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

    /// The same, from the sums that were made with the CRCs.
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

/// The checksum of `bytes[from..to]`.
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
        // Part of an FPDU: finish it alone, so that the next segment starts with a header.
        self.fpdus.get(whole.first).map_or(0, |q| clamp(q.end().since(from)).min(max))
    }
}

/// FPDUs a queue always keeps memory for while its connection is at work, once it has had it: a
/// window of a long message. Traffic of mixed sizes then asks the allocator for nothing.
const SMALL: usize = 1024;

/// Times in a row that a queue may be far too large.
const CALM: u8 = 32;

/// Octets of the shortest FPDU: a tagged segment without payload (RFC 5044 section 4.1).
const MIN_FPDU: u32 = 20;

fn clamp(v: u64) -> u32 {
    u32::try_from(v).unwrap_or(u32::MAX)
}
