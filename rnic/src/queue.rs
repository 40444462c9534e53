//! The send queue of one connection: start-up bytes first, then FPDUs.

use core::cell::Cell;
use core::ops::Range;
use std::collections::VecDeque;

use heddle_base::{StreamPos, Sum};
use heddle_iwarp::qp::Piece;
use heddle_iwarp::{Fpdu, Memory};
use heddle_tcp::{ByteQueue, SendQueue};

use crate::kept::Kept;

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
    fpdus: VecDeque<Queued>,
    /// One past the last FPDU; meaningful once there was one.
    fpdu_end: StreamPos,
    /// Most FPDUs seen since it was last empty, and how often in a row it became empty having needed
    /// a small part of its memory.
    peak: usize,
    calm: u8,
    /// Octets of snapshots among the FPDUs.
    snapshots: usize,
    /// Which FPDU was asked for last: the next question is for the same, or the one behind it.
    cursor: Cell<usize>,
}

#[derive(Debug)]
struct Queued {
    start: StreamPos,
    /// One past its last byte.
    end: StreamPos,
    fpdu: Fpdu,
}

impl FpduQueue {
    /// Queues bytes of the MPA start-up; there must be no FPDU yet.
    pub(crate) fn push_startup(&mut self, bytes: &[u8]) {
        debug_assert!(self.fpdus.is_empty());
        let startup = self.startup.get_or_insert_default();
        startup.push(bytes);
        self.startup_end = startup.end();
    }

    /// Queues an FPDU behind everything else, made by `make` in its place; its length, or 0 when
    /// there was none to make. `wants_memory` says whether it may have to own its bytes.
    #[inline]
    pub(crate) fn push_fpdu(
        &mut self,
        kept: &mut Kept,
        wants_memory: bool,
        make: impl FnOnce(&mut Fpdu) -> bool,
    ) -> u32 {
        let start = self.end();
        let fpdu = kept.fresh(wants_memory);
        self.fpdus.push_back(Queued { start, end: start, fpdu });
        if let Some(q) = self.fpdus.back_mut()
            && make(&mut q.fpdu)
        {
            self.snapshots += kept.enter(&mut q.fpdu);
            let len = q.fpdu.len();
            q.end = start + u64::from(len);
            self.fpdu_end = q.end;
            return len;
        }
        if let Some(q) = self.fpdus.pop_back() {
            kept.discard(q.fpdu);
        }
        0
    }

    /// FPDUs it has memory for.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.fpdus.capacity()
    }

    /// Octets of snapshots it keeps.
    pub(crate) fn snapshots(&self) -> usize {
        self.snapshots
    }

    /// FPDUs that refer to the region in slot `mr`.
    pub(crate) fn references(&self, mr: u32) -> u32 {
        let refers = |q: &&Queued| q.fpdu.payload().is_some_and(|p| p.mr() == mr);
        u32::try_from(self.fpdus.iter().filter(refers).count()).unwrap_or(u32::MAX)
    }

    /// Whether everything queued has been sent once.
    pub(crate) fn is_idle(&self, snd_max: StreamPos) -> bool {
        self.end() <= snd_max
    }

    /// Drops what the peer has acknowledged.
    pub(crate) fn release(&mut self, kept: &mut Kept, upto: StreamPos) {
        if let Some(startup) = &mut self.startup {
            startup.release(upto);
        }
        let mut gone = 0;
        self.peak = self.peak.max(self.fpdus.len());
        while self.fpdus.front().is_some_and(|q| q.end <= upto) {
            if let Some(q) = self.fpdus.pop_front() {
                self.snapshots -= kept.leave(q.fpdu);
            }
            gone += 1;
        }
        self.cursor.set(self.cursor.get().saturating_sub(gone));
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
            self.fpdus.shrink_to((2 * peak).max(SMALL));
        }
    }

    /// Gives back memory beyond what is in use, of a connection that is quiet.
    pub(crate) fn trim(&mut self) {
        if self.startup.as_ref().is_some_and(|s| s.start() == s.end()) {
            self.startup = None;
        }
        self.fpdus.shrink_to_fit();
        (self.peak, self.calm) = (0, 0);
    }

    /// Takes back the FPDUs that begin at `from` or behind it, of which nothing was sent; where the
    /// queue ends now.
    pub(crate) fn withdraw(&mut self, kept: &mut Kept, from: StreamPos) -> StreamPos {
        while self.fpdus.back().is_some_and(|q| q.start >= from) {
            if let Some(q) = self.fpdus.pop_back() {
                self.fpdu_end = q.start;
                self.snapshots -= kept.leave(q.fpdu);
            }
        }
        self.cursor.set(0);
        self.end()
    }

    /// Drops everything: the connection is gone.
    pub(crate) fn clear(&mut self, kept: &mut Kept) {
        for q in self.fpdus.drain(..) {
            kept.leave(q.fpdu);
        }
        let fpdu_end = self.fpdu_end;
        *self = FpduQueue { fpdu_end, ..FpduQueue::default() };
    }

    /// The FPDU that holds `pos`, or the first after it.
    #[inline]
    fn find(&self, pos: StreamPos) -> usize {
        let last = self.cursor.get();
        for at in [last, last + 1] {
            if self.fpdus.get(at).is_some_and(|q| q.start <= pos && pos < q.end) {
                self.cursor.set(at);
                return at;
            }
        }
        let at = self.fpdus.partition_point(|q| q.end <= pos);
        self.cursor.set(at);
        at
    }

    /// The FPDU that is all of `[from, from + len)`, as a segment of new data mostly is.
    #[inline]
    pub(crate) fn whole(&self, from: StreamPos, len: u32) -> Option<&Fpdu> {
        let q = self.fpdus.get(self.find(from))?;
        (q.start == from && q.end == from + u64::from(len)).then_some(&q.fpdu)
    }

    /// Which FPDUs `[from, from + len)` consists of, if it is of whole ones and each of them can be
    /// [filled in](Self::fill).
    #[inline]
    pub(crate) fn fillable(&self, from: StreamPos, len: u32) -> Option<Range<usize>> {
        let first = self.find(from);
        let (mut at, mut pos, end) = (first, from, from + u64::from(len));
        while pos < end {
            let q = self.fpdus.get(at)?;
            let by_reference = q.fpdu.payload().is_some() && !q.fpdu.is_open();
            if q.start != pos || q.end > end || by_reference {
                return None;
            }
            (at, pos) = (at + 1, q.end);
        }
        Some(first..at)
    }

    /// Writes FPDUs to `dst`, which has just their length, and seals those that are open; the
    /// checksum of all, and how many octets of payload were copied in that.
    #[inline]
    pub(crate) fn fill<M: Memory>(
        &mut self,
        mem: &M,
        which: Range<usize>,
        dst: &mut [u8],
    ) -> (Sum, u64) {
        let (mut sum, mut digested, mut at) = (Sum::ZERO, 0, 0);
        for q in self.fpdus.range_mut(which) {
            let len = q.fpdu.len() as usize;
            let Some(room) = dst.get_mut(at..at + len) else { break };
            digested += q.fpdu.payload().map_or(0, |p| u64::from(p.len()));
            q.fpdu.seal_into(mem, room);
            // FPDUs are whole words.
            sum = sum.plus(q.fpdu.sum(mem));
            at += len;
        }
        (sum, digested)
    }

    /// Seals what is open in `[from, from + len)`, for it to be sent by reference; whether there was
    /// any.
    pub(crate) fn seal<M: Memory>(&mut self, mem: &M, from: StreamPos, len: u32) -> bool {
        let (first, end) = (self.find(from), from + u64::from(len));
        let mut any = false;
        for q in self.fpdus.range_mut(first.min(self.fpdus.len())..) {
            if q.start >= end {
                break;
            }
            any |= q.fpdu.is_open();
            q.fpdu.seal(mem);
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
        let mut pos = from;
        for q in self.fpdus.range(self.find(from)..) {
            if pos >= end {
                break;
            }
            let skip = clamp(pos.since(q.start));
            let take = clamp(end.since(pos)).min(q.fpdu.len().saturating_sub(skip));
            q.fpdu.for_each_piece(skip, take, &mut f);
            pos += u64::from(take);
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
            && let Some(sum) = self.sum_of_whole(mem, from, len)
        {
            return sum;
        }
        let (mut sum, mut off) = (Sum::ZERO, 0);
        self.pieces(from, len, |p| match p {
            Piece::Bytes(b) => {
                sum = sum.add_at(off, Sum::of(b));
                off += b.len();
            }
            Piece::Memory(r) => {
                sum = sum.add_at(off, mem.digest(r, 0).1);
                off += r.len() as usize;
            }
        });
        sum
    }

    /// The same, from the sums that were made with the CRCs; `None` unless the range is of whole
    /// FPDUs.
    fn sum_of_whole<M: Memory>(&self, mem: &M, from: StreamPos, len: u32) -> Option<Sum> {
        let mut sum = Sum::ZERO;
        let mut pos = from;
        let end = from + u64::from(len);
        for q in self.fpdus.range(self.find(from)..) {
            if pos >= end {
                break;
            }
            if q.start != pos || q.end > end {
                return None;
            }
            sum = sum.plus(q.fpdu.sum(mem));
            pos = q.end;
        }
        (pos == end).then_some(sum)
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
        let first = self.find(from);
        let Some(q) = self.fpdus.get(first) else { return 0 };
        let rest = clamp(q.end.since(from));
        if from != q.start || rest > max {
            // Part of an FPDU: finish it alone, so that the next segment starts with a header.
            return rest.min(max);
        }
        let mut total = rest;
        let mut at = first + 1;
        while max - total >= MIN_FPDU
            && let Some(q) = self.fpdus.get(at)
            && clamp(q.end.since(q.start)) <= max - total
        {
            total += clamp(q.end.since(q.start));
            at += 1;
        }
        total
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use heddle_iwarp::Pins;

    use super::*;

    /// Queues `n` FPDUs and has them acknowledged.
    fn burst(q: &mut FpduQueue, kept: &mut Kept, n: usize) {
        for _ in 0..n {
            // Nothing is in them; how many there are is what matters.
            q.push_fpdu(kept, false, |_| true);
        }
        q.release(kept, q.end());
        assert!(q.fpdus.is_empty());
    }

    #[test]
    fn test_memory_of_a_burst_is_given_back_when_little_is_needed_for_a_while() {
        let mut kept = Kept::new(Arc::new(Pins::new(0)), 0);
        let mut q = FpduQueue::default();
        // A burst now and then keeps it.
        for _ in 0..3 {
            burst(&mut q, &mut kept, 5000);
            for _ in 1..CALM {
                burst(&mut q, &mut kept, 1);
            }
            assert!(q.room() >= 5000);
        }
        burst(&mut q, &mut kept, 1);
        assert!(q.room() <= SMALL, "{}", q.room());
    }
}
