//! A room: the free stretches of a memory, the share of each address in it, and the connections that wait.
//!
//! A buffer is for a call, for the results of a call, or for a reply. The room keeps its last stretches for the
//! later kinds, because results end a call and a reply ends results:
//!
//! ```text
//!   │ calls, results, replies │ results, replies │ replies │      of the memory, from full to empty
//!
//!   calls ──▶ turns: connections, in the order in which they found no buffer
//!                └── when a buffer comes back, the server asks them again in this order
//! ```
//!
//! **Shares.** An address gets more of a kind that it has some of only if all its buffers together are then at most
//! twice as much as is left free. So one address takes two thirds of the memory at most, and the next one two thirds of
//! the rest. An address that has none of a kind gets what the kind may have. An address that has some results or
//! replies also leaves what is kept from calls, so that many addresses do not use up by and by what an address with
//! none is to find.
//!
//! **Why the first of a kind is free.** An address whose calls have used up its share could get no buffer for their
//! results, and its calls would wait for themselves. So beyond its share it has one buffer of results and one reply at
//! a time, of what is kept. A peer that does not take them keeps them until its transfer times out: where the memory
//! has room for the results of one call beside all calls, one peer can keep those of others waiting for as long.
//!
//! **Turns.** A connection has one call waiting. No other call passes a call that waits for memory of others, so that
//! short calls do not take from a long one what it needs: the calls that have the memory end. A call that
//! waits for its own address's share lets the calls of other addresses pass, and none of its own address.

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
    turns: VecDeque<Turn>,
    /// Somebody has found none since a buffer was given back last.
    wanted: bool,
    /// Somebody who kept others waiting does so no more, since it was asked last.
    moved: bool,
}

/// A connection that waits for memory.
#[derive(Debug)]
struct Turn {
    number: u64,
    share: Option<Share>,
    /// Its address had used up its share when it was asked last.
    is_over: bool,
}

/// Why there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// The connection or its address has what it may have.
    Own,
    /// Others have it, or have their turns first.
    Others,
}

impl Room {
    /// Of `len` octets.
    pub(super) fn new(len: usize, kept: Kept) -> Room {
        Room {
            free: FreeList::new(len),
            len,
            kept,
            turns: VecDeque::new(),
            wanted: false,
            moved: false,
        }
    }

    /// A stretch of `room` octets, a multiple of [`ALIGN`], and what it is charged to.
    ///
    /// # Errors
    /// [`Lack`]; who waits is asked again when a stretch has come back, or when somebody has
    /// [moved](Room::take_moved).
    pub(super) fn take(&mut self, room: usize, ask: Ask<'_>) -> Result<(usize, Charges), Lack> {
        let taken = self.find(room, ask);
        let lack = taken.as_ref().err().copied();
        if let Some(number) = ask.turn {
            match lack {
                Some((lack, is_over)) if lack == Lack::Others || is_over => {
                    self.wait(number, ask.share, is_over);
                }
                _ => self.forget(number),
            }
        }
        self.wanted |= lack.is_some() && (ask.turn.is_some() || ask.is_reply || ask.waits);
        taken.map_err(|(lack, _)| lack)
    }

    /// The same; with the error, whether it is the share of the address that is used up.
    fn find(&mut self, room: usize, ask: Ask<'_>) -> Result<(usize, Charges), (Lack, bool)> {
        let budget = ask.budget.map(|budget| budget.charge(room).ok_or((Lack::Own, false)));
        let budget = budget.transpose()?;
        let share = ask.share.map(|share| (share, ask.kind()));
        let after = self.free.available().saturating_sub(room);
        if share.is_some_and(|(share, kind)| !share.may_take(kind, room, after))
            || self.is_behind_its_own(ask)
        {
            return Err((Lack::Own, true));
        }
        let kept = match ask {
            Ask { is_reply: true, .. } => 0,
            Ask { budget: Some(_), .. } => self.kept.results,
            _ => self.kept.replies,
        };
        // Twice what is left, of each of many addresses, leaves hardly any: what is kept is for those with none.
        let has_some =
            share.is_some_and(|(share, kind)| kind != Kind::Call && share.has_some(kind));
        let kept = if has_some { kept.max(self.kept.results) } else { kept };
        let has_room = self.free.available().checked_sub(room).is_some_and(|left| left >= kept);
        if has_some && !has_room {
            return Err((Lack::Own, true));
        }
        let off = if has_room && self.passes(ask) { self.free.take(room) } else { None };
        let off = off.ok_or((Lack::Others, false))?;
        let share = share.map(|(share, kind)| share.charge(kind, room));
        Ok((off, Charges { _budget: budget, _share: share }))
    }

    /// Returns true if nobody in front of it keeps it waiting.
    fn passes(&self, ask: Ask<'_>) -> bool {
        let Some(number) = ask.turn else { return true };
        let mut in_front = self.turns.iter().take_while(|turn| turn.number != number);
        in_front.all(|turn| turn.is_over)
    }

    /// Returns true if a call of its address, which waits for that address's share, is in front of it.
    fn is_behind_its_own(&self, ask: Ask<'_>) -> bool {
        let Some((number, share)) = ask.turn.zip(ask.share) else { return false };
        let mut in_front = self.turns.iter().take_while(|turn| turn.number != number);
        in_front.any(|turn| turn.is_over && turn.share.as_ref().is_some_and(|s| s.is_same(share)))
    }

    fn wait(&mut self, number: u64, share: Option<&Share>, is_over: bool) {
        match self.turns.iter_mut().find(|turn| turn.number == number) {
            Some(turn) => {
                self.moved |= is_over && !turn.is_over;
                turn.is_over = is_over;
            }
            None => self.turns.push_back(Turn { number, share: share.cloned(), is_over }),
        }
    }

    /// A stretch comes back; whether somebody wants it.
    pub(super) fn give(&mut self, off: usize, room: usize, charge: Charges) -> bool {
        self.free.give(off, room);
        // Under the lock, as whoever has used up his budget is to find it free when he is woken.
        drop(charge);
        std::mem::take(&mut self.wanted)
    }

    /// The connections that wait, in order.
    pub(super) fn in_turn(&self) -> Vec<u64> {
        self.turns.iter().map(|turn| turn.number).collect()
    }

    /// This connection waits no more.
    pub(super) fn forget(&mut self, number: u64) {
        if let Some(at) = self.turns.iter().position(|turn| turn.number == number) {
            self.turns.remove(at);
            self.moved |= at < self.turns.len();
        }
    }

    /// Returns true if somebody has moved out of others' way, who are to be asked again for it: memory that
    /// comes back may be long in coming.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
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
