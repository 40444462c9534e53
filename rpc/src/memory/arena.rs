//! A room: the free stretches of a memory, each address's share, and the connections that wait.
//!
//! A buffer is for a call, for the results of a call, or for a reply. The room keeps its last
//! stretches for the later kinds, because results end a call and a reply ends results:
//!
//! ```text
//!   │ calls, results, replies │ results, replies │ replies │    of the memory, from full to empty
//!
//!   calls ──▶ turns: connections, in the order in which they found no buffer
//!                └── when a buffer comes back, the server asks them again in this order
//! ```
//!
//! **Shares.** An address that has some buffers of a kind gets another of that kind only if all its
//! buffers together are then at most twice as large as the free memory. So one address takes at
//! most two thirds of the memory, and the next takes two thirds of the rest. An address that has
//! none of a kind gets as much as the kind may have. An address that has some results or replies
//! must also leave the memory that is kept from calls. Otherwise many addresses would gradually use
//! up the memory that an address with none must find.
//!
//! **Why the first of a kind is free.** An address whose calls have used up its share could get no
//! buffer for their results, and its calls would wait for themselves. So beyond its share each
//! address gets one buffer of results and one reply at a time, from the kept memory. A peer that
//! does not take its results or replies holds these buffers until its transfer times out. If the
//! memory has room for the results of only one call beside all calls, one peer can keep the results
//! of other peers waiting for that long.
//!
//! **Turns.** A connection has one waiting call. No other call passes a call that waits for memory
//! of others, so that short calls do not take memory that a long call needs: the calls that have
//! the memory will end. A call that waits for its own address's share lets the calls of other
//! addresses pass, but no call of its own address.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use heddle_verbs::Waker;

use super::Budget;
use super::share::{Charge, Kind, Share};

/// The alignment of buffers in bytes: a cache line, so that no two buffers share a line.
pub(super) const ALIGN: usize = 64;

/// The purpose of a requested buffer.
#[derive(Clone, Copy, Default)]
pub(super) struct Ask<'a> {
    /// Budget of the connection whose call needs the buffer.
    pub(super) budget: Option<&'a Budget>,
    /// Share of the address that needs the buffer.
    pub(super) share: Option<&'a Share>,
    /// True if the caller waits when there is no buffer.
    pub(super) waits: bool,
    /// The connection that waits when there is no buffer.
    pub(super) turn: Option<u64>,
    /// True if the buffer may use the memory that is kept for replies.
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

/// The budget and the share to which a stretch is charged.
#[derive(Debug, Default)]
pub(super) struct Charges {
    pub(super) _budget: Option<Charge>,
    pub(super) _share: Option<Charge>,
}

/// Bytes that some kinds of buffers leave to others, however many requests wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    /// Bytes for replies: all other kinds leave them free.
    pub(super) replies: usize,
    /// Bytes for results and replies, which calls leave free. The number includes `replies`.
    pub(super) results: usize,
}

/// See [the module](self).
#[derive(Debug)]
pub(super) struct Room {
    free: FreeList,
    len: usize,
    kept: Kept,
    /// Connections that found no memory, in order.
    turns: VecDeque<Turn>,
    /// True if a request found no memory since a buffer last came back.
    wanted: bool,
    /// True if a connection has stopped keeping others waiting, since the last `take_moved`.
    moved: bool,
}

/// A connection that waits for memory.
#[derive(Debug)]
struct Turn {
    number: u64,
    share: Option<Share>,
    /// True if its address had used up its share at the last request.
    is_over: bool,
}

/// The reason why a request found no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// The connection or its address has as much as it may have.
    Own,
    /// Others have the memory, or have their turns first.
    Others,
}

impl Room {
    /// Creates a room of `len` bytes.
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

    /// Takes a stretch of `room` bytes, a multiple of [`ALIGN`]. Returns its offset, and its
    /// charges.
    ///
    /// # Errors
    /// [`Lack`]; a waiting connection is asked again when a stretch has come back, or when another
    /// connection has [moved](Room::take_moved).
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

    /// Finds a stretch for `take`. The flag of the error is true if the share of the address is
    /// used up.
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
        // If each of many addresses takes twice the free memory, hardly any is left: the kept
        // memory is for addresses that have none.
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

    /// Returns true if no connection in front of this one keeps it waiting.
    fn passes(&self, ask: Ask<'_>) -> bool {
        let Some(number) = ask.turn else { return true };
        let mut in_front = self.turns.iter().take_while(|turn| turn.number != number);
        in_front.all(|turn| turn.is_over)
    }

    /// Returns true if a call of the same address, which waits for that address's share, is in
    /// front of this one.
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

    /// Takes a stretch back. Returns true if a request wants memory.
    pub(super) fn give(&mut self, off: usize, room: usize, charge: Charges) -> bool {
        self.free.give(off, room);
        // Release the charge under the lock: a connection that had used up its budget must find the
        // budget free when it is woken.
        drop(charge);
        std::mem::take(&mut self.wanted)
    }

    /// Returns the connections that wait, in order.
    pub(super) fn in_turn(&self) -> Vec<u64> {
        self.turns.iter().map(|turn| turn.number).collect()
    }

    /// Removes this connection from those that wait.
    pub(super) fn forget(&mut self, number: u64) {
        if let Some(at) = self.turns.iter().position(|turn| turn.number == number) {
            self.turns.remove(at);
            self.moved |= at < self.turns.len();
        }
    }

    /// Returns true if a connection has moved out of the way of others since the last call. The
    /// waiting connections must then be asked again, because memory may take long to come back.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    pub(super) fn available(&self) -> usize {
        self.free.available()
    }

    pub(super) fn for_replies(&self) -> usize {
        self.kept.replies
    }

    /// Returns the length in bytes of the longest stretch that a call can ever get.
    pub(super) fn call_max(&self) -> usize {
        self.len.saturating_sub(self.kept.results)
    }
}

/// Notifies requests that found no memory, on any thread, that memory has come back.
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
        // SeqCst puts this swap in one order with `has`, which the thread calls before it sleeps.
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

/// The free stretches; adjacent stretches are merged. Allocation is first fit: buffers live as long
/// as calls, so a stretch that was taken early comes back early. The map gives the begin of each
/// stretch by its end. So a stretch whose front is taken and given back keeps its key.
#[derive(Debug)]
pub(super) struct FreeList {
    begins: BTreeMap<usize, usize>,
    /// Length of all free stretches in bytes.
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
        // Merge with the preceding stretch, if the two touch.
        let first = self.begins.remove(&off).unwrap_or(off);
        match self.begins.range_mut(end..).next() {
            Some((_, begin)) if *begin == end => *begin = first,
            _ => drop(self.begins.insert(end, first)),
        }
    }

    /// Returns the lengths of the stretches, by offset.
    #[cfg(test)]
    pub(super) fn stretches(&self) -> BTreeMap<usize, usize> {
        self.begins.iter().map(|(end, begin)| (*begin, end - begin)).collect()
    }
}
