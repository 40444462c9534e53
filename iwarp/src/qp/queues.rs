//! The send and the receive queue: work requests in the order of posting, found by running index.
//!
//! ```text
//!   SQ   retired ≤ head ≤ next ≤ tail          RQ   retired ≤ head ≤ tail
//!        places    oldest  next to  next            places   oldest  next
//!        told to   not     send     place           told     buffer  place
//!        be free   complete
//! ```
//! Indices count from the beginning and wrap modulo 2^32. A request's place is free again once it
//! and all before it are complete and the application has been given their completions, which also
//! bounds the completions that wait.
//!
//! A request is kept in parts: an entry of fixed size, its SGEs, and its inline octets, behind the
//! operands of the few that have some (Immediate Data, atomic operations), each in a ring of its
//! own, so that a request takes what it needs and an idle queue takes nothing.

use super::config::INLINE_PAYLOAD;
use super::fifo::Fifo;
use super::shared::SharedReceives;
use super::wr::{Data, MAX_INLINE, MAX_SGES, PostError, RecvWr, SendOp, SendWr, Sge};
use crate::rdmap::AtomicOp;
use crate::{Access, Bind, Msn, Stag};
use heddle_base::StreamPos;

/// Deepest queue: with it the indices of SGEs and inline octets stay far from wrapping onto
/// themselves.
const MAX_DEPTH: u32 = 1 << 20;
const _: () = assert!((MAX_DEPTH as usize) * MAX_SGES < 1 << 31);
const _: () = assert!((MAX_DEPTH as usize) * (MAX_INLINE + 32) < 1 << 31);

/// How far a send request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not all of it is in FPDUs.
    Queued,
    /// Its last octet is that before `end`; waits for the acknowledgment (Read: for the response).
    Sent,
    /// Done, but not yet reported: an earlier one is not.
    Done,
}

/// What a send request does: [`SendOp`] without the operands that few have, which stand among the
/// inline octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WqeOp {
    Send { solicited: bool, invalidate: Option<Stag> },
    Write { stag: Stag, to: u64 },
    WriteImmediate { stag: Stag, to: u64, solicited: bool },
    Immediate { solicited: bool },
    Read { stag: Stag, to: u64 },
    FetchAdd { stag: Stag, to: u64 },
    CmpSwap { stag: Stag, to: u64 },
    // The parts of a `Bind`: in one piece it would make every request longer.
    FastRegister { stag: Stag, to: u64, access: Access },
    BindWindow { stag: Stag, to: u64, access: Access },
    LocalInvalidate { stag: Stag },
}

const _: () = assert!(size_of::<WqeOp>() == 16);

impl WqeOp {
    /// Octets of its operands.
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

    /// Whether it changes the peer's memory in one step.
    #[inline]
    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, WqeOp::FetchAdd { .. } | WqeOp::CmpSwap { .. })
    }

    /// Whether nothing is sent for it.
    #[inline]
    pub(super) const fn is_local(self) -> bool {
        matches!(
            self,
            WqeOp::FastRegister { .. } | WqeOp::BindWindow { .. } | WqeOp::LocalInvalidate { .. }
        )
    }

    /// Whether it is done when the answer is in place, and not when it is acknowledged.
    #[inline]
    pub(super) const fn is_answered(self) -> bool {
        matches!(self, WqeOp::Read { .. }) || self.is_atomic()
    }
}

/// A send work request in its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wqe {
    pub(super) wr_id: u64,
    pub(super) op: WqeOp,
    /// One past its last octet in our stream, once sent.
    pub(super) end: StreamPos,
    /// Octets of the message.
    pub(super) len: u32,
    /// Of a Send or Read, once started.
    pub(super) msn: Msn,
    /// Index of its first SGE, or of its first inline octet.
    first: u32,
    /// Index of its operands, among the inline octets.
    operands: u32,
    sges: u8,
    pub(super) inline: bool,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    /// A Send or Write of few octets that lie in one piece, and it waits for nothing.
    pub(super) short: bool,
    pub(super) progress: Progress,
    /// Why it must not be carried out.
    pub(super) refused: Option<PostError>,
}

impl Default for Wqe {
    /// Of a place that no request has had.
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

/// Puts the pieces of a request where they are kept; the index of the first.
#[inline]
fn put_sges(sges: &mut Fifo<Sge>, list: &[Sge]) -> u32 {
    let first = sges.tail();
    match list {
        // As most have.
        [sge] => {
            let place = sges.push();
            *place = *sge;
        }
        list => sges.extend(list),
    }
    first
}

/// How many they are: the rules keep it at [`MAX_SGES`].
#[inline]
fn count(list: &[Sge]) -> u8 {
    u8::try_from(list.len()).unwrap_or(0)
}

/// Where all octets of a [short](Wqe::short) request are.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShortSource<'a> {
    Memory(Sge),
    Inline([&'a [u8]; 2]),
}

/// The send queue.
#[derive(Debug)]
pub(super) struct Sq {
    pub(super) wqes: Fifo<Wqe>,
    sges: Fifo<Sge>,
    inline: Fifo<u8>,
    depth: u32,
    pub(super) retired: u32,
    pub(super) next: u32,
    /// Completions that wait to be polled.
    pub(super) unpolled: u32,
}

impl Sq {
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

    /// Takes a request that keeps the rules, or one that was `refused` by them.
    #[inline(always)]
    pub(super) fn push(&mut self, wr: &SendWr<'_>, checked: Result<u32, PostError>) {
        match checked {
            Ok(len) => self.put(wr, wr.data, len, None),
            Err(why) => self.push_refused(*wr, why),
        }
    }

    // By value: what is handed on by its address has to be in memory, also where this is not called.
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
        // What is about to end may be the sink of a Read.
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

    /// The `i`th operand of a request that has it.
    fn operand(&self, wqe: &Wqe, i: u32) -> u64 {
        let mut octets = [0; 8];
        let [a, b] = self.inline.run(wqe.operands.wrapping_add(8 * i), 8);
        for (to, octet) in octets.iter_mut().zip(a.iter().chain(b)) {
            *to = *octet;
        }
        u64::from_ne_bytes(octets)
    }

    /// Puts the operands of a request where they are kept.
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

    /// The Immediate Data of a request that has some.
    #[inline]
    pub(super) fn immediate(&self, wqe: &Wqe) -> u64 {
        self.operand(wqe, 0)
    }

    /// The atomic operation a request asks for, if it does.
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

    /// Forgets the oldest request, which is complete; its index, and what it was.
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
            // Flushed before its turn.
            self.next = index.wrapping_add(1);
        }
        (index, wqe)
    }

    /// The request under way has octets in FPDUs up to `end`, and will have no more.
    #[cold]
    pub(super) fn cut_off(&mut self, end: StreamPos) {
        self.wqes.at_mut(self.next).end = end;
        self.next = self.next.wrapping_add(1);
    }

    /// FPDUs from `upto` on are gone: of a request that ended there nothing is left behind `upto`.
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

    /// The SGEs of a request.
    #[inline]
    pub(super) fn sges(&self, wqe: &Wqe) -> SgList<'_> {
        SgList(self.sges.run(wqe.first, wqe.sges.into()))
    }

    /// Octets of the payload of the segment that begins `off` octets into a request, at most `max`:
    /// what is left if that is few, else no more than lie in one piece of memory. And the piece where
    /// they begin, unless they are inline.
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

    /// The part of one piece where octet `off` of a request lies, at most `max` long.
    #[inline]
    fn piece(&self, wqe: &Wqe, off: u32, max: u32) -> Option<Sge> {
        if wqe.sges == 0 {
            return None;
        }
        // Most requests have one.
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

    /// Inline octets `[off, off + len)` of a request.
    #[inline]
    pub(super) fn inline(&self, wqe: &Wqe, off: u32, len: u32) -> [&[u8]; 2] {
        self.inline.run(wqe.first.wrapping_add(off), len as usize)
    }

    /// The next request and where its octets are, if it is [short](Wqe::short).
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

    /// Whether something waits to be sent or is being sent.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.next != self.wqes.tail()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wqes.is_empty()
    }

    /// Gives back memory beyond what is in use.
    pub(super) fn trim(&mut self) {
        self.wqes.trim();
        self.sges.trim();
        self.inline.trim();
    }

    /// Octets of memory it has beside itself.
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

/// A receive buffer in its place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rqe {
    pub(super) wr_id: u64,
    /// Octets it holds.
    pub(super) len: u32,
    first: u32,
    sges: u8,
    /// Why it must not be used.
    pub(super) refused: Option<PostError>,
}

/// The receive queue.
#[derive(Debug)]
pub(super) struct Rq {
    pub(super) rqes: Fifo<Rqe>,
    sges: Fifo<Sge>,
    depth: u32,
    pub(super) retired: u32,
    /// Of the message that comes or is being received.
    pub(super) msn: Msn,
    /// Octets of it that are in place.
    pub(super) received: u32,
    /// Where it takes a buffer from for each message, if not from its own. Twice boxed: a queue pair
    /// has thin room for what few have.
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

    /// Takes a buffer that keeps the rules, or one that was `refused` by them.
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

    /// Forgets the oldest buffer, which is complete.
    #[inline]
    pub(super) fn pop(&mut self) {
        let rqe = self.rqes.pop();
        self.sges.free(rqe.first.wrapping_add(rqe.sges.into()));
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&Rqe> {
        (!self.rqes.is_empty()).then(|| self.rqes.at(self.rqes.head()))
    }

    /// Octets `[off, off + len)` of a buffer, if they all lie in its first piece.
    #[inline]
    pub(super) fn first_piece(&self, rqe: &Rqe, off: u32, len: u32) -> Option<Sge> {
        if rqe.sges == 0 {
            return None;
        }
        let s = self.sges.at(rqe.first);
        let all = off <= s.len && len <= s.len - off;
        // Saturation only: a wrapped offset is refused by the STag table.
        all.then(|| Sge { stag: s.stag, len, to: s.to.saturating_add(u64::from(off)) })
    }

    /// The pieces of a buffer.
    #[inline]
    pub(super) fn sges(&self, rqe: &Rqe) -> SgList<'_> {
        SgList(self.sges.run(rqe.first, rqe.sges.into()))
    }

    /// Gives back memory beyond what is in use.
    pub(super) fn trim(&mut self) {
        self.rqes.trim();
        self.sges.trim();
    }

    /// Octets of memory it has beside itself.
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

/// The pieces of local memory of one work request, as they lie in their ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct SgList<'a>([&'a [Sge]; 2]);

impl SgList<'_> {
    /// All pieces.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sge> {
        self.0.into_iter().flatten()
    }

    #[inline]
    pub(super) fn first(&self) -> Option<&Sge> {
        self.0[0].first()
    }

    /// Calls `f` with the parts of the pieces that make up octets `[off, off + len)` of the
    /// message, in order and none of them empty, until it fails.
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
            // Saturation only: a wrapped offset is refused by the STag table.
            f(Sge { stag: s.stag, len: n, to: s.to.saturating_add(u64::from(skip)) })?;
            left -= n;
            skip = 0;
        }
        Ok(())
    }

    /// The part of one piece where octet `off` of the message lies, at most `max` long.
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
