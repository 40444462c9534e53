//! Fair turns among shares.
//!
//! [`FairQueue`] is start-time fair queueing (Goyal, Vin and Cheng, 1996) over shares, with a plain
//! queue within each: a share has a *tag*, which advances by the cost of each of its turns divided
//! by its weight, and the share with the lowest tag has the next turn. A share that comes back with
//! work goes on at its own tag, or at that of the turn in progress if this is higher. So a share
//! saves up nothing while it has no work, and a share whose only connection leaves the queue after
//! each turn, as connections do whose window is shut, still waits for what it has used.

use core::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use heddle_base::Instant;

use crate::shares::{Lane, Shares};

/// Units of a tag for each unit of cost at a weight of 1. A tag has 128 bits, so that it never
/// wraps.
const UNITS: u128 = 1 << 16;

/// Connections, or queue pairs, that wait for their turn, in shares.
#[derive(Debug)]
pub struct FairQueue<T> {
    lanes: Vec<Queue<T>>,
    /// The shares that have work and may send, by tag.
    order: BinaryHeap<Reverse<(u128, Lane)>>,
    /// The tag of the last turn when it began.
    reached: u128,
    /// The share whose turn it is.
    serving: Option<Lane>,
    /// Items that wait for no share.
    urgent: VecDeque<T>,
    /// Shares and items that wait for their rate.
    waiting: BinaryHeap<Reverse<Waiting<T>>>,
    waits: u64,
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<T>,
    tag: u128,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The share is not in `order`: it has no work, or it is its turn.
    Out,
    Ordered,
    /// The share waits for its rate; the number of the wait.
    Waiting(u64),
}

/// A share, or with an item only this item of the share, that waits for its rate.
#[derive(Debug)]
struct Waiting<T> {
    until: Instant,
    number: u64,
    since: Instant,
    lane: Lane,
    item: Option<T>,
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.until, self.number).cmp(&(other.until, other.number))
    }
}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Waiting<T> {}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { items: VecDeque::new(), tag: 0, state: State::Out }
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue {
            lanes: Vec::new(),
            order: BinaryHeap::new(),
            reached: 0,
            serving: None,
            urgent: VecDeque::new(),
            waiting: BinaryHeap::new(),
            waits: 0,
        }
    }
}

impl<T: Copy> FairQueue<T> {
    /// Returns a number that is 0 if [`pop`](Self::pop) would return nothing now. Items that wait
    /// for a rate do not count.
    pub fn len(&self) -> usize {
        let served = self.serving.and_then(|lane| self.lanes.get(usize::from(lane)));
        self.order.len() + self.urgent.len() + served.map_or(0, |q| q.items.len())
    }

    /// Returns true if [`pop`](Self::pop) would return nothing now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts an item at the end of its share.
    pub fn push(&mut self, lane: Lane, item: T) {
        let at = usize::from(lane);
        if at >= self.lanes.len() {
            self.lanes.resize_with(at + 1, Queue::default);
        }
        self.lanes[at].items.push_back(item);
        self.enqueue(lane);
    }

    /// Puts an item before all others, whatever its share and rates. No share pays for its turn.
    pub fn urge(&mut self, item: T) {
        self.urgent.push_back(item);
    }

    /// Puts a share with work into the order, unless it is there, waits, or has its turn.
    fn enqueue(&mut self, lane: Lane) {
        let Some(q) = self.lanes.get_mut(usize::from(lane)) else { return };
        if q.state == State::Out && self.serving != Some(lane) && !q.items.is_empty() {
            q.tag = q.tag.max(self.reached);
            q.state = State::Ordered;
            self.order.push(Reverse((q.tag, lane)));
        }
    }

    /// Returns the item whose turn it is, and the bytes that it may send by the rate of its share.
    /// A share that has to wait for its rate leaves the order until [`wake`](Self::wake). With no
    /// `now`, no share has to wait.
    ///
    /// The caller reports the cost of the turn by [`charge`](Self::charge).
    pub fn pop(&mut self, shares: &Shares, now: Option<Instant>) -> Option<(T, u64)> {
        self.charge(shares, 0);
        if let Some(item) = self.urgent.pop_front() {
            return Some((item, u64::MAX));
        }
        while let Some(Reverse((tag, lane))) = self.order.pop() {
            let Some(q) = self.lanes.get_mut(usize::from(lane)) else { continue };
            q.state = State::Out;
            if q.items.is_empty() {
                continue;
            }
            let credit = now.and_then(|now| Some((shares.share(lane)?.credit(now), now)));
            let credit = match credit {
                Some((Err(until), now)) => {
                    q.state = State::Waiting(self.waits);
                    self.note_wait(lane, None, (now, until));
                    continue;
                }
                Some((Ok(credit), _)) => credit,
                None => u64::MAX,
            };
            self.reached = tag;
            self.serving = Some(lane);
            return Some((q.items.pop_front()?, credit));
        }
        None
    }

    /// Returns the item that has its turn after `turns` others, if all shares have turns alike: one
    /// of the share that is next. A caller that asks before each turn, with the same number, sees
    /// each item once before its turn, but for those that [`first`](Self::first) returns.
    pub fn ahead(&self, turns: usize) -> Option<T> {
        let Reverse((_, lane)) = self.order.peek()?;
        let items = &self.lanes.get(usize::from(*lane))?.items;
        items.get(turns / self.order.len()).copied()
    }

    /// Returns the items that have the first `turns` turns, if all shares have turns alike, in any
    /// order.
    pub fn first(&self, turns: usize) -> impl Iterator<Item = T> + '_ {
        let each = turns / self.order.len().max(1);
        let lanes =
            self.order.iter().filter_map(|Reverse((_, lane))| self.lanes.get(usize::from(*lane)));
        lanes.flat_map(move |q| q.items.iter().take(each).copied())
    }

    /// Charges the turn of the last item to its share, and ends the turn.
    pub fn charge(&mut self, shares: &Shares, cost: u64) {
        let Some(lane) = self.serving.take() else { return };
        if let Some(q) = self.lanes.get_mut(usize::from(lane)) {
            let weight = shares.share(lane).map_or(1, |s| s.weight());
            q.tag += u128::from(cost) * UNITS / u128::from(weight);
        }
        self.enqueue(lane);
    }

    /// Makes an item of a share wait for its own rate.
    pub fn wait(&mut self, lane: Lane, item: T, now: Instant, until: Instant) {
        self.note_wait(lane, Some(item), (now, until));
    }

    fn note_wait(&mut self, lane: Lane, item: Option<T>, (since, until): (Instant, Instant)) {
        self.waiting.push(Reverse(Waiting { until, number: self.waits, since, lane, item }));
        self.waits += 1;
    }

    /// Returns when to call [`wake`](Self::wake) next.
    pub fn next_wake(&self) -> Option<Instant> {
        self.waiting.peek().map(|Reverse(w)| w.until)
    }

    /// Puts the shares and items whose wait is over back into the order.
    pub fn wake(&mut self, shares: &Shares, now: Instant) {
        while let Some(at) = self.waiting.peek()
            && at.0.until <= now
            && let Some(Reverse(w)) = self.waiting.pop()
        {
            if let Some(item) = w.item {
                self.push(w.lane, item);
            } else {
                match self.lanes.get_mut(usize::from(w.lane)) {
                    Some(q) if q.state == State::Waiting(w.number) => q.state = State::Out,
                    // Another share has the lane by now.
                    _ => continue,
                }
                self.enqueue(w.lane);
            }
            if let Some(share) = shares.share(w.lane) {
                share.note_wait(now.since(w.since));
            }
        }
    }

    /// Prepares a lane for another share: the items of the last share, which had no connection any
    /// more, stand for nothing, and the new share does not wait for the rate of the last.
    pub fn renew(&mut self, lane: Lane) {
        let Some(q) = self.lanes.get_mut(usize::from(lane)) else { return };
        q.items.clear();
        if matches!(q.state, State::Waiting(_)) {
            q.state = State::Out;
        }
    }
}

#[cfg(test)]
mod tests;
