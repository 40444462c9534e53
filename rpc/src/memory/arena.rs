//! What of a memory is free, and who waits for it.
//!
//! ```text
//!   calls ──▶ turns: connections, in the order in which they found none
//!                │ the first is asked again when a buffer was given back
//!                ▼
//!   │ anything │ all but calls │ replies alone │
//! ```
//!
//! An address has a share of each of these three: of what is left it may have twice as much as it leaves, so
//! that there is always some for another, however many have taken theirs. One that has nothing may take what
//! there is. Calls, results and replies are counted apart, as a call ends by its results and these by their
//! reply.
//!
//! Connections have their turns one call after the other. While one waits nobody passes it, so that many
//! short calls do not take from a long one what it needs; what keeps it waiting is under way and ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use heddle_verbs::Waker;

use super::Budget;
use super::share::{Charge, Kind, Share};

/// Buffers begin at multiples of this: a cache line, so that two do not share one.
pub(super) const ALIGN: usize = 64;

/// What a buffer is for.
#[derive(Clone, Copy, Default)]
pub(super) struct Ask<'a> {
    /// The connection's whose call it is for.
    pub(super) budget: Option<&'a Budget>,
    /// The share of the address that it is for.
    pub(super) share: Option<&'a Share>,
    /// Somebody waits for it when there is none.
    pub(super) waits: bool,
    /// The connection that waits when there is none.
    pub(super) turn: Option<u64>,
    /// It may be of what is kept for replies.
    pub(super) is_reply: bool,
}

impl Ask<'_> {
    fn kind(&self) -> Kind {
        match self {
            Ask { is_reply: true, .. } => Kind::Reply,
            Ask { budget: Some(_), .. } => Kind::Call,
            _ => Kind::Results,
        }
    }
}

/// What a stretch is charged to.
#[derive(Debug, Default)]
pub(super) struct Charges {
    pub(super) _budget: Option<Charge>,
    pub(super) _share: Option<Charge>,
}

/// Octets that some leave to others, however many wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    /// For replies: all others leave them.
    pub(super) replies: usize,
    /// For results and replies: calls leave them. With those of `replies` among them.
    pub(super) results: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Room {
    free: FreeList,
    len: usize,
    kept: Kept,
    /// Connections that found none, in order.
    turns: VecDeque<u64>,
    /// Somebody has found none since a buffer was given back last.
    wanted: bool,
}

impl Room {
    /// Of `len` octets.
    pub(super) fn new(len: usize, kept: Kept) -> Room {
        Room { free: FreeList::new(len), len, kept, turns: VecDeque::new(), wanted: false }
    }

    /// A stretch of `room` octets, a multiple of [`ALIGN`], and what it is charged to.
    pub(super) fn take(&mut self, room: usize, ask: Ask<'_>) -> Option<(usize, Charges)> {
        let share = ask.share.map(|share| (share, ask.kind()));
        let after = self.free.available().saturating_sub(room);
        let is_over = share.is_some_and(|(share, kind)| !share.may_take(kind, room, after));
        let charged = ask.budget.map(|budget| budget.charge(room));
        if is_over || matches!(charged, Some(None)) {
            self.wanted |= ask.turn.is_some() || ask.is_reply || ask.waits;
            ask.turn.into_iter().for_each(|number| self.forget(number));
            return None;
        }
        let charge = charged.flatten();
        let passes = ask.turn.is_none() || self.first().is_none_or(|first| ask.turn == Some(first));
        let kept = match ask {
            Ask { is_reply: true, .. } => 0,
            Ask { budget: Some(_), .. } => self.kept.results,
            _ => self.kept.replies,
        };
        let has_room = self.free.available().checked_sub(room).is_some_and(|left| left >= kept);
        let off = if passes && has_room { self.free.take(room) } else { None };
        if let Some(number) = ask.turn {
            if off.is_some() {
                self.forget(number);
            } else if !self.turns.contains(&number) {
                self.turns.push_back(number);
            }
        }
        self.wanted |= off.is_none() && (ask.turn.is_some() || ask.is_reply || ask.waits);
        let of_share =
            share.filter(|_| off.is_some()).map(|(share, kind)| share.charge(kind, room));
        Some((off?, Charges { _budget: charge, _share: of_share }))
    }

    /// Returns true if an address may take so many bytes for results, were they free.
    pub(super) fn is_within(&self, share: &Share, len: usize) -> bool {
        let after = self.free.available().saturating_sub(len);
        share.may_take(Kind::Results, len, after)
    }

    /// A stretch comes back; whether somebody wants it.
    pub(super) fn give(&mut self, off: usize, room: usize, charge: Charges) -> bool {
        self.free.give(off, room);
        // Under the lock, as whoever has used up his budget is to find it free when he is woken.
        drop(charge);
        std::mem::take(&mut self.wanted)
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.turns.front().copied()
    }

    fn forget(&mut self, number: u64) {
        self.turns.retain(|of| *of != number);
    }

    /// This connection waits no more; whether others do.
    pub(super) fn leave(&mut self, number: u64) -> bool {
        self.forget(number);
        !self.turns.is_empty()
    }

    pub(super) fn available(&self) -> usize {
        self.free.available()
    }

    pub(super) fn for_replies(&self) -> usize {
        self.kept.replies
    }

    /// Octets of the longest stretch that a call can ever have.
    pub(super) fn call_max(&self) -> usize {
        self.len.saturating_sub(self.kept.results)
    }
}

/// Tells that memory has come back to those who found none, on whatever thread they are.
#[derive(Debug)]
pub(super) struct Returned {
    told: AtomicBool,
    waker: Option<Waker>,
}

impl Returned {
    pub(super) fn new(waker: Option<Waker>) -> Returned {
        Returned { told: AtomicBool::new(false), waker }
    }

    pub(super) fn tell(&self) {
        // In one order with `has`, which is asked before the thread sleeps.
        if !self.told.swap(true, Ordering::SeqCst)
            && let Some(waker) = &self.waker
        {
            waker.wake();
        }
    }

    pub(super) fn take(&self) -> bool {
        self.told.load(Ordering::Relaxed) && self.told.swap(false, Ordering::SeqCst)
    }

    pub(super) fn has(&self) -> bool {
        self.told.load(Ordering::SeqCst)
    }
}

/// Stretches that are free; neighbors are one. First fit: buffers live as long as calls, so what is taken
/// early comes back early. Where stretches begin, by where they end: what is taken from the front of one
/// and comes back changes no key.
#[derive(Debug)]
pub(super) struct FreeList {
    begins: BTreeMap<usize, usize>,
    /// Octets of all.
    available: usize,
}

impl FreeList {
    pub(super) fn new(len: usize) -> FreeList {
        let available = len / ALIGN * ALIGN;
        FreeList { begins: BTreeMap::from([(available, 0)]), available }
    }

    pub(super) fn available(&self) -> usize {
        self.available
    }

    pub(super) fn take(&mut self, room: usize) -> Option<usize> {
        let (&end, begin) = self.begins.iter_mut().find(|(end, begin)| *end - **begin >= room)?;
        let off = *begin;
        *begin += room;
        if off + room == end {
            self.begins.remove(&end);
        }
        self.available -= room;
        Some(off)
    }

    pub(super) fn give(&mut self, off: usize, room: usize) {
        self.available += room;
        let end = off + room;
        // Of the stretch in front of it, if they touch.
        let first = self.begins.remove(&off).unwrap_or(off);
        match self.begins.range_mut(end..).next() {
            Some((_, begin)) if *begin == end => *begin = first,
            _ => drop(self.begins.insert(end, first)),
        }
    }

    /// The stretches and their lengths, by offset.
    #[cfg(test)]
    pub(super) fn stretches(&self) -> BTreeMap<usize, usize> {
        self.begins.iter().map(|(end, begin)| (*begin, end - begin)).collect()
    }
}
