//! The send and the receive queue: work requests in the order of posting, found by running index.
//!
//! ```text
//!   SQ   retired ≤ head ≤ next ≤ tail          RQ   retired ≤ head ≤ tail
//!        places    oldest  next to  next            places   oldest  next
//!        reported  not     send     place           reported buffer  place
//!        as free   complete                         as free
//! ```
//! Indices count from the first request and wrap modulo 2^32. The place of a request is free again
//! when the request and all before it are complete and the application has taken their completions.
//! So the depth of a queue also bounds the number of completions that wait.
//!
//! A request is kept in parts, each in a ring of its own: an entry of fixed size, its SGEs, and its
//! inline bytes. The operands of the few requests that have some (Immediate Data, atomic
//! operations) precede their inline bytes. So a request takes only the memory that it needs, and an
//! idle queue takes none.

use super::config::INLINE_PAYLOAD;
use super::fifo::Fifo;
use crate::Msn;
use heddle_base::{Fetch, StreamPos};
use heddle_engine::SharedReceives;
use heddle_types::{
    Access, AtomicOp, Bind, Data, PostError, RecvWr, SendOp, SendWr, Sge, Stag,
    wr::{MAX_INLINE, MAX_SGES},
};

/// Depth of the deepest queue. With this limit the indices of SGEs and inline bytes stay far from
/// wrapping onto themselves.
const MAX_DEPTH: u32 = 1 << 20;
const _: () = assert!((MAX_DEPTH as usize) * MAX_SGES < 1 << 31);
const _: () = assert!((MAX_DEPTH as usize) * (MAX_INLINE + 32) < 1 << 31);

/// The stages of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not all of the request is in FPDUs.
    Queued,
    /// The request's last byte is the byte before `end`. The request waits for the acknowledgment,
    /// a Read for the response.
    Sent,
    /// The request is done but not reported, because an earlier one is not done.
    Done,
}

/// The operation of a send request: [`SendOp`] without the operands that few requests have, which
/// are stored among the inline bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WqeOp {
    Send { solicited: bool, invalidate: Option<Stag> },
    Write { stag: Stag, to: u64 },
    WriteImmediate { stag: Stag, to: u64, solicited: bool },
    Immediate { solicited: bool },
    Read { stag: Stag, to: u64 },
    FetchAdd { stag: Stag, to: u64 },
    CmpSwap { stag: Stag, to: u64 },
    // The parts of a `Bind`: as one field, it would make every request longer.
    FastRegister { stag: Stag, to: u64, access: Access },
    BindWindow { stag: Stag, to: u64, access: Access },
    LocalInvalidate { stag: Stag },
}

const _: () = assert!(size_of::<WqeOp>() == 16);

impl WqeOp {
    /// Returns the number of bytes of the operands.
    #[inline]
    const fn operands(self) -> u32 {
        match self {
            WqeOp::Send { .. } | WqeOp::Write { .. } | WqeOp::Read { .. } => 0,
            WqeOp::FastRegister { .. }
            | WqeOp::BindWindow { .. }
            | WqeOp::LocalInvalidate { .. } => 0,
            WqeOp::Immediate { .. } | WqeOp::WriteImmediate { .. } => 8,
            WqeOp::FetchAdd { .. } => 16,
            WqeOp::CmpSwap { .. } => 32,
        }
    }

    /// Returns true if the operation changes the peer's memory atomically.
    #[inline]
    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, WqeOp::FetchAdd { .. } | WqeOp::CmpSwap { .. })
    }

    /// Returns true if the operation sends nothing.
    #[inline]
    pub(super) const fn is_local(self) -> bool {
        matches!(
            self,
            WqeOp::FastRegister { .. } | WqeOp::BindWindow { .. } | WqeOp::LocalInvalidate { .. }
        )
    }

    /// Returns true if the operation is done when its answer is in place, and not when it is
    /// acknowledged.
    #[inline]
    pub(super) const fn is_answered(self) -> bool {
        matches!(self, WqeOp::Read { .. }) || self.is_atomic()
    }
}

/// A send work request in its place in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wqe {
    pub(super) wr_id: u64,
    pub(super) op: WqeOp,
    /// The position in this end's stream after the request's last byte, once sent.
    pub(super) end: StreamPos,
    /// Bytes of the message.
    pub(super) len: u32,
    /// MSN of a Send or Read, once started.
    pub(super) msn: Msn,
    /// Index of the first SGE, or of the first inline byte.
    first: u32,
    /// Index of the operands, among the inline bytes.
    operands: u32,
    sges: u8,
    pub(super) inline: bool,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    /// True for a Send or Write of few bytes in one piece that waits for nothing.
    pub(super) short: bool,
    pub(super) progress: Progress,
    /// The reason for which the QP must not carry the request out.
    pub(super) refused: Option<PostError>,
}

impl Default for Wqe {
    /// Returns the contents of a place that no request has had.
    fn default() -> Wqe {
        Wqe {
            wr_id: 0,
            op: WqeOp::Immediate { solicited: false },
            end: StreamPos::START,
            len: 0,
            msn: Msn(0),
            first: 0,
            operands: 0,
            sges: 0,
            inline: false,
            signaled: false,
            fence: false,
            short: false,
            progress: Progress::Queued,
            refused: None,
        }
    }
}

/// Stores the pieces of a request, and returns the index of the first.
#[inline]
fn put_sges(sges: &mut Fifo<Sge>, list: &[Sge]) -> u32 {
    let first = sges.tail();
    match list {
        // Most requests have one SGE.
        [sge] => {
            let place = sges.push();
            *place = *sge;
        }
        list => sges.extend(list),
    }
    first
}

/// Returns the number of SGEs: the posting rules keep it within [`MAX_SGES`].
#[inline]
fn count(list: &[Sge]) -> u8 {
    u8::try_from(list.len()).unwrap_or(0)
}

/// The place of all bytes of a [short](Wqe::short) request.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShortSource<'a> {
    Memory(Sge),
    Inline([&'a [u8]; 2]),
}

/// The send queue.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Sq {
    pub(super) wqes: Fifo<Wqe>,
    depth: u32,
    pub(super) retired: u32,
    pub(super) next: u32,
    /// Completions that wait to be polled.
    pub(super) unpolled: u32,
    sges: Fifo<Sge>,
    inline: Fifo<u8>,
}

impl Sq {
    /// Fetches the entries that a turn begins with.
    pub(super) fn fetch(&self, fetch: impl Fetch) {
        self.wqes.fetch(fetch);
        self.sges.fetch(fetch);
    }

    pub(super) fn new(depth: u32) -> Sq {
        Sq {
            wqes: Fifo::new(),
            sges: Fifo::new(),
            inline: Fifo::new(),
            depth: depth.min(MAX_DEPTH),
            retired: 0,
            next: 0,
            unpolled: 0,
        }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.wqes.tail().wrapping_sub(self.retired) >= self.depth
    }

    /// Adds a request that keeps the rules, or one that the rules have `refused`.
    #[inline(always)]
    pub(super) fn push(&mut self, wr: &SendWr<'_>, checked: Result<u32, PostError>) {
        match checked {
            Ok(len) => self.put(wr, wr.data, len, None),
            Err(why) => self.push_refused(*wr, why),
        }
    }

    // By value: an argument passed by address must be in memory, even on the path that skips this
    // call.
    #[cold]
    fn push_refused(&mut self, wr: SendWr<'_>, why: PostError) {
        self.put(&wr, Data::Sges(&[]), 0, Some(why));
    }

    #[inline(always)]
    fn put(&mut self, wr: &SendWr<'_>, data: Data<'_>, len: u32, refused: Option<PostError>) {
        let operands = self.inline.tail();
        let op = self.take_operands(&wr.op);
        let (first, sges, inline) = match data {
            Data::Sges(list) => (put_sges(&mut self.sges, list), count(list), false),
            Data::Inline(bytes) => {
                let first = self.inline.tail();
                self.inline.extend(bytes);
                (first, 0, true)
            }
        };
        // The STag that a request is about to invalidate may be the sink of a Read.
        let fence = wr.fence || matches!(wr.op, SendOp::LocalInvalidate { .. });
        let few = (1..=INLINE_PAYLOAD).contains(&len) && (inline || sges == 1);
        *self.wqes.push() = Wqe {
            wr_id: wr.wr_id,
            op,
            end: StreamPos::START,
            len,
            msn: Msn(0),
            first,
            operands,
            sges,
            inline,
            signaled: wr.signaled,
            fence,
            short: few && !fence && matches!(op, WqeOp::Send { .. } | WqeOp::Write { .. }),
            progress: Progress::Queued,
            refused,
        };
    }

    #[inline]
    fn put_operands<const N: usize>(&mut self, operands: [u64; N]) {
        self.inline.extend(operands.map(u64::to_ne_bytes).as_flattened());
    }

    /// Returns the `i`th operand of a request that has it.
    fn operand(&self, wqe: &Wqe, i: u32) -> u64 {
        let mut bytes = [0; 8];
        let [a, b] = self.inline.run(wqe.operands.wrapping_add(8 * i), 8);
        for (to, byte) in bytes.iter_mut().zip(a.iter().chain(b)) {
            *to = *byte;
        }
        u64::from_ne_bytes(bytes)
    }

    /// Stores the operands of a request.
    #[inline(always)]
    fn take_operands(&mut self, op: &SendOp) -> WqeOp {
        match *op {
            SendOp::Send { solicited, invalidate } => WqeOp::Send { solicited, invalidate },
            SendOp::Write { stag, to } => WqeOp::Write { stag, to },
            SendOp::Read { stag, to } => WqeOp::Read { stag, to },
            SendOp::Immediate { data, solicited } => {
                self.put_operands([data]);
                WqeOp::Immediate { solicited }
            }
            SendOp::FastRegister(Bind { stag, to, access }) => {
                WqeOp::FastRegister { stag, to, access }
            }
            SendOp::BindWindow(Bind { stag, to, access }) => WqeOp::BindWindow { stag, to, access },
            SendOp::LocalInvalidate { stag } => WqeOp::LocalInvalidate { stag },
            SendOp::WriteImmediate { stag, to, data, solicited } => {
                self.put_operands([data]);
                WqeOp::WriteImmediate { stag, to, solicited }
            }
            SendOp::Atomic { stag, to, op: AtomicOp::FetchAdd { add, mask } } => {
                self.put_operands([add, mask]);
                WqeOp::FetchAdd { stag, to }
            }
            SendOp::Atomic {
                stag,
                to,
                op: AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask },
            } => {
                self.put_operands([compare, compare_mask, swap, swap_mask]);
                WqeOp::CmpSwap { stag, to }
            }
        }
    }

    /// Returns the Immediate Data of a request that has some.
    #[inline]
    pub(super) fn immediate(&self, wqe: &Wqe) -> u64 {
        self.operand(wqe, 0)
    }

    /// Returns the atomic operation of a request, if the request is one.
    #[inline]
    pub(super) fn atomic(&self, wqe: &Wqe) -> Option<AtomicOp> {
        let operand = |i| self.operand(wqe, i);
        match wqe.op {
            WqeOp::FetchAdd { .. } => {
                Some(AtomicOp::FetchAdd { add: operand(0), mask: operand(1) })
            }
            WqeOp::CmpSwap { .. } => Some(AtomicOp::CmpSwap {
                compare: operand(0),
                compare_mask: operand(1),
                swap: operand(2),
                swap_mask: operand(3),
            }),
            _ => None,
        }
    }

    /// Removes the oldest request, which is complete; returns its index and contents.
    #[inline]
    pub(super) fn pop(&mut self) -> (u32, &Wqe) {
        let index = self.wqes.head();
        let wqe = self.wqes.pop();
        if wqe.op.operands() > 0 {
            self.inline.free(wqe.operands.wrapping_add(wqe.op.operands()));
        }
        if wqe.inline {
            self.inline.free(wqe.first.wrapping_add(wqe.len));
        } else {
            self.sges.free(wqe.first.wrapping_add(wqe.sges.into()));
        }
        if self.next == index {
            // The request was flushed before its turn.
            self.next = index.wrapping_add(1);
        }
        (index, wqe)
    }

    /// Ends the request under way at `end`: its bytes before are in FPDUs, and no more will follow.
    #[cold]
    pub(super) fn cut_off(&mut self, end: StreamPos) {
        self.wqes.at_mut(self.next).end = end;
        self.next = self.next.wrapping_add(1);
    }

    /// Handles that the owner has withdrawn the FPDUs from `upto` on: a request that ended after
    /// `upto` has no bytes there any more.
    #[cold]
    pub(super) fn withdraw(&mut self, upto: StreamPos) {
        let mut index = self.wqes.head();
        while index != self.next {
            let wqe = self.wqes.at_mut(index);
            if wqe.end > upto {
                wqe.end = upto;
                wqe.progress = Progress::Queued;
            }
            index = index.wrapping_add(1);
        }
    }

    /// Returns the SGEs of a request.
    #[inline]
    pub(super) fn sges(&self, wqe: &Wqe) -> SgList<'_> {
        SgList(self.sges.run(wqe.first, wqe.sges.into()))
    }

    /// Returns the length of the payload of the segment that begins `off` bytes into a request, at
    /// most `max`: all remaining bytes if they are few, else only as many as are contiguous in one
    /// piece of memory. Also returns the piece in which they begin, unless they are inline.
    #[inline(always)]
    pub(super) fn next_piece(&self, wqe: &Wqe, off: u32, max: u32) -> (u32, Option<Sge>) {
        let left = wqe.len - off;
        if wqe.inline {
            return (left.min(max), None);
        }
        let piece = self.piece(wqe, off, max.min(left));
        let len = if left <= INLINE_PAYLOAD { left } else { piece.map_or(0, |s| s.len) };
        (len, piece)
    }

    /// Returns the SGE of a request that has one and whose data are not inline.
    pub(super) fn single_sge(&self, wqe: &Wqe) -> Option<Sge> {
        (wqe.sges == 1 && !wqe.inline).then(|| *self.sges.at(wqe.first))
    }

    /// Returns the part of the piece that holds byte `off` of a request, at most `max` long.
    #[inline]
    fn piece(&self, wqe: &Wqe, off: u32, max: u32) -> Option<Sge> {
        if wqe.sges == 0 {
            return None;
        }
        // Most requests have one SGE.
        let s = self.sges.at(wqe.first);
        if off >= s.len {
            return self.sges(wqe).piece(off, max);
        }
        Some(Sge {
            stag: s.stag,
            len: (s.len - off).min(max),
            to: s.to.saturating_add(u64::from(off)),
        })
    }

    /// Returns inline bytes `[off, off + len)` of a request.
    #[inline]
    pub(super) fn inline(&self, wqe: &Wqe, off: u32, len: u32) -> [&[u8]; 2] {
        self.inline.run(wqe.first.wrapping_add(off), len as usize)
    }

    /// Returns the next request and the place of its bytes, if the request is [short](Wqe::short).
    #[inline(always)]
    pub(super) fn next_short(&mut self) -> Option<(&mut Wqe, ShortSource<'_>)> {
        if !self.has_next() {
            return None;
        }
        let wqe = self.wqes.at_mut(self.next);
        if !wqe.short {
            return None;
        }
        let source = if wqe.inline {
            ShortSource::Inline(self.inline.run(wqe.first, wqe.len as usize))
        } else {
            ShortSource::Memory(*self.sges.at(wqe.first))
        };
        Some((wqe, source))
    }

    /// Returns true if a request waits to be sent or is being sent.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.next != self.wqes.tail()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wqes.is_empty()
    }

    /// Frees memory beyond what is in use.
    pub(super) fn trim(&mut self) {
        self.wqes.trim();
        self.sges.trim();
        self.inline.trim();
    }

    /// Returns the number of bytes of memory that the queue has allocated.
    #[cfg(test)]
    pub(super) fn heap(&self) -> usize {
        self.wqes.capacity() * size_of::<Wqe>()
            + self.sges.capacity() * size_of::<Sge>()
            + self.inline.capacity()
    }

    #[cfg(test)]
    pub(super) fn start_at(&mut self, at: u32) {
        self.wqes = Fifo::starting_at(at);
        self.sges = Fifo::starting_at(at);
        self.inline = Fifo::starting_at(at);
        (self.retired, self.next) = (at, at);
    }
}

/// A receive buffer in its place in the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rqe {
    pub(super) wr_id: u64,
    /// Bytes that the buffer holds.
    pub(super) len: u32,
    first: u32,
    sges: u8,
    /// The reason for which the QP must not use the buffer.
    pub(super) refused: Option<PostError>,
}

/// The receive queue.
#[derive(Debug)]
pub(super) struct Rq {
    pub(super) rqes: Fifo<Rqe>,
    sges: Fifo<Sge>,
    depth: u32,
    pub(super) retired: u32,
    /// MSN of the message that comes next or is being received.
    pub(super) msn: Msn,
    /// Bytes of that message that are in place.
    pub(super) received: u32,
    /// The shared queue from which this one takes a buffer for each message, if it does not use its
    /// own. Boxed twice: few queue pairs have a shared queue, so a queue pair has room for a thin
    /// pointer only.
    pub(super) shared: Option<Box<Box<dyn SharedReceives>>>,
}

impl Rq {
    pub(super) fn new(depth: u32) -> Rq {
        Rq {
            rqes: Fifo::new(),
            sges: Fifo::new(),
            depth: depth.min(MAX_DEPTH),
            retired: 0,
            msn: Msn(1),
            received: 0,
            shared: None,
        }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.rqes.tail().wrapping_sub(self.retired) >= self.depth
    }

    /// Adds a buffer that keeps the rules, or one that the rules have `refused`.
    #[inline(always)]
    pub(super) fn push(&mut self, wr: &RecvWr<'_>, checked: Result<u32, PostError>) {
        let list = if checked.is_ok() { wr.sges } else { &[] };
        let first = put_sges(&mut self.sges, list);
        *self.rqes.push() = Rqe {
            wr_id: wr.wr_id,
            len: checked.unwrap_or(0),
            first,
            sges: count(list),
            refused: checked.err(),
        };
    }

    /// Removes the oldest buffer, which is complete.
    #[inline]
    pub(super) fn pop(&mut self) {
        let rqe = self.rqes.pop();
        self.sges.free(rqe.first.wrapping_add(rqe.sges.into()));
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&Rqe> {
        (!self.rqes.is_empty()).then(|| self.rqes.at(self.rqes.head()))
    }

    /// Returns bytes `[off, off + len)` of a buffer, if they all lie in its first piece.
    #[inline]
    pub(super) fn first_piece(&self, rqe: &Rqe, off: u32, len: u32) -> Option<Sge> {
        if rqe.sges == 0 {
            return None;
        }
        let s = self.sges.at(rqe.first);
        let all = off <= s.len && len <= s.len - off;
        // Saturation suffices: the STag table refuses a wrapped offset.
        all.then(|| Sge { stag: s.stag, len, to: s.to.saturating_add(u64::from(off)) })
    }

    /// Returns the bytes of a buffer's first piece from `off` on, if there are any.
    pub(super) fn rest_of_first_piece(&self, rqe: &Rqe, off: u32) -> Option<Sge> {
        if rqe.sges == 0 {
            return None;
        }
        let s = self.sges.at(rqe.first);
        let len = s.len.checked_sub(off).filter(|len| *len > 0)?;
        Some(Sge { stag: s.stag, len, to: s.to.checked_add(u64::from(off))? })
    }

    /// Returns the pieces of a buffer.
    #[inline]
    pub(super) fn sges(&self, rqe: &Rqe) -> SgList<'_> {
        SgList(self.sges.run(rqe.first, rqe.sges.into()))
    }

    /// Frees memory beyond what is in use.
    pub(super) fn trim(&mut self) {
        self.rqes.trim();
        self.sges.trim();
    }

    /// Returns the number of bytes of memory that the queue has allocated.
    #[cfg(test)]
    pub(super) fn heap(&self) -> usize {
        self.rqes.capacity() * size_of::<Rqe>() + self.sges.capacity() * size_of::<Sge>()
    }

    #[cfg(test)]
    pub(super) fn start_at(&mut self, at: u32) {
        self.rqes = Fifo::starting_at(at);
        self.sges = Fifo::starting_at(at);
        self.retired = at;
    }
}

/// The pieces of local memory of one work request, in place in their ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct SgList<'a>([&'a [Sge]; 2]);

impl SgList<'_> {
    /// Returns all pieces, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sge> {
        self.0.into_iter().flatten()
    }

    #[inline]
    pub(super) fn first(&self) -> Option<&Sge> {
        self.0[0].first()
    }

    /// Calls `f` with the parts of the pieces that make up bytes `[off, off + len)` of the message,
    /// in order and none of them empty, until `f` fails.
    #[inline]
    pub(super) fn try_for_each<E>(
        &self,
        off: u32,
        len: u32,
        mut f: impl FnMut(Sge) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut skip, mut left) = (off, len);
        for s in self.0.into_iter().flatten() {
            if left == 0 {
                break;
            }
            if skip >= s.len {
                skip -= s.len;
                continue;
            }
            let n = (s.len - skip).min(left);
            // Saturation suffices: the STag table refuses a wrapped offset.
            f(Sge { stag: s.stag, len: n, to: s.to.saturating_add(u64::from(skip)) })?;
            left -= n;
            skip = 0;
        }
        Ok(())
    }

    /// Returns the part of the piece that holds byte `off` of the message, at most `max` long.
    #[inline(never)]
    fn piece(&self, off: u32, max: u32) -> Option<Sge> {
        let mut skip = off;
        for s in self.0.into_iter().flatten() {
            if skip < s.len {
                let to = s.to.saturating_add(u64::from(skip));
                return Some(Sge { stag: s.stag, len: (s.len - skip).min(max), to });
            }
            skip -= s.len;
        }
        None
    }
}
